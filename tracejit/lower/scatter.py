"""Scatters: values stored at places that only the run knows, as two kernels.

In: a scatter node. Out: the launches of a copy of x and of what is stored there.

Read next: `loops.py` (who writes kernels).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracejit.config import Options
from tracejit.ir import Node
from tracejit.lower.access import Placement, address, contiguous, gather_coords, identity, squeezed
from tracejit.lower.kernel import Launch, Store
from tracejit.lower.loops import Touch, Writer, components
from tracejit.lower.plan import Buffer


def scatter(
    node: Node, placement: Placement, buffer_of: Mapping[Node, int], buffers: Sequence[Buffer], options: Options
) -> list[Launch]:
    """Copy x into the result's buffer, then store v there in order."""
    x, v, *indices = node.inputs
    result = buffer_of[node]

    def writer(space: tuple[int, ...]) -> Writer:
        return Writer(placement, buffer_of, buffers, options, space, ())

    copy = writer(squeezed(x.shape))
    copy.store(result, identity(x.shape), copy.value(x, identity(x.shape)), contiguous(x.shape))
    copy.nodes.setdefault(node, None)

    update = writer(squeezed(v.shape))
    coords = identity(v.shape)
    value = update.value(v, coords)
    index_coords, _ = gather_coords(node, coords, list(range(len(indices))))
    at, ok = update.places(node, indices, index_coords, None)
    _, target = gather_coords(node, coords, [v.index for v in at])
    flat = address(target, contiguous(x.shape))
    for part, value_part, dtype, scale in components(value):
        offset = update.index(flat * scale + part)
        update.writes.append(Touch(result, dtype, 0, (0,) * len(update.space)))
        guard = None if ok is None else ok.index
        store = Store(len(update.writes) - 1, value_part.index, offset.index, guard, node.attrs["mode"])
        update.stores.append(store)
    update.nodes.setdefault(node, None)
    placement.checked |= update.proven
    return [copy.launch(), update.launch()]
