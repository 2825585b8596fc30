"""Order: sort, argsort, top_k, searchsorted; and nonzero, whose result's shape depends on the values.

In: tensors. Out: sorted values or int64 positions. Sorting is stable; nan counts as the largest. All are library calls.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.errors import TracerError, user_line
from tracejit.ir import Node, Type
from tracejit.ops import core
from tracejit.ops import elementwise as ew
from tracejit.ops.core import cast, composite, full, normalize_axis, primitive, strong
from tracejit.ops.cumulative import cumsum
from tracejit.ops.indexing import pick, put
from tracejit.ops.movement import along, iota, joined, moved_axis, permuted, reshaped
from tracejit.ops.selection import take_along_axis
from tracejit.ops.shaping import flip, ravel
from tracejit.tensor import Tensor, apply


# -- sort and argsort, along the last axis -----------------------------------------------------------------------------
def _needs_dims(x: Type, name: str) -> None:
    if not x.ndim:
        raise ValueError(f"{name}: a 0-d tensor has no axis to sort along")


def _sort_infer(x: Type) -> Type:
    _needs_dims(x, "sort")
    return x


def _argsort_infer(x: Type) -> Type:
    _needs_dims(x, "argsort")
    return Type(x.shape, dtypes.int64)


def _sort_vjp(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Each element gets what came to its place; equal elements share evenly."""
    n = x.shape[-1]
    if n < 2:
        return g
    rows = x.size // n
    changes = (along(y, y.ndim - 1, 1, n - 1) != along(y, y.ndim - 1, 0, n - 1)).astype("int64")  # type: ignore[attr-defined]
    first = full(0, (*y.shape[:-1], 1), dtypes.int64)
    number = cumsum(joined([first, changes], y.ndim - 1), axis=-1)  # of the run of equal elements
    run = ravel(reshaped(number, (rows, n)) + iota((rows, n), 0) * n)
    total = put(full(0, (x.size,), g.dtype), ravel(g), (run,), (0,), "add")
    count = put(full(0, (x.size,), g.dtype), full(1, (x.size,), g.dtype), (run,), (0,), "add")
    shares = reshaped(pick(total, (run,), (0,)) / pick(count, (run,), (0,)), x.shape)  # type: ignore[operator]
    order = ravel(reshaped(apply(ARGSORT, (x,), {}), (rows, n)) + iota((rows, n), 0) * n)
    return reshaped(put(full(0, (x.size,), g.dtype), ravel(shares), (order,), (0,), "set"), x.shape)


def _sort_jvp(tangents: Sequence[Tensor], y: Tensor, x: Tensor) -> Tensor:
    return take_along_axis(tangents[0], apply(ARGSORT, (x,), {}), axis=-1)


SORT = primitive("sort", "library", infer=_sort_infer, eager=lambda x: np.sort(x, axis=-1, kind="stable"),
                 vjp=lambda g, y, x: (_sort_vjp(g, y, x),), jvp=_sort_jvp, domain=(-2, 2),
                 doc="The last axis in ascending order.")
ARGSORT = primitive("argsort", "library", infer=_argsort_infer, domain=(-2, 2),
                    eager=lambda x: np.argsort(x, axis=-1, kind="stable"),
                    doc="Positions that put the last axis in ascending order; equal elements keep theirs.")


def _last(t: Tensor, axis: int) -> tuple[Tensor, int]:
    """`t` with `axis` last, and where it was."""
    k = normalize_axis("sort", axis, t.ndim) if t.ndim else 0
    return permuted(t, moved_axis(t.ndim, k, t.ndim - 1)) if t.ndim else t, k


def _back(t: Tensor, axis: int) -> Tensor:
    return permuted(t, moved_axis(t.ndim, t.ndim - 1, axis))


@composite(numpy=np.sort)
def sort(x: Any, axis: int | None = -1, *, descending: bool = False, stable: bool = True, kind: Any = None) -> Tensor:
    """The elements along `axis` (all of them if None) in ascending order, or descending. nan comes last, or first.

    >>> sort([3, 1, 2], descending=True).tolist()
    [3, 2, 1]
    """
    t = strong(x)
    t, axis = (ravel(t), 0) if axis is None else (t, axis)
    t, k = _last(t, axis)
    out = apply(SORT, (t,), {})
    return _back(flip(out, -1) if descending else out, k)


@composite(numpy=np.argsort, method=True)
def argsort(x: Any, axis: int | None = -1, *, descending: bool = False, stable: bool = True,
            kind: Any = None) -> Tensor:
    """int64 positions that sort `x` along `axis`; equal elements stay in their order.

    >>> argsort([3, 1, 2]).tolist()
    [1, 2, 0]
    """
    t = strong(x)
    if t.ndim == 0 and axis is not None:
        raise ValueError("argsort: a 0-d tensor has no axis to sort along")
    t, axis = (ravel(t), 0) if axis is None else (t, axis)
    t, k = _last(t, axis)
    return _back(_positions(t, descending), k)


def _positions(t: Tensor, descending: bool) -> Tensor:
    if not descending:
        return apply(ARGSORT, (t,), {})
    backwards = apply(ARGSORT, (flip(t, -1),), {})  # of the reversed row, so that equal elements keep their order
    return t.shape[-1] - 1 - flip(backwards, -1)  # type: ignore[operator]


@composite(numpy=np.partition)
def partition(x: Any, kth: Any, axis: int | None = -1, kind: Any = None, order: Any = None) -> Tensor:
    """The elements along `axis` with the `kth` where it would be if they were sorted, and smaller ones before it.

    In fact all of them are sorted.
    """
    return sort(x, axis)


@composite(numpy=np.argpartition)
def argpartition(x: Any, kth: Any, axis: int | None = -1, kind: Any = None, order: Any = None) -> Tensor:
    """int64 positions for `partition`."""
    return argsort(x, axis)


def top_k(x: Any, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The `k` largest elements along `axis`, largest first, and their int64 positions (of equal ones, the first first).

    >>> [t.tolist() for t in top_k([1, 5, 3], 2)]
    [[5, 3], [1, 2]]
    """
    t, at = _last(strong(x), axis)
    k = operator.index(k)
    if not t.ndim or not 0 <= k <= t.shape[-1]:
        raise ValueError(f"top_k: k={k} for shape {t.shape}")
    places = along(_positions(t, True), t.ndim - 1, 0, k)
    return _back(take_along_axis(t, places, axis=-1), at), _back(places, at)


# -- searchsorted ------------------------------------------------------------------------------------------------------
def _searchsorted_infer(x: Type, v: Type, *, side: str) -> Type:
    if x.ndim != 1 or x.dtype != v.dtype or side not in ("left", "right"):
        raise ValueError(f"searchsorted: needs a sorted vector, values of its dtype and side left or right; "
                         f"got {x!r}, {v!r}, {side!r}")
    return Type(v.shape, dtypes.int64)


SEARCHSORTED = primitive("searchsorted", "library", infer=_searchsorted_infer,
                         eager=lambda x, v, *, side: np.asarray(np.searchsorted(x, v, side)),
                         doc="Positions in a sorted vector at which values would keep it sorted.")


@composite(numpy=np.searchsorted, method=True)
def searchsorted(x1: Any, x2: Any, /, side: str = "left", sorter: Any = None) -> Tensor:
    """The int64 positions in the sorted vector `x1` at which `x2` belong: before equal ones (side "left") or after.

    >>> searchsorted([1, 3, 5], [3, 4]).tolist()
    [1, 2]
    """
    a, v = strong(x1), strong(x2)
    if sorter is not None:
        a = pick(a, (cast(strong(sorter), dtypes.int64),), (0,))
    dtype = dtypes.result_dtype([a.dtype, v.dtype])
    return apply(SEARCHSORTED, (cast(a, dtype), cast(v, dtype)), {"side": side})


# -- nonzero -----------------------------------------------------------------------------------------------------------
def values_now(name: str, x: Any) -> np.ndarray:
    """The values, which must be known now."""
    t = strong(x)
    if isinstance(t._value, Node):
        raise TracerError(f"{name}: the shape of the result depends on the values of a traced "
                          f"tensor (at {user_line()}); use tj.where(condition, x, y), or sum(where=...), or call it "
                          f"outside the compiled function")
    return t._value


@composite(numpy=np.nonzero, method=True)
def nonzero(x: Any) -> tuple[Tensor, ...]:
    """int64 positions of the elements that are not zero, a tensor for each dim. Not inside a compiled function."""
    return tuple(core.constant_tensor(i) for i in values_now("nonzero", x).nonzero())


@composite(numpy=np.flatnonzero)
def flatnonzero(x: Any) -> Tensor:
    """int64 row-major positions of the elements that are not zero. Not inside a compiled function."""
    return core.constant_tensor(np.flatnonzero(values_now("flatnonzero", x)))


@composite(numpy=np.argwhere)
def argwhere(x: Any) -> Tensor:
    """int64 coordinates of the elements that are not zero, one row each. Not inside a compiled function."""
    return core.constant_tensor(np.argwhere(values_now("argwhere", x)))


@composite(numpy=np.isin)
def isin(x1: Any, x2: Any, *, invert: bool = False) -> Tensor:
    """Where an element of `x1` is among those of `x2`."""
    a, b = strong(x1), ravel(strong(x2))
    dtype = dtypes.result_dtype([a.dtype, b.dtype])
    a, b = cast(a, dtype), apply(SORT, (cast(b, dtype),), {})
    if not b.size:
        return full(invert, a.shape, dtypes.bool_)
    place = ew.minimum(apply(SEARCHSORTED, (b, a), {"side": "left"}), b.size - 1)
    found = pick(b, (place,), (0,)) == a
    return ~found if invert else found  # type: ignore[operator]


__all__ = [
    "sort", "argsort", "partition", "argpartition", "top_k", "searchsorted", "nonzero", "flatnonzero", "argwhere",
    "isin",
]
