"""Subscripts: `t[index]`, `t[index] = value` and `t.at[index]`, with everything NumPy takes as an index.

In: a tensor and an index. Out: a new tensor; an assignment rebinds the handle (in place when it owns its buffer alone).

When nothing records, NumPy does it. Otherwise `understand` takes the index apart into a window (ints and slices), a
reshape (dropped and new dims) and a gather along the dims that arrays index; writes go the same way back.
Which elements a boolean mask selects must be known for a read, since the shape of the result depends on it; a write
through a mask known only at run time is a `where`, and what it reads can do little else than be written back
(`selected.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.dims import extent_of, integer, is_symbolic
from tracejit.errors import TracerError, user_line
from tracejit.ir import CONSTANT, Node
from tracejit.ops import core
from tracejit.ops import elementwise as ew
from tracejit.ops.core import as_tensor, broadcast_shape, cast, constant_tensor, full, rebind
from tracejit.ops.indexing import MODES, check_indices, out_of_bounds, pick, put
from tracejit.ops.movement import embed, permuted, reshaped, window
from tracejit.ops.selected import Selected
from tracejit.ops.spans import first_span
from tracejit.quiet import quietly
from tracejit.tensor import Tensor, owned, state, wrap

Shape = tuple[int, ...]
IN_PLACE = 1024  # elements from which a loop's carry is worth writing in place


@dataclass(slots=True)
class Selection:
    """What an index means for one shape.

    A window of the tensor in `shape` (ints dropped, new dims put in); then, if `arrays`, a gather of them along `axes`
    of that, whose dims end up at `place` of the result. Beside arrays ints are arrays too, so that axes keep their
    numbers. `mask` is a boolean tensor known only at run time, over the
    dims from `mask_axis` on.
    """

    starts: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    shape: list[int] = field(default_factory=list)
    arrays: list[Tensor | np.ndarray] = field(default_factory=list)
    axes: list[int] = field(default_factory=list)
    place: int = 0
    mask: Tensor | None = None
    mask_axis: int = 0

    def indices(self) -> list[Tensor]:
        """The index tensors, int64 and of one shape."""
        shape = broadcast_shape("index", [a.shape for a in self.arrays])
        return [core.broadcast_to(cast(a if isinstance(a, Tensor) else constant_tensor(a), dtypes.int64), shape)
                for a in self.arrays]


# -- taking an index apart ---------------------------------------------------------------------------------------------
def _known(t: Tensor) -> np.ndarray | None:
    """The values of a tensor if they cannot change from call to call."""
    value = t._value
    if state.trace is None:
        return value if isinstance(value, np.ndarray) else None
    return value.attrs["value"] if isinstance(value, Node) and value.op is CONSTANT else None


def _item(item: Any) -> Any:
    """One part of an index as None, Ellipsis, slice, int, an integer or bool array (known), or such a Tensor (not)."""
    if item is None or item is Ellipsis or (isinstance(item, (slice, int, np.integer)) and not isinstance(item, bool)):
        return int(item) if isinstance(item, np.integer) else item
    if isinstance(item, (bool, np.bool_)):
        return np.array(item)
    found: np.ndarray | Tensor
    if isinstance(item, (list, tuple)) and not len(item):
        return np.zeros(0, np.int64)
    if isinstance(item, (list, tuple)) and not core._holds_tensor(item):
        found = np.array(item)
    elif isinstance(item, (np.ndarray, list, tuple)) or core._holds_tensor(item) or hasattr(item, "__array__"):
        tensor = as_tensor(item)
        known = _known(tensor)
        if known is None and tensor.dtype.kind == "b" and state.trace is not None:
            known = state.trace.observe(tensor)  # type: ignore[attr-defined]
        found = tensor if known is None else known
    elif hasattr(item, "__index__"):
        return integer(item)
    else:
        raise IndexError(f"a tensor can be indexed by integers, slices, ..., None, and integer or boolean arrays, "
                         f"not {type(item).__name__} {str(item)[:40]!r}")
    if found.dtype.kind not in "biu":
        raise IndexError(f"arrays used as indices must be of integer (or boolean) dtype, not {found.dtype}")
    if isinstance(found, np.ndarray) and found.ndim == 0 and found.dtype.kind != "b":
        return int(found)
    return found


def _is_mask(item: Any) -> bool:
    return isinstance(item, (np.ndarray, Tensor)) and item.dtype.kind == "b"


def understand(index: Any, shape: Shape, writing: bool = False, gathered: bool = False) -> Selection:
    """The meaning of `index` for a tensor of `shape`; IndexError as NumPy. gathered: take ints as index arrays."""
    items = [_item(i) for i in (index if isinstance(index, tuple) else (index,))]
    gathered = gathered or any(isinstance(i, (np.ndarray, Tensor)) and not _is_mask(i) for i in items)
    used = sum(i.ndim if _is_mask(i) else i is not None and i is not Ellipsis for i in items)
    if used > len(shape):
        raise IndexError(f"too many indices: the tensor has {len(shape)} dims (shape {shape}), but {used} are indexed")
    ellipses = [k for k, i in enumerate(items) if i is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    at = ellipses[0] if ellipses else len(items)
    rest: list[Any] = [slice(None)] * (len(shape) - used)
    # an ellipsis that stands for no dim still keeps array indices apart
    items[at:at + 1] = rest or ([Ellipsis] if ellipses else [])

    found = Selection()
    axis = 0  # of `shape`
    advanced: list[int] = []  # positions in `items`
    first = 0
    for k, item in enumerate(items):
        if item is Ellipsis:
            continue
        if item is None:
            found.shape.append(1)
        elif isinstance(item, slice):
            start, n, step = extent_of(item, shape[axis])
            _window(found, start, n, step)
            found.shape.append(n)
            axis += 1
        else:
            if not advanced:
                first = len(found.shape)
            advanced.append(k)
            if isinstance(item, int):
                n = shape[axis]
                if not -n <= item < n:
                    raise out_of_bounds(item, axis, n)
                if gathered:
                    _array(found, np.array(item % n))
                    found.shape.append(n)
                    _window(found, 0, n, 1)
                else:
                    _window(found, item % n, 1, 1)
                axis += 1
            elif _is_mask(item):
                axis = _take_mask(found, item, shape, axis, writing)
            else:
                if isinstance(item, np.ndarray):
                    check_indices("", (item,), (axis,), shape)
                _array(found, item)
                _window(found, 0, shape[axis], 1)
                found.shape.append(shape[axis])
                axis += 1
    if found.mask is not None and found.arrays:
        raise _unknown_mask("next to an index array")
    if advanced and advanced[-1] - advanced[0] + 1 == len(advanced):
        found.place = first
    return found


def _window(found: Selection, start: int, size: int, step: int) -> None:
    found.starts.append(start)
    found.sizes.append(size)
    found.steps.append(step)


def _array(found: Selection, array: Tensor | np.ndarray) -> None:
    found.arrays.append(array)
    found.axes.append(len(found.shape))


def _take_mask(found: Selection, mask: Tensor | np.ndarray, shape: Shape, axis: int, writing: bool) -> int:
    """Add a boolean mask over the dims from `axis` on; the axis after it."""
    for k, n in enumerate(mask.shape):
        if shape[axis + k] != n:
            raise IndexError(f"boolean index did not match: axis {axis + k} has size {shape[axis + k]}, the mask {n}")
    if isinstance(mask, Tensor):
        if found.mask is not None:
            raise _unknown_mask("next to another")
        found.mask, found.mask_axis = mask, len(found.shape)
    elif mask.ndim == 0:  # indexes a new dim of extent 1, with one element or none
        _array(found, np.zeros(int(mask), np.int64))
        found.shape.append(1)
    places = None if isinstance(mask, Tensor) or not mask.ndim else mask.nonzero()
    for k, n in enumerate(mask.shape):
        if places is not None:
            _array(found, places[k])
        _window(found, 0, n, 1)
        found.shape.append(n)
    return axis + mask.ndim


def _unknown_mask(where: str) -> TracerError:
    return TracerError(
        f"a boolean mask known only at run time cannot be used {where or 'to select elements'}, since the shape of the "
        f"result would depend on its values (at {user_line()}). Write tj.where(mask, t, other), "
        f"t.at[mask].set(value) or t[mask] = value, or reduce with where=mask")


# -- reading -----------------------------------------------------------------------------------------------------------
def _plain(index: Any) -> Any:
    """An index for NumPy: tensors replaced by their arrays."""
    kind = type(index)
    if kind is int or kind is slice or index is None or index is Ellipsis:
        return index
    if kind is tuple:
        return tuple([_plain(i) for i in index])
    if core._holds_tensor(index):
        return as_tensor(index)._value
    return index


def get(t: Tensor, index: Any) -> Tensor:
    """t[index], with NumPy's meaning of every kind of index. The result is a value of its own, never a view."""
    if not state.active:
        array: Any = t._value
        out = array[_plain(index)]
        if type(out) is not np.ndarray:
            return wrap(np.asarray(out))
        # a view would pin, and when written copy, a buffer many times its size
        return wrap(out.copy() if out.base is not None and out.nbytes * 8 <= array.nbytes else out)
    t = as_tensor(t)
    span = first_span(index, t.shape)
    if span is not None:
        axis, rest, places = span
        return get(get(t, (*(slice(None),) * axis, places)), rest)
    selection = understand(index, t.shape)
    out = _region(t, selection)
    if selection.mask is not None:
        if selection.mask_axis or selection.shape != list(t.shape):
            raise _unknown_mask("")
        return Selected(out, selection.mask)  # type: ignore[return-value]
    if not selection.arrays:
        return out
    indices = selection.indices()
    out = pick(out, indices, tuple(selection.axes))
    ndim, place = indices[0].ndim, selection.place
    return permuted(out, (*range(ndim, ndim + place), *range(ndim), *range(ndim + place, out.ndim)))


def _region(t: Tensor, selection: Selection) -> Tensor:
    part = window(t, tuple(selection.starts), tuple(selection.sizes), tuple(selection.steps))
    return reshaped(part, tuple(selection.shape))


# -- writing -----------------------------------------------------------------------------------------------------------
def _fits(t: Tensor, value: Any, mode: str) -> Any:
    """A value to be put into `t`, in t's dtype: a Python number or a Tensor. Integers truncate floats, as in NumPy."""
    number = isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic)
    if not number:
        value = as_tensor(value)
    kind = dtypes.weak_kind(value) if number else value.dtype.kind
    order = "buifc" if mode == "set" else "biufc"
    if kind == "c" and t.dtype.kind != "c":
        raise TypeError(f"a complex value does not fit a {t.dtype} tensor; take its real part")
    if mode != "set" and kind in "fc" and order.index(t.dtype.kind) < order.index(kind):
        raise TypeError(f"at[].{mode}: a {'Python float' if number else value.dtype} does not fit a {t.dtype} tensor; "
                        f"cast one of them")
    if not number:
        return cast(value, t.dtype)
    return np.asarray(value, t.dtype).item()  # NumPy's errors for what does not fit


_ELEMENTWISE = {"add": lambda x, v: x + v, "mul": lambda x, v: x * v,
                "min": lambda x, v: ew.minimum(x, v), "max": lambda x, v: ew.maximum(x, v)}


def written(t: Tensor, index: Any, value: Any, mode: str) -> Tensor:
    """t with `value` put at `index`; `mode` as in scatter."""
    if isinstance(value, Selected):
        return _written_back(t, index, value, mode)
    value = _fits(t, value, mode)
    if not state.active:
        out = np.array(t._value, order="C")
        _write_array(out, _plain(index), value._value if isinstance(value, Tensor) else value, mode)
        return wrap(out)
    t = as_tensor(t)
    span = first_span(index, t.shape)
    if span is not None:
        axis, rest, places = span
        there = (*(slice(None),) * axis, places)
        return written(t, there, written(get(t, there), rest, value, mode), "set")
    selection = understand(index, t.shape, writing=True)
    if not selection.arrays and selection.mask is None and _in_place_pays(t, selection):
        selection = understand(index, t.shape, writing=True, gathered=True)
    region = _region(t, selection)
    if selection.mask is not None:
        new = _write_masked(region, selection, value, mode)
    elif selection.arrays:
        indices, axes = selection.indices(), tuple(selection.axes)
        rest = tuple(n for a, n in enumerate(selection.shape) if a not in axes)
        spread = _spread(value, indices[0].shape, rest, selection.place, t.dtype)
        new = put(region, spread, indices, axes, mode)
    else:
        new = _broadcast_value(value, region.shape, t.dtype)
        new = new if mode == "set" else _ELEMENTWISE[mode](region, new)
    return _put_back(t, new, selection)


def _in_place_pays(t: Tensor, selection: Selection) -> bool:
    """Whether writing a few elements costs less than going over all: in the body of a loop, whose carry has one place
    in memory. A window of whole dims and single entries can be written so."""
    nested = state.trace is not None and state.trace.outer is not None  # type: ignore[attr-defined]
    if not nested or is_symbolic((*t.shape, *selection.sizes)):
        return False
    few = t.size >= IN_PLACE and 16 * math.prod(selection.sizes) <= t.size
    return few and all(n in (1, m) for n, m in zip(selection.sizes, t.shape))


def _written_back(t: Tensor, index: Any, value: Selected, mode: str) -> Tensor:
    """What a mask selected, changed, put back through the same mask."""
    t = as_tensor(t)
    selection = understand(index, t.shape, writing=True)
    if selection.mask is None or selection.shape != list(t.shape) or selection.mask_axis:
        raise value.error()
    whole = _fits(t, value.on(selection.mask, t.shape), mode)
    new = whole if mode == "set" else _ELEMENTWISE[mode](t, whole)
    aligned = reshaped(selection.mask, selection.mask.shape + (1,) * (t.ndim - selection.mask.ndim))
    return ew.where(core.broadcast_to(aligned, t.shape), new, t)


def _put_back(t: Tensor, new: Tensor, selection: Selection) -> Tensor:
    """`t` with its selected window replaced."""
    starts, sizes, steps = tuple(selection.starts), tuple(selection.sizes), tuple(selection.steps)
    moved = embed(reshaped(new, sizes), t.shape, starts, steps)
    if sizes == t.shape:  # every element of t is replaced
        return moved
    inside = embed(full(True, sizes, dtypes.bool_), t.shape, starts, steps, False)
    return ew.where(inside, moved, t)


def _broadcast_value(value: Any, shape: Shape, dtype: np.dtype) -> Tensor:
    """A value broadcast to the selected shape (extra leading dims of extent 1 go)."""
    if not isinstance(value, Tensor):
        return full(value, shape, dtype)
    extra = value.ndim - len(shape)
    given = value.shape
    if extra > 0 and all(n == 1 for n in given[:extra]):
        value = reshaped(value, given[extra:])
    lead = len(shape) - value.ndim
    if lead < 0 or any(n not in (1, m) for n, m in zip(value.shape, shape[lead:])):
        raise ValueError(f"could not broadcast a value of shape {given} into the selected shape {shape}")
    return core.broadcast_to(value, shape)


def _spread(value: Any, shape: Shape, rest: Shape, place: int, dtype: np.dtype) -> Tensor:
    """A value broadcast to what arrays of `shape` select at `place` among `rest`, with those dims in front."""
    spread = _broadcast_value(value, rest[:place] + shape + rest[place:], dtype)
    n = len(shape)
    return permuted(spread, (*range(place, place + n), *range(place), *range(place + n, spread.ndim)))


def _write_masked(region: Tensor, selection: Selection, value: Any, mode: str) -> Tensor:
    mask, axis = selection.mask, selection.mask_axis
    assert mask is not None
    rest = region.shape[:axis] + region.shape[axis + mask.ndim:]
    if isinstance(value, Tensor):
        lead = value.ndim - (len(rest) - selection.place) - 1  # where the value has the dim of the selected elements
        if lead >= 0 and value.shape[lead] != 1:
            raise _unknown_mask("to place an array of as many values as it has elements")
    spread = _spread(value, (1,), rest, selection.place, region.dtype)
    spread = reshaped(spread, rest)
    spread = core.broadcast_to(reshaped(spread, rest[:axis] + (1,) * mask.ndim + rest[axis:]), region.shape)
    new = spread if mode == "set" else _ELEMENTWISE[mode](region, spread)
    aligned = reshaped(mask, mask.shape + (1,) * (len(rest) - axis))
    return ew.where(core.broadcast_to(aligned, region.shape), new, region)


def _write_array(out: np.ndarray, index: Any, value: Any, mode: str) -> None:
    """Write into a NumPy array that is ours."""
    ufunc = MODES[mode]
    if ufunc is None:
        out[index] = value
    else:
        quietly(ufunc.at, out, index, value)


def assign(t: Tensor, index: Any, value: Any) -> None:
    """t[index] = value: this handle stands for the new value from now on; others on the old value keep it."""
    if t.lock is None or state.trace is not None:
        _assign(t, index, value)
    else:
        with t.lock:  # no other thread's update is lost
            _assign(t, index, value)


def _assign(t: Tensor, index: Any, value: Any) -> None:
    if state.active:
        rebind(t, written(t, index, value, "set"))
        return
    if isinstance(value, Tensor):
        value = value._value
    elif type(value) not in (int, float, bool, np.ndarray):
        value = as_tensor(value)._value
    if type(value) is np.ndarray and value.dtype.kind not in "biuf" and t.dtype.kind != "c":
        _fits(t, value, "set")
    array: Any = t._value if owned(t) else np.array(t._value, order="C")
    array[_plain(index)] = value
    t._value = array


# -- t.at --------------------------------------------------------------------------------------------------------------
class At:
    """`t.at[index]` names a place in a tensor; its methods give new tensors.

    >>> t = Tensor([1, 2, 3])
    >>> t.at[0].set(10).tolist(), t.at[[1, 1]].add(5).tolist(), t.tolist()
    ([10, 2, 3], [1, 12, 3], [1, 2, 3])
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor):
        self.tensor = tensor

    def __getitem__(self, index: Any) -> Place:
        return Place(self.tensor, index)


class Place:
    """A place in a tensor. Where an index repeats, `set` keeps the last value and the others count every one."""

    __slots__ = ("tensor", "index")

    def __init__(self, tensor: Tensor, index: Any):
        self.tensor, self.index = tensor, index

    def get(self) -> Tensor:
        """The elements there."""
        return get(self.tensor, self.index)

    def set(self, value: Any) -> Tensor:
        """The tensor with `value` there."""
        return written(self.tensor, self.index, value, "set")

    def add(self, value: Any) -> Tensor:
        """The tensor with `value` added there."""
        return written(self.tensor, self.index, value, "add")

    def subtract(self, value: Any) -> Tensor:
        """The tensor with `value` subtracted there."""
        return written(self.tensor, self.index, -as_tensor(_fits(self.tensor, value, "add")), "add")  # type: ignore[operator]

    def multiply(self, value: Any) -> Tensor:
        """The tensor multiplied by `value` there."""
        return written(self.tensor, self.index, value, "mul")

    def divide(self, value: Any) -> Tensor:
        """The tensor divided by `value` there (floats only)."""
        if self.tensor.dtype.kind not in "fc":
            raise TypeError(f"at[].divide: a {self.tensor.dtype} tensor cannot hold quotients; cast it to a float")
        return self.tensor / self._ones("mul", value)  # type: ignore[operator]

    def power(self, value: Any) -> Tensor:
        """The tensor to the power `value` there."""
        return self.tensor ** self._ones("mul", value)  # type: ignore[operator]

    def min(self, value: Any) -> Tensor:
        """The tensor with the smaller of itself and `value` there."""
        return written(self.tensor, self.index, value, "min")

    def max(self, value: Any) -> Tensor:
        """The tensor with the larger of itself and `value` there."""
        return written(self.tensor, self.index, value, "max")

    mul = multiply

    def _ones(self, mode: str, value: Any) -> Tensor:
        t = self.tensor
        return written(full(1, t.shape, t.dtype), self.index, _fits(t, value, mode), mode)


Tensor.__getitem__ = get  # type: ignore[method-assign]
Tensor.__setitem__ = assign  # type: ignore[method-assign]
Tensor.at = property(At, doc=At.__doc__)  # type: ignore[attr-defined]


__all__: list[str] = []  # all of it is reached from tensors
