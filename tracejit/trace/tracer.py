"""The recorder: while a `Trace` is active, every op becomes a node of it.

In: ops arriving through `apply`. Out: nodes, and what the traced code took from outside: captured values (hidden
inputs), handles it wrote (extra outputs), Python numbers whose value it needed (guards).

A value met from outside is *captured*: its handle becomes a hidden input, read afresh at each call. Which handle that
is, and how to find it again, is known to `reach` (made by `captures.py`); a NumPy array that nothing outside reaches is
a local of the traced code, so it becomes a constant. A handle that is rebound inside stands for a node until `close`,
which gives it its value back.

Read next: `captures.py` (what is reachable), `function.py` (who uses a finished trace).
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracejit.errors import TracerError, user_line
from tracejit.ir import CONSTANT, GETITEM, INPUT, Graph, Node, Op, Type, reachable
from tracejit.locks import fork_safe
from tracejit.ops import core
from tracejit.quiet import quietly
from tracejit.tensor import Number, Tensor, evaluate, recording, state, wrap
from tracejit.trace.autograph import source

# A captured value of at most this many elements may be read by Python while tracing (`int(step)`); it is then guarded.
GUARD_LIMIT = 64
OBSERVE_LIMIT = 1 << 16  # elements of a value from outside that selects (a mask): it is compared at each call

# Held while a function is traced: a trace borrows handles (Variables), which other traces must not see meanwhile.
LOCK = fork_safe(threading.RLock(), awaited=True)

# Python numbers are traced in their own precision.
NUMBER_DTYPES: dict[type, str] = {int: "int64", float: "float64", complex: "complex128"}


@dataclass(slots=True, eq=False)
class Captured:
    """A value from outside: the handle it is read from at each call, and the input node that stands for it."""

    handle: Any  # a Tensor, or an np.ndarray
    node: Node
    path: Any = None  # how `captures.py` finds the handle again; None: always this one
    guard: np.ndarray | None = None  # its contents, if Python code has seen them


class Trace:
    """One recording. Use as `with recording(trace): ...` and call `close` when the code has run.

    reach(x): (handle, path, name) that `x` was found through, or None if only the traced code itself holds it.
    """

    def __init__(self, name: str = "graph", reach: Callable[[Any], tuple[Any, Any, str] | None] | None = None):
        self.name = name
        self.where = ""
        self.outer = state.trace
        self.reach = reach
        self.inputs: list[Node] = []
        self.nodes: list[Node] = []
        self.own: set[Node] = set()
        self.captured: dict[int, Captured] = {}  # by id of the handle
        self.numbers: dict[Node, int | float | complex] = {}  # inputs that are Python numbers, and their values now
        self.scalars: dict[Node, np.generic] = {}  # inputs that are NumPy scalars: Python sees them only if it has to
        self.needed: dict[Node, int | float | complex | np.generic] = {}  # those whose value the program needs
        self._originals: dict[
            int, tuple[Tensor, Any]
        ] = {}  # by id of a written handle from outside: it, and its value before
        self.created: list[tuple[Tensor, str]] = []  # Variables made inside, and where
        self._known: dict[
            Node, np.ndarray | None
        ] = {}  # value of nodes that depend on Python numbers only; None: unknown
        self.mentions: dict[str, tuple[Tensor, str | None]] = {}  # text for a value: the value, and how it is printed
        self._numbered: dict[Node, int] = {}
        self._snapshots: dict[
            int, tuple[np.ndarray, np.ndarray, Node]
        ] = {}  # by id: the array (kept alive), its copy, the constant

    # -- inputs --------------------------------------------------------------------------------------------------------
    def input(self, type: Type, name: str = "") -> Tensor:
        """A new parameter."""
        return wrap(self._input(type, name))

    def number(self, value: int | float | complex, name: str = "") -> Number:
        """A new parameter that stands for a Python number: 0-d and weak."""
        node = self._input(Type((), np.dtype(NUMBER_DTYPES[value.__class__])), name)
        self.numbers[node] = value
        return core.as_number(wrap(node))  # type: ignore[return-value]

    def adopt(self, handle: Tensor, type: Type, name: str = "") -> Tensor:
        """A new parameter whose stand-in is the handle itself (a Variable passed as an argument)."""
        self.captured[id(handle)] = Captured(handle, self._input(type, name))
        return handle

    def _input(self, type: Type, name: str) -> Node:
        node = Node(INPUT, (), {"type": type}, type, user_line(2), name)
        self.own.add(node)
        self.inputs.append(node)
        return node

    def nested(self, name: str) -> Trace:
        """A recording inside this one: a branch, a body."""
        return Trace(name)

    # -- what `apply` and the ops ask for ------------------------------------------------------------------------------
    def emit(self, op: Op, args: Sequence[Tensor], attrs: Mapping[str, Any]) -> Any:
        """Record one op."""
        inputs = tuple([self.node_of(a) for a in args])
        node = self._add(op, inputs, attrs, op.infer(*[n.type for n in inputs], **attrs))
        if node.type.__class__ is tuple:
            return tuple(wrap(self._add(GETITEM, (node,), {"index": k}, t)) for k, t in enumerate(node.type))
        return wrap(node)

    def _add(self, op: Op, inputs: tuple[Node, ...], attrs: Mapping[str, Any], type: Any) -> Node:
        node = Node(op, inputs, attrs, type, self.where or user_line(3))
        self.nodes.append(node)
        self.own.add(node)
        return node

    def node_of(self, tensor: Tensor) -> Node:
        """The node that stands for a tensor's value here, capturing what comes from outside."""
        value = tensor._value
        if value.__class__ is Node and value in self.own:
            return value  # type: ignore[return-value]
        found = self.captured.get(id(tensor))
        return found.node if found is not None else self._capture(tensor).node

    def read(self, tensor: Tensor) -> Tensor:
        """The tensor's present value under a new handle."""
        return wrap(self.node_of(tensor))

    def lift(self, array: np.ndarray) -> Tensor:
        """A NumPy array met by an op: a hidden input if something outside holds it, else a constant."""
        found = self.captured.get(id(array))
        if found is None and (self.reach is None or self.reach(array) is None):
            if self.outer is not None:
                return self.read(self.outer.lift(array))  # type: ignore[attr-defined]
            return wrap(self._snapshot(array))
        return wrap((found or self._capture(array)).node)

    def constant(self, array: np.ndarray) -> Tensor:
        """A value made by the traced code: a literal if it is a single number, else a constant that nobody writes."""
        if array.ndim == 0:
            return core.full(array.item(), (), array.dtype)
        array = np.asarray(array, order="C")
        return wrap(self._add(CONSTANT, (), {"value": array}, Type(array.shape, array.dtype)))

    def _snapshot(self, array: np.ndarray) -> Node:
        """A constant with the array's present contents."""
        found = self._snapshots.get(id(array))
        if found is not None and found[1].tobytes() == array.tobytes():
            return found[2]
        copy = core.to_array(array)
        node: Node = self.constant(copy)._value  # type: ignore[assignment]
        self._snapshots[id(array)] = array, copy, node
        return node

    def _capture(self, x: Any) -> Captured:
        """Make a hidden input of a value from outside."""
        value = x._value if isinstance(x, Tensor) else x
        if value.__class__ is Node and not self._is_outer(value):
            raise value.leaked("use")
        handle, path, name = (self.reach(x) if self.reach is not None else None) or (x, None, "")
        found = self.captured.get(id(handle))
        if found is None:
            dtype = core.dtypes.as_dtype(value.dtype)
            node = self._input(Type(value.shape, dtype), name or "captured value")
            found = self.captured[id(handle)] = Captured(handle, node, path)
        return found

    def _is_outer(self, node: Node) -> bool:
        trace = self.outer
        while trace is not None:
            if node in trace.own:  # type: ignore[attr-defined]
                return True
            trace = trace.outer  # type: ignore[attr-defined]
        return False

    def mention(self, tensor: Tensor, spec: str | None) -> str:
        """Text that stands for a traced value: readable, and found again by effects that write it at run time."""
        value = tensor._value
        inside = value.__class__ is Node and value in self.own
        if value.__class__ is Node and not inside and not self._is_outer(value):  # type: ignore[arg-type]
            return f"tj.Tensor(<traced {value.op.name}>, shape={tensor.shape}, dtype={tensor.dtype.name})"  # type: ignore[union-attr]
        now = self.read(tensor)
        node: Node = now._value  # type: ignore[assignment]
        number = self._numbered.setdefault(node, len(self._numbered) + 1)
        what = f"traced {node.name or node.op.name} #{number}"
        if spec is not None:
            text = f"<{what}:{spec}>" if spec else f"<{what}>"
        else:
            at = f" at {node.where.rsplit('/', 1)[-1]}" if node.where else ""
            text = f"tj.Tensor(<{what}{at}>, shape={tensor.shape}, dtype={tensor.dtype.name})"
        self.mentions[text] = core.as_number(now) if tensor._weak else now, spec
        return text

    # -- writes --------------------------------------------------------------------------------------------------------
    def written(self, handle: Tensor) -> None:
        """Called before a handle is rebound: one from outside will get its value back at `close`."""
        value = handle._value
        if id(handle) in self._originals or (value.__class__ is Node and value in self.own):
            return
        self.node_of(handle)
        self._originals[id(handle)] = handle, value

    def create_variable(self, variable: Tensor, value: Any, dtype: Any = None) -> None:
        """A Variable is being made by traced code: it starts with a concrete value, and is captured."""
        if self.outer is not None:
            self.outer.create_variable(variable, value, dtype)  # type: ignore[attr-defined]
            return
        if callable(value) and not isinstance(value, Tensor):
            with recording(self):  # not in a branch or body that is being recorded inside
                value = value()
        if isinstance(value, Tensor):
            known = self._value_now(value)
            if known is None:
                raise TracerError(
                    f"Variable at {user_line()}: its first value depends on {self._sources(value)}, which is not known "
                    f"while {self.name} is traced; create it before the function, or from known values"
                )
            value = known
        variable._value = core.to_array(value, dtype)
        node = self._input(Type(variable.shape, variable.dtype), "new Variable")
        self.captured[id(variable)] = Captured(variable, node)
        self.created.append((variable, user_line()))

    def _value_now(self, tensor: Tensor) -> np.ndarray | None:
        """The value a traced tensor has in this very call, from Python numbers and captured values (arguments are
        unknown)."""
        node = self.node_of(tensor)
        values: dict[Node, np.ndarray | None] = {}
        for c in self.captured.values():
            _, value = self._originals.get(id(c.handle), (None, getattr(c.handle, "_value", c.handle)))
            values[c.node] = value if isinstance(value, np.ndarray) else None
        return self._compute(node, values)

    # -- leaving for Python --------------------------------------------------------------------------------------------
    def concrete(self, tensor: Tensor, purpose: str) -> np.ndarray:
        """The value of a tensor that Python wants to see; guarded if it can change, TracerError if it cannot be known
        now."""
        value = tensor._value
        if value.__class__ is Node and value not in self.own:
            if self._is_outer(value):  # type: ignore[arg-type]
                return self.outer.concrete(tensor, purpose)  # type: ignore[union-attr]
            raise value.leaked(purpose)  # type: ignore[union-attr]
        if value.__class__ is not Node:
            return self._read_captured(tensor, purpose) if self.outer is None else self.outer.concrete(tensor, purpose)
        found = self._compute(value, self._known)  # type: ignore[arg-type]
        if found is None:
            found = self._from_scalars(value)  # type: ignore[arg-type]
        if found is None:
            raise self._unknown(tensor, purpose)
        for node in reachable([value]):  # type: ignore[list-item]
            if node in self.numbers:
                self.needed[node] = self.numbers[node]
            elif node in self.scalars:
                self.needed[node] = self.scalars[node]
            elif node.op is INPUT and (handle := self._known_outside(node)) is not None:
                self.outer.concrete(handle, purpose)  # type: ignore[union-attr]
        return found

    def knows(self, tensor: Tensor, scalars: bool = False) -> bool:
        """Whether `concrete` has an answer, without NumPy scalars or with them."""
        value = tensor._value
        if value.__class__ is not Node:
            return value.size <= GUARD_LIMIT
        known = self._look(value) is not None
        return known or (scalars and value in self.own and self._from_scalars(value) is not None)  # type: ignore[operator]

    def _from_scalars(self, node: Node) -> np.ndarray | None:
        """The value of a node that depends on NumPy scalars and Python numbers only."""
        if not self.scalars:
            return None
        known = {n: v for n, v in self._known.items() if v is not None}
        return self._compute(node, {**known, **{n: np.asarray(x) for n, x in self.scalars.items()}})

    def _look(self, node: Any) -> np.ndarray | None:
        """The value of a node of this trace or one around it, if it depends on Python numbers only."""
        if node in self.own:
            return self._compute(node, self._known)
        return self.outer._look(node) if self.outer is not None else None  # type: ignore[attr-defined, no-any-return]

    def _known_outside(self, node: Node) -> Tensor | None:
        """The handle that an input was captured from, if the trace around this one knows its value."""
        if self.outer is not None:
            for c in self.captured.values():
                if c.node is node:
                    handle = c.handle
                    traced = isinstance(handle, Tensor) and handle._value.__class__ is Node
                    known = traced and id(handle) not in self._originals and self.outer.knows(handle)  # type: ignore[attr-defined]
                    return handle if known else None
        return None

    def observe(self, tensor: Tensor) -> np.ndarray | None:
        """The value of a tensor made of constants, Python numbers and small values from outside, all guarded; None for
        others."""
        node = self.node_of(tensor)
        if node.type.size > OBSERVE_LIMIT:  # type: ignore[union-attr]
            return None
        small = [c for c in self.captured.values() if c.node.type.size <= OBSERVE_LIMIT]  # type: ignore[union-attr]
        outside = {c.node: c for c in small}
        contents = {n: c.handle._value if isinstance(c.handle, Tensor) else c.handle for n, c in outside.items()}
        known: dict[Node, np.ndarray | None] = {n: v for n, v in self._known.items() if v is not None}
        found = self._compute(node, known | {n: v for n, v in contents.items() if isinstance(v, np.ndarray)})
        if found is None:
            return None
        for n in reachable([node]):
            if n in self.numbers:
                self.needed[n] = self.numbers[n]
            elif n in outside:
                outside[n].guard = contents[n].copy()
        return found

    def _read_captured(self, tensor: Tensor, purpose: str) -> np.ndarray:
        captured = self.captured.get(id(tensor)) or self._capture(tensor)
        value: np.ndarray = tensor._value  # type: ignore[assignment]
        if value.size > GUARD_LIMIT:
            raise self._unknown(tensor, purpose)
        captured.guard = value.copy()
        return value

    def _compute(self, wanted: Node, known: dict[Node, np.ndarray | None]) -> np.ndarray | None:
        """Value of a node that depends only on Python numbers and on what `known` holds; None otherwise."""
        ready: dict[Node, None] = {}  # nodes that can be worked out, in order; nothing is before all of them can
        stack = [wanted]
        while stack:
            node = stack[-1]
            if node in known or node in ready:
                stack.pop()
                continue
            if node.op is INPUT:
                number: Any = self.numbers.get(node)
                if number is None and known is self._known and (handle := self._known_outside(node)) is not None:
                    number = self.outer._look(handle._value)  # type: ignore[union-attr]
                known[node] = None if number is None else np.asarray(number, node.dtype)
                continue
            missing = [i for i in node.inputs if i not in known and i not in ready]
            if missing:
                stack.extend(missing)
            elif node.op.stateful or any(i in known and known[i] is None for i in node.inputs):
                known[node] = None
            else:
                ready[node] = None
        if wanted in ready:
            for node in ready:
                with recording(None):
                    result = quietly(node.op.eager, *(known[i] for i in node.inputs), **node.attrs)
                known[node] = result if isinstance(result, tuple) else np.asarray(result)  # type: ignore[assignment]
        return known[wanted]

    def _sources(self, tensor: Tensor) -> str:
        """The inputs a tensor depends on, as text."""
        names = [f"{n.name or 'an input'} ({n.type!r})" for n in self.inputs if n in reachable([self.node_of(tensor)])]
        return ", ".join(dict.fromkeys(names)) or "an op with effects"

    def _unknown(self, tensor: Tensor, purpose: str) -> TracerError:
        node = tensor._value
        made = node.where if isinstance(node, Node) and node.op is not INPUT else ""
        if purpose == "bool()" and _in_match():
            purpose = MATCH
        return TracerError(
            f"{purpose} at {user_line()}: this value is not known while {self.name} is being traced. It depends on "
            f"{self._sources(tensor)}{f' and was made at {made}' if made else ''}.\n{_no_source()}{_advice(purpose)}"
        )

    # -- the end -------------------------------------------------------------------------------------------------------
    def close(self) -> list[tuple[Tensor, Tensor]]:
        """Give written handles from outside their values back; each with the value that was written to it."""
        found = []
        for handle, original in self._originals.values():
            new, handle._value = handle._value, original
            found.append((handle, wrap(new)))
        self._originals = {}
        return found

    def finish(self, outputs: Sequence[Tensor], name: str = "") -> Graph:
        """What was recorded, with these outputs."""
        nodes = tuple(self.node_of(t) for t in outputs)  # may capture a further input
        return Graph(tuple(self.inputs), tuple(self.nodes), nodes, name or self.name)


def settled(handle: Tensor) -> np.ndarray:
    """The array a handle stands for, outside of traces. While another thread's trace has borrowed the handle, wait for
    it."""
    value = handle._value
    if value.__class__ is Node:
        with LOCK:
            value = handle._value
        if value.__class__ is Node:
            raise value.leaked("use")  # type: ignore[union-attr]
    return value  # type: ignore[return-value]


def _no_source() -> str:
    """Why the code that wants the value was not rewritten, if it should have been."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        reason = source.why_not(frame.f_code)
        if reason:
            return f"Control flow of {frame.f_code.co_name} on traced tensors was not compiled, since {reason}.\n"
        frame = frame.f_back
    return ""


MATCH = "a pattern of the match statement"


def _in_match() -> bool:
    """Whether the user's line, which wants a truth value, is one of a match statement."""
    file, _, line = user_line().rpartition(":")
    return bool(file) and linecache.getline(file, int(line)).lstrip().startswith(("match ", "case "))


def _advice(purpose: str) -> str:
    """The rewrite for each way of leaving the trace."""
    if purpose == MATCH:
        return (
            "A match statement is compiled if all its patterns are plain values (case 0:), names or _. Use if and elif "
            "in place of the others."
        )
    if purpose == "bool()":
        return (
            "Statements like if, while, for and assert in your own functions are compiled as branches and loops; the "
            "condition of a comprehension, and code of libraries, needs a value now. Choose between values with "
            "tj.where(condition, a, b); choose what runs with tj.cond, tj.while_loop or tj.fori_loop."
        )
    if purpose in ("int()", "float()", "complex()", "item()"):
        return (
            "A 0-d tensor already works as a number in arithmetic, comparisons and indexing: leave the conversion "
            "out, and use tj.sqrt for math.sqrt and so on. If the value is a size or an option, pass it as a Python "
            "number."
        )
    if "integer" in purpose:
        return (
            "Sizes, axes and trip counts must be known while tracing: use the size of an argument (x.shape), or pass "
            "the number as a "
            "Python int."
        )
    return "Use tj functions (np functions on tensors are traced too), or return the tensor and convert it outside."


def trace_function(f: Callable[..., Any], *types: Type, name: str = "", names: Sequence[str] = ()) -> Graph:
    """The graph of a function of tensors, given the types of its arguments. It returns a tensor or a tuple of them.

    Values captured from outside become further inputs; their handles are in `notes["captured"]`.
    """
    trace = Trace(name or getattr(f, "__name__", "graph"))
    args = [trace.input(t, names[k] if k < len(names) else "") for k, t in enumerate(types)]
    try:
        with recording(trace):
            result = f(*args)
            outputs = [core.as_tensor(t) for t in (result if isinstance(result, (tuple, list)) else (result,))]
            graph = trace.finish(outputs)
    finally:
        written = trace.close()
    if written:
        raise TracerError(f"{trace.name}: writes a tensor from outside")
    graph.notes["captured"] = [c.handle for c in trace.captured.values()]
    return graph


def rewrite(graph: Graph, rule: Callable[[Node, list[Any]], Any]) -> Graph:
    """`graph` replayed into a new one; where `rule(node, args)` gives a tensor, it replaces the node's result."""
    trace = Trace(graph.name)
    with recording(trace):
        inputs = [trace.input(n.type, n.name) for n in graph.inputs]  # type: ignore[arg-type]
        new = trace.finish(evaluate(graph, inputs, rule))
    new.notes.update(graph.notes)
    return new
