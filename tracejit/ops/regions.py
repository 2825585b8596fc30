"""Control flow as ops: `cond`, `while_loop` and `scan`, whose attributes are graphs.

In: values, and the graphs that say what to do with them. Out: a tuple of values. A graph inside reads nothing but its
inputs: what the traced code took from outside has become operands, so these ops are as pure as any other.

    cond(choice, *operands, branches)              results of a branch; a bool (false, true) or an int64 chooses
    while_loop(*carries, *operands, cond, body)    carries = body(carries, operands) while cond(carries, operands)
    scan(*carries, *xs, *operands, body, ...)      the same for each row of the xs; the rows it gives are stacked

Their meaning (`eager`) is a Python loop over `evaluate`. Derivatives: `trace/control.py`; lowering: `lower/control.py`.

Read next: `control.py` (what users call).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.ir import Graph, Op, Type
from tracejit.ops.core import primitive
from tracejit.tensor import evaluate, recording, wrap

BOOL, INT64 = Type((), dtypes.bool_), Type((), dtypes.int64)

# Derivatives by name of the op, filled by `trace/control.py`, which knows how to differentiate a graph.
VJP: dict[str, Callable[..., Any]] = {}
JVP: dict[str, Callable[..., Any]] = {}


def run(graph: Graph, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """A graph's results on arrays."""
    with recording(None):
        return tuple(y._value for y in evaluate(graph, [wrap(a) for a in arrays]))  # type: ignore[misc]


def _require(name: str, graph: Graph, types: Sequence[Type]) -> None:
    wanted = tuple(n.type for n in graph.inputs)
    if wanted != tuple(types):
        raise TypeError(f"{name}: {graph.name} takes {wanted}, got {tuple(types)}")


def _results(graph: Graph) -> tuple[Type, ...]:
    return tuple(n.type for n in graph.outputs)  # type: ignore[misc]


def _control(name: str, infer: Callable[..., Any], eager: Callable[..., Any], doc: str) -> Op:
    def vjp(gs: Any, ys: Any, *xs: Any, **attrs: Any) -> Any:
        return VJP[name](gs, ys, *xs, **attrs)

    def jvp(tangents: Any, ys: Any, *xs: Any, **attrs: Any) -> Any:
        return JVP[name](tangents, ys, *xs, **attrs)

    return primitive(name, "control", infer=infer, eager=eager, vjp=vjp, jvp=jvp, doc=doc)


# -- cond --------------------------------------------------------------------------------------------------------------
def _cond_infer(choice: Type, *operands: Type, branches: tuple[Graph, ...]) -> tuple[Type, ...]:
    if choice != INT64 and not (choice == BOOL and len(branches) == 2):
        raise TypeError(f"cond: the choice among {len(branches)} branches cannot be {choice}")
    for b in branches:
        _require("cond", b, operands)
        if _results(b) != _results(branches[0]):
            raise TypeError(f"cond: branches give {_results(branches[0])} and {_results(b)}")
    return _results(branches[0])


def _cond_eager(choice: np.ndarray, *operands: np.ndarray, branches: tuple[Graph, ...]) -> tuple[np.ndarray, ...]:
    return run(branches[min(max(int(choice), 0), len(branches) - 1)], operands)


COND = _control(
    "cond", _cond_infer, _cond_eager, "The results of one of several graphs; a number beyond them means the nearest."
)


# -- while_loop --------------------------------------------------------------------------------------------------------
def _while_infer(*types: Type, cond: Graph, body: Graph) -> tuple[Type, ...]:
    _require("while_loop", body, types)
    _require("while_loop", cond, types)
    carries = types[: len(body.outputs)]
    if _results(body) != carries:
        raise TypeError(f"while_loop: carries are {carries}, the body gives {_results(body)}")
    if _results(cond) != (BOOL,):
        raise TypeError(f"while_loop: the condition gives {_results(cond)}")
    return carries


def _while_eager(*arrays: np.ndarray, cond: Graph, body: Graph) -> tuple[np.ndarray, ...]:
    n = len(body.outputs)
    carries, operands = arrays[:n], arrays[n:]
    while run(cond, (*carries, *operands))[0]:
        carries = run(body, (*carries, *operands))
    return carries


WHILE = _control(
    "while_loop", _while_infer, _while_eager, "Carries replaced by the body's results while the condition holds."
)


# -- scan --------------------------------------------------------------------------------------------------------------
def _scan_infer(*types: Type, body: Graph, length: int, reverse: bool, carries: int, xs: int) -> tuple[Type, ...]:
    first, rows = types[:carries], types[carries : carries + xs]
    for t in rows:
        if not t.shape or t.shape[0] != length:
            raise ValueError(f"scan: {t} does not have {length} rows")
    _require("scan", body, (*first, *(Type(t.shape[1:], t.dtype) for t in rows), *types[carries + xs :]))
    results = _results(body)
    if results[:carries] != first:
        raise TypeError(f"scan: carries are {first}, the body gives {results[:carries]}")
    return (*first, *(Type((length, *t.shape), t.dtype) for t in results[carries:]))


def _scan_eager(
    *arrays: np.ndarray, body: Graph, length: int, reverse: bool, carries: int, xs: int
) -> tuple[np.ndarray, ...]:
    state, rows, operands = arrays[:carries], arrays[carries : carries + xs], arrays[carries + xs :]
    stacks = [np.empty((length, *n.shape), n.dtype) for n in body.outputs[carries:]]
    for t in reversed(range(length)) if reverse else range(length):
        found = run(body, (*state, *(x[t] for x in rows), *operands))
        state = found[:carries]
        for stack, y in zip(stacks, found[carries:], strict=True):
            stack[t] = y
    return (*state, *stacks)


SCAN = _control(
    "scan",
    _scan_infer,
    _scan_eager,
    "The body for each row of the xs, first to last (or last to first); its rows are stacked.",
)
