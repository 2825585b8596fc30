"""Options of layers, optimizers, losses, metrics and callbacks: checked when they are given.

In: who has the option (an object or a name), its name, its value. Out: the value, or an error that names all three:
TypeError for what is no number, ValueError for one that makes no sense.

Read next: `module.py`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from tracejit.tensor import Tensor


def _name(owner: Any) -> str:
    return owner if isinstance(owner, str) else type(owner).__name__


def number(owner: Any, name: str, value: Any, within: str = "(-inf, inf)") -> Any:
    """A single number inside an interval. A tensor is taken as it is, since its value may not be known yet.

    >>> number("Adam", "beta_1", 1.0, "[0, 1)")
    Traceback (most recent call last):
        ...
    ValueError: Adam: beta_1 must be within [0, 1), got 1.0
    """
    if isinstance(value, Tensor) and value.shape == ():
        return value
    if isinstance(value, (bool, np.bool_, Tensor)) or not isinstance(value, (int, float, np.number, np.ndarray)) or (
        np.ndim(value) or np.iscomplexobj(value)
    ):
        raise TypeError(f"{_name(owner)}: {name} must be a number, got {value!r}")
    low, high = (float(end) for end in within[1:-1].split(","))
    if not (low <= value if within[0] == "[" else low < value) or not (
        value <= high if within[-1] == "]" else value < high
    ):
        least = f"at least {low:g}" if within[0] == "[" else f"over {low:g}"
        wanted = f"within {within}" if high < np.inf else "finite" if low == -np.inf else f"{least} and finite"
        raise ValueError(f"{_name(owner)}: {name} must be {wanted}, got {value!r}")
    return value


def whole(owner: Any, name: str, value: Any, least: int = 1) -> Any:
    """An int of at least `least`.

    >>> whole("Dense", "units", 2.5)
    Traceback (most recent call last):
        ...
    TypeError: Dense: units must be an int, got 2.5
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{_name(owner)}: {name} must be an int, got {value!r}")
    if value < least:
        raise ValueError(f"{_name(owner)}: {name} must be at least {least}, got {value}")
    return value


def one_of(owner: Any, name: str, value: Any, choices: Collection[Any]) -> Any:
    """One of several values."""
    if not any(value is c or (isinstance(value, str) and value == c) for c in choices):
        raise ValueError(f"{_name(owner)}: {name} must be {' or '.join(map(repr, choices))}, got {value!r}")
    return value


def a_function(owner: Any, name: str, value: Any) -> Any:
    """What can be called."""
    if not callable(value):
        raise TypeError(f"{_name(owner)}: {name} must be a function, got {value!r}")
    return value


def several(owner: Any, name: str, value: Any, of: str) -> tuple[Any, ...]:
    """A list or tuple, as a tuple. of: what its entries are, in words."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"{_name(owner)}: {name} must be a list or tuple of {of}, got {value!r}")
    return tuple(value)


def shape(owner: Any, name: str, value: Any) -> tuple[int | None, ...]:
    """Sizes of dims, None where any size fits."""
    found = several(owner, name, value, "sizes, None for any")
    return tuple(None if n is None else int(whole(owner, f"each size of {name}", n, 0)) for n in found)


def axes(owner: Any, name: str, value: Any) -> int | tuple[int, ...]:
    """An axis, or several."""
    if isinstance(value, (list, tuple)):
        return tuple(int(whole(owner, f"each of {name}", a, -64)) for a in value)
    return int(whole(owner, name, value, -64))


def unknown(owner: Any, given: Iterable[str]) -> TypeError:
    """The error for options that nobody has."""
    constructors = [vars(c)["__init__"] for c in type(owner).__mro__ if "__init__" in vars(c) and c is not object]
    parameters = [p for f in constructors for p in inspect.signature(f).parameters.values()]
    known = dict.fromkeys(p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    known.pop("self", None)
    first = next(iter(given))
    near = difflib.get_close_matches(first, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    return TypeError(f"{_name(owner)} has no option {first!r}; {hint}")
