"""Running one launch: filling the slots of a kernel, cutting its work into items.

In: a `Launch` and the addresses of its buffers. Out: the slot array, and `Cut` (block, splits); `run_serial` runs a launch on
the calling thread over NumPy arrays, for tests and tools. How work is cut depends on sizes alone, never on threads, so results
do not depend on threads either.

Read next: `program.py` (whole programs on threads), `lower/kernel.py` (the slots).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracejit.lower.kernel import Kernel, Launch, items

FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_ssize_t)
ITEM = 1 << 16  # elements that are worth an item of their own


class Cut(NamedTuple):
    """How a launch is cut: length of blocks of the last outer dim, number of parts of the first inner dim, and their length."""

    block: int
    splits: int
    split: int


def cut(kernel: Kernel, extents: tuple[int, ...]) -> Cut:
    """Blocks of about `ITEM` elements, and parts of the inner loops where there are too few points for that."""
    last = max(1, extents[kernel.outer - 1])
    points = inner = 1
    for d, e in enumerate(extents):
        if d < kernel.outer:
            points *= e
        else:
            inner *= e
    block = last
    if kernel.vector == "outer" and not kernel.serial:
        block = min(last, ITEM if kernel.inner == 0 else 1024)
    splits, split = 1, max(1, extents[kernel.outer]) if kernel.inner else 1
    if kernel.splittable and kernel.inner and not kernel.serial:
        groups = max(1, points // block if kernel.vector == "outer" else points)  # items without splitting
        work = points * inner // groups  # elements in each
        if groups < 64 and work >= 2 * ITEM:
            splits = min(extents[kernel.outer], -(-64 // groups), work // ITEM)
            split = -(-extents[kernel.outer] // splits)
            splits = -(-extents[kernel.outer] // split)
    return Cut(block, splits, split)


def scratch_bytes(kernel: Kernel, points: int, splits: int) -> int:
    """Room for the partial accumulators of a launch."""
    if splits == 1:
        return 0
    cells = sum(16 if a.op.startswith("arg") else 8 for a in kernel.stages[0].accumulators)
    return cells * points * splits + 16 * len(kernel.stages[0].accumulators)


def fill_slots(launch: Launch, addresses: Sequence[int], how: Cut, scratch: int, errors: int, stream: bool) -> np.ndarray:
    """The slot array of a launch whose buffers lie at `addresses`."""
    kernel, slots = launch.kernel, launch.kernel.slots
    out = np.zeros(slots.count, np.int64)
    out[: kernel.rank] = launch.extents
    out[slots.block], out[slots.splits], out[slots.split] = how
    out[slots.scratch], out[slots.errors], out[slots.stream] = scratch, errors, stream
    for number, value in zip(slots.params, launch.params, strict=True):
        out[number] = value
    accesses = (*kernel.reads, *kernel.writes)
    places = (*slots.reads, *slots.writes)
    for access, (address, strides), view in zip(accesses, places, (*launch.reads, *launch.writes), strict=True):
        out[address] = addresses[view.buffer] + view.offset * access.dtype.itemsize
        for at, stride in zip(strides, view.strides, strict=True):
            if at is not None:
                out[at] = stride
    return out


def run_serial(launch: Launch, function: int, buffers: Sequence[np.ndarray], how: Cut | None = None,
               stream: bool = False) -> tuple[int, int]:
    """Run a launch on this thread. Gives (0, 0), or site + 1 and value of a failed check."""
    kernel = launch.kernel
    how = how or cut(kernel, launch.extents)
    points = launch.points
    scratch = np.zeros(scratch_bytes(kernel, points, how.splits) // 8 + 4, np.int64)
    start = -(-scratch.ctypes.data // 16) * 16
    errors = np.zeros(2, np.int64)
    slots = fill_slots(launch, [b.ctypes.data for b in buffers], how, start, errors.ctypes.data, stream)
    call = FUNCTION(function)
    call(slots.ctypes.data, 0, items(kernel, launch.extents, how.block, how.splits))
    if how.splits > 1:
        call(slots.ctypes.data, ~0, points)
    return int(errors[0]), int(errors[1])
