"""Normalisations: shift and scale elements by the mean and variance of their batch, row or group.

In: a float tensor (integers become floats; float16 is worked on in float32), an optional scale and offset. Out: a
tensor of the same shape and dtype. Channels are the last axis unless `axis` says otherwise.

The variance is the mean of squared distances from the mean, never the difference of two large numbers. Compiled, each
of these is one kernel where a row fits the cache: the row is read once, and stays there for the later stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracejit import dtypes
from tracejit.ops import core
from tracejit.ops import elementwise as ew
from tracejit.ops.core import normalize_axes, normalize_axis, strong
from tracejit.ops.movement import reshaped
from tracejit.ops.statistics import mean
from tracejit.tensor import Tensor

Axis = int | Sequence[int]


def _working(name: str, x: Any) -> tuple[Tensor, Any]:
    """The operand in the dtype to compute in, and the dtype of the result."""
    t = strong(x)
    if t.dtype.kind == "c":
        raise TypeError(f"{name}: complex is not supported (x is {t.dtype})")
    result = dtypes.to_float(t.dtype)
    return core.cast(t, dtypes.float32 if result == dtypes.float16 else result), result


def _parameter(name: str, what: str, p: Any, t: Tensor, axes: Sequence[int]) -> Tensor:
    """A scale or an offset of the extents of `axes`, laid along them."""
    given = core.cast(strong(p), t.dtype)
    wanted = tuple(t.shape[a] for a in axes)
    if given.shape != wanted:
        raise ValueError(f"{name}: {what} has shape {given.shape}, wanted {wanted} for axes {tuple(axes)} of x with "
                         f"shape {t.shape}")
    return reshaped(given, tuple(n if a in axes else 1 for a, n in enumerate(t.shape)))


def _affine(name: str, y: Tensor, scale: Any, offset: Any, axes: Sequence[int]) -> Tensor:
    if scale is not None:
        y = y * _parameter(name, "scale", scale, y, axes)
    if offset is not None:
        y = y + _parameter(name, "offset", offset, y, axes)
    return y


def moments(x: Any, axis: Axis | None = None, keepdims: bool = False) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance over `axis` (None: all).

    >>> [v.item() for v in moments([1.0, 3.0])]
    [2.0, 1.0]
    """
    t, result = _working("moments", x)
    axes = normalize_axes("moments", axis, t.ndim)
    centre = mean(t, axes, keepdims=True)
    spread = mean(ew.square(t - centre), axes, keepdims=keepdims)
    if not keepdims:
        centre = reshaped(centre, spread.shape)
    return core.cast(centre, result), core.cast(spread, result)


def layer_norm(x: Any, scale: Any = None, offset: Any = None, axis: Axis = -1, epsilon: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * scale + offset, mean and variance over `axis` of each row.

    scale, offset: of the extents of `axis`, in the order of x's dims. Ba, Kiros, Hinton 2016.

    >>> layer_norm([[1.0, 3.0]], epsilon=0.0).tolist()
    [[-1.0, 1.0]]
    """
    t, result = _working("layer_norm", x)
    axes = normalize_axes("layer_norm", axis, t.ndim)
    centre, spread = moments(t, axes, keepdims=True)
    return core.cast(_affine("layer_norm", (t - centre) / ew.sqrt(spread + epsilon), scale, offset, axes), result)


def rms_norm(x: Any, scale: Any = None, axis: Axis = -1, epsilon: float = 1e-6) -> Tensor:
    """x / sqrt(mean of squares + epsilon) * scale, the mean over `axis` of each row. Zhang, Sennrich 2019.

    >>> rms_norm([[3.0, -3.0]], epsilon=0.0).tolist()
    [[1.0, -1.0]]
    """
    t, result = _working("rms_norm", x)
    axes = normalize_axes("rms_norm", axis, t.ndim)
    y = t / ew.sqrt(mean(ew.square(t), axes, keepdims=True) + epsilon)
    return core.cast(_affine("rms_norm", y, scale, None, axes), result)


def group_norm(x: Any, groups: int, scale: Any = None, offset: Any = None, axis: int = -1,
               epsilon: float = 1e-5) -> Tensor:
    """As layer_norm over each of `groups` parts of the channels `axis`, with all dims between the first and it.

    x: (batch, ..., channels); `groups` divides channels (ValueError if not). scale, offset: (channels,). With one
    channel in a group this is instance normalisation. Wu, He 2018.

    >>> group_norm([[1.0, 3.0, 10.0, 30.0]], 2, epsilon=0.0).tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """
    t, result = _working("group_norm", x)
    if t.ndim < 2:
        raise ValueError(f"group_norm: x needs a batch and a channel dim, got shape {t.shape}")
    k = normalize_axis("group_norm", axis, t.ndim)
    channels = t.shape[k]
    if k == 0 or groups < 1 or channels % groups:
        raise ValueError(f"group_norm: {groups} groups do not divide axis {k} of shape {t.shape}")
    rest = tuple(a for a in range(1, t.ndim) if a != k)

    def of_groups(values: Tensor) -> Tensor:
        """The mean of `values` over each group, in each of its channels: first within channels, which lie as x does."""
        by_group = reshaped(mean(values, rest), (t.shape[0], groups, channels // groups))
        found = core.broadcast_to(mean(by_group, 2, keepdims=True), by_group.shape)
        return reshaped(found, tuple(n if a in (0, k) else 1 for a, n in enumerate(t.shape)))

    away = t - of_groups(t)
    y = away / ew.sqrt(of_groups(ew.square(away)) + epsilon)
    return core.cast(_affine("group_norm", y, scale, offset, (k,)), result)


def batch_norm(x: Any, scale: Any = None, offset: Any = None, mean: Any = None, variance: Any = None, axis: int = -1,
               epsilon: float = 1e-3) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(variance + epsilon) * scale + offset for each channel, and the mean and variance used.

    Without `mean` and `variance` they are those of x over all dims but `axis` (the variance is the biased one), for a
    layer to keep running ones of; gradients flow through them. scale, offset, mean, variance: (channels,).
    Ioffe, Szegedy 2015.

    >>> y, m, v = batch_norm([[1.0, 5.0], [3.0, 5.0]], epsilon=0.0, offset=[0.0, 7.0], mean=[2.0, 5.0],
    ...                      variance=[1.0, 1.0])
    >>> y.tolist()
    [[-1.0, 7.0], [1.0, 7.0]]
    """
    t, result = _working("batch_norm", x)
    k = normalize_axis("batch_norm", axis, t.ndim)
    if (mean is None) != (variance is None):
        raise ValueError("batch_norm: give both mean and variance, or none")
    if mean is None:
        m, v = moments(t, tuple(a for a in range(t.ndim) if a != k))
    else:
        m, v = (core.cast(strong(p), t.dtype) for p in (mean, variance))
    centre, spread = (_parameter("batch_norm", what, p, t, (k,)) for what, p in (("mean", m), ("variance", v)))
    y = _affine("batch_norm", (t - centre) / ew.sqrt(spread + epsilon), scale, offset, (k,))
    return core.cast(y, result), core.cast(m, result), core.cast(v, result)


__all__ = ["batch_norm", "group_norm", "layer_norm", "moments", "rms_norm"]
