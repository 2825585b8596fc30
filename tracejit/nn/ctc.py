"""Connectionist temporal classification: the loss of a label sequence whose alignment with the input is not known.

In: labels (batch, length) and logits (batch, steps, classes). Out: for each sequence minus the logarithm of the
probability of its labels, summed over all alignments. Graves et al. (2006), section 4.1, in logarithms.

Read next: `losses.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tracejit.nn.weighting import floats
from tracejit.ops import core
from tracejit.ops.control import scan
from tracejit.ops.creation import arange
from tracejit.ops.elementwise import cast, maximum, where
from tracejit.ops.movement import transpose
from tracejit.ops.selection import take_along_axis
from tracejit.ops.shaping import concat, stack
from tracejit.ops.special import exp, log
from tracejit.ops.statistics import log_softmax
from tracejit.tensor import Tensor

NEVER = -1e30  # the logarithm of no probability; finite, so that differences of two of them are


def ctc_loss(labels: Any, logits: Any, label_length: Any = None, logit_length: Any = None, blank: int = 0) -> Tensor:
    """Minus the log probability of each label sequence, (batch,): inf where there are too few steps for it.

    labels: integers, (batch, length). logits: (batch, steps, classes), before a softmax. label_length, logit_length:
    (batch,), how many of them are real; None: labels up to the first `blank`, and all steps. blank: the class between
    labels.

    >>> ctc_loss([[1, 2]], [[[0.0, 9.0, 0.0], [0.0, 0.0, 9.0]]]).numpy().round(4)
    array([0.0005], dtype=float32)
    """
    x, y = floats(logits), cast(core.strong(core.as_tensor(labels)), "int64")
    if x.ndim != 3 or y.ndim != 2 or x.shape[0] != y.shape[0]:
        raise ValueError(f"ctc: labels must be (batch, length) and logits (batch, steps, classes), not {y.shape} and "
                         f"{x.shape}")
    batch, length = y.shape
    blank = int(blank)
    if label_length is None:
        real = where(y == blank, 0, 1).cumprod(axis=1)
        label_length = real.sum(axis=1)
    sizes = cast(core.as_tensor(label_length), "int64")
    steps = None if logit_length is None else cast(core.as_tensor(logit_length), "int64")

    # labels with blanks before, between and after; from one place to the next, or over a blank between other labels
    places = core.full(blank, (batch, 2 * length + 1), np.dtype("int64"))
    if length:
        wide = stack([core.full(blank, y.shape, y.dtype), y], axis=2).reshape(batch, 2 * length)
        places = concat([wide, places[:, :1]], axis=1)
    before = concat([core.full(blank, (batch, min(2, 2 * length + 1)), y.dtype), places[:, :-2]], axis=1)
    skips = (places != blank) & (places != before)
    each = take_along_axis(log_softmax(x, axis=-1), core.broadcast_to(places[:, None], (batch, x.shape[1],
                                                                                      2 * length + 1)), axis=2)
    start = where(arange(2 * length + 1) == 0, 0.0, NEVER)
    first = core.broadcast_to(cast(start, x.dtype), (batch, 2 * length + 1))

    def step(paths: Tensor, row: Any) -> Any:
        now, t = row
        none = core.full(NEVER, (batch, min(2, 2 * length + 1)), x.dtype)
        moved = concat([none[:, :1], paths[:, :-1]], axis=1)
        skipped = where(skips, concat([none, paths[:, :-2]], axis=1), NEVER)
        new = maximum(_joint(paths, moved, skipped) + now, NEVER)
        return (new if steps is None else where((t < steps)[:, None], new, paths)), None

    last, _ = scan(step, first, (transpose(each, (1, 0, 2)), arange(x.shape[1])))
    at = (2 * sizes)[:, None]
    ends = take_along_axis(last, at, axis=1)[:, 0]
    others = where(sizes > 0, take_along_axis(last, maximum(at - 1, 0), axis=1)[:, 0], NEVER)
    found = _joint(ends, others)
    return where(found > NEVER / 2, -found, math.inf)


def _joint(*logs: Tensor) -> Tensor:
    """The logarithm of the sum of probabilities."""
    top = logs[0]
    for a in logs[1:]:
        top = maximum(top, a)
    total: Any = 0.0
    for a in logs:
        total = total + exp(a - top)
    return top + log(total)
