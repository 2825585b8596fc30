"""Elementwise primitives, one declaration each.

In: promoted, broadcast operands. Out: one public function per op. See `core.elementwise` for the fields.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.ir import Op, Type
from tracejit.lower import mathlib, scalar
from tracejit.ops.core import (
    boolean,
    elementwise,
    floating,
    primitive,
    provide,
    real_result,
    same,
)
from tracejit.tensor import Tensor


def _cast_vjp(g: Tensor, y: Tensor, x: Tensor, *, dtype: str) -> tuple[Tensor | None]:
    if x.dtype.kind not in "fc" or y.dtype.kind not in "fc":
        return (None,)
    g = real(g) if g.dtype.kind == "c" and x.dtype.kind != "c" else g
    return (g if g.dtype == x.dtype else g.astype(x.dtype),)  # type: ignore[attr-defined]


def _cast_eager(x: np.ndarray, *, dtype: str) -> np.ndarray:
    if x.dtype.kind == "c" and np.dtype(dtype).kind not in "cb":
        x = x.real
    return x.astype(dtype)


CAST: Op = primitive(
    "cast", "elementwise", infer=lambda x, *, dtype: Type(x.shape, dtypes.as_dtype(dtype)), eager=_cast_eager,
    scalar=lambda x, *, dtype: scalar.cast(x, dtype), vjp=_cast_vjp,
    doc="The same values in another dtype; complex to real keeps the real part.")

# mul_zero(g, p) is g * p with an exact zero of g winning over nan and inf of p. It carries cotangents, so that a masked or
# singular point gives a zero gradient; its own derivative is the ordinary one, so second derivatives are right.
mul_zero = elementwise(
    "mul_zero", arity=2, dtype=same, eager=lambda g, p: np.where(g == 0, np.zeros((), g.dtype), g * p),
    scalar=lambda g, p: scalar.select(g == 0, 0, g * p), partials=lambda y, g, p: (p, g), domain=(-2, 2),
    doc="g * p, and exactly 0 where g is 0, whatever p is (the multiplication of reverse-mode derivatives).")

add = elementwise("add", arity=2, dtype=same, eager=np.add, numpy=np.add, dunder="add", domain=(-2, 2),
                  scalar=lambda x, y: (x | y) if x.dtype.kind == "b" else x + y, partials=lambda z, x, y: (1, 1),
                  doc="Sum, elementwise; of bools, their logical or.")
mul = elementwise("multiply", arity=2, dtype=same, eager=np.multiply, numpy=np.multiply, dunder="mul", domain=(-2, 2),
                  scalar=lambda x, y: (x & y) if x.dtype.kind == "b" else x * y, partials=lambda z, x, y: (y, x),
                  doc="Product, elementwise; of bools, their logical and.")
multiply = mul
neg = elementwise("negative", arity=1, dtype=same, eager=np.negative, numpy=np.negative, dunder="neg", domain=(-2, 2),
                  scalar=lambda x: -x, partials=lambda y, x: -1, doc="Minus x, elementwise.")
negative = neg
exp = elementwise("exp", arity=1, dtype=floating, eager=np.exp, numpy=np.exp, domain=(-2, 2), cost=20, method=False,
                  scalar=mathlib.exp, partials=lambda y, x: y, doc="e to the power x, elementwise.")
less = elementwise("less", arity=2, dtype=boolean, eager=np.less, numpy=np.less, dunder="lt", domain=(-2, 2),
                   scalar=lambda x, y: x < y, doc="x < y, elementwise.")


def _real_scalar(x: Any) -> Any:
    return x.re if isinstance(x, scalar.Complex) else x


def _complex_like(g: Tensor, x: Tensor) -> Tensor:
    return g.astype(x.dtype) if x.dtype.kind == "c" else g  # type: ignore[attr-defined]


real = elementwise("real", arity=1, dtype=real_result, eager=np.real, numpy=np.real, scalar=_real_scalar, domain=(-2, 2),
                   vjp=lambda g, y, x: (_complex_like(g, x),), doc="Real part, elementwise.")
conj = elementwise("conj", arity=1, dtype=same, eager=np.conj, numpy=np.conj, domain=(-2, 2),
                   scalar=lambda x: x.conj() if isinstance(x, scalar.Complex) else x,
                   vjp=lambda g, y, x: (conj(g),), doc="Complex conjugate, elementwise.")

provide(CAST=CAST, MUL_ZERO=mul_zero, CONJ=conj, REAL=real)
