"""What is measured: inputs, a formula that most libraries share, and what single libraries say better.

`formula(peer)` gives the function to compile; a method named after a library replaces it for that library. A workload
without a formula runs only where a method says how. NumPy's version in float64 is the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.peers import SQRT1_2, Peer

Function = Callable[..., Any]


@dataclass(frozen=True)
class Target:
    """What the design asks for: a speed relative to the best other library, or seconds."""

    speed: float = 1.0
    seconds: float | None = None


class Workload:
    """Base: `name`, inputs, formulas, and how close results must be to the float64 reference."""

    name = ""
    tolerance = 1e-4  # relative to the largest value of the result
    shared = ("numpy", "tracejit", "jax", "torch")  # libraries that run `formula`
    target: Target | None = None
    scales = True  # whether the number of threads matters
    note = ""  # what stands beside the row where it falls short
    limited = True  # whether bytes or operations are the limit, not the latency of a call or of a chain of steps

    inputs: Callable[[np.random.Generator], tuple[np.ndarray, ...]]
    formula: Callable[[Peer], Function]

    def runs_on(self, name: str) -> bool:
        return name in self.shared or callable(getattr(self, name, None))

    def build(self, peer: Peer, arrays: tuple[np.ndarray, ...]) -> Function:
        """A call without arguments that does the work once."""
        own = getattr(self, peer.name, None)
        function = own(peer) if own else peer.jit(self.formula(peer))
        return partial(function, *(peer.put(a) for a in arrays))

    def moves(self, inputs: tuple[np.ndarray, ...], result: Any) -> tuple[int, int]:
        """The bytes that must be read and written: each input and each result once."""
        leaves = result if isinstance(result, tuple | list) else [result]
        return sum(a.nbytes for a in inputs), sum(np.asarray(r).nbytes for r in leaves)

    def turns(self, inputs: tuple[np.ndarray, ...]) -> float | None:
        """How often the loop of a single value runs, on average, where the values decide."""
        return None

    def check(self, got: Any, want: Any) -> None:
        """Compare a result with the reference, leaf by leaf."""
        if isinstance(want, tuple | list):
            assert len(got) == len(want), f"{len(got)} results, not {len(want)}"
            for g, w in zip(got, want):
                self.check(g, w)
            return
        got, want = np.asarray(got, "float64"), np.asarray(want, "float64")
        assert got.size == want.size, f"shape {got.shape}, not {want.shape}"
        error = np.abs(got.ravel() - want.ravel()).max() / max(1e-30, np.abs(want).max())
        assert error <= self.tolerance, f"relative error {error:.1e} is over {self.tolerance:.1e}"


def sized(n: int) -> str:
    """16M, 64K, 1M: for names."""
    for unit, size in (("M", 1 << 20), ("M", 10**6), ("K", 1 << 10), ("K", 10**3)):
        if n >= size and n % size == 0:
            return f"{n // size}{unit}"
    return str(n)


def rows(shape: tuple[int, int]) -> str:
    return f"{shape[0]}x{shape[1]}"


def suffix(dtype: str) -> str:
    return ", f64" if dtype == "float64" else ""


def uniform(random: np.random.Generator, *shape: int, low=0.0, high=1.0, dtype="float32") -> np.ndarray:
    return random.uniform(low, high, shape).astype(dtype)


class Chain(Workload):
    def __init__(self, size: int, dtype: str = "float32", target: Target | None = None) -> None:
        self.size, self.dtype, self.target = size, dtype, target
        self.name = f"((a*b+c)*2-a)/(b+1.5), {sized(size)}{suffix(dtype)}"
        self.tolerance = 1e-4 if dtype == "float32" else 1e-12

    def inputs(self, random):
        return tuple(uniform(random, self.size, dtype=self.dtype) for _ in range(3))

    def formula(self, peer):
        return lambda a, b, c: ((a * b + c) * 2 - a) / (b + 1.5)

    def numba(self, peer):
        return peer.kernels.chain

    def numexpr(self, peer):
        two, half = np.array([2, 1.5], self.dtype)  # Python numbers would widen to float64

        def chain(a, b, c):
            return peer.evaluate("((a * b + c) * two - a) / (b + half)", dict(a=a, b=b, c=c, two=two, half=half))

        return chain

    def drjit(self, peer):
        return self.formula(peer)


class BlackScholes(Workload):
    tolerance = 1e-5

    def __init__(self, size: int, dtype: str, target: Target | None = None) -> None:
        self.size, self.dtype, self.target = size, dtype, target
        self.name = f"Black-Scholes, {sized(size)} {dtype}"

    def inputs(self, random):
        put = partial(uniform, random, self.size, dtype=self.dtype)
        return put(low=10, high=50), put(low=10, high=50), put(low=0.5, high=2), put(low=0.1, high=0.5)

    def formula(self, peer):
        xp, erf = peer.xp, peer.erf

        def price(s, k, t, v):
            deviation = v * xp.sqrt(t)
            d1 = (xp.log(s / k) + (0.02 + v * v / 2) * t) / deviation
            n1 = 0.5 + 0.5 * erf(d1 * SQRT1_2)
            n2 = 0.5 + 0.5 * erf((d1 - deviation) * SQRT1_2)
            discounted = k * xp.exp(-0.02 * t)
            return s * n1 - discounted * n2, discounted * (1 - n2) - s * (1 - n1)

        return price

    def numba(self, peer):
        return peer.kernels.black_scholes

    def drjit(self, peer):
        return self.formula(peer)


class Rosenbrock(Workload):
    name = "Rosenbrock value and gradient, 1M float64"
    tolerance = 1e-12
    target = Target(1.2)

    def inputs(self, random):
        return (uniform(random, 1_000_000, low=-2, high=2, dtype="float64"),)

    def formula(self, peer):
        return lambda x: (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()

    def numpy(self, peer):
        def value_and_gradient(x):
            d, e = x[1:] - x[:-1] ** 2, 1 - x[:-1]
            gradient = np.zeros_like(x)
            gradient[:-1] = -400 * d * x[:-1] - 2 * e
            gradient[1:] += 200 * d
            return (100 * d**2 + e**2).sum(), gradient

        return value_and_gradient

    def tracejit(self, peer):
        return peer.jit(peer.xp.value_and_grad(self.formula(peer)))

    def jax(self, peer):
        return peer.jit(peer.jax.value_and_grad(self.formula(peer)))

    def torch(self, peer):
        both = peer.torch.func.grad_and_value(self.formula(peer))
        return peer.jit(lambda x: both(x)[::-1])

    def numba(self, peer):
        return peer.kernels.rosenbrock


class Reduce(Workload):
    def __init__(self, how: str, axis: int | None, shape: tuple[int, int] = (4096, 4096), dtype="float32") -> None:
        self.how, self.axis, self.shape, self.dtype = how, axis, shape, dtype
        self.name = f"{how} over {'all' if axis is None else f'axis {axis}'}, {rows(shape)}{suffix(dtype)}"

    def inputs(self, random):
        return (uniform(random, *self.shape, dtype=self.dtype),)

    def formula(self, peer):
        axis = self.axis
        return {"sum": lambda x: x.sum(axis), "mean": lambda x: x.mean(axis), "var": lambda x: x.var(axis)}[self.how]

    def torch(self, peer):
        axis = self.axis
        return peer.jit((lambda x: x.var(axis, correction=0)) if self.how == "var" else self.formula(peer))

    def numba(self, peer):
        return getattr(peer.kernels, f"{self.how}_{'all' if self.axis is None else self.axis}")


class OfRows(Workload):
    """Something done to each row, in one size and dtype."""

    what = ""
    relative: float | None = None  # the target of the first size

    def __init__(self, shape: tuple[int, int] = (4096, 1024), dtype: str = "float32") -> None:
        self.shape, self.dtype = shape, dtype
        self.name = f"{self.what}, {rows(shape)}{suffix(dtype)}"
        self.target = Target(self.relative) if self.relative and (shape, dtype) == ((4096, 1024), "float32") else None


class Softmax(OfRows):
    what, relative = "softmax", 1.4

    def inputs(self, random):
        return (uniform(random, *self.shape, low=-4, high=4, dtype=self.dtype),)

    def formula(self, peer):
        xp = peer.xp

        def softmax(x):
            e = xp.exp(x - x.max(axis=1, keepdims=True))
            return e / e.sum(axis=1, keepdims=True)

        return softmax

    def jax(self, peer):
        return peer.jit(lambda x: peer.jax.nn.softmax(x, axis=1))

    def torch(self, peer):
        return peer.jit(lambda x: peer.torch.softmax(x, 1))

    def numba(self, peer):
        return peer.kernels.softmax


class LayerNorm(OfRows):
    what, relative = "layer norm", 1.0

    def inputs(self, random):
        x, m = uniform(random, *self.shape, low=-4, high=4, dtype=self.dtype), self.shape[1]
        return x, uniform(random, m, dtype=self.dtype), uniform(random, m, dtype=self.dtype)

    def formula(self, peer):
        xp = peer.xp

        def layer_norm(x, scale, shift):
            d = x - x.mean(axis=1, keepdims=True)
            return d / xp.sqrt((d * d).mean(axis=1, keepdims=True) + 1e-5) * scale + shift

        return layer_norm

    def torch(self, peer):
        norm, last = peer.torch.nn.functional.layer_norm, self.shape[1:]
        return peer.jit(lambda x, scale, shift: norm(x, last, scale, shift, 1e-5))

    def numba(self, peer):
        return peer.kernels.layer_norm


class LogSumExp(Workload):
    name = "sum of row logsumexp, value and gradient, 2048x1024"
    target = Target(1.3)

    def inputs(self, random):
        return (uniform(random, 2048, 1024, low=-4, high=4),)

    def numpy(self, peer):
        def value_and_gradient(x):
            top = x.max(axis=1, keepdims=True)
            e = np.exp(x - top)
            total = e.sum(axis=1, keepdims=True)
            return (np.log(total) + top).sum(), e / total

        return value_and_gradient

    def tracejit(self, peer):
        return peer.jit(peer.xp.value_and_grad(lambda x: peer.xp.logsumexp(x, axis=1).sum()))

    def jax(self, peer):
        return peer.jit(peer.jax.value_and_grad(lambda x: peer.jax.nn.logsumexp(x, axis=1).sum()))

    def torch(self, peer):
        both = peer.torch.func.grad_and_value(lambda x: peer.torch.logsumexp(x, 1).sum())
        return peer.jit(lambda x: both(x)[::-1])

    def numba(self, peer):
        return peer.kernels.logsumexp_grad


class Mlp(Workload):
    name = "MLP 784-256-128-10, batch 128, step with SGD"
    target = Target(1.2)
    sizes = (784, 256, 128, 10)

    def inputs(self, random):
        x = uniform(random, 128, 784)
        target = np.eye(10, dtype="float32")[random.integers(0, 10, 128)]
        params = []
        for n, m in zip(self.sizes, self.sizes[1:]):
            params += [uniform(random, n, m, low=-(n**-0.5), high=n**-0.5), np.zeros(m, "float32")]
        return x, target, *params

    def step(self, peer, relu, log_softmax, value_and_grad):
        def loss(params, x, target):
            w1, b1, w2, b2, w3, b3 = params
            h = relu(x @ w1 + b1)
            h = relu(h @ w2 + b2)
            return -(target * log_softmax(h @ w3 + b3)).sum() / 128

        def step(x, target, *params):
            value, gradients = value_and_grad(loss)(params, x, target)
            return value, *(p - 0.1 * g for p, g in zip(params, gradients))

        return peer.jit(step)

    def tracejit(self, peer):
        tj = peer.xp
        return self.step(peer, tj.relu, lambda z: z - tj.logsumexp(z, axis=1, keepdims=True), tj.value_and_grad)

    def jax(self, peer):
        nn = peer.jax.nn
        return self.step(peer, nn.relu, lambda z: nn.log_softmax(z, axis=1), peer.jax.value_and_grad)

    def torch(self, peer):
        torch = peer.torch

        def value_and_grad(f):
            both = torch.func.grad_and_value(f)
            return lambda *args: both(*args)[::-1]

        return self.step(peer, torch.relu, lambda z: torch.log_softmax(z, 1), value_and_grad)

    def numpy(self, peer):
        def step(x, target, w1, b1, w2, b2, w3, b3):
            h1 = np.maximum(x @ w1 + b1, 0)
            h2 = np.maximum(h1 @ w2 + b2, 0)
            z = h2 @ w3 + b3
            z = z - z.max(axis=1, keepdims=True)
            log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
            g = (np.exp(log_p) - target) / 128
            g2 = (g @ w3.T) * (h2 > 0)
            g1 = (g2 @ w2.T) * (h1 > 0)
            gradients = (x.T @ g1, g1.sum(0), h1.T @ g2, g2.sum(0), h2.T @ g, g.sum(0))
            return -(target * log_p).sum() / 128, *(p - 0.1 * d for p, d in zip((w1, b1, w2, b2, w3, b3), gradients))

        return step

    def numba(self, peer):
        return peer.kernels.mlp_step


class Mandelbrot(Workload):
    """Of the eight vector operations of an iteration, five (a product, three fma, a comparison) go through the two
    multiply pipes of a Zen 5 core: 2.5 cycles for 16 points, so 0.59 ms on two cores at 4.25 GHz. A C program of just
    these operations takes that long, on one core twice that."""

    name = "mandelbrot, 800x800, 50 iterations"
    target = Target(1.0)

    def inputs(self, random):
        re, im = np.meshgrid(np.linspace(-2, 0.5, 800), np.linspace(-1.25, 1.25, 800))
        return re.astype("float32"), im.astype("float32")

    def formula(self, peer):
        where = peer.xp.where

        def mandelbrot(cr, ci):
            zr = zi = count = cr * 0
            for _ in range(50):
                zr, zi = zr * zr - zi * zi + cr, 2 * zr * zi + ci
                count = where(zr * zr + zi * zi <= 4, count + 1, count)
            return count

        return mandelbrot

    def numpy(self, peer):
        return np.errstate(all="ignore")(self.formula(peer))

    def drjit(self, peer):
        def mandelbrot(cr, ci):
            zr = zi = count = cr * 0
            for _ in range(50):
                zr, zi = zr * zr - zi * zi + cr, 2 * zr * zi + ci
                count = peer.dr.select(zr * zr + zi * zi <= 4, count + 1, count)
            return count

        return mandelbrot

    def numba(self, peer):
        return peer.kernels.mandelbrot

    def check(self, got, want):
        """Rounding moves a few points of the border by iterations; all others must agree."""
        differ = (got.ravel() != want.ravel()).mean()
        assert differ < 0.01, f"{differ:.1%} of the points differ"


class Call(Workload):
    name = "compiled call, two tensors of 10 elements"
    target = Target(seconds=2.5e-6)
    scales = limited = False

    def inputs(self, random):
        return uniform(random, 10), uniform(random, 10)

    def formula(self, peer):
        return lambda a, b: a * 2 + b

    def numba(self, peer):
        return peer.kernels.call

    def drjit(self, peer):
        return peer.dr.freeze(self.formula(peer))


class EagerAdd(Call):
    name = "eager add, 10 elements"
    target = Target(seconds=1.2e-6)
    shared = ()

    def formula(self, peer):
        return lambda a, b: a + b

    numpy = tracejit = jax = torch = formula
    numba = drjit = None


WORKLOADS: dict[str, Workload] = {
    w.name: w
    for w in (
        Chain(1 << 24, target=Target(1.0)),
        Chain(1 << 23, "float64"),
        Chain(1 << 15),
        BlackScholes(10**6, "float32", Target(1.2)),
        BlackScholes(10**6, "float64", Target(1.2)),
        BlackScholes(20_000, "float32"),
        Rosenbrock(),
        *(Reduce(how, axis) for how in ("sum", "mean", "var") for axis in (0, 1, None)),
        *(Reduce("sum", axis, (4096, 2048), "float64") for axis in (0, 1, None)),
        *(Reduce("sum", axis, (128, 1024)) for axis in (0, 1, None)),
        Softmax(),
        Softmax(dtype="float64"),
        Softmax((64, 1024)),
        LayerNorm(),
        LayerNorm(dtype="float64"),
        LayerNorm((64, 1024)),
        LogSumExp(),
        Mlp(),
        Mandelbrot(),
        Call(),
        EagerAdd(),
    )
}
