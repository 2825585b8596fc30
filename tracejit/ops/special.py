"""Elementwise primitives beyond arithmetic: powers, exponentials, trigonometry, error and gamma functions, activations.

In: promoted, broadcast operands (integers become floats). Out: one public function per op, and plain functions made of
them. The scalar rules are `lower.mathlib`'s polynomials; the eager meaning is NumPy's or SciPy's function of that name.
"""

from __future__ import annotations

import math
from operator import index
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.lower import mathlib, scalar
from tracejit.ops import core
from tracejit.ops.core import (
    OpFunction,
    as_tensor,
    call_elementwise,
    composite,
    convert,
    elementwise,
    expose,
    floating,
    numeric,
    publish,
    real_floating,
    strong,
)
from tracejit.ops.effects import check
from tracejit.ops.elementwise import imag, multiply, positive, real, reciprocal, sqrt, where
from tracejit.tensor import Tensor, state

Scalar = Any  # a scalar `Value` or `Complex`


def _scipy(name: str, x: np.ndarray, *before: Any) -> np.ndarray:
    """A function of scipy.special on `x`, in the dtype of `x`."""
    from scipy import special  # lazy: scipy takes longer to load than everything else together

    return np.asarray(getattr(special, name)(*before, x)).astype(x.dtype, copy=False)


# -- exponentials and logarithms ---------------------------------------------------------------------------------------
LN2, LN10 = math.log(2), math.log(10)

exp = elementwise("exp", arity=1, dtype=floating, eager=np.exp, numpy=np.exp, domain=(-2, 2), cost=20,
                  scalar=mathlib.exp, partials=lambda y, x: y, doc="e to the power x, elementwise.")
exp2 = elementwise("exp2", arity=1, dtype=real_floating, eager=np.exp2, numpy=np.exp2, domain=(-2, 2), cost=20,
                   scalar=mathlib.exp2, partials=lambda y, x: y * LN2, doc="2 to the power x, elementwise.")
expm1 = elementwise("expm1", arity=1, dtype=floating, eager=np.expm1, numpy=np.expm1, domain=(-2, 2), cost=25,
                    scalar=mathlib.expm1, partials=lambda y, x: y + 1, doc="exp(x) - 1, exact near 0, elementwise.")
log = elementwise("log", arity=1, dtype=floating, eager=np.log, numpy=np.log, domain=(0.1, 4), cost=20,
                  scalar=mathlib.log, partials=lambda y, x: 1 / x, doc="Natural logarithm, elementwise.")
log2 = elementwise("log2", arity=1, dtype=floating, eager=np.log2, numpy=np.log2, domain=(0.1, 4), cost=20,
                   scalar=mathlib.log2, partials=lambda y, x: (1 / LN2) / x, doc="Logarithm to base 2, elementwise.")
log10 = elementwise("log10", arity=1, dtype=floating, eager=np.log10, numpy=np.log10, domain=(0.1, 4), cost=20,
                    scalar=mathlib.log10, partials=lambda y, x: (1 / LN10) / x,
                    doc="Logarithm to base 10, elementwise.")
log1p = elementwise("log1p", arity=1, dtype=floating, eager=np.log1p, numpy=np.log1p, domain=(-0.8, 2), cost=25,
                    scalar=mathlib.log1p, partials=lambda y, x: 1 / (1 + x),
                    doc="log(1 + x), exact near 0, elementwise.")
logaddexp = elementwise("logaddexp", arity=2, dtype=real_floating, eager=np.logaddexp, numpy=np.logaddexp, cost=50,
                        domain=(-2, 2), scalar=mathlib.logaddexp,
                        partials=lambda z, x, y: (_weight(x, y), _weight(y, x)),
                        doc="log(exp(x1) + exp(x2)) without overflow, elementwise.")


def _weight(x: Tensor, y: Tensor) -> Tensor:
    """exp(x) / (exp(x) + exp(y)); a half for equal infinities."""
    return sigmoid(where(x == y, 0, x - y))


@composite(numpy=np.logaddexp2)
def logaddexp2(x1: Any, x2: Any, /) -> Tensor:
    """log2(2**x1 + 2**x2) without overflow, elementwise.

    >>> logaddexp2(3.0, 3.0)
    tj.Tensor(4.0, shape=(), dtype=float32)
    """
    (a, b), _, _ = convert("logaddexp2", (x1, x2), real_floating)  # before the product: integers become wide enough
    return logaddexp(a * LN2, b * LN2) / LN2


# -- powers ------------------------------------------------------------------------------------------------------------
SMALL_POWER = 8  # up to here repeated multiplication is as accurate as the general power, and far cheaper


def _repeated(x: Any, n: int) -> Any:
    """x**n for n >= 1 by squaring, on arrays and scalar values alike."""
    result = None
    while n:
        if n & 1:
            result = x if result is None else result * x
        n >>= 1
        if n:
            x = x * x
    return result


INTEGER_POWER = elementwise(
    "integer_power", arity=1, dtype=numeric, eager=lambda x, *, exponent: _repeated(x, exponent),
    scalar=lambda x, *, exponent: _repeated(x, exponent), domain=(-2, 2), cost=4,
    partials=lambda y, x, *, exponent: exponent * raised(x, exponent - 1),
    doc="x to a fixed whole power of 1 or more, by repeated multiplication.").op


def _power_eager(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.power(x, y)


def _power_scalar(x: Scalar, y: Scalar) -> Scalar:
    return mathlib.int_pow(x, y) if x.dtype.kind in "iu" else mathlib.pow(x, y)


def _power_partials(z: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    by_x = y * POWER(x, where(y == 0, 1, y - 1))  # at y == 0 the power is constant, also for x == 0
    by_y = z * log(where(x == 0, 1, x))  # 0**y is constant for y > 0
    return by_x, by_y


POWER = elementwise("pow", arity=2, dtype=numeric, eager=_power_eager, domain=((0.5, 2), (-2, 2)), cost=40,
                    scalar=_power_scalar, partials=_power_partials, doc="x1 to the power x2, elementwise.")


def pow(x1: Any, x2: Any, /, modulo: None = None) -> Tensor:
    """x1 to the power x2, elementwise; integers wrap, and refuse a negative exponent (ValueError), as in NumPy.

    A small whole exponent given as a number multiplies; 0.5 is a square root.

    >>> pow([2.0, 3.0], 2).tolist(), pow(2, [1, 10]).tolist()
    ([4.0, 9.0], [2, 1024])
    """
    if modulo is not None:
        raise TypeError("pow: a modulus is not supported; use pow(x, y) % modulo")
    if isinstance(x2, Tensor) and x2._weak and x2.dtype.kind == "i" and as_tensor(x1).dtype.kind in "iu":
        x2 = x2.item()  # whether that is an error depends on its value
    if type(x2) in (int, float):
        x = as_tensor(x1)
        whole = x.dtype.kind in "iu"
        if x.dtype.kind in "iub" and (type(x2) is float or (x._weak and x2 < 0)):
            x, whole = (x * 1.0 if x._weak else core.cast(x, dtypes.result_dtype([x.dtype], "f"))), False
        if whole and x2 < 0:
            raise ValueError(f"pow: integers to a negative power ({x.dtype} ** {x2}); cast to a float dtype first")
        if x.dtype.kind != "b" and -SMALL_POWER <= x2 <= SMALL_POWER and x2 == int(x2):
            return raised(x, int(x2))
        return sqrt(x) if x2 == 0.5 else POWER(x, x2)
    if type(x1) in (int, float) and x1 == 2 and isinstance(x2, Tensor) and x2.dtype.kind == "f":
        return exp2(x2)
    if state.trace is not None and isinstance(x2, Tensor) and x2.dtype.kind == "i":
        if as_tensor(x1).dtype.kind in "iub":
            check(core.ALL(x2 >= 0), "Integers to negative integer powers are not allowed.", "ValueError")  # NumPy's
    return POWER(x1, x2)


def raised(x: Tensor, n: int) -> Tensor:
    """x**n for a fixed whole n; x**0 is 1, also at 0 and nan."""
    if n == 0:
        one = core.full(1, x.shape, x.dtype)
        return core.as_number(one) if x._weak else one
    if n == 1:
        return positive(x)
    if n == 2:
        return multiply(x, x)
    if n < 0:
        return reciprocal(raised(x, -n))
    return call_elementwise(INTEGER_POWER, (x,), numeric, attrs={"exponent": n})


publish(pow, POWER.op, numpy=np.power, dunder="pow")


def float_power(x1: Any, x2: Any) -> Tensor:
    """x1 to the power x2 in at least float64, elementwise.

    >>> float_power([2, 4], -1).tolist()
    [0.5, 0.25]
    """
    pair = [strong(x) for x in (x1, x2)]
    wide = dtypes.result_dtype([dtypes.float64, *(t.dtype for t in pair)])
    return POWER(*(core.cast(t, wide) for t in pair))


expose(float_power, numpy=np.float_power)

# -- roots and lengths -------------------------------------------------------------------------------------------------
cbrt = elementwise("cbrt", arity=1, dtype=real_floating, eager=np.cbrt, numpy=np.cbrt, domain=(0.1, 4), cost=20,
                   scalar=mathlib.cbrt, partials=lambda y, x: (1 / 3) / (y * y), doc="Cube root, elementwise.")
hypot = elementwise("hypot", arity=2, dtype=real_floating, eager=np.hypot, numpy=np.hypot, domain=(0.5, 2), cost=10,
                    scalar=mathlib.hypot, partials=lambda z, x, y: (_part(x, z), _part(y, z)),
                    doc="sqrt(x1**2 + x2**2) without overflow, elementwise; its derivative at 0 is 0.")


def _part(x: Tensor, length: Tensor) -> Tensor:
    return x / where(length == 0, 1, length)


# -- trigonometry ------------------------------------------------------------------------------------------------------
sin = elementwise("sin", arity=1, dtype=floating, eager=np.sin, numpy=np.sin, domain=(-4, 4), cost=20,
                  scalar=mathlib.sin, partials=lambda y, x: cos(x), doc="Sine of radians, elementwise.")
cos: OpFunction = elementwise(
    "cos", arity=1, dtype=floating, eager=np.cos, numpy=np.cos, domain=(-4, 4), cost=20, scalar=mathlib.cos,
    partials=lambda y, x: -sin(x), doc="Cosine of radians, elementwise.")
tan = elementwise("tan", arity=1, dtype=floating, eager=np.tan, numpy=np.tan, domain=(-1.2, 1.2), cost=30,
                  scalar=mathlib.tan, partials=lambda y, x: 1 + y * y, doc="Tangent of radians, elementwise.")
asin = elementwise("asin", arity=1, dtype=floating, eager=np.arcsin, numpy=np.arcsin, domain=(-0.9, 0.9), cost=25,
                   scalar=mathlib.asin, partials=lambda y, x: 1 / sqrt((1 - x) * (1 + x)),
                   doc="Inverse sine in radians, elementwise.")
acos = elementwise("acos", arity=1, dtype=floating, eager=np.arccos, numpy=np.arccos, domain=(-0.9, 0.9), cost=25,
                   scalar=mathlib.acos, partials=lambda y, x: -1 / sqrt((1 - x) * (1 + x)),
                   doc="Inverse cosine in radians, elementwise.")
atan = elementwise("atan", arity=1, dtype=floating, eager=np.arctan, numpy=np.arctan, domain=(-4, 4), cost=25,
                   scalar=mathlib.atan, partials=lambda y, x: 1 / (1 + x * x),
                   doc="Inverse tangent in radians, elementwise.")
atan2 = elementwise("atan2", arity=2, dtype=real_floating, eager=np.arctan2, numpy=np.arctan2, domain=(0.5, 2), cost=30,
                    scalar=mathlib.atan2, partials=lambda z, y, x: _atan2_partials(y, x),
                    doc="Angle of the point (x2, x1) in radians, elementwise.")
sinh = elementwise("sinh", arity=1, dtype=floating, eager=np.sinh, numpy=np.sinh, domain=(-2, 2), cost=25,
                   scalar=mathlib.sinh, partials=lambda y, x: cosh(x), doc="Hyperbolic sine, elementwise.")
cosh: OpFunction = elementwise(
    "cosh", arity=1, dtype=floating, eager=np.cosh, numpy=np.cosh, domain=(-2, 2), cost=25, scalar=mathlib.cosh,
    partials=lambda y, x: sinh(x), doc="Hyperbolic cosine, elementwise.")
tanh = elementwise("tanh", arity=1, dtype=floating, eager=np.tanh, numpy=np.tanh, domain=(-2, 2), cost=25,
                   scalar=mathlib.tanh, partials=lambda y, x: 1 - y * y, doc="Hyperbolic tangent, elementwise.")
asinh = elementwise("asinh", arity=1, dtype=floating, eager=np.arcsinh, numpy=np.arcsinh, domain=(-4, 4), cost=30,
                    scalar=mathlib.asinh, partials=lambda y, x: 1 / _root_of_square_plus(x, 1),
                    doc="Inverse hyperbolic sine, elementwise.")
acosh = elementwise("acosh", arity=1, dtype=floating, eager=np.arccosh, numpy=np.arccosh, domain=(1.2, 4), cost=30,
                    scalar=mathlib.acosh, partials=lambda y, x: 1 / _root_of_square_plus(x, -1),
                    doc="Inverse hyperbolic cosine, elementwise.")
atanh = elementwise("atanh", arity=1, dtype=floating, eager=np.arctanh, numpy=np.arctanh, domain=(-0.9, 0.9), cost=30,
                    scalar=mathlib.atanh, partials=lambda y, x: 1 / ((1 - x) * (1 + x)),
                    doc="Inverse hyperbolic tangent, elementwise.")


def _atan2_partials(y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    size = x * x + y * y
    size = where(size == 0, 1, size)
    return x / size, -y / size


def _root_of_square_plus(x: Tensor, sign: int) -> Tensor:
    """sqrt(x**2 + sign), on the branch that complex x needs."""
    if sign > 0:
        return sqrt(x * x + 1)
    return sqrt(x - 1) * sqrt(x + 1) if x.dtype.kind == "c" else sqrt((x - 1) * (x + 1))


@composite(numpy=np.angle)
def angle(x: Any, deg: bool = False) -> Tensor:
    """The angle of a complex number in radians (degrees with `deg`), elementwise.

    >>> angle([1j, -1.0], deg=True).tolist()
    [90.0, 180.0]
    """
    t = strong(x)
    found = atan2(imag(t), real(t))
    return rad2deg(found) if deg else found


@composite(numpy=(np.deg2rad, np.radians))
def deg2rad(x: Any) -> Tensor:
    """Degrees as radians, elementwise."""
    return multiply(x, math.pi / 180)


@composite(numpy=(np.rad2deg, np.degrees))
def rad2deg(x: Any) -> Tensor:
    """Radians as degrees, elementwise."""
    return multiply(x, 180 / math.pi)


@composite(numpy=np.sinc)
def sinc(x: Any) -> Tensor:
    """sin(pi x) / (pi x), and 1 at 0, elementwise.

    >>> sinc([0.0, 0.5]).tolist()
    [1.0, 0.6366197466850281]
    """
    t = multiply(x, math.pi)
    safe = where(t == 0, 1, t)
    return where(t == 0, 1 - t * t / 6, sin(safe) / safe)  # the series gives the derivatives at 0


# -- error and gamma functions -----------------------------------------------------------------------------------------
def _lgamma_eager(x: np.ndarray) -> np.ndarray:
    return _scipy("gammaln", np.where(x == -np.inf, np.inf, x).astype(x.dtype, copy=False))  # C's value at -inf


erf = elementwise("erf", arity=1, dtype=real_floating, eager=lambda x: _scipy("erf", x), domain=(-2, 2), cost=25,
                  scalar=mathlib.erf, partials=lambda y, x: (2 / math.sqrt(math.pi)) * exp(-x * x),
                  doc="The error function, elementwise.")
erfc = elementwise("erfc", arity=1, dtype=real_floating, eager=lambda x: _scipy("erfc", x), domain=(-2, 2), cost=30,
                   scalar=mathlib.erfc, partials=lambda y, x: (-2 / math.sqrt(math.pi)) * exp(-x * x),
                   doc="1 - erf(x), exact for large x, elementwise.")
erfinv = elementwise("erfinv", arity=1, dtype=real_floating, eager=lambda x: _scipy("erfinv", x), domain=(-0.9, 0.9),
                     cost=30, scalar=mathlib.erfinv, partials=lambda y, x: (math.sqrt(math.pi) / 2) * exp(y * y),
                     doc="The inverse of erf, elementwise.")
lgamma = elementwise("lgamma", arity=1, dtype=real_floating, eager=_lgamma_eager, domain=(0.2, 6), cost=50,
                     scalar=mathlib.lgamma, partials=lambda y, x: digamma(x),
                     doc="Logarithm of the absolute value of the gamma function, elementwise.")
digamma: OpFunction = elementwise(
    "digamma", arity=1, dtype=real_floating, eager=lambda x: _scipy("digamma", x), domain=(0.2, 6), cost=50,
    scalar=mathlib.digamma, partials=lambda y, x: polygamma(1, x), doc="Derivative of lgamma, elementwise.")

# Bernoulli numbers over factorials, B(2j) / (2j)!, for the Euler-Maclaurin formula.
BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600,
             -3617 / 10670622842880000)
SHIFTS = 10  # terms summed directly, so that the formula starts at x + 10


def _polygamma_positive(x: Scalar, n: int) -> Scalar:
    """(-1)**(n + 1) * n! * (sum of 1 / (x + k)**(n + 1) over k >= 0), for x > 0."""
    s = n + 1
    total: Scalar = None
    for k in range(SHIFTS):
        inverse = 1.0 / (x + float(k))
        total = _repeated(inverse, s) if total is None else total + _repeated(inverse, s)
    inverse = 1.0 / (x + float(SHIFTS))
    power = _repeated(inverse, n)
    total = total + power * (1.0 / n)
    power = power * inverse
    total = total + power * 0.5
    factor = float(s)
    for j, b in enumerate(BERNOULLI):
        power = power * inverse
        total = total + power * (b * factor)
        power = power * inverse
        factor *= (s + 2 * j + 1) * (s + 2 * j + 2)
    return total * float((-1) ** (n + 1) * math.factorial(n))


def _polygamma_scalar(x: Scalar, n: int) -> Scalar:
    """Reflected for x <= 0: (-1)**n polygamma(n, 1 - x) - pi times the n-th derivative of cot(pi x)."""
    if x.dtype.itemsize < 4:
        return scalar.cast(_polygamma_scalar(scalar.cast(x, scalar.F32), n), x.dtype)
    left = x <= 0
    right = _polygamma_positive(scalar.select(left, 1.0 - x, x), n)
    turn = (x - scalar.rint(x)) * math.pi
    cot = mathlib.cos(turn) / mathlib.sin(turn)
    poly = [0.0, 1.0]  # of cot: its derivative is -pi (1 + cot**2)
    for _ in range(n):
        slope = [k * c for k, c in enumerate(poly)][1:]
        poly = [-math.pi * ((slope[k] if k < len(slope) else 0.0) + (slope[k - 2] if k >= 2 else 0.0))
                for k in range(len(slope) + 2)]
    bend = x.lift(poly[-1])
    for c in poly[-2::-1]:
        bend = bend * cot + c
    return scalar.select(left, float((-1) ** n) * right - bend * math.pi, right)


POLYGAMMA = elementwise(
    "polygamma", arity=1, dtype=real_floating, eager=lambda x, *, n: _scipy("polygamma", x, n),
    scalar=_polygamma_scalar, domain=(0.2, 6), cost=60, partials=lambda y, x, *, n: polygamma(n + 1, x),
    doc="The n-th derivative of digamma, elementwise.").op


def polygamma(n: int, x: Any) -> Tensor:
    """The n-th derivative of digamma at x, elementwise; n is an int >= 0.

    >>> print(round(polygamma(1, [1.0, 2.0]) * 1000))
    tj.Tensor([1645.  645.], shape=(2,), dtype=float32)
    """
    n = index(n)
    if n < 0:
        raise ValueError(f"polygamma: n must not be negative, got {n}")
    if n == 0:
        return digamma(x)
    return call_elementwise(POLYGAMMA, (x,), real_floating, attrs={"n": n})


publish(polygamma, POLYGAMMA)

# -- activations -------------------------------------------------------------------------------------------------------


def _sigmoid_eager(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, x.dtype.type(1), small) / (1 + small)


sigmoid = elementwise("sigmoid", arity=1, dtype=real_floating, eager=_sigmoid_eager, domain=(-3, 3), cost=25,
                      scalar=mathlib.sigmoid, partials=lambda y, x: y * (1 - y), doc="1 / (1 + exp(-x)), elementwise.")
softplus = elementwise("softplus", arity=1, dtype=real_floating, eager=lambda x: np.logaddexp(x, x.dtype.type(0)),
                       domain=(-3, 3), cost=50, scalar=mathlib.softplus, partials=lambda y, x: sigmoid(x),
                       doc="log(1 + exp(x)) without overflow, elementwise.")


def log_sigmoid(x: Any) -> Tensor:
    """log(sigmoid(x)) without overflow, elementwise."""
    return -softplus(-as_tensor(x))


def silu(x: Any) -> Tensor:
    """x * sigmoid(x), elementwise.

    >>> silu([0.0, 1.0]).tolist()
    [0.0, 0.7310585975646973]
    """
    x = as_tensor(x)
    return x * sigmoid(x)


def mish(x: Any) -> Tensor:
    """x * tanh(softplus(x)), elementwise."""
    x = as_tensor(x)
    return x * tanh(softplus(x))


def gelu(x: Any, approximate: bool = False) -> Tensor:
    """x times the normal distribution function of x, elementwise; `approximate` uses tanh.

    >>> gelu([0.0, 1.0]).tolist()
    [0.0, 0.8413447141647339]
    """
    x = as_tensor(x)
    if approximate:
        return 0.5 * x * (1 + tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * erfc(x * -math.sqrt(0.5))


def logit(x: Any) -> Tensor:
    """log(x / (1 - x)), the inverse of sigmoid, elementwise."""
    x = as_tensor(x)
    return log(x / (1 - x))


# -- aliases -----------------------------------------------------------------------------------------------------------
power = pow
arcsin, arccos, arctan, arctan2, arcsinh, arccosh, arctanh = asin, acos, atan, atan2, asinh, acosh, atanh
degrees, radians, swish = rad2deg, deg2rad, silu

__all__ = [
    "acos", "acosh", "angle", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh",
    "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "deg2rad", "degrees", "digamma", "erf", "erfc", "erfinv", "exp",
    "exp2", "expm1", "float_power", "gelu", "hypot", "lgamma", "log", "log10", "log1p", "log2", "log_sigmoid",
    "logaddexp", "logaddexp2", "logit", "mish", "polygamma", "pow", "power", "rad2deg", "radians", "sigmoid", "silu",
    "sin", "sinc", "sinh", "softplus", "swish", "tan", "tanh",
]
