"""What a tensor is to Python and to NumPy: facts, printing, conversions, protocols, copies, operators."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from ways import traced

import tracejit as tj
from tracejit.ir import Type
from tracejit.tensor import Tensor
from tracejit.trace.tracer import trace_function


def test_facts() -> None:
    t = tj.zeros((2, 3), "int16")
    assert (t.shape, t.ndim, t.size, t.nbytes, t.itemsize, len(t), t.device) == ((2, 3), 2, 6, 12, 2, 2, "cpu")
    assert t.dtype == "int16" and t.dtype == tj.int16
    with pytest.raises(TypeError, match="0-d"):
        len(tj.asarray(1))


@pytest.mark.parametrize(("value", "text"), [
    ([[4.0]], "tj.Tensor([[4.]], shape=(1, 1), dtype=float32)"),
    ([[1, 2], [3, 4]], "tj.Tensor(\n[[1 2]\n [3 4]], shape=(2, 2), dtype=int32)"),
    (6.0, "tj.Tensor(6.0, shape=(), dtype=float32)"),
    ([], "tj.Tensor([], shape=(0,), dtype=float32)"),
    (True, "tj.Tensor(True, shape=(), dtype=bool)"),
    (1 + 2j, "tj.Tensor((1+2j), shape=(), dtype=complex64)"),
])
def test_printing(value: Any, text: str) -> None:
    assert repr(tj.asarray(value)) == str(tj.asarray(value)) == text


def test_formatting() -> None:
    assert "hello,{}".format(tj.matmul([[2.0]], [[2.0]])) == "hello,[[4.]]"  # noqa: UP032
    assert f"{tj.asarray(3.14159):.2f}" == "3.14" and f"{tj.asarray(7):03d}" == "007" and f"{tj.asarray(1.5)}" == "1.5"
    with np.printoptions(precision=2):
        assert "0.33" in repr(tj.asarray([1 / 3])) and "0.333" not in repr(tj.asarray([1 / 3]))
    graph = trace_function(lambda t: (_said.append((repr(t * 2), f"{t}")), t)[1], Type((3,), np.dtype("float32")))
    assert graph.outputs and "traced" in _said[0][1]
    assert _said[0][0].startswith("tj.Tensor(<traced multiply #1 at test_tensor.py:44>, shape=(3,), dtype=float32)")


_said: list[tuple[str, str]] = []


def test_conversions() -> None:
    t = tj.asarray(2.5)
    assert (float(t), int(t), bool(t), complex(t), t.item(), t.tolist()) == (2.5, 2, True, 2.5 + 0j, 2.5, 2.5)
    assert list(range(3))[tj.asarray(1)] == 1
    assert tj.asarray([[7]]).item() == 7 and float(tj.asarray([[1.5]])) == 1.5
    with pytest.raises(TypeError, match="one element"):
        float(tj.zeros(2))
    with pytest.raises(ValueError, match="ambiguous"):
        bool(tj.zeros(2))
    with pytest.raises(TypeError, match="integer"):
        [0, 1][tj.asarray(1.0)]
    with pytest.raises(TypeError, match="not hashable"):
        hash(t)
    assert 2.5 in t.reshape(1) and 3 not in t.reshape(1)
    assert [v.item() for v in tj.arange(3)] == [0, 1, 2] and tj.arange(5).item(3) == 3


def test_numpy_sees_values_not_buffers() -> None:
    t = tj.arange(3.0)
    assert type(t.numpy()) is np.ndarray and not t.numpy().flags.writeable
    assert np.shares_memory(t.numpy(), t._value)
    copied = np.array(t)
    copied[0] = 9
    assert t.tolist() == [0, 1, 2] and np.asarray(t, "int8").dtype == "int8"
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(t, "int8", copy=False)
    assert np.from_dlpack(t.numpy()).tolist() == [0, 1, 2]


def test_numpy_functions_give_tensors() -> None:
    t = tj.asarray([[1.0, 2.0], [3.0, 4.0]])
    a = t.numpy()
    for f in (np.sin, np.square, np.sum, np.mean, np.max, np.ravel, np.transpose, np.flip, np.cumsum, np.exp, np.abs,
              np.sort, np.std, np.argmax, np.any, np.prod, np.squeeze, np.tril, np.diagonal, np.trace,
              np.zeros_like, np.isnan, np.atleast_3d):
        found = f(t)
        assert isinstance(found, Tensor), f
        np.testing.assert_allclose(found.numpy(), f(a), rtol=1e-6)
    assert isinstance(np.add(a, t), Tensor) and isinstance(np.float32(2) * t, Tensor) and isinstance(a @ t, Tensor)
    assert isinstance(np.concatenate([t, a]), Tensor) and isinstance(np.where(t > 2, t, 0), Tensor)
    assert np.add.reduce(t).tolist() == [4, 6] and np.maximum.reduce(t, axis=1).tolist() == [2, 4]
    assert (np.shape(t), np.ndim(t), np.size(t), np.size(t, 0), np.iscomplexobj(t)) == ((2, 2), 2, 4, 2, False)
    assert np.array_equal(t, a) and np.allclose(t, a) and np.isclose(t, a).all() and not np.array_equal(t, a[0])
    assert np.append(t, [5.0]).tolist() == [1, 2, 3, 4, 5] and np.append(t, [[5.0, 6]], axis=0).shape == (3, 2)
    assert np.array2string(t) == np.array2string(a) and np.array_repr(t) == np.array_repr(a)
    np.testing.assert_allclose(t, a)
    np.testing.assert_array_equal(a, t)


def test_numpy_functions_trace() -> None:
    f = lambda t: np.sin(t) + np.sum(t) + np.float32(2) * t + np.concatenate([t, t])[:3]
    x = np.ones(3, "float32")
    np.testing.assert_allclose(traced(f, x), np.sin(x) + 3 + 2 + 1, rtol=1e-6)
    graph = trace_function(f, Type((3,), np.dtype("float32")))
    assert not any(n.op.name == "constant" and n.shape for n in graph.nodes)  # nothing was frozen on the way


def test_unsupported_numpy_functions_name_the_way_out() -> None:
    t = tj.zeros(3)
    with pytest.raises(TypeError, match=r"np\.fill_diagonal"):
        np.fill_diagonal(t.reshape(3, 1), 1)
    with pytest.raises(TypeError, match="out="):
        np.add(t, t, out=t)
    with pytest.raises(TypeError, match=r"np\.divide\.at"):
        np.divide.at(t, [0], 1)
    with pytest.raises(TypeError, match=r"np\.frexp"):
        np.frexp(t)
    array = np.zeros(3)
    with pytest.raises(TypeError, match="out="):
        np.add(t, 1, out=array)


def test_array_namespace() -> None:
    t = tj.zeros(2)
    assert t.__array_namespace__() is tj
    names = """abs add all any arange argmax asarray astype broadcast_arrays can_cast ceil concat cumulative_sum diff
        empty equal expand_dims eye finfo flip full isdtype isfinite linspace matmul matrix_transpose max mean
        meshgrid min moveaxis nonzero ones permute_dims pow prod repeat reshape result_type roll searchsorted
        sort squeeze stack std sum take take_along_axis tensordot tile trunc unstack var vecdot where zeros
        bool int8 uint64 float32 complex128 pi e inf nan newaxis"""
    assert not [n for n in names.split() if not hasattr(tj, n)]


def test_copies_and_pickles_are_values_of_their_own() -> None:
    t = tj.arange(3)
    for other in (copy.copy(t), copy.deepcopy(t), pickle.loads(pickle.dumps(t)), t.copy()):
        other[0] = 9
        assert t.tolist() == [0, 1, 2] and other.tolist() == [9, 1, 2]
    assert copy.deepcopy({"w": [t]})["w"][0] is not t


def test_copies_inside_a_trace_follow_their_source() -> None:
    """A copy of a captured tensor reads it afresh at every call."""
    w = tj.ones(3)
    f = tj.function(lambda x: x + copy.copy(w) + w.copy())
    assert f(tj.zeros(3)).tolist() == [2, 2, 2]
    w[0] = 5
    assert f(tj.zeros(3)).tolist() == [10, 2, 2]


def test_augmented_assignment_rebinds_this_handle_only() -> None:
    a = tj.asarray([1.0, 2.0])
    b = a.copy()
    alias = a
    a += 1
    a *= 2
    assert alias is a and a.tolist() == [4, 6] and b.tolist() == [1, 2]
    n = tj.asarray([1, 2])
    with pytest.raises(TypeError, match="does not fit in place"):
        n += 0.5
    n //= 2
    assert n.dtype == "int32" and n.tolist() == [0, 1]
    with pytest.raises(ValueError, match="does not fit in place"):
        n += np.zeros((3, 2), "int32")


def test_methods_and_properties() -> None:
    t = tj.asarray([[1.0, -2.0], [3.0, 4.0]])
    z = tj.asarray([1 + 2j])
    assert t.T.tolist() == t.mT.tolist() == [[1, 3], [-2, 4]] and z.real.tolist() == [1] and z.imag.tolist() == [2]
    assert t.sum().item() == 6 and t.mean().item() == 1.5 and t.max().item() == 4 and t.argmax().item() == 3
    assert t.clip(0, 3).tolist() == [[1, 0], [3, 3]] and t.round().tolist() == t.tolist()
    assert z.conj().tolist() == [1 - 2j] and t.std().item() == pytest.approx(2.2912878)
    assert t.any().item() and t.all().item() and t.cumsum().tolist() == [1, -1, 2, 6]
    assert t.astype("int8").dtype == "int8" and t.flatten().shape == t.ravel().shape == (4,)
    assert t.squeeze().shape == (2, 2)
    assert [i.tolist() for i in (t > 2).nonzero()] == [[1, 1], [0, 1]] and t.argsort().tolist() == [[1, 0], [0, 1]]
    assert t.dot(t).tolist() == (t @ t).tolist() and t.trace().item() == 5 and t.diagonal().tolist() == [1, 4]


def test_leaked_tracers_say_so() -> None:
    kept: list[Tensor] = []
    trace_function(lambda t: (kept.append(t * 2), t)[1], Type((3,), np.dtype("float32")))
    for use in (lambda t: t.numpy(), lambda t: t + 1, lambda t: float(t.sum())):
        with pytest.raises(tj.LeakedTracerError):
            use(kept[0])
