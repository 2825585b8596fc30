"""How a launch is cut up: blocks, splits, chunks. By size only, so that results never depend on the threads.

In: a `Launch`. Out: a `Grid` of numbers for its slots and its step. The estimates of time need only be good enough to
tell work that is worth a thread from work that is not.

Read next: `program.py` (who asks).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil

from tracejit.lower.kernel import TILE, Access, Kernel, Launch, View, items
from tracejit.lower.scalar import Stmt

PAIR = 7_000.0  # nanoseconds of work from which a launch is cut in two at least, for a worker that is awake
PARALLEL = 30_000.0  # the same where to begin and to end costs more: columns
CHUNK = 25_000.0  # nanoseconds of work in a chunk, roughly
LANES = 128  # blocks are whole multiples of this
COLUMN_BYTES = 16384  # at least so much of each row in an item: what kernels walk at once, or memory sees short runs
ENOUGH = 32  # items that keep the cores of most machines busy; with fewer, reductions are split
MOST_ITEMS = 256  # after splitting

# Nanoseconds for one element of one statement in vector code, where it is far from the usual.
_USUAL = 0.015
_SLOW = {"div": 0.1, "sqrt": 0.1, "quot": 1.5, "rem": 1.5, "check": 0.05, "const": 0.0, "param": 0.0,
         "running": 0.1}
_GATHER, _SCATTER, _BYTE = 0.6, 1.5, 0.01
_TURNS = 50  # of a loop with a test


@dataclass(frozen=True, slots=True)
class Grid:
    """block, splits, split: as in `Slots`. items: how many; chunk: how many in a row for one thread (all: on one).
    scratch: bytes for partial accumulators. work: estimated nanoseconds on one thread."""

    block: int
    splits: int
    split: int
    items: int
    chunk: int
    scratch: int
    stream: bool
    work: float


@cache
def last_level_cache() -> int:
    """Bytes of the largest cache of the first processor."""
    largest = 0
    for index in range(5):
        try:
            with open(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size") as f:
                text = f.read().strip()
        except OSError:
            continue
        scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        largest = max(largest, int(digits) * scale if digits.isdigit() else 0)
    return largest or 32 << 20


def _footprint(accesses: Sequence[tuple[Access, View]], extents: tuple[int, ...]) -> int:
    """Bytes a launch touches, if each element once: views of one buffer together no more than lies between them."""
    found: dict[int, tuple[int, int, int]] = {}  # of each buffer: bytes in all views, the first of them and the last
    for access, view in accesses:
        size = n = access.dtype.itemsize
        first = last = view.offset
        for stride, extent in zip(view.strides, extents, strict=True):
            n *= extent if stride else 1
            first, last = first + min(0, stride * (extent - 1)), last + max(0, stride * (extent - 1))
        total, low, high = found.get(view.buffer, (0, first * size, last * size + size))
        found[view.buffer] = total + n, min(low, first * size), max(high, last * size + size)
    return sum(min(total, high - low) for total, low, high in found.values())


def _statements_cost(some: Iterable[Stmt], stmts: Sequence[Stmt], launch: Launch) -> float:
    cost = 0.0
    for s in some:
        if s.op == "loop":
            inside = s.attrs[0].stmts
            cost += _turns(s, stmts, launch) * _statements_cost(inside, inside, launch)
        else:
            width = max(1.0, s.dtype.itemsize / 4)
            cost += _GATHER if s.op == "load" and s.args else _SLOW.get(s.op, _USUAL) * width
    return cost


def _turns(loop: Stmt, stmts: Sequence[Stmt], launch: Launch) -> int:
    """How often a loop goes round, as far as can be told."""
    count = stmts[loop.args[0]] if loop.attrs[0].counted else None
    if count is not None and count.op == "const":
        return int(count.attrs[0])
    return launch.params[count.attrs[0]] if count is not None and count.op == "param" else _TURNS


def _element_cost(launch: Launch) -> float:
    k = launch.kernel
    scattered = sum(_SCATTER for stage in k.stages for s in stage.stores if s.offset is not None)
    return _statements_cost((k.stmts[i] for i in k.usually), k.stmts, launch) + scattered


def grid(launch: Launch) -> Grid:
    """Cut a launch up."""
    k, extents = launch.kernel, launch.extents
    accesses = [*zip(k.reads, launch.reads, strict=True), *zip(k.writes, launch.writes, strict=True)]
    touched = _footprint(accesses, extents)
    points, inner = launch.points, 1
    for e in extents[k.outer:]:
        inner *= e
    work = points * max(inner, 1) * _element_cost(launch) + touched * _BYTE
    pace, columns = CHUNK, k.inner and k.vector == "outer"
    if columns:  # an item begins and ends with passes over its totals: it should be long
        pace = max(CHUNK, min(4 * CHUNK, work / 16))
    least = PARALLEL if columns else PAIR
    pieces = max(2, round(work / pace)) if work > least and not k.serial else 1
    last = extents[k.outer - 1] if k.vector == "outer" else 1
    block = max(1, last)
    if last and points:
        lanes = points // pieces // (TILE if k.tiled else 1)  # whose work is that of a chunk
        narrowest = max(LANES, COLUMN_BYTES // k.reads[0].dtype.itemsize) if k.inner and k.reads else LANES
        block = min(block, _up(max(narrowest, lanes), LANES))
    count = items(k, extents, block, 1)
    splits, split = 1, max(1, extents[k.outer]) if k.inner else 1
    if k.splittable and k.inner and 0 < count < ENOUGH and pieces > 1:
        most = MOST_ITEMS if k.vector == "inner" else 2 * ENOUGH  # parts of columns leave a result for each lane
        wanted = min(-(-most // count), ceil(pieces / count), extents[k.outer])
        along_vectors = k.vector == "inner" and k.inner == 1
        split = _up(-(-extents[k.outer] // max(1, wanted)), LANES if along_vectors else 1)
        splits = max(1, -(-extents[k.outer] // split))
    count *= splits
    chunk = -(-count // pieces)
    # What is read and what is written do not stay together in a cache that others use, too.
    stream = touched > last_level_cache() // 2
    scratch = scratch_of(k, splits, points) if splits > 1 else 0
    return Grid(block, splits, split, count, max(1, chunk), scratch, stream, work)


def scratch_of(kernel: Kernel, splits: int, points: int) -> int:
    """Bytes for the partial results of each accumulator."""
    return sum(_up(splits * points * (16 if a.op.startswith("arg") else 8), 16) for a in kernel.accumulators)


def along_rows(launch: Launch, g: Grid, elements: int) -> Grid:
    """The same launch with items of so many elements along its last dim, to be run rows at a time."""
    k = launch.kernel
    count = items(k, launch.extents, elements, 1)
    split = max(1, launch.extents[k.outer]) if k.inner else 1
    block = g.block if k.inner else elements
    return replace(g, block=block, splits=1, split=split, items=count, chunk=count, scratch=0, stream=False)


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
