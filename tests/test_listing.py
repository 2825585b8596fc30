"""`f.kernels()` as people read it: loops, reads, writes, ops under the user's lines."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

import tracejit as tj

X = np.linspace(-1, 1, 64 * 100, dtype="float32").reshape(64, 100)


def listed(f: Any, *args: Any) -> str:
    """The kernels' text without the user's lines and the counts of statements."""
    function = tj.function(f)
    function(*args)
    text = re.sub(r" +test_listing\.py:\d+| +\(\d+ statements\)", "", str(function.kernels()))
    return re.sub(r"\bv\d+\b", "v", text)


def test_softmax_in_three_stages() -> None:
    def softmax(x: Any) -> Any:
        e = tj.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    assert listed(softmax, X) == """\
max_subtract_exp_sum_and_1_more
  for each of 64 rows of 100 elements
  reads  x: float32, 64 x 100
  writes result: float32, 64 x 100
  1. for the 100 elements of each row
     max0 = max of x
  2. for the 100 elements of each row
     v = x - max0
     v = exp(v)
     sum1 = sum of v
     keep v for later
  3. for the 100 elements of each row
     v = v / sum1
     result = v
"""


def test_lines_stand_beside_what_they_say() -> None:
    @tj.function
    def f(x):
        y = tj.sin(x)
        return y * 0.1 + y.sum()

    f(X[0])
    first = f.python_function.__code__.co_firstlineno
    text = str(f.kernels())
    assert re.search(rf"v\d+ = sin\(x\)  \(\d+ statements\) +test_listing\.py:{first + 2}\n", text)
    assert re.search(rf"sum0 = sum of v\d+ +test_listing\.py:{first + 3}\n", text)
    assert re.search(rf"v\d+ = v\d+ \* 0\.1 +test_listing\.py:{first + 3}\n", text)  # the number, not its bits


def test_what_is_the_same_for_a_row_stands_before_its_loop() -> None:
    text = listed(lambda x: x - x.sum(axis=1, keepdims=True) / 100, X)
    assert text.endswith("""\
  2. once for each row
     v = sum0 / 100.0
     then for the 100 elements of each row
     v = x - v
     result = v
""")


def test_views_of_one_array_have_numbers() -> None:
    text = listed(lambda x: x[1:] - x[:-1], X[0])
    assert "reads  x#1: float32, 99 from 1\n  reads  x#2: float32, 99\n" in text and "v = x#1 - x#2\n" in text


def test_columns_indices_masks_scatters_and_complex_numbers() -> None:
    assert "for each of 100 columns of 64 elements, side by side" in listed(lambda x: x.sum(axis=0), X)
    text = listed(lambda x, i: x[i] * 2, X[0], np.arange(5))
    assert "v = i < 0\n" in text and "v = x[v] where v, else 0\n" in text
    assert "v = x where v, else 0\n" in listed(lambda x: tj.pad(x, 1) + 1, X[0])
    gradient = listed(lambda x, i: tj.grad(lambda x: (x[i] ** 2).sum())(x), X[0], np.arange(5))
    assert "result[v] add= v where v\n" in gradient
    assert "v = exp(z#1, z#2)\n" in listed(lambda z: tj.exp(z) * 2, X[0].astype("complex64"))
    assert "argmax0 = argmax of x at i1\n" in listed(lambda x: x.argmax(axis=1), X)


def test_loops_of_single_elements_show_what_goes_round() -> None:
    text = listed(lambda x: tj.fori_loop(0, 50, lambda i, h: h * 0.9 + x, x), X[0])
    assert re.search(r"""
     loop 50 times, from c0 = \S+
       t\d+ = c0 \* 0\.9
       t(\d+) = t\d+ \+ x
       c0 = t\1
     v = c0 after the loop
     result = v
""", text), text


def test_many_kernels_print_one_after_another() -> None:
    @tj.function
    def f(x):
        return tj.sort(x * 2, axis=1) + 1

    f(X)
    first, second = f.kernels()
    assert str(f.kernels()) == repr(f.kernels()) == f"{first}\n{second}"
