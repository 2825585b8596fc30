"""Derivatives of control flow: compiled in every way, they are those of the plain Python loop that eager runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.ir import count
from tracejit.tensor import Tensor
from tracejit.trees import flatten

RULES = sys.modules["tracejit.trace.control"]


def values(result: Any) -> list[np.ndarray]:
    return [x.numpy() if isinstance(x, Tensor) else np.asarray(x) for x in flatten(result)[0]]


def alike(f: Callable[..., Any], *args: Any, argnums: Any = 0, rtol: float = 1e-9) -> list[np.ndarray]:
    """The gradient of f eagerly, of the compiled f, compiled as a whole, and both. Gives it."""
    wanted = values(tj.grad(f, argnums=argnums)(*args))
    fast = tj.function(f)
    for way in (
        tj.grad(fast, argnums=argnums),
        tj.function(tj.grad(f, argnums=argnums)),
        tj.function(tj.grad(fast, argnums=argnums)),
    ):
        for a, b in zip(values(way(*args)), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)
    return wanted


def random(*shape: int) -> Tensor:
    return tj.asarray(np.random.default_rng(sum(shape)).standard_normal(shape))


def choose(x: Any, w: Any) -> Any:
    return tj.cond(x.sum() > 0, lambda: (x * w).sum(), lambda: (x * x).sum() * 2.0)


def powers(x: Any, n: Any) -> Any:
    """A trip count that depends on data, and a captured value."""
    return tj.while_loop(lambda i, c: i < n, lambda i, c: (i + 1, tj.sin(c * x) + 0.9 * c), (0, x * 0 + 0.5))[1].sum()


def recurrent(w: Any, xs: Any) -> Any:
    h, ys = tj.scan(lambda h, x: (tj.tanh(h @ w + x), (h * x, x.sum())), tj.zeros(3, dtype="float64"), xs)
    return (h * h).sum() + (ys[0] * 0.5).sum() + (ys[1] * h.sum()).sum()


# -- first order -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_branches(sign: float) -> None:
    alike(choose, tj.ones(3, dtype="float64") * sign, random(3), argnums=(0, 1))


def test_switch() -> None:
    def f(x: Any, i: Any) -> Any:
        return tj.switch(i, [lambda: x.sum(), lambda: (x * x).sum(), lambda: tj.exp(x).sum() + 0 * x[0]])

    for i in range(3):
        alike(f, random(3), tj.asarray(i))


def test_a_doubling_loop() -> None:
    """Doubles until past a limit: the derivative counts the iterations, and the use of a value from before."""

    def f(v: Any) -> Any:
        s = v * 2
        return tj.while_loop(lambda v: v < 100.0, lambda v: v * 2.0, v) + s

    assert alike(f, tj.asarray(3.0))[0] == 66.0
    assert alike(f, tj.asarray(300.0))[0] == 3.0


@pytest.mark.parametrize("n", [0, 1, 2, 30])
def test_an_unknown_number_of_iterations(n: int) -> None:
    alike(powers, random(4), tj.asarray(n))


@pytest.mark.parametrize("n", [15, 16, 17, 18, 40, 300])
def test_states_are_computed_again_where_places_run_out(n: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(RULES, "PLACES", 16)
    alike(powers, random(4) * 0.3, tj.asarray(n))


def test_newton_runs_until_it_has_converged() -> None:
    def root(a: Any) -> Any:
        x, _ = tj.while_loop(
            lambda x, e: e > 1e-14, lambda x, e: ((x + a / x) / 2, abs((x + a / x) / 2 - x)), (a, a * 0 + 1)
        )
        return x

    np.testing.assert_allclose(alike(root, tj.asarray(np.float64(7.0)))[0], 0.5 / np.sqrt(7.0), rtol=1e-9)


@pytest.mark.parametrize("rows", [0, 1, 7])
@pytest.mark.parametrize("reverse", [False, True])
def test_scan(rows: int, reverse: bool) -> None:
    def f(w: Any, xs: Any) -> Any:
        h, ys = tj.scan(
            lambda h, x: (tj.tanh(h @ w + x), (h * x, x.sum())), tj.zeros(3, dtype="float64"), xs, reverse=reverse
        )
        return (h * h).sum() + (ys[0] * 0.5).sum() + (ys[1] * h.sum()).sum()

    alike(f, random(3, 3), random(rows, 3), argnums=(0, 1))


def test_fori_loop_with_item_updates() -> None:
    def f(x: Any) -> Any:
        def body(i: Any, t: Any) -> Any:
            t[i] = t[i - 1] * x[i] + 1.0
            return t

        return tj.fori_loop(1, 6, body, x * 2).sum()

    alike(f, random(6))


def test_nested_loops_and_branches() -> None:
    def f(x: Any, n: Any) -> Any:
        def row(c: Any, r: Any) -> Any:
            inner = tj.while_loop(
                lambda k, v: k < n, lambda k, v: (k + 1, tj.cond(v > 0, lambda: v * r, lambda: v - r * r)), (0, c)
            )[1]
            return inner, inner * r

        c, ys = tj.scan(row, x.sum() * 0.1, x)
        return c + ys.sum()

    alike(f, random(5), tj.asarray(3))


def test_variables_in_loops() -> None:
    v = tj.Variable(np.float64(0.7))

    def loss(x: Any) -> Any:
        return tj.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, tj.sin(y * v) + y), (0, x))[1]

    def gradient(f: Callable[..., Any]) -> Any:
        with tj.GradientTape() as tape:
            y = f(tj.asarray(np.float64(0.3)))
        return tape.gradient(y, v).item()

    assert gradient(loss) == pytest.approx(gradient(tj.function(loss)), rel=1e-12)


def test_what_no_gradient_reaches_gets_none() -> None:
    def f(x: Any) -> Any:
        i = tj.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2.0), (0, x))[0]
        return x.sum() + tj.cast(i, "float64")

    assert alike(f, random(3))[0].tolist() == [1.0] * 3


# -- forward mode, and higher orders -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("f", "args"),
    [
        (choose, (random(3), random(3))),
        (recurrent, (random(3, 3), random(4, 3))),
        (lambda x: powers(x, tj.asarray(5)), (random(4),)),
    ],
)
def test_forward_mode(f: Any, args: Any) -> None:
    wanted = values(tj.jvp(f, args, args))
    fast = tj.function(f)
    for way in (lambda: tj.jvp(fast, args, args), lambda: tj.function(lambda *xs: tj.jvp(f, xs, xs))(*args)):
        for a, b in zip(values(way()), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)


@pytest.mark.parametrize(
    ("f", "args"),
    [
        (choose, (-tj.ones(3, dtype="float64"), random(3))),
        (recurrent, (random(3, 3), random(3, 3))),
        (lambda x: powers(x, tj.asarray(3)), (random(2),)),
    ],
)
def test_second_derivatives(f: Any, args: Any) -> None:
    def g(*a: Any) -> Any:
        return (tj.grad(f)(*a) ** 2).sum()

    wanted = values(tj.grad(g)(*args))
    def inner(*a: Any) -> Any:
        return (tj.grad(tj.function(f))(*a) ** 2).sum()

    for way in (tj.function(tj.grad(g)), tj.grad(tj.function(g)), tj.grad(inner)):
        for a, b in zip(values(way(*args)), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def test_against_finite_differences() -> None:
    tj.check_grads(tj.function(recurrent), (random(3, 3), random(4, 3)), order=1)


# -- what is done for all rows at once ---------------------------------------------------------------------------------
def test_products_of_recurrent_layers_leave_the_loop() -> None:
    """The input's product goes before the loop, those for the gradients of weights and inputs after it."""
    t, b, h = 5, 3, 4

    def loss(x: Any, wx: Any, wh: Any, bias: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            s, m = c
            z = row @ wx + s @ wh + bias
            m = tj.sigmoid(z[:, :h]) * m + tj.tanh(z[:, h:])
            return (tj.tanh(m) * s + m, m), m

        start = tj.zeros((b, h), dtype="float64"), tj.ones((b, h), dtype="float64")
        (s, m), ys = tj.scan(step, start, x)
        return (s * m).sum() + (ys * ys).sum()

    args = random(t, b, 3), random(3, 2 * h), random(h, 2 * h), random(2 * h)
    alike(loss, *args, argnums=(0, 1, 2, 3), rtol=1e-8)
    graph = tj.function(tj.grad(loss, argnums=(0, 1, 2, 3))).lower(*args).graph
    bodies = [n.attrs["body"] for n in graph.nodes if n.op.name == "scan"]
    assert len(bodies) == 2 and [count(body, "matmul") for body in bodies] == [1, 1]
    assert count(graph, "matmul") == 4 and all(n.attrs["carries"] == 2 for n in graph.nodes if n.op.name == "scan")


@pytest.mark.parametrize("way", ["rows", "blocks"])
def test_checkpoints_bound_what_is_kept(way: str) -> None:
    def step(c: Any, row: Any) -> Any:
        c = tj.sin(tj.tanh(c * 0.9 + row)) * tj.exp(-c)
        return c, c.sum()

    def loss(x: Any, rows: Any, checkpoint: bool = True) -> Any:
        if not checkpoint:
            c, ys = tj.scan(step, x, rows)
        elif way == "rows":
            c, ys = tj.scan(tj.checkpoint(step), x, rows)
        else:
            block = tj.checkpoint(lambda c, block: tj.scan(step, c, block))
            c, ys = tj.scan(block, x, rows.reshape(5, 4, 3))
        return (c * c).sum() + ys.sum()

    x, rows = random(3), random(20, 3)
    wanted = values(tj.grad(lambda *a: loss(*a, checkpoint=False), argnums=(0, 1))(x, rows))
    for a, b in zip(alike(loss, x, rows, argnums=(0, 1)), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)
    graph = tj.function(tj.grad(loss)).lower(x, rows).graph
    kept = [t.shape for n in graph.nodes if n.op.name == "scan" for t in n.type if t.ndim > 1]
    assert kept == [(20, 3) if way == "rows" else (5, 3)]


def test_a_carry_that_is_stacked_is_read_from_the_stack() -> None:
    def f(x: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            a, b = c
            a, b = a[::-1] * 0.5 + row, b[::-1] + a
            return (a, b), (a, b, a)

        return tj.scan(step, (x[0], x[1]), x)

    x = random(9, 200)
    for a, b in zip(values(tj.function(f)(x)), values(f(x)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
