"""Slices whose bounds are known only at run time: `t[i:i + 2]`, `t[k * n:(k + 1) * n]`.

In: an index with such slices. Out: the indices along each of them, as a tensor of known length: a shape cannot depend
on values, so the difference of the bounds must come out as a plain number. Where the tensor ends, Python cuts a slice
off; here that is an IndexError at run time.

Read next: `subscript.py`.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.errors import TracerError, user_line
from tracejit.ir import INPUT, Node
from tracejit.ops import comparison, core
from tracejit.ops import elementwise as ew
from tracejit.ops.creation import arange
from tracejit.tensor import Tensor, state, wrap

Linear = tuple[dict[Node, int], int]  # a sum of nodes, each some times, and a number


def first_span(index: Any, shape: tuple[int, ...]) -> tuple[int, Any, Tensor] | None:
    """Of the first slice with traced bounds: its axis, the index with a full slice in its place, what it selects."""
    items = index if isinstance(index, tuple) else (index,)
    for k, item in enumerate(items):
        if isinstance(item, slice) and any(map(_unknown, (item.start, item.stop, item.step))):
            axis = sum(map(_dims, items[:k]))
            if any(i is Ellipsis for i in items[:k]):
                axis = len(shape) - sum(map(_dims, items[k:]))
            if not 0 <= axis < len(shape):
                return None  # too many indices
            rest = (*items[:k], slice(None), *items[k + 1 :])
            return axis, rest, _indices(item, shape[axis], axis)
    return None


def _unknown(bound: Any) -> bool:
    return isinstance(bound, Tensor) and (bound._place or not state.trace.knows(bound, scalars=True))  # type: ignore[union-attr]


def _dims(item: Any) -> int:
    """How many dims an entry of an index is for."""
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, list):
        item = np.asarray(item)
    return item.ndim if isinstance(item, Tensor | np.ndarray) and item.dtype.kind == "b" else 1


def _indices(item: slice, n: int, axis: int) -> Tensor:
    """The indices that a slice of an axis of size n selects; beyond it where Python would select fewer."""
    if item.start is None or item.stop is None or _unknown(item.step):
        raise _unknown_length(axis, n)
    step = 1 if item.step is None else operator.index(item.step)
    start, stop = (_whole(x) for x in (item.start, item.stop))
    (terms, offset), (others, end) = _linear(start._value), _linear(stop._value)
    length = end - offset
    if step == 0:
        raise ValueError("slice step cannot be zero")
    if terms != others or length * step < 0:
        raise _unknown_length(axis, n)
    found = start + arange(len(range(0, length, step)), dtype=dtypes.int64) * step
    # bounds on both sides of zero: the negative one counts from the end
    across = comparison.not_equal(comparison.less(start, 0), comparison.less(stop, 0))
    return ew.where(across, n, found)


def _whole(bound: Any) -> Tensor:
    if not isinstance(bound, Tensor):
        return core.full(operator.index(bound), (), dtypes.int64)
    if bound.dtype.kind not in "iu" or bound.size != 1:
        raise TypeError(f"a bound of a slice must be one integer, not {bound.dtype.name} of shape {bound.shape}")
    return core.cast(core.as_tensor(bound).reshape(()), dtypes.int64)


def _unknown_length(axis: int, n: int) -> TracerError:
    return TracerError(
        f"the slice of axis {axis} at {user_line()} has a length that depends on values known only at run time, and a "
        f"shape cannot. Write t[i:i + k] with a known k, or tj.take(t, tj.arange(k) + i, axis={axis}); or keep all "
        f"{n} entries and choose by value: tj.where(tj.arange({n}) < i, t, 0)"
    )


def _linear(node: Any) -> Linear:
    """A 0-d integer as a sum."""
    name = node.op.name
    parts = node.inputs
    if name in ("cast", "reshape", "identity") and parts[0].dtype.kind in "iu" and parts[0].type.size == 1:
        return _linear(parts[0])
    if name == "full":
        return {}, int(node.attrs["value"])
    if name in ("add", "subtract"):
        a, b = _linear(parts[0]), _linear(parts[1])
        return _sum(a, b, 1 if name == "add" else -1)
    if name == "negative":
        return _sum(({}, 0), _linear(parts[0]), -1)
    if name == "multiply":
        a, b = _linear(parts[0]), _linear(parts[1])
        if not a[0] or not b[0]:
            x, times = (b, a[1]) if not a[0] else (a, b[1])
            return _sum(({}, 0), x, times)
    trace: Any = state.trace
    known = trace._look(node)
    if known is not None:
        return {}, int(trace.concrete(wrap(node), "use as an integer (bound of a slice)"))
    if node.op is INPUT:
        while trace is not None:  # a value from around: there it may be a sum
            for c in trace.captured.values():
                value = getattr(c.handle, "_value", None)
                if c.node is node and value.__class__ is Node and id(c.handle) not in trace._originals:
                    return _linear(value)
            trace = trace.outer
    return {node: 1}, 0


def _sum(a: Linear, b: Linear, times: int) -> Linear:
    terms = dict(a[0])
    for node, n in b[0].items():
        terms[node] = terms.get(node, 0) + n * times
    return {node: n for node, n in terms.items() if n}, a[1] + b[1] * times
