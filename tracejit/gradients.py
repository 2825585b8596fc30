"""The functional gradient interface: `grad`, `vjp`, `jvp`, `jacobian`, `hessian` and friends.

In: a function of tensors, arrays or floats, in any pytree. Out: functions of the same arguments that give its
derivatives. They run the function under a fresh tape, so it sees real values when eager (print, pdb and `if` work)
and nodes when traced, and they nest.

Read next: `tape.py`, `custom.py` (your own rules), `check.py` (against finite differences).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracejit.errors import GradientError, boundary
from tracejit.ops import core, marks
from tracejit.ops.movement import permuted
from tracejit.tape import GradientTape, basis, seed, stacked
from tracejit.tensor import Tensor, wrap
from tracejit.trace.autodiff import Key, accumulate, differentiable
from tracejit.trace.autograph.builtin import HIGHER_ORDER
from tracejit.trace.signature import flatten, leaf_names, unflatten
from tracejit.variable import Variable

Function = Callable[..., Any]


# -- arguments and results ---------------------------------------------------------------------------------------------
class Inputs:
    """A call's arguments with the float leaves of those at `argnums` (None: all that have any) made into tensors to
    differentiate by.

    args: what to call the function with. values: those tensors (Variables stay themselves).
    """

    def __init__(self, f: Function, args: Sequence[Any], argnums: int | Sequence[int] | None):
        self.single = isinstance(argnums, int)
        self.function = f
        self.args = list(args)
        self.values: list[Tensor] = []
        self._origins: list[tuple[int, int, Any]] = []  # for each value: its argument, leaf, and the structure
        self._handles: list[tuple[Any, Tensor, Tensor]] = []  # (what the caller passed, what f gets, its first value)
        self._places: list[tuple[Any, list[int | None]]] = []  # per argument: structure, and which value is each leaf
        for k in range(len(args)) if argnums is None else [argnums] if isinstance(argnums, int) else argnums:
            k = _position(f, k, len(args))
            leaves, spec = flatten(args[k])
            places: list[int | None] = []
            for j, x in enumerate(leaves):
                places.append(len(self.values) if _is_float(x) else None)
                if places[-1] is not None:
                    self._origins.append((k, j, spec))
                    leaves[j] = self._tensor(x)
            if all(p is None for p in places) and argnums is not None:
                raise TypeError(_not_float(_parameter_name(f, k), args[k], leaves))
            self.args[k] = unflatten(spec, leaves)
            self._places.append((spec, places))

    def _tensor(self, x: Any) -> Tensor:
        if isinstance(x, Variable):
            self.values.append(x)
            return x
        handle = marks.identity(core.strong(core.as_tensor(x)))
        self.values.append(wrap(handle._value))
        self._handles.append((x, handle, self.values[-1]))
        return handle

    def name(self, value: int) -> str:
        """How errors call a value."""
        k, leaf, spec = self._origins[value]
        return leaf_names(spec, _parameter_name(self.function, k))[leaf]

    def write_back(self) -> None:
        """What the function wrote into tensors that it was passed is seen by the caller."""
        for given, handle, value in self._handles:
            if isinstance(given, Tensor) and not given._weak and handle._value is not value._value:
                core.rebind(given, handle)

    def pack(self, found: Sequence[Any]) -> Any:
        """One result per value, in the structure of the differentiated arguments; other leaves get None."""
        packed = [unflatten(spec, [None if p is None else found[p] for p in places]) for spec, places in self._places]
        return packed[0] if self.single else tuple(packed)

    def unpack(self, given: Any, what: str) -> list[Tensor | None]:
        """The tensors for `values` out of such a structure (tangents)."""
        trees = [given] if self.single else list(given)
        if len(trees) != len(self._places):
            raise ValueError(f"{what}: {len(trees)} given for {len(self._places)} arguments")
        found: list[Tensor | None] = [None] * len(self.values)
        for tree, (spec, places) in zip(trees, self._places, strict=True):
            leaves, other = flatten(tree)
            if other != spec:
                raise ValueError(f"{what}: the structure {other} differs from the argument's {spec}")
            for p, t in zip(places, leaves, strict=True):
                if p is not None and t is not None:
                    found[p] = seed(self.values[p], t)
        return found


def _is_float(x: Any) -> bool:
    if isinstance(x, (Tensor, np.ndarray, np.generic)):
        return x.dtype.kind in "fc"
    return isinstance(x, (float, complex))


def _not_float(name: str, argument: Any, leaves: Sequence[Any]) -> str:
    if len(leaves) != 1 or leaves[0] is not argument:
        return f"argument '{name}' holds no floats, so there is nothing to differentiate by"
    if isinstance(argument, Tensor) and argument._weak:
        return f"argument '{name}' is {'bool' if argument.dtype.kind == 'b' else 'int'}; pass a float"
    if isinstance(argument, (Tensor, np.ndarray, np.generic)):
        return f"argument '{name}' is {argument.dtype}; pass floats, such as {name}.astype('float32')"
    if isinstance(argument, int):
        return f"argument '{name}' is {type(argument).__name__}; pass {float(argument)}"
    return f"argument '{name}' is {type(argument).__name__}; gradients are taken by floats and structures of them"


def _parameters(f: Function) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


def _parameter_name(f: Function, k: int) -> str:
    names = _parameters(f)
    return names[k] if k < len(names) else f"args[{k}]"


def _position(f: Function, k: int, n: int) -> int:
    if not -n <= k < n:
        raise TypeError(f"{_name(f)}: argnums says argument {k}, but {n} positional arguments were passed")
    return k % n


def _name(f: Function) -> str:
    return getattr(f, "__name__", type(f).__name__)


def _run(f: Function, inputs: Inputs, kwargs: dict[str, Any]) -> tuple[GradientTape, Any]:
    """Call f under a fresh tape that follows the inputs."""
    tape = GradientTape(persistent=True, watch_accessed_variables=False)
    tape.watch(inputs.values)
    with tape:
        result = f(*inputs.args, **kwargs)
    inputs.write_back()
    return tape, result


def _with_aux(f: Function, result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(f"has_aux: {_name(f)} must return (value, aux), got {type(result).__name__}")
    return result


def outputs(leaves: Sequence[Any]) -> list[Tensor | None]:
    """The leaves of a result as tensors; None for what has no derivative (integers, strings, None)."""
    found: list[Tensor | None] = []
    for x in leaves:
        is_number = isinstance(x, (Tensor, np.ndarray, np.generic, float, complex))
        y = core.strong(core.as_tensor(x)) if is_number else None
        found.append(y if y is not None and differentiable(y) else None)
    return found


def _scalar(verb: str, f: Function, y: Any) -> Tensor:
    """The value to differentiate, which must be one real float."""
    if not isinstance(y, (Tensor, np.ndarray, np.generic, int, float, complex)):
        raise TypeError(f"{verb}: {_name(f)} must return a scalar, got {type(y).__name__}; with has_aux=True "
                        f"it may return (value, aux)")
    t = core.strong(core.as_tensor(y))
    if t.shape != ():
        raise TypeError(f"{verb} needs a function with a scalar result, {_name(f)} gave shape {t.shape}; use "
                        f"jacobian or vjp, or sum the result")
    if t.dtype.kind == "c":
        raise TypeError(f"{verb} needs a real result, {_name(f)} gave {t.dtype}; take its real part or abs, or use vjp")
    if t.dtype.kind != "f":
        raise TypeError(f"{verb} needs a float result, {_name(f)} gave {t.dtype}")
    return t


def _filled(tape: GradientTape, inputs: Inputs, found: Sequence[Tensor | None]) -> list[Tensor]:
    """Gradients with zeros for inputs without influence. An input that left for NumPy instead is an error."""
    filled = []
    for k, (x, g) in enumerate(zip(inputs.values, found, strict=True)):
        if g is None and (escape := tape.escape_of(x)) is not None:
            raise GradientError(f"argument '{inputs.name(k)}' was converted to NumPy or Python ({escape.how}) at "
                                f"{escape.where}; the gradient stops there. Use tracejit functions on it, or "
                                f"stop_gradient if that is meant")
        filled.append(core.full(0, x.shape, x.dtype) if g is None else g)
    return filled


# -- reverse mode ------------------------------------------------------------------------------------------------------
def value_and_grad(f: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """A function giving (f(...), gradient): f's scalar result and its gradient as `grad` gives it.

    >>> value_and_grad(lambda x: x * x)(3.0)
    (tj.Tensor(9.0, shape=(), dtype=float32), tj.Tensor(6.0, shape=(), dtype=float32))
    """

    @boundary
    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return _value_and_grad("value_and_grad", f, argnums, has_aux, args, kwargs)

    return wrapper


def grad(f: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """A function giving the gradient of f's scalar result with respect to argument `argnums` (several: a tuple of
    gradients).

    An argument may be a float, an array or a pytree; its gradient has the same structure, with None for leaves that
    are not floats. Where f does not depend on an input, the gradient is zero. Complex gradients point uphill. With
    `has_aux`, f returns (value, aux) and the result is (gradient, aux).

    >>> grad(lambda x, y: x * y)(2.0, 3.0)
    tj.Tensor(3.0, shape=(), dtype=float32)
    """

    @boundary
    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        value, gradient = _value_and_grad("grad", f, argnums, has_aux, args, kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return wrapper


def _value_and_grad(verb: str, f: Function, argnums: Any, has_aux: bool, args: Any, kwargs: Any) -> tuple[Any, Any]:
    inputs = Inputs(f, args, argnums)
    tape, result = _run(f, inputs, kwargs)
    value, aux = _with_aux(f, result) if has_aux else (result, None)
    y = _scalar(verb, f, value)
    found = tape.cotangents({tape.key(y): core.full(1, (), y.dtype)}, inputs.values)
    gradient = inputs.pack(_filled(tape, inputs, found))
    return ((y, aux) if has_aux else y), gradient


@boundary
def vjp(f: Function, *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """(f(*primals), pull): `pull(cotangent)` gives a tuple, the cotangent of each primal. With has_aux: (value, pull,
    aux).

    The cotangent has the structure of f's result; None in it stands for zero.

    >>> y, pull = vjp(lambda x: x * x, 3.0)
    >>> pull(1.0)
    (tj.Tensor(6.0, shape=(), dtype=float32),)
    """
    inputs = Inputs(f, primals, None)
    tape, result = _run(f, inputs, {})
    value, aux = _with_aux(f, result) if has_aux else (result, None)
    leaves, spec = flatten(value)
    outs = outputs(leaves)
    keys = [None if y is None else tape.key(y) for y in outs]

    def pull(cotangent: Any) -> tuple[Any, ...]:
        given, structure = flatten(cotangent)
        if structure != spec:
            raise ValueError(f"vjp: the cotangent's structure {structure} differs from the result's {spec}")
        seeds: dict[Key, Tensor] = {}
        for key, y, g in zip(keys, outs, given, strict=True):
            if key is not None and y is not None and g is not None:
                accumulate(seeds, key, seed(y, g))
        found = tape.cotangents(seeds, inputs.values)
        return inputs.pack(_filled(tape, inputs, found))

    return (value, pull, aux) if has_aux else (value, pull)


# -- forward mode ------------------------------------------------------------------------------------------------------
@boundary
def jvp(f: Function, primals: Any, tangents: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """(f(*primals), how the result moves when the primals move by `tangents`), in forward mode. With has_aux: also aux.

    primals, tangents: tuples with one entry per argument (or a single argument and its tangent).

    >>> jvp(lambda x: x * x, (3.0,), (1.0,))
    (tj.Tensor(9.0, shape=(), dtype=float32), tj.Tensor(6.0, shape=(), dtype=float32))
    """
    primals = _arguments(primals)
    inputs = Inputs(f, primals, None)
    moving = inputs.unpack(_arguments(tangents), "jvp: tangents")
    tape, result = _run(f, inputs, {})
    value, aux = _with_aux(f, result) if has_aux else (result, None)
    leaves, spec = flatten(value)
    start = {tape.key(x): t for x, t in zip(inputs.values, moving, strict=True) if t is not None}
    outs = outputs(leaves)
    moved = iter(tape.tangents(start, [y for y in outs if y is not None]))
    filled = [None if y is None else core.full(0, y.shape, y.dtype) if (t := next(moved)) is None else t for y in outs]
    out = unflatten(spec, filled)
    return (value, out, aux) if has_aux else (value, out)


def _arguments(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, (tuple, list)) else (given,)


# -- whole matrices ----------------------------------------------------------------------------------------------------
def jacobian(f: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """A function giving the derivative of every element of f's result by every element of the argument, in reverse
    mode.

    For each tensor of the result, a structure like the argument's, of shapes result.shape + leaf.shape.
    """
    return _jacobian(f, argnums, has_aux, _rows)


jacrev = jacobian


def jacfwd(f: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """As `jacobian`, in forward mode: cheaper when the argument is smaller than the result."""
    return _jacobian(f, argnums, has_aux, _columns)


def _jacobian(f: Function, argnums: Any, has_aux: bool, matrices: Callable[..., list[list[Tensor]]]) -> Function:
    @boundary
    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        inputs = Inputs(f, args, argnums)
        tape, result = _run(f, inputs, kwargs)
        value, aux = _with_aux(f, result) if has_aux else (result, None)
        leaves, spec = flatten(value)
        outs = [core.strong(core.as_tensor(y)) for y in leaves]
        for y in outs:
            if y.dtype.kind != "f":
                advice = "; take its real and imaginary parts" if y.dtype.kind == "c" else ""
                raise TypeError(f"jacobian: {_name(f)} gave {y.dtype}, its results must be real floats{advice}")
        found = unflatten(spec, [inputs.pack(row) for row in matrices(tape, inputs, outs)])
        return (found, aux) if has_aux else found

    return wrapper


def _rows(tape: GradientTape, inputs: Inputs, outs: Sequence[Tensor]) -> list[list[Tensor]]:
    """Reverse mode: one walk for each element of the results."""
    found = []
    for y in outs:
        rows = [_filled(tape, inputs, tape.cotangents({tape.key(y): g}, inputs.values)) for g in basis(y)]
        found.append([_matrix([row[k] for row in rows], y.shape, x.shape, x.dtype)
                      for k, x in enumerate(inputs.values)])
    return found


def _columns(tape: GradientTape, inputs: Inputs, outs: Sequence[Tensor]) -> list[list[Tensor]]:
    """Forward mode: one walk for each element of the inputs; two if it is complex, along each of its axes."""
    found: list[list[Tensor]] = [[] for _ in outs]
    for x in inputs.values:
        key, axes = tape.key(x), ((1, 1j) if x.dtype.kind == "c" else (1,))
        moved: Any = [[tape.tangents({key: t * by}, outs) for by in axes] for t in basis(x)]  # type: ignore[operator]
        for j, y in enumerate(outs):
            columns = []
            for along in moved:
                parts = [m[j] * by for m, by in zip(along, axes, strict=True) if m[j] is not None]
                columns.append(sum(parts[1:], start=parts[0]) if parts else None)
            matrix = _matrix([c if c is None else core.cast(c, x.dtype) for c in columns], x.shape, y.shape, x.dtype)
            found[j].append(permuted(matrix, (*range(x.ndim, x.ndim + y.ndim), *range(x.ndim))))
    return found


def _matrix(rows: Sequence[Tensor | None], shape: tuple[int, ...], like: tuple[int, ...], dtype: Any) -> Tensor:
    """Rows of shape `like` as one tensor of shape `shape` + `like`; missing rows are zero."""
    zero = core.full(0, like, dtype)
    found = stacked(rows, shape, zero)
    return core.full(0, shape + like, dtype) if found is None else found


def hessian(f: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """A function giving the second derivatives of f's scalar result: for each leaf, a structure of shapes leaf.shape
    + leaf.shape.

    >>> hessian(lambda x: x[0] * x[1] ** 2)(np.array([1.0, 3.0]))
    tj.Tensor(
    [[0. 6.]
     [6. 2.]], shape=(2, 2), dtype=float64)
    """
    return jacobian(grad(f, argnums, has_aux), argnums, has_aux)


def hvp(f: Function, primals: Any, tangents: Any) -> Any:
    """The product of f's second derivatives with `tangents`, without building the matrix (forward over reverse).

    primals, tangents: tuples with one entry per argument (or a single argument and its tangent); the result is alike.
    """
    several = isinstance(primals, (tuple, list))
    argnums = tuple(range(len(primals))) if several else 0
    return jvp(grad(f, argnums), primals, tangents)[1]


HIGHER_ORDER.update((vjp, jvp, hvp))


# -- stopping ----------------------------------------------------------------------------------------------------------
def stop_gradient(x: Any) -> Any:
    """The same values (of a tensor, or of every tensor in a structure); gradients do not flow through.

    >>> grad(lambda x: x * stop_gradient(x))(3.0)
    tj.Tensor(3.0, shape=(), dtype=float32)
    """
    if isinstance(x, (Tensor, np.ndarray)):
        return marks.stop_gradient(x)
    leaves, spec = flatten(x)
    return unflatten(spec, [marks.stop_gradient(v) if isinstance(v, (Tensor, np.ndarray)) else v for v in leaves])


# -- the same with TensorFlow's names ----------------------------------------------------------------------------------
def gradients_function(f: Function, params: Sequence[int | str] | None = None) -> Function:
    """A function giving the gradients of the sum of f's result with respect to its positional arguments `params`
    (names or positions; all, if not given): a list, or just the gradient if there is one argument.

    >>> gradients_function(lambda x: x ** 2)(3.0)
    tj.Tensor(6.0, shape=(), dtype=float32)
    """
    both = value_and_gradients_function(f, params)

    @boundary
    @functools.wraps(f)
    def wrapper(*args: Any, dy: Any = None) -> Any:
        return both(*args, dy=dy)[1]

    return wrapper


def value_and_gradients_function(f: Function, params: Sequence[int | str] | None = None) -> Function:
    """As `gradients_function`, giving (f(...), gradients). `dy` weighs the elements of the result."""

    @boundary
    @functools.wraps(f)
    def wrapper(*args: Any, dy: Any = None) -> Any:
        chosen = range(len(args)) if params is None else [_named(f, p) for p in params]
        inputs = Inputs(f, args, tuple(chosen))
        tape, result = _run(f, inputs, {})
        y = core.strong(core.as_tensor(result))
        if not differentiable(y):
            raise TypeError(f"gradients_function needs a float result, {_name(f)} gave {y.dtype}")
        gradients = inputs.pack(_filled(tape, inputs, tape.cotangents({tape.key(y): seed(y, dy)}, inputs.values)))
        return y, gradients[0] if len(gradients) == 1 else list(gradients)

    return wrapper


def _named(f: Function, parameter: int | str) -> int:
    if isinstance(parameter, int):
        return parameter
    names = _parameters(f)
    if parameter not in names:
        raise ValueError(f"{_name(f)} has no argument {parameter!r}; it has {', '.join(names)}")
    return names.index(parameter)


def implicit_gradients(f: Function) -> Function:
    """A function giving the gradients of the sum of f's result with respect to the trainable Variables it reads: a
    list of (gradient, variable), in the order they are first read.

    >>> x = Variable(2.0)
    >>> implicit_gradients(lambda y: (y - x ** 2) ** 2)(7.0)
    [(tj.Tensor(-24.0, shape=(), dtype=float32), <tj.Variable 'Variable:0' shape=() dtype=float32, numpy=2.0>)]
    """
    both = implicit_value_and_gradients(f)

    @boundary
    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return both(*args, **kwargs)[1]

    return wrapper


def implicit_value_and_gradients(f: Function) -> Function:
    """As `implicit_gradients`, giving (f(...), [(gradient, variable), ...])."""

    @boundary
    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        tape = GradientTape(persistent=True)
        with tape:
            result = f(*args, **kwargs)
        variables = tape.watched_variables()
        if not variables:
            raise ValueError(f"implicit_gradients: {_name(f)} read no trainable Variable")
        y = core.as_tensor(result)
        if not differentiable(y):
            raise TypeError(f"implicit_gradients needs a float result, {_name(f)} gave {y.dtype}")
        found = tape.cotangents({tape.key(y): core.full(1, y.shape, y.dtype)}, variables)
        return result, [(core.full(0, v.shape, v.dtype) if g is None else g, v)
                        for g, v in zip(found, variables, strict=True)]

    return wrapper
