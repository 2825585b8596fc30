"""The order of the house: who may import whom, which imports may wait inside a function, how long a file may be.

Reads the sources with `ast` only. `LEVELS` is the map that CONTRIBUTING.md explains; a new file needs a line there, or
a folder that has one.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tracejit"

# The longest matching prefix counts. A file imports from lower levels, and from its own folder without a cycle.
LEVELS = {
    "config": 0, "dims": 0, "dtypes": 0, "errors": 0, "locks": 0, "quiet": 0,
    "ir": 1,
    "lower": 2,
    "runtime": 3,
    "tensor": 4, "trees": 4,
    "ops": 5,
    "trace": 6,
    "variable": 7, "tape": 7, "function": 7, "gradients": 7,
    "": 8,  # what users build with; uses only the public API
    "nn": 9,  # models and their training, over data, summaries and checkpoints
    "__init__": 10,
    "__main__": 11, "demo": 11,
}  # fmt: skip

# Passes know nothing of each other.
NO_SIBLINGS = ("trace.passes",)

# Imports that wait inside a function, and why: {(file, package): reason}. Anything else is imported at the top.
LAZY: dict[tuple[str, str], str] = {
    ("tracejit/__main__.py", "tracejit"): "the demo needs the optional extra `plot`",
    ("tracejit/checkpoints.py", "safetensors"): "optional extra `train`",
    ("tracejit/data/sources.py", "PIL"): "optional extra `train`",
    ("tracejit/data/sources.py", "pandas"): "optional extra `train`",
    ("tracejit/summary.py", "PIL"): "optional extra `train`",
    ("tracejit/summary.py", "tensorboard"): "optional extra `train`",
    ("tracejit/function.py", "tracejit"): "the compiler and executor load llvmlite; only a called function needs them",
    ("tracejit/nn/progress.py", "tqdm"): "optional; without it progress is plain text",
    ("tracejit/ops/special.py", "scipy"): "heavy; only the eager form of special functions needs it",
    ("tracejit/runtime/build.py", "numba"): "heavy; only compiling a kernel needs it",
    ("tracejit/runtime/pool.py", "tracejit"): "native code loads llvmlite; only large arrays need it",
    ("tracejit/runtime/executor.py", "scipy"): "heavy; only matrix products need its BLAS",
}

HEAVY = (
    "numba", "scipy", "llvmlite", "matplotlib", "sklearn", "jax", "torch", "safetensors", "tqdm", "tensorboard",
    "pandas", "PIL", "mlxtend",
)  # fmt: skip


class Import(NamedTuple):
    """One imported module, absolute; `inside` is true in a function, `typing` true under `if TYPE_CHECKING`."""

    target: str
    line: int
    inside: bool
    typing: bool


def module_name(path: Path) -> str:
    """`tracejit/lower/fuse.py` as `lower.fuse`; a folder's `__init__.py` as the folder, the package's as `__init__`."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


def imports(path: Path) -> Iterator[Import]:
    """Every import of a file, `from tracejit import lower` resolved to `tracejit.lower`."""
    package = ["tracejit", *path.relative_to(PACKAGE).parts[:-1]]

    def targets(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            return
        base = node.module or ""
        if node.level:
            base = ".".join(package[: len(package) - node.level + 1] + ([base] if base else []))
        for alias in node.names:
            full = f"{base}.{alias.name}"
            yield full if full in MODULES else base

    def walk(node: ast.AST, inside: bool, typing: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                yield from (Import(t, child.lineno, inside, typing) for t in targets(child))
            else:
                deeper = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                yield from walk(child, inside or deeper, typing or checking)

    yield from walk(ast.parse(path.read_text()), False, False)


FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {"tracejit" if module_name(p) == "__init__" else f"tracejit.{module_name(p)}" for p in FILES}


def local(target: str) -> str | None:
    """`tracejit.lower.fuse` as `lower.fuse`, the package as `__init__`, anything else as None."""
    if target == "tracejit":
        return "__init__"
    return target.removeprefix("tracejit.") if target.startswith("tracejit.") else None


def level(name: str) -> int:
    parts = name.split(".")
    for n in range(len(parts), -1, -1):
        if (prefix := ".".join(parts[:n])) in LEVELS:
            return LEVELS[prefix]
    raise AssertionError(name)


def folder(name: str) -> str:
    return name.split(".")[0] if "." in name or (PACKAGE / name).is_dir() else ""


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_only_from_below(path: Path) -> None:
    name = module_name(path)
    for found in imports(path):
        target = local(found.target)
        if target is None or found.typing:
            continue
        where = f"{path.relative_to(ROOT)}:{found.line} imports {found.target}"
        if level(target) == level(name):
            assert level(name) >= 7 or folder(target) == folder(name), f"{where}: its own level, another folder"
            for closed in NO_SIBLINGS:
                both = name.startswith(closed + ".") and target.startswith(closed + ".")
                assert not both, f"{where}: files of {closed} do not import each other"
        else:
            assert level(target) < level(name), f"{where}: level {level(target)} is above level {level(name)}"


def test_no_import_cycle() -> None:
    """Modules can be put in an order in which each imports only earlier ones (imports inside functions count too)."""
    graph = {
        module_name(p): {t for i in imports(p) if not i.typing and (t := local(i.target)) and t != module_name(p)}
        for p in FILES
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, "import cycle: " + " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for target in sorted(graph.get(name, ())):
                visit(target, (*path, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_imports_inside_functions_are_named() -> None:
    inside = [(str(p.relative_to(ROOT)), i) for p in FILES for i in imports(p) if i.inside]
    found = {(file, i.target.split(".")[0]): i.line for file, i in inside}
    unnamed = [f"{key[0]}:{line} imports {key[1]}" for key, line in found.items() if key not in LAZY]
    assert not unnamed, "imports inside functions that LAZY does not name:\n" + "\n".join(unnamed)
    stale = LAZY.keys() - found.keys()
    assert not stale, f"LAZY names imports that are gone: {sorted(stale)}"


@pytest.mark.parametrize("folder_name", ["tracejit", "tests", "benchmarks", "examples"])
def test_no_long_files(folder_name: str) -> None:
    lengths = {p: len(p.read_text().splitlines()) for p in (ROOT / folder_name).rglob("*.py")}
    assert lengths, f"no files in {folder_name}"
    assert {str(p.relative_to(ROOT)): n for p, n in lengths.items() if n > 800} == {}


def test_every_module_says_what_it_is() -> None:
    silent = [str(p.relative_to(ROOT)) for p in FILES if not ast.get_docstring(ast.parse(p.read_text()))]
    assert not silent, f"modules without a docstring: {silent}"


def test_only_config_reads_the_environment() -> None:
    readers = {
        f"{p.relative_to(ROOT)}:{node.lineno}"
        for p in FILES
        if p.name != "config.py"
        for node in ast.walk(ast.parse(p.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv"))
        or (isinstance(node, ast.alias) and node.name in ("environ", "environb", "getenv"))
    }
    assert not readers, f"only tracejit/config.py reads the environment: {sorted(readers)}"


def test_import_is_light() -> None:
    code = f"import sys, tracejit; print(*sorted(set({HEAVY}) & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout.split() == [], f"import tracejit loads {out.stdout}"
