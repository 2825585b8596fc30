"""Three filters on a real photograph, eager and compiled: a tone map, an unsharp mask and the Sobel operator.

The photograph is `china.jpg`, 427 x 640, which scikit-learn ships.

    python examples/photo.py [--out DIR]      saves photo.png, one picture for each filter, and a profile, photo.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_image

import tracejit as tj


def luminance(image: tj.Tensor) -> tj.Tensor:
    return 0.2126 * image[..., 0] + 0.7152 * image[..., 1] + 0.0722 * image[..., 2]


def tone_map(image: tj.Tensor) -> tj.Tensor:
    """Brighten shadows and keep highlights: Reinhard's curve on the luminance, in linear light."""
    linear = image**2.2 * 4.0
    light = luminance(linear)
    scale = (1 + light / light.max() ** 2) / (1 + light)
    return tj.clip(linear * scale[..., None], 0.0, 1.0) ** (1 / 2.2)


def blur(image: tj.Tensor, axis: int) -> tj.Tensor:
    """Binomial weights 1 4 6 4 1 along an axis; the border repeats."""
    n = image.shape[axis]
    near = [tj.clip(tj.arange(n) + k, 0, n - 1) for k in range(-2, 3)]
    return sum(w / 16 * tj.take(image, i, axis=axis) for w, i in zip((1, 4, 6, 4, 1), near))


def unsharp_mask(image: tj.Tensor) -> tj.Tensor:
    """Add what a blur takes away."""
    return tj.clip(image + 1.5 * (image - blur(blur(image, 0), 1)), 0.0, 1.0)


def sobel(image: tj.Tensor) -> tj.Tensor:
    """Length of the brightness gradient."""
    g = tj.pad(luminance(image), 1)
    across = g[:, 2:] - g[:, :-2]
    down = g[2:, :] - g[:-2, :]
    gx = across[:-2] + 2 * across[1:-1] + across[2:]
    gy = down[:, :-2] + 2 * down[:, 1:-1] + down[:, 2:]
    return tj.clip(tj.sqrt(gx * gx + gy * gy) / 2, 0.0, 1.0)


def milliseconds(work: Callable[[], object]) -> float:
    """Median of 15 runs, after two to warm up."""
    samples = []
    for _ in range(17):
        start = time.perf_counter()
        work()
        samples.append((time.perf_counter() - start) * 1e3)
    return statistics.median(samples[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description="Filters on a photograph, eager and compiled.")
    parser.add_argument("--out", type=Path, default=Path("out"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    image = tj.asarray(load_sample_image("china.jpg").astype("float32") / 255)
    pictures = {"original": image.numpy()}
    filters = []
    print(f"{'filter':<14}{'eager':>10}{'compiled':>11}{'speedup':>9}  kernels")
    for f in (tone_map, unsharp_mask, sobel):
        compiled = tj.function(f)
        filters.append(compiled)
        result = compiled(image).numpy()
        np.testing.assert_allclose(result, f(image).numpy(), rtol=1e-4, atol=1e-5)
        eager_ms, compiled_ms = milliseconds(lambda f=f: f(image)), milliseconds(lambda g=compiled: g(image))
        kernels = len(compiled.kernels())
        speedup = eager_ms / compiled_ms
        print(f"{f.__name__:<14}{eager_ms:>7.2f} ms{compiled_ms:>8.2f} ms{speedup:>8.1f}x  {kernels}")
        pictures[f.__name__] = result
        plt.imsave(out / f"photo_{f.__name__}.png", result, cmap="gray")
    assert kernels == 1, "the Sobel operator is one kernel"

    with tj.profile(out / "photo.json"):  # for ui.perfetto.dev
        for g in filters:
            g(image)

    figure, axes = plt.subplots(2, 2, figsize=(10, 7))
    for ax, (name, picture) in zip(axes.flat, pictures.items()):
        ax.imshow(picture, cmap="gray")
        ax.set_title(name.replace("_", " "))
        ax.axis("off")
    figure.tight_layout()
    figure.savefig(out / "photo.png", dpi=110)
    print(f"saved {out / 'photo.png'} and {out / 'photo.json'}")


if __name__ == "__main__":
    main()
