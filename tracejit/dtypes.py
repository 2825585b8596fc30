"""Dtype names, defaults and promotion.

In: anything NumPy takes as a dtype. Out: `np.dtype` objects, which the whole package uses.

Promotion follows the array API, with three choices of ours (see the docs): integer with float gives the float's dtype,
Python numbers are weak and never widen an array, and integers meeting a float function give float32 up to 32 bits
and float64 for 64.
"""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import c_int64
from functools import cache
from typing import Any

import numpy as np

bool_ = np.dtype("bool")
int8, int16, int32, int64 = (np.dtype(f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{n}") for n in (8, 16, 32, 64))
float16, float32, float64 = (np.dtype(f"float{n}") for n in (16, 32, 64))
complex64, complex128 = np.dtype("complex64"), np.dtype("complex128")

FLOATS = (float16, float32, float64)
SIGNED = (int8, int16, int32, int64)
UNSIGNED = (uint8, uint16, uint32, uint64)
INTEGERS = SIGNED + UNSIGNED
COMPLEX = (complex64, complex128)
ALL = (bool_, *INTEGERS, *FLOATS, *COMPLEX)
_SUPPORTED = frozenset(ALL)

_default_float = float32
DEFAULT_ID = c_int64(id(float32))  # which one it is, where native code looks it up


def set_default_dtype(dtype: Any) -> None:
    """Choose the dtype that Python floats get on creation: "float32" (the start) or "float64".

    Complex numbers follow (complex64 or complex128), and so do integers (int32 or int64).

    >>> set_default_dtype("float32")
    """
    global _default_float
    dtype = np.dtype(dtype)
    if dtype not in (float32, float64):
        raise ValueError(f"set_default_dtype: expected float32 or float64, got {dtype}")
    _default_float = float64 if dtype == float64 else float32
    DEFAULT_ID.value = id(_default_float)


def default_float() -> np.dtype:
    return _default_float


def default_int() -> np.dtype:
    return int64 if _default_float is float64 else int32


def default_complex() -> np.dtype:
    return complex128 if _default_float is float64 else complex64


def as_dtype(dtype: Any) -> np.dtype:
    """The supported `np.dtype` that `dtype` names, in native byte order; TypeError for any other.

    >>> as_dtype("float32"), as_dtype(int), as_dtype(float)
    (dtype('float32'), dtype('int32'), dtype('float32'))
    """
    if dtype is float:
        return default_float()
    if dtype is int:
        return default_int()
    if dtype is complex:
        return default_complex()
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"{dtype!r} is not a dtype; there are bool, int8 to int64, uint8 to uint64, float16 to "
                        f"float64, complex64 and complex128") from error
    found = _native(found)
    if found not in _SUPPORTED:
        raise TypeError(f"dtype {found} is not supported; use one of {', '.join(d.name for d in ALL)}")
    return found


_BY_NAME = {d: d for d in ALL}


def _native(dtype: np.dtype) -> np.dtype:
    """The one object for a dtype, so that `is` comparisons work."""
    return _BY_NAME.get(dtype.newbyteorder("="), dtype)


def default_of(kind: str) -> np.dtype:
    """The default dtype of a Python number of NumPy kind b, i, f or c."""
    return {"b": bool_, "i": default_int(), "f": default_float(), "c": default_complex()}[kind]


def weak_kind(value: bool | int | float | complex) -> str:
    """NumPy kind of a Python number."""
    if isinstance(value, bool):
        return "b"
    return "i" if isinstance(value, int) else "f" if isinstance(value, float) else "c"


def result_dtype(dtypes: Iterable[np.dtype], weak: Iterable[str] = ()) -> np.dtype:
    """Dtype of an operation on arrays of `dtypes` and Python numbers of the kinds `weak` (b i f c).

    >>> result_dtype([int32, float32]).name, result_dtype([int64, uint64]).name
    ('float32', 'float64')
    >>> result_dtype([float32], "f").name, result_dtype([int8], "i").name, result_dtype([int64], "f").name
    ('float32', 'int8', 'float64')
    """
    return _result_dtype(tuple(dtypes), tuple(weak), _default_float)


@cache
def _result_dtype(dtypes: tuple[np.dtype, ...], weak: tuple[str, ...], default: np.dtype) -> np.dtype:
    if not dtypes:
        return default_of(max(weak, key="bifc".index))
    inexact = [d for d in dtypes if d.kind in "fc"]
    if inexact:  # integers and bools never widen a float
        found = inexact[0]
        for d in inexact[1:]:
            found = np.promote_types(found, d)
    else:
        found = dtypes[0]
        for d in dtypes[1:]:
            found = np.promote_types(found, d)
    for kind in weak:
        if "biufc".index(kind) > "biufc".index(found.kind) and not (kind == "i" and found.kind == "u"):
            if kind == "i":
                found = default_int()
            elif kind == "f":
                found = to_float(found)
            else:
                found = complex128 if to_float(found) == float64 else complex64
    return _native(found)


def to_float(dtype: np.dtype) -> np.dtype:
    """The dtype a float function gives: inexact as is; integers and bool float32 up to 32 bits, else float64."""
    if dtype.kind in "fc":
        return dtype
    return float64 if dtype.itemsize == 8 or _default_float is float64 else float32


def real_part(dtype: np.dtype) -> np.dtype:
    """float32 for complex64, float64 for complex128, else `dtype`."""
    return dtype if dtype.kind != "c" else float32 if dtype == complex64 else float64


def complex_of(dtype: np.dtype) -> np.dtype:
    """The complex dtype whose parts hold `dtype`."""
    return dtype if dtype.kind == "c" else complex128 if to_float(dtype) == float64 else complex64


def sum_dtype(dtype: np.dtype) -> np.dtype:
    """Accumulation dtype of integer sums and products: at least the default integer, keeping signedness."""
    if dtype.kind in "bi":
        return dtype if dtype.kind == "i" and dtype.itemsize >= default_int().itemsize else default_int()
    if dtype.kind == "u":
        wide = np.dtype(f"u{default_int().itemsize}")
        return dtype if dtype.itemsize >= wide.itemsize else _native(wide)
    return dtype
