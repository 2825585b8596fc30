"""Inputs for the generated op tests: every op of the table, every dtype it takes, awkward shapes and memory layouts.

`samples(op, dtype, rng)` gives them from the op's `domain`; ops that a domain cannot describe have a maker in `MAKERS`.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tracejit.ops
from tracejit import dtypes
from tracejit.ir import Op, Type

F64, C128, I64, U64 = (np.dtype(n) for n in ("float64", "complex128", "int64", "uint64"))


@dataclass(frozen=True)
class Sample:
    """Arguments of one application of an op."""

    arrays: tuple[np.ndarray, ...]
    attrs: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{', '.join(f'{a.dtype}{list(a.shape)}' for a in self.arrays)} {self.attrs or ''}"


# Made by the pass `lanes` alone, out of loops: tests/test_lanes.py runs them.
LANES = ("lane_loop", "random_bits_at")
# Several results each: tests/test_attention.py runs them.
ATTENTION = ("attention", "attention_grad", "attention_mask_grad")


def op_table() -> dict[str, Op]:
    """Every op that a module of `tracejit.ops` declares, by name. Ops that hold graphs or have effects have tests of
    their own (test_control.py, test_effects.py): no list of arrays describes what they do."""
    found: dict[str, Op] = {}
    for module in pkgutil.iter_modules(tracejit.ops.__path__):
        for value in vars(importlib.import_module(f"tracejit.ops.{module.name}")).values():
            op = value if isinstance(value, Op) else getattr(value, "op", None)
            if isinstance(op, Op):
                assert found.get(op.name, op) is op, f"two ops are called {op.name}"
                found[op.name] = op
    apart = ("input", "constant", *LANES, *ATTENTION)
    return {name: op for name, op in sorted(found.items())
            if name not in apart and op.kind != "control" and not op.stateful}


# -- values and layouts ------------------------------------------------------------------------------------------------
def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, low: float = -2,
            high: float = 2) -> np.ndarray:
    """Random numbers of `dtype` in [low, high]."""
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape), bool)
    if dtype.kind in "iu":
        first = int(np.ceil(max(low, 0) if dtype.kind == "u" else low))
        return np.asarray(rng.integers(first, max(int(np.floor(high)), first) + 1, shape), dtype)
    if dtype.kind == "c":
        return np.asarray(rng.uniform(low, high, shape) + 1j * rng.uniform(-1, 1, shape), dtype)
    return np.asarray(rng.uniform(low, high, shape), dtype)


def laid_out(x: np.ndarray, layout: str) -> np.ndarray:
    """The same values in another memory layout: transposed, backwards, or with gaps."""
    if layout == "transposed":
        return x.T.copy().T
    if layout == "backwards":
        return np.flip(np.flip(x).copy())
    if layout == "gaps" and x.ndim:
        wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
        wide[..., ::2] = x
        return wide[..., ::2]
    return x


SHAPES = [((), "plain"), ((1,), "plain"), ((0,), "plain"), ((19,), "plain"), ((5,), "backwards"), ((3, 4), "plain"),
          ((3, 4), "transposed"), ((2, 5), "gaps"), ((2, 1, 3), "backwards"), ((0, 3), "plain")]

EDGES = {
    "b": [False, True],
    "i": ["min", "max", 0, 1, -1, 2, -3, 7],
    "u": [0, 1, 2, 7, "max"],
    "f": [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, np.inf, -np.inf, np.nan, "max", "tiny"],
}


def edges(dtype: np.dtype) -> np.ndarray:
    """The awkward numbers of a dtype."""
    info: Any = None if dtype.kind == "b" else np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    return np.array([getattr(info, v) if isinstance(v, str) else v for v in EDGES[dtype.kind]], dtype)


def accepts(op: Op, types: list[Type], attrs: dict[str, Any]) -> bool:
    try:
        op.infer(*types, **attrs)
    except (TypeError, ValueError, IndexError):
        return False
    return True


# -- ops described by a domain -----------------------------------------------------------------------------------------
ATTRS: dict[str, list[dict[str, Any]]] = {
    "integer_power": [{"exponent": n} for n in (3, 7)],
    "polygamma": [{"n": n} for n in (1, 2, 3)],
}


def arity(op: Op, dtype: np.dtype, attrs: dict[str, Any]) -> tuple[np.dtype, ...] | None:
    """The dtypes of the inputs of an elementwise op whose main dtype is `dtype`; None if it refuses that."""
    for n in (1, 2, 3):
        kinds = (np.dtype(bool),) * (n == 3) + (dtype,) * (n - (n == 3))
        if accepts(op, [Type((), d) for d in kinds], attrs):
            return kinds
    return None


def domains(op: Op, n: int, dtype: np.dtype = F64) -> list[tuple[float, float]]:
    """The domain of each of the n inputs."""
    if op.name == "pow" and dtype.kind in "iu":
        return [(-5, 5), (0, 6)]  # a negative exponent is an error there
    if op.domain is None:
        return [(-2, 2)] * n
    return list(op.domain) if isinstance(op.domain[0], tuple) else [op.domain] * n


def elementwise_samples(op: Op, dtype: np.dtype, rng: np.random.Generator) -> Iterator[Sample]:
    for attrs in ATTRS.get(op.name, [{}]):
        kinds = arity(op, dtype, attrs)
        if kinds is None:
            continue
        for shape, layout in SHAPES:
            made = (numbers(rng, shape, d, *limit) for d, limit in zip(kinds, domains(op, len(kinds), dtype)))
            yield Sample(tuple(laid_out(x, layout) for x in made), attrs)


def edge_samples(op: Op, dtype: np.dtype) -> Iterator[Sample]:
    """Every combination of awkward numbers."""
    for attrs in ATTRS.get(op.name, [{}]):
        kinds = arity(op, dtype, attrs)
        if kinds is not None and dtype.kind != "c":
            grid = list(itertools.product(*(edges(d) for d in kinds)))
            yield Sample(tuple(np.array([row[k] for row in grid], d) for k, d in enumerate(kinds)), attrs)


REDUCED = [((), ()), ((7,), (0,)), ((3, 4), (0,)), ((3, 4), (1,)), ((3, 4), (0, 1)), ((3, 4), ()), ((2, 3, 5), (0, 2)),
           ((1, 6), (0,)), ((2, 0, 3), (1,)), ((2, 0, 3), (0,)), ((40,), (0,))]


def reduction_samples(op: Op, dtype: np.dtype, rng: np.random.Generator) -> Iterator[Sample]:
    for shape, axis in REDUCED:
        if accepts(op, [Type(shape, dtype)], {"axis": axis}):
            for layout in ("plain", "transposed", "backwards"):
                yield Sample((laid_out(numbers(rng, shape, dtype, *domains(op, 1)[0]), layout),), {"axis": axis})


# -- ops described here ------------------------------------------------------------------------------------------------
Maker = Callable[[np.dtype, Callable[..., np.ndarray]], list[Sample]]


def _along(*more: dict[str, Any], inputs: int = 1, low: float = -2, high: float = 2) -> Maker:
    """Ops that run along an axis."""
    def make(d: np.dtype, random: Callable[..., np.ndarray]) -> list[Sample]:
        shapes = [((5,), 0), ((3, 4), 0), ((3, 4), 1), ((1, 2), 0), ((0, 2), 0)]
        return [Sample(tuple(random(shape, low=low, high=high) for _ in range(inputs)), {"axis": axis, **attrs})
                for shape, axis in shapes for attrs in more or ({},)]

    return make


def _gather(d: np.dtype, random: Callable[..., np.ndarray]) -> list[Sample]:
    i, j = np.array([[0, 2], [-1, 2]], I64), np.array([[1, 1], [-2, 0]], I64)
    return [Sample((random((3, 4)), i), {"axes": (0,)}), Sample((random((4, 3)), i), {"axes": (1,)}),
            Sample((random((3, 4)), i, j), {"axes": (0, 1)}), Sample((random((3,)), np.array(1, I64)), {"axes": (0,)}),
            Sample((random((3, 0)), np.zeros((0,), I64)), {"axes": (1,)})]


def _scatter(d: np.dtype, random: Callable[..., np.ndarray]) -> list[Sample]:
    i = np.array([2, 0, 2], I64)
    modes = ["set", "add", "mul"] + ["min", "max"] * (d.kind != "c")
    return [Sample((random((3, 4)), random((3, 4)), i), {"axes": (0,), "mode": m}) for m in modes] + [
        Sample((random((4, 3)), random((3, 4)), i), {"axes": (1,), "mode": m}) for m in modes]


def _cast(d: np.dtype, random: Callable[..., np.ndarray]) -> list[Sample]:
    return [Sample((random((3, 5), low=0, high=9),), {"dtype": to.name}) for to in dtypes.ALL]


def _square_matrices(d: np.dtype, random: Callable[..., np.ndarray]) -> list[Sample]:
    shapes = [((3, 4), (4, 2)), ((2, 3, 4), (2, 4, 1)), ((1, 0), (0, 2)), ((0, 3), (3, 2))]
    return [Sample((random(a), random(b))) for a, b in shapes]


def _columns(d: np.dtype, random: Callable[..., np.ndarray]) -> list[Sample]:
    shapes = [((3, 4, 5), (4, 5)), ((2, 30, 3, 40), (2, 3, 40)), ((1, 9, 1), (9, 1)), ((3, 0, 4), (0, 4))]
    return [Sample((random(a), random(b))) for a, b in shapes]


def _windows(d: np.dtype, random: Callable[..., np.ndarray]) -> list[Sample]:
    return [Sample((random((5, 7)),), {"starts": (1, 6), "sizes": (3, 3), "steps": (1, -2)}),
            Sample((random((5,)),), {"starts": (4,), "sizes": (5,), "steps": (-1,)}),
            Sample((random((3, 2)),), {"starts": (0, 0), "sizes": (0, 2), "steps": (1, 1)})]


def _embeds(d: np.dtype, random: Callable[..., np.ndarray]) -> list[Sample]:
    attrs = {"shape": (5, 7), "starts": (1, 6), "steps": (2, -3)}
    return [Sample((random((2, 3)),), {**attrs, "value": v}) for v in (0, 1)]


def _random_bits(d: np.dtype, random: Callable[..., np.ndarray]) -> list[Sample]:
    key, draw = np.array(0x0123456789ABCDEF, U64), np.array(5, U64)
    shapes = [(), (7,), (3, 5), (0,)] if d == U64 else []
    return [Sample((key, draw), {"shape": shape, "dtype": word, "stream": stream})
            for shape in shapes for word in ("uint32", "uint64") for stream in (0, 2)]


def _convolutions(d: np.dtype, random: Callable[..., np.ndarray]) -> list[Sample]:
    one = {"steps": (1,), "pads": ((0, 0),), "dilations": (1,), "groups": 1}
    return [Sample((random((2, 7, 3)), random((3, 3, 2))), {**one, "steps": (2,), "pads": ((1, 2),)}),
            Sample((random((1, 6, 4)), random((2, 2, 6))), {**one, "dilations": (3,), "groups": 2}),
            Sample((random((2, 4, 5, 2)), random((2, 3, 2, 1))),
                   {"steps": (1, 2), "pads": ((0, 1), (3, 0)), "dilations": (2, 1), "groups": 1}),
            Sample((random((0, 5, 2)), random((3, 2, 2))), one), Sample((random((2, 5, 0)), random((3, 0, 2))), one)]


def _kernel_gradients(d: np.dtype, random: Callable[..., np.ndarray]) -> list[Sample]:
    one = {"sizes": (3,), "steps": (1,), "pads": ((0, 0),), "dilations": (1,), "groups": 1}
    return [Sample((random((2, 6, 3)), random((2, 3, 2))), {**one, "steps": (2,), "pads": ((1, 0),)}),
            Sample((random((1, 6, 4)), random((1, 2, 6))), {**one, "dilations": (2,), "groups": 2}),
            Sample((random((2, 3, 5, 2)), random((2, 2, 2, 1))),
                   {"sizes": (2, 3), "steps": (1, 2), "pads": ((0, 0), (0, 0)), "dilations": (1, 1), "groups": 1}),
            Sample((random((0, 5, 2)), random((0, 3, 2))), one)]


def _shears(d: np.dtype, random: Callable[..., np.ndarray]) -> list[Sample]:
    two = {"axes": (0, 1), "taps": (3, 2)}
    return [Sample((random((7, 3)),), {"axes": (0,), "taps": (1,), "sizes": (3,), "steps": (2,), "dilations": (1,)}),
            Sample((random((5, 6, 2, 3)),), {**two, "sizes": (1, 2), "steps": (1, 3), "dilations": (2, 2)}),
            Sample((random((2, 3)),), {"axes": (0,), "taps": (1,), "sizes": (0,), "steps": (1,), "dilations": (1,)})]


def _unshears(d: np.dtype, random: Callable[..., np.ndarray]) -> list[Sample]:
    two = {"axes": (0, 1), "taps": (3, 2)}
    return [Sample((random((3, 3)),), {"axes": (0,), "taps": (1,), "extents": (8,), "steps": (2,), "dilations": (1,)}),
            Sample((random((1, 2, 2, 3)),), {**two, "extents": (5, 6), "steps": (1, 3), "dilations": (2, 2)}),
            Sample((random((0, 3)),), {"axes": (0,), "taps": (1,), "extents": (2,), "steps": (1,), "dilations": (1,)})]


def _random_mask(d: np.dtype, random: Callable[..., np.ndarray]) -> list[Sample]:
    key, draw = np.array(0x0123456789ABCDEF, U64), np.array(5, U64)
    shapes = [(), (7,), (3, 5), (0,)] if d == U64 else []
    return [Sample((key, draw), {"shape": shape, "threshold": t}) for shape in shapes for t in (0, 1 << 30, 0xFFFFFFFF)]


def _pools(d: np.dtype, random: Callable[..., np.ndarray]) -> list[Sample]:
    return [Sample((random((2, 7, 3)),), {"sizes": (3,), "steps": (2,), "pads": ((1, 0),)}),
            Sample((random((1, 5, 6, 2)),), {"sizes": (2, 3), "steps": (2, 3), "pads": ((0, 0), (0, 0))}),
            Sample((random((2, 4, 5, 1)),), {"sizes": (3, 2), "steps": (1, 3), "pads": ((2, 1), (0, 1))}),
            Sample((random((0, 5, 2)),), {"sizes": (2,), "steps": (1,), "pads": ((0, 0),)})]


MAKERS: dict[str, Maker] = {
    "after": lambda d, random: [Sample((random((3, 4)), random((2,))))],
    "argsort": lambda d, random: [Sample((random(s),)) for s in [(6,), (3, 4), (0,)] if d.kind != "c"],
    "broadcast_to": lambda d, random: [Sample((random(a),), {"shape": b}) for a, b in [
        ((), (2, 3)), ((3, 1), (2, 3, 4)), ((1,), (0,)), ((2, 3), (2, 3))]],
    "cast": _cast,
    "concat": lambda d, random: [Sample((random((2, 3)), random((1, 3)), random((0, 3))), {"axis": 0}),
                                 Sample((random((2, 3)), random((2, 1))), {"axis": 1})],
    "column_product": _columns, "convolution": _convolutions, "convolution_kernel": _kernel_gradients,
    "cummax": _along(), "cummin": _along(), "cumprod": _along(low=0.5, high=1.5), "logcumsumexp": _along(),
    "cumsum": _along({"reverse": False}, {"reverse": True}),
    "embed": _embeds,
    "full": lambda d, random: [Sample((), {"shape": s, "value": 1, "dtype": d.name}) for s in [(), (3, 2), (0,)]],
    "gather": _gather,
    "iota": lambda d, random: [Sample((), {"shape": (3, 4), "axis": a, "dtype": d.name})
                               for a in (0, 1) if d.kind in "iuf"],
    "interleave": lambda d, random: [Sample((random((2, 3)), random((2, 3))), {"steps": (1, 2), "shape": (2, 6)}),
                                     Sample(tuple(random((2, 1)) for _ in range(6)),
                                            {"steps": (3, 2), "shape": (5, 1)}),
                                     Sample((random((0, 2)), random((0, 2))), {"steps": (2, 1), "shape": (0, 2)})],
    "matmul": _square_matrices, "max_pool": _pools, "sum_pool": _pools,
    "random_bits": _random_bits, "random_mask": _random_mask,
    "recurrence": _along({"reverse": False}, {"reverse": True}, inputs=2),
    "reshape": lambda d, random: [Sample((random(a),), {"shape": b}) for a, b in [
        ((3, 4), (2, 6)), ((4,), (4, 1)), ((1,), ()), ((0, 3), (0,))]],
    "scatter": _scatter,
    "searchsorted": lambda d, random: [Sample((np.sort(random((6,))), random((2, 3))), {"side": side})
                                       for side in ("left", "right") if d.kind != "c"],
    "shear": _shears, "slice": _windows,
    "sort": lambda d, random: [Sample((random(s),)) for s in [(6,), (3, 4), (0,)] if d.kind != "c"],
    "transpose": lambda d, random: [Sample((random((2, 3, 4)),), {"axes": axes}) for axes in [(2, 0, 1), (0, 2, 1)]],
    "unshear": _unshears,
}


def samples(op: Op, dtype: np.dtype, rng: np.random.Generator) -> list[Sample]:
    """Arguments for `op` with `dtype` as its main dtype; empty if it refuses the dtype."""
    if op.name in MAKERS:
        def random(shape: tuple[int, ...], low: float = -2, high: float = 2) -> np.ndarray:
            return numbers(rng, shape, dtype, low, high)

        made = MAKERS[op.name](dtype, random)
        return [s for s in made if accepts(op, [Type(a.shape, a.dtype) for a in s.arrays], s.attrs)]
    if op.kind == "elementwise":
        return list(elementwise_samples(op, dtype, rng))
    if op.kind == "reduction":
        return list(reduction_samples(op, dtype, rng))
    return []
