"""The loop-nest record: what a fused kernel is, independent of target and of sizes.

In: made by `fuse.py`. Out: read by `emit_llvm.py` (code) and by `runtime/program.py` (slots).

A kernel walks a space of `outer` dims (independent points) times `inner` dims (reduced or revisited at each point).
Its statements form one graph (`scalar.py`); each stage names the values it needs, and a target computes a statement
where its coordinates first become known, so nothing is written twice. All numbers that may change with a size are
run-time slots: two calls with other shapes share the kernel, and its text is its identity.

    map            outer dims only, one stage of stores
    row reduction  inner dims, vectors along the last inner dim, accumulators, then stores once per point
    column         inner dims, vectors along the last *outer* dim, one accumulator per lane
    row stages     several inner stages over the same row (max; sum of exp; scale), each using earlier `carry` values
    running        one inner dim, in order: a `running` statement makes of an element and its result before the next one

ABI: `void kernel(intp* slots, intp begin, intp end)` does the items [begin, end); `Kernel.slots` gives the layout.
An item is one block of one point row (see `items`). With splits > 1 (only if `splittable`), items leave partial
accumulators in the scratch, and a second call `kernel(slots, ~begin, end)` over the *points* [begin, end), numbered in
row-major order, combines them in order and runs the remaining stages. Items, and points, may be given to any threads in
any pieces: results depend on block and splits alone. A write may be a read's buffer at the very same place.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from tracejit.errors import InternalError
from tracejit.locks import once
from tracejit.lower.scalar import COMPARISONS, SCALAR_OPS, Stmt, behind

TILE = 64  # how many of the tile dim make up an item
ACCUMULATE = ("add", "mul", "min", "max", "and", "or", "argmin", "argmax")
# 0: the address does not move with the dim. 1 to 4: it moves by that many elements (more than 1 only for the vector
# dim: one part of interleaved complex numbers, a colour of a picture). -1: back by one (only the vector dim). s: by a
# run-time stride.
Stride = Literal["0", "1", "2", "3", "4", "-1", "s"]


@dataclass(frozen=True, slots=True)
class Access:
    """How one buffer is read or written: element dtype and, for each dim of the space, the class of its stride.

    like: the first access (reads, then writes) that has the same strides, if another: they move together.
    follows: of writes, whether each element lies just behind that of the write before (parts of a complex number).
    """

    dtype: np.dtype
    strides: tuple[Stride, ...]
    like: int | None = None
    follows: bool = False


@dataclass(frozen=True, slots=True)
class Accumulator:
    """`acc = op(acc, value)` over a stage's inner loop, from the op's identity (empty loops give it).

    For argmin and argmax `index` is the int64 position statement, which grows along the inner loops; the carry is the
    position of the first extreme (nan counts as the extreme), and -1 for an empty loop. `any` and `all` are or and and
    over bool.
    """

    op: str
    dtype: np.dtype
    value: int
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """`write[point (+ offset)] = value` where mask. With an offset (int64 elements) it is a scatter: lanes in order.

    mode `set` stores; `add mul min max` combine with what is there.
    """

    write: int
    value: int
    offset: int | None = None
    mask: int | None = None
    mode: str = "set"


@dataclass(frozen=True, slots=True)
class Stage:
    """One loop over the inner dims (`inner=True`) or one execution per point, with what it accumulates and stores."""

    inner: bool
    accumulators: tuple[Accumulator, ...] = ()
    stores: tuple[Store, ...] = ()
    checks: tuple[int, ...] = ()  # `check` statements that must run even if nothing uses their result
    # Values of this inner loop that later stages read back from a row of scratch, where that is cheaper than computing
    # them again (one inner dim, vectors along it).
    keeps: tuple[int, ...] = ()

    @property
    def roots(self) -> list[int]:
        """The statements that a stage names."""
        roots = [*self.checks, *self.keeps]
        for a in self.accumulators:
            roots += [a.value] if a.index is None else [a.value, a.index]
        for s in self.stores:
            roots += [i for i in (s.value, s.offset, s.mask) if i is not None]
        return roots


@dataclass(frozen=True)
class Kernel:
    """One fused loop nest. Equal text means equal code."""

    outer: int
    inner: int
    vector: Literal["outer", "inner"]  # vectors run along the last dim of this group
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    params: int
    stmts: tuple[Stmt, ...]
    stages: tuple[Stage, ...]
    # Maps whose reads run across the vectors, along the dim just before them (transposes), go by tiles of that dim and
    # the vector dim: such a read has class 1 along the former.
    tiled: bool = False
    # Of maps: guards with the value each has nearly everywhere, and what the stage is where all have it.
    usual: tuple[tuple[int, bool], ...] = ()
    interior: Stage | None = None

    @property
    def rank(self) -> int:
        return self.outer + self.inner

    @property
    def vector_dim(self) -> int:
        return self.outer - 1 if self.vector == "outer" else self.rank - 1

    @property
    def tile_dim(self) -> int | None:
        return self.outer - 2 if self.tiled else None

    @property
    def serial(self) -> bool:
        """Scatters run in order, by one thread, so that duplicates are exact and repeatable."""
        return any(s.offset is not None or s.mode != "set" for stage in self.stages for s in stage.stores)

    @property
    def splittable(self) -> bool:
        """Whether the first inner dim may be cut into parts whose accumulators are combined afterwards."""
        inner = [s for s in self.stages if s.inner]
        return len(inner) == 1 and bool(inner[0].accumulators) and self.stages[0].inner and not self.running

    @once
    def running(self) -> tuple[int, ...]:
        """The statements that need their own result at the element before."""
        return tuple(i for i, s in enumerate(self.stmts) if s.op == "running")

    @once
    def accumulators(self) -> tuple[Accumulator, ...]:
        """All accumulators in order; `carry` statements number them."""
        return tuple(a for s in self.stages for a in s.accumulators)

    @once
    def usually(self) -> tuple[int, ...]:
        """The statements that nearly every element needs, in order."""
        if self.interior is None:
            return tuple(range(len(self.stmts)))
        return tuple(behind(self.stmts, self.interior.roots))

    @once
    def slots(self) -> Slots:
        return Slots.of(self)

    @once
    def text(self) -> str:
        """The kernel as readable, canonical text; the key of its machine code."""
        dims = [f"i{d}" for d in range(self.rank)]
        names = [*(f"r{k}" for k in range(len(self.reads))), *(f"w{k}" for k in range(len(self.writes)))]

        def access(a: Access) -> str:
            notes = ("" if a.like is None else f" like {names[a.like]}") + " behind the one before" * a.follows
            return f"{a.dtype}[{', '.join(a.strides)}]{notes}"

        lines = [
            f"kernel outer={self.outer} inner={self.inner} vector={dims[self.vector_dim]} params={self.params}"
            + " tiled" * self.tiled,
            *(f"  r{k} = read {access(a)}" for k, a in enumerate(self.reads)),
            *(f"  w{k} = write {access(a)}" for k, a in enumerate(self.writes)),
            *(f"  v{i}: {s.dtype} = {_statement(s)}" for i, s in enumerate(self.stmts)),
        ]
        acc = 0
        for stage in self.stages:
            lines.append("  for each inner element:" if stage.inner and self.inner else "  at each point:")
            for a in stage.accumulators:
                position = "" if a.index is None else f" at v{a.index}"
                lines.append(f"    acc{acc}: {a.dtype} {a.op}= v{a.value}{position}")
                acc += 1
            for s in stage.stores:
                where = "" if s.offset is None else f" at v{s.offset}"
                where += "" if s.mask is None else f" if v{s.mask}"
                lines.append(f"    w{s.write} {'' if s.mode == 'set' else s.mode}= v{s.value}{where}")
            lines += [f"    check v{c}" for c in stage.checks]
            lines += [f"    keep v{i}" for i in stage.keeps]
        if self.interior is not None:
            lines.append("  where " + " and ".join(f"{'' if value else 'not '}v{i}" for i, value in self.usual) + ":")
            lines += [f"    w{s.write} = v{s.value}" + ("" if s.mask is None else f" if v{s.mask}")
                      for s in self.interior.stores]
            lines += [f"    check v{c}" for c in self.interior.checks]
        return "\n".join(lines) + "\n"


def _statement(s: Stmt) -> str:
    args = [f"v{a}" for a in s.args]
    if s.op == "const":
        value = s.attrs[0]
        return value.hex() + f"  # {value!r}" if isinstance(value, float) else repr(value)
    if s.op == "loop":
        region = s.attrs[0]
        inner = "".join(f"\n      v{i}: {t.dtype} = {_statement(t)}" for i, t in enumerate(region.stmts))
        ends = f"\n      carries = {region.nexts}, test = {region.test}, counted = {region.counted}"
        return f"loop({', '.join(args)}) of {s.attrs[1]}{inner}{ends}".replace("\n", "\n  ")
    return f"{s.op}({', '.join([*args, *map(repr, s.attrs)])})"


@dataclass(frozen=True, slots=True)
class Slots:
    """Where each run-time number of a kernel sits in its int64 slot array.

    extents[d]: length of dim d. block: length of one block of the last outer dim when vector == "outer" (else unused).
    splits, split: number and length of the parts of the first inner dim (parts may be empty). scratch: address, aligned
    to 16, for partial accumulators: for each accumulator an area of splits * points 8-byte cells (argmin/argmax: two,
    values then positions), padded to 16 bytes; part s of point p is cell s * points + p. errors: address of two int64,
    zero before a run: site + 1 of a failed check (the first one found) and the failing value. stream: 1 if contiguous
    stores should bypass the cache. Reads and writes: an address, then a stride in elements for each dim of class `s`.
    """

    extents: tuple[int, ...]
    block: int
    splits: int
    split: int
    scratch: int
    errors: int
    stream: int
    params: tuple[int, ...]
    reads: tuple[tuple[int, tuple[int | None, ...]], ...]
    writes: tuple[tuple[int, tuple[int | None, ...]], ...]
    count: int

    @classmethod
    def of(cls, k: Kernel) -> Slots:
        at = k.rank + 6 + k.params
        accesses: list[tuple[int, tuple[int | None, ...]]] = []
        for a in (*k.reads, *k.writes):
            address, at = at, at + 1
            strides: list[int | None] = []
            for s in a.strides:
                strides.append(at if s == "s" else None)
                at += s == "s"
            accesses.append((address, tuple(strides)))
        r = k.rank
        return cls(tuple(range(r)), r, r + 1, r + 2, r + 3, r + 4, r + 5, tuple(range(r + 6, r + 6 + k.params)),
                   tuple(accesses[: len(k.reads)]), tuple(accesses[len(k.reads):]), at)


@dataclass(frozen=True, slots=True)
class View:
    """A strided look at buffer number `buffer`: element offset, and a stride in elements per dim of a space."""

    buffer: int
    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckSite:
    """What a failed check means: which index, into what, at the user's line."""

    message: str  # with {value} and {extent}
    where: str
    extent: int = 0


@dataclass(frozen=True, slots=True)
class Note:
    """What a statement is in the user's program: the result of an op of these operands (statements), at this line.

    Of a reduction `accumulator` is given instead.
    """

    statement: int
    op: str
    args: tuple[int, ...] = ()
    where: str = ""
    accumulator: int | None = None


@dataclass(frozen=True)
class Launch:
    """A kernel with its numbers: one step of a program.

    `reads` and `writes` are in units of the access dtype (a complex buffer seen as floats has doubled strides).
    """

    kernel: Kernel
    extents: tuple[int, ...]
    params: tuple[int, ...]
    reads: tuple[View, ...]
    writes: tuple[View, ...]
    sites: tuple[CheckSite, ...] = ()
    ops: tuple[str, ...] = ()  # op names in order, for people
    source_lines: tuple[str, ...] = ()  # the user's file:line, for people
    name: str = field(default="kernel", compare=False)
    notes: tuple[Note, ...] = field(default=(), compare=False)  # for people: read by `listing.py`

    @property
    def points(self) -> int:
        n = 1
        for e in self.extents[: self.kernel.outer]:
            n *= e
        return n


def items(kernel: Kernel, extents: tuple[int, ...], block: int, splits: int) -> int:
    """How many items a launch has.

    Item number = (row * blocks + b) * splits + s, where row counts the outer dims but the last (in row-major order) and
    b the blocks of the last outer dim for vector == "outer"; for vector == "inner" row counts all outer dims and
    blocks = 1. Of the tile dim TILE at a time count as one.
    """
    n = splits
    last = kernel.outer - 1
    for d in range(kernel.outer):
        at_once = block if d == last and kernel.vector == "outer" else TILE if d == kernel.tile_dim else 1
        n *= -(-extents[d] // at_once)
    return n


def verify(kernel: Kernel) -> None:
    """Check that a kernel is well formed: definitions before uses, dtypes that agree, each write stored."""

    def require(condition: bool, message: str) -> None:
        if not condition:
            raise InternalError(f"malformed kernel: {message}\n{kernel.text}")

    require(kernel.outer >= 1 and (kernel.vector == "outer" or kernel.inner >= 1), "no dim to run vectors along")
    accesses = (*kernel.reads, *kernel.writes)
    for k, a in enumerate(accesses):
        require(len(a.strides) == kernel.rank, "an access has strides for other dims")
        require(a.like is None or (a.like < k and accesses[a.like] == replace(a, like=None, follows=False)),
                "unlike accesses")
        require(a.dtype.kind in "fiub", f"an access of dtype {a.dtype}")
    for k, a in enumerate(kernel.writes):
        before = kernel.writes[k - 1]
        require(not a.follows or (k > 0 and (a.dtype, a.strides) == (before.dtype, before.strides)),
                "a write follows one unlike it")
    first_stage: dict[int, int] = {}
    number = 0
    for k, stage in enumerate(kernel.stages):
        for _ in stage.accumulators:
            first_stage[number] = k
            number += 1
    for i, s in enumerate(kernel.stmts):
        require(s.op in SCALAR_OPS, f"v{i} uses unknown statement {s.op!r}")
        require(all(0 <= a < i for a in s.args), f"v{i} uses a later value")
        kinds = [kernel.stmts[a].dtype for a in s.args]
        match s.op:
            case "load":
                require(s.dtype == kernel.reads[s.attrs[0]].dtype, f"v{i} loads another dtype than its read has")
                require([d.name for d in kinds] in ([], ["int64"], ["int64", "bool"]), f"v{i} has wrong load operands")
            case "coord" | "param":
                require(s.dtype == np.int64 and 0 <= s.attrs[0] < (kernel.rank if s.op == "coord" else kernel.params),
                        f"v{i} is out of range")
            case "carry":
                acc = kernel.accumulators[s.attrs[0]]
                want = np.dtype("int64") if acc.op.startswith("arg") else acc.dtype
                require(s.dtype == want, f"v{i} carries another dtype")
            case "select":
                require(kinds[0].kind == "b" and kinds[1] == kinds[2] == s.dtype, f"v{i} selects among unlike dtypes")
            case "running":
                require(kernel.inner == 1 and all(d == s.dtype for d in kinds), f"v{i} cannot run along a dim")
                require(len(kinds) == 1 + (s.attrs[0] == "recurrence"), f"v{i} has wrong operands")
            case "cast" | "const":
                pass
            case "loop":
                region = s.attrs[0]
                want = [s.dtype for s in region.stmts if s.op == "arg"]
                require(len(kinds) >= region.counted + region.carries and len(region.nexts) == region.carries, f"v{i} "
                        f"has wrong operands for {len(want)} arguments")
                require(region.test is None or region.stmts[region.test].dtype.kind == "b", f"v{i} tests a non-bool")
            case "result":
                loop = kernel.stmts[s.args[0]]
                require(loop.op == "loop" and loop.attrs[0].stmts[loop.attrs[0].nexts[s.attrs[0]]].dtype == s.dtype,
                        f"v{i} is no result of a loop")
            case "check":
                require(kinds[0].kind == "b" and s.dtype.kind == "b", f"v{i} checks a non-bool")
            case "bitcast" | "lookup":
                require(kinds[0].itemsize == s.dtype.itemsize, f"v{i} changes width")
            case _ if s.op in COMPARISONS:
                require(kinds[0] == kinds[1] and s.dtype.kind == "b", f"v{i} compares unlike dtypes")
            case _:
                require(all(d == s.dtype for d in kinds), f"v{i} mixes dtypes")
    plain = not kernel.inner and kernel.outer > 1 and len(kernel.stages) == 1 and not kernel.serial
    require(plain or not kernel.tiled, "tiles, but not of a map")
    require(kernel.interior is None or (len(kernel.stages) == 1 and not kernel.inner and not kernel.serial and
                                        not kernel.tiled), "an interior, but not of a map")
    rows = kernel.inner == 1 and kernel.vector == "inner"
    require(rows or not any(stage.keeps for stage in kernel.stages), "values are kept, but not along a row")
    stored = [s.write for stage in kernel.stages for s in stage.stores]
    require(set(stored) == set(range(len(kernel.writes))), "a write is never stored or unknown")
    for stage in (*kernel.stages, *([] if kernel.interior is None else [kernel.interior])):
        for acc in stage.accumulators:
            known = acc.op in ACCUMULATE and kernel.stmts[acc.value].dtype == acc.dtype
            require(known, "an accumulator of another dtype")
        for store in stage.stores:
            same = kernel.stmts[store.value].dtype == kernel.writes[store.write].dtype
            require(same, f"w{store.write} stores another dtype")
