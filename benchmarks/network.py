"""What layers are made of, alone: attention, dropout, embedding lookups, normalisation by batches, with gradients.

A gradient here is that of a sum of the result times fixed numbers, so that nothing of it is constant.
"""

from __future__ import annotations

import numpy as np

from benchmarks.workloads import Workload, uniform


class Attention(Workload):
    """Scaled dot-product attention of (batch, heads, length, depth)."""

    tolerance = 1e-4
    shared = ()

    def __init__(self, batch: int, heads: int, length: int, depth: int, gradient: bool, causal: bool = False) -> None:
        self.shape, self.gradient, self.causal = (batch, heads, length, depth), gradient, causal
        sizes = "x".join(map(str, self.shape))
        self.name = f"{'gradients of ' * gradient}{'causal ' * causal}attention, {sizes}"

    def inputs(self, random):
        return tuple(uniform(random, *self.shape, low=-1) for _ in range(4))

    def tracejit(self, peer):
        tj = peer.xp

        def attention(q, k, v):
            return tj.nn.scaled_dot_product_attention(q, k, v, is_causal=self.causal)

        if not self.gradient:
            return tj.function(lambda q, k, v, w: attention(q, k, v))
        return tj.function(
            lambda q, k, v, w: tj.grad(lambda q, k, v: (attention(q, k, v) * w).sum(), argnums=(0, 1, 2))(q, k, v))

    def torch(self, peer):
        torch = peer.torch

        def attention(q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)

        if not self.gradient:
            return peer.jit(lambda q, k, v, w: attention(q, k, v))
        forward = peer.jit(lambda q, k, v, w: (attention(q, k, v) * w).sum())

        def gradient(q, k, v, w):
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            return torch.autograd.grad(forward(*leaves, w), leaves)

        return gradient

    def jax(self, peer):
        jax, jnp = peer.jax, peer.xp

        def attention(q, k, v):
            q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
            return jnp.swapaxes(jax.nn.dot_product_attention(q, k, v, is_causal=self.causal), 1, 2)

        if not self.gradient:
            return peer.jit(lambda q, k, v, w: attention(q, k, v))
        return peer.jit(
            lambda q, k, v, w: jax.grad(lambda q, k, v: (attention(q, k, v) * w).sum(), argnums=(0, 1, 2))(q, k, v))

    def numpy(self, peer):
        scale = self.shape[-1] ** -0.5
        seen = np.tri(self.shape[2], dtype=bool) if self.causal else np.True_

        def run(q, k, v, w):
            results = []
            for b in np.ndindex(self.shape[:2]):  # one matrix of scores at a time
                s = np.where(seen, q[b] @ k[b].T * scale, -np.inf)
                p = np.exp(s - s.max(-1, keepdims=True))
                p /= p.sum(-1, keepdims=True)
                if self.gradient:
                    dp = w[b] @ v[b].T
                    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * scale
                    results.append((ds @ k[b], ds.T @ q[b], p.T @ w[b]))
                else:
                    results.append((p @ v[b],))
            found = [np.stack(r).reshape(self.shape) for r in zip(*results)]
            return found if self.gradient else found[0]

        return run


class EmbeddingGradient(Workload):
    """The gradient for a table of 50,000 words by 128 of a lookup of 512 of them; all of the table is written."""

    name = "gradient of embedding, 512 of 50000x128"
    shared = ()

    def inputs(self, random):
        return uniform(random, 50_000, 128), random.integers(0, 50_000, 512), uniform(random, 512, 128)

    def tracejit(self, peer):
        tj = peer.xp
        return tj.function(lambda t, i, w: tj.grad(lambda t: (tj.nn.embedding(t, i) * w).sum())(t))

    def torch(self, peer):
        torch = peer.torch
        forward = peer.jit(lambda t, i, w: (torch.nn.functional.embedding(i, t) * w).sum())

        def gradient(t, i, w):
            leaf = t.detach().requires_grad_()
            return torch.autograd.grad(forward(leaf, i, w), leaf)[0]

        return gradient

    def jax(self, peer):
        return peer.jit(lambda t, i, w: peer.jax.grad(lambda t: (t[i] * w).sum())(t))

    def numpy(self, peer):
        def gradient(t, i, w):
            g = np.zeros_like(t)
            np.add.at(g, i, w)
            return g

        return gradient


class BatchNormGradient(Workload):
    """Gradients of batch normalisation of pictures, channels last."""

    name = "gradients of batch norm, 32x28x28x32"
    tolerance = 1e-3
    shared = ()

    def inputs(self, random):
        x, w = (uniform(random, 32, 28, 28, 32, low=-4, high=4) for _ in range(2))
        return x, uniform(random, 32), uniform(random, 32), w

    def tracejit(self, peer):
        tj = peer.xp

        def loss(x, scale, shift, w):
            return (tj.nn.batch_norm(x, scale, shift, epsilon=1e-5)[0] * w).sum()

        return tj.function(tj.grad(loss, argnums=(0, 1, 2)))

    def torch(self, peer):
        torch = peer.torch

        def loss(x, scale, shift, w):
            y = torch.nn.functional.batch_norm(x.permute(0, 3, 1, 2), None, None, scale, shift, training=True)
            return (y.permute(0, 2, 3, 1) * w).sum()

        forward = peer.jit(loss)

        def gradient(*args):
            leaves = [x.detach().requires_grad_() for x in args[:3]]
            return torch.autograd.grad(forward(*leaves, args[3]), leaves)

        return gradient

    def jax(self, peer):
        jnp = peer.xp

        def loss(x, scale, shift, w):
            away = x - x.mean((0, 1, 2))
            return ((away / jnp.sqrt((away * away).mean((0, 1, 2)) + 1e-5) * scale + shift) * w).sum()

        return peer.jit(peer.jax.grad(loss, argnums=(0, 1, 2)))

    def numpy(self, peer):
        def gradient(x, scale, shift, w):
            axes = (0, 1, 2)
            away = x - x.mean(axes)
            s = np.sqrt((away * away).mean(axes) + 1e-5)
            h, g = away / s, w * scale
            return (g - g.mean(axes) - h * (g * h).mean(axes)) / s, (w * h).sum(axes), w.sum(axes)

        return gradient


class Dropout(Workload):
    """Half of a million numbers dropped; each library draws its own, so the sum of what stays is compared."""

    name = "sum of dropout, 1024x1024"
    tolerance = 2e-2
    shared = ()

    def inputs(self, random):
        return (uniform(random, 1024, 1024),)

    def tracejit(self, peer):
        tj = peer.xp
        return tj.function(lambda x: tj.nn.dropout(x, 0.5).sum())

    def torch(self, peer):
        torch = peer.torch
        return peer.jit(lambda x: torch.nn.functional.dropout(x, 0.5).sum())

    def jax(self, peer):
        jax, jnp = peer.jax, peer.xp

        def f(key, x):
            key, now = jax.random.split(key)
            return key, jnp.where(jax.random.bernoulli(now, 0.5, x.shape), x * 2, 0).sum()

        jitted, state = peer.jit(f), [jax.random.key(0)]

        def call(x):
            state[0], y = jitted(state[0], x)
            return y

        return call

    def numpy(self, peer):
        draw = np.random.default_rng(0).random
        return lambda x: np.where(draw(x.shape, "float32") < 0.5, x * 2, 0).sum()


NETWORK: dict[str, Workload] = {
    w.name: w
    for w in (
        *(Attention(16, 4, 128, 32, gradient) for gradient in (False, True)),
        Attention(16, 4, 128, 32, True, causal=True),
        *(Attention(4, 8, 1024, 64, gradient) for gradient in (False, True)),
        Attention(1, 8, 4096, 64, True),
        EmbeddingGradient(),
        BatchNormGradient(),
        Dropout(),
    )
}
