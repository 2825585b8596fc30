"""Scalar functions: errors against wider arithmetic, special values, integers against NumPy, complex numbers, hints."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.special

from benchmarks import sweep
from benchmarks.native import compiled
from benchmarks.ulp import (
    EXACT,
    SOUND,
    check_reference,
    differing,
    errors,
    exact,
    exact_inputs,
    grid,
    inputs,
    measured,
    on_every_float32,
    slow,
)
from tracejit.lower import mathlib
from tracejit.lower.rare import Detour, detours
from tracejit.lower.scalar import Builder, Complex, Stmt, Value, cast, evaluate_stmt, interpret

F16, F32, F64 = np.dtype("float16"), np.dtype("float32"), np.dtype("float64")
FLOATS = (F32, F64)
NAMES = sorted(mathlib.BOUNDS)
INF, NAN = np.inf, np.nan


def name_of(value: object) -> str | None:
    return value.name if isinstance(value, np.dtype) else None


def equal(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Equal including the sign of zeros; nan equals nan."""
    expected = np.asarray(expected)
    same = found == expected
    if found.dtype.kind == "f":
        same &= np.signbit(found) == np.signbit(expected)
    return same | ((found != found) & (expected != expected))


def require_equal(found: np.ndarray, expected: np.ndarray, *inputs: np.ndarray) -> None:
    wrong = np.flatnonzero(~equal(found, expected))
    assert not wrong.size, [(*(i[k] for i in inputs), "gives", found[k], "not", expected[k]) for k in wrong[:5]]


# ---- errors


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize("name", NAMES)
def test_error_is_within_the_stated_bound(name: str, dtype: np.dtype, rng: np.random.Generator) -> None:
    bound = mathlib.BOUNDS[name]
    args = inputs(name, dtype, 300 if slow(name, dtype) else 30_000, rng)
    found = compiled(getattr(mathlib, name), *[dtype] * bound.arity)(*args)
    e = errors(found, exact(name, *args), bound.floor)
    k = int(e.argmax())
    assert e[k] <= (bound.f32 if dtype == F32 else bound.f64), (*(a[k] for a in args), "gives", found[k])
    few = tuple(a[:: max(1, a.size // 2000)] for a in args)
    again = errors(interpret(getattr(mathlib, name), *few), exact(name, *few), bound.floor)
    assert again.max() <= (bound.f32 if dtype == F32 else bound.f64)


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize("name", [n for n in NAMES if mathlib.BOUNDS[n].arity == 2])
def test_error_on_pairs_of_difficult_numbers(name: str, dtype: np.dtype) -> None:
    bound, x, y = mathlib.BOUNDS[name], *grid(dtype)
    found = measured(name, (x, y) if dtype == F32 else (x[::3], y[::3]))
    assert found.error <= (bound.f32 if dtype == F32 else bound.f64), found.where


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize("name", sorted(EXACT))
def test_functions_that_are_exact(name: str, dtype: np.dtype) -> None:
    args = exact_inputs(EXACT[name][1], dtype, 20_000)
    assert differing(name, tuple(a[::3] for a in args)) == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [n for n in NAMES if mathlib.BOUNDS[n].arity == 1])
def test_error_over_every_float32(name: str) -> None:
    assert check_reference(name) <= SOUND
    for row, found in on_every_float32(name).items():
        assert found.error <= (mathlib.BOUNDS[name].f32 if row == name else sweep.NEGATIVE[name]), found.where


@pytest.mark.parametrize("name", ["exp", "lgamma"])
def test_the_sweep_finds_the_largest_error_of_its_numbers(name: str) -> None:
    """On a row of numbers around 1 and one with nan and infinity, against `errors`."""
    for row in (1016, 2040):
        x = (np.arange(sweep.ROW, dtype=np.uint32) + np.uint32(row * sweep.ROW)).view(F32)
        with np.errstate(all="ignore"):
            truth = compiled(getattr(mathlib, name), F64)(x.astype(F64))
        want = errors(compiled(getattr(mathlib, name), F32)(x), (truth, np.zeros_like(truth)))
        largest, bits = sweep.rows_of_errors(name, [row])
        assert largest[row] == np.float32(want.max()) and bits[row].view(F32) == x[want.argmax()]


def test_the_sweep_tells_wrong_special_values_and_signs() -> None:
    def error(found: Value, exact: Value) -> Value:
        return sweep.error_of(found, exact, 0.0)

    found = np.array([1, 1 + 2**-23, NAN, NAN, INF, INF, np.finfo("f4").max, -0.0, -0.0, 0, 3e-45], F32)
    exactly = np.array([1, 1, NAN, 1, INF, -INF, 1e39, -1e-60, 0, 1e-46, 1.5e-45])
    e = compiled(error, F32, F64)(found, exactly)
    np.testing.assert_allclose(e, [0, 1, 0, INF, 0, INF, 1, 0, INF, 0, 1], atol=0.08)


def test_compiled_functions_take_nothing() -> None:
    assert compiled(mathlib.exp, F32)(np.zeros(0, F32)).shape == (0,)


def test_errors_counts_units() -> None:
    one = np.array([1 + 2**-23, 1 - 2**-24, np.inf, np.finfo("f4").max, 3e-45], F32)
    truth = np.array([1, 1, 1e39, 1e39, 1.4e-45])
    np.testing.assert_allclose(errors(one, (truth, np.zeros(5))), [1, 0.5, 0, 1, 1], rtol=0.01)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_far_out(name: str, rng: np.random.Generator) -> None:
    """Next to multiples of pi / 2 at every magnitude, where a reduction loses the most."""
    with mpmath.workprec(1300):
        near = [float(mpmath.nint(mpmath.mpf(2)**k * r) * mpmath.pi / 2) for k in range(0, 1020, 4) for r in (0.8, 0.6)]
    x = np.array([*near, 6381956970095103 * 2.0**797, -5.319372648326541e255, np.finfo(F64).max, 2.0**30, 2.0**30 + 1])
    for dtype in FLOATS:
        with np.errstate(all="ignore"):
            narrow = x.astype(dtype)
        narrow = narrow[np.isfinite(narrow)]
        found = compiled(getattr(mathlib, name), dtype)(narrow)
        with mpmath.workprec(1300):
            truth = [getattr(mpmath, name)(mpmath.mpf(float(v))) for v in narrow]
            high = np.array([float(t) for t in truth])
            low = np.array([float(t - h) for t, h in zip(truth, high.tolist(), strict=True)])
        assert errors(found, (high, low)).max() <= 2


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_gamma_of_negative_numbers(name: str, dtype: np.dtype, rng: np.random.Generator) -> None:
    """Absolute near the many zeros: in units of the terms of the reflection formula."""
    x = -rng.uniform(0, 30, 300).astype(dtype)
    found = compiled(getattr(mathlib, name), dtype)(x)
    function = (lambda v: mpmath.loggamma(v).real) if name == "lgamma" else mpmath.digamma
    truth = np.array([float(function(mpmath.mpf(float(v)))) for v in x])
    scale = np.maximum(np.abs(truth), np.abs(getattr(scipy.special, {"lgamma": "gammaln"}.get(name, name))(1 - x)))
    assert (np.abs(found - truth) <= 12 * np.finfo(dtype).eps * np.maximum(scale, 1)).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_hypot_of_subnormal_numbers(dtype: np.dtype) -> None:
    k, tiny = np.array([1, 2, 3, 100, 12345]), float(np.finfo(dtype).smallest_subnormal)
    found = compiled(mathlib.hypot, dtype, dtype)((k * tiny).astype(dtype), (-k * tiny).astype(dtype))
    assert (found / dtype.type(tiny)).tolist() == np.rint(k * np.sqrt(2)).tolist()


# ---- special values

SPECIAL = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 0.5, -0.5, 2.0, -2.0]
LIKE_NUMPY: dict[str, Callable[..., Any]] = {
    **{n: getattr(np, n) for n in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh",
                                   "cosh", "tanh", "cbrt", "sign", "isnan", "isinf", "isfinite", "signbit")},
    **{n: getattr(np, f"arc{n[1:]}") for n in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
    "erf": scipy.special.erf, "erfc": scipy.special.erfc, "erfinv": lambda x: np.copysign(scipy.special.erfinv(x), x),
    "sigmoid": scipy.special.expit, "softplus": lambda x: np.logaddexp(0, x), "digamma": scipy.special.digamma,
}


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize("name", sorted(LIKE_NUMPY))
def test_special_values(name: str, dtype: np.dtype) -> None:
    info = np.finfo(dtype)
    x = np.array([*SPECIAL, info.max, -info.max], dtype)
    with np.errstate(all="ignore"):
        expected = LIKE_NUMPY[name](x.astype(F64)).astype(bool if "is" in name or "bit" in name else dtype)
        if dtype == F64 and name in ("sin", "cos", "tan"):
            expected = LIKE_NUMPY[name](x.astype(np.longdouble)).astype(dtype)
    found = compiled(getattr(mathlib, name), dtype)(x)
    special = ~np.isfinite(expected.astype(F64)) | (expected == 0) | (np.abs(expected) == 1)
    require_equal(found[special], expected[special], x[special])
    np.testing.assert_allclose(found.astype(F64), expected.astype(F64), rtol=4 * info.eps, atol=0)


ODD = ("expm1", "log1p", "sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "cbrt", "erf", "erfinv")


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize("name", ODD)
def test_zeros_keep_their_sign_and_subnormals_their_value(name: str, dtype: np.dtype, rng: np.random.Generator) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    x = np.concatenate([[0.0, -0.0], tiny * np.array([1, -1, 2, -3, 1000, -12345])]).astype(dtype)
    factor = {"erf": 2 / np.pi**0.5, "erfinv": np.pi**0.5 / 2}.get(name, 1.0)
    expected = np.cbrt(x) if name == "cbrt" else (x / tiny * factor).round().astype(dtype) * tiny
    found = compiled(getattr(mathlib, name), dtype)(x)
    if name == "cbrt":
        np.testing.assert_allclose(found, expected, rtol=2e-7)
    else:
        require_equal(found, expected.astype(dtype), x)


def test_lgamma_special_values() -> None:
    x = [0.0, -0.0, 1.0, 2.0, -1.0, -2.0, -1e20, INF, -INF, NAN, 1e-320, 1e308]
    expected = [INF, INF, 0.0, 0.0, INF, INF, INF, INF, INF, NAN, -np.log(1e-320), INF]
    found = compiled(mathlib.lgamma, F64)(x)
    require_equal(found[:-2], np.array(expected[:-2]), np.array(x))
    np.testing.assert_allclose(found[-2:], [-np.log(1e-320), scipy.special.gammaln(1e308)], rtol=1e-15)


def test_sine_and_cosine_never_leave_the_unit_interval(rng: np.random.Generator) -> None:
    for dtype in FLOATS:
        peaks = np.arange(-4000, 4000) * (np.pi / 2) + rng.normal(0, 1e-4, 8000)
        x = np.concatenate([peaks, rng.normal(0, 1e-3, 1000)])
        for f in (mathlib.sin, mathlib.cos):
            assert np.abs(compiled(f, dtype)(x.astype(dtype))).max() <= 1


GRID = [*SPECIAL, 3.0, -3.0, 2.5, 1e30, -1e30, 1e-30, -1e-30, 7.0, 4e9]
BINARY: dict[str, Callable[..., Any]] = {
    "pow": np.power, "atan2": np.arctan2, "hypot": np.hypot, "logaddexp": np.logaddexp, "fmod": np.fmod,
    "remainder": np.remainder, "floor_divide": np.floor_divide, "copysign": np.copysign, "nextafter": np.nextafter,
}


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize("name", sorted(BINARY))
def test_special_values_of_two_arguments(name: str, dtype: np.dtype) -> None:
    x, y = (a.ravel() for a in np.meshgrid(*[np.array(GRID, dtype)] * 2))
    with np.errstate(all="ignore"):
        expected = BINARY[name](x, y)
    found = compiled(getattr(mathlib, name), dtype, dtype)(x, y)
    exactly = np.full(x.shape, name not in ("pow", "atan2", "hypot", "logaddexp"))
    special = exactly | ~np.isfinite(expected) | (expected == 0) | (np.abs(expected) == 1)
    if name == "logaddexp":
        special &= ~np.isfinite(expected)
    require_equal(found[special], expected[special], x[special], y[special])
    np.testing.assert_allclose(found, expected, rtol=4 * np.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize("name", ["fmod", "remainder", "floor_divide", "nextafter"])
def test_exact_functions_of_random_bits(name: str, dtype: np.dtype, rng: np.random.Generator) -> None:
    n, uint = 20_000, np.dtype(f"u{dtype.itemsize}")
    bits = [rng.integers(0, np.iinfo(uint).max, n, uint, endpoint=True).view(dtype) for _ in range(2)]
    ratio = rng.integers(1, 5000, n) + rng.choice([0.0, 1e-7, -1e-7, 0.5], n)
    with np.errstate(all="ignore"):
        x = np.concatenate([bits[0], bits[0], rng.normal(0, 9, n)]).astype(dtype)
        y = np.concatenate([bits[1], bits[0] / ratio, rng.normal(0, 9, n)]).astype(dtype)
        expected = BINARY[name](x, y)
    require_equal(compiled(getattr(mathlib, name), dtype, dtype)(x, y), expected, x, y)


def test_float16_goes_through_float32() -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(F16)
    with np.errstate(all="ignore"):
        for name in ("exp", "log", "tanh", "erf"):
            expected = compiled(getattr(mathlib, name), F32)(x.astype(F32)).astype(F16)
            require_equal(compiled(getattr(mathlib, name), F16)(x), expected, x)
        y = np.roll(x, 12345)
        require_equal(compiled(mathlib.nextafter, F16, F16)(x, y), np.nextafter(x, y), x, y)
        require_equal(compiled(mathlib.copysign, F16, F16)(x, y), np.copysign(x, y), x, y)


# ---- integers and bits


@pytest.mark.parametrize("dtype", [np.dtype(f"{k}{s}") for k in "iu" for s in (1, 2, 4, 8)], ids=name_of)
def test_integer_division_and_powers(dtype: np.dtype, rng: np.random.Generator) -> None:
    info = np.iinfo(dtype)
    edge = [info.min, info.min + 1, 0, 1, 2, 3, 7, info.max - 1, info.max] + [-1, -2, -7] * (dtype.kind == "i")
    pairs = np.array(list(itertools.product(edge, edge)), dtype).T
    x, y = (np.concatenate([p, rng.integers(info.min, info.max, 3000, dtype, endpoint=True)]) for p in pairs)
    y[-1000:] = rng.integers(max(info.min, -20), 20, 1000)
    with np.errstate(all="ignore"):
        for name in ("floor_divide", "remainder", "fmod"):
            found = compiled(getattr(mathlib, name), dtype, dtype)(x, y)
            require_equal(found, getattr(np, name)(x, y), x, y)
        power = np.abs(y)
        power[power < 0] = 0
        require_equal(compiled(mathlib.int_pow, dtype, dtype)(x, power), x**power, x, power)
    require_equal(interpret(mathlib.int_pow, x[:200], power[:200]), x[:200]**power[:200], x, power)


@pytest.mark.parametrize("dtype", [np.dtype(f"{k}{s}") for k in "iu" for s in (1, 2, 4, 8)], ids=name_of)
def test_integer_division_by_literals(dtype: np.dtype, rng: np.random.Generator) -> None:
    info = np.iinfo(dtype)
    near = np.array([*(max(info.min, k) for k in range(-20, 20)), info.min, info.max], dtype)
    x = np.concatenate([near, rng.integers(info.min, info.max, 500, dtype, endpoint=True)])
    for n in (-7, -1, 0, 1, 2, 3, 10, 64, info.max):
        if n < 0 and dtype.kind == "u":
            continue
        for rule, reference in ((mathlib.floor_divide, np.floor_divide), (mathlib.remainder, np.remainder)):
            found = compiled(lambda x, rule=rule, n=n: rule(x, x.lift(n)), dtype)(x)
            with np.errstate(all="ignore"):
                require_equal(found, reference(x, dtype.type(n)), x, np.full_like(x, n))


def test_negative_integer_powers_truncate() -> None:
    x = np.array([0, 1, -1, -1, 2, -3, 7], np.int32)
    y = np.array([-1, -5, -3, -4, -1, -2, np.iinfo("i4").min], np.int32)
    assert compiled(mathlib.int_pow, "int32", "int32")(x, y).tolist() == [0, 1, -1, 1, 0, 0, 0]


def test_signs_of_integers() -> None:
    x = np.array([-3, 0, 5, np.iinfo("i4").min], np.int32)
    assert compiled(mathlib.sign, "int32")(x).tolist() == [-1, 0, 1, -1]
    assert compiled(mathlib.signbit, "int32")(x).tolist() == [True, False, False, True]
    assert compiled(mathlib.isfinite, "int32")(x).all()
    assert not compiled(mathlib.isnan, "int32")(x).any()
    assert compiled(mathlib.sign, "uint8")(np.array([0, 200], np.uint8)).tolist() == [0, 1]


def test_philox_known_answers() -> None:
    """The answers published with the generator: (key, counter) -> four words."""
    known = [
        ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        ((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
         (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ]
    args = [np.array(words, np.uint32) for words in zip(*((*key, *counter) for key, counter, _ in known), strict=True)]
    for run in (compiled(mathlib.philox4x32_10, *["uint32"] * 6), lambda *a: interpret(mathlib.philox4x32_10, *a)):
        assert np.array(run(*args)).T.tolist() == [list(words) for _, _, words in known]


# ---- complex numbers

COMPLEX: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    **{n: (getattr(np, n), getattr(mpmath, n)) for n in
       ("exp", "log", "log10", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{n: (getattr(np, f"arc{n[1:]}"), getattr(mpmath, n)) for n in
       ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
    "log2": (np.log2, lambda z: mpmath.log(z) / mpmath.log(2)), "expm1": (np.expm1, lambda z: mpmath.exp(z) - 1),
    "log1p": (np.log1p, lambda z: mpmath.log(1 + z)), "exp2": (np.exp2, lambda z: mpmath.mpf(2)**z),
}


@pytest.mark.parametrize("dtype", [np.dtype("c8"), np.dtype("c16")], ids=name_of)
@pytest.mark.parametrize("name", sorted(COMPLEX))
def test_complex_functions(name: str, dtype: np.dtype, rng: np.random.Generator) -> None:
    z = (rng.normal(size=60) + 1j * rng.normal(size=60)) * np.exp(rng.uniform(-6, 1.5, 60))
    unit = np.exp(1j * rng.uniform(-3, 3, 20)) * (1 + rng.normal(size=20) * 1e-6)
    z = np.concatenate([z, unit, z[:10] * 1e-4 + 1, z[:10] * 1e-4 - 1, z[:10] * 1e-4 + 1j]).astype(dtype)
    found = interpret(getattr(mathlib, name), z)
    assert found.dtype == dtype
    with mpmath.workprec(120):
        truth = [COMPLEX[name][1](mpmath.mpc(complex(v))) for v in z]
        distances = [float(abs(mpmath.mpc(complex(f)) - t) / abs(t)) for f, t in zip(found, truth, strict=True)]
    assert max(distances) <= 4 * np.finfo(dtype).eps, z[int(np.argmax(distances))]


@pytest.mark.parametrize("name", ["exp", "log", "log2", "log10", "sqrt"])
def test_complex_special_values(name: str) -> None:
    parts = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 2.5, 1e308, 1e-320]
    z = np.array([complex(*p) for p in itertools.product(parts, parts)])
    with np.errstate(all="ignore"):
        expected = COMPLEX[name][0](z)
    found = interpret(getattr(mathlib, name), z)
    for part in ("real", "imag"):
        np.testing.assert_allclose(getattr(found, part), getattr(expected, part), rtol=1e-15, atol=1e-322)


@pytest.mark.parametrize("name", ["asin", "acos", "atan", "asinh", "acosh", "atanh", "log", "sqrt"])
def test_branch_cuts_follow_the_sign_of_zero(name: str) -> None:
    parts = [2.0, -2.0, 0.0, -0.0, 0.5, -3.0]
    z = np.array([complex(*p) for p in itertools.product(parts, parts)])
    with np.errstate(all="ignore"):
        expected = COMPLEX[name][0](z)
    found = interpret(getattr(mathlib, name), z)
    for part in ("real", "imag"):
        np.testing.assert_allclose(getattr(found, part), getattr(expected, part), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("dtype", [np.dtype("c8"), np.dtype("c16")], ids=name_of)
def test_complex_powers(dtype: np.dtype, rng: np.random.Generator) -> None:
    z, w = ((rng.normal(size=200) + 1j * rng.normal(size=200)).astype(dtype) for _ in range(2))
    w[:50], z[50:55], w[55:60] = rng.integers(-3, 4, 50), 0, 0
    w[50:53] = [2, 0, 1.5]
    with np.errstate(all="ignore"):
        wide = z.astype("c16") ** w.astype("c16")
    found = interpret(mathlib.pow, z, w)
    np.testing.assert_allclose(found, wide, rtol=30 * np.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("dtype", [np.dtype("c8"), np.dtype("c16")], ids=name_of)
def test_complex_division_is_that_of_numpy(dtype: np.dtype, rng: np.random.Generator) -> None:
    parts = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 2.5, 1e30, 1e-30]
    z = np.array([complex(*p) for p in itertools.product(parts, parts)], dtype)
    x, y = (a.ravel() for a in np.meshgrid(z, z))
    random = [(rng.normal(size=500) + 1j * rng.normal(size=500)).astype(dtype) for _ in range(2)]
    x, y = np.concatenate([x, random[0]]), np.concatenate([y, random[1]])
    with np.errstate(all="ignore"):
        expected = x / y
    found = interpret(lambda a, b: a / b, x, y)
    for part in ("real", "imag"):
        require_equal(getattr(found, part), getattr(expected, part), x, y)


def test_functions_without_a_complex_version_say_so() -> None:
    with pytest.raises(TypeError, match="erf is not defined for complex"):
        interpret(mathlib.erf, np.array([1j]))


# ---- how functions are built


def statements_of(function: Callable[..., Any], dtype: Any, contract: bool = False) -> tuple[list[Stmt], Value]:
    builder = Builder()
    builder.contract = contract
    result = function(builder.emit("load", np.dtype(dtype), (), (0,)))
    return builder.stmts, result


@pytest.mark.parametrize("name", [n for n in NAMES if mathlib.BOUNDS[n].arity == 1])
def test_nothing_contracts(name: str) -> None:
    stmts, _ = statements_of(getattr(mathlib, name), F32, contract=True)
    assert not any("contract" in s.attrs for s in stmts)


def test_sine_and_cosine_of_one_number_share_the_reduction() -> None:
    one, _ = statements_of(mathlib.sin, F32)
    both, _ = statements_of(lambda x: mathlib.sin(x) + mathlib.cos(x), F32)
    assert len(both) == len(one) + 1


def test_numbers_are_arguments_too() -> None:
    x = np.array([1.5, 2.0, 9.0], F32)
    np.testing.assert_allclose(interpret(lambda v: mathlib.pow(v, 2), x), x * x)
    np.testing.assert_allclose(interpret(lambda v: mathlib.hypot(3.0, v), x), np.hypot(3, x), rtol=1e-6)


# ---- rare selects


def run_in_order(stmts: list[Stmt], items: list[int | Detour], x: np.ndarray) -> dict[int, np.ndarray]:
    values: dict[int, np.ndarray] = {}

    def run(i: int) -> None:
        s = stmts[i]
        values[i] = x if s.op == "load" else evaluate_stmt(s, [values[a] for a in s.args])

    for item in items:
        if not isinstance(item, Detour):
            run(item)
        elif values[item.cond].any():
            for i in (*item.slow, *item.selects):
                run(i)
        else:
            for i in item.selects:
                values[i] = values[stmts[i].args[2]]
    return values


@pytest.mark.parametrize("function", [
    mathlib.sin, lambda x: mathlib.sin(x) + mathlib.tan(x), mathlib.lgamma, mathlib.erfinv,
    lambda x: mathlib.fmod(x, 3.0),
    lambda x: mathlib.sin(mathlib.sin(x) * 1e6), lambda x: mathlib.tan(x) * mathlib.cos(mathlib.tan(x) * 1e20),
], ids=["sin", "sin and tan", "lgamma", "erfinv", "fmod", "nested", "nested, shared"])
def test_detours_keep_every_value(function: Callable[..., Any]) -> None:
    stmts, result = statements_of(function, F64)
    plan = detours(stmts, range(len(stmts)), [result.index])
    taken = [d for d in plan if isinstance(d, Detour)]
    assert taken and all(len(d.slow) > 0 for d in taken)
    run = [i for item in plan for i in ((*item.slow, *item.selects) if isinstance(item, Detour) else (item,))]
    assert len(run) == len(set(run))
    for x in (np.array([0.3, 0.5, 0.9]), np.array([0.3, 1e300, -2.5, 0.9999, 1e9])):
        np.testing.assert_array_equal(run_in_order(stmts, plan, x)[result.index], interpret(function, x))


def test_detours_leave_what_others_use() -> None:
    stmts, result = statements_of(mathlib.sin, F64)
    plan = detours(stmts, range(len(stmts)), [result.index])
    (detour,) = (d for d in plan if isinstance(d, Detour))
    shared = detour.slow[len(detour.slow) // 2]
    again = detours(stmts, range(len(stmts)), [result.index, shared])
    assert shared in again
    assert all(shared not in d.slow for d in again if isinstance(d, Detour))


def test_no_detour_without_a_slow_side() -> None:
    def clamp(x: Value) -> Value:
        return x.builder.emit("select", x.dtype, (x > 3.0, x.lift(3.0), x), ("rare",))

    stmts, result = statements_of(lambda x: clamp(x) + cast(x, F64), F64)
    plan = detours(stmts, range(len(stmts)), [result.index])
    assert all(isinstance(i, int) or i.slow for i in plan)


def test_mixed_lanes_take_the_right_side() -> None:
    """Vectors in which some lanes are rare, next to vectors in which none are."""
    x = np.linspace(-3, 3, 1000).astype(F32)
    x[[5, 100, 101, 999]] = [1e30, -3e38, INF, NAN]
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(compiled(mathlib.sin, F32)(x), np.sin(x.astype(F64)), rtol=3e-7, atol=1e-30)


def test_complex_pairs_reach_the_real_functions() -> None:
    z = interpret(lambda x: mathlib.exp(Complex(x, x.lift(0.0))), np.array([1.0, 2.0]))
    np.testing.assert_allclose(z, np.exp([1.0, 2.0]), rtol=1e-15)
    assert (z.imag == 0).all()
