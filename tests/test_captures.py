"""Values from outside: closures, globals, attributes; guarded, read afresh, written back."""

from __future__ import annotations

import functools
import gc
import types
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
from calls import numbers, same, x

import tracejit as tj
from tracejit.trace.captures import Reach, _Places, snapshot

K: dict[str, Any] = {"s": 3.0, "deep": {"list": [1.0, 2.0]}}
SCALE = 2.0
W = None
settings = types.SimpleNamespace(rate=2.0, name="add")


def helper(a: Any) -> Any:
    return a * SCALE


def default_helper(a: Any, k: float = 2.0) -> Any:
    return a * k


# -- globals and closures
def test_a_global_dict() -> None:
    f = tj.function(lambda a: a * K["s"])
    for s in (3.0, 30.0, 3.0, 30.0):
        K["s"] = s
        same(f(x()), numbers() * s)
    assert f.trace_count == 2
    assert "K['s'] 3.0 -> 30.0" in f.history[1]


def test_a_global_number_in_a_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    f = tj.function(lambda a: helper(a) + 1)
    for s in (2.0, 5.0, -1.0):
        monkeypatch.setitem(globals(), "SCALE", s)
        same(f(x()), numbers() * s + 1)


def test_a_helper_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    f = tj.function(lambda a: helper(a))
    same(f(x()), 2 * numbers())
    monkeypatch.setitem(globals(), "helper", lambda a: a - 1)
    same(f(x()), numbers() - 1)


def test_a_helper_default(monkeypatch: pytest.MonkeyPatch) -> None:
    f = tj.function(lambda a: default_helper(a))
    same(f(x()), 2 * numbers())
    monkeypatch.setattr(default_helper, "__defaults__", (7.0,))
    same(f(x()), 7 * numbers())


def test_nested_containers_and_objects() -> None:
    def f(a):
        for v in K["deep"]["list"]:
            a = a * v
        return a + len(settings.name)

    g = tj.function(f)
    for values, name in [([1.0, 2.0], "add"), ([1.0, 3.0], "add"), ([2.0], "add"), ([2.0], "longer"), ([], "")]:
        K["deep"]["list"] = values
        settings.name = name
        same(g(x()), f(numbers()))


@pytest.mark.parametrize("kind", ["key", "items", "values", "sum", "unpack", "star", "comprehension", "slice", "in"])
def test_containers_used_as_a_whole(kind: str) -> None:
    table = {"u": 1.0, "v": 2.0}
    pair = [1.0, 2.0]

    def add(a, u, v):
        return a * u + v

    uses = {
        "key": lambda a, k="u": a * table[k],
        "items": lambda a: sum(a * v for _, v in table.items()),
        "values": lambda a: sum(a * v for v in table.values()),
        "sum": lambda a: a * sum(pair),
        "unpack": lambda a: (lambda p: a * p[0] + p[1])(pair),
        "star": lambda a: add(a, **table),
        "comprehension": lambda a: a * sum([v * 2 for v in pair]),
        "slice": lambda a: a * pair[:1][0],
        "in": lambda a: a * 2 if 9.0 in pair else a,
    }
    f = uses[kind]
    g = tj.function(f)
    for u in (1.0, 5.0, 9.0):
        table["u"] = pair[0] = u
        same(g(x()), f(numbers()))
    g(x())
    assert g.trace_count == 3


def test_closures() -> None:
    def make() -> tuple[Any, Any]:
        k = 2.0

        def f(a):
            return a * k

        def change(v):
            nonlocal k
            k = v

        return f, change

    f, change = make()
    g = tj.function(f)
    for v in (2.0, 3.0, 4.0):
        change(v)
        same(g(x()), numbers() * v)
    g(x())
    assert g.trace_count == 3


def test_strings_bools_and_none_choose_branches() -> None:
    o = types.SimpleNamespace(mode="up", on=True, extra=None)

    def f(a):
        a = a + 1 if o.mode == "up" else a - 1
        a = a * 2 if o.on else a
        return a if o.extra is None else a + o.extra

    g = tj.function(f)
    for mode, on, extra in [
        ("up", True, None),
        ("down", True, None),
        ("down", False, None),
        ("down", False, 5.0),
        ("up", True, None),
    ]:
        o.mode, o.on, o.extra = mode, on, extra
        same(g(x()), f(numbers()))


def test_a_name_that_appears_later() -> None:
    o = types.SimpleNamespace()

    def f(a):
        return a * o.k if hasattr(o, "k") else a + getattr(o, "b", 10.0)

    g = tj.function(f)
    same(g(x()), numbers() + 10)
    o.b = 20.0
    same(g(x()), numbers() + 20)
    o.k = 3.0
    same(g(x()), numbers() * 3)
    del o.k
    same(g(x()), numbers() + 20)


# -- captured tensors and arrays
def test_a_captured_tensor_is_read_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "W", tj.ones(3))
    f = tj.function(lambda a: a * W)
    for k in range(4):
        monkeypatch.setitem(globals(), "W", tj.ones(3) * k)
        same(f(x()), numbers() * k)
    assert f.trace_count == 1
    monkeypatch.setitem(globals(), "W", tj.ones((2, 3)))
    assert f(x()).shape == (2, 3)
    assert f.trace_count == 2 and "captured W f32[3] -> f32[2, 3]" in f.history[1]


def test_a_captured_numpy_array_is_read_afresh() -> None:
    w = np.ones(3, "f4")
    f = tj.function(lambda a: a * w)
    same(f(x()), numbers())
    w[:] = 5
    same(f(x()), 5 * numbers())
    w = np.full(3, 7, "f4")
    same(f(x()), 7 * numbers())
    assert f.trace_count == 1


def test_arrays_made_inside_are_values_of_their_time() -> None:
    @tj.function
    def f(a):
        t = np.zeros(3, "f4")
        b = a + t
        t += 1
        return b, a + t

    for _ in range(2):
        b, c = f(x())
        same(b, numbers())
        same(c, numbers() + 1)


def test_arrays_in_containers_and_objects() -> None:
    class Layer:
        def __init__(self, w):
            self.w = w

        def __call__(self, a):
            return a * self.w

    layers = [Layer(tj.ones(3)), Layer(np.full(3, 2, "f4"))]
    model = {"layers": layers, "bias": (tj.ones(3),)}

    def f(a):
        for layer in model["layers"]:
            a = layer(a)
        for name in ("bias",):
            a = a + model[name][0]
        return a

    g = tj.function(f)
    same(g(x()), numbers() * 2 + 1)
    layers[0].w = tj.ones(3) * 10
    layers[1].w[:] = 3
    model["bias"] = (tj.ones(3) * 4,)
    same(g(x()), numbers() * 30 + 4)
    assert g.trace_count == 1
    layers.append(Layer(tj.ones(3) * 2))
    same(g(x()), numbers() * 60 + 4)
    assert g.trace_count == 2


def test_a_tensor_found_by_no_path() -> None:
    """A call that cannot be followed: the handle itself is the hidden input."""
    store = {id(K): tj.ones(3)}
    get = operator_like(store)
    f = tj.function(lambda a: a * get())
    same(f(x()), numbers())
    t = store[id(K)]
    t *= 3
    same(f(x()), 3 * numbers())
    assert f.trace_count == 1


def operator_like(store: dict[int, Any]) -> Any:
    return functools.partial(lambda s: next(iter(s.values())), store)


def test_large_captured_arrays_are_not_baked_in() -> None:
    big = np.random.default_rng(0).random((300, 300))
    f = tj.function(lambda v: big @ v)
    v = np.ones(300)
    np.testing.assert_allclose(f(v).numpy(), big @ v)
    graph = f.trace(v)
    assert len(graph.inputs) == 2 and not any(n.op.name == "constant" for n in graph.nodes)


def test_python_code_that_looks_at_a_captured_value_guards_it() -> None:
    n = tj.asarray(2)
    f = tj.function(lambda a: a * tj.ones((int(n), 3)).sum(axis=0))
    same(f(x()), 2 * numbers())
    n += 1
    same(f(x()), 3 * numbers())
    same(f(x()), 3 * numbers())
    assert f.trace_count == 2


# -- objects
class Model:
    k = 2.0

    def __init__(self):
        self.w = tj.ones(3)
        self.children: list[Any] = []

    @property
    def twice(self):
        return self.k * 2

    @staticmethod
    def plus(a, b):
        return a + b * SCALE

    @classmethod
    def name(cls):
        return len(cls.__name__) * cls.k

    def inner(self, a):
        return a * self.k

    @tj.function
    def __call__(self, a):
        return self.plus(self.inner(a) * self.w, self.twice) + self.name()

    def plain(self, a):
        return self.plus(self.inner(a) * self.w, self.twice) + self.name()


def test_methods_see_their_object_change(monkeypatch: pytest.MonkeyPatch) -> None:
    m = Model()
    changes: list[Any] = [
        lambda: None,
        lambda: setattr(m, "k", 5.0),
        lambda: setattr(m, "w", tj.ones(3) * 3),
        lambda: m.__dict__.pop("k"),
        lambda: monkeypatch.setattr(Model, "k", 4.0),
        lambda: monkeypatch.setitem(globals(), "SCALE", 9.0),
        lambda: setattr(m, "w", tj.ones((2, 3))),
    ]
    for change in changes:
        change()
        same(m(x()), m.plain(x()).numpy())
        same(m(x()), m.plain(x()).numpy())


def test_methods_are_traced_per_instance_and_do_not_keep_it_alive() -> None:
    m, n = Model(), Model()
    n.k = 7.0
    same(m(x()), m.plain(x()).numpy())
    same(n(x()), n.plain(x()).numpy())
    same(m(x()), m.plain(x()).numpy())
    assert m.__call__.trace_count == n.__call__.trace_count == 1
    dead = weakref.ref(m)
    del m
    gc.collect()
    assert dead() is None
    assert len(Model.__dict__["__call__"].views()) <= 1


def test_methods_with_other_kinds_of_equality() -> None:
    class Equal(Model):
        def __eq__(self, other):
            return True

    m, n = Equal(), Equal()
    n.k = 100.0
    same(m(x()), m.plain(x()).numpy())
    same(n(x()), n.plain(x()).numpy())


def test_super_slots_and_inherited_methods() -> None:
    class Base:
        __slots__ = ("__weakref__", "s")

        def scale(self, a):
            return a * self.s

    class Child(Base):
        __slots__ = ()

        @tj.function
        def run(self, a):
            return super().scale(a) + self.s

    c = Child()
    for s in (2.0, 3.0):
        c.s = s
        same(c.run(x()), numbers() * s + s)


def test_static_and_class_methods() -> None:
    class A:
        k = 3.0

        @staticmethod
        @tj.function
        def s(a):
            return a * 2

        @classmethod
        @tj.function
        def c(cls, a):
            return a * cls.k

        @tj.function
        @staticmethod
        def t(a):
            return a * 4

    same(A.s(x()), 2 * numbers())
    same(A().s(x()), 2 * numbers())
    same(A.t(x()), 4 * numbers())
    same(A.c(x()), 3 * numbers())
    A.k = 5.0
    same(A().c(x()), 5 * numbers())


def test_objects_passed_as_arguments() -> None:
    o = types.SimpleNamespace(k=2.0)

    class Config:
        def __init__(self):
            self.k = 2.0

    c = Config()
    f = tj.function(lambda a, c, o=o: a * c.k + o.k)
    for k in (2.0, 3.0, 4.0):
        c.k = k
        o.k = k + 1
        same(f(x(), c), numbers() * k + k + 1)


def test_callables_partials_and_bound_methods() -> None:
    class Affine:
        def __init__(self, k):
            self.k = k

        def __call__(self, a):
            return a * self.k

        def other(self, a):
            return a + self.k

    obj = Affine(2.0)
    f, g, h = tj.function(obj), tj.function(obj.other), tj.function(functools.partial(lambda k, a: a * k * obj.k, 3.0))
    for k in (2.0, 5.0):
        obj.k = k
        same(f(x()), numbers() * k)
        same(g(x()), numbers() + k)
        same(h(x()), numbers() * 3 * k)


def test_what_functions_given_to_transformations_read() -> None:
    o = types.SimpleNamespace(k=2.0)

    def loss(a):
        return (a * a * o.k).sum()

    inner = tj.grad(loss)
    f, g = tj.function(lambda a: tj.grad(loss)(a)), tj.function(lambda a: inner(a))
    for k in (2.0, 5.0):
        o.k = k
        same(f(x()), 2 * k * numbers())
        same(g(x()), 2 * k * numbers())


# -- effects and limits
def test_a_counter_is_traced_once_with_a_warning() -> None:
    class C:
        n = 0

    @tj.function
    def f(a, c=C):
        c.n += 1
        return a

    with pytest.warns(UserWarning, match=r"f writes c.n at .*test_captures.py:\d+; that happens once per trace"):
        f(x())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(x())
        f(x())
    assert C.n == 1 and f.trace_count == 1


def test_effects_run_once_per_trace() -> None:
    seen: list[Any] = []

    @tj.function
    def f(a):
        seen.append(1)
        return a + 1

    for _ in range(3):
        f(x())
    assert seen == [1] and f.trace_count == 1


def test_an_attribute_filled_once() -> None:
    class Lazy:
        table = None

        @tj.function
        def run(self, a):
            if self.table is None:
                self.table = np.ones(3, "f4") * 4
            return a * self.table

    m = Lazy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            same(m.run(x()), 4 * numbers())
    m.table = np.ones(3, "f4") * 9
    same(m.run(x()), 9 * numbers())
    assert m.run.trace_count == 2


def test_no_noise_about_modules_builtins_and_libraries() -> None:
    import math

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f = tj.function(
            lambda a: (
                np.sin(a) * math.pi
                + tj.exp(a).sum()
                + len(a.shape)
                + float(np.float32(2))
                + functools.reduce(max, [1, 2])
            )
        )
        f(x())
        same(f(x()), np.sin(numbers()) * math.pi + np.exp(numbers()).sum() + 5)
    assert f.trace_count == 1


def test_what_cannot_be_watched_is_said_once() -> None:
    table = {str(k): float(k) for k in range(10_000)}
    f = tj.function(lambda a: a * table[str(a.shape[0])])
    with pytest.warns(UserWarning, match="table: it has more than"):
        same(f(x()), 3 * numbers())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(tj.ones(4))


def test_guards_cost_no_user_code() -> None:
    calls = []

    class Odd:
        @property
        def k(self):
            calls.append(1)
            return self.base * 2

        base = 1.0

    o = Odd()
    f = tj.function(lambda a: a * o.k)
    for _ in range(5):
        f(x())
    assert len(calls) == 1
    o.base = 4.0
    same(f(x()), 8 * numbers())


def test_snapshot_tells_changes() -> None:
    values: list[Any] = [
        [],
        [1],
        [1.0],
        [True],
        (1,),
        {"a": 1},
        {"a": 1, "b": 2},
        {"b": 2, "a": 1},
        {1},
        [[1], [2]],
        [np.ones(1)],
        [None],
        [-0.0],
        [0.0],
    ]
    taken = [snapshot(v) for v in values]
    for k, a in enumerate(taken):
        assert [a == b for b in taken].count(True) == 1, values[k]
    assert snapshot([np.ones(1)]) == snapshot([np.zeros(5)])


def test_reading_of_a_function() -> None:
    reach = Reach(helper, "helper")
    assert [r.label for r in reach.reading.plain.values()] == ["SCALE"]
    assert reach.find(np.ones(2)) is None


def test_a_class_attribute_of_none_is_there() -> None:
    class Model:
        scale: float | None = None

    m = Model()
    f = tj.function(lambda a: a if m.scale is None else a * m.scale)
    for _ in range(3):
        same(f(x()), numbers())
    assert f.trace_count == 1
    m.scale = 2.0
    same(f(x()), 2 * numbers())
    assert f.trace_count == 2


def test_what_is_reached_through_weak_references() -> None:
    class Model:
        k, w = 2.0, tj.ones(3)

    class Part:
        def __init__(self, parent: Any):
            self.parent = weakref.ref(parent)

        @tj.function
        def scaled(self, a: Any) -> Any:
            return a * self.parent().k * self.parent().w

    model = Model()
    model.k, model.w = 3.0, tj.ones(3)
    part, reference = Part(model), weakref.ref(model)
    f = tj.function(lambda a: a * reference().k)
    for k in (3.0, 5.0):
        model.k = k
        same(part.scaled(x()), numbers() * k)
        same(f(x()), numbers() * k)
    model.w = tj.ones(3) * 10
    same(part.scaled(x()), numbers() * 50)
    del model
    gc.collect()
    with pytest.raises(AttributeError):
        f(x())


def test_what_expressions_have_in_common_is_worked_out_once() -> None:
    codes = ["g0['m'].layers[0].kernel", "g0['m'].layers[0].bias", "g0['m'].layers[1].kernel", "g0['m'].layers",
             "type(g0['m'])", "a0().x['k'].y", "a0().x['k'].z", "g1['it\\'s'].y"]  # fmt: skip
    places = _Places(codes)
    assert places.lines == [
        "        _v0 = a0().x['k']", "        _v1 = g0['m'].layers", "        _v2 = _v1[0]",
    ]  # fmt: skip
    assert [places.short(c) for c in codes] == [
        "_v2.kernel", "_v2.bias", "_v1[1].kernel", "_v1", "type(g0['m'])", "_v0.y", "_v0.z", "g1['it\\'s'].y",
    ]  # fmt: skip
    m = types.SimpleNamespace(layers=[types.SimpleNamespace(kernel=1, bias=2), types.SimpleNamespace(kernel=3)])
    space = {"g0": {"m": m}, "a0": lambda: types.SimpleNamespace(x={"k": types.SimpleNamespace(y=4, z=5)})}
    exec("\n".join(line.strip() for line in places.lines), space)
    for code in codes[:-1]:
        assert eval(places.short(code), space) == eval(code, space)


def test_a_deep_model_is_followed_to_its_end() -> None:
    model = tj.Sequential([tj.layers.Rescaling(1.0) for _ in range(250)])
    f = tj.function(lambda x: model(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(f(x()), numbers())
    model.layers[249].scale = 2.0
    same(f(x()), 2 * numbers())
