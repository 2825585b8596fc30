"""Reports and explanations: complete, well-formed, and of one mind about names."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from browser import Browser, needs_browser
from PIL import Image

import tracejit as tj


@tj.function
def net(x, w):
    h = tj.tanh(x @ w)
    s = tj.exp(h - h.max(axis=1, keepdims=True))
    p = s / s.sum(axis=1, keepdims=True)
    q = tj.sort(p, axis=1)
    return (q * 2 + p).sum(axis=0)


def arguments() -> tuple[Any, Any]:
    return tj.random.normal((64, 32)), tj.random.normal((32, 16))


class Tags(HTMLParser):
    """Checks that tags nest, and keeps what matters."""

    VOID = frozenset(("meta", "br", "hr", "img", "link", "input"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.words.append(data)


# -- the report --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "out.html"
    assert net.report(path, *arguments()) == str(path)
    return path


def test_report_is_well_formed_and_needs_nothing_else(page: Path) -> None:
    text = page.read_text()
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert not tags.open
    ElementTree.fromstring(text.replace("<!DOCTYPE html>\n", ""))  # XML too
    assert not {t for t, _ in tags.seen} & {"script", "link", "img", "iframe", "object", "embed"}
    ids = {a["id"] for _, a in tags.seen if "id" in a}
    for tag, attrs in tags.seen:
        assert "src" not in attrs and (tag != "a" or str(attrs["href"])[1:] in ids)
    assert "url(" not in text and "@import" not in text
    links = [part for part in text.split('"') if part.startswith("http")]
    assert links == ["http://www.w3.org/2000/svg"] * text.count("<svg")  # a name, not an address


def test_report_shows_everything(page: Path) -> None:
    tags = Tags()
    tags.feed(page.read_text())
    words = " ".join(tags.words)
    lowered = net.lower(*arguments())
    for name, graph in lowered.stages.items():  # every pass, with the graph after it
        assert f"{name}: {len(graph.nodes)} ops" in words
    assert words.count("def net(x0, x1):") == len(lowered.built.stages)
    for kernel in lowered.kernels:
        assert kernel.name in words and kernel.code.splitlines()[0] in words
    for line in ("h = tj.tanh(x @ w)", "q = tj.sort(p, axis=1)", "return (q * 2 + p).sum(axis=0)"):
        assert line in words
    assert "sort reads all of it" in words and "library call" in words and "test_report.py" in words
    for buffer in lowered.plan.buffers:
        assert f"{buffer.nbytes:,}" in words
    assert [t for t, _ in tags.seen].count("svg") >= 3  # a graph, buffers, the roofline
    circles = [a for t, a in tags.seen if t == "circle"]
    assert len(circles) == 2 and "Measured here" in words  # the product with what follows it, and the last kernel


def test_a_graph_as_a_page() -> None:
    graph = net.trace(*arguments())
    text = graph.to_html()
    root = ElementTree.fromstring(text.replace("<!DOCTYPE html>\n", ""))
    words = " ".join("".join(root.itertext()).split())
    assert " ".join(str(graph).split()) in words and "<svg" in text
    assert all(op in words for op in ("matmul", "tanh", "sort"))


def test_report_of_a_method_with_effects_runs_once_and_writes_nothing(tmp_path: Path,
                                                                      capsys: pytest.CaptureFixture[str]) -> None:
    class Counter:
        def __init__(self) -> None:
            self.total = tj.Variable(0.0)

        @tj.function
        def add(self, x):
            tj.print("<adding>", x.sum())
            self.total.assign_add(x.sum())
            return tj.while_loop(lambda i: i < 3, lambda i: i + 1, 0), "a < b & c"

    c = Counter()
    c.add.report(tmp_path / "a.html", tj.ones(3))
    assert capsys.readouterr().out.count("<adding>") == 1 and c.total.item() == 0.0
    ElementTree.fromstring((tmp_path / "a.html").read_text().replace("<!DOCTYPE html>\n", ""))


@pytest.mark.parametrize("f, args", [
    (lambda x: x, (3.0,)), (lambda: tj.zeros(3), ()), (lambda x: tj.sort(x), (np.zeros(4),)),
    (lambda x: tj.where(x > 0, x, 1j * x).sum(), (np.zeros((0, 3)),)),
], ids=["nothing to do", "no inputs", "only a library call", "empty"])
def test_report_of_odd_programs(tmp_path: Path, f: Any, args: Any) -> None:
    tj.function(f).report(tmp_path / "a.html", *args)
    ElementTree.fromstring((tmp_path / "a.html").read_text().replace("<!DOCTYPE html>\n", ""))


@needs_browser
def test_report_in_a_browser(page: Path, tmp_path: Path) -> None:
    """A real browser lays it out: it finds all pictures, and paints something."""
    with Browser(tmp_path / "profile", 1200, 3000) as browser:
        browser.open(page.as_uri())
        assert browser.run("document.querySelectorAll('svg').length") == page.read_text().count("<svg") >= 3
        image = Image.open(browser.picture(tmp_path / "shot.png"))
    assert len(set(image.convert("L").resize((120, 300)).tobytes())) > 50  # text and colours, not a blank page


# -- explanations ------------------------------------------------------------------------------------------------------
def test_explain_says_what_ran_and_why_fusion_stopped() -> None:
    @tj.function(name="net2")
    def f(x, w):
        h = tj.tanh(x @ w)
        q = tj.sort(h, axis=1)
        tj.print("q", q[0, 0])
        s = tj.cond(x.sum() > 0, lambda: q * 2, lambda: q - 1)
        return (s + h).sum(axis=0)

    x, w = arguments()
    f(x, w)
    f.profile()
    f(x, w)
    f(x[:32], w)
    text = str(tj.explain(f))
    for part in ("net2: 2 traces, 2 in the cache", "first call at", "test_report.py", "sort: library call, not fused",
                 "print: runs in Python, in program order", "sort reads all of it", "sort is a step of its own",
                 "product of matrices", "GB/s", "bytes of temporaries", "disk cache:", "2 calls", "ms of it in passes"):
        assert part in text, f"{part!r} is not in\n{text}"
    assert [k.name for k in f.kernels() if k.name in text] == [k.name for k in f.kernels()]
