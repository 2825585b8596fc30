"""What a function remembers of its traces: the programs by key, and what was said about how they came to be.

In: a call's key and the `Specialization` made for it. Out: the same for later calls, as long as there is room.

Read next: `symbolic.py` (one trace for calls that differ in sizes), `function.py` (who asks).
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracejit.locks import fork_safe
from tracejit.trace.shortcut import MISS, Shortcut
from tracejit.trace.signature import Call, Signature, describe
from tracejit.trace.specialization import Specialization
from tracejit.trace.symbolic import MAX_FAMILIES, Family, family_of

if TYPE_CHECKING:
    from tracejit.runtime import pool

MAX_KEYS = 256  # keys kept for one function (and instance); the least recently missed goes first
MAX_PER_KEY = 32  # specialisations on values kept for one key
MAX_HISTORY = 100  # trace reasons remembered


@dataclass(slots=True)
class Described:
    """A call's arguments in words; holds none of them."""

    parts: list[tuple[str, dict[str, str]]]  # name and facts of each leaf and static argument
    structure: str

    @classmethod
    def of(cls, call: Call, signature: Signature) -> Described:
        parts = [(f"argument '{n}'", describe(x)) for n, x in zip(signature.leaf_names(call.spec), call.leaves)]
        for k in signature.static:
            parts.append((f"static argument '{signature.names[k]}'", {"value": f"{call.values[k]!r:.80}"}))
        return cls(parts, str(call.spec).removeprefix("PyTreeSpec(").split(", NoneIsLeaf")[0])


def no_shortcut(args: tuple[Any, ...], instance: Any) -> Any:
    """The shortcut of a function that has none."""
    return MISS


class Traces:
    """The specialisations of one function (for one instance, if it is a method)."""

    def __init__(self) -> None:
        self.lock = fork_safe(threading.RLock())
        self.by_key: OrderedDict[Hashable, list[Specialization]] = OrderedDict()
        # by a cheap key, for plain calls: what is kept, and default values
        self.by_arguments: dict[Hashable, tuple[list[Specialization], tuple[Any, ...]]] = {}
        self.families: OrderedDict[Hashable, Family] = OrderedDict()
        self.history: deque[str] = deque(maxlen=MAX_HISTORY)
        self.count = 0
        self.last: Described | None = None  # the arguments of the last trace
        self.creations = 0
        self.shortcut: Shortcut = no_shortcut  # of the specialisation that ran last
        self.unstable: set[str] = set()  # what traces themselves changed
        self.warned_effects = False  # of writes from traced code
        self.warned = False  # of values that cannot be watched

    def family(self, call: Call) -> tuple[Family | None, tuple[int, ...]]:
        """What is known of calls that differ from this one in sizes only, and its sizes."""
        found = family_of(call)
        if found is None:
            return None, ()
        key, places, sizes = found
        family = self.families.get(key)
        if family is None:
            family = self.families[key] = Family(places)
            if len(self.families) > MAX_FAMILIES:
                self.families.popitem(last=False)
        return family, sizes

    def keep(self, key: Hashable, s: Specialization) -> None:
        """Let calls with this key find `s` first."""
        kept = self.by_key.pop(key, [])
        kept.insert(0, s)
        del kept[MAX_PER_KEY:]
        self.by_key[key] = kept
        while len(self.by_key) > MAX_KEYS:
            self.by_key.popitem(last=False)
            self.by_arguments.clear()


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """Traces in the cache, traces made, calls of those in the cache; machine code of the process: compiled, found."""

    size: int
    traces: int
    calls: int
    compiles: int
    memory_hits: int
    disk_hits: int


@dataclass(frozen=True, slots=True)
class Stats:
    """What the process did so far."""

    functions: int
    traces: int
    compiles: int
    memory_hits: int
    disk_hits: int
    compile_seconds: float
    memory: pool.Memory
