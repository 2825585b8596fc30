"""Small numerical functions of NumPy made of ops: interpolation, integrals, polynomials, choices, flat indices.

In: tensors. Out: tensors; all of them trace and differentiate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.ops import core
from tracejit.ops import elementwise as ew
from tracejit.ops.core import cast, composite, normalize_axis, strong
from tracejit.ops.indexing import pick
from tracejit.ops.movement import along, reshaped, shape_of
from tracejit.ops.reduction import sum as _sum
from tracejit.ops.shaping import split, unstack
from tracejit.ops.sorting import searchsorted
from tracejit.tensor import Tensor


@composite(numpy=np.interp)
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None) -> Tensor:
    """The piecewise linear function through the points (xp, fp), xp ascending, at `x`; `left` and `right` hold outside.

    >>> interp([0.5, 3.0], [0.0, 1.0, 2.0], [0.0, 10.0, 30.0]).tolist()
    [5.0, 30.0]
    """
    t, xs, ys = (strong(v) for v in (x, xp, fp))
    if xs.ndim != 1 or xs.shape != ys.shape or not xs.size:
        raise ValueError(f"interp: points must be two vectors of one length, got shapes {xs.shape} and {ys.shape}")
    dtype = dtypes.to_float(dtypes.result_dtype([t.dtype, xs.dtype, ys.dtype]))
    t, xs, ys = cast(t, dtypes.real_part(dtype)), cast(xs, dtypes.real_part(dtype)), cast(ys, dtype)
    n = xs.size
    first, last = along(ys, 0, 0, 1), along(ys, 0, n - 1, 1)
    if n == 1:
        found = core.broadcast_to(reshaped(first, ()), t.shape)
    else:
        i = ew.minimum(ew.maximum(searchsorted(xs, t, "right") - 1, 0), n - 2)
        x0, x1, y0, y1 = (pick(v, (k,), (0,)) for v in (xs, ys) for k in (i, i + 1))
        found = y0 + (y1 - y0) * ((t - x0) / (x1 - x0))
    found = ew.where(t < along(xs, 0, 0, 1).reshape(()), reshaped(first, ()) if left is None else left, found)
    return ew.where(t > along(xs, 0, n - 1, 1).reshape(()), reshaped(last, ()) if right is None else right, found)


@composite(numpy=np.trapezoid)
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Tensor:
    """The integral along `axis` by trapezoids: of samples at `x`, or `dx` apart.

    >>> trapezoid([1.0, 2.0, 3.0]).item()
    4.0
    """
    t = strong(y)
    k = normalize_axis("trapezoid", axis, t.ndim)
    n = max(t.shape[k] - 1, 0)
    width: Any = dx
    if x is not None:
        s = strong(x)
        s = reshaped(s, tuple(s.size if a == k else 1 for a in range(t.ndim))) if s.ndim == 1 else s
        width = along(s, k, min(1, s.shape[k]), max(s.shape[k] - 1, 0)) - along(s, k, 0, max(s.shape[k] - 1, 0))
    late, early = along(t, k, min(1, t.shape[k]), n), along(t, k, 0, n)
    return _sum(width * (late + early) / 2.0, axis=k)


@composite(numpy=np.polyval)
def polyval(p: Any, x: Any) -> Tensor:
    """The polynomial with coefficients `p`, highest power first, at `x`.

    >>> polyval([1, 0, 2], 3).item()
    11
    """
    coefficients = strong(p)
    if coefficients.ndim != 1:
        raise ValueError(f"polyval: coefficients must be a vector, got shape {coefficients.shape}")
    t = strong(x)
    found = core.full(0, t.shape, dtypes.result_dtype([coefficients.dtype, t.dtype]))
    for c in unstack(coefficients):
        found = found * t + c
    return found


@composite(numpy=np.select)
def select(conditions: Sequence[Any], choices: Sequence[Any], default: Any = 0) -> Tensor:
    """For each element, the choice that belongs to the first condition that holds there; `default` where none does.

    >>> select([np.array([True, False])], [[1, 2]], 9).tolist()
    [1, 9]
    """
    if len(conditions) != len(choices) or not len(conditions):
        raise ValueError(f"select: {len(conditions)} conditions for {len(choices)} choices")
    found = default
    for condition, choice in zip(reversed(conditions), reversed(choices)):
        found = ew.where(condition, choice, found)
    return found


@composite(numpy=np.unravel_index)
def unravel_index(indices: Any, shape: Any) -> tuple[Tensor, ...]:
    """Coordinates in `shape` of row-major positions, a tensor for each dim."""
    t = cast(strong(indices), dtypes.int64)
    found: list[Tensor] = []
    for n in reversed(shape_of(shape)):
        found.append(t % n)
        t = t // n
    return tuple(reversed(found))


@composite(numpy=np.ravel_multi_index)
def ravel_multi_index(multi_index: Sequence[Any], dims: Any) -> Tensor:
    """Row-major positions in `dims` of coordinates, given as a tensor for each dim."""
    shape = shape_of(dims)
    if len(multi_index) != len(shape):
        raise ValueError(f"ravel_multi_index: {len(multi_index)} coordinates for {len(shape)} dims")
    total: Any = 0
    for k, i in enumerate(multi_index):
        total = total + cast(strong(i), dtypes.int64) * math.prod(shape[k + 1:])
    return total if isinstance(total, Tensor) else core.full(0, (), dtypes.int64)


def _triangle_indices(n: int, k: int, m: int | None, upper: bool) -> tuple[Tensor, Tensor]:
    rows, columns = (np.triu_indices if upper else np.tril_indices)(n, k, m)
    return core.constant_tensor(rows), core.constant_tensor(columns)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Tensor, Tensor]:
    """int64 rows and columns of the elements at and below the k-th diagonal of an (n, m) matrix."""
    return _triangle_indices(n, k, m, False)


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Tensor, Tensor]:
    """int64 rows and columns of the elements at and above the k-th diagonal of an (n, m) matrix."""
    return _triangle_indices(n, k, m, True)


@composite(numpy=np.hsplit)
def hsplit(x: Any, indices_or_sections: Any) -> list[Tensor]:
    """`split` along the second dim, of a vector along the first."""
    t = strong(x)
    return split(t, indices_or_sections, min(1, t.ndim - 1))


@composite(numpy=np.vsplit)
def vsplit(x: Any, indices_or_sections: Any) -> list[Tensor]:
    """`split` along the first dim."""
    return split(x, indices_or_sections, 0)


@composite(numpy=np.dsplit)
def dsplit(x: Any, indices_or_sections: Any) -> list[Tensor]:
    """`split` along the third dim."""
    return split(x, indices_or_sections, 2)


__all__ = [
    "interp", "trapezoid", "polyval", "select", "unravel_index", "ravel_multi_index", "tril_indices", "triu_indices",
    "hsplit", "vsplit", "dsplit",
]
