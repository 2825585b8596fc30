"""What `fit`, `evaluate` and `predict` go over: arrays, datasets or other iterables, as batches.

In: what the user gave. Out: `Batches`: for each epoch an iterator over tuples (x,), (x, y) or (x, y, weights).

Read next: `training.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.data.dataset import Dataset
from tracejit.nn.options import number, whole
from tracejit.ops import core
from tracejit.ops.elementwise import minimum
from tracejit.ops.selection import take
from tracejit.tensor import Tensor
from tracejit.trees import flatten, unflatten


class Batches:
    """Batches of data, epoch by epoch.

    steps: batches in an epoch, None if unknown. dtype: of arrays of floats.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        steps: int | None = None,
        class_weight: Mapping[int, float] | None = None,
        what: str = "fit",
        dtype: np.dtype | None = None,
    ):
        self.what, self.limit, self._shuffle = what, steps, shuffle
        self._weights = None if class_weight is None or class_weight == {} else _table(class_weight)
        self._rows: Dataset | None = None
        self._going: Iterator[Any] | None = None  # an iterator that goes on over epochs
        if isinstance(x, Dataset) or _is_iterable(x):
            given = {"y": y, "sample_weight": sample_weight, "batch_size": batch_size}
            extra = [name for name, value in given.items() if value is not None]
            if extra:
                kind = "a Dataset" if isinstance(x, Dataset) else f"a {type(x).__name__}"
                raise ValueError(f"{what}: {', '.join(extra)} cannot be given with {kind}, which has batches of its "
                                 f"own")  # fmt: skip
            self.source: Any = x
            found = x.cardinality() if isinstance(x, Dataset) else len(x) if hasattr(x, "__len__") else None
            self.steps = steps if steps is not None else None if found in (None, float("inf")) else int(found)  # type: ignore[arg-type]
            if steps is None and found == float("inf"):
                raise ValueError(f"{what}: the dataset has no end; say how many batches make an epoch")
            return
        if x is None:
            raise ValueError(f"{what}: there is no data, x is None; give arrays, a Dataset or an iterable of batches")
        named = {"x": x, "y": y, "sample_weight": sample_weight}
        parts = tuple(arrays(p, dtype, f"{what}: {name}") for name, p in named.items() if p is not None)
        if y is None and sample_weight is not None:
            raise ValueError(f"{what}: sample_weight without y")
        self.count = _common_length(parts, what)
        self._size = size = 32 if batch_size is None else whole(what, "batch_size", batch_size)
        self._rows = Dataset.from_tensor_slices(parts)
        found = -(-self.count // size)
        self.steps = found if steps is None else min(steps, found)
        self.source = None

    def epoch(self, passes_before: int = 0) -> Iterator[Any]:
        """A new iterator over an epoch. passes_before: passes over a dataset that an earlier run has made."""
        if self._rows is not None:
            rows = self._rows.shuffle(self.count) if self._shuffle else self._rows
            made: Iterator[Any] = iter(rows.batch(self._size))
        elif self._going is not None:
            made = self._going
        else:
            for _ in range(passes_before if isinstance(self.source, Dataset) else 0):
                iter(self.source).close()  # each pass has an order of its own
            made = iter(self.source() if callable(self.source) else self.source)
            if self.limit is not None or made is self.source:
                self._going = made
        return made

    def of(self, iterator: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
        """The batches of an epoch, as tuples of tensors."""
        for data in iterator if self.limit is None else islice(iterator, self.limit):
            data = data if isinstance(data, tuple) else (data,)
            if not 1 <= len(data) <= 3:
                raise ValueError(f"{self.what}: a batch is x, (x, y) or (x, y, weights), got a tuple of {len(data)}")
            if self._rows is None:
                data = tuple(tensors(p) for p in data)
                if any(isinstance(p, Tensor) and p.ndim == 0 for p in data[:2]):
                    raise ValueError(f"{self.what}: x and y of a batch need a first dim for its samples, got shapes "
                                     f"{[p.shape for p in data[:2] if isinstance(p, Tensor)]}; a dataset of single "
                                     f"samples needs .batch(n)")
            yield data if self._weights is None else self._weighted(data)

    def _weighted(self, data: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(data) != 2 or not isinstance(data[1], Tensor):
            raise ValueError(f"{self.what}: class_weight needs y, an array of classes, and no sample_weight")
        classes = data[1]
        if classes.ndim > 1 and classes.shape[-1] > 1:
            classes = classes.argmax(axis=-1)
        classes = core.cast(classes.reshape(classes.shape[0]), dtypes.int64)
        table = self._weights
        return (*data, take(table, minimum(classes, table.shape[0] - 1)))  # type: ignore[union-attr]


def split(x: Any, y: Any, sample_weight: Any, share: float, dtype: np.dtype) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The first rows of arrays, for training, and the last ones, for validation."""
    if not 0 < share < 1:
        raise ValueError(f"fit: validation_split must be between 0 and 1, got {share}")
    if isinstance(x, Dataset) or _is_iterable(x):
        raise ValueError("fit: validation_split needs arrays; of a dataset use take and skip, and validation_data")
    named = {"x": x, "y": y, "sample_weight": sample_weight}
    parts = tuple(None if p is None else arrays(p, dtype, f"fit: {name}") for name, p in named.items())
    n = _common_length(tuple(p for p in parts if p is not None), "fit")
    at = int(n * (1 - share))
    if at in (0, n):
        raise ValueError(f"fit: validation_split {share} of {n} rows leaves none")

    def rows(p: Any, of: slice) -> Any:
        leaves, spec = flatten(p)
        return unflatten(spec, [leaf[of] for leaf in leaves])

    first, last = ([None if p is None else rows(p, of) for p in parts] for of in (slice(at), slice(at, None)))
    return tuple(first), tuple(last)


def _is_iterable(x: Any) -> bool:
    """Whether it is gone over as it is: not an array, nor a container of arrays."""
    if isinstance(x, (np.ndarray, Tensor, list, tuple, dict, str)) or hasattr(x, "__array__") or x is None:
        return False
    return isinstance(x, Iterable) or callable(x)


def _table(class_weight: Mapping[int, float]) -> Tensor:
    """Weights by class; 1 for those that are not named, in the last row for all beyond."""
    if not isinstance(class_weight, Mapping):
        raise TypeError(f"fit: class_weight must be a dict of weights by class, got {class_weight!r}")
    for k, w in class_weight.items():
        whole("fit", "each class of class_weight", k, 0)
        number("fit", f"class_weight[{k}]", w, "[0, inf)")
    found = np.ones(max(class_weight) + 2, dtypes.default_float())
    for k, w in class_weight.items():
        found[k] = w
    return core.as_tensor(found)


def arrays(x: Any, dtype: np.dtype | None = None, what: str = "the data") -> Any:
    """Arrays or tensors, floats in one precision (the default one); lists and dicts of arrays stay what they are."""
    dtype = dtypes.default_float() if dtype is None or dtype.kind != "f" else dtype
    if isinstance(x, dict):
        return {k: arrays(v, dtype, f"{what}[{k!r}]") for k, v in x.items()}
    if isinstance(x, (list, tuple)) and x and all(isinstance(v, (np.ndarray, Tensor)) and v.ndim for v in x):
        return tuple(arrays(v, dtype, f"{what}[{k}]") for k, v in enumerate(x))
    array = x if isinstance(x, (np.ndarray, Tensor)) else np.asarray(x)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{what} must be numbers, got {type(x).__name__} of {array.dtype}")
    if array.dtype.kind == "f" and array.dtype != dtype:
        return array.astype(dtype)
    return array


def tensors(x: Any) -> Any:
    """A batch's part as tensors."""
    if isinstance(x, Tensor) or x is None:
        return x
    if isinstance(x, dict):
        return {k: tensors(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)) and any(isinstance(v, (np.ndarray, Tensor)) for v in x):
        return tuple(tensors(v) for v in x)
    return core.as_tensor(x if isinstance(x, np.ndarray) else np.asarray(x))


def _common_length(parts: tuple[Any, ...], what: str) -> int:
    leaves = flatten(parts)[0]
    if not leaves:
        raise ValueError(f"{what}: there is no data")
    lengths = {leaf.shape[0] if leaf.ndim else None for leaf in leaves}
    if len(lengths) > 1 or None in lengths:
        raise ValueError(f"{what}: arrays need equally many rows, got shapes {[tuple(a.shape) for a in leaves]}")
    n = int(lengths.pop())  # type: ignore[arg-type]
    if n == 0:
        raise ValueError(f"{what}: the arrays have no rows")
    return n
