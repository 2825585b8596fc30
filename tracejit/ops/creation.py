"""Making tensors: from Python values and arrays, filled, counted, and by comparing coordinates.

In: values, shapes, dtypes. Out: tensors. Python floats give float32, ints int32 (see `set_default_dtype`), NumPy arrays
keep their dtype, an explicit dtype is always honoured. Creation copies: a tensor never changes because an array did.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.dims import integer
from tracejit.ops import core
from tracejit.ops import elementwise as ew
from tracejit.ops.core import as_tensor, cast, composite, normalize_axis, strong
from tracejit.ops.movement import broadcast_to, extents_of, iota, moved_axis, permuted, reshaped, shape_of
from tracejit.tensor import Tensor, state, to_array, wrap


# -- from values -------------------------------------------------------------------------------------------------------
def constant(value: Any, dtype: Any = None, shape: Any = None) -> Tensor:
    """A tensor of `value`: numbers, nested sequences, arrays or tensors; repeated to `shape` if given.

    Raises OverflowError for an integer that does not fit the dtype, TypeError for what is not numbers.

    >>> constant([[1, 2], [3, 4]])
    tj.Tensor(
    [[1 2]
     [3 4]], shape=(2, 2), dtype=int32)
    """
    t = asarray(value, dtype)
    if shape is None:
        return t
    shape = shape_of(shape)
    return core.broadcast_to(t, shape) if t.size == 1 else reshaped(t, shape)


def convert_to_tensor(value: Any, dtype: Any = None) -> Tensor:
    """As `constant`; a tensor of that dtype is given back as it is."""
    return asarray(value, dtype)


@composite(numpy=(np.asarray, np.array, np.ascontiguousarray, np.asanyarray))
def asarray(value: Any, dtype: Any = None, *, copy: bool | None = None, device: Any = None, order: Any = None,
            like: Any = None) -> Tensor:
    """A tensor of `value`; a tensor of that dtype is given back as it is, unless `copy` is true.

    >>> asarray([1.5, 2]).dtype, asarray(np.zeros(2)).dtype, asarray([1], "int64").dtype
    (dtype('float32'), dtype('float64'), dtype('int64'))
    """
    if device not in (None, "cpu"):
        raise ValueError(f"asarray: device must be 'cpu', got {device!r}")
    if not isinstance(value, Tensor):
        if copy is False:
            raise ValueError("asarray: a tensor of other data is always a copy; leave copy=False out")
        return as_tensor(value, dtype)
    t = as_tensor(value, dtype) if dtype is not None else strong(value)
    return core.alias(t) if copy or type(t) is not Tensor else t


@composite(numpy=np.copy, method=True)
def copy(x: Any) -> Tensor:
    """The same value under a handle of its own. No data moves: a value is never written while two handles share it."""
    return core.alias(strong(x))


@composite(numpy=np.from_dlpack)
def from_dlpack(x: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor of the values of another library's array (copied: its owner may write them)."""
    return core.constant_tensor(to_array(np.from_dlpack(x)))


# -- filled ------------------------------------------------------------------------------------------------------------
def zeros(shape: Any, dtype: Any = None) -> Tensor:
    """All zeros.

    >>> zeros((2, 2), "int32").tolist()
    [[0, 0], [0, 0]]
    """
    return _filled(shape, 0, dtypes.default_float() if dtype is None else dtypes.as_dtype(dtype))


def ones(shape: Any, dtype: Any = None) -> Tensor:
    """All ones."""
    return _filled(shape, 1, dtypes.default_float() if dtype is None else dtypes.as_dtype(dtype))


def empty(shape: Any, dtype: Any = None) -> Tensor:
    """A tensor to be written later; it holds zeros (values without a meaning would differ from run to run)."""
    return zeros(shape, dtype)


def full(shape: Any, fill_value: Any, dtype: Any = None) -> Tensor:
    """All `fill_value`, a number or something that broadcasts to `shape`; its dtype decides if none is given.

    >>> full(2, 7).tolist(), full((2, 2), [1, 2]).tolist()
    ([7, 7], [[1, 2], [1, 2]])
    """
    if isinstance(fill_value, (bool, int, float, complex)) and not isinstance(fill_value, np.generic):
        found = to_array(fill_value, dtype)
        return _filled(shape, found.item(), found.dtype)
    return core.broadcast_to(asarray(fill_value, dtype), extents_of(shape))


def _filled(shape: Any, value: Any, dtype: np.dtype) -> Tensor:
    shape = extents_of(shape)
    if state.trace is None:
        return wrap(np.zeros(shape, dtype) if value == 0 and type(value) is int else np.full(shape, value, dtype))
    return core.full(value, shape, dtype)


def _like(x: Any, value: Any, dtype: Any, shape: Any) -> Tensor:
    shape = np.shape(x) if shape is None and not isinstance(x, Tensor) else x.shape if shape is None else shape
    if dtype is None:
        dtype = x.dtype if hasattr(x, "dtype") and not getattr(x, "_weak", False) else as_tensor(x).dtype
    return _filled(shape, value, dtypes.as_dtype(dtype))


@composite(numpy=np.zeros_like)
def zeros_like(x: Any, dtype: Any = None, *, shape: Any = None) -> Tensor:
    """Zeros of the shape and dtype of `x`."""
    return _like(x, 0, dtype, shape)


@composite(numpy=np.ones_like)
def ones_like(x: Any, dtype: Any = None, *, shape: Any = None) -> Tensor:
    """Ones of the shape and dtype of `x`."""
    return _like(x, 1, dtype, shape)


@composite(numpy=np.empty_like)
def empty_like(x: Any, dtype: Any = None, *, shape: Any = None) -> Tensor:
    """A tensor of the shape and dtype of `x`, to be written later (it holds zeros)."""
    return _like(x, 0, dtype, shape)


@composite(numpy=np.full_like)
def full_like(x: Any, fill_value: Any, dtype: Any = None, *, shape: Any = None) -> Tensor:
    """`fill_value` in the shape and dtype of `x`."""
    t = strong(x)
    return full(t.shape if shape is None else shape, fill_value, t.dtype if dtype is None else dtype)


# -- counted -----------------------------------------------------------------------------------------------------------
def _python_number(x: Any, name: str) -> Any:
    """A Python number for a number, NumPy scalar or 0-d tensor whose value can be known now."""
    if isinstance(x, (int, float)) and not isinstance(x, np.generic):
        return x
    if isinstance(x, (Tensor, np.ndarray, np.generic)) or hasattr(x, "__index__"):
        array = x._leave(name) if isinstance(x, Tensor) else np.asarray(x)
        if array.ndim == 0 and array.dtype.kind in "biuf":
            return array.item()
    raise TypeError(f"{name}: expected a real number, got {x!r}")


@composite(numpy=np.arange)
def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Tensor:
    """Numbers from `start` (0 if only one number is given) by `step`, up to but without `stop`.

    >>> arange(3).tolist(), arange(1, 2, 0.25).tolist()
    ([0, 1, 2], [1.0, 1.25, 1.5, 1.75])
    """
    if stop is None:
        start, stop = 0, start
    given = (start, stop, 1 if step is None else step)
    first, last, by = (_python_number(x, "arange") for x in given)
    if by == 0:
        raise ValueError("arange: step must not be zero")
    if dtype is None:
        strong_dtypes = [x.dtype for x in given if hasattr(x, "dtype") and not getattr(x, "_weak", False)]
        weak = [dtypes.weak_kind(v) for x, v in zip(given, (first, last, by)) if not hasattr(x, "dtype")]
        dtype = dtypes.result_dtype(strong_dtypes, [*weak, "i"])
    dtype = dtypes.as_dtype(dtype)
    whole = all(isinstance(v, int) for v in (first, last, by))
    n = max(0, -((first - last) // by)) if whole else max(0, math.ceil((last - first) / by))
    if dtype.kind in "iu" and n:
        ends: tuple[Any, ...] = first, first + (n - 1) * by
        ends = ends if whole else tuple(map(int, ends))
        info = np.iinfo(dtype)
        if min(ends) < info.min or max(ends) > info.max:
            raise OverflowError(f"arange: values up to {max(ends, key=abs)} do not fit {dtype}; pass dtype='int64'")
    return _ramp(n, first, by, dtype, whole)


def _ramp(n: int, first: Any, by: Any, dtype: np.dtype, whole: bool) -> Tensor:
    """first, first + by, ...: computed in int64 or float64, then cast."""
    if state.trace is None:
        count = np.arange(n)
        values = count * by + first if whole else count * float(by) + first
        return wrap(np.asarray(values).astype(dtype))
    if n == 0:
        return core.full(0, (0,), dtype)
    exact = dtypes.int64 if whole else dtypes.float64
    t = iota((n,), 0, dtype if (first, by) == (0, 1) and whole else exact)
    t = t if by == 1 else t * by  # type: ignore[operator]
    return cast(t if first == 0 else t + first, dtype)  # type: ignore[operator]


@composite(numpy=np.linspace)
def linspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None,
             axis: int = 0) -> Any:
    """`num` evenly spaced numbers from `start` to `stop`, which is the last one unless `endpoint` is false.

    `start` and `stop` may be tensors; the new dim is put at `axis`. With `retstep` the spacing is returned too.

    >>> linspace(0, 1, 5).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    num = integer(num)
    if num < 0:
        raise ValueError(f"linspace: num must not be negative, got {num}")
    gaps = num - 1 if endpoint else num
    literal = all(isinstance(x, (int, float)) and not isinstance(x, np.generic) for x in (start, stop))
    if literal:
        dtype = dtypes.default_float() if dtype is None else dtype
        a, b = (core.full(x, (), dtypes.float64) for x in (start, stop))
    else:
        a, b = (strong(x) for x in (start, stop))
        kind = dtypes.to_float(dtypes.result_dtype([a.dtype, b.dtype]))
        a, b = cast(a, kind), cast(b, kind)
    step = (b - a) / max(gaps, 1)  # type: ignore[operator]
    count = reshaped(iota((num,), 0, dtypes.real_part(step.dtype)), (num, *(1,) * step.ndim))
    t = a + count * step  # type: ignore[operator]
    if endpoint and num > 1:
        t = ew.where(count == gaps, b, t)
    t = permuted(t, moved_axis(t.ndim, 0, normalize_axis("linspace", axis, t.ndim)))
    if dtype is not None:
        dtype = dtypes.as_dtype(dtype)
        t = cast(ew.floor(t) if dtype.kind in "iu" else t, dtype)
    return (t, cast(step, dtype) if dtype is not None else step) if retstep else t


@composite(numpy=np.logspace)
def logspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: Any = 10.0, dtype: Any = None,
             axis: int = 0) -> Tensor:
    """`base` to the powers `linspace(start, stop, num)`."""
    exponents = linspace(start, stop, num, endpoint, axis=axis)
    t = base ** exponents
    return t if dtype is None else cast(t, dtype)


@composite(numpy=np.meshgrid)
def meshgrid(*xs: Any, indexing: str = "xy", sparse: bool = False, copy: bool = True) -> list[Tensor]:
    """Coordinate tensors of the grid spanned by vectors; along the first dim runs the first ("ij") or second ("xy").

    >>> [t.tolist() for t in meshgrid([1, 2], [3, 4])]
    [[[1, 2], [1, 2]], [[3, 3], [4, 4]]]
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing must be 'xy' or 'ij', got {indexing!r}")
    vectors = [reshaped(t, (t.size,)) for t in map(strong, xs)]
    axes = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        axes[0], axes[1] = 1, 0
    shape = [0] * len(vectors)
    for t, a in zip(vectors, axes):
        shape[a] = t.size
    grids = [reshaped(t, tuple(t.size if k == a else 1 for k in range(len(vectors)))) for t, a in zip(vectors, axes)]
    return grids if sparse else [broadcast_to(t, tuple(shape)) for t in grids]


# -- by comparing coordinates ------------------------------------------------------------------------------------------
def _below(shape: tuple[int, ...], k: int) -> Tensor:
    """Where the column is at most the row + k, over the last two dims."""
    row, column = iota(shape, len(shape) - 2), iota(shape, len(shape) - 1)
    return column <= row + k if k else column <= row  # type: ignore[operator]


def eye(n_rows: int, n_cols: int | None = None, k: int = 0, dtype: Any = None) -> Tensor:
    """Ones on the k-th diagonal, zeros elsewhere.

    >>> eye(2, 3, k=1).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    shape = extents_of((n_rows, n_rows if n_cols is None else n_cols))
    k = operator.index(k)
    wanted = dtypes.default_float() if dtype is None else dtypes.as_dtype(dtype)
    if state.trace is None:
        return wrap(np.eye(shape[0], shape[1], k, wanted))
    row, column = iota(shape, 0), iota(shape, 1)
    return cast(column == (row + k if k else row), wanted)  # type: ignore[operator]


def identity(n: int, dtype: Any = None) -> Tensor:
    """The identity matrix."""
    return eye(n, dtype=dtype)


def tri(n_rows: int, n_cols: int | None = None, k: int = 0, dtype: Any = None) -> Tensor:
    """Ones at and below the k-th diagonal, zeros above."""
    shape = extents_of((n_rows, n_rows if n_cols is None else n_cols))
    return cast(_below(shape, operator.index(k)), dtypes.default_float() if dtype is None else dtype)


def _triangle(name: str, x: Any, k: Any, lower: bool) -> Tensor:
    t = strong(x)
    if t.ndim < 2:
        raise ValueError(f"{name}: needs at least two dims, got shape {t.shape}")
    k = operator.index(k) if lower else operator.index(k) - 1
    below = core.broadcast_to(_below(t.shape[-2:], k), t.shape)
    zero = core.full(0, (), t.dtype)
    return ew.where(below, t, zero) if lower else ew.where(below, zero, t)


@composite(numpy=np.tril)
def tril(x: Any, k: int = 0) -> Tensor:
    """`x` at and below the k-th diagonal of the last two dims, zeros above."""
    return _triangle("tril", x, k, True)


@composite(numpy=np.triu)
def triu(x: Any, k: int = 0) -> Tensor:
    """`x` at and above the k-th diagonal of the last two dims, zeros below."""
    return _triangle("triu", x, k, False)


# -- dtypes ------------------------------------------------------------------------------------------------------------
def _dtype_of(x: Any) -> np.dtype | str:
    """The dtype of an array, tensor or dtype; for a Python number the kind of its literal."""
    if isinstance(x, (bool, int, float, complex)) and not isinstance(x, np.generic):
        return dtypes.weak_kind(x)
    if isinstance(x, Tensor) and x._weak:
        return x.dtype.kind
    return dtypes.as_dtype(x.dtype if hasattr(x, "dtype") and not isinstance(x, type) else x)


@composite(numpy=np.result_type)
def result_type(*xs: Any) -> np.dtype:
    """The dtype that an operation on these arrays, dtypes and Python numbers gives.

    >>> result_type("int32", "float32"), result_type(zeros(2, "int8"), 5)
    (dtype('float32'), dtype('int8'))
    """
    found = [_dtype_of(x) for x in xs]
    if not found:
        raise ValueError("result_type: at least one array or dtype is needed")
    return dtypes.result_dtype([d for d in found if isinstance(d, np.dtype)], [d for d in found if isinstance(d, str)])


@composite(numpy=np.can_cast)
def can_cast(source: Any, to: Any, casting: str = "safe") -> bool:
    """Whether promotion takes `source` (a dtype, array or tensor) to the dtype `to`; other `casting` rules are NumPy's.

    >>> can_cast("int32", "float32"), can_cast("float64", "float32")
    (True, False)
    """
    found = dtypes.as_dtype(source.dtype if hasattr(source, "dtype") and not isinstance(source, type) else source)
    to = dtypes.as_dtype(to)
    return dtypes.result_dtype([found, to]) == to if casting == "safe" else np.can_cast(found, to, casting)  # type: ignore[arg-type]


def finfo(x: Any) -> np.finfo:
    """Limits of a float dtype, or of the dtype of an array."""
    return np.finfo(dtypes.as_dtype(x.dtype if isinstance(x, (Tensor, np.ndarray)) else x))


def iinfo(x: Any) -> np.iinfo:
    """Limits of an integer dtype, or of the dtype of an array."""
    return np.iinfo(dtypes.as_dtype(x.dtype if isinstance(x, (Tensor, np.ndarray)) else x))


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind of the array API ("real floating", ...), a dtype, or one of a tuple of them."""
    kinds = tuple(k if isinstance(k, str) and not hasattr(np, k) else dtypes.as_dtype(k)
                  for k in (kind if isinstance(kind, tuple) else (kind,)))
    return np.isdtype(dtypes.as_dtype(dtype), kinds)


__all__ = [
    "constant", "convert_to_tensor", "asarray", "copy", "from_dlpack",
    "zeros", "ones", "empty", "full", "zeros_like", "ones_like", "empty_like", "full_like",
    "arange", "linspace", "logspace", "meshgrid", "eye", "identity", "tri", "tril", "triu",
    "result_type", "can_cast", "finfo", "iinfo", "isdtype",
]
