"""Rewritten code keeps plain Python meaning: modules of the standard library, rewritten as a whole, pass Python's own
tests of them.

All in a process of its own. The examples in the modules' docstrings are everywhere; some installations leave Python's
test suite out.
"""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import io
import os
import subprocess
import sys
import types
import unittest
from typing import Any

from tracejit.trace.autograph import convert, source, transform

MODULES = {
    "textwrap": "test.test_textwrap",
    "fractions": "test.test_fractions",
    "html.parser": "test.test_htmlparser",
    "shlex": "test.test_shlex",
}
EXAMPLES = ("difflib", "statistics", "collections")  # modules with many examples in their docstrings
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


def new_failures_of_examples(name: str) -> list[str]:
    """The examples in a module's docstrings that fail only when it is rewritten."""
    module = importlib.import_module(name)

    def failed() -> set[str]:
        found: set[str] = set()
        count = 0
        for test in doctest.DocTestFinder(exclude_empty=True).find(module):
            text = io.StringIO()
            result = doctest.DocTestRunner(verbose=False).run(test, out=text.write)
            count += result.attempted
            if result.failed:
                found.add(test.name)
        assert count > 10
        return found

    before = failed()
    assert patch(module) > 5
    return sorted(failed() - before)


def test_the_standard_library_rewritten() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run([sys.executable, __file__], capture_output=True, text=True, env=environment)
    assert out.stdout.splitlines()[-1:] == ["[]"], out.stdout[-2000:] + out.stderr[-2000:]


if __name__ == "__main__":
    try:
        whole = importlib.util.find_spec("test.test_textwrap") is not None
    except ModuleNotFoundError:
        whole = False
    failures = [failure for name in EXAMPLES for failure in new_failures_of_examples(name)]
    failures += [failure for name in MODULES if whole for failure in new_failures(name)]
    print(failures)
