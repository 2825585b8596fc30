"""`tj.debugging`, eager modes, tracebacks, breakpoints."""

from __future__ import annotations

import pdb
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.errors import is_internal


def line_of(f: Any, text: str) -> str:
    """`file:line` of the first line of a function that contains a text."""
    code = getattr(f, "python_function", f).__code__
    with open(code.co_filename) as source:
        for k, line in enumerate(source.readlines()[code.co_firstlineno - 1:], code.co_firstlineno):
            if text in line:
                return f"{code.co_filename}:{k}"
    raise AssertionError(text)


# -- nan ---------------------------------------------------------------------------------------------------------------
def user(a):
    c = tj.cos(a) - 3
    return tj.sqrt(c) + a


@pytest.mark.parametrize("wrap", [lambda f: f, tj.function], ids=["eager", "compiled"])
def test_nan_is_named_with_op_line_and_range(wrap: Callable[..., Any]) -> None:
    f = wrap(user)
    assert np.isnan(f(tj.ones(3)).numpy()).all()  # outside nothing is raised
    with tj.debugging.debug_nans(), pytest.raises(FloatingPointError) as caught:
        f(tj.ones(3))
    text = str(caught.value)
    assert text.startswith("sqrt gave nan at ") and line_of(user, "sqrt") in text
    assert "3 of 3 elements of f32[3]" in text and "input f32[3] min -2.46 max -2.46" in text
    assert np.isnan(f(tj.ones(3)).numpy()).all()


@pytest.mark.parametrize("wrap", [lambda f: f, tj.function], ids=["eager", "compiled"])
@pytest.mark.parametrize("outer", [lambda f: f, tj.function], ids=["eager", "compiled"])
def test_nan_in_the_backward_run(wrap: Callable[..., Any], outer: Callable[..., Any]) -> None:
    @tj.custom_gradient
    def square(x):
        return x * x, lambda g: g * tj.sqrt(x - 5)

    def f(x):
        return square(x + 0).sum()

    gradient = outer(tj.grad(wrap(f)))
    with tj.debugging.debug_nans(), pytest.raises(FloatingPointError, match=r"^sqrt gave nan .* min -4 max -4"):
        gradient(tj.ones(2))


def test_a_derivative_belongs_to_the_line_of_its_op() -> None:
    @tj.function
    def f(x):
        y = x * 2
        z = tj.exp(y)
        return z.sum()

    graph = tj.function(tj.grad(f)).trace(tj.ones(3))
    assert {n.where for n in graph.nodes if n.op.name == "mul_zero"} <= {line_of(f, "exp"), line_of(f, "x * 2")}


def test_the_maker_of_inf_is_named() -> None:
    @tj.function
    def f(x):
        y = 1 / x
        return y - y

    with tj.debugging.debug_nans(), pytest.raises(FloatingPointError) as caught:
        f(tj.zeros(2))
    assert f"its inf was made by divide at {line_of(f, '1 / x')}" in str(caught.value)
    with tj.debugging.debug_nans(infs=True), pytest.raises(FloatingPointError, match=r"^divide gave inf"):
        f(tj.zeros(2))
    with tj.debugging.debug_nans(infs=True):
        assert f(tj.ones(2)).tolist() == [0.0, 0.0]
        f(tj.constant([np.inf, 1.0]) * 1)  # inf that came in is the caller's business


def test_nan_inside_control_flow() -> None:
    @tj.function
    def loop(x):
        return tj.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, tj.sqrt(y - 1)), (0, x))[1]

    @tj.function
    def scan(xs):
        return tj.scan(lambda c, x: (c + tj.log(x), c), 0.0, xs)[0]

    @tj.function
    def branch(x):
        return tj.cond(x > 0, lambda: x, lambda: tj.log(x))

    for f, x, text in [(loop, 2.0, "sqrt gave nan"), (scan, [1.0, 2.0, -3.0], "log gave nan.*min -3"),
                       (branch, -7.0, "log gave nan.*min -7")]:
        with tj.debugging.debug_nans(), pytest.raises(FloatingPointError, match=text):
            f(tj.constant(x))


def test_expected_nan_passes() -> None:
    @tj.function
    def f(x):
        with tj.debugging.expect_nan():
            y = tj.log(x)
        return tj.nan_to_num(y)

    with tj.debugging.debug_nans():
        assert f(tj.constant([-1.0, 1.0])).tolist() == [0.0, 0.0]
        with tj.debugging.expect_nan():
            assert np.isnan(tj.sqrt(tj.constant(-1.0)).item())
            assert np.isnan(user(tj.ones(1)).numpy()).all()
        with pytest.raises(FloatingPointError):
            tj.sqrt(tj.constant(-1.0))
        assert tj.function(tj.nanmean)(tj.constant([1.0, np.nan])).item() == 1.0  # nan that came in


ORDINARY = {
    "softmax": lambda x: tj.exp(x - tj.logsumexp(x, axis=-1, keepdims=True)),
    "norms": lambda x: tj.norm(x) + tj.var(x) + tj.std(x, axis=0).sum(),
    "gelu": lambda x: tj.gelu(x) + tj.silu(x) + tj.softplus(x) + tj.sigmoid(100 * x) + tj.mish(x),
    "where": lambda x: tj.where(x > 0, tj.sqrt(tj.where(x > 0, x, 1.0)), 0.0),
    "power": lambda x: x**2 + abs(x) ** 1.5 + tj.hypot(x, x) + tj.arctan2(x, x * x + 1),
    "logaddexp": lambda x: tj.logaddexp(x, -x) + tj.log1p(x * x) + tj.erf(x) + tj.tanh(x * 50),
    "product": lambda x: (x @ x.T).sum() + tj.cumsum(x, axis=0).max() + tj.sort(x, axis=1)[:, 0].min(),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_no_false_alarm(name: str) -> None:
    """Ordinary code at zero, and at large and small numbers, forward and backward."""
    f = ORDINARY[name]
    x = tj.constant([[0.0, 1.0, -2.0], [30.0, -30.0, 1e-3]])
    with tj.debugging.debug_nans():
        for run in (f, tj.function(f)):
            total = lambda x, run=run: run(x).sum()
            run(x), tj.grad(total)(x), tj.function(tj.grad(total))(x)


def test_checks_change_no_numbers_and_run_effects_once(capsys: pytest.CaptureFixture[str]) -> None:
    v = tj.Variable(1.0)

    @tj.function
    def f(x):
        tj.print("once")
        v.assign_add(x.sum())
        return tj.tanh(x) * v

    x = tj.linspace(-2.0, 2.0, 101)
    plain = f(x).numpy()
    v.assign(1.0)
    with tj.debugging.debug_nans():
        checked = f(x).numpy()
    assert capsys.readouterr().out == "once\nonce\n"
    np.testing.assert_allclose(checked, plain, rtol=1e-6)


# -- checks at run time ------------------------------------------------------------------------------------------------
d = tj.debugging
CHECKS: list[tuple[str, Callable[..., Any], Any, Any, str]] = [
    ("assert_equal", lambda x: d.assert_equal(x, 1.0, "same"), [1.0, 1.0], [1.0, 2.0], r"^same: .*x = \[1\. 2\.\]"),
    ("assert_none_equal", lambda x: d.assert_none_equal(x, 1.0), [0.0], [1.0], "x != y does not hold at 1 of 1 places"),
    ("assert_less", lambda x: d.assert_less(x, 3.0), [1.0, 2.0], [1.0, 3.0], "x < y does not hold"),
    ("assert_less_equal", lambda x: d.assert_less_equal(x, 3.0), [1.0, 3.0], [4.0, 3.0], "x <= y"),
    ("assert_greater", lambda x: d.assert_greater(x, 0.0), [1.0], [0.0], "x > y"),
    ("assert_greater_equal", lambda x: d.assert_greater_equal(x, 0.0), [0.0], [-1.0], "x >= y"),
    ("assert_positive", d.assert_positive, [1.0], [0.0], "x > 0"),
    ("assert_negative", d.assert_negative, [-1.0], [0.0], "x < 0"),
    ("assert_non_negative", d.assert_non_negative, [0.0], [-1.0], "x >= 0"),
    ("assert_non_positive", d.assert_non_positive, [0.0], [1.0], "x <= 0"),
    ("assert_near", lambda x: d.assert_near(x, 1.0), [1.0 + 1e-7], [1.1], "the largest difference is 0.1"),
    ("assert_all_finite", d.assert_all_finite, [1.0], [np.inf], "1 of 1 values are nan or inf"),
    ("assert_true", lambda x: d.assert_true(x > 0, "above"), [1.0], [-1.0], "^above: "),
    ("assert_rank", lambda x: d.assert_rank(x, (1, 3)), [1.0], [[1.0]], r"shape \(1, 1\) has 2 dims, not 1 or 3"),
    ("assert_type", lambda x: d.assert_type(x, "float32"), [1.0], [1], "dtype int32, not float32"),
    ("assert_shapes", lambda x: d.assert_shapes([(x, (None, "k")), (x.T, ("k", 2))]), [[1.0], [2.0]],
     [[1.0], [2.0], [3.0]], r"tensor 1 has shape \(1, 3\), not \('k', 2\) with k = 1"),
]  # fmt: skip


@pytest.mark.parametrize("run", [lambda f: f, tj.function], ids=["eager", "compiled"])
def test_assertions_compare_in_the_dtype_of_the_tensor(run: Any) -> None:
    tenth = tj.asarray([0.1], "float64")
    run(lambda x: d.assert_equal(x, 0.1))(tenth)  # a Python number is not rounded to float32 before
    run(lambda x: d.assert_near(x, 0.1))(tenth)
    run(lambda x: d.assert_near(x, np.inf))(tj.asarray([np.inf]))
    for dtype, x, y in (("uint8", 2, 3), ("uint64", 2, 3), ("int8", 127, 126), ("bool", True, False)):
        x, y = tj.asarray([x], dtype), tj.asarray([y], dtype)
        run(lambda x, y: d.assert_near(x, y, atol=1.0))(x, y)
        with pytest.raises(AssertionError, match="the largest difference is 1"):
            run(lambda x, y: d.assert_near(x, y, atol=0.5))(x, y)
    with pytest.raises(AssertionError, match="the largest difference is 255"):
        run(lambda x: d.assert_near(x, -128, atol=10.0))(tj.asarray([127], "int8"))


@pytest.mark.parametrize("name, check, good, bad, message", CHECKS, ids=[c[0] for c in CHECKS])
def test_assertions_hold_and_fail_alike(name: str, check: Any, good: Any, bad: Any, message: str) -> None:
    @tj.function
    def f(x):
        check(x)
        return x + 1

    texts = []
    for run in (f.eager, f):
        run(tj.constant(good))
        with pytest.raises(AssertionError, match=message) as caught:
            run(tj.constant(bad))
        texts.append(str(caught.value))
    assert texts[0] == texts[1] and "test_debugging.py:" in texts[1]


def test_check_numerics() -> None:
    @tj.function
    def f(x):
        return tj.debugging.check_numerics(tj.log(x), "after log") * 2

    assert f(tj.ones(2)).tolist() == [0.0, 0.0]
    assert tj.grad(lambda x: f(x).sum())(tj.ones(2)).tolist() == [2.0, 2.0]
    for run in (f.eager, f):
        with pytest.raises(FloatingPointError, match=r"^after log: 2 of 3 values are nan or inf"):
            run(tj.constant([1.0, 0.0, -1.0]))
    assert tj.debugging.check_numerics(tj.constant([1, 2])).tolist() == [1, 2]


# -- compare -----------------------------------------------------------------------------------------------------------
def test_compare_finds_no_difference_where_there_is_none() -> None:
    found = tj.debugging.compare(lambda a, b: (a + b, a * 2 - b), tj.arange(10.0), tj.ones(10))
    assert found.first is None and found.worst.ulps == 0 and found.results == [0.0, 0.0]
    assert len(found.ops) >= 3


def test_compare_names_the_first_op_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op whose compiled form is off by a little is found among exact ones, by name, line and size."""

    @tj.function
    def f(x):
        y = x + 1
        z = tj.floor(y * 4)
        w = tj.tanh(z)
        return w - 1

    x = tj.linspace(0.0, 1.0, 64)
    exact = tj.floor.op.eager
    assert tj.debugging.compare(f, x, ulps=8).first is None
    monkeypatch.setattr(np, "floor", exact)
    off = tj.floor.op
    object.__setattr__(off, "eager", lambda a: np.nextafter(exact(a), np.float32(100)))
    try:
        found = tj.debugging.compare(f, x)
    finally:
        object.__setattr__(off, "eager", exact)
    assert found.first is not None and found.first.op == "floor" and found.first.ulps == 1
    assert found.first.where == line_of(f, "floor") and found.first.type.shape == (64,)
    assert f"first: floor f32[64] at {found.first.where}: 1 ulp" in str(found)


def test_compare_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    v = tj.Variable([1.0, 2.0])
    x = np.ones(2, np.float32)

    @tj.function
    def f(a):
        tj.print("run")
        a += 1
        v.assign_add(a)
        return tj.py_function(lambda t: t * 2, [a], tj.spec((2,))) + v

    found = tj.debugging.compare(f, x)
    assert found.results[0] == 0 and capsys.readouterr().out == "run\n"
    assert v.tolist() == [1.0, 2.0] and x.tolist() == [1.0, 1.0]
    assert tj.debugging.compare(tj.function(lambda t: tj.exp(1j * t)), tj.ones(3)).worst.ulps < 4


# -- running eagerly ---------------------------------------------------------------------------------------------------
def test_everything_runs_eagerly_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Model:
        @tj.function
        def method(self, x):
            seen.append(type(x._value))
            return x + 1

    @tj.function
    def inner(x):
        return x * 2

    @tj.function
    def f(x):
        seen.append(type(x._value))
        return inner(x).numpy().sum()  # only eager code can do this

    m, x = Model(), tj.ones(2)
    with tj.eager():
        assert f(x) == 4.0 and m.method(x).tolist() == [2.0, 2.0]
    tj.config.run_functions_eagerly(True)
    try:
        assert f(x) == 4.0 and m.method(x).tolist() == [2.0, 2.0]
    finally:
        tj.config.run_functions_eagerly(False)
    assert f.eager(x) == 4.0 and m.method.eager(x).tolist() == [2.0, 2.0]
    assert set(seen) == {np.ndarray} and f.trace_count == 0
    with pytest.raises(tj.TracerError):
        f(x)


# -- tracebacks --------------------------------------------------------------------------------------------------------
def helper(a, b):
    return a + b


def failing_trace(x, y):
    return helper(tj.exp(x), y)


def failing_run(x, i):
    y = x * 2
    return tj.take(y, i)


def failing_library(x):
    return tj.py_function(lambda t: 1 / 0, [x])


CASES = [
    (failing_trace, (tj.ones(3), tj.ones(4)), ["failing_trace", "helper"],
     "while failing_trace was traced with x: f32[3], y: f32[4], at "),
    (failing_run, (tj.ones(3), tj.constant([5])), ["failing_run"], "while failing_run ran with x: f32[3], i: i32[1]"),
    (failing_library, (tj.ones(3),), ["failing_library", "<lambda>"], "while failing_library ran with x: f32[3]"),
]


@pytest.mark.parametrize("f, args, frames, note", CASES, ids=[c[0].__name__ for c in CASES])
def test_tracebacks_hold_the_users_frames_only(f: Any, args: Any, frames: list[str], note: str) -> None:
    with pytest.raises(Exception) as caught:
        tj.function(f)(*args)
    entries = traceback.extract_tb(caught.value.__traceback__)
    assert [e.name for e in entries[1:]] == frames
    assert not any(is_internal(e.filename) for e in entries) and all(e.line for e in entries)
    assert any(n.startswith(note) for n in caught.value.__notes__)


def test_tracebacks_can_be_had_in_full() -> None:
    tj.config.full_tracebacks(True)
    try:
        with pytest.raises(ValueError) as caught:
            tj.function(failing_trace)(tj.ones(3), tj.ones(4))
    finally:
        tj.config.full_tracebacks(False)
    assert any(is_internal(e.filename) for e in traceback.extract_tb(caught.value.__traceback__))


def test_methods_and_nested_functions_fold_too_and_say_it_once() -> None:
    class Model:
        @tj.function
        def method(self, x):
            return inner(x)

    @tj.function
    def inner(x):
        return x.reshape((7,))

    with pytest.raises(ValueError) as caught:
        Model().method(tj.ones(3))
    assert [e.name for e in traceback.extract_tb(caught.value.__traceback__)][1:] == ["method", "inner"]
    assert [n for n in caught.value.__notes__ if n.startswith("while")] == [
        f"while method was traced with x: f32[3], at {line_of(inner, 'reshape')}"]


# -- the debugger ------------------------------------------------------------------------------------------------------
def test_breakpoint_stops_while_tracing_with_readable_values(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def hook() -> None:
        frame = sys._getframe(1)
        seen.update({name: repr(value) for name, value in frame.f_locals.items()}, function=frame.f_code.co_name)

    monkeypatch.setattr(sys, "breakpointhook", hook)

    @tj.function
    def f(x, n):
        y = x * 2
        breakpoint()
        return y * n

    assert f(tj.ones(2), 3).tolist() == [6.0, 6.0]
    assert seen["function"] == "f"
    assert seen["x"].startswith("tj.Tensor(<traced argument 'x' #")
    assert seen["x"].endswith(">, shape=(2,), dtype=float32)")
    assert "<traced multiply #" in seen["y"] and "test_debugging.py:" in seen["y"]


def test_pdb_runs_in_traced_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    commands = iter(["p y", "up", "down", "continue"])

    @tj.function
    def f(x):
        y = x * 2
        debugger.set_trace()
        return y

    debugger = pdb.Pdb(nosigint=True, readrc=False)
    monkeypatch.setattr("builtins.input", lambda prompt="": next(commands))
    assert f(tj.ones(2)).tolist() == [2.0, 2.0]
    out = capsys.readouterr().out
    assert "tj.Tensor(<traced multiply #1 at test_debugging.py:" in out
    assert "return y" in out or "debugger.set_trace()" in out
