"""Programs as files: `save` writes what a function compiles to, `load` gives it back without the Python source.

In: a function and the types of its arguments (`spec`s, None for a free dim). Out: one zip file with `program.json`
(graphs, free sizes and what was decided about them, how arguments go in and results come out) and one `.npy` file for
each array: constants, weights, state. It is data only: loading runs no code of the file, and ops are looked up by name.

A loaded program is called as the function was. It can be differentiated, and used inside other functions; Variables
that the function wrote are its own.

Read next: `trace/symbolic.py` (free sizes).
"""

from __future__ import annotations

import inspect
import io
import itertools
import json
import os
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracejit import config, dtypes
from tracejit.dims import Dim, Scope
from tracejit.errors import TracerError
from tracejit.function import Function, Method, build, compile_kernels, function, lower
from tracejit.function import load as load_program
from tracejit.ir import CONSTANT, GETITEM, INPUT, Graph, Node, Op, Type, verify
from tracejit.ops import core
from tracejit.ops.core import OPS
from tracejit.tensor import Tensor, evaluate, state
from tracejit.trace.signature import Call, Signature, Spec, flatten, frozen, is_array, is_number, unflatten
from tracejit.trace.specialization import Result, Specialization, Write, aliases_of, current
from tracejit.trace.symbolic import Pipeline, Template, is_data, must_be_open, solved
from tracejit.trace.tracer import Captured
from tracejit.variable import Variable

FORMAT = 1
MAX_PROGRAMS = 256  # of one loaded file: programs for sizes met; the least recently made goes first
SPECIAL = (0, 1)  # sizes that often need a trace of their own
_BASIC: dict[str, Op] = {op.name: op for op in (INPUT, CONSTANT, GETITEM)}
_NUMBERS = {"int": int, "float": float, "complex": complex}


# -- values as JSON ----------------------------------------------------------------------------------------------------
class _Writer:
    """Values as JSON, arrays apart."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self._places: dict[int, int] = {}

    def array(self, x: np.ndarray) -> int:
        if id(x) not in self._places:
            self._places[id(x)] = len(self.arrays)
            self.arrays.append(x)
        return self._places[id(x)]

    def value(self, x: Any, what: str) -> Any:
        if type(x) is Dim:
            return {"dim": x.number}
        if x is None or type(x) in (bool, int, float, str):
            return x
        if type(x) is complex:
            return {"complex": [x.real, x.imag]}
        if type(x) in (tuple, list):
            return {type(x).__name__: [self.value(v, what) for v in x]}
        if type(x) is dict:
            return {"dict": [[self.value(k, what), self.value(v, what)] for k, v in x.items()]}
        if isinstance(x, Type):
            return {"type": [self.value(tuple(x.shape), what), x.dtype.name]}
        if isinstance(x, np.dtype):
            return {"dtype": x.name}
        if isinstance(x, np.ndarray):
            return {"array": self.array(x)}
        if isinstance(x, Graph):
            return {"graph": self.graph(x)}
        raise TypeError(f"save: {what} is a {type(x).__name__}, which a file of data cannot hold; use tensors, "
                        f"numbers, text, tuples, lists and dicts")

    def graph(self, g: Graph) -> dict[str, Any]:
        place = {n: k for k, n in enumerate((*g.inputs, *g.nodes))}
        nodes = [
            [n.op.name, [place[i] for i in n.inputs], self.value(dict(n.attrs), f"an attribute of {n.op.name}"),
             self.value(n.type, n.op.name), n.where.rsplit("/", 1)[-1]]
            for n in g.nodes
        ]
        inputs = [[self.value(n.type, n.name), n.name] for n in g.inputs]
        notes = {k: v for k, v in g.notes.items() if k in ("cotangents", "updates")}
        return {"name": g.name, "inputs": inputs, "nodes": nodes, "outputs": [place[n] for n in g.outputs],
                "notes": self.value(notes, "a note")}


class _Reader:
    """The way back. `dims` are those of the scope at hand."""

    def __init__(self, arrays: Sequence[np.ndarray]):
        self.arrays = arrays
        self.dims: Sequence[Dim] = ()

    def value(self, x: Any) -> Any:
        if not isinstance(x, dict):
            return x
        ((kind, v),) = x.items()
        match kind:
            case "dim":
                return self.dims[v]
            case "complex":
                return complex(*v)
            case "tuple":
                return tuple(map(self.value, v))
            case "list":
                return list(map(self.value, v))
            case "dict":
                return {self.value(k): self.value(a) for k, a in v}
            case "type":
                return Type(self.value(v[0]), dtypes.as_dtype(v[1]))
            case "dtype":
                return dtypes.as_dtype(v)
            case "array":
                return self.arrays[v]
            case "graph":
                return self.graph(v)
        raise ValueError(f"load: the file holds a value of unknown kind {kind!r}")

    def graph(self, g: dict[str, Any]) -> Graph:
        inputs = []
        for t, name in g["inputs"]:
            of = self.value(t)
            inputs.append(Node(INPUT, (), {"type": of}, of, "", name))
        made = list(inputs)
        for name, reads, attrs, of, where in g["nodes"]:
            op = _BASIC.get(name) or OPS.get(name)
            if op is None or (op.stateful and op.name == "py_function"):
                raise ValueError(f"load: this version has no op {name!r}")
            made.append(Node(op, tuple(made[k] for k in reads), self.value(attrs), self.value(of), where))
        outputs = tuple(made[k] for k in g["outputs"])
        return Graph(tuple(inputs), tuple(made[len(inputs):]), outputs, g["name"], self.value(g["notes"]))


def _tree(spec: Any, count: int) -> Any:
    """A structure as an example: the positions of its leaves in it."""
    return 0 if spec is None else unflatten(spec, range(count))


# -- saving ------------------------------------------------------------------------------------------------------------
def save(f: Any, path: Any, *specs: Any, **named: Any) -> None:
    """Write what `f` compiles to for arguments of these types to the file `path`.

    Give `spec`s (or values, which then stand for their type) as the arguments of a call. For several signatures give a
    tuple of positional arguments, or a dict of named ones, for each.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "double.tj")
    >>> from tracejit.trace.signature import spec
    >>> save(lambda x: x * 2, path, spec((None,), "float32"))
    >>> load(path)(np.ones(3, "float32"))
    tj.Tensor([2. 2. 2.], shape=(3,), dtype=float32)
    """
    several = bool(specs) and not named and all(type(s) in (tuple, dict) for s in specs)
    export(f, list(specs) if several else [_Call(specs, named)], path)


def export(f: Any, specs: Any, path: Any) -> None:
    """As `save`. specs: one signature, or a list of them; each a spec, a tuple of arguments or a dict of named ones."""
    before: tuple[Any, ...] = ()
    if isinstance(f, Method):
        f, before = f.function, (f.__self__,)
    elif not isinstance(f, Function):
        f = function(f)
    writer = _Writer()
    handles: list[Any] = []
    saved: list[dict[str, Any]] = []
    for given in specs if isinstance(specs, list) else [specs]:
        args, kwargs = _arguments(given)
        saved += _signatures(f, before, args, kwargs, writer, handles)
    signature = f.signature(before)
    variables = [
        {"value": writer.array(current(h)), "name": getattr(h, "name", ""), "trainable": getattr(h, "trainable", False)}
        for h in handles
    ]
    program = {"format": FORMAT, "name": f.name, "parameters": [_parameter(p, writer) for p in signature.parameters],
               "static": list(f.static_argnames), "fastmath": f.options.fastmath, "checks": f.options.checks,
               "variables": variables, "signatures": saved}  # fmt: skip
    text = json.dumps(program)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("program.json", text)
        for k, a in enumerate(writer.arrays):
            with file.open(f"{k}.npy", "w", force_zip64=True) as out:
                np.lib.format.write_array(out, np.ascontiguousarray(a), allow_pickle=False)


@dataclass(frozen=True)
class _Call:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def _arguments(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(given, _Call):
        return given.args, given.kwargs
    if type(given) is dict:
        return (), given
    return (given if type(given) is tuple else (given,)), {}


def _parameter(p: inspect.Parameter, writer: _Writer) -> dict[str, Any]:
    found: dict[str, Any] = {"name": p.name, "kind": p.kind.name}
    if p.default is not p.empty:
        try:
            found["default"] = writer.value(p.default, "a default")
        except TypeError:
            pass  # such an argument has to be given
    return found


def _signatures(
    f: Function, before: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any], writer: _Writer,
    handles: list[Any],
) -> Iterator[dict[str, Any]]:
    """The programs for one signature: a general one, and those for sizes that it does not serve."""
    call, made, scope, places = f._trace_open(before, args, kwargs)
    must_be_open(made, scope, places)
    yield _record(f, before, call, made, scope, places, writer, handles)
    general = Template(made, scope, range(len(places)), [n.value for n in scope.inputs], _pipeline(f.options))
    leaves, spec = flatten((args, kwargs))
    holes = [(k, d) for k, x in enumerate(leaves) if isinstance(x, Spec) for d, n in enumerate(x.shape) if n is None]
    for chosen in itertools.product((None, *SPECIAL), repeat=len(holes)) if len(holes) <= 4 else ():
        sizes = [n.value if c is None else c for c, n in zip(chosen, scope.inputs)]
        if all(c is None for c in chosen) or solved(general.solve, sizes) is not None:
            continue
        fixed = list(leaves)
        for (k, d), c in zip(holes, chosen):
            shape = list(fixed[k].shape)
            shape[d] = c
            fixed[k] = Spec(tuple(shape), fixed[k].dtype)
        try:
            given = unflatten(spec, fixed)
            found = f._trace_open(before, *given)
            must_be_open(*found[1:])
        except Exception:  # such sizes are an error, or have a trace each: not served
            continue
        yield _record(f, before, *found, writer, handles)


def _record(
    f: Function, before: tuple[Any, ...], call: Call, made: Specialization, scope: Scope,
    places: Sequence[tuple[int, int]], writer: _Writer, handles: list[Any],
) -> dict[str, Any]:
    """One traced signature as JSON."""
    if not is_data(made.graph):
        raise TracerError(f"save: {f.name} calls back into Python (py_function, or a gradient rule), which a file "
                          f"cannot hold")
    if made.created:
        raise TracerError(f"save: {f.name} creates a Variable; call it once before")
    if made.aliases is not None or made.ties:
        raise TracerError("save: an argument is given twice, or is also used from outside the function")
    needed = {k: value for k, value, _ in made.numbers}
    leaves: list[Any] = []
    open_at = dict(zip(places, scope.inputs))
    for k, x in enumerate(call.leaves):
        if is_array(x):
            shape = tuple(open_at.get((k, axis), n) for axis, n in enumerate(x.shape))
            leaves.append({"shape": writer.value(shape, "a shape"), "dtype": x.dtype.name})
        elif is_number(x) and k not in needed:
            leaves.append({"number": type(x).__name__})
        else:
            leaves.append({"static": writer.value(x, f"argument '{made.names[k]}'")})
    hidden = []
    for c in made.hidden:
        at = next((k for k, h in enumerate(handles) if h is c.handle), len(handles))
        if at == len(handles):
            handles.append(c.handle)
        hidden.append(at)
    results = []
    for r in made.results:
        value = made.hidden[r.at].handle if r.kind == "handle" else r.value
        results.append([r.kind, r.at, None if r.kind == "handle" or value is None else writer.value(value, "a result")])
    steps = [[name, *(writer.value(x, "a size") for x in operands)] for name, *operands in scope.steps]
    return {
        "hints": [n.value for n in scope.inputs], "steps": steps, "graph": writer.graph(made.graph),
        "static": writer.value([call.values[k] for k in f.signature(before).static], "a static argument"),
        "tree": writer.value(_tree(call.spec, len(call.leaves)), "the arguments' structure"),
        "plain": call.spec is None, "leaves": leaves, "inputs": made.leaves, "hidden": hidden, "results": results,
        "result": None if made.spec is None else writer.value(_tree(made.spec, len(made.results)), "the result"),
        "writes": [[w.leaf, w.hidden, w.at] for w in made.writes], "names": made.names,
    }  # fmt: skip


def _pipeline(options: config.Options) -> Pipeline:
    return Pipeline(lambda g: build(g, options), lambda g: lower(g, options), lambda p: compile_kernels(p, options),
                    lambda low: load_program(low, options))


# -- loading -----------------------------------------------------------------------------------------------------------
def load(path: Any) -> Loaded:
    """What `save` or `export` wrote, as a function."""
    if not zipfile.is_zipfile(path) and os.path.exists(path):
        raise ValueError(f"load: {path} is not a file that tj.save wrote")
    with zipfile.ZipFile(path) as file:
        program = json.loads(file.read("program.json"))
        if program.get("format") != FORMAT:
            raise ValueError(f"load: {path} has format {program.get('format')}, this version reads {FORMAT}")
        names = sorted((n for n in file.namelist() if n.endswith(".npy")), key=lambda n: int(n[:-4]))
        arrays = [np.lib.format.read_array(io.BytesIO(file.read(n)), allow_pickle=False) for n in names]
    return Loaded(program, arrays)


class _Saved:
    """One signature of a loaded file."""

    def __init__(self, data: dict[str, Any], reader: _Reader, variables: Sequence[Variable], options: config.Options):
        scope = Scope(data["hints"])
        reader.dims = scope.values
        with scope:
            scope.replay(data["steps"], reader.value)
            graph = reader.graph(data["graph"])
            verify(graph)
        self.leaves: list[dict[str, Any]] = [
            {k: frozen(reader.value(v)) if k == "static" else reader.value(v) if k == "shape" else v
             for k, v in leaf.items()}
            for leaf in data["leaves"]
        ]
        self.static = frozen(reader.value(data["static"]))
        self.spec = None if data["plain"] else flatten(reader.value(data["tree"]))[1]
        self.hidden = [variables[k] for k in data["hidden"]]
        leaves = data["inputs"]
        captured = [Captured(h, n) for h, n in zip(self.hidden, graph.inputs[len(leaves):])]
        results = [Result(kind, at, self.hidden[at] if kind == "handle" else reader.value(v))
                   for kind, at, v in data["results"]]  # fmt: skip
        spec = None if data["result"] is None else flatten(reader.value(data["result"]))[1]
        made = Specialization(graph, leaves, captured, None, [], results, spec,  # type: ignore[arg-type]
                              [Write(*w) for w in data["writes"]], None, [], data["names"], [], [],
                              effects=any(n.op.stateful for n in graph.nodes))  # fmt: skip
        shapes = [n for leaf in self.leaves if "shape" in leaf for n in leaf["shape"]]
        positions = [next(k for k, n in enumerate(shapes) if n is d) for d in scope.inputs]
        self.fixed = len(shapes) - len(positions)
        self.template = Template(made, scope, positions, shapes, _pipeline(options))

    def sizes(self, leaves: Sequence[Any], spec: Any, static: Any) -> tuple[int, ...] | None:
        """The sizes of arguments of this signature; None for others."""
        if spec != self.spec or static != self.static or len(leaves) != len(self.leaves):
            return None
        found: list[int] = []
        for x, wanted in zip(leaves, self.leaves):
            if "shape" in wanted:
                if not is_array(x) or x.dtype.name != wanted["dtype"] or len(x.shape) != len(wanted["shape"]):
                    return None
                found += x.shape
            elif "number" in wanted:
                if x.__class__ is not _NUMBERS[wanted["number"]] and not getattr(x, "_weak", False):
                    return None
            elif is_array(x) or frozen(x) != wanted["static"]:
                return None
        fits = all(n == m for k, (n, m) in enumerate(zip(found, self._shape)) if type(m) is not Dim)
        return tuple(found) if fits else None

    @property
    def _shape(self) -> list[Any]:
        return [n for leaf in self.leaves if "shape" in leaf for n in leaf["shape"]]

    def __str__(self) -> str:
        words = []
        for name, leaf in zip(self.template.made.names, self.leaves):
            if "shape" in leaf:
                shape = ", ".join("None" if type(n) is Dim else str(n) for n in leaf["shape"])
                words.append(f"{name}: {leaf['dtype']}[{shape}]")
            else:
                words.append(f"{name}: {leaf.get('number') or repr(leaf['static'][1])}")
        return f"({', '.join(words)})"


class Loaded:
    """A program from a file. Called as the function that was saved; `variables` are its weights and state."""

    def __init__(self, program: Mapping[str, Any], arrays: Sequence[np.ndarray]):
        self.__name__ = self.name = program["name"]
        self.options = config.Options(fastmath=program["fastmath"], checks=program["checks"])
        reader = _Reader(arrays)
        parameters = []
        for p in program["parameters"]:
            default = reader.value(p["default"]) if "default" in p else inspect.Parameter.empty
            parameters.append(inspect.Parameter(p["name"], getattr(inspect.Parameter, p["kind"]), default=default))

        def stand_in() -> None: ...

        stand_in.__name__ = self.name
        stand_in.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        self._signature = Signature(stand_in, program["static"])
        self.variables = [
            Variable(arrays[v["value"]], v["trainable"], v["name"].removesuffix(":0") or None)
            for v in program["variables"]
        ]
        found = [_Saved(s, reader, self.variables, self.options) for s in program["signatures"]]
        self._saved = sorted(found, key=lambda s: -s.fixed)  # the most specific first
        self._made: OrderedDict[tuple[int, tuple[int, ...]], Specialization] = OrderedDict()
        self._lock = threading.RLock()

    @property
    def signatures(self) -> list[str]:
        """What it can be called with, the most specific first."""
        return list(map(str, self._saved))

    def __repr__(self) -> str:
        return f"<tj.Loaded {self.name}{' '.join(self.signatures)}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        signature = self._signature
        values = signature.bind(args, kwargs)
        given = [values[k] for k in signature.traced]
        leaves, spec = flatten(given)
        if all(a is b for a, b in zip(leaves, given)) and len(leaves) == len(given):
            spec = None
        static = frozen([values[k] for k in signature.static])
        leaves = [_contiguous(x) for x in leaves]
        for number, saved in enumerate(self._saved):
            sizes = saved.sizes(leaves, spec, static)
            if sizes is None:
                continue
            if state.trace is not None:
                found = self._inlined(saved, sizes, leaves)
                if found is not None:
                    return found[0]
                continue
            s = self._program(number, saved, sizes)
            if s is None:
                continue
            if s.writes and aliases_of(leaves) is not None:
                raise TypeError(f"{self.name}: an argument that is written is given twice")
            return s.run_taped(leaves, saved.hidden) if state.tapes else s.run(leaves, saved.hidden)
        types = ", ".join(repr(Type(tuple(x.shape), x.dtype)) if is_array(x) else repr(x) for x in leaves)
        raise TypeError(f"{self.name} was saved for {' and '.join(self.signatures)}; it cannot take ({types})")

    def _program(self, number: int, saved: _Saved, sizes: tuple[int, ...]) -> Specialization | None:
        key = number, sizes
        s = self._made.get(key)
        if s is None:
            with self._lock:
                s = self._made.get(key) or saved.template.make(sizes)
                if s is not None:
                    self._made[key] = s
                    while len(self._made) > MAX_PROGRAMS:
                        self._made.popitem(last=False)
        return s

    def _inlined(self, saved: _Saved, sizes: Sequence[int], leaves: Sequence[Any]) -> tuple[Any] | None:
        """The result inside a trace."""
        template = saved.template
        if any(sizes[k] != n for k, n in template.rest):
            return None
        found = solved(template.solve, [sizes[k] for k in template.positions])
        if found is None:
            return None
        graph, values = found
        s = template.with_values(values)
        tensors = [core.as_tensor(leaves[k]) for k in s.leaves]
        tensors = [core.cast(t, n.dtype) for t, n in zip(tensors, graph.inputs)]
        outputs = evaluate(graph, [*tensors, *(v.read_value() for v in saved.hidden)])
        for w in s.writes:
            target = leaves[w.leaf] if w.leaf >= 0 else saved.hidden[w.hidden]
            if not isinstance(target, Tensor):
                raise TypeError(f"{self.name} writes an argument, which must be a tensor here")
            core.rebind(target, outputs[w.at])
        return (s.rebuild(outputs, leaves, saved.hidden),)


def _contiguous(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x if x.flags.c_contiguous else np.ascontiguousarray(x)
    if type(x) is Tensor and isinstance(x._value, np.ndarray) and not x._value.flags.c_contiguous:
        return Tensor(np.ascontiguousarray(x._value))
    return x


__all__ = ["export", "load", "save"]
