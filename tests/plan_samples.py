"""Small kernels and plans written by hand, for tests of what runs them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracejit.config import Options
from tracejit.lower.kernel import Access, Accumulator, CheckSite, Kernel, Launch, Stage, Store, View, verify
from tracejit.lower.plan import Buffer, Plan, Step
from tracejit.lower.scalar import BOOL, I64, Stmt
from tracejit.runtime.build import build
from tracejit.runtime.program import Program

F32 = np.dtype("float32")


def elementwise(op: str, reads: int, dtype: np.dtype = F32, dims: int = 1) -> Kernel:
    """w0 = op(r0, ...) over contiguous arrays; dims but the last by run-time strides."""
    access = Access(dtype, ("s",) * (dims - 1) + ("1",))
    loads = tuple(Stmt("load", dtype, (), (k,)) for k in range(reads))
    result = () if op == "load" else (Stmt(op, dtype, tuple(range(reads))),)
    stmts = loads + result
    kernel = Kernel(dims, 0, "outer", (access,) * reads, (access,), 0, stmts,
                    (Stage(False, stores=(Store(0, len(stmts) - 1),)),))
    verify(kernel)
    return kernel


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[d + 1:], dtype=np.int64)) for d in range(len(shape)))


def step(op: str, reads: Sequence[int], write: int, shape: tuple[int, ...], dtype: np.dtype = F32) -> Launch:
    """One elementwise launch over whole buffers ("load": a copy)."""
    view = [View(b, 0, strides(shape)) for b in (*reads, write)]
    return Launch(elementwise(op, len(reads), dtype, len(shape)), shape, (), tuple(view[:-1]), (view[-1],), ops=(op,))


def buffer(role: str, *shape: int, dtype: object = F32, value: np.ndarray | None = None,
           strides: tuple[int, ...] | None = None) -> Buffer:
    return Buffer(shape, np.dtype(dtype), role, strides, value)  # type: ignore[arg-type, call-overload]


def plan(buffers: Sequence[Buffer], steps: Sequence[Step], outputs: Sequence[int] | None = None) -> Plan:
    inputs = tuple(b for b, buf in enumerate(buffers) if buf.role == "input")
    made = tuple(b for b, buf in enumerate(buffers) if buf.role == "output")
    return Plan(tuple(buffers), inputs, made if outputs is None else tuple(outputs), tuple(steps))


def program(p: Plan) -> Program:
    return Program(p, build([launch.kernel for launch in p.launches], Options()))


def reduction(op: str, dtype: np.dtype = F32, along: str = "rows") -> Kernel:
    """Per point the op of a row (`rows`: inner dim contiguous) or of a column (outer dim contiguous) of a matrix."""
    access = Access(dtype, ("s", "1") if along == "rows" else ("1", "s"))
    out = Access(I64 if op.startswith("arg") else dtype, ("1", "0"))
    index = 1 if op.startswith("arg") else None
    stmts = (Stmt("load", dtype, (), (0,)), Stmt("coord", I64, (), (1,)), Stmt("carry", out.dtype, (), (0,)))
    kernel = Kernel(1, 1, "inner" if along == "rows" else "outer", (access,), (out,), 0, stmts,
                    (Stage(True, (Accumulator(op, dtype, 0, index),)), Stage(False, stores=(Store(0, 2),))))
    verify(kernel)
    return kernel


def reduce_step(op: str, read: int, write: int, shape: tuple[int, int], along: str, dtype: np.dtype = F32) -> Launch:
    """Reduce a contiguous matrix buffer along its rows or columns."""
    rows, columns = shape
    if along == "rows":
        extents, where = (rows, columns), (columns, 1)
    else:
        extents, where = (columns, rows), (1, columns)
    views = (View(read, 0, where),), (View(write, 0, (1, 0)),)
    return Launch(reduction(op, dtype, along), extents, (), *views, ops=(op,))


def gather() -> Kernel:
    """w0[i] = r1[r0[i]], checked; param 0 is the length of r1."""
    stmts = (Stmt("load", I64, (), (0,)), Stmt("const", I64, (), (0,)), Stmt("param", I64, (), (0,)),
             Stmt("le", BOOL, (1, 0)), Stmt("lt", BOOL, (0, 2)), Stmt("and", BOOL, (3, 4)),
             Stmt("check", BOOL, (5, 0), (0,)), Stmt("load", F32, (0, 6), (1,)))
    kernel = Kernel(1, 0, "outer", (Access(I64, ("1",)), Access(F32, ("0",))), (Access(F32, ("1",)),), 1, stmts,
                    (Stage(False, stores=(Store(0, 7),), checks=(6,)),))
    verify(kernel)
    return kernel


def gather_step(index: int, table: int, write: int, n: int, length: int) -> Launch:
    site = CheckSite("index {value} is out of bounds for axis 0 with size " + str(length), "user.py:7")
    return Launch(gather(), (n,), (length,), (View(index, 0, (1,)), View(table, 0, (0,))), (View(write, 0, (1,)),),
                  (site,), ("take",))


def scatter_add(checked: bool = False) -> Kernel:
    """w0[r0[i]] += r1[i]; with `checked`, an index beyond param 0 is reported."""
    stmts: tuple[Stmt, ...] = (Stmt("load", I64, (), (0,)), Stmt("load", F32, (), (1,)))
    checks: tuple[int, ...] = ()
    if checked:
        stmts += (Stmt("param", I64, (), (0,)), Stmt("lt", BOOL, (0, 2)), Stmt("check", BOOL, (3, 0), (0,)))
        checks = (4,)
    store = Store(0, 1, offset=0, mask=4 if checked else None, mode="add")
    reads, write = (Access(I64, ("1",)), Access(F32, ("1",))), Access(F32, ("0",))
    stage = Stage(False, stores=(store,), checks=checks)
    kernel = Kernel(1, 0, "outer", reads, (write,), int(checked), stmts, (stage,))
    verify(kernel)
    return kernel


def scatter_step(index: int, value: int, write: int, n: int, length: int | None = None) -> Launch:
    sites = () if length is None else (CheckSite("index {value} is out of bounds", "user.py:9"),)
    return Launch(scatter_add(length is not None), (n,), () if length is None else (length,),
                  (View(index, 0, (1,)), View(value, 0, (1,))), (View(write, 0, (0,)),), sites, ("scatter",))
