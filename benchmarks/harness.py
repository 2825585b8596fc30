"""Timing and tables: one process per library and number of threads, interleaved rounds, median ratios.

In: workloads and peers. Out: `Row`s, printed by `table`.

Beside the libraries a process of its own does as many bytes and operations as a workload cannot avoid
(`roofline.py`), in the same rounds: the share of that limit which tracejit reaches is in the table, too.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import statistics
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from benchmarks.convolution import CONVOLUTION
from benchmarks.kernels import KERNELS
from benchmarks.loops import LOOPS
from benchmarks.matrix import MATRIX
from benchmarks.network import NETWORK
from benchmarks.peers import PEERS, limited
from benchmarks.roofline import Limits, Work, work_of_plan
from benchmarks.training import TRAINING, Miniature
from benchmarks.workloads import WORKLOADS, Target, Workload

FUNCTIONS = WORKLOADS | KERNELS | LOOPS | MATRIX
LAYERS = CONVOLUTION | NETWORK  # these and the next with all threads only: there are many
ALL: dict[str, Workload] = FUNCTIONS | LAYERS | TRAINING
SAMPLE = 0.03  # seconds a library runs in one round
SLOW = 4.0  # a library so many times slower than the best other one is timed in the first rounds only
FIRST_ROUNDS = 2
TOLERANCE = 1.05  # of the processors that a process may use, for the clocks' sake
OURS, LIMIT = "tracejit", "limit"


@dataclass
class Row:
    """One line of the table: seconds of each round by library, or why a library has none. In tables of memory, bytes
    take the place of seconds."""

    name: str
    target: Target | None = None
    seconds: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    limits: list[tuple[float, str]] = field(default_factory=list)  # of each round: seconds, and of what
    work: Work | None = None  # what takes the machine so long
    note: str = ""

    bytes: bool = False

    def median(self, peer: str) -> float:
        return statistics.median(self.seconds[peer])

    @property
    def unit(self) -> tuple[str, float]:
        """What the row is shown in, and how many of it one second or byte is."""
        if self.bytes:
            return "MB", 1e-6
        short = min(map(self.median, self.seconds), default=1.0) < 1e-4
        return ("µs", 1e6) if short else ("ms", 1e3)

    @property
    def best_peer(self) -> str | None:
        others = [p for p in self.seconds if p != OURS]
        return min(others, key=self.median, default=None)

    @property
    def speeds(self) -> list[float]:
        """How many times as fast as the best other library, in each round."""
        if OURS not in self.seconds or (best := self.best_peer) is None:
            return []
        return [b / o for b, o in zip(self.seconds[best], self.seconds[OURS])]

    @property
    def speed(self) -> float | None:
        return statistics.median(self.speeds) if self.speeds else None

    @property
    def share(self) -> tuple[float, str] | None:
        """How much of the limit tracejit reaches, and which limit: the median over the rounds."""
        if not self.limits or OURS not in self.seconds:
            return None
        found = [seconds / ours for (seconds, _), ours in zip(self.limits, self.seconds[OURS])]
        kinds = [kind for _, kind in self.limits]
        return statistics.median(found), max(set(kinds), key=kinds.count)

    @property
    def meets_target(self) -> bool | None:
        """Whether the target is met; None where there is none, or nothing to compare with."""
        if self.target is None or OURS not in self.seconds:
            return None
        if self.target.seconds is not None:
            return self.median(OURS) <= self.target.seconds
        return None if self.speed is None else self.speed >= self.target.speed


# ---- inside the processes ----------------------------------------------------------------------------------------


class Server(Protocol):
    """What a process does for the parent."""

    version: str

    def set_up(self, order: Any) -> Any: ...
    def time(self) -> Any: ...
    def drop(self) -> None: ...


class LibraryServer:
    """A library: sets up a workload by name and gives its result, then gives seconds for one call."""

    def __init__(self, name: str, threads: int) -> None:
        self.threads = threads
        self.peer = PEERS[name](threads)
        self.version = self.peer.version
        self.call: Any = None

    def set_up(self, order: str) -> tuple[Any, Any]:
        workload = Miniature() if order == Miniature.name else ALL[order]
        inputs = workload.inputs(np.random.default_rng(0))
        self.call = workload.build(self.peer, inputs)
        result = self.peer.get(self.peer.wait(self.call()))
        return result, self.operations(workload.turns(inputs)) if self.peer.name == OURS else None

    def operations(self, turns: float | None) -> Any:
        """The operations of the program that ran, where it is known."""
        function = getattr(self.call, "func", None)
        if not hasattr(function, "specializations") or not (kept := function.specializations()):
            return None
        return work_of_plan(kept[-1].built.plan, turns)

    def time(self) -> float:
        start, worked = time.perf_counter(), time.process_time()
        seconds = sample(self.call, self.peer.wait)
        check_processors((time.process_time() - worked) / (time.perf_counter() - start), self.threads)
        return seconds

    def drop(self) -> None:
        self.call = None
        gc.collect()


class LimitServer:
    """No library: does as many bytes and operations as a `Work` says."""

    version = ""

    def __init__(self, threads: int) -> None:
        self.limits = Limits(threads)
        self.measure: Callable[[], tuple[float, str]] | None = None

    def set_up(self, order: Work | str) -> Any:
        if isinstance(order, str):
            return self.limits.describe()
        self.measure = self.limits.prepare(order)

    def time(self) -> tuple[float, str]:
        assert self.measure is not None
        return self.measure()

    def drop(self) -> None:
        self.measure = None
        gc.collect()


def check_processors(busy: float, threads: int) -> None:
    """`busy`: processors at work on average, all threads of a process together."""
    if busy > TOLERANCE * threads:
        raise RuntimeError(f"{busy:.2f} processors were at work, where {threads} should have been")


def sample(call: Callable[[], Any], wait: Callable[[Any], Any]) -> float:
    """Seconds for one call: the median of repeated calls during `SAMPLE` seconds, after one call to warm up."""
    wait(call())
    start = time.perf_counter()
    wait(call())
    once = max(1e-7, time.perf_counter() - start)
    if once > SAMPLE:
        return once
    batch = max(1, int(5e-4 / once))  # short calls are timed in batches
    samples: list[float] = []
    end = time.perf_counter() + SAMPLE
    while len(samples) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(batch):
            wait(call())
        samples.append((time.perf_counter() - start) / batch)
    return statistics.median(samples)


def serve(connection: Connection, name: str, threads: int) -> None:
    """Answer the parent's orders until it says stop."""
    try:
        server: Server = LimitServer(threads) if name == LIMIT else LibraryServer(name, threads)
    except Exception as error:
        connection.send(("failed", f"{type(error).__name__}: {error}"))
        return
    connection.send(("ready", server.version))
    while (order := connection.recv())[0] != "stop":
        try:
            connection.send(("done", getattr(server, order[0])(*order[1:])))
        except Exception:
            connection.send(("failed", traceback.format_exc(limit=-3)))


# ---- in the parent -----------------------------------------------------------------------------------------------


class Library:
    """A library in its own process, which stands still while it has nothing to do: threads that wait by spinning, as
    some libraries' do for a while after each call, would take the processors from the one that is measured next."""

    def __init__(self, name: str, threads: int) -> None:
        self.name, self.threads = name, threads
        spawn = multiprocessing.get_context("spawn")
        self.connection, theirs = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(theirs, name, threads), daemon=True)
        with limited(threads):
            self.process.start()
        theirs.close()
        state, self.version = self.answer()
        self.usable = state == "ready"

    def answer(self) -> tuple[str, Any]:
        try:
            found = self.connection.recv()
        except EOFError:
            return "failed", f"the process of {self.name} died"
        self.signal("SIGSTOP")
        return found

    def signal(self, name: str) -> None:
        if self.process.is_alive() and self.process.pid is not None and hasattr(signal, name):
            os.kill(self.process.pid, getattr(signal, name))

    def tell(self, *order: Any) -> None:
        self.signal("SIGCONT")
        try:
            self.connection.send(order)
        except OSError:
            pass  # the process died, as `answer` will say

    def ask(self, *order: Any) -> tuple[str, Any]:
        self.tell(*order)
        return self.answer()

    def stop(self) -> None:
        if self.process.is_alive():
            self.tell("stop")
            self.process.join(5)


@dataclass
class Group:
    """All libraries with one number of threads, and the process that measures the limits."""

    threads: int
    libraries: list[Library]
    limit: Library


def nbytes(values: Any) -> int:
    if isinstance(values, tuple | list):
        return sum(map(nbytes, values))
    return np.asarray(values).nbytes


def measure(workload: Workload, groups: Sequence[Group], rounds: int) -> list[Row]:
    """Check each library's result against NumPy in float64, then time all of them in interleaved rounds: a row for each
    number of threads."""
    groups = groups if workload.scales and workload.name in FUNCTIONS else groups[:1]
    rows = [Row(workload.name, workload.target if k == 0 else None, note=workload.note) for k in range(len(groups))]
    taking = [[lib for lib in group.libraries if workload.runs_on(lib.name)] for group in groups]
    for libraries in taking:
        for library in libraries:
            library.tell("set_up", workload.name)
    numpy = PEERS["numpy"](1)
    inputs = workload.inputs(np.random.default_rng(0))
    wide = tuple(a.astype("float64") if a.dtype.kind == "f" else a for a in inputs)
    reference = numpy.get(workload.build(numpy, wide)())
    for group, row, libraries in zip(groups, rows, taking):
        for library in libraries:
            state, found = library.answer()
            if state == "done":
                result, operations = found
                try:
                    workload.check(result, reference)
                except AssertionError as error:
                    state, found = "failed", f"wrong result: {error}"
            if state != "done":
                row.failed[library.name] = found
                library.ask("drop")
                continue
            row.seconds[library.name] = []
            if library.name == OURS and workload.limited:
                row.work = Work(*workload.moves(inputs, result), operations or Counter())
                state, found = group.limit.ask("set_up", row.work)
                if state != "done":
                    row.work, row.failed[LIMIT] = None, found
    del reference
    for number in range(rounds):
        for group, row, libraries in zip(groups, rows, taking):
            _one_round(group, row, libraries, number)
    for group, libraries in zip(groups, taking):
        for library in (*libraries, group.limit):
            library.ask("drop")
    return rows


def _one_round(group: Group, row: Row, libraries: Iterable[Library], number: int) -> None:
    others = [p for p in row.seconds if p != OURS and row.seconds[p]]
    best = min((row.median(p) for p in others), default=float("inf"))
    for library in libraries:
        name = library.name
        if name not in row.seconds:
            continue
        if number >= FIRST_ROUNDS and name != OURS and row.median(name) > SLOW * best:
            continue
        state, found = library.ask("time")
        if state != "done":
            row.failed[name] = found
            del row.seconds[name]
            continue
        row.seconds[name].append(found)
        if name == OURS and row.work is not None:  # right after it
            state, found = group.limit.ask("time")
            if state == "done":
                row.limits.append(found)
            else:
                row.work, row.failed[LIMIT] = None, found


def shown(number: float) -> str:
    return f"{number:.3g}" if number < 1000 else f"{number:.0f}"


def table(rows: Sequence[Row], peers: Iterable[str], markdown: bool, ratio: str = "speed") -> str:
    """Rows as text, with the libraries that have a place in them; the best one of each row is marked in Markdown."""
    peers = [p for p in peers if any(p in row.seconds or p in row.failed for row in rows)]
    head = ["workload", "unit", *peers, ratio, "best peer", "target", "of the limit"]
    body = []
    for row in rows:
        unit, scale = row.unit
        cells = [row.name, unit]
        fastest = min(row.seconds, key=row.median, default=None)
        for peer in peers:
            if peer not in row.seconds:
                cells.append("failed" if peer in row.failed else "")
                continue
            value = shown(row.median(peer) * scale)
            cells.append(f"**{value}**" if markdown and peer == fastest else value)
        speed = ""
        if row.speed is not None:
            low, high = spread(row.speeds)
            speed = f"{row.speed:.2f} ({low:.2f}–{high:.2f})"
        target = ""
        if row.target is not None:
            seconds = row.target.seconds
            target = f"{row.target.speed:g}x" if seconds is None else f"{shown(seconds * scale)} {unit}"
            target += "" if row.meets_target is not False else ", missed"
        share = "" if row.share is None else f"{row.share[0]:.0%} {row.share[1]}"
        body.append([*cells, speed, row.best_peer or "", target, share])
    empty = [k for k in range(len(head)) if not any(line[k] for line in body)]
    head, *body = ([cell for k, cell in enumerate(line) if k not in empty] for line in (head, *body))
    widths = [max(len(line[k]) for line in [head, *body]) for k in range(len(head))]

    def line(cells: list[str]) -> str:
        text = [c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(cells, widths))]
        return f"| {' | '.join(text)} |" if markdown else "  ".join(text)

    rule = ["-" * w if k == 0 else "-" * (w - 1) + ":" for k, w in enumerate(widths)]
    return "\n".join([line(head), line(rule), *map(line, body)])


def shortfalls(rows: Iterable[Row]) -> str:
    """For each row below its target, or without one and behind another library: what the machine's limit is."""
    lines = []
    for row in rows:
        if OURS not in row.seconds or row.speed is None:
            continue
        if row.meets_target or (row.target is None and row.speed >= 0.995):
            continue
        unit, scale = row.unit
        ours = f"{shown(row.median(OURS) * scale)} {unit}"
        text = f"- **{row.name}**: {ours}, {row.speed:.2f} times as fast as {row.best_peer}."
        if row.work is not None and row.share is not None:
            limit = statistics.median(seconds for seconds, _ in row.limits)
            text += (f" It has to {row.work}; that alone takes the machine {shown(limit * scale)} {unit} "
                     f"({row.share[1]}): {row.share[0]:.0%} of the limit.")
        lines.append(f"{text} {row.note}".rstrip())
    return "\n".join(lines)


def spread(values: Sequence[float]) -> tuple[float, float]:
    """The quarter and three quarters of values."""
    if len(values) < 2:
        return values[0], values[0]
    quarters = statistics.quantiles(values, n=4, method="inclusive")
    return quarters[0], quarters[2]
