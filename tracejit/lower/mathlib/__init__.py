from .base import BOUNDS, Bound
from .exponential import exp, exp2, expm1, log, log1p, log2, log10, logaddexp, pow, sigmoid, softplus, tanh
from .trigonometric import cos, sin, tan
from .arithmetic import (
    copysign,
    floor_divide,
    fmod,
    int_pow,
    isfinite,
    isinf,
    isnan,
    nextafter,
    philox4x32_10,
    remainder,
    sign,
    signbit,
)
from .error import erf, erfc, erfinv
from .gamma import digamma, lgamma
from .trigonometric import acos, asin, atan, atan2
from .hyperbolic import acosh, asinh, atanh, cbrt, cosh, hypot, sinh
