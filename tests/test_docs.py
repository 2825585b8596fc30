"""The documents tell the truth: code blocks of README and docs run, doctests of all modules pass, links lead somewhere.

In a document, a block that starts with `>>>` is a doctest; any other Python block must run without an error.
Blocks of one document share their names.
"""

from __future__ import annotations

import doctest
import importlib
import linecache
import pkgutil
import re
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import tracejit
from tracejit.lower import mathlib

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


def blocks(document: Path) -> Iterator[tuple[int, str]]:
    """Line number and text of each Python block."""
    text = document.read_text()
    for found in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, found.start()) + 2, found[1]


def run_document(document: Path) -> int:
    """Run all blocks of a document; how many there were."""
    module = types.ModuleType("__main__")
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    count = 0
    for line, text in blocks(document):
        count += 1
        if text.startswith(">>>"):
            name = f"{document.name}, line {line}"  # one for each block, so that sources are told apart
            test = doctest.DocTestParser().get_doctest(text, module.__dict__, name, str(document), line - 1)
            report: list[str] = []
            runner.run(test, out=report.append, clear_globs=False)
            module.__dict__.update(test.globs)
            assert not report, "".join(report)
        else:
            name = f"<{document.name}, line {line}>"
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
            exec(compile(text, name, "exec"), module.__dict__)
    return count


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_code_blocks_run(document: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    run_document(document)


def test_there_are_code_blocks() -> None:
    with_code = {d.name for d in DOCUMENTS if any(blocks(d))}
    assert {"README.md", "tensors.md", "function.md", "gradients.md", "how_it_works.md"} <= with_code


MODULES = sorted(
    m.name
    for m in pkgutil.walk_packages(tracejit.__path__, "tracejit.")
    if m.name not in ("tracejit.__main__", "tracejit.demo")
)


@pytest.mark.parametrize("name", ["tracejit", *MODULES])
def test_doctests(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert failed == 0


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}, which is not there"


def test_accuracy_table_states_the_tested_bounds() -> None:
    text = (ROOT / "docs/accuracy.md").read_text()
    table = text.partition("<!-- errors:")[2].partition("<!-- end of errors")[0]
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| `")]
    stated = {c[0].strip("`"): (float(c[4]), float(c[8])) for c in cells if "<" not in c[0]}
    assert stated == {n: (b.f32, b.f64) for n, b in mathlib.BOUNDS.items()}
    assert all(float(c[k]) <= float(c[k + 3]) for c in cells for k in (1, 5) if c[k])


def test_contributors_map_names_every_file() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    package = ROOT / "tracejit"
    files = {p.relative_to(package).as_posix() for p in package.rglob("*.py") if p.name != "__init__.py"}
    missing = sorted(f for f in files if f"`{f.split('/')[-1]}`" not in text and f"`{f}`" not in text)
    assert not missing, f"files that CONTRIBUTING.md does not place: {missing}"


def test_files_that_are_named_exist() -> None:
    folders = [ROOT / name for name in ("tracejit", "tests", "examples", "benchmarks")]
    sources = [p for folder in folders for p in folder.rglob("*.py")]
    paths = ["/" + p.relative_to(ROOT).as_posix() for p in sources]
    texts = {p: p.read_text() for p in [*sources, *DOCUMENTS]}
    named = [(p, name) for p, text in texts.items() for name in re.findall(r"`([a-z_/]+\.py)`", text)]
    missing = [f"{name} in {p.name}" for p, name in named if not any(path.endswith("/" + name) for path in paths)]
    assert named and not missing, missing


def test_readme_has_its_two_commands() -> None:
    shell = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(shell) == 2 and "tracejit demo" in shell[0] and "pytest" in shell[1]


def test_the_index_lists_every_page() -> None:
    listed = set(re.findall(r"\]\((\w+\.md)\)", (ROOT / "docs" / "index.md").read_text()))
    assert listed == {p.name for p in (ROOT / "docs").glob("*.md")} - {"index.md"}
