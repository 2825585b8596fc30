"""Convolutions: values against sums written out in NumPy, eager and compiled; gradients; what users may say."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit import config
from tracejit.lower.buffers import assign
from tracejit.lower.kernel import Launch
from tracejit.lower.plan import Gemm, Plan
from tracejit.ops.convolution import (
    conv1d,
    conv2d,
    conv2d_transpose,
    conv3d,
    conv_transpose,
    depthwise_conv1d,
    depthwise_conv2d,
    kernel_gradient,
)
from tracejit.runtime import build


def pads_of(padding: Any, extents: Any, sizes: Any, steps: Any, dilations: Any) -> list[tuple[int, int]]:
    """Padding as TensorFlow's documentation defines it."""
    if padding == "valid":
        return [(0, 0)] * len(sizes)
    if padding != "same":
        return list(padding)
    found = []
    for n, size, step, dilation in zip(extents, sizes, steps, dilations):
        reach = (size - 1) * dilation + 1
        left = n % step
        total = max(reach - step, 0) if left == 0 else max(reach - left, 0)
        found.append((total // 2, total - total // 2))
    return found


def reference(x: np.ndarray, k: np.ndarray, steps: Any, padding: Any, dilations: Any, groups: int) -> np.ndarray:
    """Every product, one position of the result at a time."""
    sizes, rank = k.shape[:-2], k.ndim - 2
    x = np.pad(x.astype(np.float64), [(0, 0), *pads_of(padding, x.shape[1:-1], sizes, steps, dilations), (0, 0)])
    counts = [(n - (size - 1) * d - 1) // step + 1
              for n, size, step, d in zip(x.shape[1:-1], sizes, steps, dilations)]
    out = np.zeros((x.shape[0], *counts, k.shape[-1]))
    inputs, outputs = k.shape[-2], k.shape[-1] // groups
    for at in itertools.product(*map(range, counts)):
        window = x[(slice(None), *(slice(p * step, p * step + (size - 1) * d + 1, d)
                                   for p, step, size, d in zip(at, steps, sizes, dilations)))]
        for g in range(groups):
            part, kernel = window[..., g * inputs: (g + 1) * inputs], k[..., g * outputs: (g + 1) * outputs]
            out[(slice(None), *at, slice(g * outputs, (g + 1) * outputs))] = np.tensordot(
                part, kernel.astype(np.float64), (range(1, rank + 2), range(rank + 1)))
    return out


FUNCTIONS = {1: conv1d, 2: conv2d, 3: conv3d}
COMPILED_TRANSPOSE = tj.function(conv2d_transpose)
COMPILED = {rank: tj.function(f) for rank, f in FUNCTIONS.items()}
CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 9, 3), (3, 3, 4), {}),
    ((1, 10, 4), (3, 2, 6), {"strides": 2, "padding": "same", "groups": 2}),
    ((2, 11, 2), (3, 2, 5), {"dilation": 3}),
    ((3, 8, 7, 2), (3, 3, 2, 5), {}),
    ((2, 8, 7, 3), (3, 2, 3, 16), {"padding": "same"}),
    ((2, 7, 9, 4), (3, 4, 2, 6), {"strides": (2, 3), "padding": "same", "groups": 2}),
    ((2, 9, 8, 2), (2, 3, 2, 33), {"dilation": (3, 2), "padding": [(1, 0), (2, 3)]}),
    ((1, 28, 28, 1), (3, 3, 1, 16), {}),
    ((2, 6, 6, 16), (3, 3, 16, 16), {"padding": "same"}),
    ((2, 6, 6, 5), (1, 1, 5, 7), {}),
    ((2, 6, 7, 5), (1, 1, 5, 7), {"strides": 2}),
    ((2, 6, 8, 5), (2, 2, 5, 7), {"strides": 2}),
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((0, 5, 5, 2), (3, 3, 2, 4), {}),
    ((2, 5, 5, 0), (3, 3, 0, 4), {}),
    ((2, 5, 5, 2), (3, 3, 2, 0), {}),
    ((2, 0, 5, 2), (3, 3, 2, 4), {"padding": "same"}),
    ((1, 5, 4, 6, 2), (2, 3, 2, 2, 3), {"strides": (1, 2, 1), "padding": "same"}),
    ((1, 5, 5, 5, 2), (2, 2, 2, 1, 4), {"dilation": 2, "groups": 2}),
]


def per_dim(value: Any, rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def wanted(x: np.ndarray, k: np.ndarray, said: dict[str, Any]) -> np.ndarray:
    rank = k.ndim - 2
    return reference(x, k, per_dim(said.get("strides", 1), rank), said.get("padding", "valid"),
                     per_dim(said.get("dilation", 1), rank), said.get("groups", 1))


@pytest.mark.parametrize("shape, window, said", CASES, ids=str)
def test_values(shape: tuple[int, ...], window: tuple[int, ...], said: dict[str, Any],
                rng: np.random.Generator) -> None:
    x, k = rng.standard_normal(shape).astype(np.float32), rng.standard_normal(window).astype(np.float32)
    conv = FUNCTIONS[len(window) - 2]
    want = wanted(x, k, said)
    for found in (conv(x, k, **said), COMPILED[len(window) - 2](x, k, **said)):
        assert found.dtype == np.float32 and found.shape == want.shape
        np.testing.assert_allclose(found.numpy(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "int64", "uint8", "complex64"])
def test_dtypes(dtype: str, rng: np.random.Generator) -> None:
    x, k = (rng.integers(0, 3, s).astype(dtype) for s in ((2, 5, 6, 2), (3, 2, 2, 3)))
    want = reference(x.real.astype(float), k.real.astype(float), (1, 1), "valid", (1, 1), 1)
    for found in (conv2d(x, k), COMPILED[2](x, k)):
        assert found.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(found.numpy(), want.astype(dtype))


def test_mixed_dtypes_promote() -> None:
    assert conv1d(np.ones((1, 4, 1), np.float32), np.ones((2, 1, 1), np.float64)).dtype == np.float64
    assert conv1d(np.ones((1, 4, 1), np.int32), np.ones((2, 1, 1), np.float32)).dtype == np.float32


GRADIENTS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 6, 3), (3, 3, 2), {}),
    ((1, 8, 4), (3, 2, 2), {"strides": 2, "padding": "same", "groups": 2}),
    ((2, 5, 6, 2), (3, 2, 2, 3), {"strides": (2, 3), "padding": [(1, 1), (0, 2)]}),
    ((1, 6, 5, 2), (2, 3, 2, 2), {"dilation": (3, 2), "padding": "same"}),
    ((1, 3, 4, 3, 2), (2, 2, 2, 2, 1), {"strides": (1, 2, 1)}),
]


@pytest.mark.parametrize("shape, window, said", GRADIENTS, ids=str)
def test_gradients_to_second_order(shape: tuple[int, ...], window: tuple[int, ...], said: dict[str, Any],
                                   rng: np.random.Generator) -> None:
    x, k = rng.standard_normal(shape), rng.standard_normal(window)
    conv = FUNCTIONS[len(window) - 2]

    def loss(x: tj.Tensor, k: tj.Tensor) -> tj.Tensor:
        return tj.sum(tj.sin(conv(x, k, **said)))

    tj.check_grads(loss, (x, k), order=2)
    eager = tj.grad(loss, argnums=(0, 1))(x, k)
    for found, want in zip(tj.function(tj.grad(loss, argnums=(0, 1)))(x, k), eager):
        np.testing.assert_allclose(found.numpy(), want.numpy(), rtol=1e-10, atol=1e-10)


def test_transpose_is_the_transpose(rng: np.random.Generator) -> None:
    """<conv(x), y> = <x, conv_transpose(y)>, for every way to say it."""
    ways: list[dict[str, Any]] = [
        {}, {"strides": 2}, {"strides": (3, 2), "padding": "same"}, {"dilation": 2}, {"groups": 2},
        {"strides": 2, "padding": [(1, 0), (1, 2)]}]
    for said in ways:
        groups = said.get("groups", 1)
        x, k = rng.standard_normal((2, 9, 8, 4)), rng.standard_normal((3, 2, 4 // groups, 6))
        y = conv2d(x, k, **said)
        other = rng.standard_normal(y.shape)
        for transposed in (conv_transpose, conv2d_transpose, COMPILED_TRANSPOSE):
            back = transposed(other, k, output_shape=(9, 8), **said)
            assert back.shape == x.shape
            np.testing.assert_allclose(np.vdot(y.numpy(), other), np.vdot(x, back.numpy()), rtol=1e-10)


def test_transposed_sizes() -> None:
    """Without `output_shape`, the sizes that Keras documents."""
    x, k = np.ones((1, 4, 5, 2), np.float32), np.ones((3, 2, 6, 2), np.float32)
    assert conv2d_transpose(x, k).shape == (1, 6, 6, 6)
    assert conv2d_transpose(x, k, strides=2).shape == (1, 9, 10, 6)
    assert conv2d_transpose(x, k, strides=4).shape == (1, 16, 20, 6)
    assert conv2d_transpose(x, k, strides=2, padding="same").shape == (1, 8, 10, 6)
    assert conv2d_transpose(x, k, strides=2, padding=[(1, 1), (0, 0)]).shape == (1, 7, 10, 6)
    with pytest.raises(ValueError, match="does not give the dims"):
        conv2d_transpose(x, k, output_shape=(9, 9))


@pytest.mark.parametrize("said", [{}, {"strides": 2, "padding": "same"}, {"dilation": 2, "padding": [(1, 2), (0, 1)]}],
                         ids=str)
def test_depthwise(said: dict[str, Any], rng: np.random.Generator) -> None:
    x, k = rng.standard_normal((2, 7, 8, 3)), rng.standard_normal((3, 2, 3, 2))
    want = wanted(x, k.reshape(3, 2, 1, 6), {**said, "groups": 3})
    for found in (depthwise_conv2d(x, k, **said), tj.function(lambda x, k: depthwise_conv2d(x, k, **said))(x, k)):
        np.testing.assert_allclose(found.numpy(), want, rtol=1e-12, atol=1e-12)
    tj.check_grads(lambda x, k: tj.sum(tj.sin(depthwise_conv2d(x, k, **said))), (x[:1, :5, :4], k), order=2)


@pytest.mark.parametrize("size, step, dilation", [(3, 2, 1), (5, 2, 1), (2, 3, 2), (3, 1, 1), (5, 1, 1)], ids=str)
def test_gradients_of_many_channels_by_themselves(size: int, step: int, dilation: int,
                                                  rng: np.random.Generator) -> None:
    """Of each tap by itself: what it is multiplied with, summed over positions; and what goes back to them."""
    x, k = rng.standard_normal((3, 13, 12, 70)), rng.standard_normal((size, size, 70, 1))
    reach = (size - 1) * dilation + 1
    counts = tuple((n - reach) // step + 1 for n in x.shape[1:3])
    w = rng.standard_normal((3, *counts, 70))
    dx, dk = np.zeros_like(x), np.zeros_like(k)
    for tap in np.ndindex(size, size):
        cut = (slice(None), *(slice(t * dilation, t * dilation + (n - 1) * step + 1, step)
                              for t, n in zip(tap, counts)))
        dx[cut] += w * k[tap][:, 0]
        dk[tap][:, 0] = (x[cut] * w).sum((0, 1, 2))
    f = tj.function(tj.grad(lambda x, k: (depthwise_conv2d(x, k, strides=step, dilation=dilation) * w).sum(),
                            argnums=(0, 1)))
    for found, want in zip(f(x, k), (dx, dk), strict=True):
        np.testing.assert_allclose(found.numpy(), want, rtol=1e-9, atol=1e-9)


def test_depthwise_with_a_large_window(rng: np.random.Generator) -> None:
    """More elements than are named one by one."""
    x, k = rng.standard_normal((1, 9, 10, 2)), rng.standard_normal((6, 7, 2, 1))
    want = wanted(x, k.reshape(6, 7, 1, 2), {"groups": 2, "padding": "same"})
    for f in (depthwise_conv2d, tj.function(depthwise_conv2d)):
        np.testing.assert_allclose(f(x, k, padding="same").numpy(), want, rtol=1e-12, atol=1e-12)


def test_depthwise_over_one_dim(rng: np.random.Generator) -> None:
    x, k = rng.standard_normal((2, 7, 3)), rng.standard_normal((3, 3, 2))
    np.testing.assert_allclose(depthwise_conv1d(x, k).numpy(), wanted(x, k.reshape(3, 1, 6), {"groups": 3}))


def plan_of(f: Any, *args: Any) -> Plan:
    function = tj.function(f)
    function(*args)
    return function.specializations()[0].built.plan


def layer(x: tj.Tensor, k: tj.Tensor, b: tj.Tensor) -> tj.Tensor:
    return tj.relu(conv2d(x, k) + b)


def test_windows_are_never_written_out(rng: np.random.Generator) -> None:
    """A layer is one step and has no memory of its own; neither gradient has as much as the windows would take."""
    x, k, b = (rng.standard_normal(s).astype(np.float32) for s in ((8, 20, 20, 16), (3, 3, 16, 16), (16,)))
    plan = plan_of(layer, x, k, b)
    (step,) = plan.steps
    assert isinstance(step, Gemm) and step.rows and step.then is not None
    assert assign(plan).arena_bytes == 0
    written_out = 8 * 18 * 18 * 9 * 16 * 4

    def loss(x: tj.Tensor, k: tj.Tensor, b: tj.Tensor) -> tj.Tensor:
        return tj.sum(layer(x, k, b))

    for argument in (0, 1):
        plan = plan_of(tj.grad(loss, argnums=argument), x, k, b)
        assert assign(plan).arena_bytes < written_out / 3
        assert sum(isinstance(s, Gemm) for s in plan.steps) == 2
        assert all(s.rows for s in plan.steps if isinstance(s, Gemm))


@pytest.mark.parametrize("said", [{"strides": 2}, {"padding": "same"}, {"dilation": 2}, {"groups": 2}], ids=str)
def test_products_read_windows_in_place(said: dict[str, Any], rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 12, 12, 8)).astype(np.float32)
    k = rng.standard_normal((3, 3, 8 // said.get("groups", 1), 8)).astype(np.float32)
    gradient = tj.grad(lambda x, k: tj.sum(tj.sin(conv2d(x, k, **said))), argnums=(0, 1))
    steps = plan_of(gradient, x, k).steps
    products = [s for s in steps if isinstance(s, Gemm)]
    phases = 4 if "strides" in said else 1
    assert len(products) == 2 + phases and all(s.rows for s in products)
    assert not any("shear" in s.ops for s in steps if isinstance(s, Launch))


def test_a_sum_over_positions_is_cut_in_parts(rng: np.random.Generator) -> None:
    """The kernel's gradient of many positions: the same bits on any number of threads."""
    x, g = (rng.standard_normal(s).astype(np.float32) for s in ((6, 40, 40, 3), (6, 38, 38, 5)))
    function = tj.function(lambda x, g: kernel_gradient(tj.asarray(x), tj.asarray(g), (3, 3), (1, 1), ((0, 0), (0, 0)),
                                                        (1, 1), 1))
    got = function(x, g).numpy()
    wide = x.astype(np.float64)
    want = np.stack([[np.tensordot(wide[:, i: i + 38, j: j + 38], g, ((0, 1, 2), (0, 1, 2))) for j in range(3)]
                     for i in range(3)])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
    product = next(s for s in function.specializations()[0].built.plan.steps if isinstance(s, Gemm))
    assert math.prod(product.batch) > 1 and math.prod(product.batch) * product.k == 6 * 38 * 38
    before = config.num_threads()
    try:
        config.set_num_threads(1)
        np.testing.assert_array_equal(function(x, g).numpy(), got)
    finally:
        config.set_num_threads(before)


def test_sizes_change_without_compiling(rng: np.random.Generator) -> None:
    k, b = rng.standard_normal((3, 3, 2, 5)).astype(np.float32), rng.standard_normal(5).astype(np.float32)
    function = tj.function(layer)
    function(rng.standard_normal((2, 8, 9, 2)).astype(np.float32), k, b)
    compiled = build.stats().compiles
    for shape in ((3, 8, 9, 2), (5, 8, 9, 2), (7, 12, 11, 2), (1, 30, 10, 2)):
        x = rng.standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(function(x, k, b).numpy(), layer(*map(tj.asarray, (x, k, b))).numpy(), rtol=1e-5,
                                   atol=1e-5)
    assert build.stats().compiles == compiled


def test_in_a_loop(rng: np.random.Generator) -> None:
    x, k = rng.standard_normal((2, 7, 8, 3)), rng.standard_normal((3, 3, 3, 3)) / 3

    def repeated(x: tj.Tensor, k: tj.Tensor) -> tj.Tensor:
        return tj.fori_loop(0, 4, lambda i, h: tj.tanh(conv2d(h, k, padding="same")), x)

    want = x
    for _ in range(4):
        want = np.tanh(wanted(want, k, {"padding": "same"}))
    np.testing.assert_allclose(tj.function(repeated)(x, k).numpy(), want, rtol=1e-10, atol=1e-10)
    gradient = tj.grad(lambda x, k: tj.sum(repeated(x, k) ** 2), argnums=(0, 1))
    for found, other in zip(tj.function(gradient)(x, k), gradient(tj.asarray(x), tj.asarray(k))):
        np.testing.assert_allclose(found.numpy(), other.numpy(), rtol=1e-9, atol=1e-9)


def test_saved_and_loaded(tmp_path: Any, rng: np.random.Generator) -> None:
    k, b = rng.standard_normal((3, 3, 2, 5)).astype(np.float32), rng.standard_normal(5).astype(np.float32)
    x = rng.standard_normal((3, 8, 9, 2)).astype(np.float32)
    tj.save(layer, tmp_path / "layer.tj", tj.spec((None, 8, 9, 2), "float32"), k, b)
    np.testing.assert_allclose(tj.load(tmp_path / "layer.tj")(x, k, b).numpy(), layer(x, k, b).numpy(), rtol=1e-5,
                               atol=1e-5)


def test_errors_name_what_is_wrong() -> None:
    x, k = np.ones((1, 5, 5, 2), np.float32), np.ones((3, 3, 2, 4), np.float32)
    with pytest.raises(ValueError, match=r"conv2d: x of shape \(1, 5, 5, 2\) has 2 channels; a kernel of shape"):
        conv2d(x, k[:, :, :1])
    with pytest.raises(ValueError, match=r"conv1d: .* must have 3 dims"):
        conv1d(x, k)
    with pytest.raises(ValueError, match=r"a window of size 3 and dilation 3 reaches over 7 positions, .* 1 .* has 5"):
        conv2d(x, k, dilation=3)
    with pytest.raises(ValueError, match='padding must be "valid", "same"'):
        conv2d(x, k, padding="full")
    with pytest.raises(ValueError, match="padding must be non-negative"):
        conv2d(x, k, padding=[(1, 1)])
    with pytest.raises(ValueError, match="padding must be non-negative"):
        conv2d(x, k, padding=[(1, 1), (1,)])
    with pytest.raises(ValueError, match="strides must be a positive int, or 2 of them"):
        conv2d(x, k, strides=0)
    with pytest.raises(ValueError, match="1, 2 or 3 dims"):
        conv_transpose(np.ones((2, 2)), k)
