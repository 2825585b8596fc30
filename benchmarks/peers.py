"""One class per library: how to hand it an array, compile a function, wait for a result and read it back.

A peer is made in its own process only; each imports its library in `__init__`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class Peer:
    """NumPy itself, and the defaults of the others. `xp` is the namespace that formulas use."""

    name = "numpy"
    compiles = False

    def __init__(self, threads: int) -> None:
        from scipy import special

        self.xp: Any = np
        self.erf: Callable[..., Any] = special.erf
        self.version = np.__version__

    def put(self, array: np.ndarray) -> Any:
        """The library's own array, resident where it computes."""
        return array

    def jit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def wait(self, result: Any) -> Any:
        """Return once the result is computed."""
        return result

    def get(self, result: Any) -> Any:
        """The same structure with NumPy arrays."""
        if isinstance(result, tuple | list):
            return [self.get(r) for r in result]
        return np.asarray(result)


class Tracejit(Peer):
    name = "tracejit"
    compiles = True

    def __init__(self, threads: int) -> None:
        import tracejit as tj

        tj.config.set_num_threads(threads)
        self.xp, self.erf, self.put, self.jit = tj, tj.erf, tj.asarray, tj.function
        self.version = tj.__version__


class Numba(Peer):
    """Kernels are written by hand in `numba_kernels.py`."""

    name = "numba"
    compiles = True

    def __init__(self, threads: int) -> None:
        import numba

        from benchmarks import numba_kernels

        numba.set_num_threads(threads)
        self.kernels, self.version = numba_kernels, numba.__version__


class Jax(Peer):
    name = "jax"
    compiles = True

    def __init__(self, threads: int) -> None:
        import jax
        import jax.numpy as jnp

        jax.config.update("jax_enable_x64", True)  # float64 inputs stay so; the others keep their dtype
        self.jax, self.xp, self.erf = jax, jnp, jax.scipy.special.erf
        self.put, self.jit, self.wait = jnp.asarray, jax.jit, jax.block_until_ready
        self.version = jax.__version__


class Torch(Peer):
    name = "torch"
    compiles = True

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.torch = self.xp = torch
        self.erf, self.put = torch.erf, torch.from_numpy
        self.version = torch.__version__.split("+")[0]

    def jit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.torch.compile(function, dynamic=False)

    def get(self, result: Any) -> Any:
        return [self.get(r) for r in result] if isinstance(result, tuple | list) else result.detach().numpy()


class TorchEager(Torch):
    """Op by op, for training steps only: of single functions, compiled ones are the peer."""

    name = "torch_eager"

    def jit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function


class Numexpr(Peer):
    name = "numexpr"
    compiles = True

    def __init__(self, threads: int) -> None:
        import numexpr

        numexpr.set_num_threads(threads)
        self.evaluate, self.version = numexpr.evaluate, numexpr.__version__


class Drjit(Peer):
    """Dr.Jit's LLVM backend; needs an LLVM library on the machine."""

    name = "drjit"
    compiles = True

    def __init__(self, threads: int) -> None:
        import drjit
        import drjit.llvm as backend

        drjit.set_thread_count(threads)
        self.dr = self.xp = drjit
        self.erf, self.version = drjit.erf, drjit.__version__
        self.types = {"float32": backend.Float, "float64": backend.Float64}
        drjit.eval(backend.Float([1.0, 2.0]) + 1)  # raises here where LLVM is missing

    def put(self, array: np.ndarray) -> Any:
        value = self.types[array.dtype.name](array.ravel())
        self.dr.eval(value)
        return value

    def wait(self, result: Any) -> Any:
        self.dr.eval(result)
        self.dr.sync_thread()
        return result


PEERS: dict[str, type[Peer]] = {p.name: p for p in (Tracejit, Peer, Numba, Jax, Torch, TorchEager, Numexpr, Drjit)}


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Processes started inside have `threads` processors, and the libraries that they import are told so.

    From the start: threads that a library has made by then would keep the processors they have, so a process cannot
    limit itself once it has imported NumPy.
    """
    names = [f"{name}_NUM_THREADS" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA", "NUMEXPR", "TRACEJIT")]
    before = {name: os.environ.get(name) for name in names}
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    os.environ.update(dict.fromkeys(names, str(threads)))
    if processors:
        os.sched_setaffinity(0, sorted(processors)[:threads])
    try:
        yield
    finally:
        if processors:
            os.sched_setaffinity(0, processors)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def default_threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


SQRT1_2 = math.sqrt(0.5)
