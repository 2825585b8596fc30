"""Timing and tables: one process per library, interleaved rounds, median ratios.

In: workloads and peers. Out: `Row`s, printed by `table`.
"""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.kernels import KERNELS
from benchmarks.loops import LOOPS
from benchmarks.matrix import MATRIX
from benchmarks.peers import PEERS, limit_threads
from benchmarks.workloads import WORKLOADS, Workload

ALL = WORKLOADS | KERNELS | LOOPS | MATRIX
SAMPLE = 0.06  # seconds a library runs in one round
OURS = "tracejit"


@dataclass
class Row:
    """One line of the table: seconds of each round by library, or why a library has none."""

    name: str
    unit: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def median(self, peer: str) -> float:
        return statistics.median(self.seconds[peer])

    @property
    def best_peer(self) -> str | None:
        others = [p for p in self.seconds if p != OURS]
        return min(others, key=self.median, default=None)

    @property
    def speed(self) -> float | None:
        """How many times as fast as the best other library: the median over the rounds."""
        if OURS not in self.seconds or (best := self.best_peer) is None:
            return None
        return statistics.median(b / o for b, o in zip(self.seconds[best], self.seconds[OURS]))


# ---- inside a library's process ----------------------------------------------------------------------------------


def sample(call: Callable[[], Any], wait: Callable[[Any], Any]) -> float:
    """Seconds for one call: the median of repeated calls during `SAMPLE` seconds, after one call to warm up."""
    wait(call())
    start = time.perf_counter()
    wait(call())
    once = max(1e-7, time.perf_counter() - start)
    batch = max(1, int(5e-4 / once))  # short calls are timed in batches
    samples: list[float] = []
    end = time.perf_counter() + SAMPLE
    while len(samples) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(batch):
            wait(call())
        samples.append((time.perf_counter() - start) / batch)
    return statistics.median(samples)


def serve(connection: Connection, peer_name: str, threads: int) -> None:
    """Answer the parent's orders: set up a workload (sends its result), time it (sends seconds), drop it."""
    limit_threads(threads)
    try:
        peer = PEERS[peer_name](threads)
    except Exception as error:
        connection.send(("failed", f"{type(error).__name__}: {error}"))
        return
    connection.send(("ready", peer.version))
    call: Callable[[], Any] | None = None
    while (order := connection.recv())[0] != "stop":
        try:
            if order[0] == "set up":
                workload = ALL[order[1]]
                call = workload.build(peer, workload.inputs(np.random.default_rng(0)))
                connection.send(("done", peer.get(peer.wait(call()))))
            elif order[0] == "time":
                assert call is not None
                connection.send(("done", sample(call, peer.wait)))
            else:
                call = None
                gc.collect()
                connection.send(("done", None))
        except Exception:
            connection.send(("failed", traceback.format_exc(limit=-3)))


# ---- in the parent -----------------------------------------------------------------------------------------------


class Library:
    """A library in its own process."""

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        spawn = multiprocessing.get_context("spawn")
        self.connection, theirs = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(theirs, name, threads), daemon=True)
        self.process.start()
        theirs.close()
        state, self.version = self.answer()
        self.usable = state == "ready"

    def answer(self) -> tuple[str, Any]:
        try:
            return self.connection.recv()
        except EOFError:
            return "failed", f"the process of {self.name} died"

    def ask(self, *order: Any) -> tuple[str, Any]:
        try:
            self.connection.send(order)
        except OSError:
            return "failed", f"the process of {self.name} died"
        return self.answer()

    def stop(self) -> None:
        if self.process.is_alive():
            self.connection.send(("stop",))
            self.process.join(5)


def measure(workload: Workload, libraries: Iterable[Library], rounds: int) -> Row:
    """Check each library's result against NumPy in float64, then time all of them in interleaved rounds."""
    row = Row(workload.name, workload.unit)
    numpy = PEERS["numpy"](1)
    inputs = workload.inputs(np.random.default_rng(0))
    reference = numpy.get(workload.build(numpy, tuple(a.astype("float64") for a in inputs))())
    ready = []
    for library in libraries:
        if not workload.runs_on(library.name):
            continue
        state, result = library.ask("set up", workload.name)
        if state == "done":
            try:
                workload.check(result, reference)
            except AssertionError as error:
                state, result = "failed", f"wrong result: {error}"
        if state == "done":
            ready.append(library)
            row.seconds[library.name] = []
        else:
            row.failed[library.name] = result
            library.ask("drop")
    del reference, inputs
    for _ in range(rounds):
        for library in ready:
            state, seconds = library.ask("time")
            if state != "done":
                raise RuntimeError(f"{library.name} failed while {workload.name} was timed:\n{seconds}")
            row.seconds[library.name].append(seconds)
    for library in ready:
        library.ask("drop")
    return row


SCALE = {"s": 1.0, "ms": 1e3, "us": 1e6}


def table(rows: Iterable[Row], peers: list[str], markdown: bool) -> str:
    """Rows as text; the best library of each row is marked in Markdown."""
    head = ["workload", "unit", *peers, "speed", "best peer"]
    body = []
    for row in rows:
        cells = [row.name, row.unit.replace("us", "µs")]
        fastest = min(row.seconds, key=row.median, default=None)
        for peer in peers:
            if peer not in row.seconds:
                cells.append("failed" if peer in row.failed else "")
                continue
            number = row.median(peer) * SCALE[row.unit]
            value = f"{number:.3g}" if number < 1000 else f"{number:.0f}"
            cells.append(f"**{value}**" if markdown and peer == fastest else value)
        cells += [f"{row.speed:.2f}x" if row.speed is not None else "", row.best_peer or ""]
        body.append(cells)
    widths = [max(len(line[k]) for line in [head, *body]) for k in range(len(head))]

    def line(cells: list[str]) -> str:
        text = [c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(cells, widths))]
        return f"| {' | '.join(text)} |" if markdown else "  ".join(text)

    rule = ["-" * w if k == 0 else "-" * (w - 1) + ":" for k, w in enumerate(widths)]
    return "\n".join([line(head), line(rule), *map(line, body)])
