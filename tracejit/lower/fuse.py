"""Fusion: which nodes share a kernel. Graph -> Plan.

In: a graph after the passes. Out: steps (kernels, gemms, library calls) over buffers, in an order that works.

1. `place` chooses the nodes that own a buffer. Outputs, reductions and the inputs of library calls must; any other
   node is folded into its users, unless doing its work again there costs more than a trip through memory.
2. `cluster` puts roots into kernels: roots over one loop space share a kernel when none needs the other's finished
   result; a root that needs a reduction of the same kernel only at its own row joins as a later stage (softmax is one
   kernel).
3. `loops.py` writes each cluster as a loop nest.

Choices follow the structure of the graph; sizes decide only where a row would not fit the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from tracejit.config import Options
from tracejit.ir import CONSTANT, INPUT, Graph, Node, has_effects
from tracejit.lower import control, loops
from tracejit.lower.access import (
    FEW,
    Coords,
    Placement,
    folds,
    identity,
    inputs_at,
    is_scalar_constant,
    parts_of,
    reduced_dims,
    running_dims,
    runs,
    shown,
    sources,
    squeezed,
)
from tracejit.lower.epilogue import attach
from tracejit.lower.kernel import Launch
from tracejit.lower.operands import (
    ATTENTION_ROWS,
    gemm_strides,
    is_attention,
    is_gemm,
    operand_base,
    plain_strides,
    product_windows,
    row_strides,
)
from tracejit.lower.plan import Attention, Buffer, Call, Gemm, Plan, Step, View
from tracejit.lower.scatter import scatter

# Folding a value into several users repeats its work; past this many repeated operations a buffer is cheaper.
REPEAT_LIMIT = 100
# A value repeated over outer dims by a broadcast is recomputed there if it costs less than this.
BROADCAST_COST = 8
# A kernel of more nodes than this spills registers and compiles slowly.
KERNEL_COST = 500
# Index maps nested deeper than this cost more to work out than a buffer.
MOVEMENT_DEPTH = 64
# Reductions of few terms are written out inside each other up to so many terms.
MOST_TERMS = 16
# A row whose stages run one after the other should stay in the cache between them.
ROW_BYTES = 256 * 1024
# Scalar work on the parts of a concat from which they are computed apart.
ASSEMBLE_COST = 40
# Scalar work for each dim of a value that is put among others: to find out whether it is seen there.
EMBED_COST = 6
# A value with guards of its own that is put among others is computed apart if it costs more than this.
GUARDED_COST = 16
# With fewer rows than this, stages over long rows would leave threads idle.
MIN_ROWS = 16
SMALL = 32 * 1024  # elements: below, one thread does everything anyway
# How many clusters back a root may join.
LOOK_BACK = 16


@dataclass(slots=True, eq=False)
class Cluster:
    """Roots that one kernel computes: `space` is the squeezed loop space, `axes` the folded dims (None: a map)."""

    position: int
    space: tuple[int, ...]
    axes: tuple[int, ...] | None
    roots: list[Node] = field(default_factory=list)  # over the whole space: maps and reductions
    epilogue: list[Node] = field(default_factory=list)  # over the points left by the reductions
    stages: int = 1
    folded: frozenset[Node] = frozenset()  # every node the kernel computes
    products: frozenset[Node] = frozenset()  # those it reads
    running: set[Node] = field(default_factory=set)  # roots that run along the folded dim, and what is made of them
    reverse: bool = False  # whether they do so from the end

    @property
    def outer(self) -> tuple[int, ...]:
        return tuple(d for d in range(len(self.space)) if d not in (self.axes or ()))

    @property
    def nodes(self) -> list[Node]:
        return [*self.roots, *self.epilogue]

    def coords_of(self, node: Node) -> Coords:
        """The coordinates in this cluster's space of a root's own result."""
        if node in self.epilogue or folds(node):
            return identity(node.shape, self.outer)
        return identity(node.shape)


@dataclass(slots=True, eq=False)
class Single:
    """A step of its own: gemm, library call or scatter."""

    position: int
    node: Node


Unit = Cluster | Single


def is_scatter(node: Node) -> bool:
    """A scatter that a kernel can run: real and imaginary parts apart, which a product of complex numbers is not."""
    mode = node.attrs.get("mode") if node.op.kind == "indexing" else None
    return mode is not None and not (mode == "mul" and node.dtype.kind == "c")


def in_loop(node: Node) -> bool:
    """Whether a node is computed inside a kernel (else it is a step of its own)."""
    kind = node.op.kind
    if kind == "reduction":
        return loops.can_accumulate(node)
    if runs(node):
        return True
    return (kind in ("elementwise", "source", "movement") and node.op is not INPUT) or (
        kind == "indexing" and "mode" not in node.attrs
    )


def fuse(graph: Graph, options: Options) -> Plan:
    """Lower a graph to steps over buffers."""
    placement = place(graph)
    units, where = cluster(graph, placement)
    return attach(_Lowering(graph, placement, units, where, options).plan())


# -- 1. which nodes own a buffer -------------------------------------------------------------------------
def place(graph: Graph) -> Placement:
    """Choose the roots: forced ones, then folded nodes that would be repeated too often, from users to producers."""
    placement = Placement()
    roots = placement.roots

    def force(node: Node, why: str) -> None:
        if node.op is not INPUT and node.op is not CONSTANT:
            placement.keep(node, why)

    for node in graph.outputs:
        force(node, "it is a result")
    for node in graph.nodes:
        if node.op.name == "getitem" and node.op.kind == "control":
            placement.keep(node, f"{node.inputs[0].op.name} gives several results")
            continue
        if not in_loop(node):
            if node.op is not CONSTANT:
                placement.keep(node, f"{node.op.name} is a step of its own")
                for k in range(len(node.inputs)):
                    if not is_scatter(node):
                        force(operand_base(node, k, placement)[0], f"{node.op.name} reads all of it")
        elif folds(node):
            placement.keep(node, f"{node.op.name} must be finished before it is used")
        elif node.op.name == "interleave":
            placement.keep(node, "its parts are computed side by side, and put in place one by one")
        elif runs(node):
            placement.keep(node, f"{node.op.name} runs along a dim")
    _measure(graph, placement)
    for node in graph.nodes:
        if is_scatter(node) and not placement.stored(v := node.inputs[1]) and 2 * v.type.size <= node.type.size:  # type: ignore[union-attr]
            if any(node.inputs[0] in n.inputs for n in placement.folded[v]):
                placement.keep(v, "what it reads is updated by it; apart from that, the update can be done in place")
    placement.embedded = {n.inputs[0] for n in graph.nodes if n.op.name == "embed"}
    placement.assembled = {n for n in roots if _is_assembled(n, placement)}
    demands: Demands = {n: set() for n in (*graph.inputs, *graph.nodes)}
    for node in reversed(graph.nodes):
        if node in roots:
            if not in_loop(node) and not is_scatter(node):
                continue
            if node in placement.assembled:
                for i in node.inputs:
                    demands[i].add((squeezed(i.shape), identity(i.shape), False))
            else:
                _demand(node, squeezed(_space(node)), _own_coords(node), False, demands)
            continue
        wanted = demands[node]
        if not wanted or node.op is CONSTANT:
            continue
        if _repeats_too_much(node, wanted, placement):
            placement.keep(node, "it is used in several places, and memory costs less than computing it again")
            _demand(node, squeezed(node.shape), identity(node.shape), False, demands)
        else:
            for space, coords, guarded in wanted:
                _demand(node, space, coords, guarded, demands)
    return placement


def _is_assembled(node: Node, placement: Placement) -> bool:
    """Whether a concat is better computed over the space of its parts, which share what they have in common, than over
    its own, where each element would come from one of them under a guard."""
    if node.op.name == "interleave":
        return True
    if node.op.name != "concat" or any(i.shape != node.inputs[0].shape for i in node.inputs):
        return False
    parts = [i for i in dict.fromkeys(node.inputs) if not placement.stored(i)]
    return sum(_cost(i, placement) for i in parts) > ASSEMBLE_COST


def _assembled_sources(node: Node, placement: Placement) -> set[tuple[Node, Coords]]:
    found: set[tuple[Node, Coords]] = set()
    for i in node.inputs:
        at = identity(i.shape)
        found |= {(i, at)} if placement.stored(i) else sources(i, at, placement)
    return found


def _space(node: Node) -> tuple[int, ...]:
    return node.inputs[0].shape if folds(node) else node.inputs[1].shape if is_scatter(node) else node.shape


def _own_coords(node: Node) -> Coords:
    return identity(_space(node))


# A value wanted in a loop space at coordinates; whether only where some guard holds.
Want = tuple[tuple[int, ...], Coords, bool]
Demands = dict[Node, set[Want]]


def _demand(node: Node, space: tuple[int, ...], coords: Coords, guarded: bool, demands: Demands) -> None:
    if folds(node):
        demands[node.inputs[0]].add((space, coords, guarded))
    elif is_scatter(node):
        x, v, *indices = node.inputs
        demands[x].add((squeezed(x.shape), identity(x.shape), False))
        demands[v].add((space, coords, False))
        for i in indices:
            demands[i].add((space, coords[: len(i.shape)], False))
    elif node.op.kind == "movement":
        for part in parts_of(node, coords):
            demands[node.inputs[part.input]].add((space, part.coords, guarded or bool(part.guards)))
    else:
        for i, c in inputs_at(node, coords):
            demands[i].add((space, c, guarded))


def _measure(graph: Graph, placement: Placement) -> None:
    """Find what is folded into each node. Where a kernel would grow beyond KERNEL_COST nodes, or movement nest too
    deep, a node gets a buffer."""
    depth: dict[Node, int] = dict.fromkeys(graph.inputs, 0)
    terms = dict.fromkeys(graph.inputs, 1)
    for node in graph.nodes:
        depth[node], terms[node] = 0, 1
        placement.folded[node] = alone = frozenset((node,))
        if is_scalar_constant(node) or not in_loop(node):
            continue
        free = [i for i in set(node.inputs) if not placement.stored(i)]
        placement.folded[node] = alone.union(*(placement.folded[i] for i in free))
        deep = (node.op.kind != "elementwise") + max((depth[i] for i in free), default=0)
        if node.type.size > 1 and (len(placement.folded[node]) > KERNEL_COST or deep > MOVEMENT_DEPTH):  # type: ignore[union-attr]
            placement.keep(node, "the kernel would grow too large")
        many = max((terms[i] for i in free), default=1)
        if node.op.kind == "reduction" and not folds(node):
            many *= prod(node.inputs[0].shape[a] for a in node.attrs["axis"])
            if many > MOST_TERMS:
                placement.roots.add(node)
        if not placement.stored(node):
            depth[node], terms[node] = deep, many


def _cost(node: Node, placement: Placement) -> int:
    """Work per element of computing a node with everything folded in: its reads and its arithmetic."""
    folded = placement.folded[node]
    reads = {i for n in folded for i in n.inputs if placement.stored(i)}
    return len(reads) + sum(_work(n) for n in folded)


def _work(node: Node) -> int:
    """Operations for one element of a node alone; a reduction inside a kernel is written out."""
    if node.op.kind == "movement":
        return len(shown(node)) - 1 if len(node.inputs) > 1 else 0
    if node.op.kind == "reduction":
        return node.op.cost * 2 * prod(node.inputs[0].shape[a] for a in node.attrs["axis"])
    return node.op.cost


def _repeats_too_much(node: Node, wanted: set[Want], placement: Placement) -> bool:
    if node.op.kind == "source" and node.op.cost <= 4:
        return False
    if node.type.size <= 1:  # type: ignore[union-attr]
        return _repeats_in_kernels(node, wanted, placement)
    places = len({w[:2] for w in wanted})
    # Terms of a reduction that is written out are wanted in many places, but each of them once.
    places = min(places, -(-sum(prod(space) for space, _ in {w[:2] for w in wanted}) // node.type.size))  # type: ignore[union-attr]
    over_rows = any(_repeated_over_rows(*want) for want in wanted)
    if places == 1 and not over_rows and node not in placement.embedded:
        return False
    cost = _cost(node, placement)
    if len(node.shape) > 2 and any(n.op.kind == "movement" for n in placement.folded[node]):
        cost += _more_rows(sources(node, identity(node.shape), placement, borders=False))
    guards = EMBED_COST * sum(map(_dims_embedded, placement.folded[node]))
    if node in placement.embedded and guards and cost > GUARDED_COST:
        return True
    return (places - 1) * (cost + guards) > REPEAT_LIMIT or (over_rows and cost > BROADCAST_COST)


def _more_rows(reads: set[tuple[Node, Coords]]) -> int:
    """How many more rows than one of each value are read, if whole rows are (windows over pictures)."""
    rows: dict[Node, set[Coords]] = {}
    for n, coords in reads:
        rows.setdefault(n, set()).add(coords)
    return sum(len(found) - 1 for found in rows.values() if len({c[-1:] for c in found}) == 1)


def _dims_embedded(node: Node) -> int:
    """How many dims of rows are put among others, if the rows themselves are not."""
    if node.op.name != "embed" or node.shape[-1] != node.inputs[0].shape[-1]:
        return 0
    return sum(n != m for n, m in zip(node.shape, node.inputs[0].shape))


def _repeats_in_kernels(node: Node, wanted: set[Want], placement: Placement) -> bool:
    """Whether a single number (a learning rate) is better worked out once than in every kernel that needs it; a kernel
    for it costs about as much as so many operations."""
    cost = _cost(node, placement)
    if cost * len(placement.roots) <= REPEAT_LIMIT or all(prod(space) <= 1 for space, _, _ in wanted):
        return False
    users = sum(node in placement.folded[r] for r in placement.roots if r in placement.folded)
    return (users - 1) * cost > REPEAT_LIMIT


def _repeated_over_rows(space: tuple[int, ...], coords: Coords, guarded: bool) -> bool:
    """Whether a value varies along the vector dim and is the same along another one (a guard may hold only rarely)."""
    dims = [c.dims for c in coords]
    if guarded or None in dims:
        return False
    used = set().union(*dims)  # type: ignore[arg-type]
    return len(space) - 1 in used and len(used) < len(space)


# -- 2. which roots share a kernel -----------------------------------------------------------------------
def cluster(graph: Graph, placement: Placement) -> tuple[list[Unit], dict[Node, Unit]]:
    """Roots into clusters, in execution order; and the unit of each root."""
    units: list[Unit] = []
    where: dict[Node, Unit] = {}
    early = _numbers_from_inputs(graph)
    for node in sorted(graph.nodes, key=lambda n: n not in early):
        if node not in placement.roots:
            continue
        if node.op.name == "getitem" and node.op.kind == "control":
            where[node] = where[node.inputs[0]]
            continue
        if not in_loop(node):
            where[node] = Single(len(units), node)
            units.append(where[node])
            continue
        space = squeezed(node.inputs[0].shape if node in placement.assembled else _space(node))
        axes = reduced_dims(node) if folds(node) else (running_dims(node) or None) if runs(node) else None
        if node in placement.assembled:
            needs = _assembled_sources(node, placement)
        elif folds(node):
            needs = set(_reduction_sources(node, placement))
        else:
            needs = sources(node, identity(node.shape), placement)
        found = _join(node, space, axes, needs, units, where, placement)
        if found is None:
            found = Cluster(len(units), space, axes, [node])
            units.append(found)
        _note_running(node, axes, needs, found, where)
        found.folded |= placement.folded[node]
        found.products |= _products(needs)
        where[node] = found
    return units, where


def _numbers_from_inputs(graph: Graph) -> set[Node]:
    """Single numbers made of single numbers that are inputs. They come first: a kernel that needs one besides a product
    (an update of weights by a learning rate) can then run on the product's panels."""
    found: set[Node] = set()
    for node in graph.nodes:
        if node.op.kind in ("elementwise", "source", "movement") and not node.op.stateful and prod(node.shape) <= 1:
            if all(i in found or (i.op is INPUT and prod(i.shape) <= 1) for i in node.inputs):
                found.add(node)
    return found


def _note_running(
    node: Node, axes: tuple[int, ...] | None, needs: set[tuple[Node, Coords]], unit: Cluster, where: dict[Node, Unit]
) -> None:
    if runs(node) and axes is not None:
        unit.reverse = node.attrs.get("reverse", False)
        unit.running.add(node)
    elif any(where.get(n) is unit and n in unit.running for n, _ in needs):
        unit.running.add(node)


def _runs_with(
    node: Node, axes: tuple[int, ...] | None, inside: list[tuple[Node, Coords]], unit: Cluster
) -> bool:
    """Whether what runs along a dim, in the node or the unit, agrees: in its direction, also with positions counted
    from the start, and without a reduction of what is running."""
    backward = node.attrs.get("reverse", False) if runs(node) and axes is not None else None
    if folds(node):
        return not unit.reverse and not any(n in unit.running for n, _ in inside)
    if backward is None:
        return True
    if unit.running:
        return backward == unit.reverse
    return not (backward and any(map(folds, unit.roots)))


def _may_fail(node: Node) -> bool:
    """Whether a node checks indices when it runs."""
    return node.op.kind == "indexing"


def _reduction_sources(node: Node, placement: Placement) -> set[tuple[Node, Coords]]:
    x, coords = node.inputs[0], identity(node.inputs[0].shape)
    return {(x, coords)} if placement.stored(x) else sources(x, coords, placement)


def _join(
    node: Node,
    space: tuple[int, ...],
    axes: tuple[int, ...] | None,
    needs: set[tuple[Node, Coords]],
    units: list[Unit],
    where: dict[Node, Unit],
    placement: Placement,
) -> Cluster | None:
    """The latest cluster that may take `node`, or None."""
    earliest = max((where[n].position for n, _ in needs if n in where), default=0)
    if any(map(_may_fail, placement.folded[node])):  # what was printed before an error stays printed
        effects = (u.position for u in units if isinstance(u, Single) and has_effects(u.node))
        earliest = max([earliest, *effects])
    for unit in reversed(units[max(earliest, len(units) - LOOK_BACK) :]):
        if not isinstance(unit, Cluster) or len(unit.folded | placement.folded[node]) > KERNEL_COST:
            continue
        if axes is None and _of_other_products(needs, unit, where):
            continue
        if unit.space == space and (axes is None or unit.axes is None or unit.axes == axes):
            if _joins_space(node, axes, needs, unit, where):
                return unit
        elif (
            unit.axes is not None and axes is None and squeezed(node.shape) == tuple(unit.space[d] for d in unit.outer)
        ):
            at_points = sources(node, identity(node.shape, unit.outer), placement)
            inside = [(n, c) for n, c in at_points if where.get(n) is unit]
            if inside and all(c == unit.coords_of(n) and (folds(n) or n in unit.epilogue) for n, c in inside):
                unit.epilogue.append(node)
                return unit
    return None


def _products(needs: set[tuple[Node, Coords]]) -> frozenset[Node]:
    return frozenset(n for n, _ in needs if is_gemm(n))


def _of_other_products(needs: set[tuple[Node, Coords]], unit: Cluster, where: dict[Node, Unit]) -> bool:
    """Whether a map and a kernel read nothing of each other, and different products: apart, each goes with its own."""
    products = _products(needs)
    return bool(products and unit.products and not products & unit.products
                and all(where.get(n) is not unit for n, _ in needs))


def _joins_space(
    node: Node, axes: tuple[int, ...] | None, needs: set[tuple[Node, Coords]], unit: Cluster, where: dict[Node, Unit]
) -> bool:
    inside = [(n, c) for n, c in needs if where.get(n) is unit]
    if any(c != unit.coords_of(n) for n, c in inside):
        return False
    if not _runs_with(node, axes, inside, unit):
        return False
    later = any(folds(n) or n in unit.epilogue for n, _ in inside)
    joined = unit.axes if unit.axes is not None else axes
    if later and not _stageable(unit.space, joined or (), node):
        return False
    if unit.axes is None and axes is not None:
        if not _worth_merging(unit, axes, inside):
            return False
        unit.axes = axes
    unit.stages += later
    unit.roots.append(node)
    return True


def _worth_merging(unit: Cluster, axes: tuple[int, ...], inside: list[tuple[Node, Coords]]) -> bool:
    """A map takes in a reduction over its space when the reduction reads what the map computes."""
    return bool(inside)


def _stageable(space: tuple[int, ...], axes: tuple[int, ...], node: Node) -> bool:
    """Whether later stages over the same row would find it in the cache and leave work for every thread."""
    total = row = 1
    for d, n in enumerate(space):
        total *= n
        row *= n if d in axes else 1
    if axes != tuple(range(len(space) - len(axes), len(space))):  # columns: a block of them is walked again
        return row <= 256
    if total <= SMALL:
        return True
    return row * node.dtype.itemsize <= ROW_BYTES and total // max(row, 1) >= MIN_ROWS


# -- 3. steps over buffers -------------------------------------------------------------------------------
class _Lowering:
    """Numbers the buffers and writes every unit as steps."""

    def __init__(
        self, graph: Graph, placement: Placement, units: list[Unit], where: dict[Node, Unit], options: Options
    ):
        self.graph, self.placement, self.units, self.where, self.options = graph, placement, units, where, options
        self.buffers: list[Buffer] = []
        self.buffer_of: dict[Node, int] = {}
        self.results: dict[tuple[Node, int], int] = {}  # of tuple-typed calls

    def plan(self) -> Plan:
        graph = self.graph
        inputs = []
        layouts = graph.notes.get("strides", {})
        for k, node in enumerate(graph.inputs):
            inputs.append(self._new(node, "input", strides=layouts.get(k)))
        for node in graph.nodes:
            if node.op is CONSTANT and (
                not is_scalar_constant(node) or node in graph.outputs or self._read_whole(node)
            ):
                self._new(node, "constant", value=node.attrs["value"])
        outputs = set(graph.outputs)
        stored = self._stored_roots()
        for unit in self.units:
            for node in unit.nodes if isinstance(unit, Cluster) else [unit.node]:
                if isinstance(node.type, tuple):
                    for k, t in enumerate(node.type):
                        self.buffers.append(Buffer(t.shape, t.dtype, "temp"))
                        self.results[node, k] = len(self.buffers) - 1
                elif node in stored:
                    self._new(node, "output" if node in outputs else "temp")
        for node in graph.nodes:
            if node.op.name == "getitem" and node.op.kind == "control":
                b = self.results[node.inputs[0], node.attrs["index"]]
                self.buffer_of[node] = b
                if node in outputs:
                    self.buffers[b] = replace(self.buffers[b], role="output")
        steps: list[Step] = []
        for unit in self.units:
            steps += self._steps(unit, stored)
        return Plan(tuple(self.buffers), tuple(inputs), tuple(self.buffer_of[n] for n in graph.outputs), tuple(steps))

    def _new(self, node: Node, role: str, **more: object) -> int:
        why = self.placement.why.get(node, "")
        self.buffers.append(Buffer(node.shape, node.dtype, role, why=why, **more))  # type: ignore[arg-type]
        self.buffer_of[node] = len(self.buffers) - 1
        return self.buffer_of[node]

    def _read_whole(self, node: Node) -> bool:
        return any(node in u.node.inputs for u in self.units if isinstance(u, Single))

    def _stored_roots(self) -> set[Node]:
        """Roots somebody outside their kernel needs; the others live in registers."""
        stored = {n for n in self.graph.outputs}
        for unit in self.units:
            if isinstance(unit, Single):
                stored.add(unit.node)
                for k in range(len(unit.node.inputs)):
                    stored |= {n for n, _ in self._operands(unit.node, k)}
                continue
            for node in unit.nodes:
                stored |= {n for n, _ in self._needs(unit, node) if self.where.get(n) is not unit}
        return stored

    def _operands(self, node: Node, k: int) -> Iterable[tuple[Node, Coords]]:
        i = node.inputs[k]
        if is_scatter(node) and not self.placement.stored(i):
            return sources(i, identity(i.shape), self.placement)
        return [operand_base(node, k, self.placement)]

    def _needs(self, unit: Cluster, node: Node) -> set[tuple[Node, Coords]]:
        if node in self.placement.assembled:
            return _assembled_sources(node, self.placement)
        if folds(node):
            return _reduction_sources(node, self.placement)
        return sources(node, unit.coords_of(node), self.placement)

    def _steps(self, unit: Unit, stored: set[Node]) -> list[Step]:
        if isinstance(unit, Cluster):
            return [self._launch(unit, stored)]
        node = unit.node
        if is_scatter(node):
            return [*scatter(node, self.placement, self.buffer_of, self.buffers, self.options)]
        if is_gemm(node):
            return self._gemm(node)
        outputs = (
            [self.results[node, k] for k in range(len(node.type))]
            if isinstance(node.type, tuple)
            else [self.buffer_of[node]]
        )
        if control.is_control(node):
            return self._control(node, outputs)
        if is_attention(node):
            return self._attention(node, outputs)
        return [
            Call(
                node.op,
                tuple(self.buffer_of[i] for i in node.inputs),
                tuple(outputs),
                tuple(node.attrs.items()),
                node.where,
            )
        ]

    def _launch(self, unit: Cluster, stored: set[Node]) -> Launch:
        """The kernel of a cluster. Dims that a reshape would have divided are split; a last dim of few elements that
        cannot be walked together with others is written out, so that vectors run along another."""
        space, axes = unit.space, unit.axes or ()

        def write(factors: dict[int, tuple[int, ...]], written_out: bool = False,
                  joined: frozenset[int] = frozenset()) -> tuple[loops.Writer, Launch]:
            whole = [node for node in unit.nodes if node not in self.placement.assembled]
            coords = {node: unit.coords_of(node) for node in whole}
            writer = loops.Writer(
                self.placement, self.buffer_of, self.buffers, self.options, space, axes, coords, factors, written_out,
                unit.reverse, joined,
            )
            for node in unit.nodes:
                if node in self.placement.assembled:
                    writer.assemble(node)
                else:
                    writer.root(node, node in stored)
            return writer, writer.launch()

        writer, launch = write({})
        factors = {d: sizes for d, sizes in writer.factors().items() if not (unit.running and d in axes)}
        if factors:
            writer, launch = write(factors)
        elif joined := writer.held_apart():
            longer = write({}, joined=joined)
            if not longer[0].divides:
                writer, launch = longer
        last = len(space) - 1
        if last > 0 and space[last] in FEW and last not in axes and (len(writer.space) - 1,) in writer.groups:
            if len(unit.folded) * space[last] <= KERNEL_COST:
                launch = write(factors, True)[1]
        self.placement.checked |= writer.proven
        return launch

    def _control(self, node: Node, results: list[int]) -> list[Step]:
        """Branches and loops take contiguous buffers: inputs that are laid out in another way are copied first."""
        copies: dict[int, int] = {}
        steps: list[Step] = []
        for i in node.inputs:
            b = self.buffer_of[i]
            if self.buffers[b].strides is not None and b not in copies:
                copies[b], copy = self._copied(i)
                steps.append(copy)
        inputs = [copies.get(self.buffer_of[i], self.buffer_of[i]) for i in node.inputs]
        steps.append(control.step(node, inputs, results, lambda g: fuse(g, self.options), self._add))
        return steps

    def _copied(self, node: Node) -> tuple[int, Launch]:
        """A contiguous copy of an input that is laid out in another way."""
        buffer = self._add(Buffer(node.shape, node.dtype, "temp"))
        copy = loops.Writer(self.placement, self.buffer_of, self.buffers, self.options, squeezed(node.shape), ())
        at = identity(node.shape)
        copy.store(buffer, at, copy.value(node, at), loops.contiguous(node.shape))
        return buffer, copy.launch()

    def _add(self, buffer: Buffer) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def _gemm(self, node: Node) -> list[Step]:
        *batch, m, n = node.shape
        steps: list[Step] = []
        seen = product_windows(node, self.placement)
        rows, inner = (seen.rows, seen.inner) if seen is not None else ((), ())
        batch = [*seen.batch] if seen is not None else batch
        ways = [gemm_strides if seen is None else seen.strides(k) for k in range(2)]
        a, b = (self._operand(node, k, ways[k], steps) for k in range(2))
        c = View(self.buffer_of[node], 0, loops.contiguous((*batch, m, n)))
        apart, k = seen is not None and seen.apart, node.inputs[1].shape[-2]
        gemm = Gemm(node.dtype, tuple(batch), m, n, k, a, b, c, node.where, None, rows, inner, apart)
        return [*steps, gemm]

    def _operand(self, node: Node, k: int, strides: Callable[..., Any], steps: list[Step]) -> View:
        """Operand `k` of a step of its own. Where an input's own layout will not do, `steps` copy it first."""
        base, coords = operand_base(node, k, self.placement)
        buffer, shape = self.buffer_of[base], node.inputs[k].shape
        seen = strides((base, coords), shape, self.buffers[buffer].strides)
        if seen is None:
            buffer, copy = self._copied(base)
            steps.append(copy)
            seen = strides((base, coords), shape)
        assert seen is not None
        return View(buffer, *seen)

    def _attention(self, node: Node, outputs: list[int]) -> list[Step]:
        q, _, v, *_ = node.inputs
        *batch, rows, depth = q.shape
        name: Any = node.op.name
        first, drops = (3 if name == "attention" else 6), node.attrs["threshold"] < 1 << 32
        steps: list[Step] = []
        reads = [self._operand(node, k, row_strides if k in ATTENTION_ROWS[name] else plain_strides, steps)
                 for k in range(len(node.inputs))]
        mask = node.inputs[first: len(node.inputs) - 2 * drops]
        kind: Any = "" if not mask else "bool" if mask[0].dtype.kind == "b" else "number"
        types: tuple[Any, ...] = node.type if isinstance(node.type, tuple) else (node.type,)
        writes = [View(b, 0, loops.contiguous(t.shape)) for b, t in zip(outputs, types, strict=True)]
        causal, scale, threshold = (node.attrs[name] for name in ("causal", "scale", "threshold"))
        return [*steps, Attention(name, q.dtype, tuple(batch), rows, v.shape[-2], depth, v.shape[-1], tuple(reads),
                                  tuple(writes), kind, causal, scale, threshold, node.where)]
