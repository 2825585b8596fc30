"""Dtypes of results: defaults, promotion, Python numbers, NumPy scalars; the same eager and compiled."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

import tracejit as tj
from tracejit import dtypes

NAMES = [d.name for d in dtypes.ALL]
INTEGERS = [d.name for d in dtypes.INTEGERS]
SMALL = [n for n in ("bool", *INTEGERS) if np.dtype(n).itemsize <= 4]
LARGE = ["int64", "uint64"]


def of(name: str, shape: tuple[int, ...] = (2,)) -> tj.Tensor:
    return tj.ones(shape, dtype=name)


@pytest.fixture
def double() -> Iterator[None]:
    tj.set_default_dtype("float64")
    yield
    tj.set_default_dtype("float32")


# -- creation ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("value, wanted", [
    (1.0, "float32"), (1, "int32"), (True, "bool"), (1j, "complex64"), ([1, 2.5], "float32"), ([True, 2], "int32"),
    (np.float64(1), "float64"), (np.arange(3), "int64"), (np.ones(2, np.float16), "float16"),
    ([np.float32(1), np.float64(2)], "float64"), (np.ones(2, ">f8"), "float64"),
])
def test_default_dtypes(value: object, wanted: str) -> None:
    assert tj.asarray(value).dtype == wanted
    assert tj.asarray(value).dtype.isnative


@pytest.mark.parametrize("name", NAMES)
def test_an_explicit_dtype_is_honoured(name: str) -> None:
    assert tj.ones(2, dtype=name).dtype == tj.zeros(2, dtype=name).dtype == name
    assert tj.asarray([1, 0], dtype=name).dtype == tj.full((2,), 1, dtype=name).dtype == name
    assert tj.ones(2).astype(name).dtype == name


def test_default_float64_changes_creation_only(double: None) -> None:
    assert [tj.asarray(v).dtype.name for v in (1.0, 1, 1j)] == ["float64", "int64", "complex128"]
    assert (of("float32") + 1.5).dtype == "float32"
    assert tj.sin(of("int32")).dtype == "float64"


@pytest.mark.parametrize("bad", ["U3", object, "datetime64[s]", "V4"])
def test_other_dtypes_are_refused(bad: object) -> None:
    with pytest.raises(TypeError, match=r"not supported|is not a dtype"):
        tj.zeros(2, dtype=bad)


# -- promotion between tensors -----------------------------------------------------------------------------------------
def wanted_promotion(a: np.dtype, b: np.dtype) -> np.dtype:
    """The rule in words: floats decide over integers; else as NumPy."""
    for x, y in ((a, b), (b, a)):
        if x.kind in "fc" and y.kind in "biu":
            return x
    return np.promote_types(a, b)


@pytest.mark.parametrize("a, b", list(itertools.product(NAMES, NAMES)))
def test_promotion(a: str, b: str) -> None:
    wanted = wanted_promotion(np.dtype(a), np.dtype(b))
    assert (of(a) + of(b)).dtype == wanted
    assert (of(a) + of(b, ())).dtype == wanted, "0-d tensors count like others"
    assert tj.where(of("bool"), of(a), of(b)).dtype == wanted
    assert (of(a) == of(b)).dtype == "bool"
    assert dtypes.result_dtype([np.dtype(a), np.dtype(b)]) == wanted
    assert (np.ones(2, a) + of(b)).dtype == wanted, "a NumPy array on the left"


@pytest.mark.parametrize("name", NAMES)
def test_python_numbers_are_weak(name: str) -> None:
    d, x = np.dtype(name), of(name)
    integer = dtypes.default_int() if d.kind == "b" else d
    assert (x + 1).dtype == (1 + x).dtype == (x * 2).dtype == integer
    real = d if d.kind in "fc" else np.dtype("float64") if name in LARGE else np.dtype("float32")
    assert (x + 1.5).dtype == (1.5 - x).dtype == (x / 2.5).dtype == (x ** 0.5).dtype == real
    complex_ = dtypes.complex_of(real)
    assert (x + 1j).dtype == (1j * x).dtype == complex_
    assert (x & True).dtype == name if d.kind in "biu" else True
    if d.kind != "b":
        assert (x + True).dtype == name


def test_numpy_scalars_are_strong() -> None:
    x = of("float32")
    assert (x + np.float64(1)).dtype == "float64"
    assert (np.float64(1) + x).dtype == "float64"
    assert (np.float32(2) * of("int32")).dtype == "float32"
    assert (of("int8") + np.int16(1)).dtype == "int16"


@pytest.mark.parametrize("name", NAMES)
def test_true_division_and_float_functions(name: str) -> None:
    d = np.dtype(name)
    wanted = d if d.kind in "fc" else np.dtype("float64" if name in LARGE else "float32")
    assert (of(name) / of(name)).dtype == wanted
    assert tj.exp(of(name)).dtype == tj.mean(of(name)).dtype == wanted
    assert tj.sqrt(of(name)).dtype == wanted
    if d.kind != "c":
        assert tj.erf(of(name)).dtype == tj.median(of(name)).dtype == wanted
    assert tj.var(of(name)).dtype == tj.std(of(name)).dtype == dtypes.real_part(wanted)


@pytest.mark.parametrize("name, wanted", [
    ("bool", "int32"), ("int8", "int32"), ("int16", "int32"), ("int32", "int32"), ("int64", "int64"),
    ("uint8", "uint32"), ("uint16", "uint32"), ("uint32", "uint32"), ("uint64", "uint64"), ("float16", "float16"),
    ("float32", "float32"), ("float64", "float64"), ("complex64", "complex64"), ("complex128", "complex128"),
])
def test_sums(name: str, wanted: str) -> None:
    x = of(name, (3, 2))
    for f in (tj.sum, tj.prod, tj.cumsum, tj.cumprod):
        assert f(x, axis=0).dtype == wanted, f
    assert tj.sum(x, dtype="float64").dtype == "float64"
    if name[0] != "c":
        assert tj.max(x).dtype == tj.cummax(x).dtype == name
        assert tj.argmax(x).dtype == tj.argsort(x).dtype == "int64"


def test_sum_of_bools_counts_under_the_other_default(double: None) -> None:
    assert tj.sum(of("bool")).dtype == "int64"
    assert tj.sum(of("uint8")).dtype == "uint64"


@pytest.mark.parametrize("name", ["float16", "float32", "complex64", "int32", "bool"])
def test_compiled_promotion_is_eager(name: str) -> None:
    def f(x: tj.Tensor, y: tj.Tensor) -> tuple[tj.Tensor, ...]:
        return x + y, x * 2, x + 1.5, x / y, 2 - x * 1, tj.exp(x), tj.sum(x), x == y, tj.mean(y)

    for other in NAMES:
        args = of(name), of(other)
        for a, b in zip(f(*args), tj.function(f).eager(*args)):
            assert a.dtype == b.dtype
    for other in ("int8", "int64", "float32", "complex128"):
        args = of(name), of(other)
        for a, b in zip(f(*args), tj.function(f)(*args)):
            assert a.dtype == b.dtype and a.shape == b.shape
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-2)


# -- integers ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_wrap_and_floor(name: str) -> None:
    info = np.iinfo(name)
    top = tj.asarray([info.max, info.min], dtype=name)
    assert (top + 1).tolist() == [info.min, info.min + 1]
    assert (top * 2).dtype == name
    x = tj.asarray([7, 7, 0], dtype=name)
    y = tj.asarray([2, 0, 0], dtype=name)
    assert (x // y).tolist() == [3, 0, 0]
    assert (x % y).tolist() == [1, 0, 0]
    if info.min < 0:
        assert (-x // 2).tolist() == [-4, -4, 0]
        assert (-x % 2).tolist() == [1, 1, 0]
        assert (top // -1).tolist()[1] == info.min


@pytest.mark.parametrize("name", INTEGERS)
def test_python_integers_out_of_range(name: str) -> None:
    info, x = np.iinfo(name), of(name)
    for value in (info.max + 1, info.min - 1, 10**30, -(10**30)):
        with pytest.raises(OverflowError, match=f"out of bounds for {name}"):
            x + value
        assert (x < value).tolist() == [1 < value] * 2, "comparisons have an answer"
        assert (x == value).tolist() == [False] * 2
        assert (value <= x).tolist() == [value <= 1] * 2


def test_powers() -> None:
    assert (tj.asarray([2, 3], "int8") ** 2).tolist() == [4, 9]
    assert (tj.asarray([2, 3]) ** tj.asarray([3, 0])).tolist() == [8, 1]
    assert (tj.asarray([100], "int8") ** 2).tolist() == [(100 * 100 + 128) % 256 - 128]
    assert (tj.asarray([2, 4]) ** -1.0).tolist() == [0.5, 0.25]
    assert (2.0 ** tj.asarray([1.0, 3.0])).tolist() == [2.0, 8.0]
    assert (tj.asarray([0.0, 4.0]) ** 0.5).tolist() == [0.0, 2.0]
    assert (tj.asarray([0.0, float("nan")]) ** 0).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="negative"):
        tj.asarray([2]) ** -1
    with pytest.raises(ValueError, match="negative"):
        tj.asarray([2]) ** tj.asarray([-1])
    f = tj.function(lambda x, n: x ** n)
    assert f(tj.asarray([2, 3]), 2).tolist() == [4, 9] and f(tj.asarray([2, 3]), 3).tolist() == [8, 27]
    assert f(tj.asarray([2.0]), -1).tolist() == [0.5]
    with pytest.raises(ValueError, match="negative"):
        f(tj.asarray([2]), -1)


def test_bool_arithmetic() -> None:
    t, f = tj.asarray([True]), tj.asarray([False])
    assert (t + t).tolist() == [True] and (t * f).tolist() == [False]
    for op in (lambda: t - f, lambda: -t, lambda: +t):
        with pytest.raises(TypeError, match="bool is not supported"):
            op()
    assert (~t).tolist() == [False] and (t ^ t).tolist() == [False]


def test_augmented_assignment_keeps_the_dtype() -> None:
    x = tj.asarray([1, 2], "int8")
    y = x
    x += 1
    assert x.dtype == "int8" and x.tolist() == [2, 3] and y is x
    x = tj.ones(2)
    x *= tj.full((2,), 2.0, dtype="float64")
    assert x.dtype == "float32" and x.tolist() == [2.0, 2.0]
    with pytest.raises(TypeError, match="does not fit in place"):
        x = tj.ones(2, dtype="int32")
        x += 0.5
    with pytest.raises(ValueError, match="does not fit in place"):
        x = tj.ones(2)
        x += tj.ones((3, 2))


def test_augmented_assignment_changes_one_handle() -> None:
    x = tj.ones(3)
    view, copy = x.numpy(), x.copy()
    x += 1
    assert x.tolist() == [2, 2, 2] and view.tolist() == [1, 1, 1] and copy.tolist() == [1, 1, 1]
    for t in (x, tj.clip(x), tj.cast(x, "float32"), tj.round(tj.ones(2, dtype="int32"), 1)):
        before = t.tolist()
        same = tj.clip(t)
        same += 1
        assert t.tolist() == before


def test_errors_name_op_shapes_and_dtypes() -> None:
    with pytest.raises(ValueError, match=r"add: shapes \(2,\) and \(3,\) do not broadcast \(operands: float32, int32"):
        tj.ones(2) + tj.ones(3, dtype="int32")
    with pytest.raises(TypeError, match=r"bitwise_and: float32 is not an integer or bool dtype; cast it.* \(operands"):
        tj.ones(2) & 1
    with pytest.raises(TypeError, match="atan2: complex is not supported"):
        tj.atan2(tj.ones(2) * 1j, 1.0)
    with pytest.raises(TypeError, match="str"):
        tj.add(tj.ones(2), "a")
    with pytest.raises(TypeError):
        tj.ones(2) + None
    with pytest.raises(TypeError, match="axis must be an int"):
        tj.sum(tj.ones(2), axis="x")
    with pytest.raises(np.exceptions.AxisError, match="sum: axis 3 is out of bounds"):
        tj.sum(tj.ones(2), axis=3)
