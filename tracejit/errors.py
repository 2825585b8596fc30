"""Error classes and the user's place in the code.

In: nothing. Out: exceptions whose messages speak of the user's line and arguments first.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tracejit import config

F = TypeVar("F", bound=Callable[..., Any])

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
# Frames of these count as ours: a pytree helper or a NumPy protocol between the user and an op.
_INTERNAL = (_PACKAGE, *(os.path.join("site-packages", name) + os.sep for name in ("numpy", "optree")))


class TraceJitError(Exception):
    """Base class of errors that only this package raises."""


class InternalError(TraceJitError):
    """A check of the compiler on itself failed. This is a bug in tracejit: please report it with the text below."""


class TracerError(TraceJitError, TypeError):
    """A traced value was used where a concrete one is needed."""


class StagingError(TracerError):
    """A body cannot be traced as a branch or loop; a loop over a known range may run in Python instead."""


class LeakedTracerError(TracerError):
    """A traced value was used after its trace had ended."""


class GradientError(TraceJitError, ValueError):
    """A gradient was asked for where none can be had."""


def is_internal(file: str) -> bool:
    """Whether code of that file is ours rather than the user's."""
    return file.startswith(_INTERNAL[0]) or file.startswith("<tracejit") or any(part in file for part in _INTERNAL[1:])


def user_line(skip: int = 1) -> str:
    """`file:line` of the innermost frame outside this package; "" if there is none."""
    frame = sys._getframe(skip)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_PACKAGE) and not any(part in name for part in _INTERNAL[1:]):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def user_depth() -> int:
    """`stacklevel` of the innermost frame outside this package, for a warning given by the caller."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("tracejit"):
        frame, depth = frame.f_back, depth + 1
    return depth


# -- errors as the user sees them --------------------------------------------------------------------------------------
def locate(error: BaseException, where: str, what: str | None = "") -> None:
    """Note the user's line (`file:line`) that an error of compiled code belongs to; the innermost one counts.
    what: None where the message says it already."""
    if where and not hasattr(error, "_tracejit_where"):
        error._tracejit_where = where  # type: ignore[attr-defined]
        if what is not None:
            error.add_note(f"in compiled code{what and f', in {what}'}, at {where}")


def tidy(error: BaseException, name: str = "", note: str = "") -> None:
    """Make an error that leaves the decorated function `name` speak of the user's code: frames of this package go from
    its traceback, the line of compiled code that failed comes in, and `note` says what it was called with ("":
    inside another one, which will say it).

    The caller re-raises with a bare `raise`, which adds no frame of its own.
    """
    if config.debug.tracebacks or isinstance(error, InternalError):
        return
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        e = pending.pop()
        if e is None or id(e) in seen:
            continue
        seen.add(id(e))
        e.__traceback__ = _user_frames(e.__traceback__)
        if e.__cause__ is not None and _user_frames(e.__cause__.__traceback__) is None:
            e.__cause__ = None  # it says no more of the user's code (and a context is not shown beside a cause)
            e.__suppress_context__ = True
        pending += [e.__cause__, e.__context__]
    if not note or hasattr(error, "_tracejit_noted"):  # by a decorated function that this one called
        return
    error._tracejit_noted = True  # type: ignore[attr-defined]
    where = getattr(error, "_tracejit_where", "")
    if where and (entry := _entry(where, name)) is not None:
        entry.tb_next, error.__traceback__ = error.__traceback__, entry
    error.add_note(note)
    error.add_note("(frames of tracejit are left out; tj.config.full_tracebacks(True) shows them)")


def boundary(f: F) -> F:
    """A public function whose errors are shown without this package's frames."""

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return f(*args, **kwargs)
        except Exception as error:
            tidy(error)
            raise

    return wrapper  # type: ignore[return-value]


def last_user_line(error: BaseException) -> str:
    """`file:line` of the innermost frame of the user's in an error's traceback."""
    found = ""
    for entry in _entries(error.__traceback__):
        if not is_internal(entry.tb_frame.f_code.co_filename):
            found = f"{entry.tb_frame.f_code.co_filename}:{entry.tb_lineno}"
    return found


def most_repeated(error: BaseException) -> tuple[str, str]:
    """Name and `file:line` of the call of the user's that a recursion goes through, as an error's traceback shows it:
    of the lines that stand most often in it, the innermost."""
    frames = [(e.tb_frame.f_code, e.tb_lineno) for e in _entries(error.__traceback__)]
    foreign = ("<", os.path.dirname(os.__file__) + os.sep)  # Python's own code
    users = Counter(
        (code, line)
        for code, line in frames
        if not is_internal(code.co_filename) and not code.co_filename.startswith(foreign)
    )
    if not users:
        return "", ""
    most = max(users.values())
    code, line = [k for k, n in users.items() if n >= most - 2][-1]
    return code.co_qualname.rpartition("<locals>.")[2], f"{code.co_filename}:{line}"


def _entries(traceback: types.TracebackType | None) -> Iterator[types.TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _user_frames(traceback: types.TracebackType | None) -> types.TracebackType | None:
    found: types.TracebackType | None = None
    for entry in reversed(list(_entries(traceback))):
        if not is_internal(entry.tb_frame.f_code.co_filename):
            found = types.TracebackType(found, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return found


def _entry(where: str, name: str) -> types.TracebackType | None:
    """A traceback entry that shows a line of the user's, made by code that fails there."""
    file, _, number = where.rpartition(":")
    if not file or not number.isdigit():
        return None
    line = linecache.getline(file, int(number))
    tree = ast.parse("raise error")
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr)):
            node.lineno = node.end_lineno = int(number)
            node.col_offset, node.end_col_offset = len(line) - len(line.lstrip()), len(line.rstrip())
    code = compile(tree, file, "exec").replace(co_name=name, co_qualname=name)
    try:
        exec(code, {"error": RuntimeError()})
    except RuntimeError as error:
        return error.__traceback__.tb_next if error.__traceback__ is not None else None
    return None
