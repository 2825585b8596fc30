"""Sizes that may differ from call to call: one trace, and one plan, for all of them.

In: a function's calls that differ in sizes only (a `Family`). A dim that is seen to change is a `Dim` at the next
trace. Out: a `Template`, which makes an ordinary `Specialization` for each new size, or says that another trace is
needed: `Maker` turns what was computed from Dims (graphs, plans) into a function of sizes. So a new size runs neither
the Python function nor passes nor fusion, just that function.

Lowering works on Dims as tracing does: how a plan was chosen holds for the sizes that take the same decisions. Where it
cannot (too many plans, or a size in a kernel's text), the graph is made for the size and lowered as any other.

Read next: `tracejit/dims.py`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from tracejit import config
from tracejit.dims import NAMES, Dim, Scope, Solve
from tracejit.errors import TracerError
from tracejit.ir import CONSTANT, GETITEM, INPUT, Graph, Node
from tracejit.lower.access import FEW
from tracejit.lower.kernel import Kernel
from tracejit.lower.plan import Plan
from tracejit.ops.core import OPS
from tracejit.tensor import Tensor, wrap
from tracejit.trace.built import Built, Lowering
from tracejit.trace.signature import Call, Spec, unflatten
from tracejit.trace.specialization import Specialization

MAX_TEMPLATES = 8  # of one family; the least recently made goes first
MAX_PLANS = 8  # of one template
MAX_FAMILIES = 64  # of one function
TRIES = 2  # traces that needed a dim's value before it is taken as fixed
# Sizes while none is known: unlike each other and common ones, and divisible.
HINTS = tuple(12 * k for k in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29))
NAMES_OF_DIMS = "nmklpqrstuvw"

Place = tuple[int, int]  # leaf and axis


class Fixed(Exception):
    """Something holds a size where it cannot be replaced."""


# -- from Dims to functions of sizes -----------------------------------------------------------------------------------
class Maker:
    """Writes a function that makes a structure again, with numbers in place of the Dims of one scope."""

    def __init__(self, scope: Scope):
        self.lines = list(scope.lines)
        self.count = len(scope.inputs)
        self.space: dict[str, Any] = {**NAMES, "Node": Node, "Graph": Graph}
        self.names: dict[int, str] = {}  # of constants and nodes
        self.kept: list[Any] = []

    def function(self, *made: Any) -> Solve:
        """The function from sizes to these structures; None where a decision of the scope would be another one."""
        results = ", ".join(self.text(x) for x in made)
        arguments = ", ".join(f"v{k}" for k in range(self.count))
        body = "".join(f"    {line}\n" for line in [*self.lines, f"return [{results}]"])
        exec(compile(f"def make({arguments}):\n{body}", "<tracejit sizes>", "exec"), self.space)
        return self.space["make"]  # type: ignore[no-any-return]

    def constant(self, x: Any) -> str:
        name = self.names.get(id(x))
        if name is None:
            name = self.names[id(x)] = f"c{len(self.kept)}"
            self.kept.append(x)
            self.space[name] = x
        return name

    def text(self, x: Any) -> str:
        """An expression for `x`."""
        if type(x) is Dim:
            return f"v{x.number}"
        if x is None or type(x) in (bool, int, str):
            return repr(x)
        if isinstance(x, Graph):
            return self.graph(x)
        if not holds_dim(x):
            return self.constant(x)
        if type(x) is tuple or type(x) is list:
            inner = ", ".join(map(self.text, x))
            return f"[{inner}]" if type(x) is list else f"({inner},)"
        if isinstance(x, Mapping):
            return "{" + ", ".join(f"{self.constant(k)}: {self.text(v)}" for k, v in x.items()) + "}"
        if isinstance(x, Kernel):
            raise Fixed("a kernel's text holds a size")
        self.space[x.__class__.__name__] = x.__class__  # a dataclass
        fields = (f"{f.name}={self.text(getattr(x, f.name))}" for f in dataclasses.fields(x) if f.init)
        return f"{x.__class__.__name__}({', '.join(fields)})"

    def graph(self, g: Graph) -> str:
        """The name of a graph, whose nodes are made before."""
        found = self.names.get(id(g))
        if found is not None:
            return found
        for node in (*g.inputs, *g.nodes):
            inputs = "".join(f"{self.names[id(i)]}, " for i in node.inputs)
            attrs, of = self.text(dict(node.attrs)), self.text(node.type)
            fixed = f"{self.constant(node.op)}, ({inputs}), {attrs}, {of}, {node.where!r}, {node.name!r}"
            self._name(node, f"Node({fixed})")
        parts = ["".join(f"{self.names[id(n)]}, " for n in nodes) for nodes in (g.inputs, g.nodes, g.outputs)]
        notes = self.text(dict(g.notes)) if g.notes else "{}"
        return self._name(g, f"Graph({', '.join(f'({p})' for p in parts)}, {g.name!r}, dict({notes}))")

    def _name(self, x: Any, expression: str) -> str:
        name = self.names[id(x)] = f"g{len(self.kept)}"
        self.kept.append(x)
        self.lines.append(f"{name} = {expression}")
        return name


def holds_dim(x: Any) -> bool:
    """Whether a structure of tuples, lists, dicts, graphs and records has a Dim in it."""
    if type(x) is Dim:
        return True
    if type(x) is tuple or type(x) is list:
        return any(map(holds_dim, x))
    if isinstance(x, Mapping):
        return any(map(holds_dim, x.values()))
    if isinstance(x, Graph):
        return any(holds_dim(n.type) or holds_dim(n.attrs) for n in (*x.inputs, *x.nodes))
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return any(holds_dim(getattr(x, f.name)) for f in dataclasses.fields(x))
    return False


def fix_unseen(graph: Graph, scope: Scope) -> None:
    """Fix the sizes that no input of the graph shows (of an argument given twice)."""
    shapes: list[Any] = [n for node in graph.inputs for n in node.shape]
    seen = {n.number for n in shapes if type(n) is Dim}
    for n in scope.inputs:
        if n.number not in seen:
            n.fix()


def must_be_open(made: Specialization, scope: Scope, places: Sequence[Place]) -> None:
    """TracerError if the traced code needed the size of a dim that it should have left open."""
    for k, where in scope.fixed.items():
        leaf, axis = places[k]
        raise TracerError(
            f"dim {axis} of '{made.names[leaf]}' cannot be left open: its size is needed at "
            f"{where or 'an unknown line'} (range, int(), text and NumPy functions take the plain number); give "
            f"it a size in the spec"
        )


def is_data(graph: Graph) -> bool:
    """Whether a graph consists of known ops with plain attributes (Python code in it may have kept a size)."""
    return all(
        (n.op in (INPUT, CONSTANT, GETITEM) or OPS.get(n.op.name) is n.op) and all(map(_plain, n.attrs.values()))
        for n in graph.nodes
    )


def _plain(x: Any) -> bool:
    if type(x) is tuple:
        return all(map(_plain, x))
    if isinstance(x, Graph):
        return is_data(x)
    return type(x) is Dim or x is None or isinstance(x, (bool, int, float, complex, str, np.dtype, np.ndarray))


# -- calls that differ in sizes ----------------------------------------------------------------------------------------
def family_of(call: Call) -> tuple[Hashable, list[Place], tuple[int, ...]] | None:
    """What calls that differ in sizes have in common, which dims those are, and the sizes; None if there are none."""
    parts: Any = call.key
    spec, keys, static = parts
    common: list[Hashable] = []
    places: list[Place] = []
    sizes: list[int] = []
    for k, key in enumerate(keys):
        if type(key) is tuple and len(key) == 4 and key[1] and _is_array_class(key[0]):
            common.append((key[0], len(key[1]), key[2], key[3] is None))  # open sizes go with contiguous copies
            places += [(k, axis) for axis in range(len(key[1]))]
            sizes += key[1]
        else:
            common.append(key)
    return ((spec, tuple(common), static), places, tuple(sizes)) if sizes else None


def _is_array_class(cls: Any) -> bool:
    return cls is np.ndarray or (isinstance(cls, type) and issubclass(cls, Tensor))


class Family:
    """What is known of the sizes in calls that are otherwise alike."""

    def __init__(self, places: list[Place]):
        self.places = places
        self.last: tuple[int, ...] | None = None
        self.changing: set[int] = set()  # positions among the sizes
        self.declared: set[int] = set()  # those that a signature leaves open
        self.fixed: Counter[int] = Counter()  # how often code needed the value of one that changes
        self.templates: list[Template] = []
        self.hopeless = False
        self.failure = ""  # why, for those who look

    def see(self, sizes: tuple[int, ...]) -> None:
        """Take note of a call."""
        if self.last is not None and self.last != sizes:
            self.changing |= {k for k, (a, b) in enumerate(zip(self.last, sizes)) if a != b}
        self.last = sizes

    def symbolic(self, sizes: tuple[int, ...]) -> list[int]:
        """Positions that the next trace should leave open. Code often treats 0 and 1 as no other size."""
        if self.hopeless:
            return []
        wanted = {k for k in self.changing if sizes[k] > 1} | self.declared
        return sorted(k for k in wanted if self.fixed[k] < TRIES)

    def hints(self, positions: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Sizes to trace with: the present ones, but none that code takes for a special case."""
        return [sizes[k] if sizes[k] > 1 else HINTS[sizes[k]] for k in positions]

    def declare(self, places: Iterable[Place]) -> None:
        """Leave these dims open from the first trace on."""
        wanted = set(places)
        self.declared |= {k for k, place in enumerate(self.places) if place in wanted}

    def give_up(self, error: Exception) -> None:
        """Trace for each size from now on: something does not take open sizes."""
        self.hopeless, self.failure = True, failure(error)

    def keep(self, template: Template, needed: Iterable[int]) -> list[int]:
        """Keep a trace that needed the sizes of the open dims `needed`; the positions that it really left open."""
        fixed = set(needed)
        if not is_data(template.made.graph) or template.made.created:
            fixed = set(range(len(template.positions)))  # what it holds may be for these sizes only
        for k in fixed:
            self.fixed[template.positions[k]] += 1
        free = [p for k, p in enumerate(template.positions) if k not in fixed]
        if not free:
            return []
        self.templates.insert(0, template)
        if len(self.templates) > MAX_TEMPLATES:
            self.hopeless = True  # decisions split the sizes too finely: from now on a trace per size
            self.templates.pop()
        return free


@dataclasses.dataclass
class Openings:
    """Arguments with `spec`s among them, whose None dims get sizes to trace with: all different at first."""

    leaves: list[Any]
    spec: Any
    tries: int = 0

    def __post_init__(self) -> None:
        leaves = enumerate(self.leaves)
        self.holes = [(k, d) for k, x in leaves if isinstance(x, Spec) for d, n in enumerate(x.shape) if n is None]
        self.hints = [HINTS[k % len(HINTS)] + 40 * (k // len(HINTS)) for k in range(len(self.holes))]
        self.names = [NAMES_OF_DIMS[k] if k < len(NAMES_OF_DIMS) else f"n{k}" for k in range(len(self.holes))]

    def arguments(self) -> tuple[Any, list[Any]]:
        """The arguments with zeros in place of specs, and those zeros."""
        size = dict(zip(self.holes, self.hints))
        made: list[Any] = []
        for k, x in enumerate(self.leaves):
            if isinstance(x, Spec):
                x = wrap(np.zeros([size.get((k, d), n) for d, n in enumerate(x.shape)], x.dtype))  # type: ignore[arg-type]
            made.append(x)
        return unflatten(self.spec, made), [made[k] for k, _ in self.holes]

    def agree(self, scope: Scope) -> bool:
        """After an error: give a dim that was found to differ from another one, or from a number, that size. False if
        that is not the reason."""
        if scope.conflict is None:
            return False
        old, new = self.hints[scope.conflict[0].number], scope.conflict[1]
        new = new.value if type(new) is Dim else new
        self.hints = [new if n == old else n for n in self.hints]
        self.tries += 1
        return self.tries <= len(self.hints)


# -- one trace for many sizes ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """What becomes of a graph: `build` is all of it, in steps `lower`, `compile` (addresses of kernels) and `load`."""

    build: Callable[[Graph], Built]
    lower: Callable[[Graph], Lowering]
    compile: Callable[[Plan], list[int]]
    load: Callable[[Lowering], Built]


class Template:
    """A trace some of whose sizes are open: `make` gives the specialisation for a call's sizes."""

    def __init__(
        self, made: Specialization, scope: Scope, positions: Sequence[int], sizes: Sequence[int], pipeline: Pipeline
    ):
        self.made = made
        self.positions = list(positions)
        self.rest = [(k, n) for k, n in enumerate(sizes) if k not in set(positions)]
        self.values = [r.value if r.kind == "static" else None for r in made.results]
        self.solve = Maker(scope).function(made.graph, self.values)
        self.pipeline = pipeline
        self.plans: list[OpenPlan] = []
        self.tries = 0  # plans made for open sizes
        self.failure = ""  # why there will be no more

    def make(self, sizes: Sequence[int]) -> Specialization | None:
        """The specialisation for these sizes, runnable; None if the trace does not hold for them."""
        if any(sizes[k] != n for k, n in self.rest):
            return None
        chosen = [sizes[k] for k in self.positions]
        for plan in self.plans:
            planned = plan.lowering(chosen)
            if planned is not None:
                return self._specialization(chosen, planned[1], self.pipeline.load(planned[0]))
        found = solved(self.solve, chosen)
        if found is None:
            return None
        graph, values = found
        new = self._open_plan(chosen)
        planned = new.lowering(chosen) if new is not None else None
        built = self.pipeline.build(graph) if planned is None else self.pipeline.load(planned[0])
        return self._specialization(chosen, values, built)

    def _specialization(self, chosen: Sequence[int], values: Sequence[Any], built: Built) -> Specialization:
        s = self.with_values(values)
        s.recorded = lambda: self.solve(*chosen)[0]  # type: ignore[index]
        s.install(built, self.pipeline.build)
        return s

    def with_values(self, values: Sequence[Any]) -> Specialization:
        """The specialisation without a program. `values` are the sizes among the function's results."""
        results = [
            dataclasses.replace(r, value=v) if r.kind == "static" else r for r, v in zip(self.made.results, values)
        ]
        return dataclasses.replace(self.made, results=results, template=self, passed=[], in_place=[], over={})

    def _open_plan(self, chosen: Sequence[int]) -> OpenPlan | None:
        """A plan for these sizes and those that are planned alike; None if sizes cannot be left open."""
        if self.tries >= MAX_PLANS or min(chosen, default=0) <= FEW[-1] or config.debug.dump or config.debug.check >= 2:
            return None
        self.tries += 1
        scope = Scope(chosen, structural=True)
        try:
            with scope:
                graph, values = self.solve(*scope.inputs)  # type: ignore[misc]
                lowered = self.pipeline.lower(graph)
            if scope.fixed:
                return None
            lowered.kernels = self.pipeline.compile(lowered.plan)
            plan = OpenPlan(lowered, values, scope)
        except Exception as error:  # something does not work on open sizes: then each size is planned for itself
            self.tries, self.failure = MAX_PLANS, failure(error)
            return None
        self.plans.insert(0, plan)
        return plan


class OpenPlan:
    """A plan whose sizes are open: `lowering` gives the one for a call's sizes."""

    def __init__(self, lowered: Lowering, values: list[Any], scope: Scope):
        self.lowered = lowered
        self.solve = Maker(scope).function(lowered.plan, lowered.storage, values)

    def lowering(self, sizes: Sequence[int]) -> tuple[Lowering, list[Any]] | None:
        """The plan, and the values among the function's results that depend on sizes; None if other sizes need another
        plan."""
        start = perf_counter()
        found = solved(self.solve, sizes)
        if found is None:
            return None
        plan, storage, values = found
        whole = self.lowered
        return Lowering(whole.name, whole.stages, plan, storage, start, whole.kernels), values


def failure(error: Exception) -> str:
    """An error in words, with its place."""
    text = f"{type(error).__name__}: {error}"
    if config.debug.log:
        print(f"tracejit: sizes are not left open: {text}", file=sys.stderr)
    return text


def solved(f: Solve, sizes: Sequence[Any]) -> list[Any] | None:
    """What a function of sizes gives; an error in it means that other sizes were decided on."""
    try:
        return f(*sizes)
    except (ArithmeticError, ValueError):
        return None
