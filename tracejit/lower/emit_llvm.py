"""CPU code of a kernel: its loops, as LLVM instructions with explicit vectors.

In: a `Kernel`. Out: a function `void name(ptr slots, i64 begin, i64 end)` in an LLVM module; `kernel.py` describes it.

    rows     (vector == "inner") accumulators live in registers and are combined across lanes at the end of a row
    columns  (vector == "outer") lanes are points; with inner dims, a chunk of lanes keeps its accumulators on the
             stack (in the first-level cache), and inner elements stream by, some rows at a time
    tiles    squares of vectors; reads that run across them are turned in registers
    running  rows: sums (products, extremes) of lanes so far inside a vector, then the last one for the next vector,
             or several short rows in one; columns: elements outside, lanes inside, what came before on the stack

The code is what should run: explicit vectors, unrolled where bodies are short. It needs no optimisation passes.

Read next: `emit_nest_llvm.py` (loops along the vectors), `emit_tile_llvm.py` (tiles), `emit_scalar_llvm.py`
(statements), `runtime/build.py` (who compiles this).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir

from tracejit.lower import emit_running_llvm as run_on
from tracejit.lower.emit_nest_llvm import NOTHING, SPREAD, Body, Maybe, Piece, Scope, Step, Values, Work
from tracejit.lower.emit_scalar_llvm import I8, INT32, INT64, PTR, VOID, is_vector, literal, memory_type, scalar_type
from tracejit.lower.emit_tile_llvm import Tiles
from tracejit.lower.kernel import TILE, Accumulator, Kernel
from tracejit.lower.rare import Detour
from tracejit.lower.scalar import I64, Stmt

FUNCTION = ir.FunctionType(VOID, [PTR, INT64, INT64])
_CHUNK_BYTES = 32768  # stack for the accumulators of one chunk of lanes: long rows are read in order, in few pieces
_CHUNK_LANES = 4096
_LONG_BODY = 400
_BLOCK = 8  # steps of a row whose sum is taken plainly before it is added exactly


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
    function.attributes.alignstack = 64  # else registers are spilled across cache lines
    _KernelEmitter(function, kernel, vector_bytes, fastmath).emit()
    return function


def _unroll(cost: float) -> int:
    """Rows per step of columns: independent work for short bodies, small code for long ones."""
    return 4 if cost <= 24 else 2 if cost <= 48 else 1


def _together(work: Work, stmts: Sequence[Stmt]) -> int:
    """Vectors per step, statement by statement: independent work for the chains of long bodies, too, up to a point
    where compilation takes long. Loops inside a statement see to that themselves."""
    cost = work.cost
    if cost > _LONG_BODY or any(not isinstance(i, Detour) and stmts[i].op == "loop" for i in work.vectors):
        return 1
    return 4 if cost <= 32 else 3


class _KernelEmitter(Tiles):
    """The whole function, from the slots to the stages."""

    # ---- the whole function

    def emit(self) -> None:
        k, b, slots = self.k, self.b, self.k.slots
        _, begin, end = self.f.args
        body, leave = b.append_basic_block("body"), b.append_basic_block("leave")
        finishing = self.less(begin, self.num(0))
        first = b.select(finishing, b.not_(begin), begin) if self.splittable else begin
        b.cbranch(self.less(first, end), body, leave)
        b.position_at_end(body)

        base = self.read_slots()
        self.works = []
        for stage in k.stages:
            self.works.append(self.work(stage, known=self.kept))
            self.kept |= {i: self._row_scratch(k.stmts[i].dtype) for i in stage.keeps}
        self.inside = self.work(k.interior) if k.interior is not None and self.lanes > 1 else None
        works = [*self.works, *([] if self.inside is None else [self.inside])]
        for i in sorted({i for work in works for i in work.levels[0]}):
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
        if self.columns and (k.accumulators or k.running):
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
            size = self.num(TILE if d == k.tile_dim else 1)
            count = b.sdiv(b.add(self.extents[d], self.num(TILE - 1)), size) if d == k.tile_dim else self.extents[d]
            coords.append(b.mul(b.srem(number, count), size))
            number = b.sdiv(number, count)
        state = [part, low, row, *reversed(coords)]

        if self.works and self._packs():  # there are none where there are no elements
            short = self._are_short(base)
            with self.when(short):
                self._packed(base, first, end)
            first = b.select(short, end, first)

        def segment(item: ir.Value, state: Values) -> tuple[ir.Value, Values]:
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

    def _advance(self, part: ir.Value, low: ir.Value, row: ir.Value, coords: Values, block: ir.Value,
                 last: ir.Value) -> Values:
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
            by = b.mul(carry, self.num(TILE)) if d == self.k.tile_dim else carry
            news[d], carry = turn(coords[d], by, self.extents[d])
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
        self.cells: list[Values] = []
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
        sizes += [self.k.stmts[i].dtype.itemsize for i in self.k.running]
        self.chunk = self.lanes
        while self.chunk * 2 * sum(sizes) <= _CHUNK_BYTES and self.chunk < _CHUNK_LANES:
            self.chunk *= 2
        for n, a in enumerate(self.k.accumulators):
            self.arrays[n] = [self._array(d) for d in self.e.state_dtypes(a)]
        self.ran = {i: self._array(self.k.stmts[i].dtype) for i in self.k.running}

    def _array(self, dtype: np.dtype) -> ir.Value:
        return self.e.stack(ir.ArrayType(memory_type(dtype), self.chunk))

    def _row_scratch(self, dtype: np.dtype) -> ir.Value:
        """Room for a value at each element of a row, and for the rest of its last vector."""
        return self.e.room(memory_type(dtype), self.b.add(self.extents[self.vdim], self.num(self.lanes)))

    def _segment(self, scope: Scope, finishing: ir.Value, part: ir.Value, row: ir.Value, low: ir.Value, high: ir.Value,
                 last: ir.Value) -> None:
        """All stages of one row, or of one block of a row of columns."""
        if self.k.tiled:
            self.tile(scope, self.works[0], low, high)
            return
        if not self.columns or not (self.k.accumulators or self.k.running):
            self._stages(scope, finishing, part, row, low, high)
            return
        b, size = self.b, self.num(self.chunk)
        first_point = b.mul(row, last) if self.splittable else row

        def chunk(start: ir.Value, state: Values) -> tuple[ir.Value, Values]:
            point = b.add(first_point, start) if self.splittable else row
            following = b.add(start, size)
            self._stages(scope, finishing, part, point, start, self.minimum(following, high))
            return following, []

        self.loop(low, high, [], chunk)

    def _stages(self, scope: Scope, finishing: ir.Value, part: ir.Value, point: ir.Value, low: ir.Value,
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

    def _keep_results(self, number: int, values: Values) -> None:
        """Note finished results of accumulators from `number` on (rows only; those of columns are in memory)."""
        values = list(values)
        while values:
            size = 2 if self.k.accumulators[number].op.startswith("arg") else 1
            self.results[number], values = values[:size], values[size:]
            number += 1

    # ---- stages

    def _inner_stage(self, scope: Scope, work: Work, number: int, low: ir.Value, high: ir.Value, start: ir.Value,
                     stop: ir.Value) -> Values:
        """One loop over the inner dims, the first from start to stop. For rows gives the results, flat."""
        if self.columns:
            if self._running(work):
                self._running_columns(scope, work, number, low, high)
            else:
                self._column_stage(scope, work, number, low, high, start, stop)
            return []
        accumulators = work.stage.accumulators
        empty = [v for a in accumulators for v in self.e.identity(a, vector=True)]
        bounds = {d: (self.num(0), self.extents[d]) for d in self.inner_dims}
        bounds[self.inner_dims[0]] = (start, stop)
        with self.when(self._some(bounds)) as merge:
            point = self.enter(scope, work, 1)

            def nest(depth: int, outer: Scope, state: Values) -> Values:
                if depth == len(self.loop_dims):
                    return self._row(outer, work, state, *bounds[self.vdim])
                d = self.loop_dims[depth]

                def body(i: ir.Value, state: Values) -> tuple[ir.Value, Values]:
                    inside = self.enter(outer, work, 2 + depth, {d: i})
                    return self.b.add(i, self.num(1)), nest(depth + 1, inside, state)

                return self.loop(bounds[d][0], bounds[d][1], state, body)[1]

            found = nest(0, point, empty)
            for n, a in enumerate(accumulators):
                if a.index is not None:
                    at = sum(len(self.e.state_dtypes(b)) for b in accumulators[:n])
                    first = self._first(scope, work, a.index, bounds, bounds[self.vdim][0])
                    found[at: at + 2] = self.e.unless_found(found[at: at + 2], first)
        state = merge(found, empty)
        results: Values = []
        for a in accumulators:
            size = len(self.e.state_dtypes(a))
            results += self.e.across(a, state[:size])
            state = state[size:]
        return results

    def _first(self, scope: Scope, work: Work, index: int, bounds: dict[int, tuple[ir.Value, ir.Value]],
               position: ir.Value, mask: Maybe = None, low: Maybe = None) -> ir.Value:
        """Statement `index` at the start of the inner loops, `scope` being outside the row: for rows a scalar."""
        work = self.work(work.stage, roots=[index])
        scope = self.enter(scope, work, 1)
        for depth, d in enumerate(self.loop_dims):
            scope = self.enter(scope, work, 2 + depth, {d: bounds[d][0]})
        if not self.columns and self.lanes > 1:
            mask = self.e.tail_mask(self.num(1))
        value = self.vector(scope, work, position, mask, 0, low).values[index]
        if self.columns or not is_vector(value):
            return value
        return self.b.extract_element(value, literal(0, INT32))

    def _some(self, bounds: dict[int, tuple[ir.Value, ir.Value]]) -> ir.Value:
        """Whether the inner loops run at all."""
        found = literal(True, ir.IntType(1))
        for start, stop in bounds.values():
            found = self.b.and_(found, self.less(start, stop))
        return found

    def _row(self, scope: Scope, work: Work, state: Values, low: ir.Value, high: ir.Value) -> Values:
        """The innermost loop of a row."""
        unroll = _together(work, self.k.stmts)
        running, count = self._running(work), len(state)
        state = [*state, *(run_on.start(self.e, self.k.stmts[i], self.k.stmts[i].attrs[0] != "recurrence")
                           for i in running)]
        inner = [w for w in self.works if w.stage.inner]
        last_of_several = len(inner) > 1 and work.stage is inner[-1].stage
        blocks = any(map(self.e.compensated, work.stage.accumulators)) and self.lanes > 1 and not self._streamed(work)

        def run(scope: Scope, low: ir.Value, high: ir.Value, state: Values) -> Values:
            def body(positions: Values, mask: Maybe, state: Values, stream: Maybe) -> Values:
                taken = len(state) - len(running)
                self.before = dict(zip(running, state[taken:], strict=True))
                known = [{n: self.e.load(pointer, d, None) for n, pointer, d in self._kept_at(work.known, i)}
                         for i in positions]
                scopes = self.vectors(scope, work, positions, mask, known=known)
                for i, inside in zip(positions, scopes, strict=True):
                    for n, pointer, d in self._kept_at(work.stage.keeps, i):
                        self.e.store(inside.values[n], pointer, d, None)
                if last_of_several and mask is None:
                    self._ask_for_next_row(work, scopes)
                state = self._accumulate(work, scopes, mask, state[:taken]) + [self.before[i] for i in running]
                self.store_all(work, scopes, stream)
                return state

            if blocks:
                low, state = self._blocks(work, low, high, unroll, state, body)
            return self.run(scope, work, low, high, 0 if blocks else unroll, state, body)

        return self.pieces(scope, work, low, high, state, run)[:count]

    def _packs(self) -> bool:
        """Whether vectors may hold several rows of this kernel: all it touches along a row are neighbours, and nothing
        is computed once a row."""
        k, work = self.k, self.works[0]
        ways = {self.accesses[a].strides[-1] for a in work.accesses if set(self.accesses[a].strides) != {"0"}}
        stmts = [k.stmts[i] for i in self.closure(work.stage.roots)]
        return (bool(k.running) and not self.columns and self.lanes > 1 and k.outer == 1 and len(self.works) == 1
                and len(ways) == 1 and ways <= {"1", "-1"} and not work.levels[1] and not work.stage.accumulators
                and not k.serial and not any(s.op == "coord" or (s.op == "load" and s.args) for s in stmts))

    def _touched(self) -> list[int]:
        """What a kernel that packs touches along its rows."""
        return [a for a in self.works[0].accesses if set(self.accesses[a].strides) != {"0"}]

    def _are_short(self, scope: Scope) -> ir.Value:
        """Whether a vector holds a row, and each row begins where the one before ends."""
        b, size = self.b, self.extents[self.vdim]
        found = b.icmp_unsigned("<", b.sub(size, self.num(1)), self.num(self.lanes))
        for a in self._touched():
            found = b.and_(found, b.icmp_signed("==", self.strides[a][0], size))
        return found

    def _packed(self, outer: Scope, first: ir.Value, end: ir.Value) -> None:
        """The rows [first, end), as many in a vector as fit; from the last on if each is read from its end."""
        b, work, size, lanes = self.b, self.works[0], self.extents[self.vdim], self.num(self.lanes)
        scope = outer.child(coords={0: first})
        for a in self._touched():
            row = first if self.accesses[a].strides[-1] == "1" else b.sub(end, self.num(1))
            scope.pointers[a] = self.e.at(scope.pointers[a], b.mul(row, size), self.accesses[a].dtype)
        total, small = b.mul(b.sub(end, first), size), INT32 if self.lanes <= 16 else I8
        self.place = b.urem(self.e.iota(small), self.e.splat(b.trunc(size, small)))
        step = b.sub(lanes, b.srem(lanes, size))
        unroll = _together(work, self.k.stmts)

        def body(positions: Values, mask: Maybe, state: Values, stream: Maybe) -> Values:
            self.store_all(work, self.vectors(scope, work, positions, mask), stream)
            return state

        def many(i: ir.Value, state: Values) -> tuple[ir.Value, Values]:
            positions = [i]
            for _ in range(unroll):
                positions.append(b.add(positions[-1], step))
            scopes = self.vectors(scope, work, positions[:-1], None)
            for inside in scopes:  # what is read from the next rows is not stored
                inside.mask = self.e.tail_mask(step)
            self.store_all(work, scopes, None)
            return positions[-1], state

        def one(i: ir.Value, state: Values) -> tuple[ir.Value, Values]:
            return b.add(i, step), body([i], self.e.tail_mask(self.minimum(step, b.sub(total, i))), state, None)

        full = b.icmp_signed("==", step, lanes)
        for a, itemsize, _ in self._streamed(work):  # from aligned places on, vectors hold whole rows, too
            last = b.sub(b.mul(size, self.num(itemsize)), self.num(1))
            address = b.ptrtoint(scope.pointers[a], INT64)
            full = b.and_(full, b.icmp_signed("==", b.and_(address, last), self.num(0)))
        with self.when(full):
            self.run(scope, work, self.num(0), total, unroll, [], body)
        start = b.select(full, total, self.num(0))
        whole = b.sub(b.sub(total, b.mul(step, self.num(unroll - 1))), lanes)
        start, _ = self.loop(start, whole, [], many, "<=")
        self.loop(start, total, [], one)
        self.place = None

    def _running(self, work: Work) -> list[int]:
        """The running statements of a stage."""
        return [i for i in work.levels[self.vector_level] if i in self.k.running]

    def _running_columns(self, scope: Scope, work: Work, number: int, low: ir.Value, high: ir.Value) -> None:
        """The inner dim outside, lanes of the chunk [low, high) inside; what came before each lane on the stack."""
        b, running, (d,) = self.b, self._running(work), self.inner_dims

        def place(i: int, at: ir.Value) -> tuple[ir.Value, np.dtype]:
            dtype = self.k.stmts[i].dtype
            return self.e.at(self.ran[i], b.sub(at, low), dtype), dtype

        def clear(at: Values, mask: Maybe, state: Values, _: Maybe) -> Values:
            for i in running:
                self.e.store(run_on.start(self.e, self.k.stmts[i], vector=True), *place(i, at[0]), None)
            return state

        self.run(scope, NOTHING, low, high, 0, [], clear)
        outside = self.enter(scope, work, 1)

        def element(at: ir.Value, state: Values) -> tuple[ir.Value, Values]:
            inside = self.enter(outside, work, 2, {d: at})

            def body(position: Values, mask: Maybe, state: Values, _: Maybe) -> Values:
                self.before = {i: self.e.load(*place(i, position[0]), None) for i in running}
                found = self.vector(inside, work, position[0], mask, number, low)
                for i in running:
                    self.e.store(self.before[i], *place(i, position[0]), None)
                self.store_all(work, [found], None)
                return state

            self.run(inside, NOTHING, low, high, 1, [], body)
            return b.add(at, self.num(1)), []

        self.loop(self.num(0), self.extents[d], [], element)

    def _ask_for_next_row(self, work: Work, scopes: list[Scope]) -> None:
        """The last stage over a row finds it in the cache, so memory has time for the next one."""
        for access in work.accesses:
            strides = self.accesses[access].strides
            if access < len(self.k.reads) and strides[self.vdim] == "1" and strides[self.k.outer - 1] == "s":
                dtype, step = self.accesses[access].dtype, self.strides[access][self.k.outer - 1]
                for scope in scopes:
                    self.e.prefetch(self.e.at(scope.pointers[access], step, dtype), level=2)

    def _kept_at(self, stmts: Sequence[int], position: ir.Value) -> Iterator[tuple[int, ir.Value, np.dtype]]:
        """Statements with the places in their row scratch for `position`, and their dtypes."""
        for i in stmts:
            dtype = self.k.stmts[i].dtype
            yield i, self.e.at(self.kept[i], position, dtype), dtype

    def _accumulate(self, work: Work, scopes: list[Scope], mask: Maybe, state: Values) -> Values:
        """Take the values of some steps into the accumulators of a stage."""
        news: Values = []
        for a, part in self._by_accumulator(work, state):
            numbers = [a.value] if a.index is None else [a.value, a.index]
            steps = [[self.e.splat(s.values[i]) for i in numbers] for s in scopes]
            news += self.e.accumulate(a, part, steps, mask)
        return news

    def _by_accumulator(self, work: Work, state: Values) -> Iterator[tuple[Accumulator, Values]]:
        """The accumulators of a stage, each with its part of their state; sums may be plain ones, of one value."""
        accumulators = work.stage.accumulators
        plain = len(state) < sum(len(self.e.state_dtypes(a)) for a in accumulators)
        for a in accumulators:
            size = 1 if plain and self.e.compensated(a) else len(self.e.state_dtypes(a))
            yield a, state[:size]
            state = state[size:]

    def _blocks(self, work: Work, low: ir.Value, high: ir.Value, unroll: int, state: Values,
                body: Body) -> tuple[ir.Value, Values]:
        """The whole steps of [low, high), where sums are plain within a block of steps, and exact from block to block:
        exact ones would cost more than what they add up. Gives where it ends, too."""
        b, count = self.b, len(state) - len(self._running(work))
        wide, most = self.num(unroll * self.lanes), self.num(_BLOCK * unroll * self.lanes)
        end = b.sub(high, b.srem(b.sub(high, low), wide))

        def step(i: ir.Value, state: Values) -> tuple[ir.Value, Values]:
            return b.add(i, wide), body([b.add(i, self.num(u * self.lanes)) for u in range(unroll)], None, state, None)

        def block(i: ir.Value, state: Values) -> tuple[ir.Value, Values]:
            before = list(self._by_accumulator(work, state[:count]))
            within: Values = []
            for a, part in before:
                within += self.e.identity(a, vector=True)[:1] if self.e.compensated(a) else part
            plain = len(within)
            i, within = self.loop(i, self.minimum(b.add(i, most), end), [*within, *state[count:]], step)
            news: Values = []
            for (a, part), (_, found) in zip(before, self._by_accumulator(work, within[:plain]), strict=True):
                news += self.e.accumulate(a, part, [found], None) if self.e.compensated(a) else found
            return i, [*news, *within[plain:]]

        return self.loop(low, end, state, block)

    def _column_stage(self, scope: Scope, work: Work, number: int, low: ir.Value, high: ir.Value, start: ir.Value,
                      stop: ir.Value) -> None:
        """Inner loops outside, lanes of the chunk [low, high) inside, accumulators on the stack."""
        accumulators = work.stage.accumulators
        places = [(array, d) for n, a in enumerate(accumulators)
                  for array, d in zip(self.arrays[number + n], self.e.state_dtypes(a), strict=True)]

        def put(i: ir.Value, values: Values, where: list[tuple[ir.Value, np.dtype]]) -> None:
            for v, (array, d) in zip(values, where, strict=True):
                self.e.store(v, self.e.at(array, self.b.sub(i, low), d), d, None)

        def get(i: ir.Value, where: list[tuple[ir.Value, np.dtype]]) -> Values:
            return [self.e.load(self.e.at(array, self.b.sub(i, low), d), d, None) for array, d in where]

        nothing = [v for a in accumulators for v in self.e.identity(a, vector=True)]

        def clear(at: Values, mask: Maybe, state: Values, _: Any) -> Values:
            put(at[0], nothing, places)
            return state

        if places:
            self.run(scope, NOTHING, low, high, 0, [], clear)
        bounds = {d: (self.num(0), self.extents[d]) for d in self.inner_dims}
        if self.k.inner:
            bounds[self.inner_dims[0]] = (start, stop)
        with self.when(self._some(bounds)):
            lane_values, work = self._lane_values(scope, work, number, low, high)

            def rows(scopes: list[Scope]) -> None:
                def body(at: Values, mask: Maybe, state: Values, _: Any) -> Values:
                    found = []
                    for i in at:
                        known = {n: self.e.load(self.e.at(array, self.b.sub(i, low), d), d, None)
                                 for n, (array, d) in lane_values.items()}
                        if len(scopes) > 1 and not light:
                            self._prefetch(work, scopes, i)
                        inside = [self.vector(s, work, i, mask, number, low, known) for s in scopes]
                        found.append(self._accumulate(work, inside, None, get(i, places)))
                        self.store_all(work, inside, None)
                    for i, values in zip(at, found, strict=True):
                        put(i, values, places)
                    return state

                self.run(scopes[0], NOTHING, low, high, whole, [], body)

            # Masks are cheap where vectors are adjacent and worked on for long; elsewhere whole vectors, so many in one
            # step, get code of their own: four where little is done but to read them.
            paired = any(self.accesses[access].strides[self.vdim] in SPREAD for access in work.accesses)
            light = work.cost <= 4
            whole = 4 if light else int(paired or bool(work.stage.stores))
            group = 1 if not self.k.inner else 8 if light else _unroll(work.cost)

            def nest(depth: int, outer: Scope) -> None:
                if depth == len(self.loop_dims):
                    rows([outer])
                    return
                d = self.loop_dims[depth]
                innermost = depth == len(self.loop_dims) - 1

                def some(count: int) -> Step:
                    def body(i: ir.Value, state: Values) -> tuple[ir.Value, Values]:
                        inside = [self.enter(outer, work, 2 + depth, {d: self.b.add(i, self.num(q)) if q else i})
                                  for q in range(count)]
                        rows(inside) if innermost else nest(depth + 1, inside[0])
                        return self.b.add(i, self.num(count)), []

                    return body

                i, end = bounds[d]
                if innermost and group > 1:
                    i, _ = self.loop(i, self.b.sub(end, self.num(group)), [], some(group), "<=")
                self.loop(i, end, [], some(1))

            nest(0, self.enter(scope, work, 1))
            searches = [(n, a, a.index) for n, a in enumerate(accumulators) if a.index is not None]

            def first(at: Values, mask: Maybe, state: Values, _: Maybe) -> Values:
                for n, a, index in searches:
                    pair = list(zip(self.arrays[number + n], self.e.state_dtypes(a), strict=True))
                    position = self._first(scope, work, index, bounds, at[0], mask, low)
                    put(at[0], self.e.unless_found(get(at[0], pair), position), pair)
                return state

            if searches:
                self.run(scope, NOTHING, low, high, 0, [], first)

        def finish(at: Values, mask: Maybe, state: Values, _: Any) -> Values:
            values = get(at[0], places)
            for n, a in enumerate(accumulators):
                size = len(self.e.state_dtypes(a))
                result = self.e.result(a, values[:size])
                where = list(zip(self.arrays[number + n], self.e.state_dtypes(a), strict=True))[: len(result)]
                put(at[0], result, where)
                values = values[size:]
            return state

        if any(map(self.e.compensated, accumulators)):
            self.run(scope, NOTHING, low, high, 0, [], finish)

    def _prefetch(self, work: Work, scopes: list[Scope], position: ir.Value) -> None:
        """Ask for the next rows while these are worked on: what takes long does not run into them by itself."""
        b, dim = self.b, self.loop_dims[-1]
        for access in work.accesses:
            strides, dtype = self.accesses[access].strides, self.accesses[access].dtype
            if strides[self.vdim] == "1" and strides[dim] == "s":
                ahead = b.add(position, b.mul(self.strides[access][dim], self.num(len(scopes))))
                for scope in scopes:
                    self.e.prefetch(self.e.at(scope.pointers[access], ahead, dtype), level=2)

    def _lane_values(self, scope: Scope, work: Work, number: int, low: ir.Value,
                     high: ir.Value) -> tuple[dict[int, tuple[ir.Value, np.dtype]], Work]:
        """Arrays for what depends on the lane but on no inner coordinate, computed here, and the work left."""
        inner = set(self.inner_dims)

        def fixed(i: int) -> bool:
            return self.level(i) == self.vector_level and not self.depends[i] & inner

        def trivial(s: Stmt) -> bool:
            return s.op in ("coord", "carry") or (s.op == "load" and not s.args)

        levels = work.levels[self.vector_level]
        used = {a for i in levels if not fixed(i) for a in self.k.stmts[i].args} | set(work.stage.roots)
        kept = [i for i in levels if i in used and fixed(i) and not trivial(self.k.stmts[i])]
        if not kept or not inner:
            return {}, work
        arrays = {i: (self._array(self.k.stmts[i].dtype), self.k.stmts[i].dtype) for i in kept}
        before = self.work(work.stage, roots=kept)

        def body(at: Values, mask: Maybe, state: Values, _: Any) -> Values:
            inside = self.vector(outside, before, at[0], mask, number, low)
            for i, (array, d) in arrays.items():
                self.e.store(inside.values[i], self.e.at(array, self.b.sub(at[0], low), d), d, None)
            return state

        outside = self.enter(scope, before, 1)
        self.run(outside, NOTHING, low, high, 0, [], body)
        return arrays, self.work(work.stage, known=kept)

    def _point_stage(self, scope: Scope, work: Work, number: int, low: ir.Value, high: ir.Value) -> int:
        """One execution per point; `number` accumulators are finished. Gives how many are afterwards."""
        if not self.columns:
            self.store_all(work, [self.enter(scope, work, 1, number=number)], None)
            return number

        def run(work: Work, unroll: int) -> Piece:
            def piece(scope: Scope, start: ir.Value, stop: ir.Value, state: Values) -> Values:
                def body(at: Values, mask: Maybe, state: Values, stream: Maybe) -> Values:
                    self.store_all(work, self.vectors(scope, work, at, mask, number, low), stream)
                    return state

                return self.run(scope, work, start, stop, unroll, state, body)

            return piece

        def inside(work: Work, start: ir.Value, stop: ir.Value) -> None:
            # after a reduction little is left, so code is kept small
            unroll = 0 if self.k.inner else _together(work, self.k.stmts)
            self.pieces(self.enter(scope, work, 1, number=number), work, start, stop, [], run(work, unroll))

        def border(start: ir.Value, stop: ir.Value) -> None:
            run(work, 0)(self.enter(scope, work, 1), start, stop, [])

        if self.inside is None:
            inside(work, low, high)
        else:
            self.with_borders(scope, low, high, border, partial(inside, self.inside))
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

        def body(at: Values, mask: Maybe, state: Values, _: Any) -> Values:
            offset = self.b.sub(at[0], low)
            for n, a in first:
                for area, array, d in zip(self.cells[n], self.arrays[n], self.e.state_dtypes(a), strict=False):
                    v = self._to_cell(self.e.load(self.e.at(array, offset, d), d, None))
                    self.e.store(v, self._cell_at(area, self.b.add(index, offset)), I64, mask)
            return state

        self.run(Scope(), NOTHING, low, high, 0, [], body)

    def _combine_cells(self, point: ir.Value, low: ir.Value, high: ir.Value) -> Values:
        """The first stage's results from the cells of all parts, in order."""
        b = self.b
        first = list(enumerate(self.k.stages[0].accumulators))

        def combine(index: ir.Value, mask: Maybe, vector: bool) -> Values:
            def part(s: ir.Value, state: Values) -> tuple[ir.Value, Values]:
                cell = b.add(b.mul(s, self.points), index)
                news: Values = []
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
            results: Values = []
            for _, a in first:
                size = len(self.e.state_dtypes(a))
                results += self.e.result(a, state[:size])
                state = state[size:]
            return results

        if not self.columns:
            return combine(point, None, vector=False)

        def body(at: Values, mask: Maybe, state: Values, _: Any) -> Values:
            offset = b.sub(at[0], low)
            found = combine(b.add(point, offset), mask, vector=True)
            for n, a in first:
                for array, d in zip(self.arrays[n], self.e.state_dtypes(a), strict=False):
                    if found and (len(self.cells[n]) == 2 or array is self.arrays[n][0]):
                        self.e.store(found.pop(0), self.e.at(array, offset, d), d, None)
            return state

        self.run(Scope(), NOTHING, low, high, 0, [], body)
        return []
