"""Control flow made small: branches and loops take, carry and give only what is needed.

In and out: a graph.

- A known choice is made; a scan of no or one row is no loop.
- A loop that computes all that another one does (its residuals, its trip count: note `extends`) stands for both.
- Results that nobody reads go, and so do carries that only they need. A carry that never changes is an operand.
- Operands that nobody reads go, equal ones are one, literals move inside.
- Costly work in a body that is the same in every iteration is done once, before the loop.

The runner applies it to the graphs inside afterwards, so outer loops are done first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tracejit.ir import Graph, Node, Type, has_effects, reachable
from tracejit.ops import core
from tracejit.ops.movement import reshaped
from tracejit.ops.regions import COND, SCAN, WHILE
from tracejit.tensor import Tensor, apply, evaluate, recording
from tracejit.trace.tracer import Trace, rewrite

COSTLY = 4  # scalar work per element from which an elementwise op is worth a place before the loop


def control(graph: Graph) -> Graph:
    """Leave out of control nodes what is not needed."""
    if not any(n.op in (COND, WHILE, SCAN) for n in graph.nodes):
        return graph
    graph = _merged(graph)
    needed = reachable([*graph.outputs, *(n for n in graph.nodes if has_effects(n))])
    graph = Graph(graph.inputs, tuple(n for n in graph.nodes if n in needed), graph.outputs, graph.name, graph.notes)
    used: dict[Node, set[int]] = {}
    for node in graph.nodes:
        if node.op.name == "getitem":
            used.setdefault(node.inputs[0], set()).add(node.attrs["index"])

    def rule(node: Node, args: list[Any]) -> Any:
        small = _RULES.get(node.op)
        return None if small is None else small(node, args, used.get(node, set()))

    return rewrite(graph, rule)


# -- loops that do the work of others ----------------------------------------------------------------------------------
def _merged(graph: Graph) -> Graph:
    """Let a loop that extends another one, on the same inputs, stand for both."""
    extended: dict[tuple[int, tuple[Node, ...]], Node] = {}
    for node in graph.nodes:
        if node.op in (WHILE, SCAN) and "extends" in node.attrs["body"].notes:
            body, skip = node.attrs["body"].notes["extends"]
            extended.setdefault((id(body), node.inputs[skip:]), node)
    if not extended:
        return graph
    done: dict[Node, Any] = {}

    def rule(node: Node, args: list[Any]) -> Any:
        if node in done:
            return done[node]
        larger = extended.get((id(node.attrs["body"]), node.inputs)) if node.op in (WHILE, SCAN) else None
        if larger is None:
            return None
        skip = larger.attrs["body"].notes["extends"][1]
        first = [_zero(_type(n)) for n in larger.attrs["body"].inputs[:skip]]
        found = done[larger] = apply(larger.op, [*first, *args], larger.attrs)
        return found[skip:]

    return rewrite(graph, rule)


def _zero(type: Type) -> Tensor:
    return core.full(0, type.shape, type.dtype)


def _type(node: Node) -> Type:
    assert isinstance(node.type, Type)
    return node.type


# -- what each graph inside needs --------------------------------------------------------------------------------------
def _effects(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if has_effects(n)]


def _read(graph: Graph, outputs: Sequence[int]) -> set[int]:
    """The inputs that some outputs, and effects, depend on."""
    found = reachable([*(graph.outputs[k] for k in outputs), *_effects(graph)])
    return {k for k, n in enumerate(graph.inputs) if n in found}


def _literal(t: Tensor) -> Node | None:
    node = t._value
    return node if isinstance(node, Node) and node.op.name == "full" else None


class _Operands:
    """Which operands stay, by position: unread ones go, equal ones are one, literals move inside."""

    def __init__(self, args: Mapping[int, Tensor], read: Collection[int]):
        self.kept: list[int] = []
        self.same: dict[int, int] = {}
        self.literals: dict[int, Node] = {}
        first: dict[int, int] = {}
        for p, t in args.items():
            if p not in read:
                continue
            literal = _literal(t)
            if literal is not None:
                self.literals[p] = literal
            elif id(t._value) in first:
                self.same[p] = first[id(t._value)]
            else:
                first[id(t._value)] = p
                self.kept.append(p)

    def replayed(self, graph: Graph, lead: Sequence[int], outputs: Sequence[int], lifted: Sequence[Node] = ()) -> Graph:
        """`graph` with the inputs `lead`, then the operands kept, then those for the nodes `lifted`."""
        needed = _reachable_without(graph, outputs, set(lifted))
        with recording(None):
            trace = Trace(graph.name)
        with recording(trace):
            values: list[Any] = [None] * len(graph.inputs)
            for p in (*lead, *self.kept):
                values[p] = trace.input(_type(graph.inputs[p]), graph.inputs[p].name)
            for p, other in self.same.items():
                values[p] = values[other]
            for p, literal in self.literals.items():
                values[p] = apply(literal.op, (), literal.attrs)
            values += [trace.input(_type(n), "invariant") for n in lifted]
            nodes, results = tuple(n for n in graph.nodes if n in needed), tuple(graph.outputs[k] for k in outputs)
            return trace.finish(evaluate(Graph((*graph.inputs, *lifted), nodes, results), values))


# -- cond --------------------------------------------------------------------------------------------------------------
def _cond(node: Node, args: list[Tensor], used: set[int]) -> Any:
    branches: tuple[Graph, ...] = node.attrs["branches"]
    choice = _literal(args[0])
    if choice is not None:
        chosen = min(max(int(choice.attrs["value"]), 0), len(branches) - 1)
        return tuple(evaluate(branches[chosen], args[1:]))
    outputs = sorted(used)
    operands = _Operands(dict(enumerate(args[1:])), set().union(*(_read(b, outputs) for b in branches)))
    graphs = tuple(operands.replayed(b, (), outputs) for b in branches)
    found = apply(COND, (args[0], *(args[1 + p] for p in operands.kept)), {"branches": graphs})
    return _spread(dict(zip(outputs, found, strict=True)), len(branches[0].outputs))


def _spread(found: Mapping[int, Any], n: int) -> tuple[Any, ...]:
    """Results in their old places; nobody looks at the others."""
    return tuple(found.get(k) for k in range(n))


# -- loops -------------------------------------------------------------------------------------------------------------
def _while(node: Node, args: list[Tensor], used: set[int]) -> Any:
    cond, body = node.attrs["cond"], node.attrs["body"]
    n = len(body.outputs)
    held = _literal_result(cond)
    if held is not None and not held:
        return tuple(args[:n])
    live, fixed = _live_carries(body, n, used | {k for k in _read(cond, [0]) if k < n}, [])
    carries = [k for k in sorted(live) if k not in fixed]
    results: dict[int, Any] = {k: args[k] for k in fixed}
    operands, lifted, before = _around(body, args, range(n, len(args)), fixed, carries, _read(cond, [0]))
    attrs = {"cond": operands.replayed(cond, carries, [0]), "body": operands.replayed(body, carries, carries, lifted)}
    attrs["cond"] = _with_inputs(attrs["cond"], lifted)
    given = [args[k] for k in carries] + [args[p] for p in operands.kept] + before
    results |= zip(carries, apply(WHILE, given, attrs), strict=True)
    return _spread(results, n)


def _scan(node: Node, args: list[Tensor], used: set[int]) -> Any:
    body, length, reverse = node.attrs["body"], node.attrs["length"], node.attrs["reverse"]
    n, rows_end = node.attrs["carries"], node.attrs["carries"] + node.attrs["xs"]
    if length == 0:
        stacks = [_zero(Type((0, *_type(y).shape), y.dtype)) for y in body.outputs[n:]]
        return (*args[:n], *stacks)
    if length == 1:
        rows = [reshaped(x, x.shape[1:]) for x in args[n:rows_end]]
        found = evaluate(body, [*args[:n], *rows, *args[rows_end:]])
        return (*found[:n], *(reshaped(y, (1, *y.shape)) for y in found[n:]))
    stacked = sorted(k for k in used if k >= n)
    live, fixed = _live_carries(body, n, {k for k in used if k < n}, stacked)
    carries = [k for k in sorted(live) if k not in fixed]
    outputs = [*carries, *stacked]
    read = _read(body, outputs)
    rows_in = [k for k in range(n, rows_end) if k in read]
    operands, lifted, before = _around(body, args, range(rows_end, len(args)), fixed, outputs, ())
    graph = operands.replayed(body, [*carries, *rows_in], outputs, lifted)
    attrs = {"body": graph, "length": length, "reverse": reverse, "carries": len(carries), "xs": len(rows_in)}
    given = [args[k] for k in (*carries, *rows_in, *operands.kept)] + before
    results: dict[int, Any] = {k: args[k] for k in fixed}
    results |= zip(outputs, apply(SCAN, given, attrs), strict=True)
    return _spread(results, len(body.outputs))


def _literal_result(graph: Graph) -> Any:
    node = graph.outputs[0]
    return node.attrs["value"] if node.op.name == "full" else None


def _live_carries(body: Graph, n: int, wanted: set[int], also: Sequence[int]) -> tuple[set[int], set[int]]:
    """The carries that `wanted` ones and the outputs `also` need from iteration to iteration, and those of them that
    never change."""
    live = set(wanted)
    pending = [*_read(body, [*wanted, *also])]
    while pending:
        k = pending.pop()
        if k < n and k not in live:
            live.add(k)
            pending += _read(body, [k])
    return live, {k for k in live if body.outputs[k] is body.inputs[k]}


def _around(body: Graph, args: Sequence[Tensor], positions: Sequence[int], fixed: set[int], outputs: Sequence[int],
            also: Collection[int]) -> tuple[_Operands, list[Node], list[Tensor]]:
    """The operands of a loop (carries that never change among them), the nodes of its body to be computed before it,
    and their values."""
    candidates = {p: args[p] for p in (*sorted(fixed), *positions)}
    lifted = _invariants(body, {body.inputs[p] for p in candidates}, outputs)
    found = _reachable_without(body, outputs, set(lifted))
    read = {k for k, x in enumerate(body.inputs) if x in found}
    before: list[Tensor] = []
    if lifted:
        cone = reachable(lifted)
        nodes = tuple(x for x in body.nodes if x in cone)
        values: list[Any] = [candidates.get(p) for p in range(len(body.inputs))]
        before = evaluate(Graph(body.inputs, nodes, tuple(lifted), body.name), values)
    return _Operands(candidates, read | set(also)), lifted, before


def _reachable_without(body: Graph, outputs: Collection[int], stop: set[Node]) -> set[Node]:
    """What some outputs, and effects, depend on if the nodes `stop` are there."""
    seen: set[Node] = set()
    stack = [*(body.outputs[k] for k in outputs), *_effects(body)]
    while stack:
        node = stack.pop()
        if node not in seen and node not in stop:
            seen.add(node)
            stack.extend(node.inputs)
    return seen


def _invariants(body: Graph, operands: set[Node], outputs: Sequence[int]) -> list[Node]:
    """Nodes worth computing before the loop: they depend on operands only, and cost something (a product with a
    transposed matrix would pack it each time)."""
    same: set[Node] = set(operands)
    costly: set[Node] = set()
    for node in body.nodes:
        if node.op.kind in ("elementwise", "movement", "reduction", "library", "source") and not has_effects(node):
            if all(i in same for i in node.inputs):
                same.add(node)
                heavy = node.op.kind in ("reduction", "library") or node.op.cost >= COSTLY
                if node.inputs and (heavy or any(i in costly for i in node.inputs)):
                    costly.add(node)
    needed = reachable([*(body.outputs[k] for k in outputs), *_effects(body)])
    found: dict[Node, None] = {}
    for node in body.nodes:
        if node in needed and node not in same:
            for i in node.inputs:
                turned = node.op.name == "matmul" and i.op.name == "transpose"
                if i in same and i not in operands and (i in costly or turned):
                    found[i] = None
    return list(found)


def _with_inputs(graph: Graph, more: Sequence[Node]) -> Graph:
    """A graph that takes inputs for these nodes, too, and does not read them."""
    if not more:
        return graph
    with recording(None):
        trace = Trace(graph.name)
    with recording(trace):
        values = [trace.input(_type(n), n.name) for n in graph.inputs]
        for n in more:
            trace.input(_type(n), "invariant")
        return trace.finish(evaluate(graph, values))


_RULES: dict[Any, Callable[[Node, list[Tensor], set[int]], Any]] = {COND: _cond, WHILE: _while, SCAN: _scan}
