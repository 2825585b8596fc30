"""A recurrent network that learns to write, letter by letter, from a real text: eager steps, then compiled ones.

The text is the language reference that Python ships for `help()` (`pydoc_data.topics`, about half a million letters).
Both runs must follow the same curve; then the trained network goes on with a few words, one letter at a time.

    python examples/char_lstm.py [--out DIR] [--steps N]      saves char_lstm.png
"""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc_data.topics import topics

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import tracejit as tj

BATCH, LENGTH, UNITS, EAGER_STEPS = 32, 64, 128, 4


class Text:
    """Letters as numbers."""

    def __init__(self) -> None:
        whole = "\n".join(topics[name] for name in sorted(topics))
        self.letters = sorted({c for c in whole if c.isascii() and (c.isprintable() or c == "\n")})
        self.numbers = {c: k for k, c in enumerate(self.letters)}
        self.ids = np.array([self.numbers[c] for c in whole if c in self.numbers], "int32")

    def batches(self, steps: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pieces of text, and the same pieces one letter later."""
        rng = np.random.default_rng(0)
        for _ in range(steps):
            starts = rng.integers(0, len(self.ids) - LENGTH - 1, BATCH)
            pieces = self.ids[starts[:, None] + np.arange(LENGTH + 1)]
            yield np.ascontiguousarray(pieces[:, :-1]), np.ascontiguousarray(pieces[:, 1:])


class Writer(tj.Layer):
    """The probabilities of each next letter, as logits, and the state after the last one."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.embed = tj.layers.Embedding(letters, 32)
        self.lstm = tj.layers.LSTM(UNITS, return_sequences=True, return_state=True)
        self.head = tj.layers.Dense(letters)

    def call(self, ids: tj.Tensor, state: list[tj.Tensor] | None = None) -> tuple[tj.Tensor, list[tj.Tensor]]:
        y, *state = self.lstm(self.embed(ids), initial_state=state)
        return self.head(y), state


class Training:
    """A network and what trains it; every one starts the same."""

    def __init__(self, letters: int) -> None:
        tj.random.seed(0)
        self.net = Writer(letters)
        self.net(np.zeros((1, 1), "int32"))
        self.optimizer = tj.optimizers.Adam(0.004, global_clipnorm=1.0)
        self.loss = tj.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(self, ids: tj.Tensor, following: tj.Tensor) -> tj.Tensor:
        with tj.GradientTape() as tape:
            logits, _ = self.net(ids, training=True)
            loss = self.loss(following, logits)
        variables = self.net.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss


def train(step: Callable[..., tj.Tensor], text: Text, steps: int) -> tuple[list[float], float]:
    """The loss of each step, and the milliseconds of a typical one."""
    losses, seconds = [], []
    for ids, following in text.batches(steps):
        start = time.perf_counter()
        losses.append(float(step(ids, following)))
        seconds.append(time.perf_counter() - start)
    return losses, float(np.median(seconds)) * 1e3


def write(net: Writer, text: Text, start: str, count: int, temperature: float = 0.6) -> str:
    """`start`, and `count` letters that the network puts after it."""

    @tj.function
    def following(ids: tj.Tensor, state: list[tj.Tensor] | None) -> tuple[tj.Tensor, list[tj.Tensor]]:
        logits, state = net(ids, state)
        return tj.random.categorical(logits[:, -1] / temperature), state

    tj.random.seed(0)
    ids, state = np.array([[text.numbers[c] for c in start]], "int32"), None
    written = start
    for _ in range(count):
        drawn, state = following(ids, state)
        written += text.letters[int(drawn[0])]
        ids = drawn.numpy().astype("int32")[:, None]
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description="An LSTM that learns to write.")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    text = Text()
    print(f"{len(text.ids):,} letters of {len(text.letters)} kinds")
    eager, eager_ms = train(Training(len(text.letters)).step, text, EAGER_STEPS)
    training = Training(len(text.letters))
    step = tj.function(training.step)
    compiled, compiled_ms = train(step, text, options.steps)
    print(f"eager    {eager_ms:7.1f} ms a step")
    print(f"compiled {compiled_ms:7.1f} ms a step, {eager_ms / compiled_ms:.0f} times as fast; "
          f"loss {compiled[0]:.3f} -> {np.mean(compiled[-20:]):.3f} per letter")  # fmt: skip
    assert step.trace_count == 1
    np.testing.assert_allclose(compiled[:EAGER_STEPS], eager, rtol=1e-3)
    counts = np.bincount(text.ids, minlength=len(text.letters)) / len(text.ids)
    by_counts = float(-(counts[counts > 0] * np.log(counts[counts > 0])).sum())  # what the letters' shares alone allow
    assert np.mean(compiled[-20:]) < by_counts - 0.5, "it has learned no more than how often letters come"

    sample = write(training.net, text, "The statement ", 700)
    print(sample)

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4))
    steps = range(1, len(compiled) + 1)
    left.plot(range(1, EAGER_STEPS + 1), eager, lw=6, alpha=0.35, label=f"eager, {eager_ms:.0f} ms a step")
    left.plot(steps, compiled, lw=1, label=f"compiled, {compiled_ms:.1f} ms a step")
    left.axhline(by_counts, ls=":", color="gray", label="shares of letters alone")
    left.set(xlabel="step", ylabel="cross entropy per letter", title="LSTM on Python's language reference")
    left.legend()
    lines = [line for part in sample.splitlines() for line in (textwrap.wrap(part, 58) or [""])]
    right.text(0, 1, "\n".join(lines[:18]), family="monospace", size=8, va="top")
    right.set_title("what it writes")
    right.axis("off")
    figure.tight_layout()
    figure.savefig(options.out / "char_lstm.png", dpi=120)
    print(f"saved {options.out / 'char_lstm.png'}")


if __name__ == "__main__":
    main()
