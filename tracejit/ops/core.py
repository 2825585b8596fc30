"""Constructors of ops: each takes one declaration and gives the public function (its op is `.op`).

In: everything about one primitive. Out: an `Op` record, its public function (conversion, promotion and broadcasting at
the door, so that the IR stays strict), the Tensor operator or method, and the NumPy function it stands for.

    elementwise   same shape in and out; `scalar` rule; `partials`
    source        makes values from coordinates; `scalar(at, ...)`
    reduction     folds axes with one accumulator
    movement      shows inputs at other coordinates; linear, so it gives its `transpose`
    library       anything that is a call rather than a loop
    (indexing ops, gather and scatter, are declared in `indexing.py` with the plain `primitive`)

Read next: `elementwise.py` for examples.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from tracejit import dtypes
from tracejit.errors import InternalError
from tracejit.ir import Kind, Op, Reduction, Type
from tracejit.quiet import quietly
from tracejit.tensor import NUMPY_FUNCTIONS, Number, Tensor, apply, owned, state, to_array, wrap

# A dtype rule: common dtype after promotion -> (dtype the inputs are cast to, dtype of the result).
DtypeRule = Callable[[np.dtype], tuple[np.dtype, np.dtype]]


# -- dtype rules -----------------------------------------------------------------------------------------------------
def same(d: np.dtype) -> tuple[np.dtype, np.dtype]:
    """Result like the inputs."""
    return d, d


def numeric(d: np.dtype) -> tuple[np.dtype, np.dtype]:
    """Result like the inputs; bool becomes the default int (as Python's True + True)."""
    d = dtypes.default_int() if d.kind == "b" else d
    return d, d


def arithmetic(d: np.dtype) -> tuple[np.dtype, np.dtype]:
    """As same; bool is refused, as NumPy does for a difference."""
    if d.kind == "b":
        raise TypeError("bool is not supported; use ^ or logical_xor, or cast to an integer dtype")
    return d, d


def floating(d: np.dtype) -> tuple[np.dtype, np.dtype]:
    """Integers become floats first."""
    d = dtypes.to_float(d)
    return d, d


def real_floating(d: np.dtype) -> tuple[np.dtype, np.dtype]:
    """As floating; complex is refused."""
    if d.kind == "c":
        raise TypeError("complex is not supported")
    return floating(d)


def boolean(d: np.dtype) -> tuple[np.dtype, np.dtype]:
    """Comparison: any inputs, bool result."""
    return d, dtypes.bool_


def logical(d: np.dtype) -> tuple[np.dtype, np.dtype]:
    """Truth values: inputs become bool."""
    return dtypes.bool_, dtypes.bool_


def integral(d: np.dtype) -> tuple[np.dtype, np.dtype]:
    """Integers and bool only."""
    if d.kind not in "biu":
        raise TypeError(f"{d} is not an integer or bool dtype; cast it, or use logical_and and its like")
    return d, d


def real_result(d: np.dtype) -> tuple[np.dtype, np.dtype]:
    """Complex inputs give a real result of the part's dtype."""
    return d, dtypes.real_part(d)


def real_ordered(d: np.dtype) -> tuple[np.dtype, np.dtype]:
    """As same; complex is refused."""
    if d.kind == "c":
        raise TypeError("complex is not supported")
    return d, d


def real_numeric(d: np.dtype) -> tuple[np.dtype, np.dtype]:
    """As numeric; complex is refused."""
    return numeric(real_ordered(d)[0])


def real_test(d: np.dtype) -> tuple[np.dtype, np.dtype]:
    """As boolean; complex is refused."""
    return real_ordered(d)[0], dtypes.bool_


NO_ATTRS: Mapping[str, Any] = MappingProxyType({})


# -- conversion and promotion at the door ------------------------------------------------------------------------------
_PYTHON_NUMBERS = (bool, int, float, complex)
_PYTHON_DTYPES = {"b": dtypes.bool_, "i": dtypes.int64, "f": dtypes.float64, "c": dtypes.complex128}


def as_tensor(x: Any, dtype: Any = None) -> Tensor:
    """A Tensor for any array-like: Tensors pass through, arrays keep their dtype, Python numbers get the default."""
    if isinstance(x, Tensor):
        x = x.read_value() if x._place else x  # type: ignore[attr-defined]
        return x if dtype is None else cast(x, dtype)
    if state.trace is not None:
        handle = getattr(state.trace, "lift", None)
        if handle is not None and isinstance(x, np.ndarray) and dtype is None:
            return handle(x)
        if isinstance(x, (list, tuple)) and _holds_tensor(x):
            return _stack_nested(x, dtype)
    elif isinstance(x, (list, tuple)) and _holds_tensor(x):
        return _stack_nested(x, dtype)
    if hasattr(x, "__tensor__"):
        return as_tensor(x.__tensor__(), dtype)
    if not isinstance(x, (*_PYTHON_NUMBERS, np.ndarray, np.generic, list, tuple)) and hasattr(x, "__array__"):
        x = np.asarray(x)
    array = to_array(x, dtype)
    return constant_tensor(array)


def alias(t: Tensor) -> Tensor:
    """The same value under a handle of its own: the result when nothing is to be done, as the caller may write it."""
    return wrap(t._value) if state.trace is None else state.trace.read(t)


def strong(x: Any) -> Tensor:
    """As `as_tensor`, but a traced Python number takes its default dtype (where it meets no tensor that decides)."""
    t = as_tensor(x)
    return cast(t, dtypes.default_of(t.dtype.kind)) if t._weak else t


def constant_tensor(array: np.ndarray) -> Tensor:
    """A Tensor on a fresh array: itself when eager; a graph constant when traced."""
    if state.trace is None:
        return wrap(array)
    return state.trace.constant(array)  # type: ignore[attr-defined]


def _holds_tensor(x: Any) -> bool:
    if isinstance(x, (list, tuple)):
        return any(map(_holds_tensor, x))
    return isinstance(x, Tensor) or hasattr(x, "__tensor__")


# Set by `shaping.py`, which knows how to stack (lists that hold tensors become one tensor).
_stack_nested: Callable[[Any, Any], Tensor]


def set_stacker(f: Callable[[Any, Any], Tensor]) -> None:
    global _stack_nested
    _stack_nested = f


def cast(x: Tensor, dtype: Any) -> Tensor:
    """`x` in `dtype`; the same tensor if it has it already."""
    if x._value.dtype is dtype and not x._weak:
        return x
    dtype = dtypes.as_dtype(dtype)
    if x.dtype == dtype:
        return wrap(x._value) if x._weak else x
    return apply(CAST, (x,), {"dtype": dtype.name})


def full(value: bool | int | float | complex, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
    """A constant-filled tensor (a literal in the IR)."""
    return apply(FULL, (), {"shape": shape, "value": value, "dtype": dtype.name})


def broadcast_to(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x if x.shape == shape else apply(BROADCAST, (x,), {"shape": shape})


def broadcast_shape(name: str, shapes: Sequence[tuple[int, ...]], types: Sequence[Any] = ()) -> tuple[int, ...]:
    """Common shape, or a ValueError naming op, shapes and dtypes."""
    first = shapes[0]
    if all(s == first for s in shapes):
        return first
    found: list[int] = []
    for k in range(-max(map(len, shapes)), 0):
        n: int | None = 1
        for s in shapes:
            if len(s) >= -k:
                n = common_extent(n, s[k])
            if n is None:
                listed = " and ".join(map(str, shapes))
                of = f" (dtypes {', '.join(str(t) for t in types)})" if types else ""
                raise ValueError(f"{name}: shapes {listed} do not broadcast{of}")
        found.append(n)  # type: ignore[arg-type]
    return tuple(found)


def common_extent(a: int | None, b: int) -> int | None:
    """What two extents broadcast to, if they do. Asks of a symbolic one no more than it must."""
    if type(b) is int and b == 1:
        return a
    if type(a) is int and a == 1:
        return b
    return a if a == b or b == 1 else b if a == 1 else None


# Arithmetic that makes an int of Python's bools.
_OF_INTEGERS = frozenset(("add", "subtract", "multiply", "floor_divide", "remainder", "power", "negative", "positive",
                          "abs", "bitwise_left_shift", "bitwise_right_shift"))  # fmt: skip


def convert(name: str, args: Sequence[Any], rule: DtypeRule, booleans: int = 0) -> tuple[list[Any], np.dtype, bool]:
    """Operands with promotion decided: Tensors of the input dtype, Python numbers as they are; that dtype; all weak?

    The first `booleans` operands are conditions: they become bool and take no part in promotion.
    """
    operands: list[Any] = []
    strong: list[np.dtype] = []
    weak: list[str] = []
    for k, x in enumerate(args):
        if not isinstance(x, _PYTHON_NUMBERS) or isinstance(x, np.generic):
            x = as_tensor(x)
            if k >= booleans:
                (weak.append(x.dtype.kind.replace("u", "i")) if x._weak else strong.append(x.dtype))
        elif k >= booleans:
            weak.append(dtypes.weak_kind(x))
        operands.append(x)
    all_weak = not strong and any(isinstance(x, Number) for x in operands)
    if all_weak:  # arithmetic among traced Python numbers is done in Python's own precision
        common = _PYTHON_DTYPES[max(weak, key="bifc".index)]
        if common.kind == "b" and name in _OF_INTEGERS:
            common = _PYTHON_DTYPES["i"]
    else:
        common = dtypes.result_dtype(strong, weak)
    try:
        wanted, _ = rule(common)
    except TypeError as error:
        raise TypeError(f"{name}: {error} (operands: {_described(args)})") from None
    if rule is boolean and wanted.kind in "iu":
        operands, wanted = _comparable(operands, wanted)
    for k, x in enumerate(operands):
        dtype = dtypes.bool_ if k < booleans else wanted
        if isinstance(x, Tensor):
            operands[k] = cast(x, dtype)
        elif dtype.kind in "iu" and not _fits(x, dtype):
            raise OverflowError(f"{name}: Python integer {x} is out of bounds for {dtype}")
    return operands, wanted, all_weak


def _described(args: Sequence[Any]) -> str:
    """Dtypes of operands, for messages."""
    return ", ".join(str(x.dtype) if hasattr(x, "dtype") else type(x).__name__ for x in args)


_LIMITS = {d: (int(np.iinfo(d).min), int(np.iinfo(d).max)) for d in dtypes.INTEGERS}


def _fits(x: Any, dtype: np.dtype) -> bool:
    low, high = _LIMITS[dtype]
    return low <= x <= high


def _comparable(operands: list[Any], dtype: np.dtype) -> tuple[list[Any], np.dtype]:
    """Operands of a comparison of integers: one with a Python integer beyond `dtype` has an answer all the same.
    Where a Python integer becomes known only at run time, it may be beyond."""
    outside = [x for x in operands if not isinstance(x, Tensor) and not _fits(x, dtype)]
    if not outside and not any(isinstance(x, Number) for x in operands):
        return operands, dtype
    if all(_fits(x, dtypes.int64) for x in outside) and dtype != dtypes.uint64:
        return operands, dtypes.int64
    # every value of `dtype` lies on one side of such a number
    beyond = [x if isinstance(x, Tensor) or _fits(x, dtype) else math.copysign(math.inf, x) for x in operands]
    return beyond, dtypes.float64 if outside else dtype


def _compare_signs(op: Op, args: Sequence[Any]) -> Tensor | None:
    """A comparison of uint64 with signed integers, which no dtype holds both: exact, as in NumPy. None if it is not
    one."""
    if any(isinstance(x, _PYTHON_NUMBERS) and not isinstance(x, np.generic) for x in args):
        return None
    xs = [as_tensor(x) for x in args]
    signed = [k for k, x in enumerate(xs) if x.dtype.kind == "i"]
    if len(signed) != 1 or xs[1 - signed[0]].dtype != dtypes.uint64:
        return None
    if not state.active:
        return _wrapped(op.eager(*(x._value for x in xs)))
    (k,) = signed
    below = call_elementwise(NUMPY_FUNCTIONS[np.less].op, (xs[k], 0), boolean)  # type: ignore[attr-defined]
    otherwise = [cast(x, dtypes.uint64) for x in xs]
    found = call_elementwise(op, otherwise, boolean)
    if bool(op.eager(*((-1, 0) if k == 0 else (0, -1)))):
        return NUMPY_FUNCTIONS[np.logical_or](below, found)  # type: ignore[no-any-return]
    return NUMPY_FUNCTIONS[np.logical_and](NUMPY_FUNCTIONS[np.logical_not](below), found)  # type: ignore[no-any-return]


def call_elementwise(op: Op, args: Sequence[Any], rule: DtypeRule, booleans: int = 0,
                     attrs: Mapping[str, Any] = NO_ATTRS) -> Tensor:
    """Promote, broadcast and apply. When nothing records, NumPy broadcasts without an op of its own.

    What is no tensor, but whose elements are (`selected.py`), has `__elementwise__(f, args)`, which says what f gives.
    """
    if state.active:
        for x in args:
            if hasattr(x.__class__, "__elementwise__"):
                again = partial(call_elementwise, op, rule=rule, booleans=booleans, attrs=attrs)
                return x.__elementwise__(again, args)  # type: ignore[no-any-return]
    if rule is boolean and len(args) == 2 and any(getattr(x, "dtype", None) == dtypes.uint64 for x in args):
        found = _compare_signs(op, args)
        if found is not None:
            return found
    operands, dtype, all_weak = convert(op.name, args, rule, booleans)
    wanted = [dtypes.bool_] * booleans + [dtype] * (len(operands) - booleans)
    if not state.active:
        arrays = [x._value if isinstance(x, Tensor) else quietly(np.asarray, x, d) for x, d in zip(operands, wanted)]
        try:
            return _wrapped(quietly(op.eager, *arrays, **attrs))
        except ValueError:
            _common_shape(op, operands, args)  # a better message, if the shapes are at fault
            raise
    shape = _common_shape(op, operands, args)
    tensors = [broadcast_to(x, shape) if isinstance(x, Tensor) else full(x, shape, d) for x, d in zip(operands, wanted)]
    out = apply(op, tensors, attrs)
    return as_number(out) if all_weak else out


def _common_shape(op: Op, operands: Sequence[Any], args: Sequence[Any]) -> tuple[int, ...]:
    try:
        return broadcast_shape(op.name, [x.shape if isinstance(x, Tensor) else () for x in operands])
    except ValueError as error:
        raise ValueError(f"{error} (operands: {_described(args)})") from None


def _wrapped(result: Any) -> Tensor:
    """A Tensor on what a NumPy function gave (a 0-d result is a NumPy scalar)."""
    return wrap(result if type(result) is np.ndarray else np.asarray(result))


def as_number(x: Tensor) -> Tensor:
    """The same traced value as a weak Python number."""
    number: Number = object.__new__(Number)
    number._value = x._value
    return number


# -- constructors ------------------------------------------------------------------------------------------------------
OPS: dict[str, Op] = {}  # every declared op, by name


def known(op: Op) -> Op:
    """Note a declared op; a second one of that name is refused."""
    if OPS.setdefault(op.name, op) is not op:
        raise InternalError(f"two ops are called {op.name}")
    return op


Numpy = Any  # a NumPy function or ufunc, a tuple of them; (ufunc, "reduce") is a method of one


class OpFunction(Protocol):
    """The public function of an op."""

    op: Op

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


def publish(function: Callable[..., Any], op: Op, *, numpy: Numpy = None, dunder: str = "",
            method: str | bool = False) -> OpFunction:
    """Name the public function of an op, and attach it where users look for it: operator, method, NumPy function."""
    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = function.__doc__ or op.doc
    function.__module__ = _declaring_module()
    function.op = op  # type: ignore[attr-defined]
    return expose(function, numpy=numpy, dunder=dunder, method=method)  # type: ignore[return-value]


def _declaring_module() -> str:
    """The module outside this one that is declaring an op (for help() and doctests)."""
    frame: Any = sys._getframe()
    while frame.f_globals["__name__"] == __name__:
        frame = frame.f_back
    return frame.f_globals["__name__"]


def expose(function: Callable[..., Any], *, numpy: Numpy = None, dunder: str = "",
           method: str | bool = False) -> Callable[..., Any]:
    """Attach a public function where users look for it; `method` may be another name than the function's."""
    for f in numpy if isinstance(numpy, tuple) else () if numpy is None else (numpy,):
        NUMPY_FUNCTIONS[f] = function
    if dunder:
        _attach_operator(dunder, function)
    if method:
        setattr(Tensor, method if isinstance(method, str) else function.__name__, function)
    return function


def composite(*, numpy: Numpy = None, method: str | bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As a decorator, `expose` for a function made of ops."""
    return lambda function: expose(function, numpy=numpy, method=method)


_IN_PLACE = frozenset("add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split())
_REFLECTED = _IN_PLACE | {"divmod"}
_UNARY = frozenset("neg pos abs invert round floor ceil trunc".split())


def _is_operand(x: Any) -> bool:
    """Whether an operator takes `x`; for others Python asks the other operand's class."""
    return isinstance(x, (Tensor, *_PYTHON_NUMBERS, np.ndarray, np.generic, list, tuple)) or hasattr(x, "__tensor__")


def _without_modulus(power: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """`__pow__`, which Python's `pow` calls with a third argument."""

    def raised(self: Tensor, other: Any, *modulus: Any) -> Any:
        if modulus:
            raise TypeError("pow() of a tensor takes no modulus; write t ** n % m")
        return power(self, other)

    return raised


def _attach_operator(dunder: str, function: Callable[..., Any]) -> None:
    if dunder in _UNARY:
        setattr(Tensor, f"__{dunder}__", function)
        return
    quick, quick_reflected, quick_in_place = getattr(function, "short_cuts", (lambda slow: slow,) * 3)

    def forward(self: Tensor, other: Any) -> Any:
        return function(self, other) if _is_operand(other) else NotImplemented

    operator = quick(forward)
    setattr(Tensor, f"__{dunder}__", operator if dunder != "pow" else _without_modulus(operator))
    if dunder in _REFLECTED:
        def reflected(self: Tensor, other: Any) -> Any:
            return function(other, self) if _is_operand(other) else NotImplemented

        setattr(Tensor, f"__r{dunder}__", quick_reflected(reflected))
    if dunder in _IN_PLACE:
        def augmented(self: Tensor, other: Any) -> Any:
            if self.lock is None or state.trace is not None:
                return update(self, other)
            with self.lock:  # no other thread's update is lost
                return update(self, other)

        def update(self: Tensor, other: Any) -> Any:
            result = forward(self, other)
            if result is NotImplemented:
                return result
            if self._weak:  # a Python number is not changed in place
                return result
            alike = result.shape == self.shape
            if not alike or not np.can_cast(result.dtype, self.dtype, "same_kind"):
                raise (TypeError if alike else ValueError)(
                    f"{function.__name__}: a result of shape {result.shape}, {result.dtype} does not fit in place into "
                    f"{self.shape}, {self.dtype}")
            rebind(self, cast(result, self.dtype))
            return self

        setattr(Tensor, f"__i{dunder}__", quick_in_place(augmented))


def rebind(handle: Tensor, value: Tensor) -> None:
    """Make `handle` stand for `value` from now on (augmented and item assignment)."""
    if state.trace is not None:
        state.trace.written(handle)
        value = state.trace.read(value)  # one from around a branch or body is captured by it
    handle._value = value._value


def elementwise(name: str, *, eager: Callable[..., Any], dtype: DtypeRule, arity: int, scalar: Callable[..., Any],
                partials: Callable[..., Any] | None = None, vjp: Callable[..., Any] | None = None,
                jvp: Callable[..., Any] | None = None, doc: str = "", domain: Any = None, cost: int = 1,
                booleans: int = 0, numpy: Numpy = None, dunder: str = "",
                method: str | bool = False) -> OpFunction:
    """Declare an elementwise op of `arity` inputs.

    eager: NumPy ufunc-like on arrays of the input dtype. scalar: the same over scalar values. partials(y, *xs):
    derivative of y by each input (a tuple, or one value if arity is 1; None for no derivative; a Python number for a
    constant one). For a non-holomorphic complex function give `vjp(g, y, *xs)` and `jvp(tangents, y, *xs)` instead.
    Attributes, if any, reach eager, scalar and the derivatives by name; `call_elementwise` passes them.
    """

    def infer(*types: Type, **attrs: Any) -> Type:
        if len(types) != arity:
            raise TypeError(f"{name} takes {arity} inputs, got {len(types)}")
        rest = types[booleans:]
        try:
            wanted, result = dtype(rest[0].dtype)
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        if any(t.shape != types[0].shape for t in types):
            raise ValueError(f"{name}: shapes {', '.join(str(t.shape) for t in types)} differ")
        if any(t.dtype != wanted for t in rest) or any(t.dtype.kind != "b" for t in types[:booleans]):
            raise TypeError(f"{name}: inputs have dtypes {', '.join(str(t.dtype) for t in types)}, wanted {wanted}")
        return Type(types[0].shape, result)

    if partials is not None:
        vjp, jvp = vjp or _vjp_of_partials(partials), jvp or _jvp_of_partials(partials)
    op = known(Op(name, "elementwise", infer, eager, doc, scalar=scalar, vjp=vjp, jvp=jvp, domain=domain, cost=cost))
    natural = frozenset(d for d in dtypes.ALL if _natural(dtype, d))  # dtypes that NumPy need not be told about

    def slow(*xs: Any) -> Tensor:
        if len(xs) != arity:
            raise TypeError(f"{name}() takes {arity} arguments, got {len(xs)}")
        return call_elementwise(op, xs, dtype, booleans)

    function = slow
    if arity == 1:
        function = _quick_unary(eager, natural, slow)
    elif arity == 2 and isinstance(eager, np.ufunc):
        function = _quick_binary(eager, natural, slow)
        function.short_cuts = tuple(partial(quick, eager, natural)  # type: ignore[attr-defined]
                                    for quick in (_quick_binary, _quick_reflected, _quick_in_place))
    return publish(function, op, numpy=numpy, dunder=dunder, method=method)


# The short cuts: plain tensors of a dtype that NumPy treats as we do, while nothing records. Everything else is `slow`.
def _quick_unary(eager: Callable[..., Any], natural: frozenset[np.dtype],
                 slow: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def function(x: Any, /) -> Tensor:
        if not state.active and isinstance(x, Tensor) and x._value.dtype in natural:
            return _wrapped(quietly(eager, x._value))
        return slow(x)

    return function


def _literals(natural: frozenset[np.dtype]) -> dict[type, frozenset[np.dtype]]:
    """For each type of operand, the dtypes of the other that NumPy keeps (Python numbers are weak there too)."""
    kinds = {float: "fc", int: "iufc", complex: "c"}
    return {t: frozenset(d for d in natural if d.kind in kept) for t, kept in kinds.items()}


def _quick_binary(ufunc: np.ufunc, natural: frozenset[np.dtype], slow: Callable[..., Any]) -> Callable[..., Any]:
    literals, none = _literals(natural), frozenset[np.dtype]()

    def function(x1: Any, x2: Any, /) -> Any:
        if not state.active and isinstance(x1, Tensor):
            a = x1._value
            if isinstance(x2, Tensor):
                b = x2._value
                suits = a.dtype is b.dtype and a.dtype in natural
            else:
                b = x2
                suits = a.dtype in literals.get(type(x2), none)
            if suits:
                try:
                    result = quietly(ufunc, a, b)
                except (ValueError, OverflowError):  # a clearer message comes from the long way
                    return slow(x1, x2)
                return wrap(result if type(result) is np.ndarray else np.asarray(result))
        return slow(x1, x2)

    return function


def _quick_reflected(ufunc: np.ufunc, natural: frozenset[np.dtype], slow: Callable[..., Any]) -> Callable[..., Any]:
    """`number op t`."""
    literals, none = _literals(natural), frozenset[np.dtype]()

    def reflected(self: Tensor, other: Any) -> Any:
        if not state.active and self._value.dtype in literals.get(type(other), none):
            try:
                return _wrapped(quietly(ufunc, other, self._value))
            except (ValueError, OverflowError):
                pass
        return slow(self, other)

    return reflected


def _quick_in_place(ufunc: np.ufunc, natural: frozenset[np.dtype], slow: Callable[..., Any]) -> Callable[..., Any]:
    """`t += x` without a new buffer, where `t` is the only owner of its old one."""
    literals, none = _literals(natural), frozenset[np.dtype]()

    def augmented(self: Tensor, other: Any) -> Any:
        if type(self) is Tensor and owned(self):
            a = self._value
            if type(other) is Tensor:
                b = other._value
                suits = a.dtype is b.dtype and a.dtype in natural and a.shape == b.shape
            else:
                b = other
                suits = a.dtype in literals.get(type(other), none)
            if suits and (b is not other or type(b) is not int or a.dtype.kind in "fc" or _fits(b, a.dtype)):
                quietly(ufunc, a, b, out=a)
                return self
        return slow(self, other)

    return augmented


def _natural(rule: DtypeRule, d: np.dtype) -> bool:
    try:
        return rule(d)[0] == d
    except TypeError:
        return False


def _vjp_of_partials(partials: Callable[..., Any]) -> Callable[..., Any]:
    """Cotangent of each input: g times the conjugate of its partial derivative, an exact zero winning (`mul_zero`)."""

    def vjp(g: Tensor, y: Tensor, *xs: Tensor, **attrs: Any) -> tuple[Tensor | None, ...]:
        by = _tuple(partials(y, *xs, **attrs))
        return tuple(None if p is None else scaled(g, p, x) for p, x in zip(by, xs, strict=True))

    return vjp


def _jvp_of_partials(partials: Callable[..., Any]) -> Callable[..., Any]:
    def jvp(tangents: Sequence[Tensor | None], y: Tensor, *xs: Tensor, **attrs: Any) -> Tensor | None:
        total: Tensor | None = None
        for p, t in zip(_tuple(partials(y, *xs, **attrs)), tangents, strict=True):
            if p is not None and t is not None:
                constant = isinstance(p, (int, float))
                term = t if constant and p == 1 else t * p if constant else MUL_ZERO(t, p)  # type: ignore[operator]
                total = term if total is None else total + term  # type: ignore[operator]
        return total

    return jvp


def scaled(g: Tensor, partial: Any, x: Tensor) -> Tensor:
    """g * conj(partial), zero where g is exactly zero, in the dtype of the input it belongs to."""
    if isinstance(partial, (int, float)):
        out = g if partial == 1 else -g if partial == -1 else g * partial  # type: ignore[operator]
    else:
        out = MUL_ZERO(g, CONJ(partial) if partial.dtype.kind == "c" else partial)
    if out.dtype.kind == "c" and x.dtype.kind != "c":
        out = REAL(out)
    return out


def _tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def reduction(name: str, *, eager: Callable[..., Any], dtype: DtypeRule, reduce: Reduction,
              vjp: Callable[..., Any] | None = None, jvp: Callable[..., Any] | None = None, linear: bool = False,
              nonempty: bool = False, identity: Any = None, combine: Callable[..., Any] | None = None,
              accumulates: bool = False, doc: str = "", domain: Any = None, numpy: Numpy = None,
              method: bool = True) -> OpFunction:
    """Declare a reduction over `axis` (None, an int or a tuple), with keepdims at the public function only.

    vjp(g, y, x, axis): g and y have the reduced shape. linear: the tangent is the reduction of the tangent.
    nonempty: an empty axis has no value (max, argmin): ValueError. identity: the value that `where=` puts in place of
    masked elements (None: not supported); combine: how `initial=` joins. accumulates: the public function takes
    `dtype=`.
    """

    def infer(x: Type, *, axis: tuple[int, ...]) -> Type:
        try:
            wanted, result = dtype(x.dtype)
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        if wanted != x.dtype:
            raise TypeError(f"{name}: input has dtype {x.dtype}, wanted {wanted}")
        if list(axis) != sorted(set(axis)) or any(not 0 <= a < x.ndim for a in axis):
            raise ValueError(f"{name}: axis {axis} is out of range for shape {x.shape}")
        if nonempty and any(x.shape[a] == 0 for a in axis):
            raise ValueError(f"{name}: an empty axis of shape {x.shape} has no value")
        return Type(tuple(n for a, n in enumerate(x.shape) if a not in axis), result)

    if linear:
        def jvp(tangents: Sequence[Tensor], y: Tensor, x: Tensor, *, axis: tuple[int, ...]) -> Tensor:
            return apply(op, (tangents[0],), {"axis": axis})

    op = known(Op(name, "reduction", infer, eager, doc, reduce=reduce, vjp=vjp, jvp=jvp, domain=domain))
    rule = dtype

    def run(x: Any, axis: Any, dtype: Any, out: None, keepdims: bool, initial: Any, where: Any) -> Tensor:
        if out is not None:
            raise TypeError(f"{name}: tensors are values, so out= is not supported; assign the result")
        t = strong(x)
        if dtype is not None:
            t = cast(t, dtype)
        if where is not None and where is not True:
            if identity is None or (nonempty and initial is None):
                raise ValueError(f"{name}: where= {'needs initial=' if identity is not None else 'is not supported'}")
            t = WHERE(where, t, identity(t.dtype) if nonempty else identity)
        if initial is None or combine is None:
            return reduce_with(op, rule, t, axis, keepdims)
        if nonempty and t.size == 0:
            t = _padded(t, identity(t.dtype), axis)
        return combine(reduce_with(op, rule, t, axis, keepdims), initial)

    if accumulates:
        def function(x: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False,
                     initial: Any = None, where: Any = None) -> Tensor:
            return run(x, axis, dtype, out, keepdims, initial, where)
    elif combine is not None:
        def function(x: Any, axis: Any = None, out: None = None, keepdims: bool = False,  # type: ignore[misc]
                     initial: Any = None, where: Any = None) -> Tensor:
            return run(x, axis, None, out, keepdims, initial, where)
    else:
        def function(x: Any, axis: Any = None, out: None = None, keepdims: bool = False, *,  # type: ignore[misc]
                     where: Any = None) -> Tensor:
            return run(x, axis, None, out, keepdims, None, where)

    return publish(function, op, numpy=numpy, method=method)


def _padded(t: Tensor, value: Any, axis: Any) -> Tensor:
    """A tensor of identities in place of an empty one, so that an `initial` value alone decides."""
    axes = normalize_axes("reduction", axis, t.ndim)
    return full(value, tuple(max(n, 1) if a in axes else n for a, n in enumerate(t.shape)), t.dtype)


def reduce_with(op: Op, rule: DtypeRule, t: Tensor, axis: Any, keepdims: bool) -> Tensor:
    """Cast, normalise `axis`, apply, restore dims. A float16 that was widened for the sum is narrowed again."""
    try:
        wide = cast(t, rule(t.dtype)[0])
    except TypeError as error:
        raise TypeError(f"{op.name}: {error}") from None
    axes = normalize_axes(op.name, axis, t.ndim)
    out = apply(op, (wide,), {"axis": axes})
    if t.dtype == dtypes.float16 and wide.dtype == dtypes.float32:
        out = cast(out, t.dtype)
    if keepdims:
        shape = tuple(1 if a in axes else n for a, n in enumerate(t.shape))
        out = apply(RESHAPE, (out,), {"shape": shape})
    return out


def normalize_axes(name: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """Sorted non-negative axes; None means all. A clear error names the op for a wrong axis."""
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    found = []
    for a in given:
        if not hasattr(a, "__index__"):
            raise TypeError(f"{name}: axis must be an int, a tuple of ints or None, got {axis!r}")
        found.append(normalize_axis(name, a, ndim))
    if len(set(found)) != len(found):
        raise ValueError(f"{name}: axis {axis} repeats a dim")
    return tuple(sorted(found))


def normalize_axis(name: str, axis: Any, ndim: int) -> int:
    if not hasattr(axis, "__index__"):
        raise TypeError(f"{name}: axis must be an int, got {axis!r}")
    a = operator.index(axis)
    if not -ndim <= a < ndim:
        raise np.exceptions.AxisError(f"{name}: axis {a} is out of bounds for a tensor of {ndim} dims"
                                         f"{f'; axes are {-ndim} to {ndim - 1}' if ndim else ''}")
    return a % ndim


def primitive(name: str, kind: Kind, *, infer: Callable[..., Any], eager: Callable[..., Any], doc: str = "",
              scalar: Any = None, index: Any = None, transpose: Any = None, vjp: Any = None, jvp: Any = None,
              domain: Any = None, stateful: bool = False, cost: int = 1, running: str = "") -> Op:
    """Declare a source, movement, indexing or library op; its public function is written beside it.

    transpose(g, *types, **attrs): for a movement op linear in each input, the cotangent of each input (tuple, or one).
    """
    if transpose is not None:
        def vjp(g: Tensor, y: Tensor, *xs: Tensor, **attrs: Any) -> tuple[Tensor | None, ...]:
            return _tuple(transpose(g, *(Type(x.shape, x.dtype) for x in xs), **attrs))

        def jvp(tangents: Sequence[Tensor | None], y: Tensor, *xs: Tensor, **attrs: Any) -> Tensor:
            moved = [full(0, x.shape, x.dtype) if t is None else t for t, x in zip(tangents, xs, strict=True)]
            return apply(op, moved, attrs)

    op = known(Op(name, kind, infer, eager, doc, scalar=scalar, index=index, vjp=vjp, jvp=jvp, domain=domain,
                  stateful=stateful, cost=cost, running=running))
    return op


# Ops that the door itself needs; declared in their own files, which call `provide`.
CAST: Op = None  # type: ignore[assignment]
FULL: Op = None  # type: ignore[assignment]
BROADCAST: Op = None  # type: ignore[assignment]
RESHAPE: Op = None  # type: ignore[assignment]
MUL_ZERO: Callable[..., Tensor] = None  # type: ignore[assignment]
SUM: Callable[..., Tensor] = None  # type: ignore[assignment]
ALL: Callable[..., Tensor] = None  # type: ignore[assignment]
WHERE: Callable[..., Tensor] = None  # type: ignore[assignment]
CONJ: Callable[..., Tensor] = None  # type: ignore[assignment]
REAL: Callable[..., Tensor] = None  # type: ignore[assignment]


def provide(**found: Any) -> None:
    """Tell the constructors about the ops they use (called once by the files that declare them)."""
    globals().update(found)
