"""Control flow on tensor values: eager is plain Python; compiled gives the same values, dtypes, effects and errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import tracejit as tj
from tracejit.errors import TracerError
from tracejit.ir import count, to_text, verify
from tracejit.tensor import Tensor, evaluate
from tracejit.trees import flatten


def values(result: Any) -> list[np.ndarray]:
    return [np.asarray(x.numpy() if isinstance(x, Tensor) else x) for x in flatten(result)[0] if x is not None]


def alike(f: Callable[..., Any], *args: Any, rtol: float = 1e-6) -> Any:
    """f eagerly, compiled, and as its graph replayed: one structure, shapes and values. Gives the compiled result."""
    wanted = f(*args)
    compiled = tj.function(f)
    found = compiled(*args)
    assert flatten(found)[1] == flatten(wanted)[1]
    for a, b in zip(values(found), values(wanted), strict=True):
        assert a.shape == b.shape and a.dtype.kind == b.dtype.kind
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)
    graph = compiled.trace(*args)
    verify(graph)
    if len(graph.inputs) == len(flatten(args)[0]):
        replayed = evaluate(
            graph, [tj.asarray(np.asarray(x)).astype(n.dtype) for x, n in zip(flatten(args)[0], graph.inputs)]
        )
        for t, b in zip(replayed, values(wanted)):
            np.testing.assert_allclose(t.numpy(), b, rtol=rtol, atol=rtol)
    return found


class Pair(NamedTuple):
    a: Any
    b: Any


# -- branches ----------------------------------------------------------------------------------------------------------
def test_cond_takes_either_branch() -> None:
    def f(x: Any) -> Any:
        return tj.cond(x.sum() > 0, lambda a: {"y": a * 2, "n": 1}, lambda a: {"y": a - 1, "n": 2}, x)

    for x in (tj.ones(3), -tj.ones(3)):
        alike(f, x)


def test_cond_promotes_its_results_and_keeps_plain_values() -> None:
    def f(p: Any, x: Any) -> Any:
        return tj.cond(p, lambda: (x, 1, "s", None, 3), lambda: (2.5, 7, "s", None, 3))

    x = tj.asarray(3, "int32")
    out = tj.function(f)(tj.asarray(True), x)
    assert out[0].dtype == tj.float32 and out[0].item() == 3.0 and out[1] == 1 and out[2:] == ("s", None, 3)
    assert tj.function(f)(tj.asarray(False), x)[0].item() == 2.5


def test_a_python_predicate_decides_while_tracing() -> None:
    graph = tj.function(lambda x: tj.cond(True, lambda: x + 1, lambda: 1 / 0)).trace(tj.ones(2))
    assert count(graph, "cond") == 0 and count(graph, "add") == 1


def test_switch_clamps_its_index() -> None:
    def f(i: Any, x: Any) -> Any:
        return tj.switch(i, [lambda v: v + 1, lambda v: v * 10, lambda v: -v], x)

    for i in (-5, 0, 1, 2, 9):
        alike(f, tj.asarray(i), tj.asarray([1.0, 2.0]))


def test_nested_branches() -> None:
    def f(x: Any) -> Any:
        return tj.cond(x > 0, lambda: tj.cond(x > 10, lambda: x * 100, lambda: x * 10), lambda: -x)

    for v in (-3.0, 5.0, 50.0):
        alike(f, tj.asarray(v))


def test_branches_write_variables_and_items() -> None:
    v = tj.Variable(1.0)

    def f(x: Any) -> Any:
        table = tj.zeros(3)

        def yes() -> Any:
            v.assign_add(x.sum())
            table[1] = 5.0
            return x

        return tj.cond(x.sum() > 0, yes, lambda: x * 0), table, v.read_value()

    for x in (tj.ones(2), -tj.ones(2)):
        v.assign(1.0)
        wanted = values(f(x))
        after = v.numpy().copy()
        v.assign(1.0)
        found = values(tj.function(f)(x))
        assert v.numpy() == after
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("branches", "words"),
    [
        ((lambda x: x, lambda x: x.sum()), ["'result'", "f32[3]", "f32[]", "same shape"]),
        ((lambda x: (x, x), lambda x: x), ["different structures"]),
        ((lambda x: {"a": x}, lambda x: {"a": None}), ["'result['a']'", "None"]),
    ],
)
def test_branches_that_differ_are_refused_by_name(branches: Any, words: list[str]) -> None:
    with pytest.raises(TracerError) as error:
        tj.function(lambda x: tj.cond(x.sum() > 0, *branches, x))(tj.ones(3))
    assert all(w in str(error.value) for w in ["cond at", "test_control.py", *words]), error.value


def test_a_predicate_of_many_elements_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tj\.where"):
        tj.function(lambda x: tj.cond(x > 0, lambda: x, lambda: -x))(tj.ones(3))


# -- while_loop --------------------------------------------------------------------------------------------------------
def test_while_loop_both_calling_styles() -> None:
    alike(lambda x: tj.while_loop(lambda i, v: v.sum() < 100, lambda i, v: (i + 1, v * 2), (0, x)), tj.ones(3))
    alike(
        lambda x: tj.while_loop(
            lambda c: c["v"].sum() < 100, lambda c: {"v": c["v"] * 2, "n": c["n"] + 1}, {"v": x, "n": 0}
        ),
        tj.ones(3),
    )
    alike(lambda x: tj.while_loop(lambda v: v.sum() < 100, lambda v: [v * 2], [x]), tj.ones(3))
    alike(lambda x: tj.while_loop(lambda c: c.a.sum() < 100, lambda c: Pair(c.a * 2, c.b), Pair(x, 3)), tj.ones(3))


def test_while_loop_that_never_runs_and_that_stops_at_a_limit() -> None:
    alike(lambda x: tj.while_loop(lambda v: v.sum() < 0, lambda v: v * 2, x), tj.ones(3))
    f = lambda x: tj.while_loop(lambda v: v.sum() < 1e9, lambda v: v * 2, x, max_iterations=4)
    assert alike(f, tj.ones(3)).tolist() == [16.0] * 3


def test_carry_dtypes_are_promoted_to_a_fixed_point() -> None:
    out = tj.function(lambda x: tj.while_loop(lambda i, a, b: i < 3, lambda i, a, b: (i + 1, a + b, b + x), (0, 0, 0)))(
        tj.asarray(0.5)
    )
    assert [getattr(t, "dtype", type(t)) for t in out] == [int, tj.float32, tj.float32]
    assert [float(t) for t in out] == [3, 1.5, 1.5]


def test_loop_swaps_its_carries() -> None:
    alike(
        lambda a, b: tj.while_loop(lambda i, a, b: i < 5, lambda i, a, b: (i + 1, b, a + b), (0, a, b)),
        tj.ones(3),
        tj.zeros(3),
    )
    alike(
        lambda a, b: tj.while_loop(lambda i, a, b: i < 5, lambda i, a, b: (i + 1, b, a), (0, a, b)),
        tj.ones(3),
        tj.zeros(3),
    )


def test_loops_write_variables_and_draw_random_numbers() -> None:
    v = tj.Variable(1.0)

    def f(n: Any) -> Any:
        def body(i: Any) -> Any:
            v.assign_add(tj.cast(i, "float32") + tj.random.uniform())
            return i + 1

        return tj.while_loop(lambda i: i < n, body, 0)

    found = []
    for g in (f, tj.function(f), tj.function(f)):
        tj.random.seed(3)
        v.assign(1.0)
        g(tj.asarray(4))
        found.append((v.numpy().item(), tj.random.uniform().item()))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)
    assert found[1] == found[2]


def test_a_known_condition_is_a_python_loop() -> None:
    graph = tj.function(lambda x: tj.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2), (0, x))).trace(
        tj.ones(2)
    )
    assert count(graph, "while_loop") == 1  # the count is a traced number

    class Countdown:
        n = 3

        def going(self, v: Any) -> bool:
            self.n -= 1
            return self.n >= 0

    graph = tj.function(lambda x: tj.while_loop(Countdown().going, lambda v: v * 2, x)).trace(tj.ones(2))
    assert count(graph, "while_loop") == 0 and count(graph, "multiply") in (2, 3)


@pytest.mark.parametrize(
    ("body", "init", "words"),
    [
        (lambda c: c + tj.ones(3), 0.0, ["'carry'", "a Python float", "f32[3]"]),
        (lambda c: {"w": tj.zeros((2, 2))}, {"w": tj.zeros(2)}, ["'carry['w']'", "f32[2]", "f32[2, 2]"]),
        (lambda c: (c, c), tj.zeros(2), ["structure"]),
        (lambda c: {"w": c["w"], "k": None}, {"w": tj.zeros(2), "k": 1}, ["'carry['k']'", "None"]),
    ],
)
def test_carries_that_change_are_refused_by_name(body: Any, init: Any, words: list[str]) -> None:
    with pytest.raises(TracerError) as error:
        tj.function(lambda x: tj.while_loop(lambda c: x > 0, body, init))(tj.asarray(1.0))
    assert all(w in str(error.value) for w in ["while_loop at", "test_control.py", *words]), error.value


def test_names_of_the_caller_appear_in_errors() -> None:
    with pytest.raises(TracerError, match="'total' is"):
        tj.function(
            lambda x: tj.while_loop(
                lambda i, t: i < x, lambda i, t: (i + 1, tj.ones(2)), (0, 0.0), names=("i", "total")
            )
        )(tj.asarray(3))


def test_a_writing_condition_is_refused() -> None:
    with pytest.raises(TracerError, match="the condition writes"):
        tj.function(lambda x: tj.while_loop(lambda c: tj.random.uniform() < c, lambda c: c * 0.5, x))(tj.asarray(1.0))


# -- fori_loop, scan, map ----------------------------------------------------------------------------------------------
def test_fori_loop_with_known_and_unknown_bounds() -> None:
    assert alike(lambda x: tj.fori_loop(0, 10, lambda i, s: s + x * i, 0), 2.5) == 112.5
    assert (
        alike(lambda n, x: tj.fori_loop(0, n, lambda i, s: s + x[i], 0.0), tj.asarray(3), tj.arange(10) * 0.5).item()
        == 1.5
    )
    assert (
        alike(lambda n, x: tj.fori_loop(n, 5, lambda i, s: s + x[i], 0.0), tj.asarray(3), tj.arange(10) * 0.5).item()
        == 3.5
    )
    assert alike(lambda x: tj.fori_loop(3, 1, lambda i, s: s + i, x), tj.asarray(2.0)).item() == 2.0


def test_fori_loop_updates_rows() -> None:
    def f(x: Any) -> Any:
        def body(i: Any, t: Any) -> Any:
            t[i] = t[i - 1] * 2 + x
            return t

        return tj.fori_loop(1, 8, body, tj.zeros(8))

    alike(f, tj.asarray(1.0))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_scan(reverse: bool, rows: int) -> None:
    xs = {"a": tj.arange(rows * 2, dtype="float32").reshape(rows, 2), "b": tj.arange(rows)}

    def f(init: Any, xs: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            c = c * 0.5 + x["a"]
            return c, (c.sum() + x["b"], x["a"] * 2, None)

        return tj.scan(body, init, xs, reverse=reverse)

    alike(f, tj.ones(2), xs)


def test_scan_without_rows_needs_a_length() -> None:
    alike(lambda c: tj.scan(lambda c, _: (c * 2, c), c, length=4), tj.asarray(1.5))
    with pytest.raises(ValueError, match="length"):
        tj.scan(lambda c, _: (c, c), 1.0)
    with pytest.raises(ValueError, match="rows"):
        tj.scan(lambda c, x: (c, x), 1.0, (tj.ones(3), tj.ones(4)))


def test_map() -> None:
    alike(lambda x: tj.map(lambda r: (r.sum(), r[::-1]), x), tj.arange(12).reshape(3, 4))


def test_nested_loops_and_branches() -> None:
    def f(x: Any) -> Any:
        def row(c: Any, r: Any) -> Any:
            n = tj.while_loop(lambda k: k < r, lambda k: tj.cond(k % 2 > 0, lambda: k * 3, lambda: k + 1), c)
            return n, tj.cond(n > 10, lambda: n - 10, lambda: n)

        return tj.scan(row, 1, x)

    alike(f, tj.asarray([3, 5, 40, 2, 100]))


def test_matrices_in_loops() -> None:
    w = tj.asarray(np.random.default_rng(0).standard_normal((4, 4)).astype("float32") * 0.3)
    alike(
        lambda x: tj.scan(lambda h, r: (tj.tanh(h @ w + r), h.sum()), tj.zeros((2, 4)), x),
        tj.ones((6, 2, 4)),
        rtol=1e-5,
    )


def test_a_library_call_in_a_body() -> None:
    alike(lambda x: tj.fori_loop(0, 3, lambda i, v: tj.sort(v * -1.5), x), tj.asarray([3.0, 1.0, 2.0]))


def test_checks_inside_loops_raise() -> None:
    f = tj.function(lambda n, x: tj.fori_loop(0, n, lambda i, s: s + x[i], 0.0))
    x = tj.arange(4.0)
    assert f(tj.asarray(4), x).item() == 6.0
    with pytest.raises(IndexError, match="index 4 is out of bounds"):
        f(tj.asarray(6), x)
    assert f(tj.asarray(4), x).item() == 6.0


# -- associative_scan --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 33])
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan(n: int, reverse: bool) -> None:
    x = np.random.default_rng(n).standard_normal((2, n))
    wanted = np.cumsum(x[:, ::-1], axis=1)[:, ::-1] if reverse else np.cumsum(x, axis=1)
    found = alike(lambda t: tj.associative_scan(tj.add, t, axis=1, reverse=reverse), tj.asarray(x), rtol=1e-12)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-10, atol=1e-12)


def test_associative_scan_of_pairs_keeps_the_order() -> None:
    """Affine maps do not commute: y = a x + b, composed."""
    a, b = np.random.default_rng(0).standard_normal((2, 9))

    def compose(f: Any, g: Any) -> Any:
        return f[0] * g[0], f[1] * g[0] + g[1]

    found = alike(lambda a, b: tj.associative_scan(compose, (a, b)), tj.asarray(a), tj.asarray(b), rtol=1e-10)
    y = 0.0
    for k in range(9):
        y = a[k] * y + b[k]
        np.testing.assert_allclose(found[1][k].item(), y, rtol=1e-9)


# -- eager -------------------------------------------------------------------------------------------------------------
def test_eager_forms_are_plain_python(capsys: Any) -> None:
    seen = []

    def body(i: Any, x: Any) -> Any:
        seen.append(type(i))
        print("at", i, x.item())
        return x * 2

    assert tj.fori_loop(0, 3, body, tj.asarray(1.0)).item() == 8.0
    assert seen == [int] * 3 and capsys.readouterr().out.splitlines() == ["at 0 1.0", "at 1 2.0", "at 2 4.0"]
    assert math.isclose(tj.while_loop(lambda x: abs(x * x - 2) > 1e-12, lambda x: (x + 2 / x) / 2, 1.0), math.sqrt(2))


def test_text_shows_the_graphs_inside() -> None:
    graph = tj.function(lambda x: tj.while_loop(lambda v: v.sum() < 9, lambda v: v * 2, x)).trace(tj.ones(3))
    text = to_text(graph)
    assert "def cond_0(x0: 'f32[3]'):" in text and "def body_1(x0: 'f32[3]'):" in text
    assert "ops.while_loop(x0, cond=cond_0, body=body_1)" in text


# -- vmap, vectorize ---------------------------------------------------------------------------------------------------
def test_vmap() -> None:
    x, w = tj.arange(12.0).reshape(3, 4), tj.ones(4)
    alike(lambda x, w: tj.vmap(lambda r, w: (r * w, r.sum()), in_axes=(0, None))(x, w), x, w)
    alike(lambda x, w: tj.vmap(lambda r, w: r.sum() * w, in_axes=1, out_axes=1)(x, tj.ones((2, 4))), x, w)
    with pytest.raises(ValueError, match="in_axes"):
        tj.vmap(lambda a, b: a, in_axes=(0,))(x, w)


def test_vectorize_runs_a_loop_for_each_element() -> None:
    def steps(n: Any, most: Any) -> Any:
        step = lambda n, k: (tj.cond(n % 2 == 0, lambda: n // 2, lambda: 3 * n + 1), k + 1)
        return tj.while_loop(lambda n, k: (n > 1) & (k < most), step, (n, 0))[1]

    n = tj.asarray(np.arange(1, 41).reshape(5, 8))
    found = alike(lambda n, most: tj.vectorize(steps)(n, most), n, tj.asarray(60))
    assert found[3, 2].item() == 60 and found[0, 6].item() == 16  # 27 takes 111, 7 takes 16
    graph = tj.function(lambda n: tj.vectorize(steps)(n, 60)).lower(n).graph
    assert count(graph, "scan") == count(graph, "while_loop") == 0 and count(graph, "lane_loop") == 1


def test_a_branch_writes_a_value_from_around_it_as_it_is() -> None:
    """Which no op inside the branch has read."""
    v, other = tj.Variable(0.0), tj.Variable(7.0)

    def largest(x: Any) -> Any:
        if x > v:
            v.assign(x)
        elif x < -5:
            v.assign(other)
        return v + 1

    for f in (largest, tj.function(largest)):
        v.assign(0.0)
        assert [float(f(tj.constant(x))) for x in (2.0, 1.0, 3.0, -6.0)] == [3.0, 3.0, 4.0, 8.0]

    @tj.function
    def running(xs: Any) -> Any:
        for x in xs:
            if x > v:
                v.assign(x)
        return v.read_value()

    assert float(running(tj.constant([1.0, 9.0, 8.0]))) == float(v) == 9.0


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("start", [0.0, 0, tj.constant(0.0), (0, tj.constant(1))])
@pytest.mark.parametrize("rows", [0, 2])
def test_a_scan_of_no_rows_has_the_dtypes_of_one_of_some(dtype: str, start: Any, rows: int) -> None:
    def f(x):
        def turn(carry, r):
            if isinstance(carry, tuple):
                return (carry[0] + r, carry[1] * 2), carry[0]
            return carry + r, carry

        return tj.scan(turn, start, x)

    def kinds(result):
        return [np.asarray(y).dtype for y in flatten(result)[0]]

    x = tj.zeros(rows, dtype=dtype)
    wanted = kinds(f(tj.zeros(2, dtype=dtype)))
    assert kinds(f(x)) == wanted and kinds(tj.function(f, name="f")(x)) == wanted
