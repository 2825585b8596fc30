"""tracejit: NumPy-like tensors that run eagerly, and a decorator that compiles the same code.

In: `import tracejit as tj`. Out: the public names, and nothing else happens here. Read next: `function.py` for the pipeline.

>>> import tracejit as tj
>>> tj.matmul([[2.0]], [[2.0]])
tj.Tensor([[4.]], shape=(1, 1), dtype=float32)
"""

# ruff: noqa: F403, F405
import builtins as _builtins
import importlib as _importlib

import numpy as _np

from tracejit import config
from tracejit.config import eager, num_threads, set_num_threads
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
from tracejit.dtypes import bool_ as bool
from tracejit.errors import GradientError, InternalError, LeakedTracerError, TraceJitError, TracerError
from tracejit.ops import protocols as _protocols
from tracejit.ops import subscript as _subscript
from tracejit.ops.comparison import *
from tracejit.ops.creation import *
from tracejit.ops.creation import arange as range
from tracejit.ops.einsum import *
from tracejit.ops.elementwise import *
from tracejit.ops.linalg import *
from tracejit.ops.movement import *
from tracejit.ops.reduction import *
from tracejit.ops.selection import *
from tracejit.ops.shaping import *
from tracejit.ops.sorting import *
from tracejit.ops.special import *
from tracejit.tensor import Tensor

from tracejit import linalg  # isort: skip  (after the ops, so that the name means the namespace)

newaxis = None
pi, e, inf, nan = _np.pi, _np.e, _np.inf, _np.nan
__version__ = "0.1.0"

_LATER = {
    "ops.random": ["random_uniform", "random_normal"],
    "ops.scan": ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "diff"],
    "ops.statistics": [],
    "variable": ["Variable"],
    "tape": ["GradientTape", "UnconnectedGradients"],
    "gradients": ["grad", "value_and_grad", "vjp", "jvp", "hvp", "jacobian", "jacrev", "jacfwd", "hessian", "stop_gradient",
                  "gradients_function", "value_and_gradients_function", "implicit_gradients",
                  "implicit_value_and_gradients"],
    "custom": ["custom_gradient", "custom_vjp", "checkpoint"],
    "check": ["check_grads"],
    "function": ["function", "explain", "stats", "spec"],
}
for _name, _names in _LATER.items():
    try:
        _module = _importlib.import_module(f"tracejit.{_name}")
    except ImportError:
        continue
    globals().update({n: getattr(_module, n) for n in [*_names, *getattr(_module, "__all__", ())] if hasattr(_module, n)})
