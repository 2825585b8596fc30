"""The first page of the documentation: it runs as written and prints what it says."""

from __future__ import annotations

import numpy as np
import pytest

import tracejit as tj


def test_matmul_and_printing(capsys: pytest.CaptureFixture[str]) -> None:
    x = [[2.]]
    m = tj.matmul(x, x)
    print(m)
    print("hello,{}".format(m))  # noqa: UP032
    a = tj.constant([[1, 2], [3, 4]])
    print(a)
    assert capsys.readouterr().out == ("tj.Tensor([[4.]], shape=(1, 1), dtype=float32)\n"
                                       "hello,[[4.]]\n"
                                       "tj.Tensor(\n[[1 2]\n [3 4]], shape=(2, 2), dtype=int32)\n")


def test_numpy_and_python() -> None:
    a = tj.constant([[1, 2], [3, 4]])
    assert type(a.numpy()) is np.ndarray
    squares = np.square(tj.constant([1., 2., 3.]))
    assert isinstance(squares, tj.Tensor) and squares.tolist() == [1, 4, 9]
    assert [row.tolist() for row in a] == [[1, 2], [3, 4]]
    assert isinstance(a[1, 0], tj.Tensor) and a[1, 0].item() == 3
    assert len(a) == 2 and bool(a[0, 0]) and int(a[0, 1]) == 2 and float(a[1, 1]) == 4.0 and 3 in a and 9 not in a
    assert (a == tj.constant([[1, 0], [3, 0]])).tolist() == [[True, False], [True, False]] and f"{a[0, 0]}" == "1"


def test_gradients_function() -> None:
    def square(x):
        return x ** 2

    grad = tj.gradients_function(square)
    assert square(3.) == 9.
    assert repr(grad(3.)) == "tj.Tensor(6.0, shape=(), dtype=float32)"
    both = tj.gradients_function(lambda x, y: x * x * y)(3., 2.)
    assert isinstance(both, list) and [g.item() for g in both] == [12, 9]


def test_implicit_gradients() -> None:
    x = tj.Variable(2.0)

    def loss(y):
        return (y - x ** 2) ** 2

    found = tj.implicit_gradients(loss)(7.)
    assert repr(found) == ("[(tj.Tensor(-24.0, shape=(), dtype=float32), "
                           "<tj.Variable 'Variable:0' shape=() dtype=float32, numpy=2.0>)]")


def test_gradient_tape() -> None:
    w = tj.Variable([[1.0]])
    with tj.GradientTape() as tape:
        loss = w * w
    assert repr(tape.gradient(loss, w)) == "tj.Tensor([[2.]], shape=(1, 1), dtype=float32)"


def test_fizzbuzz() -> None:
    """Python control flow over tensor values, eagerly."""
    def fizzbuzz(max_num: object) -> tuple[list[str], tj.Tensor]:
        counter, said = tj.constant(0), []
        max_num = tj.convert_to_tensor(max_num)
        for num in range(1, max_num.numpy() + 1):
            num = tj.constant(num)
            if int(num % 3) == 0 and int(num % 5) == 0:
                said.append("FizzBuzz")
            elif int(num % 3) == 0:
                said.append("Fizz")
            elif num % 5 == 0:
                said.append("Buzz")
            else:
                said.append(str(num.numpy()))
            counter += 1
        return said, counter

    said, counter = fizzbuzz(15)
    assert said == "1 2 Fizz 4 Buzz Fizz 7 8 Fizz Buzz 11 Fizz 13 14 FizzBuzz".split()
    assert counter.item() == 15
