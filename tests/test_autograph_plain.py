"""Rewritten code keeps plain Python meaning: modules of the standard library, rewritten as a whole, pass Python's own
tests of them.

Each module is patched in a process of its own. Some installations leave Python's tests out; then there is nothing to
run.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import subprocess
import sys
import types
import unittest
from typing import Any

import pytest

from tracejit.trace.autograph import builtin as _builtin  # noqa: F401
from tracejit.trace.autograph import convert, source, transform

MODULES = {
    "textwrap": "test.test_textwrap",
    "fractions": "test.test_fractions",
    "html.parser": "test.test_htmlparser",
    "shlex": "test.test_shlex",
}
GENERATORS = 0x20 | 0x80 | 0x200


def rewritten(f: types.FunctionType) -> types.FunctionType:
    """As `convert_function`, whichever module the function is from."""
    code = f.__code__
    if code.co_flags & GENERATORS:
        return f
    new_code = transform.rewrite(source.find(code, f.__globals__), code)
    cells = dict(zip(code.co_freevars, f.__closure__ or (), strict=True)) | {transform.RUNTIME: convert.RUNTIME}
    closure = tuple(cells[name] for name in new_code.co_freevars)
    new = types.FunctionType(new_code, f.__globals__, f.__name__, f.__defaults__, closure)
    new.__kwdefaults__, new.__qualname__, new.__doc__ = f.__kwdefaults__, f.__qualname__, f.__doc__
    new.__dict__.update(f.__dict__)
    return new


def patch(module: types.ModuleType) -> int:
    """Rewrite all functions and methods of a module; gives how many."""
    count = 0

    def changed(x: Any) -> Any:
        nonlocal count
        if isinstance(x, types.FunctionType) and x.__code__.co_filename == module.__file__:
            count += 1
            return rewritten(x)
        if isinstance(x, staticmethod | classmethod):
            inner = changed(x.__func__)
            return inner and type(x)(inner)
        return None

    def walk(owner: Any) -> None:
        for name, x in list(vars(owner).items()):
            if isinstance(x, type) and x.__module__ == module.__name__ and x is not owner:
                if owner is module or x.__qualname__.startswith(owner.__qualname__ + "."):
                    walk(x)
            elif (new := changed(x)) is not None:
                setattr(owner, name, new)

    walk(module)
    return count


def new_failures(name: str) -> list[str]:
    """The tests of a module that fail only when it is rewritten."""
    tests = importlib.import_module(MODULES[name])

    def failed() -> set[str]:
        suite = unittest.defaultTestLoader.loadTestsFromModule(tests)
        result = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
        assert result.testsRun > 10
        return {str(case) for case, _ in result.failures + result.errors}

    before = failed()
    assert patch(importlib.import_module(name)) > 5
    return sorted(failed() - before)


def test_the_standard_library_rewritten() -> None:
    try:
        there = importlib.util.find_spec("test.test_textwrap")
    except ModuleNotFoundError:
        there = None
    if there is None:
        pytest.skip("this Python comes without its tests")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run([sys.executable, __file__], capture_output=True, text=True, env=environment)
    assert out.stdout.splitlines()[-1:] == ["[]"], out.stdout[-2000:] + out.stderr[-2000:]


if __name__ == "__main__":
    print([failure for name in MODULES for failure in new_failures(name)])
