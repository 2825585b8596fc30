"""What this machine does at best, measured here and now: bytes from where they lie, operations in registers.

In: `Work`, what a workload cannot avoid: bytes it reads and writes once, and the statements of its kernels
(`work_of_plan`). Out: `Limits.seconds(work)`, the time in which loops that do nothing else do as much.

An operation is a statement of one element. Float arithmetic goes at the speed that fused multiply-adds have in
registers, divisions and roots at theirs, all others (integers, selects, comparisons) at that of integer sums. Bytes go
at the speed of a loop over as many arrays of the same total size, so in the cache where the workload's are.

Read next: `harness.py`.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import TypeAlias

import numpy as np

from benchmarks.native import launcher, slots_of
from tracejit.lower.kernel import Access, Accumulator, Kernel, Launch, Stage, Store
from tracejit.lower.plan import Attention, Branch, Call, Gemm, Loop, Plan, launch_of
from tracejit.lower.rare import Detour, detours
from tracejit.lower.scalar import Builder, Stmt, Value, bitcast, fma, sqrt

Arrays: TypeAlias = tuple[np.ndarray, ...]
F32 = np.dtype("float32")
SAMPLE = 0.01  # seconds of one measurement, about
FREE = frozenset(("const", "load", "param", "carry", "coord", "bitcast", "arg", "result", "check", "loop"))
# The kind of an operation on floats; all others, and those on integers, are `bits`.
KINDS = {**dict.fromkeys(("add", "sub", "mul", "fma", "min", "max"), "fma"), "div": "div", "sqrt": "sqrt"}
EXP = 12, 4  # statements of an exponential, of floats and others, about
CHAINS, DEPTH = 12, 12  # operations on each number when their speed is measured: so many at once, one after another


# By kind (`fma`, `div`, `sqrt`, `bits`) and dtype.
Operations: TypeAlias = Counter[tuple[str, str]]


@dataclass(frozen=True)
class Work:
    """Bytes read and written once, and operations."""

    reads: int = 0
    writes: int = 0
    operations: Operations = field(default_factory=Counter)

    def __str__(self) -> str:
        words = {"fma": "sums and products", "div": "divisions", "sqrt": "roots", "bits": "other operations"}
        found = [f"{counted(n)} {word}{size}" for dtype, size in (("f", ""), ("d", " of 64 bits"))
                 for kind, word in words.items() if (n := self.operations.get((kind, dtype), 0)) >= 1]
        return f"move {counted(self.reads + self.writes)} bytes" + (f" and do {', '.join(found)}" if found else "")


def counted(number: float) -> str:
    """1234567 as `1.23 million`."""
    for unit, size in (("billion", 1e9), ("million", 1e6), ("thousand", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


# ---- counting ----------------------------------------------------------------------------------------------------


def work_of_plan(plan: Plan, turns: float | None = None) -> Operations | None:
    """The operations of a program; None where they are not known. `turns`: of loops that run until a test fails."""
    total: Operations = Counter()

    def add(found: Operations, times: float) -> None:
        for key, count in found.items():
            total[key] += count * times  # type: ignore[assignment]

    for step in plan.steps:
        if isinstance(step, Gemm):
            products = prod(step.batch) * step.m * step.n * step.k
            add(Counter({("fma", step.dtype.char.lower()): products * (4 if step.dtype.kind == "c" else 1)}), 1)
        elif isinstance(step, Attention):
            add(_work_of_attention(step), 1)
        launch = launch_of(step)
        if launch is not None:
            found = _work_of_launch(launch, turns)
            if found is None:
                return None
            add(found, 1)
        elif isinstance(step, Loop):
            times = turns if step.length < 0 else step.length
            body = work_of_plan(step.body.plan, turns)
            if body is None or times is None:
                return None
            add(body, times)
        elif isinstance(step, Branch):
            parts = [work_of_plan(p.plan, turns) for p in step.parts]
            if None in parts:
                return None
            add(min(parts, key=lambda p: sum(p.values())), 1)  # type: ignore[union-attr]
        elif isinstance(step, Call):
            return None
    return total


def _work_of_attention(step: Attention) -> Operations:
    """The products, and an exponential of each score; scores above the diagonal are left out where they are masked."""
    scores = prod(step.batch) * step.rows * step.columns * (0.5 if step.causal else 1.0)
    products = 3 * step.depth + 2 * step.width if step.name != "attention" else step.depth + step.width
    dtype = _width(step.dtype)
    return Counter({("fma", dtype): scores * (products + EXP[0]), ("bits", dtype): scores * EXP[1]})  # type: ignore


def _work_of_launch(launch: Launch, turns: float | None) -> Operations | None:
    """What the loops run: each stage's statements, those along the inner dims once for each inner element."""
    kernel, total = launch.kernel, Operations()
    depends = _depends(kernel)
    known: set[int] = set()
    for stage in kernel.stages:
        needed = _closure(kernel.stmts, stage.roots, known)
        known |= set(stage.keeps)
        order = _usual(kernel.stmts, needed, stage.roots)
        fused = _fused(kernel.stmts, order)
        for i in order:
            dims = depends[i]
            times = float(prod(launch.extents[d] for d in dims))
            if kernel.stmts[i].op == "loop":
                inside = _work_of_loop(kernel.stmts, i, launch, turns)
                if inside is None:
                    return None
                for key, count in inside.items():
                    total[key] += count * times  # type: ignore[assignment]
            elif i not in fused:
                _count(total, kernel.stmts[i], times)
        inner = prod(launch.extents) if stage.inner else launch.points
        for a in stage.accumulators:
            mul = kernel.stmts[a.value].op == "mul" and "contract" in kernel.stmts[a.value].attrs and a.op == "add"
            if not mul:  # else the product and the sum are one
                total["fma" if a.dtype.kind == "f" else "bits", _width(a.dtype)] += inner
    return total


def _count(total: Operations, s: Stmt, times: float) -> None:
    if s.op not in FREE:
        kind = KINDS.get(s.op, "bits") if s.dtype.kind == "f" else "bits"
        total[kind, _width(s.dtype)] += times  # type: ignore[assignment]


def _width(dtype: np.dtype) -> str:
    """The dtype whose speed applies: integers go as floats of their size."""
    return "d" if dtype.itemsize == 8 else "f"


def _work_of_loop(stmts: Sequence[Stmt], i: int, launch: Launch, turns: float | None) -> Operations | None:
    """What a `loop` statement runs for one element."""
    region = stmts[i].attrs[0]
    if region.counted:
        count = stmts[stmts[i].args[0]]
        if count.op == "param":
            turns = launch.params[count.attrs[0]]
        elif count.op == "const":
            turns = count.attrs[0]
    if turns is None:
        return None
    total: Operations = Counter()
    order = _usual(region.stmts, region.needed(region.ends), region.ends)
    fused = _fused(region.stmts, order)
    for j in order:
        if j not in fused:
            _count(total, region.stmts[j], turns)
    return total


def _usual(stmts: Sequence[Stmt], order: Sequence[int], ends: Sequence[int]) -> list[int]:
    """`order` without what runs for rare values only."""
    return [i for item in detours(stmts, order, ends) for i in (item.selects if isinstance(item, Detour) else (item,))]


def _depends(kernel: Kernel) -> list[frozenset[int]]:
    """The dims along which each statement differs."""
    found: list[frozenset[int]] = []
    everywhere = frozenset(range(kernel.outer))
    for s in kernel.stmts:
        dims = frozenset[int]().union(*(found[a] for a in s.args))
        if s.op == "coord":
            dims |= {s.attrs[0]}
        elif s.op == "load":
            dims |= {d for d, c in enumerate(kernel.reads[s.attrs[0]].strides) if c != "0"}
        elif s.op == "carry":
            dims |= everywhere
        found.append(dims)
    return found


def _closure(stmts: Sequence[Stmt], roots: Sequence[int], known: set[int]) -> list[int]:
    todo, found = [r for r in roots if r not in known], set[int]()
    while todo:
        i = todo.pop()
        if i not in found and i not in known:
            found.add(i)
            todo += stmts[i].args
    return sorted(found)


def _fused(stmts: Sequence[Stmt], order: Sequence[int]) -> set[int]:
    """Products that become one operation with the sum that uses them."""
    users: Counter[int] = Counter(a for i in order for a in stmts[i].args)
    found: set[int] = set()
    for i in order:
        s = stmts[i]
        if s.op in ("add", "sub") and "contract" in s.attrs:
            product = next((a for a in s.args if stmts[a].op == "mul" and "contract" in stmts[a].attrs
                            and users[a] == 1 and a not in found), None)
            found |= {product} if product is not None else set()
    return found


# ---- measuring ---------------------------------------------------------------------------------------------------


class Limits:
    """The machine with so many threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.pool = ThreadPoolExecutor(threads)
        self.rates: dict[tuple[str, str], Callable[[], float]] = {}

    def together(self, jobs: Sequence[Callable[[], object]]) -> float:
        """Seconds until all jobs are done that start at once, one on each thread."""
        start = threading.Barrier(len(jobs))

        def timed(job: Callable[[], object]) -> tuple[float, float]:
            start.wait()
            begin = time.perf_counter()
            job()
            return begin, time.perf_counter()

        times = list(self.pool.map(timed, jobs))
        return max(end for _, end in times) - min(begin for begin, _ in times)

    def passes(self, kernel: Kernel, n: int, arrays: Sequence[Arrays], stream: bool = False) -> Callable[[], float]:
        """Seconds of one pass of all threads over arrays of n of their own, measured when called."""
        run = launcher(kernel)

        def measure(count: int) -> float:
            sums = [(np.empty(count, F32),) if kernel.inner else () for _ in arrays]
            slots = [slots_of(kernel, (count, n), (*a, *s), stream) for a, s in zip(arrays, sums)]
            return self.together([partial(run, s, 0, count) for s in slots])

        once, count = 0.0, 1
        while once < SAMPLE / 4:
            count *= 4 if once < SAMPLE / 16 else 2
            once = measure(count)
        return lambda: measure(count) / count

    def rate(self, kind: str, dtype: str) -> float:
        """Operations a second, all threads together, on numbers in registers."""
        if (kind, dtype) not in self.rates:
            n = 2048
            arrays = [tuple(np.full(n, 1.5, dtype) for _ in range(2)) for _ in range(self.threads)]
            seconds = self.passes(operation_kernel(kind, np.dtype(dtype)), n, arrays)
            self.rates[kind, dtype] = lambda: n * CHAINS * DEPTH * self.threads / seconds()
        return self.rates[kind, dtype]()

    def computing(self, operations: Operations) -> float:
        """Seconds for so many operations, one kind after another."""
        return sum(count / self.rate(*key) for key, count in operations.items() if count)

    def moving(self, reads: int, writes: int) -> Callable[[], float]:
        """Seconds to read so many bytes once and write so many, measured when called."""
        kernel, count = moving_kernel(reads, writes)
        n = max(16, (reads + writes) // (4 * count * self.threads) // 16 * 16)
        arrays = [tuple(np.ones(n, F32) for _ in range(count)) for _ in range(self.threads)]
        ways = [self.passes(kernel, n, arrays, stream) for stream in ((False, True) if writes else (False,))]
        return min(ways, key=lambda way: statistics.median(way() for _ in range(3)))

    def describe(self) -> str:
        """The limits in words: a copy through memory, and operations in registers."""
        size = 1 << 28
        copied = max(2 * size / move() for move in [self.moving(size, size)] for _ in range(5))
        read = max(size / move() for move in [self.moving(size, 0)] for _ in range(5))
        narrow, wide = (max(self.rate("fma", t) for _ in range(5)) for t in "fd")
        return (f"{copied / 1e9:.0f} GB/s copied, {read / 1e9:.0f} GB/s read, {narrow / 1e9:.0f} and {wide / 1e9:.0f} "
                "billion multiply-adds a second in float32 and float64")

    def prepare(self, work: Work) -> Callable[[], tuple[float, str]]:
        """Seconds that the work takes at least, and what takes them: `memory` or `operations`; measured when called."""
        move = self.moving(work.reads, work.writes) if work.reads + work.writes else lambda: 0.0

        def measure() -> tuple[float, str]:
            memory = move()
            operations = self.computing(work.operations)
            return (memory, "memory") if memory >= operations else (operations, "operations")

        return measure


def operation_kernel(kind: str, dtype: np.dtype) -> Kernel:
    """CHAINS * DEPTH operations on each of n numbers, again and again, and a sum."""
    b = Builder()
    x = b.emit("load", dtype, (), (0,))
    chains = [x + float(k) for k in range(CHAINS)]
    if kind == "bits":
        chains = [bitcast(v, f"i{dtype.itemsize}") for v in chains]

    def step(v: Value, k: int) -> Value:
        if kind == "bits":
            return v + (12345 + k) if k % 2 else v ^ (54321 + k)  # sums alone would become one
        return fma(v, 0.999, 0.001) if kind == "fma" else sqrt(v) if kind == "sqrt" else 1.25 / v

    for k in range(DEPTH):
        chains = [step(v, k) for v in chains]
    y = b.const(0.0, dtype)
    for v in chains:
        y = y + bitcast(v, dtype)
    access = (Access(dtype, ("0", "1")),)
    return Kernel(2, 0, "outer", access, access, 0, tuple(b.stmts), (Stage(False, stores=(Store(0, y.index),)),))


def moving_kernel(reads: int, writes: int) -> tuple[Kernel, int]:
    """A loop over (passes, n) that reads and writes in about this proportion, and how many arrays of n it has."""
    b = Builder()
    if reads > 8 * writes:
        x = b.emit("load", F32, (), (0,))
        total = b.emit("carry", F32, (), (0,))
        stages = Stage(True, (Accumulator("add", F32, x.index),)), Stage(False, stores=(Store(0, total.index),))
        return Kernel(1, 1, "inner", (Access(F32, ("0", "1")),), (Access(F32, ("1", "0")),), 0, tuple(b.stmts),
                      stages), 1
    count = 0 if writes > 8 * reads else max(1, round(reads / writes))
    values = [b.emit("load", F32, (), (k,)) for k in range(count)]
    y = b.const(1.0, F32) if not values else values[0]
    for v in values[1:]:
        y = y + v
    access = Access(F32, ("0", "1"))
    stages = (Stage(False, stores=(Store(0, y.index),)),)
    return Kernel(2, 0, "outer", (access,) * count, (access,), 0, tuple(b.stmts), stages), count + 1
