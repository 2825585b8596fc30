"""Sums of squares about a mean, block by block, so that memory is read once.

In and out: a graph. Where rows do not fit in a cache, a sum of x and then a sum of (x - c)**2, with a c that depends on
the first, read memory twice. Here blocks that do fit have sums and sums of squares about their own means; then

    sum((x - c)**2) = sum over blocks of sum((x - m)**2) + (m - c) (2 sum(x - m) + n (m - c))

with m the mean of a block and n its elements (after Chan, Golub and LeVeque, "Algorithms for computing the sample
variance", 1983). It holds for any c and m, so the rounding of m does no harm, and nothing large cancels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import frexp, prod
from typing import Any

from tracejit import dtypes
from tracejit.dims import is_symbolic
from tracejit.ir import Graph, Node
from tracejit.ops import core, reduction
from tracejit.ops import elementwise as ew
from tracejit.ops.movement import reshaped
from tracejit.tensor import Tensor, wrap
from tracejit.trace.tracer import rewrite

CACHED = 1 << 20  # bytes: rows that are no longer are read from memory once in any case
BLOCK = 1 << 15  # bytes of a block of a row
ROWS = sorted(range(16, 65), key=lambda rows: abs(rows - 32))  # in a block of columns, the best first
LANES = 128  # columns, at least
FEW = 256  # elements: shorter blocks gain nothing
DEPTH = 6  # steps from a sum to the c that is made of it


@dataclass(frozen=True)
class _Cut:
    """`axis` in parts of `size`; the block: those parts, and the dims of `inner` (without the axis)."""

    axis: int
    size: int
    inner: tuple[int, ...]


@dataclass(frozen=True)
class _Blocks:
    """x with its axis cut in two, and the sums of blocks; the dims of a block; those left of the sum's; elements."""

    values: Tensor
    sums: Tensor
    inner: tuple[int, ...]
    outer: tuple[int, ...]
    count: int


def moments(graph: Graph) -> Graph:
    """Take large sums of squares about a mean by blocks."""
    firsts: dict[Node, Node] = {}
    cuts: dict[Node, _Cut] = {}
    for node in graph.nodes:
        first = _first_sum(node)
        cut = first and _cut(first.inputs[0], first.attrs["axis"])
        if first and cut:
            firsts[node], cuts[first] = first, cut
    if not cuts:
        return graph
    blocks: dict[Node, _Blocks] = {}

    def rule(node: Node, args: list[Any]) -> Any:
        if node in cuts:
            blocks[node] = _blocks(args[0], node.attrs["axis"], cuts[node])
            return reduction.sum(blocks[node].sums, axis=blocks[node].outer)
        if node in firsts:
            first = firsts[node]
            return _squares(args[0], blocks[first], cuts[first])
        return None

    return rewrite(graph, rule)


def _first_sum(node: Node) -> Node | None:
    """Of a sum of (x - c)**2, the sum of x over the same dims that c is made of."""
    if node.op.name != "sum" or node.dtype not in (dtypes.float32, dtypes.float64):
        return None
    squares = node.inputs[0]
    away = squares.inputs[0] if squares.inputs else squares
    if squares.op.name != "square" and not (squares.op.name == "multiply" and squares.inputs[1] is away):
        return None
    if away.op.name != "subtract" or away.inputs[1].op.name != "broadcast_to":
        return None
    x, spread = away.inputs
    axes, c = node.attrs["axis"], spread.inputs[0]
    sizes = (1,) * (len(x.shape) - len(c.shape)) + tuple(c.shape)
    if any(map(is_symbolic, x.shape)) or any(sizes[a] != 1 for a in axes):
        return None
    level = [c]
    for _ in range(DEPTH):
        for y in level:
            if y.op.name == "sum" and y.inputs[0] is x and y.attrs["axis"] == axes:
                return y
        level = [i for y in level if y.op.kind in ("elementwise", "movement") for i in y.inputs if i.shape != x.shape]
    return None


def _cut(x: Node, axes: tuple[int, ...]) -> _Cut | None:
    shape, size = x.shape, x.dtype.itemsize
    if axes != tuple(range(axes[0], axes[-1] + 1)):
        return None
    lanes = prod(shape[axes[-1] + 1:])
    if axes[-1] == len(shape) - 1:
        return _rows(shape, axes, size) if prod(shape[a] for a in axes) * size > CACHED else None
    axis, n = axes[-1], prod(shape[a] for a in axes)
    if lanes < LANES or n * min(lanes * size, BLOCK // 2) <= CACHED:
        return None
    return next((_Cut(axis, rows, ()) for rows in ROWS if shape[axis] % rows == 0), None)


def _rows(shape: Sequence[int], axes: tuple[int, ...], size: int) -> _Cut | None:
    """Blocks of whole last dims, and of a part of the one before them."""
    most, inner, axis = BLOCK // size, 1, axes[-1]
    while axis > axes[0] and inner * shape[axis] <= most:
        inner *= shape[axis]
        axis -= 1
    part = next(p for p in range(min(shape[axis], most // inner), 0, -1) if shape[axis] % p == 0)
    return _Cut(axis, part, tuple(range(axis + 1, axes[-1] + 1))) if inner * part >= FEW else None


def _blocks(x: Tensor, axes: tuple[int, ...], cut: _Cut) -> _Blocks:
    shape = x.shape
    values = reshaped(x, (*shape[: cut.axis], shape[cut.axis] // cut.size, cut.size, *shape[cut.axis + 1:]))
    inner = (cut.axis + 1, *(a + 1 for a in cut.inner))
    outer = tuple(range(axes[0], cut.axis + 1))
    count = cut.size * prod(shape[a] for a in cut.inner)
    return _Blocks(values, reduction.sum(values, axis=inner), inner, outer, count)


def _squares(squares: Tensor, blocks: _Blocks, cut: _Cut) -> Tensor:
    x, spread = _node(squares).inputs[0].inputs
    c = wrap(spread.inputs[0])
    mean = _over(blocks.sums, blocks.count)
    kept = tuple(1 if k in blocks.inner else n for k, n in enumerate(blocks.values.shape))
    away = blocks.values - core.broadcast_to(reshaped(mean, kept), blocks.values.shape)
    sizes = [1] * (len(x.shape) - c.ndim) + list(c.shape)
    sizes = [*sizes[: cut.axis + 1], *(n for a, n in enumerate(sizes) if a > cut.axis and a not in cut.inner)]
    apart = mean - core.broadcast_to(reshaped(c, tuple(sizes)), mean.shape)
    within, left = (reduction.sum(y, axis=blocks.inner) for y in (ew.square(away), away))
    two, n = (core.full(k, mean.shape, mean.dtype) for k in (2, blocks.count))
    return reduction.sum(within + apart * (two * left + n * apart), axis=blocks.outer)


def _over(x: Tensor, count: int) -> Tensor:
    exact = frexp(count)[0] == 0.5  # 1 / count, too
    number = core.full(1 / count if exact else count, x.shape, x.dtype)
    return x * number if exact else x / number  # type: ignore[no-any-return]


def _node(x: Tensor) -> Node:
    assert isinstance(x._value, Node)
    return x._value
