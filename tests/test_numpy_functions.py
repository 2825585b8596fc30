"""Functions of NumPy's everyday vocabulary, against NumPy: what takes in and leaves out elements, slopes, filters,
covariances; then the corners of dtypes, orders and modes where tensors once gave something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import ways

import tracejit as tj

random = np.random.default_rng(5)
X, V, U = random.normal(size=(3, 5)), random.normal(size=7), random.normal(size=4)
Z = V + 1j * random.normal(size=7)
I = random.integers(-9, 9, (3, 5))
HOLES = np.where(X > 0.5, np.nan, X)
TIMES = np.cumsum(random.random(7)) + 1
WEIGHTS, COUNTS = random.random(5), np.array([1, 2, 1, 3, 1])

Case = tuple[str, Callable[..., Any], tuple[np.ndarray, ...]]


def case(name: str, *args: Any, **options: Any) -> Case:
    """A call of the function of that name; its arrays, which are traced, come first."""
    arrays = tuple(a for a in args if isinstance(a, np.ndarray))
    rest = args[len(arrays):]
    assert all(a is b for a, b in zip(args, arrays))
    return name, lambda xp, *xs: getattr(xp, name)(*xs, *rest, **options), arrays


CASES: list[Case] = [
    case("append", X, U), case("append", X, I, axis=0), case("append", I, 5),
    case("insert", V, 2, 9.0), case("insert", V, -1, [1, 2, 3]), case("insert", V, [1, 1, 7, -2], [1.0, 2, 3, 4]),
    case("insert", X, 1, 9, axis=1), case("insert", X, [0, 3], [[7.0], [8.0]], axis=0), case("insert", I, 3, 2.9),
    case("insert", V, slice(1, 5, 2), 0), case("insert", V, [], []),
    ("insert", lambda xp, x: xp.insert(x, V > 0, 5), (V,)),
    case("insert", V[:0], 0, [1.0, 2.0]), case("insert", X, -5, 1.5, axis=-1),
    ("insert", lambda xp, x, v: xp.insert(x, 1, v, axis=1), (X, U[:3])),
    ("insert", lambda xp, x, v: xp.insert(x, [1], v, axis=1), (X, U[:3, None])),
    ("insert", lambda xp, x, v: xp.insert(x, [4, 0, 2], v, axis=1), (X, X[:, :3])),
    case("delete", V, 2), case("delete", V, [-1, 0]), case("delete", X, slice(None, None, 2), axis=1),
    case("delete", X, 4), ("delete", lambda xp, x: xp.delete(x, V > 0), (V,)), case("delete", X, [], axis=0),
    case("delete", X, [2, 2, 0], axis=0), case("delete", V, slice(5, 1, -1)),
    case("resize", X, (4, 2)), case("resize", V, (3, 7)), case("resize", V, 3), case("resize", V[:0], (2, 2)),
    case("resize", V, (0, 2)), case("diagflat", X, 1), case("diagflat", V, -2),
    ("block", lambda xp, x, i: xp.block([[x, i], [i, x]]), (X, I)), ("block", lambda xp, x: xp.block([x, 1, x]), (V,)),
    ("block", lambda xp, x, v: xp.block([[x, x], [v, 1, 2, 3]]), (X, V)), ("block", lambda xp, x: xp.block(x), (X,)),
    case("gradient", V), case("gradient", V, 0.5), case("gradient", V, TIMES), case("gradient", V, edge_order=2),
    case("gradient", V, TIMES, edge_order=2), case("gradient", X), case("gradient", I), case("gradient", Z),
    ("gradient", lambda xp, x, t: xp.gradient(x, 2.0, t), (X, TIMES[:5])), case("gradient", X, axis=-1),
    case("gradient", X, 0.1, axis=(1, 0), edge_order=2), case("gradient", V[:2]), case("gradient", V[:2], TIMES[:2]),
    case("gradient", V[:3], TIMES[:3], edge_order=2),
    *[case(f, a, b, mode) for f in ("convolve", "correlate") for mode in ("full", "same", "valid")
      for a, b in ((V, U), (U, V), (V, U[:3]), (U[:3], V), (Z, U), (I[0], I[1, :3]), (V, V), (V, U[:1]))],
    case("ediff1d", X), case("ediff1d", I, 9, [1, 2]), case("ediff1d", V[:1]),
    case("unwrap", V * 9), case("unwrap", X * 9, axis=0), case("unwrap", V * 9, 4.0), case("unwrap", V[:0]),
    case("unwrap", I * 5, period=7), case("unwrap", I * 5, period=8, axis=0),
    case("cov", X), case("cov", V), case("cov", V, V**2), case("cov", X, rowvar=False), case("cov", X, bias=True),
    case("cov", X, ddof=2), case("cov", I), case("cov", Z), case("cov", X + 1j * I), case("cov", X[:1]),
    case("cov", X, X[1]), case("cov", X, fweights=COUNTS), case("cov", X, aweights=WEIGHTS),
    case("cov", X, fweights=COUNTS, aweights=WEIGHTS, ddof=0),
    case("corrcoef", X), case("corrcoef", V, V**2), case("corrcoef", V), case("corrcoef", X, rowvar=False),
    case("corrcoef", X + 1j * I),
    case("vander", V), case("vander", I[0], 3), case("vander", V, 4, increasing=True), case("vander", V, 0),
    case("modf", X * 3), case("modf", np.array([np.inf, -np.inf, np.nan, -0.0, 2.0, -0.5])),
    case("nancumsum", HOLES), case("nancumsum", HOLES, 1), case("nancumprod", HOLES, 0), case("nancumsum", I, 0),
    case("take", V, [9, -9, 3], mode="wrap"), case("take", V, [9, -9, 3], mode="clip"),
    case("take", X, [[7, -1]], axis=1, mode="wrap"), case("ravel", X, "F"), case("reshape", X, (5, 3), order="F"),
    case("reshape", X, (-1, 3), order="F"), case("reshape", X, -1, order="A"),
    case("clip", I.astype("uint8"), -1, 300), case("clip", I, None, 2**70), case("tril", X > 0, 1), case("triu", I < 0),
    case("any", X.astype("float16"), axis=1), case("all", X.astype("float16")), case("count_nonzero", X > 0, axis=0),
    case("vecdot", I.astype("int8") * 9, I.astype("int8")), case("heaviside", X > 0, np.float16([0.5] * 5)),
    ("norm", lambda xp, x: xp.linalg.norm(x, np.inf, axis=-1), (X[:, :0],)),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*has been decorated", "ignore::RuntimeWarning")
@pytest.mark.parametrize("name, f, arrays", CASES, ids=[f"{c[0]} {k}" for k, c in enumerate(CASES)])
def test_as_numpy(name: str, f: Callable[..., Any], arrays: tuple[np.ndarray, ...]) -> None:
    wanted = f(np, *arrays)
    for way in ways.WAYS:
        ways.same(way(lambda *xs: f(tj, *xs), *arrays), wanted, 1e-11)


def test_numpy_functions_take_tensors() -> None:
    x = tj.asarray(X)
    for f in (lambda x: np.append(x, 1.0), lambda x: np.insert(x, 0, 1.0), lambda x: np.delete(x, 0), np.gradient,
              lambda x: np.block([x, x]), lambda x: np.convolve(x[0], [1.0, 2.0]), np.cov, np.corrcoef, np.nancumsum,
              lambda x: np.around(x, 1), lambda x: np.resize(x, (2, 2)), lambda x: np.piecewise(x, [x > 0], [1, 2])):
        for run in (f, tj.function(f)):
            found = run(x)
            for a, b in zip(found, f(X)) if isinstance(found, tuple) else [(found, f(X))]:
                assert isinstance(a, tj.Tensor)
                np.testing.assert_allclose(a.numpy(), b, rtol=1e-12)


UFUNC_METHODS = {
    "accumulate": lambda x: (np.add.accumulate(x), np.multiply.accumulate(x, axis=1), np.maximum.accumulate(x),
                             np.minimum.accumulate(x, -1), np.logaddexp.accumulate(x, 0)),
    "reduce": lambda x: (np.add.reduce(x), np.maximum.reduce(x, axis=None), np.multiply.reduce(x, 1, keepdims=True)),
    "outer": lambda x: (np.subtract.outer(x, x[0]), np.hypot.outer(x[0], [1.0, 2.0]), np.greater.outer(x[0], 0.5)),
    "types": lambda x: (np.add.reduce(x, dtype="float32"), np.add(x, 1, dtype="float32"), np.astype(x, np.int64),
                        np.multiply((x * 100).astype("int8"), np.int8(100), dtype="int32"), np.less(x, 0, dtype=bool)),
    "partition": lambda x: (np.partition(x, 2)[:, 2], np.sort(np.argpartition(x, 4), axis=1)),
}  # fmt: skip


@pytest.mark.parametrize("f", UFUNC_METHODS.values(), ids=UFUNC_METHODS)
def test_methods_of_ufuncs_take_tensors(f: Callable[..., Any]) -> None:
    for run in (f, tj.function(f)):
        for found, wanted in zip(run(tj.asarray(X)), f(X), strict=True):
            assert isinstance(found, tj.Tensor) and found.dtype == wanted.dtype
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6 if wanted.dtype == "float32" else 1e-12)


def test_ufuncs_write_at_places() -> None:
    places = np.array([0, 2, 2, -1])

    def f(t):
        np.add.at(t, places, 2.0)
        np.subtract.at(t, [1], 1.0)
        np.multiply.at(t, [0, 0], 3.0)
        np.maximum.at(t, places, t[:4] * 0.5)
        np.minimum.at(t, slice(3, 5), -0.25)

    wanted = V.copy()
    f(wanted)
    for run in (f, tj.function(f)):
        for given in (tj.asarray(V), V.copy()):  # the caller sees it
            run(given)
            np.testing.assert_allclose(np.asarray(given), wanted, rtol=1e-12)
    with pytest.raises(TypeError, match=r"np\.divide\.at is not supported on tensors"):
        np.divide.at(tj.asarray(V), [0], 2.0)
    with pytest.raises(TypeError, match="a NumPy array cannot hold tensors"):
        np.add.at(V.copy(), [0], tj.ones(1))


@pytest.mark.parametrize("run", [lambda f: f, tj.function], ids=["eager", "compiled"])
def test_integers_refuse_negative_powers(run: Any) -> None:
    whole, mixed = tj.asarray([1, 2, -3]), tj.asarray([3, -1, 0])
    for f, args in ((lambda a, n: a**n, (whole, mixed)), (lambda a, n: n**a, (whole, 2)), (tj.pow, (whole, -1))):
        with pytest.raises(ValueError, match=r"negative (integer )?power"):
            run(f)(*args)
    assert run(lambda a, n: a**n)(whole, abs(mixed)).tolist() == [1, 2, 1]
    assert run(lambda a, n: a**n)(tj.asarray([0.5, 2.0]), mixed[:2]).tolist() == [0.125, 0.5]


def test_piecewise() -> None:
    for way in ways.WAYS:
        for functions in ([lambda v: v**2, 3.0], [np.negative, 2.0, lambda v: v + 10]):
            wanted = np.piecewise(X, [X < 0, X > 1], functions)
            ways.same(way(lambda x: tj.piecewise(x, [x < 0, x > 1], functions), X), wanted, 1e-12)  # noqa: B023
        ways.same(way(lambda x: tj.piecewise(x, x < 0, [-1, 1]), V), np.piecewise(V, V < 0, [-1, 1]))


def test_derivatives() -> None:
    for f in (lambda x: tj.insert(x, [0, 2], x[1:3]), lambda x: tj.delete(x, [1]), lambda x: tj.convolve(x, x[:3]),
              lambda x: tj.gradient(x, edge_order=2), lambda x: tj.gradient(x, tj.cumsum(tj.exp(x))), tj.unwrap,
              lambda x: tj.cov(x, x**2), lambda x: tj.corrcoef(x, tj.exp(x)), tj.vander,
              lambda x: tj.take(x, [9, -9], mode="wrap"), lambda x: tj.reshape(x, (7, 1), order="F")):
        tj.check_grads(lambda x: (f(x) ** 2).sum(), (tj.asarray(V),), order=2)  # noqa: B023


@pytest.mark.parametrize("run", [lambda f: f, tj.function], ids=["eager", "compiled"])
def test_what_is_refused(run: Any) -> None:
    x = tj.asarray(X)
    for f, error, message in (
        (lambda x: tj.insert(x, 9, 1.0, axis=0), IndexError, "place 9 is out of bounds for axis 0 of size 3"),
        (lambda x: tj.insert(x, [0.5], 1.0), IndexError, "places must be integers"),
        (lambda x: tj.delete(x, 3, axis=0), IndexError, "index 3 is out of bounds for axis 0 with size 3"),
        (lambda x: tj.block([[x], x]), ValueError, "lists of the depths"),
        (lambda x: tj.block([]), ValueError, "an empty list"),
        (lambda x: tj.gradient(x, 1.0, 2.0, 3.0), TypeError, "3 spacings for 2 axes"),
        (lambda x: tj.gradient(x[:1]), ValueError, "needs at least 2 samples"),
        (lambda x: tj.convolve(x, x), ValueError, "two vectors"),
        (lambda x: tj.convolve(x[0], x[1], "all"), ValueError, "mode must be full, same or valid"),
        (lambda x: tj.take(x, 3, mode="near"), ValueError, "mode must be raise, wrap or clip"),
        (lambda x: tj.reshape(x, -1, order="B"), ValueError, "order must be C, F, A or K"),
        (lambda x: tj.heaviside(x, 1j), TypeError, "complex is not supported"),
        (lambda x: tj.cov(x[None]), ValueError, "vectors or matrices"),
    ):
        with pytest.raises(error, match=message):
            run(f)(x)
