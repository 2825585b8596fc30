"""The walks (`trace/autodiff.py`), graphs split into programs (`trace/split.py`), what is kept
(`trace/residuals.py`), and random programs whose gradients are compared with differences, eager with compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracejit as tj
from tracejit.errors import InternalError
from tracejit.ir import Graph, Type, count, verify
from tracejit.ops.core import elementwise, same
from tracejit.tensor import Tensor, evaluate, taping, wrap
from tracejit.trace.autodiff import Recording, backward, forward
from tracejit.trace.split import pullback, split
from tracejit.trace.tracer import trace_function

Function = Callable[..., Any]
F64 = np.dtype("float64")


def graph_of(f: Function, *xs: np.ndarray) -> Graph:
    return trace_function(f, *(Type(x.shape, x.dtype) for x in xs))


def run(graph: Graph, *xs: Any) -> list[np.ndarray]:
    return [y.numpy() for y in evaluate(graph, [x if isinstance(x, Tensor) else wrap(np.asarray(x)) for x in xs])]


# -- the walks ---------------------------------------------------------------------------------------------------------
def recorded(f: Function, *xs: Tensor) -> tuple[Recording, Any]:
    tape = Recording()
    for x in xs:
        tape.track(x)
    with taping((tape,)):
        return tape, f(*xs)


def test_only_what_depends_on_tracked_values_is_recorded() -> None:
    x, y = tj.asarray([1.0, 2.0]), tj.asarray([3.0, 4.0])
    tape, _ = recorded(lambda x: (y * 2 + y).sum() + (x * 2).sum() * 1.0, x)
    assert not any(r.op.name == "add" and r.outs[0].shape == (2,) for r in tape.records)
    assert [r.op.name for r in tape.records].count("sum") == 1
    tape, _ = recorded(lambda x: (x > 1, tj.argmax(x), x.astype("int32")), x)
    assert tape.records == []  # integers and truth values carry no gradient


def test_zero_cotangents_are_never_made() -> None:
    """Only the path from seeds to wanted values is walked, and nothing is added on it."""
    x = tj.asarray([1.0, 2.0])

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return tj.sin(x), tj.exp(x)

    tape, (_, e) = recorded(f, x)
    walk = Recording()
    seed = tj.ones(2)
    walk.track(seed)
    with taping((walk,)):
        found = backward(tape.records, {tape.key(e): seed}, {tape.key(x)})
    assert [r.op.name for r in walk.records] == ["mul_zero"]
    np.testing.assert_allclose(found[tape.key(x)].numpy(), np.exp([1, 2]), rtol=1e-6)
    assert backward(tape.records, {}, {tape.key(x)}) == {}
    assert forward(tape.records, {}) == {}


def test_a_wrong_rule_is_found_at_once() -> None:
    bad = elementwise("bad", arity=1, dtype=same, eager=np.sin, scalar=lambda x: x, vjp=lambda g, y, x: (g.sum(),),
                      jvp=lambda t, y, x: t[0].sum())
    with pytest.raises(InternalError, match=r"the vjp of bad gives f32\[\] for an input of f32\[2\]"):
        tj.grad(lambda x: bad(x).sum())(np.ones(2, "float32"))
    with pytest.raises(InternalError, match=r"the jvp of bad gives f32\[\] for a result of f32\[2\]"):
        tj.jvp(bad, (np.ones(2, "float32"),), (np.ones(2, "float32"),))


def test_an_op_with_a_vjp_only_has_a_jvp_too() -> None:
    cube = elementwise("cube", arity=1, dtype=same, eager=lambda x: x**3, scalar=lambda x: x * x * x,
                       vjp=lambda g, y, x: (g * 3 * x * x,))
    x, t = np.array([1.0, 2.0]), np.array([1.0, -2.0])
    np.testing.assert_allclose(tj.jvp(cube, (x,), (t,))[1].numpy(), 3 * x * x * t)
    np.testing.assert_allclose(tj.jvp(lambda x: tj.jvp(cube, (x,), (t,))[1], (x,), (t,))[1].numpy(), 6 * x * t * t)


# -- splitting ---------------------------------------------------------------------------------------------------------
def dense(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return tj.relu(x @ w + b).sum()


def softmax(x: Tensor) -> Tensor:
    e = tj.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def layer_norm(x: Tensor, gain: Tensor) -> Tensor:
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / tj.sqrt((centred * centred).mean(axis=1, keepdims=True) + 1e-5) * gain


def chain(x: Tensor) -> Tensor:
    for _ in range(10):
        x = tj.sin(x) * 1.1 + x * x
    return x


def several(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return tj.cumsum(x * x, axis=0), n + 1, tj.sort(x, axis=0)


rng = np.random.default_rng(0)
CASES = [
    (dense, (rng.normal(size=(8, 4)), rng.normal(size=(4, 3)), rng.normal(size=3))),
    (softmax, (rng.normal(size=(5, 7)),)),
    (layer_norm, (rng.normal(size=(5, 7)), rng.normal(size=7))),
    (chain, (rng.normal(size=(6,)) * 0.3,)),
    (several, (rng.normal(size=(4, 3)), np.arange(3))),
    (lambda x: (x, x), (rng.normal(size=3),)),
    (lambda x, y: x * 2, (rng.normal(size=3), rng.normal(size=2))),
    (lambda x: tj.ones(3, "float64"), (rng.normal(size=3),)),
]


@pytest.mark.parametrize(("f", "xs"), CASES)
def test_split_is_the_same_function_and_its_gradient(f: Function, xs: tuple[np.ndarray, ...]) -> None:
    graph = graph_of(f, *xs)
    first, second = split(graph)
    for g in (first, second, pullback(graph)):
        verify(g)
    n = len(graph.outputs)
    outputs = run(first, *xs)
    for a, b in zip(outputs[:n], run(graph, *xs), strict=True):
        np.testing.assert_array_equal(a, b)
    weights = [np.asarray(rng.normal(size=y.shape)) for y in outputs[:n] if y.dtype == F64]
    found = dict(zip(second.notes["cotangents"], run(second, *outputs[n:], *weights), strict=True))

    def value(*xs: Any) -> Tensor:
        ys = f(*xs)
        ys = ys if isinstance(ys, tuple) else (ys,)
        weighed = [(y * w).sum() for y, w in zip([y for y in ys if y.dtype == F64], weights, strict=True)]
        return sum(weighed[1:], start=weighed[0])

    for k, x in enumerate(xs):
        if x.dtype == F64:
            wanted = tj.grad(value, argnums=k)(*xs).numpy()
            np.testing.assert_allclose(found.get(k, np.zeros_like(x)), wanted, rtol=1e-12, atol=1e-14)
        else:
            assert k not in found


def kept_bytes(f: Function, *xs: np.ndarray) -> int:
    """Bytes that the forward program keeps beside inputs and results."""
    graph = graph_of(f, *xs)
    first, _ = split(graph)
    n = len(graph.outputs)
    old = {*first.inputs, *first.outputs[:n]}
    return sum(r.type.size * r.type.dtype.itemsize for r in first.outputs[n:] if r not in old)  # type: ignore[union-attr]


def test_little_is_kept() -> None:
    x = np.zeros((64, 32), "float32")
    assert kept_bytes(chain, x) == 0  # an elementwise chain is computed again from its input
    assert kept_bytes(softmax, x) <= 3 * 64 * 4  # what the rows were reduced to
    assert kept_bytes(layer_norm, x, np.zeros(32, "float32")) <= 3 * 64 * 4
    w, b = np.zeros((32, 16), "float32"), np.zeros(16, "float32")
    assert kept_bytes(dense, x, w, b) == 64 * 16  # one bool an element
    assert kept_bytes(lambda x: tj.broadcast_to(x.sum(axis=1)[:, None] * 2.0, (64, 999)) ** 2, x) <= 64 * 4
    assert kept_bytes(lambda x: x + 1, x) == 0


def test_what_is_compared_for_equality_is_kept() -> None:
    """The maximum's place must be found again, however the recomputation is fused."""
    x = np.zeros((64, 32), "float32")
    graph = graph_of(lambda x: (x * 1.7 + x.sum(axis=0)).max(axis=1), x)
    first, second = split(graph)
    assert "add" in {n.op.name for n in first.outputs} or not count(second, "equal")


def test_dead_parts_are_dropped() -> None:
    x = np.zeros((4, 4))
    graph = graph_of(lambda x: (tj.sin(x) @ tj.ones((4, 4), "float64"), tj.argmax(tj.exp(x))), x)
    first, second = split(graph)
    assert count(second, "argmax") == 0
    assert count(second, "exp") == 0
    first, second = split(graph, seeded=())
    assert second.outputs == ()
    assert len(first.outputs) == 2


def test_backward_for_some_cotangents_only() -> None:
    x = np.array([0.5, 1.5])
    graph = graph_of(lambda x: (tj.sin(x), tj.exp(x)), x)
    first, second = split(graph, seeded=(1,))
    kept = run(first, x)[2:]
    np.testing.assert_allclose(run(second, *kept, np.ones(2))[0], np.exp(x))
    assert count(second, "cos") == 0


# -- random programs ---------------------------------------------------------------------------------------------------
UNARY = [tj.sin, tj.tanh, lambda x: tj.exp(x * 0.3), lambda x: x * x * 0.5, lambda x: 1 / (2 + x * x), lambda x: -x,
         tj.softplus, lambda x: tj.sqrt(1 + x * x), lambda x: tj.log(2 + tj.cos(x)), tj.arctan, lambda x: x.T,
         lambda x: x[::-1], lambda x: x[:, 1:2] + x * 0, lambda x: tj.cumsum(x, axis=0),
         lambda x: tj.roll(x, 1, axis=1),
         lambda x: x - x.mean(axis=1, keepdims=True), lambda x: x / (1 + tj.abs(x).sum(axis=0)), lambda x: x @ x * 0.3,
         lambda x: tj.where(x > 0.1, x * x, tj.sin(x)), lambda x: tj.take(x, tj.asarray([2, 0, 2]), axis=0),
         lambda x: tj.sort(x, axis=1), lambda x: x.reshape(-1)[::-1].reshape(3, 3), lambda x: x.at[1].set(x[0] * 2),
         lambda x: tj.linalg.norm(x, axis=0) + x, lambda x: tj.logsumexp(x, axis=1)[:, None] + x,
         lambda x: tj.prod(x, axis=0) + x]
BINARY = [lambda x, y: x + y, lambda x, y: x * y, lambda x, y: x - 2 * y, lambda x, y: x @ y * 0.3, tj.maximum,
          tj.minimum, lambda x, y: tj.arctan2(x, 3 + y * y), lambda x, y: tj.where(x > y, x, y * 0.5),
          lambda x, y: tj.einsum("ij,kj->ik", x, y) * 0.2, lambda x, y: (2 + tj.sin(x)) ** y,
          lambda x, y: tj.concat([x, y], axis=0)[1:4]]


@st.composite
def programs(draw: Any) -> Function:
    """A program of two 3 x 3 inputs with a scalar result."""
    steps = []
    for n in range(draw(st.integers(1, 7))):
        if draw(st.booleans()):
            steps.append((draw(st.sampled_from(UNARY)), (draw(st.integers(0, n + 1)),)))
        else:
            steps.append((draw(st.sampled_from(BINARY)), (draw(st.integers(0, n + 1)), draw(st.integers(0, n + 1)))))

    def f(x: Any, y: Any) -> Any:
        values = [x, y]
        for op, at in steps:
            values.append(op(*(values[k] for k in at)))
        return (values[-1] * values[-2]).sum()

    return f


def near_a_kink(g: Function, x: np.ndarray, d: np.ndarray, step: float) -> bool:
    """Whether slopes on both sides differ: a difference says nothing there."""
    a, b = (g(x + s * d) for s in (-2 * step, 2 * step))
    return not np.allclose(a, b, rtol=1e-3, atol=1e-3)


@settings(max_examples=60)
@given(programs(), st.integers(0, 1000))
def test_gradient_against_differences(f: Function, seed: int) -> None:
    random = np.random.default_rng(seed)
    x, y, dx, dy = (random.uniform(-1, 1, (3, 3)) for _ in range(4))
    step = 1e-6
    gx, gy = tj.grad(f, argnums=(0, 1))(x, y)
    slope = float((gx.numpy() * dx).sum() + (gy.numpy() * dy).sum())
    moved = float(tj.jvp(f, (x, y), (dx, dy))[1])
    scale = 1 + abs(slope)
    assert abs(moved - slope) < 1e-9 * scale
    up, down = (float(f(tj.asarray(x + s * dx), tj.asarray(y + s * dy))) for s in (step, -step))

    def along(t: np.ndarray) -> Any:
        gx, gy = tj.grad(f, argnums=(0, 1))(x + t[0] * dx, y + t[0] * dy)
        return float((gx.numpy() * dx).sum() + (gy.numpy() * dy).sum())

    if not near_a_kink(along, np.zeros(1), np.ones(1), step):
        assert abs((up - down) / (2 * step) - slope) < 1e-5 * scale
        second = float(tj.hvp(f, (x, y), (dx, dy))[0].numpy().ravel() @ dx.ravel()
                       + tj.hvp(f, (x, y), (dx, dy))[1].numpy().ravel() @ dy.ravel())
        a, b = along(np.array([step])), along(np.array([-step]))
        curved = (a - b) / (2 * step)
        assert abs(curved - second) < 1e-4 * (1 + abs(second) + scale)


@settings(max_examples=12)
@given(programs(), st.integers(0, 1000))
def test_compiled_gradient_equals_eager(f: Function, seed: int) -> None:
    random = np.random.default_rng(seed)
    x, y = random.uniform(-1, 1, (3, 3)), random.uniform(-1, 1, (3, 3))
    both = tj.value_and_grad(f, argnums=(0, 1))
    value, (gx, gy) = both(x, y)
    for way in (tj.function(both), tj.value_and_grad(tj.function(f), argnums=(0, 1))):
        v, (hx, hy) = way(x, y)
        for a, b in ((value, v), (gx, hx), (gy, hy)):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-11)
