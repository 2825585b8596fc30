"""Sums of squares about a mean: memory is read once, and the values are those of a higher precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.trace.passes.moments import CACHED, ROWS

LARGE = [
    ((1024, 1024), None), ((1024, 1024), 0), ((3, 700, 1000), (1, 2)), ((50, 100, 256), (0, 1)), ((2, 300000), 1),
    ((700, 1000, 3), None), ((1 << 20,), 0), ((4, 640, 512), 1),
]
SMALL = [((100, 100), None), ((1024, 1024), 1), ((1009, 1000), 0), ((1 << 19 | 1,), None), ((640, 32), 0)]


def reads(f: Any, x: tj.Tensor) -> int:
    """How many kernels of a compiled function read its argument."""
    return sum(0 in [view.buffer for view in step.reads] for step in f.lower(x).plan.steps)


def sample(shape: tuple[int, ...], dtype: str, offset: float) -> np.ndarray:
    return (np.random.default_rng(len(shape)).random(shape) + offset).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "axis"), LARGE + SMALL)
def test_variance(shape: tuple[int, ...], axis: Any, dtype: str) -> None:
    for offset in (0, 1000):
        x = sample(shape, dtype, offset)
        f = tj.function(lambda x: tj.var(x, axis, ddof=1))
        got, exact = f(tj.asarray(x)).numpy(), np.var(x.astype(np.longdouble), axis, ddof=1)
        # The mean is rounded to the dtype, as NumPy's is: a square of that error remains.
        np.testing.assert_allclose(got, exact, rtol=8 * np.finfo(dtype).eps, atol=(offset * np.finfo(dtype).eps) ** 2)


@pytest.mark.parametrize(("shape", "axis"), LARGE)
def test_memory_is_read_once(shape: tuple[int, ...], axis: Any) -> None:
    x = tj.asarray(sample(shape, "float32", 0))
    assert x.size * 4 > CACHED
    f = tj.function(lambda x: ((x - x.mean(axis, keepdims=True)) ** 2).sum(axis))
    assert reads(f, x) == 1 and len(f.lower(x).plan.steps) == 2


def test_any_centre_that_a_sum_decides() -> None:
    x = sample((512, 1024), "float64", 3)
    centres: list[Callable[[Any], Any]] = [lambda x: x.sum() / 7, lambda x: tj.exp(-x.mean()) * 2, lambda x: x.mean()]
    for centre in centres:
        f = tj.function(lambda x, centre=centre: ((x - centre(x)) ** 2).sum())
        t = tj.asarray(x)
        assert reads(f, t) == 1
        np.testing.assert_allclose(f(t).numpy(), ((x - centre(t).numpy()) ** 2).sum(), rtol=1e-14)


def test_normalized_columns_and_their_gradient() -> None:
    x = tj.asarray(sample((64 * ROWS[0], 256), "float64", 5))

    def normalized(x: tj.Tensor) -> tj.Tensor:
        return (x - x.mean(0)) / x.std(0)

    def total(x: tj.Tensor) -> tj.Tensor:
        return (normalized(x) ** 3).sum()

    np.testing.assert_allclose(tj.function(normalized)(x).numpy(), normalized(x).numpy(), rtol=1e-12, atol=1e-13)
    wanted, got = tj.grad(total)(x).numpy(), tj.function(tj.grad(total))(x).numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_what_is_not_finite(bad: float) -> None:
    x = sample((1024, 512), "float64", 0)
    x[5, 7] = bad
    with np.errstate(all="ignore"):
        wanted = x.var(0)
    np.testing.assert_allclose(tj.function(lambda x: x.var(0))(tj.asarray(x)).numpy(), wanted, rtol=1e-12)
