"""The interior of a map: what is left of it where every guard is as it nearly always is.

In: statements, the stage of a map, and for some of its guards (where does a pad end, which part of a concat is it) the
value each has nearly everywhere. Out: the same stage without them: no selects, no masks, no loads of what is not seen,
no stores where there is no place.

The statements are added to those there are, so that both stages share what they have in common.

Read next: `loops.py` (who asks), `emit_nest_llvm.py` (where each stage runs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tracejit.lower.access import RARE
from tracejit.lower.index import Dim, Guard, Index
from tracejit.lower.kernel import Stage
from tracejit.lower.scalar import Builder, Value, behind


def usually(guard: Guard, fails: int) -> bool | None:
    """What a test of a guard that fails at so many places along its dim gives nearly everywhere; None if neither."""
    low, high = guard.index.bounds
    span, terms = high + 1 - low, guard.index.terms
    if len(terms) != 1 or not isinstance(terms[0][0], Dim):
        return None
    return True if fails * RARE <= span else False if (span - fails) * RARE <= span else None


def held_apart(space: Sequence[int], axes: Sequence[int], indices: Iterable[Index],
               as_one: Callable[[int, int], bool]) -> frozenset[int]:
    """Dims that could be one loop with the dim inside them but for tests that ask for their coordinate. If a border
    (of a picture) is along such a dim, so it is along both (its columns and channels): one long row, not short ones."""
    counted: set[int] = set()  # dims whose coordinate is asked for
    needed: set[int] = set()  # not only to test it by itself
    for index in indices:
        dims = index.dims or set()
        counted |= dims
        if len(index.terms) != 1 or not isinstance(index.terms[0][0], Dim):
            needed |= dims
    return frozenset(d for d in counted - needed if d + 1 < len(space) and d + 1 not in counted
                     and not {d, d + 1} & {*axes} and as_one(d, d + 1))


def interior(builder: Builder, stage: Stage, usual: Mapping[int, bool]) -> tuple[Stage, tuple[tuple[int, bool], ...]]:
    """The stage where guards (bool statements) have their `usual` values, and those guards that it needs."""
    stmts = builder.stmts
    needed = behind(stmts, stage.roots)
    guards = tuple((i, usual[i]) for i in needed if i in usual)
    known = dict(guards)
    same: dict[int, int] = {}  # statements by those that have their value there
    for i in needed if guards else ():
        s = stmts[i]
        args = [same.get(a, a) for a in s.args]
        if i in known:
            continue
        if s.op in ("and", "or") and s.dtype.kind == "b" and any(a in known for a in args):
            decides = s.op == "or"  # an operand of this value is the result
            if any(known.get(a) is decides for a in args):
                known[i] = decides
            else:
                rest = [a for a in args if a not in known]
                if rest:
                    same[i] = rest[0]
                else:
                    known[i] = not decides
        elif s.op == "not" and args[0] in known and s.dtype.kind == "b":
            known[i] = not known[args[0]]
        elif s.op == "select" and args[0] in known:
            same[i] = args[1 if known[args[0]] else 2]
        elif s.op == "load" and len(args) == 2 and known.get(args[1], False):
            at = stmts[args[0]]
            fixed = at.op == "const" and at.attrs[0] == 0
            same[i] = _emit(builder, i, [] if fixed else args[:1])
        elif args != list(s.args):
            same[i] = _emit(builder, i, args)
        if same.get(i) in known:
            known[i] = known[same[i]]
    return _renamed(stage, same, known), guards


def _emit(builder: Builder, i: int, args: list[int]) -> int:
    s = builder.stmts[i]
    return builder.emit(s.op, s.dtype, [Value(builder, a, builder.stmts[a].dtype) for a in args], s.attrs).index


def _renamed(stage: Stage, same: Mapping[int, int], known: Mapping[int, bool]) -> Stage:
    stores = []
    for s in stage.stores:
        mask = s.mask
        if mask is not None:
            if known.get(mask) is False:
                continue
            mask = None if mask in known else same.get(mask, mask)
        stores.append(replace(s, value=same.get(s.value, s.value), mask=mask))
    return replace(stage, stores=tuple(stores), checks=tuple(same.get(c, c) for c in stage.checks))
