"""Training steps: one batch forward, backward and through Adam, the state kept by the library between calls.

`tracejit` uses layers, losses and optimizers as users do; PyTorch modules and its fused Adam, compiled and (as
`torch_eager`) not; JAX a jitted step with Adam written out, arguments donated. All start from the same weights. What is
checked is the loss of the first step, against NumPy in float64; `tests` are where gradients and updates are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.peers import Peer
from benchmarks.workloads import Function, Target, Workload

Weights = dict[str, np.ndarray]
RATE = 1e-3


def glorot(random: np.random.Generator, *shape: int) -> np.ndarray:
    limit = (6 / (np.prod(shape[:-2]) * (shape[-2] + shape[-1]))) ** 0.5
    return random.uniform(-limit, limit, shape).astype("float32")


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, "float32")


def crossentropy(logits: np.ndarray, labels: np.ndarray) -> float:
    """The mean over all labels."""
    away = logits - logits.max(-1, keepdims=True)
    log_p = away - np.log(np.exp(away).sum(-1, keepdims=True))
    return -np.take_along_axis(log_p, labels[..., None].astype(int), -1).mean()


class TrainingStep(Workload):
    """A model, given by what it computes in each library."""

    shared = ()
    target = Target(1.0)

    data: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]
    weights: Callable[[np.random.Generator], Weights]
    numpy_logits: Callable[..., np.ndarray]
    tracejit_model: Callable[..., Any]
    torch_model: Callable[..., Any]
    jax_logits: Callable[..., Any]

    def inputs(self, random):
        return *self.data(random), *self.weights(random).values()

    def named(self, arrays: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self.weights(np.random.default_rng(0)), arrays))

    def runs_on(self, name):
        return name in ("tracejit", "torch", "torch_eager", "jax")

    def build(self, peer: Peer, arrays: tuple[np.ndarray, ...]) -> Function:
        x, y, *weights = arrays
        return getattr(self, peer.name)(peer, x, y, self.named(weights))

    def numpy(self, peer, x, y, weights):
        return lambda: crossentropy(self.numpy_logits(x, weights), y)

    def tracejit(self, peer, x, y, weights):
        tj = peer.xp
        model, optimizer = self.tracejit_model(tj, x, weights), tj.optimizers.Adam(RATE)
        loss_object = tj.losses.SparseCategoricalCrossentropy(from_logits=True)

        @tj.function
        def step(x, y):
            with tj.GradientTape() as tape:
                loss = loss_object(y, model(x, training=True))
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return loss

        optimizer.build(model.trainable_variables)
        return partial(step, tj.asarray(x), tj.asarray(y))

    def _torch(self, peer, x, y, weights, compiled):
        torch = peer.torch
        model = self.torch_model(torch, weights)
        optimizer = torch.optim.Adam(model.parameters(), RATE, fused=True)
        x, y = torch.from_numpy(x), torch.from_numpy(y)

        def loss_of(x, y):
            logits = model(x)
            return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))

        loss_of = peer.jit(loss_of) if compiled else loss_of

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(x, y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    def torch(self, peer, x, y, weights):
        return self._torch(peer, x, y, weights, True)

    def torch_eager(self, peer, x, y, weights):
        return self._torch(peer, x, y, weights, False)

    def jax(self, peer, x, y, weights):
        jax, jnp = peer.jax, peer.xp

        def loss_of(w, x, y):
            log_p = jax.nn.log_softmax(self.jax_logits(jax, x, w))
            return -jnp.take_along_axis(log_p, y[..., None], -1).mean()

        def step(state, x, y):
            w, m, v, t = state
            loss, g = jax.value_and_grad(loss_of)(w, x, y)
            t = t + 1
            rate = RATE * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            m = jax.tree.map(lambda m, g: m + 0.1 * (g - m), m, g)
            v = jax.tree.map(lambda v, g: v + 0.001 * (g * g - v), v, g)
            w = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-7), w, m, v)
            return (w, m, v, t), loss

        jitted = jax.jit(step, donate_argnums=0)
        w = {k: jnp.asarray(a) for k, a in weights.items()}
        state = w, jax.tree.map(jnp.zeros_like, w), jax.tree.map(jnp.zeros_like, w), jnp.float32(0)
        x, y = jnp.asarray(x), jnp.asarray(y)

        def call():
            nonlocal state
            state, loss = jitted(state, x, y)
            return loss

        return call


def fill(torch: Any, module: Any, **arrays: np.ndarray) -> Any:
    """A PyTorch module with these weights."""
    with torch.no_grad():
        for name, array in arrays.items():
            getattr(module, name).copy_(torch.from_numpy(np.ascontiguousarray(array)))
    return module


class MlpStep(TrainingStep):
    name = "MLP 784-256-128-10, batch 128, Adam"
    sizes = (784, 256, 128, 10)
    batch = 128

    def data(self, random):
        x = random.uniform(0, 1, (self.batch, self.sizes[0]))
        return x.astype("float32"), random.integers(0, self.sizes[-1], self.batch)

    def weights(self, random):
        return {
            f"{kind}{k}": glorot(random, n, m) if kind == "w" else zeros(m)
            for k, (n, m) in enumerate(zip(self.sizes, self.sizes[1:]))
            for kind in "wb"
        }

    def numpy_logits(self, x, w):
        for k in range(3):
            x = x @ w[f"w{k}"] + w[f"b{k}"]
            x = np.maximum(x, 0) if k < 2 else x
        return x

    def jax_logits(self, jax, x, w):
        for k in range(3):
            x = x @ w[f"w{k}"] + w[f"b{k}"]
            x = jax.nn.relu(x) if k < 2 else x
        return x

    def tracejit_model(self, tj, x, weights):
        dense = tj.layers.Dense
        n, first, second, last = self.sizes
        model = tj.Sequential([dense(first, "relu", input_shape=(n,)), dense(second, "relu"), dense(last)])
        model.set_weights(list(weights.values()))
        return model

    def torch_model(self, torch, weights):
        layers = []
        for k, (n, m) in enumerate(zip(self.sizes, self.sizes[1:])):
            layers.append(fill(torch, torch.nn.Linear(n, m), weight=weights[f"w{k}"].T, bias=weights[f"b{k}"]))
            layers.append(torch.nn.ReLU())
        return torch.nn.Sequential(*layers[:-1])


class Miniature(MlpStep):
    """So small that what it takes is the library itself, ready for training."""

    name = "miniature"
    sizes = (8, 8, 8, 8)
    batch = 2


class CnnStep(TrainingStep):
    name = "CNN 2 x 16 filters, batch 32, 28x28, Adam"

    def data(self, random):
        return random.uniform(0, 1, (32, 28, 28, 1)).astype("float32"), random.integers(0, 10, 32)

    def weights(self, random):
        return {
            "k0": glorot(random, 3, 3, 1, 16), "b0": zeros(16), "k1": glorot(random, 3, 3, 16, 16), "b1": zeros(16),
            "w": glorot(random, 16, 10), "b": zeros(10),
        }  # fmt: skip

    def numpy_logits(self, x, w):
        for k in range(2):
            windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))
            x = np.maximum(np.einsum("bxycij,ijco->bxyo", windows, w[f"k{k}"]) + w[f"b{k}"], 0)
        return x.mean((1, 2)) @ w["w"] + w["b"]

    def jax_logits(self, jax, x, w):
        for k in range(2):
            layout = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(x, w[f"k{k}"], (1, 1), "VALID", dimension_numbers=layout)
            x = jax.nn.relu(x + w[f"b{k}"])
        return x.mean((1, 2)) @ w["w"] + w["b"]

    def tracejit_model(self, tj, x, weights):
        model = tj.Sequential([
            tj.layers.Conv2D(16, [3, 3], activation="relu", input_shape=(None, None, 1)),
            tj.layers.Conv2D(16, [3, 3], activation="relu"),
            tj.layers.GlobalAveragePooling2D(),
            tj.layers.Dense(10),
        ])
        model.set_weights(list(weights.values()))
        return model

    def torch_model(self, torch, weights):
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.convs = torch.nn.ModuleList([
                    fill(torch, torch.nn.Conv2d(n, 16, 3), weight=weights[f"k{k}"].transpose(3, 2, 0, 1),
                         bias=weights[f"b{k}"])
                    for k, n in enumerate((1, 16))
                ])
                self.head = fill(torch, torch.nn.Linear(16, 10), weight=weights["w"].T, bias=weights["b"])

            def forward(self, x):
                x = x.permute(0, 3, 1, 2)
                for conv in self.convs:
                    x = torch.relu(conv(x))
                return self.head(x.mean((2, 3)))

        return Net()


class LstmStep(TrainingStep):
    name = "LSTM, 100 steps, batch 32, 128 units, Adam"

    def data(self, random):
        return random.normal(size=(32, 100, 128)).astype("float32"), random.integers(0, 10, 32)

    def weights(self, random):
        return {
            "k": glorot(random, 128, 512), "r": glorot(random, 128, 512), "b": zeros(512), "w": glorot(random, 128, 10),
            "c": zeros(10),
        }  # fmt: skip

    def numpy_logits(self, x, w):
        h = c = np.zeros((32, 128))
        for t in range(100):
            z = x[:, t] @ w["k"] + h @ w["r"] + w["b"]
            i, f, o = (1 / (1 + np.exp(-z[:, a : a + 128])) for a in (0, 128, 384))
            c = f * c + i * np.tanh(z[:, 256:384])
            h = o * np.tanh(c)
        return h @ w["w"] + w["c"]

    def jax_logits(self, jax, x, w):
        jnp = jax.numpy

        def step(carry, z):
            h, c = carry
            i, f, g, o = jnp.split(z + h @ w["r"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        start = jnp.zeros((32, 128), "float32")
        (h, _), _ = jax.lax.scan(step, (start, start), jnp.swapaxes(x, 0, 1) @ w["k"] + w["b"])
        return h @ w["w"] + w["c"]

    def tracejit_model(self, tj, x, weights):
        model = tj.Sequential([tj.layers.LSTM(128, input_shape=(100, 128)), tj.layers.Dense(10)])
        model.set_weights(list(weights.values()))
        return model

    def torch_model(self, torch, weights):
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.lstm = fill(torch, torch.nn.LSTM(128, 128, batch_first=True), weight_ih_l0=weights["k"].T,
                                 weight_hh_l0=weights["r"].T, bias_ih_l0=weights["b"], bias_hh_l0=weights["b"])
                self.head = fill(torch, torch.nn.Linear(128, 10), weight=weights["w"].T, bias=weights["c"])

            def forward(self, x):
                return self.head(self.lstm(x)[0][:, -1])

        return Net()


class TransformerStep(TrainingStep):
    name = "transformer, 2 layers, d=128, 4 heads, length 128, batch 16, Adam"
    words, length, d, heads, batch = 256, 128, 128, 4, 16
    tolerance = 2e-4

    def data(self, random):
        text = random.integers(0, self.words, (self.batch, self.length + 1))
        return text[:, :-1].copy(), text[:, 1:].copy()

    def weights(self, random):
        d, found = self.d, {}
        found["words"] = random.normal(0, 0.02, (self.words, d)).astype("float32")
        found["places"] = random.normal(0, 0.02, (self.length, d)).astype("float32")
        for k in range(2):
            found |= {f"g{k}a": zeros(d) + 1, f"s{k}a": zeros(d)}
            for part in "qkvo":
                found |= {f"{part}{k}": glorot(random, d, d), f"{part}{k}b": zeros(d)}
            found |= {f"g{k}b": zeros(d) + 1, f"s{k}b": zeros(d)}
            found |= {f"u{k}": glorot(random, d, 4 * d), f"u{k}b": zeros(4 * d)}
            found |= {f"d{k}": glorot(random, 4 * d, d), f"d{k}b": zeros(d)}
        return found | {"g": zeros(d) + 1, "s": zeros(d), "w": glorot(random, d, self.words), "b": zeros(self.words)}

    def _logits(self, xp, x, w, layer_norm, attention, gelu):
        """Shared by the libraries that write it out."""
        h = w["words"][x] + w["places"]
        for k in range(2):
            n = layer_norm(h, w[f"g{k}a"], w[f"s{k}a"])
            q, key, v = ((n @ w[f"{p}{k}"] + w[f"{p}{k}b"]).reshape(-1, self.length, self.heads, 32) for p in "qkv")
            h = h + attention(q, key, v).reshape(-1, self.length, self.d) @ w[f"o{k}"] + w[f"o{k}b"]
            n = layer_norm(h, w[f"g{k}b"], w[f"s{k}b"])
            h = h + gelu(n @ w[f"u{k}"] + w[f"u{k}b"]) @ w[f"d{k}"] + w[f"d{k}b"]
        return layer_norm(h, w["g"], w["s"]) @ w["w"] + w["b"]

    def numpy_logits(self, x, w):
        from scipy.special import erf

        def layer_norm(x, g, s):
            away = x - x.mean(-1, keepdims=True)
            return away / np.sqrt((away**2).mean(-1, keepdims=True) + 1e-5) * g + s

        def attention(q, k, v):
            scores = np.einsum("bqhd,bkhd->bhqk", q, k) / 32**0.5
            scores = np.where(np.tri(self.length, dtype=bool), scores, -np.inf)
            p = np.exp(scores - scores.max(-1, keepdims=True))
            return np.einsum("bhqk,bkhd->bqhd", p / p.sum(-1, keepdims=True), v)

        x = x.astype(int)
        return self._logits(np, x, w, layer_norm, attention, lambda x: x * 0.5 * (1 + erf(x * 0.5**0.5)))

    def jax_logits(self, jax, x, w):
        jnp = jax.numpy

        def layer_norm(x, g, s):
            away = x - x.mean(-1, keepdims=True)
            return away * jax.lax.rsqrt((away**2).mean(-1, keepdims=True) + 1e-5) * g + s

        attention = partial(jax.nn.dot_product_attention, is_causal=True)
        return self._logits(jnp, x, w, layer_norm, attention, partial(jax.nn.gelu, approximate=False))

    def tracejit_model(self, tj, x, weights):
        layers, d = tj.layers, self.d

        class Block(tj.Layer):
            def __init__(self):
                super().__init__()
                self.first, self.second = (layers.LayerNormalization(epsilon=1e-5) for _ in range(2))
                self.attention = layers.MultiHeadAttention(4, d // 4)
                self.up, self.down = layers.Dense(4 * d, activation="gelu"), layers.Dense(d)

            def call(self, x):
                n = self.first(x)
                x = x + self.attention(n, n, use_causal_mask=True)
                return x + self.down(self.up(self.second(x)))

        class Net(tj.Layer):
            def __init__(self, words, length):
                super().__init__()
                self.words, self.places = layers.Embedding(words, d), tj.Variable(tj.zeros((length, d)))
                self.blocks = [Block(), Block()]
                self.norm, self.head = layers.LayerNormalization(epsilon=1e-5), layers.Dense(words)

            def call(self, x):
                h = self.words(x) + self.places
                for block in self.blocks:
                    h = block(h)
                return self.head(self.norm(h))

        model = Net(self.words, self.length)
        model(tj.asarray(x[:1]))
        w = weights
        model.words.set_weights([w["words"]])
        model.places.assign(w["places"])
        for k, block in enumerate(model.blocks):
            block.first.set_weights([w[f"g{k}a"], w[f"s{k}a"]])
            block.second.set_weights([w[f"g{k}b"], w[f"s{k}b"]])
            for part, layer in zip("qkv", (block.attention.query, block.attention.key, block.attention.value)):
                layer.set_weights([w[f"{part}{k}"].reshape(d, 4, -1), w[f"{part}{k}b"].reshape(4, -1)])
            block.attention.output.set_weights([w[f"o{k}"].reshape(4, -1, d), w[f"o{k}b"]])
            block.up.set_weights([w[f"u{k}"], w[f"u{k}b"]])
            block.down.set_weights([w[f"d{k}"], w[f"d{k}b"]])
        model.norm.set_weights([w["g"], w["s"]])
        model.head.set_weights([w["w"], w["b"]])
        return model

    def torch_model(self, torch, weights):
        d, length, heads = self.d, self.length, self.heads
        nn, w = torch.nn, weights

        def linear(name, bias):
            return fill(torch, nn.Linear(*w[name].shape), weight=w[name].T, bias=w[bias])

        def norm(scale, shift):
            return fill(torch, nn.LayerNorm(d), weight=w[scale], bias=w[shift])

        class Block(nn.Module):
            def __init__(self, k):
                super().__init__()
                self.first, self.second = norm(f"g{k}a", f"s{k}a"), norm(f"g{k}b", f"s{k}b")
                self.q, self.k, self.v, self.o = (linear(f"{p}{k}", f"{p}{k}b") for p in "qkvo")
                self.up, self.down = linear(f"u{k}", f"u{k}b"), linear(f"d{k}", f"d{k}b")

            def forward(self, x):
                n = self.first(x)
                q, k, v = (f(n).view(-1, length, heads, d // heads).transpose(1, 2) for f in (self.q, self.k, self.v))
                a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + self.o(a.transpose(1, 2).reshape(-1, length, d))
                return x + self.down(nn.functional.gelu(self.up(self.second(x))))

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.words = fill(torch, nn.Embedding(*w["words"].shape), weight=w["words"])
                self.places = nn.Parameter(torch.from_numpy(w["places"].copy()))
                self.blocks = nn.Sequential(Block(0), Block(1))
                self.norm, self.head = norm("g", "s"), linear("w", "b")

            def forward(self, x):
                return self.head(self.norm(self.blocks(self.words(x) + self.places)))

        return Net()


TRAINING: dict[str, TrainingStep] = {w.name: w for w in (MlpStep(), CnnStep(), LstmStep(), TransformerStep())}
