"""One traced call: what a trace needs of later calls to stand for them, and how their values go in and come out.

In: `record` runs a Python function under a trace. Out: a `Specialization`: the graph, where each of its inputs comes
from, where each output goes, and the conditions (`matches`) under which another call with the same key may use it.

Read next: `captures.py` (values from outside), `function.py` (the cache of these).
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Callable, ItemsView, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from tracejit import config, dtypes
from tracejit.dims import Dim
from tracejit.errors import TracerError
from tracejit.ir import Graph, Node, Type, has_effects
from tracejit.locks import updating
from tracejit.ops import core
from tracejit.ops.random import counts_draws, drawing
from tracejit.ops.selected import Selected
from tracejit.tensor import Number, Tensor, recording, wrap
from tracejit.trace.autograph.raising import last_raise, raise_later
from tracejit.trace.autograph.values import Undefined
from tracejit.trace.calls import CompiledGraph
from tracejit.trace.captures import Reach, Watch
from tracejit.trace.checked import leave
from tracejit.trace.signature import Call, Signature, flatten, is_array, is_number, native, unflatten
from tracejit.trace.tracer import NUMBER_DTYPES, Captured, Trace, settled

IN_PLACE = 1 << 20  # bytes from which writing a Variable into its old memory pays (below, all is in the cache)


@dataclass(slots=True)
class Result:
    """Where one leaf of the function's result comes from. kind: output (of the graph, at `at`), number (the same, as a
    Python number), leaf (argument leaf `at`, given back as it is), handle (hidden input `at`, the Variable itself),
    array (a copy of `value`), static (`value`)."""

    kind: str
    at: int = -1
    value: Any = None


@dataclass(slots=True)
class Write:
    """Output `at` of the graph is written to an argument leaf or a hidden handle."""

    leaf: int  # -1: hidden
    hidden: int
    at: int


@dataclass(slots=True, eq=False)
class Specialization:
    """A traced call. Its graph's inputs are the leaves `leaves`, then the handles of `hidden`."""

    recorded: Graph | Callable[[], Graph]  # the graph, or how to make it
    leaves: list[int]
    hidden: list[Captured]
    watch: Watch  # finds the hidden handles and those of `ties`, checks what was read from outside
    numbers: list[tuple[int, Any, str]]  # leaves whose value the program needs: position, value, name
    results: list[Result]
    spec: Any
    writes: list[Write]
    aliases: tuple[int, ...] | None  # for each leaf the first leaf that is the same handle; None: all differ
    ties: list[int]  # leaves that were also found outside, as the handles after the hidden ones
    names: list[str]
    expected: list[tuple[Any, ...]]  # of hidden values: shape, dtype, strides (None: C-contiguous), bytes if guarded
    created: list[str]  # lines that made Variables; such a trace serves one call only
    draws: tuple[int, ...] = ()  # hidden handles that count draws of random generators
    copied: list[int] = field(default_factory=list)  # inputs that are not contiguous, but become so for the program
    reason: str = ""
    ran: int = 0  # calls that came through Python
    entry: Any = None  # the native way in, which counts its own (`runtime/entry.py`)
    effects: bool = False  # whether it prints, checks or calls back
    shared: bool = False  # whether it changes Variables, and nothing in it waits for other threads
    default: np.dtype = field(default_factory=dtypes.default_float)  # what Python floats became
    shortcut: Any = None  # the fast way in, once it is known (`shortcut.py`)
    template: Any = None  # the trace with open sizes that it was made from, if any (`symbolic.py`)
    # what `install` adds
    built: Any = None
    program: Any = None
    build: Any = None
    compiled: Any = None  # for gradient tapes
    passed: list[tuple[int, int]] = field(default_factory=list)  # outputs of the program that are inputs
    in_place: list[tuple[Write, int]] = field(default_factory=list)  # writes that may go into the memory of an input
    over: dict[int, int] = field(default_factory=dict)  # all such outputs of hidden handles, and the inputs

    @property
    def calls(self) -> int:
        """How often it ran."""
        return self.ran + (self.entry.calls if self.entry is not None else 0)

    @property
    def graph(self) -> Graph:
        """What was recorded."""
        if not isinstance(self.recorded, Graph):
            self.recorded = self.recorded()
        return self.recorded

    # -- may it run this call? -----------------------------------------------------------------------------------------
    def matches(self, leaves: Sequence[Any], instance: Any) -> Sequence[Any] | None:
        """The hidden handles if this program may run a call with these leaves (whose key it shares); else None."""
        if self.default is not dtypes.default_float():
            return None
        for k, value, _ in self.numbers:
            if repr(leaves[k]) != repr(value):  # tells 0.0 from -0.0; nan is itself
                return None
        if (self.aliases is not None or self.writes) and aliases_of(leaves) != self.aliases:
            return None
        handles = self.watch.read(instance)
        if handles is None or (self.writes and not self._apart(leaves, handles)):
            return None
        for k, tied in zip(self.ties, handles[len(self.hidden) :]):
            if leaves[k] is not tied:
                return None
        for handle, (shape, dtype, strides, contents) in zip(handles, self.expected):
            value = current(handle)
            if value.shape != shape or value.dtype != dtype:
                return None
            if not value.flags.c_contiguous if strides is None else value.strides != strides:
                return None
            if contents is not None and contents != value.tobytes():
                return None
        return handles

    def _apart(self, leaves: Sequence[Any], handles: Sequence[Any]) -> bool:
        """Whether no two hidden handles, and no leaf and hidden handle, are one: a write would be one to both."""
        hidden = {id(h) for h in handles[: len(self.hidden)]}
        return len(hidden) == len(self.hidden) and not any(id(x) in hidden for x in leaves)

    def difference(self, leaves: Sequence[Any], instance: Any) -> str:
        """Why `matches` said no, in words."""
        if self.default is not dtypes.default_float():
            return f"the default dtype {self.default} -> {dtypes.default_float()}"
        for k, value, name in self.numbers:
            if repr(leaves[k]) != repr(value):
                return f"argument '{name}' {value!r} -> {leaves[k]!r} (the program depends on its value)"
        if (self.aliases is not None or self.writes) and aliases_of(leaves) != self.aliases:
            return "which arguments are the same tensor"
        changed = self.watch.difference(instance)
        if changed:
            return changed
        handles = self.watch.read(instance) or ()
        for c, handle, (shape, dtype, _, contents) in zip(self.hidden, handles, self.expected):
            value = current(handle)
            old, new = Type(shape, dtype), Type(value.shape, value.dtype)
            if old != new:
                return f"captured {c.node.name} {old!r} -> {new!r}"
            if contents is not None and contents != value.tobytes():
                return f"captured {c.node.name} changed its value, which Python code read at trace time"
        return "which arguments are captured tensors, or a captured value's layout"

    # -- running -------------------------------------------------------------------------------------------------------
    def install(self, built: Any, build: Any) -> None:
        """Make it runnable: `built` is the graph's program, `build` makes those of its derivatives when asked for."""
        self.built = built
        self.program = built.program
        self.build = build
        plan = built.plan
        # results that are an input itself must not share memory with a caller's NumPy array
        self.passed = [(k, plan.inputs.index(b)) for k, b in enumerate(plan.outputs) if b in plan.inputs]
        if self.effects:
            return  # a check may fail halfway: what is written then keeps its value
        reusable = self.program.storage.reusable
        drawn = {len(self.leaves) + k for k in self.draws}
        for w in self.writes:
            if w.at in reusable and built.plan.buffers[built.plan.outputs[w.at]].nbytes >= IN_PLACE:
                self.in_place.append((w, reusable[w.at]))
            if w.at in reusable and w.leaf < 0 and reusable[w.at] not in drawn:
                self.over[w.at] = reusable[w.at]

    def run(self, leaves: Sequence[Any], handles: Sequence[Any]) -> Any:
        """Run the program on these leaves and handles."""
        if self.draws:
            with drawing([handles[k] for k in self.draws]):
                return self._run(leaves, handles)
        if self.shared:
            with updating(self.updated(leaves, handles)):
                return self._run(leaves, handles)
        return self._run(leaves, handles)

    def updated(self, leaves: Sequence[Any], handles: Sequence[Any]) -> list[Tensor]:
        """What it writes outside of it, where other threads may write too."""
        targets = (leaves[w.leaf] if w.leaf >= 0 else handles[w.hidden] for w in self.writes)
        return [x for x in targets if isinstance(x, Tensor)]

    def _run(self, leaves: Sequence[Any], handles: Sequence[Any]) -> Any:
        self.ran += 1
        if self.writes:
            self.check_writable(leaves)
        arrays = self.gather(leaves, handles)
        outputs = (
            self.program(arrays, self._targets(arrays, leaves, handles)) if self.in_place else self.program(arrays)
        )
        for k, i in self.passed:
            if self.source(i, leaves, handles).__class__ is np.ndarray:
                outputs[k] = arrays[i].copy()
        if self.writes:
            self.write_back(outputs, leaves, handles)
        return self.rebuild([wrap(o) for o in outputs], leaves, handles)

    def _targets(
        self, arrays: list[np.ndarray], leaves: Sequence[Any], handles: Sequence[Any]
    ) -> dict[int, np.ndarray]:
        """Arrays to write results into: those of Variables whose old value nobody else can see."""
        found = {}
        for w, i in self.in_place:
            shared = sys.getrefcount(arrays[i]) != 3  # the handle's, the list's, and the argument of getrefcount
            value = arrays[i]
            own = value.base.__class__ is not np.ndarray and value.flags.writeable and not shared
            if own and isinstance(self.source(i, leaves, handles), Tensor):
                found[w.at] = value
        return found

    def run_taped(self, leaves: Sequence[Any], handles: Sequence[Any]) -> Any:
        """Run as one op that tapes hear."""
        with drawing([handles[k] for k in self.draws]), updating(self.updated(leaves, handles) if self.shared else ()):
            return self._run_taped(leaves, handles)

    def _run_taped(self, leaves: Sequence[Any], handles: Sequence[Any]) -> Any:
        self.ran += 1
        if self.writes:
            self.check_writable(leaves)
        arrays = self.gather(leaves, handles)
        sources = [self.source(i, leaves, handles) for i in range(len(arrays))]
        # the caller's own handles where they are tensors: tapes know those
        tensors = [x if isinstance(x, Tensor) else wrap(np.array(a)) for x, a in zip(sources, arrays)]
        if self.compiled is None:
            self.compiled = CompiledGraph(self.graph, self.build, self.built)
        outputs = self.compiled(tensors)
        if self.writes:
            self.write_back([t._value for t in outputs], leaves, handles)
        return self.rebuild(outputs, leaves, handles)

    def source(self, i: int, leaves: Sequence[Any], handles: Sequence[Any]) -> Any:
        """What input `i` of the program is read from."""
        return leaves[self.leaves[i]] if i < len(self.leaves) else handles[i - len(self.leaves)]

    def input_of(self, w: Write) -> int:
        """Which input of the program holds the old value of what is written."""
        return self.leaves.index(w.leaf) if w.leaf >= 0 else len(self.leaves) + w.hidden

    def gather(self, leaves: Sequence[Any], handles: Sequence[Any]) -> list[np.ndarray]:
        """The program's inputs."""
        arrays = []
        for k in self.leaves:
            x = leaves[k]
            cls = x.__class__
            if cls is Tensor:
                arrays.append(x._value)
            elif cls in NUMBER_DTYPES:
                arrays.append(np.asarray(x, NUMBER_DTYPES[cls]))
            else:
                arrays.append(current(x))
        for i in self.copied:
            arrays[i] = np.ascontiguousarray(arrays[i])
        arrays.extend([current(h) for h in handles[: len(self.hidden)]])
        return arrays

    def write_back(self, outputs: Sequence[np.ndarray], leaves: Sequence[Any], handles: Sequence[Any]) -> None:
        """Let handles from outside stand for what was written to them."""
        for w in self.writes:
            target = leaves[w.leaf] if w.leaf >= 0 else handles[w.hidden]
            if isinstance(target, Tensor):
                target._value = outputs[w.at]
            else:
                np.copyto(target, outputs[w.at])

    def rebuild(self, outputs: Sequence[Tensor], leaves: Sequence[Any], handles: Sequence[Any]) -> Any:
        """The function's result from tensors of the graph's outputs."""
        found: list[Any] = []
        for r in self.results:
            if r.kind == "output":
                found.append(wrap(outputs[r.at]._value))
            elif r.kind == "number":
                value = outputs[r.at]._value
                found.append(value.item() if isinstance(value, np.ndarray) else core.as_number(outputs[r.at]))
            elif r.kind == "leaf":
                found.append(leaves[r.at])
            elif r.kind == "handle":
                found.append(handles[r.at])
            else:
                found.append(r.value.copy() if r.kind == "array" else r.value)
        return found[0] if self.spec is None else unflatten(self.spec, found)

    def check_writable(self, leaves: Sequence[Any]) -> None:
        """Refuse writes into read-only arrays, and into arrays that share memory with another array argument: what that
        one would then hold depends on when it is read."""
        for w in self.writes:
            target = leaves[w.leaf] if w.leaf >= 0 else None
            if not isinstance(target, np.ndarray):
                continue
            if not target.flags.writeable:
                raise ValueError(f"argument '{self.names[w.leaf]}' is written, but the array is read-only; pass a copy")
            for k, other in enumerate(leaves):
                if isinstance(other, np.ndarray) and other is not target and np.may_share_memory(target, other):
                    raise shares_memory(self.names[w.leaf], self.names[k])


def shares_memory(written: str, other: str) -> ValueError:
    """The error for arguments whose meaning would depend on the order of reads and writes."""
    return ValueError(
        f"arguments '{written}' and '{other}' share memory and '{written}' is written inside the function, so "
        f"'{other}' would change with it; pass a copy of one of them"
    )


def current(handle: Any) -> np.ndarray:
    """The array a handle stands for now."""
    return settled(handle) if isinstance(handle, Tensor) else native(np.asarray(handle))


def aliases_of(leaves: Sequence[Any]) -> tuple[int, ...] | None:
    """For each leaf the first leaf that is the same handle; None if all handles differ."""
    first: dict[int, int] = {}
    found = []
    for k, x in enumerate(leaves):
        found.append(first.setdefault(id(x), k) if isinstance(x, (Tensor, np.ndarray)) else k)
    return None if len(first) == sum(isinstance(x, (Tensor, np.ndarray)) for x in leaves) else tuple(found)


# -- recording ---------------------------------------------------------------------------------------------------------
def record(
    function: Callable[..., Any],
    call: Call,
    signature: Signature,
    name: str,
    reach: Reach,
    *before: Any,
    dims: Mapping[tuple[int, int], Dim] | None = None,
) -> Specialization:
    """Run `function` on traced stand-ins for the leaves of `call`, and say what it did. `dims` are symbolic sizes, by
    leaf and axis."""
    names = signature.leaf_names(call.spec)
    trace = Trace(name, reach.find)
    aliases = aliases_of(call.leaves)
    stand_ins, starts = _stand_ins(trace, call.leaves, names, aliases, reach, dims or {})
    values = signature.rebuild(call, stand_ins)
    given = {signature.names[k]: flatten(values[k]) for k in call.traced} if call.spec is not None else {}
    begin = perf_counter()
    try:
        with recording(trace):
            result = signature.call_with(function, values, *before)
            reach.changed += [n for k, n in zip(call.traced, given) if _is_changed(values[k], *given[n])]
            outputs, results, spec = _results(trace, result, stand_ins, starts)
    except Exception as error:
        if last_raise.latest is error and any(_MENTION.search(a) for a in error.args if isinstance(a, str)):
            with recording(trace):
                raise_later(error)  # its text holds traced values
        effects = [n for n in trace.nodes if has_effects(n)]
        if effects and not hasattr(error, "_tracejit_alone"):  # what eager code would have done before it failed
            inputs = {n: call.leaves[k] for k, n in starts.items()}
            leave(error, trace, inputs, effects)
        raise
    finally:
        written = trace.close()
        if config.debug.watch is not None:
            config.debug.watch.span(f"trace {name}", "trace", begin, perf_counter())
    del values, result, given
    _check_kept(trace, written)
    reach.settle()

    adopted = {id(call.leaves[k]): k for k in starts if call.leaves[k] is stand_ins[k]}
    hidden = [c for h, c in trace.captured.items() if h not in adopted]
    place = {id(c.handle): k for k, c in enumerate(hidden)}
    for r in results:
        if r.kind == "handle":
            r.at = place[id(r.value)]
    writes: list[Write] = []
    for k, node in starts.items():
        local = k not in adopted.values() and is_handle(call.leaves[k])
        if local and stand_ins[k]._value is not node:
            writes.append(Write(k, -1, len(outputs)))
            outputs.append(wrap(stand_ins[k]._value))
    for handle, new in written:
        found = trace.captured.get(id(handle))
        if found is not None and new._value is not found.node:
            leaf = adopted.get(id(handle), -1)
            writes.append(Write(leaf, -1 if leaf >= 0 else place[id(handle)], len(outputs)))
            outputs.append(new)

    graph = trace.finish(outputs)
    hidden_nodes = {c.node for c in hidden}
    graph.inputs = tuple(sorted(graph.inputs, key=lambda n: n in hidden_nodes))
    position = {n: k for k, n in starts.items()}
    ties = {k: path for h, k in adopted.items() if (path := reach.path(call.leaves[k])) is not None}
    made = Specialization(
        recorded=graph,
        leaves=[position[n] for n in graph.inputs if n not in hidden_nodes],
        hidden=hidden,
        watch=reach.watch([*(c.path or c.handle for c in hidden), *ties.values()]),
        numbers=[(position[n], value, names[position[n]]) for n, value in trace.needed.items()],
        results=results,
        spec=spec,
        writes=writes,
        aliases=aliases,
        ties=list(ties),
        names=names,
        expected=[_expectation(c) for c in hidden],
        created=[where for _, where in trace.created],
        draws=tuple(w.hidden for w in writes if w.hidden >= 0 and counts_draws(hidden[w.hidden].handle)),
        effects=any(has_effects(n) for n in graph.nodes),
    )
    targets = (call.leaves[w.leaf] if w.leaf >= 0 else hidden[w.hidden].handle for w in writes)
    made.shared = not made.effects and any(isinstance(x, Tensor) and x._place for x in targets)
    arrays = made.gather(call.leaves, [c.handle for c in hidden])
    graph.notes["updates"] = {w.at: made.input_of(w) for w in writes}
    strides = {k: tuple(s // a.itemsize for s in a.strides) for k, a in enumerate(arrays) if not a.flags.c_contiguous}
    if dims:  # with each size strides differ too
        made.copied = [k for k in strides if k < len(made.leaves)]
        strides = {k: s for k, s in strides.items() if k >= len(made.leaves)}
    if strides:
        graph.notes["strides"] = strides
    return made


def is_handle(x: Any) -> bool:
    """Whether a write to an argument is seen by the caller (NumPy scalars and Python numbers are immutable)."""
    return isinstance(x, (Tensor, np.ndarray))


def _stand_ins(
    trace: Trace,
    leaves: Sequence[Any],
    names: Sequence[str],
    aliases: tuple[int, ...] | None,
    reach: Reach,
    dims: Mapping[tuple[int, int], Dim],
) -> tuple[list[Any], dict[int, Node]]:
    """What the function gets for each leaf, and the input node of each leaf that has one."""
    stand_ins: list[Any] = []
    starts: dict[int, Node] = {}
    for k, x in enumerate(leaves):
        if aliases is not None and aliases[k] != k:
            stand_ins.append(stand_ins[aliases[k]])
            continue
        stand_in, known = x, len(trace.inputs)
        label = f"argument '{names[k]}'"
        if is_number(x):
            stand_in = trace.number(x, label)
        elif is_array(x):
            # a Variable is passed as itself, and so is a tensor that the function also finds outside: one handle
            itself = isinstance(x, Tensor) and (type(x) is not Tensor or reach.path(x) is not None)
            shape = tuple(dims.get((k, axis), n) for axis, n in enumerate(x.shape))
            if itself:  # which has its size
                shape = tuple(n.fix() if type(n) is Dim else n for n in shape)
            of = Type(shape, dtypes.as_dtype(x.dtype))
            stand_in = trace.adopt(x, of, label) if itself else trace.input(of, label)
            if isinstance(x, np.generic):
                trace.scalars[trace.inputs[-1]] = x
        stand_ins.append(stand_in)
        if len(trace.inputs) > known:
            starts[k] = trace.inputs[-1]
    return stand_ins, starts


def _expectation(c: Captured) -> tuple[Any, ...]:
    value = current(c.handle)
    strides = None if value.flags.c_contiguous else value.strides
    return value.shape, value.dtype, strides, None if c.guard is None else c.guard.tobytes()


def _check_kept(trace: Trace, written: Sequence[tuple[Tensor, Tensor]]) -> None:
    """A Variable that nothing keeps after the trace would be a new one at each call: refuse it."""
    for k in range(len(trace.created)):  # no name for the Variable here: that would be one more reference
        # ours: the list of created ones, the capture, the argument of getrefcount, and `written` if it was assigned
        ours = 3 + any(h is trace.created[k][0] for h, _ in written)
        if sys.getrefcount(trace.created[k][0]) <= ours:
            raise creation_error(trace.created[k][1], trace.name, "is not kept by anything after the call")


def _results(
    trace: Trace, result: Any, stand_ins: Sequence[Any], starts: dict[int, Node]
) -> tuple[list[Tensor], list[Result], Any]:
    """The graph outputs and the recipe for a function's result."""
    leaves, spec = ([result], None) if isinstance(result, Tensor) else flatten(_without_traced_keys(result))
    outputs: list[Tensor] = []
    found: list[Result] = []
    for x in leaves:
        if isinstance(x, Number):
            same = [k for k, node in starts.items() if node is x._value and node in trace.numbers]
            if same:
                found.append(Result("leaf", same[0]))
                continue
            outputs.append(trace.read(x))
            found.append(Result("number", len(outputs) - 1))
            continue
        if isinstance(x, Tensor) and x._place and isinstance(x._value, np.ndarray):
            trace.node_of(x)  # given back without having been read
        if (
            isinstance(x, Tensor)
            and type(x) is not Tensor
            and (id(x) in trace.captured or any(x is s for s in stand_ins))
        ):
            leaf = next((k for k, s in enumerate(stand_ins) if s is x), None)
            found.append(Result("handle", value=x) if leaf is None else Result("leaf", leaf))
            continue
        if isinstance(x, Tensor):
            outputs.append(trace.read(x))
            found.append(Result("output", len(outputs) - 1))
        elif isinstance(x, np.ndarray):
            found.append(Result("array", value=x.copy()))
        elif type(x) is Undefined or type(x) is Selected:
            raise x.error()
        elif isinstance(x, str) and _MENTION.search(x):
            made = [getattr(t._value, "where", "") for mention, (t, _) in trace.mentions.items() if mention in x]
            raise TracerError(
                f"{trace.name} returns a text with a traced value in it, {x!r:.80}"
                f"{f' (a value of {made[0]})' if made and made[0] else ''}; text is made once, while tracing. "
                f"Return the value and make the text outside, or write it with print"
            )
        else:
            _refuse_hidden_values(trace, x)
            found.append(Result("static", value=x))
    return outputs, found, spec


def _refuse_hidden_values(trace: Trace, x: Any) -> None:
    """TracerError for a result that is no value itself but holds traced ones: it would give them away unfinished."""
    if isinstance(x, _LATER):
        raise TracerError(
            f"{trace.name} returns a {type(x).__name__}, whose elements would be made after the function has been "
            f"traced. Return a list or tuple of them"
        )
    parts = x.__dict__ if isinstance(getattr(x, "__dict__", None), dict) else {}
    if isinstance(x, types.FunctionType):
        parts = inspect.getclosurevars(x).nonlocals
    for name, t in parts.items():
        if type(t) is Tensor and isinstance(t._value, Node) and id(t) not in trace.captured:
            kind = f"the function {x.__name__}" if isinstance(x, types.FunctionType) else f"a {type(x).__name__}"
            where = f" (made at {t._value.where})" if t._value.where else ""
            raise TracerError(
                f"{trace.name} returns {kind}, in which {name!r} is a traced tensor{where}. Return the tensor itself, "
                f"or a tuple, list, dict, dataclass or registered class with it"
            )


_LATER = (types.GeneratorType, map, filter, zip, enumerate, reversed, ItemsView, ValuesView)
_MENTION = re.compile(r"<traced [^<>]* #\d+")  # `Trace.mention`


def _without_traced_keys(x: Any) -> Any:
    """A result whose dicts and sets hold Python's own numbers, where they held traced ones (which are known then)."""
    plain = lambda k: k.item() if isinstance(k, Number) else k
    if type(x) is dict:
        return {plain(k): _without_traced_keys(v) for k, v in x.items()}
    if type(x) in (list, tuple):
        return type(x)([_without_traced_keys(v) for v in x])
    if type(x) in (set, frozenset):
        return type(x)([plain(v) for v in x])
    return x


def _is_changed(container: Any, leaves: Sequence[Any], spec: Any) -> bool:
    """Whether an argument has other entries than before."""
    now, spec_now = flatten(container)
    return spec_now != spec or any(a is not b for a, b in zip(leaves, now))


def creation_error(where: str, name: str, problem: str) -> TracerError:
    return TracerError(
        f"the Variable created at {where}, inside {name}, {problem}. A function may create a Variable once and keep it "
        f"(if self.w is None: self.w = tj.Variable(...)); for a local value use a tensor."
    )
