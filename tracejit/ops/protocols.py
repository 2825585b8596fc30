"""NumPy functions that need no op of their own: facts, printing, files, and small compositions.

In: NumPy's names. Out: entries in the table that `__array_function__` reads; nothing public.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracejit.ops.core import as_tensor
from tracejit.ops.elementwise import where
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


NUMPY_FUNCTIONS.update({
    np.shape: lambda a: as_tensor(a).shape,
    np.ndim: lambda a: as_tensor(a).ndim,
    np.size: _size,
    np.iscomplexobj: lambda x: as_tensor(x).dtype.kind == "c",
    np.isrealobj: lambda x: as_tensor(x).dtype.kind != "c",
    np.around: np.round,
    np.where: _where,
    np.shares_memory: lambda a, b, max_work=None: False,
    np.may_share_memory: lambda a, b, max_work=None: False,
})
for _f in (np.array2string, np.array_repr, np.array_str, np.save, np.savez, np.savez_compressed, np.savetxt,
           np.min_scalar_type):
    NUMPY_FUNCTIONS[_f] = _on_arrays(_f)

__all__: list[str] = []
