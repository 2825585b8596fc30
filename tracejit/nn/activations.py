"""Activation functions, and how layers name them: `activation="relu"`.

In: tensors, or names. Out: tensors, or functions.

Formulas: elu: Clevert et al. (2015); selu: Klambauer et al. (2017); the hard ones: Howard et al. (2019).

Read next: `core.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracejit.ops.core import strong
from tracejit.ops.elementwise import abs, clip, minimum, relu, where
from tracejit.ops.special import exp, expm1, gelu, log_sigmoid, mish, sigmoid, silu, softplus, tanh
from tracejit.ops.statistics import log_softmax, softmax
from tracejit.tensor import Tensor

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def linear(x: Any) -> Any:
    """x."""
    return x


def leaky_relu(x: Any, negative_slope: float = 0.2) -> Tensor:
    """x, times `negative_slope` where it is negative.

    >>> leaky_relu([-1.0, 2.0]).tolist()
    [-0.20000000298023224, 2.0]
    """
    x = strong(x)
    return where(x > 0, x, negative_slope * x)


def relu6(x: Any) -> Tensor:
    """min(max(x, 0), 6).

    >>> relu6([-1.0, 2.0, 7.0]).tolist()
    [0.0, 2.0, 6.0]
    """
    return minimum(relu(x), 6.0)


def elu(x: Any, alpha: float = 1.0) -> Tensor:
    """x, and alpha (e^x - 1) where it is negative."""
    x = strong(x)
    return where(x > 0, x, alpha * expm1(minimum(x, 0.0)))


def selu(x: Any) -> Tensor:
    """`elu` scaled such that means and variances stay."""
    return SELU_SCALE * elu(x, SELU_ALPHA)


def softsign(x: Any) -> Tensor:
    """x / (1 + |x|)."""
    x = strong(x)
    return x / (1.0 + abs(x))  # type: ignore[no-any-return,operator]


def hard_sigmoid(x: Any) -> Tensor:
    """x / 6 + 1 / 2 within [0, 1]."""
    return clip(strong(x) / 6.0 + 0.5, 0.0, 1.0)


def hard_silu(x: Any) -> Tensor:
    """x times its hard sigmoid."""
    x = strong(x)
    return x * hard_sigmoid(x)  # type: ignore[no-any-return]


def exponential(x: Any) -> Tensor:
    """e^x."""
    return exp(x)


NAMES: dict[str, Callable[..., Any]] = {
    "linear": linear,
    "relu": relu,
    "relu6": relu6,
    "leaky_relu": leaky_relu,
    "elu": elu,
    "selu": selu,
    "gelu": gelu,
    "silu": silu,
    "swish": silu,
    "mish": mish,
    "sigmoid": sigmoid,
    "log_sigmoid": log_sigmoid,
    "hard_sigmoid": hard_sigmoid,
    "hard_silu": hard_silu,
    "hard_swish": hard_silu,
    "tanh": tanh,
    "softplus": softplus,
    "softsign": softsign,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "exponential": exponential,
}


def get(x: Any) -> Callable[..., Any]:
    """An activation function from its name, None (`linear`), or a function."""
    if x is None:
        return linear
    if isinstance(x, str):
        if x not in NAMES:
            raise ValueError(f"unknown activation {x!r}; there are {', '.join(NAMES)}")
        return NAMES[x]
    if not callable(x):
        raise TypeError(f"an activation is a name or a function, got {x!r}")
    return x  # type: ignore[no-any-return]


def name_of(f: Callable[..., Any]) -> str:
    """What `get` calls a function, or its own name."""
    return next((name for name, known in NAMES.items() if known is f), getattr(f, "__name__", repr(f)))
