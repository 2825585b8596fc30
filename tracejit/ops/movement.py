"""Movement primitives: the result shows elements of the inputs at other coordinates, one declaration each.

In: tensors. Out: reshape, transpose, broadcast, slice, embed, concat; everything else that moves data is made of these.
An op's `index(coords, types, **attrs)` gives, for a coordinate of the result, the `Part`s of the inputs that it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.ir import Type
from tracejit.lower.index import Guard, Index, Part, dim, reshape_coords
from tracejit.ops.core import as_tensor, broadcast_to, normalize_axis, primitive, provide, publish
from tracejit.ops.reduction import sum as _sum
from tracejit.tensor import Tensor, apply


# -- source: a constant-filled tensor ------------------------------------------------------------------------------------
FULL = primitive(
    "full", "source", infer=lambda *, shape, value, dtype: Type(shape, dtypes.as_dtype(dtype)),
    eager=lambda *, shape, value, dtype: np.full(shape, value, dtype),
    scalar=lambda at, *, shape, value, dtype: at.const(value, dtype), doc="A tensor filled with one number.")


# -- reshape --------------------------------------------------------------------------------------------------------------
def _reshape_infer(x: Type, *, shape: tuple[int, ...]) -> Type:
    out = Type(shape, x.dtype)
    if out.size != x.size:
        raise ValueError(f"reshape: {x.size} elements of shape {x.shape} do not fit shape {shape}")
    return out


def _reshape_index(coords: Sequence[Index], types: Sequence[Type], *, shape: tuple[int, ...]) -> list[Part]:
    return [Part(0, reshape_coords(coords, shape, types[0].shape))]


RESHAPE = primitive(
    "reshape", "movement", infer=_reshape_infer, eager=lambda x, *, shape: np.reshape(x, shape), index=_reshape_index,
    transpose=lambda g, x, *, shape: apply(RESHAPE, (g,), {"shape": x.shape}), doc="The same elements in another shape.")


def reshape(x: Any, shape: Any, *more: int) -> Tensor:
    t = as_tensor(x)
    given = tuple(shape) if isinstance(shape, (tuple, list)) else (shape, *more)
    sizes = [int(n) for n in (s.__index__() for s in given)]
    if sizes.count(-1) > 1 or any(n < -1 for n in sizes):
        raise ValueError(f"reshape: shape {tuple(sizes)} has more than one unknown dim or a negative one")
    if -1 in sizes:
        known = 1
        for n in sizes:
            known *= n if n != -1 else 1
        if known == 0 or t.size % known:
            raise ValueError(f"reshape: {t.size} elements of shape {t.shape} do not fit shape {tuple(sizes)}")
        sizes[sizes.index(-1)] = t.size // known
    target = tuple(sizes)
    return t if target == t.shape else apply(RESHAPE, (t,), {"shape": target})


publish(reshape, RESHAPE, numpy=np.reshape, method=True)


# -- transpose ------------------------------------------------------------------------------------------------------------
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
    "transpose", "movement", infer=_transpose_infer, eager=lambda x, *, axes: np.transpose(x, axes), index=_transpose_index,
    transpose=lambda g, x, *, axes: apply(TRANSPOSE, (g,), {"axes": tuple(int(a) for a in np.argsort(axes))}),
    doc="Dims in another order.")


def transpose(x: Any, axes: Any = None) -> Tensor:
    t = as_tensor(x)
    order = tuple(range(t.ndim))[::-1] if axes is None else tuple(normalize_axis("transpose", a, t.ndim) for a in axes)
    return t if order == tuple(range(t.ndim)) else apply(TRANSPOSE, (t,), {"axes": order})


publish(transpose, TRANSPOSE, numpy=np.transpose)


# -- broadcast ------------------------------------------------------------------------------------------------------------
def _broadcast_infer(x: Type, *, shape: tuple[int, ...]) -> Type:
    lead = len(shape) - x.ndim
    if lead < 0 or any(n not in (1, m) for n, m in zip(x.shape, shape[lead:])):
        raise ValueError(f"broadcast_to: shape {x.shape} does not broadcast to {shape}")
    return Type(shape, x.dtype)


def _broadcast_index(coords: Sequence[Index], types: Sequence[Type], *, shape: tuple[int, ...]) -> list[Part]:
    lead = len(shape) - types[0].ndim
    return [Part(0, tuple(c if n != 1 else Index() for c, n in zip(coords[lead:], types[0].shape)))]


def _broadcast_transpose(g: Tensor, x: Type, *, shape: tuple[int, ...]) -> Tensor:
    lead = len(shape) - x.ndim
    axes = (*range(lead), *(lead + k for k, n in enumerate(x.shape) if n == 1 and shape[lead + k] != 1))
    out = _sum(g, axis=axes) if axes else g
    return reshape(out, x.shape)


BROADCAST = primitive(
    "broadcast_to", "movement", infer=_broadcast_infer, eager=lambda x, *, shape: np.broadcast_to(x, shape), index=_broadcast_index,
    transpose=_broadcast_transpose, doc="Repeat along dims of extent 1 and new leading dims.")

provide(FULL=FULL, RESHAPE=RESHAPE, BROADCAST=BROADCAST)


# -- concat: the pattern of an op with several parts ---------------------------------------------------------------------
def _concat_infer(*xs: Type, axis: int) -> Type:
    first = xs[0]
    for x in xs[1:]:
        if x.ndim != first.ndim or x.dtype != first.dtype or any(a != b for k, (a, b) in enumerate(zip(x.shape, first.shape)) if k != axis):
            raise ValueError(f"concat: shapes {', '.join(str(t.shape) for t in xs)} differ beside axis {axis}")
    shape = list(first.shape)
    shape[axis] = sum(x.shape[axis] for x in xs)
    return Type(tuple(shape), first.dtype)


def _concat_index(coords: Sequence[Index], types: Sequence[Type], *, axis: int) -> list[Part]:
    parts, start = [], 0
    for k, t in enumerate(types):
        along = coords[axis] - start
        parts.append(Part(k, (*coords[:axis], along, *coords[axis + 1:]), (Guard(along, 0, t.shape[axis]),)))
        start += t.shape[axis]
    return parts
