"""Maps done for all rows at once: compiled `vmap` and `map` give what the loop over rows gives, without a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.ir import count
from tracejit.tensor import Tensor
from tracejit.trees import flatten


def values(result: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in flatten(result)[0]]


def mapped(f: Callable[..., Any], *args: Any, loops: int = 0, rtol: float = 1e-9, **axes: Any) -> Any:
    """vmap(f) compiled gives what it gives eagerly, row by row; `loops` of them are left in the program."""
    whole = tj.vmap(f, **axes)
    wanted, compiled = values(whole(*args)), tj.function(whole)
    for a, b in zip(values(compiled(*args)), wanted, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)
    graph = compiled.lower(*args).graph
    assert count(graph, "scan") == loops, graph
    return graph


def random(*shape: int) -> Tensor:
    return tj.asarray(np.random.default_rng(sum(shape)).standard_normal(shape))


W, V, M = random(4, 5), random(4), random(3, 4)
ROWS: dict[str, Callable[[Any], Any]] = {  # functions of a row of 4
    "elementwise": lambda r: tj.tanh(r * V + 1) / 2,
    "where": lambda r: tj.where(r > 0, r, -2 * r[::-1]),
    "reductions": lambda r: (r.sum(), r.max(), tj.argmin(r), (r > 0).any(), r.mean()),
    "softmax": lambda r: tj.exp(r - r.max()) / tj.exp(r - r.max()).sum(),
    "movements": lambda r: (r.reshape(2, 2).T, tj.concat([r, V, r[1:3]]), tj.pad(r, 2), tj.expand_dims(r, 0)),
    "broadcast": lambda r: tj.broadcast_to(r.sum(), (2, 3)) + tj.broadcast_to(r[:3], (2, 3)),
    "row times matrix": lambda r: r @ W,
    "matrix times column": lambda r: M @ r,
    "rows times rows": lambda r: (r @ r, tj.outer(r, r) @ W),
    "products": lambda r: tj.tanh(r @ W) @ W.T,
    "gather of the row": lambda r: r[tj.argsort(r)[:2]],
    "gather by the row": lambda r: W[(tj.abs(r) * 1.3).astype("int64")],
    "gather by number": lambda r: r[tj.argmax(r)],
    "scatter": lambda r: tj.zeros(6, dtype="float64").at[tj.argsort(r)].add(r * 2),
    "assignment": lambda r: _assigned(r),
    "sorting": lambda r: (tj.sort(r), tj.argsort(r)),
    "running sums": lambda r: (tj.cumsum(r), tj.cumprod(r), tj.cumsum(r.reshape(2, 2), axis=0)),
    "statistics": lambda r: (tj.var(r), tj.norm(r), tj.logsumexp(r), tj.median(r)),
    "complex": lambda r: tj.abs(r + 1j * r[::-1]) ** 2,
    "nothing of the row": lambda r: V * 2,
    "a scan in each row": lambda r: tj.scan(lambda c, x: (tj.tanh(c @ random(2, 2) + x), c.sum() * x), r[:2], r),
    "a count in each row": lambda r: tj.fori_loop(0, 3, lambda i, s: s * 0.5 + s[::-1] * i, r),
}


def _assigned(r: Any) -> Any:
    out = tj.zeros(4, dtype="float64")
    out[1:3] = r[:2]
    out[0] = r.sum()
    return out


@pytest.mark.parametrize("name", ROWS)
def test_ops_by_kind(name: str) -> None:
    inner = {"a scan in each row": 1, "a count in each row": 1}  # of steps that do all rows
    mapped(ROWS[name], random(7, 4), loops=inner.get(name, 0))


def test_axes_and_several_arguments() -> None:
    mapped(lambda a, b: a * b + a.sum(), random(3, 6), random(6), in_axes=(1, 0), out_axes=1)
    mapped(lambda a, w: a @ w, random(5, 4), W, in_axes=(0, None))
    mapped(lambda a, w: a @ w, random(5, 2, 4), random(5, 4, 3))
    mapped(lambda a: tj.vmap(lambda r, c: r * c, in_axes=(0, None))(a, a[0]), random(3, 4, 2))


def test_products_of_rows_are_one_product() -> None:
    graph = mapped(lambda r: tj.tanh(r @ W) @ W.T, random(30, 4))
    shapes = [n.inputs[0].shape for n in graph.nodes if n.op.name == "matmul"]
    assert shapes == [(30, 4), (30, 5)]


@pytest.mark.parametrize("name", ["elementwise", "softmax", "row times matrix", "matrix times column", "products",
                                  "rows times rows", "gather of the row", "sorting", "a scan in each row"])
def test_gradients_of_rows_and_through_maps(name: str) -> None:
    def total(x: Any) -> Any:
        return sum((y * y).sum() for y in flatten(x)[0] if y.dtype.kind == "f")

    f = ROWS[name]
    x = random(6, 4)
    per_row = tj.function(tj.vmap(tj.grad(lambda r: total(f(r)))))
    through = tj.function(tj.grad(lambda x: total(tj.vmap(f)(x))))
    wanted = np.stack([tj.grad(lambda r: total(f(r)))(x[k]).numpy() for k in range(6)])
    np.testing.assert_allclose(per_row(x).numpy(), wanted, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(through(x).numpy(), wanted, rtol=1e-8, atol=1e-10)


def test_gradients_of_what_all_rows_share_are_one_product() -> None:
    def loss(w: Any, x: Any) -> Any:
        return tj.vmap(lambda r: (tj.tanh(r @ w) ** 2).sum())(x).sum()

    x = random(20, 4)
    compiled = tj.function(tj.grad(loss))
    np.testing.assert_allclose(compiled(W, x).numpy(), tj.grad(loss)(W, x).numpy(), rtol=1e-9)
    graph = compiled.lower(W, x).graph
    assert count(graph, "scan") == 0 and count(graph, "matmul") == 2
    jacobian = tj.function(tj.jacobian(lambda r: tj.tanh(r @ W)))
    np.testing.assert_allclose(jacobian(V).numpy(), tj.jacobian(lambda r: tj.tanh(r @ W))(V).numpy(), rtol=1e-9)


def test_what_has_no_rule_stays_a_loop(capsys: pytest.CaptureFixture[str]) -> None:
    def halvings(r: Any) -> Any:
        n = 0
        while r.sum() > 1:
            r, n = r / 2, n + 1
        return r, n

    mapped(halvings, abs(random(5, 4)) + 1, loops=1)
    mapped(lambda r: r * 2 if r.sum() > 0 else -r, random(5, 4), loops=1)
    capsys.readouterr()
    mapped(lambda r: (tj.print("row", r[0]), r)[1], random(3, 4), loops=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == lines[3:6] and len(set(lines)) == 3
    f = tj.function(tj.vmap(lambda r: r + tj.random.uniform((4,), dtype="float64")))
    tj.random.seed(1)
    a = f(random(3, 4)).numpy()
    tj.random.seed(1)
    np.testing.assert_allclose(a, tj.vmap(lambda r: r + tj.random.uniform((4,), dtype="float64"))(random(3, 4)).numpy())


def test_large_intermediate_results_stay_in_a_loop() -> None:
    def f(r: Any) -> Any:
        return tj.sort(tj.outer(r, r), axis=1).sum()

    x = random(60, 500)
    compiled = tj.function(tj.vmap(f))
    np.testing.assert_allclose(compiled(x).numpy(), tj.vmap(f)(x).numpy(), rtol=1e-9)
    assert count(compiled.lower(x).graph, "scan") == 1


def test_any_number_of_rows_in_one_trace() -> None:
    def f(x: Any) -> Any:
        return tj.vmap(lambda r: tj.tanh(r @ W).sum() + tj.sort(r)[0])(x)

    compiled, slope = tj.function(f), tj.function(tj.grad(lambda x: f(x).sum()))
    for n in (5, 9, 30, 31, 1, 2):
        x = random(n, 4)
        np.testing.assert_allclose(compiled(x).numpy(), f(x).numpy(), rtol=1e-9)
        np.testing.assert_allclose(slope(x).numpy(), tj.grad(lambda x: f(x).sum())(x).numpy(), rtol=1e-8, atol=1e-12)
    assert compiled.trace_count <= 3
    for s in compiled.specializations():
        assert count(s.built.stages[-1][1], "scan") == 0
