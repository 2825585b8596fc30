"""Graphs of derivatives: the pullback of a graph, and a graph split into its forward and backward programs.

In: a traced graph. Out: graphs, by replaying it under a recording and walking back (`autodiff.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tracejit.dims import keys_by_computation
from tracejit.ir import Graph, Node, Type, has_effects, reachable
from tracejit.tensor import Tensor, evaluate, recording, taping
from tracejit.trace.autodiff import Key, Recording, accumulate, backward, differentiable
from tracejit.trace.passes.cse import cse
from tracejit.trace.residuals import residuals
from tracejit.trace.tracer import Trace


def pullback(graph: Graph, seeded: Sequence[int] | None = None) -> Graph:
    """From `graph`'s inputs and the cotangents of its outputs `seeded` (None: all that can have one) to its outputs,
    followed by the cotangents of its inputs.

    `notes["cotangents"]` holds the positions of the inputs that get one, in order; for the others it is structurally
    zero.
    """
    if seeded is None:
        seeded = [k for k, n in enumerate(graph.outputs) if differentiable(n)]
    with recording(None):
        trace = Trace(f"{graph.name}_pullback")
    with recording(trace):
        xs = [trace.input(Type(n.shape, n.dtype), n.name) for n in graph.inputs]
        gs = [trace.input(Type(graph.outputs[k].shape, graph.outputs[k].dtype), f"cotangent {k}") for k in seeded]
        tape = Recording()
        keys = [tape.key(x) for x in xs]
        for x in xs:
            if differentiable(x):
                tape.track(x)
        with taping((tape,)):
            ys = evaluate(graph, xs)
        seeds: dict[Key, Tensor] = {}
        for k, g in zip(seeded, gs, strict=True):
            accumulate(seeds, tape.key(ys[k]), g)
        found = backward(tape.records, seeds, {k for k, x in zip(keys, xs, strict=True) if differentiable(x)})
        reached = tuple(k for k, key in enumerate(keys) if key in found)
        joint = trace.finish([*ys, *(found[keys[k]] for k in reached)])
    joint.notes["cotangents"] = reached
    return joint


def split(graph: Graph, seeded: Sequence[int] | None = None) -> tuple[Graph, Graph]:
    """`graph` as two programs: forward, whose outputs are `graph`'s followed by residuals; and backward, from the
    residuals and the cotangents of the outputs `seeded` (None: all that can have one) to cotangents of `graph`'s
    inputs.

    `backward.notes["cotangents"]` holds the positions of the inputs that its outputs belong to; the others get none.
    Which values are residuals is decided by `residuals.py`; one may be an input or an output of `graph`.
    """
    with keys_by_computation():
        joint = cse(pullback(graph, seeded))
    n_in, n_out = len(graph.inputs), len(graph.outputs)
    primals, cotangents = joint.inputs[:n_in], joint.inputs[n_in:]
    outputs, results = joint.outputs[:n_out], joint.outputs[n_out:]

    linear = set(cotangents)  # what depends on cotangents
    for node in joint.nodes:
        if any(i in linear for i in node.inputs):
            linear.add(node)
    effects = [n for n in joint.nodes if has_effects(n)]
    wanted = reachable((*results, *(n for n in effects if n in linear)))
    later = {n for n in joint.nodes if n in linear and n in wanted}
    read = {i for n in later for i in n.inputs if i not in linear} | {n for n in results if n not in linear}
    saved = residuals([n for n in joint.nodes if n not in linear], set(primals), set(outputs), read)
    pending = list(read)
    while pending:  # what is not saved is computed again
        node = pending.pop()
        if node not in saved and node not in later:
            later.add(node)
            pending.extend(node.inputs)

    kept = tuple(n for n in (*joint.inputs, *joint.nodes) if n in saved)
    needed = reachable((*outputs, *kept, *(n for n in effects if n not in linear)))
    first = Graph(primals, tuple(n for n in joint.nodes if n in needed), (*outputs, *kept), f"{graph.name}_forward")
    body = tuple(n for n in joint.nodes if n in later)
    second = _copied((*kept, *cotangents), body, results, f"{graph.name}_backward")
    second.notes["cotangents"] = joint.notes["cotangents"]
    return first, second


def _copied(inputs: tuple[Node, ...], nodes: tuple[Node, ...], outputs: tuple[Node, ...], name: str) -> Graph:
    """The part `nodes` of a graph as a graph of its own, whose inputs stand for the nodes `inputs`."""
    with recording(None):
        trace = Trace(name)
    with recording(trace):
        values = [trace.input(Type(n.shape, n.dtype), n.name) for n in inputs]
        return trace.finish(evaluate(Graph(inputs, nodes, outputs, name), values))
