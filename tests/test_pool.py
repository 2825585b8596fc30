"""The caching allocator: memory comes back only when nothing refers to it, and what is kept is bounded."""

from __future__ import annotations

import gc
import multiprocessing
import random
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tracejit.runtime import pool

LARGE = (1 << 18,)  # float32: 1 MiB


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    gc.collect()
    before = pool.limit()
    pool.trim()
    yield
    pool.set_limit(before)
    pool.trim()


def address(a: np.ndarray) -> int:
    return a.__array_interface__["data"][0]


def test_small_is_numpy_large_is_aligned() -> None:
    start = pool.stats()
    small = pool.empty((10,), "float32")
    assert small.flags.owndata and pool.stats().in_use == start.in_use
    for shape in [(1 << 14,), (100_001,), (3, 70_001), (1 << 20,)]:
        a = pool.empty(shape, "float32")
        assert a.shape == shape and a.dtype == np.float32 and a.flags.c_contiguous and a.flags.writeable
        assert address(a) % 64 == 0
        a[...] = 1
    for n in (0, 1, 63, 1000, 1 << 17):
        assert address(pool.aligned(n)) % 64 == 0 and pool.aligned(n).nbytes == max(n, 1)


def test_memory_comes_back() -> None:
    start = pool.stats()
    a = pool.empty(LARGE, "float32")
    where = address(a)
    assert pool.stats().in_use == start.in_use + pool.size_class(1 << 20)
    del a
    assert pool.stats().in_use == start.in_use and pool.stats().cached >= 1 << 20
    b = pool.empty((1 << 10, 1 << 7), "float64")  # another shape and dtype of the same size
    assert address(b) == where
    assert pool.stats().hits == start.hits + 1 and pool.stats().misses == start.misses + 1


HOLDERS = {
    "view": lambda a: a[5:],
    "reshape": lambda a: a.reshape(2, -1).T[::-1],
    "dtype": lambda a: a.view(np.int32)[::3],
    "subclass": lambda a: a.view(np.matrix),
    "memoryview": memoryview,
    "view of view": lambda a: a[1:][1:].reshape(-1, 2)[:, 0],
    "frombuffer": lambda a: np.frombuffer(a, np.uint8),
    "read only": lambda a: np.broadcast_to(a, (3, *a.shape)),
    "dlpack": np.from_dlpack,
    "base": lambda a: a.base,
    "base of view": lambda a: a[1:].base.base,
    "iterator": lambda a: a.flat,
    "closure": lambda a: (lambda: a),
    "pointer": lambda a: a.ctypes,
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_held_memory_is_never_lent_again(hold: object) -> None:
    a = pool.empty(LARGE, "float32")
    where = address(a)
    held = hold(a)  # type: ignore[operator]
    del a
    others = [pool.empty(LARGE, "float32") for _ in range(3)]
    assert where not in map(address, others)
    del held, others
    gc.collect()


def test_cycles_give_memory_back() -> None:
    class Node:
        pass

    start = pool.stats().in_use
    n = Node()
    n.me, n.array = n, pool.empty(LARGE, "float32")
    gone = weakref.ref(n)
    del n
    gc.collect()
    assert gone() is None and pool.stats().in_use == start


def test_kept_memory_is_bounded() -> None:
    pool.set_limit(4 << 20)
    arrays = [pool.empty(LARGE, "float32") for _ in range(10)]
    newest = [address(a) for a in arrays[-4:]]
    for k in range(10):
        arrays[k] = None  # type: ignore[call-overload]
    assert pool.stats().cached == 4 << 20
    assert {address(a) for a in [pool.empty(LARGE, "float32") for _ in range(4)]} == set(newest)
    pool.set_limit(0)
    assert pool.stats().cached == 0
    with pytest.raises(ValueError, match="set_limit"):
        pool.set_limit(-1)


def test_trim() -> None:
    del_me = [pool.empty(LARGE, "float32") for _ in range(3)]
    del del_me
    assert pool.trim() == 3 << 20 and pool.stats().cached == 0


def test_size_classes_waste_little() -> None:
    for n in [pool.SMALL, pool.SMALL + 1, 100_000, 1 << 20, (1 << 20) + 1, 123_456_789, (1 << 31) + 5]:
        size = pool.size_class(n)
        assert n <= size <= max(n * 1.13, n + 4096) and size % 4096 == 0 and pool.size_class(size) == size


def test_refused_memory_is_a_clear_error() -> None:
    with pytest.raises(MemoryError, match="cannot allocate"):
        pool.empty((1 << 60,), "int8")


def test_threads_never_share() -> None:
    def work(seed: int) -> bool:
        rng = random.Random(seed)
        held: list[tuple[np.ndarray, int]] = []
        for k in range(300):
            if held and rng.random() < 0.5:
                a, mark = held.pop(rng.randrange(len(held)))
                if not (a[::997] == mark).all():
                    return False
            else:
                a = pool.empty((rng.choice([20_000, 30_000, 40_000]),), "int64")
                a[...] = mark = seed * 1000 + k
                held.append((a, mark))
        return all((a == mark).all() for a, mark in held)

    with ThreadPoolExecutor(6) as executor:
        assert all(executor.map(work, range(12)))


def _child(queue: multiprocessing.SimpleQueue, shared: np.ndarray) -> None:
    shared[...] = 2  # the child's own copy
    mine = [pool.empty(LARGE, "float32") for _ in range(4)]
    for a in mine:
        a[...] = 3
    queue.put(bool((shared == 2).all()))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_fork() -> None:
    context = multiprocessing.get_context("fork")
    a = pool.empty(LARGE, "float32")
    a[...] = 1
    kept = pool.empty(LARGE, "float32")
    kept[...] = 1
    del kept
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            pool.empty(LARGE, "float32")

    other = threading.Thread(target=load)
    other.start()
    try:
        queue = context.SimpleQueue()
        for _ in range(5):
            child = context.Process(target=_child, args=(queue, a))
            child.start()
            child.join(20)
            assert child.exitcode == 0 and queue.get()
    finally:
        stop.set()
        other.join()
    assert (a == 1).all()
