"""Kernels of the lowering, run by hand: for what has to be measured without a runtime around it.

In: a `Kernel`, or a function of scalar values. Out: machine code that takes its slots, or arrays.

Read next: `sweep.py` and `roofline.py`, which use it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from tracejit.config import Options
from tracejit.lower.kernel import Access, Kernel, Stage, Store
from tracejit.lower.scalar import Builder
from tracejit.runtime.build import build


def launcher(kernel: Kernel) -> Callable[[np.ndarray, int, int], None]:
    """The machine code of a kernel: `run(slots, begin, end)`. Calls release the GIL."""
    (address,) = build([kernel], Options())
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_ssize_t)(address)
    return lambda slots, begin, end: run(slots.ctypes.data, begin, end)


def slots_of(kernel: Kernel, extents: tuple[int, ...], arrays: tuple[np.ndarray, ...], stream: bool = False
             ) -> np.ndarray:
    """The numbers of a launch over contiguous arrays, reads first, all of it in one piece."""
    layout = kernel.slots
    slots = np.zeros(layout.count, np.int64)
    slots[list(layout.extents)] = extents
    slots[layout.block] = extents[kernel.outer - 1]
    slots[layout.splits], slots[layout.split] = 1, extents[kernel.outer] if kernel.inner else 0
    slots[layout.stream] = stream
    for (at, _), array in zip((*layout.reads, *layout.writes), arrays, strict=True):
        slots[at] = array.ctypes.data
    return slots


def compiled(function: Callable[..., Any], *dtypes: Any) -> Callable[..., Any]:
    """A scalar function as machine code over contiguous arrays."""
    builder = Builder()
    values = [builder.emit("load", np.dtype(d), (), (i,)) for i, d in enumerate(dtypes)]
    result = function(*values)
    results = result if isinstance(result, tuple) else (result,)
    kernel = Kernel(1, 0, "outer", tuple(Access(v.dtype, ("1",)) for v in values),
                    tuple(Access(v.dtype, ("1",)) for v in results), 0, tuple(builder.stmts),
                    (Stage(False, stores=tuple(Store(i, v.index) for i, v in enumerate(results))),))
    run = launcher(kernel)

    def call(*arrays: Any) -> Any:
        inputs = [np.ascontiguousarray(a, v.dtype) for a, v in zip(arrays, values, strict=True)]
        outputs = [np.empty(inputs[0].shape, v.dtype) for v in results]
        if inputs[0].size:  # else there are no items
            run(slots_of(kernel, (inputs[0].size,), (*inputs, *outputs)), 0, 1)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return call
