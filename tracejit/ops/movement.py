"""Movement primitives: the result shows elements of the inputs at other coordinates, one declaration each.

In: tensors. Out: full, iota, reshape, transpose, broadcast_to, slice, embed, concat; everything else that moves data is
made of these (`shaping.py`, `creation.py`, `subscript.py`). An op's `index(coords, types, **attrs)` gives, for a
coordinate of the result, the `Part`s of the inputs that it shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.dims import integer
from tracejit.errors import TracerError
from tracejit.ir import Type
from tracejit.lower import scalar
from tracejit.lower.index import Guard, Index, Part, reshape_coords
from tracejit.ops import core
from tracejit.ops.core import alias, normalize_axis, primitive, provide, publish, strong
from tracejit.tensor import Tensor, apply, state, wrap

# -- sources -----------------------------------------------------------------------------------------------------------
FULL = primitive(
    "full", "source", infer=lambda *, shape, value, dtype: Type(shape, dtypes.as_dtype(dtype)),
    eager=lambda *, shape, value, dtype: np.full(shape, value, dtype),
    scalar=lambda at, *, shape, value, dtype: at.const(value, dtype), doc="A tensor filled with one number.")


def _iota_eager(*, shape: tuple[int, ...], axis: int, dtype: str) -> np.ndarray:
    along = np.arange(shape[axis]).astype(dtype)
    return np.broadcast_to(along.reshape([-1 if a == axis else 1 for a in range(len(shape))]), shape)


IOTA = primitive(
    "iota", "source", infer=lambda *, shape, axis, dtype: Type(shape, dtypes.as_dtype(dtype)), eager=_iota_eager,
    scalar=lambda at, *, shape, axis, dtype: scalar.cast(at.coords[axis], np.dtype(dtype)),
    doc="Each element's coordinate along `axis`.")


def iota(shape: tuple[int, ...], axis: int, dtype: np.dtype = dtypes.int64) -> Tensor:
    """Each element's coordinate along `axis`."""
    return apply(IOTA, (), {"shape": shape, "axis": axis, "dtype": dtype.name})


# -- reshape -----------------------------------------------------------------------------------------------------------
def _reshape_infer(x: Type, *, shape: tuple[int, ...]) -> Type:
    out = Type(shape, x.dtype)
    if out.size != x.size:
        raise ValueError(f"reshape: {x.size} elements of shape {x.shape} do not fit shape {shape}")
    return out


def _reshape_index(coords: Sequence[Index], types: Sequence[Type], *, shape: tuple[int, ...]) -> list[Part]:
    return [Part(0, reshape_coords(coords, shape, types[0].shape))]


RESHAPE = primitive(
    "reshape", "movement", infer=_reshape_infer, eager=lambda x, *, shape: np.reshape(x, shape), index=_reshape_index,
    transpose=lambda g, x, *, shape: reshaped(g, x.shape), doc="The same elements in another shape.")


def shape_of(shape: Any) -> tuple[int, ...]:
    """A shape given as an int, a sequence of ints or a 1-d tensor."""
    if hasattr(shape, "__index__") and getattr(shape, "ndim", 0) == 0:
        return (integer(shape),)
    try:
        return tuple(integer(n) for n in shape)
    except TracerError:
        raise
    except TypeError:
        raise TypeError(f"a shape must be an int or a sequence of ints, got {shape!r}") from None


def extents_of(shape: Any) -> tuple[int, ...]:
    """The shape of something to be made: none of its extents is negative."""
    found = shape_of(shape)
    if any(n < 0 for n in found):
        raise ValueError(f"a shape must not be negative, got {found}")
    return found


def by_columns(name: str, order: str) -> bool:
    """Whether elements are counted with the first dim running fastest. Tensors have no other order than "C"."""
    if order not in ("C", "F", "A", "K"):
        raise ValueError(f"{name}: order must be C, F, A or K, got {order!r}")
    return order == "F"


def reshape(x: Any, shape: Any, *more: int, order: str = "C", copy: bool | None = None) -> Tensor:
    """The same elements, in row-major order, in another shape; one extent may be -1 (found from the size).

    With `order` "F" the first dim runs fastest. Raises ValueError if the number of elements differs.

    >>> reshape([[1, 2, 3], [4, 5, 6]], (3, -1))
    tj.Tensor(
    [[1 2]
     [3 4]
     [5 6]], shape=(3, 2), dtype=int32)
    """
    if by_columns("reshape", order):
        return transpose(reshape(transpose(x), shape_of((shape, *more) if more else shape)[::-1]))
    if not state.active and type(x) is Tensor:
        try:
            return wrap(x._value.reshape((shape, *more) if more else shape))  # type: ignore[union-attr]
        except (TypeError, ValueError):  # the messages below say more
            pass
    t = strong(x)
    sizes = list(shape_of((shape, *more) if more else shape))
    unknown = [k for k, n in enumerate(sizes) if n < 0]  # NumPy too takes any negative number for -1
    if len(unknown) > 1:
        raise ValueError(f"reshape: shape {tuple(sizes)} has more than one unknown dim")
    if unknown:
        known = math.prod(n for n in sizes if n >= 0)
        if known == 0 or t.size % known:
            raise ValueError(f"reshape: {t.size} elements of shape {t.shape} do not fit shape {tuple(sizes)}")
        sizes[unknown[0]] = t.size // known
    return reshaped(t, tuple(sizes))


def reshaped(t: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`t` in exactly `shape`."""
    return alias(t) if shape == t.shape else apply(RESHAPE, (t,), {"shape": shape})


publish(reshape, RESHAPE, numpy=np.reshape, method=True)


# -- transpose ---------------------------------------------------------------------------------------------------------
def _transpose_infer(x: Type, *, axes: tuple[int, ...]) -> Type:
    if sorted(axes) != list(range(x.ndim)):
        raise ValueError(f"transpose: axes {axes} are not a permutation of the {x.ndim} dims of shape {x.shape}")
    return Type(tuple(x.shape[a] for a in axes), x.dtype)


def _transpose_index(coords: Sequence[Index], types: Sequence[Type], *, axes: tuple[int, ...]) -> list[Part]:
    source = list(coords)
    for k, a in enumerate(axes):
        source[a] = coords[k]
    return [Part(0, tuple(source))]


TRANSPOSE = primitive(
    "transpose", "movement", infer=_transpose_infer, index=_transpose_index,
    eager=lambda x, *, axes: np.transpose(x, axes),
    transpose=lambda g, x, *, axes: permuted(g, tuple(int(a) for a in np.argsort(axes))),
    doc="Dims in another order.")


def transpose(x: Any, axes: Any = None) -> Tensor:
    """Dims in the order `axes`; reversed if not given.

    Raises ValueError if `axes` is not a permutation of the dims.

    >>> transpose([[1, 2, 3]]).shape, transpose(np.zeros((2, 3, 4)), (1, 2, 0)).shape
    ((3, 1), (3, 4, 2))
    """
    t = strong(x)
    order = tuple(range(t.ndim))[::-1] if axes is None else tuple(normalize_axis("transpose", a, t.ndim) for a in axes)
    return permuted(t, order)


def permuted(t: Tensor, order: tuple[int, ...]) -> Tensor:
    """`t` with dims in `order`."""
    return alias(t) if order == tuple(range(t.ndim)) else apply(TRANSPOSE, (t,), {"axes": order})


publish(transpose, TRANSPOSE, numpy=np.transpose)


def moved_axis(ndim: int, source: int, target: int) -> tuple[int, ...]:
    """The order of dims that moves dim `source` to `target`."""
    order = [k for k in range(ndim) if k != source]
    order.insert(target, source)
    return tuple(order)


# -- broadcast ---------------------------------------------------------------------------------------------------------
def _broadcast_infer(x: Type, *, shape: tuple[int, ...]) -> Type:
    lead = len(shape) - x.ndim
    if lead < 0 or any(not (n == m or n == 1) for n, m in zip(x.shape, shape[lead:])):
        raise ValueError(f"broadcast_to: shape {x.shape} does not broadcast to {shape}")
    return Type(shape, x.dtype)


def _broadcast_index(coords: Sequence[Index], types: Sequence[Type], *, shape: tuple[int, ...]) -> list[Part]:
    lead = len(shape) - types[0].ndim
    return [Part(0, tuple(c if n != 1 else Index() for c, n in zip(coords[lead:], types[0].shape)))]


def _broadcast_transpose(g: Tensor, x: Type, *, shape: tuple[int, ...]) -> Tensor:
    lead = len(shape) - x.ndim
    axes = (*range(lead), *(lead + k for k, n in enumerate(x.shape) if n == 1 and shape[lead + k] != 1))
    return reshaped(core.SUM(g, axis=axes) if axes else g, x.shape)


BROADCAST = primitive(
    "broadcast_to", "movement", infer=_broadcast_infer, index=_broadcast_index,
    eager=lambda x, *, shape: np.broadcast_to(x, shape),
    transpose=_broadcast_transpose, doc="Repeat along dims of extent 1 and new leading dims.")

provide(FULL=FULL, RESHAPE=RESHAPE, BROADCAST=BROADCAST)


def broadcast_to(x: Any, shape: Any) -> Tensor:
    """`x` repeated along new leading dims and dims of extent 1, to `shape`; ValueError if it does not fit.

    >>> broadcast_to([1, 2], (2, 2)).tolist()
    [[1, 2], [1, 2]]
    """
    t, shape = strong(x), shape_of(shape)
    return alias(t) if t.shape == shape else core.broadcast_to(t, shape)


publish(broadcast_to, BROADCAST, numpy=np.broadcast_to)


# -- slice and embed: each the transpose of the other ------------------------------------------------------------------
Ints = tuple[int, ...]


def slices(starts: Ints, sizes: Ints, steps: Ints) -> tuple[slice, ...]:
    """NumPy slices of `sizes` elements each, at starts, starts + steps, ..."""
    found = []
    for start, n, step in zip(starts, sizes, steps):
        stop: int | None = start + n * step
        found.append(slice(start, start) if n == 0 else slice(start, None if stop < 0 else stop, step))  # type: ignore[operator]
    return tuple(found)


def _check_window(name: str, shape: Ints, starts: Ints, sizes: Ints, steps: Ints) -> None:
    if not len(shape) == len(starts) == len(sizes) == len(steps):
        raise ValueError(f"{name}: starts {starts}, sizes {sizes}, steps {steps} are not one for each dim of {shape}")
    for extent, start, n, step in zip(shape, starts, sizes, steps):
        if n is extent and start == 0 and step == 1:  # all of a dim, which may be symbolic
            continue
        if n < 0 or step == 0 or (n > 0 and not (0 <= start < extent and 0 <= start + (n - 1) * step < extent)):
            raise ValueError(f"{name}: {n} elements from {start} by {step} do not lie within {extent} (shape {shape})")


def _slice_infer(x: Type, *, starts: Ints, sizes: Ints, steps: Ints) -> Type:
    _check_window("slice", x.shape, starts, sizes, steps)
    return Type(sizes, x.dtype)


def _slice_index(coords: Sequence[Index], types: Sequence[Type], *, starts: Ints, sizes: Ints,
                 steps: Ints) -> list[Part]:
    return [Part(0, tuple(c * step + start for c, start, step in zip(coords, starts, steps)))]


SLICE = primitive(
    "slice", "movement", infer=_slice_infer, index=_slice_index,
    eager=lambda x, *, starts, sizes, steps: x[slices(starts, sizes, steps)],
    transpose=lambda g, x, *, starts, sizes, steps: embed(g, x.shape, starts, steps),
    doc="Along each dim, `sizes` elements: those at starts, starts + steps, ... (steps may be negative).")


def _embed_infer(x: Type, *, shape: Ints, starts: Ints, steps: Ints, value: Any) -> Type:
    _check_window("embed", shape, starts, x.shape, steps)
    return Type(shape, x.dtype)


def _embed_index(coords: Sequence[Index], types: Sequence[Type], *, shape: Ints, starts: Ints, steps: Ints,
                 value: Any) -> list[Part]:
    at, guards = [], []
    for c, n, start, step in zip(coords, types[0].shape, starts, steps):
        ahead = c - start if step > 0 else c * -1 + start
        by = abs(step)
        at.append(ahead // by)
        guards += [Guard(ahead, 0, (n - 1) * by + 1)] + ([Guard(ahead % by, 0, 1)] if by > 1 else [])
    return [Part(0, tuple(at), tuple(guards))]


def _embed_eager(x: np.ndarray, *, shape: Ints, starts: Ints, steps: Ints, value: Any) -> np.ndarray:
    out = np.full(shape, value, x.dtype)
    out[slices(starts, x.shape, steps)] = x
    return out


EMBED = primitive(
    "embed", "movement", infer=_embed_infer, eager=_embed_eager, index=_embed_index,
    vjp=lambda g, y, x, *, shape, starts, steps, value: (window(g, starts, x.shape, steps),),
    jvp=lambda tangents, y, x, *, shape, starts, steps, value: embed(tangents[0], shape, starts, steps),
    doc="A tensor of `shape` holding x at starts, starts + steps, ... along each dim, and `value` elsewhere.")


def _plain_steps(sizes: Ints, steps: Ints) -> Ints:
    """One step for a dim that takes none, so that equal windows look equal."""
    return tuple(step if step == 1 or n > 1 else 1 for n, step in zip(sizes, steps))


def window(t: Tensor, starts: Ints, sizes: Ints, steps: Ints | None = None) -> Tensor:
    """`sizes` elements along each dim, from `starts` by `steps` (1 if not given)."""
    steps = _plain_steps(sizes, steps) if steps is not None else (1,) * len(starts)
    if sizes == t.shape and all((start == 0 and step == 1) or not n for start, step, n in zip(starts, steps, sizes)):
        return alias(t)
    starts = tuple(start if start == 0 or n else 0 for start, n in zip(starts, sizes))
    return apply(SLICE, (t,), {"starts": starts, "sizes": sizes, "steps": steps})


def embed(t: Tensor, shape: Ints, starts: Ints, steps: Ints | None = None,
          value: bool | int | float | complex = 0) -> Tensor:
    """The transpose of `window`: a tensor of `shape` that holds `t` there, and `value` elsewhere."""
    steps = _plain_steps(t.shape, steps) if steps is not None else (1,) * len(starts)
    if t.shape == shape and all((start == 0 and step == 1) or not n for start, step, n in zip(starts, steps, shape)):
        return alias(t)
    starts = tuple(start if start == 0 or n else 0 for start, n in zip(starts, t.shape))
    return apply(EMBED, (t,), {"shape": shape, "starts": starts, "steps": steps, "value": value})


def along(t: Tensor, axis: int, start: int, size: int, step: int = 1) -> Tensor:
    """`size` elements from `start` by `step` along one axis, everything along the others."""
    starts, sizes, steps = [0] * t.ndim, list(t.shape), [1] * t.ndim
    starts[axis], sizes[axis], steps[axis] = start, size, step
    return window(t, tuple(starts), tuple(sizes), tuple(steps))


# -- concat: an op with several parts ----------------------------------------------------------------------------------
def _concat_infer(*xs: Type, axis: int) -> Type:
    first = xs[0]
    if not 0 <= axis < first.ndim:
        raise np.exceptions.AxisError(f"concat: axis {axis} is out of bounds for shape {first.shape}")
    for x in xs[1:]:
        if x.dtype != first.dtype:
            raise TypeError(f"concat: dtypes {', '.join(str(t.dtype) for t in xs)} differ")
        if x.ndim != first.ndim or any(a != b for k, (a, b) in enumerate(zip(x.shape, first.shape)) if k != axis):
            shapes = ", ".join(str(t.shape) for t in xs)
            raise ValueError(f"concat: shapes {shapes} differ beside axis {axis}; all other sizes must be the same")
    shape = list(first.shape)
    shape[axis] = sum(x.shape[axis] for x in xs)
    return Type(tuple(shape), first.dtype)


def _concat_index(coords: Sequence[Index], types: Sequence[Type], *, axis: int) -> list[Part]:
    parts, start = [], 0
    for k, t in enumerate(types):
        inside = coords[axis] - start
        parts.append(Part(k, (*coords[:axis], inside, *coords[axis + 1:]), (Guard(inside, 0, t.shape[axis]),)))
        start += t.shape[axis]
    return parts


def _concat_transpose(g: Tensor, *xs: Type, axis: int) -> tuple[Tensor, ...]:
    parts, start = [], 0
    for x in xs:
        parts.append(along(g, axis, start, x.shape[axis]))
        start += x.shape[axis]
    return tuple(parts)


CONCAT = primitive(
    "concat", "movement", infer=_concat_infer, index=_concat_index, transpose=_concat_transpose,
    eager=lambda *xs, axis: np.concatenate(xs, axis=axis), doc="Tensors one after the other along `axis`.")


def joined(ts: Sequence[Tensor], axis: int) -> Tensor:
    """Tensors of one dtype, one after the other along `axis`."""
    return alias(ts[0]) if len(ts) == 1 else apply(CONCAT, ts, {"axis": axis})


__all__ = ["reshape", "transpose", "broadcast_to"]
