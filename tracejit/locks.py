"""Locks and forks: a child has only the thread that forked, and would wait for ever for a lock that another one held.

In: a lock. Out: the same lock, which a forked child finds free. Where what it guards must be whole in the child, the
fork waits until nobody holds it. `updating` holds those of several Variables. `once` is a cached property without a
lock. Read next: `runtime/build.py`, `trace/tracer.py` (who needs that).
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")
# A fork waits for a lock, as long as this process gets on: who holds it may be waiting for the fork.
PATIENCE, LONGEST = 10.0, 120.0  # seconds
_IDLE = 0.01  # seconds of processor time in PATIENCE seconds that mean nobody works

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


class holding:
    """`with holding(locks):` all of them, taken in the order given."""

    __slots__ = ("locks",)

    def __init__(self, locks: Sequence[Any]):
        self.locks = locks

    def __enter__(self) -> None:
        for lock in self.locks:
            lock.acquire()

    def __exit__(self, *_: object) -> None:
        for lock in self.locks:
            lock.release()


def updating(handles: Iterable[Any]) -> holding:
    """`with updating(handles):` nobody else changes the Variables among these handles. A compiled call reads them, and
    writes them when it has run."""
    return holding([h.lock for h in sorted(handles, key=id) if h.lock is not None])


class once(Generic[T]):
    """A property computed when first asked for, then kept. (That of `functools` holds a lock meanwhile in Python 3.11,
    one for all instances; a forked child may find it taken for ever.) Two threads may compute it; either result stays.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        if instance is None:
            return self  # type: ignore[return-value]
        return instance.__dict__.setdefault(self.name, self.compute(instance))


def _wait_for(lock: Any) -> bool:
    start, used = time.monotonic(), time.process_time()
    while not lock.acquire(timeout=PATIENCE):
        before, used = used, time.process_time()
        if used - before < _IDLE or time.monotonic() - start > LONGEST:
            return False
    return True


def _before() -> None:
    _held.extend(lock for lock in reversed(_awaited) if _wait_for(lock))


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
