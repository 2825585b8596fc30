"""Random programs with control flow on tensor values: compiled, they do what Python does.

Programs decide by small integers, so every comparison is exact; a float, `x`, is carried along for gradients. They
are text with real lines, so that their source is found as that of any function.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from alike import agree, run
from hypothesis import HealthCheck, given, settings

import tracejit as tj

_numbers = itertools.count()
INDENT = "    "


@st.composite
def conditions(draw: Any, depth: int = 0) -> str:
    kind = draw(st.sampled_from(["compare", "chain", "python", "and", "or", "not"] if depth < 2 else ["compare"]))
    name = draw(st.sampled_from("abc"))
    if kind == "compare":
        return f"{name} {draw(st.sampled_from(['<', '>', '==', '%']))} {draw(st.integers(2, 9))}"
    if kind == "chain":
        return f"{draw(st.integers(0, 4))} < {name} <= {draw(st.integers(5, 12))}"
    if kind == "python":
        return draw(st.sampled_from(["flag", "not flag", "n > 2"]))
    if kind == "not":
        return f"not ({draw(conditions(depth + 1))})"
    return f"({draw(conditions(depth + 1))} {kind} {draw(conditions(depth + 1))})"


@st.composite
def expressions(draw: Any) -> str:
    x, y = draw(st.sampled_from("abc")), draw(st.sampled_from("abc"))
    k = draw(st.integers(1, 5))
    forms = [
        f"({x} + {y} * {k}) % 13",
        f"abs({x} - {y})",
        f"{x} if {draw(conditions())} else {y} + {k}",
        f"max({x}, {y})",
        f"{x} + v[{k % 3}]",
        f"helper({x}) % 11",
        f"({x} or {y})",
        f"{x} + int({y})",
        f"sum((t * {k} for t in v if t > {y}), {x} * 0) % 11",  # of none Python gives its own 0
        f"len([t for t in v if t != {x}]) + {y}",
        f"max(t for t in v if t < 9 or t == v[{k % 3}])",
        f"{{'k3': {x}, 'k4': {y}}}.get(f'k{{n}}', {x})",
        f"v[v > {k}].sum() % 7 + {y} * 0",
    ]
    return draw(st.sampled_from(forms))


@st.composite
def blocks(draw: Any, depth: int, in_loop: bool) -> list[str]:
    return [line for _ in range(draw(st.integers(1, 3))) for line in draw(statements(depth, in_loop))]


@st.composite
def statements(draw: Any, depth: int, in_loop: bool) -> list[str]:
    simple = ["assign", "assign", "float", "float", "add", "print", "assert", "raise", "item", "return"] + [
        "break",
        "continue",
    ] * in_loop
    compound = ["if", "if", "while", "rows", "range", "python_range", "with", "finally", "except"]
    kind = draw(st.sampled_from(simple + compound * (depth > 0)))
    name = draw(st.sampled_from("abc"))

    def block(loop: bool = in_loop) -> list[str]:
        return [INDENT + line for line in draw(blocks(depth - 1, loop))]

    if kind == "assign":
        return [f"{name} = {draw(expressions())}"]
    if kind == "float":
        return [
            draw(
                st.sampled_from(
                    # slopes below 1: differences in rounding must not grow
                    [f"x = x * 0.5 + tj.sin(x) * 0.4 + {name}", f"x = x + {name} if {draw(conditions())} else x * 0.3"]
                )
            )
        ]
    if kind == "add":
        # not `+=`: which of several names of one tensor it writes would depend on values
        return [f"{name} = {name} + {draw(st.integers(1, 3))}"]
    if kind == "item":
        k = draw(st.integers(0, 2))
        return [draw(st.sampled_from([f"v[{k}] = {name}", f"v[v > {name}] -= {k}", f"v[{name} % 3] += {k}"]))]
    if kind == "print":
        return [f"print('{name}', {name}, f'{{{name}}}')"]
    if kind == "assert":
        return [f"assert {name} != {draw(st.integers(0, 12))}, '{name} is wrong'"]
    if kind == "raise":
        return [f"if {name} == {draw(st.integers(0, 12))}:", f"{INDENT}raise ValueError('{name} is bad')"]
    if kind == "return":
        return [f"if {draw(conditions())}:", f"{INDENT}return x, a, b, c"]
    if kind in ("break", "continue"):
        return [f"if {draw(conditions())}:", f"{INDENT}{kind}"]
    if kind == "with":
        return ["with nullcontext():", *block()]
    if kind == "finally":
        return ["try:", *block(), "finally:", f"{INDENT}x = x * 0.5 + 1"]
    if kind == "except":
        raising = f"if {draw(st.sampled_from(['flag', 'n > 2', draw(conditions())]))}:"
        return [
            "try:", *block(), INDENT + raising, 2 * INDENT + "raise KeyError('k')",
            f"except {draw(st.sampled_from(['KeyError', 'Exception']))}:", *block(),
        ]  # fmt: skip
    if kind == "if":
        lines = [f"if {draw(conditions())}:", *block()]
        if draw(st.booleans()):
            lines += [f"elif {draw(conditions())}:", *block()]
        return lines + (["else:", *block()] if draw(st.booleans()) else [])
    if kind == "while":
        count = f"i{next(_numbers)}"
        lines = [
            f"{count} = 0",
            f"while {count} < {draw(st.integers(1, 5))} and {draw(conditions())}:",
            f"{INDENT}{count} += 1",
        ]
        lines += block(True)
    elif kind == "rows":
        lines = [f"for r in {draw(st.sampled_from(['v', 'long', 'enumerate(v)']))}:", *block(True), f"{INDENT}pass"]
        if "enumerate" in lines[0]:
            lines[0] = "for k, r in enumerate(v):"
        lines.insert(1, f"{INDENT}{name} = ({name} + r) % 17")
    elif kind == "range":
        lines = [f"for i in range({name} % 5):", f"{INDENT}{name} = {name} + i", *block(True)]
    else:
        lines = [
            f"for i in range({draw(st.sampled_from([2, 3, 20]))}):",
            f"{INDENT}{name} = ({name} + i) % 19",
            *block(True),
        ]
    return lines + (["else:", *block()] if draw(st.booleans()) else [])


@st.composite
def programs(draw: Any, depth: int = 3) -> str:
    body = draw(blocks(depth, False))
    return "\n".join(
        [
            "def f(x, a, b, v, long, n, flag):",
            f"{INDENT}c = a * 2 - b",
            *(INDENT + line for line in body),
            f"{INDENT}return x, a, b, c",
            "",
        ]
    )


def helper(x: Any) -> Any:
    if x > 6:
        return x - 3
    return x * 2


class nullcontext:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: Any) -> bool:
        return False


def function_of(text: str) -> Callable[..., Any]:
    """The function that a text defines; its source can be looked up."""
    name = f"<program {next(_numbers)}>.py"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    space: dict[str, Any] = {"tj": tj, "helper": helper, "nullcontext": nullcontext}
    exec(compile(text, name, "exec"), space)
    return space["f"]  # type: ignore[no-any-return]


def arguments(a: int, b: int, n: int, flag: bool) -> tuple[Any, ...]:
    return tj.constant(0.3), tj.constant(a), tj.constant(b), tj.constant([a, 3, b]), tj.arange(18), n, flag


def first_of(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: f(*args)[0]


def check(text: str) -> None:
    f = function_of(text)
    compiled = tj.function(f)
    for values in ((1, 2, 3, True), (7, 4, 3, True), (12, 0, 3, False)):
        before, again = arguments(*values), arguments(*values)
        error = run(compiled, *arguments(*values))[2]
        if isinstance(error, tj.TracerError) and "is raised under" in str(error):
            return  # a handler would have to catch at run time: refused
        if agree(f, compiled, before, again):
            assert before[3].tolist() == again[3].tolist()  # what was written is seen by the caller
            ways = [tj.grad(first_of(f)), tj.grad(first_of(compiled)), tj.function(tj.grad(first_of(f)))]
            slopes = [run(way, *arguments(*values))[0] for way in ways]
            np.testing.assert_allclose(slopes[1:], [slopes[0]] * 2, rtol=1e-4, atol=1e-6)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(programs(depth=2))
def test_random_programs(text: str) -> None:
    check(text)


@pytest.mark.fuzz
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_many_random_programs(text: str) -> None:
    check(text)
