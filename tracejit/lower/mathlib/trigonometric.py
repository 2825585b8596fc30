"""Trigonometric functions.

x = n pi/2 + r with |r| <= pi/4: pi/2 in three parts (Cody and Waite) while n is moderate, else 2/pi to as many bits as
needed, in integers (Payne and Hanek), which a target may branch around. sin, cos and tan of one x share everything.

Read next: `hyperbolic.py`.
"""

from __future__ import annotations

from ..scalar import F32, F64, U32, U64, Value, bitcast, cast, fabs, fma, select
from .base import FORMATS, Bound, flip_sign, function, keep_zero, nearest, polynomial, rarely, to_bits

INF, NAN = float("inf"), float("nan")

# pi/2 = sum of three parts, each rounded down; and 2/pi.
HALF_PI = {
    F32: tuple(map(float.fromhex, ("0x1.921fb4p0", "0x1.4442dp-24", "0x1.846988p-48"))),
    F64: tuple(map(float.fromhex, ("0x1.921fb54442d18p0", "0x1.1a62633145c06p-54", "0x1.c1cd129024e08p-107"))),
}
TWO_OVER_PI = 2 / 3.141592653589793
CODY_WAITE_LIMIT = {F32: 2.0**17, F64: 2.0**30}
# The bits of 2/pi behind the binary point.
TWO_OVER_PI_BITS = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921c"
    "fe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980f"
    "ef2f118b5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d08"
    "56033046fc7b6babf0cfbc209af4361d", 16)
TWO_OVER_PI_COUNT = 20 * 64

# (sin(r) / r - 1) / r**2 and (cos(r) - 1 + r**2 / 2) / r**4, in r**2, on |r| <= pi/4.
SIN = {
    F32: (-0.16666654, 0.008332106, -0.00019507883),
    F64: (-0.16666666666666627, 0.008333333333321067, -0.0001984126982869614, 2.7557313297711013e-06,
          -2.5050695322056276e-08, 1.589310357158068e-10),
}
COS = {
    F32: (0.041666646, -0.0013887298, 2.4430085e-05),
    F64: (0.04166666666666658, -0.0013888888888870968, 2.4801587287525735e-05, -2.7557313790751403e-07,
          2.0875647362668965e-09, -1.135573675949682e-11),
}


def reduce_angle(x: Value) -> tuple[Value, Value]:
    """(r, n) with x = n pi/2 + r, |r| <= pi/4; n is an integer of x's width with only its low bits right."""
    n, n_bits = nearest(x, TWO_OVER_PI)
    a, b, c = HALF_PI[x.dtype]
    r = fma(n, -c, fma(n, -b, fma(n, -a, x)))
    huge = fabs(x) > CODY_WAITE_LIMIT[x.dtype]
    slow_r, _, slow_n = _reduce_huge(x)
    return rarely(huge, slow_r, r), rarely(huge, slow_n, n_bits)


def reduce_angle_exactly(x: Value) -> tuple[Value, Value, Value]:
    """(r, r_low, n): as `reduce_angle`, with r to twice the precision."""
    n, n_bits = nearest(x, TWO_OVER_PI)
    a, b, c = HALF_PI[x.dtype]
    first = fma(n, -a, x)  # exact
    product = n * b
    second = first - product
    rest = fma(n, -c, (first - second) - product - fma(n, b, -product))
    r = second + rest
    r_low = rest - (r - second)
    huge = fabs(x) > CODY_WAITE_LIMIT[x.dtype]
    slow_r, slow_r_low, slow_n = _reduce_huge(x)
    return rarely(huge, slow_r, r), rarely(huge, slow_r_low, r_low), rarely(huge, slow_n, n_bits)


def _window(offset: Value, words: int, width: int, last: int) -> list[Value]:
    """`words` words (in uint64) of `width` bits of 2/pi from bit `offset` <= last on, the most significant first.

    Bits before the point, at offsets below `width`, are 0. Each bit of the word number selects between two constants.
    """
    count = last // width + words + 1
    mask = (1 << width) - 1
    table = [offset.lift(0)]
    table += [offset.lift(TWO_OVER_PI_BITS >> (TWO_OVER_PI_COUNT - width * (i + 1)) & mask) for i in range(count - 1)]
    number, shift = offset >> width.bit_length() - 1, offset & width - 1
    for bit in reversed(range((last // width).bit_length())):
        taken = (number & 1 << bit) != 0
        reach = words + (1 << bit)  # what the lower bits of the number can still ask for
        table = [select(taken, table[i + (1 << bit)], word) if i + (1 << bit) < len(table) else word
                 for i, word in enumerate(table[:reach])]
    if width == 32:
        return [((table[i] << 32 | table[i + 1]) >> (32 - shift)) & mask for i in range(words)]
    # A shift by 64 is undefined: shift by one, then by the rest.
    return [table[i] << shift | (table[i + 1] >> 1) >> (63 - shift) for i in range(words)]


def _reduce_huge(x: Value) -> tuple[Value, Value, Value]:
    """`reduce_angle` for |x| > 1: the product of an integer significand and a window of 2/pi, modulo 4."""
    form = FORMATS[x.dtype]
    bits = to_bits(fabs(x))
    m = cast(bits & (1 << form.mantissa) - 1 | 1 << form.mantissa, U64)
    exponent = cast(bits >> form.mantissa, U64)  # x = m * 2**(exponent - bias - mantissa)
    # Bits of 2/pi whose product with x is a multiple of 4 are left out: the window starts that many bits in.
    if x.dtype == F32:
        # 64 bits of the product: two of quadrant, 62 of fraction.
        offset = exponent - (form.bias + form.mantissa + 2 - 32)
        w2, w1, w0 = _window(offset, 3, 32, 255 - form.bias - form.mantissa - 2 + 32)
        middle = m * w1 + (m * w0 >> 32)
        high = (m * w2 << 32) + middle
        low = None
    else:
        # 192 bits of the product, in columns of 32.
        offset = exponent - (form.bias + form.mantissa + 2 - 64)
        window = _window(offset, 3, 64, 2047 - form.bias - form.mantissa - 2 + 64)
        mask = 0xFFFFFFFF
        limbs = [part for word in reversed(window) for part in (word & mask, word >> 32)]
        m0, m1 = m & mask, m >> 32
        columns, carry, above = [], m.lift(0), m.lift(0)
        for limb in limbs:
            product = m0 * limb
            column = (product & mask) + carry + (above & mask)
            columns.append(column & mask)
            carry = (product >> 32) + (column >> 32) + (above >> 32)
            above = m1 * limb
        high = columns[5] << 32 | columns[4]
        low = columns[3] << 32 | columns[2]
    quadrant = (high + (1 << 61)) >> 62
    fraction = bitcast(high - (quadrant << 62), "int64")
    if low is None:
        wide = cast(fraction, F64) * (HALF_PI[F64][0] * 2.0**-62)
        r = cast(wide, F32)
        r_low = cast(wide - cast(r, F64), F32)
        quadrant = cast(quadrant, U32)
    else:
        top = cast(fraction >> 30, F64) * 2.0**-32
        rest = fma(cast(low, F64), 2.0**-126, cast(fraction & (1 << 30) - 1, F64) * 2.0**-62)
        turn = top + rest
        turn_low = rest - (turn - top)
        high_part, low_part = HALF_PI[F64][:2]
        product = turn * high_part
        rest = fma(turn, low_part, fma(turn_low, high_part, fma(turn, high_part, -product)))
        r = product + rest
        r_low = rest - (r - product)
    r = select(fabs(x) < INF, r, NAN)
    negative = x < 0
    n = bitcast(quadrant, form.int)
    return select(negative, -r, r), select(negative, -r_low, r_low), select(negative, -n, n)


def sin_cos(x: Value) -> tuple[Value, Value]:
    """Both, sharing everything but the last steps."""
    r, n = reduce_angle(x)
    z = r * r
    sine = fma(r * z, polynomial(z, SIN[x.dtype]), r)
    cosine = fma(z, fma(z, polynomial(z, COS[x.dtype]), -0.5), 1.0)
    even, top = (n & 1) == 0, FORMATS[x.dtype].bits - 2
    return (keep_zero(x, flip_sign(select(even, sine, cosine), (n & 2) << top)),
            flip_sign(select(even, cosine, sine), ((n + 1) & 2) << top))


@function(Bound(2, 2))
def sin(x: Value) -> Value:
    return sin_cos(x)[0]


@function(Bound(2, 2))
def cos(x: Value) -> Value:
    return sin_cos(x)[1]


@function(Bound(2, 2))
def tan(x: Value) -> Value:
    """sin / cos, or its negative inverse, corrected for the rounding of the angle, numerator and denominator."""
    r, r_low, n = reduce_angle_exactly(x)
    z = r * r
    s = fma(r * z, polynomial(z, SIN[x.dtype]), r_low)
    c = fma(z, fma(z, polynomial(z, COS[x.dtype]), -0.5), -r * r_low)
    sine, cosine = r + s, c + 1.0
    sine_low, cosine_low = s - (sine - r), c - (cosine - 1.0)
    even = (n & 1) == 0
    top, top_low = select(even, sine, -cosine), select(even, sine_low, -cosine_low)
    bottom, bottom_low = select(even, cosine, sine), select(even, cosine_low, sine_low)
    inverse = 1.0 / bottom
    y = top * inverse
    rest = fma(-y, bottom_low, fma(-y, bottom, top) + top_low)
    return keep_zero(x, fma(rest, inverse, y))
