"""Kernels that transpose: a map by tiles, the upper part of what `emit_llvm.py` makes of it.

In: a map with reads that run across its vectors, along the dim just before. Out: code for some rows of it at a time, as
squares of as many vectors as each has lanes. Of all arrays whole vectors are read and written, each once.

Read next: `emit_nest_llvm.py` (what is computed where).
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from tracejit.lower.emit_nest_llvm import Maybe, Nest, Scope, Values, Work
from tracejit.lower.emit_scalar_llvm import INT64, literal, memory_type
from tracejit.lower.kernel import TILE
from tracejit.lower.scalar import Stmt

STRIP = 8  # squares side by side at once: so much of each page, and of what the caches fetch, is used
PAGE = 4096  # bytes
SQUARE = 128  # work of a square that is written out, row by row


class Tiles(Nest):
    """A kernel's function in the making, if it goes by tiles."""

    def tile(self, scope: Scope, work: Work, low: ir.Value, high: ir.Value) -> None:
        """Some rows of a map, [low, high) of each, by strips, each of them by squares: reads that run across the rows
        are turned in registers. So all that is read and written are whole vectors, which are most of a cache line."""
        b, dim, vdim = self.b, self.row_dims[-1], self.vdim
        first = scope.coords[dim]
        last = self.minimum(b.add(first, self.num(TILE)), self.extents[dim])
        turned = [i for i in work.levels[self.vector_level] if self._runs_across(self.k.stmts[i])]
        n, wide, zero, one = self.num(self.lanes), self.num(self.lanes * STRIP), self.num(0), self.num(1)
        rooms = {i: self.e.stack(ir.ArrayType(memory_type(self.k.stmts[i].dtype), self.lanes**2)) for i in turned}
        work = self.work(work.stage, known=turned)
        straight = work.cost * self.lanes <= SQUARE
        stream = self._streams_rows(scope, work, low)
        far = literal(False, ir.IntType(1))  # whether each vector comes from another page: else processors look ahead
        for access in (self.k.stmts[i].attrs[0] for i in turned):
            step = b.mul(self.strides[access][vdim], self.num(self.accesses[access].dtype.itemsize))
            far = b.or_(far, b.icmp_signed(">=", step, self.num(PAGE)))

        def place(access: int, row: ir.Value, start: ir.Value) -> ir.Value:
            found = scope.child()
            coords = {d: scope.coords[d] for d in self.row_dims} | {dim: row, vdim: start}
            self.advance_pointers(found, [access], coords)
            return found.pointers[access]

        def columns(i: int, row: ir.Value, start: ir.Value, whole: bool) -> Values:
            """The vectors across some rows from `row` on at positions from `start` on."""
            access = self.k.stmts[i].attrs[0]
            dtype, step = self.accesses[access].dtype, self.strides[access][vdim]
            mask = None if whole else self.e.tail_mask(b.sub(last, row))
            at, found = place(access, row, start), []
            for c in range(self.lanes):
                found.append(self.e.load(at, dtype, mask))
                more = step if whole else b.select(self.less(b.add(start, self.num(c + 1)), high), step, zero)
                at = self.e.at(at, more, dtype)
            return found

        def ask(row: ir.Value, start: ir.Value) -> None:
            """Have the caches fetch a square that comes later."""
            adjacent = [a for a in work.accesses if a < len(self.k.reads) and self.accesses[a].strides[vdim] == "1"]
            for access, d in [*((a, dim) for a in adjacent), *((self.k.stmts[i].attrs[0], vdim) for i in turned)]:
                dtype, at = self.accesses[access].dtype, place(access, row, start)
                for _ in range(self.lanes):
                    self.e.prefetch(at, level=2)
                    at = self.e.at(at, self.strides[access][d], dtype)

        def line(row: ir.Value, start: ir.Value, mask: Maybe, known: dict[int, ir.Value]) -> Scope:
            inside = self.enter(scope, work, 1, {d: scope.coords[d] for d in self.row_dims} | {dim: row})
            return self.vector(inside, work, start, mask, known=known)

        def square(row: ir.Value, start: ir.Value, whole: bool) -> None:
            found = {i: self.e.transpose(columns(i, row, start, whole)) for i in turned}
            if whole and straight:
                lines = [line(b.add(row, self.num(q)), start, None, {i: v[q] for i, v in found.items()})
                         for q in range(self.lanes)]
                self.store_all(work, lines, stream)
                return

            def room(i: int, q: ir.Value) -> tuple[ir.Value, np.dtype]:
                dtype = self.k.stmts[i].dtype
                return self.e.at(rooms[i], b.mul(q, n), dtype), dtype

            for i, values in found.items():
                for q, v in enumerate(values):
                    self.e.store(v, *room(i, self.num(q)), None)
            mask = None if whole else self.e.tail_mask(b.sub(high, start))

            def body(q: ir.Value, _: Values) -> tuple[ir.Value, Values]:
                known = {i: self.e.load(*room(i, q), None) for i in turned}
                self.store_all(work, [line(b.add(row, q), start, mask, known)], stream if whole else None)
                return b.add(q, one), []

            self.loop(zero, n if whole else self.minimum(n, b.sub(last, row)), [], body)

        def strip(left: ir.Value, _: Values) -> tuple[ir.Value, Values]:
            right = self.minimum(b.add(left, wide), high)

            def down(row: ir.Value, _: Values) -> tuple[ir.Value, Values]:
                below = b.add(row, n)
                lowest = self.less(below, last)
                tall = b.icmp_signed("<=", below, last)

                def whole(start: ir.Value, _: Values) -> tuple[ir.Value, Values]:
                    with self.when(far):
                        ask(b.select(lowest, below, first), b.select(lowest, start, b.add(start, wide)))
                    square(row, start, True)
                    return b.add(start, n), []

                def part(start: ir.Value, _: Values) -> tuple[ir.Value, Values]:
                    square(row, start, False)
                    return b.add(start, n), []

                stop = b.select(tall, b.sub(right, n), b.sub(left, one))
                start, _ = self.loop(left, stop, [], whole, "<=")
                self.loop(start, right, [], part)
                return below, []

            self.loop(first, last, [], down)
            return b.add(left, wide), []

        self.loop(low, high, [], strip)

    def _streams_rows(self, scope: Scope, work: Work, low: ir.Value) -> Maybe:
        """Whether the stores of whole vectors from `low` on bypass the cache, in every row; None: no store may."""
        b, aligned = self.b, self.stream
        for access, size, align in self._streamed(work):
            self.streams = True
            start = b.ptrtoint(self.e.at(scope.pointers[access], low, self.accesses[access].dtype), INT64)
            steps = [b.mul(self.strides[access][d], self.num(size)) for d in self.row_dims]
            for step in steps:
                start = b.or_(start, step)
            aligned = b.and_(aligned, b.icmp_signed("==", b.and_(start, self.num(align - 1)), self.num(0)))
        return aligned if self.streams else None

    def _runs_across(self, s: Stmt) -> bool:
        return s.op == "load" and not s.args and self.accesses[s.attrs[0]].strides[self.row_dims[-1]] == "1"
