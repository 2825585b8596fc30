"""Scaled dot-product attention whose score matrix is never in memory, forward or backward.

In: queries (..., L, D), keys (..., S, D), values (..., S, Dv), an optional mask. Out: softmax(q k' scale) v, of shape
(..., L, Dv).

    attention(q, k, v, *rest)                          -> (result, lse): the result, and the logarithm of each row's sum
                                                          of exponentials (..., L)
    attention_grad(q, k, v, lse, delta, g, *rest)      -> (dq, dk, dv), from scores worked out again: p = exp(s - lse),
                                                          ds = p (g v' - delta), where delta is the sum of g * result
    attention_mask_grad(q, k, v, lse, delta, g, *rest) -> the gradient of an additive mask: ds

`rest` is a mask, if there is one; then, if weights are dropped, a key and the number of a draw. What is dropped is
worked out from these block by block, and again for the gradient: w = p where random bits are below `threshold`, over
the share of these, else 0; the result is w v, and g v' above is dropped alike. (A threshold of 2**32 drops nothing.)

All go by blocks of rows. A row with nothing to attend to has an lse of +inf, so that all its p are 0. The derivative of
`attention_grad` is ordinary ops on whole matrices, so every order exists; only the first is frugal.

Rabe, Staats 2021; Dao 2023 (FlashAttention-2). Read next: `runtime/attention.py` (native code).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.ir import Type
from tracejit.ops import core, random
from tracejit.ops import elementwise as ew
from tracejit.ops.core import broadcast_shape, cast, convert, full, primitive, real_floating, strong
from tracejit.ops.linalg import product, swapped
from tracejit.ops.movement import along, iota, reshaped
from tracejit.ops.reduction import sum as total
from tracejit.ops.special import exp
from tracejit.tensor import Tensor, apply

BLOCK = 1 << 18  # scores at once, when NumPy works them out

Arrays = tuple[np.ndarray, ...]


# -- types -------------------------------------------------------------------------------------------------------------
def drops(threshold: int) -> bool:
    return threshold <= random.MASK


def _factor(threshold: int) -> float:
    """What remains grows by so much."""
    return 2**32 / threshold if threshold else 0.0


def _apart(rest: Sequence[Any], threshold: int) -> tuple[Any, Any]:
    """The mask, if any, and the key and number of a draw, if any."""
    many = len(rest) - 2 * drops(threshold)
    return rest[:many], rest[many:]


def _check(name: str, q: Type, k: Type, v: Type, rest: Sequence[Type], threshold: int) -> None:
    if not q.dtype == k.dtype == v.dtype or q.dtype not in (dtypes.float32, dtypes.float64):
        raise TypeError(f"{name}: dtypes {q.dtype}, {k.dtype} and {v.dtype}, wanted float32 or float64 throughout")
    batch = q.shape[:-2]
    if q.ndim < 2 or k.shape[:-2] != batch or v.shape[:-2] != batch or not q.ndim == k.ndim == v.ndim:
        raise ValueError(f"{name}: shapes {q.shape}, {k.shape} and {v.shape} are not stacks of matrices alike")
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(f"{name}: shapes {q.shape}, {k.shape} and {v.shape} do not match")
    mask, draw = _apart(rest, threshold)
    if len(mask) > 1 or (draw and list(draw) != [Type((), dtypes.uint64)] * 2):
        raise TypeError(f"{name}: after its matrices it takes a mask, and a key and a draw if it drops; got {rest}")
    for m in mask:
        whole = (*batch, q.shape[-2], k.shape[-2])
        if m.ndim != len(whole) or any(a not in (1, b) for a, b in zip(m.shape, whole)) or m.shape[-1] != whole[-1]:
            raise ValueError(f"{name}: a mask of shape {m.shape} for scores of shape {whole}")
        if m.dtype not in (dtypes.bool_, q.dtype):
            raise TypeError(f"{name}: a mask of {m.dtype} for scores of {q.dtype}")


def _infer(q: Type, k: Type, v: Type, *rest: Type, causal: bool, scale: float, threshold: int) -> tuple[Type, Type]:
    _check("attention", q, k, v, rest, threshold)
    return Type((*q.shape[:-1], v.shape[-1]), q.dtype), Type(q.shape[:-1], q.dtype)


def _check_grad(name: str, args: Sequence[Type], threshold: int) -> None:
    q, k, v, lse, delta, g, *rest = args
    _check(name, q, k, v, rest, threshold)
    if not lse == delta == Type(q.shape[:-1], q.dtype) or g != Type((*q.shape[:-1], v.shape[-1]), q.dtype):
        raise ValueError(f"{name}: {lse}, {delta} and {g} are not of attention by {q}, {k} and {v}")


def _grad_infer(*args: Type, causal: bool, scale: float, threshold: int) -> tuple[Type, ...]:
    _check_grad("attention_grad", args, threshold)
    return args[:3]


def _mask_grad_infer(*args: Type, causal: bool, scale: float, threshold: int) -> Type:
    _check_grad("attention_mask_grad", args, threshold)
    (mask,), _ = _apart(args[6:], threshold)
    if mask.dtype != args[0].dtype:
        raise TypeError(f"attention_mask_grad: a mask of {mask.dtype} has no gradient")
    return mask


# -- their meaning, in NumPy -------------------------------------------------------------------------------------------
class _Blocks:
    """What is worked on at once: some matrices of the flattened batch, some rows of each."""

    def __init__(self, q: np.ndarray, k: np.ndarray, rest: Sequence[np.ndarray], causal: bool, scale: float,
                 threshold: int) -> None:
        *batch, rows, _ = q.shape
        mask, self.draw = _apart(rest, threshold)
        self.threshold, self.factor = threshold, q.dtype.type(_factor(threshold))
        self.matrices, self.rows, self.columns = math.prod(batch), rows, k.shape[-2]
        self.q, self.k = stacked(q), stacked(k)
        self.mask = stacked(mask[0]) if mask else None
        self.causal, self.scale = causal, q.dtype.type(scale)
        of_mask = mask[0].shape[:-2] if mask else (1,)
        self.alone = math.prod(of_mask) > 1  # matrices have masks of their own
        if self.alone:  # which one, by matrix
            self.number = np.broadcast_to(np.arange(math.prod(of_mask)).reshape(of_mask), batch).reshape(-1)

    def __iter__(self) -> Iterator[tuple[slice, slice, Any]]:
        """Matrices, rows, and where in the flattened mask theirs is."""
        if not self.columns:
            return
        height = max(1, min(self.rows, BLOCK // self.columns))
        together = 1 if self.alone else max(1, BLOCK // (height * self.columns))
        for first in range(0, self.matrices, together):
            for top in range(0, self.rows, height):
                rows = slice(top, top + height)
                short = self.mask is not None and self.mask.shape[1] == 1
                yield slice(first, first + together), rows, (
                    self.number[first] if self.alone else 0, slice(None) if short else rows)

    def scores(self, b: slice, rows: slice, of_mask: Any) -> np.ndarray:
        s = (self.q[b, rows] * self.scale) @ self.k[b].swapaxes(-1, -2)
        if self.mask is not None and self.mask.dtype.kind == "f":
            s += self.mask[of_mask]
        elif self.mask is not None:
            np.copyto(s, -np.inf, where=~self.mask[of_mask])
        if self.causal:
            at = np.arange(rows.start, rows.start + s.shape[1])
            np.copyto(s, -np.inf, where=np.arange(self.columns) > at[:, None])
        return s

    def dropped(self, b: slice, rows: slice, x: np.ndarray) -> np.ndarray:
        """x, of a block's shape, without what the draw drops."""
        if not self.draw:
            return x
        matrices, height, columns = x.shape
        each, (key, number) = -(-columns // 4), map(int, self.draw)
        kept = [random.philox(key, number, random.MASKS, ((b.start + m) * self.rows + rows.start) * each, height * each)
                for m in range(matrices)]
        below = np.stack(kept).reshape(matrices, height, -1)[..., :columns] < np.uint32(self.threshold)
        return np.where(below, x * self.factor, x.dtype.type(0))


def stacked(a: np.ndarray) -> np.ndarray:
    """A stack of matrices with one batch dim."""
    return a.reshape(math.prod(a.shape[:-2]), *a.shape[-2:])


def _eager(q: np.ndarray, k: np.ndarray, v: np.ndarray, *rest: np.ndarray, causal: bool, scale: float,
           threshold: int) -> Arrays:
    out, lse = np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype), np.full((*q.shape[:-1], 1), np.inf, q.dtype)
    vs, outs, lses = map(stacked, (v, out, lse))
    blocks = _Blocks(q, k, rest, causal, scale, threshold)
    for b, rows, of_mask in blocks:
        s = blocks.scores(b, rows, of_mask)
        peak = s.max(-1, keepdims=True)
        peak[peak == -np.inf] = 0
        s -= peak
        p = np.exp(s, out=s)
        sums = p.sum(-1, keepdims=True)
        none = sums == 0
        sums[none] = 1
        outs[b, rows] = blocks.dropped(b, rows, p) @ vs[b] / sums
        lses[b, rows] = np.where(none, np.inf, np.log(sums) + peak)
    return out, lse[..., 0]


def _slopes(blocks: _Blocks, v: np.ndarray, lse: np.ndarray, delta: np.ndarray,
            g: np.ndarray) -> Iterator[tuple[slice, slice, Any, np.ndarray, np.ndarray]]:
    """For each block its matrices, its rows, its place in the mask, p and ds."""
    vs, lses, deltas, gs = map(stacked, (v, lse[..., None], delta[..., None], g))
    for b, rows, of_mask in blocks:
        s = blocks.scores(b, rows, of_mask)
        s -= lses[b, rows]
        p, slope = np.exp(s, out=s), blocks.dropped(b, rows, gs[b, rows] @ vs[b].swapaxes(-1, -2))
        slope -= deltas[b, rows]
        slope *= p
        yield b, rows, of_mask, p, slope


def _grad_eager(q: np.ndarray, k: np.ndarray, v: np.ndarray, lse: np.ndarray, delta: np.ndarray, g: np.ndarray,
                *rest: np.ndarray, causal: bool, scale: float, threshold: int) -> Arrays:
    dq, dk, dv = (np.zeros(a.shape, a.dtype) for a in (q, k, v))
    dqs, dks, dvs, gs = map(stacked, (dq, dk, dv, g))
    blocks = _Blocks(q, k, rest, causal, scale, threshold)
    for b, rows, _, p, ds in _slopes(blocks, v, lse, delta, g):
        ds *= blocks.scale
        dqs[b, rows] = ds @ blocks.k[b]
        dks[b] += ds.swapaxes(-1, -2) @ blocks.q[b, rows]
        dvs[b] += blocks.dropped(b, rows, p).swapaxes(-1, -2) @ gs[b, rows]
    return dq, dk, dv


def _mask_grad_eager(q: np.ndarray, k: np.ndarray, v: np.ndarray, lse: np.ndarray, delta: np.ndarray, g: np.ndarray,
                     mask: np.ndarray, *draw: np.ndarray, causal: bool, scale: float, threshold: int) -> np.ndarray:
    found = np.zeros(mask.shape, mask.dtype)
    stack = stacked(found)
    short = mask.shape[-2] == 1
    blocks = _Blocks(q, k, (mask, *draw), causal, scale, threshold)
    for *_, of_mask, _, ds in _slopes(blocks, v, lse, delta, g):
        ds = ds.sum(0)
        stack[of_mask] += ds.sum(0, keepdims=True) if short else ds
    return found


# -- derivatives -------------------------------------------------------------------------------------------------------
def _column(x: Tensor) -> Tensor:
    return reshaped(x, (*x.shape, 1))


class _Inside:
    """What is never in memory, as whole matrices: the weights p, and what becomes of a matrix when some are dropped."""

    def __init__(self, q: Tensor, k: Tensor, lse: Tensor, rest: Sequence[Tensor], causal: bool, scale: float,
                 threshold: int) -> None:
        self.q, self.k, self.scale, self.threshold = q, k, scale, threshold
        self.mask, self.draw = _apart(rest, threshold)
        s = product(q * scale, swapped(k))
        for m in self.mask:
            s = s + m if m.dtype.kind == "f" else ew.where(m, s, -math.inf)
        if causal:
            s = ew.where(iota(s.shape, s.ndim - 2) >= iota(s.shape, s.ndim - 1), s, -math.inf)
        self.p = exp(s - _column(lse))

    def dropped(self, x: Tensor) -> Tensor:
        if not self.draw:
            return x
        shape = (*x.shape[:-1], -(-x.shape[-1] // 4) * 4)  # rows start with a block of random bits
        kept = apply(random.RANDOM_MASK, self.draw, {"shape": shape, "threshold": self.threshold})
        return ew.where(along(kept, kept.ndim - 1, 0, x.shape[-1]), x * _factor(self.threshold), 0)


def _folded(x: Tensor, like: Tensor) -> Tensor:
    """The sum of x over the dims along which `like` is 1."""
    axes = tuple(a for a, n in enumerate(like.shape) if n == 1 and x.shape[a] != 1)
    return reshaped(total(x, axis=axes), like.shape) if axes else x


def _vjp(gs: Sequence[Tensor | None], ys: tuple[Tensor, Tensor], q: Tensor, k: Tensor, v: Tensor, *rest: Tensor,
         **attrs: Any) -> tuple[Tensor | None, ...]:
    (g, to_lse), (out, lse) = gs, ys
    g = full(0, out.shape, out.dtype) if g is None else g
    delta = total(g * out, axis=-1)
    if to_lse is not None:  # the derivative of lse by the scores is p
        delta = delta - to_lse
    args = (q, k, v, lse, delta, g, *rest)
    of_rest = [apply(ATTENTION_MASK_GRAD, args, attrs) if x.dtype.kind == "f" else None for x in rest]
    return (*apply(ATTENTION_GRAD, args, attrs), *of_rest)


def _jvp(tangents: Sequence[Tensor | None], ys: tuple[Tensor, Tensor], q: Tensor, k: Tensor, v: Tensor, *rest: Tensor,
         **attrs: Any) -> tuple[Tensor, Tensor]:
    out, lse = ys
    of_q, of_k, of_v, *of_rest = tangents
    inside = _Inside(q, k, lse, rest, **attrs)
    p, scale = inside.p, inside.scale
    moved = full(0, p.shape, p.dtype)
    if of_q is not None:
        moved = moved + product(of_q * scale, swapped(k))
    if of_k is not None:
        moved = moved + product(q * scale, swapped(of_k))
    for m in of_rest:
        moved = moved if m is None else moved + m
    moved = p * moved
    of_lse = total(moved, axis=-1)
    of_out = product(inside.dropped(moved), v) - _column(of_lse) * out
    return of_out if of_v is None else of_out + product(inside.dropped(p), of_v), of_lse


class _Backward(_Inside):
    """What `attention_grad` works out: also slope = g v', dropped, - delta; ds = p slope."""

    def __init__(self, args: Sequence[Tensor], attrs: Mapping[str, Any]) -> None:
        q, k, self.v, lse, delta, self.g, *rest = args
        super().__init__(q, k, lse, rest, **attrs)
        self.slope = self.dropped(product(self.g, swapped(self.v))) - _column(delta)

    def pull(self, to_p: Tensor, to_slope: Tensor) -> list[Any]:
        """Cotangents of all arguments from those of p and slope."""
        to_s, to_product = to_p * self.p, self.dropped(to_slope)
        of_mask = [_folded(to_s, m) if m.dtype.kind == "f" else None for m in self.mask]
        return [product(to_s, self.k) * self.scale, product(swapped(to_s), self.q) * self.scale,
                product(swapped(to_product), self.g), -total(to_s, axis=-1), -total(to_slope, axis=-1),
                product(to_product, self.v), *of_mask, *(None for _ in self.draw)]


def _grad_vjp(gs: Sequence[Tensor | None], ys: Sequence[Tensor], *args: Tensor, **attrs: Any) -> tuple[Any, ...]:
    of = _Backward(args, attrs)
    to_q, to_k, to_v = (full(0, y.shape, y.dtype) if g is None else g for g, y in zip(gs, ys, strict=True))
    to_ds = (product(to_q, swapped(of.k)) + product(of.q, swapped(to_k))) * of.scale
    found = of.pull(to_ds * of.slope + of.dropped(product(of.g, swapped(to_v))), to_ds * of.p)
    ds = of.p * of.slope * of.scale
    found[0] = found[0] + product(ds, to_k)
    found[1] = found[1] + product(swapped(ds), to_q)
    found[5] = found[5] + product(of.dropped(of.p), to_v)
    return tuple(found)


def _mask_grad_vjp(g: Tensor, y: Tensor, *args: Tensor, **attrs: Any) -> tuple[Any, ...]:
    of = _Backward(args, attrs)
    return tuple(of.pull(g * of.slope, g * of.p))


ATTENTION = primitive("attention", "library", infer=_infer, eager=_eager, vjp=_vjp, jvp=_jvp,
                      doc="Scaled dot-product attention, and the log of each row's sum of exponentials.")
ATTENTION_GRAD = primitive("attention_grad", "library", infer=_grad_infer, eager=_grad_eager, vjp=_grad_vjp,
                           doc="Cotangents of the queries, keys and values of attention.")
ATTENTION_MASK_GRAD = primitive("attention_mask_grad", "library", infer=_mask_grad_infer, eager=_mask_grad_eager,
                                vjp=_mask_grad_vjp, doc="Cotangent of an additive mask of attention.")


# -- what users call ---------------------------------------------------------------------------------------------------
def scaled_dot_product_attention(query: Any, key: Any, value: Any, mask: Any = None, is_causal: bool = False,
                                 scale: float | None = None, dropout: float = 0.0, *, dropout_key: Any = None,
                                 generator: random.Generator | None = None) -> Tensor:
    """softmax(query @ key' * scale + mask) @ value, without ever keeping the matrix of scores.

    query (..., L, D), key (..., S, D), value (..., S, Dv); leading dims broadcast; result (..., L, Dv) in their common
    float dtype. mask: bool (true takes part) or float (added to the scores), of a shape that broadcasts to (..., L, S).
    is_causal: row i sees columns up to i only (of both masks, those that both allow). scale: 1 / sqrt(D) by default.
    A row that sees nothing gives zeros, and has no gradient, as in PyTorch. dropout: the share of weights dropped, and
    dropout_key or generator what they are drawn from (see `dropout`). ValueError for shapes that do not match.

    >>> q = [[1.0, 0.0]]
    >>> scaled_dot_product_attention(q, [[1.0, 0.0], [0.0, 1.0]], [[1.0], [3.0]], mask=[[True, False]]).tolist()
    [[1.0]]
    """
    name = "scaled_dot_product_attention"
    q, k, v = (strong(x) for x in (query, key, value))
    (q, k, v), dtype, _ = convert(name, (q, k, v), real_floating)
    if min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(f"{name}: query {q.shape}, key {k.shape} and value {v.shape} are not (..., L, D), (..., S, D) "
                         f"and (..., S, Dv)")
    if dtype == dtypes.float16:
        q, k, v = (cast(x, dtypes.float32) for x in (q, k, v))
    batch = broadcast_shape(name, [x.shape[:-2] for x in (q, k, v)])
    q, k, v = (core.broadcast_to(x, batch + x.shape[-2:]) for x in (q, k, v))
    whole = (*batch, q.shape[-2], k.shape[-2])
    masks = [] if mask is None else [_as_mask(name, mask, whole, q.dtype)]
    if scale is None:
        scale = 1 / math.sqrt(max(q.shape[-1], 1))
    threshold, draw, rate = 1 << 32, [], float(dropout)
    if rate:
        if not 0 <= rate <= 1:
            raise ValueError(f"{name}: dropout must be in [0, 1], got {rate}")
        threshold = min(round((1 - rate) * 2**32), random.MASK)
        draw = [*random.draw_from(dropout_key, generator)]
    attrs = {"causal": bool(is_causal), "scale": float(scale), "threshold": threshold}
    return cast(apply(ATTENTION, (q, k, v, *masks, *draw), attrs)[0], dtype)


def _as_mask(name: str, mask: Any, whole: tuple[int, ...], dtype: np.dtype) -> Tensor:
    m = strong(mask)
    if m.dtype.kind not in "bf":
        raise TypeError(f"{name}: a mask is bool (true takes part) or float (added to the scores), got {m.dtype}")
    shape = (1,) * (len(whole) - m.ndim) + m.shape
    if len(shape) != len(whole) or any(a not in (1, b) for a, b in zip(shape, whole)):
        raise ValueError(f"{name}: a mask of shape {m.shape} does not broadcast to the scores' shape {whole}")
    m = reshaped(m if m.dtype.kind == "b" else cast(m, dtype), shape)
    return core.broadcast_to(m, (*shape[:-1], whole[-1]))


__all__ = ["scaled_dot_product_attention"]
