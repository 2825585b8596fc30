"""Attention as native calls: from an `Attention` step to the numbers of the code that runs it.

In: a step. Out: `NativeCall`s. Work is cut up by sizes alone, so results do not depend on the number of threads. The
gradient goes matrix by matrix; where these are few, groups of columns go side by side, each with a sum of its own for
dq, and these are added in order afterwards.

Read next: `attention_code.py` (native side), `program.py` (who asks).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tracejit.lower.kernel import View
from tracejit.lower.plan import Attention
from tracejit.runtime.attention_code import COLUMNS, OPERANDS, AddWord, Functions, Word, functions
from tracejit.runtime.executor import NativeCall

ENOUGH = 16  # items that keep the cores of most machines busy
PARALLEL = 15_000.0  # nanoseconds of work below which all stays on its caller's thread
CHUNK = 8_000.0  # nanoseconds of work in a chunk, roughly
STRETCH = 1 << 13  # elements of a sum in an item
_RATE = 0.003  # nanoseconds for a multiply-add, by bytes of the element
_WEIGHT = 0.03  # nanoseconds for an exponential, by bytes of the element
_DRAWN = 0.09  # nanoseconds for a random number, by bytes of the element


def attention_calls(step: Attention) -> list[NativeCall]:
    """What runs one step."""
    return {"attention": _forward, "attention_grad": _backward, "attention_mask_grad": _of_mask}[step.name](
        step, functions(step.dtype))


def _forward(step: Attention, code: Functions) -> list[NativeCall]:
    words, views = _slots(step, range(len(step.batch)))
    views |= dict(zip((Word.OUT, Word.LSE), step.writes, strict=True))
    words[Word.PARTS] = blocks = -(-step.rows // code.rows)
    return _calls(code.attention, words, views, math.prod(step.batch) * blocks, _work(step, step.depth + step.width))


def _backward(step: Attention, code: Functions) -> list[NativeCall]:
    matrices, size = math.prod(step.batch), step.dtype.itemsize
    words, views = _slots(step, range(len(step.batch)))
    views |= dict(zip((Word.DQ, Word.DK, Word.DV), step.writes, strict=True))
    work = _work(step, 3 * step.depth + 2 * step.width)
    blocks = max(1, -(-step.columns // COLUMNS))
    groups = min(blocks, -(-ENOUGH // max(1, matrices)) if work > PARALLEL else 1)
    words[Word.GROUP] = -(-blocks // groups) * COLUMNS
    words[Word.PARTS] = groups = max(1, -(-step.columns // words[Word.GROUP]))
    elements = matrices * step.rows * step.depth
    words[Word.DQ_GROUP] = elements * size
    if groups == 1 or not elements:
        return _calls(code.attention_grad, words, views, matrices * groups, work)
    to = views.pop(Word.DQ)
    (call,) = _calls(code.attention_grad, words, views, matrices * groups, work)
    call.scratch_slots, call.scratch = {Word.DQ: 0}, groups * elements * size
    sums = [0] * len(AddWord)
    sums[AddWord.COUNT], sums[AddWord.SIZE], sums[AddWord.STRETCH] = groups, elements, STRETCH
    (add,) = _calls(code.add_parts, sums, {AddWord.TO: to}, -(-elements // STRETCH), elements * groups * 0.1)
    add.scratch_slots, add.scratch = {AddWord.PARTS: 0}, call.scratch
    return [call, add]


def _of_mask(step: Attention, code: Functions) -> list[NativeCall]:
    """An item adds up what all matrices with the same mask give to a block of it."""
    mask = step.reads[6]
    own = [d for d in range(len(step.batch)) if mask.strides[d]]
    shared = [d for d in range(len(step.batch)) if not mask.strides[d]]
    words, views = _slots(step, (*own, *shared))
    views[Word.MASK_GRAD] = step.writes[0]
    words[Word.SHARED] = math.prod(step.batch[d] for d in shared)
    words[Word.PARTS] = -(-step.rows // code.rows) if mask.strides[-2] else 1
    words[Word.GROUP] = blocks = -(-step.columns // COLUMNS)
    items = math.prod(step.batch[d] for d in own) * words[Word.PARTS] * blocks
    return _calls(code.attention_mask_grad, words, views, items, _work(step, step.depth + step.width))


def _work(step: Attention, multiplied: int) -> float:
    """Nanoseconds on one thread, roughly."""
    each = multiplied * _RATE + _WEIGHT + (_DRAWN if step.threshold < 1 << 32 else 0.0)
    scores = math.prod(step.batch) * step.rows * step.columns * (0.6 if step.causal else 1.0)
    return scores * step.dtype.itemsize * each


def _slots(step: Attention, order: Sequence[int]) -> tuple[list[int], dict[int, View]]:
    """Numbers and reads. order: that in which the batch dims count matrices."""
    size = step.dtype.itemsize
    words = [0] * (Word.DIMS + (OPERANDS + 1) * len(order))
    q, k, v, *more = step.reads
    views: dict[int, View] = {Word.Q: q, Word.K: k, Word.V: v}
    words[Word.ROWS], words[Word.COLUMNS] = step.rows, step.columns
    words[Word.DEPTH], words[Word.WIDTH] = step.depth, step.width
    words[Word.SCALE], words[Word.CAUSAL] = _bits(step.scale), int(step.causal)
    if step.threshold < 1 << 32:
        words[Word.DROPS], words[Word.THRESHOLD] = 1, step.threshold
        words[Word.FACTOR] = _bits(2**32 / step.threshold if step.threshold else 0.0)
        views[Word.DRAW], views[Word.KEY] = more.pop(), more.pop()
    mask, mask_size = None, size if step.masked == "number" else 1
    if step.masked:
        views[Word.MASK] = mask = more.pop()
        words[Word.MASKED] = 1 if step.masked == "bool" else 2
        words[Word.MASK_ROW] = mask.strides[-2] * mask_size
    g = None
    if more:
        views[Word.LSE], views[Word.DELTA], views[Word.G] = more
        g = more[2]
        words[Word.G_ROW] = g.strides[-2] * size
    for word, view in zip((Word.Q_ROW, Word.K_ROW, Word.V_ROW), (q, k, v), strict=True):
        words[word] = view.strides[-2] * size
    words[Word.BATCH] = len(order)
    for place, d in enumerate(order):
        at = Word.DIMS + (OPERANDS + 1) * place
        moves = [0 if view is None else view.strides[d] * s
                 for view, s in ((q, size), (k, size), (v, size), (mask, mask_size), (g, size))]
        words[at: at + 1 + OPERANDS] = [max(1, step.batch[d]), *moves, math.prod(step.batch[d + 1:]) * step.rows]
    return words, views


def _bits(number: float) -> int:
    """Of a float64, as a word."""
    return int(np.float64(number).view(np.int64))


def _calls(function: int, words: list[int], views: dict[int, View], items: int, work: float) -> list[NativeCall]:
    """One call, if there is anything to do."""
    chunk = items if work <= PARALLEL else max(1, int(CHUNK * items / work))
    return [NativeCall(function, words, views, items, min(chunk, items), work)] if items else []
