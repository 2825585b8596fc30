"""Runs passes: names, verifies, dumps, times and compares them.

In: passes (functions `Graph -> Graph`) and a graph. Out: the graph after all of them. What it does beside is set by
`config.debug`: `check` 1 verifies after every pass, 2 also evaluates before and after it on random inputs; `skip`
leaves passes out by name; `dump` writes each graph as `NN_pass.py`.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from tracejit import config
from tracejit.errors import InternalError
from tracejit.ir import Graph, Type, map_subgraphs, subgraphs, to_text, verify
from tracejit.tensor import evaluate, recording, wrap

Pass = Callable[[Graph], Graph]

_dumps = itertools.count()


def run(passes: Sequence[Pass], graph: Graph, watch: Callable[[str, Graph, float], None] | None = None) -> Graph:
    """`graph` after `passes`. `watch(name, graph, seconds)` sees each step, the start ("trace") included."""
    debug = config.debug
    folder = ""
    if debug.dump:
        folder = os.path.join(
            debug.dump, f"{next(_dumps):03d}_{''.join(c if c.isalnum() else '_' for c in graph.name)}"
        )
        os.makedirs(folder, exist_ok=True)
    if debug.check:
        verify(graph)
    _report(folder, 0, "trace", graph, 0.0, watch)
    for k, step in enumerate(passes, 1):
        name = step.__name__
        if name in debug.skip:
            continue
        before, start = graph, time.perf_counter()
        try:
            graph = deeply(step, before)
            seconds = time.perf_counter() - start
            if debug.check:
                verify(graph)
            if debug.check >= 2:
                compare(before, graph)
        except Exception as error:
            saved = (
                f"; its input is {folder}/{k - 1:02d}_*.py" if folder else "; set TRACEJIT_DUMP=dir to see its input"
            )
            raise InternalError(
                f"while running pass {name} on {graph.name}: {type(error).__name__}: {error}{saved}"
            ) from error
        _report(folder, k, name, graph, seconds, watch)
    return graph


def deeply(step: Pass, graph: Graph) -> Graph:
    """A graph after a pass, and then the graphs inside its control nodes."""
    return map_subgraphs(step(graph), lambda inner: deeply(step, inner))


def _report(
    folder: str, k: int, name: str, graph: Graph, seconds: float, watch: Callable[[str, Graph, float], None] | None
) -> None:
    if folder:
        with open(os.path.join(folder, f"{k:02d}_{name}.py"), "w") as f:
            f.write(to_text(graph))
    if watch is not None:
        watch(name, graph, seconds)


def compare(before: Graph, after: Graph) -> None:
    """Evaluate two graphs on the same random inputs; InternalError where results differ by more than rounding."""
    if _may_be_endless(before):
        return
    random = np.random.default_rng(0)
    values = [sample(n.type, random) for n in before.inputs]  # type: ignore[arg-type]
    with recording(None):
        try:
            wanted = evaluate(before, [wrap(v) for v in values])
        except IndexError:  # random indices, out of range
            return
        found = evaluate(after, [wrap(v) for v in values])
    for k, (a, b) in enumerate(zip(wanted, found, strict=True)):
        x, y = a._value, b._value
        assert isinstance(x, np.ndarray) and isinstance(y, np.ndarray)
        if x.dtype != y.dtype or x.shape != y.shape or not close(x, y):
            raise InternalError(f"output {k} differs: {x.reshape(-1)[:8]} before, {y.reshape(-1)[:8]} after")


def _may_be_endless(graph: Graph) -> bool:
    """Whether random inputs could keep a loop going for ever."""
    return any(n.op.name == "while_loop" or any(map(_may_be_endless, subgraphs(n))) for n in graph.nodes)


def close(x: np.ndarray, y: np.ndarray) -> bool:
    """Equal up to reassociation at the dtype's precision; nan equals nan, integers exactly."""
    if x.dtype.kind not in "fc":
        return bool(np.array_equal(x, y))
    eps = float(np.finfo(x.dtype).eps)
    with np.errstate(all="ignore"):
        scale = np.max(np.abs(x[np.isfinite(x)]), initial=0.0)
        return bool(np.allclose(x, y, rtol=256 * eps, atol=64 * eps * float(scale), equal_nan=True))


def sample(type: Type, random: np.random.Generator) -> np.ndarray:
    """Random values of a type, small integers among them so that they may serve as indices."""
    if type.dtype.kind == "b":
        return np.asarray(random.random(type.shape) < 0.5)
    if type.dtype.kind in "iu":
        return random.integers(0, 3, type.shape).astype(type.dtype)
    found = random.uniform(-2, 2, type.shape)
    return (found + 1j * random.uniform(-2, 2, type.shape) if type.dtype.kind == "c" else found).astype(type.dtype)
