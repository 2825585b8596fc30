"""Attention as native calls: from an `Attention` step to the numbers of the code that runs it.

In: a step. Out: `NativeCall`s. Work is cut up by sizes alone, so results do not depend on the number of threads. The
gradient goes matrix by matrix; where these are few, groups of columns go side by side, each with a sum of its own for
dq, and these are added in order afterwards.

Read next: `attention_code.py` (native side), `program.py` (who asks).
"""

from __future__ import annotations

import math

import numpy as np

from tracejit.lower.kernel import View
from tracejit.lower.plan import Attention
from tracejit.runtime.attention_code import COLUMNS, OPERANDS, AddWord, Word, functions
from tracejit.runtime.executor import NativeCall

ENOUGH = 16  # items that keep the cores of most machines busy
PARALLEL = 15_000.0  # nanoseconds of work below which all stays on its caller's thread
CHUNK = 8_000.0  # nanoseconds of work in a chunk, roughly
STRETCH = 1 << 13  # elements of a sum in an item
_RATE = 0.003  # nanoseconds for a multiply-add, by bytes of the element
_WEIGHT = 0.03  # nanoseconds for an exponential, by bytes of the element


def attention_calls(step: Attention) -> list[NativeCall]:
    """What runs one step."""
    matrices = math.prod(step.batch)
    if not matrices or (step.grad and not step.rows + step.columns) or (not step.grad and not step.rows):
        return []
    code, size = functions(step.dtype), step.dtype.itemsize
    words = [0] * (Word.DIMS + (OPERANDS + 1) * len(step.batch))
    q, k, v, *more = step.reads
    drops = step.threshold < 1 << 32
    views: dict[int, View] = {Word.Q: q, Word.K: k, Word.V: v}
    if drops:
        views[Word.DRAW], views[Word.KEY] = more.pop(), more.pop()
        words[Word.THRESHOLD] = step.threshold
        words[Word.FACTOR] = _bits(2**32 / step.threshold if step.threshold else 0.0)
    mask = more.pop() if step.masked else None
    words[Word.ROWS], words[Word.COLUMNS] = step.rows, step.columns
    words[Word.DEPTH], words[Word.WIDTH] = step.depth, step.width
    words[Word.SCALE], words[Word.CAUSAL], words[Word.DROPS] = _bits(step.scale), int(step.causal), int(drops)
    for word, view in zip((Word.Q_ROW, Word.K_ROW, Word.V_ROW), (q, k, v), strict=True):
        words[word] = view.strides[-2] * size
    sizes = [size, size, size, size, size]
    if mask is not None:
        sizes[3] = 1 if step.masked == "bool" else size
        words[Word.MASK_ROW], words[Word.MASKED] = mask.strides[-2] * sizes[3], 1 if step.masked == "bool" else 2
        views[Word.MASK] = mask
    g = more[2] if step.grad else None
    operands = (q, k, v, mask, g)
    words[Word.BATCH] = len(step.batch)
    for d, extent in enumerate(step.batch):
        at = Word.DIMS + (OPERANDS + 1) * d
        words[at] = extent
        words[at + 1: at + 1 + OPERANDS] = [0 if o is None else o.strides[d] * s for o, s in zip(operands, sizes)]
    products = (3 * step.depth + 2 * step.width) if step.grad else step.depth + step.width
    work = matrices * step.rows * step.columns * size * (products * _RATE + _WEIGHT * (1 + 3 * drops))
    work *= 0.6 if step.causal else 1.0
    if not step.grad:
        views |= dict(zip((Word.OUT, Word.LSE), step.writes, strict=True))
        words[Word.PARTS] = -(-step.rows // code.rows)
        return [_call(code.attention, words, views, matrices * words[Word.PARTS], work)]
    views |= dict(zip((Word.LSE, Word.DELTA, Word.G), more, strict=True))
    views |= dict(zip((Word.DQ, Word.DK, Word.DV), step.writes, strict=True))
    words[Word.G_ROW] = more[2].strides[-2] * size
    blocks = -(-step.columns // COLUMNS)
    groups = max(1, min(blocks, -(-ENOUGH // matrices) if work > PARALLEL else 1))
    words[Word.GROUP] = max(1, -(-blocks // groups)) * COLUMNS
    words[Word.PARTS] = groups = max(1, -(-step.columns // words[Word.GROUP]))
    elements = matrices * step.rows * step.depth
    words[Word.DQ_GROUP] = elements * size
    call = _call(code.attention_grad, words, views, matrices * groups, work)
    if groups == 1 or not elements:
        return [call]
    to = views.pop(Word.DQ)
    call.scratch_slots, call.scratch = (Word.DQ,), groups * elements * size
    sums = [0] * len(AddWord)
    sums[AddWord.COUNT], sums[AddWord.SIZE], sums[AddWord.STRETCH] = groups, elements, STRETCH
    add = _call(code.add_parts, sums, {AddWord.TO: to}, -(-elements // STRETCH), elements * groups * 0.1)
    add.scratch_slots, add.scratch = (AddWord.PARTS,), call.scratch
    return [call, add]


def _bits(number: float) -> int:
    """Of a float64, as a word."""
    return int(np.float64(number).view(np.int64))


def _call(function: int, words: list[int], views: dict[int, View], items: int, work: float) -> NativeCall:
    chunk = items if work <= PARALLEL else max(1, int(CHUNK * items / work))
    return NativeCall(function, words, views, items, min(chunk, items), work)
