"""Deliberately wrong programs, and what the user is told: kept as text in `golden_errors`.

Each program fails at the line marked `# here`; the traceback or the message must name it. Line numbers in the kept
texts count from the program's first line. `python tests/test_errors.py` writes the texts anew; read the difference.
"""

from __future__ import annotations

import difflib
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracejit as tj

GOLDEN = Path(__file__).parent / "golden_errors"
Program = Callable[[], Any]
PROGRAMS: dict[str, Program] = {}


def program(f: Program) -> Program:
    PROGRAMS[f.__name__] = f
    return f


# -- shapes and dtypes -------------------------------------------------------------------------------------------------
@program
def shapes_that_do_not_broadcast():
    @tj.function
    def f(x, y):
        z = x * 2
        return z + y  # here

    f(tj.ones((2, 3)), tj.ones((2, 4)))


@program
def matmul_of_wrong_sizes():
    @tj.function
    def layer(x, w):
        return x @ w  # here

    layer(tj.ones((8, 3)), tj.ones((4, 5)))


@program
def reshape_of_wrong_size():
    @tj.function
    def f(x):
        return x.reshape((4, -1))  # here

    f(tj.ones(10))


@program
def axis_out_of_range():
    @tj.function
    def f(x):
        return tj.sum(x, axis=2)  # here

    f(tj.ones((3, 4)))


@program
def einsum_of_wrong_sizes():
    @tj.function
    def f(x, y):
        return tj.einsum("ij,jk->ik", x, y)  # here

    f(tj.ones((2, 3)), tj.ones((4, 5)))


@program
def concat_of_wrong_shapes():
    @tj.function
    def f(x, y):
        return tj.concat([x, y], axis=0)  # here

    f(tj.ones((2, 3)), tj.ones((2, 4)))


@program
def dtype_that_does_not_exist():
    @tj.function
    def f(x):
        return x.astype("float31")  # here

    f(tj.ones(3))


@program
def bitwise_and_of_floats():
    @tj.function
    def f(x):
        return x & 1  # here

    f(tj.ones(3))


@program
def integer_that_does_not_fit():
    @tj.function
    def f(x):
        return x + tj.constant([2**40])  # here

    f(tj.constant([1]))


@program
def not_numbers():
    @tj.function
    def f(x):
        return x + tj.constant(["a", "b"])  # here

    f(tj.ones(2))


# -- values that are not known while tracing ---------------------------------------------------------------------------
@program
def truth_of_many_values():
    @tj.function
    def f(x):
        if x > 0:  # here
            return x
        return -x

    f(tj.constant([1.0, -1.0]))


@program
def numpy_of_a_traced_value():
    @tj.function
    def f(x):
        y = tj.exp(x)
        return np.asarray(y).mean()  # here

    f(tj.ones(3))


@program
def shape_from_a_traced_value():
    @tj.function
    def f(n):
        return tj.zeros(n)  # here

    f(tj.constant(3))


@program
def leaked_tracer():
    kept = []

    @tj.function
    def f(x):
        kept.append(x * 2)
        return x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f(tj.ones(3))
    return kept[0] + 1  # here


@program
def numpy_function_that_is_not_supported():
    @tj.function
    def f(x):
        return np.polyfit(x, x, 2)  # here

    f(tj.ones(3))


@program
def output_argument():
    @tj.function
    def f(x):
        return np.exp(x, out=np.zeros(3))  # here

    f(tj.ones(3))


# -- control flow ------------------------------------------------------------------------------------------------------
@program
def branches_of_different_shapes():
    @tj.function
    def f(x):
        return tj.cond(x.sum() > 0, lambda: x, lambda: x[:1])  # here

    f(tj.ones(3))


@program
def loop_that_changes_a_shape():
    @tj.function
    def f(x):
        return tj.while_loop(lambda y: y.sum() < 10, lambda y: tj.concat([y, y]), x)  # here

    f(tj.ones(3))


@program
def undefined_in_one_branch():
    @tj.function
    def f(x):
        if x.sum() > 0:
            y = x * 2
        return y + 1  # here

    f(tj.ones(3))


@program
def statement_whose_branches_do_not_match():
    @tj.function
    def f(x):
        y = x
        if x.sum() > 0:
            y = x[:1]
        return y + 1  # here

    f(tj.ones(3))


@program
def list_that_grows_in_a_loop():
    @tj.function
    def f(n):
        out = []
        for i in range(n):  # here
            out.append(i)
        return out

    f(tj.constant(3))


@program
def exception_that_a_handler_would_catch():
    @tj.function
    def f(x):
        try:
            if x.sum() < 0:  # here
                raise ValueError("negative")
        except ValueError:
            x = -x
        return x

    f(tj.ones(3))


@program
def exception_that_a_finally_would_drop():
    @tj.function
    def f(x):
        try:
            if x.sum() < 0:  # here
                raise ValueError("negative")
        finally:
            return x  # noqa: B012

    f(tj.ones(3))


@program
def exception_past_a_with_that_prints():
    class Section:
        def __enter__(self):
            print("begin")

        def __exit__(self, *_):
            print("end")

    @tj.function
    def f(x):
        with Section():
            if x.sum() > 0:  # here
                raise ValueError("positive")
        return x

    f(tj.ones(3))


@program
def pattern_of_a_match():
    @tj.function
    def f(n, m):
        match n, m:
            case 0, 1:  # here
                return n
        return m

    f(tj.constant(3), tj.constant(4))


@program
def assignment_that_may_not_run():
    @tj.function
    def f(x):
        if not (x.sum() > 0 and (y := x.max()) > 1):  # here
            return y
        return x.min()

    f(tj.ones(3))


@program
def condition_of_a_comprehension():
    @tj.function
    def f(x):
        return [v * 2 for v in x if v > 0]  # here

    f(tj.ones(3))


@program
def mask_known_at_run_time():
    @tj.function
    def f(x):
        large = x[x > 1]  # here
        return tj.sort(large)

    f(tj.ones(3))


@program
def text_of_a_traced_value():
    @tj.function
    def f(x):
        return f"mean {x.mean()}"  # here

    f(tj.ones(3))


@program
def endless_recursion():
    @tj.function
    def f(x):
        return f(x - 1)  # here

    f(tj.constant(3.0))


@program
def recursion_on_a_traced_value():
    def factorial(n):
        if n <= 1:
            return n
        return n * factorial(n - 1)  # here

    @tj.function
    def f(n):
        return factorial(n)

    f(tj.constant(5))


# -- calls -------------------------------------------------------------------------------------------------------------
@program
def missing_argument():
    @tj.function
    def f(x, y):
        return x + y

    f(tj.ones(3))  # here


@program
def unhashable_static_argument():
    @tj.function(static_argnames="options")
    def f(x, options):
        return x * options["scale"]

    class Options(dict):
        __hash__ = None

    f(tj.ones(3), Options(scale=2))  # here


@program
def static_argument_that_does_not_exist():
    @tj.function(static_argnames="optoins")
    def f(x, options):
        return x

    f(tj.ones(3), 2)  # here


@program
def decorated_generator():
    @tj.function  # here
    def rows(x):
        for k in range(3):
            yield x[k]

    return rows


@program
def input_signature_that_does_not_match():
    @tj.function(input_signature=[tj.spec((None, 3), "float32")])
    def f(x):
        return x

    f(tj.ones((2, 4)))  # here


# -- state -------------------------------------------------------------------------------------------------------------
@program
def variable_made_inside():
    @tj.function
    def f(x):
        v = tj.Variable(1.0)  # here
        v.assign_add(x)
        return v.read_value()

    f(tj.constant(1.0))


@program
def assignment_of_wrong_shape():
    v = tj.Variable([1.0, 2.0], name="w")

    @tj.function
    def f(x):
        v.assign(x)  # here
        return x

    f(tj.ones(3))


@program
def assignment_of_wrong_dtype():
    v = tj.Variable([1, 2], name="steps")

    @tj.function
    def f(x):
        v.assign_add(x)  # here
        return x

    f(tj.constant([0.5, 0.5]))


@program
def write_to_a_read_only_array():
    x = np.zeros(3)
    x.flags.writeable = False

    @tj.function
    def f(a):
        a[0] = 1
        return a

    f(x)  # here


# -- gradients ---------------------------------------------------------------------------------------------------------
@program
def gradient_of_many_values():
    @tj.function
    def f(x):
        return x * x

    tj.grad(f)(tj.ones(3))  # here


@program
def gradient_by_an_integer():
    tj.grad(lambda n: n * 2.0)(tj.constant(3))  # here


@program
def gradient_through_a_callback():
    @tj.function
    def f(x):
        y = tj.py_function(lambda t: t * 2, [x], tj.spec((3,)))  # here
        return y.sum()

    tj.grad(f)(tj.ones(3))


# -- at run time -------------------------------------------------------------------------------------------------------
@program
def index_out_of_range():
    @tj.function
    def f(x, i):
        y = x * 2
        return y[i] + 1  # here

    f(tj.ones(3), tj.constant([0, 3]))


@program
def constant_index_out_of_range():
    @tj.function
    def f(x):
        return x[5]  # here

    f(tj.ones(3))


@program
def nan_from_a_root():
    @tj.function
    def f(x):
        y = x - 3
        return tj.sqrt(y)  # here

    with tj.debugging.debug_nans():
        f(tj.ones(3))


@program
def failed_check():
    @tj.function
    def f(x):
        tj.debugging.assert_positive(x, "prices")  # here
        return tj.log(x)

    f(tj.constant([1.0, -2.0]))


@program
def exception_in_a_callback():
    @tj.function
    def f(x):
        tj.py_function(lambda t: 1 / 0, [x])  # here
        return x

    f(tj.ones(3))


@program
def leaked_argument():
    kept = []

    @tj.function
    def f(x):
        kept.append(x)
        return x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f(tj.ones(2))  # here
    kept[0] + 1


EAGER = ("leaked_tracer", "leaked_argument")  # fails outside of decorated code


# -- the texts ---------------------------------------------------------------------------------------------------------
def told(f: Program) -> tuple[str, str]:
    """What the user sees, with line numbers from the program's first line; and as it is."""
    try:
        f()
    except Exception as error:
        entry = error.__traceback__.tb_next if error.__traceback__ is not None else None  # without this function
        text = "".join(traceback.format_exception(type(error), error, entry))
    else:
        raise AssertionError(f"{f.__name__} does not fail")
    return normalised(text, f), text


def normalised(text: str, f: Program) -> str:
    start, here = f.__code__.co_firstlineno, re.escape(__file__)
    text = re.sub(rf'File "{here}", line (\d+)', lambda m: f'File "user.py", line {int(m[1]) - start}', text)
    text = re.sub(rf"(?:{here}|\btest_errors\.py):(\d+)", lambda m: f"user.py:{int(m[1]) - start}", text)
    # newer Pythons run comprehensions in the frame around them
    text = re.sub(r'^ +File "user.py", line \d+, in <\w+comp>\n( {4,}.*\n)*', "", text, flags=re.MULTILINE)
    text = re.sub(r"line repeated \d+ more", "line repeated N more", text)
    text = re.sub(r'^ +File "[^"]*tracejit/.*\n( {4,}.*\n)*', "", text, flags=re.MULTILINE)  # errors of eager ops
    text = re.sub(r"<locals>\.", "", text)
    return re.sub(r"^[ ~^]+\n", "", text, flags=re.MULTILINE)  # Python versions differ in what they underline


def marked(f: Program) -> int:
    """The line marked `# here`."""
    lines = Path(__file__).read_text().splitlines()
    start = f.__code__.co_firstlineno
    return next(k for k, line in enumerate(lines[start - 1 :], start) if line.endswith("# here"))


def all_lines(text: str) -> Iterator[int]:
    for found in re.finditer(rf'File "{re.escape(__file__)}", line (\d+)|test_errors\.py:(\d+)', text):
        yield int(found[1] or found[2])


@pytest.mark.parametrize("name", PROGRAMS)
def test_message(name: str) -> None:
    f = PROGRAMS[name]
    text, plain = told(f)
    assert marked(f) in set(all_lines(plain)), f"the line marked '# here' is not named:\n{plain}"
    assert name in EAGER or "tracejit/" not in plain.replace("\\", "/"), plain  # no internal frames
    wanted = (GOLDEN / f"{name}.txt").read_text()
    difference = "\n".join(difflib.unified_diff(wanted.splitlines(), text.splitlines(), "kept", "now", lineterm=""))
    assert not difference, difference


def test_every_kept_text_has_a_program() -> None:
    assert {p.stem for p in GOLDEN.glob("*.txt")} == set(PROGRAMS)
    assert len(PROGRAMS) >= 20


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.glob("*.txt"):
        old.unlink()
    for name, f in PROGRAMS.items():
        (GOLDEN / f"{name}.txt").write_text(told(f)[0])
    sys.stdout.write(f"{len(PROGRAMS)} texts written\n")
