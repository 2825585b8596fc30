"""Work that does not go round a loop, done for all rows at once: before a scan, or after it.

In and out: a graph. Small matrix products in the body of a scan become one large one outside:

- of a row and an operand: before the loop, whose row it then is;
- of anything and an operand, if the product is only stacked: after the loop, from the stacked factor;
- `sum += a.T @ b` or `sum += sum(v)`, as gradients of weights are summed up: after the loop, from the stacked factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tracejit.ir import Graph, Node, Type
from tracejit.ops.linalg import MATMUL
from tracejit.ops.movement import TRANSPOSE, reshaped
from tracejit.ops.regions import SCAN
from tracejit.tensor import Tensor, apply, evaluate, recording
from tracejit.trace.tracer import Trace, rewrite

WORTH = 2  # a factor may have so many times the product's elements to be stacked in its place


def fission(graph: Graph) -> Graph:
    """Take matrix products out of scans."""
    if not any(n.op is SCAN for n in graph.nodes):
        return graph
    return rewrite(graph, lambda node, args: _Scan(node, args).split() if node.op is SCAN else None)


def _type(node: Node) -> Type:
    assert isinstance(node.type, Type)
    return node.type


def _is_product(node: Node) -> bool:
    return node.op is MATMUL and len(_type(node).shape) == 2


@dataclass(slots=True)
class _Sum:
    """A carry that sums up `term`, read by nobody in the loop. rows: what has to be stacked for it."""

    carry: int
    term: Node
    rows: tuple[Node, ...]


@dataclass(slots=True)
class _Scan:
    node: Node
    args: Sequence[Tensor]
    stacked: dict[Node, int] = field(default_factory=dict)  # nodes whose rows are stacked, in order

    def split(self) -> Any:
        attrs = self.node.attrs
        body, n, m, length = attrs["body"], attrs["carries"], attrs["xs"], attrs["length"]
        if length < 2:
            return None
        operands = set(body.inputs[n + m:])
        rows = {x: k for k, x in enumerate(body.inputs) if n <= k < n + m}
        users = body.users()
        early = [x for x in body.nodes if _is_product(x) and x.inputs[0] in rows and x.inputs[1] in operands]
        sums = [s for k in range(n) if (s := self._sum(body, k, users)) is not None]
        for s in sums:
            for x in s.rows:
                if x not in rows:
                    self.stacked.setdefault(x, -1)
        late: dict[int, Node] = {}
        for k, y in enumerate(body.outputs):
            if k >= n and _is_product(y) and y not in early and y.inputs[1] in operands and not users[y]:
                u = y.inputs[0]
                if u in rows or u in self.stacked or _type(u).size <= WORTH * _type(y).size:
                    late[k] = y
                    if u not in rows:
                        self.stacked.setdefault(u, -1)
        for s in list(sums):  # sums of what is not stacked for a product are better summed up in the loop
            if s.term.op.name == "sum" and s.rows[0] not in rows and not self._for_products(s.rows[0], sums, late):
                sums.remove(s)
                self.stacked.pop(s.rows[0], None)
        if not early and not late and not sums:
            return None
        return self._emit(body, n, m, length, early, sums, late, rows)

    def _for_products(self, x: Node, sums: Sequence[_Sum], late: dict[int, Node]) -> bool:
        return any(s.term.op is MATMUL and x in s.rows for s in sums) or any(y.inputs[0] is x for y in late.values())

    @staticmethod
    def _sum(body: Graph, k: int, users: dict[Node, list[Node]]) -> _Sum | None:
        x, y = body.inputs[k], body.outputs[k]
        if y.op.name != "add" or y.dtype.kind not in "fc" or y.inputs.count(x) != 1 or body.outputs.count(y) != 1:
            return None
        if users[x] != [y] or users[y] or x in body.outputs:
            return None
        term = y.inputs[1] if y.inputs[0] is x else y.inputs[0]
        if len(users[term]) != 1 or term in body.outputs:
            return None
        if _is_product(term) and term.inputs[0].op is TRANSPOSE:
            return _Sum(k, term, (term.inputs[0].inputs[0], term.inputs[1]))
        if term.op.name == "sum" and term.inputs[0].dtype == term.dtype:
            return _Sum(k, term, (term.inputs[0],))
        return None

    def _emit(self, body: Graph, n: int, m: int, length: int, early: list[Node], sums: list[_Sum],
              late: dict[int, Node], rows: dict[Node, int]) -> tuple[Any, ...]:
        arg = dict(zip(body.inputs, self.args, strict=True))
        summed = {s.carry for s in sums}
        carries = [k for k in range(n) if k not in summed]
        stacks = [k for k in range(n, len(body.outputs)) if k not in late]
        for x in self.stacked:  # what is stacked anyway is not stacked twice
            if x in (outputs := [body.outputs[k] for k in stacks]):
                self.stacked[x] = outputs.index(x)
        fresh = [x for x, at in self.stacked.items() if at < 0]
        self.stacked.update({x: len(stacks) + k for k, x in enumerate(fresh)})
        before = [self._product(arg[y.inputs[0]], arg[y.inputs[1]]) for y in early]
        ends = [*(body.outputs[k] for k in (*carries, *stacks)), *fresh]
        seen: set[Node] = set(early)
        todo = [y for y in ends if y not in seen]
        while todo:
            x = todo.pop()
            if x not in seen:
                seen.add(x)
                todo.extend(x.inputs)
        nodes = tuple(x for x in body.nodes if x in seen and x not in early)
        kept_rows = [k for k in range(n, n + m) if body.inputs[k] in seen]
        operands = [k for k in range(n + m, len(self.args)) if body.inputs[k] in seen]
        order = [body.inputs[k] for k in (*carries, *kept_rows)] + early + [body.inputs[k] for k in operands]
        with recording(None):
            trace = Trace(body.name)
        with recording(trace):
            values = [trace.input(_type(x), x.name) for x in order]
            inner = trace.finish(evaluate(Graph(tuple(order), nodes, tuple(ends)), values))
        given = [self.args[k] for k in (*carries, *kept_rows)] + before + [self.args[k] for k in operands]
        attrs = {**self.node.attrs, "body": inner, "carries": len(carries), "xs": len(kept_rows) + len(early)}
        out = apply(SCAN, given, attrs)

        def all_rows(x: Node) -> Tensor:
            return self.args[rows[x]] if x in rows else out[len(carries) + self.stacked[x]]

        found: dict[int, Tensor] = dict(zip([*carries, *stacks], out, strict=False))
        for k, y in late.items():
            found[k] = self._product(all_rows(y.inputs[0]), arg[y.inputs[1]])
        for s in sums:
            found[s.carry] = self.args[s.carry] + self._total(s, all_rows, length)  # type: ignore[operator]
        return tuple(found[k] for k in range(len(body.outputs)))

    @staticmethod
    def _product(stack: Tensor, matrix: Tensor) -> Tensor:
        """Every row times the matrix."""
        length, rows, k = stack.shape
        flat = apply(MATMUL, (reshaped(stack, (length * rows, k)), matrix), {})
        return reshaped(flat, (length, rows, matrix.shape[1]))

    @staticmethod
    def _total(s: _Sum, all_rows: Any, length: int) -> Tensor:
        """The sum of a term over all rows."""
        if s.term.op.name == "sum":
            axes = (0, *(a + 1 for a in s.term.attrs["axis"]))
            return apply(s.term.op, (all_rows(s.rows[0]),), {"axis": axes})
        a, b = (reshaped(t, (length * t.shape[1], t.shape[2])) for t in map(all_rows, s.rows))
        return apply(MATMUL, (apply(TRANSPOSE, (a,), {"axes": (1, 0)}), b), {})

