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
from tracejit.lower.kernel import Launch
from tracejit.lower.plan import Attention, Call, Gemm, Step, inner_parts, launch_of
from tracejit.trace.built import KernelInfo, kernel_infos, step_bytes, step_lines, step_name, stored
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
    shown: dict[int, list[Specialization]] = {}  # those of one plan for many sizes together
    for s in reversed(kept):
        shown.setdefault(id(s.built.stages), []).append(s)
    for alike in reversed(shown.values()):
        lines += ["", *_program(alike[0])]
        if len(alike) > 1:
            calls_of_others = sum(s.calls for s in alike[1:])
            lines.append(f"  the same plan for {len(alike) - 1} other sizes: {calls_of_others} calls")
    lines += [f"  sizes are traced one by one: {family.failure}" for family in function.families() if family.failure]
    lines += ["", f"disk cache: {_disk()}"]
    info = function.cache_info()
    lines.append(
        f"machine code of this process: {info.compiles} compiled, {info.memory_hits} found in memory, "
        f"{info.disk_hits} found on disk"
    )
    return Explanation(function.name, list(function.history), kernels, calls, "\n".join(lines))


def _program(s: Specialization) -> Iterator[str]:
    """One program: its steps in order, and what goes through memory between them."""
    types = ", ".join(f"{n.name.removeprefix('argument ')} {n.type!r}" for n in s.graph.inputs)
    built, plan, profile = s.built, s.built.plan, s.built.program.profile
    kernels = kernel_infos(built, s.calls)
    storage = built.program.storage
    ops = f"{len(s.graph.nodes)} ops traced, {len(built.graph.nodes)} after passes"
    yield f"program for ({types}): {s.calls} call{'s' * (s.calls != 1)}, {ops}"
    if s.reason:
        yield f"  traced because: {s.reason}"
    count = f"{len(kernels)} kernel{'s' * (len(kernels) != 1)}"
    passes = sum(seconds for _, _, seconds in built.stages)
    yield (f"  {count}, {storage.arena_bytes} bytes of temporaries, {storage.array_bytes} bytes of results, "
           f"built in {built.seconds * 1e3:.1f} ms ({passes * 1e3:.1f} ms of it in passes)")
    infos = iter(kernels)
    for k, step in enumerate(plan.steps):
        calls, seconds = profile[k] if profile is not None else (s.calls, 0.0)
        nbytes = step_bytes(plan, step)
        rate = f", {seconds:.6f} s, {nbytes * calls / seconds / 1e9:.1f} GB/s" if seconds else ""
        lines = ", ".join(map(_short, step_lines(step))) or "unknown lines"
        if launch_of(step) is not None:
            info = next(infos)
            product = "product of matrices, then " if isinstance(step, Gemm) else ""
            yield f"  kernel {info.name}: {product}{', '.join(info.ops)}"
        else:
            yield f"  {_step(step)}"
        yield f"    {nbytes} bytes, {calls} calls{rate}; from {lines}"
    between = stored(plan)
    if between:
        yield "  through memory between steps, and why:"
    yield from (f"    {t} from {maker} to {', '.join(readers)}: {why}" for t, maker, readers, why in between)
    if s.hidden:
        yield f"  hidden inputs: {', '.join(c.node.name for c in s.hidden)}"


def _step(step: Step) -> str:
    """A step that is not a fused kernel, and why."""
    assert not isinstance(step, Launch)
    at = f" (at {_short(step.where)})" if step.where else ""
    if isinstance(step, Gemm):
        return f"matmul: product of matrices, {'then ' + ', '.join(step.then.ops) if step.then else 'not fused'}{at}"
    if isinstance(step, Attention):
        return f"{step_name(step)}: scores block by block in the cache, never in memory{at}"
    if isinstance(step, Call):
        how = "runs in Python, in program order" if step.op.stateful else "library call, not fused"
        return f"{step.op.name}: {how}{at}"
    inner = [step_name(inner) for part in inner_parts(step) for inner in part.plan.steps]
    return f"{step_name(step)}: in native code, over {', '.join(inner) or 'nothing'}{at}"


def _library_calls(s: Specialization) -> Iterator[str]:
    """Steps that are more than fused kernels, each with the reason."""
    yield from (_step(step) for step in s.built.plan.steps if not isinstance(step, Launch))


def _short(where: str) -> str:
    return where.rsplit("/", 1)[-1]


def _disk() -> str:
    folder = config.cache_directory()
    return f"stored in {folder}" if folder else "off (TRACEJIT_CACHE=off)"
