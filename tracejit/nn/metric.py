"""`Metric`: a number about all batches so far, and the metrics that others are made of: `Sum`, `Mean`.

In: values, batch by batch. Out: one number. The state is in Variables (sums in double precision), so `update_state`
works inside a compiled step, and checkpoints can hold it.

Read next: `metrics.py` (the namespace), `decisions.py` (metrics that count decisions: precision, recall, AUC).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.nn import initializers
from tracejit.nn.module import Module, traceable
from tracejit.nn.options import a_function
from tracejit.nn.weighting import aligned, alike, floats, quotient
from tracejit.ops import core
from tracejit.ops.elementwise import cast
from tracejit.ops.reduction import sum
from tracejit.ops.statistics import mean
from tracejit.tensor import Tensor
from tracejit.variable import Variable


class Metric(Module):
    """Base class: `update_state(y_true, y_pred, sample_weight=None)` takes a batch in, `result()` gives the number,
    `reset_state()` starts again. Calling it takes a batch in and gives the result so far.

    A subclass makes its Variables with `add_variable`, in `__init__`.

    >>> class Largest(Metric):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.found = self.add_variable((), fill=-np.inf)
    ...     def update_state(self, values):
    ...         self.found.assign(np.maximum(self.found, core.as_tensor(values).max()))
    ...     def result(self):
    ...         return self.found.read_value()
    >>> m = Largest()
    >>> m([1.0, 3.0]).item(), m([2.0]).item()
    (3.0, 3.0)
    """

    def __init__(self, name: str | None = None):
        if name is not None:
            self.name = name
        self._starts: list[tuple[Variable, np.ndarray]] = []

    _not_owned = frozenset(("_starts",))

    def add_variable(self, shape: tuple[int, ...] = (), fill: float = 0.0, dtype: Any = "float64",
                     name: str | None = None, initializer: Any = None) -> Variable:
        """A Variable of its state, which `reset_state` fills again: with `fill`, or what an initializer gives."""
        if initializer is None:
            start = np.full(shape, fill, dtypes.as_dtype(dtype))
        else:
            start = np.asarray(initializers.get(initializer)(tuple(shape), dtypes.as_dtype(dtype)))
        made = Variable(start, trainable=False, name=name)
        self._starts.append((made, start))
        return made

    def add_weight(self, shape: tuple[int, ...] = (), initializer: Any = None, dtype: Any = "float64",
                   name: str | None = None) -> Variable:
        """`add_variable`, by the name and order of Keras."""
        return self.add_variable(shape, 0.0, dtype, name, initializer)

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Take a batch in."""
        raise NotImplementedError(f"{type(self).__name__} must define update_state")

    def result(self) -> Tensor:
        """The number for all batches since the last reset."""
        raise NotImplementedError(f"{type(self).__name__} must define result")

    def reset_state(self) -> None:
        """Forget all batches."""
        for variable, start in self._starts:
            variable.assign(start)

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        traceable(self.update_state)(*args, **kwargs)
        return traceable(self.result)()  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<tj.metrics.{type(self).__name__} {self.name}>"


class Sum(Metric):
    """The sum of values times their weights.

    >>> m = Sum()
    >>> m.update_state([1.0, 3.0]); m.update_state([5.0], sample_weight=0.5)
    >>> m.result().item()
    6.5
    """

    def __init__(self, name: str | None = None):
        super().__init__(name)
        self.total = self.add_variable(name="total")

    def update_state(self, values: Any, sample_weight: Any = None) -> None:  # type: ignore[override]
        v, w = _samples(values, sample_weight)
        self.total.assign_add(_total(v if w is None else v * w))

    def result(self) -> Tensor:
        return cast(self.total, dtypes.default_float())


class Mean(Metric):
    """The mean of values by their weights; 0 before the first.

    >>> m = Mean()
    >>> m.update_state([1.0, 3.0, 5.0]); m.update_state([9.0], sample_weight=3.0)
    >>> m.result().item()
    6.0
    """

    def __init__(self, name: str | None = None):
        super().__init__(name)
        self.total = self.add_variable(name="total")
        self.count = self.add_variable(name="count")

    def update_state(self, values: Any, sample_weight: Any = None) -> None:  # type: ignore[override]
        v, w = _samples(values, sample_weight)
        self.total.assign_add(_total(v if w is None else v * w))
        if w is None:
            self.count.assign_add(v.size)
        else:
            self.count.assign_add(_total(core.broadcast_to(w, v.shape)))

    def result(self) -> Tensor:
        return cast(quotient(self.total.read_value(), self.count.read_value()), dtypes.default_float())


def _samples(values: Any, weight: Any) -> tuple[Tensor, Tensor | None]:
    """Values and weights that broadcast to them. Values with more dims than their weights have are averaged over the
    rest, so that each weight belongs to one of them."""
    v = floats(values)
    if weight is None:
        return v, None
    w = core.as_tensor(weight)
    v, w = alike(v, w)
    if 0 < w.ndim < v.ndim:
        v = mean(v, axis=tuple(range(w.ndim, v.ndim)))
    return v, aligned(v, w)


def _total(x: Tensor) -> Tensor:
    return sum(cast(x, dtypes.float64))


class MeanMetricWrapper(Mean):
    """The mean of a function of targets and predictions, which gives one number for each sample.

    >>> m = MeanMetricWrapper(lambda y_true, y_pred: abs(y_true - y_pred))
    >>> m.update_state([1.0, 2.0], [1.0, 4.0])
    >>> m.result().item()
    1.0
    """

    def __init__(self, fn: Callable[..., Any], name: str | None = None, **options: Any):
        super().__init__(name or getattr(fn, "__name__", None))
        self._fn, self._arguments = a_function(self, "fn", fn), options

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # type: ignore[override]
        true, pred = core.strong(core.as_tensor(y_true)), core.strong(core.as_tensor(y_pred))
        found = traceable(self._fn)(true, pred, **self._arguments)
        if found is None:
            raise TypeError(f"{self.name}: a metric must give a number for each sample, but it gave None; is there a "
                            f"return in it?")
        super().update_state(found, sample_weight)
