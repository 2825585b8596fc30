"""Writes to values from outside: captured tensors, Variables, Variables made inside, one tensor in several places."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from calls import numbers, same, x

import tracejit as tj


# -- writes
def test_captured_handles_that_are_written() -> None:
    t, v = tj.zeros(3), tj.Variable(1.0)

    @tj.function
    def f(a):
        nonlocal t
        t += a
        v.assign(v * 2)
        t[0] = v
        return t * v

    want_t, want_v = np.zeros(3), 1.0
    for _ in range(4):
        want_t, want_v = want_t + numbers(), want_v * 2
        want_t[0] = want_v
        same(f(x()), want_t * want_v)
        same(t, want_t)
        same(v, want_v)
    assert f.trace_count == 1


def test_reads_and_writes_keep_their_order() -> None:
    v = tj.Variable(1.0)

    @tj.function
    def f(a):
        before = v.read_value()
        v.assign_add(a)
        middle = v + 0
        v.assign(v * 10)
        return before, middle, v.read_value()

    assert [float(t) for t in f(2.0)] == [1, 3, 30]
    assert [float(t) for t in f(2.0)] == [30, 32, 320]


def test_variables_swap() -> None:
    p, q = tj.Variable([1.0]), tj.Variable([2.0])

    @tj.function
    def swap():
        a, b = p.read_value(), q.read_value()
        p.assign(b)
        q.assign(a)

    for k in range(3):
        assert swap() is None
        assert (float(p[0]), float(q[0])) == ((2.0, 1.0) if k % 2 == 0 else (1.0, 2.0))


def test_a_failing_trace_leaves_handles_as_they_were() -> None:
    v = tj.Variable(1.0)

    @tj.function
    def f(a):
        v.assign(a)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        f(2.0)
    assert float(v) == 1.0 and f.trace_count == 0


GLOBAL_VARIABLE: Any = None


def test_rebinding_a_variable_is_an_error_that_says_what_to_do() -> None:
    global GLOBAL_VARIABLE
    GLOBAL_VARIABLE = v = tj.Variable(0.0)

    @tj.function
    def f(a):
        global GLOBAL_VARIABLE
        GLOBAL_VARIABLE = GLOBAL_VARIABLE + a
        return GLOBAL_VARIABLE

    with pytest.raises(
        tj.TracerError,
        match=r"GLOBAL_VARIABLE is a Variable and was rebound to a tensor; use GLOBAL_VARIABLE\.assign_add",
    ):
        f(1.0)
    assert GLOBAL_VARIABLE is v


def test_rebinding_through_closures_and_attributes() -> None:
    v = tj.Variable(0.0)

    class Model:
        w = tj.Variable(1.0)

        def __init__(self):
            self.w = tj.Variable(2.0)

        @tj.function
        def step(self, a):
            self.w = self.w * a
            return self.w

    def f(a):
        nonlocal v
        v = a * 2.0
        return v

    with pytest.raises(tj.TracerError, match=r"self\.w is a Variable and was rebound"):
        Model().step(2.0)
    with pytest.raises(tj.TracerError, match="v is a Variable and was rebound"):
        tj.function(f)(1.0)
    assert isinstance(v, tj.Variable)


def test_rebinding_in_containers() -> None:
    first, second = tj.Variable(1.0), tj.Variable(2.0)
    row, table = [first, 5.0], {"w": second}

    def in_a_list(a):
        row[0] = row[0] * a
        return row[0]

    def in_a_dict(a):
        table["w"] = table["w"] * a
        return table["w"]

    def in_place(a):
        table["w"] += a
        return table["w"] * 1

    with pytest.raises(tj.TracerError, match=r"row\[0\] is a Variable and was rebound to a tensor; use row"):
        tj.function(in_a_list)(2.0)
    with pytest.raises(tj.TracerError, match=r"table\['w'\] is a Variable and was rebound to a tensor"):
        tj.function(in_a_dict)(2.0)
    assert row[0] is first and table["w"] is second
    f = tj.function(in_place)
    assert [float(f(2.0)) for _ in range(3)] == [4, 6, 8] and table["w"] is second


# -- Variables made inside
def test_create_once() -> None:
    class Dense:
        def __init__(self):
            self.w = None
            self.made = 0

        @tj.function
        def __call__(self, a):
            if self.w is None:
                self.w = tj.Variable(tj.ones(3) * 2, name="w")
            self.w.assign_add(tj.ones(3))
            return a * self.w

    m = Dense()
    for k in range(4):
        same(m(x()), numbers() * (3 + k))
    assert m.__call__.trace_count == 2
    other = Dense()
    same(other(x()), numbers() * 3)


def test_create_once_with_a_random_start() -> None:
    class Model:
        w = None

        def plain(self, a):
            if self.w is None:
                self.w = tj.Variable(tj.random.normal((3,)))
            return a * self.w + tj.random.uniform((3,))

        run = tj.function(plain)

    tj.random.seed(3)
    m = Model()
    want = [m.plain(x()).numpy() for _ in range(3)]
    tj.random.seed(3)
    m = Model()
    got = [m.run(x()).numpy() for _ in range(3)]
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_local_variable_is_an_error_with_its_line() -> None:
    @tj.function
    def f(a):
        w = tj.Variable(1.0)
        w.assign_add(a)
        return w.read_value()

    for _ in range(2):
        with pytest.raises(
            tj.TracerError, match=rf"Variable created at .*{__file__.rsplit('/', 1)[-1]}:\d+, inside f, is not kept"
        ):
            f(1.0)


def test_a_second_creation_is_an_error_with_its_line() -> None:
    kept: list[Any] = []

    @tj.function
    def f(a):
        kept.append(tj.Variable(1.0))
        return a * kept[-1]

    f(1.0)
    with pytest.raises(tj.TracerError, match="is a second one"):
        f(1.0)


def test_a_variable_that_starts_from_an_argument_is_an_error() -> None:
    class M:
        w = None

        @tj.function
        def __call__(self, a):
            if self.w is None:
                self.w = tj.Variable(a * 2)
            return self.w * a

    with pytest.raises(tj.TracerError, match=r"its first value depends on argument 'a'"):
        M()(x())


# -- one tensor in several places --------------------------------------------------------------------------------------
def test_shared_tensors_that_part_and_meet() -> None:
    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

        def plain(self, v):
            self.a += v
            return self.a * self.b

        run = tj.function(plain)

    t = x()
    p, q = Pair(t, t), Pair(t + 0, None)
    q.b = q.a
    for step in range(6):
        same(p.run(x()), q.plain(x()).numpy())
        same(p.b, q.b.numpy())
        for pair in (p, q):
            if step == 1:  # part
                pair.b = tj.ones(3)
            if step == 3:  # meet again
                pair.a = pair.b
    assert p.run.trace_count == 2


def test_two_variables_become_one() -> None:
    a, b = tj.Variable([1.0]), tj.Variable([2.0])

    def f(v):
        a.assign_add(v)
        b.assign(b * 2)
        return a + b

    g = tj.function(f)
    one = tj.ones(1)
    same(g(one), [6.0])
    same(g(one), [11.0])
    b = a  # 3
    same(g(one), [16.0])
    same(a, [8.0])


# -- many Variables: written over --------------------------------------------------------------------------------------
class Many:
    """A step that adds to eight Variables and gives their sum."""

    def __init__(self, n: int = 8):
        self.vs = [tj.Variable(np.full(3, float(k))) for k in range(n)]
        self.step = tj.function(self.add)

    def add(self, x: tj.Tensor) -> tj.Tensor:
        total = x * 0
        for v in self.vs:
            v.assign_add(x)
            total = total + v * 2.0
        return total

    def places(self) -> list[int]:
        return [v.numpy().ctypes.data for v in self.vs]


def test_many_variables_are_written_over() -> None:
    m, x = Many(), tj.asarray(np.ones(3))
    for k in range(1, 8):
        if k == 5:
            before = m.places()
        assert m.step(x).tolist() == [2.0 * (28 + 8 * k)] * 3
    assert m.places() == before and m.step.trace_count == 1
    assert [v.tolist()[0] for v in m.vs] == [7.0 + k for k in range(8)]


def test_what_was_read_before_a_step_stays() -> None:
    m, x = Many(), tj.asarray(np.ones(3))
    for _ in range(4):
        m.step(x)
    views = m.vs[0].numpy(), m.vs[1].read_value(), memoryview(m.vs[2].numpy()), np.from_dlpack(m.vs[3])
    m.vs[5].assign(m.vs[4])  # two handles on one array
    for _ in range(3):
        m.step(x)
    assert [np.asarray(v).tolist() for v in views] == [[4.0 + k] * 3 for k in range(4)]
    assert [v.tolist()[0] for v in m.vs] == [7.0, 8, 9, 10, 11, 11, 13, 14]
    assert m.step.trace_count == 1


def test_variables_that_change_between_steps() -> None:
    m, x = Many(), tj.asarray(np.ones(3))
    other = tj.function(lambda: [v.assign(v * 2.0) for v in m.vs])
    want = np.arange(8.0)
    for k in range(8):
        m.step(x)
        want += 1
        if k % 2:
            other()
            want *= 2
        if k % 3 == 0:
            m.vs[k % 8].assign(np.zeros(3))
            want[k % 8] = 0
        if k == 5:
            m.vs[2] = tj.Variable(np.full(3, 100.0))  # another handle
            want[2] = 100
        if k == 6:
            m.vs[3].assign(np.broadcast_to(np.float64(7), 3))
            want[3] = 7
        assert [v.tolist() for v in m.vs] == [[w] * 3 for w in want]
    m.vs[1] = m.vs[0]  # the same one twice
    m.step(x)
    assert m.vs[0].tolist() == [want[0] + 2] * 3 and m.vs[2].tolist() == [want[2] + 1] * 3


def test_a_failing_step_leaves_many_variables_as_they_are() -> None:
    m = Many()
    table = tj.asarray(np.ones(3))

    @tj.function
    def step(i: tj.Tensor) -> None:
        m.add(table[i])

    good, bad = tj.asarray([0, 1, 2]), tj.asarray([0, 1, 3])
    for _ in range(4):
        step(good)
    with pytest.raises(IndexError):
        step(bad)
    assert [v.tolist()[0] for v in m.vs] == [4.0 + k for k in range(8)]
    step(good)
    assert [v.tolist()[0] for v in m.vs] == [5.0 + k for k in range(8)]


def test_an_argument_may_be_one_of_many_variables_value() -> None:
    m = Many()
    ones = tj.asarray(np.ones(3))
    for _ in range(4):
        m.step(ones)
    first = m.vs[0].read_value()
    assert m.step(first).tolist() == [2.0 * (28 + 8 * 4 + 8 * 4)] * 3  # each grew by the first one's 4
    assert first.tolist() == [4.0] * 3


def test_many_variables_from_several_threads() -> None:
    """Each thread has its own; the compiled function is one."""
    models = [Many() for _ in range(4)]
    step = tj.function(lambda m, x: m.add(x))
    x = tj.asarray(np.ones(3))

    def work(m: Many) -> None:
        for _ in range(50):
            step(m, x)

    threads = [threading.Thread(target=work, args=(m,)) for m in models]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for m in models:
        assert [v.tolist() for v in m.vs] == [[50.0 + k] * 3 for k in range(8)]


@pytest.mark.parametrize("seed", range(3))
def test_many_variables_at_random(seed: int) -> None:
    """Compiled steps, assignments, shared values and views that somebody keeps, in any order, against NumPy."""
    random = np.random.default_rng(seed)
    n, m = 7, Many(7)
    wanted = [np.full(3, float(k)) for k in range(n)]
    kept: list[tuple[Any, np.ndarray]] = []

    @tj.function
    def mix(x: tj.Tensor) -> None:
        for k in range(0, n, 2):
            m.vs[k].assign(m.vs[(k + 1) % n] * 0.5 + x)

    for _ in range(150):
        act, k, j, x = random.integers(8), random.integers(n), random.integers(n), random.normal(size=3)
        v = m.vs[k]
        match act:
            case 0 | 1:
                m.step(tj.asarray(x))
                wanted = [w + x for w in wanted]
            case 2:
                mix(tj.asarray(x))
                for i in range(0, n, 2):
                    wanted[i] = wanted[(i + 1) % n] * 0.5 + x
            case 3:
                held = [v.numpy(), v.read_value(), v.numpy()[1:], v * 1.0][random.integers(4)]
                kept.append((held, np.array(held)))
            case 4:
                kept = kept[1:]
            case 5:
                v.assign(m.vs[j])
                wanted[k] = wanted[j].copy()
            case 6:
                v[1] = 5.0
                wanted[k] = np.array([wanted[k][0], 5.0, wanted[k][2]])
            case 7:
                m.vs[k] = tj.Variable(v.numpy())
        for v, w in zip(m.vs, wanted):
            np.testing.assert_allclose(v.numpy(), w, rtol=1e-12)
        for held, value in kept:
            np.testing.assert_array_equal(np.asarray(held), value)
    assert m.step.trace_count == mix.trace_count == 1
