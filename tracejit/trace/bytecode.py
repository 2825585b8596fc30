"""What a Python function can read from outside itself, found from its bytecode.

In: a function and what is known of its arguments. Out: `Reading`: the places (globals, closure cells, attributes,
items) that it and the Python functions it calls may read, each as a Python expression with the object found there now.

The code is walked once or twice in a straight line with a stack of abstract values. A value is a tuple of `Ref`s, the
objects it may be; empty for anything computed. Too many refs are harmless (a guard too many), so every doubt adds; what
cannot be followed at all is reported. Instructions are handled by the names they have in Python 3.11 to 3.14.

Read next: `captures.py` (what becomes of a reading).
"""

from __future__ import annotations

import dis
import functools
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracejit.tensor import Tensor
from tracejit.trace.reading import (
    CHANGES,
    CONTAINERS,
    FOREIGN_MODULES,
    INDIFFERENT,
    MAX_REFS,
    METADATA,
    MUTABLE,
    MUTATORS,
    PLAIN,
    SEQUENCES,
    Bound,
    Const,
    Item,
    Local,
    Reading,
    Ref,
    Scope,
    Super,
    Value,
    followed,
    operators,
    packaged,
    python_function,
    union,
)

MAX_CODES = 20_000  # walks of code for one function; a layer of a model takes about ten
_MISSING = object()


class Analyst:
    """Walks functions and fills in a `Reading`."""

    def __init__(self) -> None:
        self.reading = Reading()
        self._done: dict[Any, Value] = {}
        self._noted: set[str] = set()
        self._names: dict[int, str] = {}

    # -- roots ---------------------------------------------------------------------------------------------------------
    def root(self, value: Any, prefix: str = "r") -> str:
        """A name for an object that expressions start from."""
        name = self._names.get(id(value))
        if name is None:
            name = self._names[id(value)] = f"{prefix}{len(self._names)}"
            self.reading.roots[name] = value
        return name

    # -- functions -----------------------------------------------------------------------------------------------------
    def function(self, f: types.FunctionType, bound: dict[str, Value] | None = None, code: str = "") -> Value:
        """Walk a Python function. `bound`: what its parameters may be. Gives what it may return."""
        if not followed(f.__code__):
            self._library(f, code)
            return ()
        scope = Scope(None, self.root(f.__globals__, "g"), f.__globals__)
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ()):
            try:
                value = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            scope.add(name, self.note(Ref(f"{self.root(cell, 'c')}.cell_contents", value, name, cell, "cell_contents")))
        here = code or self.root(f, "f")
        if packaged(f.__code__):  # its defaults stay
            return self._code(f.__code__, self._bound(scope, bound))
        names = f.__code__.co_varnames[: f.__code__.co_argcount]
        for k, default in enumerate(f.__defaults__ or ()):
            name = names[len(names) - len(f.__defaults__ or ()) + k]
            if not bound or name not in bound:
                scope.add(name, self.note(Ref(f"{here}.__defaults__[{k}]", default, f"{f.__name__}'s default {name}")))
        for name, default in (f.__kwdefaults__ or {}).items():
            if not bound or name not in bound:
                scope.add(
                    name, self.note(Ref(f"{here}.__kwdefaults__[{name!r}]", default, f"{f.__name__}'s default {name}"))
                )
        return self._code(f.__code__, self._bound(scope, bound))

    @staticmethod
    def _bound(scope: Scope, bound: dict[str, Value] | None) -> Scope:
        for name, value in (bound or {}).items():
            scope.add(name, value)
        return scope

    def _library(self, f: types.FunctionType, code: str) -> None:
        """A library's function may hold user functions in its closure (a wrapper, a gradient)."""
        if ("library", id(f)) in self._done:
            return
        self._done["library", id(f)] = ()
        for cell in f.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            if callable(value) and not isinstance(value, type):
                self.note(Ref(f"{self.root(cell, 'c')}.cell_contents", value, getattr(value, "__name__", "function")))

    def _code(self, code: types.CodeType, scope: Scope) -> Value:
        key = code, id(scope.outer), scope.globals_code, tuple((n, tuple(v)) for n, v in scope.names.items())
        if key in self._done:
            return self._done[key]
        if len(self._done) > MAX_CODES:
            self.reading.blind["size"] = "it reaches too much code"
            return ()
        self._done[key] = ()  # a recursion finds nothing new
        result = _Walk(self, code, scope).run()
        self._done[key] = result
        return result

    # -- objects -------------------------------------------------------------------------------------------------------
    def note(self, ref: Ref) -> Value:
        """Register what is read; gives the value to go on with."""
        x = ref.value
        if ref.code in self._noted:
            return (ref,)
        self._noted.add(ref.code)
        r = self.reading
        if isinstance(x, PLAIN):
            r.plain[ref.code] = ref
        elif isinstance(x, (Tensor, np.ndarray)):
            r.arrays[ref.code] = ref
        elif isinstance(x, types.FunctionType):
            if followed(x.__code__):
                r.plain[ref.code] = ref
            self.function(x, code=ref.code)
        elif isinstance(x, types.MethodType):
            self._method(x.__func__, Ref(f"{ref.code}.__self__", x.__self__, f"{ref.label}.__self__"))
        elif isinstance(x, functools.partial):
            inside = self.note(Ref(f"{ref.code}.func", x.func, ref.label))
            label = f"{ref.label}'s argument"
            args = [self.note(Ref(f"{ref.code}.args[{k}]", a, f"{label} {k}")) for k, a in enumerate(x.args)]
            args += [self.note(Ref(f"{ref.code}.keywords[{k!r}]", a, f"{label} {k}")) for k, a in x.keywords.items()]
            self.call(inside, args, tuple(x.keywords), Scope(None, "", {}), analyse.__code__)
        elif isinstance(x, type):
            for name in ("__init__", "__new__"):
                if isinstance(f := x.__dict__.get(name), types.FunctionType):
                    self.function(f, {})
        elif isinstance(x, CONTAINERS) or isinstance(x, types.ModuleType):
            pass
        else:
            r.objects[ref.code] = ref
            if isinstance(inner := python_function(x), (types.FunctionType, functools.partial)):  # a decorated function
                owner = getattr(x, "__self__", None)
                if owner is not None and isinstance(inner, types.FunctionType):
                    self._method(inner, Ref(f"{ref.code}.__self__", owner, f"{ref.label}.__self__"))
                else:
                    self.note(Ref(f"{ref.code}.python_function", inner, ref.label))
        return (ref,)

    def _method(self, f: Any, instance: Ref) -> Value:
        if isinstance(f, types.FunctionType) and f.__code__.co_argcount:
            return self.function(f, {f.__code__.co_varnames[0]: self.note(instance)})
        return ()

    def attribute(self, item: Item, name: str) -> Value:
        """`item.name`, without running user code."""
        if isinstance(item, Super):
            mro = type(item.instance.value).__mro__
            later = mro[mro.index(item.cls) + 1 :] if item.cls in mro else ()
            found = next((c.__dict__[name] for c in later if name in c.__dict__), None)
            f = python_function(found) or found
            return (Bound(f, item.instance),) if isinstance(f, types.FunctionType) else ()
        if not isinstance(item, Ref):
            return ()
        x = item.value
        if isinstance(x, np.ndarray) and name not in METADATA:
            self.compute(item)
        if isinstance(x, (Tensor, np.ndarray, *PLAIN)):
            return ()
        code, label = f"{item.code}.{name}", f"{item.label}.{name}"
        if isinstance(x, types.ModuleType):
            if x.__name__.split(".")[0] in FOREIGN_MODULES or name not in x.__dict__:
                return ()
            return self.note(Ref(code, x.__dict__[name], label, x, name))
        if isinstance(x, CONTAINERS):
            if name in MUTATORS:  # changes it, but reads nothing
                return ()
            self.whole(item)
            return self.elements((item,))
        if isinstance(x, type):
            for c in x.__mro__:
                if name in c.__dict__:
                    return self._class_attribute(c.__dict__[name], item, None, code, label)
            return ()
        own = getattr(x, "__dict__", None)
        on_class = next((c.__dict__[name] for c in type(x).__mro__ if name in c.__dict__), _MISSING)
        if isinstance(on_class, property):
            return self._method(on_class.fget, item)
        if isinstance(own, dict) and name in own:
            ref = Ref(code, own[name], label, x, name)
            if isinstance(own[name], types.FunctionType):  # also one that is not followed: another may take its place
                self.reading.plain[code] = ref
            return self.note(ref)
        if on_class is not _MISSING:
            return self._class_attribute(on_class, item, item, code, label)
        if any("__getattr__" in c.__dict__ for c in type(x).__mro__):
            self.reading.blind.setdefault(label, "the attribute is computed by __getattr__")
            return ()
        self.reading.absent[code] = item.code, name, label
        return ()

    def _class_attribute(self, found: Any, item: Ref, instance: Ref | None, code: str, label: str) -> Value:
        """A value from a class's dict, seen through `item` (an instance, or the class itself)."""
        if isinstance(found, staticmethod):
            found, instance = found.__func__, None
        elif isinstance(found, classmethod):
            cls = item.value if instance is None else type(item.value)
            found, instance = (
                found.__func__,
                Ref(f"type({item.code})" if instance is not None else item.code, cls, cls.__name__),
            )
        if isinstance(found, functools.cached_property):
            return self._method(found.func, item)
        inner = python_function(found) or found
        if isinstance(inner, types.FunctionType):
            decorated = inner is not found
            if instance is None:
                return self.note(Ref(f"{code}.python_function" if decorated else code, inner, label))
            if followed(inner.__code__) and not packaged(inner.__code__):  # another method may take its place
                place = f"{code}.python_function" if decorated else f"{code}.__func__"
                self.reading.plain.setdefault(place, Ref(place, inner, label))
            self._method(inner, instance)
            return (Bound(inner, instance, code),)
        if isinstance(found, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            try:
                return self.note(
                    Ref(code, found.__get__(item.value, type(item.value)), label, item.value, code.rsplit(".", 1)[-1])
                )
            except AttributeError:  # an empty slot
                self.reading.absent[code] = item.code, code.rsplit(".", 1)[-1], label
                return ()
        if isinstance(found, _BUILTIN_METHODS):
            return ()
        if hasattr(type(found), "__get__"):
            self.reading.blind.setdefault(label, f"the attribute is computed by a {type(found).__name__}")
            return ()
        return self.note(Ref(code, found, label, item.value, code.rsplit(".", 1)[-1]))

    def item(self, item: Item, key: Any) -> Value:
        """`item[key]` with a constant key."""
        if not isinstance(item, Ref):
            return ()
        x = item.value
        if isinstance(x, np.ndarray):
            self.compute(item)
        if isinstance(x, (Tensor, np.ndarray, *PLAIN, type)):
            return ()
        f = getattr(type(x), "__getitem__", None)
        if isinstance(x, (dict, *SEQUENCES)) or (f is not None and not _is_users(f)):
            try:
                value = x[key]
            except Exception:
                self.whole(item)
                return ()
            name = repr(key) if isinstance(key, (str, int)) else self.root(key, "k")
            return self.note(Ref(f"{item.code}[{name}]", value, f"{item.label}[{key!r}]", x, key))
        return self._method(f, item) if _is_users(f) else ()

    def elements(self, value: Value) -> Value:
        """What iterating may give: the values of containers, other things as they are."""
        found: list[Value] = []
        for item in value:
            if isinstance(item, Ref) and isinstance(item.value, (dict, *SEQUENCES)):
                self.whole(item)
                pairs = item.value.items() if isinstance(item.value, dict) else enumerate(item.value)
                for key, x in list(pairs)[:MAX_REFS]:
                    name = repr(key) if isinstance(key, (str, int)) else self.root(key, "k")
                    found.append(self.note(Ref(f"{item.code}[{name}]", x, f"{item.label}[{key!r}]", item.value, key)))
            elif isinstance(item, Ref) and not isinstance(item.value, (*PLAIN, Tensor, np.ndarray)):
                f = getattr(type(item.value), "__iter__", None)
                found.append(self._method(f, item) if isinstance(f, types.FunctionType) else (item,))
            else:
                found.append((item,))
        return union(*found)

    def whole(self, item: Item) -> None:
        """A value is used in a way that may depend on all of it."""
        if not isinstance(item, Ref):
            return
        x = item.value
        if isinstance(x, np.ndarray):
            self.reading.passed.setdefault(item.code, item)
        elif isinstance(x, CONTAINERS):
            if item.code not in self.reading.whole:
                self.reading.whole[item.code] = item
                for e in self.elements((item,)):
                    if isinstance(e, Ref) and isinstance(e.value, np.ndarray):
                        self.reading.passed.setdefault(e.code, e)
        elif not isinstance(x, (*PLAIN, Tensor, type, types.ModuleType, types.FunctionType, types.MethodType)):
            for f in operators(x):
                self._method(f, item)

    def compute(self, item: Item) -> None:
        """NumPy or Python computes with a value: with an array's contents, which no op will see."""
        if isinstance(item, Ref) and isinstance(item.value, np.ndarray):
            self.reading.computed.setdefault(item.code, item)

    def call(
        self, callee: Value, args: Sequence[Value], names: Sequence[str], scope: Scope, code: types.CodeType
    ) -> Value:
        """Calling a value. `names` are the keywords of the last arguments."""
        results: list[Value] = []
        followed_all = bool(callee)
        for item in callee:
            x = item.value if isinstance(item, Ref) else None
            first: tuple[Value, ...] = ()
            f: Any = None
            if isinstance(item, Local):
                results.append(self._local(item, args, names))
                continue
            if isinstance(item, Bound):
                f, first = item.function, ((item.instance,),) if item.instance is not None else ()
            elif isinstance(x, types.FunctionType):
                f = x
            elif isinstance(item, Ref) and isinstance(x, types.MethodType):
                f, first = x.__func__, (self.note(Ref(f"{item.code}.__self__", x.__self__, item.label)),)
            elif x is super:
                results.append(self._super(args, scope, code))
                continue
            elif isinstance(item, Ref) and isinstance(x, weakref.ref) and not args:
                if (target := x()) is not None:
                    results.append(self.note(Ref(f"{item.code}()", target, f"{item.label}()")))
                continue
            elif x is getattr and len(args) >= 2 and args[1] and isinstance(args[1][0], Const):
                results += [self.attribute(a, args[1][0].value) for a in args[0]]
                continue
            elif isinstance(item, Ref) and (inner := python_function(x)) is not None:
                f = inner
                if (owner := getattr(x, "__self__", None)) is not None:
                    first = (self.note(Ref(f"{item.code}.__self__", owner, item.label)),)
            elif x is not None and not isinstance(x, type):
                on_class = _call_of(type(x))
                f, first = python_function(on_class) or on_class, ((item,),)
            if isinstance(f, types.FunctionType) and followed(f.__code__):
                results.append(
                    self.function(
                        f,
                        self._bind(f.__code__, [*first, *args], names),
                        item.code if isinstance(item, Ref) and x is f else "",
                    )
                )
            else:
                followed_all = False
        if callee and all(isinstance(c, Ref) and any(c.value is f for f in INDIFFERENT) for c in callee):
            for a in args:
                for item in a:
                    if not (isinstance(item, Ref) and isinstance(item.value, np.ndarray)):
                        self.whole(item)
        elif not followed_all:  # a builtin or library function: it may look at everything, and give back parts of it
            for a in args:
                for item in a:
                    self.whole(item)
            results.append(self.elements(union(*args)))
        return union(*results)

    def _bind(self, code: types.CodeType, args: Sequence[Value], names: Sequence[str]) -> dict[str, Value]:
        positional = args[: len(args) - len(names)]
        bound = dict(zip(code.co_varnames[: code.co_argcount], positional))
        bound.update(zip(names, args[len(args) - len(names) :]))
        rest = positional[code.co_argcount :]
        if rest and code.co_flags & 0x04:  # *args
            bound[code.co_varnames[code.co_argcount + code.co_kwonlyargcount]] = union(*rest)
        return bound

    def _local(self, item: Local, args: Sequence[Value], names: Sequence[str]) -> Value:
        scope = Scope(item.scope, item.scope.globals_code, item.scope.globals)
        for name, value in self._bind(item.code, args, names).items():
            scope.add(name, value)
        return self._code(item.code, scope)

    def _super(self, args: Sequence[Value], scope: Scope, code: types.CodeType) -> Value:
        classes = args[0] if args else scope.get("__class__")
        instances = args[1] if len(args) > 1 else scope.get(code.co_varnames[0]) if code.co_argcount else ()
        return tuple(
            Super(c.value, i)
            for c in classes
            for i in instances
            if isinstance(c, Ref) and isinstance(i, Ref) and isinstance(c.value, type)
        )


def _is_users(f: Any) -> bool:
    return isinstance(f, types.FunctionType) and followed(f.__code__)


def _may_be_tensor(value: Value) -> bool:
    return any(isinstance(item, Ref) and isinstance(item.value, Tensor) for item in value)


def _call_of(cls: type) -> Any:
    """The function that calling an instance runs, if it is written in Python."""
    return next((c.__dict__["__call__"] for c in cls.__mro__ if "__call__" in c.__dict__), None)


@functools.lru_cache(4096)
def _instructions(code: types.CodeType) -> tuple[list[dis.Instruction], bool]:
    """The instructions of a code object, and whether there are loops."""
    found = list(dis.get_instructions(code))
    return found, any("JUMP_BACKWARD" in i.opname for i in found)


class _Walk:
    """One code object, instruction by instruction."""

    def __init__(self, analyst: Analyst, code: types.CodeType, scope: Scope):
        self.analyst, self.code, self.scope = analyst, code, scope
        self.stack: list[Value] = []
        self.results: list[Value] = []
        self.keywords: Sequence[str] = ()
        self.line = code.co_firstlineno

    def run(self) -> Value:
        instructions, loops = _instructions(self.code)
        for _ in range(2 if loops else 1):  # names set later in a loop
            at_label: dict[int, list[Value]] = {}
            self.stack, falls = [], True
            for i in instructions:
                if i.offset in at_label:
                    other = at_label[i.offset]
                    if not falls:
                        self.stack = list(other)
                    elif len(other) == len(self.stack):
                        self.stack = [union(a, b) if a != b else a for a, b in zip(self.stack, other)]
                self.line = (i.positions.lineno if i.positions is not None else None) or self.line
                falls = self._step(i)
                if i.opcode in _JUMPS and isinstance(i.argval, int) and i.argval > i.offset:
                    at_label.setdefault(i.argval, list(self.stack))
        # functions made inside may run at any time
        for value in list(self.scope.names.values()):
            for item in list(value.values()):
                if isinstance(item, Local):
                    self.analyst.call((item,), (), (), self.scope, self.code)
        return union(*self.results)

    def pop(self) -> Value:
        return self.stack.pop() if self.stack else ()

    def take(self, n: int) -> list[Value]:
        return [self.pop() for _ in range(n)][::-1]

    def push(self, value: Value = ()) -> None:
        self.stack.append(value)

    def consume(self, *values: Value) -> None:
        for v in values:
            for item in v:
                self.analyst.whole(item)

    def compute(self, *values: Value) -> None:
        for v in values:
            for item in v:
                self.analyst.compute(item)

    def _store(self, ref: Ref) -> None:
        self.analyst.reading.stores.setdefault(ref.code, (ref, f"{self.code.co_filename}:{self.line}"))

    def _mutate(self, owner: Value) -> None:
        """A container from outside may be changed here."""
        for item in owner:
            if isinstance(item, Ref) and isinstance(item.value, MUTABLE):
                self.analyst.reading.mutated.setdefault(item.code, (item, f"{self.code.co_filename}:{self.line}"))

    def load_global(self, name: str) -> Value:
        scope = self.scope
        if name in scope.globals:
            value = scope.globals[name]
            if isinstance(value, types.ModuleType):
                return (Ref(f"{scope.globals_code}[{name!r}]", value, name),)
            ref = Ref(f"{scope.globals_code}[{name!r}]", value, name, scope.globals, name)
            if isinstance(value, types.FunctionType) and packaged(self.code) and packaged(value.__code__):
                return (ref,)
            return self.analyst.note(ref)
        builtin = _BUILTINS.get(name)
        return (Ref("None", builtin, name),) if builtin is not None else ()

    def _step(self, i: dis.Instruction) -> bool:
        """Run one instruction; whether the next one follows it."""
        op, a = i.opname, self.analyst
        if op.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")):
            if op == "LOAD_FROM_DICT_OR_DEREF":
                self.pop()
            for name in i.argval if isinstance(i.argval, tuple) else (i.argval,):
                self.push(self.scope.get(name))
        elif op == "STORE_FAST_LOAD_FAST":
            self.scope.add(i.argval[0], self.pop())
            self.push(self.scope.get(i.argval[1]))
        elif op in ("STORE_FAST", "STORE_FAST_STORE_FAST", "STORE_DEREF", "STORE_FAST_MAYBE_NULL"):
            for name in i.argval if isinstance(i.argval, tuple) else (i.argval,):
                value = self.pop()
                for item in self.scope.get(name) if op == "STORE_DEREF" else ():
                    if isinstance(item, Ref) and isinstance(item.owner, types.CellType) and item.label == name:
                        self._store(item)
                self.scope.add(name, value)
        elif op in ("LOAD_GLOBAL", "LOAD_NAME"):
            null = op == "LOAD_GLOBAL" and i.arg is not None and i.arg & 1
            if null:
                self.push()
            self.push(self.load_global(i.argval))
        elif op == "STORE_GLOBAL":
            self.pop()
            globals_ = self.scope.globals
            self._store(
                Ref(f"{self.scope.globals_code}[{i.argval!r}]", globals_.get(i.argval), i.argval, globals_, i.argval)
            )
        elif op in ("LOAD_CONST", "LOAD_SMALL_INT"):
            self.push((Const(i.argval),))
        elif op in ("LOAD_ATTR", "LOAD_METHOD"):
            owner = self.pop()
            if i.argval in CHANGES:
                self._mutate(owner)
            found = union(*(a.attribute(item, i.argval) for item in owner))
            self.push(found)
            if op == "LOAD_METHOD" or "NULL|self" in i.argrepr:
                self.push()
        elif op.startswith("LOAD_SUPER_ATTR"):
            _, classes, instances = self.take(3)
            both = a._super((classes, instances), self.scope, self.code)
            self.push(union(*(a.attribute(s, i.argval) for s in both)))
            if "NULL|self" in i.argrepr or (i.arg is not None and i.arg & 1):
                self.push()
        elif op == "STORE_ATTR":
            owner, _ = self.pop(), self.pop()
            for item in owner:
                if isinstance(item, Ref):
                    now = getattr(item.value, "__dict__", {}).get(i.argval)
                    self._store(Ref(f"{item.code}.{i.argval}", now, f"{item.label}.{i.argval}", item.value, i.argval))
        elif op == "STORE_SUBSCR":
            key, owner, _ = self.pop(), self.pop(), self.pop()
            self._mutate(owner)
            for item in owner:
                if isinstance(item, Ref) and isinstance(item.value, dict) and key and isinstance(key[0], Const):
                    k = key[0].value
                    self._store(Ref(f"{item.code}[{k!r}]", item.value.get(k), f"{item.label}[{k!r}]", item.value, k))
        elif op == "BINARY_SUBSCR" or (op == "BINARY_OP" and i.argrepr == "[]"):
            key, container = self.pop(), self.pop()
            if key and isinstance(key[0], Const) and not isinstance(key[0].value, slice):
                self.push(union(*(a.item(item, key[0].value) for item in container)))
            else:
                self.consume(key, container)
                self.compute(container)
                self.push(a.elements(container))
        elif op in ("BINARY_OP", "COMPARE_OP", "IS_OP", "CONTAINS_OP"):
            values = self.take(2)
            if op != "IS_OP":
                self.consume(*values)
            # an operand of which nothing is known may be a tensor: then an op sees the array
            if op == "CONTAINS_OP" or (op != "IS_OP" and all(v and not _may_be_tensor(v) for v in values)):
                self.compute(*values)
            self.push()
        elif op in ("BUILD_TUPLE", "BUILD_LIST", "BUILD_SET"):
            self.push(union(*self.take(i.arg or 0)))
        elif op == "BUILD_MAP":
            self.push(union(*self.take(2 * (i.arg or 0))))
        elif op in ("LIST_APPEND", "SET_ADD", "LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE", "MAP_ADD"):
            values = self.take(2 if op == "MAP_ADD" else 1)
            added = (
                a.elements(union(*values))
                if op in ("LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE")
                else union(*values)
            )
            if i.arg is not None and len(self.stack) >= i.arg:
                self.stack[-i.arg] = union(self.stack[-i.arg], added)
        elif op in ("GET_ITER", "LIST_TO_TUPLE"):
            self.compute(self.stack[-1] if self.stack else ())
            self.push(a.elements(self.pop()))
        elif op == "FOR_ITER":
            self.push(self.stack[-1] if self.stack else ())
        elif op in ("UNPACK_SEQUENCE", "UNPACK_EX"):
            self.compute(self.stack[-1] if self.stack else ())
            parts = a.elements(self.pop())
            n = (i.arg or 0) if op == "UNPACK_SEQUENCE" else ((i.arg or 0) & 0xFF) + 1 + ((i.arg or 0) >> 8)
            for _ in range(n):
                self.push(parts)
        elif op == "COPY":
            self.push(self.stack[-(i.arg or 1)] if len(self.stack) >= (i.arg or 1) else ())
        elif op == "SWAP":
            n = i.arg or 1
            if len(self.stack) >= n:
                self.stack[-1], self.stack[-n] = self.stack[-n], self.stack[-1]
        elif op == "KW_NAMES":
            self.keywords = self.code.co_consts[i.arg or 0]  # `dis` does not look it up in every version
        elif op in ("CALL", "CALL_KW"):
            self._call(i)
        elif op == "CALL_FUNCTION_EX":
            kwargs = self.pop() if (i.arg or 0) & 1 or sys.version_info >= (3, 14) else ()
            args, callee = self.pop(), self.pop()
            if self.stack and not callee:
                callee = self.pop()
            elif self.stack and not self.stack[-1]:
                self.pop()
            parts = a.elements(union(args, kwargs))
            self.push(a.call(callee, [parts] * 8 if parts else [], (), self.scope, self.code))
        elif op == "MAKE_FUNCTION":
            code = self.pop()
            if dis.opmap.get("SET_FUNCTION_ATTRIBUTE") is None:
                self.take(bin((i.arg or 0) & 0x0F).count("1"))
            self._make_function(code)
        elif op == "SET_FUNCTION_ATTRIBUTE":
            function, _ = self.pop(), self.pop()
            self.push(function)
        elif op in ("RETURN_VALUE", "YIELD_VALUE"):
            self.results.append(self.pop())
            if op == "YIELD_VALUE":
                self.push()
            return op != "RETURN_VALUE"
        elif op in (
            "PUSH_NULL",
            "PRECALL",
            "RESUME",
            "NOP",
            "MAKE_CELL",
            "COPY_FREE_VARS",
            "CACHE",
            "TO_BOOL",
            "NOT_TAKEN",
            "RETURN_GENERATOR",
        ):
            if op in ("PUSH_NULL", "RETURN_GENERATOR"):
                self.push()
            elif op == "TO_BOOL":
                self.consume(self.stack[-1] if self.stack else ())
                self.compute(self.stack[-1] if self.stack else ())
        else:
            self._other(i)
        return op not in (
            "RETURN_VALUE",
            "RETURN_CONST",
            "RAISE_VARARGS",
            "RERAISE",
            "JUMP_FORWARD",
            "JUMP_BACKWARD",
            "JUMP_BACKWARD_NO_INTERRUPT",
        )

    def _call(self, i: dis.Instruction) -> None:
        names: Sequence[str] = self.keywords
        if i.opname == "CALL_KW":
            constant = self.pop()
            names = constant[0].value if constant and isinstance(constant[0], Const) else ()
        args = self.take(i.arg or 0)
        second, first = self.pop(), self.pop()
        self.keywords = ()
        callee, extra = (first, second) if first else (second, ())
        if extra:  # a function below its first argument (comprehensions)
            args = [extra, *args]
        self.push(self.analyst.call(callee, args, names, self.scope, self.code))

    def _make_function(self, code: Value) -> None:
        found = code[0].value if code and isinstance(code[0], Const) else None
        if not isinstance(found, types.CodeType):
            self.push()
            return
        local = Local(found, self.scope)
        self.scope.names.setdefault(f"<{found.co_name} {id(found)}>", {})[id(found)] = local
        self.push((local,))

    def _other(self, i: dis.Instruction) -> None:
        """Any other instruction: what it takes is gone, what it gives is unknown."""
        try:
            effect = dis.stack_effect(i.opcode, i.arg if i.opcode >= dis.HAVE_ARGUMENT else None, jump=False)
        except ValueError:
            effect = 0
        if effect < 0:
            taken = self.take(-effect)
            self.consume(*taken)
            if "JUMP_IF" in i.opname:
                self.compute(*taken)
        else:
            for _ in range(effect):
                self.push()
        if (
            self.stack
            and effect <= 0
            and "JUMP" not in i.opname
            and not i.opname.startswith(("POP", "DELETE", "STORE", "END"))
        ):
            self.consume(self.stack[-1])
            if i.opname.startswith("UNARY"):
                self.compute(self.stack[-1])
            self.stack[-1] = ()


_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_BUILTIN_METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType)
_BUILTINS: dict[str, Any] = dict(vars(__builtins__) if isinstance(__builtins__, types.ModuleType) else __builtins__)


def analyse(
    f: Callable[..., Any], arguments: dict[str, Any], instance: Any = None, has_instance: bool = False
) -> Analyst:
    """Walk `f`. `arguments`: for parameters that are ordinary objects, their roots; `instance`: what `self` is (its
    expression is S)."""
    analyst = Analyst()
    bound: dict[str, Value] = {name: analyst.note(ref) for name, ref in arguments.items()}
    if isinstance(f, types.FunctionType):
        if has_instance:
            analyst._names[id(instance)] = "S"
            bound[f.__code__.co_varnames[0]] = analyst.note(Ref("S", instance, f.__code__.co_varnames[0]))
        analyst.function(f, bound)
    else:  # a partial or a callable object, which the decorated function keeps alive
        ref = Ref(analyst.root(f, "f"), f, getattr(f, "__name__", type(f).__name__))
        analyst.note(ref)
        if not isinstance(f, (functools.partial, types.MethodType)):
            analyst.call((ref,), (), (), Scope(None, "", {}), analyse.__code__)
    return analyst
