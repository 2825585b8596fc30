"""Reports, explanations and profiles: complete, well-formed, and of one mind about names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import tracejit as tj

# The test suite of a checkout may be run where there is no browser; continuous integration has one.
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


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


needs_browser = pytest.mark.skipif(BROWSER is None and not os.environ.get("CI"), reason="no Chromium here")


def browse(page: Path, *options: str) -> str:
    """What a headless browser makes of a page."""
    assert BROWSER is not None, "continuous integration needs Chromium"
    given = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.parent / 'profile'}", *options]
    return subprocess.run([BROWSER, *given, page.as_uri()], check=True, capture_output=True, text=True,
                          timeout=120).stdout


@needs_browser
def test_report_in_a_browser(page: Path, tmp_path: Path) -> None:
    """A real browser lays it out: it finds all pictures, and paints something."""
    shot = tmp_path / "shot.png"
    browse(page, "--window-size=1200,3000", f"--screenshot={shot}")
    image = Image.open(shot)
    assert len(set(image.convert("L").resize((120, 300)).tobytes())) > 50  # text and colours, not a blank page
    assert browse(page, "--dump-dom").count("<svg") == page.read_text().count("<svg") >= 3


# -- profiles ----------------------------------------------------------------------------------------------------------
def test_profile_file_is_what_viewers_expect(tmp_path: Path) -> None:
    x, w = arguments()
    for _ in range(3):
        net(x, w)  # the fastest way in is known already
    with tj.profile(tmp_path / "trace.json") as p:
        for _ in range(2):
            net(x, w)
        tj.exp(x)
        tj.function(lambda a: a + 1, name="fresh")(x)
    net(x, w)
    data = json.loads((tmp_path / "trace.json").read_text())
    assert_trace_events(data)
    events = data["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X", "i"}
    for e in events:
        assert isinstance(e["pid"], int) and isinstance(e["tid"], int) and isinstance(e["name"], str)
        if e["ph"] == "X":
            assert e["ts"] >= 0 and e["dur"] >= 0 and e["cat"] in ("kernel", "library", "program", "trace", "compile")
    names = [e["name"] for e in events if e.get("cat") == "kernel"]
    known = [k.name for k in net.kernels()]
    assert [n for n in names if n in known] == known * 2
    assert [e["name"] for e in events if e.get("cat") == "library"] == ["sort", "sort"]
    assert [e["name"] for e in events if e["ph"] == "i"] == ["exp"]
    assert {"trace fresh", "compile fresh"} <= {e["name"] for e in events}
    programs = [e for e in events if e.get("cat") == "program" and e["name"] == "net"]
    assert len(programs) == 2
    for e in events:  # steps lie inside their program
        if e.get("cat") in ("kernel", "library") and e["args"]["function"] == "net":
            assert any(q["ts"] <= e["ts"] and e["ts"] + e["dur"] <= q["ts"] + q["dur"] + 1 for q in programs)
            assert e["args"]["bytes"] > 0 and any("test_report.py" in line for line in e["args"]["lines"])
    assert "GB/s" in str(p) and known[0] in str(p)
    picture = ElementTree.fromstring(p.svg())
    assert len(picture.findall("{http://www.w3.org/2000/svg}rect")) == len(p.events)
    assert len(p.events) == len([e for e in events if e["ph"] != "M"])


def assert_trace_events(data: dict[str, Any]) -> None:
    """The trace event format, field by field: what Perfetto and Chrome's viewer read, and that slices nest."""
    assert set(data) == {"traceEvents", "displayTimeUnit"} and data["displayTimeUnit"] in ("ms", "ns")
    named: set[tuple[str, int]] = set()
    slices: dict[int, list[tuple[float, float]]] = {}
    (pid,) = {e["pid"] for e in data["traceEvents"]}
    for e in data["traceEvents"]:
        assert type(e["pid"]) is int and type(e["tid"]) is int and isinstance(e["name"], str) and e["name"]
        assert isinstance(e["args"], dict)
        if e["ph"] == "M":
            assert e["name"] in ("process_name", "thread_name") and isinstance(e["args"]["name"], str)
            assert set(e) == {"ph", "pid", "tid", "name", "args"}
            named.add((e["name"], e["tid"]))
            continue
        assert isinstance(e["cat"], str) and isinstance(e["ts"], float) and e["ts"] >= 0
        assert ("thread_name", e["tid"]) in named  # metadata first
        if e["ph"] == "X":
            assert isinstance(e["dur"], float) and e["dur"] >= 0
            slices.setdefault(e["tid"], []).append((e["ts"], e["ts"] + e["dur"]))
        else:
            assert e["ph"] == "i" and e["s"] in ("g", "p", "t")
    assert ("process_name", 0) in named and pid > 0
    for found in slices.values():
        assert found == sorted(found, key=lambda s: (s[0], -s[1]))  # parents before what they hold
        open_until: list[float] = []
        for start, end in found:
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-3, "slices of one thread overlap without nesting"
            open_until.append(end)


@needs_browser
def test_profile_in_a_browser(tmp_path: Path) -> None:
    """A browser reads the file and puts every slice on its own timeline. (The viewers themselves are not at hand.)"""
    x, w = arguments()
    with tj.profile(tmp_path / "trace.json") as p:
        net(x, w)
        tj.function(lambda x: tj.sort(x).sum(), name="<odd> & \"name\"")(x)
    text = (tmp_path / "trace.json").read_text()
    assert_trace_events(json.loads(text))
    page = tmp_path / "page.html"
    inside = text.replace("<", "\\u003c")
    page.write_text(f"""<script type="application/json" id="trace">{inside}</script><p id="out"></p>
    <script>
    const events = JSON.parse(document.getElementById("trace").textContent).traceEvents;
    for (const e of events) if (e.ph === "X") performance.measure(e.name, {{start: e.ts / 1e3, duration: e.dur / 1e3}});
    document.getElementById("out").textContent = "slices:" + performance.getEntriesByType("measure").length;
    </script>""")
    assert f"slices:{len([e for e in p.events if e.kind != 'eager'])}<" in browse(page, "--dump-dom")


def test_profile_changes_nothing_else(tmp_path: Path) -> None:
    v = tj.Variable(tj.zeros(100_000))

    @tj.function
    def f(x):
        v.assign_add(x)
        return (v * 2).sum()

    x = tj.ones(100_000)
    f(x)
    with tj.profile() as p:
        assert f(x).item() == 400_000.0 and tj.grad(lambda t: f(t))(x).tolist()[:2] == [2.0, 2.0]
    assert f(x).item() == 800_000.0 and v[0].item() == 4.0
    assert {e.kind for e in p.events} >= {"kernel", "program", "compile"}
    with tj.profile(), pytest.raises(RuntimeError, match="running already"), tj.profile():
        pass
    with pytest.raises(ZeroDivisionError), tj.profile(tmp_path / "a.json"):
        f(x), 1 / 0
    assert json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    count = len(p.events)
    f(x)
    assert len(p.events) == count


def test_profile_tells_threads_apart() -> None:
    f = tj.function(lambda x: tj.sort(x) + 1)
    x = tj.arange(100.0)
    with tj.profile() as p:
        f(x)
        t = threading.Thread(target=lambda: tj.function(lambda x: x * 3, name="other")(x))
        t.start()
        t.join()
    assert len({e.thread for e in p.events}) == 2
    assert len({e["tid"] for e in p.chrome()["traceEvents"] if e["ph"] == "X"}) == 2


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
