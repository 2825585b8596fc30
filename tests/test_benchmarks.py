"""The benchmarks' own arithmetic: operations counted, limits, medians, tables."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from benchmarks.__main__ import BEGIN, DOCUMENT, END, with_ours, write_document
from benchmarks.harness import ALL, Library, Row, check_processors, shortfalls, table
from benchmarks.memory import Peak, peak_of_steps
from benchmarks.peers import PEERS
from benchmarks.roofline import Limits, Work, moving_kernel, operation_kernel, work_of_plan
from benchmarks.training import TRAINING, Miniature, TrainingStep
from benchmarks.workloads import Target
from tracejit.lower.kernel import verify

X = np.ones((64, 100), "float32")


def operations(f: Any, *args: Any, turns: float | None = None) -> Counter[tuple[str, str]] | None:
    function = tj.function(f)
    function(*args)
    found = work_of_plan(function.specializations()[-1].built.plan, turns)
    return None if found is None else Counter({k: round(v) for k, v in found.items() if v >= 64})


def test_ours_is_always_measured() -> None:
    assert with_ours(["torch"]) == ["tracejit", "torch"]
    assert with_ours(list(PEERS)) == list(PEERS)


def test_operations_of_maps_and_rows() -> None:
    n = X.size
    assert operations(lambda a, b: (a * b + 3) / b, X, X) == {("fma", "f"): n, ("div", "f"): n}  # fused
    assert operations(lambda a: tj.sqrt(a) + a, X.astype("f8")) == {("sqrt", "d"): n, ("fma", "d"): n}
    assert operations(lambda a: a.sum(axis=1), X) == {("fma", "f"): n}
    assert operations(lambda a: (a * a).sum(axis=1), X) == {("fma", "f"): n}  # the product goes into the sum
    # a mean (once for each row), a difference, its square in a sum
    assert operations(lambda a: ((a - a.sum(1, keepdims=True) / 3) ** 2).sum(1), X) == {
        ("fma", "f"): 3 * n, ("div", "f"): 64}
    assert operations(lambda a: tj.where(a > 0, a, 1), X) == {("bits", "f"): 2 * n}


def test_operations_of_products_and_loops() -> None:
    assert operations(lambda a: a @ a.T, X) == {("fma", "f"): 64 * 64 * 100}
    assert operations(lambda a: tj.fori_loop(0, 10, lambda i, h: h * 0.5 + a, a), X)[("fma", "f")] >= 10 * X.size
    assert operations(lambda a: tj.sort(a), X) is None  # a library call


def test_what_is_rare_does_not_count() -> None:
    usual = operations(lambda a: tj.sin(a), X)
    assert usual is not None and usual[("bits", "d")] == 0  # the reduction of huge angles is in 64 bits


@pytest.mark.parametrize("reads,writes", [(1 << 20, 0), (0, 1 << 20), (3 << 19, 1 << 19), (1 << 20, 1 << 16)])
def test_loops_that_only_move_bytes(reads: int, writes: int) -> None:
    kernel, count = moving_kernel(reads, writes)
    verify(kernel)
    assert count == max(1, round((reads + writes) / writes)) if writes * 8 >= reads else count == 1
    assert 0 < Limits(1).moving(reads, writes)() < 0.1


@pytest.mark.parametrize("kind", ["fma", "div", "sqrt", "bits"])
def test_loops_that_only_compute(kind: str) -> None:
    verify(operation_kernel(kind, np.dtype("float32")))
    assert 1e7 < Limits(1).rate(kind, "f") < 1e13


def test_rows_take_medians_over_rounds() -> None:
    row = Row("work", Target(1.5), {"tracejit": [1.0, 2.0, 4.0], "jax": [2.0, 4.0, 4.0], "numpy": [9.0]},
              limits=[(0.5, "memory"), (1.0, "memory"), (4.0, "operations")],
              work=Work(10**6, 0, Counter({("fma", "f"): 2e6})))
    assert row.best_peer == "jax" and row.speed == 2.0 and row.share == (0.5, "memory") and row.meets_target
    text = table([row], ["tracejit", "numpy", "jax"], markdown=True)
    assert "**2000** |  9000 | 4000 | 2.00 (1.50–2.00) |" in text
    assert "torch" not in table([row], ["tracejit", "torch"], markdown=True)  # no place in any row
    assert "50% memory" in text and "1.5x |" in text and "missed" not in text
    assert shortfalls([row]) == ""
    row.target = Target(3.0)
    assert "missed" in table([row], ["tracejit"], markdown=False)
    assert shortfalls([row]) == (
        "- **work**: 2000 ms, 2.00 times as fast as jax. It has to move 1 million bytes and do 2 million sums and "
        "products; that alone takes the machine 1000 ms (memory): 50% of the limit.")
    row.target = Target(seconds=2.5)
    assert row.meets_target


def test_workloads_are_told_apart() -> None:
    """Each has a name, inputs that repeat, and a way to be computed by us."""
    assert [name for name, w in ALL.items() if name != w.name or not w.runs_on("tracejit")] == []
    small = [w for name, w in ALL.items() if "128x1024" in name or "10 elements" in name]
    for w in small:
        first, second = (w.inputs(np.random.default_rng(0)) for _ in range(2))
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True)) and w.moves(first, first[0])[0] > 0


def test_one_thread_is_one() -> None:
    """NumPy's products too, whose threads are made when it is imported; and who uses more is found out."""
    library = Library("numpy", 1)
    assert library.usable
    try:
        state, (result, _) = library.ask("set_up", "1024x1024 @ 1024x1024")
        assert state == "done" and result.shape == (1024, 1024)
        for task in Path(f"/proc/{library.process.pid}/task").glob("[0-9]*"):
            assert len(os.sched_getaffinity(int(task.name))) == 1
        state, seconds = library.ask("time")
        assert state == "done" and seconds > 1e-3
    finally:
        library.stop()
    check_processors(1.04, 1)
    with pytest.raises(RuntimeError, match=r"1\.31 processors were at work, where 1 should have been"):
        check_processors(1.31, 1)


@pytest.mark.parametrize("workload", TRAINING.values(), ids=list(TRAINING))
def test_training_steps_start_from_the_same_loss(workload: TrainingStep) -> None:
    """Weights are given to layers in the right places: the first loss is that of the formulas in float64."""
    inputs = workload.inputs(np.random.default_rng(0))
    wide = tuple(a.astype("float64") if a.dtype.kind == "f" else a for a in inputs)
    with tj.eager():  # compiled, the benchmark itself checks it
        loss = workload.build(PEERS["tracejit"](1), inputs)()
    workload.check(loss, workload.build(PEERS["numpy"](1), wide)())


class Wide(Miniature):
    sizes = (1000, 1000, 8, 8)


def peak_of_wide_steps() -> Peak:
    return peak_of_steps(Wide(), PEERS["tracejit"](1))


def test_memory_of_steps() -> None:
    """The weights, gradients and moments of a layer of a million numbers take 16 MB at least, and not much more; in a
    fresh process, which has no memory left over from other tests."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        found = processes.submit(peak_of_wide_steps).result()
    assert 12e6 < found.grown < 60e6 < found.whole


def test_tables_go_between_their_marks(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_document(document, "| new |")
    assert document.read_text() == f"before\n{BEGIN}\n| new |\n{END}\nafter\n"
    text = DOCUMENT.read_text()
    assert text.count(BEGIN) == text.count(END) == 1 and text.index(BEGIN) < text.index(END)
