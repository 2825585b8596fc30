"""Many threads, mixed sizes, changing thread counts, forked children and a trimmed allocator at once: never a wrong
bit, and no growth."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit import config
from tracejit.locks import once


@tj.function
def elementwise(x: Any, y: Any) -> Any:
    return tj.exp(-x * x) * y + tj.sin(y) / (x * x + 1.5)


@tj.function
def softmax(x: Any) -> Any:
    e = tj.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@tj.function
def sums(x: Any) -> Any:
    return x.sum(), x.sum(0), (x * x).mean(-1), x.std(), tj.cumsum(x, axis=-1)[:, -1]


@tj.function
def layer(x: Any, w: Any) -> Any:
    return tj.tanh(x @ w + 0.5).sum(0), x.T @ x


@tj.function
def scanned(x: Any) -> Any:
    return tj.fori_loop(0, 7, lambda i, h: h * 0.9 + tj.roll(h, 1, 0) * 0.1, x)


@tj.function
def gradient(x: Any, w: Any) -> Any:
    return tj.grad(lambda w: (tj.relu(x @ w) ** 2).sum())(w)


@tj.function
def recurrent(x: Any, w: Any) -> Any:
    """Rows go their own ways in both directions, so many of them in slices."""
    def loss(w: Any) -> Any:
        start, u = tj.tanh(x @ w), tj.tanh(w.T @ w)
        return tj.fori_loop(0, 9, lambda _, h: tj.tanh(h @ u + start), start).sum()

    return tj.value_and_grad(loss)(w)


@tj.function
def selected(x: Any) -> Any:
    order = tj.argsort(x[:, 0])
    return tj.take(x, order, axis=0), tj.max(x, axis=1)


SIZES = [(1, 1), (3, 17), (64, 64), (257, 129), (1000, 300), (70_000, 4)]

pytestmark = pytest.mark.usefixtures("threads_as_before")


def arrays(shape: tuple[int, int], seed: int) -> tuple[tj.Tensor, tj.Tensor, tj.Tensor]:
    rng = np.random.default_rng(seed)
    x, y = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    return tj.asarray(x), tj.asarray(y), tj.asarray(rng.standard_normal((shape[1], 24)).astype(np.float32))


class Job:
    """A call, and the bits it gives with one thread."""

    def __init__(self, f: Callable[..., Any], args: tuple[Any, ...]):
        self.f, self.args = f, args
        self.want = self.bits()

    def bits(self) -> list[bytes]:
        found = self.f(*self.args)
        return [t.numpy().tobytes() for t in (found if isinstance(found, tuple) else (found,))]

    def wrong(self) -> bool:
        return self.bits() != self.want

    def __repr__(self) -> str:
        return f"{self.f.name}({', '.join(str(a.shape) for a in self.args)})"


@pytest.fixture(scope="module")
def jobs() -> list[Job]:
    before = config.num_threads()
    config.set_num_threads(1)
    found = []
    for k, shape in enumerate(SIZES):
        x, y, w = arrays(shape, k)
        found += [Job(elementwise, (x, y)), Job(softmax, (x,)), Job(sums, (x,)), Job(layer, (x, w)),
                  Job(scanned, (x,)), Job(gradient, (x, w)), Job(recurrent, (x, w)), Job(selected, (x,))]
    config.set_num_threads(before)
    return found


def resident() -> int:
    """Bytes of memory this process has in RAM."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _child(jobs: list[Job], seed: int, queue: Any) -> None:
    """A forked child: serial at first, then with threads of its own."""
    rng = random.Random(seed)
    wrong = [repr(job) for job in rng.sample(jobs, 12) if job.wrong()]
    tj.trim_memory()
    config.set_num_threads(3)
    wrong += [repr(job) for job in rng.sample(jobs, 12) if job.wrong()]
    queue.put(wrong)


def processor_seconds(pid: int) -> float:
    """What a process has used, of all its threads."""
    with open(f"/proc/{pid}/stat") as f:
        return sum(map(int, f.read().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def finish(child: Any) -> None:
    """Wait for a child as long as it gets on, however busy the machine is, then require that it ended well."""
    used, since = 0.0, time.monotonic()
    while child.exitcode is None and time.monotonic() - since < 60 and used < 60:  # neither stands still nor spins
        child.join(1)
        if os.path.exists(f"/proc/{child.pid}/stat") and (now := processor_seconds(child.pid)) > used:
            used, since = now, time.monotonic()
    if child.exitcode is None:
        os.kill(child.pid, signal.SIGABRT)  # faulthandler says where it is
        child.join(5)
        child.kill()
        raise AssertionError(f"a forked child does not end; it used {used} s")
    assert child.exitcode == 0, f"a forked child ended with {child.exitcode}"


def stress(jobs: list[Job], seconds: float, callers: int = 6) -> None:
    """Run jobs from many threads; meanwhile change the thread count, trim, drop traces, fork."""
    stop = time.monotonic() + seconds
    wrong: list[str] = []
    counts = [0] * callers

    def caller(k: int) -> None:
        rng = random.Random(k)
        try:
            while time.monotonic() < stop and not wrong:
                job = rng.choice(jobs)
                if job.wrong():
                    wrong.append(repr(job))
                counts[k] += 1
        except BaseException as error:
            wrong.append(f"{type(error).__name__}: {error}")

    running = [threading.Thread(target=caller, args=(k,)) for k in range(callers)]
    for t in running:
        t.start()
    context, rng, turn = multiprocessing.get_context("fork"), random.Random(0), 0
    try:
        while time.monotonic() < stop and not wrong:
            turn += 1
            config.set_num_threads(rng.choice([1, 2, 3, 5]))
            if turn % 3 == 0:
                tj.trim_memory()
            if turn % 17 == 0:
                rng.choice(jobs).f.cache_clear()
            if turn % 8 == 0:
                queue = context.SimpleQueue()
                child = context.Process(target=_child, args=(jobs, turn, queue))
                child.start()
                finish(child)
                wrong += queue.get()
            time.sleep(0.02)
    finally:
        stop = 0.0
        for t in running:
            t.join()
    assert not wrong, f"other bits than in a serial run: {wrong}"
    assert min(counts) > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_no_wrong_bit(jobs: list[Job]) -> None:
    stress(jobs, 4.0)
    assert [job for job in jobs if job.wrong()] == []


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc here")
def test_no_growth(jobs: list[Job]) -> None:
    """Calls from several threads leave nothing behind: neither lent memory nor resident bytes."""
    def calls(seed: int, n: int) -> None:
        rng = random.Random(seed)
        for _ in range(n):
            job = rng.choice(jobs)
            job.f(*job.args)

    def around(n: int) -> None:
        running = [threading.Thread(target=calls, args=(k, n)) for k in range(4)]
        for t in running:
            t.start()
        for t in running:
            t.join()
        gc.collect()
        tj.trim_memory()

    config.set_num_threads(2)
    around(150)
    lent, start = tj.stats().memory.in_use, resident()
    for _ in range(4):
        around(100)
    assert tj.stats().memory.in_use <= lent + (4 << 20)  # frames of calls at once are kept
    assert resident() - start < 16 << 20


def _new_function(queue: Any, known: Any, holding: Any) -> None:
    fresh = tj.function(lambda x: tj.cos(x) * 1.25 + float(np.pi))  # to be traced and compiled here
    finite, drawn = bool(np.isfinite(float(fresh(0.5)))), float(tj.random.uniform(())) < 1
    queue.put((float(known(2.0)), float(holding(3)), finite, drawn))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_traces_what_its_parent_was_tracing() -> None:
    """Locks that other threads held at the fork are free in the child, and what they guard is whole."""
    known, stop = tj.function(lambda x: x * x), threading.Event()
    known(2.0)
    holding = tj.function(lambda n: (time.sleep(0.003), tj.ones(n).sum())[1], static_argnames="n")
    failed: list[BaseException] = []

    def traces() -> None:
        try:
            while not stop.is_set():
                holding.cache_clear()
                holding(3)
        except BaseException as error:
            failed.append(error)

    running = [threading.Thread(target=traces) for _ in range(3)]
    for t in running:
        t.start()
    context = multiprocessing.get_context("fork")
    try:
        for _ in range(8):
            queue = context.SimpleQueue()
            child = context.Process(target=_new_function, args=(queue, known, holding))
            child.start()
            finish(child)
            assert queue.get() == (4.0, 3.0, True, True)
    finally:
        stop.set()
        for t in running:
            t.join()
    assert not failed


class Slow:
    """What takes a while to know, as the text of a kernel does."""

    @once
    def text(self) -> str:
        time.sleep(0.2)
        return "text"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_computes_what_its_parent_was_computing() -> None:
    slow = Slow()
    running = threading.Thread(target=lambda: slow.text)
    running.start()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=lambda: queue.put((slow.text, Slow().text)))
    child.start()
    finish(child)
    running.join()
    assert queue.get() == ("text", "text") and slow.__dict__ == {"text": "text"}


@pytest.mark.fuzz
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_no_wrong_bit_for_long(jobs: list[Job]) -> None:
    stress(jobs, 10.0, callers=12)
    gc.collect()
    tj.trim_memory()
    lent, start = tj.stats().memory.in_use, resident()
    stress(jobs, 90.0, callers=12)
    gc.collect()
    tj.trim_memory()
    assert tj.stats().memory.in_use <= lent + (8 << 20)
    assert resident() - start < 64 << 20
