"""Builtins for traced values: `float`, `int`, `bool`, `range`, `len`, `print`, `min`, `sum`, ... and `t.item()`.

In: the calls of rewritten code. Out: what the builtin gives for plain values; for traced ones a traced number, a loop
to be (`loops.py`), or text written at run time.

Read next: `convert.py` (who looks things up in the table at the end).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.ops import control, core, creation, effects, elementwise, reduction
from tracejit.tensor import Number, Tensor, state
from tracejit.trace.autograph import loops, operators
from tracejit.trace.autograph.operators import Maybe, unknown


def _single(x: Tensor, how: str) -> Tensor:
    if x.size != 1:
        error = ValueError if how == "item()" else TypeError
        raise error(f"{how} needs a tensor of one element, got shape {x.shape}")
    return core.as_tensor(x).reshape(())


def _traced(x: Any, dtype: np.dtype) -> bool:
    """A traced value. A Python number among them is looked up, and guarded, unless it becomes a float (a learning rate,
    say), which is no size and no index."""
    return unknown(x) or (state.trace is not None and isinstance(x, Number) and dtype.kind in "fc")


def _converter(original: Any, dtype: np.dtype) -> Callable[..., Any]:
    name = original.__name__

    def convert_number(*args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs or not _traced(args[0], dtype):
            return original(*args, **kwargs)
        x = _single(args[0], f"{name}()")
        if x.dtype.kind == "c" and dtype.kind != "c":
            return original(*args)
        if dtype.kind == "i" and x.dtype.kind == "f":
            effects.check(
                core.NUMPY_FUNCTIONS[np.isfinite](x), "cannot convert float NaN or infinity to integer", "ValueError"
            )
        return core.as_number(core.cast(x, dtype))

    return convert_number


def item(t: Tensor, *index: Any) -> Any:
    """`t.item()`: a traced Python number."""
    if not unknown(t):
        return t.item(*index)
    value = _single(
        t if not index else core.as_tensor(t).reshape(-1)[index[0]] if len(index) == 1 else t[index], "item()"
    )
    kind = value.dtype.kind.replace("u", "i")
    return core.as_number(core.cast(value, operators.PYTHON[kind]))


def numpy(t: Tensor) -> Any:
    """`t.numpy()` of a single traced value: the value, still traced, printed as NumPy prints it."""
    if unknown(t) and t.ndim == 0:
        return core.as_number(core.cast(t, operators.PYTHON[t.dtype.kind.replace("u", "i")]))
    return t.numpy()


def print_(*values: Any, **options: Any) -> None:
    """`print`: at run time, in program order."""
    if state.trace is None:
        print(*values, **options)
    else:
        effects.print(*values, **options)


def length(x: Any) -> Any:
    """`len`: of a range with traced bounds, a traced number; of elements that may not be there, how many are."""
    if isinstance(x, loops.Steps):
        return x.count
    if isinstance(x, list) and any(isinstance(y, Maybe) for y in x):
        return sum_([Maybe(y.there, 1) if isinstance(y, Maybe) else 1 for y in x])
    if isinstance(x, Tensor) and x.ndim:
        return x.shape[0]  # which may be left open
    return len(x)


def range_(*args: Any) -> Any:
    """`range`, with traced bounds."""
    return loops.traced_range(*args) if 0 < len(args) < 4 and any(map(unknown, args)) else range(*args)


def arange(*args: Any, **kwargs: Any) -> Any:
    """`tj.range`: with traced bounds, something to loop over."""
    if not any(map(unknown, args)):
        return creation.arange(*args, **kwargs)
    given = kwargs.pop("dtype", None)
    if kwargs or any(isinstance(x, Tensor) and x.dtype.kind not in "iu" for x in args):
        return creation.arange(*args, dtype=given, **kwargs)
    return loops.traced_range(*args, dtype=dtypes.as_dtype(given) if given is not None else dtypes.default_int())


def enumerate_(iterable: Any, start: Any = 0) -> Any:
    inner = loops.parts_of(iterable) if state.trace is not None else None
    return enumerate(iterable, start) if inner is None else loops.traced_enumerate(inner, start)


def zip_(*iterables: Any, **options: Any) -> Any:
    inners = [loops.parts_of(x) for x in iterables] if state.trace is not None and not options else []
    if not inners or any(s is None for s in inners):
        return zip(*iterables, **options)
    return loops.traced_zip(inners)  # type: ignore[arg-type]


def _python_type(x: Number) -> type:
    """The type that a value has undecorated."""
    return _PYTHON_TYPES[x.dtype.kind]


_PYTHON_TYPES = {"b": bool, "i": int, "u": int, "f": float, "c": complex}


def isinstance_(x: Any, kinds: Any, /) -> bool:
    """`isinstance`: a traced Python number is a number, not a tensor."""
    return isinstance(_python_type(x)() if isinstance(x, Number) else x, kinds)


def type_(*args: Any, **options: Any) -> Any:
    """`type` of a traced Python number: that of the number."""
    return _python_type(args[0]) if len(args) == 1 and isinstance(args[0], Number) else type(*args, **options)


def isscalar(x: Any) -> bool:
    return isinstance(x, Number) or np.isscalar(x)


def _pick(first: Any, x: Any, y: Any) -> Any:
    return operators.if_exp(first, lambda: x, lambda: y)


def _extreme(original: Any, better: Callable[[Any, Any], Any], whole: Any) -> Callable[..., Any]:
    def extreme(*args: Any, **options: Any) -> Any:
        items = args[0] if len(args) == 1 else args
        if state.trace is None or options:
            return original(*args, **options)
        if isinstance(items, Tensor) and unknown(items) and items.ndim == 1 and items.size > loops.UNROLL:
            return whole(items)
        if isinstance(items, types.GeneratorType):
            items = list(items)
            args = (items,)
        if not isinstance(items, list | tuple | Tensor) or not any(unknown(x) or type(x) is Maybe for x in items):
            return original(*args)
        found: Any = None
        there: Any = False
        for x in items:
            here, value = (x.there, x.value) if type(x) is Maybe else (True, x)
            if there is False:
                found, there = value, here
                continue
            take = better(value, found)
            if there is not True:
                take = operators.or_(operators.not_(there), partial(_same, take))
            if here is not True:
                take = operators.and_(here, partial(_same, take))
            found = _pick(take, value, found)
            there = True if there is True or here is True else core.NUMPY_FUNCTIONS[np.logical_or](there, here)
        if there is not True:
            try:
                original([])
            except ValueError as error:
                effects.check(there, str(error), "ValueError")
        return found

    return extreme


def sum_(iterable: Any, /, start: Any = 0) -> Any:
    if isinstance(iterable, Tensor) and unknown(iterable) and iterable.ndim and iterable.shape[0] > loops.UNROLL:
        return core.cast(reduction.sum(iterable, axis=0), iterable.dtype) + start
    if state.trace is None:
        return sum(iterable, start)
    for x in iterable:
        start = start + (_or_zero(x) if type(x) is Maybe else x)
    return start


def _or_zero(x: Maybe) -> Any:
    """An element, or zero where it is not there."""
    if isinstance(x.value, Tensor):
        return elementwise.where(x.there, x.value, 0) if not isinstance(x.value, Number) else x.value
    return _pick(x.there, x.value, type(x.value)(0))


def _same(x: Any) -> Any:
    return x


def _decides(x: Maybe, ends: bool) -> Any:
    """An element as a truth value that decides nothing where it is not there."""
    value = partial(_same, x.value)
    return operators.and_(x.there, value) if ends else operators.or_(operators.not_(x.there), value)


def _until(items: Any, ends: bool) -> Any:
    """Items up to the first known one that decides."""
    for x in items:
        yield x
        if type(x) is not Maybe and not unknown(x) and bool(x) is ends:
            return


def _test(original: Any, whole: Any, ends: bool) -> Callable[..., Any]:
    joined = core.NUMPY_FUNCTIONS[np.logical_or if ends else np.logical_and]

    def test(iterable: Any, /) -> Any:
        if isinstance(iterable, Tensor) and unknown(iterable) and iterable.ndim == 1:
            return core.as_number(whole(iterable))
        if state.trace is not None and isinstance(iterable, types.GeneratorType):
            iterable = list(_until(iterable, ends))
        if isinstance(iterable, list | tuple) and any(type(x) is Maybe for x in iterable):
            iterable = [_decides(x, ends) if type(x) is Maybe else x for x in iterable]
        if isinstance(iterable, list | tuple) and any(map(unknown, iterable)):
            found: Any = None
            for x in iterable:
                if unknown(x):
                    truth = operators.predicate(x)
                    found = truth if found is None else joined(found, truth)
                elif bool(x) is ends:
                    return ends
            return core.as_number(found)
        return original(iterable)

    return test


# -- the table ---------------------------------------------------------------------------------------------------------
# What rewritten code calls in place of a builtin or method.
SPECIAL: dict[Any, Callable[..., Any]] = {
    float: _converter(float, dtypes.float64),
    int: _converter(int, dtypes.int64),
    bool: _converter(bool, dtypes.bool_),
    complex: _converter(complex, dtypes.complex128),
    Tensor.item: item,
    Tensor.numpy: numpy,
    print: print_,
    len: length,
    range: range_,
    creation.arange: arange,
    enumerate: enumerate_,
    zip: zip_,
    isinstance: isinstance_,
    type: type_,
    np.isscalar: isscalar,
    min: _extreme(min, lambda a, b: a < b, reduction.min),
    max: _extreme(max, lambda a, b: a > b, reduction.max),
    sum: sum_,
    any: _test(any, reduction.any, True),
    all: _test(all, reduction.all, False),
}
# Functions that call functions given to them.
HIGHER_ORDER: set[Any] = {map, filter, functools.reduce} | {getattr(control, name) for name in control.__all__}
