"""Linear algebra under the names of the array API: `tj.linalg.norm` and the products.

In: tensors. Out: tensors. Everything here is made of the ops in `tracejit.ops`.
"""

from __future__ import annotations

from tracejit.ops.linalg import cross, diagonal, matmul, outer, tensordot, trace, vecdot
from tracejit.ops.shaping import matrix_transpose
from tracejit.ops.statistics import matrix_norm, norm, vector_norm

__all__ = ["cross", "diagonal", "matmul", "matrix_norm", "matrix_transpose", "norm", "outer", "tensordot", "trace",
           "vecdot", "vector_norm"]
