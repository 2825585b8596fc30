"""Storage: no two live values share bytes, memory is reused, and what may be written over an input is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_samples import F32, buffer, elementwise, gather_step, plan, reduce_step, scatter_step, step

from tracejit.errors import InternalError
from tracejit.lower.buffers import Place, assign, verify
from tracejit.lower.epilogue import is_copy, same_walk
from tracejit.lower.kernel import Access, Launch, View
from tracejit.lower.plan import Call, Gemm, Plan
from tracejit.lower.scalar import Stmt

N = 1000


def chain(length: int) -> Plan:
    """x -> t1 -> t2 -> ... -> y, element by element."""
    temps = [buffer("temp", N) for _ in range(length - 1)]
    buffers = [buffer("input", N), *temps, buffer("output", N)]
    return plan(buffers, [step("neg", [k], k + 1, (N,)) for k in range(length)])


def test_a_chain_needs_no_temps() -> None:
    p = chain(5)
    storage = assign(p)
    verify(p, storage)
    assert storage.arena_bytes == 0 and storage.peak_bytes == 4 * N
    assert all(place == Place("output", 5) for place in storage.places[1:])
    assert storage.arrays == (5,) and storage.reusable == {0: 0}


def test_values_alive_together_live_apart() -> None:
    b = [buffer("input", N), buffer("temp", N), buffer("temp", N), buffer("output", N)]
    p = plan(b, [step("neg", [0], 1, (N,)), step("abs", [0], 2, (N,)), step("add", [1, 2], 3, (N,))])
    storage = assign(p)
    verify(p, storage)
    homes = [storage.places[k] for k in (1, 2, 3)]
    assert len({(h.home, h.number) for h in homes}) == 2  # one temp lies in the output
    assert storage.arena_bytes == 4032  # the other: 4000 bytes, aligned


def test_the_arena_is_reused() -> None:
    """Steps that cannot be done in place: each temp is a reduction of the one before, but only two live at a time."""
    n = 64
    buffers = [buffer("input", n, n)]
    steps: list[Launch] = []
    for _ in range(4):
        buffers += [buffer("temp", n), buffer("temp", n, n)]
        last = len(buffers) - 3
        steps.append(reduce_step("add", last, last + 1, (n, n), "rows"))
        view = [View(last + 1, 0, (1, 0)), View(last + 2, 0, (n, 1))]
        spread = replace(elementwise("load", 1, dims=2), reads=(Access(F32, ("1", "0")),))
        steps.append(Launch(spread, (n, n), (), (view[0],), (view[1],)))
    buffers.append(buffer("output", n))
    steps.append(reduce_step("add", len(buffers) - 2, len(buffers) - 1, (n, n), "rows"))
    p = plan(buffers, steps)
    storage = assign(p)
    verify(p, storage)
    assert storage.arena_bytes == 4 * (n * n + n)  # one matrix and one vector of four each


def test_no_writing_over_what_is_read_elsewhere() -> None:
    """The reader takes its elements from other places than it writes to."""
    n = 8
    b = [buffer("input", n, n), buffer("temp", n, n), buffer("output", n, n)]
    transposed = replace(elementwise("load", 1, dims=2), reads=(Access(F32, ("1", "s")),))
    flip = Launch(transposed, (n, n), (), (View(1, 0, (1, n)),), (View(2, 0, (n, 1)),))
    p = plan(b, [step("neg", [0], 1, (n, n)), flip])
    storage = assign(p)
    verify(p, storage)
    assert storage.places[1].home == "arena"
    shifted = Launch(elementwise("load", 1), (N - 1,), (), (View(0, 1, (1,)),), (View(1, 0, (1,)),))
    assert not same_walk(shifted, 0, 1)
    assert same_walk(step("neg", [0], 1, (N,)), 0, 1)
    gathered = gather_step(0, 1, 2, N, N)
    assert same_walk(gathered, 0, 2) is False  # int64 read, float32 written
    assert same_walk(gathered, 1, 2) is False  # anywhere in the table


def test_narrower_dtypes_do_not_share() -> None:
    b = [buffer("input", N), buffer("temp", N, dtype="float64"), buffer("output", N)]
    wide = elementwise("load", 1)
    stage = replace(wide.stages[0], stores=(replace(wide.stages[0].stores[0], value=1),))
    to64 = replace(wide, stmts=(*wide.stmts, Stmt("cast", np.dtype("f8"), (0,))), stages=(stage,),
                   writes=(Access(np.dtype("f8"), ("1",)),))
    up = Launch(to64, (N,), (), (View(0, 0, (1,)),), (View(1, 0, (1,)),))
    assert not same_walk(up, 0, 1)
    down = replace(to64, reads=to64.writes, writes=to64.reads)
    p = plan(b, [up, Launch(down, (N,), (), (View(1, 0, (1,)),), (View(2, 0, (1,)),))])
    storage = assign(p)
    verify(p, storage)
    assert storage.places[1] == Place("arena", 0)


def test_copies() -> None:
    assert is_copy(step("load", [0], 1, (N,)))
    assert not is_copy(step("neg", [0], 1, (N,)))
    assert not is_copy(Launch(elementwise("load", 1), (N - 1,), (), (View(0, 1, (1,)),), (View(1, 0, (1,)),)))


def test_scatter_updates_a_copy_in_place() -> None:
    """table' = table with rows added: the copy is the first write, the scatter an update of it."""
    b = [buffer("input", N), buffer("input", 5, dtype="int64"), buffer("input", 5), buffer("output", N)]
    p = plan(b, [step("load", [0], 3, (N,)), scatter_step(1, 2, 3, 5)])
    storage = assign(p)
    verify(p, storage)
    assert storage.reusable == {0: 0}
    checked = plan(b, [step("load", [0], 3, (N,)), scatter_step(1, 2, 3, 5, N)])
    assert assign(checked).reusable == {}  # a bad index must leave the table as it was
    late = plan([*b, buffer("output", N)], [*p.steps, step("neg", [0], 4, (N,))])
    assert assign(late).reusable == {1: 0}  # the input is read after the table has been written


def test_scatter_keeps_its_target_alive() -> None:
    """Between initialisation and the scatter another temp must not take the memory."""
    b = [buffer("input", N), buffer("input", 5, dtype="int64"), buffer("input", 5), buffer("temp", N),
         buffer("temp", N), buffer("output", N), buffer("output", N)]
    p = plan(b, [step("load", [0], 3, (N,)), step("neg", [0], 4, (N,)), step("abs", [4], 5, (N,)),
                 scatter_step(1, 2, 3, 5), step("neg", [3], 6, (N,))])
    storage = assign(p)
    verify(p, storage)
    assert storage.places[3] == Place("output", 6) and storage.places[4] == Place("output", 5)


@pytest.mark.parametrize("change", ["shape", "strides", "dtype", "twice", "result", "twice result"])
def test_what_is_not_reusable(change: str) -> None:
    given, out = buffer("input", N), buffer("output", N)
    match change:
        case "shape":
            given = buffer("input", N, 1)
        case "strides":
            given = buffer("input", N, strides=(2,))
        case "dtype":
            given = buffer("input", N, dtype="int32")
    s = step("neg", [0], 1, (N,))
    p = plan([given, out], [s])
    match change:
        case "twice":
            p = replace(p, inputs=(0, 0))
        case "result":
            p = replace(p, outputs=(1, 0))
        case "twice result":
            p = replace(p, outputs=(1, 1))
    assert assign(p).reusable == {}


def test_a_reused_input_is_not_read_once_its_output_begins() -> None:
    """A temp that lies in the output's memory begins before the output itself."""
    b = [buffer("input", N), buffer("temp", N), buffer("output", N)]
    p = plan(b, [step("neg", [0], 1, (N,)), step("add", [1, 0], 2, (N,))])
    storage = assign(p)
    verify(p, storage)
    assert storage.places[1] == Place("output", 2) and storage.reusable == {}
    with pytest.raises(InternalError, match="still in use"):
        verify(p, replace(storage, reusable={0: 0}))


def test_calls_and_gemms() -> None:
    b = [buffer("input", 8, 8), buffer("temp", 8, 8), buffer("temp", 8, 8), buffer("output", 8, 8)]
    view = [View(k, 0, (8, 1)) for k in range(4)]
    p = plan(b, [Gemm(F32, (), 8, 8, 8, view[0], view[0], view[1]), Call(object(), (1,), (2,), ()),  # type: ignore[arg-type]
                 Gemm(F32, (), 8, 8, 8, view[2], view[1], view[3])])
    storage = assign(p)
    verify(p, storage)
    assert storage.arena_bytes == 512 and storage.reusable == {0: 0}


def test_verify_finds_overlaps() -> None:
    b = [buffer("input", N), buffer("temp", N), buffer("temp", N), buffer("output", N)]
    p = plan(b, [step("neg", [0], 1, (N,)), step("abs", [0], 2, (N,)), step("add", [1, 2], 3, (N,))])
    storage = assign(p)
    places = list(storage.places)
    places[1] = places[2] = Place("arena", 0)
    with pytest.raises(InternalError, match="still in use"):
        verify(p, replace(storage, places=tuple(places)))
    places[2] = Place("arena", 3996)
    with pytest.raises(InternalError, match="still in use"):
        verify(p, replace(storage, places=tuple(places)))
    places[2] = Place("input", 0)
    with pytest.raises(InternalError, match="writes buffer 2, which lives in an input"):
        verify(p, replace(storage, places=tuple(places)))


def test_malformed_plans() -> None:
    b = [buffer("input", N), buffer("temp", N), buffer("output", N)]
    with pytest.raises(InternalError, match="before any step writes it"):
        assign(plan(b, [step("neg", [1], 2, (N,))]))
    with pytest.raises(InternalError, match="whose role is input"):
        assign(plan(b, [step("neg", [0], 0, (N,))]))
    with pytest.raises(InternalError, match="no step writes output"):
        assign(plan(b, [step("neg", [0], 1, (N,))]))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_random_plans(data: st.DataObject) -> None:
    """Any plan of maps, reductions and scatters verifies, and takes no more than all temps side by side."""
    n = 16
    buffers = [buffer("input", n, n), buffer("input", n), buffer("input", n, dtype="int64")]
    matrices, vectors, steps, mine = [0], [1], [], set()
    for _ in range(data.draw(st.integers(1, 12))):
        b = len(buffers)
        kind = data.draw(st.sampled_from(["map", "map2", "vector", "reduce", "scatter"]))
        if kind == "scatter" and mine:
            values, target = data.draw(st.sampled_from(vectors)), data.draw(st.sampled_from(sorted(mine)))
            steps.append(scatter_step(2, values, target, n))
            continue
        if kind in ("map", "map2", "scatter"):
            reads = [data.draw(st.sampled_from(matrices)) for _ in range(2 if kind == "map2" else 1)]
            steps.append(step("add" if kind == "map2" else "neg", reads, b, (n, n)))
            buffers.append(buffer("temp", n, n))
            matrices.append(b)
            continue
        if kind == "reduce":
            steps.append(reduce_step("add", data.draw(st.sampled_from(matrices)), b, (n, n), "rows"))
        else:
            steps.append(step("neg", [data.draw(st.sampled_from(vectors))], b, (n,)))
        buffers.append(buffer("temp", n))
        vectors.append(b)
        mine.add(b)
    made = [b for b in range(3, len(buffers))]
    outputs = data.draw(st.sets(st.sampled_from(made))) | {made[-1]} if made else {0}
    for b in outputs & set(made):
        buffers[b] = replace(buffers[b], role="output")
    p = plan(buffers, steps, sorted(outputs))
    storage = assign(p)
    verify(p, storage)
    assert storage.arena_bytes <= sum(-(-buffers[b].nbytes // 64) * 64 for b in made if b not in outputs)
