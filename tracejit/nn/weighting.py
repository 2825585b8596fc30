"""Shapes of targets, predictions and weights made to fit each other, as Keras 3 does it; and weighted reductions.

In: what users pass to losses and metrics. Out: tensors of equal rank; one number.

Read next: `losses.py`.
"""

from __future__ import annotations

from typing import Any

from tracejit import dtypes
from tracejit.ops import core
from tracejit.ops.elementwise import cast, where
from tracejit.ops.movement import reshaped
from tracejit.ops.reduction import sum
from tracejit.tensor import Tensor

REDUCTIONS = ("sum_over_batch_size", "sum", "mean", "mean_with_sample_weight", "none", None)


def floats(x: Any, like: Tensor | None = None) -> Tensor:
    """As a float tensor: of the dtype of `like`, or its own, or the default one."""
    t = core.strong(core.as_tensor(x))
    if like is not None:
        return core.cast(t, like.dtype)
    return t if t.dtype.kind == "f" else core.cast(t, dtypes.default_float())


def alike(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Where one has a last dim of size 1 more than the other, both with it if the other has one dim, else without."""
    if a.ndim < b.ndim:
        b, a = alike(b, a)
        return a, b
    if a.ndim == b.ndim + 1 and a.shape[-1] == 1:
        if b.ndim == 1:
            return a, reshaped(b, (*b.shape, 1))
        return reshaped(a, a.shape[:-1]), b
    return a, b


def targets_and_predictions(y_true: Any, y_pred: Any, name: str) -> tuple[Tensor, Tensor]:
    """Both as floats of the predictions' dtype and of equal shapes (or shapes that broadcast)."""
    pred = floats(y_pred)
    true, pred = alike(floats(y_true, pred), pred)
    core.broadcast_shape(name, [true.shape, pred.shape])
    return true, pred


def of_equal_shapes(y_true: Any, y_pred: Any, name: str) -> tuple[Tensor, Tensor]:
    """Both as floats of one shape. Numbers of classes in place of one-hot targets would broadcast along the classes."""
    pred = floats(y_pred)
    true, pred = alike(floats(y_true, pred), pred)
    if true.shape != pred.shape:
        hint = "; for numbers of classes take sparse_categorical_crossentropy" if name.startswith("categorical") else ""
        raise ValueError(f"{name}: targets of shape {core.as_tensor(y_true).shape} do not fit predictions of shape "
                         f"{core.as_tensor(y_pred).shape}, whose shape they need{hint}")
    return true, pred


def aligned(values: Tensor, weight: Any, what: str = "sample_weight") -> Tensor:
    """A weight that broadcasts to `values`: one for each of their first dims is one for all that they hold."""
    w = core.as_tensor(weight)
    w = core.cast(w, values.dtype)
    if w.ndim == values.ndim + 1 and w.shape[-1] == 1:
        w = reshaped(w, w.shape[:-1])
    if w.ndim < values.ndim and w.shape == values.shape[: w.ndim]:
        w = reshaped(w, w.shape + (1,) * (values.ndim - w.ndim))
    try:
        fits = core.broadcast_shape(what, [values.shape, w.shape]) == values.shape
    except ValueError:
        fits = False
    if not fits:
        hint = "; give targets and predictions of one dim a last one of size 1" if not values.shape else ""
        raise ValueError(f"{what} of shape {core.as_tensor(weight).shape} does not fit values of shape "
                         f"{values.shape}{hint}")
    return w


def weighted(values: Tensor, weight: Any, reduction: str | None, valid: Tensor | None = None) -> Tensor:
    """`values` times their weights, reduced: "sum"; "sum_over_batch_size" or "mean": over the number of values, those
    that are not `valid` left out; "mean_with_sample_weight": over the sum of the weights; None: as they are."""
    w = None if weight is None else aligned(values, weight)
    products = values if w is None else values * w
    if reduction in ("none", None) or values.shape == ():
        return products
    total = sum(products)
    if reduction == "sum":
        return total
    if reduction == "mean_with_sample_weight" and w is not None:
        count: Any = sum(core.broadcast_to(w, values.shape))
    elif valid is not None:
        count = sum(cast(valid, values.dtype))
    else:
        return total / core.full(values.size, (), values.dtype) if values.size else total
    return quotient(total, count)


def quotient(total: Tensor, count: Tensor) -> Tensor:
    """total / count, and 0 where nothing was counted."""
    none = count == 0
    return where(none, 0, total / where(none, 1, count))
