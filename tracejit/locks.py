"""Locks and forks: a child has only the thread that forked, and would wait for ever for a lock that another one held.

In: a lock. Out: the same lock, which a forked child finds free. Where what it guards must be whole in the child, the
fork waits until nobody holds it. Read next: `runtime/pool.py`, `trace/tracer.py` (who needs that).
"""

from __future__ import annotations

import os
import weakref
from typing import Any

PATIENCE = 10.0  # seconds a fork waits for a lock; who holds it may be waiting for the fork

_awaited: list[Any] = []  # in order of creation, so lower levels first: those take no lock of higher ones
_others: weakref.WeakSet[Any] = weakref.WeakSet()
_held: list[Any] = []  # during a fork


def fork_safe(lock: Any, awaited: bool = False) -> Any:
    """`lock` (of `threading`), free in a forked child. awaited: forks wait for it."""
    if awaited:
        _awaited.append(lock)
    else:
        _others.add(lock)
    return lock


def _before() -> None:
    _held.extend(lock for lock in reversed(_awaited) if lock.acquire(timeout=PATIENCE))


def _in_parent() -> None:
    while _held:
        _held.pop().release()


def _in_child() -> None:
    for lock in [*(lock for lock in _awaited if lock not in _held), *_others]:
        mine = getattr(lock, "_is_owned", None)  # the thread that forked may hold it itself
        if mine is None or not mine():
            lock._at_fork_reinit()
    _in_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
