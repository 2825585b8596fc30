"""Convolutions over 1, 2 or 3 dims: `conv1d conv2d conv3d conv_transpose depthwise_conv1d depthwise_conv2d`.

In: tensors, channels last: `[batch, *dims, channels]`, kernels `[*window, channels in, channels out]`. Out: what the
deep-learning libraries call a convolution: the kernel is not flipped.

Two primitives, each a product over the windows of x: `convolution` sums over a window and its channels,
`convolution_kernel` (the gradient of the other's kernel) over all windows. Every derivative is one of them again. Once
derivatives have been taken, `dissolve` writes them as matrix products whose left operand is a view of windows
(`as_product`); `lower/fuse.py` reads such operands in place. Where groups are single channels, they are products of
columns instead, so that vectors run along channels.

Read next: `windows.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np

from tracejit import dtypes
from tracejit.ir import Type
from tracejit.ops import core
from tracejit.ops import elementwise as ew
from tracejit.ops.core import convert, numeric, primitive
from tracejit.ops.linalg import column_product, product
from tracejit.ops.movement import Ints, along, moved_axis, permuted, reshaped, window
from tracejit.ops.reduction import sum as total
from tracejit.ops.windows import (
    MOST_TAPS,
    Pairs,
    Reach,
    check_windows,
    padded,
    paddings,
    per_dim,
    positions,
    taps,
    windows,
)
from tracejit.tensor import Tensor, apply

EAGER_BYTES = 1 << 24  # of windows written out at once
FEW_CHANNELS = 8  # with fewer, vectors should run along positions
# With so many, each by itself, what goes back from few strided windows is written out: one kernel without copies. With
# fewer, its rows would be too short.
MANY_CHANNELS = 64
# A sum over all positions is cut into at most so many parts, each of at least so many terms; their results together
# have at most so many elements.
PARTS = 16
PART_TERMS = 512
PARTS_ELEMENTS = 1 << 20


# -- the primitives ----------------------------------------------------------------------------------------------------
def _check(name: str, x: Type, k: Type, of: str, groups: int) -> None:
    if x.dtype != k.dtype:
        raise TypeError(f"{name}: dtypes {x.dtype} of x and {k.dtype} of the {of} differ")
    if x.ndim < 3 or x.ndim != k.ndim or groups < 1 or x.shape[-1] % groups or k.shape[-1] % groups:
        raise ValueError(f"{name}: x of shape {x.shape} and a {of} of shape {k.shape} do not go together "
                         f"(groups {groups})")


def _counts(x: Type, sizes: Ints, steps: Ints, pads: Pairs, dilations: Ints) -> Ints:
    extents = (n + low + high for n, (low, high) in zip(x.shape[1:-1], pads, strict=True))
    return tuple(positions(*of) for of in zip(extents, sizes, steps, dilations, strict=True))


def _infer(x: Type, k: Type, *, steps: Ints, pads: Pairs, dilations: Ints, groups: int) -> Type:
    _check("convolution", x, k, "kernel", groups)
    if k.shape[-2] * groups != x.shape[-1]:
        raise ValueError(f"convolution: x of shape {x.shape} has {x.shape[-1]} channels, but the kernel of shape "
                         f"{k.shape} is for {groups} groups of {k.shape[-2]}")
    return Type((x.shape[0], *_counts(x, k.shape[:-2], steps, pads, dilations), k.shape[-1]), x.dtype)


def _kernel_infer(x: Type, g: Type, *, sizes: Ints, steps: Ints, pads: Pairs, dilations: Ints, groups: int) -> Type:
    _check("convolution_kernel", x, g, "result", groups)
    if g.shape[:-1] != (x.shape[0], *_counts(x, sizes, steps, pads, dilations)):
        raise ValueError(f"convolution_kernel: windows {sizes} of shape {x.shape} do not give shape {g.shape}")
    return Type((*sizes, x.shape[-1] // groups, g.shape[-1]), x.dtype)


def _rows(x: np.ndarray, sizes: Ints, steps: Ints, dilations: Ints, groups: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Windows written out as matrices (group, position, element), some images at a time."""
    counts = tuple(positions(*of) for of in zip(x.shape[1:-1], sizes, steps, dilations))
    inner = x.strides[1:-1]
    view = np.lib.stride_tricks.as_strided(
        x, (x.shape[0], *counts, *sizes, x.shape[-1]),
        (x.strides[0], *(s * n for s, n in zip(inner, steps)), *(s * n for s, n in zip(inner, dilations)),
         x.strides[-1]))
    each = math.prod(view.shape[1:]) * x.itemsize
    some = max(1, EAGER_BYTES // max(each, 1))
    elements = math.prod(sizes) * (x.shape[-1] // groups)
    for first in range(0, x.shape[0], some):
        part = view[first: first + some]
        apart = np.moveaxis(part.reshape(*part.shape[:-1], groups, x.shape[-1] // groups), -2, 0)
        yield slice(first, first + some), apart.reshape(groups, len(part) * math.prod(counts), elements)


def _by_channel(inputs: int, outputs: int, groups: int) -> int:
    """If each group goes from one channel to few, or from few to one, how many: then every pair is a column of a
    product of columns. Else 0."""
    ways = inputs // groups, outputs // groups
    return max(ways) if groups > 1 and min(ways) == 1 and max(ways) <= FEW_CHANNELS else 0


def _grouped(k: np.ndarray, groups: int) -> np.ndarray:
    """A kernel as a matrix (element, channel) for each group."""
    apart = k.reshape(math.prod(k.shape[:-1]), groups, k.shape[-1] // groups)
    return np.moveaxis(apart, 1, 0)


def _with_zeros(x: np.ndarray, pads: Pairs) -> np.ndarray:
    return np.pad(x, ((0, 0), *pads, (0, 0))) if any(map(any, pads)) else x


def _eager(x: np.ndarray, k: np.ndarray, *, steps: Ints, pads: Pairs, dilations: Ints, groups: int) -> np.ndarray:
    out = np.zeros(_infer(Type(x.shape, x.dtype), Type(k.shape, k.dtype), steps=steps, pads=pads, dilations=dilations,
                          groups=groups).shape, x.dtype)
    if out.size:
        for some, rows in _rows(_with_zeros(x, pads), k.shape[:-2], steps, dilations, groups):
            found = np.moveaxis(np.matmul(rows, _grouped(k, groups)), 0, 1)
            out[some] = found.reshape(-1, *out.shape[1:])
    return out


def _kernel_eager(x: np.ndarray, g: np.ndarray, *, sizes: Ints, steps: Ints, pads: Pairs, dilations: Ints,
                  groups: int) -> np.ndarray:
    shape = _kernel_infer(Type(x.shape, x.dtype), Type(g.shape, g.dtype), sizes=sizes, steps=steps, pads=pads,
                          dilations=dilations, groups=groups).shape
    out = np.zeros((groups, math.prod(shape[:-1]), shape[-1] // groups), x.dtype)
    if out.size and g.size:
        for some, rows in _rows(_with_zeros(x, pads), sizes, steps, dilations, groups):
            out += np.matmul(np.swapaxes(rows, 1, 2), _grouped(g[some], groups))
    return np.ascontiguousarray(np.moveaxis(out, 0, 1)).reshape(shape)


def convolution(x: Tensor, k: Tensor, steps: Ints, pads: Pairs, dilations: Ints, groups: int) -> Tensor:
    """The strict convolution, with zeros around x."""
    return apply(CONVOLUTION, (x, k), {"steps": steps, "pads": pads, "dilations": dilations, "groups": groups})


def kernel_gradient(x: Tensor, g: Tensor, sizes: Ints, steps: Ints, pads: Pairs, dilations: Ints,
                    groups: int) -> Tensor:
    """The cotangent of the kernel of a convolution of x, from that of its result."""
    return apply(KERNEL, (x, g), {"sizes": sizes, "steps": steps, "pads": pads, "dilations": dilations,
                                  "groups": groups})


def input_gradient(g: Tensor, k: Tensor, extents: Ints, steps: Ints, pads: Pairs, dilations: Ints,
                   groups: int) -> Tensor:
    """The cotangent of what is convolved, whose dims have `extents`: convolutions of g with the kernel turned round,
    one for each set of positions that the same taps of the kernel reach."""
    rank, (*sizes, inputs, outputs) = len(extents), k.shape
    turned = reshaped(k, (*sizes, inputs, groups, outputs // groups))
    turned = permuted(turned, (*range(rank), rank + 2, rank + 1, rank))
    turned = reshaped(turned, (*sizes, outputs // groups, groups * inputs))
    reach = Reach.of(extents, tuple(sizes), steps, pads, dilations)
    if len(reach.sets) > 1 and inputs == 1 and groups == outputs >= MANY_CHANNELS and math.prod(sizes) <= MOST_TAPS:
        return reach.summed([g], lambda tap, terms: terms[0] * reshaped(_tap(k, tap), (groups,)))  # type: ignore[operator]
    around = reach.around(g)
    found = []
    for chosen in reach.sets:
        if any(s.count == 0 for s in chosen):
            found.append(core.full(0, (g.shape[0], *reach.counts, groups * inputs), g.dtype))
            continue
        seen = reach.seen(around, [s.start - (s.count - 1) * s.apart for s in chosen],
                          [n + (s.count - 1) * s.apart for n, s in zip(reach.counts, chosen)])
        part = window(turned, (*(s.tap(s.count - 1) for s in chosen), 0, 0),
                      (*(s.count for s in chosen), *turned.shape[-2:]), (*(-s.period for s in chosen), 1, 1))
        found.append(convolution(seen, part, (1,) * rank, ((0, 0),) * rank, tuple(s.apart for s in chosen), groups))
    return reach.whole(found)


def _tap(k: Tensor, tap: Ints) -> Tensor:
    return window(k, (*tap, 0, 0), (*(1 for _ in tap), *k.shape[-2:]))


def _conj(t: Tensor) -> Tensor:
    return ew.conj(t) if t.dtype.kind == "c" else t


def _vjp(g: Tensor, y: Tensor, x: Tensor, k: Tensor, *, steps: Ints, pads: Pairs, dilations: Ints,
         groups: int) -> tuple[Tensor, Tensor]:
    return (input_gradient(g, _conj(k), x.shape[1:-1], steps, pads, dilations, groups),
            kernel_gradient(_conj(x), g, k.shape[:-2], steps, pads, dilations, groups))


def _kernel_vjp(h: Tensor, y: Tensor, x: Tensor, g: Tensor, *, sizes: Ints, steps: Ints, pads: Pairs, dilations: Ints,
                groups: int) -> tuple[Tensor, Tensor]:
    return (input_gradient(_conj(g), h, x.shape[1:-1], steps, pads, dilations, groups),
            convolution(_conj(x), h, steps, pads, dilations, groups))


def _bilinear(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The tangent of a product of two tensors."""
    def jvp(tangents: Sequence[Tensor | None], y: Tensor, a: Tensor, b: Tensor, **attrs: Any) -> Tensor:
        terms = [op(t, b, **attrs) if n == 0 else op(a, t, **attrs) for n, t in enumerate(tangents) if t is not None]
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]  # type: ignore[operator]

    return jvp


CONVOLUTION = primitive("convolution", "library", infer=_infer, eager=_eager, vjp=_vjp, jvp=_bilinear(convolution),
                        doc="Sums of products of windows of x, all channels of a group at once, and a kernel.")
KERNEL = primitive("convolution_kernel", "library", infer=_kernel_infer, eager=_kernel_eager, vjp=_kernel_vjp,
                   jvp=_bilinear(kernel_gradient),
                   doc="Sums, over all windows of x, of products of their elements and the numbers of g beside them.")


# -- as matrix products ------------------------------------------------------------------------------------------------
def _matrices(x: Tensor, sizes: Ints, steps: Ints, dilations: Ints, groups: int) -> Tensor:
    """Windows as matrices (group, position, element); one matrix if there is but one group."""
    rank, channels = len(sizes), x.shape[-1] // groups
    seen = windows(x, 1, sizes, steps, dilations)
    batch, counts = seen.shape[0], seen.shape[1: rank + 1]
    apart = reshaped(seen, (batch, *counts, groups, channels, *sizes))
    taps = range(rank + 3, 2 * rank + 3)
    apart = permuted(apart, (rank + 1, *range(rank + 1), *taps, rank + 2))
    shape = math.prod((batch, *counts)), math.prod((*sizes, channels))
    return reshaped(apart, shape if groups == 1 else (groups, *shape))


def _places(x: Tensor, sizes: Ints, steps: Ints, dilations: Ints) -> Tensor:
    """Windows as (position, element, channel)."""
    rank = len(sizes)
    seen = windows(x, 1, sizes, steps, dilations)
    apart = permuted(seen, (*range(rank + 1), *range(rank + 2, 2 * rank + 2), rank + 1))
    return reshaped(apart, (math.prod(seen.shape[: rank + 1]), math.prod(sizes), x.shape[-1]))


def _repeated(t: Tensor, times: int) -> Tensor:
    """Each channel so many times, side by side."""
    wide = core.broadcast_to(reshaped(t, (*t.shape, 1)), (*t.shape, times))
    return reshaped(wide, (*t.shape[:-1], t.shape[-1] * times))


def _channels_last(k: Tensor, groups: int) -> Tensor:
    """A kernel as (element, column), whose columns are pairs of channels, those of one group side by side."""
    *sizes, ins, _ = k.shape
    apart = reshaped(k, (math.prod(sizes), ins, groups, k.shape[-1] // groups))
    return reshaped(permuted(apart, (0, 2, 1, 3)), (math.prod(sizes), k.size // max(math.prod(sizes), 1)))


def _by_group(t: Tensor, groups: int) -> Tensor:
    """Everything but the last dim as rows, for each group of the last."""
    rows, columns = math.prod(t.shape[:-1]), t.shape[-1] // groups
    if groups == 1:
        return reshaped(t, (rows, columns))
    return permuted(reshaped(t, (rows, groups, columns)), (1, 0, 2))


def _from_groups(t: Tensor, shape: Ints) -> Tensor:
    return reshaped(t if t.ndim == 2 else permuted(t, (1, 0, 2)), shape)


def _convolution_product(x: Tensor, k: Tensor, *, steps: Ints, pads: Pairs, dilations: Ints, groups: int) -> Tensor:
    sizes = k.shape[:-2]
    x = padded(x, 1, pads)
    counts = tuple(positions(*of) for of in zip(x.shape[1:-1], sizes, steps, dilations))
    if many := _by_channel(x.shape[-1], k.shape[-1], groups):
        columns = _repeated(x, many) if x.shape[-1] == groups else x
        found = column_product(_places(columns, sizes, steps, dilations), _channels_last(k, groups))
        if k.shape[-1] == groups:
            found = total(reshaped(found, (found.shape[0], groups, many)), axis=2, dtype=x.dtype)
        return reshaped(found, (x.shape[0], *counts, k.shape[-1]))
    found = product(_matrices(x, sizes, steps, dilations, groups), _by_group(k, groups))
    return _from_groups(found, (x.shape[0], *counts, k.shape[-1]))


def _kernel_product(x: Tensor, g: Tensor, *, sizes: Ints, steps: Ints, pads: Pairs, dilations: Ints,
                    groups: int) -> Tensor:
    x, shape = padded(x, 1, pads), (*sizes, x.shape[-1] // groups, g.shape[-1])
    if many := _by_channel(x.shape[-1], g.shape[-1], groups):
        x, g = (_repeated(t, many) if t.shape[-1] == groups else t for t in (x, g))
        turned = permuted(_places(x, sizes, steps, dilations), (1, 0, 2))
        found = _in_parts(column_product, turned, 1, _by_group(g, 1), g.shape[:-1], math.prod(shape))
        apart = reshaped(found, (found.shape[0], groups, shape[-2], shape[-1] // groups))
        return reshaped(permuted(apart, (0, 2, 1, 3)), shape)
    rows = _matrices(x, sizes, steps, dilations, groups)
    turned = permuted(rows, (*range(rows.ndim - 2), rows.ndim - 1, rows.ndim - 2))
    found = _in_parts(product, turned, turned.ndim - 1, _by_group(g, groups), g.shape[:-1], math.prod(shape))
    return _from_groups(found, shape)


def _in_parts(product: Callable[[Tensor, Tensor], Tensor], a: Tensor, axis: int, b: Tensor, dims: Ints,
              results: int) -> Tensor:
    """A product that sums over positions, which make up `dims`, the axis of a and the last but one of b: sums of many
    terms are shared, and added in order."""
    parts, of_b = _parts(dims, results), b.ndim - 2
    if parts <= 1:
        return product(a, b)

    def cut(t: Tensor, d: int) -> Tensor:
        apart = reshaped(t, (*t.shape[:d], parts, t.shape[d] // parts, *t.shape[d + 1:]))
        return permuted(apart, moved_axis(apart.ndim, d, 0))

    return total(product(cut(a, axis), cut(b, of_b)), axis=0, dtype=b.dtype)


def _parts(dims: Ints, results: int) -> int:
    """Into how many parts of equal length to cut a sum over `dims`: leading dims, or a divisor of one."""
    most = min(PARTS, math.prod(dims) // PART_TERMS, PARTS_ELEMENTS // max(results, 1))
    found = 1
    for n in dims:
        found *= next(d for d in range(max(min(n, most // found), 1), 0, -1) if n % d == 0)
        if n and found % n:
            break
    return found


as_product: dict[str, Callable[..., Tensor]] = {
    CONVOLUTION.name: _convolution_product, KERNEL.name: _kernel_product}


# -- what users call ---------------------------------------------------------------------------------------------------
def _operands(name: str, rank: int, x: Any, kernel: Any) -> tuple[Tensor, Tensor, np.dtype]:
    """x and kernel in the dtype to compute in (float16 is summed in float32), and the dtype of the result."""
    (x, kernel), dtype, _ = convert(name, (x, kernel), numeric)
    if not isinstance(x, Tensor) or not isinstance(kernel, Tensor) or x.ndim != rank + 2 or kernel.ndim != rank + 2:
        shapes = " and ".join(str(getattr(t, "shape", ())) for t in (x, kernel))
        raise ValueError(f"{name}: x [batch, {rank} dims, channels] and kernel [{rank} dims, in, out] must have "
                         f"{rank + 2} dims, got shapes {shapes}")
    inside = dtypes.float32 if dtype == dtypes.float16 else dtype
    return core.cast(x, inside), core.cast(kernel, inside), dtype


def _conv(name: str, rank: int, x: Any, kernel: Any, strides: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    t, k, dtype = _operands(name, rank, x, kernel)
    steps, dilations = per_dim(name, "strides", strides, rank), per_dim(name, "dilation", dilation, rank)
    sizes = k.shape[:-2]
    (groups,) = per_dim(name, "groups", groups, 1)
    if t.shape[-1] != k.shape[-2] * groups or k.shape[-1] % groups:
        raise ValueError(f"{name}: x of shape {t.shape} has {t.shape[-1]} channels; a kernel of shape {k.shape} in "
                         f"{groups} group{'s' * (groups > 1)} takes {k.shape[-2] * groups} and must give a multiple of "
                         f"{groups}")
    pads = paddings(name, padding, t.shape[1:-1], sizes, steps, dilations)
    check_windows(name, t.shape, 1, sizes, dilations, pads)
    return core.cast(convolution(t, k, steps, pads, dilations, groups), dtype)


def conv1d(x: Any, kernel: Any, strides: Any = 1, padding: Any = "valid", dilation: Any = 1,
           groups: int = 1) -> Tensor:
    """Convolution over one dim: x `[batch, length, channels]`, kernel `[window, channels / groups, channels out]`.

    Arguments and errors as `conv2d`.

    >>> conv1d([[[1.], [2.], [3.], [4.]]], [[[1.]], [[10.]]]).numpy().ravel().tolist()
    [21.0, 32.0, 43.0]
    """
    return _conv("conv1d", 1, x, kernel, strides, padding, dilation, groups)


def conv2d(x: Any, kernel: Any, strides: Any = 1, padding: Any = "valid", dilation: Any = 1,
           groups: int = 1) -> Tensor:
    """Convolution over two dims: x `[batch, height, width, channels]`, kernel `[window height, window width,
    channels / groups, channels out]`; the result is `[batch, height, width, channels out]`.

    y[b, i, j, o] = sum over p, q, c of x[b, i * stride + p * dilation, j * stride + q * dilation, c] kernel[p, q, c, o]

    strides, dilation: an int, or one for each dim. padding: "valid" (none), "same" (zeros around x, so that the result
    has the size of x divided by the stride, rounded up; the odd zero goes to the end), an int, or a pair
    (before, after) for each dim. groups: channels in so many groups, each with kernels of its own. The dtype is the
    common one of x and kernel; float16 is summed in float32.

    Raises ValueError if channels do not match, or a window reaches further than x with its padding.

    >>> conv2d(np.ones((1, 5, 5, 2)), np.ones((3, 3, 2, 4)), strides=2, padding="same").shape
    (1, 3, 3, 4)
    """
    return _conv("conv2d", 2, x, kernel, strides, padding, dilation, groups)


def conv3d(x: Any, kernel: Any, strides: Any = 1, padding: Any = "valid", dilation: Any = 1,
           groups: int = 1) -> Tensor:
    """Convolution over three dims: x `[batch, depth, height, width, channels]`, kernel `[three windows, channels /
    groups, channels out]`. Arguments and errors as `conv2d`.

    >>> conv3d(np.ones((1, 4, 4, 4, 1)), np.ones((2, 2, 2, 1, 3))).shape
    (1, 3, 3, 3, 3)
    """
    return _conv("conv3d", 3, x, kernel, strides, padding, dilation, groups)


def conv_transpose(x: Any, kernel: Any, strides: Any = 1, padding: Any = "valid", dilation: Any = 1, groups: int = 1,
                   output_shape: Any = None) -> Tensor:
    """The transpose of a convolution (its gradient with respect to what it convolves), over the 1, 2 or 3 dims of
    x `[batch, *dims, channels]`; kernel `[*window, channels out / groups, channels of x]`.

    Each element of x adds its multiple of the kernel to the result, at its position times the stride. strides, padding,
    dilation and groups are those of the convolution that goes from the result to x. output_shape: the sizes of the
    result's dims, if not dim * stride + max(window - stride, 0) without padding (the window as dilated), dim * stride
    with "same", and what just fits with other paddings.

    Raises ValueError if channels do not match, or no convolution goes from `output_shape` to x.

    >>> conv_transpose([[[1.], [2.]]], [[[1.]], [[10.]], [[100.]]], strides=2).numpy().ravel().tolist()
    [1.0, 10.0, 102.0, 20.0, 200.0]
    """
    rank = (x if isinstance(x, Tensor) else core.as_tensor(x)).ndim - 2
    if rank not in (1, 2, 3):
        raise ValueError(f"conv_transpose: x must have 1, 2 or 3 dims between batch and channels, got {rank + 2} dims")
    return _transposed("conv_transpose", rank, x, kernel, strides, padding, dilation, groups, output_shape)


def conv1d_transpose(x: Any, kernel: Any, strides: Any = 1, padding: Any = "valid", dilation: Any = 1,
                     groups: int = 1, output_shape: Any = None) -> Tensor:
    """`conv_transpose` over one dim."""
    return _transposed("conv1d_transpose", 1, x, kernel, strides, padding, dilation, groups, output_shape)


def conv2d_transpose(x: Any, kernel: Any, strides: Any = 1, padding: Any = "valid", dilation: Any = 1,
                     groups: int = 1, output_shape: Any = None) -> Tensor:
    """`conv_transpose` over two dims."""
    return _transposed("conv2d_transpose", 2, x, kernel, strides, padding, dilation, groups, output_shape)


def conv3d_transpose(x: Any, kernel: Any, strides: Any = 1, padding: Any = "valid", dilation: Any = 1,
                     groups: int = 1, output_shape: Any = None) -> Tensor:
    """`conv_transpose` over three dims."""
    return _transposed("conv3d_transpose", 3, x, kernel, strides, padding, dilation, groups, output_shape)


def _transposed(name: str, rank: int, x: Any, kernel: Any, strides: Any, padding: Any, dilation: Any, groups: int,
                output_shape: Any) -> Tensor:
    g, k, dtype = _operands(name, rank, x, kernel)
    steps, dilations = per_dim(name, "strides", strides, rank), per_dim(name, "dilation", dilation, rank)
    sizes = k.shape[:-2]
    (groups,) = per_dim(name, "groups", groups, 1)
    if g.shape[-1] != k.shape[-1] or k.shape[-1] % groups:
        raise ValueError(f"{name}: x of shape {g.shape} has {g.shape[-1]} channels in {groups} "
                         f"group{'s' * (groups > 1)}, but the kernel of shape {k.shape} takes {k.shape[-1]}")
    reach = tuple((n - 1) * d + 1 for n, d in zip(sizes, dilations))
    if output_shape is not None:
        extents = per_dim(name, "output_shape", output_shape, rank)
    elif isinstance(padding, str):
        same = padding.lower() == "same"
        extents = tuple(n * step + (0 if same or not n else max(r - step, 0))
                        for n, step, r in zip(g.shape[1:-1], steps, reach))
    else:
        pads = paddings(name, padding, (0,) * rank, sizes, steps, dilations)
        extents = tuple((n - 1) * step + r - sum(pair)
                        for n, step, r, pair in zip(g.shape[1:-1], steps, reach, pads))
    if min(extents, default=1) < 0:
        raise ValueError(f"{name}: padding {padding!r} leaves nothing of the result of x of shape {g.shape}")
    pads = paddings(name, padding, extents, sizes, steps, dilations)
    wide = tuple(n + low + high for n, (low, high) in zip(extents, pads))
    if tuple(positions(*of) for of in zip(wide, sizes, steps, dilations)) != g.shape[1:-1]:
        raise ValueError(f"{name}: a convolution from {extents} with windows {sizes}, strides {steps}, dilation "
                         f"{dilations} and padding {padding!r} does not give the dims of x of shape {g.shape}")
    return core.cast(input_gradient(g, k, extents, steps, pads, dilations, groups), dtype)


def depthwise_conv1d(x: Any, kernel: Any, strides: Any = 1, padding: Any = "valid", dilation: Any = 1) -> Tensor:
    """As `depthwise_conv2d`, over one dim: x `[batch, length, channels]`, kernel `[window, channels, multiplier]`."""
    return _depthwise("depthwise_conv1d", 1, x, kernel, strides, padding, dilation)


def depthwise_conv2d(x: Any, kernel: Any, strides: Any = 1, padding: Any = "valid", dilation: Any = 1) -> Tensor:
    """Convolution of each channel by itself: x `[batch, height, width, channels]`, kernel `[window height, window
    width, channels, multiplier]`; the result has channels * multiplier channels, those of one channel side by side.

    Arguments and errors as `conv2d`.

    >>> depthwise_conv2d(np.ones((1, 4, 4, 3)), np.ones((3, 3, 3, 2))).shape
    (1, 2, 2, 6)
    """
    return _depthwise("depthwise_conv2d", 2, x, kernel, strides, padding, dilation)


def _depthwise(name: str, rank: int, x: Any, kernel: Any, strides: Any, padding: Any, dilation: Any) -> Tensor:
    t, k, dtype = _operands(name, rank, x, kernel)
    steps, dilations = per_dim(name, "strides", strides, rank), per_dim(name, "dilation", dilation, rank)
    *sizes, channels, multiplier = k.shape
    if t.shape[-1] != channels:
        raise ValueError(f"{name}: x of shape {t.shape} has {t.shape[-1]} channels, but the kernel of shape {k.shape} "
                         f"is for {channels}")
    pads = paddings(name, padding, t.shape[1:-1], tuple(sizes), steps, dilations)
    check_windows(name, t.shape, 1, tuple(sizes), dilations, pads)
    if channels * multiplier < FEW_CHANNELS and 0 < math.prod(sizes) <= MOST_TAPS and k.size:
        return core.cast(_depthwise_by_taps(padded(t, 1, pads), k, steps, dilations), dtype)
    k = reshaped(k, (*sizes, 1, channels * multiplier))
    return core.cast(convolution(t, k, steps, pads, dilations, max(channels, 1)), dtype)


def _depthwise_by_taps(t: Tensor, k: Tensor, steps: Ints, dilations: Ints) -> Tensor:
    """As a sum of the taps of windows times a row of the kernel each."""
    *sizes, channels, multiplier = k.shape
    rows = reshaped(k, (math.prod(sizes), channels, multiplier))
    found = []
    for n, each in enumerate(taps(t, 1, tuple(sizes), steps, dilations)):
        row, shape = along(rows, 0, n, 1), (*each.shape, multiplier)
        many = core.broadcast_to(reshaped(each, (*each.shape, 1)), shape)
        found.append(many * core.broadcast_to(reshaped(row, row.shape[1:]), shape))  # type: ignore[operator]
    summed = reduce(ew.add, found)
    return reshaped(summed, (*summed.shape[:-2], channels * multiplier))


__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose", "conv1d_transpose", "conv2d_transpose", "conv3d_transpose",
           "depthwise_conv1d", "depthwise_conv2d"]
