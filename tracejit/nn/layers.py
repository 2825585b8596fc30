"""The namespace `tj.layers`: every layer, under the names of Keras.

In: nothing. Out: names. The layers are made in the files imported here.
"""

from __future__ import annotations

from tracejit.nn.attention import MultiHeadAttention
from tracejit.nn.convolutional import (
    AveragePooling1D,
    AveragePooling2D,
    AveragePooling3D,
    Conv1D,
    Conv1DTranspose,
    Conv2D,
    Conv2DTranspose,
    Conv3D,
    Conv3DTranspose,
    DepthwiseConv1D,
    DepthwiseConv2D,
    GlobalAveragePooling1D,
    GlobalAveragePooling2D,
    GlobalAveragePooling3D,
    GlobalMaxPooling1D,
    GlobalMaxPooling2D,
    GlobalMaxPooling3D,
    MaxPooling1D,
    MaxPooling2D,
    MaxPooling3D,
    SeparableConv2D,
    UpSampling2D,
    ZeroPadding2D,
)
from tracejit.nn.core import (
    ELU,
    Activation,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    GaussianNoise,
    Input,
    Lambda,
    LeakyReLU,
    Masking,
    Permute,
    ReLU,
    RepeatVector,
    Rescaling,
    Reshape,
    Softmax,
    SpatialDropout1D,
    SpatialDropout2D,
)
from tracejit.nn.module import Layer
from tracejit.nn.normalization import BatchNormalization, GroupNormalization, LayerNormalization, RMSNormalization
from tracejit.nn.recurrent import GRU, LSTM, RNN, Bidirectional, GRUCell, LSTMCell, SimpleRNN, SimpleRNNCell

# Shorter names of the same.
MaxPool1D, MaxPool2D, MaxPool3D = MaxPooling1D, MaxPooling2D, MaxPooling3D
AvgPool1D, AvgPool2D, AvgPool3D = AveragePooling1D, AveragePooling2D, AveragePooling3D
GlobalAvgPool1D, GlobalAvgPool2D = GlobalAveragePooling1D, GlobalAveragePooling2D
GlobalMaxPool1D, GlobalMaxPool2D = GlobalMaxPooling1D, GlobalMaxPooling2D
BatchNorm, LayerNorm, GroupNorm = BatchNormalization, LayerNormalization, GroupNormalization
InputLayer = Input

__all__ = [
    "Activation", "AveragePooling1D", "AveragePooling2D", "AveragePooling3D", "AvgPool1D", "AvgPool2D", "AvgPool3D",
    "BatchNorm", "BatchNormalization", "Bidirectional", "Conv1D", "Conv1DTranspose", "Conv2D", "Conv2DTranspose",
    "Conv3D", "Conv3DTranspose", "Dense", "DepthwiseConv1D", "DepthwiseConv2D", "Dropout", "ELU", "Embedding",
    "Flatten", "GRU", "GRUCell", "GaussianNoise", "GlobalAveragePooling1D", "GlobalAveragePooling2D",
    "GlobalAveragePooling3D", "GlobalAvgPool1D", "GlobalAvgPool2D", "GlobalMaxPool1D", "GlobalMaxPool2D",
    "GlobalMaxPooling1D", "GlobalMaxPooling2D", "GlobalMaxPooling3D", "GroupNorm", "GroupNormalization", "Input",
    "InputLayer", "LSTM", "LSTMCell", "Lambda", "Layer", "LayerNorm", "LayerNormalization", "LeakyReLU", "Masking",
    "MaxPool1D", "MaxPool2D", "MaxPool3D", "MaxPooling1D", "MaxPooling2D", "MaxPooling3D", "MultiHeadAttention",
    "Permute", "RMSNormalization", "RNN", "ReLU", "RepeatVector", "Rescaling", "Reshape", "SeparableConv2D",
    "SimpleRNN", "SimpleRNNCell", "Softmax", "SpatialDropout1D", "SpatialDropout2D", "UpSampling2D", "ZeroPadding2D",
]  # fmt: skip
