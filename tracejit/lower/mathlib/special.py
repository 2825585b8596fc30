"""Error functions and the gamma family.

erfc(a) = exp(-a**2) P((a - k) / (a + k)) / (1 + 2 a): one polynomial serves the whole half line a >= 0.

Read next: `arithmetic.py`.
"""

from __future__ import annotations

from ..scalar import F32, F64, Value, cast, fabs, fma, select
from .base import Bound, at_most, function, polynomial, with_sign_of
from .exponential import exp_of_sum, exp_unscaled

# Error functions ----------------------------------------------------------------------------------------------------

# erf(x) / x - 1 in x**2 for |x| < 0.85 (float32) or 1 (float64).
ERF = {
    F32: (0.12837917, -0.3761259, 0.11282865, -0.026807288, 0.0050577032, -0.00063485117),
    F64: (0.12837916709551256, -0.37612638903183343, 0.1128379167093689, -0.026866170641937363, 0.005223977596447513,
          -0.0008548325465549171, 0.00012055279738773369, -1.4924447594635836e-05, 1.6443884084820121e-06,
          -1.6181611537474193e-07, 1.3604939131355016e-08, -7.58313711761242e-10),
}
ERF_SPLIT = {F32: 0.85, F64: 1.0}
# log(erfc(a)) on [0.85, 4]; erf(4) rounds to 1.
ERF_TAIL = (0.00015450144, -1.1294156, -0.63355196, -0.10804993, 0.024967888, -0.004112582, 0.0004222224, -2.002376e-05)
# erfc(a) exp(a**2) (1 + 2 a) in (a - k) / (a + k).
ERFC_K = {F32: 2.0, F64: 4.0}
ERFC = {
    F32: (1.2769784, -0.09276388, -0.1660309, 0.1640526, -0.054207705, -0.00804049, 0.008644305, 0.0012608761,
          -0.0012629338, -0.00035088803, 3.709732e-05),
    F64: (1.2329951186255526, -0.13962111684056316, 0.015379652102605036, 0.06809705425476165, -0.1010390660355103,
          0.09373283499628592, -0.0663303658291134, 0.03716751556436644, -0.01619773387199758, 0.0050319697999023656,
          -0.0007577744847732705, -0.00019925608396389088, 0.00015062646731327684, -2.4400046859994607e-05,
          -1.123424312047162e-05, 5.7086627079571095e-06, 3.134231702107475e-07, -8.196624143710119e-07,
          5.576560059168107e-08, 1.0141906769526024e-07, -8.319735904777396e-09, -8.463299860618603e-09),
}
ERFC_END = {F32: 10.5, F64: 27.5}  # erfc is 0 beyond


def _erf_inner(a: Value) -> Value:
    return fma(a, polynomial(a * a, ERF[a.dtype]), a)


def _erfc_outer(a: Value) -> Value:
    """erfc(a) for 0 <= a < ERFC_END."""
    k = ERFC_K[a.dtype]
    h = polynomial((a - k) / (a + k), ERFC[a.dtype]) / fma(a, 2.0, 1.0)
    square = a * a
    return exp_of_sum(-square, -fma(a, a, -square)) * h


@function(Bound(2, 2))
def erf(x: Value) -> Value:
    a = fabs(x)
    if x.dtype == F32:
        outer = 1.0 - exp_unscaled(polynomial(at_most(a, 4.0), ERF_TAIL))
    else:
        outer = 1.0 - _erfc_outer(at_most(a, 6.0))
    return with_sign_of(select(a < ERF_SPLIT[x.dtype], _erf_inner(a), outer), x)


@function(Bound(4, 4))
def erfc(x: Value) -> Value:
    a = fabs(x)
    y = _erfc_outer(at_most(a, ERFC_END[x.dtype]))
    return select(a < 0.5, 1.0 - _erf_inner(x), select(x < 0, 2.0 - y, y))
