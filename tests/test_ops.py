"""Generated tests over the whole op table: what each op says about itself agrees with what it does.

For every op and dtype it takes: inference = what NumPy gives; the scalar rule = eager; compiled = eager; derivatives =
finite differences, to second order; forward mode = reverse mode. Inputs come from `samples.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from samples import C128, F64, Sample, edge_samples, op_table, samples

import tracejit as tj
from tracejit import dtypes
from tracejit.ir import Op, Type
from tracejit.lower.scalar import interpret
from tracejit.quiet import quietly
from tracejit.tensor import Tensor, apply, wrap

OPS = op_table()
ELEMENTWISE = [name for name, op in OPS.items() if op.kind == "elementwise"]
DIFFERENTIABLE = [name for name, op in OPS.items() if op.vjp is not None and name != "stop_gradient"]
# a second value within the same float16 step counts as equal; NumPy's own functions are off by up to this
ULPS = {"pow": 8, "integer_power": 8, "lgamma": 16, "digamma": 16, "polygamma": 400, "erfinv": 8, "logaddexp": 8}
# functions that pass through zero, so that errors are measured against 1
FLOOR = {"lgamma": 1.0, "digamma": 1.0, "logaddexp": 1.0, "polygamma": 1.0, "remainder": 0.0}


def eager(op: Op, sample: Sample) -> np.ndarray:
    return np.asarray(quietly(op.eager, *sample.arrays, **sample.attrs))


def all_samples(op: Op, rng: np.random.Generator) -> list[Sample]:
    return [s for d in dtypes.ALL for s in samples(op, d, rng)]


def assert_close(found: np.ndarray, wanted: np.ndarray, ulps: float, floor: float = 0.0, where: str = "") -> None:
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, f"{where}: {found.dtype}{found.shape}"
    if found.dtype.kind not in "fc":
        np.testing.assert_array_equal(found, wanted, where)
        return
    if found.dtype.kind == "c":
        scale = np.maximum(np.abs(wanted), floor)
        for part, reference in ((found.real, wanted.real), (found.imag, wanted.imag)):
            assert_within(part, reference, ulps, scale, where)
    else:
        assert_within(found, wanted, ulps, np.maximum(np.abs(wanted), floor), where)


def assert_within(found: np.ndarray, wanted: np.ndarray, ulps: float, scale: np.ndarray, where: str) -> None:
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    with np.errstate(all="ignore"):
        info = np.finfo(found.dtype)
        wide = np.longdouble
        unit = np.maximum(scale.astype(wide) * info.eps, info.smallest_subnormal)
        near = np.abs(found.astype(wide) - wanted.astype(wide)) <= ulps * unit
    bad = ~(same | near)
    assert not bad.any(), f"{where}: {found[bad][:5]} instead of {wanted[bad][:5]}"


# -- every op is described ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", OPS)
def test_every_op_has_samples_and_words(name: str, rng: np.random.Generator) -> None:
    op = OPS[name]
    assert all_samples(op, rng), (f"{name} has neither a domain (elementwise ops and reductions) nor an entry in "
                                  f"MAKERS of tests/samples.py, so nothing tests it")
    assert op.doc, f"{name} has no doc"
    assert op.kind not in ("elementwise",) or op.scalar is not None, f"{name} has no scalar rule"


# -- inference, and the scalar rule ------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", OPS)
def test_inference_is_what_numpy_gives(name: str, rng: np.random.Generator) -> None:
    op = OPS[name]
    for sample in all_samples(op, rng):
        found = op.infer(*(Type(a.shape, a.dtype) for a in sample.arrays), **sample.attrs)
        result = eager(op, sample)
        given = Type(result.shape, result.dtype)
        assert found == given, f"{name} {sample}: infers {found}, gives {given}"


def by_scalar_rule(op: Op, sample: Sample) -> np.ndarray:
    return np.asarray(quietly(interpret, lambda *xs: op.scalar(*xs, **sample.attrs), *sample.arrays))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_scalar_rule_is_eager(name: str, rng: np.random.Generator) -> None:
    op = OPS[name]
    for sample in all_samples(op, rng):
        wanted = eager(op, sample)
        complex_ = any(a.dtype.kind == "c" for a in sample.arrays)
        floor = 1.0 if complex_ else FLOOR.get(name, 0.05)
        found = np.broadcast_to(by_scalar_rule(op, sample), wanted.shape)
        assert_close(found, wanted, ULPS.get(name, 4) * (4 if complex_ else 1), floor, f"{name} {sample}")


@pytest.mark.parametrize("name", [n for n in ELEMENTWISE if n not in ("cast", "polygamma")])
def test_scalar_rule_at_edges(name: str) -> None:
    """Zeros of both signs, infinities, nan, the largest, the smallest: the same answers as NumPy."""
    op = OPS[name]
    for d in dtypes.ALL:
        for sample in edge_samples(op, d):
            if name == "pow" and d.kind == "i":
                continue  # NumPy refuses negative exponents
            wanted = eager(op, sample)
            found = np.broadcast_to(by_scalar_rule(op, sample), wanted.shape)
            assert_close(found, wanted, ULPS.get(name, 4), FLOOR.get(name, 0.05), f"{name} {d}")


# -- compiled ----------------------------------------------------------------------------------------------------------
def compiled(op: Op, chosen: Sequence[Sample]) -> list[np.ndarray]:
    """All samples in one traced function, so that one compilation serves them all."""
    counts = [len(s.arrays) for s in chosen]

    def run(*xs: Tensor) -> tuple[Tensor, ...]:
        rest = list(xs)
        return tuple(apply(op, [rest.pop(0) for _ in range(n)], s.attrs) for n, s in zip(counts, chosen))

    arguments = [tj.asarray(a) for s in chosen for a in s.arrays]
    return [t.numpy() for t in tj.function(run)(*arguments)]


@pytest.mark.filterwarnings("ignore:.*has been decorated")
@pytest.mark.parametrize("name", OPS)
def test_compiled_is_eager(name: str, rng: np.random.Generator) -> None:
    op = OPS[name]
    for k, d in enumerate(COMPILED):
        chosen = samples(op, d, rng)
        chosen = chosen if k == 0 or len(chosen) < 12 else chosen[k % 4::4]  # all shapes and layouts for the first
        for sample, found in zip(chosen, compiled(op, chosen) if chosen else ()):
            wanted = eager(op, sample)
            complex_ = any(a.dtype.kind == "c" for a in sample.arrays)
            ulps, floor = ULPS.get(name, 4) * (4 if complex_ else 1), 1.0 if complex_ else FLOOR.get(name, 0.05)
            if op.kind in ("reduction", "library"):
                ulps, floor = 32, 8.0  # another order of additions
            assert_close(found, wanted, ulps, floor, f"{name} {sample}")


COMPILED = [np.dtype(n) for n in ("float32", "float64", "int32", "uint8", "bool", "complex64", "float16", "int64",
                                  "uint64")]


# -- derivatives -------------------------------------------------------------------------------------------------------
STEP = 1e-6


def inner(x: Tensor, y: Tensor) -> Tensor:
    """Real inner product; complex numbers are pairs."""
    return tj.sum(tj.real(tj.conj(x) * y))


def differentiable(op: Op, rng: np.random.Generator) -> list[Sample]:
    kept = []
    for d in (F64, C128):
        for s in samples(op, d, rng):
            moves = any(a.dtype.kind in "fc" and a.size for a in s.arrays)
            result = op.infer(*(Type(a.shape, a.dtype) for a in s.arrays), **s.attrs)
            if moves and result.dtype in (F64, C128):
                kept.append(s)
    return kept


def scalar_function(op: Op, sample: Sample, rng: np.random.Generator) -> tuple[Callable[..., Tensor], list[int]]:
    """<w, op(xs)> as a function of the inputs that move, and which these are."""
    moving = [k for k, a in enumerate(sample.arrays) if a.dtype.kind in "fc"]
    result = op.infer(*(Type(a.shape, a.dtype) for a in sample.arrays), **sample.attrs)
    w = tj.asarray(direction(rng, result.shape, result.dtype))

    def f(*xs: Tensor) -> Tensor:
        args: list[Any] = [wrap(a) for a in sample.arrays]
        for k, x in zip(moving, xs):
            args[k] = x
        return inner(w, apply(op, args, sample.attrs))

    return f, moving


def direction(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    v = rng.normal(size=shape)
    return np.asarray(v + 1j * rng.normal(size=shape) if dtype.kind == "c" else v, dtype)


def check_gradient(f: Callable[..., Tensor], xs: list[np.ndarray], rng: np.random.Generator, where: str) -> None:
    """The gradient along a random direction against a central difference."""
    gradients = tj.grad(f, tuple(range(len(xs))))(*map(tj.asarray, xs))
    vs = [direction(rng, x.shape, x.dtype) for x in xs]
    ahead, behind = (float(f(*(tj.asarray(x + s * STEP * v) for x, v in zip(xs, vs)))) for s in (1, -1))
    wanted = (ahead - behind) / (2 * STEP)
    found = sum(float(inner(g, tj.asarray(v))) for g, v in zip(gradients, vs))
    assert found == pytest.approx(wanted, rel=2e-6, abs=2e-7), where


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradient_is_the_finite_difference(name: str, rng: np.random.Generator) -> None:
    op = OPS[name]
    for sample in differentiable(op, rng):
        f, moving = scalar_function(op, sample, rng)
        check_gradient(f, [sample.arrays[k] for k in moving], rng, f"{name} {sample}")


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_second_gradient_is_the_finite_difference(name: str, rng: np.random.Generator) -> None:
    op = OPS[name]
    chosen = differentiable(op, rng)
    chosen = [s for s in chosen if s.arrays[0].size > 1]
    for sample in {(len(s.arrays), s.arrays[0].dtype, str(s.attrs)): s for s in chosen}.values():
        f, moving = scalar_function(op, sample, rng)
        xs = [sample.arrays[k] for k in moving]
        us = [tj.asarray(direction(rng, x.shape, x.dtype)) for x in xs]

        def slope(*ts: Tensor, f: Any = f, us: Any = us) -> Tensor:
            gradients = tj.grad(f, tuple(range(len(ts))))(*ts)
            return sum((inner(g, u) for g, u in zip(gradients, us)), tj.asarray(0.0, "float64"))

        check_gradient(slope, xs, rng, f"{name} {sample}, second order")


# An op without a forward rule derives it from its reverse one, so there is nothing to compare.
@pytest.mark.parametrize("name", [name for name in DIFFERENTIABLE if OPS[name].jvp is not None])
def test_forward_mode_is_reverse_mode(name: str, rng: np.random.Generator) -> None:
    op = OPS[name]
    for sample in differentiable(op, rng):
        xs = [wrap(a) for a in sample.arrays]
        y = apply(op, xs, sample.attrs)
        w = tj.asarray(direction(rng, y.shape, y.dtype))
        vs = [tj.asarray(direction(rng, x.shape, x.dtype)) if x.dtype.kind in "fc" else None for x in xs]
        back = op.vjp(w, y, *xs, **sample.attrs)
        back = back if isinstance(back, tuple) else (back,)
        forward = op.jvp(vs, y, *xs, **sample.attrs)
        found = 0.0 if forward is None else float(inner(w, forward))
        wanted = sum(float(inner(g, v)) for g, v in zip(back, vs) if g is not None and v is not None)
        assert found == pytest.approx(wanted, rel=1e-9, abs=1e-11), f"{name} {sample}"
        for g, x in zip(back, xs):
            assert g is None or (g.shape == x.shape and g.dtype == x.dtype), f"{name} {sample}: cotangent of {x.shape}"
