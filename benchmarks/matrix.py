"""Matrix products, alone and with what is done to their rows; another part of what `workloads.py` starts."""

from __future__ import annotations

import numpy as np

from benchmarks.workloads import Workload, uniform


class Dense(Workload):
    """One layer of a network: the bias and the activation are done on each panel of rows."""

    name = "relu(x @ w + b), 4096x1024x1024"
    sizes = (4096, 1024, 1024)

    def inputs(self, random):
        m, n, k = self.sizes
        return uniform(random, m, k), uniform(random, k, n, low=-1), uniform(random, n)

    def formula(self, peer):
        zero = np.float32(0)
        floor = peer.xp.relu if peer.name == "torch" else lambda z: peer.xp.maximum(z, zero)
        return lambda x, w, b: floor(x @ w + b)


class Scores(Workload):
    """Attention: scores of 32 heads and their softmax."""

    name = "softmax(q @ k^T / 8), 32 of 256x64"

    def inputs(self, random):
        return uniform(random, 32, 256, 64, low=-1), uniform(random, 32, 256, 64, low=-1)

    def formula(self, peer):
        exp = peer.xp.exp
        if peer.name == "torch":
            torch = peer.torch
            return lambda q, k: torch.softmax(q @ k.transpose(1, 2) * 0.125, 2)

        def scores(q, k):
            z = q @ k.swapaxes(1, 2) * np.float32(0.125)
            e = exp(z - z.max(axis=2, keepdims=True))
            return e / e.sum(axis=2, keepdims=True)

        return scores

    def tracejit(self, peer):
        tj = peer.xp
        return tj.function(lambda q, k: tj.softmax(q @ tj.swapaxes(k, 1, 2) * 0.125, axis=2))


class Product(Workload):
    """A plain product, or a batch of them."""

    tolerance = 1e-5

    def __init__(self, batch: int, m: int, n: int, k: int, dtype: str = "float32") -> None:
        self.shapes = (batch, m, k), (batch, k, n)
        if batch == 1:
            self.shapes = (m, k), (k, n)
        self.dtype = dtype
        many = f"{batch} of " if batch > 1 else ""
        self.name = f"{many}{m}x{k} @ {k}x{n}" + (", f64" if dtype == "float64" else "")

    def inputs(self, random):
        return tuple(uniform(random, *shape, low=-1, dtype=self.dtype) for shape in self.shapes)

    def formula(self, peer):
        return lambda a, b: a @ b


class Vector(Product):
    """A matrix and a vector: a trip through memory."""

    def __init__(self, m: int, k: int) -> None:
        super().__init__(1, m, 1, k)
        self.shapes = (m, k), (k,)
        self.name = f"{m}x{k} @ {k}"


MATRIX: dict[str, Workload] = {
    w.name: w
    for w in (
        Dense(),
        Scores(),
        Product(1, 1024, 1024, 1024),
        Product(1, 1024, 1024, 1024, "float64"),
        Product(1, 128, 256, 784),
        Product(10_000, 4, 4, 4),
        Product(2_000, 16, 16, 16),
        Product(1_000, 32, 32, 32),
        Product(1, 100_000, 3, 3),
        Vector(4096, 4096),
    )
}
