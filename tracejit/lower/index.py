"""Index maps: integer expressions over loop dims, for movement ops.

In: a movement op's `index` rule says, for a coordinate of its result, which coordinate of which input it shows.
Out: composed and simplified expressions; `fuse.py` turns affine ones into strides and the rest into statements.

An `Index` is `const + sum(coef * atom)`; an atom is a loop `Dim`, or the floor quotient or remainder of an Index by a
positive int. Every atom knows its bounds, so `//` and `%` vanish where they cannot matter, and guards that always
hold are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Dim:
    """A loop coordinate in [0, extent)."""

    number: int
    extent: int

    @property
    def bounds(self) -> tuple[int, int]:
        return 0, max(self.extent - 1, 0)


@dataclass(frozen=True, slots=True)
class Quotient:
    """floor(index / by), by > 0."""

    index: Index
    by: int

    @property
    def bounds(self) -> tuple[int, int]:
        low, high = self.index.bounds
        return low // self.by, high // self.by


@dataclass(frozen=True, slots=True)
class Remainder:
    """index mod by, in [0, by)."""

    index: Index
    by: int

    @property
    def bounds(self) -> tuple[int, int]:
        return 0, self.by - 1


@dataclass(frozen=True, slots=True)
class Opaque:
    """A coordinate known only at run time (a gathered index): value number `value` of the caller, in [0, extent)."""

    value: object
    extent: int

    @property
    def bounds(self) -> tuple[int, int]:
        return 0, max(self.extent - 1, 0)


Atom = Dim | Quotient | Remainder | Opaque


@dataclass(frozen=True, slots=True)
class Index:
    """const + sum(coef * atom), atoms distinct, coefs nonzero.

    >>> i, j = dim(0, 4), dim(1, 3)
    >>> (i * 3 + j) // 3 == i, (i * 3 + j) % 3 == j
    (True, True)
    """

    terms: tuple[tuple[Atom, int], ...] = ()
    const: int = 0

    @property
    def bounds(self) -> tuple[int, int]:
        low = high = self.const
        for atom, coef in self.terms:
            a, b = atom.bounds
            low += min(a * coef, b * coef)
            high += max(a * coef, b * coef)
        return low, high

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.const + other)
        coefs = dict(self.terms)
        for atom, coef in other.terms:
            coefs[atom] = coefs.get(atom, 0) + coef
        return Index(tuple((a, c) for a, c in coefs.items() if c), self.const + other.const)

    def __sub__(self, other: Index | int) -> Index:
        return self + other * -1 if isinstance(other, Index) else self + -other

    def __mul__(self, by: int) -> Index:
        return Index(tuple((a, c * by) for a, c in self.terms), self.const * by) if by else Index()

    def _split(self, by: int) -> tuple[Index, Index]:
        """self == by * whole + rest, with every coefficient of `rest` in [0, by)."""
        whole = Index(tuple((a, c // by) for a, c in self.terms if c // by), self.const // by)
        rest = Index(tuple((a, c % by) for a, c in self.terms if c % by), self.const % by)
        return whole, rest

    def __floordiv__(self, by: int) -> Index:
        if by == 1:
            return self
        whole, rest = self._split(by)
        low, high = rest.bounds
        if 0 <= low and high < by:
            return whole
        low, high = self.bounds
        if low // by == high // by:
            return Index((), low // by)
        return whole + Index(((Quotient(rest, by), 1),))

    def __mod__(self, by: int) -> Index:
        if by == 1:
            return Index()
        low, high = self.bounds
        if low // by == high // by:
            return self - low // by * by
        _, rest = self._split(by)
        low, high = rest.bounds
        if 0 <= low and high < by:
            return rest
        return Index(((Remainder(rest, by), 1),))

    def joined(self) -> Index:
        """The same with quotient and remainder of one index put together again: by * (i // by) + i % by == i."""
        terms = dict(self.terms)
        for atom, coef in self.terms:
            if isinstance(atom, Quotient) and coef % atom.by == 0 and terms.get(atom) == coef:
                rest = Remainder(atom.index, atom.by)
                if terms.get(rest) == coef // atom.by:
                    left = tuple((a, c) for a, c in terms.items() if a != atom and a != rest)
                    return (Index(left, self.const) + atom.index * (coef // atom.by)).joined()
        return self

    @property
    def affine(self) -> bool:
        """Whether every atom is a loop dim."""
        return all(isinstance(a, Dim) for a, _ in self.terms)

    @property
    def dims(self) -> set[int] | None:
        """The loop dims it depends on; None if on what only the run knows."""
        found: set[int] = set()
        for atom, _ in self.terms:
            inner = {atom.number} if isinstance(atom, Dim) else None if isinstance(atom, Opaque) else atom.index.dims
            if inner is None:
                return None
            found |= inner
        return found

    def coefficient(self, number: int) -> int:
        """Coefficient of loop dim `number` (affine indices)."""
        return sum(c for a, c in self.terms if isinstance(a, Dim) and a.number == number)

    def substitute(self, dims: Callable[[Dim], Index]) -> Index:
        """The same expression with every loop dim replaced."""
        out = Index((), self.const)
        for atom, coef in self.terms:
            if isinstance(atom, Dim):
                part = dims(atom)
            elif isinstance(atom, Quotient):
                part = atom.index.substitute(dims) // atom.by
            elif isinstance(atom, Remainder):
                part = atom.index.substitute(dims) % atom.by
            else:
                part = Index(((atom, 1),))
            out = out + part * coef
        return out


def dim(number: int, extent: int) -> Index:
    """Loop dim `number` as an index (0 when there is only one position)."""
    return Index(((Dim(number, extent), 1),)) if extent != 1 else Index()


@dataclass(frozen=True, slots=True)
class Guard:
    """low <= index < high."""

    index: Index
    low: int
    high: int

    @property
    def always(self) -> bool:
        a, b = self.index.bounds
        return self.low <= a and b < self.high

    @property
    def never(self) -> bool:
        a, b = self.index.bounds
        return b < self.low or a >= self.high

    def alone(self) -> Guard:
        """The same test of a loop dim alone, where the index is a multiple or a quotient of one.

        >>> Guard(dim(0, 12) // 4 * 2 - 1, 0, 3).alone() == Guard(dim(0, 12), 4, 8)
        True
        """
        if len(self.index.terms) != 1:
            return self
        ((atom, coef),), const = self.index.terms, self.index.const
        low, high = (self.low - const, self.high - const) if coef > 0 else (const - self.high + 1, const - self.low + 1)
        low, high = -(-low // abs(coef)), -(-high // abs(coef))
        if isinstance(atom, Quotient):
            return Guard(atom.index, low * atom.by, high * atom.by).alone()
        return Guard(Index(((atom, 1),)), low, high)


@dataclass(frozen=True, slots=True)
class Part:
    """Where all `guards` hold, the result shows input number `input` at `coords`."""

    input: int
    coords: tuple[Index, ...]
    guards: tuple[Guard, ...] = ()


def factors(atoms: Iterable[Atom]) -> dict[int, tuple[int, ...]]:
    """Dims whose loops in these factors would need fewer divisions (of positions, after a reshape)."""
    cuts: dict[Dim, set[int]] = {}
    for atom in atoms:
        if not isinstance(atom, Quotient | Remainder):
            continue
        for d, step in atom.index.terms:
            if isinstance(d, Dim) and 0 < step < atom.by and atom.by % step == 0:
                inner = atom.by // step
                if inner < d.extent and d.extent % inner == 0:
                    cuts.setdefault(d, set()).add(inner)
    found = {}
    for d, sizes in cuts.items():
        chain = [1]
        for size in sorted(sizes):
            if size != chain[-1] and size % chain[-1] == 0:
                chain.append(size)
        chain.append(d.extent)
        found[d.number] = tuple(big // small for small, big in pairwise(chain))[::-1]
    return found


def flatten(coords: Sequence[Index], shape: Sequence[int]) -> Index:
    """Row-major position of `coords` in `shape`."""
    out = Index()
    for c, n in zip(coords, shape, strict=True):
        out = out * n + c
    return out


def unflatten(flat: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """Coordinates of row-major position `flat` in `shape`."""
    coords: list[Index] = []
    for n in reversed(shape[1:]):
        coords.append(flat % n if n else Index())
        flat = flat // n if n else Index()
    return (*([flat] if shape else []), *reversed(coords))


def reshape_coords(coords: Sequence[Index], shape: Sequence[int], target: Sequence[int]) -> tuple[Index, ...]:
    """Coordinates in `target` of the element at `coords` of `shape`; factors that match are kept apart, so that only
    dims which really merge or split meet a division."""
    if 0 in shape or 0 in target:  # no element to find
        return (Index(),) * len(target)
    out: list[Index] = []
    a = b = 0
    while a < len(shape) or b < len(target):
        a0, b0 = a, b
        na = shape[a] if a < len(shape) else 1
        nb = target[b] if b < len(target) else 1
        a, b = min(a + 1, len(shape)), min(b + 1, len(target))
        while na != nb:
            if na < nb and a < len(shape):
                na, a = na * shape[a], a + 1
            elif b < len(target):
                nb, b = nb * target[b], b + 1
            else:
                na, a = na * shape[a], a + 1
        out += unflatten(flatten(coords[a0:a], shape[a0:a]), target[b0:b])
    return tuple(out)
