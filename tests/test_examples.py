"""Every example and the demo run as a user runs them, and save the pictures they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

PICTURES = {
    "char_lstm.py": ["char_lstm.png"],
    "first_page.py": [],
    "linear_regression.py": ["linear_regression.png"],
    "logistic_regression.py": ["logistic_regression.png"],
    "mnist_cnn.py": ["mnist_cnn.png"],
    "photo.py": ["photo.png", "photo_tone_map.png", "photo_unsharp_mask.png", "photo_sobel.png"],
    "pinn.py": ["pinn.png"],
    "tour.py": [],
    "transformer.py": ["transformer.png"],
    "vae.py": ["vae.png"],
}


def run(*command: str) -> str:
    full = [sys.executable, *command]
    done = subprocess.run(full, capture_output=True, text=True, cwd=ROOT, timeout=300, env=ENVIRONMENT)
    assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def check_picture(path: Path) -> None:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n") and len(data) > 10_000, f"{path.name} is no picture: {len(data)} bytes"


def test_every_example_is_listed() -> None:
    assert {p.name for p in (ROOT / "examples").glob("*.py")} == PICTURES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES)
def test_example(name: str, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path)] if PICTURES[name] else []
    assert run(f"examples/{name}", *out).strip(), f"{name} prints nothing"
    for picture in PICTURES[name]:
        check_picture(tmp_path / picture)


@pytest.mark.slow
def test_demo(tmp_path: Path) -> None:
    printed = run("-m", "tracejit", "demo", "--out", str(tmp_path))
    lines = printed.splitlines()
    assert "eager NumPy" in lines[0] and "compiled" in lines[0] and "speedup" in lines[0] and "equal" in lines[0]
    rows = [line for line in lines[1:] if " ms" in line]
    assert len(rows) >= 5 and all("yes (" in row for row in rows), printed
    check_picture(tmp_path / "demo.png")
