"""Python loops of identical steps become loops again: the same results, compiled in the time of a few steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.ir import Graph, count
from tracejit.tensor import Tensor


def rolled(f: Callable[..., Any], *args: Tensor, rtol: float = 1e-9) -> Graph:
    """f compiled gives what it gives eagerly. Gives its graph after all passes."""
    compiled = tj.function(f)
    wanted, found = f(*args), compiled(*args)
    pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
    for a, b in pairs:
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=rtol, atol=rtol)
    return compiled.lower(*args).graph


def random(*shape: int) -> Tensor:
    return tj.asarray(np.random.default_rng(0).standard_normal(shape) * 0.1)


def test_values_go_from_step_to_step_and_others_stay() -> None:
    def f(x: Any, w: Any) -> Any:
        y, c = x * 0, x.sum()
        for _ in range(100):
            x = tj.tanh(x @ w) + c
            y = y + x * 0.5
        return x, y * 2, x.mean()

    graph = rolled(f, random(4, 4), random(4, 4))
    assert count(graph, "scan") == 1 and count(graph, "matmul") <= 2


def test_elementwise_steps_run_in_registers() -> None:
    def f(x: Any) -> Any:
        for _ in range(120):
            x = tj.sin(x) * 1.1 - x * 0.05
        return x

    graph = rolled(f, random(30, 3))
    assert count(graph, "lane_loop") == 1 and count(graph, "sin") <= 2


@pytest.mark.parametrize("n", [3, 7, 8, 9, 40])
def test_a_loop_in_a_loop(n: int) -> None:
    def f(x: Any) -> Any:
        for _ in range(n):
            for _ in range(12):
                x = tj.sin(x) * 1.1 - x[::-1] * 0.1
            x = x + 1
        return x, x * 2

    rolled(f, random(5), rtol=1e-8)


def test_what_is_read_of_every_step_is_stacked() -> None:
    def f(x: Any) -> Any:
        kept = []
        for _ in range(100):
            x = tj.cos(x) + x[::-1] * 0.1
            kept.append(x.sum())
        return tj.stack(kept), kept[3] + kept[50]

    graph = rolled(f, random(5))
    assert count(graph, "scan") == 1 and count(graph, "cos") <= 2


def test_rows_and_numbers_go_along() -> None:
    """A recurrent layer written as a Python loop, forwards and backwards, along either axis, with a number per step."""

    def f(xs: Any, w: Any) -> Any:
        h = xs[0, 0] * 0
        for k in range(120):
            h = tj.tanh(h @ w + xs[k, 1] * (1 + 0.01 * k))
        for k in reversed(range(120)):
            h = tj.tanh(h @ w + tj.sin(xs[k, 0]) - 0.5 * k)
        return h

    def along_the_second(xs: Any, w: Any) -> Any:
        h = xs[:, 0] * 0
        for k in range(150):
            h = tj.tanh(h @ w + xs[:, k] * 2.0)
        return h

    xs, w = random(120, 2, 3), random(3, 3)
    graph = rolled(f, xs, w)
    assert count(graph, "scan") == 2 and count(graph, "tanh") <= 4
    graph = rolled(along_the_second, random(4, 150, 3), w)
    assert count(graph, "scan") == 1 and count(graph, "tanh") <= 2

    def by_rows(xs: Any, w: Any) -> Any:
        h, out = xs[0] * 0, []
        for k in range(120):
            h = tj.tanh(h @ w + xs[k] * (1 + 0.01 * k))
            out.append(h)
        for k in reversed(range(120)):
            h = tj.tanh(h @ w + out[k] - 0.5 * k)
        return h, tj.stack(out)

    graph = rolled(by_rows, random(120, 3), w)
    assert count(graph, "scan") == 2 and count(graph, "tanh") <= 4


def test_independent_steps_become_a_map() -> None:
    def f(x: Any) -> Any:
        return tj.stack([tj.sin(x[k]) * tj.exp(-x[k]) for k in range(100)])

    rolled(f, random(100))


def test_rows_that_jump_stay() -> None:
    def f(x: Any) -> Any:
        y = x[0]
        for k in range(30):
            y = tj.sin(y + x[(7 * k) % 50])
        return y

    rolled(f, random(50))


@pytest.mark.parametrize("n", [60, 61, 200])
def test_gradients_of_repeated_steps(n: int) -> None:
    def loss(x: Any, w: Any) -> Any:
        for k in range(n):
            x = tj.tanh(x @ w) + 0.1 * x - 0.001 * k
        return x.sum()

    x, w = random(3, 4), random(4, 4)
    compiled = tj.function(tj.grad(loss, argnums=(0, 1)))
    for a, b in zip(compiled(x, w), tj.grad(loss, argnums=(0, 1))(x, w), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-8)
    graph = compiled.lower(x, w).graph
    assert count(graph, "scan") == 2 and count(graph, "tanh") <= 4  # forward and backward


def test_second_derivatives_of_repeated_steps() -> None:
    def f(x: Any) -> Any:
        for _ in range(70):
            x = tj.sin(x) * 0.9 + 0.05 * x[::-1]
        return x.sum()

    def g(x: Any) -> Any:
        return (tj.grad(f)(x) ** 2).sum()

    x = random(4)
    compiled = tj.function(tj.grad(g))
    np.testing.assert_allclose(compiled(x).numpy(), tj.grad(g)(x).numpy(), rtol=1e-8)
    assert count(compiled.lower(x).graph, "scan") >= 2


def test_two_thousand_steps_compile_quickly() -> None:
    def f(x: Any) -> Any:
        for _ in range(2000):
            x = tj.sin(x) * 0.5 + x
        return x.sum()

    def branching(x: Any) -> Any:
        for _ in range(2000):
            if x.sum() > 3:
                x = tj.sin(x) * 0.5 + x
            else:
                x = x * 1.01
        return x.sum()

    # 0.8, 1.5, 1 and 3 on a quiet machine; unrolled, very long
    for run, seconds in ((f, 4.0), (tj.grad(f), 8.0), (branching, 6.0), (tj.grad(branching), 12.0)):
        start = time.process_time()
        tj.function(run)(tj.ones(100))
        assert time.process_time() - start < seconds


@pytest.mark.parametrize("n", [60, 301])
def test_steps_with_branches(n: int) -> None:
    def f(h: Any, w: Any) -> Any:
        for k in range(n):
            if h.sum() > 3:
                h = tj.sin(h @ w) + 0.1
            elif h[0, 0] > 0.5:
                h, w = h * 0.7, w * 0.999
            else:
                h = h * 1.01 + 0.001 * k
        return h

    h, w = tj.asarray(np.linspace(0, 1, 8).reshape(2, 4)), tj.asarray(np.eye(4) * 1.1)
    graph = rolled(f, h, w)
    assert count(graph, "scan") == 1 and count(graph, "cond") <= 2
    graph = rolled(tj.grad(lambda h, w: f(h, w).sum(), argnums=(0, 1)), h, w)
    assert count(graph, "scan") == 2
