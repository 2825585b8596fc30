"""Products of windows: where the rows of a matrix, or what is summed over, go over several dims of what is in memory.

In: a product. Out: `Windows`, how it reads its operands in place where that takes more than one stride for rows and one
for columns. So convolutions, which are products of windows, copy nothing.

The dims of a matrix that a reshape made are split in factors again, until positions in memory are sums of strides.

Read next: `fuse.py` (who asks), `runtime/gemm_windows.py` (who walks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tracejit.ir import Node
from tracejit.lower.access import Coords, parts_of
from tracejit.lower.index import Index, dim, factors
from tracejit.lower.loops import address, contiguous

Ints = tuple[int, ...]
ROUNDS = 8  # of splitting: some factors show only once others are split off


@dataclass(frozen=True, slots=True)
class Windows:
    """How a product reads its operands: for each a stored value, and where in it, over the dims (*batch, *rows, *inner)
    and (*batch, *inner, column). apart: columns are apart, so that the first has one more dim, too."""

    batch: Ints
    rows: Ints
    inner: Ints
    operands: tuple[tuple[Node, Coords], tuple[Node, Coords]]
    apart: bool = False

    def strides(self, k: int) -> Callable[..., tuple[int, Ints] | None]:
        """A function that gives (offset, strides) of operand `k`, as `operands.gemm_strides` does, for where it is, its
        shape, and the strides of its buffer (contiguous if not given). None if it cannot be walked."""
        def walk(at: tuple[Node, Coords], shape: Ints, layout: Ints | None = None) -> tuple[int, Ints] | None:
            flat = address(at[1], layout or contiguous(at[0].shape))
            columns = k == 1 or self.apart
            count = len(self.batch) + len(self.inner) + (len(self.rows) if k == 0 else 0) + columns
            if not flat.affine or (columns and shape[-1] != 1 and flat.coefficient(count - 1) != 1):
                return None
            return flat.const, tuple(flat.coefficient(d) for d in range(count))

        return walk


def windows(product: Node, plain: Callable[[Node], Node]) -> Windows | None:
    """How a product of real matrices reads windows in place. None if its left operand can be read by one stride for
    rows and one for columns from as far back; `plain` tells from where. Products of columns are always read so."""
    a, b = product.inputs
    *batch, m, n = product.shape
    k = b.shape[-2]
    if product.op.name == "column_product":
        base, (*lead, rows, inner, _) = _furthest(a, [*((e,) for e in batch), (m,), (k,), (n,)], n != 1)
        other, (*lead, inner, _) = _furthest(b, [*lead, inner, (n,)], n != 1)
        places = _at(a, base, [*lead, rows, inner, (n,)]), _at(b, other, [*lead, inner, (n,)])
        return Windows(tuple(e for group in lead for e in group), rows, inner, places, apart=True)
    if product.dtype.kind == "c" or 0 in (*product.shape, k) or a.op.kind != "movement":
        return None
    straight = plain(a)
    if straight.op.kind != "movement":  # nothing is further back
        return None
    base, (*lead, rows, inner) = _furthest(a, [*((e,) for e in batch), (m,), (k,)])
    if base is a or base is straight:
        return None
    other, (*lead, inner, _) = _furthest(b, [*lead, inner, (n,)], n != 1)
    places = _at(a, base, [*lead, rows, inner]), _at(b, other, [*lead, inner, (n,)])
    return Windows(tuple(e for group in lead for e in group), rows, inner, places)


def _furthest(node: Node, groups: list[Ints], columns: bool = False) -> tuple[Node, list[Ints]]:
    """The value furthest behind `node` that can be read in its place by strides over dims; and these dims, as groups
    that each make up a dim of `node`. columns: the last dim must have stride 1, and stays whole."""
    for _ in range(ROUNDS):
        found, last = node, sum(map(len, groups)) - 1
        for at, coords in _behind(node, _coords(groups)):
            flat = address(coords, contiguous(at.shape))
            if flat.affine and (not columns or flat.coefficient(last) == 1):
                found = at
        if flat.affine:
            break
        splits = factors(atom for atom, _ in flat.terms)
        if columns:
            splits.pop(last, None)
        before, groups = groups, _split(groups, splits)
        if groups == before:
            break
    return found, groups


def _split(groups: list[Ints], splits: dict[int, Ints]) -> list[Ints]:
    """Groups of dims, some of them in factors."""
    found, number = [], 0
    for group in groups:
        new: Ints = ()
        for extent in group:
            new += splits.get(number, (extent,))
            number += 1
        found.append(new)
    return found


def _at(node: Node, base: Node, groups: list[Ints]) -> tuple[Node, Coords]:
    return next((at, coords) for at, coords in _behind(node, _coords(groups)) if at is base)


def _coords(groups: Sequence[Ints]) -> Coords:
    """A coordinate for each group of dims, numbered through."""
    found, number = [], 0
    for group in groups:
        at = Index()
        for extent in group:
            at, number = at * extent + dim(number, extent), number + 1
        found.append(at)
    return tuple(found)


def _behind(node: Node, coords: Coords) -> Iterator[tuple[Node, Coords]]:
    """A value at coordinates, and those behind it that show the same elements."""
    yield node, coords
    while node.op.kind == "movement":
        parts = parts_of(node, coords)
        if len(parts) != 1 or parts[0].guards:
            return
        node, coords = node.inputs[parts[0].input], parts[0].coords
        yield node, coords
