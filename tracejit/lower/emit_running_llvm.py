"""Statements that need their own result at the element before: running sums, products, extremes, and recurrences.

In: a `running` statement, values of its operands at a vector of elements, what came before. Out: the results there, and
what comes before the next vector. Vectors of neighbours along a row join their lanes in a logarithmic number of steps.

Read next: `emit_nest_llvm.py` (who asks).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from tracejit.lower.emit_scalar_llvm import INT32, Emitter, literal, scalar_type
from tracejit.lower.scalar import BOOL, Stmt


def start(e: Emitter, s: Stmt, vector: bool) -> ir.Value:
    """What stands before the first element."""
    op, dtype = s.attrs[0], s.dtype
    value: Any = 0
    if op == "add" and dtype.kind == "f":
        value = -0.0
    elif op == "mul":
        value = 1
    elif op in ("min", "max"):
        value = e.limit(dtype, op == "min")
    typ = scalar_type(dtype)
    return literal(value, e.vector(typ) if vector else typ)


def _next(e: Emitter, s: Stmt, before: ir.Value, args: list[ir.Value]) -> ir.Value:
    dtype = s.dtype
    if s.attrs[0] != "recurrence":
        return e.statement(Stmt(s.attrs[0], dtype), [before, args[0]], dtype)
    factor, term = args
    gone = e.statement(Stmt("eq", BOOL), [before, literal(0, before.type)], dtype)
    product = e.statement(Stmt("mul", dtype), [factor, before], dtype)
    return e.statement(Stmt("add", dtype), [e.b.select(gone, before, product), term], dtype)


def columns(e: Emitter, s: Stmt, before: ir.Value, args: list[ir.Value],
            mask: ir.Value | None) -> tuple[ir.Value, ir.Value]:
    """The result for a vector of points, which is also what comes before their next elements."""
    value = _next(e, s, before, args)
    return value, value


def row(e: Emitter, s: Stmt, before: ir.Value, args: list[ir.Value],
        mask: ir.Value | None) -> tuple[ir.Value, ir.Value]:
    """The results for a vector of neighbours along the row, and their last one: in every lane, but for a
    recurrence, which goes through the lanes one by one."""
    b, n = e.b, e.lanes
    if n == 1:
        return columns(e, s, before, args, mask)
    if s.attrs[0] == "recurrence":
        result: ir.Value = literal(0, args[0].type)
        for lane in range(n):
            at = literal(lane, INT32)
            following = _next(e, s, before, [b.extract_element(a, at) for a in args])
            if mask is not None:
                following = b.select(b.extract_element(mask, at), following, before)
            before = following
            result = b.insert_element(result, before, at)
        return result, before
    nothing, value = start(e, s, vector=True), args[0]
    if mask is not None:
        value = b.select(mask, value, nothing)
    step = 1
    while step < n:
        value = _next(e, s, _moved(e, value, nothing, step), [value])
        step *= 2
    total = b.shuffle_vector(value, nothing, e.picks([n - 1] * n))
    return _next(e, s, before, [value]), _next(e, s, before, [total])


def rows(e: Emitter, s: Stmt, args: list[ir.Value], column: ir.Value) -> ir.Value:
    """The results for a vector of whole rows, `column` being the place of each lane in its own."""
    b, n = e.b, e.lanes
    nothing = start(e, s, vector=s.attrs[0] != "recurrence")
    if s.attrs[0] == "recurrence":
        before, result = nothing, literal(0, args[0].type)
        for lane in range(n):
            at = literal(lane, INT32)
            place = b.extract_element(column, at)
            before = b.select(b.icmp_signed("==", place, literal(0, place.type)), nothing, before)
            before = _next(e, s, before, [b.extract_element(a, at) for a in args])
            result = b.insert_element(result, before, at)
        return result
    value, step = args[0], 1
    while step < n:
        joined = _next(e, s, _moved(e, value, nothing, step), [value])
        value = b.select(b.icmp_signed(">=", column, literal(step, column.type)), joined, value)
        step *= 2
    return value


def _moved(e: Emitter, value: ir.Value, nothing: ir.Value, step: int) -> ir.Value:
    """Each lane's value `step` lanes further on."""
    picks = [j - step if j >= step else e.lanes for j in range(e.lanes)]
    return e.b.shuffle_vector(value, nothing, e.picks(picks))
