"""A compiled graph as one op, so that a gradient tape hears one record for a whole call.

In: a graph and how to build it. Out: `CompiledGraph`: called on tensors, it runs the plain program; under a tape it
runs the forward program, which keeps residuals, and its derivative runs the backward program. Both are made on first
use. The backward program is a `CompiledGraph` itself, so derivatives of any order come from the same lines.

Read next: `split.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tracejit import config
from tracejit.ir import Graph, Op, Type
from tracejit.locks import fork_safe
from tracejit.ops import core
from tracejit.tensor import Tensor, apply, evaluate, recording, state, wrap
from tracejit.trace.autodiff import differentiable
from tracejit.trace.checked import run_checked
from tracejit.trace.split import pullback, split
from tracejit.trace.tracer import Trace


class Runnable(Protocol):
    """What building a graph gives."""

    program: Callable[[Sequence[np.ndarray]], list[np.ndarray]]


Builder = Callable[[Graph], Runnable]


class CompiledGraph:
    """A graph that can be called on tensors and differentiated."""

    def __init__(self, graph: Graph, build: Builder, built: Runnable | None = None):
        self.graph = graph
        self.built = built
        self._build = build
        self._parts: _Parts | None = None
        self._lock = fork_safe(threading.RLock())

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The graph's outputs. Inside a trace the graph is inlined."""
        if state.trace is not None:
            return evaluate(self.graph, tensors)
        if any(t.differentiates for t in state.tapes):
            return list(apply(self.parts().op, tensors, {}))[: len(self.graph.outputs)]
        return [wrap(a) for a in self.run([t._value for t in tensors])]  # type: ignore[misc]

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run the plain program."""
        if config.debug.nans:
            return run_checked(self.graph, self._build, [np.ascontiguousarray(a) for a in arrays])
        if self.built is None:
            with self._lock:
                self.built = self.built or self._build(self.graph)
        strides = self.graph.notes.get("strides", ())
        return self.built.program(
            [a if k in strides or a.flags.c_contiguous else np.ascontiguousarray(a) for k, a in enumerate(arrays)]
        )

    def parts(self) -> _Parts:
        """The forward and backward programs."""
        if self._parts is None:
            with self._lock:
                self._parts = self._parts or _Parts(self, self._build)
        return self._parts


class _Parts:
    """A graph split for differentiation: the forward program as an op, the backward program for each set of
    cotangents."""

    def __init__(self, whole: CompiledGraph, build: Builder):
        first, self._second = split(whole.graph)
        if "strides" in whole.graph.notes:
            first.notes["strides"] = whole.graph.notes["strides"]
        self.forward = CompiledGraph(first, build)
        self._build = build
        self._own = len(whole.graph.outputs)  # further outputs are residuals
        self._seedable = [k for k, n in enumerate(whole.graph.outputs) if differentiable(n)]
        self._backward: dict[tuple[int, ...], CompiledGraph] = {}
        types: Any = tuple(n.type for n in first.outputs)
        self.op = Op(
            "call",
            "control",
            lambda *_: types,
            lambda *arrays: tuple(self.forward.run(arrays)),
            f"A compiled call of {whole.graph.name}.",
            vjp=self._vjp,
        )

    def _vjp(self, g: Sequence[Tensor | None], y: Sequence[Tensor], *xs: Tensor) -> list[Tensor | None]:
        seeded = tuple(k for k, t in enumerate(g) if t is not None)
        cotangents = [t for t in g if t is not None]
        found: list[Tensor | None] = [None] * len(xs)
        if not seeded:
            return found
        program = self._backward.get(seeded)
        if program is None:
            program = self._backward[seeded] = CompiledGraph(self._backward_graph(seeded), self._build)
        inputs = [*y[self._own :], *cotangents] if seeded[-1] < self._own else [*xs, *cotangents]
        for k, t in zip(program.graph.notes["cotangents"], program(inputs), strict=True):
            found[k] = t
        return found

    def _backward_graph(self, seeded: tuple[int, ...]) -> Graph:
        """From residuals and the cotangents of `seeded`; from the inputs again, where a residual itself has a
        cotangent."""
        if seeded[-1] >= self._own:
            joint = pullback(self.forward.graph, seeded)
            outputs = joint.outputs[len(self.forward.graph.outputs) :]
            return Graph(joint.inputs, joint.nodes, outputs, joint.name, {"cotangents": joint.notes["cotangents"]})
        second = self._second
        if seeded == tuple(self._seedable):
            return second
        trace = Trace(second.name)  # the others are zero: literals, which the passes take away
        residuals = len(second.inputs) - len(self._seedable)
        with recording(trace):
            values = [trace.input(n.type, n.name) for n in second.inputs[:residuals]]  # type: ignore[arg-type]
            for k, n in zip(self._seedable, second.inputs[residuals:]):
                type_ = n.type
                assert isinstance(type_, Type)
                values.append(trace.input(type_, n.name) if k in seeded else core.full(0, type_.shape, type_.dtype))
            graph = trace.finish(evaluate(second, values))
        graph.notes["cotangents"] = second.notes["cotangents"]
        return graph
