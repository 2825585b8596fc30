"""What users of tracing compilers ask for most, each as a kind: control flow on values, values pulled out, lists in
loops, asserts, Python effects, gradients of loops, where a nan is from, what is in a kernel.

PYTEST_DONT_REWRITE: the asserts in here are under test themselves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from alike import run, same, t

import tracejit as tj


# -- if and while on a tensor's value ----------------------------------------------------------------------------------
def sign(a):
    if a.sum() > 0:
        return a
    return -2 * a


def halve(a):
    while a.max() > 1:
        a = a / 2
    return a


class Model:
    def __init__(self):
        self.inner = sign

    def forward(self, a):
        return halve(self.inner(a)) if a.ndim else a

    __call__ = forward


@pytest.mark.parametrize("f", [sign, halve, Model(), Model().forward, lambda a: sign(a) + halve(a),
                               lambda a: tj.stack([sign(r) for r in a])])  # fmt: skip
def test_branches_wherever_they_stand(f: Callable[..., Any]) -> None:
    same(f, t(-1.0, -2.0), t(1.0, 2.0), t(30.0, -2.0))


@pytest.mark.parametrize("f", [
    lambda a: tj.zeros(3) if bool(np.asarray(a).sum()) else a,
    lambda a: list(range(a.sum())),
    lambda a: a.reshape(a.sum()),
    lambda a: sorted(a),
    lambda a: next(v for v in a if v > 0),
])  # fmt: skip
def test_what_cannot_be_names_argument_line_and_rewrite(f: Callable[..., Any]) -> None:
    line = f"test_asked_for.py:{f.__code__.co_firstlineno}"
    with pytest.raises(tj.TracerError) as found:
        tj.function(f)(tj.asarray([2, 1]))
    text = str(found.value)
    assert line in text and any(word in text for word in ("tj", "pass the number", "use a plain `for`"))
    assert "argument 'a' (i32[2])" in text or "comprehension" in text or "range whose length" in text


# -- values pulled out in the middle -----------------------------------------------------------------------------------
@pytest.mark.parametrize("pull", [float, int, lambda v: v.item(), bool, complex, abs, lambda v: v.numpy() + 1])
def test_a_number_pulled_out_stays_in_the_program(pull: Callable[..., Any]) -> None:
    def f(a):
        k = pull(a.sum())
        for v in a:
            k = k + pull(v)
        return a * k + 1

    assert same(f, t(1.5, 2.0), t(-3.0, 0.25)).trace_count == 1


def test_numbers_pulled_out_decide_and_count() -> None:
    def f(a):
        n = int(a.max())
        total = 0.0
        for i in range(n):
            total += float(a[0]) * i
        return total if float(a.sum()) > 2 else -total, n

    compiled = same(f, t(1.0, 5.0), t(-30.0, 4.0), t(0.0, 0.0))
    assert compiled.trace_count == 1 and "split" not in str(tj.explain(compiled))


# -- lists that grow in a loop -----------------------------------------------------------------------------------------
def test_lists_grow_where_the_number_of_turns_is_known() -> None:
    def f(v):
        out, pairs = [], {"odd": [], "even": []}
        for k, x in enumerate(v):
            out.append(x * 2)
            pairs["odd" if k % 2 else "even"].append(x)
        out += [v.sum() for _ in range(2)]
        return tj.stack(out), {k: tj.stack(p) for k, p in pairs.items()}

    same(f, t(0.5, 1.5), tj.arange(4.0), tj.arange(40.0))


def test_elsewhere_the_list_and_the_loop_are_named() -> None:
    @tj.function
    def f(n):
        collected = []
        for i in range(n):
            collected.append(i)
        return collected

    @tj.function
    def g(n):
        collected = []
        while n > 0:
            collected.extend([n, n])
            n = n - 1
        return collected

    for h in (f, g):
        with pytest.raises(tj.TracerError, match=r"'collected' .* the loop at .*test_asked_for.py:\d+ .*tj.scan"):
            h(tj.constant(3))


# -- assert ------------------------------------------------------------------------------------------------------------
def checked(v):
    assert (v > 0).all(), f"need positive, got {v}"
    return tj.log(v)


def unused(v):
    y = v * 2
    assert y.sum() < 100  # nothing else reads y
    return 3


def late(v):
    assert v.shape == (2,), "two"
    for x in v:
        if x > 5:
            assert x != 7, "seven"
    return v.reshape(2, 1)


@pytest.mark.parametrize("f", [checked, unused, late, lambda v: checked(v) + late(v)])
def test_asserts_are_never_removed(f: Callable[..., Any]) -> None:
    compiled = same(f, t(1.0, 2.0), t(-1.0, 2.0), t(60.0, 7.0), t(1.0, 7.0))
    for values in ((-1.0, 2.0), (60.0, 7.0), (1.0, 7.0)):
        assert type(run(tj.grad(lambda v: v.sum() + 0 * tj.sum(compiled(v))), t(*values))[2]) is type(
            run(f, t(*values))[2])  # fmt: skip


# -- Python effects ----------------------------------------------------------------------------------------------------
def test_writes_at_trace_time_are_told_once_with_their_line() -> None:
    class Counter:
        n = 0

    @tj.function
    def f(a, c=Counter):
        c.n += 1
        print("hi")
        return a

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        texts = [run(f, t(1.0, 2.0))[1] for _ in range(3)]
    assert texts == ["hi\n"] * 3 and Counter.n == 1
    assert len(found) == 1
    assert f"f writes c.n at {__file__}:{f.python_function.__code__.co_firstlineno + 2}" in str(found[0].message)


# -- gradients of loops that data decide -------------------------------------------------------------------------------
def doubling(v):
    s = v * 2
    while v < 100.0:
        v = v * 2.0
    return v + s


def newton(v):
    x = v
    while abs(x * x - v) > 1e-4 * v:
        x = (x + v / x) / 2
    return x


def nested(v):
    total = v * 0
    while total < 20:
        x = v
        for _ in range(3):
            while x < 4:
                x = abs(x) * 1.5 + 1
            x = x - v
        total = total + x * x + 1
    return total


@pytest.mark.parametrize("f", [doubling, newton, nested])
@pytest.mark.parametrize("x", [3.0, 0.7, 150.0])
def test_gradients_of_loops_are_those_of_python(f: Callable[..., Any], x: float) -> None:
    wanted = float(tj.grad(f)(t(x)))
    compiled = tj.function(f)
    for way in (tj.grad(compiled), tj.function(tj.grad(f))):
        np.testing.assert_allclose(float(way(t(x))), wanted, rtol=1e-5)
    np.testing.assert_allclose(float(tj.jvp(compiled, (t(x),), (t(1.0),))[1]), wanted, rtol=1e-5)
    if f is doubling and x == 3.0:
        assert wanted == 66.0


# -- where a nan is from, and what a kernel does -----------------------------------------------------------------------
def test_a_nan_is_traced_to_its_op() -> None:
    f = tj.function(lambda a: tj.sqrt(tj.cos(a) - 3) + a)
    with tj.debugging.debug_nans(), pytest.raises(FloatingPointError, match=r"sqrt gave nan at .*min -2.46"):
        f(tj.ones(3))
    assert np.isnan(f(tj.ones(3)).numpy()).all()


def test_a_kernel_says_what_it_does() -> None:
    @tj.function
    def f(a):
        b = tj.exp(a) * 2
        return (b + 1).sum()

    f(tj.ones(1000))
    f.profile()
    f(tj.ones(1000))
    (k,) = f.kernels()
    assert [op for op in k.ops if op in ("exp", "multiply", "add", "sum")] == ["exp", "multiply", "add", "sum"]
    lines = [f"{__file__}:{f.python_function.__code__.co_firstlineno + k}" for k in (2, 3)]
    assert sorted(k.source_lines) == lines
    assert k.bytes >= 4000 and k.calls == 1 and k.seconds > 0
    assert k.name in str(tj.explain(f)) and "exp" in k.name and k.code
