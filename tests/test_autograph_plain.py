"""Rewritten code keeps plain Python meaning: modules of the standard library, rewritten as a whole, do what they did.

All in a process of its own. The examples in the modules' docstrings still hold, and programs that use the modules give
what they gave before.
"""

from __future__ import annotations

import doctest
import importlib
import io
import operator
import os
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

from tracejit.trace.autograph import convert, source, transform

EXAMPLES = ("_pydecimal", "difflib", "statistics", "collections", "http.cookies")
PROSE = ("The quick brown fox -- a well-known animal -- jumped\tover the lazy dog.  It did so twice!\n\n"
         "    An indented paragraph with averyveryveryverylongwordindeed in it, and some-hyphenated-words.\n")
LINES = ("echo 'a b' c\\ d \"e 'f'\" # rest", "x=1;y=2 && z|w > out", "a\nb 'c\nd'", "", "'' a\\", "'open", "über \t x")
PAGE = ("<!DOCTYPE html><p class=a id='b c' checked>1 &lt; 2 &#38; &unknown; <br/><b>bold</p><!-- note --><?php x ?>"
        "<script>if (a < b) { '</p>' }</script><![CDATA[raw]]><a href=x>y</a ><bad <worse>end &amp")


def outcome(f: Callable[..., Any], *args: Any, **options: Any) -> str:
    try:
        return repr(f(*args, **options))
    except Exception as error:
        return repr(error)


def use_textwrap(textwrap: Any) -> list[str]:
    options = [{"width": w} for w in (1, 9, 30, 200)] + [
        {"width": 20, "initial_indent": "* ", "subsequent_indent": "  ", "break_long_words": False},
        {"width": 25, "fix_sentence_endings": True, "break_on_hyphens": False, "drop_whitespace": False},
        {"width": 30, "max_lines": 2, "placeholder": " ..."}, {"width": 5, "max_lines": 1, "placeholder": "too long"},
        {"width": 0}, {"width": 30, "expand_tabs": False, "replace_whitespace": False},
    ]  # fmt: skip
    made = [outcome(textwrap.wrap, text, **o) for o in options for text in (PROSE, "", " \n", "word")]
    made += [outcome(f, PROSE, n) for f in (textwrap.fill, textwrap.shorten) for n in (2, 30)]
    texts = (PROSE, "  a\n\n    b\n", "\ta\n\t b", "\ta\n  b", "  \n  a\n", "")
    made += [outcome(textwrap.dedent, text) for text in texts]
    return made + [outcome(textwrap.indent, text, "> ", p) for text in texts for p in (None, lambda line: True)]


def use_shlex(shlex: Any) -> list[str]:
    made = [outcome(shlex.split, s, comments=c, posix=p) for s in LINES for c in (True, False) for p in (True, False)]
    for chars in (False, True, "|"):
        made += [outcome(lambda s, c: list(shlex.shlex(s, posix=True, punctuation_chars=c)), s, chars) for s in LINES]
    pushed = shlex.shlex("one 'two three' four")
    pushed.push_token("zero")
    made += [repr(list(pushed)), outcome(shlex.join, ["a b", "", "it's", "plain"])]
    return made + [outcome(shlex.quote, s) for s in LINES]


def use_html_parser(parser: Any) -> list[str]:
    made: list[str] = []
    for convert_charrefs in (True, False):
        for step in (1, 7, len(PAGE)):  # fed piece by piece

            class Heard(parser.HTMLParser):
                def handle_starttag(self, tag: str, attrs: Any) -> None:
                    made.append(f"start {tag} {attrs} {self.getpos()} {self.get_starttag_text()}")

                def handle_endtag(self, tag: str) -> None:
                    made.append(f"end {tag}")

                def handle_data(self, data: str) -> None:
                    made.append(f"data {data!r}")

                def handle_comment(self, data: str) -> None:
                    made.append(f"comment {data!r}")

                handle_entityref = handle_charref = handle_decl = handle_pi = unknown_decl = handle_comment

            heard = Heard(convert_charrefs=convert_charrefs)
            for k in range(0, len(PAGE), step):
                heard.feed(PAGE[k : k + step])
            heard.close()
    return made


def use_fractions(fractions: Any) -> list[str]:
    given = (0, 3, -7, "3/4", " -2.5e-3 ", "1_000/3", 0.1, "x/2", "1/0", "nan")
    made = [outcome(fractions.Fraction, x) for x in given]
    names = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "eq", "lt", "ge")
    known = [fractions.Fraction(x) for x in given[:7]] + [fractions.Fraction(22, -7)]
    for a in known:
        made += [outcome(lambda a, n: a.limit_denominator(n), a, n) for n in (0, 1, 10, 1000)]
        made += [outcome(f, a) for f in (round, hash, str, abs, float, int, lambda a: round(a, 1), lambda a: a**-2)]
        for b in (*known, 2, 0.5, 1j):
            made += [outcome(getattr(operator, name), a, b) for name in names]
            made += [outcome(f, b, a) for f in (operator.sub, operator.truediv)] + [outcome(divmod, a, b)]
    return made


PROGRAMS = {"textwrap": use_textwrap, "shlex": use_shlex, "html.parser": use_html_parser, "fractions": use_fractions}
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


def new_results(name: str) -> list[str]:
    """What a program that uses a module gives otherwise once the module is rewritten."""
    module = importlib.import_module(name)
    before = PROGRAMS[name](module)
    assert len(set(before)) > 10 and patch(module) > 5
    return [f"{name}: {a} -> {b}" for a, b in zip(before, PROGRAMS[name](module), strict=True) if a != b]


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
    failures = [failure for name in EXAMPLES for failure in new_failures_of_examples(name)]
    failures += [failure for name in PROGRAMS for failure in new_results(name)]
    print(failures)
