"""Counting values: the unique ones, how often each occurs, how many fall between edges.

In: tensors. Out: values, int64 counts and positions. The shape of what `unique` gives depends on the values, so it does
not run inside a compiled function; `bincount` does when it is told its length, `histogram` and `digitize` always do.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np

from tracejit import dtypes
from tracejit.errors import TracerError, user_line
from tracejit.ir import Node
from tracejit.ops import core
from tracejit.ops import elementwise as ew
from tracejit.ops.core import cast, composite, full, strong
from tracejit.ops.creation import linspace
from tracejit.ops.indexing import put
from tracejit.ops.movement import along
from tracejit.ops.shaping import flip, ravel
from tracejit.ops.sorting import searchsorted, values_now
from tracejit.tensor import Tensor


class UniqueAll(NamedTuple):
    """What `unique_all` gives."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """What `unique_counts` gives."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What `unique_inverse` gives."""

    values: Tensor
    inverse_indices: Tensor


@composite(numpy=np.unique)
def unique(x: Any, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False,
           axis: int | None = None, *, equal_nan: bool = True, sorted: bool = True) -> Any:
    """The different elements in ascending order (slices along `axis`); with int64 positions and counts if asked.

    >>> [t.tolist() for t in unique([3, 1, 3], return_counts=True)]
    [[1, 3], [1, 2]]
    """
    found: Any = np.unique(values_now("unique", x), return_index, return_inverse, return_counts, axis,  # type: ignore
                           equal_nan=equal_nan)
    return tuple(map(core.constant_tensor, found)) if isinstance(found, tuple) else core.constant_tensor(found)


@composite(numpy=np.unique_all)
def unique_all(x: Any) -> UniqueAll:
    """The different elements, where each first occurs, where each element of `x` is among them, and counts."""
    return UniqueAll(*map(core.constant_tensor, np.unique_all(values_now("unique_all", x))))


@composite(numpy=np.unique_counts)
def unique_counts(x: Any) -> UniqueCounts:
    """The different elements and how often each occurs."""
    return UniqueCounts(*map(core.constant_tensor, np.unique_counts(values_now("unique_counts", x))))


@composite(numpy=np.unique_inverse)
def unique_inverse(x: Any) -> UniqueInverse:
    """The different elements, and where each element of `x` is among them."""
    return UniqueInverse(*map(core.constant_tensor, np.unique_inverse(values_now("unique_inverse", x))))


@composite(numpy=np.unique_values)
def unique_values(x: Any) -> Tensor:
    """The different elements."""
    return core.constant_tensor(np.sort(np.unique_values(values_now("unique_values", x))))


@composite(numpy=np.bincount)
def bincount(x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Tensor:
    """How often each of 0, 1, 2, ... occurs in a vector of integers (or the sum of its weights).

    The result has `length` elements if given (a compiled function needs it), else enough for the largest. IndexError
    for a value outside.

    >>> bincount([0, 2, 2]).tolist()
    [1, 0, 2]
    """
    t = strong(x)
    if t.ndim != 1 or t.dtype.kind not in "biu":
        raise TypeError(f"bincount: needs a vector of integers, got {t.dtype} of shape {t.shape}")
    if length is None:
        if isinstance(t._value, Node):
            raise TracerError(f"bincount: the shape of the result depends on the values of a traced tensor (at "
                              f"{user_line()}); pass length=")
        if t.size and int(t._value.min()) < 0:
            raise ValueError("bincount: values must not be negative")
        length = max(minlength, int(t._value.max()) + 1 if t.size else 0)
    if weights is None:
        w = full(1, t.shape, dtypes.int64)
    else:
        w = strong(weights)
        w = cast(w, dtypes.to_float(w.dtype))
    if w.shape != t.shape:
        raise ValueError(f"bincount: weights of shape {w.shape} for values of shape {t.shape}")
    return put(full(0, (length,), w.dtype), w, (cast(t, dtypes.int64),), (0,), "add")


@composite(numpy=np.digitize)
def digitize(x: Any, bins: Any, right: bool = False) -> Tensor:
    """The int64 number of the bin of each element: i where bins[i-1] <= x < bins[i], or < and <= with `right`.

    >>> digitize([0.5, 1.0, 9.0], [0.0, 1.0, 2.0]).tolist()
    [1, 2, 3]
    """
    edges = strong(bins)
    if isinstance(edges._value, np.ndarray) and edges.size > 1 and edges._value[0] > edges._value[-1]:  # descending
        return edges.size - searchsorted(flip(edges), x, "right" if right else "left")  # type: ignore[return-value]
    return searchsorted(edges, x, "left" if right else "right")


@composite(numpy=np.histogram)
def histogram(x: Any, bins: Any = 10, range: Any = None, density: bool = False,
              weights: Any = None) -> tuple[Tensor, Tensor]:
    """int64 counts (or sums of `weights`) between edges, and the edges: `bins` is their number or the edges themselves.

    The last bin includes its upper edge. With `density` the result integrates to one.

    >>> [t.tolist() for t in histogram([1.0, 2.0, 2.5], bins=2, range=(1, 3))]
    [[1, 2], [1.0, 2.0, 3.0]]
    """
    t = ravel(strong(x))
    if isinstance(bins, str):
        raise TypeError("histogram: bins must be a number or edges; choose them with np.histogram_bin_edges")
    if hasattr(bins, "__index__") and np.ndim(bins) == 0:
        count = operator.index(bins)
        if count < 1:
            raise ValueError(f"histogram: bins must be positive, got {count}")
        low, high = range if range is not None else (t.min(), t.max()) if t.size else (0.0, 1.0)
        dtype = dtypes.to_float(t.dtype)
        low, high = (cast(strong(v), dtype) for v in (low, high))
        same = low == high
        edges = linspace(ew.where(same, low - 0.5, low), ew.where(same, high + 0.5, high), count + 1)
    else:
        edges = strong(bins)
        count = edges.size - 1
        if edges.ndim != 1 or count < 1:
            raise ValueError(f"histogram: edges must be a vector of two or more, got shape {edges.shape}")
    common = dtypes.result_dtype([t.dtype, edges.dtype])
    v, e = cast(t, common), cast(edges, common)
    first, last = along(e, 0, 0, 1), along(e, 0, count, 1)
    inside = (v >= first) & (v <= last)
    place = ew.minimum(ew.maximum(searchsorted(e, v, "right") - 1, 0), count - 1)
    w = full(1, t.shape, dtypes.int64) if weights is None else ravel(strong(weights))
    found = put(full(0, (count,), w.dtype), ew.where(inside, w, 0), (place,), (0,), "add")
    if density:
        widths = along(edges, 0, 1, count) - along(edges, 0, 0, count)
        found = found / found.sum() / widths  # type: ignore[assignment]
    return found, edges


__all__ = [
    "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values", "bincount", "digitize", "histogram",
]
