"""A `loop` statement as LLVM code: iterations in registers, all lanes of a vector at once.

In: a `Region` and the LLVM values of the statement's operands. Out: the carries after the loop.

A carry that is the same in all lanes stays a scalar. Where a test differs between lanes, the loop runs while any lane
goes on, and the carries of the others stand still. Lanes that the vector's mask switches off never go on.

Read next: `emit_nest_llvm.py` (who asks), `scalar.py` (`Region`).
"""

from __future__ import annotations

from typing import Any, TypeAlias

from llvmlite import ir

from tracejit.lower.emit_scalar_llvm import INT64, Emitter, is_vector, literal
from tracejit.lower.rare import Detour, detours
from tracejit.lower.scalar import Region

Values: TypeAlias = list[Any]  # LLVM values; a list of them for an inner loop


def emit_loop(e: Emitter, region: Region, args: Values, mask: ir.Value | None) -> Values:
    """The carries after the loop."""
    return _Loop(e, region, args, mask).emit()


class _Loop:
    def __init__(self, e: Emitter, region: Region, args: Values, mask: ir.Value | None):
        self.e, self.b, self.region, self.mask = e, e.b, region, mask
        self.count = args[0] if region.counted else None
        given = args[1:] if region.counted else args
        self.starts, self.operands = given[: region.carries], given[region.carries:]
        self.values: dict[int, Any] = {}
        self.active = mask  # lanes that go on

    def emit(self) -> Values:
        b, region = self.b, self.region
        varying = self._varying()
        invariant = self._invariant()
        for i, s in enumerate(region.stmts):
            if s.op == "arg" and s.attrs[0] >= region.carries:
                self.values[i] = self.operands[s.attrs[0] - region.carries]
        self._run([i for i in region.needed(region.ends) if i in invariant])
        starts = [self.e.splat(v) if w else v for v, w in zip(self.starts, varying, strict=True)]
        before, head = b.block, b.append_basic_block("loop")
        inside, after = b.append_basic_block("iteration"), b.append_basic_block("done")
        b.branch(head)
        b.position_at_end(head)
        turn = b.phi(INT64) if self.count is not None else None
        phis = [b.phi(v.type) for v in starts]
        for i, s in enumerate(region.stmts):
            if s.op == "arg" and s.attrs[0] < region.carries:
                self.values[i] = phis[s.attrs[0]]
        go: ir.Value | None = None
        on: ir.Value | None = None  # lanes that go on, if they differ
        if turn is not None:
            go = b.icmp_signed("<", turn, self.count)
        if region.test is not None:
            self._run(region.needed([region.test]))
            test = self.values[region.test]
            if is_vector(test):
                test = on = self.active = self.e.and_mask(test, self.mask)
            some = self.e.any_lane(test)
            go = some if go is None else b.and_(go, some)
        b.cbranch(go, inside, after)
        b.position_at_end(inside)
        self._run(region.needed(region.nexts))
        news = []
        for k, (i, w) in enumerate(zip(region.nexts, varying, strict=True)):
            new = self.e.splat(self.values[i]) if w else self.values[i]
            news.append(new if on is None or new is phis[k] else b.select(on, new, phis[k]))
        following = None if turn is None else b.add(turn, literal(1, INT64))
        end = b.block
        b.branch(head)
        for phi, v, w in zip(phis, starts, news, strict=True):
            phi.add_incoming(v, before)
            phi.add_incoming(w, end)
        if turn is not None:
            turn.add_incoming(literal(0, INT64), before)
            turn.add_incoming(following, end)
        b.position_at_end(after)
        return phis

    def _varying(self) -> list[bool]:
        """Which carries differ between lanes, at some time."""
        region = self.region
        found = [is_vector(v) for v in self.starts]
        while True:
            lanes: list[bool] = []
            for s in region.stmts:
                if s.op == "arg":
                    k = s.attrs[0]
                    lanes.append(found[k] if k < region.carries else is_vector(self.operands[k - region.carries]))
                else:
                    lanes.append(any(lanes[a] for a in s.args))
            apart = region.test is not None and lanes[region.test]
            new = [f or lanes[i] or apart for f, i in zip(found, region.nexts, strict=True)]
            if new == found:
                return found
            found = new

    def _invariant(self) -> set[int]:
        """Statements that do not depend on carries."""
        found: set[int] = set()
        for i, s in enumerate(self.region.stmts):
            if s.attrs[0] >= self.region.carries if s.op == "arg" else all(a in found for a in s.args):
                found.add(i)
        return found

    def _run(self, order: list[int]) -> None:
        """Emit statements that are not there yet."""
        order = [i for i in order if i not in self.values]
        users = set(self.region.ends)
        for i, s in enumerate(self.region.stmts):
            users.update(a for a in s.args if i not in order)
        for item in detours(self.region.stmts, order, users):
            if isinstance(item, Detour):
                self._detour(item)
            else:
                self.values[item] = self._statement(item, self.values)

    def _statement(self, i: int, values: dict[int, Any]) -> Any:
        s = self.region.stmts[i]
        args = [values[a] for a in s.args]
        if s.op == "loop":
            return emit_loop(self.e, s.attrs[0], args, self.active)
        if s.op == "result":
            return args[0][s.attrs[0]]
        source = self.region.stmts[s.args[0]].dtype if s.args else s.dtype
        return self.e.statement(s, args, source, self.mask)

    def _detour(self, detour: Detour) -> None:
        """Selects on a rare condition: a branch around their slow side."""
        b, e, stmts = self.b, self.e, self.region.stmts
        apart = any(is_vector(self.values[a]) for i in (*detour.selects, *detour.slow) for a in stmts[i].args
                    if a in self.values)
        lane = e.splat if apart else lambda v: v
        fast = [lane(self.values[stmts[i].args[2]]) for i in detour.selects]
        before, slow, join = b.block, b.append_basic_block(), b.append_basic_block()
        b.cbranch(e.any_lane(self.values[detour.cond]), slow, join).set_weights([1, 1000])
        b.position_at_end(slow)
        inside = dict(self.values)
        for i in detour.slow:
            inside[i] = self._statement(i, inside)
        chosen = [lane(self._statement(i, inside)) for i in detour.selects]
        end = b.block
        b.branch(join)
        b.position_at_end(join)
        for i, x, y in zip(detour.selects, fast, chosen, strict=True):
            self.values[i] = b.phi(y.type)
            self.values[i].add_incoming(x, before)
            self.values[i].add_incoming(y, end)
