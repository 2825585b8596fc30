"""Loops that Python unrolled, found again: a sequence of nodes that repeats becomes a scan.

In and out: a graph. A Python loop of thousands of identical steps is traced step by step; as one loop it compiles in
the time of one step. Each repetition may read the one before it, and whatever was there before the first; of the
results, only those of the last repetition may be read afterwards (a gradient reads all; such a graph stays as it is).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracejit.ir import GETITEM, Graph, Node, Type, has_effects
from tracejit.ops import core
from tracejit.ops.regions import SCAN
from tracejit.tensor import Tensor, apply, evaluate, recording
from tracejit.trace.tracer import Trace

LEAST_NODES = 300  # in all repetitions
LEAST_TURNS = 8
LONGEST = 400  # nodes of one repetition
STARTS = 5  # places of the graph where a repetition is looked for


def roll(graph: Graph) -> Graph:
    """Replace repeated nodes by loops."""
    if len(graph.nodes) < LEAST_NODES:
        return graph
    finder = _Finder(graph)
    n = len(graph.nodes)
    for k in range(1, STARTS + 1):
        run = finder.around(n * k // (STARTS + 1))
        if run is not None and (rolled := _rolled(graph, finder.place, run)) is not None:
            return roll(rolled)
    return graph


@dataclass(frozen=True, slots=True)
class _Run:
    """`turns` repetitions of `period` nodes, from node `start` on."""

    start: int
    period: int
    turns: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.turns


class _Finder:
    def __init__(self, graph: Graph):
        self.nodes = graph.nodes
        self.place = {x: k for k, x in enumerate(graph.nodes)}
        kinds: dict[Any, int] = {}
        self.kinds = [kinds.setdefault((x.op, x.type, _key(x)), len(kinds)) for x in graph.nodes]

    def around(self, middle: int) -> _Run | None:
        """The longest run that covers node `middle` with the shortest period."""
        kind = self.kinds[middle]
        for period in range(1, min(LONGEST, len(self.nodes) - middle)):
            if self.kinds[middle + period] != kind or not self.alike(middle, period):
                continue
            low, high = middle, middle + 1
            while low > 0 and self.alike(low - 1, period):
                low -= 1
            while high + period < len(self.nodes) and self.alike(high, period):
                high += 1
            if (high - low) // period + 1 > LEAST_TURNS and high + period - low >= LEAST_NODES:
                start = low + self.seam(low, period)
                return _Run(start, period, (high + period - start) // period)
        return None

    def seam(self, low: int, period: int) -> int:
        """Where a repetition best begins: where the fewest values go on to the next."""
        latest: dict[Node, int] = {}
        for i in range(low, low + 3 * period):
            latest.update((x, i) for x in self.nodes[i].inputs)
        crossing = [0] * (period + 1)
        for i in range(low + period, low + 2 * period):
            for at in range(i + 1, min(latest.get(self.nodes[i], i), i + period) + 1):
                crossing[(at - low) % period] += 1
        return min(range(period), key=lambda k: crossing[k])

    def alike(self, i: int, period: int) -> bool:
        """Whether node i + period does what node i does, on what lies a period later, or on the same."""
        if self.kinds[i] != self.kinds[i + period]:
            return False
        for a, b in zip(self.nodes[i].inputs, self.nodes[i + period].inputs, strict=True):
            if a is not b and (a not in self.place or self.place.get(b, -1) - self.place[a] != period):
                return False
        return True


def _key(node: Node) -> Any:
    if has_effects(node):
        return id(node)
    return tuple((k, id(v) if isinstance(v, np.ndarray) else repr(v)) for k, v in sorted(node.attrs.items()))


def _rolled(graph: Graph, place: dict[Node, int], run: _Run) -> Graph | None:
    nodes, p = graph.nodes, run.period
    second = range(run.start + p, run.start + 2 * p)
    carried: list[int] = []  # positions in a repetition that the next one reads
    fixed: list[Node] = []
    for i in second:
        for x in nodes[i].inputs:
            at = place.get(x, -1)
            if at < run.start:
                fixed.append(x)
            elif at < run.start + p:
                carried.append(at - run.start)
            elif at >= run.start + 2 * p:
                return None
    if any(isinstance(nodes[i].type, tuple) or nodes[i].op is GETITEM for i in second):
        return None
    read = {y for y in graph.outputs} | {x for y in nodes[run.end:] for x in y.inputs}
    last = run.end - p
    results = [k for k in range(p) if nodes[last + k] in read]
    if any(nodes[i] in read for i in range(run.start, last)):
        return None
    carries = list(dict.fromkeys([*carried, *results]))
    fixed = list(dict.fromkeys(fixed))
    starts = {j: run.start - p + j for j in carried}
    if not carries or any(k < 0 for k in starts.values()):
        return None
    body = _body(nodes, run, carries, fixed)
    with recording(None):
        trace = Trace(graph.name)
    env: dict[Node, Any] = {}
    found: Sequence[Tensor] = ()

    def rule(node: Node, args: list[Any]) -> Any:
        nonlocal found
        at = place[node]
        if not run.start <= at < run.end:
            env[node] = apply(node.op, args, node.attrs)
            return env[node]
        if at == run.start:
            given = [env[nodes[starts[j]]] if j in starts else _zeros(nodes[run.start + j]) for j in carries]
            attrs = {"body": body, "length": run.turns, "reverse": False, "carries": len(carries), "xs": 0}
            found = apply(SCAN, [*given, *(env[x] for x in fixed)], attrs)
            env.update({nodes[last + j]: y for j, y in zip(carries, found, strict=True)})
        return env.get(node, found[0])  # nobody reads the others

    with recording(trace):
        inputs = [trace.input(Type(x.shape, x.dtype), x.name) for x in graph.inputs]
        env.update(zip(graph.inputs, inputs, strict=True))
        new = trace.finish(evaluate(graph, inputs, rule))
    new.notes.update(graph.notes)
    return new


def _zeros(node: Node) -> Tensor:
    return core.full(0, node.shape, node.dtype)


def _body(nodes: Sequence[Node], run: _Run, carries: Sequence[int], fixed: Sequence[Node]) -> Graph:
    """One repetition, from what it reads of the one before, and of what was there before the first."""
    first = [nodes[run.start + j] for j in carries]
    own = tuple(nodes[run.start + run.period: run.start + 2 * run.period])
    outputs = tuple(own[j] for j in carries)
    with recording(None):
        trace = Trace("repeated")
    with recording(trace):
        values = [trace.input(Type(x.shape, x.dtype)) for x in (*first, *fixed)]
        return trace.finish(evaluate(Graph((*first, *fixed), own, outputs), values))

