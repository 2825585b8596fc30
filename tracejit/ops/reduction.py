"""Reduction primitives, one declaration each.

In: a tensor and axes. Out: one public function per op. See `core.reduction` for the fields; mean, var, norm and friends
are made of these in `statistics.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.ir import Reduction
from tracejit.lower import scalar
from tracejit.ops import core
from tracejit.ops import elementwise as ew
from tracejit.ops.comparison import equal
from tracejit.ops.comparison import logical_and as _and
from tracejit.ops.comparison import logical_or as _or
from tracejit.ops.core import logical, real_ordered, reduction
from tracejit.ops.movement import along, embed, joined, permuted, reshaped
from tracejit.tensor import Tensor, apply

Axes = tuple[int, ...]


def summing(d: np.dtype) -> tuple[np.dtype, np.dtype]:
    """Integers narrower than the default int are widened to it; float16 is summed in float32."""
    d = dtypes.float32 if d == dtypes.float16 else dtypes.sum_dtype(d)
    return d, d


def position(d: np.dtype) -> tuple[np.dtype, np.dtype]:
    """An int64 index of real elements."""
    return real_ordered(d)[0], dtypes.int64


def spread(g: Tensor, x: Tensor, axis: Axes) -> Tensor:
    """A reduced tensor repeated over the reduced axes of `x`."""
    kept = tuple(1 if a in axis else n for a, n in enumerate(x.shape))
    return core.broadcast_to(apply(core.RESHAPE, (g,), {"shape": kept}), x.shape)


# -- sums and products -------------------------------------------------------------------------------------------------
sum = reduction("sum", dtype=summing, eager=lambda x, *, axis: np.sum(x, axis=axis, dtype=x.dtype),
                reduce=Reduction("add"), vjp=lambda g, y, x, *, axis: (spread(g, x, axis),), linear=True, identity=0,
                combine=ew.add, accumulates=True, domain=(-2, 2), numpy=(np.sum, (np.add, "reduce")),
                doc="""Sum over `axis` (None: all; an int or a tuple). Integers narrower than the default int give it.

    `dtype` is the dtype to sum in, `initial` is added, `where` chooses the elements.

    >>> sum([[1, 2], [3, 4]], axis=0).tolist()
    [4, 6]
    """)
core.provide(SUM=sum)


def _others(t: Tensor) -> Tensor:
    """For each element of the last axis the product of all others: by pairs, so that zeros need no division."""
    n = t.shape[-1]
    if n <= 1:
        return core.full(1, t.shape, t.dtype)
    last, half = t.ndim - 1, (n + 1) // 2
    even, odd = along(t, last, 0, half, 2), along(t, last, 1, n // 2, 2)
    odd = embed(odd, even.shape, (0,) * t.ndim, value=1)
    pairs = _others(even * odd)  # type: ignore[operator]
    both = [reshaped(pairs * other, (*even.shape, 1)) for other in (odd, even)]  # type: ignore[operator]
    return along(reshaped(joined(both, last + 1), (*t.shape[:-1], 2 * half)), last, 0, n)


def _product_of_others(x: Tensor, axis: Axes) -> Tensor:
    """`_others` over several axes taken as one."""
    order = (*(a for a in range(x.ndim) if a not in axis), *axis)
    moved = permuted(x, order)
    kept = x.ndim - len(axis)
    flat = reshaped(moved, (*moved.shape[:kept], math.prod(moved.shape[kept:])))
    found = reshaped(_others(flat), moved.shape)
    return permuted(found, tuple(int(a) for a in np.argsort(order)))


def _prod_vjp(g: Tensor, y: Tensor, x: Tensor, *, axis: Axes) -> tuple[Tensor]:
    others = _product_of_others(x, axis)
    return (ew.mul_zero(spread(g, x, axis), ew.conj(others) if x.dtype.kind == "c" else others),)


def _prod_jvp(tangents: tuple[Tensor], y: Tensor, x: Tensor, *, axis: Axes) -> Tensor:
    return sum(ew.mul_zero(tangents[0], _product_of_others(x, axis)), axis=axis)


prod = reduction("prod", dtype=summing, eager=lambda x, *, axis: np.prod(x, axis=axis, dtype=x.dtype),
                 reduce=Reduction("mul"), vjp=_prod_vjp, jvp=_prod_jvp, identity=1, combine=ew.multiply,
                 accumulates=True, domain=(0.5, 1.5), numpy=(np.prod, (np.multiply, "reduce")),
                 doc="""Product over `axis` (None: all; an int or a tuple); dtypes as `sum`.

    >>> prod([[1, 2], [3, 4]], axis=1).tolist()
    [2, 12]
    """)


# -- extremes ----------------------------------------------------------------------------------------------------------
def _ties(y: Tensor, x: Tensor, axis: Axes) -> tuple[Tensor, Tensor]:
    """Where x is the extreme, and how many such elements share each result."""
    ties = equal(x, spread(y, x, axis))
    return ties, sum(core.cast(ties, x.dtype), axis=axis)


def _extreme_vjp(g: Tensor, y: Tensor, x: Tensor, *, axis: Axes) -> tuple[Tensor]:
    ties, count = _ties(y, x, axis)
    return (ew.where(ties, spread(g / count, x, axis), 0),)  # type: ignore[operator]


def _extreme_jvp(tangents: tuple[Tensor], y: Tensor, x: Tensor, *, axis: Axes) -> Tensor:
    ties, count = _ties(y, x, axis)
    return sum(ew.where(ties, tangents[0], 0), axis=axis) / count  # type: ignore[operator]


def lowest(d: np.dtype) -> Any:
    return False if d.kind == "b" else float("-inf") if d.kind == "f" else int(np.iinfo(d).min)


def highest(d: np.dtype) -> Any:
    return True if d.kind == "b" else float("inf") if d.kind == "f" else int(np.iinfo(d).max)


max = reduction("max", dtype=real_ordered, eager=lambda x, *, axis: np.max(x, axis=axis), reduce=Reduction("max"),
                vjp=_extreme_vjp, jvp=_extreme_jvp, nonempty=True, identity=lowest, combine=ew.maximum,
                domain=(-2, 2), numpy=(np.max, np.amax, (np.maximum, "reduce")),
                doc="""Largest element over `axis` (None: all; an int or a tuple); nan if any is.

    Equal largest elements share the derivative evenly. ValueError for an empty axis.

    >>> max([[1, 5], [3, 4]], axis=1).tolist()
    [5, 4]
    """)
min = reduction("min", dtype=real_ordered, eager=lambda x, *, axis: np.min(x, axis=axis), reduce=Reduction("min"),
                vjp=_extreme_vjp, jvp=_extreme_jvp, nonempty=True, identity=highest, combine=ew.minimum,
                domain=(-2, 2), numpy=(np.min, np.amin, (np.minimum, "reduce")),
                doc="""Smallest element over `axis` (None: all; an int or a tuple); nan if any is.

    Equal smallest elements share the derivative evenly. ValueError for an empty axis.

    >>> min([[1, 5], [3, 4]], axis=1).tolist()
    [1, 3]
    """)


def _positions(find: Callable[..., Any]) -> Callable[..., Any]:
    """np.argmax or argmin over several axes taken as one, in row-major order."""
    def eager(x: np.ndarray, *, axis: Axes) -> Any:
        kept = [a for a in range(x.ndim) if a not in axis]
        moved = np.transpose(x, (*kept, *axis))
        return find(moved.reshape(*moved.shape[:len(kept)], math.prod(moved.shape[len(kept):])), axis=-1)

    return eager


def _ordered_bits(x: Any, **_: Any) -> Any:
    return scalar.cast(x, "uint8") if x.dtype.kind == "b" else x


argmax = reduction("argmax", dtype=position, eager=_positions(np.argmax), nonempty=True, numpy=np.argmax,
                   reduce=Reduction("argmax", before=_ordered_bits), domain=(-2, 2),
                   doc="""Position of the first largest element over `axis` (None: flat), int64; a nan is largest.

    >>> argmax([[1, 5], [4, 3]], axis=1).tolist()
    [1, 0]
    """)
argmin = reduction("argmin", dtype=position, eager=_positions(np.argmin), nonempty=True, numpy=np.argmin,
                   reduce=Reduction("argmin", before=_ordered_bits), domain=(-2, 2),
                   doc="""Position of the first smallest element over `axis` (None: flat), int64; a nan is smallest.

    >>> argmin([[1, 5], [4, 3]], axis=1).tolist()
    [0, 1]
    """)

# -- truth -------------------------------------------------------------------------------------------------------------
any = reduction("any", dtype=logical, eager=lambda x, *, axis: np.any(x, axis=axis), reduce=Reduction("or"),
                identity=False, combine=_or, domain=(-2, 2), numpy=(np.any, (np.logical_or, "reduce")),
                doc="Whether any element over `axis` is nonzero; False for none.")
all = reduction("all", dtype=logical, eager=lambda x, *, axis: np.all(x, axis=axis), reduce=Reduction("and"),
                identity=True, combine=_and, domain=(-2, 2), numpy=(np.all, (np.logical_and, "reduce")),
                doc="Whether all elements over `axis` are nonzero; True for none.")
core.provide(ALL=all)

amax, amin = max, min

__all__ = ["all", "amax", "amin", "any", "argmax", "argmin", "max", "min", "prod", "sum"]
