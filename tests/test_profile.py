"""Profiles: complete, changing nothing, and opened by the programs they are written for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browser import Browser, needs_browser
from PIL import Image
from viewers import Slice, in_chrome, in_perfetto, needs_viewers

import tracejit as tj


@tj.function
def net(x, w):
    h = tj.tanh(x @ w)
    return tj.sort(h / h.sum(axis=1, keepdims=True), axis=1) * 2


def arguments() -> tuple[Any, Any]:
    return tj.random.normal((64, 32)), tj.random.normal((32, 16))


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
            assert e["args"]["bytes"] > 0 and any("test_profile.py" in line for line in e["args"]["lines"])
    assert "GB/s" in str(p) and known[0] in str(p)
    picture = ElementTree.fromstring(p.svg())
    assert len(picture.findall("{http://www.w3.org/2000/svg}rect")) == len(p.events)
    assert len(p.events) == len([e for e in events if e["ph"] != "M"])


def assert_trace_events(data: dict[str, Any]) -> None:
    """The trace event format, field by field: what Perfetto and Chrome's viewer read, and that slices nest."""
    assert set(data) == {"traceEvents", "displayTimeUnit"} and data["displayTimeUnit"] in ("ms", "ns")
    named: set[int] = set()
    processes = 0
    slices: dict[int, list[tuple[float, float]]] = {}
    (pid,) = {e["pid"] for e in data["traceEvents"]}
    for e in data["traceEvents"]:
        assert type(e["pid"]) is int and isinstance(e["name"], str) and e["name"]
        assert isinstance(e["args"], dict)
        if e["ph"] == "M":
            assert e["args"].keys() == {"name"} and isinstance(e["args"]["name"], str)
            if e["name"] == "thread_name":
                assert type(e["tid"]) is int and e["tid"] not in named
                named.add(e["tid"])
            else:
                assert e["name"] == "process_name"
                processes += 1
            continue
        assert isinstance(e["cat"], str) and isinstance(e["ts"], float) and e["ts"] >= 0
        assert e["tid"] in named  # metadata first
        if e["ph"] == "X":
            assert isinstance(e["dur"], float) and e["dur"] >= 0
            slices.setdefault(e["tid"], []).append((e["ts"], e["ts"] + e["dur"]))
        else:
            assert e["ph"] == "i" and e["s"] in ("g", "p", "t")
    assert processes == 1 and pid > 0
    for found in slices.values():
        assert found == sorted(found, key=lambda s: (s[0], -s[1]))  # parents before what they hold
        open_until: list[float] = []
        for start, end in found:
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-4, "slices of one thread overlap without nesting"
            open_until.append(end)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@needs_browser
@needs_viewers
@pytest.mark.parametrize("viewer", [in_perfetto, in_chrome])
def test_viewers_open_the_file(viewer: Any, browser: Browser, tmp_path: Path) -> None:
    """Perfetto's engine and Chrome's importer read every event as it was, on its thread, inside its program."""
    x, w = arguments()
    net(x, w)
    with tj.profile(tmp_path / "trace.json") as p:
        for _ in range(3):
            net(x, w)
        tj.exp(x)
        other = threading.Thread(target=lambda: tj.function(lambda x: x * 3, name="<odd> & \"name\"")(x), name="second")
        other.start()
        other.join()
    seen = viewer(browser, tmp_path / "trace.json", tmp_path / "picture.png")
    assert seen.problems == [] and seen.process == ["tracejit"]
    names = {threading.get_native_id(): threading.current_thread().name}
    first = round(p.events[0].start * 1e9)
    expected = []
    for e in sorted(p.events, key=lambda e: (e.start, -e.seconds)):
        start, end = round(e.start * 1e9), round((e.start + e.seconds) * 1e9)
        inside = e.kind in ("kernel", "library")
        expected.append(Slice(e.name, e.kind, names.get(e.thread, "second"), start - first, end - start, int(inside),
                              e.facts.get("function")))
    assert seen.slices == expected and {s.thread for s in expected} == {*names.values(), "second"}
    picture = Image.open(tmp_path / "picture.png")
    assert len(set(picture.convert("L").resize((120, 80)).tobytes())) > 20


@needs_browser
@needs_viewers
def test_perfetto_says_what_it_cannot_show(browser: Browser, tmp_path: Path) -> None:
    """So the test above would have noticed a step that ends a nanosecond after its program."""
    x, w = arguments()
    with tj.profile() as p:
        net(x, w)
    data = p.chrome()
    program = next(e for e in data["traceEvents"] if e.get("cat") == "program")
    step = data["traceEvents"][-1]
    assert step["cat"] == "kernel"
    step["dur"] = round(program["ts"] + program["dur"] - step["ts"] + 1e-3, 3)
    (tmp_path / "trace.json").write_text(json.dumps(data))
    assert in_perfetto(browser, tmp_path / "trace.json").problems


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
