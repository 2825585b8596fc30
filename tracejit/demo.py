"""The demo: ordinary NumPy functions on real data, run by NumPy and compiled by `tj.function`.

In: a folder. Out: a table on the screen, and `demo.png` in the folder. The data come with scikit-learn: a photograph,
1797 handwritten digits and 569 tumour samples. Every result is compared before it is timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tracejit as tj

try:
    import matplotlib
    from sklearn import datasets
except ImportError as error:
    raise SystemExit(f"the demo needs the extra `plot` ({error}): pip install 'tracejit[plot]'") from None

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# ---- the works: plain NumPy, given to NumPy and to the compiler as they are ---------------------------------------


def develop(image: Any) -> Any:
    """Exposure, white balance, a filmic tone curve, saturation and gamma."""
    light = (image**2.2) * np.asarray([2.1, 2.0, 1.8], "float32")
    curve = (light * (2.51 * light + 0.03)) / (light * (2.43 * light + 0.59) + 0.14)
    grey = 0.2126 * curve[..., 0:1] + 0.7152 * curve[..., 1:2] + 0.0722 * curve[..., 2:3]
    return np.clip(grey + 1.2 * (curve - grey), 0, 1) ** (1 / 2.2)


def paint(image: Any) -> Any:
    """Four steps of Perona-Malik diffusion: smooths within regions, keeps their edges."""
    for _ in range(4):
        middle = image[1:-1, 1:-1]
        flow = 0.0
        for near in (image[:-2, 1:-1], image[2:, 1:-1], image[1:-1, :-2], image[1:-1, 2:]):
            d = near - middle
            flow = flow + d * np.exp(-((d / 0.12) ** 2))
        image = np.pad(middle + 0.24 * flow, ((1, 1), (1, 1), (0, 0)))
    return image[4:-4, 4:-4]


def standardise(x: Any) -> Any:
    """Columns with mean 0 and variance 1."""
    return (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-6)


def loss(weights: Any, x: Any, target: Any) -> Any:
    """Softmax regression with weight decay."""
    z = x @ weights
    z = z - z.max(axis=1, keepdims=True)
    log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    return -(target * log_p).sum() / x.shape[0] + 1e-3 * (weights * weights).sum()


def gradient_by_hand(weights: Any, x: Any, target: Any) -> Any:
    """What a NumPy user has to derive: the gradient of `loss`."""
    z = x @ weights
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return x.T @ (e / e.sum(axis=1, keepdims=True) - target) / x.shape[0] + 2e-3 * weights


def nearest(x: Any, centres: Any) -> Any:
    """For each row the nearest centre."""
    return ((x[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2).argmin(axis=1)


# ---- running them -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """One row: what NumPy runs, what is compiled, and on what."""

    name: str
    by_numpy: Callable[..., Any]
    compiled: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Row:
    """One measured row of the table."""

    name: str
    numpy_ms: float
    compiled_ms: float
    error: float
    result: np.ndarray

    @property
    def speedup(self) -> float:
        return self.numpy_ms / self.compiled_ms


def works() -> list[Work]:
    photo = datasets.load_sample_image("china.jpg").astype("float32") / 255
    digits, labels = datasets.load_digits(return_X_y=True)
    digits = (digits / 16).astype("float32")
    target = np.eye(10, dtype="float32")[labels]
    centres = np.stack([digits[labels == k].mean(axis=0) for k in range(10)])
    weights = np.zeros((64, 10), "float32")
    tumours = datasets.load_breast_cancer().data.astype("float32")
    return [
        Work("develop a photograph", develop, develop, (photo,)),
        Work("paint: 4 diffusion steps", paint, paint, (photo,)),
        Work("standardise 569 x 30 columns", standardise, standardise, (tumours,)),
        Work("nearest of 10 digits, 1797 x 64", nearest, nearest, (digits, centres)),
        Work("gradient of softmax regression", gradient_by_hand, tj.grad(loss), (weights, digits, target)),
    ]


def milliseconds(call: Callable[[], Any]) -> float:
    """Median of 21 runs, after three to warm up."""
    samples = []
    for _ in range(24):
        start = time.perf_counter()
        call()
        samples.append((time.perf_counter() - start) * 1e3)
    return statistics.median(samples[3:])


def measure(work: Work) -> Row:
    """Compare NumPy's result with the compiled one, then time both."""
    function = tj.function(work.compiled, name=work.name.replace(" ", "_"))
    tensors = tuple(tj.asarray(a) for a in work.inputs)
    expected, got = np.asarray(work.by_numpy(*work.inputs)), np.asarray(function(*tensors))
    if got.shape != expected.shape:
        raise SystemExit(f"{work.name}: shape {got.shape}, NumPy has {expected.shape}")
    scale = max(1e-30, float(np.abs(expected).max()))
    error = float(np.abs(got.astype("float64") - expected.astype("float64")).max()) / scale
    numpy_ms, compiled_ms = milliseconds(lambda: work.by_numpy(*work.inputs)), milliseconds(lambda: function(*tensors))
    return Row(work.name, numpy_ms, compiled_ms, error, got)


def picture(rows: list[Row], path: Path) -> None:
    """The photograph before and after, and the speedups."""
    figure, axes = plt.subplots(2, 2, figsize=(11, 7.6))
    photo = datasets.load_sample_image("china.jpg")
    shown = (("original", photo), (rows[0].name, rows[0].result), (rows[1].name, np.clip(rows[1].result, 0, 1)))
    for ax, (title, image) in zip(axes.flat, shown):
        ax.imshow(image)
        ax.set_title(title)
        ax.axis("off")
    ax = axes.flat[3]
    bars = ax.barh([r.name for r in reversed(rows)], [r.speedup for r in reversed(rows)], color="tab:blue")
    ax.bar_label(bars, fmt="%.1fx", padding=3)
    ax.axvline(1, color="black", lw=0.8)
    ax.margins(x=0.15)
    ax.set_title("times as fast as NumPy")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def run(out: Path) -> None:
    """Print the table and save the picture; a result that differs ends the demo with an error."""
    out.mkdir(parents=True, exist_ok=True)
    print(f"{'work':<34}{'eager NumPy':>12}{'compiled':>12}{'speedup':>9}   equal (largest error)")
    rows = []
    for work in works():
        row = measure(work)
        if not row.error < 1e-4:
            raise SystemExit(f"{work.name}: the results differ by {row.error:.1e}")
        rows.append(row)
        times = f"{row.numpy_ms:>9.2f} ms{row.compiled_ms:>9.3f} ms{row.speedup:>8.1f}x"
        print(f"{row.name:<34}{times}   yes ({row.error:.0e})")
    path = out / "demo.png"
    picture(rows, path)
    print(f"saved {path}")
