"""Functions that rewritten code gets rather than names: arguments, methods, what derivatives call."""

from __future__ import annotations

import functools

import pytest
from alike import same, t

import tracejit as tj


class Halved:
    """A callable object with control flow, and a method."""

    def __call__(self, x):
        return x / 2 if x.sum() > 10.0 else x * x

    def until_small(self, x):
        while x.sum() > 10.0:
            x = tj.sqrt(x)
        return x


def test_what_derivatives_call_is_rewritten() -> None:
    def power(k, x):
        return x**k if x.sum() > 10.0 else x * 3.0

    for g in (Halved(), Halved().until_small, functools.partial(power, 3.0), lambda x: x if x.sum() > 10.0 else x * x):
        same(lambda x, g=g: tj.jvp(g, (x,), (x + 1.0,)), t(1.0, 2.0), t(4.0, 9.0))
        same(lambda x, g=g: tj.vjp(g, x)[1](x), t(1.0, 2.0), t(4.0, 9.0))
        same(lambda x, g=g: tj.hvp(lambda y: g(y).sum(), x, x), t(1.0, 2.0), t(4.0, 9.0))
        same(lambda x, g=g: tj.jacobian(g)(x), t(1.0, 2.0), t(4.0, 9.0))
        same(lambda x, g=g: tj.checkpoint(g)(x), t(1.0, 2.0), t(4.0, 9.0))


class Gradual:
    """Methods with names that modules and tensors have."""

    def gradient(self, x):
        return x * 2 if x.sum() > 10.0 else x

    def step(self, x):
        return tj.exp(self.gradient(x))


def test_functions_as_arguments_are_rewritten() -> None:
    def g(x):
        return x * 2 if x.sum() > 10.0 else x * 3.0

    def apply(h, x):
        return h(x)

    def first(x, *hs):
        return hs[0](x)

    def named(x, table):
        return table["g"](x)

    def looped(h, x):
        return tj.fori_loop(0, 3, h, x)

    def each(h, x):
        return tj.vmap(h)(x)

    calls = (t(1.0, 2.0), t(4.0, 9.0))
    same(lambda x: apply(g, x), *calls)
    same(lambda x: first(x, g), *calls)
    same(lambda x: named(x, {"g": g}), *calls)
    same(lambda x: looped(lambda i, y: g(y), x), *calls)
    same(lambda x: each(g, tj.stack([x, x * 9.0])), *calls)
    same(lambda x, h=g: h(x), *calls)
    same(lambda x, h=g: tj.vjp(h, x)[0], *calls)
    same(lambda x, h=g: tj.grad(lambda y: h(y).sum())(x), *calls)
    same(lambda x: Gradual().step(x), *calls)
    gradual = Gradual()
    same(lambda x, o=gradual: o.gradient(x), *calls)


def test_what_has_no_single_value_is_named() -> None:
    def grows(x, n):
        total = 0
        for i in range(n):
            if i == 2:
                continue
            total = total + x
        return total

    def chosen(x, n):
        return (abs if n > 2 else chosen)(x)

    match = r"^'total' has no single value at the end of a turn of .*: it is a Python int in one .* and f32\[2\] in the"
    with pytest.raises(tj.errors.TracerError, match=match):
        tj.function(grows)(tj.ones(2), tj.constant(3))
    match = r"^the result is used at .*, but it is the function abs in one branch of .* and the function chosen in the"
    with pytest.raises(tj.errors.TracerError, match=match):
        tj.function(chosen)(tj.ones(2), tj.constant(3))
