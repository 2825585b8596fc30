"""Metrics that count decisions right and wrong: precision, recall, F scores, areas under curves, confusion matrices.

In: targets and predictions, batch by batch. Out: numbers for all of them so far. Names, defaults and formulas are those
of Keras 3 (`keras.metrics`), `ConfusionMatrix` is scikit-learn's.

Read next: `metrics.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.nn.metric import Metric
from tracejit.nn.options import number, one_of, whole
from tracejit.nn.weighting import aligned, floats, quotient, targets_and_predictions
from tracejit.ops import core
from tracejit.ops.elementwise import abs, cast, maximum, minimum, where
from tracejit.ops.movement import reshaped
from tracejit.ops.reduction import argmax, max, sum
from tracejit.ops.sorting import sort
from tracejit.ops.special import log, sigmoid
from tracejit.ops.statistics import mean
from tracejit.tensor import Tensor

EPSILON = 1e-7


def _counts(
    y_true: Any, y_pred: Any, sample_weight: Any, thresholds: np.ndarray, name: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For each threshold the weights of true and false positives; and those of all positives and negatives."""
    true, pred = targets_and_predictions(y_true, y_pred, name)
    true, pred = (core.broadcast_to(t, core.broadcast_shape(name, [true.shape, pred.shape])) for t in (true, pred))
    weight = core.full(1, (), dtypes.float64)
    if sample_weight is not None:
        weight = core.broadcast_to(aligned(cast(pred, dtypes.float64), sample_weight), pred.shape)
        weight = reshaped(weight, (pred.size, 1))
    positive = reshaped(cast(true, "bool"), (pred.size, 1))
    chosen = reshaped(pred, (pred.size, 1)) > core.as_tensor(thresholds.astype(pred.dtype))
    counts = core.broadcast_to(weight, (pred.size, 1))
    return (
        sum(where(chosen & positive, weight, 0.0), axis=0),
        sum(where(chosen & ~positive, weight, 0.0), axis=0),
        sum(where(positive, counts, 0.0)),
        sum(where(positive, 0.0, counts)),
    )


def _thresholds(name: str, given: float | Sequence[float] | None, default: float) -> np.ndarray:
    if given is None:
        return np.array([default])
    single = np.ndim(given) == 0
    values = [given] if single else given  # type: ignore[list-item]
    return np.array([number(name, "thresholds", t, "[0, 1]") for t in values], "float64")  # type: ignore[union-attr]


def _top(pred: Tensor, k: int) -> Tensor:
    """Predictions below the k largest of the last axis as -inf."""
    least = sort(pred, axis=-1)[..., pred.shape[-1] - k, None]
    return where(pred >= least, pred, -np.inf)


class _Decisions(Metric):
    """Counts of decisions at thresholds; a subclass says what it makes of them."""

    def __init__(
        self,
        thresholds: float | Sequence[float] | None = None,
        top_k: int | None = None,
        class_id: int | None = None,
        name: str | None = None,
    ):
        super().__init__(name)
        self.thresholds = _thresholds(type(self).__name__, thresholds, 0.5 if top_k is None else -np.inf)
        self.top_k = None if top_k is None else whole(self, "top_k", top_k)
        self.class_id = None if class_id is None else whole(self, "class_id", class_id, 0)
        self._single = thresholds is None or np.ndim(thresholds) == 0
        shape = self.thresholds.shape
        self.true_positives = self.add_variable(shape, name="true_positives")
        self.false_positives = self.add_variable(shape, name="false_positives")
        self.positives = self.add_variable(name="positives")
        self.negatives = self.add_variable(name="negatives")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # type: ignore[override]
        true, pred = core.as_tensor(y_true), floats(y_pred)
        if self.top_k is not None:
            pred = _top(pred, self.top_k)
        if self.class_id is not None:
            true, pred = true[..., self.class_id], pred[..., self.class_id]
        found = _counts(true, pred, sample_weight, self.thresholds, self.name)
        kept = self.true_positives, self.false_positives, self.positives, self.negatives
        for variable, count in zip(kept, found):
            variable.assign_add(count)

    def _given(self, found: Tensor) -> Tensor:
        return cast(found[0] if self._single else found, dtypes.default_float())


class TruePositives(_Decisions):
    """How many positives were found."""

    def result(self) -> Tensor:
        return self._given(self.true_positives.read_value())


class FalsePositives(_Decisions):
    """How many negatives were taken for positives."""

    def result(self) -> Tensor:
        return self._given(self.false_positives.read_value())


class TrueNegatives(_Decisions):
    """How many negatives were left alone."""

    def result(self) -> Tensor:
        return self._given(self.negatives - self.false_positives)


class FalseNegatives(_Decisions):
    """How many positives were missed."""

    def result(self) -> Tensor:
        return self._given(self.positives - self.true_positives)


class Precision(_Decisions):
    """The part of what was taken for positive (y_pred above the threshold, 0.5) that is; 0 if nothing was. top_k: only
    the k largest predictions of each sample count as positive. class_id: look at this class only.

    >>> Precision()([0, 1, 1, 1], [1.0, 0.0, 1.0, 1.0]).item()
    0.6666666865348816
    """

    def result(self) -> Tensor:
        return self._given(quotient(self.true_positives.read_value(), self.true_positives + self.false_positives))


class Recall(_Decisions):
    """The part of the positives that was taken for positive (y_pred above the threshold, 0.5); 0 if there are none.

    >>> Recall()([0, 1, 1, 1], [1.0, 0.0, 1.0, 1.0]).item()
    0.6666666865348816
    """

    def result(self) -> Tensor:
        true = self.true_positives.read_value()
        return self._given(quotient(true, core.broadcast_to(self.positives.read_value(), true.shape)))


class AUC(Metric):
    """The area under the curve that precision or rates draw as the threshold moves.

    curve: "ROC", true positive over false positive rate, or "PR", precision over recall. summation_method:
    "interpolation" (trapezoids; for PR as Davis and Goadrich 2006), "minoring" or "majoring" (the lower or higher end
    of each step). thresholds: instead of num_thresholds evenly spaced ones. from_logits: predictions go through a
    sigmoid.

    >>> AUC(num_thresholds=3)([0, 0, 1, 1], [0.0, 0.5, 0.3, 0.9]).item()
    0.75
    """

    def __init__(
        self,
        num_thresholds: int = 200,
        curve: str = "ROC",
        summation_method: str = "interpolation",
        name: str | None = None,
        thresholds: Sequence[float] | None = None,
        from_logits: bool = False,
    ):
        super().__init__(name or "auc")
        if curve not in ("ROC", "PR") or summation_method not in ("interpolation", "minoring", "majoring"):
            raise ValueError(f"AUC: curve is 'ROC' or 'PR', summation_method 'interpolation', 'minoring' or "
                             f"'majoring', not {curve!r} and {summation_method!r}")
        if thresholds is None:
            whole(self, "num_thresholds", num_thresholds, 2)
            inner = np.arange(1, num_thresholds - 1) / (num_thresholds - 1)
        else:
            inner = np.sort(_thresholds("AUC", thresholds, 0.5))
        self.thresholds = np.array([-EPSILON, *inner, 1 + EPSILON])
        self.curve, self.summation_method, self.from_logits = curve, summation_method, from_logits
        self.true_positives = self.add_variable(self.thresholds.shape, name="true_positives")
        self.false_positives = self.add_variable(self.thresholds.shape, name="false_positives")
        self.positives = self.add_variable(name="positives")
        self.negatives = self.add_variable(name="negatives")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # type: ignore[override]
        pred = floats(y_pred)
        pred = sigmoid(pred) if self.from_logits else pred
        found = _counts(y_true, pred, sample_weight, self.thresholds, "auc")
        kept = self.true_positives, self.false_positives, self.positives, self.negatives
        for variable, count in zip(kept, found):
            variable.assign_add(count)

    def result(self) -> Tensor:
        tp, fp = self.true_positives.read_value(), self.false_positives.read_value()
        positives = core.broadcast_to(self.positives.read_value(), tp.shape)
        if self.curve == "PR" and self.summation_method == "interpolation":
            return cast(_area_of_precision(tp, fp, positives), dtypes.default_float())
        recall = quotient(tp, positives)
        if self.curve == "ROC":
            x, y = quotient(fp, core.broadcast_to(self.negatives.read_value(), fp.shape)), recall
        else:
            x, y = recall, quotient(tp, tp + fp)
        left, right = y[:-1], y[1:]
        if self.summation_method == "interpolation":
            heights = (left + right) / 2
        else:
            heights = minimum(left, right) if self.summation_method == "minoring" else maximum(left, right)
        return cast(sum((x[:-1] - x[1:]) * heights), dtypes.default_float())


def _area_of_precision(tp: Tensor, fp: Tensor, positives: Tensor) -> Tensor:
    """The area under precision over recall, where precision is interpolated as counts move on a line."""
    chosen = tp + fp
    more_tp, more = tp[:-1] - tp[1:], chosen[:-1] - chosen[1:]
    slope = quotient(more_tp, maximum(more, 0.0))
    intercept = tp[1:] - slope * chosen[1:]
    both = (chosen[:-1] > 0) & (chosen[1:] > 0)
    ratio = where(both, quotient(chosen[:-1], chosen[1:]), 1.0)
    return sum(quotient(slope * (more_tp + intercept * log(where(ratio > 0, ratio, 1.0))), positives[1:]))


class FBetaScore(Metric):
    """The weighted harmonic mean of precision and recall for targets of shape (samples, classes).

    average: None, one score for each class; "micro", of all decisions together; "macro", the mean of the classes;
    "weighted", by how many samples they have. threshold: None takes the largest prediction of each sample.

    >>> FBetaScore(beta=2.0, threshold=0.5)([[1, 1, 1], [1, 0, 0], [1, 1, 0]],
    ...                                     [[0.2, 0.6, 0.7], [0.2, 0.6, 0.6], [0.6, 0.8, 0.0]]).tolist()
    [0.38461539149284363, 0.9090909361839294, 0.8333333134651184]
    """

    def __init__(self, average: str | None = None, beta: float = 1.0, threshold: float | None = None,
                 name: str | None = None):
        super().__init__(name)
        self.average = one_of(self, "average", average, (None, "micro", "macro", "weighted"))
        self.beta = number(self, "beta", beta, "(0, inf)")
        self.threshold = None if threshold is None else number(self, "threshold", threshold, "[0, 1]")
        self._kept: dict[str, Any] = {}

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # type: ignore[override]
        true, pred = targets_and_predictions(y_true, y_pred, self.name)
        if pred.ndim != 2 or true.shape != pred.shape:
            raise ValueError(f"{self.name} needs targets and predictions of one shape (samples, classes), not "
                             f"{true.shape} and {pred.shape}")
        if not self._kept:
            shape = () if self.average == "micro" else (pred.shape[1],)
            names = ("true_positives", "false_positives", "false_negatives", "positives")
            self._kept = {n: self.add_variable(shape, name=n) for n in names}
        if self.threshold is None:
            chosen = (pred >= max(pred, axis=-1, keepdims=True)) & (abs(pred) > 1e-9)
        else:
            chosen = pred > self.threshold
        positive = cast(true, "bool")
        weight = cast(core.full(1, (), dtypes.float64), dtypes.float64)
        if sample_weight is not None:
            weight = aligned(cast(pred, dtypes.float64), sample_weight)
        axis = None if self.average == "micro" else 0
        found = {
            "true_positives": chosen & positive,
            "false_positives": chosen & ~positive,
            "false_negatives": ~chosen & positive,
            "positives": positive,
        }
        for name, which in found.items():
            self._kept[name].assign_add(sum(where(which, weight, 0.0), axis=axis))

    def result(self) -> Tensor:
        if not self._kept:
            return core.full(0, (), dtypes.default_float())
        tp, fp, fn, positives = (v.read_value() for v in self._kept.values())
        precision, recall = quotient(tp, tp + fp), quotient(tp, tp + fn)
        score = (1 + self.beta**2) * quotient(precision * recall, self.beta**2 * precision + recall)
        if self.average == "macro":
            score = mean(score)
        elif self.average == "weighted":
            score = quotient(sum(score * positives), sum(positives))
        return cast(score, dtypes.default_float())


class F1Score(FBetaScore):
    """The harmonic mean of precision and recall, see `FBetaScore`.

    >>> F1Score(average="micro")([[0, 1], [1, 0]], [[0.1, 0.9], [0.2, 0.8]]).item()
    0.5
    """

    def __init__(self, average: str | None = None, threshold: float | None = None, name: str | None = None):
        super().__init__(average, 1.0, threshold, name)


class ConfusionMatrix(Metric):
    """How often each class (row) was taken for each class (column). Predictions are classes, or one number for each
    class, of which the largest counts. IndexError for what is no class.

    >>> ConfusionMatrix(2)([0, 1, 1], [1, 1, 0]).tolist()
    [[0.0, 1.0], [1.0, 1.0]]
    """

    def __init__(self, num_classes: int, name: str | None = None):
        super().__init__(name)
        self.num_classes = whole(self, "num_classes", num_classes)
        self.matrix = self.add_variable((num_classes, num_classes), name="matrix")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # type: ignore[override]
        true, pred = core.strong(core.as_tensor(y_true)), core.strong(core.as_tensor(y_pred))
        if pred.ndim == true.ndim + 1:
            pred = argmax(pred, axis=-1)
        true, pred = (cast(reshaped(t, (t.size,)), "int64") for t in (true, pred))
        n = self.num_classes
        true, pred = (where(t >= 0, t, n) for t in (true, pred))  # negative ones are no classes counted from the end
        weight: Any = 1.0 if sample_weight is None else aligned(cast(true, dtypes.float64), core.as_tensor(
            sample_weight).reshape(-1))
        self.matrix.assign(self.matrix.read_value().at[true, pred].add(weight))

    def result(self) -> Tensor:
        return cast(self.matrix.read_value(), dtypes.default_float())
