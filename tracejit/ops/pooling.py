"""Pooling over 1, 2 or 3 dims: the largest element, or the mean, of each window.

In: tensors, channels last: `[batch, *dims, channels]`. Out: a reduction over windows, which are a view (`windows.py`):
one kernel, its gradient another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.ir import Op, Type
from tracejit.ops import core
from tracejit.ops import elementwise as ew
from tracejit.ops.comparison import equal
from tracejit.ops.core import primitive, strong
from tracejit.ops.movement import Ints, reshaped
from tracejit.ops.reduction import max as largest
from tracejit.ops.reduction import sum as total
from tracejit.ops.windows import (
    MOST_TAPS,
    Pairs,
    Reach,
    check_windows,
    padded,
    paddings,
    per_dim,
    positions,
    taps,
    windows,
)
from tracejit.tensor import Tensor, apply, recording, taping, wrap


def _described(name: str, rank: int, x: Any, size: Any, strides: Any, padding: Any) -> tuple[Tensor, Ints, Ints, Pairs]:
    t = strong(x)
    if t.ndim != rank + 2 or t.dtype.kind == "c":
        raise ValueError(f"{name}: x must be real, [batch, {rank} dim{'s' * (rank > 1)}, channels], got {t.dtype} of "
                         f"shape {t.shape}")
    sizes = per_dim(name, "window", size, rank)
    steps = sizes if strides is None else per_dim(name, "strides", strides, rank)
    pads = paddings(name, padding, t.shape[1:-1], sizes, steps, (1,) * rank)
    if any(max(pair) >= n for pair, n in zip(pads, sizes)):
        raise ValueError(f"{name}: padding {padding!r} is as long as the window {sizes}, which would hold nothing")
    check_windows(name, t.shape, 1, sizes, (1,) * rank, pads)
    return t, sizes, steps, pads


def _inner(rank: int) -> Ints:
    """The dims of a window's elements."""
    return tuple(range(rank + 2, 2 * rank + 2))


def _lowest(dtype: np.dtype) -> bool | int | float:
    return -math.inf if dtype.kind == "f" else False if dtype.kind == "b" else int(np.iinfo(dtype).min)


# -- primitives: a gradient goes back window by window -----------------------------------------------------------------
def _infer(x: Type, *, sizes: Ints, steps: Ints, pads: Pairs) -> Type:
    if not len(sizes) == len(steps) == len(pads) == x.ndim - 2 or x.dtype.kind == "c":
        raise ValueError(f"pooling: windows {sizes} do not go over {x!r}")
    extents = [n + low + high for n, (low, high) in zip(x.shape[1:-1], pads)]
    return Type((x.shape[0], *(positions(*of, 1) for of in zip(extents, sizes, steps)), x.shape[-1]), x.dtype)


def _reach(x: Tensor, sizes: Ints, steps: Ints, pads: Pairs) -> Reach:
    return Reach.of(x.shape[1:-1], sizes, steps, pads, (1,) * len(sizes))


def _eagerly(function: Callable[..., Tensor]) -> Callable[..., np.ndarray]:
    def eager(x: np.ndarray, **attrs: Any) -> np.ndarray:
        with recording(None), taping(()):
            return np.asarray(function(wrap(x), **attrs)._value)

    return eager


def _sum_of_taps(x: Tensor, *, sizes: Ints, steps: Ints, pads: Pairs) -> Tensor:
    return reduce(ew.add, taps(padded(x, 1, pads), 1, sizes, steps, (1,) * len(sizes)))


def _sum_vjp(g: Tensor, y: Tensor, x: Tensor, *, sizes: Ints, steps: Ints, pads: Pairs) -> tuple[Tensor]:
    return (_reach(x, sizes, steps, pads).summed([g], lambda rests, terms: terms[0]),)


SUM_POOL = primitive("sum_pool", "library", infer=_infer, eager=_eagerly(_sum_of_taps), vjp=_sum_vjp,
                     jvp=lambda tangents, y, x, **attrs: apply(SUM_POOL, tangents, attrs),
                     doc="The sum of each window; there are zeros around x.")


def _max_taps(x: Tensor, sizes: Ints, steps: Ints, pads: Pairs) -> list[Tensor]:
    return taps(padded(x, 1, pads, _lowest(x.dtype)), 1, sizes, steps, (1,) * len(sizes))


def _largest_of_taps(x: Tensor, *, sizes: Ints, steps: Ints, pads: Pairs) -> Tensor:
    return reduce(ew.maximum, _max_taps(x, sizes, steps, pads))


def _places(x: Tensor, y: Tensor, sizes: Ints, steps: Ints, pads: Pairs) -> Tensor:
    """Which element of each window is the largest: the first of equal ones; none, if that is nan."""
    elements = taps(padded(x, 1, pads, math.nan), 1, sizes, steps, (1,) * len(sizes))
    none = core.full(len(elements), y.shape, np.dtype("uint8"))
    return reduce(lambda found, n: ew.where(equal(elements[n], y), core.full(n, y.shape, found.dtype), found),
                  reversed(range(len(elements))), none)


def _at(places: Tensor, place: int, t: Tensor) -> Tensor:
    """t where the largest element of a window is at this place of it."""
    return ew.where(equal(places, core.full(place, places.shape, places.dtype)), t, 0)


def _max_vjp(g: Tensor, y: Tensor, x: Tensor, *, sizes: Ints, steps: Ints, pads: Pairs) -> tuple[Tensor]:
    def term(tap: Ints, terms: list[Tensor]) -> Tensor:
        return _at(terms[1], int(np.ravel_multi_index(tap, sizes)), terms[0])

    return (_reach(x, sizes, steps, pads).summed([g, _places(x, y, sizes, steps, pads)], term),)


def _max_jvp(tangents: Sequence[Tensor], y: Tensor, x: Tensor, *, sizes: Ints, steps: Ints, pads: Pairs) -> Tensor:
    places = _places(x, y, sizes, steps, pads)
    moved = taps(padded(tangents[0], 1, pads), 1, sizes, steps, (1,) * len(sizes))
    return reduce(ew.add, [_at(places, n, t) for n, t in enumerate(moved)])


MAX_POOL = primitive("max_pool", "library", infer=_infer, eager=_eagerly(_largest_of_taps), vjp=_max_vjp, jvp=_max_jvp,
                     doc="The largest element of each window; nothing around x is.")
written_out: dict[str, Callable[..., Tensor]] = {SUM_POOL.name: _sum_of_taps, MAX_POOL.name: _largest_of_taps}


# -- what users call ---------------------------------------------------------------------------------------------------
def _pooled(op: Op, fold: Callable[..., Tensor], around: Any, t: Tensor, sizes: Ints, steps: Ints,
            pads: Pairs) -> Tensor:
    """By the op if the elements of a window are few, as a reduction over windows if they are many."""
    if math.prod(sizes) <= MOST_TAPS:
        return apply(op, (t,), {"sizes": sizes, "steps": steps, "pads": pads})
    return fold(windows(padded(t, 1, pads, around), 1, sizes, steps, (1,) * len(sizes)), axis=_inner(len(sizes)))


def _max_pool(name: str, rank: int, x: Any, size: Any, strides: Any, padding: Any) -> Tensor:
    t, sizes, steps, pads = _described(name, rank, x, size, strides, padding)
    return _pooled(MAX_POOL, largest, _lowest(t.dtype), t, sizes, steps, pads)


def _avg_pool(name: str, rank: int, x: Any, size: Any, strides: Any, padding: Any) -> Tensor:
    t, sizes, steps, pads = _described(name, rank, x, size, strides, padding)
    dtype = dtypes.to_float(t.dtype)
    t = core.cast(t, dtypes.float32 if dtype == dtypes.float16 else dtype)
    summed = _pooled(SUM_POOL, total, 0, t, sizes, steps, pads)
    if not any(low or high for low, high in pads):
        return core.cast(summed / math.prod(sizes), dtype)  # type: ignore[operator]
    for d, (n, size, step, pair) in enumerate(zip(t.shape[1:-1], sizes, steps, pads)):
        if any(pair):
            counts = core.constant_tensor(_held(n, size, step, pair).astype(t.dtype))
            summed = summed / reshaped(counts, (len(counts), *(1,) * (rank - d)))  # type: ignore[operator]
        else:
            summed = summed / size  # type: ignore[operator]
    return core.cast(summed, dtype)


def _held(n: int, size: int, step: int, pair: tuple[int, int]) -> np.ndarray:
    """How many elements, padding left out, each window along a dim of `n` holds."""
    first = np.arange(positions(n + sum(pair), size, step, 1)) * step - pair[0]
    return np.minimum(first + size, n) - np.maximum(first, 0)


def max_pool1d(x: Any, window: Any = 2, strides: Any = None, padding: Any = "valid") -> Tensor:
    """The largest element of each window: x `[batch, length, channels]`. Arguments and errors as `max_pool2d`.

    >>> max_pool1d([[[1.], [3.], [2.], [0.]]]).numpy().ravel().tolist()
    [3.0, 2.0]
    """
    return _max_pool("max_pool1d", 1, x, window, strides, padding)


def max_pool2d(x: Any, window: Any = 2, strides: Any = None, padding: Any = "valid") -> Tensor:
    """The largest element of each window: x `[batch, height, width, channels]`; the result is `[batch, height, width,
    channels]` with one position for each window.

    window, strides: an int, or one for each dim; strides are the window if not given. padding: "valid" (none), "same"
    (so that the result has the size of x divided by the stride, rounded up), an int, or a pair (before, after) for each
    dim; what is put around x is never the largest. The gradient goes to the largest element, the first in row-major
    order if several are (in equal parts to them, as that of `tj.max`, if a window has more than 32 elements).

    Raises ValueError if a window reaches further than x with its padding.

    >>> max_pool2d(np.ones((1, 5, 5, 2)), 3, strides=2, padding="same").shape
    (1, 3, 3, 2)
    """
    return _max_pool("max_pool2d", 2, x, window, strides, padding)


def max_pool3d(x: Any, window: Any = 2, strides: Any = None, padding: Any = "valid") -> Tensor:
    """The largest element of each window: x `[batch, depth, height, width, channels]`. Arguments and errors as
    `max_pool2d`.
    """
    return _max_pool("max_pool3d", 3, x, window, strides, padding)


def avg_pool1d(x: Any, window: Any = 2, strides: Any = None, padding: Any = "valid") -> Tensor:
    """The mean of each window: x `[batch, length, channels]`. Arguments and errors as `avg_pool2d`.

    >>> avg_pool1d([[[1.], [3.], [2.], [0.]]], 3, strides=2, padding="same").numpy().ravel().tolist()
    [2.0, 1.0]
    """
    return _avg_pool("avg_pool1d", 1, x, window, strides, padding)


def avg_pool2d(x: Any, window: Any = 2, strides: Any = None, padding: Any = "valid") -> Tensor:
    """The mean of each window: x `[batch, height, width, channels]`. Arguments and errors as `max_pool2d`; elements put
    around x by padding do not count, neither in the sum nor in the number divided by. Integers give the default float
    as `mean` does.

    >>> avg_pool2d(np.ones((1, 4, 4, 3)), (2, 4)).shape
    (1, 2, 1, 3)
    """
    return _avg_pool("avg_pool2d", 2, x, window, strides, padding)


def avg_pool3d(x: Any, window: Any = 2, strides: Any = None, padding: Any = "valid") -> Tensor:
    """The mean of each window: x `[batch, depth, height, width, channels]`. Arguments and errors as `avg_pool2d`."""
    return _avg_pool("avg_pool3d", 3, x, window, strides, padding)


__all__ = ["max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d"]
