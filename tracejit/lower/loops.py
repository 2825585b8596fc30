"""Loops: one cluster of nodes written as a kernel with its numbers (`Launch`).

In: the roots that `fuse.py` put together. Out: statements, accesses, stages; then the dims in their best order,
neighbours merged.

`Writer.value(node, coords)` is the heart: the scalar value of a node at index expressions `coords`. It reads stored
nodes, asks the others' `scalar` and `index` rules, and remembers what it has, so that nothing is written twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from operator import and_
from typing import Any

import numpy as np

from tracejit.config import Options
from tracejit.dims import bits, is_symbolic
from tracejit.ir import Node
from tracejit.lower import scalar
from tracejit.lower.access import (
    Coords,
    Placement,
    address,
    contiguous,
    covers,
    folds,
    gather_coords,
    identity,
    in_line,
    is_scalar_constant,
    parts_of,
    places_of,
    places_of_parts,
    terms_of,
)
from tracejit.lower.index import Dim, Guard, Index, Opaque, Quotient, Remainder, dim, factors, flatten, unflatten
from tracejit.lower.interior import held_apart, interior, usually
from tracejit.lower.kernel import Access, Accumulator, CheckSite, Kernel, Launch, Note, Stage, Store, View
from tracejit.lower.plan import Buffer
from tracejit.lower.scalar import Builder, Complex, Stmt, Value

I64 = scalar.I64
F32 = scalar.F32
# A value that takes so many statements is read back in a later stage, if rows of such values fit the innermost cache.
KEEP_COST = 8
KEEP_BYTES = 32 * 1024
SHORT = 64  # elements: a vector of such rows stays in the innermost cache
NARROW = 8  # elements: a dim with fewer is no good for vectors
ADJACENT = (1, 2, 3, 4, -1)  # strides along vectors that are as good as adjacent
# Literals that stay in the code: others are slots.
COMMON_LITERALS = frozenset((0, 1, -1, 2, -2, 0.5, -0.5))


def can_accumulate(node: Node) -> bool:
    """Whether a reduction runs in a kernel: complex numbers only add up; the rest is a library call."""
    return node.inputs[0].dtype.kind != "c" or (node.op.reduce is not None and node.op.reduce.accumulate == "add")


@dataclass(slots=True)
class Touch:
    """One read or write before dims are ordered: buffer, offset and a coefficient per space dim, in access elements."""

    buffer: int
    dtype: np.dtype
    offset: int
    coefs: tuple[int, ...]


@dataclass(slots=True)
class At:
    """What a `source` rule sees of its place: int64 coordinates and the row-major position, written when asked for."""

    writer: Writer
    index: Coords
    shape: tuple[int, ...]

    @property
    def coords(self) -> tuple[Value, ...]:
        return tuple(map(self.writer.index, self.index))

    @property
    def flat(self) -> Value:
        return self.writer.index(flatten(self.index, self.shape))

    def const(self, value: Any, dtype: Any) -> Any:
        return self.writer.number(value, np.dtype(dtype))


def literal(builder: Builder, value: Any, dtype: np.dtype) -> Any:
    if dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        value = complex(value)
        return Complex(builder.const(value.real, part), builder.const(value.imag, part))
    return builder.const(value, dtype)


class Writer:
    """Writes one kernel. `axes` are the folded dims of `space`; `mine` the roots it computes itself."""

    def __init__(
        self,
        placement: Placement,
        buffer_of: Mapping[Node, int],
        buffers: Sequence[Buffer],
        options: Options,
        space: tuple[int, ...],
        axes: tuple[int, ...],
        roots: Mapping[Node, Coords] = {},
        factors: Mapping[int, tuple[int, ...]] = {},
        written_out: bool = False,
        reverse: bool = False,
        joined: Set[int] = frozenset(),
    ):
        self.placement, self.buffer_of, self.buffers, self.options = placement, buffer_of, buffers, options
        self.few = Dim(len(space) - 1, space[-1]) if written_out else None
        self._split(space, axes, factors, joined)
        if reverse:  # the folded dim is walked from its end
            (d,) = axes
            self.place_of[d] = self.place_of[d] * -1 + (space[d] - 1)
        self.roots = {node: self._copies(coords) for node, coords in roots.items()}
        self.builder = Builder()
        self.reads: list[Touch] = []
        self.writes: list[Touch] = []
        self.params: list[int] = []
        self.sites: list[CheckSite] = []
        self.accumulators: list[Accumulator] = []
        self.stores: list[Store] = []
        self.checks: list[int] = []
        self.proven: set[tuple[object, ...]] = set()  # `places_of` of which it checks every index
        self.nodes: dict[Node, None] = {}  # in the order they were first written
        self.carries: dict[Node, list[tuple[Coords, Any]]] = {}
        self.memo: dict[Any, dict[Node, Any]] = {}
        self.indices: dict[Index, Value] = {}
        self.guards: dict[Guard, Value] = {}
        self.usual: dict[int, bool] = {}  # tests of guards, and what each gives nearly everywhere
        self.read_memo: dict[Any, int] = {}
        self.numbers: dict[Any, Value] = {}
        self.notes: dict[int, Note] = {}

    # -- roots ------------------------------------------------------------------------------------------------------
    def _split(self, space: tuple[int, ...], axes: tuple[int, ...], factors: Mapping[int, tuple[int, ...]],
               joined: Set[int]) -> None:
        """The dims of the loops: those of `space`, some in factors, some as one with the dim inside them, but not the
        one that is written out."""
        loops: list[int] = []
        folded: list[int] = []
        self.place_of: dict[int, Index] = {}  # a dim of `space` in terms of the loops
        together: list[int] = []
        for d in range(len(space)):
            if self.few is not None and d == self.few.number:
                continue
            together.append(d)
            if d in joined:
                continue
            at = Index()
            extents = [space[e] for e in together]
            for size in factors.get(d, (prod(extents),)):
                at = at * size + dim(len(loops), size)
                folded += [len(loops)] if d in axes else []
                loops.append(size)
            self.place_of |= zip(together, unflatten(at, extents), strict=True)
            together = []
        self.space, self.axes = tuple(loops), tuple(folded)

    def _copies(self, coords: Coords) -> tuple[Coords, ...]:
        """Coordinates in terms of the loops: one copy for each value of a dim that is written out."""
        few = self.few

        def copy(k: int) -> Coords:
            return tuple(c.substitute(lambda d: Index((), k) if d == few else self.place_of[d.number]) for c in coords)

        if few is None or not any(few == atom for c in coords for atom, _ in c.terms):
            return (copy(0),)
        return tuple(map(copy, range(few.extent)))

    def factors(self) -> dict[int, tuple[int, ...]]:
        """Dims whose loops in these factors would need fewer divisions (of positions, after a reshape)."""
        return factors(atom for index in self.indices for atom, _ in index.terms)

    def held_apart(self) -> frozenset[int]:
        """Dims that tests of their coordinate keep apart from the dim inside them, see `interior.py`."""
        return held_apart(self.space, self.axes, self.indices, self._as_one)

    @property
    def divides(self) -> bool:
        return any(isinstance(atom, Quotient | Remainder) for index in self.indices for atom, _ in index.terms)

    def root(self, node: Node, store: bool) -> None:
        """Compute a root; keep it in its buffer if somebody else needs it."""
        for number, coords in enumerate(self.roots[node]):
            value = self._fold(node, number) if folds(node) else self.value(node, coords)
            if store:
                self.store(self.buffer_of[node], coords, value, contiguous(node.shape))

    def assemble(self, node: Node) -> None:
        """Compute the parts of a concat or an interleave, and put each in its place, as far as there is one."""
        self.nodes[node] = None
        for part, place in zip(node.inputs, places_of_parts(node), strict=True):
            for coords in self._copies(identity(part.shape)):
                value, at = self.value(part, coords), place(coords)
                beyond = [Guard(c, 0, n) for c, n in zip(at, node.shape, strict=True) if c.bounds[1] >= n]
                inside = reduce(and_, map(self._guard, beyond)).index if beyond else None
                self.store(self.buffer_of[node], at, value, contiguous(node.shape), inside)

    def store(self, buffer: int, coords: Coords, value: Any, strides: Sequence[int], mask: int | None = None) -> None:
        flat = address(coords, strides)
        for part, v, dtype, scale in components(value):
            self.writes.append(
                Touch(
                    buffer,
                    dtype,
                    flat.const * scale + part,
                    tuple(flat.coefficient(d) * scale for d in range(len(self.space))),
                )
            )
            self.stores.append(Store(len(self.writes) - 1, v.index, mask=mask))

    def _fold(self, node: Node, number: int) -> Any:
        x, rule = node.inputs[0], node.op.reduce
        assert rule is not None
        attrs = node.attrs
        at = self._copies(identity(x.shape))[number]
        value = self._with_contract(rule.before, self.value(x, at), **attrs)
        position = None
        if rule.accumulate.startswith("arg"):
            axes = attrs["axis"]
            position = self.index(flatten([at[a] for a in axes], [x.shape[a] for a in axes])).index
        carries = []
        for _, v, dtype, _ in components(value):
            half = dtype == scalar.F16 and rule.accumulate in ("add", "mul")
            if half:  # half precision would stop growing at 2048 ones
                v, dtype = scalar.cast(v, F32), F32
            self.accumulators.append(Accumulator(rule.accumulate, dtype, v.index, position))
            carry = self.builder.emit(
                "carry", I64 if position is not None else dtype, (), (len(self.accumulators) - 1,)
            )
            carries.append(scalar.cast(carry, scalar.F16) if half else carry)
            n = len(self.accumulators) - 1
            self.notes[carry.index] = Note(carry.index, node.op.name, (), node.where, n)
        found: Any = carries[0] if len(carries) == 1 else Complex(*carries)
        found = scalar.cast(self._with_contract(rule.after, found, **attrs), node.dtype)
        self.nodes[node] = None
        self.carries.setdefault(node, []).append((self.roots[node][number], found))
        return found

    # -- values -----------------------------------------------------------------------------------------------------
    def value(self, node: Node, coords: Coords, mask: Value | None = None) -> Any:
        """The value of `node` at `coords`; lanes outside `mask` may hold anything but read nothing."""
        known = self._known(coords, mask)
        found = known.get(node)
        if found is None:
            for n in self._unknown(node, coords, known):
                found = known[n] = self._compute(n, coords, mask)
        return found

    def _known(self, coords: Coords, mask: Value | None) -> dict[Node, Any]:
        """What has been computed at these coordinates under this mask."""
        return self.memo.setdefault((coords, None if mask is None else mask.index), {})

    def _unknown(self, node: Node, coords: Coords, known: dict[Node, Any]) -> list[Node]:
        """The nodes still to compute at `coords` for `node`, inputs first: chains are written from their start, so that
        Python's stack does not grow with the graph."""
        order: list[Node] = []
        seen = set()
        stack = [(node, False)]
        while stack:
            n, done = stack.pop()
            if done:
                order.append(n)
            elif n not in seen and n not in known:
                seen.add(n)
                stack.append((n, True))
                if n.op.kind == "elementwise" and (not self.placement.stored(n) or self._is_mine(n, coords)):
                    stack.extend((i, False) for i in reversed(n.inputs))
        return order

    def _is_mine(self, node: Node, coords: Coords) -> bool:
        """A root of this kernel met at its own coordinates is computed in registers, never read back."""
        return coords in self.roots.get(node, ())

    def _compute(self, node: Node, coords: Coords, mask: Value | None) -> Any:
        for place, carry in self.carries.get(node, ()):  # no keys: equal sizes may be computed in many ways
            if place == coords:
                return carry
        if is_scalar_constant(node):
            return self.number(node.attrs["value"].item(), node.dtype)
        if self.placement.stored(node) and not self._is_mine(node, coords):
            return self._load(node, coords, mask)
        kind = node.op.kind
        self.nodes[node] = None
        if kind == "elementwise":
            args = [self.value(i, coords, mask) for i in node.inputs]
            return self._noted(node, args, self._with_contract(node.op.scalar, *args, **node.attrs))
        if kind == "source":
            inputs = [self.value(i, (), mask) for i in node.inputs]
            at = At(self, coords, node.shape)
            return self._noted(node, inputs, self._with_contract(node.op.scalar, at, *inputs, **node.attrs))
        if kind == "movement":
            return self._moved(node, coords, mask)
        if kind == "library":
            return self._running(node, coords, mask)
        if kind == "reduction":
            return self._fold_few(node, coords, mask)
        return self._gathered(node, coords, mask)

    def _noted(self, node: Node, args: Sequence[Any], found: Any) -> Any:
        """`found`, the result of a node, with a note of that for people."""
        operands = tuple(v.index for a in args for _, v, _, _ in components(a))
        for _, v, _, _ in components(found):
            if v.index not in operands:
                self.notes.setdefault(v.index, Note(v.index, node.op.name, operands, node.where))
        return found

    def _with_contract(self, rule: Any, *args: Any, **attrs: Any) -> Any:
        self.builder.contract = True
        try:
            return rule(*args, **attrs)
        finally:
            self.builder.contract = False

    def _running(self, node: Node, coords: Coords, mask: Value | None) -> Any:
        """Of what runs along a dim, the element at the coordinates: those before it came before it in the loop.
        They did so outside the mask, too."""
        if mask is not None and all(0 <= c.bounds[0] and c.bounds[1] < n for c, n in zip(coords, node.shape)):
            return self.value(node, coords)
        args = [self.value(i, coords, mask) for i in node.inputs]
        if node.shape[node.attrs["axis"]] == 1:
            return args[-1]
        parts = [self.builder.emit("running", values[0][2], [v for _, v, _, _ in values], (node.op.running,))
                 for values in zip(*map(components, args), strict=True)]
        return self._noted(node, args, parts[0] if len(parts) == 1 else Complex(*parts))

    def _fold_few(self, node: Node, coords: Coords, mask: Value | None) -> Any:
        """A reduction of a few terms, written out."""
        rule, x = node.op.reduce, node.inputs[0]
        assert rule is not None
        if rule.accumulate.startswith("arg"):  # of one term
            return self.builder.const(0, I64)
        terms = [self.value(x, at, mask) for at in terms_of(node, coords)]
        terms = [self._with_contract(rule.before, v, **node.attrs) for v in terms]
        half = len(terms) > 1 and terms[0].dtype == scalar.F16 and rule.accumulate in ("add", "mul")
        total = scalar.cast(terms[0], F32) if half else terms[0]
        for v in terms[1:]:
            parts = zip(components(total), components(scalar.cast(v, F32) if half else v), strict=True)
            joined = [self.builder.emit(rule.accumulate, d, (x, y)) for (_, x, d, _), (_, y, _, _) in parts]
            total = joined[0] if len(joined) == 1 else Complex(*joined)
        total = scalar.cast(total, scalar.F16) if half else total
        return scalar.cast(self._with_contract(rule.after, total, **node.attrs), node.dtype)

    def _moved(self, node: Node, coords: Coords, mask: Value | None) -> Any:
        parts = parts_of(node, coords)
        found: Any = None
        if not parts or (len(parts) == 1 and parts[0].guards) or "value" in node.attrs:
            found = literal(self.builder, node.attrs.get("value", 0), node.dtype)
        for part in reversed(parts):
            inner = mask
            ok: Value | None = None
            for guard in part.guards:
                holds = self._guard(guard)
                ok = holds if ok is None else ok & holds
            if ok is not None:
                inner = ok if mask is None else mask & ok
            shown = self.value(node.inputs[part.input], part.coords, inner)
            found = shown if ok is None or found is None else scalar.select(ok, shown, found)
        return found

    def _guard(self, guard: Guard) -> Value:
        guard = guard.alone()
        if guard not in self.guards:
            self.guards[guard] = self._tested(guard)
        return self.guards[guard]

    def _tested(self, guard: Guard) -> Value:
        low, high = guard.index.bounds
        at = self.index(guard.index)
        tests = []
        if low < guard.low:
            tests.append((at >= self.param(guard.low), guard.low - low))
        if high >= guard.high:
            tests.append((at < self.param(guard.high), high + 1 - guard.high))
        for test, fails in tests:
            usual = usually(guard, fails)
            if usual is not None:
                self.usual[test.index] = usual
        found, *more = (test for test, _ in tests)
        return found & more[0] if more else found

    def _gathered(self, node: Node, coords: Coords, mask: Value | None) -> Any:
        x, *indices = node.inputs
        index_coords, _ = gather_coords(node, coords, list(range(len(indices))))
        positions, ok = self.places(node, indices, index_coords, mask)
        _, place = gather_coords(node, coords, [v.index for v in positions])
        return self.value(x, place, ok)

    def places(
        self, node: Node, indices: Sequence[Node], coords: Coords, mask: Value | None
    ) -> tuple[list[Value], Value | None]:
        """The run-time indices of a gather or scatter, counted from 0, and where all are in range (and the mask)."""
        positions, ok = [], mask
        for i, axis in zip(indices, node.attrs["axes"], strict=True):
            at, valid = self._checked(self.value(i, coords, mask), node.inputs[0].shape[axis], axis, node, mask)
            positions.append(at)
            if valid is not None:
                ok = valid if ok is None else ok & valid
        if mask is None and covers(coords, indices[0].shape):
            self.proven.add(places_of(node))
        return positions, ok

    def _checked(self, at: Value, extent: int, axis: int, node: Node, mask: Value | None) -> tuple[Value, Value | None]:
        """A run-time index counted from the end where negative, and where it is in range (None: unchecked)."""
        raw = scalar.cast(at, I64)
        size = self.param(extent)
        counted = scalar.select(raw < 0, raw + size, raw)
        if not self.options.checks:
            return counted, None
        ok = (counted >= 0) & (counted < size)
        if places_of(node) in self.placement.checked:
            return counted, ok
        reported = ok if mask is None else ok | ~mask
        message = f"index {{value}} is out of bounds for axis {axis} with size {{extent}}"
        self.sites.append(CheckSite(message, node.where, extent))
        check = self.builder.emit("check", scalar.BOOL, (reported, raw), (len(self.sites) - 1,))
        self.checks.append(check.index)
        return counted, ok

    def _load(self, node: Node, coords: Coords, mask: Value | None) -> Any:
        buffer = self.buffer_of[node]
        strides = self.buffers[buffer].strides or contiguous(node.shape)
        flat = address(coords, strides)
        affine = Index(tuple((a, c) for a, c in flat.terms if isinstance(a, Dim)), flat.const)
        rest = Index(tuple((a, c) for a, c in flat.terms if not isinstance(a, Dim)))
        dtype = node.dtype
        scale = 1
        if dtype.kind == "c":
            dtype, scale = np.dtype(f"f{dtype.itemsize // 2}"), 2
        moved = self.index(rest * scale) if rest.terms else None
        loaded = []
        for part in range(scale):
            touch = Touch(
                buffer,
                dtype,
                affine.const * scale + part,
                tuple(affine.coefficient(d) * scale for d in range(len(self.space))),
            )
            key = (touch.buffer, touch.offset, touch.coefs)
            read = self.read_memo.get(key)
            if read is None:
                read = self.read_memo[key] = len(self.reads)
                self.reads.append(touch)
            args: list[Value] = []
            if mask is not None and moved is None and not any(touch.coefs):
                mask = None  # a fixed element, there whatever the mask says
            if moved is not None or mask is not None:
                args.append(moved if moved is not None else self.builder.const(0, I64))
            if mask is not None:
                args.append(mask)
            loaded.append(self.builder.emit("load", dtype, args, (read,)))
        return loaded[0] if scale == 1 else Complex(*loaded)

    # -- indices ------------------------------------------------------------------------------------------------------
    def param(self, number: int) -> Value:
        """A run-time integer (never a literal, so that other sizes share the kernel)."""
        self.params.append(number)
        return self.builder.emit("param", I64, (), (len(self.params) - 1,))

    def number(self, value: Any, dtype: np.dtype) -> Any:
        """A literal of the program. All but the simplest are run-time numbers, so that other numbers (one over another
        size, another learning rate) share the kernel."""
        if dtype.kind in "bc" or (not is_symbolic(value) and value in COMMON_LITERALS) or dtype == scalar.F16:
            return literal(self.builder, value, dtype)
        key = (value if is_symbolic(value) else repr(value), dtype)
        found = self.numbers.get(key)
        if found is None:
            wide = np.dtype("float64") if dtype.kind == "f" else I64 if dtype.kind == "i" else scalar.U64
            raw = self.param(bits(value, dtype.name, wide.name))
            found = scalar.cast(raw if wide == I64 else scalar.bitcast(raw, wide), dtype)
            self.numbers[key] = found
        return found

    def index(self, index: Index) -> Value:
        """An index expression as an int64 value."""
        found = self.indices.get(index)
        if found is not None:
            return found
        total: Value | None = None
        for atom, coef in index.terms:
            if isinstance(atom, Dim):
                v = self.builder.emit("coord", I64, (), (atom.number,))
            elif isinstance(atom, Opaque):
                v = Value(self.builder, atom.value, I64)  # type: ignore[arg-type]
            else:
                v = self._divided(atom)
            if coef != 1:
                v = -v if coef == -1 else v * self.param(coef)
            total = v if total is None else total + v
        if total is None:
            total = self.builder.const(index.const, I64) if index.const in (0, 1) else self.param(index.const)
        elif index.const:
            total = total + self.param(index.const)
        self.indices[index] = total
        return total

    def _divided(self, atom: Quotient | Remainder) -> Value:
        """Floor quotient or remainder; the operand is shifted to be non-negative first, where C's division agrees."""
        low = atom.index.bounds[0]
        shift = -(low // atom.by) if low < 0 else 0
        inner = self.index(atom.index + shift * atom.by)
        by = self.param(atom.by)
        if isinstance(atom, Remainder):
            return inner % by
        return inner // by - self.param(shift) if shift else inner // by

    # -- the record ----------------------------------------------------------------------------------------------------
    def launch(self) -> Launch:
        """The kernel with dims ordered and merged, its stages, and its numbers."""
        order = self._dim_order()
        tile = self._tile_dim(order)
        if tile is not None:
            order = [*(d for d in order[:-1] if d != tile), tile, order[-1]]
        groups = self.groups = self._merge(order)
        outer = [g for g in groups if g[0] not in self.axes]
        inner = [g for g in groups if g[0] in self.axes]
        dims = [*(outer or [()]), *inner]
        extents = tuple(prod(self.space[d] for d in g) for g in dims)
        renumber = {g[0]: k for k, g in enumerate(dims) if g}
        n_outer = max(len(outer), 1)
        vector = self._vector(outer, inner)
        vector_dim = n_outer - 1 if vector == "outer" else len(dims) - 1
        reads = [self._access(t, dims, vector_dim, tile is not None) for t in self.reads]
        writes = [self._access(t, dims, vector_dim) for t in self.writes]
        reads, writes = self._alike(reads, writes)
        writes = in_line(writes)
        stages, acc_order = self._stages()
        if vector == "inner" and len(inner) == 1:
            stages = self._keep(stages, extents[-1])
        usual: tuple[tuple[int, bool], ...] = ()
        if self.usual and not self.axes and tile is None and all(s.offset is None for s in self.stores):
            inside, usual = interior(self.builder, stages[0], self.usual)
        stmts = tuple(self._renumber(s, renumber, acc_order) for s in self.builder.stmts)
        kernel = Kernel(
            n_outer,
            len(inner),
            vector,
            tuple(a for a, _ in reads),
            tuple(a for a, _ in writes),
            len(self.params),
            stmts,
            stages,
            tile is not None,
            usual,
            inside if usual else None,
        )
        nodes = list(self.nodes)
        lines = tuple(dict.fromkeys(n.where for n in nodes if n.where))
        ops = tuple(n.op.name for n in nodes)
        notes = tuple(replace(n, accumulator=acc_order.get(n.accumulator)) if n.accumulator is not None else n
                      for n in self.notes.values())
        return Launch(
            kernel,
            extents,
            tuple(self.params),
            tuple(v for _, v in reads),
            tuple(v for _, v in writes),
            tuple(self.sites),
            ops,
            lines,
            _name(ops),
            notes,
        )

    def _coordinate_dims(self) -> set[int]:
        return {s.attrs[0] for s in self.builder.stmts if s.op == "coord"}

    def _dim_order(self) -> list[int]:
        """Outer dims, then inner; in row-major order, with the dim best walked by vectors last."""
        outer = [d for d in range(len(self.space)) if d not in self.axes]
        inner = list(self.axes)
        if any(a.index is not None for a in self.accumulators) or any(s.offset is not None for s in self.stores):
            return outer + inner  # first extremes and scatters depend on the order
        touches = [*self.reads, *self.writes, *self.writes]
        scores = [
            sum(0 < abs(t.coefs[d]) <= (2 if self._is_part(t) else 1) for t in touches) for d in range(len(self.space))
        ]

        def best_last(group: list[int]) -> list[int]:
            if len(group) < 2:
                return group
            # A last dim of a few elements (the colours of a picture) would leave most lanes of a vector empty.
            pairs = dict(zip(group[1:], group, strict=False))
            narrow = {d for d in group if self.space[d] < NARROW and not (d in pairs and self._as_one(pairs[d], d))}
            value = {d: (d not in narrow, scores[d]) for d in group}
            best = max(group, key=lambda d: (value[d], d))
            return [d for d in group if d != best] + [best] if value[best] > value[group[-1]] else group

        return best_last(outer) + best_last(inner)

    def _tile_dim(self, order: list[int]) -> int | None:
        """The dim along which reads are adjacent that stride far along the vectors: a transpose, done by tiles."""
        if len(order) < 2 or self.axes or any(s.offset is not None or s.mode != "set" for s in self.stores):
            return None
        plain = {s.attrs[0] for s in self.builder.stmts if s.op == "load" and not s.args}
        last = order[-1]
        count = dict.fromkeys(order[:-1], 0)
        for n, t in enumerate(self.reads):
            if n in plain and abs(t.coefs[last]) >= NARROW:
                for d in count:
                    count[d] += t.coefs[d] == 1 and self.space[d] >= NARROW
        best = max(count, key=lambda d: count[d])
        return best if count[best] and self.space[last] >= NARROW else None

    def _is_part(self, touch: Touch) -> bool:
        return self.buffers[touch.buffer].dtype.kind == "c"

    def _as_one(self, d: int, e: int) -> bool:
        """Whether every access walks two dims, the second inside the first, as if they were one."""
        return all(t.coefs[d] == t.coefs[e] * self.space[e] for t in (*self.reads, *self.writes))

    def _merge(self, order: list[int]) -> list[tuple[int, ...]]:
        """Neighbouring dims of one group become one where every access walks them as one."""
        pinned = self._coordinate_dims()
        groups: list[list[int]] = []
        for d in order:
            last = groups[-1] if groups else None
            if (
                last
                and (last[-1] in self.axes) == (d in self.axes)
                and not pinned & {d, *last}
                and self._as_one(last[-1], d)
            ):
                last.append(d)
            else:
                groups.append([d])
        return [tuple(g) for g in groups]

    def _vector(self, outer: list[tuple[int, ...]], inner: list[tuple[int, ...]]) -> Any:
        if not inner:
            return "outer"
        if not outer:
            return "inner"
        rows, row = (prod(self.space[d] for d in g) for g in (outer[-1], inner[-1]))
        if rows >= 2 * NARROW and row <= SHORT and any(s.attrs == ("recurrence",) for s in self.builder.stmts):
            return "outer"  # along the row it would go through the lanes of a vector one by one
        touches = [*self.reads, *self.writes]

        def score(group: tuple[int, ...]) -> int:
            """Adjacent accesses along a dim; one of more dims outweighs those of fewer, which are much smaller."""
            return sum(16 ** sum(map(bool, t.coefs)) for t in touches if t.coefs[group[-1]] in ADJACENT)

        a, b = score(outer[-1]), score(inner[-1])
        if a == b:
            return "inner" if inner[-1][-1] == len(self.space) - 1 else "outer"
        return "inner" if b > a else "outer"

    def _access(
        self, touch: Touch, dims: list[tuple[int, ...]], vector_dim: int, tiled: bool = False
    ) -> tuple[Access, View]:
        strides = tuple(touch.coefs[g[-1]] if g else 0 for g in dims)
        classes = tuple(
            "0" if s == 0 else str(s) if k == vector_dim and s in ADJACENT else "s" for k, s in enumerate(strides)
        )
        if tiled and strides[-2] == 1:
            classes = (*classes[:-2], "1", classes[-1])
        return Access(touch.dtype, classes), View(touch.buffer, touch.offset, strides)  # type: ignore[arg-type]

    @staticmethod
    def _alike(*accesses: list[tuple[Access, View]]) -> list[list[tuple[Access, View]]]:
        """Note which accesses of one buffer have the same strides; numbers known only at run time are not compared."""
        first: dict[Any, int] = {}
        found, number = [], 0
        for group in accesses:
            found.append(list(group))
            for k, (access, view) in enumerate(group):
                if not is_symbolic(view.strides):
                    like = first.setdefault((access, view.buffer, view.strides), number)
                    found[-1][k] = replace(access, like=None if like == number else like), view
                number += 1
        return found

    def _stages(self) -> tuple[tuple[Stage, ...], dict[int, int]]:
        """Accumulators and stores by the round they belong to: what uses a carry of round k is of round k + 1."""
        stmts = self.builder.stmts
        level = [0] * len(stmts)
        looping = self._looping = [False] * len(stmts)  # whether a value differs along the inner dims
        acc_level: list[int] = []
        done = 0
        for i, s in enumerate(stmts):
            while done < len(self.accumulators) and self.accumulators[done].value < i:
                a = self.accumulators[done]
                acc_level.append(max(level[a.value], level[a.index] if a.index is not None else 0))
                done += 1
            if s.op == "carry":
                level[i] = acc_level[s.attrs[0]] + 1
            else:
                level[i] = max((level[a] for a in s.args), default=0)
                looping[i] = any(looping[a] for a in s.args)
                if s.op == "coord":
                    looping[i] = s.attrs[0] in self.axes
                elif s.op == "running":
                    looping[i] = True
                elif s.op == "load":
                    looping[i] |= any(self.reads[s.attrs[0]].coefs[d] for d in self.axes)
        for a in self.accumulators[done:]:
            acc_level.append(max(level[a.value], level[a.index] if a.index is not None else 0))
        running = any(s.op == "running" for s in stmts)
        if not self.axes:
            return (Stage(False, (), tuple(self.stores), tuple(self.checks)),), {}
        walks = [any(self.writes[s.write].coefs[d] for d in self.axes) or looping[s.value]
                 for s in self.stores]  # along a dim of no elements no write moves
        rounds = max([*acc_level, *(self._store_level(s, level) for s, w in zip(self.stores, walks) if w), 0])
        stages: list[Stage] = []
        acc_order: dict[int, int] = {}
        for k in range(rounds + 1):
            accs = [n for n, lv in enumerate(acc_level) if lv == k]
            for n in accs:
                acc_order[n] = len(acc_order)
            stores = tuple(s for s, w in zip(self.stores, walks) if w and self._store_level(s, level) == k)
            checks = tuple(c for c in self.checks if looping[c] and level[c] == k)
            if accs and running and stores:  # what is running is computed in a loop apart
                stages.append(Stage(True, tuple(self.accumulators[n] for n in accs), (), checks))
                stages.append(Stage(True, (), stores))
            elif accs or stores or checks:
                stages.append(Stage(True, tuple(self.accumulators[n] for n in accs), stores, checks))
        stores = tuple(s for s, w in zip(self.stores, walks) if not w)
        checks = tuple(c for c in self.checks if not looping[c])
        if stores or checks:
            stages.append(Stage(False, (), stores, checks))
        return tuple(stages), acc_order

    def _keep(self, stages: tuple[Stage, ...], row: int) -> tuple[Stage, ...]:
        """Have stages keep what later stages would else compute again at some cost, as far as a row of it stays in the
        first-level cache."""
        stmts, result = self.builder.stmts, list(stages)
        room = KEEP_BYTES // (row + NARROW)
        computed: dict[int, int] = {}  # statement -> first stage that computes it, of those that loop
        kept: set[int] = set()
        for number, stage in enumerate(stages):
            if not stage.inner:
                continue
            again: list[int] = []
            todo, seen = stage.roots, set(kept)
            while todo:
                i = todo.pop()
                if i in seen:
                    continue
                seen.add(i)
                if i in computed and self._row_cost(i) >= KEEP_COST and stmts[i].dtype.itemsize <= room:
                    room -= stmts[i].dtype.itemsize
                    again.append(i)
                else:
                    todo += stmts[i].args
            for i in sorted(again):
                first = computed[i]
                result[first] = replace(result[first], keeps=(*result[first].keeps, i))
                kept.add(i)
            computed.update((i, number) for i in seen if i not in computed)
        return tuple(result)

    def _row_cost(self, statement: int) -> int:
        """How many statements it takes, in a loop along a row, to compute one."""
        stmts, found = self.builder.stmts, set()
        todo = [statement] if self._looping[statement] else []
        while todo:
            i = todo.pop()
            if i not in found:
                found.add(i)
                todo += [a for a in stmts[i].args if self._looping[a]]
        return len(found)

    @staticmethod
    def _store_level(s: Store, level: list[int]) -> int:
        return max(level[v] for v in (s.value, s.offset, s.mask) if v is not None)

    @staticmethod
    def _renumber(s: Stmt, dims: dict[int, int], accumulators: dict[int, int]) -> Stmt:
        if s.op == "coord":
            return s._replace(attrs=(dims[s.attrs[0]],))
        if s.op == "carry":
            return s._replace(attrs=(accumulators[s.attrs[0]],))
        return s


def components(value: Any) -> list[tuple[int, Value, np.dtype, int]]:
    """(part number, value, dtype, parts) of a real or complex value."""
    if isinstance(value, Complex):
        return [(0, value.re, value.re.dtype, 2), (1, value.im, value.im.dtype, 2)]
    return [(0, value, value.dtype, 1)]


def _name(ops: Sequence[str]) -> str:
    """A short name for people: the work, without the moving."""
    quiet = {"full", "cast", "broadcast_to", "reshape", "transpose", "iota"}
    work = [o for o in ops if o not in quiet] or list(ops) or ["copy"]
    short = list(dict.fromkeys(work))
    return "_".join(short[:4]) + (f"_and_{len(short) - 4}_more" if len(short) > 4 else "")
