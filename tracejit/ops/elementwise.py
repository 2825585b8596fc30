"""Elementwise primitives: casts, arithmetic, parts of complex numbers, choosing, rounding; one declaration each.

In: promoted, broadcast operands. Out: one public function per op. See `core.elementwise` for the fields; below each
group of primitives come the plain functions made of them.

Read next: `comparison.py` (tests and bits), `special.py` (exponentials, trigonometry, activations).
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.ir import Op, Type
from tracejit.lower import mathlib, scalar
from tracejit.ops import core
from tracejit.ops.core import (
    OpFunction,
    arithmetic,
    as_tensor,
    elementwise,
    expose,
    floating,
    numeric,
    primitive,
    provide,
    publish,
    real_floating,
    real_numeric,
    real_ordered,
    real_result,
    same,
    strong,
)
from tracejit.tensor import NUMPY_FUNCTIONS, Number, Tensor

Scalar = Any  # a scalar `Value` or `Complex`


# -- casts -------------------------------------------------------------------------------------------------------------
def _cast_vjp(g: Tensor, y: Tensor, x: Tensor, *, dtype: str) -> tuple[Tensor | None]:
    if x.dtype.kind not in "fc" or y.dtype.kind not in "fc":
        return (None,)
    return (core.cast(g, x.dtype),)


def _cast_jvp(tangents: Sequence[Tensor], y: Tensor, x: Tensor, *, dtype: str) -> Tensor | None:
    return core.cast(tangents[0], y.dtype) if x.dtype.kind in "fc" and y.dtype.kind in "fc" else None


def _cast_eager(x: np.ndarray, *, dtype: str) -> np.ndarray:
    if x.dtype.kind == "c" and np.dtype(dtype).kind not in "cb":
        x = x.real
    return x.astype(dtype)


CAST: Op = primitive(
    "cast", "elementwise", infer=lambda x, *, dtype: Type(x.shape, dtypes.as_dtype(dtype)), eager=_cast_eager,
    scalar=lambda x, *, dtype: scalar.cast(x, dtype), vjp=_cast_vjp, jvp=_cast_jvp,
    doc="The same values in another dtype; complex to real keeps the real part.")


def cast(x: Any, dtype: Any) -> Tensor:
    """`x` in another dtype; complex to real keeps the real part. TypeError for a dtype that is not supported.

    >>> cast([1.7, -1.7], "int32").tolist()
    [1, -1]
    """
    t = as_tensor(x)
    out = core.cast(t, dtype)
    return core.alias(out) if out is t else out


def astype(x: Any, dtype: Any, *, copy: bool = True) -> Tensor:
    """`x` in another dtype, as the array API names it; tensors are values, so `copy` changes nothing.

    >>> astype([0, 2], bool).tolist()
    [False, True]
    """
    return cast(x, dtype)


publish(cast, CAST)
expose(astype, method=True)

# -- the multiplication that carries cotangents ------------------------------------------------------------------------
# mul_zero(g, p) is g * p with an exact zero of g winning over nan and inf of p, so that a masked or singular point
# gives a zero gradient. Its own derivative is the ordinary one, so second derivatives are right; there too the zero of
# g wins, over an infinite cotangent that comes back from a singular p.
mul_zero = elementwise(
    "mul_zero", arity=2, dtype=same, eager=lambda g, p: np.where(g == 0, np.zeros((), g.dtype), g * p),
    scalar=lambda g, p: scalar.select(g == 0, 0, _product(g, p)), domain=(-2, 2),
    vjp=lambda c, y, g, p: (mul_zero(c, _conjugate(p)), mul_zeros(c, _conjugate(g))),
    jvp=lambda t, y, g, p: _sum_of(_of(mul_zero, t[0], p), _of(mul_zeros, t[1], g)),
    doc="g * p, and exactly 0 where g is 0, whatever p is (the multiplication of reverse-mode derivatives).")
mul_zeros = elementwise(
    "mul_zeros", arity=2, dtype=same, eager=lambda x, y: np.where((x == 0) | (y == 0), np.zeros((), x.dtype), x * y),
    scalar=lambda x, y: scalar.select((x == 0) | (y == 0), 0, _product(x, y)), domain=(-2, 2),
    vjp=lambda c, z, x, y: (mul_zeros(c, _conjugate(y)), mul_zeros(c, _conjugate(x))),
    jvp=lambda t, z, x, y: _sum_of(_of(mul_zeros, t[0], y), _of(mul_zeros, t[1], x)),
    doc="x * y, and exactly 0 where either is 0 (the derivative of mul_zero).")


def _conjugate(x: Tensor) -> Tensor:
    return conj(x) if x.dtype.kind == "c" else x


def _of(product: Callable[..., Tensor], t: Tensor | None, x: Tensor) -> Tensor | None:
    return None if t is None else product(t, x)


def _sum_of(x: Tensor | None, y: Tensor | None) -> Tensor | None:
    return y if x is None else x if y is None else add(x, y)


def _product(x: Scalar, y: Scalar) -> Scalar:
    return x & y if x.dtype.kind == "b" else x * y


# -- arithmetic --------------------------------------------------------------------------------------------------------
add = elementwise("add", arity=2, dtype=same, eager=np.add, numpy=np.add, dunder="add", domain=(-2, 2),
                  scalar=lambda x, y: (x | y) if x.dtype.kind == "b" else x + y, partials=lambda z, x, y: (1, 1),
                  doc="Sum, elementwise; of bools, their logical or.")
subtract = elementwise("subtract", arity=2, dtype=arithmetic, eager=np.subtract, numpy=np.subtract, dunder="sub",
                       domain=(-2, 2), scalar=lambda x, y: x - y, partials=lambda z, x, y: (1, -1),
                       doc="Difference x1 - x2, elementwise; TypeError for bools.")
multiply = elementwise("multiply", arity=2, dtype=same, eager=np.multiply, numpy=np.multiply, dunder="mul",
                       domain=(-2, 2), scalar=_product, partials=lambda z, x, y: (y, x),
                       doc="Product, elementwise; of bools, their logical and.")
divide = elementwise("divide", arity=2, dtype=floating, eager=np.divide, numpy=np.divide, dunder="truediv",
                     domain=((-2, 2), (0.5, 2)), scalar=lambda x, y: x / y, cost=4,
                     partials=lambda z, x, y: (1 / y, -z / y),
                     doc="True quotient, elementwise: integers become floats (float32 up to 32 bits, else float64).")
negative = elementwise("negative", arity=1, dtype=arithmetic, eager=np.negative, numpy=np.negative, dunder="neg",
                       domain=(-2, 2), scalar=lambda x: -x, partials=lambda y, x: -1,
                       doc="-x, elementwise; unsigned integers wrap.")
positive = elementwise("positive", arity=1, dtype=arithmetic, eager=np.positive, numpy=np.positive, dunder="pos",
                       domain=(-2, 2), scalar=lambda x: x, partials=lambda y, x: 1, doc="+x, elementwise.")
floor_divide = elementwise("floor_divide", arity=2, dtype=real_numeric, eager=np.floor_divide, numpy=np.floor_divide,
                           dunder="floordiv", domain=((-20, 20), (0.5, 4)), scalar=mathlib.floor_divide, cost=8,
                           partials=lambda z, x, y: (None, None),
                           doc="Quotient rounded down, elementwise; integers divided by 0 give 0, as in NumPy.")
remainder = elementwise("remainder", arity=2, dtype=real_numeric, eager=np.remainder, numpy=np.remainder, dunder="mod",
                        domain=((-20, 20), (0.5, 4)), scalar=mathlib.remainder, cost=8,
                        partials=lambda z, x, y: (1, -floor_divide(x, y)),
                        doc="x1 - floor_divide(x1, x2) * x2, elementwise: it has the sign of x2.")
fmod = elementwise("fmod", arity=2, dtype=real_numeric, eager=np.fmod, numpy=np.fmod, domain=((-20, 20), (0.5, 4)),
                   scalar=mathlib.fmod, cost=8, partials=lambda z, x, y: (1, -trunc(x / y)),
                   doc="The remainder that has the sign of x1 (as C), elementwise.")
square = elementwise("square", arity=1, dtype=numeric, eager=np.square, numpy=np.square, domain=(-2, 2),
                     scalar=lambda x: x * x, partials=lambda y, x: 2 * x, doc="x * x, elementwise.")
reciprocal = elementwise("reciprocal", arity=1, dtype=floating, eager=np.reciprocal, numpy=np.reciprocal,
                         domain=(0.5, 2), scalar=lambda x: 1.0 / x, cost=4, partials=lambda y, x: -y * y,
                         doc="1 / x, elementwise; integers become floats.")


def _sqrt_scalar(x: Scalar) -> Scalar:
    """Principal root; of a complex number by the half-angle formulas, the larger part first."""
    if not isinstance(x, scalar.Complex):
        return scalar.sqrt(x)
    size = mathlib.hypot(x.re, x.im)
    large = scalar.sqrt(0.5 * size + 0.5 * scalar.fabs(x.re))
    small = scalar.select(large == 0, 0.0, 0.5 * (scalar.fabs(x.im) / large))
    left = x.re < 0
    re, im = scalar.select(left, small, large), scalar.select(left, large, small)
    infinite = mathlib.isinf(x.im)
    re = scalar.select(infinite, scalar.fabs(x.im), re)
    im = scalar.select(infinite, scalar.fabs(x.im), im)
    return scalar.Complex(re, mathlib.copysign(im, x.im))


sqrt = elementwise("sqrt", arity=1, dtype=floating, eager=np.sqrt, numpy=np.sqrt, domain=(0.1, 4), cost=4,
                   scalar=_sqrt_scalar, partials=lambda y, x: 0.5 / y, doc="Square root, elementwise.")


def divmod(x1: Any, x2: Any, /) -> tuple[Tensor, Tensor]:
    """(floor_divide(x1, x2), remainder(x1, x2)).

    >>> divmod(7, [2, -2])
    (tj.Tensor([ 3 -4], shape=(2,), dtype=int32), tj.Tensor([ 1 -1], shape=(2,), dtype=int32))
    """
    return floor_divide(x1, x2), remainder(x1, x2)


expose(divmod, numpy=np.divmod, dunder="divmod")

# -- parts of complex numbers ------------------------------------------------------------------------------------------


def _complex_like(g: Tensor, x: Tensor) -> Tensor:
    return core.cast(g, x.dtype)


def _make_complex_rule(d: np.dtype) -> tuple[np.dtype, np.dtype]:
    d = real_floating(d)[0]
    d = dtypes.float32 if d == dtypes.float16 else d
    return d, dtypes.complex_of(d)


def _complex_eager(re: np.ndarray, im: np.ndarray) -> np.ndarray:
    re, im = np.broadcast_arrays(re, im)
    out = np.empty(re.shape, dtypes.complex_of(re.dtype))
    out.real, out.imag = re, im
    return out


real: OpFunction = elementwise(
    "real", arity=1, dtype=real_result, eager=lambda x: x.real.copy(), numpy=np.real, domain=(-2, 2),
    scalar=lambda x: x.re if isinstance(x, scalar.Complex) else x, vjp=lambda g, y, x: (_complex_like(g, x),),
    jvp=lambda t, y, x: real(t[0]), doc="Real part, elementwise.")
imag: OpFunction = elementwise(
    "imag", arity=1, dtype=real_result, eager=lambda x: x.imag.copy(), numpy=np.imag, domain=(-2, 2),
    scalar=lambda x: x.im if isinstance(x, scalar.Complex) else x.lift(0),
    vjp=lambda g, y, x: (g * 1j if x.dtype.kind == "c" else None,), jvp=lambda t, y, x: imag(t[0]),
    doc="Imaginary part, elementwise; 0 for real numbers.")
conj: OpFunction = elementwise(
    "conj", arity=1, dtype=same, numpy=np.conj, domain=(-2, 2),
    eager=lambda x: np.conj(x) if x.dtype.kind == "c" else x,
    scalar=lambda x: x.conj() if isinstance(x, scalar.Complex) else x,
    vjp=lambda g, y, x: (conj(g),), jvp=lambda t, y, x: conj(t[0]), method=True,
    doc="Complex conjugate, elementwise.")
make_complex: OpFunction = elementwise(
    "make_complex", arity=2, dtype=_make_complex_rule, eager=_complex_eager, domain=(-2, 2), scalar=scalar.Complex,
    vjp=lambda g, y, re, im: (real(g), imag(g)),
    jvp=lambda t, y, re, im: make_complex(*(0 if d is None else d for d in t)),
    doc="The complex number of a real and an imaginary part, elementwise.")
Tensor.conjugate = conj  # type: ignore[attr-defined]
Tensor.real = property(real)  # type: ignore[attr-defined]
Tensor.imag = property(imag)  # type: ignore[attr-defined]

# -- sign and size -----------------------------------------------------------------------------------------------------


def _sign_scalar(x: Scalar) -> Scalar:
    if not isinstance(x, scalar.Complex):
        return mathlib.sign(x)
    size = mathlib.hypot(x.re, x.im)
    return scalar.select((x.re == 0) & (x.im == 0), 0, scalar.Complex(x.re / size, x.im / size))


def _abs_scalar(x: Scalar) -> Scalar:
    if isinstance(x, scalar.Complex):
        return mathlib.hypot(x.re, x.im)
    return x if x.dtype.kind in "bu" else scalar.fabs(x)


sign = elementwise("sign", arity=1, dtype=arithmetic, eager=np.sign, numpy=np.sign, domain=(-2, 2),
                   scalar=_sign_scalar, vjp=lambda g, y, x: (_sign_vjp(g, y, x),),
                   jvp=lambda t, y, x: _sign_vjp(t[0], y, x),
                   doc="-1, 0 or 1 (nan for nan); of a complex number x / abs(x), and 0 at 0.")
abs = elementwise("abs", arity=1, dtype=real_result, eager=np.abs, numpy=(np.abs, np.fabs), dunder="abs",
                  domain=(-2, 2), scalar=_abs_scalar, vjp=lambda g, y, x: (_along_sign(g, x),),
                  jvp=lambda t, y, x: real(mul_zero(t[0], conj(sign(x)))),
                  doc="Absolute value, elementwise, real for complex numbers; its derivative at 0 is 0.")


def _along_sign(g: Tensor, x: Tensor) -> Tensor:
    return mul_zeros(_complex_like(g, x), sign(x))


def _sign_vjp(g: Tensor, y: Tensor, x: Tensor) -> Tensor | None:
    """Of x / abs(x): what of `g` is across the direction y, over abs(x); the map is its own transpose."""
    if x.dtype.kind != "c":
        return None
    across = g - y * _complex_like(real(conj(y) * g), x)
    size = abs(x)
    return across / _complex_like(where(size == 0, 1, size), x)


# -- choosing ----------------------------------------------------------------------------------------------------------


def _share(x: Tensor, y: Tensor, wins: Tensor) -> Tensor:
    """The part of a derivative that goes to x: 1 where it wins, half at a tie."""
    return where(x == y, 0.5, core.cast(wins, x.dtype))


def _where_jvp(t: Sequence[Tensor | None], z: Tensor, c: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return where(c, *(0 if d is None else d for d in t[1:]))


_choose = elementwise("where", arity=3, booleans=1, dtype=same, eager=np.where,
                      scalar=lambda c, x, y: scalar.select(c, x, y), domain=(-2, 2),
                      vjp=lambda g, z, c, x, y: (None, where(c, g, 0), where(c, 0, g)), jvp=_where_jvp,
                      doc="x1 where the condition holds, else x2, elementwise.")


def where(condition: Any, x1: Any = None, x2: Any = None, /) -> Any:
    """x1 where `condition` is true, else x2, elementwise; of a condition alone, the indices where it is (`nonzero`).

    No derivative flows to the element that is not chosen.

    >>> where([True, False], [1, 2], 0).tolist()
    [1, 0]
    """
    if x1 is None and x2 is None:
        return NUMPY_FUNCTIONS[np.nonzero](condition)
    return _choose(condition, x1, x2)


publish(where, _choose.op, numpy=np.where)
maximum = elementwise("maximum", arity=2, dtype=real_ordered, eager=np.maximum, numpy=np.maximum, domain=(-2, 2),
                      scalar=lambda x, y: scalar.maximum(x, y),
                      partials=lambda z, x, y: (_share(x, y, x > y), _share(y, x, y > x)),
                      doc="The larger, elementwise, nan if either is; equal operands share the derivative evenly.")
minimum = elementwise("minimum", arity=2, dtype=real_ordered, eager=np.minimum, numpy=np.minimum, domain=(-2, 2),
                      scalar=lambda x, y: scalar.minimum(x, y),
                      partials=lambda z, x, y: (_share(x, y, x < y), _share(y, x, y < x)),
                      doc="The smaller, elementwise, nan if either is; equal operands share the derivative evenly.")


def _isnan(x: Scalar) -> Scalar:
    return mathlib.isnan(x)


fmax = elementwise("fmax", arity=2, dtype=real_ordered, eager=np.fmax, numpy=np.fmax, domain=(-2, 2),
                   scalar=lambda x, y: scalar.select(_isnan(x), y, scalar.select(_isnan(y), x, scalar.maximum(x, y))),
                   partials=lambda z, x, y: (_share(x, y, (x > y) | (y != y)), _share(y, x, (y > x) | (x != x))),
                   doc="The larger, elementwise; of a nan and a number, the number.")
fmin = elementwise("fmin", arity=2, dtype=real_ordered, eager=np.fmin, numpy=np.fmin, domain=(-2, 2),
                   scalar=lambda x, y: scalar.select(_isnan(x), y, scalar.select(_isnan(y), x, scalar.minimum(x, y))),
                   partials=lambda z, x, y: (_share(x, y, (x < y) | (y != y)), _share(y, x, (y < x) | (x != x))),
                   doc="The smaller, elementwise; of a nan and a number, the number.")
relu = elementwise("relu", arity=1, dtype=real_ordered, eager=lambda x: np.maximum(x, x.dtype.type(0)), domain=(-2, 2),
                   scalar=lambda x: x if x.dtype.kind in "bu" else scalar.maximum(x, 0),
                   partials=lambda y, x: core.cast(x > 0, x.dtype),
                   doc="max(x, 0), elementwise; its derivative at 0 is 0.")


def clip(x: Any, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None, out: None = None) -> Tensor:
    """`x` limited to [min, max], elementwise; None is no limit. At a limit the derivative is shared evenly.

    >>> clip([-1.0, 0.5, 3.0], 0, 1).tolist()
    [0.0, 0.5, 1.0]
    """
    if out is not None:
        raise TypeError("clip: tensors are values, so out= is not supported; assign the result")
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    t = core.alias(as_tensor(x)) if low is None and high is None else as_tensor(x)
    if t.dtype.kind in "iu":  # a number beyond all integers of the dtype is no limit
        known = np.iinfo(t.dtype)
        low, high = (builtins.min(builtins.max(v, known.min), known.max) if type(v) is int else v for v in (low, high))
    t = t if low is None else maximum(t, low)
    return t if high is None else minimum(t, high)


expose(clip, numpy=np.clip, method=True)


def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Tensor:
    """nan, inf and -inf replaced, elementwise; by default by 0 and the largest and smallest finite numbers.

    >>> nan_to_num([float("nan"), float("inf"), 1.0], posinf=9.0).tolist()
    [0.0, 9.0, 1.0]
    """
    t = strong(x)
    if t.dtype.kind == "c":
        return make_complex(*(nan_to_num(part, copy, nan, posinf, neginf) for part in (real(t), imag(t))))
    if t.dtype.kind != "f":
        return core.alias(t)
    info = np.finfo(t.dtype)
    high = float(info.max) if posinf is None else posinf
    low = float(info.min) if neginf is None else neginf
    finite = where(t == float("inf"), high, where(t == float("-inf"), low, t))
    return where(t != t, nan, finite)


expose(nan_to_num, numpy=np.nan_to_num)


def heaviside(x1: Any, x2: Any) -> Tensor:
    """0 where x1 < 0, x2 where x1 == 0, 1 where x1 > 0, nan where x1 is nan.

    >>> heaviside([-1.0, 0.0, 2.0], 0.5).tolist()
    [0.0, 0.5, 1.0]
    """
    (a, b), dtype, _ = core.convert("heaviside", (x1, x2), core.real_floating)
    a = as_tensor(a, dtype)
    return where(a == 0, b, where(a != a, a, core.cast(a > 0, dtype)))


expose(heaviside, numpy=np.heaviside)

# -- rounding ----------------------------------------------------------------------------------------------------------


def _whole(f: Any) -> Any:
    """A rounding rule that leaves integers alone."""
    return lambda x: f(x) if x.dtype.kind in "fc" else x


def _round_scalar(x: Scalar) -> Scalar:
    if isinstance(x, scalar.Complex):
        return scalar.Complex(scalar.rint(x.re), scalar.rint(x.im))
    return _whole(scalar.rint)(x)


floor = elementwise("floor", arity=1, dtype=real_ordered, eager=_whole(np.floor), numpy=np.floor, dunder="floor",
                    domain=(-4, 4), scalar=_whole(scalar.floor), partials=lambda y, x: None,
                    doc="The largest whole number not above x, elementwise; integers are kept.")
ceil = elementwise("ceil", arity=1, dtype=real_ordered, eager=_whole(np.ceil), numpy=np.ceil, dunder="ceil",
                   domain=(-4, 4), scalar=_whole(scalar.ceil), partials=lambda y, x: None,
                   doc="The smallest whole number not below x, elementwise; integers are kept.")
trunc: OpFunction = elementwise(
    "trunc", arity=1, dtype=real_ordered, eager=_whole(np.trunc), numpy=(np.trunc, np.fix), dunder="trunc",
    domain=(-4, 4), scalar=_whole(scalar.trunc), partials=lambda y, x: None,
    doc="x without its fraction, elementwise; integers are kept.")
rint = elementwise("rint", arity=1, dtype=same, eager=_whole(np.rint), numpy=np.rint, domain=(-4, 4),
                   scalar=_round_scalar, partials=lambda y, x: None,
                   doc="The nearest whole number, halves to even, elementwise; integers are kept.")


def round(x: Any, decimals: int = 0, out: None = None) -> Tensor:
    """The nearest number of `decimals` decimals, halves to even, elementwise; negative `decimals` round to tens, ...

    >>> round([0.5, 1.5, -2.25]).tolist(), round([2.25], 1).tolist()
    ([0.0, 2.0, -2.0], [2.200000047683716])
    """
    if out is not None:
        raise TypeError("round: tensors are values, so out= is not supported; assign the result")
    t = strong(x)
    if decimals is None or decimals == 0:
        return rint(t)
    if t.dtype.kind in "biu":
        return core.alias(t) if decimals > 0 else core.cast(round(core.cast(t, dtypes.float64), decimals), t.dtype)
    scale = 10.0 ** builtins.abs(decimals)
    return rint(t * scale) / scale if decimals > 0 else rint(t / scale) * scale


expose(round, numpy=np.round, dunder="round", method=True)


def _round_number(x: Number, digits: int | None = None) -> Any:
    """`round` of a traced Python number: a number, of the type that Python's has."""
    if x.dtype.kind != "f" and (digits is None or digits >= 0):
        return core.as_number(core.cast(x, dtypes.int64))
    if digits is None:
        return core.as_number(core.cast(rint(x), dtypes.int64))
    if x._known():
        return builtins.round(x.item(), digits)  # Python rounds decimals exactly
    return core.as_number(core.cast(round(core.cast(x, dtypes.float64), digits), x.dtype))


def _whole_number(function: Callable[..., Tensor]) -> Callable[[Number], Any]:
    """`math.floor` and its like of a traced Python number: an integer."""
    return lambda x: core.as_number(core.cast(function(x), dtypes.int64))


Number.__round__ = _round_number  # type: ignore[attr-defined]
for _name, _function in (("floor", floor), ("ceil", ceil), ("trunc", trunc)):
    setattr(Number, f"__{_name}__", _whole_number(_function))

# -- bits of floats ----------------------------------------------------------------------------------------------------
copysign: OpFunction = elementwise(
    "copysign", arity=2, dtype=real_floating, eager=np.copysign, numpy=np.copysign, domain=(-2, 2),
    scalar=mathlib.copysign, partials=lambda z, x, y: (copysign(1, y) * copysign(1, x), None),
    doc="abs(x1) with the sign of x2, elementwise.")
nextafter = elementwise("nextafter", arity=2, dtype=real_floating, eager=np.nextafter, numpy=np.nextafter,
                        domain=(-2, 2), scalar=mathlib.nextafter, partials=lambda z, x, y: (1, None),
                        doc="The next float after x1 towards x2, elementwise.")

# -- numbers and lists -------------------------------------------------------------------------------------------------
def like_numbers(*names: str) -> None:
    """Let traced Python numbers do with lists what Python's numbers do (repeat them, or refuse), not broadcast."""
    for name in names:
        for dunder in (f"__{name}__", f"__r{name}__"):
            if dunder in Tensor.__dict__:
                setattr(Number, dunder, _beside_lists(name, getattr(Tensor, dunder)))


def _beside_lists(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def operator(self: Number, other: Any) -> Any:
        if isinstance(other, (list, tuple)):
            return other * self.__index__() if name == "mul" else NotImplemented
        return method(self, other)

    return operator


like_numbers("add", "sub", "mul", "truediv", "floordiv", "mod")

# -- aliases -----------------------------------------------------------------------------------------------------------
mul, neg, sub, div, true_divide, mod = multiply, negative, subtract, divide, divide, remainder
absolute = fabs = abs
conjugate, fix, around = conj, trunc, round

provide(CAST=CAST, MUL_ZERO=mul_zero, CONJ=conj, REAL=real, WHERE=where)

__all__ = [
    "abs", "absolute", "add", "around", "astype", "cast", "ceil", "clip", "conj", "conjugate", "copysign", "div",
    "divide", "divmod", "fabs", "fix", "floor", "floor_divide", "fmax", "fmin", "fmod", "heaviside", "imag",
    "make_complex", "maximum", "minimum", "mod", "multiply", "nan_to_num", "negative", "nextafter", "positive", "real",
    "reciprocal", "relu", "remainder", "rint", "round", "sign", "sqrt", "square", "subtract", "true_divide", "trunc",
    "where",
]
