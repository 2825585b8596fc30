"""Loops whose rows go their own ways: each slice of rows does all turns by itself.

In: a `Loop`. Out: its `Slices`, if every step of the body works row by row, as a recurrent network does on the samples
of a batch. Then threads meet once for the loop, not once for each step of each turn, and a slice stays in their caches.
How many slices a thread takes at once changes no result: they are the same chunks of each step.

Rows are those of the matrices that the body makes: what comes from the turn before, and what one step leaves for
another, is read and written in rows of its own only. Everything else (weights, inputs) may be read as it likes.

Read next: `nested.py` (lays the loop out), `executor.py` (runs it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tracejit.lower.buffers import Place
from tracejit.lower.epilogue import PANEL_BYTES, SHARED
from tracejit.lower.kernel import Access, Launch, View
from tracejit.lower.plan import Gemm, Loop, Plan, launch_of, writes_of
from tracejit.runtime.gemm import SMALL_TILE, work_of
from tracejit.runtime.grid import LANES, Grid, along_rows, grid

MOST = 32  # slices that keep the cores of most machines busy
ROWS = 8  # of a product, at least, so that its tiles are quick
LARGE_ROWS = 24  # the same where b does not stay in the second cache
LARGE = 1 << 19  # bytes of b that do
UNEVEN = 1.06  # what all slices may have together, if the last one is shorter, over what there is
TURN = 1_000.0  # nanoseconds of work in a turn of a slice, at least
LOOP = 30_000.0  # nanoseconds of work in the loop, at least


@dataclass(frozen=True, slots=True)
class Slices:
    """How many rows there are, and in each slice; the last one may have fewer."""

    rows: int
    each: int

    @property
    def count(self) -> int:
        return -(-self.rows // self.each)


def slices(loop: Loop) -> Slices | None:
    """The slices of a loop; None if its rows need each other, or there is too little to do."""
    plan = loop.body.plan
    if loop.test is not None or loop.length < 2 or not all(isinstance(s, Launch | Gemm) for s in plan.steps):
        return None
    rows = _rows(plan)
    if rows < 2 or not _apart(loop, rows):
        return None
    work = sum(_work(s) for s in plan.steps if isinstance(s, Launch | Gemm))
    products = [s for s in plan.steps if isinstance(s, Gemm)]
    large = any(s.n * s.k * s.dtype.itemsize > LARGE for s in products)
    least, unit = (LARGE_ROWS if large else ROWS, SMALL_TILE) if products else (1, 1)
    if all(isinstance(s, Launch) and s.kernel.rank == 1 for s in plan.steps):
        least = unit = LANES
    widest = max((s.n * s.dtype.itemsize for s in products if s.then is not None), default=0)
    if work * loop.length < LOOP or any(s.n * s.k * s.dtype.itemsize > SHARED for s in products):
        return None
    count = MOST
    while count > 1:
        each = -(-rows // (count * unit)) * unit
        many = 2 * least if count > 4 and products else least
        if each >= many and count * each <= UNEVEN * rows and work / count >= TURN and each * widest <= PANEL_BYTES:
            return Slices(rows, each)
        count //= 2
    return None


def _rows(plan: Plan) -> int:
    """How many rows the body's matrices have; 0 if they differ. Kernels along one dim go over the elements of all."""
    found = {s.m if isinstance(s, Gemm) else s.extents[0] for s in plan.steps
             if isinstance(s, Gemm) or (isinstance(s, Launch) and s.kernel.rank > 1)}
    found = found or {s.extents[0] for s in plan.steps if isinstance(s, Launch)}
    return found.pop() if len(found) == 1 else 0


def _work(step: Launch | Gemm) -> float:
    then = launch_of(step)
    return (grid(then).work if then is not None else 0.0) + (work_of(step) if isinstance(step, Gemm) else 0.0)


def _apart(loop: Loop, rows: int) -> bool:
    """Whether each row needs only itself."""
    plan = loop.body.plan
    changing = {*plan.inputs[: len(loop.carries)], *(b for s in plan.steps for b in writes_of(s))}
    steady = set(plan.inputs[len(loop.carries) + len(loop.rows):])
    for step in plan.steps:
        if isinstance(step, Gemm):
            if step.batch or step.rows or step.apart or step.dtype.kind == "c" or step.b.buffer not in steady:
                return False
            if step.b.buffer in changing or not (step.m and step.n and step.k):
                return False
            if step.a.buffer in changing and not in_own_rows(plan, step.a, (step.m, step.k), rows):
                return False
        launch = launch_of(step)
        if launch is not None and not _launch_apart(plan, launch, rows, changing):
            return False
    return _memory_apart(loop, changing, rows)


def _launch_apart(plan: Plan, launch: Launch, rows: int, changing: set[int]) -> bool:
    k, extents = launch.kernel, launch.extents
    if k.serial or k.tiled or launch.sites or not launch.points or extents[0] % rows:
        return False
    if k.rank > 1 and (extents[0] != rows or k.vector_dim == 0 or not k.outer):
        return False
    gathered = {s.attrs[0] for s in k.stmts if s.op == "load" and s.args}
    walk = extents if k.rank > 1 else (rows, extents[0] // rows)

    def apart(view: View, access: Access) -> bool:
        if view.buffer not in changing:
            return True
        strides = view.strides if k.rank > 1 else (view.strides[0] * walk[1], view.strides[0])
        same = plan.buffers[view.buffer].dtype.itemsize == access.dtype.itemsize
        return same and in_own_rows(plan, View(view.buffer, view.offset, strides), walk, rows)

    return (all(apart(v, a) and not (r in gathered and v.buffer in changing)
                for r, (v, a) in enumerate(zip(launch.reads, k.reads, strict=True)))
            and all(apart(v, a) for v, a in zip(launch.writes, k.writes, strict=True)))


def in_own_rows(plan: Plan, view: View, extents: Sequence[int], rows: int, dim: int = 0) -> bool:
    """Whether at each index of a dim a view stays in that row of its buffer."""
    row, rest = divmod(plan.buffers[view.buffer].size, rows)
    reach = [s * (e - 1) for d, (s, e) in enumerate(zip(view.strides, extents, strict=True)) if d != dim]
    low, high = (view.offset + sum(pick(r, 0) for r in reach) for pick in (min, max))
    return not rest and view.strides[dim] == row and 0 <= low and high < row


def _memory_apart(loop: Loop, changing: set[int], rows: int) -> bool:
    """Whether rows stay apart where values follow each other in the same memory, too."""
    plan, storage = loop.body.plan, loop.body.storage
    taken: dict[Place, int] = {}
    for b in sorted(changing):
        place, nbytes = storage.places[b], plan.buffers[b].nbytes
        if place.home in ("arena", "output") and taken.setdefault(place, nbytes) != nbytes:
            return False
    arena = sorted((p.number, p.number + n) for p, n in taken.items() if p.home == "arena")
    return all(end <= begin for (_, end), (begin, _) in pairwise(arena))


def sliced(launch: Launch, g: Grid, s: Slices) -> Grid:
    """The grid of a launch that goes along slices; its chunks are what belongs to one."""
    if launch.kernel.rank == 1:
        return replace(along_rows(launch, g, launch.extents[0] // s.rows * s.each), chunk=1)
    along = along_rows(launch, g, launch.extents[-1])
    return replace(along, chunk=along.items // s.rows * s.each)
