"""What a boolean mask known only at run time selects: `t[mask]` inside a compiled function.

In: a tensor and a mask over its first dims. Out: `Selected`, which is no tensor, since how many elements it has is not
known. It can do what needs no count: elementwise ops with numbers, single values and what the same mask selects;
reductions to a single value; and be written back, so `t[mask] += 1` and `t[mask] = sin(t[mask])` are a `where`. Any
other use is an error that names the line of the selection and says what to write.

Read next: `subscript.py` (who makes it, and writes it back).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracejit.errors import TracerError, user_line
from tracejit.ir import Node
from tracejit.ops import core, effects, reduction, statistics
from tracejit.tensor import NUMPY_FUNCTIONS, Tensor


class Selected:
    """Elements of `whole` where `mask` (of the same shape, or of its first dims) is true."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, whole: Tensor, mask: Tensor):
        self._whole, self._mask, self._where = whole, mask, user_line()

    @property
    def dtype(self) -> np.dtype:
        return self._whole.dtype

    def error(self) -> TracerError:
        """What any use is told that needs to know how many there are."""
        return TracerError(
            f"a boolean mask known only at run time cannot be used to select elements at {self._where}, since the "
            f"shape of the result would depend on its values. Write tj.where(mask, t, other), t.at[mask].set(value), "
            f"t[mask] = value or t[mask] += value, reduce with t[mask].sum() or where=mask"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.error()

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise self.error()

    __array__ = __len__ = __iter__ = __getitem__ = __setitem__ = __bool__ = __float__ = __int__ = __index__ = _fail
    __str__ = __repr__ = __format__ = __matmul__ = __rmatmul__ = __contains__ = _fail  # type: ignore[assignment]

    def on(self, mask: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The tensor whose elements these are, if `mask` is what selected them and it has this shape."""
        if self._whole.shape == shape and _same(self._mask, mask):
            return self._whole
        raise self.error()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options or ufunc not in NUMPY_FUNCTIONS:
            raise self.error()
        return NUMPY_FUNCTIONS[ufunc](*inputs)

    def __elementwise__(self, f: Callable[[Sequence[Any]], Any], args: Sequence[Any]) -> Selected:
        """An elementwise op on elements of which these are some."""
        return self._with(lambda _, *xs: f(xs), *args)

    def _with(self, f: Callable[..., Any], *others: Any) -> Selected:
        given = []
        for x in others:
            if isinstance(x, Selected):
                given.append(x.on(self._mask, self._whole.shape))
            elif np.ndim(x) == 0 if not isinstance(x, Tensor) else x.ndim == 0:
                given.append(x)
            else:
                raise self.error()
        found = Selected(f(self._whole, *given), self._mask)
        found._where = self._where
        return found

    def astype(self, dtype: Any) -> Selected:
        return self._with(lambda x: core.cast(x, core.dtypes.as_dtype(dtype)))

    # -- reductions to a single value
    def _reduced(self, reduce: Callable[..., Any], **options: Any) -> Tensor:
        mask = self._mask
        aligned = mask.reshape(mask.shape + (1,) * (self._whole.ndim - mask.ndim))
        return reduce(self._whole, where=core.broadcast_to(aligned, self._whole.shape), **options)  # type: ignore[no-any-return]

    def sum(self) -> Tensor:
        return self._reduced(reduction.sum)

    def prod(self) -> Tensor:
        return self._reduced(reduction.prod)

    def any(self) -> Tensor:
        return self._reduced(reduction.any)

    def all(self) -> Tensor:
        return self._reduced(reduction.all)

    def mean(self) -> Tensor:
        return self._reduced(statistics.mean)

    def max(self) -> Tensor:
        self._some("max")
        return self._reduced(reduction.max, initial=reduction.lowest(self.dtype))

    def min(self) -> Tensor:
        self._some("min")
        return self._reduced(reduction.min, initial=reduction.highest(self.dtype))

    def _some(self, name: str) -> None:
        """At run time the error for no elements at all."""
        shape = (0, *self._whole.shape[self._mask.ndim:])
        effects.check(reduction.any(self._mask), f"{name}: an empty axis of shape {shape} has no value", "ValueError")


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two traced masks are the same expression of the same values."""
    return a is b or _equal(a._value, b._value, 64)


def _equal(x: Any, y: Any, depth: int) -> bool:
    if x is y:
        return True
    if not (isinstance(x, Node) and isinstance(y, Node)) or not depth or x.op is not y.op or not x.inputs:
        literals = isinstance(x, Node) and isinstance(y, Node) and x.op is y.op and x.op.name == "full"
        return literals and x.type == y.type and repr(x.attrs) == repr(y.attrs)
    alike = x.type == y.type and not x.op.stateful and repr(x.attrs) == repr(y.attrs) and len(x.inputs) == len(y.inputs)
    return alike and all(_equal(a, b, depth - 1) for a, b in zip(x.inputs, y.inputs))


def _binary(f: Callable[..., Any], swapped: bool = False) -> Callable[..., Any]:
    def method(self: Selected, other: Any) -> Selected:
        return self._with(lambda a, b: f(b, a) if swapped else f(a, b), other)

    return method


def _unary(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: self._with(f)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift"):
    setattr(Selected, f"__{_name.rstrip('_')}__", _binary(getattr(operator, _name)))
    setattr(Selected, f"__r{_name.rstrip('_')}__", _binary(getattr(operator, _name), True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Selected, f"__{_name}__", _binary(getattr(operator, _name)))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Selected, f"__{_name}__", _unary(getattr(operator, _name)))

__all__: list[str] = []  # reached from tensors
