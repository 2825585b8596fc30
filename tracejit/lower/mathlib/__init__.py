"""Functions of one lane, written once over the scalar statement language for every target.

In: `Value`s (float32, float64; float16 by way of float32; `Complex` where `complex.py` says so). Out: a `Value`.
No branches, no tables in memory, no calls. Special values (signed zeros, infinities, nan, subnormals) are exact.
`BOUNDS` holds each function's error bound in units in the last place; the tests and `benchmarks/ulp.py` read it.

Read next: `base.py`, then `exponential.py`, `trigonometric.py`, `hyperbolic.py`, `error.py`, `gamma.py`,
`arithmetic.py`, `complex.py`.
"""

from . import complex as _complex  # noqa: F401  (declares what the functions do with complex numbers)
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
from .base import BOUNDS, Bound
from .error import erf, erfc, erfinv
from .exponential import exp, exp2, expm1, log, log1p, log2, log10, logaddexp, pow, sigmoid, softplus, tanh
from .gamma import digamma, lgamma
from .hyperbolic import acosh, asinh, atanh, cbrt, cosh, hypot, sinh, sqrt
from .trigonometric import acos, asin, atan, atan2, cos, sin, tan

__all__ = [
    "BOUNDS", "Bound", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "copysign", "cos", "cosh",
    "digamma", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor_divide", "fmod", "hypot", "int_pow", "isfinite",
    "isinf", "isnan", "lgamma", "log", "log10", "log1p", "log2", "logaddexp", "nextafter", "philox4x32_10", "pow",
    "remainder", "sigmoid", "sign", "signbit", "sin", "sinh", "softplus", "sqrt", "tan", "tanh",
]
