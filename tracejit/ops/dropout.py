"""Dropout: some elements become zero at random, the others grow so that the mean stays.

In: a tensor, the share to drop, a source of randomness. Out: a tensor of the same shape. Which elements stay is a pure
function of a key and the number of the draw (`random.py`), worked out inside the kernel, in the forward and again in
the backward pass: no mask is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracejit import dtypes
from tracejit.ops import core, random
from tracejit.ops import elementwise as ew
from tracejit.ops.core import alias, strong
from tracejit.tensor import Tensor


def dropout(x: Any, rate: float, *, noise_shape: Sequence[int | None] | None = None, key: Any = None,
            generator: random.Generator | None = None) -> Tensor:
    """Each element of x with probability 1 - rate, divided by that; else 0.

    rate: in [0, 1] (ValueError if not); at 0 x is given back and nothing drawn. noise_shape: one decision for all
    elements along a dim where it is 1 (None: as x's extent). key, generator: as of `tj.random`'s functions; without
    them the default generator draws, so `tj.random.seed` makes it repeatable, and eager and compiled code drop the same
    elements. Srivastava et al. 2014.

    >>> random.seed(0)
    >>> y = dropout([1.0] * 1000, 0.5)
    >>> sorted(set(y.tolist())), 400 < (y == 0).sum().item() < 600
    ([0.0, 2.0], True)
    """
    t = strong(x)
    if t.dtype.kind not in "fc":
        t = core.cast(t, dtypes.to_float(t.dtype))
    rate = float(rate)
    if not 0 <= rate <= 1:
        raise ValueError(f"dropout: rate must be in [0, 1], got {rate}")
    if rate == 0:
        return alias(t)
    shape = t.shape
    if noise_shape is not None:
        if len(noise_shape) != t.ndim or any(m not in (None, 1, n) for m, n in zip(noise_shape, shape)):
            raise ValueError(f"dropout: noise_shape {tuple(noise_shape)} must have 1 or the extent of each dim of x "
                             f"with shape {shape}")
        shape = tuple(n if m is None else m for m, n in zip(noise_shape, shape))
    kept = random.chosen(1 - rate, shape, key=key, generator=generator)
    scale = 1 / (1 - rate) if rate < 1 else 0.0
    return ew.where(core.broadcast_to(kept, t.shape), t * scale, 0)


__all__ = ["dropout"]
