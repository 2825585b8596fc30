"""`Sequential`: layers one after the other.

In: layers. Out: a model. If the first layer says what its input looks like (`input_shape=`, or an `Input`), each layer
is built as it is added; else at the first call.

Read next: `model.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tracejit.nn.model import Model
from tracejit.nn.module import Layer, traceable


class Sequential(Model):
    """Layers, each called with the result of the one before; other functions of a tensor may stand among them.

    >>> from tracejit.nn.core import Dense
    >>> model = Sequential([Dense(3, activation="relu", input_shape=(4,)), Dense(2)])
    >>> model([[1.0, 2.0, 3.0, 4.0]]).shape, model.count_params()
    ((1, 2), 23)
    """

    built = True  # its layers are built when they are called

    def __init__(self, layers: Iterable[Any] = (), *more: Any, **options: Any):
        super().__init__(**options)
        self._has_dtype = options.get("dtype") is not None
        self.layers: list[Any] = []
        if more or isinstance(layers, (dict, str)) or not isinstance(layers, Iterable):
            got = repr(layers) if not more else f"{len(more) + 1} arguments"
            raise TypeError(f"Sequential: layers must be given in one list, Sequential([...]), got {got}")
        for layer in layers:
            self.add(layer)

    def add(self, layer: Any) -> None:
        """Append a layer, or another function of a tensor."""
        if not callable(layer) or isinstance(layer, type):
            hint = f"; make one: {layer.__name__}(...)" if isinstance(layer, type) else ""
            at = len(self.layers)
            raise TypeError(f"Sequential: entry {at} must be a layer or a function of a tensor, got {layer!r}{hint}")
        if not self.layers and isinstance(layer, Layer):
            if self._input_shape is None:
                self._input_shape = layer._input_shape
            if not self._has_dtype:  # inputs are what the first layer takes
                self._dtype = layer._dtype
        self.layers.append(layer)
        if self._input_shape is not None:
            self.build((None, *self._input_shape))

    def pop(self) -> Any:
        """Take off the last layer and give it back."""
        if not self.layers:
            raise TypeError("Sequential: there are no layers")
        return self.layers.pop()

    def _shapes(self, shape: Any) -> Iterator[tuple[Any, Any]]:
        """Each layer with the shape of its input, as long as they are known."""
        for layer in self.layers:
            yield layer, shape
            try:
                shape = layer.compute_output_shape(shape)
            except (AttributeError, NotImplementedError):
                return

    def build(self, input_shape: Any) -> None:
        """Build the layers for inputs of that shape (None: any size), as far as their shapes are known ahead."""
        for layer, shape in self._shapes(tuple(input_shape)):
            if isinstance(layer, Layer):
                layer.build_for(shape)

    def layer_shapes(self) -> dict[int, Any]:
        found: dict[int, Any] = {}
        if self._input_shape is not None:
            for layer, shape in self._shapes((None, *self._input_shape)):
                try:
                    found[id(layer)] = layer.compute_output_shape(shape)
                except (AttributeError, NotImplementedError):
                    return found
            if self.layers:
                found[id(self)] = found[id(self.layers[-1])]
        return found

    def call(self, x: Any, training: bool = False, mask: Any = None) -> Any:
        for layer in self.layers:
            if isinstance(layer, Layer):
                following = layer.compute_mask(x, mask)
                x = layer(x, mask=mask) if mask is not None and layer._takes_mask else layer(x)
                mask = following
            else:
                x, mask = traceable(layer)(x), None
        return x

    @property
    def _makes_mask(self) -> bool:  # type: ignore[override]
        return any(getattr(layer, "_makes_mask", False) for layer in self.layers)

    def compute_mask(self, x: Any, mask: Any = None) -> Any:
        looking = [k for k, layer in enumerate(self.layers) if getattr(layer, "_makes_mask", False)]
        for k, layer in enumerate(self.layers):
            mask = layer.compute_mask(x, mask) if isinstance(layer, Layer) else None
            if looking and k < looking[-1]:  # a later one looks at its input
                x = layer(x)
        return mask

    def compute_output_shape(self, input_shape: Any) -> Any:
        shape = input_shape
        for layer in self.layers:
            if not hasattr(layer, "compute_output_shape"):
                raise NotImplementedError(f"{self.name}: the result of {layer!r} is known only from a call")
            shape = layer.compute_output_shape(shape)
        return shape

    # -- as a list -----------------------------------------------------------------------------------------------------
    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)

    def __getitem__(self, k: Any) -> Any:
        return Sequential(self.layers[k]) if isinstance(k, slice) else self.layers[k]

    def __bool__(self) -> bool:
        return True
