"""Every float32 number through a function of `mathlib`: bit pattern, both results and their distance in one kernel.

In: the name of a function of one argument. Out: `Sweep`, the largest error among the numbers without and with a sign.
The reference is the same function in float64 on the same number, not rounded to float32; `soundness` compares that with
NumPy and SciPy, and `ulp.py` with more digits.

Read next: `ulp.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.native import launcher, slots_of
from tracejit.config import num_threads
from tracejit.lower import mathlib
from tracejit.lower.kernel import Access, Accumulator, Kernel, Stage, Store
from tracejit.lower.scalar import Builder, Value, bitcast, cast, fabs, maximum, select

F32, F64, I32, I64, U32 = (np.dtype(n) for n in ("float32", "float64", "int32", "int64", "uint32"))
INF = float("inf")
ROW = 1 << 20  # numbers of one item of work
ROWS = (1 << 32) // ROW
SAMPLE = 1021  # every which number is compared with NumPy or SciPy
NEGATIVE = {"lgamma": 12.0, "digamma": 12.0}  # bounds below 0, in units of the terms of the reflection formula


@dataclass(frozen=True)
class Sweep:
    """The largest error, and where: among the numbers without a sign, and among those with one."""

    positive: tuple[float, float]
    negative: tuple[float, float]

    @property
    def worst(self) -> tuple[float, float]:
        return max(self.positive, self.negative)


def negative_scale(name: str, x: Value) -> Value | float:
    """What a unit of error is relative to, at least: below 0, functions with zeros there sum terms of this size."""
    if name not in NEGATIVE:
        return mathlib.BOUNDS[name].floor if name in mathlib.BOUNDS else 0.0
    return select(x < 0, maximum(fabs(getattr(mathlib, name)(1.0 - x)), 1.0), 0.0)


def error_of(found: Value, exact: Value, floor: Value | float) -> Value:
    """The distance of a float32 from a float64 in units in the last place of max(|exact|, floor), as float32.

    inf where only one is nan or infinite, and where a zero has the wrong sign. Beyond the largest number infinity is
    right, and the largest number is one unit off.
    """
    rounded, largest = cast(exact, F32), float(np.finfo(F32).max)
    size = maximum(fabs(exact), floor)
    exponent = bitcast(size, I64) >> 52
    exponent = select(exponent < 1023 - 126, exponent.lift(1023 - 126), exponent)  # subnormal numbers share a unit
    per_unit = bitcast((2 * 1023 + 23 - exponent) << 52, F64)
    distance = fabs(cast(found, F64) - exact) * per_unit

    def sign(v: Value) -> Value:
        return bitcast(v, I32) < 0

    both_nan = (found != found) & (rounded != rounded)
    special = ~(fabs(found) < INF) | ~(fabs(rounded) < INF)
    same = (found == rounded) | both_nan
    saturated = (fabs(rounded) == INF) & (fabs(found) == largest) & (sign(found) == sign(rounded))
    error = select(special, select(same, 0.0, select(saturated, distance.lift(1.0), INF)), distance)
    return cast(select((found == 0) & (rounded == 0) & (sign(found) != sign(rounded)), INF, error), F32)


def sweep_kernel(name: str) -> Kernel:
    """Rows of ROW bit patterns: the largest error of each row, and its column."""
    function, b = getattr(mathlib, name), Builder()
    row, column = (b.emit("coord", I64, (), (d,)) for d in (0, 1))
    x = bitcast(cast(row * ROW + column, U32), F32)
    wide = cast(x, F64)
    error = error_of(function(x), function(wide), negative_scale(name, wide))
    accumulators = Accumulator("max", F32, error.index), Accumulator("argmax", F32, error.index, column.index)
    results = b.emit("carry", F32, (), (0,)), b.emit("carry", I64, (), (1,))
    stores = tuple(Store(k, v.index) for k, v in enumerate(results))
    writes = tuple(Access(v.dtype, ("1", "0")) for v in results)
    stages = Stage(True, accumulators), Stage(False, stores=stores)
    return Kernel(1, 1, "inner", (), writes, 0, tuple(b.stmts), stages)


def rows_of_errors(name: str, rows: Iterable[int], threads: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The largest error of each of these rows, and its number's bits; other rows are left at -1."""
    kernel = sweep_kernel(name)
    run, largest, column = launcher(kernel), np.full(ROWS, -1, F32), np.zeros(ROWS, I64)
    slots = slots_of(kernel, (ROWS, ROW), (largest, column))
    with ThreadPoolExecutor(threads or num_threads()) as pool:
        list(pool.map(lambda k: run(slots, k, k + 1), rows))
    return largest, (np.arange(ROWS) * ROW + column).astype(np.uint32)


def sweep(name: str, threads: int | None = None) -> Sweep:
    """All 2**32 numbers: some seconds on two cores."""
    largest, bits = rows_of_errors(name, range(ROWS), threads)

    def worst(first: int, last: int) -> tuple[float, float]:
        k = first + int(largest[first:last].argmax())
        return float(largest[k]), float(bits[k].view(F32))

    return Sweep(worst(0, ROWS // 2), worst(ROWS // 2, ROWS))


def every(step: int = SAMPLE) -> np.ndarray:
    """Every `step`-th float32, of both signs, with the special ones."""
    special = [0.0, INF, np.nan, 1.0, 0.5, 2.0, *(float(getattr(np.finfo(F32), n)) for n in
                                                 ("max", "tiny", "smallest_subnormal", "eps"))]
    found = np.arange(0, 1 << 32, step, dtype=np.uint32).view(F32)
    return np.concatenate([found, np.array([*special, *(-s for s in special)], F32)])


def soundness(name: str, run: Callable[..., Any], reference: Callable[..., np.ndarray], x: np.ndarray) -> float:
    """How far the float64 function is from another one, in units of float32; inf where special values differ."""
    with np.errstate(all="ignore"):
        wide = x.astype(F64)
        mine, other = run(wide), np.asarray(reference(wide), F64)
        scale = np.maximum(np.abs(other), mathlib.BOUNDS[name].floor)
        if name in NEGATIVE:
            scale = np.where(wide < 0, np.maximum(scale, np.maximum(np.abs(reference(1 - wide)), 1)), scale)
        unit = np.maximum(scale, float(np.finfo(F32).tiny)) * 2.0**-24
        finite = np.isfinite(mine) & np.isfinite(other)
        same = (mine == other) | (np.isnan(mine) & np.isnan(other))
        error = np.where(finite, np.abs(mine - other) / unit, np.where(same, 0.0, INF))
        error[(mine == 0) & (np.signbit(mine) != np.signbit(other))] = INF
    return float(error.max())
