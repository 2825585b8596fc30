"""Errors of `tracejit.lower.mathlib` in units in the last place.

    python -m benchmarks.ulp [--exhaustive] [--markdown] [--only NAME ...] [--count N]

Each function is compiled on its own and compared with the same function in a wider type: NumPy and SciPy in float64 for
float32; for float64, NumPy in 80-bit long double where the platform has it, else (and for special functions) mpmath.
Inputs are random bits, the usual ranges, numbers next to zeros, poles and multiples of pi / 2, and for functions of two
arguments all pairs of difficult numbers. With --exhaustive every float32 is tried, against our own float64 functions,
which the other column measures (`sweep.py`). Exit status 1 if an error is above its bound in `mathlib.BOUNDS`. With
--exhaustive --markdown the rows in docs/accuracy.md are written anew.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mpmath
import numpy as np
import scipy.special

from benchmarks.native import compiled
from benchmarks.sweep import NEGATIVE, every, soundness, sweep
from tracejit.lower import mathlib

F32, F64 = np.dtype("float32"), np.dtype("float64")
EXTENDED = np.finfo(np.longdouble).nmant >= 63
SOUND = 0.05  # how far our float64 may be from NumPy's and SciPy's, in units of float32
DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "accuracy.md"


# ---- what is exact

# name -> (a NumPy function good in any float type | None, a SciPy function for float64 | None, mpmath)
REFERENCES: dict[str, tuple[Callable[..., Any] | None, Callable[..., Any] | None, Callable[..., Any]]] = {
    **{n: (getattr(np, n), None, getattr(mpmath, n)) for n in
       ("exp", "expm1", "log", "log1p", "log10", "sin", "cos", "tan", "sinh", "cosh", "tanh", "cbrt", "hypot")},
    **{n: (getattr(np, f"arc{n[1:]}"), None, getattr(mpmath, n)) for n in
       ("asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh")},
    "exp2": (np.exp2, None, lambda x: mpmath.mpf(2)**x),
    "log2": (np.log2, None, lambda x: mpmath.log(x) / mpmath.log(2)),
    "pow": (np.power, None, mpmath.power),
    "logaddexp": (np.logaddexp, None, lambda x, y: mpmath.log(mpmath.exp(x) + mpmath.exp(y))),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), None, lambda x: 1 / (1 + mpmath.exp(-x))),
    "softplus": (lambda x: np.logaddexp(x, x.dtype.type(0)), None, lambda x: mpmath.log1p(mpmath.exp(x))),
    "erf": (None, scipy.special.erf, mpmath.erf),
    "erfc": (None, scipy.special.erfc, lambda x: mpmath.erfc(min(x, 40))),  # mpmath fails for huge x
    "erfinv": (None, lambda x: np.copysign(scipy.special.erfinv(x), x), lambda x: erfinv(x)),
    "lgamma": (None, scipy.special.gammaln, mpmath.loggamma),
    "digamma": (None, scipy.special.digamma, mpmath.digamma),
}
# Functions whose results have to be NumPy's, bit for bit.
EXACT: dict[str, tuple[Callable[..., Any], int]] = {
    "sqrt": (np.sqrt, 1), "fmod": (np.fmod, 2), "remainder": (np.remainder, 2), "floor_divide": (np.floor_divide, 2),
    "nextafter": (np.nextafter, 2), "copysign": (np.copysign, 2), "sign": (np.sign, 1), "signbit": (np.signbit, 1),
    "isnan": (np.isnan, 1), "isinf": (np.isinf, 1), "isfinite": (np.isfinite, 1),
}


def erfinv(x: mpmath.mpf) -> mpmath.mpf:
    """By Newton's method on erfc, for 0 < |x| < 1."""
    a = abs(x)
    y = mpmath.mpf(float(scipy.special.erfinv(float(a))))
    for _ in range(2):  # each doubles the digits of SciPy's
        y += (mpmath.erfc(y) - (1 - a)) * mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(y * y)
    return y if x > 0 else -y


def slow(name: str, dtype: np.dtype) -> bool:
    """Whether the reference goes number by number."""
    return dtype == F64 and (REFERENCES[name][0] is None or not EXTENDED)


def exact(name: str, *args: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The result as the sum of two float64 arrays."""
    numpy, scipy_function, exactly = REFERENCES[name]
    with np.errstate(all="ignore"):
        if args[0].dtype == F32:
            high = np.asarray((numpy or scipy_function)(*(a.astype(F64) for a in args)), F64)  # type: ignore[misc]
            return high, np.zeros_like(high)
        if numpy is not None and EXTENDED:
            wide = numpy(*(a.astype(np.longdouble) for a in args))
            high = wide.astype(F64)
            return high, np.where(np.isfinite(high), wide - high, 0).astype(F64)
    with mpmath.workprec(140):
        pairs = []
        for numbers in zip(*(a.tolist() for a in args), strict=True):
            result = mpmath.mpf(exactly(*map(mpmath.mpf, numbers)))
            pairs.append((float(result), float(result - float(result)) if abs(result) < 1.8e308 else 0.0))
    return tuple(np.array(pairs, F64).T)  # type: ignore[return-value]


def errors(found: np.ndarray, exact: tuple[np.ndarray, np.ndarray], floor: float = 0.0) -> np.ndarray:
    """Distances in units in the last place of max(|exact|, floor); inf where only one is nan or infinite."""
    high, low = exact
    info = np.finfo(found.dtype)
    with np.errstate(all="ignore"):
        rounded = high.astype(found.dtype)
        _, e = np.frexp(np.maximum(np.abs(high), floor))
        unit = np.ldexp(1.0, np.maximum(e - info.nmant - 1, info.minexp - info.nmant))
        distance = np.abs((found.astype(F64) - high) - low) / unit
        # Results beyond the largest number: infinity is right, and the largest number is one unit off.
        largest = np.isinf(rounded) & (np.abs(found) == info.max) & (np.sign(found) == np.sign(rounded))
        top = np.where(largest, 1.0, np.inf)
        same = (found == rounded) | (np.isnan(found) & np.isnan(high))
        infinite = ~np.isfinite(found) | ~np.isfinite(rounded)
        return np.where(infinite, np.where(same, 0.0, top), distance)


# ---- inputs


def inputs(name: str, dtype: np.dtype, count: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """About `count` arguments in the domain of a function: random bits, usual ranges, difficult ones."""
    bound = mathlib.BOUNDS[name]
    uint = np.dtype(f"u{dtype.itemsize}")
    part = max(count // 8, 16)
    with np.errstate(all="ignore"):
        x = [rng.integers(0, 1 << dtype.itemsize * 8, 2 * part, uint, endpoint=False).view(dtype)]
        x += [rng.uniform(-s, s, part).astype(dtype) for s in (1, 4, 30, 800)]
        x.append((rng.choice([0.5, 1, 2, 1.4616321449683622], part)
                  + rng.normal(size=part) * 2.0 ** -rng.integers(1, 50, part)).astype(dtype))
        corners = (np.arange(1, 1 + part // 3) * (np.pi / 4)).astype(dtype)
        x += [np.nextafter(corners, dtype.type(s)) for s in (-np.inf, np.inf)] + [corners]
        info = np.finfo(dtype)
        edge = [info.tiny, info.smallest_subnormal, info.max, info.eps, 1, 1 - info.epsneg, 88.7, 709.7, 0.5]
        x += [np.array([*edge, *(-e for e in edge)], dtype), (rng.uniform(-1, 1, part) * info.tiny).astype(dtype)]
        first = np.concatenate(x)
        first = first[np.isfinite(first) & (first >= bound.domain[0]) & (first <= bound.domain[1])]
        if name in ("lgamma", "digamma", "erfinv"):
            first = first[(first != 0) & (np.abs(first) != 1) & ((first > 0) | (name == "erfinv"))]
        if bound.arity == 1:
            return (first,)
        second = rng.permutation(first)
        near = rng.permutation(first.size)[: first.size // 4]
        if name == "pow":  # a result in range
            limit = 100 if dtype == F32 else 740
            second[near] = rng.uniform(-limit, limit, near.size) / np.log(np.abs(first[near]).astype(F64))
            second[near[: near.size // 4]] = np.rint(second[near[: near.size // 4]])
        else:
            second[near] = first[near] * (1 + rng.normal(size=near.size) * 10.0 ** -rng.integers(0, 9, near.size))
        ok = np.isfinite(second)
        return first[ok], second[ok]


def difficult(dtype: np.dtype) -> np.ndarray:
    """Some hundred numbers: special ones, powers of two and their neighbours, small integers and halves, the ends."""
    info, integer = np.finfo(dtype), np.dtype(f"i{dtype.itemsize}")
    ends = np.array([info.max, info.tiny, info.smallest_subnormal, info.eps, 1, np.pi, np.e, np.log(2), 1 / 3], dtype)
    powers = np.ldexp(dtype.type(1), np.arange(info.minexp - 5, info.maxexp, 1 + info.maxexp // 24)).astype(dtype)
    small = np.concatenate([np.arange(1, 12) / 2, np.arange(7, 300, 31), 2.0 ** np.array([info.nmant, info.nmant + 1])])
    x = np.concatenate([ends, powers, small.astype(dtype)])
    x = np.concatenate([x, *((x.view(integer) + integer.type(step)).view(dtype) for step in (-1, 1))])
    x = np.concatenate([x[np.isfinite(x)], [0.0, np.inf, np.nan]]).astype(dtype)
    return np.unique(np.concatenate([x, -x]).view(integer)).view(dtype)


def grid(dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of difficult numbers."""
    x, y = np.meshgrid(difficult(dtype), difficult(dtype))
    return x.ravel(), y.ravel()


# ---- the command


class Found(NamedTuple):
    """The largest error of one function and dtype, its place, and how many inputs were tried."""

    error: float
    where: tuple[float, ...]
    count: int

    def __or__(self, other: Found) -> Found:
        worse = self if self.error >= other.error else other
        return Found(worse.error, worse.where, self.count + other.count)


def measured(name: str, args: tuple[np.ndarray, ...]) -> Found:
    """The error on these inputs."""
    dtype, bound = args[0].dtype, mathlib.BOUNDS[name]
    run = compiled(getattr(mathlib, name), *[dtype] * bound.arity)
    e = errors(run(*args), exact(name, *args), bound.floor)
    k = int(e.argmax())
    return Found(float(e[k]), tuple(float(a[k]) for a in args), e.size)


def on_samples(name: str, dtype: np.dtype, count: int) -> Found:
    """The error on `count` of the usual inputs and, for functions of two arguments, on the difficult pairs."""
    rng = np.random.default_rng(0)
    found = Found(0.0, (), 0)
    for start in range(0, count, 1 << 22):
        found |= measured(name, inputs(name, dtype, min(1 << 22, count - start), rng))
    return found | measured(name, grid(dtype)) if mathlib.BOUNDS[name].arity == 2 else found


def on_every_float32(name: str) -> dict[str, Found]:
    """The error on all of float32 by name of the row: where a function is measured otherwise below 0, two rows."""
    found, half = sweep(name), 1 << 31
    if name not in NEGATIVE:
        return {name: Found(*_at(found.worst), 2 * half)}
    return {name: Found(*_at(found.positive), half), f"{name}, x < 0": Found(*_at(found.negative), half)}


def _at(worst: tuple[float, float]) -> tuple[float, tuple[float, ...]]:
    return worst[0], (worst[1],)


def check_reference(name: str) -> float:
    """How far our float64 functions, which `sweep` believes, are from NumPy's and SciPy's; in units of float32."""
    numpy, scipy_function, _ = REFERENCES[name]
    reference = numpy or scipy_function
    assert reference is not None
    return soundness(name, compiled(getattr(mathlib, name), F64), reference, every())


def differing(name: str, args: tuple[np.ndarray, ...]) -> int:
    """How many results are not NumPy's, bit for bit (any nan is a nan)."""
    with np.errstate(all="ignore"):
        want = EXACT[name][0](*args)
    found = compiled(getattr(mathlib, name), *[args[0].dtype] * len(args))(*args)
    same = (found == want) & (np.signbit(found) == np.signbit(want)) if want.dtype.kind == "f" else found == want
    return int((~(same | ((found != found) & (want != want)))).sum())


def exact_inputs(arity: int, dtype: np.dtype, count: int) -> tuple[np.ndarray, ...]:
    """Random bits, neighbours in size, and difficult numbers."""
    rng, uint = np.random.default_rng(0), np.dtype(f"u{dtype.itemsize}")
    bits = rng.integers(0, 1 << dtype.itemsize * 8, (2, count), uint, endpoint=False).view(dtype)
    if arity == 1:
        return (np.concatenate([bits[0], difficult(dtype)]),)
    with np.errstate(all="ignore"):
        near = (rng.normal(size=(2, count)) * 2.0 ** rng.integers(-8, 8, (2, count))).astype(dtype)
    return tuple(np.concatenate(parts) for parts in zip(bits, near, grid(dtype), strict=True))


def speed(name: str, dtype: np.dtype) -> float:
    """Nanoseconds per element from the first-level cache, on one thread."""
    bound, rng, n = mathlib.BOUNDS[name], np.random.default_rng(0), 2048
    low, high = max(bound.domain[0], 0.05), min(bound.domain[1], 4.0)
    args = [rng.uniform(low, high, n).astype(dtype) for _ in range(bound.arity)]
    run = compiled(getattr(mathlib, name), *[dtype] * bound.arity)
    empty = compiled(lambda *values: values[0], *[dtype] * bound.arity)

    def seconds(f: Callable[..., Any]) -> float:
        times = []
        for _ in range(200):
            start = time.perf_counter()
            f(*args)
            times.append(time.perf_counter() - start)
        return min(times)

    return max(0.0, seconds(run) - seconds(empty)) / n * 1e9


EXACT_HEAD = ("function", "float32: other results", "inputs", "float64: other results", "inputs")
HEAD = ("function", "float32", "at", "inputs", "bound", "float64", "at", "inputs", "bound")


def shown(found: Found) -> list[str]:
    """Error, place and number of inputs for people."""
    every = {1 << 32: "all", 1 << 31: "all"}
    where = ", ".join(f"{v:.9g}" for v in found.where)
    return [f"{found.error:.2f}", where, every.get(found.count, f"{found.count:,}")]


def table(rows: Sequence[Sequence[str]], head: Sequence[str]) -> str:
    """Aligned Markdown."""
    widths = [max(len(row[k]) for row in (head, *rows)) for k in range(len(head))]
    rule = ["-" * w if k == 0 else "-" * (w - 1) + ":" for k, w in enumerate(widths)]
    lines = ["| " + " | ".join(c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths))) + " |"
             for row in (head, rule, *rows)]
    return "\n".join(lines)


def write_document(**tables: tuple[Sequence[Sequence[str]], Sequence[str]]) -> None:
    """Put rows under their heads between two marks in docs/accuracy.md; rows of other functions that are there stay."""
    text = DOCUMENT.read_text()
    for name, (rows, head) in tables.items():
        begin, end = f"<!-- {name}: written by python -m benchmarks.ulp -->", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        there, after = rest.split(end)
        lines = [line for line in there.splitlines() if line.startswith("| `")]
        known = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
        merged = {row[0]: list(row) for row in (*known, *rows)}
        found = table([merged[key] for key in sorted(merged, key=lambda key: key.strip("`"))], head)
        text = f"{before}{begin}\n{found}\n{end}{after}"
    DOCUMENT.write_text(text)


def rows_of(name: str, exhaustive: bool, count: int) -> tuple[list[list[str]], list[str]]:
    """The rows of a function, and what is above its bound."""
    bound, failed, rows = mathlib.BOUNDS[name], [], []
    narrow = on_every_float32(name) if exhaustive and bound.arity == 1 else {name: on_samples(name, F32, 4 * count)}
    wide = on_samples(name, F64, max(300, count // 50) if slow(name, F64) else count)
    for row, found in narrow.items():
        limit = bound.f32 if row == name else NEGATIVE[name]
        cells = [f"`{row}`", *shown(found), f"{limit:g}"]
        rows.append([*cells, *([*shown(wide), f"{bound.f64:g}"] if row == name else [""] * 4)])
        failed += [f"{row} float32: {found.error:.3g} units at {found.where}"] if found.error > limit else []
    failed += [f"{name} float64: {wide.error:.3g} units at {wide.where}"] if wide.error > bound.f64 else []
    if bound.arity == 1 and exhaustive and not (off := check_reference(name)) <= SOUND:
        failed.append(f"{name} float64 is {off:.3g} units of float32 from NumPy or SciPy")
    return rows, failed


def main(argv: Sequence[str] | None = None) -> int:
    names = [*sorted(mathlib.BOUNDS), *EXACT]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ulp", description=__doc__)
    parser.add_argument("--exhaustive", action="store_true", help="every float32 for functions of one argument")
    parser.add_argument("--markdown", action="store_true", help="write the rows of docs/accuracy.md, if exhaustive")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, help="these functions")
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs per function where not exhaustive")
    arguments = parser.parse_args(argv)
    rows, exact_rows, failed = [], [], []
    for name in arguments.only or names:
        start, note = time.perf_counter(), ""
        if name in EXACT:
            counts = []
            for dtype in (F32, F64):
                args = exact_inputs(EXACT[name][1], dtype, arguments.count)
                differ = differing(name, args)
                counts += [str(differ), f"{args[0].size:,}"]
                failed += [f"{name} {dtype}: {differ} results differ from NumPy's"] if differ else []
            exact_rows.append([f"`{name}`", *counts])
            done = exact_rows[-1:]
        else:
            done, bad = rows_of(name, arguments.exhaustive, arguments.count)
            rows += done
            failed += bad
            note = f"; {speed(name, F32):.2f} and {speed(name, F64):.2f} ns each on one thread"
        print("\n".join("  ".join(row) for row in done), f"  ({time.perf_counter() - start:.1f} s{note})", flush=True)
    bounded = table(rows, HEAD)
    exactly = table(exact_rows, EXACT_HEAD)
    print(f"\n{bounded}\n\n{exactly}")
    print("\n".join(failed), file=sys.stderr)
    if arguments.markdown and arguments.exhaustive:
        write_document(errors=(rows, HEAD), exact=(exact_rows, EXACT_HEAD))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
