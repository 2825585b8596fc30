"""Small programs as people write them, with control flow on tensor values.

PYTEST_DONT_REWRITE: they are read as source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from alike import agree, same, t

import tracejit as tj


def newton(x):
    g = x / 2
    while abs(g * g - x) > 1e-3:
        g = (g + x / g) / 2
    return g


def gcd(a, b):
    while b:
        a, b = b, a % b
    return a


def is_prime(n):
    if n < 2:
        return False
    i = 2
    while i * i <= n:
        if n % i == 0:
            return False
        i += 1
    return True


def bisect(v, x):
    low, high = 0, len(v)
    while low < high:
        middle = (low + high) // 2
        if v[middle] < x:
            low = middle + 1
        else:
            high = middle
    return low


def mandelbrot(c):
    z, n = c, 0
    while abs(z) < 2 and n < 50:
        z = z * z + c
        n += 1
    return n


def best_row(m):
    best = None
    for row in m:
        if best is None or row.sum() > best.sum():
            best = row
    return best


def last_of_loop(m):
    total = 0.0
    for row in m:
        d = row * 2
        total = total + d.sum()
    return total, d


def in_dict(x):
    state = {"n": 0, "s": x}
    while state["s"] < 50:
        state["s"] = state["s"] * 2
        state["n"] += 1
    return state


class Accumulator:
    def __init__(self) -> None:
        self.items: list[Any] = []
        self.total = tj.constant(0.0)
        self.n = 0

    def add(self, v):
        self.items.append(v)
        self.total = self.total + v
        if v > 1:
            self.total = self.total * 2
        while self.total > 100:
            self.total = self.total / 3
            self.n += 1


def with_object(x):
    a = Accumulator()
    for v in x:
        a.add(v)
    return a.total, a.items, a.n


def nested_loops(x):
    for _ in range(3):
        for j in range(3):
            if x > 20:
                break
            if x < -20:
                return x * 100
            x = x * 2 + j
        else:
            x = x + 100
            continue
        x = x - 1
    return x


def return_through_finally(x):
    for i in range(3):
        try:
            if x > 5:
                return x, i
        finally:
            x = x + 1
    return x, -1


def tape_inside(x):
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = x * x if x > 0 else -x
        while y < 10:
            y = y * x + 1
    return tape.gradient(y, x)


def transformations(x):
    slope = tj.grad(lambda v: (v * v if v.sum() > 2 else v * 3).sum())(x)
    mapped = tj.map(lambda v: v * 2 if v > 1 else v, x)
    carry, rows = tj.scan(lambda c, v: (c + v if v > 1 else c, c), 0.0, x)
    return slope, mapped, carry, rows


def numpy_functions(x):
    y = np.sin(x)
    if np.sum(y) > 0:
        return np.maximum(y, 0.5)
    return np.abs(y)


def number_arguments(x, n, rate):
    for k in range(n):
        x = x * rate if x > k else x + rate
    return x


PROGRAMS: list[tuple[Callable[..., Any], list[Any]]] = [
    (newton, [t(2.0), t(9.0)]),
    (gcd, [(tj.constant(48), tj.constant(18))]),
    (is_prime, [tj.constant(n) for n in (1, 2, 9, 97)]),
    (bisect, [(tj.arange(20), tj.constant(n)) for n in (7, 70)]),
    (mandelbrot, [tj.constant(0.3 + 0.5j), tj.constant(2 + 2j)]),
    (best_row, [tj.constant(np.sin(np.arange(3.0 * n).reshape(n, 3))) for n in (4, 30)]),
    (last_of_loop, [tj.constant(np.arange(3.0 * n).reshape(n, 3)) for n in (4, 30)]),
    (in_dict, [t(1.0), t(70.0)]),
    (with_object, [t(1.0, 2.0, 300.0)]),
    (nested_loops, [t(1.0), t(-30.0), t(19.0), t(-3.0)]),
    (return_through_finally, [t(1.0), t(5.5), t(4.5)]),
    (tape_inside, [t(2.0), t(11.0)]),
    (transformations, [t(0.0, 1.0, 2.0), t(0.0, 1.0, 0.5)]),
    (numpy_functions, [t(1.0, 2.0), t(-1.0, -2.0)]),
    (number_arguments, [(t(1.0), 3, 0.5), (t(1.0), 3, 0.25), (t(1.0), 4, 0.5)]),
]


@pytest.mark.parametrize("program, calls", PROGRAMS, ids=lambda x: getattr(x, "__name__", ""))
def test_programs(program: Callable[..., Any], calls: list[Any]) -> None:
    same(program, *calls)


def test_sorting_in_place() -> None:
    def bubble(v):
        for i in range(len(v)):
            for j in range(len(v) - 1 - i):
                if v[j] > v[j + 1]:
                    v[j], v[j + 1] = v[j + 1], v[j]
        return v

    before, again = t(3.0, 1.0, 2.0, 0.0), t(3.0, 1.0, 2.0, 0.0)
    assert agree(bubble, tj.function(bubble), (before,), (again,))
    assert before.tolist() == again.tolist() == [0, 1, 2, 3]


def test_random_draws_follow_the_branch_taken() -> None:
    def f(x):
        n = 0
        if x > 2:
            return x + tj.random.uniform((2,)), n
        while x < 2:
            x = x + tj.random.uniform(())
            n += 1
        return x + tj.random.normal((2,)), n

    compiled = tj.function(f)
    for value in (1.0, 3.0, 0.0):
        tj.random.seed(3)
        expected = [f(t(value)), f(t(value))]
        tj.random.seed(3)
        found = [compiled(t(value)), compiled(t(value))]
        for (x, n), (y, m) in zip(expected, found, strict=True):
            np.testing.assert_allclose(y.numpy(), x.numpy(), rtol=1e-6)
            assert int(m) == n


def test_one_trace_serves_every_branch() -> None:
    compiled = tj.function(nested_loops)
    for value in (1.0, -30.0, 19.0, -3.0):
        compiled(t(value))
    assert compiled.trace_count == 1


def test_a_million_turns() -> None:
    @tj.function
    def f(x, n):
        for i in range(n):
            if x < 0:
                break
            x = x * 0.5 + i
        return x

    assert float(f(t(1.0), tj.constant(1_000_000))) == 1_999_996.0
