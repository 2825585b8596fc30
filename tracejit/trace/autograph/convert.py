"""Which functions are rewritten, and when: at their first call from traced code, once per code object.

In: what traced code is about to call. Out: something to call in its place: the rewritten function, a builtin that knows
traced values, or the callee itself. The user's own functions are rewritten; the standard library, installed packages
and this package are not. Straight-line code that calls only those is left alone too, without a look at its source.

Read next: `source.py`, `transform.py`, `builtin.py`.
"""

from __future__ import annotations

import builtins
import dis
import functools
import opcode
import sys
import types
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracejit.tensor import Tensor
from tracejit.trace.autograph import operators, source, transform
from tracejit.trace.autograph.builtin import HIGHER_ORDER, SPECIAL
from tracejit.trace.autograph.source import PACKAGE, is_users

_GENERATORS = 0x20 | 0x80 | 0x200  # flags of generators, coroutines, async generators
MAX_CODES = 10_000


@dataclass(frozen=True, slots=True)
class _Rewritten:
    code: types.CodeType


_codes: dict[types.CodeType, _Rewritten | None] = {}  # None: stays as it is
_done: set[types.CodeType] = set()  # code that is rewritten already, functions inside included


def call(f: Any) -> Any:
    """What to call in place of `f`."""
    cls = f.__class__
    if cls is types.FunctionType:
        special = SPECIAL.get(f)
        return special if special is not None else _higher(f) if f in HIGHER_ORDER else convert_function(f)
    if cls is types.MethodType:
        inner = f.__func__
        if inner.__class__ is not types.FunctionType:
            return f
        special = SPECIAL.get(inner)
        if special is not None:
            return functools.partial(special, f.__self__)
        new = convert_function(inner)
        return f if new is inner else types.MethodType(new, f.__self__)
    if cls is types.BuiltinFunctionType or cls is type:
        special = SPECIAL.get(f)
        return special if special is not None else _higher(f) if f in HIGHER_ORDER else f
    return f if isinstance(f, type) else convert(f)


# What `ag__` is in rewritten code: the operators, and `call`.
RUNTIME = types.CellType(
    types.SimpleNamespace(call=call, **{name: getattr(operators, name) for name in operators.__all__})
)


def convert(f: Any) -> Any:
    """A callable, its Python code rewritten; the same object if there is nothing to rewrite."""
    if isinstance(f, types.FunctionType):
        return convert_function(f)
    if isinstance(f, types.MethodType):
        new = convert(f.__func__)
        return f if new is f.__func__ else types.MethodType(new, f.__self__)
    if isinstance(f, functools.partial):
        new = convert(f.func)
        return f if new is f.func else functools.partial(new, *f.args, **f.keywords)
    if isinstance(f, type) or not callable(f):
        return f
    method = getattr(type(f), "__call__", None)  # noqa: B004 - the function itself is wanted
    if isinstance(method, types.FunctionType) and is_users(method.__code__):
        new = convert_function(method)
        return f if new is method else types.MethodType(new, f)
    return f


def convert_function(f: types.FunctionType) -> types.FunctionType:
    """A Python function, rewritten."""
    code = f.__code__
    if code in _done:
        return f
    try:
        found = _codes[code]
    except KeyError:
        found = _rewrite(f)
        if len(_codes) > MAX_CODES:
            _codes.clear()
        if found is not None or not code.co_freevars or not is_users(code) or source.why_not(code):
            _codes[code] = found  # else another function of the same code may close over other functions
    if found is None:
        return _with_inner(f) if f.__closure__ and code.co_filename.startswith(PACKAGE) else f
    cells = dict(zip(code.co_freevars, f.__closure__ or (), strict=True))
    cells[transform.RUNTIME] = RUNTIME
    closure = tuple([cells[n] for n in found.code.co_freevars])
    new = types.FunctionType(found.code, f.__globals__, f.__name__, f.__defaults__, closure)
    new.__kwdefaults__ = f.__kwdefaults__
    new.__dict__.update(f.__dict__)
    new.__qualname__, new.__module__, new.__doc__ = f.__qualname__, f.__module__, f.__doc__
    return new


def _rewrite(f: types.FunctionType) -> _Rewritten | None:
    code = f.__code__
    if not is_users(code) or code.co_flags & _GENERATORS or not _has_work(code, f):
        return None
    try:
        node = source.find(code, f.__globals__)
        new = transform.rewrite(node, code)
    except source.SourceError as error:
        source.remember(code, str(error))
        return None
    except (SyntaxError, RecursionError) as error:
        source.remember(code, f"it could not be rewritten ({type(error).__name__}: {error})")
        return None
    _mark(new)
    return _Rewritten(new)


def _mark(code: types.CodeType) -> None:
    _done.add(code)
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            _mark(c)


# -- is there anything to do?
_JUMPS = frozenset(
    k
    for name, k in opcode.opmap.items()
    if name.startswith(
        (
            "POP_JUMP",
            "JUMP_IF",
            "FOR_ITER",
            "UNARY_NOT",
            "CONTAINS_OP",
            "LOAD_ASSERTION",
            "LOAD_COMMON",
            "RAISE_VARARGS",
        )
    )
)
_SPECIAL_NAMES = frozenset(
    (
        "print",
        "float",
        "int",
        "bool",
        "complex",
        "len",
        "range",
        "enumerate",
        "zip",
        "min",
        "max",
        "sum",
        "any",
        "all",
        "item",
        "numpy",
        "map",
        "filter",
        "reduce",
        "sorted",
        "list",
        "tuple",
        "reversed",
        "isinstance",
        "type",
        "isscalar",
    )
)
_tensor_names: frozenset[str] = frozenset()


def _has_work(code: types.CodeType, f: types.FunctionType) -> bool:
    """Whether code has jumps, or calls that may lead to the user's functions. Too often is harmless."""
    raw = code.co_code
    if any(op in _JUMPS for op in raw[::2]) or _calls_a_value(code):
        return True
    cells = dict(zip(f.__code__.co_freevars, f.__closure__ or (), strict=True))
    for name in code.co_names:
        if name in _SPECIAL_NAMES or not (_is_library(f.__globals__.get(name, _MISSING)) or _is_attribute(name, f)):
            return True
    for name in code.co_freevars:
        if name in cells:
            try:
                value = cells[name].cell_contents
            except ValueError:
                return True
            if not (_is_library(value) or isinstance(value, Tensor | np.ndarray | int | float | str | type(None))):
                return True
    return any(isinstance(c, types.CodeType) and _has_work(c, f) for c in code.co_consts)


_MISSING = object()


def _calls_a_value(code: types.CodeType) -> bool:
    """Whether code calls what is neither a global nor an attribute (`g(x)` of an argument, `fs[0](x)`, `grad(f)(x)`),
    or names an attribute of a variable that tensors do not have (`self.step`)."""
    before = ""
    for i in dis.get_instructions(code):
        if i.opname == "PUSH_NULL":
            return True
        if i.opname in ("LOAD_ATTR", "LOAD_METHOD") and ("LOAD_FAST" in before or before == "LOAD_DEREF"):
            if not hasattr(Tensor, i.argval):
                return True
        before = i.opname
    return False


def _is_attribute(name: str, f: types.FunctionType) -> bool:
    """Whether a name that is no global is an attribute of tensors or of this package: calling it needs no rewriting."""
    global _tensor_names
    if name in f.__globals__ or hasattr(builtins, name):
        return name not in f.__globals__ and not callable(getattr(builtins, name))
    if not _tensor_names:
        package = sys.modules["tracejit"]
        names = {*dir(Tensor), *dir(package), *dir(np)}
        _tensor_names = frozenset(names - {f.__name__ for f in HIGHER_ORDER})
    return name in _tensor_names


def _is_library(value: Any) -> bool:
    """Whether a value of a global name cannot lead to the user's code by being called."""
    if isinstance(value, types.ModuleType):
        root = (value.__name__ or "").partition(".")[0]
        return root in ("tracejit", "numpy", "math")
    if isinstance(value, types.FunctionType):
        return value.__code__.co_filename.startswith(PACKAGE) and value not in HIGHER_ORDER and not value.__closure__
    return isinstance(value, np.ufunc | Tensor | np.ndarray | int | float | str | np.dtype)


# -- functions in functions
def _higher(f: Any) -> Any:
    """A function that calls its arguments: they are rewritten on the way in. The first may be any callable object; of
    the others, which may be data, only what can be nothing else is taken for a function."""

    def with_converted(*args: Any, **kwargs: Any) -> Any:
        return f(*map(convert, args[:1]), *map(_argument, args[1:]), **{k: _argument(v) for k, v in kwargs.items()})

    return with_converted


def _argument(x: Any) -> Any:
    if isinstance(x, list | tuple) and not hasattr(x, "_fields") and any(isinstance(y, types.FunctionType) for y in x):
        return type(x)(map(_argument, x))
    return convert(x) if isinstance(x, types.FunctionType | types.MethodType | functools.partial) else x


def _with_inner(f: types.FunctionType) -> types.FunctionType:
    """A wrapper of this package (`grad(f)`) around the rewritten function."""
    cells, changed = [], False
    for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
        try:
            old = cell.cell_contents
        except ValueError:
            cells.append(cell)
            continue
        wrapped = isinstance(old, types.FunctionType) or name == "f"  # "f": what a wrapper calls, of any kind
        new = convert(old) if wrapped and old is not f else old
        changed |= new is not old
        cells.append(types.CellType(new) if new is not old else cell)
    if not changed:
        return f
    new_f = types.FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__, tuple(cells))
    new_f.__kwdefaults__ = f.__kwdefaults__
    new_f.__dict__.update(f.__dict__)
    return new_f
