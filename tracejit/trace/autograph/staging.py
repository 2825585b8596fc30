"""Branches and loops of Python code, traced: what `operators.py` does when a condition is known only at run time.

In: the functions that hold the bodies, and the places (variables, attributes, containers) they may change. Out: one
`cond`, `while_loop` or `scan` op in the present trace, and places that hold its results.

Every body is traced once where types allow (a loop again when a Python number turns out to change, or a dtype to grow).
Between bodies the places are put back, so each starts from the same state, as at run time.

Read next: `ops/bodies.py` (`Region`), `operators.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.errors import StagingError, TraceJitError
from tracejit.ir import INPUT, Node, Type, has_effects
from tracejit.ops import core
from tracejit.ops.bodies import Region, Slot, rebind_all, same_value, single, together, union
from tracejit.ops.regions import COND, SCAN, WHILE
from tracejit.tensor import Number, Tensor, apply, recording
from tracejit.trace.autograph.places import Contents, Facts, Place, Surroundings, places_of
from tracejit.trace.autograph.raising import guards, last_raise, leave, raise_later, refused
from tracejit.trace.autograph.values import RAISED, UNSET, Outcome, Undefined
from tracejit.trees import flatten, leaf_names, unflatten

ATTEMPTS = 10  # traces of a loop body until its carries are known
FILL = object()  # in a pair: this branch has no value there, and none is needed
Body = Callable[[], "Outcome | None"]


# -- one body
class Part:
    """A body, traced: what it did, and what the places held at its end."""

    def __init__(self, name: str, places: Sequence[Place], around: Surroundings | None = None):
        self.region = Region(name)
        self.places = places
        self.around = around
        self.unforeseen: list[Place] = []  # what else it changed: the body must be traced anew with these among places
        self.before = [p.get() for p in places]
        self.after: list[Any] = []
        self.outcome = Outcome()

    def run(self, f: Callable[[], Outcome | None], facts: Facts) -> None:
        trace = self.region.trace
        try:
            with recording(trace):
                try:
                    self.outcome = f() or Outcome()
                except Exception as error:
                    if isinstance(error, TraceJitError | RecursionError):
                        raise
                    last_raise.latest = None
                    if guards.catch(type(error)):
                        raise refused(type(error).__name__, facts.where) from error
                    raise_later(leave(error, facts.where))
                    self.outcome = RAISED
                self.after = [p.get() for p in self.places]
        finally:
            self.region.written = trace.close()
            for p, value in zip(self.places, self.before, strict=True):
                p.set(value)
            if self.around is not None:
                self.unforeseen = self.around.changed()

    def now(self, x: Any) -> Any:
        """A leaf as it was at the end: a handle from outside may have been written."""
        if isinstance(x, Tensor):
            for h, value in self.region.written:
                if h is x:
                    return value
        return x

    def made_here(self, x: Any) -> bool:
        """Whether a leaf is known inside this body only."""
        return isinstance(x, Tensor) and (self.now(x) is not x or x._value in self.region.trace.own)

    def tensor(self, x: Any, type: Type) -> Tensor:
        """A leaf as an output of the body."""
        with recording(self.region.trace):
            if x is FILL:
                return core.full(0, type.shape, type.dtype)
            return self.region.trace.read(Slot.of(self.now(x), "").tensor(type.dtype))  # type: ignore[no-any-return]

    @property
    def has_effects(self) -> bool:
        return any(has_effects(n) for n in self.region.trace.nodes)


def described(x: Any) -> str:
    """A value in words."""
    if x is UNSET:
        return "nothing"
    if isinstance(x, list | tuple | dict | set):
        return f"a {type(x).__name__} of {len(x)}"
    return str(Slot.of(x, ""))


# -- if
class _Join:
    """What comes out of two branches: equal Python values stay, others become results of the op."""

    def __init__(self, yes: Part, no: Part, facts: Facts):
        self.yes, self.no, self.facts = yes, no, facts
        self.pairs: list[tuple[Any, Any, Type]] = []
        self.results: list[Tensor] = []

    def tree(self, name: str, a: Any, b: Any, needed_a: bool = True, needed_b: bool = True) -> Callable[[], Any]:
        """How the joint value is made once there are results."""
        if a is b:
            return lambda: a
        if not needed_a or not needed_b:
            keep, branch = (b, self.no) if needed_b else (a, self.yes)
            if keep is UNSET or type(keep) is Undefined:
                return lambda: keep
            leaves, spec = flatten(keep)
            one = [self._only(x, branch) for x in leaves]
            return lambda: unflatten(spec, [m() for m in one])
        if type(a) is Undefined or type(b) is Undefined:
            return lambda: a if type(a) is Undefined else b
        if a is UNSET or b is UNSET:
            return self._undefined(
                name,
                f"it has a value in only one branch of the if at {self.facts.where}; give it one in both, or before",
            )
        first, spec = flatten(a)
        second, other = flatten(b)

        def unlike(what: str, x: Any, y: Any) -> str:  # only where something is wrong: text needs the sizes
            where = self.facts.where
            return f"{what} is {described(x)} in one branch of the if at {where} and {described(y)} in the other"

        if spec != other:
            return self._undefined(name, unlike("it", a, b))
        makers = []
        for x, y, part in zip(first, second, leaf_names(spec, name), strict=True):
            made = self._leaf(x, y)
            if made is None:
                why = unlike(part, x, y) if len(first) > 1 or part != name else unlike("it", a, b)
                return self._undefined(
                    name,
                    f"{why}; a compiled branch must give the same kind of value and the same shape "
                    f"whichever way it goes",
                )
            makers.append(made)
        return lambda: unflatten(spec, [m() for m in makers])

    @staticmethod
    def _undefined(name: str, why: str) -> Callable[[], Any]:
        value = Undefined(name, why)
        return lambda: value

    def _only(self, x: Any, branch: Part) -> Callable[[], Any]:
        if not branch.made_here(x):
            return lambda: x
        type = Type(x.shape, x.dtype)
        a, b = (x, FILL) if branch is self.yes else (FILL, x)
        return self._pair(a, b, type, x._weak)

    def _leaf(self, a: Any, b: Any) -> Callable[[], Any] | None:
        if a is b:
            return lambda: a
        s, t = Slot.of(self.yes.now(a), ""), Slot.of(self.no.now(b), "")
        python = not isinstance(a, Tensor | np.ndarray) and not isinstance(b, Tensor | np.ndarray)
        if python and same_value(a, b) and repr(a) == repr(b):
            return lambda: a
        if s.type is None or t.type is None or s.type.shape != t.type.shape:
            return None
        dtype, weak = together([s, t])
        weak = weak or (isinstance(a, bool | Number) and isinstance(b, bool | Number) and dtype.kind == "b")
        return self._pair(a, b, Type(s.type.shape, dtype), weak)

    def _pair(self, a: Any, b: Any, type: Type, weak: bool) -> Callable[[], Any]:
        self.pairs.append((a, b, type))
        k = len(self.pairs) - 1
        return lambda: core.as_number(self.results[k]) if weak else self.results[k]


def predicate(x: Tensor) -> Tensor:
    """A tensor as a condition: one truth value."""
    if x.size != 1:
        raise ValueError(
            "The truth value of a tensor with more than one element is ambiguous. Use t.any() or t.all()"
            if x.size
            else "The truth value of an empty tensor is ambiguous"
        )
    return core.cast(single("if: the condition", x), dtypes.bool_)


def branch(pred: Tensor, yes: Body, no: Body, places: Sequence[Place], facts: Facts) -> Outcome | None:
    """Both ways of an if, as one op."""
    pred = predicate(pred)
    while True:
        bodies = []
        around = Surroundings((yes, no), places)
        for name, f in (("true", yes), ("false", no)):
            body = Part(name, places, around)
            body.run(f, facts)
            bodies.append(body)
            if body.unforeseen:
                break
        if not bodies[-1].unforeseen:
            break
        places = [*places, *bodies[-1].unforeseen]
    a, b = bodies
    x, y = a.outcome, b.outcome
    join = _Join(a, b, facts)
    makers = []
    for k, p in enumerate(places):
        gone = [o.raised or (p.local and o.returned is True) for o in (x, y)]
        if all(gone):
            continue
        makers.append((p, join.tree(p.name, a.after[k], b.after[k], not gone[0], not gone[1])))
    flags = [join.tree("flag", f, g, not x.raised, not y.raised) for f, g in zip(x.flags, y.flags, strict=True)]
    value = join.tree("the result", x.value, y.value, x.returned is not False, y.returned is not False)
    written = union([h for h, _ in r.region.written] for r in bodies)
    if join.pairs or written or a.has_effects or b.has_effects:
        outputs = [
            [*(body.tensor(pair[k], pair[2]) for pair in join.pairs), *(body.region.last(h) for h in written)]
            for k, body in enumerate(bodies)
        ]
        handles = union(body.region.handles() for body in bodies)
        graphs = [body.region.graph(out, handles) for body, out in zip(bodies, outputs, strict=True)]
        if not outputs[0]:
            graphs = [_with_dummy(body, handles) for body in bodies]
        results = apply(COND, (pred, *handles), {"branches": (graphs[1], graphs[0])})
        n = len(join.pairs)
        join.results = list(results[:n])
        rebind_all(written, results[n : n + len(written)])
    for p, make in makers:
        p.set(make())
    if x.raised and y.raised:
        return RAISED
    returned, broke, continued = (f() for f in flags)
    if returned is False and broke is False and continued is False:
        return None
    result = value() if returned is not False else UNSET
    if type(result) is Undefined:
        raise result.error()
    return Outcome(returned, broke, continued, result)


def _with_dummy(body: Part, handles: Sequence[Tensor]) -> Any:
    """A graph for effects only; an op has at least one result."""
    with recording(body.region.trace):
        return body.region.graph([core.full(True, (), dtypes.bool_)], handles)


# -- loops
@dataclass(slots=True, eq=False)
class _Carry:
    """One value that goes around. place, leaf: where it is kept; or a handle from outside that the body writes."""

    slot: Slot
    place: int = -1
    leaf: int = -1
    handle: Tensor | None = None
    stand_in: Any = None  # what stands for it in the body
    node: Any = None  # its value when a turn starts
    final: Any = None  # its value after one turn


@dataclass(slots=True, eq=False)
class Turn:
    """What one turn of a loop did: how the body left, whether to go on, the loop's own counters."""

    outcome: Outcome
    go: Any = True
    extra: Sequence[Any] = ()
    endless: bool = False  # the condition is True whatever happens, so only a jump ends the loop


class Loop:
    """A loop being traced. `extra`: values of the loop itself (a counter), given to each turn."""

    def __init__(
        self,
        places: Sequence[Place],
        facts: Facts,
        extra: Sequence[Any] = (),
        rows: Sequence[Tensor] = (),
        runs: bool = False,
    ):
        """runs: there is at least one turn."""
        self.facts, self.runs = facts, runs
        self.places: list[Place] = []
        self.before: list[Any] = []
        self.trees: list[Any] = []
        self.rows = list(rows)
        self.extra = [_Carry(Slot.of(x, "counter")) for x in extra]
        self.handles: list[_Carry] = []
        self.carries: dict[tuple[int, int], _Carry] = {}
        self.apart: set[int] = set()  # ids of tensors that are several variables, which a turn makes different ones
        self.add(places)

    def add(self, places: Sequence[Place]) -> None:
        """Take these places as the loop's too, with what they hold now."""
        for k, p in enumerate(places, len(self.places)):
            value = p.get()
            tree = None if _missing(value) else flatten(value)
            self.places.append(p)
            self.before.append(value)
            self.trees.append(tree)
            for i, x in enumerate(tree[0] if tree else ()):
                if isinstance(x, Tensor) and not x._place:
                    self.carries[k, i] = _Carry(Slot.of(x, p.name), k, i)

    @property
    def every(self) -> list[_Carry]:
        return [*self.extra, *self.carries.values(), *self.handles]

    def settle(self, turn: Callable[[Sequence[Any], Sequence[Tensor]], Turn]) -> tuple[Part, Turn]:
        """Trace the body until what it gives has the types of what it takes."""
        for _ in range(ATTEMPTS):
            body = Part("body", self.places, Surroundings((turn,), self.places))
            for c in self.every:
                c.stand_in = body.region.input(c.slot)
                c.node = c.stand_in._value
            rows = [body.region.input(Slot(None, Type(x.shape[1:], x.dtype), False, "row")) for x in self.rows]
            done: list[Turn] = []

            def f(body: Part = body, rows: list[Any] = rows, done: list[Turn] = done) -> Outcome:
                self.enter()
                done.append(turn([c.stand_in for c in self.extra], rows))
                return done[-1].outcome

            body.run(f, self.facts)
            if body.unforeseen:
                self.add(body.unforeseen)
                continue
            if not done:  # the body always raises
                done.append(Turn(RAISED, False, [c.stand_in for c in self.extra]))
            if self._same_types(body, done[0]):
                return body, done[0]
        raise StagingError(
            f"the loop at {self.facts.where}: the types of its variables do not settle after {ATTEMPTS} traces"
        )

    def enter(self) -> None:
        """Put the places in the state in which a turn starts."""
        fresh: dict[int, Any] = {}
        for k, (p, tree) in enumerate(zip(self.places, self.trees, strict=True)):
            if tree is None or not any((k, i) in self.carries for i in range(len(tree[0]))):
                continue
            leaves = []
            for i, x in enumerate(tree[0]):
                c = self.carries.get((k, i))
                if c is not None and isinstance(x, Tensor) and id(x) not in self.apart:
                    c.stand_in = fresh.setdefault(id(x), c.stand_in)  # one handle under two names stays one
                    c.node = c.stand_in._value
                leaves.append(x if c is None else c.stand_in)
            p.set(unflatten(tree[1], leaves))
        for c in self.handles:
            core.rebind(c.handle, c.stand_in)  # type: ignore[arg-type]

    def _same_types(self, body: Part, turn: Turn) -> bool:
        settled = True
        for c, x in zip(self.extra, turn.extra, strict=True):
            settled &= self._fits(c, x, body)
        if turn.outcome.raised:
            for c in self.carries.values():
                c.final = c.stand_in
        else:
            for k, p in enumerate(self.places):
                settled &= self._place_fits(k, p, body)
            settled &= self._same_handles(body)
        carried = {id(c.handle) for c in self.handles}
        for c in self.handles:
            c.final = body.region.last(c.handle)  # type: ignore[arg-type]
        for h, _ in body.region.written:
            if id(h) not in carried:
                self.handles.append(_Carry(Slot.of(h, "a tensor written in the loop"), handle=h))
                settled = False
        return settled

    def _same_handles(self, body: Part) -> bool:
        """Whether variables that are one tensor before a turn are one after it. Where they are not, that must not show
        otherwise: no write in place that would be seen under both names."""
        settled, rest = True, list(self.carries.values())
        for n, c in enumerate(rest):
            for d in rest[:n]:
                x, y = (self.trees[e.place][0][e.leaf] for e in (d, c))
                before, after = x is y and id(x) not in self.apart, c.final is d.final
                if before == after or not isinstance(c.final if after else x, Tensor):
                    continue
                written = [e for e in (c, d) if e.stand_in._value is not e.node]
                read = before or any(e.node in node.inputs for e in (c, d) for node in body.region.trace.nodes
                                     if e not in written)
                if written and read:
                    first, second = (self.places[e.place].name for e in (d, c))
                    when = ("before", "after") if before else ("after", "before")
                    raise StagingError(
                        f"'{first}' and '{second}' are one tensor {when[0]} a turn of the loop at {self.facts.where} "
                        f"and two {when[1]} it, and the loop writes one of them in place (+=, [...] =); write "
                        f"x = x + ..., or copy one of them before"
                    )
                if before:
                    self.apart.add(id(x))
                    settled = False
        return settled

    def _place_fits(self, k: int, p: Place, body: Part) -> bool:
        tree, after = self.trees[k], body.after[k]
        if tree is None:
            return True
        if type(after) is Undefined:
            raise StagingError(
                f"'{p.name}' has no single value at the end of a turn of the loop at {self.facts.where}: {after.why()}"
            )
        if _missing(after):
            raise StagingError(
                f"'{p.name}' has no value at the end of the loop at {self.facts.where}, but had one at its start"
            )
        leaves, spec = flatten(after)
        if spec != tree[1]:
            held = (
                " (a list in a compiled loop cannot grow; use tj.scan, which stacks a row per turn)"
                if isinstance(after, list | dict | set)
                else ""
            )
            raise StagingError(
                f"'{p.name}' is {described(self.before[k])} before a turn of the loop at {self.facts.where} and "
                f"{described(after)} after it{held}"
            )
        settled = True
        for i, (old, new) in enumerate(zip(tree[0], leaves, strict=True)):
            c = self.carries.get((k, i))
            if c is not None:
                settled &= self._fits(c, new, body)
            elif old is new or (same_value(old, new) and repr(old) == repr(new)):
                continue
            else:
                slot = Slot.of(old, p.name)
                if slot.type is None or Slot.of(body.now(new), "").type is None:
                    raise StagingError(
                        f"'{p.name}' is {described(old)} before a turn of the loop at {self.facts.where} and "
                        f"{described(new)} after it; only numbers and tensors can change in a compiled loop"
                    )
                self.carries[k, i] = c = _Carry(slot, k, i)
                self._fits(c, new, body)
                settled = False
        return settled

    def _fits(self, c: _Carry, new: Any, body: Part) -> bool:
        c.final = new
        if new is c.stand_in:
            new = body.now(new)
        s, t = c.slot, Slot.of(body.now(new), "")
        assert s.type is not None
        if t.type is None or t.type.shape != s.type.shape:
            raise StagingError(
                f"'{s.name}' is {s} before a turn of the loop at {self.facts.where} and {described(new)} after it; a "
                f"variable of a compiled loop keeps its shape and kind (start it with what the body gives)"
            )
        if s.type.dtype.kind == "b" and t.type.dtype.kind == "b":
            return True
        dtype, weak = together([s, t])
        if (dtype, weak) == (s.type.dtype, s.weak):
            return True
        s.value = s.tensor(dtype)
        s.value = core.as_number(s.value) if weak else s.value
        s.type, s.weak = Type(s.type.shape, dtype), weak
        return False

    def condition(self, test: Callable[[], Any]) -> tuple[Part, Any] | None:
        """The condition as a graph of its own; None if it has effects or changes variables."""
        part = Part("cond", self.places, Surroundings((test,), self.places))
        saved = [(c, c.stand_in, c.node) for c in self.every]
        for c in self.every:
            c.stand_in = part.region.input(c.slot)
        found: list[Any] = []

        def f() -> None:
            self.enter()
            held = [p.get() for p in self.places]
            found.append(test())
            found.append(
                all(p.get() is x for p, x in zip(self.places, held, strict=True) if not isinstance(p, Contents))
            )

        part.run(f, self.facts)
        for c, stand_in, node in saved:
            c.stand_in, c.node = stand_in, node
        own = {id(c.handle) for c in self.handles}
        written = any(id(h) not in own for h, _ in part.region.written)
        plain = found[1:] == [True] and isinstance(found[0], Tensor)
        if not plain or part.unforeseen or written or part.has_effects:
            return None
        return part, found[0]

    # -- the op
    def finish(self, body: Part, turn: Turn, test: Part | None) -> tuple[Outcome, Any]:
        """The loop as one op. test: a body that gives the condition; None: `turn.go` does, from the second turn on.
        Gives how the loop was left, and whether by a break."""
        carries, o = self.every, turn.outcome
        finals = [body.tensor(c.final, c.slot.type) for c in carries]  # type: ignore[arg-type]
        starts = [c.slot.tensor() for c in carries]
        bool_ = Type((), dtypes.bool_)
        leaving: list[tuple[Any, Type]] = []
        result_spec, weak = None, []
        if test is None:
            leaving.append((turn.go, bool_))
            if not o.raised:
                leaving += [(f, bool_) for f in (o.returned, o.broke)]
            if o.returned is not False and not o.raised:
                leaves, result_spec = flatten(o.value)
                kinds = [Slot.of(body.now(x), "") for x in leaves]
                if any(s.type is None for s in kinds):
                    raise StagingError(
                        f"the return inside the loop at {self.facts.where} gives {described(o.value)}; a compiled loop "
                        f"can return numbers and tensors"
                    )
                leaving += [(x, s.type) for x, s in zip(leaves, kinds, strict=True)]  # type: ignore[misc]
                weak = [s.weak for s in kinds]
        for k, (x, type) in enumerate(leaving):
            body.region.input(Slot(None, type, False, "leaving"))
            finals.append(body.tensor(x, type))
            starts.append(core.full(k == 0, type.shape, type.dtype))
        lasting = self._lasting(body, finals, starts)
        regions = [body.region] if test is None else [body.region, test.region]
        handles = union(r.handles() for r in regions)
        graph = body.region.graph(finals, handles)
        if test is None:
            condition = Part("cond", ())
            ins = [condition.region.input(Slot(None, Type(t.shape, t.dtype), False, "")) for t in starts]
            go = ins[len(carries)]
        else:
            condition, go = test, turn.go
        with recording(condition.region.trace):
            go = condition.region.trace.read(predicate(core.as_tensor(go)))
        cond = condition.region.graph([go], handles)
        results = apply(WHILE, (*starts, *handles), {"cond": cond, "body": graph})
        self._deliver(body, results, lasting)
        if test is not None:
            return Outcome(), False
        rest = list(results[len(carries) + 1 :])
        if o.raised:
            return Outcome(), False
        returned = rest[0] if o.returned is not False else False
        broke = rest[1] if o.broke is not False else False
        value = UNSET
        if returned is not False:
            value = unflatten(
                result_spec, [core.as_number(x) if w else x for x, w in zip(rest[2:], weak, strict=False)]
            )
        if turn.endless and broke is False:
            returned = True
        elif turn.endless and returned is False:
            broke = True
        return Outcome(returned=returned, value=value), broke

    def finish_scan(self, body: Part, length: int) -> None:
        """The loop over rows as one op."""
        carries = self.every
        finals = [body.tensor(c.final, c.slot.type) for c in carries]  # type: ignore[arg-type]
        starts = [c.slot.tensor() for c in carries]
        lasting = self._lasting(body, finals, starts)
        rows = len(carries), len(carries) + len(self.rows)
        body.region.inputs = [
            *body.region.inputs[: rows[0]],
            *body.region.inputs[rows[1] :],
            *body.region.inputs[slice(*rows)],
        ]
        handles = body.region.handles()
        graph = body.region.graph(finals, handles)
        attrs = {"body": graph, "length": length, "reverse": False, "carries": len(starts), "xs": len(self.rows)}
        self._deliver(body, apply(SCAN, (*starts, *self.rows, *handles), attrs), lasting)

    def _lasting(
        self, body: Part, finals: list[Tensor], starts: list[Tensor]
    ) -> dict[int, tuple[int, list[Slot], Any]]:
        """Variables that first get a value in the body, where there is at least one turn: further results. For each
        place the first result, what its leaves are, and their structure."""
        found: dict[int, tuple[int, list[Slot], Any]] = {}
        for k, tree in enumerate(self.trees):
            if not self.runs or tree is not None or not body.after or _missing(body.after[k]):
                continue
            leaves, spec = flatten(body.after[k])
            slots = [Slot.of(body.now(x), "") for x in leaves]
            if any(s.type is None for s in slots):
                continue
            found[k] = len(finals), slots, spec
            for x, s in zip(leaves, slots, strict=True):
                assert s.type is not None
                body.region.input(Slot(None, s.type, False, "lasting"))
                finals.append(body.tensor(x, s.type))
                starts.append(core.full(0, s.type.shape, s.type.dtype))
        return found

    def _deliver(self, body: Part, results: Sequence[Tensor], lasting: dict[int, tuple[int, list[Slot], Any]]) -> None:
        """Put the last values where they belong."""
        for k, (first, slots, spec) in lasting.items():
            given = results[first : first + len(slots)]
            last = [core.as_number(x) if s.weak else x for x, s in zip(given, slots, strict=True)]
            self.places[k].set(unflatten(spec, last))
        values = dict(zip(map(id, self.every), results, strict=False))
        for k, (p, tree) in enumerate(zip(self.places, self.trees, strict=True)):
            if tree is None:
                if k not in lasting and body.after and not _missing(body.after[k]):
                    p.set(
                        Undefined(
                            p.name,
                            f"it gets a value only inside the loop at {self.facts.where}, which may not run at all; "
                            f"give it one before the loop",
                        )
                    )
                continue
            leaves = list(tree[0])
            for i, x in enumerate(leaves):
                c = self.carries.get((k, i))
                if c is None:
                    continue
                found = values[id(c)]
                if c.final is c.stand_in and type(x) is Tensor:  # the handle is still the same: at most written
                    if c.stand_in._value is not c.node:
                        core.rebind(x, found)
                else:
                    if type(x) is Tensor and c.stand_in._value is not c.node and _seen_outside(x):
                        raise StagingError(
                            f"'{p.name}' is a tensor from outside that the loop at {self.facts.where} both writes in "
                            f"place (+=, [...] =) and rebinds; write {p.name} = {p.name} + ..., or copy it before"
                        )
                    # one of Python's own bools is no tensor afterwards either
                    truth = found.dtype.kind == "b" and all(isinstance(y, bool | Number) for y in (x, c.final))
                    leaves[i] = core.as_number(found) if c.slot.weak or truth else found
            if any(a is not b for a, b in zip(leaves, tree[0], strict=True)):
                p.set(unflatten(tree[1], leaves))
        for c in self.handles:
            core.rebind(c.handle, values[id(c)])  # type: ignore[arg-type]


def _seen_outside(x: Tensor) -> bool:
    """Whether somebody outside the function may hold the handle: an argument, a value from outside."""
    return x._value.__class__ is not Node or x._value.op is INPUT  # type: ignore[union-attr]


def _missing(x: Any) -> bool:
    return x is UNSET or type(x) is Undefined


__all__ = [
    "Part",
    "Facts",
    "Loop",
    "Turn",
    "branch",
    "described",
    "places_of",
    "predicate",
]
