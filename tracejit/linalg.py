"""Linear algebra under the names of the array API: `tj.linalg.norm` and the products.

In: tensors. Out: tensors. Everything here is made of the ops in `tracejit.ops`.
"""

from __future__ import annotations

from tracejit.ops.linalg import cross, diagonal, matmul, outer, tensordot, trace, vecdot
from tracejit.ops.shaping import matrix_transpose

__all__ = ["cross", "diagonal", "matmul", "matrix_transpose", "outer", "tensordot", "trace", "vecdot"]
