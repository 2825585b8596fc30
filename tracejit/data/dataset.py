"""`Dataset`: a recipe for a sequence of elements; iterating it reads them, anew each time.

In: arrays, generators, files. Out: elements, pytrees of tensors, in an order that a seed decides. A dataset holds no
position: an iterator does, and can write it down (`state`, `load_state`).

Read next: `streams.py` (what runs).
"""

from __future__ import annotations

import math
import operator
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from tracejit import config
from tracejit.data import elements, sources, streams, workers
from tracejit.data.elements import Progression, Store, Table, table_of
from tracejit.data.streams import Pass, Seed, Stream, call, take_over
from tracejit.errors import TracerError, user_line
from tracejit.locks import fork_safe
from tracejit.ops.random import default_generator
from tracejit.ops.random import key as random_key
from tracejit.tensor import Tensor, recording, state
from tracejit.trees import flatten

AUTOTUNE = -1  # for sizes of buffers and numbers of threads: as this machine likes it
Cardinality = int | float | None


class Dataset:
    """A sequence of elements: pytrees of tensors.

    Every method gives a new dataset and reads nothing. Functions given to methods get the parts of a tuple as
    arguments, any other element as one argument; they run eagerly, with tensors.

    >>> d = Dataset.from_tensor_slices(([1.0, 2.0, 3.0], [0, 1, 0]))
    >>> for x, y in d.batch(2): print(x.tolist(), y.tolist())
    [1.0, 2.0] [0, 1]
    [3.0] [0]
    """

    class_names: list[str] | None = None  # of `from_image_folder`

    def __init__(self, name: str, opened: Callable[[Pass], Stream], length: Callable[[], Cardinality],
                 sample: Callable[[int], Any], table: Table | None = None, passes: _Passes | None = None,
                 seeds: Sequence[Seed] = ()):
        """Made by the methods. name: how it was made. opened(pass): a stream of items. sample(k): an element for
        `element_spec`; those for 0 and 1 differ where sizes do. table: what items are rows of; None: they are elements.
        passes: numbers the passes over this dataset and those made from it (up to the next shuffle). seeds: of all
        shuffles in it."""
        self._name, self._opened, self._length, self._sample, self._table = name, opened, length, sample, table
        self._passes, self._seeds = passes or _Passes(), list(dict.fromkeys(seeds))

    # -- sources -----------------------------------------------------------------------------------------------------
    @staticmethod
    def from_tensor_slices(tensors: Any) -> Dataset:
        """The rows of arrays (first axis), which must have equally many. Lists count as arrays. Tensors and read-only
        arrays, memory maps too, are not copied.

        >>> list(Dataset.from_tensor_slices({"a": [1, 2]}))[1]
        {'a': tj.Tensor(2, shape=(), dtype=int32)}
        """
        table, count = table_of(tensors, "from_tensor_slices")
        return _of_table("from_tensor_slices", table, count)

    @staticmethod
    def from_tensors(tensors: Any) -> Dataset:
        """One element: the arrays as they are."""
        leaves, structure = elements.arrays_of(tensors, "from_tensors")
        if not leaves:
            raise ValueError("from_tensors: there is no array in it")
        return _of_table("from_tensors", Table([x[None] for x in leaves], structure), 1)

    @staticmethod
    def range(*args: int) -> Dataset:
        """The numbers of Python's `range(*args)`, int64.

        >>> [x.item() for x in Dataset.range(2, 8, 3)]
        [2, 5]
        """
        numbers = range(*args)
        return _of_table("range", Progression(numbers), len(numbers))

    @staticmethod
    def from_generator(generator: Callable[..., Any], output_signature: Any = None, args: Sequence[Any] = ()
                       ) -> Dataset:
        """What `generator(*args)` yields; it is called anew for each pass.

        output_signature: a pytree of `tj.spec`; each element is checked against it, numbers and lists take its dtypes.
        An iterator resumes by leaving out what it had read.

        >>> d = Dataset.from_generator(lambda: ((n, n / 2) for n in range(3)))
        >>> [(n.item(), x.item()) for n, x in d]
        [(0, 0.0), (1, 0.5), (2, 1.0)]
        """
        if not callable(generator):
            raise TypeError("from_generator: give the function that makes the generator, so that each pass can start "
                            f"anew, not a {type(generator).__name__}")
        name = streams.name_of(generator)

        def check(element: Any, k: int) -> Any:
            what = f"from_generator({name}): element {k}"
            if output_signature is None:
                return elements.element_of(element, what)
            return elements.conforming(element, output_signature, what)

        def opened(at: Pass) -> Stream:
            return streams.Generated(lambda: generator(*args), check)

        def sample(k: int) -> Any:
            found = opened(()).take(2)
            if not found:
                raise ValueError(f"from_generator({name}): it yields nothing, so it has no element_spec")
            if k and output_signature is not None:
                return elements.enlarged(found[0], output_signature)
            return found[min(k, len(found) - 1)]

        return Dataset(f"from_generator({name})", opened, lambda: None, sample)

    @staticmethod
    def from_csv(path: str | os.PathLike[str], columns: Sequence[str] | None = None, label: str | None = None, *,
                 stack: bool = False, dtype: Any = None, **options: Any) -> Dataset:
        """The rows of a table in a text file, which pandas reads as a whole.

        An element is a dict with an entry for each column; with a label, the pair of it and the label. stack: one
        vector of the columns in place of the dict. columns: which ones, in which order (None: all but the label).
        dtype: of all columns, or a dict with dtypes of some; otherwise floats and integers get the default dtypes
        (int64 where they do not fit), and text stays text. A missing number is nan, and makes its column one of floats.
        options: go to `pandas.read_csv` (`sep=`, `header=`, `names=`, ...).
        """
        return Dataset.from_tensor_slices(sources.read_csv(path, columns, label, stack, dtype, options))

    @staticmethod
    def from_image_folder(path: str | os.PathLike[str], size: tuple[int, int] | None = None, *, channels: int = 3,
                          shuffle: bool = False, seed: int | None = None,
                          num_parallel_calls: int | None = AUTOTUNE) -> Dataset:
        """Pairs of an image, uint8 of shape (height, width, channels), and the number of its folder, int64.

        The folders in `path`, in the order of their names, are the classes (`dataset.class_names`). Images are decoded,
        by Pillow, when they are read: sorted by path, or with shuffle in an order that `seed` decides, new each time.
        size: (height, width) to which they are resized; otherwise each keeps its own. channels: 1, 3 or 4.
        """
        paths, labels, names, decode = sources.image_folder(path, size, channels)
        files = Dataset.from_tensor_slices((paths, labels))
        if shuffle:
            files = files.shuffle(len(paths), seed)
        dataset = files.map(decode, num_parallel_calls)
        dataset.class_names = names
        return dataset

    @staticmethod
    def zip(*datasets: Any) -> Dataset:
        """Tuples of one element of each dataset, until one of them ends.

        >>> [(a.item(), b.item()) for a, b in Dataset.zip(Dataset.range(3), Dataset.range(5, 9))]
        [(0, 5), (1, 6), (2, 7)]
        """
        parts: Sequence[Dataset] = datasets[0] if len(datasets) == 1 and isinstance(datasets[0], tuple) else datasets
        if not parts or not all(isinstance(d, Dataset) for d in parts):
            raise TypeError("zip: give datasets")
        if all(isinstance(d, _Whole) and type(d._table) is Table for d in parts):  # still a table
            count = min(int(d._length() or 0) for d in parts)
            tables = [d._table for d in parts if d._table is not None]
            leaves = [x[:count] for t in tables for x in t.leaves]
            _, structure = flatten(tuple(t.sample() for t in tables))
            return _of_table("zip", Table(leaves, structure), count)

        def length() -> Cardinality:
            found = [d._length() for d in parts]
            return None if None in found else min(found)  # type: ignore[type-var]

        return Dataset(f"zip({', '.join(d._name for d in parts)})",
                       lambda at: streams.Zip([d._elements(at) for d in parts]), length,
                       lambda k: tuple(d._sample(k) for d in parts), None, parts[0]._passes,
                       [s for d in parts for s in d._seeds])

    # -- order -------------------------------------------------------------------------------------------------------
    def shuffle(self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool = True) -> Dataset:
        """In random order: each element comes from a random place of a buffer of the next `buffer_size` ones, so one
        as large as the dataset shuffles perfectly. Shuffle before `map` and `batch`: then the buffer holds only
        row numbers.

        seed: decides the order; None: one drawn from `tj.random` now. reshuffle_each_iteration: each pass has another
        order.

        >>> d = Dataset.range(6).shuffle(6, seed=1)
        >>> sorted(x.item() for x in d) == sorted(x.item() for x in d) == [0, 1, 2, 3, 4, 5]
        True
        """
        size = _positive(buffer_size, "shuffle: buffer_size")
        chosen = Seed(_seed(seed, "shuffle"))
        kind: Callable[..., Stream] = streams.Shuffle if self._table is None else streams.ShuffleRows
        if isinstance(self._table, Store):  # the number of a row is known when its element has been read
            kind = partial(streams.ShuffleRows, chunk=1)
        found = self._like(f"shuffle({size})", lambda at: kind(
            self._opened(at), size, chosen.value, at if reshuffle_each_iteration else ()))
        found._passes = _Passes()  # what else is made from this dataset does not change the order
        found._seeds = [*self._seeds, chosen]
        return found

    def take(self, count: int) -> Dataset:
        """The first `count` elements (-1: all)."""
        n = _whole(count, "take: count", -1)
        if n < 0:
            return self
        return self._like(f"take({n})", lambda at: streams.Take(self._opened(at), n), lambda have: min(n, have))

    def skip(self, count: int) -> Dataset:
        """All but the first `count` elements."""
        n = _whole(count, "skip: count")
        return self._like(f"skip({n})", lambda at: streams.Skip(self._opened(at), n), lambda have: max(0, have - n))

    def repeat(self, count: int | None = None) -> Dataset:
        """The elements `count` times over; None or -1: without end."""
        times = None if count is None or count == -1 else _whole(count, "repeat: count")

        def length(have: float) -> float:
            return have * times if times is not None else math.inf if have else 0

        return self._like(f"repeat({'' if times is None else times})",
                          lambda at: streams.Repeat(lambda k: self._opened((*at, k)), times), length)

    def concatenate(self, *others: Dataset) -> Dataset:
        """The elements of this dataset, then those of the others."""
        parts = (self, *others)
        same = self._table is not None and all(d._table is self._table for d in parts)

        def length() -> Cardinality:
            found = [d._length() for d in parts]
            return None if None in found else sum(found)  # type: ignore[arg-type]

        def opened(at: Pass) -> Stream:
            return streams.Concatenate([partial(d._opened if same else d._elements, at) for d in parts])

        return Dataset(f"concatenate({', '.join(d._name for d in parts)})", opened, length,
                       lambda k: parts[k and -1]._sample(k), self._table if same else None, self._passes,
                       [s for d in parts for s in d._seeds])

    def shard(self, num_shards: int, index: int) -> Dataset:
        """Every `num_shards`-th element, from the one of that index: the part of one of several readers."""
        n = _positive(num_shards, "shard: num_shards")
        if not 0 <= index < n:
            raise ValueError(f"shard: index must be one of 0 to {n - 1}, got {index}")
        return self._like(f"shard({n}, {index})", lambda at: streams.Shard(self._opened(at), n, index),
                          lambda have: have if have == math.inf else max(0, -(-(have - index) // n)))

    def cache(self) -> Dataset:
        """As this one, but read only once: what the first pass reads stays in memory, in one order, so shuffle
        afterwards. Cached elements of equal shapes are rows of arrays again, so that batches of them cost
        what those of rows cost; rows not yet mapped are not copied."""
        def count() -> int | None:
            have = self._length()
            return None if have is None or have == math.inf else int(have)

        store = Store(count) if self._table is None else None
        kept = streams.Kept(lambda: self._opened(()), [] if store is None else store, self._seeds)
        found = self._like("cache", lambda at: streams.Cached(kept))
        found._table = self._table if store is None else store
        return found

    def prefetch(self, buffer_size: int = AUTOTUNE) -> Dataset:
        """As this one, but a thread reads up to `buffer_size` elements ahead. An error comes where the element would
        have; the thread ends with its iterator."""
        size = 2 if buffer_size == AUTOTUNE else _positive(buffer_size, "prefetch: buffer_size")
        return self._like(f"prefetch({size})", lambda at: workers.Prefetch(lambda: self._opened(at), size))

    # -- batches -----------------------------------------------------------------------------------------------------
    def batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset:
        """Elements put together along a new first axis, `batch_size` at a time; the last batch may be smaller, unless
        it is dropped. Batches of rows that follow each other are views, others are gathered in one go."""
        n = _positive(batch_size, "batch: batch_size")
        table = self._table
        collate = elements.stacked if table is None else table.batch
        return self._batched(f"batch({n}{', drop' if drop_remainder else ''})", n, drop_remainder, collate,
                             lambda k, m: elements.stacked([self._sample(k)] * m))

    def padded_batch(self, batch_size: int, padded_shapes: Any = None, padding_values: Any = None,
                     drop_remainder: bool = False) -> Dataset:
        """As `batch`, for elements of different sizes: filled up at the end with `padding_values` (0, or "").

        padded_shapes: sizes to fill up to, None for the largest in the batch; a pytree like the elements, or None.

        >>> d = Dataset.from_generator(lambda: ([1] * n for n in (1, 3)))
        >>> next(iter(d.padded_batch(2))).tolist()
        [[1, 0, 0], [1, 1, 1]]
        """
        n = _positive(batch_size, "padded_batch: batch_size")
        collate = elements.padder(padded_shapes, padding_values)

        def sample(k: int, m: int) -> Any:
            found = collate([self._sample(k)] * m)
            if not k or padded_shapes is not None:
                return found
            free = elements.mapped(lambda s: elements.Spec((s.shape[0], *[None] * (len(s.shape) - 1)), s.dtype),
                                   elements.spec_of(found))
            return elements.enlarged(found, free)

        return self._batched(f"padded_batch({n}{', drop' if drop_remainder else ''})", n, drop_remainder, collate,
                             sample, self._elements)

    def _batched(self, name: str, n: int, drop: bool, collate: Callable[[Sequence[Any]], Any],
                 sample: Callable[[int, int], Any], opened: Callable[[Pass], Stream] | None = None) -> Dataset:
        def length() -> Cardinality:
            have = self._length()
            return have if have is None or have == math.inf else int(have // n if drop else -(-have // n))

        def sized(k: int) -> Any:
            have = self._length()
            rest = n - 1 if have is None or have == math.inf else int(have) % n
            full = n if have is None or drop else int(min(n, have)) or n
            return sample(k, rest if k and not drop and rest and have != math.inf else full)

        source = opened or self._opened
        return self._then(name, lambda at: streams.Batch(source(at), n, drop, collate), length, sized)

    def unbatch(self) -> Dataset:
        """The rows of each element, one after the other.

        >>> [x.item() for x in Dataset.range(5).batch(3).unbatch()]
        [0, 1, 2, 3, 4]
        """
        def rows(element: Any) -> tuple[Table, int]:
            return table_of(element, "unbatch")

        return self._then("unbatch", lambda at: streams.Unbatch(self._elements(at), rows), lambda: None,
                          lambda k: rows(self._sample(k))[0].sample())

    def window(self, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False) -> Dataset:
        """Datasets of `size` elements, `stride` apart, each `shift` (None: size) after the one before.

        >>> w = Dataset.range(5).window(3, shift=1, drop_remainder=True)
        >>> [x.tolist() for x in w.flat_map(lambda d: d.batch(3))]
        [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
        """
        n, s = _positive(size, "window: size"), _positive(stride, "window: stride")
        step = n if shift is None else _positive(shift, "window: shift")

        def part(items: Sequence[Any]) -> Dataset:
            return Dataset("window", lambda at: _Listed(items), lambda: len(items), self._sample, self._table)

        def length() -> Cardinality:
            have = self._length()
            if have is None or have == math.inf:
                return have
            span = (n - 1) * s + 1 if drop_remainder else 1
            return max(0, -(-int(have - span + 1) // step))

        return Dataset(f"{self._name} > window({n}, {step}, {s}{', drop' if drop_remainder else ''})",
                       lambda at: _Parts(streams.Window(self._opened(at), n, step, s, drop_remainder), part), length,
                       lambda k: Dataset("window", lambda at: _Listed([self._sample(k)] * n), lambda: n, self._sample),
                       None, self._passes, self._seeds)

    # -- functions ---------------------------------------------------------------------------------------------------
    def map(self, map_func: Callable[..., Any], num_parallel_calls: int | None = None, *, seed: int | None = None
            ) -> Dataset:
        """`map_func` of each element; it may give any pytree of tensors, arrays, numbers, text.

        num_parallel_calls: call it in so many threads (-1: as many as there are cores); the order stays.
        seed: the function gets a further argument `key`, a key for `tj.random` that depends on the seed, the
        pass and the place of the element alone. Draws from generators would depend on the threads.

        >>> [x.item() for x in Dataset.range(3).map(lambda x: x * x)]
        [0, 1, 4]
        >>> noisy = Dataset.range(3).map(lambda x, key: x + tj.random.uniform(key=key), 4, seed=1)  # doctest: +SKIP
        """
        key_of = None if seed is None else _keys(_seed(seed, "map"))
        calls = streams.Calls(map_func, key_of)
        name = streams.name_of(map_func)

        def opened(at: Pass) -> Stream:
            if num_parallel_calls is None or threads == 1:
                return streams.Map(self._elements(at), calls, at)
            return workers.ParallelMap(lambda: self._elements(at), calls, at, threads)

        threads = 1
        if num_parallel_calls is not None:
            threads = config.num_threads() if num_parallel_calls == AUTOTUNE else _positive(
                num_parallel_calls, "map: num_parallel_calls")

        def sample(k: int) -> Any:
            first = self._sample(0)
            given = first if not k or _same_spec(first, self._sample(1)) else self._sample(1)
            return calls(given, (0,), 0)

        found = self._then(f"map({name})", opened, self._length, sample)
        found._passes = self._passes if seed is None else _Passes()
        return found

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """The elements for which the function gives true.

        >>> [x.item() for x in Dataset.range(5).filter(lambda x: x % 2 == 0)]
        [0, 2, 4]
        """
        return self._then(f"filter({streams.name_of(predicate)})",
                          lambda at: streams.Filter(self._elements(at), predicate), lambda: None, self._sample)

    def flat_map(self, map_func: Callable[..., Any]) -> Dataset:
        """The elements of the datasets that the function gives, one dataset after the other."""
        return self._interleaved("flat_map", map_func, 1, 1)

    def interleave(self, map_func: Callable[..., Any], cycle_length: int = 2, block_length: int = 1) -> Dataset:
        """The elements of the datasets that the function gives, `block_length` from each of `cycle_length` in turn.

        >>> d = Dataset.range(1, 4).interleave(lambda n: Dataset.from_tensors(n).repeat(2), 2)
        >>> [x.item() for x in d]
        [1, 2, 1, 2, 3, 3]
        """
        return self._interleaved("interleave", map_func, _positive(cycle_length, "interleave: cycle_length"),
                                 _positive(block_length, "interleave: block_length"))

    def _interleaved(self, how: str, f: Callable[..., Any], cycle: int, block: int) -> Dataset:
        def made(element: Any) -> Dataset:
            found = call(f, element)
            if not isinstance(found, Dataset):
                raise TypeError(f"{how}: {streams.name_of(f)} must give a Dataset, it gave {type(found).__name__}")
            return found

        def opening(at: Pass, element: Any) -> tuple[Sequence[Seed], streams.Open]:
            d = made(element)
            return d._seeds, lambda: d._elements(at)

        sizes = "" if how == "flat_map" else f", {cycle}, {block}"
        return self._then(f"{how}({streams.name_of(f)}{sizes})",
                          lambda at: streams.Interleave(
                              lambda: self._elements(at), partial(opening, at), cycle, block),
                          lambda: None, lambda k: made(self._sample(k))._sample(k))

    def enumerate(self, start: int = 0) -> Dataset:
        """Pairs of a number, int64, and an element."""
        if isinstance(self, _Whole) and type(self._table) is Table:
            count = int(self._length() or 0)
            numbers = Table([np.arange(start, start + count)], flatten(0)[1])
            return Dataset.zip(_of_table("enumerate", numbers, count), self)
        return self._then("enumerate", lambda at: streams.Enumerate(self._elements(at), start), self._length,
                          lambda k: (np.array(start, np.int64), self._sample(k)))

    def reduce(self, initial: Any, reduce_func: Callable[..., Any]) -> Any:
        """`value = reduce_func(value, element)` over all elements, from `initial`.

        >>> Dataset.range(4).reduce(0, lambda total, x: total + x.item())
        6
        """
        value = initial
        for element in self:
            value = reduce_func(value, element)
        return value

    def apply(self, transformation: Callable[[Dataset], Dataset]) -> Dataset:
        """`transformation(self)`."""
        return transformation(self)

    # -- reading -----------------------------------------------------------------------------------------------------
    def __iter__(self) -> DatasetIterator:
        return DatasetIterator(self)

    def as_numpy_iterator(self) -> Iterator[Any]:
        """The elements with read-only NumPy arrays in place of tensors."""
        _not_traced()
        stream = self._elements((self._passes.number(),))
        while len(found := stream.take(1)):
            yield elements.read_only(found[0])

    def cardinality(self) -> Cardinality:
        """How many elements there are: an int, `math.inf`, or None if only reading tells."""
        return self._length()

    def __len__(self) -> int:
        found = self._length()
        if found is None or found == math.inf:
            raise TypeError(f"this dataset {'has no end' if found else 'does not know its length'}")
        return int(found)

    def __bool__(self) -> bool:
        return True

    @property
    def element_spec(self) -> Any:
        """`tj.spec`s of an element, None where sizes differ. Of `map` and the like they are found by calling the
        function on first elements, so they tell what such elements give."""
        with recording(None):
            return elements.merged(elements.spec_of(self._sample(0)), elements.spec_of(self._sample(1)))

    def __repr__(self) -> str:
        n = self._length()
        return f"<tj.data.Dataset {self._name}{'' if n is None else f', {n} elements'}>"

    # -- making ------------------------------------------------------------------------------------------------------
    def _elements(self, at: Pass) -> Stream:
        """A stream of elements."""
        stream = self._opened(at)
        return stream if self._table is None else streams.Elements(stream, self._table)

    def _like(self, name: str, opened: Callable[[Pass], Stream], length: Callable[[float], float] = lambda have: have
              ) -> Dataset:
        """A dataset of the same items."""

        def found() -> Cardinality:
            have = self._length()
            return None if have is None else length(have)

        return Dataset(f"{self._name} > {name}", opened, found, self._sample, self._table, self._passes, self._seeds)

    def _then(self, name: str, opened: Callable[[Pass], Stream], length: Callable[[], Cardinality],
              sample: Callable[[int], Any]) -> Dataset:
        """A dataset of elements made of this one's."""
        return Dataset(f"{self._name} > {name}", opened, length, sample, None, self._passes, self._seeds)


class _Passes:
    """Numbers passes."""

    def __init__(self) -> None:
        self.next = 0

    def number(self) -> int:
        self.next += 1
        return self.next - 1


class _Whole(Dataset):
    """All rows of a table, in order."""


def _of_table(name: str, table: Table, count: int) -> Dataset:
    return _Whole(f"{name}({count})", lambda at: streams.Rows(count), lambda: count, lambda k: table.sample(), table)


class _Listed(Stream):
    """The items of a list."""

    def __init__(self, items: Sequence[Any]):
        self.items, self.at = items, 0

    def take(self, n: int) -> Sequence[Any]:
        found = self.items[self.at: self.at + n]
        self.at += len(found)
        return found

    def state(self) -> Any:
        return self.at

    def load(self, state: Any) -> None:
        self.at = state


class _Parts(streams.Over):
    """Lists of items as datasets."""

    def __init__(self, stream: Stream, part: Callable[[Sequence[Any]], Dataset]):
        super().__init__(stream)
        self.part = part

    def one(self) -> Dataset:
        return self.part(self.input.one())


class DatasetIterator:
    """Reads a dataset once, from its start or from a position that another iterator has written down. Threads may share
    it: each element goes to one of them.

    >>> d = Dataset.range(10).shuffle(5, seed=3).batch(2)
    >>> a = iter(d)
    >>> _ = next(a)
    >>> saved, rest = a.state(), [x.tolist() for x in a]
    >>> b = iter(d)
    >>> b.load_state(saved)
    >>> [x.tolist() for x in b] == rest
    True
    """

    def __init__(self, dataset: Dataset):
        _not_traced()
        self._dataset, self._given = dataset, 0
        self._turn = fork_safe(threading.RLock())
        self._pass = dataset._passes.number()
        self._stream = dataset._elements((self._pass,))

    def __iter__(self) -> DatasetIterator:
        return self

    def __next__(self) -> Any:
        if state.trace is not None:
            _not_traced()
        with self._turn:
            element = self._stream.one()
            self._given += 1
        return elements.tensors(element)

    @property
    def dataset(self) -> Dataset:
        return self._dataset

    @property
    def element_spec(self) -> Any:
        return self._dataset.element_spec

    def state(self) -> dict[str, Any]:
        """Where it is, as plain data for JSON: order and random keys included, elements not."""
        with self._turn:
            return {"dataset": self._dataset._name, "pass": self._pass, "given": self._given,
                    "seeds": [s.value for s in self._dataset._seeds], "position": self._stream.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on where an iterator over a dataset made in the same way was. What was shuffled or generated before that
        place is read again; datasets of rows are not."""
        if not isinstance(state, dict):
            raise TypeError(f"load_state: give what state() gave, not {state!r}")
        if state.get("dataset") != self._dataset._name:
            raise ValueError(f"load_state: the position is one in {state.get('dataset')!r}, this dataset is "
                             f"{self._dataset._name!r}")
        self._stream.close()
        take_over(self._dataset._seeds, state["seeds"])
        self._pass, self._given = state["pass"], state["given"]
        self._dataset._passes.next = self._pass + 1  # the next iterator takes the pass after it
        self._stream = self._dataset._elements((self._pass,))
        self._stream.load(state["position"])

    def close(self) -> None:
        """End its threads now (otherwise they end when nothing refers to the iterator)."""
        self._stream.close()

    def __repr__(self) -> str:
        return f"<iterator over {self._dataset!r}, {self._given} elements read>"


# -- helpers -----------------------------------------------------------------------------------------------------------
def _not_traced() -> None:
    if state.trace is not None:
        raise TracerError(f"a Dataset was read inside a compiled function (at {user_line()}): that would happen once, "
                          f"while tracing. Loop over it outside, and pass the elements as arguments.")


def _whole(value: Any, what: str, least: int = 0) -> int:
    try:
        n = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an int, got {value!r}") from None
    if n < least:
        raise ValueError(f"{what} must be at least {least}, got {n}")
    return n


def _positive(value: Any, what: str) -> int:
    return _whole(value, what, 1)


def _seed(seed: int | None, what: str) -> int:
    if seed is not None:
        return _whole(seed, f"{what}: seed")
    _not_traced()
    key, draw = default_generator.next_draw()
    return _mixed(int(key) + int(draw))


_MASK = (1 << 64) - 1


def _mixed(x: int) -> int:
    """A number of 64 bits all of which depend on all of x's (the finaliser of splitmix64)."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _keys(seed: int) -> Callable[[Pass, int], Tensor]:
    """A key for each pass and place."""

    def key_of(at: Pass, k: int) -> Tensor:
        mixed = _mixed(seed)
        for n in (len(at), *at, k):
            mixed = _mixed(mixed + n)
        return random_key(mixed)

    return key_of


def _same_spec(a: Any, b: Any) -> bool:
    (left, one), (right, other) = flatten(elements.spec_of(a)), flatten(elements.spec_of(b))
    return one == other and left == right
