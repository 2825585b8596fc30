"""The polynomials of `tracejit.lower.mathlib`: `python -m benchmarks.minimax [NAME ...]` computes them again.

Each entry of `fits` says which function a table of coefficients approximates, where, and how an error counts. A Remez
exchange finds the polynomial with the least largest error; coefficients are then rounded to the type one after the
other, lowest first, and the rest are fitted again, so that what one loses to rounding the others make good.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import mpmath as mp
import numpy as np
import scipy.special

from tracejit.lower.mathlib import error, exponential, gamma, hyperbolic, trigonometric
from tracejit.lower.scalar import F32, F64

Function = Callable[[mp.mpf], mp.mpf]
Numbers = list[mp.mpf]


@dataclass(frozen=True)
class Fit:
    """`target(x)` on [low, high], errors multiplied by `weight(x)`; `table`: the coefficients in use, of `dtype`."""

    target: Function
    low: float
    high: float
    weight: Function
    table: Sequence[float]
    dtype: np.dtype = F64


def round_to(x: mp.mpf, dtype: np.dtype) -> mp.mpf:
    bits = np.finfo(dtype).nmant + 1
    m, e = mp.frexp(x)
    return mp.ldexp(mp.nint(mp.ldexp(m, bits)), int(e) - bits)


def remez(xs: Numbers, target: Numbers, weight: Numbers, powers: Sequence[int]) -> tuple[Numbers, mp.mpf]:
    """Coefficients of `powers` with the least largest weighted error on the points xs, and that error."""
    n, count = len(powers), len(xs)
    basis = [[x**p * w for p in powers] for x, w in zip(xs, weight, strict=True)]
    wanted = [f * w for f, w in zip(target, weight, strict=True)]
    points = [round((count - 1) * (k + 0.5) / (n + 1)) for k in range(n + 1)]
    best: tuple[Numbers, mp.mpf] | None = None
    for _ in range(30):
        a, b = mp.matrix(n + 1, n + 1), mp.matrix(n + 1, 1)
        for r, i in enumerate(points):
            for c in range(n):
                a[r, c] = basis[i][c]
            a[r, n], b[r] = (-1)**r, wanted[i]
        try:
            solution = mp.lu_solve(a, b)
        except ZeroDivisionError:
            break
        found = [solution[k] for k in range(n)]
        errors = [wanted[i] - mp.fsum(basis[i][c] * found[c] for c in range(n)) for i in range(count)]
        largest = max(map(abs, errors))
        if best is None or largest < best[1]:
            best = found, largest
        peaks: list[int] = []  # the largest error between changes of its sign
        for i, e in enumerate(errors):
            if not peaks or (errors[peaks[-1]] > 0) != (e > 0):
                peaks.append(i)
            elif abs(e) > abs(errors[peaks[-1]]):
                peaks[-1] = i
        while len(peaks) > n + 1:
            peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
        if len(peaks) < n + 1 or peaks == points or largest < abs(solution[n]) * 1.0001:
            break
        points = peaks
    assert best is not None
    return best


def solve(fit: Fit, refits: int = 5) -> tuple[list[float], mp.mpf, mp.mpf, mp.mpf]:
    """Rounded coefficients; the largest errors of the ideal ones, of these, and of those in use."""
    low, high, n = mp.mpf(fit.low), mp.mpf(fit.high), len(fit.table)
    count = max(200, 24 * n)
    xs = [(low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * k / (count - 1)) for k in range(count)]
    xs = [x for x in xs if abs(x) > (high - low) * 1e-9]
    target, weight = [fit.target(x) for x in xs], [fit.weight(x) for x in xs]

    def largest(coefficients: Sequence[mp.mpf]) -> mp.mpf:
        values = [mp.polyval(list(coefficients)[::-1], x) for x in xs]
        return max(abs((f - v) * w) for f, v, w in zip(target, values, weight, strict=True))

    ideal, least = remez(xs, target, weight, range(n))
    rounded: Numbers = []
    rest = ideal
    for k in range(n):
        rounded.append(round_to(rest[0], fit.dtype))
        rest = rest[1:]
        if rest and k < refits:
            left = [f - mp.polyval(rounded[::-1], x) for f, x in zip(target, xs, strict=True)]
            again, e = remez(xs, left, weight, range(k + 1, n))
            rest = again if e < largest([*rounded, *rest]) else rest
    in_use = [mp.mpf(float(fit.dtype.type(c))) for c in fit.table]
    return [float(c) for c in rounded], least, largest(rounded), largest(in_use)


# ---- the functions, each in the variable its table is for


def odd_part(f: Function) -> Function:
    """(f(s) / s - 1) / s**2 in z = s**2."""
    return lambda z: (f(mp.sqrt(z)) / mp.sqrt(z) - 1) / z


def against(f: Function) -> Function:
    """The weight of `odd_part(f)` that makes errors relative to f."""
    return lambda z: z * mp.sqrt(z) / f(mp.sqrt(z))


def relative(f: Function) -> Function:
    return lambda x: 1 / f(x)


def atanh_terms(known: int) -> Function:
    """2 atanh(s) / s without its first terms, in z = s**2."""
    def f(z: mp.mpf) -> mp.mpf:
        s = mp.sqrt(z)
        return (2 * mp.atanh(s) / s - sum(2 * z**k / (2 * k + 1) for k in range(known))) / z**known
    return f


def erfc_scaled(k: float) -> Function:
    def f(t: mp.mpf) -> mp.mpf:
        a = k * (1 + t) / (1 - t)
        return mp.erfc(a) * mp.exp(a * a) * (1 + 2 * a)
    return f


def erf_center(j: int, dtype: np.dtype) -> tuple[float, float]:
    """The center of piece j of erf, near j steps, where erf is as near a number of the type as may be; and that."""
    apart = mp.mpf(2) ** (-20 if dtype == F64 and j < 13 else -14 if dtype == F64 else -16)
    most = 400 if dtype == F64 else 200
    places = [mp.mpf(j * error.ERF_STEP[dtype]) + k * apart for k in range(-most, most)] if j else [mp.mpf(0)]
    best = min(places, key=lambda c: abs(mp.erf(c) - round_to(mp.erf(c), dtype)) if c else 0)
    return float(best), float(round_to(mp.erf(best), dtype)) if j else 0.0


def erf_piece(j: int, dtype: np.dtype) -> Fit:
    center, value = (float(dtype.type(t[dtype][j])) for t in (error.ERF_CENTERS, error.ERF_VALUES))
    step, more = error.ERF_STEP[dtype], 1e-3  # what is rounded to the wrong piece is close to the right one

    def slope(d: mp.mpf) -> mp.mpf:
        return (mp.erf(center + d) - value) / d - (j == 0)

    return Fit(slope, (j - 0.5) * step - more - center if j else 0, (j + 0.5) * step + more - center,
               lambda d: abs(d) / mp.erf(center + d), tuple(row[j] for row in error.ERF_NEAR[dtype]), dtype)


@cache
def erfinv_of_w(w: mp.mpf) -> mp.mpf:
    """erfinv(x) / x for w = -log(1 - x**2)."""
    q = mp.exp(-w)
    x = mp.sqrt(1 - q)
    y = mp.mpf(float(scipy.special.erfinv(float(x)))) if w < 20 else mp.sqrt(w) * 0.95
    for _ in range(30):
        step = (mp.erfc(y) - q / (1 + x)) * mp.sqrt(mp.pi) / 2 * mp.exp(y * y)
        y += step / (1 - y * step)
    return y / x


def stirling_rest(z: mp.mpf) -> mp.mpf:
    x = 1 / mp.sqrt(z)
    return (mp.loggamma(x) - ((x - mp.mpf(1) / 2) * mp.log(x) - x + mp.log(2 * mp.pi) / 2)) * x


def digamma_rest(z: mp.mpf) -> mp.mpf:
    x = 1 / mp.sqrt(z)
    return (mp.log(x) - 1 / (2 * x) - mp.digamma(x)) * x * x


def fits() -> dict[str, Fit]:
    ln2, quarter = mp.log(2), float(mp.pi / 4) * 1.01
    f_low, f_high = 0.5**0.5 - 1, 2**0.5 - 1
    s2 = (f_high / (2 + f_high))**2
    root = mp.findroot(mp.digamma, 1.46)
    found: dict[str, Fit] = {}

    def both(name: str, tables: dict[np.dtype, Sequence[float]], target: Function, low: float, high: float,
             weight: Function) -> None:
        for dtype, table in tables.items():
            found[f"{name}_{dtype.name}"] = Fit(target, low, high, weight, table, dtype)

    e = exponential
    both("EXP", e.EXP, lambda r: (mp.expm1(r) - r) / r**2, -0.3473, 0.3473, abs)
    both("EXP2", e.EXP2, lambda r: mp.expm1(r * ln2) / r, -0.501, 0.501, lambda r: abs(r) / mp.mpf(2)**r)
    found["LOG_float32"] = Fit(lambda f: (mp.log1p(f) - f + f * f / 2) / f**3, f_low, f_high,
                               lambda f: abs(f**3 / mp.log1p(f)), e.LOG[F32], F32)
    found["LOG_float64"] = Fit(atanh_terms(1), 0, s2, lambda z: z, e.LOG[F64])
    found["POW_LOG"] = Fit(atanh_terms(2), 0, s2, lambda z: z * z, e.POW_LOG)
    found["POW_LOG2"] = Fit(lambda f: mp.log1p(f) / ln2 / f, f_low, f_high, lambda f: f * ln2 / mp.log1p(f), e.POW_LOG2)
    found["POW_EXP2"] = Fit(lambda r: mp.expm1(r * ln2) / r, -0.5, 0.5, lambda r: abs(r) / mp.mpf(2)**r, e.POW_EXP2)
    t = trigonometric
    both("SIN", t.SIN, odd_part(mp.sin), 0, quarter**2, against(mp.sin))
    both("COS", t.COS, lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, 0, quarter**2,
         lambda z: z * z / mp.cos(mp.sqrt(z)))
    both("ASIN", t.ASIN, odd_part(mp.asin), 0, 0.2505, against(mp.asin))
    both("ATAN", t.ATAN, odd_part(mp.atan), 0, 1, against(mp.atan))
    both("SINH", hyperbolic.SINH, odd_part(mp.sinh), 0, 1, against(mp.sinh))

    def erf_rest(z: mp.mpf) -> mp.mpf:
        return mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1

    for dtype in (F32, F64):
        k, end = error.ERFC_K[dtype], 11 if dtype == F32 else 28
        found[f"ERF_{dtype.name}"] = Fit(erf_rest, 0, 0.85**2 if dtype == F32 else 1,
                                         lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)), error.ERF[dtype], dtype)
        f = erfc_scaled(k)
        found[f"ERFC_{dtype.name}"] = Fit(f, -1, (end - k) / (end + k), relative(f), error.ERFC[dtype], dtype)
        center = error.ERFINV_CENTER[dtype]

        def central(v: mp.mpf, center: float = center) -> mp.mpf:
            return erfinv_of_w(v + center)

        found[f"ERFINV_{dtype.name}"] = Fit(central, 1e-9 - center, error.ERFINV_SPLIT[dtype] + 0.01 - center,
                                            relative(central), error.ERFINV[dtype], dtype)
        for j in range(16):
            found[f"ERF_NEAR_{dtype.name}_{j}"] = erf_piece(j, dtype)
    for name, center, low, high, table, dtype in (
            ("ERFINV_TAIL_F32", 3.0, 2.23, 4.01, error.ERFINV_TAIL_F32, F32),
            ("ERFINV_NEAR_F64", 3.25, 2.49, 4.01, error.ERFINV_NEAR_F64, F64),
            ("ERFINV_FAR_F64", 5.0, 3.99, 6.02, error.ERFINV_FAR_F64, F64)):

        def tail(v: mp.mpf, center: float = center) -> mp.mpf:
            return erfinv_of_w((v + center)**2)

        found[name] = Fit(tail, low - center, high - center, relative(tail), table, dtype)
    both("LGAMMA", gamma.LGAMMA, lambda t: mp.loggamma(2 + t) / t, -0.59, 1, lambda t: t / mp.loggamma(2 + t))
    both("STIRLING", gamma.STIRLING, stirling_rest, 1e-8, 1 / 64, lambda z: mp.mpf(1) / 64)
    both("DIGAMMA", gamma.DIGAMMA, lambda t: mp.digamma(root + t) / t, 1 - float(root), 2 - float(root),
         lambda t: t / mp.digamma(root + t))
    both("DIGAMMA_TAIL", gamma.DIGAMMA_TAIL, digamma_rest, 1e-8, 0.25, lambda z: z / mp.digamma(1 / mp.sqrt(z)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.minimax", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="tables whose name begins so; all if none is given")
    names = parser.parse_args().names
    mp.mp.dps = 45
    for name, fit in fits().items():
        if names and not name.startswith(tuple(names)):
            continue
        coefficients, *largest = solve(fit)
        least, rounded, used = (mp.nstr(mp.log(e, 2), 4) for e in largest)
        print(f"{name}: least error 2^{least}, rounded 2^{rounded}, in use 2^{used}")
        print("    (" + ", ".join(str(fit.dtype.type(c)) for c in coefficients) + ")", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
