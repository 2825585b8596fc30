"""How Variables start: functions of a shape and a dtype, under `tj.initializers`.

In: the shape and dtype of a new Variable. Out: its first value, drawn from the default generator (`tj.random.seed`
repeats it), or from one of its own if it is given a seed.

The scale of weights follows the number of inputs and outputs of the units ("fans"): Glorot and Bengio (2010), He et al.
(2015), LeCun et al. (1998); orthogonal matrices: Saxe et al. (2014).

Read next: `module.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.nn.options import number, whole
from tracejit.ops import core, random
from tracejit.tensor import Tensor, apply

# The standard deviation of a normal distribution cut at two standard deviations.
_CUT = 0.87962566103423978


class Initializer:
    """A function of shape and dtype. With a seed, each draws from a stream of its own."""

    def __init__(self, seed: int | None = None):
        self.seed = seed
        self._generator = None if seed is None else random.Generator(whole(self, "seed", seed, 0))

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Tensor:
        d = dtypes.default_float() if dtype is None else dtypes.as_dtype(dtype)
        return self.draw(tuple(shape), d)

    def draw(self, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
        """The value."""
        raise NotImplementedError

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if not k.startswith("_") and v is not None)
        return f"{type(self).__name__}({shown})"


class Constant(Initializer):
    """All elements are `value`."""

    def __init__(self, value: float = 0.0):
        super().__init__()
        if not isinstance(value, Tensor) and np.asarray(value).dtype.kind not in "biufc":
            raise TypeError(f"{type(self).__name__}: value must be a number or an array, got {value!r}")
        self.value = value

    def draw(self, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
        if isinstance(self.value, (int, float)):
            return core.full(self.value, shape, dtype)
        return core.broadcast_to(core.cast(core.as_tensor(self.value), dtype), shape)


class Zeros(Constant):
    """Zeros."""

    def __init__(self) -> None:
        super().__init__(0.0)


class Ones(Constant):
    """Ones."""

    def __init__(self) -> None:
        super().__init__(1.0)


class RandomUniform(Initializer):
    """Uniform in [minval, maxval)."""

    def __init__(self, minval: float = -0.05, maxval: float = 0.05, seed: int | None = None):
        super().__init__(seed)
        self.minval, self.maxval = number(self, "minval", minval), number(self, "maxval", maxval)
        if minval > maxval:
            raise ValueError(f"RandomUniform: minval must not be over maxval, got {minval} and {maxval}")

    def draw(self, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
        return random.uniform(shape, self.minval, self.maxval, dtype=dtype, generator=self._generator)


class RandomNormal(Initializer):
    """Normal."""

    def __init__(self, mean: float = 0.0, stddev: float = 0.05, seed: int | None = None):
        super().__init__(seed)
        self.mean, self.stddev = number(self, "mean", mean), number(self, "stddev", stddev, "[0, inf)")

    def draw(self, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
        return random.normal(shape, self.mean, self.stddev, dtype=dtype, generator=self._generator)


class TruncatedNormal(RandomNormal):
    """Normal, cut at two standard deviations."""

    def draw(self, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
        return random.truncated_normal(shape, self.mean, self.stddev, dtype=dtype, generator=self._generator)


class VarianceScaling(Initializer):
    """Zero mean, and variance scale / n, where n is the number of inputs of a unit ("fan_in"), of its outputs
    ("fan_out") or the mean of both ("fan_avg").

    distribution: "uniform", "truncated_normal", or "untruncated_normal".

    >>> VarianceScaling(2.0, "fan_in")((100, 20)).shape
    (100, 20)
    """

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: int | None = None,
    ):
        super().__init__(seed)
        if mode not in ("fan_in", "fan_out", "fan_avg"):
            raise ValueError(f"VarianceScaling: mode must be 'fan_in', 'fan_out' or 'fan_avg', got {mode!r}")
        if distribution not in ("uniform", "truncated_normal", "untruncated_normal"):
            raise ValueError(f"VarianceScaling: distribution must be 'uniform', 'truncated_normal' or "
                             f"'untruncated_normal', got {distribution!r}")
        self.scale, self.mode, self.distribution = number(self, "scale", scale, "(0, inf)"), mode, distribution

    def draw(self, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
        fan_in, fan_out = fans(shape)
        n = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]
        variance = self.scale / max(1.0, n)
        if self.distribution == "uniform":
            limit = math.sqrt(3 * variance)
            return random.uniform(shape, -limit, limit, dtype=dtype, generator=self._generator)
        if self.distribution == "truncated_normal":
            std = math.sqrt(variance) / _CUT
            return random.truncated_normal(shape, 0.0, std, dtype=dtype, generator=self._generator)
        return random.normal(shape, 0.0, math.sqrt(variance), dtype=dtype, generator=self._generator)


class _Preset(VarianceScaling):
    """A variance scaling with a name of its own."""

    settings: tuple[float, str, str]

    def __init__(self, seed: int | None = None):
        super().__init__(*self.settings, seed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.seed is None else f'seed={self.seed}'})"


class GlorotUniform(_Preset):
    """Uniform within ±sqrt(6 / (fan_in + fan_out))."""

    settings = 1.0, "fan_avg", "uniform"


class GlorotNormal(_Preset):
    """Normal (cut) of variance 2 / (fan_in + fan_out)."""

    settings = 1.0, "fan_avg", "truncated_normal"


class HeUniform(_Preset):
    """Uniform within ±sqrt(6 / fan_in)."""

    settings = 2.0, "fan_in", "uniform"


class HeNormal(_Preset):
    """Normal (cut) of variance 2 / fan_in."""

    settings = 2.0, "fan_in", "truncated_normal"


class LecunUniform(_Preset):
    """Uniform within ±sqrt(3 / fan_in)."""

    settings = 1.0, "fan_in", "uniform"


class LecunNormal(_Preset):
    """Normal (cut) of variance 1 / fan_in."""

    settings = 1.0, "fan_in", "truncated_normal"


class Orthogonal(Initializer):
    """A matrix with orthonormal rows or columns, whichever are fewer, times `gain`; more dims are taken together with
    the first ones.

    >>> q = Orthogonal(seed=0)((3, 5))
    >>> np.allclose(q.numpy() @ q.numpy().T, np.eye(3), atol=1e-6)
    True
    """

    def __init__(self, gain: float = 1.0, seed: int | None = None):
        super().__init__(seed)
        self.gain = number(self, "gain", gain)

    def draw(self, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
        if len(shape) < 2:
            raise ValueError(f"Orthogonal: needs two dims or more, got shape {shape}")
        columns = shape[-1]
        rows = math.prod(shape[:-1])
        tall = (max(rows, columns), min(rows, columns))
        q = apply(_ORTHONORMAL, (random.normal(tall, dtype=dtype, generator=self._generator),), {})
        return self.gain * (q.T if rows < columns else q).reshape(shape)  # type: ignore[no-any-return]


def _orthonormal_columns(a: np.ndarray) -> np.ndarray:
    q, r = np.linalg.qr(a.astype(np.float64))
    return (q * np.where(np.diag(r) < 0, -1.0, 1.0)).astype(a.dtype)  # the signs make q uniformly distributed


# An op, so that a model can be built while a function is traced, whose draws are values of the trace.
_ORTHONORMAL = core.primitive(
    "orthonormal_columns", "library", infer=lambda a: a, eager=_orthonormal_columns,
    doc="Orthonormal columns that span those of a tall matrix, uniformly distributed if its elements are normal.",
)


class Identity(Initializer):
    """The identity matrix times `gain`."""

    def __init__(self, gain: float = 1.0):
        super().__init__()
        self.gain = number(self, "gain", gain)

    def draw(self, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
        if len(shape) != 2:
            raise ValueError(f"Identity: needs two dims, got shape {shape}")
        return core.as_tensor(np.eye(*shape, dtype=dtype) * np.asarray(self.gain, dtype))


def fans(shape: Sequence[int]) -> tuple[float, float]:
    """Inputs and outputs of one unit: the last two dims, times the size of the window before them."""
    if not shape:
        return 1.0, 1.0
    if len(shape) == 1:
        return float(shape[0]), float(shape[0])
    window = math.prod(shape[:-2])
    return float(window * shape[-2]), float(window * shape[-1])


NAMES: dict[str, Callable[[], Initializer]] = {
    "zeros": Zeros,
    "ones": Ones,
    "constant": Constant,
    "random_uniform": RandomUniform,
    "uniform": RandomUniform,
    "random_normal": RandomNormal,
    "normal": RandomNormal,
    "truncated_normal": TruncatedNormal,
    "variance_scaling": VarianceScaling,
    "glorot_uniform": GlorotUniform,
    "glorot_normal": GlorotNormal,
    "he_uniform": HeUniform,
    "he_normal": HeNormal,
    "lecun_uniform": LecunUniform,
    "lecun_normal": LecunNormal,
    "orthogonal": Orthogonal,
    "identity": Identity,
}


def get(x: Any) -> Callable[[tuple[int, ...], np.dtype], Any]:
    """An initializer from its name, a class of them, a function of shape and dtype, or an array or number to start
    with."""
    if isinstance(x, str):
        if x not in NAMES:
            raise ValueError(f"unknown initializer {x!r}; there are {', '.join(NAMES)}")
        return NAMES[x]()
    if isinstance(x, type) and issubclass(x, Initializer):
        return x()
    if isinstance(x, (int, float, np.ndarray, Tensor)):
        return Constant(x)  # type: ignore[arg-type]
    if callable(x):
        return x  # type: ignore[no-any-return]
    raise TypeError(f"an initializer is a name, a function of shape and dtype, or a value, got {x!r}")
