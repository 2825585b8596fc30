"""Windows that move over dims, for convolutions and pooling: two movement ops, each the transpose of the other.

In: tensors. Out: `windows`, every window of a tensor side by side, as a view in eager code and as an index map in
kernels: nothing is copied. Its transpose adds up, at each position, what the windows over it hold; it comes from the
ops' own rules.

    shear     y[q, t] = x[q * step + t * dilation, t]
    unshear   the transpose: y[p, t] = x[q, t] where p = q * step + t * dilation, 0 where there is no such q

Read next: `convolution.py`, `pooling.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracejit.dims import integer
from tracejit.ir import Type
from tracejit.lower.index import Guard, Index, Part
from tracejit.ops import core
from tracejit.ops.core import primitive
from tracejit.ops.movement import Ints, embed, permuted, reshaped, window
from tracejit.tensor import Tensor, apply

Pairs = tuple[tuple[int, int], ...]


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


def positions(extent: int, size: int, step: int, dilation: int) -> int:
    """How many windows lie within `extent`."""
    reach = (size - 1) * dilation + 1
    return (extent - reach) // step + 1 if extent >= reach else 0


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
    pairs = []
    for p in given:
        low, high = (p, p) if hasattr(p, "__index__") else tuple(p)
        pairs.append((integer(low), integer(high)))
    if len(pairs) != rank or any(n < 0 for pair in pairs for n in pair):
        raise ValueError(f"{name}: padding must be non-negative, an int or a pair (before, after) for each of {rank} "
                         f"dims, got {padding!r}")
    return tuple(pairs)


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
            raise ValueError(f"{name}: a window of {size} by {dilation} reaches over {reach} positions, but axis {a} "
                             f"of shape {shape} with padding {(low, high)} has {extent}")
