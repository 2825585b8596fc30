"""Elements of a dataset: pytrees whose leaves are arrays nobody writes; tables of rows; batches made of elements.

In: what users give (arrays, tensors, numbers, lists, text). Out: arrays, checked, with errors that name the component.
Text stays text: a leaf of strings is a NumPy array of them, and reaches the user as `str` or such an array.

Read next: `streams.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracejit.ops.core import as_tensor
from tracejit.tensor import Tensor, to_array, wrap
from tracejit.trace.signature import Spec
from tracejit.trees import flatten, leaf_names, mapped, unflatten

NUMERIC = "biufc"


# -- what users give ---------------------------------------------------------------------------------------------------
def _is_list(x: Any) -> bool:
    return type(x) is list


def arrays_of(tree: Any, what: str) -> tuple[list[np.ndarray], Any]:
    """Leaves as arrays nobody else writes, and the structure. Lists are arrays; tuples, dicts and records are
    structure. `what` opens error messages."""
    leaves, structure = flatten(tree, _is_list)
    found: list[np.ndarray] = []
    for k, x in enumerate(leaves):
        try:
            found.append(_array(x))
        except (TypeError, ValueError, OverflowError) as error:
            name = leaf_names(structure, "element")[k]
            raise type(error)(f"{what}: {name}: {error}") from error
    return found, structure


def element_of(tree: Any, what: str) -> Any:
    """A pytree of arrays."""
    try:
        return _usual(tree)
    except _Unusual:
        found, structure = arrays_of(tree, what)
        return unflatten(structure, found)


class _Unusual(Exception):
    """Something else than tensors and arrays in tuples and dicts."""


def _usual(x: Any) -> Any:
    kind = type(x)
    if kind is Tensor:
        return x.numpy()
    if kind is np.ndarray and x.dtype.kind in NUMERIC:
        return _array(x)
    if kind is tuple:
        return tuple([_usual(y) for y in x])
    if kind is dict:
        return {k: _usual(y) for k, y in x.items()}
    raise _Unusual


def _array(x: Any) -> np.ndarray:
    if isinstance(x, Tensor):
        return x.numpy()
    if isinstance(x, (str, np.str_)):
        return np.array(x)
    if isinstance(x, list):
        if any(isinstance(y, Tensor) for y in x):
            return as_tensor(x).numpy()
        try:
            plain = np.array(x)
        except ValueError as error:
            raise ValueError("the lists in it have different lengths") from error
        return plain if plain.dtype.kind == "U" else to_array(x)
    if not isinstance(x, (np.ndarray, np.generic, bool, int, float, complex)) and (
            hasattr(x, "__array__") or hasattr(x, "__array_interface__")):
        x = np.asarray(x)
    if isinstance(x, np.ndarray):
        if x.dtype.kind == "O" and all(isinstance(s, str) for s in x.flat):
            return x.astype(str)
        if x.dtype.kind == "U":
            return x.copy()
        if x.dtype.kind in NUMERIC and x.dtype.isnative and _fixed(x):
            return x
    elif not isinstance(x, (np.generic, bool, int, float, complex)):
        raise TypeError(f"expected an array, a tensor, a number or text, got {type(x).__name__}")
    return to_array(x)


def _fixed(x: np.ndarray) -> bool:
    """Whether no array writes that memory: a read-only array or memory map need not be copied."""
    base: Any = x
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return base is None or memoryview(base).readonly


# -- what users get ----------------------------------------------------------------------------------------------------
def _shown(x: Any) -> Any:
    if type(x) is np.ndarray and x.dtype.kind == "U":
        return x.item() if x.ndim == 0 else x
    return wrap(x) if isinstance(x, np.ndarray) else x


def tensors(element: Any) -> Any:
    """The element as users see it: arrays as tensors, on the same memory."""
    kind = type(element)
    if kind is np.ndarray:
        return _shown(element)
    if kind is tuple:
        return tuple([tensors(x) for x in element])
    if kind is dict:
        return {k: tensors(x) for k, x in element.items()}
    return mapped(_shown, element)


def read_only(element: Any) -> Any:
    """The element as NumPy arrays."""

    def view(x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return x
        x = x.view()
        x.flags.writeable = False
        return x.item() if x.dtype.kind == "U" and x.ndim == 0 else x

    return mapped(view, element)


# -- tables ------------------------------------------------------------------------------------------------------------
class Table:
    """Arrays with the same number of rows. A row is an element."""

    def __init__(self, leaves: Sequence[np.ndarray], structure: Any):
        self.leaves, self.structure = leaves, structure

    def row(self, k: int) -> Any:
        return unflatten(self.structure, [x[k] if x.ndim > 1 else x[k: k + 1].reshape(()) for x in self.leaves])

    def batch(self, rows: Sequence[int]) -> Any:
        """Several rows in one go: a view where they follow each other, otherwise gathered."""
        if type(rows) is range and rows.step == 1:
            return unflatten(self.structure, [x[rows.start: rows.stop] for x in self.leaves])
        index = np.asarray(rows, np.intp)
        return unflatten(self.structure, [x.take(index, 0) for x in self.leaves])

    def sample(self) -> Any:
        """Some element, also of a table without rows."""
        if len(self.leaves[0]):
            return self.row(0)
        return unflatten(self.structure, [np.zeros(x.shape[1:], x.dtype) for x in self.leaves])


class Progression(Table):
    """The numbers of a Python range as rows, never stored."""

    def __init__(self, numbers: range):
        self.numbers = numbers

    def row(self, k: int) -> np.ndarray:
        return np.array(self.numbers[k], np.int64)

    def batch(self, rows: Sequence[int]) -> np.ndarray:
        return np.array(rows, np.int64) * self.numbers.step + self.numbers.start

    def sample(self) -> np.ndarray:
        return np.array(self.numbers.start, np.int64)


class Store(Table):
    """Elements kept as they come, as rows. While they are alike and `count()` tells how many to expect, they go into
    arrays of that many rows; otherwise into a list."""

    def __init__(self, count: Callable[[], int | None]):
        self.count = count
        self.clear()

    def clear(self) -> None:
        self.have = 0
        self.leaves: list[np.ndarray] = []
        self.loose: list[Any] | None = None  # in place of arrays

    def extend(self, found: Sequence[Any]) -> None:
        for element in found:
            if self.loose is None and not self._put(element):
                self.loose = [self.row(k) for k in range(self.have)]
            if self.loose is not None:
                self.loose.append(element)
            self.have += 1

    def _put(self, element: Any) -> bool:
        """Into the arrays, if it fits."""
        if self.have == 0:
            parts, self.structure = flatten(element)
            n = self.count()
            if n is None or not all(isinstance(x, np.ndarray) and x.dtype.kind in NUMERIC for x in parts):
                return False
            self.leaves = [np.empty((n, *x.shape), x.dtype) for x in parts]
        else:
            try:
                parts = self.structure.flatten_up_to(element)
            except (ValueError, TypeError):
                return False
        for x, kept in zip(parts, self.leaves):
            if not isinstance(x, np.ndarray) or x.dtype != kept.dtype or x.shape != kept.shape[1:]:
                return False
        if self.have >= len(self.leaves[0]):
            return False
        for x, kept in zip(parts, self.leaves):
            kept[self.have] = x
        return True

    def __len__(self) -> int:
        return self.have

    def row(self, k: int) -> Any:
        return super().row(k) if self.loose is None else self.loose[k]

    def batch(self, rows: Sequence[int]) -> Any:
        return super().batch(rows) if self.loose is None else stacked([self.loose[k] for k in rows])


def table_of(tree: Any, what: str) -> tuple[Table, int]:
    """A table of the rows of arrays, and how many there are."""
    leaves, structure = arrays_of(tree, what)
    names = leaf_names(structure, "element")
    if not leaves:
        raise ValueError(f"{what}: there is no array in it")
    for name, x in zip(names, leaves):
        if x.ndim == 0:
            raise ValueError(f"{what}: {name} has no rows: its shape is ()")
        if len(x) != len(leaves[0]):
            raise ValueError(f"{what}: the components must have equally many rows, but {names[0]} has "
                             f"{len(leaves[0])} and {name} has {len(x)}")
    return Table(leaves, structure), len(leaves[0])


# -- batches of elements -----------------------------------------------------------------------------------------------
def _columns(elements: Sequence[Any], what: str) -> tuple[list[list[np.ndarray]], Any]:
    """For each component, its arrays in all elements; dtypes and structures must agree."""
    first, structure = flatten(elements[0])
    rows = [first]
    for k, e in enumerate(elements[1:], 1):
        try:
            rows.append(structure.flatten_up_to(e))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{what}: element {k} has the structure {_plain(flatten(e)[1])}, "
                             f"the first one {_plain(structure)}") from error
    columns = [list(c) for c in zip(*rows)]
    for c, column in enumerate(columns):
        for k, x in enumerate(column):
            if not isinstance(x, np.ndarray):
                raise TypeError(f"{what}: {leaf_names(structure, 'element')[c]} of element {k} is a "
                                f"{type(x).__name__}, which cannot be part of a batch")
            d, first_d = x.dtype, column[0].dtype
            if d is not first_d and d != first_d and not d.kind == first_d.kind == "U":
                raise TypeError(f"{what}: {leaf_names(structure, 'element')[c]} is {d} in element {k} and {first_d} "
                                f"in the first one")
    return columns, structure


def _plain(structure: Any) -> str:
    return str(structure).removeprefix("PyTreeSpec(").split(", NoneIsLeaf")[0]


def stacked(elements: Sequence[Any]) -> Any:
    """A batch of elements of equal shapes."""
    columns, structure = _columns(elements, "batch")
    out = []
    for c, column in enumerate(columns):
        head = column[0]
        if head.dtype.kind == "U":
            out.append(np.array(column))
            continue
        batch = np.empty((len(column), *head.shape), head.dtype)
        for k, x in enumerate(column):
            if x.shape != head.shape:
                name = leaf_names(structure, "element")[c]
                raise ValueError(f"batch: {name} has shape {x.shape} in element {k} and {head.shape} in the first one; "
                                 f"use padded_batch")
            batch[k] = x
        out.append(batch)
    return unflatten(structure, out)


def padder(shapes: Any, values: Any) -> Callable[[Sequence[Any]], Any]:
    """A function that makes a batch of elements of different sizes, filled up at the end.

    shapes: for each component the shape to fill up to (None: the largest in the batch), or None for all.
    values: for each component what to fill with, or one value for all.
    """

    def batch(elements: Sequence[Any]) -> Any:
        columns, structure = _columns(elements, "padded_batch")
        names = leaf_names(structure, "element")
        wanted = [None] * len(columns) if shapes is None else _per_leaf(shapes, structure, "padded_shapes", tuple)
        fill = _per_leaf(values, structure, "padding_values", (bool, int, float, complex, str, np.generic))
        out = []
        for name, column, shape, value in zip(names, columns, wanted, fill):
            head = column[0]
            for k, x in enumerate(column):
                if x.ndim != head.ndim:
                    raise ValueError(f"padded_batch: {name} has {x.ndim} dims in element {k} and {head.ndim} in the "
                                     f"first one")
            largest = [max(sizes) for sizes in zip(*[x.shape for x in column])]
            if shape is not None:
                if len(shape) != head.ndim:
                    raise ValueError(f"padded_batch: {name} has {head.ndim} dims, padded_shapes says {shape}")
                for n, m in zip(shape, largest):
                    if n is not None and m > n:
                        raise ValueError(f"padded_batch: {name} has shape {tuple(largest)}, larger than {shape}")
                largest = [m if n is None else n for n, m in zip(shape, largest)]
            text = head.dtype.kind == "U"
            dtype = np.result_type(*column) if text else head.dtype
            full = np.full((len(column), *largest), ("" if text else 0) if value is None else value, dtype)
            for k, x in enumerate(column):
                full[(k, *_corner(x))] = x
            out.append(full)
        return unflatten(structure, out)

    return batch


def _per_leaf(given: Any, structure: Any, what: str, leaf: Any) -> list[Any]:
    """One value for each component: all the same, or a pytree of them."""
    if given is None or (isinstance(given, leaf) and not (leaf is tuple and any(isinstance(x, tuple) for x in given))):
        return [given] * structure.num_leaves
    found, other = flatten(given, lambda x: isinstance(x, leaf) and not (
        isinstance(x, tuple) and any(isinstance(y, tuple) for y in x)))
    if other != structure:
        raise ValueError(f"padded_batch: {what} has the structure {_plain(other)}, the elements {_plain(structure)}")
    return found


def _corner(x: np.ndarray) -> tuple[Any, ...]:
    """Where `x` lies in a larger array."""
    return tuple([slice(n) for n in x.shape])


# -- specs -------------------------------------------------------------------------------------------------------------
def spec_of(element: Any) -> Any:
    return mapped(lambda x: Spec(x.shape, np.dtype(str) if x.dtype.kind == "U" else x.dtype)
                  if isinstance(x, np.ndarray) else x, element)


def merged(a: Any, b: Any) -> Any:
    """A spec that both fit; sizes in which they differ are None."""
    left, structure = flatten(a)
    right, other = flatten(b)
    if structure != other:
        raise ValueError(f"element_spec: elements have different structures, {_plain(structure)} and {_plain(other)}")
    out = []
    for name, x, y in zip(leaf_names(structure, "element"), left, right):
        if not isinstance(x, Spec) or x == y:
            out.append(x)
            continue
        if x.dtype != y.dtype or len(x.shape) != len(y.shape):
            raise ValueError(f"element_spec: {name} is {x} in one element and {y} in another")
        out.append(Spec(tuple(n if n == m else None for n, m in zip(x.shape, y.shape)), x.dtype))
    return unflatten(structure, out)


def conforming(tree: Any, spec: Any, what: str) -> Any:
    """The element, checked against a spec; Python numbers and lists take the spec's dtype."""
    wanted, structure = flatten(spec)
    leaves, other = flatten(tree, _is_list)
    if structure != other:
        raise ValueError(f"{what} has the structure {_plain(other)}, the spec says {_plain(structure)}")
    out = []
    for name, x, s in zip(leaf_names(structure, "element"), leaves, wanted):
        try:
            python = isinstance(x, (list, bool, int, float, complex)) and not isinstance(x, np.generic)
            a = np.array(x, s.dtype) if python and s.dtype.kind != "U" else _array(x)
        except (TypeError, ValueError, OverflowError) as error:
            raise type(error)(f"{what}: {name}: {error}") from error
        if a.dtype.kind == s.dtype.kind == "U":
            fits = Spec(s.shape, a.dtype).accepts(a)
        else:
            fits = s.accepts(a)
        if not fits:
            raise ValueError(f"{what}: {name} has shape {a.shape} and dtype {a.dtype}, the spec says {s.shape} and "
                             f"{s.dtype}")
        out.append(a)
    return unflatten(structure, out)


def enlarged(element: Any, spec: Any) -> Any:
    """The element, one larger in every dim that the spec leaves free (to see what depends on them)."""
    leaves, structure = flatten(element)
    wanted, _ = flatten(spec)
    out = []
    for x, s in zip(leaves, wanted):
        grown = np.zeros([m + (n is None) for n, m in zip(s.shape, x.shape)], x.dtype)
        grown[_corner(x)] = x
        out.append(grown)
    return unflatten(structure, out)
