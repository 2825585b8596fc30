"""Random strict graphs over every way of lowering, for tests.

`random_program(rng)` gives (graph, arrays): movement, gather, scatter, reductions, matmul and arithmetic in float64, so
that results can be compared tightly.
"""

from __future__ import annotations

import numpy as np

import tracejit as tj
from tracejit.ir import Graph, Type
from tracejit.ops import indexing, linalg, movement
from tracejit.ops.core import broadcast_to
from tracejit.tensor import Tensor, recording
from tracejit.trace.passes.dce import dce
from tracejit.trace.tracer import Trace

F64, I64 = np.dtype("float64"), np.dtype("int64")


class Generator:
    """Grows a pool of traced values by random ops."""

    def __init__(self, rng: np.random.Generator):
        self.rng, self.trace, self.arrays = rng, Trace("random_program"), []
        self.pool: list[Tensor] = []

    def pick(self, options):
        return options[int(self.rng.integers(len(options)))]

    def input(self, array: np.ndarray) -> Tensor:
        self.arrays.append(array)
        return self.trace.input(Type(array.shape, array.dtype))

    def shape(self, most: int = 3) -> tuple[int, ...]:
        return tuple(self.pick([0, 1, 2, 3, 4, 5, 7, 17]) for _ in range(self.rng.integers(0, most + 1)))

    def axes(self, x: Tensor) -> tuple[int, ...]:
        count = int(self.rng.integers(1, x.ndim + 1))
        return tuple(sorted(self.rng.choice(x.ndim, count, replace=False).tolist()))

    def exponential(self, x):
        return tj.exp(x * 0.1)

    def total(self, x):
        return x + self.pick(self.pool)

    def product(self, x):
        return x * self.pick(self.pool) * 0.5

    def compare(self, x):
        return tj.where(x < 0.3, x * 2.0, -x)

    def summed(self, x):
        return tj.sum(x, axis=self.axes(x), keepdims=bool(self.rng.integers(2))) * 0.3 if x.ndim else None

    def extreme(self, x):
        axes = self.axes(x) if x.ndim else ()
        if x.size:
            return self.pick([tj.max, tj.min])(x, axis=axes, keepdims=bool(self.rng.integers(2)))

    def position(self, x):
        if x.ndim and x.size:
            return tj.cast(self.pick([tj.argmax, tj.argmin])(x, axis=int(self.rng.integers(x.ndim))), F64)

    def transposed(self, x):
        return movement.transpose(x, tuple(self.rng.permutation(x.ndim).tolist()))

    def reshaped(self, x):
        if x.size:
            a = self.pick([d for d in range(1, x.size + 1) if x.size % d == 0])
            return movement.reshape(x, (a, x.size // a))

    def sliced(self, x):
        if x.ndim and x.size:
            index = []
            for n in x.shape:
                step = self.pick([1, 1, 2, -1, -2])
                a, b = sorted(self.rng.integers(0, n + 1, 2).tolist())
                index.append(slice(a, b, step) if step > 0 else slice(b - 1 if b else None, a - 1 if a else None, step))
            return x[tuple(index)]

    def embedded(self, x):
        if x.ndim:
            starts = tuple(self.rng.integers(0, 3, x.ndim).tolist())
            steps = tuple(self.rng.integers(1, 3, x.ndim).tolist())
            dims = zip(starts, x.shape, steps, strict=True)
            shape = tuple(max(a + (n - 1) * p + 1, a) + self.pick([0, 1, 2]) for a, n, p in dims)
            return movement.embed(x, shape, starts, steps, 0.5)

    def joined(self, x):
        if x.ndim:
            return movement.joined([x, self.pick([x, x * 2.0]), x], int(self.rng.integers(x.ndim)))

    def _indices(self, x):
        axes = self.axes(x)
        shape = self.shape(2)
        return axes, shape, [self.input(self.rng.integers(-x.shape[a], x.shape[a], shape)) for a in axes]

    def gathered(self, x):
        if x.ndim and x.size:
            axes, _, indices = self._indices(x)
            return indexing.pick(x, indices, axes)

    def scattered(self, x):
        if x.ndim and x.size:
            axes, shape, indices = self._indices(x)
            v_shape = (*shape, *(n for a, n in enumerate(x.shape) if a not in axes))
            given = self.rng.integers(2)
            v = self.input(self.rng.standard_normal(v_shape)) if given else broadcast_to(tj.sum(x) * 0.1, v_shape)
            return indexing.put(x, v, indices, axes, self.pick(["set", "add", "mul", "min", "max"]))

    def gram(self, x):
        return linalg.matmul(movement.transpose(x, (1, 0)), x) * 0.1 if x.ndim == 2 else None

    def dense(self, x):
        if x.ndim >= 2:
            return linalg.matmul(x, self.input(self.rng.standard_normal((x.shape[-1], 3))))

    ways = (exponential, total, product, compare, summed, summed, extreme, position, transposed, reshaped, sliced,
            embedded, joined, gathered, scattered, gram, dense)


def random_program(rng: np.random.Generator, length: int = 12) -> tuple[Graph, list[np.ndarray]]:
    """A random graph and arrays for its inputs."""
    g = Generator(rng)
    with recording(g.trace):
        for _ in range(rng.integers(1, 4)):
            g.pool.append(g.input(rng.standard_normal(g.shape())))
        for _ in range(length):
            try:
                y = g.pick(g.ways)(g, g.pick(g.pool))
            except ValueError:  # shapes that do not broadcast
                continue
            if y is not None and y.size < 3000:
                g.pool.append(y)
        outputs = [g.pick(g.pool) for _ in range(int(rng.integers(1, 4)))] + [g.pool[-1]]
        graph = g.trace.finish(outputs)
    g.trace.close()
    return dce(graph), g.arrays
