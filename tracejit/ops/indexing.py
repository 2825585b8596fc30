"""Indexing primitives: gather and scatter, which move elements to and from places known only at run time.

In: a tensor, int64 index tensors of one shape B (one for each of `axes`), and for scatter the values. Out: the elements
there, or a tensor with elements put there. Negative indices count from the end; one out of range is an IndexError.

    gather(x, *indices, axes)            result shape: B, then the dims of x that are not in `axes`
    scatter(x, v, *indices, axes, mode)  x with v (of gather's shape) put there: mode set, add, mul, min or max;
                                         repeated places in row-major order, so that the last `set` wins

Read next: `subscript.py` (`t[...]`, `t[...] = v`, `t.at[...]`), `selection.py` (take and friends).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.ir import Type
from tracejit.ops import elementwise as ew
from tracejit.ops.core import broadcast_to, full, primitive
from tracejit.ops.movement import iota, reshaped
from tracejit.tensor import Tensor, apply

Axes = tuple[int, ...]
MODES = {"set": None, "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def out_of_bounds(index: int, axis: int, extent: int, name: str = "") -> IndexError:
    return IndexError(f"{name}{': ' if name else ''}index {index} is out of bounds for axis {axis} with size {extent}")


def check_indices(name: str, indices: Sequence[np.ndarray], axes: Axes, shape: tuple[int, ...]) -> None:
    """IndexError for the first index that is out of range."""
    for index, axis in zip(indices, axes):
        n = shape[axis]
        if index.size and (index.max() >= n or index.min() < -n):
            wrong = index[(index >= n) | (index < -n)].flat[0]
            raise out_of_bounds(int(wrong), axis, n, name)


def _rest(shape: tuple[int, ...], axes: Axes) -> tuple[int, ...]:
    return tuple(n for a, n in enumerate(shape) if a not in axes)


def _check_types(name: str, x: Type, indices: Sequence[Type], axes: Axes) -> tuple[int, ...]:
    """The shape of what is gathered."""
    if len(indices) != len(axes) or not axes or len(set(axes)) != len(axes) or any(not 0 <= a < x.ndim for a in axes):
        raise ValueError(f"{name}: {len(indices)} index tensors for axes {axes} of shape {x.shape}")
    for i in indices:
        if i.dtype != dtypes.int64:
            raise TypeError(f"{name}: indices must be int64, got {i.dtype}")
        if i.shape != indices[0].shape:
            raise ValueError(f"{name}: index shapes {', '.join(str(t.shape) for t in indices)} differ")
    return indices[0].shape + _rest(x.shape, axes)


# -- gather ------------------------------------------------------------------------------------------------------------
def _gather_infer(x: Type, *indices: Type, axes: Axes) -> Type:
    return Type(_check_types("gather", x, indices, axes), x.dtype)


def _gather_eager(x: np.ndarray, *indices: np.ndarray, axes: Axes) -> np.ndarray:
    check_indices("gather", indices, axes, x.shape)
    if axes == (0,):  # faster than x[i]; since all are in range, wrapping counts from the end
        return np.take(x, indices[0], axis=0, mode="wrap")
    return np.moveaxis(x, axes, range(len(axes)))[indices]


GATHER = primitive(
    "gather", "indexing", infer=_gather_infer, eager=_gather_eager,
    vjp=lambda g, y, x, *indices, axes: (put(full(0, x.shape, g.dtype), g, indices, axes, "add"),
                                         *(None,) * len(indices)),
    jvp=lambda tangents, y, x, *indices, axes: pick(tangents[0], indices, axes),
    doc="Elements of x at index tuples along `axes`.")


def pick(x: Tensor, indices: Sequence[Tensor], axes: Axes) -> Tensor:
    """Elements of x at index tuples along `axes`."""
    return apply(GATHER, (x, *indices), {"axes": axes})


# -- scatter -----------------------------------------------------------------------------------------------------------
def _scatter_infer(x: Type, v: Type, *indices: Type, axes: Axes, mode: str) -> Type:
    shape = _check_types("scatter", x, indices, axes)
    if mode not in MODES:
        raise ValueError(f"scatter: mode must be one of {', '.join(MODES)}, got {mode!r}")
    if mode in ("min", "max") and x.dtype.kind == "c":
        raise TypeError(f"scatter: {mode} is not defined for {x.dtype}")
    if v.shape != shape:
        raise ValueError(f"scatter: values have shape {v.shape}, wanted {shape}")
    if v.dtype != x.dtype:
        raise TypeError(f"scatter: values are {v.dtype}, wanted {x.dtype}")
    return x


def _scatter_eager(x: np.ndarray, v: np.ndarray, *indices: np.ndarray, axes: Axes, mode: str) -> np.ndarray:
    check_indices("scatter", indices, axes, x.shape)
    out = x.copy()
    view = np.moveaxis(out, axes, range(len(axes)))
    ufunc = MODES[mode]
    if ufunc is None:
        view[indices] = v
    else:
        ufunc.at(view, indices, v)
    return out


def _scatter_vjp(g: Tensor, y: Tensor, x: Tensor, v: Tensor, *indices: Tensor, axes: Axes,
                 mode: str) -> tuple[Tensor | None, ...]:
    none = (None,) * len(indices)
    to_x, to_v = _partials(y, x, v, indices, axes, mode)
    if mode == "set":
        return (put(g, full(0, v.shape, g.dtype), indices, axes, "set"), _times(pick(g, indices, axes), to_v), *none)
    return (_times(g, _conj(to_x)), _times(pick(g, indices, axes), _conj(to_v)), *none)


def _scatter_jvp(tangents: Sequence[Tensor | None], y: Tensor, x: Tensor, v: Tensor, *indices: Tensor, axes: Axes,
                 mode: str) -> Tensor:
    of_x, of_v = (full(0, t.shape, t.dtype) if moved is None else moved for t, moved in zip((x, v), tangents))
    if mode == "set":
        return put(of_x, of_v, indices, axes, "set")
    to_x, to_v = _partials(y, x, v, indices, axes, mode)
    return put(_times(of_x, to_x), _times(of_v, to_v), indices, axes, "add")


SCATTER = primitive("scatter", "indexing", infer=_scatter_infer, eager=_scatter_eager, vjp=_scatter_vjp,
                    jvp=_scatter_jvp,
                    doc="x with values put at index tuples along `axes`; `mode` says what happens to what is there.")


def put(x: Tensor, v: Tensor, indices: Sequence[Tensor], axes: Axes, mode: str) -> Tensor:
    """x with `v` put at index tuples along `axes`."""
    return apply(SCATTER, (x, v, *indices), {"axes": axes, "mode": mode})


def _partials(y: Tensor, x: Tensor, v: Tensor, indices: Sequence[Tensor], axes: Axes,
              mode: str) -> tuple[Tensor | None, Tensor | None]:
    """Derivatives of a scatter's result by the element of x there and by each of v (None: one)."""
    if mode == "add":
        return None, None
    if mode == "set":
        return None, _last_writers(x, v, indices, axes)
    if mode == "mul":
        zero = v == 0
        ones = full(1, x.shape, x.dtype)
        rest = put(ones, ew.where(zero, 1, v), indices, axes, "mul")  # product of the factors that are not zero
        zeros = put(full(0, x.shape, x.dtype), zero.astype(x.dtype), indices, axes, "add")  # type: ignore[attr-defined]
        zeros_there, rest_there = pick(zeros, indices, axes), pick(rest, indices, axes)
        others = ew.where(zero, ew.where(zeros_there == 1, rest_there, 0),
                          ew.where(zeros_there == 0, rest_there / ew.where(zero, 1, v), 0))
        return put(ones, v, indices, axes, "mul"), pick(x, indices, axes) * others
    of_x = (x == y).astype(x.dtype)  # type: ignore[attr-defined]  # min and max: ties share evenly
    of_v = (v == pick(y, indices, axes)).astype(x.dtype)  # type: ignore[attr-defined]
    count = ew.maximum(put(of_x, of_v, indices, axes, "add"), 1)
    return of_x / count, of_v / pick(count, indices, axes)


def _last_writers(x: Tensor, v: Tensor, indices: Sequence[Tensor], axes: Axes) -> Tensor | None:
    """1 for the values that a `set` leaves in place, 0 for those written over; None if no place can repeat."""
    shape = indices[0].shape
    count = indices[0].size
    if count <= 1:
        return None
    order = reshaped(iota((count,), 0), shape)
    places = tuple(x.shape[a] for a in axes)
    last = put(full(-1, places, dtypes.int64), order, indices, tuple(range(len(axes))), "set")
    kept = pick(last, indices, tuple(range(len(axes)))) == order
    kept = reshaped(kept.astype(v.dtype), shape + (1,) * (v.ndim - len(shape)))
    return broadcast_to(kept, v.shape)


def _times(g: Tensor, factor: Tensor | None) -> Tensor:
    return g if factor is None else ew.mul_zero(g, factor)


def _conj(factor: Tensor | None) -> Any:
    return ew.conj(factor) if factor is not None and factor.dtype.kind == "c" else factor
