"""Embedding lookups and dropout: values, derivatives, what is kept in memory, how draws repeat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from samples import numbers

import tracejit as tj
from tracejit import nn
from tracejit.function import Function
from tracejit.lower.plan import Launch
from tracejit.trace.split import split


def ways(f: Any, *args: Any) -> list[Any]:
    """The results of f, eager and compiled."""
    return [g(*map(tj.asarray, args)) for g in (f, tj.function(f))]


def kept_bytes(f: Any, *xs: Any) -> int:
    """Bytes that a compiled f keeps for its gradient, besides what it has anyway."""
    function: Function = tj.function(f)
    function(*map(tj.asarray, xs))
    (found,) = function.specializations()
    forward = split(found.built.graph)[0]
    known = {*found.built.graph.outputs}
    return sum(n.type.size * n.type.dtype.itemsize for n in forward.outputs[len(known):] if n not in forward.inputs)


# -- embedding ---------------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:embedding .* has been decorated")
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_ids_of_any_integer_dtype(dtype: str, rng: np.random.Generator) -> None:
    table = rng.normal(size=(9, 4))
    ids = rng.integers(0, 9, (2, 5)).astype(dtype)
    for found in ways(nn.embedding, table, ids):
        assert found.numpy().tolist() == table[ids].tolist()


@pytest.mark.filterwarnings("ignore:embedding .* has been decorated")
@pytest.mark.parametrize(("shape", "ids"), [
    ((5,), (3,)), ((5, 2, 3), (4,)), ((5, 3), ()), ((5, 3), (0,)), ((5, 0), (2,)), ((1, 1), (2, 1, 2))])
def test_shapes(shape: tuple[int, ...], ids: tuple[int, ...], rng: np.random.Generator) -> None:
    table, chosen = rng.normal(size=shape), rng.integers(-shape[0], shape[0], ids)
    for found in ways(nn.embedding, table, chosen):
        assert found.numpy().tolist() == table[chosen].tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_repeated_ids_all_count(dtype: str, rng: np.random.Generator) -> None:
    table, ids = rng.normal(size=(7, 3)).astype(dtype), np.array([[2, 2, 6], [0, 2, -1]])
    weights = rng.normal(size=(2, 3, 3)).astype(dtype)
    wanted = np.zeros((7, 3))
    np.add.at(wanted, ids, weights.astype(np.float64))
    for g in ways(lambda t, i, w: tj.grad(lambda t: (nn.embedding(t, i) * w).sum())(t), table, ids, weights):
        assert g.dtype == dtype
        np.testing.assert_allclose(g.numpy(), wanted, atol=1e-6 if dtype == "float32" else 1e-14)
    tj.check_grads(lambda t: nn.embedding(t, ids) ** 3, (table.astype(np.float64),), order=2)


@pytest.mark.filterwarnings("ignore:embedding .* has been decorated")
@pytest.mark.parametrize("wrong", [7, -8, 1000])
def test_an_id_out_of_range_is_an_index_error(wrong: int) -> None:
    table = tj.ones((7, 3))
    f = tj.function(nn.embedding)
    f(table, tj.asarray([0, 6]))
    for run in (nn.embedding, f, tj.function(tj.grad(lambda t, i: nn.embedding(t, i).sum()))):
        with pytest.raises(IndexError, match=rf"{wrong} is out of bounds for axis 0 with size 7"):
            run(table, tj.asarray([0, wrong]))


def test_embedding_errors() -> None:
    with pytest.raises(TypeError, match="ids must be integers, got float32"):
        nn.embedding(tj.ones((7, 3)), [1.0])
    with pytest.raises(TypeError, match="got bool"):
        nn.embedding(tj.ones((7, 3)), [True])
    with pytest.raises(ValueError, match="dim of rows"):
        nn.embedding(1.0, [1])


def test_the_gradient_of_a_lookup_is_native_and_takes_its_own_memory_only() -> None:
    """In particular no matrix of one-hot rows, which would take 512 * 50,000 numbers."""
    table, ids = tj.ones((50_000, 8)), tj.arange(512)
    f = tj.function(tj.grad(lambda t, i: (nn.embedding(t, i) ** 2).sum()))
    lowered = f.lower(table, ids)
    assert all(isinstance(s, Launch) for s in lowered.plan.steps)
    assert lowered.built.program.storage.peak_bytes <= table.nbytes + 2 * 512 * 8 * 4
    assert f(table, ids).numpy().sum() == 2 * 512 * 8


# -- dropout -----------------------------------------------------------------------------------------------------------
def test_elements_stay_with_their_probability() -> None:
    tj.random.seed(0)
    for rate in (0.1, 0.5, 0.9):
        for y in ways(lambda x: nn.dropout(x, rate), np.ones((200, 500), "float32")):  # noqa: B023
            y = y.numpy()
            assert set(np.unique(y)) == {0, np.float32(1 / (1 - rate))}
            assert abs((y != 0).mean() - (1 - rate)) < 5 * (rate * (1 - rate) / y.size) ** 0.5


def test_the_ends_of_the_range() -> None:
    x = tj.asarray([1.0, np.nan, -np.inf])
    for y in ways(lambda x: nn.dropout(x, 0.0), x):
        np.testing.assert_array_equal(y.numpy(), x.numpy())
    for y in ways(lambda x: nn.dropout(x, 1.0), x):
        assert y.tolist() == [0, 0, 0]
    for g in ways(tj.grad(lambda x: nn.dropout(x, 1.0).sum()), np.ones(3)):
        assert g.tolist() == [0, 0, 0]
    tj.random.seed(1)
    before = tj.random.default_generator.__getstate__()
    nn.dropout(x, 0.0)
    assert tj.random.default_generator.__getstate__() == before  # nothing was drawn
    assert nn.dropout([1, 2], 0.0).dtype == "float32"
    assert nn.dropout(tj.ones((0, 3)), 0.5).shape == (0, 3)


def test_draws_repeat_under_a_seed_and_differ_between_calls() -> None:
    x = tj.ones((50, 70))
    f = tj.function(lambda x: nn.dropout(x, 0.3))
    tj.random.seed(5)
    eager = [nn.dropout(x, 0.3).numpy() for _ in range(3)]
    tj.random.seed(5)
    compiled = [f(x).numpy() for _ in range(3)]
    assert [a.tobytes() for a in eager] == [a.tobytes() for a in compiled]
    assert len({a.tobytes() for a in eager}) == 3
    assert f.trace_count == 1


def test_other_sources_of_randomness() -> None:
    x = tj.ones((50, 70))
    key, generator = tj.random.key(3), tj.random.Generator(4)
    assert (nn.dropout(x, 0.5, key=key) == nn.dropout(x, 0.5, key=key)).all()
    first = nn.dropout(x, 0.5, generator=generator)
    assert (first != nn.dropout(x, 0.5, generator=generator)).any()
    assert (first == nn.dropout(x, 0.5, generator=tj.random.Generator(4))).all()
    with pytest.raises(ValueError, match="key= or generator="):
        nn.dropout(x, 0.5, key=key, generator=generator)


def test_noise_shape() -> None:
    for y in ways(lambda x: nn.dropout(x, 0.5, noise_shape=(None, 1, 6)), np.ones((30, 4, 6), "float32")):
        y = y.numpy()
        assert (y == y[:, :1]).all()
        assert 0.3 < (y[:, 0] == 0).mean() < 0.7


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_the_gradient_drops_what_the_value_drops(dtype: str, rng: np.random.Generator) -> None:
    x, w = numbers(rng, (2, 40, 30), np.dtype(dtype))

    def f(x: Any, w: Any) -> Any:
        def loss(x: Any) -> Any:
            y = nn.dropout(x * x, 0.25)
            return tj.real(y * w).sum(), y

        (_, y), g = tj.value_and_grad(loss, has_aux=True)(x)
        return y, g

    for y, g in ways(f, x, w):
        kept = y.numpy() != 0
        wanted = np.where(kept, np.conj(2 * x * w) / 0.75, 0)
        np.testing.assert_allclose(g.numpy(), wanted, rtol=1e-5)
    key = tj.random.key(1)
    tj.check_grads(lambda x: nn.dropout(x, 0.5, key=key) ** 2, (x.real.astype("float64"),), order=2)


def test_no_mask_is_kept() -> None:
    """The backward pass works the mask out again, from the number of the draw."""
    x = np.ones((512, 256), "float32")
    assert kept_bytes(lambda x: nn.dropout(x * 2.0, 0.5), x) <= 16
    assert kept_bytes(lambda x: nn.dropout(nn.dropout(x * 2.0, 0.5), 0.5), x) <= 32
    step = tj.function(tj.grad(lambda x: (nn.dropout(x, 0.5) ** 2).sum()))
    lowered = step.lower(tj.asarray(x))
    assert not [b for b in lowered.plan.buffers if b.dtype == bool and b.size > 1]
    assert lowered.built.program.storage.peak_bytes < x.nbytes + 4096


def test_the_mask_of_a_call_is_that_of_its_gradient() -> None:
    """Called under a tape, forward and backward are programs of their own."""
    f = tj.function(lambda x: nn.dropout(x, 0.5))
    x = tj.ones((64, 64))
    for _ in range(2):
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        assert (tape.gradient(y, x) == y).all()


@pytest.mark.parametrize(("args", "error", "words"), [
    ({"rate": 1.5}, ValueError, r"rate must be in \[0, 1\], got 1.5"), ({"rate": -0.1}, ValueError, "got -0.1"),
    ({"rate": float("nan")}, ValueError, "got nan"),
    ({"rate": 0.5, "noise_shape": (2, 1)}, ValueError, r"noise_shape \(2, 1\)"),
    ({"rate": 0.5, "noise_shape": (1,)}, ValueError, r"noise_shape \(1,\)"),
])
def test_dropout_errors(args: dict[str, Any], error: type[Exception], words: str) -> None:
    for f in (lambda: nn.dropout(tj.ones((3, 4)), **args), tj.function(lambda: nn.dropout(tj.ones((3, 4)), **args))):
        with pytest.raises(error, match=words):
            f()
