"""Learning rates that change with the step: the schedules of `tj.optimizers.schedules`.

In: a step number, as a Python number or an integer tensor. Out: the learning rate of that step, a float64 tensor (a
single number costs nothing in double precision; optimizers cast it to the dtype of each variable).

All of it is tensor arithmetic, so a compiled training step works out its learning rate inside the program, and a new
rate never asks for a new trace. Names, defaults and formulas are those of Keras 3 (`keras.optimizers.schedules`).

Read next: `optimizers.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tracejit.dtypes import float64
from tracejit.nn.options import number, several
from tracejit.ops.elementwise import cast, floor, maximum, minimum, where
from tracejit.ops.special import cos, log, pow
from tracejit.tensor import Tensor

__all__ = [
    "CosineDecay", "CosineDecayRestarts", "ExponentialDecay", "InverseTimeDecay", "LearningRateSchedule",
    "PiecewiseConstantDecay", "PolynomialDecay",
]  # fmt: skip


RATE, STEPS = "[0, inf)", "(0, inf)"  # what rates and factors, and numbers of steps, may be


class LearningRateSchedule:
    """Base class: a schedule is called with the step and gives the rate. Write your own as a subclass with `__call__`,
    out of tensor operations.

    >>> class Halved(LearningRateSchedule):
    ...     def __call__(self, step):
    ...         return 0.5 ** _number(step)
    >>> Halved()(3)
    tj.Tensor(0.125, shape=(), dtype=float64)
    """

    def __call__(self, step: Any) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define __call__(step)")


class _Decay(LearningRateSchedule):
    """What decays by `decay_rate` in each period of `decay_steps`."""

    def __init__(self, initial_learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False):
        self.initial_learning_rate = number(self, "initial_learning_rate", initial_learning_rate, RATE)
        self.decay_steps = number(self, "decay_steps", decay_steps, STEPS)
        self.decay_rate, self.staircase = number(self, "decay_rate", decay_rate, RATE), staircase

    def periods(self, step: Any) -> Tensor:
        """How many periods have passed."""
        p = _number(step) / self.decay_steps
        return floor(p) if self.staircase else p


class ExponentialDecay(_Decay):
    """initial_learning_rate * decay_rate ** (step / decay_steps); with `staircase` the quotient is rounded down.

    >>> ExponentialDecay(0.1, decay_steps=10, decay_rate=0.5)(20)
    tj.Tensor(0.025, shape=(), dtype=float64)
    """

    def __call__(self, step: Any) -> Tensor:
        return self.initial_learning_rate * pow(self.decay_rate, self.periods(step))


class InverseTimeDecay(_Decay):
    """initial_learning_rate / (1 + decay_rate * step / decay_steps); with `staircase` the quotient is rounded down.

    >>> InverseTimeDecay(0.1, decay_steps=10, decay_rate=0.5)(20)
    tj.Tensor(0.05, shape=(), dtype=float64)
    """

    def __call__(self, step: Any) -> Tensor:
        return self.initial_learning_rate / (1 + self.decay_rate * self.periods(step))


class PiecewiseConstantDecay(LearningRateSchedule):
    """values[0] up to and including step boundaries[0], then values[1] up to boundaries[1], and so on.

    >>> PiecewiseConstantDecay([10, 20], [1.0, 0.5, 0.1])(11)
    tj.Tensor(0.5, shape=(), dtype=float64)
    """

    def __init__(self, boundaries: Sequence[float], values: Sequence[float]):
        given = several(self, "boundaries", boundaries, "numbers"), several(self, "values", values, "numbers")
        self.boundaries = tuple(number(self, "each of boundaries", b) for b in given[0])
        self.values = tuple(number(self, "each of values", v, RATE) for v in given[1])
        if len(self.values) != len(self.boundaries) + 1:
            raise ValueError(
                f"PiecewiseConstantDecay: {len(self.boundaries)} boundaries need {len(self.boundaries) + 1} values, "
                f"not {len(self.values)}"
            )
        if list(self.boundaries) != sorted(self.boundaries):
            raise ValueError(f"PiecewiseConstantDecay: the boundaries {self.boundaries} must increase")

    def __call__(self, step: Any) -> Tensor:
        step = _number(step)
        rate = 0 * step + self.values[-1]
        for boundary, value in reversed(tuple(zip(self.boundaries, self.values))):
            rate = where(step <= boundary, value, rate)
        return rate


class PolynomialDecay(LearningRateSchedule):
    """From initial_learning_rate to end_learning_rate in decay_steps, as (1 - step / decay_steps) ** power; then it
    stays there, or with `cycle` starts again with twice the steps, three times, and so on.

    >>> PolynomialDecay(0.1, decay_steps=10, end_learning_rate=0.0)(5)
    tj.Tensor(0.05, shape=(), dtype=float64)
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
    ):
        self.initial_learning_rate = number(self, "initial_learning_rate", initial_learning_rate, RATE)
        self.end_learning_rate = number(self, "end_learning_rate", end_learning_rate, RATE)
        self.decay_steps = number(self, "decay_steps", decay_steps, STEPS)
        self.power, self.cycle = number(self, "power", power, "[0, inf)"), cycle

    def __call__(self, step: Any) -> Tensor:
        step = _number(step)
        if self.cycle:
            done = step / (self.decay_steps * maximum(1.0, -floor(-step / self.decay_steps)))
        else:
            done = minimum(step, float(self.decay_steps)) / self.decay_steps
        return (self.initial_learning_rate - self.end_learning_rate) * pow(1 - done, self.power) + (
            self.end_learning_rate
        )


class CosineDecay(LearningRateSchedule):
    """Half a cosine from initial_learning_rate (or warmup_target) down to `alpha` of it in decay_steps (Loshchilov and
    Hutter 2016). With `warmup_target`, the rate first rises to it along a line in warmup_steps.

    >>> CosineDecay(0.1, decay_steps=10)(10)
    tj.Tensor(0.0, shape=(), dtype=float64)
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        alpha: float = 0.0,
        warmup_target: float | None = None,
        warmup_steps: float = 0,
    ):
        self.initial_learning_rate = number(self, "initial_learning_rate", initial_learning_rate, RATE)
        self.decay_steps = number(self, "decay_steps", decay_steps, STEPS)
        self.alpha = number(self, "alpha", alpha, "[0, 1]")
        self.warmup_steps = number(self, "warmup_steps", warmup_steps, RATE)
        self.warmup_target = None if warmup_target is None else number(self, "warmup_target", warmup_target, RATE)

    def __call__(self, step: Any) -> Tensor:
        step = _number(step)
        top = self.initial_learning_rate if self.warmup_target is None else self.warmup_target
        warm = 0 if self.warmup_target is None else self.warmup_steps
        done = minimum((step - warm) / self.decay_steps, 1.0)
        rate = top * ((1 - self.alpha) * 0.5 * (1 + cos(math.pi * done)) + self.alpha)
        if not warm:
            return rate
        rising = self.initial_learning_rate + (top - self.initial_learning_rate) * (step / warm)
        return where(step < warm, rising, rate)


class CosineDecayRestarts(LearningRateSchedule):
    """Half a cosine that starts again and again (Loshchilov and Hutter 2016): the first takes first_decay_steps, each
    next one t_mul times as many, and starts at m_mul times the height of the one before.

    >>> CosineDecayRestarts(0.1, first_decay_steps=10)(10)
    tj.Tensor(0.1, shape=(), dtype=float64)
    """

    def __init__(
        self,
        initial_learning_rate: float,
        first_decay_steps: float,
        t_mul: float = 2.0,
        m_mul: float = 1.0,
        alpha: float = 0.0,
    ):
        self.initial_learning_rate = number(self, "initial_learning_rate", initial_learning_rate, RATE)
        self.first_decay_steps = number(self, "first_decay_steps", first_decay_steps, STEPS)
        self.t_mul, self.m_mul = number(self, "t_mul", t_mul, "[1, inf)"), number(self, "m_mul", m_mul, RATE)
        self.alpha = number(self, "alpha", alpha, "[0, 1]")

    def __call__(self, step: Any) -> Tensor:
        p = _number(step) / self.first_decay_steps
        if self.t_mul == 1.0:
            restarts = floor(p)
            done = p - restarts
        else:
            # after r restarts, (t_mul**r - 1) / (t_mul - 1) first periods have passed
            restarts = floor(log(1 - p * (1 - self.t_mul)) / math.log(self.t_mul) + 1e-12)
            grown = pow(self.t_mul, restarts)
            done = (p - (1 - grown) / (1 - self.t_mul)) / grown
        height = pow(self.m_mul, restarts)
        return self.initial_learning_rate * ((1 - self.alpha) * 0.5 * height * (1 + cos(math.pi * done)) + self.alpha)


def _number(step: Any) -> Tensor:
    return cast(step, float64)
