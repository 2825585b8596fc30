"""Kernels beyond elementwise: borders, transposes, short last dims, pairs, gradients of rows; another part of what
`workloads.py` starts."""

from __future__ import annotations

import numpy as np

from benchmarks.workloads import Workload, uniform


class Jacobi(Workload):
    """A sweep of the five-point stencil with a border of zeros."""

    name = "Jacobi sweep with padding, 2048x2048"

    def inputs(self, random):
        return (uniform(random, 2048, 2048),)

    def formula(self, peer):
        pad = (lambda x: peer.torch.nn.functional.pad(x, (1, 1, 1, 1))) if peer.name == "torch" else None
        pad = pad or (lambda x: peer.xp.pad(x, 1))
        quarter = np.float32(0.25).item()

        def sweep(x):
            p = pad(x)
            return (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]) * quarter

        return sweep


class Rolls(Workload):
    """The same stencil on a torus."""

    name = "periodic stencil by roll, 2048x2048"

    def inputs(self, random):
        return (uniform(random, 2048, 2048),)

    def formula(self, peer):
        roll = peer.xp.roll
        return lambda x: roll(x, 1, 0) + roll(x, -1, 0) + roll(x, 1, 1) + roll(x, -1, 1)


class Transpose(Workload):
    name = "x.T + y, 2048x2048"

    def inputs(self, random):
        return uniform(random, 2048, 2048), uniform(random, 2048, 2048)

    def formula(self, peer):
        return lambda x, y: x.T + y


class Points(Workload):
    """Points in space: scaled, and their squared lengths."""

    name = "scaled points and their lengths, 1Mx3"

    def inputs(self, random):
        return uniform(random, 1_000_000, 3, low=-1), uniform(random, 3)

    def formula(self, peer):
        def scale(x, w):
            y = x * w
            return y, (y * y).sum(1)

        return scale


class Gravity(Workload):
    """Forces between all pairs of bodies: only the sums should reach memory."""

    name = "forces of 2000 bodies"

    def inputs(self, random):
        return uniform(random, 2000, 3, low=-1), uniform(random, 2000)

    def formula(self, peer):
        def forces(p, m):
            d = p[None] - p[:, None]
            r = (d * d).sum(2) + 0.01
            return (d * (m / (r * peer.xp.sqrt(r)))[:, :, None]).sum(1)

        return forces


class LayerNormGradient(Workload):
    name = "gradients of layer norm, 2048x1024"

    def inputs(self, random):
        return uniform(random, 2048, 1024, low=-4, high=4), uniform(random, 1024), uniform(random, 1024)

    def loss(self, sqrt, mean):
        def loss(x, scale, shift):
            d = x - mean(x)
            y = d / sqrt(mean(d * d) + 1e-5) * scale + shift
            return (y * y * y).sum()

        return loss

    def tracejit(self, peer):
        tj = peer.xp
        return tj.function(tj.grad(self.loss(tj.sqrt, lambda x: x.mean(axis=1, keepdims=True)), argnums=(0, 1, 2)))

    def jax(self, peer):
        jnp = peer.xp
        loss = self.loss(jnp.sqrt, lambda x: x.mean(axis=1, keepdims=True))
        return peer.jit(peer.jax.grad(loss, argnums=(0, 1, 2)))

    def torch(self, peer):
        loss = self.loss(peer.torch.sqrt, lambda x: x.mean(1, keepdim=True))
        return peer.jit(peer.torch.func.grad(loss, argnums=(0, 1, 2)))

    def numpy(self, peer):
        def gradients(x, scale, shift):
            mean = lambda v: v.mean(axis=1, keepdims=True)
            d = x - mean(x)
            s = np.sqrt(mean(d * d) + 1e-5)
            h = d / s
            y = h * scale + shift
            g = 3 * y * y
            gh = g * scale
            return (gh - mean(gh) - h * mean(gh * h)) / s, (g * h).sum(0), g.sum(0)

        return gradients


KERNELS: dict[str, Workload] = {
    w.name: w for w in (Jacobi(), Rolls(), Transpose(), Points(), Gravity(), LayerNormGradient())
}
