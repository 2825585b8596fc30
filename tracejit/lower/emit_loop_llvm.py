"""A `loop` statement as LLVM code: iterations in registers, all lanes of a vector at once.

In: a `Region` and the LLVM values of the statement's operands. Out: the carries after the loop.

A carry that is the same in all lanes stays a scalar. A vector may be as long as some registers: it is cut into parts of
one register each, whose statements come by turns, so that few values are alive at a time. Where a test differs between
lanes, the loop runs while any lane goes on, and the carries of the others stand still. Lanes that the vector's mask
switches off never go on.

Read next: `emit_nest_llvm.py` (who asks), `scalar.py` (`Region`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, TypeAlias

from llvmlite import ir

from tracejit.lower.contract import contracted
from tracejit.lower.emit_scalar_llvm import INT64, Emitter, Literal, is_vector, literal
from tracejit.lower.rare import Detour, detours
from tracejit.lower.scalar import Region

Values: TypeAlias = list[Any]  # LLVM values; a list of them for an inner loop
Maybe: TypeAlias = "ir.Value | None"
STRETCH = 24  # statements of one part, then of the next: so many as a CPU looks ahead over some parts
FEW_CARRIES, SHORT = 4, 200  # what many parts at a time are for: more would not stay in registers; code would be large


def parts_of(region: Region, most: int, vector_bytes: int) -> int:
    """Registers side by side that hide each other's waiting, where there are elements for `most`."""
    fits = vector_bytes == 64 and region.carries <= FEW_CARRIES  # twice as many registers as in narrower sets
    return min(most, 8 if fits and len(region.needed(region.ends)) <= SHORT else 4)


def emit_loop(e: Emitter, region: Region, args: Values, mask: Maybe) -> Values:
    """The carries after the loop."""
    if e.parts == 1:
        return _Loop(e, region, [args], [mask]).emit()[0]
    given = [list(v) for v in zip(*(_split(e, a) for a in args), strict=True)]
    masks = [None] * e.parts if mask is None else _split(e, mask)
    found = _Loop(Emitter(e.b, e.lanes // e.parts, e.fastmath, e.x86), region, given, masks).emit()
    return [_join(e, list(v)) for v in zip(*found, strict=True)]


def _split(e: Emitter, value: ir.Value) -> Values:
    """The parts of a vector; other values are the same in each."""
    if not is_vector(value):
        return [value] * e.parts
    n, nothing = e.lanes // e.parts, Literal(value.type, "poison")
    return [e.b.shuffle_vector(value, nothing, e.picks(range(p, p + n))) for p in range(0, e.lanes, n)]


def _join(e: Emitter, parts: Values) -> ir.Value:
    """The vector that has those parts."""
    while len(parts) > 1 and is_vector(parts[0]):
        both = e.picks(range(2 * parts[0].type.count))
        parts = [e.b.shuffle_vector(x, y, both) for x, y in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


class _Loop:
    """A loop in the making. What differs between lanes has a value for each part, other values are shared by all."""

    def __init__(self, e: Emitter, region: Region, given: list[Values], masks: list[Maybe]):
        self.e, self.b, self.masks = e, e.b, masks
        self.region = region = contracted(region, _invariant(region))
        self.count = given[0][0] if region.counted else None
        given = [g[region.counted:] for g in given]
        self.starts = [g[: region.carries] for g in given]
        self.operands = [g[region.carries:] for g in given]
        self.values: list[dict[int, Any]] = [{} for _ in given]
        self.active = masks  # lanes that go on

    def emit(self) -> list[Values]:
        """The carries after the loop, of each part."""
        region, invariant = self.region, _invariant(self.region)
        self.varying, apart = self._varying()
        for i, s in enumerate(region.stmts):
            if s.op == "arg" and s.attrs[0] >= region.carries:
                for values, operands in zip(self.values, self.operands, strict=True):
                    values[i] = operands[s.attrs[0] - region.carries]
        self._run([i for i in region.needed(region.ends) if i in invariant])
        self.known = self.values
        self.starts = [[self.e.splat(v) if w else v for v, w in zip(own, self.varying, strict=True)]
                       for own in self.starts]
        tests = set() if region.test is None else set(region.needed([region.test]))
        shared = {i for i in tests.intersection(region.needed(region.nexts)) if region.stmts[i].op != "arg"}
        return self._tested_first() if apart or shared - invariant else self._tested_last()

    def _tested_last(self) -> list[Values]:
        """All lanes make as many iterations: one piece of code for each."""
        b = self.b
        go, before = self._goes(self.starts, literal(0, INT64)), b.block
        inside, after = b.append_basic_block("iteration"), b.append_basic_block("done")
        b.cbranch(go, inside, after)
        b.position_at_end(inside)
        turn = None if self.count is None else b.phi(INT64)
        phis = self._phis()
        self._know(phis)
        news = self._news(phis)
        following = None if turn is None else b.add(turn, literal(1, INT64))
        go, end = self._goes(news, following), b.block
        b.cbranch(go, inside, after)
        if turn is not None:
            turn.add_incoming(literal(0, INT64), before)
            turn.add_incoming(following, end)
        b.position_at_end(after)
        last = self._phis()
        for each in (phis, last):
            self._come(each, self.starts, before)
            self._come(each, news, end)
        return last

    def _tested_first(self) -> list[Values]:
        """The test's work is the iteration's, too; or lanes that do not go on stand still."""
        b = self.b
        before, head = b.block, b.append_basic_block("loop")
        inside, after = b.append_basic_block("iteration"), b.append_basic_block("done")
        b.branch(head)
        b.position_at_end(head)
        turn = None if self.count is None else b.phi(INT64)
        phis = self._phis()
        b.cbranch(self._goes(phis, turn), inside, after)
        b.position_at_end(inside)
        news = self._news(phis)
        if turn is not None:
            turn.add_incoming(literal(0, INT64), before)
            turn.add_incoming(b.add(turn, literal(1, INT64)), b.block)
        self._come(phis, self.starts, before)
        self._come(phis, news, b.block)
        b.branch(head)
        b.position_at_end(after)
        return phis

    def _goes(self, carries: list[Values], turn: Maybe) -> ir.Value:
        """Whether any lane goes on, which of them if they differ (`active`), and what was computed (`values`)."""
        go = None if self.count is None else self.b.icmp_signed("<", turn, self.count)
        self._know(carries)
        if self.region.test is None:
            return go
        self._run(self.region.needed([self.region.test]))
        tests = [values[self.region.test] for values in self.values]
        if is_vector(tests[0]):
            tests = self.active = [self.e.and_mask(t, m) for t, m in zip(tests, self.masks, strict=True)]
        some = self._any(tests)
        return some if go is None else self.b.and_(go, some)

    def _news(self, carries: list[Values]) -> list[Values]:
        """The carries after an iteration."""
        b, region = self.b, self.region
        self._run(region.needed(region.nexts))
        found: list[Values] = []
        for known, on, mask, own in zip(self.values, self.active, self.masks, carries, strict=True):
            found.append([])
            for i, old, w in zip(region.nexts, own, self.varying, strict=True):
                new = self.e.splat(known[i]) if w else known[i]
                found[-1].append(new if on is mask or new is old else b.select(on, new, old))
        return found

    def _know(self, carries: list[Values]) -> None:
        """Begin with nothing computed but what does not depend on the carries."""
        self.values = [dict(values) for values in self.known]
        for i, s in enumerate(self.region.stmts):
            if s.op == "arg" and s.attrs[0] < self.region.carries:
                for values, own in zip(self.values, carries, strict=True):
                    values[i] = own[s.attrs[0]]

    def _phis(self) -> list[Values]:
        """Carries where ways meet."""
        b = self.b
        shared = [None if w else b.phi(v.type) for v, w in zip(self.starts[0], self.varying, strict=True)]
        return [[b.phi(v.type) if s is None else s for v, s in zip(own, shared, strict=True)] for own in self.starts]

    def _come(self, phis: list[Values], values: list[Values], block: ir.Block) -> None:
        """What the phis are if control comes from the block."""
        done: set[int] = set()
        for own, news in zip(phis, values, strict=True):
            for phi, v in zip(own, news, strict=True):
                if id(phi) not in done:
                    phi.add_incoming(v, block)
                    done.add(id(phi))

    def _any(self, bits: list[ir.Value]) -> ir.Value:
        """Whether a lane of any part is true."""
        return self.e.any_lane(reduce(self.b.or_, bits) if is_vector(bits[0]) else bits[0])

    def _varying(self) -> tuple[list[bool], bool]:
        """Which carries differ between lanes, at some time; and whether lanes stop one by one."""
        region = self.region
        found = [is_vector(v) for v in self.starts[0]]
        while True:
            lanes: list[bool] = []
            for s in region.stmts:
                if s.op == "arg":
                    k = s.attrs[0]
                    lanes.append(found[k] if k < region.carries else is_vector(self.operands[0][k - region.carries]))
                else:
                    lanes.append(any(lanes[a] for a in s.args))
            apart = region.test is not None and lanes[region.test]
            new = [f or lanes[i] or apart for f, i in zip(found, region.nexts, strict=True)]
            if new == found:
                return found, apart
            found = new

    def _run(self, order: list[int]) -> None:
        """Emit statements that are not there yet."""
        order = [i for i in order if i not in self.values[0]]
        users = set(self.region.ends)
        for i, s in enumerate(self.region.stmts):
            users.update(a for a in s.args if i not in order)
        stretch: list[int] = []
        for item in detours(self.region.stmts, order, users):
            if isinstance(item, int) and self.region.stmts[item].op != "loop":
                stretch.append(item)
                if len(stretch) < STRETCH:
                    continue
            self._statements(stretch, self.values)
            stretch = []
            if isinstance(item, Detour):
                self._detour(item)
            elif item not in self.values[0]:
                self._inner(item, self.values)
        self._statements(stretch, self.values)

    def _statements(self, order: Sequence[int], parts: list[dict[int, Any]]) -> None:
        """Emit statements for one part after the other."""
        stmts = self.region.stmts
        for p, values in enumerate(parts):
            for i in order:
                if i in values:
                    continue
                s = stmts[i]
                if s.op == "loop":
                    self._inner(i, parts)
                    continue
                args = [values[a] for a in s.args]
                if s.op == "result":
                    values[i] = args[0][s.attrs[0]]
                    continue
                source = stmts[s.args[0]].dtype if s.args else s.dtype
                values[i] = self.e.statement(s, args, source, self.masks[p])
                if not any(map(is_vector, args)):
                    for others in parts:
                        others[i] = values[i]

    def _inner(self, i: int, parts: list[dict[int, Any]]) -> None:
        s = self.region.stmts[i]
        found = _Loop(self.e, s.attrs[0], [[values[a] for a in s.args] for values in parts], self.active).emit()
        for values, carries in zip(parts, found, strict=True):
            values[i] = carries

    def _detour(self, detour: Detour) -> None:
        """Selects on a rare condition: a branch around their slow side, for all parts at once."""
        b, e, stmts = self.b, self.e, self.region.stmts
        apart = any(is_vector(self.values[0][a]) for i in (*detour.selects, *detour.slow) for a in stmts[i].args
                    if a in self.values[0])
        lane = e.splat if apart else lambda v: v
        parts = self.values if apart else self.values[:1]
        fast = [[lane(values[stmts[i].args[2]]) for i in detour.selects] for values in parts]
        before, slow, join = b.block, b.append_basic_block(), b.append_basic_block()
        b.cbranch(self._any([values[detour.cond] for values in self.values]), slow, join).set_weights([1, 1000])
        b.position_at_end(slow)
        insides = [dict(values) for values in self.values]
        self._statements([*detour.slow, *detour.selects], insides)
        chosen = [[lane(inside[i]) for i in detour.selects] for inside in insides[: len(parts)]]
        end = b.block
        b.branch(join)
        b.position_at_end(join)
        for n, i in enumerate(detour.selects):
            for p, values in enumerate(parts):
                values[i] = phi = b.phi(chosen[p][n].type)
                phi.add_incoming(fast[p][n], before)
                phi.add_incoming(chosen[p][n], end)
            if not apart:
                for values in self.values[1:]:
                    values[i] = parts[0][i]


def _invariant(region: Region) -> set[int]:
    """Statements that do not depend on carries."""
    found: set[int] = set()
    for i, s in enumerate(region.stmts):
        if s.attrs[0] >= region.carries if s.op == "arg" else all(a in found for a in s.args):
            found.add(i)
    return found
