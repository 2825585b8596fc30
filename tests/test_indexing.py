"""Reads and writes by index against NumPy: random indices of every kind, in each of the ways that ops run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from ways import WAYS, eager, recorded, same, traced

import tracejit as tj
from tracejit.ir import Type, count
from tracejit.tensor import Tensor, evaluate, owned
from tracejit.trace.tracer import trace_function

QUICK = settings(max_examples=300, deadline=None)


@st.composite
def indices(draw: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """A valid index for `shape`: ints, slices, ..., None, integer and boolean arrays (of one shape), mixed."""
    together = draw(st.sampled_from([(2,), (3, 2), (1,), (2, 1), ()]))
    count_true = together[-1] if len(together) == 1 else 0
    items: list[Any] = []
    axis = 0
    dots = False
    while True:
        if draw(st.integers(0, 9)) == 0:
            items.append(None)
        if not dots and draw(st.integers(0, 7)) == 0:
            dots = True
            left = len(shape) - axis
            items.append(Ellipsis)
            axis += draw(st.integers(0, left))
        if axis >= len(shape):
            break
        n = shape[axis]
        kinds = ["array", "slice", "array", "int", "slice", "array", "numpy int"] if n else ["slice"]
        kinds += ["mask", "mask"] if n and 0 < count_true <= n else []
        kinds += ["end"] if not dots else []
        kind = draw(st.sampled_from(kinds))
        if kind == "end":
            break
        if kind == "slice":
            bound = st.none() | st.integers(-n - 2, n + 2)
            items.append(slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, -1, -2, 3, -3]))))
        elif kind == "int":
            items.append(draw(st.integers(-n, n - 1)))
        elif kind == "numpy int":
            items.append(np.int16(draw(st.integers(-n, n - 1))))
        elif kind == "array":
            size = int(np.prod(together))
            values = draw(st.lists(st.integers(-n, n - 1), min_size=size, max_size=size))
            items.append(np.array(values, draw(st.sampled_from(["int64", "int32", "int8"]))).reshape(together))
        else:
            mask = np.zeros(n, bool)
            mask[draw(st.permutations(range(n)))[:count_true]] = True
            items.append(mask)
        axis += 1
    if dots and axis < len(shape):  # what follows the dots must reach the end
        items += [slice(None)] * (len(shape) - axis)
    return tuple(items)


SHAPES = st.lists(st.sampled_from([3, 2, 4, 1, 0]), min_size=0, max_size=4).map(tuple)


@st.composite
def cases(draw: Any) -> tuple[tuple[int, ...], Any]:
    shape = draw(SHAPES)
    index = draw(indices(shape))
    return shape, index[0] if len(index) == 1 and draw(st.booleans()) else index


def data(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    return (np.arange(np.prod(shape, dtype=int)) + 1).reshape(shape).astype(dtype)


@QUICK
@given(cases(), st.sampled_from(WAYS))
@example(((2, 3, 4), (slice(None), np.array([0, 1]), Ellipsis, np.array([1, 2]))), recorded)
@example(((2, 3, 4), (np.array([0, 1]), slice(None), 1)), traced)
@example(((3, 4), (np.array([0, 1]), Ellipsis, np.array([1, 2]))), traced)
@example(((3,), True), traced)
@example(((3,), (False, np.array([0]))), recorded)
def test_reads_as_numpy(case: tuple[tuple[int, ...], Any], way: Callable[..., np.ndarray]) -> None:
    shape, index = case
    x = data(shape)
    try:
        wanted = x[index]
    except (IndexError, ValueError):
        with pytest.raises((IndexError, ValueError)):
            way(lambda t: t[index], x)
        return
    same(way(lambda t: t[index], x), wanted)


@QUICK
@given(cases(), st.sampled_from(WAYS), st.integers(0, 2), st.sampled_from(["float32", "int32", "complex64"]))
def test_writes_as_numpy(case: tuple[tuple[int, ...], Any], way: Callable[..., np.ndarray], form: int,
                         dtype: str) -> None:
    shape, index = case
    x = data(shape, dtype)
    wanted = x.copy()
    try:
        selected = x[index].shape
    except (IndexError, ValueError):
        assume(False)
    value: Any = -7
    if form == 1:
        value = -data(selected, dtype)
    elif form == 2 and selected:
        value = -data((1, *selected[-1:]), "float32")
    if form == 2 and len(selected) < 2 and selected != () and way is not eager:
        value = value[0]
    try:
        wanted[index] = value
    except TypeError:  # a mask takes no value of more dims than one in NumPy
        assume(False)

    def write(t: Tensor) -> Tensor:
        t[index] = value
        return t

    same(way(write, x), wanted)
    same(way(lambda t: t.at[index].set(value), x), wanted)


@QUICK
@given(cases(), st.sampled_from(WAYS), st.sampled_from(["add", "multiply", "min", "max", "subtract"]))
def test_at_counts_every_repeat(case: tuple[tuple[int, ...], Any], way: Callable[..., np.ndarray], name: str) -> None:
    shape, index = case
    x = data(shape, "int64")
    try:
        value = data(x[index].shape, "int64") % 5 - 2
    except (IndexError, ValueError):
        assume(False)
    ufunc = {"min": np.minimum, "max": np.maximum}.get(name) or getattr(np, name)
    wanted = x.copy()
    ufunc.at(wanted, index, value)
    same(way(lambda t: getattr(t.at[index], name)(value), x), wanted)


@QUICK
@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple))
def test_index_tensors_known_only_at_run_time(found: st.DataObject, shape: tuple[int, ...]) -> None:
    """Integer arrays as inputs of the graph, for reads and writes."""
    index = found.draw(indices(shape))
    arrays = [np.asarray(i) for i in index if isinstance(i, np.ndarray) and i.dtype.kind == "i"]
    assume(arrays and not any(isinstance(i, np.ndarray) and i.dtype.kind == "b" for i in index))
    x = data(shape)
    wanted = x[index]
    value = -data(wanted.shape)

    def place(parts: Any) -> tuple[Any, ...]:
        left = iter(parts)
        return tuple(next(left) if isinstance(i, np.ndarray) else i for i in index)

    same(traced(lambda t, *parts: t[place(parts)], x, *arrays), wanted)

    def write(t: Tensor, *parts: Tensor) -> Tensor:
        t = t.copy()
        t[place(parts)] = value
        return t

    after = x.copy()
    after[index] = value
    same(traced(write, x, *arrays), after)
    summed = x.copy()
    np.add.at(summed, index, value)
    same(traced(lambda t, *parts: t.at[place(parts)].add(value), x, *arrays), summed)


# -- masks -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", WAYS)
def test_known_masks(way: Callable[..., np.ndarray]) -> None:
    x = data((3, 4))
    mask = x % 3 == 0
    rows = np.array([True, False, True])
    same(way(lambda t: t[mask], x), x[mask])
    same(way(lambda t: t[rows], x), x[rows])
    same(way(lambda t: t[rows, 1:], x), x[rows, 1:])
    same(way(lambda t: t[1:, np.array([True, False, False, True])], x), x[1:, np.array([True, False, False, True])])
    same(way(lambda t: t[[True, False, True]], x), x[rows])


def test_masks_of_run_time_write_but_do_not_select() -> None:
    x = data((3, 4))

    def write(t: Tensor) -> Tensor:
        t = t.copy()
        t[t > 5] = 0
        t[t[:, 0] == 0, 1:] = -1
        t[1, t[1] < 0] = [7]
        return t

    wanted = x.copy()
    wanted[wanted > 5] = 0
    wanted[wanted[:, 0] == 0, 1:] = -1
    wanted[1, wanted[1] < 0] = [7]
    for way in WAYS:
        same(way(write, x), wanted)
    same(traced(lambda t: t.at[t > 5].add(1), x), np.where(x > 5, x + 1, x))
    with pytest.raises(tj.TracerError, match=r"tj\.where.*at\[mask\]\.set"):
        traced(lambda t: t[t > 5], x)
    with pytest.raises(tj.TracerError, match="as many values"):
        traced(lambda t: t.at[t > 5].set(np.arange(7.0)), x)


# -- out of range ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("index", "message"), [
    (5, "index 5 is out of bounds for axis 0 with size 3"),
    (-4, "index -4 is out of bounds for axis 0 with size 3"),
    ((0, 4), "index 4 is out of bounds for axis 1 with size 4"),
    (np.array([0, 3]), "index 3 is out of bounds for axis 0 with size 3"),
    ((slice(None), [0, -5]), "index -5 is out of bounds for axis 1 with size 4"),
    ((0, 0, 0), "too many indices"),
    ((..., ...), "single ellipsis"),
    (np.array([True, False]), "boolean index did not match"),
    (1.5, "integers, slices|integer"),
    (np.array([1.5]), "integer"),
    ("x", "integers, slices|integer"),
])
def test_index_errors_come_at_once(way: Callable[..., np.ndarray], index: Any, message: str) -> None:
    with pytest.raises(IndexError, match=message):
        way(lambda t: t[index], data((3, 4)))
    with pytest.raises(IndexError, match=message):
        way(lambda t: t.at[index].set(0), data((3, 4)))


def test_index_of_run_time_out_of_range() -> None:
    x = data((5,))
    graph = trace_function(lambda t, i: t[i], Type((5,), np.dtype("float32")), Type((), np.dtype("int64")))
    assert evaluate(graph, [tj.asarray(x), tj.asarray(np.int64(-1))])[0].item() == 5
    with pytest.raises(IndexError, match="gather: index 7 is out of bounds for axis 0 with size 5"):
        evaluate(graph, [tj.asarray(x), tj.asarray(np.int64(7))])
    with pytest.raises(IndexError, match="index 9 is out of bounds for axis 1 with size 4"):
        tj.take(data((3, 4)), [9], axis=1)


def test_traced_python_numbers_index() -> None:
    """A Python number that is an argument indexes without being known."""
    graph = trace_function(lambda t, i: t[i, 1:], Type((3, 4), np.dtype("float32")), Type((), np.dtype("int64")))
    assert count(graph, "gather") == 1
    assert evaluate(graph, [tj.asarray(data((3, 4))), tj.asarray(np.int64(2))])[0].tolist() == [10, 11, 12]


def test_slices_are_movement_not_gather() -> None:
    """Slices and ints lower to slice, reshape and embed, which fuse."""
    graph = trace_function(lambda t: t.at[1:, ::2].set(t[0, 1] * t[:2, ::-2]), Type((3, 4), np.dtype("float32")))
    assert count(graph, "gather") == count(graph, "scatter") == 0


# -- dtypes of assignment ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", WAYS)
def test_assigned_values_take_the_dtype(way: Callable[..., np.ndarray]) -> None:
    x = data((4,), "int32")
    put = lambda value: lambda t: t.at[:].set(value)
    for value in (1.9, -1.9, np.float64(2.7), np.array([1.5, -2.5, 3.5, 0.5])):
        wanted = x.copy()
        wanted[:] = value
        same(way(put(value), x), wanted)
    bad = [(1j, TypeError), (np.array(1j), TypeError), (2 ** 40, OverflowError), (float("nan"), ValueError)]
    for value, error in bad:
        with pytest.raises(error):
            way(put(value), x)
    with pytest.raises(TypeError, match="does not fit a int32 tensor"):
        way(lambda t: t.at[0].add(1.5), x)
    with pytest.raises(ValueError, match="broadcast"):
        way(lambda t: t.at[:2].set([1, 2, 3]), x)


# -- values, not views -------------------------------------------------------------------------------------------------
def test_a_slice_is_a_value() -> None:
    t = tj.asarray(data((4,)))
    part, turned, other, alias = t[:2], t[::-1], tj.asarray(t), t
    rows = t.reshape(2, 2)
    t[0] = 100
    assert part.tolist() == [1, 2]
    assert turned.tolist() == [4, 3, 2, 1]
    assert rows.tolist() == [[1, 2], [3, 4]]
    assert alias is t and other is t and t[0].item() == 100
    part[1] = -1
    assert t.tolist() == [100, 2, 3, 4]


def test_arrays_and_tensors_do_not_share() -> None:
    array = data((3,))
    t = tj.asarray(array)
    array[0] = 50
    assert t.tolist() == [1, 2, 3]
    view = t.numpy()
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    t[0] = 9
    assert view.tolist() == [1, 2, 3]
    copied = t.copy()
    t[1] = 8
    assert copied.tolist() == [9, 2, 3]
    held = np.asarray(t)
    t[2] = 7
    assert held.tolist() == [9, 8, 3]


def test_writes_happen_in_place_when_nobody_else_looks() -> None:
    t = tj.zeros(1000)
    for i in range(10):
        t[i] = t[i - 1] + 1
    buffer = id(t._value)
    for i in range(10, 100):
        t[i] = t[i - 1] + 1
        previous = t[i]
    assert id(t._value) == buffer
    assert t[99].item() == 100 and previous.item() == 100
    view = t[:900]
    assert not owned(t)
    t[0] = -1
    assert id(t._value) != buffer and view[0].item() == 1
    del view
    assert owned(t)


def test_a_failed_write_changes_nothing() -> None:
    t = tj.asarray(data((3,)))
    with pytest.raises(IndexError):
        t[3] = 1
    with pytest.raises(ValueError, match="broadcast"):
        t[:2] = np.zeros(3)
    assert t.tolist() == [1, 2, 3]


def test_overlapping_assignment_reads_first() -> None:
    for way in WAYS:
        def shift(t: Tensor) -> Tensor:
            t = t.copy()
            t[1:] = t[:-1]
            return t

        same(way(shift, data((5,))), np.float32([1, 1, 2, 3, 4]))


def test_augmented_item_assignment_follows_numpy() -> None:
    index = np.array([0, 0, 1])
    wanted = data((3,))
    wanted[index] += 1

    def bump(t: Tensor) -> Tensor:
        t = t.copy()
        t[index] += 1
        return t

    for way in WAYS:
        same(way(bump, data((3,))), wanted)
        same(way(lambda t: t.at[index].add(1), data((3,))), np.float32([3, 3, 3]))


def test_at_divide_and_power() -> None:
    x, index = data((3,)), np.array([1, 1])
    for way in WAYS:
        same(way(lambda t: t.at[index].divide(2), x), np.float32([1, 0.5, 3]))
        same(way(lambda t: t.at[index].power(2), x), np.float32([1, 16, 3]))
        same(way(lambda t: t.at[1:].get(), x), x[1:])


def test_iteration_gives_rows() -> None:
    assert [row.tolist() for row in tj.asarray(data((2, 2)))] == [[1, 2], [3, 4]]
    with pytest.raises(TypeError, match="0-d"):
        iter(tj.asarray(1.0))


# -- gradients ---------------------------------------------------------------------------------------------------------
def numeric(f: Callable[..., Any], x: np.ndarray, h: float = 1e-6) -> np.ndarray:
    out = np.zeros_like(x)
    for k in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[k] = h
        out[k] = (float(f(tj.asarray(x + step))) - float(f(tj.asarray(x - step)))) / (2 * h)
    return out


@settings(max_examples=60, deadline=None)
@given(cases(), st.sampled_from(["get", "set", "add", "multiply", "min", "max"]))
def test_gradients_of_reads_and_writes(case: tuple[tuple[int, ...], Any], name: str) -> None:
    shape, index = case
    assume(0 < np.prod(shape, dtype=int) < 30)
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape)
    try:
        v = rng.normal(size=x[index].shape)
    except (IndexError, ValueError):
        assume(False)
    weights = rng.normal(size=shape)

    def of_x(t: Tensor) -> Tensor:
        if name == "get":
            return (t[index] * v).sum()
        return (getattr((t * t).at[index], name)(v) * weights).sum()

    np.testing.assert_allclose(tj.grad(of_x)(tj.asarray(x)).numpy(), numeric(of_x, x), rtol=1e-5, atol=1e-7)
    if name != "get":
        def of_v(u: Tensor) -> Tensor:
            return (getattr(tj.asarray(x).at[index], name)(u * u) * weights).sum()

        np.testing.assert_allclose(tj.grad(of_v)(tj.asarray(v)).numpy(), numeric(of_v, v), rtol=1e-5, atol=1e-7)


def test_assignment_differentiates() -> None:
    def f(p: Tensor) -> Tensor:
        r = tj.zeros(2)
        r[0] = p[0] * p[1]
        r[1] += p[1]
        return r.sum()

    assert tj.grad(f)(tj.asarray([2.0, 3.0])).tolist() == [3, 3]


def test_ties_share_the_gradient_of_min_and_max() -> None:
    f = lambda t: t.at[np.array([0, 0])].max(t[1:3]).sum()
    assert tj.grad(f)(tj.asarray([2.0, 2.0, 2.0])).tolist() == pytest.approx([1 / 3, 4 / 3, 4 / 3])


def test_zero_factors_keep_their_gradient() -> None:
    t = tj.asarray([2.0, 3.0])
    f = lambda v: t.at[np.array([0, 0])].multiply(v).sum()
    assert tj.grad(f)(tj.asarray([0.0, 5.0])).tolist() == [10, 0]
    assert tj.grad(f)(tj.asarray([0.0, 0.0])).tolist() == [0, 0]


# -- compiled ----------------------------------------------------------------------------------------------------------
def test_compiled_indices_are_checked() -> None:
    f = tj.function(lambda a, i: a[i])
    assert f(tj.arange(5), tj.asarray(-1)).item() == 4
    for wrong in (7, -6):
        with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for axis 0 with size 5"):
            f(tj.arange(5), tj.asarray(wrong))
    with pytest.raises(IndexError, match="index 3 is out of bounds for axis 0 with size 3"):
        tj.function(lambda a, i: a.at[i].set(0))(tj.arange(3), np.array([0, 3]))
    assert f(tj.arange(5), 2).item() == 2 and f(tj.arange(5), 4).item() == 4


def test_compiled_sums_into_repeated_places() -> None:
    f = tj.function(lambda r, i: r.at[i].add(1.0))
    found = f(tj.zeros(3), np.zeros(100_000, int))
    assert found.tolist() == [100_000, 0, 0]
    rng = np.random.default_rng(0)
    places, values = rng.integers(0, 50, 20_000), rng.normal(size=20_000)
    wanted = np.zeros(50)
    np.add.at(wanted, places, values)
    g = tj.function(lambda i, v: tj.zeros(50, "float64").at[i].add(v))
    first = g(places, values).numpy()
    np.testing.assert_allclose(first, wanted, rtol=1e-12)
    np.testing.assert_array_equal(g(places, values).numpy(), first)


def test_a_mask_from_outside_is_read_afresh() -> None:
    keep = np.array([True, False, True])
    f = tj.function(lambda t: t[keep] * 2)
    assert f(tj.arange(3)).tolist() == [0, 4]
    keep[1] = True
    assert f(tj.arange(3)).tolist() == [0, 2, 4]
    mask = tj.asarray([False, True, True])
    g = tj.function(lambda t: t[~mask].sum())
    assert g(tj.arange(3)).item() == 0
    mask[2] = False
    assert g(tj.arange(3)).item() == 2


def test_writes_to_arguments_are_seen_by_the_caller() -> None:
    @tj.function
    def write(t: Tensor, i: int) -> None:
        t[i] = -1
        t[2:] += 10

    t = tj.arange(5)
    kept = t.copy()
    write(t, 1)
    assert t.tolist() == [0, -1, 12, 13, 14] and kept.tolist() == [0, 1, 2, 3, 4]
    array = np.arange(5)
    write(array, 0)
    assert array.tolist() == [-1, 1, 12, 13, 14]


def test_places_are_checked_once() -> None:
    """A derivative goes to the places that were read, and does not check them again; where the values are not needed,
    so that nothing is read, it does."""

    def loss(x: Tensor, i: Tensor) -> Tensor:
        return (x[i] ** 2).sum()

    def checking(f: tj.function, *args: Tensor) -> list[bool]:
        return [bool(getattr(step, "sites", ())) for step in f.lower(*args).plan.steps]

    x, i = tj.arange(30.0), tj.asarray(np.arange(40) % 30)
    both, linear = tj.function(tj.value_and_grad(loss)), tj.function(tj.grad(lambda x, i: x[i].sum()))
    assert sum(checking(both, x, i)) == 1 and checking(both, x, i)[0]
    assert sum(checking(linear, x, i)) == 1
    count = np.bincount(np.arange(40) % 30)
    np.testing.assert_array_equal(both(x, i)[1].numpy(), 2 * np.arange(30) * count)
    np.testing.assert_array_equal(linear(x, i).numpy(), count)
    part = tj.function(lambda x, i: (x[i][1:].sum(), x[i] * 2))  # the first does not see all places
    assert part(x, i)[0].item() == sum(range(30)) + sum(range(10))
    wrong = np.arange(40) % 30
    for k in (0, 17, 39):
        wrong[k] = 30
        for f in (both, linear, part, tj.grad(loss)):
            with pytest.raises(IndexError, match="index 30 is out of bounds for axis 0 with size 30"):
                f(x, tj.asarray(wrong))
        wrong[k] = k % 30
