"""Programs: right through every kind of step, from many threads and forked children, at the cost of a NumPy call."""

from __future__ import annotations

import gc
import multiprocessing
import os
import statistics
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from plan_samples import (
    F32,
    buffer,
    elementwise,
    gather_step,
    plan,
    program,
    reduce_step,
    scatter_step,
    step,
    strides,
)

from tracejit import config
from tracejit.errors import InternalError
from tracejit.lower.kernel import Launch, View
from tracejit.lower.plan import Call, Gemm
from tracejit.runtime import pool, threads
from tracejit.runtime.program import Program

BIG = 1_000_000


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = config.num_threads()
    config.set_num_threads(3)
    yield
    config.set_num_threads(before)
    threads.prepare()


class FakeOp(NamedTuple):
    """What a `Call` needs of an op."""

    name: str
    eager: Callable[..., Any]


def add_program(n: int) -> Program:
    return program(plan([buffer("input", n), buffer("input", n), buffer("output", n)], [step("add", [0, 1], 2, (n,))]))


def random(*shape: int, dtype: object = F32, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)  # type: ignore[call-overload]
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape)).astype(dtype) if dtype.kind == "c" else x.astype(dtype)


# ---- maps


@pytest.mark.parametrize("n", [0, 1, 10, 1000, 100_003, BIG])
def test_one_kernel(n: int) -> None:
    run, x, y = add_program(n), random(n), random(n, seed=1)
    for _ in range(3):
        (z,) = run([x, y])
        np.testing.assert_array_equal(z, x + y)
    assert z.dtype == F32 and z.flags.c_contiguous and z.flags.writeable
    assert run([x, y])[0] is not run([x, y])[0]


@pytest.mark.parametrize("shape", [(3, 5), (1000, 1000), (1, BIG), (BIG, 1), (0, 7), (7, 0)])
def test_matrices(shape: tuple[int, int]) -> None:
    run = program(plan([buffer("input", *shape), buffer("output", *shape)], [step("neg", [0], 1, shape)]))
    x = random(*shape)
    np.testing.assert_array_equal(run([x])[0], -x)


def test_strided_input() -> None:
    n = 500
    p = plan([buffer("input", n, n, strides=(1, n)), buffer("output", n, n)],
             [Launch(elementwise("load", 1, dims=2), (n, n), (), (View(0, 0, (n, 1)),), (View(1, 0, (n, 1)),))])
    x = np.asfortranarray(random(n, n))
    np.testing.assert_array_equal(program(p)([x])[0], x.T)  # the launch walks memory; the caller knows the strides


@pytest.mark.parametrize("n", [100, 300_000])
def test_chains_through_the_arena(n: int) -> None:
    """Temps in the arena (kept with the frame or lent for the call), in place, and outputs that are read again."""
    b = [buffer("input", n), *[buffer("temp", n) for _ in range(4)], buffer("output", n), buffer("output", n)]
    p = plan(b, [step("neg", [0], 1, (n,)), step("abs", [0], 2, (n,)), step("add", [1, 2], 3, (n,)),
                 step("sub", [3, 0], 5, (n,)), step("mul", [5, 2], 4, (n,)), step("add", [4, 5], 6, (n,))])
    run = program(p)
    for seed in range(3):
        x = random(n, seed=seed)
        first, second = run([x])
        want = -x + abs(x) - x
        np.testing.assert_array_equal(first, want)
        np.testing.assert_array_equal(second, want * abs(x) + want)


def test_results_that_are_not_made() -> None:
    """Inputs and constants are given back as they are; a buffer named twice is one array."""
    c = random(10, seed=5)
    b = [buffer("input", 10), buffer("constant", 10, value=c), buffer("output", 10)]
    run = program(plan(b, [step("mul", [0, 1], 2, (10,))], [0, 2, 1, 2]))
    x = random(10)
    given, made, constant, again = run([x])
    assert given is x and constant is c and made is again
    np.testing.assert_array_equal(made, x * c)


def test_an_empty_program() -> None:
    run = program(plan([buffer("input", 3)], [], [0]))
    x = random(3)
    assert run([x])[0] is x
    assert program(plan([], []))([]) == []


# ---- reductions


@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1000), (1000, 3), (1, BIG), (BIG, 1), (1024, 1024), (7, 150_001),
                                   (4, 0)])
@pytest.mark.parametrize("op", ["add", "max", "argmax"])
def test_reductions(op: str, shape: tuple[int, int], along: str) -> None:
    rows, columns = shape
    points, inner = (rows, columns) if along == "rows" else (columns, rows)
    if op == "max" and not inner:
        return
    out = buffer("output", points, dtype="int64" if op == "argmax" else "float32")
    run = program(plan([buffer("input", *shape), out], [reduce_step(op, 0, 1, shape, along)]))
    x = random(*shape)
    got = run([x])[0]
    axis = 1 if along == "rows" else 0
    if op == "add":
        np.testing.assert_allclose(got, x.sum(axis, dtype=np.float64), rtol=1e-4, atol=1e-2)
    elif not inner:
        assert (got == -1).all()
    else:
        np.testing.assert_array_equal(got, x.max(axis) if op == "max" else x.argmax(axis))


def test_results_do_not_depend_on_the_threads() -> None:
    runs = {along: program(plan([buffer("input", 1000, 1000), buffer("output", 1000)],
                                [reduce_step("add", 0, 1, (1000, 1000), along)])) for along in ("rows", "columns")}
    runs["whole"] = program(plan([buffer("input", 1, BIG), buffer("output", 1)],
                                 [reduce_step("add", 0, 1, (1, BIG), "rows")]))
    assert next(iter(runs["whole"].grids.values())).splits > 1  # type: ignore[union-attr]
    x = random(1000, 1000)
    seen: dict[str, set[bytes]] = {name: set() for name in runs}
    for n in (1, 2, 3, 4):
        config.set_num_threads(n)
        for name, run in runs.items():
            for _ in range(5):
                seen[name].add(run([x])[0].tobytes())
    assert {name: len(results) for name, results in seen.items()} == {"rows": 1, "columns": 1, "whole": 1}


# ---- scatters, checks


def test_scatter_adds_duplicates_in_order() -> None:
    n = 50
    b = [buffer("input", n), buffer("input", 5, dtype="int64"), buffer("input", 5), buffer("output", n)]
    run = program(plan(b, [step("load", [0], 3, (n,)), scatter_step(1, 2, 3, 5)]))
    x, index, value = random(n), np.array([3, 3, 0, 49, 3]), random(5, seed=1)
    want = x.copy()
    np.add.at(want, index, value)
    before = x.copy()
    np.testing.assert_array_equal(run([x, index, value])[0], want)
    np.testing.assert_array_equal(x, before)
    assert run.storage.reusable == {0: 0}
    (got,) = run([x, index, value], into={0: x})  # the copy is left out
    assert got is x
    np.testing.assert_array_equal(x, want)


def test_the_copy_is_left_out_only_in_place() -> None:
    n = 50
    b = [buffer("input", n), buffer("input", 5, dtype="int64"), buffer("input", 5), buffer("output", n)]
    run = program(plan(b, [step("load", [0], 3, (n,)), scatter_step(1, 2, 3, 5)]))
    x, index, value, other = random(n), np.arange(5), random(5, seed=1), np.full(n, np.nan, F32)
    want = x.copy()
    want[:5] += value
    for target in (x.copy(), other, None):
        given = target if target is not None and target is not other else x.copy()
        got = run([given, index, value], into=None if target is None else {0: target})[0]
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("n", [5, 200_000])
def test_failed_checks(n: int) -> None:
    b = [buffer("input", n, dtype="int64"), buffer("input", 100), buffer("output", n)]
    run = program(plan(b, [gather_step(0, 1, 2, n, 100)]))
    table, good = random(100), np.arange(n) % 100
    np.testing.assert_array_equal(run([good, table])[0], table[good])
    for bad in (100, -1, 1 << 40):
        index = good.copy()
        index[n // 2] = bad
        for _ in range(2):
            with pytest.raises(IndexError, match=f"index {bad} is out of bounds for axis 0 with size 100") as caught:
                run([index, table])
            assert caught.value.__notes__ == ["in compiled code, at user.py:7"]
        np.testing.assert_array_equal(run([good, table])[0], table[good])


def test_the_first_failing_step_counts() -> None:
    b = [buffer("input", 5, dtype="int64"), buffer("input", 9), buffer("input", 5, dtype="int64"), buffer("output", 5),
         buffer("output", 5)]
    run = program(plan(b, [gather_step(0, 1, 3, 5, 9), gather_step(2, 1, 4, 5, 9)]))
    table, good, bad = random(9), np.arange(5), np.full(5, 11)
    with pytest.raises(IndexError, match="index 12"):
        run([bad + 1, table, bad])
    with pytest.raises(IndexError, match="index 11"):
        run([good, table, bad])


# ---- matrix products

DTYPES = ["float32", "float64", "complex64", "complex128"]


def layouts(rows: int, columns: int, order: str) -> tuple[int, int]:
    return (columns, 1) if order == "C" else (1, rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
@pytest.mark.parametrize("m,n,k", [(3, 4, 5), (1, 4, 5), (3, 1, 5), (3, 4, 1), (1, 1, 5), (1, 1, 1), (1, 4, 1),
                                   (3, 1, 1), (3, 4, 0), (1, 4, 0), (3, 1, 0), (0, 4, 5), (3, 0, 5), (64, 65, 66),
                                   (200, 1, 300)])
def test_gemm(m: int, n: int, k: int, orders: str, dtype: str) -> None:
    a, b = (random(r, c, dtype=dtype, seed=s) for s, (r, c) in enumerate([(m, k), (k, n)]))
    a, b = np.array(a, order=orders[0]), np.array(b, order=orders[1])  # type: ignore[call-overload]
    views = [View(0, 0, layouts(m, k, orders[0])), View(1, 0, layouts(k, n, orders[1])), View(2, 0, (n, 1))]
    shapes = {"input": [(m, k), (k, n)], "output": [(m, n)]}
    buffers = [buffer(role, *shape, dtype=dtype) for role, found in shapes.items() for shape in found]
    run = program(plan(buffers, [Gemm(np.dtype(dtype), (), m, n, k, *views)]))
    target = np.full((m, n), np.nan, dtype)  # what was there must not matter
    for got in (run([a, b])[0], run([a, b], into={0: target})[0]):
        np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-4)


_BLAS_ALONE = """
    import sys
    from tracejit.runtime import executor
    address = executor.blas("dgemm")
    assert address and "scipy.linalg" not in sys.modules, "all of scipy.linalg was imported"
    import numpy as np
    import scipy.linalg
    assert scipy.linalg.cython_blas.__pyx_capi__["dgemm"]
    assert scipy.linalg.blas.dgemm(1, np.eye(3), np.eye(3))[2, 2] == 1
    import scipy.linalg.cython_blas
    executor.blas.cache_clear(), executor._cython_blas.cache_clear()
    assert executor.blas("dgemm") == address
"""


def test_blas_is_found_without_the_rest_of_scipy() -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(_BLAS_ALONE)], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)})
    assert (done.returncode, done.stderr) == (0, "")


def test_gemm_of_views() -> None:
    """Parts of larger matrices, a vector with a stride, one row read as columns."""
    x, y = random(20, 30), random(30, 40, seed=1)
    b = [buffer("input", 20, 30), buffer("input", 30, 40), buffer("output", 4, 5)]
    run = program(plan(b, [Gemm(F32, (), 4, 5, 6, View(0, 61, (30, 1)), View(1, 82, (40, 1)), View(2, 0, (5, 1)))]))
    np.testing.assert_allclose(run([x, y])[0], x[2:6, 1:7] @ y[2:8, 2:7], rtol=1e-5)
    b[2] = buffer("output", 4, 1)
    run = program(plan(b, [Gemm(F32, (), 4, 1, 6, View(0, 61, (30, 1)), View(1, 82, (40, 0)), View(2, 0, (1, 1)))]))
    np.testing.assert_allclose(run([x, y])[0], x[2:6, 1:7] @ y[2:8, 2:3], rtol=1e-5)
    b[2] = buffer("output", 1, 5)
    run = program(plan(b, [Gemm(F32, (), 1, 5, 6, View(0, 61, (0, 30)), View(1, 82, (1, 40)), View(2, 0, (5, 1)))]))
    np.testing.assert_allclose(run([x, y])[0], (x[2:8, 1:2].T @ y[2:7, 2:8].T), rtol=1e-5)


@pytest.mark.parametrize("m,n,k", [(8, 9, 10), (1, 9, 10), (8, 1, 10), (2, 2, 0)])
@pytest.mark.parametrize("batch,broadcast", [((3,), False), ((2, 3), False), ((2, 3), True), ((700,), False),
                                             ((0,), False)])
def test_batched_gemm(batch: tuple[int, ...], broadcast: bool, m: int, n: int, k: int) -> None:
    a_batch = (*batch[:-1], 1) if broadcast else batch
    a, b = random(*a_batch, m, k), random(*batch, k, n, seed=1)
    a_strides = strides(a.shape)
    if broadcast:
        a_strides = (*a_strides[: len(batch) - 1], 0, *a_strides[len(batch):])
    views = [View(0, 0, a_strides), View(1, 0, strides(b.shape)), View(2, 0, strides((*batch, m, n)))]
    buffers = [buffer("input", *a.shape), buffer("input", *b.shape), buffer("output", *batch, m, n)]
    run = program(plan(buffers, [Gemm(F32, batch, m, n, k, *views)]))
    np.testing.assert_allclose(run([a, b])[0], a @ b, rtol=1e-4, atol=1e-5)


def test_what_a_product_cannot_walk_is_an_error() -> None:
    for dtype, bad in (("float32", (8, 2)), ("complex64", (8, 2)), ("complex64", (1, 1)), ("complex64", (-4, 1))):
        buffers = [buffer("input", 4, 4, dtype=dtype), buffer("input", 4, 4, dtype=dtype),
                   buffer("output", 2, 2, dtype=dtype)]
        views = View(0, 0, (4, 1)), View(1, 0, bad), View(2, 0, (2, 1))
        with pytest.raises(InternalError, match=r"not for BLAS|beyond BLAS|no operand"):
            program(plan(buffers, [Gemm(np.dtype(dtype), (), 2, 2, 2, *views)]))


# ---- steps in Python


@pytest.mark.parametrize("n", [10, 200_000])
def test_calls(n: int) -> None:
    """sort(-x) + abs(x), with the sort in Python between two native runs; results go to temps and outputs."""
    sort = FakeOp("sort", lambda x, reverse: -np.sort(-x) if reverse else np.sort(x))
    both = FakeOp("both", lambda x, y: (x + y, (x > y)))
    b = [buffer("input", n), buffer("temp", n), buffer("temp", n), buffer("temp", n), buffer("output", n),
         buffer("output", n), buffer("output", n, dtype="bool")]
    p = plan(b, [step("neg", [0], 1, (n,)), Call(sort, (1,), (2,), (("reverse", True),)),  # type: ignore[arg-type]
                 step("abs", [0], 3, (n,)), step("add", [2, 3], 4, (n,)),
                 Call(both, (4, 0), (5, 6), ())])  # type: ignore[arg-type]
    run = program(p)
    for seed in range(3):
        x = random(n, seed=seed)
        got = run([x])
        want = -np.sort(x) + abs(x)
        for g, w in zip(got, (want, want + x, want > x), strict=True):
            np.testing.assert_array_equal(g, w)


def test_calls_that_give_the_wrong_thing() -> None:
    for eager, message in [(lambda x: x[:2], "shape"), (lambda x: x.astype("float64"), "float64"),
                           (lambda x: (x, x), "2 results")]:
        p = plan([buffer("input", 3), buffer("output", 3)],
                 [Call(FakeOp("odd", eager), (0,), (1,), ())])  # type: ignore[arg-type]
        with pytest.raises(InternalError, match=rf"odd gave ({message}|float32\[2\])|odd gave"):
            program(p)([random(3)])


def test_an_exception_in_a_call_leaves_the_program_usable() -> None:
    fail = True

    def maybe(x: np.ndarray) -> np.ndarray:
        if fail:
            raise FloatingPointError("no")
        return x * 2

    b = [buffer("input", 9), buffer("temp", 9), buffer("temp", 9), buffer("output", 9)]
    run = program(plan(b, [step("neg", [0], 1, (9,)), Call(FakeOp("maybe", maybe), (1,), (2,), ()),  # type: ignore[arg-type]
                           step("neg", [2], 3, (9,))]))
    with pytest.raises(FloatingPointError, match="no"):
        run([random(9)])
    fail = False
    np.testing.assert_array_equal(run([random(9)])[0], random(9) * 2)


# ---- writing into given arrays


def test_into() -> None:
    n = 1000
    run, x, y = add_program(n), random(n), random(n, seed=1)
    target = np.empty(n, F32)
    assert run([x, y], into={0: target})[0] is target
    np.testing.assert_array_equal(target, x + y)
    want = x + y
    assert run.storage.reusable == {0: 0}
    assert run([x, y], into={0: x})[0] is x
    np.testing.assert_array_equal(x, want)
    for bad in (np.empty(n - 1, F32), np.empty(n, np.float64), np.empty(2 * n, F32)[::2], y):
        with pytest.raises(InternalError, match="output 0"):
            run([x, y], into={0: bad})


def test_wrong_inputs_are_caught_when_checking() -> None:
    debug = config.debug.check
    config.debug.check = 2
    try:
        run = add_program(10)
    finally:
        config.debug.check = debug
    x = random(10)
    np.testing.assert_array_equal(run([x, x])[0], x + x)
    for bad in (random(11), random(10, dtype="float64"), random(20)[::2]):
        with pytest.raises(InternalError, match="input 1"):
            run([x, bad])
    with pytest.raises(InternalError, match="1 arrays for 2"):
        run([x])


def test_views_that_contradict_their_kernel_are_caught() -> None:
    s = Launch(elementwise("neg", 1), (5,), (), (View(0, 0, (2,)),), (View(1, 0, (1,)),))
    with pytest.raises(InternalError, match="stride 2 along dim 0"):
        program(plan([buffer("input", 10), buffer("output", 5)], [s]))


# ---- threads, processes, lifetimes


def mixed_program() -> tuple[Program, Callable[[np.ndarray], list[np.ndarray]]]:
    """Every kind of step over 100,000 elements."""
    m = 1000
    double = FakeOp("double", lambda x: x * 2)
    b = [buffer("input", m, 100), buffer("temp", m, 100), buffer("temp", m, 100), buffer("temp", m),
         buffer("output", m), buffer("output", 100, 100)]
    view = View(2, 0, (1, 100)), View(2, 0, (100, 1)), View(5, 0, (100, 1))
    p = plan(b, [step("neg", [0], 1, (m, 100)), Call(double, (1,), (2,), ()),  # type: ignore[arg-type]
                 reduce_step("add", 2, 3, (m, 100), "rows"), step("abs", [3], 4, (m,)),
                 Gemm(F32, (), 100, 100, m, *view)])

    def expected(x: np.ndarray) -> list[np.ndarray]:
        y = -x * 2
        return [abs(y.sum(1)), y.T @ y]

    return program(p), expected


def test_many_callers_at_once() -> None:
    run, expected = mixed_program()
    small = add_program(10)

    def work(seed: int) -> None:
        x = random(1000, 100, seed=seed)
        want = expected(x)
        for _ in range(10):
            for g, w in zip(run([x]), want, strict=True):
                np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-2)
            a = random(10, seed=seed)
            for _ in range(50):
                np.testing.assert_array_equal(small([a, a])[0], a + a)

    with ThreadPoolExecutor(6) as executor:
        list(executor.map(work, range(12)))


def _child(queue: multiprocessing.SimpleQueue, run: Program, x: np.ndarray, want: np.ndarray) -> None:
    queue.put(all(np.array_equal(run([x])[0], want) for _ in range(20)))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_children_while_others_run() -> None:
    n = 300_000
    b = [buffer("input", n), buffer("temp", n), buffer("output", n)]
    run = program(plan(b, [step("neg", [0], 1, (n,)), step("abs", [1], 2, (n,))]))
    x = random(n)
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            run([x])

    others = [threading.Thread(target=load) for _ in range(2)]
    for t in others:
        t.start()
    try:
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        for _ in range(4):
            child = context.Process(target=_child, args=(queue, run, x, abs(x)))
            child.start()
            child.join(30)
            assert child.exitcode == 0 and queue.get()
    finally:
        stop.set()
        for t in others:
            t.join()


def test_other_python_threads_run_meanwhile() -> None:
    run, x = add_program(20 * BIG), random(20 * BIG)
    ticks = 0
    done = threading.Event()

    def work() -> None:
        for _ in range(20):
            run([x, x])
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    while not done.is_set():
        ticks += 1
        time.sleep(0.0005)
    worker.join()
    assert ticks > 20


def test_a_program_is_freed_at_once() -> None:
    gc.disable()
    try:
        for n in (10, BIG):
            run = add_program(n)
            run([random(n), random(n)])
            gone = weakref.ref(run)
            del run
            assert gone() is None
    finally:
        gc.enable()


def test_results_outlive_the_program_and_recycle() -> None:
    run, x = add_program(BIG), random(BIG)
    first = run([x, x])[0]
    others = [run([x, x])[0] for _ in range(5)]
    assert len({a.__array_interface__["data"][0] for a in (first, *others)}) == 6
    del others
    hits = pool.stats().hits
    again = run([x, x])[0]
    assert pool.stats().hits > hits
    del run
    np.testing.assert_array_equal(first, x + x)
    np.testing.assert_array_equal(again, x + x)


def test_memory_is_flat() -> None:
    run, _ = mixed_program()
    x = random(1000, 100)
    run([x])
    start = pool.stats().in_use
    for _ in range(200):
        run([x])
    assert pool.stats().in_use == start


_ENDING = """
    import threading, time
    import numpy as np
    from plan_samples import buffer, plan, program, step

    n = 5_000_000
    run = program(plan([buffer("input", n), buffer("output", n)], [step("neg", [0], 1, (n,))]))
    x = np.ones(n, "f4")

    def forever():
        while True:
            run([x])

    class Slow:
        def __del__(self, sleep=time.sleep):
            sleep(0.1)

    for _ in range(3):
        threading.Thread(target=forever, daemon=True).start()
    slow = Slow()
    time.sleep(0.05)
"""


def test_the_interpreter_ends_while_programs_run() -> None:
    """Daemon threads come back from native code when there is no interpreter to come back to."""
    here, command = Path(__file__).parent, [sys.executable, "-c", textwrap.dedent(_ENDING)]
    environment = {**os.environ, "PYTHONPATH": f"{here.parent}{os.pathsep}{here}"}
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        assert (done.returncode, done.stderr) == (0, "")


def test_profile() -> None:
    run, _ = mixed_program()
    x = random(1000, 100)
    want = run([x])
    run.profiling(True)
    for _ in range(3):
        for g, w in zip(run([x]), want, strict=True):
            np.testing.assert_array_equal(g, w)
    assert run.profile is not None and [calls for calls, _ in run.profile] == [3] * 5
    assert all(seconds > 0 for _, seconds in run.profile)
    run.profiling(False)
    assert run.profile is None
    run([x])


def test_a_small_call_is_cheap() -> None:
    run, x, y = add_program(10), random(10), random(10)
    call, took = run.call, []
    for _ in range(200):
        start = time.perf_counter()
        for _ in range(100):
            call([x, y])
        took.append((time.perf_counter() - start) / 100)
    assert statistics.median(took) < 2e-6  # 0.25 where it was measured
