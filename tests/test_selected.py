"""Boolean masks known only at run time: what they select can be changed and reduced, and anything else says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.ir import count


def alike(f: Callable[..., Any], *arrays: Any) -> Any:
    """f on fresh tensors, eager and compiled: equal results, and equal writes into arguments."""
    wanted, found = ([tj.asarray(a) for a in arrays] for _ in range(2))
    a, b = f(*wanted), tj.function(f)(*found)
    for x, y in zip([a, *wanted], [b, *found]):
        np.testing.assert_allclose(y.numpy(), x.numpy(), rtol=1e-6)
        assert x.dtype == y.dtype
    return b


def add(a: Any, m: Any) -> Any:
    a[m] += 1
    return a


def product(a: Any, m: Any) -> Any:
    a[m] *= 3 - a[m]
    return a


def by_condition(a: Any, m: Any) -> Any:
    a[a < 1] = -a[a < 1] * 2 + 1
    a[a > 2] **= 2
    a[~m] = 7
    return a


def by_functions(a: Any, m: Any) -> Any:
    a[m] = tj.where(a[m] > 2, a[m], tj.sin(a[m]) * a.sum()) + tj.maximum(a[m], 1)
    a[~m] = np.square(a[~m])
    return a


@pytest.mark.parametrize("f", [add, product, by_condition, by_functions])
@pytest.mark.parametrize("a", [np.array([1.0, -2.0, 3.0], "f4"), np.arange(12.0).reshape(3, 4), np.array([3, -1, 2])])
def test_updates_through_a_mask(f: Callable[..., Any], a: np.ndarray) -> None:
    for m in ([True, False, True], [False] * 3, [True] * 3):
        alike(f, a, np.array(m))


def test_a_mask_of_every_element() -> None:
    a = np.arange(12.0).reshape(3, 4)
    alike(add, a, a % 3 == 0)


def test_reductions_of_what_a_mask_selects() -> None:
    def f(a: Any, m: Any) -> Any:
        b = a[m]
        return tj.stack([x.astype("float32") for x in (b.sum(), b.prod(), b.max(), b.min(), b.any(), (b * 2 > 3).all(),
                                                       a[a > 0].mean(), abs(a[m] - 1).sum())])

    for a in (np.array([1.0, -2.0, 3.0], "f4"), np.arange(12.0, dtype="f4").reshape(3, 4), np.array([3, -1, 2])):
        alike(f, a, np.array([True, False, True]))
    none = np.zeros(3, bool)
    for f in (lambda a, m: a[m].max(), lambda a, m: a[m].min()):
        with pytest.raises(ValueError) as eager:
            f(tj.ones((3, 4)), tj.asarray(none))
        with pytest.raises(ValueError) as compiled:
            tj.function(f)(tj.ones((3, 4)), tj.asarray(none))
        assert str(eager.value) in str(compiled.value)


def test_gradients_of_updates_through_a_mask() -> None:
    def f(a: Any) -> Any:
        b = a * 1.0
        b[b > 0] = b[b > 0] ** 2
        return (b * b).sum() + a[a < 0].sum()

    a = tj.asarray([1.0, -2.0, 3.0])
    for g in (tj.grad(tj.function(f)), tj.function(tj.grad(f))):
        np.testing.assert_allclose(g(a).numpy(), tj.grad(f)(a).numpy(), rtol=1e-6)


@pytest.mark.parametrize("f", [
    lambda a, m: a[m],
    lambda a, m: tj.sin(a[m]),
    lambda a, m: a[m] + a,
    lambda a, m: len(a[m]),
    lambda a, m: a[m].reshape(-1),
    lambda a, m: a[m] + a[~m],
    lambda a, m: [x for x in a[m]],
    lambda a, m: f"{a[m]}",
])  # fmt: skip
def test_other_uses_name_the_line_and_the_rewrite(f: Callable[..., Any]) -> None:
    with pytest.raises(tj.TracerError, match=r"boolean mask known only at run time .* at .*test_selected.py:\d+") as e:
        tj.function(f)(tj.ones(3), tj.asarray([True, False, True]))
    assert "tj.where(mask" in str(e.value)


# -- indices -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("f", [
    lambda a, i: a[0, i],
    lambda a, i: a[i, 0],
    lambda a, i: a[0, :, i],
    lambda a, i: a[:, 1, i],
    lambda a, i: a[i, 1:, None, 0],
])  # fmt: skip
def test_an_index_out_of_range_names_its_own_axis(f: Callable[..., Any]) -> None:
    a = tj.arange(60).reshape(3, 4, 5)
    compiled = tj.function(f)
    for index in (tj.asarray(2), tj.asarray([0, 2]), tj.asarray([0, -1])):
        np.testing.assert_array_equal(compiled(a, index).numpy(), f(a, index).numpy())
    for index in (tj.asarray(5), tj.asarray([0, -6])):
        with pytest.raises(IndexError) as eager:
            f(a, index)
        with pytest.raises(IndexError) as e:
            compiled(a, index)
        assert str(eager.value) in str(e.value)


def test_writes_beside_an_index_known_at_run_time() -> None:
    def f(a: Any, i: Any) -> Any:
        a[0, 1:, i] = 7
        a[i, 1] += 3
        a[-1, i[0]] *= 2
        return a

    alike(f, np.arange(60).reshape(3, 4, 5), np.array([0, 1]))


@pytest.mark.parametrize("write", ["a[i, 0] = i", "a[0, i % 4] += i", "a[2, 3] = i", "a[i] = i * 0.5", "a[-1] += 1"])
def test_entries_of_a_table_are_written_in_place_in_a_loop(write: str) -> None:
    """No step of the loop goes over the whole table."""
    body = {
        "a[i, 0] = i": lambda a, i: a.at[i, 0].set(i),
        "a[0, i % 4] += i": lambda a, i: a.at[0, i % 4].add(i),
        "a[2, 3] = i": lambda a, i: a.at[2, 3].set(i),
        "a[i] = i * 0.5": lambda a, i: a.at[i].set(i * 0.5),
        "a[-1] += 1": lambda a, i: a.at[-1].add(1),
    }[write]
    f = tj.function(lambda a, n: tj.fori_loop(0, n, lambda i, a: body(a, i), a))
    a, n = tj.ones((1000, 4)), tj.asarray(100)
    wanted = a
    for i in range(100):
        wanted = body(wanted, i)
    np.testing.assert_array_equal(f(a, n).numpy(), wanted.numpy())
    (loop,) = [x for x in f.lower(a, n).graph.nodes if x.op.name == "while_loop"]
    assert count(loop.attrs["body"], "scatter") == 1
    assert all(x.type.size < 1000 for x in loop.attrs["body"].nodes if x.op.name not in ("scatter", "identity"))
