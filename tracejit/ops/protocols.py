"""NumPy functions that need no op of their own: facts, printing, files, and small compositions.

In: NumPy's names. Out: entries in the table that `__array_function__` and `__array_ufunc__` read; nothing public.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracejit.ops.core import as_tensor, cast, rebind, strong
from tracejit.ops.cumulative import cummax, cummin, cumprod, cumsum, logcumsumexp
from tracejit.ops.elementwise import where
from tracejit.ops.movement import reshaped
from tracejit.ops.sorting import nonzero
from tracejit.tensor import NUMPY_FUNCTIONS, Tensor


def _where(condition: Any, *values: Any) -> Any:
    return where(condition, *values) if values else nonzero(condition)


def _size(a: Any, axis: int | None = None) -> int:
    t = as_tensor(a)
    return t.size if axis is None else t.shape[axis]


def _on_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """A NumPy function that only looks at values (printing, saving): run on arrays."""

    def plain(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x._leave(f"np.{function.__name__}")
        return type(x)(map(plain, x)) if type(x) in (list, tuple) else x

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*map(plain, args), **{k: plain(v) for k, v in kwargs.items()})

    return call


def _outer(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of pairs, of each element of one tensor with each of another."""

    def outer(a: Any, b: Any) -> Any:
        a, b = strong(a), strong(b)
        return function(reshaped(a, (*a.shape, *(1,) * b.ndim)), b)

    return outer


def _at(method: str) -> Callable[..., None]:
    """A method of `t.at[...]` that changes the handle, as `ufunc.at` does."""

    def at(t: Any, indices: Any, values: Any) -> None:
        if not isinstance(t, Tensor):
            raise TypeError(f"np.{method}.at: a NumPy array cannot hold tensors; make it a tensor first")
        rebind(t, getattr(t.at[indices], method)(values))  # type: ignore[attr-defined]

    return at


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    (np.add, "accumulate"): cumsum, (np.multiply, "accumulate"): cumprod, (np.maximum, "accumulate"): cummax,
    (np.minimum, "accumulate"): cummin, (np.logaddexp, "accumulate"): logcumsumexp,
    (np.add, "at"): _at("add"), (np.subtract, "at"): _at("subtract"), (np.multiply, "at"): _at("multiply"),
    (np.maximum, "at"): _at("max"), (np.minimum, "at"): _at("min"),
    **{(f, "outer"): _outer(g) for f, g in NUMPY_FUNCTIONS.items() if isinstance(f, np.ufunc) and f.nin == 2},
    np.astype: lambda x, dtype, /, *, copy=True, device=None: cast(as_tensor(x), dtype),
    np.shape: lambda a: as_tensor(a).shape,
    np.ndim: lambda a: as_tensor(a).ndim,
    np.size: _size,
    np.iscomplexobj: lambda x: as_tensor(x).dtype.kind == "c",
    np.isrealobj: lambda x: as_tensor(x).dtype.kind != "c",
    np.around: np.round,
    np.where: _where,
    np.shares_memory: lambda a, b, max_work=None: False,
    np.may_share_memory: lambda a, b, max_work=None: False,
}
NUMPY_FUNCTIONS.update(_FUNCTIONS)
for _f in (np.array2string, np.array_repr, np.array_str, np.save, np.savez, np.savez_compressed, np.savetxt,
           np.min_scalar_type):
    NUMPY_FUNCTIONS[_f] = _on_arrays(_f)

__all__: list[str] = []
