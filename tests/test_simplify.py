"""Simplification rules. Each rule is tried on zeros of both signs, infinities, nan, subnormal, huge and integer
extremes, for every
dtype it claims, because it is in the table."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.ir import Graph, Type
from tracejit.ops import core
from tracejit.ops import elementwise as ew
from tracejit.tensor import evaluate, recording, wrap
from tracejit.trace.passes import simplify as module
from tracejit.trace.passes.dce import dce
from tracejit.trace.passes.simplify import MOVES, RULES, Rule, simplify, simplify_fast, trace_pattern
from tracejit.trace.tracer import trace_function

DTYPES = {
    "f": ("float16", "float32", "float64"),
    "i": ("int8", "int32", "int64"),
    "u": ("uint8", "uint64"),
    "b": ("bool",),
    "c": ("complex64", "complex128"),
}


def special(dtype: np.dtype) -> np.ndarray:
    """The values on which identities of real numbers fail."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.array(
            [0, 1, 2, 7, info.max, info.min, info.max - 1, info.max // 2 + 1, -1 if dtype.kind == "i" else 3], dtype
        )
    if dtype.kind == "f":
        info = np.finfo(dtype)
        values = [0.0, 1.0, 1.5, 3.0, 0.3, float(info.max), float(info.tiny), float(info.smallest_subnormal), np.inf]
        return np.array([*values, *(-v for v in values), np.nan], dtype)
    parts = special(np.dtype("f4"))[[0, 1, 5, 8, 9, 10, 17, 18]]
    return np.array([complex(a, b) for a in parts for b in parts], dtype)


def identical(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal values, zeros of equal sign, nan for nan."""
    if a.dtype != b.dtype:
        return False
    if a.dtype.kind == "c":
        return identical(a.real, b.real) and identical(a.imag, b.imag)
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    nan = np.isnan(a)
    return bool(
        np.array_equal(nan, np.isnan(b))
        and np.array_equal(a[~nan], b[~nan])
        and np.array_equal(np.signbit(a[~nan]), np.signbit(b[~nan]))
    )


def shape_of(graph: Graph) -> list[Any]:
    """A graph up to names: ops, attributes and where inputs come from."""
    place = {n: k for k, n in enumerate((*graph.inputs, *graph.nodes))}
    nodes: list[Any] = [
        (n.op.name, [place[i] for i in n.inputs], {k: str(v) for k, v in n.attrs.items()}) for n in graph.nodes
    ]
    return [*nodes, [place[n] for n in graph.outputs]]


def title(rule: Rule) -> str:
    return inspect.getsource(rule.before).strip().removeprefix("Rule(")[:70]


def cases(rules: list[Rule]) -> list[Any]:
    found = []
    for k, rule in enumerate(rules):
        for kind in "f" if rule.conditions else rule.kinds:
            found += [pytest.param(rule, np.dtype(d), id=f"{k}: {title(rule)} {d}") for d in DTYPES[kind]]
    return found


def sides(rule: Rule, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Both sides of a rule on all combinations of special values."""
    before, after = trace_pattern(rule, dtype), trace_pattern(rule, dtype, after=True)
    grids = itertools.product(*(special(n.dtype) for n in before.inputs))
    found: list[list[np.ndarray]] = [[], []]
    with recording(None), np.errstate(all="ignore"):
        for values in grids:
            for side, graph in enumerate((before, after)):
                found[side].append(evaluate(graph, [wrap(np.asarray(v)) for v in values])[0].numpy())
    return np.array(found[0]), np.array(found[1])


@pytest.mark.parametrize("rule, dtype", cases([r for r in RULES if not r.fast]))
def test_rules_hold_for_all_values(rule: Rule, dtype: np.dtype) -> None:
    before, after = sides(rule, dtype)
    assert identical(before, after)


@pytest.mark.parametrize("rule, dtype", cases([r for r in RULES if r.fast]))
def test_fast_rules_hold_for_ordinary_values(rule: Rule, dtype: np.dtype) -> None:
    graph, after = trace_pattern(rule, dtype), trace_pattern(rule, dtype, after=True)
    values = [wrap(np.random.default_rng(k).uniform(0.5, 2, ()).astype(n.dtype)) for k, n in enumerate(graph.inputs)]
    with recording(None):
        np.testing.assert_allclose(
            evaluate(graph, values)[0].numpy(), evaluate(after, values)[0].numpy(), rtol=8 * np.finfo(dtype).eps
        )


@pytest.mark.parametrize("rule, dtype", cases([r for r in RULES if r.fast and "x + 0" not in title(r)]))
def test_fast_rules_are_marked_because_they_fail_somewhere(rule: Rule, dtype: np.dtype) -> None:
    before, after = sides(rule, dtype)
    assert not identical(before, after)


@pytest.mark.parametrize("rule, dtype", cases(list(RULES)))
def test_every_rule_matches_its_own_pattern(rule: Rule, dtype: np.dtype) -> None:
    pattern = trace_pattern(rule, dtype)
    done = dce((simplify_fast if rule.fast else simplify)(pattern))
    assert shape_of(done) == shape_of(
        dce((simplify_fast if rule.fast else simplify)(trace_pattern(rule, dtype, after=True)))
    )
    assert shape_of(done) != shape_of(dce(pattern))
    if rule.fast:
        assert shape_of(dce(simplify(pattern))) == shape_of(dce(pattern))


def test_unsound_rules_would_be_found() -> None:
    for before, after in [
        (lambda x: x + 0, lambda x: x),
        (lambda x: x * 0, module._zero),
        (lambda x: x - x, module._zero),
        (lambda x: tj.log(tj.exp(x)), lambda x: x),
    ]:
        assert not identical(*sides(Rule(before, after, "f"), np.dtype("f4")))


# -- rules about attributes
# ---------------------------------------------------------------------------------------------------
def ops_of(f: Callable[..., Any], *types: tuple[tuple[int, ...], str], fast: bool = False) -> list[str]:
    """Names of the ops left of a function's graph; values must not change."""
    graph = trace_function(f, *(Type(s, np.dtype(d)) for s, d in types))
    done = dce((simplify_fast if fast else simplify)(graph))
    assert [repr(n) for n in dce(simplify(done)).nodes] == [repr(n) for n in done.nodes]
    random = np.random.default_rng(0)
    values = [
        wrap((random.integers(-9, 9, s) if np.dtype(d).kind in "iu" else random.uniform(-2, 2, s)).astype(d))
        for s, d in types
    ]
    with recording(None):
        for a, b in zip(evaluate(graph, values), evaluate(done, values), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
            assert a.dtype == b.dtype
    return [n.op.name for n in done.nodes]


F = "float32"


@pytest.mark.parametrize("f, types, left", [
    (lambda a: a.reshape(6).reshape(2, 3).reshape(3, 2), [((2, 3), F)], ["reshape"]),
    (lambda a: a.reshape(6).reshape(2, 3), [((2, 3), F)], []),
    (lambda a: a.T.T, [((2, 3), F)], []),
    (lambda a: tj.permute_dims(tj.permute_dims(a, (1, 2, 0)), (0, 2, 1)), [((2, 3, 4), F)], ["transpose"]),
    (lambda a: tj.permute_dims(tj.permute_dims(a, (1, 2, 0)), (2, 0, 1)), [((2, 3, 4), F)], []),
    (lambda a: tj.broadcast_to(tj.broadcast_to(a, (2, 3)), (4, 2, 3)), [((3,), F)], ["broadcast_to"]),
    (lambda a: a[1:][::2], [((9,), F)], ["slice"]),
    (lambda a: a[::-1][::-1], [((9,), F)], []),
    (lambda a: a[8:1:-2][1:3], [((9,), F)], ["slice"]),
    (lambda a: a[:], [((9,), F)], []),
    (lambda a: tj.concat([a], axis=0), [((9,), F)], []),
    (lambda a: a.astype("float64").astype("float32"), [((3,), F)], []),
    (lambda a: a.astype("int64").astype("int32"), [((3,), "int32")], []),
    (lambda a: a.astype("int64").astype("int8"), [((3,), "int32")], ["cast"]),
    (lambda a: a.astype("float32").astype("float64"), [((3,), "int16")], ["cast"]),
    (lambda a: a.astype("float32").astype("float64"), [((3,), "int32")], ["cast", "cast"]),
    (lambda a: a.astype("int32").astype("float32"), [((3,), F)], ["cast", "cast"]),
    (lambda a: a.astype("float16").astype("float32"), [((3,), F)], ["cast", "cast"]),
    (lambda a: a / 4, [((3,), F)], ["full", "multiply"]),
    (lambda a: a / 3, [((3,), F)], ["full", "divide"]),
    (lambda a: tj.where(tj.full(a.shape, True), a, a + 1), [((3,), F)], []),
    (lambda a: tj.where(tj.full(a.shape, False), a + 1, a), [((3,), F)], []),
    (lambda a: core.MUL_ZERO(a, core.full(2.0, a.shape, a.dtype)), [((3,), F)], ["full", "multiply"]),
    (lambda a: core.MUL_ZERO(a, core.full(float("inf"), a.shape, a.dtype)), [((3,), F)], ["full", "mul_zero"]),
    (lambda a: core.MUL_ZERO(core.full(0.0, a.shape, a.dtype), a), [((3,), F)], ["full"]),
    (lambda a: ew.mul_zeros(a, core.full(2.0, a.shape, a.dtype)), [((3,), F)], ["full", "multiply"]),
    (lambda a: ew.mul_zeros(core.full(float("inf"), a.shape, a.dtype), a), [((3,), F)], ["full", "mul_zero"]),
    (lambda a: ew.mul_zeros(a, core.full(0.0, a.shape, a.dtype)), [((3,), F)], ["full"]),
    (lambda a: tj.negative(-(a * 1 + -0.0)) - 0, [((3,), F)], []),
    (lambda a: a + 0, [((3,), F)], ["full", "add"]),
    (lambda a: a - (-(a * -1)), [((3,), F)], ["subtract"]),
    (lambda a, b: a - (-(b * 2)), [((3,), F), ((3,), F)], ["full", "multiply", "add"]),
])  # fmt: skip
def test_moves(f: Any, types: Any, left: list[str]) -> None:
    assert ops_of(f, *types) == left


def test_division_by_powers_of_two_is_exact() -> None:
    for dtype in ("float32", "float64"):
        x = special(np.dtype(dtype))
        for by in (2.0, -8.0, 0.25, 2.0**100, 2.0**-100):
            graph = trace_function(lambda a, by=by: a / by, Type(x.shape, np.dtype(dtype)))
            done = simplify(graph)
            assert "multiply" in [n.op.name for n in done.nodes]
            with recording(None), np.errstate(all="ignore"):
                assert identical(evaluate(graph, [wrap(x)])[0].numpy(), evaluate(done, [wrap(x)])[0].numpy())
    graph = trace_function(lambda a: a / 2.0**127, Type((3,), np.dtype("f4")))
    assert "divide" in [n.op.name for n in simplify(graph).nodes]  # its inverse is subnormal


def test_fastmath_turns_rules_on() -> None:
    assert ops_of(lambda a: a / 1.25 * 1, ((3,), F)) == ["full", "divide"]
    graph = trace_function(lambda a: a / 3 + 0 * a, Type((3,), np.dtype(F)))
    assert "divide" in [n.op.name for n in simplify(graph).nodes]
    assert [n.op.name for n in dce(simplify_fast(simplify_fast(graph))).nodes] == ["full", "multiply"]
    f = tj.function(lambda a: tj.exp(tj.log(a)) + 0, fastmath=True)
    assert not f.lower(tj.ones(3)).graph.nodes and tj.function(lambda a: a + 0).lower(tj.ones(3)).graph.nodes


def test_every_move_is_tried_above() -> None:
    tried = {"reshape", "transpose", "broadcast_to", "slice", "concat", "cast", "where", "divide", "mul_zero",
             "mul_zeros"}
    assert set(MOVES) == tried


def test_a_rule_that_changes_the_type_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MOVES, "reshape", lambda inputs, attrs, type, fast: wrap(inputs[0]))
    graph = trace_function(lambda a: a.reshape(6), Type((2, 3), np.dtype(F)))
    with pytest.raises(tj.InternalError, match="a rule turned"):
        simplify(graph)


def test_long_chains_simplify_in_one_sweep() -> None:
    def f(a):
        for _ in range(50):
            a = -(a.reshape(6).reshape(2, 3)).T.T
        return a

    graph = trace_function(f, Type((2, 3), np.dtype(F)))
    assert len(dce(simplify(graph)).nodes) == 0
