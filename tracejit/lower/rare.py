"""Selects that are almost never true: which statements a target may branch around.

In: statements in the order they would run, some of them selects marked 'rare' (see `scalar.py`).
Out: the same order, where a `Detour` stands for the selects on one rare condition and for all that only feeds their
true sides. Running every statement instead gives the same results.

Read next: `emit_llvm.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tracejit.lower.scalar import Stmt

# Never worth moving, or not free to.
_STAYS = frozenset({"load", "carry", "check", "coord", "param", "running", "loop", "result"})


@dataclass(frozen=True, slots=True)
class Detour:
    """`selects` on `cond`, and the statements `slow` that only they need, both in order."""

    cond: int
    selects: tuple[int, ...]
    slow: tuple[int, ...]


def detours(stmts: Sequence[Stmt], order: Sequence[int], kept: Collection[int]) -> list[int | Detour]:
    """`order` without what nobody needs, with its rare selects gathered; `kept`: whose values are needed elsewhere."""
    order = _needs(stmts, set(order), (), kept)
    groups = [g for g in _groups(stmts, order) if g]
    if not groups:
        return list(order)
    inside = set(order)
    users: dict[int, list[int]] = {i: [] for i in order}
    for i in order:
        for a in stmts[i].args:
            if a in inside:
                users[a].append(i)
    group_of: dict[int, Detour] = {}
    owned: set[int] = set()
    for selects in reversed(groups):
        slow = _slow_side(stmts, order, users, selects, set(kept) | owned)
        if slow:
            owned.update(slow)
            detour = Detour(stmts[selects[0]].args[0], tuple(selects), tuple(slow))
            group_of.update(dict.fromkeys(selects, detour))

    result: list[int | Detour] = []
    done: set[int] = set()

    def run(i: int) -> None:
        """Append i or its detour, after what a detour needs from further down the order."""
        if i in done or i in owned or i not in inside:
            return
        detour = group_of.get(i)
        if detour is None:
            done.add(i)
            result.append(i)
            return
        done.update(detour.selects)
        for need in _needs(stmts, inside, done | set(detour.slow), [a for j in (*detour.selects, *detour.slow)
                                                                    for a in stmts[j].args]):
            run(need)
        result.append(detour)

    for i in order:
        run(i)
    return result


def _groups(stmts: Sequence[Stmt], order: Sequence[int]) -> list[list[int]]:
    """Rare selects by condition; a select that depends on others of its condition starts a new group."""
    groups: list[list[int]] = []
    latest: dict[int, int] = {}  # condition -> number of its last group
    behind: dict[int, frozenset[int]] = {}  # statement -> groups it depends on
    for i in order:
        s = stmts[i]
        found = frozenset().union(*(behind.get(a, frozenset()) for a in s.args))
        if s.op == "select" and "rare" in s.attrs:
            cond = s.args[0]
            number = latest.get(cond)
            if number is None or number in found:
                number = latest[cond] = len(groups)
                groups.append([])
            groups[number].append(i)
            found |= {number}
        if found:
            behind[i] = found
    return groups


def _slow_side(stmts: Sequence[Stmt], order: Sequence[int], users: dict[int, list[int]], selects: Sequence[int],
               taken: Collection[int]) -> list[int]:
    """What only feeds the true sides of `selects`, in order."""
    found: set[int] = set()
    members = set(selects)
    for i in reversed(order):
        if i in taken or i in members or stmts[i].op in _STAYS or not users[i]:
            continue
        if all(u in found or (u in members and stmts[u].args[1] == i not in stmts[u].args[::2]) for u in users[i]):
            found.add(i)
    return sorted(found)


def _needs(stmts: Sequence[Stmt], inside: Collection[int], done: Collection[int], roots: Collection[int]) -> list[int]:
    """What must run before `roots` are known, in order."""
    found: set[int] = set()
    todo = list(roots)
    while todo:
        i = todo.pop()
        if i in inside and i not in done and i not in found:
            found.add(i)
            todo.extend(stmts[i].args)
    return sorted(found)
