"""Branches and loops in a program: where their buffers are, and the steps that move control and addresses.

In: `Branch` and `Loop` steps of a plan. Out: rows of the executor's table. The steps of their parts are rows among the
others, so a loop runs without Python, and however often.

A part sees buffers of the plan around it. Where that place stays, addresses are known once the call begins. A row of a
scan is one address that moves (a word of the frame); everything that lies behind it is a `MOVE` entry, done again when
it has moved. So rows are read and written in place. A large carry that the body cannot write over has two places, whose
addresses change roles; a small one is copied. A loop in slices has all that for each slice: the words of the frame that
it needs, again and again.

Read next: `slices.py` (loops in slices), `executor.py` (the control steps), `program.py` (who asks).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from tracejit.errors import InternalError
from tracejit.lower.buffers import Storage
from tracejit.lower.plan import Branch, Loop, Plan
from tracejit.runtime.executor import ENTRY_WORDS, PATIENCE, Control, Frame, Share, Step
from tracejit.runtime.slices import Slices, slices

SWAP = 1024  # bytes from which two places change roles instead of a copy
TURN = 20  # nanoseconds that control takes in an iteration, roughly
ENDLESS = 1000  # iterations assumed of a loop that ends by a test
SPACING = 32  # words to whose multiple the words of a slice are filled up
MOST_WORDS = 1 << 13  # for all slices of a loop

Entry = tuple[int, int, int]


class Base(NamedTuple):
    """Where a buffer starts. object: `offset` bytes into the array that `word` of the frame holds. address: `offset`
    bytes after the address in that word, which moves; `moves` is what has to be done then. fixed: at `offset`."""

    kind: Literal["object", "address", "fixed"]
    word: int
    offset: int
    moves: Any = None

    def after(self, n: int) -> Base:
        return self._replace(offset=self.offset + n)


@dataclass(slots=True)
class Draft:
    """A frame being laid out: words, those that are to hold the address of the scratch, which native functions share,
    or of a place behind it, and the sizes of both."""

    words: list[int]
    relocations: list[Entry] = field(default_factory=list)  # from objects: word, object, offset
    scratch_words: list[tuple[int, int]] = field(default_factory=list)
    scratch: int = 0
    kept_words: list[tuple[int, int]] = field(default_factory=list)  # the same for memory of which each has its own
    kept: int = 0

    def word(self) -> int:
        self.words.append(0)
        return len(self.words) - 1

    def keep(self, words: Sequence[int], nbytes: int) -> None:
        """Have words hold the address of memory that nobody else uses."""
        self.kept_words += [(word, self.kept) for word in words]
        self.kept += -(-nbytes // 64) * 64

    def relocate(self, word: int, base: Base) -> int:
        """Have a word hold an address; the word's value where that is known already."""
        if base.kind == "fixed":
            return base.offset
        (self.relocations if base.kind == "object" else base.moves).append((word, base.word, base.offset))
        return 0

    def cell(self, base: Base) -> int:
        """A word that holds an address whenever it is looked at."""
        if base.kind == "address" and not base.offset:
            return base.word
        word = self.word()
        self.words[word] = self.relocate(word, base)
        return word


@dataclass(slots=True)
class Scope:
    """A plan in its place: where its inputs, outputs and temps are. first: number of its first step among all steps of
    the program. work: estimated nanoseconds. steady: buffers that stay as they are while it runs again and again.
    slices: how it is cut, if it is the body of a loop in slices."""

    plan: Plan
    storage: Storage
    first: int
    inputs: Sequence[Base]
    outputs: dict[int, Base]  # by buffer
    arena: Base
    runs: dict[int, list[Any]] = field(default_factory=dict)  # native functions by step
    inner: dict[int, LoopCode | BranchCode] = field(default_factory=dict)  # by step
    cells: dict[int, int] = field(default_factory=dict)  # words that hold the addresses of buffers, for steps in Python
    work: float = 0.0
    steady: frozenset[int] = frozenset()
    ahead: list[Any] = field(default_factory=list)  # native functions to run once before all that
    slices: Slices | None = None

    def base(self, b: int) -> Base:
        place = self.storage.places[b]
        match place.home:
            case "input":
                return self.inputs[place.number]
            case "output":
                return self.outputs[place.number]
            case "constant":
                value = self.plan.buffers[b].value
                if value is None or not value.flags.c_contiguous:
                    raise InternalError(f"constant buffer {b} has no contiguous value")
                return Base("fixed", 0, value.ctypes.data)
            case "panels":  # known to the thread that makes a panel
                return Base("fixed", 0, 0)
        return self.arena.after(place.number)

    def nbytes(self, b: int) -> int:
        return self.plan.buffers[b].nbytes


class Rows:
    """The table of steps being written."""

    def __init__(self, keep: list[np.ndarray]) -> None:
        self.rows: list[list[int]] = []
        self._keep = keep  # what the table holds addresses of

    @property
    def here(self) -> int:
        return len(self.rows)

    def control(self, kind: Control, **words: int) -> list[int]:
        """Add a control step; `next` and others of its words by name."""
        row = [0] * Step.WORDS
        row[Step.FUNCTION] = kind
        for name, value in words.items():
            row[Step[name.upper()]] = value
        self.rows.append(row)
        return row

    def entries(self, kind: Control, entries: Sequence[Entry]) -> None:
        """A MOVE or COPY, if there is anything to do."""
        if entries:
            self.control(kind, table=self.address(np.array(entries, np.int64)), entries=len(entries))

    def runs(self, runs: Sequence[Any], checks: int = 0, number: int = 0) -> None:
        """Native functions; of step `number` of the program, if they may fail."""
        self.rows += [[r.function, 8 * r.at, r.begin, r.items, r.chunk, checks, number] for r in runs]

    def address(self, table: np.ndarray) -> int:
        self._keep.append(table)
        return int(table.ctypes.data)


Enter = Callable[..., Scope]  # Part, inputs, outputs by buffer, arena; steady buffers
Emit = Callable[[Scope, Rows], None]


@dataclass(slots=True)
class BranchCode:
    """A branch laid out."""

    choice: int  # the word that holds the address of what chooses
    boolean: bool
    parts: list[Scope]
    copies: list[list[Entry]]  # after each part

    @property
    def work(self) -> float:
        return max(p.work for p in self.parts) + TURN

    def emit(self, rows: Rows, emit: Emit) -> None:
        starts, jumps = [], []
        first = rows.control(Control.UNLESS if self.boolean else Control.SWITCH, word=self.choice)
        order = list(enumerate(self.parts))
        for k, part in reversed(order) if self.boolean else order:
            starts.append(rows.here)
            emit(part, rows)
            rows.entries(Control.COPY, self.copies[k])
            jumps.append(rows.control(Control.JUMP))
        for row in jumps:
            row[Step.NEXT] = rows.here
        if self.boolean:
            first[Step.NEXT] = starts[1]
        else:
            first[Step.TABLE], first[Step.ENTRIES] = rows.address(np.array(starts, np.int64)), len(starts)


def lay_out_branch(draft: Draft, scope: Scope, step: Branch, enter: Enter) -> BranchCode:
    inputs = [scope.base(b) for b in step.inputs]
    results = [scope.base(b) for b in step.outputs]
    parts, copies = [], []
    for part in step.parts:
        made: dict[int, Base] = {}
        for b, target in zip(part.plan.outputs, results, strict=True):
            if part.plan.buffers[b].role == "output":
                made.setdefault(b, target)
        inner = enter(part, inputs, made, scope.base(step.work))
        parts.append(inner)
        copies.append([(draft.cell(target), draft.cell(inner.base(b)), inner.nbytes(b))
                       for b, target in zip(part.plan.outputs, results, strict=True) if inner.base(b) != target])
    boolean = scope.plan.buffers[step.choice].dtype.kind == "b"
    return BranchCode(draft.cell(scope.base(step.choice)), boolean, parts, copies)


@dataclass(slots=True)
class LoopCode:
    """A loop laid out: lists of entries for each point of it."""

    length: int  # -1: until the test fails
    test: Scope | None
    body: Scope
    verdict: int = 0  # the word that holds the address of the test's result
    counter: int = 0
    first: list[Entry] = field(default_factory=list)  # COPY: what the carries start with
    place: list[Entry] = field(default_factory=list)  # MOVE: where moving addresses start
    before: list[Entry] = field(default_factory=list)  # COPY: results that are inputs, before those are written over
    after: list[Entry] = field(default_factory=list)  # COPY: new carries to their places
    advance: list[Entry] = field(default_factory=list)  # MOVE: to the next row; places that change roles
    moves: list[Entry] = field(default_factory=list)  # MOVE: what lies behind moving addresses
    last: list[Entry] = field(default_factory=list)  # COPY: carries that ended in their other place
    slices: Slices | None = None
    own: range = range(0)  # words of the frame of which each slice has its own

    @property
    def work(self) -> float:
        turn = self.body.work + TURN + (self.test.work if self.test else 0.0)
        return turn * (ENDLESS if self.length < 0 else self.length)

    def emit(self, rows: Rows, emit: Emit) -> None:
        rows.entries(Control.COPY, self.first)
        if self.length == 0:
            return
        rows.entries(Control.MOVE, [*self.place, *self.moves])
        rows.runs(self.body.ahead)
        cost = max(1, int(self.body.work + TURN))
        share = rows.control(Control.SLICES, next=rows.here, cost=cost) if self.slices is not None else None
        top = rows.here
        leave = None
        if self.test is not None:
            emit(self.test, rows)
            leave = rows.control(Control.UNLESS, word=self.verdict)
        rows.entries(Control.COPY, self.before)
        emit(self.body, rows)
        rows.entries(Control.COPY, self.after)
        if self.advance:
            rows.entries(Control.MOVE, [*self.advance, *self.moves])
        if share is not None and self.slices is not None:
            given = {Share.FIRST: self.own.start, Share.WORDS: len(self.own), Share.SLICES: self.slices.count,
                     Share.EACH: self.slices.each, Share.ROWS: self.slices.rows, Share.COUNTER: self.counter,
                     Share.TURNS: max(1, PATIENCE // cost), Share.TOP: top, Share.END: rows.here}
            share[Step.TABLE] = rows.address(np.array([given[w] for w in Share], np.int64))
            share[Step.RESULT] = rows.here
        elif leave is None:
            rows.control(Control.COUNT, word=self.counter, next=top, cost=cost)
        else:
            rows.control(Control.JUMP, next=top, cost=cost)
            leave[Step.NEXT] = rows.here
        rows.entries(Control.COPY, self.last)


def lay_out_loop(draft: Draft, scope: Scope, step: Loop, enter: Enter) -> LoopCode:
    plan, begin = step.body.plan, len(draft.words)
    moves: list[Entry] = []
    place: list[Entry] = []
    advance: list[Entry] = []
    last: list[Entry] = []
    now: list[Base] = []  # where each carry is while the body runs
    new: list[Base] = []  # where the body puts the next one
    swapped: set[int] = set()
    first = [(draft.cell(scope.base(b)), draft.cell(scope.base(i)), scope.nbytes(b))
             for b, i in zip(step.carries, step.inits, strict=True) if scope.base(b) != scope.base(i)]

    def moving() -> Base:
        return Base("address", draft.word(), 0, moves)

    stacked = {plan.outputs[p]: p - len(step.carries) for p in range(len(step.carries), len(plan.outputs))}
    follows: dict[int, tuple[Base, int]] = {}  # a carry that is stacked, too, is the row before: its place, its stack
    for k, (b, other) in enumerate(zip(step.carries, step.nexts, strict=True)):
        home = scope.base(b)
        if (row := stacked.get(plan.outputs[k])) is not None and other is not None and step.length > 0:
            here = moving()
            follows[k] = here, row
            place.append((here.word, draft.cell(home), 0))
            last.append((draft.cell(home), here.word, scope.nbytes(b)))
            now.append(here)
            new.append(here)
            continue
        if other is None or scope.nbytes(b) < SWAP or not _made(step.body.plan, k):
            now.append(home)
            new.append(home if other is None else scope.base(other))
            continue
        here, there, spare = moving(), moving(), draft.word()
        place += [(here.word, draft.cell(home), 0), (there.word, draft.cell(scope.base(other)), 0)]
        advance += [(spare, here.word, 0), (here.word, there.word, 0), (there.word, spare, 0)]
        last.append((draft.cell(home), here.word, scope.nbytes(b)))
        now.append(here)
        new.append(there)
        swapped.add(k)

    def along(b: int) -> Base:
        row, size = moving(), scope.nbytes(b) // max(step.length, 1)
        place.append((row.word, draft.cell(scope.base(b)), size * (step.length - 1) if step.reverse else 0))
        advance.append((row.word, row.word, -size if step.reverse else size))
        return row

    rows = [along(b) for b in step.rows]
    stacks = [along(b) for b in step.stacks]
    advance[:0] = [(here.word, stacks[row].word, 0) for here, row in follows.values()]
    targets = [*new, *stacks]
    operands = [scope.base(b) for b in step.operands]
    made: dict[int, Base] = {}
    for k, (b, target) in enumerate(zip(plan.outputs, targets, strict=True)):
        if plan.buffers[b].role == "output" and k not in follows:
            made.setdefault(b, target)
    test, verdict = None, 0
    if step.test is not None:  # parts are entered in the order of `inner_parts`
        result = step.test.plan.outputs[0]
        own = {result: scope.base(step.verdict)} if step.test.plan.buffers[result].role == "output" else {}
        test = enter(step.test, [*now, *operands], own, scope.base(step.work))
        verdict = draft.cell(test.base(result))
    steady = frozenset(plan.inputs[len(now) + len(rows):]) if step.length != 1 else frozenset()
    shared = slices(step)
    body = enter(step.body, [*now, *rows, *operands], made, scope.base(step.work), steady, shared)
    code = LoopCode(step.length, test, body, verdict, 0, first, place, advance=advance, moves=moves, last=last)
    for k, (b, target) in enumerate(zip(plan.outputs, targets, strict=True)):
        source, carry = body.base(b), k < len(step.carries)
        if carry and (step.nexts[k] is None or k in follows):
            continue
        if plan.buffers[b].role != "output":  # an input or a constant as it is
            code.before.append((draft.cell(target), draft.cell(source), body.nbytes(b)))
            source = target
        if carry and k not in swapped:
            code.after.append((draft.cell(now[k]), draft.cell(source), body.nbytes(b)))
        elif source != target:
            code.after.append((draft.cell(target), draft.cell(source), body.nbytes(b)))
    if test is None:
        code.counter = draft.word()
        place.append((code.counter, Frame.ZERO, step.length))
    if shared is not None:
        _share(draft, code, shared, range(begin, len(draft.words)))
    return code


def _share(draft: Draft, code: LoopCode, shared: Slices, own: range) -> None:
    """Have words for each slice, if the turns of the loop need no others and copies are of rows."""
    own = range(own.start, own.start + -(-len(own) // SPACING) * SPACING)
    copies = [*code.before, *code.after]
    named = {word for entry in (*copies, *code.advance, *code.moves) for word in entry[:2]}
    if len(own) * shared.count > MOST_WORDS or not named <= set(own) or any(n % shared.rows for _, _, n in copies):
        return
    draft.words += [0] * (own.start + len(own) * shared.count - len(draft.words))
    code.slices, code.own = shared, own


def _made(plan: Plan, k: int) -> bool:
    """Whether output `k` is written by the plan's steps, and is no other output too."""
    b = plan.outputs[k]
    return plan.buffers[b].role == "output" and plan.outputs.count(b) == 1


assert ENTRY_WORDS == 3
