"""`Module`: an object that owns Variables and other modules. `Layer`: a module that is called, and built at its first
call.

In: attributes, which are set as on any object. Out: the Variables below an object, by the path of attribute names that
leads to them, so that they can be trained, saved and restored. Nothing is registered: what a module owns is looked up
in its attributes whenever it is asked for, in lists, tuples and dicts of them too.

Read next: `core.py` (the simplest layers), `sequential.py`.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.nn import initializers, options, regularizers
from tracejit.ops import core
from tracejit.ops.random import Generator, default_generator
from tracejit.tensor import Tensor, state
from tracejit.trace.autograph.convert import call as convert
from tracejit.trace.reading import aside
from tracejit.variable import Variable


class _Freezing:
    """How often `trainable` has been set on any module: traced code that asks which Variables are trained depends on
    this one number, where it would depend on all modules."""

    times = 0


_freezing = _Freezing()


class Module:
    """An object that owns Variables and modules, as attributes or in lists, tuples and dicts that are attributes.

    >>> class Scale(Module):
    ...     def __init__(self):
    ...         self.by = Variable([1.0, 2.0])
    ...     def __call__(self, x):
    ...         return self.by * x
    >>> class Net(Module):
    ...     def __init__(self):
    ...         self.parts = [Scale(), Scale()]
    >>> net = Net()
    >>> list(net.named_variables()), len(net.trainable_variables)
    (['parts/0/by', 'parts/1/by'], 2)
    """

    _not_owned: frozenset[str] = frozenset()  # attributes that hold what belongs to somebody else
    _trainable = True
    _name: str | None = None

    # -- what it is called ---------------------------------------------------------------------------------------------
    @property
    def name(self) -> str:
        """The name it was given, or its class in snake case."""
        return self._name or _snake(type(self).__name__)

    @name.setter
    def name(self, name: str | None) -> None:
        self._name = name

    # -- what it owns --------------------------------------------------------------------------------------------------
    def named_variables(self) -> dict[str, Variable]:
        """All Variables below, by path ("layers/0/kernel"): in the order of attributes, depth first, each once."""
        return {path: v for path, v, _ in _variables(self)}

    @property
    def variables(self) -> list[Variable]:
        """All Variables below."""
        return [v for _, v, _ in _variables(self)]

    @property
    def trainable_variables(self) -> list[Variable]:
        """The Variables that training changes: made with `trainable=True`, in modules that are trainable."""
        return [v for _, v, trainable in _variables(self, _freezing.times) if trainable]

    @property
    def non_trainable_variables(self) -> list[Variable]:
        """The other Variables: running means, frozen modules."""
        return [v for _, v, trainable in _variables(self, _freezing.times) if not trainable]

    @property
    def submodules(self) -> list[Module]:
        """All modules below this one, depth first, each once."""
        return [m for _, m in _modules(self)][1:]

    @property
    def trainable(self) -> bool:
        """Whether training changes its Variables; setting it sets it for all modules below too."""
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        for _, module in _modules(self):
            module._trainable = bool(value)
        _freezing.times += 1

    # -- state ---------------------------------------------------------------------------------------------------------
    def state(self) -> dict[str, np.ndarray]:
        """The values of all Variables, and the places of random generators, by path. Later assignments do not change
        them."""
        return {path: _value(x) for path, x in self._stateful().items()}

    def _stateful(self) -> dict[str, Any]:
        """Variables and random generators, by path."""
        generators = {path: x for path, x, _ in _owned_state(self) if isinstance(x, Generator)}
        return {**self.named_variables(), **generators}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Assign values as `state` gives them. Values for layers that are not built yet wait until they are.

        ValueError, before anything is assigned, if names are missing or unknown, or shapes differ.
        """
        known = self._stateful()
        waiting: dict[int, tuple[Layer, dict[str, Any]]] = {}
        unbuilt = [(path, m) for path, m in _modules(self) if isinstance(m, Layer) and not m.built]
        problems = [f"no value for {n}" for n, x in known.items() if n not in state and isinstance(x, Variable)]
        for name, value in state.items():
            if name in known:
                if np.shape(value) != (shape := np.shape(_value(known[name]))):
                    problems.append(f"{name} has shape {shape}, and the value {np.shape(value)}")
                continue
            for path, layer in reversed(unbuilt):  # the innermost one
                if not path or name.startswith(path + "/"):
                    rest = name[len(path) + 1 :] if path else name
                    waiting.setdefault(id(layer), (layer, {}))[1][rest] = value
                    break
            else:
                problems.append(f"nothing is called {name}")
        if problems:
            raise ValueError(f"{self.name}: this state does not fit: {_listed(problems)}")
        for name, x in known.items():
            if name in state:
                _assign(x, state[name])
        for layer, values in waiting.values():
            layer._waiting = values

    def get_weights(self) -> list[np.ndarray]:
        """The values of all Variables, in the order of `variables`."""
        return [v.numpy() for v in self.variables]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Assign values in the order of `variables`; ValueError, before anything is assigned, if they do not fit."""
        named = self.named_variables()
        if len(weights) != len(named):
            raise ValueError(f"{self.name}: {len(named)} Variables, but {len(weights)} values{_hint(self)}")
        wrong = [f"{n} has shape {v.shape}, and the value {np.shape(w)}" for (n, v), w in zip(named.items(), weights)
                 if v.shape != np.shape(w)]  # fmt: skip
        if wrong:
            raise ValueError(f"{self.name}: these weights do not fit: {_listed(wrong)}")
        for v, w in zip(named.values(), weights):
            v.assign(w)

    def count_params(self) -> int:
        """The number of elements of all Variables."""
        return sum(v.size for v in self.variables)

    # -- text ----------------------------------------------------------------------------------------------------------
    def _options(self) -> str:
        """What tells this module from others of its class, for `repr`."""
        return ""

    def __repr__(self) -> str:
        lines = []
        for name, child in children(self):
            lines += [f"  ({name}): " + repr(child).replace("\n", "\n  ")]
        head = f"{type(self).__name__}({self._options()})"
        return head if not lines else "\n".join([head[:-1], *lines, ")"])


# -- looking up what a module owns -------------------------------------------------------------------------------------
def _owned(module: Module) -> Iterator[tuple[str, Any]]:
    """The attributes of a module that may hold what it owns, with their names."""
    skip = module._not_owned
    for name, value in vars(module).items():
        if name not in skip:
            yield name, value


def _entries(x: Any) -> Iterable[tuple[str, Any]]:
    """The parts of a container, with their names; nothing for anything else."""
    if isinstance(x, (list, tuple)):
        return [(str(k), v) for k, v in enumerate(x)]
    if isinstance(x, dict):
        return [(str(k), v) for k, v in x.items()]
    return ()


@aside
def children(module: Module) -> list[tuple[str, Module]]:
    """The modules right below, with the rest of their paths."""
    found: list[tuple[str, Module]] = []

    def look(prefix: str, x: Any, seen: frozenset[int]) -> None:
        if isinstance(x, Module):
            found.append((prefix, x))
        elif isinstance(x, (list, tuple, dict)) and id(x) not in seen:
            for name, part in _entries(x):
                look(f"{prefix}/{name}", part, seen | {id(x)})

    for name, value in _owned(module):
        look(name, value, frozenset())
    return found


@aside
def _modules(root: Module) -> list[tuple[str, Module]]:
    """`root` and all modules below, with their paths, depth first, each once."""
    found: list[tuple[str, Module]] = []
    seen: set[int] = set()

    def visit(path: str, module: Module) -> None:
        if id(module) not in seen:
            seen.add(id(module))
            found.append((path, module))
            for name, child in children(module):
                visit(f"{path}/{name}" if path else name, child)

    visit("", root)
    return found


@aside
def _variables(root: Module, _: int = 0) -> list[tuple[str, Variable, bool]]:
    """All Variables below, with their paths, and whether they are trained."""
    return [entry for entry in _owned_state(root) if isinstance(entry[1], Variable)]


@aside
def _penalties(root: Module, _: int) -> list[tuple[Variable, Callable[[Any], Any]]]:
    """The Variables below that have a regularizer and are trained, with it."""
    trained = {id(v) for _, v, trainable in _variables(root) if trainable}
    pairs = [pair for _, m in _modules(root) for pair in vars(m).get("_penalties", ())]
    return [(v, penalty) for v, penalty in pairs if id(v) in trained]


def _value(x: Any) -> np.ndarray:
    """What a Variable holds; where a random generator is."""
    return x.numpy() if isinstance(x, Variable) else np.array(list(x.state().values()), np.uint64)  # type: ignore[no-any-return]


def _assign(x: Any, value: Any) -> None:
    if isinstance(x, Variable):
        x.assign(value)
    else:
        x.load_state(dict(zip(x.state(), np.asarray(value).tolist())))


def _owned_state(root: Module) -> list[tuple[str, Any, bool]]:
    """All Variables and random generators below, with their paths, and whether they are trained."""
    found: list[tuple[str, Any, bool]] = []
    seen: set[int] = set()

    def look(path: str, x: Any, trainable: bool) -> None:
        if isinstance(x, Generator):
            if id(x) not in seen and x is not default_generator:
                seen.add(id(x))
                found.append((path, x, False))
        elif isinstance(x, Variable):
            if id(x) not in seen:
                seen.add(id(x))
                found.append((path, x, trainable and x.trainable))
        elif isinstance(x, Module):
            if id(x) not in seen:
                seen.add(id(x))
                for name, value in _owned(x):
                    look(f"{path}/{name}" if path else name, value, x._trainable)
        elif isinstance(x, (list, tuple, dict)) and id(x) not in seen:
            seen.add(id(x))
            for name, part in _entries(x):
                look(f"{path}/{name}", part, trainable)
            seen.discard(id(x))

    look("", root, True)
    return found


def _hint(module: Module) -> str:
    unbuilt = [m.name for m in (module, *module.submodules) if isinstance(m, Layer) and not m.built]
    if not unbuilt:
        return ""
    return f"; not built yet: {', '.join(unbuilt[:5])} (call the model once, or give the first layer input_shape=)"


def _listed(problems: Sequence[str], most: int = 6) -> str:
    return "; ".join(problems[:most]) + (f"; and {len(problems) - most} more" if len(problems) > most else "")


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Za-z0-9])(?=[A-Z][a-z])", "_", name).lower()


# -- layers ------------------------------------------------------------------------------------------------------------
class _Calling(threading.local):
    """What layers called from within a layer take over from it."""

    def __init__(self) -> None:
        self.training = False
        self.restoring = False  # values wait for the Variables that are made now


_calling = _Calling()


class Layer(Module):
    """A module that is called with tensors and makes its Variables at the first call, when it knows their shapes.

    A subclass has `call(x, ...)`, and `build(input_shape)` if it has Variables. A `call` that has a parameter
    `training` gets what the layer was called with, else what the layer around it was called with, else False.

    Inputs of another float dtype are cast to the layer's, which is the default float when the layer is made.

    >>> class Scale(Layer):
    ...     def build(self, input_shape):
    ...         self.by = self.add_weight((input_shape[-1],), "ones")
    ...     def call(self, x):
    ...         return self.by * x
    >>> layer = Scale()
    >>> layer([[1.0, 2.0]]), layer.by.shape
    (tj.Tensor([[1. 2.]], shape=(1, 2), dtype=float32), (2,))
    """

    built = True  # False in subclasses that have a `build`, until they are built
    _dtype: np.dtype | None = None
    _input_shape: tuple[int | None, ...] | None = None  # without the batch
    _waiting: dict[str, Any] | None = None  # values for its Variables, until it is built
    _takes_training = False
    _takes_mask = False
    supports_masking = False  # whether each step of the result belongs to the same step of the input
    _makes_mask = False  # whether `compute_mask` looks at the input
    _not_owned = frozenset(("_waiting", "_penalties"))

    def __init__(
        self,
        *,
        trainable: bool = True,
        dtype: Any = None,
        name: str | None = None,
        input_shape: Sequence[int | None] | None = None,
        **unknown: Any,
    ):
        """input_shape: that of one example, for the first layer of a `Sequential`, which then builds it at once."""
        if unknown:
            raise options.unknown(self, unknown)
        if not trainable:
            self.trainable = False
        if name is not None:
            self.name = name
        self._dtype = dtypes.default_float() if dtype is None else dtypes.as_dtype(dtype)
        if input_shape is not None:
            self._input_shape = options.shape(self, "input_shape", input_shape)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "build" in vars(cls) and "built" not in vars(cls):
            cls.built = False
        parameters = inspect.signature(cls.call).parameters
        cls._takes_training, cls._takes_mask = "training" in parameters, "mask" in parameters
        if "compute_mask" in vars(cls) and "_makes_mask" not in vars(cls):
            cls._makes_mask = True

    @property
    def dtype(self) -> np.dtype:
        """The dtype of its Variables, and of float inputs."""
        return self._dtype or dtypes.default_float()

    @property
    def losses(self) -> list[Any]:
        """The regularizers' values for the Variables below that are trained."""
        return [penalty(v) for v, penalty in _penalties(self, _freezing.times)]

    weights = Module.variables
    trainable_weights = Module.trainable_variables
    non_trainable_weights = Module.non_trainable_variables

    # -- for subclasses ------------------------------------------------------------------------------------------------
    def build(self, input_shape: Any) -> None:
        """Make the Variables for inputs of that shape; for several inputs, in a list, tuple or dict, their shapes."""

    def call(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """The layer's result."""
        raise NotImplementedError(f"{type(self).__name__} has no method `call`")

    def shapes_for_build(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What `build` gets, from the arguments of the first call: the shape of the first one."""
        return shapes(args[0])

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the result, None for what is unknown. A layer that does not say it is built when it is called.

        NotImplementedError where a subclass does not say.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method `compute_output_shape`")

    @aside
    def compute_mask(self, x: Any, mask: Any = None) -> Any:
        """Which steps of the result are real, from which steps of the input are; None for all. A layer whose steps
        stay what they are says `supports_masking = True`. A `Sequential` hands masks on: what this gives goes to the
        next layer, as `mask=` if its `call` has that parameter. What a model gives goes to losses and metrics."""
        return mask if self.supports_masking else None

    def add_weight(
        self,
        shape: Sequence[int] = (),
        initializer: Any = "glorot_uniform",
        dtype: Any = None,
        trainable: bool = True,
        name: str | None = None,
        regularizer: Any = None,
    ) -> Variable:
        """A new Variable; keep it as an attribute. initializer: a name, or a function of shape and dtype. regularizer:
        a name, or a function of the Variable, whose value `losses` has."""
        if any(n is None for n in shape):
            raise ValueError(f"{self.name}: a Variable of shape {tuple(shape)} needs sizes that are not known yet")
        sizes = tuple(int(n) for n in shape)
        first = initializers.get("zeros" if _calling.restoring else initializer)  # no random number is drawn in vain
        d = self.dtype if dtype is None else dtypes.as_dtype(dtype)
        if trainable and d.kind not in "fc":
            raise TypeError(f"{self.name}: what is trained must be of a float or complex dtype, not {d}")
        made = Variable(lambda: first(sizes, d), trainable=trainable, name=name, dtype=d)
        if (penalty := regularizers.get(regularizer)) is not None:
            self.__dict__.setdefault("_penalties", []).append((made, penalty))
        return made

    # -- calling -------------------------------------------------------------------------------------------------------
    def __call__(self, *args: Any, training: bool | None = None, **kwargs: Any) -> Any:
        outer = _calling.training
        training = outer if training is None else bool(training)
        try:
            if args:
                args = as_inputs(args[0], self.dtype), *args[1:]
                if not self.built:
                    self.build_for(self.shapes_for_build(args, kwargs))
            if self._takes_training:
                kwargs["training"] = training
            call = traceable(self.call)
            if training is outer:
                return call(*args, **kwargs)
            _calling.training = training
            try:
                return call(*args, **kwargs)
            finally:
                _calling.training = outer
        except Exception as error:
            _blame(error, self, args)
            raise

    @aside
    def build_for(self, input_shape: Any) -> None:
        """Make the Variables, once, and give them the values that wait for them."""
        if self.built:
            return
        outer = _calling.restoring
        _calling.restoring = outer or self._waiting is not None
        try:
            self.build(input_shape)
        finally:
            _calling.restoring = outer
        self.built = True
        if self._waiting is not None:
            values, self._waiting = self._waiting, None
            self.load_state(values)


def traceable(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the user's, about to be called by a layer: while tracing, with its control flow rewritten."""
    return f if state.trace is None else convert(f)  # type: ignore[no-any-return]


def as_inputs(x: Any, dtype: np.dtype) -> Any:
    """What a layer is called with, as tensors; floats of another precision are cast."""
    if isinstance(x, (list, tuple)) and any(isinstance(part, (Tensor, np.ndarray, list, tuple, dict)) for part in x):
        if any(isinstance(part, (Tensor, np.ndarray, dict)) for part in x):
            parts = [as_inputs(part, dtype) for part in x]
            return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    elif isinstance(x, dict):
        return {k: as_inputs(part, dtype) for k, part in x.items()}
    elif x is None:
        return None
    t = core.as_tensor(x)
    return core.cast(t, dtype) if t.dtype != dtype and t.dtype.kind == "f" and dtype.kind == "f" else t


def shapes(x: Any) -> Any:
    """The shape of a tensor; for several, their shapes in the same container."""
    if isinstance(x, Tensor):
        return x.shape
    if isinstance(x, dict):
        return {k: shapes(part) for k, part in x.items()}
    return [shapes(part) for part in x] if isinstance(x, (list, tuple)) else None


@aside
def _blame(error: Exception, layer: Layer, args: tuple[Any, ...]) -> None:
    """Note in which layer an error arose: the innermost."""
    if not getattr(error, "_tracejit_layer", False):
        error._tracejit_layer = True  # type: ignore[attr-defined]
        try:
            given = f", called with shape {shapes(args[0])}" if args else ""
        except Exception:
            given = ""
        error.add_note(f"in layer {layer.name} ({type(layer).__name__}{given})")
