"""`check_grads`: derivatives of a function against differences of its values.

In: a function and arguments. Out: nothing, or an AssertionError that says which mode, which order, and by how much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracejit.gradients import Inputs, jvp, outputs, vjp
from tracejit.ops import core
from tracejit.tensor import Tensor
from tracejit.trace.signature import flatten, unflatten

_MODES = ("fwd", "rev")


def check_grads(f: Callable[..., Any], args: Sequence[Any], order: int = 2, modes: Sequence[str] = _MODES,
                atol: float | None = None, rtol: float | None = None, eps: float | None = None, seed: int = 0) -> None:
    """Check the first `order` derivatives of f at `args` along random directions, in forward and reverse mode.

    Differences are as fine as the coarsest dtype among the inputs and results allows; float64 makes a sharp check.
    Raises AssertionError if they disagree.

    >>> check_grads(lambda x: x * x * x, (2.0,), order=3)
    """
    args = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    if order < 1:
        raise ValueError(f"check_grads: order must be at least 1, got {order}")
    if not set(modes) <= set(_MODES):
        raise ValueError(f"check_grads: modes are 'fwd' and 'rev', got {modes!r}")
    inputs = Inputs(f, args, None)
    rng = np.random.default_rng(seed)
    _Checker(modes, atol, rtol, eps, rng).check(f, tuple(inputs.args), order, "")


class _Checker(NamedTuple):
    """What stays the same through the orders."""

    modes: Sequence[str]
    atol: float | None
    rtol: float | None
    eps: float | None
    rng: np.random.Generator

    def check(self, f: Callable[..., Any], args: tuple[Any, ...], order: int, of: str) -> None:
        leaves, spec = flatten(args)
        tangents = [self.random(x) for x in leaves]
        results, result_spec = flatten(f(*args))
        weights = [self.random(y) for y in outputs(results)]
        unit = max(float(np.finfo(x.dtype).eps) for x in (*tangents, *weights) if x is not None)
        eps = unit ** (1 / 3) if self.eps is None else self.eps
        tolerance = 30 * unit ** (2 / 3)
        allowed = (tolerance if self.atol is None else self.atol, tolerance if self.rtol is None else self.rtol)

        def moved(by: float) -> list[np.ndarray]:
            here = [x if t is None else core.as_tensor(np.asarray(x) + (by * t).astype(t.dtype))
                    for x, t in zip(leaves, tangents, strict=True)]
            found = outputs(flatten(f(*unflatten(spec, here)))[0])
            return [np.zeros(()) if y is None else _wide(y) for y in found]

        slopes = [(b - a) / (2 * eps) for a, b in zip(moved(-eps), moved(eps), strict=True)]
        direction = unflatten(spec, [None if t is None else core.as_tensor(t) for t in tangents])
        weighing = unflatten(result_spec, [None if w is None else core.as_tensor(w) for w in weights])
        if "fwd" in self.modes:
            for w, found, slope in zip(weights, flatten(jvp(f, args, direction)[1])[0], slopes, strict=True):
                if w is not None:
                    _agree(_wide(found), slope, allowed, f"forward mode{of}")
        if "rev" in self.modes:
            pulled = flatten(vjp(f, *args)[1](weighing))[0]
            found = sum(_inner(d, t) for d, t in zip(pulled, tangents, strict=True) if t is not None)
            pairs = [(w, s) for w, s in zip(weights, slopes, strict=True) if w is not None]
            size = max(1.0, sum(_inner(np.abs(w), np.abs(s)) for w, s in pairs))
            _agree(found / size, sum(_inner(w, s) for w, s in pairs) / size, allowed, f"reverse mode{of}")
        if order > 1 and "fwd" in self.modes:
            self.check(lambda *xs: jvp(f, xs, direction)[1], args, order - 1, f"{of} of forward mode")
        if order > 1 and "rev" in self.modes:
            self.check(lambda *xs: vjp(f, *xs)[1](weighing), args, order - 1, f"{of} of reverse mode")

    def random(self, x: Any) -> np.ndarray | None:
        """A direction for a float leaf."""
        if not (isinstance(x, (Tensor, np.ndarray)) and x.dtype.kind in "fc"):
            return None
        found = self.rng.uniform(-1, 1, x.shape)
        if x.dtype.kind == "c":
            found = found + 1j * self.rng.uniform(-1, 1, x.shape)
        return np.asarray(found, x.dtype)


def _wide(y: Any) -> np.ndarray:
    array = np.asarray(y)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _inner(a: Any, b: Any) -> float:
    """The real inner product, for which the cotangent map is the transpose of the tangent map."""
    return float(np.sum(np.real(np.conj(_wide(a)) * _wide(b))))


def _agree(found: Any, wanted: Any, allowed: tuple[float, float], what: str) -> None:
    atol, rtol = allowed
    np.testing.assert_allclose(found, wanted, rtol, atol, err_msg=f"check_grads: {what} disagrees with differences")
