"""The scalar statement language: what one lane of a kernel computes.

In: arithmetic written with `Value` operators by an op's `scalar` rule or by `mathlib`.
Out: a flat list of `Stmt` in single-assignment order, shared by every target.

Each statement has one result of one dtype. `SCALAR_OPS` is the whole language, with its meaning in NumPy
(`interpret` runs it), so a kernel can be checked without compiling it. A target prints every name in it.
Complex numbers never reach a target: `Complex` is a pair of real values with the same operators.

Read next: `mathlib/` (functions written in it), `kernel.py` (loops around it), `emit_llvm.py`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

BOOL = np.dtype("bool")
I32, I64 = np.dtype("int32"), np.dtype("int64")
U32, U64 = np.dtype("uint32"), np.dtype("uint64")
F16, F32, F64 = np.dtype("float16"), np.dtype("float32"), np.dtype("float64")


class Stmt(NamedTuple):
    """One statement: `v<n> = op(args, attrs)` of `dtype`; `args` are numbers of earlier statements."""

    op: str
    dtype: np.dtype
    args: tuple[int, ...] = ()
    attrs: tuple[Any, ...] = ()


def behind(stmts: Sequence[Stmt], roots: Iterable[int], known: Collection[int] = ()) -> list[int]:
    """The statements that `roots` need, themselves included, in order; not `known` ones and what only they need."""
    found: set[int] = set()
    todo = list(roots)
    while todo:
        i = todo.pop()
        if i not in found and i not in known:
            found.add(i)
            todo.extend(stmts[i].args)
    return sorted(found)


@dataclass(frozen=True, slots=True)
class Region:
    """The inside of a `loop` statement: statements of their own numbering, pure but for `arg`.

    `arg` k is carry k now, or operand k - carries. The loop goes on while the statement `test` holds (None: always)
    and, if it is counted, so many times; then carry k becomes statement nexts[k].
    """

    carries: int
    stmts: tuple[Stmt, ...]
    nexts: tuple[int, ...]
    test: int | None
    counted: bool

    @property
    def ends(self) -> tuple[int, ...]:
        return self.nexts if self.test is None else (*self.nexts, self.test)

    def needed(self, roots: Sequence[int]) -> list[int]:
        """The statements behind `roots`, in order."""
        return behind(self.stmts, roots)


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """The meaning of a statement on NumPy arrays: `numpy(*args, dtype=result dtype)`."""

    numpy: Callable[..., Any] | None
    doc: str


@cache
def _c_fma(name: str, number: Any) -> np.ufunc:
    """fma or fmaf of the C library: NumPy has none, and no wider type is wide enough where the sum cancels."""
    f = getattr(ctypes.CDLL(None), name)
    f.restype, f.argtypes = number, (number,) * 3
    return np.frompyfunc(f, 3, 1)


def _fma(x: Any, y: Any, z: Any) -> Any:
    if x.dtype == F16:
        return (x.astype(np.float64) * y + z).astype(F16)
    f = _c_fma("fma", ctypes.c_double) if x.dtype == F64 else _c_fma("fmaf", ctypes.c_float)
    return np.asarray(f(x, y, z)).astype(x.dtype)


def _quot(x: Any, y: Any) -> Any:
    """Integer quotient that truncates towards zero, exact in every width; the caller keeps y nonzero."""
    if x.dtype.kind == "u":
        return x // y
    q = x // y
    return q + ((x % y != 0) & ((x < 0) != (y < 0))).astype(x.dtype)


def _shift(f: Callable[..., Any], unsigned: bool) -> Callable[..., Any]:
    def shift(x: Any, y: Any) -> Any:
        if not unsigned:
            return f(x, y)
        u = np.dtype(f"u{x.dtype.itemsize}")
        return f(x.view(u), y.view(u)).view(x.dtype)

    return shift


# name -> meaning. Statements with `numpy=None` depend on the kernel around them (see `kernel.py`).
SCALAR_OPS: dict[str, ScalarOp] = {
    "const": ScalarOp(None, "attrs=(python number,)"),
    "param": ScalarOp(None, "attrs=(number,): an int64 run-time parameter of the launch"),
    "coord": ScalarOp(None, "attrs=(dim,): the int64 loop coordinate along a dim of the space"),
    "load": ScalarOp(None, "attrs=(read,); args=() | (offset,) | (offset, mask): element of a read; offset int64 "
                           "elements added to the affine address, mask bool: lanes that load, others give 0"),
    "carry": ScalarOp(None, "attrs=(accumulator,): the finished result of an earlier stage's accumulator"),
    "running": ScalarOp(None, "attrs=(name,); args=(value,): `name` (add mul min max) of all values along the inner "
                              "dim so far; args=(factor, term) for 'recurrence': term + factor * the result before, "
                              "which is 0 at first, and a 0 stays 0 whatever the factor"),
    "check": ScalarOp(None, "attrs=(site,); args=(ok, value): where ok is false, report `value` at `site` after the "
                            "run; result is ok"),
    "loop": ScalarOp(None, "attrs=(Region, vectors); args=(count if counted, carries' first values, operands): all "
                           "carries after the loop, for `result`. vectors: how many at once, to fill the pipeline "
                           "(0: one element)"),
    "result": ScalarOp(None, "attrs=(carry,); args=(loop,): one carry after a loop"),
    "arg": ScalarOp(None, "attrs=(k,): in a Region only"),
    "add": ScalarOp(np.add, "wraps for integers; attrs=('contract',) allows fma"),
    "sub": ScalarOp(np.subtract, "wraps for integers"),
    "mul": ScalarOp(np.multiply, "wraps for integers"),
    "div": ScalarOp(np.divide, "floats, IEEE"),
    "quot": ScalarOp(_quot, "integers, truncated; undefined for y == 0 and for min / -1 (callers guard)"),
    "rem": ScalarOp(np.fmod, "integers: x - quot(x, y) * y; floats: C fmod; integers undefined for y == 0"),
    "fma": ScalarOp(_fma, "floats: x * y + z rounded once"),
    "neg": ScalarOp(np.negative, "floats flip the sign bit; integers wrap"),
    "abs": ScalarOp(np.abs, "floats clear the sign bit; integers wrap"),
    "sqrt": ScalarOp(np.sqrt, "correctly rounded"),
    "floor": ScalarOp(np.floor, "floats"),
    "ceil": ScalarOp(np.ceil, "floats"),
    "trunc": ScalarOp(np.trunc, "floats"),
    "rint": ScalarOp(np.rint, "floats, ties to even"),
    "min": ScalarOp(np.minimum, "nan if either is nan; of -0 and +0 either may result; bool and"),
    "max": ScalarOp(np.maximum, "nan if either is nan; bool or"),
    "lt": ScalarOp(np.less, "ordered; result bool"),
    "le": ScalarOp(np.less_equal, "ordered; result bool"),
    "eq": ScalarOp(np.equal, "ordered; result bool"),
    "ne": ScalarOp(np.not_equal, "unordered: true for nan; result bool"),
    "and": ScalarOp(np.bitwise_and, "integers and bool"),
    "or": ScalarOp(np.bitwise_or, "integers and bool"),
    "xor": ScalarOp(np.bitwise_xor, "integers and bool"),
    "not": ScalarOp(np.invert, "integers and bool"),
    "shl": ScalarOp(_shift(np.left_shift, False), "integers; undefined for a count outside [0, bits)"),
    "lshr": ScalarOp(_shift(np.right_shift, True), "logical shift right; count as shl"),
    "ashr": ScalarOp(_shift(np.right_shift, False), "arithmetic shift right of signed integers; count as shl"),
    "ctlz": ScalarOp(lambda x: np.array([x.dtype.itemsize * 8 - int(v & ((1 << x.dtype.itemsize * 8) - 1)).bit_length()
                                         for v in x.ravel().tolist()], x.dtype).reshape(x.shape),
                     "integers: number of leading zero bits; all bits for 0"),
    "scale": ScalarOp(lambda x, n: np.ldexp(x, np.where(np.abs(n) < 1 << 20, n, 0).astype(np.int32)),
                      "floats: x * 2**n rounded once, for an x near 1 (or nan) and an integral float n with |n| below "
                      "twice the exponent bias"),
    "lookup": ScalarOp(None, "attrs=16 literals; args=(integer,) as wide as the result: the one that its lowest 4 bits "
                             "number"),
    "popcount": ScalarOp(lambda x: np.bitwise_count(x).astype(x.dtype), "integers: number of one bits"),
    "select": ScalarOp(np.where, "args=(cond, if true, if false); attrs=('rare',): cond is almost never true in "
                                 "any lane, so a target may branch around what only feeds the true side"),
    "cast": ScalarOp(None, "to the statement's dtype, as C; to bool: x != 0; float to int of values out of range gives "
                           "some int"),
    "bitcast": ScalarOp(None, "same bits, another dtype of the same width"),
}

COMPARISONS = frozenset({"lt", "le", "eq", "ne"})
FUSABLE = frozenset({"add", "sub", "mul"})  # the statements that may carry 'contract'


class Builder:
    """Grows a statement list. Equal statements are one statement."""

    def __init__(self) -> None:
        self.stmts: list[Stmt] = []
        self._memo: dict[Stmt, int] = {}
        self.contract = False  # whether new float add, sub and mul may fuse into fma

    def emit(self, op: str, dtype: np.dtype, args: Sequence[Value] = (), attrs: tuple[Any, ...] = ()) -> Value:
        if self.contract and op in FUSABLE and dtype.kind == "f":
            attrs = ("contract",)
        key = Stmt(op, dtype, tuple(a.index for a in args), attrs)
        memo_key: Any = key
        # -0.0 == 0.0 and 1 == True, yet they differ; nan != nan, yet it is one statement
        if op in ("const", "loop", "lookup"):
            memo_key = (op, dtype, key.args, repr(attrs))
        index = self._memo.get(memo_key)
        if index is None:
            index = self._memo[memo_key] = len(self.stmts)
            self.stmts.append(key)
        return Value(self, index, dtype)

    def const(self, value: bool | int | float, dtype: Any) -> Value:
        """A literal. Floats are rounded to `dtype`; integers wrap."""
        dtype = np.dtype(dtype)
        if dtype.kind == "b":
            value = bool(value)
        elif dtype.kind == "f":
            with np.errstate(all="ignore"):
                value = float(dtype.type(value))
        else:
            bits = dtype.itemsize * 8
            value = int(value) & ((1 << bits) - 1)
            if dtype.kind == "i" and value >> (bits - 1):
                value -= 1 << bits
        return self.emit("const", dtype, (), (value,))


@contextmanager
def exact(builder: Builder) -> Iterator[None]:
    """Inside, no multiply and add fuse unless written as `fma` (error-free transformations need this)."""
    saved, builder.contract = builder.contract, False
    try:
        yield
    finally:
        builder.contract = saved


class Value:
    """The result of a statement. Operators emit statements; Python numbers take this value's dtype.

    `/` divides floats; `//` and `%` are the raw `quot` and `rem`; `>>` is arithmetic for signed and logical for
    unsigned integers.
    """

    __slots__ = ("builder", "index", "dtype")
    __array_ufunc__ = None  # so that a NumPy scalar on the left defers to us

    def __init__(self, builder: Builder, index: int, dtype: np.dtype):
        self.builder, self.index, self.dtype = builder, index, dtype

    def __repr__(self) -> str:
        return f"v{self.index}: {self.dtype}"

    def lift(self, other: Value | bool | int | float) -> Value:
        """`other` as a value of this value's dtype (literals only; values must already agree)."""
        if isinstance(other, Value):
            assert other.dtype == self.dtype, f"{self!r} meets {other!r}"
            return other
        return self.builder.const(other, self.dtype)

    def _binary(self, op: str, other: Any, swap: bool = False, dtype: np.dtype | None = None) -> Value:
        other = self.lift(other)
        args = (other, self) if swap else (self, other)
        return self.builder.emit(op, dtype or self.dtype, args)

    def __add__(self, o: Any) -> Value:
        return self._binary("add", o)

    def __radd__(self, o: Any) -> Value:
        return self._binary("add", o, True)

    def __sub__(self, o: Any) -> Value:
        return self._binary("sub", o)

    def __rsub__(self, o: Any) -> Value:
        return self._binary("sub", o, True)

    def __mul__(self, o: Any) -> Value:
        return self._binary("mul", o)

    def __rmul__(self, o: Any) -> Value:
        return self._binary("mul", o, True)

    def __truediv__(self, o: Any) -> Value:
        return self._binary("div", o)

    def __rtruediv__(self, o: Any) -> Value:
        return self._binary("div", o, True)

    def __floordiv__(self, o: Any) -> Value:
        return self._binary("quot", o)

    def __mod__(self, o: Any) -> Value:
        return self._binary("rem", o)

    def __and__(self, o: Any) -> Value:
        return self._binary("and", o)

    def __or__(self, o: Any) -> Value:
        return self._binary("or", o)

    def __xor__(self, o: Any) -> Value:
        return self._binary("xor", o)

    def __lshift__(self, o: Any) -> Value:
        return self._binary("shl", o)

    def __rshift__(self, o: Any) -> Value:
        return self._binary("ashr" if self.dtype.kind == "i" else "lshr", o)

    def lshr(self, o: Any) -> Value:
        return self._binary("lshr", o)

    def __neg__(self) -> Value:
        return self.builder.emit("neg", self.dtype, (self,))

    def __invert__(self) -> Value:
        return self.builder.emit("not", self.dtype, (self,))

    def __lt__(self, o: Any) -> Value:
        return self._binary("lt", o, dtype=BOOL)

    def __le__(self, o: Any) -> Value:
        return self._binary("le", o, dtype=BOOL)

    def __gt__(self, o: Any) -> Value:
        return self._binary("lt", o, True, dtype=BOOL)

    def __ge__(self, o: Any) -> Value:
        return self._binary("le", o, True, dtype=BOOL)

    def __eq__(self, o: Any) -> Value:  # type: ignore[override]
        return self._binary("eq", o, dtype=BOOL)

    def __ne__(self, o: Any) -> Value:  # type: ignore[override]
        return self._binary("ne", o, dtype=BOOL)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise TypeError("a scalar value has no truth value while a kernel is being built; use select()")


def unary(op: str) -> Callable[[Value], Value]:
    def emit(x: Value) -> Value:
        return x.builder.emit(op, x.dtype, (x,))

    emit.__name__ = op
    emit.__doc__ = SCALAR_OPS[op].doc
    return emit


fabs, sqrt, floor, ceil, trunc, rint = (unary(n) for n in ("abs", "sqrt", "floor", "ceil", "trunc", "rint"))
ctlz, popcount = unary("ctlz"), unary("popcount")


def fma(x: Value, y: Any, z: Any) -> Value:
    """x * y + z, rounded once."""
    return x.builder.emit("fma", x.dtype, (x, x.lift(y), x.lift(z)))


def scale(x: Value, n: Value) -> Value:
    """x * 2**n, rounded once, for x near 1."""
    return x.builder.emit("scale", x.dtype, (x, n))


def lookup(number: Value, table: Sequence[float], dtype: np.dtype) -> Value:
    """The entry of a table of 16 that the lowest bits of an integer number."""
    entries = tuple(float(dtype.type(v)) for v in table)
    assert len(entries) == 16 and number.dtype.itemsize == dtype.itemsize
    return number.builder.emit("lookup", dtype, (number,), entries)


def minimum(x: Value, y: Any) -> Value:
    return x._binary("min", y)


def maximum(x: Value, y: Any) -> Value:
    return x._binary("max", y)


def select(cond: Value, x: Any, y: Any) -> Any:
    """x where cond, else y, elementwise. One of x and y may be a Python number; either may be `Complex`."""
    if isinstance(x, Complex) or isinstance(y, Complex):
        x = x if isinstance(x, Complex) else Complex(y.re.lift(x), y.re.lift(0))
        y = y if isinstance(y, Complex) else Complex(x.re.lift(y), x.re.lift(0))
        return Complex(select(cond, x.re, y.re), select(cond, x.im, y.im))
    like = x if isinstance(x, Value) else y
    x, y = like.lift(x), like.lift(y)
    return like.builder.emit("select", like.dtype, (cond, x, y))


def cast(x: Any, dtype: Any) -> Any:
    """Convert to `dtype`; complex to real drops the imaginary part, to bool asks for nonzero."""
    dtype = np.dtype(dtype)
    if isinstance(x, Complex):
        if dtype.kind == "c":
            part = np.dtype(f"f{dtype.itemsize // 2}")
            return Complex(cast(x.re, part), cast(x.im, part))
        return (x.re != 0) | (x.im != 0) if dtype.kind == "b" else cast(x.re, dtype)
    if dtype.kind == "c":
        re = cast(x, np.dtype(f"f{dtype.itemsize // 2}"))
        return Complex(re, re.lift(0))
    return x if x.dtype == dtype else x.builder.emit("cast", dtype, (x,))


def bitcast(x: Value, dtype: Any) -> Value:
    return x.builder.emit("bitcast", np.dtype(dtype), (x,))


@dataclass(slots=True)
class Complex:
    """A complex number as two real values. Multiplication and division are the textbook formulas NumPy uses."""

    re: Value
    im: Value

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(f"c{self.re.dtype.itemsize * 2}")

    @property
    def builder(self) -> Builder:
        return self.re.builder

    def lift(self, o: Any) -> Complex:
        if isinstance(o, Complex):
            return o
        if isinstance(o, Value):
            return Complex(o, o.lift(0))
        o = complex(o)
        return Complex(self.re.lift(o.real), self.re.lift(o.imag))

    def __add__(self, o: Any) -> Complex:
        o = self.lift(o)
        return Complex(self.re + o.re, self.im + o.im)

    __radd__ = __add__

    def __sub__(self, o: Any) -> Complex:
        o = self.lift(o)
        return Complex(self.re - o.re, self.im - o.im)

    def __rsub__(self, o: Any) -> Complex:
        return self.lift(o) - self

    def __mul__(self, o: Any) -> Complex:
        o = self.lift(o)
        return Complex(self.re * o.re - self.im * o.im, self.re * o.im + self.im * o.re)

    __rmul__ = __mul__

    def __truediv__(self, o: Any) -> Complex:
        """Smith's algorithm (Comm. ACM 5(8), 1962), branch-free: scale by the larger part of the divisor."""
        o = self.lift(o)
        swap = fabs(o.re) < fabs(o.im)
        big, small = select(swap, o.im, o.re), select(swap, o.re, o.im)
        both_zero = (big == 0) & (small == 0)
        ratio = select(both_zero, 0.0, small / big)
        scale = 1.0 / (big + small * ratio)
        a, b = select(swap, self.im, self.re), select(swap, self.re, self.im)
        re = (a + b * ratio) * scale
        im = select(swap, self.im * ratio - self.re, self.im - self.re * ratio) * scale
        return Complex(select(both_zero, self.re / fabs(big), re), select(both_zero, self.im / fabs(big), im))

    def __rtruediv__(self, o: Any) -> Complex:
        return self.lift(o) / self

    def __neg__(self) -> Complex:
        return Complex(-self.re, -self.im)

    def __eq__(self, o: Any) -> Value:  # type: ignore[override]
        o = self.lift(o)
        return (self.re == o.re) & (self.im == o.im)

    def __ne__(self, o: Any) -> Value:  # type: ignore[override]
        o = self.lift(o)
        return (self.re != o.re) | (self.im != o.im)

    def __lt__(self, o: Any) -> Value:
        """Lexicographic, as NumPy orders complex numbers."""
        o = self.lift(o)
        return (self.re < o.re) | ((self.re == o.re) & (self.im < o.im))

    def __le__(self, o: Any) -> Value:
        o = self.lift(o)
        return (self.re < o.re) | ((self.re == o.re) & (self.im <= o.im))

    def __gt__(self, o: Any) -> Value:
        return self.lift(o) < self

    def __ge__(self, o: Any) -> Value:
        return self.lift(o) <= self

    __hash__ = None  # type: ignore[assignment]

    def conj(self) -> Complex:
        return Complex(self.re, -self.im)


def evaluate_stmt(stmt: Stmt, args: Sequence[np.ndarray]) -> np.ndarray:
    """One pure statement on NumPy arrays (not `param coord load carry check`)."""
    with np.errstate(all="ignore"):
        if stmt.op == "const":
            return np.asarray(stmt.attrs[0], stmt.dtype)
        if stmt.op == "cast":
            return args[0] != 0 if stmt.dtype.kind == "b" else args[0].astype(stmt.dtype)
        if stmt.op == "bitcast":
            return np.ascontiguousarray(args[0]).view(stmt.dtype).reshape(args[0].shape)
        if stmt.op == "loop":
            return run_region(stmt.attrs[0], args)  # type: ignore[return-value]
        if stmt.op == "result":
            return args[0][stmt.attrs[0]]
        if stmt.op == "lookup":
            return np.asarray(stmt.attrs, stmt.dtype)[args[0] & 15]
        meaning = SCALAR_OPS[stmt.op].numpy
        assert meaning is not None, stmt
        return np.asarray(meaning(*args))


def run_region(region: Region, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """A `loop` statement on NumPy arrays: the carries after it."""
    count = int(args[0]) if region.counted else None
    given = list(args[1:] if region.counted else args)
    carries, operands = given[: region.carries], given[region.carries:]

    def values() -> dict[int, Any]:
        found: dict[int, Any] = {}
        for i, s in enumerate(region.stmts):
            if s.op == "arg":
                found[i] = (carries + operands)[s.attrs[0]]
            else:
                found[i] = evaluate_stmt(s, [found[a] for a in s.args])
        return found

    turn = 0
    while count is None or turn < count:
        now = values()
        on = np.asarray(True if region.test is None else now[region.test])
        if not on.any():
            break
        carries = [np.where(on, now[i], c).astype(region.stmts[i].dtype) for i, c in zip(region.nexts, carries)]
        turn += 1
    return carries


def interpret(f: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """Run a scalar function on NumPy arrays, statement by statement (a reference without compiling).

    >>> interpret(lambda x: x * 2 + 1, np.float32([1, 2])).tolist()
    [3.0, 5.0]
    """
    builder = Builder()
    values: dict[int, np.ndarray] = {}
    params: list[Any] = []

    def param(array: np.ndarray) -> Value:
        v = builder.emit("load", array.dtype, (), (len(values),))
        values[v.index] = array
        return v

    for array in map(np.asarray, arrays):
        if array.dtype.kind == "c":
            params.append(Complex(param(array.real.copy()), param(array.imag.copy())))
        else:
            params.append(param(array))
    out = f(*params)
    for i, stmt in enumerate(builder.stmts):
        if i not in values:
            values[i] = evaluate_stmt(stmt, [values[a] for a in stmt.args])
    if isinstance(out, Complex):
        re, im = np.broadcast_arrays(values[out.re.index], values[out.im.index])
        pairs = np.empty(re.shape, out.dtype)
        pairs.real, pairs.imag = re, im
        return pairs
    if isinstance(out, tuple):
        return tuple(values[v.index] for v in out)
    return values[out.index]
