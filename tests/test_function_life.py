"""The decorator and its surroundings: pickling, threads, memory, time."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import timeit
import tracemalloc
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from calls import same, x

import tracejit as tj
from tracejit.function import MAX_KEYS


@tj.function
def module_level(a):
    return a * 2 + 1


# -- pickling
def test_pickle_by_reference() -> None:
    g = pickle.loads(pickle.dumps(module_level))
    assert g is module_level
    assert copy.deepcopy(module_level) is module_level
    same(g(x()), [3, 5, 7])


under_another_name = tj.function(lambda a: a * 3, name="thrice")


def test_pickle_a_lambda_of_a_module() -> None:
    assert pickle.loads(pickle.dumps(under_another_name)) is under_another_name


def test_pickle_in_another_process() -> None:
    code = (
        f"import pickle, sys; sys.path[:0] = {sys.path!r}\nimport numpy as np, tracejit as tj\n"
        f"f = pickle.loads({pickle.dumps(module_level)!r})\nprint(f(tj.ones(2)).numpy().tolist())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert out.stdout.strip() == "[3.0, 3.0]"


def test_cloudpickle_a_closure() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    k = 4.0
    f = tj.function(lambda a: a * k, fastmath=True, name="closure")
    f(x())
    g = pickle.loads(cloudpickle.dumps(f))
    assert g is not f and g.name == "closure" and g.options.fastmath and g.trace_count == 0
    same(g(x()), [4, 8, 12])


def test_a_local_function_cannot_be_pickled_plainly() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(tj.function(lambda a: a))


# -- threads
def test_concurrent_first_calls_trace_once() -> None:
    traces: list[int] = []
    start = threading.Barrier(8)

    @tj.function
    def f(a):
        traces.append(1)
        return (a * 2).sum()

    def call(_: int) -> float:
        start.wait()
        return float(f(tj.ones(1000)))

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(call, range(8))) == {2000.0}
    assert traces == [1] and f.trace_count == 1


def test_many_threads_many_functions() -> None:
    a = np.ones(20_000)
    functions = [tj.function(lambda v, k=k: (v * k).sum()) for k in range(4)]
    jobs = [(k, n) for k in range(4) for n in range(40)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda j: float(functions[j[0]](a)), jobs))
    assert found == [20_000.0 * k for k, _ in jobs]


def test_threads_trace_apart() -> None:
    """One thread's trace does not see another thread's eager work, or its Variables halfway."""
    v = tj.Variable(0.0)
    inside, leave = threading.Event(), threading.Event()

    @tj.function
    def slow(a):
        v.assign_add(a)
        inside.set()
        leave.wait(10)
        return v * 1

    @tj.function
    def other(a):
        return a + v

    assert float(other(1.0)) == 1.0
    thread = threading.Thread(target=slow, args=(5.0,))
    thread.start()
    inside.wait(10)
    assert float((tj.ones(3) + 1).sum()) == 6.0
    threading.Timer(0.2, leave.set).start()
    assert float(other(1.0)) in (1.0, 6.0)  # waits for the trace
    thread.join()
    assert float(v) == 5.0


# -- memory and time
def test_dropped_functions_are_freed() -> None:
    refs = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(20):
            f = tj.function(lambda a: a * 2 + 1)
            f(x())
            refs.append(weakref.ref(f))
    del f
    gc.collect()
    assert sum(r() is not None for r in refs) == 0


def _resident() -> int:
    """Bytes of memory this process holds."""
    gc.collect()
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


def _flat(run: Any, warm: int, n: int) -> None:
    """Memory after a third of `n` runs and after all of them differs by little."""
    for k in range(warm + n // 3):
        run(k)
    before = _resident()
    for k in range(warm + n // 3, warm + n):
        run(k)
    assert _resident() - before < 16 << 20


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_flat_over_new_sizes() -> None:
    f = tj.function(lambda a: (a * 2 + 1).sum())
    _flat(lambda k: f(tj.ones(k % 50 + k)), MAX_KEYS, 10_000)
    assert f.cache_info().size == MAX_KEYS


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_flat_over_dropped_functions() -> None:
    _flat(lambda k: tj.function(lambda a: (a * 2 + 1).sum())(x()), 10, 1000)


@pytest.mark.filterwarnings("ignore")
def test_python_memory_stays_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, a shorter run with a smaller cache, to the byte: nothing of a trace stays behind once it has left the
    cache."""
    monkeypatch.setattr(sys.modules["tracejit.function"], "MAX_KEYS", 16)
    f = tj.function(lambda a: (a * 2 + 1).sum())
    sizes = []
    tracemalloc.start()
    for _ in range(3):
        for _ in range(80):
            f(tj.ones(f.trace_count + 1))
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[2] - sizes[1] < 100_000, sizes


def test_a_warm_call_is_cheap() -> None:
    a, b = tj.ones(10), tj.ones(10)
    f = tj.function(lambda a, b: a * b + 2)
    f(a, b)
    best = min(timeit.repeat(lambda: f(a, b), number=1000, repeat=10)) / 1000
    assert best < 15e-6  # 1 to 2 on an idle machine


def test_tracing_is_nearly_linear() -> None:
    def chain(n: int) -> Any:
        def f(a):
            for k in range(n):
                a = a * 1.5 + k
            return a

        return tj.function(f)

    def seconds(n: int) -> float:
        g = chain(n)
        return min(timeit.repeat(lambda: g.trace(x()), number=1, repeat=3))

    assert seconds(1200) < 12 * seconds(200) + 0.05


class Counter:
    k = 3.0

    @tj.function
    def run(self, a):
        return a * self.k


def test_pickle_a_method() -> None:
    c = Counter()
    c.k = 5.0
    run = pickle.loads(pickle.dumps(c.run))
    same(run(x()), [5, 10, 15])
    assert run.__self__ is not c and c.run == c.run and hash(c.run) == hash(c.run)
