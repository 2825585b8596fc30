"""`grad` and its relatives: the first page, arguments of every kind, singular points, orders, compiled and not."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import tracejit as tj

Function = Callable[..., Any]


def compiled(transform: Function) -> Function:
    """transform(f) run under tj.function."""
    return lambda f: tj.function(transform(f))


def of_compiled(transform: Function) -> Function:
    """transform of a compiled f."""
    return lambda f: transform(tj.function(f))


WAYS = [lambda t: t, compiled, of_compiled, lambda t: compiled(of_compiled(t))]
ways = pytest.mark.parametrize("way", WAYS, ids=["eager", "compiled", "of_compiled", "both"])


# -- names of TensorFlow -----------------------------------------------------------------------------------------------
def test_tensorflow_names() -> None:
    def f(x: Any, y: Any) -> Any:
        return x * x * y

    gx, gy = tj.gradients_function(f)(3.0, 2.0)
    assert isinstance(tj.gradients_function(f)(3.0, 2.0), list)
    assert (gx.item(), gy.item()) == (12, 9)
    value, (gx, gy) = tj.value_and_gradients_function(f)(3.0, 2.0)
    assert (value.item(), gx.item(), gy.item()) == (18, 12, 9)
    assert tj.gradients_function(f, params=["y"])(3.0, 2.0).item() == 9
    assert tj.gradients_function(f, params=[0])(3.0, 2.0).item() == 12
    assert tj.gradients_function(lambda x: x * x)(tj.asarray([1.0, 2.0])).numpy().tolist() == [2, 4]
    weighed = tj.gradients_function(lambda x: x * x)(tj.asarray([1.0, 2.0]), dy=tj.asarray([1.0, 10.0]))
    assert weighed.numpy().tolist() == [2, 40]
    with pytest.raises(ValueError, match="no argument 'z'; it has x, y"):
        tj.gradients_function(f, params=["z"])(3.0, 2.0)


def test_implicit_value_and_gradients() -> None:
    v, w, idle = tj.Variable(2.0), tj.Variable(3.0), tj.Variable(1.0)

    def loss(x: float) -> Any:
        _ = idle + 1
        return v * x + w

    value, pairs = tj.implicit_value_and_gradients(loss)(10.0)
    assert value.item() == 23
    assert [(g.item(), variable) for g, variable in pairs] == [(0, idle), (10, v), (1, w)]
    with pytest.raises(ValueError, match="read no trainable Variable"):
        tj.implicit_gradients(lambda x: x * tj.asarray(1.0))(2.0)


# -- arguments ---------------------------------------------------------------------------------------------------------
@ways
def test_python_floats(way: Function) -> None:
    g = way(tj.grad)(lambda x: x**3)(2.0)
    assert g.dtype == "float32"
    assert g.item() == 12


@ways
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_arrays_and_tensors_keep_their_dtype(way: Function, dtype: str) -> None:
    x = np.array([1.0, 2.0], dtype)
    for given in (x, tj.asarray(x)):
        g = way(tj.grad)(lambda v: (v * v).sum())(given)
        assert isinstance(g, tj.Tensor)
        assert g.dtype == dtype
        np.testing.assert_array_equal(g.numpy(), [2, 4])


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Model:
    w: Any
    layers: int


@ways
def test_pytrees(way: Function) -> None:
    def f(p: dict[str, Any], q: Point, m: Model) -> Any:
        return (p["a"][0] * p["a"][1]).sum() * q.x + q.y * m.w * m.layers

    p = {"a": [np.array([1.0, 2.0]), tj.asarray([3.0, 4.0])], "note": "text", "step": 7, "off": True, "none": None}
    g, gq, gm = way(functools.partial(tj.grad, argnums=(0, 1, 2)))(f)(p, Point(2.0, 5.0), Model(3.0, 2))
    assert list(g) == list(p)
    assert (g["note"], g["step"], g["off"], g["none"]) == (None, None, None, None)
    np.testing.assert_allclose(g["a"][0].numpy(), [6, 8])
    np.testing.assert_allclose(g["a"][1].numpy(), [2, 4])
    assert g["a"][0].dtype == "float64"
    assert isinstance(gq, Point)
    assert (gq.x.item(), gq.y.item()) == (11, 6)
    assert isinstance(gm, Model)
    assert (gm.w.item(), gm.layers) == (10, None)


def test_argnums_and_keywords() -> None:
    def f(x: Any, y: Any, *, scale: float = 1.0) -> Any:
        return x * y * y * scale

    assert tj.grad(f, argnums=1)(2.0, 3.0).item() == 12
    assert tj.grad(f, argnums=-1)(2.0, 3.0, scale=2.0).item() == 24
    gy, gx = tj.grad(f, argnums=(1, 0))(2.0, 3.0)
    assert (gx.item(), gy.item()) == (9, 12)
    with pytest.raises(TypeError, match="argnums says argument 2, but 2 positional"):
        tj.grad(f, argnums=2)(2.0, 3.0)


@ways
def test_aux(way: Function) -> None:
    def f(x: Any) -> Any:
        return x * x, {"twice": x * 2, "n": 3}

    g, aux = way(functools.partial(tj.grad, has_aux=True))(f)(3.0)
    assert (g.item(), aux["twice"].item(), int(aux["n"])) == (6, 6, 3)
    (value, aux), g = way(functools.partial(tj.value_and_grad, has_aux=True))(f)(3.0)
    assert (value.item(), g.item(), aux["twice"].item()) == (9, 6, 6)
    with pytest.raises(TypeError, match=r"must return \(value, aux\)"):
        tj.grad(lambda x: x, has_aux=True)(1.0)


@pytest.mark.parametrize(
    ("argument", "message"),
    [(3, "argument 'v' is int; pass 3.0"), (True, "argument 'v' is bool"),
     (tj.asarray([1, 2]), "argument 'v' is int32"), (np.arange(3), "argument 'v' is int64; pass floats"),
     ({"step": 3}, "argument 'v' holds no floats"),
     (None, "argument 'v' is NoneType"), ("text", "argument 'v' is str"), ([], "argument 'v' holds no floats")],
)
def test_arguments_that_are_not_floats(argument: Any, message: str) -> None:
    for verb in (tj.grad, tj.value_and_grad, tj.jacobian, tj.hessian):
        with pytest.raises(TypeError, match=message):
            verb(lambda v: v * v)(argument)


def test_int_argument_of_a_traced_function() -> None:
    with pytest.raises(TypeError, match="argument 'v' is int; pass a float"):
        tj.function(lambda n: tj.grad(lambda v: v * v)(n))(3)


def test_a_counter_in_the_parameters() -> None:
    g = tj.grad(lambda p: p["w"] * 2.0)({"w": 1.0, "step": 7})
    assert g["w"].item() == 2.0
    assert g["step"] is None


@pytest.mark.parametrize(
    ("f", "message"),
    [(lambda v: v * 2, r"scalar result, <lambda> gave shape \(3,\); use jacobian or vjp"),
     (lambda v: (v.sum(), 1), "got tuple"), (lambda v: v.sum() * 1j, "real result, <lambda> gave complex64"),
     (lambda v: (v > 0).sum(), "float result, <lambda> gave int32"), (lambda v: None, "got NoneType")],
)
def test_results_that_are_not_scalars(f: Function, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        tj.grad(f)(tj.ones(3))


def test_values_are_real_inside() -> None:
    seen = []

    def f(x: Any) -> Any:
        seen.append(x.numpy().tolist())
        return (x * x).sum() if x[0] > 0 else (x * 3).sum()

    np.testing.assert_array_equal(tj.grad(f)(np.array([1.0, 2.0])).numpy(), [2, 4])
    np.testing.assert_array_equal(tj.grad(f)(np.array([-1.0, 2.0])).numpy(), [3, 3])
    assert seen == [[1, 2], [-1, 2]]


def test_the_caller_sees_writes_and_closures_stay_apart() -> None:
    x = tj.asarray([1.0, 2.0])

    def f(v: Any) -> Any:
        y = (v * x).sum()  # x is the same handle, but not the argument
        v[0] = 10.0
        return y + (v * v).sum()

    np.testing.assert_array_equal(tj.grad(f)(x).numpy(), [1 + 0, 2 + 4])
    np.testing.assert_array_equal(x.numpy(), [10, 2])


# -- no connection -----------------------------------------------------------------------------------------------------
@ways
def test_unconnected_is_zero(way: Function) -> None:
    x = tj.asarray([1.0, 2.0])
    np.testing.assert_array_equal(way(tj.grad)(lambda v: tj.asarray(1.0))(x).numpy(), [0, 0])
    gx, gy = way(functools.partial(tj.grad, argnums=(0, 1)))(lambda v, w: (v * v).sum())(x, x)
    np.testing.assert_array_equal(gy.numpy(), [0, 0])
    np.testing.assert_array_equal(gx.numpy(), [2, 4])
    np.testing.assert_array_equal(way(tj.grad)(lambda v: (tj.stop_gradient(v) * 2).sum())(x).numpy(), [0, 0])


@pytest.mark.parametrize(
    "leave", [np.asarray, lambda v: v.numpy(), lambda v: v.tolist(), lambda v: np.float32(float(v[0])),
              lambda v: v[0].item(), lambda v: int(v[0]), lambda v: np.asarray(v * 2)])
def test_leaving_for_numpy_is_an_error_with_its_line(leave: Function) -> None:
    told = r"argument 'v' was converted .*test_gradients\.py:\d+; the gradient stops there"
    with pytest.raises(tj.GradientError, match=told):
        tj.grad(lambda v: tj.asarray(leave(v), dtype="float32").sum())(tj.asarray([1.0, 2.0]))


def test_looking_is_no_cut() -> None:
    def f(v: Any) -> Any:
        assert float(v.sum()) == 3
        assert str(v) and v.numpy().shape == (2,)
        return (v * v).sum()

    np.testing.assert_array_equal(tj.grad(f)(tj.asarray([1.0, 2.0])).numpy(), [2, 4])


def test_an_op_without_a_derivative_says_so() -> None:
    from tracejit.ops.core import elementwise, same

    odd = elementwise("odd", arity=1, dtype=same, eager=np.cbrt, scalar=lambda x: x)
    told = r"odd is not differentiable \(at .*test_gradients\.py:\d+\); use stop_gradient"
    with pytest.raises(tj.GradientError, match=told):
        tj.grad(lambda v: odd(v * 2))(1.0)
    assert tj.grad(lambda v: v * tj.stop_gradient(odd(v)) + v)(8.0).item() == 3
    with pytest.raises(tj.GradientError, match="odd is not differentiable"):
        tj.jvp(odd, (1.0,), (1.0,))


# -- singular points ---------------------------------------------------------------------------------------------------
MASKED = [
    (lambda v: tj.where(v > 0, tj.sqrt(v), 3 * v).sum(), [-2.0, 9.0], [3, 1 / 6], [0, -1 / 108]),
    (lambda v: tj.where(v > 0, tj.log(v), 2 * v).sum(), [-2.0, 4.0], [2, 1 / 4], [0, -1 / 16]),
    (lambda v: tj.where(v == 0, 1.0, tj.sin(v) / v).sum(), [0.0], [0], [0]),
    (lambda v: tj.where(v > 0, v**1.5, 0.0).sum(), [-1.0, 4.0], [0, 3], [0, 0.375]),
    (lambda v: (tj.where(v > 0, 1 / v, 0.0)).sum(), [0.0, 2.0], [0, -1 / 4], [0, 1 / 4]),
    (lambda v: (v[1:] * 2 + tj.sqrt(v[:1]) * 0.0).sum(), [0.0, 1.0], [0, 2], [0, 0]),
    (lambda v: (tj.sin(v) * tj.sqrt(v)).sum(), [0.0], [0], None),
    (lambda v: tj.where(v < 5, tj.exp(v), 1.0).sum(), [1000.0, 1.0], [0, math.e], [0, math.e]),
    (lambda v: (tj.where(v > 0, v, 1.0) ** 0.5 * (v > 0)).sum(), [-1.0, 4.0], [0, 0.25], [0, -1 / 32]),
    (lambda v: tj.where(tj.abs(v) < 1, tj.arctanh(v), v).sum(), [2.0, 0.5], [1, 4 / 3], [0, 16 / 9]),
    (lambda v: tj.where(tj.abs(v) < 1, tj.arccos(v), v).sum(), [2.0, 0.0], [1, -1], [0, 0]),
]


@ways
@pytest.mark.parametrize(("f", "x", "slope", "curvature"), MASKED)
def test_a_branch_not_taken_does_not_matter(way: Function, f: Function, x: Any, slope: Any, curvature: Any) -> None:
    given = tj.asarray(x, dtype="float64")
    np.testing.assert_allclose(way(tj.grad)(f)(given).numpy(), slope, rtol=1e-12)
    if curvature is not None:
        second = way(lambda g: tj.grad(lambda v: tj.grad(g)(v).sum()))(f)(given)
        np.testing.assert_allclose(second.numpy(), curvature, rtol=1e-12)


NORMS = [
    (lambda v: tj.linalg.norm(v), np.zeros(3)),
    (lambda v: tj.linalg.norm(v) ** 2, np.zeros(3)),
    (lambda v: tj.linalg.norm(v, axis=1).sum(), np.zeros((2, 3))),
    (lambda v: (tj.linalg.norm(v, axis=0) ** 2).sum(), np.zeros((2, 3))),
    (lambda v: tj.hypot(v[0], v[1]), np.zeros(2)),
    (lambda v: tj.linalg.norm(v, axis=1).sum(), np.array([[0.0, 0.0], [3.0, 4.0]])),
]


@ways
@pytest.mark.parametrize(("f", "x"), NORMS)
def test_norm_at_zero(way: Function, f: Function, x: np.ndarray) -> None:
    g = way(tj.grad)(f)(x).numpy()
    wanted = np.zeros_like(x)
    if x.any():
        wanted[1] = [0.6, 0.8]
    np.testing.assert_allclose(g, wanted)


@ways
def test_curvature_of_the_squared_norm(way: Function) -> None:
    x = np.array([3.0, 4.0])
    second = way(lambda f: tj.hessian(f))(lambda v: tj.linalg.norm(v) ** 2)(x)
    np.testing.assert_allclose(second.numpy(), 2 * np.eye(2), atol=1e-12)
    chosen = tj.hessian(lambda v: tj.where(v[0] > 9, tj.linalg.norm(v), (v * v).sum()))(np.zeros(2))
    np.testing.assert_allclose(chosen.numpy(), 2 * np.eye(2))


@ways
def test_powers_at_zero(way: Function) -> None:
    g = way(tj.grad)
    assert g(lambda v: v**2)(0.0).item() == 0
    assert g(lambda v: v**1)(0.0).item() == 1
    assert g(lambda v: v**0)(0.0).item() == 0
    assert g(lambda v: v**2.5)(0.0).item() == 0
    gx, gy = way(functools.partial(tj.grad, argnums=(0, 1)))(lambda x, y: x**y)(0.0, 2.0)
    assert (gx.item(), gy.item()) == (0, 0)
    assert way(lambda f: tj.grad(tj.grad(f)))(lambda v: v**2)(0.0).item() == 2
    assert way(lambda f: tj.grad(tj.grad(f)))(lambda v: v**2.0)(0.0).item() == 2


@ways
def test_abs_at_zero_real_and_complex(way: Function) -> None:
    g = way(tj.grad)(tj.abs)
    assert g(0.0).item() == 0
    assert g(0j).item() == 0
    assert g(-3.0).item() == -1


@ways
@pytest.mark.parametrize(
    ("f", "slope"),
    [(lambda w: tj.abs(w) ** 2, lambda z: 2 * z), (lambda w: tj.real(w * w), lambda z: 2 * np.conj(z)),
     (lambda w: tj.real(tj.exp(w)), lambda z: np.conj(np.exp(z))), (lambda w: tj.imag(w), lambda z: 1j),
     (lambda w: tj.real(tj.conj(w) * (2 + 1j)), lambda z: 2 + 1j),
     (lambda w: tj.abs(1 / w), lambda z: -z / abs(z) ** 3)],
)
def test_complex_gradient_points_uphill(way: Function, f: Function, slope: Function) -> None:
    z = 1 + 2j
    g = complex(way(tj.grad)(f)(tj.asarray(z, "complex128")))
    np.testing.assert_allclose(g, slope(z), rtol=1e-12)
    step = 1e-6
    assert float(f(tj.asarray(z + step * g, "complex128"))) > float(f(tj.asarray(z, "complex128")))


def test_complex_into_real_and_back() -> None:
    def f(x: Any) -> Any:
        z = x.astype("complex128") * (1 + 2j)
        return tj.real(z * tj.conj(z)).sum() + tj.imag(z).sum()

    g = tj.grad(f)(np.array([1.0, 2.0]))
    assert g.dtype == "float64"
    np.testing.assert_allclose(g.numpy(), 10 * np.array([1.0, 2.0]) + 2)


# -- orders ------------------------------------------------------------------------------------------------------------
@ways
def test_any_order(way: Function) -> None:
    transform = tj.grad
    for wanted in (5 * 16, 20 * 8, 60 * 4, 120 * 2):
        assert way(transform)(lambda x: x**5)(2.0).item() == wanted
        transform = (lambda inner: lambda f: tj.grad(inner(f)))(transform)


def test_second_derivatives_through_compiled_code() -> None:
    f = tj.function(lambda v: (v**4).sum())
    g = tj.function(tj.grad(f))
    np.testing.assert_allclose(tj.grad(lambda v: g(v).sum())(tj.asarray([2.0])).numpy(), 48)
    h = tj.function(tj.grad(lambda v: g(v).sum()))
    np.testing.assert_allclose(tj.grad(lambda v: h(v).sum())(tj.asarray([2.0])).numpy(), 24 * 2.0)
    np.testing.assert_allclose(tj.function(tj.hessian(f))(tj.asarray([2.0, 3.0])).numpy(), [[48, 0], [0, 108]])


def test_every_nesting_of_compiled_and_eager_gradients_agrees() -> None:
    def f(x: Any) -> Any:
        return (tj.sin(x) * tj.exp(0.3 * x)).sum()

    x = np.array([0.3, -0.7, 1.1])
    wanted = tj.grad(lambda v: (tj.grad(lambda u: (tj.grad(f)(u) ** 2).sum())(v) ** 2).sum())(x).numpy()
    for bits in range(8):
        maybe = [tj.function if bits >> k & 1 else (lambda g: g) for k in range(3)]
        first = maybe[0](tj.grad(f))
        second = maybe[1](tj.grad(lambda u: (first(u) ** 2).sum()))  # noqa: B023
        third = maybe[2](tj.grad(lambda v: (second(v) ** 2).sum()))  # noqa: B023
        np.testing.assert_allclose(third(x).numpy(), wanted, rtol=1e-10, err_msg=f"{bits:03b}")


def test_several_results_of_a_compiled_function_are_seeded_apart() -> None:
    @tj.function
    def f(x: Any) -> Any:
        return tj.sin(x), {"n": tj.argmax(x), "y": tj.exp(x)}, x * 2

    x = np.array([0.5, 1.5])
    for pick, wanted in ((lambda o: o[0], np.cos(x)), (lambda o: o[1]["y"], np.exp(x)), (lambda o: o[2], 2 + 0 * x),
                         (lambda o: o[0] * o[1]["y"], np.exp(x) * (np.cos(x) + np.sin(x)))):
        np.testing.assert_allclose(tj.grad(lambda v: pick(f(v)).sum())(x).numpy(), wanted, rtol=1e-12)  # noqa: B023
        second = tj.grad(lambda v: (tj.grad(lambda u: pick(f(u)).sum())(v) * v).sum())(x).numpy()  # noqa: B023
        step = 1e-6
        up, down = (tj.grad(lambda u: pick(f(u)).sum())(x + s).numpy() * (x + s) for s in (step, -step))  # noqa: B023
        np.testing.assert_allclose(second, (up - down) / (2 * step), rtol=1e-6)


# -- vjp, jvp, whole matrices ------------------------------------------------------------------------------------------
@ways
def test_vjp(way: Function) -> None:
    def run(f: Function) -> Function:
        def both(x: Any, y: Any, g: Any) -> Any:
            value, pull = tj.vjp(f, x, y)
            return value, pull(g), pull({"a": g["a"] * 2, "b": None})

        return both

    x, y = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    run = way(run)(lambda x, y: {"a": x * y, "b": x.sum()})
    value, (gx, gy), (hx, hy) = run(x, y, {"a": np.array([1.0, 10.0]), "b": 5.0})
    np.testing.assert_allclose(value["a"].numpy(), [3, 8])
    np.testing.assert_allclose(gx.numpy(), [8, 45])
    np.testing.assert_allclose(gy.numpy(), [1, 20])
    np.testing.assert_allclose(hx.numpy(), [6, 80])
    np.testing.assert_allclose(hy.numpy(), [2, 40])


def test_vjp_errors() -> None:
    _, pull = tj.vjp(lambda x: (x, x), 1.0)
    with pytest.raises(ValueError, match="structure"):
        pull(1.0)
    with pytest.raises(ValueError, match=r"shape \(2,\) does not fit a value of shape \(\)"):
        pull((tj.ones(2), 1.0))
    value, pull, aux = tj.vjp(lambda x: (x * 2, "aux"), 1.0, has_aux=True)
    assert (value.item(), pull(1.0)[0].item(), aux) == (2, 2, "aux")


@ways
def test_jvp(way: Function) -> None:
    def run(f: Function) -> Function:
        return lambda x, y, tx, ty: tj.jvp(f, (x, y), (tx, ty))

    x, y, tx, ty = (np.array(v) for v in ([1.0, 2.0], [3.0, 4.0], [1.0, 0.5], [2.0, 1.0]))
    value, moved = way(run)(lambda x, y: (tj.sin(x) * y, y.sum(), tj.argmax(y)))(x, y, tx, ty)
    np.testing.assert_allclose(value[0].numpy(), np.sin(x) * y)
    np.testing.assert_allclose(moved[0].numpy(), np.cos(x) * tx * y + np.sin(x) * ty, rtol=1e-12)
    assert moved[1].item() == 3
    assert moved[2] is None


def test_jvp_of_structures_and_errors() -> None:
    value, moved = tj.jvp(lambda p: p["x"] * p["n"], ({"x": 2.0, "n": 3},), ({"x": 1.0, "n": None},))
    assert (value.item(), moved.item()) == (6, 3)
    assert tj.jvp(lambda x: tj.asarray(1.0), 2.0, 1.0)[1].item() == 0
    assert tj.jvp(tj.stop_gradient, (2.0,), (1.0,))[1].item() == 0
    with pytest.raises(ValueError, match="tangents: 1 given for 2"):
        tj.jvp(lambda x, y: x * y, (1.0, 2.0), (1.0,))
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        tj.jvp(lambda x: x * x, (1.0,), (np.ones(2),))


@ways
def test_jvp_is_the_transpose_of_vjp(way: Function) -> None:
    def f(x: Any) -> Any:
        y = tj.sort(x * x)[::-1]
        return tj.concat([tj.cumsum(y) / (1 + y), tj.softplus(x[1:]) @ x[:-1, None], x.max()[None]])

    rng = np.random.default_rng(0)
    x, t = rng.normal(size=5), rng.normal(size=5)
    g = rng.normal(size=5 + 1 + 1)
    moved = way(lambda f: lambda x, t: tj.jvp(f, (x,), (t,))[1])(f)(x, t)
    pulled = way(lambda f: lambda x, g: tj.vjp(f, x)[1](g)[0])(f)(x, g)
    np.testing.assert_allclose(float(moved.numpy() @ g), float(pulled.numpy() @ t), rtol=1e-12)


@ways
@pytest.mark.parametrize("mode", [tj.jacobian, tj.jacfwd])
def test_jacobian(way: Function, mode: Function) -> None:
    m = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])

    def f(x: Any) -> Any:
        return {"y": tj.asarray(m) @ x, "s": (x * x).sum()}

    found = way(mode)(f)(np.array([1.0, 2.0]))
    np.testing.assert_allclose(found["y"].numpy(), m)
    np.testing.assert_allclose(found["s"].numpy(), [2, 4])
    both = way(functools.partial(mode, argnums=(0, 1)))
    whole = both(lambda x, p: x[:, None] * p["w"])(np.ones(2), {"w": np.ones((1, 3))})
    assert whole[0].shape == (2, 3, 2)
    assert whole[1]["w"].shape == (2, 3, 1, 3)
    np.testing.assert_allclose(whole[1]["w"].numpy()[1, :, 0], np.eye(3))
    assert way(mode)(lambda x: x[:0])(np.ones(2)).shape == (0, 2)
    assert way(mode)(lambda x: x.sum() + tj.ones(3, "float64"))(np.ones((0, 2))).shape == (3, 0, 2)


def test_jacobian_of_complex() -> None:
    z = np.array([1 + 2j, 3 - 1j])
    for mode in (tj.jacobian, tj.jacfwd):
        np.testing.assert_allclose(mode(lambda w: tj.abs(w) ** 2)(z).numpy(), np.diag(2 * z), rtol=1e-12)
        with pytest.raises(TypeError, match="real floats"):
            mode(lambda w: w * w)(z)


@ways
def test_hessian_and_hvp(way: Function) -> None:
    def f(x: Any, y: Any) -> Any:
        return (x**2 * y**3).sum() + tj.prod(x)

    x, y = np.array([1.0, 2.0]), np.array([2.0, 0.5])
    (xx, xy), (yx, yy) = way(lambda f: tj.hessian(f, argnums=(0, 1)))(f)(x, y)
    np.testing.assert_allclose(xx.numpy(), np.diag(2 * y**3) + 1 - np.eye(2))
    np.testing.assert_allclose(xy.numpy(), np.diag(6 * x * y**2))
    np.testing.assert_allclose(yx.numpy(), xy.numpy().T)
    np.testing.assert_allclose(yy.numpy(), np.diag(6 * x**2 * y))
    tx, ty = np.array([1.0, -1.0]), np.array([0.5, 2.0])
    px, py = way(lambda f: lambda *a: tj.hvp(f, a[:2], a[2:]))(f)(x, y, tx, ty)
    np.testing.assert_allclose(px.numpy(), xx.numpy() @ tx + xy.numpy() @ ty)
    np.testing.assert_allclose(py.numpy(), yx.numpy() @ tx + yy.numpy() @ ty)
    assert tj.hvp(lambda x: x**3, 2.0, 1.0).item() == 12


# -- stop, custom, checkpoint ------------------------------------------------------------------------------------------
@ways
def test_stop_gradient(way: Function) -> None:
    assert way(tj.grad)(lambda x: x * tj.stop_gradient(x) ** 2)(3.0).item() == 9
    assert way(lambda f: tj.grad(tj.grad(f)))(lambda x: tj.stop_gradient(x) * x**3)(2.0).item() == 2 * 6 * 2
    held = tj.stop_gradient({"a": tj.asarray([1.0]), "b": (2, "x")})
    assert held["b"] == (2, "x")


@ways
def test_custom_gradient(way: Function) -> None:
    @tj.custom_gradient
    def log1pexp(x: Any) -> Any:
        e = tj.exp(x)
        return tj.log(1 + e), lambda g: g * (1 - 1 / (1 + e))

    s = 1 / (1 + math.exp(-0.5))
    np.testing.assert_allclose(way(tj.grad)(log1pexp)(0.5).item(), s, rtol=1e-6)
    assert way(tj.grad)(lambda x: log1pexp(x))(100.0).item() == 1
    second = way(lambda f: tj.grad(tj.grad(f)))(lambda x: log1pexp(x) * 2)(0.5)
    np.testing.assert_allclose(second.item(), 2 * s * (1 - s), rtol=1e-6)
    third = way(lambda f: tj.grad(tj.grad(tj.grad(f))))(lambda x: log1pexp(x))(0.5)
    np.testing.assert_allclose(third.item(), s * (1 - s) * (1 - 2 * s), rtol=1e-5)
    moved = way(lambda f: lambda x: tj.jvp(f, (x,), (2.0,))[1])(lambda x: log1pexp(x))(0.5)
    np.testing.assert_allclose(moved.item(), 2 * s, rtol=1e-6)


@ways
def test_custom_gradient_is_what_counts(way: Function) -> None:
    @tj.custom_gradient
    def f(p: Any, y: Any) -> Any:
        def rule(ga: Any, gb: Any) -> Any:
            return {"x": ga * 100, "n": None}, gb * 1000 + ga

        return (p["x"] * y * p["n"], y * y), rule

    def g(x: Any, y: Any) -> Any:
        a, b = f({"x": x, "n": 2}, y)
        return a + 3 * b + x

    assert g(2.0, 5.0) == 20 + 75 + 2
    gx, gy = way(functools.partial(tj.grad, argnums=(0, 1)))(g)(2.0, 5.0)
    assert (gx.item(), gy.item()) == (101, 3001)


def test_custom_gradient_with_variables() -> None:
    w = tj.Variable(3.0)

    @tj.custom_gradient
    def f(x: Any) -> Any:
        def rule(g: Any, variables: Any = None) -> Any:
            assert len(variables) == 1
            assert variables[0] is w
            return g * 10, [g * 20]

        return x * w, rule

    for run in (f, tj.function(f)):
        with tj.GradientTape() as tape:
            x = tj.Variable(2.0)
            y = run(x) * 2
        assert [t.item() for t in tape.gradient(y, [x, w])] == [20, 40]

    @tj.custom_gradient
    def no_rule(x: Any) -> Any:
        return x * w, lambda g: g

    with pytest.raises(TypeError, match=r"reads trainable variables .*so its rule must take `variables=`"):
        tj.grad(no_rule)(2.0)


def test_custom_gradient_errors() -> None:
    with pytest.raises(TypeError, match=r"must return \(result, rule\)"):
        tj.custom_gradient(lambda x: x)(1.0)
    with pytest.raises(ValueError, match="one cotangent for each of its 2 arguments"):
        tj.grad(tj.custom_gradient(lambda x, y: (x * y, lambda g: g)))(1.0, 2.0)
    with pytest.raises(ValueError, match="does not fit a value of shape"):
        tj.grad(tj.custom_gradient(lambda x: (x * 2, lambda g: tj.ones(3) * g)))(1.0)


@ways
def test_custom_vjp(way: Function) -> None:
    @tj.custom_vjp
    def f(x: Any, y: Any) -> Any:
        return tj.sin(x) * y

    f.defvjp(lambda x, y: (tj.sin(x) * y, (tj.cos(x), y)), lambda kept, g: (g * kept[0] * kept[1] * 7, None))
    gx, gy = way(functools.partial(tj.grad, argnums=(0, 1)))(lambda x, y: f(x, y))(0.5, 2.0)
    np.testing.assert_allclose(gx.item(), 14 * math.cos(0.5), rtol=1e-6)
    assert gy.item() == 0
    with pytest.raises(TypeError, match="has no rule"):
        tj.grad(tj.custom_vjp(lambda x: x))(1.0)


@ways
def test_checkpoint_gives_the_same(way: Function) -> None:
    w = tj.Variable(1.5, dtype="float64")

    def block(x: Any, scale: int) -> Any:
        h = tj.tanh(w * x)
        return {"y": h * tj.exp(h) * scale, "last": x[-1]}

    def loss(f: Function) -> Function:
        def run(x: Any) -> Any:
            for _ in range(3):
                x = f(x, 2)["y"]
            return x.sum()

        return run

    x = np.array([0.1, -0.2])
    plain, kept = loss(block), loss(tj.checkpoint(block))
    np.testing.assert_allclose(way(tj.grad)(kept)(x).numpy(), tj.grad(plain)(x).numpy(), rtol=1e-12)
    second = way(lambda f: tj.grad(lambda v: (tj.grad(f)(v) ** 2).sum()))
    np.testing.assert_allclose(second(kept)(x).numpy(), second(plain)(x).numpy(), rtol=1e-11)
    moved = way(lambda f: lambda v: tj.jvp(f, (v,), (v,))[1])
    np.testing.assert_allclose(moved(kept)(x).numpy(), moved(plain)(x).numpy(), rtol=1e-12)
    assert tj.implicit_gradients(kept)(x)[0][0].item() == pytest.approx(tj.implicit_gradients(plain)(x)[0][0].item())


def test_checkpoint_recomputes_with_what_it_read() -> None:
    w = tj.Variable(2.0)
    runs = []

    @tj.checkpoint
    def f(x: Any) -> Any:
        runs.append(float(x))  # real values inside
        return tj.exp(w * x)

    with tj.GradientTape() as tape:
        y = f(tj.asarray(0.5) * 1.0)
    w.assign(100.0)
    assert tape.gradient(y, w).item() == pytest.approx(0.5 * math.e)
    assert runs == [0.5]


def test_checkpoint_keeps_less() -> None:
    import weakref

    inner: list[weakref.ref[Any]] = []

    def block(x: Any) -> Any:
        h = tj.exp(x)
        inner.append(weakref.ref(h._value))
        return h * h

    x = tj.Variable(np.ones(4))
    with tj.GradientTape() as tape:
        y = tj.checkpoint(block)(x)
        z = block(x)
    assert inner[0]() is None
    assert inner[1]() is not None
    np.testing.assert_allclose(tape.gradient([y, z], x).numpy(), 4 * np.exp(2.0))


def test_checkpoint_writes_variables_once() -> None:
    count = tj.Variable(0.0)

    @tj.checkpoint
    def f(x: Any) -> Any:
        count.assign_add(1.0)
        return x * x * count

    for run in (f, tj.function(f)):
        count.assign(0.0)
        assert tj.grad(lambda x: run(x))(3.0).item() == 6  # noqa: B023
        assert count.numpy() == 1


def test_checkpoint_recomputes_in_the_backward_program() -> None:
    """The forward program of a compiled call keeps the block's input, not its inner values."""
    from tracejit.trace.split import split

    def block(x: Any) -> Any:
        return tj.tanh(tj.tanh(x @ x) @ x) @ x

    x = tj.ones((8, 8))
    plain, kept = (split(tj.function(f).trace(x)) for f in (block, tj.checkpoint(block)))
    assert [n.op.name for n in kept[0].outputs[1:]] == ["input"]
    assert sum(n.op.name == "matmul" for n in kept[1].nodes) == sum(n.op.name == "matmul" for n in plain[1].nodes) + 2
    assert [n.op.name for n in plain[0].outputs[1:]] == ["input", "tanh", "tanh"]


# -- check_grads -------------------------------------------------------------------------------------------------------
def test_check_grads_passes_what_is_right() -> None:
    x = np.random.default_rng(0).normal(size=3)
    tj.check_grads(lambda x: tj.sin(x) * tj.exp(x), (x,), order=3)
    tj.check_grads(tj.function(lambda x: tj.sin(x) * tj.exp(x)), (x,), order=2)
    tj.check_grads(lambda p, n: {"a": tj.sin(p["x"]) * p["y"] * n, "k": 3}, ({"x": x, "y": x + 1}, 3), order=2)
    tj.check_grads(lambda z: tj.abs(z) * z * z / (2 + tj.conj(z)), (x + 1j,), order=2)
    tj.check_grads(lambda x: (tj.sin(x) * x).sum(), (x.astype("float32"),))


@pytest.mark.parametrize("modes", [("fwd",), ("rev",)])
def test_check_grads_finds_what_is_wrong(modes: tuple[str]) -> None:
    wrong_first = tj.custom_gradient(lambda x: (x * x, lambda g: g * 2.1 * x))
    wrong_second = tj.custom_gradient(lambda x: (x * x, lambda g: g * 2 * tj.stop_gradient(x)))
    x = np.array([1.0, 2.0])
    with pytest.raises(AssertionError, match="disagrees"):
        tj.check_grads(wrong_first, (x,), order=1, modes=modes)
    tj.check_grads(wrong_second, (x,), order=1, modes=modes)
    with pytest.raises(AssertionError, match=r"of (forward|reverse) mode disagrees"):
        tj.check_grads(wrong_second, (x,), order=2, modes=modes)
    with pytest.raises(ValueError, match="modes"):
        tj.check_grads(wrong_first, (x,), modes=("sideways",))
