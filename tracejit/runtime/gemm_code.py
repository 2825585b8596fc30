"""Matrix products in native code: tiles of c in registers, panels of a and strips of b in the caches.

In: the slots of a product (`Word`), filled in by `gemm.py`. Out: native functions with the ABI of kernels:

    gemm   an item is one panel of rows of one matrix of c (if rows are few or b is large: one part of its columns)
    pack   an item is one strip of b, copied so that the tiles that use it read it from its start to its end
    pack_rows  the same for some strips of rows of a, as high as a tile, if its columns are contiguous

A tile is `rows` x `vectors` vectors of c. It walks down k and adds, for each row, one element of a times `vectors`
vectors of b. Wider than the last whole tile, columns go one masked vector at a time. Each element of c is summed in
order of k, in blocks that are added in order: its bits depend on the sizes alone. Rows of a are read where they
are, with any strides: measured, copying them first pays only for long rows whose elements lie apart.

Read next: `gemm.py` (who fills the slots).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

import numpy as np
from llvmlite import binding as llvm
from llvmlite import ir

from tracejit.lower.emit_llvm import vector_bytes
from tracejit.runtime.build import native_module
from tracejit.runtime.native import I32, I64, Code, Number, Variable
from tracejit.runtime.native import Word as Value

I1 = ir.IntType(1)
PTR, VOID = ir.PointerType(), ir.VoidType()
ABREAST = 4  # strips of rows of a that are copied together
AHEAD = 16  # rows that are asked for before they are copied: processors do not foresee such wide steps


class Word(IntEnum):
    """Slots. Sizes are in elements, strides in bytes."""

    A = 0
    B = 1
    C = 2
    M = 3
    N = 4
    K = 5
    A_ROW = 6
    A_COLUMN = 7
    B_STRIP = 8  # from one strip of `columns` to the next
    B_ROW = 9
    C_ROW = 10
    A_PANEL = 11  # from one panel of a to the next
    PANEL = 12  # rows of an item
    PANELS = 13
    PART = 14  # columns of an item; the next item has the same, and other rows
    PARTS = 15
    DEPTH = 16  # of a walk down k
    BATCH = 17  # number of dims, then for each its extent and the strides of a, b and c
    DIMS = 18


class PackWord(IntEnum):
    """Slots of `pack`: from b, as it is, to strips."""

    B = 0
    STRIPS = 1  # address
    N = 2
    K = 3
    B_ROW = 4
    B_COLUMN = 5
    STRIP = 6  # bytes of a strip
    COUNT = 7  # strips of one matrix
    TRANSPOSED = 8  # b's columns are contiguous
    BATCH = 9
    DIMS = 10  # extent and stride of b


@dataclass(frozen=True, slots=True)
class Tiles:
    """The shape of tiles on this machine, and the addresses of the code for one dtype."""

    lanes: int
    rows: int
    vectors: int
    gemm: int
    pack: int
    pack_rows: int

    @property
    def columns(self) -> int:
        """Columns of a tile, and of a strip of b."""
        return self.lanes * self.vectors


@cache
def tile_shape() -> tuple[int, int, int]:
    """On this machine: bytes of a vector, and of a tile the rows and the vectors in a row."""
    llvm.initialize_native_target()
    width = vector_bytes(llvm.get_host_cpu_features().flatten())
    many = width == 64 or not llvm.get_process_triple().startswith(("x86_64", "i"))  # 32 registers, else 16
    return width, 12 if many else 6, 2


@cache
def tiles(dtype: np.dtype) -> Tiles:
    """Code for products of `dtype`; compiled at the first call, or loaded."""
    width, rows, vectors = tile_shape()
    writer = Writer(dtype, width, rows, vectors)
    found = native_module(f"gemm {dtype.name} {width} {writer.rows}", writer.emit, ("gemm", "pack", "pack_rows"))
    return Tiles(writer.lanes, writer.rows, writer.vectors, found["gemm"], found["pack"], found["pack_rows"])


class Writer:
    """Writes the code for one dtype."""

    def __init__(self, dtype: np.dtype, width: int, rows: int, vectors: int) -> None:
        self.size = dtype.itemsize
        self.floats = dtype.kind == "f"
        self.element: ir.Type = ir.IntType(8 * self.size)
        if self.floats:
            self.element = ir.DoubleType() if self.size == 8 else ir.FloatType()
        self.lanes, self.rows, self.vectors = width // self.size, rows, vectors
        self.vector = ir.VectorType(self.element, self.lanes)
        self.suffix = f"v{self.lanes}{'f' if self.floats else 'i'}{8 * self.size}"
        self.zero = ir.Constant(self.vector, None)

    def emit(self, module: ir.Module) -> None:
        self.module = module
        self._emit_gemm()
        self._emit_pack()
        self._emit_pack_rows()

    # ---- vectors

    def intrinsic(self, f: Code, name: str, result: ir.Type, args: Sequence[ir.Value]) -> ir.Value:
        function = self.module.globals.get(name)
        if function is None:
            function = ir.Function(self.module, ir.FunctionType(result, [a.type for a in args]), name)
        return f.builder.call(function, args)

    def splat(self, f: Code, value: ir.Value, kind: ir.Type) -> ir.Value:
        first = f.builder.insert_element(ir.Constant(ir.VectorType(kind, self.lanes), ir.Undefined), value, I32(0))
        return f.builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes))

    def lanes_below(self, f: Code, left: Value) -> ir.Value:
        """A mask of the first `left` lanes (none, if negative)."""
        count = f.builder.trunc(f.smaller(left, self.lanes).value, I32)
        iota = ir.Constant(ir.VectorType(I32, self.lanes), list(range(self.lanes)))
        return f.builder.icmp_signed("<", iota, self.splat(f, count, I32))

    def load(self, f: Code, at: Value, mask: ir.Value | None = None) -> ir.Value:
        where = f.builder.inttoptr(at.value, PTR)
        if mask is None:
            return f.builder.load(where, typ=self.vector, align=self.size)
        args = [where, I32(self.size), mask, self.zero]
        return self.intrinsic(f, f"llvm.masked.load.{self.suffix}.p0", self.vector, args)

    def store(self, f: Code, value: ir.Value, at: Value, mask: ir.Value | None = None) -> None:
        where = f.builder.inttoptr(at.value, PTR)
        if mask is None:
            f.builder.store(value, where, align=self.size)
        else:
            self.intrinsic(f, f"llvm.masked.store.{self.suffix}.p0", VOID, [value, where, I32(self.size), mask])

    def fetch(self, f: Code, at: Value) -> None:
        """Ask for a line of memory that will be read; any address will do."""
        where = f.builder.inttoptr(at.value, PTR)
        self.intrinsic(f, "llvm.prefetch.p0", VOID, [where, I32(0), I32(3), I32(1)])

    def multiply_add(self, f: Code, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        if not self.floats:
            return f.builder.add(f.builder.mul(x, y), z)
        return self.intrinsic(f, f"llvm.fma.{self.suffix}", self.vector, [x, y, z])

    def add(self, f: Code, x: ir.Value, y: ir.Value) -> ir.Value:
        return f.builder.fadd(x, y) if self.floats else f.builder.add(x, y)

    # ---- a tile

    def tile(self, rows: int, vectors: int, masked: bool) -> Code:
        """c[rows, vectors] = or += a[rows, k] @ b[k, vectors]; only the first `left` lanes if masked."""
        f = Code(self.module, f"tile{rows}x{vectors}{'m' * masked}", 10)
        f.function.attributes.add("noinline")
        a, a_row, a_column, b, b_row, c, c_row, k, more, left = f.args
        mask = self.lanes_below(f, left) if masked else None
        offsets = [a_row * i for i in range(rows)]
        builder, start = f.builder, f.builder.block
        body, done = f.function.append_basic_block(), f.function.append_basic_block()
        with_work = (k > 0).value
        builder.cbranch(with_work, body, done)
        builder.position_at_end(body)
        step, a_phi, b_phi = (builder.phi(I64) for _ in range(3))
        sums = [builder.phi(self.vector) for _ in range(rows * vectors)]
        a_at, b_at = Value(f, a_phi), Value(f, b_phi)
        strip = [self.load(f, b_at + v * self.lanes * self.size, mask) for v in range(vectors)]
        new = []
        for i in range(rows):
            where = builder.inttoptr((a_at + offsets[i]).value, PTR)
            one = self.splat(f, builder.load(where, typ=self.element, align=self.size), self.element)
            new += [self.multiply_add(f, one, strip[v], sums[i * vectors + v]) for v in range(vectors)]
        following = [Value(f, step) + 1, a_at + a_column, b_at + b_row]
        for phi, first, later in zip((step, a_phi, b_phi), (I64(0), a.value, b.value), following, strict=True):
            phi.add_incoming(first, start)
            phi.add_incoming(later.value, body)
        for phi, later in zip(sums, new, strict=True):
            phi.add_incoming(self.zero, start)
            phi.add_incoming(later, body)
        builder.cbranch((following[0] < k).value, body, done)
        builder.position_at_end(done)
        results = []
        for later in new:
            phi = builder.phi(self.vector)
            phi.add_incoming(self.zero, start)
            phi.add_incoming(later, body)
            results.append(phi)

        def places() -> list[tuple[ir.Value, Value]]:
            at = [c + c_row * i + v * self.lanes * self.size for i in range(rows) for v in range(vectors)]
            return list(zip(results, at, strict=True))

        with f.when(more == 0):
            for value, at in places():
                self.store(f, value, at, mask)
            f.ret()
        for value, at in places():
            self.store(f, self.add(f, self.load(f, at, mask), value), at, mask)
        f.ret()
        return f

    # ---- items

    def matrix(self, f: Code, slots: Value, number: Value, dims: int, operands: int) -> list[Value]:
        """Byte offsets of the operands for one matrix of a batch."""
        rest = Variable(f, number)
        moves = [Variable(f, 0) for _ in range(operands)]
        count = f.load(slots, dims)
        with f.count(0, count) as d:
            at = slots + (count - 1 - d) * (8 * (operands + 1)) + 8 * (dims + 1)
            extent = f.load(at, 0)
            here = rest.get() % extent
            rest.set(rest.get() // extent)
            for j, move in enumerate(moves):
                move.set(move.get() + here * f.load(at, 1 + j))
        return [move.get() for move in moves]

    def _emit_gemm(self) -> None:
        heights = [h for h in (self.rows, 8, 4, 3, 2, 1) if h <= self.rows]
        wide = {h: self.tile(h, self.vectors, False) for h in heights}
        narrow = {h: self.tile(h, 1, True) for h in heights}
        f = Code(self.module, "gemm", 3, local=False)
        slots, begin, end = f.args
        m, n, k, a_row, a_column, b_strip, b_row, c_row = (
            f.load(slots, w) for w in (Word.M, Word.N, Word.K, Word.A_ROW, Word.A_COLUMN, Word.B_STRIP, Word.B_ROW,
                                       Word.C_ROW))
        panel, panels, part, parts = (f.load(slots, w) for w in (Word.PANEL, Word.PANELS, Word.PART, Word.PARTS))
        depth, size, columns = f.load(slots, Word.DEPTH), self.size, self.lanes * self.vectors
        with f.count(begin, end) as item:
            top = item % panels * panel
            rows = f.smaller(panel, m - top)
            left_edge = item // panels % parts * part
            right_edge = f.smaller(left_edge + part, n)
            a, b, c = (f.load(slots, w) + move for w, move in
                       zip((Word.A, Word.B, Word.C), self.matrix(f, slots, item // parts // panels, Word.BATCH, 3),
                           strict=True))
            a, c = a + item % panels * f.load(slots, Word.A_PANEL), c + top * c_row
            done = Variable(f, 0)
            with f.forever() as walks:  # at least one, so that an empty k gives zeros
                p = done.get()
                length = f.smaller(depth, k - p)
                with Steps(f, left_edge, right_edge, columns) as j:
                    strip, target = b + j // columns * b_strip + p * b_row, c + j * size

                    def tile(code: Code, i: Value, column_at: Value, left: Value) -> None:
                        shift = column_at * size
                        f.call(code, a + i * a_row + p * a_column, a_row, a_column, strip + shift, b_row,
                               target + i * c_row + shift, c_row, length, p, left)

                    i = Variable(f, 0)
                    for height in heights:
                        with f.forever() as down:
                            with f.when(i.get() + height > rows):
                                down.leave()
                            with f.when(right_edge - j >= columns):
                                tile(wide[height], i.get(), Value(f, I64(0)), right_edge - j)
                            with f.when(right_edge - j < columns):
                                with Steps(f, 0, right_edge - j, self.lanes) as v:
                                    tile(narrow[height], i.get(), v, right_edge - j - v)
                            i.set(i.get() + height)
                done.set(p + length)
                with f.when(done.get() >= k):
                    walks.leave()
        f.ret()

    def _emit_pack(self) -> None:
        f = Code(self.module, "pack", 3, local=False)
        slots, begin, end = f.args
        size, lanes, columns = self.size, self.lanes, self.lanes * self.vectors
        none = ir.Constant(ir.VectorType(I1, lanes), None)
        n, k, b_row, b_column, strip, count, transposed = (
            f.load(slots, w) for w in (PackWord.N, PackWord.K, PackWord.B_ROW, PackWord.B_COLUMN, PackWord.STRIP,
                                       PackWord.COUNT, PackWord.TRANSPOSED))
        with f.count(begin, end) as item:
            (move,) = self.matrix(f, slots, item // count, PackWord.BATCH, 1)
            first = item % count * columns
            source = f.load(slots, PackWord.B) + move + first * b_column
            target = f.load(slots, PackWord.STRIPS) + item * strip
            left = n - first
            with f.when(transposed == 0):
                masks = [self.lanes_below(f, left - v * lanes) for v in range(self.vectors)]
                with f.count(0, k) as p:
                    for line in range(0, columns * size, 64):
                        self.fetch(f, source + (p + AHEAD) * b_row + line)
                    for v, mask in enumerate(masks):
                        shift = v * lanes * size
                        value = self.load(f, source + p * b_row + shift, mask)
                        self.store(f, value, target + p * (columns * size) + shift)
            with f.when(transposed != 0):
                with Steps(f, 0, k, lanes) as p:
                    deep = self.lanes_below(f, k - p)
                    with Steps(f, 0, columns, lanes) as edge:
                        square = []
                        for lane in range(lanes):
                            mask = f.builder.select((edge + lane < left).value, deep, none)
                            square.append(self.load(f, source + b_column * (edge + lane) + p * size, mask))
                        for lane, value in enumerate(self.turned(f, square)):
                            self.store(f, value, target + (p + lane) * (columns * size) + edge * size)
        f.ret()

    def _emit_pack_rows(self) -> None:
        """Strips side by side share lines of memory. Vectors go beyond a strip's row, where the next row follows."""
        f = Code(self.module, "pack_rows", 3, local=False)
        slots, begin, end = f.args
        size, height = self.size, self.rows * self.size
        m, k, a_column, strip = (f.load(slots, w) for w in (PackWord.N, PackWord.K, PackWord.B_ROW, PackWord.STRIP))
        with f.count(begin, end) as item:
            first = item * (self.rows * ABREAST)
            source = f.load(slots, PackWord.B) + first * size
            targets = [f.load(slots, PackWord.STRIPS) + (item * ABREAST + s) * strip for s in range(ABREAST)]
            starts = range(0, self.rows, self.lanes)
            masks = [[self.lanes_below(f, f.smaller(m - first - s * self.rows, self.rows) - i) for i in starts]
                     for s in range(ABREAST)]
            with f.count(0, k) as p:
                for line in range(0, ABREAST * height, 64):
                    self.fetch(f, source + (p + AHEAD) * a_column + line)
                for s, target in enumerate(targets):
                    for i, mask in zip(starts, masks[s], strict=True):
                        value = self.load(f, source + p * a_column + (s * height + i * size), mask)
                        self.store(f, value, target + p * height + i * size)
        f.ret()

    def turned(self, f: Code, rows: list[ir.Value]) -> list[ir.Value]:
        """The transpose of a square of vectors: interleave the halves as often as they can be halved."""
        n = self.lanes
        mixes = [ir.Constant(ir.VectorType(I32, n), [h * n // 2 + j // 2 + j % 2 * n for j in range(n)])
                 for h in range(2)]
        for _ in range(n.bit_length() - 1):
            pairs = zip(rows[: n // 2], rows[n // 2:], strict=True)
            rows = [f.builder.shuffle_vector(x, y, mix) for x, y in pairs for mix in mixes]
        return rows


class Steps:
    """`for i in range(begin, end, step)`."""

    def __init__(self, f: Code, begin: Number, end: Number, step: Number) -> None:
        self.f, self.end, self.step = f, end, step
        self.i = Variable(f, begin)
        self.context = f.forever()

    def __enter__(self) -> Value:
        loop = self.context.__enter__()
        now = self.i.get()
        with self.f.when(now >= self.end):
            loop.leave()
        self.now = now
        return now

    def __exit__(self, *error: object) -> None:
        self.i.set(self.now + self.step)
        self.context.__exit__(None, None, None)
