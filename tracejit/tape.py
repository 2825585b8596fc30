"""`GradientTape`: records what happens to watched tensors and variables, and differentiates it on request.

In: ops that run inside `with tape:`. Out: gradients of any of their results with respect to anything watched,
computed by ordinary ops, so that other tapes and traces hear them: tapes nest for higher orders.

Read next: `trace/autodiff.py` (the walks), `gradients.py` (the functional interface).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import optree

from tracejit.errors import user_line
from tracejit.ops import core
from tracejit.ops.movement import TRANSPOSE, embed, joined, reshaped
from tracejit.tensor import Tensor, apply, state, taping
from tracejit.trace import control as _control  # noqa: F401 (the derivatives of control flow)
from tracejit.trace.autodiff import Key, Recording, accumulate, backward, dependents, differentiable, forward
from tracejit.trace.signature import NAMESPACE, flatten
from tracejit.variable import Snapshot, Variable, source_of


class UnconnectedGradients:
    """What `gradient` gives for a source that the target does not depend on."""

    NONE = "none"
    ZERO = "zero"


class Escape(NamedTuple):
    """A watched value, or one derived from it, that left for NumPy or Python."""

    key: Key
    how: str
    where: str


class GradientTape(Recording):
    """Record ops for differentiation.

    >>> x = Variable(3.0)
    >>> with GradientTape() as tape:
    ...     y = x * x
    >>> tape.gradient(y, x)
    tj.Tensor(6.0, shape=(), dtype=float32)

    persistent: `gradient` may be called more than once. watch_accessed_variables: trainable variables are watched
    as soon as they are read; tensors are watched by `watch`.
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True):
        super().__init__()
        self.persistent = persistent
        self._watching = watch_accessed_variables
        self._variables: dict[Key, Variable] = {}
        self.escapes: list[Escape] = []
        self._context: taping | None = None
        self._used = False  # a tape that is not persistent was asked for its gradient

    # -- recording ---------------------------------------------------------------------------------------------------
    def __enter__(self) -> GradientTape:
        if self._context is not None:
            raise ValueError("this GradientTape is recording already")
        self._context = taping((*state.tapes, self))
        self._context.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.__exit__()

    def key(self, tensor: Tensor) -> Key:
        variable = source_of(tensor)
        return super().key(tensor) if variable is None else id(variable)

    def snapshot(self, tensor: Tensor) -> Tensor:
        variable = source_of(tensor)
        now = super().snapshot(tensor)
        return now if variable is None else Snapshot(now._value, variable)

    def accessed(self, tensor: Tensor) -> None:
        if self._watching and (variable := source_of(tensor)) is not None and variable.trainable:
            self._watch_variable(variable)

    def record(self, op: Any, args: Sequence[Tensor], attrs: Any, out: Any) -> None:
        if not self._used:
            super().record(op, args, attrs, out)

    def escaped(self, tensor: Tensor, how: str) -> None:
        key = self.key(tensor)
        if key in self.tracked:
            self.escapes.append(Escape(key, how, user_line()))

    def _watch_variable(self, variable: Variable) -> None:
        if differentiable(variable):
            self.tracked[id(variable)] = self._variables[id(variable)] = variable

    def watch(self, tensor: Any) -> None:
        """Follow a tensor or variable, or every one in a structure."""
        for x in flatten(tensor)[0]:
            if x is None:
                continue
            if not isinstance(x, Tensor):
                raise TypeError(f"GradientTape.watch takes tensors and variables, not {type(x).__name__}")
            if not differentiable(x):
                warnings.warn(f"GradientTape.watch: a tensor of {x.dtype} has no gradient; watch floats", stacklevel=2)
            elif isinstance(x, Variable):
                self._watch_variable(x)
            else:
                self.track(x)

    def watched_variables(self) -> tuple[Variable, ...]:
        """The variables followed so far, in the order they were first read."""
        return tuple(self._variables.values())

    @contextmanager
    def stop_recording(self) -> Iterator[None]:
        """Inside, ops are not recorded on this tape."""
        if self._context is None:
            raise ValueError("stop_recording: the tape is not recording")
        with taping(tuple(t for t in state.tapes if t is not self)):
            yield

    def reset(self) -> None:
        """Forget everything recorded and watched."""
        self.records.clear()
        self.tracked.clear()
        self._variables.clear()
        self.escapes.clear()
        self._used = False

    # -- derivatives -------------------------------------------------------------------------------------------------
    def gradient(self, target: Any, sources: Any, output_gradients: Any = None,
                 unconnected_gradients: str = UnconnectedGradients.NONE) -> Any:
        """Derivative of the sum of `target` (a tensor or a structure of them) with respect to each of `sources`.

        output_gradients: weights for the elements of `target` in that sum, one tensor for each of its tensors. A
        source that `target` does not depend on gets None, or zeros with `unconnected_gradients="zero"`.
        """
        flatten(target)  # makes dataclasses known
        targets, shape = optree.tree_flatten(target, namespace=NAMESPACE)
        weights = [None] * len(targets)
        if output_gradients is not None:
            try:
                weights = shape.flatten_up_to(output_gradients)
            except ValueError as error:
                raise ValueError(f"gradient: output_gradients must be structured like the target: {error}") from None
        leaves, structure = _sources(sources)
        with self._asked():
            seeds: dict[Key, Tensor] = {}
            for y, g in zip(targets, weights, strict=True):
                if isinstance(y, Tensor) and differentiable(y):
                    accumulate(seeds, self.key(y), seed(y, g))
            found = self.cotangents(seeds, leaves)
            found = self._connected(found, leaves, unconnected_gradients, ())
        return optree.tree_unflatten(structure, found)

    def jacobian(self, target: Tensor, sources: Any, unconnected_gradients: str = UnconnectedGradients.NONE,
                 parallel_iterations: Any = None, experimental_use_pfor: bool = True) -> Any:
        """Derivative of every element of `target` with respect to each of `sources`: shape target.shape +
        source.shape.
        """
        leaves, structure = _sources(sources)
        with self._asked():
            rows = [self.cotangents({self.key(target): g}, leaves) for g in basis(target)]
            found = [stacked([row[k] for row in rows], target.shape, x) for k, x in enumerate(leaves)]
            found = self._connected(found, leaves, unconnected_gradients, target.shape)
        return optree.tree_unflatten(structure, found)

    def batch_jacobian(self, target: Tensor, source: Tensor, unconnected_gradients: str = UnconnectedGradients.NONE,
                       parallel_iterations: Any = None, experimental_use_pfor: bool = True) -> Any:
        """Jacobian of each row of `target` by the same row of `source`, for functions that treat rows alike: its
        shape is (rows,) + target.shape[1:] + source.shape[1:]."""
        if not target.shape or not source.shape or target.shape[0] != source.shape[0]:
            raise ValueError(f"batch_jacobian: target of shape {target.shape} and source of shape {source.shape} "
                             f"need an equal first dim")
        rest = target.shape[1:]
        with self._asked():
            one_row = core.full(0, (1, *rest), target.dtype)
            seeds = [core.broadcast_to(g, target.shape) for g in basis(one_row)]
            found = stacked([self.cotangents({self.key(target): g}, [source])[0] for g in seeds], rest, source)
            if found is not None and rest:  # rest + (rows, ...) -> (rows,) + rest + ...
                n = len(rest)
                order = (n, *range(n), *range(n + 1, found.ndim))
                found = apply(TRANSPOSE, (found,), {"axes": order})
            return self._connected([found], [source], unconnected_gradients, rest)[0]

    def cotangents(self, seeds: Mapping[Key, Tensor], sources: Sequence[Tensor]) -> list[Tensor | None]:
        """Gradients with respect to `sources` from the cotangents of some results; None where there is no
        connection.
        """
        keys = [self.key(x) for x in sources]
        found = backward(tuple(self.records), seeds, {k for k in keys if k in self.tracked})
        return [found.get(k) for k in keys]

    def tangents(self, moving: Mapping[Key, Tensor], results: Sequence[Tensor]) -> list[Tensor | None]:
        """How `results` move when the values with the keys of `moving` do."""
        found = forward(tuple(self.records), moving)
        return [found.get(self.key(y)) for y in results]

    def escape_of(self, source: Tensor) -> Escape | None:
        """The first conversion to NumPy or Python of anything that depends on `source`."""
        derived = dependents(self.records, [self.key(source)])
        return next((e for e in self.escapes if e.key in derived), None)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """A tape that is not persistent answers once, then lets go of everything it kept."""
        if self._used:
            raise RuntimeError("this GradientTape has given its gradient; make it with persistent=True to ask again")
        if self.persistent:
            yield
            return
        with taping(tuple(t for t in state.tapes if t is not self)):
            yield
        self._used = True
        self.records.clear()

    def _connected(self, found: Sequence[Tensor | None], sources: Sequence[Tensor], unconnected: str,
                   prefix: tuple[int, ...]) -> list[Tensor | None]:
        """`found` with zeros or a warning where a target does not depend on a source."""
        if unconnected not in (UnconnectedGradients.NONE, UnconnectedGradients.ZERO):
            raise ValueError(f"unconnected_gradients is 'none' or 'zero', not {unconnected!r}")
        filled = list(found)
        for k, (g, x) in enumerate(zip(found, sources, strict=True)):
            if g is None and unconnected == UnconnectedGradients.ZERO:
                filled[k] = core.full(0, prefix + x.shape, x.dtype)
            elif g is None:
                name = f"source {k} (shape {x.shape}, dtype {x.dtype})"
                if (escape := self.escape_of(x)) is not None:
                    _warn(f"the gradient for {name} is None: {escape.how} at {escape.where}; the gradient stops there")
                elif self.key(x) not in self.tracked:
                    _warn(f"the gradient for {name} is None: the tape did not watch it; call tape.watch(x) before use")
        return filled


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)


def _sources(sources: Any) -> tuple[list[Tensor], Any]:
    flatten(sources)  # makes dataclasses known
    leaves, structure = optree.tree_flatten(sources, namespace=NAMESPACE)
    for x in leaves:
        if not isinstance(x, Tensor):
            raise TypeError(f"gradient: sources are tensors and variables, not {type(x).__name__}")
    return leaves, structure


def seed(y: Tensor, g: Any) -> Tensor:
    """The cotangent to start from: ones, or what the user gave, in the shape and dtype of `y`."""
    if g is None:
        return core.full(1, y.shape, y.dtype)
    g = core.as_tensor(g)
    if g.dtype.kind == "c" and y.dtype.kind != "c":
        raise TypeError(f"a {g.dtype} cotangent does not fit a {y.dtype} value; take its real part")
    if g.shape != y.shape:
        raise ValueError(f"a cotangent of shape {g.shape} does not fit a value of shape {y.shape}")
    return core.cast(g, y.dtype)


def basis(y: Tensor) -> Iterator[Tensor]:
    """Tensors like `y` with a single one, for each of its elements in turn."""
    one = core.full(1, (1,) * y.ndim, y.dtype)
    for at in np.ndindex(*y.shape):
        yield embed(one, y.shape, at, (1,) * y.ndim)


def stacked(rows: Sequence[Tensor | None], shape: tuple[int, ...], like: Tensor) -> Tensor | None:
    """Rows of the shape of `like`, as one tensor of shape `shape` + like.shape; None if there is no row but None."""
    if all(r is None for r in rows):
        return None
    filled = [core.full(0, like.shape, like.dtype) if r is None else r for r in rows]
    joint = joined([reshaped(r, (1, *like.shape)) for r in filled], 0)
    return reshaped(joint, shape + like.shape)
