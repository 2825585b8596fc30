"""What a reading of a function is made of: places outside it, and the objects found there.

In: nothing. Out: `Ref` and its kin (what a name may stand for while code is walked), `Reading` (what was found).

Read next: `bytecode.py` (which finds it).
"""

from __future__ import annotations

import os
import types
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import numpy as np

F = TypeVar("F")

MAX_REFS = 256  # objects one value may be

PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, np.dtype, Enum)
CONTAINERS = (dict, list, tuple, deque, set, frozenset)
SEQUENCES = (list, tuple, deque)
MUTATORS = frozenset(("append", "extend", "insert", "add", "update", "clear", "discard", "remove", "appendleft"))

CHANGES = MUTATORS | {"extendleft", "pop", "popleft", "popitem", "setdefault", "sort", "reverse"}
MUTABLE = (dict, list, deque, set)

# Code that is not followed: the standard library, numeric packages, and the parts of this package that users do not
# build with.
_STANDARD = os.path.dirname(os.__file__) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_FOREIGN = tuple(
    f"{os.sep}{name}{os.sep}" for name in ("numpy", "scipy", "optree", "numba", "llvmlite", "jax", "torch", "_pytest")
)
_OURS = (
    "ops",
    "trace",
    "runtime",
    "lower",
    "tensor.py",
    "function.py",
    "gradients.py",
    "variable.py",
    "tape.py",
    "custom.py",
    "linalg.py",
    "config.py",
    "dtypes.py",
    "errors.py",
    "ir.py",
    "__init__.py",
    "random.py",
)
# What is read of an array without its contents, and the builtins that look at no contents.
METADATA = frozenset(("shape", "dtype", "ndim", "size", "nbytes", "itemsize", "strides", "flags", "device"))
INDIFFERENT = frozenset((len, type, id, isinstance, issubclass, hasattr, callable, print, repr, range))
# Special methods that operators and builtins do not run.
_NOT_OPERATORS = frozenset(
    f"__{name}__"
    for name in (
        "init new post_init del repr str getattr getattribute setattr delattr init_subclass class_getitem enter exit "
        "reduce reduce_ex getstate setstate set_name get set delete dir sizeof"
    ).split()
)
FOREIGN_MODULES = frozenset(
    ("tracejit", "numpy", "scipy", "math", "builtins", "operator", "itertools", "functools", "np")
)


@dataclass(frozen=True, slots=True)
class Ref:
    """An object, and the expression that finds it again. `label` is that expression as the user would write it."""

    code: str
    value: Any
    label: str
    owner: Any = None  # the dict, cell or object that holds it, and under which name: so that it can be put back
    key: Any = None


@dataclass(frozen=True, slots=True)
class Bound:
    """A method found on an object: calling it binds `self`."""

    function: types.FunctionType
    instance: Ref | None
    code: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """A function made inside the walked code."""

    code: types.CodeType
    scope: Scope


@dataclass(frozen=True, slots=True)
class Super:
    """`super()` in a method."""

    cls: type
    instance: Ref


@dataclass(frozen=True, slots=True)
class Const:
    value: Any


Item = Ref | Bound | Local | Super | Const
Value = tuple[Item, ...]


@dataclass(slots=True)
class Reading:
    """What was found."""

    roots: dict[str, Any] = field(default_factory=dict)  # names used in expressions
    plain: dict[str, Ref] = field(default_factory=dict)  # numbers, strings, functions: compared at each call
    absent: dict[str, tuple[str, str, str]] = field(
        default_factory=dict
    )  # attributes looked for and not there: code, name, label
    whole: dict[str, Ref] = field(default_factory=dict)  # containers compared as a whole
    arrays: dict[str, Ref] = field(default_factory=dict)  # tensors, variables, arrays
    computed: dict[str, Ref] = field(default_factory=dict)  # NumPy arrays that NumPy or Python computes with
    passed: dict[str, Ref] = field(default_factory=dict)  # NumPy arrays passed on: it may, unless they become inputs
    objects: dict[str, Ref] = field(default_factory=dict)  # everything else that was passed through
    stores: dict[str, tuple[Ref, str]] = field(
        default_factory=dict
    )  # places that may be assigned: as they were, and the line
    mutated: dict[str, tuple[Ref, str]] = field(default_factory=dict)  # containers that may be changed, and the line
    blind: dict[str, str] = field(default_factory=dict)  # what could not be followed, and why


_ASIDE: set[types.CodeType] = set()


def aside(f: F) -> F:
    """Mark a function of this package that does no work on values: it makes Variables, or names things in errors. What
    it reads and writes is not watched."""
    _ASIDE.add(f.__code__)  # type: ignore[attr-defined]
    return f


def packaged(code: types.CodeType) -> bool:
    """Whether code is this package's own: nobody replaces it, so that it is not compared at each call."""
    return code.co_filename.startswith(_PACKAGE)


def followed(code: types.CodeType) -> bool:
    """Whether code is the user's, or built with this package, rather than a library's."""
    if code in _ASIDE:
        return False
    name = code.co_filename
    if name.startswith(_PACKAGE):
        return not name[len(_PACKAGE) :].startswith(_OURS)
    if name.startswith(_STANDARD) and "-packages" not in name[len(_STANDARD) :]:
        return False
    return not any(part in name for part in _FOREIGN) and not name.startswith("<frozen")


class Scope:
    """Names of one walked code object: what locals and cells may be."""

    def __init__(self, outer: Scope | None, globals_code: str, globals_: dict[str, Any]):
        self.names: dict[str, dict[Any, Item]] = {}
        self.outer = outer
        self.globals_code, self.globals = globals_code, globals_

    def get(self, name: str) -> Value:
        found = self.names.get(name)
        if found is not None:
            return tuple(found.values())
        return self.outer.get(name) if self.outer is not None else ()

    def add(self, name: str, value: Value) -> None:
        known = self.names.setdefault(name, {})
        for item in value:
            if not isinstance(item, Const) and len(known) < MAX_REFS:
                known[identity(item)] = item


def identity(item: Item) -> Any:
    return (
        item.code
        if isinstance(item, Ref)
        else (type(item), id(item.function), item.code)
        if isinstance(item, Bound)
        else id(item)
    )


def union(*values: Value) -> Value:
    found: dict[Any, Item] = {}
    for value in values:
        for item in value:
            if not isinstance(item, Const):
                found.setdefault(identity(item), item)
    return tuple(found.values())[:MAX_REFS]


def operators(x: Any) -> list[types.FunctionType]:
    """The user's special methods that an operator or a builtin may run on an object."""
    return [
        f
        for c in type(x).__mro__[:-1]
        for name, f in c.__dict__.items()
        if isinstance(f, types.FunctionType)
        and name.startswith("__")
        and name.endswith("__")
        and name not in _NOT_OPERATORS
        and followed(f.__code__)
        and f.__code__.co_filename != "<string>"  # a dataclass's own
    ]


def python_function(x: Any) -> Any:
    """What a decorated function decorates; None for anything else."""
    cls = type(x)
    ours = cls.__module__ == "tracejit.function" or cls in (types.FunctionType, types.MethodType)
    return getattr(x, "python_function", None) if ours else None
