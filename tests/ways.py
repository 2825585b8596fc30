"""The ways that a function of tensors runs, as functions of arrays; tests ask that all agree with NumPy.

eager: NumPy does it at once. recorded: under a tape, through the primitives. traced: as a verified graph, replayed.
compiled: as native code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tracejit as tj
from tracejit.ir import Type, verify
from tracejit.tensor import Tensor, evaluate
from tracejit.trace.tracer import trace_function


def arrays(result: Any) -> Any:
    """Tensors as arrays; a sequence of them as a list."""
    return list(map(arrays, result)) if isinstance(result, (tuple, list)) else result.numpy()


def eager(f: Callable[..., Any], *xs: np.ndarray) -> Any:
    return arrays(f(*map(tj.asarray, xs)))


def recorded(f: Callable[..., Any], *xs: np.ndarray) -> Any:
    with tj.GradientTape():
        out = f(*map(tj.asarray, xs))
    return arrays(out)


def traced(f: Callable[..., Any], *xs: np.ndarray) -> Any:
    single = False

    def run(*ts: Tensor) -> Any:
        nonlocal single
        out = f(*ts)
        single = isinstance(out, Tensor)
        return out

    graph = trace_function(run, *(Type(x.shape, x.dtype) for x in xs))
    verify(graph)
    found = arrays(evaluate(graph, [tj.asarray(x) for x in xs]))
    return found[0] if single else found


def compiled(f: Callable[..., Any], *xs: np.ndarray) -> Any:
    return arrays(tj.function(f)(*map(tj.asarray, xs)))


WAYS = [eager, recorded, traced, compiled]


def same(found: Any, wanted: Any, rtol: float = 0, dtype: Any = None) -> None:
    """Equal shapes, dtypes (of `wanted`, or `dtype`) and values, in nested lists too."""
    if isinstance(wanted, (tuple, list)) and isinstance(found, list):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted):
            same(a, b, rtol, dtype)
        return
    wanted = np.asarray(wanted)
    assert found.shape == wanted.shape
    assert found.dtype == (wanted.dtype if dtype is None else dtype)
    if rtol:
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol)
    else:
        np.testing.assert_array_equal(found, wanted)
