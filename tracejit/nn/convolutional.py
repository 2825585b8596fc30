"""Layers of windows that move over images, signals and volumes: convolutions and pooling, channels last.

In: options. Out: layers. Names, defaults and layouts of weights are those of Keras 3: kernels are (*window, inputs /
groups, filters), those of transposed convolutions (*window, filters, inputs).

Read next: `normalization.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from tracejit.nn.core import Activated, Shape, Weighted, described, last_size, tail
from tracejit.nn.module import Layer
from tracejit.nn.options import one_of, whole
from tracejit.ops import convolution, pooling
from tracejit.ops.elementwise import cast
from tracejit.ops.reduction import max, sum
from tracejit.ops.shaping import pad, repeat
from tracejit.ops.statistics import mean

Sizes = tuple[int, ...]


def per_dim(name: str, what: str, value: Any, rank: int) -> Sizes:
    """One positive int for each dim, given as one or as several."""
    given = tuple(value) if isinstance(value, (list, tuple, np.ndarray)) else (value,)
    found = given * rank if len(given) == 1 else given
    if len(found) != rank or any(isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n <= 0 for n in found):
        raise ValueError(f"{name}: {what} must be a positive int, or {rank} of them, got {value!r}")
    return tuple(map(int, found))


def _moved_over(n: int | None, size: int, stride: int, dilation: int, padding: str) -> int | None:
    """How many windows fit into a dim of size n."""
    if n is None:
        return None
    if padding in ("same", "causal"):
        return -(-n // stride)
    return (n - (size - 1) * dilation - 1) // stride + 1


def _check_channels_last(name: str, data_format: str | None) -> None:
    if data_format not in (None, "channels_last"):
        raise ValueError(f"{name}: data_format {data_format!r} is not supported; put channels last")


def _padding(layer: Layer, given: Any, choices: Sequence[str]) -> str:
    return str(one_of(layer, "padding", given.lower() if isinstance(given, str) else given, choices))


class _Windowed(Layer):
    """What all layers of windows over `rank` dims share."""

    rank: ClassVar[int]

    def _check_rank(self, input_shape: Any) -> None:
        if not isinstance(input_shape, tuple) or len(input_shape) != self.rank + 2:
            dims = ("length", "height, width", "depth, height, width")[self.rank - 1]
            raise ValueError(f"{self.name}: input must be (batch, {dims}, channels), got shape {input_shape}")


class _Conv(Weighted, _Windowed):
    """Convolutions, by rank.

    Variables: kernel (*kernel_size, inputs / groups, filters), bias (filters,).
    """

    paddings: ClassVar[tuple[str, ...]] = ("valid", "same")
    _filters: ClassVar[str] = "filters"

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        groups: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        **options: Any,
    ):
        super().__init__(
            activation, use_bias, kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, **options
        )
        name = type(self).__name__
        _check_channels_last(name, data_format)
        self.filters, self.groups = whole(self, self._filters, filters), whole(self, "groups", groups)
        self.kernel_size = per_dim(name, "kernel_size", kernel_size, self.rank)
        self.strides = per_dim(name, "strides", strides, self.rank)
        self.dilation_rate = per_dim(name, "dilation_rate", dilation_rate, self.rank)
        self.padding = _padding(self, padding, self.paddings)
        if filters % groups:
            raise ValueError(f"{name}: filters must be a multiple of groups, got {filters} and {groups}")

    def kernel_shape(self, inputs: int) -> Sizes:
        """The kernel's shape for so many input channels."""
        if inputs % self.groups:
            raise ValueError(f"{self.name}: {inputs} input channels do not split into {self.groups} groups")
        return (*self.kernel_size, inputs // self.groups, self.filters)

    def outputs(self, inputs: int) -> int:
        """The number of output channels."""
        return self.filters

    def build(self, input_shape: Any) -> None:
        self._check_rank(input_shape)
        inputs = last_size(self, input_shape)
        self.add_kernel(self.kernel_shape(inputs))
        self.add_bias((self.outputs(inputs),))

    def convolved(self, x: Any) -> Any:
        """The convolution alone."""
        padding: Any = self.padding
        if padding == "causal":
            padding = tuple(((n - 1) * d, 0) for n, d in zip(self.kernel_size, self.dilation_rate))
        function = (convolution.conv1d, convolution.conv2d, convolution.conv3d)[self.rank - 1]
        return function(x, self.kernel, self.strides, padding, self.dilation_rate, self.groups)

    def call(self, x: Any) -> Any:
        y = self.convolved(x)
        return self.activated(y if self.bias is None else y + self.bias)

    def compute_output_shape(self, input_shape: Any) -> Shape:
        self._check_rank(input_shape)
        dims = zip(input_shape[1:-1], self.kernel_size, self.strides, self.dilation_rate)
        moved = (_moved_over(*of, self.padding) for of in dims)
        return (input_shape[0], *moved, self.outputs(input_shape[-1]))

    def _options(self) -> str:
        plain = {"strides": (1,) * self.rank, "padding": "valid", "dilation_rate": (1,) * self.rank, "groups": 1,
                 "use_bias": True}  # fmt: skip
        shown = {k: getattr(self, k) for k, v in plain.items() if getattr(self, k) != v}
        return f"{self._head()}{tail(described(activation=self._activation_name(), **shown))}"

    def _head(self) -> str:
        return f"{self.filters}, {self.kernel_size}"


class Conv1D(_Conv):
    """Convolution over (batch, length, channels); padding "valid", "same" or "causal" (only what came before).

    >>> Conv1D(4, 3, padding="causal")([[[1.0], [2.0], [3.0]]]).shape
    (1, 3, 4)
    """

    rank = 1
    paddings = ("valid", "same", "causal")


class Conv2D(_Conv):
    """Convolution over (batch, height, width, channels).

    >>> layer = Conv2D(16, [3, 3], activation="relu", input_shape=(None, None, 1))
    >>> import numpy as np
    >>> layer(np.zeros((2, 28, 28, 1))).shape, layer.kernel.shape
    ((2, 26, 26, 16), (3, 3, 1, 16))
    """

    rank = 2


class Conv3D(_Conv):
    """Convolution over (batch, depth, height, width, channels)."""

    rank = 3


class _Depthwise(_Conv):
    """Each channel by itself. Variables: kernel (*kernel_size, inputs, depth_multiplier), bias."""

    _filters = "depth_multiplier"

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        depth_multiplier: int = 1,
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **options: Any,
    ):
        super().__init__(
            depth_multiplier, kernel_size, strides, padding, data_format, dilation_rate, 1, activation, use_bias,
            depthwise_initializer, bias_initializer, **options,
        )  # fmt: skip
        self.depth_multiplier = depth_multiplier

    def kernel_shape(self, inputs: int) -> Sizes:
        return (*self.kernel_size, inputs, self.depth_multiplier)

    def outputs(self, inputs: int) -> int:
        return inputs * self.depth_multiplier

    def convolved(self, x: Any) -> Any:
        function = (convolution.depthwise_conv1d, convolution.depthwise_conv2d)[self.rank - 1]
        return function(x, self.kernel, self.strides, self.padding, self.dilation_rate)

    def _head(self) -> str:
        return str(self.kernel_size)


class DepthwiseConv1D(_Depthwise):
    """Convolution of each channel of (batch, length, channels) by itself."""

    rank = 1


class DepthwiseConv2D(_Depthwise):
    """Convolution of each channel of (batch, height, width, channels) by itself.

    >>> import numpy as np
    >>> DepthwiseConv2D(3, depth_multiplier=2)(np.zeros((1, 8, 8, 5))).shape
    (1, 6, 6, 10)
    """

    rank = 2


class SeparableConv2D(Activated, _Windowed):
    """A depthwise convolution, then one of 1 x 1 windows over the channels.

    Variables: depthwise_kernel (*kernel_size, inputs, depth_multiplier), pointwise_kernel (1, 1, inputs *
    depth_multiplier, filters), bias (filters,).
    """

    rank = 2

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        depth_multiplier: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform",
        pointwise_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **options: Any,
    ):
        super().__init__(activation, **options)
        whole(self, "filters", filters)
        self.depthwise = DepthwiseConv2D(
            kernel_size, strides, padding, depth_multiplier, data_format, dilation_rate, None, False,
            depthwise_initializer, dtype=self.dtype,
        )  # fmt: skip
        self.pointwise = Conv2D(
            filters, 1, use_bias=use_bias, kernel_initializer=pointwise_initializer, bias_initializer=bias_initializer,
            dtype=self.dtype,
        )  # fmt: skip

    def call(self, x: Any) -> Any:
        return self.activated(self.pointwise(self.depthwise(x)))

    def compute_output_shape(self, input_shape: Any) -> Shape:
        return self.pointwise.compute_output_shape(self.depthwise.compute_output_shape(input_shape))

    def _options(self) -> str:
        return f"{self.pointwise.filters}, {self.depthwise.kernel_size}"


class _ConvTranspose(_Conv):
    """The transpose of a convolution. Variables: kernel (*kernel_size, filters, inputs), bias (filters,)."""

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **options: Any,
    ):
        super().__init__(
            filters, kernel_size, strides, padding, data_format, dilation_rate, 1, activation, use_bias,
            kernel_initializer, bias_initializer, **options,
        )  # fmt: skip

    def kernel_shape(self, inputs: int) -> Sizes:
        return (*self.kernel_size, self.filters, inputs)

    def convolved(self, x: Any) -> Any:
        return convolution.conv_transpose(x, self.kernel, self.strides, self.padding, self.dilation_rate)

    def compute_output_shape(self, input_shape: Any) -> Shape:
        self._check_rank(input_shape)
        found: list[int | None] = []
        for n, size, stride, dilation in zip(input_shape[1:-1], self.kernel_size, self.strides, self.dilation_rate):
            reach = (size - 1) * dilation + 1
            more = 0 if self.padding == "same" or reach < stride else reach - stride
            found.append(None if n is None else n * stride + more)
        return (input_shape[0], *found, self.filters)


class Conv1DTranspose(_ConvTranspose):
    """The transpose of a convolution over (batch, length, channels)."""

    rank = 1


class Conv2DTranspose(_ConvTranspose):
    """The transpose of a convolution over (batch, height, width, channels): images become larger.

    >>> import numpy as np
    >>> Conv2DTranspose(4, 3, strides=2, padding="same")(np.zeros((1, 7, 7, 8))).shape
    (1, 14, 14, 4)
    """

    rank = 2


class Conv3DTranspose(_ConvTranspose):
    """The transpose of a convolution over (batch, depth, height, width, channels)."""

    rank = 3


# -- pooling -----------------------------------------------------------------------------------------------------------
class _Pool(_Windowed):
    """One number for each window and channel; strides are the window if not given."""

    functions: ClassVar[Sequence[Callable[..., Any]]]

    def __init__(
        self,
        pool_size: int | Sequence[int] = 2,
        strides: int | Sequence[int] | None = None,
        padding: str = "valid",
        data_format: str | None = None,
        **options: Any,
    ):
        super().__init__(**options)
        name = type(self).__name__
        _check_channels_last(name, data_format)
        self.pool_size = per_dim(name, "pool_size", pool_size, self.rank)
        self.strides = self.pool_size if strides is None else per_dim(name, "strides", strides, self.rank)
        self.padding = _padding(self, padding, ("valid", "same"))

    def call(self, x: Any) -> Any:
        self._check_rank(x.shape)
        return self.functions[self.rank - 1](x, self.pool_size, self.strides, self.padding)

    def compute_output_shape(self, input_shape: Any) -> Shape:
        self._check_rank(input_shape)
        dims = zip(input_shape[1:-1], self.pool_size, self.strides)
        moved = (_moved_over(n, size, stride, 1, self.padding) for n, size, stride in dims)
        return (input_shape[0], *moved, input_shape[-1])

    def _options(self) -> str:
        strides = None if self.strides == self.pool_size else self.strides
        padding = None if self.padding == "valid" else self.padding
        return f"{self.pool_size}{tail(described(strides=strides, padding=padding))}"


class _MaxPool(_Pool):
    functions = (pooling.max_pool1d, pooling.max_pool2d, pooling.max_pool3d)


class _AveragePool(_Pool):
    functions = (pooling.avg_pool1d, pooling.avg_pool2d, pooling.avg_pool3d)


class MaxPooling1D(_MaxPool):
    """The largest element of each window of (batch, length, channels)."""

    rank = 1


class MaxPooling2D(_MaxPool):
    """The largest element of each window of (batch, height, width, channels).

    >>> import numpy as np
    >>> MaxPooling2D()(np.arange(16.0).reshape(1, 4, 4, 1)).numpy().ravel().tolist()
    [5.0, 7.0, 13.0, 15.0]
    """

    rank = 2


class MaxPooling3D(_MaxPool):
    """The largest element of each window of (batch, depth, height, width, channels)."""

    rank = 3


class AveragePooling1D(_AveragePool):
    """The mean of each window of (batch, length, channels); padding does not count."""

    rank = 1


class AveragePooling2D(_AveragePool):
    """The mean of each window of (batch, height, width, channels); padding does not count."""

    rank = 2


class AveragePooling3D(_AveragePool):
    """The mean of each window of (batch, depth, height, width, channels); padding does not count."""

    rank = 3


class _Global(_Windowed):
    """One number for each channel."""

    function: ClassVar[Callable[..., Any]]

    def __init__(self, data_format: str | None = None, keepdims: bool = False, **options: Any):
        super().__init__(**options)
        _check_channels_last(type(self).__name__, data_format)
        self.keepdims = keepdims

    def call(self, x: Any) -> Any:
        self._check_rank(x.shape)
        return type(self).function(x, axis=tuple(range(1, self.rank + 1)), keepdims=self.keepdims)

    def compute_output_shape(self, input_shape: Any) -> Shape:
        self._check_rank(input_shape)
        return (input_shape[0], *((1,) * self.rank if self.keepdims else ()), input_shape[-1])


class GlobalAveragePooling1D(_Global):
    """The mean of each channel of (batch, length, channels); mask (batch, length): over the steps where it is true."""

    rank, function = 1, staticmethod(mean)

    def call(self, x: Any, mask: Any = None) -> Any:
        if mask is None:
            return super().call(x)
        self._check_rank(x.shape)
        real = cast(mask, x.dtype)[:, :, None]  # type: ignore[index]
        return sum(x * real, axis=1, keepdims=self.keepdims) / sum(real, axis=1, keepdims=self.keepdims)


class GlobalAveragePooling2D(_Global):
    """The mean of each channel of (batch, height, width, channels).

    >>> GlobalAveragePooling2D()([[[[1.0], [3.0]]]]).tolist()
    [[2.0]]
    """

    rank, function = 2, staticmethod(mean)


class GlobalAveragePooling3D(_Global):
    """The mean of each channel of (batch, depth, height, width, channels)."""

    rank, function = 3, staticmethod(mean)


class GlobalMaxPooling1D(_Global):
    """The largest element of each channel of (batch, length, channels)."""

    rank, function = 1, staticmethod(max)


class GlobalMaxPooling2D(_Global):
    """The largest element of each channel of (batch, height, width, channels)."""

    rank, function = 2, staticmethod(max)


class GlobalMaxPooling3D(_Global):
    """The largest element of each channel of (batch, depth, height, width, channels)."""

    rank, function = 3, staticmethod(max)


# -- around and larger -------------------------------------------------------------------------------------------------
class ZeroPadding2D(_Windowed):
    """Zeros around (batch, height, width, channels). padding: an int, one for each dim, or a pair for each.

    >>> ZeroPadding2D(1)([[[[5.0]]]]).shape
    (1, 3, 3, 1)
    """

    rank = 2

    def __init__(self, padding: Any = 1, data_format: str | None = None, **options: Any):
        super().__init__(**options)
        _check_channels_last(type(self).__name__, data_format)
        per = padding if isinstance(padding, (list, tuple)) else (padding, padding)
        pairs = [tuple(p) if isinstance(p, (list, tuple)) else (p, p) for p in per]
        if [len(p) for p in pairs] != [2, 2]:
            raise ValueError(f"ZeroPadding2D: padding must be an int, two, or two pairs, got {padding!r}")
        self.padding = tuple(tuple(int(whole(self, "padding", n, 0)) for n in pair) for pair in pairs)

    def call(self, x: Any) -> Any:
        self._check_rank(x.shape)
        return pad(x, ((0, 0), *self.padding, (0, 0)))

    def compute_output_shape(self, input_shape: Any) -> Shape:
        dims = zip(input_shape[1:-1], self.padding)
        return (input_shape[0], *(None if n is None else n + p[0] + p[1] for n, p in dims), input_shape[-1])

    def _options(self) -> str:
        return str(self.padding)


class UpSampling2D(_Windowed):
    """Rows and columns of (batch, height, width, channels), each so many times.

    >>> UpSampling2D()([[[[5.0]]]]).shape
    (1, 2, 2, 1)
    """

    rank = 2

    def __init__(self, size: int | Sequence[int] = 2, data_format: str | None = None, **options: Any):
        super().__init__(**options)
        _check_channels_last(type(self).__name__, data_format)
        self.size = per_dim(type(self).__name__, "size", size, 2)

    def call(self, x: Any) -> Any:
        self._check_rank(x.shape)
        return repeat(repeat(x, self.size[0], axis=1), self.size[1], axis=2)

    def compute_output_shape(self, input_shape: Any) -> Shape:
        dims = zip(input_shape[1:-1], self.size)
        return (input_shape[0], *(None if n is None else n * k for n, k in dims), input_shape[-1])

    def _options(self) -> str:
        return str(self.size)
