"""Slices whose bounds are traced, and functions whose sizes stay open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj

SPANS: dict[str, tuple[Callable[..., Any], int]] = {
    "i:i+2": (lambda t, i: t[i : i + 2], 1),
    "i-1:i+2": (lambda t, i: t[i - 1 : i + 2], 1),
    "2*i:2*(i+1)": (lambda t, i: t[2 * i : 2 * (i + 1)], 1),
    "i:i+4:2": (lambda t, i: t[i : i + 4 : 2], 1),
    "i+3:i:-1": (lambda t, i: t[i + 3 : i : -1], 1),
    "...,i:i+2": (lambda t, i: t[..., i : i + 2], 2),
    "1,i:i+2": (lambda t, i: t[1, i : i + 2], 2),
    "i:i+2,i:i+1": (lambda t, i: t[i : i + 2, i : i + 1], 2),
    "i:i+2,[0,1]": (lambda t, i: t[i : i + 2, [0, 1]], 2),
    "None,i:i+2,1:": (lambda t, i: t[None, i : i + 2, 1:], 2),
    "at": (lambda t, i: t.at[i : i + 2].add(tj.arange(2)), 1),
    "at mixed": (lambda t, i: t.at[i : i + 2, 1:3].multiply(3), 2),
}


@pytest.mark.parametrize("name", SPANS)
def test_spans(name: str) -> None:
    f, ndim = SPANS[name]
    t = tj.arange(8) if ndim == 1 else tj.arange(24).reshape((6, 4))
    compiled, whole, cut = tj.function(f, name="f"), 0, 0
    for i in range(-9, 10):
        try:
            wanted = f(t, tj.constant(i))
        except ValueError:  # a value that does not fit what is left of the slice
            continue
        try:
            found = compiled(t, tj.constant(i))
        except IndexError:  # Python would give fewer elements
            assert "at" in name or wanted.size < whole or whole == 0, (i, wanted)
            cut += 1
            continue
        assert found.dtype == wanted.dtype and found.tolist() == wanted.tolist(), i
        whole = max(whole, wanted.size)
    assert whole and (cut or "at" in name) and compiled.trace_count == 1


def test_spans_in_loops_written_and_differentiated() -> None:
    def f(t, n):
        s, i = t[:2] * 0, n * 0
        while i < n:
            j = i + 2
            s = s + t[i : i + 2] * t[i:j]
            i = i + 1
        for k in range(n):
            t[k : k + 2] = s * t[k + 1 : k + 3]
        t[n : n + 2] += 1
        return s, t * 1

    start = np.arange(8.0, dtype="float32")
    for a, b in zip(f(tj.constant(start), tj.constant(4)), tj.function(f)(tj.constant(start), tj.constant(4))):
        np.testing.assert_allclose(b, a, rtol=1e-6)
    g = tj.grad(tj.function(lambda t, i: (t[i : i + 2] ** 2).sum()))(tj.constant(start), tj.constant(3))
    assert g.tolist() == [0, 0, 0, 6, 8, 0, 0, 0]


def test_a_length_that_depends_on_values_is_refused() -> None:
    for f in (lambda t, i: t[:i], lambda t, i: t[i:], lambda t, i: t[i : i * 2], lambda t, i: t[::i]):
        with pytest.raises(tj.TracerError, match=r"test_spans.py:\d+ has a length .*tj.take\(t, tj.arange\(k\) \+ i"):
            tj.function(f, name="f")(tj.arange(8), tj.constant(3))
    f = tj.function(lambda t, i, k: t[i : i + k])  # a Python number is known
    assert [f(tj.arange(8), tj.constant(3), k).tolist() for k in (1, 3)] == [[3], [3, 4, 5]]


OPEN: dict[str, Callable[[Any], Any]] = {
    "linspace": lambda x: tj.linspace(0, 1, x.shape[0]) * x,
    "linspace without end": lambda x: tj.linspace(0, 1, x.shape[0], endpoint=False) * x,
    "linspace of tensors": lambda x: tj.linspace(x[0], x[-1], x.shape[0]),
    "logspace": lambda x: tj.logspace(0, 1, x.shape[0]) * x,
    "roll": lambda x: tj.roll(x, x.shape[0] // 2),
    "roll by a number": lambda x: tj.roll(x, -3),
    "edge": lambda x: tj.pad(x, (2, 3), "edge"),
    "reflect": lambda x: tj.pad(x, (2, 3), "reflect"),
    "symmetric": lambda x: tj.pad(x, (2, 3), "symmetric"),
    "wrap": lambda x: tj.pad(x, (2, 0), "wrap"),
    "split": lambda x: tj.split(x, [2, x.shape[0] - 1])[1],
    "one_hot": lambda x: tj.one_hot(tj.arange(3), x.shape[0]),
    "len": lambda x: x.sum() / len(x),
    "span": lambda x: x[(i := tj.argmin(x)) : i + 2],
}


@pytest.mark.parametrize("name", OPEN)
def test_sizes_stay_open(name: str) -> None:
    f = OPEN[name]
    compiled = tj.function(f, name="f")
    for n in (24, 37, 50, 61, 7, 33):
        x = tj.constant(np.linspace(1, 2, n, dtype="float32"))
        wanted, found = f(x), compiled(x)
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert compiled.trace_count == 2


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
def test_pad_is_numpys(mode: str) -> None:
    for n in (1, 2, 3, 5):
        for width in ((0, 0), (0, 1), (2, 0), (2, 3), (4, 7)):
            found = tj.pad(tj.arange(n), width, mode)
            assert found.tolist() == np.pad(np.arange(n), width, mode).tolist()
            assert tj.function(lambda x, w=width: tj.pad(x, w, mode), name="f")(tj.arange(n)).tolist() == found.tolist()
