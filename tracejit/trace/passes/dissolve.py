"""Marks dissolved: once derivatives have been taken, what only they look at goes.

In and out: a graph. `identity` and `stop_gradient` give way to their input, `custom_gradient` to the results it marks,
`checkpoint` to its body, convolutions to products of matrices. `after` stays: it keeps a recomputation apart from the
first computation until cse has run (see `settle`).
"""

from __future__ import annotations

from typing import Any

from tracejit.ir import Graph, Node
from tracejit.ops.convolution import as_product
from tracejit.ops.pooling import written_out
from tracejit.tensor import evaluate
from tracejit.trace.tracer import rewrite


def dissolve(graph: Graph) -> Graph:
    """Replace marks by what they stand for."""
    if not any(n.op.name in _MARKS for n in graph.nodes):
        return graph
    return rewrite(graph, _rule)


def _rule(node: Node, args: list[Any]) -> Any:
    found = _MARKS.get(node.op.name)
    return None if found is None else found(node, args)


def _body(node: Node, args: list[Any]) -> tuple[Any, ...]:
    return tuple(evaluate(node.attrs["body"], args, _rule))


_MADE = {**as_product, **written_out}
_MARKS = {
    "identity": lambda node, args: args[0],
    "stop_gradient": lambda node, args: args[0],
    "custom_gradient": lambda node, args: tuple(args[: node.attrs["results"]]),
    "checkpoint": _body,
    **dict.fromkeys(_MADE, lambda node, args: _MADE[node.op.name](*args, **node.attrs)),
}


def settle(graph: Graph) -> Graph:
    """Drop `after` nodes: from here on program order is all the order there is."""
    if not any(n.op.name == "after" for n in graph.nodes):
        return graph
    return rewrite(graph, lambda node, args: args[0] if node.op.name == "after" else None)
