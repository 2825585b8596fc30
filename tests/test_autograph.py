"""Python statements on tensor values: decorated functions do what undecorated ones do.

PYTEST_DONT_REWRITE: the asserts in here are under test themselves.
"""

from __future__ import annotations

import numpy as np
import pytest
from alike import same, t

import tracejit as tj


# -- if ----------------------------------------------------------------------------------------------------------------
def test_early_return() -> None:
    def f(a):
        if a.sum() > 0:
            return a
        return -2 * a

    compiled = same(f, t(-1.0, -2.0), t(1.0, 2.0))
    assert compiled.trace_count == 1


def test_if_elif_else() -> None:
    def f(x):
        y = x
        if x < 0:
            y = -x
            z = 1.0
        elif x > 10:
            y, z = x / 2, 2.0
        else:
            z = 3.0
        return y + z, z

    assert same(f, t(-3.0), t(30.0), t(5.0)).trace_count == 1


def test_nested_returns() -> None:
    def f(x):
        if x > 0:
            if x > 10:
                return x * 100
            x = x + 1
            if x > 5:
                return x * 10
        x = x - 1
        if x < -5:
            return -x
        return x

    assert same(f, *map(t, (20.0, 7.0, 2.0, -1.0, -9.0))).trace_count == 1


def test_return_in_every_branch() -> None:
    def f(x):
        if x > 1:
            return "big", x
        elif x > 0:
            return "big", x * 2
        else:
            return "big", -x

    same(f, t(2.0), t(0.5), t(-1.0))


def test_if_without_else_and_pytrees() -> None:
    def f(x):
        d = {"a": x, "b": [x, 1]}
        if x.sum() > 0:
            d = {"a": x * 2, "b": [x + 1, 1]}
        return d

    same(f, t(1.0, 2.0), t(-1.0, -2.0))


def test_plain_python_keeps_its_meaning() -> None:
    calls = []

    def f(x, flag, items, name=None):
        if flag and items:
            calls.append(1)
            x = x + len(items)
        if name is None and not items:
            x = x * 3
        for k in items:
            if k == 2:
                continue
            if k == 5:
                break
            x = x + k
        else:
            x = -x
        while flag:
            flag = False
        return x if name is None else (x, name)

    same(f, (t(1.0), True, (1, 2, 3)), (t(1.0), False, ()), (t(1.0), True, (1, 5, 7)), (t(1.0), True, (1,), "n"))


def test_python_numbers_are_specialised() -> None:
    def f(x, n):
        if n > 2:
            return x * n
        return x

    compiled = same(f, (t(1.0), 3), (t(1.0), 1))
    assert compiled.trace_count == 2


def test_attributes_items_and_lists_in_branches() -> None:
    class Box:
        pass

    def f(x):
        box, d, items = Box(), {"k": x}, [x, x]
        box.value = x
        if x > 0:
            box.value = x * 2
            d["k"] = x + 1
            d["new"] = 1
            items[0] = x * 7
        else:
            d["new"] = 1
            items.append(x)
            items.pop()
        return box.value, d, items

    same(f, t(2.0), t(-2.0))


def test_writes_in_branches() -> None:
    def f(x, y):
        if x.sum() > 0:
            x[0] = 10.0
            y += 1
        else:
            y *= 2
        return x + y

    for sign in (1.0, -1.0):
        pairs = [(t(sign, 2.0), t(3.0, 4.0)) for _ in range(2)]
        expected, got = f(*pairs[0]), tj.function(f)(*pairs[1])
        np.testing.assert_allclose(got.numpy(), expected.numpy())
        for a, b in zip(*pairs, strict=True):
            np.testing.assert_allclose(b.numpy(), a.numpy())


def test_variables_in_branches_and_loops() -> None:
    for x in (3.0, -3.0):
        results = []
        for wrap in (lambda f: f, tj.function):
            v = tj.Variable(1.0)

            def f(x, v=v):
                if x > 0:
                    v.assign_add(x)
                else:
                    v.assign(x * 10)
                k = 0
                while k < x:
                    v.assign_add(1.0)
                    k += 1
                return v * 2

            g = wrap(f)
            results.append((float(g(t(x))), float(g(t(x))), float(v)))
        assert results[0] == results[1]


def test_undefined_in_one_branch() -> None:
    @tj.function
    def unused(x):
        if x > 0:
            y = x  # noqa: F841
        return x * 2

    assert float(unused(t(3.0))) == 6

    @tj.function
    def used(x):
        if x > 0:
            y = x
        return y + 1

    with pytest.raises(tj.TracerError, match=r"'y' .*only one branch of the if at .*test_autograph.py:\d+"):
        used(t(3.0))

    @tj.function
    def given_back(x):
        if x > 0:
            y = x
        return [y]

    with pytest.raises(tj.TracerError, match="'y'"):
        given_back(t(3.0))


def test_branches_that_do_not_match() -> None:
    @tj.function
    def shapes(x):
        y = x
        if x.sum() > 0:
            y = x.sum()
        return y

    with pytest.raises(tj.TracerError, match=r"'y'.*f32\[\].*f32\[2\]"):
        shapes(t(1.0, 2.0))

    @tj.function
    def nothing(x):
        if x > 0:
            return x

    with pytest.raises(tj.TracerError, match="nothing"):
        nothing(t(1.0))


def test_truth_of_many() -> None:
    def f(x):
        if x > 0:
            return x
        return -x

    with pytest.raises(ValueError, match="ambiguous"):
        tj.function(f)(t(1.0, 2.0))


# -- while -------------------------------------------------------------------------------------------------------------
def test_while() -> None:
    def f(v):
        s = v * 2
        while v < 100.0:
            v = v * 2.0
        return v + s

    assert same(f, t(3.0), t(200.0)).trace_count == 1
    assert float(tj.grad(tj.function(f))(t(3.0))) == 66.0
    assert float(tj.function(tj.grad(f))(t(3.0))) == 66.0


def test_while_counts_in_python_numbers() -> None:
    def collatz(n):
        steps = 0
        while n != 1:
            if n % 2 == 0:
                n = n // 2
            else:
                n = 3 * n + 1
            steps += 1
        return steps

    assert same(collatz, tj.constant(27)).trace_count == 1


def test_while_break_continue_else() -> None:
    def f(x):
        k = 0
        total = x * 0
        while x < 1000:
            k += 1
            if k % 3 == 0:
                x = x + 1
                continue
            x = x * 2
            total = total + x
            if total > 500:
                break
        else:
            total = -total
        return x, total, k

    assert same(f, t(1.0), t(400.0), t(5000.0)).trace_count == 1


def test_while_true_with_return() -> None:
    def f(x):
        n = 0
        while True:
            if x > 100:
                return x, n
            x = x * 3
            n += 1

    same(f, t(1.0), t(500.0))


def test_nested_whiles() -> None:
    def f(x):
        total = 0.0
        while x > 1:
            y = x
            while y > 1:
                y = y / 2
                total = total + y
            x = x / 3
        return total

    same(f, t(50.0), t(0.5))


def test_while_dtypes_grow() -> None:
    def f(x):
        s = 0
        k = 0
        while k < x.sum():
            s = s + x[0]
            k += 1
        return s

    same(f, t(1.5, 2.0))


def test_while_with_python_condition_is_unrolled() -> None:
    def f(x):
        n = 5
        while n > 0:
            x = x + n
            n -= 1
        return x

    same(f, t(1.0))
    assert "while" not in str(tj.function(f).trace(t(1.0)))


def test_while_shape_change_names_the_variable() -> None:
    @tj.function
    def f(x):
        acc = x
        while acc.sum() < 10:
            acc = tj.concat([acc, x])
        return acc

    with pytest.raises(tj.TracerError, match=r"'acc'.*test_autograph.py:\d+"):
        f(t(1.0, 2.0))


def test_loop_variable_used_outside() -> None:
    @tj.function
    def f(x):
        while x < 10:
            y = x * 2
            x = y
        return y

    with pytest.raises(tj.TracerError, match=r"'y'.*inside the loop"):
        f(t(1.0))


def test_written_in_place_and_rebound() -> None:
    def f(x):
        y = x + 0
        while y.sum() < 100:
            y += 1
            y = y * 2
        return y

    same(f, t(1.0, 2.0))

    @tj.function
    def g(x):
        while x.sum() < 100:
            x += 1
            x = x * 2
        return x

    with pytest.raises(tj.TracerError, match="'x' is a tensor from outside"):
        g(t(1.0, 2.0))


def test_test_with_effects() -> None:
    def f(x):
        n = 0
        while (y := x * 2) < 50:
            print("y", y)
            x = y + 1
            n += 1
        return x, y, n

    same(f, t(1.0), t(100.0))


# -- for ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rows", [0, 3, 40])
def test_rows(rows: int) -> None:
    def f(v):
        total = tj.zeros(2)
        count = 0
        for row in v:
            total = total + row * 2
            count += 1
        return total, count

    same(f, tj.ones((rows, 2)))


def test_append_in_loops() -> None:
    def f(v):
        out = []
        for x in v:
            out.append(x * 2)
        return tj.stack(out)

    same(f, t(0.5, 1.5), tj.arange(40))

    @tj.function
    def unknown(n):
        out = []
        for i in range(n):
            out.append(i)
        return out

    with pytest.raises(tj.TracerError, match=r"'out'.*test_autograph.py:\d+"):
        unknown(tj.constant(3))


def test_ranges() -> None:
    def f(n):
        total = 0
        for i in range(n):
            total += i * i
        for i in range(2, n, 3):
            total -= i
        for i in range(n, 0, -2):
            total = total * 2 + i
        return total

    assert same(f, tj.constant(10), tj.constant(0), tj.constant(1)).trace_count == 1

    def g(n):
        total = tj.constant(0)
        for i in tj.range(n):
            total = total + i
        return total

    same(g, tj.constant(10), tj.constant(0))


def test_for_break_continue_else_return() -> None:
    def f(v, limit):
        total = 0.0
        for k, x in enumerate(v):
            if x < 0:
                continue
            total = total + x * k
            if total > limit:
                break
            if x == 77:
                return total * 0 - 1
        else:
            total = total + 1000
        return total

    values = np.arange(40.0)
    for rows in (values[:5], values, -values, np.r_[77.0, values]):
        same(f, (tj.constant(rows), t(3.0)), (tj.constant(rows), t(1e9)))


def test_break_in_python_range() -> None:
    def f(x):
        for i in range(10):
            if x > 3:
                break
            x = x * 2 + i
        return x

    same(f, t(0.01), t(5.0), t(1.0))

    def long(x):
        for i in range(1000):
            if x > 3000:
                return x * 0 + i
            x = x * 2 + i
        return x

    same(long, t(0.01), t(5000.0), t(1.0))

    def over_list(x):
        for name in ["a", "b", "c", "d"]:
            if x > 10:
                break
            x = x * len(name) + 5
        else:
            x = -x
        return x

    same(over_list, t(0.0), t(11.0), t(-100.0))


def test_zip_enumerate_nested() -> None:
    def f(a, b):
        s = 0.0
        for i, (x, y) in enumerate(zip(a, b)):
            for z in (x, y):
                if z > i:
                    s = s + z
        return s

    same(
        f,
        (t(1.0, 5.0, 0.0), t(2.0, 0.0, 9.0)),
        (tj.constant(np.arange(30.0)), tj.constant(np.arange(30.0)[::-1].copy())),
    )


def test_negative_steps_and_lengths() -> None:
    def f(n):
        last = -1
        for i in range(5, n, -1):
            last = i
        return last, len(range(n))

    same(f, tj.constant(2), tj.constant(9))
