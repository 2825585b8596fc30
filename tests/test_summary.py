"""Summaries: what TensorBoard finds in the files, in its process and in a browser."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser, needs_browser

import tracejit as tj
from tracejit import summary


def events(folder: Path) -> list[Any]:
    """All events of a folder's files, read by TensorBoard."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [e for f in sorted(folder.iterdir()) for e in EventFileLoader(str(f)).Load()]


def values(folder: Path) -> list[tuple[str, int, Any]]:
    """Name, step and array of each summary."""
    from tensorboard.util.tensor_util import make_ndarray

    return [(v.tag, e.step, make_ndarray(v.tensor)) for e in events(folder) for v in e.summary.value]


def numbers(folder: Path) -> list[tuple[str, int, float]]:
    return [(name, step, x.item()) for name, step, x in values(folder)]


# -- what is written ---------------------------------------------------------------------------------------------------
def test_eager_and_compiled_write_the_same(tmp_path: Path) -> None:
    def step(x, k, count):
        h = tj.tanh(x * 2)
        summary.scalar("first", h.sum())
        summary.scalar("explicit", h.max(), step=k * 10)
        count.assign_add(1)
        summary.scalar("count", count, step=count)
        if h.sum() > 0:
            summary.text("sign", f"positive: {h.sum():.2f}")
        summary.histogram("h", h)
        return h

    for name, f in (("eager", step), ("compiled", tj.function(step))):
        count = tj.Variable(0)
        with summary.create_file_writer(tmp_path / name) as writer:
            for k, x in enumerate(([0.1, 0.2], [-0.3, 0.1], [0.5, 0.5])):
                with writer.as_default(step=k):
                    f(tj.asarray(x), k, count)
    eager, compiled = values(tmp_path / "eager"), values(tmp_path / "compiled")
    assert [e[:2] for e in eager] == [e[:2] for e in compiled] and len(eager) == 14
    assert [n for n, *_ in eager[:5]] == ["first", "explicit", "count", "sign", "h"]
    for (_, _, a), (_, _, b) in zip(eager, compiled):
        if a.dtype == object:
            assert a.tolist() == b.tolist()
        else:
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    assert [(s, v.item()) for n, s, v in eager if n == "count"] == [(1, 1), (2, 2), (3, 3)]
    assert [s for n, s, _ in eager if n == "explicit"] == [0, 10, 20]


def test_kinds(tmp_path: Path) -> None:
    from PIL import Image

    pixels = np.zeros((4, 5, 6, 3))
    pixels[0, 1, 2] = [1.0, 0.5, 7.0]
    with summary.create_file_writer(tmp_path) as w, w.as_default(step=3):
        summary.scalar("s", np.float64(2.5))
        summary.histogram("h", [0.0, 0.0, 1.0], buckets=2)
        summary.histogram("int", tj.arange(5))
        summary.image("rgb", pixels, max_outputs=2)
        summary.image("grey", tj.zeros((1, 3, 4, 1), dtype="uint8"))
        summary.text("t", "**bold**")
    found = {name: x for name, step, x in values(tmp_path) if step == 3}
    assert found["s"].item() == 2.5 and found["s"].dtype == np.float32
    assert found["h"].tolist() == [[0.0, 0.5, 2.0], [0.5, 1.0, 1.0]]
    assert found["int"][:, 2].sum() == 5 and found["t"].item() == b"**bold**"
    width, height, first, second = found["rgb"].tolist()
    assert (width, height) == (b"6", b"5") and found["grey"].tolist()[:2] == [b"4", b"3"]
    (tmp_path / "a.png").write_bytes(first)
    image = Image.open(tmp_path / "a.png")
    assert image.size == (6, 5) and image.getpixel((2, 1)) == (255, 128, 255) and first != second


def test_writers_and_steps(tmp_path: Path) -> None:
    summary.scalar("nowhere", 1.0)  # no default writer: nothing happens
    a, b = summary.create_file_writer(tmp_path / "a"), summary.create_file_writer(tmp_path / "b")
    record = tj.function(lambda x: summary.scalar("x", x))
    record(0.0)
    steps = tj.Variable(7, dtype="int64")
    with a.as_default(step=steps):
        record(1.0)
        steps.assign_add(1)
        record(2.0)
        with b.as_default(step=1):
            record(3.0)
            summary.flush()
            assert [v for _, _, v in numbers(tmp_path / "b")] == [3.0]  # before it is closed
        summary.scalar("y", 4.0)
        other = threading.Thread(target=lambda: record(5.0))  # has no default writer
        other.start()
        other.join()
    with a.as_default(), pytest.raises(ValueError, match="summary 'x' has no step"):
        record(6.0)
    with a.as_default(), pytest.raises(ValueError, match="summary 'z' has no step"):
        summary.scalar("z", 6.0)
    for w in (a, b, a):
        w.close()
    assert numbers(tmp_path / "a") == [("x", 7, 1.0), ("x", 8, 2.0), ("y", 8, 4.0)]
    assert numbers(tmp_path / "b") == [("x", 1, 3.0)]
    with a.as_default(step=1), pytest.raises(RuntimeError, match="is closed"):
        summary.scalar("x", 1.0)
    assert "closed" in repr(a)


def test_bad_values_are_refused_where_they_are_given(tmp_path: Path) -> None:
    with summary.create_file_writer(tmp_path) as w, w.as_default(step=0):
        for call, message in (
                (lambda: summary.scalar("a", tj.zeros(2)), r"expected one number, got shape \(2,\)"),
                (lambda: summary.image("a", tj.zeros((2, 2, 3))), r"expected shape \(count, height, width"),
                (lambda: summary.image("a", tj.zeros((1, 2, 2, 3), dtype="int32")), "or uint8, got int32"),
                (lambda: summary.scalar("", 1.0), "a summary's name is text")):
            with pytest.raises((ValueError, TypeError), match=message):
                call()
            with pytest.raises((ValueError, TypeError), match=message):
                tj.function(call)()
    assert values(tmp_path) == []


def test_graphs(tmp_path: Path) -> None:
    from tensorboard.compat.proto.graph_pb2 import GraphDef

    @tj.function
    def f(x, w):
        h = tj.tanh(x @ w)
        return tj.scan(lambda c, row: (c + row, c), tj.zeros(2), h)[0]

    args = tj.ones((3, 4)), tj.ones((4, 2))
    for name in ("traced", "optimized"):
        with summary.create_file_writer(tmp_path / name) as w, w.as_default():
            summary.graph(f, *args, optimized=name == "optimized")
    written = [e.graph_def for n in ("traced", "optimized") for e in events(tmp_path / n)]
    found = [GraphDef.FromString(g) for g in written if g]
    nodes = {n.name: n for n in found[0].node}
    ops = [n.op for n in found[0].node]
    assert ops[:2] == ["input", "input"] and {"matmul", "tanh", "scan"} <= set(ops)
    tanh = next(n for n in found[0].node if n.op == "tanh")
    assert tanh.name.startswith("test_summary.py_") and nodes[tanh.input[0]].op == "matmul"
    assert [d.size for d in tanh.attr["_output_shapes"].list.shape[0].dim] == [3, 2] and tanh.attr["dtype"].type == 1
    assert all(i in nodes for n in found[0].node for i in n.input) and len(nodes) == len(found[0].node)
    scan = next(n.name for n in found[0].node if n.op == "scan")
    assert any(n.startswith(f"{scan}_0") for n in nodes)
    assert len(found) == 2 and found[1].node


# -- TensorBoard -------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a TensorBoard on a run, at a free port of this machine."""
    logs = tmp_path_factory.mktemp("logs")

    @tj.function
    def step(x, k):
        loss = (x * x).mean() / (k + 1)
        summary.scalar("loss", loss)
        summary.histogram("weights", x)
        return loss

    with summary.create_file_writer(logs / "first run") as w, w.as_default():
        summary.graph(step, tj.ones(4), 1)
        for k in range(10):
            with w.as_default(step=k):
                step(tj.asarray([1.0, 2.0, 3.0]), k)
                summary.image("picture", np.random.rand(1, 8, 8, 3))
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logs), "--host", "127.0.0.1", "--port", "0",
               "--load_fast=false"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:\d+/", line):
                yield found[0]
                break
        else:
            pytest.fail("TensorBoard did not start")
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_tensorboard_serves_the_run(board: str) -> None:
    def get(path: str) -> Any:
        with urllib.request.urlopen(board + "data/plugin/" + path, timeout=30) as answer:
            return json.load(answer)

    tags = get("scalars/tags")
    for _ in range(100):  # it reads the files in the background
        if tags:
            break
        tags = get("scalars/tags")
    assert tags == {"first run": {"loss": {"displayName": "", "description": ""}}}
    curve = get("scalars/scalars?run=first%20run&tag=loss")
    assert [step for _, step, _ in curve] == list(range(10))
    np.testing.assert_allclose([v for *_, v in curve], [14 / 3 / (k + 1) for k in range(10)], rtol=1e-6)
    assert "weights" in get("histograms/tags")["first run"] and "picture" in get("images/tags")["first run"]
    assert get("graphs/info")["first run"]["run_graph"] is True


@needs_browser
def test_tensorboard_in_a_browser(board: str, tmp_path: Path) -> None:
    """The page, after its scripts have run, names the run and its values, draws the falling curve of ten points, and
    shows more than a blank page."""
    with Browser(tmp_path / "profile", 1200, 1000) as browser:
        browser.open(board + "#timeseries")
        browser.wait("[...document.querySelectorAll('path')].some(p => p.getAttribute('d')?.split('L').length == 10)")
        page = browser.run("document.documentElement.outerHTML")
        shot = browser.picture(tmp_path / "shot.png")
    for word in ("first run", "loss", "weights", "picture", "Histograms", "Graphs"):
        assert word.lower() in page.lower(), word
    paths = [re.findall(r"(-?[\d.]+),(-?[\d.]+)", p) for p in re.findall(r'<path d="(M[^"]*)"', page)]
    curves = [[float(y) for _, y in p] for p in paths if len(p) == 10]  # y counts from the top
    assert curves and all(a < b for curve in curves for a, b in itertools.pairwise(curve))
    image = pytest.importorskip("PIL.Image").open(shot)
    assert len(set(image.convert("L").resize((120, 100)).tobytes())) > 50
