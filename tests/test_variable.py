"""Variables: reading, assigning, value semantics, and being objects."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest
from calls import in_threads

import tracejit as tj


def test_repr_is_tensorflows() -> None:
    assert repr(tj.Variable(2.0)) == "<tj.Variable 'Variable:0' shape=() dtype=float32, numpy=2.0>"
    assert repr(tj.Variable(0.1)) == "<tj.Variable 'Variable:0' shape=() dtype=float32, numpy=0.1>"
    assert str(tj.Variable([1, 2], name="w")) == (
        "<tj.Variable 'w:0' shape=(2,) dtype=int32, numpy=array([1, 2], dtype=int32)>")


@pytest.mark.parametrize(
    ("value", "dtype", "wanted"),
    [(1.0, None, "float32"), (1, None, "int32"), (True, None, "bool"), (np.arange(3), None, "int64"),
     ([1.0], "float64", "float64"), (lambda: [1.0, 2.0], None, "float32"),
     (tj.asarray([1.0], "float64"), None, "float64"), (1j, None, "complex64")],
)
def test_first_value_decides_the_dtype(value: object, dtype: str | None, wanted: str) -> None:
    assert tj.Variable(value, dtype=dtype).dtype == wanted


def test_creation_copies() -> None:
    a = np.zeros(3)
    t = tj.zeros(3)
    v, w = tj.Variable(a), tj.Variable(t)
    a[:] = 1
    w.assign_add([1.0, 1.0, 1.0])
    np.testing.assert_array_equal(v.numpy(), 0)
    np.testing.assert_array_equal(t.numpy(), 0)


def test_assign_gives_the_variable() -> None:
    v = tj.Variable([1.0, 2.0])
    assert v.assign([3.0, 4.0]) is v
    assert v.assign_add([1.0, 1.0]) is v
    assert v.assign_sub([2.0, 2.0]).numpy().tolist() == [2.0, 3.0]


def reads(v: tj.Variable) -> list[object]:
    """Every way of getting at the present value."""
    return [v.read_value(), v.numpy(), np.asarray(v), v + 0, tj.asarray(v), tj.convert_to_tensor(v), copy.copy(v),
            copy.deepcopy(v), v[:], v.reshape(v.shape), v.astype(v.dtype), tj.reshape(v, (3,)), v.copy(), tj.Tensor(v),
            tj.broadcast_to(v, (3,)), tj.transpose(v), v.ravel(), tj.squeeze(v)]


WRITES = [
    lambda v: v.assign([7.0, 7.0, 7.0]),
    lambda v: v.assign_add([7.0, 7.0, 7.0]),
    lambda v: v.assign_sub(tj.asarray([7.0, 7.0, 7.0])),
    lambda v: v.__setitem__(0, 7.0),
    lambda v: v.__setitem__(slice(None), 7.0),
    lambda v: v.__iadd__(7.0),
    lambda v: v.__imul__(7.0),
]


@pytest.mark.parametrize("write", WRITES)
def test_what_was_read_never_changes(write: object) -> None:
    v = tj.Variable([1.0, 2.0, 3.0])
    v.assign_add([0.0, 0.0, 0.0])  # its buffer is its own now
    seen = reads(v)
    for _ in range(3):
        write(v)  # type: ignore[operator]
    for k, x in enumerate(seen):
        np.testing.assert_array_equal(np.asarray(x), [1, 2, 3], err_msg=str(k))
    assert v.numpy()[0] != 1


def test_writes_to_a_tensor_do_not_reach_the_variable() -> None:
    t = tj.asarray([1.0, 2.0])
    v = tj.Variable(t)
    v.assign(t)
    t[0] = 9.0
    t += 1
    u = v.read_value()
    u[1] = 5.0
    np.testing.assert_array_equal(v.numpy(), [1, 2])


def test_assign_add_works_in_place_when_nobody_else_looks() -> None:
    v = tj.Variable(np.zeros(1000))
    v.assign_add(np.ones(1000))
    before = v._value
    address = before.ctypes.data
    del before
    v.assign_add(np.ones(1000)).assign_sub(np.full(1000, 0.5))
    assert v._value.ctypes.data == address
    np.testing.assert_array_equal(v.numpy(), 1.5)


def test_augmented_assignment_keeps_the_variable() -> None:
    v = w = tj.Variable([1.0, 2.0])
    v += 1
    v *= tj.asarray([2.0, 3.0])
    assert v is w
    assert isinstance(v, tj.Variable)
    np.testing.assert_array_equal(w.numpy(), [4, 9])


def test_shape_is_fixed() -> None:
    v = tj.Variable([1.0, 2.0], name="w")
    for write in (v.assign, v.assign_add, v.assign_sub):
        with pytest.raises(ValueError, match=r"shape \(3,\) does not fit variable 'w:0' of shape \(2,\)"):
            write([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="shape"):
        v.assign(1.0)


@pytest.mark.parametrize(
    ("dtype", "value", "fits"),
    [("float32", 1, True), ("float32", np.float64(0.5), True), ("float32", tj.asarray(0.5, "float64"), True),
     ("int32", 0.5, False), ("float32", 1j, False), ("int32", tj.asarray(0.5), False), ("int32", np.int64(3), True),
     ("float64", np.int32(3), True), ("bool", 1, False), ("complex64", 1.5, True), ("int8", True, True)],
)
def test_dtype_is_fixed(dtype: str, value: object, fits: bool) -> None:
    v = tj.Variable(0, dtype=dtype)
    if fits:
        assert v.assign(value).dtype == dtype
        assert v.numpy() == np.asarray(value).astype(dtype)
    else:
        with pytest.raises(TypeError, match=f"{dtype} variable 'Variable:0'"):
            v.assign(value)


def test_float64_variable_keeps_python_floats_exact() -> None:
    v = tj.Variable(0.0, dtype="float64")
    v.assign(0.1)
    w = tj.Variable([0.0], dtype="float64").assign([0.1])
    assert float(v) == 0.1
    assert w.numpy()[0] == 0.1


def test_int_out_of_range() -> None:
    with pytest.raises(OverflowError):
        tj.Variable(0, dtype="int8").assign(300)


def test_works_as_a_tensor() -> None:
    v = tj.Variable([[1.0, 2.0], [3.0, 4.0]])
    assert isinstance(v, tj.Tensor)
    assert type(v + 1) is tj.Tensor
    assert type(1 - v) is tj.Tensor
    assert type(v.T) is tj.Tensor
    assert type(np.sin(v)) is tj.Tensor
    assert (v @ v).numpy().tolist() == [[7, 10], [15, 22]]
    assert v.sum().item() == 10
    assert v[0].numpy().tolist() == [1, 2]
    assert [row.numpy().tolist() for row in v] == [[1, 2], [3, 4]]
    assert len(v) == 2
    assert float(v[1, 1]) == 4.0
    assert tj.concat([v, v], axis=0).shape == (4, 2)
    assert f"{tj.Variable(2.5):.2f}" == "2.50"


def test_hash_by_identity_and_compare_elementwise() -> None:
    v, w = tj.Variable([1.0, 2.0]), tj.Variable([1.0, 2.0])
    slots = {v: "v", w: "w"}
    assert slots[v] == "v"
    assert slots[w] == "w"
    assert len({v, w, v}) == 2
    assert (v == w).numpy().all()


def test_pickle_and_copies() -> None:
    v = tj.Variable([1.0, 2.0], trainable=False, name="state")
    for w in (pickle.loads(pickle.dumps(v)), copy.copy(v), copy.deepcopy(v)):
        assert isinstance(w, tj.Variable)
        assert (w.name, w.trainable, w.dtype) == ("state:0", False, v.dtype)
        w.assign_add([1.0, 1.0])
        np.testing.assert_array_equal(w.numpy(), [2, 3])
        np.testing.assert_array_equal(v.numpy(), [1, 2])


def test_many_threads_read_while_one_assigns() -> None:
    v = tj.Variable(np.zeros(1000))
    stop, torn = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            x = v.read_value().numpy()
            if x.min() != x.max():
                torn.append(x)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for r in readers:
        r.start()
    for k in range(300):
        v.assign(np.full(1000, float(k)))
    stop.set()
    for r in readers:
        r.join()
    assert not torn


def test_inside_a_function_reads_and_writes_in_program_order() -> None:
    v = tj.Variable([1.0, 2.0])

    @tj.function
    def step(x: tj.Tensor) -> tuple[tj.Tensor, tj.Tensor]:
        before = v + 0
        v.assign_add(x)
        v[0] = v[0] * 10
        return before, v.read_value()

    for _ in range(2):
        wanted = v.numpy().copy()
        before, after = step(tj.asarray([1.0, 1.0]))
        np.testing.assert_array_equal(before.numpy(), wanted)
        np.testing.assert_array_equal(after.numpy(), (wanted + 1) * [10, 1])
        np.testing.assert_array_equal(v.numpy(), after.numpy())


def test_a_variable_that_is_only_given_back_is_the_variable() -> None:
    v = tj.Variable([1.0, 2.0])
    f, g = tj.function(lambda: v), tj.function(lambda x: (x * 2, {"v": v}))
    for _ in range(2):
        assert f() is v and g(tj.ones(2))[1]["v"] is v


@pytest.mark.parametrize("size", [5, 300_000])
def test_no_update_of_another_thread_is_lost(size: int) -> None:
    v = tj.Variable(tj.zeros(size))
    turns = 400 if size < 10 else 20

    @tj.function
    def step() -> None:
        v.assign_add(tj.ones(size))
        v.assign_sub(tj.full(size, 0.5))

    def work() -> None:
        nonlocal v
        for k in range(turns):
            v.assign_add(tj.ones(size))
            step()
            v += 1.0
            v[k % 3] = v[k % 3]  # of its own value: two steps, but on no element that is looked at below

    step()
    in_threads(work)
    assert v.numpy()[3:].tolist() == [4 * turns * 2.5 + 0.5] * (size - 3)
    assert step.trace_count == 1


def test_counters_of_compiled_calls_are_exact() -> None:
    count, total = tj.Variable(0), tj.Variable(0.0)

    @tj.function
    def step(x: tj.Tensor) -> tj.Tensor:
        count.assign_add(1)
        total.assign_add(x)
        return count + 0

    @tj.function
    def other(x: tj.Tensor) -> None:  # the same Variables, in another order
        total.assign_add(x)
        count.assign_add(1)

    seen: list[int] = []

    def work() -> None:
        for _ in range(300):
            seen.append(int(step(tj.constant(2.0))))
            other(tj.constant(1.0))
            count.assign_add(1)

    in_threads(work)
    assert int(count) == 3600 and float(total) == 3600.0 and len(set(seen)) == 1200
