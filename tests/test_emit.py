"""Compiled kernels against the interpreter in `kernel_reference`, over dtypes, extents, strides, cuts and stages."""

from __future__ import annotations

import itertools
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import MARK, Sketch, compare, run_native, run_reference

from tracejit import dtypes
from tracejit.config import Options
from tracejit.lower import emit_llvm, scalar
from tracejit.lower.kernel import View
from tracejit.lower.scalar import Value, cast, fma, maximum, minimum, select, unary
from tracejit.runtime import build as build_module

REAL = [d for d in dtypes.ALL if d.kind != "c"]
EXTENTS = (0, 1, 3, 17, 1000, 4097)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, np.inf, -np.inf, np.nan, 1e-40, 6e4, -7e4, 1e-7, 300.0, 2.5, -0.49]


def name(value: object) -> str | None:
    return value.name if isinstance(value, np.dtype) else None


# ---- statements


def test_width_follows_the_cpu() -> None:
    assert emit_llvm.vector_bytes("+avx512f,+avx512bw,+avx512dq,+avx512vl") == 64
    assert emit_llvm.vector_bytes("+avx2,+avx512f") == 32
    assert emit_llvm.vector_bytes("+sse2") == 16


def statements(x: Value, y: Value) -> dict[str, Value]:
    """Every statement that takes the dtype of `x`."""
    b, out = x.builder, {}
    kind = x.dtype.kind
    both = {
        "min": minimum(x, y),
        "max": maximum(x, y),
        "lt": x < y,
        "le": x <= y,
        "eq": x == y,
        "ne": x != y,
        "select": select(x < y, x, y),
    }
    if kind == "b":
        return both | {"and": x & y, "or": x | y, "xor": x ^ y, "not": ~x, "add": x + y, "mul": x * y}
    out |= both | {"add": x + y, "sub": x - y, "mul": x * y, "neg": -x, "abs": unary("abs")(x)}
    if kind == "f":
        for op in ("floor", "ceil", "trunc", "rint"):
            out[op] = unary(op)(x)
        out |= {"div": x / y, "rem": x % y, "fma": fma(x, y, 1.5), "sqrt": unary("sqrt")(unary("abs")(x))}
        return out
    bits = x.dtype.itemsize * 8
    nonzero = select((y == 0) | (y == -1) if kind == "i" else y == 0, 3, y)
    count = y & (bits - 1)
    out |= {
        "quot": x // nonzero,
        "rem": x % nonzero,
        "and": x & y,
        "or": x | y,
        "xor": x ^ y,
        "not": ~x,
        "shl": x << count,
        "lshr": x.lshr(count),
        "ctlz": unary("ctlz")(x),
        "popcount": unary("popcount")(x),
    }
    if kind == "i":
        out["ashr"] = b.emit("ashr", x.dtype, (x, count))
    return out


@pytest.mark.parametrize("dtype", REAL, ids=name)
def test_statements(dtype: np.dtype) -> None:
    s = Sketch((83,), 1)
    if dtype.kind == "f":
        pairs = np.array(list(itertools.product(SPECIAL, SPECIAL)))[:, :].T
    elif dtype.kind == "b":
        pairs = np.array([[0, 0, 1, 1], [0, 1, 0, 1]], bool)
    else:
        limits = np.iinfo(dtype)
        edge = [0, 1, 2, 3, 7, limits.max, limits.min, limits.max - 1, limits.max // 2 + 1, 100]
        pairs = np.array(list(itertools.product(edge, edge)), dtype).T
    n = pairs.shape[1]
    with np.errstate(all="ignore"):
        pairs = pairs.astype(dtype)
    s = Sketch((n,), 1)
    x, y = s.read(dtype, (1,), data=pairs[0]), s.read(dtype, (1,), data=pairs[1])
    s.point(*(s.write(v, (1,)) for v in statements(x, y).values()))
    compare(s)


@pytest.mark.parametrize("source", REAL, ids=name)
def test_casts(source: np.dtype) -> None:
    s = Sketch((70,), 1)
    limits = (0, 1) if source.kind in "fb" else (np.iinfo(source).min, np.iinfo(source).max)
    data = [0, 1, 2, 3, 100, 127, *limits]
    if source.kind == "f":
        data += [0.5, 1.5, 2.5, 99.9, 2049.0, 4098.999, 5e-5, 1.00048828125, 1.000488281251]
    if source.kind in "fi":
        data += [-1, -2, -100] + ([-0.5, -1.5] if source.kind == "f" else [])
    x = s.read(source, (1,), data=np.array(data, dtype=source if source.kind != "f" else "f8"))
    for to in REAL:
        if to == source or (source.kind == "f" and to.kind == "u"):
            continue
        s.point(s.write(cast(x, to), (1,)))
    compare(s)


def test_float_to_unsigned_wraps_negative_numbers_and_takes_large_ones() -> None:
    s = Sketch((17,), 1)
    data = [0.0, 1.9, 255.0, -1.0, -3.5, 100.0]
    x = s.read("float64", (1,), data=data)
    s.point(*(s.write(cast(x, d), (1,)) for d in ("uint8", "uint16", "uint32", "uint64")))
    big = s.read("float64", (1,), data=[2.0**63, 2.0**64 - 2048, 5.0])
    s.point(s.write(cast(big, "uint64"), (1,)))
    launch = s.launch()
    run_native(launch, s.buffers)
    for view, bits in zip(launch.writes[:4], (8, 16, 32, 64), strict=True):
        assert s.buffers[view.buffer].tolist() == [int(v) % 2**bits for v in np.resize(data, 17)]
    assert s.buffers[launch.writes[4].buffer][:3].tolist() == [2**63, 2**64 - 2048, 5]


def test_casts_out_of_range_are_repeatable() -> None:
    s = Sketch((40,), 1)
    x = s.read("float32", (1,), data=[np.nan, np.inf, -np.inf, 1e30, -1e30, 3e9, 300.0])
    s.point(*(s.write(cast(x, d), (1,)) for d in dtypes.INTEGERS))
    launch = s.launch()
    runs = []
    for _ in range(2):
        buffers = [b.copy() for b in s.buffers]
        run_native(launch, buffers)
        runs.append(buffers)
    for view in launch.writes:
        assert np.array_equal(runs[0][view.buffer], runs[1][view.buffer])
        assert np.array_equal(runs[0][view.buffer][:14], runs[0][view.buffer][7:21])  # whatever the lane


def test_double_rounds_once_to_half() -> None:
    rng = np.random.default_rng(1)
    half = rng.integers(0, 0x7C00, 500).astype(np.uint16).view(np.float16).astype(np.float64)
    following = np.nextafter(half.astype(np.float16), np.float16(np.inf)).astype(np.float64)
    middle = (half + following) / 2
    data = np.concatenate(
        [middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf), -middle, [1e300, np.nan, -0.0, 65520.0]]
    )
    s = Sketch((data.size,), 1)
    s.point(s.write(cast(s.read("float64", (1,), data=data), "float16"), (1,)))
    compare(s)


def test_bitcast() -> None:
    s = Sketch((33,), 1)
    x = s.read("float32", (1,))
    bits = x.builder.emit("bitcast", np.dtype("int32"), (x,))
    s.point(s.write(bits, (1,)), s.write(x.builder.emit("bitcast", np.dtype("float32"), (bits ^ (-(2**31)),)), (1,)))
    compare(s)


def test_contract_allows_fma_and_nothing_else_does() -> None:
    data = [np.float32(1) + np.float32(2**-12)] * 20
    for contract in (False, True):
        s = Sketch((20,), 1)
        s.b.contract = contract
        x, one = s.read("float32", (1,), data=data), s.read("float32", (0,), data=[-1.0])
        s.point(s.write(x * x + one, (1,)))
        launch = s.launch()
        run_native(launch, s.buffers)
        exact = data[0].astype(np.float64) ** 2 - 1
        rounded = np.float32(data[0] * data[0]) - np.float32(1)
        assert set(s.buffers[launch.writes[0].buffer].tolist()) == {
            float(np.float32(exact)) if contract else float(rounded)
        }


def test_fastmath_still_computes() -> None:
    s = Sketch((500,), 1)
    s.b.contract = True
    x, y = s.read("float32", (1,)), s.read("float32", (1,))
    s.point(s.write(x * y + x - y / 3.0, (1,)))
    compare(s, rtol=1e-4, atol=1e-5, options=Options(fastmath=True))


# ---- maps


@pytest.mark.parametrize("n", EXTENTS)
@pytest.mark.parametrize("block", [0, 7, 64])
def test_map_extents_and_blocks(n: int, block: int) -> None:
    for stream in (False, True):
        s = Sketch((3, n), 2)
        x, y = s.read("float32", (n, 1)), s.read("float32", (0, 1))
        s.point(s.write(x * y + 1.0, (n, 1)), s.write(x < y, (n, 1)), s.write(cast(x, "float64"), (n, 1)))
        compare(s, block=block, stream=stream, pieces=2)


@pytest.mark.parametrize("dtype", REAL, ids=name)
@pytest.mark.parametrize("strides", [(1,), (0,), (-1,), (3,), (2,), (-2,)], ids=str)
def test_map_strides(dtype: np.dtype, strides: tuple[int, ...]) -> None:
    for n in (1, 17, 133):
        s = Sketch((n,), 1)
        x, y = s.read(dtype, strides), s.read(dtype, (1,))
        z = x ^ y if dtype.kind == "b" else x + y
        s.point(s.write(z, (1,)), *([s.write(z, strides)] if strides != (0,) else []))
        compare(s)


@pytest.mark.parametrize("offset", range(0, 17, 5))
def test_streaming_stores_at_any_alignment(offset: int) -> None:
    for n in (0, 5, 64, 1000):
        s = Sketch((n + offset,), 1)
        x = s.read("float32", (1,))
        s.point(s.write(x * 2.0, (1,)), s.write(cast(x, "float64"), (1,)), s.write(x > 0.0, (1,)))
        launch = s.launch()
        s2 = Sketch((n,), 1)  # the same kernel, starting later
        s2.__dict__.update(s.__dict__ | {"extents": (n,)})
        s2.reads = [(a, v.__class__(v.buffer, offset, v.strides)) for a, v in s.reads]
        s2.writes = [(a, v.__class__(v.buffer, offset, v.strides)) for a, v in s.writes]
        assert s2.launch().kernel == launch.kernel
        compare(s2, stream=True)


def test_map_in_place() -> None:
    s = Sketch((1000,), 1)
    x = s.read("float32", (1,))
    buffer = len(s.buffers) - 1
    s.point(s.write(x * 2.0 + 1.0, (1,), buffer=buffer))
    for stream in (False, True):
        compare(s, stream=stream)


@pytest.mark.parametrize("extents", [(2, 3, 5), (4, 1, 33), (1, 1, 1), (2, 0, 4), (3, 5, 2), (2, 2, 3, 2, 9)], ids=str)
def test_map_of_many_dims(extents: tuple[int, ...]) -> None:
    s = Sketch(extents, len(extents))
    strides = tuple(int(np.prod(extents[d + 1 :])) for d in range(len(extents)))
    x = s.read("int32", strides)
    y = s.read("int32", tuple(reversed([int(np.prod(extents[:d])) for d in reversed(range(len(extents)))])))
    total = x - y
    for d in range(len(extents)):
        total = total * 3 + cast(s.coord(d), "int32")
    s.point(s.write(total + cast(s.param(-7), "int32"), strides))
    for pieces, block in ((1, 0), (5, 2)):
        compare(s, pieces=pieces, block=block)


def test_interleaved_pairs() -> None:
    for n in (1, 16, 50):
        s = Sketch((4, n), 2)
        re, im = s.read("float32", (2 * n, 2)), s.read("float32", (2 * n, 2))
        first = s.write(re * re - im * im, (2 * n, 2), room=1)
        second = s.write(re * im * 2.0, (2 * n, 2), buffer=len(s.buffers) - 1)
        s.writes[-1] = (s.writes[-1][0], s.writes[-1][1].__class__(s.writes[-1][1].buffer, 1, (2 * n, 2)))
        s.point(first, second)
        compare(s)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "float32", "float64"])
@pytest.mark.parametrize("turns", [2, 3, 4])
@pytest.mark.parametrize("left_out", [0, 1])
def test_writes_in_turn(dtype: str, turns: int, left_out: int) -> None:
    """Whole vectors where all parts are written; where one is left out, the cells between keep what they hold."""
    for n in (1, 16, 70, 300):
        s = Sketch((3, n), 2)
        strides, count = (turns * n + 5, turns), turns - left_out
        x = s.read(dtype, (n, 1))
        values = [x, *(s.read(dtype, (k, 1)) for k in range(1, count))]
        stores = []
        for k, value in enumerate(values):
            stores.append(s.write(value, strides, buffer=len(s.buffers) - 1 if k else None, room=turns))
            access, view = s.writes[-1]
            s.writes[-1] = replace(access, follows=k > 0), replace(view, offset=k)
        s.point(*stores)
        compare(s, pieces=2, block=2)


def test_gathers_and_masks() -> None:
    for n in (0, 3, 100):
        s = Sketch((2, n), 2)
        index = s.read("int32", (0, 1), data=s.rng.integers(0, 50, max(n, 1)))
        on = s.read("bool", (n, 1))
        far = s.read("float64", (0, 0), room=60, offset=cast(index, "int64"))
        masked = s.read("float64", (0, 1), mask=on, offset=select(on, cast(index, "int64"), 10**15), room=60)
        fixed = s.read("float64", (1, 0), offset=s.param(3), room=60)
        scalar_mask = s.read("float64", (1, 0), offset=s.param(3), mask=s.coord(0) == 1, room=60)
        s.point(s.write(far + masked + fixed + scalar_mask, (n, 1)), s.write(far, (n, 1), mask=on))
        compare(s, rtol=1e-15)


def test_checks_report_lanes_that_fail_and_only_those() -> None:
    for bad in ((), (0,), (5,), (999,), (17, 400)):
        s = Sketch((1000,), 1)
        data = np.arange(1000) % 50
        data[list(bad)] = 50 + np.arange(len(bad))
        index = cast(s.read("int32", (1,), data=data), "int64")
        ok = s.check((index >= 0) & (index < 50), index, site=3)
        s.point(s.write(s.read("float32", (0,), offset=index, mask=ok, room=50), (1,)))
        compare(s, block=100)


def test_checks_without_users_and_at_other_levels() -> None:
    s = Sketch((5, 40), 2)
    row = s.coord(0)
    c = s.check(row < 4, row * 10, site=1)
    s.point(s.write(cast(s.coord(1), "int32"), (40, 1)), checks=[c])
    compare(s)
    s = Sketch((5, 40), 1, "inner")
    x = s.read("int64", (40, 1))
    (total,) = s.accumulate(("add", x), checks=[s.check(x != 1234567, x, site=0)])
    s.point(s.write(total, (1, 0)), checks=[s.check(total < -(10**9), total, site=2)])
    compare(s)


@pytest.mark.parametrize("mode", ["set", "add", "mul", "min", "max"])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int64, dtypes.float16, dtypes.uint8], ids=name)
def test_scatters(mode: str, dtype: np.dtype) -> None:
    s = Sketch((6, 50), 2)
    index = s.read("int64", (50, 1), data=s.rng.integers(0, 20, 300))
    value = s.read(dtype, (50, 1), data=s.rng.integers(1, 3, 300))
    on = s.read("bool", (50, 1))
    s.point(s.write(value, (0, 0), offset=index, mask=on, mode=mode, data=3, room=30))
    compare(s)


# ---- reductions


def accumulators(dtype: np.dtype) -> list[str]:
    return ["add", "mul", "min", "max"] + ([] if dtype.kind == "f" else ["and", "or"]) + ["argmin", "argmax"]


CUTS = [(1, 0), (2, 5), (5, 16)]  # splits, block


@pytest.mark.parametrize("vector", ["inner", "outer"])
@pytest.mark.parametrize("dtype", REAL, ids=name)
def test_all_accumulators(dtype: np.dtype, vector: str) -> None:
    for points, n in ((1, 0), (3, 1), (2, 17), (40, 70)):
        s = Sketch((points, n), 1, vector)
        data = None
        if dtype.kind != "b":  # small numbers, with ties and exact products
            data = (
                s.rng.choice([1, 1, 2, 0], points * n)
                if dtype.kind == "f" or points < 40
                else s.rng.integers(0, 100, points * n)
            )
        strides = (n, 1) if vector == "inner" else (1, points)
        x = s.read(dtype, strides, data=data if n else None)
        place = s.coord(1) * 2 + 1
        found = s.accumulate(*((op, x, place) if op.startswith("arg") else (op, x) for op in accumulators(dtype)))
        s.point(*(s.write(v, (1, 0)) for v in found))
        for splits, block in CUTS:
            compare(s, splits=splits, block=block, pieces=2, rtol=2e-3 if dtype == dtypes.float16 else 1e-6)


@pytest.mark.parametrize("vector", ["inner", "outer"])
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.float32, dtypes.float64], ids=name)
def test_extremes_with_nan_and_infinity(dtype: np.dtype, vector: str) -> None:
    for n in (1, 16, 200):
        data = np.random.default_rng(n).choice(
            [np.nan, np.inf, -np.inf, 1.0, 2.0], (6, n), p=[0.01, 0.3, 0.3, 0.2, 0.19]
        )
        data[0], data[1], data[2], data[3] = np.inf, -np.inf, np.nan, 1.0
        data[4, -1] = np.nan
        s = Sketch((6, n), 1, vector)
        x = s.read(dtype, (n, 1) if vector == "inner" else (1, 6), data=data if vector == "inner" else data.T)
        found = s.accumulate(("min", x), ("max", x), ("argmin", x, s.coord(1)), ("argmax", x, s.coord(1)))
        s.point(*(s.write(v, (1, 0)) for v in found))
        for splits in (1, 4):
            compare(s, splits=splits)


@pytest.mark.parametrize("vector", ["inner", "outer"])
@pytest.mark.parametrize("extents", [(3, 4, 5), (2, 17, 1), (33, 2, 40), (5, 0, 3), (5, 3, 0), (1, 1, 700)], ids=str)
def test_two_inner_dims(extents: tuple[int, ...], vector: str) -> None:
    p, m, n = extents
    s = Sketch(extents, 1, vector)
    x = s.read("int32", (m * n, n, 1) if vector == "inner" else (1, p * n, p))
    y = s.read("int32", (0, 1, 0))  # known in the middle loop
    z = s.read("int32", (1, 0, 0))  # known per point
    total, where = s.accumulate(("add", x * y + z * z), ("argmax", x, s.coord(1) * n + s.coord(2)))
    s.point(s.write(total * 2 + z, (1, 0, 0)), s.write(where, (1, 0, 0)))
    for splits, block in CUTS:
        compare(s, splits=splits, block=block, pieces=3)


@pytest.mark.parametrize("vector", ["inner", "outer"])
def test_two_outer_dims(vector: str) -> None:
    a, b, n = 3, 37, 21
    s = Sketch((a, b, n), 2, vector)
    x = s.read("float64", (b * n, n, 1) if vector == "inner" else (b * n, 1, b))
    scale = s.read("float64", (0, 1, 0))
    (total,) = s.accumulate(("add", x * (scale * scale + 1.0)))
    s.point(s.write(total + scale, (b, 1, 0)))
    for splits, block, pieces in ((1, 0, 1), (1, 10, 4), (3, 10, 5), (5, 37, 7)):
        compare(s, splits=splits, block=block, pieces=pieces, rtol=1e-12)


def test_strided_rows_and_columns() -> None:
    for vector, strides in itertools.product(
        ("inner", "outer"), [(-50, 3), (3, -200), (2, 90), (90, 2), (0, 1), (1, 0), (0, 0)]
    ):
        s = Sketch((29, 30), 1, vector)
        x = s.read("int16", strides)
        (total,) = s.accumulate(("add", x))
        s.point(s.write(total, (1, 0)))
        compare(s, splits=2)


@pytest.mark.parametrize("vector", ["inner", "outer"])
def test_softmax_is_three_stages(vector: str) -> None:
    for p, n in ((1, 1), (7, 100), (50, 33), (3, 0)):
        s = Sketch((p, n), 1, vector)
        strides = (n, 1) if vector == "inner" else (1, p)
        x = s.read("float32", strides)
        (top,) = s.accumulate(("max", x))
        d = x - top
        e = 1.0 / (1.0 + d * d)
        (total,) = s.accumulate(("add", e))
        s.accumulate(stores=[s.write(e / total, strides)])
        s.point(s.write(top - total, (1, 0)))
        compare(s, rtol=1e-5, atol=1e-6, block=16)
        compare(s, rtol=1e-5, atol=1e-6, stream=True)


def test_points_between_inner_stages() -> None:
    for vector in ("inner", "outer"):
        s = Sketch((20, 50), 1, vector)
        strides = (50, 1) if vector == "inner" else (1, 20)
        x = s.read("float64", strides)
        (total,) = s.accumulate(("add", x))
        mean = total / 50.0
        s.point(s.write(mean, (1, 0)))
        (square,) = s.accumulate(("add", (x - mean) * (x - mean)), stores=[s.write(x - mean, strides)])
        s.point(s.write(square, (1, 0)), s.write(mean < 0.0, (1, 0)))
        compare(s, rtol=1e-12, atol=1e-12, pieces=3)


def test_stores_while_reducing() -> None:
    for vector in ("inner", "outer"):
        s = Sketch((9, 40), 1, vector)
        strides = (40, 1) if vector == "inner" else (1, 9)
        x = s.read("int32", strides)
        (total,) = s.accumulate(("add", x * 2), stores=[s.write(x * 2, strides)])
        s.point(s.write(total, (1, 0)))
        for splits in (1, 3):
            compare(s, splits=splits)


def test_long_float32_sums_beat_pairwise_summation() -> None:
    n = 10_000_019
    data = np.random.default_rng(2).random(n, dtype=np.float32)
    exact = data.sum(dtype=np.float64)
    pairwise = abs(float(data.sum()) - exact)
    for vector, extents in (("inner", (1, n)), ("outer", (1, n))):
        s = Sketch(extents, 1, vector)
        x = s.read("float32", (0, 1), data=data)
        (total,) = s.accumulate(("add", x))
        s.point(s.write(total, (1, 0)))
        launch = s.launch()
        run_native(launch, s.buffers)
        assert abs(float(s.buffers[1][0]) - exact) <= max(pairwise, np.spacing(np.float32(exact)))


def test_sums_overflow_to_infinity() -> None:
    for vector in ("inner", "outer"):
        s = Sketch((3, 100), 1, vector)
        data = np.zeros((3, 100))
        data[0], data[1, 50], data[2, 70] = 3e38, -np.inf, np.nan
        x = s.read("float32", (100, 1) if vector == "inner" else (1, 3), data=data if vector == "inner" else data.T)
        (total,) = s.accumulate(("add", x))
        s.point(s.write(total, (1, 0)))
        for splits in (1, 3):
            out = compare_last(s, splits)
            assert out[0] == np.inf and out[1] == -np.inf and np.isnan(out[2])


def compare_last(s: Sketch, splits: int) -> np.ndarray:
    buffers = [b.copy() for b in s.buffers]
    run_native(s.launch(), buffers, splits=splits)
    return buffers[-1]


def test_results_do_not_depend_on_how_items_are_grouped() -> None:
    for vector in ("inner", "outer"):
        s = Sketch((70, 900), 1, vector)
        x = s.read("float32", (900, 1) if vector == "inner" else (1, 70))
        (total,) = s.accumulate(("add", x * x))
        s.point(s.write(total, (1, 0)))
        results = set()
        for pieces in (1, 2, 3, 11):
            buffers = [b.copy() for b in s.buffers]
            run_native(s.launch(), buffers, splits=4, block=32, pieces=pieces)
            results.add(buffers[-1].tobytes())
        assert len(results) == 1


# ---- anything


@st.composite
def programs(draw: st.DrawFn) -> Sketch:
    """A random kernel: a few reads of random classes, random arithmetic over them, one or two stages."""
    outer = draw(st.integers(1, 2))
    inner = draw(st.integers(0, 2))
    vector = draw(st.sampled_from(["outer", "inner"])) if inner else "outer"
    extents = tuple(draw(st.sampled_from([0, 1, 2, 5, 18, 67])) for _ in range(outer + inner))
    s = Sketch(extents, outer, vector, seed=draw(st.integers(0, 99)))
    dtype = draw(st.sampled_from([dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int8, dtypes.uint16]))

    def strides(dims: int) -> tuple[int, ...]:
        out, step = [0] * len(extents), 1
        order = draw(st.permutations(range(dims)))
        for d in order:
            if draw(st.integers(0, 5)):
                out[d] = step * draw(st.sampled_from([1, 1, 1, -1, 2]))
                step *= 2 * max(1, extents[d])
        return tuple(out)

    def dense(dims: int) -> tuple[int, ...]:
        return tuple(int(np.prod(extents[d + 1 : dims])) if d < dims else 0 for d in range(len(extents)))

    def expression(values: list[Value]) -> Value:
        for _ in range(draw(st.integers(1, 6))):
            x, y = draw(st.sampled_from(values)), draw(st.sampled_from(values))
            f = draw(
                st.sampled_from(
                    [
                        lambda x, y: x + y,
                        lambda x, y: x - y,
                        lambda x, y: x * y,
                        minimum,
                        maximum,
                        lambda x, y: select(x < y, y, x),
                        lambda x, y: x + 1,
                        lambda x, y: -x,
                    ]
                )
            )
            values.append(f(x, y))
        return values[-1]

    reads = [s.read(dtype, strides(len(extents))) for _ in range(draw(st.integers(1, 3)))]
    reads.append(cast(s.coord(draw(st.integers(0, len(extents) - 1))), dtype))
    if inner:
        points = [s.read(dtype, strides(outer)) for _ in range(draw(st.integers(0, 1)))]
        wide = cast(expression([*reads, *points]), "float64" if dtype.kind == "f" else "int64")
        carries = s.accumulate(
            *((op, wide) for op in draw(st.lists(st.sampled_from(["add", "min", "max"]), min_size=1, max_size=2)))
        )
        if draw(st.booleans()):
            s.accumulate(stores=[s.write(wide - carries[0], dense(len(extents)))])
        s.point(*(s.write(c * 2 - 1, dense(outer)) for c in carries))
    else:
        s.point(s.write(expression(reads), dense(outer)))
    return s


@settings(max_examples=60, deadline=None)
@given(programs(), st.integers(1, 5), st.integers(1, 70), st.booleans())
def test_random_kernels(s: Sketch, splits: int, block: int, stream: bool) -> None:
    kernel = s.launch().kernel
    compare(s, rtol=1e-4, atol=1e-4, block=block, splits=splits if kernel.splittable else 1, stream=stream, pieces=2)


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("vector", ["inner", "outer"])
def test_other_vector_widths(width: int, vector: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code for narrower vectors is right too (it runs on this CPU, through the same compiler)."""
    monkeypatch.setattr(emit_llvm, "vector_bytes", lambda features: width)
    machine = f"{build_module._machine()} {width}"
    monkeypatch.setattr(build_module, "_machine", lambda: machine)
    s = Sketch((37, 70), 1, vector)
    strides = (70, 1) if vector == "inner" else (1, 37)
    x, y = s.read("float32", strides), s.read("float32", tuple(2 * n for n in strides))
    index = s.read("int64", strides, data=s.rng.integers(0, 9, 37 * 70))
    z = s.read("float16", strides)
    far = s.read("float32", (0, 0), offset=index, mask=x < y, room=9)
    total, where = s.accumulate(("add", x * y + far), ("argmax", cast(z, "float64"), s.coord(1)))
    s.accumulate(stores=[s.write(cast(x * total, "float16"), strides)])
    s.point(s.write(total, (1, 0)), s.write(where, (1, 0)), s.write(where > 20, (1, 0)))
    compare(s, rtol=1e-3, atol=1e-4)


def test_streaming_with_writes_that_are_aligned_differently() -> None:
    s = Sketch((300,), 1)
    x = s.read("float32", (1,))
    stores = [s.write(x * 2.0, (1,), room=8), s.write(x * 3.0, (1,), room=8)]
    access, view = s.writes[-1]
    s.writes[-1] = (access, View(view.buffer, 3, view.strides))  # never aligned where the first one is
    s.point(*stores)
    compare(s, stream=True)


def test_lanes_without_elements_neither_divide_nor_fail_checks() -> None:
    s = Sketch((13,), 1)
    x, y = s.read("int64", (1,), data=range(100, 113)), s.read("int64", (1,), data=range(1, 14))
    s.point(s.write(x // y, (1,)), s.write(x % y, (1,)), checks=[s.check(y > 0, y)])
    compare(s)


def test_finishing_some_points_leaves_the_others_alone() -> None:
    for vector in ("inner", "outer"):
        s = Sketch((3, 20, 8), 2, vector)
        x = s.read("float32", (160, 8, 1) if vector == "inner" else (160, 1, 20))
        (total,) = s.accumulate(("add", x))
        s.point(s.write(total, (20, 1, 0)))
        launch = s.launch()
        whole = [b.copy() for b in s.buffers]
        run_native(launch, whole, splits=2)
        for first, last in ((0, 5), (7, 20), (15, 45), (59, 60)):
            buffers = [b.copy() for b in s.buffers]
            run_native(launch, buffers, splits=2, finish=(first, last))
            assert np.array_equal(buffers[-1][first:last], whole[-1][first:last])
            assert (buffers[-1][:first] == MARK).all() and (buffers[-1][last:] == MARK).all()


@pytest.mark.parametrize("vector", ["inner", "outer"])
def test_scatters_from_inner_stages(vector: str) -> None:
    s = Sketch((5, 30), 1, vector)
    strides = (30, 1) if vector == "inner" else (1, 5)
    index = s.read("int64", strides, data=s.rng.integers(0, 9, 150))
    value = s.read("float64", strides)
    (top,) = s.accumulate(("max", value))
    s.accumulate(stores=[s.write(value - top, (0, 0), offset=index, mode="add", room=9, data=0)])
    s.point(s.write(top, (1, 0)))
    compare(s, rtol=1e-12, atol=1e-12)


def test_more_elements_than_32_bits_count() -> None:
    n = 2**31 + 77
    s = Sketch((1, n), 1, "inner")
    x = s.read("int64", (0, 0), data=[3])
    total, last = s.accumulate(("add", x), ("max", s.coord(1)))
    s.point(s.write(total, (1, 0)), s.write(last, (1, 0)))
    for splits in (1, 3):
        buffers = [b.copy() for b in s.buffers]
        run_native(s.launch(), buffers, splits=splits)
        assert buffers[1][0] == 3 * n and buffers[2][0] == n - 1


# ---- tiles, kept values, guards, spread elements


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "bool"])
@pytest.mark.parametrize("shape", [(1, 1), (8, 9), (16, 16), (65, 130), (3, 300), (300, 3), (0, 5)])
def test_tiles(dtype: str, shape: tuple[int, int]) -> None:
    """A read along the dim before the vectors' is turned in squares, next to reads that run along the vectors."""
    rows, columns = shape
    s = Sketch((2, rows, columns), 3)
    s.tiled = True
    turned = s.read(dtype, (rows * columns, 1, rows), classes="s1s")
    plain = s.read(dtype, (rows * columns, columns, 1), classes="ss1")
    lane = cast(s.coord(2) + s.coord(1), "int64")
    along = (rows * columns, columns, 1)
    s.point(s.write(maximum(turned, plain), along, classes="ss1"), s.write(lane, along, classes="ss1"))
    for pieces in (1, 3):
        compare(s, block=64, pieces=pieces)


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("length", [1, 15, 16, 200])
def test_kept_values(width: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later stages read back what an earlier one kept, of any dtype, behind masked tails and streaming stores too."""
    monkeypatch.setattr(emit_llvm, "vector_bytes", lambda features: width)
    machine = f"{build_module._machine()} {width} kept"
    monkeypatch.setattr(build_module, "_machine", lambda: machine)
    s = Sketch((7, length), 1, "inner")
    x = s.read("float32", (length, 1))
    (top,) = s.accumulate(("max", x))
    half, positive, wide = cast(x - top, "float16"), x > 0, cast(x, "float64")
    (total,) = s.accumulate(("add", cast(half, "float32")), keeps=[half, positive])
    (more,) = s.accumulate(("add", select(positive, wide, 1.0)), keeps=[wide])
    row = (length, 1)
    scaled = cast(half, "float32") * total
    s.accumulate(stores=[s.write(scaled, row), s.write(wide * more, row), s.write(positive, row)])
    for stream in (False, True):
        compare(s, rtol=1e-5, atol=1e-5, stream=stream)


@pytest.mark.parametrize("vector", ["outer", "inner"])
@pytest.mark.parametrize("length", [1, 5, 16, 100, 333])
def test_loops_are_cut_where_guards_flip(vector: str, length: int) -> None:
    """Borders and joints: guards that rise, fall, hold nowhere or everywhere, and meet at the same place."""
    s = Sketch((4, length), 2 if vector == "outer" else 1, vector)
    i = s.coord(1)
    row, far = (length, 1), s.param(length - 3)
    guards = [i >= s.param(2), i < far, far <= i, s.param(5) - i < s.param(3), i < s.param(-4), i <= s.param(10**6)]
    both = guards[0] & guards[1]
    zero = s.b.const(0, "int64")
    found = [s.read("float32", row, offset=zero, mask=g) for g in [*guards, both, ~both]]
    stores = [s.write(select(g, x, 7.0), row) for g, x in zip([*guards, both, ~both], found, strict=True)]
    if vector == "inner":
        (total,) = s.accumulate(("add", found[6]), stores=stores)
        s.point(s.write(total, (1, 0)))
    else:
        s.point(*stores)
    for stream in (False, True):
        compare(s, rtol=1e-5, atol=1e-5, stream=stream)


def test_loads_that_a_guard_forbids_touch_nothing() -> None:
    """Their addresses may lie far outside of any memory."""
    s = Sketch((3, 100), 2)
    zero, row, i = s.b.const(0, "int64"), s.coord(0), s.coord(1)
    x = s.read("float32", (100, 1), offset=zero, mask=row < s.param(1))
    y = s.read("float32", (100, 1), offset=zero, mask=(i < s.param(50)) & (row < s.param(1)))
    s.point(s.write(x + y, (100, 1)))
    launch = s.launch()
    expected = [b.copy() for b in s.buffers]
    run_reference(launch, expected)
    distant = tuple(View(v.buffer, v.offset, (1 << 44, 1)) for v in launch.reads)  # where other rows would be
    found = [b.copy() for b in s.buffers]
    run_native(replace(launch, reads=distant), found)
    assert np.array_equal(found[2], expected[2])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "bool"])
@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("length", [1, 15, 64, 333])
def test_every_second_third_and_fourth_element(dtype: str, stride: int, length: int) -> None:
    """Whole vectors are picked apart and put together; what lies between is left alone."""
    s = Sketch((3, length), 2)
    row = (length * stride, stride)
    x, y = s.read(dtype, row), s.read(dtype, (length, 1))
    s.point(s.write(maximum(x, y), row), s.write(x, (length, 1)))
    compare(s)
    r = Sketch((3, length), 1, "inner")
    z = r.read(dtype, row)
    (top,) = r.accumulate(("max", z))
    r.point(r.write(top, (1, 0)))
    compare(r)


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lookups_and_powers_of_two(dtype: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In registers, by gathers, for vectors longer and shorter than a register; subnormal and infinite results."""
    width = min(width, emit_llvm.vector_bytes(llvm.get_host_cpu_features().flatten()))
    monkeypatch.setattr(emit_llvm, "vector_bytes", lambda features: width)
    machine = f"{build_module._machine()} {width}"
    monkeypatch.setattr(build_module, "_machine", lambda: machine)
    number, most = ("int32", 150) if dtype == "float32" else ("int64", 1070)
    table = np.random.default_rng(0).standard_normal(16)
    for other in (np.float32, np.float64):  # what most statements have decides the length of vectors
        s = Sketch((67,), 1)
        x, n = (s.read(dtype, (1,), data=d) for d in (np.linspace(0.9, 1.1, 67), np.arange(-33, 34) * most // 33))
        k, y = s.read(number, (1,), data=np.arange(-20, 47)), s.read(other, (1,))
        for _ in range(6):
            y = y * y + 1.0
        values = scalar.scale(x, n), scalar.lookup(k, table.tolist(), np.dtype(dtype)), y
        s.point(*(s.write(v, (1,)) for v in values))
        compare(s, rtol=1e-5 if other is np.float32 else 1e-12)
