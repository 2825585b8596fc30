"""Options and data that make no sense raise at once, and the error names the argument.

The tables hold what a user may get wrong: each row a call and what its error says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj

L, O, M, C, I = tj.layers, tj.optimizers, tj.metrics, tj.callbacks, tj.initializers
S, F = tj.optimizers.schedules, tj.losses
X, Y = np.ones((4, 3)), np.ones((4, 1))
Row = tuple[Callable[[], Any], str]


def model(loss: Any = "mse", metrics: Any = ()) -> Any:
    m = tj.Sequential([L.Dense(1)])
    m.compile("sgd", loss, metrics)
    return m


def fit(*data: Any, **options: Any) -> Callable[[], Any]:
    return lambda: model().fit(*(data or (X, Y)), verbose=0, **options)


def trained_with(loss: Any = "mse", metrics: Any = ()) -> Callable[[], Any]:
    return lambda: model(loss, metrics).fit(X, Y, verbose=0)


def fails(rows: list[Row]) -> Any:
    """A test for each row, named by what is said."""
    return pytest.mark.parametrize(("call", "says"), rows, ids=[says for _, says in rows])


def check(call: Callable[[], Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert says in str(caught.value)


@fails([
    (lambda: L.Dense(None), "Dense: units must be an int, got None"),
    (lambda: L.Dense(True), "Dense: units must be an int, got True"),
    (lambda: L.Dense(0), "Dense: units must be at least 1, got 0"),
    (lambda: L.Dense(3, kernel_initializer="glorot"), "unknown initializer 'glorot'"),
    (lambda: L.Dense(3, kernel_initialiser="zeros"), "'kernel_initialiser'; did you mean 'kernel_initializer'?"),
    (lambda: L.Dense(3, input_shape=4), "Dense: input_shape must be a list or tuple of sizes, None for any, got 4"),
    (lambda: L.Dense(3, input_shape=(-1,)), "Dense: each size of input_shape must be at least 0, got -1"),
    (lambda: L.Dense(3, dtype="int32")(X), "what is trained must be of a float or complex dtype, not int32"),
    (lambda: L.Input(3), "Input: shape must be a list or tuple of sizes"),
    (lambda: L.Conv2D(None, 3), "Conv2D: filters must be an int, got None"),
    (lambda: L.Conv2D(4, 3.0), "Conv2D: kernel_size must be a positive int, or 2 of them, got 3.0"),
    (lambda: L.Conv2D(4, 3, strides=None), "Conv2D: strides must be a positive int, or 2 of them, got None"),
    (lambda: L.Conv2D(4, 3, padding=1), "Conv2D: padding must be 'valid' or 'same', got 1"),
    (lambda: L.DepthwiseConv2D(3, depth_multiplier=0), "depth_multiplier must be at least 1, got 0"),
    (lambda: L.SeparableConv2D("4", 3), "SeparableConv2D: filters must be an int, got '4'"),
    (lambda: L.MaxPooling2D(2, padding=None), "MaxPooling2D: padding must be 'valid' or 'same', got None"),
    (lambda: L.ZeroPadding2D(-1), "ZeroPadding2D: padding must be at least 0, got -1"),
    (lambda: L.ZeroPadding2D((1, 2, 3)), "ZeroPadding2D: padding must be an int, two, or two pairs, got (1, 2, 3)"),
    (lambda: L.Flatten()(1.0), "input must be (batch, ...), got shape ()"),
    (lambda: L.Reshape(3), "Reshape: target_shape must be a list or tuple of sizes"),
    (lambda: L.Reshape((2, -2)), "Reshape: each size of target_shape must be at least -1, got -2"),
    (lambda: L.Permute((2, 1))(X), "dims (2, 1) need an input of 3 dims, got shape (4, 3)"),
    (lambda: L.RepeatVector(0), "RepeatVector: n must be at least 1, got 0"),
    (lambda: L.RepeatVector(2)(X[None]), "input must be (batch, features), got shape (1, 4, 3)"),
    (lambda: L.ReLU(max_value=-1.0), "ReLU: max_value must be at least 0 and finite, got -1.0"),
    (lambda: L.LeakyReLU(None), "LeakyReLU: negative_slope must be a number, got None"),
    (lambda: L.Softmax("a"), "Softmax: axis must be an int, got 'a'"),
    (lambda: L.Lambda(3), "Lambda: function must be a function, got 3"),
    (lambda: L.Lambda(lambda x: None)(X), "gave None; is there a return in it?"),
    (lambda: L.Rescaling("a"), "Rescaling: scale must be a number, or one for each channel, got 'a'"),
    (lambda: L.Dropout("0.5"), "Dropout: rate must be a number, got '0.5'"),
    (lambda: L.Dropout(0.5, seed="a"), "Dropout: seed must be an int, got 'a'"),
    (lambda: L.GaussianNoise(-1), "GaussianNoise: stddev must be at least 0 and finite, got -1"),
    (lambda: L.Embedding(10, None), "Embedding: output_dim must be an int, got None"),
    (lambda: L.BatchNormalization(momentum=2.0), "BatchNormalization: momentum must be within [0, 1], got 2.0"),
    (lambda: L.LayerNormalization(epsilon=-1.0), "LayerNormalization: epsilon must be at least 0"),
    (lambda: L.GroupNormalization(0), "groups must be at least 1, or -1 for each channel, got 0"),
    (lambda: L.LSTM(3, dropout=2), "LSTM: dropout must be within [0, 1], got 2"),
    (lambda: L.LSTM(3, units_=1), "LSTMCell has no option 'units_'; did you mean 'units'?"),
    (lambda: L.LSTMCell(3)(X, [X]), "states must hold 2 states, got 1"),
    (lambda: L.Bidirectional(L.LSTM(3), backward_layer=L.Dense(2)), "backward_layer must be a recurrent layer"),
    (lambda: L.MultiHeadAttention(0, 3), "MultiHeadAttention: num_heads must be at least 1, got 0"),
    (lambda: L.MultiHeadAttention(2, 4)(X[None], X[None].repeat(2, 0)), "value of shape (2, 4, 3) has another batch"),
    (lambda: tj.Sequential(L.Dense(2)), "must be given in one list, Sequential([...]), got Dense(2)"),
    (lambda: tj.Sequential(L.Dense(2), L.Dense(3)), "must be given in one list, Sequential([...]), got 2 arguments"),
    (lambda: tj.Sequential({"a": L.Dense(2)}), "must be given in one list"),
    (lambda: tj.Sequential([L.Dense(2), {}]), "Sequential: entry 1 must be a layer or a function of a tensor, got {}"),
    (lambda: tj.Sequential([L.Dense]), "make one: Dense(...)"),
    (lambda: I.RandomNormal(stddev=-1), "RandomNormal: stddev must be at least 0 and finite, got -1"),
    (lambda: I.Constant("a"), "Constant: value must be a number or an array, got 'a'"),
    (lambda: tj.regularizers.L2(-1.0), "L2: l2 must be at least 0 and finite, got -1.0"),
])  # fmt: skip
def test_layers(call: Callable[[], Any], says: str) -> None:
    check(call, says)


@fails([
    (lambda: O.Adam(-1.0), "Adam: learning_rate must be at least 0 and finite, got -1.0"),
    (lambda: O.Adam(float("nan")), "Adam: learning_rate must be at least 0 and finite, got nan"),
    (lambda: O.Adam([0.1, 0.2]), "Adam: learning_rate must be a number, got [0.1, 0.2]"),
    (lambda: setattr(O.SGD(), "learning_rate", -1.0), "SGD: learning_rate must be at least 0"),
    (lambda: O.Adam(beta_1=1.0), "Adam: beta_1 must be within [0, 1), got 1.0"),
    (lambda: O.AdamW(beta_2=-0.1), "AdamW: beta_2 must be within [0, 1), got -0.1"),
    (lambda: O.Adamax(beta_1="a"), "Adamax: beta_1 must be a number, got 'a'"),
    (lambda: O.Nadam(epsilon=None), "Nadam: epsilon must be a number, got None"),
    (lambda: O.RMSprop(rho=1.5), "RMSprop: rho must be within [0, 1), got 1.5"),
    (lambda: O.Adadelta(rho=-1), "Adadelta: rho must be within [0, 1), got -1"),
    (lambda: O.Adagrad(initial_accumulator_value=-1), "Adagrad: initial_accumulator_value must be at least 0"),
    (lambda: O.SGD(momentum=1.5), "SGD: momentum must be within [0, 1], got 1.5"),
    (lambda: O.Momentum(momentum=-1), "Momentum: momentum must be within [0, 1], got -1"),
    (lambda: O.Lion(beta_1=0), "Lion: beta_1 must be within (0, 1], got 0"),
    (lambda: O.Adam(weight_decay=-0.1), "Adam: weight_decay must be at least 0 and finite, got -0.1"),
    (lambda: O.Adam(clipnorm="a"), "Adam: clipnorm must be a number, got 'a'"),
    (lambda: O.Adam(gradient_accumulation_steps=2.5), "Adam: gradient_accumulation_steps must be an int, got 2.5"),
    (lambda: O.Adam(use_ema=True, ema_overwrite_frequency=0), "ema_overwrite_frequency must be at least 1, got 0"),
    (lambda: O.Adam(lr=0.1), "Adam has no option 'lr'; there are learning_rate"),
    (lambda: O.LossScaleOptimizer(O.Adam(), 0.0), "initial_scale must be over 0 and finite, got 0.0"),
    (lambda: O.Adam().apply_gradients(3), "Adam: grads_and_vars must be a list or tuple of pairs"),
    (lambda: O.Adam().apply_gradients([(tj.Variable(1.0), 1.0)]), "the gradient comes first"),
    (lambda: O.Adam().apply_gradients([(1.0, tj.Variable(1))]), "of dtype int32 cannot be trained"),
    (lambda: O.Adam().minimize(lambda: None), "minimize needs a loss, but the function gave None"),
    (lambda: S.ExponentialDecay(-0.1, 10, 0.5), "ExponentialDecay: initial_learning_rate must be at least 0"),
    (lambda: S.InverseTimeDecay(0.1, "a", 0.5), "InverseTimeDecay: decay_steps must be a number, got 'a'"),
    (lambda: S.PiecewiseConstantDecay(10, [0.1, 0.2]), "boundaries must be a list or tuple of numbers, got 10"),
    (lambda: S.PiecewiseConstantDecay([10], [0.1, -0.2]), "each of values must be at least 0 and finite, got -0.2"),
    (lambda: S.PolynomialDecay(0.1, 10, power=-1), "PolynomialDecay: power must be at least 0 and finite, got -1"),
    (lambda: S.CosineDecay(0.1, 10, alpha=2), "CosineDecay: alpha must be within [0, 1], got 2"),
    (lambda: S.CosineDecay(0.1, 10, warmup_target=-1.0), "CosineDecay: warmup_target must be at least 0"),
    (lambda: S.CosineDecayRestarts(0.1, 10, t_mul=0.5), "t_mul must be at least 1 and finite, got 0.5"),
])  # fmt: skip
def test_optimizers(call: Callable[[], Any], says: str) -> None:
    check(call, says)


@fails([
    (lambda: F.MeanSquaredError(delta=1.0), "MeanSquaredError has no option 'delta'; there are reduction, name"),
    (lambda: F.Huber(-1.0), "Huber: delta must be over 0 and finite, got -1.0"),
    (lambda: F.huber(X, X, delta=0.0), "huber: delta must be over 0 and finite, got 0.0"),
    (lambda: F.BinaryCrossentropy(label_smoothing="a"), "label_smoothing must be a number, got 'a'"),
    (lambda: F.categorical_crossentropy(X, X, label_smoothing=2), "label_smoothing must be within [0, 1], got 2"),
    (lambda: F.CategoricalCrossentropy(axis="a"), "CategoricalCrossentropy: axis must be an int, got 'a'"),
    (lambda: F.CosineSimilarity(axis=7)(X, X), "cosine_similarity: axis 7 is out of bounds"),
    (lambda: F.SparseCategoricalCrossentropy(ignore_class="a"), "ignore_class must be a number, got 'a'"),
    (lambda: F.MeanSquaredError()(None, X), "MeanSquaredError: y_true is None"),
    (trained_with(lambda y, p: None), "but it gave None; is there a return in it?"),
    (trained_with(lambda y, p: (y, p)), "a loss must give a number for each sample, but it gave ("),
    (trained_with(lambda y, p: 3.0), "kernel:0, bias:0; does the loss depend on them?"),
    (trained_with("mse", [lambda y, p: None]), "a metric must give a number for each sample, but it gave None"),
    (trained_with(["mse", "mae"]), "there are 2 losses; targets (y) must be a tuple of as many, got one"),
    (trained_with({"a": "mse"}), "there are losses for 'a'; targets (y) must be a dict of these, got one"),
    (trained_with([]), "compile: loss must be a loss, or one for each output, got []"),
    (trained_with(["mse", "mae"], ["mae"]), "with several losses metrics must be a list of 2 lists, got ['mae']"),
    (trained_with("mse", {"a": "mae"}), "metrics must be a list of names, functions and metrics, got {"),
    (lambda: M.Precision(top_k=0), "Precision: top_k must be at least 1, got 0"),
    (lambda: M.Recall(thresholds="a"), "Recall: thresholds must be a number, got 'a'"),
    (lambda: M.AUC(num_thresholds=1), "AUC: num_thresholds must be at least 2, got 1"),
    (lambda: M.F1Score(average="a"), "F1Score: average must be None or 'micro' or 'macro' or 'weighted', got 'a'"),
    (lambda: M.BinaryAccuracy(threshold="a"), "BinaryAccuracy: threshold must be a number, got 'a'"),
    (lambda: M.TopKCategoricalAccuracy(k=0), "TopKCategoricalAccuracy: k must be at least 1, got 0"),
    (lambda: M.ConfusionMatrix("a"), "ConfusionMatrix: num_classes must be an int, got 'a'"),
    (lambda: M.MeanMetricWrapper(3), "MeanMetricWrapper: fn must be a function, got 3"),
])  # fmt: skip
def test_losses_and_metrics(call: Callable[[], Any], says: str) -> None:
    check(call, says)


@fails([
    (fit(epochs=-1), "fit: epochs must be at least 0, got -1"),
    (fit(epochs=1.5), "fit: epochs must be an int, got 1.5"),
    (fit(initial_epoch=-1), "fit: initial_epoch must be at least 0, got -1"),
    (fit(batch_size="a"), "fit: batch_size must be an int, got 'a'"),
    (fit(steps_per_epoch=0), "fit: steps_per_epoch must be at least 1, got 0"),
    (fit(validation_data=(X, Y), validation_steps=0), "fit: validation_steps must be at least 1, got 0"),
    (fit(validation_data=(X, Y), validation_freq=0), "fit: validation_freq must be at least 1, got 0"),
    (fit(validation_data=[X, Y, Y, Y]), "validation_data must be (x, y), (x, y, weights) or a dataset, got 4"),
    (fit(validation_split="a"), "fit: validation_split must be a number, got 'a'"),
    (fit(class_weight=[1, 2]), "fit: class_weight must be a dict of weights by class, got [1, 2]"),
    (fit(class_weight={"a": 1.0}), "fit: each class of class_weight must be an int, got 'a'"),
    (fit(class_weight={0: -1.0}), "fit: class_weight[0] must be at least 0 and finite, got -1.0"),
    (fit(X, ["a"] * 4), "fit: y must be numbers, got list of <U1"),
    (fit(X, Y, sample_weight="a"), "fit: sample_weight must be numbers, got str of <U1"),
    (fit(callbacks=[C.EarlyStopping]), "make one: EarlyStopping(...)"),
    (lambda: model().evaluate(X, Y, steps=0), "evaluate: steps must be at least 1, got 0"),
    (lambda: model().predict("abc"), "predict: x must be numbers, got str of <U3"),
    (lambda: C.EarlyStopping(patience=-1), "EarlyStopping: patience must be at least 0, got -1"),
    (lambda: C.EarlyStopping(monitor=3), "EarlyStopping: monitor must be the name of a loss or metric, got 3"),
    (lambda: C.ReduceLROnPlateau(factor=-1), "ReduceLROnPlateau: factor must be within [0, 1), got -1"),
    (lambda: C.LearningRateScheduler(0.1), "LearningRateScheduler: schedule must be a function, got 0.1"),
    (fit(callbacks=C.LearningRateScheduler(lambda e: None)), "what schedule gives must be a number, got None"),
    (lambda: C.ModelCheckpoint("best.keras"), "filepath must be a folder or a .safetensors file, got 'best.keras'"),
    (lambda: C.ModelCheckpoint("a", keep=0), "ModelCheckpoint: keep must be at least 1, got 0"),
    (lambda: C.TensorBoard(histogram_freq=-1), "TensorBoard: histogram_freq must be at least 0, got -1"),
    (lambda: C.CSVLogger("a.csv", separator=3), "CSVLogger: separator must be one character, got 3"),
    (lambda: C.LambdaCallback(on_epoch_end=3), "LambdaCallback: on_epoch_end must be a function, got 3"),
])  # fmt: skip
def test_training(call: Callable[[], Any], says: str) -> None:
    check(call, says)


def test_what_is_near_enough_is_taken() -> None:
    """One callback, one metric, a list for validation, a class for an object, an empty dict of weights."""
    m = tj.Sequential([L.Dense(1)])
    m.compile(O.SGD, F.MeanSquaredError, "mae")
    history = m.fit(
        X, Y, verbose=0, epochs=np.int64(2), validation_data=[X, Y], callbacks=C.EarlyStopping("loss"), class_weight={}
    )
    assert sorted(history.history) == ["loss", "mae", "val_loss", "val_mae"]
    assert L.Conv2D(np.int32(4), np.int64(3)).kernel_size == (3, 3)
    assert O.Adam(np.float32(0.5)).learning_rate == 0.5 and O.SGD(tj.constant(0.25)).learning_rate == 0.25
