"""A training run that is killed with SIGKILL at random moments and started again, compared with one that is not.

    python tests/killed_run.py --kills 50              lives are forked from one process: about 20 seconds
    python tests/killed_run.py --kills 50 --processes  each life is a Python process of its own: about two minutes

The run has everything a checkpoint must hold: weights, slots of an optimizer, draws from `tj.random` inside compiled
code, a shuffled, mapped, prefetched dataset with random keys, counters in Python. It saves after every step.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import tracejit as tj


def train(directory: str | os.PathLike[str], steps: int) -> str:
    """Train to the end, from the last checkpoint if there is one; a digest of everything that has been worked out."""
    tj.random.seed(7)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6)).astype(np.float32)
    y = (x @ rng.normal(size=6) > 0).astype(np.float32)
    dataset = (tj.data.Dataset.from_tensor_slices((x, y)).shuffle(50).repeat()
               .map(lambda x, y, key: (x + 0.1 * tj.random.normal((6,), key=key), y), 2, seed=1).batch(16).prefetch(2))
    batches = iter(dataset)
    weights = {"w1": tj.Variable(tj.random.normal((6, 8))), "b1": tj.Variable(tj.zeros(8)),
               "w2": tj.Variable(tj.random.normal((8,)))}
    slots = {name: tj.Variable(tj.zeros_like(v.read_value()), trainable=False) for name, v in weights.items()}
    counters: dict[str, Any] = {"losses": [], "seen": 0, "best": float("inf"), "note": "start"}

    @tj.function
    def step(x: tj.Tensor, y: tj.Tensor) -> tj.Tensor:
        with tj.GradientTape() as tape:
            h = tj.tanh(x @ weights["w1"] + weights["b1"])
            h = h * tj.cast(tj.random.uniform(h.shape) < 0.8, tj.float32)
            z = h @ weights["w2"]
            loss = (tj.log(1 + tj.exp(z)) - y * z).mean()
        for name, g in zip(weights, tape.gradient(loss, list(weights.values()))):
            slots[name].assign(0.9 * slots[name] + g)
            weights[name].assign_sub(0.05 * slots[name])
        return loss

    checkpoint = tj.Checkpoint(directory, weights=weights, slots=slots, batches=batches, counters=counters)
    for k in range(checkpoint.restore_or_initialize(), steps):
        loss = step(*next(batches)).item()
        counters["losses"].append(loss)
        counters["seen"] += 16
        counters["best"], counters["note"] = min(counters["best"], loss), f"after step {k}"
        checkpoint.save(k + 1)
    batches.close()
    digest = hashlib.sha256(repr((counters, tj.random.default_generator.state(), tj.random.normal().item())).encode())
    for v in (*weights.values(), *slots.values()):
        digest.update(v.numpy().tobytes())
    return digest.hexdigest()


def forked(directory: str, result: str, steps: int) -> int:
    """A life as a forked child; its process."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            Path(result).write_text(train(directory, steps))
            status = 0
        finally:
            os._exit(status)
    return child


def started(directory: str, result: str, steps: int) -> int:
    """A life as a process of its own."""
    return subprocess.Popen([sys.executable, __file__, "--life", directory, result, str(steps)]).pid


def killed_run(kills: int, processes: bool = False, seed: int | None = None) -> tuple[str, str, list[int]]:
    """Digests of a run without and one with that many kills, and the steps that were saved at each kill."""
    chance, life, steps = random.Random(seed), started if processes else forked, 3 * kills
    with tempfile.TemporaryDirectory() as root:
        directory, result = f"{root}/killed", f"{root}/result"
        times = [time.perf_counter()]
        reference = train(f"{root}/whole", steps)
        times.append(time.perf_counter())
        os.waitpid(life(f"{root}/short", f"{root}/short-result", 1), 0)
        times.append(time.perf_counter())
        whole, first = np.diff(times)
        longest = 2 * (first + whole / kills)
        saved: list[int] = []
        while len(saved) < kills:
            child = life(directory, result, steps)
            time.sleep(chance.uniform(0.0, longest))
            os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
            if not os.WIFSIGNALED(status):  # it was faster
                assert os.waitstatus_to_exitcode(status) == 0, "the run failed by itself"
                break
            saved.append(tj.Checkpoint(directory).latest or 0)
        if len(saved) == kills:
            status = os.waitpid(life(directory, result, steps), 0)[1]
            assert os.waitstatus_to_exitcode(status) == 0, "the last life failed"
        return reference, Path(result).read_text(), saved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--processes", action="store_true")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--life", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("error", RuntimeWarning)  # no save may be damaged
    if args.life:
        Path(args.life[1]).write_text(train(args.life[0], int(args.life[2])))
        return
    done = 0
    while done < args.kills:
        reference, found, steps = killed_run(args.kills - done, args.processes, args.seed)
        done += len(steps)
        print(f"{len(steps)} kills, after steps {steps}: {'the same bits' if found == reference else 'DIFFERENT BITS'}")
        if found != reference:
            sys.exit(1)


if __name__ == "__main__":
    main()
