"""A graph made runnable, and what it was on the way.

In: what `function.build` made. Out: facts about it for people: `KernelInfo`, `Lowered`.

Read next: `lower/plan.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from tracejit.ir import Graph, Type
from tracejit.lower.buffers import Storage
from tracejit.lower.kernel import Launch
from tracejit.lower.listing import listing, names_of
from tracejit.lower.plan import Attention, Branch, Call, Gemm, Plan, Step, inner_parts, launch_of, reads_of, writes_of

if TYPE_CHECKING:
    from tracejit.runtime.program import Program


@dataclass(slots=True)
class Lowering:
    """A graph as a plan, before its kernels are compiled."""

    name: str
    stages: list[tuple[str, Graph, float]]  # name of the pass, the graph after it, seconds it took
    plan: Plan
    storage: Storage
    start: float  # when this began
    kernels: list[int] = field(default_factory=list)  # addresses of the code, if known


@dataclass(slots=True)
class Built:
    """A graph made runnable, with what it was on the way."""

    stages: list[tuple[str, Graph, float]]  # name of the pass, the graph after it, seconds it took
    plan: Plan
    program: Program
    seconds: float

    @property
    def graph(self) -> Graph:
        return self.stages[-1][1]


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """One kernel of a program."""

    name: str
    ops: tuple[str, ...]
    source_lines: tuple[str, ...]
    bytes: int
    calls: int
    seconds: float  # measured under `profile()`; 0.0 otherwise
    code: str
    text: str  # for people: loops, reads, writes, ops with their lines

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


class Kernels(list[KernelInfo]):
    """Kernels in order; prints as their texts."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    __repr__ = __str__


def kernel_infos(built: Built, calls: int) -> list[KernelInfo]:
    """The kernels of the plan's own steps, then those inside branches and loops (whose runs are not counted)."""
    profile, plan = built.program.profile, built.plan
    timed = [profile[at] if profile is not None else (calls, 0.0) for at in range(len(plan.steps))]
    given = {b: _argument(n.name) for b, n in zip(plan.inputs, built.graph.inputs) if n.name}
    return _infos(plan, timed, given)


def _argument(name: str) -> str:
    """The name of an input, short: an argument's own, or what stands in quotes in a longer one."""
    return name.removeprefix("argument ").strip("'")


def _infos(plan: Plan, timed: Sequence[tuple[int, float]], given: Mapping[int, str]) -> list[KernelInfo]:
    found, inner = [], []
    name = names_of(given, plan.outputs, [b.role for b in plan.buffers])
    for step, (counted, seconds) in zip(plan.steps, timed, strict=True):
        for part in inner_parts(step):
            inner += _infos(part.plan, [(counted, 0.0)] * len(part.plan.steps), {})
        launch = launch_of(step)
        if launch is None:
            continue
        touched = {v.buffer for v in (*launch.reads, *launch.writes)}
        found.append(
            KernelInfo(
                step_name(step),
                tuple(launch.ops),
                tuple(launch.source_lines),
                sum(plan.buffers[b].nbytes for b in touched),
                counted,
                seconds,
                launch.kernel.text,
                listing(launch, name),
            )
        )
    return found + inner


def step_name(step: Step) -> str:
    """What a step is called in explanations, reports and profiles."""
    match step:
        case Launch():
            return step.name
        case Gemm():
            return f"matmul_{step.then.name}" if step.then is not None else "matmul"
        case Attention():
            return step.name
        case Call():
            return step.op.name
        case Branch():
            return "cond"
    return "while_loop" if step.test is not None else "scan"


def stored(plan: Plan) -> list[tuple[str, str, tuple[str, ...], str]]:
    """What goes through memory between steps, in order: type, who makes it, who reads it, and why it is not fused."""
    makers: dict[int, str] = {}
    readers: dict[int, list[str]] = {}
    for step in plan.steps:
        for b in reads_of(step):
            if b in makers:
                readers.setdefault(b, []).append(step_name(step))
        for b in writes_of(step):
            makers.setdefault(b, step_name(step))
    return [
        (repr(Type(plan.buffers[b].shape, plan.buffers[b].dtype)), maker, tuple(dict.fromkeys(readers[b])),
         plan.buffers[b].why)
        for b, maker in makers.items()
        if b in readers and plan.buffers[b].why
    ]


def step_bytes(plan: Plan, step: Step) -> int:
    """Bytes of the buffers that a step touches, each once."""
    return sum(plan.buffers[b].nbytes for b in {*reads_of(step), *writes_of(step)})


def step_lines(step: Step) -> tuple[str, ...]:
    """The user's lines that a step comes from."""
    launch = launch_of(step)
    where = getattr(step, "where", "")
    found = (*((where,) if where else ()), *(launch.source_lines if launch is not None else ()))
    return tuple(dict.fromkeys(found))


def step_work(step: Step) -> int:
    """Scalar operations of a step, about: a product's multiplications and additions, a kernel's statements at each
    point of its space. 0 where it is not known."""
    work = 0
    if isinstance(step, Gemm):
        work = 2 * prod(step.batch) * step.m * step.n * step.k * (4 if step.dtype.kind == "c" else 1)
    if isinstance(step, Attention):
        products = step.depth + step.width + (2 * step.depth + step.width) * (step.name == "attention_grad")
        work = 2 * prod(step.batch) * step.rows * step.columns * products
    launch = launch_of(step)
    if launch is not None:
        counted = sum(2 if s.op == "fma" else s.op not in _FREE for s in launch.kernel.stmts)
        work += counted * prod(launch.extents)
    return work


_FREE = frozenset(("const", "load", "index", "param", "carry", "extent", "coord", "bitcast", "cast", "broadcast"))


class Lowered:
    """What a call compiles to. Prints as the graph after each pass, then the kernels and buffers."""

    def __init__(self, built: Built):
        self.built = built
        self.stages = {name: graph for name, graph, _ in built.stages}
        self.plan = built.plan

    @property
    def graph(self) -> Graph:
        """After all passes."""
        return self.built.graph

    @property
    def kernels(self) -> list[KernelInfo]:
        return kernel_infos(self.built, 0)

    def __str__(self) -> str:
        parts = [f"# after {name} ({seconds * 1e3:.2f} ms)\n{graph}" for name, graph, seconds in self.built.stages]
        parts += [f"# kernel {k.name}: {', '.join(k.ops)}\n{k.code}" for k in self.kernels]
        parts += [
            "# buffers\n"
            + "\n".join(f"{k}: {b.role} {Type(b.shape, b.dtype)!r}" for k, b in enumerate(self.plan.buffers))
        ]
        return "\n".join(parts)
