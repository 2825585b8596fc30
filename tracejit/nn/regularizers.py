"""Penalties on the size of weights, under `tj.regularizers`: `Dense(10, kernel_regularizer=tj.regularizers.L2(1e-4))`.

In: a Variable. Out: a number, which `fit` adds to the loss; a loop of your own adds `sum(model.losses)`.

Read next: `module.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracejit.nn.options import number
from tracejit.ops.elementwise import abs, square
from tracejit.ops.reduction import sum


class L1L2:
    """l1 times the sum of absolute values, and l2 times the sum of squares.

    >>> L1L2(0.1, 0.01)([1.0, -3.0]).round(2).item()
    0.5
    """

    def __init__(self, l1: float = 0.0, l2: float = 0.0):
        self.l1, self.l2 = (float(number(self, k, v, "[0, inf)")) for k, v in (("l1", l1), ("l2", l2)))

    def __call__(self, x: Any) -> Any:
        total: Any = None
        for factor, size in ((self.l1, abs), (self.l2, square)):
            if factor:
                part = factor * sum(size(x))
                total = part if total is None else total + part
        return 0.0 if total is None else total

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in vars(self).items() if v)})"


class L1(L1L2):
    """l1 times the sum of absolute values."""

    def __init__(self, l1: float = 0.01):
        super().__init__(l1=l1)


class L2(L1L2):
    """l2 times the sum of squares."""

    def __init__(self, l2: float = 0.01):
        super().__init__(l2=l2)


NAMES: dict[str, Callable[[], L1L2]] = {"l1": L1, "l2": L2, "l1_l2": lambda: L1L2(0.01, 0.01)}


def get(x: Any) -> Any:
    """A regularizer from its name, a function of a Variable, or None."""
    if isinstance(x, str):
        if x.lower() not in NAMES:
            raise ValueError(f"unknown regularizer {x!r}; there are {', '.join(NAMES)}")
        return NAMES[x.lower()]()
    if x is not None and not callable(x):
        raise TypeError(f"a regularizer is a name or a function of a Variable, got {x!r}")
    return x
