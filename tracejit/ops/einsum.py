"""`einsum`: sums of products written with letters.

In: subscripts such as "bij,bjk->bik" and operands. Out: a tensor, by way of diagonals, sums, matmul and transposes.
Pairs are contracted in the order that NumPy's path search finds cheapest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracejit.ops import core
from tracejit.ops.core import composite
from tracejit.ops.linalg import diagonal, product, promoted
from tracejit.ops.movement import permuted, reshaped
from tracejit.ops.reduction import sum as _sum
from tracejit.tensor import Tensor

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _lists_to_text(operands: Sequence[Any]) -> tuple[str, list[Any]]:
    """The other spelling, einsum(x, [0, 1], y, [1, 2], [0, 2]), as subscripts."""
    def text(labels: Sequence[Any]) -> str:
        return "".join("..." if label is Ellipsis else _LETTERS[label] for label in labels)

    n = len(operands) // 2 * 2
    subscripts = ",".join(text(labels) for labels in operands[1:n:2])
    if len(operands) > n:
        subscripts += "->" + text(operands[-1])
    return subscripts, list(operands[0:n:2])


def _parse(subscripts: str, ts: Sequence[Tensor]) -> tuple[list[str], str]:
    """One letter for each dim of each operand, and those of the result; dims under "..." get letters not used."""
    text = subscripts.replace(" ", "")
    inputs, arrow, result = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(ts):
        raise ValueError(f"einsum: {subscripts!r} names {len(terms)} operands, got {len(ts)}")
    for term in (*terms, result):
        if any(c not in _LETTERS for c in term.replace("...", "", 1)):
            raise ValueError(f"einsum: {term!r} in {subscripts!r} must be letters, and '...' at most once")
    free = [c for c in reversed(_LETTERS) if c not in text]
    hidden = [t.ndim - len(term.replace("...", "")) if "..." in term else 0 for term, t in zip(terms, ts)]
    for term, t, n in zip(terms, ts, hidden):
        if n < 0 or ("..." not in term and len(term) != t.ndim):
            raise ValueError(f"einsum: {term!r} in {subscripts!r} does not fit shape {t.shape}")
    dots = "".join(free[:max(hidden, default=0)])
    found = [term.replace("...", dots[len(dots) - n:]) for term, n in zip(terms, hidden)]
    if not arrow:
        result = dots + "".join(sorted(c for c in set("".join(terms)) - {"."} if "".join(terms).count(c) == 1))
    else:
        if dots and "..." not in result:
            raise ValueError(f"einsum: the result of {subscripts!r} must have '...' as its operands do")
        result = result.replace("...", dots)
    if len(set(result)) != len(result) or not set(result) <= set("".join(found)):
        raise ValueError(f"einsum: the result {result!r} of {subscripts!r} repeats a letter, or has one that "
                         f"no operand has")
    return found, result


def _sizes(subscripts: str, terms: Sequence[str], ts: Sequence[Tensor]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for term, t in zip(terms, ts):
        for c, n in zip(term, t.shape):
            if sizes.setdefault(c, n) != n:
                if 1 not in (sizes[c], n):
                    raise ValueError(f"einsum: {c!r} in {subscripts!r} stands for extents {sizes[c]} and {n} "
                                     f"(shapes {', '.join(str(x.shape) for x in ts)})")
                sizes[c] = max(sizes[c], n)
    return sizes


@composite(numpy=np.einsum)
def einsum(*operands: Any, optimize: Any = True, dtype: Any = None) -> Tensor:
    """Products of operands' elements, summed over the letters that the result does not have.

    Repeated letters take diagonals, "..." stands for dims that broadcast, and without "->" the letters that occur once
    make the result, in alphabetical order. Raises ValueError for subscripts that do not fit the shapes.

    >>> einsum("ij,jk->ik", [[1, 2]], [[3], [4]]).tolist(), einsum("ii", [[1, 2], [3, 4]]).item()
    ([[11]], 5)
    """
    if not operands:
        raise ValueError("einsum: subscripts and operands are missing")
    subscripts, xs = (operands[0], list(operands[1:])) if isinstance(operands[0], str) else _lists_to_text(operands)
    if not xs:
        raise ValueError("einsum: operands are missing")
    ts = promoted("einsum", *xs)
    if dtype is not None:
        ts = [core.cast(t, dtype) for t in ts]
    terms, result = _parse(subscripts, ts)
    sizes = _sizes(subscripts, terms, ts)
    parts = [_diagonals(t, term) for t, term in zip(ts, terms)]
    for picked in _order(parts, result, sizes):
        chosen = [parts[i] for i in picked]
        parts = [p for i, p in enumerate(parts) if i not in picked]
        others = set(result).union(*(term for _, term in parts))
        joined = chosen[0]
        for k, other in enumerate(chosen[1:], 2):
            keep = others.union(*(term for _, term in chosen[k:]))
            joined = _pair(*joined, *other, keep, sizes)
        parts.append(_summed(*joined, others))
    t, term = parts[0]
    t = permuted(t, tuple(term.index(c) for c in result))
    return core.broadcast_to(t, tuple(sizes[c] for c in result))


def _order(parts: Sequence[tuple[Tensor, str]], result: str, sizes: dict[str, int]) -> list[tuple[int, ...]]:
    """Which operands to take together, step by step; a result goes to the end of the list."""
    if len(parts) < 3:
        return [tuple(range(len(parts)))]
    shapes = [np.broadcast_to(np.empty(()), t.shape) for t, _ in parts]
    text = ",".join(term for _, term in parts) + "->" + result
    return [tuple(step) for step in np.einsum_path(text, *shapes, optimize="greedy")[0][1:]]


def _diagonals(t: Tensor, term: str) -> tuple[Tensor, str]:
    """A repeated letter's dims become the one of their diagonal."""
    for c in dict.fromkeys(term):
        while term.count(c) > 1:
            i = term.index(c)
            j = term.index(c, i + 1)
            if t.shape[i] != t.shape[j]:
                raise ValueError(f"einsum: {c!r} is repeated for extents {t.shape[i]} and {t.shape[j]}")
            t = diagonal(t, 0, i, j)
            term = term[:i] + term[i + 1:j] + term[j + 1:] + c
    return t, term


def _summed(t: Tensor, term: str, keep: set[str]) -> tuple[Tensor, str]:
    """Summed over the letters that nobody needs any more."""
    axes = tuple(k for k, c in enumerate(term) if c not in keep)
    return (core.cast(_sum(t, axis=axes), t.dtype), "".join(c for c in term if c in keep)) if axes else (t, term)


def _pair(a: Tensor, of_a: str, b: Tensor, of_b: str, keep: set[str], sizes: dict[str, int]) -> tuple[Tensor, str]:
    """Two operands as one: a matmul over the letters they share and nobody else needs, a product if there are none."""
    a, of_a = _summed(a, of_a, keep | set(of_b))
    b, of_b = _summed(b, of_b, keep | set(of_a))
    shared = [c for c in of_a if c in of_b]
    # a shared letter that one operand has with extent 1 only broadcasts
    inner = [c for c in shared if c not in keep]
    batch = [c for c in shared if c in keep]
    rows, columns = [c for c in of_a if c not in of_b], [c for c in of_b if c not in of_a]
    a = _arranged(a, of_a, [*batch, *rows, *inner], sizes, set(shared))
    b = _arranged(b, of_b, [*batch, *inner, *columns], sizes, set(shared))
    term = "".join([*batch, *rows, *columns])
    shape = tuple(sizes[c] if c in shared else n for c, n in zip(term, (*a.shape[:len(batch) + len(rows)],
                                                                         *b.shape[len(batch) + len(inner):])))
    if not inner:
        left = reshaped(a, (*a.shape, *(1,) * len(columns)))
        right = reshaped(b, (*b.shape[:len(batch)], *(1,) * len(rows), *b.shape[len(batch):]))
        return left * right, term  # type: ignore[operator]
    lead, m, k, n = (_size(sizes, group) for group in (batch, (), inner, ()))
    m = a.size // (lead * k) if lead * k else _product(a.shape[len(batch):len(batch) + len(rows)])
    n = b.size // (lead * k) if lead * k else _product(b.shape[len(batch) + len(inner):])
    stack = (lead,) if batch else ()
    out = product(reshaped(a, (*stack, m, k)), reshaped(b, (*stack, k, n)))
    return reshaped(out, shape), term


def _arranged(t: Tensor, term: str, order: Sequence[str], sizes: dict[str, int], shared: set[str]) -> Tensor:
    """Dims in `order`, shared ones at full extent."""
    t = permuted(t, tuple(term.index(c) for c in order))
    return core.broadcast_to(t, tuple(sizes[c] if c in shared else n for c, n in zip(order, t.shape)))


def _size(sizes: dict[str, int], letters: Sequence[str]) -> int:
    return _product([sizes[c] for c in letters])


def _product(extents: Sequence[int]) -> int:
    n = 1
    for e in extents:
        n *= e
    return n


__all__ = ["einsum"]
