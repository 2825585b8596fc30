"""`@tj.function`: from a Python function to fused native kernels. The pipeline, top to bottom.

    call      bind and flatten the arguments, look the key up                      trace/signature.py
    record    on a miss: run the Python function on tracers                        trace/specialization.py,
    trace/tracer.py
    PASSES    rewrite the graph                                                    trace/passes/
    fuse      graph -> kernels over buffers                                        lower/fuse.py
    build     kernels -> machine code, through memory and disk caches              runtime/build.py
    Program   run them                                                             runtime/program.py

Inside another trace a decorated function is inlined: its Python body runs in the outer trace. Under a gradient tape a
call is one record, whose derivative is another compiled program (`trace/calls.py`).

Read next: `explain.py` (all of this as text).
"""

from __future__ import annotations

import functools
import inspect
import reprlib
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tracejit import config
from tracejit.config import Options
from tracejit.dims import Dim, Scope
from tracejit.errors import boundary, last_user_line, most_repeated, tidy, user_depth, user_line
from tracejit.ir import Graph, Type
from tracejit.lower import buffers
from tracejit.lower.fuse import fuse
from tracejit.lower.plan import Plan
from tracejit.runtime import pool
from tracejit.tensor import Tensor, state
from tracejit.trace.autograph.convert import convert
from tracejit.trace.built import Built, Kernels, Lowered, Lowering, kernel_infos
from tracejit.trace.cache import MAX_KEYS, CacheInfo, Described, Stats, Traces, no_shortcut
from tracejit.trace.captures import Reach
from tracejit.trace.checked import run_left
from tracejit.trace.passes.batch import batch
from tracejit.trace.passes.control import control
from tracejit.trace.passes.cse import cse
from tracejit.trace.passes.dce import dce
from tracejit.trace.passes.dissolve import dissolve, settle
from tracejit.trace.passes.fission import fission
from tracejit.trace.passes.fold import fold
from tracejit.trace.passes.lanes import lanes
from tracejit.trace.passes.moments import moments
from tracejit.trace.passes.roll import roll
from tracejit.trace.passes.running import running
from tracejit.trace.passes.simplify import simplify, simplify_fast
from tracejit.trace.passes.vectors import vectors
from tracejit.trace.reading import packaged
from tracejit.trace.runner import Pass, run
from tracejit.trace.shortcut import MISS, Shortcut, shortcut
from tracejit.trace.signature import Call, Signature, Spec, arguments_key, describe_change, flatten, is_array
from tracejit.trace.specialization import Specialization, creation_error, record, shares_memory
from tracejit.trace.symbolic import Family, Openings, Pipeline, Template, fix_unseen, must_be_open
from tracejit.trace.tracer import LOCK

if TYPE_CHECKING:
    from tracejit.runtime.program import Program

PASSES: tuple[Pass, ...] = (
    roll, control, dissolve, batch, running, fold, simplify, vectors, cse, settle, moments, control, fission, lanes,
    dce,
)
FAST_PASSES = tuple(simplify_fast if p is simplify else p for p in PASSES)  # with fastmath


def _runtime() -> tuple[Any, type[Program]]:
    """The compiler and the executor. They load llvmlite, which only a function that is called needs."""
    from tracejit.runtime import build as machine_code
    from tracejit.runtime.program import Program

    return machine_code, Program


def build(graph: Graph, options: Options) -> Built:
    """Optimise, fuse and compile a graph."""
    return load(lower(graph, options), options)


def lower(graph: Graph, options: Options) -> Lowering:
    """Optimise and fuse a graph."""
    start = time.perf_counter()
    stages: list[tuple[str, Graph, float]] = []
    graph = run(FAST_PASSES if options.fastmath else PASSES, graph, lambda *stage: stages.append(stage))
    plan = fuse(graph, options)
    return Lowering(graph.name, stages, plan, buffers.assign(plan, graph.notes.get("updates", {})), start)


def compile_kernels(plan: Plan, options: Options) -> list[int]:
    """Addresses of the code of a plan's kernels."""
    return _runtime()[0].build([launch.kernel for launch in plan.launches], options)  # type: ignore[no-any-return]


def load(lowered: Lowering, options: Options) -> Built:
    """Compile the kernels of a plan, and make it runnable."""
    plan = lowered.plan
    program = _runtime()[1](plan, lowered.kernels or compile_kernels(plan, options), lowered.storage)
    program.name = lowered.name
    end = time.perf_counter()
    if config.debug.watch is not None:
        config.debug.watch.span(f"compile {lowered.name}", "compile", lowered.start, end)
    return Built(lowered.stages, plan, program, end - lowered.start)


# -- limits ------------------------------------------------------------------------------------------------------------
WARN_TRACES = 32  # traces of one function that draw a warning
WARN_DECORATIONS = 16  # decorations of one piece of code that draw a warning

_decorations: dict[Hashable, int] = {}


@dataclass(slots=True)
class Totals:
    """What all functions did so far."""

    functions: int = 0
    traces: int = 0


_totals = Totals()


def _given(name: str, x: Any) -> str:
    """An argument in an error: what is known of arrays, the value of others."""
    if is_array(x):
        return f"{name}: {Type(tuple(x.shape), np.dtype(x.dtype))!r}"
    return f"{name} = {reprlib.repr(x)}"


class Function:
    """A Python function, compiled for the types of its arguments when called. See `function`."""

    def __init__(
        self,
        python_function: Callable[..., Any],
        *,
        static_argnames: Sequence[str] = (),
        input_signature: Any = None,
        device: str | None = None,
        autograph: bool = True,
        fastmath: bool = False,
        checks: bool = True,
        name: str | None = None,
    ):
        if device not in (None, "cpu"):
            raise ValueError(f"device {device!r} is not available; use 'cpu'")
        static = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        self.python_function = python_function
        self.name = str(name or getattr(python_function, "__name__", type(python_function).__name__))
        self.options = Options(fastmath=fastmath, checks=checks)
        self.settings: dict[str, Any] = {
            "static_argnames": static,
            "input_signature": input_signature,
            "device": device,
            "autograph": autograph,
            "fastmath": fastmath,
            "checks": checks,
            "name": name,
        }
        self.static_argnames = static
        self.input_signature = input_signature
        self._instances: dict[int, tuple[weakref.ref[Any], Function]] = {}
        self._owner: weakref.ref[Any] | None = None  # the instance, if this is one instance's view of a method
        self._traces = Traces()
        functools.update_wrapper(self, python_function, updated=())
        if not hasattr(self, "__name__"):
            self.__name__ = self.name
        self._signature: Signature | None = None

    # -- calling -------------------------------------------------------------------------------------------------------
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if not kwargs and not state.active and not config.debug.eager:
                traces = self._traces
                result = traces.shortcut(args, None)
                if result is not MISS:
                    return result
                found = traces.by_arguments.get(arguments_key(args))
                if found is not None:
                    leaves = args + found[1]
                    for s in found[0]:
                        handles = s.matches(leaves, None)
                        if handles is not None:
                            if len(leaves) == len(args):
                                traces.shortcut = self._shortcut(s, leaves)
                            return s.run(leaves, handles)
            return self._call((), args, kwargs)
        except Exception as error:
            self._tidy(error, (), args, kwargs)
            raise

    def _tidy(
        self, error: Exception, before: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Let an error speak of the user's code."""
        note = ""
        if state.trace is None:
            frames = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
            how = "was traced" if record.__code__ in frames else "was compiled" if build.__code__ in frames else "ran"
            at = f", at {line}" if how == "was traced" and (line := last_user_line(error)) else ""
            try:
                signature = self.signature(before)
                call = signature.call(args, kwargs)
                types = ", ".join(map(_given, signature.leaf_names(call.spec), call.leaves))
                note = f"while {self.name} {how}{f' with {types}' if types else ''}{at}"
            except Exception:  # the arguments themselves are at fault
                note = f"in a call of {self.name}"
        tidy(error, self.name, note)

    def _call(self, before: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call by the long way. `before` holds the instance, for a method."""
        if state.trace is not None:
            return self._inlined(before, args, kwargs)
        if config.debug.eager:
            return self._eagerly(before, args, kwargs)
        call = self.signature(before).call(args, kwargs)
        if self.input_signature is not None:
            self._check_types(call)
        s, handles = self._specialization(call, before)
        if state.tapes and (config.debug.nans or any(t.differentiates for t in state.tapes)):
            return s.run_taped(call.leaves, handles)
        if not kwargs and not s.created:
            self._remember(before, args, call, s)
        return s.run(call.leaves, handles)

    def _traceable(self) -> Callable[..., Any]:
        """The Python function, its control flow rewritten so that it works on traced values too."""
        return convert(self.python_function) if self.settings["autograph"] else self.python_function

    def signature(self, before: tuple[Any, ...] = ()) -> Signature:
        if self._signature is None:
            self._signature = Signature(self.python_function, self.static_argnames, skip_first=bool(before))
        return self._signature

    def _remember(self, before: tuple[Any, ...], args: tuple[Any, ...], call: Call, s: Specialization) -> None:
        """Let later calls like this one skip binding and flattening."""
        traces = self._traces
        plain = len(call.traced) == len(call.values) and len(args) <= len(call.leaves)
        if not plain or not all(a is b for a, b in zip(args, call.leaves)):
            return
        if s.calls and len(args) == len(call.leaves):
            traces.shortcut = self._shortcut(s, args)
        key = None if before else arguments_key(args)
        found = traces.by_key.get(call.key)
        if key is not None and found is not None:
            if len(traces.by_arguments) >= 4 * MAX_KEYS:
                traces.by_arguments.clear()
            traces.by_arguments[key] = found, tuple(call.leaves[len(args) :])

    def _shortcut(self, s: Specialization, leaves: tuple[Any, ...]) -> Shortcut:
        """The shortcut of a specialisation; made at its second call."""
        if s.shortcut is None:
            s.shortcut = shortcut(s, leaves) or no_shortcut
        return s.shortcut  # type: ignore[no-any-return]

    def _inlined(self, before: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        try:
            return self._traceable()(*before, *args, **kwargs)
        except RecursionError as error:
            raise self._endless(error) from None

    def _endless(self, error: RecursionError) -> RecursionError:
        if error.args and "while it is traced" in str(error.args[0]):
            return error
        name, where = most_repeated(error)
        return RecursionError(
            f"{name or self.name} calls itself at {where}, without end while it is traced: both ways of a condition on "
            f"a traced value are followed, so a recursion must stop on a Python number or a shape. Write a while loop "
            f"in place of the recursion, or pass what it stops on as a Python number"
        )

    # -- finding and making specialisations ----------------------------------------------------------------------------
    def _specialization(self, call: Call, before: tuple[Any, ...]) -> tuple[Specialization, Sequence[Any]]:
        found = self._lookup(call, before)
        if found is None:
            with self._traces.lock:
                found = self._lookup(call, before) or self._made_before(call, before) or self._make(call, before)
        return found

    def _lookup(self, call: Call, before: tuple[Any, ...]) -> tuple[Specialization, Sequence[Any]] | None:
        instance = before[0] if before else None
        for s in self._traces.by_key.get(call.key, ()):
            handles = s.matches(call.leaves, instance)
            if handles is not None:
                return s, handles
        return None

    def _made_before(self, call: Call, before: tuple[Any, ...]) -> tuple[Specialization, Sequence[Any]] | None:
        """A specialisation for new sizes, from an earlier trace that left them open."""
        family, sizes = self._traces.family(call)
        if family is None:
            return None
        family.see(sizes)
        for template in family.templates:
            handles = template.made.matches(call.leaves, before[0] if before else None)
            if handles is not None and (s := template.make(sizes)) is not None:
                self._traces.keep(call.key, s)
                return s, handles
        return None

    def _make(self, call: Call, before: tuple[Any, ...]) -> tuple[Specialization, Sequence[Any]]:
        traces = self._traces
        reason = self._reason(call, before)
        try:
            s, opened = self._traced(call, before)
        except Exception as error:
            if (earlier := run_left(error)) is not None:
                raise earlier from None
            raise
        if opened:
            reason += f"; from here on {opened} may have any size"
        if s.created and traces.creations:
            raise creation_error(s.created[0], self.name, "is a second one: an earlier call has made one there")
        if s.built is None:
            s.install(build(s.graph, self.options), self._build)
        built = s.built
        s.reason = reason
        traces.count += 1
        _totals.traces += 1
        traces.history.append(f"trace {traces.count}: {reason}")
        if config.debug.log:
            print(
                f"tracejit: {self.name}: trace {traces.count}: {reason}; {len(s.graph.nodes)} ops, "
                f"{len(built.plan.launches)} kernels, "
                f"{built.seconds * 1e3:.1f} ms",
                file=sys.stderr,
            )
        if traces.count == WARN_TRACES:
            warnings.warn(
                f"{self.name} has been traced {traces.count} times; the last reason: {reason}. "
                f"tj.explain({self.name}) lists "
                f"the reasons",
                stacklevel=user_depth(),
            )
        if s.created:
            traces.creations += 1
            return s, [c.handle for c in s.hidden]
        self._traces.keep(call.key, s)
        traces.last = Described.of(call, self.signature(before))
        return s, [c.handle for c in s.hidden]

    def _build(self, graph: Graph) -> Built:
        return build(graph, self.options)

    def _pipeline(self) -> Pipeline:
        o = self.options
        return Pipeline(
            self._build, lambda graph: lower(graph, o), lambda plan: compile_kernels(plan, o), lambda low: load(low, o)
        )

    def _traced(self, call: Call, before: tuple[Any, ...]) -> tuple[Specialization, str]:
        """A trace of a call, and which dims it left open, in words. Those are dims that have been seen to change; if
        the code cannot do without their sizes, they are taken as they are."""
        family, sizes = self._traces.family(call)
        if family is not None and self.input_signature is not None:
            family.declare(self._declared(call))
        open_dims = family.symbolic(sizes) if family is not None else []
        if family is None or not open_dims:
            return self._record(call, before), ""
        scope = Scope(family.hints(open_dims, sizes))
        try:
            with scope:
                dims = {family.places[k]: n for k, n in zip(open_dims, scope.inputs)}
                made = self._record(call, before, dims)
                fix_unseen(made.graph, scope)
            template = Template(made, scope, open_dims, sizes, self._pipeline())
        except Exception as error:
            s = self._record(call, before)  # the error is the user's if it is raised here too
            family.give_up(error)
            return s, ""
        free = family.keep(template, scope.fixed)
        names = self.signature(before).leaf_names(call.spec)
        places = [(names[k], axis) for k, axis in (family.places[p] for p in free)]
        return template.make(sizes) or self._record(call, before), ", ".join(f"dim {d} of '{n}'" for n, d in places)

    def _record(
        self, call: Call, before: tuple[Any, ...], dims: Mapping[tuple[int, int], Dim] | None = None
    ) -> Specialization:
        signature = self.signature(before)
        with LOCK:
            reach = Reach(
                self.python_function, self.name, before, dict(zip(signature.names, call.values)), self._traces.unstable
            )
            try:
                found = record(self._traceable(), call, signature, self.name, reach, *before, dims=dims)
            except RecursionError as error:
                raise self._endless(error) from None
            finally:
                rebound = reach.check_rebound()
        if rebound is not None:
            raise rebound
        if reach.changed and not self._traces.warned_effects:
            self._traces.warned_effects = True
            warnings.warn(
                f"{self.name} puts other entries into {', '.join(map(repr, reach.changed))}; the caller's container "
                f"stays as it is (writes into its tensors are seen). Return the new entries",
                stacklevel=user_depth(),
            )
        if reach.effects and not found.created and not self._traces.warned_effects:  # who creates once, writes once
            self._traces.warned_effects = True
            warnings.warn(
                f"{self.name} writes {', '.join(reach.effects)}; that happens once per trace, not at each call. Keep "
                f"state in a "
                f"Variable, or return it",
                stacklevel=user_depth(),
            )
        if reach.blind and not self._traces.warned:
            self._traces.warned = True
            listed = "; ".join(f"{label}: {why}" for label, why in reach.blind.items())
            warnings.warn(
                f"{self.name}: changes of some values from outside will not be noticed after the trace ({listed}); "
                f"pass them as "
                f"arguments",
                stacklevel=user_depth(),
            )
        return found

    def _reason(self, call: Call, before: tuple[Any, ...]) -> str:
        """Why this call needs a trace: the first difference to the latest specialisation of its key, or else to the
        last trace."""
        at = f" at {where}" if (where := user_line(2)) else ""
        same = self._traces.by_key.get(call.key)
        if same:
            return same[0].difference(call.leaves, before[0] if before else None) + at
        last = self._traces.last
        if last is None:
            return "first call" + at
        new = Described.of(call, self.signature(before))
        pairs = zip(last.parts, new.parts)
        changes = [f"{n} {describe_change(a, b)}" for (n, a), (m, b) in pairs if a != b or n != m]
        if len(last.parts) != len(new.parts):
            changes = [f"the arguments' structure {last.structure} -> {new.structure}"]
        return (", ".join(changes) or "dropped from the cache before") + at

    def _declared(self, call: Call) -> Iterator[tuple[int, int]]:
        """Leaf and axis of the dims that `input_signature` leaves open."""
        specs = (x for x in flatten(self.input_signature)[0] if isinstance(x, Spec))
        for k, spec in zip((k for k, x in enumerate(call.leaves) if is_array(x)), specs):
            yield from ((k, axis) for axis, n in enumerate(spec.shape) if n is None)

    def _check_types(self, call: Call) -> None:
        """Compare array leaves with `input_signature`."""
        wanted, _ = flatten(self.input_signature)
        given = [x for x in call.leaves if is_array(x)]
        specs = [w for w in wanted if isinstance(w, Spec)]
        if len(given) != len(specs):
            raise TypeError(f"{self.name}: input_signature names {len(specs)} arrays, got {len(given)}")
        for k, (x, spec) in enumerate(zip(given, specs)):
            if not spec.accepts(x):
                raise TypeError(
                    f"{self.name}: array {k} is {Type(tuple(x.shape), x.dtype)!r}, which input_signature {spec} does "
                    f"not allow"
                )

    # -- eager runs ----------------------------------------------------------------------------------------------------
    @boundary
    def eager(self, *args: Any, **kwargs: Any) -> Any:
        """Run undecorated. NumPy arrays arrive as tensors, and writes go back into them, as in a compiled run."""
        return self._eagerly((), args, kwargs)

    def _eagerly(self, before: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        signature = self.signature(before)
        call = signature.call(args, kwargs)
        arrays = {k: x for k, x in enumerate(call.leaves) if isinstance(x, (np.ndarray, np.generic)) and is_array(x)}
        if not arrays:
            return signature.call_with(self.python_function, call.values, *before)
        handles: dict[int, Tensor] = {}
        stand_ins = [handles.setdefault(id(x), Tensor(x)) if k in arrays else x for k, x in enumerate(call.leaves)]
        starts = {k: stand_ins[k]._value for k in arrays}  # a second reference, so that writes rebind
        result = signature.call_with(self.python_function, signature.rebuild(call, stand_ins), *before)
        written = [k for k in arrays if stand_ins[k]._value is not starts[k] and isinstance(call.leaves[k], np.ndarray)]
        names = signature.leaf_names(call.spec)
        for k in written:
            for other, x in arrays.items():
                if x is not arrays[k] and np.may_share_memory(x, arrays[k]):
                    raise shares_memory(names[k], names[other])
            np.copyto(arrays[k], stand_ins[k]._value)  # type: ignore[arg-type]
        return result

    # -- looking inside ------------------------------------------------------------------------------------------------
    @property
    def trace_count(self) -> int:
        """How often the Python function has been traced."""
        return self._traces.count

    @property
    def history(self) -> list[str]:
        """The reason of each trace, oldest first."""
        return list(self._traces.history)

    def views(self) -> list[Function]:
        """The traces of each living instance, if this is a method."""
        return [view for _, view in list(self._instances.values())]

    @boundary
    def trace(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph of a call, before any pass; `spec`s may stand for arguments. Nothing is run or kept."""
        _, made, scope, places = self._trace_open((), args, kwargs)
        must_be_open(made, scope, places)
        return made.graph

    def _trace_open(
        self, before: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Call, Specialization, Scope, list[tuple[int, int]]]:
        """A trace of arguments with specs among them, whose None dims are open: leaf and axis of each."""
        openings = Openings(*flatten((args, kwargs)))
        while True:
            given, zeros = openings.arguments()
            call = self.signature(before).call(*given)
            leaf = {id(x): k for k, x in enumerate(call.leaves)}
            places = [(leaf[id(x)], axis) for x, (_, axis) in zip(zeros, openings.holes)]
            scope = Scope(openings.hints, openings.names)
            try:
                with scope:
                    made = self._record(call, before, dict(zip(places, scope.inputs)))
                    fix_unseen(made.graph, scope)
                return call, made, scope, places
            except Exception:
                if not openings.agree(scope):
                    raise

    def recorded(self, *args: Any, **kwargs: Any) -> tuple[Graph, list[np.ndarray]]:
        """The graph of a call, before any pass, and the values of its inputs. Nothing is run or kept."""
        return self._recorded((), args, kwargs)

    def _recorded(
        self, before: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Graph, list[np.ndarray]]:
        call = self.signature(before).call(args, kwargs)
        s = self._record(call, before)
        return s.graph, s.gather(call.leaves, [c.handle for c in s.hidden])

    @boundary
    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """What a call compiles to: the graph after every pass, kernels and buffers. Nothing is run or kept."""
        return Lowered(build(self.trace(*args, **kwargs), self.options))

    @boundary
    def compile(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Trace and compile ahead of time, for arguments or `spec`s in their place. Gives a callable for such
        arguments."""
        with self._traces.lock:
            call, made, scope, places = self._trace_open((), args, kwargs)
            family, sizes = self._traces.family(call)
            if not places or family is None:
                self._specialization(call, ())
                return self
            family.declare(places)
            template = Template(made, scope, [family.places.index(p) for p in places], sizes, self._pipeline())
            if family.keep(template, scope.fixed):
                self._traces.count += 1
                self._traces.history.append(f"trace {self._traces.count}: compile() ahead of time")
                _totals.traces += 1
                self._traces.keep(call.key, template.make(sizes) or made)
        return self

    def families(self) -> list[Family]:
        """What is known of sizes, for each kind of call."""
        return list(self._traces.families.values())

    def specializations(self) -> list[Specialization]:
        """What is in the cache, oldest key first."""
        return [s for kept in list(self._traces.by_key.values()) for s in reversed(kept)]

    def kernels(self) -> Kernels:
        """The kernels of all cached programs, in the order they run. Prints as what each reads, computes and writes."""
        return Kernels(k for s in self.specializations() for k in kernel_infos(s.built, s.calls))

    def profile(self, on: bool = True) -> None:
        """Measure the seconds each kernel takes from now on (the program then returns to Python after each step)."""
        self._traces.shortcut = no_shortcut
        for s in self.specializations():
            s.shortcut = no_shortcut if on else None
            s.built.program.profiling(on)

    def cache_info(self) -> CacheInfo:
        """Counts of the trace cache, and of the machine code caches of the process."""
        kept = self.specializations()
        code = _runtime()[0].stats()
        return CacheInfo(
            len(kept), self._traces.count, sum(s.calls for s in kept), code.compiles, code.memory_hits, code.disk_hits
        )

    def cache_clear(self) -> None:
        """Forget all traces."""
        with self._traces.lock:
            count, history, creations = self._traces.count, self._traces.history, self._traces.creations
            self._traces.by_key.clear()
            self._traces.by_arguments.clear()
            self._traces.families.clear()
            self._traces.shortcut = no_shortcut
            self._traces.count, self._traces.history, self._traces.creations = count, history, creations
        for view in self.views():
            view.cache_clear()

    # -- methods -------------------------------------------------------------------------------------------------------
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else Method(self._for(instance), instance)

    def _for(self, instance: Any) -> Function:
        """This instance's own traces. They do not keep it alive, and go when it goes."""
        found = self._instances.get(id(instance))
        if found is not None and found[0]() is instance:
            return found[1]
        view: Function = object.__new__(Function)
        view.__dict__.update(self.__dict__)
        view._traces, view._instances, view._signature = Traces(), {}, None
        key, instances = id(instance), self._instances

        def forget(_: Any) -> None:
            instances.pop(key, None)

        try:
            view._owner = weakref.ref(instance, forget)
        except TypeError:
            raise TypeError(
                f"{self.name}: a decorated method needs instances that can be weakly referenced; add '__weakref__' to "
                f"the "
                f"__slots__ of {type(instance).__name__}"
            ) from None
        self._instances[key] = view._owner, view
        return view

    # -- being an object -----------------------------------------------------------------------------------------------
    def __repr__(self) -> str:
        return f"<tj.function {self.name}>"

    def __reduce__(self) -> Any:
        """By reference where the module has it under some name, else as the Python function and the settings."""
        module: Any = sys.modules.get(getattr(self, "__module__", ""))
        found, path = module, getattr(self, "__qualname__", "")
        for part in path.split("."):
            found = getattr(found, part, None)
        if found is self:
            return path
        name = next((name for name, x in list(getattr(module, "__dict__", {}).items()) if x is self), None)
        return name or (_rebuilt, (self.python_function, self.settings))


def _rebuilt(python_function: Callable[..., Any], settings: dict[str, Any]) -> Function:
    return Function(python_function, **settings)


class Method:
    """A decorated method of one instance; like a bound method, with the interface of `Function`."""

    __slots__ = ("__self__", "function", "__weakref__")

    def __init__(self, function: Function, instance: Any):
        self.function = function
        self.__self__ = instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if not kwargs and not state.active and not config.debug.eager:
                result = self.function._traces.shortcut(args, self.__self__)
                if result is not MISS:
                    return result
            return self.function._call((self.__self__,), args, kwargs)
        except Exception as error:
            self.function._tidy(error, (self.__self__,), args, kwargs)
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)

    @boundary
    def eager(self, *args: Any, **kwargs: Any) -> Any:
        return self.function._eagerly((self.__self__,), args, kwargs)

    @boundary
    def trace(self, *args: Any, **kwargs: Any) -> Graph:
        before = (self.__self__,)
        return self.function._record(self.function.signature(before).call(args, kwargs), before).graph

    def recorded(self, *args: Any, **kwargs: Any) -> tuple[Graph, list[np.ndarray]]:
        return self.function._recorded((self.__self__,), args, kwargs)

    @boundary
    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        return Lowered(build(self.trace(*args, **kwargs), self.function.options))

    def __reduce__(self) -> Any:
        return getattr, (self.__self__, self.function.__name__)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Method) and self.__self__ is other.__self__ and self.function is other.function

    def __hash__(self) -> int:
        return hash((id(self.__self__), id(self.function)))

    def __repr__(self) -> str:
        return f"<tj.function {self.function.name} of {type(self.__self__).__name__}>"


# -- the decorator -----------------------------------------------------------------------------------------------------
@boundary
def function(
    f: Callable[..., Any] | None = None,
    *,
    static_argnames: Sequence[str] = (),
    input_signature: Any = None,
    device: str | None = None,
    autograph: bool = True,
    fastmath: bool = False,
    checks: bool = True,
    name: str | None = None,
) -> Any:
    """Compile a function of tensors when it is called: the same results, faster.

    static_argnames: arguments whose value is part of the program. input_signature: `spec`s the arrays must satisfy.
    fastmath: allow rewrites that change rounding, nan or infinities. checks=False: leave out index checks.

    >>> import tracejit as tj
    >>> @tj.function
    ... def f(a, b): return a * b + 1
    """
    settings: dict[str, Any] = {
        "static_argnames": static_argnames,
        "input_signature": input_signature,
        "device": device,
        "autograph": autograph,
        "fastmath": fastmath,
        "checks": checks,
        "name": name,
    }
    if f is None:
        return functools.partial(function, **settings)
    if isinstance(f, Function):
        return Function(f.python_function, **settings)
    if isinstance(f, staticmethod):
        return staticmethod(function(f.__func__, **settings))
    if isinstance(f, classmethod):
        return classmethod(function(f.__func__, **settings))
    if not callable(f):
        raise TypeError(f"function: {f!r} is not callable")
    inner = f.func if isinstance(f, functools.partial) else f
    called = inner if inspect.isroutine(inner) or isinstance(inner, type) else type(inner).__call__
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise TypeError(
            f"function: {getattr(inner, '__name__', inner)} is a generator, which cannot be compiled as a whole; use "
            f"it inside a function, or return a tuple"
        )
    if inspect.iscoroutinefunction(called):
        raise TypeError(f"function: {getattr(inner, '__name__', inner)} is a coroutine, which cannot be compiled")
    _totals.functions += 1
    _count_decoration(inner)
    return Function(f, **settings)


def _count_decoration(f: Any) -> None:
    """Warn once where one piece of code is decorated again and again: each new function has to be traced anew."""
    code = getattr(inspect.unwrap(f), "__code__", None)  # grad(f) is told from grad(g)
    if code is None or packaged(code):
        return
    key = code.co_filename, code.co_firstlineno, getattr(inspect.unwrap(f), "__name__", code.co_name)
    if len(_decorations) > 10_000:
        _decorations.clear()
    _decorations[key] = _decorations.get(key, 0) + 1
    if _decorations[key] == WARN_DECORATIONS:
        warnings.warn(
            f"{code.co_name} ({code.co_filename}:{code.co_firstlineno}) has been decorated {WARN_DECORATIONS} times; "
            f"each new "
            f"function object is traced again. Decorate once, outside the loop",
            stacklevel=user_depth(),
        )


# -- facts -------------------------------------------------------------------------------------------------------------
def stats() -> Stats:
    """Counts of all functions: decorated, traced; machine code compiled, found in memory, found on disk; and memory."""
    code = _runtime()[0].stats()
    return Stats(_totals.functions, _totals.traces, code.compiles, code.memory_hits, code.disk_hits, code.seconds,
                 pool.stats())
