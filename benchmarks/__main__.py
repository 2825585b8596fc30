"""`python -m benchmarks`: measure, print the table, and with --markdown write it into docs/benchmarks.md."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from pathlib import Path

from llvmlite import binding

from benchmarks.cold import COLD, measure_cold
from benchmarks.harness import ALL, LIMIT, OURS, Group, Library, Row, measure, shortfalls, table
from benchmarks.peers import PEERS, default_threads, limit_threads

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- table: written by python -m benchmarks --markdown -->", "<!-- end of table -->"


def machine(threads: int) -> str:
    """The machine in a few words: cores and the name LLVM has for them."""
    return f"{threads} cores, {binding.get_host_cpu_name()}, Python {platform.python_version()}"


def plural(threads: int) -> str:
    return "One thread" if threads == 1 else f"{threads} threads"


def write_document(text: str) -> None:
    """Put the table between its two marks in docs/benchmarks.md."""
    document = DOCUMENT.read_text()
    before, rest = document.split(BEGIN)
    _, after = rest.split(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def limit_text(group: Group) -> str:
    state, text = group.limit.ask("set_up", "describe")
    return text if state == "done" else f"limits not measured: {text}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="print Markdown; a full run writes docs/benchmarks.md")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="workloads whose name contains one of these")
    parser.add_argument("--peers", nargs="+", metavar="NAME", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=5)
    both = list(dict.fromkeys([default_threads(), 1]))
    parser.add_argument("--threads", nargs="+", type=int, default=both, help="a table for each; all and 1 by default")
    arguments = parser.parse_args()

    def chosen(name: str) -> bool:
        return not arguments.only or any(part.lower() in name.lower() for part in arguments.only)

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

    tables: list[list[Row]] = [[] for _ in groups]

    def add(rows: list[Row]) -> None:
        for group, row, all_rows in zip(groups, rows, tables):
            all_rows.append(row)
            times = ", ".join(f"{p} {row.median(p) * 1e3:.4g} ms" for p in row.seconds)
            speed = f", speed {row.speed:.2f}x" if row.speed else ""
            share = f", {row.share[0]:.0%} of {row.share[1]}" if row.share else ""
            print(f"{row.name}, {group.threads} threads: {times}{speed}{share}", file=sys.stderr, flush=True)
            for peer, why in row.failed.items():
                print(f"  {peer} failed: {why}", file=sys.stderr)

    try:
        for name, workload in ALL.items():
            if chosen(name):
                add(measure(workload, groups, arguments.rounds))
    finally:
        for group in groups:
            for library in (*group.libraries, group.limit):
                library.stop()
    limit_threads(arguments.threads[0])
    for name, case in COLD.items():
        if chosen(name):
            add([measure_cold(case, names, max(1, arguments.rounds // 3))])
    if not tables[0]:
        parser.error(f"no workload is named like {arguments.only}")

    note = f"{machine(arguments.threads[0])}; {versions}."
    parts = [note]
    for group, limit, rows in zip(groups, limits, tables):
        parts += [f"{plural(group.threads)}; the machine: {limit}.", table(rows, names, arguments.markdown)]
    if short := shortfalls(tables[0]):
        parts.append(f"Below the target, or without one and behind another library:\n\n{short}")
    text = "\n\n".join(parts)
    print(f"{text}\n\nmeasured in {time.perf_counter() - started:.0f} s", flush=True)
    if arguments.markdown and not arguments.only and arguments.peers == list(PEERS):
        write_document(text)
    return 1 if any(OURS in row.failed for rows in tables for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
