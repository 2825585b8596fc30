"""Values from outside: which a function reads, where they are found again at each call, and which changes ask for a new
trace.

In: a function about to be traced. Out: `Reach`, which tells the trace where a captured tensor or array comes from (it
becomes a hidden input), and makes the `Watch` that a specialisation keeps: one generated Python function that reads the
hidden inputs and compares the numbers, strings and functions that the traced code may have read.

Read next: `bytecode.py` (how they are found).
"""

from __future__ import annotations

import dataclasses
import re
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tracejit.errors import TracerError
from tracejit.ir import Node
from tracejit.tensor import Tensor
from tracejit.trace.bytecode import analyse
from tracejit.trace.reading import CONTAINERS, PLAIN, SEQUENCES, Reading, Ref

MAX_CONTAINER = 5000  # entries of a container that are compared at each call
MAX_ARRAY = 1 << 16  # bytes of a NumPy array that are compared at each call
_MISSING = object()
_IDENTIFIER = re.compile(r"(?<![\w.'\"])([a-z]\d+)\b")


class Reach:
    """What one function reads from outside, found just before it is traced."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        before: Sequence[Any] = (),
        arguments: dict[str, Any] | None = None,
        unstable: set[str] | None = None,
    ):
        """unstable: labels of what earlier traces of the function changed; updated."""
        self.name = name
        self._unstable = set() if unstable is None else unstable
        self.effects: list[str] = []  # "count at file.py:3": what the trace changed
        self.changed: list[str] = []  # arguments that are containers, and got other entries
        self._instance = before[0] if before else None
        roots: dict[str, Any] = {}
        given: dict[str, Ref] = {}
        for k, (parameter, value) in enumerate((arguments or {}).items()):
            if _is_object(value):
                root = f"a{k}"
                try:
                    roots[root] = weakref.ref(value)
                except TypeError:
                    roots[root] = lambda value=value: value
                given[parameter] = Ref(f"{root}()", value, parameter)
        analyst = analyse(function, given, before[0] if before else None, bool(before))
        self.reading: Reading = analyst.reading
        self.reading.roots.update(roots)
        self._drop_fields(given)
        self.reading.plain = {
            c: r for c, r in self.reading.plain.items() if _parent(c) not in self.reading.whole or _is_code(r.value)
        }
        self.blind = dict(self.reading.blind)
        self._found: dict[int, Ref] | None = None
        self._all: dict[int, Ref] | None = None
        self._snapshots: dict[str, Any] = {}
        for code, ref in self.reading.whole.items():
            taken = snapshot(ref.value)
            if taken is _MISSING:
                self.blind[ref.label] = f"it has more than {MAX_CONTAINER} entries"
            else:
                self._snapshots[code] = taken
        arrays = {**self.reading.passed, **self.reading.computed}
        self._contents = {c: contents(r.value) for c, r in arrays.items() if r.value.nbytes <= MAX_ARRAY}
        self._members = {c: members(ref.value) for c, (ref, _) in self.reading.mutated.items()}
        self._variables = [r for ref, _ in self.reading.mutated.values() for r in _variables_in(ref)]
        self._inputs: set[int] = set()  # ids of the arrays that ops have asked for
        for code, ref in self.reading.computed.items():
            if code not in self._contents:
                self.blind[ref.label] = f"NumPy reads it while tracing, and it has more than {MAX_ARRAY} bytes"
        # values as they are before the trace
        read = (self.reading.plain, self.reading.whole, self.reading.arrays)
        self._labels = {c: r.label for found in read for c, r in found.items()}
        self._plain = {c: r.value for c, r in self.reading.plain.items()}

    def _drop_fields(self, given: dict[str, Ref]) -> None:
        """The fields of a dataclass argument are in the call's key, or inputs: another one of equal fields will do."""
        r = self.reading
        starts = tuple(
            f"{ref.code}.{f.name}"
            for ref in given.values()
            if dataclasses.is_dataclass(ref.value)
            for f in dataclasses.fields(ref.value)
        )
        for found in (r.plain, r.whole, r.computed, r.passed, r.absent) if starts else ():
            for code in [c for c in found if c.startswith(starts)]:
                del found[code]

    # -- while tracing -------------------------------------------------------------------------------------------------
    def find(self, x: Any) -> tuple[Any, str, str] | None:
        """The handle through which `x` is reached, the expression for it, and what the user calls it."""
        if self._found is None:
            self._found = _by_identity(list(self.reading.arrays.values()))
        self._inputs.add(id(x))
        ref = self._lookup(self._found, x)
        if ref is None:
            if self._all is None:  # the code did not say how it got there: look everywhere it could have
                starts = [*self.reading.objects.values(), *self.reading.whole.values()]
                self._all = _by_identity(
                    [r for r in _walk_objects(starts) if isinstance(r.value, (Tensor, np.ndarray))]
                )
            ref = self._lookup(self._all, x)
        return None if ref is None else (ref.value, ref.code, ref.label)

    def path(self, x: Any) -> str | None:
        """The expression for this very handle, if the code names it."""
        return next((r.code for r in self.reading.arrays.values() if r.value is x), None)

    @staticmethod
    def _lookup(known: dict[int, Ref], x: Any) -> Ref | None:
        found = known.get(id(x))
        if found is None and isinstance(x, Tensor) and not isinstance(x._value, Node):
            found = known.get(id(x._value))
        return found

    def settle(self) -> None:
        """After the trace: note what it changed itself, and do not watch what would change with every trace.

        A number that traced code counts up is not watched. Anything else (an attribute filled once) is, so that the
        next call sees it; unless a second trace changes it again.
        """
        changed: set[str] = set()
        for ref, where in self.reading.stores.values():
            now = _current(ref)
            if now is not ref.value and _differs(now, ref.value) and not hasattr(now, "assign_add"):
                self.effects.append(f"{ref.label} at {where}")
                changed.add(ref.code)
        stored = {id(ref.owner) for ref, _ in self.reading.stores.values() if ref.code in changed}
        for code, (ref, where) in self.reading.mutated.items():
            if id(ref.value) not in stored and members(ref.value) != self._members[code]:
                self.effects.append(f"{ref.label} at {where}")
        space = dict(self.reading.roots)
        for code in [*self._plain, *self._snapshots]:
            value = self._plain.get(code, _MISSING)
            counted = isinstance(value, (int, float, complex)) and not isinstance(value, bool)
            if code not in changed and code not in self._snapshots:
                continue
            try:
                differs = code in changed or snapshot(eval(code, space, {"S": self._instance})) != self._snapshots[code]
            except Exception:
                differs = True
            if differs and (counted or self._labels[code] in self._unstable):
                self._plain.pop(code, None)
                self._snapshots.pop(code, None)
            elif differs:
                self._unstable.add(self._labels[code])

    def check_rebound(self) -> TracerError | None:
        """Put Variables back that the trace replaced by tensors; the error for the first of them."""
        error: TracerError | None = None
        for ref in [*(ref for ref, _ in self.reading.stores.values()), *self._variables]:
            if not hasattr(ref.value, "assign_add"):
                continue
            now = _current(ref)
            if (
                now is not ref.value
                and isinstance(now, Tensor)
                and not hasattr(now, "assign_add")
                and isinstance(now._value, Node)
            ):
                _put_back(ref)
                error = error or TracerError(
                    f"{ref.label} is a Variable and was rebound to a tensor; use {ref.label}.assign_add (or assign), "
                    f"which changes the Variable itself"
                )
        return error

    # -- for later calls -----------------------------------------------------------------------------------------------
    def watch(self, hidden: Sequence[Any]) -> Watch:
        """What later calls compare and read. hidden: expressions, or handles that are always the same."""
        wanted = {h for h in hidden if isinstance(h, str)}
        refs = {**(self._all or {}), **(self._found or {})}.values()
        paths = {id(r.value): r.code for r in refs if r.code in wanted}
        same = {
            r.code: paths[id(r.value)] for r in self.reading.arrays.values() if paths.get(id(r.value), r.code) != r.code
        }
        contents = {
            c: value
            for c, value in self._contents.items()
            if c in self.reading.computed or id(self.reading.passed[c].value) not in self._inputs
        }
        return Watch(self.reading, self._plain, self._snapshots, contents, same, self._labels, hidden)


class Watch:
    """The conditions of a trace on values from outside, and its hidden inputs.

    read(instance): the hidden handles, or None if something has changed.
    """

    def __init__(
        self,
        reading: Reading,
        plain: dict[str, Any],
        snapshots: dict[str, Any],
        arrays: dict[str, Any],
        same: dict[str, str],
        labels: dict[str, str],
        hidden: Sequence[Any],
    ):
        self._labels = labels
        names: dict[str, Any] = {"differs": _differs, "snapshot": snapshot, "contents": contents, "MISSING": _MISSING}
        self._checks: list[tuple[str, str, Any]] = []  # expression, how it is compared, value
        lines: list[str] = []
        owners = [owner for owner, _, _ in reading.absent.values()]
        paths = [h for h in hidden if isinstance(h, str)]
        places = _Places([*plain, *snapshots, *arrays, *owners, *same, *same.values(), *paths])
        at = places.short
        for k, (code, value) in enumerate(plain.items()):
            names[f"_p{k}"] = value
            self._checks.append((code, "plain", value))
            lines += [f"        if (v := {at(code)}) is not _p{k} and differs(v, _p{k}): return None"]
        for k, (code, value) in enumerate(snapshots.items()):
            names[f"_s{k}"] = value
            self._checks.append((code, "whole", value))
            held = reading.whole[code].value
            if _never_changes(held):  # mostly it is the same object, which says enough
                names[f"_o{k}"] = held
                lines += [f"        if (v := {at(code)}) is not _o{k} and snapshot(v) != _s{k}: return None"]
            else:
                lines += [f"        if snapshot({at(code)}) != _s{k}: return None"]
        for k, (code, value) in enumerate(arrays.items()):
            names[f"_a{k}"] = value
            self._checks.append((code, "contents", value))
            lines += [f"        if contents({at(code)}) != _a{k}: return None"]
        for owner, name, label in reading.absent.values():
            self._checks.append((f"getattr({owner}, {name!r}, MISSING)", "absent", label))
            lines += [f"        if getattr({at(owner)}, {name!r}, MISSING) is not MISSING: return None"]
        for code, other in same.items():  # two places that hold one handle
            self._checks.append((f"{code} is {other}", "same", labels.get(code, code)))
            lines += [f"        if {at(code)} is not {at(other)}: return None"]
        fixed, handles = [], []
        for k, h in enumerate(hidden):
            if not isinstance(h, str):
                names[f"_h{k}"] = h
                fixed.append(h)
            handles.append(at(h) if isinstance(h, str) else f"_h{k}")
        used = set(_IDENTIFIER.findall("\n".join([*places.lines, *lines, *handles])))
        names.update({n: v for n, v in reading.roots.items() if n in used})
        self._names = names
        if not lines and len(fixed) == len(hidden):
            constant = tuple(hidden)
            self.read: Callable[[Any], Sequence[Any] | None] = lambda instance: constant
            self.constant = True
            return
        self.constant = False
        source = "\n".join(
            [
                "def read(S):",
                "    try:",
                *places.lines,
                *lines,
                f"        return [{', '.join(handles)}]",
                "    except Exception: return None",
            ]
        )
        space = dict(names)
        exec(compile(source, "<tracejit watch>", "exec"), space)
        self.read = space["read"]

    def difference(self, instance: Any) -> str:
        """The first thing that has changed, in words; "" if nothing has."""
        for code, how, value in self._checks:
            label = self._labels.get(code, value if how in ("absent", "same") else code)
            try:
                now = eval(code, dict(self._names), {"S": instance})
            except Exception as error:
                return f"{label} cannot be read any more ({type(error).__name__})"
            if how == "absent" and now is not _MISSING:
                return f"{label} was not there, and is {now!r:.60}"
            if how == "same" and not now:
                return f"{label} is another tensor, and was found in two places"
            if how == "plain" and now is not value and _differs(now, value):
                return f"{label} {value!r:.60} -> {now!r:.60}"
            if (how == "whole" and snapshot(now) != value) or (how == "contents" and contents(now) != value):
                return f"{label} changed"
        return ""


def _never_changes(x: Any) -> bool:
    """Whether a container is a tuple of numbers, strings and such tuples."""
    return x.__class__ is tuple and all(isinstance(e, PLAIN) or _never_changes(e) for e in x)


class _Places:
    """Expressions that begin alike (`model.layers[3].kernel`, `model.layers[3].bias`): the part in common is worked out
    once. `lines` do that, `short` is what an expression becomes after them."""

    _PATH = re.compile(r"(\w+(?:\(\))?)((?:\.\w+|\[\d+\]|\['[^'\\]*'\])*)")
    _STEP = re.compile(r"\.\w+|\[\d+\]|\['[^'\\]*'\]")

    def __init__(self, codes: Sequence[str]):
        followers: dict[str, set[str]] = {}  # by beginning: what comes next
        for code in codes:
            parts = self._parts(code)
            for k in range(1, len(parts)):
                followers.setdefault("".join(parts[:k]), set()).add(parts[k])
        whole = set(codes)
        shared = [c for c, after in followers.items() if len(after) + (c in whole) > 1 and len(self._parts(c)) > 1]
        self._names: dict[str, str] = {}
        self.lines: list[str] = []
        for code in sorted(shared, key=len):
            short = self.short(code)
            self._names[code] = f"_v{len(self._names)}"
            self.lines.append(f"        {self._names[code]} = {short}")

    def _parts(self, code: str) -> list[str]:
        found = self._PATH.fullmatch(code)
        return [code] if found is None else [found[1], *self._STEP.findall(found[2])]

    def short(self, code: str) -> str:
        """The expression, in terms of what has been worked out."""
        parts = self._parts(code)
        for k in range(len(parts), 1, -1):
            name = self._names.get("".join(parts[:k]))
            if name is not None:
                return name + "".join(parts[k:])
        return code


def members(x: Any) -> list[Any]:
    """What a container holds now: numbers and strings by value, other things by identity."""
    pairs = x.items() if isinstance(x, dict) else ((None, v) for v in x)
    found = [(repr(k), repr(v) if isinstance(v, PLAIN) else id(v)) for k, v in pairs]
    return sorted(found, key=str) if isinstance(x, set) else found


def _variables_in(ref: Ref) -> list[Ref]:
    """The Variables that a list or dict holds itself."""
    x = ref.value
    pairs = x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ()
    return [Ref("", v, f"{ref.label}[{k!r}]", x, k) for k, v in pairs if hasattr(v, "assign_add")]


class _Opaque(dict[type, bool]):
    """By type: whether a snapshot shows nothing of an object but that."""

    def __missing__(self, cls: type) -> bool:
        if len(self) > 1000:
            self.clear()
        shown = (*CONTAINERS, type(None), int, float, complex, str, bytes)
        self[cls] = found = not issubclass(cls, shown)
        return found


_OPAQUE = _Opaque()


def snapshot(x: Any) -> Any:
    """A container as something comparable: numbers and strings by value and type, arrays and objects by type only
    (their contents are watched, or read, one by one). MISSING if it is too large."""
    count = 0

    def take(x: Any) -> Any:
        nonlocal count
        count += 1
        if count > MAX_CONTAINER:
            raise OverflowError
        cls = x.__class__
        if cls is list or cls is dict:  # of tensors and other objects, mostly
            types = tuple(map(type, x if cls is list else x.values()))
            if all(map(_OPAQUE.__getitem__, types)) and (cls is list or set(map(type, x)) <= {str}):
                count += len(types)
                return (cls, types) if cls is list else (cls, types, tuple(x))
        if isinstance(x, SEQUENCES):
            return cls, tuple([take(e) for e in x])
        if cls is set or cls is frozenset:
            return cls, frozenset([take(e) for e in x])
        if isinstance(x, dict):
            return cls, tuple([(take(k), take(v)) for k, v in x.items()])
        if cls is float or cls is complex:
            return cls, repr(x)
        if x is None or cls is int or cls is str or cls is bool or cls is bytes:
            return cls, x
        return cls

    try:
        return take(x)
    except (OverflowError, RecursionError):
        return _MISSING


def contents(x: np.ndarray) -> Any:
    """An array's contents as something comparable."""
    return x.shape, x.dtype, x.tobytes()


def _differs(a: Any, b: Any) -> bool:
    """Whether two values, which are not the same object, are not alike either."""
    if a.__class__ is not b.__class__:
        return True
    if isinstance(a, (float, complex, np.generic)):
        return repr(a) != repr(b)  # tells 0.0 from -0.0; nan is itself
    return _is_code(a) or a != b


def _is_code(x: Any) -> bool:
    return isinstance(x, types.FunctionType)


def _is_object(x: Any) -> bool:
    """Whether an argument is an ordinary object, whose attributes may be read."""
    plain = (
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        np.generic,
        np.ndarray,
        Tensor,
        dict,
        list,
        tuple,
        set,
        frozenset,
    )
    return not isinstance(x, plain)


def _parent(code: str) -> str:
    """The container's expression, of an item's."""
    return code[: code.rindex("[")] if code.endswith("]") else ""


def _by_identity(refs: Sequence[Ref]) -> dict[int, Ref]:
    """Handles by the id of the handle, and of its value (for copies of the handle)."""
    found: dict[int, Ref] = {}
    for ref in refs:
        found.setdefault(id(ref.value), ref)
    for ref in refs:
        if isinstance(ref.value, Tensor):
            found.setdefault(id(ref.value._value), ref)
    return found


def _current(ref: Ref) -> Any:
    """What is now in the place where `ref` was found."""
    owner = ref.owner
    try:
        if isinstance(owner, types.CellType):
            return owner.cell_contents
        return owner[ref.key] if isinstance(owner, (dict, list)) else owner.__dict__[ref.key]
    except (KeyError, IndexError, ValueError, AttributeError):
        return None


def _put_back(ref: Ref) -> None:
    owner = ref.owner
    if isinstance(owner, types.CellType):
        owner.cell_contents = ref.value
    elif isinstance(owner, (dict, list)):
        owner[ref.key] = ref.value
    else:
        setattr(owner, ref.key, ref.value)


def _walk_objects(refs: Sequence[Ref], depth: int = 6, limit: int = 20_000) -> Iterator[Ref]:
    """Everything reachable from `refs` through attributes and containers, nearest first."""
    seen: set[int] = set()
    level = list(refs)
    for _ in range(depth):
        following: list[Ref] = []
        for ref in level:
            x = ref.value
            if id(x) in seen or isinstance(x, (*PLAIN, type, types.ModuleType, types.FunctionType)):
                continue
            seen.add(id(x))
            yield ref
            if len(seen) > limit:
                return
            if isinstance(x, (Tensor, np.ndarray)):
                continue
            if isinstance(x, dict):
                following += [
                    Ref(f"{ref.code}[{k!r}]", v, f"{ref.label}[{k!r}]", x, k)
                    for k, v in x.items()
                    if isinstance(k, (str, int))
                ]
            elif isinstance(x, (list, tuple)):
                following += [Ref(f"{ref.code}[{k}]", v, f"{ref.label}[{k}]", x, k) for k, v in enumerate(x)]
            elif isinstance(own := getattr(x, "__dict__", None), dict):
                following += [
                    Ref(f"{ref.code}.{k}", v, f"{ref.label}.{k}", x, k) for k, v in own.items() if k.isidentifier()
                ]
        level = following
