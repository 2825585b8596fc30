"""Order statistics: median, quantile and percentile, and their versions that ignore nan.

In: a tensor, positions in [0, 1], axes. Out: tensors. They sort, then pick; the derivative follows the picked elements.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.ops import core
from tracejit.ops import elementwise as ew
from tracejit.ops.comparison import isnan
from tracejit.ops.core import composite, floating, normalize_axes, strong
from tracejit.ops.movement import along, permuted, reshaped
from tracejit.ops.reduction import sum as _sum
from tracejit.ops.selection import take_along_axis
from tracejit.ops.sorting import sort
from tracejit.tensor import Tensor

METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


def _rows(t: Tensor, axes: tuple[int, ...]) -> Tensor:
    """`t` with the reduced axes as one last dim."""
    rest = tuple(a for a in range(t.ndim) if a not in axes)
    return reshaped(permuted(t, (*rest, *axes)), (*(t.shape[a] for a in rest), math.prod(t.shape[a] for a in axes)))


def _pick(ordered: Tensor, place: Tensor, method: str) -> Tensor:
    """The element of each sorted row at a fractional `place` (one for each row, last dim 1)."""
    low = ew.floor(place)
    if method == "higher":
        low = ew.ceil(place)
    elif method == "nearest":
        low = ew.rint(place)
    first = take_along_axis(ordered, core.cast(low, dtypes.int64), axis=-1)
    if method in ("lower", "higher", "nearest"):
        return first
    second = take_along_axis(ordered, core.cast(ew.ceil(place), dtypes.int64), axis=-1)
    weight = core.cast(place - low, ordered.dtype)  # type: ignore[operator]
    if method == "midpoint":
        weight = ew.where(weight == 0, 0, 0.5)
    # an infinite neighbour counts only with its weight
    return ew.where(weight == 0, first, first + ew.mul_zero(weight, second - first))  # type: ignore[operator]


def _quantile(name: str, x: Any, q: Any, axis: Any, keepdims: bool, method: str, ignore_nan: bool) -> Tensor:
    if method not in METHODS:
        raise ValueError(f"{name}: method {method!r} is not one of {', '.join(METHODS)}")
    t = strong(x)
    if t.dtype.kind == "c":
        raise TypeError(f"{name}: complex numbers have no order")
    result = floating(t.dtype)[0]
    axes = normalize_axes(name, axis, t.ndim)
    rows = _rows(core.cast(t, result), axes)
    n = rows.shape[-1]
    if not isinstance(q, Tensor):
        q = np.asarray(q, np.float64)
        if not (0 <= np.min(q, initial=0) and np.max(q, initial=1) <= 1):
            raise ValueError(f"{name}: positions must lie in [0, 1]")
    positions = core.cast(strong(q), dtypes.float64)
    kept = tuple(1 if a in axes else m for a, m in enumerate(t.shape) if keepdims or a not in axes)
    if n == 0:
        return core.full(math.nan, (*positions.shape, *kept), result)
    ordered = sort(rows, axis=-1)  # nan comes last
    numbers = _sum(core.cast(~isnan(rows), dtypes.int64), -1, keepdims=True)  # type: ignore[operator]
    last: Any = ew.maximum(numbers, 1) - 1 if ignore_nan else n - 1  # type: ignore[operator]
    # one more leading dim for the positions
    flat = reshaped(positions, (positions.size, *(1,) * ordered.ndim))
    place = flat * last
    stacked = core.broadcast_to(ordered, (positions.size, *ordered.shape))
    found = _pick(stacked, place, method)
    missing = numbers == 0 if ignore_nan else numbers < n
    found = ew.where(missing, math.nan, found)
    return reshaped(found, (*positions.shape, *kept))


@composite(numpy=np.quantile)
def quantile(x: Any, q: Any, axis: Any = None, out: None = None, *, method: str = "linear",
             keepdims: bool = False) -> Tensor:
    """The value below which the part `q` of the elements over `axis` lies; for several q they are the leading dims.

    method: "linear", "lower", "higher", "midpoint" or "nearest". nan if an element is. ValueError for q outside [0, 1].

    >>> quantile([1.0, 2.0, 4.0], 0.75).item(), quantile([1.0, 2.0, 4.0], [0.0, 0.5]).tolist()
    (3.0, [1.0, 2.0])
    """
    return _quantile("quantile", x, q, axis, keepdims, method, ignore_nan=False)


@composite(numpy=np.percentile)
def percentile(x: Any, q: Any, axis: Any = None, out: None = None, *, method: str = "linear",
               keepdims: bool = False) -> Tensor:
    """`quantile` of q in percent."""
    return quantile(x, _hundredth(q), axis, method=method, keepdims=keepdims)


@composite(numpy=np.nanquantile)
def nanquantile(x: Any, q: Any, axis: Any = None, out: None = None, *, method: str = "linear",
                keepdims: bool = False) -> Tensor:
    """`quantile` of the elements that are numbers; nan where there is none."""
    return _quantile("nanquantile", x, q, axis, keepdims, method, ignore_nan=True)


@composite(numpy=np.nanpercentile)
def nanpercentile(x: Any, q: Any, axis: Any = None, out: None = None, *, method: str = "linear",
                  keepdims: bool = False) -> Tensor:
    """`nanquantile` of q in percent."""
    return nanquantile(x, _hundredth(q), axis, method=method, keepdims=keepdims)


def _hundredth(q: Any) -> Any:
    return core.cast(strong(q), dtypes.float64) / 100 if isinstance(q, Tensor) else np.asarray(q, np.float64) / 100


@composite(numpy=np.median)
def median(x: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Tensor:
    """The middle element over `axis` (None: all), or the mean of the two; nan if an element is.

    >>> median([3.0, 1.0, 2.0]).item(), median([[1, 2], [3, 5]], axis=1).tolist()
    (2.0, [1.5, 4.0])
    """
    t = strong(x)
    axes = normalize_axes("median", axis, t.ndim)
    kept = tuple(1 if a in axes else m for a, m in enumerate(t.shape) if keepdims or a not in axes)
    result = floating(t.dtype)[0]
    rows = _rows(core.cast(t, result), axes)
    n = rows.shape[-1]
    if n == 0:
        return core.full(math.nan, kept, result)
    ordered = sort(rows, axis=-1)
    d = rows.ndim - 1
    low, high, last = (along(ordered, d, k, 1) for k in ((n - 1) // 2, n // 2, n - 1))
    middle = low if n % 2 else low * 0.5 + high * 0.5  # type: ignore[operator]
    return reshaped(ew.where(isnan(last), math.nan, middle), kept)


@composite(numpy=np.nanmedian)
def nanmedian(x: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Tensor:
    """`median` of the elements that are numbers; nan where there is none."""
    return nanquantile(x, 0.5, axis, keepdims=keepdims)


__all__ = ["median", "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile"]
