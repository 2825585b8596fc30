"""Two kernels that read the same rows of large arrays, run block by block of rows: the second finds them in the cache.

In: neighbouring launches, the first along rows, the second down the columns of the same rows, as in the gradients of a
layer norm: numbers of each row first, then the result and sums of each column. Out: how many rows make a block.

Between two blocks the second kernel has written some rows while the first has not read all: that must be seen neither
in what the first reads nor, where storage is shared, in what it writes. Sums are finished after all blocks.

Read next: `program.py` (who asks), `executor.py` (PAIR runs both).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracejit.lower.buffers import Storage, overlap
from tracejit.lower.kernel import Launch, View
from tracejit.lower.plan import Plan
from tracejit.runtime.grid import CHUNK, Grid, last_level_cache, scratch_of
from tracejit.runtime.slices import in_own_rows

BLOCK_BYTES = 1 << 20  # of rows that stay in the second cache, or nearly so
FEWEST = 16  # rows of a block: the sums of each block cost as much as some rows
MOST = 512
ENOUGH = 16  # blocks, at least


def block(plan: Plan, storage: Storage, first: Launch, second: Launch) -> int:
    """Rows of a block; 0 if the launches do not go together, or what both read stays in the last cache."""
    a, b = first.kernel, second.kernel
    if a.vector != "inner" or a.outer != 1 or b.vector != "outer" or b.outer != 1 or b.inner != 1 or not b.splittable:
        return 0
    if a.serial or b.serial or first.sites or second.sites or not first.points or not second.points:
        return 0
    if any(s.op == "load" and s.args for s in (*a.stmts, *b.stmts)):
        return 0  # rows found by index
    rows = first.extents[0]
    shared = {v.buffer for v in (*first.reads, *first.writes)} & {v.buffer for v in second.reads}
    nbytes = sum(plan.buffers[v].nbytes for v in shared)
    if second.extents[1] != rows or nbytes <= last_level_cache() // 2:
        return 0
    size = min(MOST, BLOCK_BYTES * rows // nbytes, rows // ENOUGH)
    return size if size >= FEWEST and _in_order(plan, storage, first, second) else 0


def _in_order(plan: Plan, storage: Storage, first: Launch, second: Launch) -> bool:
    """Whether each kernel needs, row by row, what the other has made of the same row at most."""
    rows, k = first.extents[0], second.kernel

    def by_row(view: View, extents: Sequence[int], dim: int) -> bool:
        return in_own_rows(plan, view, extents, rows, dim)

    inside = {store.write for stage in k.stages if stage.inner for store in stage.stores}
    early, late = ([v for w, v in enumerate(second.writes) if (w in inside) == now] for now in (True, False))
    made = {v.buffer for v in first.writes}
    passed = [v for v in second.reads if v.buffer in made]
    return (all(by_row(v, second.extents, 1) for v in (*passed, *early))
            and all(by_row(v, first.extents, 0) for v in first.writes)
            and {v.buffer for v in early}.isdisjoint(v.buffer for v in late)
            and all(by_row(v, first.extents, 0) or not _may_meet(plan, storage, v, w)
                    for v in first.reads for w in early))


def _may_meet(plan: Plan, storage: Storage, a: View, b: View) -> bool:
    """Whether two buffers may lie in the same memory, if only because a caller lends an input for a result."""
    return (plan.buffers[a.buffer].nbytes == plan.buffers[b.buffer].nbytes
            or overlap(plan, storage, a.buffer, b.buffer))


def in_blocks(launch: Launch, g: Grid, rows: int) -> Grid:
    """The grid of the second launch: an item for each block."""
    count = -(-launch.extents[1] // rows)
    return replace(g, block=launch.extents[0], splits=count, split=rows, items=count, chunk=1,
                   scratch=scratch_of(launch.kernel, count, launch.points))


def chunk(count: int, work: float) -> int:
    """Blocks in a row for one thread."""
    return -(-count // max(2, min(count, round(work / CHUNK))))
