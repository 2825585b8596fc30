"""Derivatives of recorded ops: reverse mode and forward mode.

In: `Record`s, the ops that ran on tracked values (a tape is such a list). Out: cotangents or tangents, computed by
ordinary ops in the surrounding context, so that outer tapes and traces hear them: every order comes from this one
mechanism.

Conventions. The cotangent of a value has its shape and dtype. A missing one (None) is a structural zero and is never
materialised. Complex cotangents point uphill: for a real function of z = x + iy they are d/dx + i d/dy.

Read next: `split.py` (the same for graphs), `tape.py`, `gradients.py` (what users call).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracejit import config
from tracejit.errors import GradientError, InternalError, user_line
from tracejit.ir import Node, Op, Type
from tracejit.ops import core
from tracejit.ops.movement import CONCAT, EMBED, embed, joined
from tracejit.tensor import Tensor, state, taping, wrap

Key = int  # what a value is known by: the id of the value object (kept alive by whoever uses the key)


def differentiable(x: Tensor | Node | Type) -> bool:
    """Whether values of this dtype have gradients."""
    return x.dtype.kind in "fc"


@dataclass(slots=True, eq=False)
class Record:
    """One op that ran. `args` and `outs` are handles that nobody rebinds; `inputs` and `outputs` are their keys."""

    op: Op
    args: tuple[Tensor, ...]
    attrs: Mapping[str, Any]
    outs: tuple[Tensor, ...]
    single: bool  # the op's result is one tensor, not a tuple
    inputs: tuple[Key, ...]
    outputs: tuple[Key, ...]
    where: str = ""  # the user's line, kept for ops that have no derivative

    @property
    def result(self) -> Any:
        return self.outs[0] if self.single else self.outs


class Recording:
    """A tape in its simplest form: keeps the ops that depend on tracked values."""

    differentiates = True

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.tracked: dict[Key, Any] = {}  # key -> the object whose id it is

    def key(self, tensor: Tensor) -> Key:
        trace = state.trace
        return id(tensor._value if trace is None else trace.read(tensor)._value)

    def track(self, tensor: Tensor) -> None:
        value = self.snapshot(tensor)
        self.tracked[self.key(value)] = value._value

    def accessed(self, tensor: Tensor) -> None:
        """`tensor` is about to be read by an op."""

    def snapshot(self, tensor: Tensor) -> Tensor:
        """A handle on what `tensor` holds now."""
        trace = state.trace
        return wrap(tensor._value) if trace is None else trace.read(tensor)

    def record(self, op: Op, args: Sequence[Tensor], attrs: Mapping[str, Any], out: Any) -> None:
        for a in args:
            self.accessed(a)
        inputs = tuple(map(self.key, args))
        tracked = self.tracked
        if not any(k in tracked for k in inputs) or op.name == "stop_gradient":
            return
        single = not isinstance(out, tuple)
        results: tuple[Tensor, ...] = (out,) if single else out
        if not any(differentiable(y) for y in results):
            return
        for y in results:  # an op that gives back the very object it got: let the key of the result be its own
            if any(y._value is a._value for a in args):
                if isinstance(y._value, Node):
                    return  # one node: uses of the result already count as uses of the argument
                y._value = y._value.view()
        outs = tuple(wrap(y._value) for y in results)
        outputs = tuple(id(y._value) for y in results)
        for k, y in zip(outputs, outs, strict=True):
            if differentiable(y):
                tracked[k] = y._value
        where = user_line() if config.debug.nans or (op.vjp is None and op.jvp is None) else ""
        self.records.append(
            Record(op, tuple(map(self.snapshot, args)), attrs, outs, single, inputs, outputs, where)
        )

    def escaped(self, tensor: Tensor, how: str) -> None:
        """`tensor`'s value left for NumPy or Python."""


def dependents(records: Iterable[Record], sources: Iterable[Key]) -> set[Key]:
    """Keys of the values that depend on `sources`, themselves included."""
    found = set(sources)
    for r in records:
        if any(k in found for k in r.inputs):
            found.update(k for k, y in zip(r.outputs, r.outs, strict=True) if differentiable(y))
    return found


def backward(records: Sequence[Record], seeds: Mapping[Key, Tensor], wanted: Collection[Key]) -> dict[Key, Tensor]:
    """Reverse mode: cotangents of the values `wanted`, given those of some results.

    A key is missing from the result if its cotangent is structurally zero.
    """
    active = dependents(records, wanted)
    pending = dict(seeds)
    found: dict[Key, Tensor] = {}
    for r in reversed(records):
        gs = [pending.pop(k, None) for k in r.outputs]
        if all(g is None for g in gs):
            continue
        for k, g in zip(r.outputs, gs, strict=True):
            if g is not None and k in wanted:
                accumulate(found, k, g)
        if not any(k in active for k in r.inputs):
            continue
        for k, x, d in zip(r.inputs, r.args, pull(r, gs), strict=True):
            if d is None or k not in active or not differentiable(x):
                continue
            if d.shape != x.shape or d.dtype != x.dtype:
                raise InternalError(f"the vjp of {r.op.name} gives {_type(d)} for an input of {_type(x)}")
            accumulate(pending, k, d)
    for k in wanted:
        if k in pending:
            accumulate(found, k, pending[k])
    return found


def accumulate(sums: dict[Key, Tensor], key: Key, term: Tensor) -> None:
    before = sums.get(key)
    joint = None if before is None else _side_by_side(before, term)
    sums[key] = term if before is None else before + term if joint is None else joint  # type: ignore[operator]


def _side_by_side(x: Tensor, y: Tensor) -> Tensor | None:
    """x + y where both are traced parts, put among zeros (as the cotangents of slices are), that lie next to each
    other. Nothing is to be added then; that a zero's sign may differ means nothing in a cotangent.
    """
    a, b = x._value, y._value
    if not (isinstance(a, Node) and isinstance(b, Node) and a.op is EMBED and b.op is EMBED and a.type == b.type):
        return None
    if any(n.attrs["value"] != 0 or set(n.attrs["steps"]) - {1} for n in (a, b)):
        return None
    first, second = sorted((a, b), key=lambda n: n.attrs["starts"])
    starts, ends = first.attrs["starts"], second.attrs["starts"]
    apart = [d for d in range(len(starts)) if starts[d] != ends[d]]
    if len(apart) != 1:
        return None
    axis, (p, q) = apart[0], (first.inputs[0], second.inputs[0])
    if starts[axis] + p.shape[axis] != ends[axis] or any(
        m != n for d, (m, n) in enumerate(zip(p.shape, q.shape)) if d != axis
    ):
        return None
    parts = [i for n in (p, q) for i in (n.inputs if n.op is CONCAT and n.attrs["axis"] == axis else (n,))]
    whole = joined([wrap(i) for i in parts], axis)
    return whole if whole.shape == a.shape else embed(whole, a.shape, starts, first.attrs["steps"])


def _type(x: Tensor) -> Type:
    return Type(x.shape, x.dtype)


def pull(r: Record, gs: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Cotangents of a record's inputs from those of its results."""
    if r.op.vjp is None:
        raise _no_rule(r)
    g = gs[0] if r.single else tuple(gs)
    trace = state.trace
    if trace is None:
        try:
            return r.op.vjp(g, r.result, *r.args, **r.attrs)
        except FloatingPointError as error:  # of `debug_nans`
            if r.where:
                error.add_note(f"in the gradient of {r.op.name} at {r.where}")
            raise
    saved, trace.where = trace.where, trace.where or _where(r)
    try:  # ops of a derivative belong to the line of the op
        return r.op.vjp(g, r.result, *r.args, **r.attrs)
    finally:
        trace.where = saved


def _where(r: Record) -> str:
    node = r.outs[0]._value if r.outs else None
    return node.where if isinstance(node, Node) else r.where


def _no_rule(r: Record) -> GradientError:
    where = _where(r)
    at = f" (at {where})" if where else ""
    return GradientError(
        f"{r.op.name} is not differentiable{at}; use stop_gradient on its input if no gradient should flow there, "
        f"or custom_gradient to give it one"
    )


def forward(records: Sequence[Record], tangents: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
    """Forward mode: tangents of every value that moves when the values of `tangents` do."""
    moving = dict(tangents)
    for r in records:
        ts = [moving.get(k) if differentiable(x) else None for k, x in zip(r.inputs, r.args, strict=True)]
        if all(t is None for t in ts):
            continue
        for k, y, t in zip(r.outputs, r.outs, push(r, ts), strict=True):
            if t is not None:
                if t.shape != y.shape or t.dtype != y.dtype:
                    raise InternalError(f"the jvp of {r.op.name} gives {_type(t)} for a result of {_type(y)}")
                moving[k] = t
    return moving


def push(r: Record, tangents: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Tangents of a record's results: by the op's jvp, or else by its vjp. That is linear in the cotangent g, and the
    gradient of <vjp(g), tangents> with respect to g is the tangent.
    """
    if r.op.jvp is not None:
        out = r.op.jvp(tangents, r.result, *r.args, **r.attrs)
        return (out,) if r.single else tuple(out)
    if r.op.vjp is None:
        raise _no_rule(r)
    tape = Recording()
    gs = [core.full(1, y.shape, y.dtype) if differentiable(y) else None for y in r.outs]
    for g in gs:
        if g is not None:
            tape.track(g)
    with taping((*state.tapes, tape)):
        pulled = pull(r, gs)
    seeds: dict[Key, Tensor] = {}
    for d, t in zip(pulled, tangents, strict=True):
        if d is not None and t is not None:
            accumulate(seeds, tape.key(d), t)
    keys = [None if g is None else tape.key(g) for g in gs]
    found = backward(tape.records, seeds, {k for k in keys if k is not None})
    return [None if k is None else found.get(k) for k in keys]
