"""Hyperbolic functions and their inverses, roots.

Read next: `special.py`.
"""

from __future__ import annotations

from ..scalar import F32, F64, Value, bitcast, cast, fabs, fma, select
from ..scalar import sqrt as root
from .base import FORMATS, Bound, function, polynomial, to_bits, with_sign_of
from .exponential import exp_of_sum, log_of_parts, log_of_sum, log_special

INF, NAN = float("inf"), float("nan")

# (sinh(x) / x - 1) / x**2 in x**2 <= 1.
SINH = {
    F32: (0.16666716, 0.008330271, 0.0002037334),
    F64: (0.16666666666666669, 0.008333333333332912, 0.00019841269841593408, 2.7557319106760446e-06,
          2.5052130997397267e-08, 1.6056659341368927e-10, 7.776592464905118e-13),
}


@function(Bound(4, 4))
def sinh(x: Value) -> Value:
    a = fabs(x)
    z = a * a
    half_exp = exp_of_sum(a, exponent=-1)
    outer = half_exp - 0.25 / half_exp
    return with_sign_of(select(a < 1.0, fma(a * z, polynomial(z, SINH[x.dtype]), a), outer), x)


@function(Bound(4, 4))
def cosh(x: Value) -> Value:
    half_exp = exp_of_sum(fabs(x), exponent=-1)
    return half_exp + 0.25 / half_exp


def _log1p_or_log_double(t: Value, large: Value, x: Value) -> Value:
    """log(2 x) where large, else log(1 + t)."""
    u = t + 1.0
    f, e = log_of_sum(select(large, x, u), select(large, 0.0, t - (u - 1.0)))
    return log_of_parts(f, e + select(large, x.lift(1.0), 0.0))


@function(Bound(4, 4))
def asinh(x: Value) -> Value:
    a = fabs(x)
    square = a * a
    t = a + square / (root(square + 1.0) + 1.0)
    y = _log1p_or_log_double(t, a > 2.0 ** (FORMATS[x.dtype].mantissa // 2 + 3), a)
    return with_sign_of(select(a < INF, y, a), x)


@function(Bound(4, 4, (1, INF)))
def acosh(x: Value) -> Value:
    t = x - 1.0
    y = _log1p_or_log_double(t + root(t * (t + 2.0)), x > 2.0 ** (FORMATS[x.dtype].mantissa // 2 + 3), x)
    return select(x < 1.0, NAN, select(x < INF, y, x))


@function(Bound(4, 4, (-1, 1)))
def atanh(x: Value) -> Value:
    """log1p(2 a / (1 - a)) / 2."""
    a = fabs(x)
    t = (a + a) / (1.0 - a)
    u = t + 1.0
    return with_sign_of(fabs(log_special(u, log_of_parts(*log_of_sum(u, t - (u - 1.0))))) * 0.5, x)


# Roots --------------------------------------------------------------------------------------------------------------


@function(native_half=True)
def sqrt(x: Value) -> Value:
    """Correctly rounded; of a complex number the principal root."""
    return root(x)


@function(Bound(2, 2))
def cbrt(x: Value) -> Value:
    """z near |x|**(-1/3) by halving bits, improved by a series in h = 1 - |x| z**3; then a Newton step on |x| z**2."""
    form = FORMATS[x.dtype]
    a = fabs(x)
    subnormal, up = a < form.tiny, 24 if x.dtype == F32 else 54
    a = select(subnormal, a * 2.0**up, a)
    start = (form.bias - 0.051) * 2.0**form.mantissa * 4 / 3  # makes |h| at most 0.103
    z = bitcast(cast(fma(cast(to_bits(a), x.dtype), -1 / 3, start), form.integer), x.dtype)
    h = fma(-(a * z), z * z, 1.0)
    z = fma(z * h, polynomial(h, (1 / 3, 2 / 9, 14 / 81)), z)
    if x.dtype == F64:
        z = fma(z * (1 / 3), fma(-(a * z), z * z, 1.0), z)
    square = z * z
    y = a * square
    y = fma(fma(-(y * y), y, a), square * (1 / 3), y)
    y = select(subnormal, y * 2.0 ** -(up // 3), y)
    return select((a == 0) | ~(a < INF), x, with_sign_of(y, x))


@function(Bound(2, 2, arity=2))
def hypot(x: Value, y: Value) -> Value:
    """sqrt(x**2 + y**2), scaled by a power of two; inf if either is infinite, even with a nan."""
    a, b = fabs(x), fabs(y)
    form = FORMATS[x.dtype]
    far = form.bias // 2 - 3
    big = select(a < b, b, a)
    large, small = big > 2.0**far, big < 2.0**-far
    down, up = far + 20, far + 2 * form.mantissa  # squares neither overflow nor lose bits, of subnormal numbers either
    scale = select(large, x.lift(2.0**-down), select(small, x.lift(2.0**up), 1.0))
    unscale = select(large, x.lift(2.0**down), select(small, x.lift(2.0**-up), 1.0))
    p, q = a * scale, b * scale
    return select((a == INF) | (b == INF), INF, root(fma(p, p, q * q)) * unscale)
