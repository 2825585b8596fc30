"""What is done on the way out of traced code, `finally` and `with`, where an exception comes at run time; and `match`.

PYTEST_DONT_REWRITE: the asserts in here are under test themselves.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from alike import run, same, t

import tracejit as tj

LARGE, MANY = t(1.0, 200.0, 3.0), t(*[1.0] * 18, 200.0, 3.0)


# -- finally -----------------------------------------------------------------------------------------------------------
def in_a_loop(x):
    total = 0.0
    for v in x:
        try:
            if v > 100:
                raise RuntimeError("a")
            total = total + v
        finally:
            print("done")
    return total


def nested(x):
    total, count = 0.0, 0
    try:
        for v in x:
            try:
                if v > 100:
                    print("too large")
                    raise RuntimeError(f"a {v}")
                total = total + v
            finally:
                count += 1
                print("inner", count, total)
    finally:
        count = count + 1
        print("outer", count, total)
    return total, count


def by_assert(x):
    try:
        assert x.sum() < 100, f"too large {x.sum()}"
        assert x.sum() < 90
        print("fine")
    finally:
        print("final")
    return x + 1


def with_a_branch(x):
    try:
        if x.sum() > 100:
            raise RuntimeError("a")
        x = x * 2
    finally:
        if x.sum() > 203:
            print("large", x[0])
        else:
            print("small")
    return x


def other_error(x):
    try:
        try:
            if x.sum() > 100:
                raise RuntimeError("a")
        finally:
            if x.sum() > 203:
                raise KeyError("b")
            print("inner")
    finally:
        print("outer")
    return x


def with_handlers(x):
    try:
        if x.sum() > 100:
            raise RuntimeError("a")
    except KeyError:
        print("never")
    else:
        print("else")
        assert x.sum() > 0, "negative"
    finally:
        print("final")
    return x


def checked(x):
    if x.sum() > 100:
        raise RuntimeError("a")
    return x + 1


def noted(log, name):
    log.append(name)


def helpers(x):
    log: list[str] = []
    try:
        try:
            x = checked(x)
        finally:
            noted(log, "inner")
            print(log)
    finally:
        log.append("outer")
        print(log)
    print(log)
    return x


def in_while(x):
    k = 0
    while x.sum() < 90:
        try:
            x = x * 3
            k += 1
            if k > 3 and x.sum() > 100:
                raise ValueError(f"after {k}")
            if x.sum() > 80:
                break
        finally:
            print("turn", k)
    return x, k


PROGRAMS = (in_a_loop, nested, by_assert, with_a_branch, other_error, with_handlers, helpers, in_while)


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_finally_runs_before_an_error_leaves(f: Any) -> None:
    errors = [run(f, x)[2] for x in (LARGE, MANY, t(0.0, 0.5), t(0.0, 1.0))]
    assert any(errors) and not all(errors)
    same(f, LARGE, MANY, t(0.0, 0.5), t(0.0, 1.0), t(50.0, 51.0))
    if f is with_handlers:
        same(f, t(-1.0, -3.0))


def test_a_finally_that_jumps_is_refused() -> None:
    def returns(x):
        try:
            return checked(x)
        finally:
            return x  # noqa: B012

    def breaks(x):
        while True:
            try:
                x = checked(x)
            finally:
                break  # noqa: B012
        return x

    for f in (returns, breaks):
        with pytest.raises(tj.TracerError, match=r"RuntimeError is raised under .* finally .* leaves by return"):
            tj.function(f)(LARGE)

    def nothing_is_raised(x):
        try:
            x = x * 2 if x.sum() > 1 else x
        finally:
            return x + 1  # noqa: B012

    same(nothing_is_raised, LARGE, t(0.0, 0.0))


# -- with --------------------------------------------------------------------------------------------------------------
class Section:
    def __enter__(self):
        print("begin")
        return 2.0

    def __exit__(self, *_):
        print("end")


class Depth:
    now = 0

    def __enter__(self):
        self.now += 1
        return self

    def __exit__(self, *_):
        self.now -= 1


def test_with() -> None:
    """What a manager prints comes at each call; where an exception would miss it, that is refused."""

    def prints(x):
        with Section() as k:
            x = x * k if x.sum() > 100 else x
        return x

    same(prints, LARGE, t(0.0, 1.0), t(0.0, 2.0))

    def raises(x):
        with Section():
            return checked(x)

    def asserts(x):
        with Section():
            assert x.sum() < 100
        return x

    @contextlib.contextmanager
    def section():
        try:
            yield
        finally:
            print("end")

    def in_a_generator(x):
        with section():
            x = checked(x)
        return x

    with pytest.raises(tj.TracerError, match="inside a with statement whose section prints"):
        tj.function(in_a_generator)(t(0.0, 1.0))

    for f in (raises, asserts):
        compiled = tj.function(f)
        for x in (LARGE, t(0.0, 1.0)):
            _, text, error = run(compiled, x)
            assert isinstance(error, tj.TracerError) and "inside a with statement whose Section prints" in str(error)
            assert text == ""

    def silent(x):
        with Depth() as depth:
            x = checked(x) * depth.now
        return x + depth.now

    same(silent, LARGE, t(0.0, 1.0))

    def written_out(x):
        with contextlib.nullcontext():
            try:
                return checked(x)
            finally:
                print("end")

    same(written_out, LARGE, t(0.0, 1.0))


# -- match -------------------------------------------------------------------------------------------------------------
def test_match_on_plain_values() -> None:
    def f(n, x):
        match n:
            case 0:
                return x
            case 1 | 2 if x.sum() > 5:
                x = x * 2
            case 3:
                x = x * 10
            case -4 | True:
                print("here")
            case k:
                x = x * k
        with Depth():
            match n + 1:
                case 3:
                    return x - 1
                case _ if x.sum() > 30:
                    x = -x
        return x + 1

    numbers = (0, 1, 2, 3, -4, 5)
    for x in (t(1.0, 1.0), t(3.0, 4.0)):
        same(f, *((tj.constant(n), x) for n in numbers))
        same(f, *((n, x) for n in numbers))

    def on_objects(mode, x):
        match mode:
            case "a" | None:
                return x
            case "b":
                x = x + 1
            case [_, y]:
                x = x + y
        return x * 2

    same(on_objects, *((m, t(1.0)) for m in ("a", None, "b", "c", [1, 2.0])))


def test_range_of_step_one_divides_nothing() -> None:
    def f(n):
        total = 0
        for i in range(n):
            total += i
        for i in range(2, n):
            total += i
        return total

    assert "divide" not in str(same(f, tj.constant(5), tj.constant(0)).trace(tj.constant(5)))
