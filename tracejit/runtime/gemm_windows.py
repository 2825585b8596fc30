"""Products whose rows, or whose sums, go over several dims: windows of a picture as a matrix, without writing it out.

In: a `Gemm` with `rows` or `inner`, or with columns apart. Out: a `NativeCall`, whose items and panels are those of
other products.

Rows of a fall in lines of equal distance, each line at an offset of its own; so does what is summed over in runs, each
at offsets of its own in a and in b. A tile finds its rows through a table of addresses, and walks run by run with its
sums in registers.

Read next: `gemm.py` (who asks), `gemm_code.py` (the words for vectors, and the packing of b).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from functools import cache, reduce
from operator import or_
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir

from tracejit.lower.kernel import View
from tracejit.lower.plan import Gemm
from tracejit.runtime import gemm_code
from tracejit.runtime.build import native_module
from tracejit.runtime.executor import NativeCall
from tracejit.runtime.gemm_code import I1, PTR, Steps, Writer, tile_shape
from tracejit.runtime.native import I64, Code, Variable
from tracejit.runtime.native import Word as Value

if TYPE_CHECKING:
    from tracejit.runtime.gemm import Cut

DEPTH = 512  # of one walk, at most, if its runs are not longer: a strip of b that deep stays in the first cache
LONG = 768  # the same where rows of a are read in order: to touch c again costs more than to fetch b again
I8 = ir.IntType(8)
BLOCK = 24  # rows whose addresses are found at once: a multiple of the height of every tile
WAYS = ("along", "across", "even", "full", "any")  # that tiles read a, see `window_tile`
TAPS = 9  # rows of a tile for the most usual windows, of columns apart: else they would be read again and again
LOW = 4  # rows of the lowest tiles
UNROLL = 4  # columns of a that a tile takes at once where they are contiguous
PAIR = 2  # the same where the address of each row is looked up
GROUP = 4  # rows of a whose addresses are in registers at once, about


class Word(IntEnum):
    """Slots. Sizes are in elements, strides in bytes. The first ones are those of `gemm_code.Word`."""

    A = 0
    B = 1
    C = 2
    M = 3
    N = 4
    K = 5
    A_ROW = 6  # between the rows of a line
    A_COLUMN = 7  # between the columns of a run
    B_STRIP = 8  # from one strip of `columns` to the next
    B_ROW = 9  # between the rows of a run
    C_ROW = 10
    PANEL = 11  # rows of an item
    PANELS = 12
    PART = 13  # columns of an item
    PARTS = 14
    LINE = 15  # rows of a line
    LINES = 16  # address of the lines' offsets
    RUN = 17  # columns of a run; the last may be shorter
    RUNS = 18
    STARTS = 19  # address of the runs' offsets, in a and in b
    WALK = 20  # runs that are summed before c is touched
    BATCH = 21  # number of dims, then for each its extent and the strides of a, b and c
    DIMS = 22


def product(step: Gemm, cut: Cut, strip: int, batch: Sequence[int], inner: Sequence[int],
            code: int | None = None) -> NativeCall:
    """The call for one product, or a batch of them. strip, batch, inner: where b is or will be, in bytes from one strip
    to the next, along the dims of the batch, and along those that are summed over. code: what runs it, if not tiles."""
    size, first = step.dtype.itemsize, len(step.batch)
    rows, depths = step.rows or (step.m,), step.inner or (step.k,)
    along = [s * size for s in (step.a.strides[:-1] if step.apart else step.a.strides)]
    words = [0] * (Word.DIMS + 4 * first)
    words[Word.M], words[Word.N], words[Word.K], words[Word.C_ROW] = step.m, step.n, step.k, step.n * size
    words[Word.PANEL], words[Word.PANELS] = cut.panel, -(-step.m // cut.panel)
    words[Word.PART], words[Word.PARTS], words[Word.B_STRIP] = cut.part, -(-step.n // cut.part), strip
    *outer, (words[Word.LINE], words[Word.A_ROW]) = merged(rows, along[first: first + len(rows)])
    lines = offsets(outer)
    *outer, (run, words[Word.A_COLUMN], words[Word.B_ROW]) = merged(depths, along[first + len(rows):], inner)
    depth = LONG if words[Word.A_COLUMN] == size and not step.apart else DEPTH
    if not outer and run > depth:  # one long run: in parts of equal length, about
        parts = -(-run // depth)
        run = -(-run // parts)
        outer = [(parts, run * words[Word.A_COLUMN], run * words[Word.B_ROW])]
    starts = offsets(outer)
    walks = -(-len(starts) // max(1, depth // max(run, 1)))
    words[Word.RUN], words[Word.RUNS], words[Word.WALK] = max(run, 1), len(starts), -(-len(starts) // walks)
    words[Word.LINES], words[Word.STARTS] = lines.ctypes.data, starts.ctypes.data
    words[Word.BATCH] = first
    for d, extent in enumerate(step.batch):
        at = Word.DIMS + 4 * d
        words[at: at + 4] = [extent, along[d], batch[d], step.c.strides[d] * size]
    views: dict[int, View] = {Word.A: step.a, Word.B: step.b, Word.C: step.c}
    code = code or _code(step.dtype, step.apart)
    return NativeCall(code, words, views, cut.items, cut.chunk, cut.work, constants=(lines, starts))


def merged(extents: Sequence[int], *strides: Sequence[int]) -> list[tuple[int, ...]]:
    """Dims, each with its strides, that are walked in the same order; those that could be one are. At least one."""
    found: list[tuple[int, ...]] = []
    for extent, *steps in zip(extents, *strides, strict=True):
        if extent == 1:
            continue
        if found and all(before == extent * step for before, step in zip(found[-1][1:], steps, strict=True)):
            found[-1] = (found[-1][0] * extent, *steps)
        else:
            found.append((extent, *steps))
    return found or [(math.prod(extents), *(s[-1] for s in strides))]


def offsets(dims: Sequence[tuple[int, ...]]) -> np.ndarray:
    """The offsets of all places of some dims, in order; one column for each stride."""
    found = np.zeros((1, 1), np.int64)
    for extent, *steps in dims:
        found = (found[:, None] + np.arange(extent)[:, None] * np.array(steps, np.int64)).reshape(-1, len(steps))
    return np.ascontiguousarray(found) if dims else np.zeros((1, 2), np.int64)


@cache
def _code(dtype: np.dtype, apart: bool) -> int:
    """The address of the code for one dtype, and columns that are apart or not."""
    width, rows, vectors = tile_shape()
    writer = WindowsWriter(dtype, width, rows, vectors, apart)
    name = f"windows {'of columns ' * apart}{dtype.name} {width} {rows}"
    found = native_module(name, writer.emit, ("product",), (gemm_code.__file__,))
    return found["product"]


class WindowsWriter(Writer):
    """Writes the code for one dtype. apart: each column by itself, so that a tile reads vectors of a, not numbers."""

    def __init__(self, dtype: np.dtype, width: int, rows: int, vectors: int, apart: bool) -> None:
        super().__init__(dtype, width, rows, vectors)
        self.apart = apart

    def emit(self, module: ir.Module) -> None:
        self.module = module
        self.emit_product()

    def window_tile(self, rows: int, vectors: int, way: str) -> Code:
        """c[valid, left] = or += a[rows, some runs] @ b[these runs, left]; beyond `valid`, rows repeat the last.

        way: "along": columns of a are contiguous; "across": rows are; "even": rows are evenly spaced, and `left` is
        enough for whole vectors; "full": only that; "any".
        """
        f = Code(self.module, f"tile{rows}x{vectors}_{way}", 14)
        f.function.attributes.add("noinline")
        places, column, a_row, a_column, starts, run, k, b, b_row, c, c_row, valid, left, more = f.args
        builder, size = f.builder, self.size
        whole = way in ("even", "full")
        masks = [None if whole else self.lanes_below(f, left - v * self.lanes) for v in range(vectors)]
        with builder.goto_entry_block():
            sums = [builder.alloca(self.vector) for _ in range(rows * vectors)]
        for each in sums:
            builder.store(self.zero, each)
        first = f.load(places)
        apart = [a_row * i for i in range(GROUP)] if way == "even" else []

        several = UNROLL if way == "along" else 1 if way in ("across", "even") else PAIR

        def step(at: Value, b_at: Value, count: int) -> None:
            """`count` columns of a and rows of b."""
            ats = [self.unknown(f, at)] * count
            if way != "along":
                ats[1:] = (self.unknown(f, at + a_column * u) for u in range(1, count))
            strips = [[self.load(f, b_at + b_row * u + v * self.lanes * size, masks[v]) for v in range(vectors)]
                      for u in range(count)]
            for group in range(0, rows, GROUP):
                members = range(group, min(group + GROUP, rows))
                if way == "even":
                    base = self.unknown(f, first + a_row * group + ats[0])
                    bases = {i: base + apart[i - group] for i in members}
                else:
                    bases = {i: first if way == "across" else f.load(places, i) for i in members}
                for u in range(count):
                    for i in members:
                        ahead = i * size if way == "across" else u * size if way == "along" else 0
                        many = self._elements(f, bases[i], Value(f, I64(0)) if way == "even" else ats[u], ahead, masks)
                        for v in range(vectors):
                            slot = sums[i * vectors + v]
                            builder.store(self.multiply_add(f, many[v], strips[u][v], builder.load(slot)), slot)

        rest, at_run = Variable(f, k), Variable(f, starts)
        with f.forever() as runs:
            with f.when(rest.get() <= 0):
                runs.leave()
            length = Variable(f, f.smaller(run, rest.get()))
            at, b_at = Variable(f, f.load(at_run.get(), 0) + column), Variable(f, b + f.load(at_run.get(), 1))
            if several > 1:
                with f.forever() as loop:
                    with f.when(length.get() < several):
                        loop.leave()
                    step(at.get(), b_at.get(), several)
                    at.set(at.get() + a_column * several)
                    b_at.set(b_at.get() + b_row * several)
                    length.set(length.get() - several)
            with f.forever() as loop:
                with f.when(length.get() <= 0):
                    loop.leave()
                step(at.get(), b_at.get(), 1)
                at.set(at.get() + a_column)
                b_at.set(b_at.get() + b_row)
                length.set(length.get() - 1)
            rest.set(rest.get() - run)
            at_run.set(at_run.get() + 16)

        def targets() -> list[tuple[ir.Value, Value, ir.Value]]:
            found = []
            for i in range(rows):
                row = c + c_row * f.smaller(i, valid - 1)
                found += [(sums[i * vectors + v], row + v * self.lanes * size, masks[v]) for v in range(vectors)]
            return found

        with f.when(more == 0):
            for each, where, mask in targets():
                self.store(f, builder.load(each), where, mask)
            f.ret()
        old = [self.load(f, where, mask) for _, where, mask in targets()]  # before any store: rows may repeat
        for before, (each, where, mask) in zip(old, targets(), strict=True):
            self.store(f, self.add(f, before, builder.load(each)), where, mask)
        f.ret()
        return f

    def _elements(self, f: Code, base: Value, offset: Value, ahead: int,
                  masks: Sequence[ir.Value | None]) -> list[ir.Value]:
        """For each vector of a tile, the elements of a row of a: one for all columns, or one for each."""
        where = f.builder.gep(f.builder.inttoptr(base.value, PTR), [offset.value], source_etype=I8)
        where = f.builder.gep(where, [I64(ahead)], source_etype=I8)
        if not self.apart:
            one = f.builder.load(where, typ=self.element, align=self.size)
            return [self.splat(f, one, self.element)] * len(masks)
        at = Value(f, f.builder.ptrtoint(where, I64))
        return [self.load(f, at + v * self.lanes * self.size, mask) for v, mask in enumerate(masks)]

    @staticmethod
    def unknown(f: Code, value: Value) -> Value:
        """The same number, of which the optimiser knows nothing: it would keep an address for each row, and move them
        all at each step, instead of one number that is added to all."""
        return Value(f, f.builder.asm(ir.FunctionType(I64, [I64]), "", "=r,0", [value.value], False))

    def emit_product(self) -> None:
        less = (TAPS, LOW) if self.apart and self.rows > TAPS else (LOW,)
        heights = {1: (self.rows * self.vectors, self.rows, *less), self.vectors: (self.rows, *less)}
        tiles = {(way, vectors, h): self.window_tile(h, vectors, way)
                 for vectors, hs in heights.items() for h in hs for way in WAYS
                 if way == "any" or (way == "even" and vectors > 1 and h == hs[0])
                 or (way == "full" and vectors > 1 and self.apart)
                 or (not self.apart and h == hs[0] and (way == "across" or (way == "along" and vectors == 1)))}
        f = Code(self.module, "product", 3, local=False)
        slots, begin, end = f.args
        m, n, k, a_row, a_column, b_strip, b_row, c_row = (
            f.load(slots, w) for w in (Word.M, Word.N, Word.K, Word.A_ROW, Word.A_COLUMN, Word.B_STRIP, Word.B_ROW,
                                       Word.C_ROW))
        panel, panels, part, parts = (f.load(slots, w) for w in (Word.PANEL, Word.PANELS, Word.PART, Word.PARTS))
        line, lines, run, runs, starts, walk = (
            f.load(slots, w) for w in (Word.LINE, Word.LINES, Word.RUN, Word.RUNS, Word.STARTS, Word.WALK))
        size, columns = self.size, self.lanes * self.vectors
        places = f.stack(BLOCK + LOW - 1)
        along = a_column == size
        across = (a_row == size) & (a_column != size)
        with f.count(begin, end) as item:
            left_edge = item % parts * part
            right_edge = f.smaller(left_edge + part, n)
            top = item // parts % panels * panel
            bottom = f.smaller(top + panel, m)
            a, b, c = (f.load(slots, w) + move for w, move in
                       zip((Word.A, Word.B, Word.C), self.matrix(f, slots, item // parts // panels, Word.BATCH, 3),
                           strict=True))
            first = Variable(f, 0)
            with f.forever() as walks:  # at least one, so that an empty k gives zeros
                start = first.get()
                length = f.smaller(walk * run, k - start * run)
                with Steps(f, top, bottom, BLOCK) as block:
                    height = f.smaller(bottom - block, BLOCK)
                    self.find_rows(f, places, a, a_row, block, height, line, lines)
                    with Steps(f, left_edge, right_edge, columns) as j:
                        strip, left = b + j // columns * b_strip, right_edge - j
                        column = j * size if self.apart else Value(f, I64(0))

                        def down(vectors: int) -> None:
                            """The tiles of a strip, one below the other."""
                            i = Variable(f, 0)
                            for h in heights[vectors]:
                                whole = h != heights[vectors][-1]  # the last ones may repeat rows
                                with f.forever() as loop:
                                    with f.when(i.get() + (h if whole else 1) > height):
                                        loop.leave()
                                    straight = (block + i.get()) % line + h <= line
                                    full = (left >= self.lanes * vectors) & (across == 0)
                                    even = straight & full
                                    if ("even", vectors, h) in tiles:
                                        full = full & (straight == 0)
                                    ways = {"along": along, "across": across & straight, "even": even, "full": full}
                                    ways = {way: here for way, here in ways.items() if (way, vectors, h) in tiles}
                                    taken = reduce(or_, ways.values(), Value(f, I1(0)))
                                    for way, here in (*ways.items(), ("any", taken == 0)):
                                        with f.when(here):
                                            f.call(tiles[way, vectors, h], places + i.get() * 8, column, a_row,
                                                   a_column, starts + start * 16, run, length, strip, b_row,
                                                   c + (block + i.get()) * c_row + j * size, c_row, height - i.get(),
                                                   left, start)
                                    i.set(i.get() + h)

                        with f.when(left > self.lanes):
                            down(self.vectors)
                        with f.when(left <= self.lanes):
                            down(1)
                first.set(start + walk)
                with f.when(first.get() >= runs):
                    walks.leave()
        f.ret()

    def find_rows(self, f: Code, places: Value, a: Value, a_row: Value, first: Value, count: Value, line: Value,
                   lines: Value, spare: int = LOW - 1) -> None:
        """The addresses of `count` rows of a; a last tile that is not full finds the last row again, as often as there
        are `spare` places."""
        number, at = Variable(f, first // line), Variable(f, first % line)
        here = Variable(f, a + f.load(lines, number.get()) + at.get() * a_row)
        with f.count(0, count + spare) as i:
            f.store(places, i, here.get())
            with f.when(i + 1 < count):
                at.set(at.get() + 1)
                here.set(here.get() + a_row)
                with f.when(at.get() >= line):
                    at.set(0)
                    number.set(number.get() + 1)
                    here.set(a + f.load(lines, number.get()))
