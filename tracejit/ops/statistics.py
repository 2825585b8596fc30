"""Plain functions made of reductions: means, variances, norms, softmax, and the family that ignores nan.

In: a tensor, axes, keepdims. Out: tensors. Names and arguments follow NumPy and the array API (`correction` is `ddof`).
Order statistics (median, quantile) are in `quantiles.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.ops import core
from tracejit.ops import elementwise as ew
from tracejit.ops.comparison import equal, isnan, not_equal
from tracejit.ops.core import composite, floating, normalize_axes, strong
from tracejit.ops.cumulative import cumprod, cumsum
from tracejit.ops.elementwise import where
from tracejit.ops.linalg import diagonal, product, swapped
from tracejit.ops.marks import stop_gradient
from tracejit.ops.movement import permuted, reshaped
from tracejit.ops.reduction import any as _any
from tracejit.ops.reduction import argmax as _argmax
from tracejit.ops.reduction import argmin as _argmin
from tracejit.ops.reduction import max as _max
from tracejit.ops.reduction import min as _min
from tracejit.ops.reduction import prod as _prod
from tracejit.ops.reduction import sum as _sum
from tracejit.ops.shaping import concat
from tracejit.ops.special import exp, log, pow
from tracejit.tensor import Tensor

INF = math.inf


def _working(x: Any, dtype: Any = None) -> tuple[Tensor, np.dtype]:
    """The operand in the dtype to compute in, and the dtype of the result: floats, float16 in float32."""
    t = strong(x)
    result = floating(t.dtype)[0] if dtype is None else dtypes.as_dtype(dtype)
    return core.cast(t, dtypes.float32 if result == dtypes.float16 else result), result


def _count(t: Tensor, axis: Any) -> int:
    """How many elements one result is made of."""
    n = 1
    for a in normalize_axes("mean", axis, t.ndim):
        n *= t.shape[a]
    return n


def _no_out(name: str, out: Any) -> None:
    if out is not None:
        raise TypeError(f"{name}: tensors are values, so out= is not supported; assign the result")


# -- means and variances -----------------------------------------------------------------------------------------------
@composite(numpy=np.mean, method=True)
def mean(x: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, *,
         where: Any = None) -> Tensor:
    """Arithmetic mean over `axis` (None: all); integers give floats; nan for no elements.

    >>> mean([[1, 2], [3, 5]], axis=0).tolist()
    [2.0, 3.5]
    """
    _no_out("mean", out)
    t, result = _working(x, dtype)
    return core.cast(_mean(t, axis, keepdims, where), result)


def _mean(t: Tensor, axis: Any, keepdims: bool, chosen: Any = None) -> Tensor:
    if chosen is None or chosen is True:
        return _sum(t, axis, keepdims=keepdims) / _count(t, axis)  # type: ignore[operator]
    total = _sum(where(chosen, t, 0), axis, keepdims=keepdims)
    return total / _sum(where(chosen, core.full(1, t.shape, t.dtype), 0), axis, keepdims=keepdims)  # type: ignore[operator]


@composite(numpy=np.var, method=True)
def var(x: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False, *,
        correction: float | None = None, mean: Any = None, where: Any = None) -> Tensor:
    """Variance over `axis` (None: all): squared distances from the mean over n - ddof (or `correction`).

    >>> var([1.0, 2.0, 3.0]).item(), var([1.0, 2.0, 3.0], ddof=1).item()
    (0.6666666865348816, 1.0)
    """
    _no_out("var", out)
    t, result = _working(x, dtype)
    taken = _variance(t, axis, ddof if correction is None else correction, keepdims, mean, where)
    return core.cast(taken, dtypes.real_part(result))


def _variance(t: Tensor, axis: Any, ddof: float, keepdims: bool, centre: Any = None, chosen: Any = None) -> Tensor:
    centre = _mean(t, axis, True, chosen) if centre is None else centre
    away = _squared_size(t - centre)  # type: ignore[operator]
    if chosen is None or chosen is True:
        return _sum(away, axis, keepdims=keepdims) / max(_count(t, axis) - ddof, 0)  # type: ignore[operator]
    count = _sum(where(chosen, core.full(1, away.shape, away.dtype), 0), axis, keepdims=keepdims)
    total = _sum(where(chosen, away, 0), axis, keepdims=keepdims)
    return total / ew.maximum(count - ddof, 0)  # type: ignore[operator]


def _squared_size(t: Tensor) -> Tensor:
    if t.dtype.kind != "c":
        return ew.square(t)
    return ew.square(ew.real(t)) + ew.square(ew.imag(t))


def _root(s: Tensor) -> Tensor:
    """Square root of a sum of squares; at 0 its derivative is taken as 0, the middle of all directions."""
    none = equal(s, 0)
    return where(none, 0, ew.sqrt(where(none, 1, s)))


@composite(numpy=np.std, method=True)
def std(x: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False, *,
        correction: float | None = None, mean: Any = None, where: Any = None) -> Tensor:
    """Standard deviation over `axis`: the root of `var`; its derivative where all elements are equal is 0.

    >>> std([1.0, 3.0]).item()
    1.0
    """
    _no_out("std", out)
    t, result = _working(x, dtype)
    taken = _variance(t, axis, ddof if correction is None else correction, keepdims, mean, where)
    return core.cast(_root(taken), dtypes.real_part(result))


@composite(numpy=np.average)
def average(x: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False) -> Any:
    """Weighted mean over `axis`; with `returned` also the sum of the weights.

    >>> average([1.0, 2.0, 4.0], weights=[1, 1, 2]).item()
    2.75
    """
    t = strong(x)
    if weights is None:
        found = mean(t, axis, keepdims=keepdims)
        return (found, core.full(_count(t, axis), found.shape, found.dtype)) if returned else found
    w = strong(weights)
    if w.shape != t.shape:
        axes = normalize_axes("average", axis, t.ndim)
        if axis is None or w.shape != tuple(t.shape[a] for a in axes):
            raise ValueError(f"average: weights of shape {w.shape} fit neither {t.shape} nor axis {axis}")
        w = reshaped(w, tuple(n if a in axes else 1 for a, n in enumerate(t.shape)))
    weighted = core.cast(t, floating(t.dtype)[0]) * w
    w = core.broadcast_to(core.cast(w, weighted.dtype), t.shape)
    total = _sum(w, axis, keepdims=keepdims)
    found = _sum(weighted, axis, keepdims=keepdims) / total  # type: ignore[operator]
    return (found, total) if returned else found


@composite(numpy=np.ptp)
def ptp(x: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Tensor:
    """Largest minus smallest element over `axis`."""
    _no_out("ptp", out)
    return _max(x, axis, keepdims=keepdims) - _min(x, axis, keepdims=keepdims)  # type: ignore[operator]


@composite(numpy=np.count_nonzero)
def count_nonzero(x: Any, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    """How many elements over `axis` are not zero, int64.

    >>> count_nonzero([[0, 1], [2, 3]], axis=1).tolist()
    [1, 2]
    """
    return _sum(not_equal(x, 0), axis, dtypes.int64, keepdims=keepdims)


@composite(numpy=np.cov)
def cov(m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None, fweights: Any = None,
        aweights: Any = None, *, dtype: Any = None) -> Tensor:
    """Covariances of the rows of `m` (and `y`), or of the columns if not `rowvar`: a matrix, a number for one row.

    Divided by n - ddof; ddof is 1, or 0 with `bias`. fweights: how often each observation counts; aweights: how much.

    >>> cov([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    t, result = _observations("cov", m, y, rowvar, dtype)
    if ddof is None:
        ddof = 0 if bias else 1
    if fweights is None and aweights is None:
        away, divisor = t - mean(t, 1, keepdims=True), max(t.shape[1] - ddof, 0)  # type: ignore[operator]
        weighed = away
    else:
        given = [core.cast(strong(w), dtypes.real_part(t.dtype)) for w in (fweights, aweights) if w is not None]
        w = given[0] * given[1] if len(given) == 2 else given[0]  # type: ignore[operator]
        if w.shape != t.shape[1:]:
            raise ValueError(f"cov: weights of shape {w.shape} for {t.shape[1]} observations")
        total = _sum(w)
        away = t - _sum(t * w, 1, keepdims=True) / total  # type: ignore[operator]
        weighed = away * w  # type: ignore[operator]
        lost = ddof if aweights is None else ddof * _sum(w * given[-1]) / total  # type: ignore[operator]
        divisor = ew.maximum(total - lost, 0)
    other = swapped(weighed)
    found = product(away, ew.conj(other) if t.dtype.kind == "c" else other) / divisor  # type: ignore[operator]
    return core.cast(reshaped(found, ()) if found.shape == (1, 1) else found, result)


def _observations(name: str, m: Any, y: Any, rowvar: bool, dtype: Any) -> tuple[Tensor, np.dtype]:
    """A matrix with a row for each variable and a column for each observation."""
    parts = []
    for x in (m,) if y is None else (m, y):
        t = strong(x)
        if t.ndim > 2:
            raise ValueError(f"{name}: needs vectors or matrices, got shape {t.shape}")
        t = reshaped(t, (1, t.size)) if t.ndim < 2 else t
        parts.append(t if rowvar or t.shape[0] == 1 else swapped(t))
    both = parts[0] if y is None else concat(parts)
    return _working(both, dtype)


@composite(numpy=np.corrcoef)
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Tensor:
    """Correlations of the rows of `x` (and `y`), or of the columns if not `rowvar`, between -1 and 1.

    >>> corrcoef([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    c = cov(x, y, rowvar, dtype=dtype)
    if not c.ndim:
        return c / c  # type: ignore[operator]
    size = ew.sqrt(ew.real(diagonal(c)))
    found = c / reshaped(size, (size.size, 1)) / size  # type: ignore[operator]
    if found.dtype.kind == "c":
        return ew.make_complex(*(ew.clip(part, -1, 1) for part in (ew.real(found), ew.imag(found))))
    return ew.clip(found, -1, 1)


# -- sums of exponentials ----------------------------------------------------------------------------------------------
def _peak(t: Tensor, axis: Any) -> Tensor:
    """The finite number to subtract before exponentials: the largest element, with no derivative of its own."""
    peak = stop_gradient(_max(t, axis, keepdims=True))
    return where(ew.abs(peak) == INF, 0, peak)


def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over `axis` (None: all), without overflow; -inf where all elements are -inf, or there are none.

    >>> logsumexp([1000.0, 1000.0]).item()
    1000.6931762695312
    """
    t, result = _working(x)
    axes = normalize_axes("logsumexp", axis, t.ndim)
    if any(t.shape[a] == 0 for a in axes):
        found = log(_sum(t, axes, keepdims=True))  # log(0) where there is nothing to add
    else:
        peak = _peak(t, axes)
        total = _sum(exp(t - peak), axes, keepdims=True)  # type: ignore[operator]
        none = equal(total, 0)
        found = where(none, -INF, log(where(none, 1, total))) + peak
    kept = tuple(n for a, n in enumerate(found.shape) if keepdims or a not in axes)
    return core.cast(reshaped(found, kept), result)


def softmax(x: Any, axis: Any = -1) -> Tensor:
    """exp(x) over its sum along `axis`, without overflow.

    >>> softmax([0.0, 0.0]).tolist()
    [0.5, 0.5]
    """
    t, result = _working(x)
    e = exp(t - _peak(t, axis)) if t.size else t  # type: ignore[operator]
    return core.cast(e / _sum(e, axis, keepdims=True), result)  # type: ignore[operator]


def log_softmax(x: Any, axis: Any = -1) -> Tensor:
    """log(softmax(x)) along `axis`, without overflow.

    >>> log_softmax([0.0, 0.0]).tolist()
    [-0.6931471824645996, -0.6931471824645996]
    """
    t, result = _working(x)
    if not t.size:
        return core.cast(t, result)
    away = t - _peak(t, axis)  # type: ignore[operator]
    return core.cast(away - log(_sum(exp(away), axis, keepdims=True)), result)  # type: ignore[operator]


# -- norms -------------------------------------------------------------------------------------------------------------
@composite(numpy=np.linalg.norm)
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Norm of vectors (axis an int, or one dim) or matrices (axis a pair, or two dims), as numpy.linalg.norm.

    None: the root of the sum of squares, of any shape. Vectors: any number, inf, -inf, 0. Matrices: "fro", 1, -1, inf,
    -inf. The derivative at 0 is 0.

    >>> norm([3.0, 4.0]).item(), norm([[3.0, 4.0], [6.0, 8.0]], axis=1).tolist()
    (5.0, [5.0, 10.0])
    """
    t, result = _working(x)
    ord = ord.item() if isinstance(ord, Tensor) else ord
    axes = normalize_axes("norm", axis, t.ndim)
    if ord is None or (ord == 2 and len(axes) == 1) or (ord == "fro" and len(axes) == 2):
        found = _root(_sum(_squared_size(t), axes, keepdims=keepdims))
    elif len(axes) == 1:
        found = _vector_norm(t, ord, axes[0], keepdims)
    elif len(axes) == 2:
        given = axes if axis is None else tuple(a % t.ndim for a in axis)
        found = _matrix_norm(t, ord, given[0], given[1], keepdims)
    else:
        raise ValueError(f"norm: ord={ord!r} needs one or two dims, got axis {axis} of shape {t.shape}")
    return core.cast(found, dtypes.real_part(result))


def _vector_norm(t: Tensor, ord: Any, axis: int, keepdims: bool) -> Tensor:
    size = ew.abs(t)
    if ord == INF:
        return _max(size, axis, keepdims=keepdims, initial=None if t.shape[axis] else 0)
    if ord == -INF:
        return _min(size, axis, keepdims=keepdims)
    if ord == 0:
        return _sum(core.cast(size != 0, size.dtype), axis, keepdims=keepdims)
    if ord == 1:
        return _sum(size, axis, keepdims=keepdims)
    if not isinstance(ord, (int, float)):
        raise ValueError(f"norm: ord={ord!r} is not a norm of vectors")
    total = _sum(pow(size, ord), axis, keepdims=keepdims)
    if ord < 0:
        return pow(total, 1 / ord)
    none = equal(total, 0)
    return where(none, 0, pow(where(none, 1, total), 1 / ord))


def _matrix_norm(t: Tensor, ord: Any, row: int, column: int, keepdims: bool) -> Tensor:
    along = {1: row, -1: row, INF: column, -INF: column}.get(ord)
    if along is None:
        raise ValueError(f"norm: ord={ord!r} of matrices needs singular values; supported: 'fro', 1, -1, inf, -inf")
    sums = _sum(ew.abs(t), along, keepdims=True)
    found = (_max if ord > 0 else _min)(sums, (row, column), keepdims=True)
    kept = tuple(n for a, n in enumerate(found.shape) if keepdims or a not in (row, column))
    return reshaped(found, kept)


def vector_norm(x: Any, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Tensor:
    """Norm of the elements over `axis` (None: all; several axes count as one), as the array API's linalg.vector_norm.

    >>> vector_norm([[3.0, 0.0], [0.0, 4.0]]).item()
    5.0
    """
    t = strong(x)
    axes = normalize_axes("vector_norm", axis, t.ndim)
    rest = tuple(a for a in range(t.ndim) if a not in axes)
    flat = reshaped(permuted(t, (*rest, *axes)), (*(t.shape[a] for a in rest), _count(t, axes)))
    found = norm(flat, ord, axis=-1)
    return reshaped(found, tuple(1 if a in axes else n for a, n in enumerate(t.shape))) if keepdims else found


def matrix_norm(x: Any, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """Norm of the matrices in the last two dims, as the array API's linalg.matrix_norm."""
    return norm(x, ord, axis=(-2, -1), keepdims=keepdims)


# -- the family that ignores nan ---------------------------------------------------------------------------------------
def _without_nan(x: Any, value: Any) -> tuple[Tensor, Tensor | None]:
    """`x` with `value` in place of nan, and where the numbers are (None: everywhere)."""
    t = strong(x)
    if t.dtype.kind not in "fc":
        return t, None
    bad = isnan(t)
    return where(bad, value, t), ~bad  # type: ignore[operator]


@composite(numpy=np.nansum)
def nansum(x: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Tensor:
    """`sum` of the elements that are numbers."""
    return _sum(_without_nan(x, 0)[0], axis, dtype, out, keepdims)


@composite(numpy=np.nanprod)
def nanprod(x: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Tensor:
    """`prod` of the elements that are numbers."""
    return _prod(_without_nan(x, 1)[0], axis, dtype, out, keepdims)


@composite(numpy=np.nanmean)
def nanmean(x: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Tensor:
    """`mean` of the elements that are numbers; nan where there is none.

    >>> nanmean([1.0, float("nan"), 3.0]).item()
    2.0
    """
    t, numbers = _without_nan(x, 0)
    return mean(t, axis, dtype, out, keepdims, where=numbers)


@composite(numpy=np.nanvar)
def nanvar(x: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False, *,
           correction: float | None = None) -> Tensor:
    """`var` of the elements that are numbers; nan where there are not enough."""
    t, numbers = _without_nan(x, 0)
    return var(t, axis, dtype, out, ddof, keepdims, correction=correction, where=numbers)


@composite(numpy=np.nanstd)
def nanstd(x: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False, *,
           correction: float | None = None) -> Tensor:
    """`std` of the elements that are numbers; nan where there are not enough."""
    t, numbers = _without_nan(x, 0)
    return std(t, axis, dtype, out, ddof, keepdims, correction=correction, where=numbers)


@composite(numpy=np.nancumsum)
def nancumsum(x: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Tensor:
    """`cumsum` with nan taken as 0.

    >>> nancumsum([1.0, float("nan"), 3.0]).tolist()
    [1.0, 1.0, 4.0]
    """
    return cumsum(_without_nan(x, 0)[0], axis, dtype, out)


@composite(numpy=np.nancumprod)
def nancumprod(x: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Tensor:
    """`cumprod` with nan taken as 1."""
    return cumprod(_without_nan(x, 1)[0], axis, dtype, out)


def _nan_extreme(x: Any, axis: Any, keepdims: bool, find: Any, beyond: float) -> Tensor:
    t, numbers = _without_nan(x, beyond)
    found = find(t, axis, keepdims=keepdims)
    return found if numbers is None else where(_any(numbers, axis, keepdims=keepdims), found, math.nan)


@composite(numpy=np.nanmax)
def nanmax(x: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Tensor:
    """`max` of the elements that are numbers; nan where there is none."""
    _no_out("nanmax", out)
    return _nan_extreme(x, axis, keepdims, _max, -INF)


@composite(numpy=np.nanmin)
def nanmin(x: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Tensor:
    """`min` of the elements that are numbers; nan where there is none."""
    _no_out("nanmin", out)
    return _nan_extreme(x, axis, keepdims, _min, INF)


@composite(numpy=np.nanargmax)
def nanargmax(x: Any, axis: Any = None, out: None = None, *, keepdims: bool = False) -> Tensor:
    """Position of the first largest number; 0 where all are nan."""
    _no_out("nanargmax", out)
    return _argmax(_without_nan(x, -INF)[0], axis, keepdims=keepdims)


@composite(numpy=np.nanargmin)
def nanargmin(x: Any, axis: Any = None, out: None = None, *, keepdims: bool = False) -> Tensor:
    """Position of the first smallest number; 0 where all are nan."""
    _no_out("nanargmin", out)
    return _argmin(_without_nan(x, INF)[0], axis, keepdims=keepdims)


__all__ = [
    "average", "corrcoef", "count_nonzero", "cov", "log_softmax", "logsumexp", "matrix_norm", "mean", "nanargmax",
    "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmin", "nanprod", "nanstd", "nansum", "nanvar",
    "norm", "ptp", "softmax", "std", "var", "vector_norm",
]
