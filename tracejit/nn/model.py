"""`Model`: a layer made of layers, which can be summarised, written to a file, and trained.

In: a subclass with a `call`, or a `Sequential`. Out: text, files, and what `training.py` makes of it.

Read next: `training.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracejit.nn.module import Layer, Module, children


class Model(Layer):
    """A layer made of layers.

    >>> from tracejit.nn.core import Dense
    >>> class Twice(Model):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.first, self.second = Dense(4, activation="relu"), Dense(1)
    ...     def call(self, x):
    ...         return self.second(self.first(x))
    >>> model = Twice()
    >>> model([[1.0, 2.0]]).shape, model.count_params()
    ((1, 1), 17)
    """

    def layer_shapes(self) -> dict[int, Any]:
        """The shapes of the results of layers below, by the layer's id, as far as they are known without a call."""
        return {}

    def summary(self, print_fn: Callable[[str], Any] = print) -> None:
        """Print a table of the layers, the shapes of their results and the numbers of their parameters.

        >>> from tracejit.nn.core import Dense
        >>> from tracejit.nn.sequential import Sequential
        >>> Sequential([Dense(3, input_shape=(4,)), Dense(2)]).summary()
        Sequential
        layer             result     parameters
        ---------------------------------------
        layers/0 (Dense)  (None, 3)          15
        layers/1 (Dense)  (None, 2)           8
        ---------------------------------------
        23 parameters (92 bytes), all trained
        """
        print_fn(_table(self))


def _table(model: Model) -> str:
    rows: list[tuple[str, str, str]] = []
    shapes = model.layer_shapes()

    def visit(module: Module, prefix: str, depth: int) -> None:
        for name, child in children(module):
            if isinstance(child, Model):
                shapes.update(child.layer_shapes())
            shape = shapes.get(id(child))
            built = not isinstance(child, Layer) or child.built
            count = f"{child.count_params():,}" if built else "not built"
            path = f"{'  ' * depth}{prefix}{name} ({type(child).__name__})"
            rows.append((path, "" if shape is None else str(shape), count))
            if children(child):
                visit(child, "", depth + 1)

    visit(model, "", 0)
    rows.insert(0, ("layer", "result", "parameters"))
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]
    line = "-" * len(lines[0])
    return "\n".join([type(model).__name__, lines[0], line, *lines[1:], line, _totals(model)])


def _totals(model: Model) -> str:
    total = model.count_params()
    size = sum(v.size * v.dtype.itemsize for v in model.variables)
    trained = sum(v.size for v in model.trainable_variables)
    share = "all trained" if trained == total else f"{trained:,} of them trained"
    return f"{total:,} parameters ({_bytes(size)}), {share}"


def _bytes(n: int) -> str:
    amount: float = n
    for unit in ("bytes", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
