"""Reduction primitives, one declaration each.

In: a tensor and axes. Out: one public function per op. See `core.reduction` for the fields; mean, var, norm and friends are
composites in `functions.py`.
"""

from __future__ import annotations

import numpy as np

from tracejit import dtypes
from tracejit.ir import Reduction
from tracejit.ops import core
from tracejit.ops.core import reduction
from tracejit.tensor import Tensor, apply


def summing(d: np.dtype) -> tuple[np.dtype, np.dtype]:
    """Integers narrower than the default int are widened to it."""
    d = dtypes.sum_dtype(d)
    return d, d


def spread(g: Tensor, x: Tensor, axis: tuple[int, ...]) -> Tensor:
    """A reduced tensor repeated over the reduced axes of `x`."""
    kept = tuple(1 if a in axis else n for a, n in enumerate(x.shape))
    return core.broadcast_to(apply(core.RESHAPE, (g,), {"shape": kept}), x.shape)


sum = reduction("sum", dtype=summing, eager=lambda x, *, axis: np.sum(x, axis=axis, dtype=x.dtype), reduce=Reduction("add"),
                vjp=lambda g, y, x, *, axis: (spread(g, x, axis),), linear=True, domain=(-2, 2), numpy=(np.sum, (np.add, "reduce")),
                doc="Sum over `axis` (None: all).")

core.provide(SUM=sum)
