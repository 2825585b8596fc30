"""Exceptions of traced code: those that come at run time, since only then it is known whether the code gets there, the
handlers that would have to catch them, and what runs on their way out.

In: exceptions raised while a branch or body is traced. Out: what `finally` does then (`leave`), followed by an op that
raises them (`raise_later`), or the error that refuses what a handler around would catch (`refused`).

Read next: `staging.py`.
"""

from __future__ import annotations

import copy
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tracejit.errors import TraceJitError, TracerError, last_user_line
from tracejit.ir import has_effects
from tracejit.ops import core
from tracejit.ops.effects import Template, filled
from tracejit.tensor import apply, state
from tracejit.trace.autograph.places import Facts, Surroundings, places_of


class Raised(threading.local):
    """The exception that a `raise` statement of rewritten code made last."""

    latest: BaseException | None = None


last_raise = Raised()


class Guards(threading.local):
    """The handlers of the try statements that traced code is in: for each what gives the kinds they catch."""

    def __init__(self) -> None:
        self.active: list[Callable[[], Any]] = []

    def catch(self, error: type[BaseException]) -> bool:
        """Whether one of them would catch an exception."""
        return any(issubclass(error, kind) for kinds in self.active for kind in _flat_kinds(kinds()))


def _flat_kinds(x: Any) -> Iterator[type]:
    if isinstance(x, tuple):
        for y in x:
            yield from _flat_kinds(y)
    elif isinstance(x, type):
        yield x


class guarding:
    """`with guarding(kinds):` the body of a try statement whose handlers catch what `kinds()` gives."""

    def __init__(self, kinds: Callable[[], Any]):
        self.kinds = kinds

    def __enter__(self) -> None:
        guards.active.append(self.kinds)

    def __exit__(self, *_: object) -> None:
        guards.active.pop()


def refused(name: str, where: str) -> TracerError:
    """The error for an exception that would have to be caught at run time."""
    return TracerError(
        f"{name} is raised under the condition at {where}, which is known only at run time, inside a try whose "
        f"handlers cannot catch it then. Write what the handler does into the branch, in place of the raise; or raise "
        f"outside of the try"
    )


guards = Guards()


# -- on the way out: finally, and with
class finishing:
    """`with finishing(final, given):` what a `finally` is for. Where an exception is raised later, at run time, the
    statements of the finally are traced in front of it; the places they change are then as before, since the tracing of
    other branches goes on."""

    def __init__(self, final: Callable[[], Any], given: tuple[Any, ...]):
        self.final, self.given = final, given

    def __enter__(self) -> None:
        self.depth = len(guards.active)
        exits.active.append(self)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        exits.active.pop()
        exits.refused = error if isinstance(error, TracerError) else None

    def passed(self, name: str, where: str) -> Callable[[], Any]:
        """An exception of this name goes past, at run time. Gives what puts back the places."""
        facts = Facts(*self.given, f"{self.final.__code__.co_filename}:{self.given[3]}")  # type: ignore[attr-defined, call-arg]
        places = places_of((self.final,), facts)  # type: ignore[arg-type]
        around = Surroundings((self.final,), places)
        before = [p.get() for p in places]

        def undo() -> None:
            for p, value in zip(places, before, strict=True):
                p.set(value)
            around.changed()

        try:
            outcome = self.final()
        except BaseException:
            undo()
            raise
        if outcome is not None and any(flag is not False for flag in outcome.flags):
            raise TracerError(
                f"{name} is raised under the condition at {where}, which is known only at run time, inside a try whose "
                f"finally (at {facts.where}) leaves by return, break or continue and so drops it. Move what leaves "
                f"behind the try statement"
            )
        return undo


class leaving:
    """A context manager in a with statement. It leaves once while tracing, so it cannot also leave where an exception
    is raised later, at run time: that is refused if leaving does something then. call: what rewrites its methods."""

    def __init__(self, inner: Any, call: Callable[[Any], Any]):
        self.inner, self.call = inner, call
        self.missed: tuple[str, str] | None = None  # an exception that goes past, at run time: name and place

    def __enter__(self) -> Any:
        value = self.call(self.inner.__enter__)()
        self.depth = len(guards.active)
        exits.active.append(self)
        return value

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        exits.active.pop()
        nodes = state.trace.nodes if state.trace is not None else []  # type: ignore[attr-defined]
        before = len(nodes)
        found = self.call(self.inner.__exit__)(kind, error, trace)
        acts = any(has_effects(n) for n in nodes[before:]) or _prints(self.inner)
        if self.missed and acts and not isinstance(error, TracerError):
            name, where = self.missed
            manager = getattr(self.inner, "gen", type(self.inner)).__name__
            refusal = TracerError(
                f"{name} is raised under the condition at {where}, which is known only at run time, inside a with "
                f"statement whose {manager} prints or has another effect when it is left. Write it "
                f"as try: ... finally: ..., or raise outside of the with"
            )
            refusal._tracejit_alone = True  # type: ignore[attr-defined]
            raise refusal
        return found

    def passed(self, name: str, where: str) -> Callable[[], Any]:
        """An exception of this name goes past, at run time."""
        self.missed = self.missed or (name, where)
        return lambda: None


def _prints(manager: Any) -> bool:
    """Whether a `contextlib.contextmanager` prints: the code of generators stays as it is, so that is not recorded."""
    made = getattr(manager, "gen", None)
    return isinstance(made, types.GeneratorType) and "print" in made.gi_code.co_names


class Exits(threading.local):
    """What traced code is in that does something when it is left."""

    def __init__(self) -> None:
        self.active: list[finishing | leaving] = []
        self.refused: TracerError | None = None  # what left the body of the last try statement with a finally

    @property
    def finish(self) -> bool:
        return any(isinstance(e, finishing) for e in self.active)


exits = Exits()


def dropped() -> None:
    """A finally that drops exceptions, by a jump, begins: those that tell of traced values are none of eager code's."""
    if exits.refused is not None:
        raise exits.refused


def leave(error: BaseException, where: str) -> BaseException:
    """What is done on the way out of all that an exception leaves at run time, traced here, innermost first. Gives the
    exception that is on its way in the end: a finally may raise another."""
    inside, handlers = exits.active, guards.active
    undo: list[Callable[[], Any]] = []
    try:
        for k in reversed(range(len(inside))):
            exits.active, guards.active = inside[:k], handlers[: inside[k].depth]
            try:
                undo.append(inside[k].passed(type(error).__name__, where))
            except (TraceJitError, RecursionError):
                raise
            except Exception as other:
                if guards.catch(type(other)):
                    raise refused(type(other).__name__, where) from other
                error = other
    finally:
        exits.active, guards.active = inside, handlers
        for put_back in reversed(undo):
            put_back()
    return error


def _raise(*arrays: np.ndarray, error: BaseException, text: str | None, kinds: tuple[str, ...]) -> tuple[()]:
    again = copy.copy(error)
    if text is not None:
        again.args = (filled(text, kinds, arrays),)
    raise again


RAISE = core.primitive(
    "raise_", "library", infer=lambda *_, **__: (), eager=_raise, stateful=True, doc="Raise an exception."
)


def raise_later(error: BaseException) -> None:
    """Raise at run time what has been raised while tracing, since there it may not come to that; traced values in its
    text are filled in then."""
    trace: Any = state.trace
    saved, trace.where = trace.where, last_user_line(error)
    error = error.with_traceback(None)
    error.__context__ = None
    template = Template()
    text = template.text(error.args[0]) if len(error.args) == 1 and isinstance(error.args[0], str) else None
    apply(RAISE, template.tensors, {"error": error, "text": text, "kinds": tuple(template.kinds)})
    trace.where = saved
