"""Counting and small numerical functions against NumPy, in each way that ops run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ways import WAYS, same, traced

import tracejit as tj

RNG = np.random.default_rng(5)
V = np.array([3, 1, 3, 0, 7, 1])
X = RNG.normal(size=40)
EDGES = np.array([-1.0, -0.25, 0.5, 2.0])
XP, FP = np.array([0.0, 1.0, 2.5, 4.0]), np.array([1.0, -1.0, 3.0, 2.0])

CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "digitize": (lambda m, x, e: [m.digitize(x, e), m.digitize(x, e, right=True)], (X, EDGES)),
    "histogram": (lambda m, x: [*m.histogram(x), *m.histogram(x, 3, (-1, 1)), *m.histogram(x, bins=1)], (X,)),
    "histogram edges": (lambda m, x, e: [*m.histogram(x, e), *m.histogram(x, e, density=True)], (X, EDGES)),
    "histogram weights": (lambda m, x: [*m.histogram(x, 4, weights=x * x)], (X,)),
    "histogram of one value": (lambda m, x: [*m.histogram(x[:1] * 0 + 2, 2)], (X,)),
    "interp": (lambda m, x, xp, fp: [m.interp(x, xp, fp), m.interp(x, xp, fp, left=-9, right=9.0)],
               (X * 3, XP, FP)),
    "interp at points": (lambda m, xp, fp: [m.interp(xp, xp, fp), m.interp(xp, xp[:1], fp[:1])], (XP, FP)),
    "trapezoid": (lambda m, x, y: [m.trapezoid(y), m.trapezoid(y, dx=0.5), m.trapezoid(y, x),
                                   m.trapezoid(y[:1])], (XP, FP)),
    "trapezoid of rows": (lambda m, x, y: [m.trapezoid(y, x, axis=1), m.trapezoid(y, axis=0)],
                          (XP, np.stack([FP, XP]))),
    "polyval": (lambda m, p, x: [m.polyval(p, x), m.polyval(p[:1], x[0])], (FP, X)),
    "select": (lambda m, x: m.select([x > 1, x > 0], [x * 2, -x], 5.0), (X,)),
    "unravel_index": (lambda m, v: m.unravel_index(v, (3, 4)), (V,)),
    "ravel_multi_index": (lambda m, v: m.ravel_multi_index((v % 3, v % 4), (3, 4)), (V,)),
    "splits": (lambda m, x: [*m.hsplit(x, 2), *m.vsplit(x, [1]), *m.dsplit(x, 2), *m.hsplit(x[0, 0], 2)],
               (X.reshape(5, 2, 4),)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", WAYS)
def test_as_numpy(way: Callable[..., Any], name: str) -> None:
    f, xs = CASES[name]
    wanted = f(np, *xs)
    wanted = list(wanted) if isinstance(wanted, tuple) else wanted
    same(way(lambda *ts: f(tj, *ts), *xs), wanted, rtol=1e-12)
    same(way(lambda *ts: f(np, *ts), *xs), wanted, rtol=1e-12)


def test_bincount() -> None:
    same(tj.bincount(V).numpy(), np.bincount(V))
    same(np.bincount(tj.asarray(V), minlength=10).numpy(), np.bincount(V, minlength=10))
    same(tj.bincount(V, X[:6]).numpy(), np.bincount(V, X[:6]))
    for way in WAYS:
        same(way(lambda v: tj.bincount(v, length=9), V), np.bincount(V, minlength=9))
        with pytest.raises(IndexError, match="index 7 is out of bounds"):
            way(lambda v: tj.bincount(v, length=4), V)
    with pytest.raises(tj.TracerError, match="length="):
        traced(lambda v: tj.bincount(v), V)
    with pytest.raises(ValueError, match="negative"):
        tj.bincount([-1])
    with pytest.raises(TypeError, match="vector of integers"):
        tj.bincount([0.5])


def test_unique() -> None:
    same(tj.unique(V).numpy(), np.unique(V))
    for f in ("unique_all", "unique_counts", "unique_inverse"):
        for found, wanted in zip(getattr(tj, f)(V), getattr(np, f)(V)):
            same(found.numpy(), wanted)
    same(tj.unique_values(V).numpy(), np.unique(V))
    same([t.numpy() for t in tj.unique(V, True, True, True)], list(np.unique(V, True, True, True)))
    same(np.unique(tj.asarray([[1, 2], [1, 2]]), axis=0).numpy(), np.int32([[1, 2]]))
    assert tj.unique_all(V).counts.tolist() == [1, 2, 2, 1]
    with pytest.raises(tj.TracerError, match="unique: the shape of the result depends"):
        traced(lambda v: tj.unique(v), V)


def test_triangle_indices() -> None:
    for ours, numpys in ((tj.tril_indices, np.tril_indices), (tj.triu_indices, np.triu_indices)):
        same([t.numpy() for t in ours(3, 1, 4)], list(numpys(3, 1, 4)))


def test_gradients() -> None:
    tj.check_grads(lambda x, fp: (tj.interp(x, XP, fp) ** 2).sum(), (tj.asarray(X[:5] + 1.1), tj.asarray(FP)), order=2)
    tj.check_grads(lambda y, x: tj.trapezoid(y, x) ** 2, (tj.asarray(FP), tj.asarray(XP)), order=2)
    tj.check_grads(lambda p, x: tj.polyval(p, x).sum(), (tj.asarray(FP), tj.asarray(X[:3])), order=2)


def test_errors() -> None:
    with pytest.raises(ValueError, match="bins must be positive"):
        tj.histogram(X, 0)
    with pytest.raises(ValueError, match="two vectors of one length"):
        tj.interp(X, XP, FP[:2])
    with pytest.raises(ValueError, match="1 conditions for 2 choices"):
        tj.select([X > 0], [X, X])
    with pytest.raises(TypeError, match="histogram_bin_edges"):
        tj.histogram(X, "auto")
