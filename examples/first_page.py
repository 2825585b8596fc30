"""The first page: what a newcomer types, and exactly what it prints.

`page()` is the page; `EXPECTED` is its output, compared line by line.
"""

from __future__ import annotations

import contextlib
import io

import numpy as np

import tracejit as tj

EXPECTED = """\
tj.Tensor([[4.]], shape=(1, 1), dtype=float32)
hello,[[4.]]
tj.Tensor(
[[1 2]
 [3 4]], shape=(2, 2), dtype=int32)
tj.Tensor([1. 4. 9.], shape=(3,), dtype=float32)
2.0 1 True
tj.Tensor(6.0, shape=(), dtype=float32)
[tj.Tensor(12.0, shape=(), dtype=float32), tj.Tensor(9.0, shape=(), dtype=float32)]
[(tj.Tensor(-24.0, shape=(), dtype=float32), <tj.Variable 'Variable:0' shape=() dtype=float32, numpy=2.0>)]
tj.Tensor([[2.]], shape=(1, 1), dtype=float32)
1 2 Fizz 4 Buzz Fizz 7 8 Fizz Buzz 11 Fizz 13 14 FizzBuzz
"""


def page() -> None:
    x = [[2.0]]
    m = tj.matmul(x, x)
    print(m)
    print("hello,{}".format(m))  # noqa: UP032

    a = tj.constant([[1, 2], [3, 4]])
    print(a)
    assert type(a.numpy()) is np.ndarray
    print(np.square(tj.constant([1.0, 2.0, 3.0])))  # NumPy's functions give tensors

    x = tj.constant([[2.0]])
    for row in x:
        assert row.shape == (1,) and len(x) == 1 and 2.0 in row and x[0, 0] == row[0] and f"{row[0]}" == "2.0"
    print(float(x[0, 0]), int(tj.constant(1)), bool(x[0, 0] > 1))

    def square(x):
        return x**2

    grad = tj.gradients_function(square)
    assert square(3.0) == 9.0
    print(grad(3.0))
    print(tj.gradients_function(lambda x, y: x * x * y)(3.0, 2.0))  # of several arguments: a list

    x = tj.Variable(2.0)

    def loss(y):
        return (y - x**2) ** 2

    print(tj.implicit_gradients(loss)(7.0))

    w = tj.Variable([[1.0]])
    with tj.GradientTape() as tape:
        loss = w * w
    print(tape.gradient(loss, w))

    counter = tj.constant(0)  # FizzBuzz: Python control flow over tensor values
    max_num = tj.convert_to_tensor(15)
    words = []
    for num in range(1, max_num.numpy() + 1):
        num = tj.constant(num)
        if num % 3 == 0 and num % 5 == 0:
            words.append("FizzBuzz")
        elif num % 3 == 0:
            words.append("Fizz")
        elif num % 5 == 0:
            words.append("Buzz")
        else:
            words.append(str(num.numpy()))
        counter += 1
    assert counter == 15
    print(*words)


def main() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        page()
    print(printed.getvalue(), end="")
    for got, expected in zip(printed.getvalue().splitlines(), EXPECTED.splitlines(), strict=True):
        assert got == expected, f"printed {got!r}, expected {expected!r}"


if __name__ == "__main__":
    main()
