"""What runs along a dim, in terms that kernels have, and long runs in blocks.

In and out: a graph. Few long rows would leave threads idle and add up long sums of rounding errors: they are cut into
blocks, by their sizes alone, whose totals are taken first. Rows of a few elements are written out, so that vectors run
along others. `logcumsumexp` becomes a running maximum and a recurrence.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tracejit.dims import is_symbolic
from tracejit.ir import Graph, Node
from tracejit.ops import core, reduction
from tracejit.ops import elementwise as ew
from tracejit.ops.cumulative import CUMMAX, log_of_running_sum, shifted
from tracejit.ops.movement import along, embed, iota, joined, reshaped
from tracejit.ops.special import logaddexp
from tracejit.tensor import Tensor, apply
from tracejit.trace.tracer import rewrite

LONG = 1 << 16  # elements: below, one thread does everything anyway
ROWS = 16  # from so many on, threads take whole rows
BLOCKS = range(64, 15, -1)  # how many blocks a row may have, the best first
FEW = (2, 3, 4)

_STEPS: dict[str, Callable[..., Any]] = {  # a result from the one before and the elements there
    "cumsum": ew.add, "cumprod": ew.multiply, "cummax": ew.maximum, "cummin": ew.minimum, "logcumsumexp": logaddexp,
    "recurrence": lambda y, factor, term: ew.where(y == 0, y, factor * y) + term,
}
_TOTALS = {"add": reduction.sum, "max": reduction.max, "min": reduction.min}
_JOINS = {"add": ew.add, "max": ew.maximum, "min": ew.minimum}


def running(graph: Graph) -> Graph:
    """Cut long runs, and dissolve those that no kernel knows."""
    return rewrite(graph, _rule) if any(map(_concerns, graph.nodes)) else graph


def _concerns(node: Node) -> bool:
    return node.op.name in _STEPS and (node.op.name == "logcumsumexp" or _is_short(node) or _blocks(node) > 1)


def _is_short(node: Node) -> bool:
    """Whether vectors would run along rows of a few elements."""
    axis, shape = node.attrs["axis"], node.shape
    return not any(map(is_symbolic, shape)) and shape[axis] in FEW and prod(shape[axis + 1:]) == 1


def _blocks(node: Node) -> int:
    """How many blocks to cut the rows of a node into. Products are not: a total may overflow where no result does."""
    if node.op.running not in _TOTALS or node.dtype.kind == "c" or any(map(is_symbolic, node.shape)):
        return 1
    n, size = node.shape[node.attrs["axis"]], prod(node.shape)
    if size < LONG or size // n >= ROWS:
        return 1
    return next((s for s in BLOCKS if n % s == 0), BLOCKS[0])


def _rule(node: Node, args: list[Any]) -> Any:
    if not _concerns(node):
        return None
    if _is_short(node):
        return _written_out(node, args)
    if node.op.name == "logcumsumexp":
        return log_of_running_sum(args[0], apply(CUMMAX, args, node.attrs), node.attrs["axis"])
    return _cut(node, args[0], _blocks(node))


def _written_out(node: Node, args: list[Tensor]) -> Tensor:
    """Joined in the order in which a kernel joins the lanes of a vector (a recurrence: one after the other)."""
    axis, n, way = node.attrs["axis"], node.shape[node.attrs["axis"]], -1 if node.attrs.get("reverse", False) else 1
    join = _STEPS[node.op.name]
    here = [[along(x, axis, k, 1) for x in args] for k in range(n)[::way]]
    found = [terms[-1] for terms in here]
    if node.op.name == "recurrence":
        for k in range(1, n):
            found[k] = join(found[k - 1], *here[k])
    else:
        for step in (1, 2):
            found = [join(found[k - step], y) if k >= step else y for k, y in enumerate(found)]
    return joined(found[::way], axis)


def _cut(node: Node, x: Tensor, blocks: int) -> Tensor:
    axis, n, name = node.attrs["axis"], node.shape[node.attrs["axis"]], node.op.running
    reverse = node.attrs.get("reverse", False)
    length = -(-n // blocks)
    nothing = 0 if name == "add" else _limit(x.dtype, name == "min")
    before, after = x.shape[:axis], x.shape[axis + 1:]
    x = embed(x, (*before, blocks * length, *after), (0,) * x.ndim, value=nothing)
    x = reshaped(x, (*before, blocks, length, *after))
    more = {"dtype": x.dtype} if name == "add" else {}
    totals = apply(node.op, (_TOTALS[name](x, axis=axis + 1, **more),), {**node.attrs, "axis": axis})
    earlier = shifted(totals, axis, -1 if reverse else 1, nothing)
    earlier = core.broadcast_to(reshaped(earlier, (*before, blocks, 1, *after)), x.shape)
    first = iota(x.shape, axis + 1) == (length - 1 if reverse else 0)
    x = ew.where(first, _JOINS[name](earlier, x), x)
    found = apply(node.op, (x,), {**node.attrs, "axis": axis + 1})
    return along(reshaped(found, (*before, blocks * length, *after)), axis, 0, n)


def _limit(dtype: np.dtype, high: bool) -> Any:
    if dtype.kind == "f":
        return float("inf") if high else float("-inf")
    if dtype.kind == "b":
        return high
    return int(np.iinfo(dtype).max if high else np.iinfo(dtype).min)
