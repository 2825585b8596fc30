"""Arguments: binding, pytrees, cache keys, numbers and static values."""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import numpy as np
import optree
import pytest
from calls import x

import tracejit as tj
from tracejit.trace.signature import Signature, flatten, frozen, leaf_key, unflatten


# -- spelling
# ------------------------------------------------------------------------------------------------------------
def test_one_trace_for_every_spelling() -> None:
    @tj.function
    def f(a, b=2.0, *, c=1.0):
        return a * b + c

    calls = [f(x()), f(x(), 2.0), f(a=x(), c=1.0, b=2.0), f(x(), b=2.0), f(b=2.0, a=x()), f(x(), 3.0), f(x(), c=7.0)]
    assert f.trace_count == 1
    np.testing.assert_array_equal(calls[2].numpy(), [3, 5, 7])
    np.testing.assert_array_equal(calls[5].numpy(), [4, 7, 10])
    np.testing.assert_array_equal(calls[6].numpy(), [9, 11, 13])


def test_var_arguments() -> None:
    @tj.function
    def f(a, /, *rest, k=1, **more):
        return a + sum(rest) * k + more.get("z", 0)

    def plain(a, /, *rest, k=1, **more):
        return a + sum(rest) * k + more.get("z", 0)

    for args, kwargs in [
        ((x(),), {}),
        ((x(), x(), x()), {"k": 2}),
        ((x(), 1.5), {"z": x()}),
        ((x(),), {"z": 2, "y": 1}),
    ]:
        np.testing.assert_array_equal(f(*args, **kwargs).numpy(), plain(*args, **kwargs).numpy())
    assert f.trace_count == 4


@pytest.mark.parametrize("args, kwargs", [((), {}), ((1, 2, 3), {}), ((1,), {"q": 1}), ((1,), {"a": 1})])
def test_wrong_arguments_are_type_errors(args: Any, kwargs: Any) -> None:
    f = tj.function(lambda a, b=1: a)
    with pytest.raises(TypeError, match="<lambda>"):
        f(*args, **kwargs)


# -- numbers
# -------------------------------------------------------------------------------------------------------------
def test_python_numbers_are_inputs() -> None:
    @tj.function
    def step(a, lr):
        return a * (1.0 - lr)

    a, b = x(), x()
    for k in range(100):
        a = step(a, 0.1 / (k + 1))
        b = b * (1.0 - 0.1 / (k + 1))
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)
    assert step.trace_count == 1
    assert a.dtype == tj.float32


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "int64", "complex64"])
@pytest.mark.parametrize("number", [3, 2.5, 1 + 2j, True])
def test_numbers_are_weak(dtype: str, number: Any) -> None:
    a = tj.asarray(np.ones(3, dtype))
    want, got = a * number, tj.function(lambda a, n: a * n)(a, number)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_a_number_needed_by_the_program_is_guarded_by_value() -> None:
    f = tj.function(lambda a, n: a.reshape(n, -1).sum(axis=0))
    a = x(6)
    for n in (2, 3, 2, 3, 6):
        np.testing.assert_array_equal(f(a, n).numpy(), a.numpy().reshape(n, -1).sum(axis=0))
    assert f.trace_count == 3
    assert "argument 'n' 2 -> 3 (the program depends on its value)" in f.history[1]


def test_only_the_needed_number_is_guarded() -> None:
    f = tj.function(lambda a, n, s: tj.ones((n, 3)).sum(axis=0) * a * s)
    for n, s in [(2, 1.0), (2, 2.0), (3, 2.0), (2, 5.0)]:
        np.testing.assert_array_equal(f(x(), n, s).numpy(), n * s * x().numpy())
    assert f.trace_count == 2


def test_branches_on_python_numbers() -> None:
    @tj.function
    def f(a, n):
        return a * 2 if n > 3 else a - n

    for n in (1, 5, 1.5, 5, 4):
        np.testing.assert_array_equal(f(x(), n).numpy(), (x() * 2 if n > 3 else x() - n).numpy())


@pytest.mark.parametrize("first, second", [(0.0, -0.0), (1, 1.0), (1, True), (float("nan"), 1.0)])
def test_values_that_compare_equal_or_to_nothing(first: Any, second: Any) -> None:
    """A guard tells 0.0 from -0.0, 1 from 1.0 and True, and knows nan again."""
    seen: list[Any] = []

    @tj.function
    def f(a, n):
        seen.append(repr(n if isinstance(n, bool) else n.item()))
        return a + 1

    for n in (first, first, second):
        f(x(), n)
    assert len(seen) == 2 and seen[0] != seen[1]


def test_large_integers_are_static() -> None:
    f = tj.function(lambda a, n: a * float(n % 1000))
    np.testing.assert_array_equal(f(x(), 10**30 + 7).numpy(), 7 * x().numpy() if (10**30 + 7) % 1000 == 7 else 0)
    np.testing.assert_array_equal(f(x(), 10**30 + 8).numpy(), 8 * x().numpy())


def test_a_number_given_back_is_the_number() -> None:
    f = tj.function(lambda a, n: (a * n, n, n + 1))
    _, same, more = f(x(), 3)
    assert same == 3 and type(same) is int
    assert more == 4 and type(more) is int


def test_results_made_of_numbers_are_exact_python_numbers() -> None:
    f = tj.function(lambda n, y, t: (n * 3, y / 3, t.item() + 1, int(t[0]) * 2))
    for args in ((2**40, 0.1, np.array([2**41])), (2**50, 0.7, np.array([2**42]))):
        assert f(*args) == f.eager(*args) and [type(r) for r in f(*args)] == [int, float, int, int]
    assert f.trace_count == 1


def test_numpy_scalars_are_strong() -> None:
    f = tj.function(lambda a, s: a * s)
    assert f(x(), np.float64(2)).dtype == tj.float64
    assert f(x(), np.float32(2)).dtype == tj.float32
    assert f(x(), np.float32(5)).numpy()[0] == 5 and f.trace_count == 2


# -- static values
# ---------------------------------------------------------------------------------------------------------
class Mode(enum.Enum):
    UP = 1
    DOWN = 2


@pytest.mark.parametrize(
    "values",
    [
        (None, 1),
        (True, False),
        ("sum", "prod"),
        (Mode.UP, Mode.DOWN),
        (np.dtype("f4"), np.dtype("f8")),
        (slice(0, 2), slice(0, 3)),
        (len, max),
        (frozenset([1]), frozenset([2])),
    ],
)
def test_other_hashables_are_static_by_value(values: tuple[Any, Any]) -> None:
    seen: list[Any] = []

    @tj.function
    def f(a, mode):
        seen.append(mode)
        return a + 1

    for v in (*values, *values):
        f(x(), v)
    assert seen[0] is values[0] or seen[0] == values[0] or isinstance(seen[0], tj.Tensor)
    assert f.trace_count == 2


@dataclasses.dataclass
class Config:
    k: float
    sizes: list[int]


@pytest.mark.parametrize(
    "make", [lambda k: {"k": k}, lambda k: [k, "a", {1: (2, k)}], lambda k: Config(k, [1, 2]), lambda k: {k, 5}]
)
def test_unhashable_static_arguments_compare_by_value(make: Any) -> None:
    f = tj.function(lambda a, cfg: a * len(repr(cfg)), static_argnames="cfg")
    f(x(), make(2))
    f(x(), make(2))
    assert f.trace_count == 1
    np.testing.assert_array_equal(f(x(), make(33)).numpy(), x().numpy() * len(repr(make(33))))
    assert f.trace_count == 2


def test_a_mutated_static_argument_retraces() -> None:
    @tj.function(static_argnames=("cfg",))
    def f(a, cfg):
        return a * cfg["k"]

    cfg = {"k": 2}
    f(x(), cfg)
    cfg["k"] = 5
    np.testing.assert_array_equal(f(x(), cfg).numpy(), 5 * x().numpy())
    assert f.trace_count == 2
    assert "static argument 'cfg' {'k': 2} -> {'k': 5}" in f.history[1] or "static argument 'cfg'" in f.history[1]


@pytest.mark.parametrize("value", [np.ones(2), tj.asarray([1.0]), [np.ones(2)], {"w": tj.asarray(1.0)}])
def test_arrays_cannot_be_static(value: Any) -> None:
    f = tj.function(lambda a, w: a, static_argnames=("w",))
    with pytest.raises(TypeError, match="argument 'w' is static but holds an array; pass it as a normal argument"):
        f(x(), value)
    assert f.trace_count == 0


def test_unknown_static_names() -> None:
    with pytest.raises(TypeError, match="no argument 'z'"):
        tj.function(lambda a: a, static_argnames="z")(x())


def test_unhashable_objects_are_refused_by_name() -> None:
    class Odd:
        __hash__ = None  # type: ignore[assignment]

    with pytest.raises(TypeError, match=r"argument 'p\['o'\]' of type Odd"):
        tj.function(lambda p: p["a"])({"a": x(), "o": Odd()})


# -- pytrees
# -----------------------------------------------------------------------------------------------------------------
Point = namedtuple("Point", "u v")


@dataclasses.dataclass(frozen=True)
class Pair:
    left: Any
    right: Any = None


class Registered:
    def __init__(self, w: Any, tag: str):
        self.w, self.tag = w, tag


optree.register_pytree_node(
    Registered, lambda r: ((r.w,), r.tag, ("w",)), lambda tag, ws: Registered(*ws, tag), namespace="tracejit"
)


def trees() -> list[Any]:
    a, b = x(), x() * 2
    return [
        (a, b),
        [a, [b, ()]],
        {"p": a, "q": {"r": b}},
        Point(a, b),
        Pair(a, Pair(b)),
        OrderedDict(z=a, y=b),
        (a, None, "s"),
        defaultdict(list, k=a),
        Registered(a, "t"),
        {"n": 3, "a": a},
    ]


@pytest.mark.parametrize("k", range(10))
def test_pytrees_in_and_out(k: int) -> None:
    tree = trees()[k]
    f = tj.function(
        lambda t: optree.tree_map(
            lambda v: v * 2 if isinstance(v, tj.Tensor) else v, t, none_is_leaf=True, namespace="tracejit"
        )
    )
    out = f(tree)
    assert type(out) is type(tree)
    want, want_spec = flatten(tree)
    got, got_spec = flatten(out)
    assert want_spec == got_spec
    for w, g in zip(want, got, strict=True):
        if isinstance(w, tj.Tensor):
            np.testing.assert_array_equal(g.numpy(), 2 * w.numpy())
        elif isinstance(w, int):
            assert g == 2 * w or g == w
        else:
            assert g == w
    f(trees()[k])
    assert f.trace_count == 1


def test_attrs_classes() -> None:
    attrs = pytest.importorskip("attrs")

    @attrs.define
    class Box:
        w: Any
        name: str = "b"

    f = tj.function(lambda b: Box(b.w + 1, b.name))
    out = f(Box(x()))
    assert isinstance(out, Box) and out.name == "b"
    np.testing.assert_array_equal(out.w.numpy(), x().numpy() + 1)


def test_dicts_keep_their_order() -> None:
    f = tj.function(lambda d: {k: v * 2 for k, v in d.items()} | {"a": 1})
    assert list(f({"z": x(), "b": x()})) == ["z", "b", "a"]
    assert list(f({"b": x(), "z": x()})) == ["b", "z", "a"]


def test_leaves_are_named_as_the_user_reaches_them() -> None:
    f = tj.function(lambda params, *more: params["w"][0] + more[0].left)
    f({"w": [x()]}, Pair(x()))
    names = [n.name for n in f.trace({"w": [x()]}, Pair(x())).inputs]
    assert names == ["argument 'params['w'][0]'", "argument 'more[0].left'"]


def test_flatten_round_trip() -> None:
    tree = {"b": [1, (2, None)], "a": Pair(3, Point(4, 5))}
    leaves, spec = flatten(tree)
    assert leaves == [1, 2, None, 3, 4, 5] and unflatten(spec, leaves) == tree


# -- keys
# ------------------------------------------------------------------------------------------------------------------
def test_keys_tell_layouts_apart() -> None:
    a = np.ones((3, 4), "f4")
    assert leaf_key(a) == leaf_key(np.zeros((3, 4), "f4"))
    assert len({leaf_key(v) for v in (a, a.T.copy().T, a[:, ::-1], np.ones((4, 3), "f4"), a.astype("f8"))}) == 5


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.T,
        lambda a: a[::-1],
        lambda a: a[:, ::2],
        lambda a: a[::-2, ::-1],
        lambda a: a[:, :1],
        lambda a: np.broadcast_to(a[:1], (4, 6)),
        lambda a: a[:0],
        lambda a: a.astype(">f4"),
    ],
)
def test_any_layout_of_a_numpy_argument(view: Any) -> None:
    a = view(np.arange(24, dtype="f4").reshape(4, 6))
    f = tj.function(lambda v: (v * 2 + 1, v.sum(axis=0)))
    for _ in range(2):
        out, total = f(a)
        np.testing.assert_array_equal(out.numpy(), a * 2 + 1)
        np.testing.assert_allclose(total.numpy(), a.sum(axis=0), rtol=1e-6)


def test_unaligned_arrays() -> None:
    raw = np.zeros(4 * 5 + 1, "u1")
    a = raw[1:].view("f4")
    a[:] = np.arange(5)
    f = tj.function(lambda v: v + 1)
    for _ in range(3):
        np.testing.assert_array_equal(f(a).numpy(), np.arange(5) + 1)


@pytest.mark.parametrize("value", [1, 1.5, -0.0, float("nan"), "s", None, (1, [2, {3: 4}]), {1, 2}, b"x"])
def test_frozen_equals_itself(value: Any) -> None:
    assert frozen(value) == frozen(value)
    assert hash(frozen(value)) == hash(frozen(value))


def test_frozen_tells_types_apart() -> None:
    values = [1, 1.0, True, 0, 0.0, -0.0, False, None, "1", [1], (1,), (1.0,), {1}, {1: 2}, {1: 2.0}]
    assert len({frozen(v) for v in values}) == len(values)


def test_bind_defaults() -> None:
    s = Signature(lambda a, b=2, *c, d=4, **e: None)
    assert s.bind((1,), {}) == [1, 2, (), 4, {}]
    assert s.bind((1, 3, 5), {"d": 0, "z": 9}) == [1, 3, (5,), 0, {"z": 9}]


def test_input_signature() -> None:
    f = tj.function(lambda a: a * 2, input_signature=[tj.spec((None, 4), "float32")])
    assert f(tj.ones((2, 4))).shape == (2, 4)
    with pytest.raises(TypeError, match="input_signature"):
        f(tj.ones((2, 3)))
    with pytest.raises(TypeError, match="input_signature"):
        f(tj.ones((2, 4), dtype="float64"))


class Foreign:
    """An array of another library."""

    def __init__(self, held: np.ndarray):
        self.held = held

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.held


def test_arrays_of_other_libraries_are_inputs() -> None:
    f = tj.function(lambda a, b: a * b)
    for k in (1.0, 2.0):
        np.testing.assert_array_equal(f(Foreign(np.full(3, k)), x()).numpy(), k * x().numpy())
    assert f.trace_count == 1


def test_builtins_can_be_decorated() -> None:
    np.testing.assert_allclose(tj.function(np.sin)(x()).numpy(), np.sin(x().numpy()), rtol=1e-6)
    np.testing.assert_allclose(tj.function(tj.exp)(x()).numpy(), np.exp(x().numpy()), rtol=1e-6)
    assert float(tj.function(sum)([x()[0], x()[1]])) == 3.0
