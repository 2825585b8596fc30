"""Division with floor, remainders, integer powers, signs and bits of floats, and the random bit generator.

Integer division is defined everywhere: x // 0 == 0, x % 0 == 0, and the smallest integer // -1 wraps.

Read next: `complex.py`.
"""

from __future__ import annotations

from ..scalar import BOOL, F32, F64, U32, U64, Value, bitcast, cast, fabs, floor, fma, select, trunc
from .base import FORMATS, function, rarely, sign_bit, to_bits, with_sign_of

INF, NAN = float("inf"), float("nan")

# Division -----------------------------------------------------------------------------------------------------------


def _safe_divisor(x: Value, y: Value) -> Value:
    """y where dividing x by it is defined, else 1."""
    unsafe = y == 0
    return select(unsafe | (y == -1) if x.dtype.kind == "i" else unsafe, 1, y)


def _quotient(x: Value, y: Value) -> Value:
    """Truncated x / y of integers. Up to 32 bits the quotient of floats is exact, and divides whole vectors."""
    size = x.dtype.itemsize
    if size == 8:
        return x // y
    wide = F64 if size == 4 else F32
    return cast(trunc(cast(x, wide) / cast(y, wide)), x.dtype)


def _number(y: Value) -> int:
    """The integer that y is, if it is a literal above 0; else 0."""
    s = y.builder.stmts[y.index]
    return max(0, s.attrs[0]) if s.op == "const" else 0


@function(native_half=True)
def floor_divide(x: Value, y: Value) -> Value:
    if x.dtype.kind == "f":
        return _float_divmod(x, y)[0]
    if n := _number(y):
        if n & (n - 1) == 0:
            return x >> (n.bit_length() - 1)
        q = _quotient(x, y)
        return q if x.dtype.kind == "u" else select(x - q * y < 0, q - 1, q)
    safe = _safe_divisor(x, y)
    q = _quotient(x, safe)
    if x.dtype.kind == "u":
        return select(y == 0, 0, q)
    down = (q * safe != x) & ((x < 0) != (y < 0))
    return select(y == 0, 0, select(y == -1, -x, select(down, q - 1, q)))


@function(native_half=True)
def remainder(x: Value, y: Value) -> Value:
    """x - floor_divide(x, y) * y, with the sign of y."""
    if x.dtype.kind == "f":
        return _float_divmod(x, y)[1]
    if n := _number(y):
        if n & (n - 1) == 0:
            return x & (n - 1)
        r = x - _quotient(x, y) * y
        return r if x.dtype.kind == "u" else select(r < 0, r + y, r)
    safe = _safe_divisor(x, y)
    r = x - _quotient(x, safe) * safe
    if x.dtype.kind == "u":
        return select(y == 0, 0, r)
    return select(y == 0, 0, select((r != 0) & ((r < 0) != (y < 0)), r + y, r))


def _fmod(x: Value, y: Value) -> Value:
    """x - trunc(x / y) * y, exactly; by division and fma where the quotient is small enough."""
    a, b = fabs(x), fabs(y)
    q = trunc(a / b)
    r = fma(-q, b, a)  # exact; the quotient may have been rounded up to one too many
    r = select(r < 0, r + b, r)
    r = select(a < b, a, r)  # b may be infinite
    large = (q > 2.0 ** (FORMATS[x.dtype].mantissa - 1)) | (b < FORMATS[x.dtype].tiny * 2.0**FORMATS[x.dtype].mantissa)
    return with_sign_of(rarely(large, a % b, r), x)


def _float_divmod(x: Value, y: Value) -> tuple[Value, Value]:
    """As NumPy: the remainder has the sign of y, and the quotient goes with the remainder."""
    if x.dtype not in (F32, F64):
        q, r = _float_divmod(cast(x, F32), cast(y, F32))
        return cast(q, x.dtype), cast(r, x.dtype)
    r = _fmod(x, y)
    q = (x - r) / y
    down = (r != 0) & ((y < 0) != (r < 0))
    q = select(down, q - 1.0, q)
    whole = floor(q)
    whole = select(q - whole > 0.5, whole + 1.0, whole)
    q = select(q != 0, whole, with_sign_of(x.lift(0.0), x / y))
    zero = with_sign_of(x.lift(0.0), y)
    r = select(r != 0, select(down, r + y, r), zero)
    return select(y == 0, x / y, q), r


@function()
def fmod(x: Value, y: Value) -> Value:
    """x - trunc(x / y) * y, with the sign of x."""
    if x.dtype.kind == "f":
        return _fmod(x, y)
    safe = _safe_divisor(x, y)
    return select(y == 0, 0, x - _quotient(x, safe) * safe)


@function()
def int_pow(x: Value, y: Value) -> Value:
    """x**y of integers, wrapping, by squaring. For negative y the true power truncated: 0 unless x is 1 or -1."""
    bits = x.dtype.itemsize * 8 - (x.dtype.kind == "i")
    result, square = x.lift(1), x
    common, early = min(bits, 6), result
    for bit in range(bits):
        result = select((y & (1 << bit)) != 0, result * square, result)
        square = square * square
        if bit + 1 == common:
            early = result
    if bits > common:
        result = rarely((y >> common) != 0, result, early)
    if x.dtype.kind == "u":
        return result
    one = select((y & 1) != 0, x, 1)
    return select(y < 0, select((x == 1) | (x == -1), one, 0), result)


# Signs and bits -----------------------------------------------------------------------------------------------------


@function(native_half=True)
def copysign(x: Value, y: Value) -> Value:
    return with_sign_of(fabs(x), y)


@function(native_half=True)
def signbit(x: Value) -> Value:
    if x.dtype.kind == "f":
        return to_bits(x) < 0
    return x < 0 if x.dtype.kind == "i" else x.builder.const(False, BOOL)


@function(native_half=True)
def sign(x: Value) -> Value:
    """-1, 0 or 1; nan for nan; a zero keeps no sign."""
    if x.dtype.kind in "bu":
        return select(x != 0, x.lift(1), 0)
    if x.dtype.kind == "i":
        return select(x > 0, x.lift(1), select(x < 0, x.lift(-1), 0))
    return select(x > 0, x.lift(1.0), select(x < 0, x.lift(-1.0), select(x == 0, 0.0, x)))


@function(native_half=True)
def isnan(x: Value) -> Value:
    return x != x if x.dtype.kind == "f" else x.builder.const(False, BOOL)


@function(native_half=True)
def isinf(x: Value) -> Value:
    return fabs(x) == INF if x.dtype.kind == "f" else x.builder.const(False, BOOL)


@function(native_half=True)
def isfinite(x: Value) -> Value:
    return fabs(x) < INF if x.dtype.kind == "f" else x.builder.const(True, BOOL)


@function(native_half=True)
def nextafter(x: Value, y: Value) -> Value:
    """The next float from x towards y."""
    bits = to_bits(x)
    away = (x < y) == (bits >= 0)  # the magnitude grows
    step = bitcast(select(away, bits + 1, bits - 1), x.dtype)
    smallest = bitcast(to_bits(x).lift(1) | sign_bit(y), x.dtype)
    result = select(x == y, y, select(x == 0, smallest, step))
    return select((x != x) | (y != y), x + y, result)


# Random bits --------------------------------------------------------------------------------------------------------

PHILOX_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
PHILOX_KEY_STEPS = 0x9E3779B9, 0xBB67AE85


def philox4x32_10(key0: Value, key1: Value, c0: Value, c1: Value, c2: Value, c3: Value) -> tuple[Value, ...]:
    """Ten rounds of Philox (Salmon et al., SC 2011): four random uint32 of a uint32 counter and key."""
    for _ in range(10):
        p0 = cast(c0, U64) * PHILOX_MULTIPLIERS[0]
        p1 = cast(c2, U64) * PHILOX_MULTIPLIERS[1]
        c0, c2 = cast(p1 >> 32, U32) ^ c1 ^ key0, cast(p0 >> 32, U32) ^ c3 ^ key1
        c1, c3 = cast(p1, U32), cast(p0, U32)
        key0, key1 = key0 + PHILOX_KEY_STEPS[0], key1 + PHILOX_KEY_STEPS[1]
    return c0, c1, c2, c3
