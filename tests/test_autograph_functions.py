"""Python expressions, functions and effects on tensor values: decorated functions do what undecorated ones do.

PYTEST_DONT_REWRITE: the asserts in here are under test themselves.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import traceback
from typing import Any

import numpy as np
import pytest
from alike import run, same, t

import tracejit as tj


# -- expressions -------------------------------------------------------------------------------------------------------
def test_expressions() -> None:
    def f(x, y):
        a = x if x > y else y * 2
        b = not (x > 0 and y > 0)
        c = x < y < 10 or x == 4
        return a, b, c

    same(f, (t(1.0), t(2.0)), (t(3.0), t(2.0)), (t(-1.0), t(20.0)), (t(4.0), t(0.0)))


def test_python_operands_short_circuit() -> None:
    seen = []

    def note(value):
        seen.append(value)
        return value

    def f(x):
        a = note(0) or note(5) or note(7)
        b = note(1) and note(0) and note(9)
        return x + a + b

    same(f, t(1.0))
    assert seen == [0, 5, 1, 0] * 2


def test_and_protects_its_second_operand() -> None:
    def f(x, i):
        if i < 3 and x[i] > 0:
            return x[i]
        return x[0]

    same(f, (t(1.0, 2.0, 3.0), tj.constant(1)), (t(1.0, 2.0, 3.0), tj.constant(7)))


def test_values_of_and_or() -> None:
    def f(x, y):
        return x and y, x or y

    same(f, (t(0.0), t(3.0)), (t(2.0), t(3.0)))


def test_membership() -> None:
    def f(x):
        return x in (1, 2, 3), x not in [5, 6], 2 in x.reshape(1)

    same(f, tj.constant(2), tj.constant(5))


def test_chained_comparison_evaluates_once() -> None:
    seen = []

    def middle(x):
        seen.append(1)
        return x

    def f(x):
        return 0 < middle(x) < 10

    same(f, t(5.0), t(50.0))
    assert len(seen) == 3  # two eager runs, one trace


def test_walrus() -> None:
    def f(x):
        if (y := x * 2) > 3 and (z := y + 1) is not None:
            return y + z
        return y

    same(lambda x: (y := x + 1) * y, t(2.0))
    with pytest.raises(tj.TracerError, match="'z := "):
        tj.function(lambda x: (z := x + 1) * z if x > 0 else (z := x))(t(2.0))
    same(lambda x, flag: (z := x + 1) * z if flag else x, (t(2.0), True), (t(2.0), False))


def test_walrus_in_operands_that_may_not_run() -> None:
    def in_an_if(x):
        if x > 0 and (y := x * 2) > 3:
            return y
        else:
            y = x * 0
        return y + 1

    def in_an_elif(x):
        if x > 0 or (y := x * 2) < -3:
            return x
        elif (w := x + 1) > 0 and (v := w * 2) > 1:
            return v + w
        return y

    def both(x):
        if (x > 0 and (y := x * 2) > 3) or (y := x * 3) < -5:
            return y
        return x

    def in_a_loop(x):
        n = 0
        while n < 5 and (x := x * 2) < 40:
            n += 1
        return x, n

    def in_expressions(x):
        y = x * 0
        z = w if x > 0 and (w := x * 2) > 3 else x - 1
        r = x > 0 and (y := x * 2) > 3 and y < 10
        found = [x > 1 and (y := v * x) > 2 for v in (1.0, 2.0)]
        return y, z, r, found, (y := x + 1) if x > 0 else (y := x - 1), y

    def negated(x):
        y = 1.0
        if not (x > 0 and (y := x * 2) > 3):
            x = x + y
        return x, y

    for f in (in_an_if, in_an_elif, both, in_a_loop, in_expressions, negated):
        same(f, t(3.0), t(-3.0), t(1.0), t(-0.5), t(30.0))


def test_conversions() -> None:
    assert np.allclose(tj.function(lambda a: a * float(a.sum()) + 1)(tj.ones(3)), 4.0)
    assert np.allclose(tj.function(lambda a: a * a.sum().item() + 1)(tj.ones(3)), 4.0)

    def f(x):
        return int(x) * 2, float(x) / 2, bool(x), int(x) + 0.5, x.item() + 1

    same(f, t(3.7), t(-3.7), t(0.0), tj.constant(5))

    def g(x):
        return [int(v) for v in x]

    same(g, t(1.5, 2.5))


def test_conversion_of_python_numbers_needs_no_guard() -> None:
    compiled = tj.function(lambda x, lr: x * float(lr))
    for k in range(5):
        assert np.isclose(float(compiled(t(2.0), k / 3)), 2 * k / 3)
    assert compiled.trace_count == 1


def test_builtins() -> None:
    def f(x, y):
        return max(x, y), min(x, y, 3.0), abs(x), sum([x, y]), any([x > 0, y > 0]), all([x > 0, y > 0]), len([x])

    same(f, (t(1.0), t(-2.0)), (t(5.0), t(7.0)))

    def g(v):
        return sum(v), max(v), min(v), any(v > 2), all(v > 2)

    same(g, t(1.0, 2.0, 3.0), tj.arange(3, 33))


def test_comprehensions() -> None:
    def f(x):
        squares = [v * v if v > 0 else -v for v in x]
        table = {k: (v > 1 and v < 3) for k, v in enumerate(x)}
        return squares, table, sum(v for v in (x[0], x[1]))

    same(f, t(-1.0, 2.0, 5.0))


def test_comprehensions_with_conditions() -> None:
    def f(v):
        some = sum(a * b for a in v if a > 0 for b in v if b > a)
        known = sum(a for k, a in enumerate(v) if k != 1 and a > -100)
        return some, known, sum([a * 2 for a in v if a > 1.5], 10.0), sum(1 for a in v if a > 1.5)

    def g(v):
        few = len([a for a in v if a > 1.5])
        return few, any(a > 2.5 for a in v if a < 5), all(a > 1 for a in v if a > 0), v.sum() * few

    def extremes(v):
        return max(a for a in v if a < 2.5), min([abs(a) for a in v if a > 0 if a < 6])

    inputs = t(1.0, 2.0, 3.0), t(-1.0, -2.0, -3.0), t(0.5, -2.0, 7.0)
    for program in (f, g, extremes):
        assert same(program, *inputs).trace_count == 1
    slope = tj.function(tj.grad(lambda v: f(v)[0]))
    for v in inputs[::2]:
        np.testing.assert_allclose(slope(v).numpy(), tj.grad(lambda v: f(v)[0])(v).numpy(), rtol=1e-6)
    same(lambda v, sum=len: sum([a for a in v if a is not None]), inputs[0])
    for h in (lambda v: [a for a in v if a > 0], lambda v: {k: a for k, a in enumerate(v) if a > 0}):
        with pytest.raises(tj.TracerError, match=r"condition of a comprehension at .*test_autograph_functions.py:\d+"):
            tj.function(h)(inputs[0])


# -- functions ---------------------------------------------------------------------------------------------------------
def helper(x):
    if x > 0:
        return x
    return -x * 10


def test_called_functions_methods_lambdas_closures() -> None:
    class Model:
        scale = 2.0

        def __init__(self):
            self.__hidden = 3.0

        def step(self, x):
            if x > self.scale:
                return x * self.__hidden
            return helper(x)

        def __call__(self, x):
            return self.step(x) + (x if x > 1 else 0.5)

        @property
        def double(self):
            return self.scale * 2

    model = Model()
    offset = 5.0

    def f(x):
        def inner(y, k=offset):
            nonlocal_total = y
            if y > k:
                nonlocal_total = y + k
            return nonlocal_total

        pick = lambda z: z if z > 0 else z - 1
        return model(x) + inner(x) + pick(x) + Model.step(model, x) + functools.partial(inner, k=1.0)(x)

    assert same(f, t(3.0), t(1.5), t(-2.0), t(10.0)).trace_count == 1


def test_super_and_class_cell() -> None:
    class A:
        def f(self, x):
            return x + 1

    class B(A):
        def f(self, x):
            if x > 0:
                return super().f(x) * 2
            for _ in range(2):
                x = super().f(x)
            return x, __class__.__name__

    class C(A):
        def f(self, x):
            if x > 0:
                x = super().f(x) * 2
            return x if x < 3 else super().f(x)

    assert float(tj.function(C().f)(t(2.0))) == float(C().f(t(2.0)))
    assert float(tj.function(C().f)(t(-2.0))) == float(C().f(t(-2.0)))
    with pytest.raises(tj.TracerError):
        tj.function(B().f)(t(2.0))


def test_decorators_and_wrappers() -> None:
    def doubled(f):
        @functools.wraps(f)
        def wrapper(x):
            if x > 100:
                return x
            return 2 * f(x)

        return wrapper

    @doubled
    def f(x):
        if x > 0:
            return x + 1
        return x

    same(f, t(1.0), t(-1.0), t(200.0))


def test_nonlocal_global_and_defaults() -> None:
    def f(x):
        count = 0
        total = x

        def bump(by=1):
            nonlocal count, total
            count += by
            if total > 3:
                total = total - 1
            else:
                total = total * 2
            return total

        for _ in range(3):
            bump()
        bump(by=2)
        return total, count

    same(f, t(1.0), t(10.0))


def test_recursion_on_python_numbers() -> None:
    def power(x, n):
        if n == 0:
            return x * 0 + 1
        half = power(x, n // 2)
        return half * half * x if n % 2 else half * half

    same(power, (t(3.0), 5))


def test_functions_in_functions() -> None:
    def f(x):
        ys = list(map(helper, [x, -x]))
        return sum(ys), tj.cond(x > 0, helper, lambda v: helper(v) + 1, x)

    same(f, t(2.0), t(-2.0))


def test_generators_inside() -> None:
    def f(x):
        def g():
            yield x
            yield x * 2

        return sum(v for v in g())

    same(f, t(2.0))


def test_try_with_match() -> None:
    class Guard:
        def __enter__(self):
            return 3.0

        def __exit__(self, *_):
            return False

    def f(x, mode):
        log = []
        try:
            with Guard() as k:
                if x > 0:
                    return x * k
                x = x - k
            x = x * 10
        finally:
            log.append("done")
        match mode:
            case "a":
                if x < -100:
                    return x * 0
                x = x + 1
            case _:
                x = x + 2
        try:
            raise KeyError("k")
        except KeyError as e:
            x = x + len(e.args)
        return x

    same(f, (t(1.0), "a"), (t(-1.0), "a"), (t(-50.0), "a"), (t(-1.0), "b"))


def fails(x):
    if x.sum() > 3:
        raise ValueError("large")
    return x * 2


def test_what_a_handler_would_catch_at_run_time_is_refused() -> None:
    """Silence would be wrong: whichever way the exception comes about, and whatever the handler catches."""

    def by_lookup(x):
        try:
            if x.sum() > 3:
                return x * 2
            return x * {}["k"]
        except KeyError:
            return x * 3

    def by_everything(x):
        try:
            if x.sum() > 3:
                raise ValueError("large")
            return x
        except Exception:
            return -x

    def in_a_helper(x):
        try:
            return fails(x)
        except ValueError:
            return -x

    def by_a_shape(x):
        try:
            return x.reshape(7) if x.sum() > 3 else x
        except ValueError:
            return -x

    def by_suppress(x):
        with contextlib.suppress(ValueError):
            x = fails(x)
        return x

    def by_assert(x):
        try:
            assert x.sum() < 3
        except (KeyError, AssertionError):
            return -x
        return x

    for f in (by_lookup, by_everything, in_a_helper, by_a_shape, by_suppress, by_assert):
        with pytest.raises(tj.TracerError, match=r"Error is raised under the condition at .*functions.py:\d+"):
            tj.function(f)(t(1.0, 2.0))

    def swallows(x):
        try:
            y = np.asarray(x)  # fails only while tracing
        except TypeError:
            return x * 100
        return x + y

    with pytest.raises(tj.TracerError, match="conversion to a NumPy array"):
        tj.function(swallows)(t(1.0, 2.0))

    def asks_for_it(x):
        try:
            return x + np.asarray(x).sum()
        except tj.TracerError:
            return x * 100

    assert tj.function(asks_for_it)(t(1.0, 2.0)).tolist() == [100, 200]


def test_what_no_handler_would_catch_is_raised() -> None:
    def f(x):
        try:
            assert x.sum() < 50, "far too large"
            with contextlib.suppress(IndexError):
                return fails(x)
        except (KeyError, TypeError):
            return -x

    same(f, t(1.0, 1.0), t(2.0, 3.0), t(70.0, 3.0))


def test_exceptions_of_plain_python_are_caught() -> None:
    def f(x):
        for k in range(3):
            try:
                if k == 1:
                    raise StopIteration
                x = x * {0: 2.0}[k] if x.sum() > 3 else x * {0: 2.0}[0]
            except StopIteration:
                continue
            except (KeyError, ValueError) as error:
                x = x + len(error.args)
            else:
                x = x - 1
            finally:
                x = x * 1.5
            if x.sum() > 100:
                break
        return x

    with pytest.raises(tj.TracerError, match="KeyError is raised under"):
        tj.function(f)(t(1.0, 2.0))

    def g(x):
        for k in range(3):
            try:
                x = x * {0: 2.0}[k]
                if k == 0:
                    raise StopIteration
            except StopIteration:
                continue
            except (KeyError, ValueError) as error:
                x = x + len(error.args)
            else:
                x = x - 1
            finally:
                x = x * 1.5
            if x.sum() > 100:
                break
        return x

    same(g, t(1.0, 2.0), t(60.0, 70.0))

    def h(x):
        with contextlib.suppress(KeyError):
            x = x * {}["k"]
        return x * 2 if x.sum() > 3 else x

    same(h, t(1.0, 2.0), t(60.0, 70.0))


def test_del_and_exception_names() -> None:
    def f(x):
        y = x + 1
        if x > 0:
            z = y
            x = z * 2
            del z
        del y
        return x

    same(f, t(1.0), t(-1.0))


def test_class_inside() -> None:
    def f(x):
        class P:
            factor = 2 if x.ndim == 0 else 3

            def scaled(self, v):
                return v * self.factor if v > 0 else v

        return P().scaled(x)

    same(f, t(1.0), t(-1.0))


def test_decorated_calls_decorated() -> None:
    inner = tj.function(helper)

    def f(x):
        return inner(x) + 1

    same(f, t(1.0), t(-1.0))


# -- effects -----------------------------------------------------------------------------------------------------------
def fizzbuzz(max_num):
    counter = tj.constant(0)
    max_num = tj.convert_to_tensor(max_num)
    for num in range(1, max_num.numpy() + 1):
        num = tj.constant(num)
        if int(num % 3) == 0 and int(num % 5) == 0:
            print("FizzBuzz")
        elif int(num % 3) == 0:
            print("Fizz")
        elif int(num % 5) == 0:
            print("Buzz")
        else:
            print(num.numpy())
        counter += 1
    return counter


def test_fizzbuzz() -> None:
    compiled = same(fizzbuzz, tj.constant(15), tj.constant(31), tj.constant(0))
    assert compiled.trace_count == 1
    _, text, _ = run(compiled, tj.constant(15))
    assert text.split() == "1 2 Fizz 4 Buzz Fizz 7 8 Fizz Buzz 11 Fizz 13 14 FizzBuzz".split()


def test_prints_in_order_each_call() -> None:
    def f(x):
        print("start", x, f"{x:.2f}", [x, 1])
        if x > 0:
            print("positive")
        else:
            print("not", x)
        while x < 3:
            print("x is", x)
            x = x + 1
        print(float(x), x.item(), sep="|", end="!\n")
        return x

    assert same(f, t(1.0), t(-1.0), t(1.0), t(5.0)).trace_count == 1


def test_asserts() -> None:
    def f(v):
        assert (v > 0).all(), "need positive"
        return tj.log(v)

    same(f, t(1.0, 2.0), t(-1.0, 2.0))

    def g(v):
        assert v.sum() < 100
        for x in v:
            assert x < 50, f"{x} is too large"
        assert v.ndim == 1, "never"
        return 3

    same(g, t(1.0, 2.0), t(60.0, 2.0), t(99.0, 2.0))

    def unused(v):
        y = v * 2
        assert y < 10
        if v > 0:
            assert v != 3, "three"

    same(unused, t(1.0), t(3.0), t(6.0), t(-3.0))


def test_python_asserts() -> None:
    def f(x, n):
        assert n, "n is needed"
        return x

    same(f, (t(1.0), True), (t(1.0), False))


def test_raise_in_branches() -> None:
    def f(x):
        if (x < 0).any():
            raise ValueError("negative values")
        y = tj.sqrt(x)
        if y.sum() > 100:
            raise RuntimeError(f"too large: {y.sum()}")
        return y

    assert same(f, t(1.0, 4.0), t(-1.0, 4.0), t(1.0, 1e6)).trace_count == 1

    def g(x):
        while True:
            if x > 100:
                raise StopIteration
            if x < 0:
                return x
            x = x * 3 - 20

    same(g, t(1.0), t(30.0))


def test_errors_of_a_branch_come_if_it_is_taken() -> None:
    table = {"a": 2.0}

    def missing_key(x):
        if x.sum() > 0:
            return x * table["a"]
        return x * table["b"]

    def wrong_shape(x):
        if x.sum() > 0:
            return x
        y = x * 2
        return y @ tj.ones(7)

    def operand(x):
        if x.sum() < 0 and [1, 2][5]:
            return x
        return -x

    def in_a_loop(x):
        n = 0
        while x.sum() < 0:
            x = x + [1, 2, 3][n + 5]
        return x, n

    def raised_in_a_loop(x):
        total = x.sum()
        for v in x:
            while v < 0:
                raise ValueError(f"negative: {v}")
            total = total + v
        return total

    for f in (missing_key, wrong_shape, operand, in_a_loop, raised_in_a_loop):
        assert same(f, t(1.0, 2.0), t(-1.0, -2.0), t(3.0, 2.0)).trace_count == 1


# -- source ------------------------------------------------------------------------------------------------------------
def test_without_source() -> None:
    space: dict[str, Any] = {}
    exec("def plain(a):\n    return a * 2\ndef f(a):\n    return a * 2 if a.sum() > 0 else a", space)
    assert float(tj.function(space["plain"])(t(1.0))) == 2
    with pytest.raises(tj.TracerError, match=r"source is not available.*exec"):
        tj.function(space["f"])(t(1.0))
    exec("def g(a, n):\n    return a * 2 if n > 0 else a", space)
    assert float(tj.function(space["g"])(t(1.0), 3)) == 2


def test_lambdas_on_one_line() -> None:
    pair = (lambda x: x if x > 0 else -x), (lambda x: x * 2 if x > 0 else x * 3)
    for f in pair:
        same(f, t(2.0), t(-2.0))


def test_autograph_off() -> None:
    @functools.partial(tj.function, autograph=False)
    def f(x):
        return x if x > 0 else -x

    with pytest.raises(tj.TracerError):
        f(t(1.0))


def test_tracebacks_show_the_users_lines() -> None:
    def f(x):
        if x > 0:
            x = x + 1
            x = tj.ones(3) @ tj.ones(4)  # the line
        return x

    with pytest.raises(ValueError) as info:
        tj.function(f)(t(1.0))
    lines = inspect.getsourcelines(f)
    wanted = lines[1] + next(k for k, line in enumerate(lines[0]) if "# the line" in line)
    frames = [frame for frame in traceback.extract_tb(info.value.__traceback__) if frame.filename == __file__]
    assert frames[-1].lineno == wanted and frames[-1].name == "f"


def test_locals_and_eval_are_left_alone() -> None:
    def f(x):
        y = x + 1
        if sorted(locals()) == ["x", "y"]:
            return eval("x + y")
        return x

    same(f, t(2.0))


def test_signature_and_names_stay() -> None:
    @tj.function
    def f(x, *, k: int = 2, **more):
        """Doc."""
        return x * k if x > 0 else x

    assert f.__doc__ == "Doc." and f.__name__ == "f"
    assert float(f(t(2.0), k=3)) == 6 and float(f(t(-2.0))) == -2


# -- gradients ---------------------------------------------------------------------------------------------------------
def test_gradients() -> None:
    def f(x):
        y = x * x
        if y.sum() > 4:
            y = y * x
        for row in x:
            if row > 1:
                y = y + row
        return y.sum()

    for values in ((1.0, 2.0), (0.5, 0.25), (3.0, -1.0)):
        x = t(*values)
        expected = tj.grad(f)(x)
        np.testing.assert_allclose(tj.grad(tj.function(f))(x).numpy(), expected.numpy(), rtol=1e-6)
        np.testing.assert_allclose(tj.function(tj.grad(f))(x).numpy(), expected.numpy(), rtol=1e-6)


def test_gradient_of_loops() -> None:
    def f(x):
        total = 0.0
        for v in x:
            total = total * 0.9 + tj.sin(v) * v
        n = 0
        while total < 50:
            total = total * 1.5 + 1
            n += 1
        return total

    x = tj.constant(np.linspace(0.1, 2, 30))
    expected = tj.grad(f)(x)
    np.testing.assert_allclose(tj.grad(tj.function(f))(x).numpy(), expected.numpy(), rtol=1e-6)


def test_math_is_untouched() -> None:
    same(lambda x: x * math.sqrt(4.0), t(2.0))


def test_long_chains_of_conditions_are_traced_in_linear_time() -> None:
    calls = [0]

    def above(a: Any, k: int) -> Any:
        calls[0] += 1
        return a[k] > k

    f = tj.function(lambda a: above(a, 0) or above(a, 1) or above(a, 2) or above(a, 3) or above(a, 4) or above(a, 5))
    g = tj.function(lambda a: above(a, 0) and above(a, 1) and above(a, 2) and above(a, 3) and above(a, 4))
    f.trace(np.zeros(6))
    g.trace(np.zeros(6))
    assert calls[0] <= 2 * 11
    for x in (np.zeros(6), np.arange(6) + 1.0, np.array([0.0, 0, 0, 0, 0, 9])):
        assert bool(f(x)) == bool((x > np.arange(6)).any()) and bool(g(x)) == bool((x > np.arange(6))[:5].all())
