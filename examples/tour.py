"""A tour of the compiler: one function followed through every stage, with assertions.

    Python -> trace -> passes -> kernels -> machine code -> gradient

Everything printed here is what the compiler itself says; nothing is prepared.
"""

from __future__ import annotations

import numpy as np

import tracejit as tj
from tracejit.ir import verify
from tracejit.tensor import evaluate


def normalise(x: tj.Tensor, scale: tj.Tensor) -> tj.Tensor:
    """Rows with mean 0 and variance 1, then scaled; written without care for repeated work."""
    centred = x * 1 - x.mean(axis=1, keepdims=True)
    spread = tj.sqrt(((x - x.mean(axis=1, keepdims=True)) ** 2).mean(axis=1, keepdims=True) + (1e-6 + 1e-6))
    return centred / spread * scale


def title(text: str) -> None:
    print(f"\n{'-' * 4} {text} {'-' * (90 - len(text))}\n")


def main() -> None:
    random = np.random.default_rng(0)
    rows, weights = random.normal(3, 2, (64, 100)).astype("float32"), random.normal(size=100).astype("float32")
    x, scale = tj.asarray(rows), tj.asarray(weights)

    title("1. eager: the function is ordinary Python on tensors")
    eager = normalise(x, scale)
    expected = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 2e-6) * weights
    np.testing.assert_allclose(eager.numpy(), expected, rtol=1e-4, atol=1e-5)
    print(normalise.__name__, "gives", eager.shape, eager.dtype, "and agrees with NumPy")

    title("2. trace: the same Python, run once on tracers; the graph prints as Python that rebuilds it")
    f = tj.function(normalise)
    graph = f.trace(x, scale)
    print(graph)
    verify(graph)  # every node's type is inferred again and compared
    assert [n.type.shape for n in graph.inputs] == [(64, 100), (100,)]
    (replayed,) = evaluate(graph, [x, scale])  # the reference interpreter
    np.testing.assert_array_equal(replayed.numpy(), eager.numpy())

    title("3. passes: each maps a graph to a graph")
    lowered = f.lower(x, scale)
    for name, stage in lowered.stages.items():
        verify(stage)
        (after,) = evaluate(stage, [x, scale])
        np.testing.assert_allclose(after.numpy(), eager.numpy(), rtol=1e-5, atol=1e-6)
        print(f"{name:<12}{len(stage.nodes):>4} nodes")
    assert len(lowered.graph.nodes) < len(graph.nodes)
    print()
    print(lowered.graph)

    title("4. kernels: what fuses; the row stays in the cache through all stages")
    for kernel in lowered.kernels:
        print(f"{kernel.name}: {', '.join(kernel.ops)}\n{kernel.code}")
    assert len(lowered.kernels) == 1

    title("5. machine code: compiled once, for every size")
    compiled = f(x, scale)
    np.testing.assert_allclose(compiled.numpy(), eager.numpy(), rtol=1e-5, atol=1e-5)
    once = tj.stats().compiles
    for n in (7, 100, 1000):
        some = tj.asarray(random.normal(size=(n, 100)).astype("float32"))
        np.testing.assert_allclose(f(some, scale).numpy(), normalise(some, scale).numpy(), rtol=1e-4, atol=1e-5)
    assert tj.stats().compiles == once, "a new size compiles nothing"
    print(f"4 sizes: traced {f.trace_count} time(s), kernels compiled by this process: {once}")

    title("6. explain: what happened, and why")
    print(tj.explain(f))

    title("7. gradient: a graph like any other")

    def loss(x: tj.Tensor, scale: tj.Tensor) -> tj.Tensor:
        return (normalise(x, scale) ** 2).sum()

    gradient = tj.function(tj.grad(loss, argnums=(0, 1)))
    dx, dscale = gradient(x, scale)
    assert dx.shape == x.shape and dscale.shape == scale.shape
    # along scale the loss is quadratic, so a central difference is exact up to rounding
    step = np.zeros(100)
    step[3] = 0.5
    wide = tj.asarray(rows.astype("float64"))
    up, down = (float(loss(wide, tj.asarray(weights + s))) for s in (step, -step))
    np.testing.assert_allclose(float(dscale[3]), up - down, rtol=1e-3)
    # scaling a row does not change it, so the gradient has no part along the (centred) row
    along = (dx.numpy() * (rows - rows.mean(1, keepdims=True))).sum(1)
    assert np.abs(along).max() < 1e-2 * np.abs(dx.numpy()).sum(1).max()
    print(f"d loss / d x {dx.shape}, d loss / d scale {dscale.shape}: {len(gradient.kernels())} kernel(s)")


if __name__ == "__main__":
    main()
