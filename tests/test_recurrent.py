"""Recurrent layers against step-by-step NumPy in float64, eager and compiled, with masks, states and directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj

pytestmark = pytest.mark.filterwarnings("ignore:.*has been decorated")

L = tj.layers
RNG = np.random.default_rng(2)
BATCH, STEPS, FEATURES, UNITS = 2, 4, 3, 2


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def simple_step(w: Any, x: Any, h: Any) -> Any:
    k, r, b = w
    return (np.tanh(x @ k + h @ r + b),)


def lstm_step(w: Any, x: Any, h: Any, c: Any) -> Any:
    k, r, b = w
    i, f, g, o = np.split(x @ k + h @ r + b, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru_step(w: Any, x: Any, h: Any) -> Any:
    k, r, b = w
    a, d = x @ k + b[0], h @ r + b[1]
    z, r_ = (sigmoid(a[:, s] + d[:, s]) for s in (slice(UNITS), slice(UNITS, 2 * UNITS)))
    new = np.tanh(a[:, 2 * UNITS :] + r_ * d[:, 2 * UNITS :])
    return (z * h + (1 - z) * new,)


def early_gru_step(w: Any, x: Any, h: Any) -> Any:
    k, r, b = w
    kz, kr, kh = np.split(k, 3, axis=-1)
    rz, rr, rh = np.split(r, 3, axis=-1)
    bz, br, bh = np.split(b, 3)
    z, r_ = sigmoid(x @ kz + h @ rz + bz), sigmoid(x @ kr + h @ rr + br)
    return (z * h + (1 - z) * np.tanh(x @ kh + (r_ * h) @ rh + bh),)


KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Any], int]] = {
    "simple": (lambda **o: L.SimpleRNN(UNITS, **o), simple_step, 1),
    "lstm": (lambda **o: L.LSTM(UNITS, **o), lstm_step, 2),
    "gru": (lambda **o: L.GRU(UNITS, **o), gru_step, 1),
    "early gru": (lambda **o: L.GRU(UNITS, reset_after=False, **o), early_gru_step, 1),
}


def made(kind: str, **options: Any) -> Any:
    layer = KINDS[kind][0](dtype="float64", **options)
    layer.build_for((None, None, FEATURES))
    for v in layer.variables:
        v.assign(0.5 * RNG.standard_normal(v.shape))
    return layer


def run(kind: str, weights: Any, x: np.ndarray, states: Any = None, mask: np.ndarray | None = None) -> Any:
    """All outputs and the last states, by the definition."""
    _, step, count = KINDS[kind]
    states = [np.zeros((len(x), UNITS))] * count if states is None else states
    out, outs = np.zeros((len(x), UNITS)), []
    for t in range(x.shape[1]):
        new = step(weights, x[:, t], *states)
        real = np.ones((len(x), 1), bool) if mask is None else mask[:, t, None]
        states = [np.where(real, a, b) for a, b in zip(new, states)]
        out = np.where(real, new[0], out)
        outs.append(out)
    return np.stack(outs, 1), states


def agree(layer: Any, args: Any, kwargs: Any, expected: Any) -> None:
    eager = layer(*args, **kwargs)
    compiled = tj.function(lambda *args: layer(*args, **kwargs))(*args)
    for found in (eager, compiled):
        parts = found if isinstance(found, tuple) else (found,)
        assert len(parts) == len(expected)
        for a, b in zip(parts, expected):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_against_the_definition(kind: str) -> None:
    x = RNG.standard_normal((BATCH, STEPS, FEATURES))
    layer = made(kind)
    outs, states = run(kind, layer.get_weights(), x)
    agree(layer, (x,), {}, [outs[:, -1]])
    layer.return_sequences = True
    agree(layer, (x,), {}, [outs])
    layer.return_state = True
    agree(layer, (x,), {}, [outs, *states])
    first = [RNG.standard_normal((BATCH, UNITS)) for _ in states]
    outs, states = run(kind, layer.get_weights(), x, first)
    agree(layer, (x,), {"initial_state": first}, [outs, *states])
    layer.go_backwards = True
    outs, states = run(kind, layer.get_weights(), x[:, ::-1])
    agree(layer, (x,), {}, [outs, *states])


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_masks(kind: str) -> None:
    x = RNG.standard_normal((3, STEPS, FEATURES))
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]], bool)
    layer = made(kind, return_sequences=True, return_state=True)
    outs, states = run(kind, layer.get_weights(), x, mask=mask)
    agree(layer, (x,), {"mask": mask}, [outs, *states])
    layer.return_sequences = layer.return_state = False
    agree(layer, (x,), {"mask": mask}, [outs[:, -1]])
    with pytest.raises(ValueError, match=r"mask must be \(batch, steps\)"):
        layer(x, mask=mask[:, :2])


def test_masks_go_from_layer_to_layer() -> None:
    ids = np.array([[3, 1, 2, 0, 0], [1, 0, 0, 0, 0]])
    many = L.LSTM(2, return_sequences=True)
    parts = [L.Embedding(4, 3, mask_zero=True), L.Dropout(0.5), many, L.LayerNormalization()]
    for last in (L.GRU(2), L.GlobalAveragePooling1D(), L.Bidirectional(L.SimpleRNN(2))):
        inner = tj.Sequential([*parts[1:], L.Dense(2, activation="tanh")])
        model = tj.Sequential([parts[0], inner, last])
        for f in (model, tj.function(lambda x, model=model: model(x))):
            whole = f(ids).numpy()
            for row, n in enumerate((3, 1)):  # as if the steps of id 0 were not there
                np.testing.assert_allclose(whole[row], f(ids[row : row + 1, :n]).numpy()[0], rtol=1e-5, atol=1e-6)
    unmasked = tj.Sequential([L.Embedding(4, 3), L.GRU(2)])
    assert not np.allclose(unmasked(ids).numpy()[0], unmasked(ids[:1, :3]).numpy()[0])


def test_weights_have_the_layout_of_keras() -> None:
    lstm, gru = made("lstm"), made("gru")
    assert [v.shape for v in lstm.variables] == [(3, 8), (2, 8), (8,)]
    assert [v.shape for v in gru.variables] == [(3, 6), (2, 6), (2, 6)]
    assert list(lstm.named_variables()) == ["cell/kernel", "cell/recurrent_kernel", "cell/bias"]
    fresh = L.LSTM(UNITS)
    fresh.build_for((None, None, 3))
    np.testing.assert_array_equal(fresh.cell.bias.numpy(), [0, 0, 1, 1, 0, 0, 0, 0])
    recurrent = fresh.cell.recurrent_kernel.numpy()
    np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(2), atol=1e-6)
    assert L.LSTM(4, use_bias=False, input_shape=(5, 3)).cell.use_bias is False


def test_cells_alone_and_in_rnn() -> None:
    x = RNG.standard_normal((BATCH, STEPS, FEATURES))
    layer = made("lstm")
    states: Any = [tj.zeros((BATCH, UNITS), "float64")] * 2
    for t in range(STEPS):
        out, states = layer.cell(tj.asarray(x[:, t]), states)
    np.testing.assert_allclose(layer(x).numpy(), out.numpy(), rtol=1e-9)

    class Leaky(L.Layer):
        """A cell of a user's own: its output is not its state."""

        state_size, output_size = (FEATURES,), 1

        def call(self, x: Any, states: Any) -> Any:
            new = 0.5 * states[0] + x
            return new.sum(axis=-1, keepdims=True), [new]

    rnn = L.RNN(Leaky(dtype="float64"), return_sequences=True, return_state=True, dtype="float64")
    h, outs = np.zeros((BATCH, FEATURES)), []
    for t in range(STEPS):
        h = 0.5 * h + x[:, t]
        outs.append(h.sum(-1, keepdims=True))
    agree(rnn, (x,), {}, [np.stack(outs, 1), h])
    assert rnn.compute_output_shape((None, STEPS, FEATURES)) == [(None, STEPS, 1), (None, FEATURES)]
    with pytest.raises(TypeError, match="a cell needs the sizes of its states"):
        L.RNN(L.Dense(3))


@pytest.mark.parametrize("mode", ["concat", "sum", "mul", "ave", None])
def test_bidirectional(mode: str | None) -> None:
    x = RNG.standard_normal((BATCH, STEPS, FEATURES))
    layer = L.Bidirectional(L.GRU(UNITS, return_sequences=True, dtype="float64"), mode, dtype="float64")
    layer.build_for((None, None, FEATURES))
    for v in layer.variables:
        v.assign(0.5 * RNG.standard_normal(v.shape))
    a, _ = run("gru", layer.forward_layer.get_weights(), x)
    b, _ = run("gru", layer.backward_layer.get_weights(), x[:, ::-1])
    b = b[:, ::-1]
    joined = {"concat": np.concatenate([a, b], -1), "sum": a + b, "mul": a * b, "ave": (a + b) / 2}
    agree(layer, (x,), {}, [joined[mode]] if mode else [a, b])
    if mode == "concat":
        assert layer.compute_output_shape((None, None, FEATURES)) == (None, None, 2 * UNITS)
        last = L.Bidirectional(L.LSTM(UNITS, return_state=True), mode)(x)
        assert [t.shape for t in last] == [(BATCH, 2 * UNITS)] + [(BATCH, UNITS)] * 4


def test_dropout_inside() -> None:
    x = np.ones((BATCH, STEPS, FEATURES))
    layer = made("lstm", dropout=0.5, recurrent_dropout=0.5)
    tj.random.seed(1)
    eager = layer(x, training=True).numpy()
    tj.random.seed(1)
    np.testing.assert_allclose(tj.function(lambda x: layer(x, training=True))(x).numpy(), eager, rtol=1e-9)
    assert not np.allclose(eager, layer(x).numpy())


def test_wrong_inputs_are_named() -> None:
    layer = made("lstm")
    with pytest.raises(ValueError, match=r"input must be \(batch, steps, features\), got shape \(2, 3\)"):
        layer(np.ones((2, 3)))
    with pytest.raises(ValueError, match="the last dim must have size 3"):
        layer(np.ones((2, 3, 4)))
    with pytest.raises(ValueError, match="initial_state must hold 2 states, got 1"):
        layer(np.ones((2, 3, 3)), initial_state=[np.ones((2, 2))])
    with pytest.raises(ValueError, match="initial_state must hold shapes"):
        layer(np.ones((2, 3, 3)), initial_state=[np.ones((2, 2)), np.ones((1, 2))])
    with pytest.raises(ValueError, match="merge_mode must be"):
        L.Bidirectional(L.LSTM(2), "mean")
    with pytest.raises(ValueError, match="the layer is built already"):
        L.Bidirectional(layer)
    with pytest.raises(ValueError, match="units must be at least 1"):
        L.GRU(0)


def test_a_compiled_gradient_is_the_eager_one() -> None:
    layer, x = made("lstm"), tj.asarray(RNG.standard_normal((BATCH, STEPS, FEATURES)))

    def gradients(x: Any) -> Any:
        with tj.GradientTape() as tape:
            loss = (layer(x) ** 2).sum()
        return tape.gradient(loss, layer.trainable_variables)

    for a, b in zip(gradients(x), tj.function(gradients)(x)):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-12)


def test_new_lengths_need_no_new_machine_code() -> None:
    layer = made("gru", return_sequences=True)
    f = tj.function(lambda x: layer(x))
    for n in (3, 4, 9):  # below and above one vector
        f(np.ones((2, n, FEATURES)))
    before = tj.stats().compiles
    for n in (5, 17, 40):
        np.testing.assert_allclose(f(np.ones((2, n, FEATURES))).numpy(), layer(np.ones((2, n, FEATURES))).numpy())
    assert tj.stats().compiles == before


def test_gradients_of_new_batch_sizes_need_no_new_trace() -> None:
    layer = made("lstm")

    def gradients(x: Any) -> Any:
        with tj.GradientTape() as tape:
            loss = (layer(x) ** 2).mean()
        return tape.gradient(loss, layer.trainable_variables)

    f = tj.function(gradients)
    for n in (3, 8, 5, 13):
        x = tj.asarray(RNG.standard_normal((n, STEPS, FEATURES)))
        for a, b in zip(f(x), gradients(x)):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-12)
    assert f.trace_count == 2
