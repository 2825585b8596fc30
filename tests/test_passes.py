"""Folding, common subexpressions, dead code, and the runner. A pass test is an equation: two plain functions, before
and after."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit import config
from tracejit.function import PASSES
from tracejit.ir import Graph, Op, Type, count, verify
from tracejit.ops import core
from tracejit.tensor import apply, evaluate
from tracejit.trace.passes.cse import cse
from tracejit.trace.passes.dce import dce
from tracejit.trace.passes.fold import LIMIT, fold
from tracejit.trace.passes.simplify import simplify
from tracejit.trace.runner import close, compare, run, sample
from tracejit.trace.tracer import trace_function

A = Type((3, 4), np.dtype("f4"))
NOTE = Op("note", "library", infer=lambda x: x, eager=lambda x: x, stateful=True)


def shape_of(graph: Graph) -> list[Any]:
    """A graph up to names: ops, attributes and where inputs come from."""
    place = {n: k for k, n in enumerate((*graph.inputs, *graph.nodes))}
    found: list[Any] = [
        (n.op.name, [place[i] for i in n.inputs], {k: str(v) for k, v in n.attrs.items()}) for n in graph.nodes
    ]
    return [*found, [place[n] for n in graph.outputs]]


def check(pass_: Callable[[Graph], Graph], before: Callable[..., Any], after: Callable[..., Any], *types: Type) -> None:
    """pass_(before) is after, once dead code is gone; doing it twice changes nothing; values stay."""
    types = types or (A, A)
    start = trace_function(before, *types, name="f")
    done = pass_(start)
    verify(done)
    assert shape_of(dce(done)) == shape_of(dce(trace_function(after, *types, name="f"))), str(done)
    assert shape_of(pass_(done)) == shape_of(done)
    assert done.name == start.name and [n.name for n in done.inputs] == [n.name for n in start.inputs]
    compare(start, done)


# -- fold
# ------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("before, after", [
    (lambda a, b: a + (tj.ones(a.shape) * 2 + 1), lambda a, b: a + 3.0),
    (lambda a, b: a * tj.exp(tj.zeros((4,))), lambda a, b: a * 1.0),
    (lambda a, b: a * tj.asarray(2.0).reshape(1, 1), lambda a, b: a * 2.0),
    (lambda a, b: a * tj.full((3, 1), 2.0).T.reshape(3, 1), lambda a, b: a * 2.0),
    (lambda a, b: a + tj.asarray(3), lambda a, b: a + 3.0),
    (lambda a, b: a * tj.asarray([[2.0], [2.0], [2.0]]), lambda a, b: a * 2.0),
    (lambda a, b: a * tj.where(tj.asarray(True), 2.0, 5.0), lambda a, b: a * 2.0),
    (lambda a, b: a - -0.0, lambda a, b: a - -0.0),
])  # fmt: skip
def test_fold_to_literals(before: Any, after: Any) -> None:
    check(fold, before, after)


def test_fold_small_constants() -> None:
    graph = fold(trace_function(lambda a: a + tj.asarray([1.0, 2.0, 3.0, 4.0]) * 2 + tj.asarray([3.0, 1.0]).sum(), A))
    values = [n.attrs["value"].tolist() for n in dce(graph).nodes if n.op.name == "constant" and n.type.size == 4]
    assert [2.0, 4.0, 6.0, 8.0] in values and any(
        n.attrs.get("value") == 4.0 for n in graph.nodes if n.op.name == "full"
    )


def test_fold_has_a_size_limit() -> None:
    graph = fold(trace_function(lambda: tj.ones((300, 300, 300)).sum()))
    assert count(graph, "sum") == 1
    big = np.arange(LIMIT + 1, dtype="f4")
    graph = fold(trace_function(lambda: tj.asarray(big) * 2 + tj.asarray(big[:5])[0]))
    assert (
        count(graph, "multiply") == 1
        and max(n.attrs["value"].size for n in graph.nodes if n.op.name == "constant") == LIMIT + 1
    )


def fits(value: Any, dtype: str) -> bool:
    try:
        tj.full((2,), value, dtype=dtype)
    except (OverflowError, TypeError, ValueError):
        return False
    return True


ODD_VALUES = [float("nan"), float("inf"), -0.0, 1e-45, 2**63, -(2**63), True, 1.5 - 2j]
DTYPES = ["float16", "float32", "float64", "uint64", "int64", "bool", "complex64"]


@pytest.mark.parametrize(("value", "dtype"), [(v, d) for v in ODD_VALUES for d in DTYPES if fits(v, d)])
def test_folded_values_are_what_eager_gives(value: Any, dtype: str) -> None:
    want = tj.full((2,), value, dtype=dtype)

    def f(a):
        return a, tj.full((2,), value, dtype=dtype).reshape(2, 1)

    done = fold(trace_function(f, A))
    assert done.outputs[1].op.name == "full"
    got = evaluate(done, [tj.ones(A.shape)])[1].numpy().reshape(2)
    assert got.tobytes() == want.numpy().tobytes() or (np.isnan(got).all() and np.isnan(want.numpy()).all())


def test_fold_leaves_effects_and_random_sources() -> None:
    graph = fold(trace_function(lambda a: a + apply(NOTE, (tj.asarray([1.0, 2.0, 3.0, 4.0]),), {}), A))
    assert count(graph, "note") == 1


# -- cse
# -------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("before, after", [
    (lambda a, b: tj.exp(a) + tj.exp(a), lambda a, b: (lambda e: e + e)(tj.exp(a))),
    (lambda a, b: (a * 2 + b) * (a * 2 + b), lambda a, b: (lambda e: e * e)(a * 2 + b)),
    (lambda a, b: a.sum(axis=0) + a.sum(axis=1)[0], lambda a, b: a.sum(axis=0) + a.sum(axis=1)[0]),
    (lambda a, b: (a + 0.0) * (a + -0.0), lambda a, b: (a + 0.0) * (a + -0.0)),
    (lambda a, b: a * tj.asarray([1.0, 2.0, 3.0, 4.0]) + tj.asarray([1.0, 2.0, 3.0, 4.0]),
     lambda a, b: (lambda c: a * c + c)(tj.broadcast_to(tj.asarray([1.0, 2.0, 3.0, 4.0]), a.shape))),
])  # fmt: skip
def test_cse(before: Any, after: Any) -> None:
    check(lambda g: dce(cse(g)), before, after)


def test_cse_tells_types_and_signs_apart() -> None:
    def f(a):
        return [
            core.full(v, (3,), np.dtype(d))
            for v, d in [
                (0.0, "f4"),
                (-0.0, "f4"),
                (0, "f4"),
                (0, "i4"),
                (False, "f4"),
                (0.0, "f4"),
                (float("nan"), "f4"),
                (float("nan"), "f4"),
            ]
        ]

    assert len(cse(trace_function(f, A)).nodes) == 6


def test_cse_never_merges_effects() -> None:
    graph = cse(trace_function(lambda a: apply(NOTE, (a,), {}) + apply(NOTE, (a,), {}), A))
    assert count(graph, "note") == 2


def test_cse_merges_nodes_of_tuple_type() -> None:
    both = Op("both", "control", infer=lambda x: (x, x), eager=lambda x: (x + 1, x + 2))
    graph = dce(cse(trace_function(lambda a: apply(both, (a,), {})[0] + apply(both, (a,), {})[1], A)))
    verify(graph)
    assert count(graph, "both") == 1


# -- dce
# -------------------------------------------------------------------------------------------------------------------
def test_dce() -> None:
    check(dce, lambda a, b: (tj.exp(a) * b, a + 1)[1], lambda a, b: a + 1)
    graph = dce(trace_function(lambda a: (apply(NOTE, (a * 2,), {}), a + 1)[1], A))
    assert [n.op.name for n in graph.nodes] == ["full", "multiply", "note", "full", "add"]
    assert len(dce(trace_function(lambda a, b: a, A, A)).inputs) == 2


# -- all of them
# ---------------------------------------------------------------------------------------------------------------
def programs() -> list[Callable[..., Any]]:
    return [
        lambda a, b: tj.exp(a * 2) / (b + 1.5) - a.T.T,
        lambda a, b: ((a - a.mean(axis=1, keepdims=True)) ** 2).sum(axis=1) / 4,
        lambda a, b: tj.where(a > 0, a, b)[::-1][1:].reshape(8) * tj.ones(8),
        lambda a, b: tj.concat([a, b * 1], axis=0).astype("float64").astype("float32").max(axis=0) + 0,
        lambda a, b: (tj.sort(a, axis=1), a @ b.T, b, 3.0 * tj.ones(2)),
        lambda a, b: tj.grad(lambda v: (tj.tanh(v) * b).sum())(a),
    ]


@pytest.mark.parametrize("k", range(6))
@pytest.mark.parametrize("pass_", [fold, simplify, cse, dce])
def test_passes_keep_values_and_are_idempotent(pass_: Any, k: int) -> None:
    start = trace_function(programs()[k], A, A)
    done = pass_(start)
    verify(done)
    compare(start, done)
    assert shape_of(dce(pass_(dce(done)))) == shape_of(dce(done))


@pytest.mark.parametrize("k", range(6))
def test_the_pipeline_reaches_a_fixed_point(k: int) -> None:
    once = run(PASSES, trace_function(programs()[k], A, A))
    assert len(run(PASSES, once).nodes) == len(once.nodes)


def test_time_is_nearly_linear_in_the_graph() -> None:
    def f(n: int) -> Graph:
        def chain(a):
            for k in range(n):
                a = tj.exp(a * 1.5) + k
            return a

        return trace_function(chain, A)

    small, large = f(100), f(800)

    def seconds(g: Graph) -> float:
        return min(timeit.repeat(lambda: run(PASSES, g), number=1, repeat=3))

    assert seconds(large) < 16 * seconds(small) + 0.05


# -- the runner
# ------------------------------------------------------------------------------------------------------------------
@pytest.fixture
def debug(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`config.debug`, restored afterwards."""
    for name in ("dump", "check", "skip"):
        monkeypatch.setattr(config.debug, name, getattr(config.debug, name))
    return config.debug


def graph() -> Graph:
    return trace_function(lambda a: a * 2 + tj.exp(a * 2), A, name="f")


def test_runner_reports_each_step(debug: Any) -> None:
    seen: list[Any] = []
    run(PASSES, graph(), lambda *step: seen.append(step))
    assert [name for name, _, _ in seen] == ["trace", *(p.__name__ for p in PASSES)]
    assert all(isinstance(g, Graph) and seconds >= 0 for _, g, seconds in seen)


def test_runner_dumps_runnable_text(debug: Any, tmp_path: Any) -> None:
    debug.dump = str(tmp_path)
    run(PASSES, graph())
    (folder,) = tmp_path.iterdir()
    names = sorted(p.name for p in folder.iterdir())
    assert names == ["00_trace.py", *(f"{k:02d}_{p.__name__}.py" for k, p in enumerate(PASSES, 1))]
    compile(
        (folder / "03_cse.py").read_text() if "03_cse.py" in names else (folder / names[-1]).read_text(), "dump", "exec"
    )


def test_runner_skips_by_name(debug: Any) -> None:
    assert count(run(PASSES, graph()), "multiply") == 1
    debug.skip = frozenset(["cse"])
    assert count(run(PASSES, graph()), "multiply") == 2


def bad_values(g: Graph) -> Graph:
    return trace_function(lambda a: a * 2 + tj.exp(a * 3), A, name=g.name)


def bad_types(g: Graph) -> Graph:
    g = cse(g)
    g.nodes[0].type = Type((9,), np.dtype("f4"))
    return g


def broken(g: Graph) -> Graph:
    raise KeyError("inside")


@pytest.mark.parametrize(
    "pass_, level, message",
    [(bad_types, 1, "recorded is f32\\[9\\]"), (bad_values, 2, "output 0 differs"), (broken, 0, "KeyError: 'inside'")],
)
def test_runner_names_the_pass_that_failed(debug: Any, pass_: Any, level: int, message: str) -> None:
    debug.check = level
    with pytest.raises(tj.InternalError, match=rf"while running pass {pass_.__name__} on f: .*{message}") as info:
        run((cse, pass_), graph())
    assert info.value.__cause__ is not None and "TRACEJIT_DUMP" in str(info.value)


def test_checks_can_be_lowered(debug: Any) -> None:
    debug.check = 1
    run((bad_values,), graph())
    debug.check = 0
    run((bad_types,), graph())


def test_functions_run_with_value_checks(debug: Any) -> None:
    debug.check = 2
    f = tj.function(lambda a, i: tj.sort(a * 2)[i] + a[i].astype("float64").astype("float32"))
    a, i = np.random.default_rng(0).random(5).astype("f4"), np.array([4, 0])
    np.testing.assert_allclose(f(a, i).numpy(), np.sort(a * 2)[i] + a[i])


def test_close() -> None:
    x = np.array([1.0, np.nan, np.inf], "f4")
    assert (
        close(x, x)
        and not close(x, x[::-1])
        and close(np.array([1.0]), np.array([1.0 + 1e-15]))
        and not close(np.array([1]), np.array([2]))
    )
    assert sample(Type((3,), np.dtype("i4")), np.random.default_rng(0)).dtype == np.int32
