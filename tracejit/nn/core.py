"""The simplest layers: dense ones, changes of shape, activations, noise, embeddings, functions as layers.

In: options. Out: layers. Names, defaults and layouts of weights are those of Keras 3.

Read next: `convolutional.py`, `recurrent.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracejit.nn import activations, initializers, regularizers
from tracejit.nn.module import Layer, traceable
from tracejit.nn.options import a_function, axes, number, several, whole
from tracejit.nn.options import shape as shape_of
from tracejit.ops import core, random
from tracejit.ops.dropout import dropout
from tracejit.ops.elementwise import where
from tracejit.ops.embedding import embedding
from tracejit.ops.linalg import matmul
from tracejit.ops.movement import reshape, transpose
from tracejit.ops.reduction import any
from tracejit.ops.shaping import repeat

Shape = tuple[int | None, ...]


def described(**options: Any) -> str:
    """Options as text, those that are None left out."""
    return ", ".join(f"{k}={v!r}" for k, v in options.items() if v is not None)


class Activated(Layer):
    """A layer that ends in an activation function."""

    def __init__(self, activation: Any = None, **options: Any):
        super().__init__(**options)
        self.activation = activations.get(activation)

    def activated(self, x: Any) -> Any:
        """The activation function of x."""
        return x if self.activation is activations.linear else traceable(self.activation)(x)

    def _activation_name(self) -> str | None:
        return None if self.activation is activations.linear else activations.name_of(self.activation)


class Weighted(Activated):
    """A layer with a kernel, perhaps a bias, and an activation function at the end."""

    def __init__(
        self,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        **options: Any,
    ):
        super().__init__(activation, **options)
        self.use_bias = use_bias
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.kernel_regularizer = regularizers.get(kernel_regularizer)
        self.bias_regularizer = regularizers.get(bias_regularizer)

    def add_kernel(self, shape: Sequence[int]) -> None:
        """Make the kernel."""
        initializer, penalty = self.kernel_initializer, self.kernel_regularizer
        self.kernel = self.add_weight(shape, initializer, name="kernel", regularizer=penalty)

    def add_bias(self, shape: Sequence[int]) -> None:
        """Make the bias, if there shall be one."""
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(shape, self.first_bias(), name="bias", regularizer=self.bias_regularizer)

    def first_bias(self) -> Any:
        """How the bias starts."""
        return self.bias_initializer


class Dense(Weighted):
    """activation(x @ kernel + bias), over the last dim of x.

    Variables: kernel (inputs, units), bias (units,). ValueError if x has another number of inputs than at first.

    >>> layer = Dense(3, activation="relu")
    >>> layer([[1.0, 2.0]]).shape, [v.shape for v in layer.variables]
    ((1, 3), [(2, 3), (3,)])
    """

    supports_masking = True

    def __init__(
        self,
        units: int,
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
        self.units = whole(self, "units", units)

    def build(self, input_shape: Any) -> None:
        self.add_kernel((last_size(self, input_shape), self.units))
        self.add_bias((self.units,))

    def call(self, x: Any) -> Any:
        if x.ndim == 0 or x.shape[-1] != self.kernel.shape[0]:
            hint = f"; a batch of single numbers has shape {(*x.shape, 1)}" if x.ndim == 1 else ""
            raise ValueError(f"the last dim must have size {self.kernel.shape[0]}, got shape {x.shape}{hint}")
        y = matmul(x, self.kernel)
        return self.activated(y if self.bias is None else y + self.bias)

    def compute_output_shape(self, input_shape: Any) -> Shape:
        return (*input_shape[:-1], self.units)

    def _options(self) -> str:
        bias = None if self.use_bias else False
        return f"{self.units}" + tail(described(activation=self._activation_name(), use_bias=bias))


def last_size(layer: Layer, input_shape: Any) -> int:
    """The size of the last dim, which a layer needs to know; ValueError if it is unknown."""
    if not input_shape or not isinstance(input_shape, tuple) or input_shape[-1] is None:
        raise ValueError(f"{layer.name}: the last dim of its input must be known, got shape {input_shape}")
    return int(input_shape[-1])


def tail(options: str) -> str:
    """Options after others."""
    return f", {options}" if options else ""


# -- shapes ------------------------------------------------------------------------------------------------------------
class Flatten(Layer):
    """All dims but the first as one.

    >>> Flatten()(np.zeros((2, 3, 4))).shape
    (2, 12)
    """

    def call(self, x: Any) -> Any:
        if x.ndim == 0:
            raise ValueError("input must be (batch, ...), got shape ()")
        return reshape(x, (x.shape[0], math.prod(x.shape[1:])))

    def compute_output_shape(self, input_shape: Any) -> Shape:
        rest = input_shape[1:]
        return (input_shape[0], None if None in rest else math.prod(rest))


class Reshape(Layer):
    """Each example in another shape, in which one size may be -1.

    >>> Reshape((2, -1))(np.zeros((5, 6))).shape
    (5, 2, 3)
    """

    def __init__(self, target_shape: Sequence[int], **options: Any):
        super().__init__(**options)
        sizes = several(self, "target_shape", target_shape, "sizes, one of them perhaps -1")
        self.target_shape = tuple(int(whole(self, "each size of target_shape", n, -1)) for n in sizes)
        if self.target_shape.count(-1) > 1:
            raise ValueError(f"Reshape: only one size of target_shape can be -1, got {self.target_shape}")

    def call(self, x: Any) -> Any:
        return reshape(x, (x.shape[0], *self._sizes(x.shape[1:])))

    def _sizes(self, sizes: Any) -> Any:
        if -1 not in self.target_shape:
            return self.target_shape
        known = -math.prod(self.target_shape)
        total = math.prod(sizes)
        if known == 0 or total % known:
            raise ValueError(f"shape {tuple(sizes)} does not fit {self.target_shape}")
        return tuple(total // known if n == -1 else n for n in self.target_shape)

    def compute_output_shape(self, input_shape: Any) -> Shape:
        if None in input_shape[1:]:
            return (input_shape[0], *(None if n == -1 else n for n in self.target_shape))
        return (input_shape[0], *self._sizes(input_shape[1:]))

    def _options(self) -> str:
        return str(self.target_shape)


class Permute(Layer):
    """The dims of each example in another order, counted from 1.

    >>> Permute((2, 1))(np.zeros((5, 6, 7))).shape
    (5, 7, 6)
    """

    def __init__(self, dims: Sequence[int], **options: Any):
        super().__init__(**options)
        self.dims = several(self, "dims", dims, "numbers of dims")
        if sorted(self.dims) != list(range(1, len(self.dims) + 1)):
            raise ValueError(f"Permute: dims must be the numbers 1 to {len(self.dims)} in some order, got {self.dims}")

    def call(self, x: Any) -> Any:
        if x.ndim != len(self.dims) + 1:
            raise ValueError(f"dims {self.dims} need an input of {len(self.dims) + 1} dims, got shape {x.shape}")
        return transpose(x, (0, *self.dims))

    def compute_output_shape(self, input_shape: Any) -> Shape:
        return (input_shape[0], *(input_shape[d] for d in self.dims))

    def _options(self) -> str:
        return str(self.dims)


class RepeatVector(Layer):
    """Each row n times: (batch, features) to (batch, n, features).

    >>> RepeatVector(3)(np.zeros((2, 4))).shape
    (2, 3, 4)
    """

    def __init__(self, n: int, **options: Any):
        super().__init__(**options)
        self.n = whole(self, "n", n)

    def call(self, x: Any) -> Any:
        if x.ndim != 2:
            raise ValueError(f"input must be (batch, features), got shape {x.shape}")
        return repeat(reshape(x, (x.shape[0], 1, x.shape[1])), self.n, axis=1)

    def compute_output_shape(self, input_shape: Any) -> Shape:
        return (input_shape[0], self.n, input_shape[1])

    def _options(self) -> str:
        return str(self.n)


# -- functions ---------------------------------------------------------------------------------------------------------
class _SameShape(Layer):
    """A layer whose result has the shape of its input."""

    supports_masking = True

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape


class Activation(_SameShape, Activated):
    """An activation function as a layer.

    >>> Activation("relu")([-1.0, 2.0]).tolist()
    [0.0, 2.0]
    """

    def __init__(self, activation: Any, **options: Any):
        Activated.__init__(self, activation, **options)

    def call(self, x: Any) -> Any:
        return self.activated(x)

    def _options(self) -> str:
        return repr(activations.name_of(self.activation))


class ReLU(_SameShape):
    """x, and `negative_slope` x where it is negative, at most `max_value`."""

    def __init__(self, max_value: float | None = None, negative_slope: float = 0.0, **options: Any):
        super().__init__(**options)
        self.max_value = None if max_value is None else number(self, "max_value", max_value, "[0, inf)")
        self.negative_slope = number(self, "negative_slope", negative_slope)

    def call(self, x: Any) -> Any:
        slope = self.negative_slope
        y = activations.leaky_relu(x, slope) if slope else activations.relu(x)
        return y if self.max_value is None else activations.minimum(y, self.max_value)

    def _options(self) -> str:
        return described(max_value=self.max_value, negative_slope=self.negative_slope or None)


class LeakyReLU(ReLU):
    """x, and `negative_slope` x where it is negative."""

    def __init__(self, negative_slope: float = 0.3, **options: Any):
        super().__init__(None, negative_slope, **options)


class ELU(_SameShape):
    """x, and alpha (e^x - 1) where it is negative."""

    def __init__(self, alpha: float = 1.0, **options: Any):
        super().__init__(**options)
        self.alpha = number(self, "alpha", alpha)

    def call(self, x: Any) -> Any:
        return activations.elu(x, self.alpha)


class Softmax(_SameShape):
    """Softmax over `axis`."""

    def __init__(self, axis: int = -1, **options: Any):
        super().__init__(**options)
        self.axis = axes(self, "axis", axis)

    def call(self, x: Any) -> Any:
        return activations.softmax(x, axis=self.axis)


class Lambda(Layer):
    """A function as a layer. `output_shape`: that of one example, if it shall be known before a call.

    >>> Lambda(lambda x: x * 2)([1.0]).tolist()
    [2.0]
    """

    def __init__(self, function: Callable[..., Any], output_shape: Sequence[int | None] | None = None, **options: Any):
        super().__init__(**options)
        self.function = a_function(self, "function", function)
        self.output_shape = None if output_shape is None else shape_of(self, "output_shape", output_shape)

    def call(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        found = traceable(self.function)(x, *args, **kwargs)
        if found is None:
            raise TypeError(f"the function {self._options()} gave None; is there a return in it?")
        return found

    def compute_output_shape(self, input_shape: Any) -> Any:
        if self.output_shape is None:
            return super().compute_output_shape(input_shape)
        return (input_shape[0], *self.output_shape)

    def _options(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))


class Rescaling(_SameShape):
    """x * scale + offset.

    >>> Rescaling(1 / 255)([[0, 255]]).tolist()
    [[0.0, 1.0]]
    """

    def __init__(self, scale: float, offset: float = 0.0, **options: Any):
        super().__init__(**options)
        for name, value in (("scale", scale), ("offset", offset)):
            if np.asarray(value).dtype.kind not in "iuf":
                raise TypeError(f"Rescaling: {name} must be a number, or one for each channel, got {value!r}")
        self.scale, self.offset = scale, offset

    def call(self, x: Any) -> Any:
        return core.cast(x, self.dtype) * self.scale + self.offset

    def _options(self) -> str:
        return described(scale=self.scale, offset=self.offset or None)


class Input(_SameShape):
    """The shape of one example, as the first entry of a `Sequential`, which is then built at once."""

    def __init__(self, shape: Sequence[int | None], **options: Any):
        super().__init__(**options)
        self._input_shape = shape_of(self, "shape", shape)

    def call(self, x: Any) -> Any:
        return x

    def _options(self) -> str:
        return str(self._input_shape)


class Masking(_SameShape):
    """Steps of (batch, steps, features) whose features all are `mask_value` are not there: they become 0, and the next
    layers of a `Sequential` leave them out, as losses and metrics do in `fit`; code of your own gives them
    `mask=masking.compute_mask(x)`.

    >>> Masking(-1.0).compute_mask([[[-1.0, -1.0], [-1.0, 2.0]]]).tolist()
    [[False, True]]
    """

    def __init__(self, mask_value: float = 0.0, **options: Any):
        super().__init__(**options)
        self.mask_value = number(self, "mask_value", mask_value)

    def call(self, x: Any) -> Any:
        return where(self._real(x)[..., None], x, 0)

    def compute_mask(self, x: Any, mask: Any = None) -> Any:
        """Where a step has a feature that is not `mask_value`."""
        real = self._real(core.as_tensor(x))
        return real if mask is None else real & mask

    def _real(self, x: Any) -> Any:
        if x.ndim < 2:
            raise ValueError(f"Masking: input must be (batch, steps, features), got shape {x.shape}")
        return any(x != self.mask_value, axis=-1)

    def _options(self) -> str:
        return str(self.mask_value)


# -- noise while training ----------------------------------------------------------------------------------------------
class Dropout(_SameShape):
    """While training, elements with probability `rate` become 0, and others grow by 1 / (1 - rate).

    noise_shape: one decision for all elements along dims where it is 1. Numbers come from the default generator, or
    from one of the layer's own if it has a seed. Srivastava et al. (2014).

    >>> layer = Dropout(0.5, seed=0)
    >>> layer([1.0, 1.0]).tolist(), set(layer([1.0] * 100, training=True).tolist()) == {0.0, 2.0}
    ([1.0, 1.0], True)
    """

    def __init__(
        self, rate: float, noise_shape: Sequence[int | None] | None = None, seed: int | None = None, **options: Any
    ):
        super().__init__(**options)
        self.rate, self.seed = number(self, "rate", rate, "[0, 1]"), seed
        self.noise_shape = None if noise_shape is None else shape_of(self, "noise_shape", noise_shape)
        self.generator = None if seed is None else random.Generator(whole(self, "seed", seed, 0))

    def call(self, x: Any, training: bool = False) -> Any:
        if not training or self.rate == 0:
            return x
        return dropout(x, self.rate, noise_shape=self.noise_shape_for(x), generator=self.generator)

    def noise_shape_for(self, x: Any) -> Sequence[int | None] | None:
        """Where one decision counts for many elements."""
        return self.noise_shape

    def _options(self) -> str:
        return str(self.rate)


class SpatialDropout2D(Dropout):
    """Dropout of whole channels of (batch, height, width, channels)."""

    def __init__(self, rate: float, seed: int | None = None, **options: Any):
        super().__init__(rate, None, seed, **options)

    def noise_shape_for(self, x: Any) -> Sequence[int | None] | None:
        return (x.shape[0], *(1,) * (x.ndim - 2), x.shape[-1])


class SpatialDropout1D(SpatialDropout2D):
    """Dropout of whole channels of (batch, steps, channels)."""


class GaussianNoise(_SameShape):
    """While training, normally distributed noise of standard deviation `stddev` is added."""

    def __init__(self, stddev: float, seed: int | None = None, **options: Any):
        super().__init__(**options)
        self.stddev, self.seed = number(self, "stddev", stddev, "[0, inf)"), seed
        self.generator = None if seed is None else random.Generator(whole(self, "seed", seed, 0))

    def call(self, x: Any, training: bool = False) -> Any:
        if not training or self.stddev == 0:
            return x
        return x + random.normal(x.shape, 0.0, self.stddev, dtype=x.dtype, generator=self.generator)

    def _options(self) -> str:
        return str(self.stddev)


# -- embeddings --------------------------------------------------------------------------------------------------------
class Embedding(Layer):
    """Rows of a table, by integer ids: ids of shape S give (*S, output_dim). IndexError for an id out of range;
    negative ones count from the end.

    mask_zero: id 0 stands for steps that are not there; the next layers of a `Sequential` leave them out, as losses and
    metrics do in `fit`, and code of your own gives them `mask=embedding.compute_mask(ids)`.

    Variables: embeddings (input_dim, output_dim).

    >>> Embedding(10, 4)([[1, 2, 3]]).shape
    (1, 3, 4)
    """

    def __init__(
        self, input_dim: int, output_dim: int, embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None, mask_zero: bool = False, **options: Any,
    ):  # fmt: skip
        super().__init__(**options)
        self.input_dim, self.output_dim = whole(self, "input_dim", input_dim), whole(self, "output_dim", output_dim)
        self.mask_zero = mask_zero
        self._makes_mask = mask_zero
        self.embeddings_initializer = initializers.get(embeddings_initializer)
        self.embeddings_regularizer = regularizers.get(embeddings_regularizer)

    def build(self, input_shape: Any) -> None:
        self.embeddings = self.add_weight(
            (self.input_dim, self.output_dim), self.embeddings_initializer, name="embeddings",
            regularizer=self.embeddings_regularizer,
        )  # fmt: skip

    def call(self, ids: Any) -> Any:
        return embedding(self.embeddings, ids if ids.dtype.kind in "iu" else core.cast(ids, np.dtype("int32")))

    def compute_mask(self, ids: Any, mask: Any = None) -> Any:
        """Where ids are not 0, with `mask_zero`."""
        return core.as_tensor(ids) != 0 if self.mask_zero else None

    def compute_output_shape(self, input_shape: Any) -> Shape:
        return (*input_shape, self.output_dim)

    def _options(self) -> str:
        return f"{self.input_dim}, {self.output_dim}"
