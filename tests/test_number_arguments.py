"""Python numbers as arguments are Python numbers inside: by type, as text, as keys; and still one trace for all values
where the program does not need the value.

PYTEST_DONT_REWRITE: the asserts in here are under test themselves.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from alike import run, same, t

import tracejit as tj


def test_types() -> None:
    def f(x: Any, n: Any, rate: Any) -> Any:
        kinds = isinstance(n, int), isinstance(rate, float), isinstance(n, tj.Tensor), isinstance(x, tj.Tensor)
        more = isinstance(n, str | int), isinstance(rate, (str, int)), isinstance(n, numbers.Integral)
        made = type(n) is int, type(n + 1) is int, type(n / 2) is float, type(float(x)) is float, np.isscalar(rate)
        return kinds, more, made, x * 2 if isinstance(n, int) else x

    assert same(f, (t(1.0), 3, 0.5), (t(1.0), 4, 0.25)).trace_count == 1


def test_match() -> None:
    def f(x: Any, n: Any) -> Any:
        match n, x.ndim:
            case int(), 1:
                return x * 2
            case 2.5, _:
                return x * 3
            case _:
                return x

    same(f, (t(1.0, 2.0), 3), (t(1.0), 3), (t(1.0, 2.0), 2.5))


def test_text() -> None:
    def f(x: Any, n: Any, rate: Any) -> Any:
        table = {"layer_3": x, "layer_4": x * 2}
        texts = str(n), repr(rate), f"{n:03d}", "{:.2f}".format(rate), "%d" % n, f"{n!r} {[n, rate]}"  # noqa: UP031, UP032
        return table[f"layer_{n}"], texts

    compiled = same(f, (t(1.0), 3, 0.1), (t(1.0), 4, 0.25))
    assert compiled.trace_count == 2  # the text is made while tracing, so the value is part of the program


def test_keys() -> None:
    def f(x: Any, n: Any) -> Any:
        cache = {3: x, 4: x * 2}
        cache[n + 10] = x
        return {n: cache[n], "k": [{n * 2: 1}]}, {n, 7}, sorted(cache)

    same(f, (t(1.0), 3), (t(1.0), 4))


def test_text_that_is_printed_needs_no_value() -> None:
    def f(x: Any, n: Any) -> Any:
        print(f"n={n:03d} {n!r} {[n, 1]} {x.sum():.1f}", n)
        print("and " + f"{n}")
        assert x.sum() < 100, f"{n} is too much"
        if x.sum() < 0:
            raise ValueError(f"negative at {n}")
        return x

    assert same(f, (t(1.0, 2.0), 3), (t(1.0, 2.0), 4), (t(-1.0, 0.0), 5), (t(200.0, 0.0), 6)).trace_count == 1


def test_text_of_an_exception_while_tracing() -> None:
    def f(x: Any, n: Any) -> Any:
        raise KeyError(f"{n} and {x}")

    for g in (f, tj.function(f)):
        _, _, error = run(g, t(1.0, 2.0), 3)
        assert isinstance(error, KeyError) and error.args == ("3 and [1. 2.]",)


def test_text_of_a_traced_value_cannot_be_returned() -> None:
    @tj.function
    def f(x: Any) -> Any:
        return f"x is {x}"

    with pytest.raises(tj.TracerError, match="text with a traced value"):
        f(t(1.0))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
def test_comparisons_with_numbers_beyond_the_dtype(dtype: str) -> None:
    def f(x: Any, n: Any) -> Any:
        return x < n, x <= n, x > n, x >= n, x == n, x != n, n < x, tj.where(x == n, 1, 0)

    values = tj.asarray(np.array([0, 1, 100]).astype(dtype))
    assert same(f, *((values, n) for n in (-1, 1, 300, -40_000, 2**33))).trace_count == 1


def test_comparison_with_a_number_and_one_beyond_64_bits() -> None:
    same(lambda x, n: (n < 2**70, x < n, x > -(2**70)), (t(1.0).astype("int32"), 3))


def test_rounded_numbers_are_numbers() -> None:
    def f(n: Any) -> Any:
        return round(n), round(n, 1), round(n) * 2, round(n, -1)

    compiled = same(f, (5,), (-17,), (2.5,), (0.125,), (-3.5,))
    assert all(list(map(type, compiled(n))) == list(map(type, f(n))) for n in (5, 2.5))
    same(lambda x: (round(float(x)), round(int(x) + 1, 0)), (t(2.5),), (t(-7.75),))


def test_whole_parts_of_numbers_are_integers() -> None:
    def f(n: Any, x: Any) -> Any:
        return math.floor(n), math.ceil(n), math.trunc(n), math.floor(float(x)), math.floor(x), np.floor(x)

    compiled = same(f, (2.5, t(1.5)), (-2.5, t(-1.5)), (7, t(2.0)))
    assert list(map(type, compiled(2.5, t(1.5)))) == [int] * 4 + [tj.Tensor] * 2


def test_truth_values_are_bools() -> None:
    def f(x: Any) -> Any:
        every, some = all(v > 0 for v in x), any(v > 2 for v in x)
        return every, some, not x.sum(), 2.0 in x, 5.0 not in x, not every or some, any(x), all(x > 0)

    compiled = same(f, (t(1.0, 2.0, 3.0),), (t(0.0, -2.0, 5.0),), (t(0.0, 0.0, 0.0),))
    assert all(type(p) is bool for p in compiled(t(1.0, 2.0, 3.0)))


def test_truth_values_that_go_round_a_loop_are_bools() -> None:
    def f(x: Any) -> Any:
        goes_on, n = True, 0
        while goes_on:
            x, n = x / 2, n + 1
            goes_on = not x < 1
        return goes_on, n

    assert type(same(f, (t(8.0),), (t(0.5),))(t(8.0))[0]) is bool


def test_truth_values_of_many_elements() -> None:
    same(lambda x: (any(v > 39 for v in x), all(v >= 0 for v in x)), (tj.arange(41),), (tj.arange(38) - 1,))


_BIG = np.array([0, 1, 5, 2**53, 2**53 + 1, 2**63, 2**63 + 1, 2**64 - 1], "uint64")
_SIGNED = np.array([0, -1, 6, 2**53 + 1, 2**53, -(2**63), 2**63 - 1, -1], "int64")


@pytest.mark.parametrize("compare", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_uint64_against_signed_numbers_is_exact(compare: str) -> None:
    f = getattr(operator, compare)
    compiled = tj.function(lambda a, b: f(a, b), name=compare)
    big = tj.constant(_BIG)
    for n in (-1, 0, 3, -(2**63), 2**63 - 1):
        for given, wanted in (((big, n), f(_BIG, n)), ((n, big), f(n, _BIG))):
            assert f(*given).tolist() == wanted.tolist() and compiled(*given).tolist() == wanted.tolist(), (given, n)
    for n in (-(2**64), 2**63, 2**65):
        assert f(big, n).tolist() == tj.function(lambda a, n=n: f(a, n), name="g")(big).tolist() == f(_BIG, n).tolist()
    for other in (_SIGNED, _SIGNED.astype("int8")):
        for given, wanted in (((_BIG, other), f(_BIG, other)), ((other, _BIG), f(other, _BIG))):
            tensors = tuple(map(tj.constant, given))
            assert f(*tensors).tolist() == wanted.tolist() and compiled(*tensors).tolist() == wanted.tolist()


def test_pow_with_a_modulus_says_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"takes no modulus; write t \*\* n % m"):
        pow(tj.constant(2), 2, 5)
    assert int(pow(tj.constant(2), 3)) == 8


@pytest.mark.parametrize("f, values", [
    (lambda a, n: tj.zeros(n) + a[:n].sum(), (4, 5, 4)), (lambda a, n: a.reshape(n, -1), (3, 2, 3)),
    (lambda a, n: a.reshape(2, 3).sum(axis=n), (0, 1, 0)), (lambda a, n: [a, a * 2][n], (1, 0, 1)),
    (lambda a, n: tj.concat([a] * int(n * 2)), (1, 2, 1)),
])  # fmt: skip
def test_numpy_scalars_are_known_where_python_needs_them(f: Callable[..., Any], values: tuple[int, ...]) -> None:
    compiled, a = tj.function(f), tj.asarray(np.arange(6.0))
    for n in values:
        np.testing.assert_array_equal(compiled(a, np.int64(n)).numpy(), f(a, np.int64(n)).numpy())
    assert compiled.trace_count == 2  # one for each value
    scale = tj.function(lambda a, n: a * n if n > 3 else a)
    assert [float(scale(a, np.float32(k))[1]) for k in (1, 5, 7, 2)] == [1, 5, 7, 1] and scale.trace_count == 1
