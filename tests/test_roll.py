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


def test_what_is_read_of_every_step_stays() -> None:
    def f(x: Any) -> Any:
        kept = []
        for _ in range(100):
            x = tj.cos(x) + x[::-1] * 0.1
            kept.append(x.sum())
        return tj.stack(kept)

    assert count(rolled(f, random(5)), "scan") == 0


def test_steps_with_numbers_that_change_stay() -> None:
    def f(x: Any) -> Any:
        for k in range(150):
            x = x * (1 + 0.001 * k) - x[::-1] * 0.1
        return x

    assert count(rolled(f, random(5)), "scan") == 0


def test_gradients_of_repeated_steps() -> None:
    def loss(x: Any, w: Any) -> Any:
        for _ in range(60):
            x = tj.tanh(x @ w) + 0.1 * x
        return x.sum()

    x, w = random(3, 4), random(4, 4)
    for a, b in zip(tj.function(tj.grad(loss, argnums=(0, 1)))(x, w), tj.grad(loss, argnums=(0, 1))(x, w), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-8)


def test_two_thousand_steps_compile_quickly() -> None:
    def f(x: Any) -> Any:
        for _ in range(2000):
            x = tj.sin(x) * 0.5 + x
        return x

    start = time.perf_counter()
    tj.function(f)(tj.ones(100))
    assert time.perf_counter() - start < 4.0  # a second on a quiet machine; unrolled, it takes half a minute
