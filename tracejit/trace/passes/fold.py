"""Constant folding: evaluate what is known at trace time, up to a size.

In and out: a graph. A value whose elements are all the same becomes a literal (`full`), of any size: nothing is stored.
Others become constants of at most `LIMIT` elements, so that no large array is computed, or kept, at compile time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracejit.dims import is_symbolic
from tracejit.ir import CONSTANT, Graph, Node
from tracejit.ops import core
from tracejit.quiet import quietly
from tracejit.tensor import Tensor, constant_value
from tracejit.trace.tracer import rewrite

LIMIT = 1024  # elements


def fold(graph: Graph) -> Graph:
    """Replace nodes whose inputs are known by their values."""
    return rewrite(graph, _rule)


def _rule(node: Node, args: list[Any]) -> Tensor | None:
    if node.op is CONSTANT:
        value = node.attrs["value"]
        return _uniform(value, value.shape)
    if not args or node.op.stateful or isinstance(node.type, tuple) or not all(isinstance(a, Tensor) for a in args):
        return None
    literals = [_literal(a) for a in args]
    if node.op.kind in ("elementwise", "movement") and all(v is not None for v in literals):
        if node.op.kind == "elementwise":  # one element stands for all
            value = np.asarray(quietly(node.op.eager, *literals, **node.attrs))
            return core.full(value.item(), node.shape, node.dtype)
        if len(args) == 1 and "value" not in node.attrs:
            return core.full(literals[0].item(), node.shape, node.dtype)  # type: ignore[union-attr]
    if any(is_symbolic(n.shape) for n in (node, *args)):
        return None  # (its extent is not known)
    largest = max(a.size for a in args)
    if max(node.type.size, largest) > LIMIT or (node.op.kind == "movement" and node.type.size > largest):
        return None  # (a broadcast constant is only more to read)
    values = [_value(a, literal) for a, literal in zip(args, literals)]
    if any(v is None for v in values):
        return None
    try:
        value = np.asarray(quietly(node.op.eager, *values, **node.attrs))
    except IndexError:
        return None  # an index out of range: the error belongs to the run
    uniform = _uniform(value, node.shape)
    return uniform if uniform is not None else core.constant_tensor(np.array(value, order="C"))


def _literal(t: Tensor) -> np.ndarray | None:
    """The one number that fills `t`, 0-d, if it is a literal."""
    node = t._value
    if isinstance(node, Node) and node.op.name == "full" and not is_symbolic(node.attrs["value"]):
        return np.asarray(node.attrs["value"]).astype(node.dtype)
    return None


def _value(t: Tensor, literal: np.ndarray | None) -> np.ndarray | None:
    return np.full(t.shape, literal) if literal is not None else constant_value(t)


def _uniform(value: np.ndarray, shape: tuple[int, ...]) -> Tensor | None:
    """A literal, if all elements have the same bits."""
    if not 0 < value.size <= LIMIT:
        return None
    first = value.reshape(-1)[:1]
    if first.tobytes() * value.size != value.tobytes():
        return None
    return core.full(first[0].item(), shape, value.dtype)
