"""Symbolic sizes: numbers that stand for the size of an argument's dim while a program is made.

In: a `Scope` with a hint (a present value) for each unknown size. Out: `Dim`s, on which code computes as on the hints;
what it did becomes `scope.solve`, a function from other sizes to the numbers it would have computed, or None where it
would have gone another way. So one trace, or one lowering, serves every size that takes the same decisions.

A `Dim` passes `isinstance(n, int)` (or float, for a quotient) but is no int underneath, so its value cannot be taken
unnoticed: arithmetic gives further `Dim`s, a comparison is remembered with its outcome, and whatever needs the plain
number (`range(n)`, `int(n)`, a key of a dict, text) fixes it for this scope. After its scope's time a Dim is its hint.

Read next: `trace/symbolic.py` (who uses them).
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tracejit.errors import user_line

Solve = Callable[..., "list[Any] | None"]


class _Opened(threading.local):
    """The scopes that are open in this thread."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []


_opened = _Opened()


@contextmanager
def keys_by_computation() -> Iterator[None]:
    """Inside, Dims may be keys: by how they were computed, not by value, which would fix them."""
    before = [(scope, scope.structural) for scope in _opened.scopes]
    for scope, _ in before:
        scope.structural = True
    try:
        yield
    finally:
        for scope, structural in before:
            scope.structural = structural


class Scope:
    """What has been computed and decided from a few unknown sizes. `with scope:` while code works on its Dims."""

    def __init__(self, hints: Sequence[int], names: Sequence[str] = (), structural: bool = False):
        self.lines: list[str] = []
        self.values: list[Dim] = []
        self.known: dict[str, Dim | bool] = {}  # by source text: what was computed or decided already
        self.steps: list[tuple[Any, ...]] = []  # the lines as data, see `replay`
        self.fixed: dict[int, str] = {}  # inputs whose very value was needed, and where
        self.open = False
        self.structural = structural  # Dims may be keys: by how they were computed, not by value
        self.names = list(names)
        self.inputs = [self._value(f"v{k}", n, frozenset((k,))) for k, n in enumerate(hints)]
        self.conflict: tuple[Dim, Any] | None = None  # an input and what it was last found to differ from

    def __enter__(self) -> Scope:
        self.open = True
        _opened.scopes.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.open = False
        _opened.scopes.remove(self)

    def _value(self, text: str, value: Any, inputs: frozenset[int]) -> Dim:
        found = Dim.__new__(Dim)
        found.scope, found.number, found.value, found.inputs, found.text = self, len(self.values), value, inputs, text
        self.values.append(found)
        return found

    def compute(self, template: str, f: Callable[..., Any], *operands: Any) -> Any:
        """`f(*operands)`, as a Dim."""
        text = template.format(*map(_source, operands))
        found = self.known.get(text)
        if found is None:
            value = f(*(x.value if type(x) is Dim else x for x in operands))
            if value.__class__ not in (int, float):  # a complex power
                return f(*(x.fix() if type(x) is Dim else x for x in operands))
            inputs = frozenset().union(*(x.inputs for x in operands if type(x) is Dim))
            found = self.known[text] = self._value(text, value, inputs)
            self.lines.append(f"v{found.number} = {text}")
            self.steps.append((template, *operands))
        return found

    def decide(self, symbol: str, f: Callable[[Any, Any], bool], a: Dim, b: Any) -> bool:
        """Whether `a symbol b`; holds for all sizes that this scope serves."""
        text = f"v{a.number} {symbol} {_source(b)}"
        found = self.known.get(text)
        if found is None:
            found = self.known[text] = f(a.value, b.value if type(b) is Dim else b)
            self.lines.append(f"if {'not ' if found else ''}({text}): return None")
            self.steps.append((symbol, a, b))
            equal = found is (symbol == "==")
            if symbol in ("==", "!=") and a.number < len(self.inputs):
                if equal and type(b) is not Dim:
                    self._note_fixed(a)
                elif not equal and (b.number < len(self.inputs) if type(b) is Dim else b > 1):
                    self.conflict = a, b
        return found  # type: ignore[return-value]

    def fix(self, a: Dim) -> Any:
        """The value of `a`, which all sizes that this scope serves must give."""
        if self.open:
            text = f"v{a.number} == {_source(a.value)}"
            if text not in self.known:
                self.known[text] = True
                self.lines.append(f"if not ({text}): return None")
                self.steps.append(("fix", a))
            self._note_fixed(a)
        return a.value

    def _note_fixed(self, a: Dim) -> None:
        for k in a.inputs:
            if k not in self.fixed:
                self.fixed[k] = user_line()

    def replay(self, steps: Sequence[Sequence[Any]], value: Callable[[Any], Any]) -> None:
        """Do again what another scope did. `value` gives an operand from how it is written there."""
        for name, *written in steps:
            operands = [value(x) for x in written]
            if name == "fix":
                self.fix(operands[0])
            elif name in COMPARISONS:
                self.decide(name, COMPARISONS[name], *operands)
            else:
                self.compute(name, COMPUTATIONS[name], *operands)

    def solver(self) -> Solve:
        """The function from sizes to the values of all Dims, by number; None where a decision would differ.

        It takes Dims of another scope too, which then hears of all that was computed and decided here.
        """
        arguments = ", ".join(f"v{k}" for k in range(len(self.inputs)))
        body = [*self.lines, f"return [{', '.join(f'v{k}' for k in range(len(self.values)))}]"]
        source = f"def solve({arguments}):\n" + "".join(f"    {line}\n" for line in body)
        space = dict(NAMES)
        exec(compile(source, "<tracejit sizes>", "exec"), space)
        return space["solve"]  # type: ignore[no-any-return]

    def read(self, a: Dim) -> str:
        """`a` as people write it."""
        if a.number < len(self.names):
            return self.names[a.number]
        if a.number < len(self.inputs):
            return f"n{a.number}"
        words = [self._word(w) for w in a.text.split()]
        return " ".join(words)

    def _word(self, word: str) -> str:
        bare = word.strip("(),-")
        if not bare.startswith("v") or not bare[1:].isdigit():
            return word
        inner = self.values[int(bare[1:])]
        text = self.read(inner)
        return word.replace(bare, text if inner.number < len(self.inputs) else f"({text})")


def _source(x: Any) -> str:
    return f"v{x.number}" if type(x) is Dim else f"({x!r})" if x < 0 else repr(x)


class Dim:
    """A size that may be another one at the next call. See the top of this file."""

    __slots__ = ("scope", "number", "value", "inputs", "text")
    scope: Scope
    number: int
    value: Any
    inputs: frozenset[int]
    text: str

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # type: ignore[override]
        return self.value.__class__  # type: ignore[no-any-return]

    def fix(self) -> Any:
        """The plain number, needed from now on."""
        return self.scope.fix(self)

    def __index__(self) -> int:
        return operator.index(self.fix())

    def __float__(self) -> float:
        return float(self.fix())

    def __int__(self) -> int:
        return int(self.fix())

    __trunc__ = __int__

    def __complex__(self) -> complex:
        return complex(self.fix())

    def __bool__(self) -> bool:
        return self.scope.decide("!=", operator.ne, self, 0) if self.scope.open else bool(self.value)

    def __hash__(self) -> int:
        return hash((id(self.scope), self.number)) if self.scope.open and self.scope.structural else hash(self.fix())

    def __repr__(self) -> str:
        return repr(self.fix()) if not self.scope.names or self.scope.open else self.scope.read(self)

    def __str__(self) -> str:
        return repr(self)

    def __format__(self, spec: str) -> str:
        return format(self.fix(), spec)

    def __getattr__(self, name: str) -> Any:
        if not hasattr(self.value, name):
            raise AttributeError(f"'{self.value.__class__.__name__}' object has no attribute {name!r}")
        return getattr(self.fix(), name)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return np.array(self.fix(), *args)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(ufunc, method)(*(x.fix() if type(x) is Dim else x for x in inputs), **kwargs)

    def __round__(self, digits: int | None = None) -> Any:
        return self if digits is None and isinstance(self.value, int) else round(self.fix(), digits)

    def __floor__(self) -> Any:
        return self if isinstance(self.value, int) else self.fix().__floor__()

    def __ceil__(self) -> Any:
        return self if isinstance(self.value, int) else self.fix().__ceil__()

    def __pos__(self) -> Any:
        return self

    def __neg__(self) -> Any:
        return self.scope.compute("-{}", operator.neg, self) if self.scope.open else -self.value

    def __invert__(self) -> Any:
        return ~self.fix()

    def __abs__(self) -> Any:
        return self.scope.compute("abs({})", abs, self) if self.scope.open else abs(self.value)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __copy__(self) -> Dim:
        return self

    def __deepcopy__(self, memo: Any) -> Dim:
        return self

    def __reduce__(self) -> Any:
        return self.value.__class__, (self.fix(),)


def _takes(x: Any, scope: Scope) -> bool:
    """Whether arithmetic with `x` stays symbolic."""
    kind = type(x)
    return kind is int or kind is float or kind is bool or (kind is Dim and x.scope is scope)


def _same(a: Any, b: Any) -> bool:
    return type(a) is Dim and type(b) is Dim and a.number == b.number


def _shorter(symbol: str, a: Any, b: Any) -> Any:
    """The result where it is clear for any size, for integers; None if it is not."""
    if type(a) is float or type(b) is float or isinstance(a, float) or isinstance(b, float):
        return None
    if type(b) is int:
        if (b == 0 and symbol in ("+", "-")) or (b == 1 and symbol in ("*", "//")):
            return a
        if (b == 0 and symbol == "*") or (b == 1 and symbol == "%"):
            return 0
        if symbol in ("//", "%") and b > 0:
            whole = _factor(a, b)
            if whole is not None:
                return whole if symbol == "//" else 0
    elif type(a) is int:
        if (symbol == "+" and a == 0) or (symbol == "*" and a == 1):
            return b
        if symbol == "*" and a == 0:
            return 0
    elif symbol == "-" and _same(a, b):
        return 0
    return None


def _factor(a: Any, by: int) -> Any:
    """x where `a` was computed as x * by; None otherwise."""
    left, _, right = a.text.partition(" * ")
    if right == str(by) and left[:1] == "v" and left[1:].isdigit():
        return a.scope.values[int(left[1:])]
    return None


def _arithmetic(symbol: str, f: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    swaps = symbol in ("+", "*")

    def forward(self: Dim, other: Any) -> Any:
        scope = self.scope
        if not _takes(other, scope):
            if type(other) is Dim:
                return f(self, other.value)
            return NotImplemented
        if not scope.open:
            return f(self.value, other.value if type(other) is Dim else other)
        short = _shorter(symbol, self, other)
        if short is not None:
            return short
        if symbol == "+" and type(other) is int and other < 0:
            return self - -other  # type: ignore[operator]
        a, b = (other, self) if swaps and type(other) is Dim and other.number < self.number else (self, other)
        return scope.compute(f"{{}} {symbol} {{}}", f, a, b)

    def reflected(self: Dim, other: Any) -> Any:
        if not _takes(other, self.scope):
            return NotImplemented
        if not self.scope.open:
            return f(other, self.value)
        if swaps:
            return forward(self, other)
        return self.scope.compute(f"{{}} {symbol} {{}}", f, other, self)

    return forward, reflected


def _comparison(symbol: str, f: Callable[[Any, Any], bool], same: bool) -> Callable[[Dim, Any], Any]:
    def compare(self: Dim, other: Any) -> Any:
        scope = self.scope
        if not _takes(other, scope):
            return f(self, other.value) if type(other) is Dim else NotImplemented
        if not scope.open:
            return f(self.value, other.value if type(other) is Dim else other)
        if type(other) is Dim and self.number == other.number:
            return same
        return scope.decide(symbol, f, self, other)

    return compare


COMPUTATIONS: dict[str, Callable[..., Any]] = {"-{}": operator.neg, "abs({})": abs}
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {}
for _name, _symbol in (("add", "+"), ("sub", "-"), ("mul", "*"), ("floordiv", "//"), ("mod", "%"), ("truediv", "/"),
                       ("pow", "**")):  # fmt: skip
    COMPUTATIONS[f"{{}} {_symbol} {{}}"] = getattr(operator, _name)
    _forward, _reflected = _arithmetic(_symbol, getattr(operator, _name))
    setattr(Dim, f"__{_name}__", _forward)
    setattr(Dim, f"__r{_name}__", _reflected)
for _name, _symbol in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    COMPARISONS[_symbol] = getattr(operator, _name)
    setattr(Dim, f"__{_name}__", _comparison(_symbol, getattr(operator, _name), _name in ("eq", "le", "ge")))


def _bits(f: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(self: Dim, other: Any) -> Any:
        return f(self.fix(), other.fix() if type(other) is Dim else other)

    return forward, lambda self, other: f(other, self.fix())


for _name in ("and", "or", "xor", "lshift", "rshift"):
    _forward, _reflected = _bits(getattr(operator, f"__{_name}__"))
    setattr(Dim, f"__{_name}__", _forward)
    setattr(Dim, f"__r{_name}__", _reflected)


# What the text of a computation may name.
NAMES: dict[str, Any] = {"inf": float("inf"), "nan": float("nan")}


def integer(n: Any) -> Any:
    """`n` as an int (`operator.index`), left symbolic if it is."""
    return n if type(n) is Dim and isinstance(n.value, int) else operator.index(n)


def bits(value: Any, dtype: str, wide: str) -> Any:
    """A number of a dtype, widened, as the int64 of the same bits."""
    if type(value) is Dim and value.scope.open:
        return value.scope.compute(f"bits({{}}, {dtype!r}, {wide!r})", lambda n: bits(n, dtype, wide), value)
    return int(np.array(value, dtype).astype(wide).view(np.int64))


def is_symbolic(x: Any) -> bool:
    """Whether a Dim is in `x`, or in a tuple in it."""
    return type(x) is Dim or (type(x) is tuple and any(map(is_symbolic, x)))


def extent_of(item: slice, extent: int) -> tuple[int, int, int]:
    """First index, count and step of a slice of a dim (`slice.indices`, for symbolic extents too)."""
    if not is_symbolic((extent, item.start, item.stop)):
        start, stop, step = item.indices(extent)
        return start, len(range(start, stop, step)), step
    step = 1 if item.step is None else operator.index(item.step)
    if step == 0:
        raise ValueError("slice step cannot be zero")
    low, high = (0, extent) if step > 0 else (-1, extent - 1)

    def bound(given: Any, default: int) -> int:
        if given is None:
            return default
        n = integer(given)
        n = n + extent if n < 0 else n
        return low if n < low else high if n > high else n

    start, stop = (low, high) if step > 0 else (high, low)
    start, stop = bound(item.start, start), bound(item.stop, stop)
    ahead, by = (stop - start, step) if step > 0 else (start - stop, -step)
    return start, (ahead + (by - 1)) // by if ahead >= 0 else 0, step


NAMES["bits"] = bits
