"""Datasets: what they give, what they copy, what they refuse. Plain Python lists are the reference."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.data import Dataset


def plain(x: Any) -> Any:
    """Elements as Python values."""
    if isinstance(x, tj.Tensor):
        return x.tolist()
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, tuple):
        return tuple(map(plain, x))
    return x.tolist() if isinstance(x, np.ndarray) else x


def values(d: Any) -> list[Any]:
    return [plain(x) for x in d]


def memory(t: tj.Tensor) -> int:
    return t.numpy().ctypes.data


# -- sources -----------------------------------------------------------------------------------------------------------
def test_elements_are_tensors_of_the_structure_given() -> None:
    Pair = namedtuple("Pair", "a b")
    d = Dataset.from_tensor_slices({"x": np.arange(6.0).reshape(3, 2), "y": (tj.arange(3), ["a", "b", "c"]),
                                    "z": Pair([True, False, True], np.zeros((3, 0), np.float16))})
    first = next(iter(d))
    assert list(first) == ["x", "y", "z"] and type(first["z"]) is Pair
    assert all(isinstance(t, tj.Tensor) for t in (first["x"], first["y"][0], *first["z"]))
    assert first["x"].dtype == np.float64 and first["z"].b.shape == (0,) and first["y"][1] == "a"
    assert values(d.batch(2))[1]["y"] == ([2], ["c"])
    spec = d.batch(2).element_spec
    assert repr(spec["x"]) == "tj.spec((None, 2), 'float64')" and spec["y"][0].shape == (None,)
    assert len(d) == 3 == d.cardinality()


def test_python_numbers_get_the_default_dtypes_and_lists_are_arrays() -> None:
    a, b, c = next(iter(Dataset.from_tensor_slices(([1, 2], [1.0, 2.0], [[True], [False]]))))
    assert (a.dtype, b.dtype, c.dtype, c.shape) == (np.int32, np.float32, bool, (1,))
    x, y = next(iter(Dataset.from_tensors(([1, 2], 3.0))))
    assert plain(x) == [1, 2] and plain(y) == 3.0
    assert values(Dataset.from_tensor_slices([tj.zeros(2), tj.ones(2)])) == [[0, 0], [1, 1]]


def test_range() -> None:
    for args in ((5,), (2, 9, 3), (5, -4, -2), (3, 3)):
        assert values(Dataset.range(*args)) == list(range(*args)), args
        assert [v for b in values(Dataset.range(*args).batch(2)) for v in b] == list(range(*args))
    huge = Dataset.range(10**15).skip(10**15 - 3)
    assert huge.element_spec.dtype == np.int64 and values(huge) == [10**15 - 3, 10**15 - 2, 10**15 - 1]


def test_components_of_different_lengths_are_named() -> None:
    with pytest.raises(ValueError, match=r"element\['x'\] has 3 and element\['y'\]\[1\] has 2"):
        Dataset.from_tensor_slices({"x": np.zeros(3), "y": (np.zeros(3), np.zeros(2))})
    with pytest.raises(ValueError, match=r"element\[1\] has no rows"):
        Dataset.from_tensor_slices((np.zeros(3), 1.0))
    with pytest.raises(ValueError, match="no array"):
        Dataset.from_tensor_slices(())
    with pytest.raises(ValueError, match=r"element\[0\]: the lists in it have different lengths"):
        Dataset.from_tensor_slices(([[1], [1, 2]], [1, 2]))
    with pytest.raises(TypeError, match=r"element\['a'\]: expected an array.*NoneType"):
        Dataset.from_tensor_slices({"a": None})


def test_generators_start_anew_and_are_checked() -> None:
    calls = []

    def numbers(n: int) -> Any:
        calls.append(n)
        for k in range(n):
            yield {"k": k, "x": [k / 2] * 3}

    d = Dataset.from_generator(numbers, {"k": tj.spec((), "int64"), "x": tj.spec((None,), "float64")}, args=(3,))
    assert calls == []  # lazy
    assert values(d) == values(d) == [{"k": k, "x": [k / 2] * 3} for k in range(3)] and calls == [3, 3]
    assert next(iter(d))["k"].dtype == np.int64 and d.cardinality() is None
    assert repr(d.element_spec["x"]) == "tj.spec((None,), 'float64')"
    with pytest.raises(TypeError, match="give the function that makes the generator"):
        Dataset.from_generator(numbers(3))  # type: ignore[arg-type]
    for signature, message in (
            (tj.spec((), "int64"), r"element 0 has the structure \{'k': \*, 'x': \*\}, the spec says \*"),
            ({"k": tj.spec((), "int64"), "x": tj.spec((2,), "float32")}, r"element 0: element\['x'\] has shape \(3,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            next(iter(Dataset.from_generator(numbers, signature, args=(1,))))
    with pytest.raises(ValueError, match=r"dtype float64, the spec says \(3,\) and float32"):
        next(iter(Dataset.from_generator(lambda: [np.zeros(3)], tj.spec(3, "float32"))))


def test_generators_may_reuse_their_arrays() -> None:
    def generate() -> Any:
        buffer = np.zeros(2)
        for k in range(3):
            buffer[:] = k
            yield buffer

    assert values(list(Dataset.from_generator(generate))) == [[0, 0], [1, 1], [2, 2]]
    shared = np.zeros(2)

    def f(x: Any) -> Any:
        shared[:] = x.numpy()
        return shared

    assert values(list(Dataset.range(3).map(f))) == [[0, 0], [1, 1], [2, 2]]


def test_csv(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("length,kind,count,big\n1.5,ant,1,5000000000\n2.5,bee,2,1\n,ant,3,1\n")
    d = Dataset.from_csv(file, label="kind")
    x, y = list(d)[1]
    assert y == "bee" and plain(x) == {"length": 2.5, "count": 2, "big": 1}
    assert (x["length"].dtype, x["count"].dtype, x["big"].dtype) == (np.float32, np.int32, np.int64)
    assert math.isnan(list(d)[2][0]["length"].item())
    v = next(iter(Dataset.from_csv(file, ["count", "length"], stack=True, dtype="float64").batch(2)))
    assert v.dtype == np.float64 and plain(v) == [[1, 1.5], [2, 2.5]]
    with pytest.raises(ValueError, match="has no column 'weight'; it has 'length', 'kind', 'count', 'big'"):
        Dataset.from_csv(file, ["weight"])
    with pytest.raises(TypeError, match="text cannot be stacked: 'kind'"):
        Dataset.from_csv(file, stack=True)
    with pytest.raises(ValueError, match=r"column 'kind'.*ant"):
        Dataset.from_csv(file, ["kind"], dtype="float32")
    (tmp_path / "empty.csv").write_text("a,b\n")
    with pytest.raises(ValueError, match="has no rows"):
        Dataset.from_csv(tmp_path / "empty.csv")


def test_image_folder(tmp_path: Path) -> None:
    from PIL import Image

    for name, shade in (("cats", 10), ("dogs", 200)):
        (tmp_path / name).mkdir()
        for k in range(3):
            Image.new("L", (6 + k, 4), shade + k).save(tmp_path / name / f"{k}.png")
    (tmp_path / "notes.txt").write_text("not a folder")
    d = Dataset.from_image_folder(tmp_path, (5, 8))
    assert d.class_names == ["cats", "dogs"] and len(d) == 6
    x, y = list(d)[4]
    assert x.shape == (5, 8, 3) and x.dtype == np.uint8 and y.dtype == np.int64
    assert np.all(x.numpy() == 201) and y.item() == 1
    assert next(iter(Dataset.from_image_folder(tmp_path, channels=1)))[0].shape == (4, 6, 1)
    a, b = (values(Dataset.from_image_folder(tmp_path, shuffle=True, seed=s, num_parallel_calls=2)) for s in (1, 1))
    assert a == b and sorted(y for _, y in a) == [0, 0, 0, 1, 1, 1] and [y for _, y in a] != [0, 0, 0, 1, 1, 1]
    with pytest.raises(ValueError, match="no folders with images"):
        Dataset.from_image_folder(tmp_path / "cats")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        Dataset.from_image_folder(tmp_path / "birds")


# -- copies ------------------------------------------------------------------------------------------------------------
def test_batches_in_order_are_views_and_arrays_are_safe() -> None:
    x = tj.arange(12.0).reshape(6, 2)
    d = Dataset.from_tensor_slices(x)
    batches = list(d.batch(2))
    assert [memory(b) - memory(x) for b in batches] == [0, 16, 32]
    assert memory(next(iter(d.skip(1)))) - memory(x) == 8
    batches[0][0] = 5.0  # a handle of its own
    x[1] = 7.0
    assert values(d.batch(2))[0] == [[0, 1], [2, 3]] and plain(batches[0]) == [[5, 5], [2, 3]]
    array = np.arange(4.0)
    copied = Dataset.from_tensor_slices(array)
    array[:] = 0
    assert values(copied) == [0, 1, 2, 3]
    assert all(not a.flags.writeable for a in d.batch(2).as_numpy_iterator())


def test_read_only_arrays_and_memory_maps_are_not_copied(tmp_path: Path) -> None:
    array = np.arange(4.0)
    array.flags.writeable = False
    assert memory(next(iter(Dataset.from_tensor_slices(array).batch(2)))) == array.ctypes.data
    np.arange(6, dtype=np.float32).tofile(tmp_path / "a")
    mapped = np.memmap(tmp_path / "a", np.float32, "r", shape=(3, 2))
    d = Dataset.from_tensor_slices(mapped)
    assert memory(next(iter(d.batch(2)))) == mapped.ctypes.data and values(d)[1] == [2, 3]
    view = np.arange(4.0)[:]
    view.flags.writeable = False  # of something that can be written
    assert memory(next(iter(Dataset.from_tensor_slices(view)))) != view.ctypes.data


def test_batches_go_into_compiled_functions() -> None:
    x = np.random.rand(10, 3).astype(np.float32)
    step = tj.function(lambda b, y: (b * 2).sum(axis=1) + y)
    d = Dataset.from_tensor_slices((x, np.arange(10)))
    for each in (d.batch(4), d.shuffle(10, seed=1).batch(4), d.map(lambda x, y: (x, y)).batch(4)):
        for b, y in each:
            rows = y.numpy()
            np.testing.assert_allclose(step(b, y).numpy(), x[rows].sum(1) * 2 + rows, rtol=1e-6)


def test_reading_inside_a_compiled_function_is_refused() -> None:
    d = Dataset.range(3)

    @tj.function
    def f():
        total = 0
        for x in d:
            total += x
        return total

    with pytest.raises(tj.TracerError, match="Loop over it outside"):
        f()
    it = iter(d)
    with pytest.raises(tj.TracerError, match="Loop over it outside"):
        tj.function(lambda: next(it))()


# -- against lists -----------------------------------------------------------------------------------------------------
def test_methods_against_lists() -> None:
    d = Dataset.range(7)
    assert values(d.map(lambda x: (x, x * 2)).map(lambda a, b: a + b)) == [3 * k for k in range(7)]
    assert values(d.map(lambda x: {"a": x}).map(lambda e: e["a"] + 1)) == list(range(1, 8))
    assert values(d.filter(lambda x: x % 3 == 0)) == [0, 3, 6]
    assert values(d.batch(3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert values(d.batch(3, drop_remainder=True)) == [[0, 1, 2], [3, 4, 5]]
    assert values(d.repeat(2).batch(4)) == [[0, 1, 2, 3], [4, 5, 6, 0], [1, 2, 3, 4], [5, 6]]
    assert values(d.batch(3).unbatch()) == list(range(7))
    assert values(d.take(2).concatenate(d.skip(5), d.take(1))) == [0, 1, 5, 6, 0]
    assert values(d.enumerate(start=5).take(2)) == [(5, 0), (6, 1)]
    assert values(d.take(-1)) == list(range(7)) and values(d.take(0)) == values(d.repeat(0)) == []
    assert values(d.shard(3, 1)) == [1, 4] and len(d.shard(3, 0)) == 3
    assert d.reduce(0, lambda a, x: a + x.item()) == 21
    assert values(d.apply(lambda d: d.take(1))) == [0]
    assert values(Dataset.zip(d, d.map(lambda x: -x))) == [(k, -k) for k in range(7)]
    assert values(Dataset.zip((d.batch(4), d.batch(2)))) == [([0, 1, 2, 3], [0, 1]), ([4, 5, 6], [2, 3])]
    slices = Dataset.from_tensor_slices
    assert values(Dataset.zip(slices([1, 2, 3]), slices(([4, 5], [6, 7])))) == [(1, (4, 6)), (2, (5, 7))]
    assert values(slices([4, 5]).enumerate().batch(2)) == [([0, 1], [4, 5])]
    assert values(d.map(lambda x: (x, "even" if x % 2 == 0 else "odd")).batch(2).take(1)) == [([0, 1], ["even", "odd"])]


def test_interleave_and_flat_map() -> None:
    """The order that the documentation of tf.data shows for its own example."""
    d = Dataset.range(1, 6).interleave(lambda x: Dataset.from_tensors(x).repeat(6), cycle_length=2, block_length=4)
    assert values(d) == [1] * 4 + [2] * 4 + [1] * 2 + [2] * 2 + [3] * 4 + [4] * 4 + [3] * 2 + [4] * 2 + [5] * 6
    ragged = Dataset.range(4).flat_map(lambda n: Dataset.range(n.item()))
    assert values(ragged) == [0, 0, 1, 0, 1, 2]
    with pytest.raises(TypeError, match="must give a Dataset, it gave Tensor"):
        next(iter(Dataset.range(3).flat_map(lambda n: n)))


@pytest.mark.parametrize("size, shift, stride, drop", [
    (3, None, 1, False), (3, 1, 1, False), (3, 1, 1, True), (2, 3, 1, False), (2, 1, 3, True), (3, 5, 2, False),
    (3, 2, 2, False), (1, 1, 1, True),
])
def test_windows(size: int, shift: int | None, stride: int, drop: bool) -> None:
    for n in (0, 1, 7, 10):
        d = Dataset.range(n).window(size, shift, stride, drop)
        found = [values(w) for w in d]
        wanted = [list(range(s, min(n, s + (size - 1) * stride + 1), stride)) for s in range(0, n, shift or size)]
        assert found == [w for w in wanted if len(w) == size or not drop], n
        assert len(d) == len(found)
    pairs = Dataset.from_tensor_slices(([1, 2, 3], [4, 5, 6])).window(2, 1, drop_remainder=True)
    assert values(pairs.flat_map(lambda w: w.batch(2))) == [([1, 2], [4, 5]), ([2, 3], [5, 6])]


def test_padded_batches() -> None:
    def generate() -> Any:
        for n in (1, 3, 2):
            yield np.full(n, n, np.float32), ["x" * n] * n, np.ones((n, 2), bool)

    a, b, c = next(iter(Dataset.from_generator(generate).padded_batch(3)))
    assert plain(a) == [[1, 0, 0], [3, 3, 3], [2, 2, 0]] and a.dtype == np.float32
    assert plain(b) == [["x", "", ""], ["xxx"] * 3, ["xx", "xx", ""]] and c.shape == (3, 3, 2)
    d = Dataset.from_generator(generate).map(lambda a, b, c: (a, c))
    a, c = next(iter(d.padded_batch(2, ((4,), (None, 3)), (-1.0, True))))
    assert plain(a) == [[1, -1, -1, -1], [3, 3, 3, -1]] and c.shape == (2, 3, 3) and c.numpy()[0, 1:].all()
    with pytest.raises(ValueError, match=r"element\[0\] has shape \(3,\), larger than \(2,\)"):
        next(iter(d.padded_batch(2, ((2,), (None, None)))))
    with pytest.raises(ValueError, match="use padded_batch"):
        next(iter(d.batch(2)))


def test_batches_that_do_not_fit_name_the_component() -> None:
    kinds = [{"a": np.float32(1)}, {"a": np.float64(1)}, {"b": np.float32(1)}]
    d = Dataset.from_generator(lambda: iter(kinds))
    with pytest.raises(TypeError, match=r"element\['a'\] is float64 in element 1 and float32 in the first one"):
        next(iter(d.batch(2)))
    with pytest.raises(ValueError, match="element 1 has the structure"):
        next(iter(d.skip(1).batch(2)))


@pytest.mark.parametrize("make, message", [
    (lambda d: d.batch(0), "batch: batch_size must be at least 1, got 0"),
    (lambda d: d.shuffle(-1), "shuffle: buffer_size must be at least 1"),
    (lambda d: d.batch(2.5), "batch: batch_size must be an int, got 2.5"),
    (lambda d: d.shard(2, 2), "one of 0 to 1"),
    (lambda d: d.skip(-1), "skip: count must be at least 0"),
    (lambda d: Dataset.zip(), "give datasets"),
    (lambda d: list(d.take(0).repeat()), "the dataset is empty"),
])
def test_bad_arguments(make: Callable[[Dataset], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make(Dataset.range(3))


def test_lengths() -> None:
    d = Dataset.range(10)
    assert [len(x) for x in (d.batch(3), d.batch(3, True), d.repeat(3), d.skip(4), d.take(99), d.concatenate(d))] == [
        4, 3, 30, 6, 10, 20]
    assert d.repeat().cardinality() == math.inf and d.repeat().batch(3).cardinality() == math.inf
    assert d.repeat().take(7).cardinality() == 7 and Dataset.zip(d, d.repeat()).cardinality() == 10
    assert d.filter(lambda x: True).cardinality() is None and bool(d.filter(lambda x: True))
    with pytest.raises(TypeError, match="has no end"):
        len(d.repeat())
    with pytest.raises(TypeError, match="does not know its length"):
        len(d.batch(3).unbatch())


def test_element_specs() -> None:
    d = Dataset.from_tensor_slices((np.zeros((10, 4), np.float32), np.zeros(10, np.int64)))

    def spec(x: Dataset) -> Any:
        return plain_spec(x.element_spec)

    def plain_spec(s: Any) -> Any:
        return tuple(map(plain_spec, s)) if isinstance(s, tuple) else (s.shape, s.dtype.name)

    assert spec(d) == (((4,), "float32"), ((), "int64"))
    assert spec(d.batch(3)) == (((None, 4), "float32"), ((None,), "int64"))
    assert spec(d.batch(3, True)) == (((3, 4), "float32"), ((3,), "int64"))
    assert spec(d.batch(3, True).unbatch().shuffle(3, seed=1).repeat(2).cache().prefetch(1)) == spec(d)
    assert spec(d.batch(5)) == (((5, 4), "float32"), ((5,), "int64"))
    assert spec(d.batch(3).map(lambda x, y: x.sum(axis=1))) == ((None,), "float32")
    assert spec(d.batch(3).map(lambda x, y: x.sum(axis=0))) == ((4,), "float32")
    assert spec(d.enumerate().map(lambda k, e: e[0])) == ((4,), "float32")
    assert spec(d.padded_batch(2)) == (((2, None), "float32"), ((2,), "int64"))
    assert spec(d.padded_batch(3, ((6,), ()))) == (((None, 6), "float32"), ((None,), "int64"))
    assert spec(d.take(0)) == spec(Dataset.from_tensor_slices((np.zeros((0, 4), np.float32), np.zeros(0, np.int64))))
    shuffled = d.shuffle(3, seed=1)
    before = values(Dataset.range(10).shuffle(3, seed=1))
    assert shuffled.element_spec and values(Dataset.range(10).shuffle(3, seed=1)) == before
