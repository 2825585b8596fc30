"""tracejit: NumPy-like tensors that run eagerly, and a decorator that compiles the same code.

In: `import tracejit as tj`. Out: the public names; nothing else happens here. Read next: `function.py`, the pipeline.

>>> import tracejit as tj
>>> tj.matmul([[2.0]], [[2.0]])
tj.Tensor([[4.]], shape=(1, 1), dtype=float32)
"""

# ruff: noqa: F401, F403
import numpy as _np

from tracejit import config
from tracejit import report as _report
from tracejit.check import check_grads
from tracejit.checkpoints import Checkpoint, CheckpointError
from tracejit.config import eager, num_threads, set_num_threads
from tracejit.custom import checkpoint, custom_gradient, custom_vjp
from tracejit.dtypes import bool_ as bool
from tracejit.dtypes import (
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    set_default_dtype,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tracejit.errors import GradientError, InternalError, LeakedTracerError, TraceJitError, TracerError
from tracejit.explain import explain
from tracejit.export import export, load, save
from tracejit.function import function, stats
from tracejit.gradients import (
    grad,
    gradients_function,
    hessian,
    hvp,
    implicit_gradients,
    implicit_value_and_gradients,
    jacfwd,
    jacobian,
    jvp,
    stop_gradient,
    value_and_grad,
    value_and_gradients_function,
    vjp,
)
from tracejit.nn.model import Model
from tracejit.nn.module import Layer, Module
from tracejit.nn.sequential import Sequential
from tracejit.ops import protocols as _protocols
from tracejit.ops import subscript as _subscript
from tracejit.ops.comparison import *
from tracejit.ops.control import *
from tracejit.ops.counting import *
from tracejit.ops.creation import *
from tracejit.ops.creation import arange as range
from tracejit.ops.cumulative import *
from tracejit.ops.effects import *
from tracejit.ops.einsum import *
from tracejit.ops.elementwise import *
from tracejit.ops.linalg import *
from tracejit.ops.movement import *
from tracejit.ops.numeric import *
from tracejit.ops.quantiles import *
from tracejit.ops.random import *
from tracejit.ops.reduction import *
from tracejit.ops.selection import *
from tracejit.ops.shaping import *
from tracejit.ops.sorting import *
from tracejit.ops.special import *
from tracejit.ops.statistics import *
from tracejit.profile import profile
from tracejit.runtime.pool import set_limit as set_memory_limit
from tracejit.runtime.pool import trim as trim_memory
from tracejit.tape import GradientTape, UnconnectedGradients
from tracejit.tensor import Tensor
from tracejit.trace.signature import spec
from tracejit.variable import Variable

from tracejit import debugging, linalg, nn, random  # isort: skip
from tracejit import data, datasets, summary  # isort: skip
from tracejit.nn import activations, callbacks, initializers, layers, losses, metrics, optimizers, regularizers  # isort: skip

newaxis = None
pi, e, inf, nan = _np.pi, _np.e, _np.inf, _np.nan
__version__ = "0.1.0"
