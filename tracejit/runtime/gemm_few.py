"""Products of windows with few columns: vectors run along what is summed over, else most lanes would be idle.

In: a `Gemm` whose rows are contiguous in runs, with at most half as many columns as a vector has lanes. Out: two
`NativeCall`s: b's columns, each in one piece; then the product.

A tile is as many sums as a vector has lanes, of some rows and all columns, each in a register of its own; at the end
the lanes of all of them are added up at once.

Read next: `gemm_windows.py` (rows, lines and runs).
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir

from tracejit.lower.plan import Gemm
from tracejit.runtime import gemm_code, gemm_windows
from tracejit.runtime.build import native_module
from tracejit.runtime.executor import NativeCall
from tracejit.runtime.gemm_code import PTR, Steps, Tiles, tile_shape
from tracejit.runtime.gemm_windows import GROUP, WindowsWriter, Word, merged, offsets
from tracejit.runtime.native import I32, Code, Variable
from tracejit.runtime.native import Word as Value

if TYPE_CHECKING:
    from tracejit.runtime.gemm import Cut

ADDING = 4  # steps of a sum that take about as long as to add up its lanes


class ColumnsWord(IntEnum):
    """Slots of what copies columns. Strides are in bytes."""

    B = 0
    COLUMNS = 1  # address
    K = 2
    PLACES = 3  # address of the offsets of b's rows
    B_COLUMN = 4


def columns(step: Gemm, t: Tiles) -> int:
    """Of how many columns tiles for this product are; 0 if others are better."""
    few = 1 << max(step.n - 1, 0).bit_length()
    rows, inner = step.rows or (step.m,), step.inner or (step.k,)
    if step.apart or step.batch or not step.k or 2 * few > t.lanes:
        return 0
    *outer, (run, along) = merged(inner, step.a.strides[len(rows):])
    steps = prod(extent for extent, _ in outer) * -(-run // t.lanes)
    return few if along == 1 and few * (steps + ADDING) < step.k else 0


def product(step: Gemm, t: Tiles, cut: Cut) -> list[NativeCall]:
    """The calls for one product."""
    size, inner = step.dtype.itemsize, step.inner or (step.k,)
    code = _code(step.dtype)
    *along, across = (s * size for s in step.b.strides)
    places = np.ascontiguousarray(offsets(list(zip(inner, along, strict=True)))[:, 0])
    scratch = (step.n * step.k + t.lanes) * size
    words = [0, 0, step.k, places.ctypes.data, across]
    apart = NativeCall(code["columns"], words, {ColumnsWord.B: step.b}, step.n, step.n, float(step.n * step.k),
                       {ColumnsWord.COLUMNS: 0}, scratch, constants=places)
    each = [size * prod(inner[d + 1:]) for d in range(len(inner))]
    call = gemm_windows.product(step, cut, step.k * size, (), each, code["product"])
    call.views.pop(Word.B)
    call.scratch_slots, call.scratch = {Word.B: 0}, scratch
    return [apart, call]


@cache
def _code(dtype: np.dtype) -> dict[str, int]:
    """The addresses of the code for one dtype."""
    width, rows, vectors = tile_shape()
    writer = _Few(dtype, width, rows, vectors, False)
    return native_module(f"windows, few columns {dtype.name} {width}", writer.emit, ("columns", "product"),
                         (gemm_code.__file__, gemm_windows.__file__))


class _Few(WindowsWriter):
    """Writes the code for one dtype."""

    def emit(self, module: ir.Module) -> None:
        self.module = module
        self._emit_columns()
        self.emit_product()

    def _emit_columns(self) -> None:
        f = Code(self.module, "columns", 3, local=False)
        slots, begin, end = f.args
        k, places, across = (f.load(slots, w) for w in (ColumnsWord.K, ColumnsWord.PLACES, ColumnsWord.B_COLUMN))
        with f.count(begin, end) as j:
            source = f.load(slots, ColumnsWord.B) + j * across
            target = f.load(slots, ColumnsWord.COLUMNS) + j * k * self.size
            with f.count(0, k) as p:
                at, to = (where.value for where in (source + f.load(places, p), target + p * self.size))
                one = f.builder.load(f.builder.inttoptr(at, PTR), typ=self.element, align=self.size)
                f.builder.store(one, f.builder.inttoptr(to, PTR), align=self.size)
        f.ret()

    def emit_product(self) -> None:
        shapes = [(self.lanes // q, q) for q in (1, 2, 4, 8) if 2 * q <= self.lanes]
        tiles = {(rows, q, even): self._tile(rows, q, even) for rows, q in shapes for even in (False, True)}
        f = Code(self.module, "product", 3, local=False)
        slots, begin, end = f.args
        m, n, k, a, b, c, a_row, b_column, c_row, panel = (
            f.load(slots, w) for w in (Word.M, Word.N, Word.K, Word.A, Word.B, Word.C, Word.A_ROW, Word.B_STRIP,
                                       Word.C_ROW, Word.PANEL))
        line, lines, run, starts = (f.load(slots, w) for w in (Word.LINE, Word.LINES, Word.RUN, Word.STARTS))
        places = f.stack(3 * self.lanes)
        with f.count(begin, end) as item:
            top = item * panel
            bottom = f.smaller(top + panel, m)
            with Steps(f, top, bottom, 2 * self.lanes) as block:
                height = f.smaller(bottom - block, 2 * self.lanes)
                self.find_rows(f, places, a, a_row, block, height, line, lines, self.lanes - 1)
                for rows, q in shapes:
                    with f.when((n <= q) & (n > q // 2)), Steps(f, 0, height, rows) as i:
                        straight = (block + i) % line + rows <= line
                        for even in (False, True):
                            with f.when(straight == int(even)):
                                f.call(tiles[rows, q, even], places + i * 8, a_row, starts, run, k, b, b_column,
                                       c + (block + i) * c_row, c_row, height - i, n)
        f.ret()

    def _tile(self, rows: int, q: int, even: bool) -> Code:
        """c[valid, n] = a[rows] @ b[n]; beyond, rows and columns repeat the last. even: rows are evenly spaced."""
        f = Code(self.module, f"tile{rows}x{q}{'_even' * even}", 11)
        f.function.attributes.add("noinline")
        places, a_row, starts, run, k, b, b_column, c, c_row, valid, n = f.args
        builder, width = f.builder, self.lanes * self.size
        with builder.goto_entry_block():
            sums = [builder.alloca(self.vector) for _ in range(rows * q)]
        for each in sums:
            builder.store(self.zero, each)
        first, apart = f.load(places), [a_row * i for i in range(GROUP)]
        columns = [b_column * f.smaller(j, n - 1) for j in range(q)]

        def step(at: Value, b_at: Value, mask: ir.Value | None) -> None:
            """As many elements of each row and column as there are lanes."""
            at = self.unknown(f, at)
            strips = [self.load(f, b_at + column, mask) for column in columns]
            for group in range(0, rows, GROUP):
                base = self.unknown(f, first + a_row * group + at) if even else at
                for i in range(group, min(group + GROUP, rows)):
                    row = self.load(f, base + (apart[i - group] if even else f.load(places, i)), mask)
                    for j, strip in enumerate(strips):
                        slot = sums[i * q + j]
                        builder.store(self.multiply_add(f, row, strip, builder.load(slot)), slot)

        rest, at_run = Variable(f, k), Variable(f, starts)
        with f.forever() as runs:
            with f.when(rest.get() <= 0):
                runs.leave()
            length = Variable(f, f.smaller(run, rest.get()))
            at, b_at = Variable(f, f.load(at_run.get(), 0)), Variable(f, b + f.load(at_run.get(), 1))
            with f.forever() as loop:
                with f.when(length.get() < self.lanes):
                    loop.leave()
                step(at.get(), b_at.get(), None)
                at.set(at.get() + width)
                b_at.set(b_at.get() + width)
                length.set(length.get() - self.lanes)
            with f.when(length.get() > 0):
                step(at.get(), b_at.get(), self.lanes_below(f, length.get()))
            rest.set(rest.get() - run)
            at_run.set(at_run.get() + 16)
        found = self._added(f, [builder.load(each) for each in sums])
        with f.when(n == q):
            self.store(f, found, c, self.lanes_below(f, valid * q))
        if q > 1:
            with f.when(n < q):
                for i in range(rows):
                    order = [min(i * q + lane, self.lanes - 1) for lane in range(self.lanes)]
                    row = builder.shuffle_vector(found, found, ir.Constant(ir.VectorType(I32, self.lanes), order))
                    with f.when(valid > i):
                        self.store(f, row, c + c_row * i, self.lanes_below(f, n))
        f.ret()
        return f

    def _added(self, f: Code, vectors: list[ir.Value]) -> ir.Value:
        """One vector of the sums of the lanes of each: neighbouring lanes of two are added, side by side."""
        kind = ir.VectorType(I32, self.lanes)
        even, odd = (ir.Constant(kind, list(range(start, 2 * self.lanes, 2))) for start in (0, 1))
        while len(vectors) > 1:
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [self.add(f, f.builder.shuffle_vector(x, y, even), f.builder.shuffle_vector(x, y, odd))
                       for x, y in pairs]
        return vectors[0]
