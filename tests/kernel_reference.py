"""Kernels by hand, and what they must compute: a builder of launches, a NumPy interpreter of them, and a serial driver.

`Sketch` builds a kernel from `Value` expressions together with buffers that fit it; `run_reference` executes a launch
by the meaning of its records alone; `run_native` runs the compiled function on this thread, cut as it is told.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracejit.config import Options
from tracejit.lower.kernel import Access, Accumulator, Kernel, Launch, Stage, Store, View, items, verify
from tracejit.lower.scalar import BOOL, I64, Builder, Value, evaluate_stmt
from tracejit.runtime.build import build

FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_ssize_t)
MARK = 77  # what writes hold before a run: cells between the written ones must keep it


class Sketch:
    """A launch in the making. Strides are given in elements for each dim; their classes follow from them."""

    def __init__(self, extents: Sequence[int], outer: int, vector: str = "outer", seed: int = 0):
        self.extents = tuple(extents)
        self.outer, self.inner, self.vector = outer, len(extents) - outer, vector
        self.b = Builder()
        self.rng = np.random.default_rng(seed)
        self.buffers: list[np.ndarray] = []
        self.reads: list[tuple[Access, View]] = []
        self.writes: list[tuple[Access, View]] = []
        self.params: list[int] = []
        self.stages: list[Stage] = []
        self.accumulators = 0
        self.tiled = False

    @property
    def vdim(self) -> int:
        return self.outer - 1 if self.vector == "outer" else len(self.extents) - 1

    def _access(
        self, dtype: Any, strides: Sequence[int], classes: str | None, buffer: int | None, data: Any, room: int = 0
    ) -> tuple[Access, View]:
        dtype = np.dtype(dtype)
        low = sum(min(0, s * (e - 1)) for s, e in zip(strides, self.extents, strict=True) if e)
        high = sum(max(0, s * (e - 1)) for s, e in zip(strides, self.extents, strict=True) if e)
        if classes is None:
            classes = "".join(
                "0" if s == 0 else str(s) if s == 1 or (1 < s <= 4 and d == self.vdim) else "s"
                for d, s in enumerate(strides)
            )
        if buffer is None:
            size = max(high - low + 1 + room, 1)
            fill = aligned(size, dtype)
            fill[:] = self.random(size, dtype) if data is None else np.resize(np.asarray(data, dtype), size)
            self.buffers.append(fill)
            buffer = len(self.buffers) - 1
        return Access(dtype, tuple(classes)), View(buffer, -low, tuple(strides))

    def random(self, size: int, dtype: np.dtype) -> np.ndarray:
        """Numbers of ordinary size, in both signs where there are two."""
        if dtype.kind == "b":
            return self.rng.random(size) < 0.5
        if dtype.kind == "f":
            return self.rng.normal(0, 3, size).astype(dtype)
        limits = np.iinfo(dtype)
        return self.rng.integers(max(limits.min, -1000), min(limits.max, 1000), size, dtype, endpoint=True)

    def read(
        self,
        dtype: Any,
        strides: Sequence[int],
        classes: str | None = None,
        data: Any = None,
        offset: Value | None = None,
        mask: Value | None = None,
        buffer: int | None = None,
        room: int = 0,
    ) -> Value:
        """A load from a new read. `room`: elements behind the affine range."""
        self.reads.append(self._access(dtype, strides, classes, buffer, data, room))
        args = [v for v in (offset, mask) if v is not None]
        return self.b.emit("load", np.dtype(dtype), args, (len(self.reads) - 1,))

    def coord(self, dim: int) -> Value:
        return self.b.emit("coord", I64, (), (dim,))

    def param(self, value: int) -> Value:
        self.params.append(value)
        return self.b.emit("param", I64, (), (len(self.params) - 1,))

    def carry(self, number: int, dtype: Any) -> Value:
        return self.b.emit("carry", np.dtype(dtype), (), (number,))

    def check(self, ok: Value, value: Value, site: int = 0) -> Value:
        return self.b.emit("check", BOOL, (ok, value), (site,))

    def write(
        self,
        value: Value,
        strides: Sequence[int],
        classes: str | None = None,
        buffer: int | None = None,
        offset: Value | None = None,
        mask: Value | None = None,
        mode: str = "set",
        data: Any = MARK,
        room: int = 0,
    ) -> Store:
        self.writes.append(self._access(value.dtype, strides, classes, buffer, data, room))
        return Store(
            len(self.writes) - 1,
            value.index,
            None if offset is None else offset.index,
            None if mask is None else mask.index,
            mode,
        )

    def accumulate(
        self,
        *accumulators: tuple[Any, ...],
        stores: Sequence[Store] = (),
        checks: Sequence[Value] = (),
        keeps: Sequence[Value] = (),
    ) -> list[Value]:
        """An inner stage with accumulators `(op, value)` or `(op, value, index)`; gives their carries."""
        records = [Accumulator(op, v.dtype, v.index, *(i.index for i in index)) for op, v, *index in accumulators]
        numbers = [tuple(v.index for v in values) for values in (checks, keeps)]
        self.stages.append(Stage(True, tuple(records), tuple(stores), *numbers))
        first, self.accumulators = self.accumulators, self.accumulators + len(records)
        return [self.carry(first + n, I64 if a.op.startswith("arg") else a.dtype) for n, a in enumerate(records)]

    def point(self, *stores: Store, checks: Sequence[Value] = ()) -> None:
        """A stage that runs once per point."""
        self.stages.append(Stage(False, (), stores, tuple(c.index for c in checks)))

    def launch(self) -> Launch:
        kernel = Kernel(
            self.outer,
            self.inner,
            self.vector,
            tuple(a for a, _ in self.reads),  # type: ignore[arg-type]
            tuple(a for a, _ in self.writes),
            len(self.params),
            tuple(self.b.stmts),
            tuple(self.stages),
            self.tiled,
        )
        verify(kernel)
        return Launch(
            kernel, self.extents, tuple(self.params), tuple(v for _, v in self.reads), tuple(v for _, v in self.writes)
        )


def aligned(size: int, dtype: Any, align: int = 64) -> np.ndarray:
    """Uninitialised memory at an aligned address."""
    dtype = np.dtype(dtype)
    raw = np.empty(size * dtype.itemsize + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + size * dtype.itemsize].view(dtype)


# ---- the interpreter


def _reduce(op: str, values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    dtype = values.dtype
    if op == "add" and dtype.kind == "f":
        return values.sum(axes, dtype=np.float64, keepdims=True).astype(dtype)
    if op == "mul" and dtype.kind == "f":
        return values.prod(axes, dtype=np.float64, keepdims=True).astype(dtype)
    if op in ("min", "max"):
        if dtype.kind == "f":
            start = np.inf
        else:
            start = 1 if dtype.kind == "b" else np.iinfo(dtype).max
        if op == "max":
            start = -np.inf if dtype.kind == "f" else 0 if dtype.kind == "b" else np.iinfo(dtype).min
        return (np.minimum if op == "min" else np.maximum).reduce(
            values, axes, keepdims=True, initial=dtype.type(start)
        )
    f: Any = {"add": np.add, "mul": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or}[op]
    if dtype.kind == "b":
        f = {"add": np.logical_or, "mul": np.logical_and, "and": np.logical_and, "or": np.logical_or}[op]
        return f.reduce(values, axes, keepdims=True)
    return f.reduce(values, axes, keepdims=True, **({"dtype": dtype} if op in ("add", "mul") else {}))


def _extreme_position(op: str, values: np.ndarray, index: np.ndarray, outer: int) -> np.ndarray:
    points = values.shape[:outer]
    out = np.full(points, -1, np.int64)
    for p in np.ndindex(*points):
        v, i = values[p].ravel(), index[p].ravel()
        if v.size:
            hits = (
                np.isnan(v)
                if v.dtype.kind == "f" and np.isnan(v).any()
                else v == (v.min() if op == "argmin" else v.max())
            )
            out[p] = i[hits].min()
    return out.reshape(points + (1,) * (values.ndim - outer))


def run_along(name: str, args: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """A `running` statement."""
    x = args[0]
    if name != "recurrence":
        f = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}[name]
        wide = np.float64 if x.dtype.kind == "f" and name in ("add", "mul") else x.dtype
        return f.accumulate(x.astype(wide), axis).astype(x.dtype)
    factors, terms = (np.moveaxis(a, axis, 0) for a in args)
    before, results = np.zeros(terms.shape[1:], x.dtype), []
    for f, t in zip(factors, terms, strict=True):
        before = np.where(before == 0, before, f * before) + t
        results.append(before)
    return np.stack(results, axis)


def run_reference(launch: Launch, buffers: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """Execute a launch on NumPy buffers in place. Gives the checks that failed, as (site + 1, value)."""
    k, extents = launch.kernel, launch.extents
    coords = [
        np.arange(e, dtype=np.int64).reshape([-1 if d == n else 1 for n in range(k.rank)])
        for d, e in enumerate(extents)
    ]
    carries: list[np.ndarray] = []
    failed: list[tuple[int, int]] = []

    def affine(view: View, dims: int) -> np.ndarray:
        return view.offset + sum(
            (c * s for c, s in zip(coords[:dims], view.strides[:dims], strict=True)), np.zeros([1] * k.rank, np.int64)
        )

    def statement(i: int, values: dict[int, np.ndarray], full: tuple[int, ...]) -> np.ndarray:
        if i in values:
            return values[i]
        s = k.stmts[i]
        args = [statement(a, values, full) for a in s.args]
        match s.op:
            case "param":
                v = np.int64(launch.params[s.attrs[0]])
            case "coord":
                v = coords[s.attrs[0]]
            case "carry":
                v = carries[s.attrs[0]]
            case "load":
                view = launch.reads[s.attrs[0]]
                flat = buffers[view.buffer].view(s.dtype)
                dims = k.rank if full == extents else k.outer
                at = affine(view, dims) + (args[0] if args else 0)
                mask = args[1] if len(args) == 2 else np.True_
                if 0 in full:
                    v = np.zeros(np.broadcast_shapes(at.shape, mask.shape), s.dtype)
                else:
                    v = np.where(mask, flat[np.where(mask, at, 0)], s.dtype.type(0))
            case "check":
                ok, value = np.broadcast_arrays(*args)
                ok, value = np.broadcast_to(ok, full), np.broadcast_to(value, full)
                failed.extend((s.attrs[0] + 1, int(x)) for x in value[~ok].tolist())
                v = args[0]
            case "running":
                v = run_along(s.attrs[0], [np.broadcast_to(a, full) for a in args], k.outer)
            case _:
                v = evaluate_stmt(s, args)
        values[i] = np.asarray(v)
        return values[i]

    for stage in k.stages:
        inner = stage.inner
        full = extents if inner else extents[: k.outer] + (1,) * k.inner
        values: dict[int, np.ndarray] = {}
        for c in stage.checks:
            statement(c, values, full)
        for a in stage.accumulators:
            v = np.broadcast_to(statement(a.value, values, full), full)
            if a.index is None:
                carries.append(_reduce(a.op, v, tuple(range(k.outer, k.rank))))
            else:
                index = np.broadcast_to(statement(a.index, values, full), full)
                carries.append(_extreme_position(a.op, v, index, k.outer))
        pending = []
        for s in stage.stores:
            view = launch.writes[s.write]
            at = affine(view, k.rank if inner else k.outer)
            if s.offset is not None:
                at = at + statement(s.offset, values, full)
            mask = np.True_ if s.mask is None else statement(s.mask, values, full)
            at, mask, v = (np.broadcast_to(x, full).ravel() for x in (at, mask, statement(s.value, values, full)))
            pending.append((s, view, at[mask], v[mask]))
        for s, view, at, v in pending:
            flat = buffers[view.buffer].view(k.writes[s.write].dtype)
            if s.mode == "set":
                for where, x in zip(at.tolist(), v, strict=True) if s.offset is not None else ():
                    flat[where] = x
                if s.offset is None:
                    flat[at] = v
            else:
                {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}[s.mode].at(flat, at, v)
    return failed


# ---- the driver


def fill_slots(
    launch: Launch,
    buffers: Sequence[np.ndarray],
    block: int,
    splits: int,
    split: int,
    scratch: int,
    errors: int,
    stream: bool,
) -> np.ndarray:
    """The slot array of a launch, as `Slots` describes it."""
    kernel, slots = launch.kernel, launch.kernel.slots
    out = np.zeros(slots.count, np.int64)
    out[list(slots.extents)] = launch.extents
    out[list(slots.params)] = launch.params
    out[[slots.block, slots.splits, slots.split]] = block, splits, split
    out[[slots.scratch, slots.errors, slots.stream]] = scratch, errors, stream
    accesses = zip(
        (*kernel.reads, *kernel.writes), (*slots.reads, *slots.writes), (*launch.reads, *launch.writes), strict=True
    )
    for access, (address, strides), view in accesses:
        out[address] = buffers[view.buffer].ctypes.data + view.offset * access.dtype.itemsize
        for at, stride in zip(strides, view.strides, strict=True):
            if at is not None:
                out[at] = stride
    return out


def run_native(
    launch: Launch,
    buffers: Sequence[np.ndarray],
    block: int = 0,
    splits: int = 1,
    stream: bool = False,
    pieces: int = 1,
    finish: tuple[int, int] | None = None,
    options: Options | None = None,
) -> tuple[int, int]:
    """Run a launch compiled, its items in `pieces` calls; of the finishing pass only the points `finish`, if given.

    Gives (0, 0), or site + 1 and value of a failed check."""
    kernel = launch.kernel
    (address,) = build([kernel], options or Options())
    call = FUNCTION(address)
    block = block or max(1, launch.extents[kernel.outer - 1])
    split = 1
    if splits > 1:
        split = max(1, -(-launch.extents[kernel.outer] // splits))
    cells = 2 * splits * (launch.points + 2) * len(kernel.accumulators) if splits > 1 else 0
    scratch = np.full(cells + 4, -1, np.int64)
    start = -(-scratch.ctypes.data // 16) * 16
    errors = np.zeros(2, np.int64)
    slots = fill_slots(launch, buffers, block, splits, split, start, errors.ctypes.data, stream)

    def run(count: int, sign: int) -> None:
        step = max(1, -(-count // pieces))
        for begin in range(0, count, step):
            call(slots.ctypes.data, begin if sign > 0 else ~begin, min(begin + step, count))

    run(items(kernel, launch.extents, block, splits), 1)
    if finish:
        call(slots.ctypes.data, ~finish[0], finish[1])
    elif splits > 1:
        run(launch.points, -1)
    return int(errors[0]), int(errors[1])


def compare(
    sketch: Sketch, rtol: float = 0.0, atol: float = 0.0, options: Options | None = None, **how: Any
) -> list[np.ndarray]:
    """Run a sketch both ways and require equal buffers (nan equal to nan). Gives the buffers of the native run."""
    launch = sketch.launch()
    expected, found = [b.copy() for b in sketch.buffers], [aligned(b.size, b.dtype) for b in sketch.buffers]
    for f, b in zip(found, sketch.buffers, strict=True):
        f[:] = b
    failed = run_reference(launch, expected)
    error = run_native(launch, found, options=options, **how)
    assert error in failed if failed else error == (0, 0), (error, failed[:5])
    for number, (e, f) in enumerate(zip(expected, found, strict=True)):
        np.testing.assert_allclose(
            f, e, rtol=rtol, atol=atol, err_msg=f"buffer {number} of\n{launch.kernel.text}", equal_nan=True
        )
    return found
