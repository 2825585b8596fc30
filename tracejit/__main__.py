"""`python -m tracejit demo`: the command line.

In: arguments. Out: what the named command prints. Read `demo.py` next.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tracejit", description="Eager tensors and a compiling decorator.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="NumPy code on real data, as it is and compiled: a table and a picture")
    demo.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture (default: out)")
    arguments = parser.parse_args()

    from tracejit.demo import run  # lazy: needs the optional extra `plot`

    run(arguments.out)


if __name__ == "__main__":
    main()
