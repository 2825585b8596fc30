"""CPU code of a kernel: its loops, as LLVM instructions with explicit vectors.

In: a `Kernel`. Out: a function `void name(ptr slots, i64 begin, i64 end)` in an LLVM module (see `kernel.py` for the ABI).

The loops from the outside in are the levels of a kernel: 0 the call, 1 a row (the outer dims that are no vectors), one per inner dim,
and last the vector dim. Each statement is computed at the level of the innermost dim it depends on. Vectors run along
the last dim of their group in three parts: some vectors at a time, then one by one under a mask, and before both, if results
bypass the cache, one masked vector up to an aligned address.

    rows     (vector == "inner") accumulators live in registers and are combined across lanes at the end of a row
    columns  (vector == "outer") lanes are points; with inner dims, a chunk of lanes keeps its accumulators on the
             stack (in the first-level cache), and inner elements stream by, some rows at a time

All stores of one step come after all its loads, so a kernel may write over what it reads at the same place.

Read next: `emit_scalar_llvm.py` (statements and accumulators), `runtime/build.py` (who compiles this).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from llvmlite import ir

from tracejit.lower.emit_scalar_llvm import (
    INT32,
    INT64,
    PTR,
    VOID,
    Emitter,
    Lanes,
    is_vector,
    literal,
    memory_type,
    scalar_type,
)
from tracejit.lower.kernel import Kernel, Stage, Store
from tracejit.lower.rare import Detour, detours
from tracejit.lower.scalar import F16, I64, Stmt

FUNCTION = ir.FunctionType(VOID, [PTR, INT64, INT64])
_CHUNK_BYTES = 16384  # stack for the accumulators of one chunk of lanes
_CHUNK_LANES = 2048


def vector_bytes(features: str) -> int:
    """Width of the vectors to use on a CPU with these (LLVM) features."""
    have = set(features.split(","))
    if {"+avx512f", "+avx512bw", "+avx512dq", "+avx512vl"} <= have:
        return 64
    return 32 if "+avx2" in have else 16


def emit_kernel(module: ir.Module, name: str, kernel: Kernel, vector_bytes: int, fastmath: bool = False) -> ir.Function:
    """Add the function `name` that runs `kernel` to `module`."""
    function = ir.Function(module, FUNCTION, name)
    function.attributes.add("nounwind")
    _KernelEmitter(function, kernel, vector_bytes, fastmath).emit()
    return function


def lanes_of(kernel: Kernel, vector_bytes: int) -> int:
    """Elements per vector: what fits of the dtype that most statements have. Scatters go one by one."""
    if kernel.serial:
        return 1
    sizes: dict[int, int] = {}
    wanted = [i for stage in kernel.stages for i in _KernelEmitter._roots(stage)]
    usual = [i for i in detours(kernel.stmts, range(len(kernel.stmts)), wanted) if not isinstance(i, Detour)]
    dtypes = [kernel.stmts[i].dtype for i in usual if kernel.stmts[i].op not in ("const", "param", "coord")]
    numbers = [d for d in dtypes if d.kind != "b"] or dtypes
    for d in [*numbers, *(w.dtype for w in kernel.writes if w.dtype.kind != "b"), *(a.dtype for a in kernel.accumulators)]:
        size = 4 if d == F16 else d.itemsize
        sizes[size] = sizes.get(size, 0) + 1
    best = max(sizes, key=lambda size: (sizes[size], size)) if sizes else 4
    return vector_bytes // best


@dataclass
class _Scope:
    """What is known at a point of the code: coordinates, values of statements, and where each access points to."""

    coords: dict[int, ir.Value] = field(default_factory=dict)
    values: dict[int, ir.Value] = field(default_factory=dict)
    pointers: dict[int, ir.Value] = field(default_factory=dict)
    position: ir.Value | None = None  # coordinate of lane 0 along the vector dim, inside the vector loop
    mask: ir.Value | None = None

    def child(self, **changes: Any) -> _Scope:
        return replace(self, coords=dict(self.coords), values=dict(self.values), pointers=dict(self.pointers), **changes)


@dataclass(frozen=True)
class _Work:
    """A stage with its needed statements by level, and the accesses they touch."""

    stage: Stage
    levels: tuple[tuple[int, ...], ...]
    vectors: tuple[int | Detour, ...]  # the last level, with what is rarely needed set apart
    accesses: tuple[int, ...]
    cost: float


Body = Callable[[list[ir.Value], "ir.Value | None", list[ir.Value], "ir.Value | None"], list[ir.Value]]


class _KernelEmitter:
    def __init__(self, function: ir.Function, kernel: Kernel, vector_bytes: int, fastmath: bool):
        self.k = kernel
        self.f = function
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        self.width = vector_bytes
        self.lanes = lanes_of(kernel, vector_bytes)
        self.e = Emitter(self.b, self.lanes, fastmath)
        self.vdim = kernel.vector_dim
        self.columns = kernel.vector == "outer"
        self.accesses = (*kernel.reads, *kernel.writes)
        self.inner_dims = range(kernel.outer, kernel.rank)
        self.row_dims = range(kernel.outer - 1 if self.columns else kernel.outer)
        self.loop_dims = list(self.inner_dims) if self.columns else list(self.inner_dims)[:-1]
        self.vector_level = 2 + len(self.loop_dims)
        self.level_of_dim = {d: 1 for d in self.row_dims}
        self.level_of_dim.update({d: 2 + i for i, d in enumerate(self.loop_dims)})
        self.level_of_dim[self.vdim] = self.vector_level
        self.depends = self._dependencies()
        self.splittable = kernel.splittable and kernel.inner > 0
        self.results: dict[int, Lanes] = {}  # rows: finished accumulators
        self.arrays: dict[int, list[ir.Value]] = {}  # columns: their chunk on the stack
        self.streams = False  # whether some store may bypass the cache

    # ---- analysis

    def _dependencies(self) -> list[frozenset[int]]:
        """The dims that each statement depends on."""
        found: list[frozenset[int]] = []
        for s in self.k.stmts:
            dims = frozenset().union(*(found[a] for a in s.args))
            if s.op == "coord":
                dims |= {s.attrs[0]}
            elif s.op == "load":
                dims |= {d for d, stride in enumerate(self.k.reads[s.attrs[0]].strides) if stride != "0"}
            elif s.op == "carry":
                dims |= set(range(self.k.outer))
            found.append(dims)
        return found

    def _level(self, i: int) -> int:
        return max((self.level_of_dim[d] for d in self.depends[i]), default=0)

    def _closure(self, roots: Iterable[int], known: Iterable[int] = ()) -> list[int]:
        """The statements that `roots` need, in order, except what is behind `known` ones."""
        seen = set(known)
        todo = [r for r in roots if r not in seen]
        found = set()
        while todo:
            i = todo.pop()
            if i not in seen:
                seen.add(i)
                found.add(i)
                todo.extend(self.k.stmts[i].args)
        return sorted(found)

    @staticmethod
    def _roots(stage: Stage) -> list[int]:
        roots = list(stage.checks)
        for a in stage.accumulators:
            roots += [a.value] if a.index is None else [a.value, a.index]
        for s in stage.stores:
            roots += [i for i in (s.value, s.offset, s.mask) if i is not None]
        return roots

    def _work(self, stage: Stage, known: Iterable[int] = (), roots: Sequence[int] | None = None) -> _Work:
        wanted = self._roots(stage) if roots is None else roots
        needed = self._closure(wanted, known)
        levels: list[list[int]] = [[] for _ in range(self.vector_level + 1)]
        for i in needed:
            levels[self._level(i)].append(i)
        accesses = {self.k.stmts[i].attrs[0] for i in needed if self.k.stmts[i].op == "load"}
        if roots is None:
            accesses |= {len(self.k.reads) + s.write for s in stage.stores}
        vectors = detours(self.k.stmts, levels[self.vector_level], wanted)
        cost = float(len(stage.stores))
        for i in (i for item in vectors for i in (item.selects if isinstance(item, Detour) else (item,))):
            s = self.k.stmts[i]
            weight = {"const": 0, "coord": 0, "carry": 0, "div": 4, "sqrt": 4, "quot": 16, "rem": 16}.get(s.op, 1)
            if s.op == "load" and (s.args or self.accesses[s.attrs[0]].strides[self.vdim] == "s"):
                weight = 8
            cost += weight * max(1.0, s.dtype.itemsize * self.lanes / self.width)
        return _Work(stage, tuple(map(tuple, levels)), tuple(vectors), tuple(sorted(accesses)), cost)

    # ---- small tools

    def num(self, value: int) -> ir.Value:
        return literal(value, INT64)

    def less(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.b.icmp_signed("<", x, y)

    def minimum(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.b.select(self.less(x, y), x, y)

    def slot(self, number: int) -> ir.Value:
        return self.b.load(self.b.gep(self.f.args[0], [self.num(number)], source_etype=INT64), typ=INT64, align=8)

    def loop(self, start: ir.Value, stop: ir.Value, state: list[ir.Value],
             body: Callable[[ir.Value, list[ir.Value]], tuple[ir.Value, list[ir.Value]]],
             op: str = "<") -> tuple[ir.Value, list[ir.Value]]:
        """`while i < stop`: `body(i, state)` gives the next of both. Returns the last."""
        b = self.b
        before, inside, after = b.block, b.append_basic_block(), b.append_basic_block()
        b.cbranch(b.icmp_signed(op, start, stop), inside, after)
        b.position_at_end(inside)
        first = (start, *state)
        phis = [b.phi(v.type) for v in first]
        following, news = body(phis[0], list(phis[1:]))
        end = b.block
        b.cbranch(b.icmp_signed(op, following, stop), inside, after)
        b.position_at_end(after)
        last = [b.phi(v.type) for v in first]
        for phi, final, v, w in zip(phis, last, first, (following, *news), strict=True):
            phi.add_incoming(v, before)
            phi.add_incoming(w, end)
            final.add_incoming(v, before)
            final.add_incoming(w, end)
        return last[0], list(last[1:])

    @contextmanager
    def when(self, condition: ir.Value) -> Any:
        """Code that runs if the condition holds. `merge(values, otherwise)` after it gives values from both ways."""
        b = self.b
        before, inside, after = b.block, b.append_basic_block(), b.append_basic_block()
        b.cbranch(condition, inside, after)
        b.position_at_end(inside)
        exits: list[ir.Block] = []

        def merge(values: list[ir.Value], otherwise: list[ir.Value]) -> list[ir.Value]:
            phis = [b.phi(v.type) for v in values]
            for phi, v, w in zip(phis, values, otherwise, strict=True):
                phi.add_incoming(v, exits[0])
                phi.add_incoming(w, before)
            return phis

        yield merge
        exits.append(b.block)
        b.branch(after)
        b.position_at_end(after)

    # ---- the whole function

    def emit(self) -> None:
        k, b, slots = self.k, self.b, self.k.slots
        _, begin, end = self.f.args
        body, leave = b.append_basic_block("body"), b.append_basic_block("leave")
        finishing = self.less(begin, self.num(0))
        first = b.select(finishing, b.not_(begin), begin) if self.splittable else begin
        b.cbranch(self.less(first, end), body, leave)
        b.position_at_end(body)

        self.extents = [self.slot(i) for i in slots.extents]
        self.params = [self.slot(i) for i in slots.params]
        self.stream = b.icmp_signed("!=", self.slot(slots.stream), self.num(0))
        self.errors = b.inttoptr(self.slot(slots.errors), PTR) if any(s.op == "check" for s in k.stmts) else None
        self.strides: list[list[ir.Value]] = []
        base = _Scope()
        for number, ((address, strides), access) in enumerate(zip((*slots.reads, *slots.writes), self.accesses, strict=True)):
            base.pointers[number] = b.inttoptr(self.slot(address), PTR)
            self.strides.append([self.num(int(c)) if at is None else self.slot(at)
                                 for c, at in zip(access.strides, strides, strict=True)])
        self.works = [self._work(stage) for stage in k.stages]
        for i in sorted({i for work in self.works for i in work.levels[0]}):
            base.values[i] = self.statement(i, base)

        last = self.extents[k.outer - 1] if self.columns else self.num(1)
        one = self.num(1)
        if self.splittable:
            self.splits = b.select(finishing, one, self.slot(slots.splits))
            self.split = self.slot(slots.split)
            self._cells(self.slot(slots.splits))
        else:
            self.splits = self.split = one
        block = self.slot(slots.block) if self.columns else one
        if self.splittable:
            block = b.select(finishing, last, block)
        if self.columns and k.accumulators:
            self._stack()

        # where the first segment is
        part = b.srem(first, self.splits) if self.splittable else self.num(0)
        rest = b.sdiv(first, self.splits) if self.splittable else first
        low, row = self.num(0), rest
        if self.columns:
            blocks = b.sdiv(b.sub(b.add(last, block), one), block)
            row = b.sdiv(rest, blocks)
            low = b.mul(b.srem(rest, blocks), block)
            if self.splittable:  # there, items are points
                row = b.select(finishing, b.sdiv(first, last), row)
                low = b.select(finishing, b.srem(first, last), low)
        coords, number = [], row
        for d in reversed(self.row_dims):
            coords.append(b.srem(number, self.extents[d]))
            number = b.sdiv(number, self.extents[d])
        state = [part, low, row, *reversed(coords)]

        def segment(item: ir.Value, state: list[ir.Value]) -> tuple[ir.Value, list[ir.Value]]:
            part, low, row, *coords = state
            high, step = one, one
            if self.columns:
                high = self.minimum(b.add(low, block), last)
                if self.splittable:
                    high = b.select(finishing, self.minimum(high, b.add(low, b.sub(end, item))), high)
                    step = b.select(finishing, b.sub(high, low), one)
            scope = base.child()
            scope.coords.update(zip(self.row_dims, coords, strict=True))
            self._segment(scope, finishing, part, row, low, high, last)
            return b.add(item, step), self._advance(part, low, row, coords, block, last)

        self.loop(first, end, state, segment)
        if self.streams:
            with self.when(self.stream):
                if "x86" in b.module.triple or "i686" in b.module.triple:
                    self.e.call("llvm.x86.sse.sfence", VOID, [])
                else:
                    b.fence("seq_cst")
        b.branch(leave)
        b.position_at_end(leave)
        b.ret_void()

    def _advance(self, part: ir.Value, low: ir.Value, row: ir.Value, coords: list[ir.Value], block: ir.Value,
                 last: ir.Value) -> list[ir.Value]:
        """The next part, block and row: an odometer, the last dim fastest."""
        b, zero, one = self.b, self.num(0), self.num(1)

        def turn(value: ir.Value, by: ir.Value, limit: ir.Value) -> tuple[ir.Value, ir.Value]:
            value = b.add(value, by)
            full = b.icmp_signed(">=", value, limit)
            return b.select(full, zero, value), b.zext(full, INT64)

        carry: ir.Value = one
        if self.splittable:
            part, carry = turn(part, one, self.splits)
        if self.columns:
            low, carry = turn(low, b.mul(carry, block), last)
        row = b.add(row, carry)
        news = list(coords)
        for d in reversed(self.row_dims):
            news[d], carry = turn(coords[d], carry, self.extents[d])
        return [part, low, row, *news]

    def _cells(self, splits: ir.Value) -> None:
        """Addresses of the partial results of each accumulator in the scratch."""
        b, k = self.b, self.k
        self.points = self.num(1)
        for d in range(k.outer):
            self.points = b.mul(self.points, self.extents[d])
        self.all_splits = splits
        count = b.mul(self.points, splits)
        at = self.slot(k.slots.scratch)
        self.cells: list[list[ir.Value]] = []
        for a in k.accumulators:
            areas = []
            for _ in range(2 if a.op.startswith("arg") else 1):
                areas.append(b.inttoptr(at, PTR))
                at = b.add(at, b.shl(count, self.num(3)))
            at = b.and_(b.add(at, self.num(15)), self.num(-16))
            self.cells.append(areas)

    def _stack(self) -> None:
        """Room for the accumulators of a chunk of lanes."""
        sizes = [d.itemsize for a in self.k.accumulators for d in self.e.state_dtypes(a)]
        self.chunk = self.lanes
        while self.chunk * 2 * sum(sizes) <= _CHUNK_BYTES and self.chunk < _CHUNK_LANES:
            self.chunk *= 2
        for n, a in enumerate(self.k.accumulators):
            self.arrays[n] = [self._array(d) for d in self.e.state_dtypes(a)]

    def _array(self, dtype: np.dtype) -> ir.Value:
        return self.e.stack(ir.ArrayType(memory_type(dtype), self.chunk))

    def _segment(self, scope: _Scope, finishing: ir.Value, part: ir.Value, row: ir.Value, low: ir.Value, high: ir.Value,
                 last: ir.Value) -> None:
        """All stages of one row, or of one block of a row of columns."""
        if not self.columns or not self.k.accumulators:
            self._stages(scope, finishing, part, row, low, high)
            return
        b, size = self.b, self.num(self.chunk)
        first_point = b.mul(row, last) if self.splittable else row

        def chunk(start: ir.Value, state: list[ir.Value]) -> tuple[ir.Value, list[ir.Value]]:
            point = b.add(first_point, start) if self.splittable else row
            following = b.add(start, size)
            self._stages(scope, finishing, part, point, start, self.minimum(following, high))
            return following, []

        self.loop(low, high, [], chunk)

    def _stages(self, scope: _Scope, finishing: ir.Value, part: ir.Value, point: ir.Value, low: ir.Value,
                high: ir.Value) -> None:
        b = self.b
        works = list(self.works)
        if self.splittable:
            fresh, partial, join = b.append_basic_block(), b.append_basic_block(), b.append_basic_block()
            rest, leave = b.append_basic_block(), b.append_basic_block()
            whole = b.icmp_signed("==", self.splits, self.num(1))
            b.cbranch(finishing, partial, fresh)
            b.position_at_end(partial)
            partials = self._combine_cells(point, low, high)
            exits = [(partials, b.block)]
            b.branch(join)
            b.position_at_end(fresh)
            start = b.mul(part, self.split)
            length = self.extents[self.inner_dims[0]]
            stop = b.select(whole, length, self.minimum(b.add(start, self.split), length))
            exits.append((self._inner_stage(scope, works.pop(0), 0, low, high, start, stop), b.block))
            b.branch(join)
            b.position_at_end(join)
            merged = []
            for values in zip(*(found for found, _ in exits), strict=True):
                phi = b.phi(values[0].type)
                for v, (_, block) in zip(values, exits, strict=True):
                    phi.add_incoming(v, block)
                merged.append(phi)
            self._keep_results(0, merged)
            store = b.append_basic_block()
            b.cbranch(whole, rest, store)
            b.position_at_end(store)
            self._store_cells(b.add(b.mul(part, self.points), point), low, high)
            b.branch(leave)
            b.position_at_end(rest)
        number = len(self.k.stages[0].accumulators) if self.splittable else 0
        for work in works:
            if work.stage.inner:
                stop = self.extents[self.inner_dims[0]] if self.k.inner else self.num(1)
                found = self._inner_stage(scope, work, number, low, high, self.num(0), stop)
                self._keep_results(number, found)
                number += len(work.stage.accumulators)
            else:
                number = self._point_stage(scope, work, number, low, high)
        if self.splittable:
            b.branch(leave)
            b.position_at_end(leave)

    def _keep_results(self, number: int, values: list[ir.Value]) -> None:
        """Note finished results of accumulators from `number` on (rows only; those of columns are in memory)."""
        values = list(values)
        while values:
            size = 2 if self.k.accumulators[number].op.startswith("arg") else 1
            self.results[number], values = values[:size], values[size:]
            number += 1

    # ---- stages

    def _inner_stage(self, scope: _Scope, work: _Work, number: int, low: ir.Value, high: ir.Value, start: ir.Value,
                     stop: ir.Value) -> list[ir.Value]:
        """One loop over the inner dims, the first from start to stop. For rows gives the results, flat."""
        if self.columns:
            self._column_stage(scope, work, number, low, high, start, stop)
            return []
        accumulators = work.stage.accumulators
        empty = [v for a in accumulators for v in self.e.identity(a, vector=True)]
        bounds = {d: (self.num(0), self.extents[d]) for d in self.inner_dims}
        bounds[self.inner_dims[0]] = (start, stop)
        with self.when(self._some(bounds)) as merge:
            point = self._enter(scope, work, 1)

            def nest(depth: int, outer: _Scope, state: list[ir.Value]) -> list[ir.Value]:
                if depth == len(self.loop_dims):
                    return self._row(outer, work, state, *bounds[self.vdim])
                d = self.loop_dims[depth]

                def body(i: ir.Value, state: list[ir.Value]) -> tuple[ir.Value, list[ir.Value]]:
                    inside = self._enter(outer, work, 2 + depth, {d: i})
                    return self.b.add(i, self.num(1)), nest(depth + 1, inside, state)

                return self.loop(bounds[d][0], bounds[d][1], state, body)[1]

            found = nest(0, point, empty)
        state = merge(found, empty)
        results: list[ir.Value] = []
        for a in accumulators:
            size = len(self.e.state_dtypes(a))
            results += self.e.across(a, state[:size])
            state = state[size:]
        return results

    def _some(self, bounds: dict[int, tuple[ir.Value, ir.Value]]) -> ir.Value:
        """Whether the inner loops run at all."""
        found = literal(True, ir.IntType(1))
        for start, stop in bounds.values():
            found = self.b.and_(found, self.less(start, stop))
        return found

    def _row(self, scope: _Scope, work: _Work, state: list[ir.Value], low: ir.Value, high: ir.Value) -> list[ir.Value]:
        """The innermost loop of a row."""
        unroll = 4 if work.cost <= 12 else 2 if work.cost <= 24 else 1

        def body(positions: list[ir.Value], mask: ir.Value | None, state: list[ir.Value], stream: ir.Value | None) -> list[ir.Value]:
            scopes = [self._vector(scope, work, i, mask) for i in positions]
            state = self._accumulate(work, scopes, mask, state)
            self._store_all(work, scopes, stream)
            return state

        return self._run(scope, work, low, high, unroll, state, body)

    def _accumulate(self, work: _Work, scopes: list[_Scope], mask: ir.Value | None, state: list[ir.Value]) -> list[ir.Value]:
        """Take the values of some steps into the accumulators of a stage."""
        news: list[ir.Value] = []
        for a in work.stage.accumulators:
            size = len(self.e.state_dtypes(a))
            numbers = [a.value] if a.index is None else [a.value, a.index]
            steps = [[self.e.splat(s.values[i]) for i in numbers] for s in scopes]
            news += self.e.accumulate(a, state[:size], steps, mask)
            state = state[size:]
        return news

    def _run(self, scope: _Scope, work: _Work, low: ir.Value, high: ir.Value, unroll: int, state: list[ir.Value],
             body: Body) -> list[ir.Value]:
        """Run along the vector dim: `body(positions, mask, state, stream)` for vectors that cover [low, high).

        unroll: vectors in one step of the main loop; 0 for no main loop, all vectors masked.
        """
        b, lanes = self.b, self.lanes
        unroll = 1 if lanes == 1 else unroll
        wide, narrow = self.num(lanes * unroll), self.num(lanes)

        def many(stream: ir.Value | None) -> Callable[[ir.Value, list[ir.Value]], tuple[ir.Value, list[ir.Value]]]:
            def step(i: ir.Value, state: list[ir.Value]) -> tuple[ir.Value, list[ir.Value]]:
                positions = [i, *(b.add(i, self.num(u * lanes)) for u in range(1, unroll))]
                return b.add(i, wide), body(positions, None, state, stream)

            return step

        def masked(stop: ir.Value) -> Callable[[ir.Value, list[ir.Value]], tuple[ir.Value, list[ir.Value]]]:
            def step(i: ir.Value, state: list[ir.Value]) -> tuple[ir.Value, list[ir.Value]]:
                return b.add(i, narrow), body([i], self.e.tail_mask(b.sub(stop, i)), state, None)

            return step

        if lanes == 1:
            wide, unroll = narrow, 1
            return self.loop(low, high, state, many(None))[1]
        if unroll == 0:
            return self.loop(low, high, state, masked(high))[1]
        full = b.sub(high, wide)
        streamed = self._streamed(work)
        if not streamed:
            i, state = self.loop(low, full, state, many(None), "<=")
            return self.loop(i, high, state, masked(high))[1]

        # With streaming: the masked loop comes before and after the main one, in one piece of code.
        self.streams = True
        head = low
        aligned = self.stream
        offset: ir.Value | None = None
        for n, (access, size, align) in enumerate(streamed):
            address = b.ptrtoint(self.e.at(scope.pointers[access], low, self.accesses[access].dtype), INT64)
            if n == 0:
                behind = b.and_(b.sub(self.num(0), address), self.num(align - 1))
                offset = b.sdiv(behind, self.num(size))
                head = self.minimum(b.add(low, b.select(self.stream, offset, self.num(0))), high)
            start = b.add(address, b.mul(offset, self.num(size)))
            exact = b.icmp_signed("==", b.and_(start, self.num(align - 1)), self.num(0))
            aligned = b.and_(aligned, exact)
        before, edge, main, after = b.block, b.append_basic_block(), b.append_basic_block(), b.append_basic_block()
        b.branch(edge)
        b.position_at_end(edge)
        phis = [b.phi(v.type) for v in (low, head, *state)]
        for phi, v in zip(phis, (low, head, *state), strict=True):
            phi.add_incoming(v, before)
        i, stop, *carried = phis
        _, done = self.loop(i, stop, carried, masked(stop))
        b.cbranch(b.icmp_signed("==", stop, high), after, main)
        b.position_at_end(main)
        i, carried = self.loop(stop, full, done, many(aligned), "<=")
        for phi, v in zip(phis, (i, high, *carried), strict=True):
            phi.add_incoming(v, b.block)
        b.branch(edge)
        b.position_at_end(after)
        return done

    def _streamed(self, work: _Work) -> list[tuple[int, int, int]]:
        """Stores that may bypass the cache: (access, element size, alignment)."""
        found = []
        for s in work.stage.stores:
            access = len(self.k.reads) + s.write
            dtype = self.accesses[access].dtype
            if self._adjacent(s):
                found.append((access, dtype.itemsize, min(self.width, self.lanes * dtype.itemsize)))
        return found

    def _adjacent(self, s: Store) -> bool:
        """Whether a store writes whole vectors of adjacent elements."""
        return self.k.writes[s.write].strides[self.vdim] == "1" and s.mask is None and self.lanes > 1

    def _column_stage(self, scope: _Scope, work: _Work, number: int, low: ir.Value, high: ir.Value, start: ir.Value,
                      stop: ir.Value) -> None:
        """Inner loops outside, lanes of the chunk [low, high) inside, accumulators on the stack."""
        accumulators = work.stage.accumulators
        places = [(array, d) for n, a in enumerate(accumulators)
                  for array, d in zip(self.arrays[number + n], self.e.state_dtypes(a), strict=True)]

        def put(i: ir.Value, values: list[ir.Value], where: list[tuple[ir.Value, np.dtype]]) -> None:
            for v, (array, d) in zip(values, where, strict=True):
                self.e.store(v, self.e.at(array, self.b.sub(i, low), d), d, None)

        def get(i: ir.Value) -> list[ir.Value]:
            return [self.e.load(self.e.at(array, self.b.sub(i, low), d), d, None) for array, d in places]

        nothing = [v for a in accumulators for v in self.e.identity(a, vector=True)]

        def clear(at: list[ir.Value], mask: ir.Value | None, state: list[ir.Value], _: Any) -> list[ir.Value]:
            put(at[0], nothing, places)
            return state

        if places:
            self._run(scope, _NOTHING, low, high, 0, [], clear)
        bounds = {d: (self.num(0), self.extents[d]) for d in self.inner_dims}
        if self.k.inner:
            bounds[self.inner_dims[0]] = (start, stop)
        with self.when(self._some(bounds)):
            lane_values, work = self._lane_values(scope, work, number, low, high)

            def rows(scopes: list[_Scope]) -> None:
                def body(at: list[ir.Value], mask: ir.Value | None, state: list[ir.Value], _: Any) -> list[ir.Value]:
                    before = get(at[0])
                    known = {i: self.e.load(self.e.at(array, self.b.sub(at[0], low), d), d, None)
                             for i, (array, d) in lane_values.items()}
                    if len(scopes) > 1:
                        self._prefetch(work, scopes, at[0])
                    inside = [self._vector(s, work, at[0], mask, number, low, known) for s in scopes]
                    put(at[0], self._accumulate(work, inside, None, before), places)
                    self._store_all(work, inside, None)
                    return state

                self._run(scopes[0], _NOTHING, low, high, separate, [], body)

            # Masks are cheap where vectors are adjacent; elsewhere whole vectors get code of their own.
            paired = any(self.accesses[access].strides[self.vdim] == "2" for access in work.accesses)
            separate = int(paired or bool(work.stage.stores))
            group = 1 if not self.k.inner else 8 if work.cost <= 4 else 4 if work.cost <= 12 else 2 if work.cost <= 24 else 1

            def nest(depth: int, outer: _Scope) -> None:
                if depth == len(self.loop_dims):
                    rows([outer])
                    return
                d = self.loop_dims[depth]
                innermost = depth == len(self.loop_dims) - 1

                def some(count: int) -> Callable[[ir.Value, list[ir.Value]], tuple[ir.Value, list[ir.Value]]]:
                    def body(i: ir.Value, state: list[ir.Value]) -> tuple[ir.Value, list[ir.Value]]:
                        inside = [self._enter(outer, work, 2 + depth, {d: self.b.add(i, self.num(q)) if q else i})
                                  for q in range(count)]
                        rows(inside) if innermost else nest(depth + 1, inside[0])
                        return self.b.add(i, self.num(count)), []

                    return body

                i, end = bounds[d]
                if innermost and group > 1:
                    i, _ = self.loop(i, self.b.sub(end, self.num(group)), [], some(group), "<=")
                self.loop(i, end, [], some(1))

            nest(0, self._enter(scope, work, 1))

        def finish(at: list[ir.Value], mask: ir.Value | None, state: list[ir.Value], _: Any) -> list[ir.Value]:
            values = get(at[0])
            for n, a in enumerate(accumulators):
                size = len(self.e.state_dtypes(a))
                result = self.e.result(a, values[:size])
                where = list(zip(self.arrays[number + n], self.e.state_dtypes(a), strict=True))[: len(result)]
                put(at[0], result, where)
                values = values[size:]
            return state

        if any(map(self.e.compensated, accumulators)):
            self._run(scope, _NOTHING, low, high, 0, [], finish)

    def _prefetch(self, work: _Work, scopes: list[_Scope], position: ir.Value) -> None:
        """Ask for the next rows while these are worked on: the hardware sees only short runs, at far apart places."""
        b, dim = self.b, self.loop_dims[-1]
        for access in work.accesses:
            strides, dtype = self.accesses[access].strides, self.accesses[access].dtype
            if strides[self.vdim] == "1" and strides[dim] == "s":
                ahead = b.add(position, b.mul(self.strides[access][dim], self.num(len(scopes))))
                for scope in scopes:
                    address = self.e.at(scope.pointers[access], ahead, dtype)
                    hint = [literal(v, INT32) for v in (0, 2, 1)]  # a read, for the second level, of data
                    self.e.call("llvm.prefetch.p0", VOID, [address, *hint])

    def _lane_values(self, scope: _Scope, work: _Work, number: int, low: ir.Value,
                     high: ir.Value) -> tuple[dict[int, tuple[ir.Value, np.dtype]], _Work]:
        """Compute what depends on the lane but on no inner coordinate once per chunk, into arrays; and the work left."""
        inner = set(self.inner_dims)

        def fixed(i: int) -> bool:
            return self._level(i) == self.vector_level and not self.depends[i] & inner

        def trivial(s: Stmt) -> bool:
            return s.op in ("coord", "carry") or (s.op == "load" and not s.args)

        levels = work.levels[self.vector_level]
        used = {a for i in levels if not fixed(i) for a in self.k.stmts[i].args} | set(self._roots(work.stage))
        kept = [i for i in levels if i in used and fixed(i) and not trivial(self.k.stmts[i])]
        if not kept or not inner:
            return {}, work
        arrays = {i: (self._array(self.k.stmts[i].dtype), self.k.stmts[i].dtype) for i in kept}
        before = self._work(work.stage, roots=kept)

        def body(at: list[ir.Value], mask: ir.Value | None, state: list[ir.Value], _: Any) -> list[ir.Value]:
            inside = self._vector(outside, before, at[0], mask, number, low)
            for i, (array, d) in arrays.items():
                self.e.store(inside.values[i], self.e.at(array, self.b.sub(at[0], low), d), d, None)
            return state

        outside = self._enter(scope, before, 1)
        self._run(outside, _NOTHING, low, high, 0, [], body)
        return arrays, self._work(work.stage, known=kept)

    def _point_stage(self, scope: _Scope, work: _Work, number: int, low: ir.Value, high: ir.Value) -> int:
        """One execution per point; `number` accumulators are finished. Gives how many are afterwards."""
        row = self._enter(scope, work, 1, number=number)
        if not self.columns:
            self._store_all(work, [row], None)
            return number

        def body(at: list[ir.Value], mask: ir.Value | None, state: list[ir.Value], stream: ir.Value | None) -> list[ir.Value]:
            self._store_all(work, [self._vector(row, work, i, mask, number, low) for i in at], stream)
            return state

        unroll = 4 if work.cost <= 12 else 2 if work.cost <= 24 else 1
        self._run(row, work, low, high, unroll, [], body)
        return number

    # ---- partial results

    def _cell_at(self, area: ir.Value, index: ir.Value) -> ir.Value:
        return self.b.gep(area, [index], source_etype=INT64)

    def _to_cell(self, v: ir.Value) -> ir.Value:
        """A value as the bits of an 8-byte cell."""
        typ = v.type.element if is_vector(v) else v.type
        if not isinstance(typ, ir.IntType):
            whole = ir.IntType({"half": 16, "float": 32, "double": 64}[str(typ)])
            v = self.b.bitcast(v, ir.VectorType(whole, self.lanes) if is_vector(v) else whole)
            typ = whole
        wide = ir.VectorType(INT64, self.lanes) if is_vector(v) else INT64
        return v if typ.width == 64 else self.b.zext(v, wide)

    def _from_cell(self, v: ir.Value, dtype: np.dtype) -> ir.Value:
        typ = scalar_type(dtype)
        bits = 1 if dtype.kind == "b" else dtype.itemsize * 8

        def shape(t: ir.Type) -> ir.Type:
            return ir.VectorType(t, self.lanes) if is_vector(v) else t

        whole = v if bits == 64 else self.b.trunc(v, shape(ir.IntType(bits)))
        return whole if isinstance(typ, ir.IntType) else self.b.bitcast(whole, shape(typ))

    def _store_cells(self, index: ir.Value, low: ir.Value, high: ir.Value) -> None:
        """Leave the results of the first stage's accumulators in the scratch, from cell `index` on."""
        first = list(enumerate(self.k.stages[0].accumulators))
        if not self.columns:
            for n, _ in first:
                for area, v in zip(self.cells[n], self.results[n], strict=True):
                    self.b.store(self._to_cell(v), self._cell_at(area, index), align=8)
            return

        def body(at: list[ir.Value], mask: ir.Value | None, state: list[ir.Value], _: Any) -> list[ir.Value]:
            offset = self.b.sub(at[0], low)
            for n, a in first:
                for area, array, d in zip(self.cells[n], self.arrays[n], self.e.state_dtypes(a), strict=False):
                    v = self._to_cell(self.e.load(self.e.at(array, offset, d), d, None))
                    self.e.store(v, self._cell_at(area, self.b.add(index, offset)), I64, mask)
            return state

        self._run(_Scope(), _NOTHING, low, high, 0, [], body)

    def _combine_cells(self, point: ir.Value, low: ir.Value, high: ir.Value) -> list[ir.Value]:
        """The first stage's results from the cells of all parts, in order."""
        b = self.b
        first = list(enumerate(self.k.stages[0].accumulators))

        def combine(index: ir.Value, mask: ir.Value | None, vector: bool) -> list[ir.Value]:
            def part(s: ir.Value, state: list[ir.Value]) -> tuple[ir.Value, list[ir.Value]]:
                cell = b.add(b.mul(s, self.points), index)
                news: list[ir.Value] = []
                for n, a in first:
                    size = len(self.e.state_dtypes(a))
                    found = []
                    for area, d in zip(self.cells[n], self.e.state_dtypes(a), strict=False):
                        where = self._cell_at(area, cell)
                        v = self.e.load(where, I64, mask) if vector else b.load(where, typ=INT64, align=8)
                        found.append(self._from_cell(v, d))
                    news += self.e.merge(a, state[:size], found)
                    state = state[size:]
                return b.add(s, self.num(1)), news

            state = self.loop(self.num(0), self.all_splits,
                              [v for _, a in first for v in self.e.identity(a, vector)], part)[1]
            results: list[ir.Value] = []
            for _, a in first:
                size = len(self.e.state_dtypes(a))
                results += self.e.result(a, state[:size])
                state = state[size:]
            return results

        if not self.columns:
            return combine(point, None, vector=False)

        def body(at: list[ir.Value], mask: ir.Value | None, state: list[ir.Value], _: Any) -> list[ir.Value]:
            offset = b.sub(at[0], low)
            found = combine(b.add(point, offset), mask, vector=True)
            for n, a in first:
                for array, d in zip(self.arrays[n], self.e.state_dtypes(a), strict=False):
                    if found and (len(self.cells[n]) == 2 or array is self.arrays[n][0]):
                        self.e.store(found.pop(0), self.e.at(array, offset, d), d, None)
            return state

        self._run(_Scope(), _NOTHING, low, high, 0, [], body)
        return []

    # ---- statements in their scopes

    def _enter(self, outer: _Scope, work: _Work, level: int, coords: dict[int, ir.Value] | None = None,
               number: int = 0) -> _Scope:
        """The scope of a level inside `outer`: `coords` become known, and so do the level's statements."""
        scope = outer.child()
        if coords:
            scope.coords.update(coords)
        else:
            coords = {d: outer.coords[d] for d in self.row_dims}
        for access in work.accesses:
            self._advance_pointer(scope, access, coords)
        for i in work.levels[level]:
            scope.values[i] = self.statement(i, scope)
        return scope

    def _advance_pointer(self, scope: _Scope, access: int, coords: dict[int, ir.Value]) -> None:
        pointer = scope.pointers[access]
        for d, at in coords.items():
            stride = self.accesses[access].strides[d]
            if stride != "0":
                offset = at if stride == "1" else self.b.mul(at, self.strides[access][d])
                pointer = self.e.at(pointer, offset, self.accesses[access].dtype)
        scope.pointers[access] = pointer

    def _vector(self, outer: _Scope, work: _Work, position: ir.Value, mask: ir.Value | None, number: int = 0,
                low: ir.Value | None = None, known: dict[int, ir.Value] | None = None) -> _Scope:
        """The scope of one vector at `position`, with the values of all its statements."""
        scope = outer.child(position=position, mask=mask)
        for access in work.accesses:
            self._advance_pointer(scope, access, {self.vdim: position})
        scope.values.update(known or {})
        for i in work.vectors:
            if isinstance(i, Detour):
                self._detour(i, scope)
                continue
            s = self.k.stmts[i]
            if s.op == "carry" and self.columns:
                scope.values[i] = self._carry_vector(s.attrs[0], position, low)
            elif i not in scope.values:
                scope.values[i] = self.statement(i, scope)
        return scope

    def _detour(self, detour: Detour, scope: _Scope) -> None:
        """Selects on a rare condition: a branch around their slow side."""
        b = self.b
        fast = [self.e.splat(scope.values[self.k.stmts[i].args[2]]) for i in detour.selects]
        before, slow, join = b.block, b.append_basic_block(), b.append_basic_block()
        b.cbranch(self.e.any_lane(scope.values[detour.cond]), slow, join).set_weights([1, 1000])
        b.position_at_end(slow)
        inside = scope.child()
        for i in detour.slow:
            inside.values[i] = self.statement(i, inside)
        chosen = [self.e.splat(self.statement(i, inside)) for i in detour.selects]
        after = b.block
        b.branch(join)
        b.position_at_end(join)
        for i, x, y in zip(detour.selects, fast, chosen, strict=True):
            scope.values[i] = b.phi(y.type)
            scope.values[i].add_incoming(x, before)
            scope.values[i].add_incoming(y, after)

    def _carry_vector(self, n: int, position: ir.Value, low: ir.Value | None) -> ir.Value:
        a = self.k.accumulators[n]
        offset = self.b.sub(position, low)
        found = []
        for array, d in zip(self.arrays[n], self.e.state_dtypes(a), strict=True):
            found.append(self.e.load(self.e.at(array, offset, d), d, None))
        return self.e.carry(a, found)

    def statement(self, i: int, scope: _Scope) -> ir.Value:
        """Emit statement `i` here."""
        s = self.k.stmts[i]
        args = [scope.values[a] for a in s.args]
        vector = self._level(i) == self.vector_level and self.lanes > 1
        match s.op:
            case "param":
                return self.params[s.attrs[0]]
            case "coord":
                d = s.attrs[0]
                if d != self.vdim or scope.position is None:
                    return scope.coords[d]
                return self.b.add(self.e.splat(scope.position), self.e.iota(INT64)) if vector else scope.position
            case "carry":
                return self.e.carry(self.k.accumulators[s.attrs[0]], self.results[s.attrs[0]])
            case "load":
                return self._load(s, args, scope, vector)
            case "check":
                self._check(s, args, scope)
                return args[0]
        source = self.k.stmts[s.args[0]].dtype if s.args else s.dtype
        return self.e.statement(s, args, source, scope.mask)

    def _load(self, s: Stmt, args: list[ir.Value], scope: _Scope, vector: bool) -> ir.Value:
        access = s.attrs[0]
        pointer, stride, dtype = scope.pointers[access], self.accesses[access].strides[self.vdim], s.dtype
        mask = args[1] if len(args) == 2 else None
        if not vector:
            if args:
                pointer = self.e.at(pointer, args[0], dtype)
            return self.e.load_scalar(pointer, dtype, mask)
        mask = self.e.and_mask(scope.mask, mask)
        if mask is not None:
            mask = self.e.splat(mask)
        moved = args[0] if args else None
        if moved is not None and not is_vector(moved):  # the same for all lanes: still a walk along the access
            pointer, moved = self.e.at(pointer, moved, dtype), None
        if moved is None:
            if stride == "1":
                return self.e.load(pointer, dtype, mask)
            if stride == "2" and mask is None:
                return self.e.load_pairs(pointer, dtype)
        index = self._lane_offsets(access)
        if moved is not None:
            index = moved if index is None else self.b.add(moved, index)
        if index is None:  # one element for all lanes, under a mask that differs
            index = self.e.splat(self.num(0))
        return self.e.gather(pointer, index, dtype, mask)

    def _lane_offsets(self, access: int) -> ir.Value | None:
        """Offsets of the lanes of an access from its lane 0 (None: no offsets)."""
        stride = self.accesses[access].strides[self.vdim]
        if stride == "0":
            return None
        return self.b.mul(self.e.iota(INT64), self.e.splat(self.strides[access][self.vdim]))

    def _check(self, s: Stmt, args: list[ir.Value], scope: _Scope) -> None:
        """If a lane that is on fails, and is the first failure noted, note site and value."""
        b = self.b
        ok, value = args
        if is_vector(ok) or is_vector(value):
            ok, value = self.e.splat(ok), self.e.splat(value)
        bad = b.xor(ok, literal(True, ok.type))
        if scope.mask is not None:
            bad = b.and_(bad, scope.mask if is_vector(bad) else self.e.any_lane(scope.mask))
        with self.when(self.e.any_lane(bad)):
            if is_vector(bad):
                word = ir.IntType(self.lanes)
                lane = self.e.intrinsic("cttz", [b.bitcast(bad, word), literal(0, ir.IntType(1))])
                lane = b.trunc(lane, INT32) if self.lanes > 32 else b.zext(lane, INT32) if self.lanes < 32 else lane
                value = b.extract_element(value, lane)
            source = self.k.stmts[s.args[1]].dtype
            value = self.e.cast(value, I64, source)
            old = b.cmpxchg(self.errors, self.num(0), self.num(s.attrs[0] + 1), "monotonic", "monotonic")
            with self.when(b.extract_value(old, 1)):
                b.store(value, b.gep(self.errors, [self.num(1)], source_etype=INT64), align=8)

    # ---- stores

    def _store_all(self, work: _Work, scopes: list[_Scope], stream: ir.Value | None) -> None:
        """The stores of a stage for some steps, after all their loads."""
        adjacent = [s for s in work.stage.stores if self._adjacent(s)] if stream is not None else []
        if adjacent:
            b = self.b
            past, through, after = b.append_basic_block(), b.append_basic_block(), b.append_basic_block()
            b.cbranch(stream, past, through)
            for block in (past, through):
                b.position_at_end(block)
                for scope in scopes:
                    for s in adjacent:
                        self._store(s, scope, streaming=block is past)
                b.branch(after)
            b.position_at_end(after)
        for scope in scopes:
            for s in work.stage.stores:
                if s not in adjacent:
                    self._store(s, scope)

    def _store(self, s: Store, scope: _Scope, streaming: bool = False) -> None:
        access = len(self.k.reads) + s.write
        dtype, stride = self.accesses[access].dtype, self.accesses[access].strides[self.vdim]
        pointer, value = scope.pointers[access], scope.values[s.value]
        mask = None if s.mask is None else scope.values[s.mask]
        if self.lanes == 1 or scope.position is None:
            if s.offset is not None:
                pointer = self.e.at(pointer, scope.values[s.offset], dtype)
            if s.mode != "set":
                old = self.e.load_scalar(pointer, dtype, mask)
                value = self.e.statement(Stmt(s.mode, dtype), [old, value], dtype)
            self.e.store_scalar(value, pointer, dtype, mask)
            return
        mask = self.e.and_mask(scope.mask, mask)
        if streaming:
            self.e.store_streaming(value, pointer, dtype, min(self.width, self.lanes * dtype.itemsize))
        elif stride == "1":
            self.e.store(value, pointer, dtype, mask)
        elif stride == "2" and mask is None:
            self.e.store_pairs(value, pointer, dtype)
        else:
            index = self._lane_offsets(access)
            self.e.scatter(value, pointer, self.e.splat(self.num(0)) if index is None else index, dtype, mask)


_NOTHING = _Work(Stage(True), (), (), (), 0.0)
