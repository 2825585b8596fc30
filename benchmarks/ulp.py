"""Errors of `tracejit.lower.mathlib` in units in the last place.

    python -m benchmarks.ulp [--exhaustive] [--markdown] [--only NAME ...] [--count N]

Each function is compiled on its own and compared with the same function in a wider type: NumPy and SciPy in float64 for
float32; for float64, NumPy in 80-bit long double where the platform has it, else (and for special functions) mpmath.
Inputs are random bits, the usual ranges, and numbers next to zeros, poles and multiples of pi / 2. With --exhaustive
every float32 is tried, which takes minutes per function. Exit status 1 if an error is above its bound in
`mathlib.BOUNDS`.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mpmath
import numpy as np
import scipy.special

from tracejit.config import Options
from tracejit.lower import mathlib
from tracejit.lower.kernel import Access, Kernel, Stage, Store
from tracejit.lower.scalar import Builder
from tracejit.runtime.build import build

F32, F64 = np.dtype("float32"), np.dtype("float64")
EXTENDED = np.finfo(np.longdouble).nmant >= 63
ANGLES = ("sin", "cos", "tan")


def compiled(function: Callable[..., Any], *dtypes: Any) -> Callable[..., np.ndarray]:
    """A scalar function as machine code over contiguous arrays."""
    builder = Builder()
    values = [builder.emit("load", np.dtype(d), (), (i,)) for i, d in enumerate(dtypes)]
    result = function(*values)
    results = result if isinstance(result, tuple) else (result,)
    kernel = Kernel(1, 0, "outer", tuple(Access(v.dtype, ("1",)) for v in values),
                    tuple(Access(v.dtype, ("1",)) for v in results), 0, tuple(builder.stmts),
                    (Stage(False, stores=tuple(Store(i, v.index) for i, v in enumerate(results))),))
    (address,) = build([kernel], Options())
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_ssize_t)(address)

    def call(*arrays: Any) -> Any:
        inputs = [np.ascontiguousarray(a, v.dtype) for a, v in zip(arrays, values, strict=True)]
        outputs = [np.empty(inputs[0].shape, v.dtype) for v in results]
        slots = np.zeros(kernel.slots.count, np.int64)
        slots[list(kernel.slots.extents)] = slots[kernel.slots.block] = inputs[0].size
        for (at, _), array in zip((*kernel.slots.reads, *kernel.slots.writes), (*inputs, *outputs), strict=True):
            slots[at] = array.ctypes.data
        if inputs[0].size:  # else there are no items
            run(slots.ctypes.data, 0, 1)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return call


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
    "erfinv": (None, scipy.special.erfinv, lambda x: erfinv(x)),
    "lgamma": (None, scipy.special.gammaln, mpmath.loggamma),
    "digamma": (None, scipy.special.digamma, mpmath.digamma),
}


def erfinv(x: mpmath.mpf) -> mpmath.mpf:
    """By Newton's method on erfc, for 0 < |x| < 1."""
    a = abs(x)
    y = mpmath.mpf(float(scipy.special.erfinv(float(a))))
    for _ in range(4):
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


def every_float32(chunk: int = 1 << 22) -> Iterator[np.ndarray]:
    for start in range(0, 1 << 32, chunk):
        yield (np.arange(chunk, dtype=np.uint32) + np.uint32(start)).view(F32)


# ---- the command


def worst(name: str, dtype: np.dtype, arrays: Iterator[tuple[np.ndarray, ...]]) -> tuple[float, list[float]]:
    """The largest error, and where."""
    bound, run = mathlib.BOUNDS[name], compiled(getattr(mathlib, name), *[dtype] * mathlib.BOUNDS[name].arity)
    largest, where = 0.0, []
    for args in arrays:
        e = errors(run(*args), exact(name, *args), bound.floor)
        if e.size and e.max() > largest:
            k = int(e.argmax())
            largest, where = float(e[k]), [float(a[k]) for a in args]
    return largest, where


def in_domain(name: str, arrays: Iterator[np.ndarray]) -> Iterator[tuple[np.ndarray, ...]]:
    low, high = mathlib.BOUNDS[name].domain
    for x in arrays:
        kept = x[(x >= low) & (x <= high)]
        yield (kept[kept > 0] if name in ("lgamma", "digamma") else kept,)


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


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ulp", description=__doc__)
    parser.add_argument("--exhaustive", action="store_true", help="every float32 for functions of one argument")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=sorted(mathlib.BOUNDS), help="these functions")
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs per function where not exhaustive")
    arguments = parser.parse_args(argv)
    line = "| {:<9} | {:>7} | {:>5} | {:>7} | {:>7} | {:>5} | {:>7} |".format
    rule = "|" + "|".join("-" * n for n in (11, 9, 7, 9, 9, 7, 9)) + "|"
    print(line("function", "f32", "bound", "ns", "f64", "bound", "ns"))
    if arguments.markdown:
        print(rule)
    failed = []
    for name in arguments.only or sorted(mathlib.BOUNDS):
        bound, cells = mathlib.BOUNDS[name], []
        for dtype, limit in ((F32, bound.f32), (F64, bound.f64)):
            rng = np.random.default_rng(0)
            if dtype == F32 and arguments.exhaustive and bound.arity == 1:
                found, where = worst(name, dtype, in_domain(name, every_float32()))
            else:
                count = min(arguments.count, 4000) if slow(name, dtype) else arguments.count
                found, where = worst(name, dtype, iter([inputs(name, dtype, count, rng)]))
            cells += [f"{found:.2f}", f"{limit:g}", f"{speed(name, dtype):.2f}"]
            if found > limit:
                failed.append(f"{name} {dtype}: {found:.3g} units at {where}, above {limit:g}")
        print(line(name, *cells), flush=True)
    print("\n".join(failed), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
