"""Convolutions, by channel too, and pooling, channels last, alone and with gradients; PyTorch gets its own layout,
channels last too.

A gradient here is that of a sum of the result times fixed numbers, with respect to x and the kernel.
"""

from __future__ import annotations

import numpy as np

from benchmarks.workloads import Workload, uniform


class Convolution(Workload):
    """relu(conv2d(x, kernel)), or gradients of the convolution alone; windows within x."""

    tolerance = 1e-4
    shared = ()
    groups = 1

    def __init__(self, batch: int, size: int, channels: int, outputs: int, window: int, stride: int,
                 gradient: bool) -> None:
        self.x, self.k = (batch, size, size, channels), (window, window, channels, outputs)
        self.stride, self.gradient = stride, gradient
        self.y = (batch, *((size - window) // stride + 1,) * 2, outputs)
        by = f", stride {stride}" if stride > 1 else ""
        self.name = f"{'gradients of ' * gradient}conv {window}x{window}{by}, {'x'.join(map(str, self.x))} to {outputs}"

    def inputs(self, random):
        return (uniform(random, *self.x, low=-1), uniform(random, *self.k, low=-1, high=1),
                uniform(random, *self.y, low=-1))

    def numpy(self, peer):
        window, stride = self.k[0], self.stride
        rows, columns = self.y[1:3]
        cuts = {(i, j): (slice(None), slice(i, i + (rows - 1) * stride + 1, stride),
                         slice(j, j + (columns - 1) * stride + 1, stride))
                for i in range(window) for j in range(window)}

        def convolution(x, k, w):
            return np.maximum(sum(self.product(x[cut], k[tap]) for tap, cut in cuts.items()), 0)

        def gradients(x, k, w):
            dx, dk = np.zeros_like(x), np.zeros_like(k)
            for tap, cut in cuts.items():
                dx[cut] += self.product(w, k[tap] if self.groups > 1 else k[tap].T)
                dk[tap] = self.kernel_product(x[cut], w)
            return dx, dk

        return gradients if self.gradient else convolution

    def product(self, x, k):
        return x @ k

    def kernel_product(self, x, w):
        return x.reshape(-1, x.shape[-1]).T @ w.reshape(-1, w.shape[-1])

    def tracejit(self, peer):
        tj = peer.xp

        def convolution(x, k):
            return tj.nn.conv2d(x, k, strides=self.stride, groups=self.groups)

        if not self.gradient:
            return tj.function(lambda x, k, w: tj.relu(convolution(x, k)))
        return tj.function(
            lambda x, k, w: tj.grad(lambda x, k: (convolution(x, k) * w).sum(), argnums=(0, 1))(x, k))

    def torch(self, peer):
        torch = peer.torch

        def seen(t, order):  # PyTorch's order of dims, in the memory that is given
            return t.permute(order)

        def convolution(x, k):
            y = torch.nn.functional.conv2d(seen(x, (0, 3, 1, 2)), seen(k, (3, 2, 0, 1)), stride=self.stride,
                                           groups=self.groups)
            return y.permute(0, 2, 3, 1)

        if not self.gradient:
            return peer.jit(lambda x, k, w: torch.relu(convolution(x, k)))
        forward = peer.jit(lambda x, k, w: (convolution(x, k) * w).sum())

        def gradients(x, k, w):
            leaves = [t.detach().requires_grad_() for t in (x, k)]
            return torch.autograd.grad(forward(*leaves, w), leaves)

        return gradients

    def torch_eager(self, peer):
        return self.torch(peer)

    def jax(self, peer):
        jax, jnp = peer.jax, peer.xp

        def convolution(x, k):
            dims = jax.lax.conv_dimension_numbers(x.shape, k.shape, ("NHWC", "HWIO", "NHWC"))
            return jax.lax.conv_general_dilated(x, k, (self.stride,) * 2, "VALID", dimension_numbers=dims,
                                                feature_group_count=self.groups)

        if not self.gradient:
            return peer.jit(lambda x, k, w: jnp.maximum(convolution(x, k), 0))
        return peer.jit(jax.grad(lambda x, k, w: (convolution(x, k) * w).sum(), (0, 1)))


class Depthwise(Convolution):
    """relu of a convolution of each channel by itself, or its gradients."""

    def __init__(self, batch: int, size: int, channels: int, window: int, stride: int, gradient: bool) -> None:
        super().__init__(batch, size, 1, channels, window, stride, gradient)
        self.x, self.groups = (batch, size, size, channels), channels
        by = f", stride {stride}" if stride > 1 else ""
        self.name = f"{'gradients of ' * gradient}depthwise conv {window}x{window}{by}, {'x'.join(map(str, self.x))}"

    def product(self, x, k):
        return x * k[0]

    def kernel_product(self, x, w):
        return (x * w).sum((0, 1, 2))[None]


class Pool(Workload):
    """The largest element, or the mean, of windows, and its gradient."""

    tolerance = 1e-5
    shared = ()

    def __init__(self, kind: str, window: int, gradient: bool) -> None:
        self.kind, self.window, self.gradient = kind, window, gradient
        self.name = f"{'gradient of ' * gradient}{kind} pool {window}x{window}, stride 2, 8x57x57x64"
        self.counts = ((57 - window) // 2 + 1,) * 2

    def inputs(self, random):
        numbers = random.permutation(8 * 57 * 57 * 64).reshape(8, 57, 57, 64).astype("float32")  # no ties
        return numbers / numbers.size, uniform(random, 8, *self.counts, 64, low=-1)

    def _cuts(self):
        reach = (self.counts[0] - 1) * 2 + 1
        return [(slice(None), slice(i, i + reach, 2), slice(j, j + reach, 2))
                for i in range(self.window) for j in range(self.window)]

    def numpy(self, peer):
        def pool(x, w):
            taps = [x[cut] for cut in self._cuts()]
            return np.maximum.reduce(taps) if self.kind == "max" else sum(taps) / len(taps)

        def gradient(x, w):
            y, dx = pool(x, w), np.zeros_like(x)
            for cut in self._cuts():
                dx[cut] += w * (x[cut] == y) if self.kind == "max" else w / self.window**2
            return dx

        return gradient if self.gradient else pool

    def tracejit(self, peer):
        tj = peer.xp
        pool = tj.nn.max_pool2d if self.kind == "max" else tj.nn.avg_pool2d
        if not self.gradient:
            return tj.function(lambda x, w: pool(x, self.window, 2))
        return tj.function(lambda x, w: tj.grad(lambda x: (pool(x, self.window, 2) * w).sum())(x))

    def torch(self, peer):
        torch, named = peer.torch, peer.torch.nn.functional
        pool = named.max_pool2d if self.kind == "max" else named.avg_pool2d

        def pooled(x):
            return pool(x.permute(0, 3, 1, 2), self.window, 2).permute(0, 2, 3, 1)

        if not self.gradient:
            return peer.jit(lambda x, w: pooled(x))
        forward = peer.jit(lambda x, w: (pooled(x) * w).sum())

        def gradient(x, w):
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(forward(leaf, w), leaf)[0]

        return gradient

    def torch_eager(self, peer):
        return self.torch(peer)

    def jax(self, peer):
        jax, jnp = peer.jax, peer.xp

        def pool(x):
            start, fold = (-jnp.inf, jax.lax.max) if self.kind == "max" else (0.0, jax.lax.add)
            y = jax.lax.reduce_window(x, start, fold, (1, self.window, self.window, 1), (1, 2, 2, 1), "VALID")
            return y if self.kind == "max" else y / self.window**2

        if not self.gradient:
            return peer.jit(lambda x, w: pool(x))
        return peer.jit(jax.grad(lambda x, w: (pool(x) * w).sum()))


_ALL = (
    *(Convolution(*sizes, gradient) for sizes in ((32, 28, 1, 16, 3, 1), (32, 26, 16, 16, 3, 1), (8, 56, 64, 64, 3, 1),
                                                  (8, 56, 64, 128, 3, 2), (8, 56, 64, 256, 1, 1))
      for gradient in (False, True)),
    *(Depthwise(*sizes, gradient) for sizes in ((8, 56, 64, 3, 1), (8, 57, 64, 3, 2), (8, 28, 256, 5, 1))
      for gradient in (False, True)),
    *(Pool(kind, window, gradient) for kind in ("max", "mean") for window in (2, 3) for gradient in (False, True)),
)
CONVOLUTION: dict[str, Workload] = {w.name: w for w in _ALL}
