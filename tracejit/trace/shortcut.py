"""The fast way into a program: a generated function that checks a plain call's arguments and runs one specialisation.

In: a `Specialization` whose leaves are the positional arguments themselves. Out: `shortcut(args, instance)`, which
gives the result, or `MISS` if this is not such a call. It does what `matches`, `gather`, `write_back` and `rebuild` of
the specialisation do, without loops: on small tensors a call is all overhead. Where a call only takes arrays and gives
arrays, native code does all of it (`runtime/entry.py`).

A step that writes many Variables (weights and what an optimizer keeps for them) writes them over: `_Lent` knows the
arrays it has checked before, and that nobody else holds them.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter, is_, itemgetter
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.locks import updating
from tracejit.ops.random import drawing
from tracejit.tensor import Tensor
from tracejit.trace.signature import unflatten
from tracejit.trace.specialization import Specialization
from tracejit.trace.tracer import NUMBER_DTYPES

MISS = object()
PLAIN = ("output", "number", "static", "handle")  # results that need no work
MANY = 4  # writes from which writing over pays
Shortcut = Callable[[tuple[Any, ...], Any], Any]


def shortcut(s: Specialization, leaves: Sequence[Any]) -> Shortcut | None:
    """The shortcut for calls like the one with these leaves; None if they need more than the common things."""
    special = s.numbers or s.passed or s.ties or s.copied
    if special or any(r.kind not in PLAIN for r in s.results) or any(w.leaf >= 0 for w in s.writes):
        return None
    return _native(s, leaves) or _Writer(s, leaves).function()


def _native(s: Specialization, leaves: Sequence[Any]) -> Shortcut | None:
    """A shortcut in native code, for calls that take arrays, read others, and give one or a tuple of them."""
    changes = s.writes or s.shared or s.draws or s.in_place or s.aliases is not None
    results = all(r.kind == "output" for r in s.results) and (s.spec is None or _is_tuple(s))
    if changes or not results or not _captures_arrays(s):
        return None
    sources = []
    for k, x in enumerate(leaves):
        value = x._value if x.__class__ is Tensor else x
        if value.__class__ is not np.ndarray or not (value.flags.aligned and value.dtype.isnative):
            return None
        sources.append((k, x, s.leaves.index(k) if k in s.leaves else -1, False, False))
    for k, c in enumerate(s.hidden):
        sources.append((k, c.handle, len(s.leaves) + k, True, s.watch.constant))
    read = None if s.watch.constant else s.watch.read
    outputs = [r.at for r in s.results]
    found = s.program.entry(len(leaves), sources, read, outputs, s.spec is not None, Tensor(0.0), MISS)
    if found is not None:
        s.ran = s.calls
        s.entry = found.__self__
    return found  # type: ignore[no-any-return]


def _is_tuple(s: Specialization) -> bool:
    """Whether the result is a plain tuple of its leaves."""
    plain = tuple(range(len(s.results)))
    found = unflatten(s.spec, plain)
    return found.__class__ is tuple and found == plain


def _captures_arrays(s: Specialization) -> bool:
    """Whether all that comes from outside are handles on arrays, whose contents do not matter."""
    return all(
        contents is None and isinstance(c.handle, Tensor) and isinstance(c.handle._value, np.ndarray)
        for c, (_, _, _, contents) in zip(s.hidden, s.expected)
    )


_value_of = attrgetter("_value")
_count = sys.getrefcount


class _Lent:
    """The arrays of a specialisation's hidden handles, as the call before left them. Those at `places` are written over
    when nobody but their handle holds them, so they are mostly the same as the last time."""

    def __init__(self, s: Specialization, places: Sequence[int]):
        self.classes = [c.handle.__class__ for c in s.hidden]
        self.expected = s.expected
        self.places = [*places, places[0]]  # at least two, so that `pick` gives a tuple
        self.others = [k for k in range(len(s.hidden)) if k not in set(places)]
        self.pick = itemgetter(*self.places)
        self.known: list[Callable[[], Any]] = [lambda: None] * len(self.places)
        alone = [Tensor(np.zeros(1)) for _ in s.hidden]
        self.held = self._counts(list(map(_value_of, alone)))

    def _counts(self, arrays: list[Any]) -> list[int]:
        """How often the arrays to write over are held."""
        return list(map(_count, self.pick(arrays)))

    def take(self, handles: Sequence[Any], arrays: list[Any]) -> bool:
        """Whether the program may run on these arrays, and write over some: an array that two handles share is held
        too often, so only the other handles must be compared with each other."""
        same = all(map(is_, self.pick(arrays), [known() for known in self.known]))
        if not same and not self._learn(handles, arrays):
            return False
        if self._counts(arrays) != self.held:
            return False
        others = self.others
        return len({id(handles[k]) for k in others}) == len(others) and all(
            self._fits(k, handles[k], arrays[k]) for k in others
        )

    def _learn(self, handles: Sequence[Any], arrays: list[Any]) -> bool:
        for n, k in enumerate(self.places):
            value = arrays[k]
            if value is not self.known[n]():
                if not self._fits(k, handles[k], value) or value.base.__class__ is np.ndarray:
                    return False
                if not value.flags.writeable:
                    return False
                self.known[n] = weakref.ref(value)
        return True

    def _fits(self, k: int, handle: Any, value: Any) -> bool:
        """Whether a handle and its array are such as the program was made for."""
        shape, dtype, strides, _ = self.expected[k]
        if handle.__class__ is not self.classes[k] or value.__class__ is not np.ndarray:
            return False
        alike = value.shape == shape and value.dtype is dtype
        return alike and (value.flags.c_contiguous if strides is None else value.strides == strides)


class _Writer:
    """Writes the source of one shortcut."""

    def __init__(self, s: Specialization, leaves: Sequence[Any]):
        self.s, self.leaves = s, leaves
        self.space: dict[str, Any] = {
            "MISS": MISS,
            "Tensor": Tensor,
            "ndarray": np.ndarray,
            "new": object.__new__,
            "array": np.array,
            "s": s,
            "call": s.program.call,
            "read": s.watch.read,
            "unflatten": unflatten,
            "default": dtypes.default_float,
            "dtype": s.default,
            "spec": s.spec,
        }
        self.lines: list[str] = []

    def function(self) -> Shortcut | None:
        """The compiled shortcut."""
        names = "".join(f"a{k}, " for k in range(len(self.leaves)))
        self.lines = [f"if len(args) != {len(self.leaves)}: return MISS"]
        if names:
            self.lines.append(f"{names} = args")
        self.lines.append("if default() is not dtype: return MISS")
        if not all(self._leaf(k, x) for k, x in enumerate(self.leaves)) or not self._common():
            return None
        self._same()
        values = [f"v{k}" for k in self.s.leaves]
        at = self._over()
        if at is None:
            if self.s.in_place:
                return None
            self._hidden()
            values += [f"w{k}" for k in range(len(self.s.hidden))]
            at = {k: k for k in range(len(self.s.built.plan.outputs))}
            self.lines.append(f"o = call(({''.join(f'{v}, ' for v in values)}))")
        else:
            self.lines.append(f"o = call([{''.join(f'{v}, ' for v in values)}*w])")
        self.lines.insert(-1, "s.ran += 1")
        self.lines += [f"h[{w.hidden}]._value = o[{at[w.at]}]" for w in self.s.writes if w.at in at]
        self._results(at)
        if self.s.shared:  # before the handles are read
            self._alone("updating", [w.hidden for w in self.s.writes])
        if self.s.draws:
            self._alone("drawing", self.s.draws)
        source = "def shortcut(args, S):\n" + "".join(f"    {line}\n" for line in self.lines)
        exec(compile(source, "<tracejit shortcut>", "exec"), self.space)
        return self.space["shortcut"]  # type: ignore[no-any-return]

    def _alone(self, how: str, hidden: Sequence[int]) -> None:
        """All from where the handles are known on under the locks of these."""
        start = self.lines.index("if h is None: return MISS") + 1
        handles = ", ".join(f"h[{k}]" for k in hidden)
        self.space |= {"drawing": drawing, "updating": updating}
        self.lines[start:] = [f"with {how}([{handles}]):", *(f"    {line}" for line in self.lines[start:])]

    def _check(self, value: str, like: np.ndarray) -> None:
        """Miss unless the array called `value` has the shape, dtype and layout of `like`."""
        self.space[f"{value}_shape"], self.space[f"{value}_dtype"] = like.shape, like.dtype
        self.space[f"{value}_strides"] = like.strides
        layout = f"not {value}.flags.c_contiguous" if like.flags.c_contiguous else f"{value}.strides != {value}_strides"
        tests = [
            f"{value}.__class__ is not ndarray",
            f"{value}.shape != {value}_shape",
            f"{value}.dtype is not {value}_dtype",
            layout,
        ]
        self.lines.append(f"if {' or '.join(tests)}: return MISS")

    def _leaf(self, k: int, x: Any) -> bool:
        """Read and check an argument; False if it is of an uncommon kind."""
        if x.__class__ is Tensor:
            self.lines += [f"if a{k}.__class__ is not Tensor: return MISS", f"v{k} = a{k}._value"]
            self._check(f"v{k}", x._value)  # type: ignore[arg-type]
        elif x.__class__ is np.ndarray and x.flags.aligned and x.dtype.isnative:
            self.lines.append(f"v{k} = a{k}")
            self._check(f"v{k}", x)
            self.lines.append(f"if not v{k}.flags.aligned: return MISS")
        elif x.__class__ in NUMBER_DTYPES:
            limits = f" or not {-(1 << 63)} <= a{k} < {1 << 63}" if x.__class__ is int else ""
            self.lines.append(f"if a{k}.__class__ is not {x.__class__.__name__}{limits}: return MISS")
            if k in self.s.leaves:
                self.space[f"d{k}"] = np.dtype(NUMBER_DTYPES[x.__class__])
                self.lines.append(f"v{k} = array(a{k}, d{k})")
        else:
            return False
        return True

    def _same(self) -> None:
        """Miss unless just those arguments are one array that were at the trace, if any were."""
        aliases = self.s.aliases
        if aliases is None:
            return
        arrays = [k for k, x in enumerate(self.leaves) if isinstance(x, Tensor | np.ndarray)]
        firsts = [k for k in arrays if aliases[k] == k]
        tests = [f"a{k} is not a{aliases[k]}" for k in arrays if k not in firsts]
        tests += [f"a{i} is a{k}" for n, k in enumerate(firsts) for i in firsts[:n]]
        if tests:
            self.lines.append(f"if {' or '.join(tests)}: return MISS")

    def _common(self) -> bool:
        """Read what comes from outside; False if it is of an uncommon kind."""
        s = self.s
        if s.hidden or not s.watch.constant:
            self.lines += ["h = read(S)", "if h is None: return MISS"]
        for w in s.writes:  # an argument that is the written handle would have to change with it
            if s.hidden[w.hidden].handle.__class__ is Tensor:
                tensors = [i for i, x in enumerate(self.leaves) if x.__class__ is Tensor]
                self.lines += [f"if a{i} is h[{w.hidden}]: return MISS" for i in tensors]
        return _captures_arrays(s)

    def _over(self) -> dict[int, int] | None:
        """Check what comes from outside, for a call that writes over it: where each output that it gives is found. None
        if it does not pay."""
        s = self.s
        if len(s.over) < MANY and not s.in_place:
            return None
        given = [w.at for w in s.writes if w.at not in s.over]
        wanted = list(dict.fromkeys([*given, *(r.at for r in s.results if r.kind in ("output", "number"))]))
        call = s.program.over(s.over, wanted)
        if call is None:
            return None
        lent = _Lent(s, [i - len(s.leaves) for i in s.over.values()])
        self.space |= {"call": call, "take": lent.take, "value_of": _value_of}
        self.lines += ["w = list(map(value_of, h))", "if not take(h, w): return MISS"]
        return {at: k for k, at in enumerate(wanted)}

    def _hidden(self) -> None:
        """Check what comes from outside."""
        s = self.s
        for k, c in enumerate(s.hidden):
            self.space[f"c{k}"] = c.handle.__class__
            self.lines += [f"if h[{k}].__class__ is not c{k}: return MISS", f"w{k} = h[{k}]._value"]
            self._check(f"w{k}", c.handle._value)
        if s.writes and len(s.hidden) > 1:
            self.lines.append(f"if len(set(map(id, h))) != {len(s.hidden)}: return MISS")

    def _results(self, at: dict[int, int]) -> None:
        """Wrap the outputs as the function's result."""
        s = self.s
        for k, r in enumerate(s.results):
            if r.kind == "output":
                self.lines += [f"t{k} = new(Tensor)", f"t{k}._value = o[{at[r.at]}]"]
            elif r.kind == "number":
                self.lines.append(f"t{k} = o[{at[r.at]}].item()")
            elif r.kind == "handle":
                self.lines.append(f"t{k} = h[{r.at}]")
            else:
                self.space[f"t{k}"] = r.value
        names = "".join(f"t{k}, " for k in range(len(s.results)))
        if s.spec is None:
            self.lines.append("return t0")
        elif _is_tuple(s):
            self.lines.append(f"return ({names})")
        else:
            self.lines.append(f"return unflatten(spec, ({names}))")
