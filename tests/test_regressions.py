"""Faults that were found by using the package, each with the smallest program that showed it."""

from __future__ import annotations

import collections
import functools
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from calls import x

import tracejit as tj


# -- values from outside -----------------------------------------------------------------------------------------------
class Doubler:
    def inner(self, a: Any) -> Any:
        return a * 2

    def __call__(self, a: Any) -> Any:
        return self.inner(a)


class Scale:
    k = 2.0

    def __mul__(self, other: Any) -> Any:
        return other * self.k


def _scaled(factors: list[float], a: Any) -> Any:
    return a * factors[0]


def _cases() -> dict[str, tuple[Any, Any]]:
    """By name: a function, and a change after which it must give something else."""
    array = np.array([1.0, 2.0])
    queue = collections.deque([1.0, 2.0])
    factors, thing, scale = [2.0], Doubler(), Scale()
    pairs = {(1, 2), (3, 4)}
    os.environ["TRACEJIT_TEST_FACTOR"] = "1"
    return {
        "an array's element": (lambda a: a * array[0], lambda: array.__setitem__(0, 9.0)),
        "float of an element": (lambda a: a * float(array[0]), lambda: array.__setitem__(0, 8.0)),
        "an array's method": (lambda a: a * array.sum(), lambda: array.__setitem__(0, 7.0)),
        "NumPy's function of an array": (lambda a: a * np.mean(array), lambda: array.__setitem__(0, 6.0)),
        "arithmetic of arrays": (lambda a: a * 1 + (array * 2)[0], lambda: array.__setitem__(0, 5.0)),
        "a branch on an element": (lambda a: a if array[0] > 4 else a * 2, lambda: array.__setitem__(0, 9.0)),
        "iteration over an array": (lambda a: sum(a * v for v in array), lambda: array.__setitem__(0, 3.0)),
        "a deque": (lambda a: a * queue[0], lambda: queue.__setitem__(0, 3.0)),
        "a whole deque": (lambda a: a * sum(queue), lambda: queue.append(3.0)),
        "a set of tuples": (lambda a: a * len(pairs), lambda: pairs.add((5, 6))),
        "a partial's list": (functools.partial(_scaled, factors), lambda: factors.__setitem__(0, 9.0)),
        "an operator": (lambda a: scale * a, lambda: setattr(scale, "k", 9.0)),
        "a method's place": (lambda a: thing.inner(a), lambda: setattr(thing, "inner", lambda a: a * 7)),
        "the environment": (
            lambda a: a * float(os.environ["TRACEJIT_TEST_FACTOR"]),
            lambda: os.environ.__setitem__("TRACEJIT_TEST_FACTOR", "5"),
        ),
    }


@pytest.mark.parametrize("case", list(_cases()))
def test_a_change_outside_is_seen(case: str) -> None:
    f, change = _cases()[case]
    compiled = tj.function(f)
    before = np.asarray(compiled(x()))
    compiled(x())
    assert compiled.trace_count == 1
    change()
    after = np.asarray(compiled(x()))
    assert np.array_equal(after, np.asarray(f(x()))) and not np.array_equal(after, before)
    compiled(x())
    assert compiled.trace_count == 2


def test_another_method_in_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    f = tj.function(Doubler())
    assert np.array_equal(f(x()), [2, 4, 6])
    monkeypatch.setattr(Doubler, "inner", lambda self, a: a * 7)
    assert np.array_equal(f(x()), [7, 14, 21])


def test_a_large_array_that_numpy_reads_is_told_of() -> None:
    table = np.zeros(100_000)
    with pytest.warns(UserWarning, match="table: NumPy reads it"):
        tj.function(lambda a: a * table[0])(x())


def test_a_large_array_whose_shape_is_read_is_not() -> None:
    table = np.zeros((100_000, 2))
    f = tj.function(lambda a: a * table.shape[1] + len(table) + (a[:2] @ table.sum(0) if table.ndim > 2 else 0))
    assert np.array_equal(f(x()), [100_002, 100_004, 100_006])


def test_a_tensor_outside_becomes_an_array() -> None:
    holder = SimpleNamespace(w=tj.ones(3))
    f = tj.function(lambda a: a + holder.w)
    for _ in range(3):
        f(x())
    holder.w = np.full(3, 2.0, "float32")
    assert np.array_equal(f(x()), [3, 4, 5])
    holder.w[0] = 0
    assert np.array_equal(f(x()), [1, 4, 5])


def test_an_object_whose_getattr_raises() -> None:
    class Strange:
        def __getattr__(self, name: str) -> Any:
            return {"k": 2.0}[name]

    strange = Strange()
    with pytest.warns(UserWarning, match="__getattr__"):
        assert np.array_equal(tj.function(lambda a: a * strange.k)(x()), [2, 4, 6])


# -- settings ----------------------------------------------------------------------------------------------------------
def test_the_default_dtype_is_part_of_a_trace() -> None:
    f = tj.function(lambda a: (tj.ones(2), a))
    a = tj.ones(1)
    try:
        for _ in range(3):
            assert f(a)[0].dtype == "float32"
        tj.set_default_dtype("float64")
        assert f(a)[0].dtype == "float64"
        tj.set_default_dtype("float32")
        assert f(a)[0].dtype == "float32" and f.trace_count == 2
    finally:
        tj.set_default_dtype("float32")


# -- operations --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("axis", [(0,), (), None, 1.5, "a"])
@pytest.mark.parametrize("name", ["sort", "cumprod", "swapaxes", "unstack", "repeat"])
def test_an_axis_that_is_no_integer(name: str, axis: Any) -> None:
    call = {
        "sort": lambda: tj.sort(tj.ones((2, 2)), axis=axis or (0,)),
        "cumprod": lambda: tj.cumprod(tj.ones((2, 2)), axis=axis or (0,)),
        "swapaxes": lambda: tj.swapaxes(tj.ones((2, 2)), 0, axis),
        "unstack": lambda: tj.unstack(tj.ones((2, 2)), axis=axis),
        "repeat": lambda: tj.repeat(tj.ones((2, 2)), 2, axis=axis or (0,)),
    }[name]
    with pytest.raises(TypeError, match=f"{name}.*axis"):
        call()


@pytest.mark.parametrize(
    "f",
    [
        lambda a, n: tj.diagonal(a, n),
        lambda a, n: tj.trace(a, n),
        lambda a, n: tj.diag(a[0], n),
        lambda a, n: tj.eye(n, k=n),
        lambda a, n: tj.tri(n, n, n),
        lambda a, n: tj.triu(a, n),
        lambda a, n: tj.roll(a, n, n),
        lambda a, n: tj.scatter_nd([[0]], [1.0], (n + 1,)),
        lambda a, n: tj.one_hot([0], n, axis=n),
        lambda a, n: tj.repeat(a, n, axis=n),
        lambda a, n: tj.rot90(a, n),
        lambda a, n: tj.split(a, n),
        lambda a, n: tj.tile(a, (n, n)),
        lambda a, n: tj.pad(a, n),
        lambda a, n: tj.linspace(0, 1, n + 1),
    ],
)
def test_numbers_as_options(f: Any) -> None:
    a = tj.reshape(tj.arange(9), (3, 3))
    compiled = tj.function(f)
    for n in (1, 0, 1):
        try:
            want = f(a, n)
        except (ValueError, IndexError, ZeroDivisionError) as error:
            with pytest.raises(type(error)):
                compiled(a, n)
            continue
        got = compiled(a, n)
        pairs = [(got, want)] if isinstance(want, tj.Tensor) else zip(got, want, strict=True)
        for g, w in pairs:
            assert g.dtype == w.dtype and np.array_equal(g, w)


def test_lgamma_at_minus_infinity() -> None:
    a = tj.asarray([-np.inf, np.inf, -1.0])
    assert np.array_equal(tj.lgamma(a), [np.inf] * 3) and np.array_equal(tj.function(tj.lgamma)(a), [np.inf] * 3)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_zero_to_a_complex_power(dtype: str) -> None:
    powers = np.array([0.5 - 1j, 0.5, 1j, 0, -1, -1 + 1j, 2 + 1j], dtype)
    with np.errstate(all="ignore"):
        want = np.power(np.zeros(7, dtype), powers)
    for f in (tj.pow, tj.function(tj.pow)):
        assert np.array_equal(f(tj.zeros(7, dtype=dtype), powers), want, equal_nan=True)


@pytest.mark.parametrize("other", ["uint8", "int32"])
def test_logaddexp2_of_an_integer_and_a_double(other: str) -> None:
    a, b = np.array([3, 1], other), np.array([-18.7338, 2.5])
    for f in (tj.logaddexp2, tj.function(tj.logaddexp2)):
        assert np.allclose(f(a, b), np.logaddexp2(a, b), rtol=1e-14, atol=0)


def test_percentile_of_a_traced_number() -> None:
    a = np.random.default_rng(0).normal(size=101)
    assert np.allclose(tj.function(tj.percentile)(a, 33), np.percentile(a, 33), rtol=1e-14, atol=0)


# -- derivatives -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "f",
    [
        lambda v: tj.where(v > 0, v * tj.log(v), 0.0),
        lambda v: tj.where(v > 0, 1 / v, 0.0),
        lambda v: tj.where(v > 0, tj.log(v) ** 2, 0.0),
        lambda v: tj.where(v > 0, tj.sqrt(v) * tj.sqrt(v), 0.0),
        lambda v: tj.where(v != 0, tj.sin(v) / v, 0.0),
        lambda v: tj.where(v > 0, tj.exp(1 / v) * v, 0.0),
        lambda v: tj.where(v > 0, tj.cumprod(tj.stack([v, v / v]))[1], 0.0),
        lambda v: tj.where(v > 0, tj.prod(tj.stack([v, v / v])), 0.0),
        lambda v: tj.where(v > 0, tj.var(tj.stack([1 / v, v])), 0.0),
        lambda v: tj.where(v > 0, tj.logsumexp(tj.stack([v / v, v])), 0.0),
        lambda v: tj.where(v > 0, tj.atan2(v, v) * tj.log(v), 0.0),
    ],
)
def test_a_branch_not_taken_gives_zero_at_every_order(f: Any) -> None:
    derivative = f
    for _ in range(3):
        derivative = tj.grad(derivative)
        assert float(derivative(0.0)) == 0 and float(tj.function(derivative)(0.0)) == 0


@pytest.mark.parametrize("order", [0.5, 1, 1.5, 2, 3, np.inf])
def test_norms_with_zeros_among_the_elements(order: float) -> None:
    for at in ([0.0, 0.0, 0.0], [0.0, 2.0, 0.0]):
        gradient = tj.grad(lambda v: tj.linalg.vector_norm(v, ord=order))
        for g in (gradient, tj.function(gradient)):
            assert np.array_equal(np.asarray(g(tj.asarray(at)))[[0, 2]], [0, 0])


# -- numbers and containers as arguments -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "f",
    [
        lambda a, n: tj.concat([a] * n),
        lambda a, n: tj.concat(n * [a]),
        lambda a, n: a * len((1, 2) * n),
        lambda a, n: a * {3: 5.0, 2: 7.0}[n],
        lambda a, n: a * (2.0 if n in {1, 2} else 3.0),
        lambda a, n: a * n.bit_length(),
        lambda a, n: a + (1 if n == [3] else 2),
    ],
)
def test_a_number_in_the_ways_of_python(f: Any) -> None:
    compiled = tj.function(f)
    for n in (3, 2, 3):
        assert np.array_equal(compiled(x(), n), f(x(), n))


def test_a_number_and_a_list_do_not_add() -> None:
    with pytest.raises(TypeError):
        tj.function(lambda n: [1, 2] + n)(3)


@pytest.mark.parametrize(
    ("f", "argument"),
    [
        (lambda d: d.update(y=d["x"]), {"x": 1.0}),
        (lambda d: d.pop("x"), {"x": 1.0}),
        (lambda d: d.append(d[0]), [1.0]),
        (lambda d: d.__setitem__(0, d[0] + 1), [1.0]),
    ],
)
def test_entries_put_into_an_argument_are_told_of(f: Any, argument: Any) -> None:
    with pytest.warns(UserWarning, match="'d'; the caller's container stays"):
        tj.function(f)(argument)


def test_writes_into_the_tensors_of_a_container_are_not(recwarn: pytest.WarningsRecorder) -> None:
    def f(d: Any) -> None:
        d["x"] += 1
        d["y"][0] = 5

    d = {"x": tj.zeros(2), "y": tj.zeros(2)}
    tj.function(f)(d)
    assert np.array_equal(d["x"], [1, 1]) and np.array_equal(d["y"], [5, 0]) and not recwarn.list


def test_an_exception_ends_a_call_without_writes() -> None:
    v = tj.Variable(1.0)

    @tj.function
    def f(a: Any, i: Any) -> Any:
        v.assign_add(1.0)
        a[0] = 9
        return a[i]

    a = tj.zeros(2)
    with pytest.raises(IndexError):
        f(a, tj.asarray(7))
    assert float(v) == 1 and np.array_equal(a, [0, 0])
    f(a, tj.asarray(1))
    assert float(v) == 2 and np.array_equal(a, [9, 0])


def test_one_warning_per_function_decorated_again_and_again(recwarn: pytest.WarningsRecorder) -> None:
    for name in dir(np):
        if isinstance(getattr(np, name), np.ufunc) and hasattr(tj, name):
            tj.function(getattr(tj, name))
    assert not recwarn.list


@pytest.mark.parametrize("name", ["sort", "argsort"])
def test_sorting_a_0d_tensor(name: str) -> None:
    for f in (getattr(tj, name), tj.function(getattr(tj, name))):
        with pytest.raises(ValueError, match="0-d tensor"):
            f(tj.asarray(1.0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: tj.zeros((2, -1)),
        lambda: tj.full(-1, [1.0]),
        lambda: tj.eye(-1),
        lambda: tj.tri(2, -1),
        lambda: tj.random.uniform((-1,)),
        lambda: tj.random.normal((2, -1)),
        lambda: tj.random.randint(0, 5, (-1,)),
        lambda: tj.scatter_nd([[0]], [1.0], (-1,)),
    ],
)
def test_a_negative_extent(make: Any) -> None:
    for f in (make, tj.function(make)):
        with pytest.raises(ValueError, match=r"a shape must not be negative, got \("):
            f()


@pytest.mark.parametrize(
    ("f", "error"), [(lambda a: a.item(), ValueError), (lambda a: float(a), TypeError), (lambda a: int(a), TypeError)]
)
def test_no_single_value(f: Any, error: type[Exception]) -> None:
    for g in (f, tj.function(f)):
        with pytest.raises(error, match=r"needs a tensor of one element, got shape \(2, 3\)"):
            g(tj.ones((2, 3)))


def _compiled_model() -> tj.Model:
    model = tj.Sequential([tj.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    ("f", "error", "message"),
    [
        (lambda: tj.spec((2, -1)), ValueError, r"spec: a size must not be negative, got \(2, -1\)"),
        (lambda: tj.load(__file__), ValueError, "test_regressions.py is not a file that tj.save wrote"),
        (lambda: tj.layers.Dense(3.5), TypeError, "Dense: units must be an int, got 3.5"),
        (lambda: tj.layers.LSTM("3"), TypeError, "LSTM.*: units must be an int, got '3'"),
        (lambda: _compiled_model().fit(tj.ones((2, 3)), verbose=0), ValueError, r"no targets \(y\) were given"),
        (lambda: _compiled_model().fit(None, tj.ones((2, 1)), verbose=0), ValueError, "fit: there is no data, x is"),
        (lambda: tj.optimizers.Adam("x"), TypeError, "adam: learning_rate must be a number, .* got 'x'"),
        (
            lambda: tj.layers.MultiHeadAttention(2, 4)(tj.ones((2, 3)), tj.ones((2, 3))),
            ValueError,
            r"query must be \(batch, positions, features\), got shape \(2, 3\)",
        ),
        (
            lambda: tj.function(lambda words: words)(np.array(["a"])),
            TypeError,
            "argument 'words' is an array of dtype <U1, which tensors do not hold",
        ),
    ],
)
def test_an_argument_that_does_not_fit_is_named(f: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        f()


def _flips(a: Any) -> Any:
    y = a * 2
    if y.sum() > 5:
        y = -y
    return y


def _halves(a: Any) -> Any:
    while a.sum() > 5:
        a = a / 2
    return a


def _picks(a: Any) -> Any:
    best = a[0]
    for k in range(20):
        if (a * k).sum() % 3 > 1:
            best = best + k
            continue
        if best > 100:
            break
    return best if a.sum() > 3 else -best


def _returns_early(a: Any) -> Any:
    if (a + 1).max() < 0:
        return a * 0
    assert (a * 2).sum() < 1e6
    return a + 1 if a.mean() > 0 and a.max() > 0.5 else a


@pytest.mark.parametrize("f", [_flips, _halves, _picks, _returns_early])
def test_branches_and_loops_leave_sizes_open(f: Any) -> None:
    compiled = tj.function(f)
    for n in (3, 4, 7, 50):
        given = tj.linspace(0.0, 1.0, n)
        np.testing.assert_allclose(compiled(given), f(given), rtol=1e-6)
    assert compiled.trace_count == 2


# -- arrays without elements -------------------------------------------------------------------------------------------
def _spread_of_no_columns(a: Any) -> Any:
    v = a * 2
    none = ((v - v.mean(1, keepdims=True)) / tj.sqrt(v.var(1, keepdims=True) + 0.1))[:2, :, 1::3]
    return tj.var(none, axis=1), none


@pytest.mark.parametrize("f", [
    _spread_of_no_columns,
    lambda a: (tj.stack([tj.flip(tj.cumsum(tj.sort(a[..., 1:], axis=0), axis=0), 0)] * 2, axis=1),),
    lambda a: (tj.stack([tj.cumsum(tj.clip(a[..., 1:], 0, 5), axis=2)] * 2, axis=0),),
])
def test_kernels_without_elements(f: Any) -> None:
    a = tj.asarray(np.ones((17, 65, 1), np.float32))
    for got, wanted in zip(tj.function(f)(a), f(a), strict=True):
        assert got.shape == wanted.shape and got.dtype == wanted.dtype
