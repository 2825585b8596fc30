"""Normalisations against their definitions in float64, at awkward offsets, to second order; what they compile to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit import nn


def normalized(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    x = x.astype(np.float64)
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def along(p: np.ndarray, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return p.reshape([n if a in axes else 1 for a, n in enumerate(x.shape)])


def layer_reference(x: Any, s: Any, o: Any, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    return normalized(x, axes, epsilon) * along(s, x, axes) + along(o, x, axes)


def group_reference(x: Any, groups: int, s: Any, o: Any, axis: int, epsilon: float) -> np.ndarray:
    moved = np.moveaxis(x, axis, 1)
    parts = moved.reshape(x.shape[0], groups, math.prod(moved.shape[1:]) // groups)
    y = np.moveaxis(normalized(parts, (2,), epsilon).reshape(moved.shape), 1, axis)
    return y * along(s, x, (axis,)) + along(o, x, (axis,))


def both(f: Any, *args: Any) -> list[Any]:
    """The results of f, eager and compiled."""
    return [g(*map(tj.asarray, args)) for g in (f, tj.function(f))]


@pytest.mark.parametrize(("shape", "axis"), [
    ((5, 7), -1), ((3, 4, 6), (1, 2)), ((3, 4, 6), 1), ((2, 1), -1), ((0, 4), 1), ((300, 33), 1), ((7,), 0)])
def test_layer_norm(shape: tuple[int, ...], axis: Any, rng: np.random.Generator) -> None:
    axes = tuple(a % len(shape) for a in np.atleast_1d(axis))
    x, (s, o) = rng.normal(size=shape), rng.normal(size=(2, *(shape[a] for a in axes)))
    wanted = layer_reference(x, s, o, axes, 1e-5)
    for y in both(lambda x, s, o: nn.layer_norm(x, s, o, axis), x, s, o):
        np.testing.assert_allclose(y.numpy(), wanted, atol=1e-12)
    for y in both(lambda x: nn.layer_norm(x, axis=axis, epsilon=0.5), x):
        np.testing.assert_allclose(y.numpy(), normalized(x, axes, 0.5), atol=1e-12)


@pytest.mark.parametrize(("shape", "axis"), [((5, 7), -1), ((3, 4, 6), (0, 2)), ((2, 1), -1)])
def test_rms_norm(shape: tuple[int, ...], axis: Any, rng: np.random.Generator) -> None:
    axes = tuple(a % len(shape) for a in np.atleast_1d(axis))
    x, s = rng.normal(size=shape), rng.normal(size=[shape[a] for a in axes])
    wanted = x / np.sqrt((x**2).mean(axes, keepdims=True) + 1e-6) * along(s, x, axes)
    for y in both(lambda x, s: nn.rms_norm(x, s, axis), x, s):
        np.testing.assert_allclose(y.numpy(), wanted, atol=1e-12)


@pytest.mark.parametrize(("shape", "groups", "axis"), [
    ((2, 5, 6, 8), 4, 3), ((2, 8, 5, 6), 2, 1), ((3, 6), 3, 1), ((2, 4, 3), 4, 1), ((2, 5, 6), 1, -1),
    ((1, 1, 1), 1, 2), ((0, 3, 4), 2, 2)])
def test_group_norm(shape: tuple[int, ...], groups: int, axis: int, rng: np.random.Generator) -> None:
    x, (s, o) = rng.normal(size=shape), rng.normal(size=(2, shape[axis]))
    wanted = group_reference(x, groups, s, o, axis % len(shape), 1e-5)
    for y in both(lambda x, s, o: nn.group_norm(x, groups, s, o, axis), x, s, o):
        np.testing.assert_allclose(y.numpy(), wanted, atol=1e-12)


@pytest.mark.parametrize(("shape", "axis"), [((6, 5, 4, 3), -1), ((6, 3, 5), 1), ((9, 2), 1), ((1, 1), 1)])
def test_batch_norm(shape: tuple[int, ...], axis: int, rng: np.random.Generator) -> None:
    k = axis % len(shape)
    rest = tuple(a for a in range(len(shape)) if a != k)
    x, (s, o, m) = rng.normal(size=shape), rng.normal(size=(3, shape[k]))
    v = rng.uniform(0.5, 2, shape[k])
    wanted = normalized(x, rest, 1e-3) * along(s, x, (k,)) + along(o, x, (k,))
    for y, mean, variance in both(lambda x, s, o: nn.batch_norm(x, s, o, axis=axis), x, s, o):
        np.testing.assert_allclose(y.numpy(), wanted, atol=1e-12)
        np.testing.assert_allclose(mean.numpy(), x.mean(rest), atol=1e-12)
        np.testing.assert_allclose(variance.numpy(), x.var(rest), atol=1e-12)
    wanted = (x - along(m, x, (k,))) / np.sqrt(along(v, x, (k,)) + 1e-3) * along(s, x, (k,)) + along(o, x, (k,))
    for y, mean, variance in both(lambda x, s, o, m, v: nn.batch_norm(x, s, o, m, v, axis), x, s, o, m, v):
        np.testing.assert_allclose(y.numpy(), wanted, atol=1e-12)
        assert mean.tolist() == m.tolist() and variance.tolist() == v.tolist()


@pytest.mark.parametrize(("axis", "keepdims"), [(None, False), ((0, 2), False), (1, True)])
def test_moments(axis: Any, keepdims: bool, rng: np.random.Generator) -> None:
    x = rng.normal(size=(3, 4, 5))
    for mean, variance in both(lambda x: nn.moments(x, axis, keepdims), x):
        np.testing.assert_allclose(mean.numpy(), x.mean(axis, keepdims=keepdims), atol=1e-13)
        np.testing.assert_allclose(variance.numpy(), x.var(axis, keepdims=keepdims), atol=1e-13)


NORMS = {
    "layer": lambda x, s, o: nn.layer_norm(x, s, o),
    "rms": lambda x, s, o: nn.rms_norm(x, s) + o,
    "group": lambda x, s, o: nn.group_norm(x, 2, s, o),
    "batch": lambda x, s, o: nn.batch_norm(x, s, o)[0],
}


@pytest.mark.parametrize("name", NORMS)
def test_float32_far_from_zero(name: str, rng: np.random.Generator) -> None:
    """Numbers with a mean a thousand times their spread. The difference of squares would be off by several percent."""
    x = (1000 + rng.normal(size=(64, 12, 8))).astype("float32")
    s, o = rng.normal(size=(2, 8)).astype("float32")
    exact = NORMS[name](*map(tj.asarray, (x.astype("float64"), s.astype("float64"), o.astype("float64")))).numpy()
    for y in both(NORMS[name], x, s, o):
        assert y.dtype == "float32"
        np.testing.assert_allclose(y.numpy(), exact, atol=5e-3)


@pytest.mark.parametrize("name", NORMS)
def test_derivatives_to_second_order(name: str, rng: np.random.Generator) -> None:
    x, (s, o) = rng.normal(size=(3, 2, 4)), rng.normal(size=(2, 4))
    tj.check_grads(NORMS[name], (x, s, o), order=2)
    slopes = tj.grad(lambda x, s, o: (NORMS[name](x, s, o) ** 3).sum(), argnums=(0, 1, 2))
    for a, b in zip(tj.function(slopes)(x, s, o), slopes(x, s, o)):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NORMS)
def test_other_dtypes(name: str, rng: np.random.Generator) -> None:
    x = rng.integers(-9, 9, (6, 4, 8))
    wanted = NORMS[name](tj.asarray(x.astype("float64")), 2 * np.ones(8), np.ones(8)).numpy()
    small = NORMS[name](tj.asarray(x.astype("int8")), tj.full(8, 2.0), tj.ones(8))
    assert small.dtype == "float32"
    np.testing.assert_allclose(small.numpy(), wanted, atol=1e-5)
    half = NORMS[name](tj.asarray(x.astype("float16")), tj.full(8, 2, dtype="float16"), tj.ones(8, dtype="float16"))
    assert half.dtype == "float16"
    np.testing.assert_allclose(half.numpy(), wanted, atol=2e-2)


def test_gradients_flow_through_the_batch_statistics(rng: np.random.Generator) -> None:
    x = tj.asarray(rng.normal(size=(5, 3)))
    g = tj.grad(lambda x: nn.batch_norm(x)[1].sum() + nn.batch_norm(x)[2].sum())(x)
    wanted = 1 / 5 + 2 * (x.numpy() - x.numpy().mean(0)) / 5
    np.testing.assert_allclose(g.numpy(), wanted, atol=1e-12)


# -- what they compile to ----------------------------------------------------------------------------------------------
def kernels(f: Any, *shapes: tuple[int, ...]) -> int:
    return len(tj.function(f).lower(*(tj.ones(s) for s in shapes)).plan.steps)


def test_rows_are_read_once() -> None:
    """A row stays in the cache from its mean to its result: one kernel. Batches take a pass for each statistic."""
    assert kernels(lambda x, s, o: nn.layer_norm(x, s, o), (2048, 128), (128,), (128,)) == 1
    assert kernels(lambda x, s: nn.rms_norm(x, s), (2048, 128), (128,)) == 1
    assert kernels(lambda x, s, o: nn.layer_norm(tj.relu(x) + x, s, o), (2048, 128), (128,), (128,)) == 1
    assert kernels(lambda x, s, o: nn.batch_norm(x, s, o)[0], (32, 28, 28, 32), (32,), (32,)) <= 3
    assert kernels(lambda x, s, o, m, v: nn.batch_norm(x, s, o, m, v)[0], (32, 28, 28, 32), *[(32,)] * 4) == 1
    gradient = tj.function(tj.grad(lambda x, s, o: (nn.layer_norm(x, s, o) ** 2).sum(), (0, 1, 2)))
    assert len(gradient.lower(tj.ones((2048, 128)), tj.ones(128), tj.ones(128)).plan.steps) <= 4


# -- errors ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("f", "error", "words"), [
    (lambda: nn.layer_norm(tj.ones((2, 3)), scale=tj.ones(2)), ValueError, r"scale has shape \(2,\), wanted \(3,\)"),
    (lambda: nn.layer_norm(tj.ones((2, 3)), offset=tj.ones((3, 1))), ValueError, r"offset has shape \(3, 1\)"),
    (lambda: nn.layer_norm(tj.ones((2, 3)), axis=2), np.exceptions.AxisError, "axis 2 is out of bounds"),
    (lambda: nn.rms_norm(tj.ones((2, 3), dtype="complex64")), TypeError, "rms_norm: complex"),
    (lambda: nn.group_norm(tj.ones((2, 6)), 4), ValueError, "4 groups do not divide"),
    (lambda: nn.group_norm(tj.ones((2, 6)), 2, axis=0), ValueError, "axis 0"),
    (lambda: nn.group_norm(tj.ones(6), 2), ValueError, "batch and a channel"),
    (lambda: nn.batch_norm(tj.ones((2, 6)), mean=tj.ones(6)), ValueError, "both mean and variance"),
    (lambda: nn.batch_norm(tj.ones((2, 6)), mean=tj.ones(5), variance=tj.ones(6)), ValueError, "mean has shape"),
])
def test_errors(f: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        f()
    with pytest.raises(error, match=words):
        tj.function(f)()
