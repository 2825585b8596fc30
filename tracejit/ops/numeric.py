"""Small numerical functions of NumPy made of ops: interpolation, integrals, slopes, filters, polynomials, choices, flat
indices.

In: tensors. Out: tensors; all of them trace and differentiate.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.ops import core
from tracejit.ops import elementwise as ew
from tracejit.ops.core import as_tensor, cast, composite, normalize_axis, strong
from tracejit.ops.cumulative import cumsum, diff
from tracejit.ops.indexing import pick
from tracejit.ops.linalg import dot, promoted
from tracejit.ops.movement import along, embed, joined, reshaped, shape_of
from tracejit.ops.reduction import sum as _sum
from tracejit.ops.shaping import concat, flip, ravel, split, unstack
from tracejit.ops.sorting import searchsorted
from tracejit.ops.windows import windows
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


# -- differences and filters -------------------------------------------------------------------------------------------
@composite(numpy=np.gradient)
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Slopes of sampled values along `axis` (None: each dim): a tensor for one axis, a tuple for several.

    varargs: the distance between samples, or their coordinates (a vector), for all axes or for each; 1 if left out.
    Inside second-order central differences; at both ends one-sided ones of order `edge_order` (1 or 2).

    >>> gradient([1.0, 2.0, 4.0, 7.0]).tolist()
    [1.0, 1.5, 2.5, 3.0]
    """
    t = strong(f)
    t = cast(t, dtypes.to_float(t.dtype))
    given = tuple(range(t.ndim)) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = [normalize_axis("gradient", a, t.ndim) for a in given]
    if len(set(axes)) != len(axes):
        raise ValueError(f"gradient: axis {axis} repeats a dim")
    if len(varargs) not in (0, 1, len(axes)):
        raise TypeError(f"gradient: {len(varargs)} spacings for {len(axes)} axes")
    if edge_order not in (1, 2):
        raise ValueError(f"gradient: edge_order must be 1 or 2, got {edge_order}")
    spacings = varargs or (1,)
    spacings = spacings * len(axes) if len(spacings) == 1 else spacings
    found = tuple(_slope(t, k, s, edge_order) for k, s in zip(axes, spacings))
    return found[0] if len(axes) == 1 else found


def _slope(t: Tensor, k: int, spacing: Any, edge_order: int) -> Tensor:
    """Differences along dim k over the distances between samples."""
    n = t.shape[k]
    if n < edge_order + 1:
        raise ValueError(f"gradient: axis {k} of shape {t.shape} needs at least {edge_order + 1} samples")
    steps: Any = along(t, k, 1, n - 1) - along(t, k, 0, n - 1)  # type: ignore[operator]
    width: Any = spacing
    if np.ndim(spacing):
        s = strong(spacing)
        if s.shape != (n,):
            raise ValueError(f"gradient: coordinates of shape {s.shape} for axis {k} of shape {t.shape}")
        width = cast(along(s, 0, 1, n - 1) - along(s, 0, 0, n - 1), t.dtype)  # type: ignore[operator]
        width = reshaped(width, tuple(n - 1 if a == k else 1 for a in range(t.ndim)))
    slopes = steps / width
    left, right = along(slopes, k, 0, n - 2), along(slopes, k, 1, n - 2)
    if np.ndim(spacing):  # each side counts by the distance to the other one
        before, after = along(width, k, 0, n - 2), along(width, k, 1, n - 2)
        inner = (left * after + right * before) / (before + after)  # type: ignore[operator]
    else:
        inner = (along(t, k, 2, n - 2) - along(t, k, 0, n - 2)) / (width * 2)  # type: ignore[operator]
    ends: list[Any] = [along(slopes, k, 0, 1), along(slopes, k, n - 2, 1)]
    if edge_order == 2:  # the slope goes on changing as it does from the second interval to the last one
        for side, (last, other) in enumerate(((0, 1), (n - 2, n - 3))):
            share: Any = 0.5
            if np.ndim(spacing):
                share = along(width, k, last, 1) / (along(width, k, last, 1) + along(width, k, other, 1))
            ends[side] = ends[side] + (ends[side] - along(slopes, k, other, 1)) * share
    return joined([ends[0], inner, ends[1]], k)


@composite(numpy=np.convolve)
def convolve(a: Any, v: Any, mode: str = "full") -> Tensor:
    """The convolution of two vectors: sums of a[k] * v[n - k].

    mode: "full" (wherever they overlap), "same" (as many as the longer has) or "valid" (where the shorter lies within).

    >>> convolve([1, 2, 3], [0, 1, 2]).tolist()
    [0, 1, 4, 7, 6]
    """
    a, v = promoted("convolve", a, v)
    return _filtered("convolve", a, v, mode)


@composite(numpy=np.correlate)
def correlate(a: Any, v: Any, mode: str = "valid") -> Tensor:
    """The correlation of two vectors: sums of a[n + k] * conj(v[n]); modes as `convolve`.

    >>> correlate([1, 2, 3], [0, 1, 2], "same").tolist()
    [5, 8, 3]
    """
    a, v = promoted("correlate", a, v)
    v = flip(ew.conj(v) if v.dtype.kind == "c" else v)
    return _filtered("correlate", a, v, mode, from_the_end=v.size > a.size)


def _filtered(name: str, a: Tensor, v: Tensor, mode: str, from_the_end: bool = False) -> Tensor:
    """A product of the windows of the longer vector with the shorter one backwards."""
    a, v = (reshaped(t, (1,)) if not t.ndim else t for t in (a, v))
    if a.ndim != 1 or v.ndim != 1 or not a.size or not v.size:
        raise ValueError(f"{name}: needs two vectors that are not empty, got shapes {a.shape} and {v.shape}")
    long, short = (a, v) if a.size >= v.size else (v, a)
    m = short.size
    around = {"full": (m - 1, m - 1), "valid": (0, 0), "same": (m // 2, (m - 1) // 2)}.get(mode)
    if around is None:
        raise ValueError(f"{name}: mode must be full, same or valid, got {mode!r}")
    before, after = around[::-1] if from_the_end else around
    wide = embed(long, (before + long.size + after,), (before,))
    return dot(windows(wide, 0, (m,), (1,), (1,)), flip(short))


@composite(numpy=np.ediff1d)
def ediff1d(x: Any, to_end: Any = None, to_begin: Any = None) -> Tensor:
    """Differences of neighbours among all elements in row-major order, between `to_begin` and `to_end`.

    >>> ediff1d([1, 4, 9], to_begin=0).tolist()
    [0, 3, 5]
    """
    t = ravel(x)
    ends = [ravel(cast(strong(e), t.dtype)) if e is not None else None for e in (to_begin, to_end)]
    return concat([p for p in (ends[0], diff(t), ends[1]) if p is not None])


@composite(numpy=np.unwrap)
def unwrap(p: Any, discont: Any = None, axis: int = -1, *, period: Any = 2 * math.pi) -> Tensor:
    """`p` with whole periods added, so that neighbours along `axis` differ by at most half of one.

    Differences below `discont` stay as they are.

    >>> unwrap([0, 3, 6, 2, 5], period=7).tolist()
    [0, 3, 6, 9, 12]
    """
    t = strong(p)
    k = normalize_axis("unwrap", axis, t.ndim)
    away: Any = diff(t, axis=k)
    whole = (away * period).dtype.kind in "iu"
    high = period // 2 if whole else period / 2
    moved: Any = (away + high) % period - high
    if not whole or period % 2 == 0:  # half a period up is not half a period down
        moved = ew.where((moved == -high) & (away > 0), high, moved)
    added = ew.where(ew.abs(away) < (high if discont is None else discont), 0, moved - away)
    first, rest = along(t, k, 0, min(1, t.shape[k])), along(t, k, min(1, t.shape[k]), max(t.shape[k] - 1, 0))
    return concat([first, rest + cumsum(added, k)], k)  # type: ignore[operator]


# -- polynomials and choices -------------------------------------------------------------------------------------------
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


@composite(numpy=np.vander)
def vander(x: Any, N: int | None = None, increasing: bool = False) -> Tensor:
    """Powers of the elements of a vector, `N` of them (as many as elements) in each row, the highest first.

    >>> vander([2, 3], 3).tolist()
    [[4, 2, 1], [9, 3, 1]]
    """
    t = strong(x)
    if t.ndim != 1:
        raise ValueError(f"vander: needs a vector, got shape {t.shape}")
    n = t.size if N is None else operator.index(N)
    powers = np.arange(n, dtype=np.int32)
    return reshaped(t, (t.size, 1)) ** (powers if increasing else powers[::-1])  # type: ignore[operator]


@composite(numpy=np.piecewise)
def piecewise(x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Tensor:
    """For each element, what the function (or number) of the last condition that holds there gives; in x's dtype.

    One more function than conditions: it counts where none holds, else that is 0. Functions see all of `x`, and what
    they give elsewhere is left out.

    >>> x = np.array([-2.0, 0.0, 3.0])
    >>> piecewise(x, [x < 0, x > 0], [lambda v: -v, 9.0]).tolist()
    [2.0, 0.0, 9.0]
    """
    t = strong(x)
    nested = isinstance(condlist, (list, tuple)) or as_tensor(condlist).ndim > t.ndim
    conditions = [*condlist] if nested else [condlist]
    if len(funclist) not in (len(conditions), len(conditions) + 1):
        raise ValueError(f"piecewise: {len(funclist)} functions for {len(conditions)} conditions")

    def value(f: Any) -> Tensor:
        return core.broadcast_to(cast(strong(f(t, *args, **kw) if callable(f) else f), t.dtype), t.shape)

    found = value(funclist[-1]) if len(funclist) > len(conditions) else core.full(0, t.shape, t.dtype)
    for condition, f in zip(conditions, funclist):
        found = ew.where(condition, value(f), found)
    return found


@composite(numpy=np.modf)
def modf(x: Any) -> tuple[Tensor, Tensor]:
    """The parts after and before the point, both with the sign of x.

    >>> [t.tolist() for t in modf([-1.5, 2.0])]
    [[-0.5, 0.0], [-1.0, 2.0]]
    """
    t = strong(x)
    t = cast(t, dtypes.to_float(t.dtype))
    whole = ew.trunc(t)
    return ew.copysign(ew.where(whole == t, 0, t - whole), t), whole  # type: ignore[operator]


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
    "interp", "trapezoid", "gradient", "convolve", "correlate", "ediff1d", "unwrap", "polyval", "vander", "piecewise",
    "modf", "select", "unravel_index", "ravel_multi_index", "tril_indices", "triu_indices",
    "hsplit", "vsplit", "dsplit",
]
