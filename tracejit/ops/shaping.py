"""Functions that move elements, made of the movement primitives.

In: tensors. Out: the same elements in other shapes, orders and numbers: dims (moveaxis, expand_dims, squeeze, ...),
joining and splitting (concat, stack, split, ...), repeating and moving along axes (tile, repeat, roll, flip, pad, ...).
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.dims import extent_of, integer
from tracejit.ops import core
from tracejit.ops.core import alias, as_tensor, broadcast_shape, cast, composite, normalize_axes, normalize_axis, strong
from tracejit.ops.indexing import pick
from tracejit.ops.linalg import diagonal, swapped
from tracejit.ops.movement import (
    along,
    broadcast_to,
    by_columns,
    embed,
    joined,
    moved_axis,
    permuted,
    reshaped,
    shape_of,
    transpose,
)
from tracejit.tensor import Tensor


# -- dims --------------------------------------------------------------------------------------------------------------
def permute_dims(x: Any, axes: Sequence[int]) -> Tensor:
    """Dims in the order `axes`."""
    return transpose(x, axes)


@composite(numpy=np.matrix_transpose)
def matrix_transpose(x: Any) -> Tensor:
    """The last two dims swapped; ValueError for fewer."""
    t = strong(x)
    if t.ndim < 2:
        raise ValueError(f"matrix_transpose: needs at least two dims, got shape {t.shape}")
    return swapped(t)


@composite(numpy=np.moveaxis)
def moveaxis(x: Any, source: Any, destination: Any) -> Tensor:
    """Dims moved from `source` to `destination` (ints or sequences of equal length), the others in order.

    >>> moveaxis(np.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    t = strong(x)
    given = [axes if isinstance(axes, (tuple, list)) else (axes,) for axes in (source, destination)]
    from_, to = ([normalize_axis("moveaxis", a, t.ndim) for a in axes] for axes in given)
    if len(from_) != len(to) or len(set(from_)) != len(from_) or len(set(to)) != len(to):
        raise ValueError(f"moveaxis: source {source} and destination {destination} must have as many different axes")
    order = [k for k in range(t.ndim) if k not in from_]
    for target, axis in sorted(zip(to, from_)):
        order.insert(target, axis)
    return permuted(t, tuple(order))


@composite(numpy=np.swapaxes, method=True)
def swapaxes(x: Any, axis1: int, axis2: int) -> Tensor:
    """Two dims exchanged."""
    t = strong(x)
    order = list(range(t.ndim))
    i, j = normalize_axis("swapaxes", axis1, t.ndim), normalize_axis("swapaxes", axis2, t.ndim)
    order[i], order[j] = j, i
    return permuted(t, tuple(order))


@composite(numpy=np.expand_dims)
def expand_dims(x: Any, axis: Any = 0) -> Tensor:
    """New dims of extent 1 at the positions `axis` (int or tuple) of the result.

    >>> expand_dims([1, 2], 0).shape, expand_dims([1, 2], (0, -1)).shape
    ((1, 2), (1, 2, 1))
    """
    t = strong(x)
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = normalize_axes("expand_dims", tuple(given), t.ndim + len(given))
    rest = iter(t.shape)
    return reshaped(t, tuple(1 if k in axes else next(rest) for k in range(t.ndim + len(axes))))


@composite(numpy=np.squeeze, method=True)
def squeeze(x: Any, axis: Any = None) -> Tensor:
    """Without the dims `axis` (all of extent 1 if not given); ValueError if one has another extent."""
    t = strong(x)
    ones = tuple(k for k, n in enumerate(t.shape) if n == 1)
    axes = ones if axis is None else normalize_axes("squeeze", axis, t.ndim)
    if any(t.shape[k] != 1 for k in axes):
        raise ValueError(f"squeeze: dims {axes} of shape {t.shape} are not all of extent 1")
    return reshaped(t, tuple(n for k, n in enumerate(t.shape) if k not in axes))


@composite(numpy=np.broadcast_arrays)
def broadcast_arrays(*xs: Any) -> list[Tensor]:
    """All repeated to their common shape; ValueError if there is none."""
    ts = [strong(x) for x in xs]
    shape = broadcast_shape("broadcast_arrays", [t.shape for t in ts]) if ts else ()
    return [broadcast_to(t, shape) for t in ts]


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The common shape of these shapes; ValueError if there is none."""
    return np.broadcast_shapes(*(shape_of(s) for s in shapes))


@composite(numpy=np.ravel, method=True)
def ravel(x: Any, order: str = "C") -> Tensor:
    """All elements in one dim: in row-major order, or with the first dim running fastest if `order` is "F".

    >>> ravel([[1, 2], [3, 4]], "F").tolist()
    [1, 3, 2, 4]
    """
    t = strong(x)
    return reshaped(transpose(t) if by_columns("ravel", order) else t, (t.size,))


@composite(method=True)
def flatten(x: Any, order: str = "C") -> Tensor:
    """As `ravel`."""
    return ravel(x, order)


def _at_least(name: str, numpy: Any, grow: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def function(*xs: Any) -> Any:
        grown = [alias(grow(strong(x))) for x in xs]
        return grown[0] if len(grown) == 1 else tuple(grown)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Each given value with at least {name[8]} dims; one value or a tuple of them."
    return composite(numpy=numpy)(function)


atleast_1d = _at_least("atleast_1d", np.atleast_1d, lambda t: t if t.ndim else reshaped(t, (1,)))
atleast_2d = _at_least("atleast_2d", np.atleast_2d, lambda t: t if t.ndim > 1 else reshaped(t, (1, t.size)))
atleast_3d = _at_least("atleast_3d", np.atleast_3d, lambda t: t if t.ndim > 2 else reshaped(
    t, (*t.shape, 1) if t.ndim == 2 else (1, t.size, 1)))


# -- joining and splitting ---------------------------------------------------------------------------------------------
def _promoted(name: str, xs: Any) -> list[Tensor]:
    """Tensors of one dtype; a tensor stands for its rows."""
    ts = [as_tensor(x) for x in xs]
    if not ts:
        raise ValueError(f"{name}: needs at least one tensor")
    weak: list[str] = [t.dtype.kind for t in ts if t._weak]
    dtype = dtypes.result_dtype([t.dtype for t in ts if not t._weak], weak)
    return [cast(t, dtype) for t in ts]


@composite(numpy=np.concatenate)
def concat(xs: Any, axis: int | None = 0, *, dtype: Any = None) -> Tensor:
    """Tensors one after the other along `axis`, or all their elements if it is None.

    Raises ValueError if their shapes differ beside `axis`.

    >>> concat([[1, 2], [3]]).tolist()
    [1, 2, 3]
    """
    ts = _promoted("concat", xs)
    if dtype is not None:
        ts = [cast(t, dtype) for t in ts]
    if axis is None:
        ts, axis = [ravel(t) for t in ts], 0
    if not ts[0].ndim:
        raise ValueError("concat: 0-d tensors cannot be joined; use stack")
    return joined(ts, normalize_axis("concat", axis, ts[0].ndim))


concatenate = concat


@composite(numpy=np.stack)
def stack(xs: Any, axis: int = 0, *, dtype: Any = None) -> Tensor:
    """Tensors of one shape along a new dim at `axis`.

    >>> stack([[1, 2], [3, 4]], axis=1).tolist()
    [[1, 3], [2, 4]]
    """
    ts = _promoted("stack", xs)
    if dtype is not None:
        ts = [cast(t, dtype) for t in ts]
    if any(t.shape != ts[0].shape for t in ts):
        raise ValueError(f"stack: shapes {', '.join(str(t.shape) for t in ts)} differ")
    k = normalize_axis("stack", axis, ts[0].ndim + 1)
    shape = ts[0].shape
    return joined([reshaped(t, (*shape[:k], 1, *shape[k:])) for t in ts], k)


def _stack_nested(x: Any, dtype: Any) -> Tensor:
    """Nested sequences that hold tensors, as one tensor."""
    leaves: list[Any] = []

    def collect(item: Any) -> None:
        if isinstance(item, (list, tuple)):
            for part in item:
                collect(part)
        else:
            leaves.append(item if isinstance(item, (bool, int, float, complex)) and not isinstance(item, np.generic)
                          else as_tensor(item))

    collect(x)
    if dtype is None:
        found = [t for t in leaves if isinstance(t, Tensor)]
        weak: list[str] = [t.dtype.kind for t in found if t._weak]
        weak += [dtypes.weak_kind(v) for v in leaves if not isinstance(v, Tensor)]
        dtype = dtypes.result_dtype([t.dtype for t in found if not t._weak], weak)

    def build(item: Any) -> Tensor:
        if isinstance(item, (list, tuple)):
            return stack([build(part) for part in item])
        return as_tensor(item, dtype)

    return build(x)


core.set_stacker(_stack_nested)


@composite(numpy=np.unstack)
def unstack(x: Any, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along `axis`, without that dim."""
    t = strong(x)
    k = normalize_axis("unstack", axis, t.ndim)
    rest = (*t.shape[:k], *t.shape[k + 1:])
    return tuple(reshaped(along(t, k, i, 1), rest) for i in range(t.shape[k]))


def _pieces(t: Tensor, axis: int, cuts: Sequence[int]) -> list[Tensor]:
    n = t.shape[axis]
    pieces = []
    for start, stop in zip([0, *cuts], [*cuts, n]):
        start, size, _ = extent_of(slice(start, stop), n)
        pieces.append(along(t, axis, start, size))
    return pieces


@composite(numpy=np.array_split)
def array_split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    """Pieces along `axis`: so many of nearly equal size, or cut at the given positions."""
    t = strong(x)
    k = normalize_axis("array_split", axis, t.ndim)
    if not hasattr(indices_or_sections, "__index__"):
        return _pieces(t, k, [integer(i) for i in indices_or_sections])
    n = operator.index(indices_or_sections)
    if n <= 0:
        raise ValueError(f"array_split: the number of pieces must be positive, got {n}")
    size, more = divmod(t.shape[k], n)
    sizes = [size + 1] * more + [size] * (n - more)
    return _pieces(t, k, [int(c) for c in np.cumsum(sizes)[:-1]])


@composite(numpy=np.split)
def split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    """Pieces along `axis`: so many of equal size (else ValueError), or cut at the given positions.

    >>> [t.tolist() for t in split([1, 2, 3, 4], 2)]
    [[1, 2], [3, 4]]
    """
    t = strong(x)
    k = normalize_axis("split", axis, t.ndim)
    if hasattr(indices_or_sections, "__index__") and (indices_or_sections == 0 or t.shape[k] % indices_or_sections):
        raise ValueError(f"split: axis {k} of shape {t.shape} does not divide into {indices_or_sections} equal pieces")
    return array_split(t, indices_or_sections, k)


def _stacked(name: str, numpy: Any, grow: Callable[..., Any], axis: int, doc: str) -> Callable[..., Tensor]:
    def function(xs: Any, *, dtype: Any = None) -> Tensor:
        ts = [grow(x) for x in xs]
        return concat(ts, builtins.min(axis, ts[0].ndim - 1) if ts else 0, dtype=dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return composite(numpy=numpy)(function)


hstack = _stacked("hstack", np.hstack, atleast_1d, 1,
                  "Tensors side by side: joined along the second dim, vectors along the first.")
vstack = _stacked("vstack", np.vstack, atleast_2d, 0,
                  "Tensors on top of each other: vectors become rows, then all are joined along the first dim.")
dstack = _stacked("dstack", np.dstack, atleast_3d, 2, "Tensors joined along the third dim.")
column_stack = _stacked("column_stack", np.column_stack,
                        lambda x: t if (t := strong(x)).ndim > 1 else reshaped(t, (t.size, 1)), 1,
                        "Vectors as the columns of a matrix.")


@composite(numpy=np.block)
def block(arrays: Any) -> Tensor:
    """Nested lists of tensors as one: the innermost lists are joined along the last dim, those around them along the
    one before, and so on. What has fewer dims than the lists are deep gets new ones in front.

    Raises ValueError for an empty list, and for lists of different depths.

    >>> block([[np.eye(2), np.zeros((2, 1))], [np.ones((1, 3))]]).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    """
    ndim = 0

    def depth(item: Any) -> int:
        nonlocal ndim
        if not isinstance(item, list):
            ndim = builtins.max(ndim, as_tensor(item).ndim)
            return 0
        depths = {depth(part) for part in item}
        if len(depths) != 1:
            raise ValueError("block: an empty list" if not depths else f"block: lists of the depths {sorted(depths)}")
        return depths.pop() + 1

    deep = depth(arrays)
    ndim = builtins.max(ndim, deep)

    def build(item: Any, level: int) -> Tensor:
        if level:
            return concat([build(part, level - 1) for part in item], ndim - level)
        t = as_tensor(item)
        return reshaped(t, (1,) * (ndim - t.ndim) + t.shape)

    return alias(build(arrays, deep))


# -- taking in and leaving out -----------------------------------------------------------------------------------------
@composite(numpy=np.append)
def append(x: Any, values: Any, axis: int | None = None) -> Tensor:
    """`values` after `x` along `axis`; all elements of both in one dim if it is None.

    >>> append([1, 2], [[3], [4]]).tolist()
    [1, 2, 3, 4]
    """
    return concat([ravel(x), ravel(values)]) if axis is None else concat([x, values], axis)


@composite(numpy=np.insert)
def insert(x: Any, obj: Any, values: Any, axis: int | None = None) -> Tensor:
    """`x` with `values` put in front of the places `obj` along `axis` (None: of all elements in one dim).

    obj: an integer, in front of which all of `values` goes; or a slice, integers or a mask, one value for each. They
    must be known. IndexError for a place beyond the end.

    >>> insert([1, 2, 3], 1, [8, 9]).tolist(), insert([1, 2, 3], [0, 3], 9).tolist()
    ([1, 8, 9, 2, 3], [9, 1, 2, 3, 9])
    """
    t = strong(x)
    t, k = (ravel(t), 0) if axis is None else (t, normalize_axis("insert", axis, t.ndim))
    n = t.shape[k]
    v = cast(as_tensor(values), t.dtype)
    v = reshaped(v, (1,) * (t.ndim - v.ndim) + v.shape)
    places = np.arange(n)[obj] if isinstance(obj, slice) else np.asarray(obj)
    places = np.flatnonzero(places) if places.dtype.kind == "b" else places
    if places.size and (places.dtype.kind not in "iu" or places.ndim > 1):
        raise IndexError(f"insert: places must be integers, got {obj!r}")
    if places.size and not (-n <= int(places.min()) and int(places.max()) <= n):
        raise IndexError(f"insert: place {obj!r} is out of bounds for axis {k} of size {n}")
    if not places.ndim:  # a single place takes them all
        v = permuted(v, moved_axis(t.ndim, 0, k))
        v = core.broadcast_to(v, (*t.shape[:k], v.shape[k], *t.shape[k + 1:]))
        place = int(places) + n if places < 0 else int(places)
        return joined([along(t, k, 0, place), v, along(t, k, place, n - place)], k)
    n, places = operator.index(n), places.astype(np.int64)
    v = core.broadcast_to(v, (*t.shape[:k], places.size, *t.shape[k + 1:]))
    places = np.where(places < 0, places + n, places)
    shown = np.insert(np.arange(n), places, np.arange(n, n + places.size))
    return alias(shown_along(joined([t, v], k), k, shown))


@composite(numpy=np.delete)
def delete(x: Any, obj: Any, axis: int | None = None) -> Tensor:
    """`x` without the slices `obj` (an integer, a slice, integers or a mask; known) along `axis` (None: in one dim).

    >>> delete([[1, 2, 3], [4, 5, 6]], 1, axis=1).tolist()
    [[1, 3], [4, 6]]
    """
    t = strong(x)
    t, k = (ravel(t), 0) if axis is None else (t, normalize_axis("delete", axis, t.ndim))
    n = t.shape[k]
    if hasattr(obj, "__index__") and not isinstance(obj, (bool, np.bool_)) and np.ndim(obj) == 0:
        place = operator.index(obj)
        if not -n <= place < n:
            raise IndexError(f"delete: index {place} is out of bounds for axis {k} with size {n}")
        place = place + n if place < 0 else place
        return joined([along(t, k, 0, place), along(t, k, place + 1, n - 1 - place)], k)
    left = np.delete(np.arange(operator.index(n)), np.asarray(obj) if isinstance(obj, Tensor) else obj)
    return alias(shown_along(t, k, left))


@composite(numpy=np.resize)
def resize(x: Any, new_shape: Any) -> Tensor:
    """The elements in row-major order in another shape, from the start again if they do not suffice.

    >>> resize([1, 2, 3], (2, 2)).tolist()
    [[1, 2], [3, 1]]
    """
    t, shape = ravel(x), shape_of(new_shape)
    if any(n < 0 for n in shape):
        raise ValueError(f"resize: extents must not be negative, got {shape}")
    size = math.prod(shape)
    if not t.size:
        return core.full(0, shape, t.dtype)
    return reshaped(along(tile(t, -(-size // t.size)), 0, 0, size), shape)


# -- repeating and moving along axes -----------------------------------------------------------------------------------
@composite(numpy=np.tile)
def tile(x: Any, repetitions: Any) -> Tensor:
    """The whole of `x` repeated along each dim.

    >>> tile([1, 2], (2, 2)).tolist()
    [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    t = strong(x)
    counts = shape_of(repetitions)
    ndim = builtins.max(t.ndim, len(counts))
    shape = (1,) * (ndim - t.ndim) + t.shape
    counts = (1,) * (ndim - len(counts)) + counts
    if any(c < 0 for c in counts):
        raise ValueError(f"tile: repetitions must not be negative, got {counts}")
    apart = reshaped(t, tuple(e for n in shape for e in (1, n)))
    repeated = core.broadcast_to(apart, tuple(e for n, c in zip(shape, counts) for e in (c, n)))
    return reshaped(repeated, tuple(n * c for n, c in zip(shape, counts)))


@composite(numpy=np.repeat, method=True)
def repeat(x: Any, repeats: Any, axis: int | None = None) -> Tensor:
    """Each element repeated along `axis` (None: of the flat tensor) `repeats` times: one number, or one for each.

    >>> repeat([1, 2], 2).tolist(), repeat([1, 2], [1, 3]).tolist()
    ([1, 1, 2, 2], [1, 2, 2, 2])
    """
    t = strong(x)
    t, k = (ravel(t), 0) if axis is None else (t, normalize_axis("repeat", axis, t.ndim))
    counts = np.asarray(repeats)
    if counts.dtype.kind not in "iu" or counts.ndim > 1 or (counts.size and counts.min() < 0):
        raise ValueError(f"repeat: repeats must be non-negative integers, got {repeats!r}")
    if counts.size == 1:
        n = int(counts.reshape(()))
        apart = reshaped(t, (*t.shape[:k + 1], 1, *t.shape[k + 1:]))
        repeated = core.broadcast_to(apart, (*t.shape[:k + 1], n, *t.shape[k + 1:]))
        return reshaped(repeated, (*t.shape[:k], t.shape[k] * n, *t.shape[k + 1:]))
    if counts.size != t.shape[k]:
        raise ValueError(f"repeat: {counts.size} repeats for axis {k} of shape {t.shape}")
    return shown_along(t, k, np.repeat(np.arange(t.shape[k]), counts))


def shown_along(t: Tensor, axis: int, places: np.ndarray) -> Tensor:
    """The slices at known, valid `places` along an axis: joined runs if they are few, else a gather."""
    runs = _runs(places)
    if len(runs) <= 4:
        return _joined_runs(t, axis, runs)
    out = pick(t, (core.constant_tensor(places.astype(np.int64)),), (axis,))
    return permuted(out, moved_axis(t.ndim, 0, axis))


def _joined_runs(t: Tensor, axis: int, runs: Sequence[tuple[int, int, int]]) -> Tensor:
    """Runs (start, size, step) along an axis, one after the other."""
    parts = []
    for start, size, step in runs:
        if step:
            parts.append(along(t, axis, start, size, step))
        else:
            parts.append(core.broadcast_to(along(t, axis, start, 1), (*t.shape[:axis], size, *t.shape[axis + 1:])))
    return joined(parts, axis) if parts else along(t, axis, 0, 0)


def _runs(places: np.ndarray) -> list[tuple[int, int, int]]:
    """Arithmetic runs (start, size, step) that make up `places`; where runs meet the longer one has what fits both."""
    runs: list[list[int]] = []
    for p in places.tolist():
        if runs:
            start, size, step = runs[-1]
            if size == 1:
                runs[-1] = [start, 2, p - start]
                continue
            if p == start + size * step:
                runs[-1][1] += 1
                continue
        runs.append([p, 1, 1])
    for run, following in pairwise(runs):
        start, size, step = run
        ahead, more, pace = following
        if 1 < size < more and start + (size - 1) * step == ahead - pace:
            run[1] = size - 1
            following[:] = ahead - pace, more + 1, pace
    return [(a, n, s if n > 1 else 1) for a, n, s in runs]


@composite(numpy=np.roll)
def roll(x: Any, shift: Any, axis: Any = None) -> Tensor:
    """Elements moved on by `shift` along `axis` (None: of the flat tensor); what falls off the end comes in in front.

    >>> roll([1, 2, 3], 1).tolist()
    [3, 1, 2]
    """
    t = strong(x)
    if axis is None:
        if isinstance(shift, (tuple, list)):
            shift = builtins.sum(shift)
        return reshaped(roll(ravel(t), shift, 0), t.shape)
    shifts = shift if isinstance(shift, (tuple, list)) else (shift,)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    if 1 not in (len(shifts), len(axes)) and len(shifts) != len(axes):
        raise ValueError(f"roll: shift {shift} and axis {axis} must have as many entries")
    n = builtins.max(len(shifts), len(axes))
    for s, a in zip([*shifts] * (n if len(shifts) == 1 else 1), [*axes] * (n if len(axes) == 1 else 1)):
        k = normalize_axis("roll", a, t.ndim)
        size = t.shape[k]
        s = integer(s) % size if size else 0
        if s:
            t = joined([along(t, k, size - s, s), along(t, k, 0, size - s)], k)
    return alias(t)


@composite(numpy=np.flip)
def flip(x: Any, axis: Any = None) -> Tensor:
    """The order of elements along `axis` (all dims if None) reversed."""
    t = strong(x)
    for k in normalize_axes("flip", axis, t.ndim):
        if t.shape[k] > 1:
            t = along(t, k, t.shape[k] - 1, t.shape[k], -1)
    return alias(t)


@composite(numpy=np.flipud)
def flipud(x: Any) -> Tensor:
    """The order along the first dim reversed."""
    return flip(x, 0)


@composite(numpy=np.fliplr)
def fliplr(x: Any) -> Tensor:
    """The order along the second dim reversed."""
    return flip(x, 1)


@composite(numpy=np.rot90)
def rot90(x: Any, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    """Turned by `k` quarter turns from the first of `axes` towards the second."""
    t = strong(x)
    i, j = (normalize_axis("rot90", a, t.ndim) for a in axes)
    if i == j:
        raise ValueError(f"rot90: axes {tuple(axes)} are the same")
    turns = operator.index(k) % 4
    if turns == 0:
        return alias(t)
    if turns == 2:
        return flip(t, (i, j))
    return swapaxes(flip(t, j), i, j) if turns == 1 else flip(swapaxes(t, i, j), j)


# -- padding -----------------------------------------------------------------------------------------------------------
def _pairs(value: Any, ndim: int, what: str) -> list[tuple[Any, Any]]:
    """(before, after) for each dim, of one number, one pair, or one pair for each dim."""
    try:
        found = np.broadcast_to(np.asarray(value), (ndim, 2))
    except ValueError:
        raise ValueError(f"pad: {what} {value!r} does not fit {ndim} dims") from None
    return [(a, b) for a, b in found.tolist()]


@composite(numpy=np.pad)
def pad(x: Any, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Tensor:
    """`x` with elements added around. `pad_width`: one number, a (before, after) pair, one for each dim, {axis: width}.

    mode: "constant" (`constant_values`, in the same forms), "edge" (the nearest element), "reflect" (mirrored, without
    the edge), "symmetric" (mirrored, with the edge) or "wrap" (from the other end).

    >>> pad([1, 2, 3], 2, "reflect").tolist()
    [3, 2, 1, 2, 3, 2, 1]
    """
    t = strong(x)
    if isinstance(pad_width, dict):
        given = {normalize_axis("pad", a, t.ndim): w for a, w in pad_width.items()}
        pad_width = [_pairs(given.get(k, 0), 1, "pad_width")[0] for k in range(t.ndim)]
    widths = _pairs(pad_width, t.ndim, "pad_width")
    if any(not isinstance(w, int) or w < 0 for pair in widths for w in pair):
        raise ValueError(f"pad: pad_width must be non-negative integers, got {pad_width!r}")
    if mode == "constant":
        return _pad_constant(t, widths, constant_values)
    if mode not in ("edge", "reflect", "symmetric", "wrap"):
        raise ValueError(f"pad: mode must be constant, edge, reflect, symmetric or wrap, got {mode!r}")
    for k, pair in enumerate(widths):
        if pair != (0, 0):
            if not t.shape[k]:
                raise ValueError(f"pad: axis {k} of shape {t.shape} is empty, so mode {mode!r} has nothing to show")
            runs = _padded_runs(t.shape[k], *pair, mode)
            if runs is not None:
                t = _joined_runs(t, k, runs)
            else:
                t = shown_along(t, k, np.pad(np.arange(t.shape[k]), pair, mode))  # type: ignore[call-overload]
    return alias(t)


def _padded_runs(n: int, before: int, after: int, mode: str) -> list[tuple[int, int, int]] | None:
    """What padding shows of a dim of size n, as runs (start, size, step); None where it goes around more than once."""
    reach = n - 1 if mode == "reflect" else n
    if mode != "edge" and (before > reach or after > reach):
        return None
    first = {"edge": (0, 0), "reflect": (before, -1), "symmetric": (before - 1, -1), "wrap": (n - before, 1)}[mode]
    last = {"edge": (n - 1, 0), "reflect": (n - 2, -1), "symmetric": (n - 1, -1), "wrap": (0, 1)}[mode]
    runs = [(first[0], before, first[1]), (0, n, 1), (last[0], after, last[1])]
    return [run for run in runs if run[1] != 0]


def _pad_constant(t: Tensor, widths: Sequence[tuple[int, int]], value: Any) -> Tensor:
    if isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic):
        shape = tuple(a + n + b for n, (a, b) in zip(t.shape, widths))
        value = np.full((), value).astype(t.dtype).item()
        return embed(t, shape, tuple(a for a, _ in widths), None, value)
    values = as_tensor(value, t.dtype)
    values = broadcast_to(values, (t.ndim, 2))
    for k, pair in enumerate(widths):
        sides = []
        for side, width in enumerate(pair):
            one = reshaped(along(along(values, 0, k, 1), 1, side, 1), (1,) * t.ndim)
            sides.append(core.broadcast_to(one, (*t.shape[:k], width, *t.shape[k + 1:])))
        t = joined([s for s in (sides[0], t, sides[1]) if s.shape[k]] or [t], k)
    return t


# -- diagonals ---------------------------------------------------------------------------------------------------------
@composite(numpy=np.diag)
def diag(x: Any, k: int = 0) -> Tensor:
    """A matrix with the vector `x` on its k-th diagonal, or the k-th diagonal of a matrix.

    >>> diag([1, 2]).tolist(), diag([[1, 2], [3, 4]]).tolist()
    ([[1, 0], [0, 2]], [1, 4])
    """
    t = strong(x)
    k = operator.index(k)
    if t.ndim == 2:
        return diagonal(t, k)
    if t.ndim != 1:
        raise ValueError(f"diag: needs a vector or a matrix, got shape {t.shape}")
    n = t.size + abs(k)
    return reshaped(embed(t, (n * n,), (k if k >= 0 else -k * n,), (n + 1,)), (n, n))


@composite(numpy=np.diagflat)
def diagflat(x: Any, k: int = 0) -> Tensor:
    """A matrix with all elements of `x` on its k-th diagonal."""
    return diag(ravel(x), k)


# -- methods -----------------------------------------------------------------------------------------------------------
def _transpose_method(self: Tensor, *axes: Any) -> Tensor:
    """Dims in the order given (as numbers or one sequence); reversed if none are."""
    given = axes[0] if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (tuple, list))) else axes or None
    return transpose(self, given)


Tensor.transpose = _transpose_method  # type: ignore[attr-defined]
Tensor.T = property(transpose, doc="Dims in reversed order.")  # type: ignore[attr-defined]
Tensor.mT = property(matrix_transpose, doc="The last two dims swapped.")  # type: ignore[attr-defined]

__all__ = [
    "permute_dims", "matrix_transpose", "moveaxis", "swapaxes", "expand_dims", "squeeze",
    "broadcast_arrays", "broadcast_shapes", "ravel", "flatten", "atleast_1d", "atleast_2d", "atleast_3d",
    "concat", "concatenate", "stack", "unstack", "split", "array_split", "hstack", "vstack", "dstack", "column_stack",
    "block", "append", "insert", "delete", "resize", "tile", "repeat", "roll", "flip", "flipud", "fliplr", "rot90",
    "pad", "diag", "diagflat",
]
