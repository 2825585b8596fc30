"""Branches and loops inside the native executor: places that change roles, pauses, Python steps, threads."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.lower.plan import Gemm, Loop
from tracejit.tensor import Tensor
from tracejit.trees import flatten


def alike(f: Any, *args: Any, rtol: float = 1e-9) -> Any:
    """Eager and compiled (twice, as frames are used again) agree. Gives the compiled function."""
    wanted = [np.asarray(x.numpy() if isinstance(x, Tensor) else x) for x in flatten(f(*args))[0]]
    compiled = tj.function(f)
    for _ in range(2):
        for a, b in zip(flatten(compiled(*args))[0], wanted, strict=True):
            np.testing.assert_allclose(a.numpy() if isinstance(a, Tensor) else a, b, rtol=rtol, atol=rtol)
    return compiled


def loops(compiled: Any, *args: Any) -> list[Loop]:
    return [s for s in compiled.lower(*args).plan.steps if isinstance(s, Loop)]


X = tj.asarray(np.random.default_rng(0).standard_normal((7, 300)))


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_large_carries_change_places_with_new_ones(n: int) -> None:
    f = alike(lambda x, k: tj.while_loop(lambda i, s, t: i < k, lambda i, s, t: (i + 1, t[::-1] + x, s[::-1] * 0.5),
                                         (0, x, x * 2))[1:], X, tj.asarray(n))  # fmt: skip
    (loop,) = loops(f, X, tj.asarray(n))
    assert sum(b is not None for b in loop.nexts) == 2


def test_what_a_loop_starts_with_stays() -> None:
    x = tj.asarray(np.arange(2000.0))
    before = x.numpy().copy()
    alike(lambda x: (tj.fori_loop(0, 3, lambda i, s: s[::-1] + 1, x), x + 0), x)
    np.testing.assert_array_equal(x.numpy(), before)


def test_carries_that_only_move() -> None:
    """Rotated, repeated, constant, and given back as they are."""

    def f(a: Any, b: Any, c: Any) -> Any:
        def body(i: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
            return i + 1, b, c, a[::-1], a

        return tj.while_loop(lambda i, *_: i < 5, body, (0, a, b, c, a))

    alike(f, X, X + 1, X * 2)
    alike(lambda x: tj.scan(lambda c, r: ((c[1], c[0]), (c[0], r, r)), (x[0][::-1], x[1]), x), X)


def test_rows_of_rows() -> None:
    """An inner scan over the row of an outer one: its places move when the outer ones do."""

    def f(x: Any) -> Any:
        def outer(c: Any, block: Any) -> Any:
            inner, ys = tj.scan(lambda s, r: (s * 0.5 + r[::-1], s.sum() + r), c, block, reverse=True)
            return inner, (ys, inner)

        return tj.scan(outer, x[0, 0], x)

    alike(f, tj.asarray(np.random.default_rng(1).standard_normal((4, 3, 5))))
    alike(f, tj.asarray(np.random.default_rng(1).standard_normal((2, 3, 400))))


def test_branches_of_large_values() -> None:
    def f(x: Any) -> Any:
        def body(i: Any, s: Any) -> Any:
            below = lambda: tj.cond(s.max() > 1, lambda: s, lambda: s + x.std())
            return tj.cond(s.mean() > 0, lambda: s[::-1] - 0.3, below)

        return tj.fori_loop(0, 9, body, x)

    alike(f, X)


def test_a_row_put_in_place_costs_no_copy_of_the_rest() -> None:
    """A large carry of which one row is set is written where it is."""

    def f(table: Any, n: Any) -> Any:
        def body(i: Any, t: Any) -> Any:
            t[i % 50] = t[(i + 7) % 50] + 1.0
            return t

        return tj.fori_loop(0, n, body, table)

    table, n = tj.zeros((50, 400)), tj.asarray(60)
    compiled = alike(f, table, n)
    (loop,) = loops(compiled, table, n)
    assert loop.nexts[1] is None
    start = time.perf_counter()
    compiled(tj.zeros((50, 400)), tj.asarray(100_000))
    assert time.perf_counter() - start < 0.4  # copies of the table would take several times that


def test_python_steps_inside_loops_and_branches() -> None:
    def f(x: Any) -> Any:
        def row(c: Any, r: Any) -> Any:
            y = tj.cond(r.sum() > 0, lambda: tj.sort(r), lambda: tj.cumsum(r))
            return c + y, tj.sort(c)[::-1]

        return tj.scan(row, x[0], x)

    alike(f, X)


def test_many_iterations_use_no_stack_and_little_time() -> None:
    f = tj.function(lambda x, n: tj.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, s[::-1] + 1.0), (0, x))[1])
    x = tj.zeros(3)
    f(x, tj.asarray(10))
    start = time.perf_counter()
    assert f(x, tj.asarray(1_000_000)).tolist() == [1e6] * 3
    assert time.perf_counter() - start < 1.0


def test_other_threads_run_meanwhile() -> None:
    f = tj.function(lambda x: tj.while_loop(lambda s: s.sum() < 3e6, lambda s: s[::-1] + 1.0, x))
    f(tj.zeros(3))
    done = threading.Event()
    worker = threading.Thread(target=lambda: (f(tj.zeros(3)), done.set()))
    worker.start()
    turns = 0
    while not done.is_set():
        turns += 1
    worker.join()
    assert turns > 10


@pytest.mark.parametrize("loop", [
    "tj.while_loop(lambda s: s.sum() > -1, lambda s: s[::-1] * 0.5, x)",  # steps
    "tj.while_loop(lambda s: s[0] > -1, lambda s: s * 0.5, x)",
    "tj.while_loop(lambda s: s > -1, lambda s: s * 0.5, x[0])",  # in registers
    "tj.while_loop(lambda s: (s > -1).any(), lambda s: tj.where(s > -1, s * 0.5, s), x)",  # each by itself
])  # fmt: skip
def test_an_endless_loop_can_be_interrupted(loop: str) -> None:
    code = f"""
import tracejit as tj
f = tj.function(lambda x: {loop})
f.lower(tj.ones(3))
print("ready", flush=True)
try:
    f(tj.ones(3))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    time.sleep(1.0)
    child.send_signal(signal.SIGINT)
    try:
        out, _ = child.communicate(timeout=20)
    finally:
        child.kill()
    assert out == "interrupted\n"


def test_kernels_inside_loops_are_listed() -> None:
    f = tj.function(lambda x: tj.scan(lambda c, r: (c[::-1] * 0.5 + r, c.sum()), x[0], x))
    f(X)
    assert any("multiply" in k.ops for k in f.kernels()) and "scan: in native code" in str(tj.explain(f))
    assert len(f.lower(X).kernels) == len(f.kernels()) >= 2


def recurrent(x: Any, wx: Any, wh: Any) -> Any:
    """A layer with gates, which are columns of one product."""
    hidden = wh.shape[0]

    def step(state: Any, row: Any) -> Any:
        h, c = state
        z = row @ wx + h @ wh
        i, f, g, o = (z[:, k * hidden: (k + 1) * hidden] for k in range(4))
        c = tj.sigmoid(f) * c + tj.sigmoid(i) * tj.tanh(g)
        h = tj.sigmoid(o) * tj.tanh(c)
        return (h, c), h

    start = tj.zeros((x.shape[1], hidden), dtype=x.dtype)
    return tj.scan(step, (start, start), x)[1]


@pytest.mark.parametrize(("batch", "hidden"), [(32, 24), (13, 16), (2, 8), (70, 40)])
def test_gates_are_computed_on_the_panels_of_their_product(batch: int, hidden: int) -> None:
    r = np.random.default_rng(1)
    args = [tj.asarray(r.standard_normal(s)) for s in ((6, batch, 10), (10, 4 * hidden), (hidden, 4 * hidden))]
    (loop,) = loops(alike(recurrent, *args), *args)
    (product,) = (s for s in loop.body.plan.steps if isinstance(s, Gemm))
    assert product.then is not None and len(loop.body.plan.steps) == 1
    alike(tj.grad(lambda *a: tj.square(recurrent(*a)).sum(), argnums=(0, 1, 2)), *args)


def test_a_steady_factor_is_packed_anew_when_an_outer_loop_moves_it() -> None:
    r = np.random.default_rng(2)
    x, ws = (tj.asarray(r.standard_normal(s)) for s in ((20, 30), (4, 30, 30)))

    def f(x: Any, ws: Any) -> Any:
        def outer(s: Any, w: Any) -> Any:
            s = tj.fori_loop(0, 3, lambda i, s: tj.tanh(s @ w), s)
            return tj.fori_loop(0, 2, lambda i, s: tj.tanh(s @ w.T), s), None

        return tj.scan(outer, x, ws)[0]

    compiled = alike(f, x, ws)
    (outer,) = loops(compiled, x, ws)
    assert sum(isinstance(s, Loop) for s in outer.body.plan.steps) == 2


def test_columns_of_a_product_that_reach_into_the_next_row_do_not_go_on_panels() -> None:
    r = np.random.default_rng(3)
    a, b = tj.asarray(r.standard_normal((40, 8))), tj.asarray(r.standard_normal((8, 12)))
    alike(lambda a, b: tj.exp((a @ b).reshape(-1)[5: 5 + 39 * 12].reshape(39, 12)), a, b)
    alike(lambda a, b: tj.exp((a @ b)[:, 11:2:-3]), a, b)
    alike(lambda a, b: tj.exp((a @ b)[::-1, 2:]), a, b)
