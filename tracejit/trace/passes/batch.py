"""Maps done for all rows at once: a scan whose rows know nothing of each other becomes ops with one more dim.

In and out: a graph. `vmap` and `map` trace a function of one row, as the body of a scan without carries (or whose
carries only sum up, as gradients of what all rows share do). Each op of the body is replaced by the same op on all
rows, by a rule for its kind: elementwise, reductions, movements, products, gathers and scatters, sorting and running
sums, and scans inside. Products of rows with a matrix become one large product. Where an op has no rule, or the
intermediate results of all rows would take much memory, the loop stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracejit import dtypes
from tracejit.ir import GETITEM, Graph, Node, Type, has_effects
from tracejit.ops import core
from tracejit.ops.linalg import MATMUL
from tracejit.ops.movement import iota, permuted, reshaped
from tracejit.ops.regions import SCAN
from tracejit.tensor import Tensor, apply, recording
from tracejit.trace.tracer import Trace, rewrite

MOST_BYTES = 1 << 26  # of one intermediate result of all rows
MOST_TIMES = 8  # or so many times what goes in and comes out
Shape = tuple[int, ...]


class Unfit(Exception):
    """A body with an op that has no rule."""


def batch(graph: Graph) -> Graph:
    """Do maps for all rows at once."""
    if not any(n.op is SCAN for n in graph.nodes):
        return graph

    def rule(node: Node, args: list[Any]) -> Any:
        if node.op is not SCAN or node.attrs["length"] < 2:
            return None
        try:
            return _mapped(node, args)
        except Unfit:
            return None

    return rewrite(graph, rule)


def _mapped(node: Node, args: Sequence[Tensor]) -> tuple[Tensor, ...]:
    attrs = node.attrs
    body, n, m, length = batch(attrs["body"]), attrs["carries"], attrs["xs"], attrs["length"]
    terms = [_term(body, k) for k in range(n)]
    _check_size(node, body, length)
    rows = _Rows(length)
    for x, t in zip(body.inputs[n:], args[n:], strict=True):
        rows.env[x] = t, len(rows.env) < m
    rows.run(body, [*terms, *body.outputs[n:]])
    totals = [args[k] + rows.total(terms[k]) for k in range(n)]  # type: ignore[operator]
    return (*totals, *(rows.all(y) for y in body.outputs[n:]))


def _term(body: Graph, k: int) -> Node:
    """What carry `k` sums up."""
    x, y = body.inputs[k], body.outputs[k]
    readers = [u for u in body.nodes for i in u.inputs if i is x]
    if y.op.name != "add" or y.dtype.kind not in "fciu" or y.inputs.count(x) != 1 or readers != [y]:
        raise Unfit
    if any(y in u.inputs for u in body.nodes) or body.outputs.count(y) != 1 or x in body.outputs:
        raise Unfit
    return y.inputs[1] if y.inputs[0] is x else y.inputs[0]


def _check_size(node: Node, body: Graph, length: int) -> None:
    """Unfit where the intermediate results of all rows would be large."""
    largest = 0
    for x in body.nodes:
        for t in x.type if isinstance(x.type, tuple) else (x.type,):
            n = t.size * t.dtype.itemsize
            largest = n if n > largest else largest
    if largest * length <= MOST_BYTES:
        return
    types = [t for x in (*node.inputs, node) for t in (x.type if isinstance(x.type, tuple) else (x.type,))]
    if largest * length > MOST_TIMES * sum(t.size * t.dtype.itemsize for t in types):
        raise Unfit


class _Rows:
    """A body on all rows. env: the value of each node, and whether it has the dim of rows, in front."""

    def __init__(self, length: int):
        self.length = length
        self.env: dict[Node, tuple[Any, Any]] = {}

    def run(self, body: Graph, wanted: Sequence[Node]) -> None:
        """Evaluate what is wanted of a body."""
        needed = set(wanted)
        for x in reversed(body.nodes):
            if x in needed:
                needed.update(x.inputs)
        for x in body.nodes:
            if has_effects(x):
                raise Unfit
            if x not in needed:
                continue
            if x.op is GETITEM:
                values, many = self.env[x.inputs[0]]
                self.env[x] = values[x.attrs["index"]], many[x.attrs["index"]]
            elif not any(self._many(i) for i in x.inputs):
                self.env[x] = self._once(x)
            else:
                self.env[x] = self._rule(x)(self, x)

    def _many(self, x: Node) -> bool:
        many: Any = self.env[x][1]
        return any(many) if isinstance(many, list) else many

    def _once(self, x: Node) -> tuple[Any, Any]:
        """An op that is the same for all rows."""
        found = apply(x.op, [self.env[i][0] for i in x.inputs], x.attrs)
        return found, [False] * len(found) if isinstance(found, tuple) else False

    def _rule(self, x: Node) -> Callable[[_Rows, Node], tuple[Any, Any]]:
        if x.op.kind == "elementwise":
            return _elementwise
        if x.op.kind == "reduction":
            return _reduction
        if x.op.name in RULES:
            return RULES[x.op.name]
        raise Unfit

    def all(self, x: Node) -> Tensor:
        """A value for all rows."""
        t, many = self.env[x]
        if many:
            return t  # type: ignore[no-any-return]
        return core.broadcast_to(reshaped(t, (1, *t.shape)), (self.length, *t.shape))

    def total(self, x: Node) -> Tensor:
        """The sum of a value over all rows."""
        if x.op is MATMUL and len(x.shape) == 2 and all(map(self._many, x.inputs)):  # one product, over rows too
            a, b = (self.all(i) for i in x.inputs)
            length, m, k = a.shape
            left = reshaped(permuted(a, (1, 0, 2)), (m, length * k))
            return apply(MATMUL, (left, reshaped(b, (length * k, b.shape[2]))), {})  # type: ignore[no-any-return]
        return core.SUM(self.all(x), axis=(0,), dtype=x.dtype)


# -- rules -------------------------------------------------------------------------------------------------------------
def _elementwise(rows: _Rows, x: Node) -> tuple[Tensor, bool]:
    return apply(x.op, [rows.all(i) for i in x.inputs], x.attrs), True


def _reduction(rows: _Rows, x: Node) -> tuple[Tensor, bool]:
    axis = tuple(a + 1 for a in x.attrs["axis"])
    return apply(x.op, [rows.all(x.inputs[0])], {**x.attrs, "axis": axis}), True


def _along_axis(rows: _Rows, x: Node) -> tuple[Tensor, bool]:
    attrs = {**x.attrs, **({"axis": x.attrs["axis"] + 1} if "axis" in x.attrs else {})}
    return apply(x.op, [rows.all(i) for i in x.inputs], attrs), True


def _reshape(rows: _Rows, x: Node) -> tuple[Tensor, bool]:
    return reshaped(rows.all(x.inputs[0]), (rows.length, *x.shape)), True


def _broadcast(rows: _Rows, x: Node) -> tuple[Tensor, bool]:
    t = rows.all(x.inputs[0])
    t = reshaped(t, (rows.length, *(1,) * (len(x.shape) - t.ndim + 1), *t.shape[1:]))
    return core.broadcast_to(t, (rows.length, *x.shape)), True


def _transpose(rows: _Rows, x: Node) -> tuple[Tensor, bool]:
    return permuted(rows.all(x.inputs[0]), (0, *(a + 1 for a in x.attrs["axes"]))), True


def _slice(rows: _Rows, x: Node) -> tuple[Tensor, bool]:
    a = x.attrs
    attrs = {"starts": (0, *a["starts"]), "sizes": (rows.length, *a["sizes"]), "steps": (1, *a["steps"])}
    return apply(x.op, [rows.all(x.inputs[0])], attrs), True


def _embed(rows: _Rows, x: Node) -> tuple[Tensor, bool]:
    a = x.attrs
    attrs = {**a, "shape": (rows.length, *a["shape"]), "starts": (0, *a["starts"]), "steps": (1, *a["steps"])}
    return apply(x.op, [rows.all(x.inputs[0])], attrs), True


def _matmul(rows: _Rows, x: Node) -> tuple[Tensor, bool]:
    (a, a_many), (b, b_many) = (rows.env[i] for i in x.inputs)
    if len(x.shape) == 2 and not b_many:  # all rows of all of a, in one product
        _, m, k = a.shape
        flat = apply(MATMUL, (reshaped(a, (rows.length * m, k)), b), {})
        return reshaped(flat, (rows.length, m, b.shape[1])), True
    if len(x.shape) == 2 and not a_many and b.shape[2] == 1:  # a matrix times a column of each row
        columns = reshaped(b, (rows.length, b.shape[1]))
        flat = apply(MATMUL, (columns, permuted(a, (1, 0))), {})
        return reshaped(flat, (rows.length, a.shape[0], 1)), True
    return apply(MATMUL, [rows.all(i) for i in x.inputs], {}), True


def _places(rows: _Rows, indices: Sequence[Node]) -> list[Tensor]:
    """Index tensors of all rows, the row's own number first."""
    found = [rows.all(i) for i in indices]
    shape = found[0].shape
    number = reshaped(iota((rows.length,), 0, dtypes.int64), (rows.length, *(1,) * (len(shape) - 1)))
    return [core.broadcast_to(number, shape), *found]


def _gather(rows: _Rows, x: Node) -> tuple[Tensor, bool]:
    source, *indices = x.inputs
    axes = x.attrs["axes"]
    if not rows._many(source):
        return apply(x.op, [rows.env[source][0], *(rows.all(i) for i in indices)], x.attrs), True
    attrs = {"axes": (0, *(a + 1 for a in axes))}
    return apply(x.op, [rows.all(source), *_places(rows, indices)], attrs), True


def _scatter(rows: _Rows, x: Node) -> tuple[Tensor, bool]:
    target, values, *indices = x.inputs
    attrs = {**x.attrs, "axes": (0, *(a + 1 for a in x.attrs["axes"]))}
    return apply(x.op, [rows.all(target), rows.all(values), *_places(rows, indices)], attrs), True


def _scan(rows: _Rows, x: Node) -> tuple[tuple[Tensor, ...], list[bool]]:
    """A scan in each row: one scan whose steps do all rows."""
    attrs = x.attrs
    body, n, m = attrs["body"], attrs["carries"], attrs["xs"]
    many = [True] * n + [rows._many(i) for i in x.inputs[n:]]
    with recording(None):
        trace = Trace(body.name)
    with recording(trace):
        inner = _Rows(rows.length)
        for k, i in enumerate(body.inputs):
            shape = (rows.length, *i.shape) if many[k] else i.shape
            inner.env[i] = trace.input(Type(shape, i.dtype), i.name), many[k]
        inner.run(body, body.outputs)
        graph = trace.finish([inner.all(y) for y in body.outputs])
    args = [rows.all(i) if many[k] else rows.env[i][0] for k, i in enumerate(x.inputs)]
    for k in range(n, n + m):
        if many[k]:  # its steps come first
            args[k] = permuted(args[k], (1, 0, *range(2, args[k].ndim)))
    found = apply(SCAN, args, {**attrs, "body": graph})
    stacks = [permuted(y, (1, 0, *range(2, y.ndim))) for y in found[n:]]
    return (*found[:n], *stacks), [True] * len(found)


RULES: dict[str, Callable[[_Rows, Node], tuple[Any, Any]]] = {
    "reshape": _reshape,
    "broadcast_to": _broadcast,
    "transpose": _transpose,
    "slice": _slice,
    "embed": _embed,
    "concat": _along_axis,
    "sort": _along_axis,
    "argsort": _along_axis,
    "cumsum": _along_axis,
    "cumprod": _along_axis,
    "cummax": _along_axis,
    "cummin": _along_axis,
    "logcumsumexp": _along_axis,
    "recurrence": _along_axis,
    "matmul": _matmul,
    "gather": _gather,
    "scatter": _scatter,
    "scan": _scan,
}
