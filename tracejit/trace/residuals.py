"""What a forward program keeps for its backward program: a minimum cut.

In: the part of a graph that does not depend on cotangents, and which of its values the other part reads. Out: the
values to keep. Elementwise and movement ops are fused, so doing them again costs little more than reading their
inputs; what is worth saving is bytes. A value of the forward program is either kept (it costs its bytes, once to
write and once to read; only the reading, if it is an input or a result anyway) or computed again from others that
are. The cheapest choice is a minimum cut between what only the forward program can compute and what the backward
program reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from tracejit.ir import CONSTANT, INPUT, Node, Type

COSTLY = 40  # scalar work per element from which an elementwise op is not done again
_ENDLESS = 1 << 60


def residuals(nodes: Sequence[Node], inputs: Collection[Node], results: Collection[Node],
              read: Iterable[Node]) -> set[Node]:
    """The values to keep so that all of `read` can be had. nodes: in program order, without `inputs`."""
    fixed = _exact(nodes)
    flow = _Flow()
    source, sink = flow.vertex(), flow.vertex()
    before: dict[Node, int] = {}
    after: dict[Node, int] = {}
    for node in (*inputs, *nodes):
        if isinstance(node.type, tuple):
            continue  # taken apart by getitem nodes, which are kept in its place
        before[node], after[node] = flow.vertex(), flow.vertex()
        given = node in inputs or node in results
        flow.edge(before[node], after[node], _nbytes(node) * (1 if given else 2) + 1)
        if _again(node) and node not in fixed:
            for i in node.inputs:
                flow.edge(after[i], before[node], _ENDLESS)
        else:
            flow.edge(source, before[node], _ENDLESS)
    for node in read:
        flow.edge(after[node], sink, _ENDLESS)
    far = flow.cut(source, sink)  # the cut nearest to the readers: least work done twice
    return {n for n in before if before[n] not in far and after[n] in far}


def _again(node: Node) -> bool:
    """Whether the backward program may do this op again."""
    if node.op is INPUT:
        return False
    if node.op is CONSTANT or (node.op.kind == "source" and (not node.inputs or node.dtype.kind == "b")):
        return True  # a random mask too: it is made of a key
    return node.op.kind == "movement" or (node.op.kind == "elementwise" and node.op.cost < COSTLY)


def _exact(nodes: Sequence[Node]) -> set[Node]:
    """What is compared for equality must be the very value it was: fused another way, a multiply and add may round
    differently.
    """
    found: set[Node] = set()
    for node in reversed(nodes):
        if node.op.name in ("equal", "not_equal") or (node in found and node.op.kind == "movement"):
            found.update(i for i in node.inputs if i.op.kind in ("elementwise", "movement"))
    return {n for n in found if n.op.kind == "elementwise"}


def _nbytes(node: Node) -> int:
    assert isinstance(node.type, Type)
    return node.type.size * node.type.dtype.itemsize


class _Flow:
    """A network of integer capacities; `cut` by Dinic's algorithm."""

    def __init__(self) -> None:
        self.out: list[list[int]] = []  # by vertex: its edges
        self.to: list[int] = []
        self.left: list[int] = []  # capacity left; the edge back is the next or previous one

    def vertex(self) -> int:
        self.out.append([])
        return len(self.out) - 1

    def edge(self, a: int, b: int, capacity: int) -> None:
        self.out[a].append(len(self.to))
        self.out[b].append(len(self.to) + 1)
        self.to += [b, a]
        self.left += [capacity, 0]

    def cut(self, source: int, sink: int) -> set[int]:
        """The vertices on the sink's side of the minimum cut nearest to it."""
        while (level := self._levels(source)) and level[sink] >= 0:
            place = [0] * len(self.out)
            while self._push(source, sink, level, place):
                pass
        far, queue = {sink}, deque([sink])
        while queue:
            b = queue.popleft()
            for e in self.out[b]:  # e ^ 1 leads from self.to[e] to b
                if self.left[e ^ 1] and self.to[e] not in far:
                    far.add(self.to[e])
                    queue.append(self.to[e])
        return far

    def _levels(self, source: int) -> list[int]:
        level = [-1] * len(self.out)
        level[source], queue = 0, deque([source])
        while queue:
            a = queue.popleft()
            for e in self.out[a]:
                if self.left[e] and level[self.to[e]] < 0:
                    level[self.to[e]] = level[a] + 1
                    queue.append(self.to[e])
        return level

    def _push(self, source: int, sink: int, level: list[int], place: list[int]) -> int:
        """Send what fits along one more path of rising levels; 0 if there is none."""
        path: list[int] = []
        at = source
        while at != sink:
            edges = self.out[at]
            while place[at] < len(edges):
                e = edges[place[at]]
                if self.left[e] and level[self.to[e]] == level[at] + 1:
                    break
                place[at] += 1
            else:
                if not path:
                    return 0
                at = self.to[path.pop() ^ 1]
                place[at] += 1
                continue
            path.append(e)
            at = self.to[e]
        amount = min(self.left[e] for e in path)
        for e in path:
            self.left[e] -= amount
            self.left[e ^ 1] += amount
        return amount
