"""Running sums, products and extremes along one axis, and differences.

In: a tensor and an axis. Out: a tensor of its shape. They are library calls (one pass along the axis); the derivatives
of all but the sum run through one more of them, `recurrence`, which makes them exact at zeros, ties and infinities, at
any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.ir import Op, Type
from tracejit.ops import core
from tracejit.ops import elementwise as ew
from tracejit.ops.comparison import isnan, not_equal
from tracejit.ops.core import composite, normalize_axis, primitive, publish, real_floating, real_ordered, strong
from tracejit.ops.movement import along, embed, joined, reshaped
from tracejit.ops.reduction import summing
from tracejit.ops.special import exp, log
from tracejit.tensor import Tensor, apply


def _infer(name: str, rule: core.DtypeRule = core.numeric) -> Callable[..., Type]:
    def infer(x: Type, *more: Type, axis: int, reverse: bool = False) -> Type:
        if not 0 <= axis < x.ndim:
            raise np.exceptions.AxisError(f"{name}: axis {axis} is out of bounds for shape {x.shape}")
        if rule(x.dtype)[0] != x.dtype:
            raise TypeError(f"{name}: {x.dtype} is not supported")
        if any(t != x for t in more):
            raise TypeError(f"{name}: inputs {', '.join(map(str, (x, *more)))} differ")
        return x

    return infer


def _backwards(x: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    return np.flip(x, axis) if reverse else x


def shifted(t: Tensor, axis: int, by: int, value: float = 0) -> Tensor:
    """Element i is that at i - by; `value` comes in at the end left free."""
    n = t.shape[axis]
    if n <= 1:
        return core.full(value, t.shape, t.dtype)
    starts = [0] * t.ndim
    starts[axis] = max(by, 0)
    return embed(along(t, axis, max(-by, 0), n - 1), t.shape, tuple(starts), value=value)


def _conj(t: Tensor) -> Tensor:
    return ew.conj(t) if t.dtype.kind == "c" else t


# -- the recurrence behind the derivatives -----------------------------------------------------------------------------
def _recurrence_eager(a: np.ndarray, b: np.ndarray, *, axis: int, reverse: bool) -> np.ndarray:
    out = np.empty(b.shape, b.dtype)
    factors, terms, results = (np.moveaxis(_backwards(x, axis, reverse), axis, 0) for x in (a, b, out))
    previous = np.zeros(terms.shape[1:], b.dtype)
    for i in range(len(terms)):
        # an exact zero, which carries no gradient, wins over a factor that is inf or nan
        previous = np.where(previous == 0, previous, factors[i] * previous) + terms[i]
        results[i] = previous
    return out


def _recurrence_vjp(g: Tensor, y: Tensor, a: Tensor, b: Tensor, *, axis: int, reverse: bool) -> tuple[Tensor, Tensor]:
    ahead = -1 if not reverse else 1
    db = recurrence(_conj(shifted(a, axis, ahead)), g, axis, not reverse)
    return ew.mul_zero(db, _conj(shifted(y, axis, -ahead))), db


def _recurrence_jvp(tangents: Sequence[Tensor | None], y: Tensor, a: Tensor, b: Tensor, *, axis: int,
                    reverse: bool) -> Tensor:
    da, db = tangents
    moved = db
    if da is not None:
        term = da * shifted(y, axis, 1 if not reverse else -1)  # type: ignore[operator]
        moved = term if db is None else term + db
    assert moved is not None
    return recurrence(a, moved, axis, reverse)


RECURRENCE = primitive(
    "recurrence", "library", infer=_infer("recurrence"), eager=_recurrence_eager, vjp=_recurrence_vjp,
    jvp=_recurrence_jvp, domain=(-1, 1), running="recurrence",
    doc="y[i] = a[i] * y[i - 1] + b[i] along `axis`, from 0; from the end if `reverse`.")


def recurrence(a: Tensor, b: Tensor, axis: int, reverse: bool = False) -> Tensor:
    return apply(RECURRENCE, (a, b), {"axis": axis, "reverse": reverse})


# -- sums --------------------------------------------------------------------------------------------------------------
CUMSUM: Op = primitive(
    "cumsum", "library", infer=_infer("cumsum"), domain=(-2, 2), running="add",
    eager=lambda x, *, axis, reverse: _backwards(np.cumsum(_backwards(x, axis, reverse), axis, x.dtype), axis, reverse),
    vjp=lambda g, y, x, *, axis, reverse: (apply(CUMSUM, (g,), {"axis": axis, "reverse": not reverse}),),
    jvp=lambda tangents, y, x, **attrs: apply(CUMSUM, (tangents[0],), attrs),
    doc="Running sum along `axis`, from the end if `reverse`.")


def _prepared(name: str, x: Any, axis: int | None, dtype: Any,
              rule: Callable[..., Any]) -> tuple[Tensor, int, np.dtype]:
    """The operand in the dtype to run in, the axis (None: of the flat tensor), and the dtype of the result."""
    t = strong(x)
    if dtype is not None:
        t = core.cast(t, dtype)
    if axis is None:
        t, axis = reshaped(t, (t.size,)), 0
    try:
        wanted = rule(t.dtype)[0]
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    result = t.dtype if t.dtype == dtypes.float16 else wanted
    return core.cast(t, wanted), normalize_axis(name, axis, t.ndim), result


def cumsum(x: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Tensor:
    """Running sum along `axis` (None: of the flat tensor); dtypes as `sum`.

    >>> cumsum([1, 2, 3]).tolist()
    [1, 3, 6]
    """
    _no_out("cumsum", out)
    t, axis, result = _prepared("cumsum", x, axis, dtype, summing)
    return core.cast(apply(CUMSUM, (t,), {"axis": axis, "reverse": False}), result)


def _no_out(name: str, out: Any) -> None:
    if out is not None:
        raise TypeError(f"{name}: tensors are values, so out= is not supported; assign the result")


publish(cumsum, CUMSUM, numpy=np.cumsum, method=True)


@composite(numpy=np.cumulative_sum)
def cumulative_sum(x: Any, *, axis: int | None = None, dtype: Any = None, out: None = None,
                   include_initial: bool = False) -> Tensor:
    """Running sum as the array API names it; `include_initial` starts with a 0."""
    return _with_initial(cumsum(x, _only_axis("cumulative_sum", x, axis), dtype, out), axis, 0, include_initial)


@composite(numpy=np.cumulative_prod)
def cumulative_prod(x: Any, *, axis: int | None = None, dtype: Any = None, out: None = None,
                    include_initial: bool = False) -> Tensor:
    """Running product as the array API names it; `include_initial` starts with a 1."""
    return _with_initial(cumprod(x, _only_axis("cumulative_prod", x, axis), dtype, out), axis, 1, include_initial)


def _only_axis(name: str, x: Any, axis: int | None) -> int | None:
    if axis is None and len(np.shape(x)) != 1:
        raise ValueError(f"{name}: axis is needed for a tensor of {len(np.shape(x))} dims")
    return axis


def _with_initial(t: Tensor, axis: int | None, value: int, include: bool) -> Tensor:
    if not include:
        return t
    a = normalize_axis("cumulative", axis or 0, t.ndim)
    first = core.full(value, (*t.shape[:a], 1, *t.shape[a + 1:]), t.dtype)
    return joined([first, t], a)


# -- products ----------------------------------------------------------------------------------------------------------
def _cumprod_vjp(g: Tensor, y: Tensor, x: Tensor, *, axis: int) -> tuple[Tensor]:
    later = recurrence(_conj(shifted(x, axis, -1)), g, axis, reverse=True)
    return (ew.mul_zero(later, _conj(shifted(y, axis, 1, value=1))),)


CUMPROD = primitive(
    "cumprod", "library", infer=_infer("cumprod"), eager=lambda x, *, axis: np.cumprod(x, axis, x.dtype),
    domain=(0.5, 1.5), vjp=_cumprod_vjp, running="mul",
    jvp=lambda tangents, y, x, *, axis: recurrence(x, tangents[0] * shifted(y, axis, 1, value=1), axis),
    doc="Running product along `axis`.")


def cumprod(x: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Tensor:
    """Running product along `axis` (None: of the flat tensor); dtypes as `prod`.

    >>> cumprod([1, 2, 3]).tolist()
    [1, 2, 6]
    """
    _no_out("cumprod", out)
    t, axis, result = _prepared("cumprod", x, axis, dtype, summing)
    return core.cast(apply(CUMPROD, (t,), {"axis": axis}), result)


publish(cumprod, CUMPROD, numpy=np.cumprod, method=True)


# -- extremes ----------------------------------------------------------------------------------------------------------
def _records(y: Tensor, x: Tensor, axis: int) -> Tensor:
    """1 where the running extreme changes (and at the first element), else 0."""
    n = x.shape[axis]
    first = core.full(True, (*x.shape[:axis], min(n, 1), *x.shape[axis + 1:]), dtypes.bool_)
    if n <= 1:
        return core.cast(first, x.dtype)
    before, now = along(y, axis, 0, n - 1), along(y, axis, 1, n - 1)
    changed = not_equal(before, now) & ~(isnan(before) & isnan(now))  # type: ignore[operator]
    return core.cast(joined([first, changed], axis), x.dtype)


def _running(name: str, ufunc: np.ufunc, what: str, running: str) -> Op:
    def vjp(g: Tensor, y: Tensor, x: Tensor, *, axis: int) -> tuple[Tensor]:
        new = _records(y, x, axis)
        return (new * recurrence(shifted(1 - new, axis, -1), g, axis, reverse=True),)  # type: ignore[operator]

    def jvp(tangents: Sequence[Tensor], y: Tensor, x: Tensor, *, axis: int) -> Tensor:
        new = _records(y, x, axis)
        return recurrence(1 - new, new * tangents[0], axis)  # type: ignore[operator]

    return primitive(name, "library", infer=_infer(name, real_ordered), vjp=vjp, jvp=jvp, domain=(-2, 2),
                     running=running, eager=lambda x, *, axis: ufunc.accumulate(x, axis),
                     doc=f"Running {what} along `axis`; the first of equal ones has the derivative.")


CUMMAX = _running("cummax", np.maximum, "maximum", "max")
CUMMIN = _running("cummin", np.minimum, "minimum", "min")


def cummax(x: Any, axis: int | None = None) -> Tensor:
    """Running maximum along `axis` (None: of the flat tensor); its first occurrence gets the derivative.

    >>> cummax([1, 3, 2]).tolist()
    [1, 3, 3]
    """
    t, axis, _ = _prepared("cummax", x, axis, None, real_ordered)
    return apply(CUMMAX, (t,), {"axis": axis})


def cummin(x: Any, axis: int | None = None) -> Tensor:
    """Running minimum along `axis` (None: of the flat tensor); its first occurrence gets the derivative.

    >>> cummin([2, 1, 3]).tolist()
    [2, 1, 1]
    """
    t, axis, _ = _prepared("cummin", x, axis, None, real_ordered)
    return apply(CUMMIN, (t,), {"axis": axis})


publish(cummax, CUMMAX, method=True)
publish(cummin, CUMMIN, method=True)


# -- sums of exponentials ----------------------------------------------------------------------------------------------
def _ratio(x: Tensor, y: Tensor) -> Tensor:
    """exp(x - y), 0 where both are -inf."""
    nothing = y == float("-inf")
    return ew.where(nothing, 0, exp(x - ew.where(nothing, 0, y)))  # type: ignore[operator]


def _logcumsumexp_vjp(g: Tensor, y: Tensor, x: Tensor, *, axis: int) -> tuple[Tensor]:
    later = recurrence(_ratio(y, shifted(y, axis, -1, value=float("inf"))), g, axis, reverse=True)
    return (ew.mul_zero(later, _ratio(x, y)),)


def _logcumsumexp_jvp(tangents: Sequence[Tensor], y: Tensor, x: Tensor, *, axis: int) -> Tensor:
    before = shifted(y, axis, 1, value=float("-inf"))
    return recurrence(_ratio(before, y), ew.mul_zero(tangents[0], _ratio(x, y)), axis)


def log_of_running_sum(x: Tensor, highest: Tensor, axis: int) -> Tensor:
    """`logcumsumexp` from the running maximum: the sum of exponentials below it is a recurrence."""
    sums = recurrence(_ratio(shifted(highest, axis, 1, float("-inf")), highest), _ratio(x, highest), axis)
    return ew.where(highest == float("inf"), highest, highest + log(sums))  # type: ignore[operator]


LOGCUMSUMEXP = primitive(
    "logcumsumexp", "library", infer=_infer("logcumsumexp", real_floating), domain=(-2, 2), vjp=_logcumsumexp_vjp,
    jvp=_logcumsumexp_jvp, eager=lambda x, *, axis: np.logaddexp.accumulate(x, axis),
    doc="Logarithm of the running sum of exponentials along `axis`.")


def logcumsumexp(x: Any, axis: int | None = None) -> Tensor:
    """log(cumsum(exp(x))) along `axis` (None: of the flat tensor), without overflow.

    >>> logcumsumexp([0.0, 0.0]).tolist()
    [0.0, 0.6931471824645996]
    """
    t, axis, _ = _prepared("logcumsumexp", x, axis, None, real_floating)
    return apply(LOGCUMSUMEXP, (t,), {"axis": axis})


publish(logcumsumexp, LOGCUMSUMEXP)


# -- differences -------------------------------------------------------------------------------------------------------
@composite(numpy=np.diff)
def diff(x: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Tensor:
    """Differences of neighbours along `axis`, `n` times; of bools, whether they differ. ValueError for negative n.

    >>> diff([1, 4, 9, 16]).tolist(), diff([1, 4, 9, 16], n=2).tolist()
    ([3, 5, 7], [2, 2])
    """
    t = strong(x)
    if n < 0:
        raise ValueError(f"diff: n must not be negative, got {n}")
    if t.ndim == 0:
        raise ValueError("diff: the tensor has no dim")
    a = normalize_axis("diff", axis, t.ndim)
    if n == 0:
        return core.alias(t)
    ends = [p if p is None else _slab(p, t, a) for p in (prepend, append)]
    if any(p is not None for p in ends):
        parts = [p for p in (ends[0], t, ends[1]) if p is not None]
        dtype = dtypes.result_dtype([p.dtype for p in parts])
        t = joined([core.cast(p, dtype) for p in parts], a)
    for _ in range(n):
        size = max(t.shape[a] - 1, 0)
        late, early = along(t, a, min(1, t.shape[a]), size), along(t, a, 0, size)
        t = not_equal(late, early) if t.dtype.kind == "b" else late - early  # type: ignore[operator]
    return t


def _slab(value: Any, t: Tensor, axis: int) -> Tensor:
    """What to put before or after `t`: a number becomes a slab of extent 1."""
    s = strong(value)
    return core.broadcast_to(s, (*t.shape[:axis], 1, *t.shape[axis + 1:])) if s.ndim == 0 else s


__all__ = ["cummax", "cummin", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "diff", "logcumsumexp"]
