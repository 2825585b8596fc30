"""The first page of the documentation, `examples/first_page.py`: it runs as written and prints what it says."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "examples" / "first_page.py"


def test_the_page_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = runpy.run_path(str(PAGE))
    page["page"]()
    assert capsys.readouterr().out == page["EXPECTED"]
