"""Reading datasets: order, positions, laziness, threads, errors. Random pipelines are stopped everywhere and go on."""

from __future__ import annotations

import gc
import json
import math
import os
import random
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from test_data import memory, plain, values

import tracejit as tj
from tracejit.data import AUTOTUNE, Dataset, DatasetIterator, streams, workers

ROOT = Path(__file__).resolve().parent.parent


# -- order -------------------------------------------------------------------------------------------------------------
def test_shuffles_are_decided_by_their_seeds() -> None:
    d = Dataset.range(100)
    a, b = d.shuffle(20, seed=5), d.shuffle(20, seed=5)
    first, second = values(a), values(a)
    assert first != second and (values(b), values(b)) == (first, second)
    assert sorted(first) == sorted(second) == list(range(100)) and values(d.shuffle(20, seed=6)) != first
    assert all(v < k + 20 for k, v in enumerate(first))  # no item comes before the buffer has seen it
    same = d.shuffle(20, seed=5, reshuffle_each_iteration=False)
    assert values(same) == values(same) == first
    twice = values(a.repeat(2))
    assert twice[:100] != twice[100:]
    c = d.shuffle(20, seed=5)
    peeked, whole = values(c.take(3)), values(c)
    assert peeked == first[:3] and whole == second  # a look at it is a pass
    assert values(d.shuffle(1, seed=1)) == list(range(100))


def test_shuffles_of_rows_and_of_elements_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "CHUNK", 16)
    for size in (1, 3, 10, 64, 99, 100, 101, 500):
        for n in (0, 1, 2, 64, 100):
            rows = Dataset.range(n).shuffle(size, seed=1)
            mapped = Dataset.range(n).map(lambda x: x).shuffle(size, seed=1)
            assert values(rows) == values(mapped), (size, n)
            assert values(rows.batch(7).unbatch()) == values(mapped), (size, n)


def test_shuffling_is_uniform() -> None:
    """Each place equally likely for each item of a full buffer: counts within five standard deviations."""
    n, runs = 6, 3000
    counts = np.zeros((n, n))
    d = Dataset.range(n).shuffle(n, seed=0)
    for _ in range(runs):
        counts[np.arange(n), [x.item() for x in d]] += 1
    assert abs(counts / runs - 1 / n).max() < 5 * math.sqrt((1 / n) * (1 - 1 / n) / runs)


def test_seeds_come_from_tj_random() -> None:
    def order(seed: int) -> list[int]:
        tj.random.seed(seed)
        return values(Dataset.range(50).shuffle(50))

    assert order(1) == order(1) != order(2)


def test_keys_of_mapped_elements_do_not_depend_on_threads() -> None:
    def noisy(x: tj.Tensor, key: tj.Tensor) -> tj.Tensor:
        return x + tj.random.uniform(key=key)

    def made(threads: int | None, seed: int = 3) -> Dataset:
        return Dataset.range(20).map(noisy, threads, seed=seed)

    d, e = made(None), made(4)
    first, second = values(d), values(d)
    assert (values(e), values(e)) == (first, second) and first != second
    assert len(set(np.round(np.array(first) - np.arange(20), 6))) == 20
    assert values(made(4, seed=4)) != first


# -- state -------------------------------------------------------------------------------------------------------------
def check_resumes(make: Callable[[], Dataset], most: int = 40) -> None:
    """From every position, through JSON, in a dataset made anew, the rest is the same; and so are later passes."""
    d = make().take(most)
    reference, saved = [], []
    it = iter(d)
    while True:
        saved.append(json.dumps(it.state()))
        try:
            reference.append(plain(next(it)))
        except StopIteration:
            break
    assert len(json.dumps(it.state())) < 2000
    following = values(d)
    for k, text in enumerate(saved):
        other = make().take(most)
        resumed = iter(other)
        resumed.load_state(json.loads(text))
        assert values(resumed) == reference[k:], k
        if k in (0, len(saved) // 2):
            assert values(other) == following


def ragged() -> Any:
    for n in (3, 1, 0, 2, 5):
        yield np.arange(n), n


PIPELINES: dict[str, Callable[[], Dataset]] = {
    "shuffle, repeat, batch": lambda: Dataset.range(10).shuffle(4, seed=1).repeat(3).batch(4),
    "endless": lambda: Dataset.range(7).shuffle(7, seed=1).batch(3).repeat().prefetch(2),
    "mapped, then shuffled": lambda: Dataset.range(10).map(lambda x: x * 2).shuffle(4, seed=2).batch(3).prefetch(3),
    "threads": lambda: Dataset.range(20).shuffle(9, seed=1).map(lambda x: x + 1, 3).batch(2).prefetch(),
    "random keys": lambda: Dataset.range(9).map(lambda x, key: x + tj.random.uniform(key=key), 2, seed=5).repeat(2),
    "generator": lambda: Dataset.from_generator(ragged).padded_batch(2).repeat(2),
    "filter": lambda: Dataset.range(30).shuffle(9, seed=3).filter(lambda x: x % 3 > 0).batch(4),
    "windows": lambda: Dataset.range(20).window(3, 2, 2).flat_map(lambda w: w.batch(3)),
    "windows with gaps": lambda: Dataset.range(20).shuffle(5, seed=1).window(2, 5).flat_map(lambda w: w.batch(2)),
    "interleave": lambda: Dataset.range(5).interleave(lambda n: Dataset.range(n.item()).shuffle(3, seed=1), 3, 2),
    "unbatch": lambda: Dataset.range(11).batch(4).shuffle(3, seed=1).unbatch().enumerate(),
    "zip, concatenate": lambda: Dataset.zip(
        Dataset.range(5).concatenate(Dataset.range(3).shuffle(3, seed=4)), Dataset.range(9).shard(2, 1).repeat(3)),
    "cache": lambda: Dataset.range(8).shuffle(8, seed=1).cache().repeat(3).shuffle(4, seed=2).batch(3),
    "cache of elements, shuffled": lambda: Dataset.range(12).map(lambda x: (x, x * x)).cache().shuffle(
        5, seed=2).repeat(2).batch(3).prefetch(2),
    "cache of a cache": lambda: Dataset.range(5).map(lambda x: x * 2).cache().shuffle(3, seed=1).cache().repeat(2),
    "cache of anything": lambda: Dataset.from_generator(ragged).cache().repeat(3).shuffle(3, seed=1),
    "cache of elements": lambda: Dataset.range(8).map(lambda x: x * x).cache().repeat(2).skip(3).batch(3),
    "shuffles of shuffles": lambda: Dataset.range(9).shuffle(3, seed=1).take(7).shuffle(5, seed=2).repeat(2),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_iterators_resume_exactly(name: str) -> None:
    check_resumes(PIPELINES[name])


STAGES: dict[str, Callable[[Dataset, int], Dataset]] = {
    "shuffle": lambda d, n: d.shuffle(n + 1, seed=n),
    "take": lambda d, n: d.take(5 * n),
    "skip": lambda d, n: d.skip(n),
    "repeat": lambda d, n: d.repeat(1 + n % 3),
    "map": lambda d, n: d.map(lambda x: x + n),
    "parallel map": lambda d, n: d.map(lambda x: x * 2, 2),
    "filter": lambda d, n: d.filter(lambda x: x.sum() % 5 != n % 5),
    "batch, unbatch": lambda d, n: d.batch(n + 1).unbatch(),
    "batch, shuffle, unbatch": lambda d, n: d.batch(n + 1).shuffle(3, seed=n).unbatch(),
    "prefetch": lambda d, n: d.prefetch(n + 1),
    "cache": lambda d, n: d.cache(),
    "cache of elements": lambda d, n: d.map(lambda x: x + 1).cache().shuffle(n + 2, seed=n),
    "shard": lambda d, n: d.shard(2, n % 2),
    "concatenate": lambda d, n: d.concatenate(Dataset.range(n)),
    "window": lambda d, n: d.window(n + 1, 2).flat_map(lambda w: w.take(2)),
    "interleave": lambda d, n: d.interleave(lambda x: Dataset.range(n).map(lambda y: y + x), 2, n + 1),
    "enumerate": lambda d, n: d.enumerate(n).map(lambda k, x: k + x),
    "zip": lambda d, n: Dataset.zip(d, Dataset.range(7).repeat(4)).map(lambda a, b: a + b),
}


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(sorted(STAGES)), st.integers(0, 4)), min_size=1, max_size=4),
       st.integers(0, 12))
def test_random_pipelines_resume_exactly(stages: list[tuple[str, int]], n: int) -> None:
    def make() -> Dataset:
        d = Dataset.range(n)
        for name, k in stages:
            d = STAGES[name](d, k)
        return d.batch(2)

    check_resumes(make, 12)


def test_iterators_do_not_disturb_each_other() -> None:
    """Two of one dataset, one of them resumed, read in turn: each gives what it gives alone."""
    def made() -> Dataset:
        return Dataset.range(10).shuffle(10, seed=3).repeat(4).map(lambda x: x, 2).batch(4).prefetch(2)

    d = made()
    alone, after = values(d), values(d)
    d = made()
    first, second = iter(d), iter(d)
    mixed = [(plain(a), plain(b)) for a, b in zip(first, second)]
    assert [a for a, _ in mixed] == alone and [b for _, b in mixed] == after
    d = made()
    first = iter(d)
    next(first)
    second = iter(d)
    second.load_state(first.state())
    assert [(plain(a), plain(b)) for a, b in zip(first, second)] == [(x, x) for x in alone[1:]]


def test_draws_whose_turn_is_chance_warn() -> None:
    def f(x: tj.Tensor) -> tj.Tensor:
        return x + tj.random.uniform()

    d = Dataset.range(3)
    for other in (d.map(f, 2), d.map(f).prefetch(1)):
        with pytest.warns(RuntimeWarning, match=r"shared generator in a thread.*test_data_reading.py"):
            values(other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values(d.map(f))  # in turn


def test_prefetch_and_threads_change_nothing() -> None:
    d = Dataset.range(30).shuffle(10, seed=1)
    plain_values = values(d.map(lambda x: x * 3).batch(4))
    d = Dataset.range(30).shuffle(10, seed=1).prefetch(3)
    assert values(d.map(lambda x: x * 3, AUTOTUNE).prefetch(1).batch(4).prefetch(5)) == plain_values


def test_unseeded_orders_resume_too() -> None:
    """Another process has drawn other seeds; it takes over those of the position, for later passes as well."""
    def made() -> Dataset:
        inner = Dataset.range(4).flat_map(lambda n: Dataset.range(5).shuffle(5).map(lambda x: x + 10 * n))
        outer = Dataset.range(20).shuffle(20).map(lambda x: x).cache().shuffle(20)
        return Dataset.zip(inner.repeat(), outer.repeat(3))

    d = made()
    it = iter(d)
    for _ in range(3):
        next(it)
    saved = json.dumps(it.state())
    generator = tj.random.default_generator.state()
    rest, later = values(it), [b for _, b in values(d)]
    other = made()
    assert [b for _, b in values(other)] != later
    resumed = iter(other)
    resumed.load_state(json.loads(saved))
    tj.random.default_generator.load_state(generator)  # what datasets made while reading draw from
    assert values(resumed) == rest and [b for _, b in values(other)] == later


def test_states_of_another_dataset_are_refused() -> None:
    it = iter(Dataset.range(5).batch(2))
    with pytest.raises(ValueError, match=r"'range\(5\) > batch\(2\)', this dataset is 'range\(5\) > batch\(3\)'"):
        iter(Dataset.range(5).batch(3)).load_state(it.state())


def test_a_position_can_be_loaded_twice_and_backwards() -> None:
    it = iter(Dataset.range(10).shuffle(3, seed=1).prefetch(2))
    saved = it.state()
    all_of_it = values(it)
    for _ in range(2):
        it.load_state(saved)
        assert values(it) == all_of_it


# -- laziness, threads, errors -----------------------------------------------------------------------------------------
def test_nothing_is_read_before_it_is_needed() -> None:
    seen: list[int] = []

    def f(x: tj.Tensor) -> tj.Tensor:
        seen.append(x.item())
        return x

    d = Dataset.range(100).map(f).batch(2).skip(1)
    it = iter(d)
    assert seen == []
    next(it)
    assert seen == [0, 1, 2, 3]
    cached = Dataset.range(4).map(f).cache()
    seen.clear()
    assert values(cached.take(2)) == [0, 1] and values(cached) == values(cached) == [0, 1, 2, 3]
    assert sorted(seen) == [0, 1, 2, 3]


def threads(name: str) -> int:
    return sum(t.name == name and t.is_alive() for t in threading.enumerate())


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return condition()


@pytest.mark.parametrize("name, make", [
    ("tracejit-prefetch", lambda d: d.prefetch(2)), ("tracejit-map", lambda d: d.map(lambda x: x, 3)),
])
def test_threads_end_with_their_iterator(name: str, make: Callable[[Dataset], Dataset]) -> None:
    before = threads(name)
    it = iter(make(Dataset.range(10).repeat()))
    next(it)
    assert threads(name) > before
    del it
    gc.collect()
    assert wait_for(lambda: threads(name) == before)
    it = iter(make(Dataset.range(10).repeat()))
    next(it)
    it.close()
    assert wait_for(lambda: threads(name) == before)
    assert values(make(Dataset.range(3))) == [0, 1, 2]
    assert wait_for(lambda: threads(name) == before)


def fails_at_two(x: tj.Tensor) -> tj.Tensor:
    if x.item() == 2:
        raise KeyError("no two")
    return x


@pytest.mark.parametrize("make", [
    lambda d: d.map(fails_at_two), lambda d: d.map(fails_at_two, 3), lambda d: d.map(fails_at_two).prefetch(2),
    lambda d: d.map(fails_at_two, 2).prefetch(1).prefetch(1),
])
def test_errors_come_where_the_element_would_have_with_their_traceback(make: Callable[[Dataset], Dataset]) -> None:
    it = iter(make(Dataset.range(5)))
    assert [next(it).item(), next(it).item()] == [0, 1]
    with pytest.raises(KeyError, match="no two") as info:
        next(it)
    text = "".join(traceback.format_exception(info.value))
    assert "fails_at_two" in text and 'raise KeyError("no two")' in text
    assert info.value.__notes__ == ["in map(fails_at_two) of element 2"]
    assert values(it) == [3, 4]


def test_a_stream_that_fails_in_any_way_does_not_hang() -> None:
    class Odd(streams.Stream):
        count = 0

        def one(self) -> Any:
            self.count += 1
            if self.count == 3:
                raise SystemExit("enough")
            return self.count

        def state(self) -> Any:
            if self.count == 2:
                raise ValueError("no state")
            return self.count

    it = workers.Prefetch(Odd, 1)
    assert it.one() == 1
    with pytest.raises(ValueError, match="no state"):
        it.one()
    with pytest.raises(SystemExit, match="enough"):
        it.one()
    with pytest.raises(StopIteration):
        it.one()


def test_reading_ahead_overlaps() -> None:
    """While one element is used, the next one is read; and calls of a mapped function happen at once."""
    read = [threading.Event() for _ in range(6)]

    def f(x: tj.Tensor) -> tj.Tensor:
        read[x.item()].set()
        return x

    for k, _ in enumerate(Dataset.range(6).map(f).prefetch(1)):
        assert read[min(k + 1, 5)].wait(10)
    both = threading.Barrier(2)
    meeting = Dataset.range(6).map(lambda x: (both.wait(10), x)[1], 2)
    assert values(meeting) == list(range(6))


def test_prefetch_reads_no_further_than_it_may() -> None:
    seen: list[int] = []
    it = iter(Dataset.range(100).map(lambda x: (seen.append(x.item()), x)[1]).prefetch(3))  # type: ignore[func-returns-value]
    next(it)
    assert wait_for(lambda: len(seen) == 4)
    time.sleep(0.02)
    assert len(seen) <= 5


def test_iterators_end_once_and_for_all() -> None:
    for d in (Dataset.range(2), Dataset.range(2).prefetch(1), Dataset.range(2).map(lambda x: x, 2)):
        it = iter(d)
        assert isinstance(it, DatasetIterator) and iter(it) is it and len(values(it)) == 2
        assert values(it) == [] and next(it, None) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_children_go_on_and_processes_end() -> None:
    """In a process of its own: a child of a fork continues iterators with threads; nothing hangs at the end."""
    code = """
import os, sys
from tracejit.data import Dataset
a = iter(Dataset.range(50).map(lambda x: x, 2).prefetch(2))
b = iter(Dataset.range(50).map(lambda x: x, 3))
c = iter(Dataset.range(50).repeat().prefetch(2))
for it in (a, b, c):
    next(it), next(it)
child = os.fork()
rest = [x.item() for x in a], [x.item() for x in b]
ok = rest == (list(range(2, 50)), list(range(2, 50))) and next(c).item() == 2
if child == 0:
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0 and ok
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout == "done\n" and done.returncode == 0, done.stderr


def test_cached_elements_are_rows_again() -> None:
    """Elements that are alike go into arrays, of which batches in order are views; others come back as they were."""
    d = Dataset.range(6).map(lambda x: {"x": x, "y": [x, x]}).cache()
    first, second = list(d.batch(2)), list(d.batch(2))
    assert [memory(b["y"]) for b in first] == [memory(b["y"]) for b in second]
    assert memory(second[1]["y"]) - memory(second[0]["y"]) == 2 * 2 * 8
    assert values(d)[3] == {"x": 3, "y": [3, 3]} and values(d.shuffle(6, seed=1).batch(6))[0]["y"][0] != [0, 0]
    for kind in (lambda k: (k, str(k)), lambda k: np.zeros(k % 3), lambda k: np.zeros((), "f4" if k < 2 else "f8"),
                 lambda k: (k, k) if k < 2 else k):
        made = Dataset.range(5).map(lambda x: kind(x.item()))  # noqa: B023
        cached = made.cache()
        for _ in range(2):
            assert values(cached) == values(made)


def test_an_error_leaves_no_gap_in_a_cache() -> None:
    broken = [True]

    def f(x: tj.Tensor) -> tj.Tensor:
        if x.item() == 3 and broken:
            raise OSError("try again")
        return x

    d = Dataset.range(6).map(f).cache()
    for _ in range(2):
        with pytest.raises(OSError, match="try again"):
            list(d.batch(2))
    broken.clear()
    assert values(d) == values(d) == list(range(6))


def test_shuffling_a_cache_reads_no_further_than_its_buffer() -> None:
    seen: list[int] = []
    d = Dataset.range(1000).map(lambda x: (seen.append(x.item()), x)[1]).cache().shuffle(10, seed=1)  # type: ignore[func-returns-value]
    it = iter(d.batch(2))
    next(it)
    assert len(seen) == 12


def test_many_threads_may_read_one_cached_dataset() -> None:
    d = Dataset.range(200).map(lambda x: x * 2).cache()
    found: list[list[int]] = []
    readers = [threading.Thread(target=lambda: found.append(values(d))) for _ in range(4)]
    for t in readers:
        t.start()
    for t in readers:
        t.join()
    assert found == [[2 * k for k in range(200)]] * 4


@pytest.mark.parametrize("make", [
    lambda d: d, lambda d: d.prefetch(2), lambda d: d.map(lambda x: x + 1, 2).prefetch(2),
], ids=["plain", "prefetch", "map"])  # fmt: skip
def test_threads_may_share_an_iterator(make: Callable[[Dataset], Dataset]) -> None:
    """Each element goes to one of them, and all of them come to the end."""
    def numbers() -> Iterator[int]:
        for k in range(300):
            time.sleep(0)  # let others run in the middle of a step
            yield k

    expected = sorted(values(make(Dataset.from_generator(numbers))))
    shared, found, errors = iter(make(Dataset.from_generator(numbers).shuffle(10, seed=0))), [], []

    def read() -> None:
        try:
            found.extend(x.item() for x in shared)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and sorted(found) == expected


@pytest.mark.parametrize("make", [
    lambda d, f: d.map(f), lambda d, f: d.map(f, 2), lambda d, f: d.map(f).batch(2), lambda d, f: d.filter(f),
    lambda d, f: d.flat_map(f),
], ids=["map", "threads", "batch", "filter", "flat_map"])  # fmt: skip
def test_a_function_that_raises_stop_iteration_does_not_end_the_dataset(make: Callable[..., Dataset]) -> None:
    with pytest.raises(RuntimeError, match="first_of_none raised StopIteration"):
        list(make(Dataset.range(3), first_of_none))


def first_of_none(x: tj.Tensor) -> tj.Tensor:
    return next(iter([]))


def test_random_module_is_not_touched() -> None:
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    values(Dataset.range(10).shuffle(5, seed=1).batch(2))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
