"""What the functions of `mathlib` are built from: the declaration of a function, bits of a float, polynomials.

In: plain Python functions on `Value`s of float32 or float64.
Out: `@function(...)` turns one into a public function that also takes Python numbers, float16 and `Complex`, never
contracts a multiply and an add, and has its error bound in `BOUNDS`.

Read next: `exponential.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import numpy as np

from ..scalar import F16, F32, F64, I32, I64, Complex, Value, bitcast, cast, exact, fma, select


@dataclass(frozen=True, slots=True)
class Bound:
    """How far a result may be from the true one.

    `f32` and `f64` count units in the last place. `domain` is the interval (of each argument) where the bound was
    measured; where `floor` is nonzero, the unit is that of max(|result|, floor): an absolute bound near the zeros.
    """

    f32: float
    f64: float
    domain: tuple[float, float] = (-np.inf, np.inf)
    floor: float = 0.0
    arity: int = 1
    note: str = field(default="", compare=False)


Body = Callable[..., Any]
BOUNDS: dict[str, Bound] = {}
_COMPLEX: dict[str, Body] = {}


def function(bound: Bound | None = None, native_half: bool = False) -> Callable[[Body], Body]:
    """Declare a public function; `native_half`: the body handles float16 itself instead of going through float32."""

    def declare(body: Body) -> Body:
        name = body.__name__
        if bound is not None:
            BOUNDS[name] = bound

        @wraps(body)
        def call(*args: Any) -> Any:
            like: Any = next(a for a in args if isinstance(a, (Value, Complex)))
            if any(isinstance(a, (Complex, complex)) for a in args):
                if name not in _COMPLEX:
                    raise TypeError(f"{name} is not defined for complex numbers")
                like = next((a for a in args if isinstance(a, Complex)), None) or Complex(like, like.lift(0))
                with exact(like.builder):
                    return _COMPLEX[name](*(like.lift(a) for a in args))
            with exact(like.builder):
                values = [like.lift(a) for a in args]
                if like.dtype != F16 or native_half:
                    return body(*values)
                result = body(*(cast(v, F32) for v in values))
                return cast(result, F16) if result.dtype == F32 else result

        return call

    return declare


def complex_version(body: Body) -> Body:
    """Declare what the function of the same name does with `Complex` arguments."""
    _COMPLEX[body.__name__] = body
    return body


# Bits ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Format:
    """The layout of a float type, and what goes with it."""

    integer: np.dtype
    mantissa: int  # explicit bits of the significand
    bias: int
    to_int: float  # adding it leaves the nearest integer in the low bits: 1.5 * 2**mantissa

    @property
    def bits(self) -> int:
        return self.integer.itemsize * 8

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)


FORMATS = {
    F16: Format(np.dtype("int16"), 10, 15, 1.5 * 2.0**10),
    F32: Format(I32, 23, 127, 1.5 * 2.0**23),
    F64: Format(I64, 52, 1023, 1.5 * 2.0**52),
}


def to_bits(x: Value) -> Value:
    """The bits of a float as a signed integer."""
    return bitcast(x, FORMATS[x.dtype].integer)


def sign_bit(x: Value) -> Value:
    """The sign bit of a float in place, other bits zero, as a signed integer."""
    return to_bits(x) & FORMATS[x.dtype].sign


def flip_sign(x: Value, sign: Value) -> Value:
    """x, negated where the top bit of the integer `sign` is set."""
    return bitcast(to_bits(x) ^ sign, x.dtype)


def with_sign_of(x: Value, y: Value) -> Value:
    """A nonnegative x with the sign bit of y."""
    return bitcast(to_bits(x) | sign_bit(y), x.dtype)


def nearest(x: Value, scale: float) -> tuple[Value, Value]:
    """The integer n nearest to x * scale, as a float, and an integer whose low bits are those of n.

    For |n| < 2**(mantissa - 2). The float is never -0.
    """
    magic = FORMATS[x.dtype].to_int
    shifted = fma(x, scale, magic)
    return shifted - magic, to_bits(shifted)


def small_to_float(n: Value, dtype: np.dtype) -> Value:
    """An integer as a float of its width. For int64 without a conversion, which few CPUs have for vectors."""
    if dtype != F64:
        return cast(n, dtype)
    magic = FORMATS[F64].to_int
    return bitcast(n + int(np.float64(magic).view(np.int64)), F64) - magic


def power_of_two(n: Value, dtype: np.dtype) -> Value:
    """2**n of float type `dtype` for a normal result; only the low bits of the integer n matter."""
    form = FORMATS[dtype]
    return bitcast((n + form.bias) << form.mantissa, dtype)


# Pieces of formulas -------------------------------------------------------------------------------------------------


def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """c0 + c1 * x + c2 * x**2 + ... by fused Horner steps."""
    result = x.lift(coefficients[-1])
    for c in coefficients[-2::-1]:
        result = fma(x, result, c)
    return result


def at_most(x: Value, limit: float) -> Value:
    """min(x, limit) that keeps nan, one instruction where `minimum` takes three."""
    return select(x > limit, limit, x)


def at_least(x: Value, limit: float) -> Value:
    return select(x < limit, limit, x)


def keep_zero(x: Value, y: Value) -> Value:
    """y, but x itself where x is zero: keeps the sign of a zero."""
    return select(x == 0, x, y)


def rarely(cond: Value, slow: Value, fast: Value) -> Value:
    """select(cond, slow, fast) with the hint that cond is almost never true in any lane.

    A target may branch around the statements that only feed the slow side of selects on one rare condition.
    """
    return cond.builder.emit("select", fast.dtype, (cond, slow, fast), ("rare",))
