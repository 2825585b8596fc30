"""What is measured in fresh processes: what a person waits for at the start, and the memory of training steps.

Each case has one script per library, run in interleaved rounds. A script prints the seconds it measured, or the whole
process is timed from outside (`wall`), with the time of an empty Python taken off. What is printed about memory comes
from `memory.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

from benchmarks.harness import Row
from benchmarks.training import TRAINING
from benchmarks.workloads import Target

START = {
    "tracejit": "import numpy as np, tracejit as xp\nput, jit, get = xp.asarray, xp.function, np.asarray",
    "numpy": "import numpy as np\nxp, put, jit, get = np, np.asarray, lambda f: f, np.asarray",
    "numba": "import numpy as np, numba\nxp, put, jit, get = np, np.asarray, numba.njit, np.asarray",
    "jax": "import numpy as np, jax, jax.numpy as xp\nput, jit, get = xp.asarray, jax.jit, np.asarray",
    "torch": "import numpy as np, torch as xp\nput, jit, get = xp.from_numpy, xp.compile, np.asarray",
    "drjit": "import numpy as np, drjit as xp, drjit.llvm\nput, get = drjit.llvm.Float, np.asarray\njit = lambda f: f",
}

IMPORT = {
    "tracejit": "import tracejit",
    "numba": "import numba",
    "jax": "import jax",
    "torch": "import torch",
    "drjit": "import drjit.llvm",
}

FIRST = """
import time
x = put(np.linspace(0, 1, 1000, dtype="float32"))
get(jit(lambda a: a + 1)(x))  # the compiler itself is loaded
f = jit(lambda a: xp.sin(a) * 2 + a / 3)
start = time.perf_counter()
get(f(x))
print(time.perf_counter() - start)
"""

SIZES = """
import time
f = jit(lambda a: (xp.exp(a) - a * 2) / (a + 1.5))
for n in (1000, 2000):  # the first sizes teach some libraries that sizes change
    get(f(put(np.linspace(0, 1, n, dtype="float32"))))
inputs = [put(np.linspace(0, 1, 3001 + 7 * k, dtype="float32")) for k in range(40)]
start = time.perf_counter()
for x in inputs:
    get(f(x))
print(time.perf_counter() - start)
"""

# Numba keeps code only for functions in files, so these are run as files, all of them.
SECOND = """
def f(a):
    return xp.sin(a) * 2 + a / 3
get(jit(f)(put(np.linspace(0, 1, 1000, dtype="float32"))))
"""

# The first call of a training step: traced, differentiated and compiled.
STEP = """
import time, math
r = np.random.default_rng(0)
draw = lambda *shape: put(r.uniform(-0.05, 0.05, shape).astype("float32"))
x, target = draw(128, 784), put(np.eye(10, dtype="float32")[r.integers(0, 10, 128)])
params = tuple(draw(*shape) for shape in ((784, 256), (256,), (256, 128), (128,), (128, 10), (10,)))
def loss(params, x, target):
    w1, b1, w2, b2, w3, b3 = params
    z = relu(relu(x @ w1 + b1) @ w2 + b2) @ w3 + b3
    return -(target * log_softmax(z)).sum() / 128
def step(params, x, target):
    value, gradients = value_and_grad(loss)(params, x, target)
    return value, [p - 0.1 * g for p, g in zip(params, gradients)]
get(jit(lambda a: a @ a.T + 1)(x))  # the compiler itself is loaded, and what multiplies matrices
start = time.perf_counter()
get(jit(step)(params, x, target)[0])
print(time.perf_counter() - start)
"""
STEP_WORDS = {
    "tracejit": "relu, value_and_grad = xp.relu, xp.value_and_grad\nlog_softmax = lambda z: xp.log_softmax(z, axis=1)",
    "jax": "relu, value_and_grad = jax.nn.relu, jax.value_and_grad\n"
           "log_softmax = lambda z: jax.nn.log_softmax(z, axis=1)",
    "torch": "relu, log_softmax = xp.relu, lambda z: xp.log_softmax(z, 1)\n"
             "value_and_grad = lambda f: lambda *a: xp.func.grad_and_value(f)(*a)[::-1]",
}

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROUNDS = 5
PATIENCE = 5.0  # seconds, after which a library is not asked again
NO_CACHE = {"TRACEJIT_CACHE": "off", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
JIT = ("tracejit", "numba", "jax", "torch")


@dataclass
class Cold:
    """One case: scripts by library; `wall` times the process from outside; `warm` runs each script once before."""

    name: str
    scripts: dict[str, str]
    wall: bool = False
    warm: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    target: Target | None = None
    note: str = ""


def _second(peer: str) -> str:
    start = START[peer]
    if peer == "numba":
        start = start.replace("numba.njit", "numba.njit(cache=True)")
    if peer == "jax":
        start += '\njax.config.update("jax_persistent_cache_min_compile_time_secs", 0)'
    return start + SECOND


COLD = {
    c.name: c
    for c in (
        Cold("first compile of a new small function", {p: START[p] + FIRST for p in JIT}, environment=NO_CACHE,
             target=Target(seconds=0.04)),
        Cold("first call of the MLP step", {p: f"{START[p]}\n{w}\n{STEP}" for p, w in STEP_WORDS.items()},
             environment=NO_CACHE, target=Target(seconds=0.25)),
        Cold("40 new sizes of one function", {p: START[p] + SIZES for p in (*JIT, "drjit")}, environment=NO_CACHE,
             target=Target(seconds=0.04)),
        Cold("second process: start to first result", {p: _second(p) for p in JIT}, wall=True, warm=True,
             target=Target(seconds=0.25)),
        Cold("import", IMPORT, wall=True, warm=True),
    )
}


def run(order: list[str], environment: dict[str, str]) -> tuple[str, float]:
    """What a Python printed, and the seconds it took."""
    given = {**os.environ, "PYTHONPATH": ROOT, **environment}
    given.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have their bytecode
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *order], capture_output=True, text=True, env=given, cwd=ROOT)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(done.stderr[-800:])
    return done.stdout, seconds


def measure_cold(case: Cold, peers: list[str]) -> Row:
    """Run every library's script once per round, those that take long in fewer rounds."""
    row = Row(case.name, case.target, note=case.note)
    spent = dict.fromkeys(peers, 0.0)
    with tempfile.TemporaryDirectory() as folder:

        def seconds(peer: str, script: str) -> float:
            path = os.path.join(folder, f"{peer}_script.py")
            if not os.path.exists(path):
                with open(path, "w") as file:
                    file.write(script)
            names = ("JAX_COMPILATION_CACHE_DIR", "TRACEJIT_CACHE", "TORCHINDUCTOR_CACHE_DIR")
            printed, wall = run([path], {**dict.fromkeys(names, os.path.join(folder, peer)), **case.environment})
            spent[peer] = spent.get(peer, 0.0) + wall
            return wall if case.wall else float(printed.split()[-1])

        for number in range(ROUNDS):
            empty = seconds("python", "pass") if case.wall else 0.0
            for peer in [p for p in peers if p in case.scripts and p not in row.failed]:
                if number and spent[peer] > PATIENCE:
                    continue
                try:
                    if case.warm and not number:
                        seconds(peer, case.scripts[peer])
                    row.seconds.setdefault(peer, []).append(max(1e-6, seconds(peer, case.scripts[peer]) - empty))
                except RuntimeError as error:
                    row.failed[peer] = str(error)
    return row


def measure_memory(name: str, peers: list[str], threads: int) -> tuple[Row, Row]:
    """A row of what the whole processes held at most while they trained, and one of what they grew by."""
    whole = Row(f"{name}: the process", Target(), bytes=True)
    grown = Row(f"{name}: grown by", bytes=True)
    for peer in peers:
        if TRAINING[name].runs_on(peer):
            try:
                printed, _ = run(["-m", "benchmarks.memory", name, peer, str(threads)], {})
                whole.seconds[peer], grown.seconds[peer] = ([float(n)] for n in printed.split()[-2:])
            except RuntimeError as error:
                whole.failed[peer] = grown.failed[peer] = str(error)
    return whole, grown
