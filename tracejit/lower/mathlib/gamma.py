"""The gamma family: lgamma and digamma.

For positive arguments each has one polynomial between its zeros and poles and one for large arguments; negative
arguments are reflected, which a target may branch around.

Read next: `arithmetic.py`.
"""

from __future__ import annotations

from ..scalar import F32, F64, Value, fabs, fma, rint, select
from .base import Bound, function, polynomial, rarely, with_sign_of
from .exponential import log, log1p_tail, log_of_parts, log_special, split_any_exponent
from .trigonometric import COS, SIN

INF, NAN = float("inf"), float("nan")
PI, EULER = 3.141592653589793, 0.5772156649015329
HALF_LOG_2PI = 0.9189385332046727

# log(gamma(2 + t)) / t on [-0.586, 1]; and what Stirling's formula leaves for x >= 8, times x, in 1 / x**2.
LGAMMA = {
    F32: (0.42278433, 0.3224669, -0.06735189, 0.020583834, -0.0073905075, 0.002871304, -0.0011671876, 0.0005514779,
          -0.00028232552, 8.125673e-05),
    F64: (0.42278433509846713, 0.32246703342411337, -0.06735230105319613, 0.020580808427765482, -0.007385551028794217,
          0.002890510331494769, -0.001192753909055855, 0.0005096695104340049, -0.00022315478438653786,
          9.945766501738959e-05, -4.4926135617337405e-05, 2.0506257892171932e-05, -9.439342006333668e-06,
          4.378347375916705e-06, -2.0420236798417586e-06, 9.485994599968638e-07, -4.391103827430859e-07,
          2.1505173427258015e-07, -1.1522122050583803e-07, 5.592372548512688e-08, -1.8184536609045447e-08,
          2.7153414429846187e-09),
}
STIRLING = {
    F32: (0.083333306, -0.0027646483),
    F64: (0.08333333333333333, -0.0027777777777547807, 0.0007936507750284348, -0.000595232482088797,
          0.0008409556227943538, -0.0018607377491124937, 0.004426747868864529),
}
# digamma(x) / (x - root) on [1, 2]; and (log(x) - 1 / (2 x) - digamma(x)) x**2 for x >= 2, in 1 / x**2.
DIGAMMA = {
    F32: (0.9676722, -0.44276324, 0.25850224, -0.16393887, 0.10776639, -0.072283156, 0.0492585, -0.032267045,
          0.02109163, -0.019829845, 0.013549681),
    F64: (0.9676722454476212, -0.4427631689835907, 0.25849976095561944, -0.1639427054428211, 0.10782405069616008,
          -0.07219956122114357, 0.04880428786593436, -0.033161127828819616, 0.02259765757687965,
          -0.015424738081885665, 0.010538620713975825, -0.007204865049676132, 0.0049287232005700244,
          -0.003367498457137549, 0.0022910831383430156, -0.0015857032815125025, 0.001142931889073654,
          -0.000725834046571215, 0.00032936281354919636, -0.00031917571284623597, 0.0004873296979704843,
          -0.00026810848480401863),
}
DIGAMMA_TAIL = {
    F32: (0.08333331, -0.008331924, 0.003932142, -0.0037004969, 0.0040323655, -0.0027041836),
    F64: (0.0833333333333182, -0.008333333326760724, 0.0039682529170480645, -0.004166578124414095,
          0.0075711453679400634, -0.020929375519242344, 0.07912147593005164, -0.3597399889715028, 1.7049622478216824,
          -7.458719126642838, 27.60523483921538, -81.07879316671867, 178.28705759287794, -273.125776963693,
          258.52926141854357, -113.45370721988759),
}
# The positive root of digamma to twice the precision.
DIGAMMA_ROOT = {F32: (1.4616321325302124, 1.2438149938918909e-08), F64: (1.4616321449683622, 9.549995429965697e-17)}


def _sin_cos_pi(x: Value) -> tuple[Value, Value]:
    """(sin(pi x) / pi, cos(pi x)), both of the remainder of x to an even or an odd integer alike, for x <= 0."""
    r = x - rint(x)
    b = fabs(r)
    near = b <= 0.25
    angle = select(near, b, 0.5 - b) * PI
    z = angle * angle
    sine = fma(angle * z, polynomial(z, SIN[x.dtype]), angle)
    cosine = fma(z, fma(z, polynomial(z, COS[x.dtype]), -0.5), 1.0)
    return with_sign_of(select(near, sine, cosine) * (1 / PI), r), select(near, cosine, sine)


@function(Bound(4, 4, (0, INF), note="for x < 0, absolute near the zeros"))
def lgamma(x: Value) -> Value:
    """log(abs(gamma(x))): log(gamma(2 + t)) and the logarithm of what shifts 2 + t to x, or Stirling's formula."""
    negative = x < 0
    a = select(negative, 1.0 - x, x)
    large, shift_down = a >= 8.0, a >= 3.0
    # From [3, 8) to [2, 3), collecting the product of the arguments passed.
    y, product = a, x.lift(1.0)
    for _ in range(5):
        step = y >= 3.0
        y = select(step, y - 1.0, y)
        product = select(step, product * y, product)
    one, two = a >= 0.5, a >= 1.4140625
    around_one = (a > 0.7109375) & ~two
    t = select(two, y - 2.0, select(one, a - 1.0, a))
    shifted = select(two, product, select(one, a, a * (a + 1.0)))
    argument = select(large, a, shifted)
    f, e = split_any_exponent(argument)
    log_minus = log_special(argument, log_of_parts(f, e, select(large, x.lift(-1.0), 0.0)))  # minus 1 for Stirling
    # Around the zero at 1, log(a) = t + tail: the two terms in t are added before they are rounded.
    constant, *rest = LGAMMA[x.dtype]
    slope = fma(t, polynomial(t, rest), select(around_one, x.lift(-EULER), constant))
    shift = select(shift_down, log_minus, -select(around_one, log1p_tail(f), log_minus))
    near = fma(t, slope, shift) + 0.0  # the zeros are +0
    inverse = 1.0 / a
    correction = polynomial(inverse * inverse, STIRLING[x.dtype])
    stirling = fma(a - 0.5, log_minus, fma(inverse, correction, HALF_LOG_2PI - 0.5))
    y = select(a < INF, select(large, stirling, near), a)
    sine, _ = _sin_cos_pi(x)
    reflected = select((sine == 0) | (x == -INF), INF, -log(fabs(sine)) - y)
    return rarely(negative, reflected, y)


@function(Bound(4, 4, (0, INF), note="for x < 0, absolute near the zeros"))
def digamma(x: Value) -> Value:
    """The derivative of log(gamma(x))."""
    negative = x < 0
    a = select(negative, 1.0 - x, x)
    below = a < 1.0
    root, root_low = DIGAMMA_ROOT[x.dtype]
    t = (a - select(below, x.lift(root - 1.0), root)) - root_low
    inverse = 1.0 / a
    near = fma(t, polynomial(t, DIGAMMA[x.dtype]), select(below, -inverse, 0.0))
    z = inverse * inverse
    far = fma(-z, polynomial(z, DIGAMMA_TAIL[x.dtype]), fma(inverse, -0.5, log(a)))
    y = select(a < 2.0, near, far)
    sine, cosine = _sin_cos_pi(x)
    reflected = select(sine == 0, NAN, y - cosine / sine)
    return rarely(negative, reflected, y)
