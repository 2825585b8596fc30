"""The thread pool: right from many callers at once, after a fork, cheap to launch, free when idle, gone at exit."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from llvmlite import ir

from tracejit import config
from tracejit.runtime import threads
from tracejit.runtime.build import native_module
from tracejit.runtime.native import Code

_launch = ctypes.CFUNCTYPE(None, *[ctypes.c_ssize_t] * 5)(threads.LAUNCH)


def _emit(module: ir.Module) -> None:
    """`touch` adds 1 to each of its items; a chunk done twice or never shows. `note` leaves where its piece ends,
    `sign` who did each item and how many were done by then, after two words of which the first one counts."""
    f = Code(module, "touch", 3, local=False)
    slots, begin, end = f.args
    with f.count(begin, end) as i:
        f.store(slots, i, f.load(slots, i) + 1)
    f.ret()
    f = Code(module, "note", 3, local=False)
    slots, begin, end = f.args
    f.store(slots, begin, end)
    f.ret()
    f = Code(module, "sign", 3, local=False)
    slots, begin, end = f.args
    with f.count(begin, end) as i:
        f.store(slots, 2 * i + 2, f.call_symbol("pthread_self"))
        f.store(slots, 2 * i + 3, f.add_shared(slots, 0, 1))
    f.ret()


_kernels = native_module("test touch", _emit, ("touch", "note", "sign"))
TOUCH, NOTE, SIGN = _kernels["touch"], _kernels["note"], _kernels["sign"]


def touch(counts: np.ndarray, chunk: int) -> None:
    _launch(threads.CELL, TOUCH, counts.ctypes.data, len(counts), chunk)


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = config.num_threads()
    config.set_num_threads(4)
    threads.prepare()
    assert threads.size() == 4
    yield
    config.set_num_threads(before)
    threads.prepare()


@pytest.mark.parametrize("items", [1, 2, 3, 1000, 100_003])
@pytest.mark.parametrize("chunk", [1, 7, 1000, 200_000])
def test_every_item_once(items: int, chunk: int) -> None:
    counts = np.zeros(items, np.int64)
    for _ in range(5):
        touch(counts, chunk)
    assert (counts == 5).all()


def test_two_chunks_wake_nobody_unless_launches_follow_each_other() -> None:
    ends = np.zeros(100, np.int64)

    def pieces() -> list[int]:
        ends[:] = 0
        _launch(threads.CELL, NOTE, ends.ctypes.data, len(ends), 50)
        return ends[ends > 0].tolist()

    time.sleep(0.001)
    assert pieces() == [100]
    assert any(pieces() == [50, 100] for _ in range(1000))


def test_each_thread_begins_with_its_own_chunks() -> None:
    """The caller with the first half, the worker with the second; each goes on with what the other has left."""
    config.set_num_threads(2)
    threads.prepare()
    count, shared = 1000, 0
    for _ in range(1000):
        words = np.zeros((count + 1, 2), np.int64)
        _launch(threads.CELL, SIGN, words.ctypes.data, count, 1)
        who, when = words[1:].T
        done = np.argsort(when)
        mine = who[done] == who[0]
        assert (np.diff(done[mine]) > 0).all()
        others = (done[~mine] - count // 2) % count
        assert (np.diff(others) > 0).all()
        shared += len(others) > 0 and others[0] == 0
    assert shared > 0


def test_many_callers_at_once() -> None:
    def caller(seed: int) -> bool:
        counts = np.zeros(100 + seed, np.int64)
        for _ in range(300):
            touch(counts, 1 + seed % 9)
        return bool((counts == 300).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(caller, range(40)))


def test_nobody_waits_for_a_change_of_size() -> None:
    """A finalizer may launch while its thread, or a worker that ends, is within the change."""
    before = config.num_threads()
    with threads._lock:
        config.set_num_threads(before + 1)
        try:
            thread = threading.Thread(target=threads.prepare, daemon=True)
            thread.start()
            threads.prepare()
            thread.join(20)
            assert not thread.is_alive() and threads.ASKED.value != before + 1
        finally:
            config.set_num_threads(before)


def test_size_changes_while_others_launch() -> None:
    stop = threading.Event()
    wrong = []

    def caller() -> None:
        while not stop.is_set():
            counts = np.zeros(1000, np.int64)
            touch(counts, 10)
            if not (counts == 1).all():
                wrong.append(counts)

    callers = [threading.Thread(target=caller) for _ in range(3)]
    for t in callers:
        t.start()
    for n in [2, 1, 3, 4, 1, 2] * 5:
        config.set_num_threads(n)
        threads.prepare()
        assert threads.size() == n
    stop.set()
    for t in callers:
        t.join()
    assert not wrong


def _in_child(queue: multiprocessing.Queue) -> None:
    counts = np.zeros(1000, np.int64)
    touch(counts, 10)
    threads.prepare()  # as every program does: still serial
    serial = threads.size()
    touch(counts, 10)
    config.set_num_threads(3)
    threads.prepare()
    touch(counts, 10)
    queue.put((bool((counts == 3).all()), serial, threads.size()))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("busy", [False, True])
def test_forked_child(busy: bool) -> None:
    context = multiprocessing.get_context("fork")
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            touch(np.zeros(1000, np.int64), 10)

    other = threading.Thread(target=load)
    if busy:
        other.start()
    try:
        queue = context.SimpleQueue()
        children = [context.Process(target=_in_child, args=(queue,)) for _ in range(3)]
        for c in children:
            c.start()
        for c in children:
            c.join(20)
            assert c.exitcode == 0
            assert queue.get() == (True, 1, 3)
    finally:
        stop.set()
        if busy:
            other.join()
    counts = np.zeros(1000, np.int64)
    touch(counts, 10)
    assert (counts == 1).all()


def test_idle_pool_costs_nothing() -> None:
    touch(np.zeros(1000, np.int64), 1)
    time.sleep(0.01)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.01


def test_launch_is_cheap() -> None:
    config.set_num_threads(2)
    threads.prepare()
    counts = np.zeros(2, np.int64)
    address, took = counts.ctypes.data, []
    for _ in range(2000):
        start = time.perf_counter()
        _launch(threads.CELL, TOUCH, address, 2, 1)
        took.append(time.perf_counter() - start)
    assert statistics.median(took) < 10e-6


_SCRIPT = """
    import multiprocessing, threading, time
    import numpy as np
    from tests.test_threads import config, threads, touch

    def work():
        counts = np.zeros(1000, np.int64)
        for _ in range(200):
            touch(counts, 10)
        assert (counts == 200).all()

    def forever():
        while True:
            touch(np.zeros(1000, np.int64), 10)

    if __name__ == "__main__":
        config.set_num_threads(3)
        threads.prepare()
        work()
        BODY
"""


@pytest.mark.parametrize("body", [
    "print('done')",
    "threading.Thread(target=forever, daemon=True).start(); time.sleep(0.05); print('done')",
    "import atexit; atexit.register(work); print('done')",
    "p = multiprocessing.get_context('spawn').Process(target=work); p.start(); p.join(); print(['done'][p.exitcode])",
    "p = multiprocessing.get_context('fork').Pool(2); p.apply(work); p.close(); p.join(); print('done')",
    "print('done', flush=True); import sys; sys.exit(0)",
], ids=["plain", "daemon", "atexit", "spawn", "fork", "exit"])
def test_interpreter_ends_cleanly(body: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(_SCRIPT).replace("BODY", body))
    for _ in range(3):
        run = subprocess.run([sys.executable, "-W", "ignore", str(path)], capture_output=True, text=True, timeout=60,
                             env={**os.environ, "PYTHONPATH": "."})
        assert (run.returncode, run.stdout.strip(), run.stderr) == (0, "done", "")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_workers_keep_the_affinity_of_the_process() -> None:
    """A worker keeps off its caller's processor while it sleeps, is allowed on all of them when it works, and does not
    undo what somebody else says meanwhile."""
    before, everywhere = config.num_threads(), os.sched_getaffinity(0)
    config.set_num_threads(2)
    threads.prepare()
    try:
        (worker,) = (w.native_id for w in threads._workers)
        assert worker is not None
        items = np.zeros(1000, np.int64)

        def work(times: int) -> set[frozenset[int]]:
            found = set()
            for _ in range(times):
                _launch(threads.CELL, TOUCH, items.ctypes.data, items.size, 10)
                found.add(frozenset(os.sched_getaffinity(worker)))
                time.sleep(2e-4)  # long enough for the workers to sleep
            return found

        found = work(50)
        assert (items == 50).all()
        assert all(allowed <= everywhere and len(everywhere - allowed) <= 1 for allowed in found)
        time.sleep(0.01)  # it sleeps now
        for one in everywhere - os.sched_getaffinity(worker):
            os.sched_setaffinity(worker, {one})
            assert work(50) == {frozenset({one})}
    finally:
        config.set_num_threads(before)
