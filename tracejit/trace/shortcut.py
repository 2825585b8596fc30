"""The fast way into a program: for one specialisation, a generated function that checks a plain call's arguments and
runs it.

In: a `Specialization` whose leaves are the positional arguments themselves. Out: `shortcut(args, instance)`, which
gives the result, or
`MISS` if this is not such a call. It does what `matches`, `gather` and `deliver` of the specialisation do, without
loops: on small
tensors a call is all overhead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracejit.tensor import Tensor
from tracejit.trace.specialization import Specialization
from tracejit.trace.tracer import NUMBER_DTYPES

MISS = object()
Shortcut = Callable[[tuple[Any, ...], Any], Any]


def shortcut(s: Specialization, leaves: Sequence[Any]) -> Shortcut | None:
    """The shortcut for calls like the one with these leaves; None if it would have to do more than the common
    things."""
    if (
        s.writes
        or s.aliases is not None
        or s.numbers
        or s.passed
        or s.spec is not None
        or any(r.kind != "output" for r in s.results)
    ):
        return None
    space: dict[str, Any] = {
        "MISS": MISS,
        "Tensor": Tensor,
        "ndarray": np.ndarray,
        "new": object.__new__,
        "array": np.array,
        "s": s,
        "call": s.program.call,
        "read": s.watch.read,
    }
    used = {k: f"v{n}" for n, k in enumerate(s.leaves)}
    lines = [
        f"if len(args) != {len(leaves)}: return MISS",
        f"{''.join(f'a{k}, ' for k in range(len(leaves)))} = args" if leaves else "",
    ]

    def check(value: str, key: str, x: np.ndarray) -> str:
        space[f"{key}_shape"], space[f"{key}_dtype"], space[f"{key}_strides"] = x.shape, x.dtype, x.strides
        layout = f"not {value}.flags.c_contiguous" if x.flags.c_contiguous else f"{value}.strides != {key}_strides"
        return (
            f"if {value}.__class__ is not ndarray or {value}.shape != {key}_shape or {value}.dtype is not {key}_dtype "
            f"or {layout}: return MISS"
        )

    for k, x in enumerate(leaves):
        value = used.get(k, "_")
        if x.__class__ is Tensor:
            lines += [
                f"if a{k}.__class__ is not Tensor: return MISS",
                f"{value} = a{k}._value",
                check(value, f"a{k}", x._value),  # type: ignore[arg-type]
            ]
        elif x.__class__ is np.ndarray and x.flags.aligned and x.dtype.isnative:
            lines += [f"{value} = a{k}", check(value, f"a{k}", x), f"if not {value}.flags.aligned: return MISS"]
        elif x.__class__ in NUMBER_DTYPES:
            limits = f" or not {-(1 << 63)} <= a{k} < {1 << 63}" if x.__class__ is int else ""
            space[f"number{k}"] = np.dtype(NUMBER_DTYPES[x.__class__])
            lines += [
                f"if a{k}.__class__ is not {x.__class__.__name__}{limits}: return MISS",
                f"{value} = array(a{k}, number{k})" if k in used else "",
            ]
        else:
            return None
    values = [used[k] for k in s.leaves]
    if not s.watch.constant or s.hidden:
        lines += ["h = read(S)", "if h is None: return MISS"]
    for k, (c, (_, _, _, contents)) in enumerate(zip(s.hidden, s.expected)):
        if contents is not None or not isinstance(c.handle, Tensor) or not isinstance(c.handle._value, np.ndarray):
            return None
        space[f"h{k}_class"] = c.handle.__class__
        lines += [
            f"h{k} = h[{k}]",
            f"if h{k}.__class__ is not h{k}_class: return MISS",
            f"h{k} = h{k}._value",
            check(f"h{k}", f"h{k}", c.handle._value),
        ]
        values.append(f"h{k}")
    lines += [
        "s.calls += 1",
        f"o = call(({''.join(f'{v}, ' for v in values)}))",
        "t = new(Tensor)",
        f"t._value = o[{s.results[0].at}]",
        "return t",
    ]
    source = "def shortcut(args, S):\n" + "".join(f"    {line}\n" for line in lines if line)
    exec(compile(source, "<tracejit shortcut>", "exec"), space)
    return space["shortcut"]  # type: ignore[no-any-return]
