"""A small transformer that predicts the next letter of a real text: eager steps, then compiled ones.

The text is the language reference that Python ships for `help()` (`pydoc_data.topics`, about half a million letters).
Two layers of four heads read the last 64 letters; attention never holds its matrix of scores, except for the picture.

    python examples/transformer.py [--out DIR] [--steps N]      saves transformer.png
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc_data.topics import topics

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import tracejit as tj

BATCH, LENGTH, WIDTH, HEADS, DEPTH, EAGER_STEPS = 16, 64, 64, 4, 2, 10


class Block(tj.Layer):
    """Attention to earlier letters, then a small network for each letter; both are added to what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = tj.layers.LayerNormalization(), tj.layers.LayerNormalization()
        self.attention = tj.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
        self.inner = tj.layers.Dense(4 * WIDTH, activation="gelu")
        self.outer = tj.layers.Dense(WIDTH)

    def call(self, x: tj.Tensor) -> tj.Tensor:
        y = self.first(x)
        x = x + self.attention(y, y, use_causal_mask=True)
        return x + self.outer(self.inner(self.second(x)))


class Net(tj.Model):
    """Logits of each next letter."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letters = tj.layers.Embedding(letters, WIDTH)
        self.places = tj.layers.Embedding(LENGTH, WIDTH)
        self.blocks = [Block() for _ in range(DEPTH)]
        self.last = tj.layers.LayerNormalization()
        self.head = tj.layers.Dense(letters)

    def call(self, ids: tj.Tensor) -> tj.Tensor:
        x = self.letters(ids) + self.places(tj.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))

    def weights_of_attention(self, ids: np.ndarray) -> np.ndarray:
        """Of the first block: (heads, letter that looks, letter looked at)."""
        x = self.letters(ids) + self.places(tj.arange(ids.shape[1]))
        y = self.blocks[0].first(x)
        _, scores = self.blocks[0].attention(y, y, use_causal_mask=True, return_attention_scores=True)
        return scores.numpy()[0]


class Text:
    """Letters as numbers; the last tenth is held out."""

    def __init__(self) -> None:
        whole = "\n".join(topics[name] for name in sorted(topics))
        self.letters = sorted({c for c in whole if c.isascii() and (c.isprintable() or c == "\n")})
        self.numbers = {c: k for k, c in enumerate(self.letters)}
        ids = np.array([self.numbers[c] for c in whole if c in self.numbers], "int32")
        self.ids, self.held_out = np.split(ids, [len(ids) * 9 // 10])

    def batches(self, ids: np.ndarray, steps: int, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pieces of text, and the same pieces one letter later."""
        rng = np.random.default_rng(seed)
        for _ in range(steps):
            starts = rng.integers(0, len(ids) - LENGTH - 1, BATCH)
            pieces = ids[starts[:, None] + np.arange(LENGTH + 1)]
            yield np.ascontiguousarray(pieces[:, :-1]), np.ascontiguousarray(pieces[:, 1:])


class Training:
    """A network and what trains it; every one starts the same."""

    def __init__(self, letters: int, steps: int) -> None:
        tj.random.seed(0)
        self.net = Net(letters)
        self.net(np.zeros((1, LENGTH), "int32"))
        self.optimizer = tj.optimizers.AdamW(
            tj.optimizers.schedules.CosineDecay(0.003, steps), weight_decay=0.01, global_clipnorm=1.0
        )
        self.loss = tj.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(self, ids: tj.Tensor, following: tj.Tensor) -> tj.Tensor:
        with tj.GradientTape() as tape:
            loss = self.loss(following, self.net(ids, training=True))
        variables = self.net.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss


def train(step: Callable[..., tj.Tensor], text: Text, steps: int) -> tuple[list[float], float]:
    """The loss of each step, and the milliseconds of a typical one."""
    losses, seconds = [], []
    for ids, following in text.batches(text.ids, steps):
        start = time.perf_counter()
        losses.append(float(step(ids, following)))
        seconds.append(time.perf_counter() - start)
    return losses, float(np.median(seconds)) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description="A small transformer on a real text.")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    text = Text()
    kinds = len(text.letters)
    eager, eager_ms = train(Training(kinds, options.steps).step, text, EAGER_STEPS)
    training = Training(kinds, options.steps)
    step = tj.function(training.step)
    compiled, compiled_ms = train(step, text, options.steps)
    print(f"eager    {eager_ms:7.1f} ms a step")
    print(f"compiled {compiled_ms:7.1f} ms a step, {eager_ms / compiled_ms:.0f} times as fast; "
          f"loss {compiled[0]:.3f} -> {np.mean(compiled[-20:]):.3f} per letter")  # fmt: skip
    np.testing.assert_allclose(compiled[:EAGER_STEPS], eager, rtol=1e-3)
    assert step.trace_count == 1
    net, test = training.net, tj.function(lambda ids, following: training.loss(following, training.net(ids)))
    held_out = float(np.mean([float(test(*b)) for b in text.batches(text.held_out, 40, seed=1)]))
    counts = np.bincount(text.ids, minlength=kinds) / len(text.ids)
    by_counts = float(-(counts[counts > 0] * np.log(counts[counts > 0])).sum())  # what the letters' shares alone allow
    print(f"held-out text {held_out:.3f} per letter; the letters' shares alone allow {by_counts:.3f}")
    assert held_out < by_counts - 0.4, "it has learned little more than how often letters come"

    piece = text.held_out[5000 : 5000 + 40]
    scores = net.weights_of_attention(piece[None])
    shown = [text.letters[k].replace("\n", "¶") for k in piece]
    figure = plt.figure(figsize=(13, 4.2))
    grid = figure.add_gridspec(1, 5, width_ratios=(1.5, 1, 1, 1, 1))
    axes = figure.add_subplot(grid[0])
    axes.plot(range(1, EAGER_STEPS + 1), eager, lw=6, alpha=0.35, label=f"eager, {eager_ms:.0f} ms a step")
    axes.plot(range(1, len(compiled) + 1), compiled, lw=1, label=f"compiled, {compiled_ms:.1f} ms a step")
    axes.axhline(by_counts, ls=":", color="gray", label="shares of letters alone")
    axes.axhline(held_out, ls="--", color="green", lw=1, label=f"held-out text, {held_out:.2f}")
    axes.set(xlabel="step", ylabel="cross entropy per letter", title="two layers, four heads")
    axes.legend(fontsize=8)
    for k in range(HEADS):
        axes = figure.add_subplot(grid[k + 1])
        axes.imshow(np.sqrt(scores[k]), cmap="magma")
        axes.set_title(f"head {k + 1}", size=9)
        axes.set_xticks(range(len(piece)), shown, size=4, family="monospace")
        axes.set_yticks(range(len(piece)), shown, size=4, family="monospace")
    figure.suptitle("where each letter looks", x=0.66, size=10)
    figure.tight_layout()
    figure.savefig(options.out / "transformer.png", dpi=120)
    print(f"saved {options.out / 'transformer.png'}")


if __name__ == "__main__":
    main()
