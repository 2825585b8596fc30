"""Pooling: values against loops in NumPy, eager and compiled; gradients; what padding holds."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from test_convolution import pads_of, per_dim

import tracejit as tj
from tracejit.ops.pooling import avg_pool1d, avg_pool2d, avg_pool3d, max_pool1d, max_pool2d, max_pool3d

MAX = {1: max_pool1d, 2: max_pool2d, 3: max_pool3d}
AVG = {1: avg_pool1d, 2: avg_pool2d, 3: avg_pool3d}

COMPILED = {pool: tj.function(pool) for table in (MAX, AVG) for pool in table.values()}


def reference(x: np.ndarray, fold: Any, size: Any, strides: Any = None, padding: Any = "valid") -> np.ndarray:
    """Windows cut off where x ends: padding holds nothing."""
    rank = x.ndim - 2
    sizes = per_dim(size, rank)
    steps = sizes if strides is None else per_dim(strides, rank)
    pads = pads_of(padding, x.shape[1:-1], sizes, steps, (1,) * rank)
    counts = [(n + low + high - size) // step + 1
              for n, (low, high), size, step in zip(x.shape[1:-1], pads, sizes, steps)]
    out = np.zeros((x.shape[0], *counts, x.shape[-1]))
    for at in itertools.product(*map(range, counts)):
        window = x[(slice(None), *(slice(max(p * step - low, 0), p * step - low + size)
                                   for p, step, size, (low, _) in zip(at, steps, sizes, pads)))]
        out[(slice(None), *at)] = fold(window.astype(np.float64), axis=tuple(range(1, rank + 1)))
    return out


def window_of(shape: tuple[int, ...], at: tuple[int, ...], said: dict[str, Any]) -> tuple[Any, ...]:
    """What a window covers."""
    rank = len(shape) - 2
    sizes = per_dim(said["size"], rank)
    steps = per_dim(said.get("strides", sizes), rank)
    pads = pads_of(said.get("padding", "valid"), shape[1:-1], sizes, steps, (1,) * rank)
    starts = [p * step - low for p, step, (low, _) in zip(at[1:-1], steps, pads)]
    return (at[0], *(slice(max(s, 0), s + size) for s, size in zip(starts, sizes)), at[-1])


CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 8, 3), {"size": 2}),
    ((2, 9, 3), {"size": 3, "strides": 2, "padding": "same"}),
    ((2, 8, 7, 3), {"size": 2}),
    ((2, 8, 7, 3), {"size": 3, "strides": 2, "padding": "same"}),
    ((1, 6, 6, 16), {"size": (3, 2), "strides": 1, "padding": "same"}),
    ((2, 7, 9, 2), {"size": (3, 4), "strides": (2, 1), "padding": [(1, 2), (0, 3)]}),
    ((2, 5, 5, 1), {"size": 1, "strides": 2}),
    ((1, 4, 4, 33), {"size": 4}),
    ((2, 9, 8, 3), {"size": (6, 7), "strides": 1}),
    ((2, 9, 8, 3), {"size": 8, "strides": 3, "padding": "same"}),
    ((0, 4, 4, 3), {"size": 2}),
    ((2, 4, 4, 0), {"size": 2}),
    ((1, 5, 4, 6, 2), {"size": 2, "padding": "same"}),
    ((1, 5, 4, 6, 2), {"size": (2, 1, 3), "strides": (1, 2, 2)}),
]


@pytest.mark.parametrize("shape, said", CASES, ids=str)
def test_values(shape: tuple[int, ...], said: dict[str, Any], rng: np.random.Generator) -> None:
    x = rng.standard_normal(shape).astype(np.float32) - 3  # below zero, so that padding would show
    size, rest = said["size"], {k: v for k, v in said.items() if k != "size"}
    for table, fold in ((MAX, np.max), (AVG, np.mean)):
        pool = table[len(shape) - 2]
        want = reference(x, fold, **said)
        for found in (pool(x, size, **rest), COMPILED[pool](x, size, **rest)):
            assert found.dtype == np.float32 and found.shape == want.shape
            np.testing.assert_allclose(found.numpy(), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "uint8"])
def test_dtypes(dtype: str, rng: np.random.Generator) -> None:
    x = rng.integers(0, 9, (2, 5, 6, 3)).astype(dtype)
    for way in (lambda f: f, tj.function):
        found = way(lambda x: max_pool2d(x, 2, 1, "same"))(x)
        assert found.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(found.numpy(), reference(x, np.max, 2, 1, "same"))
        mean = way(lambda x: avg_pool2d(x, 2, 1, "same"))(x)
        assert mean.dtype == (np.dtype(dtype) if np.dtype(dtype).kind == "f" else np.float32)
        np.testing.assert_allclose(mean.numpy(), reference(x, np.mean, 2, 1, "same"), rtol=1e-3)


@pytest.mark.parametrize("pool", [max_pool2d, avg_pool2d])
@pytest.mark.parametrize("said", [{"size": 2}, {"size": 3, "strides": 2, "padding": "same"},
                                  {"size": (2, 3), "strides": 1}], ids=str)
def test_gradients_to_second_order(said: dict[str, Any], pool: Any, rng: np.random.Generator) -> None:
    x = rng.permutation(2 * 5 * 6 * 2).reshape(2, 5, 6, 2) / 10.0  # no ties, and none within a finite difference
    size, rest = said["size"], {k: v for k, v in said.items() if k != "size"}

    def loss(x: tj.Tensor) -> tj.Tensor:
        return tj.sum(tj.sin(pool(x, size, **rest)))

    tj.check_grads(loss, (x,), order=2)
    eager = tj.grad(loss)(x)
    np.testing.assert_allclose(tj.function(tj.grad(loss))(x).numpy(), eager.numpy(), rtol=1e-12, atol=1e-12)


def test_the_first_of_equal_elements_gets_the_gradient() -> None:
    """In row-major order, also where windows overlap and where there is padding around; no one, of nan."""
    def gradient(x: np.ndarray, *said: Any) -> tuple[np.ndarray, np.ndarray]:
        f = tj.grad(lambda x: tj.sum(max_pool2d(x, *said)))
        return f(x).numpy()[0, ..., 0], tj.function(f)(x).numpy()[0, ..., 0]

    low = np.full((1, 3, 3, 1), -np.inf, np.float32)
    mixed = np.array([[1, 2, 2], [2, 1, 2], [np.nan, 0, 0]], np.float32).reshape(1, 3, 3, 1)
    for found in gradient(np.zeros((1, 2, 2, 1), np.float32), 2):
        np.testing.assert_array_equal(found, [[1, 0], [0, 0]])
    for found in gradient(low, 2, 1, 1):
        np.testing.assert_array_equal(found, [[4, 2, 2], [2, 1, 1], [2, 1, 1]])
    for found in gradient(mixed, 2, 1):
        np.testing.assert_array_equal(found, [[0, 2, 0], [0, 0, 1], [0, 0, 0]])


def test_one_kernel_each() -> None:
    """Windows are a view: pooling is one kernel, and so is its gradient."""
    x = tj.constant(np.random.default_rng(0).standard_normal((2, 9, 9, 8)).astype(np.float32))
    for pool in (max_pool2d, avg_pool2d):
        for arguments in ((2, 2), (3, 2)):
            assert len(COMPILED[pool].lower(x, *arguments).kernels) == 1
    for pool, arguments, most in ((avg_pool2d, (2, 2), 1), (max_pool2d, (2, 2), 2), (avg_pool2d, (3, 2), 1)):
        x = np.zeros((2, 10, 10, 8), np.float32)
        gradient = tj.function(tj.grad(lambda x, pool=pool, a=arguments: tj.sum(pool(x, *a))))
        assert len(gradient.lower(x).kernels) <= most


@pytest.mark.filterwarnings("ignore:.*has been decorated")
@pytest.mark.parametrize("shape, said", CASES, ids=str)
def test_gradients_are_the_transpose(shape: tuple[int, ...], said: dict[str, Any], rng: np.random.Generator) -> None:
    """Each element of the cotangent goes to the largest element, or in equal parts to all, of its window."""
    x, rank = rng.permutation(math.prod(shape)).reshape(shape) / 7.0, len(shape) - 2
    size, rest = said["size"], {k: v for k, v in said.items() if k != "size"}
    for table, fold in ((MAX, np.max), (AVG, np.mean)):
        pool = table[rank]
        y = reference(x, fold, **said)
        g = rng.standard_normal(y.shape)
        want = np.zeros(shape)
        for at in np.ndindex(*y.shape):
            inside = window_of(shape, at, said)
            part = x[inside]
            want[inside] += g[at] * ((part == part.max()) if fold is np.max else 1 / part.size)
        def pulled(x: tj.Tensor, g: tj.Tensor, pool: Any = pool) -> tj.Tensor:
            return tj.vjp(lambda x: pool(x, size, **rest), x)[1](g)[0]

        eager = pulled(tj.asarray(x), tj.asarray(g))
        np.testing.assert_allclose(eager.numpy(), want, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(tj.function(pulled)(x, g).numpy(), want, rtol=1e-12, atol=1e-12)


def test_errors_name_what_is_wrong() -> None:
    x = np.ones((1, 5, 5, 2), np.float32)
    with pytest.raises(ValueError, match=r"max_pool1d: x must be real, \[batch, 1 dim, channels\]"):
        max_pool1d(x)
    with pytest.raises(ValueError, match="a window of size 6 and dilation 1 reaches over 6 positions"):
        avg_pool2d(x, 6)
    with pytest.raises(ValueError, match="as long as the window"):
        max_pool2d(x, 2, padding=[(2, 0), (0, 0)])
