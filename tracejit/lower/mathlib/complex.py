"""What the functions do with complex numbers, out of the real functions of the parts.

Accuracy is a few units in the last place of the modulus. Zeros, infinities and nan as NumPy gives them where a formula
allows; branch cuts as in C99, by the sign of zero. Inverse functions follow Kahan (Branch cuts for complex elementary
functions, 1987).
"""

from __future__ import annotations

from ..scalar import F32, Complex, Value, bitcast, fabs, fma, select
from ..scalar import sqrt as root
from . import exponential, hyperbolic, trigonometric
from .arithmetic import copysign
from .base import FORMATS, at_least, at_most, complex_version, nearest, power_of_two, to_bits, with_sign_of
from .exponential import INF, LOG2E_HI, LOG10E_HI, NAN, log_of_parts, log_of_sum, reduce_exp
from .trigonometric import HALF_PI_HI, sin_cos

__all__: list[str] = []


def _times_i(z: Complex) -> Complex:
    return Complex(-z.im, z.re)


def _over_i(z: Complex) -> Complex:
    return Complex(z.im, -z.re)


def _product(x: Value, y: Value) -> Value:
    """x * y, where a zero wins over inf and nan."""
    zero = bitcast((to_bits(x) ^ to_bits(y)) & FORMATS[x.dtype].sign, x.dtype)
    return select((x == 0) | (y == 0), zero, x * y)


def _finite(x: Value) -> Value:
    return fabs(x) < INF


# Exponentials -------------------------------------------------------------------------------------------------------


def _exp_times(x: Value, factors: tuple[Value, Value]) -> tuple[Value, Value]:
    """e**x times each factor, where only the product need be in range."""
    low, high = (-200.0, 180.0) if x.dtype == F32 else (-1500.0, 1460.0)
    x = at_least(at_most(x, high), low)
    p, (_, n) = reduce_exp(x)[0] + 1.0, nearest(x, LOG2E_HI[x.dtype])
    quarter = n.lshr(2)
    step, last = power_of_two(quarter, x.dtype), power_of_two(n - quarter * 3, x.dtype)
    return tuple(_product(f, p) * step * step * step * last for f in factors)  # type: ignore[return-value]


@complex_version
def exp(z: Complex) -> Complex:
    sine, cosine = sin_cos(z.im)
    re, im = _exp_times(z.re, (cosine, sine))
    # Real numbers stay real; e**-inf is 0 and e**inf is infinite at any angle.
    real, odd = z.im == 0, ~_finite(z.im)
    re = select(odd & (z.re == -INF), 0.0, select(odd & (z.re == INF), z.re, re))
    im = select(real, z.im, select(odd & (z.re == -INF), 0.0, im))
    return Complex(re, im)


@complex_version
def exp2(z: Complex) -> Complex:
    ln2 = z.re.lift(0.6931471805599453)
    return exp(Complex(z.re * ln2, z.im * ln2))


@complex_version
def expm1(z: Complex) -> Complex:
    """expm1(x) cos y - 2 sin(y / 2)**2 + i e**x sin y."""
    half, _ = sin_cos(z.im * 0.5)
    sine, cosine = sin_cos(z.im)
    _, im = _exp_times(z.re, (cosine, sine))
    re = fma(half * -2.0, half, _product(exponential.expm1(z.re), cosine))
    real = z.im == 0
    return Complex(select(real, exponential.expm1(z.re), re), select(real, z.im, im))


def _log_abs(x: Value, y: Value, excess: Value) -> Value:
    """log(hypot(x, y)), given x**2 + y**2 - 1 for use where that is small."""
    form = FORMATS[x.dtype]
    big = select(fabs(x) < fabs(y), fabs(y), fabs(x))
    huge, small = big > 2.0 ** (form.bias - 1), big < 2.0 ** (2 * form.mantissa - form.bias)
    up = 2 * form.mantissa
    scale = select(huge, x.lift(0.25), select(small, x.lift(2.0**up), 1.0))
    size = hyperbolic.hypot(x * scale, y * scale)
    near = (size > 0.7) & (size < 1.5)
    u = select(near, excess + 1.0, size)
    f, e = log_of_sum(u, select(near, excess - (u - 1.0), 0.0))
    exponent = select(huge, x.lift(2.0), select(small, x.lift(-float(up)), 0.0))
    result = log_of_parts(f, e + exponent) * select(near, x.lift(0.5), 1.0)
    return select(size == 0, -INF, select(size < INF, result, size))


@complex_version
def log(z: Complex) -> Complex:
    a, b = fabs(z.re), fabs(z.im)
    big, small = select(a < b, b, a), select(a < b, a, b)
    excess = fma(big - 1.0, big + 1.0, small * small)
    return Complex(_log_abs(z.re, z.im, excess), trigonometric.atan2(z.im, z.re))


@complex_version
def log1p(z: Complex) -> Complex:
    x = z.re + 1.0
    excess = fma(z.re, z.re + 2.0, z.im * z.im)
    return Complex(_log_abs(x, z.im, excess), trigonometric.atan2(z.im, x))


@complex_version
def log2(z: Complex) -> Complex:
    w, scale = log(z), LOG2E_HI[z.re.dtype]
    return Complex(w.re * scale, w.im * scale)


@complex_version
def log10(z: Complex) -> Complex:
    w, scale = log(z), LOG10E_HI[z.re.dtype]
    return Complex(w.re * scale, w.im * scale)


@complex_version
def pow(z: Complex, w: Complex) -> Complex:
    """Modulus |z|**c e**(-d t), angle c t + d log |z|, for w = c + i d and t the angle of z."""
    log_z = log(z)
    size = hyperbolic.hypot(z.re, z.im)
    sine, cosine = sin_cos(fma(w.re, log_z.im, _product(w.im, log_z.re)))
    modulus = exponential.pow(size, w.re) * exponential.exp(-(w.im * log_z.im))
    result = Complex(_product(modulus, cosine), _product(modulus, sine))
    base_zero, one = (z.re == 0) & (z.im == 0), (w.re == 0) & (w.im == 0)
    at_zero = select(w.re > 0, z.re.lift(0.0), NAN)
    result = select(base_zero, Complex(at_zero, at_zero), result)
    return select(one, 1.0, result)


@complex_version
def sigmoid(z: Complex) -> Complex:
    return 1.0 / (exp(-z) + 1.0)


# Trigonometric and hyperbolic ---------------------------------------------------------------------------------------


@complex_version
def sinh(z: Complex) -> Complex:
    sine, cosine = sin_cos(z.im)
    return Complex(_product(hyperbolic.sinh(z.re), cosine), _product(hyperbolic.cosh(z.re), sine))


@complex_version
def cosh(z: Complex) -> Complex:
    sine, cosine = sin_cos(z.im)
    return Complex(_product(hyperbolic.cosh(z.re), cosine), _product(hyperbolic.sinh(z.re), sine))


@complex_version
def tanh(z: Complex) -> Complex:
    """With t = tan y, s = sinh x, b = 1 + t**2: (b s sqrt(1 + s**2) + i t) / (1 + b s**2)."""
    limit = 11.0 if z.re.dtype == F32 else 22.0
    x = with_sign_of(at_most(fabs(z.re), limit), z.re)
    t = trigonometric.tan(z.im)
    s = hyperbolic.sinh(x)
    b = fma(t, t, 1.0)
    bottom = fma(b * s, s, 1.0)
    re, im = b * s * hyperbolic.cosh(x) / bottom, t / bottom
    far = fabs(z.re) > limit
    sine, cosine = sin_cos(z.im)
    tail = _product(sine * cosine * 4.0, exponential.exp(fabs(z.re) * -2.0))
    re = select(far, with_sign_of(x.lift(1.0), z.re), re)
    im = select(far, select(_finite(z.im), tail, with_sign_of(x.lift(0.0), z.im)), im)
    return Complex(select(z.re == 0, z.re, re), select(z.im == 0, z.im, im))


@complex_version
def sin(z: Complex) -> Complex:
    return _over_i(sinh(_times_i(z)))


@complex_version
def cos(z: Complex) -> Complex:
    return cosh(_times_i(z))


@complex_version
def tan(z: Complex) -> Complex:
    return _over_i(tanh(_times_i(z)))


# Inverses -----------------------------------------------------------------------------------------------------------


@complex_version
def sqrt(z: Complex) -> Complex:
    """The root with a nonnegative real part, scaled where squares would overflow."""
    form = FORMATS[z.re.dtype]
    a, b = fabs(z.re), fabs(z.im)
    big = select(a < b, b, a)
    huge, small = big > 2.0 ** (form.bias - 2), big < 2.0 ** (2 * form.mantissa - form.bias)
    up = (form.mantissa + 2) // 2 * 2
    scale = select(huge, a.lift(0.0625), select(small, a.lift(2.0**up), 1.0))
    unscale = select(huge, a.lift(4.0), select(small, a.lift(2.0 ** -(up // 2)), 1.0))
    a, b = a * scale, b * scale
    large = root((a + hyperbolic.hypot(a, b)) * 0.5)
    other = select(large == 0, 0.0, b / (large + large))
    large, other = large * unscale, other * unscale
    left, infinite = z.re < 0, fabs(z.im) == INF
    re, im = select(left, other, large), select(left, large, other)
    re = select(infinite, INF, select((z.re == -INF) & _finite(z.im), 0.0, re))
    im = select(infinite, INF, select((z.re == INF) & _finite(z.im), 0.0, im))
    return Complex(re, copysign(im, z.im))


def _roots(z: Complex) -> tuple[Complex, Complex]:
    """sqrt(1 - z) and sqrt(1 + z), with the sign of a zero imaginary part kept."""
    return sqrt(Complex(1.0 - z.re, -z.im)), sqrt(Complex(z.re + 1.0, z.im))


def _cross(p: Complex, q: Complex) -> Value:
    """The imaginary part of conj(p) q."""
    return _product(p.re, q.im) - _product(p.im, q.re)


@complex_version
def asin(z: Complex) -> Complex:
    minus, plus = _roots(z)
    re = trigonometric.atan2(z.re, _product(minus.re, plus.re) - _product(minus.im, plus.im))
    return Complex(re, copysign(hyperbolic.asinh(_cross(minus, plus)), z.im))


@complex_version
def acos(z: Complex) -> Complex:
    minus, plus = _roots(z)
    return Complex(trigonometric.atan2(minus.re, plus.re) * 2.0,
                   copysign(hyperbolic.asinh(_cross(plus, minus)), -z.im))


@complex_version
def acosh(z: Complex) -> Complex:
    minus, plus = sqrt(Complex(z.re - 1.0, z.im)), sqrt(Complex(z.re + 1.0, z.im))
    return Complex(fabs(hyperbolic.asinh(_product(minus.re, plus.re) + _product(minus.im, plus.im))),
                   trigonometric.atan2(minus.im, plus.re) * 2.0)


@complex_version
def asinh(z: Complex) -> Complex:
    return _over_i(asin(_times_i(z)))


@complex_version
def atanh(z: Complex) -> Complex:
    x, y = fabs(z.re), z.im
    away = 1.0 - x
    re = exponential.log1p(x * 4.0 / fma(away, away, y * y)) * 0.25
    im = trigonometric.atan2(y + y, fma(away, x + 1.0, -(y * y))) * 0.5
    infinite = ~(_finite(x) & _finite(y)) & (x == x) & (y == y)
    re = select(infinite, 0.0, re)
    im = select(infinite, with_sign_of(y.lift(HALF_PI_HI[y.dtype]), y), im)
    return Complex(with_sign_of(re, z.re), im)


@complex_version
def atan(z: Complex) -> Complex:
    return _over_i(atanh(_times_i(z)))
