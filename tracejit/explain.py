"""What the compiler did with a function, as text: why it was traced, what fused into which kernel, what did not and
why.

In: a decorated function that has been called. Out: `Explanation`; printing it is the use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tracejit import config
from tracejit.function import Function, Method
from tracejit.lower.plan import Call, Gemm
from tracejit.trace.built import KernelInfo, kernel_infos
from tracejit.trace.specialization import Specialization


@dataclass(frozen=True, slots=True)
class Explanation:
    """Facts about a function's traces and kernels."""

    name: str
    traces: list[str]  # "trace 2: argument 'x' f32[3] -> f32[4, 4] at train.py:12"
    kernels: list[KernelInfo]
    library_calls: list[str]  # "sort: library call, not fused (at file.py:3)"
    text: str

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def explain(f: Any) -> Explanation:
    """Why each trace of `f` happened, and what its programs consist of."""
    function: Function
    if isinstance(f, Method):
        function = f.function
    elif isinstance(f, Function):
        function = f
    else:
        raise TypeError(f"explain: expected a function decorated with tj.function, got {type(f).__name__}")
    kept = function.specializations()
    calls = [line for s in kept for line in _library_calls(s)]
    kernels = [k for s in kept for k in kernel_infos(s.built, s.calls)]
    lines = [
        f"{function.name}: {function.trace_count} trace{'s' * (function.trace_count != 1)}, {len(kept)} in the cache"
    ]
    lines += [f"  {line}" for line in function.history]
    if not kept and not function.history:
        lines.append(
            "  not called yet"
            if not function.views()
            else "  a method: explain(instance.method) tells about one instance"
        )
    for s in kept:
        lines += ["", *_program(s)]
    lines += ["", f"disk cache: {_disk()}"]
    info = function.cache_info()
    lines.append(
        f"machine code of this process: {info.compiles} compiled, {info.memory_hits} found in memory, "
        f"{info.disk_hits} found on disk"
    )
    return Explanation(function.name, list(function.history), kernels, calls, "\n".join(lines))


def _program(s: Specialization) -> Iterator[str]:
    """One program."""
    types = ", ".join(f"{n.name.removeprefix('argument ')} {n.type!r}" for n in s.graph.inputs)
    kernels = kernel_infos(s.built, s.calls)
    plan = s.built.plan
    temporary = sum(b.nbytes for b in plan.buffers if b.role == "temp")
    ops = f"{len(s.graph.nodes)} ops traced, {len(s.built.graph.nodes)} after passes"
    yield f"program for ({types}): {s.calls} call{'s' * (s.calls != 1)}, {ops}"
    count = f"{len(kernels)} kernel{'s' * (len(kernels) != 1)}"
    yield f"  {count}, {temporary} bytes of temporaries, built in {s.built.seconds * 1e3:.1f} ms"
    for k in kernels:
        seconds = f", {k.seconds:.6f} s" if k.seconds else ""
        yield f"  kernel {k.name}: {', '.join(k.ops)}"
        lines = ", ".join(map(_short, k.source_lines)) or "unknown lines"
        yield f"    {k.bytes} bytes, {k.calls} calls{seconds}; from {lines}"
    yield from (f"  {line}" for line in _library_calls(s))
    if s.hidden:
        yield f"  hidden inputs: {', '.join(c.node.name for c in s.hidden)}"


def _library_calls(s: Specialization) -> Iterator[str]:
    """Steps that are not fused kernels, each with the reason."""
    for step in s.built.plan.steps:
        at = f" (at {_short(step.where)})" if getattr(step, "where", "") else ""
        if isinstance(step, Gemm):
            yield f"matmul: product of matrices, {'then ' + ', '.join(step.then.ops) if step.then else 'not fused'}{at}"
        elif isinstance(step, Call):
            yield f"{step.op.name}: library call, not fused{at}"


def _short(where: str) -> str:
    return where.rsplit("/", 1)[-1]


def _disk() -> str:
    folder = config.cache_directory()
    return f"stored in {folder}" if folder else "off (TRACEJIT_CACHE=off)"
