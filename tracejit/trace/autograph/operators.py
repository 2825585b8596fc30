"""What rewritten code calls: each operator looks at its condition, and runs plain Python or traces both ways.

In: functions made by `transform.py`. Out: what the Python statement would do. A condition is traced only if it is a
tensor whose value is not known (`unknown`); one made of Python numbers is looked up, and guarded, as ever.

An operator whose bodies may leave the block takes `rest`, the remainder of the block, and gives an `Outcome`, or None
if the block ran to its end.

Read next: `staging.py`.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tracejit import dtypes
from tracejit.errors import TraceJitError, TracerError, user_line
from tracejit.ir import Node
from tracejit.ops import comparison, core, effects
from tracejit.tensor import Number, Tensor, state
from tracejit.trace.autograph import loops
from tracejit.trace.autograph.raising import dropped, exits, finishing, guarding, guards, last_raise, leaving, refused
from tracejit.trace.autograph.staging import (
    Facts,
    Loop,
    Part,
    Turn,
    branch,
    places_of,
    predicate,
)
from tracejit.trace.autograph.values import BREAK, CONTINUE, RAISED, UNSET, Outcome, Return
from tracejit.trees import flatten, unflatten

__all__ = [
    "BREAK",
    "CONTINUE",
    "Return",
    "and_",
    "assert_",
    "binding",
    "block",
    "caught",
    "compare",
    "condition",
    "dropped",
    "elements",
    "finishing",
    "for_",
    "guarding",
    "if_",
    "if_exp",
    "kept",
    "known",
    "manager",
    "maybe",
    "not_",
    "or_",
    "raised",
    "result",
    "shown",
    "subject",
    "while_",
]

Body = Callable[[], "Outcome | None"]
Given = tuple[Any, ...]  # the fields of `Facts` that `transform.py` wrote down
PYTHON = {"b": dtypes.bool_, "i": dtypes.int64, "f": dtypes.float64, "c": dtypes.complex128}
# Kinds of ops in the second operand of `and` that may run where Python would not have run it: they cannot fail.
_SAFE = frozenset(("elementwise", "source", "movement", "reduction"))


def unknown(x: Any) -> bool:
    """Whether x is a tensor whose value is known only at run time."""
    trace = state.trace
    if trace is None or not isinstance(x, Tensor):
        return False
    if x._value.__class__ is not Node and x._place:
        return True  # a Variable is read afresh at each call; another tensor from outside is looked up, and guarded
    return not trace.knows(x)  # type: ignore[attr-defined]


def _facts(given: Given, function: Any) -> Facts:
    return Facts(*given, f"{function.__code__.co_filename}:{given[3]}")  # type: ignore[call-arg]


# -- statements
def if_(test: Any, body: Any, orelse: Any, rest: Any, given: Given) -> Outcome | None:
    """`if test: body else: orelse`, then `rest` unless a jump has left."""
    if not unknown(test):
        chosen = body if test else orelse
        return after(None if chosen is None else chosen(), rest, given)
    facts = _facts(given, body)
    places = places_of((body, orelse, rest), facts)
    otherwise = orelse or _nothing
    if rest is not None and facts.absorbs:  # one of the branches leaves, so the rest is traced in the other only
        return branch(test, lambda: after(body(), rest, given), lambda: after(otherwise(), rest, given), places, facts)
    return after(branch(test, body, otherwise, places, facts), rest, given)


def _nothing() -> None:
    return None


def after(outcome: Outcome | None, rest: Any, given: Given) -> Outcome | None:
    """The rest of a block, where a statement that ended with `outcome` did not leave it."""
    if rest is None or (outcome is not None and outcome.certain):
        return outcome
    if outcome is None:
        return rest()  # type: ignore[no-any-return]
    return _unless(outcome, lambda o: o, rest, (rest,), given)


def _unless(
    outcome: Outcome, left: Callable[[Outcome], Outcome | None], more: Body, functions: Sequence[Any], given: Given
) -> Any:
    """`more()` where the outcome did not leave; where it did, `left(outcome)`, whose one flag is then certain."""
    for name in ("returned", "broke", "continued"):
        flag = getattr(outcome, name)
        if isinstance(flag, Tensor):
            facts = _facts(given, next(f for f in functions if f is not None))
            done = Outcome(**{name: True}, value=outcome.value if name == "returned" else UNSET)
            rest = Outcome(**{n: getattr(outcome, n) for n in ("returned", "broke", "continued", "value") if n != name})
            return branch(
                flag,
                partial(left, done),
                partial(_unless, rest, left, more, functions, given),
                places_of(functions, facts),
                facts,
            )
    return more()


def _any(flags: Sequence[Tensor]) -> Tensor:
    found = flags[0]
    for f in flags[1:]:
        found = comparison.logical_or(found, f)
    return found


def block(body: Any, rest: Any, given: Given) -> Outcome | None:
    """A `with`, `try` or `match` statement that something inside may leave."""
    return after(body(), rest, given)


def result(outcome: Outcome) -> Any:
    """What the function returns, given how its last statement left."""
    if outcome.raised:
        return None
    if outcome.returned is not True:
        kind = "a tensor" if isinstance(outcome.value, Tensor) else f"a {type(outcome.value).__name__}"
        raise TracerError(
            f"the function returns {kind} in one branch of a condition that is known only at run time, and nothing "
            f"(None) in the other (at {user_line()}); return the same kind of value in both"
        )
    return outcome.value


def _left(outcome: Outcome | None) -> Any:
    """Whether a loop's body has left the loop: a bool, or traced flags."""
    if outcome is None or outcome.continued is True:
        return False
    if outcome.certain:
        return True
    return [f for f in (outcome.returned, outcome.broke) if isinstance(f, Tensor)] or False


def _end(outcome: Outcome, rest: Any, given: Given) -> Outcome | None:
    """After a loop that its body has left for sure."""
    return after(None if outcome.broke is True else outcome, rest, given)


def while_(test: Any, body: Any, orelse: Any, rest: Any, given: Given) -> Outcome | None:
    """`while test(): body() else: orelse()`."""
    while True:
        go = test()
        if unknown(go):
            return after(_staged_while(go, test, body, orelse, given), rest, given)
        if not go:
            return after(orelse() if orelse is not None else None, rest, given)
        outcome = body()
        left = _left(outcome)
        if left is True:
            return _end(outcome, rest, given)
        if left:  # it has left or not, depending on a tensor: further turns are traced under that condition

            def more() -> Outcome | None:
                found = test()
                return (
                    _staged_while(found, test, body, orelse, given)
                    if unknown(found) or found
                    else (orelse() if orelse is not None else None)
                )

            return after(_unless(_of_loop(outcome), _without_break, more, (test, body, orelse), given), rest, given)


def _without_break(outcome: Outcome) -> Outcome | None:
    """How a loop was left, seen from outside."""
    if outcome.returned is False:
        return None
    return Outcome(returned=outcome.returned, value=outcome.value)


def _of_loop(outcome: Outcome) -> Outcome:
    """An outcome without `continue`, which ends with the turn."""
    return Outcome(returned=outcome.returned, broke=outcome.broke, value=outcome.value)


def _staged_while(go: Any, test: Any, body: Any, orelse: Any, given: Given) -> Outcome | None:
    """A `while` as an op, whose condition now is `go`."""
    facts = _facts(given, body)
    loop = Loop(places_of((test, body), facts), facts)
    with_test = False

    def turn(extra: Any, rows: Any) -> Turn:
        done = body() or Outcome()
        return _turn(done, test) if with_test else Turn(done)

    part, found = loop.settle(turn)
    if _left(found.outcome) is False and not found.outcome.raised:
        condition = loop.condition(test)
        if condition is not None:
            loop.finish(part, Turn(Outcome(), condition[1]), condition[0])
            return orelse() if orelse is not None else None  # type: ignore[no-any-return]
    # the condition is worked out at the end of each turn, unless that has left the loop
    with_test = True

    def run() -> Outcome | None:
        loop = Loop(places_of((test, body), facts), facts)
        return _after_loop(*loop.finish(*loop.settle(turn), None), orelse, given)

    return _if_any_turn(go, run, orelse, (test, body, orelse), facts)


def _if_any_turn(go: Any, run: Body, orelse: Any, functions: Sequence[Any], facts: Facts) -> Outcome | None:
    if not isinstance(go, Tensor):
        return run() if go else orelse() if orelse is not None else None
    return branch(go, run, orelse or _nothing, places_of(functions, facts), facts)


def _turn(done: Outcome, test: Callable[[], Any]) -> Turn:
    """A turn with the condition of the next one, which is asked for only if the body has not left."""
    left = _left(done)
    if left is True:
        return Turn(done, False)
    if not left:
        return Turn(done, test())
    asked: list[Any] = []

    def ask() -> Any:
        asked.append(test())
        return asked[-1]

    go = and_(not_(_any(left)), ask)
    return Turn(done, go, endless=not any(isinstance(x, Tensor) or not x for x in asked))


def _after_loop(outcome: Outcome, broke: Any, orelse: Any, given: Given) -> Outcome | None:
    """`else` of a loop, which runs unless the loop was left."""
    if orelse is None or broke is True or outcome.returned is True:
        return _without_break(outcome)
    both = Outcome(returned=outcome.returned, broke=broke, value=outcome.value)
    return _unless(both, _without_break, orelse, (orelse,), given)


def for_(iterable: Any, body: Any, orelse: Any, rest: Any, given: Given) -> Outcome | None:
    """`for item in iterable: body(item) else: orelse()`."""
    steps = loops.steps_of(iterable) if state.trace is not None else None
    if steps is not None:
        try:
            return after(_staged_for(steps, body, orelse, given), rest, given)
        except TracerError:
            if isinstance(steps.count, Tensor):
                raise
        # the number of turns is known: what cannot be one loop is run by Python, turn by turn
    items = iter(iterable)
    for item in items:
        outcome = body(item)
        left = _left(outcome)
        if left is True:
            return _end(outcome, rest, given)
        if left:
            return after(_rest_of_turns(iterable, items, outcome, body, orelse, given), rest, given)
    return after(orelse() if orelse is not None else None, rest, given)


def _rest_of_turns(
    iterable: Any, items: Iterator[Any], outcome: Any, body: Any, orelse: Any, given: Given
) -> Outcome | None:
    """The remaining turns of a loop that has been left or not, depending on a tensor."""
    remaining = list(items)
    if isinstance(iterable, range) and len(remaining) > loops.UNROLL:
        steps = loops.steps_of_range(iterable, len(iterable) - len(remaining))
        try:
            return _unless(
                _of_loop(outcome),
                _without_break,
                lambda: _staged_for(steps, body, orelse, given),
                (body, orelse),
                given,
            )
        except TracerError:
            pass  # the body needs the number itself, as an index or a size
    for item in remaining:
        left = _left(outcome)
        if left is True:
            return _without_break(outcome)
        if not left:
            outcome = body(item)
            continue
        outcome = _unless(_of_loop(outcome), lambda o: o, partial(body, item), (body,), given)
    if outcome is None:
        return orelse() if orelse is not None else None  # type: ignore[no-any-return]
    return _after_loop(outcome, outcome.broke, orelse, given)


def _staged_for(steps: loops.Steps, body: Any, orelse: Any, given: Given) -> Outcome | None:
    """A `for` as an op: a scan where the number of turns is known and nothing leaves early, else a while loop."""
    facts = _facts(given, body)
    count = steps.count
    zero = core.as_number(core.full(0, (), dtypes.int64))
    if not isinstance(count, Tensor):
        start = [zero] if steps.counted else []
        loop = Loop(places_of((body,), facts), facts, start, steps.rows, runs=count > 0)
        part, found = loop.settle(
            lambda extra, rows: Turn(
                body(steps.item(extra[0] if extra else None, rows)) or Outcome(), extra=[i + 1 for i in extra]
            )
        )
        if _left(found.outcome) is False:
            loop.finish_scan(part, count)
            return orelse() if orelse is not None else None  # type: ignore[no-any-return]
    leaves = False

    def turn(extra: Any, rows: Any) -> Turn:
        (i,) = extra
        done = body(steps.item(i, [r[i] for r in steps.rows])) or Outcome()
        found = _turn(done, lambda: i + 1 < count) if leaves else Turn(done)
        found.extra = [i + 1]
        return found

    loop = Loop(places_of((body,), facts), facts, [zero], runs=not isinstance(count, Tensor) and count > 0)
    part, found = loop.settle(turn)
    if _left(found.outcome) is False:
        loop.finish(part, *_counting(loop, count))
        return orelse() if orelse is not None else None  # type: ignore[no-any-return]
    leaves = True

    def run() -> Outcome | None:
        loop = Loop(places_of((body,), facts), facts, [zero], runs=not isinstance(count, Tensor) and count > 0)
        return _after_loop(*loop.finish(*loop.settle(turn), None), orelse, given)

    return _if_any_turn(count > 0, run, orelse, (body, orelse), facts)


def _counting(loop: Loop, count: Any) -> tuple[Turn, Part]:
    """The condition that the loop's counter is below `count`."""
    part = Part("cond", ())
    stand_ins = [part.region.input(c.slot) for c in loop.every]
    found: list[Any] = []

    def test() -> None:
        found.append(stand_ins[0] < count)

    part.run(test, loop.facts)
    return Turn(Outcome(), found[0]), part


def assert_(test: Any, message: Callable[[], Any] | None) -> Any:
    """The condition of an assert statement; a traced one is checked at run time."""
    if not unknown(test):
        return test
    if guards.catch(AssertionError):
        raise refused("AssertionError", user_line())
    if exits.finish:  # the finally comes first

        def fail() -> None:
            raise AssertionError(*(() if message is None else (message(),)))

        branch(test, _nothing, fail, (), _expression())
        return True
    for outer in exits.active:
        outer.passed("AssertionError", user_line())
    effects.check(predicate(test), message)
    return True


def raised(error: Any) -> Any:
    """The exception of a raise statement."""
    if state.trace is not None:
        if isinstance(error, type) and issubclass(error, BaseException):
            error = error()
        last_raise.latest = error
    return error


def caught(kinds: Any) -> None:
    """A handler has caught an exception. One that tells of traced values does not exist in eager code, so it goes on,
    unless the handler asks for it by name."""
    error = sys.exc_info()[1]
    named = [k for k in (kinds if isinstance(kinds, tuple) else (kinds,)) if isinstance(k, type)]
    if isinstance(error, TracerError) and not any(issubclass(k, TraceJitError) for k in named):
        raise error


class _Suppressing:
    """`contextlib.suppress`, which is a handler too."""

    def __init__(self, inner: contextlib.suppress):
        self.inner = inner

    def __enter__(self) -> None:
        self.guard = guarding(lambda: self.inner._exceptions)  # type: ignore[attr-defined]
        self.guard.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        self.guard.__exit__()
        return self.inner.__exit__(kind, error, trace) if not isinstance(error, TracerError) else False


def manager(x: Any, call: Callable[[Any], Any]) -> Any:
    """The context manager of a with statement. call: what rewrites its methods."""
    if type(x) is contextlib.suppress:
        return _Suppressing(x)
    managed = hasattr(type(x), "__enter__") and hasattr(type(x), "__exit__")  # else Python says what is missing
    return leaving(x, call) if managed and state.trace is not None else x


class _Shown:
    """A Python number in text that is written at run time: a mark where it will stand, instead of its value now."""

    def __init__(self, number: Number):
        self.number = number

    def __format__(self, spec: str) -> str:
        return state.trace.mention(self.number, spec)  # type: ignore[union-attr]

    def __repr__(self) -> str:
        return state.trace.mention(self.number, None)  # type: ignore[union-attr]


def shown(x: Any) -> Any:
    """A value inside an f-string that is printed, or is the message of an assert or an exception."""
    if state.trace is None or (isinstance(x, str | Tensor) and not isinstance(x, Number)):
        return x
    leaves, spec = flatten(x)
    if not any(isinstance(y, Number) for y in leaves):
        return x
    return unflatten(spec, [_Shown(y) if isinstance(y, Number) else y for y in leaves])


def subject(x: Any) -> Any:
    """What a `match` statement looks at: Python's own numbers where they are known."""
    if state.trace is None or (isinstance(x, str | Tensor) and not isinstance(x, Number)):
        return x
    leaves, spec = flatten(x)
    if not any(isinstance(y, Number) for y in leaves):
        return x
    return unflatten(spec, [y.item() if isinstance(y, Number) and not unknown(y) else y for y in leaves])


# -- expressions
def _expression(names: tuple[str, ...] = ()) -> Facts:
    return Facts(names, (), (), 0, False, names, user_line())  # the function goes on, so its variables stay


def if_exp(
    test: Any, yes: Callable[[], Any], no: Callable[[], Any], names: tuple[str, ...] = (), setters: Sequence[Any] = ()
) -> Any:
    """`yes() if test else no()`. names, setters: what := assigns in one of them, and the functions that do it."""
    if not unknown(test):
        return yes() if test else no()
    facts = _expression(names)
    found = branch(test, lambda: Return(yes()), lambda: Return(no()), places_of(setters, facts), facts)
    assert found is not None
    return found.value


def binding(both: bool, names: tuple[str, ...], setters: Sequence[Any], first: Any, *more: Callable[[], Any]) -> Any:
    """`first and more[0]() and ...`, or `or`, where := in an operand assigns `names`."""
    if not more:
        return first

    def rest() -> Any:
        return binding(both, names, setters, more[0](), *more[1:])

    def same() -> Any:
        return first

    return if_exp(first, *((rest, same) if both else (same, rest)), names, setters)


def and_(first: Any, *more: Callable[[], Any]) -> Any:
    """`first and more[0]() and ...`."""
    value = first
    for f in more:
        if unknown(value):
            value = _joined(value, f, True)
        elif value:
            value = f()
        else:
            return value
    return value


def or_(first: Any, *more: Callable[[], Any]) -> Any:
    """`first or more[0]() or ...`."""
    value = first
    for f in more:
        if unknown(value):
            value = _joined(value, f, False)
        elif value:
            return value
        else:
            value = f()
    return value


def _joined(first: Tensor, second: Callable[[], Any], both: bool) -> Any:
    """`first and second()`, or `or`: one logical op if the second operand is a truth value that cannot fail."""

    def yes() -> Outcome:
        return Return(second() if both else first)

    def no() -> Outcome:
        return Return(first if both else second())

    part = Part("operand", ())
    part.run(lambda: Return(second()), _expression())
    value = part.outcome.value
    nodes = part.region.trace.nodes
    simple = isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype.kind == "b" and value.size == 1)
    if (
        simple
        and first.dtype.kind == "b"
        and not part.region.written
        and not part.outcome.raised
        and all(n.op.kind in _SAFE for n in nodes)
    ):
        other = second() if isinstance(value, Tensor) else value
        other = predicate(other) if isinstance(other, Tensor) else other
        found = (comparison.logical_and if both else comparison.logical_or)(predicate(first), other)
        plain = isinstance(first, Number) and isinstance(value, bool | Number)  # Python gives one of its own bools
        return core.as_number(found) if plain else found
    return branch(first, yes, no, (), _expression()).value  # type: ignore[union-attr]


def known(x: Any, what: str) -> Any:
    """The condition that decides whether an assignment expression runs."""
    if unknown(x):
        raise TracerError(
            f"{what} at {user_line()} stands where it may not run, depending on a value known only at run time; assign "
            f"in a statement before, or write an if statement"
        )
    return x


# -- comprehensions
def condition(x: Any) -> Any:
    """The condition of a comprehension."""
    if unknown(x):
        raise TracerError(
            f"the condition of a comprehension at {user_line()} is known only at run time, so how many elements there "
            f"are is too. Keep them all and choose by value (tj.where(condition, x, 0)), reduce at once (sum, any, "
            f"all, min, max or len of the comprehension), or use an array and a mask"
        )
    return x


@dataclass(frozen=True, slots=True)
class Maybe:
    """An element of a comprehension that is there under a traced condition; elsewhere its value is zeros."""

    there: Tensor
    value: Any


def kept(test: Any) -> tuple[Any, ...]:
    """What a comprehension goes over in place of a condition: nothing, if it is known not to hold."""
    return (test,) if unknown(test) else (True,) if test else ()


def maybe(element: Callable[[], Any], *conditions: Any) -> Any:
    """An element under conditions, those that are known having been looked at."""
    traced = [predicate(c) for c in conditions if c is not True]
    if not traced:
        return element()
    there = traced[0]
    for c in traced[1:]:
        there = comparison.logical_and(there, c)
    found = branch(there, lambda: Return(element()), lambda: RAISED, (), _expression())
    return Maybe(there, found.value)  # type: ignore[union-attr]


def elements(reducer: Any, given: Callable[[], Any], plain: Callable[[], Any]) -> Any:
    """The argument of a call that looks like one of a builtin that takes elements as they come."""
    return given() if state.trace is not None and reducer in (sum, any, all, min, max, len) else plain()


def not_(x: Any) -> Any:
    """`not x`."""
    return core.as_number(comparison.logical_not(predicate(x))) if unknown(x) else not x


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge, "Eq": operator.eq,
    "NotEq": operator.ne, "Is": operator.is_, "IsNot": operator.is_not,
}  # fmt: skip


def compare(names: str, left: Any, right: Any, *more: Callable[[], Any]) -> Any:
    """`left < right < more[0]() ...`, each operand once, as far as Python would go."""
    name, _, rest = names.partition(" ")
    found = _contains(left, right, name == "NotIn") if name in ("In", "NotIn") else _COMPARE[name](left, right)
    if not more:
        return found
    return and_(found, lambda: compare(rest, right, more[0](), *more[1:]))


def _contains(x: Any, container: Any, negated: bool) -> Any:
    """`x in container`."""
    if isinstance(container, Tensor) and (unknown(container) or unknown(x)):
        found = (container == x).any()
    elif unknown(x) and isinstance(container, list | tuple | set | frozenset | range | dict):
        found = None
        for y in container:
            same = x == y
            if isinstance(same, Tensor):
                found = predicate(same) if found is None else comparison.logical_or(found, predicate(same))
        found = False if found is None else found
    else:
        return x not in container if negated else x in container
    if negated:
        return not_(found)
    return core.as_number(found) if isinstance(found, Tensor) else found
