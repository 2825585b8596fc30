"""Functions made of ops, against NumPy and SciPy: rounding, statistics, norms, quantiles, running sums, activations.

Each case runs eagerly, recorded, traced and compiled; then their derivatives, at the points where naive ones give nan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.special
import ways

import tracejit as tj

INF, NAN = math.inf, math.nan
X = np.random.default_rng(1).normal(size=(4, 5))
Y = np.random.default_rng(2).normal(size=(4, 5))
Z = X + 1j * Y
I = np.random.default_rng(3).integers(-9, 9, (4, 5))
HOLES = np.where(X > 0.8, NAN, X)
EMPTY_ROW = np.where(np.arange(4)[:, None] == 1, NAN, X)
ENDS = np.array([0.0, -0.0, INF, -INF, NAN, 1.5, -2.5, 2.5, 1e300])
NOTHING = np.array([[-INF, -INF], [-INF, 1.0], [INF, 1.0]])
MASK = X > 0

Case = tuple[Callable[..., Any], Callable[..., Any], tuple[np.ndarray, ...]]


def both(name: str, *args: Any, **kwargs: Any) -> Case:
    """The function of one name here and in NumPy, its arrays first."""
    arrays = tuple(a for a in args if isinstance(a, np.ndarray))
    rest = args[len(arrays):]
    return (lambda *xs: getattr(tj, name)(*xs, *rest, **kwargs),
            lambda *xs: getattr(np, name)(*xs, *rest, **kwargs), arrays)


IGNORING = ("sum", "prod", "mean", "var", "std", "max", "min", "median")
CASES: dict[str, Case] = {
    # elementwise
    "clip": both("clip", X, -0.5, 0.5),
    "clip one side": both("clip", X, None, 0.5),
    "clip arrays": both("clip", X, -Y, Y),
    "round": both("round", ENDS), "round 1": both("round", X, 1), "round -1": both("round", X * 100, -1),
    "round integers": both("round", I * 7, -1), "rint": both("rint", ENDS), "fix": both("fix", ENDS),
    "nan_to_num": both("nan_to_num", ENDS),
    "nan_to_num values": both("nan_to_num", ENDS, nan=1.0, posinf=2.0, neginf=3.0),
    "nan_to_num complex": both("nan_to_num", ENDS + 1j), "heaviside": both("heaviside", ENDS, 0.5),
    "sinc": both("sinc", np.array([0.0, 0.25, 1.0, -2.5])),
    "angle": both("angle", Z),
    "angle deg": both("angle", Z, deg=True),
    "deg2rad": both("deg2rad", X), "rad2deg": both("rad2deg", X), "float_power": both("float_power", np.abs(I) + 1, -1),
    "divmod": both("divmod", X, 0.3), "divmod integers": both("divmod", I, 4), "logaddexp2": both("logaddexp2", X, Y),
    "isclose": both("isclose", ENDS, ENDS[::-1].copy()), "isclose nan": both("isclose", ENDS, ENDS, equal_nan=True),
    "isclose tolerance": both("isclose", X, X + 0.01, rtol=0.02, atol=0), "allclose": both("allclose", X, X + 1e-9),
    "array_equal": both("array_equal", I, I), "array_equal not": both("array_equal", X, Y),
    "isposinf": both("isposinf", ENDS),
    "isneginf": both("isneginf", ENDS),
    "real_if": both("real", Z),
    "imag": both("imag", Z),
    "invert": both("invert", I), "left_shift": both("left_shift", I, 3), "right_shift": both("right_shift", I, 70),
    "cbrt": both("cbrt", X), "exp2": both("exp2", X), "sign complex": both("sign", Z), "abs complex": both("abs", Z),
    "sqrt complex": both("sqrt", Z), "power complex": both("power", Z, 3), "fmod": both("fmod", X, 0.3),
    # reductions
    "mean": both("mean", X),
    "mean axis": both("mean", X, axis=0),
    "mean axes": both("mean", X, axis=(0, 1), keepdims=True),
    "mean integers": both("mean", I, axis=-1),
    "mean complex": both("mean", Z, axis=1),
    "mean where": both("mean", X, where=MASK),
    "var": both("var", X, axis=1),
    "var ddof": both("var", X, axis=0, ddof=1, keepdims=True),
    "var complex": both("var", Z, axis=0),
    "var too few": both("var", X[:1], axis=0, ddof=1),
    "std": both("std", X),
    "std integers": both("std", I, axis=0, ddof=1),
    "std where": both("std", X, axis=1, where=MASK), "average": both("average", X, axis=0),
    "average weights": (lambda x, w: tj.average(x, 1, w), lambda x, w: np.average(x, 1, w), (X, Y**2)),
    "average vector": (lambda x, w: tj.average(x, 1, w, True), lambda x, w: np.average(x, 1, w, True), (X, Y[0] ** 2)),
    "ptp": both("ptp", X, axis=1), "count_nonzero": both("count_nonzero", I * (I > 0), axis=1),
    "sum where": both("sum", X, axis=1, where=MASK), "sum initial": both("sum", X, axis=1, initial=3.0),
    "prod initial": both("prod", X, initial=2.0), "max initial": both("max", X, axis=0, initial=0.5),
    "min initial where": both("min", X, axis=0, initial=0.5, where=MASK),
    "max of nothing": both("max", X[:0], axis=0, initial=1.0),
    "any where": both("any", I, axis=0, where=I > 5), "all of nothing": both("all", X[:0], axis=0),
    "argmax flat": both("argmax", X),
    "argmin keepdims": both("argmin", X, axis=1, keepdims=True),
    "argmax nan": both("argmax", HOLES, axis=1),
    "sum of nothing": both("sum", X[:0], axis=0), "prod of nothing": both("prod", X[:0], axis=0),
    **{f"nan{f}": both(f"nan{f}", HOLES, axis=1) for f in IGNORING},
    **{f"nan{f} all": both(f"nan{f}", HOLES) for f in IGNORING},
    **{f"nan{f} of none": both(f"nan{f}", EMPTY_ROW, axis=1) for f in ("sum", "mean", "median")},
    "nanargmax": both("nanargmax", HOLES, axis=0), "nanargmin": both("nanargmin", HOLES, axis=1),
    "nanquantile": both("nanquantile", EMPTY_ROW, [0.1, 0.7], axis=0),
    "nanpercentile": both("nanpercentile", HOLES, 30, axis=1),
    "median": both("median", X),
    "median axis": both("median", X, axis=0),
    "median axes": both("median", X, axis=(0, 1), keepdims=True),
    "median nan": both("median", HOLES, axis=1), "median integers": both("median", I, axis=0),
    **{f"quantile {m}": both("quantile", X, [0.0, 0.11, 0.5, 0.9, 1.0], axis=1, method=m)
       for m in ("linear", "lower", "higher", "midpoint", "nearest")},
    "quantile one": both("quantile", X, 0.3),
    "quantile keepdims": both("quantile", X, [[0.2], [0.8]], axis=0, keepdims=True),
    "quantile nan": both("quantile", HOLES, 0.5, axis=1), "percentile": both("percentile", X, 75, axis=0),
    # running
    "cumsum": both("cumsum", X), "cumsum axis": both("cumsum", X, axis=0), "cumsum integers": both("cumsum", I, axis=1),
    "cumprod": both("cumprod", X, axis=1), "cumulative_sum": both("cumulative_sum", X, axis=1, include_initial=True),
    "cummax": (lambda x: tj.cummax(x, 1), lambda x: np.maximum.accumulate(x, 1), (HOLES,)),
    "cummin": (lambda x: tj.cummin(x, 0), lambda x: np.minimum.accumulate(x, 0), (X,)),
    "logcumsumexp": (lambda x: tj.logcumsumexp(x, 1), lambda x: np.logaddexp.accumulate(x, 1), (X * 300,)),
    "diff": both("diff", X), "diff 2": both("diff", I, 2, axis=0), "diff bool": both("diff", MASK, axis=1),
    "diff ends": both("diff", X, axis=1, prepend=0.0, append=X[:, :2]), "diff too short": both("diff", X[:, :1], 3),
}  # fmt: skip
NORMS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "default": ((), {}), "vectors": ((), {"axis": 1}), "frobenius": (("fro",), {"axis": (0, 1)}),
    **{f"ord {o}": ((o,), {"axis": 1, "keepdims": True}) for o in (1, 2, 3, 0.5, -1, INF, -INF, 0)},
    **{f"matrix {o}": ((o,), {"axis": (1, 0)}) for o in (1, -1, INF, -INF)},
}
for _name, (_args, _kwargs) in NORMS.items():
    for _kind, _x in (("real", X), ("complex", Z)):
        CASES[f"norm {_name} {_kind}"] = (lambda x, a=_args, k=_kwargs: tj.norm(x, *a, **k),
                                          lambda x, a=_args, k=_kwargs: np.linalg.norm(x, *a, **k), (_x,))
SPECIAL: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "logsumexp": (lambda x: tj.logsumexp(x, 1), lambda x: scipy.special.logsumexp(x, 1)),
    "logsumexp all": (lambda x: tj.logsumexp(x, keepdims=True), lambda x: scipy.special.logsumexp(x, keepdims=True)),
    "softmax": (tj.softmax, lambda x: scipy.special.softmax(x, -1)),
    "log_softmax": (tj.log_softmax, lambda x: scipy.special.log_softmax(x, -1)),
    "sigmoid": (tj.sigmoid, scipy.special.expit), "logit": (lambda x: tj.logit(tj.sigmoid(x)), lambda x: x),
    "log_sigmoid": (tj.log_sigmoid, scipy.special.log_expit), "silu": (tj.silu, lambda x: x * scipy.special.expit(x)),
    "gelu": (tj.gelu, lambda x: x * scipy.special.ndtr(x)), "relu": (tj.relu, lambda x: np.maximum(x, 0)),
    "mish": (tj.mish, lambda x: x * np.tanh(np.logaddexp(x, 0))),
    "softplus": (tj.softplus, lambda x: np.logaddexp(x, 0)),
    "polygamma": (lambda x: tj.polygamma(2, x), lambda x: scipy.special.polygamma(2, x)),
}
for _name, (_here, _there) in SPECIAL.items():
    CASES[_name] = (_here, _there, (X,))


@pytest.mark.filterwarnings("ignore:.*has been decorated", "ignore::RuntimeWarning")
@pytest.mark.parametrize("way", ways.WAYS, ids=lambda w: w.__name__)
@pytest.mark.parametrize("name", CASES)
def test_as_numpy(name: str, way: Callable[..., Any]) -> None:
    here, there, arrays = CASES[name]
    wanted, found = there(*arrays), way(here, *arrays)
    pairs = zip(found, wanted) if isinstance(wanted, tuple) else [(found, wanted)]
    for f, w in pairs:
        np.testing.assert_allclose(f, w, rtol=1e-11, atol=1e-13)
        assert np.shape(f) == np.shape(w)
        assert f.dtype == np.asarray(w).dtype or np.asarray(w).dtype.kind in "iu"


NUMPY = ["clip", "round", "nan_to_num", "sinc", "angle", "isclose", "mean", "var", "std", "average", "ptp", "nansum",
         "nanmean", "nanmax", "median", "quantile one", "percentile", "cumsum", "cumprod", "diff", "sum where",
         "argmax flat",
         "heaviside", "divmod", "allclose", "array_equal", "count_nonzero"]


@pytest.mark.parametrize("name", NUMPY)
def test_numpy_functions_take_tensors(name: str) -> None:
    _, there, arrays = CASES[name]
    found = there(*map(tj.asarray, arrays))
    for f, w in zip(found, there(*arrays)) if isinstance(found, tuple) else [(found, there(*arrays))]:
        assert isinstance(f, tj.Tensor)
        np.testing.assert_allclose(f.numpy(), w, rtol=1e-11, atol=1e-13)


def test_numpy_ufuncs_take_tensors() -> None:
    t = tj.asarray(X)
    for ufunc in (np.sin, np.exp, np.floor, np.isfinite, np.negative, np.square, np.arctan, np.signbit, np.fabs):
        assert isinstance(ufunc(t), tj.Tensor)
        np.testing.assert_allclose(ufunc(t).numpy(), ufunc(X))
    for ufunc in (np.add, np.maximum, np.arctan2, np.hypot, np.copysign, np.less, np.logical_or, np.fmin):
        assert isinstance(ufunc(t, Y), tj.Tensor) and isinstance(ufunc(X, tj.asarray(Y)), tj.Tensor)
        np.testing.assert_allclose(ufunc(t, Y).numpy(), ufunc(X, Y))
    for ufunc in (np.add, np.multiply, np.maximum, np.minimum):
        np.testing.assert_allclose(ufunc.reduce(t).numpy(), ufunc.reduce(X))
        np.testing.assert_allclose(ufunc.reduce(t, axis=None).numpy(), ufunc.reduce(X, axis=None))
    with pytest.raises(TypeError, match="out= is not supported"):
        np.sum(t, out=np.zeros(()))


def test_methods() -> None:
    t = tj.asarray(X)
    for name in ("sum", "prod", "max", "min", "mean", "std", "var", "argmax", "argmin", "any", "all", "cumsum",
                 "cumprod"):
        np.testing.assert_allclose(getattr(t, name)(axis=1).numpy(), getattr(X, name)(axis=1))
    np.testing.assert_allclose(t.clip(-1, 1).numpy(), X.clip(-1, 1))
    np.testing.assert_allclose(t.round(1).numpy(), X.round(1))
    z = tj.asarray(Z)
    np.testing.assert_allclose(z.real.numpy(), Z.real)
    np.testing.assert_allclose(z.imag.numpy(), Z.imag)
    np.testing.assert_allclose(z.conj().numpy(), Z.conj())
    assert math.floor(tj.asarray(1.5)).item() == 1 and math.ceil(tj.asarray(1.5)).item() == 2
    assert round(tj.asarray(1.26), 1).item() == pytest.approx(1.3) and abs(tj.asarray(-2)).item() == 2
    for pair in (divmod(tj.asarray(7), 2), divmod(7, tj.asarray(2))):
        assert [v.item() for v in pair] == [3, 1]


def test_special_functions_against_references() -> None:
    x = np.array([-3.7, -1.2, -0.5, 0.1, 0.5, 1.0, 2.5, 30.0, 1e4])
    for n in (1, 2, 3, 5):
        wanted = [float(mpmath.psi(n, v)) for v in x]
        np.testing.assert_allclose(tj.polygamma(n, x).numpy(), wanted, rtol=1e-11)
        np.testing.assert_allclose(ways.compiled(lambda t, n=n: tj.polygamma(n, t), x), wanted, rtol=1e-11)
    with pytest.raises(ValueError, match="must not be negative"):
        tj.polygamma(-1, x)


def test_infinite_neighbours_of_a_quantile() -> None:
    x = tj.asarray([1.0, 2.0, INF])
    assert tj.quantile(x, [0.5, 0.9]).tolist() == [2.0, INF]


def test_half_precision_sums_in_single() -> None:
    x = tj.ones((5000,), dtype="float16")
    for f in (tj.sum, tj.mean, tj.std, tj.norm, tj.logsumexp, tj.cumsum):
        for way in (ways.eager, ways.compiled):
            assert way(f, x.numpy()).dtype == "float16"
    assert tj.sum(x).item() == 5000 and tj.mean(x * 60).item() == 60
    assert ways.eager(tj.cumsum, x.numpy())[-1] == 5000


@pytest.mark.parametrize("f, message", [
    (lambda: tj.max(tj.ones((0, 2)), axis=0), "empty axis"), (lambda: tj.argmin(tj.ones(0)), "empty axis"),
    (lambda: tj.quantile([1.0], 1.5), "must lie in"), (lambda: tj.quantile([1.0], 0.5, method="x"), "is not one of"),
    (lambda: tj.norm(tj.ones((2, 2)), "nuc"), "singular values"), (lambda: tj.sum([1.0], axis=(0, 0)), "repeats"),
    (lambda: tj.max([1.0], where=[True]), "needs initial"), (lambda: tj.diff([1.0], -1), "negative"),
    (lambda: tj.average([1.0, 2.0], weights=[1.0, 2.0, 3.0]), "fit neither"),
])
def test_errors(f: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        f()


# -- derivatives where naive ones fail ---------------------------------------------------------------------------------
def gradient(f: Callable[..., Any], x: Any) -> Any:
    eager = tj.grad(f)(tj.asarray(x))
    inside = tj.function(tj.grad(f))(tj.asarray(x))
    through = tj.grad(tj.function(f))(tj.asarray(x))
    np.testing.assert_allclose(eager.numpy(), inside.numpy(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(eager.numpy(), through.numpy(), rtol=1e-5, atol=1e-7)
    return eager.tolist()


ZERO3 = [0.0, 0.0, 0.0]
GRADIENTS: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "norm at 0": (tj.norm, ZERO3, ZERO3),
    "norm squared at 0": (lambda v: tj.norm(v) ** 2, ZERO3, ZERO3),
    "rows of norms": (lambda v: tj.sum(tj.norm(v, axis=1)), [[0.0, 0.0], [3.0, 4.0]], [[0.0, 0.0], [0.6, 0.8]]),
    "3-norm at 0": (lambda v: tj.norm(v, 3), ZERO3, ZERO3),
    "normalise at 0": (lambda v: tj.sum(v / (tj.norm(v) + 1.0)), ZERO3, [1.0, 1.0, 1.0]),
    "std of equal": (tj.std, [2.0, 2.0], [0.0, 0.0]),
    "abs": (lambda v: tj.sum(tj.abs(v)), [0.0, -1.0], [0.0, -1.0]),
    "relu": (lambda v: tj.sum(tj.relu(v)), [0.0, 1.0, -1.0], [0.0, 1.0, 0.0]),
    "hypot": (lambda v: tj.hypot(v[0], v[1]), [0.0, 0.0], [0.0, 0.0]),
    "where over sqrt": (lambda v: tj.sum(tj.where(v > 0, tj.sqrt(v), 3 * v)), [-2.0, 9.0, 0.0], [3.0, 1 / 6, 3.0]),
    "sin times sqrt": (lambda v: tj.sum(tj.sin(v) * tj.sqrt(v)), [0.0], [0.0]),
    "where over log": (lambda v: tj.sum(tj.where(v > 0, tj.log(v), 0.0)), [0.0, 2.0], [0.0, 0.5]),
    "square by power": (lambda v: tj.sum(v**2.0), [0.0, 3.0], [0.0, 6.0]),
    "cube": (lambda v: tj.sum(v**3), [0.0, 2.0], [0.0, 12.0]),
    "fractional power times 0": (lambda v: tj.sum(0.0 * v**0.3), [0.0], [0.0]),
    "power 0": (lambda v: tj.sum(v**tj.asarray([0.0, 1.0])), [0.0, 0.0], [0.0, 1.0]),
    "exponent at 0": (lambda p: tj.sum(tj.asarray([0.0, 2.0]) ** p), [2.0, 0.0], [0.0, math.log(2)]),
    "max ties": (tj.max, [1.0, 3.0, 3.0], [0.0, 0.5, 0.5]),
    "min ties": (lambda v: tj.sum(tj.min(v, axis=1)), [[1.0, 1.0], [2.0, 1.0]], [[0.5, 0.5], [0.0, 1.0]]),
    "maximum ties": (lambda v: tj.sum(tj.maximum(v, 1.0)), [1.0, 2.0, 0.0], [0.5, 1.0, 0.0]),
    "clip ties": (lambda v: tj.sum(tj.clip(v, 0, 1)), [0.0, 0.5, 1.0, 2.0], [0.5, 1.0, 0.5, 0.0]),
    "prod with a zero": (tj.prod, [2.0, 0.0, 3.0], [0.0, 6.0, 0.0]),
    "prod with zeros": (tj.prod, [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    "cumprod with a zero": (lambda v: tj.sum(tj.cumprod(v)), [2.0, 0.0, 3.0], [1.0, 8.0, 0.0]),
    "logsumexp of -inf": (lambda v: tj.logsumexp(v), [-INF, -INF], [0.0, 0.0]),
    "logsumexp with -inf": (lambda v: tj.logsumexp(v), [-INF, 1.0], [0.0, 1.0]),
    "rows of logsumexp": (lambda v: tj.sum(tj.logsumexp(v, axis=1)),
                          [[-INF, -INF], [0.0, 0.0]], [[0.0, 0.0], [0.5, 0.5]]),
    "logcumsumexp": (lambda v: tj.sum(tj.logcumsumexp(v)), [-INF, 0.0, 0.0], [0.0, 1.5, 0.5]),
    "cummax": (lambda v: tj.sum(tj.cummax(v)), [1.0, 3.0, 2.0, 3.0], [1.0, 3.0, 0.0, 0.0]),
    "median": (tj.median, [1.0, 5.0, 3.0, 4.0], [0.0, 0.0, 0.5, 0.5]),
    "quantile": (lambda v: tj.quantile(v, 0.25), [1.0, 5.0, 3.0], [0.5, 0.0, 0.5]),
    "nanmean": (tj.nanmean, [1.0, NAN, 3.0], [0.5, 0.0, 0.5]),
    "nan_to_num": (lambda v: tj.sum(tj.nan_to_num(v)), [1.0, NAN, INF], [1.0, 0.0, 0.0]),
    "sinc": (lambda v: tj.sum(tj.sinc(v)), [0.0], [0.0]),
    "softmax": (lambda v: tj.softmax(v)[0], [0.0, 0.0], [0.25, -0.25]),
    "atan2 at 0": (lambda v: tj.atan2(v[0], v[1]), [0.0, 0.0], [0.0, 0.0]),
    "logaddexp ties": (lambda v: tj.logaddexp(v[0], v[1]), [-INF, -INF], [0.5, 0.5]),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_at_singular_points(name: str) -> None:
    f, x, wanted = GRADIENTS[name]
    np.testing.assert_allclose(gradient(f, x), wanted, rtol=1e-5, atol=1e-7)


def test_second_derivatives_at_singular_points() -> None:
    hess = tj.hessian(tj.prod)(tj.asarray([2.0, 0.0, 3.0]))
    assert hess.tolist() == [[0, 3, 0], [3, 0, 2], [0, 2, 0]]
    assert tj.hessian(tj.prod)(tj.asarray([0.0, 0.0, 3.0])).tolist() == [[0, 3, 0], [3, 0, 0], [0, 0, 0]]
    assert tj.hessian(lambda v: tj.sum(v**2))(tj.asarray([0.0, 1.0])).tolist() == [[2, 0], [0, 2]]
    assert tj.hessian(lambda v: tj.sum(v**2.0 * v))(tj.asarray([0.0, 1.0])).tolist() == [[0, 0], [0, 6]]
    bend = tj.hessian(lambda v: tj.sum(tj.sinc(v)))(tj.asarray([0.0]))
    assert bend.item() == pytest.approx(-math.pi**2 / 3, rel=1e-5)
    twice = tj.grad(lambda v: tj.sum(tj.grad(lambda u: tj.sum(tj.where(u > 0, tj.sqrt(u), 0.0)))(v)))
    np.testing.assert_allclose(twice(tj.asarray([4.0, -1.0, 0.0])).numpy(), [-1 / 32, 0.0, 0.0])


def test_complex_gradients_point_uphill() -> None:
    z = tj.asarray(1 + 2j)
    assert tj.grad(lambda w: tj.abs(w) ** 2)(z).item() == pytest.approx(2 + 4j)
    assert tj.grad(lambda w: tj.real(w))(z).item() == 1
    assert tj.grad(lambda w: tj.imag(w))(z).item() == 1j
    assert tj.grad(tj.abs)(tj.asarray(0j)).item() == 0
    assert tj.grad(lambda w: tj.real(w * w))(z).item() == pytest.approx(2 - 4j)
    for f in (lambda w: tj.abs(w) ** 2, lambda w: tj.real(tj.exp(w)), lambda w: tj.imag(tj.sqrt(w)), tj.angle):
        step = 1e-3 * tj.grad(f)(z)
        assert f(z + step).item() > f(z).item()
