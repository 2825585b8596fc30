"""The namespace `tj.optimizers`: rules for what a gradient does to a Variable, and scaling of losses.

In: options. Out: optimizers. Names, defaults and formulas are those of Keras 3 (`keras.optimizers`), except
`Momentum`, which is TensorFlow 1's; each class names the paper. Options that all of them take: see `Optimizer`.

Read next: `schedules.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tracejit.function import function
from tracejit.nn import schedules
from tracejit.nn.module import Module
from tracejit.nn.optimizer import Optimizer, clip_by_global_norm, global_norm
from tracejit.nn.options import number, whole
from tracejit.ops import core
from tracejit.ops.comparison import isfinite
from tracejit.ops.control import cond
from tracejit.ops.elementwise import abs, cast, maximum, sign, sqrt, square, where
from tracejit.ops.reduction import all
from tracejit.ops.special import pow
from tracejit.tape import GradientTape
from tracejit.tensor import Tensor
from tracejit.variable import Variable

__all__ = [
    "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Lion", "LossScaleOptimizer", "Momentum", "Nadam",
    "Optimizer", "RMSprop", "clip_by_global_norm", "get", "global_norm", "schedules",
]  # fmt: skip


BETA, EPSILON = "[0, 1)", "[0, inf)"  # what shares that remain, and guards of divisions, may be


class SGD(Optimizer):
    """Gradient descent, with Keras' momentum: velocity = momentum * velocity - rate * gradient, which is added to the
    Variable; with `nesterov`, momentum * velocity - rate * gradient is (Sutskever et al. 2013).
    """

    def __init__(self, learning_rate: Any = 0.01, momentum: float = 0.0, nesterov: bool = False, **options: Any):
        super().__init__(learning_rate, **options)
        self.momentum, self.nesterov = number(self, "momentum", momentum, "[0, 1]"), nesterov
        self.slots = {"momentum": 0.0} if momentum else {}

    def update(self, variable: Variable, gradient: Tensor, rate: Tensor, *, momentum: Variable | None = None) -> None:  # type: ignore[override]
        if momentum is None:
            variable.assign_sub(gradient * rate)
            return
        moved = momentum * self.momentum - gradient * rate
        momentum.assign(moved)
        variable.assign_add(moved * self.momentum - gradient * rate if self.nesterov else moved)


class Momentum(Optimizer):
    """Gradient descent with TensorFlow 1's (and PyTorch's) momentum: accumulator = momentum * accumulator + gradient,
    and rate * accumulator comes off the Variable; with `nesterov`, rate * (gradient + momentum * accumulator) does.
    """

    slots: Mapping[str, float] = {"accumulator": 0.0}

    def __init__(self, learning_rate: Any = 0.01, momentum: float = 0.9, nesterov: bool = False, **options: Any):
        super().__init__(learning_rate, **options)
        self.momentum, self.nesterov = number(self, "momentum", momentum, "[0, 1]"), nesterov

    def update(self, variable: Variable, gradient: Tensor, rate: Tensor, *, accumulator: Variable) -> None:  # type: ignore[override]
        moved = accumulator * self.momentum + gradient
        accumulator.assign(moved)
        variable.assign_sub((gradient + moved * self.momentum if self.nesterov else moved) * rate)


class Adam(Optimizer):
    """Adam (Kingma and Ba 2014): steps of the size of the rate, by the running mean of the gradient over the root of
    that of its square; `epsilon` is the "epsilon hat" of the paper. amsgrad: over the root of the largest mean so far
    (Reddi et al. 2018).
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **options: Any,
    ):
        super().__init__(learning_rate, **options)
        self.beta_1, self.beta_2 = number(self, "beta_1", beta_1, BETA), number(self, "beta_2", beta_2, BETA)
        self.epsilon, self.amsgrad = number(self, "epsilon", epsilon, EPSILON), amsgrad
        self.slots = dict.fromkeys(("momentum", "velocity", *(("velocity_hat",) if amsgrad else ())), 0.0)

    def common(self, rate: Tensor) -> tuple[Tensor, ...]:
        t = self._updates()
        return (rate * sqrt(1 - pow(self.beta_2, t)) / (1 - pow(self.beta_1, t)),)

    def update(  # type: ignore[override]
        self,
        variable: Variable,
        gradient: Tensor,
        alpha: Tensor,
        *,
        momentum: Variable,
        velocity: Variable,
        velocity_hat: Variable | None = None,
    ) -> None:
        m = momentum + (gradient - momentum) * (1 - self.beta_1)
        v = velocity + (square(gradient) - velocity) * (1 - self.beta_2)
        momentum.assign(m)
        velocity.assign(v)
        if velocity_hat is not None:
            v = maximum(velocity_hat, v)
            velocity_hat.assign(v)
        variable.assign_sub(m * alpha / (sqrt(v) + self.epsilon))


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017), 0.004 unless said otherwise."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        weight_decay: float = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **options: Any,
    ):
        super().__init__(learning_rate, beta_1, beta_2, epsilon, amsgrad, weight_decay=weight_decay, **options)
        if weight_decay is None:
            raise ValueError("AdamW: weight_decay must be a number; use Adam without one")


class Adamax(Optimizer):
    """Adam with the running maximum of the gradient's size in place of the root mean square (Kingma and Ba 2014,
    section 7.1)."""

    slots: Mapping[str, float] = {"momentum": 0.0, "norm": 0.0}

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **options: Any,
    ):
        super().__init__(learning_rate, **options)
        self.beta_1, self.beta_2 = number(self, "beta_1", beta_1, BETA), number(self, "beta_2", beta_2, BETA)
        self.epsilon = number(self, "epsilon", epsilon, EPSILON)

    def common(self, rate: Tensor) -> tuple[Tensor, ...]:
        return (rate / (1 - pow(self.beta_1, self._updates())),)

    def update(  # type: ignore[override]
        self, variable: Variable, gradient: Tensor, alpha: Tensor, *, momentum: Variable, norm: Variable
    ) -> None:
        m = momentum + (gradient - momentum) * (1 - self.beta_1)
        u = maximum(norm * self.beta_2, abs(gradient))
        momentum.assign(m)
        norm.assign(u)
        variable.assign_sub(m * alpha / (u + self.epsilon))


class Nadam(Adam):
    """Adam with Nesterov momentum, whose weight grows towards beta_1 (Dozat 2016)."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **options: Any,
    ):
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **options)
        self._product = Variable(np.float64(1.0), trainable=False, name="product")

    def named_variables(self) -> dict[str, Variable]:
        return {**super().named_variables(), "product": self._product}

    def common(self, rate: Tensor) -> tuple[Tensor, ...]:
        t = self._updates()
        now, following = (self.beta_1 * (1 - 0.5 * pow(0.96, n)) for n in (t, t + 1))
        product = self._product * now
        self._product.assign(product)
        return (rate * following / (1 - product * following), rate * (1 - now) / (1 - product),
                1 / (1 - pow(self.beta_2, t)))

    def update(  # type: ignore[override]
        self,
        variable: Variable,
        gradient: Tensor,
        by_mean: Tensor,
        by_gradient: Tensor,
        correction: Tensor,
        *,
        momentum: Variable,
        velocity: Variable,
    ) -> None:
        m = momentum + (gradient - momentum) * (1 - self.beta_1)
        v = velocity + (square(gradient) - velocity) * (1 - self.beta_2)
        momentum.assign(m)
        velocity.assign(v)
        variable.assign_sub((m * by_mean + gradient * by_gradient) / (sqrt(v * correction) + self.epsilon))


class RMSprop(Optimizer):
    """The gradient over the root of the running mean of its square (Hinton 2012). centered: of its variance. momentum:
    what is taken off the Variable is a running sum of such steps.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        **options: Any,
    ):
        super().__init__(learning_rate, **options)
        self.rho, self.momentum = number(self, "rho", rho, BETA), number(self, "momentum", momentum, "[0, 1]")
        self.epsilon, self.centered = number(self, "epsilon", epsilon, EPSILON), centered
        kept = ("velocity", *(("momentum",) if momentum else ()), *(("average_gradient",) if centered else ()))
        self.slots = dict.fromkeys(kept, 0.0)

    def update(  # type: ignore[override]
        self,
        variable: Variable,
        gradient: Tensor,
        rate: Tensor,
        *,
        velocity: Variable,
        momentum: Variable | None = None,
        average_gradient: Variable | None = None,
    ) -> None:
        v = velocity * self.rho + square(gradient) * (1 - self.rho)
        velocity.assign(v)
        if average_gradient is not None:
            mean = average_gradient * self.rho + gradient * (1 - self.rho)
            average_gradient.assign(mean)
            v = v - square(mean)
        step = gradient * rate / sqrt(v + self.epsilon)
        if momentum is not None:
            step = momentum * self.momentum + step
            momentum.assign(step)
        variable.assign_sub(step)


class Adagrad(Optimizer):
    """The gradient over the root of the sum of all its squares so far (Duchi et al. 2011)."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        **options: Any,
    ):
        super().__init__(learning_rate, **options)
        self.epsilon = number(self, "epsilon", epsilon, EPSILON)
        first = number(self, "initial_accumulator_value", initial_accumulator_value, "[0, inf)")
        self.slots = {"accumulator": first}

    def update(self, variable: Variable, gradient: Tensor, rate: Tensor, *, accumulator: Variable) -> None:  # type: ignore[override]
        total = accumulator + square(gradient)
        accumulator.assign(total)
        variable.assign_sub(gradient * rate / sqrt(total + self.epsilon))


class Adadelta(Optimizer):
    """Steps as large as the root mean square of the steps before, by the gradient over its own (Zeiler 2012)."""

    slots: Mapping[str, float] = {"accumulated_gradient": 0.0, "accumulated_step": 0.0}

    def __init__(self, learning_rate: Any = 0.001, rho: float = 0.95, epsilon: float = 1e-7, **options: Any):
        super().__init__(learning_rate, **options)
        self.rho, self.epsilon = number(self, "rho", rho, BETA), number(self, "epsilon", epsilon, EPSILON)

    def update(  # type: ignore[override]
        self,
        variable: Variable,
        gradient: Tensor,
        rate: Tensor,
        *,
        accumulated_gradient: Variable,
        accumulated_step: Variable,
    ) -> None:
        squares = accumulated_gradient * self.rho + square(gradient) * (1 - self.rho)
        step = gradient * sqrt(accumulated_step + self.epsilon) / sqrt(squares + self.epsilon)
        accumulated_gradient.assign(squares)
        accumulated_step.assign(accumulated_step * self.rho + square(step) * (1 - self.rho))
        variable.assign_sub(step * rate)


class Lion(Optimizer):
    """Steps of the rate itself in each element, with the sign of a mean of gradient and momentum (Chen et al. 2023)."""

    slots: Mapping[str, float] = {"momentum": 0.0}

    def __init__(self, learning_rate: Any = 0.001, beta_1: float = 0.9, beta_2: float = 0.99, **options: Any):
        super().__init__(learning_rate, **options)
        self.beta_1, self.beta_2 = number(self, "beta_1", beta_1, "(0, 1]"), number(self, "beta_2", beta_2, "[0, 1]")

    def update(self, variable: Variable, gradient: Tensor, rate: Tensor, *, momentum: Variable) -> None:  # type: ignore[override]
        direction = sign(momentum * self.beta_1 + gradient * (1 - self.beta_1))
        momentum.assign(momentum * self.beta_2 + gradient * (1 - self.beta_2))
        variable.assign_sub(direction * rate)


# -- loss scaling ------------------------------------------------------------------------------------------------------
class LossScaleOptimizer(Module):
    """An optimizer for gradients of few bits: the loss is multiplied by a scale, so that its gradients do not vanish,
    and they are divided by it again. A step whose gradients are not finite is left out and halves the scale;
    `dynamic_growth_steps` good ones in a row double it (Micikevicius et al. 2018; Keras' class of that name).

    >>> w = Variable([1.0])
    >>> opt = LossScaleOptimizer(SGD(0.5), initial_scale=4.0)
    >>> with GradientTape() as tape:
    ...     loss = opt.scale_loss((w * w).sum())
    >>> step = opt.apply_gradients([(tape.gradient(loss, w), w)])
    >>> w.numpy()
    array([0.], dtype=float32)
    """

    def __init__(self, inner_optimizer: Optimizer, initial_scale: float = 32768.0, dynamic_growth_steps: int = 2000,
                 name: str | None = None):
        if not isinstance(inner_optimizer, Optimizer):
            raise TypeError(f"LossScaleOptimizer wraps an optimizer, not {type(inner_optimizer).__name__}")
        number(self, "initial_scale", initial_scale, "(0, inf)")
        self.name = name
        self.inner_optimizer = inner_optimizer
        self.dynamic_growth_steps = whole(self, "dynamic_growth_steps", dynamic_growth_steps)
        self.scale = Variable(np.float64(initial_scale), trainable=False, name="scale")
        self.good_steps = Variable(np.int64(0), trainable=False, name="good_steps")

    def scale_loss(self, loss: Any) -> Tensor:
        """The loss times the scale, to differentiate."""
        loss = core.as_tensor(loss)
        return loss * cast(self.scale, loss.dtype)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Variable]]) -> Any:
        """Divide the gradients by the scale and apply them, if they are all finite."""
        gradients, trained = self.inner_optimizer._checked(grads_and_vars)
        self.inner_optimizer.build(trained)
        _scaled_step(self, gradients, trained)
        return self.iterations

    def minimize(self, loss: Callable[[], Any], var_list: Any = None) -> Tensor:
        """Compute the gradients of the scaled loss and apply them; gives the loss."""
        with GradientTape() as tape:
            value = loss()
            scaled = self.scale_loss(value)
        found = tape.watched_variables() if var_list is None else var_list() if callable(var_list) else var_list
        trained = list(found)
        self.apply_gradients(zip(tape.gradient(scaled, trained), trained))
        return value

    def build(self, variables: Iterable[Variable]) -> None:
        """Make the slots of the wrapped optimizer."""
        self.inner_optimizer.build(variables)

    @property
    def learning_rate(self) -> Any:
        """The wrapped optimizer's."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner_optimizer.learning_rate = value

    @property
    def iterations(self) -> Any:
        """The steps that were not left out."""
        return self.inner_optimizer.iterations

    def named_variables(self) -> dict[str, Variable]:
        inner = {f"inner/{name}": v for name, v in self.inner_optimizer.named_variables().items()}
        return {"scale": self.scale, "good_steps": self.good_steps, **inner}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state()` gave, as `Optimizer.load_state`."""
        own = {"scale": self.scale, "good_steps": self.good_steps}
        inner = {name.removeprefix("inner/"): value for name, value in state.items() if name.startswith("inner/")}
        missing = [n for n in own if n not in state]
        unknown = [n for n in state if n not in own and not n.startswith("inner/")]
        if missing or unknown:
            raise ValueError(f"{self.name}: this state does not fit: no value for {missing}, unknown {unknown}")
        self.inner_optimizer.load_state(inner)
        for name, v in own.items():
            v.assign(state[name])


@function
def _scaled_step(opt: LossScaleOptimizer, gradients: Sequence[Tensor], trained: Sequence[Variable]) -> None:
    finite: Any = None
    for g in gradients:
        ok = all(isfinite(g))
        finite = ok if finite is None else finite & ok

    def good() -> None:
        opt.inner_optimizer._apply([g / cast(opt.scale, g.dtype) for g in gradients], trained)
        grown = opt.good_steps + 1 == opt.dynamic_growth_steps
        opt.scale.assign(where(grown, opt.scale * 2, opt.scale))
        opt.good_steps.assign(where(grown, 0, opt.good_steps + 1))

    def bad() -> None:
        opt.scale.assign(opt.scale / 2)
        opt.good_steps.assign(0)

    cond(finite, good, bad)


_BY_NAME: dict[str, type[Optimizer]] = {
    c.__name__.lower(): c
    for c in (SGD, Momentum, Adam, AdamW, Adamax, Nadam, RMSprop, Adagrad, Adadelta, Lion)
}


def get(optimizer: Any) -> Any:
    """An optimizer from its name or class, with default options; an optimizer itself.

    >>> get("adam")
    <tj.optimizers.Adam learning_rate=0.001>
    """
    if isinstance(optimizer, str):
        found = _BY_NAME.get(optimizer.lower())
        if found is None:
            raise ValueError(f"no optimizer is called {optimizer!r}; known: {', '.join(sorted(_BY_NAME))}")
        return found()
    if isinstance(optimizer, type) and issubclass(optimizer, Optimizer):
        return optimizer()
    if isinstance(optimizer, (Optimizer, LossScaleOptimizer)):
        return optimizer
    raise TypeError(f"an optimizer or its name, not {type(optimizer).__name__}")
