"""Creation: values as NumPy's, dtypes by our rules, eager and traced alike; dtype functions; copying."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ways import WAYS, arrays, same, traced

import tracejit as tj
from tracejit.ir import count
from tracejit.tensor import Tensor
from tracejit.trace.tracer import trace_function


def made(f: Callable[[], Any]) -> Any:
    """The same tensor made eagerly and inside a trace."""
    found = arrays(f())
    same(traced(f), found)
    return found


@pytest.mark.parametrize(("value", "dtype"), [
    (1, "int32"), (1.5, "float32"), (True, "bool"), (1j, "complex64"), ([1, 2], "int32"), ([1, 2.5], "float32"),
    ([True, 1], "int32"), ([[1], [2]], "int32"), ([], "float32"), (range(3), "int32"),
    (np.float64(1), "float64"), (np.int8(1), "int8"), (np.arange(3), "int64"), (np.ones(2, ">f4"), "float32"),
    ([np.float64(1), 2], "float64"), ([np.int8(1), np.int16(2)], "int16"),
    ((1, (2, 3)[0]), "int32"),
])
def test_values_take_our_default_dtypes(value: Any, dtype: str) -> None:
    for f in (tj.constant, tj.asarray, tj.convert_to_tensor, Tensor):
        same(f(value).numpy(), np.asarray(value), dtype=dtype)
    same(made(lambda: tj.asarray(value)), np.asarray(value), dtype=dtype)
    for explicit in ("float64", "int8", np.float16, tj.uint8):
        if not np.iscomplexobj(value):
            assert tj.asarray(value, explicit).dtype == np.dtype(explicit)
    assert tj.asarray(value, "complex128").dtype == "complex128"


def test_default_dtype_changes_creation_only() -> None:
    try:
        tj.set_default_dtype("float64")
        assert [tj.asarray(v).dtype.name for v in (1, 1.0, 1j, [1])] == ["int64", "float64", "complex128", "int64"]
        assert tj.zeros(2).dtype == tj.arange(2.0).dtype == "float64" and tj.arange(2).dtype == "int64"
        assert (tj.asarray(np.float32([1])) * 2.5).dtype == "float32"
    finally:
        tj.set_default_dtype("float32")
    assert tj.ones(2, dtype="float64").dtype == "float64"
    with pytest.raises(ValueError, match="float32 or float64"):
        tj.set_default_dtype("int32")


def test_tensors_in_lists_become_one_tensor() -> None:
    a, b = tj.asarray(1.0), tj.asarray(np.float64(2.0))
    for way in WAYS:
        same(way(lambda x, y: tj.asarray([x, [y, 3][0], 3]), a.numpy(), b.numpy()), np.array([1.0, 2.0, 3.0]))
        same(way(lambda x: tj.asarray([[x, 1], [2, x]]), np.int8(5)), np.int8([[5, 1], [2, 5]]))
    assert tj.grad(lambda v: (tj.asarray([v, 2 * v]) * [1.0, 10.0]).sum())(tj.asarray(1.0)).item() == 21


@pytest.mark.parametrize(("value", "dtype", "error", "message"), [
    (2 ** 31, None, OverflowError, "do not fit int32; pass dtype='int64'"),
    ([1, -2 ** 40], None, OverflowError, "do not fit int32; pass dtype='int64'"),
    ([300], "uint8", OverflowError, "do not fit uint8"),
    (2 ** 70, "int64", OverflowError, "do not fit int64"),
    ("abc", None, TypeError, "cannot make a tensor of str"),
    (None, None, TypeError, "cannot make a tensor of NoneType"),
    ([[1], [2, 3]], None, ValueError, "inhomogeneous"),
    (1, "datetime64[s]", TypeError, "not supported"),
    (1, "longlongint", TypeError, "is not a dtype"),
    (1j, "float32", TypeError, "complex"),
    (object(), None, TypeError, "cannot make a tensor of object"),
    (Fraction(1, 2), None, TypeError, "cannot make a tensor of Fraction"),
])
def test_bad_values_are_refused_at_once(value: Any, dtype: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tj.asarray(value, dtype)


def test_filled() -> None:
    for name, one in (("zeros", 0), ("ones", 1), ("empty", 0)):
        f = getattr(tj, name)
        same(made(lambda f=f: f((2, 3))), np.full((2, 3), one, "float32"))
        same(made(lambda f=f: f(3, "int8")), np.full(3, one, "int8"))
        same(made(lambda f=f: f(())), np.full((), one, "float32"))
        same(made(lambda f=f: f([2, 0], dtype=bool)), np.full((2, 0), one, bool))
        x = np.ones((2, 1), "uint16")
        like = getattr(tj, name + "_like")
        same(made(lambda like=like, x=x: like(x)), np.full((2, 1), one, "uint16"))
        same(made(lambda like=like, x=x: like(tj.asarray(x), "float64")), np.full((2, 1), one, "float64"))
    same(made(lambda: tj.full((2, 2), 7)), np.full((2, 2), 7, "int32"))
    same(made(lambda: tj.full(2, 1.5)), np.full(2, 1.5, "float32"))
    same(made(lambda: tj.full((2, 2), [1, 2])), np.full((2, 2), [1, 2], "int32"))
    same(made(lambda: tj.full_like(np.zeros((2,), "int8"), 3)), np.full(2, 3, "int8"))
    same(made(lambda: tj.constant(5, "float64", shape=(2, 2))), np.full((2, 2), 5.0))
    same(made(lambda: tj.constant([1, 2, 3, 4], shape=(2, 2))), np.int32([[1, 2], [3, 4]]))
    with pytest.raises(ValueError, match="negative"):
        tj.zeros(-1)
    with pytest.raises(TypeError, match="shape must be"):
        tj.zeros("ab")


@settings(max_examples=150)
@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(-5, 5).filter(bool))
def test_arange_of_integers(start: int, stop: int, step: int) -> None:
    same(made(lambda: tj.arange(start, stop, step)), np.arange(start, stop, step), dtype="int32")
    same(made(lambda: tj.arange(start, stop, step, dtype="float64")), np.arange(start, stop, step, dtype="float64"))


@settings(max_examples=150)
@given(st.floats(-20, 20), st.floats(-20, 20), st.floats(0.1, 5) | st.floats(-5, -0.1))
def test_arange_of_floats(start: float, stop: float, step: float) -> None:
    wanted = np.arange(start, stop, step)
    found = made(lambda: tj.arange(start, stop, step))
    assert found.dtype == np.float32 and found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-5)


def test_arange_forms_and_errors() -> None:
    same(made(lambda: tj.arange(4)), np.arange(4, dtype="int32"))
    same(made(lambda: tj.range(1, 4)), np.arange(1, 4, dtype="int32"))
    same(made(lambda: tj.arange(np.int64(4))), np.arange(4))
    same(made(lambda: tj.arange(4.0)), np.arange(4, dtype="float32"))
    same(tj.arange(tj.asarray(3)).numpy(), np.arange(3, dtype="int32"))
    same(made(lambda: tj.arange(5, dtype="uint8")), np.arange(5, dtype="uint8"))
    with pytest.raises(ValueError, match="step must not be zero"):
        tj.arange(0, 3, 0)
    with pytest.raises(OverflowError, match="dtype='int64'"):
        tj.arange(2 ** 31, 2 ** 31 + 2)
    with pytest.raises(TypeError, match="real number"):
        tj.arange("a")
    assert tj.arange(2 ** 31, 2 ** 31 + 2, dtype="int64").tolist() == [2 ** 31, 2 ** 31 + 1]


@settings(max_examples=80)
@given(st.floats(-10, 10), st.floats(-10, 10), st.integers(0, 9), st.booleans())
def test_linspace_and_logspace(start: float, stop: float, num: int, endpoint: bool) -> None:
    wanted = np.linspace(start, stop, num, endpoint)
    same(made(lambda: tj.linspace(start, stop, num, endpoint, dtype="float64")), wanted, rtol=1e-14)
    same(made(lambda: tj.linspace(start, stop, num, endpoint)), wanted, rtol=1e-6, dtype="float32")
    if num > 1 and endpoint:
        assert tj.linspace(start, stop, num, dtype="float64")[-1].item() == stop
    same(made(lambda: tj.logspace(start / 10, stop / 10, num, endpoint)),
         np.logspace(start / 10, stop / 10, num, endpoint), rtol=1e-5, dtype="float32")


def test_linspace_of_tensors() -> None:
    a, b = np.float32([0, 1]), np.float32([1, 3])
    for way in WAYS:
        same(way(lambda s, t: [tj.linspace(s, t, 5), tj.linspace(s, t, 5, axis=-1)], a, b),
             [np.linspace(a, b, 5), np.linspace(a, b, 5, axis=-1)], rtol=1e-6)
    found, step = tj.linspace(0, 1, 5, retstep=True)
    assert step.item() == 0.25 and found.dtype == step.dtype == "float32"
    assert tj.linspace(0, 10, 5, dtype="int32").tolist() == np.linspace(0, 10, 5, dtype="int32").tolist()
    grads = tj.grad(lambda s, t: tj.linspace(s, t, 5).sum(), argnums=(0, 1))(tj.asarray(0.0), tj.asarray(1.0))
    assert [g.item() for g in grads] == [2.5, 2.5]


def test_by_comparing_coordinates() -> None:
    for k in (-2, 0, 1):
        same(made(lambda k=k: tj.eye(3, k=k)), np.eye(3, k=k, dtype="float32"))
        same(made(lambda k=k: tj.eye(2, 4, k, "int8")), np.eye(2, 4, k, "int8"))
        same(made(lambda k=k: tj.tri(3, 4, k)), np.tri(3, 4, k, "float32"))
    same(made(lambda: tj.identity(2, "float64")), np.identity(2))
    graph = trace_function(lambda: (tj.eye(300), tj.arange(1000), tj.zeros((300, 300))))
    assert count(graph, "constant") == 0  # nothing large is baked in


def test_dtype_functions() -> None:
    i8, f32 = tj.zeros(2, "int8"), tj.zeros(2)
    assert tj.result_type("int32", "float32") == tj.result_type(i8, f32) == np.result_type(i8, f32) == "float32"
    assert tj.result_type(i8, 1.5) == tj.result_type(1, 1.5) == "float32" and tj.result_type("int64", 1.5) == "float64"
    assert tj.result_type(i8, 300) == "int8"
    assert tj.can_cast("int32", "float32") and not tj.can_cast("float64", "float32") and np.can_cast(i8, np.int16)
    assert tj.can_cast("float64", "float32", "same_kind")
    assert tj.finfo("float32").eps == np.finfo("float32").eps and tj.finfo(f32).bits == 32 and tj.iinfo(i8).max == 127
    assert tj.isdtype(tj.float32, "real floating") and not tj.isdtype("int8", ("bool", "unsigned integer"))
    assert tj.isdtype("int8", tj.int8)
    assert tj.astype(f32, "int8").dtype == f32.astype(tj.int8).dtype == tj.cast(f32, "int8").dtype == "int8"
    assert tj.newaxis is None and tj.bool == np.bool_ and tj.pi == np.pi


def test_creation_copies_and_never_aliases() -> None:
    array = np.arange(3.0)
    for t in (tj.asarray(array), tj.constant(array), tj.from_dlpack(array), Tensor(array), tj.asarray([array])[0]):
        array[0] = 9
        assert t[0].item() == 0
        array[0] = 0
    t = tj.asarray(array)
    assert tj.asarray(t) is t and tj.convert_to_tensor(t) is t and tj.asarray(t, copy=True) is not t
    fresh = tj.asarray(t, copy=True)
    fresh[0] = 5
    assert t[0].item() == 0
    with pytest.raises(ValueError, match="always a copy"):
        tj.asarray(array, copy=False)
