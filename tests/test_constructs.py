"""Every construct of Python on tensor values, each in one small program: eager and compiled give the same values,
printed text, exceptions and gradients.

PYTEST_DONT_REWRITE: the asserts in here are under test themselves.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from alike import agree, run, t

import tracejit as tj

PROGRAMS: dict[str, Callable[[Any], Any]] = {}
CONVERTED = ("conversions",)  # what leaves for Python is a constant to an eager gradient; compiled, it never leaves


def program(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of a vector of three. It returns something whose first leaf is a float that depends on it."""
    PROGRAMS[f.__name__] = f
    return f


@program
def if_elif_else(x):
    if x[0] > 1:
        y = x * x
    elif x[0] < -1:
        y = -x * 3
    else:
        y = tj.sin(x)
    print("y", y)
    return y.sum()


@program
def early_return(x):
    if x.sum() > 2:
        print("large")
        return x.sum() * 2
    x = x * 3
    if x[1] > 0:
        return (x * x).sum()
    return x[0]


@program
def while_loop(x):
    s = x.sum()
    n = 0
    while s < 10 and n < 20:
        s = s * 1.5 + 1
        n += 1
        print(n, f"{n}")
    return s, n


@program
def while_else_break(x):
    s = x[0] * 1
    k = 0
    while k < 6:
        s = s * 1.1 + x[1]
        if s > 5:
            break
        k += 1
        if x[2] > s:
            continue
        s = s + 0.5
    else:
        s = s - 1
        print("ran out")
    return s, k


@program
def for_rows(x):
    total = x[0] * 0
    for v in x:
        if v < 0:
            continue
        total = total + v * v
    for row in tj.outer(x, tj.arange(20.0)).T:
        total = total * 0.9 + row.sum()
        if total > 3:
            print("over", total.astype("int32"))
    return total


@program
def for_range(x):
    s = x.sum()
    n = tj.abs(x[0] * 4).astype("int32")
    for i in range(n):
        s = s + tj.sin(s + i)
        print("i", i)
    for i in range(3):
        s = s * 1.1 + i * x[1]
    return s


@program
def return_in_loop(x):
    for i in range(40):
        if x.sum() * i > 7:
            return x.sum() * i
        x = x * 1.01
    return x[0] - 1


@program
def and_or_not(x):
    if (x[0] > 0 and x[1] > 0) or not x[2] > 0:
        return x.prod() + x[0]
    return x[2] * (x[0] or x[1])


@program
def conditional_expression(x):
    y = x * 2 if x.sum() > 0 else -x
    return (y if y[0] > 1 else y * y).sum()


@program
def chained_comparison(x):
    if -2 < x[0] < 2 <= x[1] + 2 < 10:
        return x[0] * x[1]
    return x[2] * 3


@program
def membership(x):
    k = x[0].astype("int32")
    return x[1] * 2 if k in (0, 3) else x[1] * x[1]


@program
def asserts(x):
    assert x[0] < 2.5, f"too large: {x[0]}"
    assert x.ndim == 1
    return x[0] ** 3


@program
def raises(x):
    if x[0] > 2.5:
        raise ValueError(f"too large: {x[0]:.1f}")
    return tj.exp(x[0])


@program
def comprehensions(x):
    squares = [v * v if v > 0 else -v for v in x]
    table = {k: v * k for k, v in enumerate(x)}
    return sum(squares) + sum(table.values()) + max(v for v in x)


def helper(v, scale=2.0):
    if v > 0:
        return v * scale
    return tj.exp(v)


@program
def called_functions(x):
    return helper(x[0]) + helper(x[1], scale=x[2])


class Model:
    def __init__(self):
        self.slope = 0.25

    def __call__(self, v):
        if v < 0:
            return self.leak(v)
        return v

    def leak(self, v):
        return v * self.slope if v > -1 else v * 0

    @property
    def twice(self):
        return self.slope * 2

    @staticmethod
    def pick(a, b):
        return a if a > b else b


MODEL = Model()


@program
def methods(x):
    return MODEL(x[0]) + MODEL(x[1]) * MODEL.twice + Model.pick(x[1], x[2])


@program
def lambdas_and_closures(x):
    limit = x[0]
    clip = lambda v: v if v < limit else limit * 0.5

    def inner(v):
        nonlocal limit
        limit = limit + v if v > 0 else limit
        return clip(v)

    return inner(x[1]) + inner(x[2]) + limit


def logged(f):
    @functools.wraps(f)
    def wrapper(v):
        if v > 1:
            print("large", v)
        return f(v)

    return wrapper


@logged
def decorated(v):
    return v * v if v > 0 else v


@program
def decorators(x):
    return decorated(x[0]) + decorated(x[1])


@program
def recursion(x):
    def power(v, n):
        return v if n == 1 else v * power(v, n - 1)

    return power(x[0], 3) if x[1] > 0 else power(x[2], 2)


@program
def try_finally_with(x):
    log = []
    try:
        with contextlib.nullcontext(2.0) as k:
            if x[0] > 0:
                return x[0] * k
            x = x - k
    finally:
        log.append("done")
    return (x * x).sum() * len(log)


@program
def try_except(x):
    try:
        scale = {"a": 2.0}["b"]
    except KeyError as error:
        scale = float(len(error.args)) + 1
    return x[0] * scale if x[1] > 0 else x[2]


@program
def match(x):
    match x.shape, "mode":
        case (3,), "mode":
            if x[0] > 0:
                return x[0] * x[1]
            y = x[2]
        case _:
            y = x[0]
    return y * y


@program
def augmented_and_items(x):
    y = x * 1.0
    if y[0] > 0:
        y[1] += y[0] * y[2]
        y *= 2
    else:
        y[0], y[2] = y[2], y[0]
    d = {"y": y[0]}
    d["y"] += y[1] if y[1] > 0 else y[2]
    return d["y"]


@program
def attributes(x):
    box = Model()
    if x[0] > 0:
        box.slope = x[0] * 2
    while box.slope < 6:
        box.slope = box.slope * 1.5 + 0.1
    return x.sum() * box.slope


@program
def conversions(x):
    k = int(x[0])
    return x[1] * k + x[2] * float(k > 0) + x[0].item() * bool(x[1])


@program
def walrus(x):
    if (y := x.sum()) > 1:
        return y * y
    while (z := y + 1) < 3:
        y = abs(z) * 1.3 + 1
    return y + z


@program
def unpacking(x):
    a, *rest = x
    (b, c) = rest
    if a > b:
        a, b = b, a
    return a * 2 + b * c


@program
def delete_and_globals(x):
    y = x * 2
    if x[0] > 0:
        z = y[0]
        y = y + z
        del z
    return y.sum() * CONSTANT


CONSTANT = 3.0

INPUTS = [(0.5, 1.5, -0.25), (-2.0, 0.5, 1.0), (2.0, -1.0, 0.5), (3.0, 0.25, 0.125), (-0.5, -1.5, -3.0)]


def first(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: found[0] if isinstance(found := f(x), tuple) else found


@pytest.mark.parametrize("name", PROGRAMS)
def test_construct(name: str) -> None:
    f = PROGRAMS[name]
    compiled, whole = tj.function(f), tj.function(tj.grad(first(f)))
    forward = tj.function(lambda x: tj.jvp(first(f), (x,), (tj.ones(3),)))
    returned = 0
    for values in INPUTS:
        if not agree(f, compiled, (t(*values),), (t(*values),)):
            continue
        returned += 1
        if name in CONVERTED:
            continue
        wanted, text, _ = run(tj.grad(first(f)), t(*values))
        for way in (tj.grad(first(compiled)), whole):
            found, printed, error = run(way, t(*values))
            assert error is None and printed == text
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=2e-5, atol=1e-6)
        if returned == 1:
            (_, found), printed, error = run(forward, t(*values))
            assert printed == text and error is None, error
            np.testing.assert_allclose(float(found), wanted.numpy().sum(), rtol=1e-4, atol=1e-5)
    assert returned >= 3 and compiled.trace_count == 1
