"""Linear regression on a real data set: eager with a tape, then the same code compiled.

The data are 442 patients, ten measurements each, and how far their diabetes has progressed a year later
(`sklearn.datasets.load_diabetes`, part of the package). Both runs must follow the same curve to the exact solution.

    python examples/linear_regression.py [--out DIR]      saves linear_regression.png
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

import tracejit as tj

STEPS, RATE = 600, 0.1


class Model:
    """y = x @ w + b, trained by gradient descent."""

    def __init__(self, features: int) -> None:
        self.w = tj.Variable(tj.zeros((features, 1)), name="w")
        self.b = tj.Variable(0.0, name="b")

    def step(self, x: tj.Tensor, y: tj.Tensor) -> tj.Tensor:
        with tj.GradientTape() as tape:
            loss = ((x @ self.w + self.b - y) ** 2).mean()
        dw, db = tape.gradient(loss, [self.w, self.b])
        self.w.assign_sub(RATE * dw)
        self.b.assign_sub(RATE * db)
        return loss


@dataclass
class Run:
    """A finished training: the loss of each step, and how long steps took."""

    name: str
    losses: list[float]
    first_ms: float  # for the compiled run this is where tracing and compiling happen
    step_us: float

    def __str__(self) -> str:
        times = f"first step {self.first_ms:6.1f} ms, then {self.step_us:7.1f} µs each"
        return f"{self.name:<9}{times}; loss {self.losses[0]:.4f} -> {self.losses[-1]:.4f}"


def train(name: str, step: Callable[..., tj.Tensor], x: tj.Tensor, y: tj.Tensor) -> Run:
    clock = [time.perf_counter()]
    losses = []
    for _ in range(STEPS):
        losses.append(float(step(x, y)))
        clock.append(time.perf_counter())
    seconds = np.diff(clock)
    return Run(name, losses, seconds[0] * 1e3, float(np.median(seconds[1:])) * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description="Linear regression, eager and compiled.")
    parser.add_argument("--out", type=Path, default=Path("out"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    data, target = load_diabetes(return_X_y=True)
    data = ((data - data.mean(0)) / data.std(0)).astype("float32")
    target = ((target - target.mean()) / target.std()).astype("float32")[:, None]
    x, y = tj.asarray(data), tj.asarray(target)

    eager_model, compiled_model = Model(data.shape[1]), Model(data.shape[1])
    eager = train("eager", eager_model.step, x, y)
    step = tj.function(compiled_model.step)
    compiled = train("compiled", step, x, y)

    residual = data @ np.linalg.lstsq(data, target, rcond=None)[0] - target
    best = float((residual**2).mean())
    print(eager)
    print(compiled)
    print(f"exact least squares: {best:.4f}; the compiled step was traced {step.trace_count} time(s)")
    np.testing.assert_allclose(compiled.losses, eager.losses, rtol=1e-4)
    assert best <= compiled.losses[-1] * (1 + 1e-5) and compiled.losses[-1] < best * 1.01, "did not converge"
    assert step.trace_count == 1

    plt.figure(figsize=(7, 4.2))
    for run, style in ((eager, {"lw": 5, "alpha": 0.35}), (compiled, {"lw": 1.2})):
        plt.plot(range(1, STEPS + 1), run.losses, label=f"{run.name}, {run.step_us:.1f} µs a step", **style)
    plt.axhline(best, ls=":", color="gray", label="exact least squares")
    plt.xscale("log")
    plt.xlabel("step")
    plt.ylabel("mean squared error")
    plt.title("Linear regression on the diabetes data")
    plt.legend()
    plt.tight_layout()
    plt.savefig(out / "linear_regression.png", dpi=120)
    print(f"saved {out / 'linear_regression.png'}")


if __name__ == "__main__":
    main()
