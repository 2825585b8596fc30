"""Products: matmul, the primitive, and what is made of it.

In: tensors. Out: matmul dot vdot vecdot inner outer tensordot kron cross trace (einsum is in `einsum.py`). The
primitive is strict: `a[..., m, k]` by `b[..., k, n]` with equal batch dims; vectors and broadcasting are handled at the
door.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracejit.ir import Type
from tracejit.ops import core
from tracejit.ops import elementwise as ew
from tracejit.ops.core import broadcast_shape, composite, convert, normalize_axis, primitive, publish, same, strong
from tracejit.ops.movement import along, joined, permuted, reshaped
from tracejit.ops.reduction import sum as _sum
from tracejit.tensor import Tensor, apply, state, wrap


def _matmul_infer(a: Type, b: Type) -> Type:
    if a.dtype != b.dtype:
        raise TypeError(f"matmul: dtypes {a.dtype} and {b.dtype} differ")
    if a.ndim < 2 or a.ndim != b.ndim or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matmul: shapes {a.shape} and {b.shape} do not match")
    return Type((*a.shape[:-1], b.shape[-1]), a.dtype)


def swapped(t: Tensor) -> Tensor:
    """The last two dims swapped."""
    return permuted(t, (*range(t.ndim - 2), t.ndim - 1, t.ndim - 2))


def _adjoint(t: Tensor) -> Tensor:
    return swapped(ew.conj(t) if t.dtype.kind == "c" else t)


def _matmul_jvp(tangents: Sequence[Tensor | None], y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    terms = [product(t, b) if k == 0 else product(a, t) for k, t in enumerate(tangents) if t is not None]
    return terms[0] if len(terms) == 1 else terms[0] + terms[1]  # type: ignore[operator]


MATMUL = primitive(
    "matmul", "library", infer=_matmul_infer, eager=np.matmul, domain=(-2, 2),
    vjp=lambda g, y, a, b: (product(g, _adjoint(b)), product(_adjoint(a), g)), jvp=_matmul_jvp,
    doc="Matrix product over the last two dims.")


def _eager(a: Any, b: Any) -> Any:
    """NumPy's matmul; a stack of matrices by one matrix as one product."""
    if a.ndim > 2 and b.ndim == 2:
        return np.matmul(a.reshape(-1, a.shape[-1]), b).reshape(*a.shape[:-1], b.shape[-1])
    return np.matmul(a, b)


def product(a: Tensor, b: Tensor) -> Tensor:
    """The strict matrix product."""
    return apply(MATMUL, (a, b), {})


def _columns_infer(a: Type, b: Type) -> Type:
    if a.dtype != b.dtype:
        raise TypeError(f"column_product: dtypes {a.dtype} and {b.dtype} differ")
    if b.ndim < 2 or a.ndim != b.ndim + 1 or (*a.shape[:-3], *a.shape[-2:]) != b.shape:
        raise ValueError(f"column_product: shapes {a.shape} and {b.shape} do not match")
    return Type((*a.shape[:-2], a.shape[-1]), a.dtype)


def _columns_vjp(g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Of a: each element's partner in b, at each row; of b: another product of columns."""
    a, b = (ew.conj(t) if t.dtype.kind == "c" else t for t in (a, b))
    here, there = (core.broadcast_to(reshaped(t, (*t.shape[:-back], 1, *t.shape[-back:])), a.shape)
                   for t, back in ((g, 1), (b, 2)))
    last = a.ndim
    turned = permuted(a, (*range(last - 3), last - 2, last - 3, last - 1))
    return here * there, column_product(turned, g)  # type: ignore[operator]


def _columns_jvp(tangents: Sequence[Tensor | None], y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    terms = [column_product(t, b) if k == 0 else column_product(a, t) for k, t in enumerate(tangents) if t is not None]
    return terms[0] if len(terms) == 1 else terms[0] + terms[1]  # type: ignore[operator]


COLUMNS = primitive(
    "column_product", "library", infer=_columns_infer, domain=(-2, 2),
    eager=lambda a, b: np.einsum("...mkn,...kn->...mn", a, b), vjp=_columns_vjp, jvp=_columns_jvp,
    doc="Each column by itself: y[..., m, n] = sum over k of a[..., m, k, n] b[..., k, n].")


def column_product(a: Tensor, b: Tensor) -> Tensor:
    """The strict product of columns."""
    return apply(COLUMNS, (a, b), {})


def promoted(name: str, *xs: Any) -> list[Tensor]:
    """Tensors of one common dtype."""
    operands, dtype, _ = convert(name, xs, same)
    return [x if isinstance(x, Tensor) else core.full(x, (), dtype) for x in operands]


def matmul(x1: Any, x2: Any, /) -> Tensor:
    """Matrix product of the last two dims; leading dims broadcast; a vector counts as a row (left) or a column (right).

    Raises ValueError if the inner extents differ, or if an operand is a scalar.

    >>> matmul([[1., 2.], [3., 4.]], [1., 10.]).tolist()
    [21.0, 43.0]
    """
    if not state.active and type(x1) is Tensor and type(x2) is Tensor and x1.dtype is x2.dtype and x2.ndim <= 2:
        try:
            return wrap(np.asarray(_eager(x1._value, x2._value)))
        except ValueError:  # the messages below say more
            pass
    a, b = promoted("matmul", x1, x2)
    if not a.ndim or not b.ndim:
        raise ValueError(f"matmul: operands must have dims, got {a.shape} and {b.shape}; multiply scalars with *")
    left, right = a.ndim == 1, b.ndim == 1
    if a.shape[-1] != b.shape[0 if right else -2]:
        raise ValueError(f"matmul: shapes {a.shape} and {b.shape} do not match: {a.shape[-1]} columns meet "
                         f"{b.shape[0 if right else -2]} rows (dtypes {a.dtype}, {b.dtype})")
    a = reshaped(a, (1, *a.shape)) if left else a
    b = reshaped(b, (*b.shape, 1)) if right else b
    out = _batched(a, b)
    if left or right:
        shape = out.shape[:-2] + (() if left else out.shape[-2:-1]) + (() if right else out.shape[-1:])
        out = reshaped(out, shape)
    return out


def _batched(a: Tensor, b: Tensor) -> Tensor:
    """Matrices with leading dims that broadcast."""
    if a.ndim == b.ndim and a.shape[:-2] == b.shape[:-2]:
        return product(a, b)
    if b.ndim == 2:  # one matrix for all: the leading dims are more rows
        rows = reshaped(a, (a.size // a.shape[-1] if a.shape[-1] else _count(a.shape[:-1]), a.shape[-1]))
        return reshaped(product(rows, b), (*a.shape[:-1], b.shape[-1]))
    batch = broadcast_shape("matmul", [a.shape[:-2], b.shape[:-2]], [a.dtype, b.dtype])
    return product(core.broadcast_to(a, batch + a.shape[-2:]), core.broadcast_to(b, batch + b.shape[-2:]))


def _count(shape: tuple[int, ...]) -> int:
    n = 1
    for e in shape:
        n *= e
    return n


publish(matmul, MATMUL, numpy=np.matmul, dunder="matmul")


@composite(numpy=np.dot, method=True)
def dot(x1: Any, x2: Any, /) -> Tensor:
    """As NumPy's dot: scalars multiply; else the last dim of x1 meets the second-last of x2 (the only one of a vector).

    >>> dot([1, 2], [3, 4]).item()
    11
    """
    a, b = promoted("dot", x1, x2)
    if not a.ndim or not b.ndim:
        return a * b  # type: ignore[operator]
    if a.ndim <= 2 and b.ndim <= 2:
        return matmul(a, b)
    return tensordot(a, b, ([a.ndim - 1], [builtins.max(b.ndim - 2, 0)]))


@composite(numpy=np.tensordot)
def tensordot(x1: Any, x2: Any, /, axes: Any = 2) -> Tensor:
    """Sum of products over pairs of axes: the last `axes` of x1 with the first of x2, or a pair of sequences.

    >>> tensordot(np.ones((2, 3, 4)), np.ones((3, 4, 5))).shape
    (2, 5)
    """
    a, b = promoted("tensordot", x1, x2)
    if hasattr(axes, "__index__"):
        n = operator.index(axes)
        of_a, of_b = list(range(a.ndim - n, a.ndim)), list(range(n))
        if n < 0 or n > builtins.min(a.ndim, b.ndim):
            raise ValueError(f"tensordot: axes={n} for shapes {a.shape} and {b.shape}")
    else:
        given = [k if isinstance(k, (list, tuple)) else [k] for k in axes]
        of_a, of_b = ([normalize_axis("tensordot", k, t.ndim) for k in ks] for ks, t in zip(given, (a, b)))
    if [a.shape[k] for k in of_a] != [b.shape[k] for k in of_b]:
        raise ValueError(f"tensordot: axes {of_a} of shape {a.shape} do not match axes {of_b} of shape {b.shape}")
    rest_a = [k for k in range(a.ndim) if k not in of_a]
    rest_b = [k for k in range(b.ndim) if k not in of_b]
    shape = tuple(a.shape[k] for k in rest_a) + tuple(b.shape[k] for k in rest_b)
    inner = _count(tuple(a.shape[k] for k in of_a))
    left = reshaped(permuted(a, (*rest_a, *of_a)), (_count(tuple(a.shape[k] for k in rest_a)), inner))
    right = reshaped(permuted(b, (*of_b, *rest_b)), (inner, _count(tuple(b.shape[k] for k in rest_b))))
    return reshaped(product(left, right), shape)


@composite(numpy=np.inner)
def inner(x1: Any, x2: Any, /) -> Tensor:
    """Sum of products over the last axes of both."""
    a, b = promoted("inner", x1, x2)
    return a * b if not a.ndim or not b.ndim else tensordot(a, b, ([a.ndim - 1], [b.ndim - 1]))  # type: ignore[operator]


@composite(numpy=np.outer)
def outer(x1: Any, x2: Any, /) -> Tensor:
    """Every element of x1 times every element of x2: a matrix.

    >>> outer([1, 2], [10, 20, 30]).tolist()
    [[10, 20, 30], [20, 40, 60]]
    """
    a, b = promoted("outer", x1, x2)
    return reshaped(a, (a.size, 1)) * reshaped(b, (1, b.size))  # type: ignore[operator]


@composite(numpy=np.vdot)
def vdot(x1: Any, x2: Any, /) -> Tensor:
    """Sum of conj(x1) * x2 over all elements."""
    a, b = promoted("vdot", x1, x2)
    return matmul(ew.conj(reshaped(a, (a.size,))), reshaped(b, (b.size,)))


@composite(numpy=np.vecdot)
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Tensor:
    """Sum of conj(x1) * x2 over one axis; the others broadcast."""
    a, b = promoted("vecdot", x1, x2)
    products = (ew.conj(a) if a.dtype.kind == "c" else a) * b  # type: ignore[operator]
    return core.cast(_sum(products, axis=axis), a.dtype)  # a narrow integer wraps, as in every product


@composite(numpy=np.kron)
def kron(x1: Any, x2: Any, /) -> Tensor:
    """Kronecker product: every element of x1 times the whole of x2, in blocks."""
    a, b = promoted("kron", x1, x2)
    ndim = builtins.max(a.ndim, b.ndim)
    sa, sb = (1,) * (ndim - a.ndim) + a.shape, (1,) * (ndim - b.ndim) + b.shape
    left = reshaped(a, tuple(e for n in sa for e in (n, 1)))
    right = reshaped(b, tuple(e for n in sb for e in (1, n)))
    return reshaped(left * right, tuple(n * m for n, m in zip(sa, sb)))  # type: ignore[operator]


@composite(numpy=np.cross)
def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Tensor:
    """Vector product over an axis of 3 components; ValueError for another extent.

    >>> cross([1, 0, 0], [0, 1, 0]).tolist()
    [0, 0, 1]
    """
    a, b = promoted("cross", x1, x2)
    shape = broadcast_shape("cross", [a.shape, b.shape], [a.dtype, b.dtype])
    a, b = core.broadcast_to(a, shape), core.broadcast_to(b, shape)
    k = normalize_axis("cross", axis, len(shape))
    if shape[k] != 3:
        raise ValueError(f"cross: axis {k} of shape {shape} must have 3 components")
    (a0, a1, a2), (b0, b1, b2) = ([along(t, k, i, 1) for i in range(3)] for t in (a, b))
    parts = [a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0]  # type: ignore[operator]
    return joined(parts, k)


@composite(numpy=np.diagonal, method=True)
def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The diagonals over two axes, as the last dim; `offset` counts to the right of the main one."""
    t = strong(x)
    if t.ndim < 2:
        raise ValueError(f"diagonal: needs two dims, got shape {t.shape}")
    i, j = normalize_axis("diagonal", axis1, t.ndim), normalize_axis("diagonal", axis2, t.ndim)
    if i == j:
        raise ValueError(f"diagonal: axes {axis1} and {axis2} are the same")
    rest = [k for k in range(t.ndim) if k not in (i, j)]
    t = permuted(t, (*rest, i, j))
    rows, columns = t.shape[-2:]
    offset = operator.index(offset)
    start = offset if offset >= 0 else -offset * columns
    n = builtins.max(0, builtins.min(rows + builtins.min(offset, 0), columns - builtins.max(offset, 0)))
    flat = reshaped(t, (*t.shape[:-2], rows * columns))
    return along(flat, flat.ndim - 1, start, n, columns + 1)


@composite(numpy=np.trace, method=True)
def trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Tensor:
    """Sum of the diagonals over two axes.

    >>> trace([[1, 2], [3, 4]]).item()
    5
    """
    return _sum(diagonal(x, offset, axis1, axis2), axis=-1, dtype=dtype)


__all__ = ["matmul", "dot", "tensordot", "inner", "outer", "vdot", "vecdot", "kron", "cross", "diagonal", "trace"]
