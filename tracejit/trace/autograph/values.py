"""Values that only exist while control flow is traced: variables without a value, ways to leave a block.

In: nothing. Out: `Undefined`, which explains itself when it is used; `Outcome`, what a body did besides running to its
end.

Read next: `staging.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracejit.errors import TracerError, user_line


class Undefined:
    """Stands for a variable that has no single value after traced control flow. Any use is an error that says why."""

    __slots__ = ("_name", "_why")

    def __init__(self, name: str, why: str):
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_why", why)

    def why(self) -> str:
        return object.__getattribute__(self, "_why")  # type: ignore[no-any-return]

    def error(self) -> TracerError:
        name = object.__getattribute__(self, "_name")
        what = name if " " in name else f"'{name}'"  # "the result" of an expression has no name
        return TracerError(f"{what} is used at {user_line()}, but {self.why()}")

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise self.error()

    def __getattribute__(self, name: str) -> Any:
        if name in ("why", "error", "__class__", "_fail"):
            return object.__getattribute__(self, name)
        raise self.error()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = _fail
    __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __and__ = __rand__ = _fail
    __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __neg__ = _fail
    __pos__ = __abs__ = __invert__ = __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = __setitem__ = __call__ = _fail
    __eq__ = __ne__ = __hash__ = _fail  # type: ignore[assignment]
    __len__ = __iter__ = __bool__ = __int__ = __float__ = __index__ = __contains__ = __str__ = __format__ = _fail
    __array__ = __enter__ = __exit__ = __setattr__ = __repr__ = _fail  # type: ignore[assignment]


class Unset:
    """Marks a variable that has no value yet (Python would raise when it is read)."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset()


@dataclass(slots=True, eq=False)
class Outcome:
    """How a body left its block. Flags are Python bools, or traced ones where it depends on tensor values.

    raised: the body ends by an exception whenever it runs, so what it would leave behind does not matter.
    """

    returned: Any = False
    broke: Any = False
    continued: Any = False
    value: Any = UNSET
    raised: bool = False

    @property
    def certain(self) -> bool:
        """Whether the block is left for sure."""
        return self.raised or self.returned is True or self.broke is True or self.continued is True

    @property
    def flags(self) -> tuple[Any, Any, Any]:
        return self.returned, self.broke, self.continued


def Return(value: Any) -> Outcome:
    """The body returned `value`."""
    return Outcome(returned=True, value=value)


BREAK = Outcome(broke=True)
CONTINUE = Outcome(continued=True)
RAISED = Outcome(raised=True)
