"""Algebraic simplification by rules.

In and out: a graph. `RULES` are pairs of plain functions, both traced: where the graph looks like the first, it becomes
the second. Every rule holds for every value of its dtypes, zeros' signs, infinities and nan included (the tests try
each rule on such values just because it is here); those that do not are marked `fast` and run only with `fastmath`.
`MOVES` are rules about attributes (shapes, axes, dtypes, literals), as functions.

To add a rule, add a line. The order does not matter: a node is tried again after each rewrite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tracejit.dims import is_symbolic
from tracejit.errors import InternalError
from tracejit.ir import INPUT, Graph, Node, Op, Type
from tracejit.ops import core
from tracejit.ops.comparison import bitwise_and, bitwise_invert, bitwise_or, logical_and, logical_not, logical_or
from tracejit.ops.elementwise import abs as absolute
from tracejit.ops.elementwise import (
    ceil,
    conj,
    divide,
    floor,
    fmax,
    fmin,
    maximum,
    minimum,
    mul_zero,
    multiply,
    negative,
    positive,
    real,
    relu,
    rint,
    sign,
    trunc,
    where,
)
from tracejit.ops.marks import identity, stop_gradient
from tracejit.ops.movement import BROADCAST, RESHAPE, SLICE, TRANSPOSE
from tracejit.ops.special import exp, log
from tracejit.tensor import Tensor, apply, wrap
from tracejit.trace.tracer import rewrite, trace_function


@dataclass(frozen=True, slots=True)
class Rule:
    """`before` may become `after`. kinds: NumPy kinds of the first variable's dtype for which it holds (b i u f c).
    conditions: the first that many variables are bool. fast: only with fastmath."""

    before: Callable[..., Any]
    after: Callable[..., Any]
    kinds: str = "iufc"
    conditions: int = 0
    fast: bool = False


def _zero(x: Tensor) -> Tensor:
    return core.full(0, x.shape, x.dtype)


def _one(x: Tensor) -> Tensor:
    return core.full(1, x.shape, x.dtype)


_IDEMPOTENT = (floor, ceil, trunc, rint, sign, absolute, relu)

RULES: tuple[Rule, ...] = (
    # neutral elements. x + 0 is not among them for floats: it makes 0 of -0
    Rule(lambda x: x * 1, lambda x: x, "iuf"),
    Rule(lambda x: 1 * x, lambda x: x, "iuf"),
    Rule(lambda x: divide(x, 1), lambda x: x, "f"),
    Rule(lambda x: x - 0, lambda x: x, "iuf"),
    Rule(lambda x: x + -0.0, lambda x: x, "f"),
    Rule(lambda x: -0.0 + x, lambda x: x, "f"),
    Rule(lambda x: x + 0, lambda x: x, "iu"),
    Rule(lambda x: 0 + x, lambda x: x, "iu"),
    Rule(lambda x: x * 0, _zero, "iu"),
    Rule(lambda x: 0 * x, _zero, "iu"),
    Rule(lambda x: x - x, _zero, "iu"),
    # signs
    Rule(lambda x: x * -1, lambda x: -x, "if"),
    Rule(lambda x: -1 * x, lambda x: -x, "if"),
    Rule(lambda x: divide(x, -1), lambda x: -x, "f"),
    Rule(lambda x: 0 - x, lambda x: -x, "iu"),
    Rule(lambda x: -0.0 - x, lambda x: -x, "f"),
    Rule(lambda x: negative(negative(x)), lambda x: x),
    Rule(lambda x, y: x - (-y), lambda x, y: x + y),
    Rule(lambda x, y: x + (-y), lambda x, y: x - y),
    Rule(lambda x, y: (-x) + y, lambda x, y: y - x),
    Rule(lambda x, y: (-x) * (-y), lambda x, y: x * y, "iuf"),
    Rule(lambda x, y: divide(-x, -y), lambda x, y: divide(x, y), "f"),
    Rule(lambda x: absolute(-x), lambda x: absolute(x), "if"),
    # doing it twice is doing it once
    *(Rule(lambda x, f=f: f(f(x)), lambda x, f=f: f(x), "iuf") for f in _IDEMPOTENT),
    *(Rule(lambda x, f=f: f(x, x), lambda x: x, "iuf") for f in (maximum, minimum, fmax, fmin)),
    *(Rule(lambda x, f=f: f(x, x), lambda x: x, "biu") for f in (bitwise_and, bitwise_or)),
    *(Rule(lambda x, f=f: f(x, x), lambda x: x, "b") for f in (logical_and, logical_or)),
    Rule(lambda x: bitwise_invert(bitwise_invert(x)), lambda x: x, "biu"),
    Rule(lambda x: logical_not(logical_not(x)), lambda x: x, "b"),
    # choices
    Rule(lambda c, x: where(c, x, x), lambda c, x: x, "b", conditions=1),
    Rule(lambda c, x, y: where(logical_not(c), x, y), lambda c, x, y: where(c, y, x), "b", conditions=1),
    Rule(lambda c, x, y, z: where(c, where(c, x, y), z), lambda c, x, y, z: where(c, x, z), "b", conditions=1),
    Rule(lambda c, x, y, z: where(c, x, where(c, y, z)), lambda c, x, y, z: where(c, x, z), "b", conditions=1),
    # marks, which have done their work when a graph is compiled, and parts of real numbers
    Rule(lambda x: identity(x), lambda x: x, "biufc"),
    Rule(lambda x: stop_gradient(x), lambda x: x, "biufc"),
    Rule(lambda x: positive(x), lambda x: x),
    Rule(lambda x: conj(x), lambda x: x, "iuf"),
    Rule(lambda x: conj(conj(x)), lambda x: x, "c"),
    Rule(lambda x: real(x), lambda x: x, "iuf"),
    # right for most values only
    Rule(lambda x: x + 0, lambda x: x, "f", fast=True),
    Rule(lambda x: 0 + x, lambda x: x, "f", fast=True),
    Rule(lambda x: x * 0, _zero, "f", fast=True),
    Rule(lambda x: 0 * x, _zero, "f", fast=True),
    Rule(lambda x: x - x, _zero, "f", fast=True),
    Rule(lambda x: divide(x, x), _one, "f", fast=True),
    Rule(lambda x: 0 - x, lambda x: -x, "f", fast=True),
    Rule(lambda x: exp(log(x)), lambda x: x, "f", fast=True),
    Rule(lambda x: log(exp(x)), lambda x: x, "f", fast=True),
    Rule(lambda x, y: exp(x) * exp(y), lambda x, y: exp(x + y), "f", fast=True),
    Rule(lambda x, y, z: (x * y) + (x * z), lambda x, y, z: x * (y + z), "f", fast=True),
)  # fmt: skip


def simplify(graph: Graph) -> Graph:
    """Apply the rules that hold for all values."""
    return rewrite(graph, _rewriter(False))


def simplify_fast(graph: Graph) -> Graph:
    """Apply all rules."""
    return rewrite(graph, _rewriter(True))


# -- matching ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Pattern:
    rule: Rule
    variables: tuple[Node, ...]
    root: Node


@cache
def _patterns(fast: bool) -> dict[Op, list[_Pattern]]:
    """Traced rules by the op of their root."""
    found: dict[Op, list[_Pattern]] = {}
    for rule in RULES:
        if rule.fast and not fast:
            continue
        pattern = trace_pattern(rule)
        found.setdefault(pattern.outputs[0].op, []).append(_Pattern(rule, pattern.inputs, pattern.outputs[0]))
    return found


def trace_pattern(rule: Rule, dtype: np.dtype | None = None, after: bool = False) -> Graph:
    """The graph of one side of a rule, for scalars of `dtype` (by default one that the rule holds for)."""
    found = next(
        np.dtype(d) for k, d in (("f", "float32"), ("i", "int32"), ("c", "complex64"), ("b", "bool")) if k in rule.kinds
    )
    side = rule.after if after else rule.before
    n = rule.before.__code__.co_argcount - len(rule.before.__defaults__ or ())
    kinds = [
        np.dtype(bool) if k < rule.conditions else (np.dtype("float32") if rule.conditions else found) for k in range(n)
    ]
    if dtype is not None:
        kinds = [np.dtype(bool) if k < rule.conditions else dtype for k in range(n)]
    return trace_function(side, *(Type((), d) for d in kinds), name="rule")


def _rewriter(fast: bool) -> Callable[[Node, list[Any]], Any]:
    patterns = _patterns(fast)

    def once(op: Op, inputs: Sequence[Node], attrs: Any, type: Any) -> Tensor | None:
        move = MOVES.get(op.name)
        if move is not None:
            moved = move(inputs, attrs, type, fast)
            if moved is not None:
                return moved
        for p in patterns.get(op, ()):
            bound: dict[Node, Node] = {}
            if all(_matches(a, b, bound) for a, b in zip(p.root.inputs, inputs)) and all(
                v in bound for v in p.variables
            ):
                values = [bound[v] for v in p.variables]
                if values[0].dtype.kind in p.rule.kinds:
                    return p.rule.after(*map(wrap, values))  # type: ignore[no-any-return]
        return None

    def rule(node: Node, args: list[Any]) -> Any:
        if isinstance(node.type, tuple) or node.op.stateful or not all(isinstance(a, Tensor) for a in args):
            return None
        found = once(node.op, [a._value for a in args], node.attrs, node.type)
        if found is None:
            return None
        for _ in range(16):
            if found.shape != node.shape or found.dtype != node.dtype:
                raise InternalError(f"a rule turned {node!r} into {found!r}")
            at: Node = found._value  # type: ignore[assignment]
            again = once(at.op, at.inputs, at.attrs, at.type) if at.op is not INPUT else None
            if again is None:
                break
            found = again
        return found

    return rule


def _matches(pattern: Node, node: Node, bound: dict[Node, Node]) -> bool:
    """Whether `node` looks like `pattern`, whose inputs are variables; binds them."""
    if pattern.op is INPUT:
        return bound.setdefault(pattern, node) is node
    if pattern.op is not node.op:
        return False
    if pattern.op is core.FULL:
        return _same_literal(pattern.attrs["value"], node.attrs["value"])
    return all(_matches(a, b, bound) for a, b in zip(pattern.inputs, node.inputs))


def _same_literal(a: Any, b: Any) -> bool:
    if a != b or isinstance(b, (bool, complex)):
        return False
    return a != 0 or math.copysign(1, a) == math.copysign(1, b)


# -- rules about attributes --------------------------------------------------------------------------------------------
Move = Callable[[Sequence[Node], Any, Any, bool], Tensor | None]


def _literal(node: Node) -> Any:
    """The number that fills a node, if it is known for all sizes."""
    return node.attrs["value"] if node.op is core.FULL and not is_symbolic(node.attrs["value"]) else None


def _reshape(inputs: Sequence[Node], attrs: Any, type: Type, fast: bool) -> Tensor | None:
    (x,) = inputs
    if x.shape == type.shape:
        return wrap(x)
    return apply(RESHAPE, (wrap(x.inputs[0]),), attrs) if x.op is RESHAPE else None


def _transpose(inputs: Sequence[Node], attrs: Any, type: Type, fast: bool) -> Tensor | None:
    (x,) = inputs
    axes = attrs["axes"]
    if axes == tuple(range(len(axes))):
        return wrap(x)
    if x.op is TRANSPOSE:
        return apply(TRANSPOSE, (wrap(x.inputs[0]),), {"axes": tuple(x.attrs["axes"][a] for a in axes)})
    return None


def _broadcast(inputs: Sequence[Node], attrs: Any, type: Type, fast: bool) -> Tensor | None:
    (x,) = inputs
    if x.shape == type.shape:
        return wrap(x)
    return apply(BROADCAST, (wrap(x.inputs[0]),), attrs) if x.op is BROADCAST else None


def _slice(inputs: Sequence[Node], attrs: Any, type: Type, fast: bool) -> Tensor | None:
    (x,) = inputs
    if type.shape == x.shape and all(s == 1 for s in attrs["steps"]):
        return wrap(x)
    if x.op is not SLICE:
        return None
    outer, inner = attrs, x.attrs
    starts = tuple(a + b * s for a, b, s in zip(inner["starts"], outer["starts"], inner["steps"]))
    steps = tuple(a * b for a, b in zip(inner["steps"], outer["steps"]))
    if not type.size:
        return None
    return apply(SLICE, (wrap(x.inputs[0]),), {"starts": starts, "sizes": outer["sizes"], "steps": steps})


def _concat(inputs: Sequence[Node], attrs: Any, type: Type, fast: bool) -> Tensor | None:
    return wrap(inputs[0]) if len(inputs) == 1 else None


def _cast(inputs: Sequence[Node], attrs: Any, type: Type, fast: bool) -> Tensor | None:
    (x,) = inputs
    if x.dtype == type.dtype:
        return wrap(x)
    if x.op is not core.CAST:
        return None
    start = x.inputs[0]
    if not _lossless(start.dtype, x.dtype) or (start.dtype.kind in "fc" and type.dtype.kind in "iu"):
        return None
    return wrap(start) if start.dtype == type.dtype else core.cast(wrap(start), type.dtype)


def _lossless(a: np.dtype, b: np.dtype) -> bool:
    """Whether every value of dtype `a` is one of `b`."""
    if a.kind in "iu" and b.kind in "fc":
        digits = np.finfo(b).nmant + 1
        return a.itemsize * 8 - (a.kind == "i") <= digits
    return bool(np.can_cast(a, b, "safe"))


def _where(inputs: Sequence[Node], attrs: Any, type: Type, fast: bool) -> Tensor | None:
    condition = _literal(inputs[0])
    return None if condition is None else wrap(inputs[1] if condition else inputs[2])


def _divide(inputs: Sequence[Node], attrs: Any, type: Type, fast: bool) -> Tensor | None:
    """By a power of two (or anything, with fastmath): a multiplication."""
    by = _literal(inputs[1])
    if type.dtype.kind != "f" or not isinstance(by, (int, float)) or by == 0 or not math.isfinite(by):
        return None
    inverse = type.dtype.type(1) / type.dtype.type(by)
    exact = math.frexp(abs(by))[0] == 0.5 and np.isfinite(inverse) and abs(inverse) >= np.finfo(type.dtype).tiny
    if not (exact or (fast and np.isfinite(inverse))):
        return None
    return multiply(wrap(inputs[0]), core.full(inverse.item(), type.shape, type.dtype))


def _mul_zero(inputs: Sequence[Node], attrs: Any, type: Type, fast: bool) -> Tensor | None:
    """g * p where zero wins is zero if g is, and an ordinary product if p is finite or g not zero. (The sign of its
    zeros means nothing.)"""
    g, p = map(_literal, inputs)
    if g is not None:
        return core.full(0, type.shape, type.dtype) if g == 0 else multiply(*map(wrap, inputs))
    return multiply(*map(wrap, inputs)) if p is not None and np.isfinite(p) else None


def _mul_zeros(inputs: Sequence[Node], attrs: Any, type: Type, fast: bool) -> Tensor | None:
    """x * y where a zero of either wins: an ordinary product with a finite number, `mul_zero` with another one."""
    by = next((v for v in map(_literal, inputs) if v is not None), None)
    if by is None:
        return None
    if by == 0:
        return core.full(0, type.shape, type.dtype)
    x, y = map(wrap, inputs)
    return multiply(x, y) if np.isfinite(by) else mul_zero(*((x, y) if _literal(inputs[1]) is not None else (y, x)))


MOVES: dict[str, Move] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_to": _broadcast,
    "slice": _slice,
    "concat": _concat,
    "cast": _cast,
    "where": _where,
    "divide": _divide,
    "mul_zero": _mul_zero,
    "mul_zeros": _mul_zeros,
}
