"""What layers compute, as plain functions of tensors: `tj.nn.layer_norm(x, scale, offset)`.

In: tensors, parameters among them. Out: tensors. Nothing here keeps state; the layers that do are in the other files of
this folder. The functions live with the ops; here are their names only.
"""

from __future__ import annotations

from tracejit.ops.attention import scaled_dot_product_attention
from tracejit.ops.convolution import (
    conv1d,
    conv1d_transpose,
    conv2d,
    conv2d_transpose,
    conv3d,
    conv3d_transpose,
    conv_transpose,
    depthwise_conv1d,
    depthwise_conv2d,
)
from tracejit.ops.dropout import dropout
from tracejit.ops.elementwise import relu
from tracejit.ops.embedding import embedding
from tracejit.ops.normalization import batch_norm, group_norm, layer_norm, moments, rms_norm
from tracejit.ops.pooling import avg_pool1d, avg_pool2d, avg_pool3d, max_pool1d, max_pool2d, max_pool3d
from tracejit.ops.selection import one_hot
from tracejit.ops.special import gelu, log_sigmoid, mish, sigmoid, silu, softplus
from tracejit.ops.statistics import log_softmax, logsumexp, softmax

__all__ = [
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "conv1d", "conv1d_transpose", "conv2d", "conv2d_transpose", "conv3d",
    "conv3d_transpose", "conv_transpose", "depthwise_conv1d", "depthwise_conv2d", "max_pool1d", "max_pool2d",
    "max_pool3d",
    "batch_norm", "dropout", "embedding", "gelu", "group_norm", "layer_norm", "log_sigmoid", "log_softmax", "logsumexp",
    "mish", "moments", "one_hot", "relu", "rms_norm", "scaled_dot_product_attention", "sigmoid", "silu", "softmax",
    "softplus",
]
