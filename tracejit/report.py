"""`f.report("out.html", *args)`: what the compiler did with a call, as one HTML file that needs nothing else.

In: a decorated function and arguments. Out: the graph after each pass, each kernel beside the user's lines it comes
from, buffers over time, and a roofline plot from numbers measured here and now. No scripts, no fonts, no
network: text, CSS and inline SVG, well-formed as XML too. `graph.to_html()` is the text of such a page on one graph.

The program is run a few times on copies of the arguments (once if it has effects); nothing is written.

Read next: `trace/built.py` (the facts).
"""

from __future__ import annotations

import html
import linecache
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from tracejit import config
from tracejit.drawing import graph_svg, place_svg, roofline_svg
from tracejit.function import Function, Method, build, function
from tracejit.ir import Graph, Type, has_effects
from tracejit.lower.plan import Attention, Call, Gemm, Step, launch_of
from tracejit.ops import core
from tracejit.trace.built import Built, step_bytes, step_lines, step_name, step_work, stored

RUNS = 20  # at most, and for at most so many seconds
SECONDS = 0.5
DRAWN = 200  # nodes of a graph that is drawn; a larger one is only listed

_CSS = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1180px; padding: 0 1em; color: #1b1f24;
  background: #fff }
h1, h2, h3 { line-height: 1.2 } h2 { margin-top: 2em; border-bottom: 1px solid #d0d7de; padding-bottom: .2em }
table { border-collapse: collapse; margin: .6em 0 }
th, td { padding: .25em .7em; text-align: left; vertical-align: top }
th { border-bottom: 1px solid #8c959f } td { border-bottom: 1px solid #eaeef2 }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
pre { background: #f6f8fa; padding: .7em; overflow: auto; margin: .3em 0; font: 12px/1.4 ui-monospace, monospace;
  max-height: 36em }
.pair { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); gap: 1em }
.where { color: #57606a; font: 12px ui-monospace, monospace } svg { max-width: 100%; height: auto }
.scroll { overflow: auto; max-height: 46em; border: 1px solid #eaeef2 } summary { cursor: pointer }
"""


def report(f: Any, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> str:
    """Write a report on a call of a decorated function; gives the path."""
    decorated = f if isinstance(f, (Function, Method)) else function(f)
    graph, arrays = decorated.recorded(*args, **kwargs)
    built = build(graph, decorated.options)
    times = _measured(built, arrays, once=any(has_effects(n) for n in graph.nodes))
    with open(path, "w", encoding="utf-8") as file:
        file.write(_document(f"{decorated.name}: report", _page(decorated, graph, built, times)))
    return os.fspath(path)


def _document(title: str, body: Iterable[str]) -> str:
    lines = "\n".join(body)
    return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8" /><title>{html.escape(title)}</title>'
            f"<style>{_CSS}</style></head><body>\n{lines}\n</body></html>\n")


def _method(self: Any, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> str:
    """Write what the compiler does with a call as one HTML file."""
    return report(self, path, *args, **kwargs)


def _graph_page(self: Graph) -> str:
    """The graph as one HTML page: drawn, and listed as Python that rebuilds it."""
    return _document(self.name, (f"<h1>{html.escape(self.name)}</h1>", _shown(self)))


def _shown(graph: Graph, drawn: bool = True) -> str:
    picture = f'<div class="scroll">{graph_svg(graph)}</div>' if drawn and len(graph.nodes) <= DRAWN else ""
    return f"{picture}<pre>{_text(str(graph))}</pre>"


Function.report = Method.report = _method  # type: ignore[attr-defined,assignment]
Graph.to_html = _graph_page  # type: ignore[attr-defined]


# -- measuring ---------------------------------------------------------------------------------------------------------
def _measured(built: Built, arrays: Sequence[np.ndarray], once: bool) -> list[float]:
    """Seconds of each step: the fastest of several runs."""
    program = built.program
    best = [math.inf] * len(built.plan.steps)
    begin = time.perf_counter()
    for _ in range(1 if once else RUNS):
        program.profiling(True)
        program([np.array(a) if a.flags.c_contiguous else a for a in arrays])
        found = program.profile or []
        program.profiling(False)
        best = [min(b, seconds if calls else b) for b, (calls, seconds) in zip(best, found)]
        if time.perf_counter() - begin > SECONDS:
            break
    return [0.0 if b == math.inf else b for b in best]


@cache
def peaks(threads: int) -> tuple[float, float]:
    """Bytes per second of a kernel that only moves data, and operations per second of a large product, here and now."""
    from_memory = core.full(1.0, (1 << 22,), np.dtype("float32"))
    square = core.full(1.0, (768, 768), np.dtype("float32"))
    double, product = function(lambda x: x * 2.0), function(lambda x: x @ x)
    moved = 2 * from_memory.nbytes / _fastest(lambda: double(from_memory))
    return moved, 2 * 768**3 / _fastest(lambda: product(square))


def _fastest(f: Callable[[], Any], runs: int = 25) -> float:
    f()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return min(times)


# -- the page ----------------------------------------------------------------------------------------------------------
def _page(f: Function | Method, graph: Graph, built: Built, times: Sequence[float]) -> Iterator[str]:
    plan, e = built.plan, html.escape
    types = ", ".join(f"{n.name or 'input'}: {n.type!r}" for n in graph.inputs)
    results = ", ".join(repr(n.type) for n in graph.outputs)
    yield f"<h1>{e(f.name)}</h1>"
    yield f"<p>Traced for {e(types) or 'no inputs'}; gives {e(results) or 'nothing'}.</p>"
    storage = built.program.storage
    yield _table(("", ""), [
        ("ops traced, and after all passes", f"{len(graph.nodes)}, {len(built.graph.nodes)}"),
        ("kernels", str(len(plan.launches))),
        ("other steps", str(sum(launch_of(s) is None for s in plan.steps))),
        ("time of one run, all steps", _time(sum(times))),
        ("bytes of temporaries, of results", f"{storage.arena_bytes:,}, {storage.array_bytes:,}"),
        ("passes, fusion and machine code", _time(built.seconds)),
        ("threads", str(config.num_threads())),
    ])
    yield "<h2>Steps</h2>"
    yield _table(("step", "from", "n:bytes", "n:operations", "n:time", "n:GB/s", "n:Gop/s"), [
        (f'<a href="#step{k}">{e(step_name(s))}</a>', e(", ".join(map(_short, step_lines(s)))),
         f"{step_bytes(plan, s):,}", f"{step_work(s):,}" if step_work(s) else "", _time(t),
         f"{step_bytes(plan, s) / t / 1e9:.1f}" if t else "",
         f"{step_work(s) / t / 1e9:.1f}" if t and step_work(s) else "")
        for k, (s, t) in enumerate(zip(plan.steps, times))])
    yield "<h2>Roofline</h2>"
    yield from _roofline(plan.steps, [step_bytes(plan, s) for s in plan.steps], times)
    yield "<h2>The graph through the passes</h2>"
    yield from _stages(built)
    yield "<h2>Steps and the lines they come from</h2>"
    for k, (s, t) in enumerate(zip(plan.steps, times)):
        yield from _step(k, s, t, step_bytes(plan, s))
    yield "<h2>Buffers over time</h2>"
    yield from _buffers(built)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already. A head that starts with n: is of a column of numbers."""
    numbers = [h.startswith("n:") for h in heads]
    kind = [' class="n"' if n else "" for n in numbers]
    top = "".join(f"<th{k}>{html.escape(h.removeprefix('n:'))}</th>" for h, k in zip(heads, kind))
    lines = ["".join(f"<td{k}>{c}</td>" for c, k in zip(row, kind)) for row in rows]
    top = f"<tr>{top}</tr>" if any(heads) else ""
    return f"<table>{top}{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _stages(built: Built) -> Iterator[str]:
    """Each pass with what it changed; the graph before and after all of them drawn."""
    before: Graph | None = None
    for k, (name, graph, seconds) in enumerate(built.stages):
        changes = _changes(before, graph)
        head = f"{name}: {len(graph.nodes)} ops" + (f", {_time(seconds)}" if before is not None else "")
        last = k == len(built.stages) - 1
        opened = ' open="open"' if last else ""
        yield f"<details{opened}><summary><b>{html.escape(head)}</b> {html.escape(changes)}</summary>"
        yield f"{_shown(graph, drawn=before is None or last)}</details>"
        before = graph


def _changes(before: Graph | None, after: Graph) -> str:
    if before is None:
        return "(as traced)"
    old, new = (Counter(n.op.name for n in g.nodes) for g in (before, after))
    found = [f"{new[op] - old[op]:+d} {op}" for op in sorted(old | new) if new[op] != old[op]]
    return ", ".join(found) or "changed no op"


def _step(k: int, step: Step, seconds: float, nbytes: int) -> Iterator[str]:
    launch = launch_of(step)
    yield f'<h3 id="step{k}">{html.escape(step_name(step))}</h3>'
    facts = [f"{nbytes:,} bytes", _time(seconds)]
    if launch is not None:
        facts.append("ops: " + ", ".join(launch.ops))
    if isinstance(step, Gemm):
        facts.append(f"product of {step.m} × {step.k} and {step.k} × {step.n}"
                     + (f", {math.prod(step.batch)} times" if step.batch else ""))
    if isinstance(step, Attention):
        facts.append(f"{step.rows} queries and {step.columns} keys, {math.prod(step.batch)} times, in blocks")
    if isinstance(step, Call):
        facts.append("runs in Python, in program order" if step.op.stateful else "library call")
    yield f"<p>{html.escape('; '.join(facts))}</p>"
    source = "\n".join(_source(step_lines(step))) or '<p class="where">unknown lines</p>'
    code = f"<pre>{_text(launch.kernel.text)}</pre>" if launch is not None else "<p>no kernel of ours</p>"
    yield f'<div class="pair"><div>{source}</div><div>{code}</div></div>'


def _source(places: Sequence[str]) -> Iterator[str]:
    """The user's lines, by file."""
    files: dict[str, list[int]] = {}
    for place in places:
        file, _, number = place.rpartition(":")
        if number.isdigit():
            files.setdefault(file, []).append(int(number))
    for file, numbers in files.items():
        lines = [f"{n:>5}  {linecache.getline(file, n).rstrip() or '(not available)'}" for n in sorted(set(numbers))]
        yield f'<p class="where">{html.escape(_short(file))}</p><pre>{_text(chr(10).join(lines))}</pre>'


def _buffers(built: Built) -> Iterator[str]:
    plan, places = built.plan, built.program.storage.places
    yield "<p>Temporaries share one block of memory: across, the steps; up, the place in the block.</p>"
    yield place_svg(plan, places, [step_name(s) for s in plan.steps])
    rows = [(html.escape(t), html.escape(maker), html.escape(", ".join(readers)), html.escape(why))
            for t, maker, readers, why in stored(plan)]
    if rows:
        yield "<p>What goes through memory between steps, and why it is not fused:</p>"
        yield _table(("value", "made by", "read by", "why"), rows)
    yield _table(("buffer", "role", "type", "n:bytes", "where"), [
        (str(k), b.role, html.escape(repr(Type(b.shape, b.dtype))), f"{b.nbytes:,}",
         html.escape(f"{p.home} {p.number}" if p.home != "constant" else "constant"))
        for k, (b, p) in enumerate(zip(plan.buffers, places))])


def _roofline(steps: Sequence[Step], sizes: Sequence[int], times: Sequence[float]) -> Iterator[str]:
    points = [(step_name(s), step_work(s) / max(n, 1), step_work(s) / t)
              for s, n, t in zip(steps, sizes, times) if t and step_work(s)]
    bandwidth, flops = peaks(config.num_threads())
    yield (f"<p>Measured here: {bandwidth / 1e9:.1f} GB/s of a kernel that doubles 16 MiB, {flops / 1e9:.0f} Gop/s of "
           f"a float32 product of 768 × 768. Values that stay in the cache may be faster than memory allows; a step of "
           f"a few microseconds measures the way to it. Operations are counted in the kernel's statements.</p>")
    yield roofline_svg(points, bandwidth, flops) if points else "<p>No step whose operations are known.</p>"


def _text(text: str) -> str:
    return html.escape(text)


def _short(where: str) -> str:
    return where.rsplit("/", 1)[-1]


def _time(seconds: float) -> str:
    if seconds >= 0.1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
