"""Compiled code that shows every value it makes, for `tj.debugging`.

In: a graph and how to build it. Out: `EveryValue`, which runs the compiled graph once, effects and all, and knows the
value of every node; `check`, which raises FloatingPointError for the first op that makes nan out of numbers.

A value is stored for each node, so less is fused; the arithmetic is that of compiled code. Inside a loop or a branch
nothing is stored: if one gives nan, its body is run again op by op to find the place.

Read next: `debugging.py` (what users call).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracejit import config
from tracejit.errors import locate
from tracejit.ir import CONSTANT, GETITEM, Graph, Node, Type, has_effects, reachable, subgraphs
from tracejit.quiet import quietly
from tracejit.tensor import recording

# Lines (file:line) whose ops may give nan: those inside `with tj.debugging.expect_nan()`.
EXPECTED: set[str] = set()


class EveryValue:
    """A compiled graph whose further outputs are the values of its nodes."""

    def __init__(self, graph: Graph, build: Callable[[Graph], Any]):
        self.graph = graph
        known = set(graph.inputs)
        self.nodes = [n for n in graph.nodes if n not in known and isinstance(n.type, Type) and n.op is not CONSTANT]
        notes = {k: v for k, v in graph.notes.items() if k == "strides"}
        whole = Graph(graph.inputs, graph.nodes, (*graph.outputs, *self.nodes), graph.name, notes)
        self.program = build(whole).program

    def __call__(self, arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], dict[Node, np.ndarray]]:
        """The graph's results, and the value of every node."""
        found = self.program(arrays)
        count = len(self.graph.outputs)
        values = dict(zip(self.graph.inputs, arrays))
        values.update((n, n.attrs["value"]) for n in self.graph.nodes if n.op is CONSTANT)
        values.update(zip(self.nodes, found[count:], strict=True))
        return found[:count], values


def run_checked(graph: Graph, build: Callable[[Graph], Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a compiled graph; FloatingPointError if an op in it makes nan."""
    every = graph.notes.get("every value")
    if every is None:
        every = graph.notes["every value"] = EveryValue(graph, build)
    results, values = every(arrays)
    for node in graph.nodes:
        _check_node(node, values, graph.name)
    return [r.copy() for r in results]  # several of them may be one array


def _check_node(node: Node, values: Mapping[Node, np.ndarray], name: str) -> None:
    if not isinstance(node.type, Type) or node.where in EXPECTED:
        return
    maker = node.inputs[0] if node.op is GETITEM else node
    if not maker.inputs or any(i not in values for i in maker.inputs):
        return
    inputs = [values[i] for i in maker.inputs]
    if not _fault(values[node], inputs):
        return
    if subgraphs(maker):
        _search(maker, inputs, name)
    origins = [
        f"; its inf was made by {m.op.name}{f' at {m.where}' if m.where else ''}"
        for i in maker.inputs
        for m in _origin(i, values)
    ]
    raise fault(maker.op.name, values[node], inputs, node.where, f" (in {name})" + "".join(origins[:1]))


def _origin(node: Node, values: Mapping[Node, np.ndarray]) -> list[Node]:
    """The op that made the inf in a value, from numbers; none if it came in so."""
    while values[node].dtype.kind in "fc" and np.isinf(values[node]).any():
        maker = node.inputs[0] if node.op is GETITEM else node
        before = [i for i in maker.inputs if i in values and values[i].dtype.kind in "fc" and np.isinf(values[i]).any()]
        if not before:
            return [maker] if maker.inputs else []
        node = before[0]
    return []


def _fault(out: np.ndarray, inputs: Sequence[np.ndarray]) -> bool:
    """Whether there is nan (or inf, if that is asked for too) that no input had."""
    if out.dtype.kind not in "fc" or not out.size:
        return False
    floats = [x for x in inputs if x.dtype.kind in "fc"]
    if np.isnan(out).any():
        return not any(np.isnan(x).any() for x in floats)
    return config.debug.nans == "inf" and bool(np.isinf(out).any()) and all(np.isfinite(x).all() for x in floats)


def check(op: str, out: np.ndarray, inputs: Sequence[np.ndarray], where: str) -> None:
    """FloatingPointError if an op has made nan of its inputs."""
    if where not in EXPECTED and inputs and _fault(out, inputs):
        raise fault(op, out, inputs, where)


def fault(op: str, out: np.ndarray, inputs: Sequence[np.ndarray], where: str, more: str = "") -> FloatingPointError:
    """The error that names an op, its line, and the range of its inputs."""
    bad = np.isnan(out) if np.isnan(out).any() else np.isinf(out)
    kind = "nan" if np.isnan(out).any() else "inf"
    first = tuple(int(k) for k in np.argwhere(bad)[0])
    place = f", first at {list(first)}" if out.ndim else ""
    at = f" at {where}" if where else ""
    text = f"{op} gave {kind}{at}: {int(bad.sum())} of {out.size} elements of {Type(out.shape, out.dtype)!r}{place}"
    ranges = "; ".join(f"input {_range(x)}" for x in inputs if x.size)
    error = FloatingPointError(f"{text}; {ranges}{more}")
    locate(error, where, None)
    return error


def _range(x: np.ndarray) -> str:
    kind = repr(Type(x.shape, x.dtype))
    if x.dtype.kind == "b":
        return f"{kind} with {int(x.sum())} true"
    if x.dtype.kind == "c":
        return f"{kind} abs max {np.max(np.abs(x)):.4g}"
    return f"{kind} min {np.min(x):.4g} max {np.max(x):.4g}"


# -- a trace that fails ------------------------------------------------------------------------------------------------
def leave(error: Exception, trace: Any, inputs: Mapping[Node, Any], effects: Sequence[Node]) -> None:
    """Leave with an error of a trace what it recorded before: effects that eager code would have had by then."""
    error._tracejit_left = trace, dict(inputs), list(effects)  # type: ignore[attr-defined]


def run_left(error: Exception) -> Exception | None:
    """Have the effects that a failed trace recorded, in order; gives the error of one that fails itself: in eager code
    it would have been the first."""
    left = error.__dict__.pop("_tracejit_left", None)
    if left is None:
        return None
    trace, inputs, effects = left
    values: dict[Node, Any] = {n: _array(x, n) for n, x in inputs.items()}
    values.update((c.node, _array(c.handle, c.node)) for c in trace.captured.values())
    needed = reachable(effects)
    for node in trace.nodes[: trace.nodes.index(effects[-1]) + 1]:
        if node not in needed:
            continue
        args = [values[i] for i in node.inputs]
        if node.op is GETITEM:
            values[node] = args[0][node.attrs["index"]]
            continue
        try:
            with recording(None):
                values[node] = quietly(node.op.eager, *args, **node.attrs)
        except Exception as earlier:
            locate(earlier, node.where, f"{node.op.name}({', '.join(repr(i.type) for i in node.inputs)})")
            return earlier
    return None


def _array(x: Any, node: Node) -> np.ndarray:
    return np.asarray(getattr(x, "_value", x), node.dtype)


# -- inside control flow -----------------------------------------------------------------------------------------------
def _search(node: Node, inputs: Sequence[np.ndarray], name: str) -> None:
    """Run a branch or loop again op by op, to raise for the op in it that is at fault."""
    if has_effects(node):
        return
    attrs, op = node.attrs, node.op.name
    if op == "cond":
        branches = attrs["branches"]
        _replay(branches[min(max(int(inputs[0]), 0), len(branches) - 1)], inputs[1:], name)
    elif op == "while_loop":
        body, n = attrs["body"], len(attrs["body"].outputs)
        carries, rest = list(inputs[:n]), inputs[n:]
        while _replay(attrs["cond"], [*carries, *rest], name)[0]:
            carries = _replay(body, [*carries, *rest], name)
    elif op == "scan":
        n, m = attrs["carries"], attrs["carries"] + attrs["xs"]
        carries, rows, rest = list(inputs[:n]), inputs[n:m], inputs[m:]
        steps = range(attrs["length"])
        for t in reversed(steps) if attrs["reverse"] else steps:
            carries = _replay(attrs["body"], [*carries, *(np.asarray(x[t]) for x in rows), *rest], name)[:n]


def _replay(graph: Graph, arrays: Sequence[np.ndarray], name: str) -> list[np.ndarray]:
    values: dict[Node, Any] = dict(zip(graph.inputs, arrays, strict=True))
    for node in graph.nodes:
        args = [values[i] for i in node.inputs]
        if node.op is GETITEM:
            values[node] = args[0][node.attrs["index"]]
        else:
            with recording(None):
                found = quietly(node.op.eager, *args, **node.attrs)
            values[node] = found if isinstance(found, tuple) else np.asarray(found)
        arrays_only = {n: v for n, v in values.items() if isinstance(v, np.ndarray)}
        _check_node(node, arrays_only, name)
    return [values[n] for n in graph.outputs]
