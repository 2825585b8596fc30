"""Derivatives of every layer, by input and by weights, to second order, in both modes, against differences.

The table is complete by construction: a layer of the namespace `tj.layers` that has no case fails. Losses have the same
in `test_losses.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import tracejit as tj

L = tj.layers


class Case(NamedTuple):
    """A layer and what it is called with."""

    make: Callable[..., Any]  # takes dtype=
    inputs: tuple[Any, ...]  # shapes, or integer arrays
    call: Callable[..., Any] = lambda layer, *inputs: layer(*inputs)


def case(make: Callable[..., Any], *inputs: Any, states: bool = False, **call: Any) -> Case:
    """`states`: all inputs but the first are a list, the states of a cell."""
    if states:
        return Case(make, inputs, lambda layer, x, *rest: layer(x, list(rest), **call)[1])
    return Case(make, inputs, lambda layer, *xs: layer(*xs, **call))


IDS = np.array([[1, 2, 1], [0, 3, 3]])
MASK = np.array([[True, True, False], [True, False, True]])
training = {"training": True}

# Each name begins with that of the layer.
CASES: dict[str, Case] = {
    "Activation": case(lambda **k: L.Activation("gelu", **k), (2, 3)),
    "AveragePooling1D": case(lambda **k: L.AveragePooling1D(2, 1, "same", **k), (1, 5, 2)),
    "AveragePooling2D": case(lambda **k: L.AveragePooling2D(2, **k), (1, 4, 4, 1)),
    "AveragePooling3D": case(lambda **k: L.AveragePooling3D(2, **k), (1, 2, 4, 2, 1)),
    "BatchNormalization": case(L.BatchNormalization, (3, 2)),
    "BatchNormalization training": case(L.BatchNormalization, (3, 2), **training),
    "Bidirectional": case(lambda **k: L.Bidirectional(L.LSTM(2, **k), **k), (1, 2, 2)),
    "Bidirectional sequences": case(
        lambda **k: L.Bidirectional(L.GRU(1, return_sequences=True, **k), "mul", **k), (2, 3, 1), mask=MASK
    ),
    "Conv1D": case(lambda **k: L.Conv1D(2, 2, padding="causal", dilation_rate=2, **k), (1, 4, 2)),
    "Conv2D": case(lambda **k: L.Conv2D(2, 2, strides=2, padding="same", activation="sigmoid", **k), (1, 3, 3, 2)),
    "Conv2D groups": case(lambda **k: L.Conv2D(4, 2, groups=2, **k), (1, 2, 3, 4)),
    "Conv3D": case(lambda **k: L.Conv3D(2, 2, **k), (1, 2, 3, 2, 1)),
    "Conv1DTranspose": case(lambda **k: L.Conv1DTranspose(2, 3, strides=2, padding="same", **k), (1, 3, 2)),
    "Conv2DTranspose": case(lambda **k: L.Conv2DTranspose(2, 2, strides=2, **k), (1, 2, 2, 2)),
    "Conv3DTranspose": case(lambda **k: L.Conv3DTranspose(2, 2, **k), (1, 1, 2, 2, 1)),
    "Dense": case(lambda **k: L.Dense(3, activation="tanh", **k), (2, 4)),
    "DepthwiseConv1D": case(lambda **k: L.DepthwiseConv1D(2, depth_multiplier=2, **k), (1, 4, 2)),
    "DepthwiseConv2D": case(lambda **k: L.DepthwiseConv2D(2, strides=2, padding="same", **k), (1, 3, 3, 2)),
    "Dropout": case(lambda **k: L.Dropout(0.4, **k), (2, 5), **training),
    "ELU": case(lambda **k: L.ELU(0.7, **k), (2, 3)),
    "Embedding": case(lambda **k: L.Embedding(4, 3, **k), IDS),
    "Flatten": case(L.Flatten, (2, 3, 2)),
    "GRU": case(lambda **k: L.GRU(2, return_sequences=True, **k), (1, 2, 2)),
    "GRU before": case(lambda **k: L.GRU(2, reset_after=False, dropout=0.5, **k), (1, 2, 2), **training),
    "GRUCell": case(lambda **k: L.GRUCell(2, **k), (2, 3), (2, 2), states=True),
    "GaussianNoise": case(lambda **k: L.GaussianNoise(0.5, **k), (2, 3), **training),
    "GlobalAveragePooling1D": case(L.GlobalAveragePooling1D, (2, 3, 2)),
    "GlobalAveragePooling1D masked": case(L.GlobalAveragePooling1D, (2, 3, 2), mask=MASK),
    "GlobalAveragePooling2D": case(L.GlobalAveragePooling2D, (1, 3, 2, 2)),
    "GlobalAveragePooling3D": case(L.GlobalAveragePooling3D, (1, 2, 3, 2, 2)),
    "GlobalMaxPooling1D": case(L.GlobalMaxPooling1D, (2, 3, 2)),
    "GlobalMaxPooling2D": case(L.GlobalMaxPooling2D, (1, 3, 2, 2)),
    "GlobalMaxPooling3D": case(L.GlobalMaxPooling3D, (1, 2, 3, 2, 2)),
    "GroupNormalization": case(lambda **k: L.GroupNormalization(2, **k), (2, 4)),
    "Input": case(lambda **k: L.Input((3,), **k), (2, 3)),
    "LSTM": case(lambda **k: L.LSTM(2, **k), (1, 2, 2)),
    "LSTM states": case(
        lambda **k: L.LSTM(1, return_state=True, go_backwards=True, recurrent_dropout=0.5, **k), (2, 3, 1), mask=MASK,
        **training,
    ),
    "LSTMCell": case(lambda **k: L.LSTMCell(2, **k), (2, 3), (2, 2), (2, 2), states=True),
    "Lambda": case(lambda **k: L.Lambda(tj.nn.softmax, **k), (2, 3)),
    "LayerNormalization": case(L.LayerNormalization, (2, 4)),
    "LeakyReLU": case(L.LeakyReLU, (2, 3)),
    "Masking": case(L.Masking, (2, 3, 2)),
    "MaxPooling1D": case(lambda **k: L.MaxPooling1D(2, **k), (1, 5, 2)),
    "MaxPooling2D": case(lambda **k: L.MaxPooling2D(2, 1, "same", **k), (1, 3, 3, 1)),
    "MaxPooling3D": case(lambda **k: L.MaxPooling3D(2, **k), (1, 2, 4, 2, 1)),
    "MultiHeadAttention": case(lambda **k: L.MultiHeadAttention(2, 2, **k), (1, 3, 4), (1, 2, 4), (1, 2, 4)),
    "MultiHeadAttention causal": case(
        lambda **k: L.MultiHeadAttention(2, 2, dropout=0.3, **k), (1, 3, 2), (1, 3, 2), use_causal_mask=True, **training
    ),
    "Permute": case(lambda **k: L.Permute((2, 1), **k), (2, 3, 2)),
    "RMSNormalization": case(L.RMSNormalization, (2, 4)),
    "RNN": case(lambda **k: L.RNN(L.SimpleRNNCell(2, activation="sigmoid", **k), **k), (1, 3, 2)),
    "ReLU": case(lambda **k: L.ReLU(0.8, 0.1, **k), (2, 5)),
    "RepeatVector": case(lambda **k: L.RepeatVector(3, **k), (2, 2)),
    "Rescaling": case(lambda **k: L.Rescaling(0.5, 1.0, **k), (2, 3)),
    "Reshape": case(lambda **k: L.Reshape((3, -1), **k), (2, 6)),
    "SeparableConv2D": case(lambda **k: L.SeparableConv2D(2, 2, activation="softplus", **k), (1, 3, 3, 2)),
    "SimpleRNN": case(lambda **k: L.SimpleRNN(2, **k), (1, 3, 2)),
    "SimpleRNNCell": case(lambda **k: L.SimpleRNNCell(2, **k), (2, 3), (2, 2), states=True),
    "Softmax": case(lambda **k: L.Softmax(axis=0, **k), (2, 3)),
    "SpatialDropout1D": case(lambda **k: L.SpatialDropout1D(0.4, **k), (2, 3, 2), **training),
    "SpatialDropout2D": case(lambda **k: L.SpatialDropout2D(0.4, **k), (2, 2, 2, 2), **training),
    "UpSampling2D": case(lambda **k: L.UpSampling2D((2, 1), **k), (1, 2, 2, 1)),
    "ZeroPadding2D": case(lambda **k: L.ZeroPadding2D(((1, 0), (0, 2)), **k), (1, 2, 2, 1)),
}


def test_every_layer_has_a_case() -> None:
    layers = {getattr(L, name).__name__ for name in L.__all__ if inspect.isclass(getattr(L, name))} - {"Layer"}
    assert {name.split()[0] for name in CASES} == layers


@pytest.mark.parametrize("name", CASES)
def test_derivatives_to_second_order(name: str) -> None:
    make, inputs, call = CASES[name]
    rng = np.random.default_rng(1)
    args = [tj.asarray(s if isinstance(s, np.ndarray) else rng.standard_normal(s)) for s in inputs]
    layer = make(dtype="float64")
    assert layer.__class__.__name__ == name.split()[0]
    call(layer, *args)
    paths = [path for path, v in layer.named_variables().items() if v.trainable]
    weights = [tj.asarray(0.5 * rng.standard_normal(layer.named_variables()[p].shape)) for p in paths]

    def f(args: Any, weights: Any) -> Any:
        for path, w in zip(paths, weights):
            *owners, attribute = path.split("/")
            owner = layer
            for part in owners:
                owner = getattr(owner, part)
            setattr(owner, attribute, w)
        tj.random.seed(7)  # the same noise at each call
        found = call(layer, *args)
        results = list(found) if isinstance(found, (list, tuple)) else [found]
        assert all(y.dtype == np.float64 for y in results)
        return [tj.sin(y) for y in results]  # no layer's second derivative is zero

    tj.check_grads(f, (args, weights), order=2, atol=1e-7, rtol=1e-6)
