"""The caching allocator: memory for results and arenas, kept for reuse when its last user lets go.

In: `empty(shape, dtype)`. Out: a new C-contiguous ndarray, 64-byte aligned when large. Fresh large memory costs more
in page faults than most kernels; memory that was used before costs nothing.

NumPy makes every view of an array refer to the first array over the memory, so memory is free when that one array dies,
which a weak reference tells. Freed blocks wait in lists by size class, newest used first, at most `limit()` bytes of
them, and no more than what was in use lately can make good use of; the oldest go back to the system.

Read next: `program.py` (who allocates).
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tracejit.locks import fork_safe

SMALL = 1 << 16  # bytes below which NumPy's own allocator serves
SPARE = 1 << 24  # bytes that may be kept in any case, besides as many as were in use at once lately
_LATELY = 256  # returned blocks after which that peak begins to be forgotten
_PAGE = mmap.PAGESIZE
_HUGE = 1 << 21  # bytes from which large pages pay
_FLAGS = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes arrays use now, bytes kept for reuse, requests served from kept and from fresh memory (large ones only)."""

    in_use: int
    cached: int
    hits: int
    misses: int


class _Block:
    """A stretch of memory, and while it is lent, the weak reference to its array."""

    __slots__ = ("memory", "size", "lease", "stamp")

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size, **_FLAGS)  # type: ignore[arg-type]
        self.size = size
        self.lease: _Lease | None = None
        self.stamp = 0
        if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                self.memory.madvise(mmap.MADV_HUGEPAGE)
            except OSError:  # a kernel without them
                pass


class _Lease(weakref.ref):
    """Knows when the array over a block has died."""

    __slots__ = ("block",)
    block: _Block


_lock = fork_safe(threading.Lock(), awaited=True)  # a child finds the lists whole
_returned: deque[_Block] = deque()  # died, not yet counted: a weak reference's callback may come while the lock is held
_lent: set[_Block] = set()
_free: dict[int, deque[_Block]] = {}  # by size class, newest last
_in_use = _cached = _hits = _misses = _clock = _peak = 0


def _physical_memory() -> int:
    """Bytes of memory this process may have: the machine's, or its container's."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        total = 8 << 30
    try:
        with open("/sys/fs/cgroup/memory.max") as f:
            total = min(total, int(f.read()))
    except (OSError, ValueError):  # no container, or "max"
        pass
    return total


_limit = _physical_memory() // 8


def limit() -> int:
    """Bytes that may be kept for reuse."""
    return _limit


def set_limit(n: int) -> None:
    """Keep at most `n` bytes for reuse."""
    global _limit
    if n < 0:
        raise ValueError(f"set_limit: expected a number of bytes, got {n}")
    with _lock:
        _limit = n
        _collect()


@lru_cache(4096)
def size_class(nbytes: int) -> int:
    """The block size that serves `nbytes`: eight sizes for each power of two, in whole pages."""
    step = max(_PAGE, 1 << max(0, (nbytes - 1).bit_length() - 4))
    return -(-nbytes // step) * step


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised array, as `np.empty`, from recycled memory when it is large."""
    if not isinstance(dtype, np.dtype):
        dtype = np.dtype(dtype)
    nbytes = prod(shape) * dtype.itemsize
    if nbytes < SMALL:
        return np.empty(shape, dtype)
    global _in_use, _cached, _hits, _misses, _peak
    size = size_class(nbytes)
    with _lock:
        if _returned:
            _collect()
        if blocks := _free.get(size):
            block = blocks.pop()
            _cached -= size
            _hits += 1
        else:
            try:
                block = _Block(size)
            except (OSError, MemoryError):
                _release(_cached)
                try:
                    block = _Block(size)
                except (OSError, MemoryError) as error:
                    raise MemoryError(f"cannot allocate {nbytes} bytes for an array of shape {shape} and dtype {dtype}"
                                      ) from error
            _misses += 1
        _in_use += size
        _peak = max(_peak, _in_use)
        _lent.add(block)
    array = np.ndarray(shape, dtype, block.memory)
    lease = _Lease(array, _on_death)
    lease.block = block
    block.lease = lease
    return array


def aligned(nbytes: int) -> np.ndarray:
    """`nbytes` uninitialised bytes at a multiple of 64."""
    if nbytes >= SMALL:
        return empty((nbytes,), np.uint8)
    nbytes = max(nbytes, 1)  # a view of nothing has any address
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start: start + nbytes]


def trim() -> int:
    """Give all kept memory back to the system; the number of bytes given back."""
    with _lock:
        _collect()
        freed = _cached
        _release(_cached)
        return freed


def stats() -> Memory:
    with _lock:
        _collect()
        return Memory(_in_use, _cached, _hits, _misses)


def _on_death(lease: _Lease, note: Callable[[_Block], None] = _returned.append) -> None:
    note(lease.block)  # bound early: globals may be gone at exit


def _collect() -> None:
    """Put blocks whose array has died into the lists, then keep to the limit. Call with the lock held."""
    global _in_use, _cached, _clock, _peak
    while _returned:
        block = _returned.popleft()
        block.lease = None
        _lent.discard(block)
        _in_use -= block.size
        # Someone may have taken the memory itself (`array.base`): two references are ours, `memory` and the argument.
        if sys.getrefcount(block.memory) <= 2:
            _clock += 1
            block.stamp = _clock
            if _clock % _LATELY == 0:
                _peak = max(_in_use, _peak * 7 // 8)
            blocks = _free.get(block.size)
            if blocks is None:
                blocks = _free[block.size] = deque()
            blocks.append(block)
            _cached += block.size
    most = min(_limit, SPARE + _peak)
    if _cached > most:
        _release(_cached - most)


def _release(nbytes: int) -> None:
    """Free the longest unused blocks, at least `nbytes` of them in all. Call with the lock held."""
    global _cached
    goal = _cached - nbytes
    while _cached > goal:
        size = min((s for s, blocks in _free.items() if blocks), key=lambda s: _free[s][0].stamp)
        block = _free[size].popleft()
        if not _free[size]:
            del _free[size]
        _cached -= size
        block.memory.close()

