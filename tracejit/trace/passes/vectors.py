"""Products with a vector as sums: they read each element of the matrix once, so they fuse like any reduction. So do
many rows of a few elements by a matrix of a few columns: kernels write their sums out, and vectors hold many rows.

In and out: a graph. Other products of matrices stay: their tiles use what they read many times. So do those of windows,
whose elements are in many windows each.
"""

from __future__ import annotations

from typing import Any

from tracejit.dims import is_symbolic
from tracejit.ir import Graph, Node
from tracejit.lower.access import FEW
from tracejit.ops import core
from tracejit.ops.movement import reshaped
from tracejit.ops.reduction import sum as total
from tracejit.trace.tracer import rewrite

MANY = 64  # rows from which vectors run along them


def vectors(graph: Graph) -> Graph:
    """Replace products with one row or one column, and of many rows with few columns."""
    return rewrite(graph, _rule) if any(_has_vector(n) or _is_narrow(n) for n in graph.nodes) else graph


def _has_vector(node: Node) -> bool:
    vector = node.op.name == "matmul" and node.dtype.char in "fdFD" and 1 in node.shape[-2:]
    return vector and not (node.shape[-2] != 1 and node.dtype.char in "fd" and _of_windows(node.inputs[0]))


def _is_narrow(node: Node) -> bool:
    if node.op.name != "matmul" or node.dtype.char not in "fd" or any(map(is_symbolic, node.shape)):
        return False
    m, n = node.shape[-2:]
    k = node.inputs[0].shape[-1]
    return m >= MANY and n in FEW and (k == 1 or k in FEW) and not _of_windows(node.inputs[0])


def _of_windows(node: Node) -> bool:
    while node.op.kind == "movement" and len(node.inputs) == 1:
        if node.op.name == "shear":
            return True
        node = node.inputs[0]
    return False


def _rule(node: Node, args: list[Any]) -> Any:
    narrow = _is_narrow(node)
    if not (narrow or _has_vector(node)):
        return None
    a, b = args
    *batch, m, n = node.shape
    k = a.shape[-1]
    if narrow:
        shape = (*batch, m, k, n)
        left, right = reshaped(a, (*batch, m, k, 1)), reshaped(b, (*batch, 1, k, n))
        return total(core.broadcast_to(left, shape) * core.broadcast_to(right, shape), axis=-2)
    if n == 1:
        row = core.broadcast_to(reshaped(b, (*batch, 1, k)), a.shape)
        return reshaped(total(a * row, axis=-1), node.shape)
    column = core.broadcast_to(reshaped(a, (*batch, k, 1)), b.shape)
    return reshaped(total(column * b, axis=-2), node.shape)
