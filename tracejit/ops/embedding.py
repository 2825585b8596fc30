"""Rows of a table by number, as layers of words or categories use them.

In: a table and integer ids of any dtype. Out: the rows. The gradient adds the cotangents of the rows into zeros of the
table's shape, in order: repeated ids all count.
"""

from __future__ import annotations

from typing import Any

from tracejit import dtypes
from tracejit.ops.core import cast, strong
from tracejit.ops.indexing import pick
from tracejit.tensor import Tensor


def embedding(table: Any, ids: Any) -> Tensor:
    """table[ids]: for a table of shape (rows, ...) and integer ids of any shape B, a tensor of shape B + (...).

    Negative ids count from the end. IndexError for an id out of range, also in compiled code; TypeError for ids that
    are no integers.

    >>> embedding([[1.0, 2.0], [3.0, 4.0]], [1, 1, 0]).tolist()
    [[3.0, 4.0], [3.0, 4.0], [1.0, 2.0]]
    """
    t, i = strong(table), strong(ids)
    if not t.ndim:
        raise ValueError("embedding: the table needs a dim of rows, got a scalar")
    if i.dtype.kind not in "iu":
        raise TypeError(f"embedding: ids must be integers, got {i.dtype}")
    return pick(t, (cast(i, dtypes.int64),), (0,))


__all__ = ["embedding"]
