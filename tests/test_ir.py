"""Types, graphs, text that rebuilds the graph, verification."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit import ir, ops
from tracejit.ir import Graph, Node, Op, Type, count, reachable, to_text, verify
from tracejit.tensor import apply, evaluate
from tracejit.trace.tracer import trace_function

F34 = Type((3, 4), np.dtype("f4"))


def sample() -> Graph:
    def f(a, b):
        t = tj.exp(a * 2.5) + tj.asarray([1.0, float("inf"), -0.0, float("nan")])
        u = tj.where(t > 1, t, b.T.reshape(3, 4)).astype("float64")
        return u.sum(axis=0), tj.concat([a, a[::-1]], axis=0), b

    return trace_function(f, F34, Type((4, 3), np.dtype("f4")), name="sample")


def test_types() -> None:
    assert (
        repr(F34) == "f32[3, 4]"
        and repr(Type((), np.dtype(bool))) == "bool[]"
        and repr(Type((0,), np.dtype("u1"))) == "u8[0]"
    )
    assert F34.size == 12 and Type((), np.dtype("i8")).size == 1 and Type((0, 5), np.dtype("i8")).size == 0
    assert F34 == Type((3, 4), np.dtype("float32")) and hash(F34) == hash(Type((3, 4), np.dtype("float32")))
    assert pickle.loads(pickle.dumps(F34)) == F34


def all_ops() -> dict[str, Op]:
    """Every op of the package, by the name its text uses."""
    found: dict[str, Op] = {}
    for info in pkgutil.iter_modules(ops.__path__):
        for value in vars(importlib.import_module(f"tracejit.ops.{info.name}")).values():
            op = value if isinstance(value, Op) else getattr(value, "op", None)
            if isinstance(op, Op):
                found[op.name] = op
    return found


class Namespace:
    """`ops.name(inputs, attr=...)` applies the op, as printed text does."""

    def __init__(self) -> None:
        self.table = all_ops()

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **attrs: apply(self.table[name] if name != "constant" else ir.CONSTANT, args, attrs)


def test_text_rebuilds_the_graph() -> None:
    graph = sample()
    text = to_text(graph)
    space: dict[str, Any] = {"ops": Namespace(), "np": np, "inf": float("inf"), "nan": float("nan")}
    exec(text, space)
    again = trace_function(space["sample"], *(n.type for n in graph.inputs), name="sample")
    body = [line.split("  #")[0] for line in text.splitlines()]
    assert [line.split("  #")[0] for line in to_text(again).splitlines()] == body
    values = [tj.asarray(np.arange(12, dtype="f4").reshape(n.shape) / 7) for n in graph.inputs]
    for a, b in zip(evaluate(graph, values), evaluate(again, values), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_text_shows_types_names_and_lines() -> None:
    text = str(sample())
    assert text.startswith("def sample(x0, x1):") and "# f32[3, 4]  test_ir.py:" in text and "return (" in text
    assert "ops.full(shape=(3, 4), value=2.5, dtype='float32')" in text and "float('inf')" in text


def test_large_constants_are_parameters() -> None:
    graph = trace_function(lambda a: a + np.arange(12, dtype="f4").reshape(3, 4), F34)
    assert "def " in str(graph) and "(x0, c0)" in str(graph) and "# c0: f32[3, 4]  constant" in str(graph)


def test_reachable_users_and_count() -> None:
    graph = trace_function(lambda a: (a * a, a + 1)[0], F34)
    product = graph.outputs[0]
    assert reachable([product]) == {product, graph.inputs[0]}
    assert graph.users()[graph.inputs[0]].count(product) == 2 and count(graph, "add") == 1


def test_dot() -> None:
    dot = sample().to_dot()
    assert (
        dot.startswith('digraph "sample"')
        and dot.endswith("}")
        and dot.count("->") == sum(len(n.inputs) for n in sample().nodes)
    )


def damage(kind: str) -> Graph:
    graph = trace_function(lambda a: tj.exp(a * 2) + 1, F34)
    nodes = list(graph.nodes)
    if kind == "order":
        nodes[0], nodes[-1] = nodes[-1], nodes[0]
    elif kind == "type":
        nodes[1].type = Type((4, 3), np.dtype("f4"))
    elif kind == "twice":
        nodes.append(nodes[0])
    elif kind == "missing":
        del nodes[1]
    elif kind == "inference":
        nodes[1].inputs = (nodes[0],)
    elif kind == "output":
        return Graph(graph.inputs, tuple(nodes), (Node(nodes[0].op, (), {}, F34),), graph.name)
    return Graph(graph.inputs, tuple(nodes), graph.outputs, graph.name)


@pytest.mark.parametrize(
    "kind, message",
    [
        ("order", "not defined before"),
        ("type", "recorded is f32\\[4, 3\\]"),
        ("twice", "listed twice"),
        ("missing", "not defined before"),
        ("inference", "inference of multiply fails"),
        ("output", "an output is not defined"),
    ],
)
def test_verify_finds_damage(kind: str, message: str) -> None:
    with pytest.raises(tj.InternalError, match=message):
        verify(damage(kind))


def test_verify_accepts_good_graphs() -> None:
    verify(sample())
    verify(Graph((), (), ()))
