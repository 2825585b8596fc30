"""Derivatives of control flow: of branches, of loops with a known and with an unknown number of iterations.

In: a control op (`ops/regions.py`) and cotangents of its results, or tangents of its inputs. Out: cotangents of its
inputs, or tangents of its results: more control flow, written with the forms that users call. So it runs in plain
Python when eager, becomes ops when traced, and can be differentiated again.

    cond        the same choice between the branches' pullbacks; a branch is computed again inside its pullback
    scan        forward, each row also stacks what the body's pullback needs (`residuals.py` chooses); backward, a scan
                from the last row to the first
    while_loop  forward, nothing is kept; backward, carries are computed again from states kept in a fixed number of
                places: the nearest earlier one is taken, and on the way from it new ones are kept. With n iterations
                and s places the body runs about 1 + log(n) / log(s / 2) times more

Forward programs that compute more than the original (residuals, the trip count) say so in a note (`extends`); the pass
`control` makes one loop of the two.

Read next: `split.py` (pullbacks), `passes/control.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tracejit import dtypes
from tracejit.ir import Graph, Node, Type, has_effects, map_subgraphs, reachable
from tracejit.ops import core, regions
from tracejit.ops.control import cond, scan, switch, while_loop
from tracejit.ops.indexing import pick, put
from tracejit.ops.movement import joined, reshaped
from tracejit.tensor import Tensor, apply, evaluate, recording, taping
from tracejit.trace.autodiff import Recording, differentiable, forward
from tracejit.trace.split import pullback, split
from tracejit.trace.tracer import Trace

PLACES = 1024  # states of a while_loop kept in the backward pass, at most
LEAST_PLACES = 16
PLACES_BYTES = 1 << 23  # memory for them, where LEAST_PLACES allow

Cotangents = Sequence[Tensor | None]


def _zeros(type: Type) -> Tensor:
    return core.full(0, type.shape, type.dtype)


def _type(node: Node) -> Type:
    assert isinstance(node.type, Type)
    return node.type


def _moving(nodes: Sequence[Node]) -> list[int]:
    return [k for k, n in enumerate(nodes) if differentiable(n)]


def _given(gs: Cotangents, nodes: Sequence[Node], which: Sequence[int]) -> list[Tensor]:
    """Cotangents of the results `which`, zeros where there are none."""
    return [_zeros(_type(nodes[k])) if (g := gs[k]) is None else g for k in which]


def again(graph: Graph) -> Graph:
    """A graph for computing its results a second time: what it prints or checks has been printed and checked."""
    if not any(has_effects(x) for x in graph.nodes):
        return graph
    needed = reachable(graph.outputs)
    with recording(None):
        trace = Trace(graph.name)
    with recording(trace):
        inputs = [trace.input(_type(x), x.name) for x in graph.inputs]
        kept = Graph(graph.inputs, tuple(x for x in graph.nodes if x in needed), graph.outputs)
        return map_subgraphs(trace.finish(evaluate(kept, inputs)), again)


class Pull:
    """The pullback of a graph, for cotangents of the outputs `seeded`. positions: the inputs that get a cotangent."""

    def __init__(self, graph: Graph, seeded: Sequence[int]):
        self.graph = pullback(again(graph), seeded)
        self.skip = len(graph.outputs)
        self.positions: tuple[int, ...] = self.graph.notes["cotangents"]

    def __call__(self, values: Sequence[Tensor], gs: Sequence[Tensor]) -> dict[int, Tensor]:
        found = evaluate(self.graph, [*values, *gs])[self.skip:]
        return dict(zip(self.positions, found, strict=True))


# -- cond --------------------------------------------------------------------------------------------------------------
def _cond_vjp(gs: Cotangents, ys: Any, choice: Tensor, *operands: Tensor, branches: tuple[Graph, ...]) -> list[Any]:
    seeded = [k for k, g in enumerate(gs) if g is not None]
    cotangents = [g for g in gs if g is not None]
    pulls = [Pull(b, seeded) for b in branches]
    reached = sorted({p for pull in pulls for p in pull.positions})

    def backward(pull: Pull) -> list[Tensor]:
        found = pull(operands, cotangents)
        return [found[p] if p in found else _zeros(_type(branches[0].inputs[p])) for p in reached]

    found = _choose(choice, [partial(backward, pull) for pull in pulls]) if reached else []
    by_position = dict(zip(reached, found, strict=True))
    return [None, *(by_position.get(p) for p in range(len(operands)))]


def _choose(choice: Tensor, functions: Sequence[Any]) -> Any:
    return cond(choice, functions[1], functions[0]) if choice.dtype == dtypes.bool_ else switch(choice, functions)


def _cond_jvp(tangents: Cotangents, ys: Any, choice: Tensor, *operands: Tensor, branches: tuple[Graph, ...]) -> Any:
    moving = [k for k, t in enumerate(tangents[1:]) if t is not None]
    given = [t for t in tangents[1:] if t is not None]
    pushes = [Push(b, moving) for b in branches]
    reached = sorted({k for push in pushes for k in push.positions})
    if not reached:
        return [None] * len(ys)

    def along(push: Push) -> list[Tensor]:
        _, found = push(operands, given)
        return [found[k] if k in found else _zeros(_type(branches[0].outputs[k])) for k in reached]

    found = _choose(choice, [partial(along, push) for push in pushes])
    by_position = dict(zip(reached, found, strict=True))
    return [by_position.get(k) for k in range(len(ys))]


class Push:
    """The pushforward of a graph, for tangents of the inputs `moving`. positions: the outputs that get a tangent."""

    def __init__(self, graph: Graph, moving: Sequence[int]):
        graph = again(graph)
        with recording(None):
            trace = Trace(f"{graph.name}_pushforward")
        with recording(trace):
            xs = [trace.input(_type(n), n.name) for n in graph.inputs]
            ts = [trace.input(_type(graph.inputs[k]), f"tangent {k}") for k in moving]
            tape = Recording()
            for k in moving:
                tape.track(xs[k])
            with taping((tape,)):
                ys = evaluate(graph, xs)
            found = forward(tape.records, {tape.key(xs[k]): t for k, t in zip(moving, ts, strict=True)})
            keys = [tape.key(y) for y in ys]
            self.positions = tuple(k for k, key in enumerate(keys) if key in found)
            self.graph = trace.finish([*ys, *(found[keys[k]] for k in self.positions)])
        self.count = len(ys)

    def __call__(self, values: Sequence[Tensor], ts: Sequence[Tensor]) -> tuple[list[Tensor], dict[int, Tensor]]:
        """The graph's results, and the tangents of those that move."""
        found = evaluate(self.graph, [*values, *ts])
        return found[: self.count], dict(zip(self.positions, found[self.count:], strict=True))


# -- scan --------------------------------------------------------------------------------------------------------------
def _scan_vjp(gs: Cotangents, ys: Sequence[Tensor], *args: Tensor, body: Graph, length: int, reverse: bool,
              carries: int, xs: int) -> list[Tensor | None]:
    attrs = {"length": length, "reverse": reverse, "carries": carries, "xs": xs}
    n, results = carries, len(body.outputs)
    rows_end = n + xs
    moving = _moving(body.outputs[:n])
    rows_out = [k for k in range(n, results) if gs[k] is not None]
    if all(gs[k] is None for k in moving) and not rows_out:
        return [None] * len(args)
    first, second = split(body, [*moving, *rows_out])
    kept = first.outputs[results:]
    stacked, sources = _residual_sources(first, kept, args, ys, n, rows_end, results)
    if stacked:
        more = Graph(first.inputs, first.nodes, (*first.outputs[:results], *stacked), body.name)
        more.notes["extends"] = body, 0
        stacks = apply(regions.SCAN, args, {"body": more, **attrs})[results:]
        sources = [(stacks[s],) if isinstance(s, int) else s for s in sources]
    by_row = [isinstance(s, tuple) for s in sources]
    sources = [s[0] if isinstance(s, tuple) else s for s in sources]
    along = [s for s, row in zip(sources, by_row, strict=True) if row]
    positions: tuple[int, ...] = second.notes["cotangents"]
    to_operands = [p for p in positions if p >= rows_end]
    to_rows = [p for p in positions if n <= p < rows_end]

    def step(carry: Any, row: Any) -> Any:
        g, sums = carry
        kept_rows, g_rows = iter(row[0]), row[1]
        values = [next(kept_rows) if is_row else s for s, is_row in zip(sources, by_row, strict=True)]
        found = dict(zip(positions, evaluate(second, [*values, *g, *g_rows]), strict=True))
        g = [found[k] if k in found else _zeros(_type(body.inputs[k])) for k in moving]
        sums = [s + found[p] for s, p in zip(sums, to_operands, strict=True)]
        return (g, sums), [found[p] for p in to_rows]

    start = _given(gs, body.outputs, moving), [_zeros(_type(body.inputs[p])) for p in to_operands]
    (g, sums), g_rows = scan(step, start, (along, [gs[k] for k in rows_out]), length=length, reverse=not reverse)
    found: list[Tensor | None] = [None] * len(args)
    for p, d in zip([*moving, *to_operands, *to_rows], [*g, *sums, *g_rows], strict=True):
        found[p] = d
    return found


def _residual_sources(first: Graph, kept: Sequence[Node], args: Sequence[Tensor], ys: Sequence[Tensor], n: int,
                      rows_end: int, results: int) -> tuple[list[Node], list[Any]]:
    """What has to be stacked, and where each residual comes from: (rows,), a fixed tensor, or a number among what is
    stacked."""
    stacked: list[Node] = []
    sources: list[Any] = []
    inputs = {node: k for k, node in enumerate(first.inputs)}
    rows = {node: k for k, node in enumerate(first.outputs[:results]) if k >= n}
    for node in kept:
        if inputs.get(node, -1) >= rows_end:
            sources.append(args[inputs[node]])
        elif inputs.get(node, -1) >= n:
            sources.append((args[inputs[node]],))
        elif node in rows:
            sources.append((ys[rows[node]],))
        else:
            sources.append(len(stacked))
            stacked.append(node)
    return stacked, sources


def _scan_jvp(tangents: Cotangents, ys: Any, *args: Tensor, body: Graph, length: int, reverse: bool, carries: int,
              xs: int) -> list[Tensor | None]:
    n, rows_end = carries, carries + xs
    moving = _moving(body.inputs[:n])
    rows_in = [k for k in range(n, rows_end) if tangents[k] is not None]
    operands_in = [k for k in range(rows_end, len(args)) if tangents[k] is not None]
    push = Push(body, [*moving, *rows_in, *operands_in])
    rows_out = [k for k in push.positions if k >= n]
    fixed = [t for k in operands_in if (t := tangents[k]) is not None]

    def step(carry: Any, row: Any) -> Any:
        state, t = carry
        x, dx = row
        out, found = push([*state, *x, *args[rows_end:]], [*t, *dx, *fixed])
        t = [found[k] if k in found else _zeros(_type(body.inputs[k])) for k in moving]
        return (out[:n], t), [found[k] for k in rows_out]

    start = list(args[:n]), _given(tangents, body.inputs, moving)
    rows = list(args[n:rows_end]), [tangents[k] for k in rows_in]
    (_, t), stacks = scan(step, start, rows, length=length, reverse=reverse)
    found: list[Tensor | None] = [None] * len(ys)
    for k, d in zip([*moving, *rows_out], [*t, *stacks], strict=True):
        found[k] = d
    return found


# -- while_loop --------------------------------------------------------------------------------------------------------
def _while_vjp(gs: Cotangents, ys: Sequence[Tensor], *args: Tensor, cond: Graph, body: Graph) -> list[Tensor | None]:
    n = len(body.outputs)
    moving = _moving(body.outputs)
    if all(gs[k] is None for k in moving):
        return [None] * len(args)
    start, operands = args[:n], args[n:]
    count = _trip_count(args, cond, body)
    body = again(body)
    pull = Pull(body, moving)
    to_operands = [p for p in pull.positions if p >= n]
    size = sum(_type(x).size * x.dtype.itemsize for x in body.inputs[:n])
    places = max(LEAST_PLACES, min(PLACES, PLACES_BYTES // max(size, 1)))

    def ahead(i: Tensor, top: Tensor, index: Tensor, kept: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor], Any]:
        """The carry before iteration i, from the last state kept; new ones are kept on the way."""
        begin = _row(index, top)
        gap, free = i - begin, (places - 1) - top
        parts = _larger(free // 2, 1)
        apart = core.WHERE(gap <= free, 1, (gap + parts - 1) // parts)

        def advance(j: Tensor, top: Tensor, index: Tensor, kept: list[Tensor], c: list[Tensor]) -> Any:
            c = evaluate(body, [*c, *operands])
            j = j + 1
            keep = ((j - begin) % apart == 0) & (top < places - 1)
            top = core.WHERE(keep, top + 1, top)
            at = core.WHERE(keep, top, places)  # the last place is never looked at
            return j, top, _with_row(index, at, j), [_with_row(k, at, x) for k, x in zip(kept, c, strict=True)], c

        state = begin, top, index, kept, [_row(k, top) for k in kept]
        _, top, index, kept, c = while_loop(lambda j, *_: j < i, advance, state)
        return top, index, kept, c

    def back(i: Tensor, top: Tensor, index: Tensor, kept: list[Tensor], g: list[Tensor], sums: list[Tensor]) -> Any:
        top, index, kept, c = ahead(i, top, index, kept)
        found = pull([*c, *operands], g)
        g = [found[k] if k in found else _zeros(_type(body.inputs[k])) for k in moving]
        sums = [s + found[p] for s, p in zip(sums, to_operands, strict=True)]
        top = core.WHERE(_row(index, top) == i, top - 1, top)
        return i - 1, _larger(top, 0), index, kept, g, sums

    zero = core.full(0, (), dtypes.int64)
    index = core.full(0, (places + 1,), dtypes.int64)
    kept = [joined([reshaped(x, (1, *x.shape)), core.full(0, (places, *x.shape), x.dtype)], 0) for x in start]
    sums = [_zeros(_type(body.inputs[p])) for p in to_operands]
    state = count - 1, zero, index, kept, _given(gs, body.outputs, moving), sums
    *_, g, sums = while_loop(lambda i, *_: i >= 0, back, state)
    found: list[Tensor | None] = [None] * len(args)
    for p, d in zip([*moving, *to_operands], [*g, *sums], strict=True):
        found[p] = d
    return found


def _larger(x: Tensor, least: int) -> Tensor:
    return core.WHERE(x > least, x, least)


def _row(stack: Tensor, at: Tensor) -> Tensor:
    return pick(stack, [at], (0,))


def _with_row(stack: Tensor, at: Tensor, value: Tensor) -> Tensor:
    return put(stack, value, [at], (0,), "set")


def _trip_count(args: Sequence[Tensor], cond: Graph, body: Graph) -> Tensor:
    """How many iterations a loop makes, counted by a loop that does the same work."""
    n = len(body.outputs)
    counting = []
    quiet = again(body)
    for graph in (again(cond), quiet):
        with recording(None):
            trace = Trace(graph.name)
        with recording(trace):
            i = trace.input(Type((), dtypes.int64), "count")
            found = evaluate(graph, [trace.input(_type(x), x.name) for x in graph.inputs])
            counting.append(trace.finish([i + 1, *found] if graph is quiet else found))  # type: ignore[operator]
    if quiet is body:
        counting[1].notes["extends"] = body, 1
    zero = core.full(0, (), dtypes.int64)
    out = apply(regions.WHILE, (zero, *args), {"cond": counting[0], "body": counting[1]})
    assert len(out) == n + 1
    return out[0]


def _while_jvp(tangents: Cotangents, ys: Any, *args: Tensor, cond: Graph, body: Graph) -> list[Tensor | None]:
    n = len(body.outputs)
    moving = _moving(body.inputs[:n])
    operands_in = [k for k in range(n, len(args)) if tangents[k] is not None]
    push = Push(body, [*moving, *operands_in])
    operands = args[n:]

    def step(state: list[Tensor], t: list[Tensor]) -> Any:
        out, found = push([*state, *operands], [*t, *(tangents[k] for k in operands_in)])  # type: ignore[list-item]
        return out, [found[k] if k in found else _zeros(_type(body.inputs[k])) for k in moving]

    start = list(args[:n]), _given(tangents, body.inputs, moving)
    cond = again(cond)
    _, t = while_loop(lambda state, t: evaluate(cond, [*state, *operands])[0], step, start)
    found: list[Tensor | None] = [None] * len(ys)
    for k, d in zip(moving, t, strict=True):
        found[k] = d
    return found


regions.VJP.update(cond=_cond_vjp, scan=_scan_vjp, while_loop=_while_vjp)
regions.JVP.update(cond=_cond_jvp, scan=_scan_jvp, while_loop=_while_jvp)
