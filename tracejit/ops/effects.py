"""Effects: what a program does beside computing values: `tj.print`, `tj.py_function`, run-time checks.

In: values, or a Python function. Out: text, whatever the function does, an exception. Eagerly they are plain Python.
Inside a compiled function they become ops that run at each call, in program order: such ops are `stateful`, so passes
neither drop nor merge nor fold them, and no kernel that may fail is moved across one.

What is to be written is worked out while tracing, as a `str.format` template with a place for each traced value; the
text is the one that eager code gives.

Read next: `debugging.py` (the assert_* family).
"""

from __future__ import annotations

import builtins
import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.errors import user_line
from tracejit.ir import Type
from tracejit.ops.core import as_tensor, cast, primitive
from tracejit.tensor import Number, Tensor, apply, recording, state, wrap
from tracejit.trees import flatten, unflatten

__all__ = ["print", "py_function"]


# -- text with traced values in it -------------------------------------------------------------------------------------
class _Place:
    """Stands for a traced value while text is made: every way of printing it leaves a mark."""

    def __init__(self, k: int, tensor: Tensor):
        self.k, self.shape, self.dtype, self.ndim = k, tensor.shape, tensor.dtype, tensor.ndim

    def __str__(self) -> str:
        return f"\0{self.k}!s\1"

    def __repr__(self) -> str:
        return f"\0{self.k}!r\1"

    def __format__(self, spec: str) -> str:
        return f"\0{self.k}:{spec}\1" if spec else f"\0{self.k}\1"


class Template:
    """Collects traced values that are printed; `text` gives the `str.format` template with a place for each."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.kinds: list[str] = []  # what is printed at run time: tensor, number (a Python number), array

    def place(self, x: Any) -> Any:
        """`x`, tensors in it replaced by what leaves marks."""
        leaves, spec = flatten(x)
        if not any(isinstance(leaf, Tensor) for leaf in leaves):
            return x
        return unflatten(spec, [self._leaf(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves])

    def _leaf(self, t: Tensor) -> Any:
        place = _Place(len(self.tensors), t)
        self.tensors.append(as_tensor(t))
        self.kinds.append("number" if isinstance(t, Number) else "array" if t._place else "tensor")
        if not t._place:
            return place
        shadow = copy.copy(t)  # a Variable says more than its value
        shadow._value = place  # type: ignore[assignment]
        return shadow

    def text(self, marked: str) -> str:
        """Marks, and mentions of traced values (from f-strings), as places."""
        trace: Any = state.trace
        while trace is not None:
            for mention in sorted(trace.mentions, key=len, reverse=True):  # one may be part of another
                if mention in marked:
                    tensor, spec = trace.mentions[mention]
                    place = self._leaf(tensor)
                    marked = marked.replace(mention, repr(place) if spec is None else format(place, spec))
            trace = trace.outer
        return marked.replace("{", "{{").replace("}", "}}").replace("\0", "{").replace("\1", "}")


def filled(text: str, kinds: Sequence[str], arrays: Sequence[np.ndarray]) -> str:
    """A template with the values in it."""
    return text.format(*(_shown(kind, a) for kind, a in zip(kinds, arrays, strict=True)))


def _shown(kind: str, array: np.ndarray) -> Any:
    return array.item() if kind == "number" else array if kind == "array" else wrap(array)


# -- print -------------------------------------------------------------------------------------------------------------
def _nothing(*_: Type, **__: Any) -> tuple[()]:
    return ()


def _stream(file: Any) -> Any:
    return getattr(sys, file) if isinstance(file, str) else file


def _print(*arrays: np.ndarray, text: str, kinds: tuple[str, ...], file: Any) -> tuple[()]:
    builtins.print(filled(text, kinds, arrays), end="", file=_stream(file))
    return ()


PRINT = primitive("print", "library", infer=_nothing, eager=_print, stateful=True, doc="Write text with values in it.")


def print(*values: Any, sep: str | None = " ", end: str | None = "\n", file: Any = None,
          format: str | None = None, flush: bool = False) -> None:
    """As Python's print, at each run of a compiled function, in program order.

    format: a `str.format` template for the values, as in format="loss {:.3f}".

    >>> from tracejit.ops.creation import constant
    >>> print("x is", constant([1.0, 2.0]))
    x is tj.Tensor([1. 2.], shape=(2,), dtype=float32)
    >>> print(constant(0.5), format="loss {:.3f}")
    loss 0.500
    """
    if state.trace is None:
        shown = values if format is None else (format.format(*values),)
        builtins.print(*shown, sep=sep, end=end, file=file, flush=flush)
        return
    template = Template()
    places = [template.place(v) for v in values]
    sep, end = " " if sep is None else sep, "\n" if end is None else end
    marked = (sep.join(map(str, places)) if format is None else format.format(*places)) + end
    stream = "stdout" if file is None or file is sys.stdout else "stderr" if file is sys.stderr else file
    text = template.text(marked)
    apply(PRINT, template.tensors, {"text": text, "kinds": tuple(template.kinds), "file": stream})


# -- checks ------------------------------------------------------------------------------------------------------------
_ERRORS: dict[str, type[Exception]] = {
    e.__name__: e for e in (AssertionError, FloatingPointError, ValueError, IndexError)
}


def _check(ok: np.ndarray, *arrays: np.ndarray, text: str | None, kinds: tuple[str, ...], error: str) -> tuple[()]:
    if not ok:
        raise _ERRORS[error](*([] if text is None else [filled(text, kinds, arrays)]))
    return ()


CHECK = primitive("check", "library", infer=_nothing, eager=_check, stateful=True,
                  doc="Raise an exception with this text unless a condition holds.")


def check(condition: Any, message: Any = None, error: str = "AssertionError") -> None:
    """Raise unless `condition` (a single truth value) holds: now, or at each run of a compiled function.

    message: the exception's argument, or a function of nothing that gives it; traced values in it are filled in when it
    is raised. This is what `assert` on a traced value becomes.
    """
    if state.trace is None or not isinstance(condition, Tensor):
        if not condition:
            found = message() if callable(message) else message
            raise _ERRORS[error](*([] if found is None else [found]))
        return
    if condition.size != 1:
        raise ValueError(f"assert: the condition has shape {condition.shape}, so its truth value is ambiguous; use "
                         f"all() or any() (at {user_line()})")
    found = message() if callable(message) else message
    template = Template()
    text = None if found is None else template.text(str(template.place(found)))
    ok = cast(as_tensor(condition).reshape(()), dtypes.bool_)
    apply(CHECK, (ok, *template.tensors), {"text": text, "kinds": tuple(template.kinds), "error": error})


# -- Python functions --------------------------------------------------------------------------------------------------
def _call_infer(*_: Type, function: Any, results: tuple[tuple[tuple[int, ...], str], ...], **__: Any) -> Any:
    return tuple(Type(shape, dtypes.as_dtype(dtype)) for shape, dtype in results)


def _call_eager(*arrays: np.ndarray, function: Callable[[list[Tensor]], list[np.ndarray]],
                results: tuple[tuple[tuple[int, ...], str], ...]) -> tuple[np.ndarray, ...]:
    with recording(None):
        return tuple(function([wrap(a.copy()) for a in arrays]))


PY_FUNCTION = primitive("py_function", "library", infer=_call_infer, eager=_call_eager, stateful=True,
                        doc="Call a Python function with concrete tensors.")


def py_function(f: Callable[..., Any], inputs: Any = (), output_specs: Any = None) -> Any:
    """f(*inputs), run by Python at each call with concrete tensors: it may do anything Python can.

    output_specs: the shape and dtype of each result (`tj.spec`), in the structure that f gives; None: f gives nothing.
    No gradient flows through; give it one with `custom_gradient`.

    >>> from tracejit.trace.signature import spec
    >>> py_function(lambda x: x.numpy() + 1, [2.0], spec((), "float32"))
    tj.Tensor(3.0, shape=(), dtype=float32)
    """
    inputs = inputs if isinstance(inputs, (list, tuple)) else (inputs,)
    leaves, spec = flatten(tuple(inputs))
    at = [k for k, x in enumerate(leaves) if isinstance(x, (Tensor, np.ndarray, np.generic, bool, int, float, complex))]
    name = getattr(f, "__name__", type(f).__name__)
    wanted, out_spec = ([], None) if output_specs is None else flatten(output_specs)
    for w in wanted:
        if not (hasattr(w, "shape") and hasattr(w, "dtype")) or None in w.shape:
            raise TypeError(f"py_function: output_specs holds {w!r}; give a tj.spec of known shape for each result")
    types = [Type(tuple(w.shape), dtypes.as_dtype(w.dtype)) for w in wanted]

    def run(tensors: list[Tensor]) -> list[np.ndarray]:
        given = list(leaves)
        for k, t in zip(at, tensors, strict=True):
            given[k] = t
        result = f(*unflatten(spec, given))
        if out_spec is None:
            return []
        found, found_spec = flatten(result)
        if found_spec != out_spec:
            raise TypeError(f"py_function: {name} gave {_plain(found_spec)}, but output_specs says {_plain(out_spec)}")
        return [_fitted(x, t, name) for x, t in zip(found, types, strict=True)]

    # constants are kept beside f: the function made here may be kept for long, and must not hold traced values
    tensors = [as_tensor(leaves[k]) for k in at]
    for k in at:
        leaves[k] = None
    results = tuple((t.shape, t.dtype.name) for t in types)
    out = apply(PY_FUNCTION, tensors, {"function": run, "results": results})
    return None if out_spec is None else unflatten(out_spec, out)


def _fitted(x: Any, wanted: Type, name: str) -> np.ndarray:
    if isinstance(x, (bool, int, float, complex, list, tuple)) and not isinstance(x, np.generic):
        array = np.asarray(x, wanted.dtype)
    else:
        array = np.asarray(x)
    if Type(array.shape, array.dtype) != wanted:
        given = Type(array.shape, array.dtype)
        raise TypeError(f"py_function: {name} gave {given!r}, but output_specs says {wanted!r}")
    return array


def _plain(spec: Any) -> str:
    return str(spec).removeprefix("PyTreeSpec(").split(", NoneIsLeaf")[0]
