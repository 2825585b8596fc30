"""Operands of steps of their own (products, attention): read in place, through movement, where strides allow it.

In: a node and the number of an operand. Out: the node whose buffer is read, and where in it; offset and strides of an
operand seen so.

Read next: `fuse.py` (who asks), `products.py` (windows over pictures as operands).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracejit.ir import Node
from tracejit.lower import loops
from tracejit.lower.access import Coords, Placement, identity, parts_of
from tracejit.lower.plan import DEEPEST
from tracejit.lower.products import Windows, windows

# Which inputs of ops of attention are rows: q, k, v, g.
ATTENTION_ROWS = {"attention": (0, 1, 2), "attention_grad": (0, 1, 2, 5), "attention_mask_grad": (0, 1, 2, 5)}

# What products have code of their own for; others are library calls.
PRODUCT_DTYPES = frozenset(
    map(np.dtype, ("float32", "float64", "complex64", "complex128", "int32", "int64", "uint32", "uint64"))
)


def is_gemm(node: Node) -> bool:
    if node.op.name == "column_product":
        return node.dtype in PRODUCT_DTYPES and node.dtype.kind != "c" and 0 not in (*node.shape, *node.inputs[1].shape)
    return node.op.name == "matmul" and node.dtype in PRODUCT_DTYPES


def is_attention(node: Node) -> bool:
    """Whether native code runs it: the whole of a query and of a value must fit a thread's stack."""
    if node.op.name not in ATTENTION_ROWS:
        return False
    q, _, v, *_ = node.inputs
    return max(q.shape[-1], v.shape[-1]) <= DEEPEST


def operand_base(node: Node, k: int, placement: Placement) -> tuple[Node, Coords]:
    """The node whose buffer operand `k` of a step of its own is read from, and where in it."""
    i = node.inputs[k]
    if is_gemm(node):
        seen = product_windows(node, placement)
        return seen.operands[k] if seen is not None else _base(i, gemm_strides)
    if is_attention(node) and k in ATTENTION_ROWS[node.op.name]:
        return _base(i, row_strides)
    return i, identity(i.shape)


def product_windows(node: Node, placement: Placement) -> Windows | None:
    """How a product reads windows in place, if it does; found out once."""
    if node not in placement.windows:
        placement.windows[node] = windows(node, plain_base)
    return placement.windows[node]  # type: ignore[no-any-return]


def plain_base(node: Node) -> Node:
    """The node whose buffer an operand of a product is read from, if by one stride for rows and one for columns."""
    return _base(node, gemm_strides)[0]


def _base(node: Node, strides: Callable[..., Any]) -> tuple[Node, Coords]:
    """Where an operand of such strides can be read in place: through affine, unguarded movement."""
    best = (node, identity(node.shape))
    at = best
    while at[0].op.kind == "movement":
        parts = parts_of(*at)
        if len(parts) != 1 or parts[0].guards:
            break
        at = (at[0].inputs[parts[0].input], parts[0].coords)
        if strides(at, node.shape) is not None:
            best = at
    return best


def gemm_strides(
    at: tuple[Node, Coords], shape: tuple[int, ...], strides: tuple[int, ...] | None = None
) -> tuple[int, tuple[int, ...]] | None:
    """(offset, strides) in elements of an operand of `shape` seen through `at`, or None if BLAS cannot walk it."""
    if 0 in shape:
        return 0, loops.contiguous([max(n, 1) for n in shape])
    flat = loops.address(at[1], strides or loops.contiguous(at[0].shape))
    if not flat.affine:
        return None
    found, k = [], 0
    for n in shape:
        found.append(0 if n == 1 else flat.coefficient(k))
        k += n != 1
    rows, cols = found[-2], found[-1]
    m, n = shape[-2], shape[-1]

    def usable(lead: int, minor: int, length: int, other: int) -> bool:
        return (minor == 1 or length == 1) and (lead >= max(length, 1) or other == 1)

    if any(s < 0 for s in found) or not (usable(rows, cols, n, m) or usable(cols, rows, m, n)):
        return None
    return flat.const, tuple(found)


def row_strides(
    at: tuple[Node, Coords], shape: tuple[int, ...], strides: tuple[int, ...] | None = None
) -> tuple[int, tuple[int, ...]] | None:
    """As `gemm_strides`, for rows that are contiguous."""
    found = gemm_strides(at, shape, strides)
    return found if found is None or shape[-1] <= 1 or found[1][-1] == 1 else None


def plain_strides(
    at: tuple[Node, Coords], shape: tuple[int, ...], strides: tuple[int, ...] | None = None
) -> tuple[int, tuple[int, ...]] | None:
    """Strides of what is read as a whole, 0 along dims of extent 1, or None if rows are not contiguous."""
    found = strides or loops.contiguous(at[0].shape)
    if strides is not None and any(n != 1 and s != c for n, s, c in zip(shape, strides, loops.contiguous(shape))):
        return None
    return 0, tuple(0 if n == 1 else s for n, s in zip(shape, found))
