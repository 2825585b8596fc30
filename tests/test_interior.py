"""Maps with borders: what pads, rolls and shifts show near an edge, and the code without guards that runs elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tracejit as tj
from tracejit.lower.index import Guard, Index, dim
from tracejit.lower.interior import interior, usually
from tracejit.lower.kernel import Stage, Store, verify
from tracejit.lower.scalar import BOOL, F32, I64, Builder

MODES = ("edge", "reflect", "symmetric", "wrap", "constant")
SHAPES = ((0, 40), (3, 17), (33, 200), (5, 1000))


def numbers(shape, dtype, seed=0):
    return (np.random.default_rng(seed).random(shape) * 100).astype(dtype)


def cross(p):
    return p[:-2, 1:-1] + p[2:, 1:-1] * 2 + p[1:-1, :-2] * 3 + p[1:-1, 2:] * 5 + p[:-2, 2:] * 7


def compiled_kernel(f, *args):
    (launch,) = f.specializations()[-1].built.plan.steps if f(*args) is not None else ()
    return launch.kernel


@pytest.mark.parametrize("dtype", ("float32", "float64", "int16", "uint8"))
@pytest.mark.parametrize("mode", MODES)
def test_stencils_of_padded_pictures(mode, dtype):
    f = tj.function(lambda x: cross(tj.pad(x, 1, mode=mode)))
    for shape in SHAPES:
        if 0 in shape and mode != "constant":
            continue
        x = numbers(shape, dtype)
        np.testing.assert_allclose(np.asarray(f(x)), cross(np.pad(x, 1, mode=mode)), rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_wide_and_uneven_pads_in_three_dims(mode):
    widths = ((0, 3), (2, 1), (5, 4))
    f = tj.function(lambda x: tj.pad(x, widths, mode=mode)[::-1, 1:, ::-1] * 2)
    for shape in ((6, 7, 8), (9, 5, 131)):
        x = numbers(shape, "float32")
        np.testing.assert_array_equal(np.asarray(f(x)), np.pad(x, widths, mode=mode)[::-1, 1:, ::-1] * 2)


def test_borders_of_several_values_in_one_kernel():
    def both(x, y):
        near = tj.concat([y[:1], x[1:-1], y[-1:]], axis=0)
        far = tj.concat([x[:, :2], y[:, 2:]], axis=1)
        return near - far, tj.roll(x, 1, 1) + tj.roll(y, -2, 0), near.sum(0)

    f = tj.function(both)
    for shape in ((2, 3), (33, 100), (70, 70)):
        x, y = numbers(shape, "float64"), numbers(shape, "float64", 1)
        near = np.concatenate([y[:1], x[1:-1], y[-1:]])
        far = np.concatenate([x[:, :2], y[:, 2:]], 1)
        want = near - far, np.roll(x, 1, 1) + np.roll(y, -2, 0), near.sum(0)
        for got, expected in zip(f(x, y), want, strict=True):
            np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-12)


def test_gathers_near_borders_are_checked():
    f = tj.function(lambda x, i: tj.pad(x[i], 1, mode="edge")[2:] + 1)
    x, i = numbers(100, "float32"), np.arange(100)[::-1].copy()
    np.testing.assert_array_equal(np.asarray(f(x, i)), np.pad(x[i], 1, mode="edge")[2:] + 1)
    for bad in (2, 50, 99):
        wrong = i.copy()
        wrong[bad] = 100
        with pytest.raises(IndexError):
            f(x, wrong)


def test_gradients_of_stencils():
    x = numbers((20, 37), "float64") / 100
    for mode in MODES:
        g = np.asarray(tj.function(tj.grad(lambda x, m=mode: (cross(tj.pad(x, 1, mode=m)) ** 2).sum()))(x))
        basis = np.zeros_like(x)
        basis[0, 0] = basis[19, 36] = basis[7, 30] = 1
        step = 1e-6
        loss = lambda x, m=mode: (cross(np.pad(x, 1, mode=m)) ** 2).sum()
        want = (loss(x + step * basis) - loss(x - step * basis)) / (2 * step)
        np.testing.assert_allclose((g * basis).sum(), want, rtol=1e-6)


def test_bits_do_not_depend_on_threads_or_places():
    x = numbers((300, 1111), "float32")
    f = tj.function(lambda x: cross(tj.pad(x, 1, mode="reflect")) * np.float32(0.3))
    before = tj.config.num_threads()
    results = []
    try:
        for n in (1, 2, 5):
            tj.config.set_num_threads(n)
            results.append(np.asarray(f(x)).tobytes())
    finally:
        tj.config.set_num_threads(before)
    assert len(set(results)) == 1
    part = np.asarray(f(x[:, 16:]))[5:-5, 5:-5]  # the same sums, in other lanes
    np.testing.assert_array_equal(part, np.asarray(f(x))[5:-5, 21:-5])


def test_the_interior_has_no_guards():
    k = compiled_kernel(tj.function(lambda x: cross(tj.pad(x, 1, mode="edge"))), numbers((64, 64), "float32"))
    assert k.interior is not None
    loads = [k.stmts[i] for i in k.usually if k.stmts[i].op == "load"]
    assert len(loads) == 5 and not any(s.args for s in loads)
    assert not any(k.stmts[i].op in ("select", "lt", "le", "and") for i in k.usually)
    assert len(k.usually) < len(k.stmts) / 2


def test_columns_and_channels_near_a_border_are_one_row():
    """A border along columns is one along both: else rows would be as short as there are channels."""
    for channels in (3, 16, 70):
        x = numbers((2, 20, 21, channels), "float32")
        for mode in ("constant", "edge"):
            f = tj.function(lambda x, m=mode: tj.pad(x, ((0, 0), (1, 2), (3, 1), (0, 0)), mode=m) + 1)
            want = np.pad(x, ((0, 0), (1, 2), (3, 1), (0, 0)), mode=mode) + 1
            np.testing.assert_array_equal(np.asarray(f(x)), want)
        kernel = compiled_kernel(tj.function(lambda x: tj.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))), x)
        assert kernel.outer == 3
        assert {s.attrs for s in kernel.stmts if s.op == "coord"} == {(1,), (2,)}


def test_borders_of_flipped_columns_stay_apart_from_channels():
    x = numbers((30, 40, 5), "float32")
    f = tj.function(lambda x: tj.pad(x, ((1, 1), (2, 1), (0, 0)))[:, ::-1] * 2 + tj.pad(x, ((1, 1), (1, 2), (0, 0))))
    want = np.pad(x, ((1, 1), (2, 1), (0, 0)))[:, ::-1] * 2 + np.pad(x, ((1, 1), (1, 2), (0, 0)))
    np.testing.assert_array_equal(np.asarray(f(x)), want)


@pytest.mark.parametrize("index", [dim(0, 12), dim(0, 12) * 3 + 2, dim(0, 12) * -2 + 5, dim(0, 12) // 5 * -3 + 1,
                                   (dim(0, 12) // 2 * 2 - 3) * 2], ids=str)
def test_guards_alone_say_the_same(index):
    for low in range(-9, 9):
        for high in range(low, 12):
            guard = Guard(index, low, high)
            plain = guard.alone()
            assert plain.index in (dim(0, 12), index)
            for i in range(12):
                at, here = (g.index.substitute(lambda d, i=i: Index((), i)) for g in (guard, plain))
                assert (low <= at.const < high) == (plain.low <= here.const < plain.high)


def test_parts_that_do_not_fit_at_the_end_are_stored_where_there_is_a_place():
    for n in (31, 64):
        x = numbers((n, n, 5), "float32")
        f = tj.function(tj.grad(lambda x: (tj.nn.avg_pool2d(x[None], 2, strides=2)[0] ** 2).sum()))
        want = np.zeros_like(x)
        even = n - n % 2
        blocks = x[:even, :even].reshape(even // 2, 2, even // 2, 2, 5)
        means = np.broadcast_to(blocks.mean((1, 3), keepdims=True) / 2, blocks.shape)
        want[:even, :even] = means.reshape(even, even, 5)
        np.testing.assert_allclose(np.asarray(f(x)), want, rtol=1e-5)


def test_what_is_read_of_one_value_moves_together():
    """Every pointer by itself would cost more than the work on a short row."""
    x, y = numbers((9, 30, 16), "float32"), numbers((9, 30, 32), "float32")
    f = tj.function(lambda x, y: x[:-2] + x[1:-1] * 2 + x[2:] + y[1:-1, :, ::2] * 3 + y[:-2, :, ::2])
    kernel = compiled_kernel(f, x, y)
    assert [a.like for a in (*kernel.reads, *kernel.writes)] == [None, 0, 0, None, 3, None]
    want = x[:-2] + x[1:-1] * 2 + x[2:] + y[1:-1, :, ::2] * 3 + y[:-2, :, ::2]
    np.testing.assert_allclose(np.asarray(f(x, y)), want, rtol=1e-6)
    with pytest.raises(tj.errors.InternalError, match="unlike accesses"):
        verify(replace(kernel, reads=(*kernel.reads[:-1], replace(kernel.reads[-1], like=0))))


def test_halves_have_no_interior():
    k = compiled_kernel(tj.function(lambda x, y: tj.concat([x, y]) * 2), numbers(64, "float32"), numbers(64, "float32"))
    assert k.interior is None


def test_longest_run_of_places_is_whole():
    k = compiled_kernel(tj.function(lambda x: tj.pad(x, 2, mode="edge") * 2), numbers(64, "float32"))
    (load,) = [k.stmts[i] for i in k.usually if k.stmts[i].op == "load"]
    assert not load.args


def test_usual_outcome_of_a_guard():
    i = dim(0, 80)
    assert usually(Guard(i, 10, 90), 10) is True
    assert usually(Guard(i, 70, 90), 70) is False
    assert usually(Guard(i, 40, 90), 40) is None
    assert usually(Guard(i + dim(1, 3), 1, 90), 1) is None


def test_interior_of_statements():
    b = Builder()
    at = b.emit("coord", I64, (), (0,))
    edge = b.emit("lt", BOOL, (at, b.emit("param", I64, (), (0,))))
    inside = b.emit("le", BOOL, (b.emit("param", I64, (), (1,)), at))
    other = b.emit("load", BOOL, (), (1,))
    masked = b.emit("load", F32, (b.const(0, I64), inside & other), (0,))
    plain = b.emit("load", F32, (b.const(0, I64), inside | edge), (0,))
    zero = b.const(0, F32)
    value = b.emit("select", F32, (edge, zero, masked)) + b.emit("select", F32, (~edge, plain, zero))
    stage, guards = interior(b, Stage(False, (), (Store(0, value.index),)), {edge.index: False, inside.index: True})
    assert set(guards) == {(edge.index, False), (inside.index, True)}
    total = b.stmts[stage.stores[0].value]
    first, second = (b.stmts[a] for a in total.args)
    assert total.op == "add" and first.op == second.op == "load"
    assert first.args == (b.const(0, I64).index, other.index) and second.args == ()
