"""Symbolic sizes: one trace and a few plans for all sizes, with the results that a trace for each size would give."""

from __future__ import annotations

import math
import operator
import sys
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.dims import Dim, Scope, integer
from tracejit.trace.symbolic import Family, Template

SIZES = (5, 6, 9, 2, 3, 4, 1, 0, 64, 7, 1500, 33, 40_001, 14)


def softmax(x: Any) -> Any:
    e = tj.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attention(q: Any, k: Any, v: Any) -> Any:
    return softmax(q @ k.T / math.sqrt(q.shape[-1])) @ v


def loop(v: Any) -> Any:
    s = (v * v).sum()
    while s < 100.0:
        s = s * 2.0 + 1.0
    return v + s


def called_back(a: Any, n: int) -> Any:
    """Python code that has kept a size."""
    return tj.py_function(lambda t: np.asarray(t) * np.float32(n), [a], tj.spec(a.shape, "float32"))


def values(*shape: int, seed: int = 0) -> Any:
    return tj.asarray(np.random.default_rng((seed, *shape)).standard_normal(shape).astype("float32"))


# name: the function, its arguments for a size, the least size it takes
CASES: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]], int]] = {
    "affine": (lambda a: a * 2 + 1, lambda n: (values(n),), 0),
    "two": (lambda a, b: ((a * b + b) * 2 - a) / (b * b + 1.5), lambda n: (values(n), values(n, seed=1)), 0),
    "independent": (lambda a, b: a[:, None] * b[None], lambda n: (values(n % 50), values(n + 2)), 0),
    "sum": (lambda v: (v * v).sum(), lambda n: (values(n),), 0),
    "mean": (lambda v: v - v.mean(), lambda n: (values(n),), 1),
    "variance": (lambda v: v.var(axis=0), lambda n: (values(n, 4),), 1),
    "by size": (lambda v: v * (2.0 / v.shape[0]) + v.shape[0] ** 0.5, lambda n: (values(n),), 1),
    "softmax rows": (softmax, lambda n: (values(n, 64),), 0),
    "softmax columns": (softmax, lambda n: (values(8, n),), 1),
    "softmax both": (softmax, lambda n: (values(n % 70 + 1, n),), 1),
    "layer norm": (lambda x: (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + 1e-5) ** 0.5,
                   lambda n: (values(n, 32),), 0),
    "product": (lambda a, b: tj.relu(a @ b + 1), lambda n: (values(n, 16), values(16, 8)), 0),
    "inner product": (lambda a, b: a @ b, lambda n: (values(3, n), values(n, 5)), 0),
    "attention": (attention, lambda n: (values(n % 99, 8), values(n % 77, 8), values(n % 77, 3)), 14),
    "concat": (lambda a: tj.concat([a, a * 2, a[:1]]), lambda n: (values(n),), 0),
    "concat two": (lambda a, b: tj.concat([a, b]).sum(), lambda n: (values(n), values(2 * n + 1)), 0),
    "shift": (lambda a: a[1:] - a[:-1], lambda n: (values(n),), 0),
    "reverse": (lambda a: a[::-1] + a, lambda n: (values(n),), 0),
    "strided": (lambda a: a[1::3] * 2, lambda n: (values(n),), 0),
    "last": (lambda a: a[-1] + a[0] + a[a.shape[0] // 2], lambda n: (values(n),), 1),
    "laplacian": (lambda a: a[2:] + a[:-2] - 2 * a[1:-1], lambda n: (values(n),), 2),
    "sort": (lambda a: tj.sort(a) * 2, lambda n: (values(n),), 0),
    "cumsum": (lambda a: tj.cumsum(a), lambda n: (values(n),), 0),
    "reshape": (lambda a: a.reshape(-1, 2).sum(axis=1), lambda n: (values(2 * n),), 0),
    "flatten": (lambda a: a.reshape(-1) + 1, lambda n: (values(n, 3),), 0),
    "gather": (lambda a, i: a[i], lambda n: (values(n), tj.asarray([0, -1])), 1),
    "gather many": (lambda a, i: a[i] * 2, lambda n: (values(7), tj.asarray(np.arange(n) % 7)), 0),
    "gradient": (tj.grad(lambda a: (tj.exp(-a * a) * a).sum()), lambda n: (values(n),), 0),
    "gradient of rows": (tj.grad(lambda a: softmax(a)[:, 0].sum()), lambda n: (values(n, 16),), 0),
    "transpose": (lambda a: a.T + 1, lambda n: (values(n, 3),), 0),
    "pad": (lambda a: tj.pad(a, 1), lambda n: (values(n, 3),), 0),
    "roll": (lambda a: tj.roll(a, 1), lambda n: (values(n),), 0),
    "argmax": (lambda a: tj.argmax(a), lambda n: (values(n),), 1),
    "zeros": (lambda a: tj.zeros(a.shape) + tj.ones((a.shape[0], 1)), lambda n: (values(n, 2),), 0),
    "arange": (lambda a: tj.arange(a.shape[0]) + a, lambda n: (values(n),), 0),
    "eye": (lambda a: tj.eye(a.shape[0]) @ a, lambda n: (values(n % 60, 3),), 0),
    "broadcast": (lambda a, b: a + b, lambda n: (values(n, 1), values(3)), 0),
    "where": (lambda a: tj.where(a > 0, a, 0).max(initial=-5), lambda n: (values(n),), 0),
    "size as result": (lambda a: (a.sum(), a.shape[0], a.shape[0] * 2 + 1), lambda n: (values(n),), 0),
    "number": (lambda a, k: a * k, lambda n: (values(n), n * 0.5), 0),
    "while": (loop, lambda n: (values(n),), 0),
    "scan": (lambda a: tj.cumprod(tj.cos(a)), lambda n: (values(n),), 0),
    "update": (lambda a: a.at[0].set(9.0), lambda n: (values(n),), 1),
    "stack": (lambda a: tj.stack([a, a + 1], axis=1).reshape(-1), lambda n: (values(n),), 0),
    "norm": (lambda a: a / tj.sqrt((a * a).sum()), lambda n: (values(n),), 1),
}  # fmt: skip


def plain(x: Any) -> list[Any]:
    return [np.asarray(t) if isinstance(t, tj.Tensor) else t for t in (x if isinstance(x, tuple) else (x,))]


def agree(found: Any, wanted: Any) -> None:
    for a, b in zip(plain(found), plain(wanted), strict=True):
        assert type(a) is type(b)
        if isinstance(a, np.ndarray):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)  # to the bit
        else:
            assert a == b


def families(f: Any) -> list[Family]:
    return list(f._traces.families.values())


def templates(f: Any) -> list[Template]:
    return [t for family in families(f) for t in family.templates]


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_a_trace_for_each_size(name: str) -> None:
    python, arguments, least = CASES[name]
    f = tj.function(python)
    for n in SIZES:
        if n >= least:
            agree(f(*arguments(n)), tj.function(python)(*arguments(n)))
    assert not any(family.failure for family in families(f)), families(f)[0].failure
    assert not any(t.failure for t in templates(f)), templates(f)[0].failure
    assert f.trace_count <= 5, f.history
    assert templates(f) and templates(f)[-1].plans, "no plan is open"


@pytest.mark.parametrize("name", ["affine", "two", "sum", "mean", "softmax rows", "product", "gather many", "gradient"])
def test_later_sizes_are_neither_traced_nor_planned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    python, arguments, _ = CASES[name]
    runs = []
    f = tj.function(lambda *args: runs.append(1) or python(*args))
    module = sys.modules["tracejit.function"]
    plans = []
    lower = module.lower
    monkeypatch.setattr(module, "lower", lambda *args: plans.append(1) or lower(*args))
    for n in range(10, 50):
        f(*arguments(n))
    assert f.trace_count == len(runs) == 2
    assert len(plans) <= 6, "sizes were planned one by one"


def test_a_stream_of_sizes() -> None:
    f = tj.function(lambda v: (v * v).sum())
    for n in (0, 1, 2, 5, 9, 14):
        assert float(f(tj.ones(n))) == n
    assert f.trace_count <= 3
    assert "dim 0 of 'v' may have any size" in f.history[-1] and "shape (1,) -> (2,)" in f.history[-1]
    assert f.history[-1] in str(tj.explain(f))


# -- what the Python code does with a size -----------------------------------------------------------------------------
NEEDS: dict[str, Callable[[Any], Any]] = {
    "range": lambda a: sum((a[i] for i in range(a.shape[0])), tj.zeros(())),
    "iteration": lambda a: tj.stack([t + 1 for t in a]),
    "int": lambda a: a + int(a.shape[0]),
    "list": lambda a: a + len([0] * a.shape[0]),
    "list index": lambda a: a * [*range(99)][a.shape[0]],
    "dict key": lambda a: a + {n: n * n for n in range(99)}[a.shape[0]],
    "set": lambda a: a + (3 if a.shape[0] in {3, 5, 7} else 4),
    "text": lambda a: a + int(f"{a.shape[0]}1"),
    "str": lambda a: a + int(str(a.shape[0])),
    "format": lambda a: a + int(f"{a.shape[0]:d}"),
    "numpy": lambda a: a + np.arange(a.shape[0], dtype="float32"),
    "numpy shape": lambda a: a + np.ones(a.shape, "float32"),
    "numpy math": lambda a: a * np.float32(np.sqrt(a.shape[0])),
    "math": lambda a: a * math.sqrt(a.shape[0]),
    "bits": lambda a: a + (a.shape[0] & 1),
    "method": lambda a: a + a.shape[0].bit_length(),
    "round": lambda a: a + round(a.shape[0] / 2),
    "index": lambda a: a + operator.index(a.shape[0]),
    "closure": lambda a: called_back(a, a.shape[0]),
}


@pytest.mark.parametrize("name", NEEDS)
def test_a_size_whose_value_is_needed_is_traced_for_each(name: str) -> None:
    f = tj.function(NEEDS[name])
    for n in (3, 4, 5, 6, 7, 3):
        a = values(n)
        np.testing.assert_allclose(np.asarray(f(a)), np.asarray(f.eager(a)), rtol=1e-6)
    assert f.trace_count == 5


def test_branches_on_a_size_are_traced_once_each() -> None:
    f = tj.function(lambda a: a * 2 if a.shape[0] > 10 else a + 1 if a.shape[0] % 2 else a - 1)
    for n in (3, 20, 4, 5, 30, 6, 7, 99, 8, 11):
        a = values(n)
        agree(f(a), f.eager(a))
    assert f.trace_count == 4, f.history  # (the first one was for three elements only)


def test_too_many_branches_end_in_a_trace_for_each_size() -> None:
    f = tj.function(lambda a: a + sum(a.shape[0] > k for k in range(40)))
    for n in range(2, 40):
        agree(f(values(n)), f.eager(values(n)))
    assert len(templates(f)) <= 8


def test_sizes_that_must_agree() -> None:
    f = tj.function(lambda a, b: a + b)
    for n in (3, 4, 5):
        agree(f(values(n), values(n)), f.eager(values(n), values(n)))
    with pytest.raises(ValueError, match="broadcast"):
        f(values(5), values(6))
    for n, m in ((6, 1), (1, 7), (8, 8)):
        agree(f(values(n), values(m)), f.eager(values(n), values(m)))


def test_errors_name_the_present_sizes() -> None:
    f = tj.function(lambda a: a.reshape(3, -1))
    for n in (3, 6, 9, 12):
        f(values(n))
    with pytest.raises(ValueError, match=r"10 elements of shape \(10,\)"):
        f(values(10))
    g = tj.function(lambda a, i: a[i])
    for n in (3, 4, 5):
        g(values(n), 0)
    h = tj.function(lambda a, i: a[i])
    for n in (3, 4, 5, 6):
        h(values(n), tj.asarray([0]))
    with pytest.raises(IndexError, match="index 7 is out of bounds for axis 0 with size 6"):
        h(values(6), tj.asarray([7]))
    assert h.trace_count == 2


# -- together with the rest --------------------------------------------------------------------------------------------
def test_captured_values_keep_their_sizes() -> None:
    w = tj.Variable(np.arange(4, dtype="float32"))
    f = tj.function(lambda a: (a * w).sum(axis=1))
    for n in (2, 3, 5):
        agree(f(values(n, 4)), f.eager(values(n, 4)))
    w.assign(w.read_value() + 1)
    agree(f(values(9, 4)), f.eager(values(9, 4)))
    assert f.trace_count == 2
    g = tj.function(lambda a: a + w)  # an argument must be as long as what it meets
    agree(g(values(1)), g.eager(values(1)))
    agree(g(values(4)), g.eager(values(4)))
    with pytest.raises(ValueError, match="broadcast"):
        g(values(5))


def test_a_change_outside_is_seen_by_sizes_not_met_before() -> None:
    settings = {"k": 2.0}
    f = tj.function(lambda a: a * settings["k"])
    for n in (2, 3, 4):
        f(values(n))
    settings["k"] = 5.0
    agree(f(values(7)), f.eager(values(7)))
    agree(f(values(3)), f.eager(values(3)))


def test_writes_reach_the_caller() -> None:
    total = tj.Variable(0.0)

    @tj.function
    def f(a: Any) -> Any:
        total.assign_add(a.sum())
        a[0] = 7.0
        return a.shape[0] + a.sum()

    wanted = 0.0
    for n in (2, 3, 4, 9):
        a = np.ones(n, np.float32)
        assert float(f(a)) == n + 7 + n - 1 and a[0] == 7
        wanted += n
    assert float(total) == wanted and f.trace_count == 2


def test_gradients_of_calls() -> None:
    f = tj.function(lambda a: (tj.sin(a) * a).sum())
    gradient = tj.grad(f)
    for n in (2, 3, 4, 9):
        np.testing.assert_allclose(np.asarray(gradient(values(n))), np.asarray(tj.grad(f.eager)(values(n))), rtol=1e-5)
    assert f.trace_count == 2
    second = tj.grad(lambda a: gradient(a).sum())
    np.testing.assert_allclose(np.asarray(second(values(11))).shape, (11,))


def test_methods_and_structures() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = tj.Variable(np.ones(3, np.float32))

        @tj.function
        def __call__(self, batch: dict[str, Any]) -> Any:
            return {"y": batch["x"] @ self.w + batch["bias"], "n": batch["x"].shape[0]}

    model = Model()
    for n in (2, 3, 4, 8):
        found = model({"x": values(n, 3), "bias": 1.0})
        assert found["n"] == n and found["y"].shape == (n,) and type(found["n"]) is int
    assert Model.__call__._for(model).trace_count == 2


def test_sizes_of_other_layouts_and_kinds_are_traced() -> None:
    f = tj.function(lambda a: a * 2)
    for n in (2, 3, 4, 5):
        turned = np.ones((n, 3), np.float32).T
        agree(f(turned), f.eager(turned))
        agree(f(values(n)), f.eager(values(n)))


def test_inside_another_function_sizes_stay_open() -> None:
    inner = tj.function(lambda a: a / a.shape[0])
    outer = tj.function(lambda a: inner(a) + inner(a * 2))
    for n in (2, 3, 4, 5):
        agree(outer(values(n)), tj.function(lambda a: inner(a) + inner(a * 2))(values(n)))
    assert outer.trace_count == 2


def test_ten_thousand_sizes_take_bounded_memory() -> None:
    f = tj.function(lambda a: (a * 2 + 1).sum())
    for n in range(1, 600):
        f(tj.zeros(n))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for n in range(600, 3000):
        f(tj.zeros(n))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 3_000_000 and f.trace_count <= 3 and f.cache_info().size <= 256


def test_threads_meet_new_sizes_at_once() -> None:
    f = tj.function(lambda a: (a + 1).sum() * a.shape[0])
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for n in np.random.default_rng(seed).integers(2, 400, 120):
            found = float(f(tj.zeros(int(n))))
            if found != float(n) * n:
                wrong.append((n, found))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and f.trace_count <= 3


# -- specs with open dims ----------------------------------------------------------------------------------------------
def test_one_trace_ahead_of_time_serves_all_sizes() -> None:
    f = tj.function(lambda x, y: (x @ y + 1).sum(axis=0) / (x.shape[0] + 1))
    assert f.compile(tj.spec((None, 4), "float32"), tj.spec((4, None), "float32")) is f
    for n, m in ((3, 5), (0, 2), (1, 1), (7, 0), (200, 3)):
        agree(f(values(n, 4), values(4, m)), tj.function(f.python_function)(values(n, 4), values(4, m)))
    assert f.trace_count == 1
    assert f(values(3, 4), values(4, 3)).dtype == np.float32
    with pytest.raises(ValueError, match="matmul"):
        f(values(3, 4), values(5, 3))


def test_dims_that_must_be_equal_are_found_out() -> None:
    f = tj.function(lambda a, b, c: (a + b) * c)
    f.compile(*[tj.spec((None,), "float32")] * 3)
    for n in (2, 5, 100):
        agree(f(*[values(n)] * 3), f.eager(*[values(n)] * 3))
    assert f.trace_count <= 2
    with pytest.raises(ValueError, match="broadcast"):
        f(values(2), values(2), values(3))


def test_a_signature_leaves_dims_open_from_the_start() -> None:
    f = tj.function(lambda v: (v * v).sum(), input_signature=[tj.spec((None,), "float32")])
    for n in (1, 0, 2, 50):
        assert float(f(tj.ones(n))) == n
    assert f.trace_count == 1
    with pytest.raises(TypeError, match="input_signature"):
        f(tj.ones((2, 2)))


def test_graphs_show_open_dims() -> None:
    text = str(tj.function(lambda a, b: tj.concat([a[1:], b * 2])).trace(*[tj.spec((None,), "float32")] * 2))
    assert "f32[n]" in text and "f32[m]" in text and "f32[n - 1]" in text and "f32[m + (n - 1)]" in text
    with pytest.raises(tj.TracerError, match=r"dim 0 of 'a' cannot be left open.*test_dims.py:\d+"):
        tj.function(lambda a: a * len([0] * a.shape[0])).trace(tj.spec((None,), "float32"))


# -- Dims by themselves ------------------------------------------------------------------------------------------------
def test_a_dim_passes_for_an_int_but_hides_its_value() -> None:
    scope = Scope([5, 7])
    n, m = scope.inputs
    with scope:
        assert isinstance(n, int) and not isinstance(n, float) and isinstance(n / 2, float) and type(n) is Dim
        assert n + 0 is n and n * 1 is n and (n * 4) // 4 is n and n - n == 0
        assert (n * 6) % 6 == 0 and 0 + n is n and 1 * n is n and n * 0 == 0
        assert (n, 3) == (n, 3) and integer(n) is n
        total = sum((n, m, 2))
        assert total == 14 and n < m and max(n, m) is m and min(n, 9) is n and divmod(m, n) == (1, 2)
        assert math.prod((n, 3, m)) == 105 and -n == -5 and abs(-n) == 5
    assert not scope.fixed
    solve = scope.solver()
    assert solve(5, 7) is not None and solve(7, 5) is None
    assert n + 1 == 6 and type(n + 1) is int, "after its time a Dim is its hint"


@pytest.mark.parametrize("leak", [
    lambda n: range(n), lambda n: [0] * n, lambda n: "x" * n, lambda n: [1] * 9 and list(range(9))[n], int, float, str,
    repr, hash, complex, operator.index, lambda n: f"{n}", "{}".format, lambda n: np.zeros(n), bytes,
    lambda n: np.array([n]), lambda n: np.float32(2) * n, lambda n: np.ones(2) * n, lambda n: math.sqrt(n),
    lambda n: n.bit_length(), lambda n: n | 1, lambda n: slice(0, n).indices(3), lambda n: {5: 1}.get(n),
    lambda n: n in {1, 5}, lambda n: np.eye(n), lambda n: round(n / 2), lambda n: np.int64(n), lambda n: "abcdefg"[n],
])  # fmt: skip
def test_every_way_to_the_plain_number_fixes_it(leak: Callable[[Any], Any]) -> None:
    scope = Scope([5])
    (n,) = scope.inputs
    with scope:
        found = leak(n)
    text = str(found) == str(leak(5)) if not isinstance(found, (range, np.ndarray)) else True
    assert text and [*scope.fixed] == [0]
    assert scope.solver()(5) is not None and scope.solver()(6) is None


def test_computations_are_those_of_python() -> None:
    rng = np.random.default_rng(0)
    ops = [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.truediv]
    for _ in range(200):
        hints = [int(x) for x in rng.integers(1, 12, 2)]
        picks = [(ops[rng.integers(len(ops))], int(rng.integers(0, 6)), bool(rng.integers(2))) for _ in range(6)]

        def run(a: Any, b: Any, picks: Any = picks) -> Any:
            pool = [a, b]
            for op, k, constant in picks:
                left, right = pool[k % len(pool)], k if constant else pool[(k * 7 + 1) % len(pool)]
                try:
                    pool.append(op(left, right))
                except ZeroDivisionError:
                    return None
                if pool[-1] > 3:
                    pool.append(pool[-1] * 2)
            return pool

        scope = Scope(hints)
        with scope:
            traced = run(*scope.inputs)
        if traced is None:
            continue
        solve = scope.solver()
        for a in range(1, 12):
            try:
                found = solve(a, hints[1])
            except ZeroDivisionError:
                continue
            if found is not None:
                wanted = run(a, hints[1])
                got = [found[x.number] if type(x) is Dim else x for x in traced]
                assert got == wanted and [type(x) for x in got] == [type(x) for x in wanted]


def test_explanations_show_one_plan_for_many_sizes() -> None:
    f = tj.function(lambda a: a * 2)
    for n in range(5, 40):
        f(values(n))
    text = str(tj.explain(f))
    assert "the same plan for 33 other sizes: 33 calls" in text and text.count("program for") == 2


# -- arrays that are not contiguous ------------------------------------------------------------------------------------
def test_views_of_changing_sizes_share_a_trace() -> None:
    whole = np.arange(900, dtype="f4").reshape(30, 30)
    views = (lambda n: whole[:, :n], lambda n: whole[:n].T, lambda n: whole[::-1, :n], lambda n: whole[::2, 1 : n + 1])
    for view in views:
        for make in (lambda a: a, tj.asarray):
            f = tj.function(lambda a, k: (a * k + a[0]).sum(axis=0))
            for n in (2, 5, 9, 0, 1, 17, 5, 2):
                a = view(n)
                np.testing.assert_allclose(f(make(a), 2.0).numpy(), (a * 2 + a[0]).sum(axis=0), rtol=1e-6)
            assert f.trace_count <= 5  # the first, any size, and those of 0 and 1, which may be contiguous


def test_views_are_written_and_differentiated() -> None:
    @tj.function
    def f(a, b):
        a[0] = b.sum()
        a += b
        return (a * b).sum()

    for n in (3, 4, 7, 12):
        base, wanted = np.ones((5, 30)), np.ones((5, 30))
        part, b = base[:, ::2][:, :n], np.arange(5.0 * n).reshape(n, 5).T
        other = wanted[:, ::2][:, :n]
        other[0] = b.sum()
        other += b
        assert abs(float(f(part, b)) - (other * b).sum()) < 1e-6 * abs(other * b).sum()
        np.testing.assert_allclose(base, wanted)
    assert f.trace_count == 2
    g = tj.function(lambda a: (a**3).sum())
    for n in (3, 4, 7):
        a = np.arange(5.0 * n).reshape(n, 5).T
        np.testing.assert_allclose(tj.grad(g)(a).numpy(), 3 * a**2)
    x = tj.asarray(np.arange(12.0).reshape(3, 4).T)
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = g(x)
    np.testing.assert_allclose(tape.gradient(y, x).numpy(), 3 * x.numpy() ** 2)
    assert g.trace_count <= 3


def test_writes_to_arguments_of_changing_sizes_share_a_trace() -> None:
    def add(a):
        a += 1

    def put(a):
        a[0], a[1:] = 5.0, a[1:] * 2

    def mask(a):
        a[a > 2] = 0.0

    for write in (add, put, mask):
        f = tj.function(write)
        for n in (3, 5, 8, 4):
            a, wanted = np.arange(4.0 * n).reshape(4, n), np.arange(4.0 * n).reshape(4, n)
            f(a), write(wanted)
            np.testing.assert_array_equal(a, wanted)
        assert f.trace_count == 2


@pytest.mark.parametrize("f", [
    lambda xp, x: xp.split(x, [1, -2])[1], lambda xp, x: xp.pad(x, ((2, 1), (0, 2)), "edge"),
    lambda xp, x: xp.insert(x, -1, 5.0, axis=0), lambda xp, x: xp.delete(x, -2, axis=0), lambda xp, x: xp.delete(x, 3),
])  # fmt: skip
def test_cuts_and_edges_take_any_size(f: Callable[..., Any]) -> None:
    compiled = tj.function(lambda x: f(tj, x))
    for n in (6, 9, 12, 30):
        x = np.random.default_rng(n).normal(size=(n, 4))
        np.testing.assert_array_equal(compiled(x).numpy(), f(np, x))
    assert compiled.trace_count == 2


@pytest.mark.parametrize("flat", [lambda y: y[0], lambda y: y.reshape(-1)], ids=["index", "reshape"])
def test_reductions_are_found_again_at_coordinates_of_unknown_sizes(flat: Callable[[Any], Any]) -> None:
    """A coordinate that is 0 for every size is the 0 of the kernel's loops, however it was computed."""
    f = tj.function(lambda x: flat(tj.cumsum(tj.argmin(x, axis=2) * 2, axis=0)))
    r = np.random.default_rng(0)
    for shape in ((1, 3, 3), (1, 50, 70), (1, 200, 30), (1, 1, 5)):
        x = r.standard_normal(shape)
        assert np.array_equal(np.asarray(f(tj.asarray(x))), 2 * x.argmin(2)[0])
