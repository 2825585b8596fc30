"""The fast way into a program: a generated function that checks a plain call's arguments and runs one specialisation.

In: a `Specialization` whose leaves are the positional arguments themselves. Out: `shortcut(args, instance)`, which
gives the result, or `MISS` if this is not such a call. It does what `matches`, `gather`, `write_back` and `rebuild` of
the specialisation do, without loops: on small tensors a call is all overhead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.ops.random import drawing
from tracejit.tensor import Tensor
from tracejit.trace.signature import unflatten
from tracejit.trace.specialization import Specialization
from tracejit.trace.tracer import NUMBER_DTYPES

MISS = object()
PLAIN = ("output", "number", "static", "handle")  # results that need no work
Shortcut = Callable[[tuple[Any, ...], Any], Any]


def shortcut(s: Specialization, leaves: Sequence[Any]) -> Shortcut | None:
    """The shortcut for calls like the one with these leaves; None if they need more than the common things."""
    special = s.aliases is not None or s.numbers or s.passed or s.ties or s.in_place
    if special or any(r.kind not in PLAIN for r in s.results) or any(w.leaf >= 0 for w in s.writes):
        return None
    return _Writer(s, leaves).function()


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
        if not (all(self._leaf(k, x) for k, x in enumerate(self.leaves)) and self._hidden()):
            return None
        values = [*(f"v{k}" for k in self.s.leaves), *(f"w{k}" for k in range(len(self.s.hidden)))]
        self.lines += ["s.calls += 1", f"o = call(({''.join(f'{v}, ' for v in values)}))"]
        self.lines += [f"h[{w.hidden}]._value = o[{w.at}]" for w in self.s.writes]
        self._results()
        if self.s.draws:  # from where the handles are known
            start = self.lines.index("if h is None: return MISS") + 1
            self.space["drawing"] = drawing
            handles = ", ".join(f"h[{k}]" for k in self.s.draws)
            self.lines[start:] = [f"with drawing([{handles}]):", *(f"    {line}" for line in self.lines[start:])]
        source = "def shortcut(args, S):\n" + "".join(f"    {line}\n" for line in self.lines)
        exec(compile(source, "<tracejit shortcut>", "exec"), self.space)
        return self.space["shortcut"]  # type: ignore[no-any-return]

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

    def _hidden(self) -> bool:
        """Read and check what comes from outside; False if it is of an uncommon kind."""
        s = self.s
        if s.hidden or not s.watch.constant:
            self.lines += ["h = read(S)", "if h is None: return MISS"]
        for k, (c, (_, _, _, contents)) in enumerate(zip(s.hidden, s.expected)):
            if contents is not None or not isinstance(c.handle, Tensor) or not isinstance(c.handle._value, np.ndarray):
                return False
            self.space[f"c{k}"] = c.handle.__class__
            self.lines += [f"if h[{k}].__class__ is not c{k}: return MISS", f"w{k} = h[{k}]._value"]
            self._check(f"w{k}", c.handle._value)
        if s.writes and len(s.hidden) > 1:
            self.lines.append(f"if len(set(map(id, h))) != {len(s.hidden)}: return MISS")
        for w in s.writes:  # an argument that is the written handle would have to change with it
            if s.hidden[w.hidden].handle.__class__ is Tensor:
                tensors = [i for i, x in enumerate(self.leaves) if x.__class__ is Tensor]
                self.lines += [f"if a{i} is h[{w.hidden}]: return MISS" for i in tensors]
        return True

    def _results(self) -> None:
        """Wrap the outputs as the function's result."""
        s = self.s
        for k, r in enumerate(s.results):
            if r.kind == "output":
                self.lines += [f"t{k} = new(Tensor)", f"t{k}._value = o[{r.at}]"]
            elif r.kind == "number":
                self.lines.append(f"t{k} = o[{r.at}].item()")
            elif r.kind == "handle":
                self.lines.append(f"t{k} = h[{r.at}]")
            else:
                self.space[f"t{k}"] = r.value
        names = "".join(f"t{k}, " for k in range(len(s.results)))
        plain = tuple(range(len(s.results)))
        if s.spec is None:
            self.lines.append("return t0")
        elif unflatten(s.spec, plain) == plain:
            self.lines.append(f"return ({names})")
        else:
            self.lines.append(f"return unflatten(spec, ({names}))")
