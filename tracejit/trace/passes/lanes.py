"""Loops turned inside out: where no element of a loop's carries meets another, each element does its own iterations.

In and out: a graph. A `while_loop` or `scan` becomes one `lane_loop` for each carry that is read, an elementwise op:
one kernel, whose iterations run in registers. It is possible if

- the carries have one shape (others are single values), and the body is elementwise over it;
- the loop goes on by single values (a count, a test on them): then all elements make as many iterations; or while
  `any` element is to go on, and the body leaves those alone that are not (`where(goes_on, new, old)`): then each
  element stops by itself, if the iteration's number is read by nobody afterwards.

A scan without carries over single values is an elementwise op of its rows. What the body computes from operands only
may be anything: it is computed before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tracejit import dtypes
from tracejit.ir import CONSTANT, GETITEM, INPUT, Graph, Node, Type, has_effects, reachable
from tracejit.ops import core
from tracejit.ops.lanes import BITS_AT, LANES
from tracejit.ops.movement import iota, reshaped
from tracejit.ops.regions import COND, SCAN, WHILE
from tracejit.tensor import Tensor, apply, evaluate, recording
from tracejit.trace.tracer import Trace, rewrite

MOST_NODES = 400  # in a body: more would not stay in registers
CHOICE_NODES = 64  # in both branches of a choice: beyond, doing both costs more than a branch
FEW = 64  # elements: one vector at a time
TOGETHER, APART = 8, 4  # vectors at a time, at most: where elements stop one by one, more would wait for the last
# Iterations, of all elements together and of each, between looks at whether the user wants to interrupt a loop that may
# be endless.
TURN, LEAST_TURN = 1 << 22, 1 << 8
_COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "not_equal")

Shape = tuple[int, ...]
_OF_ONE = ("any", "all", "sum", "prod", "max", "min")  # reductions that give back a single value


class Unfit(Exception):
    """A graph that is not elementwise over one shape."""


def lanes(graph: Graph, inside: bool = False) -> Graph:
    """Turn loops inside out. inside: they are in a loop that is to be turned."""
    if not any(n.op in (WHILE, SCAN) for n in graph.nodes):
        return graph
    used: dict[Node, set[int]] = {}
    needed = reachable([*graph.outputs, *(n for n in graph.nodes if has_effects(n))])
    graph = Graph(graph.inputs, tuple(n for n in graph.nodes if n in needed), graph.outputs, graph.name, graph.notes)
    for node in graph.nodes:  # what nobody reads is not there any more: a loop gives only what is used
        if node.op is GETITEM:
            used.setdefault(node.inputs[0], set()).add(node.attrs["index"])

    def rule(node: Node, args: list[Any]) -> Any:
        if node.op not in (WHILE, SCAN):
            return None
        try:
            loop = _Loop(node, args, used.get(node, set()))
            if node.op is SCAN and not node.attrs["carries"]:
                return loop.mapped()
            if inside or loop.bounded():
                return loop.turned()
            try:
                return loop.in_turns()
            except Unfit:
                if not loop.apart():
                    raise
                return loop.turned()
        except Unfit:
            return None

    return rewrite(graph, rule)


def _type(node: Node) -> Type:
    if not isinstance(node.type, Type):
        raise Unfit
    return node.type


def _single(shape: Shape) -> bool:
    return all(n == 1 for n in shape)


# -- choices -----------------------------------------------------------------------------------------------------------
def chosen(graph: Graph) -> Graph:
    """Small choices between elementwise branches as `where`: both are computed."""
    if not any(n.op is COND for n in graph.nodes):
        return graph

    def rule(node: Node, args: list[Any]) -> Any:
        if node.op is not COND:
            return None
        branches = [chosen(b) for b in node.attrs["branches"]]
        nodes = [n for b in branches for n in b.nodes]
        simple = all(n.op.name == "full" or (n.op.kind == "elementwise" and n.op is not LANES) for n in nodes)
        if not simple or len(nodes) > CHOICE_NODES or any(map(has_effects, nodes)):
            return None
        found = evaluate(branches[-1], args[1:])
        for k in reversed(range(len(branches) - 1)):
            take = args[0] if args[0].dtype.kind != "b" else ~args[0]
            take = take <= k if take.dtype.kind != "b" else take
            found = [core.WHERE(take, a, b) for a, b in zip(evaluate(branches[k], args[1:]), found, strict=True)]
        return tuple(found)

    return rewrite(graph, rule)


# -- one loop ----------------------------------------------------------------------------------------------------------
class _Loop:
    def __init__(self, node: Node, args: Sequence[Tensor], used: set[int], limit: int | None = None):
        self.node, self.args, self.used, self.limit = node, args, used, limit
        self.body = chosen(lanes(node.attrs["body"], True))
        if len(self.body.nodes) > MOST_NODES or any(has_effects(n) for n in self.body.nodes):
            raise Unfit
        self.n = node.attrs["carries"] if node.op is SCAN else len(self.body.outputs)
        self.rows = node.attrs["xs"] if node.op is SCAN else 0

    # -- a scan without carries ----------------------------------------------------------------------------------------
    def mapped(self) -> tuple[Any, ...]:
        length = self.node.attrs["length"]
        shapes = {_type(x).shape for x in self.body.inputs[: self.rows]}
        if shapes != {()}:
            raise Unfit
        lifted = self._lifted(self.body, ())
        whole = (length,)
        values = self._values_of(lifted)
        given = {x: core.broadcast_to(t, whole) for x, t in zip(lifted, values, strict=True)}
        inputs: list[Any] = []
        for k, t in enumerate(self.args):
            inputs.append(t if k < self.rows or not _single(t.shape) else core.broadcast_to(reshaped(t, ()), whole))
        env: dict[Node, Any] = dict(zip(self.body.inputs, inputs, strict=True)) | given
        for node in self._order(self.body, self.body.outputs, lifted):
            if node.op is LANES:
                attrs = {**node.attrs, "vectors": _together(length, True)}
                env[node] = apply(LANES, [env[i] for i in node.inputs], attrs)
            else:
                env[node] = _along(node, env, whole)
        return tuple(env[y] for y in self.body.outputs)

    # -- a loop with carries -------------------------------------------------------------------------------------------
    def turned(self) -> tuple[Any, ...]:
        if self.rows or any(k >= self.n for k in self.used):
            raise Unfit
        shapes = {s for x in self.body.inputs[: self.n] if not _single(s := _type(x).shape)}
        if len(shapes) > 1:
            raise Unfit
        shape = shapes.pop() if shapes else ()
        own, test, apart = self._test(shape)
        found: dict[int, Any] = {}
        wide = [k for k in sorted(self.used) if _type(self.body.inputs[k]).shape == shape]
        narrow = [k for k in sorted(self.used) if k not in wide]
        if apart and narrow:
            raise Unfit
        for results, over in ((wide, shape), (narrow, ())):
            if results:
                found |= self._emit(results, over, own, test, apart)
        return tuple(found.get(k) for k in range(self.n))

    def bounded(self) -> bool:
        """Whether a count ends the loop."""
        if self.node.op is SCAN:
            return True
        cond, body = self.node.attrs["cond"], self.node.attrs["body"]
        inputs = {x: k for k, x in enumerate(cond.inputs[: self.n])}

        def counts(node: Node) -> bool:
            while node.op in (core.CAST, core.RESHAPE):
                node = node.inputs[0]
            k = inputs.get(node)
            if k is None or body.outputs[k].op.name not in ("add", "subtract"):
                return False
            x, y = body.outputs[k].inputs
            return (x is body.inputs[k] and y.op.name == "full") or (y is body.inputs[k] and x.op.name == "full")

        return any(t.op.name in _COMPARISONS and any(map(counts, t.inputs)) for t in _terms(cond.outputs[0]))

    def apart(self) -> bool:
        """Whether elements stop one by one."""
        terms = _terms(self.node.attrs["cond"].outputs[0])
        return any(t.op.name == "any" and not _single(t.inputs[0].shape) for t in terms)

    def in_turns(self) -> tuple[Any, ...]:
        """A loop of steps around one of so many iterations: in between, Python can interrupt it."""
        body = self.node.attrs["body"]
        with recording(None):
            trace = Trace(body.name)
        with recording(trace):
            values = [trace.input(_type(x), x.name) for x in body.inputs]
            size = max(_size(_type(x).shape) for x in body.inputs[: self.n])
            limit = max(TURN // max(size, 1), LEAST_TURN)
            turn = trace.finish(_Loop(self.node, values, set(range(self.n)), limit).turned())
        return apply(WHILE, self.args, {"cond": self.node.attrs["cond"], "body": turn})

    def _emit(self, results: list[int], shape: Shape, body: Graph, test: Graph | None,
              apart: bool) -> dict[int, Tensor]:
        """The carries `results` after the loop; apart: elements stop one by one."""
        ends = [] if test is None else [test.outputs[0]]
        live = set(results)
        while True:
            read = reachable([*(body.outputs[k] for k in live), *ends])
            tested = set() if test is None else {k for k, x in enumerate(test.inputs[: self.n]) if x in read}
            more = {k for k, x in enumerate(body.inputs[: self.n]) if x in read} | tested
            if more <= live:
                break
            live |= more
        if shape == () and any(not _single(_type(body.inputs[k]).shape) for k in live):
            raise Unfit
        carries = sorted(live)
        outputs = [body.outputs[k] for k in carries]
        lifted = self._lifted(body, shape, outputs)
        tests = [] if test is None else self._lifted(test, shape)
        before = [*lifted, *tests]
        inner = self._one(body, outputs, carries, before, shape)
        check = None if test is None else self._one(test, ends, carries, before, shape)
        operands = [*self._values_of(lifted), *self._values_of(tests, test)]
        draws = any(n.op.name == "random_bits" for n in (*body.nodes, *(test.nodes if test else ())))
        flat = reshaped(iota((_size(shape),), 0, dtypes.int64), shape) if draws else core.full(0, (), dtypes.int64)
        rest = [self.args[k] for k in range(self.n, len(self.args)) if k in self._fits(body, shape)]
        given = [*(self.args[k] for k in carries), *rest, *operands, flat]
        count = self.node.attrs["length"] if self.node.op is SCAN else self.limit
        if count is not None:
            given.insert(0, core.full(count, (), dtypes.int64))
        given = [_spread(t, shape) for t in given]
        apart = apart or any(n.op is LANES for n in inner.nodes)
        vectors = 0 if _single(shape) else _together(_size(shape), apart)
        attrs = {"body": inner, "test": check, "counted": count is not None, "vectors": vectors}
        found = {k: apply(LANES, given, {**attrs, "result": carries.index(k)}) for k in results}
        return {k: reshaped(y, self.args[k].shape) for k, y in found.items()}

    def _fits(self, body: Graph, shape: Shape) -> set[int]:
        """Operands that an element can have: single values, and those of the loop's shape."""
        return {k for k, x in enumerate(body.inputs) if _single(s := _type(x).shape) or s == shape}

    def _one(self, graph: Graph, outputs: Sequence[Node], carries: Sequence[int], before: Sequence[Node],
             shape: Shape) -> Graph:
        """The graph of one element: from carries, operands, what was computed before, and the element's position."""
        with recording(None):
            trace = Trace(graph.name)
        with recording(trace):
            env: dict[Node, Any] = {}
            fits = self._fits(graph, shape)
            for k in [*carries, *(k for k in range(self.n, len(graph.inputs)) if k in fits)]:
                x = graph.inputs[k]
                env[x] = trace.input(Type((), x.dtype), x.name)
            for x in before:
                env[x] = trace.input(Type((), x.dtype), "before")
            at = trace.input(Type((), dtypes.int64), "position")
            for node in self._order(graph, outputs, before):
                env[node] = _element(node, env, shape, at)
            return trace.finish([env[y] for y in outputs])

    def _order(self, graph: Graph, outputs: Sequence[Node], lifted: Sequence[Node]) -> list[Node]:
        seen: set[Node] = set(lifted)
        stack = [y for y in outputs if y not in seen]
        found: set[Node] = set()
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                found.add(node)
                stack.extend(node.inputs)
        return [n for n in graph.nodes if n in found]

    def _lifted(self, graph: Graph, shape: Shape, outputs: Sequence[Node] | None = None) -> list[Node]:
        """What an element cannot do and the loop does not change: nodes to be computed before it."""
        same: set[Node] = set(graph.inputs[self.n + self.rows:])
        found: dict[Node, None] = {}
        needed = reachable(graph.outputs if outputs is None else outputs)
        for node in graph.nodes:
            if node not in needed:
                continue
            if all(i in same for i in node.inputs) and not has_effects(node) and node.op.kind != "indexing":
                same.add(node)
                continue
            for i in node.inputs:
                if i in same and i in graph.nodes and not _simple(i, shape):
                    found[i] = None
        for y in graph.outputs if outputs is None else outputs:
            if y in same and y in graph.nodes and not _simple(y, shape):
                found[y] = None
        return list(found)

    def _values_of(self, nodes: Sequence[Node], graph: Graph | None = None) -> list[Tensor]:
        graph = self.body if graph is None else graph
        if not nodes:
            return []
        needed = reachable(nodes)
        part = Graph(graph.inputs, tuple(n for n in graph.nodes if n in needed), tuple(nodes))
        return evaluate(part, list(self.args))

    # -- when an element stops -----------------------------------------------------------------------------------------
    def _test(self, shape: Shape) -> tuple[Graph, Graph | None, bool]:
        """The body, the test of one element (None: counted), and whether elements stop one by one."""
        if self.node.op is SCAN:
            return self.body, None, False
        cond = chosen(lanes(self.node.attrs["cond"], True))
        if any(has_effects(n) for n in cond.nodes):
            raise Unfit
        terms = list(_terms(cond.outputs[0]))
        wide = [t for t in terms if t.op.name == "any" and not _single(t.inputs[0].shape)]
        if not wide:
            return self.body, cond, False
        if len(wide) != 1 or wide[0].inputs[0].shape != shape or len(wide[0].attrs["axis"]) != len(shape):
            raise Unfit
        going = wide[0].inputs[0]
        changing = [x for k, x in enumerate(cond.inputs[: self.n]) if _single(_type(x).shape)]
        if any(x in reachable([going]) for x in changing):
            raise Unfit  # an element might go on again
        table: dict[Any, int] = {}
        signature = _Signature(cond, table).of(going)
        own = _Signature(self.body, table)
        for x, y in zip(self.body.inputs, self.body.outputs):
            if _single(_type(x).shape) or y is x:
                continue
            if not (y.op.name == "where" and y.inputs[2] is x and own.of(y.inputs[0]) == signature):
                raise Unfit
        with recording(None):
            trace = Trace(cond.name)
        with recording(trace):
            values = [trace.input(_type(x), x.name) for x in cond.inputs]
            others = [t for t in terms if t is not wide[0]]
            needed = reachable([going, *others])
            part = Graph(cond.inputs, tuple(n for n in cond.nodes if n in needed), (going, *others))
            on, *more = evaluate(part, values)
            for t in more:
                on = on & core.broadcast_to(reshaped(t, ()), shape)  # type: ignore[operator]
            return self.body, trace.finish([on]), True


def _together(n: int, apart: bool) -> int:
    """Vectors at a time of n elements; apart: which may stop one by one."""
    return 1 if n <= FEW else APART if apart else TOGETHER


def _size(shape: Shape) -> int:
    n = 1
    for e in shape:
        n *= e
    return n


def _spread(t: Tensor, shape: Shape) -> Tensor:
    if t.shape == shape:
        return t
    if not _single(t.shape):
        raise Unfit
    return core.broadcast_to(reshaped(t, ()), shape)


def _terms(node: Node) -> Iterable[Node]:
    """What a condition is the conjunction of."""
    if node.op.name in ("logical_and", "bitwise_and"):
        for i in node.inputs:
            yield from _terms(i)
    elif node.op.kind == "movement" and node.op.name == "reshape" and _single(node.inputs[0].shape):
        yield from _terms(node.inputs[0])
    else:
        yield node


def _simple(node: Node, shape: Shape) -> bool:
    """Whether an element can do it by itself."""
    try:
        _check(node, shape)
    except Unfit:
        return False
    return node.op is not CONSTANT and all(_simple(i, shape) for i in node.inputs if i.op is not INPUT)


def _check(node: Node, shape: Shape) -> None:
    own = _type(node).shape
    if own != shape and not _single(own):
        raise Unfit
    name, kind = node.op.name, node.op.kind
    if kind == "elementwise" or name == "full":
        return
    if name == "random_bits" and (own == shape or _single(own)):
        return
    given = _type(node.inputs[0]) if node.inputs else None
    if name in ("reshape", "broadcast_to") and given is not None and (_single(given.shape) or given.shape == own):
        return
    if name in _OF_ONE and given == Type(given.shape if given else (), node.dtype) and _single(given.shape):
        return
    raise Unfit


def _element(node: Node, env: dict[Node, Any], shape: Shape, at: Tensor) -> Tensor:
    """One element of a node, from those of its inputs."""
    _check(node, shape)
    if any(i not in env for i in node.inputs):
        raise Unfit
    args = [env[i] for i in node.inputs]
    name = node.op.name
    if name == "full":
        return core.full(node.attrs["value"], (), node.dtype)
    if name in ("reshape", "broadcast_to", *_OF_ONE):
        return args[0]
    if name == "random_bits":
        attrs = {k: v for k, v in node.attrs.items() if k != "shape"}
        place = at if not _single(_type(node).shape) else core.full(0, (), dtypes.int64)
        return apply(BITS_AT, (*args, place), attrs)
    return apply(node.op, args, node.attrs)


def _along(node: Node, env: dict[Node, Any], shape: Shape) -> Tensor:
    """All rows of a node, from those of its inputs."""
    _check(node, ())
    if any(i not in env for i in node.inputs) or node.op.name == "random_bits":
        raise Unfit
    if node.op.name == "full":
        return core.full(node.attrs["value"], shape, node.dtype)
    if node.op.name in ("reshape", "broadcast_to", *_OF_ONE):
        return env[node.inputs[0]]
    return apply(node.op, [env[i] for i in node.inputs], node.attrs)


class _Signature:
    """What a node computes, as a number equal for equal expressions over the same inputs of two graphs."""

    def __init__(self, graph: Graph, table: dict[Any, int]):
        self.table = table
        self._known: dict[Node, int] = {x: -1 - k for k, x in enumerate(graph.inputs)}

    def of(self, node: Node) -> int:
        if node not in self._known:
            attrs = tuple((k, id(v) if isinstance(v, Graph) else repr(v)) for k, v in sorted(node.attrs.items()))
            key = node.op.name, attrs, tuple(self.of(i) for i in node.inputs)
            self._known[node] = self.table.setdefault(key, len(self.table))
        return self._known[node]

