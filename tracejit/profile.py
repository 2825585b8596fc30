"""`tj.profile`: when each kernel, library call, trace and compilation ran, as a file that Perfetto and Chrome open.

In: code that runs inside `with tj.profile("trace.json"):`. Out: the file (Chrome's trace event format), and a table.
Kernels have the names that `tj.explain` and the report give them. While profiling, a compiled function of this thread
returns to Python after each step, so very small kernels seem slower than they are.

Read next: `report.py`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracejit import config
from tracejit.drawing import timeline_svg
from tracejit.errors import user_line
from tracejit.ir import Op, Type
from tracejit.lower.plan import Call, Gemm, Plan, Step, launch_of
from tracejit.tensor import Tensor, state, taping
from tracejit.trace.built import step_bytes, step_lines, step_name, step_work


@dataclass(frozen=True, slots=True)
class Event:
    """Something that ran. kind: kernel, library, program, trace, compile or eager (which has no duration)."""

    name: str
    kind: str
    start: float  # seconds since profiling began
    seconds: float
    thread: int  # as the system numbers it
    facts: Mapping[str, Any]


class profile:
    """Note what runs inside the `with` block; at its end write `path`, if there is one.

    >>> with profile() as p:
    ...     pass
    >>> p.events
    []
    """

    def __init__(self, path: str | os.PathLike[str] | None = None):
        self.path = path
        self.events: list[Event] = []
        self._facts: dict[tuple[int, int], tuple[Plan, str, str, dict[str, Any]]] = {}
        self._threads: dict[int, str] = {}
        self._begin = 0.0

    def __enter__(self) -> profile:
        if config.debug.watch is not None:
            raise RuntimeError("tj.profile: a profiler is running already")
        self._begin = time.perf_counter()
        config.debug.watch = self
        self._context = taping((*state.tapes, _Listener(self)))  # compiled calls leave their fastest way
        self._context.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._context.__exit__()
        config.debug.watch = None
        if self.path is not None:
            with open(self.path, "w") as file:
                json.dump(self.chrome(), file)

    # -- what the rest of the package tells --------------------------------------------------------------------------
    def step(self, program: Any, number: int, start: float, end: float) -> None:
        """A step of a program ran."""
        plan = program.plan
        known = self._facts.get((id(plan), number))
        if known is None:
            name, kind, facts = _described(plan, plan.steps[number], program.name)
            known = self._facts[id(plan), number] = plan, name, kind, facts
        self._add(known[1], known[2], start, end, known[3])

    def program(self, program: Any, start: float, end: float) -> None:
        """A whole program ran."""
        self._add(program.name, "program", start, end, {})

    def span(self, name: str, kind: str, start: float, end: float) -> None:
        """Anything else that took time."""
        self._add(name, kind, start, end, {})

    def _add(self, name: str, kind: str, start: float, end: float, facts: Mapping[str, Any]) -> None:
        thread = threading.get_native_id()
        if thread not in self._threads:
            self._threads[thread] = threading.current_thread().name
        self.events.append(Event(name, kind, start - self._begin, end - start, thread, facts))

    # -- results -----------------------------------------------------------------------------------------------------
    def chrome(self) -> dict[str, Any]:
        """The events in Chrome's trace event format; times in microseconds.

        They are whole nanoseconds, both ends of each rounded: rounded apart, a step could end after its program, and
        Perfetto leaves out what overlaps.
        """
        pid = os.getpid()
        found: list[dict[str, Any]] = [{"ph": "M", "pid": pid, "name": "process_name", "args": {"name": "tracejit"}}]
        for thread, name in self._threads.items():
            found.append({"ph": "M", "pid": pid, "tid": thread, "name": "thread_name", "args": {"name": name}})
        for e in sorted(self.events, key=lambda e: (e.start, -e.seconds)):
            start, end = round(e.start * 1e9), round((e.start + e.seconds) * 1e9)
            event = {"name": e.name, "cat": e.kind, "pid": pid, "tid": e.thread, "ts": start / 1e3,
                     "args": dict(e.facts)}
            found.append({**event, "ph": "i", "s": "t"} if e.kind == "eager" else
                         {**event, "ph": "X", "dur": (end - start) / 1e3})
        return {"traceEvents": found, "displayTimeUnit": "ns"}

    def svg(self) -> str:
        """The events as a picture."""
        return timeline_svg([(e.name, e.kind, e.thread, e.start, e.seconds) for e in self.events])

    def __str__(self) -> str:
        """The time by name, longest first."""
        totals: dict[tuple[str, str], list[float]] = {}
        for e in self.events:
            totals.setdefault((e.kind, e.name), []).append(e.seconds)
        sizes = {(e.kind, e.name): e.facts["bytes"] for e in self.events if "bytes" in e.facts}
        lines = [f"{'kind':<8} {'calls':>6} {'total ms':>10} {'mean us':>10} {'GB/s':>7}  name"]
        for key, times in sorted(totals.items(), key=lambda item: -sum(item[1])):
            total = sum(times)
            rate = f"{sizes[key] * len(times) / total / 1e9:.1f}" if key in sizes and total else ""
            mean = total / len(times) * 1e6
            lines.append(f"{key[0]:<8} {len(times):>6} {total * 1e3:>10.3f} {mean:>10.2f} {rate:>7}  {key[1]}")
        return "\n".join(lines)


class _Listener:
    """Hears eager ops; and while it listens, compiled functions do not take the way past the profiler."""

    differentiates = False

    def __init__(self, profiler: profile):
        self.profiler = profiler

    def record(self, op: Op, args: Sequence[Tensor], attrs: Mapping[str, Any], out: Any) -> None:
        now = time.perf_counter()
        types = ", ".join(repr(Type(a.shape, a.dtype)) for a in args)
        self.profiler._add(op.name, "eager", now, now, {"inputs": types, "line": user_line()})

    def escaped(self, tensor: Tensor, how: str) -> None:
        """What leaves for Python is no concern."""


def _described(plan: Plan, step: Step, program: str) -> tuple[str, str, dict[str, Any]]:
    """Name, kind and facts of a step."""
    launch = launch_of(step)
    facts: dict[str, Any] = {"function": program, "bytes": step_bytes(plan, step), "lines": list(step_lines(step))}
    if launch is not None:
        facts["ops"] = list(launch.ops)
        facts["extents"] = list(launch.extents)
    if isinstance(step, Gemm):
        facts["product"] = f"{list(step.batch)} {step.m} x {step.k} x {step.n}"
    if work := step_work(step):
        facts["operations"] = work
    return step_name(step), "library" if isinstance(step, Call) else "kernel", facts
