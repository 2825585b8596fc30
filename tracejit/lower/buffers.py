"""Storage for a plan's buffers: who lives where, who may take whose place.

In: a `Plan`. Out: a `Storage`: a place for each buffer. Temps share one arena by their lifetimes, and before that the
memory of outputs that are not written yet; a step that walks a dying temp and a new buffer in the same way writes the
one over the other; and outputs that could be written over an input, if the caller owns it, are named in `reusable`.

A buffer lives from its first write (a later scatter into it is an update) to its last use; outputs live to the end.

Read next: `runtime/program.py` (who allocates by it).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Literal

from tracejit.errors import InternalError
from tracejit.lower.epilogue import same_walk, stays_on_panels
from tracejit.lower.kernel import Launch
from tracejit.lower.plan import (
    Branch,
    Buffer,
    Call,
    Gemm,
    Loop,
    Plan,
    Step,
    inner_parts,
    launch_of,
    operands_of,
    reads_of,
    writes_of,
)

ALIGNMENT = 64
LODGING = 4096  # bytes from which a temp may take an output's place


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer lives. `number` is a byte offset into the arena, a position among the plan's inputs, the number of
    the output buffer whose memory it is, or the number of the constant. Products on panels have no memory."""

    home: Literal["arena", "input", "output", "constant", "panels"]
    number: int


@dataclass(frozen=True, slots=True)
class Storage:
    """Places of all buffers of a plan.

    arrays: the output buffers to allocate at each call. reusable: position among the plan's outputs -> position among
    its inputs that may give its memory, if the caller owns it.
    """

    places: tuple[Place, ...]
    arena_bytes: int
    arrays: tuple[int, ...]
    array_bytes: int
    reusable: dict[int, int]

    @property
    def peak_bytes(self) -> int:
        """Memory one call takes besides its inputs and constants (and the scratch of split reductions)."""
        return self.arena_bytes + self.array_bytes


@dataclass(slots=True)
class _Life:
    """First write and last use, as step numbers."""

    first: int
    last: int


@dataclass(slots=True)
class _Group:
    """Buffers that follow each other in the same memory."""

    members: list[int]
    first: int
    last: int
    nbytes: int
    output: int | None = None
    offset: int = 0


def assign(plan: Plan, updates: Mapping[int, int] | None = None, failing: bool = True) -> Storage:
    """Choose a place for every buffer. `updates` names the input that each output is the new value of; without it, any
    input that is alike may be reused. failing: an input must be whole after a failure."""
    lives = _lifetimes(plan)
    born = {b: (life.first, b) for b, life in lives.items()}
    updated = {plan.outputs[p] for p in _reusable(plan, born, updates, failing)} if updates else set()
    groups = _in_place(plan, lives, updated)
    panels = {g.members[0] for g in groups if _on_panels(plan, g)}
    groups = [g for g in groups if g.members[0] not in panels]
    starts = {g.output: (g.first, g.members[0]) for g in groups if g.output is not None}
    reusable = _reusable(plan, starts, updates, failing)
    _lodge(groups, {plan.outputs[p] for p in reusable})
    arena_bytes = _lay_out([g for g in groups if g.output is None])
    places: list[Place | None] = [None] * len(plan.buffers)
    for position, b in enumerate(plan.inputs):
        places[b] = Place("input", position)
    for b, buffer in enumerate(plan.buffers):
        if buffer.role == "constant":
            places[b] = Place("constant", b)
    for b in panels:
        places[b] = Place("panels", 0)
    for g in groups:
        for b in g.members:
            places[b] = Place("arena", g.offset) if g.output is None else Place("output", g.output)
    arrays = tuple(dict.fromkeys(b for b in plan.outputs if plan.buffers[b].role == "output"))
    for b, place in enumerate(places):
        if place is None:
            if plan.buffers[b].role != "temp":
                raise InternalError(f"buffer {b} is an {plan.buffers[b].role}, but not among the plan's")
            places[b] = Place("arena", 0)  # no step touches it
    return Storage(tuple(p for p in places if p is not None), arena_bytes, arrays,
                   sum(plan.buffers[b].nbytes for b in arrays), reusable)


def _lifetimes(plan: Plan) -> dict[int, _Life]:
    """Lives of temps and outputs that are written."""
    lives: dict[int, _Life] = {}
    for s, step in enumerate(plan.steps):
        for b in reads_of(step):
            if b in lives:
                lives[b].last = s
            elif plan.buffers[b].role in ("temp", "output") and plan.buffers[b].size:
                raise InternalError(f"step {s} reads buffer {b} before any step writes it")
        for b in writes_of(step):
            if plan.buffers[b].role not in ("temp", "output"):
                raise InternalError(f"step {s} writes buffer {b}, whose role is {plan.buffers[b].role}")
            lives.setdefault(b, _Life(s, s)).last = s
    for b, buffer in enumerate(plan.buffers):
        if buffer.role == "output":
            if b not in lives and buffer.size:
                raise InternalError(f"no step writes output buffer {b}")
            first = lives[b].first if b in lives else len(plan.steps)
            lives[b] = _Life(first, len(plan.steps))
    return lives


def _in_place(plan: Plan, lives: dict[int, _Life], updated: Collection[int]) -> list[_Group]:
    """Group buffers that can follow each other in the same memory; most groups have one member. `updated`: outputs that
    are better written over their old value, an input."""
    group_of: dict[int, _Group] = {}
    for b, life in sorted(lives.items(), key=lambda item: item[1].first):
        buffer = plan.buffers[b]
        mine = b if buffer.role == "output" else None
        dying = _predecessor(plan, lives, group_of, b) if life.first < len(plan.steps) and b not in updated else None
        if dying is not None:
            g = group_of[dying]
            g.members.append(b)
            g.last, g.output = life.last, mine
        else:
            g = _Group([b], life.first, life.last, buffer.nbytes, mine)
        group_of[b] = g
    return list({id(g): g for g in group_of.values()}.values())


def _on_panels(plan: Plan, g: _Group) -> bool:
    """Whether the group is a product that only the kernel of its own step reads."""
    b, *more = g.members
    if more or g.first != g.last or g.first >= len(plan.steps) or plan.buffers[b].role != "temp":
        return False
    step = plan.steps[g.first]
    return isinstance(step, Gemm) and step.c.buffer == b and stays_on_panels(step)


def _predecessor(plan: Plan, lives: dict[int, _Life], group_of: dict[int, _Group], b: int) -> int | None:
    """A temp that dies where `b` is born and whose memory `b` can be written over."""
    step = plan.steps[lives[b].first]
    whole = step if isinstance(step, Branch | Loop) else launch_of(step)
    if whole is None or b not in writes_of(whole):
        return None
    for d in dict.fromkeys(reads_of(whole)):
        if (plan.buffers[d].role == "temp" and d in lives and lives[d].last == lives[b].first
                and group_of[d].members[-1] == d and plan.buffers[d].nbytes == plan.buffers[b].nbytes
                and _over(step, d, b)):
            return d
    return None


def _over(step: Step, old: int, new: int) -> bool:
    """Whether `step` may write `new` over `old`, which nobody needs afterwards."""
    if isinstance(step, Loop):  # a carry over what it starts with
        return (new in step.carries and step.inits[step.carries.index(new)] == old
                and (*step.inits, *step.rows, *step.operands).count(old) == 1)
    if isinstance(step, Branch):  # a result over an input that every branch gives back, or writes over
        if new not in step.outputs or old == step.choice or step.inputs.count(old) != 1:
            return False
        k, j = step.outputs.index(new), step.inputs.index(old)
        return all((p.plan.outputs[k] == p.plan.inputs[j] and p.plan.outputs.count(p.plan.outputs[k]) == 1)
                   or p.storage.reusable.get(k) == j for p in step.parts)
    launch = launch_of(step)
    return (launch is not None and new in writes_of(launch) and old in reads_of(launch)
            and old not in operands_of(step) and same_walk(launch, old, new))


def _lodge(groups: list[_Group], updated: Collection[int]) -> None:
    """Let temps live in the memory of an output of their size that is written only after they are gone."""
    free: dict[int, list[tuple[int, int]]] = {}  # by size: until when, negative, and which output; a heap
    for g in groups:
        if g.output is not None and g.output not in updated and g.nbytes >= LODGING:
            free.setdefault(g.nbytes, []).append((-g.first, g.output))
    for heap in free.values():
        heapify(heap)
    for g in sorted(groups, key=lambda g: -g.last):  # the latest first, so that an output is free until some step
        heap = free.get(g.nbytes, [])
        if g.output is None and heap and g.last < -heap[0][0]:
            g.output = heap[0][1]
            heapreplace(heap, (-g.first, g.output))


def _lay_out(groups: list[_Group]) -> int:
    """Give offsets in the arena, largest first, each in the smallest gap between those alive then; the arena's size."""
    placed: list[_Group] = []
    total = 0
    for g in sorted(groups, key=lambda g: (-g.nbytes, g.first)):
        best, best_gap, end = None, None, 0
        for other in placed:  # in order of offset
            if other.last < g.first or g.last < other.first:
                continue
            gap = other.offset - end
            if gap >= g.nbytes and (best_gap is None or gap < best_gap):
                best, best_gap = end, gap
            end = max(end, _aligned(other.offset + other.nbytes))
        g.offset = end if best is None else best
        total = max(total, _aligned(g.offset + g.nbytes))
        placed.append(g)
        placed.sort(key=lambda other: other.offset)
    return total


def _aligned(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT


def _reusable(plan: Plan, starts: dict[int, tuple[int, int]], updates: Mapping[int, int] | None,
              failing: bool) -> dict[int, int]:
    """Outputs that may be written over an input: alike, and once that has begun nothing reads the input or can fail.

    `starts`: for each output buffer, the first step that writes its memory, and the buffer it writes there.
    """
    last_read = {b: s for s, step in enumerate(plan.steps) for b in reads_of(step)}
    last_failure = max((s for s, step in enumerate(plan.steps) if failing and _can_fail(step)), default=-1)
    found: dict[int, int] = {}
    for position, b in enumerate(plan.outputs):
        start, first = starts.get(b, (-1, b))
        if plan.buffers[b].role != "output" or plan.outputs.count(b) > 1 or last_failure >= start:
            continue
        for given, i in enumerate(plan.inputs):
            if updates is not None and updates.get(position) != given:
                continue
            if (given not in found.values() and plan.inputs.count(i) == 1 and i not in plan.outputs
                    and _alike(plan.buffers[i], plan.buffers[b])
                    and _unread_from(plan, last_read.get(i, -1), start, i, first)):
                found[position] = given
                break
    return found


def _can_fail(step: Step) -> bool:
    if isinstance(step, Call) or (isinstance(step, Launch) and step.sites):
        return True
    return any(_can_fail(s) for p in inner_parts(step) for s in p.plan.steps)


def _alike(a: Buffer, b: Buffer) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and (a.strides is None or _contiguous(a))


def _contiguous(buffer: Buffer) -> bool:
    want = 1
    for e, s in zip(reversed(buffer.shape), reversed(buffer.strides or ()), strict=True):
        if e != 1 and s != want:
            return False
        want *= e
    return True


def _unread_from(plan: Plan, last_read: int, start: int, old: int, new: int) -> bool:
    if last_read < start:
        return True
    step = plan.steps[start] if start < len(plan.steps) else None
    return last_read == start and step is not None and _over(step, old, new)


# ---- checking


def verify(plan: Plan, storage: Storage) -> None:
    """Check, step by step, that no two live values share bytes and that inputs and constants are never written."""
    alive: dict[int, int] = {}  # buffer -> step of its last use
    last_use = {b: s for s, step in enumerate(plan.steps) for b in (*reads_of(step), *writes_of(step))}
    for b in plan.outputs:
        last_use[b] = len(plan.steps)
    for s, step in enumerate(plan.steps):
        for b in writes_of(step):
            place = storage.places[b]
            if place.home in ("input", "constant"):
                raise InternalError(f"step {s} writes buffer {b}, which lives in an {place.home}")
            if b in alive:
                continue
            for other in alive:
                in_place = (alive[other] == s and storage.places[other] == place
                            and plan.buffers[b].nbytes == plan.buffers[other].nbytes and _over(step, other, b))
                if overlap(plan, storage, b, other) and not in_place:
                    raise InternalError(f"step {s} writes buffer {b} over buffer {other}, which is still in use")
            alive[b] = last_use[b]
        alive = {b: last for b, last in alive.items() if last > s}
    for position, given in storage.reusable.items():
        b, i = plan.outputs[position], plan.inputs[given]
        writes = [(s, w) for s, step in enumerate(plan.steps) for w in writes_of(step)
                  if storage.places[w] == storage.places[b]]
        start, first = min(writes, default=(len(plan.steps), b))
        reads = [s for s, step in enumerate(plan.steps) if i in reads_of(step)]
        if i in plan.outputs or not _unread_from(plan, max(reads, default=-1), start, i, first):
            raise InternalError(f"output {position} must not be written over input {given}, which is still in use")


def overlap(plan: Plan, storage: Storage, a: int, b: int) -> bool:
    p, q = storage.places[a], storage.places[b]
    if p.home != q.home or p.home == "panels":
        return False
    if p.home == "output":
        return p.number == q.number
    return p.number < q.number + plan.buffers[b].nbytes and q.number < p.number + plan.buffers[a].nbytes
