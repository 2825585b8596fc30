"""Iteration over traced values: rows of a tensor, `range` with traced bounds, `enumerate` and `zip` of these.

In: what a `for` statement iterates over. Out: `Steps`, which gives the item of any turn, or None if Python should
iterate as it is (few rows, or nothing traced).

Read next: `operators.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tracejit import dtypes
from tracejit.errors import TracerError, user_line
from tracejit.ir import Node
from tracejit.ops import core, elementwise
from tracejit.tensor import Tensor, state

UNROLL = 16  # rows of a tensor up to which a loop runs in Python, turn by turn


class Steps:
    """A loop: how many turns, and what each gets. counted: whether items depend on the counter."""

    def __init__(
        self,
        count: Any,
        item: Callable[[Any, Sequence[Tensor]], Any],
        rows: Sequence[Tensor] = (),
        counted: bool = True,
    ):
        self.count = count
        self.item = item
        self.rows = tuple(rows)
        self.counted = counted

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.count, Tensor):
            raise TracerError(
                f"iteration at {user_line()} over a range whose length is known only at run time; use a plain `for` "
                f"statement in a function with source, tj.fori_loop or tj.while_loop"
            )
        return (self.item(k, [r[k] for r in self.rows]) for k in range(self.count))

    def __len__(self) -> int:
        return int(self.count)


def steps_of(x: Any) -> Steps | None:
    """Steps for what should be compiled as a loop."""
    if isinstance(x, Steps):
        return x if isinstance(x.count, Tensor) or x.count > UNROLL else None
    if isinstance(x, Tensor) and x.ndim and x.shape[0] > UNROLL and state.trace is not None:
        return _rows(x)
    return None


def _rows(x: Tensor) -> Steps:
    return Steps(x.shape[0], lambda i, rows: rows[0], (x,), counted=False)


def traced_range(*args: Any, dtype: Any = None) -> Steps:
    """`range` whose bounds are traced; items are Python ints, or tensors of `dtype`."""
    start, stop, step = (0, args[0], 1) if len(args) == 1 else (*args, 1) if len(args) == 2 else args
    start, stop, step = map(_whole, (start, stop, step))
    span = stop if isinstance(start, int) and start == 0 else stop - start
    if isinstance(step, Tensor):
        raise TracerError(f"range at {user_line()}: the step must be known while tracing")
    if step == 0:
        raise ValueError("range() arg 3 must not be zero")
    count = span if step == 1 else (span + (step - 1 if step > 0 else step + 1)) // step

    def item(i: Any, rows: Sequence[Tensor]) -> Any:
        value = start + i * step
        return value if dtype is None else core.cast(value, dtype)

    return Steps(count, item)


def steps_of_range(r: range, done: int) -> Steps:
    """What is left of a Python range after `done` turns, with traced items."""
    rest = r[done:]
    return Steps(len(rest), lambda i, rows: rest.start + i * rest.step)


def _whole(x: Any) -> Any:
    """A bound as a Python int, or as a traced one."""
    if not isinstance(x, Tensor):
        return x.__index__()
    if x.dtype.kind not in "iu":
        raise TypeError(f"'{x.dtype}' tensor cannot be interpreted as an integer")
    if x.size != 1:
        raise TypeError(f"only integer tensors of one element can be used as a bound, got shape {x.shape}")
    return core.as_number(core.cast(core.as_tensor(x).reshape(()), dtypes.int64))


def parts_of(x: Any) -> Steps | None:
    """Steps of an argument of enumerate or zip, if it would be compiled by itself."""
    if isinstance(x, Tensor) and x.ndim and isinstance(x._value, Node):
        return _rows(x)
    return x if isinstance(x, Steps) else None


def traced_enumerate(inner: Steps, start: Any = 0) -> Steps:
    """`enumerate` of steps."""
    return Steps(inner.count, lambda i, rows: (i + start, inner.item(i, rows)), inner.rows)


def traced_zip(inners: Sequence[Steps]) -> Steps:
    """`zip` of steps; the shortest ends it."""
    known = [s.count for s in inners if not isinstance(s.count, Tensor)]
    count: Any = min(known) if known else None
    for s in inners:
        if isinstance(s.count, Tensor):
            count = s.count if count is None else elementwise.minimum(s.count, count)
    ends = [0]
    for s in inners:
        ends.append(ends[-1] + len(s.rows))
    rows = [r if isinstance(count, Tensor) else r[:count] for s in inners for r in s.rows]

    def item(i: Any, given: Sequence[Tensor]) -> Any:
        return tuple(s.item(i, given[a:b]) for s, a, b in zip(inners, ends, ends[1:], strict=False))

    return Steps(count, item, rows, any(s.counted for s in inners))
