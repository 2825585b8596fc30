"""Products with a vector as sums: they read each element of the matrix once, so they fuse like any reduction.

In and out: a graph. Products of matrices stay: their tiles use what they read many times. So do those of windows, whose
elements are in many windows each.
"""

from __future__ import annotations

from typing import Any

from tracejit.ir import Graph, Node
from tracejit.ops import core
from tracejit.ops.movement import reshaped
from tracejit.ops.reduction import sum as total
from tracejit.trace.tracer import rewrite


def vectors(graph: Graph) -> Graph:
    """Replace products with one row or one column."""
    return rewrite(graph, _rule) if any(map(_has_vector, graph.nodes)) else graph


def _has_vector(node: Node) -> bool:
    vector = node.op.name == "matmul" and node.dtype.char in "fdFD" and 1 in node.shape[-2:]
    return vector and not (node.shape[-2] != 1 and node.dtype.char in "fd" and _of_windows(node.inputs[0]))


def _of_windows(node: Node) -> bool:
    while node.op.kind == "movement" and len(node.inputs) == 1:
        if node.op.name == "shear":
            return True
        node = node.inputs[0]
    return False


def _rule(node: Node, args: list[Any]) -> Any:
    if not _has_vector(node):
        return None
    a, b = args
    *batch, _, n = node.shape
    k = a.shape[-1]
    if n == 1:
        row = core.broadcast_to(reshaped(b, (*batch, 1, k)), a.shape)
        return reshaped(total(a * row, axis=-1), node.shape)
    column = core.broadcast_to(reshaped(a, (*batch, k, 1)), b.shape)
    return reshaped(total(column * b, axis=-2), node.shape)
