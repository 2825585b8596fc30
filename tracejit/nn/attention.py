"""Attention between sequences, as a layer.

In: queries (batch, length, features), values and keys. Out: for each query a mean of values. Names, defaults and
layouts of weights are those of Keras 3.

Read next: `sequential.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tracejit.nn import initializers
from tracejit.nn.core import Shape, described, last_size, tail
from tracejit.nn.module import Layer, as_inputs, shapes
from tracejit.nn.options import number, shape, whole
from tracejit.ops.attention import scaled_dot_product_attention
from tracejit.ops.core import as_tensor
from tracejit.ops.creation import arange
from tracejit.ops.dropout import dropout
from tracejit.ops.elementwise import where
from tracejit.ops.linalg import matmul
from tracejit.ops.movement import reshape, transpose
from tracejit.ops.statistics import softmax


class _Heads(Layer):
    """A dense layer to (..., heads, size), or with `joins` from it. Variables: kernel, bias."""

    def __init__(
        self, shape: Sequence[int], joins: int, use_bias: bool, kernel_initializer: Any, bias_initializer: Any,
        **options: Any,
    ):  # fmt: skip
        super().__init__(**options)
        self.shape, self.joins, self.use_bias = tuple(shape), joins, use_bias
        self.kernel_initializer, self.bias_initializer = kernel_initializer, bias_initializer

    def build(self, input_shape: Any) -> None:
        inputs = tuple(input_shape[len(input_shape) - self.joins :])
        self.kernel = self.add_weight((*inputs, *self.shape), self.kernel_initializer, name="kernel")
        self.bias = self.add_weight(self.shape, self.bias_initializer, name="bias") if self.use_bias else None

    def call(self, x: Any) -> Any:
        outer = x.shape[: x.ndim - self.joins]
        inner = math.prod(self.kernel.shape[: self.joins])
        y = matmul(reshape(x, (*outer, inner)), reshape(self.kernel, (inner, math.prod(self.shape))))
        if self.bias is not None:
            y = y + reshape(self.bias, (math.prod(self.shape),))
        return reshape(y, (*outer, *self.shape))


class MultiHeadAttention(Layer):
    """For each query, and in each of `num_heads` subspaces of size `key_dim`, the mean of the values, weighted by the
    softmax of the products of query and keys; the heads are then joined by a dense layer. Vaswani et al. (2017).

    call(query, value, key=None, ...): query (batch, L, features), value and key (batch, S, features); key is value if
    not given. query_mask (batch, L), value_mask and key_mask (batch, S): which positions are real. attention_mask
    (batch, L, S) or (batch, heads, L, S): which key each query may see. use_causal_mask: only earlier ones. Gives
    (batch, L, output_shape or features of the query), and with return_attention_scores the weights
    (batch, heads, L, S) too.

    Submodules query, key, value, output, each with kernel and bias: (features, heads, size) and (heads, size); of the
    output (heads, size, features) and (features,).

    >>> import numpy as np
    >>> x = np.ones((2, 5, 8))
    >>> MultiHeadAttention(2, 4)(x, x, use_causal_mask=True).shape
    (2, 5, 8)
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | Sequence[int] | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **options: Any,
    ):
        super().__init__(**options)
        self.num_heads, self.key_dim = whole(self, "num_heads", num_heads), whole(self, "key_dim", key_dim)
        self.value_dim = key_dim if value_dim is None else whole(self, "value_dim", value_dim)
        self.dropout, self.use_bias = number(self, "dropout", dropout, "[0, 1]"), use_bias
        sizes = (output_shape,) if isinstance(output_shape, int) else output_shape
        self.output_shape: Any = None if sizes is None else shape(self, "output_shape", sizes)
        first = {"kernel_initializer": kernel_initializer, "bias_initializer": bias_initializer}
        self.initializers = {k: initializers.get(v) for k, v in first.items()}

    def shapes_for_build(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        query = shapes(args[0])
        value = args[1] if len(args) > 1 else kwargs.get("value")
        if value is None:
            raise TypeError("it is called with query and value, and key if that is another")
        key = args[2] if len(args) > 2 else kwargs.get("key")
        found = tuple(as_tensor(value).shape)
        return query, found, found if key is None else tuple(as_tensor(key).shape)

    def build(self, input_shape: Any) -> None:
        query, value, key = input_shape if isinstance(input_shape[0], (tuple, list)) else (input_shape,) * 3

        def heads(size: int, shape: Any) -> _Heads:
            options: dict[str, Any] = {**self.initializers, "use_bias": self.use_bias, "dtype": self.dtype}
            made = _Heads((self.num_heads, size), 1, **options)
            last_size(self, shape)
            made.build_for(shape)
            return made

        self.query = heads(self.key_dim, query)
        self.key = heads(self.key_dim, key)
        self.value = heads(self.value_dim, value)
        shape = self.output_shape or (query[-1],)
        self.output = _Heads(tuple(shape), 2, use_bias=self.use_bias, dtype=self.dtype, **self.initializers)
        self.output.build_for((None, self.num_heads, self.value_dim))

    def call(
        self,
        query: Any,
        value: Any,
        key: Any = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool = False,
        use_causal_mask: bool = False,
    ) -> Any:
        query, value = as_inputs(query, self.dtype), as_inputs(value, self.dtype)
        key = value if key is None else as_inputs(key, self.dtype)
        for name, x in (("query", query), ("value", value), ("key", key)):
            if x.ndim != 3:
                raise ValueError(f"{name} must be (batch, positions, features), got shape {x.shape}")
            if x.shape[0] != query.shape[0]:
                raise ValueError(f"{name} of shape {x.shape} has another batch than query of shape {query.shape}")
        # (batch, heads, length, size)
        q = transpose(self.query(query), (0, 2, 1, 3))
        k = transpose(self.key(key), (0, 2, 1, 3))
        v = transpose(self.value(value), (0, 2, 1, 3))
        mask = _joint_mask(query_mask, value_mask, key_mask, attention_mask)
        rate = self.dropout if training else 0.0
        weights = None
        if return_attention_scores:
            weights = _weights(q, k, mask, use_causal_mask)
            weights = dropout(weights, rate) if rate else weights
            found = matmul(weights, v)
        else:
            found = scaled_dot_product_attention(q, k, v, mask, is_causal=use_causal_mask, dropout=rate)
        out = self.output(transpose(found, (0, 2, 1, 3)))
        return (out, weights) if return_attention_scores else out

    def compute_output_shape(self, input_shape: Any) -> Shape:
        query = input_shape[0] if isinstance(input_shape[0], (tuple, list)) else input_shape
        return (*query[:-1], *(self.output_shape or (query[-1],)))

    def _options(self) -> str:
        value = None if self.value_dim == self.key_dim else self.value_dim
        return f"{self.num_heads}, {self.key_dim}" + tail(described(value_dim=value, dropout=self.dropout or None))


def _joint_mask(query_mask: Any, value_mask: Any, key_mask: Any, attention_mask: Any) -> Any:
    """One mask that broadcasts to (batch, heads, L, S); None if there is none."""
    found: Any = None

    def add(mask: Any) -> None:
        nonlocal found
        found = mask if found is None else found & mask

    for mask in (value_mask, key_mask):
        if mask is not None:
            add(as_tensor(mask).astype("bool")[:, None, None, :])
    if query_mask is not None:
        add(as_tensor(query_mask).astype("bool")[:, None, :, None])
    if attention_mask is not None:
        m = as_tensor(attention_mask).astype("bool")
        add(m[:, None] if m.ndim == 3 else m)
    return found


def _weights(q: Any, k: Any, mask: Any, causal: bool) -> Any:
    """The weights of attention, whole: zero in rows that see nothing."""
    scores = matmul(q, transpose(k, (0, 1, 3, 2))) / math.sqrt(q.shape[-1])
    if causal:
        rows, columns = q.shape[-2], k.shape[-2]
        earlier = arange(rows)[:, None] >= arange(columns)  # type: ignore[index]
        mask = earlier if mask is None else mask & earlier
    if mask is None:
        return softmax(scores)
    return where(mask, softmax(where(mask, scores, -1e9)), 0.0)
