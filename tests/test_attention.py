"""Scaled dot-product attention against its definition in float64: values, derivatives, masks, memory, threads.

The definition here works on whole matrices, one at a time; it shares nothing with the package.
"""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.lower.plan import Attention, Call
from tracejit.nn import scaled_dot_product_attention as attention

Arrays = tuple[np.ndarray, ...]


def weights(q: np.ndarray, k: np.ndarray, mask: Any, causal: bool, scale: float) -> np.ndarray:
    s = np.einsum("...ld,...sd->...ls", q, k) * scale
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask
    if causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    p = np.zeros_like(s)
    for at in np.ndindex(s.shape[:-1]):
        if s.shape[-1] and s[at].max() > -np.inf:
            e = np.exp(s[at] - s[at].max())
            p[at] = e / e.sum()
    return p


def definition(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: Any = None, causal: bool = False,
               scale: float | None = None) -> tuple[np.ndarray, list[np.ndarray]]:
    """The result, and the derivatives of sum(result * cos(0, 1, 2, ...)) by q, k, v (and scores), all of one batch."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    p = weights(q, k, mask if mask is None or mask.dtype == bool else mask.astype(np.float64), causal, scale)
    out = p @ v
    g = slope(out.shape)
    dp = g @ v.swapaxes(-1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))
    return out, [ds @ k * scale, ds.swapaxes(-1, -2) @ q * scale, p.swapaxes(-1, -2) @ g, ds]


def slope(shape: tuple[int, ...]) -> np.ndarray:
    return np.cos(np.arange(math.prod(shape), dtype=np.float64)).reshape(shape)


def made(rng: np.random.Generator, batch: tuple[int, ...], rows: int, columns: int, depth: int, width: int,
         dtype: str) -> Arrays:
    shapes = ((rows, depth), (columns, depth), (columns, width))
    return tuple(rng.normal(size=batch + s).astype(dtype) for s in shapes)


def a_mask(rng: np.random.Generator, kind: str, batch: tuple[int, ...], rows: int, columns: int, dtype: str) -> Any:
    """bool: of every row; padding: alike for all rows and heads; number: alike for the batch; short: alike for rows."""
    whole = {"bool": (*batch, rows, columns), "padding": (*batch[:1], *(1,) * len(batch[1:]), 1, columns),
             "number": (rows, columns), "short": (*batch, 1, columns), "narrow": (rows, 1)}
    if kind == "":
        return None
    shape = whole[kind]
    return rng.random(shape) > 0.3 if kind in ("bool", "padding", "narrow") else rng.normal(size=shape).astype(dtype)


def value_and_slopes(q: Any, k: Any, v: Any, mask: Any, causal: bool, argnums: tuple[int, ...]) -> Any:
    def f(q: Any, k: Any, v: Any, mask: Any) -> Any:
        out = attention(q, k, v, mask, causal)
        return (out * slope(out.shape).astype(out.dtype)).sum(), out

    (_, out), slopes = tj.value_and_grad(f, argnums=argnums, has_aux=True)(q, k, v, mask)
    return out, slopes


compiled = tj.function(value_and_slopes)

SHAPES = [((2, 3), 5, 7, 4, 3), ((), 1, 9, 8, 8),
          ((2,), 40, 33, 16, 32), ((1, 2), 130, 70, 5, 65), ((2, 1), 3, 1, 1, 1),
          ((2,), 70, 300, 33, 16), ((1,), 70, 50, 8, 512), ((3,), 0, 4, 2, 2), ((2,), 4, 0, 2, 3), ((0,), 3, 4, 2, 2),
          ((1,), 3, 4, 0, 2)]


@pytest.mark.filterwarnings("ignore:value_and_slopes has been traced")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["", "bool", "padding", "number", "short", "narrow"])
def test_values_and_slopes_are_those_of_the_definition(kind: str, dtype: str, rng: np.random.Generator) -> None:
    tolerance = 3e-5 if dtype == "float32" else 1e-13
    chosen = SHAPES[dtype == "float32"::2] if kind else SHAPES  # every second one with masks
    for number, (batch, *sizes) in enumerate(chosen):
        q, k, v = made(rng, batch, *sizes, dtype)
        mask = a_mask(rng, kind, batch, *sizes[:2], dtype)
        added = mask is not None and mask.dtype != bool
        causal = number % 2 == (dtype == "float32")
        wanted, slopes = definition(q, k, v, mask, causal)
        if added:
            axes = tuple(range(slopes[3].ndim - mask.ndim))
            axes += tuple(a for a, n in enumerate(mask.shape, slopes[3].ndim - mask.ndim) if n == 1)
            slopes[3] = slopes[3].sum(axes).reshape(mask.shape)
        for run in (value_and_slopes, compiled):
            out, found = run(*map(tj.asarray, (q, k, v)), None if mask is None else tj.asarray(mask), causal,
                             (0, 1, 2, 3) if added else (0, 1, 2))
            assert out.dtype == dtype
            for x, y in zip((out, *found), (wanted, *slopes)):
                assert x.shape == y.shape
                np.testing.assert_allclose(x.numpy(), y, atol=tolerance * (1 + abs(y).max(initial=0)))


def test_the_gradient_of_a_mask_adds_up_all_that_share_it(rng: np.random.Generator) -> None:
    """As relative positions need it: by heads, by rows, or for all; in native code."""
    q, k, v = made(rng, (2, 3), 70, 150, 8, 5, "float64")
    for shape in ((3, 70, 150), (2, 1, 70, 150), (1, 3, 1, 150), (150,), (2, 3, 70, 150)):
        mask = rng.normal(size=shape)
        ds = definition(q, k, v, mask, True)[1][3]
        lead = tuple(range(4 - mask.ndim))
        wanted = ds.sum((*lead, *(a + len(lead) for a, n in enumerate(shape) if n == 1))).reshape(shape)
        for run in (value_and_slopes, compiled):
            _, (found,) = run(*map(tj.asarray, (q, k, v, mask)), True, (3,))
            np.testing.assert_allclose(found.numpy(), wanted, atol=1e-12)
    lowered = compiled.lower(*map(tj.asarray, (q, k, v, mask)), True, (3,))
    assert [s.name for s in lowered.plan.steps if isinstance(s, Attention)] == ["attention", "attention_mask_grad"]
    assert not any(isinstance(s, Call) for s in lowered.plan.steps)
    key = tj.random.key(1)

    def dropped(m: Any) -> Any:
        out = attention(q, k, v, m, dropout=0.3, dropout_key=key)
        return (out * slope(out.shape)).sum()

    m = tj.asarray(rng.normal(size=(3, 1, 150)))
    np.testing.assert_allclose(tj.function(tj.grad(dropped))(m).numpy(), tj.grad(dropped)(m).numpy(), atol=1e-12)


def test_leading_dims_broadcast(rng: np.random.Generator) -> None:
    q, k, v = (rng.normal(size=s) for s in ((2, 4, 5, 8), (1, 6, 8), (2, 1, 6, 3)))
    wanted, (dq, dk, dv, _) = definition(q, np.broadcast_to(k, (2, 4, 6, 8)), np.broadcast_to(v, (2, 4, 6, 3)))
    for run in (value_and_slopes, compiled):
        out, found = run(*map(tj.asarray, (q, k, v)), None, False, (0, 1, 2))
        for x, y in zip((out, *found), (wanted, dq, dk.sum((0, 1))[None], dv.sum(1, keepdims=True))):
            np.testing.assert_allclose(x.numpy(), y, atol=1e-12)


def test_scale_and_promotion(rng: np.random.Generator) -> None:
    q, k, v = made(rng, (), 4, 5, 3, 2, "float64")
    found = attention(q.astype("float32"), k, v, scale=0.7)
    assert found.dtype == "float64"
    np.testing.assert_allclose(found.numpy(), definition(q.astype("float32"), k, v, scale=0.7)[0], atol=1e-12)
    half = attention(*(x.astype("float16") for x in (q, k, v)))
    assert half.dtype == "float16"
    np.testing.assert_allclose(half.numpy(), definition(q, k, v)[0], atol=5e-3)
    assert attention([[1]], [[1]], [[3]]).dtype == "float32"


@pytest.mark.parametrize("run", [value_and_slopes, compiled])
def test_a_row_that_sees_nothing_gives_zeros_and_has_no_slope(run: Any, rng: np.random.Generator) -> None:
    q, k, v = made(rng, (2,), 40, 50, 4, 3, "float32")
    seen = np.ones((2, 40, 50), bool)
    seen[0, 7] = seen[1, 39] = False
    numbers = np.where(seen, 0, -np.inf).astype("float32")
    for mask in (seen, numbers):
        out, (dq, dk, dv) = run(*map(tj.asarray, (q, k, v)), tj.asarray(mask), False, (0, 1, 2))
        for x in (out, dq):
            assert not x.numpy()[0, 7].any() and not x.numpy()[1, 39].any()
        wanted, slopes = definition(q, k, v, seen)
        for x, y in zip((out, dq, dk, dv), (wanted, *slopes)):
            np.testing.assert_allclose(x.numpy(), y, atol=1e-5)


@pytest.mark.parametrize("run", [value_and_slopes, compiled])
def test_large_scores_do_not_overflow(run: Any, rng: np.random.Generator) -> None:
    q, k, v = made(rng, (), 33, 200, 8, 4, "float32")
    q *= 1000
    wanted, slopes = definition(q, k, v)
    out, found = run(*map(tj.asarray, (q, k, v)), None, False, (0, 1, 2))
    np.testing.assert_allclose(out.numpy(), wanted, atol=1e-3)
    np.testing.assert_allclose(found[2].numpy(), slopes[2], atol=1e-3)
    assert all(np.isfinite(x.numpy()).all() for x in found)


@pytest.mark.parametrize("causal", [False, True])
def test_derivatives_to_second_order(causal: bool, rng: np.random.Generator) -> None:
    q, k, v = made(rng, (2,), 4, 5, 3, 2, "float64")
    numbers, seen = rng.normal(size=(4, 5)), rng.random((2, 4, 5)) > 0.3
    seen[0, 1] = False
    tj.check_grads(lambda q, k, v, m: attention(q, k, v, m, causal), (q, k, v, numbers), order=2)
    tj.check_grads(lambda q, k, v: attention(q, k, v, seen, causal), (q, k, v), order=2)
    if causal:
        tj.check_grads(tj.function(lambda q, k, v: attention(q, k, v, seen)), (q, k, v), order=2, modes=("rev",))


def test_third_derivative(rng: np.random.Generator) -> None:
    q, k, v = made(rng, (), 2, 3, 2, 1, "float64")
    tj.check_grads(lambda q: attention(q, k, v).sum(), (q,), order=3)


# -- what is compiled --------------------------------------------------------------------------------------------------
def test_heads_are_split_in_place(rng: np.random.Generator) -> None:
    """Reshapes and transposes around attention are strides of it."""

    @tj.function
    def f(x: Any) -> Any:
        heads = tj.permute_dims(tj.reshape(x, (2, 40, 3, 4, 8)), (2, 0, 3, 1, 4))
        return attention(heads[0], heads[1], heads[2])

    x = rng.normal(size=(2, 40, 96))
    q, k, v = x.reshape(2, 40, 3, 4, 8).transpose(2, 0, 3, 1, 4)
    np.testing.assert_allclose(f(tj.asarray(x)).numpy(), definition(q, k, v)[0], atol=1e-12)
    assert [type(s) for s in f.lower(tj.asarray(x)).plan.steps] == [Attention]


def test_inputs_in_any_layout(rng: np.random.Generator) -> None:
    q, k, v = made(rng, (2, 3), 20, 30, 4, 5, "float64")
    mask = rng.normal(size=(30, 20)).T
    wanted, slopes = definition(q, k, v, mask)
    layouts = [np.asfortranarray, lambda x: np.flip(np.flip(x).copy()), lambda x: np.repeat(x, 2, -1)[..., ::2]]
    for change in layouts:
        args = [tj.from_dlpack(change(x)) if change is layouts[2] else tj.asarray(change(x)) for x in (q, k, v)]
        out, found = compiled(*args, tj.asarray(mask), False, (0, 1, 2))
        for x, y in zip((out, *found), (wanted, *slopes)):
            np.testing.assert_allclose(x.numpy(), y, atol=1e-12)


def test_long_queries_go_through_numpy(rng: np.random.Generator) -> None:
    q, k, v = map(tj.asarray, made(rng, (), 4, 5, 600, 2, "float64"))
    f = tj.function(lambda q, k, v: attention(q, k, v))
    np.testing.assert_allclose(f(q, k, v).numpy(), definition(q.numpy(), k.numpy(), v.numpy())[0], atol=1e-12)
    assert [type(s) for s in f.lower(q, k, v).plan.steps] == [Call]


def test_lengths_may_change_without_a_new_trace(rng: np.random.Generator) -> None:
    f = tj.function(lambda q, k, v: attention(q, k, v))
    for length in (5, 6, 40, 200, 33):
        q, k, v = made(rng, (2,), length, length + 1, 4, 4, "float64")
        np.testing.assert_allclose(f(*map(tj.asarray, (q, k, v))).numpy(), definition(q, k, v)[0], atol=1e-12)
    assert f.trace_count <= 2


def test_results_do_not_depend_on_threads(rng: np.random.Generator) -> None:
    before = tj.num_threads()
    try:
        for batch, length in (((1,), 600), ((3, 2), 150)):
            args = [*map(tj.asarray, made(rng, batch, length, length, 16, 16, "float32"))]
            found = []
            for threads in (1, 2, 3):
                tj.set_num_threads(threads)
                out, slopes = compiled(*args, None, True, (0, 1, 2))
                found.append([x.numpy().tobytes() for x in (out, *slopes)])
            assert found[0] == found[1] == found[2]
    finally:
        tj.set_num_threads(before)


# -- memory ------------------------------------------------------------------------------------------------------------
def test_scores_are_never_in_memory_when_compiled(rng: np.random.Generator) -> None:
    """4096 by 16384 scores would take 256 MiB."""
    q, k, v = map(tj.asarray, made(rng, (), 4096, 16384, 4, 4, "float32"))
    v = tj.ones_like(v)  # so that the result does not depend on the weights, whose sum is 1

    @tj.function
    def slopes(q: Any, k: Any, v: Any) -> Any:
        return tj.grad(lambda q, k, v: attention(q, k, v).sum(), argnums=(0, 1, 2))(q, k, v)

    @tj.function
    def dropped(q: Any, k: Any, v: Any) -> Any:
        return tj.grad(lambda q, k, v: attention(q, k, v, dropout=0.1).sum(), argnums=(0, 1, 2))(q, k, v)

    assert dropped.lower(q, k, v).built.program.storage.peak_bytes < 2 << 20
    dq, dk, dv = slopes(q, k, v)
    layout = slopes.lower(q, k, v).built.program
    assert layout.storage.peak_bytes < 2 << 20
    assert layout._layout.arena_bytes < 4 << 20
    np.testing.assert_allclose(dv.numpy().sum(0), 4096.0, rtol=1e-4)
    assert abs(dq.numpy()).max() < 1e-4 and abs(dk.numpy()).max() < 1e-4


def test_scores_are_never_in_memory_when_eager(rng: np.random.Generator) -> None:
    """400 by 16000 scores would take 24 MiB."""
    q, k, v = map(tj.asarray, made(rng, (), 400, 16000, 4, 4, "float32"))
    tracemalloc.start()
    try:
        tj.grad(lambda q, k, v: attention(q, k, v).sum(), argnums=(0, 1, 2))(q, k, v)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


# -- dropout -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dropout_drops_alike_eager_and_compiled_and_in_the_gradient(dtype: str, rng: np.random.Generator) -> None:
    key = tj.random.key(3)

    def slopes(q: Any, k: Any, v: Any, w: Any, mask: Any, causal: bool) -> Any:
        def f(q: Any, k: Any, v: Any) -> Any:
            return (attention(q, k, v, mask, causal, dropout=0.3, dropout_key=key) * w).sum()

        return tj.value_and_grad(f, argnums=(0, 1, 2))(q, k, v)

    compiled = tj.function(slopes)
    for batch, rows, columns, masked, causal in (((2,), 5, 7, False, False), ((2, 3), 70, 130, True, False),
                                                 ((1,), 40, 301, False, True), ((), 33, 1, True, True)):
        q, k, v = map(tj.asarray, made(rng, batch, rows, columns, 8, 5, dtype))
        w = tj.asarray(rng.normal(size=(*batch, rows, 5)).astype(dtype))
        mask = tj.asarray(rng.random((*batch, rows, columns)) > 0.2) if masked else None
        (x, found), (y, wanted) = compiled(q, k, v, w, mask, causal), slopes(q, k, v, w, mask, causal)
        for a, b in zip((x, *found), (y, *wanted)):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5 if dtype == "float32" else 1e-12, atol=2e-5)
    lowered = compiled.lower(q, k, v, w, mask, causal)
    assert not any(isinstance(s, Call) for s in lowered.plan.steps)


def test_derivatives_with_dropout_to_second_order(rng: np.random.Generator) -> None:
    q, k, v = made(rng, (2,), 3, 5, 2, 2, "float64")
    numbers, key = rng.normal(size=(3, 5)), tj.random.key(3)
    tj.check_grads(lambda q, k, v, m: attention(q, k, v, m, dropout=0.4, dropout_key=key), (q, k, v, numbers), order=2)


def test_everything_or_nothing_dropped(rng: np.random.Generator) -> None:
    q, k, v = map(tj.asarray, made(rng, (2,), 33, 50, 4, 3, "float32"))
    for run in (value_and_slopes_dropped, tj.function(value_and_slopes_dropped)):
        assert not any(x.numpy().any() for x in run(q, k, v, 1.0))
        for x, y in zip(run(q, k, v, 0.0), run(q, k, v, 1e-9)):
            np.testing.assert_allclose(x.numpy(), y.numpy(), atol=1e-5)


def value_and_slopes_dropped(q: Any, k: Any, v: Any, rate: float) -> Any:
    def f(q: Any, k: Any, v: Any) -> Any:
        out = attention(q, k, v, dropout=rate)
        return (out * slope(out.shape).astype(out.dtype)).sum(), out

    (_, out), slopes = tj.value_and_grad(f, argnums=(0, 1, 2), has_aux=True)(q, k, v)
    return (out, *slopes)


def test_dropout_of_weights(rng: np.random.Generator) -> None:
    q, k, v = map(tj.asarray, made(rng, (2,), 30, 40, 4, 40, "float64"))
    v = tj.eye(40, dtype="float64") + 0 * v  # so that the result is the weights

    def f(q: Any) -> Any:
        return attention(q, k, v, dropout=0.25)

    tj.random.seed(3)
    eager = f(q).numpy()
    p = weights(q.numpy(), k.numpy(), None, False, 0.5)
    kept = eager != 0
    assert 0.70 < kept.mean() < 0.80
    np.testing.assert_allclose(eager, np.where(kept, p / 0.75, 0), atol=1e-12)
    tj.random.seed(3)
    g = tj.function(f)
    np.testing.assert_allclose(g(q).numpy(), eager, atol=1e-12)
    assert (g(q).numpy() != eager).any()


# -- errors ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("change", "error", "words"), [
    ({"query": np.zeros(3)}, ValueError, r"\(3,\).*\(\.\.\., L, D\)"),
    ({"key": np.zeros((5, 4))}, ValueError, r"\(4, 3\).*\(5, 4\)"),
    ({"value": np.zeros((6, 3))}, ValueError, r"\(6, 3\)"),
    ({"query": np.zeros((2, 4, 3)), "key": np.zeros((3, 5, 3))}, ValueError, "do not broadcast"),
    ({"mask": np.zeros((4, 5), int)}, TypeError, "bool .* or float"),
    ({"mask": np.zeros((3, 5), bool)}, ValueError, r"\(3, 5\) does not broadcast .*\(4, 5\)"),
    ({"mask": np.zeros((2, 4, 5), bool)}, ValueError, r"\(2, 4, 5\)"),
    ({"query": np.zeros((4, 3), complex)}, TypeError, "complex"),
    ({"dropout": 1.5}, ValueError, r"dropout must be in \[0, 1\], got 1.5"),
])
def test_errors(change: dict[str, Any], error: type[Exception], words: str) -> None:
    args = {"query": np.zeros((4, 3)), "key": np.zeros((5, 3)), "value": np.zeros((5, 2)), **change}
    with pytest.raises(error, match=words):
        attention(**args)
    with pytest.raises(error, match=words):
        tj.function(lambda: attention(**args))()


def test_reports_name_it(tmp_path: Path) -> None:
    f, q = tj.function(lambda q: attention(q, q, q)), tj.ones((2, 5, 4))
    f(q)
    assert "attention: scores block by block in the cache" in str(tj.explain(f))
    page = f.report(tmp_path / "report.html", q)
    assert "5 queries and 5 keys, 2 times" in Path(page).read_text()
