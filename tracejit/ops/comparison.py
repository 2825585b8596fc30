"""Elementwise primitives that test and that work on bits: comparisons, logic, shifts; one declaration each.

In: promoted, broadcast operands. Out: one public function per op, and plain functions made of them. None has a
derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.lower import mathlib, scalar
from tracejit.ops import core
from tracejit.ops.core import (
    as_tensor,
    boolean,
    composite,
    elementwise,
    integral,
    logical,
    real_test,
)
from tracejit.ops.elementwise import abs as _abs
from tracejit.ops.elementwise import like_numbers
from tracejit.tensor import Tensor

Scalar = Any  # a scalar `Value` or `Complex`

# -- comparisons -------------------------------------------------------------------------------------------------------
equal = elementwise("equal", arity=2, dtype=boolean, eager=np.equal, numpy=np.equal, dunder="eq", domain=(-2, 2),
                    scalar=lambda x, y: x == y, doc="x1 == x2, elementwise.")
not_equal = elementwise("not_equal", arity=2, dtype=boolean, eager=np.not_equal, numpy=np.not_equal, dunder="ne",
                        domain=(-2, 2), scalar=lambda x, y: x != y, doc="x1 != x2, elementwise.")
less = elementwise("less", arity=2, dtype=boolean, eager=np.less, numpy=np.less, dunder="lt", domain=(-2, 2),
                   scalar=lambda x, y: x < y, doc="x1 < x2, elementwise.")
less_equal = elementwise("less_equal", arity=2, dtype=boolean, eager=np.less_equal, numpy=np.less_equal, dunder="le",
                         domain=(-2, 2), scalar=lambda x, y: x <= y, doc="x1 <= x2, elementwise.")
greater = elementwise("greater", arity=2, dtype=boolean, eager=np.greater, numpy=np.greater, dunder="gt",
                      domain=(-2, 2), scalar=lambda x, y: x > y, doc="x1 > x2, elementwise.")
greater_equal = elementwise("greater_equal", arity=2, dtype=boolean, eager=np.greater_equal, numpy=np.greater_equal,
                            dunder="ge", domain=(-2, 2), scalar=lambda x, y: x >= y, doc="x1 >= x2, elementwise.")


# -- kinds of numbers --------------------------------------------------------------------------------------------------
def _either(test: Callable[[Scalar], Scalar], both: bool = False) -> Callable[[Scalar], Scalar]:
    """The test on a number, or on the parts of a complex one."""
    def rule(x: Scalar) -> Scalar:
        if not isinstance(x, scalar.Complex):
            return test(x)
        return test(x.re) & test(x.im) if both else test(x.re) | test(x.im)

    return rule


isnan = elementwise("isnan", arity=1, dtype=boolean, eager=np.isnan, numpy=np.isnan, domain=(-2, 2),
                    scalar=_either(mathlib.isnan), doc="Whether x is not a number, elementwise.")
isinf = elementwise("isinf", arity=1, dtype=boolean, eager=np.isinf, numpy=np.isinf, domain=(-2, 2),
                    scalar=_either(mathlib.isinf), doc="Whether x is infinite, elementwise.")
isfinite = elementwise("isfinite", arity=1, dtype=boolean, eager=np.isfinite, numpy=np.isfinite, domain=(-2, 2),
                       scalar=_either(mathlib.isfinite, both=True), doc="Whether x is neither nan nor infinite.")
signbit = elementwise("signbit", arity=1, dtype=real_test, numpy=np.signbit, domain=(-2, 2), scalar=mathlib.signbit,
                      eager=lambda x: np.signbit(x) if x.dtype.kind == "f" else x < 0,
                      doc="Whether the sign bit is set, elementwise (true for -0.0).")


@composite(numpy=np.isposinf)
def isposinf(x: Any) -> Tensor:
    """Whether x is positive infinity, elementwise."""
    return equal(x, float("inf"))


@composite(numpy=np.isneginf)
def isneginf(x: Any) -> Tensor:
    """Whether x is negative infinity, elementwise."""
    return equal(x, float("-inf"))


# -- logic -------------------------------------------------------------------------------------------------------------
logical_and = elementwise("logical_and", arity=2, dtype=logical, eager=np.logical_and, numpy=np.logical_and,
                          domain=(-2, 2), scalar=lambda x, y: x & y, doc="Whether both are nonzero, elementwise.")
logical_or = elementwise("logical_or", arity=2, dtype=logical, eager=np.logical_or, numpy=np.logical_or,
                         domain=(-2, 2), scalar=lambda x, y: x | y, doc="Whether either is nonzero, elementwise.")
logical_xor = elementwise("logical_xor", arity=2, dtype=logical, eager=np.logical_xor, numpy=np.logical_xor,
                          domain=(-2, 2), scalar=lambda x, y: x ^ y, doc="Whether exactly one is nonzero, elementwise.")
logical_not = elementwise("logical_not", arity=1, dtype=logical, eager=np.logical_not, numpy=np.logical_not,
                          domain=(-2, 2), scalar=lambda x: ~x, doc="Whether x is zero, elementwise.")

# -- bits --------------------------------------------------------------------------------------------------------------
bitwise_and = elementwise("bitwise_and", arity=2, dtype=integral, eager=np.bitwise_and, numpy=np.bitwise_and,
                          dunder="and", domain=(-20, 20), scalar=lambda x, y: x & y, doc="x1 & x2, elementwise.")
bitwise_or = elementwise("bitwise_or", arity=2, dtype=integral, eager=np.bitwise_or, numpy=np.bitwise_or, dunder="or",
                         domain=(-20, 20), scalar=lambda x, y: x | y, doc="x1 | x2, elementwise.")
bitwise_xor = elementwise("bitwise_xor", arity=2, dtype=integral, eager=np.bitwise_xor, numpy=np.bitwise_xor,
                          dunder="xor", domain=(-20, 20), scalar=lambda x, y: x ^ y, doc="x1 ^ x2, elementwise.")
bitwise_invert = elementwise("bitwise_invert", arity=1, dtype=integral, eager=np.invert, numpy=np.invert,
                             dunder="invert", domain=(-20, 20), scalar=lambda x: ~x,
                             doc="~x, elementwise; of bools, logical not.")


def _integer(d: np.dtype) -> tuple[np.dtype, np.dtype]:
    """Integers; bool becomes the default integer."""
    d = dtypes.default_int() if d.kind == "b" else d
    return integral(d)


def _shift_left(x: Scalar, y: Scalar) -> Scalar:
    inside, count = _count(y)
    return scalar.select(inside, x << count, 0)


def _shift_right(x: Scalar, y: Scalar) -> Scalar:
    inside, count = _count(y)
    return scalar.select(inside, x >> count, (x >> (x.dtype.itemsize * 8 - 1)) if x.dtype.kind == "i" else 0)


def _count(y: Scalar) -> tuple[Scalar, Scalar]:
    """Whether a shift count lies inside the width, and the count made safe."""
    inside = (y >= 0) & (y < y.dtype.itemsize * 8)
    return inside, scalar.select(inside, y, 0)


bitwise_left_shift = elementwise("bitwise_left_shift", arity=2, dtype=_integer, eager=np.left_shift,
                                 numpy=np.left_shift, dunder="lshift", domain=((-20, 20), (0, 9)), scalar=_shift_left,
                                 doc="x1 << x2, elementwise; 0 for a count of the width or more.")
bitwise_right_shift = elementwise("bitwise_right_shift", arity=2, dtype=_integer, eager=np.right_shift,
                                  numpy=np.right_shift, dunder="rshift", domain=((-20, 20), (0, 9)),
                                  scalar=_shift_right, doc="x1 >> x2, elementwise; arithmetic for signed integers.")


# -- closeness ---------------------------------------------------------------------------------------------------------
@composite(numpy=np.isclose)
def isclose(x1: Any, x2: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """abs(x1 - x2) <= atol + rtol * abs(x2), elementwise; equal infinities are close, and nans if `equal_nan`.

    >>> isclose([1.0, 2.0], [1.0 + 1e-7, 2.1]).tolist()
    [True, False]
    """
    a, b = _inexact(x1), _inexact(x2)
    near = less_equal(_abs(a - b), atol + rtol * _abs(b))
    close = (near & isfinite(b)) | equal(a, b)
    return close | (isnan(a) & isnan(b)) if equal_nan else close


def _inexact(x: Any) -> Tensor:
    t = core.strong(x)
    return t if t.dtype.kind in "fc" else core.cast(t, dtypes.float64)


@composite(numpy=np.allclose)
def allclose(x1: Any, x2: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Whether all elements are close, see `isclose`; a 0-d bool tensor.

    >>> bool(allclose([1.0, 2.0], [1.0, 2.0]))
    True
    """
    return core.ALL(isclose(x1, x2, rtol, atol, equal_nan))


@composite(numpy=np.array_equal)
def array_equal(x1: Any, x2: Any, equal_nan: bool = False) -> Tensor:
    """Whether shapes and all elements are equal; a 0-d bool tensor.

    >>> bool(array_equal([1, 2], [1.0, 2.0])), bool(array_equal([1, 2], [1]))
    (True, False)
    """
    a, b = as_tensor(x1), as_tensor(x2)
    if a.shape != b.shape:
        return core.full(False, (), dtypes.bool_)
    same = equal(a, b)
    return core.ALL(same | (isnan(a) & isnan(b)) if equal_nan else same)


like_numbers("eq", "ne", "lt", "le", "gt", "ge")

# -- aliases -----------------------------------------------------------------------------------------------------------
bitwise_not = invert = bitwise_invert
left_shift, right_shift = bitwise_left_shift, bitwise_right_shift

__all__ = [
    "allclose", "array_equal", "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_not", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "equal", "greater", "greater_equal", "invert", "isclose", "isfinite", "isinf",
    "isnan", "isneginf", "isposinf", "left_shift", "less", "less_equal", "logical_and", "logical_not", "logical_or",
    "logical_xor", "not_equal", "right_shift", "signbit",
]
