"""Pictures for reports as SVG text: a graph in layers, buffers over time, a roofline, a profile as a timeline.

In: a graph, a plan with its places, events, or numbers. Out: an `<svg>` element, complete in itself.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence

from tracejit.ir import Graph, Node, Type
from tracejit.lower.buffers import Place
from tracejit.lower.plan import Plan, reads_of, writes_of

COLOURS = {
    "elementwise": "#dbeafe", "reduction": "#fde68a", "movement": "#e5e7eb", "indexing": "#fbcfe8",
    "library": "#fecaca", "control": "#ddd6fe", "source": "#dcfce7",
}  # fmt: skip
WIDE, HIGH, GAP_X, GAP_Y = 168, 38, 14, 34  # of a node's box


def _svg(width: float, height: float, parts: Iterator[str] | Sequence[str], title: str) -> str:
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="ui-monospace, monospace" font-size="11" role="img">'
            f"<title>{html.escape(title)}</title>{''.join(parts)}</svg>")


def _label(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{html.escape(text)}</text>'


# -- graphs ------------------------------------------------------------------------------------------------------------
def graph_svg(graph: Graph) -> str:
    """Nodes in layers, each below its inputs; near what they read."""
    layer: dict[Node, int] = dict.fromkeys(graph.inputs, 0)
    for node in graph.nodes:
        layer[node] = 1 + max((layer[i] for i in node.inputs), default=0)
    for node, readers in graph.users().items():  # what reads nothing stands just above its first reader
        if not node.inputs and node.op.name != "input" and readers:
            layer[node] = max(0, min(layer[r] for r in readers) - 1)
    rows: list[list[Node]] = [[] for _ in range(max(layer.values(), default=0) + 1)]
    for node, k in layer.items():
        rows[k].append(node)
    rows = [row for row in rows if row]
    layer = {node: k for k, row in enumerate(rows) for node in row}
    column: dict[Node, float] = {}
    for row in rows:
        row.sort(key=lambda n: sum(column[i] for i in n.inputs) / len(n.inputs) if n.inputs else 0.0)
        for k, node in enumerate(row):
            column[node] = k - (len(row) - 1) / 2
    widest = max(map(len, rows))
    width, height = widest * (WIDE + GAP_X) + GAP_X, len(rows) * (HIGH + GAP_Y) + GAP_Y

    def place(node: Node) -> tuple[float, float]:
        return width / 2 + column[node] * (WIDE + GAP_X) - WIDE / 2, GAP_Y / 2 + layer[node] * (HIGH + GAP_Y)

    def parts() -> Iterator[str]:
        for node in graph.nodes:
            x, y = place(node)
            for i in node.inputs:
                a, b = place(i)
                a, b, c = a + WIDE / 2, b + HIGH, x + WIDE / 2
                yield (f'<path d="M{a:.1f} {b:.1f} C{a:.1f} {b + 20:.1f} {c:.1f} {y - 20:.1f} {c:.1f} {y:.1f}" '
                       f'fill="none" stroke="#8c959f" />')
        results = set(graph.outputs)
        for node in layer:
            x, y = place(node)
            edge = "#b91c1c" if node in results else "#57606a"
            yield (f'<rect x="{x:.1f}" y="{y:.1f}" width="{WIDE}" height="{HIGH}" rx="5" '
                   f'fill="{COLOURS.get(node.op.kind, "#fff")}" stroke="{edge}" />')
            name = node.name or node.op.name
            yield _label(x + 8, y + 15, name if len(name) < 24 else name[:22] + "…")
            place_ = node.where.rsplit("/", 1)[-1]
            kind = repr(node.type)
            yield _label(x + 8, y + 30, kind if len(kind) < 25 else kind[:23] + "…", ' fill="#57606a"')
            yield f'<rect x="{x:.1f}" y="{y:.1f}" width="{WIDE}" height="{HIGH}" fill="none" pointer-events="all">'
            yield f"<title>{html.escape(f'{node.op.name} {kind} {place_}')}</title></rect>"

    return _svg(width, height, list(parts()), graph.name)


# -- buffers -----------------------------------------------------------------------------------------------------------
def place_svg(plan: Plan, places: Sequence[Place], names: Sequence[str]) -> str:
    """Temporaries: the steps they live through, and their place in the arena."""
    life: dict[int, list[int]] = {}
    for k, step in enumerate(plan.steps):
        for b in (*reads_of(step), *writes_of(step)):
            life.setdefault(b, []).append(k)
    temps = [b for b in life if plan.buffers[b].role == "temp" and places[b].home == "arena"]
    top = max((places[b].number + plan.buffers[b].nbytes for b in temps), default=0)
    steps = max(len(plan.steps), 1)
    step_wide = min(150.0, max(18.0, 900 / steps))
    left, high = 70.0, 240.0 if temps else 30.0
    width, height = left + steps * step_wide + 20, high + 60

    def parts() -> Iterator[str]:
        for k in range(steps + 1):
            x = left + k * step_wide
            yield f'<line x1="{x:.1f}" y1="10" x2="{x:.1f}" y2="{high + 10:.1f}" stroke="#eaeef2" />'
        yield f'<line x1="{left}" y1="{high + 10:.1f}" x2="{width - 20:.1f}" y2="{high + 10:.1f}" stroke="#57606a" />'
        for k, name in enumerate(names):
            x, fits = left + k * step_wide, int(step_wide / 7)
            yield _label(x + 3, high + 26, name if len(name) <= fits else f"{name[: max(fits - 1, 1)]}…")
        yield _label(4, 18, f"{top:,} B")
        yield _label(4, high + 10, "0 B")
        if not temps:
            yield _label(left + 8, 26, "no temporaries")
        for b in temps:
            first, last = min(life[b]), max(life[b])
            size = plan.buffers[b].nbytes
            y0, y1 = (10 + high * (1 - n / max(top, 1)) for n in (places[b].number + size, places[b].number))
            x, wide = left + first * step_wide, (last - first + 1) * step_wide
            told = f"buffer {b}: {Type(plan.buffers[b].shape, plan.buffers[b].dtype)!r}, {size:,} bytes"
            yield (f'<rect x="{x + 1:.1f}" y="{y0:.1f}" width="{wide - 2:.1f}" height="{max(y1 - y0, 1):.1f}" '
                   f'fill="hsl({b * 67 % 360}, 65%, 78%)" stroke="#57606a"><title>{html.escape(told)}</title></rect>')
            if y1 - y0 > 12:
                yield _label(x + 5, y0 + 12, f"{b}")

    return _svg(width, height, list(parts()), "buffers over time")


# -- roofline ----------------------------------------------------------------------------------------------------------
def roofline_svg(points: Sequence[tuple[str, float, float]], bandwidth: float, flops: float) -> str:
    """Steps as (name, operations per byte, operations per second) under the two limits, both axes logarithmic."""
    ridge = flops / bandwidth
    low_x = min([0.1, *(x for _, x, _ in points)]) / 2
    high_x = max([ridge * 4, *(x for _, x, _ in points)]) * 2
    high_y = max([flops, *(y for _, _, y in points)]) * 3
    low_y = min([bandwidth * low_x, *(y for _, _, y in points)]) / 2
    left, top, wide, high = 80.0, 10.0, 700.0, 320.0

    def at(x: float, y: float) -> tuple[float, float]:
        return (left + wide * math.log(x / low_x) / math.log(high_x / low_x),
                top + high * (1 - math.log(y / low_y) / math.log(high_y / low_y)))

    def decades(low: float, high: float) -> Iterator[float]:
        for k in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
            yield 10.0**k

    def parts() -> Iterator[str]:
        yield f'<rect x="{left}" y="{top}" width="{wide}" height="{high}" fill="#fbfcfd" stroke="#d0d7de" />'
        for x in decades(low_x, high_x):
            px, _ = at(x, low_y)
            yield f'<line x1="{px:.1f}" y1="{top}" x2="{px:.1f}" y2="{top + high}" stroke="#eaeef2" />'
            yield _label(px - 8, top + high + 16, f"{x:g}")
        for y in decades(low_y, high_y):
            _, py = at(low_x, y)
            yield f'<line x1="{left}" y1="{py:.1f}" x2="{left + wide}" y2="{py:.1f}" stroke="#eaeef2" />'
            yield _label(left - 62, py + 4, f"{y / 1e9:g} Gop/s")
        yield _label(left + wide / 2 - 90, top + high + 34, "operations per byte of buffers touched")
        corners = [at(low_x, bandwidth * low_x), at(ridge, flops), at(high_x, flops)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        yield f'<polyline points="{line}" fill="none" stroke="#b91c1c" stroke-width="2" />'
        for k, (name, x, y) in enumerate(points):
            px, py = at(x, y)
            yield (f'<circle cx="{px:.1f}" cy="{py:.1f}" r="5" fill="hsl({k * 67 % 360}, 70%, 45%)">'
                   f"<title>{html.escape(f'{name}: {y / 1e9:.2f} Gop/s, {x:.2f} per byte')}</title></circle>")
            yield _label(px + 8, py + 4, name)

    return _svg(left + wide + 240, top + high + 50, list(parts()), "roofline")


# -- timeline ----------------------------------------------------------------------------------------------------------
KINDS = {"trace": "#ddd6fe", "compile": "#fde68a", "program": "#e5e7eb", "kernel": "#bfdbfe", "library": "#fecaca",
         "eager": "#57606a"}  # fmt: skip


def timeline_svg(events: Sequence[tuple[str, str, int, float, float]]) -> str:
    """Events as (name, kind, thread, start, seconds): a lane for each thread and kind, time to the right."""
    lanes = sorted({(thread, list(KINDS).index(kind), kind) for _, kind, thread, _, _ in events})
    begin = min((start for *_, start, _ in events), default=0.0)
    end = max((start + seconds for *_, start, seconds in events), default=1.0)
    span = max(end - begin, 1e-9)
    left, wide, high = 90.0, 1000.0, 26.0
    height = len(lanes) * high + 40
    step = 10 ** math.floor(math.log10(span / 4))
    step = next(k * step for k in (1, 2, 5, 10) if span / (k * step) <= 10)

    def parts() -> Iterator[str]:
        for k in range(int(span / step) + 1):
            x = left + wide * k * step / span
            yield f'<line x1="{x:.1f}" y1="6" x2="{x:.1f}" y2="{height - 30:.1f}" stroke="#eaeef2" />'
            yield _label(x - 4, height - 14, f"{k * step * 1e3:g} ms")
        for k, (_, _, kind) in enumerate(lanes):
            yield _label(4, 6 + k * high + 16, kind)
        for name, kind, thread, start, seconds in sorted(events, key=lambda e: e[3]):
            y = 6 + lanes.index((thread, list(KINDS).index(kind), kind)) * high
            x, w = left + wide * (start - begin) / span, max(wide * seconds / span, 1.0)
            told = html.escape(f"{name}: {seconds * 1e6:.1f} us")
            yield (f'<rect x="{x:.1f}" y="{y + 2:.1f}" width="{w:.1f}" height="{high - 4}" fill="{KINDS[kind]}" '
                   f'stroke="#57606a" stroke-width="0.5"><title>{told}</title></rect>')
            if w > 40:
                fits = int(w / 7)
                yield _label(x + 4, y + 17, name if len(name) <= fits else name[: fits - 1] + "…")

    return _svg(left + wide + 20, height, list(parts()), "timeline")
