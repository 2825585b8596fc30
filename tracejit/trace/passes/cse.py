"""Common subexpressions: one node for each distinct op, inputs and attributes.

In and out: a graph. Stateful ops are never merged.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from tracejit.dims import is_symbolic
from tracejit.ir import Graph, Node, has_effects
from tracejit.tensor import Tensor, apply
from tracejit.trace.tracer import rewrite

_COMPARED = 1 << 16  # bytes of a constant that are compared; larger ones are told apart by identity


def cse(graph: Graph) -> Graph:
    """Merge nodes that compute the same value."""
    seen: dict[Hashable, Any] = {}

    def rule(node: Node, args: list[Tensor]) -> Any:
        if has_effects(node):
            return None
        # a tuple (the result of a control op) is kept by `seen`, so its id stays its own
        key = node.op, tuple([id(a._value) if isinstance(a, Tensor) else id(a) for a in args]), _key(node.attrs)
        if key not in seen:
            seen[key] = apply(node.op, args, node.attrs)
        return seen[key]

    return rewrite(graph, rule)


def _key(attr: Any) -> Hashable:
    """An attribute as a key: equal only for equal types and bits (0.0 is not -0.0, 1 is not True, nan is itself)."""
    if isinstance(attr, dict):
        return tuple((k, _key(v)) for k, v in sorted(attr.items()))
    if isinstance(attr, tuple):
        return tuple(map(_key, attr))
    if is_symbolic(attr):
        return attr  # equal where it is computed alike
    if isinstance(attr, (float, complex)):
        return type(attr), repr(attr)
    if isinstance(attr, np.ndarray):
        return (attr.shape, attr.dtype, attr.tobytes()) if attr.nbytes <= _COMPARED else id(attr)
    return (type(attr), attr) if isinstance(attr, (bool, int, str, type(None), np.dtype)) else id(attr)
