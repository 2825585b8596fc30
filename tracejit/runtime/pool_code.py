"""The native side of the pool: blocks of memory, lent to arrays and taken back.

In: the words of a pool, and molds of arrays. Out: `make(mold)`, an array, over recycled memory if it is large;
`release(pool, bytes)`, which gives memory back to the system.

An array refers to its memory by a capsule (its `base`), as all views of it refer to the array: when the last one who
refers to the capsule is gone, it takes the block back. All of it runs with the GIL held, and what it keeps is whole
wherever Python may run: no lock is needed, and a forked child finds the lists whole.

Read next: `pool.py` (who keeps the pool), `entry.py` (who calls `make`).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from enum import IntEnum
from importlib import import_module
from typing import Any

import numpy as np
from llvmlite import ir

from tracejit.runtime.build import native_module
from tracejit.runtime.native import Code, Variable, Word, builtin

SPARE = 1 << 24  # bytes that may be kept in any case, besides as many as were in use at once lately
_HUGE = 1 << 21  # bytes of a large page
_LARGE_PAGES = hasattr(mmap, "MADV_HUGEPAGE")
_LATELY = 256  # returned blocks after which the peak begins to be forgotten
_CLASSES = 64 * 8  # eight sizes for each power of two


class Pool(IntEnum):
    """Words of a pool. At the end there are two for each size class: its free blocks, a list from newest to oldest."""

    IN_USE = 0  # bytes
    CACHED = 1
    HITS = 2
    MISSES = 3
    CLOCK = 4  # blocks returned so far
    PEAK = 5  # of IN_USE, lately
    LIMIT = 6  # bytes that may be cached at most
    SLAB = 7  # what is left of a large page that blocks are cut from, and where it ends
    SLAB_END = 8
    NDARRAY = 9  # NumPy's class, and two functions of its C API
    NEW_FROM_DESCR = 10
    SET_BASE_OBJECT = 11
    CLASSES = 12


_POOL_WORDS = Pool.CLASSES + 2 * _CLASSES
_NEWEST, _OLDEST = 0, 1  # of a class


class Mold(IntEnum):
    """Words of a mold: what arrays of one shape and dtype are made from."""

    DTYPE = 0
    NDIM = 1
    SIZE = 2  # bytes of a block; 0: NumPy's own memory
    CLASS = 3  # address of its class's words
    POOL = 4
    ERROR = 5  # exception and message if there is no memory
    MESSAGE = 6
    EXTENTS = 7


class _Block(IntEnum):
    """Words of a block's record."""

    ADDRESS = 0
    SIZE = 1
    STAMP = 2  # of the pool's clock, when it was returned
    NEWER = 3
    OLDER = 4
    CLASS = 5
    POOL = 6
    WORDS = 7


_WRITEABLE_C_ARRAY = 0x1 | 0x100 | 0x400  # NumPy's flags: contiguous, aligned, writeable


def _emit(module: ir.Module) -> None:
    release = _emit_release(module)
    take_back = _emit_take_back(module, release)
    destructor = _emit_destructor(module, take_back)
    make = _emit_make(module, _emit_lend(module, release, _emit_new_memory(module)), take_back, destructor)

    f = Code(module, "call", 3, returns=True, local=False)  # of a builtin function whose `__self__` is a mold's address
    f.ret(f.call(make, f.call_symbol("PyLong_AsVoidPtr", f.args[0])))


def _emit_release(module: ir.Module) -> Code:
    """Give the longest unused blocks back to the system, at least so many bytes of them in all."""
    f = Code(module, "release", 2, local=False)
    pool, size = f.args
    goal = f.load(pool, Pool.CACHED) - size
    with f.forever():
        cached = f.load(pool, Pool.CACHED)
        with f.when(cached <= goal):
            f.ret()
        oldest = Variable(f, 0)
        with f.count(0, _CLASSES) as k:
            block = f.load(pool + 8 * (Pool.CLASSES + _OLDEST) + k * 16)
            with f.when(block != 0):
                best = oldest.get()
                with f.when(best == 0):
                    oldest.set(block)
                with f.when(best != 0):
                    with f.when(f.load(block, _Block.STAMP) < f.load(best, _Block.STAMP)):
                        oldest.set(block)
        block = oldest.get()
        with f.when(block == 0):
            f.ret()
        its_class, newer = f.load(block, _Block.CLASS), f.load(block, _Block.NEWER)
        f.store(its_class, _OLDEST, newer)
        _link(f, newer, _Block.OLDER, its_class, _NEWEST, 0)
        f.store(pool, Pool.CACHED, cached - f.load(block, _Block.SIZE))
        f.call_symbol("munmap", f.load(block, _Block.ADDRESS), f.load(block, _Block.SIZE))
        f.call_symbol("free", block)
    f.builder.unreachable()
    return f


def _link(f: Code, block: Word, word: int, its_class: Word, end: int, value: Word | int) -> None:
    """Set the word of a block, or where there is no block, the end of its class's list."""
    with f.when(block != 0):
        f.store(block, word, value)
    with f.when(block == 0):
        f.store(its_class, end, value)


def _emit_take_back(module: ir.Module, release: Code) -> Code:
    f = Code(module, "take_back", 1)
    (block,) = f.args
    pool, its_class, size = (f.load(block, w) for w in (_Block.POOL, _Block.CLASS, _Block.SIZE))
    in_use, clock = f.load(pool, Pool.IN_USE) - size, f.load(pool, Pool.CLOCK) + 1
    f.store(pool, Pool.IN_USE, in_use)
    f.store(pool, Pool.CLOCK, clock)
    with f.when(clock % _LATELY == 0):
        peak = f.load(pool, Pool.PEAK) * 7 // 8
        f.store(pool, Pool.PEAK, f.select(peak < in_use, in_use, peak))
    older = f.load(its_class, _NEWEST)
    f.store(block, _Block.STAMP, clock)
    f.store(block, _Block.NEWER, 0)
    f.store(block, _Block.OLDER, older)
    _link(f, older, _Block.NEWER, its_class, _OLDEST, block)
    f.store(its_class, _NEWEST, block)
    cached = f.load(pool, Pool.CACHED) + size
    f.store(pool, Pool.CACHED, cached)
    most = f.smaller(f.load(pool, Pool.LIMIT), f.load(pool, Pool.PEAK) + SPARE)
    with f.when(cached > most):
        f.call(release, pool, cached - most)
    f.ret()
    return f


def _emit_destructor(module: ir.Module, take_back: Code) -> Code:
    f = Code(module, "destructor", 1)
    f.call(take_back, f.call_symbol("PyCapsule_GetPointer", f.args[0], 0))
    f.ret()
    return f


def _map(f: Code, size: Word | int) -> Word:
    """The address of fresh memory, or -1."""
    access, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return f.call_symbol("mmap", 0, size, access, kind, -1, 0)


def _emit_new_memory(module: ir.Module) -> Code:
    """Fresh memory for a block, or -1. Blocks of about the size of a core's cache are cut from large pages: small pages
    lie anywhere in the machine's memory, and by bad luck too many of an array compete for the same places of the cache.
    Smaller blocks take what is left of a large page."""
    f = Code(module, "new_memory", 2, returns=True)
    pool, size = f.args
    if _LARGE_PAGES:
        full = f.load(pool, Pool.SLAB) + size > f.load(pool, Pool.SLAB_END)
        with f.when(full & (size >= _HUGE // 8) & (size <= _HUGE // 2)):
            whole = _map(f, 2 * _HUGE)
            with f.when(whole == -1):
                f.ret(-1)
            start, rest = (whole + (_HUGE - 1)) & -_HUGE, f.load(pool, Pool.SLAB)
            for begin, end in ((whole, start), (start + _HUGE, whole + 2 * _HUGE), (rest, f.load(pool, Pool.SLAB_END))):
                with f.when(begin < end):
                    f.call_symbol("munmap", begin, end - begin)
            f.call_symbol("madvise", start, _HUGE, mmap.MADV_HUGEPAGE)  # refused where there are none: all is well
            f.store(pool, Pool.SLAB, start)
            f.store(pool, Pool.SLAB_END, start + _HUGE)
        found = f.load(pool, Pool.SLAB)
        with f.when((found + size <= f.load(pool, Pool.SLAB_END)) & (size <= _HUGE // 2)):
            f.store(pool, Pool.SLAB, found + size)
            f.ret(found)
    address = _map(f, size)
    if _LARGE_PAGES:
        with f.when(address != -1):
            with f.when(size >= _HUGE):
                f.call_symbol("madvise", address, size, mmap.MADV_HUGEPAGE)
    f.ret(address)
    return f


def _emit_lend(module: ir.Module, release: Code, new_memory: Code) -> Code:
    """A block for a mold; 0: there is no memory."""
    f = Code(module, "lend", 1, returns=True)
    (mold,) = f.args
    pool, its_class, size = (f.load(mold, w) for w in (Mold.POOL, Mold.CLASS, Mold.SIZE))
    found = Variable(f, f.load(its_class, _NEWEST))
    with f.when(found.get() != 0):
        older = f.load(found.get(), _Block.OLDER)
        f.store(its_class, _NEWEST, older)
        _link(f, older, _Block.NEWER, its_class, _OLDEST, 0)
        f.store(pool, Pool.CACHED, f.load(pool, Pool.CACHED) - size)
        f.store(pool, Pool.HITS, f.load(pool, Pool.HITS) + 1)
    with f.when(found.get() == 0):
        address = Variable(f, f.call(new_memory, pool, size))
        with f.when(address.get() == -1):
            f.call(release, pool, f.load(pool, Pool.CACHED))
            address.set(f.call(new_memory, pool, size))
        with f.when(address.get() == -1):
            f.ret(0)
        block = f.call_symbol("malloc", 8 * _Block.WORDS)
        with f.when(block == 0):
            f.call_symbol("munmap", address.get(), size)
            f.ret(0)
        for word, value in ((_Block.ADDRESS, address.get()), (_Block.SIZE, size), (_Block.CLASS, its_class),
                            (_Block.POOL, pool)):
            f.store(block, word, value)
        found.set(block)
        f.store(pool, Pool.MISSES, f.load(pool, Pool.MISSES) + 1)
    in_use = f.load(pool, Pool.IN_USE) + size
    f.store(pool, Pool.IN_USE, in_use)
    with f.when(f.load(pool, Pool.PEAK) < in_use):
        f.store(pool, Pool.PEAK, in_use)
    f.ret(found.get())
    return f


def _emit_make(module: ir.Module, lend: Code, take_back: Code, destructor: Code) -> Code:
    """`PyObject* make(mold)`: a new array; 0: an exception is set."""
    f = Code(module, "make", 1, returns=True, local=False)
    (mold,) = f.args
    pool, size, dtype = (f.load(mold, w) for w in (Mold.POOL, Mold.SIZE, Mold.DTYPE))

    def over(data: Word | int, flags: int) -> Word:
        f.call_symbol("Py_IncRef", dtype)  # which the array takes
        extents = mold + 8 * Mold.EXTENTS
        return f.call_address(f.load(pool, Pool.NEW_FROM_DESCR), f.load(pool, Pool.NDARRAY), dtype,
                              f.load(mold, Mold.NDIM), extents, 0, data, flags, 0)

    with f.when(size == 0):
        f.ret(over(0, 0))
    block = f.call(lend, mold)
    with f.when(block == 0):
        f.call_symbol("PyErr_SetString", f.load(mold, Mold.ERROR), f.load(mold, Mold.MESSAGE))
        f.ret(0)
    capsule = f.call_symbol("PyCapsule_New", block, 0, f.address_of(destructor))
    with f.when(capsule == 0):
        f.call(take_back, block)
        f.ret(0)
    array = over(f.load(block, _Block.ADDRESS), _WRITEABLE_C_ARRAY)
    with f.when(array == 0):
        f.call_symbol("Py_DecRef", capsule)
        f.ret(0)
    f.call_address(f.load(pool, Pool.SET_BASE_OBJECT), array, capsule)
    f.ret(array)
    return f


_functions = native_module(f"pool {sys.platform}", _emit, ("make", "release", "call"))
MAKE = _functions["make"]
release: Callable[[int, int], None] = ctypes.PYFUNCTYPE(None, ctypes.c_ssize_t, ctypes.c_ssize_t)(_functions["release"])
_new_array = builtin("new_array", _functions["call"], "A new array of the shape and dtype that this was made for.")


# ---- the pool of this process, and molds


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


def _numpy_function(number: int) -> int:
    """Address of a function of NumPy's C API, by its number there."""
    capsule = import_module("numpy._core._multiarray_umath")._ARRAY_API
    pointer = ctypes.pythonapi["PyCapsule_GetPointer"]
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.c_ssize_t.from_address(pointer(capsule, None) + 8 * number).value


def _new_pool() -> Any:
    """The words of the pool. They are never freed: arrays may outlive this module."""
    allocate = ctypes.pythonapi["PyMem_RawCalloc"]
    allocate.restype, allocate.argtypes = ctypes.c_ssize_t, [ctypes.c_size_t, ctypes.c_size_t]
    words = (ctypes.c_int64 * _POOL_WORDS).from_address(allocate(_POOL_WORDS, 8))
    words[Pool.LIMIT], words[Pool.NDARRAY] = _physical_memory() // 8, id(np.ndarray)
    words[Pool.NEW_FROM_DESCR], words[Pool.SET_BASE_OBJECT] = _numpy_function(94), _numpy_function(282)
    return words


pool = _new_pool()
ADDRESS = ctypes.addressof(pool)


class _Mold(int):
    """The address of a mold's words, which it keeps."""

    kept: tuple[Any, ...]


def maker(shape: tuple[int, ...], dtype: np.dtype, size: int, refusal: str) -> Callable[[], np.ndarray]:
    """A function that makes arrays, in blocks of `size` bytes if that is not 0. `refusal`: what to say if there is no
    memory. The address of the mold is its `__self__`."""
    message = ctypes.create_string_buffer(refusal.encode())
    bits = max(0, size - 1).bit_length()  # the sizes of a power of two are told apart by the next three bits
    number = 8 * bits + ((size - 1 >> bits - 4) & 7) if size else 0
    words = (ctypes.c_int64 * (Mold.EXTENTS + len(shape)))(
        id(dtype), len(shape), size, ADDRESS + 8 * (Pool.CLASSES + 2 * number), ADDRESS, id(MemoryError),
        ctypes.addressof(message), *map(int, shape))
    mold = _Mold(ctypes.addressof(words))
    mold.kept = words, dtype, message
    return _new_array(mold)
