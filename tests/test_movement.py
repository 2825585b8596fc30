"""Shape functions and movement primitives against NumPy, in each way that ops run; index maps against their meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ways import WAYS, same, traced

import tracejit as tj
from tracejit.ir import Op, Type
from tracejit.lower.index import Dim, Index, Quotient, Remainder, dim
from tracejit.ops import movement as mv
from tracejit.tensor import Tensor

X = np.arange(24, dtype="float32").reshape(2, 3, 4)
Y = np.arange(12, dtype="int16").reshape(3, 4)
V = np.arange(5.0)

# name: (function over a module `m`, arrays). `m` is np or tj.
CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "reshape": (lambda m, x: m.reshape(x, (4, -1)), (X,)),
    "reshape to 1": (lambda m, x: m.reshape(x, -1), (X,)),
    "reshape method": (lambda m, x: x.reshape(6, 4).reshape((2, 12)), (X,)),
    "reshape empty": (lambda m, x: m.reshape(x, (0, 5)), (X[:0],)),
    "transpose": (lambda m, x: m.transpose(x), (X,)),
    "transpose axes": (lambda m, x: m.transpose(x, (1, -1, 0)), (X,)),
    "transpose method": (lambda m, x: [x.transpose(), x.transpose(2, 0, 1), x.transpose((1, 0, 2)), x.T], (X,)),
    "mT": (lambda m, x: [x.mT, m.matrix_transpose(x)], (X,)),
    "permute_dims": (lambda m, x: m.permute_dims(x, (2, 0, 1)), (X,)),
    "moveaxis": (lambda m, x: [m.moveaxis(x, 0, -1), m.moveaxis(x, (0, 1), (2, 0)), m.moveaxis(x, -1, 0)], (X,)),
    "swapaxes": (lambda m, x: [m.swapaxes(x, 0, 2), x.swapaxes(-1, 1)], (X,)),
    "expand_dims": (lambda m, x: [m.expand_dims(x, 1), m.expand_dims(x, (0, -1)), m.expand_dims(x, -1)], (X,)),
    "squeeze": (lambda m, x: [m.squeeze(x[:1]), m.squeeze(x[:, :1], 1), x[:1, :1].squeeze((0, 1))], (X,)),
    "broadcast_to": (lambda m, x: m.broadcast_to(x[:, :1], (5, 2, 3, 4)), (X,)),
    "broadcast_arrays": (lambda m, x, y: m.broadcast_arrays(x, y), (X, Y)),
    "ravel": (lambda m, x: [m.ravel(x), x.ravel(), x.flatten()], (X,)),
    "atleast": (lambda m, x: [m.atleast_1d(x[0, 0, 0]), m.atleast_2d(x[0, 0]), m.atleast_3d(x[0]),
                              m.atleast_3d(x[0, 0])], (X,)),
    "concat": (lambda m, x: [m.concat([x, x[:1]]), m.concat([x, x], axis=-1), m.concatenate((x, x), axis=None)], (X,)),
    "concat promotes": (lambda m, y, x: m.concat([y, y.astype("int64")], axis=1), (Y, X)),
    "stack": (lambda m, x: [m.stack([x, x]), m.stack([x, x + 1], axis=-1), m.stack([x, x, x], axis=1)], (X,)),
    "unstack": (lambda m, x: m.unstack(x, axis=1), (X,)),
    "split": (lambda m, x: [*m.split(x, 2, axis=2), *m.split(x, [1, 2], axis=1), *m.split(x, [1, 7], axis=1)], (X,)),
    "array_split": (lambda m, v: [*m.array_split(v, 3), *m.array_split(v, 7), *m.array_split(v, [-2])], (V,)),
    "hstack": (lambda m, y, v: [m.hstack([y, y]), m.hstack([v, v, v[:1]])], (Y, V)),
    "vstack": (lambda m, y, v: [m.vstack([y, y]), m.vstack([v, v])], (Y, V)),
    "dstack": (lambda m, y, v: [m.dstack([y, y]), m.dstack([v, v])], (Y, V)),
    "column_stack": (lambda m, v: m.column_stack([v, v, m.stack([v, v], axis=1)]), (V,)),
    "tile": (lambda m, y: [m.tile(y, 2), m.tile(y, (2, 1, 3)), m.tile(y[0], (3, 1)), m.tile(y, 0)], (Y,)),
    "repeat": (lambda m, y: [m.repeat(y, 3), m.repeat(y, 2, axis=0), m.repeat(y, [0, 2, 1], axis=0),
                             y.repeat(2)], (Y,)),
    "repeat many": (lambda m, v: m.repeat(v, [1, 0, 3, 2, 4]), (V,)),
    "roll": (lambda m, x: [m.roll(x, 5), m.roll(x, -1, axis=1), m.roll(x, (1, 2), axis=(0, 2)),
                           m.roll(x, 1, axis=(0, 1))], (X,)),
    "flip": (lambda m, x: [m.flip(x), m.flip(x, 1), m.flip(x, (0, -1)), m.flipud(x), m.fliplr(x)], (X,)),
    "rot90": (lambda m, x: [m.rot90(x, k, axes) for k in range(-1, 5) for axes in ((0, 1), (2, 0))], (X,)),
    "pad": (lambda m, y: [m.pad(y, 1), m.pad(y, (1, 2), constant_values=7), m.pad(y, ((0, 1), (2, 0)))], (Y,)),
    "pad values": (lambda m, y: [m.pad(y, 2, constant_values=(3, 4)),
                                 m.pad(y, 1, constant_values=((1, 2), (3, 4)))], (Y,)),
    "pad modes": (lambda m, y: [m.pad(y, p, mode=mode) for mode in ("edge", "reflect", "symmetric", "wrap")
                                for p in (1, ((2, 1), (0, 3)), 5)], (Y,)),
    "diag": (lambda m, v, y: [m.diag(v), m.diag(v, 2), m.diag(v, -1), m.diag(y), m.diag(y, -1)], (V, Y)),
    "diagonal": (lambda m, x, y: [m.diagonal(x), m.diagonal(x, 1, 1, 2), m.diagonal(y, -1), m.diagonal(y, 9),
                                  y.diagonal()], (X, Y)),
    "trace": (lambda m, x: [m.trace(x), m.trace(x, 1, 1, 2)], (X,)),
    "tril": (lambda m, x, y: [m.tril(x), m.tril(y, -1), m.triu(x, 1), m.triu(y, -1), m.tril(y, 2)], (X, Y)),
    "meshgrid": (lambda m, v: [*m.meshgrid(v, v[:2]), *m.meshgrid(v, v[:2], indexing="ij"),
                               *m.meshgrid(v, v[1:], sparse=True), *m.meshgrid(v, v[:2], v[:3])], (V,)),
    "take": (lambda m, x: [m.take(x, np.array([[1, -1]]), axis=1), m.take(x, 3), x.take([5, 0])], (X,)),
    "take_along_axis": (lambda m, y: m.take_along_axis(y, np.array([[0], [-1], [2]]), axis=1), (Y,)),
    "sort": (lambda m, y: [m.sort(y[::-1], axis=0), m.sort(-y), m.sort(-y, axis=None)], (Y,)),
    "argsort": (lambda m, y: [m.argsort(y % 3, axis=0, stable=True), m.argsort(y % 3, stable=True),
                              m.argsort(-y, axis=None)], (Y,)),
    "searchsorted": (lambda m, v: [m.searchsorted(v, v * 1.5), m.searchsorted(v, v, side="right")], (V,)),
    "isin": (lambda m, y: m.isin(y, np.array([3, 5, 100])), (Y,)),
    "copy": (lambda m, x: [m.copy(x), m.zeros_like(x), m.ones_like(x), m.full_like(x, 2)], (X,)),
    "put_along_axis": (lambda m, y: _put_along_axis(m, y), (Y,)),
}


def _put_along_axis(m: Any, y: Any) -> Any:
    y = y.copy()
    np.put_along_axis(y, np.array([[1], [0], [3]]), -1, 1)
    return y


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", WAYS)
def test_as_numpy(way: Callable[..., Any], name: str) -> None:
    f, xs = CASES[name]
    if name == "trace":
        same(way(lambda *ts: f(tj, *ts), *xs), f(np, *xs))
        return
    wanted = [a.copy() for a in r] if isinstance(r := f(np, *(x.copy() for x in xs)), (list, tuple)) else r
    same(way(lambda *ts: f(tj, *ts), *xs), wanted)


@pytest.mark.parametrize("name", CASES)
def test_numpys_own_functions_dispatch(name: str) -> None:
    """np.f(tensor) is tj.f(tensor), traced too."""
    f, xs = CASES[name]
    same(traced(lambda *ts: f(np, *ts), *xs), f(np, *(x.copy() for x in xs)))


@pytest.mark.parametrize(("f", "message"), [
    (lambda t: tj.reshape(t, (5, 5)), "24 elements of shape .2, 3, 4. do not fit shape .5, 5."),
    (lambda t: tj.reshape(t, (-1, -1)), "more than one unknown"),
    (lambda t: tj.transpose(t, (0, 1)), "not a permutation"),
    (lambda t: tj.broadcast_to(t, (3, 4, 5)), "does not broadcast to"),
    (lambda t: tj.concat([t, t[0]]), "concat: shapes"),
    (lambda t: tj.stack([t, t[0]]), "stack: shapes"),
    (lambda t: tj.split(t, 2, axis=1), "does not divide"),
    (lambda t: tj.squeeze(t, 0), "not all of extent 1"),
    (lambda t: tj.roll(t, (1, 2), (0, 1, 2)), "as many entries"),
    (lambda t: tj.pad(t, -1), "non-negative"),
    (lambda t: tj.pad(t, 1, "mirror"), "mode must be"),
    (lambda t: tj.diag(t), "vector or a matrix"),
    (lambda t: tj.flip(t, 3), "axis 3 is out of bounds"),
    (lambda t: tj.moveaxis(t, (0, 1), 0), "as many different axes"),
])
@pytest.mark.parametrize("way", WAYS)
def test_errors_name_the_function_and_the_shapes(way: Callable[..., Any], f: Callable[..., Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        way(f, X)


# -- index maps --------------------------------------------------------------------------------------------------------
def value_of(index: Index, at: tuple[int, ...]) -> int:
    total = index.const
    for atom, coef in index.terms:
        if isinstance(atom, Dim):
            total += coef * at[atom.number]
        elif isinstance(atom, Quotient):
            total += coef * (value_of(atom.index, at) // atom.by)
        else:
            assert isinstance(atom, Remainder)
            total += coef * (value_of(atom.index, at) % atom.by)
    return total


def shown(op: Op, xs: tuple[np.ndarray, ...], **attrs: Any) -> np.ndarray:
    """A movement op run by its index map: for each element, the one part whose guards hold."""
    types = tuple(Type(x.shape, x.dtype) for x in xs)
    found = op.infer(*types, **attrs)
    assert isinstance(found, Type)
    out = np.full(found.shape, attrs.get("value", 0), found.dtype)
    coords = [dim(k, n) for k, n in enumerate(found.shape)]
    parts = op.index(coords, types, **attrs) if out.size else []  # type: ignore[misc]
    for at in np.ndindex(found.shape):
        holding = [p for p in parts if all(g.low <= value_of(g.index, at) < g.high for g in p.guards)]
        assert len(holding) == 1 or (not holding and "value" in attrs)
        for part in holding:
            where = tuple(value_of(c, at) for c in part.coords)
            assert all(0 <= c < n for c, n in zip(where, xs[part.input].shape))
            out[at] = xs[part.input][where]
    return out


@st.composite
def windows(draw: Any) -> tuple[tuple[int, ...], ...]:
    """shape, starts, sizes, steps of a window inside the shape."""
    shape, starts, sizes, steps = [], [], [], []
    for _ in range(draw(st.integers(0, 3))):
        step = draw(st.sampled_from([1, 2, 3, -1, -2]))
        size = draw(st.integers(0, 3))
        before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        span = max(size - 1, 0) * abs(step) + 1
        shape.append(before + span + after)
        starts.append(before if step > 0 else before + span - 1)
        sizes.append(size)
        steps.append(step)
    return tuple(shape), tuple(starts), tuple(sizes), tuple(steps)


@given(windows())
def test_slice_and_embed_show_what_they_mean(found: tuple[tuple[int, ...], ...]) -> None:
    shape, starts, sizes, steps = found
    x = np.arange(1, np.prod(shape, dtype=int) + 1).reshape(shape)
    attrs = {"starts": starts, "sizes": sizes, "steps": steps}
    part = mv.SLICE.eager(x, **attrs)
    np.testing.assert_array_equal(shown(mv.SLICE, (x,), **attrs), part)
    attrs = {"shape": shape, "starts": starts, "steps": steps, "value": -1}
    whole = mv.EMBED.eager(part, **attrs)
    np.testing.assert_array_equal(shown(mv.EMBED, (part,), **attrs), whole)
    np.testing.assert_array_equal(mv.SLICE.eager(whole, starts=starts, sizes=sizes, steps=steps), part)
    assert (whole == -1).sum() == x.size - part.size


@given(st.lists(st.sampled_from([1, 2, 3, 4, 6]), max_size=3).map(tuple), st.randoms())
def test_reshape_transpose_broadcast_concat_show_what_they_mean(shape: tuple[int, ...], random: Any) -> None:
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    axes = list(range(x.ndim))
    random.shuffle(axes)
    np.testing.assert_array_equal(shown(mv.TRANSPOSE, (x,), axes=tuple(axes)), x.transpose(axes))
    targets = [(x.size,), (1, x.size), shape[::-1]] + [(x.size // k, k) for k in (2, 3, 4) if x.size % k == 0]
    for target in targets:
        np.testing.assert_array_equal(shown(mv.RESHAPE, (x,), shape=target), x.reshape(target))
    wide = (2, *(3 if n == 1 else n for n in shape))
    np.testing.assert_array_equal(shown(mv.BROADCAST, (x,), shape=wide), np.broadcast_to(x, wide))
    for axis in range(x.ndim):
        xs = (x, np.flip(x, axis), x)
        np.testing.assert_array_equal(shown(mv.CONCAT, xs, axis=axis), np.concatenate(xs, axis))


# -- gradients: each movement op is linear, so <g, f(x)> = <f^T(g), x> -------------------------------------------------
LINEAR = ["reshape", "transpose axes", "moveaxis", "expand_dims", "broadcast_to", "concat", "stack", "split", "tile",
          "repeat", "repeat many", "roll", "flip", "rot90", "pad", "pad modes", "diag", "diagonal", "trace", "tril",
          "take", "take_along_axis", "meshgrid"]


@pytest.mark.parametrize("name", LINEAR)
def test_gradient_is_the_transpose(name: str) -> None:
    f, given_arrays = CASES[name]
    xs = [x.astype("float64") for x in given_arrays]
    rng = np.random.default_rng(1)

    def outputs(m: Any, *ts: Any) -> list[Any]:
        out = f(m, *ts)
        return list(out) if isinstance(out, (list, tuple)) else [out]

    zero = outputs(np, *(np.zeros_like(x) for x in xs))
    gs = [rng.normal(size=np.shape(y)) for y in zero]

    def loss(*ts: Tensor) -> Tensor:
        return sum((g * y).sum() for g, y in zip(gs, outputs(tj, *ts)))

    grads = tj.grad(loss, argnums=tuple(range(len(xs))))(*map(tj.asarray, xs))
    wanted = sum((g * (y - z)).sum() for g, y, z in zip(gs, outputs(np, *xs), zero))
    found = sum((g.numpy() * x).sum() for g, x in zip(grads, xs))
    assert found == pytest.approx(wanted, rel=1e-12, abs=1e-9)
    jvp_out = tj.jvp(loss, tuple(map(tj.asarray, xs)), tuple(map(tj.asarray, xs)))[1]
    assert float(jvp_out) == pytest.approx(wanted, rel=1e-12, abs=1e-9)


def test_sort_gradient_splits_ties_evenly() -> None:
    x = tj.asarray([[2.0, 1.0, 2.0], [3.0, 3.0, 3.0]])
    weights = np.float32([[1, 10, 100], [1, 2, 6]])
    grad = tj.grad(lambda t: (tj.sort(t) * weights).sum())(x)
    np.testing.assert_allclose(grad.numpy(), [[55, 1, 55], [3, 3, 3]])


def test_top_k_and_descending_order() -> None:
    x = tj.asarray([3.0, 1.0, 3.0, 2.0])
    values, places = tj.top_k(x, 3)
    assert values.tolist() == [3, 3, 2] and places.tolist() == [0, 2, 3]
    assert tj.argsort(x, descending=True).tolist() == [0, 2, 3, 1]
    assert tj.sort(x, descending=True).tolist() == [3, 3, 2, 1]
    assert tj.grad(lambda t: tj.top_k(t, 2)[0].sum())(x).tolist() == [1, 0, 1, 0]


def test_nonzero_needs_values() -> None:
    assert [i.tolist() for i in tj.nonzero([[0, 1], [2, 0]])] == [[0, 1], [1, 0]]
    assert tj.argwhere([0, 3]).tolist() == [[1]] and tj.flatnonzero([0, 3]).tolist() == [1]
    with pytest.raises(tj.TracerError, match="nonzero: the shape of the result depends"):
        traced(lambda t: tj.nonzero(t), X)


def test_selection_by_function() -> None:
    x = tj.asarray(X)
    same(tj.gather(x, [1, 0]).numpy(), X[[1, 0]])
    same(tj.gather(x, [[2, 0], [1, 1]], axis=1, batch_dims=1).numpy(), np.stack([X[0][[2, 0]], X[1][[1, 1]]]))
    same(tj.gather_nd(x, [[0, 1], [1, 2]]).numpy(), X[[0, 1], [1, 2]])
    same(tj.scatter([0, 0, 0], [0, 0], [1, 2], mode="add").numpy(), np.int32([3, 0, 0]))
    same(tj.scatter(x, [1], 7.0, axis=2).numpy(), np.where(np.arange(4) == 1, np.float32(7), X))
    same(tj.scatter_nd([[0], [2], [0]], [1.0, 2.0, 3.0], (4,)).numpy(), np.float32([4, 0, 2, 0]))
    same(tj.one_hot([1, 5, 0], 3).numpy(), np.float32([[0, 1, 0], [0, 0, 0], [1, 0, 0]]))
    same(tj.one_hot([1, 0], 2, "int8", axis=0).numpy(), np.int8([[0, 1], [1, 0]]))


NOTHING_TO_DO = {
    "reshape": lambda t: tj.reshape(t, t.shape), "transpose": lambda t: tj.transpose(t, (0, 1)),
    "astype": lambda t: t.astype(t.dtype), "cast": lambda t: tj.cast(t, t.dtype), "slice": lambda t: t[:],
    "dots": lambda t: t[...], "squeeze": lambda t: t.squeeze(), "broadcast_to": lambda t: tj.broadcast_to(t, t.shape),
    "broadcast_arrays": lambda t: tj.broadcast_arrays(t, t)[0], "concat": lambda t: tj.concat([t]),
    "roll": lambda t: tj.roll(t, 0, 0), "flip": lambda t: tj.flip(t, ()), "rot90": lambda t: tj.rot90(t, 4),
    "pad": lambda t: tj.pad(t, 0, "edge"), "pad constant": lambda t: tj.pad(t, 0), "tile": lambda t: tj.tile(t, 1),
    "repeat": lambda t: tj.repeat(t, 1, axis=0), "atleast_2d": lambda t: tj.atleast_2d(t),
    "moveaxis": lambda t: tj.moveaxis(t, 0, 0), "swapaxes": lambda t: t.swapaxes(0, 0),
    "split": lambda t: tj.split(t, 1)[0], "copy": lambda t: t.copy(), "at": lambda t: t.at[:].get(),
    "vstack": lambda t: tj.vstack([t]), "expand_dims": lambda t: tj.expand_dims(t, ()), "clip": lambda t: tj.clip(t),
    "round": lambda t: tj.round(t), "positive": lambda t: +t, "real": lambda t: t.real, "conj": lambda t: t.conj(),
    "floor": lambda t: tj.floor(t), "nan_to_num": lambda t: tj.nan_to_num(t), "sort": lambda t: tj.sort(t, axis=1),
    "diff": lambda t: tj.diff(t, 0), "sum": lambda t: tj.sum(t, axis=()), "trunc": lambda t: tj.trunc(t),
    "einsum": lambda t: tj.einsum("ij->ij", t), "asarray copy": lambda t: tj.asarray(t, copy=True),
    "stop_gradient": lambda t: tj.stop_gradient(t),
}


@pytest.mark.parametrize("name", NOTHING_TO_DO)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_a_result_is_never_its_argument(way: Callable[..., Any], dtype: str, name: str) -> None:
    """A function with nothing to do still gives a value of its own: a write to one is not seen in the other."""
    def f(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        t = t * 2
        u = NOTHING_TO_DO[name](t)
        before = u.copy()
        u[0] = -1
        return t, u, before

    x = np.arange(4, dtype=dtype).reshape(2, 2)
    t, u, before = way(f, x)
    same(t, x * 2)
    same(before, x * 2)
    assert (u[0] == -1).all() and (u[1] == t[1]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "complex64"])
def test_transposes_of_odd_sizes_beside_other_reads(dtype: str) -> None:
    def both(x: Any, y: Any) -> Any:
        return x.T + y, x.T[::-1] - y[:, ::-1]

    f = tj.function(both)
    for shape in ((0, 3), (1, 1), (8, 300), (65, 130), (64, 64), (129, 33)):
        r = np.random.default_rng(0)
        x, y = (r.integers(-20, 20, s).astype(dtype) for s in (shape, shape[::-1]))
        for got, wanted in zip(f(x, y), both(x, y), strict=True):
            np.testing.assert_array_equal(np.asarray(got), wanted)
