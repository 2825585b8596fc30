"""Matrix products as native calls: from a `Gemm` step to the numbers of the code that runs it.

In: a `Gemm`. Out: one or two `NativeCall`s: a copy of b in strips where that pays, then the product. Float products run
on our own code and threads (`gemm_code.py`); BLAS, which keeps threads of its own, is left with complex ones.

A product is cut up by its sizes alone, so results do not depend on the number of threads.

Read next: `gemm_code.py` (native side), `program.py` (who asks).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tracejit.errors import InternalError
from tracejit.lower.epilogue import DEPTH, LARGE, PANEL, SHARED, reads_b_once
from tracejit.lower.plan import Gemm
from tracejit.runtime import gemm_code, gemm_few, gemm_tiny, gemm_windows
from tracejit.runtime.blas import blas_call
from tracejit.runtime.executor import NativeCall
from tracejit.runtime.gemm_code import PackWord, Tiles, Word

WALK = 1024  # of one walk down k, at most: panels of a that long stay in the second cache
SOME = 128  # columns for which it is no burden to read all of a
WIDE = 256  # columns for which it is no burden to copy all of a
ENOUGH = 32  # items that keep the cores of most machines busy
PARALLEL = 15_000.0  # nanoseconds of work below which a product stays on its caller's thread
AWAKE = 10_000.0  # nanoseconds of work from which a product in a loop is shared with threads that are awake
CHUNK = 8_000.0  # nanoseconds of work in a chunk, roughly: products gain more from threads than what waits for memory
NARROW = 128  # columns of a product of windows up to which panels are so much taller, for what is done to them
SMALL_TILE = 4  # rows of a tile that still is about as quick, by the row
KEPT = 1 << 18  # bytes of c that stay in the second cache while others go through it
_RATE = 0.002  # nanoseconds for a multiply-add with 64-byte vectors, by bytes of the element
_CALL = 20.0  # nanoseconds for an item, besides
_COPY = 0.1  # nanoseconds to copy one element of b


@dataclass(frozen=True, slots=True)
class Product:
    """Native calls in order. panel: rows in an item of the last one, if its items are panels of whole rows; else 0.
    ahead: what has to be done but once, if b is steady; its scratch has to stay."""

    calls: list[NativeCall]
    panel: int = 0
    ahead: NativeCall | None = None


def product(step: Gemm, after: float, on_panels: bool = False, hot: bool = False, steady: bool = False,
            panel: int = 0) -> Product:
    """What runs one matrix product, or a batch of them. after: nanoseconds of work that will be done on the panels.
    on_panels: panels must be small and of whole rows. hot: it is in a loop. steady: where b stays the same. panel:
    items are so many whole rows of a single matrix."""
    if not step.m or not step.n or 0 in step.batch:
        return Product([])
    if step.dtype.kind == "c":
        return Product([blas_call(step)])
    if step.rows or step.apart:
        t = gemm_code.tiles(step.dtype)
        if (columns := gemm_few.columns(step, t)):
            as_long = replace(step, n=t.lanes, k=-(-step.k * columns // t.lanes))  # it takes about so much time
            c = replace(cut(as_long, t, after, on_panels, hot), part=step.n)
            return Product(gemm_few.product(step, t, c), c.panel)
        c = cut(step, t, after, on_panels, hot)
        deep = step.k > DEPTH and math.prod(step.batch) > 1 and not (after or on_panels)
        return _over_windows(step, t, _in_high_panels(step, c) if deep else c)
    tiny = None if on_panels or panel else gemm_tiny.product(step)
    if tiny is not None:
        return Product([tiny])
    t = gemm_code.tiles(step.dtype)
    c = cut(step, t, after, on_panels, hot)
    if panel:
        c = replace(c, panel=panel, part=step.n, items=-(-step.m // panel), chunk=1)
    alone = not (panel or steady or step.batch)  # one product, made once, by all threads
    return _own(step, t, c, steady, alone)


def work_of(step: Gemm) -> float:
    """Estimated nanoseconds of a product on one thread."""
    return math.prod(step.batch) * (step.m * _row_work(step, gemm_code.tiles(step.dtype)) + _CALL)


def _row_work(step: Gemm, t: Tiles) -> float:
    size = step.dtype.itemsize
    return _up(step.n, t.lanes) * max(step.k, 1) * size * _RATE * (64 / (t.lanes * size))


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


@dataclass(frozen=True, slots=True)
class Cut:
    """How a product is cut into items: panels of rows, and parts of columns if rows are few."""

    panel: int
    part: int
    depth: int
    items: int
    chunk: int
    work: float


def cut(step: Gemm, t: Tiles, after: float = 0.0, on_panels: bool = False, hot: bool = False) -> Cut:
    """Cut a product up. hot: it is in a loop, so threads that helped the time before are still awake."""
    m, n, k, matrices = step.m, step.n, step.k, math.prod(step.batch)
    row = _row_work(step, t)
    work = work_of(step) + after
    tall = PANEL * max(1, NARROW // n) if step.rows else PANEL
    panel, part, pieces = min(m, tall) if on_panels else m, n, 1
    if not (after or on_panels) and reads_b_once(step):
        pieces, part = int(work / CHUNK), min(n, 2 * t.columns)
        panel = min(m, _up(-(-m * matrices * -(-n // part) // (ENOUGH // 2)), t.rows))
    elif work > PARALLEL:
        pieces = int(work / CHUNK)
        panel = min(m, tall, *(_up(max(1, most), t.rows) for most in (int(CHUNK / row), -(-m * matrices // ENOUGH))))
        panels = matrices * -(-m // panel)
        if not on_panels and (panels < min(pieces, ENOUGH // 4) or (not after and panels < min(2 * pieces, ENOUGH))):
            part = min(n, _up(-(-n * panels // min(2 * pieces, ENOUGH)), t.columns))
        elif matrices * panels < ENOUGH // 2:  # so few that they should be alike, and halves of them too
            panel = min(panel, _up(-(-m // (panels + panels % 2)), SMALL_TILE))
    elif hot and work > AWAKE:
        if after or on_panels:
            panel = min(panel, _up(-(-m // 4), SMALL_TILE))
        else:
            part = min(n, _up(-(-n // 4), t.columns))
        pieces = 4
    if not (on_panels or step.rows or step.apart) and m > panel and n * k * step.dtype.itemsize > SHARED:
        part = min(part, max(SOME, SHARED // (k * step.dtype.itemsize) // t.columns * t.columns))
    items = matrices * -(-m // panel) * -(-n // part)
    chunk = -(-items // min(items, pieces))
    walks = max(1, -(-k // WALK))
    return Cut(panel, part, max(1, -(-k // walks)), items, chunk, work)


def _own(step: Gemm, t: Tiles, c: Cut, steady: bool, alone: bool) -> Product:
    size, m, n, k = step.dtype.itemsize, step.m, step.n, step.k
    words = [0] * (Word.DIMS + 4 * len(step.batch))
    words[Word.M], words[Word.N], words[Word.K] = m, n, k
    words[Word.A_ROW], words[Word.A_COLUMN] = (s * size for s in step.a.strides[-2:])
    words[Word.A_PANEL] = c.panel * words[Word.A_ROW]
    words[Word.B_STRIP], words[Word.B_ROW], words[Word.C_ROW] = t.columns * size, step.b.strides[-2] * size, n * size
    words[Word.PANEL], words[Word.PANELS], words[Word.DEPTH] = c.panel, -(-m // c.panel), c.depth
    words[Word.PART], words[Word.PARTS] = c.part, -(-n // c.part)
    b_batch = tuple(s * size for s in step.b.strides[:-2])
    product = NativeCall(t.gemm, words, {Word.A: step.a, Word.B: step.b, Word.C: step.c}, c.items, c.chunk, c.work)
    b_row, b_column = step.b.strides[-2:]
    straight = b_column == 1 or n == 1
    if not straight and b_row != 1 and k > 1:
        raise InternalError(f"a ({k}, {n}) matrix with strides ({b_row}, {b_column}) is no operand ({step.where})")
    calls, ahead = [product], None
    enough, large = (t.rows, 0) if steady else (8 * t.rows, LARGE)
    if k and not (straight and (n * k * size <= large or m < enough or (c.panel > PANEL and not steady))):
        pack = _pack_call(step, t, straight)
        words[Word.B_STRIP], words[Word.B_ROW] = pack.words[PackWord.STRIP], t.columns * size
        each = pack.words[PackWord.STRIP] * pack.words[PackWord.COUNT]
        b_batch = tuple(each * s for s in _packed_strides(step))
        product.views.pop(Word.B)
        product.scratch_slots, product.scratch = {Word.B: 0}, pack.scratch
        calls, ahead = ([product], pack) if steady else ([pack, product], None)
    apart = step.a.strides[-1] != 1 and k > DEPTH and n >= WIDE and m >= 8 * t.rows
    if apart and alone and c.panel == t.rows:
        rows = _pack_rows(step, t, product.scratch)
        words[Word.A_ROW], words[Word.A_COLUMN], words[Word.A_PANEL] = size, t.rows * size, rows.words[PackWord.STRIP]
        product.views.pop(Word.A)
        product.scratch_slots[Word.A], product.scratch = product.scratch, rows.scratch
        calls = [*calls[:-1], rows, product]
    words[Word.BATCH] = len(step.batch)
    for d, extent in enumerate(step.batch):
        at = Word.DIMS + 4 * d
        words[at: at + 4] = [extent, step.a.strides[d] * size, b_batch[d], step.c.strides[d] * size]
    return Product(calls, c.panel if c.part >= n else 0, ahead)


def _in_high_panels(step: Gemm, c: Cut) -> Cut:
    """The cut of a batch of long sums: they are read once or a few times, while c stays in the cache."""
    matrices = math.prod(step.batch)
    panel = min(step.m, max(KEPT // (step.n * step.dtype.itemsize) // PANEL, 1) * PANEL)
    items = matrices * -(-step.m // panel)
    pieces = min(items, -(-c.items // c.chunk))
    return replace(c, panel=panel, part=step.n, items=items, chunk=-(-items // pieces))


def _over_windows(step: Gemm, t: Tiles, c: Cut) -> Product:
    """As `_own`, for rows or sums over several dims. b is copied in strips only if it is one matrix in memory."""
    size, n, k, batch = step.dtype.itemsize, step.n, step.k, len(step.batch)
    b = [s * size for s in step.b.strides]
    inner = step.inner or (k,)
    even = gemm_windows.merged(inner, b[batch:-1])
    straight = step.b.strides[-1] == 1 or n == 1
    flat = replace(step, b=replace(step.b, strides=(*step.b.strides[:batch], even[-1][1] // size, step.b.strides[-1])))
    if not straight and (len(even) > 1 or even[0][1] != size):
        raise InternalError(f"a ({k}, {n}) matrix with strides {step.b.strides} is no operand ({step.where})")
    if not k or step.apart or (straight and (len(even) > 1 or n * k * size <= LARGE or step.m < 8 * t.rows)):
        call = gemm_windows.product(step, c, t.columns * size, b[:batch], b[batch:-1])
        return Product([call], c.panel if c.part >= n else 0)
    pack = _pack_call(flat, t, straight)
    strip = pack.words[PackWord.STRIP]
    each = [strip * pack.words[PackWord.COUNT] * s for s in _packed_strides(flat)]
    walk = [math.prod(inner[d + 1:]) * t.columns * size for d in range(len(inner))]
    call = gemm_windows.product(step, c, strip, each, walk)
    call.views.pop(Word.B)
    call.scratch_slots, call.scratch = {Word.B: 0}, pack.scratch
    return Product([pack, call], c.panel if c.part >= n else 0)


def _packed_strides(step: Gemm) -> tuple[int, ...]:
    """Strides, in matrices, of a packed batch: a matrix that repeats along a dim is packed once."""
    strides, each = [], 1
    for extent, stride in zip(reversed(step.batch), reversed(step.b.strides[:-2]), strict=True):
        strides.append(each if stride else 0)
        each *= extent if stride else 1
    return tuple(reversed(strides))


def _pack_call(step: Gemm, t: Tiles, straight: bool) -> NativeCall:
    size, n, k = step.dtype.itemsize, step.n, step.k
    dims = [(extent, stride) for extent, stride in zip(step.batch, step.b.strides[:-2], strict=True) if stride]
    words = [0] * (PackWord.DIMS + 2 * len(dims))
    words[PackWord.N], words[PackWord.K] = n, k
    words[PackWord.B_ROW], words[PackWord.B_COLUMN] = (s * size for s in step.b.strides[-2:])
    words[PackWord.STRIP], words[PackWord.COUNT] = _up(k, t.lanes) * t.columns * size, -(-n // t.columns)
    words[PackWord.TRANSPOSED] = int(not straight)
    words[PackWord.BATCH] = len(dims)
    for d, (extent, stride) in enumerate(dims):
        words[PackWord.DIMS + 2 * d: PackWord.DIMS + 2 * d + 2] = [extent, stride * size]
    items = words[PackWord.COUNT] * math.prod(extent for extent, _ in dims)
    work = items * k * t.columns * _COPY
    chunk = items if work <= PARALLEL else max(1, int(CHUNK * items / work))
    return NativeCall(t.pack, words, {PackWord.B: step.b}, items, min(chunk, items), work, {PackWord.STRIPS: 0},
                      items * words[PackWord.STRIP])


def _pack_rows(step: Gemm, t: Tiles, start: int) -> NativeCall:
    """A copy of a, whose columns lie in memory one after the other, in strips of as many rows as a tile has. start:
    bytes of the scratch that are taken."""
    size, m, k = step.dtype.itemsize, step.m, step.k
    words = [0] * PackWord.DIMS
    words[PackWord.N], words[PackWord.K] = m, k
    words[PackWord.B_ROW], words[PackWord.B_COLUMN] = step.a.strides[-1] * size, size
    strip = words[PackWord.STRIP] = _up((k * t.rows + t.lanes) * size, 64)
    items, work = -(-m // (t.rows * gemm_code.ABREAST)), m * k * _COPY
    chunk = items if work <= PARALLEL else max(1, int(CHUNK * items / work))
    return NativeCall(t.pack_rows, words, {PackWord.B: step.a}, items, min(chunk, items), work,
                      {PackWord.STRIPS: start}, start + items * gemm_code.ABREAST * strip)
