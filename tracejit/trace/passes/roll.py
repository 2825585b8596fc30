"""Loops that Python unrolled, found again: a sequence of nodes that repeats becomes a scan.

In and out: a graph. A Python loop of thousands of steps is traced step by step; as one loop it compiles in the time of
one step. Each repetition may read the one before it, what was there before the first, and what goes along with the
steps: the next (or previous) row of something, a literal that differs. Of the results, those that are read afterwards
from every repetition (by a gradient, say, last step first) are stacked, and read there as rows: so the backward half of
a gradient is found to repeat once the forward half has become a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracejit.dims import is_symbolic
from tracejit.ir import GETITEM, Graph, Node, Type, has_effects, reachable, subgraphs
from tracejit.ops import core
from tracejit.ops.movement import CONCAT, RESHAPE, SLICE, moved_axis, permuted, reshaped, window
from tracejit.ops.regions import SCAN
from tracejit.tensor import Tensor, apply, evaluate, recording, state, wrap
from tracejit.trace.tracer import Trace

LEAST_COST = 300  # of all repetitions together (`Op.cost`): compiled one by one, they would take long
LEAST_STACKED = 1000  # the same where results of all steps are kept: that costs memory traffic
LEAST_TURNS = 8
LONGEST = 400  # nodes of one repetition
STARTS = 5  # places of the graph where a repetition is looked for


def roll(graph: Graph) -> Graph:
    """Replace repeated nodes by loops."""
    if _cost(graph.nodes) < LEAST_COST:
        return graph
    found = _Nodes(graph)
    n = len(found.steps)
    for k in range(1, STARTS + 1):
        run = found.around(n * k // (STARTS + 1)) if n else None
        if run is not None and (rolled := _Roll(graph, found, run).graph()) is not None:
            return roll(rolled)
    return graph


def _cost(nodes: Sequence[Node]) -> int:
    return sum(x.op.cost + sum(_cost(g.nodes) for g in subgraphs(x)) for x in nodes)


@dataclass(frozen=True, slots=True)
class _Row:
    """Part of `source` that has one entry along some axes; `shape` is what it is read as."""

    source: Node
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    shape: tuple[int, ...]

    def differs(self, other: _Row) -> list[int] | None:
        """Along which axes the other is another entry; None if it is something else."""
        if (self.source, self.sizes, self.steps, self.shape) != (other.source, other.sizes, other.steps, other.shape):
            return None
        axes = [a for a, (i, k) in enumerate(zip(self.starts, other.starts)) if i != k]
        return axes if all(self.sizes[a] == 1 for a in axes) else None


@dataclass(frozen=True, slots=True)
class _Run:
    """`turns` repetitions of `period` nodes, from node `start` on."""

    start: int
    period: int
    turns: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.turns


class _Nodes:
    """A graph's nodes: what may repeat (`steps`), and what goes along with repetitions (rows, literals)."""

    def __init__(self, graph: Graph):
        needed = reachable([*graph.outputs, *(x for x in graph.nodes if has_effects(x))])
        live = [x for x in graph.nodes if x in needed]
        self.rows = _rows(live)
        aside = {x for x in live if _is_literal(x)} | set(self.rows)
        aside |= {x.inputs[0] for x in self.rows if x.op is RESHAPE}
        self.steps = [x for x in live if x not in aside]
        self.place = {x: k for k, x in enumerate(self.steps)}
        kinds: dict[Any, int] = {}
        self.kinds = [kinds.setdefault((x.op, x.type, _key(x)), len(kinds)) for x in self.steps]

    def around(self, middle: int) -> _Run | None:
        """The longest run that covers node `middle` with the shortest period."""
        kind = self.kinds[middle]
        for period in range(1, min(LONGEST, len(self.steps) - middle)):
            if self.kinds[middle + period] != kind or not self.alike(middle, period):
                continue
            low, high = middle, middle + 1
            while low > 0 and self.alike(low - 1, period):
                low -= 1
            while high + period < len(self.steps) and self.alike(high, period):
                high += 1
            if (high - low) // period + 1 > LEAST_TURNS and _cost(self.steps[low: high + period]) >= LEAST_COST:
                start = low + self.seam(low, period)
                return _Run(start, period, (high + period - start) // period)
        return None

    def seam(self, low: int, period: int) -> int:
        """Where a repetition best begins: not between several results and their parts, where the fewest values go on to
        the next, and if it can be no products: with the sum that reads it, a product is one operation."""
        latest: dict[Node, int] = {}
        for i in range(low, low + 3 * period):
            latest.update((x, i) for x in self.steps[i].inputs)
        whole, crossing, products = ([0] * period for _ in range(3))
        for i in range(low + period, low + 2 * period):
            for at in range(i + 1, min(latest.get(self.steps[i], i), i + period) + 1):
                whole[(at - low) % period] += _has_parts(self.steps[i])
                crossing[(at - low) % period] += 1
                products[(at - low) % period] += self.steps[i].op.name == "multiply"
        return min(range(period), key=lambda k: (whole[k], crossing[k], products[k]))

    def alike(self, i: int, period: int) -> bool:
        """Whether node i + period does what node i does, on what lies a period later, or on the same."""
        if self.kinds[i] != self.kinds[i + period]:
            return False
        return all(self._goes(a, b, period) for a, b in zip(self.steps[i].inputs, self.steps[i + period].inputs))

    def _goes(self, a: Node, b: Node, period: int) -> bool:
        if a is b:
            return True
        if a in self.place:
            return self.place.get(b, -1) - self.place[a] == period
        if (row := self.rows.get(a)) is not None and (other := self.rows.get(b)) is not None:
            return len(row.differs(other) or "..") < 2
        return _is_literal(a) and _is_literal(b) and a.type == b.type


def _has_parts(x: Node) -> bool:
    return isinstance(x.type, tuple)


def _is_literal(x: Node) -> bool:
    return x.op.name == "full" and not is_symbolic(x.shape)


def _rows(nodes: Sequence[Node]) -> dict[Node, _Row]:
    """Single entries along an axis of what has many of them taken out."""
    readers: dict[Node, list[Node]] = {}
    for x in nodes:
        for y in x.inputs:
            readers.setdefault(y, []).append(x)
    found: dict[Node, _Row] = {}
    for x in nodes:
        if x.op is SLICE and 1 in x.shape and not is_symbolic((*x.inputs[0].shape, *x.attrs["starts"])):
            only = readers[x][0] if len(readers.get(x, ())) == 1 else x
            end = only if only.op is RESHAPE else x
            found[end] = _Row(x.inputs[0], x.attrs["starts"], x.shape, x.attrs["steps"], end.shape)
    taken: dict[Node, set[tuple[int, ...]]] = {}
    for row in found.values():
        taken.setdefault(row.source, set()).add(row.starts)
    return {x: row for x, row in found.items() if len(taken[row.source]) >= LEAST_TURNS}


def _key(node: Node) -> Any:
    if has_effects(node):
        return id(node)
    return tuple((k, id(v) if isinstance(v, np.ndarray) else repr(v)) for k, v in sorted(node.attrs.items()))


class _Unfit(Exception):
    """Repeated nodes that are no loop."""


class _Roll:
    """One run of repetitions as a scan."""

    def __init__(self, graph: Graph, nodes: _Nodes, run: _Run):
        self.whole, self.nodes, self.run = graph, nodes, run
        self.template = nodes.steps[run.start + run.period: run.start + 2 * run.period]  # one repetition

    def graph(self) -> Graph | None:
        """The graph with the loop in it; None if the run is no loop."""
        try:
            self._look()
        except _Unfit:
            return None
        with recording(None):
            trace = Trace(self.whole.name)
        with recording(trace):
            inputs = [trace.input(Type(x.shape, x.dtype), x.name) for x in self.whole.inputs]
            new = trace.finish(self._replay(inputs))
        new.notes.update(self.whole.notes)
        return new

    # -- what goes in and out
    def _look(self) -> None:
        nodes, run = self.nodes, self.run
        place, p = nodes.place, run.period
        carried: dict[int, None] = {}  # positions in a repetition that the next one reads
        self.fixed: dict[Node, None] = {}
        self.moving: dict[Node, list[Node]] = {}  # rows and literals of the template, with those of each repetition
        for i, x in enumerate(self.template):
            for k, y in enumerate(x.inputs):
                at = place.get(y, -1)
                if at >= run.start + p:
                    continue
                if at >= run.start:
                    carried[at - run.start] = None
                elif at < 0 and (y in nodes.rows or _is_literal(y)):
                    self.moving[y] = [nodes.steps[run.start + t * p + i].inputs[k] for t in range(run.turns)]
                else:
                    self.fixed[y] = None
        outside = [y for y in self.whole.outputs if y in place]
        inside = range(run.start, run.end)
        outside += [y for k, x in enumerate(nodes.steps) if k not in inside for y in x.inputs if y in place]
        outside += [row.source for row in nodes.rows.values() if row.source in place]
        read = sorted({place[y] for y in outside if place[y] in inside})
        self.stacked = list(dict.fromkeys((i - run.start) % p for i in read if i < run.end - p))
        last = [i - (run.end - p) for i in read if i >= run.end - p]
        self.carries = list(dict.fromkeys([*carried, *(j for j in last if j not in self.stacked)]))
        self.starts = {j: run.start - p + j for j in carried}
        if self.stacked and _cost(self.template) * run.turns < LEAST_STACKED:
            raise _Unfit
        if not (self.carries or self.stacked) or any(k < 0 for k in self.starts.values()):
            raise _Unfit
        if any(_has_parts(y) for y in (*self.fixed, *(self.template[j] for j in (*self.carries, *self.stacked)))):
            raise _Unfit
        steps = [self._step(found) for y, found in self.moving.items() if y in nodes.rows]
        self.reverse = sum(step for _, step in steps) < 0
        if any(place.get(nodes.rows[y].source, -1) >= run.start for y in self.moving if y in nodes.rows):
            raise _Unfit

    def _step(self, found: Sequence[Node]) -> tuple[int, int]:
        """Along which axis, and by how much, the start of a row grows from one repetition to the next: 1, -1 or 0."""
        rows = [self.nodes.rows[x] for x in found]
        axes = rows[0].differs(rows[1])
        axis = axes[0] if axes else 0
        step = rows[1].starts[axis] - rows[0].starts[axis]
        wanted = [(*rows[0].starts[:axis], rows[0].starts[axis] + step * t, *rows[0].starts[axis + 1:])
                  for t in range(len(rows))]
        if abs(step) > 1 or [row.starts for row in rows] != wanted:
            raise _Unfit
        return axis, step

    # -- the new graph
    def _replay(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        run, place = self.run, self.nodes.place
        trace: Any = state.trace
        env: dict[Node, Any] = dict(zip(self.whole.inputs, inputs, strict=True))
        carries: Sequence[Tensor] = ()
        stacks: dict[int, Tensor] = {}
        for x in self.whole.nodes:
            at = place.get(x, -1)
            trace.where = x.where
            if run.start <= at < run.end:
                if at == run.start:
                    carries, stacks = self._loop(env)
                turn, j = divmod(at - run.start, run.period)
                if j in stacks:
                    env[x] = _entry(stacks[j], run.turns - 1 - turn if self.reverse else turn)
                elif turn == run.turns - 1 and j in self.carries:
                    env[x] = carries[self.carries.index(j)]
            elif all(y in env for y in x.inputs):  # others are read by nobody
                args = [env[y] for y in x.inputs]
                if x.op is GETITEM:
                    env[x] = args[0][x.attrs["index"]]
                else:
                    whole = _side_by_side(args, x.attrs["axis"], x.shape) if x.op is CONCAT else None
                    env[x] = apply(x.op, args, x.attrs) if whole is None else whole
        trace.where = ""
        return [env[y] for y in self.whole.outputs]

    def _loop(self, env: dict[Node, Any]) -> tuple[Sequence[Tensor], dict[int, Tensor]]:
        """The scan: the carries at its end, and what is stacked."""
        run, steps = self.run, self.nodes.steps
        starts = [
            env[steps[self.starts[j]]] if j in self.starts else _zeros(self.template[j]) for j in self.carries
        ]
        moving, xs, same = {}, [], {}
        for y, found in self.moving.items():
            x = self._row_input(y, found, env) if y in self.nodes.rows else self._literal_input(found)
            if x is not None:
                moving[y] = x
                xs.append(x)
            elif y in self.nodes.rows:
                row = self.nodes.rows[y]
                same[y] = reshaped(window(env[row.source], row.starts, row.sizes, row.steps), row.shape)
        operands = {**{y: env[y] for y in self.fixed}, **same}
        attrs = {"body": self._body(list(moving), list(operands)), "length": run.turns, "reverse": self.reverse,
                 "carries": len(starts), "xs": len(xs)}
        found = apply(SCAN, [*starts, *xs, *operands.values()], attrs)
        return found[: len(starts)], dict(zip(self.stacked, found[len(starts):], strict=True))

    def _row_input(self, y: Node, found: Sequence[Node], env: dict[Node, Any]) -> Tensor | None:
        """The rows that go along, in the scan's order, along axis 0; None if it is always the same."""
        axis, step = self._step(found)
        if step == 0:
            return None
        first, turns = self.nodes.rows[found[0]], self.run.turns
        start = first.starts[axis] + step * (turns - 1) if self.reverse else first.starts[axis]
        starts, sizes, steps = list(first.starts), list(first.sizes), list(first.steps)
        starts[axis], sizes[axis], steps[axis] = start, turns, -step if self.reverse else step
        t = window(env[first.source], tuple(starts), tuple(sizes), tuple(steps))
        return reshaped(permuted(t, moved_axis(t.ndim, axis, 0)), (turns, *first.shape))

    def _literal_input(self, found: Sequence[Node]) -> Tensor | None:
        """The literals, one for each repetition; None if it is always the same."""
        values = [x.attrs["value"] for x in found]
        if all(repr(v) == repr(values[0]) for v in values):
            return None
        values = values[::-1] if self.reverse else values
        return core.constant_tensor(np.array(values, found[0].dtype))

    def _body(self, moving: Sequence[Node], operands: Sequence[Node]) -> Graph:
        """One repetition, from what it reads of the one before, what goes along, and what was there before."""
        run, steps = self.run, self.nodes.steps
        before = [steps[run.start + j] for j in self.carries]
        outputs = tuple(self.template[j] for j in (*self.carries, *self.stacked))
        with recording(None):
            trace = Trace("repeated")
        with recording(trace):
            given = [trace.input(Type(x.shape, x.dtype)) for x in before]
            for x in moving:
                t = trace.input(Type(() if _is_literal(x) else x.shape, x.dtype))
                given.append(core.broadcast_to(t, x.shape))
            given += [trace.input(Type(x.shape, x.dtype)) for x in operands]
            literals = [x for x in self.moving if x not in moving and _is_literal(x)]
            given += [core.full(x.attrs["value"], x.shape, x.dtype) for x in literals]
            known = (*before, *moving, *operands, *literals)
            return trace.finish(evaluate(Graph(known, tuple(self.template), outputs), given))


def _entry(t: Tensor, index: int) -> Tensor:
    """Row `index`."""
    rest = t.shape[1:]
    return reshaped(window(t, (index, *(0 for _ in rest)), (1, *rest)), rest)


def _side_by_side(parts: Sequence[Tensor], axis: int, shape: tuple[int, ...]) -> Tensor | None:
    """What parts give that are joined along an axis, if they lie in one tensor in just that way: a part of it."""
    slices: list[Node] = []
    for t in parts:
        x: Any = t._value
        if any(n != 1 for n in x.shape[:axis]):
            return None
        while x.op is RESHAPE:
            x = x.inputs[0]
        if x.op is not SLICE or is_symbolic((*x.shape, *x.attrs["starts"])):
            return None
        slices.append(x)
    first = slices[0]
    starts, steps = first.attrs["starts"], first.attrs["steps"]
    along = next((a for a, n in enumerate(first.inputs[0].shape) if n != 1), 0)  # dims before are 1: no matter
    at = starts[along]
    for x in slices:
        same = x.inputs[0] is first.inputs[0] and x.attrs["steps"] == steps and steps[along] == 1
        elsewhere = [*x.attrs["starts"][:along], at, *x.attrs["starts"][along + 1:]] != [*x.attrs["starts"]]
        others = [a for a in range(len(x.shape)) if a != along and (x.shape[a], x.attrs["starts"][a]) != (
            first.shape[a], starts[a])]
        if not same or elsewhere or others:
            return None
        at += x.shape[along]
    sizes = (*first.shape[:along], at - starts[along], *first.shape[along + 1:])
    return reshaped(window(wrap(first.inputs[0]), starts, sizes, steps), shape)


def _zeros(node: Node) -> Tensor:
    return core.full(0, node.shape, node.dtype)
