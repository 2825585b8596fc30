"""Gradients of your own making: `custom_gradient`, `custom_vjp`, and `checkpoint`, which recomputes instead of keeping.

In: a function. Out: the same function, which tapes see as one op with its own backward rule.

Both ops are control nodes of a graph, so they survive tracing and replay: `custom_gradient` marks results whose
gradient takes another way than through the ops that made them; `checkpoint` holds its body as a graph.
`trace/passes/dissolve.py` removes them once all derivatives have been taken.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracejit.ir import GETITEM, INPUT, Graph, Node, Op, Type
from tracejit.ops import core, marks
from tracejit.ops.core import primitive
from tracejit.tape import GradientTape, seed
from tracejit.tensor import Tape, Tensor, apply, evaluate, recording, state, taping, wrap
from tracejit.trace.autodiff import Key, Recording, accumulate, backward, differentiable
from tracejit.trace.signature import flatten, unflatten
from tracejit.trace.tracer import Trace
from tracejit.variable import Snapshot, Variable, source_of

Function = Callable[..., Any]
Rule = Callable[[list[Any]], list[Any]]  # cotangents of the results -> cotangents of the inputs


# -- custom_gradient ---------------------------------------------------------------------------------------------------
def _custom_infer(*types: Type, results: int, inputs: int, rule: Any) -> tuple[Type, ...]:
    return types[:results]


def _custom_eager(*arrays: np.ndarray, results: int, inputs: int, rule: Any) -> tuple[np.ndarray, ...]:
    return tuple(a.view() for a in arrays[:results])


def _custom_vjp(gs: Sequence[Tensor | None], ys: Sequence[Tensor], *args: Tensor, results: int, inputs: int,
                rule: Rule | Graph) -> tuple[Tensor | None, ...]:
    kept = args[results + inputs:]
    given = [core.full(0, y.shape, y.dtype) if g is None and differentiable(y) else g
             for g, y in zip(gs, ys, strict=True)]
    if isinstance(rule, Graph):
        slopes = evaluate(rule, [*(g for g in given if g is not None), *kept])
        found = dict(zip(rule.notes["cotangents"], slopes, strict=True))
        pulled = [found.get(k) for k in range(inputs)]
    else:
        pulled = rule(given)
    return (*(None for _ in range(results)), *pulled, *(None for _ in kept))


# The results of a function again, then its inputs, then what its rule needs besides. No gradient flows to the first:
# the rule, from cotangents of the results to those of the inputs, says all. `rule` is Python code when eager, a graph
# when traced.
CUSTOM = primitive("custom_gradient", "control", infer=_custom_infer, eager=_custom_eager, vjp=_custom_vjp,
                   doc="Results with a backward rule of the user's.")


def custom_gradient(f: Function) -> Function:
    """Decorate a function that returns (result, rule): `rule(*cotangents of the result)` gives the cotangent of each
    argument.

    The rule may use what f computed. If f reads trainable Variables, the rule must take `variables=` and return
    (cotangents of the arguments, cotangents of the variables).

    >>> @custom_gradient
    ... def clipped(x):
    ...     return x, lambda g: g * 0.5
    >>> from tracejit.gradients import grad
    >>> grad(clipped)(3.0)
    tj.Tensor(0.5, shape=(), dtype=float32)
    """

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not state.active:
            return _result_and_rule(f, f(*args, **kwargs))[0]
        watcher = GradientTape()
        with watcher:
            result, rule = _result_and_rule(f, f(*args, **kwargs))
        passed = {id(x) for x in flatten(args)[0]}
        variables = [v for v in watcher.watched_variables() if id(v) not in passed]
        if variables and not _takes_variables(rule):
            names = ", ".join(repr(v.name) for v in variables)
            raise TypeError(f"custom_gradient: {_name(f)} reads trainable variables ({names}), so its rule must take "
                            f"`variables=` and return (cotangents of the arguments, cotangents of the variables)")
        return _marked(f, args, variables, result, rule)

    return wrapper


def _marked(f: Function, args: Sequence[Any], variables: Sequence[Variable], result: Any, rule: Function) -> Any:
    """`result` as seen by gradients: connected to the arguments by `rule` only."""
    leaves, spec = flatten(result)
    ys = [core.as_tensor(y) for y in leaves]
    flat = [flatten(a) for a in args]
    inputs = [x for xs, _ in flat for x in xs if isinstance(x, Tensor) and differentiable(x)] + list(variables)

    def flat_rule(gs: list[Any]) -> list[Any]:
        given = rule(*gs, variables=list(variables)) if variables else (rule(*gs), [])
        slopes = _listed(given[0], len(args))
        for_variables = _listed(given[1], len(variables))
        if len(slopes) != len(args) or len(for_variables) != len(variables):
            also = f" and {len(variables)} variables" if variables else ""
            raise ValueError(f"custom_gradient: the rule of {_name(f)} must give one cotangent for each of its "
                             f"{len(args)} arguments{also}, got {given[0] if not variables else given!r}")
        found: list[tuple[Any, Any]] = []
        for (xs, structure), d in zip(flat, slopes, strict=True):
            ds, other = ([None] * len(xs), structure) if d is None else flatten(d)
            if other != structure:
                raise ValueError(f"custom_gradient: {_name(f)}: a cotangent of structure {other} does not fit an "
                                 f"argument of structure {structure}")
            found += [(x, s) for x, s in zip(xs, ds, strict=True) if isinstance(x, Tensor) and differentiable(x)]
        found += zip(variables, for_variables, strict=True)
        return [None if d is None else seed(x, d) for x, d in found]

    kept: list[Tensor] = []
    attr: Rule | Graph = flat_rule
    if state.trace is not None:
        attr, kept = _traced_rule(f, flat_rule, ys)
    outs = apply(CUSTOM, (*ys, *inputs, *kept), {"results": len(ys), "inputs": len(inputs), "rule": attr})
    return unflatten(spec, [core.as_number(out) if y._weak else out for out, y in zip(outs, ys, strict=True)])


def _listed(given: Any, n: int) -> Sequence[Any]:
    """One entry per argument; a rule for one argument may give its cotangent bare."""
    if n == 1 and not (isinstance(given, (tuple, list)) and len(given) == 1):
        return [given]
    return given if isinstance(given, (tuple, list)) else [given]


def _traced_rule(f: Function, rule: Rule, ys: Sequence[Tensor]) -> tuple[Graph, list[Tensor]]:
    """The rule as a graph of the cotangents and of the values it takes from outside, and those values."""
    trace = Trace(f"{_name(f)}_rule")
    with recording(trace):
        gs = [trace.input(Type(y.shape, y.dtype)) if differentiable(y) else None for y in ys]
        slopes = rule(gs)
        graph = trace.finish([d for d in slopes if d is not None])
    if trace.close():
        raise TypeError(f"custom_gradient: the rule of {_name(f)} writes a tensor or variable from outside")
    graph.notes["cotangents"] = tuple(k for k, d in enumerate(slopes) if d is not None)
    return graph, [core.as_tensor(c.handle) for c in trace.captured.values()]


def _result_and_rule(f: Function, returned: Any) -> tuple[Any, Function]:
    if not isinstance(returned, tuple) or len(returned) != 2 or not callable(returned[1]):
        raise TypeError(f"custom_gradient: {_name(f)} must return (result, rule), where rule is a function of the "
                        f"cotangents of the result")
    return returned


def _takes_variables(rule: Function) -> bool:
    parameters = inspect.signature(rule).parameters.values()
    return any(p.name == "variables" or p.kind is p.VAR_KEYWORD for p in parameters)


def _name(f: Function) -> str:
    return getattr(f, "__name__", type(f).__name__)


class custom_vjp:
    """A function with a rule given by two others: `fwd(*args)` gives (result, kept), `bwd(kept, cotangent)` the
    cotangents of args.

    >>> @custom_vjp
    ... def double(x):
    ...     return 2 * x
    >>> double.defvjp(lambda x: (2 * x, None), lambda kept, g: (3 * g,))
    >>> from tracejit.gradients import grad
    >>> grad(double)(1.0)
    tj.Tensor(3.0, shape=(), dtype=float32)
    """

    def __init__(self, f: Function):
        functools.update_wrapper(self, f)
        self.f = f
        self._ruled: Function | None = None

    def defvjp(self, fwd: Function, bwd: Function) -> None:
        """Set the rule."""

        @custom_gradient
        @functools.wraps(self.f)
        def ruled(*args: Any) -> Any:
            result, kept = fwd(*args)
            _, spec = flatten(result)
            return result, lambda *gs: bwd(kept, unflatten(spec, gs))

        self._ruled = ruled

    def __call__(self, *args: Any) -> Any:
        if not state.active:
            return self.f(*args)
        if self._ruled is None:
            raise TypeError(f"custom_vjp: {_name(self.f)} has no rule; call {_name(self.f)}.defvjp(fwd, bwd)")
        return self._ruled(*args)


# -- checkpoint --------------------------------------------------------------------------------------------------------
def _checkpoint_infer(*types: Type, body: Graph) -> tuple[Any, ...]:
    return tuple(n.type for n in body.outputs)


def _checkpoint_eager(*arrays: np.ndarray, body: Graph) -> tuple[Any, ...]:
    with recording(None):
        return tuple(y._value for y in evaluate(body, [wrap(a) for a in arrays]))


def _checkpoint_vjp(gs: Sequence[Tensor | None], ys: Sequence[Tensor], *xs: Tensor, body: Graph) -> list[Tensor | None]:
    event = next(g for g in gs if g is not None)
    again = [apply(marks.AFTER, (x, event), {}) for x in xs]
    tape = Recording()
    for x in again:
        if differentiable(x):
            tape.track(x)
    with taping((*state.tapes, tape)):
        zs = evaluate(body, again)
    seeds: dict[Key, Tensor] = {}
    for z, g in zip(zs, gs, strict=True):
        if g is not None:
            accumulate(seeds, tape.key(z), g)
    keys = [tape.key(x) for x in again]
    found = backward(tape.records, seeds, set(keys))
    return [found.get(k) for k in keys]


CHECKPOINT = primitive("checkpoint", "control", infer=_checkpoint_infer, eager=_checkpoint_eager, vjp=_checkpoint_vjp,
                       doc="A graph whose inner values are computed again for the backward pass.")


def checkpoint(f: Function) -> Function:
    """The same function, whose inner values are not kept for gradients but computed again in the backward pass: less
    memory for more time. What it reads (random state, Variables) is what it read the first time.
    """

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if state.trace is not None:
            return _traced_checkpoint(f, args, kwargs)
        return _eager_checkpoint(f, args, kwargs) if state.tapes else f(*args, **kwargs)

    return wrapper


def _traced_checkpoint(f: Function, args: Any, kwargs: Any) -> Any:
    leaves, spec = flatten((args, kwargs))
    places = [k for k, x in enumerate(leaves) if isinstance(x, Tensor) and not isinstance(x, Variable) and not x._weak]
    inputs = [leaves[k] for k in places]
    trace = Trace(_name(f))
    for k, x in zip(places, inputs, strict=True):
        leaves[k] = trace.input(Type(x.shape, x.dtype))
    handles = [leaves[k] for k in places]
    before = [h._value for h in handles]
    with recording(trace):
        new_args, new_kwargs = unflatten(spec, leaves)
        results, structure = flatten(f(*new_args, **new_kwargs))
        ys = [core.as_tensor(y) for y in results]
        written = [(x, h) for x, h, v in zip(inputs, handles, before, strict=True) if h._value is not v]
        written += trace.close()
        body = trace.finish([*ys, *(h for _, h in written)])
    captured = [core.as_tensor(c.handle) for c in trace.captured.values()]
    outs = apply(CHECKPOINT, (*inputs, *captured), {"body": body})
    for (handle, _), value in zip(written, outs[len(ys):], strict=True):
        core.rebind(handle, value)
    return unflatten(structure, [core.as_number(out) if y._weak else out for out, y in zip(outs, ys, strict=False)])


class _Program:
    """A tape that keeps which ops ran, but not their results: a graph built next to eager values."""

    differentiates = True

    def __init__(self, outer: Sequence[Tape]):
        self.outer = outer
        self.inputs: list[Node] = []
        self.leaves: list[Tensor] = []  # what the inputs stand for
        self.nodes: list[Node] = []
        # by id of the value; the weak reference tells whether the id is still that value's
        self._known: dict[int, tuple[weakref.ref[Any], Node]] = {}

    def node_of(self, x: Tensor) -> Node:
        value = x._value
        found = self._known.get(id(value))
        if found is not None and found[0]() is value:
            return found[1]
        type = Type(x.shape, x.dtype)
        node = Node(INPUT, (), {"type": type}, type)
        self.inputs.append(node)
        source = source_of(x)
        self.leaves.append(wrap(value) if source is None else Snapshot(value, source))
        return self._name(value, node)

    def _name(self, value: Any, node: Node) -> Node:
        self._known[id(value)] = weakref.ref(value), node
        return node

    def record(self, op: Op, args: Sequence[Tensor], attrs: Mapping[str, Any], out: Any) -> None:
        inputs = tuple(map(self.node_of, args))
        if not isinstance(out, tuple):
            if any(out._value is a._value for a in args):
                out._value = out._value.view()
            node = Node(op, inputs, attrs, Type(out.shape, out.dtype))
            self.nodes.append(node)
            self._name(out._value, node)
            return
        whole = Node(op, inputs, attrs, tuple(Type(y.shape, y.dtype) for y in out))
        self.nodes.append(whole)
        for k, y in enumerate(out):
            part = Node(GETITEM, (whole,), {"index": k}, Type(y.shape, y.dtype))
            self.nodes.append(part)
            self._name(y._value, part)

    def escaped(self, tensor: Tensor, how: str) -> None:
        for tape in self.outer:
            tape.escaped(tensor, how)


def _eager_checkpoint(f: Function, args: Any, kwargs: Any) -> Any:
    program = _Program(state.tapes)
    with taping((program,)):
        results, spec = flatten(f(*args, **kwargs))
        ys = [core.as_tensor(y) for y in results]
    outs = tuple(wrap(y._value.view()) for y in ys)  # type: ignore[union-attr]
    body = Graph((), (), tuple(program.node_of(y) for y in ys), _name(f))
    body = Graph(tuple(program.inputs), tuple(program.nodes), body.outputs, body.name)
    for tape in state.tapes:
        tape.record(CHECKPOINT, program.leaves, {"body": body}, outs)
    return unflatten(spec, outs)
