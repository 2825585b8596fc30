"""Control flow on tensor values: `cond`, `switch`, `while_loop`, `fori_loop`, `scan`, `map`, `associative_scan`.

In: functions of pytrees. Out: what plain Python control flow would give. Eagerly it is plain Python control flow, so
print and pdb work. Inside a compiled function, branches and bodies are traced into graphs of their own (`Region`) and
become one op each (`regions.py`); where the choice or the trip count is a Python value, plain Python does it there too.

What a branch or body reads from outside becomes an operand of the op. What it writes there (a Variable, the state of a
random generator, an item of a tensor) becomes a further result, written back afterwards. The leaves of a carry keep
their shape; their dtype is promoted until it stays the same. A Python number in a carry stays weak for as long as the
body gives back one.

Read next: `regions.py` (the ops), `trace/tracer.py` (captures).
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tracejit import dtypes
from tracejit.dims import is_symbolic
from tracejit.errors import TracerError, user_line
from tracejit.ir import Type
from tracejit.ops import core
from tracejit.ops.bodies import Region, Slot, rebind_all, same_value, single, together, union
from tracejit.ops.movement import joined, moved_axis, permuted, reshaped
from tracejit.ops.regions import COND, SCAN, WHILE
from tracejit.ops.shaping import stack
from tracejit.tensor import Tensor, apply, recording, state
from tracejit.trees import flatten, leaf_names, unflatten

__all__ = ["associative_scan", "cond", "fori_loop", "map", "scan", "switch", "vectorize", "vmap", "while_loop"]

Function = Callable[..., Any]
ATTEMPTS = 8  # traces of a body until its carry's dtypes stay the same


def _filled(slots: Sequence[Slot], results: Iterable[Tensor]) -> list[Any]:
    """One leaf per slot: tensors from `results` in turn."""
    rest = iter(results)
    return [s.value if s.type is None else core.as_number(next(rest)) if s.weak else next(rest) for s in slots]


def _is_unknown(x: Any) -> bool:
    """Whether a value is not a plain Python (or NumPy) one, in traced code."""
    return state.trace is not None and isinstance(x, Tensor)


# -- branches ----------------------------------------------------------------------------------------------------------
def cond(pred: Any, true_fn: Function, false_fn: Function, *operands: Any, names: Sequence[str] | None = None) -> Any:
    """true_fn(*operands) if pred else false_fn(*operands). Both must give results of the same structure and shapes.

    >>> from tracejit.ops.creation import constant
    >>> cond(constant(True), lambda x: x + 1, lambda x: x - 1, 1.0)
    2.0
    """
    if not _is_unknown(pred):
        return true_fn(*operands) if pred else false_fn(*operands)
    return _branches(
        "cond", core.cast(single("cond: the predicate", pred), dtypes.bool_), (false_fn, true_fn), operands, names
    )


def switch(index: Any, branches: Sequence[Function], *operands: Any) -> Any:
    """branches[index](*operands); an index beyond them means the nearest.

    >>> switch(1, [lambda x: x, lambda x: x * 2], 5)
    10
    """
    if not branches:
        raise ValueError("switch: no branches")
    if isinstance(index, bool) or (hasattr(index, "dtype") and index.dtype.kind not in "iu"):
        raise TypeError(
            f"switch: the index must be an int, not {getattr(index, 'dtype', type(index).__name__)}; "
            f"use cond for a bool"
        )
    if not _is_unknown(index):
        return branches[min(max(int(index), 0), len(branches) - 1)](*operands)
    if len(branches) == 1:
        return branches[0](*operands)
    return _branches("switch", core.cast(single("switch: the index", index), dtypes.int64), branches, operands, None)


def _branches(
    form: str, choice: Tensor, functions: Sequence[Function], operands: Sequence[Any], names: Sequence[str] | None
) -> Any:
    regions = []
    for k, f in enumerate(functions):
        label = ("false", "true")[k] if form == "cond" else f"branch{k}"
        region = Region(label)
        region.run(functools.partial(f, *operands))
        regions.append(region)
    first = regions[-1]
    for r in regions:
        if r.spec != first.spec:
            raise TracerError(
                f"{form} at {user_line()}: the branches give different structures: "
                f"{first.trace.name} gives {_plain(first.spec)}, {r.trace.name} gives {_plain(r.spec)}"
            )
    slots = [_joined(form, regions, k, name) for k, name in enumerate(_names(first.spec, "result", names))]
    written = union([h for h, _ in r.written] for r in regions)
    outputs = [[*r.outputs(slots), *(r.last(h) for h in written)] for r in regions]
    handles = union(r.handles() for r in regions)
    graphs = tuple(r.graph(out, handles) for r, out in zip(regions, outputs, strict=True))
    results = apply(COND, (choice, *handles), {"branches": graphs})
    n = len(results) - len(written)
    rebind_all(written, results[n:])
    return unflatten(first.spec, _filled(slots, results[:n]))


def _joined(form: str, regions: Sequence[Region], k: int, name: str) -> Slot:
    """The slot that takes result `k` of every branch."""
    slots = [Slot.of(r.leaves[k], name) for r in regions]
    if all(s.type is None and same_value(s.value, slots[0].value) for s in slots):
        return slots[0]
    if all(
        s.weak and not isinstance(s.value, Tensor) and same_value(repr(s.value), repr(slots[0].value)) for s in slots
    ):
        return Slot(slots[0].value, None, False, name)  # the same Python number whatever happens
    shapes = [s.type.shape if s.type is not None else None for s in slots]
    if any(shape != shapes[0] for shape in shapes):
        given = " and ".join(f"{s} ({r.trace.name})" for r, s in reversed(list(zip(regions, slots, strict=True))))
        raise TracerError(
            f"{form} at {user_line()}: {name} is {given}; a compiled branch must give the same kind of value "
            f"and the same shape whichever way it goes"
        )
    dtype, weak = together(slots)
    return Slot(None, Type(shapes[0] or (), dtype), weak, name)


def _plain(spec: Any) -> str:
    return str(spec).removeprefix("PyTreeSpec(").split(", NoneIsLeaf")[0]


def _names(spec: Any, root: str, names: Sequence[str] | None = None) -> list[str]:
    """What errors call each leaf; `names` are those of the entries at the top."""
    found = leaf_names(spec, root)
    if names is None:
        return [f"'{n}'" for n in found]
    tops = {f"{root}[{k}]": n for k, n in enumerate(names)}
    out = []
    for n in found:
        top = n[: n.index("]") + 1] if "]" in n else n
        out.append(f"'{tops.get(top, top)}{n[len(top) :]}'")
    return out


# -- loops -------------------------------------------------------------------------------------------------------------
def _spreads(f: Function, init: Any) -> bool:
    """Whether a loop's functions take the entries of `init` one by one (as many parameters as entries)."""
    if not isinstance(init, (tuple, list)) or hasattr(init, "_fields"):
        return False
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return isinstance(init, list)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return True
    required = [
        p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    return len(required) == len(init) and (len(init) != 1 or isinstance(init, list))


def while_loop(
    cond: Function, body: Function, init: Any, max_iterations: int | None = None, names: Sequence[str] | None = None
) -> Any:
    """Replace `init` by body(init) while cond(init) holds.

    init is any pytree. If it is a list or tuple, and the functions take as many arguments as it has entries, they get
    them one by one (a list of one entry too; a tuple of one is passed as it is).
    max_iterations: stop after so many.

    >>> while_loop(lambda n: n < 100, lambda n: n * 2, 1)
    128
    """
    spread = _spreads(cond, init)

    def call(f: Function, carry: Any) -> Any:
        return f(*carry) if spread else f(carry)

    def turn(carry: Any) -> Any:
        found = call(body, carry)
        if spread and len(init) == 1 and not (isinstance(found, (tuple, list)) and len(found) == 1):
            found = [found]
        return type(init)(found) if spread and isinstance(found, (tuple, list)) else found

    if state.trace is None:
        return _plain_while(lambda c: call(cond, c), turn, init, max_iterations)
    if max_iterations is not None:
        limited = while_loop(
            lambda c: _both(c[0] < max_iterations, lambda: call(cond, c[1])),
            lambda c: (c[0] + 1, turn(c[1])),
            (0, init),
            names=None,
        )
        return limited[1]
    return _traced_while(lambda c: call(cond, c), turn, init, names)


def _both(first: Any, second: Callable[[], Any]) -> Any:
    if not isinstance(first, Tensor):
        return first and second()
    return first & core.cast(core.as_tensor(second()), dtypes.bool_)


def _plain_while(cond: Function, body: Function, carry: Any, limit: int | None) -> Any:
    spec, n, carry = None, 0, _fresh(carry)
    while (limit is None or n < limit) and cond(carry):
        new = body(carry)
        if n == 0:
            spec = flatten(carry)[1]
            if flatten(new)[1] != spec:
                raise _other_structure("while_loop", spec, flatten(new)[1])
        carry, n = new, n + 1
    return carry


def _fresh(tree: Any) -> Any:
    """The same values under handles of their own: what a body writes into its carry is not seen by the caller."""
    leaves, spec = flatten(tree)
    return unflatten(spec, [core.alias(core.as_tensor(x)) if isinstance(x, Tensor) else x for x in leaves])


def _other_structure(form: str, before: Any, after: Any) -> TracerError:
    return TracerError(
        f"{form} at {user_line()}: the body must give back a carry of the structure it got, {_plain(before)}, "
        f"but gives {_plain(after)}"
    )


def _traced_while(cond: Function, body: Function, init: Any, names: Sequence[str] | None) -> Any:
    leaves, spec = flatten(init)
    slots = [Slot.of(x, n) for x, n in zip(leaves, _names(spec, "carry", names), strict=True)]
    test = Region("cond")
    values = [test.input(s) for s in slots]
    if not isinstance(test.run(lambda: cond(unflatten(spec, values))), Tensor):
        return _plain_while(cond, body, init, None)  # Python knows
    turn, _ = _settled("while_loop", lambda values: body(unflatten(spec, values)), slots, spec, [])
    test = Region("cond")
    values = [test.input(s) for s in slots]
    test.run(lambda: core.cast(single("while_loop: the condition", cond(unflatten(spec, values))), dtypes.bool_))
    if test.written:
        raise TracerError(
            f"while_loop at {user_line()}: the condition writes a tensor or Variable from outside (as a random draw "
            f"does); do that in the body"
        )
    written = [h for h, _ in turn.written]
    outputs = [*turn.outputs(slots), *(turn.last(h) for h in written)]
    handles = union([written, turn.handles(), test.handles()])
    attrs = {"cond": test.graph(test.leaves, handles), "body": turn.graph(outputs, handles)}
    results = apply(WHILE, (*(s.tensor() for s in slots if s.type is not None), *handles), attrs)
    n = len(results) - len(written)
    rebind_all(written, results[n:])
    return unflatten(spec, _filled(slots, results[:n]))


def _settled(
    form: str, f: Callable[[list[Any]], Any], slots: list[Slot], spec: Any, rows: Sequence[Slot]
) -> tuple[Region, Any]:
    """The body as a region whose carry gives what it takes: dtypes of `slots` are promoted until it does. For a scan
    (`rows`), f gives (carry, row), and the row's leaves and structure come second."""
    for _ in range(ATTEMPTS):
        region = Region("body")
        values = [region.input(s) for s in (*slots, *rows)]
        result = region.run(lambda values=values: f(values))  # type: ignore[misc]
        row = None
        if form != "while_loop":
            if not (isinstance(result, tuple) and len(result) == 2):
                raise TracerError(
                    f"{form} at {user_line()}: the body must give (carry, row), got {type(result).__name__}"
                )
            parts = region.spec.children()
            n = parts[0].num_leaves
            row, region.leaves = (region.leaves[n:], parts[1]), region.leaves[:n]
            region.spec = parts[0]
        if region.spec != spec:
            raise _other_structure(form, spec, region.spec)
        changed = False
        for s, x in zip(slots, region.leaves, strict=True):
            new = Slot.of(x, s.name)
            if s.type is None and new.type is None and same_value(s.value, new.value):
                continue
            if s.type is None or new.type is None or s.type.shape != new.type.shape:
                raise TracerError(
                    f"{form} at {user_line()}: {s.name} is {s} before an iteration and {new} after it; a carry keeps "
                    f"its shape and kind (start it with what the body gives, for example tj.zeros of that shape)"
                )
            dtype, weak = together([s, new])
            changed |= (dtype, weak) != (s.type.dtype, s.weak)
            if (dtype, weak) != (s.type.dtype, s.weak):
                s.value = s.tensor(dtype)
                s.value = core.as_number(s.value) if weak else s.value
                s.type, s.weak = Type(s.type.shape, dtype), weak
        if not changed:
            return region, row
    raise TracerError(f"{form} at {user_line()}: the dtypes of the carry do not settle after {ATTEMPTS} tries")


def fori_loop(lower: Any, upper: Any, body: Function, init: Any) -> Any:
    """init replaced by body(i, init) for i in lower, lower + 1, ... below upper.

    >>> fori_loop(0, 5, lambda i, total: total + i, 0)
    10
    """
    known = not isinstance(lower, Tensor) and not isinstance(upper, Tensor)
    if state.trace is None:
        carry = _fresh(init)
        for i in range(int(lower), int(upper)):
            carry = body(i, carry)
        return carry
    if known:
        lower, upper = int(lower), int(upper)
        return scan(lambda c, _: ((c[0] + 1, body(c[0], c[1])), None), (lower, init), length=max(upper - lower, 0))[0][
            1
        ]
    return _traced_while(lambda c: c[0] < upper, lambda c: (c[0] + 1, body(c[0], c[1])), (_whole(lower), init), None)[1]


def _whole(x: Any) -> Any:
    """A loop's first index: a tensor counts as a Python number does, so that it does not widen what it meets."""
    if isinstance(x, Tensor):
        return core.as_number(core.cast(single("fori_loop: the lower bound", x), dtypes.int64))
    return int(x)


def scan(f: Function, init: Any, xs: Any = None, length: int | None = None, reverse: bool = False) -> tuple[Any, Any]:
    """Go over the rows of `xs`: carry, y = f(carry, x). Gives the last carry and the ys, stacked.

    xs is a pytree of tensors with equally many rows (or None, with `length`). reverse: from the last row to the first.

    >>> from tracejit.ops.creation import arange
    >>> scan(lambda total, x: (total + x, total), 0, arange(4))
    (tj.Tensor(6, shape=(), dtype=int32), tj.Tensor([0 0 1 3], shape=(4,), dtype=int32))
    """
    rows, row_spec = ([], None) if xs is None else flatten(xs)
    rows = [core.as_tensor(x) for x in rows]
    for x, name in zip(rows, leaf_names(row_spec, "xs") if rows else ()):
        if x.ndim == 0:
            raise ValueError(f"scan: {name} is 0-d; it needs rows")
        if length is not None and x.shape[0] != length:
            raise ValueError(f"scan: {name} has {x.shape[0]} rows, not {length}")
        length = x.shape[0]
    if length is None:
        raise ValueError("scan: without xs, say how many times: length=")
    length = length if is_symbolic(length) else int(length)
    if state.trace is None:
        return _plain_scan(f, init, rows, row_spec, length, reverse)
    leaves, spec = flatten(init)
    slots = [Slot.of(x, n) for x, n in zip(leaves, _names(spec, "carry"), strict=True)]
    given = [Slot(None, Type(x.shape[1:], x.dtype), False, f"row {k}") for k, x in enumerate(rows)]
    n = len(slots)

    def step(values: list[Any]) -> Any:
        return f(unflatten(spec, values[:n]), None if xs is None else unflatten(row_spec, values[n:]))

    turn, (made, made_spec) = _settled("scan", step, slots, spec, given)
    with recording(turn.trace):
        ys = [None if Slot.of(y, "").type is None else turn.trace.read(core.strong(y)) for y in made]
    written = [h for h, _ in turn.written]
    outputs = [*turn.outputs(slots), *(turn.last(h) for h in written), *(y for y in ys if y is not None)]
    handles = union([written, turn.handles()])
    first = len(turn.inputs) - len(rows)
    turn.inputs[first:first] = [turn.node_for(h) for h in written]
    graph = turn.graph(outputs, handles[len(written) :])
    starts = [s.tensor() for s in slots if s.type is not None]
    attrs = {
        "body": graph,
        "length": length,
        "reverse": bool(reverse),
        "carries": len(starts) + len(written),
        "xs": len(rows),
    }
    results = apply(SCAN, (*starts, *written, *rows, *handles[len(written) :]), attrs)
    rebind_all(written, results[len(starts) : len(starts) + len(written)])
    stacks = iter(results[len(starts) + len(written) :])
    out = unflatten(made_spec, [y if s is None else next(stacks) for y, s in zip(made, ys, strict=True)])
    return unflatten(spec, _filled(slots, results)), out


def _plain_scan(
    f: Function, carry: Any, rows: list[Tensor], row_spec: Any, length: int, reverse: bool
) -> tuple[Any, Any]:
    found: list[list[Any]] = []
    spec: Any = None
    carry = _fresh(carry)
    order = reversed(range(length)) if reverse else range(length)
    for t in order if length else ():
        x = None if row_spec is None else unflatten(row_spec, [r[t] for r in rows])
        result = f(carry, x)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError(f"scan: the body must give (carry, row), got {type(result).__name__}")
        carry, y = result
        leaves, spec = flatten(y)
        found.append(leaves)
    if not length:  # what a row looks like is known only from a run
        x = None if row_spec is None else unflatten(row_spec, [core.full(0, r.shape[1:], r.dtype) for r in rows])
        for _ in range(ATTEMPTS):
            new, row = f(carry, x)
            before, carry = carry, _promoted(carry, new)
            if all(a is b for a, b in zip(flatten(before)[0], flatten(carry)[0], strict=True)):
                break
        leaves, spec = flatten(row)
        empty = [
            y if Slot.of(y, "").type is None else core.full(0, (0, *core.strong(y).shape), core.strong(y).dtype)
            for y in leaves
        ]
        return carry, unflatten(spec, empty)
    if reverse:
        found.reverse()
    columns = [list(c) for c in zip(*found, strict=True)]
    return carry, unflatten(spec, [c[0] if Slot.of(c[0], "").type is None else stack(c) for c in columns])


def _promoted(carry: Any, new: Any) -> Any:
    """A carry that has gone through no turn, in the dtypes that turns would give it."""
    leaves, spec = flatten(carry)
    slots = [Slot.of(x, "") for x in leaves]
    after = [Slot.of(x, "") for x in flatten(new)[0]]
    for k, (old, one) in enumerate(zip(slots, after)):
        if old.type is not None and one.type is not None:
            dtype, weak = together([old, one])
            leaves[k] = leaves[k] if weak else old.tensor(dtype)
    return unflatten(spec, leaves)


def map(f: Function, xs: Any) -> Any:
    """f of each row of `xs` (a pytree of tensors with equally many rows), stacked.

    >>> from tracejit.ops.creation import arange
    >>> map(lambda x: x * x, arange(4))
    tj.Tensor([0 1 4 9], shape=(4,), dtype=int32)
    """
    return scan(lambda _, x: (None, f(x)), None, xs)[1]


def vmap(f: Function, in_axes: Any = 0, out_axes: int = 0) -> Function:
    """f for every entry along an axis of its arguments, results stacked. Eagerly a loop over the entries; compiled, ops
    on all entries at once where each op of f can be done so, else a native loop.

    in_axes: the axis of every argument, or one for each (None: the argument is the same for all). out_axes: where the
    results are stacked. Results may depend on the entry's values in any way that f's own control flow can say.

    >>> from tracejit.ops.creation import arange
    >>> vmap(lambda x, y: x * y, in_axes=(0, None))(arange(3), 10)
    tj.Tensor([ 0 10 20], shape=(3,), dtype=int32)
    """

    @functools.wraps(f)
    def wrapper(*args: Any) -> Any:
        axes = list(in_axes) if isinstance(in_axes, (tuple, list)) else [in_axes] * len(args)
        if len(axes) != len(args):
            raise ValueError(f"vmap: in_axes has {len(axes)} entries for {len(args)} arguments")
        if all(a is None for a in axes):
            raise ValueError("vmap: in_axes must name an axis of at least one argument")
        rows = [_along_first(x, a) for x, a in zip(args, axes, strict=True) if a is not None]

        def one(entries: Any) -> Any:
            given = iter(entries)
            return f(*(x if a is None else next(given) for x, a in zip(args, axes, strict=True)))

        out, spec = flatten(map(one, rows))
        return unflatten(spec, [_moved(y, 0, out_axes) if isinstance(y, Tensor) else y for y in out])

    return wrapper


def _along_first(tree: Any, axis: int) -> Any:
    leaves, spec = flatten(tree)
    return unflatten(spec, [_moved(core.as_tensor(x), axis, 0) for x in leaves])


def _moved(t: Tensor, source: int, target: int) -> Tensor:
    source, target = (core.normalize_axis("vmap", a, t.ndim) for a in (source, target))
    return t if source == target else permuted(t, moved_axis(t.ndim, source, target))


def vectorize(f: Function) -> Function:
    """f, a function of single values with any control flow, for every element of its arguments, broadcast together.

    >>> from tracejit.ops.creation import constant
    >>> halvings = vectorize(lambda n: while_loop(lambda n, k: n > 1, lambda n, k: (n // 2, k + 1), (n, 0))[1])
    >>> halvings(constant([1, 2, 3, 27]))
    tj.Tensor([0 1 1 4], shape=(4,), dtype=int32)
    """

    @functools.wraps(f)
    def wrapper(*args: Any) -> Any:
        tensors = [core.as_tensor(x) for x in args]
        shape = core.broadcast_shape("vectorize", [t.shape for t in tensors])
        size = math.prod(shape)
        flat = [reshaped(core.broadcast_to(t, shape), (size,)) for t in tensors]
        out, spec = flatten(map(lambda entries: f(*entries), flat))
        return unflatten(spec, [reshaped(y, (*shape, *y.shape[1:])) if isinstance(y, Tensor) else y for y in out])

    return wrapper


def associative_scan(f: Function, xs: Any, axis: int = 0, reverse: bool = False) -> Any:
    """Running results of an associative function: x0, f(x0, x1), f(f(x0, x1), x2), ... in a logarithmic number of
    calls of f, each on many rows at once.

    >>> from tracejit.ops.creation import arange
    >>> associative_scan(lambda a, b: a + b, arange(5))
    tj.Tensor([ 0  1  3  6 10], shape=(5,), dtype=int32)
    """
    leaves, spec = flatten(xs)
    tensors = [core.strong(x) for x in leaves]
    if not tensors:
        return xs
    axes = [core.normalize_axis("associative_scan", axis, t.ndim) for t in tensors]
    counts = [t.shape[a] for t, a in zip(tensors, axes, strict=True)]
    if any(n != counts[0] for n in counts):
        raise ValueError(
            f"associative_scan: the inputs have {sorted(set(counts))} entries along axis {axis}; they must have "
            f"equally many"
        )

    def part(ts: Sequence[Tensor], start: int | None, stop: int | None, step: int = 1) -> list[Tensor]:
        return [t[(slice(None),) * a + (slice(start, stop, step),)] for t, a in zip(ts, axes, strict=True)]

    def combine(a: Sequence[Tensor], b: Sequence[Tensor]) -> list[Tensor]:
        first, second = (b, a) if reverse else (a, b)
        out, found = flatten(f(unflatten(spec, first), unflatten(spec, second)))
        if found != spec:
            raise ValueError(f"associative_scan: the function gives {_plain(found)} for {_plain(spec)}")
        return [core.as_tensor(t) for t in out]

    def prefixes(ts: list[Tensor], n: int) -> list[Tensor]:
        if n < 2:
            return ts
        pairs = combine(part(ts, 0, n - 1, 2), part(ts, 1, None, 2))
        odd = prefixes(pairs, n // 2)  # results at 1, 3, 5, ...
        if n == 2:
            even = part(ts, 0, 1)
        else:
            later = combine(part(odd, 0, (n - 1) // 2), part(ts, 2, None, 2))  # at 2, 4, ...
            even = [_concat([a, b], x) for a, b, x in zip(part(ts, 0, 1), later, axes, strict=True)]
        return [_interleaved(e, o, a) for e, o, a in zip(even, odd, axes, strict=True)]

    if reverse:
        tensors = part(tensors, None, None, -1)
    n = counts.pop()
    found = prefixes(tensors, n)
    return unflatten(spec, part(found, None, None, -1) if reverse else found)


def _concat(ts: Sequence[Tensor], axis: int) -> Tensor:
    dtype = dtypes.result_dtype([t.dtype for t in ts])
    return joined([core.cast(t, dtype) for t in ts], axis)


def _interleaved(even: Tensor, odd: Tensor, axis: int) -> Tensor:
    """even[0], odd[0], even[1], ... along an axis; there may be one more even."""
    n, m = even.shape[axis], odd.shape[axis]
    dtype = dtypes.result_dtype([even.dtype, odd.dtype])

    def at(t: Tensor, k: int) -> tuple[slice, ...]:
        return (slice(None),) * axis + (slice(0, k),)

    def spaced(t: Tensor) -> Tensor:
        return reshaped(t, (*t.shape[: axis + 1], 1, *t.shape[axis + 1 :]))

    both = joined([spaced(core.cast(even, dtype)[at(even, m)]), spaced(core.cast(odd, dtype))], axis + 1)
    woven = reshaped(both, (*both.shape[:axis], 2 * m, *both.shape[axis + 2 :]))
    return woven if n == m else joined([woven, core.cast(even, dtype)[(slice(None),) * axis + (slice(m, n),)]], axis)
