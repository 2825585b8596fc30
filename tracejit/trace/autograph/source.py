"""The syntax tree of a function, found from its code object.

In: a code object. Out: its `FunctionDef` or `Lambda` node, with the line numbers and columns of the user's file. Where
the source cannot be had, `why_not` says why; nothing is raised, since plain tracing needs no source.

Read next: `transform.py`.
"""

from __future__ import annotations

import ast
import linecache
import os
import sysconfig
import types
from collections.abc import Iterator

Function = ast.FunctionDef | ast.Lambda

PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_LIBRARIES = tuple(
    os.path.abspath(p) + os.sep
    for p in {sysconfig.get_paths().get(k, "") for k in ("stdlib", "platstdlib", "purelib", "platlib")}
    if p
)

_files: dict[str, tuple[list[str], ast.Module]] = {}  # trees of whole files, for lambdas
_reasons: dict[types.CodeType, str] = {}
_users: dict[str, bool] = {}  # by file name
MAX_FILES = 64
MAX_REASONS = 10_000


class SourceError(Exception):
    """The source of a function cannot be read; the text says why."""


def is_users(code: types.CodeType) -> bool:
    """Whether code is the user's own: not of the standard library, an installed package or this one."""
    name = code.co_filename
    found = _users.get(name)
    if found is None:
        path = os.path.abspath(name)
        found = _users[name] = not (
            path.startswith((PACKAGE, *_LIBRARIES))
            or name.startswith("<frozen")
            or name.startswith("<__array_function__")
        )
    return found


def why_not(code: types.CodeType) -> str:
    """Why Python control flow of this code could not be rewritten; "" if nobody tried or it could."""
    return _reasons.get(code, "")


def remember(code: types.CodeType, reason: str) -> None:
    """Keep the reason for an error that may come."""
    if len(_reasons) > MAX_REASONS:
        _reasons.clear()
    _reasons[code] = reason


def find(code: types.CodeType, module_globals: dict[str, object]) -> Function:
    """The node of a function; SourceError if there is none that compiles to this code."""
    name = code.co_filename
    lines = linecache.getlines(name, module_globals)
    if not lines:
        linecache.checkcache(name)
        lines = linecache.getlines(name, module_globals)
    if not lines:
        where = "it was made by exec or typed at a prompt" if name.startswith("<") else f"{name} cannot be read"
        raise SourceError(f"its source is not available: {where}")
    if code.co_firstlineno > len(lines):
        raise SourceError(f"its source is not available: {name} has changed since it was imported")
    return (None if code.co_name == "<lambda>" else _block(code, lines)) or _in_file(code, name, lines)


def _block(code: types.CodeType, lines: list[str]) -> ast.FunctionDef | None:
    """A `def`, parsed from its own lines only: large files cost nothing."""
    first = code.co_firstlineno
    last = max(_last_line(code), first)
    indented = lines[first - 1][:1] in " \t"
    for more in range(0, 12):  # brackets may close below the last line that has code
        text = "".join(lines[first - 1 : last + more])
        if indented:
            text = "if 1:\n" + text
        try:
            tree = ast.parse(text)
        except SyntaxError:
            if last + more >= len(lines):
                return None
            continue
        except ValueError:
            return None
        body = tree.body[0].body if indented and isinstance(tree.body[0], ast.If) else tree.body
        if len(body) != 1 and more:
            return None
        node = body[0]
        if not isinstance(node, ast.FunctionDef) or node.name != code.co_name or not _fits(node, code):
            return None
        ast.increment_lineno(node, first - 1 - indented)
        return node
    return None


def _last_line(code: types.CodeType) -> int:
    found = max((line for _, _, line in code.co_lines() if line is not None), default=0)
    return max([found, *(_last_line(c) for c in code.co_consts if isinstance(c, types.CodeType))])


def _in_file(code: types.CodeType, name: str, lines: list[str]) -> Function:
    """A function anywhere in a file: a lambda by its position, a `def` by its first line."""
    kept = _files.get(name)
    if kept is None or kept[0] is not lines:
        try:
            tree = ast.parse("".join(lines))
        except (SyntaxError, ValueError) as error:
            raise SourceError(f"its source is not available: {name} does not parse ({error})") from None
        if len(_files) >= MAX_FILES:
            _files.clear()
        kept = _files[name] = lines, tree
    candidates = [n for n in _functions(kept[1]) if _starts(n, code) and _fits(n, code)]
    if len(candidates) > 1:
        places = _places(code)
        exact = [n for n in candidates if _covers(n, places)]
        candidates = [n for n in exact if not any(m is not n and _inside(m, n) for m in exact)] or candidates
    if not candidates:
        raise SourceError(f"its source is not available: {name} has changed since it was imported")
    if len(candidates) > 1:
        raise SourceError(
            f"its source is not clear: several lambdas on line {code.co_firstlineno} of {name} look alike"
        )
    return candidates[0]


def _functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            yield node


def _starts(node: Function, code: types.CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    line = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return node.name == code.co_name and line == code.co_firstlineno


def _fits(node: Function, code: types.CodeType) -> bool:
    """Whether the parameters are those of the code."""
    a = node.args
    names = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
    names += [x.arg for x in (a.vararg, a.kwarg) if x is not None]
    n = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    given = [v.lstrip("_") if v.startswith("_") and "__" in v[1:] else v for v in code.co_varnames[:n]]
    return len(names) == n and all(a == b or a.lstrip("_") in b for a, b in zip(names, given, strict=True))


def _places(code: types.CodeType) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """First and last position in the source that the code has instructions for."""
    found = [p for p in code.co_positions() if None not in p and p[3] != 0]
    if not found:
        return None
    return min((p[0], p[2]) for p in found), max((p[1], p[3]) for p in found)  # type: ignore[type-var, return-value]


def _covers(node: Function, places: tuple[tuple[int, int], tuple[int, int]] | None) -> bool:
    if places is None:
        return True
    body = node.body if isinstance(node, ast.Lambda) else node
    assert body.end_lineno is not None and body.end_col_offset is not None
    return (body.lineno, body.col_offset) <= places[0] and places[1] <= (body.end_lineno, body.end_col_offset)


def _inside(inner: Function, outer: Function) -> bool:
    return any(n is inner for n in ast.walk(outer))
