"""A physics-informed network: the heat equation solved by a network that has seen no solution, only the equation.

    u_t = K u_xx  on 0 < x < 1, 0 < t < 1,     u = 0 at both ends,     u(x, 0) = sin(pi x) + sin(3 pi x) / 2

The loss is how far the network is from the equation at random points; it holds second derivatives of the network, and
training differentiates them once more. Start and ends are built in. The same step runs eagerly and compiled, and the
result is compared with the exact solution, exp(-K pi^2 t) sin(pi x) + exp(-9 K pi^2 t) sin(3 pi x) / 2.

    python examples/pinn.py [--out DIR]      saves pinn.png
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import tracejit as tj

K = 0.05
STEPS, EAGER_STEPS, POINTS = 3000, 15, 512


def start(x: tj.Tensor) -> tj.Tensor:
    return tj.sin(math.pi * x) + 0.5 * tj.sin(3 * math.pi * x)


class Heat:
    """u(x, t) = start(x) + t x (1 - x) network(x, t), and how it is trained."""

    def __init__(self) -> None:
        tj.random.seed(1)
        dense = tj.layers.Dense
        hidden = [dense(32, "tanh", input_shape=(2,)), dense(32, "tanh"), dense(32, "tanh")]
        self.network = tj.Sequential([*hidden, dense(1)])
        self.optimizer = tj.optimizers.Adam(tj.optimizers.schedules.CosineDecay(4e-3, STEPS))

    def u(self, x: tj.Tensor, t: tj.Tensor) -> tj.Tensor:
        return start(x) + t * x * (1 - x) * self.network(tj.stack([2 * x - 1, 2 * t - 1], axis=1))[:, 0]

    def residual(self, x: tj.Tensor, t: tj.Tensor) -> tj.Tensor:
        """u_t - K u_xx at each point."""
        with tj.GradientTape() as outer:
            outer.watch(x)
            with tj.GradientTape() as inner:
                inner.watch([x, t])
                u = self.u(x, t)
            u_x, u_t = inner.gradient(u, [x, t])
        return u_t - K * outer.gradient(u_x, x)

    def step(self) -> tj.Tensor:
        x, t = tj.random.uniform((2, POINTS))
        with tj.GradientTape() as tape:
            loss = (self.residual(x, t) ** 2).mean()
        variables = self.network.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss


def exact(x: np.ndarray, t: np.ndarray) -> np.ndarray:
    decays = [np.exp(-K * (n * np.pi) ** 2 * t) for n in (1, 3)]
    return decays[0] * np.sin(np.pi * x) + decays[1] * np.sin(3 * np.pi * x) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description="A physics-informed network, eager and compiled.")
    parser.add_argument("--out", type=Path, default=Path("out"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    losses: dict[str, list[float]] = {}
    step_ms: dict[str, float] = {}
    for name in ("eager", "compiled"):
        heat = Heat()
        step = tj.function(heat.step) if name == "compiled" else heat.step
        tj.random.seed(2)
        seconds, losses[name] = [], []
        for _ in range(STEPS if name == "compiled" else EAGER_STEPS):
            begin = time.perf_counter()
            losses[name].append(float(step()))
            seconds.append(time.perf_counter() - begin)
        step_ms[name] = float(np.median(seconds[2:])) * 1e3
        print(f"{name:<9}{step_ms[name]:7.3f} ms a step (the first {seconds[0] * 1e3:.0f} ms); "
              f"loss {losses[name][0]:.4f} -> {losses[name][-1]:.2e} in {len(seconds)} steps")
    print(f"speedup {step_ms['eager'] / step_ms['compiled']:.1f}x; {len(step.kernels())} kernels a step")
    np.testing.assert_allclose(losses["compiled"][:EAGER_STEPS], losses["eager"], rtol=1e-3)

    x, t = (a.astype("float32") for a in np.meshgrid(np.linspace(0, 1, 101), np.linspace(0, 1, 101)))
    found = heat.u(tj.asarray(x.ravel()), tj.asarray(t.ravel())).numpy().reshape(x.shape)
    error = found - exact(x, t)
    relative = float(np.linalg.norm(error) / np.linalg.norm(exact(x, t)))
    print(f"relative error against the exact solution {relative:.1e}, at worst {np.abs(error).max():.1e}")
    assert relative < 5e-3, "did not converge"

    figure, axes = plt.subplots(1, 3, figsize=(14, 4))
    picture = axes[0].imshow(found.T, origin="lower", extent=(0, 1, 0, 1), aspect="auto", cmap="inferno")
    figure.colorbar(picture, ax=axes[0])
    axes[0].set(xlabel="t", ylabel="x", title="The network's temperature")
    for k in (0, 10, 30, 100):
        axes[1].plot(x[k], exact(x[k], t[k]), lw=5, alpha=0.3, color="gray")
        axes[1].plot(x[k], found[k], lw=1.2, label=f"t = {t[k, 0]:.1f}")
    axes[1].set(xlabel="x", title=f"Lines: network, broad: exact (error {relative:.0e})")
    axes[1].legend()
    for name, style in (("eager", {"lw": 5, "alpha": 0.35}), ("compiled", {"lw": 0.7})):
        label = f"{name}, {step_ms[name]:.2f} ms a step"
        axes[2].loglog(range(1, len(losses[name]) + 1), losses[name], label=label, **style)
    axes[2].set(xlabel="step", title="Mean square of u_t - K u_xx")
    axes[2].legend()
    figure.tight_layout()
    figure.savefig(out / "pinn.png", dpi=120)
    print(f"saved {out / 'pinn.png'}")


if __name__ == "__main__":
    main()
