"""The caching allocator: memory for results and arenas, kept for reuse when its last user lets go.

In: `empty(shape, dtype)`. Out: a new C-contiguous ndarray, 64-byte aligned when large. Fresh large memory costs more
in page faults than most kernels; memory that was used before costs nothing.

Freed blocks wait in lists by size class, newest used first, at most `limit()` bytes of them, and no more than what was
in use lately can make good use of; the oldest go back to the system. The lists are kept by native code, which is loaded
for the first large array; here is what is asked of them.

Read next: `pool_code.py` (the native side), `program.py` (who allocates).
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import Any

import numpy as np

SMALL = 1 << 16  # bytes below which NumPy's own allocator serves
_LARGEST = 1 << 62  # bytes: no machine has as many
_PAGE = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes arrays use now, bytes kept for reuse, requests served from kept and from fresh memory (large ones only)."""

    in_use: int
    cached: int
    hits: int
    misses: int


@cache
def _native() -> Any:
    """The native side. It loads llvmlite, which only large arrays and compiled functions need."""
    from tracejit.runtime import pool_code

    return pool_code


def limit() -> int:
    """Bytes that may be kept for reuse."""
    native = _native()
    return native.pool[native.Pool.LIMIT]  # type: ignore[no-any-return]


def set_limit(n: int) -> None:
    """Keep at most `n` bytes for reuse."""
    if n < 0:
        raise ValueError(f"set_limit: expected a number of bytes, got {n}")
    native = _native()
    native.pool[native.Pool.LIMIT] = n
    native.release(native.ADDRESS, max(0, stats().cached - n))


@lru_cache(4096)
def size_class(nbytes: int) -> int:
    """The block size that serves `nbytes`: eight sizes for each power of two, in whole pages."""
    step = max(_PAGE, 1 << max(0, (nbytes - 1).bit_length() - 4))
    return -(-nbytes // step) * step


@lru_cache(4096)
def maker(shape: tuple[int, ...], dtype: np.dtype) -> Callable[[], np.ndarray]:
    """`empty(shape, dtype)` as a function without arguments; its `__self__` is its mold."""
    nbytes = prod(shape) * dtype.itemsize
    refusal = f"cannot allocate {nbytes} bytes for an array of shape {shape} and dtype {dtype}"
    if nbytes >= _LARGEST:
        raise MemoryError(refusal)
    return _native().maker(shape, dtype, size_class(nbytes) if nbytes >= SMALL else 0, refusal)  # type: ignore[no-any-return]


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised array, as `np.empty`, from recycled memory when it is large."""
    if not isinstance(dtype, np.dtype):
        dtype = np.dtype(dtype)
    if prod(shape) * dtype.itemsize < SMALL:
        return np.empty(shape, dtype)
    return maker(shape, dtype)()


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
    native, cached = _native(), stats().cached
    native.release(native.ADDRESS, cached)
    return cached


def stats() -> Memory:
    native = _native()
    words, at = native.pool, native.Pool
    return Memory(words[at.IN_USE], words[at.CACHED], words[at.HITS], words[at.MISSES])
