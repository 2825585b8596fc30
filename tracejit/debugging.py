"""`tj.debugging`: find where a nan comes from, check values at run time, compare eager and compiled code.

In: code with something wrong in it. Out: an exception that names the op and the user's line, or a table of differences.

    with debug_nans(): ...        the first op that makes nan of numbers raises, eager or compiled, forward or backward
    check_numerics, assert_*      checks that stay in compiled code and run at each call, in program order
    compare(f, *args)             the first op whose compiled value differs from NumPy's, in units in the last place

Read next: `trace/checked.py` (compiled code that shows every value).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracejit import config, dtypes
from tracejit.errors import user_line
from tracejit.function import Function, Method, build, function
from tracejit.ir import GETITEM, Node, Op, Type
from tracejit.ops import comparison, core
from tracejit.ops.effects import check as _check
from tracejit.quiet import quietly
from tracejit.tensor import Tensor, recording, state, taping
from tracejit.trace.checked import EXPECTED, EveryValue, check

__all__ = [
    "Comparison", "Difference", "assert_all_finite", "assert_equal", "assert_greater", "assert_greater_equal",
    "assert_less", "assert_less_equal", "assert_near", "assert_negative", "assert_non_negative",
    "assert_non_positive", "assert_none_equal", "assert_positive", "assert_rank", "assert_shapes", "assert_true",
    "assert_type", "check_numerics", "compare", "debug_nans", "expect_nan",
]  # fmt: skip


# -- nan -----------------------------------------------------------------------------------------------------------
class _Watch:
    """Hears every eager op and looks at what it gave."""

    differentiates = False

    def record(self, op: Op, args: Sequence[Tensor], attrs: Mapping[str, Any], out: Any) -> None:
        if op.name == "call":  # a compiled function: it has looked by itself
            return
        inputs = [a._value for a in args]
        for y in out if isinstance(out, tuple) else (out,):
            if isinstance(y._value, np.ndarray) and y.dtype.kind in "fc":
                check(op.name, y._value, inputs, user_line())  # type: ignore[arg-type]

    def escaped(self, tensor: Tensor, how: str) -> None:
        """What leaves for Python is no concern."""


@contextmanager
def debug_nans(infs: bool = False) -> Iterator[None]:
    """Inside, the first op that gives nan though no input had one raises FloatingPointError with its name, the user's
    line and the range of its inputs: in eager code and in compiled functions, in the forward and the backward run.

    infs: also raise for inf made of finite numbers. The numbers stay those of eager or compiled code, only slower:
    every value is stored and looked at. What is meant to give nan goes inside `expect_nan`.
    """
    saved, config.debug.nans = config.debug.nans, "inf" if infs else "nan"
    try:
        with taping((*state.tapes, _Watch())):
            yield
    finally:
        config.debug.nans = saved


@contextmanager
def expect_nan() -> Iterator[None]:
    """Inside, `debug_nans` lets nan pass. In a compiled function that goes for the lines traced inside, and for their
    derivatives."""
    trace: Any = state.trace
    if trace is not None:
        before = len(trace.nodes)
        yield
        EXPECTED.update(n.where for n in trace.nodes[before:] if n.where)
        return
    saved, config.debug.nans = config.debug.nans, ""
    try:
        with taping(tuple(t for t in state.tapes if not isinstance(t, _Watch))):
            yield
    finally:
        config.debug.nans = saved


# -- checks at run time ------------------------------------------------------------------------------------------------
def check_numerics(t: Any, message: str = "") -> Tensor:
    """`t` itself; FloatingPointError with the message if it holds nan or inf, at each run of a compiled function.

    >>> check_numerics([1.0, 2.0], "weights")
    tj.Tensor([1. 2.], shape=(2,), dtype=float32)
    """
    x = core.as_tensor(t)
    if x.dtype.kind in "fc":
        bad = comparison.logical_not(comparison.isfinite(x))
        at = user_line()

        def told() -> str:
            return f"{message or 'check_numerics'}: {bad.sum()} of {x.size} values are nan or inf (at {at})"

        _check(comparison.logical_not(bad.any()), told, "FloatingPointError")
    return x


def _refuse(condition: Any, text: Any, message: str | None) -> None:
    """AssertionError with the user's message and what was found, unless the condition (a tensor) holds everywhere."""
    at = user_line(3)

    def told() -> str:
        return f"{message}: {text()} (at {at})" if message else f"{text()} (at {at})"

    _check(condition.all() if isinstance(condition, Tensor) else condition, told)


def assert_true(condition: Any, message: str | None = None) -> None:
    """The condition holds everywhere."""
    c = core.as_tensor(condition)
    _refuse(c, lambda: f"assert_true: {c}", message)


RELATIONS = {
    "==": comparison.equal, "!=": comparison.not_equal, "<": comparison.less, "<=": comparison.less_equal,
    ">": comparison.greater, ">=": comparison.greater_equal,
}  # fmt: skip


def _operand(x: Any) -> Any:
    """A tensor; a Python number as it is, so that it takes the dtype of what it meets."""
    return x if isinstance(x, (bool, int, float, complex)) else core.as_tensor(x)


def _compare(name: str, sign: str, x: Any, y: Any, message: str | None) -> None:
    """AssertionError unless `x sign y` holds everywhere."""
    a, b = core.as_tensor(x), _operand(y)
    holds = RELATIONS[sign](a, b)
    fails = comparison.logical_not(holds)

    def told() -> str:
        return f"{name}: x {sign} y does not hold at {fails.sum()} of {fails.size} places; x = {a}, y = {b}"

    _refuse(holds, told, message)


def assert_equal(x: Any, y: Any, message: str | None = None) -> None:
    """x == y everywhere (broadcast)."""
    _compare("assert_equal", "==", x, y, message)


def assert_none_equal(x: Any, y: Any, message: str | None = None) -> None:
    """x != y everywhere (broadcast)."""
    _compare("assert_none_equal", "!=", x, y, message)


def assert_less(x: Any, y: Any, message: str | None = None) -> None:
    """x < y everywhere (broadcast)."""
    _compare("assert_less", "<", x, y, message)


def assert_less_equal(x: Any, y: Any, message: str | None = None) -> None:
    """x <= y everywhere (broadcast)."""
    _compare("assert_less_equal", "<=", x, y, message)


def assert_greater(x: Any, y: Any, message: str | None = None) -> None:
    """x > y everywhere (broadcast)."""
    _compare("assert_greater", ">", x, y, message)


def assert_greater_equal(x: Any, y: Any, message: str | None = None) -> None:
    """x >= y everywhere (broadcast)."""
    _compare("assert_greater_equal", ">=", x, y, message)


def _compare_with_zero(name: str, sign: str, x: Any, message: str | None) -> None:
    a = core.as_tensor(x)
    _refuse(RELATIONS[sign](a, 0), lambda: f"{name}: x {sign} 0 does not hold; x = {a}", message)


def assert_positive(x: Any, message: str | None = None) -> None:
    """x > 0 everywhere."""
    _compare_with_zero("assert_positive", ">", x, message)


def assert_negative(x: Any, message: str | None = None) -> None:
    """x < 0 everywhere."""
    _compare_with_zero("assert_negative", "<", x, message)


def assert_non_negative(x: Any, message: str | None = None) -> None:
    """x >= 0 everywhere."""
    _compare_with_zero("assert_non_negative", ">=", x, message)


def assert_non_positive(x: Any, message: str | None = None) -> None:
    """x <= 0 everywhere."""
    _compare_with_zero("assert_non_positive", "<=", x, message)


def assert_near(x: Any, y: Any, rtol: float | None = None, atol: float | None = None,
                message: str | None = None) -> None:
    """|x - y| <= atol + rtol * |y| everywhere; by default both are ten times the resolution of the dtype."""
    a, b = core.as_tensor(x), _operand(y)
    exact = {a.dtype.kind, core.as_tensor(y).dtype.kind} <= set("biu")
    far = abs((a.astype("float64") if exact else a) - b)  # integers would wrap
    eps = 0.0 if exact else 10 * float(np.finfo(far.dtype).eps)
    rtol, atol = eps if rtol is None else rtol, eps if atol is None else atol
    holds = comparison.logical_or(a == b, far <= abs(b) * rtol + atol)  # inf is near inf
    _refuse(holds, lambda: f"assert_near: the largest difference is {far.max()} (rtol={rtol:.3g}, atol={atol:.3g}); "
                           f"x = {a}, y = {b}", message)


def assert_all_finite(x: Any, message: str | None = None) -> None:
    """No nan and no inf in x."""
    a = core.as_tensor(x)
    finite = comparison.isfinite(a)
    count = comparison.logical_not(finite)
    _refuse(finite, lambda: f"assert_all_finite: {count.sum()} of {a.size} values are nan or inf", message)


def assert_rank(x: Any, rank: int | Sequence[int], message: str | None = None) -> None:
    """x has that many dims (or one of those numbers). Known while tracing."""
    a, ranks = core.as_tensor(x), (rank,) if isinstance(rank, int) else tuple(rank)
    wanted = " or ".join(map(str, ranks))
    _refuse(a.ndim in ranks, lambda: f"assert_rank: shape {a.shape} has {a.ndim} dims, not {wanted}", message)


def assert_type(x: Any, dtype: Any, message: str | None = None) -> None:
    """x has that dtype. Known while tracing."""
    a, wanted = core.as_tensor(x), dtypes.as_dtype(dtype)
    _refuse(a.dtype == wanted, lambda: f"assert_type: dtype {a.dtype}, not {wanted}", message)


def assert_shapes(shapes: Sequence[tuple[Any, Sequence[Any]]], message: str | None = None) -> None:
    """Each tensor has its shape; a size may be a number, None (any), or a name that stands for one size throughout.

    >>> assert_shapes([([[1.0, 2.0]], ("rows", "columns")), ([3.0, 4.0], ("columns",))])
    """
    sizes: dict[Any, int] = {}
    for k, (x, wanted) in enumerate(shapes):
        shape = core.as_tensor(x).shape
        same = len(shape) == len(wanted)
        for n, w in zip(shape, wanted) if same else ():
            same = same and (w is None or n == (w if isinstance(w, int) else sizes.setdefault(w, n)))
        known = ", ".join(f"{name} = {n}" for name, n in sizes.items())
        told = f"assert_shapes: tensor {k} has shape {shape}, not {tuple(wanted)}{f' with {known}' if known else ''}"
        _refuse(same, lambda told=told: told, message)


# -- eager against compiled --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Difference:
    """One op: how far its compiled value is from NumPy's for the same inputs, at the worst element."""

    op: str
    where: str
    type: Type
    ulps: float  # units in the last place; for integers and bools the plain difference
    index: tuple[int, ...]
    eager: Any
    compiled: Any

    def __str__(self) -> str:
        at = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        return (f"{self.op} {self.type!r} at {self.where or 'an unknown line'}: {self.ulps:g} ulp{at}, "
                f"eager {self.eager!r}, compiled {self.compiled!r}")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` found. `first` is the first op in program order that differs by more than was allowed."""

    name: str
    ops: list[Difference]
    results: list[float]  # ulps between the results of the whole function, eager and compiled
    allowed: float

    @property
    def first(self) -> Difference | None:
        return next((d for d in self.ops if d.ulps > self.allowed), None)

    @property
    def worst(self) -> Difference | None:
        return max(self.ops, key=lambda d: d.ulps, default=None)

    def __str__(self) -> str:
        differing = [d for d in self.ops if d.ulps > self.allowed]
        counts = f"{len(self.ops)} ops compared, {len(differing)} differ by more than {self.allowed:g} ulp"
        lines = [f"{self.name}: {counts}"]
        lines += [f"  {'first: ' if k == 0 else ''}{d}" for k, d in enumerate(differing[:10])]
        lines += [f"  ... and {len(differing) - 10} more"] if len(differing) > 10 else []
        lines += [f"  result {k}: {u:g} ulp" for k, u in enumerate(self.results)]
        return "\n".join(lines)

    __repr__ = __str__


def compare(f: Any, *args: Any, ulps: float = 0, **kwargs: Any) -> Comparison:
    """Run a function compiled, and each of its ops again with NumPy on the values that compiled code had: the first op
    that differs by more than `ulps` is where they part. Nothing is written: Variables and arguments keep their values.

    Every value is stored for that, so less is fused than usual. Prints and callbacks run once.
    """
    decorated = f if isinstance(f, (Function, Method)) else function(f)
    graph, arrays = decorated.recorded(*args, **kwargs)
    every = EveryValue(graph, lambda g: build(g, decorated.options))
    found, values = every([np.array(a) for a in arrays])
    chain = dict(zip(graph.inputs, arrays))
    ops = []
    for node in graph.nodes:
        if node.op is GETITEM and node.inputs[0].op.stateful:
            chain[node] = values[node]  # a callback's result
            continue
        if node.op.stateful:
            continue
        maker = node.inputs[0] if node.op is GETITEM else node
        if isinstance(node.type, tuple):
            continue
        own = _numpy(maker, node, values)
        chain[node] = _numpy(maker, node, chain)
        if maker.inputs:
            ops.append(_difference(maker.op.name, node, own, values[node]))
    results = [_ulps(chain[n], found[k])[0] for k, n in enumerate(graph.outputs)]
    return Comparison(decorated.name, ops, results, ulps)


def _numpy(maker: Node, node: Node, values: Mapping[Node, np.ndarray]) -> np.ndarray:
    with recording(None):
        out = quietly(maker.op.eager, *[values[i] for i in maker.inputs], **maker.attrs)
    return np.asarray(out[node.attrs["index"]] if node.op is GETITEM else out)


def _difference(op: str, node: Node, eager: np.ndarray, compiled: np.ndarray) -> Difference:
    ulps, at = _ulps(eager, compiled)
    where = np.unravel_index(at, eager.shape) if eager.size else ()
    index = tuple(int(k) for k in where)
    pair = (eager[index].item(), compiled[index].item()) if eager.size else (None, None)
    return Difference(op, node.where, Type(node.shape, node.dtype), ulps, index, *pair)


def _ulps(a: np.ndarray, b: np.ndarray) -> tuple[float, int]:
    """The largest distance in units in the last place, and the flat position of it. nan is as far as anything from a
    number."""
    if not a.size:
        return 0.0, 0
    x, y = np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1)
    if x.dtype.kind == "c":
        part = np.dtype(f"f{x.dtype.itemsize // 2}")
        far = _float_ulps(x.view(part), y.view(part)).reshape(-1, 2).max(axis=1)
    elif x.dtype.kind == "f":
        far = _float_ulps(x, y)
    else:
        far = np.abs(x.astype(np.float64) - y.astype(np.float64))
    at = int(np.argmax(far))
    return float(far[at]), at


def _float_ulps(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        wide = np.float64 if x.dtype.itemsize < 8 else np.longdouble
        unit = np.spacing(np.maximum(np.abs(x), np.abs(y))).astype(wide)
        far = np.abs(x.astype(wide) - y.astype(wide)) / unit
    far = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0, far)
    return np.where(np.isnan(far), np.inf, far).astype(np.float64)
