"""Kernels that go together by blocks of rows: the same values as one after the other, on any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit import config
from tracejit.runtime import executor, pairs


@pytest.fixture(autouse=True)
def _small_caches(monkeypatch: pytest.MonkeyPatch, threads_as_before: None) -> None:
    """As if arrays of tests lay far out of the caches."""
    monkeypatch.setattr(pairs, "last_level_cache", lambda: 1 << 12)
    monkeypatch.setattr(pairs, "BLOCK_BYTES", 1 << 14)


def layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = tj.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) / tj.sqrt(variance + 1e-5) * gamma + beta


def layer_norm_gradients(g: Any, x: Any, gamma: Any, beta: Any) -> Any:
    return tj.vjp(layer_norm, x, gamma, beta)[1](g)


def rms_norm_gradients(g: Any, x: Any, gamma: Any) -> Any:
    return tj.vjp(lambda x, gamma: x / tj.sqrt(tj.square(x).mean(-1, keepdims=True) + 1e-5) * gamma, x, gamma)[1](g)


def paired(f: Any) -> int:
    """How many pairs of kernels run together."""
    runs = f.specializations()[-1].built.program._scope.runs.values()
    return sum(run.function == executor.PAIR for found in runs for run in found)


def normal(*shape: int) -> np.ndarray:
    return np.random.standard_normal(shape)


def flat(result: Any) -> list[np.ndarray]:
    return [np.asarray(t) for t in (result if isinstance(result, tuple | list) else (result,))]


def check(monkeypatch: pytest.MonkeyPatch, f: Callable[..., Any], *arrays: np.ndarray) -> int:
    """The pairs of `f`; its values with float64 arguments, one kernel after the other, are those to come near to."""
    with monkeypatch.context() as patch:
        patch.setattr(pairs, "block", lambda *a: 0)
        apart = tj.function(f)
        wanted = flat(apart(*arrays))
        assert paired(apart) == 0
    compiled = tj.function(f)
    found: list[bytes] = []
    for count in (1, 2, 3):
        config.set_num_threads(count)
        got = flat(compiled(*(a.astype("float32") for a in arrays)))
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
        found.append(b"".join(a.tobytes() for a in got))
    assert len(set(found)) == 1
    return paired(compiled)


@pytest.mark.parametrize(("rows", "columns"), [(600, 48), (257, 33), (1000, 5), (320, 128)])
def test_gradients_of_layers_that_normalize(monkeypatch: pytest.MonkeyPatch, rows: int, columns: int) -> None:
    g, x, gamma, beta = normal(rows, columns), normal(rows, columns), normal(columns), normal(columns)
    count = check(monkeypatch, layer_norm_gradients, g, x, gamma, beta)
    assert count == check(monkeypatch, rms_norm_gradients, g, x, gamma)
    assert count == (rows // pairs.ENOUGH >= pairs.FEWEST and columns <= 48)  # else blocks would have few rows


def test_columns_of_what_rows_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first kernel's large result is read again, too."""
    def both(x: Any) -> Any:
        s = tj.softmax(x, axis=-1)
        return s, (s * x).sum(0)

    assert check(monkeypatch, both, normal(600, 48)) == 1


def test_kernels_that_need_other_rows_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(600, 48)

    def turned(x: Any) -> Any:
        return (x - x.mean(-1)[::-1][:, None]).sum(0)

    def shifted(x: Any) -> Any:
        return (x - tj.roll(x.mean(-1), 1)[:, None]).sum(0)

    def sampled(x: Any) -> Any:
        s = tj.softmax(x, axis=-1)
        return tj.take(s, tj.argsort(x[:, 0]), axis=0).sum(0), s

    for f in (turned, shifted, sampled):
        assert check(monkeypatch, f, x) == 0


def test_what_stays_in_the_cache_runs_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "last_level_cache", lambda: 1 << 20)
    arguments = normal(600, 48), normal(600, 48), normal(48), normal(48)
    assert check(monkeypatch, layer_norm_gradients, *arguments) == 0
