"""The loops of one kernel along its vector dim, and what is computed where: the lower half of `emit_llvm.py`.

In: a `Kernel` and an empty function. Out: `Nest`, with the level of each statement, scopes that hold what is known at a
place, and the loop that runs over vectors.

The levels from the outside in: 0 the call, 1 a row (the outer dims along which no vectors run), one level for each
inner dim, and last the vector dim. Each statement is computed at the level of the innermost dim it depends on. Vectors
run along the last dim of their group in three parts: some vectors at a time, then one by one under a mask, and, if
results bypass the cache, one masked vector before all that, up to an aligned address.

All stores of one step come after all its loads, so a kernel may write over what it reads at the same place.

Read next: `emit_scalar_llvm.py` (statements and accumulators), `rare.py` (detours).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, TypeAlias

from llvmlite import ir

from tracejit.lower import emit_running_llvm as run_on
from tracejit.lower.emit_loop_llvm import emit_loop, parts_of
from tracejit.lower.emit_scalar_llvm import INT32, INT64, PTR, Emitter, Literal, State, is_vector, literal, scalar_type
from tracejit.lower.kernel import Kernel, Stage, Store
from tracejit.lower.rare import Detour, detours
from tracejit.lower.scalar import F16, I64, Stmt, behind

Values: TypeAlias = list[ir.Value]
Maybe: TypeAlias = "ir.Value | None"
Step: TypeAlias = Callable[[ir.Value, Values], tuple[ir.Value, Values]]  # (i, state) -> (next i, next state)
MOST_LANES = 128  # a tail's mask counts in bytes
AHEAD = 1024  # bytes from what a masked load reads to what it asks for
SPREAD = ("2", "3", "4")  # strides along the vectors that whole vectors are picked apart for
Piece: TypeAlias = Callable[["Scope", ir.Value, ir.Value, Values], Values]  # (scope, low, high, state) -> next state
Range: TypeAlias = Callable[[ir.Value, ir.Value], None]  # (low, high)
Body: TypeAlias = Callable[[Values, Maybe, Values, Maybe], Values]  # (positions, mask, state, stream) -> next state

# Rough work of a statement, where it is not 1.
WEIGHTS = {"const": 0, "coord": 0, "carry": 0, "div": 4, "sqrt": 4, "quot": 16, "rem": 16, "loop": 100}


def lanes_of(kernel: Kernel, vector_bytes: int) -> tuple[int, int]:
    """Elements per vector: what fits of the dtype that most statements have, times the parts that loops cut it into.
    Scatters go one by one."""
    parts = [parts_of(s.attrs[0], s.attrs[1], vector_bytes) for s in kernel.stmts if s.op == "loop"]
    if kernel.serial or 0 in parts:
        return 1, 1
    sizes: dict[int, int] = {}
    wanted = [i for stage in kernel.stages for i in stage.roots]
    usual = [i for i in detours(kernel.stmts, range(len(kernel.stmts)), wanted) if not isinstance(i, Detour)]
    stmts = [kernel.stmts[i] for i in usual]
    for s in stmts:
        stmts += s.attrs[0].stmts if s.op == "loop" else ()
    dtypes = [s.dtype for s in stmts if s.op not in ("const", "param", "coord", "loop")]
    numbers = [d for d in dtypes if d.kind != "b"] or dtypes
    results = [w.dtype for w in kernel.writes] + [a.dtype for a in kernel.accumulators]
    for d in [*numbers, *(d for d in results if d.kind != "b")]:
        size = 4 if d == F16 else d.itemsize
        sizes[size] = sizes.get(size, 0) + 1
    best = max(sizes, key=lambda size: (sizes[size], size)) if sizes else 4
    lanes = vector_bytes // best
    together = min(max(parts, default=1), MOST_LANES // lanes)
    return lanes * together, together


@dataclass
class Scope:
    """What is known at a point of the code: coordinates, values of statements, and where each access points to."""

    coords: dict[int, ir.Value] = field(default_factory=dict)
    values: dict[int, ir.Value] = field(default_factory=dict)
    pointers: dict[int, ir.Value] = field(default_factory=dict)
    position: Maybe = None  # coordinate of lane 0 along the vector dim, inside the vector loop
    mask: Maybe = None

    def child(self, **changes: Any) -> Scope:
        changes |= {"coords": dict(self.coords), "values": dict(self.values), "pointers": dict(self.pointers)}
        return replace(self, **changes)


@dataclass(frozen=True)
class Work:
    """A stage with its needed statements by level, and the accesses they touch."""

    stage: Stage
    levels: tuple[tuple[int, ...], ...]
    vectors: tuple[int | Detour, ...]  # the last level, with what is rarely needed set apart
    accesses: tuple[int, ...]
    cost: float
    known: tuple[int, ...] = ()  # what is read back from where an earlier loop put it


NOTHING = Work(Stage(True), (), (), (), 0.0)


class Nest:
    """A kernel's function in the making. `read_slots` has to come before anything that computes."""

    def __init__(self, function: ir.Function, kernel: Kernel, vector_bytes: int, fastmath: bool):
        self.k = kernel
        self.f = function
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        self.width = vector_bytes
        self.lanes, parts = lanes_of(kernel, vector_bytes)
        self.e = Emitter(self.b, self.lanes, fastmath, vector_bytes if "x86" in function.module.triple else 0, parts)
        self.vdim = kernel.vector_dim
        self.columns = kernel.vector == "outer"
        self.accesses = (*kernel.reads, *kernel.writes)
        self.inner_dims = range(kernel.outer, kernel.rank)
        self.row_dims = range(kernel.outer - 1 if self.columns else kernel.outer)
        self.loop_dims = list(self.inner_dims) if self.columns else list(self.inner_dims)[:-1]
        self.vector_level = 2 + len(self.loop_dims)
        self.level_of_dim = {d: 1 for d in self.row_dims}
        self.level_of_dim.update({d: 2 + i for i, d in enumerate(self.loop_dims)})
        self.level_of_dim[self.vdim] = self.vector_level
        self.depends = self._dependencies()
        self.slopes = self._slopes()
        self.splittable = kernel.splittable and kernel.inner > 0
        self.results: dict[int, State] = {}  # rows: finished accumulators
        self.arrays: dict[int, Values] = {}  # columns: their chunk on the stack
        self.kept: dict[int, ir.Value] = {}  # rows: the scratch of each statement that a stage keeps
        self.before: dict[int, ir.Value] = {}  # what each running statement gave at the element (rows: vector) before
        self.place: Maybe = None  # of each lane in its own row, where vectors hold whole rows
        self.streams = False  # whether some store may bypass the cache

    # ---- analysis

    def _dependencies(self) -> list[frozenset[int]]:
        """The dims that each statement depends on."""
        found: list[frozenset[int]] = []
        for s in self.k.stmts:
            dims = frozenset().union(*(found[a] for a in s.args))
            if s.op == "coord":
                dims |= {s.attrs[0]}
            elif s.op == "load":
                dims |= {d for d, stride in enumerate(self.k.reads[s.attrs[0]].strides) if stride != "0"}
            elif s.op == "carry":
                dims |= set(range(self.k.outer))
            elif s.op == "running":
                dims |= {self.vdim, *self.inner_dims}
            found.append(dims)
        return found

    def _slopes(self) -> list[int | None]:
        """How much the value of each statement grows from one lane to the next; None: unevenly, or nobody asks."""
        found: list[int | None] = []
        for s, dims in zip(self.k.stmts, self.depends, strict=True):
            slope: int | None = None
            known = [k for k in (found[a] for a in s.args) if k is not None]
            if self.vdim not in dims:
                slope = 0
            elif s.op == "coord":
                slope = 1
            elif s.dtype == I64 and s.op in ("add", "sub", "neg") and len(known) == len(s.args):
                slope = {"add": sum(known), "sub": known[0] - known[-1], "neg": -known[0]}[s.op]
            found.append(slope)
        return found

    def level(self, i: int) -> int:
        return max((self.level_of_dim[d] for d in self.depends[i]), default=0)

    def closure(self, roots: Iterable[int], known: Iterable[int] = ()) -> list[int]:
        """The statements that `roots` need, in order, except what is behind `known` ones."""
        return behind(self.k.stmts, roots, set(known))

    def work(self, stage: Stage, known: Iterable[int] = (), roots: Sequence[int] | None = None) -> Work:
        wanted = stage.roots if roots is None else roots
        needed = self.closure(wanted, known)
        levels: list[list[int]] = [[] for _ in range(self.vector_level + 1)]
        for i in needed:
            levels[self.level(i)].append(i)
        accesses = {self.k.stmts[i].attrs[0] for i in needed if self.k.stmts[i].op == "load"}
        if roots is None:
            accesses |= {len(self.k.reads) + s.write for s in stage.stores}
        vectors = detours(self.k.stmts, levels[self.vector_level], wanted)
        cost = float(len(stage.stores))
        for i in (i for item in vectors for i in (item.selects if isinstance(item, Detour) else (item,))):
            s = self.k.stmts[i]
            weight = WEIGHTS.get(s.op, 1)
            if s.op == "load" and (s.args or self.accesses[s.attrs[0]].strides[self.vdim] == "s"):
                weight = 8
            cost += weight * max(1.0, s.dtype.itemsize * self.lanes / self.width)
        used = {a for i in needed for a in self.k.stmts[i].args}.union(wanted)
        behind = tuple(i for i in known if i in used)
        return Work(stage, tuple(map(tuple, levels)), tuple(vectors), tuple(sorted(accesses)), cost, behind)

    def read_slots(self) -> Scope:
        """Load all numbers of the launch; gives the scope of the call."""
        b, slots = self.b, self.k.slots
        self.extents = [self.slot(i) for i in slots.extents]
        self.params = [self.slot(i) for i in slots.params]
        self.stream = b.icmp_signed("!=", self.slot(slots.stream), self.num(0))
        self.errors = b.inttoptr(self.slot(slots.errors), PTR)
        self.strides: list[Values] = []
        scope = Scope()
        places = zip((*slots.reads, *slots.writes), self.accesses, strict=True)
        for number, ((address, strides), access) in enumerate(places):
            scope.pointers[number] = b.inttoptr(self.slot(address), PTR)
            self.strides.append([self.num(int(c)) if at is None else self.slot(at)
                                 for c, at in zip(access.strides, strides, strict=True)])
        return scope

    # ---- small tools

    def num(self, value: int) -> ir.Value:
        return literal(value, INT64)

    def less(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.b.icmp_signed("<", x, y)

    def minimum(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.b.select(self.less(x, y), x, y)

    def slot(self, number: int) -> ir.Value:
        return self.b.load(self.b.gep(self.f.args[0], [self.num(number)], source_etype=INT64), typ=INT64, align=8)

    def loop(self, start: ir.Value, stop: ir.Value, state: Values,
             body: Step,
             op: str = "<") -> tuple[ir.Value, Values]:
        """`while i < stop`: `body(i, state)` gives the next of both. Returns the last."""
        b = self.b
        before, inside, after = b.block, b.append_basic_block(), b.append_basic_block()
        b.cbranch(b.icmp_signed(op, start, stop), inside, after)
        b.position_at_end(inside)
        first = (start, *state)
        phis = [b.phi(v.type) for v in first]
        following, news = body(phis[0], list(phis[1:]))
        end = b.block
        b.cbranch(b.icmp_signed(op, following, stop), inside, after)
        b.position_at_end(after)
        last = [b.phi(v.type) for v in first]
        for phi, final, v, w in zip(phis, last, first, (following, *news), strict=True):
            phi.add_incoming(v, before)
            phi.add_incoming(w, end)
            final.add_incoming(v, before)
            final.add_incoming(w, end)
        return last[0], list(last[1:])

    @contextmanager
    def when(self, condition: ir.Value) -> Any:
        """Code that runs if the condition holds. `merge(values, otherwise)` after it gives values from both ways."""
        b = self.b
        before, inside, after = b.block, b.append_basic_block(), b.append_basic_block()
        b.cbranch(condition, inside, after)
        b.position_at_end(inside)
        exits: list[ir.Block] = []

        def merge(values: Values, otherwise: Values) -> Values:
            phis = [b.phi(v.type) for v in values]
            for phi, v, w in zip(phis, values, otherwise, strict=True):
                phi.add_incoming(v, exits[0])
                phi.add_incoming(w, before)
            return phis

        yield merge
        exits.append(b.block)
        b.branch(after)
        b.position_at_end(after)

    # ---- statements in their scopes

    def enter(self, outer: Scope, work: Work, level: int, coords: dict[int, ir.Value] | None = None,
               number: int = 0) -> Scope:
        """The scope of a level inside `outer`: `coords` become known, and so do the level's statements."""
        scope = outer.child()
        if coords:
            scope.coords.update(coords)
        else:
            coords = {d: outer.coords[d] for d in self.row_dims}
        self.advance_pointers(scope, work.accesses, coords)
        for i in work.levels[level]:
            scope.values[i] = self.statement(i, scope)
        return scope

    def advance_pointers(self, scope: Scope, accesses: Iterable[int], coords: dict[int, ir.Value]) -> None:
        """Move pointers to coordinates; the distance is computed once for accesses that go alike."""
        moves: dict[int, Maybe] = {}
        for access in accesses:
            like, dtype = self.accesses[access].like, self.accesses[access].dtype
            first = access if like is None else like
            if first not in moves:
                moves[first] = self._distance(access, coords)
            if (move := moves[first]) is not None:
                scope.pointers[access] = self.e.at(scope.pointers[access], move, dtype)

    def _distance(self, access: int, coords: dict[int, ir.Value]) -> Maybe:
        """How many elements an access is at coordinates from where it is at 0."""
        found: Maybe = None
        for d, at in coords.items():
            stride = self.accesses[access].strides[d]
            if stride != "0":
                offset = at if stride == "1" else self.b.mul(at, self.strides[access][d])
                found = offset if found is None else self.b.add(found, offset)
        return found

    def vector(self, outer: Scope, work: Work, position: ir.Value, mask: Maybe, number: int = 0,
                low: Maybe = None, known: dict[int, ir.Value] | None = None) -> Scope:
        """The scope of one vector at `position`, with the values of all its statements."""
        return self.vectors(outer, work, [position], mask, number, low, [known or {}])[0]

    def vectors(self, outer: Scope, work: Work, positions: Values, mask: Maybe, number: int = 0, low: Maybe = None,
                known: Sequence[dict[int, ir.Value]] | None = None) -> list[Scope]:
        """As `vector` for some positions at once, statement by statement: each hides the long chains of the others."""
        scopes = []
        for n, position in enumerate(positions):
            scope = outer.child(position=position, mask=mask)
            self.advance_pointers(scope, work.accesses, {self.vdim: position})
            scope.values.update(known[n] if known else {})
            scopes.append(scope)
        for i in work.vectors:
            if isinstance(i, Detour):
                self._detour(i, scopes)
                continue
            for scope, position in zip(scopes, positions, strict=True):
                if i in scope.values:
                    pass
                elif self.k.stmts[i].op == "carry" and self.columns:
                    scope.values[i] = self._carry_vector(self.k.stmts[i].attrs[0], position, low)
                else:
                    scope.values[i] = self.statement(i, scope)
        return scopes

    def _detour(self, detour: Detour, scopes: Sequence[Scope]) -> None:
        """Selects on a rare condition: a branch around their slow side, for some vectors at once. That side is a
        function of its own."""
        b, stmts = self.b, self.k.stmts
        fast = [[self.e.splat(scope.values[stmts[i].args[2]]) for i in detour.selects] for scope in scopes]
        before, slow, join = b.block, b.append_basic_block(), b.append_basic_block()
        conditions = [scope.values[detour.cond] for scope in scopes]
        b.cbranch(self.e.any_lane(reduce(b.or_, conditions)), slow, join).set_weights([1, 1000])
        b.position_at_end(slow)
        wanted = list(dict.fromkeys(a for i in detour.selects if (a := stmts[i].args[1]) in detour.slow))
        chosen = []
        for scope in scopes:
            inside = scope.child()
            inside.values.update(zip(wanted, self._apart(detour.slow, wanted, scope), strict=True))
            chosen.append([self.e.splat(self.statement(i, inside)) for i in detour.selects])
        b.branch(join)
        b.position_at_end(join)
        for scope, usual, special in zip(scopes, fast, chosen, strict=True):
            for i, x, y in zip(detour.selects, usual, special, strict=True):
                scope.values[i] = b.phi(y.type)
                scope.values[i].add_incoming(x, before)
                scope.values[i].add_incoming(y, slow)

    def _apart(self, slow: Sequence[int], wanted: Sequence[int], scope: Scope) -> Values:
        """The values of the statements `wanted` among `slow`, by a call: what hardly ever runs is compiled once for
        each module, not once for each vector of a step."""
        b, e, stmts = self.b, self.e, self.k.stmts
        outside = dict.fromkeys(a for i in slow for a in stmts[i].args if a not in slow)
        given = {i: scope.values[i] for i in outside if not isinstance(scope.values[i], Literal)}
        mask = scope.mask if any(stmts[i].op in ("quot", "rem") for i in slow) else None
        passed = [*given.values(), *([] if mask is None else [mask])]

        # The same statements on operands of the same types are the same function.
        numbers = {i: n for n, i in enumerate((*given, *slow))}
        texts = {i: scope.values[i].get_reference() for i in outside if i not in given}
        lines = [(s.op, str(s.dtype), s.attrs, [(numbers.get(a, texts.get(a)), str(stmts[a].dtype)) for a in s.args])
                 for s in (stmts[i] for i in slow)]
        whole = repr((lines, [numbers[i] for i in wanted], [str(v.type) for v in passed], mask is None, e.lanes))
        name = f"rarely.{hashlib.sha256(whole.encode()).hexdigest()[:24]}"

        function = b.module.globals.get(name)
        if function is None:
            results = ir.LiteralStructType([e.vector(scalar_type(stmts[i].dtype)) for i in wanted])
            function = ir.Function(b.module, ir.FunctionType(results, [v.type for v in passed]), name)
            function.linkage = "internal"
            for attribute in ("nounwind", "noinline", "cold"):
                function.attributes.add(attribute)
            if e.x86:  # it saves what it changes: the loops around calls keep their vector registers
                set.add(function.attributes, '"no_caller_saved_registers"')  # llvmlite knows no such attribute
            self.b = ir.IRBuilder(function.append_basic_block())
            self.e = Emitter(self.b, e.lanes, e.fastmath, e.x86, e.parts)
            inside = Scope(mask=None if mask is None else function.args[-1])
            inside.values.update({i: scope.values[i] for i in texts} | dict(zip(given, function.args)))
            for i in slow:
                inside.values[i] = self.statement(i, inside)
            found: ir.Value = Literal(results, "poison")
            for n, i in enumerate(wanted):
                found = self.b.insert_value(found, self.e.splat(inside.values[i]), n)
            self.b.ret(found)
            self.b, self.e = b, e
        found = b.call(function, passed)
        return [b.extract_value(found, n) for n in range(len(wanted))]

    def _carry_vector(self, n: int, position: ir.Value, low: Maybe) -> ir.Value:
        a = self.k.accumulators[n]
        offset = self.b.sub(position, low)
        found = []
        for array, d in zip(self.arrays[n], self.e.state_dtypes(a), strict=True):
            found.append(self.e.load(self.e.at(array, offset, d), d, None))
        return self.e.carry(a, found)

    def statement(self, i: int, scope: Scope) -> ir.Value:
        """Emit statement `i` here."""
        s = self.k.stmts[i]
        args = [scope.values[a] for a in s.args]
        vector = self.level(i) == self.vector_level and self.lanes > 1
        match s.op:
            case "param":
                return self.params[s.attrs[0]]
            case "coord":
                d = s.attrs[0]
                if d != self.vdim or scope.position is None:
                    return scope.coords[d]
                return self.b.add(self.e.splat(scope.position), self.e.iota(INT64)) if vector else scope.position
            case "carry":
                return self.e.carry(self.k.accumulators[s.attrs[0]], self.results[s.attrs[0]])
            case "load":
                return self.load(s, args, scope, vector)
            case "loop":
                return emit_loop(self.e, s.attrs[0], args, scope.mask)
            case "result":
                return args[0][s.attrs[0]]  # a loop gives a list
            case "check":
                self.check(s, args, scope)
                return args[0]
            case "running":
                args = [self.e.splat(a) for a in args]
                if self.place is not None:
                    return run_on.rows(self.e, s, args, self.place)
                turn = run_on.columns if self.columns else run_on.row
                value, self.before[i] = turn(self.e, s, self.before[i], args, scope.mask)
                return value
        source = self.k.stmts[s.args[0]].dtype if s.args else s.dtype
        return self.e.statement(s, args, source, scope.mask)

    def load(self, s: Stmt, args: Values, scope: Scope, vector: bool) -> ir.Value:
        access = s.attrs[0]
        pointer, stride, dtype = scope.pointers[access], self.accesses[access].strides[self.vdim], s.dtype
        mask = args[1] if len(args) == 2 else None
        if not vector:
            if args:
                pointer = self.e.at(pointer, args[0], dtype)
            return self.e.load_scalar(pointer, dtype, mask)
        moved = args[0] if args else None
        if moved is not None and not is_vector(moved):  # the same for all lanes: still a walk along the access
            pointer, moved = self.e.at(pointer, moved, dtype), None
        if stride == "-1" and moved is None:
            pointer = self.e.at(pointer, self.num(1 - self.lanes), dtype)
        if mask is not None and moved is None and stride in ("1", "-1"):
            # An address far outside costs dear even where no lane is on.
            pointer = self.b.select(self.e.any_lane(mask), pointer, self.e.zeros())
            mask = mask if is_vector(mask) else None
        mask = self.e.and_mask(scope.mask, mask)
        if mask is not None:
            mask = self.e.splat(mask)
        if moved is None:
            if stride == "1":
                if mask is not None and len(args) < 2:  # processors look ahead of whole vectors only
                    self.e.prefetch(self.e.at(pointer, self.num(AHEAD // dtype.itemsize), dtype), level=2)
                return self.e.load(pointer, dtype, mask)
            if stride == "-1":
                return self.e.reversed(self.e.load(pointer, dtype, None if mask is None else self.e.reversed(mask)))
            if stride in SPREAD and mask is None:
                return self.e.load_spread(pointer, dtype, int(stride))
        index = self._lane_offsets(access)
        if moved is not None:
            index = moved if index is None else self.b.add(moved, index)
        if index is None:  # one element for all lanes, if any wants it
            return self.e.splat(self.e.load_scalar(pointer, dtype, None if mask is None else self.e.any_lane(mask)))
        return self.e.gather(pointer, index, dtype, mask)

    def _lane_offsets(self, access: int) -> Maybe:
        """Offsets of the lanes of an access from its lane 0 (None: no offsets)."""
        stride = self.accesses[access].strides[self.vdim]
        if stride == "0":
            return None
        return self.b.mul(self.e.iota(INT64), self.e.splat(self.strides[access][self.vdim]))

    def check(self, s: Stmt, args: Values, scope: Scope) -> None:
        """If a lane that is on fails, and is the first failure noted, note site and value."""
        b = self.b
        ok, value = args
        if is_vector(ok) or is_vector(value):
            ok, value = self.e.splat(ok), self.e.splat(value)
        bad = b.xor(ok, literal(True, ok.type))
        if scope.mask is not None:
            bad = b.and_(bad, scope.mask if is_vector(bad) else self.e.any_lane(scope.mask))
        with self.when(self.e.any_lane(bad)):
            if is_vector(bad):
                word = ir.IntType(self.lanes)
                lane = self.e.intrinsic("cttz", [b.bitcast(bad, word), literal(0, ir.IntType(1))])
                lane = b.trunc(lane, INT32) if self.lanes > 32 else b.zext(lane, INT32) if self.lanes < 32 else lane
                value = b.extract_element(value, lane)
            source = self.k.stmts[s.args[1]].dtype
            value = self.e.cast(value, I64, source)
            old = b.cmpxchg(self.errors, self.num(0), self.num(s.attrs[0] + 1), "monotonic", "monotonic")
            with self.when(b.extract_value(old, 1)):
                b.store(value, b.gep(self.errors, [self.num(1)], source_etype=INT64), align=8)

    # ---- guards

    def pieces(self, scope: Scope, work: Work, low: ir.Value, high: ir.Value, state: Values, run: Piece) -> Values:
        """`run(scope, low, high, state)` over [low, high), cut where a guard along the vectors (the border of a pad,
        the joint of a concat) flips: within a piece each is the same for all lanes, so that nothing needs a mask."""
        b = self.b
        flips = [(i, *self._flip(i, scope)) for i in work.levels[self.vector_level] if self._is_guard(i)]
        if not flips:
            return run(scope, low, high, state)

        def piece(start: ir.Value, state: Values) -> tuple[ir.Value, Values]:
            inside, stop = scope.child(), high
            for i, at, first in flips:
                before = self.less(start, at)
                inside.values[i] = before if first else b.not_(before)
                stop = b.select(b.and_(before, self.less(at, stop)), at, stop)
            for i in work.levels[self.vector_level]:
                s = self.k.stmts[i]
                if s.op in ("and", "or", "xor", "not") and s.dtype.kind == "b" and set(s.args) <= inside.values.keys():
                    inside.values[i] = self.statement(i, inside)
            return stop, run(inside, start, stop, state)

        return self.loop(low, high, state, piece)[1]

    def with_borders(self, scope: Scope, low: ir.Value, high: ir.Value, border: Range, inside: Range) -> None:
        """[low, high) of a row: whole vectors where each guard is as usual by `inside`, the rest by `border`."""
        b, zero, n = self.b, self.num(0), self.num(self.lanes)
        row, first, last = scope.child(), low, high
        plain = literal(True, ir.IntType(1))
        for i, usual in self.k.usual:
            if self.level(i) == self.vector_level:
                at, before = self._flip(i, scope)
                if before == usual:
                    last = self.minimum(last, at)
                else:
                    first = b.select(self.less(first, at), at, first)
            else:
                for needed in self.closure([i], row.values):
                    row.values[needed] = self.statement(needed, row)
                plain = b.and_(plain, row.values[i] if usual else b.not_(row.values[i]))
        skipped = b.sub(b.add(b.sub(first, low), n), self.num(1))
        first = b.add(low, b.sub(skipped, b.srem(skipped, n)))
        last = b.sub(last, b.srem(b.sub(last, low), n))
        some = b.and_(plain, self.less(first, last))
        first, last = b.select(some, first, low), b.select(some, last, low)

        def side(number: ir.Value, _: Values) -> tuple[ir.Value, Values]:  # the borders before and after are one code
            before = b.icmp_signed("==", number, zero)
            start, stop = b.select(before, low, last), b.select(before, first, high)
            with self.when(self.less(start, stop)):
                border(start, stop)
            with self.when(b.and_(before, some)):
                inside(first, last)
            return b.add(number, self.num(1)), []

        self.loop(zero, self.num(2), [], side)

    def _is_guard(self, i: int) -> bool:
        """Whether statement `i` compares whole numbers that drift apart by one from lane to lane."""
        s = self.k.stmts[i]
        if s.op not in ("lt", "le") or self.lanes == 1:
            return False
        x, y = (self.slopes[a] for a in s.args)
        return x is not None and y is not None and abs(x - y) == 1

    def _flip(self, i: int, scope: Scope) -> tuple[ir.Value, bool]:
        """The position where a guard flips, and what it is before."""
        s, outside = self.k.stmts[i], scope.child()
        outside.coords[self.vdim] = self.num(0)
        for n in self.closure(s.args, scope.values):
            outside.values[n] = self.statement(n, outside)
        x, y = (outside.values[a] for a in s.args)
        a, b = (self.slopes[arg] or 0 for arg in s.args)
        falls = a < b  # then so does x - y: false before, true after
        at = self.b.sub(x, y) if falls else self.b.sub(y, x)
        if falls == (s.op == "lt"):
            at = self.b.add(at, self.num(1))
        return at, not falls

    # ---- stores

    def store_all(self, work: Work, scopes: list[Scope], stream: Maybe) -> None:
        """The stores of a stage for some steps, after all their loads."""
        stores = self._in_turn(work.stage)
        adjacent = [s for s, *_ in stores if self._adjacent(s)] if stream is not None else []
        if adjacent:
            b = self.b
            past, through, after = b.append_basic_block(), b.append_basic_block(), b.append_basic_block()
            b.cbranch(stream, past, through)
            for block in (past, through):
                b.position_at_end(block)
                for scope in scopes:
                    for s in adjacent:
                        self.store(s, scope, streaming=block is past)
                b.branch(after)
            b.position_at_end(after)
        for scope in scopes:
            for s, *more in stores:
                if more and scope.mask is None and scope.position is not None:
                    access = len(self.k.reads) + s.write
                    values = [scope.values[t.value] for t in (s, *more)]
                    self.e.store_in_turn(values, scope.pointers[access], self.accesses[access].dtype)
                elif s not in adjacent:
                    for one in (s, *more):
                        self.store(one, scope)

    def _in_turn(self, stage: Stage) -> list[list[Store]]:
        """The stores of a stage, those together that fill memory in turn (the parts of complex numbers)."""
        found: list[list[Store]] = []
        for s in stage.stores:
            access, line = self.k.writes[s.write], found[-1] if found else [s]
            plain = all(t.mask is None and t.offset is None and t.mode == "set" for t in (s, line[-1]))
            if access.follows and line[-1].write == s.write - 1 and plain and self.lanes > 1:
                line.append(s)
            else:
                found.append([s])
        whole = [line for line in found if self.k.writes[line[0].write].strides[self.vdim] == str(len(line))]
        return [part for line in found for part in ([line] if line in whole else [[s] for s in line])]

    def store(self, s: Store, scope: Scope, streaming: bool = False) -> None:
        access = len(self.k.reads) + s.write
        dtype, stride = self.accesses[access].dtype, self.accesses[access].strides[self.vdim]
        pointer, value = scope.pointers[access], scope.values[s.value]
        mask = None if s.mask is None else scope.values[s.mask]
        if self.lanes == 1 or scope.position is None:
            if s.offset is not None:
                pointer = self.e.at(pointer, scope.values[s.offset], dtype)
            if s.mode != "set":
                old = self.e.load_scalar(pointer, dtype, mask)
                value = self.e.statement(Stmt(s.mode, dtype), [old, value], dtype)
            self.e.store_scalar(value, pointer, dtype, mask)
            return
        mask = self.e.and_mask(scope.mask, mask)
        if streaming:
            self.e.store_streaming(value, pointer, dtype, min(self.width, self.lanes * dtype.itemsize))
        elif stride == "1":
            self.e.store(value, pointer, dtype, mask)
        elif stride == "-1":
            pointer = self.e.at(pointer, self.num(1 - self.lanes), dtype)
            back = self.e.reversed(self.e.splat(value))
            self.e.store(back, pointer, dtype, None if mask is None else self.e.reversed(self.e.splat(mask)))
        elif stride in SPREAD and mask is None:
            self.e.store_spread(value, pointer, dtype, int(stride))
        else:
            index = self._lane_offsets(access)
            self.e.scatter(value, pointer, self.e.splat(self.num(0)) if index is None else index, dtype, mask)

    def _streamed(self, work: Work) -> list[tuple[int, int, int]]:
        """Stores that may bypass the cache: (access, element size, alignment)."""
        found = []
        for s in work.stage.stores:
            access = len(self.k.reads) + s.write
            dtype = self.accesses[access].dtype
            if self._adjacent(s):
                found.append((access, dtype.itemsize, min(self.width, self.lanes * dtype.itemsize)))
        return found

    def _adjacent(self, s: Store) -> bool:
        """Whether a store writes whole vectors of adjacent elements."""
        return self.k.writes[s.write].strides[self.vdim] == "1" and s.mask is None and self.lanes > 1

    def run(self, scope: Scope, work: Work, low: ir.Value, high: ir.Value, unroll: int, state: Values,
             body: Body) -> Values:
        """Run along the vector dim: `body(positions, mask, state, stream)` for vectors that cover [low, high).

        unroll: vectors in one step of the main loop; 0 for no main loop, all vectors masked.
        """
        b, lanes = self.b, self.lanes
        unroll = 1 if lanes == 1 else unroll
        wide, narrow = self.num(lanes * unroll), self.num(lanes)

        def many(stream: Maybe) -> Step:
            def step(i: ir.Value, state: Values) -> tuple[ir.Value, Values]:
                positions = [i, *(b.add(i, self.num(u * lanes)) for u in range(1, unroll))]
                return b.add(i, wide), body(positions, None, state, stream)

            return step

        def masked(stop: ir.Value) -> Step:
            def step(i: ir.Value, state: Values) -> tuple[ir.Value, Values]:
                return b.add(i, narrow), body([i], self.e.tail_mask(b.sub(stop, i)), state, None)

            return step

        if lanes == 1:
            wide, unroll = narrow, 1
            return self.loop(low, high, state, many(None))[1]
        if unroll == 0:
            return self.loop(low, high, state, masked(high))[1]
        full = b.sub(high, wide)
        streamed = self._streamed(work)
        if not streamed:
            i, state = self.loop(low, full, state, many(None), "<=")
            return self.loop(i, high, state, masked(high))[1]

        # With streaming: the masked loop comes before and after the main one, in one piece of code. What goes on from
        # vector to vector (sums) begins at `low` wherever that is: its bits do not depend on addresses.
        self.streams = True
        head = low
        aligned = self.stream
        offset: Maybe = None
        for n, (access, size, align) in enumerate(streamed):
            address = b.ptrtoint(self.e.at(scope.pointers[access], low, self.accesses[access].dtype), INT64)
            if n == 0:
                behind = b.and_(b.sub(self.num(0), address), self.num(align - 1))
                offset = self.num(0) if state else b.sdiv(behind, self.num(size))
                head = self.minimum(b.add(low, b.select(self.stream, offset, self.num(0))), high)
            start = b.add(address, b.mul(offset, self.num(size)))
            exact = b.icmp_signed("==", b.and_(start, self.num(align - 1)), self.num(0))
            aligned = b.and_(aligned, exact)
        before, edge, main, after = b.block, b.append_basic_block(), b.append_basic_block(), b.append_basic_block()
        b.branch(edge)
        b.position_at_end(edge)
        phis = [b.phi(v.type) for v in (low, head, *state)]
        for phi, v in zip(phis, (low, head, *state), strict=True):
            phi.add_incoming(v, before)
        i, stop, *carried = phis
        _, done = self.loop(i, stop, carried, masked(stop))
        b.cbranch(b.icmp_signed("==", stop, high), after, main)
        b.position_at_end(main)
        i, carried = self.loop(stop, full, done, many(aligned), "<=")
        for phi, v in zip(phis, (i, high, *carried), strict=True):
            phi.add_incoming(v, b.block)
        b.branch(edge)
        b.position_at_end(after)
        return done
