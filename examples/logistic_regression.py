"""Logistic regression on a real table: eager, then the same step compiled; checked against scikit-learn's solver.

The data are 569 breast tumours, thirty measurements of cell nuclei each, benign or malignant
(`sklearn.datasets.load_breast_cancer`, part of the package). A third of them is held out.

    python examples/logistic_regression.py [--out DIR]      saves logistic_regression.png
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
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import tracejit as tj

STEPS, PENALTY = 800, 0.01  # the penalty is PENALTY / 2 times the sum of squared weights


class Training:
    """A linear model of the log odds, with its loss and optimizer."""

    def __init__(self, features: int) -> None:
        self.model = tj.Sequential([tj.layers.Dense(1, kernel_initializer="zeros", input_shape=(features,))])
        (self.dense,) = self.model.layers
        schedule = tj.optimizers.schedules.CosineDecay(0.3, STEPS)
        self.optimizer = tj.optimizers.SGD(schedule, momentum=0.9, nesterov=True)
        self.loss = tj.losses.BinaryCrossentropy(from_logits=True)

    def step(self, x: tj.Tensor, y: tj.Tensor) -> tj.Tensor:
        with tj.GradientTape() as tape:
            loss = self.loss(y, self.model(x)) + PENALTY / 2 * (self.dense.kernel**2).sum()
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss


class Run(NamedTuple):
    name: str
    losses: list[float]
    step_us: float


def train(name: str, step: Callable[..., tj.Tensor], x: tj.Tensor, y: tj.Tensor) -> Run:
    losses, seconds = [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        losses.append(float(step(x, y)))
        seconds.append(time.perf_counter() - start)
    run = Run(name, losses, float(np.median(seconds)) * 1e6)
    print(f"{name:<9}{run.step_us:7.1f} µs a step (the first {seconds[0] * 1e3:.1f} ms); loss {losses[-1]:.6f}")
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description="Logistic regression, eager and compiled.")
    parser.add_argument("--out", type=Path, default=Path("out"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    table = load_breast_cancer()
    held_out = np.random.default_rng(0).permutation(len(table.target)) % 3 == 0
    data = (table.data - table.data[~held_out].mean(0)) / table.data[~held_out].std(0)
    malignant = (table.target == 0)[:, None]
    x, y = (tj.asarray(a[~held_out].astype("float32")) for a in (data, malignant))

    eager, compiled = Training(data.shape[1]), Training(data.shape[1])
    runs = [train("eager", eager.step, x, y), train("compiled", step := tj.function(compiled.step), x, y)]
    print(f"speedup {runs[0].step_us / runs[1].step_us:.1f}x; the compiled step was traced {step.trace_count} time(s)")
    assert step.trace_count == 1
    np.testing.assert_allclose(runs[1].losses, runs[0].losses, rtol=1e-4)

    solver = LogisticRegression(C=1 / (PENALTY * len(x)), tol=1e-10, max_iter=10_000)
    solver.fit(data[~held_out], malignant[~held_out, 0])
    weights = compiled.dense.kernel.numpy()[:, 0]
    np.testing.assert_allclose(weights, solver.coef_[0], atol=2e-3)
    print(f"weights equal scikit-learn's within {np.abs(weights - solver.coef_[0]).max():.0e}")

    logits = compiled.model(tj.asarray(data[held_out].astype("float32")))
    accuracy = tj.metrics.BinaryAccuracy(threshold=0.5)(malignant[held_out], tj.sigmoid(logits)).item()
    area = tj.metrics.AUC(curve="ROC", num_thresholds=1000, from_logits=True)(malignant[held_out], logits).item()
    exact = roc_auc_score(malignant[held_out], logits.numpy())
    print(f"held out: accuracy {accuracy:.3f}, area under the ROC curve {area:.4f} (exactly {exact:.4f})")
    assert accuracy > 0.95 and abs(area - exact) < 2e-3

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4))
    for run, style in zip(runs, ({"lw": 5, "alpha": 0.35}, {"lw": 1.2})):
        left.loglog(range(1, STEPS + 1), run.losses, label=f"{run.name}, {run.step_us:.0f} µs a step", **style)
    left.set(xlabel="step", ylabel="crossentropy and penalty", title="Training")
    left.legend()
    order = np.argsort(np.abs(weights))[-12:]
    right.barh(np.array(table.feature_names)[order], weights[order], color="tab:blue", label="tracejit, compiled")
    right.plot(solver.coef_[0][order], range(len(order)), "k|", ms=12, label="scikit-learn")
    right.set_title(f"Largest weights ({accuracy:.1%} right)")
    right.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(out / "logistic_regression.png", dpi=120)
    print(f"saved {out / 'logistic_regression.png'}")


if __name__ == "__main__":
    main()
