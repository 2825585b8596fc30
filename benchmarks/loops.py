"""Loops: escape times with a test for each point, scalar loops, trajectories, random paths, recurrent layers.

A workload is as in `workloads.py`. Each library says the loop in its own way: JAX by `lax`, Numba by hand, PyTorch by
its own layers or a Python loop.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.workloads import Target, Workload

HIDDEN, BATCH, STEPS = 128, 32, 100


class Escape(Workload):
    """Every point stops by itself."""

    name = "mandelbrot, 800x800, each point until it escapes"
    shared = ()

    def inputs(self, random):
        re, im = np.meshgrid(np.linspace(-2, 0.5, 800), np.linspace(-1.25, 1.25, 800))
        return re.astype("float32"), im.astype("float32")

    def turns(self, inputs):
        return float(self.numpy(None)(*inputs).mean())

    def numpy(self, peer):
        def escape(cr, ci):
            zr, zi, count = cr * 0, ci * 0, np.zeros(cr.shape, "int32")
            for _ in range(50):
                on = zr * zr + zi * zi <= 4
                zr, zi = np.where(on, zr * zr - zi * zi + cr, zr), np.where(on, 2 * zr * zi + ci, zi)
                count += on
            return count

        return escape

    def tracejit(self, peer):
        tj = peer.xp

        def escape(cr, ci):
            def goes_on(zr, zi):
                return zr * zr + zi * zi <= 4

            def step(i, zr, zi, count):
                on = goes_on(zr, zi)
                zr, zi = tj.where(on, zr * zr - zi * zi + cr, zr), tj.where(on, 2 * zr * zi + ci, zi)
                return i + 1, zr, zi, tj.where(on, count + 1, count)

            start = 0, cr * 0, ci * 0, tj.zeros(cr.shape, dtype="int32")
            return tj.while_loop(lambda i, zr, zi, c: tj.any(goes_on(zr, zi)) & (i < 50), step, start)[3]

        return tj.function(escape)

    def jax(self, peer):
        jax, xp = peer.jax, peer.xp

        def escape(cr, ci):
            def goes_on(c):
                return xp.any(c[1] * c[1] + c[2] * c[2] <= 4) & (c[0] < 50)

            def step(c):
                i, zr, zi, count = c
                on = zr * zr + zi * zi <= 4
                zr, zi = xp.where(on, zr * zr - zi * zi + cr, zr), xp.where(on, 2 * zr * zi + ci, zi)
                return i + 1, zr, zi, count + on

            return jax.lax.while_loop(goes_on, step, (0, cr * 0, ci * 0, xp.zeros(cr.shape, "int32")))[3]

        return jax.jit(escape)

    def numba(self, peer):
        from numba import njit, prange

        @njit(parallel=True)
        def escape(re, im):
            out = np.zeros(re.shape, np.int32)
            for a in prange(re.shape[0]):
                for b in range(re.shape[1]):
                    zr = zi = np.float32(0)
                    c = 0
                    while c < 50 and zr * zr + zi * zi <= np.float32(4):
                        zr, zi = zr * zr - zi * zi + re[a, b], np.float32(2) * zr * zi + im[a, b]
                        c += 1
                    out[a, b] = c
            return out

        return escape

    def check(self, got, want):
        """Rounding moves a few points of the border by iterations; all others must agree."""
        differ = (got.ravel() != want.ravel()).mean()
        assert differ < 0.01, f"{differ:.1%} of the points differ"


class Controller(Workload):
    """One value goes round: a feedback loop with a few carries, a million times."""

    scales = limited = False
    note = "Each step waits for the one before it, so the limit is the latency of a chain of operations."

    name = "PID controller, 1,000,000 steps"
    shared = ()
    steps = 1_000_000
    tolerance = 1e-3

    def inputs(self, random):
        return (np.array(1.5, "float32"),)

    @staticmethod
    def step(goal, s, clip):
        x, v, total, before = s
        error = goal - x
        u = clip(2.0 * error + 0.5 * total + 0.3 * (error - before), -10.0, 10.0)
        v = v + 0.01 * (u - 0.4 * v)
        return x + 0.01 * v, v, total + 0.01 * error, error

    def numpy(self, peer):
        def run(goal):
            goal, s = float(goal), (0.0, 0.0, 0.0, 0.0)
            for _ in range(self.steps):
                s = self.step(goal, s, lambda u, low, high: min(max(u, low), high))
            return np.array(s[:2])

        return run

    def tracejit(self, peer):
        tj = peer.xp

        def run(goal):
            zero = goal * 0
            s = tj.fori_loop(0, self.steps, lambda i, s: self.step(goal, s, tj.clip), (zero, zero, zero, zero))
            return tj.stack(s[:2])

        return tj.function(run)

    def jax(self, peer):
        def run(goal):
            zero = goal * 0
            step = lambda i, s: self.step(goal, s, peer.xp.clip)
            return peer.xp.stack(peer.jax.lax.fori_loop(0, self.steps, step, (zero, zero, zero, zero))[:2])

        return peer.jax.jit(run)

    def numba(self, peer):
        from numba import njit

        steps = self.steps

        @njit
        def run(goal):
            f = np.float32
            goal = goal[()]
            x = v = total = before = f(0)
            for _ in range(steps):
                error = goal - x
                u = f(2) * error + f(0.5) * total + f(0.3) * (error - before)
                u = min(max(u, f(-10)), f(10))
                v += f(0.01) * (u - f(0.4) * v)
                x, total, before = x + f(0.01) * v, total + f(0.01) * error, error
            return np.array([x, v])

        return run


class Pendulums(Workload):
    """Independent trajectories."""

    name = "pendulums, 100,000 of them, 200 steps"
    shared = ()

    def inputs(self, random):
        return random.uniform(-2, 2, 100_000).astype("float32"), random.uniform(-1, 1, 100_000).astype("float32")

    @staticmethod
    def step(x, v, sin):
        v = v - 0.01 * (sin(x) + 0.1 * v)
        return x + 0.01 * v, v

    def numpy(self, peer):
        def run(x, v):
            for _ in range(200):
                x, v = self.step(x, v, np.sin)
            return x

        return run

    def tracejit(self, peer):
        tj = peer.xp
        return tj.function(lambda x, v: tj.fori_loop(0, 200, lambda i, s: self.step(*s, tj.sin), (x, v))[0])

    def jax(self, peer):
        loop = peer.jax.lax.fori_loop
        return peer.jax.jit(lambda x, v: loop(0, 200, lambda i, s: self.step(*s, peer.xp.sin), (x, v))[0])

    def torch(self, peer):
        return self.numpy_like(peer.torch)

    def numpy_like(self, torch):
        def run(x, v):
            for _ in range(200):
                x, v = self.step(x, v, torch.sin)
            return x

        return run

    def numba(self, peer):
        from numba import njit, prange

        @njit(parallel=True, fastmath=True)
        def run(x, v):
            out = np.empty_like(x)
            for i in prange(len(x)):
                a, b = x[i], v[i]
                for _ in range(200):
                    b -= np.float32(0.01) * (math.sin(a) + np.float32(0.1) * b)
                    a += np.float32(0.01) * b
                out[i] = a
            return out

        return run


class Paths(Workload):
    """Random paths: what is drawn differs between libraries, so the mean has to agree only."""

    name = "Monte Carlo, 200,000 paths, 50 steps"
    shared = ()
    paths, steps = 200_000, 50

    def inputs(self, random):
        return (np.array(0.02, "float32"),)

    def numpy(self, peer):
        def run(sigma):
            random, s = np.random.default_rng(1), np.ones(self.paths)
            for _ in range(self.steps):
                s *= np.exp(float(sigma) * random.standard_normal(self.paths) - 0.5 * float(sigma) ** 2)
            return np.maximum(s - 1, 0).mean()

        return run

    def tracejit(self, peer):
        tj = peer.xp

        def run(sigma):
            def step(i, s):
                return s * tj.exp(sigma * tj.random.normal((self.paths,)) - 0.5 * sigma * sigma)

            return tj.maximum(tj.fori_loop(0, self.steps, step, tj.ones(self.paths)) - 1, 0).mean()

        return tj.function(run)

    def jax(self, peer):
        jax, xp = peer.jax, peer.xp

        def run(sigma):
            def step(s, key):
                draw = jax.random.normal(key, (self.paths,), "float32")
                return s * xp.exp(sigma * draw - 0.5 * sigma * sigma), None

            keys = jax.random.split(jax.random.key(0), self.steps)
            return xp.maximum(jax.lax.scan(step, xp.ones(self.paths, "float32"), keys)[0] - 1, 0).mean()

        return jax.jit(run)

    def numba(self, peer):
        from numba import njit, prange

        paths, steps = self.paths, self.steps

        @njit(parallel=True)
        def run(sigma):
            s = sigma[()]
            total = 0.0
            for _path in prange(paths):
                x = 1.0
                for _step in range(steps):
                    x *= math.exp(s * np.random.standard_normal() - 0.5 * s * s)
                total += max(x - 1.0, 0.0)
            return total / paths

        return run

    def check(self, got, want):
        assert abs(np.asarray(got) - want) < 0.02 * abs(want), f"{got}, not {want}"


class Kalman(Workload):
    """Small matrices in a loop."""

    scales = limited = False
    note = "Each step waits for the one before it, so the limit is the latency of a chain of operations."

    name = "Kalman filter, 4x4, 5,000 steps"
    shared = ("numpy", "tracejit", "jax")
    tolerance = 1e-3

    def inputs(self, random):
        dt = 0.1
        f = np.eye(4) + dt * np.eye(4, k=2)
        return tuple(a.astype("float32") for a in (f, np.eye(2, 4), random.normal(0, 1, (5_000, 2))))

    @staticmethod
    def step(f, h, x, p, z, xp, inverse):
        x, p = f @ x, f @ p @ f.T + 0.01 * xp.eye(4, dtype=f.dtype)
        gain = p @ h.T @ inverse(h @ p @ h.T + 0.5 * xp.eye(2, dtype=f.dtype))
        return x + gain @ (z - h @ x), p - gain @ h @ p

    def formula(self, peer):
        xp = peer.xp

        def inverse(m):
            a, b, c, d = m[0, 0], m[0, 1], m[1, 0], m[1, 1]
            return xp.stack([xp.stack([d, -b]), xp.stack([-c, a])]) / (a * d - b * c)

        def run(f, h, z):
            x, p = xp.zeros(4, dtype=f.dtype), xp.eye(4, dtype=f.dtype)
            return self.loop(peer, lambda s, row: self.step(f, h, *s, row, xp, inverse), (x, p), z)

        return run

    def loop(self, peer, step, state, rows):
        if peer.name == "numpy":
            for row in rows:
                state = step(state, row)
            return state[0]
        scan = peer.jax.lax.scan if peer.name == "jax" else peer.xp.scan
        return scan(lambda s, row: (step(s, row), None), state, rows)[0][0]


class Lstm(Workload):
    """A recurrent layer over time; PyTorch runs its own."""

    name = f"LSTM, {STEPS} steps, batch {BATCH}, hidden {HIDDEN}"
    target = Target(1.0)
    shared = ("numpy", "tracejit", "jax")
    tolerance = 1e-3

    def inputs(self, random):
        wide = 4 * HIDDEN
        x = random.standard_normal((STEPS, BATCH, HIDDEN))
        wx, wh = (random.uniform(-1, 1, (HIDDEN, wide)) / math.sqrt(HIDDEN) for _ in range(2))
        return tuple(a.astype("float32") for a in (x, wx, wh, random.uniform(-0.1, 0.1, wide)))

    def layer(self, peer):
        xp = peer.xp

        def sigmoid(v):
            return 1 / (1 + xp.exp(-v))

        def run(x, wx, wh, b):
            def step(state, row):
                h, c = state
                z = row @ wx + h @ wh + b
                i, f, g, o = (z[:, k * HIDDEN: (k + 1) * HIDDEN] for k in range(4))
                c = sigmoid(f) * c + sigmoid(i) * xp.tanh(g)
                h = sigmoid(o) * xp.tanh(c)
                return (h, c), h

            start = xp.zeros((BATCH, HIDDEN), dtype=x.dtype)
            if peer.name == "numpy":
                state, rows = (start, start), []
                for row in x:
                    state, h = step(state, row)
                    rows.append(h)
                return np.stack(rows)
            scan = peer.jax.lax.scan if peer.name == "jax" else xp.scan
            return scan(step, (start, start), x)[1]

        return run

    def formula(self, peer):
        return self.layer(peer)

    def torch_layer(self, torch, wx, wh, b):
        layer = torch.nn.LSTM(HIDDEN, HIDDEN)
        with torch.no_grad():
            layer.weight_ih_l0.copy_(wx.T)
            layer.weight_hh_l0.copy_(wh.T)
            layer.bias_ih_l0.copy_(b)
            layer.bias_hh_l0.zero_()
        return layer

    def torch(self, peer):
        layers: list[Any] = []

        def run(x, wx, wh, b):
            if not layers:
                layers.append(self.torch_layer(peer.torch, wx, wh, b))
            with peer.torch.no_grad():
                return layers[0](x)[0]

        return run


class LstmGradient(Lstm):
    """The gradient of the sum of squares of all outputs by the input and the weights."""

    name = f"LSTM gradient, {STEPS} steps, batch {BATCH}, hidden {HIDDEN}"
    target = None

    def numpy(self, peer):
        def run(x, wx, wh, b):
            h = c = np.zeros((BATCH, HIDDEN))
            kept = []
            for row in x:
                z = row @ wx + h @ wh + b
                i, f, o = (1 / (1 + np.exp(-z[:, k * HIDDEN: (k + 1) * HIDDEN])) for k in (0, 1, 3))
                g = np.tanh(z[:, 2 * HIDDEN: 3 * HIDDEN])
                new = f * c + i * g
                kept.append((row, h, c, i, f, g, o, np.tanh(new)))
                c, h = new, o * np.tanh(new)
            dx, dwx, dwh, db = np.zeros_like(x), np.zeros_like(wx), np.zeros_like(wh), np.zeros_like(b)
            dh, dc = np.zeros((2, BATCH, HIDDEN))
            for t in reversed(range(len(x))):
                row, h, c, i, f, g, o, y = kept[t]
                dh = dh + 2 * o * y
                dc = dc + dh * o * (1 - y * y)
                gates = dc * g * i * (1 - i), dc * c * f * (1 - f), dc * i * (1 - g * g), dh * y * o * (1 - o)
                dz = np.concatenate(gates, axis=1)
                dx[t], dh, dc = dz @ wx.T, dz @ wh.T, dc * f
                dwx, dwh, db = dwx + row.T @ dz, dwh + h.T @ dz, db + dz.sum(0)
            return [dx, dwx, dwh, db]

        return run

    def tracejit(self, peer):
        layer, tj = self.layer(peer), peer.xp
        return tj.function(tj.grad(lambda *a: tj.square(layer(*a)).sum(), argnums=(0, 1, 2, 3)))

    def jax(self, peer):
        layer, xp = self.layer(peer), peer.xp
        return peer.jax.jit(peer.jax.grad(lambda *a: xp.square(layer(*a)).sum(), argnums=(0, 1, 2, 3)))

    def torch(self, peer):
        layers: list[Any] = []

        def run(x, wx, wh, b):
            if not layers:
                layers.append(self.torch_layer(peer.torch, wx, wh, b))
            layer = layers[0]
            x = x.detach().requires_grad_(True)
            inputs = x, layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0
            dx, dwx, dwh, db = peer.torch.autograd.grad(layer(x)[0].square().sum(), inputs)
            return dx, dwx.T, dwh.T, db

        return run


LOOPS: dict[str, Workload] = {
    w.name: w for w in (Escape(), Controller(), Pendulums(), Paths(), Kalman(), Lstm(), LstmGradient())
}
