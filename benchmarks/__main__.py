"""`python -m benchmarks`: measure, print the table, and with --markdown write it into docs/benchmarks.md."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path

from llvmlite import binding

from benchmarks.cold import COLD, measure_cold
from benchmarks.harness import ALL, OURS, Library, Row, measure, table
from benchmarks.peers import PEERS, default_threads, limit_threads

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- table: written by python -m benchmarks --markdown -->", "<!-- end of table -->"


def machine(threads: int) -> str:
    """The machine in a few words: cores and the name LLVM has for them."""
    return f"{threads} cores, {binding.get_host_cpu_name()}, Python {platform.python_version()}"


def write_document(text: str) -> None:
    """Put the table between its two marks in docs/benchmarks.md."""
    document = DOCUMENT.read_text()
    before, rest = document.split(BEGIN)
    _, after = rest.split(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="print Markdown; a full run writes docs/benchmarks.md")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="workloads whose name contains one of these")
    parser.add_argument("--peers", nargs="+", metavar="NAME", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=default_threads())
    arguments = parser.parse_args()

    def chosen(name: str) -> bool:
        return not arguments.only or any(part.lower() in name.lower() for part in arguments.only)

    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # where set, NumPy would be slow in the processes below
        os.environ.pop(name, None)
    limit_threads(arguments.threads)
    libraries = []
    for name in arguments.peers:
        library = Library(name, arguments.threads)
        if library.usable:
            libraries.append(library)
        else:
            print(f"{name} is left out: {library.version}", file=sys.stderr)
    names = [library.name for library in libraries]
    versions = ", ".join(f"{library.name} {library.version}" for library in libraries)

    rows: list[Row] = []

    def add(row: Row) -> None:
        rows.append(row)
        times = ", ".join(f"{p} {row.median(p) * 1e3:.4g} ms" for p in row.seconds)
        print(f"{row.name}: {times}" + (f", speed {row.speed:.2f}x" if row.speed else ""), file=sys.stderr)
        for peer, why in row.failed.items():
            print(f"  {peer} failed: {why}", file=sys.stderr)

    for name, workload in ALL.items():
        if chosen(name):
            add(measure(workload, libraries, arguments.rounds))
    for library in libraries:
        library.stop()
    for name, case in COLD.items():
        if chosen(name):
            add(measure_cold(case, names, max(1, arguments.rounds // 3)))
    if not rows:
        parser.error(f"no workload is named like {arguments.only}")

    text = table(rows, names, arguments.markdown)
    note = f"{machine(arguments.threads)}; {versions}."
    print(f"{text}\n\n{note}")
    if arguments.markdown and not arguments.only and names == list(PEERS):
        write_document(f"{note}\n\n{text}")
    return 1 if any(OURS in row.failed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
