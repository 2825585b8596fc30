"""`python -m benchmarks`: measure, print the tables, and with --write put them into docs/benchmarks.md."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Collection
from pathlib import Path

from llvmlite import binding

from benchmarks.cold import COLD, measure_cold, measure_memory
from benchmarks.harness import FUNCTIONS, LAYERS, LIMIT, OURS, Group, Library, Row, measure, shortfalls, table
from benchmarks.peers import PEERS, default_threads, limited
from benchmarks.training import TRAINING, Miniature

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- tables: written by python -m benchmarks --write -->", "<!-- end of tables -->"
TRAINING_TITLE, MEMORY, COLD_TITLE = "Training steps", "Memory while training", "Fresh processes"
SECTIONS = {"": FUNCTIONS, "Layers of networks": LAYERS, TRAINING_TITLE: TRAINING}


def machine(threads: int) -> str:
    """The machine in a few words: cores and the name LLVM has for them."""
    return f"{threads} cores, {binding.get_host_cpu_name()}, Python {platform.python_version()}"


def plural(threads: int) -> str:
    return "One thread" if threads == 1 else f"{threads} threads"


def write_document(document: Path, text: str) -> None:
    """Put the tables between the two marks of a document."""
    before, rest = document.read_text().split(BEGIN)
    _, after = rest.split(END)
    document.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def limit_text(group: Group) -> str:
    state, text = group.limit.ask("set_up", "describe")
    return text if state == "done" else f"limits not measured: {text}"


def tell(row: Row, threads: int) -> None:
    """How far the run has come."""
    unit, scale = row.unit
    values = ", ".join(f"{peer} {row.median(peer) * scale:.4g} {unit}" for peer in row.seconds)
    speed = f", {row.speed:.2f}x" if row.speed else ""
    share = f", {row.share[0]:.0%} of {row.share[1]}" if row.share else ""
    print(f"{row.name}, {threads} threads: {values}{speed}{share}", file=sys.stderr, flush=True)
    for peer, why in row.failed.items():
        print(f"  {peer} failed: {why}", file=sys.stderr)


def with_ours(peers: Collection[str]) -> list[str]:
    """The libraries to measure: those named, and ours, without which there is nothing to compare."""
    return [name for name in PEERS if name == OURS or name in peers]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--write", nargs="?", type=Path, const=DOCUMENT, metavar="FILE",
                        help="put the tables between the marks of this file, docs/benchmarks.md if none is named")
    parser.add_argument("--only", nargs="+", metavar="NAME",
                        help="workloads whose name, or that of their table, has one of these in it")
    parser.add_argument("--peers", nargs="+", metavar="NAME", choices=list(PEERS), default=list(PEERS),
                        help=f"libraries beside {OURS}, which is always measured")
    parser.add_argument("--rounds", type=int, default=3)
    both = list(dict.fromkeys([default_threads(), 1]))
    parser.add_argument("--threads", nargs="+", type=int, default=both, help="a table for each; all and 1 by default")
    arguments = parser.parse_args()
    arguments.peers = with_ours(arguments.peers)
    if arguments.write and (arguments.only or arguments.peers != list(PEERS)):
        parser.error("--write is for all workloads and libraries")

    def chosen(section: str, name: str) -> bool:
        found = f"{section}: {name}".lower()
        return not arguments.only or any(part.lower() in found for part in arguments.only)

    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # where set, NumPy would be slow in the processes below
        os.environ.pop(name, None)
    started, groups = time.perf_counter(), []
    for threads in arguments.threads:
        libraries = [Library(name, threads) for name in arguments.peers]
        for library in libraries:
            if not library.usable:
                print(f"{library.name} is left out: {library.version}", file=sys.stderr)
        groups.append(Group(threads, [lib for lib in libraries if lib.usable], Library(LIMIT, threads)))
    names = [library.name for library in groups[0].libraries]
    versions = ", ".join(f"{library.name} {library.version}" for library in groups[0].libraries)
    limits = [limit_text(group) for group in groups]

    sections: dict[str, list[Row]] = {}
    threads = arguments.threads[0]
    try:
        for section, workloads in SECTIONS.items():
            for name, workload in workloads.items():
                if chosen(section, name):
                    for group, row in zip(groups, measure(workload, groups, arguments.rounds)):
                        title = plural(group.threads) if not section else f"{section}, {group.threads} threads"
                        sections.setdefault(title, []).append(row)
                        tell(row, group.threads)
        trained = [name for name in TRAINING if chosen(TRAINING_TITLE, name)]
        if trained:  # then all caches have what the processes below compile
            for library in groups[0].libraries:
                library.ask("set_up", Miniature.name)
    finally:
        for group in groups:
            for library in (*group.libraries, group.limit):
                library.stop()
    with limited(threads):
        for name in trained:
            for row in measure_memory(name, names, threads):
                sections.setdefault(MEMORY, []).append(row)
                tell(row, threads)
        for name, case in COLD.items():
            if chosen(COLD_TITLE, name):
                row = measure_cold(case, names)
                sections.setdefault(COLD_TITLE, []).append(row)
                tell(row, threads)
    if not sections:
        parser.error(f"no workload is named like {arguments.only}")

    parts = [f"{machine(threads)}; {versions}. {arguments.rounds} rounds."]
    parts += [f"{plural(group.threads)} can do: {limit}." for group, limit in zip(groups, limits)]
    for title, rows in sections.items():
        ratio = "times less" if title == MEMORY else "speed"
        parts.append(f"{title}:\n\n{table(rows, names, arguments.markdown or bool(arguments.write), ratio)}")
    if short := shortfalls(r for t, rows in sections.items() if t not in (MEMORY, plural(1)) for r in rows):
        parts.append(f"Below the target, or without one and behind another library:\n\n{short}")
    text = "\n\n".join(parts)
    print(f"{text}\n\nmeasured in {time.perf_counter() - started:.0f} s", flush=True)
    if arguments.write:
        write_document(arguments.write, text)
    return 1 if any(OURS in row.failed for rows in sections.values() for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
