"""Attention in native code: scores are worked out block by block in the first cache, used, and forgotten.

In: the slots of a call (`Word`), filled in by `attention.py`. Out: native functions with the ABI of kernels:

    attention            an item is a block of query rows of one matrix
    attention_grad       an item is a group of key columns of one matrix, with all its rows
    add_parts            an item is a stretch of the sum of what the groups of a matrix gave to dq
    attention_mask_grad  an item is a block of the gradient of a mask, with all matrices that have this mask

Blocks lie transposed: a line has one lane for each of the rows of a block; there is a line for each column (or for each
element of a query). So the largest, the sum and the exponentials of a row run down the lines, vector by vector; keys
and values are read where they are, as operands of the tiles of `gemm_code.py`; only rows of queries are turned on their
way in, and results on their way out. Lanes beyond the last row compute with zeros, and are not stored.

Forward (Dao 2023): with each block of columns the largest score m of a row may grow; sums and results so far shrink by
exp(old m - m). Backward: p = exp(s - lse), ds = p (g v' - delta) scale, dv += p' g, dk += ds' q, dq += ds k.

Read next: `attention.py` (who fills the slots).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from tracejit.lower import emit_scalar_llvm, scalar
from tracejit.lower.emit_scalar_llvm import Emitter
from tracejit.lower.mathlib import arithmetic, base, exponential
from tracejit.lower.mathlib.arithmetic import philox4x32_10
from tracejit.lower.plan import DEEPEST
from tracejit.runtime import gemm_code
from tracejit.runtime.build import native_module
from tracejit.runtime.gemm_code import PTR, Steps, Writer, tile_shape
from tracejit.runtime.native import I32, Code, Number, Variable
from tracejit.runtime.native import Word as Value

COLUMNS = 128  # keys in a block: so many lines of scores stay in the first cache
MASKS = 4  # the use of a draw number that masks are (`ops/random.py`)
ONE = int(np.float64(1).view(np.int64))
EVERYWHERE = 1 << 40  # a diagonal beyond all columns


class Word(IntEnum):
    """Slots. Addresses first; sizes in elements, strides in bytes."""

    Q = 0
    K = 1
    V = 2
    MASK = 3
    G = 4
    OUT = 5
    LSE = 6
    DELTA = 7
    DQ = 8
    DK = 9
    DV = 10
    ROWS = 11
    COLUMNS = 12
    DEPTH = 13
    WIDTH = 14  # of a value
    Q_ROW = 15
    K_ROW = 16
    V_ROW = 17
    G_ROW = 18
    MASK_ROW = 19
    SCALE = 20  # the bits of a float64
    MASKED = 21  # 0: no, 1: by bools, 2: by numbers to add
    CAUSAL = 22
    PARTS = 23  # of a matrix: blocks of rows, or groups of columns
    GROUP = 24  # columns in a group
    DQ_GROUP = 25  # bytes from what one group gives to dq to the next
    DROPS = 26  # 1: weights are dropped
    KEY = 27  # addresses
    DRAW = 28
    THRESHOLD = 29
    FACTOR = 30  # the bits of a float64
    MASK_GRAD = 31
    SHARED = 32  # matrices that have the same mask
    BATCH = 33  # number of dims, then for each its extent and the strides of q, k, v, the mask, g, and in rows
    DIMS = 34


OPERANDS = 6


class AddWord(IntEnum):
    """Slots of `add_parts`."""

    PARTS = 0  # address
    TO = 1
    COUNT = 2  # parts
    SIZE = 3  # elements of a part
    STRETCH = 4  # elements of an item


@dataclass(frozen=True, slots=True)
class Functions:
    """Addresses of the code for one dtype. rows: of a block."""

    rows: int
    attention: int
    attention_grad: int
    attention_mask_grad: int
    add_parts: int


@cache
def functions(dtype: np.dtype) -> Functions:
    """Code for attention in `dtype`; compiled at the first call, or loaded."""
    width, rows, vectors = tile_shape()
    writer = _Attention(dtype, width, rows, vectors)
    names = ("attention", "attention_grad", "attention_mask_grad", "add_parts")
    sources = [inspect.getfile(m) for m in (gemm_code, emit_scalar_llvm, scalar, base, exponential, arithmetic)]
    found = native_module(f"attention {dtype.name} {width} {rows} {DEEPEST}", writer.emit, names, sources)
    return Functions(writer.lanes * vectors, *(found[name] for name in names))


class _Cell:
    """A local variable that holds a vector."""

    def __init__(self, f: Code, start: ir.Value) -> None:
        self.f = f
        with f.builder.goto_entry_block():
            self.slot = f.builder.alloca(start.type)
        self.set(start)

    def get(self) -> ir.Value:
        return self.f.builder.load(self.slot)

    def set(self, value: ir.Value) -> None:
        self.f.builder.store(value, self.slot)


class _Attention(Writer):
    """Writes the code for one dtype."""

    def __init__(self, dtype: np.dtype, width: int, rows: int, vectors: int) -> None:
        super().__init__(dtype, width, rows, vectors)
        self.dtype = dtype
        self.block = self.lanes * vectors  # rows
        self.step = self.lanes * self.size  # bytes of a vector
        self.line = self.block * self.size  # bytes
        self.places = [v * self.step for v in range(vectors)]  # of the vectors of a line
        self.infinite = self._every(float("inf"))
        self.nothing = self._every(float("-inf"))

    def emit(self, module: ir.Module) -> None:
        self.module = module
        self.multiply = self._emit_multiply()
        self.turn_in = self._emit_turn_in()
        self.turn_out = self._emit_turn_out("turn_out", False)
        self.turn_out_onto = self._emit_turn_out("turn_out_onto", True)
        self.hide = self._emit_hide()
        self.soften = self._emit_soften()
        self.finish = self._emit_finish()
        self.drop = self._emit_drop()
        self.slope = self._emit_slope("slope", False)
        self.slope_dropped = self._emit_slope("slope_dropped", True)
        self._emit_attention()
        self._emit_attention_grad()
        self._emit_attention_mask_grad()
        self._emit_add_parts()

    # ---- vectors

    def _every(self, value: float) -> ir.Constant:
        return ir.Constant(self.vector, [value] * self.lanes)

    def _spread(self, f: Code, bits: Value) -> ir.Value:
        """A number, given as the bits of a float64, in every lane."""
        number = f.builder.bitcast(bits.value, ir.DoubleType())
        if self.size == 4:
            number = f.builder.fptrunc(number, self.element)
        return self.splat(f, number, self.element)

    def _apply(self, f: Code, rule: Callable[..., scalar.Value], x: ir.Value) -> ir.Value:
        """A function of numbers, written in the language of one lane."""
        return self._run(f, lambda x: [rule(x)], (self.dtype, x))[0]

    def _run(self, f: Code, rule: Callable[..., Sequence[scalar.Value]],
             *given: tuple[np.dtype, ir.Value]) -> list[ir.Value]:
        """Code written in the language of one lane."""
        code = scalar.Builder()
        code.contract = True
        results = rule(*(code.emit("load", dtype, (), (k,)) for k, (dtype, _) in enumerate(given)))
        emitter, values = Emitter(f.builder, self.lanes), [value for _, value in given]
        for s in code.stmts[len(given):]:
            source = code.stmts[s.args[0]].dtype if s.args else s.dtype
            values.append(emitter.statement(s, [values[a] for a in s.args], source))
        return [values[r.index] for r in results]

    def _kept(self, f: Code, draw: tuple[Value, ...], first: Value, each: Value) -> Callable[[Value], list[Any]]:
        """For lines c, c + 1, c + 2 and c + 3: which lanes of each vector stay. A row's bits are so many blocks of four
        words from those of the row before; `first` is the block of the first row at line 0."""
        key, number, threshold = draw
        b, long = f.builder, ir.VectorType(ir.IntType(64), self.lanes)
        lanes = ir.Constant(long, list(range(self.lanes)))
        below = f.builder.trunc(threshold.value, I32)

        def splat(x: Value) -> ir.Value:
            return Emitter(b, self.lanes).splat(x.value)

        def words(key: Any, number: Any, block: Any) -> Sequence[Any]:
            def halves(x: Any) -> tuple[Any, Any]:
                return scalar.cast(x, scalar.U32), scalar.cast(x >> 32, scalar.U32)

            low, high = halves(number)
            return philox4x32_10(*halves(key), *halves(block), low, high ^ (MASKS << 24))

        def kept(c: Value) -> list[Any]:
            found: list[list[ir.Value]] = [[] for _ in range(4)]
            for v in range(self.vectors):
                rows = b.add(lanes, ir.Constant(long, [v * self.lanes] * self.lanes))
                block = b.add(splat(first + c // 4), b.mul(rows, splat(each)))
                drawn = self._run(f, words, (scalar.U64, key.value), (scalar.U64, number.value), (scalar.U64, block))
                for line, word in zip(found, drawn, strict=True):
                    line.append(b.icmp_unsigned("<", word, Emitter(b, self.lanes).splat(below)))
            return found

        return kept

    def _larger(self, f: Code, x: ir.Value, y: ir.Value) -> ir.Value:
        return f.builder.select(f.builder.fcmp_ordered(">", x, y), x, y)

    def _none_where(self, f: Code, condition: Value, mask: ir.Value) -> ir.Value:
        """The mask if the condition holds, else no lane."""
        return f.builder.select(condition.value, mask, ir.Constant(mask.type, None))

    def _loaded(self, f: Code, at: Value, mask: ir.Value, otherwise: ir.Value) -> ir.Value:
        args = [f.builder.inttoptr(at.value, PTR), I32(self.size), mask, otherwise]
        return self.intrinsic(f, f"llvm.masked.load.{self.suffix}.p0", self.vector, args)

    def _room(self, f: Code, lines: int) -> Value:
        """Lines on the stack, aligned."""
        return (f.stack(lines * self.line // 8 + 8) + 63) & -64

    def _memset(self, f: Code, at: Value, count: Value) -> None:
        f.call_symbol("memset", at, 0, count)

    # ---- blocks

    def _emit_multiply(self) -> Code:
        """c[m, n] = or += a[m, k] @ b[k, n], rows of b contiguous."""
        heights = [h for h in (self.rows, 4, 1) if h <= self.rows]
        wide = {h: self.tile(h, self.vectors, False) for h in heights}
        narrow = {h: self.tile(h, 1, True) for h in heights}
        f = Code(self.module, "multiply", 11)
        a, a_row, a_column, b, b_row, c, c_row, m, n, k, more = f.args
        with Steps(f, 0, n, self.block) as j:
            strip, target = b + j * self.size, c + j * self.size
            i = Variable(f, 0)
            for h in heights:
                with f.forever() as down:
                    with f.when(i.get() + h > m):
                        down.leave()
                    at, to = a + i.get() * a_row, target + i.get() * c_row
                    with f.when(n - j >= self.block):
                        f.call(wide[h], at, a_row, a_column, strip, b_row, to, c_row, k, more, 0)
                    with f.when(n - j < self.block):
                        with Steps(f, 0, n - j, self.lanes) as v:
                            shift = v * self.size
                            f.call(narrow[h], at, a_row, a_column, strip + shift, b_row, to + shift, c_row, k, more,
                                   n - j - v)
                    i.set(i.get() + h)
        f.ret()
        return f

    def _emit_turn_in(self) -> Code:
        """Rows, `valid` of them and `depth` long, times a factor, as lines. Writes whole squares."""
        f = Code(self.module, "turn_in", 6)
        source, row, valid, depth, target, factor = f.args
        times = self._spread(f, factor)
        with Steps(f, 0, depth, self.lanes) as d:
            deep = self.lanes_below(f, depth - d)
            with Steps(f, 0, self.block, self.lanes) as e:
                square = []
                for lane in range(self.lanes):
                    mask = self._none_where(f, e + lane < valid, deep)
                    read = self.load(f, source + row * (e + lane) + d * self.size, mask)
                    square.append(f.builder.fmul(read, times))
                for lane, value in enumerate(self.turned(f, square)):
                    self.store(f, value, target + (d + lane) * self.line + e * self.size)
        f.ret()
        return f

    def _emit_turn_out(self, name: str, onto: bool) -> Code:
        """Lines, `depth` of them, as `valid` rows, or added onto rows. Reads whole squares."""
        f = Code(self.module, name, 5)
        source, depth, valid, target, row = f.args
        with Steps(f, 0, depth, self.lanes) as d:
            deep = self.lanes_below(f, depth - d)
            with Steps(f, 0, self.block, self.lanes) as e:
                square = [self.load(f, source + (d + lane) * self.line + e * self.size) for lane in range(self.lanes)]
                for lane, value in enumerate(self.turned(f, square)):
                    mask = self._none_where(f, e + lane < valid, deep)
                    at = target + row * (e + lane) + d * self.size
                    self.store(f, self.add(f, self.load(f, at, mask), value) if onto else value, at, mask)
        f.ret()
        return f

    def _emit_hide(self) -> Code:
        """Scores of what a mask or the order of time hides become -inf; or get a mask's numbers added. Row r sees
        columns up to r + diagonal. Writes whole squares."""
        f = Code(self.module, "hide", 7)
        scores, columns, mask, row, valid, masked, diagonal = f.args
        bytes_ = ir.VectorType(ir.IntType(8), self.lanes)
        for kind in (1, 2):
            with f.when(masked == kind):
                with Steps(f, 0, columns, self.lanes) as c:
                    wide = self.lanes_below(f, columns - c)
                    with Steps(f, 0, self.block, self.lanes) as e:
                        square = []
                        for lane in range(self.lanes):
                            here = self._none_where(f, e + lane < valid, wide)
                            at = mask + row * (e + lane) + c * (1 if kind == 1 else self.size)
                            if kind == 1:
                                args = [f.builder.inttoptr(at.value, PTR), I32(1), here, ir.Constant(bytes_, None)]
                                name = f"llvm.masked.load.v{self.lanes}i8.p0"
                                seen = self.intrinsic(f, name, bytes_, args)
                                seen = f.builder.icmp_unsigned("!=", seen, ir.Constant(bytes_, None))
                                square.append(f.builder.select(seen, self.zero, self.nothing))
                            else:
                                square.append(self.load(f, at, here))
                        for lane, value in enumerate(self.turned(f, square)):
                            to = scores + (c + lane) * self.line + e * self.size
                            score = self.load(f, to)
                            if kind == 1:
                                hidden = f.builder.fcmp_ordered("<", value, self.zero)
                                score = f.builder.select(hidden, self.nothing, score)
                            else:
                                score = f.builder.fadd(score, value)
                            self.store(f, score, to)
        with f.when(columns - 1 > diagonal):
            with f.count(0, columns) as c:
                for v, place in enumerate(self.places):
                    at = scores + c * self.line + place
                    hidden = self.lanes_below(f, c - diagonal - v * self.lanes)
                    self.store(f, f.builder.select(hidden, self.nothing, self.load(f, at)), at)
        f.ret()
        return f

    def _emit_soften(self) -> Code:
        """Scores become weights. state: two lines, the largest scores and the sums of weights so far; these, and the
        lines of the result, shrink as the largest grows."""
        f = Code(self.module, "soften", 5)
        scores, columns, state, result, width = f.args
        b = f.builder
        before = [self.load(f, state + place) for place in self.places]
        peaks = [_Cell(f, x) for x in before]
        with f.count(0, columns) as c:
            for place, peak in zip(self.places, peaks, strict=True):
                peak.set(self._larger(f, self.load(f, scores + c * self.line + place), peak.get()))
        largest = [peak.get() for peak in peaks]
        bases = [b.select(b.fcmp_ordered("==", x, self.nothing), self.zero, x) for x in largest]
        shrunk = [self._apply(f, exponential.exp, b.fsub(x, base)) for x, base in zip(before, bases, strict=True)]
        sums = [_Cell(f, self.zero) for _ in self.places]
        with f.count(0, columns) as c:
            for place, total, start in zip(self.places, sums, bases, strict=True):
                at = scores + c * self.line + place
                weight = self._apply(f, exponential.exp, b.fsub(self.load(f, at), start))
                self.store(f, weight, at)
                total.set(b.fadd(total.get(), weight))
        for place, peak, total, s in zip(self.places, largest, sums, shrunk, strict=True):
            self.store(f, peak, state + place)
            at = state + self.line + place
            self.store(f, self.multiply_add(f, self.load(f, at), s, total.get()), at)
        with f.count(0, width) as d:
            for place, s in zip(self.places, shrunk, strict=True):
                at = result + d * self.line + place
                self.store(f, b.fmul(self.load(f, at), s), at)
        f.ret()
        return f

    def _emit_finish(self) -> Code:
        """The lines of the result over the sums; and the logarithms of the sums of exponentials, +inf for none."""
        f = Code(self.module, "finish", 5)
        state, result, width, valid, lse = f.args
        b = f.builder
        shares = []
        for v, place in enumerate(self.places):
            total = self.load(f, state + self.line + place)
            none = b.fcmp_ordered("==", total, self.zero)
            shares.append(b.select(none, self.zero, b.fdiv(self._every(1.0), total)))
            found = b.fadd(self._apply(f, exponential.log, total), self.load(f, state + place))
            found = b.select(none, self.infinite, found)
            self.store(f, found, lse + place, self.lanes_below(f, valid - v * self.lanes))
        with f.count(0, width) as d:
            for place, share in zip(self.places, shares, strict=True):
                at = result + d * self.line + place
                self.store(f, b.fmul(self.load(f, at), share), at)
        f.ret()
        return f

    def _emit_drop(self) -> Code:
        """Weights that a draw drops become 0, the others grow by a factor. Writes lines by fours."""
        f = Code(self.module, "drop", 8)
        scores, columns, *draw, first, each, factor = f.args
        times, kept = self._spread(f, factor), self._kept(f, tuple(draw), first, each)
        with Steps(f, 0, columns, 4) as c:
            for j, masks in enumerate(kept(c)):
                for place, mask in zip(self.places, masks, strict=True):
                    at = scores + (c + j) * self.line + place
                    more = f.builder.fmul(self.load(f, at), times)
                    self.store(f, f.builder.select(mask, more, self.zero), at)
        f.ret()
        return f

    def _emit_slope(self, name: str, drops: bool) -> Code:
        """Scores become weights p, dropped if need be; g v' becomes ds = p (g v', dropped alike, - delta) scale. Writes
        lines by fours, if it drops."""
        f = Code(self.module, name, 13 if drops else 7)
        scores, slopes, columns, lse, delta, valid, scale, *rest = f.args
        b, times = f.builder, self._spread(f, scale)
        masks = [self.lanes_below(f, valid - v * self.lanes) for v in range(self.vectors)]
        logs = [self._loaded(f, lse + p, m, self.infinite) for p, m in zip(self.places, masks, strict=True)]
        deltas = [self.load(f, delta + p, m) for p, m in zip(self.places, masks, strict=True)]
        if drops:
            *draw, first, each, factor = rest
            grown, kept = self._spread(f, factor), self._kept(f, tuple(draw), first, each)
        with Steps(f, 0, columns, 4 if drops else 1) as c:
            for j, stay in enumerate(kept(c) if drops else [[None] * self.vectors]):
                for place, log, less, here in zip(self.places, logs, deltas, stay, strict=True):
                    at, to = scores + (c + j) * self.line + place, slopes + (c + j) * self.line + place
                    p, of_p = self._apply(f, exponential.exp, b.fsub(self.load(f, at), log)), self.load(f, to)
                    weight = p
                    if drops:
                        weight, of_p = (b.select(here, b.fmul(x, grown), self.zero) for x in (p, of_p))
                    self.store(f, weight, at)
                    self.store(f, b.fmul(b.fmul(p, b.fsub(of_p, less)), times), to)
        f.ret()
        return f

    # ---- items

    def _words(self, f: Code, slots: Value, *words: Word) -> list[Value]:
        return [f.load(slots, w) for w in words]

    def _operands(self, f: Code, slots: Value, matrix: Value) -> list[Value]:
        """Addresses of q, k, v, the mask and g of one matrix; and its first row among those of all matrices."""
        *moves, row = self.matrix(f, slots, matrix, Word.BATCH, OPERANDS)
        return [*(f.load(slots, w) + move for w, move in zip(Word, moves, strict=False)), row]

    def _draw(self, f: Code, slots: Value, columns: Value) -> tuple[Value, list[Value], Value, Value]:
        """Whether weights are dropped; key, number and threshold; the factor; blocks of random bits in a row."""
        drops, key, draw, threshold, factor = self._words(
            f, slots, Word.DROPS, Word.KEY, Word.DRAW, Word.THRESHOLD, Word.FACTOR)
        numbers = [Variable(f, 0) for _ in range(2)]
        with f.when(drops != 0):
            for number, at in zip(numbers, (key, draw), strict=True):
                number.set(f.load(at))
        return drops != 0, [*(n.get() for n in numbers), threshold], factor, (columns + 3) // 4

    def _call_slope(self, f: Code, common: Sequence[Number], drops: Value, drawn: Sequence[Number]) -> None:
        with f.builder.if_else(drops.value) as (yes, no):
            with yes:
                f.call(self.slope_dropped, *common, *drawn)
            with no:
                f.call(self.slope, *common)

    def _diagonal(self, f: Code, causal: Value, top: Value, column: Value) -> Value:
        return f.select(causal != 0, top - column, EVERYWHERE)

    def _emit_attention(self) -> None:
        f = Code(self.module, "attention", 3, local=False)
        slots, begin, end = f.args
        rows, columns, depth, width, parts = self._words(
            f, slots, Word.ROWS, Word.COLUMNS, Word.DEPTH, Word.WIDTH, Word.PARTS)
        q_row, k_row, v_row, mask_row = self._words(f, slots, Word.Q_ROW, Word.K_ROW, Word.V_ROW, Word.MASK_ROW)
        scale, masked, causal = self._words(f, slots, Word.SCALE, Word.MASKED, Word.CAUSAL)
        out_at, lse_at = self._words(f, slots, Word.OUT, Word.LSE)
        drops, draw, factor, each = self._draw(f, slots, columns)
        mask_size = f.select(masked == 1, 1, self.size)
        queries, scores = self._room(f, DEEPEST), self._room(f, COLUMNS)
        result, state = self._room(f, DEEPEST), self._room(f, 2)
        line, size = self.line, self.size
        with f.count(begin, end) as item:
            matrix, top = item // parts, item % parts * self.block
            q, k, v, mask, _, row = self._operands(f, slots, matrix)
            valid = f.smaller(rows - top, self.block)
            f.call(self.turn_in, q + top * q_row, q_row, valid, depth, queries, scale)
            self._memset(f, result, width * line)
            for place in self.places:
                self.store(f, self.nothing, state + place)
                self.store(f, self.zero, state + line + place)
            seen = f.select(causal != 0, f.smaller(columns, top + valid), columns)
            with Steps(f, 0, seen, COLUMNS) as s:
                n = f.smaller(seen - s, COLUMNS)
                f.call(self.multiply, k + s * k_row, k_row, size, queries, line, scores, line, n, self.block, depth, 0)
                f.call(self.hide, scores, n, mask + top * mask_row + s * mask_size, mask_row, valid, masked,
                       self._diagonal(f, causal, top, s))
                f.call(self.soften, scores, n, state, result, width)
                with f.when(drops):
                    f.call(self.drop, scores, n, *draw, (row + top) * each + s // 4, each, factor)
                f.call(self.multiply, v + s * v_row, size, v_row, scores, line, result, line, width, self.block, n, 1)
            at = row + top
            f.call(self.finish, state, result, width, valid, lse_at + at * size)
            f.call(self.turn_out, result, width, valid, out_at + at * width * size, width * size)
        f.ret()

    def _emit_attention_grad(self) -> None:
        f = Code(self.module, "attention_grad", 3, local=False)
        slots, begin, end = f.args
        rows, columns, depth, width, parts = self._words(
            f, slots, Word.ROWS, Word.COLUMNS, Word.DEPTH, Word.WIDTH, Word.PARTS)
        q_row, k_row, v_row, g_row, mask_row = self._words(
            f, slots, Word.Q_ROW, Word.K_ROW, Word.V_ROW, Word.G_ROW, Word.MASK_ROW)
        scale, masked, causal = self._words(f, slots, Word.SCALE, Word.MASKED, Word.CAUSAL)
        lse_at, delta_at, dq_at, dk_at, dv_at = self._words(f, slots, Word.LSE, Word.DELTA, Word.DQ, Word.DK, Word.DV)
        group, dq_group = self._words(f, slots, Word.GROUP, Word.DQ_GROUP)
        drops, draw, factor, each = self._draw(f, slots, columns)
        mask_size = f.select(masked == 1, 1, self.size)
        queries, slopes_in, to_q = (self._room(f, DEEPEST) for _ in range(3))
        scores, slopes = self._room(f, COLUMNS), self._room(f, COLUMNS)
        line, size, block = self.line, self.size, self.block
        with f.count(begin, end) as item:
            matrix, part = item // parts, item % parts
            q, k, v, mask, g, row = self._operands(f, slots, matrix)
            first = part * group
            last = f.smaller(first + group, columns)
            dq = dq_at + part * dq_group + row * depth * size
            dk, dv = dk_at + matrix * columns * depth * size, dv_at + matrix * columns * width * size
            self._memset(f, dq, rows * depth * size)
            with f.when(last > first):
                self._memset(f, dk + first * depth * size, (last - first) * depth * size)
                self._memset(f, dv + first * width * size, (last - first) * width * size)
            with Steps(f, first, last, COLUMNS) as s:
                n = f.smaller(last - s, COLUMNS)
                k_here, v_here = k + s * k_row, v + s * v_row
                with Steps(f, f.select(causal != 0, s // block * block, 0), rows, block) as top:
                    valid = f.smaller(rows - top, block)
                    at, q_here, g_here = row + top, q + top * q_row, g + top * g_row
                    f.call(self.turn_in, q_here, q_row, valid, depth, queries, scale)
                    f.call(self.turn_in, g_here, g_row, valid, width, slopes_in, ONE)
                    f.call(self.multiply, k_here, k_row, size, queries, line, scores, line, n, block, depth, 0)
                    f.call(self.hide, scores, n, mask + top * mask_row + s * mask_size, mask_row, valid, masked,
                           self._diagonal(f, causal, top, s))
                    f.call(self.multiply, v_here, v_row, size, slopes_in, line, slopes, line, n, block, width, 0)
                    common = (scores, slopes, n, lse_at + at * size, delta_at + at * size, valid, scale)
                    self._call_slope(f, common, drops, (*draw, at * each + s // 4, each, factor))
                    f.call(self.multiply, scores, line, size, g_here, g_row, dv + s * width * size, width * size, n,
                           width, valid, 1)
                    f.call(self.multiply, slopes, line, size, q_here, q_row, dk + s * depth * size, depth * size, n,
                           depth, valid, 1)
                    f.call(self.multiply, k_here, size, k_row, slopes, line, to_q, line, depth, block, n, 0)
                    f.call(self.turn_out_onto, to_q, depth, valid, dq + top * depth * size, depth * size)
        f.ret()

    def _emit_attention_mask_grad(self) -> None:
        f = Code(self.module, "attention_mask_grad", 3, local=False)
        slots, begin, end = f.args
        rows, columns, depth, width, parts, blocks, shared = self._words(
            f, slots, Word.ROWS, Word.COLUMNS, Word.DEPTH, Word.WIDTH, Word.PARTS, Word.GROUP, Word.SHARED)
        q_row, k_row, v_row, g_row, mask_row = self._words(
            f, slots, Word.Q_ROW, Word.K_ROW, Word.V_ROW, Word.G_ROW, Word.MASK_ROW)
        scale, causal, mask_at, to_at = self._words(f, slots, Word.SCALE, Word.CAUSAL, Word.MASK, Word.MASK_GRAD)
        lse_at, delta_at = self._words(f, slots, Word.LSE, Word.DELTA)
        drops, draw, factor, each = self._draw(f, slots, columns)
        queries, slopes_in = self._room(f, DEEPEST), self._room(f, DEEPEST)
        scores, slopes, sums = (self._room(f, COLUMNS) for _ in range(3))
        line, size, block = self.line, self.size, self.block
        with f.count(begin, end) as item:
            own, s = item // blocks // parts, item % blocks * COLUMNS
            n, first = f.smaller(columns - s, COLUMNS), item // blocks % parts * block
            last = f.select(mask_row == 0, rows, f.smaller(first + block, rows))
            self._memset(f, sums, n * line)
            with f.count(0, shared) as other:
                q, k, v, mask, g, row = self._operands(f, slots, own * shared + other)
                with Steps(f, first, last, block) as top:
                    valid, at = f.smaller(rows - top, block), row + top
                    f.call(self.turn_in, q + top * q_row, q_row, valid, depth, queries, scale)
                    f.call(self.turn_in, g + top * g_row, g_row, valid, width, slopes_in, ONE)
                    f.call(self.multiply, k + s * k_row, k_row, size, queries, line, scores, line, n, block, depth, 0)
                    f.call(self.hide, scores, n, mask + top * mask_row + s * size, mask_row, valid, 2,
                           self._diagonal(f, causal, top, s))
                    f.call(self.multiply, v + s * v_row, v_row, size, slopes_in, line, slopes, line, n, block, width, 0)
                    common = (scores, slopes, n, lse_at + at * size, delta_at + at * size, valid, ONE)
                    self._call_slope(f, common, drops, (*draw, at * each + s // 4, each, factor))
                    with Steps(f, 0, n * line, self.step) as i:
                        self.store(f, self.add(f, self.load(f, sums + i), self.load(f, slopes + i)), sums + i)
            *_, mask, _, _ = self._operands(f, slots, own * shared)
            to = to_at + (mask - mask_at) + first * mask_row + s * size
            with f.when(mask_row != 0):
                f.call(self.turn_out, sums, n, last - first, to, mask_row)
            with f.when(mask_row == 0):  # one row for all: the sum over the lanes
                with f.count(0, n) as c:
                    total = ir.Constant(self.element, 0.0)
                    for place in self.places:
                        found = self.load(f, sums + c * line + place)
                        for lane in range(self.lanes):
                            total = f.builder.fadd(total, f.builder.extract_element(found, I32(lane)))
                    f.builder.store(total, f.builder.inttoptr((to + c * size).value, PTR), align=size)
        f.ret()

    def _emit_add_parts(self) -> None:
        f = Code(self.module, "add_parts", 3, local=False)
        slots, begin, end = f.args
        parts, to, count, size, stretch = (f.load(slots, w) for w in AddWord)
        with f.count(begin, end) as item:
            with Steps(f, item * stretch, f.smaller(item * stretch + stretch, size), self.lanes) as i:
                mask = self.lanes_below(f, size - i)
                total = _Cell(f, self.load(f, parts + i * self.size, mask))
                with f.count(1, count) as p:
                    total.set(self.add(f, total.get(), self.load(f, parts + (p * size + i) * self.size, mask)))
                self.store(f, total.get(), to + i * self.size, mask)
        f.ret()
