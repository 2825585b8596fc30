"""Arguments: bound to the signature, taken apart into leaves, turned into a cache key.

In: a call's `args` and `kwargs`. Out: a `Call`: its leaves in order, and a key such that calls with equal keys can run
the same program.

    Tensor, Variable, np.ndarray, NumPy scalar   shape, dtype and strides (strides only if not C-contiguous)
    int, float, complex                          the type: a number is an input of the program, its value is not in the
    key
    bool, None, str, enum, other hashables       the value
    static_argnames                              the value, lists, dicts and dataclasses included (as a snapshot)

Containers are pytrees of optree (tuples, lists, dicts, namedtuples, registered classes); dataclasses and attrs classes
are registered in our own namespace when they are first seen.

Read next: `specialization.py` (what is kept for a key).
"""

# ruff: noqa: F401 (pytrees are had from here by those who read arguments)

from __future__ import annotations

import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import optree

from tracejit import dtypes
from tracejit.ir import Type
from tracejit.tensor import Tensor
from tracejit.trace.tracer import settled
from tracejit.trees import NAMESPACE, Leaf, flatten, is_record, leaf_names, unflatten

_FLAT = frozenset((Tensor, np.ndarray, bool, int, float, complex, str, type(None)))  # leaves for sure


# -- values in keys ----------------------------------------------------------------------------------------------------
class ArgumentError(TypeError):
    """An argument that cannot be used as it was passed."""


def array_key(value: np.ndarray) -> tuple[Any, ...]:
    """What a program depends on in an array."""
    return value.shape, value.dtype, None if value.flags.c_contiguous else value.strides


def is_array(x: Any) -> bool:
    """Whether a leaf is an array: an input of the program, known by shape and dtype."""
    return isinstance(x, Tensor) or (isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind in "biufc")


def is_foreign(x: Any) -> bool:
    """Whether a leaf is an array of another library; it is taken as a NumPy array."""
    return hasattr(x, "__array__") and not isinstance(x, (type, Tensor, np.ndarray, np.generic))


def is_number(x: Any) -> bool:
    """Whether a leaf is a Python number that becomes an input of the program (integers beyond int64 stay static)."""
    cls = x.__class__
    return cls is float or cls is complex or (cls is int and -(1 << 63) <= x < (1 << 63))


def leaf_key(x: Any) -> Hashable:
    """What a program depends on in one leaf."""
    cls = x.__class__
    if is_number(x):
        return cls
    if not is_array(x):
        return frozen(x)
    if isinstance(x, Tensor):
        return (cls, *array_key(settled(x)))
    return (np.generic, x.dtype) if isinstance(x, np.generic) else (np.ndarray, *array_key(x))


def describe(x: Any) -> dict[str, str]:
    """A leaf as its key sees it, in words: an array's facts by name, or one text under "value"."""
    if is_number(x):
        return {"value": f"a Python {x.__class__.__name__}"}
    if not is_array(x):
        return {"value": f"{x!r:.80}"}
    value = x._value if isinstance(x, Tensor) else np.asarray(x)
    strides = value.strides if isinstance(value, np.ndarray) and not value.flags.c_contiguous else "contiguous"
    return {"kind": x.__class__.__name__, "shape": str(value.shape), "dtype": value.dtype.name, "strides": str(strides)}


def describe_change(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """What differs between two described leaves."""
    if old.keys() == new.keys():
        names = [k for k in old if old[k] != new[k]]
        return ", ".join(f"{'' if k == 'value' else k + ' '}{old[k]} -> {new[k]}" for k in names)
    return " -> ".join(d.get("value") or f"a {d['kind']} of shape {d['shape']}" for d in (old, new))


def frozen(x: Any) -> Hashable:
    """A hashable snapshot that equals another one only if the values are alike, types included. TypeError if `x` has
    none."""
    cls = x.__class__
    if x is None or cls is bool or cls is int or cls is str:
        return cls, x
    if cls is float or cls is complex:
        return cls, repr(x)  # tells 0.0 from -0.0, and nan equals itself
    if cls is tuple or cls is list:
        return cls, tuple(map(frozen, x))
    if cls is dict:
        return cls, tuple((frozen(k), frozen(v)) for k, v in x.items())
    if cls is set or cls is frozenset:
        return cls, frozenset(map(frozen, x))
    if cls is slice:
        return cls, frozen(x.start), frozen(x.stop), frozen(x.step)
    if isinstance(x, (Tensor, np.ndarray)):
        raise ArgumentError("an array")
    if is_record(x) and cls.__hash__ is None:
        return cls, tuple((n, frozen(v)) for n, v in vars(x).items())
    if cls is functools.partial:
        return cls, frozen(x.func), frozen(x.args), frozen(x.keywords)
    hash(x)  # TypeError: unhashable
    if cls.__hash__ is object.__hash__ and not isinstance(x, type):
        try:
            return cls, weakref.ref(x)  # compared by identity: no reason to keep it alive
        except TypeError:
            pass
    return cls, x


def arguments_key(args: tuple[Any, ...]) -> Hashable:
    """A cheap key for positional arguments that are all plain tensors, arrays or numbers; None for others."""
    found: list[Any] = []
    for x in args:
        cls = x.__class__
        if cls is Tensor:
            value = x._value
            if value.__class__ is not np.ndarray:
                return None
            found += (value.shape, value.dtype, value.strides)
        elif cls is np.ndarray:
            found += (cls, x.shape, x.dtype, x.strides)
        elif cls is float or (cls is int and -(1 << 63) <= x < (1 << 63)):
            found.append(cls)
        else:
            return None
    return tuple(found)


# -- signatures --------------------------------------------------------------------------------------------------------
@dataclasses.dataclass(slots=True)
class Call:
    """One call's arguments: `values` by parameter, their leaves, and the key."""

    values: list[Any]
    leaves: list[Any]
    spec: Any  # structure of the non-static values; None: each is one leaf
    key: Hashable
    traced: Sequence[int]  # positions in `values` that are not static


class Signature:
    """A function's parameters. `bind` gives one value per parameter, `call_with` passes them on."""

    def __init__(self, function: Callable[..., Any], static_argnames: Sequence[str] = (), skip_first: bool = False):
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except ValueError:  # a builtin that does not tell
            parameters = [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]
        self.parameters = parameters[1:] if skip_first else parameters
        self.names = [p.name for p in self.parameters]
        self.display = getattr(function, "__name__", type(function).__name__)
        unknown = set(static_argnames) - set(self.names)
        if unknown:
            raise TypeError(
                f"{self.display} has no argument {', '.join(map(repr, sorted(unknown)))} (static_argnames); "
                f"it has {', '.join(self.names)}"
            )
        self.static = [k for k, n in enumerate(self.names) if n in set(static_argnames)]
        self.traced = [k for k in range(len(self.names)) if k not in set(self.static)]
        kinds = [p.kind for p in self.parameters]
        self._positional = sum(
            k in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for k in kinds
        )
        self._plain = self._positional == len(kinds)
        self._signature = inspect.Signature(self.parameters)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """One value per parameter, defaults applied; TypeError as Python gives it."""
        if self._plain and not kwargs and len(args) == self._positional:
            return list(args)
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.display}() {error}") from None
        bound.apply_defaults()
        return list(bound.arguments.values())

    def call_with(self, function: Callable[..., Any], values: Sequence[Any], *before: Any) -> Any:
        """function(*before, ...) with these values for its parameters."""
        if self._plain:
            return function(*before, *values)
        args: list[Any] = list(before)
        kwargs: dict[str, Any] = {}
        for p, v in zip(self.parameters, values):
            if p.kind is p.VAR_POSITIONAL:
                args.extend(v)
            elif p.kind is p.KEYWORD_ONLY:
                if v is not p.default:  # some builtins tell a default from no argument
                    kwargs[p.name] = v
            elif p.kind is p.VAR_KEYWORD:
                kwargs.update(v)
            else:
                args.append(v)
        return function(*args, **kwargs)

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """Bind, flatten, and make the key."""
        values = self.bind(args, kwargs)
        traced = self.traced
        given = values if not self.static else [values[k] for k in traced]
        if all(v.__class__ in _FLAT for v in given):
            leaves, spec = list(given), None
        else:
            leaves, spec = flatten(given)
            leaves = [np.asarray(x) if is_foreign(x) else x for x in leaves]
        try:
            keys = tuple([leaf_key(x) for x in leaves])
        except TypeError as error:
            raise self._bad_leaf(leaves, spec, error) from None
        return Call(values, leaves, spec, (spec, keys, self._static_key(values)), traced)

    def _static_key(self, values: Sequence[Any]) -> tuple[Hashable, ...]:
        found = []
        for k in self.static:
            try:
                found.append(frozen(values[k]))
            except ArgumentError:
                raise TypeError(
                    f"{self.display}: argument '{self.names[k]}' is static but holds an array; pass it as a normal "
                    f"argument"
                ) from None
            except TypeError:
                raise TypeError(
                    f"{self.display}: static argument '{self.names[k]}' of type {type(values[k]).__name__} is not "
                    f"hashable, and not a list, dict, set or dataclass of such values"
                ) from None
        return tuple(found)

    def leaf_names(self, spec: Any) -> list[str]:
        """The name of every leaf, for messages."""
        names = [self.names[k] for k in self.traced]
        if spec is None:
            return names
        found = []
        for a in optree.treespec_accessors(spec):
            found.append(a[1:].codify(names[a[0].entry]))
        return found

    def rebuild(self, call: Call, leaves: Sequence[Any]) -> list[Any]:
        """The values with other leaves in place."""
        given = list(leaves) if call.spec is None else unflatten(call.spec, leaves)
        values = list(call.values)
        for k, v in zip(call.traced, given):
            values[k] = v
        return values

    def _bad_leaf(self, leaves: Sequence[Any], spec: Any, error: TypeError) -> TypeError:
        for x, name in zip(leaves, self.leaf_names(spec)):
            try:
                leaf_key(x)
            except TypeError as again:
                if type(again) is not TypeError and not isinstance(again, ArgumentError):
                    return again  # a leaked tracer
                if isinstance(x, np.ndarray):
                    return TypeError(f"{self.display}: argument '{name}' is an array of dtype {x.dtype}, which tensors "
                                     f"do not hold")
                return TypeError(
                    f"{self.display}: argument '{name}' of type {type(x).__name__} is neither an array nor hashable; "
                    f"make it "
                    f"a pytree (a dataclass, or register it with optree), or name it in static_argnames"
                )
        return error


def native(array: np.ndarray) -> np.ndarray:
    """The array as kernels want it: a supported dtype in native byte order, aligned."""
    dtype = dtypes.as_dtype(array.dtype)
    if array.dtype.isnative and array.flags.aligned:
        return array
    return np.array(array, dtype)


# -- types in place of arguments ---------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True, slots=True)
class Spec(Leaf):
    """A shape, whose dims may be None (free), and a dtype."""

    shape: tuple[int | None, ...]
    dtype: np.dtype

    def __repr__(self) -> str:
        return f"tj.spec({self.shape}, {self.dtype.name!r})"

    def accepts(self, x: Any) -> bool:
        return (
            x.dtype == self.dtype
            and len(x.shape) == len(self.shape)
            and all(n is None or n == m for n, m in zip(self.shape, x.shape))
        )


def spec(shape: Sequence[int | None] | int, dtype: Any = None) -> Spec:
    """An array type: `spec((None, 4), "float32")`."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(n is not None and n < 0 for n in shape):
        raise ValueError(f"spec: a size must not be negative, got {shape}; None leaves it free")
    return Spec(shape, dtypes.as_dtype(dtype) if dtype is not None else dtypes.default_float())
