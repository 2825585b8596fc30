"""Elements by index arrays, as functions: take, take_along_axis, gather, and their writing counterparts; one_hot.

In: tensors and integer indices (negative ones count from the end; IndexError when out of range). Out: new tensors.
`t[...]` and `t.at[...]` (`subscript.py`) say most of this with less.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.dims import integer
from tracejit.ops import core
from tracejit.ops import elementwise as ew
from tracejit.ops.core import as_tensor, broadcast_shape, cast, composite, normalize_axis, strong
from tracejit.ops.indexing import MODES, pick, put
from tracejit.ops.movement import extents_of, iota, moved_axis, permuted, reshaped
from tracejit.ops.shaping import ravel, unstack
from tracejit.tensor import Tensor


def _indices(name: str, x: Any) -> Tensor:
    t = strong(x) if not (isinstance(x, (list, tuple)) and not len(x)) else core.constant_tensor(np.zeros(0, np.int64))
    if t.dtype.kind not in "iu":
        raise TypeError(f"{name}: indices must be integers, got {t.dtype}")
    return cast(t, dtypes.int64)


@composite(numpy=np.take, method=True)
def take(x: Any, indices: Any, axis: int | None = None, out: None = None, mode: str = "raise") -> Tensor:
    """The slices at `indices` along `axis` (single elements of all of `x` if None).

    mode: what an index out of range means: "raise" an IndexError (negative ones count from the end), "wrap" around, or
    "clip" to the nearest (then negative ones mean the first).

    >>> take([[1, 2], [3, 4]], [1, 0], axis=1).tolist()
    [[2, 1], [4, 3]]
    """
    if out is not None:
        raise TypeError("take: tensors are values, so out= is not supported; assign the result")
    t, i = strong(x), _indices("take", indices)
    t, k = (ravel(t), 0) if axis is None else (t, normalize_axis("take", axis, t.ndim))
    if mode not in ("raise", "wrap", "clip"):
        raise ValueError(f"take: mode must be raise, wrap or clip, got {mode!r}")
    if mode != "raise":
        if not t.shape[k] and i.size:
            raise IndexError(f"take: axis {k} of shape {t.shape} is empty")
        i = i % t.shape[k] if mode == "wrap" else ew.minimum(ew.maximum(i, 0), t.shape[k] - 1)  # type: ignore[operator]
    found = pick(t, (i,), (k,))
    n = i.ndim
    return permuted(found, (*range(n, n + k), *range(n), *range(n + k, found.ndim)))


def _every_axis(t: Tensor, indices: Tensor, axis: int) -> list[Tensor]:
    """Index tensors for all axes: `indices` along `axis`, the own coordinate elsewhere."""
    return [indices if a == axis else iota(indices.shape, a) for a in range(t.ndim)]


def _aligned(name: str, x: Any, indices: Any, axis: int | None) -> tuple[Tensor, Tensor, int]:
    t, i = strong(x), _indices(name, indices)
    if axis is None:
        return ravel(t), ravel(i), 0
    k = normalize_axis(name, axis, t.ndim)
    if t.ndim != i.ndim:
        raise ValueError(f"{name}: indices of shape {i.shape} must have as many dims as shape {t.shape}")
    others = broadcast_shape(name, [(*s[:k], 1, *s[k + 1:]) for s in (t.shape, i.shape)])
    return (core.broadcast_to(t, (*others[:k], t.shape[k], *others[k + 1:])),
            core.broadcast_to(i, (*others[:k], i.shape[k], *others[k + 1:])), k)


@composite(numpy=np.take_along_axis)
def take_along_axis(x: Any, indices: Any, axis: int | None = -1) -> Tensor:
    """For each place of `indices`, the element of `x` there but at that index along `axis`: argsort's result sorts."""
    t, i, k = _aligned("take_along_axis", x, indices, axis)
    return pick(t, _every_axis(t, i, k), tuple(range(t.ndim)))


def put_along_axis(x: Any, indices: Any, values: Any, axis: int | None = -1, mode: str = "set") -> Tensor:
    """`x` with `values` (which broadcast) put where `take_along_axis` would read. mode: set, add, mul, min or max.

    Unlike NumPy's, it gives the result and leaves `x` as it is.
    """
    t = strong(x)
    wide, i, k = _aligned("put_along_axis", t, indices, axis)
    if wide.size != t.size:
        raise ValueError(f"put_along_axis: indices of shape {np.shape(indices)} do not fit shape {t.shape}")
    v = core.broadcast_to(cast(as_tensor(values), t.dtype), i.shape)
    return reshaped(put(wide, v, _every_axis(wide, i, k), tuple(range(wide.ndim)), mode), t.shape)


@composite(numpy=np.put_along_axis)
def _put_along_axis_in_place(arr: Any, indices: Any, values: Any, axis: int | None = -1) -> None:
    if not isinstance(arr, Tensor):
        raise TypeError("np.put_along_axis: a NumPy array cannot hold tensors; make it a tensor first")
    core.rebind(arr, put_along_axis(arr, indices, values, axis))


def gather(x: Any, indices: Any, axis: int = 0, batch_dims: int = 0) -> Tensor:
    """The slices at `indices` along `axis`; the first `batch_dims` dims of both go together.

    >>> gather([[1, 2], [3, 4]], [1, 1]).tolist()
    [[3, 4], [3, 4]]
    """
    t, i = strong(x), _indices("gather", indices)
    b = operator.index(batch_dims)
    k = normalize_axis("gather", axis, t.ndim)
    if not 0 <= b <= min(i.ndim, k):
        raise ValueError(f"gather: batch_dims={batch_dims} for indices of shape {i.shape} along axis {k}")
    if t.shape[:b] != i.shape[:b]:
        raise ValueError(f"gather: the first {b} dims of shapes {t.shape} and {i.shape} differ")
    if b == 0:
        return take(t, i, k)
    out = pick(t, (*(iota(i.shape, a) for a in range(b)), i), (*range(b), k))  # i's dims, then the rest of t's
    n = i.ndim
    return permuted(out, (*range(b), *range(n, n + k - b), *range(b, n), *range(n + k - b, out.ndim)))


def gather_nd(x: Any, indices: Any) -> Tensor:
    """The slices at index tuples, which are the last dim of `indices`."""
    t, i = strong(x), _indices("gather_nd", indices)
    parts = _tuples("gather_nd", t, i)
    return pick(t, parts, tuple(range(len(parts)))) if parts else core.broadcast_to(t, (*i.shape[:-1], *t.shape))


def _tuples(name: str, t: Tensor, indices: Tensor) -> Sequence[Tensor]:
    if not indices.ndim or indices.shape[-1] > t.ndim:
        raise ValueError(f"{name}: index tuples of shape {indices.shape} do not fit shape {t.shape}")
    return unstack(indices, -1)


def scatter(x: Any, indices: Any, values: Any, axis: int = 0, mode: str = "set") -> Tensor:
    """`x` with `values` (which broadcast) put at the slices `indices` along `axis`.

    mode: "set" (of repeated places the last wins), "add", "mul", "min" or "max" (all count).

    >>> scatter([0, 0, 0], [2, 2], [5, 7], mode="add").tolist()
    [0, 0, 12]
    """
    t, i = strong(x), _indices("scatter", indices)
    k = normalize_axis("scatter", axis, t.ndim)
    if mode not in MODES:
        raise ValueError(f"scatter: mode must be one of {', '.join(MODES)}, got {mode!r}")
    v = core.broadcast_to(cast(as_tensor(values), t.dtype), t.shape[:k] + i.shape + t.shape[k + 1:])
    n = i.ndim
    return put(t, permuted(v, (*range(k, k + n), *range(k), *range(k + n, v.ndim))), (i,), (k,), mode)


def scatter_nd(indices: Any, updates: Any, shape: Any) -> Tensor:
    """Zeros of `shape` with `updates` added at index tuples, which are the last dim of `indices`."""
    v, i = strong(updates), _indices("scatter_nd", indices)
    zeros = core.full(0, extents_of(shape), v.dtype)
    parts = _tuples("scatter_nd", zeros, i)
    return put(zeros, v, parts, tuple(range(len(parts))), "add")


def one_hot(indices: Any, depth: int, dtype: Any = None, axis: int = -1, on_value: Any = 1,
            off_value: Any = 0) -> Tensor:
    """A new dim of extent `depth`: `on_value` at each index, `off_value` elsewhere (everywhere, if it is out of range).

    >>> one_hot([2, 0], 3).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    i = _indices("one_hot", indices)
    wanted = dtypes.default_float() if dtype is None else dtypes.as_dtype(dtype)
    shape = (*i.shape, integer(depth))
    hit = core.broadcast_to(reshaped(i, (*i.shape, 1)), shape) == iota(shape, i.ndim)
    k = normalize_axis("one_hot", axis, len(shape))
    if (on_value, off_value) == (1, 0):
        out = cast(hit, wanted)
    else:
        out = cast(core.WHERE(hit, as_tensor(on_value, wanted), as_tensor(off_value, wanted)), wanted)
    return permuted(out, moved_axis(out.ndim, out.ndim - 1, k))


__all__ = ["take", "take_along_axis", "put_along_axis", "gather", "gather_nd", "scatter", "scatter_nd", "one_hot"]
