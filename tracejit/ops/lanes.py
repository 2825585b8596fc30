"""Loops whose elements do not meet: each element's iterations are a loop of its own, in registers.

In: what the pass `lanes` found in a `while_loop` or `scan`. Out: elementwise ops, so that such a loop fuses with what
is around it. The graphs inside are those of one element: all their values are 0-d.

    lane_loop(count, *carries, *operands)  one carry after the loop; `count` only if the loop is counted
    random_bits_at(key, draw, at)          one element of what `random_bits` gives

Read next: `trace/passes/lanes.py`, `lower/scalar.py` (`Region`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.ir import Graph, Node, Op, Type
from tracejit.lower import scalar
from tracejit.lower.scalar import Builder, Complex, Region, Value
from tracejit.ops.random import bits_at, bits_scalar
from tracejit.ops.regions import run

COST = 1000  # never done twice


# -- lane_loop ---------------------------------------------------------------------------------------------------------
def _infer(*types: Type, body: Graph, test: Graph | None, counted: bool, result: int, vectors: int) -> Type:
    if any(t.shape != types[0].shape for t in types):
        raise ValueError(f"lane_loop: shapes {', '.join(str(t.shape) for t in types)} differ")
    wanted = [n.dtype for n in body.inputs]
    if [t.dtype for t in types[counted:]] != wanted or (counted and types[0].dtype != dtypes.int64):
        raise TypeError(f"lane_loop: inputs have dtypes {[str(t.dtype) for t in types]}, wanted {wanted}")
    return Type(types[0].shape, body.outputs[result].dtype)


def _eager(*arrays: np.ndarray, body: Graph, test: Graph | None, counted: bool, result: int,
           vectors: int) -> np.ndarray:
    n = len(body.outputs)
    given = list(arrays[counted:])
    shape = np.broadcast_shapes(*(a.shape for a in given))
    carries, operands = given[:n], given[n:]
    left = int(arrays[0].reshape(-1)[0]) if counted and arrays[0].size else 0 if counted else None
    on = np.ones(shape, bool)
    while left is None or left > 0:
        if test is not None:
            on = on & np.broadcast_to(run(test, [*carries, *operands])[0], shape)
            if not on.any():
                break
        new = run(body, [*carries, *operands])
        carries = [np.where(on, y, c) for y, c in zip(new, carries, strict=True)]
        left = None if left is None else left - 1
    return np.asarray(carries[result]).astype(body.outputs[result].dtype)


def _parts(value: Any) -> list[Value]:
    return [value.re, value.im] if isinstance(value, Complex) else [value]


def _scalar(*values: Any, body: Graph, test: Graph | None, counted: bool, result: int, vectors: int) -> Any:
    outer = values[0].builder
    region, places = region_of(body, test, counted)
    args = [p for v in values for p in _parts(v)]
    loop = outer.emit("loop", scalar.I64, args, (region, vectors))
    dtypes_ = [region.stmts[i].dtype for i in region.nexts]
    found = [outer.emit("result", dtypes_[k], (loop,), (k,)) for k in places[result]]
    return found[0] if len(found) == 1 else Complex(*found)


def region_of(body: Graph, test: Graph | None, counted: bool) -> tuple[Region, list[list[int]]]:
    """A loop's graphs as scalar statements; and which of its carries make up each of the body's (two for complex)."""
    builder = Builder()
    builder.contract = True
    number = 0

    def arg(node: Node) -> Any:
        nonlocal number
        dtype = node.dtype
        if dtype.kind == "c":
            half = np.dtype(f"f{dtype.itemsize // 2}")
            number += 2
            return Complex(*(builder.emit("arg", half, (), (number - k,)) for k in (2, 1)))
        number += 1
        return builder.emit("arg", dtype, (), (number - 1,))

    inputs = [arg(n) for n in body.inputs]
    nexts: list[Any] = []
    places: list[Any] = []
    for value in statements(builder, body, inputs):
        places.append(list(range(len(nexts), len(nexts) + len(_parts(value)))))
        nexts += [p.index for p in _parts(value)]
    checked = None if test is None else statements(builder, test, inputs)[0].index
    return Region(len(nexts), tuple(builder.stmts), tuple(nexts), checked, counted), places


def statements(builder: Builder, graph: Graph, inputs: list[Any]) -> list[Any]:
    """The results of a graph of 0-d elementwise nodes and literals."""
    env: dict[Node, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        if node.op.name == "full":
            env[node] = _literal(builder, node.attrs["value"], node.dtype)
        else:
            assert node.op.kind == "elementwise" and node.op.scalar is not None
            env[node] = node.op.scalar(*(env[i] for i in node.inputs), **node.attrs)
    return [env[n] for n in graph.outputs]


def _literal(builder: Builder, value: Any, dtype: np.dtype) -> Any:
    if dtype.kind == "c":
        half = np.dtype(f"f{dtype.itemsize // 2}")
        value = complex(value)
        return Complex(builder.const(value.real, half), builder.const(value.imag, half))
    return builder.const(value, dtype)


LANES = Op("lane_loop", "elementwise", _infer, _eager, "One carry of a loop that each element does by itself.",
           scalar=_scalar, cost=COST)


# -- random_bits_at ----------------------------------------------------------------------------------------------------
def _bits_infer(key: Type, draw: Type, at: Type, *, dtype: str, stream: int) -> Type:
    if [key.dtype, draw.dtype, at.dtype] != [dtypes.uint64, dtypes.uint64, dtypes.int64]:
        raise TypeError(f"random_bits_at: inputs have dtypes {key.dtype}, {draw.dtype}, {at.dtype}")
    return Type(at.shape, dtypes.as_dtype(dtype))


class _At:
    """A place for the scalar rule of `random_bits`."""

    def __init__(self, flat: Value):
        self.flat = flat


def _bits_at_scalar(key: Any, draw: Any, at: Any, *, dtype: str, stream: int) -> Any:
    return bits_scalar(_At(at), key, draw, shape=(), dtype=dtype, stream=stream)


BITS_AT = Op("random_bits_at", "elementwise", _bits_infer, bits_at, "Element `at` of random_bits(key, draw).",
             scalar=_bits_at_scalar, cost=100)
