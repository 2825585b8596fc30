"""Layers against independent NumPy references in float64, eager and compiled.

Their derivatives: `test_layers_gradients.py`.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj

pytestmark = pytest.mark.filterwarnings("ignore:.*has been decorated")  # one function for each layer

L = tj.layers
RNG = np.random.default_rng(1)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def both(layer: Any, *args: Any, **kwargs: Any) -> np.ndarray:
    """What a layer gives eagerly, after a compiled call gave the same."""
    eager = np.asarray(layer(*args, **kwargs))
    compiled = tj.function(lambda *args: layer(*args, **kwargs))(*args)
    np.testing.assert_allclose(np.asarray(compiled), eager, rtol=1e-10, atol=1e-12)
    return eager


def randomised(layer: Any, *args: Any) -> Any:
    """The layer built for these arguments, with random values in all Variables that are trained."""
    layer(*args)
    for v in layer.trainable_variables:
        v.assign(0.3 * numbers(*v.shape))
    return layer


# -- dense and changes of shape ----------------------------------------------------------------------------------------
def test_dense() -> None:
    x = numbers(2, 5, 4)
    layer = randomised(L.Dense(3, activation="tanh", dtype="float64"), x)
    expected = np.tanh(np.einsum("bij,jk->bik", x, layer.kernel.numpy()) + layer.bias.numpy())
    np.testing.assert_allclose(both(layer, x), expected, rtol=1e-10)
    assert L.Dense(3, use_bias=False, input_shape=(4,)).compute_output_shape((None, 4)) == (None, 3)
    with pytest.raises(ValueError, match=r"the last dim must have size 4, got shape \(2, 3\)") as caught:
        layer(numbers(2, 3))
    assert "in layer dense (Dense, called with shape (2, 3))" in caught.value.__notes__
    with pytest.raises(ValueError, match="units must be at least 1"):
        L.Dense(0)


def label(x: Any) -> str | None:
    """A parameter in a test's name, which has to be the same in every process."""
    return None if inspect.isfunction(x) else repr(x)


@pytest.mark.parametrize(
    "layer, expected",
    [
        (L.Flatten(), lambda x: x.reshape(2, 12)),
        (L.Reshape((6, -1)), lambda x: x.reshape(2, 6, 2)),
        (L.Permute((2, 1)), lambda x: x.transpose(0, 2, 1)),
        (L.Activation("softsign"), lambda x: x / (1 + abs(x))),
        (L.ReLU(max_value=0.5, negative_slope=0.1), lambda x: np.minimum(np.where(x > 0, x, 0.1 * x), 0.5)),
        (L.LeakyReLU(), lambda x: np.where(x > 0, x, 0.3 * x)),
        (L.ELU(0.5), lambda x: np.where(x > 0, x, 0.5 * np.expm1(np.minimum(x, 0)))),
        (L.Softmax(axis=1), lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
        (L.Lambda(lambda x: x * 2), lambda x: x * 2),
        (L.Rescaling(2.0, 1.0), lambda x: 2 * x + 1),
        (L.Dropout(0.5), lambda x: x),
        (L.GaussianNoise(0.5), lambda x: x),
        (L.GlobalAveragePooling1D(), lambda x: x.mean(1)),
        (L.GlobalMaxPooling1D(keepdims=True), lambda x: x.max(1, keepdims=True)),
        (L.MaxPooling1D(2), lambda x: np.maximum(x[:, :2:2], x[:, 1:3:2])),
        (L.AveragePooling1D(2, 1), lambda x: (x[:, :-1] + x[:, 1:]) / 2),
    ],
    ids=label,
)
def test_layers_without_variables(layer: Any, expected: Callable[..., Any]) -> None:
    layer._dtype = np.dtype("float64")
    x = numbers(2, 3, 4)
    found = both(layer, x)
    np.testing.assert_allclose(found, expected(x), rtol=1e-10)
    if not isinstance(layer, L.Lambda):
        assert layer.compute_output_shape(x.shape) == found.shape
        assert layer.compute_output_shape((None, 3, 4)) == (None, *found.shape[1:])


@pytest.mark.parametrize("name", [n for n in tj.activations.NAMES if n not in ("softmax", "log_softmax")])
def test_activations_by_name(name: str) -> None:
    from scipy import special

    x = np.concatenate([np.linspace(-4, 4, 9), [7.0]])
    sigmoid = special.expit
    expected = {
        "linear": x, "relu": np.maximum(x, 0), "relu6": np.clip(x, 0, 6), "leaky_relu": np.where(x > 0, x, 0.2 * x),
        "elu": np.where(x > 0, x, np.expm1(x)), "gelu": x * special.ndtr(x), "silu": x * sigmoid(x),
        "selu": 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)), "swish": x * sigmoid(x),
        "mish": x * np.tanh(np.log1p(np.exp(x))), "sigmoid": sigmoid(x), "log_sigmoid": np.log(sigmoid(x)),
        "hard_sigmoid": np.clip(x / 6 + 0.5, 0, 1), "hard_silu": x * np.clip(x / 6 + 0.5, 0, 1), "tanh": np.tanh(x),
        "hard_swish": x * np.clip(x / 6 + 0.5, 0, 1), "softplus": np.log1p(np.exp(x)), "softsign": x / (1 + abs(x)),
        "exponential": np.exp(x),
    }[name]  # fmt: skip
    np.testing.assert_allclose(both(L.Activation(name, dtype="float64"), x), expected, rtol=1e-9, atol=1e-12)


def test_a_batch_of_numbers_without_a_last_dim_is_explained() -> None:
    layer = L.Dense(2)
    layer(np.ones((3, 1)))
    with pytest.raises(ValueError, match=r"size 1, got shape \(5,\); a batch of single numbers has shape \(5, 1\)"):
        layer(np.ones(5))


def test_names_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="unknown activation 'rleu'; there are linear, relu"):
        L.Dense(1, activation="rleu")
    with pytest.raises(TypeError, match="an activation is a name or a function"):
        L.Dense(1, activation=3)
    with pytest.raises(ValueError, match="rate must be within"):
        L.Dropout(1.5)
    with pytest.raises(ValueError, match="does not fit"):
        L.Reshape((5, -1))(numbers(2, 12))
    with pytest.raises(ValueError, match="in some order"):
        L.Permute((0, 1))


# -- convolutions ------------------------------------------------------------------------------------------------------
def padded(x: np.ndarray, sizes: tuple[int, ...], steps: tuple[int, ...], rates: tuple[int, ...], how: str,
           value: float = 0.0) -> np.ndarray:  # fmt: skip
    pads = [(0, 0)]
    for n, size, step, rate in zip(x.shape[1:-1], sizes, steps, rates):
        reach = (size - 1) * rate + 1
        total = {"valid": 0, "same": max((-(-n // step) - 1) * step + reach - n, 0), "causal": reach - 1}[how]
        pads.append((total, 0) if how == "causal" else (total // 2, total - total // 2))
    return np.pad(x, [*pads, (0, 0)], constant_values=value)


def windows(x: np.ndarray, sizes: Any, steps: Any, rates: Any) -> Any:
    """Positions of windows, and for each what is in it: (batch, *window, channels)."""
    counts = [(n - (s - 1) * r - 1) // t + 1 for n, s, t, r in zip(x.shape[1:-1], sizes, steps, rates)]
    for at in itertools.product(*map(range, counts)):
        of = tuple(slice(p * t, p * t + (s - 1) * r + 1, r) for p, s, t, r in zip(at, sizes, steps, rates))
        yield counts, at, x[(slice(None), *of)]


def convolved(x: np.ndarray, k: np.ndarray, steps: Any, rates: Any, how: str, groups: int = 1) -> np.ndarray:
    """The definition, with loops over windows and groups."""
    sizes, out = k.shape[:-2], None
    wide = padded(x, sizes, steps, rates, how)
    inputs, outputs = k.shape[-2], k.shape[-1] // groups
    for counts, at, part in windows(wide, sizes, steps, rates):
        out = np.zeros((len(x), *counts, k.shape[-1])) if out is None else out
        for g in range(groups):
            mine = slice(g * outputs, (g + 1) * outputs)
            axes = list(range(1, part.ndim)), list(range(k.ndim - 1))
            out[(slice(None), *at, mine)] = np.tensordot(
                part[..., g * inputs : (g + 1) * inputs], k[..., mine], axes=axes
            )
    assert out is not None
    return out


@pytest.mark.parametrize(
    "make, shape",
    [
        (lambda: L.Conv2D(4, [3, 3], dtype="float64"), (2, 6, 7, 2)),
        (lambda: L.Conv2D(4, (3, 2), strides=2, padding="same", dtype="float64"), (2, 6, 7, 3)),
        (lambda: L.Conv2D(4, 2, dilation_rate=(2, 1), groups=2, padding="same", dtype="float64"), (1, 5, 6, 4)),
        (lambda: L.Conv1D(3, 3, padding="causal", dilation_rate=2, dtype="float64"), (2, 8, 2)),
        (lambda: L.Conv1D(3, 4, strides=3, dtype="float64"), (2, 11, 2)),
        (lambda: L.Conv3D(2, 2, padding="same", dtype="float64"), (1, 3, 4, 3, 2)),
    ],
    ids=label,
)
def test_convolutions(make: Callable[[], Any], shape: tuple[int, ...]) -> None:
    x, layer = numbers(*shape), make()
    randomised(layer, x)
    kernel = layer.kernel.numpy()
    assert kernel.shape == (*layer.kernel_size, shape[-1] // layer.groups, layer.filters)
    expected = convolved(x, kernel, layer.strides, layer.dilation_rate, layer.padding, layer.groups)
    found = both(layer, x)
    np.testing.assert_allclose(found, expected + layer.bias.numpy(), rtol=1e-9, atol=1e-11)
    assert layer.compute_output_shape(shape) == found.shape
    assert layer.compute_output_shape((None,) * (len(shape) - 1) + shape[-1:])[-1] == layer.filters


def test_depthwise_and_separable() -> None:
    x = numbers(2, 5, 6, 3)
    layer = randomised(L.DepthwiseConv2D(3, depth_multiplier=2, padding="same", dtype="float64"), x)
    k = layer.kernel.numpy()
    parts = [convolved(x[..., c : c + 1], k[:, :, c : c + 1], (1, 1), (1, 1), "same") for c in range(3)]
    np.testing.assert_allclose(both(layer, x), np.concatenate(parts, -1) + layer.bias.numpy(), rtol=1e-9, atol=1e-11)
    both_parts = randomised(L.SeparableConv2D(4, 2, dtype="float64"), x)
    first, second, bias = (v.numpy() for v in both_parts.variables)
    parts = [convolved(x[..., c : c + 1], first[:, :, c : c + 1], (1, 1), (1, 1), "valid") for c in range(3)]
    expected = np.concatenate(parts, -1) @ second[0, 0] + bias
    np.testing.assert_allclose(both(both_parts, x), expected, rtol=1e-9, atol=1e-11)
    assert both_parts.compute_output_shape(x.shape) == expected.shape


@pytest.mark.parametrize("strides, padding, size", [(1, "valid", 3), (2, "same", 3), (3, "valid", 2), (2, "valid", 4)])
def test_transposed_convolution_is_the_transpose(strides: int, padding: str, size: int) -> None:
    x = numbers(1, 4, 3, 2)
    layer = randomised(L.Conv2DTranspose(3, size, strides, padding, use_bias=False, dtype="float64"), x)
    found, kernel = both(layer, x), layer.kernel.numpy()
    assert kernel.shape == (size, size, 3, 2) and found.shape == layer.compute_output_shape(x.shape)
    other = numbers(*found.shape)  # <T x, z> = <x, conv z>
    there = convolved(other, kernel, (strides,) * 2, (1, 1), padding)
    np.testing.assert_allclose((found * other).sum(), (x * there).sum(), rtol=1e-9)


@pytest.mark.parametrize("padding, strides", [("valid", None), ("same", 2), ("same", 1)])
def test_pooling(padding: str, strides: int | None) -> None:
    x, step = numbers(2, 5, 6, 3), (strides or 3,) * 2
    ends = {}
    for value in (-np.inf, np.nan):
        wide = padded(x, (3, 3), step, (1, 1), padding, value)
        out = None
        for counts, at, part in windows(wide, (3, 3), step, (1, 1)):
            out = np.zeros((2, *counts, 3)) if out is None else out
            out[(slice(None), *at)] = part.max((1, 2)) if value == -np.inf else np.nanmean(part, (1, 2))
        ends[str(value)] = out
    options: dict[str, Any] = {"padding": padding, "strides": strides, "dtype": "float64"}
    most, mean = L.MaxPool2D(3, **options), L.AvgPool2D(3, **options)
    np.testing.assert_allclose(both(most, x), ends["-inf"], rtol=1e-12)
    np.testing.assert_allclose(both(mean, x), ends["nan"], rtol=1e-10)
    assert most.compute_output_shape(x.shape) == ends["-inf"].shape  # type: ignore[union-attr]


@pytest.mark.parametrize("rank", [1, 3])
def test_other_ranks(rank: int) -> None:
    """Transposed and depthwise convolutions and pooling over one dim and over three."""
    x = numbers(2, *(4,) * rank, 2)
    transposed = getattr(L, f"Conv{rank}DTranspose")(3, 2, strides=2, use_bias=False, dtype="float64")
    found = both(randomised(transposed, x), x)
    other = numbers(*transposed.compute_output_shape(x.shape))
    assert found.shape == other.shape
    there = convolved(other, transposed.kernel.numpy(), (2,) * rank, (1,) * rank, "valid")
    np.testing.assert_allclose((found * other).sum(), (x * there).sum(), rtol=1e-9)
    blocks = x.reshape(2, *(2, 2) * rank, 2)
    inside = tuple(range(2, 2 * rank + 1, 2))
    np.testing.assert_allclose(both(getattr(L, f"MaxPool{rank}D")(dtype="float64"), x), blocks.max(inside))
    np.testing.assert_allclose(both(getattr(L, f"AvgPool{rank}D")(dtype="float64"), x), blocks.mean(inside), rtol=1e-9)
    dims = tuple(range(1, rank + 1))
    for name, of in (("Average", np.mean), ("Max", np.max)):
        layer = getattr(L, f"Global{name}Pooling{rank}D")(dtype="float64")
        np.testing.assert_allclose(both(layer, x), of(x, dims), rtol=1e-9)
    if rank == 1:
        layer = randomised(L.DepthwiseConv1D(3, depth_multiplier=2, padding="same", dtype="float64"), x)
        k = layer.kernel.numpy()
        parts = [convolved(x[..., c : c + 1], k[:, c : c + 1], (1,), (1,), "same") for c in range(2)]
        np.testing.assert_allclose(both(layer, x), np.concatenate(parts, -1) + layer.bias.numpy(), rtol=1e-9)


def test_larger_images() -> None:
    x = numbers(1, 2, 3, 2)
    padding, larger = L.ZeroPadding2D(((1, 0), (0, 2)), dtype="float64"), L.UpSampling2D((2, 3), dtype="float64")
    np.testing.assert_array_equal(both(padding, x), np.pad(x, ((0, 0), (1, 0), (0, 2), (0, 0))))
    np.testing.assert_array_equal(both(larger, x), x.repeat(2, 1).repeat(3, 2))
    assert padding.compute_output_shape((None, 2, None, 2)) == (None, 3, None, 2)
    assert larger.compute_output_shape((None, 2, 3, 2)) == (None, 4, 9, 2)


def test_wrong_options_of_convolutions() -> None:
    with pytest.raises(ValueError, match=r"input must be \(batch, height, width, channels\), got shape \(2, 3\)"):
        L.Conv2D(3, 2)(numbers(2, 3))
    with pytest.raises(ValueError, match="3 input channels do not split into 2 groups"):
        L.Conv2D(4, 2, groups=2)(numbers(1, 4, 4, 3))
    with pytest.raises(ValueError, match="filters must be a multiple of groups"):
        L.Conv2D(3, 2, groups=2)
    with pytest.raises(ValueError, match="padding must be 'valid' or 'same'"):
        L.Conv2D(3, 2, padding="causal")
    with pytest.raises(ValueError, match="put channels last"):
        L.Conv2D(3, 2, data_format="channels_first")
    with pytest.raises(ValueError, match="kernel_size must be a positive int, or 2 of them"):
        L.Conv2D(3, (1, 2, 3))
    with pytest.raises(ValueError, match="the last dim of its input must be known"):
        L.Conv2D(3, 2, input_shape=(None, None, None)).build_for((None, None, None, None))


# -- normalization -----------------------------------------------------------------------------------------------------
def test_batch_normalization_trains_and_remembers() -> None:
    layer = L.BatchNormalization(momentum=0.9, dtype="float64")
    x = 3 * numbers(4, 5, 2) + 1
    layer(x)
    layer.gamma.assign([2.0, 0.5])
    layer.beta.assign([1.0, -1.0])
    mean, variance = x.mean((0, 1)), x.var((0, 1))
    f = tj.function(lambda x: layer(x, training=True))
    moving_mean, moving_variance = np.zeros(2), np.ones(2)
    for k in range(3):
        found = (f if k else lambda x: layer(x, training=True))(x)
        expected = (x - mean) / np.sqrt(variance + 1e-3) * [2.0, 0.5] + [1.0, -1.0]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)
        moving_mean = 0.9 * moving_mean + 0.1 * mean
        moving_variance = 0.9 * moving_variance + 0.1 * variance
        np.testing.assert_allclose(layer.moving_mean.numpy(), moving_mean, rtol=1e-12)
        np.testing.assert_allclose(layer.moving_variance.numpy(), moving_variance, rtol=1e-12)
    by_memory = (x - moving_mean) / np.sqrt(moving_variance + 1e-3) * [2.0, 0.5] + [1.0, -1.0]
    np.testing.assert_allclose(both(layer, x), by_memory, rtol=1e-9, atol=1e-12)
    layer.trainable = False
    np.testing.assert_allclose(both(layer, x, training=True), by_memory, rtol=1e-9, atol=1e-12)
    assert len(layer.variables) == 4 and list(layer.named_variables()) == [
        "gamma", "beta", "moving_mean", "moving_variance"
    ]  # fmt: skip
    channels_first = L.BatchNormalization(axis=1, dtype="float64")
    found = both(channels_first, x, training=True)
    np.testing.assert_allclose(found.mean((0, 2)), 0, atol=1e-12)


def test_other_normalizations() -> None:
    x = numbers(2, 3, 4, 6)
    layer = randomised(L.LayerNormalization(axis=(1, -1), dtype="float64"), x)
    mean, variance = x.mean((1, 3), keepdims=True), x.var((1, 3), keepdims=True)
    gamma, beta = (v.numpy()[None, :, None] for v in (layer.gamma, layer.beta))
    expected = (x - mean) / np.sqrt(variance + 1e-3) * gamma + beta
    np.testing.assert_allclose(both(layer, x), expected, rtol=1e-9, atol=1e-12)
    for groups in (3, -1):
        layer = randomised(L.GroupNormalization(groups, dtype="float64"), x)
        parts = x.reshape(2, 3, 4, groups if groups > 0 else 6, -1)
        unit = (parts - parts.mean((1, 2, 4), keepdims=True)) / np.sqrt(parts.var((1, 2, 4), keepdims=True) + 1e-3)
        expected = unit.reshape(x.shape) * layer.gamma.numpy() + layer.beta.numpy()
        np.testing.assert_allclose(both(layer, x), expected, rtol=1e-9, atol=1e-12)
    layer = randomised(L.RMSNormalization(dtype="float64"), x)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * layer.gamma.numpy()
    np.testing.assert_allclose(both(layer, x), expected, rtol=1e-9)
    assert L.LayerNormalization(center=False, scale=False, dtype="float64")(x).shape == x.shape
    with pytest.raises(ValueError, match="the size of axis -1 must be known"):
        L.LayerNormalization().build_for((None, None))


# -- noise and embeddings ----------------------------------------------------------------------------------------------
def test_dropout_repeats_under_a_seed_and_compiled() -> None:
    x = np.ones((50, 40))
    layer = L.Dropout(0.25, dtype="float64")
    f = tj.function(lambda x: layer(x, training=True))
    tj.random.seed(5)
    eager = [layer(x, training=True).numpy() for _ in range(2)]
    tj.random.seed(5)
    np.testing.assert_array_equal([f(x).numpy() for _ in range(2)], eager)
    assert set(np.unique(eager)) == {0.0, 1 / 0.75} and abs((eager[0] == 0).mean() - 0.25) < 0.05
    assert not np.array_equal(*eager)
    own = [L.Dropout(0.5, seed=3)(x, training=True).numpy() for _ in range(2)]
    np.testing.assert_array_equal(*own)
    images = L.SpatialDropout2D(0.5, seed=1)(np.ones((2, 3, 3, 40)), training=True).numpy()
    assert (images == images[:, :1, :1]).all() and 10 < (images[:, 0, 0] == 0).sum() < 70
    noisy = L.GaussianNoise(0.5, seed=1)(np.zeros((1000,)), training=True).numpy()
    assert noisy.std() == pytest.approx(0.5, rel=0.1)


def test_embedding() -> None:
    ids = np.array([[1, 2, 1], [0, 4, 4]])
    layer = L.Embedding(5, 3, mask_zero=True, dtype="float64")
    np.testing.assert_array_equal(both(layer, ids), layer.embeddings.numpy()[ids])
    np.testing.assert_array_equal(layer.compute_mask(ids).numpy(), ids != 0)  # type: ignore[union-attr]
    with tj.GradientTape() as tape:
        y = (layer(ids) * np.ones(3)).sum()
    np.testing.assert_array_equal(tape.gradient(y, layer.embeddings).numpy()[:, 0], [1, 2, 1, 0, 2])
    with pytest.raises(IndexError):
        layer([[5]])


# -- attention ---------------------------------------------------------------------------------------------------------
def attended(layer: Any, q: np.ndarray, v: np.ndarray, k: np.ndarray, mask: np.ndarray | None = None) -> Any:
    """The definition, head by head; also the weights."""
    heads = []
    weights = []
    for h in range(layer.num_heads):
        parts = [
            x @ part.kernel.numpy()[:, h] + part.bias.numpy()[h]
            for x, part in ((q, layer.query), (k, layer.key), (v, layer.value))
        ]
        scores = np.einsum("bld,bsd->bls", parts[0], parts[1]) / np.sqrt(layer.key_dim)
        if mask is not None:
            scores = np.where(mask, scores, -np.inf)
        w = np.exp(scores - scores.max(-1, keepdims=True))
        w /= w.sum(-1, keepdims=True)
        weights.append(w)
        heads.append(w @ parts[2] @ layer.output.kernel.numpy()[h])
    return sum(heads) + layer.output.bias.numpy(), np.stack(weights, 1)


def test_multi_head_attention() -> None:
    q, v, k = numbers(2, 4, 6), numbers(2, 5, 3), numbers(2, 5, 7)
    layer = randomised(L.MultiHeadAttention(2, 4, value_dim=3, dtype="float64"), q, v, k)
    shapes = {name: x.shape for name, x in layer.named_variables().items()}
    assert shapes == {
        "query/kernel": (6, 2, 4), "query/bias": (2, 4), "key/kernel": (7, 2, 4), "key/bias": (2, 4),
        "value/kernel": (3, 2, 3), "value/bias": (2, 3), "output/kernel": (2, 3, 6), "output/bias": (6,),
    }  # fmt: skip
    expected, weights = attended(layer, q, v, k)
    np.testing.assert_allclose(both(layer, q, v, k), expected, rtol=1e-9, atol=1e-12)
    found = layer(q, v, k, return_attention_scores=True)
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found[1].numpy(), weights, rtol=1e-9, atol=1e-12)
    mask = np.array([[[True] * 5, [True, False] * 2 + [True], [False] * 4 + [True], [True] * 5]] * 2)
    expected, _ = attended(layer, q, v, k, mask)
    np.testing.assert_allclose(both(layer, q, v, k, attention_mask=mask), expected, rtol=1e-9, atol=1e-12)
    real = np.array([[True] * 5, [True] * 2 + [False] * 3])
    expected, _ = attended(layer, q, v, k, real[:, None])
    np.testing.assert_allclose(both(layer, q, v, k, value_mask=real), expected, rtol=1e-9, atol=1e-12)
    own = randomised(L.MultiHeadAttention(3, 2, dtype="float64"), q, q)
    expected, _ = attended(own, q, q, q, np.tril(np.ones((4, 4), bool)))
    np.testing.assert_allclose(both(own, q, q, use_causal_mask=True), expected, rtol=1e-9, atol=1e-12)
    dropped = L.MultiHeadAttention(2, 4, dropout=0.5)
    assert not np.array_equal(dropped(q, q, training=True).numpy(), dropped(q, q, training=True).numpy())
    with pytest.raises(TypeError, match="called with query and value"):
        L.MultiHeadAttention(2, 4)(q)


# -- models ------------------------------------------------------------------------------------------------------------
def test_sequential_is_built_ahead_where_shapes_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    model = tj.Sequential(
        [
            L.Conv2D(16, [3, 3], activation="relu", input_shape=(None, None, 1)),
            L.Conv2D(16, [3, 3], activation="relu"),
            L.GlobalAveragePooling2D(),
            L.Dense(10),
        ]
    )
    assert model.count_params() == 2650 and len(model.trainable_variables) == 6
    model.summary()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Sequential" and lines[-1] == "2,650 parameters (10.4 KiB), all trained"
    assert [line.split()[-1] for line in lines[3:7]] == ["160", "2,320", "0", "170"]
    assert "(None, None, None, 16)" in lines[3]
    assert repr(model).splitlines()[1] == "  (layers/0): Conv2D(16, (3, 3), activation='relu')"
    assert model(np.zeros((1, 28, 28, 1))).shape == (1, 10) == model.compute_output_shape((1, 28, 28, 1))


def test_sequential_takes_functions_and_grows() -> None:
    model = tj.Sequential([L.Input((4,)), L.Dense(3), tj.nn.relu, lambda x: x * 2])
    assert model.layers[1].built
    model.add(L.Dense(2))
    assert not model.layers[-1].built and model(numbers(5, 4)).shape == (5, 2)
    assert len(model) == 5 and model[0] is model.layers[0] and len(model[1:3]) == 2
    assert model.pop() is not None and model(numbers(5, 4)).shape == (5, 3)
    later = tj.Sequential([L.Dense(3), L.Dense(2)])
    assert later.variables == []
    later.build((None, 4))
    assert [v.shape for v in later.variables] == [(4, 3), (3,), (3, 2), (2,)]
    with pytest.raises(TypeError, match="entry 0 must be a layer or a function of a tensor, got <class"):
        tj.Sequential([L.Dense])
    with pytest.raises(TypeError, match="there are no layers"):
        tj.Sequential().pop()


def test_nested_models_in_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    class Net(tj.Model):
        def __init__(self) -> None:
            super().__init__()
            self.body = tj.Sequential([L.Dense(3, input_shape=(2,)), L.BatchNormalization()])
            self.head = L.Dense(1)

        def call(self, x: Any) -> Any:
            return self.head(self.body(x))

    model = Net()
    model.summary()
    text = capsys.readouterr().out
    assert [w for w in text.splitlines()[3].split(" ") if w] == ["body", "(Sequential)", "(None,", "3)", "21"]
    assert "  layers/0 (Dense)" in text and "not built" in text
    model(numbers(4, 2))
    model.summary()
    text = capsys.readouterr().out
    assert text.splitlines()[-1] == "25 parameters (100 bytes), 19 of them trained"


# -- regularizers ------------------------------------------------------------------------------------------------------
def test_regularizers_add_to_the_loss() -> None:
    model = tj.Sequential(
        [
            L.Conv1D(2, 2, kernel_regularizer="l2", bias_regularizer=tj.regularizers.L1(0.5), input_shape=(4, 3)),
            L.LSTM(2, recurrent_regularizer=tj.regularizers.L1L2(0.1, 0.2)),
            L.Dense(1, kernel_regularizer=lambda w: 3 * w.sum()),
        ]
    )
    conv, lstm, dense = model.layers
    conv.bias.assign([1.0, -2.0])
    k, r, w = (v.numpy().astype("f8") for v in (conv.kernel, lstm.cell.recurrent_kernel, dense.kernel))
    expected = [0.01 * (k**2).sum(), 1.5, 0.1 * abs(r).sum() + 0.2 * (r**2).sum(), 3 * w.sum()]
    for losses in (model.losses, tj.function(lambda: model.losses)(), copy.deepcopy(model).losses):
        np.testing.assert_allclose([float(v) for v in losses], expected, rtol=1e-5)
    model.compile("sgd", "mse")
    x, y = np.zeros((4, 4, 3)), np.zeros((4, 1))
    plain = float(((model(x).numpy() - y) ** 2).mean())
    assert model.evaluate(x, y, verbose=0) == pytest.approx(plain + sum(expected), rel=1e-5)
    conv.trainable = False
    assert len(model.losses) == 2
    embedding = L.Embedding(3, 2, embeddings_regularizer="l1")
    embedding([1])
    np.testing.assert_allclose(float(embedding.losses[0]), 0.01 * abs(embedding.embeddings.numpy()).sum(), rtol=1e-5)
    assert repr(tj.regularizers.L1L2(0.1, 0.2)) == "L1L2(l1=0.1, l2=0.2)" and tj.regularizers.L1L2()(x) == 0.0
    with pytest.raises(ValueError, match="unknown regularizer 'l3'; there are l1, l2, l1_l2"):
        L.Dense(1, kernel_regularizer="l3")
    with pytest.raises(TypeError, match="a regularizer is a name or a function"):
        L.Dense(1, bias_regularizer=0.1)
