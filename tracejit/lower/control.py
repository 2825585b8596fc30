"""Control flow nodes as steps: `Branch` and `Loop`, whose parts are plans.

In: a control node whose graphs are lowered like any other. Out: one step. Its inputs are whole contiguous buffers; its
results are buffers of the plan around it. A carry that the body can write over its old value needs no second buffer.

Read next: `plan.py` (the records), `runtime/nested.py` (how they run).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tracejit.ir import Graph, Node, Type
from tracejit.lower import buffers
from tracejit.lower.plan import Branch, Buffer, Loop, Part, Plan

Fuse = Callable[[Graph], Plan]
NewBuffer = Callable[[Buffer], int]

CONTROL = ("cond", "while_loop", "scan")


def is_control(node: Node) -> bool:
    return node.op.kind == "control" and node.op.name in CONTROL


def step(node: Node, inputs: Sequence[int], results: Sequence[int], fuse: Fuse, new: NewBuffer) -> Branch | Loop:
    """The step for a control node, given its buffers. `new` adds a buffer to the plan around."""
    if node.op.name == "cond":
        parts = _alternatives([fuse(g) for g in node.attrs["branches"]])
        return Branch(inputs[0], tuple(inputs[1:]), tuple(results), parts, _work(parts, new), node.where)
    return _loop(node, inputs, results, fuse, new)


def _alternatives(plans: Sequence[Plan]) -> tuple[Part, ...]:
    """The branches. A result that some branch gives back as it came is the new value of that input: the others write
    over it."""
    updates = {k: p.inputs.index(b) for p in plans for k, b in enumerate(p.outputs)
               if b in p.inputs and p.outputs.count(b) == 1}
    taken = set(updates.values())
    for k, i in buffers.assign(plans[0], failing=False).reusable.items():
        if i not in taken:
            updates.setdefault(k, i)
    return tuple(_part(p, updates) for p in plans)


def _loop(node: Node, inputs: Sequence[int], results: Sequence[int], fuse: Fuse, new: NewBuffer) -> Loop:
    body_graph: Graph = node.attrs["body"]
    n = node.attrs.get("carries", len(body_graph.outputs))
    xs = node.attrs.get("xs", 0)
    body = _part(fuse(body_graph), {k: k for k in range(n)})
    test = _part(fuse(node.attrs["cond"])) if "cond" in node.attrs else None
    nexts = tuple(None if stays(body, k) else new(_temp(body_graph.outputs[k])) for k in range(n))
    verdict = new(Buffer((), np.dtype(bool), "temp")) if test is not None else -1
    work = _work((body,) if test is None else (test, body), new)
    return Loop(tuple(inputs[:n]), tuple(results[:n]), nexts, tuple(inputs[n: n + xs]), tuple(results[n:]),
                tuple(inputs[n + xs:]), body, test, verdict, node.attrs.get("length", -1),
                node.attrs.get("reverse", False), work, node.where)


def stays(body: Part, k: int) -> bool:
    """Whether carry `k` of a body needs no second buffer: it is written over, or not at all."""
    plan = body.plan
    return plan.outputs[k] == plan.inputs[k] or body.storage.reusable.get(k) == k


def _temp(node: Node) -> Buffer:
    type = node.type
    assert isinstance(type, Type)
    return Buffer(type.shape, type.dtype, "temp")


def _part(plan: Plan, updates: dict[int, int] | None = None) -> Part:
    return Part(plan, buffers.assign(plan, updates, failing=False))


def _work(parts: Sequence[Part], new: NewBuffer) -> int:
    """A buffer for the temps of whichever part runs."""
    size = max(p.storage.arena_bytes for p in parts)
    return new(Buffer((size,), np.dtype("uint8"), "temp"))
