"""What tests of Python control flow share: a function gives the same eager and compiled."""

from __future__ import annotations

import contextlib
import io
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

import tracejit as tj
from tracejit.trees import flatten


def run(f: Callable[..., Any], *args: Any) -> tuple[Any, str, BaseException | None]:
    """Result, printed text, exception."""
    out = io.StringIO()
    result: Any = None
    error: BaseException | None = None
    with contextlib.redirect_stdout(out):
        try:
            result = f(*args)
        except Exception as e:
            error = e
    return result, out.getvalue(), error


def number(x: Any) -> Any:
    return np.asarray(x) if isinstance(x, tj.Tensor | np.ndarray | np.generic | bool | int | float) else x


def agree(f: Callable[..., Any], compiled: Callable[..., Any], args: tuple[Any, ...], again: tuple[Any, ...]) -> bool:
    """f(*args) and compiled(*again) give, print and raise the same. Whether they returned."""
    eager, text, error = run(f, *args)
    found, printed, raised = run(compiled, *again)
    assert printed == text, (args, printed, text)
    if error is not None:
        assert type(raised) is type(error), (args, raised, error)
        assert str(error) in str(raised)
        return False
    assert raised is None, "".join(traceback.format_exception(raised))
    a, spec = flatten(eager)
    b, other = flatten(found)
    assert spec == other, (args, eager, found)
    for x, y in zip(a, b, strict=True):
        if number(x) is x:
            assert x == y
        else:
            np.testing.assert_allclose(number(y), number(x), rtol=1e-6, err_msg=str(args))
            if isinstance(x, tj.Tensor):
                assert y.dtype == x.dtype and y.shape == x.shape
    return True


def same(f: Callable[..., Any], *calls: Any) -> Any:
    """Every call gives the same eager and compiled; a call is an argument or a tuple of them. Gives the function."""
    compiled = tj.function(f)
    for args in calls:
        args = args if isinstance(args, tuple) else (args,)
        agree(f, compiled, args, args)
    return compiled


def t(*values: float) -> tj.Tensor:
    return tj.constant(values[0] if len(values) == 1 else list(values))
