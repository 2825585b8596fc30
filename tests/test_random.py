"""Random numbers: known answers of Philox, distributions, seeds, keys, and draws inside compiled functions."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.stats
from calls import in_threads

import tracejit as tj
from tracejit.lower import mathlib
from tracejit.lower.scalar import interpret
from tracejit.ops.random import RANDOM_BITS, philox

# Known answers published with Philox4x32-10: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


@pytest.mark.parametrize("counter, key, wanted", KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    words = [np.array([v], np.uint32) for v in (*key, *counter)]
    scalar = [int(interpret(lambda *xs, k=k: mathlib.philox4x32_10(*xs)[k], *words)[0]) for k in range(4)]
    assert tuple(scalar) == wanted
    block = philox(key[0] | key[1] << 32, counter[2] | counter[3] << 32, 0, counter[0] | counter[1] << 32, 1)
    assert tuple(block[0].tolist()) == wanted


def test_scalar_rule_is_eager() -> None:
    class At:
        def __init__(self, flat: object):
            self.flat = flat

    key, draw = np.array(0xFEDCBA9876543210, np.uint64), np.array((1 << 40) + 3, np.uint64)
    for dtype in ("uint32", "uint64"):
        attrs = {"shape": (23,), "dtype": dtype, "stream": 1}
        found = interpret(lambda flat, k, d, a=attrs: RANDOM_BITS.scalar(At(flat), k, d, **a), np.arange(23), key, draw)
        np.testing.assert_array_equal(found, RANDOM_BITS.eager(key, draw, **attrs))


# -- distributions -----------------------------------------------------------------------------------------------------
N = 200_000
CONTINUOUS: dict[str, tuple[Callable[..., tj.Tensor], scipy.stats.rv_continuous]] = {
    "uniform": (lambda **k: tj.random.uniform((N,), -1, 3, **k), scipy.stats.uniform(-1, 4)),
    "normal": (lambda **k: tj.random.normal((N,), 2, 0.5, **k), scipy.stats.norm(2, 0.5)),
    "exponential": (lambda **k: tj.random.exponential((N,), 3.0, **k), scipy.stats.expon(scale=3)),
    "gumbel": (lambda **k: tj.random.gumbel((N,), **k), scipy.stats.gumbel_r()),
    "truncated_normal": (lambda **k: tj.random.truncated_normal((N,), **k), scipy.stats.truncnorm(-2, 2)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_distributions(name: str, dtype: str) -> None:
    draw, wanted = CONTINUOUS[name]
    x = draw(dtype=dtype, key=tj.random.key(11)).numpy().astype(np.float64)
    assert np.isfinite(x).all()
    assert scipy.stats.kstest(x, wanted.cdf).pvalue > 1e-4
    assert abs(x.mean() - wanted.mean()) < 5 * wanted.std() / math.sqrt(N)
    assert abs(x.var() / wanted.var() - 1) < 0.05
    assert abs(np.corrcoef(x[1:], x[:-1])[0, 1]) < 0.012, "neighbours are independent"
    assert abs(np.corrcoef(x[2:], x[:-2])[0, 1]) < 0.012


@pytest.mark.parametrize("dtype, bits", [("float16", 11), ("float32", 24), ("float64", 53)])
def test_uniform_has_all_bits(dtype: str, bits: int) -> None:
    x = tj.random.uniform((50_000,), dtype=dtype, key=1).numpy()
    assert x.dtype == dtype and x.min() >= 0 and x.max() < 1
    steps = x.astype(np.float64) * 2.0**bits
    assert (steps == np.floor(steps)).all() and (np.floor(steps) % 2 == 1).mean() == pytest.approx(0.5, abs=0.02)


def test_normal_tails() -> None:
    x = tj.random.normal((1_000_000,), key=5).numpy()
    assert 4.4 < np.abs(x).max() < 6.8
    assert scipy.stats.kurtosis(x) == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("low, high, dtype", [
    (0, 6, "int32"), (-3, 4, "int8"), (0, 256, "uint8"), (-(1 << 31), 1 << 31, "int32"), (-5, 1 << 40, "int64"),
    (-(1 << 63), 1 << 63, "int64"), (0, 1 << 64, "uint64"), (7, 8, "int16"), (0, 1 << 32, "uint32")])
def test_randint(low: int, high: int, dtype: str) -> None:
    x = tj.random.randint(low, high, (100_000,), dtype=dtype, key=3)
    assert x.dtype == dtype
    whole = [int(v) for v in x.numpy()[:2000]]
    assert min(whole) >= low and max(whole) < high
    wide = x.numpy().astype(np.float64)
    middle, span = (low + high - 1) / 2, high - low
    assert abs(wide.mean() - middle) <= 5 * span / math.sqrt(12 * len(wide)) + 1e-9
    if span <= 256:
        counts = np.bincount((x.numpy().astype(np.int64) - low), minlength=span)
        assert len(counts) == span and (span == 1 or scipy.stats.chisquare(counts).pvalue > 1e-4)


def test_randint_of_tensors_and_errors() -> None:
    low, high = tj.asarray([0, 10, -5]), tj.asarray([2, 11, 0])
    x = tj.random.randint(low, high, (1000, 3)).numpy()
    assert (x >= low.numpy()).all() and (x < high.numpy()).all() and set(x[:, 0]) == {0, 1}
    with pytest.raises(ValueError, match="empty"):
        tj.random.randint(3, 3)
    with pytest.raises(OverflowError, match="int8"):
        tj.random.randint(0, 200, dtype="int8")
    with pytest.raises(TypeError, match="integer dtype"):
        tj.random.randint(0, 2, dtype="float32")


def test_discrete() -> None:
    p = tj.random.bernoulli(0.3, (N,), key=1)
    assert p.dtype == "bool" and float(p.mean()) == pytest.approx(0.3, abs=0.006)
    assert tj.random.bernoulli(tj.asarray([0.0, 1.0]), dtype="int32").tolist() == [0, 1]
    weights = np.array([0.1, 0.2, 0.7])
    drawn = tj.random.categorical(tj.asarray(np.log(weights)), N, key=2)
    assert drawn.dtype == "int64" and drawn.shape == (N,)
    counts = np.bincount(drawn.numpy(), minlength=3)
    assert scipy.stats.chisquare(counts, weights * N).pvalue > 1e-4
    assert tj.random.categorical(tj.zeros((4, 5))).shape == (4,)
    picked = tj.random.choice(tj.asarray([10, 20, 30]), (N,), p=[0.1, 0.2, 0.7], key=4).numpy()
    assert (picked == 30).mean() == pytest.approx(0.7, abs=0.006)
    assert sorted(tj.random.choice(5, (5,), replace=False).tolist()) == [0, 1, 2, 3, 4]
    assert tj.random.choice(tj.ones((4, 2)), (3, 2)).shape == (3, 2, 2)
    with pytest.raises(ValueError, match="without replacement"):
        tj.random.choice(3, (4,), replace=False)


def test_permutations() -> None:
    firsts = [tj.random.permutation(4, key=k).tolist() for k in range(400)]
    assert all(sorted(f) == [0, 1, 2, 3] for f in firsts) and len(set(map(tuple, firsts))) == 24
    x = tj.reshape(tj.arange(6), (3, 2))
    moved = tj.random.permutation(x, axis=1, key=1)
    assert sorted(map(tuple, moved.numpy().T.tolist())) == sorted(map(tuple, x.numpy().T.tolist()))
    t = tj.arange(10)
    other = t.copy()
    assert tj.random.shuffle(t) is None and sorted(t.tolist()) == list(range(10)) and other.tolist() == list(range(10))
    with pytest.raises(TypeError, match="permutation"):
        tj.random.shuffle([1, 2])


# -- seeds, generators, keys -------------------------------------------------------------------------------------------
def test_seeds_repeat_and_draws_differ() -> None:
    tj.random.seed(7)
    a, b = tj.random.uniform((5,)), tj.random.uniform((5,))
    tj.random.seed(7)
    assert a.tolist() == tj.random.uniform((5,)).tolist() != b.tolist()
    tj.random.seed(8)
    assert a.tolist() != tj.random.uniform((5,)).tolist()
    tj.random.seed()
    assert a.tolist() != tj.random.uniform((5,)).tolist()
    assert tj.random_uniform((2, 3)).shape == (2, 3)
    assert tj.random_uniform((50,), 2, 5, dtype="int32").max().item() == 4


def test_generators_are_independent_values() -> None:
    g, h = tj.random.Generator(1), tj.random.Generator(1)
    tj.random.seed(0)
    assert g.normal((3,)).tolist() == h.normal((3,)).tolist()
    g.uniform()
    for copied in (pickle.loads(pickle.dumps(g)), copy.deepcopy(g)):
        assert copied.uniform((4,)).tolist() == pickle.loads(pickle.dumps(g)).uniform((4,)).tolist()
    later = pickle.loads(pickle.dumps(g))
    assert later.randint(0, 100, (9,)).tolist() == g.randint(0, 100, (9,)).tolist()
    assert tj.random.uniform((2,), generator=g).tolist() != h.uniform((2,)).tolist()


def test_keys() -> None:
    k = tj.random.key(3)
    tj.random.seed(1)
    assert tj.random.uniform((4,), key=k).tolist() == tj.random.uniform((4,), key=3).tolist()
    one, two, three = tj.random.split(k, 3)
    draws = [tuple(tj.random.uniform((4,), key=x).tolist()) for x in (k, one, two, three, tj.random.fold_in(k, 1))]
    assert len(set(draws)) == 5
    assert tj.random.fold_in(k, 2).item() == tj.random.fold_in(k, tj.asarray(2)).item()
    many = tj.random.split(k, 1000).numpy()
    assert many.dtype == "uint64" and len(set(many.tolist())) == 1000
    with pytest.raises(TypeError, match="0-d uint64"):
        tj.random.uniform(key=tj.ones(2))
    with pytest.raises(ValueError, match="not both"):
        tj.random.uniform(key=1, generator=tj.random.Generator(1))


def test_threads_never_share_a_draw() -> None:
    g = tj.random.Generator(5)
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda _: g.randint(0, 1 << 62, dtype="int64").item(), range(400)))
    assert len(set(drawn)) == 400


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="float dtype"):
        tj.random.uniform((2,), dtype="int32")
    with pytest.raises(TypeError, match="float dtype"):
        tj.random.normal((2,), dtype="complex64")


# -- inside compiled functions -----------------------------------------------------------------------------------------
def noise(x: tj.Tensor) -> tuple[tj.Tensor, ...]:
    u, i = tj.random.uniform((3, 5)), tj.random.randint(0, 9, (4,))
    return x + u, tj.random.normal((7,)), i, tj.random.normal((3,), dtype="float64")


def test_compiled_draws_are_the_eager_draws() -> None:
    x = tj.ones((3, 5))
    tj.random.seed(42)
    wanted = [noise(x), noise(x), noise(x)]
    after = tj.random.uniform((2,)).tolist()
    f = tj.function(noise)
    tj.random.seed(42)
    found = [f(x), f(x), f(x)]
    assert f.trace_count == 1
    for a, b in zip(wanted, found):
        for u, v in zip(a, b):
            assert u.dtype == v.dtype
            np.testing.assert_allclose(u.numpy(), v.numpy(), rtol=3e-6, atol=1e-6)
    assert tj.random.uniform((2,)).tolist() == after, "the state goes on from where the compiled calls left it"
    assert found[0][0].tolist() != found[1][0].tolist()


def test_compiled_bits_are_exact() -> None:
    def draw() -> tuple[tj.Tensor, ...]:
        return (tj.random.uniform((1000,)), tj.random.uniform((77,), dtype="float64"),
                tj.random.randint(0, 1000, (99,)))

    f = tj.function(draw)
    tj.random.seed(9)
    found = f()
    tj.random.seed(9)
    for a, b in zip(found, f.eager()):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_compiled_with_own_generator_and_key() -> None:
    g, h = tj.random.Generator(3), tj.random.Generator(3)
    f = tj.function(lambda: g.uniform((6,)))
    assert [f().tolist() for _ in range(3)] == [h.uniform((6,)).tolist() for _ in range(3)]
    keyed = tj.function(lambda k: tj.random.uniform((6,), key=k))
    for seed in (1, 2):
        k = tj.random.key(seed)
        assert keyed(k).tolist() == tj.random.uniform((6,), key=k).tolist()
    assert keyed.trace_count == 1
    halves = tj.function(lambda k: tj.random.split(k))
    assert halves(tj.random.key(5)).tolist() == tj.random.split(tj.random.key(5)).tolist()


def test_seed_inside_a_compiled_function() -> None:
    def f() -> tj.Tensor:
        tj.random.seed(4)
        return tj.random.uniform((3,))

    assert tj.function(f)().tolist() == f().tolist()


def test_gradients_flow_to_parameters() -> None:
    def f(mean: tj.Tensor, std: tj.Tensor) -> tj.Tensor:
        return tj.sum(tj.random.normal((1000,), mean, std, key=1))

    by_mean, by_std = tj.grad(f, (0, 1))(1.0, 2.0)
    assert by_mean.item() == 1000
    assert by_std.item() == pytest.approx(tj.sum(tj.random.normal((1000,), key=1)).item(), rel=1e-4)


def test_threads_that_call_compiled_functions_never_share_a_draw() -> None:
    f, g = tj.function(lambda: tj.random.uniform((300,), dtype="float64")), tj.random.Generator(3)
    h = tj.function(lambda x: (x * g.uniform((300,), dtype="float64"), g.uniform((), dtype="float64")))
    one = tj.ones((), dtype="float64")
    for _ in range(3):
        f(), h(one)  # the short ways in are known
    found: list[float] = []

    def draw() -> None:
        for _ in range(200):
            found.append(float(f()[0]))
            many, single = h(one)
            found.extend((float(many[0]), float(single)))
            found.append(float(tj.random.uniform((), dtype="float64")))

    in_threads(draw)
    assert len(set(found)) == len(found) == 3200
