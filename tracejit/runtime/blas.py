"""Complex matrix products as BLAS calls: from a `Gemm` step to the numbers that the native executor passes on.

In: a `Gemm`. Out: a `NativeCall`. BLAS counts columns first, so a row-major c = a @ b is asked for as c' = b' @ a', and
a transposed operand is only a flag. Products with a vector go to gemv.

Read next: `executor.py` (which calls), `gemm.py` (who asks).
"""

from __future__ import annotations

import ctypes
import math
import sys

import numpy as np

from tracejit.errors import InternalError
from tracejit.lower.kernel import View
from tracejit.lower.plan import Gemm
from tracejit.runtime import executor
from tracejit.runtime.executor import Blas, NativeCall

_PREFIX = {"complex64": "c", "complex128": "z"}
_RATE = {"c": 0.12, "z": 0.24}  # nanoseconds for a multiply-add, roughly


class _Constants:
    """Numbers and letters that BLAS wants by address, in one stretch of memory."""

    def __init__(self) -> None:
        self.memory = (ctypes.c_char * 256)()
        self.used = 0

    def put(self, value: bytes) -> int:
        at, self.used = self.used, self.used + 16
        ctypes.memmove(ctypes.addressof(self.memory) + at, value, len(value))
        return ctypes.addressof(self.memory) + at

    def integer(self, n: int) -> int:
        if not 0 <= n < 1 << 31:
            raise InternalError(f"a matrix dim or stride of {n} is beyond BLAS")
        return self.put(n.to_bytes(4, sys.byteorder))


def blas_call(step: Gemm) -> NativeCall:
    """The call for one matrix product, or a batch of them."""
    prefix = _PREFIX[step.dtype.name]
    m, n, k = step.m, step.n, step.k
    constants = _Constants()
    one, zero = (constants.put(np.array(v, step.dtype).tobytes()) for v in (1, 0))
    # c' = b' @ a': what lies in memory as b is b' to BLAS.
    b_flag, b_lead = _operand(step, step.b, k, n)
    a_flag, a_lead = _operand(step, step.a, m, k)
    integer = constants.integer
    if k and (m == 1 or n == 1):  # a matrix and a vector; the result is a vector
        function, operands = "gemv", executor.GEMV_OPERANDS[1]
        if n == 1:
            order, lead, step_along = ("a", "b", "c"), a_lead, step.b.strides[-2]
            flag, rows, columns = (b"T", k, m) if a_flag == b"N" else (b"N", m, k)
        else:
            order, lead, step_along = ("b", "a", "c"), b_lead, step.a.strides[-1]
            flag, rows, columns = (b"N", n, k) if b_flag == b"N" else (b"T", k, n)
        arguments = [constants.put(flag), integer(rows), integer(columns), one, 0, integer(lead),
                     0, integer(step_along if k > 1 else 1), zero, 0, integer(1)]
    else:
        function, operands, order = "gemm", executor.GEMM_OPERANDS[1], ("b", "a", "c")
        arguments = [constants.put(b_flag), constants.put(a_flag), integer(n), integer(m), integer(k),
                     one, 0, integer(b_lead), 0, integer(a_lead), zero, 0, integer(max(1, n))]
    words = [0] * (Blas.DIMS + 4 * len(step.batch))
    words[Blas.FUNCTION] = executor.blas(prefix + function)
    words[Blas.ARGUMENTS: Blas.ARGUMENTS + len(arguments)] = arguments
    words[Blas.BATCH] = len(step.batch)
    size = step.dtype.itemsize
    for d, extent in enumerate(step.batch):
        views = [getattr(step, name) for name in order]
        words[Blas.DIMS + 4 * d: Blas.DIMS + 4 * d + 4] = [extent, *(v.strides[d] * size for v in views)]
    where = {Blas.ARGUMENTS + argument: getattr(step, name) for name, argument in zip(order, operands, strict=True)}
    items = math.prod(step.batch)
    work = items * (150.0 + m * n * k * _RATE[prefix])
    # On one of our threads: BLAS may use its own.
    return NativeCall(executor.GEMM if function == "gemm" else executor.GEMV, words, where, items, items, work,
                      constants=constants.memory)


def _operand(step: Gemm, view: View, rows: int, columns: int) -> tuple[bytes, int]:
    """How BLAS sees a matrix that is to enter transposed: "N" where its rows are contiguous; and its stride."""
    if not rows or not columns:
        return b"N", max(columns, 1)
    row, column = view.strides[-2:]
    if (column == 1 or columns == 1) and (rows == 1 or row >= columns):
        return b"N", row if rows > 1 else columns
    if (row == 1 or rows == 1) and (columns == 1 or column >= rows):
        return b"T", column if columns > 1 else rows
    raise InternalError(f"a ({rows}, {columns}) matrix with strides ({row}, {column}) is not for BLAS ({step.where})")
