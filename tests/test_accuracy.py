"""Sums and what is made of them: no worse than NumPy's pairwise sums against wider arithmetic, on ten million elements
too; and the same bits for every number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit import config

N = 10_000_000
pytestmark = [pytest.mark.filterwarnings("ignore:.*has been decorated:UserWarning"),
              pytest.mark.usefixtures("threads_as_before")]


def random(n: int) -> np.ndarray:
    return np.random.default_rng(7).random(n, np.float32)


def alternating(n: int) -> np.ndarray:
    """Neighbours nearly cancel."""
    x = random(n) + np.float32(1)
    x[1::2] *= -1
    return x


def offset(n: int) -> np.ndarray:
    """Small differences beside a large common part."""
    return (np.random.default_rng(8).standard_normal(n, np.float32) + np.float32(1000)).astype(np.float32)


INPUTS = {"random": random, "alternating": alternating, "offset": offset}


def log_sum_exp(x: Any, xp: Any) -> Any:
    m = x.max()
    return m + xp.log(xp.exp(x - m).sum())


# name: the tensor function, NumPy's way of it, a scale for the errors (of what is added up)
SUMS: dict[str, tuple[Callable[..., Any], Callable[[np.ndarray], Any], Callable[[np.ndarray], float]]] = {
    "sum": (lambda x: x.sum(), lambda x: x.sum(), lambda x: np.abs(x).sum()),
    "mean": (lambda x: x.mean(), lambda x: x.mean(), lambda x: np.abs(x).mean()),
    "var": (lambda x: x.var(), lambda x: x.var(), lambda x: x.var()),
    "std": (lambda x: x.std(), lambda x: x.std(), lambda x: x.std()),
    "norm": (lambda x: tj.norm(x), lambda x: np.sqrt((x * x).sum()), lambda x: np.sqrt((x * x).sum())),
    "logsumexp": (lambda x: tj.logsumexp(x), lambda x: log_sum_exp(x, np), lambda x: abs(log_sum_exp(x, np))),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_ten_million_float32(kind: str) -> None:
    """The error, in units of float32's rounding of what is added, is at most NumPy's, or one unit."""
    x = INPUTS[kind](N)
    exact = x.astype(np.float64)
    t = tj.asarray(x)
    for name, (f, numpy, scale) in SUMS.items():
        want, unit = float(numpy(exact)), float(np.finfo(np.float32).eps * scale(exact))
        ours = abs(float(tj.function(f)(t)) - want) / unit
        theirs = abs(float(numpy(x)) - want) / unit
        assert ours <= max(theirs, 1.0), f"{name} of {kind} numbers: {ours:.3g} units, NumPy's {theirs:.3g}"


@pytest.mark.parametrize("kind", INPUTS)
def test_ten_million_running_sums(kind: str) -> None:
    """Running sums are at most as far off as NumPy's, which add one by one."""
    x = INPUTS[kind](N)
    want = np.cumsum(x, dtype=np.float64)
    ours = np.abs(tj.function(lambda x: tj.cumsum(x))(tj.asarray(x)).numpy() - want).max()
    theirs = np.abs(np.cumsum(x) - want).max()
    assert ours <= max(theirs, np.finfo(np.float32).eps * np.abs(want).max())


@pytest.mark.parametrize("axis", [0, 1, 2, (0, 2), (1, 2)])
def test_axes_are_as_good(axis: Any) -> None:
    """Each axis and pair of axes by itself: rows, columns and both, of any length."""
    x = offset(64 * 501 * 37).reshape(64, 501, 37)
    want = x.sum(axis, dtype=np.float64)
    unit = np.finfo(np.float32).eps * want.max()
    ours = np.abs(tj.function(lambda x: x.sum(axis))(tj.asarray(x)).numpy() - want).max() / unit
    theirs = np.abs(x.sum(axis) - want).max() / unit
    assert ours <= max(theirs, 2.0)
    spread = x.var(axis, dtype=np.float64)
    found = tj.function(lambda x: x.var(axis))(tj.asarray(x)).numpy()
    np.testing.assert_allclose(found, spread, rtol=1e-5)


def test_float64_sums() -> None:
    x = np.random.default_rng(3).random(2_000_000) + 1e6
    want = x.sum(dtype=np.longdouble)
    unit = np.finfo(np.float64).eps * want
    found = tj.function(lambda x: x.sum())(x).numpy()
    assert abs(found - want) <= max(abs(x.sum() - want), unit)


def softmax(x: Any, xp: Any) -> Any:
    e = xp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x: Any, xp: Any) -> Any:
    d = x - x.mean(-1, keepdims=True)
    return d / xp.sqrt((d * d).mean(-1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("shape", [(300, 1000), (3, 300_000), (5000, 17)])
@pytest.mark.parametrize("f", [softmax, layer_norm])
def test_rows_against_float64(f: Callable[..., Any], shape: tuple[int, int]) -> None:
    x = (np.random.default_rng(5).standard_normal(shape) * 5 + 3).astype(np.float32)
    want = f(x.astype(np.float64), np)
    ours = np.abs(tj.function(lambda x: f(x, tj))(x).numpy() - want)
    theirs = np.abs(f(x, np) - want)
    scale = np.abs(want) + np.finfo(np.float32).tiny if f is softmax else np.abs(want).max()
    assert (ours / scale).max() <= max(1.5 * (theirs / scale).max(), 4 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("f", [softmax, layer_norm])
def test_gradients_of_rows_against_float64(f: Callable[..., Any]) -> None:
    rng = np.random.default_rng(6)
    x, w = (rng.standard_normal((200, 777)) for _ in range(2))

    def gradient(x: Any, w: Any) -> Any:
        return tj.grad(lambda x: (f(x, tj) * w).sum())(x)

    want = tj.function(gradient)(x, w).numpy()
    found = tj.function(gradient)(x.astype(np.float32), w.astype(np.float32)).numpy()
    assert np.abs(found - want).max() <= 1e-5 * np.abs(want).max()


# -- threads -------------------------------------------------------------------------------------------------------
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, axis: x.sum(axis),
    "prod": lambda x, axis: (1 + x * 1e-4).prod(axis),
    "mean": lambda x, axis: x.mean(axis),
    "var": lambda x, axis: x.var(axis),
    "max": lambda x, axis: x.max(axis),
    "argmin": lambda x, axis: x.argmin(axis) if not isinstance(axis, tuple) else x.min(axis),
    "norm": lambda x, axis: tj.sqrt((x * x).sum(axis)),
    "logsumexp": lambda x, axis: tj.logsumexp(x, axis=axis),
    "any": lambda x, axis: (x > 3).any(axis),
    "cumsum": lambda x, axis: tj.cumsum(x, axis=axis if isinstance(axis, int) else -1),
}
SHAPES = [(1_500_000,), (700, 900), (3, 250_000), (200_000, 4), (40, 50, 300)]


def same_for_all(f: Callable[..., Any], *args: Any) -> bool:
    run, bits = tj.function(f), set()
    for count in (1, 2, 3):
        config.set_num_threads(count)
        for _ in range(2):
            found = run(*args)
            bits.add(b"".join(t.numpy().tobytes() for t in (found if isinstance(found, tuple) else (found,))))
    return len(bits) == 1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reductions_do_not_depend_on_threads(shape: tuple[int, ...]) -> None:
    x = tj.asarray(np.random.default_rng(1).standard_normal(shape, np.float32))
    axes: list[Any] = [None, *range(len(shape)), *([(0, 2), (1, 2)] if len(shape) == 3 else [])]
    for axis in axes:
        def every(x: Any, axis: Any = axis) -> tuple[Any, ...]:
            return tuple(f(x, axis) for f in REDUCTIONS.values())

        assert same_for_all(every, x), f"all of them along {axis}"
        for name in ("sum", "logsumexp"):  # and alone
            assert same_for_all(lambda x, name=name, axis=axis: REDUCTIONS[name](x, axis), x), f"{name} along {axis}"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [(257, 129, 300), (1000, 64, 1000), (3, 4000, 5), (1, 3000, 700), (700, 3000, 1)])
def test_products_do_not_depend_on_threads(sizes: tuple[int, int, int], dtype: str) -> None:
    m, k, n = sizes
    rng = np.random.default_rng(2)
    a, b = (tj.asarray(rng.standard_normal(s).astype(dtype)) for s in ((m, k), (k, n)))
    assert same_for_all(lambda a, b: (a @ b, tj.tanh(a @ b + 1), b.T @ a.T), a, b)
    stacked = tj.asarray(rng.standard_normal((9, m, 16)).astype(dtype))
    assert same_for_all(lambda s, a: (s @ s.mT, (s.mT @ a).sum(0)), stacked, a)


@pytest.mark.parametrize("f", [softmax, layer_norm])
def test_rows_do_not_depend_on_threads(f: Callable[..., Any]) -> None:
    for shape in [(500, 1000), (2, 400_000), (100_000, 7)]:
        x = tj.asarray(np.random.default_rng(4).standard_normal(shape, np.float32))
        assert same_for_all(lambda x: tj.value_and_grad(lambda x: (f(x, tj) ** 2).sum())(x), x)
