"""Loops in slices: rows that go their own ways take all turns by themselves, with the bits of turns taken together."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit import config
from tracejit.runtime import nested
from tracejit.runtime.slices import Slices

HIDDEN = 64
pytestmark = pytest.mark.usefixtures("threads_as_before")


def normal(*shape: int) -> tj.Tensor:
    return tj.asarray(np.random.standard_normal(shape).astype("float32"))


def sigmoid(v: Any) -> Any:
    return 1 / (1 + tj.exp(-v))


def recurrent(x: Any, wx: Any, wh: Any, b: Any) -> Any:
    """The outputs of a layer of LSTM units for x[steps, batch, features]."""
    def step(state: Any, row: Any) -> Any:
        h, c = state
        i, f, g, o = tj.split(row @ wx + h @ wh + b, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * tj.tanh(g)
        h = sigmoid(o) * tj.tanh(c)
        return (h, c), h

    start = tj.zeros((x.shape[1], wh.shape[0]))
    return tj.scan(step, (start, start), x)


def recurrent_gradients(*arguments: Any) -> Any:
    return tj.grad(lambda *a: tj.square(recurrent(*a)[1]).sum(), argnums=(0, 1, 2, 3))(*arguments)


def units(steps: int, batch: int) -> tuple[tj.Tensor, ...]:
    wide = 4 * HIDDEN
    return (normal(steps, batch, HIDDEN), normal(HIDDEN, wide) * 0.1, normal(HIDDEN, wide) * 0.1, normal(wide) * 0.1)


def loops(f: Any) -> list[Slices | None]:
    """The slices of each loop of a compiled function."""
    def inside(scope: nested.Scope) -> list[Slices | None]:
        found: list[Slices | None] = []
        for code in scope.inner.values():
            if isinstance(code, nested.LoopCode):
                found += [code.slices, *inside(code.body)]
        return found

    return inside(f.specializations()[-1].built.program._scope)


def flat(result: Any) -> list[np.ndarray]:
    return [t.numpy() for t in result] if isinstance(result, tuple | list) else [result.numpy()]


def bits(result: Any) -> list[bytes]:
    return [a.tobytes() for a in flat(result)]


def together(monkeypatch: pytest.MonkeyPatch, f: Callable[..., Any], *arguments: Any) -> Any:
    """What `f` gives where no loop is cut in slices."""
    with monkeypatch.context() as patch:
        patch.setattr(nested, "slices", lambda loop: None)
        plain = tj.function(f)
        result = plain(*arguments)
        assert set(loops(plain)) == {None}
    return result


def check(monkeypatch: pytest.MonkeyPatch, f: Callable[..., Any], *arguments: Any) -> Any:
    """Have `f` run in slices on some numbers of threads; compare its bits with those of turns taken together, and its
    values with what it gives eagerly. Gives the compiled function."""
    wanted, compiled = together(monkeypatch, f, *arguments), tj.function(f)
    for count in (1, 2, 3, 5):
        config.set_num_threads(count)
        assert bits(compiled(*arguments)) == bits(wanted), f"{count} threads"
    for a, b in zip(flat(wanted), flat(f(*arguments)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)
    return compiled


@pytest.mark.parametrize(("batch", "count"), [(16, 2), (32, 4), (31, 4), (40, 2), (128, 8)])
def test_recurrent_layers_take_their_samples_apart(monkeypatch: pytest.MonkeyPatch, batch: int, count: int) -> None:
    def outputs(*a: Any) -> Any:
        (h, c), rows = recurrent(*a)
        return h, c, rows

    arguments = units(7, batch)
    (cut,) = loops(check(monkeypatch, outputs, *arguments))
    assert cut is not None and cut.count == count and (count - 1) * cut.each < batch <= count * cut.each
    gradients = loops(check(monkeypatch, recurrent_gradients, *arguments))
    assert len(gradients) == 2 and None not in gradients


def test_elements_go_apart_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pendulums: two carries of one dim, written over, and a row of results at each turn."""
    def swing(angle: Any, speed: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            angle, speed = state
            speed = speed - 0.01 * tj.sin(angle)
            return (angle + 0.01 * speed, speed), angle * 2

        (angle, speed), seen = tj.scan(step, (angle, speed), None, 50)
        return angle, speed, seen

    (cut,) = loops(check(monkeypatch, swing, normal(20_000), normal(20_000)))
    assert cut is not None and cut.count > 2


def test_rows_are_reduced_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def softened(x: Any, w: Any) -> Any:
        def step(h: Any, _: Any) -> Any:
            e = tj.exp(h - h.max(-1, keepdims=True))
            return tj.tanh((e / e.sum(-1, keepdims=True)) @ w), h.mean(-1)

        h, means = tj.scan(step, x, None, 20)
        return h, means

    (cut,) = loops(check(monkeypatch, softened, normal(64, 96), normal(96, 96)))
    assert cut is not None


def test_pauses_end_turns_of_all_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that goes by way of Python now and then goes on where each slice is."""
    arguments = units(50, 32)
    monkeypatch.setattr(nested, "PATIENCE", 40_000)  # a few turns
    check(monkeypatch, recurrent_gradients, *arguments)


def test_slices_inside_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of words are made anew each time, when the loop around has moved addresses."""
    def layers(x: Any, wx: Any, wh: Any, b: Any) -> Any:
        return tj.scan(lambda x, w: (recurrent(x, wx, w, b)[1], x.sum(0)), x, wh)

    x, wx, _, b = units(6, 32)
    compiled = check(monkeypatch, lambda *a: (layers(*a)[0], layers(*a)[1]), x, wx, normal(3, HIDDEN, 4 * HIDDEN), b)
    assert any(s is not None for s in loops(compiled))


def test_callers_at_once() -> None:
    arguments = units(20, 32)
    compiled = tj.function(recurrent_gradients)
    wanted = bits(compiled(*arguments))
    config.set_num_threads(3)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: bits(compiled(*arguments)) == wanted, range(40)))


@pytest.mark.parametrize("step", [
    lambda h, w: tj.tanh(h @ w) + h.mean(0),  # each row needs all
    lambda h, w: tj.tanh(tj.roll(h, 1, 0) @ w),  # its neighbour
    lambda h, w: tj.tanh(h.T @ w),  # columns
    lambda h, w: tj.tanh(w @ h),
    lambda h, w: tj.tanh(h @ w)[::-1],
    lambda h, w: tj.tanh(h @ w) * h[0],
    lambda h, w: tj.tanh(tj.take(h, tj.argsort(w[:, 0]), axis=0) @ w),
    lambda h, w: tj.tanh(h @ (w * h.mean())),
    lambda h, w: tj.tanh(h @ w).at[0].set(1.0),
], ids=["mean", "neighbour", "transposed", "left", "reversed", "first", "taken", "scaled", "set"])
def test_rows_that_need_others_stay_together(monkeypatch: pytest.MonkeyPatch, step: Callable[[Any, Any], Any]) -> None:
    n = 96
    arguments = normal(n, n), normal(n, n) * 0.1
    compiled = check(monkeypatch, lambda h, w: tj.fori_loop(0, 12, lambda _, h: step(h, w), h), *arguments)
    assert loops(compiled) in ([None], [])


def test_little_work_and_loops_that_end_by_a_test_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    small = check(monkeypatch, lambda h, w: tj.fori_loop(0, 3, lambda _, h: tj.tanh(h @ w), h),
                  normal(8, 8), normal(8, 8))
    assert loops(small) == [None]
    ends = check(monkeypatch, lambda h, w: tj.while_loop(lambda h: h.max() > 0.01, lambda h: tj.tanh(h @ w), h),
                 normal(64, HIDDEN), normal(HIDDEN, HIDDEN) * 0.05)
    assert loops(ends) == [None]
