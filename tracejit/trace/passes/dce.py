"""Dead code: keep what the outputs need, and what has effects.

In and out: a graph. Parameters stay, needed or not: they are the graph's interface.
"""

from __future__ import annotations

from tracejit.ir import Graph, has_effects, reachable


def dce(graph: Graph) -> Graph:
    """Drop nodes that nothing needs."""
    needed = reachable([*graph.outputs, *(n for n in graph.nodes if has_effects(n))])
    return Graph(graph.inputs, tuple(n for n in graph.nodes if n in needed), graph.outputs, graph.name, graph.notes)
