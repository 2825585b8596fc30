"""Exceptions of traced code: those that come at run time, since only then it is known whether the code gets there, and
the handlers that would have to catch them.

In: exceptions raised while a branch or body is traced. Out: an op that raises them (`raise_later`), or the error that
refuses what a handler around would catch (`refused`).

Read next: `staging.py`.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tracejit.errors import TracerError, last_user_line
from tracejit.ops import core
from tracejit.ops.effects import Template, filled
from tracejit.tensor import apply, state


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
