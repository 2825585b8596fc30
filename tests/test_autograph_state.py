"""Python state changed under traced control flow: by helpers, by closures, under two names."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
from alike import same, t

import tracejit as tj


@dataclasses.dataclass
class Account:
    total: Any = 0.0
    count: int = 0

    def __post_init__(self) -> None:
        self.log: list[Any] = []
        self.by_name = {"last": self.total}

    def add(self, amount: Any) -> None:
        self.total = self.total + amount
        self.count += 1
        self.by_name["last"] = amount

    def note(self, x: Any) -> None:
        self.log.append(x)


def put(container: Any, value: Any) -> None:
    container["sum"] = container["sum"] + value


def double_all(values: list[Any]) -> None:
    for k in range(len(values)):
        values[k] = values[k] * 2


# -- what helpers change -----------------------------------------------------------------------------------------------
def test_methods_change_attributes_in_a_branch() -> None:
    def f(x):
        a = Account(x)
        if x > 0:
            a.add(x * 2)
        return a.total, a.count, a.by_name["last"]

    same(f, t(3.0), t(-3.0))


def test_methods_change_attributes_in_a_loop() -> None:
    def f(x):
        a = Account(x)
        while a.total < 10:
            a.add(x)
        return a.total, a.count, a.by_name["last"]

    same(f, t(3.0), t(30.0), t(1.5))


def test_methods_change_slots() -> None:
    class Cell:
        __slots__ = ("value",)

        def bump(self) -> None:
            self.value = self.value + 1

    def f(x):
        c = Cell()
        c.value = x * 1
        if x > 0:
            c.bump()
        while c.value < 5:
            c.bump()
        return c.value

    same(f, t(3.0), t(-3.0), t(9.0))


def test_classes_and_functions_as_state() -> None:
    def f(x):
        class Count:
            n = 0

            @classmethod
            def inc(cls) -> None:
                cls.n += 1

        def g(v):
            g.calls += 1
            return v

        g.calls = 0
        if x > 0:
            Count.inc()
            g(x)
        while x < 10:
            Count().inc()
            x = g(x + 4)
        return Count.n, g.calls

    same(f, t(3.0), t(-3.0), t(11.0))


def test_lists_and_objects_inside_containers() -> None:
    def f(x):
        grid, accounts = [[x * 1, x * 2], [x * 3, x * 4]], {"a": Account(x), "b": (Account(x), x)}
        row = grid[1]

        def swapped(grid):
            grid[0][1], grid[1][0] = grid[1][0], grid[0][1]

        if x > 0:
            grid[1][0] = grid[0][1] * 10
            accounts["a"].add(x)
        if x > 1:
            swapped(grid)
            accounts["b"][0].add(x)
        while x < 20:
            grid[0][0] = grid[0][0] + 1
            accounts["a"].add(x)
            x = x * 2 + 5
        row[1] = row[1] * 2
        return grid, accounts["a"].total, accounts["a"].count, accounts["b"][0].count

    same(f, t(3.0), t(-3.0), t(0.5), t(30.0))


def test_functions_change_containers_that_they_get() -> None:
    def f(x):
        d, items, line = {"sum": x}, [x, x + 1], collections.deque([x])
        i = x
        while i < 10:
            put(d, i)
            double_all(items)
            line.appendleft(line.pop() + 1)
            i = i + x
        if i > 11:
            put(d, i)
            double_all(items)
        return d["sum"], items, list(line)

    same(f, t(3.0), t(2.0), t(30.0))


def test_closures_change_what_they_close_over() -> None:
    def f(x):
        n = [0]
        calls = 0

        def count():
            nonlocal calls
            n[0] += 1
            calls += 2

        while x < 100:
            x = x * 2
            count()
        if x > 150:
            count()
        return x, n[0], calls

    same(f, t(3.0), t(200.0), t(1.0), t(120.0))


def test_nested_statements_and_helpers_of_helpers() -> None:
    def inner(a, x):
        if x > 2:
            a.add(x)

    def outer(a, x):
        inner(a, x + 1)
        inner(a, x)

    def f(x):
        a = Account(x)
        while a.total < 20:
            if x > 0:
                outer(a, x)
            a.total = a.total + 1
        return a.total, a.count

    same(f, t(1.5), t(-3.0), t(4.0))


def test_a_nonlocal_variable_outlives_the_function_that_returns() -> None:
    def f(x):
        n = x

        def g(x):
            nonlocal n
            if x > 0:
                n = n + 1.0
                return 1.0
            else:
                n = n + 2.0
                return 2.0

        return g(x) + g(x - 4) + n

    same(f, t(3.0), t(-3.0), t(5.0))


def test_a_list_that_grows_in_a_helper_is_named() -> None:
    @tj.function
    def loop(x):
        found: list[Any] = []
        account = Account()
        while x < 10:
            account.note(x)
            x = x + 1
        return x, found

    with pytest.raises(tj.TracerError, match=r"'account.log' is a list of 0 before .* list of 1 after it .*tj.scan"):
        loop(t(1.0))

    @tj.function
    def branch(x):
        account = Account()
        if x > 0:
            account.note(x)
        return len(account.log)

    with pytest.raises(tj.TracerError, match=r"'account.log' .* a list of 1 in one branch .* a list of 0 in the other"):
        branch(t(1.0))


def test_a_layer_may_make_its_variables_in_a_branch() -> None:
    class Scale:
        w: Any = None

        def __call__(self, x):
            if self.w is None:
                self.w = tj.Variable(2.0)
                self.shape = x.shape
            return x * self.w

    layer = Scale()

    @tj.function
    def f(x):
        y = x
        if x > 0:
            y = layer(x)
        return y

    assert float(f(t(3.0))) == 6 and float(f(t(-3.0))) == -3 and layer.shape == ()


# -- one tensor under two names ----------------------------------------------------------------------------------------
def test_variables_that_start_as_one_tensor() -> None:
    def f(x):
        a = b = x
        d = {"k": x, "other": x}
        while a < 20:
            a = a + 1
            b = b * 2
            d["k"] = d["k"] + a
        return a, b, d

    same(f, t(3.0), t(19.0), t(25.0))


def test_a_tensor_written_under_two_names_stays_one() -> None:
    def f(x):
        a = b = x * 1
        while a < 20:
            a += 1
        return a, b

    same(f, t(3.0), t(25.0))


def test_a_tensor_written_in_place_and_rebound_is_refused() -> None:
    @tj.function
    def f(x):
        a = b = x * 1
        while a < 20:
            a += 1
            b = b * 2
        return a, b

    with pytest.raises(tj.TracerError, match=r"'a' and 'b' are one tensor before a turn .* two after it"):
        f(t(3.0))

    @tj.function
    def g(x):
        a, b = x * 1, x * 2
        total = x * 0
        while b < 20:
            b += 1
            total = total + a
            a = b
        return total

    with pytest.raises(tj.TracerError, match=r"one tensor after a turn .* two before it"):
        g(t(3.0))


def test_the_value_before_a_write() -> None:
    def f(x):
        a, b = x * 1, x * 2
        while b < 20:
            b += 1
            a = b
        return a, b

    same(f, t(3.0), t(25.0))
