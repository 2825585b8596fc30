"""`Tensor`, and the two verbs: `apply` (run or record one op) and `evaluate` (replay a graph through `apply`).

In: NumPy arrays. Out: values that behave like them, eager by default. `apply` is the only place where "eager or
traced" is decided, by context: while a trace is active in this thread, every op becomes a node of it.

A Tensor is a handle on a value: an `np.ndarray` nobody else writes (eager) or a graph `Node` (traced). Item assignment
and augmented assignment rebind the handle; other handles on the old value keep it. Operators and methods are attached
by the op declarations in `ops/` (`dunder=`, `method=`), the one import-time side effect of the package.

Read next: `ops/core.py` (constructors of ops), `trace/tracer.py` (the recorder).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tracejit import dtypes
from tracejit.errors import user_line
from tracejit.ir import CONSTANT, GETITEM, Graph, Node, Op, Type
from tracejit.quiet import quietly
from tracejit.runtime import pool


class Recorder(Protocol):
    """What `apply` needs of an active trace (`trace/tracer.py`)."""

    where: str  # when set, new nodes get this place instead of the user's current line

    def emit(self, op: Op, args: Sequence[Tensor], attrs: Mapping[str, Any]) -> Any: ...

    def concrete(self, tensor: Tensor, purpose: str) -> np.ndarray:
        """The value of a traced tensor if it can be had now (it depends only on Python numbers: guarded); else raises
        TracerError naming the argument, the line and the rewrite."""
        ...

    def knows(self, tensor: Tensor, scalars: bool = False) -> bool:
        """Whether `concrete` has an answer, without NumPy scalars or with them."""
        ...

    def read(self, tensor: Tensor) -> Tensor:
        """`tensor`'s present value under a new handle."""
        ...

    def written(self, tensor: Tensor) -> None:
        """`tensor`'s handle is about to be rebound."""
        ...

    def mention(self, tensor: Tensor, spec: str | None) -> str:
        """Text for a value that is not known yet, from `repr` (None) or `format`; `tj.print` finds it again."""
        ...


class Tape(Protocol):
    """What `apply` needs of a gradient tape (`tape.py`), or of another listener."""

    differentiates: bool  # a compiled call must keep what its derivative needs

    def record(self, op: Op, args: Sequence[Tensor], attrs: Mapping[str, Any], out: Any) -> None: ...

    def escaped(self, tensor: Tensor, how: str) -> None:
        """`tensor`'s value left for NumPy or Python: a gradient stops there."""
        ...


class State(threading.local):
    """What is active in this thread. Change it with `recording` and `taping` only."""

    trace: Recorder | None = None
    tapes: tuple[Tape, ...] = ()
    active: bool = False  # trace or tapes: ops must not take the eager short cut


state = State()


class recording:
    """`with recording(trace):` ops become nodes of `trace`; `recording(None)` runs them. Outer tapes do not hear."""

    def __init__(self, trace: Recorder | None):
        self.trace = trace

    def __enter__(self) -> Recorder | None:
        self.saved = state.trace, state.tapes, state.active
        state.trace, state.tapes, state.active = self.trace, (), self.trace is not None
        return self.trace

    def __exit__(self, *_: object) -> None:
        state.trace, state.tapes, state.active = self.saved


class taping:
    """`with taping(tapes):` exactly these tapes hear the ops inside."""

    def __init__(self, tapes: tuple[Tape, ...]):
        self.tapes = tapes

    def __enter__(self) -> None:
        self.saved = state.tapes, state.active
        state.tapes, state.active = self.tapes, state.trace is not None or bool(self.tapes)

    def __exit__(self, *_: object) -> None:
        state.tapes, state.active = self.saved


# NumPy function or ufunc -> our function; filled by the declarations in `ops/` (`numpy=`).
NUMPY_FUNCTIONS: dict[Any, Callable[..., Any]] = {}


class Tensor:
    """An n-dimensional array of one dtype; like `np.ndarray`, but traceable and differentiable.

    Make one with `constant`, `asarray`, `zeros` and friends.
    """

    __slots__ = ("_value", "__weakref__")
    _value: np.ndarray | Node
    _weak = False
    _place = False  # true of Variables: ops take what `read_value` gives
    lock: Any = None  # of Variables: held while one is read, changed and written
    __array_priority__ = 1000

    def __init__(self, value: Any, dtype: Any = None):
        self._value = to_array(value, dtype) if not isinstance(value, Tensor) else value._value

    if TYPE_CHECKING:  # operators and methods are attached by the declarations in `ops/`
        def _binary(self, other: Any) -> Tensor: ...
        def _unary(self) -> Tensor: ...
        def __getattr__(self, name: str) -> Any: ...
        def __getitem__(self, index: Any) -> Tensor: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _binary
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _binary
        __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rshift__ = _binary
        __lt__ = __le__ = __gt__ = __ge__ = _binary
        __eq__ = __ne__ = _binary  # type: ignore[assignment]
        __neg__ = __pos__ = __abs__ = __invert__ = _unary

    # -- facts ---------------------------------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, ...]:
        return self._value.shape

    @property
    def dtype(self) -> np.dtype:
        return self._value.dtype

    @property
    def ndim(self) -> int:
        return len(self._value.shape)

    @property
    def size(self) -> int:
        n = 1
        for e in self._value.shape:
            n *= e
        return n

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def device(self) -> str:
        return "cpu"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    # -- leaving for Python -----------------------------------------------------------------------------------------
    def _leave(self, how: str) -> np.ndarray:
        """The concrete array, telling tapes that a gradient stops here; TracerError if there is none."""
        value = self._value
        if state.active:
            for tape in state.tapes:
                tape.escaped(self, how)
        if state.trace is not None:  # also for a captured value: the program may depend on what Python does with it
            return state.trace.concrete(self, how)
        if isinstance(value, Node):
            raise value.leaked(how)
        return value

    def numpy(self) -> np.ndarray:
        """The values as a read-only NumPy array (no copy); `np.array(t)` copies."""
        view = self._leave("numpy()").view()
        view.flags.writeable = False
        return view

    def item(self, *index: int) -> Any:
        """The single value (or the one at `index`) as a Python number."""
        if not index and self.size != 1:
            raise ValueError(f"item() needs a tensor of one element, got shape {self.shape}")
        return self._leave("item()").item(*index)

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers."""
        return self._leave("tolist()").tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        value = self._leave("conversion to a NumPy array")
        if dtype is not None and value.dtype != dtype:
            if copy is False:
                raise ValueError(f"a {value.dtype} tensor cannot become a {np.dtype(dtype)} array without a copy")
            return value.astype(dtype)
        if copy is False:
            view = value.view()
            view.flags.writeable = False
            return view
        return value.copy()

    def __bool__(self) -> bool:
        return bool(self._leave("bool()"))

    def __int__(self) -> int:
        return int(self._scalar("int()"))

    def __float__(self) -> float:
        return float(self._scalar("float()"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex()"))

    def __index__(self) -> int:
        value = self._scalar("use as an integer (index, range or shape)")
        if value.dtype.kind not in "iu":
            raise TypeError(f"only integer tensors of one element can be used as an index, not {self.dtype}")
        return int(value)

    def _scalar(self, how: str) -> np.ndarray:
        if self.size != 1:
            raise TypeError(f"{how} needs a tensor of one element, got shape {self.shape}")
        return self._leave(how).reshape(())

    def __hash__(self) -> int:
        raise TypeError("a Tensor is mutable and compares elementwise, so it is not hashable; use id(t), or t.item()")

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise TypeError("iteration over a 0-d tensor")
        return (self[i] for i in range(self.shape[0]))  # type: ignore[index]

    # -- printing ----------------------------------------------------------------------------------------------------
    def __repr__(self) -> str:
        facts = f"shape={self.shape}, dtype={self.dtype.name}"
        if isinstance(self._value, Node):
            if state.trace is not None:
                return state.trace.mention(self, None)
            return f"tj.Tensor(<traced {self._value.op.name}>, {facts})"
        text = str(self._value)
        return f"tj.Tensor(\n{text}, {facts})" if "\n" in text else f"tj.Tensor({text}, {facts})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        """A 0-d tensor formats as its number; others as the plain values."""
        if state.trace is not None:
            return state.trace.mention(self, spec)
        if isinstance(self._value, Node):
            return repr(self)
        return format(self._value.item(), spec) if self.ndim == 0 and spec else format(str(self._value), spec)

    # -- protocols -------------------------------------------------------------------------------------------------
    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        function = NUMPY_FUNCTIONS.get(ufunc if method == "__call__" else (ufunc, method))
        out = kwargs.pop("out", None)
        if function is None:
            name = ufunc.__name__ + ("" if method == "__call__" else f".{method}")
            raise TypeError(f"np.{name} is not supported on tensors; use tracejit's own functions, or np.asarray(t)")
        if out is not None:
            raise TypeError(f"np.{ufunc.__name__}: tensors are values, so out= is not supported; assign the result")
        if method in ("reduce", "accumulate"):
            kwargs = {k: v for k, v in kwargs.items() if (v is not None or k == "axis") and v is not np._NoValue}  # type: ignore[attr-defined]
            return function(*inputs, **{"axis": 0, **kwargs})
        dtype = kwargs.pop("dtype", None)
        if kwargs:
            raise TypeError(f"np.{ufunc.__name__}: {', '.join(kwargs)}= is not supported on tensors")
        if dtype is None:
            return function(*inputs)
        if np.dtype(dtype).kind != "b":  # NumPy computes in the dtype asked for
            inputs = tuple(x.astype(dtype) if isinstance(x, (Tensor, np.ndarray, np.generic)) else x for x in inputs)
        return function(*inputs).astype(dtype)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        function = NUMPY_FUNCTIONS.get(func)
        if function is None:
            name = f"{func.__module__}.{func.__name__}".replace("numpy", "np", 1)
            raise TypeError(f"{name} is not supported on tensors; use tracejit's own functions, or np.asarray(t) to "
                            f"leave for NumPy (at {user_line()})")
        return function(*args, **{k: v for k, v in kwargs.items() if v is not np._NoValue})  # type: ignore[attr-defined]

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The module whose functions take this tensor (array API standard)."""
        return sys.modules["tracejit"]

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._leave("__dlpack__").__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __copy__(self) -> Tensor:  # nobody writes a value that two handles share, so a new handle is a copy
        return wrap(self._value) if state.trace is None else state.trace.read(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_pickle, (self._leave("pickling"),)


class Number(Tensor):
    """A traced Python number: 0-d, and weak: it takes the dtype of the tensors it meets, as a Python number does."""

    __slots__ = ()
    _weak = True

    def __hash__(self) -> int:
        return hash(self.item())  # as a key it is its value, which the trace then depends on

    def __repr__(self) -> str:
        """Text shows the value, which the trace then depends on; in `print` and asserts rewritten code has it filled in
        at run time."""
        return repr(self.item()) if self._known() else super().__repr__()

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self._known() else super().__format__(spec)

    def _known(self) -> bool:
        return state.trace is not None and state.trace.knows(self)

    def __getattr__(self, name: str) -> Any:
        """What only Python's number has (`is_integer`, `bit_length`)."""
        if name.startswith("_") or not hasattr(_NUMBER_OF_KIND[self.dtype.kind], name):
            raise AttributeError(f"a traced Python number has no attribute {name!r}")
        return getattr(self.item(), name)


_NUMBER_OF_KIND = {"b": bool, "i": int, "u": int, "f": float, "c": complex}
_new = object.__new__


def wrap(value: Any) -> Tensor:
    """A Tensor on an array or node, taken as is."""
    t: Tensor = _new(Tensor)
    t._value = value
    return t


def _from_pickle(value: np.ndarray) -> Tensor:
    value.flags.writeable = False
    return wrap(value)


def to_array(value: Any, dtype: Any = None) -> np.ndarray:
    """A fresh or read-only array for a Python value: numbers and lists get the default dtypes, arrays keep theirs.
    Large ones lie where vectors are best read."""
    dtype = None if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(value, (np.ndarray, np.generic)):
        dtype = dtype or dtypes.as_dtype(value.dtype)
        if value.nbytes < pool.SMALL:
            return np.array(value, dtype=dtype, order="C", copy=True)
        found = pool.empty(value.shape, dtype)
        found[...] = value
        return found
    parsed = None if isinstance(value, (bool, int, float, complex)) else np.asarray(value)
    if parsed is not None and parsed.dtype.kind not in "biufc":
        raise TypeError(f"cannot make a tensor of {type(value).__name__} {str(value)[:60]!r}: its elements must be "
                        f"numbers that fit 64 bits")
    if dtype is None:
        strong = [] if parsed is None else _strong_dtypes(value)
        kind = dtypes.weak_kind(value) if parsed is None else parsed.dtype.kind.replace("u", "i")
        dtype = dtypes.result_dtype(strong) if strong else dtypes.default_of(kind)
    try:
        return np.array(value, dtype, order="C")
    except OverflowError as error:
        remedy = "; pass dtype='int64'" if dtype.itemsize < 8 else ""
        raise OverflowError(f"integers of {str(value)[:60]} do not fit {dtype}{remedy}") from error


def _strong_dtypes(value: Any) -> list[np.dtype]:
    """Dtypes of the NumPy arrays and scalars inside nested lists (they keep theirs)."""
    if isinstance(value, (np.ndarray, np.generic)):
        return [value.dtype]
    if isinstance(value, (list, tuple)):
        return [d for v in value for d in _strong_dtypes(v)]
    return []


def apply(op: Op, args: Sequence[Tensor], attrs: Mapping[str, Any]) -> Any:
    """Run `op` now, or record it. `args` already have the exact shapes and dtypes the op wants.

    Returns a Tensor, or a tuple of them for an op whose type is a tuple.
    """
    trace = state.trace
    if trace is not None:
        out = trace.emit(op, args, attrs)
    else:
        try:
            result = quietly(op.eager, *[a._value for a in args], **attrs)
        except Exception:
            op.infer(*[Type(a.shape, a.dtype) for a in args], **attrs)  # a better message, if the types are at fault
            raise
        out = tuple(wrap(np.asarray(r)) for r in result) if type(result) is tuple else wrap(
            result if type(result) is np.ndarray else np.asarray(result))
    if state.tapes:
        for tape in state.tapes:
            tape.record(op, args, attrs, out)
    return out


def evaluate(graph: Graph, values: Sequence[Tensor],
             rule: Callable[[Node, list[Any]], Any] | None = None) -> list[Tensor]:
    """Replay `graph` on `values` through `apply`: the reference interpreter, the inliner and the driver of rewrites.

    `rule(node, args)` may return a replacement for a node's result, or None to apply its op.
    """
    env: dict[Node, Any] = dict(zip(graph.inputs, values, strict=True))
    trace = state.trace
    saved = trace.where if trace is not None else ""
    try:
        for node in graph.nodes:
            args = [env[i] for i in node.inputs]
            if node.op is GETITEM:  # `apply` has taken the tuple apart
                env[node] = args[0][node.attrs["index"]]
                continue
            if trace is not None:
                trace.where = node.where
            out = rule(node, args) if rule is not None else None
            env[node] = apply(node.op, args, node.attrs) if out is None else out
    finally:
        if trace is not None:
            trace.where = saved
    return [env[n] for n in graph.outputs]


def _references(tensor: Tensor) -> int:
    value = tensor._value
    return sys.getrefcount(value)


_SOLE = _references(wrap(np.empty(0)))  # how Python counts a buffer that only its handle refers to


def owned(tensor: Tensor) -> bool:
    """Whether an eager tensor's handle is the only owner of its buffer, so that a write may happen in place.

    Views and NumPy arrays handed out refer to their base, so they count.
    """
    return (not state.active and type(tensor._value) is np.ndarray and tensor._value.flags.writeable
            and tensor._value.flags.owndata and _references(tensor) == _SOLE)


def constant_value(tensor: Tensor) -> np.ndarray | None:
    """The array behind a traced constant, or an eager value; None if it is only known at run time."""
    value = tensor._value
    if isinstance(value, Node):
        return value.attrs["value"] if value.op is CONSTANT else None
    return value
