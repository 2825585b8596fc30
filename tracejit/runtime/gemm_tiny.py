"""Batches of tiny matrix products: whole matrices in vectors, whose lanes are put where they meet.

In: a `Gemm` of many matrices, one right after the other, none with more elements than two vectors have lanes. Out: a
`NativeCall`, or None for others.

A vector holds some matrices of c. For each step of the sum the elements of a and of b that its lanes need are picked
out of a vector of a and one of b; which ones, the sizes tell, so there is code for each.

Read next: `gemm.py` (who asks), `gemm_code.py` (larger matrices).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

import numpy as np
from llvmlite import ir

from tracejit.lower.plan import Gemm
from tracejit.runtime import gemm_code
from tracejit.runtime.build import native_module
from tracejit.runtime.executor import NativeCall
from tracejit.runtime.gemm_code import Writer, tile_shape
from tracejit.runtime.gemm_windows import merged
from tracejit.runtime.native import I32, Code

MANY = 32  # matrices for which code of their own pays
PARALLEL = 15_000.0  # nanoseconds of work below which a product stays on its caller's thread
CHUNK = 8_000.0  # nanoseconds of work in a chunk, roughly
_STEP = 0.7  # nanoseconds for a vector of c and a step of its sums

A, B, C, COUNT = range(4)  # slots: addresses, and the number of matrices


def product(step: Gemm) -> NativeCall | None:
    """The call for many tiny products."""
    m, n, k, count, size = step.m, step.n, step.k, prod(step.batch), step.dtype.itemsize
    lanes = tile_shape()[0] // size
    most = max(m * k, k * n, m * n)
    views = step.a, step.b, step.c
    if count < MANY or not k or most > 2 * lanes or step.rows or step.apart:
        return None
    walks = merged(step.batch, *(v.strides[:-2] for v in views))
    if len(walks) > 1 or walks[0][1:] != (m * k, k * n, m * n):
        return None
    a, b = ((v.strides[-2] if rows > 1 else columns, v.strides[-1] if columns > 1 else 1)
            for v, rows, columns in ((step.a, m, k), (step.b, k, n)))
    if a not in ((k, 1), (1, m)) or b not in ((n, 1), (1, k)):  # elements of matrices lie between each other
        return None
    vectors = 1 if most <= lanes else 2
    together = vectors * lanes // most
    code = _code(step.dtype, m, n, k, a, b, vectors * lanes, together)
    items = -(-count // together)
    work = items * (k + 2) * vectors * _STEP
    chunk = items if work <= PARALLEL else max(1, int(CHUNK * items / work))
    return NativeCall(code, [0, 0, 0, count], {A: step.a, B: step.b, C: step.c}, items, chunk, work)


@cache
def _code(dtype: np.dtype, m: int, n: int, k: int, a: tuple[int, int], b: tuple[int, int], lanes: int,
          together: int) -> int:
    """The address of the code for matrices of one size. a, b: their strides, in elements."""
    writer = _Tiny(dtype, lanes * dtype.itemsize, 1, 1)
    name = f"tiny {dtype.name} {m} {n} {k} {a} {b} {lanes} {together}"
    found = native_module(name, lambda module: writer.emit_tiny(module, m, n, k, a, b, together), ("tiny",),
                          (gemm_code.__file__,))
    return found["tiny"]


class _Tiny(Writer):
    """Writes the code for one dtype, in vectors of as many lanes as it takes."""

    def emit_tiny(self, module: ir.Module, m: int, n: int, k: int, a: tuple[int, int], b: tuple[int, int],
                  together: int) -> None:
        """An item is as many products as fit a vector, or what is left of them."""
        self.module = module
        f = Code(module, "tiny", 3, local=False)
        slots, begin, end = f.args
        sizes = m * k, k * n, m * n
        places = [(e // (m * n), e % (m * n) // n, e % n) for e in range(together * m * n)]  # matrix, row, column
        with f.count(begin, end) as item:
            first = item * together
            left = f.smaller(f.load(slots, COUNT) - first, together)
            (x, x_mask), (y, y_mask), (target, mask) = (
                (f.load(slots, slot) + first * (each * self.size), self.lanes_below(f, left * each))
                for slot, each in zip((A, B, C), sizes, strict=True))
            x_lanes, y_lanes = self.load(f, x, x_mask), self.load(f, y, y_mask)
            total: ir.Value = self.zero
            for p in range(k):
                one = self.picked(f, x_lanes, [q * m * k + i * a[0] + p * a[1] for q, i, _ in places])
                other = self.picked(f, y_lanes, [q * k * n + p * b[0] + j * b[1] for q, _, j in places])
                total = self.multiply_add(f, one, other, total)
            self.store(f, total, target, mask)
        f.ret()

    def picked(self, f: Code, vector: ir.Value, lanes: Sequence[int]) -> ir.Value:
        """These lanes of a vector, and any in the rest."""
        every = [*lanes, *[0] * (self.lanes - len(lanes))]
        return f.builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(I32, self.lanes), every))
