"""The intermediate representation: `Type`, `Op`, `Node`, `Graph`; a graph as text; `verify`.

In: built by `trace/tracer.py` through `apply`. Out: rewritten by passes (`Graph -> Graph`), lowered by `lower/fuse.py`.

A graph is strict and pure: promotion and broadcasting are nodes of their own, a node has one result (a control op a
tuple, taken apart by `getitem` nodes), there are no weak types. Nodes are compared by identity and kept in program
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tracejit.errors import InternalError, LeakedTracerError

Kind = Literal["source", "elementwise", "reduction", "movement", "indexing", "library", "control"]


@dataclass(frozen=True, slots=True)
class Type:
    """Shape and dtype of a value.

    >>> Type((3, 4), np.dtype("float32"))
    f32[3, 4]
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        n = 1
        for e in self.shape:
            n *= e
        return n

    def __repr__(self) -> str:
        d = self.dtype
        short = "bool" if d.kind == "b" else f"{d.kind}{d.itemsize * 8}"
        return f"{short}[{', '.join(map(str, self.shape))}]"


AnyType = Type | tuple[Type, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """Everything known about one primitive, as data. Made only by the constructors in `ops/core.py`.

    name, doc, kind: identity; `kind` decides how it is lowered.
    infer(*types, **attrs): result type; raises TypeError, ValueError or IndexError naming the op, shapes and dtypes.
    eager(*arrays, **attrs): the meaning, in NumPy; gets arrays of the inferred input types, gives the inferred type.
    scalar: elementwise: `scalar(*values, **attrs)` over scalar statements. source: `scalar(at, *values, **attrs)` where
        `at.coords` are int64 coordinates and `at.flat` the row-major position, and inputs are 0-d.
    reduce: reduction only, see `Reduction`.
    index: movement only: `index(coords, types, **attrs) -> list[Part]`, see `lower/index.py`.
    vjp(g, y, *xs, **attrs): cotangent for each input (None: no gradient), in user code.
    jvp(tangents, y, *xs, **attrs): tangent of the result; `tangents` has None for inputs that do not move. None:
        derived from vjp.
    domain: (low, high) for random inputs of tests, one for all inputs or one for each; None: see tests/samples.py.
    stateful: must not be merged or folded (prints, callbacks).
    cost: rough scalar work per element, for fusion (1: an add; 20: a transcendental function).
    running: library only: how a kernel can run it, each element from the one before along attrs["axis"], from the end
        if attrs["reverse"]: the name of a `running` statement (see `lower/scalar.py`); "" if none can.
    """

    name: str
    kind: Kind
    infer: Callable[..., AnyType]
    eager: Callable[..., Any]
    doc: str = ""
    scalar: Callable[..., Any] | None = None
    reduce: Reduction | None = None
    index: Callable[..., Any] | None = None
    vjp: Callable[..., Any] | None = None
    jvp: Callable[..., Any] | None = None
    domain: tuple[Any, ...] | None = None
    stateful: bool = False
    cost: int = 1
    running: str = ""

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Reduction:
    """How a reduction runs in a kernel: `accumulate` is a name of `lower.kernel.ACCUMULATE`.

    before(value, **attrs) and after(carry, **attrs) are scalar rules around the loop; the accumulator's dtype is that
    of `before`'s result. The node's attrs hold `axis` (tuple of non-negative ints, sorted) and `keepdims` is always
    false in the IR (a reshape node restores dims).
    """

    accumulate: str
    before: Callable[..., Any] = lambda x, **_: x
    after: Callable[..., Any] = lambda x, **_: x


@dataclass(slots=True, eq=False)
class Node:
    """One application of an op. `where` is the user's file:line; `name` is set for graph inputs."""

    op: Op
    inputs: tuple[Node, ...]
    attrs: Mapping[str, Any]
    type: AnyType
    where: str = ""
    name: str = ""

    def __repr__(self) -> str:
        return f"<{self.op.name} {self.type}>"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape  # type: ignore[union-attr]

    @property
    def dtype(self) -> np.dtype:
        return self.type.dtype  # type: ignore[union-attr]

    def leaked(self, how: str) -> LeakedTracerError:
        """The error for a traced value that is met outside its trace."""
        made = f"{self.name or 'a value'}, given" if self.op is INPUT else f"made by {self.op.name}"
        return LeakedTracerError(
            f"{how}: a traced tensor ({self.type!r}, {made} at {self.where or 'an unknown line'}) "
            f"was kept after its function had been traced, so it has no value. Return it from the function, or keep "
            f"state in a Variable.")

    # NumPy meets a node only when a traced tensor has outlived its trace.
    def __array_ufunc__(self, ufunc: Any, *_: Any, **__: Any) -> Any:
        raise self.leaked(ufunc.__name__)

    def __array_function__(self, function: Any, *_: Any, **__: Any) -> Any:
        raise self.leaked(function.__name__)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise self.leaked("use")

    def __getitem__(self, _: Any) -> Any:
        raise self.leaked("indexing")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.leaked(name)


def _no_eager(*_: Any, **__: Any) -> Any:
    raise InternalError("a graph input or constant has no eager meaning")


# The two ops without inputs that every graph is made of. `input` nodes are the graph's parameters; `constant` nodes
# hold an array that was captured or folded (attrs: value, an np.ndarray nobody writes).
INPUT = Op("input", "source", infer=lambda *, type: type, eager=_no_eager, doc="A parameter of the graph.")
CONSTANT = Op("constant", "source", infer=lambda *, value: Type(value.shape, value.dtype),
              eager=lambda *, value: value, doc="A fixed array.")
# Takes one result out of a node of tuple type (a control op, a call). `apply` makes these nodes.
GETITEM = Op("getitem", "control", infer=lambda t, *, index: t[index], eager=lambda t, *, index: t[index],
             doc="One element of a tuple.")


@dataclass(slots=True, eq=False)
class Graph:
    """Inputs, nodes in program order (without the inputs), outputs. An output may be an input, and may repeat."""

    inputs: tuple[Node, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Node, ...]
    name: str = "graph"
    notes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return to_text(self)

    def users(self) -> dict[Node, list[Node]]:
        """Which nodes read each node (a node reading twice appears twice)."""
        found: dict[Node, list[Node]] = {n: [] for n in (*self.inputs, *self.nodes)}
        for node in self.nodes:
            for i in node.inputs:
                found[i].append(node)
        return found

    def to_dot(self) -> str:
        """The graph in Graphviz's language."""
        names = _names(self)
        lines = [f'digraph "{self.name}" {{', "  rankdir=TB; node [shape=box, fontname=monospace];"]
        for node in (*self.inputs, *self.nodes):
            label = f"{names[node]}: {node.op.name}\\n{node.type!r}"
            shape = ", style=filled, fillcolor=lightyellow" if node in self.outputs else ""
            lines.append(f'  {names[node]} [label="{label}"{shape}];')
            lines += [f"  {names[i]} -> {names[node]};" for i in node.inputs]
        return "\n".join([*lines, "}"])


def count(graph: Graph, op: str) -> int:
    """How many nodes of a graph apply the op of that name."""
    return sum(n.op.name == op for n in graph.nodes)


def subgraphs(node: Node) -> tuple[Graph, ...]:
    """The graphs inside a control node: branches, conditions, bodies."""
    return _graphs_in(node) if node.op.kind == "control" else ()


def _graphs_in(node: Node) -> tuple[Graph, ...]:
    found: list[Graph] = []
    for value in node.attrs.values():
        if isinstance(value, Graph):
            found.append(value)
        elif isinstance(value, tuple):
            found += [g for g in value if isinstance(g, Graph)]
    return tuple(found)


def with_subgraphs(attrs: Mapping[str, Any], change: Callable[[Graph], Graph]) -> dict[str, Any]:
    """Attributes of a control node, each graph in them changed."""

    def changed(value: Any) -> Any:
        if isinstance(value, Graph):
            return change(value)
        return tuple(map(changed, value)) if isinstance(value, tuple) else value

    return {name: changed(value) for name, value in attrs.items()}


def map_subgraphs(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """The graph with every graph inside its control nodes changed (itself if none changes)."""
    changed = {g: change(g) for g in dict.fromkeys(g for n in graph.nodes for g in subgraphs(n))}
    if all(g is after for g, after in changed.items()):
        return graph
    new: dict[Node, Node] = {}

    for node in graph.nodes:
        attrs = with_subgraphs(node.attrs, changed.__getitem__) if subgraphs(node) else node.attrs
        inputs = tuple([new.get(i, i) for i in node.inputs])
        if attrs is not node.attrs or any(a is not b for a, b in zip(inputs, node.inputs)):
            new[node] = Node(node.op, inputs, attrs, node.type, node.where, node.name)
    nodes = tuple([new.get(n, n) for n in graph.nodes])
    return Graph(graph.inputs, nodes, tuple([new.get(n, n) for n in graph.outputs]), graph.name, graph.notes)


def has_effects(node: Node) -> bool:
    """Whether a node must stay, and stay apart, even if nothing reads it: prints and callbacks, in subgraphs too."""
    return node.op.stateful or any(has_effects(n) for g in subgraphs(node) for n in g.nodes)


def _names(graph: Graph) -> dict[Node, str]:
    names: dict[Node, str] = {}
    for k, node in enumerate(graph.inputs):
        names[node] = f"x{k}"
    v = c = 0
    for node in graph.nodes:
        if node.op is CONSTANT and node.type.size > 8:  # type: ignore[union-attr]
            names[node], c = f"c{c}", c + 1
        else:
            names[node], v = f"v{v}", v + 1
    return names


def to_text(graph: Graph, constants: str = "parameters") -> str:
    """The graph as a Python function that rebuilds it when traced.

    Ops are called as `ops.<name>(inputs..., attr=...)`; large constants are further parameters c0, c1, ... at the end.
    The graphs inside control nodes are functions inside, whose parameters are annotated with their types.
    """
    names = _names(graph)
    big = [n for n in graph.nodes if names[n].startswith("c")]
    params = [f"{names[n]}" for n in (*graph.inputs, *big)]
    width = max((len(names[n]) for n in graph.nodes), default=1)
    lines = [f"def {graph.name if graph.name.isidentifier() else 'graph'}({', '.join(params)}):"]
    inner = _inner_names(graph)
    for node in graph.inputs:
        label = f"  {node.name}" if node.name else ""
        lines.append(f"    # {names[node]}: {node.type!r}{label}")
    for node in big:
        lines.append(f"    # {names[node]}: {node.type!r}  constant")
    for sub, name in inner.items():
        lines += ["    " + line for line in _inner_text(sub, name)]
    for node in graph.nodes:
        if names[node].startswith("c"):
            continue
        where = f"  {node.where.rsplit('/', 1)[-1]}" if node.where else ""
        lines.append(f"    {names[node]:<{width}} = {_call(node, names, inner)}  # {node.type!r}{where}")
    outs = ", ".join(names[n] for n in graph.outputs)
    lines.append(f"    return ({outs}{',' if len(graph.outputs) == 1 else ''})")
    return "\n".join(lines) + "\n"


def _inner_names(graph: Graph) -> dict[Graph, str]:
    """A name for each graph inside control nodes."""
    found: dict[Graph, str] = {}
    for node in graph.nodes:
        for g in _graphs_in(node):
            found.setdefault(g, f"{g.name if g.name.isidentifier() else 'graph'}_{len(found)}")
    return found


def _inner_text(graph: Graph, name: str) -> list[str]:
    """The lines of a function inside another one's text. Its large constants are written out."""
    first, *rest = to_text(Graph(graph.inputs, graph.nodes, graph.outputs, name)).splitlines()
    params = first[first.index("(") + 1: first.rindex(")")].split(", ") if "()" not in first else []
    inputs = len(graph.inputs)
    typed = [f"{p}: '{n.type!r}'" for p, n in zip(params, graph.inputs)]
    big = [n for n in graph.nodes if n.op is CONSTANT and n.type.size > 8]  # type: ignore[union-attr]
    written = [f"    {p} = ops.constant(value={_attr(n.attrs['value'])})" for p, n in zip(params[inputs:], big)]
    return [f"def {name}({', '.join(typed)}):", *written, *rest]


def _call(node: Node, names: Mapping[Node, str], inner: Mapping[Graph, str] | None = None) -> str:
    args = [names[i] for i in node.inputs]
    args += [f"{k}={_attr(v, inner)}" for k, v in node.attrs.items()]
    return f"ops.{node.op.name}({', '.join(args)})"


def _attr(value: Any, inner: Mapping[Graph, str] | None = None) -> str:
    """A faithful repr of an attribute."""
    if isinstance(value, Graph) and inner is not None:
        return inner[value]
    if isinstance(value, np.ndarray):
        return f"np.array({value.tolist()!r}, dtype={value.dtype.name!r})" if value.dtype.kind != "f" else (
            f"np.array({_floats(value.tolist())}, dtype={value.dtype.name!r})")
    if isinstance(value, np.dtype):
        return repr(value.name)
    if isinstance(value, float):
        return _floats(value)
    if isinstance(value, tuple):
        return f"({', '.join(_attr(v, inner) for v in value)}{',' if len(value) == 1 else ''})"
    if isinstance(value, Graph):
        return f"<graph {value.name}>"
    return repr(value)


def _floats(value: Any) -> str:
    """repr of (nested lists of) floats in which nan and inf are readable by Python."""
    if isinstance(value, list):
        return f"[{', '.join(map(_floats, value))}]"
    return repr(value) if value == value and abs(value) != float("inf") else f"float({str(value)!r})"


def verify(graph: Graph) -> None:
    """Check a graph: every node defined before its uses, and inference run again agrees with the recorded type.

    Raises `InternalError` that shows the ten lines around the fault.
    """
    defined = set(graph.inputs)

    def fail(node: Node, message: str) -> None:
        names = _names(graph)
        at = graph.nodes.index(node) if node in graph.nodes else len(graph.nodes)
        around = graph.nodes[max(0, at - 5): at + 5]
        listing = "\n".join(f"{'->' if n is node else '  '} {names.get(n, '?')} = "
                            f"{_call(n, {i: names.get(i, '<undefined>') for i in n.inputs})}  # {n.type!r} {n.where}"
                            for n in around)
        raise InternalError(f"{graph.name}: {message}\n{listing}")

    for node in graph.nodes:
        if node in defined:
            fail(node, "a node is listed twice")
        if any(i not in defined for i in node.inputs):
            fail(node, f"an input of {node.op.name} is not defined before its use")
        try:
            found = node.op.infer(*(i.type for i in node.inputs), **node.attrs)
        except Exception as error:
            fail(node, f"inference of {node.op.name} fails: {error}")
        if found != node.type:
            fail(node, f"{node.op.name} gives {found!r}, recorded is {node.type!r}")
        for inner in subgraphs(node):
            verify(inner)
        defined.add(node)
    for node in graph.outputs:
        if node not in defined:
            fail(node, "an output is not defined")


def reachable(outputs: Iterable[Node]) -> set[Node]:
    """All nodes that `outputs` depend on, inputs and themselves included."""
    seen: set[Node] = set()
    stack = list(outputs)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.inputs)
    return seen
