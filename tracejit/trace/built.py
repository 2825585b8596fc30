"""A graph made runnable, and what it was on the way.

In: what `function.build` made. Out: facts about it for people: `KernelInfo`, `Lowered`.

Read next: `lower/plan.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracejit.ir import Graph, Type
from tracejit.lower.plan import Plan, launch_of

if TYPE_CHECKING:
    from tracejit.runtime.program import Program


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


def kernel_infos(built: Built, calls: int) -> list[KernelInfo]:
    plan, profile = built.plan, built.program.profile
    found = []
    for at, step in enumerate(plan.steps):
        launch = launch_of(step)
        if launch is None:
            continue
        counted, seconds = profile[at] if profile is not None else (calls, 0.0)
        touched = {v.buffer for v in (*launch.reads, *launch.writes)}
        found.append(
            KernelInfo(
                launch.name,
                tuple(launch.ops),
                tuple(launch.source_lines),
                sum(plan.buffers[b].nbytes for b in touched),
                counted,
                seconds,
                launch.kernel.text,
            )
        )
    return found


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
