"""Effects: the same text, calls and exceptions from eager and compiled code, in program order, at every call."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.ops.effects import check
from tracejit.tensor import evaluate


def outputs(f: Any, capsys: pytest.CaptureFixture[str], *args: Any, calls: int = 2) -> tuple[str, str]:
    """What eager and compiled calls write, each several times."""
    found = []
    for run in (f.eager, f):
        capsys.readouterr()
        for _ in range(calls):
            run(*args)
        found.append(capsys.readouterr().out)
    return found[0], found[1]


def agree(f: Any, capsys: pytest.CaptureFixture[str], *args: Any) -> str:
    eager, compiled = outputs(f, capsys, *args)
    assert eager == compiled
    return compiled


# -- print -------------------------------------------------------------------------------------------------------------
def test_print_of_every_kind_of_value(capsys: pytest.CaptureFixture[str]) -> None:
    captured = tj.constant([5, 6])

    @tj.function
    def f(x, n, flag):
        tj.print("values", x, x[0], n, n * 2, flag, None, {"{k}": [x.sum(), (n, "}")]}, captured, np.arange(2))
        tj.print(x, n, sep="|", end="#\n")
        tj.print()
        tj.print("x0 {}", x[0])
        return x

    text = agree(f, capsys, tj.constant([1.5, -2.0]), 7, True)
    assert "{'{k}': [tj.Tensor(-0.5, shape=(), dtype=float32), (7, '}')]}" in text
    assert f.trace_count == 1


def test_print_formats_as_the_tensors_do(capsys: pytest.CaptureFixture[str]) -> None:
    @tj.function
    def f(x, n):
        tj.print(x.sum(), x, n, format="sum {0:8.3f} of {1} n={2:03d} {{}} {0!r}")
        tj.print(f"sum {x.sum():.1f} all {x} n {n} twice {x!r} {[n, x]}")
        return x

    text = agree(f, capsys, tj.constant([1.0, 2.0]), 4)
    assert text.startswith("sum    3.000 of [1. 2.] n=004 {} tj.Tensor(3.0, shape=(), dtype=float32)\n")
    assert "\nsum 3.0 all [1. 2.] n 4 twice tj.Tensor([1. 2.]" in text


def test_print_of_a_variable_shows_what_it_holds_there(capsys: pytest.CaptureFixture[str]) -> None:
    v = tj.Variable([1.0, 2.0], name="w")

    @tj.function
    def f(x):
        tj.print("before", v)
        v.assign_add(x)
        tj.print("after", v, f"{v}")
        return v.read_value()

    texts = []
    for run in (f.eager, f):
        v.assign([1.0, 2.0])
        run(tj.constant([1.0, 1.0]))
        run(tj.constant([1.0, 1.0]))
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    last = "after <tj.Variable 'w:0' shape=(2,) dtype=float32, numpy=array([3., 4.], dtype=float32)> [3. 4.]"
    assert last in texts[1]


def test_print_goes_where_it_is_told() -> None:
    out = io.StringIO()

    @tj.function
    def f(x):
        tj.print("to a file", x, file=out)
        return x

    f(tj.constant(1)), f(tj.constant(2))
    assert out.getvalue().count("to a file") == 2 and "2, shape" in out.getvalue()


def test_print_to_the_streams_of_the_time_of_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    @tj.function
    def f(x):
        tj.print("error", x, file=sys.stderr)
        tj.print("out", x)
        return x

    f(tj.constant(1))
    capsys.readouterr()
    later, sys.stdout = sys.stdout, io.StringIO()
    try:
        f(tj.constant(2))
        found = sys.stdout.getvalue()
    finally:
        sys.stdout = later
    assert found == "out tj.Tensor(2, shape=(), dtype=int32)\n"
    assert capsys.readouterr().err == "error tj.Tensor(2, shape=(), dtype=int32)\n"


def test_equal_prints_are_not_merged_and_unused_ones_stay(capsys: pytest.CaptureFixture[str]) -> None:
    @tj.function
    def f(x):
        tj.print("same")
        tj.print("same")
        tj.print("unused", x * 0 + 3)
        return x

    assert agree(f, capsys, tj.constant(1.0)).count("same\n") == 4


# -- order -------------------------------------------------------------------------------------------------------------
def test_effects_keep_program_order(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints, callbacks, Variables and random draws between kernels, reductions, products and sorts."""
    log: list[str] = []
    v = tj.Variable(0.0)

    def note(x: Any) -> Any:
        print("callback", x.numpy())
        return x * 2

    @tj.function
    def f(x):
        tj.print("start", v)
        v.assign_add(x.sum())
        y = tj.py_function(note, [v], tj.spec((), "float32"))
        tj.print("y", y)
        s = tj.sort(x)[::-1]
        v.assign(y * 3)
        tj.print("sorted", s, "draw", tj.random.uniform((2,)))
        m = x.reshape((3, 1)) @ x.reshape((1, 3))
        tj.py_function(lambda m: print("m", m.numpy().tolist()), [m])
        v.assign_sub(1.0)
        tj.print("end", v, "draw", tj.random.normal(()))
        return m.sum() + v

    texts, results = [], []
    for run in (f.eager, f):
        v.assign(0.0)
        tj.random.seed(3)
        results.append([run(tj.constant([3.0, 1.0, 2.0])).numpy() for _ in range(3)])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and texts[1].count("callback") == 3
    np.testing.assert_array_equal(*results)
    assert log == []


def test_stateful_steps_stay_in_order_through_every_pass_and_fusion() -> None:
    @tj.function
    def f(x):
        for k in range(12):
            tj.print(k, x.sum() if k % 3 else x.max())
            x = x * 2 + k
            tj.py_function(lambda t: None, [x])
        return x

    lowered = f.lower(tj.ones(5))
    for graph in lowered.stages.values():
        names = [n.op.name for n in graph.nodes if n.op.stateful]
        assert names == ["print", "py_function"] * 12
        texts = [n.attrs["text"].split()[0] for n in graph.nodes if n.op.name == "print"]
        assert texts == [str(k) for k in range(12)]
    steps = [dict(s.attrs)["text"].split()[0] for s in lowered.plan.steps if getattr(s, "op", None) is not None
             and s.op.name == "print"]
    assert steps == [str(k) for k in range(12)]


def test_what_is_printed_before_an_error_stays_printed_and_the_rest_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    """A gather that fails is not moved across a print, though a kernel before it could take it."""

    @tj.function
    def f(x, i):
        a = x * 2
        tj.print("before", a.sum())
        b = tj.take(x, i) * 2
        tj.print("after", b)
        return a, b

    x, bad = tj.arange(4.0), tj.constant([0, 9, 1, 1])
    f(x, tj.constant([0, 1, 2, 3]))
    for run in (f.eager, f):
        capsys.readouterr()
        with pytest.raises(IndexError):
            run(x, bad)
        assert capsys.readouterr().out == "before tj.Tensor(12.0, shape=(), dtype=float32)\n"


# -- gradients ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("wrap", [lambda f: f, tj.function], ids=["eager", "compiled"])
def test_a_forward_effect_runs_once_under_a_gradient(wrap: Callable[..., Any],
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    @wrap
    def f(x):
        y = x * x
        tj.print("forward", y)
        noise = tj.py_function(lambda t: t + 1, [tj.stop_gradient(y)], tj.spec((2,), "float32"))
        return (y * noise * y).sum()

    x = tj.constant([1.0, 2.0])
    for gradient in (tj.grad(f), wrap(tj.grad(f))):
        np.testing.assert_allclose(gradient(x).numpy(), [8.0, 160.0])
        assert capsys.readouterr().out.count("forward") == 1
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    assert tape.gradient(y, x).tolist() == [8.0, 160.0]
    assert capsys.readouterr().out.count("forward") == 1


def test_effects_in_the_backward_run(capsys: pytest.CaptureFixture[str]) -> None:
    @tj.custom_gradient
    def square(x):
        def pull(g):
            tj.print("cotangent", g)
            return 2 * x * g

        return x * x, pull

    f = tj.function(lambda x: square(x) * 3)
    for gradient in (tj.grad(f), tj.function(tj.grad(f))):
        assert gradient(tj.constant(5.0)).item() == 30.0
        assert capsys.readouterr().out == "cotangent tj.Tensor(3.0, shape=(), dtype=float32)\n"


# -- py_function -------------------------------------------------------------------------------------------------------
def test_py_function_gives_structures_and_checks_them() -> None:
    @tj.function
    def f(x):
        out = tj.py_function(lambda d: {"a": d["x"] + 1, "b": [3, d["k"]]}, [{"x": x, "k": 2, "text": "t"}],
                             {"a": tj.spec((2,)), "b": [tj.spec((), "int64"), tj.spec((), "int32")]})
        return out["a"] + out["b"][0] + out["b"][1]

    x = tj.constant([1.0, 2.0])
    assert f(x).tolist() == f.eager(x).tolist() == [7.0, 8.0]

    for value, of, message in [
        (np.zeros(3), tj.spec((3,), "float32"), r"gave f64\[3\], but output_specs says f32\[3\]"),
        (np.zeros(2, "float32"), tj.spec((3,), "float32"), r"gave f32\[2\], but output_specs says f32\[3\]"),
        ((1, 2), tj.spec((), "int32"), "output_specs says"),
    ]:
        wrong = tj.function(lambda x: tj.py_function(lambda t: value, [x], of))  # noqa: B023
        for run in (wrong.eager, wrong):
            with pytest.raises(TypeError, match=message):
                run(x)
    with pytest.raises(TypeError, match="known shape"):
        tj.py_function(lambda x: x, [x], tj.spec((None,)))


def test_py_function_gets_values_that_nobody_writes_later() -> None:
    kept = []

    @tj.function
    def f(x):
        y = x * 2
        tj.py_function(kept.append, [y])
        return (y + 1).sum()

    for k in range(3):
        f(tj.constant([float(k), 1.0]))
    assert [t.tolist() for t in kept] == [[0.0, 2.0], [2.0, 2.0], [4.0, 2.0]]


def test_py_function_exceptions_arrive_as_they_are() -> None:
    class Special(Exception):
        pass

    def fail(x: Any) -> None:
        raise Special("inside")

    f = tj.function(lambda x: tj.py_function(fail, [x]) or x)
    with pytest.raises(Special, match="inside"):
        f(tj.constant(1.0))


# -- checks ------------------------------------------------------------------------------------------------------------
def test_check_fills_its_message_in_when_it_fails() -> None:
    @tj.function
    def f(x, n):
        check((x > 0).all(), lambda: f"need positive, got {x} at step {n:02d}")
        return tj.log(x)

    f(tj.ones(2), 1)
    for run in (f.eager, f):
        with pytest.raises(AssertionError, match=r"^need positive, got \[-1\.\s+1\.\] at step 03"):
            run(tj.constant([-1.0, 1.0]), 3)
    assert f(tj.ones(2), 2).tolist() == [0.0, 0.0]


def test_a_check_whose_value_is_not_used_stays() -> None:
    v = tj.Variable(tj.zeros(50_000))

    @tj.function
    def f(x):
        v.assign_add(x)
        check(x[0] > 0, "positive")
        return x

    f(tj.ones(50_000))
    with pytest.raises(AssertionError, match=r"^positive"):
        f(-tj.ones(50_000))
    assert v[0].item() == 1.0 and v[49_999].item() == 1.0  # a compiled call that fails writes nothing


def test_replaying_a_graph_runs_its_effects(capsys: pytest.CaptureFixture[str]) -> None:
    graph = tj.function(lambda x: (tj.print("x", x), x)[1]).trace(tj.constant(2.0))
    evaluate(graph, [tj.constant(2.0)])
    assert capsys.readouterr().out == "x tj.Tensor(2.0, shape=(), dtype=float32)\n"


# -- Python effects while tracing --------------------------------------------------------------------------------------
COUNT = 0
LOG: list[Any] = []
TABLE: dict[str, Any] = {}


class Holder:
    def __init__(self) -> None:
        self.n, self.items, self.cache = 0, [], {}


def one_warning(f: Any, *args: Any) -> str:
    """The text of the only warning that several calls and traces give."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        f(*args)
        f(*args)
        f(*[a[:1] if isinstance(a, tj.Tensor) and a.ndim else a for a in args])
    assert len(found) == 1, [str(w.message) for w in found]
    return str(found[0].message)


def writes_global(x):
    global COUNT
    COUNT += 1
    return x


def appends_to_global(x):
    LOG.append(1)
    return x


def stores_in_global(x):
    TABLE[str(len(TABLE))] = 1
    return x


def updates_global(x):
    TABLE.update(a=len(TABLE))
    return x


@pytest.mark.parametrize("f, name", [
    (writes_global, "COUNT"), (appends_to_global, "LOG"), (stores_in_global, "TABLE"), (updates_global, "TABLE"),
])
def test_writes_to_globals_warn_once_with_their_line(f: Any, name: str) -> None:
    text = one_warning(tj.function(f), tj.ones(3))
    line = f.__code__.co_firstlineno + (2 if f is writes_global else 1)
    assert f"writes {name}" in text and f"test_effects.py:{line}" in text and "once per trace" in text


def test_writes_to_closures_attributes_and_arguments_warn() -> None:
    total = 0
    seen = []
    holder = Holder()

    @tj.function
    def closure(x):
        nonlocal total
        total += 1
        return x

    @tj.function
    def attribute(x):
        holder.n += 1
        return x

    @tj.function
    def container(x):
        seen.append(x.shape)
        return x

    @tj.function
    def nested(x):
        holder.items.append(1)
        holder.cache["k"] = holder.n + len(holder.items)
        return x

    @tj.function
    def argument(x, h=holder):
        h.n += 1
        return x

    for f, name in [(closure, "total"), (attribute, "holder.n"), (container, "seen"), (nested, "holder.items"),
                    (argument, "h.n")]:
        text = one_warning(f, tj.ones(3))
        assert f"{f.name} writes" in text and name in text


def test_no_noise() -> None:
    """What stays inside the function, creates a Variable once, or writes what was there before, is no effect."""
    holder = Holder()
    holder.w = None

    @tj.function
    def f(x):
        if holder.w is None:
            holder.w = tj.Variable(tj.zeros(3))
        holder.w.assign_add(x)
        rows = []
        for k in range(3):
            rows.append(x[k])
        table = {}
        table["a"] = rows
        table.update(b=1)
        holder.n = 0
        own = Holder()
        own.n += 1
        own.items.append(x)
        return tj.stack(table["a"])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(tj.ones(3)), f(tj.ones(3))
    assert holder.w.numpy().tolist() == [2.0, 2.0, 2.0]


# -- what users of other compilers ask for -----------------------------------------------------------------------------
def test_a_plain_assert_on_a_tensor_is_checked_at_each_call(capsys: pytest.CaptureFixture[str]) -> None:
    @tj.function
    def f(v, n):
        assert (v > 0).all(), f"need positive, got {v} at {n:02d}"
        print("checked", v)
        assert n < 100
        return tj.log(v)

    f(tj.ones(3), 1)
    for run in (f.eager, f):
        capsys.readouterr()
        with pytest.raises(AssertionError, match=r"^need positive, got \[-1\.\] at 02"):
            run(tj.constant([-1.0]), 2)
        assert capsys.readouterr().out == ""
        with pytest.raises(AssertionError):
            run(tj.ones(2), 100)
        assert capsys.readouterr().out == "checked tj.Tensor([1. 1.], shape=(2,), dtype=float32)\n"


def test_effects_inside_branches_and_loops(capsys: pytest.CaptureFixture[str]) -> None:
    v = tj.Variable(0)

    @tj.function
    def f(n):
        for k in tj.range(n):
            if k % 2 == 0:
                tj.print("even", k)
            else:
                v.assign_add(1)
                tj.print("odd", k, v)
            tj.py_function(lambda t: print("seen", t.item()), [k])
        tj.print("done", v)
        return n

    texts = []
    for run in (f.eager, f):
        v.assign(0)
        run(tj.constant(5))
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and texts[1].count("seen") == 5
    assert texts[1].endswith("done <tj.Variable 'Variable:0' shape=() dtype=int32, numpy=2>\n")


def test_a_trace_that_fails_has_had_its_effects_first(capsys: pytest.CaptureFixture[str]) -> None:
    """As in eager code: what was printed before the error is printed, and a check that fails comes first."""
    v = tj.Variable([5.0, 6.0])

    @tj.function
    def f(x, n):
        y = x * n + v
        tj.print("y is", y)
        tj.debugging.assert_positive(y, "y")
        print("again", f"{y.sum():.1f}")
        return y + tj.ones(7)

    for run in (f.eager, f, f):
        capsys.readouterr()
        with pytest.raises(ValueError, match="do not broadcast"):
            run(tj.ones(2), 2)
        out = "y is tj.Tensor([7. 8.], shape=(2,), dtype=float32)\nagain 15.0\n"
        assert capsys.readouterr().out == out
        with pytest.raises(AssertionError, match=r"^y: assert_positive: x > 0 does not hold; x = \[-5\.\s+-4\.\]"):
            run(tj.ones(2), -10)
        assert capsys.readouterr().out.count("\n") == 1
    with pytest.raises(ValueError):
        f.trace(tj.ones(2), 2)
    assert capsys.readouterr().out == ""
