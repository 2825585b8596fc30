"""What is done to the rows of a matrix product runs on each panel of rows while it is in the cache.

In: a `Plan`. Out: a `Plan` where kernels that read a product row by row (bias, activation, scaling, softmax, an update
of weights) have become part of its `Gemm` step.

Read next: `runtime/gemm.py` (panels), `runtime/program.py` (who runs both).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tracejit.lower.kernel import Launch, View
from tracejit.lower.plan import Gemm, Plan, Step, reads_of, writes_of

PANEL = 24  # rows of a product in one item, at most: so many of a and c stay in the second cache
PANEL_BYTES = 1 << 18  # of stack for a panel that nobody else reads
SHARED = 1 << 23  # bytes of b that the last cache holds; of a larger b, only some columns are used at a time
PANEL_SLOTS = 128  # words of its kernel's slots, at most: each thread has its own
DEPTH = 512  # of sums that are long
LARGE = 1 << 20  # bytes of b that do not stay in the second cache
FEW = 256  # rows up to which it is better to read a large b only once, as it is


def attach(plan: Plan) -> Plan:
    """Give each product the first kernel that reads its result, if it goes row by row and could run just then."""
    written: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    for s, step in enumerate(plan.steps):
        for b in writes_of(step):
            written.setdefault(b, []).append(s)
        for b in reads_of(step):
            readers.setdefault(b, []).append(s)
    steps: list[Step | None] = list(plan.steps)
    for s in reversed(range(len(steps))):  # a kernel that reads two products goes with the later one
        step = plan.steps[s]
        if not isinstance(step, Gemm) or not (found := readers.get(step.c.buffer)) or reads_b_once(step):
            continue
        launch = steps[at := found[0]]
        if isinstance(launch, Launch) and len(found) == 1 and is_copy(launch):
            continue  # the product will be made where the copy would go
        if (isinstance(launch, Launch) and items_per_row(step, launch)
                and all(max(written.get(b, [-1])) < s for b in reads_of(launch) if b != step.c.buffer)
                and all(written[b] == [at] for b in writes_of(launch))):
            steps[s], steps[at] = replace(step, then=launch), None
    return replace(plan, steps=tuple(step for step in steps if step is not None))


def reads_b_once(step: Gemm) -> bool:
    """Whether b is so large and deep, and rows so few, that the product goes by parts of columns: to read b again for
    each panel would cost more than to read c again."""
    straight = step.b.strides[-1] == 1 or step.n == 1
    plain = not (step.rows or step.apart or step.dtype.kind == "c")
    large = step.k > DEPTH and step.n * step.k * step.dtype.itemsize > LARGE
    return plain and straight and large and PANEL < step.m <= FEW


def stays_on_panels(step: Gemm) -> bool:
    """Whether the product may be kept, panel by panel, by the threads that make it, if only its kernel reads it."""
    if step.then is None or step.dtype.kind == "c" or not items_per_row(step, step.then):
        return False
    size = step.dtype.itemsize
    if step.k * step.n * size > SHARED:
        return False
    panel = min(step.m, PANEL) * step.n * size
    reads = [v.offset for v in step.then.reads if v.buffer == step.c.buffer]
    return panel <= PANEL_BYTES and reads == [0] and step.then.kernel.slots.count <= PANEL_SLOTS


def elements_per_item(step: Gemm, launch: Launch) -> int:
    """How many elements of the product an item covers, when items make up rows."""
    k = launch.kernel
    if k.inner:
        return math.prod(launch.extents[k.outer:])
    return step.n if k.rank == 1 else launch.extents[-1]


def items_per_row(step: Gemm, launch: Launch) -> int:
    """How many items of the launch make up one row of the product; 0 if it does not go row by row."""
    k = launch.kernel
    if k.serial or k.tiled or launch.sites or (k.inner and k.vector == "outer"):
        return 0
    if not step.m or not step.n or 0 in step.batch:
        return 0
    if any(s.op == "load" and s.args and launch.reads[s.attrs[0]].buffer == step.c.buffer for s in k.stmts):
        return 0  # rows found by index
    reads = []
    for view, access in zip(launch.reads, k.reads, strict=True):
        if view.buffer == step.c.buffer:
            if access.dtype != step.dtype:
                return 0
            reads.append(view)
    return _items_over_rows(step, launch, reads) or _items_over_elements(step, launch, reads)


def _items_over_rows(step: Gemm, launch: Launch, reads: Sequence[View]) -> int:
    """As `items_per_row` where the first dims are the rows, and the others stay inside one (some of its columns)."""
    k, extents, rows = launch.kernel, launch.extents, math.prod(step.batch) * step.m
    last = k.outer if k.inner else k.outer - 1  # before the dims of an item
    for d in range(last + 1):
        if math.prod(extents[:d]) != rows:
            continue
        walk = tuple(step.n * math.prod(extents[e + 1: d]) for e in range(d))
        if all(_same(v.strides[:d], walk, extents) and _spans(v, d, extents, step.n) for v in reads):
            return math.prod(extents[d:last])
    return 0


def _spans(view: View, first: int, extents: Sequence[int], n: int) -> bool:
    """Whether a view, at 0 along the dims before the first, stays among n elements."""
    reach = [s * (e - 1) for s, e in zip(view.strides[first:], extents[first:], strict=True)]
    return view.offset + sum(min(r, 0) for r in reach) >= 0 and view.offset + sum(max(r, 0) for r in reach) < n


def _items_over_elements(step: Gemm, launch: Launch, reads: Sequence[View]) -> int:
    """As `items_per_row` where the dims walk over all elements in order."""
    if math.prod(launch.extents) != math.prod(step.batch) * step.m * step.n:
        return 0
    walk = tuple(math.prod(launch.extents[d + 1:]) for d in range(launch.kernel.rank))
    if not all(v.offset == 0 and _same(v.strides, walk, launch.extents) for v in reads):
        return 0
    each = elements_per_item(step, launch)
    return step.n // each if each and step.n % each == 0 else 0


def _same(have: Sequence[int], want: Sequence[int], extents: Sequence[int]) -> bool:
    return all(h == w or n == 1 for h, w, n in zip(have, want, extents, strict=False))


def same_walk(launch: Launch, old: int, new: int) -> bool:
    """Whether the launch reads each element of buffer `old` only where it then writes the same bytes of buffer `new`.

    Then `new` may lie over `old`. All loads of a point come before its stores, which are in the last stage, and writes
    of different points never meet, so it is enough that the reads use the writes' strides and only their offsets.
    """
    k = launch.kernel
    if k.serial or any(stage.stores for stage in k.stages[:-1]):
        return False
    gathered = {s.attrs[0] for s in k.stmts if s.op == "load" and s.args}

    def walk(view: View) -> tuple[int, ...]:
        return tuple(s for s, e in zip(view.strides, launch.extents, strict=True) if e != 1)

    writes = [(v, a) for v, a in zip(launch.writes, k.writes, strict=True) if v.buffer == new]
    reads = [(r, v, a) for r, (v, a) in enumerate(zip(launch.reads, k.reads, strict=True)) if v.buffer == old]
    offsets = {v.offset for v, _ in writes}
    steps, size = walk(writes[0][0]), writes[0][1].dtype.itemsize
    return (all(walk(v) == steps and a.dtype.itemsize == size for v, a in writes)
            and all(walk(v) == steps and a.dtype.itemsize == size and v.offset in offsets and r not in gathered
                    for r, v, a in reads))


def is_copy(launch: Launch) -> bool:
    """Whether the launch only copies one buffer to another, walking both in the same way (in place it does nothing)."""
    k = launch.kernel
    old, new = {v.buffer for v in launch.reads}, {v.buffer for v in launch.writes}
    if k.inner or len(k.stages) != 1 or k.stages[0].checks or len(old) != 1 or len(new) != 1:
        return False
    for store in k.stages[0].stores:
        load = k.stmts[store.value]
        if load.op != "load" or launch.reads[load.attrs[0]].offset != launch.writes[store.write].offset:
            return False
    return same_walk(launch, *old, *new)
