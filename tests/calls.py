"""What tests of the decorator share: an argument to call with, the same as an array, and comparison."""

from __future__ import annotations

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
