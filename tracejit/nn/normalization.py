"""Layers that bring activations to zero mean and unit variance: over a batch, a row, or groups of channels.

In: options. Out: layers. Names and defaults are those of Keras 3; the papers are named with the functions in
`ops/normalization.py`.

Read next: `attention.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracejit.gradients import stop_gradient
from tracejit.nn import initializers
from tracejit.nn.core import described
from tracejit.nn.module import Layer
from tracejit.nn.options import axes, number, whole
from tracejit.ops.core import cast
from tracejit.ops.normalization import batch_norm, group_norm, layer_norm, rms_norm
from tracejit.variable import Variable


class _Normalization(Layer):
    """What all of them share: gamma, which scales, and beta, which is added."""

    supports_masking = True

    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        **options: Any,
    ):
        super().__init__(**options)
        self.axis, self.epsilon = axes(self, "axis", axis), number(self, "epsilon", epsilon, "[0, inf)")
        self.center, self.scale = center, scale
        self.beta_initializer, self.gamma_initializer = map(initializers.get, (beta_initializer, gamma_initializer))

    def sizes(self, input_shape: Any) -> tuple[int, ...]:
        """The sizes of the axes that have a scale each; ValueError if they are unknown."""
        axes = (self.axis,) if isinstance(self.axis, int) else self.axis
        try:
            found = tuple(input_shape[a] for a in sorted(a % len(input_shape) for a in axes))
        except (IndexError, TypeError, ZeroDivisionError):
            found = (None,)
        if None in found:
            raise ValueError(f"{self.name}: the size of axis {self.axis} must be known, got shape {input_shape}")
        return found

    def build(self, input_shape: Any) -> None:
        sizes = self.sizes(input_shape)
        self.gamma = self.add_weight(sizes, self.gamma_initializer, name="gamma") if self.scale else None
        self.beta = self.add_weight(sizes, self.beta_initializer, name="beta") if self.center else None

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def _options(self) -> str:
        return described(axis=None if self.axis == -1 else self.axis, epsilon=self.epsilon)


class BatchNormalization(_Normalization):
    """Each channel to zero mean and unit variance, over all other dims, then scaled by gamma and shifted by beta.

    While training (and trainable) by mean and variance of the batch, of which running means are kept: moving = momentum
    moving + (1 - momentum) batch; else by those. The variance is the biased one.

    Variables: gamma, beta, moving_mean, moving_variance, each (channels,).

    >>> layer = BatchNormalization(epsilon=0.0)
    >>> layer([[1.0], [3.0]], training=True).tolist(), [round(v, 4) for v in layer.moving_mean.tolist()]
    ([[-1.0], [1.0]], [0.02])
    """

    def __init__(
        self,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        moving_mean_initializer: Any = "zeros",
        moving_variance_initializer: Any = "ones",
        **options: Any,
    ):
        super().__init__(axis, epsilon, center, scale, beta_initializer, gamma_initializer, **options)
        self.momentum = number(self, "momentum", momentum, "[0, 1]")
        self.moving_mean_initializer = initializers.get(moving_mean_initializer)
        self.moving_variance_initializer = initializers.get(moving_variance_initializer)

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        sizes = self.sizes(input_shape)
        self.moving_mean = self.add_weight(sizes, self.moving_mean_initializer, trainable=False, name="moving_mean")
        self.moving_variance = self.add_weight(
            sizes, self.moving_variance_initializer, trainable=False, name="moving_variance"
        )

    def call(self, x: Any, training: bool = False) -> Any:
        if not (training and self.trainable):
            known = self.moving_mean, self.moving_variance
            return batch_norm(x, self.gamma, self.beta, *known, axis=self.axis, epsilon=self.epsilon)[0]  # type: ignore[arg-type]
        y, mean, variance = batch_norm(x, self.gamma, self.beta, axis=self.axis, epsilon=self.epsilon)  # type: ignore[arg-type]
        self._follow(self.moving_mean, mean)
        self._follow(self.moving_variance, variance)
        return y

    def _follow(self, moving: Variable, now: Any) -> None:
        now = cast(stop_gradient(now), moving.dtype)
        moving.assign(self.momentum * moving + (1 - self.momentum) * now)  # type: ignore[operator]


class LayerNormalization(_Normalization):
    """The elements along `axis` of each example to zero mean and unit variance, scaled by gamma and shifted by beta.

    Variables: gamma, beta, of the sizes of `axis`.

    >>> LayerNormalization(epsilon=0.0)([[1.0, 3.0]]).tolist()
    [[-1.0, 1.0]]
    """

    def call(self, x: Any) -> Any:
        return layer_norm(x, self.gamma, self.beta, axis=self.axis, epsilon=self.epsilon)


class GroupNormalization(_Normalization):
    """As layer normalization over each of `groups` parts of the channels and all dims but the first; -1: each channel.

    Variables: gamma, beta (channels,).
    """

    def __init__(self, groups: int = 32, axis: int = -1, epsilon: float = 1e-3, **options: Any):
        super().__init__(axis, epsilon, **options)
        self.groups = whole(self, "groups", groups, -1)
        if groups == 0:
            raise ValueError("GroupNormalization: groups must be at least 1, or -1 for each channel, got 0")

    def call(self, x: Any) -> Any:
        groups = x.shape[self.axis] if self.groups == -1 else self.groups
        return group_norm(x, groups, self.gamma, self.beta, axis=self.axis, epsilon=self.epsilon)  # type: ignore[arg-type]

    def _options(self) -> str:
        return f"{self.groups}, {super()._options()}"


class RMSNormalization(_Normalization):
    """The elements along `axis` of each example by the root of their mean square, scaled. Variables: gamma."""

    def __init__(self, axis: int | Sequence[int] = -1, epsilon: float = 1e-6, **options: Any):
        super().__init__(axis, epsilon, center=False, **options)

    def call(self, x: Any) -> Any:
        return rms_norm(x, self.gamma, axis=self.axis, epsilon=self.epsilon)
