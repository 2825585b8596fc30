"""Matrix products: values of every shape class, cuts, threads, and kernels that run on their panels."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from plan_samples import buffer, plan, program, strides

import tracejit as tj
from tracejit import config
from tracejit.lower import buffers
from tracejit.lower.epilogue import PANEL, PANEL_BYTES, SHARED
from tracejit.lower.kernel import View
from tracejit.lower.plan import Gemm, Plan
from tracejit.runtime import gemm, gemm_code, gemm_few, gemm_tiny, gemm_windows
from tracejit.runtime.gemm_code import tiles


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = config.num_threads()
    yield
    config.set_num_threads(before)


def random(*shape: int, dtype: object = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)  # type: ignore[call-overload]


def product(batch: tuple[int, ...], m: int, n: int, k: int, a: View, b: View, shapes: list[tuple[int, ...]],
            dtype: object = "float32", rows: tuple[int, ...] = (),
            inner: tuple[int, ...] = ()) -> Callable[[list[np.ndarray]], np.ndarray]:
    kind: np.dtype = np.dtype(dtype)  # type: ignore[call-overload]
    found = [*(buffer("input", *s, dtype=kind) for s in shapes), buffer("output", *batch, m, n, dtype=kind)]
    step = Gemm(kind, batch, m, n, k, a, b, View(2, 0, strides((*batch, m, n))), rows=rows, inner=inner)
    run = program(plan(found, [step]))

    def call(arrays: list[np.ndarray]) -> np.ndarray:
        target = np.full((*batch, m, n), np.nan if kind.kind == "f" else -1, kind)  # what was there must not matter
        return run(arrays, into={0: target})[0]

    return call


def compare(got: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Within the bound of a sum in any order; integers exactly."""
    if got.dtype.kind == "i":
        np.testing.assert_array_equal(got, a @ b)
        return
    wide = [x.astype("float64") for x in (a, b)]
    bound = (a.shape[-1] + 1) * np.finfo(got.dtype).eps * (np.abs(wide[0]) @ np.abs(wide[1]))
    assert got.dtype == a.dtype
    np.testing.assert_array_less(np.abs(got - wide[0] @ wide[1]), bound + 1e-30)


SIZES = [(1, 1, 1), (2, 3, 4), (5, 7, 3), (12, 32, 16), (13, 33, 17), (11, 31, 15), (23, 48, 64), (64, 65, 66),
         (4, 4, 4), (100, 70, 700), (3, 50, 0), (0, 4, 5), (4, 0, 5), (1, 70, 40), (70, 1, 40), (300, 3, 3),
         (7, 500, 321), (300, 200, 100), (1000, 10, 128), (10, 1000, 640), (128, 1024, 300)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
@pytest.mark.parametrize("m,n,k", SIZES)
def test_values(m: int, n: int, k: int, orders: str, dtype: str) -> None:
    a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype, seed=1)
    a, b = np.array(a, order=orders[0]), np.array(b, order=orders[1])  # type: ignore[call-overload]
    layout = {"C": lambda r, c: (c, 1), "F": lambda r, c: (1, r)}
    views = View(0, 0, layout[orders[0]](m, k)), View(1, 0, layout[orders[1]](k, n))
    run = product((), m, n, k, *views, [(m, k), (k, n)], dtype)
    got = run([a, b])
    compare(got, a, b)
    config.set_num_threads(1)
    np.testing.assert_array_equal(run([a, b]), got)


def test_large_operands_are_packed() -> None:
    """b beyond `LARGE`, in both orders."""
    a, b = random(300, 700), random(700, 500, seed=1)
    assert b.nbytes > gemm.LARGE
    for order, walk in (("C", (500, 1)), ("F", (1, 700))):
        run = product((), 300, 500, 700, View(0, 0, (700, 1)), View(1, 0, walk), [(300, 700), (700, 500)])
        compare(run([a, np.array(b, order=order)]), a, b)  # type: ignore[call-overload]


@pytest.mark.parametrize("m,n,k", [(50, 1300, 1700), (70, 150, 15000), (50, 70001, 30)])
@pytest.mark.parametrize("order", ["CC", "FF"])
def test_an_operand_beyond_the_caches_is_used_in_parts(m: int, n: int, k: int, order: str) -> None:
    a, b = np.asarray(random(m, k), order=order[0]), np.asarray(random(k, n, seed=1), order=order[1])  # type: ignore
    layout = {"C": lambda r, c: (c, 1), "F": lambda r, c: (1, r)}
    views = View(0, 0, layout[order[0]](m, k)), View(1, 0, layout[order[1]](k, n))
    t = tiles(a.dtype)
    assert b.nbytes > SHARED and gemm.cut(Gemm(a.dtype, (), m, n, k, *views, View(2, 0, (n, 1))), t).part < n
    run = product((), m, n, k, *views, [(m, k), (k, n)])
    got = run([a, b])
    compare(got, a, b)
    config.set_num_threads(1)
    np.testing.assert_array_equal(run([a, b]), got)


@pytest.mark.parametrize("m,n,k", [(300, 300, 700), (605, 257, 1600), (290, 500, 513)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_rows_of_a_turned_operand_are_copied(m: int, n: int, k: int, order: str, dtype: str) -> None:
    a, b = random(k, m, dtype=dtype), np.asarray(random(k, n, dtype=dtype, seed=1), order=order)  # type: ignore
    function = tj.function(lambda a, b, c: tj.maximum(a.T @ b + c, 0))
    c = random(n, dtype=dtype, seed=2)
    got = np.asarray(function(a, b if order == "C" else b.T.copy().T, c))
    close(got, np.maximum(a.T.astype("float64") @ b + c, 0))
    config.set_num_threads(1)
    np.testing.assert_array_equal(np.asarray(function(a, b, c)), got)
    step = Gemm(np.dtype(dtype), (), m, n, k, View(0, 0, (1, m)), View(1, 0, (n, 1)), View(2, 0, (n, 1)))
    assert tiles(np.dtype(dtype)).pack_rows in {call.function for call in gemm.product(step, 0.0).calls}


@pytest.mark.parametrize("m,n,k", [(25, 300, 1100), (128, 512, 700), (250, 40, 7000)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_large_deep_operand_is_read_once(m: int, n: int, k: int, order: str) -> None:
    a, b = np.asarray(random(m, k), order=order), random(k, n, seed=1)  # type: ignore[call-overload]
    left = View(0, 0, (k, 1) if order == "C" else (1, m))
    run = product((), m, n, k, left, View(1, 0, (n, 1)), [a.shape, b.shape])
    compare(run([a if order == "C" else a.T.copy().reshape(m, k), b]), a, b)
    step = Gemm(np.dtype("f4"), (), m, n, k, left, View(1, 0, (n, 1)), View(2, 0, (n, 1)))
    assert len(gemm.product(step, 0.0).calls) == (2 if n == 40 else 1)  # so narrow that many panels read each column


@pytest.mark.parametrize("batch", [(3,), (2, 3), (700,), (0,), (2, 0), (40, 30)])
@pytest.mark.parametrize("m,n,k", [(8, 9, 10), (1, 9, 10), (8, 1, 10), (2, 2, 0), (33, 17, 40)])
@pytest.mark.parametrize("order", ["N", "T"])
@pytest.mark.parametrize("repeated", ["", "a", "b"])
def test_batches(batch: tuple[int, ...], m: int, n: int, k: int, order: str, repeated: str) -> None:
    last = {name: 1 if name == repeated else batch[-1] for name in "ab"}
    a = random(*batch[:-1], last["a"], m, k)
    stored = random(*batch[:-1], last["b"], *((k, n) if order == "N" else (n, k)), seed=1)
    b = stored if order == "N" else np.swapaxes(stored, -1, -2)

    def view(number: int, shape: tuple[int, ...], turned: bool) -> View:
        walk = list(strides(shape))
        if shape[len(batch) - 1] == 1:
            walk[len(batch) - 1] = 0
        if turned:
            walk[-2:] = walk[:-3:-1]
        return View(number, 0, tuple(walk))

    run = product(batch, m, n, k, view(0, a.shape, False), view(1, stored.shape, order == "T"), [a.shape, stored.shape])
    compare(run([a, stored]), a, b)


@pytest.mark.parametrize("batch", [(33,), (7, 30)])
@pytest.mark.parametrize("m,n,k", [(2, 2, 2), (3, 3, 3), (4, 4, 4), (2, 3, 4), (4, 2, 1), (1, 4, 3), (5, 5, 5)])
@pytest.mark.parametrize("order", ["CC", "CF", "FC"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_batches_of_tiny_matrices(batch: tuple[int, ...], m: int, n: int, k: int, order: str, dtype: str) -> None:
    a, b = (random(*batch, *s, seed=i) * 9 for i, s in enumerate([(m, k), (k, n)]))
    a, b = a.astype(dtype), b.astype(dtype)
    stored = [x if o == "C" else np.swapaxes(x, -1, -2).copy() for x, o in zip((a, b), order, strict=True)]
    views = []
    for i, (o, rows, columns) in enumerate(((order[0], m, k), (order[1], k, n))):
        last = (columns, 1) if o == "C" else (1, rows)
        views.append(View(i, 0, (*(s * rows * columns for s in strides(batch)), *last)))
    run = product(batch, m, n, k, *views, [x.shape for x in stored], dtype)
    got = run(stored)
    compare(got, a, b)
    config.set_num_threads(1)
    np.testing.assert_array_equal(run(stored), got)
    step = Gemm(np.dtype(dtype), batch, m, n, k, *views, View(2, 0, strides((*batch, m, n))))
    assert (gemm_tiny.product(step) is not None) == (max(m * n, n * k, m * k) <= 2 * tiles(step.dtype).lanes)


def test_tiny_matrices_between_others() -> None:
    """Elements of one matrix between those of others, and matrices apart, are for larger code."""
    a, b = random(40, 3, 3), random(40, 3, 3, seed=1)
    for left, shape in ((View(0, 0, (9, 120, 1)), (5, 40, 3)), (View(0, 0, (18, 3, 1)), (80, 3, 3))):
        x = random(*shape, seed=2)
        call = product((40,), 3, 3, 3, left, View(1, 0, (9, 3, 1)), [x.shape, b.shape])
        compare(call([x, b]), as_strided(x, (40, 3, 3), left), b)
    function = tj.function(lambda a, b: tj.tanh(a @ tj.swapaxes(b, 1, 2) + 1))
    close(np.asarray(function(a, b)), np.tanh(a.astype("float64") @ np.swapaxes(b, 1, 2) + 1))


def test_views() -> None:
    """Parts of matrices, windows that overlap, rows backwards."""
    x, y = random(60, 70), random(70, 80, seed=1)
    run = product((), 40, 50, 60, View(0, 71, (70, 1)), View(1, 82, (80, 1)), [x.shape, y.shape])
    compare(run([x, y]), x[1:41, 1:61], y[1:61, 2:52])
    line = random(100)
    windows = np.lib.stride_tricks.sliding_window_view(line, 20)
    run = product((), 81, 80, 20, View(0, 0, (1, 1)), View(1, 0, (80, 1)), [line.shape, y.shape])
    compare(run([line, y]), windows, y[:20])
    run = product((), 60, 80, 70, View(0, 59 * 70, (-70, 1)), View(1, 0, (80, 1)), [x.shape, y.shape])
    compare(run([x, y]), x[::-1], y)


def as_strided(x: np.ndarray, shape: tuple[int, ...], view: View) -> np.ndarray:
    start = x.reshape(-1)[view.offset:]
    return np.lib.stride_tricks.as_strided(start, shape, [s * x.itemsize for s in view.strides])


# (rows, inner, n, strides of a, of b): elements anywhere, along rows, along columns; short and long runs; b in parts.
WINDOWS = [((5, 7), (3, 4), 18, (60, 4, 20, 1), (80, 20, 1)), ((30,), (2, 3), 16, (7, 3, 1), (60, 20, 1)),
           ((3, 16), (9, 5), 40, (90, 1, 200, 20), (200, 40, 1)), ((4, 3), (600,), 5, (9, 2, 1), (7, 1)),
           ((2, 25), (20, 30), 33, (700, 10, 1, 20), (1020, 34, 1)), ((50,), (4, 1), 3, (0, 2, 0), (3, 0, 1)),
           ((26, 26), (3, 3), 16, (28, 1, 28, 1), (48, 16, 1)), ((6,), (1500,), 70, (1, 6), (70, 1)),
           ((9, 28), (3, 48), 1, (480, 16, 480, 1), (50, 1, 1)), ((5, 7), (3, 40), 3, (200, 8, -90, 1), (120, 3, 1)),
           ((77,), (700,), 8, (7, 1), (8, 1)), ((33,), (2, 5, 29), 2, (4, 50, 10, 1), (1, 70, 2, 400)),
           ((6, 20), (300,), 5, (100, 3, 1), (1, 300)),
           ((7, 9), (2, 8), 9, (-20, 2, 5, 1), (72, 9, 1)), ((12, 9), (2, 700), 300, (20, 2, 5, 1), (210000, 300, 1))]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("rows,inner,n,of_a,of_b", WINDOWS)
def test_windows(rows: tuple[int, ...], inner: tuple[int, ...], n: int, of_a: tuple[int, ...],
                 of_b: tuple[int, ...], dtype: str) -> None:
    """Rows and sums over several dims, with any strides; the same bits on one thread."""
    m, k = math.prod(rows), math.prod(inner)
    behind = sum(-s * (e - 1) for s, e in zip(of_a, (*rows, *inner)) if s < 0)
    sizes = [1 + sum(abs(s) * (e - 1) for s, e in zip(v, dims)) for v, dims in ((of_a, (*rows, *inner)),
                                                                              (of_b, (*inner, n)))]
    x, y = ((random(size, seed=seed) * 100).astype(dtype) for seed, size in enumerate(sizes))
    a, b = View(0, behind, of_a), View(1, 0, of_b)
    run = product((), m, n, k, a, b, [x.shape, y.shape], dtype, rows, inner)
    got = run([x, y])
    compare(got, as_strided(x, (*rows, *inner), a).reshape(m, k), as_strided(y, (*inner, n), b).reshape(k, n))
    config.set_num_threads(1)
    np.testing.assert_array_equal(run([x, y]), got)


def test_batches_of_windows_with_packed_operands() -> None:
    x, y = random(3, 9, 60), random(3, 900, 700, seed=1)
    a, b = View(0, 0, (540, 2, 0, 1)), View(1, 0, (630000, 2100, 700, 1))
    run = product((3,), 22, 700, 900, a, b, [x.shape, y.shape], "float32", (22,), (300, 3))
    wide = as_strided(x, (3, 22, 300, 3), a).reshape(3, 22, 900)
    compare(run([x, y]), wide, y)
    turned = np.swapaxes(y, 1, 2).copy()
    run = product((3,), 22, 700, 900, a, View(1, 0, (630000, 3, 1, 900)), [x.shape, turned.shape], "float32", (22,),
                  (300, 3))
    compare(run([x, turned]), wide, y)


@pytest.mark.parametrize("width", [16, 32])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_machines_with_narrower_vectors(width: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_code, "vector_bytes", lambda features: width)
    caches = gemm_code.tile_shape, tiles, gemm_windows._code, gemm_few._code
    for cache in caches:
        cache.cache_clear()
    try:
        t = tiles(np.dtype(dtype))
        assert t.lanes * np.dtype(dtype).itemsize == width
        for m, n, k in [(5, 7, 3), (13, 33, 17), (70, 130, 100)]:
            a, b = random(m, k) * 100, random(k, n, seed=1) * 100
            a, b = a.astype(dtype), b.astype(dtype)
            for order, walk in (("C", (n, 1)), ("F", (1, k))):
                run = product((), m, n, k, View(0, 0, (k, 1)), View(1, 0, walk), [(m, k), (k, n)], dtype)
                got = run([a, np.array(b, order=order)])  # type: ignore[call-overload]
                np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-2)
            run = product((), m, n, k, View(0, 0, (k, 1)), View(1, 0, (n, 1)), [(m, k), (k, n)], dtype, (m,), (k,))
            np.testing.assert_allclose(run([a, b]), a @ b, rtol=1e-4, atol=1e-2)
        a, b = (random(520, 295) * 100).astype(dtype), (random(520, 270, seed=1) * 100).astype(dtype)
        views = View(0, 0, (1, 295)), View(1, 0, (270, 1)), View(2, 0, (270, 1))
        step = Gemm(np.dtype(dtype), (), 295, 270, 520, *views)
        assert t.pack_rows in {call.function for call in gemm.product(step, 0.0).calls}
        got = product((), 295, 270, 520, step.a, step.b, [a.shape, b.shape], dtype)([a, b])
        np.testing.assert_allclose(got, a.T @ b, rtol=1e-3, atol=1)
        a, b = (random(33, 2, 2) * 100).astype(dtype), (random(33, 2, 2, seed=1) * 100).astype(dtype)
        run = product((33,), 2, 2, 2, View(0, 0, (4, 2, 1)), View(1, 0, (4, 1, 2)), [a.shape, b.shape], dtype)
        np.testing.assert_allclose(run([a, b]), a @ np.swapaxes(b, 1, 2), rtol=1e-4, atol=1e-2)
        for m in range(1, 26):  # the last tiles begin anywhere, as taller ones end
            a, b = (random(m, 2) * 100).astype(dtype), (random(2, 9, seed=1) * 100).astype(dtype)
            run = product((), m, 9, 2, View(0, 0, (2, 1)), View(1, 0, (9, 1)), [(m, 2), (2, 9)], dtype, (m,), (2,))
            np.testing.assert_allclose(run([a, b]), a @ b, rtol=1e-4, atol=1e-2)
            a, b = (random(m, 70) * 100).astype(dtype), (random(70, 3, seed=1) * 100).astype(dtype)
            for n in (1, 2, 3):
                run = product((), m, n, 70, View(0, 0, (70, 1)), View(1, 0, (3, 1)), [(m, 70), (70, 3)], dtype, (m,),
                              (70,))
                np.testing.assert_allclose(run([a, b]), a @ b[:, :n], rtol=1e-4, atol=1e-1)
    finally:
        for cache in caches:
            cache.cache_clear()


def test_cuts_go_by_size_alone() -> None:
    t = tiles(np.dtype("float32"))
    for m, n, k, batch in [(4096, 1024, 1024, ()), (128, 256, 784, ()), (13, 4000, 2000, ()), (32, 32, 32, (1000,))]:
        step = Gemm(np.dtype("float32"), batch, m, n, k, *[View(0, 0, (0,) * (len(batch) + 2))] * 3)
        found = []
        for threads in (1, 2, 7):
            config.set_num_threads(threads)
            found.append(gemm.cut(step, t))
        c = found[0]
        assert found == [c] * 3 and 1 < math.ceil(c.items / c.chunk) <= 10_000
        assert c.panel % t.rows == 0 or c.panel == m
        assert c.part % t.columns == 0 or c.part == n


def test_few_columns_are_summed_along_the_rows() -> None:
    t = tiles(np.dtype("float32"))
    taken = []
    for n, inner, strides_of_a in [(1, (3, 48), (10, 70, 1)), (4, (3, 48), (10, 70, 1)), (1, (4, 3), (10, 70, 1)),
                                   (64, (3, 48), (10, 70, 1)), (1, (3, 48), (10, 1, 70)), (8, (40,), (10, 1))]:
        b = View(1, 0, (*(n,) * len(inner), 1))
        step = Gemm(np.dtype("float32"), (), 900, n, math.prod(inner), View(0, 0, strides_of_a), b, b, rows=(900,),
                    inner=inner)
        taken.append(gemm_few.columns(step, t) > 0)
    assert taken == [True, t.lanes >= 8, True, False, False, False]


def test_callers_at_once_get_the_same_bits() -> None:
    a, b = random(300, 400), random(400, 500, seed=1)
    run = product((), 300, 500, 400, View(0, 0, (400, 1)), View(1, 0, (500, 1)), [a.shape, b.shape])
    want = run([a, b])
    wrong: list[int] = []

    def work() -> None:
        wrong.extend(k for k in range(10) if not np.array_equal(run([a, b]), want))

    callers = [threading.Thread(target=work) for _ in range(4)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_children() -> None:
    a, b = random(200, 300), random(300, 400, seed=1)
    run = product((), 200, 400, 300, View(0, 0, (300, 1)), View(1, 0, (400, 1)), [a.shape, b.shape])
    want = run([a, b])
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(run([a, b]), want) else 1)
    assert os.waitpid(child, 0)[1] == 0


# ---- kernels on panels


def compiled(f: Callable[..., object], *arrays: np.ndarray) -> tuple[list[np.ndarray], Plan]:
    function = tj.function(f)
    results = function(*arrays)
    results = results if isinstance(results, tuple) else (results,)
    return [np.asarray(r) for r in results], function.specializations()[0].built.plan


def chained(p: Plan) -> int:
    return sum(isinstance(s, Gemm) and s.then is not None for s in p.steps)


def close(got: np.ndarray, want: np.ndarray, tolerance: float = 1e-4) -> None:
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(want).max(initial=0))))


@pytest.mark.parametrize("m,n,k", [(1000, 300, 64), (7, 5, 3), (128, 256, 784), (20, 3000, 700), (49, 33, 10)])
def test_bias_and_activation(m: int, n: int, k: int) -> None:
    x, w, bias = random(m, k), random(k, n, seed=1), random(n, seed=2)
    (got,), p = compiled(lambda x, w, b: tj.maximum(x @ w + b, 0), x, w, bias)
    close(got, np.maximum(x.astype("float64") @ w + bias, 0))
    assert len(p.steps) == 1 and chained(p) == 1
    assert buffers.assign(p).arena_bytes == 0  # the product lies where the result will be


def test_a_large_deep_operand_is_read_once_before_its_kernel() -> None:
    """For panels of rows it would be read again and again."""
    x, w, bias = random(100, 600), random(600, 500, seed=1), random(500, seed=2)
    (got,), p = compiled(lambda x, w, b: tj.maximum(x @ w + b, 0), x, w, bias)
    close(got, np.maximum(x.astype("float64") @ w + bias, 0))
    assert len(p.steps) == 2 and chained(p) == 0


def test_only_activation() -> None:
    x, w = random(500, 200), random(200, 300, seed=1)
    (got,), p = compiled(lambda x, w: tj.exp(x @ w), x, w)
    close(got, np.exp(x.astype("float64") @ w))
    assert len(p.steps) == 1 and p.launches[0].kernel.rank == 1


def test_residual_of_an_operand() -> None:
    """The operand must not be written over before the last panel is done."""
    x, w = random(400, 400), random(400, 400, seed=1)
    (got,), p = compiled(lambda x, w: (x * 2) @ w + x * 2, x, w)
    wide = 2 * x.astype("float64")
    close(got, wide @ w + wide)
    assert chained(p) == 1


def test_rows() -> None:
    x, w = random(600, 100), random(100, 200, seed=1)
    (soft, total), p = compiled(lambda x, w: (tj.softmax(x @ w, axis=1), tj.sum(x @ w, axis=1)), x, w)
    z = x.astype("float64") @ w
    e = np.exp(z - z.max(1, keepdims=True))
    close(soft, e / e.sum(1, keepdims=True))
    close(total, z.sum(1))
    assert chained(p) == 1


@pytest.mark.parametrize("m,n,k,batch", [(600, 200, 100, ()), (5, 7, 3, ()), (50, 100, 0, ()), (100, 60, 30, (4, 3)),
                                         (2000, 1300, 8, ()), (40, 9000, 5, ()), (300, 1000, 2200, ())])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_that_nobody_else_reads(m: int, n: int, k: int, batch: tuple[int, ...], dtype: str) -> None:
    """The product has no memory of its own where a panel of it fits the stack."""
    x, w = random(*batch, m, k, dtype=dtype), random(*batch, k, n, dtype=dtype, seed=1)
    function = tj.function(lambda x, w: tj.sum(tj.exp(tj.matmul(x, w)) * 0.5, axis=-1))
    got = np.asarray(function(x, w))
    close(got, 0.5 * np.exp(np.matmul(x.astype("float64"), w)).sum(-1))
    p = function.specializations()[0].built.plan
    assert chained(p) == 1
    small = min(m, PANEL) * n * x.itemsize <= PANEL_BYTES and n * k * x.itemsize <= SHARED
    assert (buffers.assign(p).arena_bytes == 0) == small
    buffers.verify(p, buffers.assign(p))
    config.set_num_threads(1)
    np.testing.assert_array_equal(np.asarray(function(x, w)), got)


def test_batches_with_scaling() -> None:
    q, k = random(6, 70, 32), random(6, 90, 32, seed=1)
    f = lambda q, k: tj.softmax(tj.matmul(q, tj.swapaxes(k, 1, 2)) * 0.2, axis=-1)
    (got,), p = compiled(f, q, k)
    z = 0.2 * (q.astype("float64") @ k.swapaxes(1, 2))
    e = np.exp(z - z.max(-1, keepdims=True))
    close(got, e / e.sum(-1, keepdims=True))
    assert chained(p) == 1


def test_a_product_with_other_readers() -> None:
    x, w = random(300, 50), random(50, 80, seed=1)
    (product_, act, columns), _ = compiled(lambda x, w: (x @ w, tj.tanh(x @ w), tj.sum(x @ w, axis=0)), x, w)
    z = x.astype("float64") @ w
    close(product_, z)
    close(act, np.tanh(z))
    close(columns, z.sum(0))


def test_what_does_not_go_by_rows_stays_apart() -> None:
    x, w = random(90, 50), random(50, 90, seed=1)
    z = x.astype("float64") @ w
    (turned,), p = compiled(lambda x, w: tj.exp(tj.transpose(x @ w)), x, w)
    close(turned, np.exp(z.T))
    assert chained(p) == 0
    (both,), p = compiled(lambda x, w: x @ w + tj.transpose(x @ w), x, w)
    close(both, z + z.T)
    assert chained(p) == 0
    (flipped,), p = compiled(lambda x, w: (x @ w)[::-1] * 2, x, w)
    close(flipped, z[::-1] * 2)
    assert chained(p) == 0
    (rows,), p = compiled(lambda x, w, i: (x @ w)[i] * 2, x, w, np.arange(90)[::-1].copy())
    close(rows, z[::-1] * 2)
    assert chained(p) == 0


def test_two_products_meet() -> None:
    x, v, w = random(300, 40), random(40, 60, seed=1), random(40, 60, seed=2)
    (got,), p = compiled(lambda x, v, w: x @ v * tj.sigmoid(x @ w), x, v, w)
    wide = x.astype("float64")
    close(got, wide @ v / (1 + np.exp(-(wide @ w))))
    assert len(p.steps) == 2 and chained(p) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_vectors_become_sums(dtype: str) -> None:
    a, x, y = random(300, 500, dtype=dtype), random(500, dtype=dtype, seed=1), random(300, dtype=dtype, seed=2)
    results, p = compiled(lambda a, x, y: (a @ x, y @ a, tj.exp(x) @ x, a[:0] @ x, a[:, :0] @ x[:0]), a, x, y)
    wide = a.astype("complex128")
    for got, want in zip(results, (wide @ x, y @ wide, np.exp(x) @ x, wide[:0] @ x, np.zeros(300)), strict=True):
        assert got.dtype == dtype
        close(got, want.real if got.dtype.kind == "f" else want)
    assert not any(isinstance(s, Gemm) for s in p.steps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_many_short_rows_become_sums(n: int, k: int, dtype: str) -> None:
    """In place, through movement, in batches, and with what is done before and after; each in one kernel."""
    for m in (64, 1001):
        a, b, c = random(m, k, dtype=dtype), random(k, n, dtype=dtype, seed=1), random(n, dtype=dtype, seed=2)
        calls: list[Callable[..., tj.Tensor]] = [
            lambda a, b, c: a @ b,
            lambda a, b, c: tj.maximum(tj.exp(a) @ b + c, 0),
            lambda a, b, c: tj.reshape(a, (k, -1)).T @ tj.reshape(b, (n, k)).T,
            lambda a, b, c: a[::-1] @ b,
            lambda a, b, c: tj.stack([a, a + 1]) @ tj.stack([b, -b]),
        ]
        wide = a.astype("float64")
        want = [wide @ b, np.maximum(np.exp(wide) @ b + c, 0), wide.reshape(k, m).T @ b.reshape(n, k).T, wide[::-1] @ b,
                np.stack([wide, wide + 1]) @ np.stack([b, -b])]
        for call, expected in zip(calls, want, strict=True):
            function = tj.function(call)
            got = np.asarray(function(a, b, c))
            assert got.dtype == dtype and not any(
                isinstance(s, Gemm) for s in function.specializations()[0].built.plan.steps)
            close(got, expected)
            config.set_num_threads(1)
            np.testing.assert_array_equal(np.asarray(function(a, b, c)), got)


def test_gradients_of_many_short_rows() -> None:
    a, b = random(80, 3, dtype="float64"), random(3, 4, dtype="float64", seed=1)
    da, db = tj.function(tj.grad(lambda a, b: tj.sum((a @ b) ** 2), (0, 1)))(a, b)
    close(np.asarray(da), 2 * (a @ b) @ b.T)
    close(np.asarray(db), 2 * a.T @ (a @ b))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("m,n,k", [(40, 50, 60), (3, 3, 3), (1, 20, 30), (20, 1, 30), (5, 6, 0)])
def test_integers_wrap(m: int, n: int, k: int, dtype: str) -> None:
    source = np.random.default_rng(0)
    info = np.iinfo(dtype)
    a, b = (source.integers(info.min, info.max, s, dtype, endpoint=True) for s in ((m, k), (k, n)))
    function = tj.function(lambda a, b: a @ b + 1)
    for right in (b, np.asfortranarray(b)):
        got = np.asarray(function(a, right))
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, a @ b + got.dtype.type(1))
    assert all(len(s.built.plan.steps) == 1 for s in function.specializations())


def test_layers_with_gradients_and_threads() -> None:
    """A network's step: values against float64, the same bits on one thread."""
    x, target = random(128, 200), random(128, 10, seed=1)
    params = tuple(random(*s, seed=k) * np.float32(0.1) for k, s in enumerate([(200, 96), (96,), (96, 10), (10,)], 2))

    def loss(params: tuple[tj.Tensor, ...], x: tj.Tensor, target: tj.Tensor) -> tj.Tensor:
        w, b, v, c = params
        return tj.mean((tj.maximum(x @ w + b, 0) @ v + c - target) ** 2)

    step = tj.function(lambda p, x, t: tuple(w - 0.1 * g for w, g in zip(p, tj.grad(loss)(p, x, t), strict=True)))
    got = [np.asarray(r) for r in step(params, x, target)]
    w, b, v, c = (p.astype("float64") for p in params)
    h = x @ w + b
    d = 2 * (np.maximum(h, 0) @ v + c - target) / target.size
    e = d @ v.T * (h > 0)
    for r, p, g in zip(got, (w, b, v, c), (x.T @ e, e.sum(0), np.maximum(h, 0).T @ d, d.sum(0)), strict=True):
        close(r, p - 0.1 * g, 1e-5)
    config.set_num_threads(1)
    for r, again in zip(got, step(params, x, target), strict=True):
        np.testing.assert_array_equal(np.asarray(again), r)
