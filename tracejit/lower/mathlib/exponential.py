"""Exponentials, logarithms and powers.

exp: x = n ln 2 + r with |r| <= ln(2) / 2, then a minimax polynomial of e**r, scaled by a power of two.
log: x = 2**e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), then log1p(f) = f + tail, where the tail is small beside f.
All minimax coefficients in this package come from `python -m benchmarks.minimax`.

Read next: `trigonometric.py`.
"""

from __future__ import annotations

import numpy as np

from ..scalar import F32, F64, Value, bitcast, cast, fabs, fma, maximum, rint, scale, select
from .base import (
    FORMATS,
    Bound,
    at_least,
    at_most,
    flip_sign,
    function,
    keep_zero,
    nearest,
    polynomial,
    power_of_two,
    sign_bit,
    small_to_float,
    to_bits,
    with_sign_of,
)

INF, NAN = float("inf"), float("nan")

# ln 2 in two parts; the first has few enough bits that n * LN2_HI is exact for every exponent n.
LN2_HI = {F32: float.fromhex("0x1.62e4p-1"), F64: float.fromhex("0x1.62e42fefa4p-1")}
LN2_LO = {F32: float.fromhex("0x1.7f7d1cp-20"), F64: float.fromhex("-0x1.8432a1b0e2634p-43")}
LOG10_2_HI = {F32: float.fromhex("0x1.344p-2"), F64: float.fromhex("0x1.34413509f8p-2")}
LOG10_2_LO = {F32: float.fromhex("0x1.3509f8p-18"), F64: float.fromhex("-0x1.80433b83b532ap-44")}
# log2(e) and log10(e) to twice the precision.
LOG2E_HI = {F32: float.fromhex("0x1.715476p0"), F64: float.fromhex("0x1.71547652b82fep0")}
LOG2E_LO = {F32: float.fromhex("0x1.4ae0cp-26"), F64: float.fromhex("0x1.777d0ffda0d24p-56")}
LOG10E_HI = {F32: float.fromhex("0x1.bcb7b2p-2"), F64: float.fromhex("0x1.bcb7b1526e50ep-2")}
LOG10E_LO = {F32: float.fromhex("-0x1.5b235ep-27"), F64: float.fromhex("0x1.95355baaafad3p-57")}

# (e**r - 1 - r) / r**2 on |r| <= ln(2) / 2.
EXP = {
    F32: (0.5, 0.16666539, 0.041666605, 0.008367029, 0.0013921019),
    F64: (0.5, 0.16666666666666677, 0.04166666666666667, 0.008333333333321476, 0.0013888888888878988,
          0.00019841269886319512, 2.480158734832763e-05, 2.755724414405933e-06, 2.7557242848294424e-07,
          2.5109036838308983e-08, 2.092726225933642e-09),
}
# (2**r - 1) / r on |r| <= 1/2.
EXP2 = {
    F32: (0.6931472, 0.24022594, 0.055503663, 0.009625421, 0.0013387951, 0.00013346449),
    F64: (0.6931471805599453, 0.24022650695910175, 0.05550410866482458, 0.009618129107575916, 0.0013333558145566312,
          0.00015403530480309028, 1.5252734736568315e-05, 1.32154237716349e-06, 1.017765831556693e-07,
          7.075735792460797e-09, 4.518680334863018e-10),
}
# float32: (log1p(f) - f + f**2 / 2) / f**3. float64: (2 atanh(s) / s - 2) / s**2 in s**2, with s = f / (2 + f).
LOG = {
    F32: (0.3333333, -0.25000823, 0.20001261, -0.16623335, 0.14200975, -0.13159136, 0.12766662, -0.07645049),
    F64: (0.6666666666666734, 0.39999999999416613, 0.2857142874203688, 0.22222198604061896, 0.1818356290421567,
          0.15314083501611325, 0.1479564636527824),
}
# (2 atanh(s) / s - 2 - 2/3 s**2) / s**4 in s**2, for float64 powers.
POW_LOG = (0.3999999999999998, 0.2857142857144384, 0.22222222217789736, 0.181818188439943, 0.15384558428317976,
           0.1333626451416465, 0.11675780243996702, 0.1198175877143908)
# Float32 powers go through float64: log2(1 + f) / f, and (2**r - 1) / r.
POW_LOG2 = (1.4426950408686974, -0.7213475208689752, 0.48089836140268594, -0.36067367482732443, 0.2885372928600739,
            -0.2404531644799458, 0.206175376358467, -0.18030064362731943, 0.1587696239194635, -0.14315589650357674,
            0.14474890538083873, -0.1428418854300657, 0.07737223524946177)
POW_EXP2 = (0.693147202855161, 0.240226479178593, 0.05550332470453493, 0.009618436792782226, 0.0013398874924511995,
            0.00015353521888284067)

EXP_RANGE = {F32: (-104.0, 90.0), F64: (-746.0, 711.0)}  # outside, even half the result is 0 or inf
EXP2_RANGE = {F32: (-151.0, 129.0), F64: (-1076.0, 1025.0)}


# Exponentials -------------------------------------------------------------------------------------------------------


def split_exp(x: Value, x_low: Value | None = None) -> tuple[Value, Value]:
    """(r, n) with x + x_low = n ln 2 + r, |r| <= ln(2) / 2 and n integral."""
    n, _ = nearest(x, LOG2E_HI[x.dtype])
    r = fma(n, -LN2_HI[x.dtype], x)  # exact
    return fma(n, -LN2_LO[x.dtype], r) if x_low is None else r + fma(n, -LN2_LO[x.dtype], x_low), n


def reduce_exp(x: Value, x_low: Value | None = None) -> tuple[Value, Value]:
    """(p, n) with e**(x + x_low) = 2**n (1 + p), |p| < 0.42 and n integral."""
    r, n = split_exp(x, x_low)
    return fma(r * r, polynomial(r, EXP[x.dtype]), r), n


def reduce_expm1(x: Value) -> tuple[Value, Value]:
    """As `reduce_exp`, with p to a little more than its precision before its last rounding, and the bits of n."""
    n, n_bits = nearest(x, LOG2E_HI[x.dtype])
    first = fma(n, -LN2_HI[x.dtype], x)  # exact
    r = fma(n, -LN2_LO[x.dtype], first)
    r_low = fma(n, -LN2_LO[x.dtype], first - r)
    return r + fma(r * r, polynomial(r, EXP[x.dtype]), r_low), n_bits


def exp_of_sum(x: Value, x_low: Value | None = None, exponent: int = 0) -> Value:
    """2**exponent e**(x + x_low) for a small correction x_low and an exponent of 0 or -1."""
    low, high = EXP_RANGE[x.dtype]
    r, n = split_exp(at_least(at_most(x, high), low), x_low)
    return scale(polynomial(r, (1.0, 1.0, *EXP[x.dtype])), n + float(exponent) if exponent else n)


@function(Bound(2, 2))
def exp(x: Value) -> Value:
    return exp_of_sum(x)


@function(Bound(2, 2))
def exp2(x: Value) -> Value:
    low, high = EXP2_RANGE[x.dtype]
    x = at_least(at_most(x, high), low)
    n, _ = nearest(x, 1.0)
    r = x - n
    return scale(fma(r, polynomial(r, EXP2[x.dtype]), 1.0), n)


@function(Bound(2, 2))
def expm1(x: Value) -> Value:
    low, high = (-18.0, 89.0) if x.dtype == F32 else (-38.0, 710.0)  # the result is -1 or inf beyond
    p, n = reduce_expm1(at_least(at_most(x, high), low))
    half = power_of_two(n - 1, x.dtype)  # half of 2**n, which may overflow
    y = fma(p, half, half - 0.5) * 2.0
    return select(fabs(x) < 2.0 ** -FORMATS[x.dtype].mantissa, x, y)


@function(Bound(2, 2))
def tanh(x: Value) -> Value:
    """h / (h + 1) with h = (e**2|x| - 1) / 2, for small h as h - h * tanh: no rounding error of h + 1."""
    p, n = reduce_expm1(at_most(fabs(x), 10.0 if x.dtype == F32 else 20.0) * 2.0)
    half = power_of_two(n - 1, x.dtype)
    h = fma(p, half, half - 0.5)
    y = h / (h + 1.0)
    return with_sign_of(select(h < 0.5, fma(-h, y, h), y), x)


@function(Bound(4, 4))
def sigmoid(x: Value) -> Value:
    """1 / (1 + e**-x), with the tail e**x down to the subnormals."""
    e = exp(-fabs(x))
    return select(x < 0, e, 1.0) / (e + 1.0)


@function(Bound(4, 4))
def softplus(x: Value) -> Value:
    """log(1 + e**x)."""
    return select(x < 0, 0.0, x) + _log1p_of_unit(exp(-fabs(x)))


@function(Bound(4, 4, floor=1.0, arity=2, note="relative to max(|result|, 1): the function has zeros"))
def logaddexp(x: Value, y: Value) -> Value:
    """log(e**x + e**y)."""
    distance = select(x == y, 0.0, fabs(x - y))  # two equal infinities are no nan
    return select(x < y, y, x) + _log1p_of_unit(exp(-distance))


# Logarithms ---------------------------------------------------------------------------------------------------------


def split_exponent(x: Value) -> tuple[Value, Value]:
    """(f, e) with x = 2**e (1 + f), 1 + f in [sqrt(1/2), sqrt(2)), e an integer; x positive, normal and finite."""
    form = FORMATS[x.dtype]
    bits = to_bits(x)
    root_half = int(np.asarray(np.sqrt(0.5), x.dtype).view(form.integer))
    e = (bits - root_half) >> form.mantissa
    return bitcast(bits - (e << form.mantissa), x.dtype) - 1.0, e


def split_any_exponent(x: Value) -> tuple[Value, Value]:
    """As `split_exponent` with e as a float, for subnormal x too."""
    form = FORMATS[x.dtype]
    subnormal, up = x < form.tiny, form.mantissa + 1
    f, e = split_exponent(select(subnormal, x * 2.0**up, x))
    return f, small_to_float(e, x.dtype) - select(subnormal, x.lift(up), 0.0)


def log1p_tail(f: Value) -> Value:
    """log(1 + f) - f, for 1 + f in [sqrt(1/2), sqrt(2))."""
    if f.dtype == F32:
        return f * f * fma(f, polynomial(f, LOG[F32]), -0.5)
    s, half_square = f / (f + 2.0), f * f * 0.5
    z = s * s
    return fma(s, fma(z, polynomial(z, LOG[F64]), half_square), -half_square)


def log_of_parts(f: Value, e: Value, offset: Value | None = None) -> Value:
    """log(2**e (1 + f)), plus a small integer offset."""
    small = f + fma(e, LN2_LO[f.dtype], log1p_tail(f))
    if offset is None:
        return fma(e, LN2_HI[f.dtype], small)
    return fma(e, LN2_HI[f.dtype], offset) + small


def log_special(x: Value, y: Value) -> Value:
    """The result of a logarithm of x that is y for positive finite x."""
    y = select(x < INF, y, x)  # inf and nan
    return select(x <= 0, select(x == 0, x.lift(-INF), NAN), y)


@function(Bound(2, 2))
def log(x: Value) -> Value:
    return log_special(x, log_of_parts(*split_any_exponent(x)))


@function(Bound(2, 2))
def log2(x: Value) -> Value:
    f, e = split_any_exponent(x)
    high, low = LOG2E_HI[x.dtype], LOG2E_LO[x.dtype]
    return log_special(x, e + fma(f, high, fma(f, low, log1p_tail(f) * high)))


@function(Bound(2, 2))
def log10(x: Value) -> Value:
    f, e = split_any_exponent(x)
    high, low = LOG10E_HI[x.dtype], LOG10E_LO[x.dtype]
    small = fma(f, high, fma(e, LOG10_2_LO[x.dtype], fma(f, low, log1p_tail(f) * high)))
    return log_special(x, fma(e, LOG10_2_HI[x.dtype], small))


def log_of_sum(u: Value, c: Value) -> tuple[Value, Value]:
    """(f, e) with u + c = 2**e (1 + f) and e a float, for a small correction c of a normal, positive u."""
    form = FORMATS[u.dtype]
    f, e = split_exponent(u)
    scale = maximum(form.bias - e, 0) << form.mantissa  # 0 for huge u, where c is 0
    return fma(c, bitcast(scale, u.dtype), f), small_to_float(e, u.dtype)


@function(Bound(2, 2))
def log1p(x: Value) -> Value:
    u = x + 1.0
    y = log_of_parts(*log_of_sum(u, x - (u - 1.0)))
    return keep_zero(x, log_special(u, y))


def _log1p_of_unit(x: Value) -> Value:
    """log(1 + x) for 0 <= x <= 1, or nan."""
    u = x + 1.0
    c = x - (u - 1.0)
    halve = u > 1.4140625
    scale = select(halve, x.lift(0.5), 1.0)
    return log_of_parts(fma(c, scale, fma(u, scale, -1.0)), select(halve, x.lift(1.0), 0.0))


# Powers -------------------------------------------------------------------------------------------------------------


def _pow_f32(a: Value, y: Value) -> Value:
    """a**y for a >= 0, by float64; nan where it depends on more than the limit of y log a."""
    wide = cast(a, F64)
    f, e = split_exponent(wide)
    log2_a = fma(f, polynomial(f, POW_LOG2), small_to_float(e, F64))
    t = cast(y, F64) * _log_limits(wide, log2_a)
    t = at_least(at_most(t, 160.0), -160.0)
    n, n_bits = nearest(t, 1.0)
    r = t - n
    return cast(fma(r, polynomial(r, POW_EXP2), 1.0) * power_of_two(n_bits, F64), F32)


def _log_limits(a: Value, log_a: Value) -> Value:
    return select(a == 0, a.lift(-INF), select(a < INF, log_a, a))


def _pow_f64(a: Value, y: Value) -> Value:
    """As `_pow_f32`, with the logarithm to about 70 bits in two numbers."""
    f, e = split_any_exponent(a)
    # s = f / (2 + f)
    d = f + 2.0
    inverse = 1.0 / d
    s = f * inverse
    s_low = fma(-s, f - (d - 2.0), fma(-s, d, f)) * inverse
    z = s * s
    z_low = fma(s + s, s_low, fma(s, s, -z))
    # log1p(f) = 2 s + s z c, c = 2/3 + z (2/5 + ...)
    q = z * polynomial(z, POW_LOG)
    c = q + 2 / 3
    c_low = (q - (c - 2 / 3)) + 2.0**-53 / 3  # what 2/3 lost to rounding
    u = z * c
    u_low = fma(z, c_low, fma(z_low, c, fma(z, c, -u)))
    v = s * u
    v_low = fma(s, u_low, fma(s_low, u, fma(s, u, -v)))
    two_s = s + s
    log_m = two_s + v
    log_m_low = (v - (log_m - two_s)) + fma(s_low, 2.0, v_low)
    e_log2 = e * LN2_HI[F64]
    log_a = e_log2 + log_m
    log_a_low = fma(e, LN2_LO[F64], (log_m - (log_a - e_log2)) + log_m_low)
    # y log a
    log_a = _log_limits(a, log_a)
    t = y * log_a
    t_low = select(fabs(t) < 800.0, fma(y, log_a_low, fma(y, log_a, -t)), 0.0)
    return exp_of_sum(t, t_low)


@function(Bound(4, 4, arity=2))
def pow(x: Value, y: Value) -> Value:
    """x**y with every special case of C99."""
    a = fabs(x)
    result = _pow_f32(a, y) if x.dtype == F32 else _pow_f64(a, y)
    integral = rint(y) == y
    half = y * 0.5
    odd = integral & (rint(half) != half)
    result = flip_sign(result, select(odd, sign_bit(x), 0))
    result = select((x < 0) & (a < INF) & ~integral, NAN, result)
    return select((y == 0) | (x == 1) | ((a == 1) & (fabs(y) == INF)), 1.0, result)
