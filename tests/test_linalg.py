"""Products against NumPy: values, dtypes, shapes, errors, gradients to second order; einsum over random subscripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ways import WAYS, same, traced

import tracejit as tj
from tracejit.ir import Type, count
from tracejit.tensor import Tensor
from tracejit.trace.tracer import trace_function

RNG = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape)


MATMULS = [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (3,)),
           ((3,), (5, 3, 4)), ((5, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (6, 3, 4)), ((2, 3), (5, 3, 4)), ((0, 3), (3, 2)),
           ((2, 0), (0, 3)), ((0, 2, 0), (0, 3)), ((1, 2, 3), (5, 3, 1))]


@pytest.mark.parametrize("shapes", MATMULS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "complex64", "bool"])
@pytest.mark.parametrize("way", WAYS)
def test_matmul(way: Callable[..., Any], dtype: str, shapes: tuple[Any, Any]) -> None:
    a, b = ((normal(*s) * 3).astype(dtype) for s in shapes)
    same(way(lambda x, y: x @ y, a, b), a @ b, rtol=1e-5)
    same(way(lambda x, y: np.matmul(x, y), a, b), a @ b, rtol=1e-5)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "dot": (lambda m, a, b, v: [m.dot(a, b), m.dot(v, v), m.dot(a, v), m.dot(v, 2), a.dot(b)],
            (normal(2, 3), normal(3, 4), normal(3))),
    "dot of many dims": (lambda m, a, b: m.dot(a, b), (normal(2, 4, 3), normal(5, 3, 2))),
    "tensordot": (lambda m, a, b: [m.tensordot(a, b), m.tensordot(a, b, 1), m.tensordot(a, b, ([2, 1], [1, 0]))],
                  (normal(2, 3, 3), normal(3, 3, 4))),
    "tensordot outer": (lambda m, a, b: [m.tensordot(a, b, 0), m.tensordot(a, b, (-1, 1))],
                        (normal(2, 3), normal(2, 3))),
    "inner": (lambda m, a, b: [m.inner(a, b), m.inner(a, 2), m.inner(a[0], b[0])], (normal(2, 3), normal(4, 3))),
    "outer": (lambda m, a, b: [m.outer(a, b), m.outer(a[0], b)], (normal(2, 3), normal(4))),
    "vdot": (lambda m, a, b: m.vdot(a, b), (normal(2, 3) + 1j * normal(2, 3), normal(2, 3) - 1j)),
    "vecdot": (lambda m, a, b: [m.vecdot(a, b), m.vecdot(a, b[0]), m.vecdot(a, b, axis=0)],
               (normal(2, 3) * 1j, normal(2, 3))),
    "kron": (lambda m, a, b: [m.kron(a, b), m.kron(a[0], b), m.kron(a, b[0])], (normal(2, 3), normal(4, 2))),
    "cross": (lambda m, a, b: [m.cross(a, b), m.cross(a[0], b)], (normal(2, 3), normal(2, 3))),
    "matrix_transpose": (lambda m, a: m.linalg.matrix_transpose(a), (normal(2, 3, 4),)),
    "linalg": (lambda m, a, b: [m.linalg.matmul(a, b), m.linalg.outer(a[0], b[0]), m.linalg.trace(a), m.linalg.norm(a),
                                m.linalg.diagonal(a), m.linalg.vecdot(a, b), m.linalg.tensordot(a, b),
                                m.linalg.cross(a, b)],
               (normal(3, 3), normal(3, 3))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("way", WAYS)
def test_functions(way: Callable[..., Any], name: str) -> None:
    f, xs = FUNCTIONS[name]
    same(way(lambda *ts: f(tj, *ts), *xs), f(np, *xs), rtol=1e-12)


EINSUMS = [
    ("ij,jk->ik", (2, 3), (3, 4)), ("ij,jk", (2, 3), (3, 4)), ("ij,kj->ik", (2, 3), (4, 3)), ("i,i", (3,), (3,)),
    ("i,j->ij", (2,), (3,)), ("bij,bjk->bik", (5, 2, 3), (5, 3, 4)), ("ii", (3, 3)), ("ii->i", (3, 3)),
    ("iij->j", (2, 2, 3)), ("ij->ji", (2, 3)), ("ij->", (2, 3)), ("ij->j", (2, 3)),
    ("...ij,...jk->...ik", (5, 2, 3), (3, 4)), ("...ij,...jk->...ik", (5, 1, 2, 3), (6, 3, 4)),
    ("i...->...", (2, 3, 4)), ("...", (2, 3)), ("ij,ij->ij", (2, 3), (2, 3)), ("ij,ij->i", (2, 3), (2, 3)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)), ("ij,jk,kl,lm->im", (2, 3), (3, 4), (4, 5), (5, 2)),
    ("abc,cd,de,be->a", (2, 3, 4), (4, 5), (5, 2), (3, 2)), ("ijk,k->ij", (2, 3, 4), (4,)),
    ("i,j,k->kji", (2,), (3,), (4,)), ("ij,ik,il->jkl", (2, 3), (2, 4), (2, 5)),
    ("bqhd,bkhd->bhqk", (2, 3, 4, 5), (2, 6, 4, 5)), ("ij , jk -> ik", (2, 3), (3, 4)), ("i,->i", (3,), ()),
    ("ij,jk->ik", (2, 0), (0, 3)), ("ji,jk->ik", (0, 2), (0, 3)), ("ab,b...->a...", (2, 3), (3, 4, 5)),
    ("ii,jj->ij", (2, 2), (3, 3)), ("ijj,k->ik", (2, 3, 3), (4,)), ("ij,ij", (2, 3), (2, 3)),
]


@pytest.mark.parametrize("case", EINSUMS, ids=lambda c: c[0] + str(len(c)))
@pytest.mark.parametrize("way", WAYS)
def test_einsum(way: Callable[..., Any], case: tuple[Any, ...]) -> None:
    xs = [normal(*shape) for shape in case[1:]]
    same(way(lambda *ts: tj.einsum(case[0], *ts), *xs), np.einsum(case[0], *xs), rtol=1e-12)
    same(way(lambda *ts: np.einsum(case[0], *ts), *xs), np.einsum(case[0], *xs), rtol=1e-12)


def test_einsum_with_lists_of_labels() -> None:
    a, b = normal(2, 3), normal(3, 4)
    same(tj.einsum(a, [0, 1], b, [1, 2], [0, 2]).numpy(), a @ b, rtol=1e-12)
    same(tj.einsum(a, [0, 1], b, [1, 2]).numpy(), a @ b, rtol=1e-12)
    same(tj.einsum(a, [Ellipsis, 1], [Ellipsis]).numpy(), a.sum(1), rtol=1e-12)


@settings(max_examples=150)
@given(st.data())
def test_random_einsum(found: st.DataObject) -> None:
    sizes = dict(zip("abcde", found.draw(st.permutations([1, 2, 3, 2, 4]))))
    terms = found.draw(st.lists(st.text("abcde", max_size=4), min_size=1, max_size=4))
    letters = sorted(set("".join(terms)))
    result = "".join(found.draw(st.lists(st.sampled_from(letters), unique=True))) if letters else ""
    text = ",".join(terms) + (f"->{result}" if found.draw(st.booleans()) else "")
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=tuple(sizes[c] for c in term)) for term in terms]
    same(traced(lambda *ts: tj.einsum(text, *ts), *xs), np.einsum(text, *xs), rtol=1e-9)


def test_einsum_uses_matmul() -> None:
    graph = trace_function(lambda a, b, c: tj.einsum("ij,jk,kl->il", a, b, c),
                           *(Type(s, np.dtype("float32")) for s in ((50, 2), (2, 50), (50, 3))))
    assert count(graph, "matmul") == 2 and count(graph, "multiply") == 0
    products = [n for n in graph.nodes if n.op.name == "matmul"]
    assert products[0].shape in ((2, 3), (3, 2))  # the small product first


@pytest.mark.parametrize(("f", "message"), [
    (lambda a, b: a @ a, r"matmul: shapes \(2, 3\) and \(2, 3\) do not match: 3 columns meet 2 rows \(dtypes float64, "
                         r"float64\)"),
    (lambda a, b: tj.matmul(a, 2.0), "must have dims"),
    (lambda a, b: tj.tensordot(a, b, 2), "do not match"),
    (lambda a, b: tj.tensordot(a, b, 5), "axes=5"),
    (lambda a, b: tj.einsum("ij,kl->im", a, b), "no operand has"),
    (lambda a, b: tj.einsum("ij,jk", a), "names 2 operands, got 1"),
    (lambda a, b: tj.einsum("ijk,jk", a, b), "does not fit shape"),
    (lambda a, b: tj.einsum("ij,ij", a, b), "stands for extents"),
    (lambda a, b: tj.einsum("i1,ij", a, b), "must be letters"),
    (lambda a, b: tj.einsum("ii", a), "stands for extents"),
    (lambda a, b: tj.einsum("ii", a[:1]), "repeated for extents"),
    (lambda a, b: tj.einsum("...i->i", a), "must have '...'"),
    (lambda a, b: tj.cross(b, b), "3 components"),
    (lambda a, b: tj.trace(a, axis1=0, axis2=0), "are the same"),
    (lambda a, b: tj.diagonal(a[0]), "two dims"),
])
@pytest.mark.parametrize("way", WAYS)
def test_errors(way: Callable[..., Any], f: Callable[..., Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        way(f, normal(2, 3), normal(3, 4))


FULL_MATMULS = [s for s in MATMULS if np.prod(s[0]) * np.prod(s[1])]


@pytest.mark.parametrize(
    ("shapes", "complex_"),
    [*((s, False) for s in FULL_MATMULS), *((s, True) for s in FULL_MATMULS if len(s[0]) <= 2)], ids=str)
def test_gradients_of_matmul(shapes: tuple[Any, Any], complex_: bool) -> None:
    a, b = (normal(*s) + (1j * normal(*s) if complex_ else 0) for s in shapes)

    def f(x: Tensor, y: Tensor) -> Tensor:
        return (tj.abs(tj.matmul(x, y)) ** 2).sum()

    tj.check_grads(f, (tj.asarray(a), tj.asarray(b)), order=1 if complex_ else 2)


def test_gradient_of_einsum() -> None:
    a, b, c = normal(2, 3), normal(3, 3), normal(3)
    f = lambda x, y, z: (tj.einsum("ij,jj,j->i", x, y, z) ** 2).sum()
    tj.check_grads(f, tuple(map(tj.asarray, (a, b, c))), order=2)


def test_promotion_of_products() -> None:
    a, b = np.ones((2, 2), "int8"), np.ones((2, 2), "float32")
    assert tj.matmul(a, b).dtype == "float32" and tj.matmul(a, a).dtype == "int8" and tj.dot(a, 2).dtype == "int8"
    assert tj.einsum("ij,jk", a, b).dtype == "float32" and tj.einsum("ij->", a).dtype == "int8"
    assert tj.trace(a).dtype == "int32" and ([[1.0, 2.0]] @ tj.asarray(b)).tolist() == [[3.0, 3.0]]
