"""Loops turned inside out: each element's iterations run in registers, and give what the plain loop gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.ir import count, subgraphs
from tracejit.lower.contract import contracted
from tracejit.lower.plan import Loop, calls_python
from tracejit.lower.scalar import F32, SCALAR_OPS, Builder, Region
from tracejit.tensor import Tensor, evaluate
from tracejit.trees import flatten


def values(result: Any) -> list[np.ndarray]:
    return [np.asarray(x.numpy() if isinstance(x, Tensor) else x) for x in flatten(result)[0]]


def turned(f: Callable[..., Any], *args: Any, rtol: float = 1e-6, kernels: int | None = None) -> Any:
    """f eagerly and compiled give the same, and no loop of steps is left. Gives the compiled result."""
    wanted = values(f(*args))
    compiled = tj.function(f)
    found = compiled(*args)
    for a, b in zip(values(found), wanted, strict=True):
        assert a.shape == b.shape and a.dtype.kind == b.dtype.kind
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)
    lowered = compiled.lower(*args)
    graphs = [lowered.graph]
    for n in lowered.graph.nodes:  # around a loop that may be endless is one of steps, of very many iterations each
        graphs += subgraphs(n)
        loops = [s for s in lowered.plan.steps if isinstance(s, Loop)]
        assert n.op.name != "while_loop" or [len(s.body.plan.steps) for s in loops] == [1]
    assert sum(count(g, "lane_loop") for g in graphs) >= 1
    assert kernels is None or len(lowered.plan.steps) == kernels
    leaves = [tj.asarray(np.asarray(x)) for x in flatten(args)[0]]
    if len(leaves) == len(lowered.graph.inputs):
        leaves = [t.astype(n.dtype) for t, n in zip(leaves, lowered.graph.inputs)]
        for t, b in zip(evaluate(lowered.graph, leaves), wanted):
            np.testing.assert_allclose(t.numpy(), b, rtol=rtol, atol=rtol)
    return found


def grid(n: int) -> tuple[Tensor, Tensor]:
    re, im = np.meshgrid(np.linspace(-2, 0.5, n, dtype="f4"), np.linspace(-1.25, 1.25, n, dtype="f4"))
    return tj.asarray(re), tj.asarray(im)


# -- single values -----------------------------------------------------------------------------------------------------
def test_newton() -> None:
    def root(a: Any) -> Any:
        return tj.while_loop(lambda x: abs(x * x - a) > 1e-12 * a, lambda x: (x + a / x) / 2, a)

    assert turned(root, tj.asarray(np.float64(7.0))).item() == pytest.approx(np.sqrt(7.0))


def test_collatz_with_a_choice_inside() -> None:
    def steps(n: Any) -> Any:
        return tj.while_loop(
            lambda n, k: n > 1, lambda n, k: (tj.cond(n % 2 == 0, lambda: n // 2, lambda: 3 * n + 1), k + 1), (n, 0)
        )[1]

    assert turned(steps, tj.asarray(np.int64(27))) == 111


def test_a_controller_with_many_carries() -> None:
    def run(goal: Any) -> Any:
        def step(i: Any, s: Any) -> Any:
            x, v, total, before = s
            error = goal - x
            u = tj.clip(2.0 * error + 0.5 * total + 0.3 * (error - before), -10.0, 10.0)
            v = v + 0.01 * (u - 0.4 * v)
            return x + 0.01 * v, v, total + 0.01 * error, error

        zero = goal * 0
        return tj.fori_loop(0, 500, step, (zero, zero, zero, zero))[:2]

    turned(run, tj.asarray(np.float64(1.5)), rtol=1e-9)


def test_a_count_known_at_run_time_only() -> None:
    f = tj.function(lambda n, x: tj.fori_loop(0, n, lambda i, s: s + i * x, x * 0))
    for n in (0, 1, 10):
        assert f(tj.asarray(n), tj.asarray(2.0)).item() == n * (n - 1)


def test_other_counts_share_a_kernel() -> None:
    def make(n: int) -> Any:
        return tj.function(lambda x: tj.fori_loop(0, n, lambda i, s: s * 0.5 + 1.0, x))

    first, second = make(1234), make(4321)
    texts = [f.lower(tj.asarray(1.0)).kernels[0].code for f in (first, second)]
    assert texts[0] == texts[1] and first(tj.asarray(1.0)).item() == 2.0


def test_complex_numbers() -> None:
    turned(lambda c: tj.fori_loop(0, 7, lambda i, z: z * z * 0.5 + c, c), tj.asarray([0.3 + 0.2j, -0.5 + 0.1j, 0.1j]))


# -- many elements -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [1, 3, 17, 100])
def test_as_many_iterations_for_all(n: int) -> None:
    def mandelbrot(cr: Any, ci: Any) -> Any:
        def step(i: Any, s: Any) -> Any:
            zr, zi, c = s
            zr, zi = zr * zr - zi * zi + cr, 2 * zr * zi + ci
            return zr, zi, c + (zr * zr + zi * zi <= 4)

        return tj.fori_loop(0, 12, step, (cr * 0, ci * 0, tj.zeros(cr.shape, dtype="int32")))[2]

    turned(mandelbrot, *grid(n), kernels=1, rtol=0)


@pytest.mark.parametrize("n", [1, 3, 17, 60])
def test_each_element_stops_by_itself(n: int) -> None:
    def mandelbrot(cr: Any, ci: Any) -> Any:
        def goes_on(zr: Any, zi: Any) -> Any:
            return zr * zr + zi * zi <= 4

        def step(i: Any, zr: Any, zi: Any, c: Any) -> Any:
            on = goes_on(zr, zi)
            return (i + 1, tj.where(on, zr * zr - zi * zi + cr, zr), tj.where(on, 2 * zr * zi + ci, zi),
                    tj.where(on, c + 1, c))  # fmt: skip

        start = 0, cr * 0, ci * 0, tj.zeros(cr.shape, dtype="int32")
        return tj.while_loop(lambda i, zr, zi, c: tj.any(goes_on(zr, zi)) & (i < 12), step, start)[3]

    turned(mandelbrot, *grid(n), kernels=1, rtol=0)


@pytest.mark.parametrize("n", [1, 5, 40])
def test_a_scalar_loop_mapped_over_elements(n: int) -> None:
    def escape(c: Any) -> Any:
        return tj.while_loop(
            lambda i, zr, zi: (i < 12) & (zr * zr + zi * zi <= 4),
            lambda i, zr, zi: (i + 1, zr * zr - zi * zi + c[0], 2 * zr * zi + c[1]),
            (0, c[0] * 0, c[0] * 0),
        )[0]

    re, im = grid(n)
    turned(lambda a, b: tj.map(escape, (a, b)), re.reshape(-1), im.reshape(-1), kernels=1, rtol=0)


def test_a_loop_in_a_loop() -> None:
    def f(x: Any) -> Any:
        def outer(i: Any, s: Any) -> Any:
            return s * 0.5 + tj.fori_loop(0, 3, lambda j, t: t * 0.9 + j, s)

        return tj.fori_loop(0, 5, outer, x)

    turned(f, tj.asarray(np.linspace(-1, 1, 77)), rtol=1e-9, kernels=1)


def test_trajectories() -> None:
    """Many independent oscillators, with functions that have rare slow paths."""

    def f(x: Any, v: Any) -> Any:
        def step(i: Any, s: Any) -> Any:
            x, v = s
            v = v - 0.01 * (tj.sin(x) + 0.1 * v)
            return x + 0.01 * v, v

        return tj.fori_loop(0, 40, step, (x, v))

    x = tj.asarray(np.linspace(-3, 3, 501))
    turned(f, x, x * 0.1, rtol=1e-9)
    turned(lambda x: tj.fori_loop(0, 2, lambda i, s: tj.sin(s), x), tj.asarray(np.array([1.0, 1e9, -1e300])), rtol=1e-9)


def test_random_paths() -> None:
    def price(n: int) -> Any:
        def step(i: Any, s: Any) -> Any:
            return s * tj.exp(0.01 * tj.random.normal((n,), dtype="float64") - 0.00005)

        return tj.maximum(tj.fori_loop(0, 20, step, tj.ones(n, dtype="float64")) - 1.0, 0.0).mean()

    tj.random.seed(5)
    wanted = price(1000).item()
    after = tj.random.uniform().item()
    f = tj.function(lambda: price(1000))
    tj.random.seed(5)
    assert f().item() == pytest.approx(wanted, rel=1e-9) and tj.random.uniform().item() == after
    assert count(f.lower().graph, "random_bits") == 0 and count(f.lower().graph, "lane_loop") >= 1


def test_what_the_loop_does_not_change_is_computed_before() -> None:
    def f(x: Any, w: Any) -> Any:
        return tj.fori_loop(0, 4, lambda i, s: s * 0.5 + tj.sort(w) + w.sum(), x)

    turned(f, tj.asarray(np.arange(6.0)), tj.asarray(np.arange(6.0)[::-1].copy()), rtol=1e-9)


# -- many vectors at a time --------------------------------------------------------------------------------------------
def logistic(x: Any) -> Any:
    return tj.fori_loop(0, 9, lambda i, s: 3.5 * s * (1 - s) + i * 0.001, x * 0 + 0.3) + x


def swings(x: Any) -> Any:
    def step(i: Any, s: Any) -> Any:
        a, b, c, d = s
        return b, a + 0.1 * (c - b), d - 0.2 * a, tj.clip(a + b, -1.0, 1.0) + c * 0.5

    a, b, c, d = tj.fori_loop(0, 9, step, (x, x + 1, x * 0.5, x - 1))
    return a + b + c + d


def halves(x: Any) -> Any:
    def step(v: Any, k: Any) -> Any:
        return tj.where(v > 1, v / 2, v), tj.where(v > 1, k + 1, k)

    return tj.while_loop(lambda v, k: tj.any(v > 1), step, (tj.abs(x) * 100, tj.zeros(x.shape, dtype="int16")))[1]


def nested(x: Any) -> Any:
    return tj.fori_loop(0, 3, lambda i, s: s * 0.5 + tj.fori_loop(0, i, lambda j, t: t * t * 0.5 + x, s), x)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("f", [logistic, swings, halves, nested])
def test_vectors_at_a_time_and_what_is_left(f: Any, dtype: str) -> None:
    """One vector, some, and sizes that fill the last of them partly."""
    for n in (5, 63, 127, 129, 700):
        x = tj.asarray(np.random.default_rng(n).uniform(-1, 1, n).astype(dtype))
        turned(f, x, rtol={"float16": 1e-2, "float32": 1e-5, "float64": 1e-12}[dtype])


def test_small_integers() -> None:
    def f(x: Any) -> Any:
        return tj.fori_loop(0, 20, lambda i, s: (s[0] * 5 + s[1], s[1] ^ s[0]), (x, x + 1))

    for dtype in ("int8", "uint16", "int64"):
        turned(f, tj.asarray(np.arange(700).astype(dtype)), rtol=0)


def test_all_lanes_round_alike() -> None:
    """What an element becomes does not depend on where it is."""
    x = np.random.default_rng(1).uniform(0, 1, 300).astype("float32")
    f = tj.function(logistic)
    whole = f(tj.asarray(x)).numpy()
    for k in (0, 100, 299):
        assert (f(tj.asarray(np.full(300, x[k]))).numpy() == whole[k]).all()
        assert f(tj.asarray(x[k: k + 1])).numpy()[0] == whole[k]


# -- products in sums --------------------------------------------------------------------------------------------------
def region(f: Callable[..., Any], contract: bool = True) -> Region:
    """A loop over float32 numbers: f(carry, operand) is the next carry."""
    builder = Builder()
    builder.contract = contract
    x, y = (builder.emit("arg", F32, (), (k,)) for k in range(2))
    result = f(x, y)
    return Region(1, tuple(builder.stmts), (result.index,), None, True)


def ops(r: Region) -> list[str]:
    return [r.stmts[i].op for i in r.needed(r.ends) if r.stmts[i].op != "arg"]


def value(r: Region, x: float, y: float) -> Any:
    """The next carry, statement by statement."""
    found: list[Any] = []
    for s in r.stmts:
        given = [np.float32(v) for v in (x, y)][s.attrs[0]] if s.op == "arg" else None
        found.append(given if s.op == "arg" else SCALAR_OPS[s.op].numpy(*(np.asarray(found[a]) for a in s.args)))
    return np.asarray(found[r.nexts[0]])


def test_a_product_goes_into_all_sums_that_read_it() -> None:
    def squares(x: Any, y: Any) -> Any:
        return (x * x + y) / (y - x * x) + (x * x - y)

    before = region(squares)
    after = contracted(before, ())
    assert ops(before).count("mul") == 1 and "mul" not in ops(after) and ops(after).count("fma") == 3
    for x, y in ((1.5, 0.25), (-3.0, 2.0), (0.0, -1.0)):
        assert value(after, x, y) == value(before, x, y)


@pytest.mark.parametrize("f", [
    lambda x, y: x * y,  # it is a result
    lambda x, y: (x * y + 1.0) / (x * y),  # a division reads it
    lambda x, y: x * y + x * y,  # one sum reads it twice
])
def test_products_that_stay(f: Any) -> None:
    r = region(f)
    assert contracted(r, ()) is r


def test_products_stay_where_that_is_promised_or_they_are_done_once() -> None:
    r = region(lambda x, y: x * x + y, contract=False)
    assert contracted(r, ()) is r
    r = region(lambda x, y: x + y * y)
    assert contracted(r, [s for s, t in enumerate(r.stmts) if t.op == "mul"]) is r and contracted(r, ()) is not r


# -- what stays a loop of steps ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("f", [
    lambda x: tj.fori_loop(0, 3, lambda i, s: s - s.mean(), x),  # elements meet
    lambda x: tj.fori_loop(0, 3, lambda i, s: s[::-1] * 0.5, x),
    lambda x: tj.while_loop(lambda s: tj.any(s < 3), lambda s: s + 1, x),  # all go on while one does
    # the number of iterations is read
    lambda x: tj.while_loop(lambda i, s: tj.any(s < 3), lambda i, s: (i + 1, tj.where(s < 3, s + 1, s)), (0, x)),
])  # fmt: skip
def test_loops_whose_elements_meet_stay(f: Any) -> None:
    x = tj.asarray(np.linspace(-1, 2, 9))
    compiled = tj.function(f)
    for a, b in zip(values(compiled(x)), values(f(x)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    assert count(compiled.lower(x).graph, "lane_loop") == 0


def test_results_that_only_dead_code_reads() -> None:
    def f(x: Any) -> Any:
        i, y, z = tj.fori_loop(0, 5, lambda i, c: (c[0] + 1, c[1] * 0.5 + 1, c[2] + c[1]), (x * 0, x, x))
        dead = z[::-1] + i  # noqa: F841 - reads a carry that nothing else needs
        return y

    turned(f, tj.asarray(np.linspace(0, 1, 50)))


def test_a_kalman_filter_is_one_loop_of_kernels() -> None:
    """Matrices of 4 by 4 in a plain Python loop over rows: native steps only, forwards and in the gradient."""

    def inverse(m: Any) -> Any:
        a, b, c, d = m[0, 0], m[0, 1], m[1, 0], m[1, 1]
        return tj.stack([tj.stack([d, -b]), tj.stack([-c, a])]) / (a * d - b * c)

    def run(f: Any, h: Any, zs: Any) -> Any:
        x, p = tj.zeros(4, dtype=f.dtype), tj.eye(4, dtype=f.dtype)
        for z in zs:
            x, p = f @ x, f @ p @ f.T + 0.01 * tj.eye(4, dtype=f.dtype)
            gain = p @ h.T @ inverse(h @ p @ h.T + 0.5 * tj.eye(2, dtype=f.dtype))
            x, p = x + gain @ (z - h @ x), p - gain @ h @ p
        return x

    f, h = np.eye(4) + 0.1 * np.eye(4, k=2), np.eye(2, 4)
    zs = np.random.default_rng(0).normal(0, 1, (200, 2))
    x, p = np.zeros(4), np.eye(4)
    for z in zs:
        x, p = f @ x, f @ p @ f.T + 0.01 * np.eye(4)
        gain = p @ h.T @ np.linalg.inv(h @ p @ h.T + 0.5 * np.eye(2))
        x, p = x + gain @ (z - h @ x), p - gain @ h @ p
    args = [tj.asarray(a) for a in (f, h, zs)]
    compiled = tj.function(run)
    np.testing.assert_allclose(compiled(*args).numpy(), x, rtol=1e-9)
    lowered = compiled.lower(*args)
    (loop,) = [s for s in lowered.plan.steps if isinstance(s, Loop)]
    assert not calls_python(lowered.plan) and not calls_python(loop.body.plan)
    slope = tj.grad(lambda f, h, zs: (run(f, h, zs) ** 2).sum())
    np.testing.assert_allclose(tj.function(slope)(*args).numpy(), slope(*args).numpy(), rtol=1e-6)
