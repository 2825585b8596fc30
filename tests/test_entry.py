"""The native way into a program: it runs just the calls it was made for, and keeps nothing of them."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest

import tracejit as tj
from tracejit.runtime import pool


def warm(f: Any, *args: Any) -> Any:
    """Call `f` until calls go the native way: none of them comes through Python any more."""
    for _ in range(3):
        result = f(*args)
    (s,) = f.specializations()
    before = s.ran
    result = f(*args)
    assert s.entry is not None and s.ran == before and s.calls == s.ran + s.entry.calls
    return result


def x(*shape: int, dtype: str = "float32") -> tj.Tensor:
    return tj.asarray(np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape).astype(dtype))


def test_other_arguments_miss() -> None:
    f = tj.function(lambda a, b: a * 2 + b)
    warm(f, x(3, 4), x(3, 4))
    m = np.arange(12, dtype="float32").reshape(4, 3)
    others = [
        (x(4, 3), x(4, 3)), (x(12), x(12)), (x(3, 4), x(4)), (x(3, 4, dtype="float64"), x(3, 4, dtype="float64")),
        (x(3, 4, dtype="int32"), x(3, 4)), (m.T, m.T), (m.T.copy(), x(3, 4)), (x(3, 4), 1.5), (2, 3), (x(), x()),
        (x(0, 4), x(0, 4)), (m[:0], m[:0]), (m.astype(">f4").T, m.T), (np.float32(3), x(3, 4)),
    ]  # fmt: skip
    for a, b in others:
        want = np.asarray(a) * 2 + np.asarray(b)
        for _ in range(3):
            np.testing.assert_array_equal(np.asarray(f(a, b)), want)
            np.testing.assert_array_equal(np.asarray(f(a, b=b)), want)
        np.testing.assert_array_equal(f(x(3, 4), x(3, 4)).numpy(), np.asarray(x(3, 4)) * 3)
    for wrong in [(), (x(3, 4),), (x(3, 4),) * 3, ("a", x(3, 4)), (None, x(3, 4))]:
        with pytest.raises(TypeError):
            f(*wrong)


def test_layouts_of_arrays() -> None:
    f = tj.function(lambda a: a + 1)
    base = np.arange(24, dtype="float64").reshape(4, 6)
    for a in (base, base.T, base[::2], base[:, ::-1], np.broadcast_to(base[0], (4, 6))):
        for _ in range(4):
            np.testing.assert_array_equal(f(a).numpy(), a + 1)
    raw = np.zeros(24 * 8 + 1, np.uint8)[1:].view("float64").reshape(4, 6)  # not aligned
    for _ in range(4):
        np.testing.assert_array_equal(f(raw).numpy(), raw + 1)


class Pair(NamedTuple):
    first: Any
    second: Any


def test_shapes_of_results() -> None:
    two = tj.function(lambda a: (a + 1, a.sum()))
    got = warm(two, x(5))
    assert type(got) is tuple and [float(g.sum()) for g in got] == [20.0, 15.0]
    one = tj.function(lambda a: (a + 1,))
    assert type(warm(one, x(5))) is tuple and len(one(x(5))) == 1
    same = tj.function(lambda a: (lambda b: (b, b))(a * 2))
    first, second = warm(same, x(5))
    first += 1
    np.testing.assert_array_equal(second.numpy(), x(5).numpy() * 2)
    for make in (Pair, lambda a, b: [a, b], lambda a, b: {"a": a, "b": (b,)}, lambda a, b: ((a, b),)):
        f = tj.function(lambda a, make=make: make(a + 1, a * 2))
        want = f.eager(x(5))
        for _ in range(4):
            assert repr(f(x(5))) == repr(want) and type(f(x(5))) is type(want)


def test_nothing_is_kept() -> None:
    f = tj.function(lambda a, b: (a * b, (a + b).sum()))
    a, b = x(1000, 200), x(1000, 200)
    warm(f, a, b)
    small = x(2), x(2)

    def counts() -> list[int]:
        gc.collect()
        objects = (a, b, a._value, b._value, a._value.dtype, small[0], small[0]._value, tj.Tensor, np.ndarray, None)
        return [sys.getrefcount(v) for v in objects]

    def work(n: int) -> None:
        for _ in range(n):
            f(a, b)
            f(*small)

    work(5)
    before, start = counts(), pool.stats().in_use
    work(300)
    assert all(abs(n - m) < 50 for n, m in zip(before, counts(), strict=True))
    assert pool.stats().in_use == start
    result = f(a, b)[0]
    gone = weakref.ref(result._value)
    del result
    assert gone() is None
    program = weakref.ref(f.specializations()[0].program)
    f.cache_clear()
    gc.collect()
    assert program() is None


def test_values_from_outside() -> None:
    scale, weights, names = tj.Variable(tj.ones(4) * 2), x(4), {"shift": x(4)}
    f = tj.function(lambda a: a * scale + weights + names["shift"])

    def check() -> None:
        for _ in range(4):
            want = x(4).numpy() * scale.numpy() + weights.numpy() + names["shift"].numpy()
            np.testing.assert_array_equal(f(x(4)).numpy(), want)

    check()
    scale.assign(tj.ones(4) * 5)
    check()
    weights[1] = 70
    check()
    names["shift"] = x(4) * 3
    check()
    names["shift"] = x(1)
    check()


def test_switches_are_seen() -> None:
    f = tj.function(lambda a: a + tj.asarray(0.5))
    warm(f, x(4))
    tj.set_default_dtype("float64")
    try:
        assert f(x(4)).dtype == np.float64
    finally:
        tj.set_default_dtype("float32")
    assert f(x(4)).dtype == np.float32
    threads = tj.num_threads()
    big = tj.function(lambda a: (a * a).sum(1))
    want = warm(big, x(512, 512)).numpy()
    try:
        for n in (1, 3, 2, 1):
            tj.set_num_threads(n)
            np.testing.assert_array_equal(big(x(512, 512)).numpy(), want)
    finally:
        tj.set_num_threads(threads)
    with tj.GradientTape() as tape:
        a = x(4)
        tape.watch(a)
        y = (f(a) ** 2).sum()
    assert float(tape.gradient(y, a)[0]) == 3.0


def test_failures_leave_it_whole() -> None:
    f = tj.function(lambda a, i: (a[i] * 2, a.sum()))
    a, good, bad = x(9), tj.asarray(np.array([1, 8])), tj.asarray(np.array([1, 9]))
    warm(f, a, good)
    count = sys.getrefcount(a._value)
    for _ in range(50):
        with pytest.raises(IndexError, match="9"):
            f(a, bad)
        np.testing.assert_array_equal(f(a, good)[0].numpy(), [4, 18])
    assert abs(sys.getrefcount(a._value) - count) < 3
    with pytest.raises(MemoryError, match="cannot allocate"):
        pool.maker((1 << 58,), np.dtype("int8"))()


def test_refused_memory_costs_no_frames() -> None:
    f = tj.function(lambda a: (a + 1, a[:, None] + a))
    a = tj.asarray(np.zeros(1 << 25, np.int8))
    for _ in range(12):  # the second result would have 2**50 bytes
        with pytest.raises(MemoryError, match="cannot allocate"):
            f(a)
    (s,) = f.specializations()
    assert s.entry is not None and s.entry.calls > 5
    (frames,) = [m.__self__ for m in s.entry.kept if getattr(m, "__name__", "") == "new"]
    assert len(frames.kept) == 1


def test_long_runs_pause() -> None:
    @tj.function
    def count(n: Any) -> Any:
        k = n * 0
        while k < n:
            k = k + 1
        return k

    n = tj.asarray(np.int64(3_000_000))
    for _ in range(4):
        assert int(count(n)) == 3_000_000


def test_many_threads() -> None:
    f = tj.function(lambda a, b: (tj.exp(a) * b, a.sum()))
    cases = [(x(300, 300) / k, x(300, 300)) for k in range(90_000, 90_008)]
    wanted = [[v.numpy() for v in f(*c)] for c in cases]
    warm(f, *cases[0])

    def work(k: int) -> bool:
        return all(
            np.array_equal(g.numpy(), w) for _ in range(20) for g, w in zip(f(*cases[k]), wanted[k], strict=True)
        )

    with ThreadPoolExecutor(8) as executor:
        assert all(executor.map(work, [*range(8)] * 2))


def test_arrays_may_outlive_everything() -> None:
    code = """
import builtins, gc, sys
import numpy as np, tracejit as tj
f = tj.function(lambda a: (a * 2, a.sum()))
made = [f(tj.ones((300, 300))) for _ in range(6)]
made[0][0]._value.setflags(write=False)
class Late: pass
late = Late()
late.me, late.made = late, made
builtins.late, sys.late, np.late = made[1:3], made[3], [f, made[4]]
gc.disable()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
