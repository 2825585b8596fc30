"""Recurrent layers: a cell, applied to one step after another, and what goes around it.

In: sequences (batch, steps, features). Out: what the cell gives at the last step, or at each. Names, defaults, layouts
of weights and the order of gates are those of Keras 3.

All built-in cells read the inputs of all steps with one matrix product before the loop; the loop is `tj.scan`, so a
compiled layer is a loop of fused kernels, whatever the number of steps.

Formulas: Hochreiter and Schmidhuber (1997), with the forget gate of Gers et al. (1999); Cho et al. (2014).

Read next: `attention.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracejit.nn import activations, initializers, regularizers
from tracejit.nn.core import Weighted, described, last_size, tail
from tracejit.nn.module import Layer, as_inputs, traceable
from tracejit.nn.options import number, whole
from tracejit.ops import core
from tracejit.ops.control import scan
from tracejit.ops.creation import zeros
from tracejit.ops.dropout import dropout
from tracejit.ops.elementwise import where
from tracejit.ops.linalg import matmul
from tracejit.ops.movement import transpose
from tracejit.ops.shaping import concat, flip

States = Sequence[Any]


# -- cells -------------------------------------------------------------------------------------------------------------
class _Cell(Weighted):
    """One step: call(inputs, states) gives (output, new states).

    Variables: kernel (features, gates * units), recurrent_kernel (units, gates * units), bias.
    """

    gates = 1

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        **options: Any,
    ):
        super().__init__(
            activation, use_bias, kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, **options
        )
        self.units = whole(self, "units", units)
        self.recurrent_initializer = initializers.get(recurrent_initializer)
        self.recurrent_regularizer = regularizers.get(recurrent_regularizer)

    @property
    def state_size(self) -> tuple[int, ...]:
        """The sizes of the states; the first one is the output."""
        return (self.units,)

    def build(self, input_shape: Any) -> None:
        width = self.gates * self.units
        self.add_kernel((last_size(self, input_shape), width))
        self.recurrent_kernel = self.add_weight(
            (self.units, width), self.recurrent_initializer, name="recurrent_kernel",
            regularizer=self.recurrent_regularizer,
        )  # fmt: skip
        self.add_bias(self._bias_shape())

    def _bias_shape(self) -> tuple[int, ...]:
        return (self.gates * self.units,)

    def read(self, x: Any) -> Any:
        """What the inputs of one step, or of all, add to the gates."""
        if x.shape[-1] != self.kernel.shape[0]:
            raise ValueError(f"the last dim must have size {self.kernel.shape[0]}, got shape {x.shape}")
        y = matmul(x, self.kernel)
        return y if self.bias is None else y + self._input_bias()

    def _input_bias(self) -> Any:
        return self.bias

    def step(self, read: Any, states: States) -> tuple[Any, ...]:
        """The new states, from what was read of the inputs."""
        raise NotImplementedError

    def call(self, x: Any, states: States) -> tuple[Any, list[Any]]:
        if len(states) != len(self.state_size):
            raise ValueError(f"states must hold {len(self.state_size)} states, got {len(states)}")
        new = self.step(self.read(x), states)
        return new[0], list(new)

    def _parts(self, x: Any) -> list[Any]:
        """The gates of x."""
        n = self.units
        return [x[..., k * n : (k + 1) * n] for k in range(self.gates)]

    def _options(self) -> str:
        name = self._activation_name()
        return f"{self.units}" + tail(described(activation=None if name == "tanh" else name))


class SimpleRNNCell(_Cell):
    """h' = activation(x kernel + h recurrent_kernel + bias). States: [h]."""

    def step(self, read: Any, states: States) -> tuple[Any, ...]:
        return (self.activated(read + matmul(states[0], self.recurrent_kernel)),)


class _GatedCell(_Cell):
    """A cell with gates, which have an activation of their own."""

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        **options: Any,
    ):
        super().__init__(units, activation, use_bias, **options)
        self.recurrent_activation = activations.get(recurrent_activation)

    def gate(self, x: Any) -> Any:
        """The activation of gates."""
        return traceable(self.recurrent_activation)(x)


class LSTMCell(_GatedCell):
    """Gates i, f, c, o in this order. States: [h, c].

    c' = f c + i tanh(..), h' = o tanh(c'). unit_forget_bias: the bias of f starts at 1.
    """

    gates = 4

    def __init__(self, units: int, *args: Any, unit_forget_bias: bool = True, **options: Any):
        super().__init__(units, *args, **options)
        self.unit_forget_bias = unit_forget_bias

    @property
    def state_size(self) -> tuple[int, ...]:
        return (self.units, self.units)

    def first_bias(self) -> Any:
        first = self.bias_initializer
        if not self.unit_forget_bias:
            return first
        n = self.units

        def with_open_gate(shape: tuple[int, ...], dtype: np.dtype) -> Any:
            parts = first((n,), dtype), core.full(1.0, (n,), dtype), first((2 * n,), dtype)
            return concat([core.as_tensor(p) for p in parts])

        return with_open_gate

    def step(self, read: Any, states: States) -> tuple[Any, ...]:
        h, c = states
        i, f, new, o = self._parts(read + matmul(h, self.recurrent_kernel))
        c = self.gate(f) * c + self.gate(i) * self.activated(new)
        return self.gate(o) * self.activated(c), c


class GRUCell(_GatedCell):
    """Gates z, r, h in this order. States: [h].

    h' = z h + (1 - z) activation(..); the reset gate r is applied after the product with the recurrent kernel
    (`reset_after`, bias (2, 3 * units)) or before (bias (3 * units,)).
    """

    gates = 3

    def __init__(self, units: int, *args: Any, reset_after: bool = True, **options: Any):
        super().__init__(units, *args, **options)
        self.reset_after = reset_after

    def _bias_shape(self) -> tuple[int, ...]:
        width = self.gates * self.units
        return (2, width) if self.reset_after else (width,)

    def _input_bias(self) -> Any:
        return self.bias[0] if self.reset_after else self.bias  # type: ignore[index]

    def step(self, read: Any, states: States) -> tuple[Any, ...]:
        h, n = states[0], self.units
        z, r, new = self._parts(read)
        if self.reset_after:
            again = matmul(h, self.recurrent_kernel)
            if self.bias is not None:
                again = again + self.bias[1]
            z_again, r_again, new_again = self._parts(again)
            z, r = self.gate(z + z_again), self.gate(r + r_again)
            new = self.activated(new + r * new_again)
        else:
            kernel = self.recurrent_kernel
            again = matmul(h, kernel[:, : 2 * n])
            z, r = self.gate(z + again[..., :n]), self.gate(r + again[..., n:])
            new = self.activated(new + matmul(r * h, kernel[:, 2 * n :]))
        return (z * h + (1 - z) * new,)


# -- layers ------------------------------------------------------------------------------------------------------------
class RNN(Layer):
    """A cell applied to each step of (batch, steps, features), from states of zeros or `initial_state`.

    cell: a layer whose call(inputs, states) gives (output, new states), with the sizes of its states as `state_size`.

    Gives the last output (batch, units), with `return_sequences` all of them (batch, steps, units); with `return_state`
    a tuple of it and the last states. go_backwards: from the last step to the first, outputs in that order. mask
    (batch, steps): where it is false, states and output stay as they were.

    >>> import numpy as np
    >>> y, h = RNN(SimpleRNNCell(3), return_sequences=True, return_state=True)(np.ones((2, 5, 4)))
    >>> y.shape, h.shape
    ((2, 5, 3), (2, 3))
    """

    def __init__(
        self,
        cell: Any,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        **options: Any,
    ):
        super().__init__(**options)
        if not hasattr(cell, "state_size"):
            raise TypeError(f"RNN: a cell needs the sizes of its states as `state_size`; {cell!r} has none")
        self.cell = cell
        self.return_sequences, self.return_state, self.go_backwards = return_sequences, return_state, go_backwards
        self.dropout = number(self, "dropout", dropout, "[0, 1]")
        self.recurrent_dropout = number(self, "recurrent_dropout", recurrent_dropout, "[0, 1]")

    def build(self, input_shape: Any) -> None:
        if not isinstance(input_shape, tuple) or len(input_shape) != 3:
            raise ValueError(f"{self.name}: input must be (batch, steps, features), got shape {input_shape}")
        if isinstance(self.cell, Layer):
            self.cell.build_for((input_shape[0], input_shape[2]))

    def sizes(self) -> tuple[int, ...]:
        """The sizes of the cell's states."""
        size = self.cell.state_size
        return (size,) if isinstance(size, int) else tuple(size)

    def call(self, x: Any, mask: Any = None, initial_state: Any = None, training: bool = False) -> Any:
        if x.ndim != 3:
            raise ValueError(f"input must be (batch, steps, features), got shape {x.shape}")
        batch = x.shape[0]
        states = self._first_states(initial_state, batch, x.dtype)
        if training and self.dropout:
            x = dropout(x, self.dropout, noise_shape=(batch, 1, x.shape[2]))
        keep = None
        if training and self.recurrent_dropout:  # the same units at all steps
            keep = dropout(core.full(1.0, states[0].shape, x.dtype), self.recurrent_dropout)
        rows: Any = transpose(x, (1, 0, 2))
        cell, quick = self.cell, isinstance(self.cell, _Cell)
        if quick:
            rows = cell.read(rows)
        real = None if mask is None else transpose(core.as_tensor(mask).astype("bool"), (1, 0))
        if real is not None and real.shape != rows.shape[:2]:
            raise ValueError(f"mask must be (batch, steps) = {x.shape[:2]}, got shape {real.shape[::-1]}")
        many = self.return_sequences
        # the last output: a built-in cell's first state, but for masked steps before the first real one
        last = None if quick and real is None else self._first_output(cell, x, states)

        def step(carry: Any, row: Any) -> Any:
            states, last = carry
            row, now = row if real is not None else (row, None)
            used = [states[0] * keep, *states[1:]] if keep is not None else states
            if quick:
                new = cell.step(row, used)
                out = new[0]
            else:
                out, new = cell(row, list(used))
            new = list(new) if isinstance(new, (list, tuple)) else [new]
            if now is not None:
                now = now[:, None]
                new = [where(now, a, b) for a, b in zip(new, states)]
                out = where(now, out, last)
            return (new, None if last is None else out), out if many else None

        rows = rows if real is None else (rows, real)
        (states, last), outs = scan(step, (states, last), rows, reverse=self.go_backwards)
        if many:
            y = transpose(outs, (1, 0, *range(2, outs.ndim)))
            y = flip(y, axis=1) if self.go_backwards else y
        else:
            y = states[0] if last is None else last
        return (y, *states) if self.return_state else y

    _makes_mask = False

    def compute_mask(self, x: Any, mask: Any = None) -> Any:
        return mask if self.return_sequences else None

    def _first_states(self, given: Any, batch: int, dtype: np.dtype) -> list[Any]:
        sizes = self.sizes()
        if given is None:
            return [zeros((batch, n), dtype) for n in sizes]
        found = list(given) if isinstance(given, (list, tuple)) else [given]
        if len(found) != len(sizes):
            raise ValueError(f"initial_state must hold {len(sizes)} states, got {len(found)}")
        found = [as_inputs(s, dtype) for s in found]
        for s, n in zip(found, sizes):
            if s.shape != (batch, n):
                raise ValueError(f"initial_state must hold shapes {[(batch, n) for n in sizes]}, got {s.shape}")
        return found

    def _first_output(self, cell: Any, x: Any, states: list[Any]) -> Any:
        """Zeros of an output's shape."""
        if isinstance(cell, _Cell):
            return zeros((x.shape[0], cell.units), x.dtype)
        size = getattr(cell, "output_size", self.sizes()[0])
        return zeros((x.shape[0], size), x.dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        batch, steps, _ = input_shape
        sizes = self.sizes()
        out = getattr(self.cell, "output_size", sizes[0])
        y = (batch, steps, out) if self.return_sequences else (batch, out)
        return [y, *((batch, n) for n in sizes)] if self.return_state else y

    def _flags(self) -> dict[str, Any]:
        names = ("return_sequences", "return_state", "go_backwards", "dropout", "recurrent_dropout")
        return {k: getattr(self, k) for k in names if getattr(self, k)}

    def _options(self) -> str:
        return described(**self._flags())


class _BuiltIn(RNN):
    """A recurrent layer with its own cell: options of both."""

    cell_class: type[_Cell]
    _OWN = ("return_sequences", "return_state", "go_backwards", "dropout", "recurrent_dropout")
    _LAYER = ("trainable", "name", "dtype", "input_shape")

    def __init__(self, units: int, *args: Any, **options: Any):
        own = {k: options.pop(k) for k in self._OWN if k in options}
        layer = {k: options.pop(k) for k in self._LAYER if k in options}
        cell = self.cell_class(units, *args, dtype=layer.get("dtype"), **options)
        super().__init__(cell, **own, **layer)
        self.units = units

    def _options(self) -> str:
        return f"{self.units}" + tail(described(**self._flags()))


class SimpleRNN(_BuiltIn):
    """h' = activation(x kernel + h recurrent_kernel + bias); options of `SimpleRNNCell` and `RNN`.

    >>> import numpy as np
    >>> SimpleRNN(3)(np.ones((2, 5, 4))).shape
    (2, 3)
    """

    cell_class = SimpleRNNCell


class LSTM(_BuiltIn):
    """Long short-term memory; options of `LSTMCell` and `RNN`. States: [h, c].

    >>> import numpy as np
    >>> layer = LSTM(3, return_sequences=True)
    >>> layer(np.ones((2, 5, 4))).shape, [v.shape for v in layer.variables]
    ((2, 5, 3), [(4, 12), (3, 12), (12,)])
    """

    cell_class = LSTMCell


class GRU(_BuiltIn):
    """Gated recurrent unit; options of `GRUCell` and `RNN`.

    >>> import numpy as np
    >>> layer = GRU(3)
    >>> layer(np.ones((2, 5, 4))).shape, [v.shape for v in layer.variables]
    ((2, 3), [(4, 9), (3, 9), (2, 9)])
    """

    cell_class = GRUCell


class Bidirectional(Layer):
    """A recurrent layer, and another that goes backwards; their outputs are joined ("concat", "sum", "mul", "ave"), or
    given as a tuple (None). The second one is a copy of the first, with weights of its own, or `backward_layer`.

    >>> import numpy as np
    >>> Bidirectional(LSTM(3, return_sequences=True))(np.ones((2, 5, 4))).shape
    (2, 5, 6)
    """

    def __init__(
        self, layer: RNN, merge_mode: str | None = "concat", backward_layer: RNN | None = None, **options: Any
    ):
        super().__init__(**options)
        if not isinstance(layer, RNN):
            raise TypeError(f"Bidirectional: needs a recurrent layer, got {layer!r}")
        if layer.built and backward_layer is None:
            raise ValueError("Bidirectional: the layer is built already; give a new one, or a backward_layer")
        if merge_mode not in ("concat", "sum", "mul", "ave", None):
            raise ValueError(f"Bidirectional: merge_mode must be 'concat', 'sum', 'mul', 'ave' or None, "
                             f"got {merge_mode!r}")  # fmt: skip
        self.merge_mode = merge_mode
        self.forward_layer = layer
        if backward_layer is not None and not isinstance(backward_layer, RNN):
            raise TypeError(f"Bidirectional: backward_layer must be a recurrent layer, got {backward_layer!r}")
        if backward_layer is None:
            backward_layer = copy.deepcopy(layer)
            backward_layer.go_backwards = not layer.go_backwards
        self.backward_layer = backward_layer

    def build(self, input_shape: Any) -> None:
        self.forward_layer.build_for(input_shape)
        self.backward_layer.build_for(input_shape)

    def call(self, x: Any, mask: Any = None, initial_state: Any = None, training: bool = False) -> Any:
        half = None if initial_state is None else len(initial_state) // 2
        states = (None, None) if half is None else (initial_state[:half], initial_state[half:])
        a = self.forward_layer(x, mask=mask, initial_state=states[0], training=training)
        b = self.backward_layer(x, mask=mask, initial_state=states[1], training=training)
        kept: tuple[Any, ...] = ()
        if self.forward_layer.return_state:
            (a, *first), (b, *second) = a, b
            kept = (*first, *second)
        if self.forward_layer.return_sequences:
            b = flip(b, axis=1)
        y = self._merged(a, b)
        return (y, *kept) if kept else y

    _makes_mask = False

    def compute_mask(self, x: Any, mask: Any = None) -> Any:
        return self.forward_layer.compute_mask(x, mask)

    def _merged(self, a: Any, b: Any) -> Any:
        if self.merge_mode == "concat":
            return concat([a, b], axis=-1)
        if self.merge_mode == "sum":
            return a + b
        if self.merge_mode == "ave":
            return (a + b) / 2
        return a * b if self.merge_mode == "mul" else (a, b)

    def compute_output_shape(self, input_shape: Any) -> Any:
        shape = self.forward_layer.compute_output_shape(input_shape)
        y, kept = (shape[0], shape[1:]) if isinstance(shape, list) else (shape, [])
        if self.merge_mode == "concat":
            y = (*y[:-1], None if y[-1] is None else 2 * y[-1])
        return [y, *kept, *kept] if kept else (y if self.merge_mode else [y, y])

    def _options(self) -> str:
        return described(merge_mode=self.merge_mode)
