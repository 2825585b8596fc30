"""Trigonometric functions.

x = n pi/2 + r with |r| <= pi/4: pi/2 in three parts (Cody and Waite) while n is moderate, else 2/pi to as many bits as
needed, in integers (Payne and Hanek), which a target may branch around. sin, cos and tan of one x share everything.

Read next: `hyperbolic.py`.
"""

from __future__ import annotations

from ..scalar import F32, F64, U32, U64, Value, bitcast, cast, fabs, fma, select, sqrt
from .base import (
    FORMATS,
    Bound,
    flip_sign,
    function,
    keep_zero,
    nearest,
    polynomial,
    rarely,
    to_bits,
    with_sign_of,
)

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
# (asin(s) / s - 1) / s**2 in s**2 <= 1/4, and (atan(r) / r - 1) / r**2 in r**2 <= 1.
ASIN = {
    F32: (0.16666754, 0.074952476, 0.045477264, 0.024142765, 0.042233072),
    F64: (0.16666666666665372, 0.07500000000346076, 0.044642856820574436, 0.030381959466718393, 0.02237174992653889,
          0.017359830276059314, 0.013883968264061752, 0.012177700477497437, 0.006490572988759013, 0.019632415990343124,
          -0.01639038026416291, 0.03202791612041158),
}
ATAN = {
    F32: (-0.333333, 0.1999853, -0.14264014, 0.10950862, -0.08399214, 0.057879053, -0.031093804, 0.010866466,
          -0.0017821991),
    F64: (-0.3333333333333307, 0.19999999999951742, -0.14285714282587483, 0.11111111007320666, -0.09090907007380514,
          0.07692279883713703, -0.0666640437904179, 0.058805295369586855, -0.05253525550526439, 0.047223441297921755,
          -0.042192323932206025, 0.03664293100463778, -0.029905383239211138, 0.021986628977405356,
          -0.013902152806563635, 0.00719758155843169, -0.002885451193414525, 0.0008315029731338165,
          -0.0001521987396724972, 1.3228746230722749e-05),
}
# pi/2 rounded to nearest, and the rest.
HALF_PI_HI = {F32: float.fromhex("0x1.921fb6p0"), F64: float.fromhex("0x1.921fb54442d18p0")}
HALF_PI_LO = {F32: float.fromhex("-0x1.777a5cp-25"), F64: float.fromhex("0x1.1a62633145c07p-54")}


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
    n = bitcast(quadrant, form.integer)
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


# Inverses -----------------------------------------------------------------------------------------------------------


def _from_half_pi(y: Value) -> Value:
    """pi/2 - y."""
    return (HALF_PI_LO[y.dtype] - y) + HALF_PI_HI[y.dtype]


def _asin_part(a: Value) -> tuple[Value, Value]:
    """(inner, p): asin(a) is p where inner (a < 1/2), else pi/2 - 2 p, for a >= 0."""
    inner = a < 0.5
    z = select(inner, a * a, fma(a, -0.5, 0.5))
    s = select(inner, a, sqrt(z))
    return inner, fma(s * z, polynomial(z, ASIN[a.dtype]), s)


@function(Bound(4, 4, (-1, 1)))
def asin(x: Value) -> Value:
    inner, p = _asin_part(fabs(x))
    return with_sign_of(select(inner, p, _from_half_pi(p + p)), x)


@function(Bound(4, 4, (-1, 1)))
def acos(x: Value) -> Value:
    inner, p = _asin_part(fabs(x))
    from_half_pi = _from_half_pi(select(inner, with_sign_of(p, x), p))
    return select(inner, from_half_pi, select(x < 0, from_half_pi, p) * 2.0)


def _atan_of_unit(r: Value) -> Value:
    """atan(r) for 0 <= r <= 1."""
    z = r * r
    return fma(r * z, polynomial(z, ATAN[r.dtype]), r)


@function(Bound(4, 4))
def atan(x: Value) -> Value:
    a = fabs(x)
    steep = a > 1.0
    p = _atan_of_unit(select(steep, 1.0 / a, a))
    return with_sign_of(select(steep, _from_half_pi(p), p), x)


@function(Bound(4, 4, arity=2))
def atan2(y: Value, x: Value) -> Value:
    """The angle of the point (x, y), with every special case of C99."""
    a, b = fabs(y), fabs(x)
    steep = a > b
    ratio = select(steep, b, a) / select(steep, a, b)
    ratio = select(a == b, select(a == 0, x.lift(0.0), 1.0), ratio)  # two zeros, two infinities
    p = _atan_of_unit(ratio)
    left = to_bits(x) < 0
    from_pi = (HALF_PI_LO[x.dtype] * 2 - p) + HALF_PI_HI[x.dtype] * 2
    flat = select(left, from_pi, p)
    return with_sign_of(select(steep, _from_half_pi(select(left, -p, p)), flat), y)
