"""Windows that move over dims, for convolutions and pooling.

In: tensors. Out: `windows`, every window of a tensor side by side, as a view in eager code and as an index map in
kernels: nothing is copied; `taps`, the same one element of the windows after the other; `Reach`, which windows are over
which positions, for what goes back from windows to positions. Movement ops:

    shear        y[q, t] = x[q * step + t * dilation, t]
    unshear      its transpose: y[p, t] = x[q, t] where p = q * step + t * dilation, 0 where there is no such q
    interleave   y[u * step + k] = xs[k][u], as far as y goes

Read next: `convolution.py`, `pooling.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from tracejit.dims import integer
from tracejit.ir import Type
from tracejit.lower.index import Guard, Index, Part
from tracejit.ops import core
from tracejit.ops import elementwise as ew
from tracejit.ops.core import primitive
from tracejit.ops.movement import Ints, embed, permuted, reshaped, window
from tracejit.tensor import Tensor, apply

Pairs = tuple[tuple[int, int], ...]
MOST_TAPS = 32  # elements of a window up to which code that names each of them is better than a loop


# -- the ops -----------------------------------------------------------------------------------------------------------
def _fits(extent: int, taps: int, size: int, step: int, dilation: int) -> bool:
    """Whether all places of `size` windows lie within `extent`."""
    return size == 0 or taps == 0 or (size - 1) * step + (taps - 1) * dilation < extent


def _with_extents(name: str, x: Type, axes: Ints, taps: Ints, extents: Ints, steps: Ints, dilations: Ints) -> Type:
    lengths = {len(v) for v in (axes, taps, extents, steps, dilations)}
    within = all(0 <= a < x.ndim for a in (*axes, *taps))
    if len(lengths) != 1 or not within or min((*steps, *dilations), default=1) < 1:
        raise ValueError(f"{name}: axes {axes}, taps {taps}, steps {steps} and dilations {dilations} do not describe "
                         f"windows of shape {x.shape}")
    shape = list(x.shape)
    for a, n in zip(axes, extents):
        shape[a] = n
    return Type(tuple(shape), x.dtype)


def _shear_infer(x: Type, *, axes: Ints, taps: Ints, sizes: Ints, steps: Ints, dilations: Ints) -> Type:
    out = _with_extents("shear", x, axes, taps, sizes, steps, dilations)
    for a, t, n, step, dilation in zip(axes, taps, sizes, steps, dilations):
        if not _fits(x.shape[a], x.shape[t], n, step, dilation):
            raise ValueError(f"shear: {n} windows of {x.shape[t]} by {dilation}, every {step}, do not lie within "
                             f"{x.shape[a]} (shape {x.shape})")
    return out


def _unshear_infer(x: Type, *, axes: Ints, taps: Ints, extents: Ints, steps: Ints, dilations: Ints) -> Type:
    out = _with_extents("unshear", x, axes, taps, extents, steps, dilations)
    for a, t, n, step, dilation in zip(axes, taps, extents, steps, dilations):
        if not _fits(n, x.shape[t], x.shape[a], step, dilation):
            raise ValueError(f"unshear: {x.shape[a]} windows of {x.shape[t]} by {dilation}, every {step}, do not lie "
                             f"within {n} (shape {x.shape})")
    return out


def _sheared_view(x: np.ndarray, axes: Ints, taps: Ints, sizes: Ints, steps: Ints, dilations: Ints) -> np.ndarray:
    shape, strides = list(x.shape), list(x.strides)
    for a, t, n, step, dilation in zip(axes, taps, sizes, steps, dilations):
        shape[a], strides[a] = n, x.strides[a] * step
        strides[t] += x.strides[a] * dilation
    return np.lib.stride_tricks.as_strided(x, shape, strides)


def _shear_eager(x: np.ndarray, *, axes: Ints, taps: Ints, sizes: Ints, steps: Ints, dilations: Ints) -> np.ndarray:
    for a, t, n, step, dilation in zip(axes, taps, sizes, steps, dilations):
        if not _fits(x.shape[a], x.shape[t], n, step, dilation):
            raise ValueError("windows outside of what they move over")
    return _sheared_view(x, axes, taps, sizes, steps, dilations)


def _unshear_eager(x: np.ndarray, *, axes: Ints, taps: Ints, extents: Ints, steps: Ints, dilations: Ints) -> np.ndarray:
    out = np.zeros(_unshear_infer(Type(x.shape, x.dtype), axes=axes, taps=taps, extents=extents, steps=steps,
                                  dilations=dilations).shape, x.dtype)
    _sheared_view(out, axes, taps, tuple(x.shape[a] for a in axes), steps, dilations)[...] = x
    return out


def _shear_index(coords: Sequence[Index], types: Sequence[Type], *, axes: Ints, taps: Ints, sizes: Ints, steps: Ints,
                 dilations: Ints) -> list[Part]:
    at = list(coords)
    for a, t, step, dilation in zip(axes, taps, steps, dilations):
        at[a] = coords[a] * step + coords[t] * dilation
    return [Part(0, tuple(at))]


def _unshear_index(coords: Sequence[Index], types: Sequence[Type], *, axes: Ints, taps: Ints, extents: Ints,
                   steps: Ints, dilations: Ints) -> list[Part]:
    at, guards = list(coords), []
    for a, t, step, dilation in zip(axes, taps, steps, dilations):
        ahead = coords[a] - coords[t] * dilation
        at[a] = ahead // step
        guards.append(Guard(ahead, 0, (types[0].shape[a] - 1) * step + 1))
        guards += [Guard(ahead % step, 0, 1)] if step > 1 else []
    return [Part(0, tuple(at), tuple(guards))]


def _shear_transpose(g: Tensor, x: Type, *, axes: Ints, taps: Ints, sizes: Ints, steps: Ints,
                     dilations: Ints) -> Tensor:
    return apply(UNSHEAR, (g,), {"axes": axes, "taps": taps, "extents": tuple(x.shape[a] for a in axes),
                                 "steps": steps, "dilations": dilations})


def _unshear_transpose(g: Tensor, x: Type, *, axes: Ints, taps: Ints, extents: Ints, steps: Ints,
                       dilations: Ints) -> Tensor:
    return apply(SHEAR, (g,), {"axes": axes, "taps": taps, "sizes": tuple(x.shape[a] for a in axes), "steps": steps,
                               "dilations": dilations})


SHEAR = primitive("shear", "movement", infer=_shear_infer, eager=_shear_eager, index=_shear_index,
                  transpose=_shear_transpose,
                  doc="Along each of `axes`, `sizes` elements by `steps`, from a start that grows by `dilations` along "
                      "the dim of `taps`: y[q, t] = x[q * step + t * dilation, t].")
UNSHEAR = primitive("unshear", "movement", infer=_unshear_infer, eager=_unshear_eager, index=_unshear_index,
                    transpose=_unshear_transpose,
                    doc="The transpose of shear: y[q * step + t * dilation, t] = x[q, t], zeros elsewhere.")


# -- tensors between each other ----------------------------------------------------------------------------------------
def _interleave_infer(*xs: Type, steps: Ints, shape: Ints) -> Type:
    first = xs[0] if xs else None
    if first is None or len(xs) != math.prod(steps) or not len(steps) == len(shape) == first.ndim \
            or any(x != first for x in xs) or any(-(-m // step) != n for m, n, step in zip(shape, first.shape, steps)):
        raise ValueError(f"interleave: {len(xs)} tensors of types {xs} do not go into shape {shape} by steps {steps}")
    return Type(shape, first.dtype)


def _interleave_eager(*xs: np.ndarray, steps: Ints, shape: Ints) -> np.ndarray:
    out = np.empty(shape, xs[0].dtype)
    for x, starts in zip(xs, itertools.product(*map(range, steps))):
        part = out[tuple(slice(start, None, step) for start, step in zip(starts, steps))]
        part[...] = x[tuple(map(slice, part.shape))]
    return out


def _interleave_index(coords: Sequence[Index], types: Sequence[Type], *, steps: Ints, shape: Ints) -> list[Part]:
    at = tuple(c // step for c, step in zip(coords, steps))
    return [Part(k, at, tuple(Guard(c % step, start, start + 1)
                              for c, step, start in zip(coords, steps, starts) if step > 1))
            for k, starts in enumerate(itertools.product(*map(range, steps)))]


def _interleave_transpose(g: Tensor, *xs: Type, steps: Ints, shape: Ints) -> tuple[Tensor, ...]:
    found = []
    for starts in itertools.product(*map(range, steps)):
        sizes = tuple(-(-(n - start) // step) for n, start, step in zip(shape, starts, steps))
        seen = window(g, starts, sizes, steps) if g.size else reshaped(g, xs[0].shape)
        found.append(seen if seen.shape == xs[0].shape else embed(seen, xs[0].shape, (0,) * len(steps)))
    return tuple(found)


INTERLEAVE = primitive("interleave", "movement", infer=_interleave_infer, eager=_interleave_eager,
                       index=_interleave_index, transpose=_interleave_transpose,
                       doc="Along each dim, elements of `steps` tensors in turn: y[u * step + k] = xs[k][u], where "
                           "there is such an element of y, which has `shape`.")


def interleaved(ts: Sequence[Tensor], steps: Ints, shape: Ints) -> Tensor:
    """Tensors of one type, one element of each in turn along every dim; the last dim's step counts fastest."""
    return ts[0] if len(ts) == 1 else apply(INTERLEAVE, ts, {"steps": steps, "shape": shape})


# -- windows of a tensor -----------------------------------------------------------------------------------------------
def windows(t: Tensor, first: int, sizes: Ints, steps: Ints, dilations: Ints) -> Tensor:
    """Every window of `t` that lies within it along the dims from `first` on, one for each of `sizes`.

    The result has the number of windows where `t` has these dims, and the elements of a window as new last dims.
    """
    axes = tuple(range(first, first + len(sizes)))
    counts = tuple(positions(t.shape[a], *of) for a, *of in zip(axes, sizes, steps, dilations))
    end = t.ndim - first - len(sizes)
    if all(size == 1 or (size == step and dilation == 1) for size, step, dilation in zip(sizes, steps, dilations)):
        # they do not overlap, so a reshape takes them apart
        takes = [step if size == 1 else 1 for size, step in zip(sizes, steps)]
        whole = window(t, (0,) * t.ndim, (*t.shape[:first], *(n * size for n, size in zip(counts, sizes)),
                                          *t.shape[first + len(sizes):]), (*(1,) * first, *takes, *(1,) * end))
        pairs = tuple(n for pair in zip(counts, sizes) for n in pair)
        apart = reshaped(whole, (*t.shape[:first], *pairs, *t.shape[first + len(sizes):]))
        places, inside = (range(first + k, first + 2 * len(sizes), 2) for k in (0, 1))
        return permuted(apart, (*range(first), *places, *range(first + 2 * len(sizes), apart.ndim), *inside))
    repeated = core.broadcast_to(reshaped(t, (*t.shape, *(1,) * len(sizes))), (*t.shape, *sizes))
    taps = tuple(range(t.ndim, t.ndim + len(sizes)))
    return apply(SHEAR, (repeated,), {"axes": axes, "taps": taps, "sizes": counts, "steps": steps,
                                      "dilations": dilations})


def taps(t: Tensor, first: int, sizes: Ints, steps: Ints, dilations: Ints) -> list[Tensor]:
    """The elements of `windows` one by one: for each place in a window, in row-major order, what all windows have
    there."""
    end = (0,) * (t.ndim - first - len(sizes))
    counts = tuple(positions(*of) for of in zip(t.shape[first:], sizes, steps, dilations))
    shape = (*t.shape[:first], *counts, *t.shape[first + len(sizes):])
    return [window(t, (*(0,) * first, *(k * dilation for k, dilation in zip(tap, dilations)), *end), shape,
                   (*(1,) * first, *steps, *(1,) * len(end)))
            for tap in itertools.product(*map(range, sizes))]


def positions(extent: int, size: int, step: int, dilation: int) -> int:
    """How many windows lie within `extent`."""
    reach = (size - 1) * dilation + 1
    return (extent - reach) // step + 1 if extent >= reach else 0


# -- from windows back to what they are over ---------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Taps:
    """The taps that reach the positions `rest`, rest + step, ... of one dim: every `period`-th from the first, `count`
    of them. Tap number i of these reaches position u * step + rest in window u + start - i * apart."""

    rest: int
    first: int
    period: int
    count: int
    start: int
    apart: int

    @classmethod
    def of(cls, rest: int, size: int, step: int, low: int, dilation: int) -> Taps:
        # u * step + rest + low == q * step + tap * dilation, for window q
        common = math.gcd(step, dilation)
        period = step // common
        first = next((t for t in range(min(period, size)) if (rest + low - t * dilation) % step == 0), size)
        start = (rest + low - first * dilation) // step
        return cls(rest, first, period, len(range(first, size, period)), start, dilation // common)

    def tap(self, i: int) -> int:
        return self.first + i * self.period


@dataclass(frozen=True, slots=True)
class Reach:
    """Which windows are over which positions of dims of `extents`. `sets`: for each set of positions that are a step
    apart the taps that reach them, a `Taps` for each dim; in each set there are `counts` positions. lows, highs: the
    windows that all of these together ask for, some of which do not exist."""

    extents: Ints
    steps: Ints
    counts: Ints
    sets: tuple[tuple[Taps, ...], ...]
    lows: Ints
    highs: Ints

    @classmethod
    def of(cls, extents: Ints, sizes: Ints, steps: Ints, pads: Pairs, dilations: Ints) -> Reach:
        of_dims = [[Taps.of(rest, size, step, low, dilation) for rest in range(step)]
                   for size, step, (low, _), dilation in zip(sizes, steps, pads, dilations)]
        counts = tuple(-(-n // step) for n, step in zip(extents, steps))
        lows = tuple(min(t.start - max(t.count - 1, 0) * t.apart for t in each) for each in of_dims)
        highs = tuple(max(t.start for t in each) + n for each, n in zip(of_dims, counts))
        return cls(extents, steps, counts, tuple(itertools.product(*of_dims)), lows, highs)

    def around(self, t: Tensor) -> Tensor:
        """What there is for each window, `[batch, *windows, channels]`, from `lows` to `highs`; 0 where none is."""
        starts = [min(max(low, 0), n) for low, n in zip(self.lows, t.shape[1:-1])]
        sizes = [max(min(high, n) - start, 0) for high, n, start in zip(self.highs, t.shape[1:-1], starts)]
        inner = window(t, (0, *starts, 0), (t.shape[0], *sizes, t.shape[-1]))
        lengths = [max(high - low, 0) for low, high in zip(self.lows, self.highs)]
        ahead = [min(start - low, n) for start, low, n in zip(starts, self.lows, lengths)]
        return embed(inner, (t.shape[0], *lengths, t.shape[-1]), (0, *ahead, 0))

    def seen(self, around: Tensor, starts: Sequence[int], lengths: Sequence[int]) -> Tensor:
        """A part of `around`: so many windows from these on."""
        return window(around, (0, *(start - low for start, low in zip(starts, self.lows)), 0),
                      (around.shape[0], *lengths, around.shape[-1]))

    def whole(self, found: Sequence[Tensor]) -> Tensor:
        """Tensors for all positions from those for each set."""
        shape = found[0].shape[0], *self.extents, found[0].shape[-1]
        return interleaved(found, (1, *self.steps, 1), shape)

    def summed(self, terms: Sequence[Tensor], term: Callable[[Ints, list[Tensor]], Tensor]) -> Tensor:
        """At each position the sum over the windows over it. terms: what there is for each window; term(tap, terms)
        gives the term of windows that have the position at this place."""
        around, found = [self.around(t) for t in terms], []
        for chosen in self.sets:
            parts = [term(tuple(s.tap(i) for s, i in zip(chosen, each)),
                          [self.seen(t, [s.start - i * s.apart for s, i in zip(chosen, each)], self.counts)
                           for t in around])
                     for each in itertools.product(*(range(s.count) for s in chosen))]
            nothing = core.full(0, (around[0].shape[0], *self.counts, around[0].shape[-1]), around[0].dtype)
            found.append(reduce(ew.add, parts) if parts else nothing)
        return self.whole(found)


# -- what users say about windows --------------------------------------------------------------------------------------
def per_dim(name: str, what: str, value: Any, rank: int) -> Ints:
    """One positive int for each of `rank` dims, given as one or as several."""
    if hasattr(value, "__index__"):
        found = (integer(value),) * rank
    else:
        found = tuple(integer(n) for n in value)
        found = found * rank if len(found) == 1 else found
    if len(found) != rank or any(n < 1 for n in found):
        raise ValueError(f"{name}: {what} must be a positive int, or {rank} of them, got {value!r}")
    return found


def paddings(name: str, padding: Any, extents: Ints, sizes: Ints, steps: Ints, dilations: Ints) -> Pairs:
    """How many positions to put before and after each dim: "valid" none; "same" as many as make the result as long as
    the input divided by the step, rounded up, the odd one at the end; or given as numbers or pairs."""
    rank = len(extents)
    if isinstance(padding, str):
        kind = padding.lower()
        if kind not in ("valid", "same"):
            raise ValueError(f'{name}: padding must be "valid", "same", an int or pairs of ints, got {padding!r}')
        if kind == "valid":
            return ((0, 0),) * rank
        found = []
        for n, size, step, dilation in zip(extents, sizes, steps, dilations):
            total = max((-(-n // step) - 1) * step + (size - 1) * dilation + 1 - n, 0) if n else 0
            found.append((total // 2, total - total // 2))
        return tuple(found)
    if hasattr(padding, "__index__"):
        given: list[Any] = [padding] * rank
    else:
        given = list(padding)
    pairs = [tuple(map(integer, (p, p) if hasattr(p, "__index__") else p)) for p in given]
    if len(pairs) != rank or any(len(pair) != 2 or min(pair) < 0 for pair in pairs):
        raise ValueError(f"{name}: padding must be non-negative, an int or a pair (before, after) for each of {rank} "
                         f"dims, got {padding!r}")
    return tuple((low, high) for low, high in pairs)


def padded(t: Tensor, first: int, pads: Pairs, value: bool | int | float = 0) -> Tensor:
    """`t` with `value` around it along the dims from `first` on."""
    if not any(low or high for low, high in pads):
        return t
    starts, shape = [0] * t.ndim, list(t.shape)
    for a, (low, high) in enumerate(pads, first):
        starts[a], shape[a] = low, t.shape[a] + low + high
    return embed(t, tuple(shape), tuple(starts), value=value)


def check_windows(name: str, shape: Ints, first: int, sizes: Ints, dilations: Ints, pads: Pairs) -> None:
    """ValueError where a window is longer than what it moves over."""
    for a, (size, dilation, (low, high)) in enumerate(zip(sizes, dilations, pads), first):
        reach, extent = (size - 1) * dilation + 1, shape[a] + low + high
        if extent < reach and not (shape[a] == 0 and low == high == 0):
            raise ValueError(f"{name}: a window of size {size} and dilation {dilation} reaches over {reach} positions, "
                             f"but axis {a} of shape {shape} with padding {(low, high)} has {extent}")
