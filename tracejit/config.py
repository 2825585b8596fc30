"""Switches, read once, and the frozen options that are part of every cache key.

In: the environment. Out: `Options` (what changes generated code) and `Debug` (what only watches). No other module reads
the environment.

    TRACEJIT_DUMP=dir         write the graph after every pass and every kernel into dir
    TRACEJIT_CHECK=0|1|2      0 trust, 1 verify after every pass, 2 also compare values before and after each pass
    TRACEJIT_SKIP=pass,pass   skip passes by name
    TRACEJIT_EAGER=1          run decorated functions undecorated
    TRACEJIT_CACHE=dir|off    where machine code is kept between processes
    TRACEJIT_NUM_THREADS=n    threads a kernel may use (default: the CPUs this process may run on)
    TRACEJIT_LOG=1            say on standard error what is traced and compiled
    TRACEJIT_TRACEBACKS=full  keep this package's own frames in the tracebacks of errors
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_int64
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Options:
    """What changes generated code; hashed whole into every key."""

    fastmath: bool = False
    checks: bool = True


@dataclass(slots=True)
class Debug:
    """What only watches. Changed through functions below, or by tests."""

    dump: str = ""
    check: int = 1
    skip: frozenset[str] = frozenset()
    eager: bool = False
    cache: str = ""
    log: bool = False
    tracebacks: bool = False  # full ones
    nans: str = ""  # "nan" or "inf": compiled code checks every value it makes for that
    watch: Any = None  # the profiler that is on


def _cpus() -> int:
    """CPUs this process may use: affinity, then the container's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max") as f:
            quota, period = f.read().split()
        if quota != "max":
            count = min(count, max(1, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        pass
    return count


def _read_environment() -> tuple[Debug, int]:
    env = os.environ.get
    check = env("TRACEJIT_CHECK", "1")
    if check not in ("0", "1", "2"):
        raise ValueError(f"TRACEJIT_CHECK must be 0, 1 or 2, not {check!r}")
    threads = env("TRACEJIT_NUM_THREADS", "")
    if threads and not threads.isdigit():
        raise ValueError(f"TRACEJIT_NUM_THREADS must be a positive number, not {threads!r}")
    skip = frozenset(filter(None, (name.strip() for name in env("TRACEJIT_SKIP", "").split(","))))
    found = Debug(env("TRACEJIT_DUMP", ""), int(check), skip, env("TRACEJIT_EAGER", "0") not in ("", "0"),
                  env("TRACEJIT_CACHE", ""), env("TRACEJIT_LOG", "0") not in ("", "0"),
                  env("TRACEJIT_TRACEBACKS", "") == "full")
    return found, max(1, int(threads)) if threads else _cpus()


debug, _threads = _read_environment()
THREADS = c_int64(_threads)  # threads a kernel may use, where native code looks it up


def cache_directory() -> str:
    """Where machine code is kept between processes; "" for nowhere."""
    if debug.cache == "off":
        return ""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return debug.cache or os.path.join(home if os.path.isabs(home) else os.path.expanduser("~/.cache"), "tracejit")


def num_threads() -> int:
    """How many threads a kernel may use."""
    return THREADS.value


def set_num_threads(n: int) -> None:
    """Let kernels use up to `n` threads (results do not depend on it)."""
    if n < 1:
        raise ValueError(f"set_num_threads: expected a positive number, got {n}")
    THREADS.value = int(n)


def run_functions_eagerly(on: bool) -> None:
    """Run every decorated function undecorated (for debugging), until switched off."""
    debug.eager = bool(on)


def full_tracebacks(on: bool) -> None:
    """Keep this package's own frames in the tracebacks of errors (for work on tracejit itself)."""
    debug.tracebacks = bool(on)


@contextmanager
def eager() -> Iterator[None]:
    """Inside, decorated functions run undecorated."""
    saved, debug.eager = debug.eager, True
    try:
        yield
    finally:
        debug.eager = saved
