"""Where traced control flow may leave values: variables, attributes, what is in containers.

In: the functions that hold the bodies of a statement. Out: its `Place`s, those that its source shows (`places_of`), and
those that the functions it calls turn out to have changed (`Surroundings`).

Read next: `staging.py`.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracejit.tensor import Tensor
from tracejit.trace.autograph.source import is_users
from tracejit.trace.autograph.values import UNSET, Undefined

MAX_OBJECTS = 2000  # that are watched around one statement
MAX_ENTRIES = 1000  # of a container that is watched
_FOREIGN = (frozenset(sys.stdlib_module_names) - {"types", "__main__"}) | {"tracejit", "numpy", "optree", "scipy"}


@dataclass(frozen=True, slots=True)
class Facts:
    """What `transform.py` knows of a statement."""

    names: tuple[str, ...]
    attributes: tuple[tuple[str, ...], ...]
    containers: tuple[tuple[str, ...], ...]
    line: int
    absorbs: bool  # a branch of it always leaves the block
    shared: tuple[str, ...]  # names that belong to a function around (nonlocal)
    where: str  # file:line


# -- places
class Place:
    """Somewhere a value is kept. `local`: gone when the function returns."""

    local = False

    def __init__(self, name: str, *key: Any):
        """key: what tells it from others."""
        self.name, self.key = name, key

    def get(self) -> Any: ...
    def set(self, value: Any) -> None: ...


class Cell(Place):
    def __init__(self, name: str, cell: types.CellType, local: bool = True):
        super().__init__(name, id(cell))
        self.cell, self.local = cell, local

    def get(self) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:
            return UNSET

    def set(self, value: Any) -> None:
        if value is UNSET:
            if self.get() is not UNSET:
                del self.cell.cell_contents
        else:
            self.cell.cell_contents = value


class Global(Place):
    def __init__(self, name: str, space: dict[str, Any]):
        super().__init__(name, id(space), name)
        self.space = space

    def get(self) -> Any:
        return self.space.get(self.name, UNSET)

    def set(self, value: Any) -> None:
        if value is UNSET:
            self.space.pop(self.name, None)
        else:
            self.space[self.name] = value


class Attribute(Place):
    def __init__(self, name: str, owner: Any, attribute: str):
        super().__init__(name, id(owner), attribute)
        self.owner, self.attribute = owner, attribute

    def get(self) -> Any:
        return getattr(self.owner, self.attribute, UNSET)

    def set(self, value: Any) -> None:
        if value is UNSET:
            if hasattr(self.owner, self.attribute):
                delattr(self.owner, self.attribute)
        elif getattr(self.owner, self.attribute, UNSET) is not value:
            setattr(self.owner, self.attribute, value)


class Contents(Place):
    """What is in a list, dict, set or deque, which stays the same object."""

    def __init__(self, name: str, container: Any):
        super().__init__(name, id(container))
        self.container = container

    def get(self) -> Any:
        c = self.container
        if isinstance(c, dict):
            found = c.copy()
            for k, v in c.items():
                found[k] = _itself(v)
            return found
        return type(c)(map(_itself, c)) if type(c) is list else c.copy()

    def set(self, value: Any) -> None:
        c = self.container
        if isinstance(value, dict):
            value = {k: _plain(v) for k, v in value.items()}
        elif isinstance(value, list):
            value = [_plain(v) for v in value]
        if type(value) is not Undefined and _same(c, value):
            return
        c.clear()
        (c.extend if isinstance(c, list | deque) else c.update)(value)


class _Itself:
    """An object in a container: what it holds is another place's matter."""

    __slots__ = ("x",)

    def __init__(self, x: Any):
        self.x = x

    def __eq__(self, other: object) -> bool:
        return type(other) is _Itself and other.x is self.x

    def __hash__(self) -> int:
        return id(self.x)

    def __repr__(self) -> str:
        return f"a {type(self.x).__name__} ({id(self.x):#x})"


_VALUES = (Tensor, np.ndarray, np.generic, bool, int, float, complex, str, type(None))


def _itself(x: Any) -> Any:
    if isinstance(x, _VALUES):
        return x
    return tuple(map(_itself, x)) if type(x) is tuple else _Itself(x)


def _plain(x: Any) -> Any:
    if type(x) is tuple:
        return tuple(map(_plain, x))
    return x.x if type(x) is _Itself else x


def _flat(c: Any) -> Iterator[Any]:
    return (x for item in c.items() for x in item) if isinstance(c, dict) else iter(c)


def places_of(functions: Sequence[types.FunctionType | None], facts: Facts) -> list[Place]:
    """The places that these functions, made from one statement, may change."""
    cells: dict[str, types.CellType] = {}
    space: dict[str, Any] = {}
    for f in functions:
        if f is not None:
            space = f.__globals__
            cells.update(zip(f.__code__.co_freevars, f.__closure__ or (), strict=True))
    found: list[Place] = []
    for name in facts.names:
        found.append(Cell(name, cells[name], name not in facts.shared) if name in cells else Global(name, space))

    def reach(path: Sequence[str]) -> Any:
        value = Cell("", cells[path[0]]).get() if path[0] in cells else space.get(path[0], UNSET)
        for part in path[1:]:
            value = UNSET if value is UNSET or type(value) is Undefined else getattr(value, part, UNSET)
        return value

    for path in facts.attributes:
        owner = reach(path[:-1])
        if owner is not UNSET and not isinstance(owner, Tensor) and type(owner) is not Undefined:
            found.append(Attribute(".".join(path), owner, path[-1]))
    seen: set[int] = set()
    for path in facts.containers:
        container = reach(path)
        if isinstance(container, list | dict | set | deque) and id(container) not in seen:
            seen.add(id(container))
            found.append(Contents(".".join(path), container))
    return found


# -- what the source does not show -------------------------------------------------------------------------------------
_CONTAINERS = (list, dict, set, deque)


class Surroundings:
    """What can be reached from the functions of a statement, as it is now: helpers may change it where no assignment
    of the statement shows it."""

    def __init__(self, functions: Sequence[Any], places: Sequence[Place]):
        self.known = {p.key for p in places}
        self.seen: dict[int, Any] = {}  # by id, kept alive
        self.held: list[tuple[Any, str, Any]] = []  # a container, object or cell; its name; its contents
        self.pending: deque[tuple[Any, str]] = deque((f, "") for f in functions)
        while self.pending and len(self.seen) < MAX_OBJECTS:
            self._look(*self.pending.popleft())

    def _look(self, x: Any, name: str) -> None:
        cls = type(x)
        if id(x) in self.seen or isinstance(x, _VALUES):
            return
        self.seen[id(x)] = x
        more = self.pending.append
        if isinstance(x, type):
            if x.__module__.partition(".")[0] not in _FOREIGN:
                self.held.append((x, x.__name__, dict(vars(x))))
            return
        if cls in _CONTAINERS or cls is tuple:
            if len(x) > MAX_ENTRIES:
                return
            if cls is not tuple:
                self.held.append((x, name, x.copy()))
            if cls is dict:
                for k, v in x.items():
                    more((v, f"{name}[{k!r}]"))
            elif cls is not set:
                for i, v in enumerate(x):
                    more((v, f"{name}[{i}]"))
        elif cls is types.FunctionType:
            self._look_at_function(x)
        elif cls is types.MethodType:
            more((x.__self__, name.rpartition(".")[0] or "self"))
            more((x.__func__, ""))
        elif cls is functools.partial:
            for v in (x.func, *x.args, *x.keywords.values()):
                more((v, name))
        elif cls.__module__.partition(".")[0] not in _FOREIGN and (attributes := _attributes(x)):
            self.held.append((x, name, attributes))
            more((cls, ""))
            for k, v in attributes.items():
                more((v, f"{name}.{k}"))

    def _look_at_function(self, f: types.FunctionType) -> None:
        names = f.__code__.co_freevars
        for name, cell in zip(names, f.__closure__ or (), strict=True):
            value = Cell(name, cell).get()
            if id(cell) not in self.seen and not name.startswith("ag__"):
                self.seen[id(cell)] = cell
                self.held.append((cell, name, value))
            if value is not UNSET and type(value) is not Undefined:
                self.pending.append((value, name))
        if f.__dict__ and is_users(f.__code__):
            self.held.append((f, f.__name__, dict(f.__dict__)))
        for name in f.__code__.co_names if is_users(f.__code__) else ():
            value = f.__globals__.get(name)
            if type(value) in _CONTAINERS or type(value) is types.FunctionType or hasattr(value, "__dict__"):
                self.pending.append((value, name))

    def changed(self) -> list[Place]:
        """The places that are no longer as they were, other than those known, which are put back as they were."""
        found: list[Place] = []
        for x, name, before in self.held:
            if type(x) is types.CellType:
                now = Cell(name, x).get()
                if now is not before and not _variable(now):
                    found.append(Cell(name, x, local=False))
                    found[-1].set(before)
            elif type(x) in _CONTAINERS:
                if not _same(x, before) and not any(map(_variable, x)):
                    found.append(Contents(name, x))
                    found[-1].set(before)
            else:
                now = _attributes(x)
                names = [k for k in {**before, **now} if before.get(k, UNSET) is not now.get(k, UNSET)]
                if any(_variable(now.get(k)) for k in names):
                    continue  # a layer that makes its Variables at its first call
                for k in names:
                    found.append(Attribute(f"{name}.{k}", x, k))
                    found[-1].set(before.get(k, UNSET))
        return [p for p in found if p.key not in self.known]


def _attributes(x: Any) -> dict[str, Any]:
    """What an object of a class of the user's, a class or a function holds."""
    if isinstance(x, type | types.FunctionType):
        return dict(vars(x))
    found = dict(vars(x)) if type(getattr(x, "__dict__", None)) is dict else {}
    for cls in type(x).__mro__:
        for name, slot in vars(cls).items():
            if type(slot) is types.MemberDescriptorType:
                value = getattr(x, name, UNSET)
                if value is not UNSET:
                    found[name] = value
    return found


def _variable(x: Any) -> bool:
    return isinstance(x, Tensor) and x._place


def _same(a: Any, b: Any) -> bool:
    """Whether a container holds the same objects as a copy of it made before."""
    if isinstance(a, set):
        return len(a) == len(b) and {id(x) for x in a} == {id(x) for x in b}
    return len(a) == len(b) and all(x is y for x, y in zip(_flat(a), _flat(b), strict=True))
