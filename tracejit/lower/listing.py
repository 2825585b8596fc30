"""A kernel for people: what it reads and writes, and for each of its loops what is computed, with the user's lines.

In: a `Launch`, and what its buffers are called. Out: text. `Kernel.text` is the whole truth, statement by statement;
here the statements of one op are one line, `v43 = exp(v2)`, under the number that its result has there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tracejit.lower.kernel import Access, Kernel, Launch, Note, Stage, View
from tracejit.lower.scalar import Stmt

SIGNS = {
    "add": "+", "subtract": "-", "multiply": "*", "mul_zero": "*", "divide": "/", "less": "<", "less_equal": "<=",
    "greater": ">", "greater_equal": ">=", "equal": "==", "not_equal": "!=", "bitwise_and": "&", "bitwise_or": "|",
    "bitwise_xor": "^", "logical_and": "&", "logical_or": "|",
    "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&", "or": "|",
}  # fmt: skip
SUMS = {"add": "sum", "mul": "prod", "and": "all", "or": "any"}
COLUMN = 60  # where the user's lines start
LONGEST = 40  # statements of a loop in a lane


def listing(launch: Launch, name: Callable[[int], str]) -> str:
    """The kernel as text; `name(buffer)` says what a buffer is called."""
    return _Listing(launch, name).text()


class _Listing:
    def __init__(self, launch: Launch, name: Callable[[int], str]) -> None:
        self.launch, self.kernel = launch, launch.kernel
        self.stmts = launch.kernel.stmts
        self.notes = {n.statement: n for n in launch.notes}
        self.folds = {n.accumulator: n for n in launch.notes if n.accumulator is not None}
        self.reads = _distinct([name(v.buffer) for v in launch.reads])
        self.writes = _distinct([name(v.buffer) for v in launch.writes])
        self.done: set[int] = set()
        self.one = "element" if not self.kernel.inner else "row" if self.kernel.vector == "inner" else "column"
        self.loops = _looping(self.kernel)

    def text(self) -> str:
        k, launch = self.kernel, self.launch
        lines = [launch.name, f"  {_loops(k, launch.extents)}"]
        for what, names, accesses, views in (("reads ", self.reads, k.reads, launch.reads),
                                             ("writes", self.writes, k.writes, launch.writes)):
            for n, a, v in zip(names, accesses, views, strict=True):
                lines.append(f"  {what} {n}: {_where(a, v, launch.extents)}")
        for number, stage in enumerate(k.stages, 1):
            lines += self.stage(k, stage, number)
        return "\n".join(lines) + "\n"

    def stage(self, k: Kernel, stage: Stage, number: int) -> list[str]:
        """What a loop computes; before it, what is the same for all its elements."""
        needed, lines = self.needed(stage), []
        once = [i for i in needed if not self.loops[i]] if stage.inner else []
        for heading, some in ((f"once for each {self.one}", once), ("", [i for i in needed if i not in once])):
            if not heading:
                over = f"the {_times(self.launch.extents[k.outer:])} elements of each {self.one}"
                heading = f"for {over if stage.inner and k.inner else f'each {self.one}'}"
                heading = f"then {heading}" if once else heading
            elif not some:
                continue
            lines.append(f"  {f'{number}.' if some is once or not once else '  '} {heading}")
            for i in some:
                if self.stmts[i].op == "result" and self.stmts[i].args[0] not in self.done:
                    self.done.add(self.stmts[i].args[0])
                    lines += self.region(self.stmts[i].args[0], self.notes.get(i))
                lines.append(self.line(i))
        first = sum(len(s.accumulators) for s in k.stages[: k.stages.index(stage)])
        for n, a in enumerate(stage.accumulators, first):
            position = "" if a.index is None else f" at {self.operand(a.index)}"
            note = self.folds.get(n)
            lines.append(_aligned(f"{self.carried(n)} = {SUMS.get(a.op, a.op)} of {self.operand(a.value)}{position}",
                                  note.where if note is not None else ""))
        for s in stage.stores:
            at = "" if s.offset is None else f"[{self.operand(s.offset)}]"
            mask = "" if s.mask is None else f" where {self.operand(s.mask)}"
            sign = "=" if s.mode == "set" else f"{s.mode}="
            lines.append(_aligned(f"{self.writes[s.write]}{at} {sign} {self.operand(s.value)}{mask}", ""))
        lines += [_aligned(f"keep {self.operand(i)} for later", "") for i in stage.keeps]
        return lines

    def needed(self, stage: Stage) -> list[int]:
        """The statements to be shown that the stage computes first, in order."""
        todo, found = list(stage.roots), set[int]()
        while todo:
            i = todo.pop()
            if i not in found and i not in self.done and not self.leaf(i):
                found.add(i)
                note = self.notes.get(i)
                todo += self.stmts[i].args if note is None else note.args
        self.done |= found
        return sorted(found)

    def leaf(self, i: int) -> bool:
        return self.stmts[i].op in ("const", "carry", "coord", "param") or self.number(i) is not None or (
            self.stmts[i].op == "load" and not self.stmts[i].args)

    def line(self, i: int) -> str:
        s, note = self.stmts[i], self.notes.get(i)
        if note is None:
            return _aligned(f"v{i} = {self.raw(i)}", "")
        if s.op == "result":
            return _aligned(f"v{i} = c{s.attrs[0]} after the loop", note.where)
        inside = self.inside(note)
        many = f"  ({inside} statements)" if inside > 2 else ""
        return _aligned(f"v{i} = {_applied(note.op, [self.operand(a) for a in note.args], s.dtype)}{many}", note.where)

    def region(self, i: int, note: Note | None) -> list[str]:
        """A loop that runs for each element by itself: what goes round in it as c0, c1, ..., statements as t0, ..."""
        s, region = self.stmts[i], self.stmts[i].attrs[0]
        given = [self.operand(a) for a in s.args]
        times = f" {given.pop(0)} times" if region.counted else ""
        around = [f"c{k}" for k in range(region.carries)]
        values = around + given[region.carries:]

        def name(j: int) -> str:
            t = region.stmts[j]
            return values[t.attrs[0]] if t.op == "arg" else _literal(t) if t.op == "const" else f"t{j}"

        test = "" if region.test is None else f" while {name(region.test)}"
        start = ", ".join(f"{c} = {v}" for c, v in zip(around, given, strict=False))
        lines = [_aligned(f"loop{times}{test}, from {start}", note.where if note is not None else "")]
        shown = [j for j in region.needed(region.ends) if region.stmts[j].op not in ("arg", "const")]
        for j in shown[:LONGEST]:
            t = region.stmts[j]
            lines.append(_aligned(f"  t{j} = {_applied(t.op, [name(a) for a in t.args], t.dtype)}", ""))
        lines += [_aligned(f"  ... {len(shown) - LONGEST} more statements", "")] if len(shown) > LONGEST else []
        return [*lines, _aligned(f"  {', '.join(around)} = {', '.join(map(name, region.nexts))}", "")]

    def raw(self, i: int) -> str:
        s = self.stmts[i]
        args = [self.operand(a) for a in s.args]
        if s.op == "load":
            at, *mask = args
            place = self.reads[s.attrs[0]] + (f"[{at}]" if at != "0" else "")
            return place + (f" where {mask[0]}, else 0" if mask else "")
        return _applied(s.op, args, s.dtype)

    def inside(self, note: Note) -> int:
        """How many statements lie between a result and its operands."""
        todo, found = [note.statement], set[int]()
        while todo:
            i = todo.pop()
            if i not in found and i not in note.args and self.stmts[i].op != "const":
                found.add(i)
                todo += self.stmts[i].args
        return len(found)

    def operand(self, i: int) -> str:
        s = self.stmts[i]
        if (number := self.number(i)) is not None:
            return number
        if s.op == "load" and not s.args:
            return self.reads[s.attrs[0]]
        if s.op == "carry":
            return self.carried(s.attrs[0])
        return f"i{s.attrs[0]}" if s.op == "coord" else f"v{i}"

    def carried(self, n: int) -> str:
        op = self.kernel.accumulators[n].op
        return f"{SUMS.get(op, op)}{n}"

    def number(self, i: int) -> str | None:
        """A literal, or a run-time number with the conversions that it comes through."""
        s = self.stmts[i]
        if s.op == "const":
            return _literal(s)
        chain = []
        while s.op in ("cast", "bitcast"):
            chain.append(s)
            s = self.stmts[s.args[0]]
        if s.op != "param":
            return None
        value = self.launch.params[s.attrs[0]]
        if not isinstance(value, int) or isinstance(value, bool):
            return str(value)  # a size known when it runs
        if any(c.op == "bitcast" and c.dtype.kind == "f" for c in chain):
            real = struct.unpack("d", struct.pack("q", value))[0]
            return str(chain[0].dtype.type(real))
        return str(value)


def _applied(op: str, args: Sequence[str], dtype: np.dtype) -> str:
    """An op and its operands as Python would write them."""
    if op in SIGNS and len(args) == 2:
        return f"{args[0]} {SIGNS[op]} {args[1]}"
    if op in ("negative", "neg"):
        return f"-{args[0]}"
    return f"{dtype if op == 'cast' else op}({', '.join(args)})"


def _aligned(text: str, where: str) -> str:
    text = f"     {text}"
    return f"{text:<{COLUMN - 1}} {where.rsplit('/', 1)[-1]}" if where else text


def _literal(s: Stmt) -> str:
    return str(s.dtype.type(s.attrs[0])) if s.dtype.kind == "f" else repr(s.attrs[0])


def _looping(k: Kernel) -> list[bool]:
    """Which statements differ along the inner dims."""
    found: list[bool] = []
    for s in k.stmts:
        own = s.op == "coord" and s.attrs[0] >= k.outer
        own |= s.op == "load" and any(c != "0" for c in k.reads[s.attrs[0]].strides[k.outer:])
        found.append(own or (s.op != "carry" and any(found[a] for a in s.args)))
    return found


def _distinct(names: Sequence[str]) -> list[str]:
    """Names, numbered where a buffer is reached in several ways."""
    seen: dict[str, int] = {}
    found = []
    for n in names:
        seen[n] = seen.get(n, 0) + 1
        found.append(n if names.count(n) == 1 else f"{n}#{seen[n]}")
    return found


def _times(extents: Sequence[int]) -> str:
    return " x ".join(map(str, extents)) or "1"


def _loops(k: Kernel, extents: Sequence[int]) -> str:
    outer, inner = _times(extents[: k.outer]), _times(extents[k.outer:])
    if not k.inner:
        return f"for each of {outer} elements" + (", by tiles" if k.tiled else "")
    if k.vector == "inner":
        return f"for each of {outer} rows of {inner} elements"
    return f"for each of {outer} columns of {inner} elements, side by side"


def _where(a: Access, v: View, extents: Sequence[int]) -> str:
    """The part of a buffer that is touched: sizes along dims in which it moves, with the steps if they are not 1."""
    moving = [(n, s) for n, s in zip(extents, v.strides, strict=True) if s != 0]
    size = _times([n for n, _ in moving])
    steps = f" in steps of {', '.join(str(s) for _, s in moving)}" if moving and _strided(moving) else ""
    start = f" from {v.offset}" if v.offset else ""
    return f"{np.dtype(a.dtype)}, {size if moving else 'one element'}{steps}{start}"


def _strided(moving: Sequence[tuple[int, int]]) -> bool:
    """Whether the steps are not those of one contiguous block."""
    step = 1
    for n, s in reversed(moving):
        if s != step:
            return True
        step *= n
    return False


def names_of(inputs: Mapping[int, str], outputs: Sequence[int], roles: Sequence[str]) -> Callable[[int], str]:
    """What the buffers of a plan are called: arguments by their names, results and constants by number."""
    def name(buffer: int) -> str:
        if buffer in inputs:
            return inputs[buffer]
        if buffer in outputs:
            return f"result{outputs.index(buffer)}" if len(outputs) > 1 else "result"
        return f"{'constant' if roles[buffer] == 'constant' else 'buffer'}{buffer}"

    return name
