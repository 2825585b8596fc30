"""Memory of named programs: how many kernels, what each reads and writes, bytes of temporaries and results, what a
forward program keeps for its backward program, what is updated in place; and what `tj.stats()` says of it all."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.ir import Graph
from tracejit.lower.kernel import Launch
from tracejit.lower.plan import Gemm, Step, launch_of, operands_of
from tracejit.runtime import pool
from tracejit.trace.built import Built
from tracejit.trace.split import split

ROWS, COLS = 512, 256
LARGE = 4 * ROWS * COLS  # bytes of a matrix of that size


def normal(*shape: int, seed: int = 0) -> tj.Tensor:
    return tj.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def lowered(f: Callable[..., Any], *args: Any) -> Built:
    return tj.function(f).lower(*args).built


def traffic(built: Built, step: Step) -> tuple[Counter[int], Counter[int]]:
    """How many elements a step's kernel loads and stores at most, by buffer, for those as large as a matrix."""
    launch = launch_of(step)
    assert launch is not None
    kernel = launch.kernel
    large = {b for b, buffer in enumerate(built.plan.buffers) if buffer.nbytes >= LARGE}
    reads = Counter({b: n for b, n in Counter(v.buffer for v in launch.reads).items() if b in large})
    writes: Counter[int] = Counter()
    for stage in kernel.stages:
        writes.update(b for store in stage.stores if (b := launch.writes[store.write].buffer) in large)
    return reads, writes


# -- rows ----------------------------------------------------------------------------------------------------------
def softmax(x: tj.Tensor) -> tj.Tensor:
    e = tj.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x: tj.Tensor, gain: tj.Tensor, bias: tj.Tensor) -> tj.Tensor:
    d = x - x.mean(-1, keepdims=True)
    return d / tj.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * gain + bias


def log_sum_exp(x: tj.Tensor) -> tj.Tensor:
    return tj.logsumexp(x, axis=-1)


def gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Of the weighted sum of f's results, by its first argument; the weights come last."""
    return lambda x, *rest: tj.grad(lambda x: (f(x, *rest[:-1]) * rest[-1]).sum())(x)


X, W = normal(ROWS, COLS), normal(ROWS, COLS, seed=1)
GAIN, BIAS = normal(COLS, seed=2), normal(COLS, seed=3)
# name: (function, arguments, large arrays read, large arrays written, bytes of results)
ROW_PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tj.Tensor, ...], int, int, int]] = {
    "softmax": (softmax, (X,), 1, 1, LARGE),
    "log softmax": (lambda x: x - tj.logsumexp(x, axis=-1, keepdims=True), (X,), 1, 1, LARGE),
    "layer norm": (layer_norm, (X, GAIN, BIAS), 1, 1, LARGE),
    "rms norm": (lambda x, g: x / tj.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g, (X, GAIN), 1, 1, LARGE),
    "logsumexp": (log_sum_exp, (X,), 1, 0, 4 * ROWS),
    "variance": (lambda x: x.var(-1), (X,), 1, 0, 4 * ROWS),
    "cosine similarity": (lambda x, y: (x * y).sum(-1) / tj.sqrt((x * x).sum(-1) * (y * y).sum(-1)), (X, W), 2, 0,
                          4 * ROWS),
    "argmax": (lambda x: x.argmax(-1), (X,), 1, 0, 8 * ROWS),
    "gradient of softmax": (gradient(softmax), (X, W), 2, 1, LARGE),
    "gradient of layer norm": (gradient(layer_norm), (X, GAIN, BIAS, W), 2, 1, LARGE),
    "gradient of logsumexp": (gradient(log_sum_exp), (X, normal(ROWS)), 1, 1, LARGE),
    "pullback of softmax": (lambda x, g: tj.vjp(softmax, x)[1](g), (X, W), 2, 1, LARGE),
}


@pytest.mark.parametrize("name", ROW_PROGRAMS)
def test_rows_are_read_once_and_written_once(name: str) -> None:
    """One kernel, no temporaries, each large array walked row by row: later stages find the row in the cache."""
    f, args, read, written, results = ROW_PROGRAMS[name]
    built = lowered(f, *args)
    (step,) = built.plan.steps
    assert isinstance(step, Launch) and step.extents == (ROWS, COLS)
    reads, writes = traffic(built, step)
    assert len(reads) == read and set(reads.values()) == {1}
    assert len(writes) == written and set(writes.values()) <= {1}
    storage = built.program.storage
    assert (storage.arena_bytes, storage.array_bytes, storage.peak_bytes) == (0, results, results)
    found = np.asarray(tj.function(f)(*args))
    np.testing.assert_allclose(found, np.asarray(f(*args)), rtol=2e-5, atol=2e-6)


def test_a_value_and_gradient_of_rows_reads_once() -> None:
    """The sum of the rows' logsumexp and its gradient: the matrix is read once; the sum is over two short temps."""
    built = lowered(lambda x: tj.value_and_grad(lambda x: log_sum_exp(x).sum())(x), X)
    rows, total = built.plan.steps
    assert [dict(t) for t in traffic(built, rows)] == [{0: 1}, {built.plan.outputs[1]: 1}]
    assert traffic(built, total) == (Counter(), Counter())
    assert built.program.storage.arena_bytes == 2 * 4 * ROWS
    assert built.program.storage.array_bytes == LARGE + 4


def test_gradients_of_layer_norm_by_all_three() -> None:
    """Sums down the columns cannot share a kernel with those along the rows: two kernels, two reads, one write."""
    built = lowered(lambda x, g, b, w: tj.grad(lambda *a: (layer_norm(*a) * w).sum(), argnums=(0, 1, 2))(x, g, b),
                    X, GAIN, BIAS, W)
    assert len(built.plan.steps) == 2
    each = [traffic(built, s) for s in built.plan.steps]
    assert [dict(reads) for reads, _ in each] == [{0: 1, built.plan.inputs[3]: 1}] * 2
    assert [dict(writes) for _, writes in each] == [{}, {built.plan.outputs[0]: 1}]
    assert built.program.storage.arena_bytes <= 4 * 4 * ROWS


def test_a_long_row_is_not_kept() -> None:
    """Rows that do not fit the cache go by several kernels over threads; still nothing as large is stored between."""
    long = normal(2, 1 << 18)
    built = lowered(softmax, long)
    assert len(built.plan.steps) <= 3
    assert built.program.storage.arena_bytes <= 4096
    assert built.program.storage.array_bytes == 8 << 18


# -- products ------------------------------------------------------------------------------------------------------
def test_attention() -> None:
    """softmax(q kᵀ) v: scaling and softmax run on panels of the first product and over it; only one N × N is stored."""
    q, k, v = normal(256, 64), normal(256, 64, seed=1), normal(256, 64, seed=2)
    built = lowered(lambda q, k, v: softmax(q @ k.T / 8.0) @ v, q, k, v)
    first, second = built.plan.steps
    assert isinstance(first, Gemm) and first.then is not None and isinstance(second, Gemm) and second.then is None
    storage = built.program.storage
    assert storage.places[first.c.buffer] == storage.places[first.then.writes[0].buffer]
    assert storage.arena_bytes == 4 * 256 * 256 and storage.array_bytes == 4 * 256 * 64


SIZES, BATCH = (784, 256, 128, 10), 128


def parameters() -> list[tj.Variable]:
    found = []
    for k, (m, n) in enumerate(pairwise(SIZES)):
        found += [tj.Variable(normal(m, n, seed=k) * 0.05), tj.Variable(tj.zeros(n))]
    return found


def training_step(parameters: list[tj.Variable]) -> tj.Function:
    def step(x: tj.Tensor, y: tj.Tensor) -> tj.Tensor:
        with tj.GradientTape() as tape:
            w1, b1, w2, b2, w3, b3 = parameters
            logits = tj.relu(tj.relu(x @ w1 + b1) @ w2 + b2) @ w3 + b3
            loss = (log_sum_exp(logits) - (logits * tj.one_hot(y, SIZES[-1])).sum(-1)).mean()
        for p, g in zip(parameters, tape.gradient(loss, parameters)):
            p.assign_sub(0.1 * g)
        return loss

    return tj.function(step)


def test_a_training_step_of_an_mlp() -> None:
    """Forward, backward and the update in 6 + 2 products' steps and a few small kernels. Temporaries are the hidden
    layers before their activation, the hidden layers and two cotangents; no gradient of a weight is ever stored."""
    weights = parameters()
    step = training_step(weights)
    x, y = normal(BATCH, SIZES[0]), tj.asarray(np.arange(BATCH) % SIZES[-1])
    built = step.lower(x, y).built
    plan, storage = built.plan, built.program.storage
    products = [s for s in plan.steps if isinstance(s, Gemm)]
    assert len(products) == 8 and len(plan.steps) <= 12
    hidden = 4 * BATCH * (SIZES[1] + SIZES[2])
    assert storage.arena_bytes <= 3 * hidden
    updates = [s for s in products if s.then is not None and s.then.writes[0].buffer in plan.outputs]
    assert len(updates) == 3 and all(storage.places[s.c.buffer].home == "panels" for s in updates)
    weight_outputs = [plan.outputs.index(s.then.writes[0].buffer) for s in updates if s.then is not None]
    assert set(weight_outputs) <= set(storage.reusable)  # written over the old weights
    losses = [float(step(x, y)) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)


def test_large_weights_are_updated_over_themselves() -> None:
    """Steps of training neither allocate new weights nor store gradients of them."""
    gc.collect()
    weights = [tj.Variable(normal(600, 600, seed=k) * 0.04) for k in range(3)]
    x = normal(16, 600)

    @tj.function
    def step(x: tj.Tensor) -> tj.Tensor:
        with tj.GradientTape() as tape:
            h = x
            for w in weights:
                h = tj.tanh(h @ w)
            loss = (h * h).mean()
        for w, g in zip(weights, tape.gradient(loss, weights)):
            w.assign_sub(0.1 * g)
        return loss

    want = step.eager(x)  # and one step of training
    step(x)
    step(x)
    addresses = [w.numpy().__array_interface__["data"][0] for w in weights]
    before = tj.stats().memory
    losses = [float(step(x)) for _ in range(3)]
    after = tj.stats().memory
    assert [w.numpy().__array_interface__["data"][0] for w in weights] == addresses
    assert after.in_use == before.in_use and after.misses == before.misses
    storage = step.specializations()[0].built.program.storage
    assert len(storage.reusable) == 3 and storage.arena_bytes <= 6 * x.nbytes
    assert losses[-1] < float(want)


def test_who_holds_the_old_weights_keeps_them() -> None:
    w = tj.Variable(normal(600, 600))
    x = normal(8, 600)

    @tj.function
    def step(x: tj.Tensor) -> None:
        w.assign_sub(0.01 * (x.T @ (x @ w)))

    step(x)
    old = w.read_value()
    kept = old.numpy().copy()
    step(x)
    np.testing.assert_array_equal(old.numpy(), kept)
    assert (w.numpy() != kept).any()


# -- in place ------------------------------------------------------------------------------------------------------
def test_variables_and_tensors_change_in_place() -> None:
    v, t = tj.Variable(tj.zeros(1 << 19)), tj.zeros(1 << 19) + 0.0

    @tj.function
    def bump(t: tj.Tensor) -> None:
        v.assign(v * 0.5 + 1.0)
        t += 1.0

    for _ in range(3):
        bump(t)
    tj.trim_memory()
    before = tj.stats().memory
    for _ in range(5):
        bump(t)
    after = tj.stats().memory
    assert (after.hits, after.misses, after.cached) == (before.hits, before.misses, 0)
    assert v.numpy()[0] == 2 - 0.5**7 and t.numpy()[-1] == 8


# -- stencils, chains, pairs ---------------------------------------------------------------------------------------
def sweep(u: tj.Tensor) -> tj.Tensor:
    return u.at[1:-1, 1:-1].set(0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]))


def ten_sweeps(u: tj.Tensor) -> tj.Tensor:
    for _ in range(10):
        u = sweep(u)
    return u


def numpy_sweeps(u: np.ndarray) -> np.ndarray:
    for _ in range(10):
        v = u.copy()
        v[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
        u = v
    return u


def test_ten_jacobi_sweeps() -> None:
    """No shifted copies, several sweeps a kernel, and one matrix beside the result: they take turns."""
    built = lowered(ten_sweeps, X)
    assert len(built.plan.steps) <= 10
    storage = built.program.storage
    assert (storage.arena_bytes, storage.array_bytes) == (LARGE, LARGE)
    np.testing.assert_allclose(tj.function(ten_sweeps)(X).numpy(), numpy_sweeps(X.numpy()), rtol=1e-5, atol=1e-6)


def test_ten_jacobi_sweeps_as_a_loop() -> None:
    def loop(u: tj.Tensor) -> tj.Tensor:
        return tj.fori_loop(0, 10, lambda i, u: sweep(u), u)

    storage = lowered(loop, X).program.storage
    assert storage.peak_bytes <= 2 * LARGE + 64
    np.testing.assert_allclose(tj.function(loop)(X).numpy(), numpy_sweeps(X.numpy()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_chain_of_a_hundred_ops(in_place: bool) -> None:
    """One kernel, nothing beside the result."""
    def chain(x: tj.Tensor) -> tj.Tensor:
        y = x
        for k in range(100):
            y = (tj.sin(y), y * 1.01, y - 0.1, tj.maximum(y, -3.0))[k % 4]
        return y

    def written(x: tj.Tensor) -> None:
        x[...] = chain(x)

    built = lowered(written if in_place else chain, X)
    (step,) = built.plan.steps
    assert [sum(c.values()) for c in traffic(built, step)] == [1, 1]
    assert (built.program.storage.arena_bytes, built.program.storage.array_bytes) == (0, LARGE)
    assert built.program.storage.reusable == ({0: 0} if in_place else {})


def forces(p: tj.Tensor, m: tj.Tensor) -> tj.Tensor:
    d = p[None, :, :] - p[:, None, :]
    r2 = (d * d).sum(-1) + 1e-3
    return (d * (m[None, :] / (r2 * tj.sqrt(r2)))[:, :, None]).sum(1)


def test_forces_between_bodies_are_never_stored() -> None:
    """N × N × 3 differences reduce as they are made; the gradient's too."""
    n = 300
    p, m = normal(n, 3), tj.ones(n)
    built = lowered(forces, p, m)
    assert len(built.plan.steps) == 1 and built.program.storage.peak_bytes == 4 * 3 * n
    np.testing.assert_allclose(tj.function(forces)(p, m).numpy(), forces(p, m).numpy(), rtol=1e-3, atol=1e-2)
    backward = lowered(lambda p, m: tj.grad(lambda p: (forces(p, m) ** 2).sum())(p), p, m)
    assert all(b.nbytes <= 4 * 3 * n for b in backward.plan.buffers)
    assert backward.program.storage.peak_bytes <= 4 * 4 * 3 * n


# -- what a forward program keeps ----------------------------------------------------------------------------------
def kept_bytes(f: Callable[..., Any], *args: Any) -> tuple[int, int]:
    """Bytes a forward program makes only for its backward program; and what storing all it computes would take."""
    graph = tj.function(f).trace(*args)
    first, _ = split(graph)
    own = first.outputs[len(graph.outputs):]
    given = {*first.inputs, *first.outputs[: len(graph.outputs)]}
    return sum(nbytes(n) for n in own if n not in given), sum(nbytes(n) for n in differentiable_nodes(graph))


def nbytes(node: Any) -> int:
    return prod(node.type.shape) * node.type.dtype.itemsize


def differentiable_nodes(graph: Graph) -> list[Any]:
    return [n for n in graph.nodes if n.op.kind in ("elementwise", "reduction", "linalg", "library")
            and not isinstance(n.type, tuple)]


def cheap(x: tj.Tensor) -> tj.Tensor:
    return ((x * x + 1.0) * (x - 2.0) / (x * x + 3.0)).sum()


def activations(x: tj.Tensor) -> tj.Tensor:
    return tj.gelu(tj.gelu(x * 2 + 1) * 3).sum()


def dense(x: tj.Tensor, w: tj.Tensor, b: tj.Tensor, v: tj.Tensor) -> tj.Tensor:
    return tj.tanh(tj.relu(x @ w + b) @ v).sum()


def test_cheap_values_are_computed_again() -> None:
    """Elementwise chains keep their input, rows keep a few numbers each, products what they gave."""
    for f in (cheap, activations):
        kept, naive = kept_bytes(f, X)
        assert kept == 0 and naive >= 6 * LARGE
    kept, naive = kept_bytes(lambda x, w: (softmax(x) * w).sum(), X, W)
    assert kept <= 3 * 4 * ROWS and naive >= 4 * LARGE
    kept, naive = kept_bytes(lambda x, g, b, w: (layer_norm(x, g, b) * w).sum(), X, GAIN, BIAS, W)
    assert kept <= 2 * 4 * ROWS and naive >= 5 * LARGE
    w, b, v = normal(COLS, 64), tj.zeros(64), normal(64, 32)
    kept, naive = kept_bytes(dense, X, w, b, v)
    assert kept == 4 * ROWS * (64 + 32) and naive >= 2 * kept


def test_a_call_under_a_tape_holds_what_it_keeps() -> None:
    """The same, as bytes of a running process: between forward and backward only the input and small rows are held."""
    x = normal(1024, 1024)
    f = tj.function(activations)
    with tj.GradientTape() as tape:  # compile both programs
        tape.watch(x)
        y = f(x)
    want = tape.gradient(y, x)
    del tape, y
    gc.collect()
    before = tj.stats().memory.in_use
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    assert tj.stats().memory.in_use == before
    np.testing.assert_array_equal(tape.gradient(y, x).numpy(), want.numpy())


def test_checkpoint_lowers_the_peak() -> None:
    w = normal(COLS, COLS) * 0.05

    def block(x: tj.Tensor) -> tj.Tensor:
        return tj.tanh(tj.tanh(tj.tanh(x @ w) @ w) @ w)

    def deep(block: Callable[..., Any]) -> Callable[..., Any]:
        def f(x: tj.Tensor) -> tj.Tensor:
            for _ in range(8):
                x = block(x)
            return x.sum()

        return f

    plain, less = lowered(tj.grad(deep(block)), X), lowered(tj.grad(deep(tj.checkpoint(block))), X)
    assert plain.program.storage.peak_bytes >= 24 * LARGE
    assert less.program.storage.peak_bytes <= 13 * LARGE  # the inputs of 8 blocks, and one block's own values
    kept, _ = kept_bytes(deep(block), X)
    kept_less, _ = kept_bytes(deep(tj.checkpoint(block)), X)
    assert kept >= 24 * LARGE and kept_less == 7 * LARGE
    got = [tj.function(tj.grad(deep(b)))(X).numpy() for b in (block, tj.checkpoint(block))]
    np.testing.assert_allclose(*got, rtol=1e-4, atol=1e-6)


# -- what is seen of it --------------------------------------------------------------------------------------------
def test_stats_show_the_allocator() -> None:
    gc.collect()
    tj.trim_memory()
    before = tj.stats().memory
    assert before.cached == 0
    size = pool.size_class(4 << 20)
    x = tj.function(lambda n: tj.zeros(1 << 20) + n)(1.0)
    held = tj.stats().memory
    assert held.in_use == before.in_use + size and held.cached == 0
    del x
    after = tj.stats().memory
    assert after.in_use == before.in_use and after.cached == size
    assert "in_use" in repr(tj.stats())
    limit = pool.limit()
    try:
        tj.set_memory_limit(size // 2)
        assert tj.stats().memory.cached == 0
    finally:
        tj.set_memory_limit(limit)
    x = tj.function(lambda n: tj.zeros(1 << 20) + n)(1.0)
    del x
    assert tj.trim_memory() == size and tj.stats().memory.cached == 0


def test_operands_of_products_are_never_copied() -> None:
    """Transposes and slices go to the product as they are."""
    built = lowered(lambda a, b: a.T @ b[:, 3:200], normal(300, 300), normal(300, 300))
    (step,) = built.plan.steps
    assert isinstance(step, Gemm) and set(operands_of(step)) == set(built.plan.inputs)
    assert built.program.storage.arena_bytes == 0
