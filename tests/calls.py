"""What tests of the decorator share: an argument to call with, the same as an array, comparison, and many threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import tracejit as tj


def numbers(n: int = 3) -> np.ndarray:
    """1, 2, ... n."""
    return np.arange(1, n + 1, dtype="f4")


def x(n: int = 3) -> tj.Tensor:
    """A new tensor of `numbers(n)`."""
    return tj.asarray(numbers(n))


def same(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-6)


def in_threads(f: Callable[[], Any], n: int = 4) -> None:
    """Run f in threads that take turns as often as they can."""
    threads = [threading.Thread(target=f) for _ in range(n)]
    saved = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(saved)
