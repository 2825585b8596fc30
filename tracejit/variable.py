"""`Variable`: a tensor that keeps its place. Models store their state in it; a gradient tape watches it by itself.

In: an initial value, whose shape and dtype stay. Out: a handle that works wherever a tensor does. Assignments rebind
the handle, so what was read from it before never changes; inside a traced function they become outputs, written back
after each call.

Read next: `tape.py`.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.ir import Node
from tracejit.locks import fork_safe
from tracejit.ops import core
from tracejit.ops.marks import identity
from tracejit.quiet import quietly
from tracejit.tensor import Tensor, apply, owned, recording, state, to_array, wrap


class Variable(Tensor):
    """A tensor with assignment, for state: weights, counters, running means.

    >>> v = Variable([1.0, 2.0])
    >>> v.assign_add([1.0, 1.0])
    <tj.Variable 'Variable:0' shape=(2,) dtype=float32, numpy=array([2., 3.], dtype=float32)>
    """

    __slots__ = ("lock", "name", "trainable")
    _place = True

    def __init__(self, value: Any, trainable: bool = True, name: str | None = None, dtype: Any = None):
        self.lock = fork_safe(threading.RLock())
        self.trainable = bool(trainable)
        self.name = f"{name or 'Variable'}:0"
        trace = state.trace
        if trace is not None:
            trace.create_variable(self, value, dtype)  # type: ignore[attr-defined]
        else:
            self._value = initial(value, dtype)

    # -- reading ---------------------------------------------------------------------------------------------------
    def read_value(self) -> Tensor:
        """What the variable holds now, as a tensor that later assignments do not change."""
        return apply(identity.op, (self,), {}) if state.active else wrap(self._value)  # type: ignore[attr-defined]

    value = read_value

    # -- writing ---------------------------------------------------------------------------------------------------
    def assign(self, value: Any) -> Variable:
        """Hold `value` from now on. It must have the variable's shape, and a dtype that fits."""
        new = self._fitting(value, "assign")
        with self._alone():
            core.rebind(self, new)
        return self

    def assign_add(self, value: Any) -> Variable:
        """Add `value` in place. No other thread's update is lost."""
        return self._update(np.add, self._fitting(value, "assign_add"))

    def assign_sub(self, value: Any) -> Variable:
        """Subtract `value` in place."""
        return self._update(np.subtract, self._fitting(value, "assign_sub"))

    def _alone(self) -> Any:
        """Held while the variable is read, changed and written. A trace borrows it for itself anyway."""
        return self.lock if state.trace is None else contextlib.nullcontext()

    def _update(self, ufunc: np.ufunc, value: Tensor) -> Variable:
        with self._alone():
            if owned(self):  # nobody else can see the buffer
                quietly(ufunc, self._value, value._value, out=self._value)
            else:
                core.rebind(self, core.NUMPY_FUNCTIONS[ufunc](self, value))
        return self

    def _fitting(self, value: Any, how: str) -> Tensor:
        """`value` as a tensor of the variable's shape and dtype; strict about both, as a variable never changes its
        type.
        """
        if isinstance(value, (list, tuple)):
            source = core.as_tensor(value).dtype
            fits = _rank(source) <= _rank(self.dtype)
            value = core.as_tensor(value, self.dtype) if fits else value
        elif isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic):
            source = dtypes.default_of(dtypes.weak_kind(value))
            fits = _rank(source) <= _rank(self.dtype)
            value = core.full(value, (), self.dtype) if fits else value
        else:
            value = core.as_tensor(value)
            source = value.dtype
            fits = _rank(source) <= _rank(self.dtype) if value._weak else np.can_cast(source, self.dtype, "same_kind")
        if not fits:
            raise TypeError(f"{how}: a {source} value does not fit {self.dtype} variable '{self.name}'; cast it first")
        if value.shape != self.shape:
            raise ValueError(f"{how}: shape {value.shape} does not fit variable '{self.name}' of shape {self.shape}")
        return core.cast(value, self.dtype)

    # -- being an object ----------------------------------------------------------------------------------------------
    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        facts = f"<tj.Variable {self.name!r} shape={self.shape} dtype={self.dtype.name}"
        if isinstance(self._value, Node):
            return f"{facts}, traced>"
        held = self._value
        return f"{facts}, numpy={str(held) if held.ndim == 0 else repr(held)}>"

    __str__ = __repr__

    def __copy__(self) -> Variable:
        return _restore(self._value, self.trainable, self.name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Variable:
        return _restore(self._value, self.trainable, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._leave("pickling"), self.trainable, self.name)


def _restore(value: Any, trainable: bool, name: str) -> Variable:
    v: Variable = object.__new__(Variable)
    v._value, v.trainable, v.name = value, trainable, name
    v.lock = fork_safe(threading.RLock())
    return v


def initial(value: Any, dtype: Any = None) -> np.ndarray:
    """The concrete array a variable starts with; a callable gives it. Nothing of it is recorded."""
    with recording(None):
        if callable(value) and not isinstance(value, Tensor):
            value = value()
        if isinstance(value, Tensor):
            value = core.cast(value, dtype or value.dtype)
            return np.ascontiguousarray(value._leave("the initial value of a Variable")).reshape(value.shape)
        return to_array(value, dtype)


def _rank(dtype: np.dtype) -> int:
    """Python's order of number kinds: bool, int, float, complex."""
    return "biufc".index(dtype.kind)


class Snapshot(Tensor):
    """What a variable held when an op read it. Tapes take it for the variable, so a derivative computed from kept
    values can be differentiated again."""

    __slots__ = ("source",)

    def __init__(self, value: Any, source: Variable):
        self._value = value
        self.source = source


def source_of(tensor: Tensor) -> Variable | None:
    """The variable that `tensor` is or was read from directly."""
    if isinstance(tensor, Variable):
        return tensor
    return tensor.source if isinstance(tensor, Snapshot) else None


