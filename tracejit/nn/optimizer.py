"""`Optimizer`: what all optimizers share: the learning rate, slots, clipping, weight decay, accumulation, state.

In: gradients and the Variables they belong to. Out: the Variables, changed. The rule itself is the method `update` of a
subclass; `slots` says which Variables it keeps next to each trained one. Everything is tensor arithmetic on Variables:
inside a compiled training step the updates of all Variables become kernels of that program, and called from plain
Python, `apply_gradients` is one compiled function. The learning rate is a Variable, or worked out from the step
(`schedules.py`), so that changing it never asks for a new trace. Names and order of things are those of Keras 3.

Read next: `optimizers.py` (the rules).
"""

from __future__ import annotations

import re
import warnings
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tracejit.dtypes import float64
from tracejit.function import Function
from tracejit.nn import options
from tracejit.nn.module import Module, traceable
from tracejit.nn.options import number, several, whole
from tracejit.nn.schedules import LearningRateSchedule
from tracejit.ops import core
from tracejit.ops.control import cond
from tracejit.ops.elementwise import cast, clip, maximum, sqrt, square, where
from tracejit.ops.reduction import sum
from tracejit.tape import GradientTape
from tracejit.tensor import Tensor, recording, state
from tracejit.trace.reading import aside
from tracejit.variable import Variable


class Optimizer(Module):
    """Base class. A subclass names the Variables it keeps for each trained one in `slots`, with what they are filled
    with at first, and has the rule in `update`.

    >>> class Plain(Optimizer):
    ...     def update(self, variable, gradient, rate):
    ...         variable.assign_sub(rate * gradient)
    >>> w = Variable([1.0, 2.0])
    >>> step = Plain(learning_rate=0.5).apply_gradients([(Tensor([1.0, 1.0]), w)])
    >>> w.numpy(), int(step)
    (array([0.5, 1.5], dtype=float32), 1)

    learning_rate: a number, a schedule, or a function without arguments. weight_decay: each step takes that part,
    times the learning rate, off the Variable itself (Loshchilov and Hutter 2017). clipvalue, clipnorm,
    global_clipnorm: bounds of each element, of each gradient's norm, of the norm of all gradients together; at most
    one. gradient_accumulation_steps: the mean of so many gradients makes one update. use_ema: keep the exponential
    moving average of each trained Variable, with `ema_momentum`; `finalize_variable_values` puts it in its place,
    and so does every `ema_overwrite_frequency`-th step.
    """

    slots: Mapping[str, float] = {}
    _not_owned = frozenset(("_trained", "_undecayed", "_waiting", "_compiled"))

    def __init__(
        self,
        learning_rate: Any = 0.001,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        gradient_accumulation_steps: int | None = None,
        name: str | None = None,
        **unknown: Any,
    ):
        if unknown:
            raise options.unknown(self, unknown)
        bounds = {"clipnorm": clipnorm, "clipvalue": clipvalue, "global_clipnorm": global_clipnorm}
        given = [f"{k}={v}" for k, v in bounds.items() if v is not None]
        if len(given) > 1:
            raise ValueError(f"{type(self).__name__}: only one of clipnorm, clipvalue and global_clipnorm can be set, "
                             f"got {', '.join(given)}")
        for k, v in bounds.items():
            if v is not None:
                number(self, k, v, "(0, inf)")
        if weight_decay is not None:
            number(self, "weight_decay", weight_decay, "[0, inf)")
        if gradient_accumulation_steps is not None:
            whole(self, "gradient_accumulation_steps", gradient_accumulation_steps, 2)
        if ema_overwrite_frequency is not None:
            whole(self, "ema_overwrite_frequency", ema_overwrite_frequency)
        number(self, "ema_momentum", ema_momentum, "[0, 1]")
        self.clipnorm, self.clipvalue, self.global_clipnorm = clipnorm, clipvalue, global_clipnorm
        self.weight_decay = weight_decay
        self.use_ema, self.ema_momentum = use_ema, ema_momentum
        self.ema_overwrite_frequency = ema_overwrite_frequency
        self.gradient_accumulation_steps = gradient_accumulation_steps
        if name is not None:
            self.name = name
        self._steps = Variable(np.int64(0), trainable=False, name="iterations")  # calls of apply_gradients
        self._rate: Any = None
        self._set_rate(learning_rate)
        self._trained: list[Variable] = []
        self._slots: list[dict[str, Variable]] = []  # next to each of them
        self._undecayed: tuple[list[Variable], list[str]] = [], []  # Variables and names without weight decay
        self._waiting: dict[str, Any] = {}  # values of slots that do not exist yet
        # by the ids of the Variables; no dict, since compiled functions watch the dicts that they reach
        self._compiled: UserDict[tuple[int, ...], Callable[..., Any]] = UserDict()

    # -- the learning rate ---------------------------------------------------------------------------------------------
    @property
    def learning_rate(self) -> Any:
        """A Variable, which may be assigned to (or set: `opt.learning_rate = 0.01`), also between calls of compiled
        functions; with a schedule, its value for the next step."""
        return self._rate if isinstance(self._rate, Variable) else self._rate_now()

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._set_rate(value)

    def _set_rate(self, value: Any) -> None:
        if value is None or isinstance(value, str):
            raise TypeError(f"{self.name}: learning_rate must be a number, a schedule or a function, got {value!r}")
        if callable(value) and not isinstance(value, Tensor):
            self._rate = value
            return
        value = number(self, "learning_rate", value, "[0, inf)")
        if isinstance(self._rate, Variable):
            self._rate.assign(cast(value, float64))
        else:
            self._rate = Variable(np.float64(value), trainable=False, name="learning_rate")

    def _rate_now(self) -> Tensor:
        if isinstance(self._rate, Variable):
            return self._rate.read_value()
        rate = traceable(self._rate)
        return cast(rate(self.iterations) if isinstance(self._rate, LearningRateSchedule) else rate(), float64)

    @property
    def iterations(self) -> Any:
        """The number of updates so far, an int64 Variable (a tensor where gradients are accumulated)."""
        n = self.gradient_accumulation_steps
        return self._steps if n is None else self._steps // n

    # -- training ------------------------------------------------------------------------------------------------------
    def minimize(self, loss: Any, var_list: Any = None, tape: GradientTape | None = None) -> Tensor:
        """Compute the gradients of `loss` and apply them; gives the loss.

        loss: a function without arguments; or a tensor, with the `tape` that recorded it. var_list: Variables, or a
        function that gives them; None: those the tape has seen.
        """
        if callable(loss) and not isinstance(loss, Tensor):
            with tape or GradientTape() as tape:
                value = loss()
        elif tape is None:
            raise ValueError("minimize: a loss that is a tensor needs the tape that recorded it, tape=")
        else:
            value = loss
        found = tape.watched_variables() if var_list is None else var_list() if callable(var_list) else var_list
        if value is None:
            raise TypeError(f"{self.name}: minimize needs a loss, but the function gave None; is there a return in it?")
        trained = list(found)
        self.apply_gradients(zip(tape.gradient(value, trained), trained))
        return value

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Variable]]) -> Any:
        """Change each Variable by its gradient; pairs (gradient, Variable). Gives `iterations`.

        A gradient that is None leaves its Variable alone, with a warning. ValueError if all are None, and for a
        gradient whose shape is not the Variable's.
        """
        gradients, trained = self._checked(grads_and_vars)
        self.build(trained)
        if state.trace is not None:
            self._apply(gradients, trained)
        else:
            key = tuple(map(id, trained))
            compiled = self._compiled.get(key)
            if compiled is None:
                compiled = self._compiled[key] = Function(_bound(self._apply, trained))
            compiled(*gradients)
        return self.iterations

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Variable] | None = None) -> None:
        """Keras 3's order of arguments; without Variables, those of the last `build`."""
        trained = self._trained if trainable_variables is None else trainable_variables
        if len(grads) != len(trained):
            raise ValueError(f"{self.name}: {len(grads)} gradients for {len(trained)} Variables")
        self.apply_gradients(zip(grads, trained))

    @aside
    def build(self, variables: Iterable[Variable]) -> None:
        """Make the slots of these Variables. Not needed: the first step does it."""
        known = {id(v) for v in self._trained}
        with recording(None):  # not part of a trace under way, which then serves later calls too
            for variable in variables:
                if id(variable) not in known:
                    known.add(id(variable))
                    self._trained.append(variable)
                    self._slots.append(self._new_slots(variable, len(self._slots)))

    def _checked(self, grads_and_vars: Iterable[tuple[Any, Variable]]) -> tuple[list[Tensor], list[Variable]]:
        """The gradients that are not None and their Variables."""
        gradients, trained, without = [], [], []
        seen: set[int] = set()
        for pair in several(self, "grads_and_vars", grads_and_vars, "pairs (gradient, Variable)"):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[1], Variable):
                hint = "; the gradient comes first" if isinstance(pair, tuple) and isinstance(pair[0], Variable) else ""
                raise TypeError(f"{self.name}: pairs are (gradient, Variable), got {pair!r}{hint}")
            gradient, variable = pair
            if variable.dtype.kind not in "fc":
                raise TypeError(f"{self.name}: Variable '{variable.name}' of dtype {variable.dtype} cannot be trained")
            if id(variable) in seen:
                raise ValueError(f"{self.name}: Variable '{variable.name}' is given twice")
            seen.add(id(variable))
            if gradient is None:
                without.append(variable.name)
                continue
            g = core.as_tensor(gradient)
            if g.shape != variable.shape:
                raise ValueError(f"{self.name}: the gradient of Variable '{variable.name}' has shape {g.shape}, and "
                                 f"the Variable {variable.shape}")
            gradients.append(core.cast(g, variable.dtype))
            trained.append(variable)
        if not gradients:
            raise ValueError(f"{self.name}: no gradients for any Variable of: {', '.join(without) or 'an empty list'}; "
                             f"does the loss depend on them?")
        if without:
            warnings.warn(f"{self.name}: no gradient for {', '.join(without)}; does the loss depend on it?",
                          stacklevel=3)
        return gradients, trained

    def _apply(self, gradients: Sequence[Tensor], trained: Sequence[Variable]) -> None:
        slots = self._slots_of(trained)
        n = self.gradient_accumulation_steps
        if n is None:
            self._update_all(gradients, trained, slots)
        else:
            kept = [s["gradients"] for s in slots]
            first = self._steps % n == 0  # what is kept from the round before does not count

            def update() -> None:
                self._update_all([(a + g) / n for a, g in zip(kept, gradients)], trained, slots)

            def wait() -> None:
                for a, g in zip(kept, gradients):
                    a.assign(where(first, g, a + g))

            cond((self._steps + 1) % n == 0, update, wait)
        self._steps.assign_add(1)
        if self.use_ema:
            self._average(trained, slots)

    def _update_all(
        self, gradients: Sequence[Tensor], trained: Sequence[Variable], slots: Sequence[Mapping[str, Variable]]
    ) -> None:
        rate = self._rate_now()
        common = self.common(rate)
        for g, v, kept in zip(self._clipped(gradients), trained, slots):
            if self.weight_decay is not None and self._decays(v):
                v.assign_sub(v * cast(rate * self.weight_decay, v.dtype))
            traceable(self.update)(v, g, *(cast(c, v.dtype) for c in common), **self._of_rule(kept))

    @aside
    def _slots_of(self, trained: Sequence[Variable]) -> list[dict[str, Variable]]:
        at = {id(v): k for k, v in enumerate(self._trained)}
        return [self._slots[at[id(v)]] for v in trained]

    @aside
    def _of_rule(self, kept: Mapping[str, Variable]) -> dict[str, Variable]:
        return {name: kept[name] for name in self.slots}

    def common(self, rate: Tensor) -> tuple[Tensor, ...]:
        """What `update` gets after the gradient, worked out once for all Variables, in double precision."""
        return (rate,)

    def update(self, variable: Variable, gradient: Tensor, *common: Tensor, **slots: Variable) -> None:
        """Change one Variable and its slots. What `common` gives has been cast to the Variable's dtype."""
        raise NotImplementedError(f"{type(self).__name__} must define update(variable, gradient, rate, **slots)")

    def _updates(self) -> Tensor:
        """The number of the update under way, from 1."""
        return cast(self.iterations, float64) + 1

    def _clipped(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        if self.clipvalue is not None:
            return [clip(g, -self.clipvalue, self.clipvalue) for g in gradients]
        if self.clipnorm is not None:
            return [clip_by_global_norm([g], self.clipnorm)[0][0] for g in gradients]
        if self.global_clipnorm is not None:
            return clip_by_global_norm(gradients, self.global_clipnorm)[0]
        return gradients

    # -- weight decay and averages -------------------------------------------------------------------------------------
    def exclude_from_weight_decay(
        self, var_list: Iterable[Variable] | None = None, var_names: Iterable[str] | None = None
    ) -> None:
        """Leave these Variables, and those whose name has one of these patterns in it, without weight decay."""
        self._undecayed = list(var_list or ()), list(var_names or ())

    @aside
    def _decays(self, variable: Variable) -> bool:
        variables, names = self._undecayed
        return not any(v is variable for v in variables) and not any(re.search(n, variable.name) for n in names)

    def _average(self, trained: Sequence[Variable], slots: Sequence[Mapping[str, Variable]]) -> None:
        for v, kept in zip(trained, slots):
            # the first average is the value itself
            keep = where(self._steps == 1, 0.0, self.ema_momentum)
            kept["average"].assign(v + cast(keep, v.dtype) * (kept["average"] - v))
        n = self.ema_overwrite_frequency
        if n is not None:
            now = self._steps % n == 0
            for v, kept in zip(trained, slots):
                v.assign(where(now, kept["average"], v))

    def finalize_variable_values(self, var_list: Iterable[Variable]) -> None:
        """Put the moving averages in place of these Variables' values (`use_ema=True`)."""
        if not self.use_ema:
            raise ValueError(f"{self.name}: there are no averages; make it with use_ema=True")
        at = {id(v): k for k, v in enumerate(self._trained)}
        for v in var_list:
            if id(v) in at:
                v.assign(self._slots[at[id(v)]]["average"])

    # -- state ---------------------------------------------------------------------------------------------------------
    def _new_slots(self, variable: Variable, position: int) -> dict[str, Variable]:
        fills = dict(self.slots)
        if self.gradient_accumulation_steps is not None:
            fills["gradients"] = 0.0
        if self.use_ema:
            fills["average"] = 0.0
        made = {}
        for name, fill in fills.items():
            first = self._waiting.pop(f"slots/{position}/{name}", None)
            if first is None:
                first = np.full(variable.shape, fill, variable.dtype)
            elif np.shape(first) != variable.shape:
                raise ValueError(f"{self.name}: the value that was loaded for '{name}' of Variable '{variable.name}' "
                                 f"has shape {np.shape(first)}, and the Variable {variable.shape}")
            owner = variable.name.removesuffix(":0")
            made[name] = Variable(np.asarray(first, variable.dtype), trainable=False, name=f"{owner}_{name}")
        return made

    def named_variables(self) -> dict[str, Variable]:
        """Its own Variables: "iterations", "learning_rate" unless there is a schedule, and "slots/0/velocity" for the
        slot `velocity` of the first trained Variable."""
        found = {"iterations": self._steps}
        if isinstance(self._rate, Variable):
            found["learning_rate"] = self._rate
        for k, kept in enumerate(self._slots):
            found.update({f"slots/{k}/{name}": v for name, v in kept.items()})
        return found

    @property
    def variables(self) -> list[Variable]:
        """Its own Variables: the step, the learning rate, and the slots."""
        return list(self.named_variables().values())

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state()` gave. Values of slots that do not exist yet wait for the first step; slots that the
        state knows nothing of start afresh.

        ValueError, before anything is assigned, if names are unknown, or missing, or shapes differ.
        """
        known = self.named_variables()
        own = [*self.slots, "gradients", "average"]
        problems = [f"no value for {n}" for n in ("iterations", "learning_rate") if n in known and n not in state]
        for name, value in state.items():
            if name in known:
                if np.shape(value) != known[name].shape:
                    problems.append(f"{name} has shape {known[name].shape}, and the value {np.shape(value)}")
            elif not (match := re.fullmatch(r"slots/\d+/(\w+)", name)) or match[1] not in own:
                problems.append(f"nothing is called {name}")
        if problems:
            raise ValueError(f"{self.name}: this state does not fit: {'; '.join(problems[:6])}")
        for name, v in known.items():
            if name in state:
                v.assign(state[name])
            else:
                v.assign(np.full(v.shape, self.slots.get(name.rsplit("/")[-1], 0.0), v.dtype))
        self._waiting = {name: np.array(value) for name, value in state.items() if name not in known}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": UserDict()}  # copies compile their own

    def __repr__(self) -> str:
        rate = float(self._rate) if isinstance(self._rate, Variable) else type(self._rate).__name__
        return f"<tj.optimizers.{type(self).__name__} learning_rate={rate}>"


def _bound(apply: Callable[..., None], trained: Sequence[Variable]) -> Callable[..., None]:
    def apply_gradients(*gradients: Tensor) -> None:
        apply(gradients, trained)

    return apply_gradients


def global_norm(tensors: Iterable[Any]) -> Tensor:
    """The Euclidean norm of all elements of all tensors together.

    >>> global_norm([Tensor([3.0]), Tensor([4.0])])
    tj.Tensor(5.0, shape=(), dtype=float32)
    """
    total: Any = None
    for t in tensors:
        part = sum(square(core.as_tensor(t)))
        total = part if total is None else total + part
    if total is None:
        raise ValueError("global_norm: no tensors")
    return sqrt(total)


def clip_by_global_norm(tensors: Iterable[Any], clip_norm: Any) -> tuple[list[Any], Tensor]:
    """The tensors, made smaller by one factor if their `global_norm` is over `clip_norm`; and that norm. None stays
    None. A norm that is not finite gives nan (Pascanu et al. 2013).

    >>> clipped, norm = clip_by_global_norm([Tensor([3.0]), None, Tensor([4.0])], 1.0)
    >>> clipped[0].numpy().round(4), norm.item()
    (array([0.6], dtype=float32), 5.0)
    """
    given = [None if t is None else core.as_tensor(t) for t in tensors]
    norm = global_norm([t for t in given if t is not None])
    factor = clip_norm / maximum(norm, clip_norm)
    return [None if t is None else t * cast(factor, t.dtype) for t in given], norm
