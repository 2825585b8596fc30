"""Streams: what a dataset does while it is read, at a position that can be written down and gone back to.

In: streams. Out: `take(n)`: the next items, `n` of them unless the end comes before. Streams that only move items
around (shuffle, take, repeat, ...) do not look at them: over a table an item is the number of a row, so that `batch`
can gather rows in one go; elsewhere an item is an element.

A pass over a dataset has a number, and each pass that `repeat` makes inside it one more: they and its seed decide a
shuffle's order.

`state()` is plain data (numbers, lists, dicts), and small: it holds where the stream is, never what it has read. `load`
is for a fresh stream, which then goes on exactly there; shuffled and cached items are read again for it.

Read next: `workers.py` (streams with threads), `dataset.py` (who builds them).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracejit.data.elements import Store, Table, element_of, tensors
from tracejit.tensor import Tensor, recording, state

CHUNK = 4096  # items passed over at once


class Stream:
    """Items one after the other."""

    def take(self, n: int) -> Sequence[Any]:
        """Up to `n` items; fewer only at the end."""
        out = []
        try:
            for _ in range(n):
                out.append(self.one())
        except StopIteration:
            pass
        return out

    def one(self) -> Any:
        """The next item, or StopIteration. A stream defines this or `take`."""
        found = self.take(1)
        if not len(found):
            raise StopIteration
        return found[0]

    def leave_out(self, n: int) -> None:
        """Go past `n` items."""
        while n > 0 and (found := len(self.take(min(n, CHUNK)))):
            n -= found

    def state(self) -> Any:
        raise NotImplementedError

    def load(self, state: Any) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """End threads."""


Open = Callable[[], Stream]
Pass = tuple[int, ...]  # the number of a pass, then of the one that each `repeat` around is in


def joined(a: Sequence[Any], b: Sequence[Any]) -> Sequence[Any]:
    """Items of two takes. Row numbers come as ranges, lists or arrays."""
    if not len(a):
        return b
    return [*a, *b] if len(b) else a


class Seed:
    """What decides an order. Going on where another process was takes over its seeds."""

    __slots__ = ("value",)

    def __init__(self, value: int):
        self.value = value


def take_over(seeds: Sequence[Seed], values: Sequence[int]) -> None:
    for seed, value in zip(seeds, values, strict=True):
        seed.value = value


class Over(Stream):
    """A stream over another one, whose position is all its state."""

    def __init__(self, stream: Stream):
        self.input = stream

    def state(self) -> Any:
        return self.input.state()

    def load(self, state: Any) -> None:
        self.input.load(state)

    def close(self) -> None:
        self.input.close()


# -- sources -----------------------------------------------------------------------------------------------------------
class Rows(Stream):
    """The numbers of a table's rows."""

    def __init__(self, count: int):
        self.count, self.at = count, 0

    def take(self, n: int) -> Sequence[int]:
        start = self.at
        self.at = min(start + n, self.count)
        return range(start, self.at)

    def leave_out(self, n: int) -> None:
        self.at = min(self.at + n, self.count)

    def state(self) -> Any:
        return self.at

    def load(self, state: Any) -> None:
        if not 0 <= state <= self.count:
            raise ValueError(f"the position is row {state} of a dataset that has {self.count}")
        self.at = state


class Generated(Stream):
    """What a Python function yields; `check(element, k)` makes arrays of it."""

    def __init__(self, function: Callable[[], Any], check: Callable[[Any, int], Any]):
        self.function, self.check = function, check
        self.iterator: Any = None
        self.at = self.behind = 0  # elements given; elements to leave out first

    def one(self) -> Any:
        with recording(None):
            if self.iterator is None:
                self.iterator = iter(self.function())
            while self.behind:
                next(self.iterator)
                self.behind -= 1
            element = next(self.iterator)
        self.at += 1
        return self.check(element, self.at - 1)

    def state(self) -> Any:
        return self.at

    def load(self, state: Any) -> None:
        self.at = self.behind = state


# -- items moved around ------------------------------------------------------------------------------------------------
class Take(Over):
    def __init__(self, stream: Stream, n: int):
        super().__init__(stream)
        self.left = n

    def take(self, n: int) -> Sequence[Any]:
        found = self.input.take(min(n, self.left))
        self.left -= len(found)
        return found

    def state(self) -> Any:
        return {"left": self.left, "input": self.input.state()}

    def load(self, state: Any) -> None:
        self.left = state["left"]
        self.input.load(state["input"])


class Skip(Over):
    def __init__(self, stream: Stream, n: int):
        super().__init__(stream)
        self.left = n

    def take(self, n: int) -> Sequence[Any]:
        if self.left:
            self.input.leave_out(self.left)
            self.left = 0
        return self.input.take(n)

    def state(self) -> Any:
        return {"left": self.left, "input": self.input.state()}

    def load(self, state: Any) -> None:
        self.left = state["left"]
        self.input.load(state["input"])


class Shard(Over):
    """Every `number`-th item."""

    def __init__(self, stream: Stream, number: int, index: int):
        super().__init__(stream)
        self.number, self.index = number, index

    def take(self, n: int) -> Sequence[Any]:
        return list(self.input.take(n * self.number)[self.index:: self.number])


class Repeat(Stream):
    """Passes over a dataset, one after the other; `times` None: without end."""

    def __init__(self, opened: Callable[[int], Stream], times: int | None):
        self.opened, self.times = opened, times
        self.number = 0
        self.empty = True  # the present pass has given nothing yet
        self.input: Stream | None = None

    def take(self, n: int) -> Sequence[Any]:
        if self.times == 0:
            return []
        if self.input is None:
            self.input = self.opened(0)
        found = self.input.take(n)
        self.empty = self.empty and not len(found)
        while len(found) < n and (self.times is None or self.number + 1 < self.times):
            if self.empty and self.times is None:
                raise ValueError("repeat: the dataset is empty, so repeating it would never end")
            self.input.close()
            self.number += 1
            self.input = self.opened(self.number)
            more = self.input.take(n - len(found))
            self.empty = not len(more)
            found = joined(found, more)
        return found

    def state(self) -> Any:
        return {"pass": self.number, "input": None if self.input is None else self.input.state()}

    def load(self, state: Any) -> None:
        self.number = state["pass"]
        if state["input"] is not None:
            self.input, self.empty = self.opened(self.number), False
            self.input.load(state["input"])

    def close(self) -> None:
        if self.input is not None:
            self.input.close()


class Concatenate(Stream):
    def __init__(self, parts: Sequence[Open]):
        self.parts, self.at = parts, 0
        self.input: Stream | None = None

    def take(self, n: int) -> Sequence[Any]:
        found: Sequence[Any] = []
        while self.at < len(self.parts):
            if self.input is None:
                self.input = self.parts[self.at]()
            found = joined(found, self.input.take(n - len(found)))
            if len(found) == n:
                break
            self.input.close()
            self.at, self.input = self.at + 1, None
        return found

    def state(self) -> Any:
        return {"part": self.at, "input": None if self.input is None else self.input.state()}

    def load(self, state: Any) -> None:
        self.at = state["part"]
        if state["input"] is not None:
            self.input = self.parts[self.at]()
            self.input.load(state["input"])

    def close(self) -> None:
        if self.input is not None:
            self.input.close()


class Shuffle(Stream):
    """Each item comes from a random place of a buffer of the next `size` ones; at the end, what is left in the buffer
    comes in random order. The order depends only on the seed and the number of the pass."""

    def __init__(self, stream: Stream, size: int, seed: int, at: Pass):
        self.input, self.size, self.given = stream, size, 0
        self.random, self.random_end = (
            np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, k, *at]))) for k in (0, 1))
        self.buffer: Any = None
        self.rest: Any = None  # what is left of the buffer at the end, the next item last

    def take(self, n: int) -> Sequence[Any]:
        if self.rest is not None:
            found: Sequence[Any] = self._last(n)
        else:
            if self.buffer is None:
                self.buffer = list(self.input.take(self.size))
            fresh = self.input.take(n)
            found = self._exchanged(fresh, self._places(len(fresh)).tolist())
            if len(fresh) < n:
                order = self.random_end.permutation(len(self.buffer)).tolist()
                self.rest, self.buffer = [self.buffer[k] for k in reversed(order)], None
                found = joined(found, self._last(n - len(fresh)))
        self.given += len(found)
        return found

    def _places(self, n: int) -> np.ndarray:
        return (self.random.random(n) * len(self.buffer)).astype(np.int64)

    def _last(self, n: int) -> Sequence[Any]:
        return [self.rest.pop() for _ in range(min(n, len(self.rest)))]

    def _exchanged(self, fresh: Sequence[Any], places: Sequence[int]) -> Sequence[Any]:
        """What `fresh` items find at their places in the buffer, which they take one after the other."""
        buffer, out = self.buffer, []
        for k, item in zip(places, fresh):
            out.append(buffer[k])
            buffer[k] = item
        return out

    def state(self) -> Any:
        return self.given

    def load(self, state: Any) -> None:
        self.leave_out(state)

    def close(self) -> None:
        self.input.close()


class ShuffleRows(Shuffle):
    """The same order, for row numbers: many at once, if they cost nothing (`chunk`)."""

    def __init__(self, stream: Stream, size: int, seed: int, at: Pass, chunk: int = CHUNK):
        super().__init__(stream, size, seed, at)
        self.chunk, self.ahead = chunk, np.empty(0, np.int64)

    def take(self, n: int) -> Sequence[Any]:
        while len(self.ahead) < n and self.rest is None:
            if self.buffer is None:
                self.buffer = np.array(self.input.take(self.size), np.int64)
            wanted = max(self.chunk, n - len(self.ahead))
            fresh = np.array(self.input.take(wanted), np.int64)
            if len(fresh):
                self.ahead = np.concatenate([self.ahead, self._exchanged_at_once(fresh, self._places(len(fresh)))])
            if len(fresh) < wanted:
                self.rest = self.buffer[self.random_end.permutation(len(self.buffer))]
                self.ahead = np.concatenate([self.ahead, self.rest])
        found, self.ahead = self.ahead[:n], self.ahead[n:]
        self.given += len(found)
        return found  # type: ignore[return-value]

    def _exchanged_at_once(self, fresh: np.ndarray, places: np.ndarray) -> np.ndarray:
        order = np.argsort(places.astype(np.uint16) if len(self.buffer) < 1 << 16 else places, kind="stable")
        in_order = places[order]
        again = np.flatnonzero(in_order[1:] == in_order[:-1])  # a place that an item before it in this chunk has taken
        out = self.buffer[places]
        out[order[again + 1]] = fresh[order[again]]
        self.buffer[places] = fresh  # of several at one place the last stays
        return out


class Kept:
    """The items a cached dataset has read so far, for all streams over it, in the order that its seeds decide."""

    def __init__(self, opened: Open, items: list[int] | Store, seeds: Sequence[Seed]):
        self.opened, self.seeds, self.lock = opened, seeds, threading.Lock()
        self.items = items  # row numbers, or the elements themselves
        self.input: Stream | None = None
        self.made_with: list[int] | None = None

    def part(self, start: int, stop: int) -> Sequence[int]:
        """Items of these numbers, as far as there are any."""
        with self.lock:
            seeds = [s.value for s in self.seeds]
            if self.made_with != seeds:
                self.items.clear()
                self.input, self.made_with = self.opened(), seeds
            while len(self.items) < stop and self.input is not None:
                try:
                    more = self.input.take(min(stop - len(self.items), CHUNK))
                except BaseException:  # what was read before it is lost; so nothing is kept with a gap
                    self.made_with = None
                    self.input.close()
                    raise
                self.items.extend(more)  # not +=, which NumPy would take for a sum
                if not len(more):
                    self.input.close()
                    self.input = None
            if isinstance(self.items, Store):
                return range(start, min(stop, len(self.items)))
            return self.items[start: stop]


class Cached(Stream):
    def __init__(self, kept: Kept):
        self.kept, self.given = kept, 0

    def take(self, n: int) -> Sequence[Any]:
        found = self.kept.part(self.given, self.given + n)
        self.given += len(found)
        return found

    def state(self) -> Any:
        return self.given

    def load(self, state: Any) -> None:
        self.given = state


class Window(Stream):
    """Lists of items: `size` of them, `stride` apart, each list `shift` after the one before."""

    def __init__(self, stream: Stream, size: int, shift: int, stride: int, drop: bool):
        self.input, self.size, self.shift, self.stride, self.drop = stream, size, shift, stride, drop
        self.held: list[Any] = []
        self.gap = self.offset = 0  # items to leave out before the next; held items are behind `pieces` by `offset`
        self.pieces: deque[tuple[Any, int]] = deque()  # states before each stretch of held items, and their lengths

    def one(self) -> list[Any]:
        self.input.leave_out(self.gap)
        self.gap = 0
        span = (self.size - 1) * self.stride + 1
        if len(self.held) < span:
            self._pull(span - len(self.held))
        found = self.held[:span:self.stride]
        if not found or (self.drop and len(found) < self.size):
            raise StopIteration
        self.gap = max(0, self.shift - len(self.held))
        del self.held[:self.shift]
        self.offset += self.shift - self.gap
        while self.pieces and self.pieces[0][1] <= self.offset:
            self.offset -= self.pieces.popleft()[1]
        return found

    def _pull(self, n: int) -> None:
        before = self.input.state()
        more = self.input.take(n)
        self.held.extend(more)
        if len(more):
            self.pieces.append((before, len(more)))

    def state(self) -> Any:
        begin = self.pieces[0][0] if self.pieces else self.input.state()
        return {"begin": begin, "offset": self.offset, "held": len(self.held), "gap": self.gap}

    def load(self, state: Any) -> None:
        self.input.load(state["begin"])
        self.offset, self.gap = state["offset"], state["gap"]
        self._pull(state["offset"] + state["held"])
        del self.held[:self.offset]

    def close(self) -> None:
        self.input.close()


# -- elements ----------------------------------------------------------------------------------------------------------
class Elements(Over):
    """Rows as elements."""

    def __init__(self, stream: Stream, table: Table):
        super().__init__(stream)
        self.table = table

    def take(self, n: int) -> Sequence[Any]:
        return [self.table.row(k) for k in self.input.take(n)]


class Batch(Over):
    """`collate(items)` of `size` items."""

    def __init__(self, stream: Stream, size: int, drop: bool, collate: Callable[[Sequence[Any]], Any]):
        super().__init__(stream)
        self.size, self.drop, self.collate = size, drop, collate

    def one(self) -> Any:
        items = self.input.take(self.size)
        if not len(items) or (self.drop and len(items) < self.size):
            raise StopIteration
        return self.collate(items)


class Unbatch(Over):
    """The rows of each element."""

    def __init__(self, stream: Stream, table_of: Callable[[Any], tuple[Table, int]]):
        super().__init__(stream)
        self.table_of = table_of
        self.table: Table | None = None
        self.at = self.count = 0
        self.before: Any = None

    def one(self) -> Any:
        while self.at == self.count:
            self._next()
        self.at += 1
        assert self.table is not None
        return self.table.row(self.at - 1)

    def _next(self) -> None:
        self.before = self.input.state()
        self.table, self.count = self.table_of(self.input.one())
        self.at = 0

    def state(self) -> Any:
        if self.at == self.count:
            return {"input": self.input.state(), "at": 0}
        return {"input": self.before, "at": self.at}

    def load(self, state: Any) -> None:
        self.input.load(state["input"])
        if state["at"]:
            self._next()
            self.at = state["at"]


def call(f: Callable[..., Any], element: Any, **keywords: Any) -> Any:
    """f on an element as users see it: the parts of a tuple are its arguments. A StopIteration of its own would end the
    dataset there, unnoticed: it becomes a RuntimeError, as in Python's generators."""
    shown = tensors(element)
    if type(shown) is not tuple:
        shown = (shown,)
    try:
        if not state.active:
            return f(*shown, **keywords)
        with recording(None):
            return f(*shown, **keywords)
    except StopIteration as error:
        raise RuntimeError(f"{name_of(f)} raised StopIteration") from error


def name_of(f: Any) -> str:
    return getattr(f, "__name__", type(f).__name__)


class Calls:
    """What `map` does to element number `k` of a pass. With a seed, f gets a random key of its own for each."""

    def __init__(self, f: Callable[..., Any], key_of: Callable[[Pass, int], Tensor] | None):
        self.f, self.key_of = f, key_of

    def __call__(self, element: Any, at: Pass, k: int) -> Any:
        try:
            keywords = {} if self.key_of is None else {"key": self.key_of(at, k)}
            return element_of(call(self.f, element, **keywords), f"map({name_of(self.f)})")
        except Exception as error:
            error.add_note(f"in map({name_of(self.f)}) of element {k}")
            raise


class Map(Stream):
    def __init__(self, stream: Stream, calls: Calls, at: Pass):
        self.input, self.calls, self.at, self.given = stream, calls, at, 0

    def one(self) -> Any:
        element = self.input.one()
        self.given += 1
        return self.calls(element, self.at, self.given - 1)

    def state(self) -> Any:
        return {"given": self.given, "input": self.input.state()}

    def load(self, state: Any) -> None:
        self.given = state["given"]
        self.input.load(state["input"])

    def close(self) -> None:
        self.input.close()


class Filter(Over):
    def __init__(self, stream: Stream, predicate: Callable[..., Any]):
        super().__init__(stream)
        self.predicate = predicate

    def one(self) -> Any:
        while True:
            element = self.input.one()
            with recording(None):
                keep = bool(call(self.predicate, element))
            if keep:
                return element


class Zip(Stream):
    def __init__(self, inputs: Sequence[Stream]):
        self.inputs = inputs

    def one(self) -> Any:
        return tuple([stream.one() for stream in self.inputs])

    def state(self) -> Any:
        return [stream.state() for stream in self.inputs]

    def load(self, state: Any) -> None:
        for stream, s in zip(self.inputs, state, strict=True):
            stream.load(s)

    def close(self) -> None:
        for stream in self.inputs:
            stream.close()


class Enumerate(Over):
    def __init__(self, stream: Stream, start: int):
        super().__init__(stream)
        self.at = start

    def one(self) -> Any:
        element = self.input.one()
        self.at += 1
        return np.array(self.at - 1, np.int64), element

    def state(self) -> Any:
        return {"at": self.at, "input": self.input.state()}

    def load(self, state: Any) -> None:
        self.at = state["at"]
        self.input.load(state["input"])


class Interleave(Stream):
    """Elements of datasets, `block` from each of `cycle` in turn; `made(element)` gives the seeds of one and what opens
    it."""

    def __init__(self, opened: Open, made: Callable[[Any], tuple[Sequence[Seed], Open]], cycle: int, block: int):
        self.opened, self.made, self.cycle, self.block = opened, made, cycle, block
        self.input = opened()
        # of each dataset the input's state before it, its seeds, and its stream
        self.slots: list[tuple[Any, Sequence[Seed], Stream] | None] = [None] * cycle
        self.turn = self.given = 0
        self.ended = False

    def one(self) -> Any:
        while True:
            slot = self.slots[self.turn]
            if slot is None and not self.ended:
                before = self.input.state()
                try:
                    seeds, opened = self.made(self.input.one())
                    slot = self.slots[self.turn] = before, seeds, opened()
                except StopIteration:
                    self.ended = True
            if slot is None:
                if self.ended and not any(self.slots):
                    raise StopIteration
                self._advance()
                continue
            found = slot[2].take(1)
            if not len(found):
                slot[2].close()
                self.slots[self.turn] = None
                self._advance()
                continue
            self.given += 1
            if self.given == self.block:
                self._advance()
            return found[0]

    def _advance(self) -> None:
        self.turn, self.given = (self.turn + 1) % self.cycle, 0

    def state(self) -> Any:
        slots = [None if s is None else [s[0], [seed.value for seed in s[1]], s[2].state()] for s in self.slots]
        return {"slots": slots, "turn": self.turn, "given": self.given, "ended": self.ended,
                "input": self.input.state()}

    def load(self, state: Any) -> None:
        self.turn, self.given, self.ended = state["turn"], state["given"], state["ended"]
        for k, slot in enumerate(state["slots"]):
            if slot is not None:
                source = self.opened()
                source.load(slot[0])
                seeds, opened = self.made(source.one())
                source.close()
                take_over(seeds, slot[1])
                stream = opened()
                stream.load(slot[2])
                self.slots[k] = slot[0], seeds, stream
        self.input.load(state["input"])

    def close(self) -> None:
        for slot in self.slots:
            if slot is not None:
                slot[2].close()
        self.input.close()
