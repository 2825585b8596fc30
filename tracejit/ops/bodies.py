"""Tracing what control flow holds: a branch, a condition or a body becomes a graph of its own.

In: Python code, and the values that go in and come out (`Slot`). Out: `Region`, which records the code in a trace
inside the present one, and gives the graph with its inputs in an order shared with other regions of the same op.

Read next: `control.py` (the forms that users call), `trace/autograph/staging.py` (Python's own statements).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.errors import user_line
from tracejit.ir import INPUT, Graph, Node, Type
from tracejit.ops import core
from tracejit.ops.movement import reshaped
from tracejit.tensor import Tensor, recording, state
from tracejit.trees import flatten

_WEAK = {int: dtypes.int64, float: dtypes.float64, complex: dtypes.complex128}


# -- leaves ------------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Slot:
    """One leaf that goes around a loop or comes out of a branch. type None: not a tensor, the same `value` always."""

    value: Any
    type: Type | None
    weak: bool  # a Python number
    name: str

    @classmethod
    def of(cls, x: Any, name: str) -> Slot:
        if isinstance(x, Tensor):
            return cls(x, Type(x.shape, x.dtype), x._weak and x.dtype.kind != "b", name)
        if type(x) in _WEAK:
            return cls(x, Type((), _WEAK[type(x)]), True, name)
        if isinstance(x, (bool, np.ndarray, np.generic)):
            dtype = dtypes.bool_ if isinstance(x, bool) else dtypes.as_dtype(x.dtype)
            return cls(x, Type(np.shape(x), dtype), False, name)
        return cls(x, None, False, name)

    def tensor(self, dtype: np.dtype | None = None) -> Tensor:
        """The value in the slot's dtype."""
        assert self.type is not None
        dtype = self.type.dtype if dtype is None else dtype
        if self.weak and not isinstance(self.value, Tensor):
            return core.full(self.value, (), dtype)
        return core.cast(core.as_tensor(self.value), dtype)

    def __str__(self) -> str:
        if self.type is None:
            named = isinstance(self.value, types.FunctionType | types.BuiltinFunctionType | type)
            return f"the function {self.value.__name__}" if named else f"{self.value!r:.60}"
        return (
            f"a Python {self.type.dtype.kind.replace('i', 'int').replace('f', 'float')}"
            if self.weak
            else f"{self.type!r}"
        )


def together(slots: Sequence[Slot]) -> tuple[np.dtype, bool]:
    """The dtype that holds all of them, and whether it is weak."""
    strong = [s.type.dtype for s in slots if s.type is not None and not s.weak]
    weak = [s.type.dtype.kind for s in slots if s.type is not None and s.weak]
    if not strong:
        return _WEAK[{"i": int, "f": float, "c": complex}[max(weak, key="ifc".index)]], True
    return dtypes.result_dtype(strong, weak), False


def same_value(a: Any, b: Any) -> bool:
    if a is b:
        return True
    try:
        return bool(type(a) is type(b) and a == b)
    except Exception:
        return False


# -- tracing a branch or a body ----------------------------------------------------------------------------------------
class Region:
    """A branch, a condition or a body. `run` traces it; `graph` gives it inputs in an order shared with others."""

    def __init__(self, name: str):
        self.trace: Any = state.trace.nested(name)  # type: ignore[union-attr]
        self.inputs: list[Node] = []
        self.leaves: list[Any] = []
        self.spec: Any = None
        self.written: list[tuple[Tensor, Tensor]] = []  # handles from outside, and what they hold at the end

    def input(self, slot: Slot) -> Any:
        """What stands for a slot inside."""
        if slot.type is None:
            return slot.value
        t = self.trace.input(slot.type, slot.name)
        self.inputs.append(t._value)
        return core.as_number(t) if slot.weak else t

    def run(self, f: Callable[[], Any]) -> Any:
        """Trace f(); its result's leaves are kept."""
        try:
            with recording(self.trace):
                result = f()
                self.leaves, self.spec = flatten(result)
                self.leaves = [self.trace.read(x) if isinstance(x, Tensor) and not x._weak else x for x in self.leaves]
        finally:
            self.written = self.trace.close()
        return result

    def outputs(self, slots: Sequence[Slot]) -> list[Tensor]:
        """The leaves in the dtypes of the slots they go to."""
        with recording(self.trace):
            return [
                self.trace.read(Slot.of(x, "").tensor(s.type.dtype))
                for x, s in zip(self.leaves, slots, strict=True)
                if s.type is not None
            ]

    def handles(self) -> list[Tensor]:
        """What it takes from outside."""
        return [c.handle for c in self.trace.captured.values()]

    def graph(self, outputs: Sequence[Tensor], handles: Sequence[Tensor]) -> Graph:
        """The graph from the slots and then `handles` to `outputs`."""
        with recording(self.trace):
            found = self.trace.finish(outputs)
        inputs = [self.node_for(h) for h in handles]
        return Graph((*self.inputs, *inputs), found.nodes, found.outputs, found.name)

    def node_for(self, handle: Tensor) -> Node:
        """The input that stands for a handle from outside (a new one if the region does not read it)."""
        captured = self.trace.captured.get(id(handle))
        if captured is not None:
            return captured.node
        type = Type(handle.shape, handle.dtype)
        return Node(INPUT, (), {"type": type}, type)

    def last(self, handle: Tensor) -> Tensor:
        """What a handle from outside holds at the end."""
        for h, value in self.written:
            if h is handle:
                return value
        with recording(self.trace):
            return self.trace.read(handle)


def union(groups: Iterable[Iterable[Tensor]]) -> list[Tensor]:
    """Each handle once, in order."""
    return list({id(h): h for group in groups for h in group}.values())


def rebind_all(handles: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for h, value in zip(handles, values, strict=True):
        core.rebind(h, value)


def single(what: str, x: Any) -> Tensor:
    """A predicate or index as a 0-d tensor."""
    t = core.as_tensor(x)
    if t.size != 1:
        raise ValueError(
            f"{what} must be a single value, got shape {t.shape} (at {user_line()}); tj.where chooses by element, "
            f"or any() or all() to make one value of it"
        )
    return t if t.shape == () else reshaped(t, ())
