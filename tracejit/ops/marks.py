"""Ops that give back their input, and matter only to gradients or to the order of work.

In: a tensor. Out: a new value object with the same elements (eagerly a view: nothing is copied).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracejit.ir import Type
from tracejit.lower.index import Index, Part
from tracejit.ops.core import elementwise, primitive, same

identity = elementwise("identity", arity=1, dtype=same, eager=lambda x: x.view(), scalar=lambda x: x, domain=(-2, 2),
                       partials=lambda y, x: 1, doc="The same values; a new name for a gradient to be taken by.")

stop_gradient = elementwise("stop_gradient", arity=1, dtype=same, eager=lambda x: x.view(), scalar=lambda x: x,
                            vjp=lambda g, y, x: (None,), doc="The same values; no gradient flows through.")


def _after_index(coords: Sequence[Index], types: Sequence[Type]) -> list[Part]:
    return [Part(0, tuple(coords))]


def _after_vjp(g: Any, y: Any, x: Any, event: Any) -> tuple[Any, None]:
    return g, None


def _after_jvp(tangents: Sequence[Any], y: Any, x: Any, event: Any) -> Any:
    return tangents[0]


# `after(x, event)` keeps a recomputation apart from the first computation: it depends on `event` (a cotangent), so
# the two are not merged, and it is not started before `event` is there.
AFTER = primitive("after", "movement", infer=lambda x, event: x, eager=lambda x, event: x.view(), index=_after_index,
                  vjp=_after_vjp, jvp=_after_jvp, doc="x, computed no earlier than the second input.")
