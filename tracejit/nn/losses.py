"""Losses: how far predictions are from targets. The namespace `tj.losses`.

In: targets, predictions, weights of samples. Out: one number, or one for each sample. Names, defaults and formulas are
those of Keras 3 (`keras.losses`); logits are never turned into probabilities first. Each loss is a function (one number
for each sample: the last axis is used up) and a class, which also weights and reduces.

Read next: `metrics.py`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tracejit.nn.ctc import ctc_loss
from tracejit.nn.module import traceable
from tracejit.nn.options import number, unknown, whole
from tracejit.nn.weighting import REDUCTIONS, aligned, floats, of_equal_shapes, targets_and_predictions, weighted
from tracejit.ops import core
from tracejit.ops.core import normalize_axis
from tracejit.ops.elementwise import abs, cast, clip, maximum, mul_zero, sqrt, square, where
from tracejit.ops.movement import iota, reshaped
from tracejit.ops.reduction import all, max, sum
from tracejit.ops.special import log, log1p, softplus
from tracejit.ops.statistics import log_softmax, logsumexp, mean
from tracejit.tensor import Tensor

__all__ = [
    "CTC", "BinaryCrossentropy", "CategoricalCrossentropy", "CategoricalHinge", "CosineSimilarity", "Hinge", "Huber",
    "KLDivergence", "LogCosh", "Loss", "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredError",
    "MeanSquaredLogarithmicError", "Poisson", "SparseCategoricalCrossentropy", "SquaredHinge", "binary_crossentropy",
    "categorical_crossentropy", "categorical_hinge", "cosine_similarity", "ctc", "ctc_loss", "get", "hinge", "huber",
    "kl_divergence", "log_cosh", "mean_absolute_error", "mean_absolute_percentage_error", "mean_squared_error",
    "mean_squared_logarithmic_error", "poisson", "sparse_categorical_crossentropy", "squared_hinge",
]  # fmt: skip

EPSILON = 1e-7  # what logarithms and quotients stay away from zero by


# -- functions: one number for each sample -----------------------------------------------------------------------------
def mean_squared_error(y_true: Any, y_pred: Any) -> Tensor:
    """mean((y_true - y_pred)**2) over the last axis.

    >>> mean_squared_error([[0.0, 1.0], [0.0, 0.0]], [[1.0, 1.0], [1.0, 0.0]]).tolist()
    [0.5, 0.5]
    """
    true, pred = targets_and_predictions(y_true, y_pred, "mean_squared_error")
    return mean(square(true - pred), axis=-1)


def mean_absolute_error(y_true: Any, y_pred: Any) -> Tensor:
    """mean(|y_true - y_pred|) over the last axis."""
    true, pred = targets_and_predictions(y_true, y_pred, "mean_absolute_error")
    return mean(abs(true - pred), axis=-1)


def mean_absolute_percentage_error(y_true: Any, y_pred: Any) -> Tensor:
    """100 * mean(|y_true - y_pred| / |y_true|) over the last axis; targets under 1e-7 count as that."""
    true, pred = targets_and_predictions(y_true, y_pred, "mean_absolute_percentage_error")
    return 100 * mean(abs(true - pred) / maximum(abs(true), EPSILON), axis=-1)


def mean_squared_logarithmic_error(y_true: Any, y_pred: Any) -> Tensor:
    """mean((log(1 + y_true) - log(1 + y_pred))**2) over the last axis; values under 1e-7 count as that."""
    true, pred = targets_and_predictions(y_true, y_pred, "mean_squared_logarithmic_error")
    return mean(square(log1p(maximum(pred, EPSILON)) - log1p(maximum(true, EPSILON))), axis=-1)


def huber(y_true: Any, y_pred: Any, delta: float = 1.0) -> Tensor:
    """The mean of e**2 / 2 for errors e up to `delta`, and delta * (|e| - delta / 2) beyond (Huber 1964)."""
    number("huber", "delta", delta, "(0, inf)")
    true, pred = targets_and_predictions(y_true, y_pred, "huber")
    error = abs(true - pred)
    return mean(where(error <= delta, 0.5 * square(error), delta * error - 0.5 * delta * delta), axis=-1)


def log_cosh(y_true: Any, y_pred: Any) -> Tensor:
    """mean(log(cosh(y_pred - y_true))) over the last axis, without overflow.

    >>> log_cosh([0.0], [1000.0]).item()
    999.3068237304688
    """
    true, pred = targets_and_predictions(y_true, y_pred, "log_cosh")
    error = pred - true
    return mean(error + softplus(-2 * error) - math.log(2), axis=-1)


def _signs(y_true: Tensor) -> Tensor:
    """Targets of 0 and 1 as -1 and 1; others as they are."""
    return where(all((y_true == 0) | (y_true == 1)), 2 * y_true - 1, y_true)


def hinge(y_true: Any, y_pred: Any) -> Tensor:
    """mean(max(1 - y_true * y_pred, 0)) over the last axis; targets are -1 and 1, or 0 and 1."""
    true, pred = targets_and_predictions(y_true, y_pred, "hinge")
    return mean(maximum(1 - _signs(true) * pred, 0), axis=-1)


def squared_hinge(y_true: Any, y_pred: Any) -> Tensor:
    """mean(max(1 - y_true * y_pred, 0)**2) over the last axis; targets are -1 and 1, or 0 and 1."""
    true, pred = targets_and_predictions(y_true, y_pred, "squared_hinge")
    return mean(square(maximum(1 - _signs(true) * pred, 0)), axis=-1)


def categorical_hinge(y_true: Any, y_pred: Any) -> Tensor:
    """max(1 + max((1 - y_true) * y_pred) - sum(y_true * y_pred), 0) over the last axis; targets are one-hot."""
    true, pred = targets_and_predictions(y_true, y_pred, "categorical_hinge")
    return maximum(max((1 - true) * pred, axis=-1) - sum(true * pred, axis=-1) + 1, 0)


def kl_divergence(y_true: Any, y_pred: Any) -> Tensor:
    """sum(y_true * log(y_true / y_pred)) over the last axis; probabilities are clipped to [1e-7, 1]."""
    true, pred = targets_and_predictions(y_true, y_pred, "kl_divergence")
    true, pred = clip(true, EPSILON, 1), clip(pred, EPSILON, 1)
    return sum(true * log(true / pred), axis=-1)


def poisson(y_true: Any, y_pred: Any) -> Tensor:
    """mean(y_pred - y_true * log(y_pred + 1e-7)) over the last axis."""
    true, pred = targets_and_predictions(y_true, y_pred, "poisson")
    return mean(pred - true * log(pred + EPSILON), axis=-1)


def cosine_similarity(y_true: Any, y_pred: Any, axis: int = -1) -> Tensor:
    """Minus the cosine of the angle between targets and predictions: -1 for equal directions."""
    true, pred = targets_and_predictions(y_true, y_pred, "cosine_similarity")
    axis = normalize_axis("cosine_similarity", axis, pred.ndim)
    return -sum(_unit(true, axis) * _unit(pred, axis), axis=axis)


def _unit(x: Tensor, axis: int) -> Tensor:
    return x / sqrt(maximum(sum(square(x), axis=axis, keepdims=True), EPSILON * EPSILON))


def binary_crossentropy(
    y_true: Any, y_pred: Any, from_logits: bool = False, label_smoothing: float = 0.0, axis: int = -1
) -> Tensor:
    """The mean of -y_true * log(p) - (1 - y_true) * log(1 - p) over `axis`. p is y_pred, clipped to [1e-7, 1 - 1e-7],
    or with `from_logits` its sigmoid, without rounding to 0 or 1 on the way. label_smoothing: targets move that part
    of the way to 1/2.

    >>> binary_crossentropy([1.0], [-1000.0], from_logits=True).item()
    1000.0
    """
    number("binary_crossentropy", "label_smoothing", label_smoothing, "[0, 1]")
    true, pred = of_equal_shapes(y_true, y_pred, "binary_crossentropy")
    if label_smoothing:
        true = true * (1 - label_smoothing) + 0.5 * label_smoothing
    if from_logits:
        positive = pred >= 0
        losses = where(positive, pred, 0) - pred * true + softplus(where(positive, -pred, pred))
    else:
        p = clip(pred, EPSILON, 1 - EPSILON)
        losses = -(true * log(p) + (1 - true) * log(1 - p))
    return mean(losses, axis=axis)


def categorical_crossentropy(
    y_true: Any, y_pred: Any, from_logits: bool = False, label_smoothing: float = 0.0, axis: int = -1
) -> Tensor:
    """-sum(y_true * log(p)) over the classes along `axis`. p is y_pred over its sum, clipped to [1e-7, 1 - 1e-7], or
    with `from_logits` its softmax. label_smoothing: targets move that part of the way to a uniform distribution.

    A class without a target counts 0 even where its logit is -inf.

    >>> categorical_crossentropy([[0.0, 1.0]], [[0.0, 0.0]], from_logits=True).tolist()
    [0.6931471824645996]
    """
    number("categorical_crossentropy", "label_smoothing", label_smoothing, "[0, 1]")
    true, pred = of_equal_shapes(y_true, y_pred, "categorical_crossentropy")
    classes = pred.shape[normalize_axis("categorical_crossentropy", axis, pred.ndim)]
    if label_smoothing:
        true = true * (1 - label_smoothing) + label_smoothing / classes
    return -sum(mul_zero(true, _log_probabilities(pred, from_logits, axis)), axis=axis)


def _log_probabilities(pred: Tensor, from_logits: bool, axis: int) -> Tensor:
    if from_logits:
        return log_softmax(pred, axis)
    return log(clip(pred / sum(pred, axis=axis, keepdims=True), EPSILON, 1 - EPSILON))


def sparse_categorical_crossentropy(
    y_true: Any, y_pred: Any, from_logits: bool = False, ignore_class: int | None = None, axis: int = -1
) -> Tensor:
    """-log(p[y_true]) for integer targets; p is y_pred over its sum, clipped to [1e-7, 1 - 1e-7], or with
    `from_logits` its softmax. Targets of `ignore_class` count 0. A target that is no class gives nan.

    >>> sparse_categorical_crossentropy([1, 0], [[0.0, 0.0], [0.0, -1000.0]], from_logits=True).tolist()
    [0.6931471824645996, 0.0]
    """
    return _sparse(y_true, y_pred, from_logits, ignore_class, axis)[0]


def _sparse(
    y_true: Any, y_pred: Any, from_logits: bool, ignore_class: int | None, axis: int
) -> tuple[Tensor, Tensor | None]:
    """The losses, and which targets are not ignored (None: all)."""
    pred, labels = floats(y_pred), core.strong(core.as_tensor(y_true))
    axis = normalize_axis("sparse_categorical_crossentropy", axis, pred.ndim)
    if labels.ndim == pred.ndim and labels.shape[-1] == 1:
        labels = reshaped(labels, labels.shape[:-1])
    shape = pred.shape[:axis] + pred.shape[axis + 1 :]
    if labels.shape != shape:
        raise ValueError(f"sparse_categorical_crossentropy: targets of shape {labels.shape} do not fit predictions of "
                         f"shape {pred.shape}, which need targets of shape {shape}")
    labels = cast(labels, "int64")
    valid = None if ignore_class is None else labels != ignore_class
    if valid is not None:
        labels = where(valid, labels, 0)
    mine = iota(pred.shape, axis) == reshaped(labels, (*shape[:axis], 1, *shape[axis:]))
    if from_logits:
        losses = logsumexp(pred, axis=axis) - sum(where(mine, pred, 0), axis=axis)
    else:
        losses = -sum(where(mine, _log_probabilities(pred, False, axis), 0), axis=axis)
    losses = where((labels >= 0) & (labels < pred.shape[axis]), losses, math.nan)
    return (losses if valid is None else where(valid, losses, 0)), valid


def ctc(y_true: Any, y_pred: Any) -> Tensor:
    """Minus the log probability of label sequences (batch, length), padded with 0, under logits (batch, steps, classes)
    whose class 0 is the blank. See `ctc_loss` for other conventions.

    >>> ctc([[1, 2, 0]], [[[0.0, 9.0, 0.0], [0.0, 0.0, 9.0]]]).numpy().round(4)
    array([0.0005], dtype=float32)
    """
    return ctc_loss(y_true, y_pred)


# -- classes -----------------------------------------------------------------------------------------------------------
class Loss:
    """Base class: a loss is called with targets, predictions and perhaps weights. A subclass defines
    `call(y_true, y_pred)`, which gives one number for each sample.

    reduction: "sum_over_batch_size" (or "mean"): the mean; "sum"; "mean_with_sample_weight": the sum over that of the
    weights; "none" or None: one number for each sample.

    >>> class Distance(Loss):
    ...     def call(self, y_true, y_pred):
    ...         return abs(y_true - y_pred)
    >>> Distance()([1.0, 2.0], [3.0, 2.0], sample_weight=[1.0, 0.5]).item()
    1.0
    """

    def __init__(self, name: str | None = None, reduction: str | None = "sum_over_batch_size"):
        if reduction not in REDUCTIONS:
            raise ValueError(f"{type(self).__name__}: reduction is one of {REDUCTIONS}, not {reduction!r}")
        self.name, self.reduction = name or type(self).__name__, reduction

    def call(self, y_true: Any, y_pred: Any) -> Tensor:
        """The loss of each sample."""
        raise NotImplementedError(f"{type(self).__name__} must define call(y_true, y_pred)")

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None, mask: Any = None) -> Tensor:
        """The reduced loss. sample_weight: a factor for each sample, or for each number that `call` gives. mask: where
        it is false, numbers are left out, also of the count that a mean divides by."""
        for what, given in (("y_true", y_true), ("y_pred", y_pred)):
            if given is None:
                raise TypeError(f"{self.name}: {what} is None")
        pred = floats(y_pred)
        true = core.strong(core.as_tensor(y_true))
        losses, valid = self._losses(true, pred)
        if mask is not None:
            real = core.broadcast_to(aligned(losses, mask, "mask"), losses.shape) != 0
            losses, valid = where(real, losses, 0), real if valid is None else real & valid
        return weighted(losses, sample_weight, self.reduction, valid)

    def _losses(self, y_true: Tensor, y_pred: Tensor) -> tuple[Tensor, Tensor | None]:
        found = traceable(self.call)(y_true, y_pred)
        if not isinstance(found, (Tensor, np.ndarray, int, float, np.number)):
            hint = "; is there a return in it?" if found is None else ""
            raise TypeError(f"{self.name}: a loss must give a number for each sample, but it gave {found!r}{hint}")
        return core.as_tensor(found), None

    def __repr__(self) -> str:
        return f"<tj.losses.{type(self).__name__} reduction={self.reduction!r}>"


class _Wrapped(Loss):
    """A loss whose `call` is one of the functions above, with options that do not change."""

    function: Callable[..., Tensor]

    def __init__(self, reduction: str | None = "sum_over_batch_size", name: str | None = None, **options: Any):
        super().__init__(name, reduction)
        if other := options.keys() - inspect.signature(type(self).function).parameters:
            raise unknown(self, other)
        self.options = options

    def call(self, y_true: Any, y_pred: Any) -> Tensor:
        return type(self).function(y_true, y_pred, **self.options)


class MeanSquaredError(_Wrapped):
    """See `mean_squared_error`.

    >>> MeanSquaredError()([[0.0, 1.0], [0.0, 0.0]], [[1.0, 1.0], [1.0, 0.0]], sample_weight=[0.7, 0.3]).item()
    0.25
    """

    function = staticmethod(mean_squared_error)


class MeanAbsoluteError(_Wrapped):
    """See `mean_absolute_error`."""

    function = staticmethod(mean_absolute_error)


class MeanAbsolutePercentageError(_Wrapped):
    """See `mean_absolute_percentage_error`."""

    function = staticmethod(mean_absolute_percentage_error)


class MeanSquaredLogarithmicError(_Wrapped):
    """See `mean_squared_logarithmic_error`."""

    function = staticmethod(mean_squared_logarithmic_error)


class LogCosh(_Wrapped):
    """See `log_cosh`."""

    function = staticmethod(log_cosh)


class Hinge(_Wrapped):
    """See `hinge`."""

    function = staticmethod(hinge)


class SquaredHinge(_Wrapped):
    """See `squared_hinge`."""

    function = staticmethod(squared_hinge)


class CategoricalHinge(_Wrapped):
    """See `categorical_hinge`."""

    function = staticmethod(categorical_hinge)


class KLDivergence(_Wrapped):
    """See `kl_divergence`."""

    function = staticmethod(kl_divergence)


class Poisson(_Wrapped):
    """See `poisson`."""

    function = staticmethod(poisson)


class Huber(_Wrapped):
    """See `huber`."""

    function = staticmethod(huber)

    def __init__(self, delta: float = 1.0, reduction: str | None = "sum_over_batch_size", name: str | None = None):
        super().__init__(reduction, name, delta=number(self, "delta", delta, "(0, inf)"))


class CosineSimilarity(_Wrapped):
    """See `cosine_similarity`."""

    function = staticmethod(cosine_similarity)

    def __init__(self, axis: int = -1, reduction: str | None = "sum_over_batch_size", name: str | None = None):
        super().__init__(reduction, name, axis=whole(self, "axis", axis, -64))


class BinaryCrossentropy(_Wrapped):
    """See `binary_crossentropy`."""

    function = staticmethod(binary_crossentropy)

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
    ):
        smoothing = number(self, "label_smoothing", label_smoothing, "[0, 1]")
        axis = whole(self, "axis", axis, -64)
        super().__init__(reduction, name, from_logits=from_logits, label_smoothing=smoothing, axis=axis)


class CategoricalCrossentropy(_Wrapped):
    """See `categorical_crossentropy`."""

    function = staticmethod(categorical_crossentropy)

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
    ):
        smoothing = number(self, "label_smoothing", label_smoothing, "[0, 1]")
        axis = whole(self, "axis", axis, -64)
        super().__init__(reduction, name, from_logits=from_logits, label_smoothing=smoothing, axis=axis)


class CTC(_Wrapped):
    """See `ctc`."""

    function = staticmethod(ctc)


class SparseCategoricalCrossentropy(_Wrapped):
    """See `sparse_categorical_crossentropy`. A mean is over the targets that are not ignored.

    >>> SparseCategoricalCrossentropy(from_logits=True)([1, 2], [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]).item()
    1.0986123085021973
    """

    function = staticmethod(sparse_categorical_crossentropy)

    def __init__(
        self,
        from_logits: bool = False,
        ignore_class: int | None = None,
        reduction: str | None = "sum_over_batch_size",
        axis: int = -1,
        name: str | None = None,
    ):
        axis = whole(self, "axis", axis, -64)
        if ignore_class is not None:
            number(self, "ignore_class", ignore_class)
        super().__init__(reduction, name, from_logits=from_logits, ignore_class=ignore_class, axis=axis)

    def _losses(self, y_true: Tensor, y_pred: Tensor) -> tuple[Tensor, Tensor | None]:
        return _sparse(y_true, y_pred, **self.options)


# -- by name -----------------------------------------------------------------------------------------------------------
mse = mean_squared_error
mae = mean_absolute_error
mape = mean_absolute_percentage_error
msle = mean_squared_logarithmic_error
logcosh = log_cosh

_CLASSES: tuple[type[_Wrapped], ...] = (
    MeanSquaredError, MeanAbsoluteError, MeanAbsolutePercentageError, MeanSquaredLogarithmicError, LogCosh, Hinge,
    SquaredHinge, CategoricalHinge, KLDivergence, Poisson, Huber, CosineSimilarity, BinaryCrossentropy,
    CategoricalCrossentropy, SparseCategoricalCrossentropy, CTC,
)  # fmt: skip
_BY_NAME: dict[str, type[_Wrapped]] = {c.__name__.lower(): c for c in _CLASSES}
_BY_NAME |= {c.function.__name__: c for c in _CLASSES}
_BY_NAME |= {
    "mse": MeanSquaredError,
    "mae": MeanAbsoluteError,
    "mape": MeanAbsolutePercentageError,
    "msle": MeanSquaredLogarithmicError,
    "logcosh": LogCosh,
}


class _Custom(Loss):
    def __init__(self, function: Callable[..., Any]):
        super().__init__(getattr(function, "__name__", None))
        self.function = function

    def call(self, y_true: Any, y_pred: Any) -> Tensor:
        return traceable(self.function)(y_true, y_pred)  # type: ignore[no-any-return]


def get(loss: Any) -> Loss:
    """A loss from its name ("mse", "sparse_categorical_crossentropy", a class name), with default options; a function
    of targets and predictions as one, with the mean of what it gives; a loss itself.

    >>> get("mse")
    <tj.losses.MeanSquaredError reduction='sum_over_batch_size'>
    """
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        found = _BY_NAME.get(loss) or _BY_NAME.get(loss.lower())
        if found is None:
            raise ValueError(f"no loss is called {loss!r}; known: {', '.join(sorted(_BY_NAME))}")
        return found()
    if isinstance(loss, type) and issubclass(loss, Loss):
        return loss()
    if callable(loss):
        return _Custom(loss)
    raise TypeError(f"a loss, its name or a function, not {type(loss).__name__}")
