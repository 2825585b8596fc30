"""Where values live and how a node's value is reached: shared by `fuse.py` (what goes together) and `loops.py` (the
loops).

In: a graph. Out: `Placement` (which nodes own a buffer, which are folded into their users) and `sources`, the walk
from a node at given coordinates back to the values that must already be there.

Dims of extent 1 never appear in a loop space: `squeezed` drops them, and `identity` gives a node's own coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, product
from math import prod
from typing import Any

from tracejit.dims import is_symbolic
from tracejit.ir import CONSTANT, INPUT, Node, Type
from tracejit.lower.index import Dim, Index, Opaque, Part, dim
from tracejit.lower.kernel import Access, View

Coords = tuple[Index, ...]
RARE = 8  # what one of so many elements shows, or fewer, counts as a border: kernels have code apart for it
FEW = (2, 3, 4)  # extents so small that they are written out: vectors run elsewhere


def squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    """Extents other than 1: the loop space of a shape."""
    return tuple(n for n in shape if n != 1)


def identity(shape: Sequence[int], dims: Sequence[int] | None = None) -> Coords:
    """The coordinates of a value of `shape` in its own loop space; `dims` renumbers the loop dims."""
    out: list[Index] = []
    k = 0
    for n in shape:
        if n == 1:
            out.append(Index())
        else:
            out.append(dim(k if dims is None else dims[k], n))
            k += 1
    return tuple(out)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def address(coords: Coords, strides: Sequence[int]) -> Index:
    """Element offset of `coords`."""
    out = Index()
    for c, s in zip(coords, strides, strict=True):
        out = out + c * s
    return out.joined()


def reduced_dims(node: Node) -> tuple[int, ...]:
    """The dims of a reduction's loop space (its input's, squeezed) that it folds."""
    space, shape, k, out = node.inputs[0].shape, node.attrs["axis"], 0, []
    for a, n in enumerate(space):
        if n != 1:
            if a in shape:
                out.append(k)
            k += 1
    return tuple(out)


def folds(node: Node) -> bool:
    """Whether a reduction really loops: one of a few terms is written out, as a map."""
    if node.op.kind != "reduction":
        return False
    terms = prod(node.inputs[0].shape[a] for a in node.attrs["axis"])
    return terms != 1 and (terms not in FEW or node.op.reduce is None or node.op.reduce.accumulate.startswith("arg"))


def runs(node: Node) -> bool:
    """Whether a kernel computes each element of a node from the one before, in its loop along a dim."""
    if not node.op.running:
        return False
    kind = node.dtype.kind
    if kind == "c":
        return node.op.running == "add"
    return kind in "fiu" or (kind == "b" and node.op.running != "recurrence")


def running_dims(node: Node) -> tuple[int, ...]:
    """The dim of a node's loop space that it runs along; none if that has one element."""
    axis = node.attrs["axis"]
    return () if node.shape[axis] == 1 else (sum(n != 1 for n in node.shape[:axis]),)


def terms_of(node: Node, coords: Coords) -> list[Coords]:
    """The coordinates of the terms of a reduction that is written out, at those of its result."""
    axes, shape = node.attrs["axis"], node.inputs[0].shape
    found = []
    for term in product(*(range(shape[a]) for a in axes)):
        at, rest = dict(zip(axes, term, strict=True)), iter(coords)
        found.append(tuple(Index((), at[a]) if a in at else next(rest) for a in range(len(shape))))
    return found


def is_scalar_constant(node: Node) -> bool:
    return node.op is CONSTANT and node.type.size == 1  # type: ignore[union-attr]


def parts_of(node: Node, coords: Coords) -> list[Part]:
    """The parts of a movement node that can show at `coords` (those whose guards may hold)."""
    types: list[Type] = [i.type for i in node.inputs]  # type: ignore[misc]
    found = []
    for part in node.op.index(coords, types, **node.attrs):  # type: ignore[misc]
        if any(g.never for g in part.guards) or types[part.input].size == 0:
            continue
        found.append(Part(part.input, part.coords, tuple(g for g in part.guards if not g.always)))
    return found


def shown(node: Node) -> list[Node]:
    """The inputs of a movement node that more than its borders show."""
    sizes = [i.type.size for i in node.inputs]  # type: ignore[union-attr]
    return [i for i, size in zip(node.inputs, sizes, strict=True) if size * RARE > sum(sizes)]


def places_of_parts(node: Node) -> list[Callable[[Coords], Coords]]:
    """For each input of a concat or an interleave, where in the result its element at given coordinates goes."""
    if node.op.name == "interleave":
        steps: tuple[int, ...] = node.attrs["steps"]
        return [partial(_spread, steps, starts) for starts in product(*map(range, steps))]
    axis, start = node.attrs["axis"], 0
    found: list[Callable[[Coords], Coords]] = []
    for i in node.inputs:
        starts = tuple(start if a == axis else 0 for a in range(len(i.shape)))
        found.append(partial(_spread, (1,) * len(i.shape), starts))
        start += i.shape[axis]
    return found


def _spread(steps: tuple[int, ...], starts: tuple[int, ...], coords: Coords) -> Coords:
    return tuple(c * step + start for c, step, start in zip(coords, steps, starts, strict=True))


def gather_coords(node: Node, coords: Coords, positions: Sequence[object]) -> tuple[Coords, Coords]:
    """(coordinates of the index arrays, coordinates of x) for a gather or a scatter's v at `coords`.

    `positions[k]` stands for the value of index array k at those coordinates.
    """
    x, index = node.inputs[0], node.inputs[-1]
    axes = node.attrs["axes"]
    lead = len(index.shape)
    rest = iter(coords[lead:])
    at = tuple(
        Index(((Opaque(positions[axes.index(a)], n), 1),)) if a in axes else next(rest) for a, n in enumerate(x.shape)
    )
    return coords[:lead], at


@dataclass(slots=True)
class Placement:
    """Which nodes own a buffer (`roots`); all others are folded into the kernels of their users."""

    roots: set[Node] = field(default_factory=set)
    folded: dict[Node, frozenset[Node]] = field(default_factory=dict)  # what computing a node computes, itself included
    why: dict[Node, str] = field(default_factory=dict)  # for people: why a root is not folded into its users
    windows: dict[Node, Any] = field(default_factory=dict)  # how products read windows in place, see products.py
    embedded: set[Node] = field(default_factory=set)  # what is put among other values
    assembled: set[Node] = field(default_factory=set)  # roots whose inputs, alike in shape, are put in place one by one
    checked: set[tuple[object, ...]] = field(default_factory=set)  # `places_of` that earlier steps have checked

    def keep(self, node: Node, why: str) -> None:
        """Make a node a root."""
        self.roots.add(node)
        self.why.setdefault(node, why)

    def stored(self, node: Node) -> bool:
        return node.op is INPUT or (node.op is CONSTANT and not is_scalar_constant(node)) or node in self.roots


def places_of(node: Node) -> tuple[object, ...]:
    """The indices of a gather or scatter, and the extents they belong to."""
    indices = node.inputs[2 if "mode" in node.attrs else 1 :]
    return (*indices, *(node.inputs[0].shape[a] for a in node.attrs["axes"]))


def covers(coords: Coords, shape: tuple[int, ...]) -> bool:
    """Whether a loop over the dims in `coords` comes by every element of an array of that shape."""
    dims = set()
    for at, n in zip(coords, shape, strict=True):
        if n == 1:
            continue
        atom, step = at.terms[0] if len(at.terms) == 1 else (None, 0)
        if not isinstance(atom, Dim) or atom.extent != n or step != 1 or at.const or atom in dims:
            return False
        dims.add(atom)
    return True


def inputs_at(node: Node, coords: Coords) -> Iterator[tuple[Node, Coords]]:
    """The inputs a folded node needs, each at its coordinates."""
    kind = node.op.kind
    if kind == "movement":
        for part in parts_of(node, coords):
            yield node.inputs[part.input], part.coords
    elif kind == "indexing":  # gather
        tokens = [(node, k, coords) for k in range(len(node.inputs) - 1)]
        index_coords, at = gather_coords(node, coords, tokens)
        for i in node.inputs[1:]:
            yield i, index_coords
        yield node.inputs[0], at
    elif kind == "source":
        for i in node.inputs:
            yield i, ()
    elif kind == "reduction":  # of a few terms
        for at in terms_of(node, coords):
            yield node.inputs[0], at
    else:
        for i in node.inputs:
            yield i, coords


def sources(node: Node, coords: Coords, placement: Placement, borders: bool = True) -> set[tuple[Node, Coords]]:
    """The stored values, each at its coordinates, that computing `node` at `coords` reads; also those that only borders
    show, if asked for.

    A stored `node` is itself expanded: the question is what its own kernel needs. A reduction's input is taken at the
    coordinates given (its caller passes those of the whole space).
    """
    found: set[tuple[Node, Coords]] = set()
    seen: set[tuple[Node, Coords]] = set()
    stack = list(inputs_at(node, coords))
    while stack:
        item = stack.pop()
        if item in seen:
            continue
        seen.add(item)
        if placement.stored(item[0]):
            found.add(item)
        else:
            some = item[0].inputs if borders or item[0].op.name != "concat" else shown(item[0])
            stack.extend(need for need in inputs_at(*item) if need[0] in some)
    return found


def in_line(writes: list[tuple[Access, View]]) -> list[tuple[Access, View]]:
    """Writes, with a note of those that lie just behind the one before; as far as numbers are known before the run."""
    found = writes[:1]
    for (_, u), (access, v) in pairwise(writes):
        known = not is_symbolic((u.offset, v.offset, *u.strides, *v.strides))
        behind = known and (u.buffer, u.offset + 1, u.strides) == (v.buffer, v.offset, v.strides)
        found.append((replace(access, follows=behind), v))
    return found
