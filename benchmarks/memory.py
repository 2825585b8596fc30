"""How much memory a training step takes: the most that its process holds while it steps, as the system counts it.

In: a training step and a library, in a fresh process. Out: bytes of the whole process, with its code; and by how much
its own memory has grown since it had trained a miniature: weights, the optimizer's state, what a step keeps and passes
on, and what tracing it left behind. The arrays that the harness starts from are there before.

Free memory that malloc keeps is given back before the steps, so that what compilers no longer need does not count.

Imports no more than it needs, as all of it counts. Read next: `training.py`.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from dataclasses import dataclass

import numpy as np

from benchmarks.peers import PEERS, Peer
from benchmarks.training import TRAINING, Miniature, TrainingStep
from benchmarks.workloads import Function

STEPS = 20


@dataclass(frozen=True)
class Peak:
    """Bytes: what the process held at most, and how much more of its own than before the model was made."""

    whole: int
    grown: int


def status(name: str) -> int:
    """A number of bytes that the system keeps about this process: `RssAnon` is its own memory now, `RssFile` code and
    other files, `VmHWM` the most of all at once."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:"))


def tidy() -> None:
    """Give back what is free."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def peak_of_steps(workload: TrainingStep, peer: Peer) -> Peak:
    """In this process."""
    inputs = workload.inputs(np.random.default_rng(0))
    run(Miniature(), peer, Miniature().inputs(np.random.default_rng(0)))
    tidy()
    before = status("RssAnon")
    call = run(workload, peer, inputs)
    tidy()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the most so far is forgotten
    for _ in range(STEPS):
        peer.wait(call())
    most = status("VmHWM")
    return Peak(most, most - status("RssFile") - before)


def run(workload: TrainingStep, peer: Peer, inputs: tuple[np.ndarray, ...]) -> Function:
    """The step, traced and compiled."""
    call = workload.build(peer, inputs)
    for _ in range(2):
        peer.wait(call())
    return call


if __name__ == "__main__":
    found = peak_of_steps(TRAINING[sys.argv[1]], PEERS[sys.argv[2]](int(sys.argv[3])))
    print(found.whole, found.grown)
