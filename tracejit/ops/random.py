"""Random numbers: counter-based (Philox4x32-10), so that a draw is a pure function of a key and the number of the draw.

In: shapes, and a source of randomness: the default generator, `generator=`, or `key=` for stateless draws. Out:
tensors. The one primitive is `random_bits(key, draw)`; everything else is ordinary ops on its bits, so it fuses and
compiles like any other code. A `Generator` holds its key and the number of its next draw in two handles that each draw
rebinds: compiled functions carry them as hidden inputs and outputs, and draw the same numbers as eager code.

Transforms: uniform: the upper 24 (float32) or 53 bits; normal: Box and Muller's, the cosine of one uniform number times
the root of the logarithm of another; truncated_normal: inverse error function; categorical: the largest of the logits
plus Gumbel noise.
"""

from __future__ import annotations

import math
import operator
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.errors import user_line
from tracejit.ir import Type
from tracejit.locks import fork_safe, holding
from tracejit.lower import mathlib, scalar
from tracejit.lower.mathlib.arithmetic import PHILOX_KEY_STEPS, PHILOX_MULTIPLIERS
from tracejit.ops import core
from tracejit.ops import elementwise as ew
from tracejit.ops.creation import arange
from tracejit.ops.marks import identity
from tracejit.ops.movement import extents_of, moved_axis, permuted, reshaped
from tracejit.ops.reduction import argmax
from tracejit.ops.selection import take
from tracejit.ops.sorting import argsort
from tracejit.ops.special import cos, erf, erfinv, log
from tracejit.tensor import Tensor, apply, state, wrap

# Uses of one draw number that must not share bits.
VALUES, MORE_VALUES, SPLIT, FOLD, MASKS = range(5)
MASK = 0xFFFFFFFF
CHUNK = 1 << 13  # blocks worked on at once, so that NumPy's temporaries stay in cache


# -- the primitive -----------------------------------------------------------------------------------------------------
def philox(key: int, draw: int, stream: int, first: int, blocks: int) -> np.ndarray:
    """Blocks of four uint32 words, shape (blocks, 4): Philox4x32-10 of counters (block, draw and stream) and `key`."""
    block = np.arange(first, first + blocks, dtype=np.uint64)
    c0, c1 = block & np.uint64(MASK), block >> np.uint64(32)
    c2 = np.full(blocks, draw & MASK, np.uint64)
    c3 = np.full(blocks, (draw >> 32) ^ (stream << 24), np.uint64)
    k0, k1 = key & MASK, key >> 32
    m0, m1 = map(np.uint64, PHILOX_MULTIPLIERS)
    step0, step1 = PHILOX_KEY_STEPS
    low, half = np.uint64(MASK), np.uint64(32)
    for _ in range(10):
        p0, p1 = c0 * m0, c2 * m1
        c0, c2 = (p1 >> half) ^ c1 ^ np.uint64(k0), (p0 >> half) ^ c3 ^ np.uint64(k1)
        c1, c3 = p1 & low, p0 & low
        k0, k1 = (k0 + step0) & MASK, (k1 + step1) & MASK
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def _bits_infer(key: Type, draw: Type, *, shape: tuple[int, ...], dtype: str, stream: int) -> Type:
    for t in (key, draw):
        if t != Type((), dtypes.uint64):
            raise TypeError(f"random_bits: key and draw must be 0-d uint64, got {t}")
    if dtype not in ("uint32", "uint64"):
        raise TypeError(f"random_bits: dtype must be uint32 or uint64, got {dtype}")
    return Type(shape, dtypes.as_dtype(dtype))


def _bits_eager(key: np.ndarray, draw: np.ndarray, *, shape: tuple[int, ...], dtype: str, stream: int) -> np.ndarray:
    size = math.prod(shape)
    words = size * (2 if dtype == "uint64" else 1)
    blocks = -(-words // 4)
    out = np.empty((blocks, 4), np.uint32)
    for first in range(0, blocks, CHUNK):
        n = min(CHUNK, blocks - first)
        out[first: first + n] = philox(int(key), int(draw), stream, first, n)
    flat = out.reshape(-1)
    if dtype == "uint64":
        pairs = flat.reshape(-1, 2).astype(np.uint64)
        flat = pairs[:, 0] | (pairs[:, 1] << np.uint64(32))
    return flat[:size].reshape(shape)


def bits_scalar(at: Any, key: Any, draw: Any, *, shape: tuple[int, ...], dtype: str, stream: int) -> Any:
    def halves(x: Any) -> tuple[Any, Any]:
        return scalar.cast(x, scalar.U32), scalar.cast(x >> 32, scalar.U32)

    flat = scalar.cast(at.flat, scalar.U64)
    block = flat >> (2 if dtype == "uint32" else 1)
    draw_low, draw_high = halves(draw)
    words = mathlib.philox4x32_10(*halves(key), *halves(block), draw_low, draw_high ^ (stream << 24))
    odd = (flat & 1) != 0
    if dtype == "uint32":
        return scalar.select((flat & 2) != 0, scalar.select(odd, words[3], words[2]),
                             scalar.select(odd, words[1], words[0]))
    low, high = (scalar.cast(scalar.select(odd, words[k + 2], words[k]), scalar.U64) for k in (0, 1))
    return low | (high << 32)


def bits_at(key: np.ndarray, draw: np.ndarray, at: np.ndarray, *, dtype: str, stream: int) -> np.ndarray:
    """Single elements of what `random_bits` gives, by their row-major positions `at`."""
    out = np.empty(at.shape, dtype)
    each = 4 if dtype == "uint32" else 2
    for place in np.ndindex(*at.shape):
        k, d, n = (int(x[place] if x.ndim else x) for x in (key, draw, at))
        words = philox(k, d, stream, n // each, 1)[0]
        out[place] = words[n % 4] if each == 4 else int(words[n % 2 * 2]) | (int(words[n % 2 * 2 + 1]) << 32)
    return out


RANDOM_BITS = core.primitive(
    "random_bits", "source", infer=_bits_infer, eager=_bits_eager, scalar=bits_scalar, cost=100,
    doc="Random bits: element i is word i, or words 2i and 2i + 1 (uint64), of the Philox blocks of key and draw.")


def _mask_infer(key: Type, draw: Type, *, shape: tuple[int, ...], threshold: int) -> Type:
    return Type(_bits_infer(key, draw, shape=shape, dtype="uint32", stream=MASKS).shape, dtypes.bool_)


# A mask of its own, not bits and a comparison, so that gradients know that it is had again from the key alone.
RANDOM_MASK = core.primitive(
    "random_mask", "source", infer=_mask_infer, cost=100,
    eager=lambda key, draw, *, shape, threshold: _bits_eager(
        key, draw, shape=shape, dtype="uint32", stream=MASKS) < np.uint32(threshold),
    scalar=lambda at, key, draw, *, shape, threshold: bits_scalar(
        at, key, draw, shape=shape, dtype="uint32", stream=MASKS) < threshold,
    doc="Whether random bits (uint32) are below a threshold.")


# -- sources of randomness ---------------------------------------------------------------------------------------------
def _uint64(value: Any) -> np.ndarray:
    return np.asarray(int(value) & ((1 << 64) - 1), np.uint64)


def _key_of(seed: Any) -> Tensor:
    return core.constant_tensor(_uint64(seed))


PATIENCE = 1.0  # seconds that a trace waits for compiled calls that draw from the same generator
_locks: dict[int, Any] = {}  # by id of the handle that counts a generator's draws


def drawing(handles: Sequence[Any]) -> holding:
    """`with drawing(handles):` nobody else draws from the generators whose draws these handles count. A compiled call
    reads such a count, and writes it when it has run."""
    return holding([_locks[i] for i in sorted(map(id, handles)) if i in _locks])


def counts_draws(handle: Any) -> bool:
    """Whether a handle is a generator's count of its draws."""
    return id(handle) in _locks


class _Turns(threading.local):
    """Whether this thread's turn to draw from a shared generator is a matter of the program, not of chance."""

    decided = True


turns = _Turns()


class Generator:
    """A stream of random numbers that starts at `seed` (None: somewhere unpredictable).

    Its methods are the functions of this module. One generator gives each draw its own number, so results do not depend
    on how draws are grouped into compiled functions.

    >>> g, h = Generator(7), Generator(7)
    >>> g.uniform((2,)).tolist() == h.uniform((2,)).tolist(), g.uniform().item() == h.uniform((3,))[0].item()
    (True, True)
    """

    def __init__(self, seed: int | None = None):
        self._start(0, 0)
        self.seed(seed)

    def _start(self, key: int, draws: int) -> None:
        self._lock = fork_safe(threading.RLock())
        self._key, self._draws = wrap(_uint64(key)), wrap(_uint64(draws))
        _locks[id(self._draws)] = self._lock
        weakref.finalize(self, _locks.pop, id(self._draws), None).atexit = False

    def seed(self, seed: int | None = None) -> None:
        """Start again from `seed`."""
        if seed is None:
            seed = int.from_bytes(os.urandom(8), "little")
        with self._lock:
            core.rebind(self._key, _key_of(seed))
            core.rebind(self._draws, core.full(0, (), dtypes.uint64))

    def next_draw(self) -> tuple[Tensor, Tensor]:
        """The key, and the number of a draw that nobody else gets."""
        if not turns.decided:
            warnings.warn(f"a draw from a shared generator in a thread that reads data (at {user_line()}): whose turn "
                          f"it is depends on chance, so results will not repeat; give map a seed=, and draw with the "
                          f"key it passes", RuntimeWarning, stacklevel=2)
        # while tracing, not for ever: who holds the lock may wait for the trace to end
        held = self._lock.acquire(timeout=PATIENCE if state.trace is not None else -1)
        try:
            draw = identity(self._draws) if state.active else wrap(self._draws._value)
            core.rebind(self._draws, draw + 1)  # type: ignore[operator]
            return self._key, draw
        finally:
            if held:
                self._lock.release()

    def state(self) -> dict[str, int]:
        """Where the stream is, as plain data."""
        key, draws = self.__getstate__()
        return {"key": key, "draws": draws}

    def load_state(self, state: Mapping[str, int]) -> None:
        """Go on where another generator's `state` was: compiled functions that draw from this one do too."""
        with self._lock:
            core.rebind(self._key, _key_of(state["key"]))
            core.rebind(self._draws, core.constant_tensor(_uint64(state["draws"])))

    def __getstate__(self) -> tuple[int, int]:
        return int(self._key), int(self._draws)

    def __setstate__(self, saved: tuple[int, int]) -> None:
        self._start(*saved)

    def __repr__(self) -> str:
        return "<tj.random.Generator>"


default_generator = Generator()


def seed(seed: int | None = None) -> None:
    """Start the default generator again from `seed` (None: somewhere unpredictable).

    >>> seed(1)
    >>> a = uniform((3,))
    >>> seed(1)
    >>> a.tolist() == uniform((3,)).tolist()
    True
    """
    default_generator.seed(seed)


def key(seed: int) -> Tensor:
    """A key for stateless draws: a 0-d uint64 tensor.

    >>> k = key(0)
    >>> uniform((2,), key=k).tolist() == uniform((2,), key=k).tolist()
    True
    """
    return _key_of(seed)


def split(key: Any, num: int = 2) -> Tensor:
    """`num` new keys of a key, independent of it and of each other, as a tensor of shape (num,).

    >>> first, second = split(key(0))
    >>> first.item() != second.item()
    True
    """
    return _bits(draw_from(key, None), (num,), "uint64", SPLIT)


def fold_in(key: Any, data: Any) -> Tensor:
    """A new key of a key and an integer, such as the number of a step."""
    k, _ = draw_from(key, None)
    return _bits((k, core.cast(core.as_tensor(data), dtypes.uint64)), (), "uint64", FOLD)


Source = tuple[Tensor, Tensor]


def draw_from(key: Any, generator: Generator | None) -> Source:
    """(key, number of the draw) of a stateless key, a generator, or the default generator."""
    if key is None:
        return (default_generator if generator is None else generator).next_draw()
    if generator is not None:
        raise ValueError("pass key= or generator=, not both")
    k = _key_of(key) if isinstance(key, int) else core.as_tensor(key)
    if k.shape != () or k.dtype != dtypes.uint64:
        raise TypeError(f"a key is a 0-d uint64 tensor from key(seed) or split(key), got shape {k.shape}, {k.dtype}")
    return k, core.full(0, (), dtypes.uint64)


def _bits(source: Source, shape: tuple[int, ...], dtype: str, stream: int = VALUES) -> Tensor:
    return apply(RANDOM_BITS, source, {"shape": shape, "dtype": dtype, "stream": stream})


def _float_dtype(dtype: Any) -> np.dtype:
    found = dtypes.default_float() if dtype is None else dtypes.as_dtype(dtype)
    if found.kind != "f":
        raise TypeError(f"random: a float dtype is needed, got {found}")
    return found


# -- uniform -----------------------------------------------------------------------------------------------------------
def _unit(source: Source, shape: tuple[int, ...], dtype: np.dtype, stream: int = VALUES) -> Tensor:
    """Uniform in [0, 1): as many bits as the dtype's precision."""
    bits = np.finfo(dtype).nmant + 1
    word = 64 if dtype == dtypes.float64 else 32
    drawn = _bits(source, shape, f"uint{word}", stream) >> (word - bits)  # type: ignore[operator]
    return core.cast(drawn, dtype) * 2.0**-bits  # type: ignore[operator]


def _open_unit(source: Source, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
    """Uniform in (0, 1), both ends left out, for logarithms: odd multiples of half a step."""
    bits = np.finfo(dtype).nmant
    word = 64 if dtype == dtypes.float64 else 32
    drawn = _bits(source, shape, f"uint{word}") >> (word - bits)  # type: ignore[operator]
    return (core.cast(drawn, dtype) + 0.5) * 2.0**-bits  # type: ignore[operator]


def uniform(shape: Any = (), low: Any = 0.0, high: Any = 1.0, *, dtype: Any = None, key: Any = None,
            generator: Generator | None = None) -> Tensor:
    """Uniform numbers in [low, high), in a float dtype (the default float).

    >>> x = uniform((1000,), -1, 1)
    >>> x.shape, x.dtype.name, bool((x >= -1).all() & (x < 1).all())
    ((1000,), 'float32', True)
    """
    d = _float_dtype(dtype)
    u = _unit(draw_from(key, generator), extents_of(shape), d)
    if type(low) in (int, float) and type(high) in (int, float) and (low, high) == (0, 1):
        return u
    return core.cast(low + (high - low) * u, d)


def random_uniform(shape: Any = (), minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, *, key: Any = None,
                   generator: Generator | None = None) -> Tensor:
    """Uniform numbers in [minval, maxval); of an integer dtype, integers there (see `randint`).

    >>> random_uniform((2, 3)).shape
    (2, 3)
    """
    if dtype is not None and dtypes.as_dtype(dtype).kind in "iu":
        return randint(minval, maxval, shape, dtype=dtype, key=key, generator=generator)
    return uniform(shape, minval, maxval, dtype=dtype, key=key, generator=generator)


# -- normal and its relatives ------------------------------------------------------------------------------------------
def _standard_normal(source: Source, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
    """Box and Muller's transform; a uniform number in (0, 1] for the radius, another for the angle."""
    if dtype == dtypes.float64:
        first, second = (_bits(source, shape, "uint64", s) >> 11 for s in (VALUES, MORE_VALUES))  # type: ignore[operator]
        radius = (core.cast(first, dtype) + 1) * 2.0**-53  # type: ignore[operator]
        angle = core.cast(second, dtype) * 2.0**-53  # type: ignore[operator]
    else:
        both = _bits(source, shape, "uint64")
        first = core.cast(both & MASK, dtypes.uint32)  # type: ignore[operator]
        second = core.cast(both >> 40, dtypes.uint32)  # type: ignore[operator]
        radius = core.cast(first, dtypes.float32) * 2.0**-32 + 2.0**-33  # type: ignore[operator]
        angle = core.cast(second, dtypes.float32) * 2.0**-24  # type: ignore[operator]
    return core.cast(ew.sqrt(-2 * log(radius)) * cos((2 * math.pi) * angle), dtype)  # type: ignore[operator]


def normal(shape: Any = (), mean: Any = 0.0, std: Any = 1.0, *, dtype: Any = None, key: Any = None,
           generator: Generator | None = None) -> Tensor:
    """Normally distributed numbers of that mean and standard deviation (differentiable in both).

    >>> normal((2, 3)).shape
    (2, 3)
    """
    d = _float_dtype(dtype)
    z = _standard_normal(draw_from(key, generator), extents_of(shape), d)
    if type(mean) in (int, float) and type(std) in (int, float) and (mean, std) == (0, 1):
        return z
    return core.cast(mean + std * z, d)


def random_normal(shape: Any = (), mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, *, key: Any = None,
                  generator: Generator | None = None) -> Tensor:
    """As `normal`."""
    return normal(shape, mean, stddev, dtype=dtype, key=key, generator=generator)


def truncated_normal(shape: Any = (), mean: Any = 0.0, std: Any = 1.0, *, lower: float = -2.0, upper: float = 2.0,
                     dtype: Any = None, key: Any = None, generator: Generator | None = None) -> Tensor:
    """Normally distributed numbers that lie within [lower, upper] standard deviations of the mean.

    >>> bool((abs(truncated_normal((1000,))) <= 2).all())
    True
    """
    d = _float_dtype(dtype)
    work = dtypes.float32 if d == dtypes.float16 else d
    a, b = (erf(core.full(v * math.sqrt(0.5), (), work)) for v in (lower, upper))
    u = _open_unit(draw_from(key, generator), extents_of(shape), work)
    z = math.sqrt(2) * erfinv(a + (b - a) * u)  # type: ignore[operator]
    return core.cast(mean + std * ew.clip(z, lower, upper), d)


def exponential(shape: Any = (), scale: Any = 1.0, *, dtype: Any = None, key: Any = None,
                generator: Generator | None = None) -> Tensor:
    """Exponentially distributed numbers of mean `scale`.

    >>> bool((exponential((1000,)) >= 0).all())
    True
    """
    d = _float_dtype(dtype)
    return core.cast(-log(_open_unit(draw_from(key, generator), extents_of(shape), d)) * scale, d)  # type: ignore[operator]


def gumbel(shape: Any = (), *, dtype: Any = None, key: Any = None, generator: Generator | None = None) -> Tensor:
    """Numbers of the standard Gumbel distribution, that of the largest of many."""
    d = _float_dtype(dtype)
    return -log(-log(_open_unit(draw_from(key, generator), extents_of(shape), d)))  # type: ignore[operator]


# -- discrete ----------------------------------------------------------------------------------------------------------
def randint(low: Any, high: Any = None, shape: Any = (), *, dtype: Any = None, key: Any = None,
            generator: Generator | None = None) -> Tensor:
    """Integers in [low, high), or [0, low) without `high`, in an integer dtype (the default int).

    ValueError for an empty range, OverflowError for one beyond the dtype.

    >>> x = randint(3, 7, (1000,))
    >>> x.dtype.name, x.min().item(), x.max().item()
    ('int32', 3, 6)
    """
    if high is None:
        low, high = 0, low
    d = dtypes.default_int() if dtype is None else dtypes.as_dtype(dtype)
    if d.kind not in "iu":
        raise TypeError(f"randint: an integer dtype is needed, got {d}")
    bits = _bits(draw_from(key, generator), _common_shape(shape, low, high), "uint64")
    if not all(hasattr(v, "__index__") and not isinstance(v, Tensor) for v in (low, high)):
        start, stop = (core.cast(core.as_tensor(v), dtypes.int64) for v in (low, high))
        return core.cast(core.cast(bits % core.cast(stop - start, dtypes.uint64), dtypes.int64) + start, d)
    first, last = operator.index(low), operator.index(high)
    if first >= last:
        raise ValueError(f"randint: the range [{first}, {last}) is empty")
    info = np.iinfo(d)
    if first < info.min or last - 1 > info.max:
        raise OverflowError(f"randint: the range [{first}, {last}) does not fit {d}")
    span = last - first
    if span <= 1 << 32:  # the upper bits of bits * span / 2**64
        drawn = ((bits >> 32) * span + (((bits & MASK) * span) >> 32)) >> 32  # type: ignore[operator]
    else:
        drawn = bits % span if span < 1 << 64 else bits  # type: ignore[operator]
    return core.cast(drawn + (first & ((1 << 64) - 1)), d)  # wraps, so that it holds for negative numbers


def _common_shape(shape: Any, *limits: Any) -> tuple[int, ...]:
    """`shape`, broadcast with the limits' shapes."""
    return core.broadcast_shape("randint", [extents_of(shape), *(np.shape(v) for v in limits)])


def bernoulli(p: Any = 0.5, shape: Any = None, *, dtype: Any = None, key: Any = None,
              generator: Generator | None = None) -> Tensor:
    """True with probability `p`, of `shape` (that of `p`); bool, or `dtype`.

    >>> bernoulli(1.0, (2,)).tolist()
    [True, True]
    """
    shape = np.shape(p) if shape is None else extents_of(shape)
    drawn = _unit(draw_from(key, generator), shape, dtypes.float32) < p  # type: ignore[operator]
    return drawn if dtype is None else core.cast(drawn, dtype)


def chosen(p: float, shape: tuple[int, ...], *, key: Any = None, generator: Generator | None = None) -> Tensor:
    """A bool mask, true with probability `p` (a number). A compiled gradient draws it again instead of keeping it."""
    threshold = min(round(p * 2**32), MASK)
    return apply(RANDOM_MASK, draw_from(key, generator), {"shape": shape, "threshold": threshold})


def categorical(logits: Any, num_samples: int | None = None, *, dtype: Any = "int64", key: Any = None,
                generator: Generator | None = None) -> Tensor:
    """Classes drawn with probabilities softmax(logits) over the last dim: shape logits.shape[:-1], then num_samples.

    >>> categorical([[0.0, float("-inf")], [float("-inf"), 0.0]], 3).tolist()
    [[0, 0, 0], [1, 1, 1]]
    """
    t = core.strong(logits)
    if t.dtype.kind != "f":
        t = core.cast(t, dtypes.to_float(t.dtype))
    if t.ndim == 0:
        raise ValueError("categorical: logits need a last dim of classes")
    if num_samples is not None:
        t = reshaped(t, (*t.shape[:-1], 1, t.shape[-1]))
        t = core.broadcast_to(t, (*t.shape[:-2], num_samples, t.shape[-1]))
    noise = gumbel(t.shape, dtype=t.dtype, key=key, generator=generator)
    return core.cast(argmax(t + noise, axis=-1), dtype)


def permutation(x: Any, axis: int = 0, *, key: Any = None, generator: Generator | None = None) -> Tensor:
    """The elements of `x` along `axis` in random order; of an int n, the numbers below n.

    >>> sorted(permutation(5).tolist())
    [0, 1, 2, 3, 4]
    """
    t = arange(x) if isinstance(x, int) else core.strong(x)
    a = core.normalize_axis("permutation", axis, t.ndim)
    order = argsort(_bits(draw_from(key, generator), (t.shape[a],), "uint64"))
    return take(t, order, axis=a)


def shuffle(x: Tensor, axis: int = 0, *, key: Any = None, generator: Generator | None = None) -> None:
    """Put the elements of the tensor `x` along `axis` in random order, in place; `permutation` gives a new tensor.

    >>> t = arange(5)
    >>> shuffle(t)
    >>> sorted(t.tolist())
    [0, 1, 2, 3, 4]
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"shuffle writes into a tensor, got {type(x).__name__}; permutation(x) gives a new one")
    core.rebind(x, permutation(x, axis, key=key, generator=generator))


def choice(a: Any, shape: Any = (), replace: bool = True, p: Any = None, axis: int = 0, *, key: Any = None,
           generator: Generator | None = None) -> Tensor:
    """Elements of `a` along `axis` (of an int: numbers below it), each with probability `p` or alike.

    ValueError without replacement for more elements than there are.

    >>> choice(1, (3,)).tolist()
    [0, 0, 0]
    """
    t = arange(a) if isinstance(a, int) else core.strong(a)
    at = core.normalize_axis("choice", axis, t.ndim)
    n, shape = t.shape[at], extents_of(shape)
    count = math.prod(shape)
    if replace and p is None:
        picked = randint(0, n, (count,), dtype="int64", key=key, generator=generator)
    elif replace:
        picked = categorical(log(core.as_tensor(p)), count, key=key, generator=generator)
    else:
        if count > n:
            raise ValueError(f"choice: {count} elements without replacement out of {n}")
        noise = gumbel((n,), dtype="float64", key=key, generator=generator)
        picked = argsort(noise if p is None else noise + log(core.as_tensor(p)), descending=True)[:count]
    drawn = take(permuted(t, moved_axis(t.ndim, at, 0)), picked, axis=0)
    return reshaped(drawn, (*shape, *drawn.shape[1:]))


def _as_method(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Generator, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs, generator=self)

    method.__name__, method.__doc__ = function.__name__, function.__doc__
    return method


_DRAWS: Sequence[Callable[..., Any]] = (
    uniform, normal, truncated_normal, exponential, gumbel, randint, bernoulli, categorical, permutation, shuffle,
    choice)
for _function in _DRAWS:
    setattr(Generator, _function.__name__, _as_method(_function))

__all__ = ["random_normal", "random_uniform"]
