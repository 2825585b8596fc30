"""Metrics: what is watched while a model is trained or judged. The namespace `tj.metrics`.

In: targets and predictions, batch by batch. Out: one number for all of them so far. Names, defaults and formulas are
those of Keras 3 (`keras.metrics`).

Read next: `decisions.py` (metrics that count decisions), `training.py` (which calls them).
"""

from __future__ import annotations

from typing import Any

from tracejit import dtypes
from tracejit.nn import losses
from tracejit.nn.decisions import (
    AUC,
    ConfusionMatrix,
    F1Score,
    FalseNegatives,
    FalsePositives,
    FBetaScore,
    Precision,
    Recall,
    TrueNegatives,
    TruePositives,
)
from tracejit.nn.metric import Mean, MeanMetricWrapper, Metric, Sum
from tracejit.nn.options import number, whole
from tracejit.nn.weighting import alike, floats, targets_and_predictions
from tracejit.ops import core
from tracejit.ops.elementwise import cast, sqrt, square
from tracejit.ops.movement import iota, reshaped
from tracejit.ops.reduction import argmax, sum
from tracejit.tensor import Tensor

__all__ = [
    "AUC", "Accuracy", "BinaryAccuracy", "BinaryCrossentropy", "CategoricalAccuracy", "CategoricalCrossentropy",
    "ConfusionMatrix", "CosineSimilarity", "F1Score", "FBetaScore", "FalseNegatives", "FalsePositives", "Mean",
    "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanMetricWrapper", "MeanSquaredError",
    "MeanSquaredLogarithmicError", "Metric", "Precision", "Recall", "RootMeanSquaredError",
    "SparseCategoricalAccuracy", "SparseCategoricalCrossentropy", "SparseTopKCategoricalAccuracy", "Sum",
    "TopKCategoricalAccuracy", "TrueNegatives", "TruePositives", "binary_accuracy", "categorical_accuracy", "get",
    "sparse_categorical_accuracy", "sparse_top_k_categorical_accuracy", "top_k_categorical_accuracy",
]  # fmt: skip


# -- how far off -------------------------------------------------------------------------------------------------------
class MeanSquaredError(MeanMetricWrapper):
    """The mean squared error."""

    def __init__(self, name: str | None = "mean_squared_error"):
        super().__init__(losses.mean_squared_error, name)


class RootMeanSquaredError(Mean):
    """The root of the mean squared error of all elements.

    >>> RootMeanSquaredError()([[0.0, 1.0], [0.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]]).item()
    0.5
    """

    def __init__(self, name: str | None = "root_mean_squared_error"):
        super().__init__(name)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # type: ignore[override]
        true, pred = targets_and_predictions(y_true, y_pred, "root_mean_squared_error")
        super().update_state(square(true - pred), sample_weight)

    def result(self) -> Tensor:
        return sqrt(super().result())


class MeanAbsoluteError(MeanMetricWrapper):
    """The mean absolute error."""

    def __init__(self, name: str | None = "mean_absolute_error"):
        super().__init__(losses.mean_absolute_error, name)


class MeanAbsolutePercentageError(MeanMetricWrapper):
    """The mean absolute error in percent of the targets."""

    def __init__(self, name: str | None = "mean_absolute_percentage_error"):
        super().__init__(losses.mean_absolute_percentage_error, name)


class MeanSquaredLogarithmicError(MeanMetricWrapper):
    """The mean squared error of logarithms."""

    def __init__(self, name: str | None = "mean_squared_logarithmic_error"):
        super().__init__(losses.mean_squared_logarithmic_error, name)


class CosineSimilarity(MeanMetricWrapper):
    """The mean cosine of the angle between targets and predictions: 1 for equal directions."""

    def __init__(self, name: str | None = "cosine_similarity", axis: int = -1):
        super().__init__(_cosine, name, axis=axis)


def _cosine(y_true: Tensor, y_pred: Tensor, axis: int) -> Tensor:
    return -losses.cosine_similarity(y_true, y_pred, axis)


class BinaryCrossentropy(MeanMetricWrapper):
    """The mean binary crossentropy."""

    def __init__(self, name: str | None = "binary_crossentropy", from_logits: bool = False,
                 label_smoothing: float = 0.0):
        super().__init__(losses.binary_crossentropy, name, from_logits=from_logits, label_smoothing=label_smoothing)


class CategoricalCrossentropy(MeanMetricWrapper):
    """The mean categorical crossentropy, targets one-hot."""

    def __init__(self, name: str | None = "categorical_crossentropy", from_logits: bool = False,
                 label_smoothing: float = 0.0, axis: int = -1):
        super().__init__(losses.categorical_crossentropy, name, from_logits=from_logits,
                         label_smoothing=label_smoothing, axis=axis)


class SparseCategoricalCrossentropy(MeanMetricWrapper):
    """The mean categorical crossentropy, targets integers."""

    def __init__(self, name: str | None = "sparse_categorical_crossentropy", from_logits: bool = False,
                 axis: int = -1):
        super().__init__(losses.sparse_categorical_crossentropy, name, from_logits=from_logits, axis=axis)


# -- how often right ---------------------------------------------------------------------------------------------------
def binary_accuracy(y_true: Any, y_pred: Any, threshold: float = 0.5) -> Tensor:
    """1 where y_true equals y_pred > threshold, else 0."""
    true, pred = alike(floats(y_true), floats(y_pred))
    return _ones(true == cast(pred > threshold, true.dtype))


def categorical_accuracy(y_true: Any, y_pred: Any) -> Tensor:
    """1 where the largest of the last axis is at one place in both, else 0."""
    pred = core.strong(core.as_tensor(y_pred))
    return _ones(_places(y_true, pred, "categorical_accuracy") == argmax(pred, axis=-1))


def sparse_categorical_accuracy(y_true: Any, y_pred: Any) -> Tensor:
    """1 where y_true is the place of the largest of the last axis of y_pred, else 0."""
    pred = core.strong(core.as_tensor(y_pred))
    return _ones(_labels(y_true, pred, "sparse_categorical_accuracy") == argmax(pred, axis=-1))


def top_k_categorical_accuracy(y_true: Any, y_pred: Any, k: int = 5) -> Tensor:
    """1 where the place of the largest of y_true is among the k largest of y_pred, else 0."""
    labels = _places(y_true, core.as_tensor(y_pred), "top_k_categorical_accuracy")
    return sparse_top_k_categorical_accuracy(labels, y_pred, k)


def sparse_top_k_categorical_accuracy(y_true: Any, y_pred: Any, k: int = 5) -> Tensor:
    """1 where y_true is among the places of the k largest of y_pred (all that equal the k-th), else 0.

    >>> sparse_top_k_categorical_accuracy([2, 0], [[0.1, 0.7, 0.2], [0.1, 0.7, 0.2]], k=2).tolist()
    [1.0, 0.0]
    """
    pred = floats(y_pred)
    labels = _labels(y_true, pred, "sparse_top_k_categorical_accuracy")
    mine = iota(pred.shape, pred.ndim - 1) == reshaped(labels, (*labels.shape, 1))
    own = sum(pred * cast(mine, pred.dtype), axis=-1, keepdims=True)
    ahead = sum(cast(pred > own, "int64"), axis=-1)
    known = (labels >= 0) & (labels < pred.shape[-1])
    return _ones((ahead < k) & known & core.as_tensor(own == own).reshape(ahead.shape))


def _places(y_true: Any, pred: Tensor, name: str) -> Tensor:
    """The classes of one-hot targets. Numbers of classes, given by mistake, would be compared with one another."""
    true = core.strong(core.as_tensor(y_true))
    if true.shape != pred.shape:
        raise ValueError(f"{name}: targets of shape {true.shape} do not fit predictions of shape {pred.shape}, whose "
                         f"shape they need; for numbers of classes take sparse_{name}")
    return argmax(true, axis=-1)


def _labels(y_true: Any, pred: Tensor, name: str) -> Tensor:
    labels = core.strong(core.as_tensor(y_true))
    if labels.ndim == pred.ndim and labels.shape[-1] == 1:
        labels = reshaped(labels, labels.shape[:-1])
    if labels.shape != pred.shape[:-1]:
        raise ValueError(f"{name}: targets of shape {labels.shape} do not fit predictions of shape {pred.shape}")
    return cast(labels, "int64")


def _ones(truth: Tensor) -> Tensor:
    return cast(truth, dtypes.default_float())


class Accuracy(MeanMetricWrapper):
    """How often predictions equal targets.

    >>> Accuracy()([1, 2, 3, 4], [0, 2, 3, 4]).item()
    0.75
    """

    def __init__(self, name: str | None = "accuracy"):
        super().__init__(_equal, name)


def _equal(y_true: Tensor, y_pred: Tensor) -> Tensor:
    true, pred = alike(y_true, y_pred)
    return _ones(true == pred)


class BinaryAccuracy(MeanMetricWrapper):
    """How often predictions, 1 above the threshold and 0 else, equal targets of 0 and 1."""

    def __init__(self, name: str | None = "binary_accuracy", threshold: float = 0.5):
        number(self, "threshold", threshold, "(0, 1)")
        super().__init__(binary_accuracy, name, threshold=threshold)


class CategoricalAccuracy(MeanMetricWrapper):
    """How often the most probable class is that of one-hot targets."""

    def __init__(self, name: str | None = "categorical_accuracy"):
        super().__init__(categorical_accuracy, name)


class SparseCategoricalAccuracy(MeanMetricWrapper):
    """How often the most probable class is the target, an integer.

    >>> SparseCategoricalAccuracy()([[2], [1]], [[0.1, 0.6, 0.3], [0.05, 0.95, 0.0]], sample_weight=[0.7, 0.3]).item()
    0.30000001192092896
    """

    def __init__(self, name: str | None = "sparse_categorical_accuracy"):
        super().__init__(sparse_categorical_accuracy, name)


class TopKCategoricalAccuracy(MeanMetricWrapper):
    """How often the class of one-hot targets is among the k most probable ones."""

    def __init__(self, k: int = 5, name: str | None = "top_k_categorical_accuracy"):
        super().__init__(top_k_categorical_accuracy, name, k=whole(self, "k", k))


class SparseTopKCategoricalAccuracy(MeanMetricWrapper):
    """How often the target, an integer, is among the k most probable classes."""

    def __init__(self, k: int = 5, name: str | None = "sparse_top_k_categorical_accuracy"):
        super().__init__(sparse_top_k_categorical_accuracy, name, k=whole(self, "k", k))


# -- by name -----------------------------------------------------------------------------------------------------------
_CLASSES: tuple[type[Metric], ...] = (
    Accuracy, AUC, BinaryAccuracy, BinaryCrossentropy, CategoricalAccuracy, CategoricalCrossentropy, CosineSimilarity,
    F1Score, FalseNegatives, FalsePositives, Mean, MeanAbsoluteError, MeanAbsolutePercentageError, MeanSquaredError,
    MeanSquaredLogarithmicError, Precision, Recall, RootMeanSquaredError, SparseCategoricalAccuracy,
    SparseCategoricalCrossentropy, SparseTopKCategoricalAccuracy, Sum, TopKCategoricalAccuracy, TrueNegatives,
    TruePositives,
)  # fmt: skip
_BY_NAME: dict[str, type[Metric]] = {c.__name__.lower(): c for c in _CLASSES}
_BY_NAME |= {"acc": Accuracy, "mse": MeanSquaredError, "mae": MeanAbsoluteError, "rmse": RootMeanSquaredError}
_BY_NAME |= {"mape": MeanAbsolutePercentageError, "msle": MeanSquaredLogarithmicError}


def get(metric: Any, loss: losses.Loss | None = None) -> Metric:
    """A metric from its name ("auc", "sparse_categorical_accuracy", a class name); a function of targets and
    predictions as one, with the mean of what it gives; a metric itself. "accuracy" is the kind that belongs to `loss`:
    of classes given by integers, of one-hot classes, or of one decision.

    >>> get("mae"), get("accuracy", losses.SparseCategoricalCrossentropy())
    (<tj.metrics.MeanAbsoluteError mean_absolute_error>, <tj.metrics.SparseCategoricalAccuracy accuracy>)
    """
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, str):
        name = metric.lower().replace("_", "")
        if name in ("accuracy", "acc") and loss is not None:
            return _accuracy_for(loss, metric)
        if name not in _BY_NAME:
            raise ValueError(f"no metric is called {metric!r}; known: {', '.join(sorted(_BY_NAME))}")
        return _BY_NAME[name]()
    if isinstance(metric, type) and issubclass(metric, Metric):
        return metric()
    if callable(metric):
        return MeanMetricWrapper(metric)
    raise TypeError(f"a metric, its name or a function, not {type(metric).__name__}")


def _accuracy_for(loss: losses.Loss, name: str) -> Metric:
    if isinstance(loss, losses.SparseCategoricalCrossentropy):
        return SparseCategoricalAccuracy(name=name)
    if isinstance(loss, (losses.CategoricalCrossentropy, losses.CategoricalHinge)):
        return CategoricalAccuracy(name=name)
    if isinstance(loss, losses.BinaryCrossentropy):
        if loss.options["from_logits"]:
            return MeanMetricWrapper(binary_accuracy, name, threshold=0.0)
        return BinaryAccuracy(name=name)
    return Accuracy(name=name)
