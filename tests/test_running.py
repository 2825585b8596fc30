"""Running sums, products, extremes and recurrences in kernels: values, accuracy, fusion, gradients, any length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tests.kernel_reference import Sketch, compare
from tracejit.lower.plan import Call, Plan
from tracejit.ops.cumulative import recurrence
from tracejit.runtime import grid
from tracejit.trees import flatten

NAMES = ("cumsum", "cumprod", "cummax", "cummin")
SHAPES = ((1,), (17,), (3, 1), (70, 33), (3, 4, 5), (4, 0), (100, 3))


def plan_of(f: Any, *args: Any) -> Plan:
    return f.lower(*args).plan


def in_kernels(f: Any, *args: Any) -> int:
    """How many kernels a function takes, and no library calls."""
    steps = plan_of(f, *args).steps
    assert not any(isinstance(s, Call) for s in steps)
    return len(steps)


def sample(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    r = np.random.default_rng(len(shape))
    if dtype == "bool":
        return r.random(shape) < 0.5
    if np.dtype(dtype).kind in "fc":
        return r.uniform(0.9, 1.1, shape).astype(dtype) * np.sign(r.uniform(-0.2, 1, shape)).astype(dtype)
    return r.integers(0, 100, shape).astype(dtype)


def backwards(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axis: tj.flip(f(tj.flip(x, axis), axis), axis)


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16", "bool"])
@pytest.mark.parametrize("name", NAMES)
def test_values(name: str, dtype: str) -> None:
    op = getattr(tj, name)
    kind = np.dtype(dtype).kind
    tolerance = {"float32": 2e-5, "float16": 2e-2}.get(dtype, 0)
    for f in (op, backwards(op))[: 2 if dtype == "float32" else 1]:
        compiled = tj.function(lambda x, *, axis, f=f: f(x, axis))
        for shape in SHAPES:
            x = tj.asarray(sample(shape, dtype))
            for axis in range(len(shape)):
                wanted, got = f(x, axis).numpy(), compiled(x, axis=axis).numpy()
                assert got.dtype == wanted.dtype and got.shape == wanted.shape
                np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * 10 if kind in "fc" else 0)


@pytest.mark.parametrize("vector", ["inner", "outer"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "float16"])
def test_kernels_by_hand(dtype: str, vector: str) -> None:
    for rows, row in ((1, 1), (5, 33), (70, 4)):
        s = Sketch((rows, row), 1, vector)
        strides = (row, 1) if vector == "inner" else (1, rows)
        x, y = s.read(dtype, strides), s.read(dtype, strides)
        one = s.b.emit("running", x.dtype, (x + y,), ("max",))
        two = s.b.emit("running", x.dtype, (x, y), ("recurrence",))
        total = s.b.emit("running", x.dtype, (one,), ("add",))
        s.accumulate(stores=[s.write(v, strides) for v in (one, two, total)])
        rough = {"float32": 1e-4, "float64": 1e-10, "float16": 0.2}.get(dtype, 0)
        compare(s, rtol=rough, atol=rough)


def test_what_is_around_goes_into_the_same_kernel() -> None:
    x = tj.asarray(sample((50, 60), "float64"))
    f = tj.function(lambda x: tj.cumsum(tj.exp(x) * 2, 1) / x + tj.cummax(x, 1))
    np.testing.assert_allclose(f(x).numpy(), f.eager(x).numpy(), rtol=1e-12)
    assert in_kernels(f, x) == 1
    g = tj.function(lambda x: tj.cumsum(tj.softmax(x, axis=1), 1))
    np.testing.assert_allclose(g(x).numpy(), g.eager(x).numpy(), rtol=1e-12)
    assert in_kernels(g, x) == 1
    h = tj.function(lambda x: (tj.cumsum(x, 1), x.sum(1), x * 3, tj.argmax(x, axis=1), tj.cumsum(x, 0)))
    for a, b in zip(h(x), h.eager(x), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)
    assert in_kernels(h, x) <= 3


def test_reductions_of_what_runs_and_runs_of_what_is_reduced() -> None:
    x = tj.asarray(sample((50, 60), "float64"))
    for axis in (0, 1):
        def f(x: Any, axis: int = axis) -> Any:
            up, down = tj.cumsum(x, axis), backwards(tj.cumsum)(x, axis)
            low = x - x.max(axis, keepdims=True)
            return up.sum(axis), tj.cumsum(low, axis), down / up, down * tj.argmin(x, axis=axis, keepdims=True)

        for a, b in zip(tj.function(f)(x), f(x), strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-11)


def test_a_zero_stays_whatever_the_factor() -> None:
    a = np.array([[1.0, np.inf, 2.0, np.nan, 3.0, 1.0]] * 2)
    b = np.array([[0.0, 0.0, 1.0, -2.0, 5.0, 0.5], [0.0] * 6])
    for axis, (x, y) in enumerate(((a.T, b.T), (a, b))):

        def both(x: Any, y: Any) -> Any:
            return recurrence(x, y, axis), recurrence(x, y, axis, reverse=True)  # noqa: B023

        f, args = tj.function(both), (tj.asarray(x.copy()), tj.asarray(y.copy()))
        for got, wanted in zip(f(*args), both(*args), strict=True):
            np.testing.assert_array_equal(got.numpy(), wanted.numpy())
        assert in_kernels(f, *args) == 2


@pytest.mark.parametrize("n", [1 << 17, 100_003])
def test_long_rows_go_in_blocks(n: int) -> None:
    """More exact than one after the other, whole numbers exact, the same bits on one thread."""
    x = np.random.default_rng(0).standard_normal(n).astype("float32")
    true = np.cumsum(x.astype("float64"))
    f = tj.function(lambda x: tj.cumsum(x))
    got = f(tj.asarray(x)).numpy()
    assert in_kernels(f, tj.asarray(x)) >= 3
    assert np.abs(got - true).max() <= np.abs(np.cumsum(x) - true).max()
    threads = tj.config.num_threads()
    try:
        tj.config.set_num_threads(1)
        np.testing.assert_array_equal(f(tj.asarray(x)).numpy(), got)
    finally:
        tj.config.set_num_threads(threads)
    whole = (x * 1000).astype("int64")
    for op in (tj.cumsum, tj.cummax, tj.cummin):
        for g in (lambda x, op=op: op(x, 0), lambda x, op=op: backwards(op)(x, 0)):
            np.testing.assert_array_equal(tj.function(g)(tj.asarray(whole)).numpy(), g(tj.asarray(whole)).numpy())


@pytest.mark.parametrize("shape", [(5, 17), (1000,), (3, 20, 4), (7, 3)])
@pytest.mark.parametrize("special", [None, np.inf, -np.inf, np.nan])
def test_logcumsumexp(shape: tuple[int, ...], special: float | None) -> None:
    x = np.random.default_rng(0).standard_normal(shape) * 5
    if special is not None:
        x.flat[0], x.flat[3] = -np.inf, special
    for axis in range(len(shape)):
        f = tj.function(lambda x, axis=axis: tj.logcumsumexp(x, axis))
        wanted = np.logaddexp.accumulate(x, axis)
        np.testing.assert_allclose(f(tj.asarray(x)).numpy(), wanted, rtol=1e-12, atol=1e-12)
        assert in_kernels(f, tj.asarray(x)) <= 2


@pytest.mark.parametrize("name", [*NAMES, "logcumsumexp"])
def test_gradients(name: str) -> None:
    for shape, axis in (((4, 20), 1), ((20, 4), 0), ((6, 3), 1)):
        x = tj.asarray(sample(shape, "float64"))
        g = tj.grad(lambda x, axis=axis: tj.sin(getattr(tj, name)(x, axis) * 3).sum())
        compiled = tj.function(g)
        np.testing.assert_allclose(compiled(x).numpy(), g(x).numpy(), rtol=1e-9, atol=1e-9)
        in_kernels(compiled, x)


def test_reversed_rows_are_read_and_written_as_vectors() -> None:
    for f in (lambda x: x[:, ::-1], lambda x: tj.flip(x, 1) == x, lambda x: tj.pad(x[:, ::-1], ((0, 0), (1, 2))),
              lambda x: tj.concat([x[:, ::-1], x], 1)[:, ::-1]):
        compiled = tj.function(f)
        for dtype in ("float32", "int8", "bool"):
            for n in (3, 16, 100):
                x = tj.asarray(sample((5, n), dtype))
                np.testing.assert_array_equal(compiled(x).numpy(), f(x).numpy())
    x = tj.asarray(sample((5, 100), "float32"))
    (launch,) = plan_of(tj.function(lambda x: x[:, ::-1] * 2), x).launches
    assert launch.kernel.reads[0].strides[-1] == "-1"


def test_bits_of_a_row_do_not_depend_on_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that bypass the cache, of which each begins elsewhere in a cache line, sum as any other."""
    monkeypatch.setattr(grid, "last_level_cache", lambda: 0)
    row = np.random.default_rng(0).standard_normal(133).astype("float32")
    x = np.tile(row, (40, 1))
    for f in (lambda x: tj.cumsum(x, axis=1) * 2, lambda x: (x * 3, (x * x).sum(1), x.std(1))):
        for found in flatten(tj.function(f)(x))[0]:
            assert {r.tobytes() for r in np.asarray(found)} == {np.asarray(found[0]).tobytes()}


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_short_rows_share_vectors(dtype: str) -> None:
    """Rows that fill vectors, that leave lanes over, and that need two; what begins inside a vector; from both ends."""
    def forth_and_back(x: Any) -> Any:
        return tj.cumsum(x, 1) * 2, tj.flip(tj.cummax(tj.flip(x, 1), 1), 1)

    f = tj.function(forth_and_back)
    for n in (5, 7, 8, 16, 17, 64):
        whole = np.random.default_rng(n).integers(-4, 5, (1001, n)).astype(dtype)
        for x in (whole, whole[1:], whole[:3], whole[:, : n - 1]):
            sums, tops = f(tj.asarray(x))
            np.testing.assert_array_equal(sums.numpy(), np.cumsum(x, 1) * 2)
            np.testing.assert_array_equal(tops.numpy(), np.maximum.accumulate(x[:, ::-1], 1)[:, ::-1])


@pytest.mark.parametrize("change", [
    lambda y: y.at[-3:].add(1),
    lambda y: y.at[500:700].multiply(2),
    lambda y: tj.where(tj.arange(1000) < 500, y, tj.pad(y[3:] * 2, ((3, 0),))),
    lambda y: tj.concat([y[:400], y[400:] + 1]),
])
@pytest.mark.parametrize("run", [tj.cumsum, tj.cummax, lambda a: -tj.cummax(a) - 1])
def test_parts_of_what_runs(run: Any, change: Any) -> None:
    """What runs needs all before it, though only some of it is changed."""
    def f(a: Any) -> Any:
        return change(run(a))

    a = tj.asarray((np.arange(1000) * 37 % 100 - 99).astype("int32"))
    np.testing.assert_array_equal(tj.function(f)(a).numpy(), f(a).numpy())
