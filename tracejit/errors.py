"""Error classes and the user's place in the code.

In: nothing. Out: exceptions whose messages speak of the user's line and arguments first.
"""

from __future__ import annotations

import os
import sys

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
# Frames of these count as ours: a pytree helper or a NumPy protocol between the user and an op.
_INTERNAL = (_PACKAGE, os.path.join("site-packages", "numpy") + os.sep, os.path.join("site-packages", "optree") + os.sep)


class TraceJitError(Exception):
    """Base class of errors that only this package raises."""


class InternalError(TraceJitError):
    """A check of the compiler on itself failed. This is a bug in tracejit: please report it with the text below."""


class TracerError(TraceJitError, TypeError):
    """A traced value was used where a concrete one is needed."""


class LeakedTracerError(TracerError):
    """A traced value was used after its trace had ended."""


class GradientError(TraceJitError, ValueError):
    """A gradient was asked for where none can be had."""


def user_line(skip: int = 1) -> str:
    """`file:line` of the innermost frame outside this package; "" if there is none."""
    frame = sys._getframe(skip)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_PACKAGE) and not any(part in name for part in _INTERNAL[1:]):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
