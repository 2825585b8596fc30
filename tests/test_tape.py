"""`GradientTape`: its whole interface, nesting, what it keeps, and that nothing it kept is written."""

from __future__ import annotations

import dataclasses
import gc
import math
import warnings
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import tracejit as tj


def both_ways(f: Callable[..., object]) -> list[Callable[..., object]]:
    return [f, tj.function(f)]


def test_variables_are_watched_and_tensors_are_not() -> None:
    v, fixed, x = tj.Variable(2.0), tj.Variable(3.0, trainable=False), tj.asarray(4.0)
    with tj.GradientTape(persistent=True) as tape:
        y = v * fixed * x
    assert tape.watched_variables() == (v,)
    assert tape.gradient(y, v).item() == 12
    with pytest.warns(UserWarning, match="did not watch it"):
        assert tape.gradient(y, [fixed, x]) == [None, None]
    with tj.GradientTape() as tape:
        tape.watch([fixed, {"x": x}])
        y = v * fixed * x
    assert [g.item() for g in tape.gradient(y, [v, fixed, x])] == [12, 8, 6]


def test_an_unwatched_source_gets_nothing_rather_than_a_part() -> None:
    v, x = tj.Variable(2.0), tj.asarray(4.0)
    with tj.GradientTape() as tape:
        y = v * x + x * x  # x * x is not recorded
    with pytest.warns(UserWarning, match="did not watch it"):
        assert tape.gradient(y, x) is None


def test_watch_accessed_variables_off() -> None:
    v, w = tj.Variable(2.0), tj.Variable(3.0)
    with tj.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(v)
        y = v * w
    assert tape.watched_variables() == (v,)
    with pytest.warns(UserWarning, match="source 1"):
        g = tape.gradient(y, [v, w])
    assert g[0].item() == 3
    assert g[1] is None


def test_structures_of_targets_and_sources() -> None:
    p = {"w": tj.Variable([1.0, 2.0]), "b": (tj.Variable(3.0), tj.Variable(1.0))}
    with tj.GradientTape() as tape:
        y = {"a": (p["w"] * p["b"][0]).sum(), "b": [p["b"][0] ** 2]}
    g = tape.gradient(y, p, unconnected_gradients="zero")
    np.testing.assert_allclose(g["w"].numpy(), [3, 3])
    assert g["b"][0].item() == 3 + 6
    assert g["b"][1].item() == 0
    assert isinstance(g["b"], tuple)


def test_dataclasses_as_structures() -> None:
    @dataclasses.dataclass
    class Layer:
        w: tj.Variable
        b: tj.Variable

    layer = Layer(tj.Variable(2.0), tj.Variable(1.0))
    with tj.GradientTape() as tape:
        y = Layer(layer.w * layer.b, layer.w * 3)
    g = tape.gradient(y, layer)
    assert isinstance(g, Layer)
    assert (g.w.item(), g.b.item()) == (4, 2)


def test_targets_that_are_not_scalar_are_summed_or_weighed() -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape(persistent=True) as tape:
        y = x * x
        z = 3 * x
    np.testing.assert_allclose(tape.gradient(y, x).numpy(), [2, 4])
    np.testing.assert_allclose(tape.gradient(y, x, output_gradients=tj.asarray([1.0, 10.0])).numpy(), [2, 40])
    np.testing.assert_allclose(tape.gradient([y, z], x, output_gradients=[[1.0, 10.0], None]).numpy(), [5, 43])
    with pytest.raises(ValueError, match=r"shape \(3,\) does not fit a value of shape \(2,\)"):
        tape.gradient(y, x, output_gradients=tj.ones(3))
    with pytest.raises(ValueError, match="structured like the target"):
        tape.gradient([y, z], x, output_gradients=[None])


def test_one_answer_unless_persistent() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape() as tape:
        y = x * x
    tape.gradient(y, x)
    with pytest.raises(RuntimeError, match="persistent=True"):
        tape.gradient(y, x)
    with tj.GradientTape(persistent=True) as tape:
        y = x * x
        z = y * y
    assert tape.gradient(z, x).item() == 108
    assert tape.gradient(y, x).item() == 6
    assert tape.gradient(z, y).item() == 18  # an intermediate value
    assert tape.gradient(x, x).item() == 1


def test_unconnected() -> None:
    x, u = tj.Variable([1.0, 2.0]), tj.Variable([5.0, 6.0])
    with tj.GradientTape(persistent=True) as tape:
        y = x * x
        _ = u * 1
    assert tape.gradient(y, u) is None
    np.testing.assert_array_equal(tape.gradient(y, u, unconnected_gradients="zero").numpy(), [0, 0])
    np.testing.assert_array_equal(
        tape.gradient(y, u, unconnected_gradients=tj.UnconnectedGradients.ZERO).numpy(), [0, 0])
    with pytest.raises(ValueError, match="'none' or 'zero', not 'nil'"):
        tape.gradient(y, u, unconnected_gradients="nil")


def test_leaving_for_numpy_is_told() -> None:
    x = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        y = tj.asarray(np.asarray(x * 2)) * 3
    told = r"conversion to a NumPy array at .*test_tape\.py:\d+; the gradient stops there"
    with pytest.warns(UserWarning, match=told):
        assert tape.gradient(y, x) is None


def test_no_warning_when_all_is_well() -> None:
    x, other = tj.Variable(2.0), tj.Variable(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with tj.GradientTape() as tape:
            y = x * x
            assert float(y) == 4.0  # looking is no cut
            _ = other + 1
        assert tape.gradient(y, [x, other])[0].item() == 4


def test_stop_recording_and_reset() -> None:
    x = tj.Variable(3.0)
    with tj.GradientTape(persistent=True) as tape:
        y = x * x
        with tape.stop_recording():
            z = x * x * x
        w = x * 5
    assert tape.gradient(y + z + w, x) is None  # the sum itself was not recorded
    assert tape.gradient([y, z, w], x).item() == 6 + 5
    with tj.GradientTape(persistent=True) as tape:
        y = x * x
        tape.reset()
        z = x * 7
    assert tape.gradient(y, x) is None
    assert tape.gradient(z, x).item() == 7
    with pytest.raises(ValueError, match="not recording"), tape.stop_recording():
        pass


def test_entering_again_goes_on_recording() -> None:
    x = tj.Variable(3.0)
    tape = tj.GradientTape()
    with tape:
        y = x * x
    z = y * 100
    with tape:
        z = y * x
    assert tape.gradient(z, x).item() == 27
    with tape, pytest.raises(ValueError, match="recording already"), tape:
        pass


def test_watching_what_has_no_gradient_warns() -> None:
    with tj.GradientTape() as tape:
        with pytest.warns(UserWarning, match="int32 has no gradient"):
            tape.watch(tj.asarray([1, 2]))
        with pytest.raises(TypeError, match="not float"):
            tape.watch(3.0)
    with pytest.raises(TypeError, match="sources are tensors and variables, not float"):
        tape.gradient(tj.asarray(1.0), 3.0)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("way", [0, 1])
def test_nested_tapes_to_fourth_order(order: int, way: int) -> None:
    x = tj.Variable(1.3, dtype="float64")

    def derivative(n: int) -> tj.Tensor:
        if n == 0:
            return tj.sin(x) * x**3
        with tj.GradientTape() as tape:
            y = derivative(n - 1)
        return tape.gradient(y, x)

    s, c, v = math.sin(1.3), math.cos(1.3), 1.3
    wanted = [s * v**3, c * v**3 + 3 * s * v**2, -s * v**3 + 6 * c * v**2 + 6 * s * v,
              6 * s + 18 * c * v - 9 * s * v**2 - c * v**3, s * v**3 - 12 * c * v**2 - 36 * s * v + 24 * c]
    found = both_ways(lambda: derivative(order))[way]()
    np.testing.assert_allclose(float(found), wanted[order], rtol=1e-12)


@pytest.mark.parametrize("way", [0, 1])
def test_tapes_side_by_side_and_crossed(way: int) -> None:
    def run(x: tj.Tensor) -> tuple[tj.Tensor, ...]:
        with tj.GradientTape() as a, tj.GradientTape() as b:
            a.watch(x)
            b.watch(x)
            y = x**3
            first = b.gradient(y, x)  # inside b and a: a hears it
        second = a.gradient(first, x)
        with tj.GradientTape() as c:
            c.watch(x)
            with tj.GradientTape() as d:
                d.watch(x)
                y = x**3
            with tj.GradientTape() as e:
                e.watch(x)
                g = d.gradient(y, x)
        return first, second, c.gradient(g, x), y

    found = both_ways(run)[way](tj.asarray(2.0))
    assert [t.item() for t in found] == [12, 12, 12, 8]


def test_gradient_inside_its_own_persistent_tape_is_recorded() -> None:
    x = tj.Variable(2.0)
    with tj.GradientTape(persistent=True) as tape:
        y = x**4
        g = tape.gradient(y, x)
        h = tape.gradient(g, x)
    assert (g.item(), h.item(), tape.gradient(h, x).item()) == (32, 48, 48)


def test_gradient_inside_its_own_tape_ends_it() -> None:
    x = tj.Variable(2.0)
    with tj.GradientTape() as tape:
        y = x * x
        assert tape.gradient(y, x).item() == 4
        z = x * y
    with pytest.raises(RuntimeError, match="persistent"):
        tape.gradient(z, x)


@pytest.mark.parametrize("way", [0, 1])
def test_assignments_cut(way: int) -> None:
    """A read is a read of the variable, whatever was assigned to it before; nothing flows through an assignment."""

    def run(v: tj.Variable) -> tj.Tensor:
        with tj.GradientTape() as tape:
            y = v * v  # 3 * 3
            v.assign(y * 2)  # 18
            z = v * 5
            v.assign_add(1.0)
            u = v * v  # 19 * 19
        return tape.gradient([y, z, u], v)

    assert both_ways(run)[way](tj.Variable(3.0)).item() == 6 + 5 + 38


def test_augmented_and_item_assignment_cut_too() -> None:
    v = tj.Variable([1.0, 2.0])
    with tj.GradientTape() as tape:
        v *= 3.0
        v[0] = 10.0
        y = (v * v).sum()
    np.testing.assert_allclose(tape.gradient(y, v).numpy(), [20, 12])


def test_a_value_shared_with_a_variable_is_not_the_variable() -> None:
    x = tj.asarray([1.0, 2.0])
    v = tj.Variable(x)
    v.assign(x)
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = (v * x * x).sum()
    gv, gx = tape.gradient(y, [v, x])
    np.testing.assert_allclose(gv.numpy(), [1, 4])
    np.testing.assert_allclose(gx.numpy(), [2, 8])


def test_a_read_value_is_connected() -> None:
    v = tj.Variable([1.0, 2.0])
    for read in (lambda: v.read_value(), lambda: tj.asarray(v), lambda: tj.convert_to_tensor(v), lambda: v[:],
                 lambda: v.copy(), lambda: tj.reshape(v, (2,)), lambda: v.astype("float32")):
        with tj.GradientTape() as tape:
            y = read() * 3
        np.testing.assert_allclose(tape.gradient(y, v).numpy(), [3, 3])


def test_writes_after_recording_do_not_reach_what_was_kept() -> None:
    x = tj.asarray([1.0, 2.0, 3.0])
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = x * x
        s = y * y
    kept = x * 1
    y += 100.0
    y[0] = -1.0
    wanted = tape.gradient(s, x)
    np.testing.assert_allclose(wanted.numpy(), 4 * kept.numpy() ** 3)


def test_writes_inside_the_tape_flow_for_tensors() -> None:
    x = tj.asarray([1.0, 2.0, 3.0])
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = x * x
        y[1] = x[0] * 10
        y *= 2
        y[2:] += x[:1]
    np.testing.assert_allclose(tape.gradient(y, x).numpy(), [4 + 20 + 1, 0, 12])


def test_a_write_after_the_tape_to_the_source_itself() -> None:
    x = tj.asarray([1.0, 2.0])
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = x**3
    source = x.copy()
    x += 5.0  # rebinds the handle: the recorded value stays
    np.testing.assert_allclose(tape.gradient(y, source).numpy(), [3, 12])


def test_jacobian() -> None:
    x = tj.Variable([1.0, 2.0])
    w = tj.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    with tj.GradientTape() as tape:
        y = w @ x
    jx, jw = tape.jacobian(y, [x, w])
    np.testing.assert_allclose(jx.numpy(), w.numpy())
    wanted = np.zeros((3, 3, 2))
    wanted[[0, 1, 2], [0, 1, 2]] = x.numpy()
    np.testing.assert_allclose(jw.numpy(), wanted)
    with pytest.raises(RuntimeError, match="persistent"):
        tape.jacobian(y, x)


def test_jacobian_unconnected_and_scalar() -> None:
    x, u = tj.Variable([1.0, 2.0]), tj.Variable([1.0])
    with tj.GradientTape(persistent=True) as tape:
        y = x * 2
        s = (x * x).sum() + u.sum() * 0
    assert tape.jacobian(y, u) is None
    assert tape.jacobian(y, u, unconnected_gradients="zero").shape == (2, 1)
    np.testing.assert_allclose(tape.jacobian(s, x).numpy(), [2, 4])


def test_batch_jacobian() -> None:
    rng = np.random.default_rng(0)
    x, m = tj.asarray(rng.normal(size=(4, 3))), tj.asarray(rng.normal(size=(3, 2)))
    with tj.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = tj.sin(x) @ m
        z = tj.stack([y, y * y], axis=2)
        total = y.sum(axis=1)
    wanted = np.cos(x.numpy())[:, None, :] * m.numpy().T[None]
    np.testing.assert_allclose(tape.batch_jacobian(y, x).numpy(), wanted, rtol=1e-12)
    found = tape.batch_jacobian(z, x).numpy()
    assert found.shape == (4, 2, 2, 3)
    np.testing.assert_allclose(found[:, :, 1], 2 * y.numpy()[:, :, None] * wanted, rtol=1e-12)
    np.testing.assert_allclose(tape.batch_jacobian(total, x).numpy(), wanted.sum(axis=1), rtol=1e-12)
    with pytest.raises(ValueError, match="equal first dim"):
        tape.batch_jacobian(y[:2], x)


def test_integers_inside_are_no_obstacle() -> None:
    x = tj.Variable([3.0, 1.0, 2.0])
    with tj.GradientTape() as tape:
        order = tj.argsort(x)
        y = x[order] * tj.asarray([1.0, 10.0, 100.0]) * (x > 1)[order]
    np.testing.assert_allclose(tape.gradient(y, x).numpy(), [100, 0, 10])


def test_complex_points_uphill() -> None:
    z = tj.Variable(1 + 2j)
    with tj.GradientTape() as tape:
        y = tj.abs(z) ** 2
    assert abs(complex(tape.gradient(y, z)) - (2 + 4j)) < 1e-5


def test_through_compiled_calls() -> None:
    w = tj.Variable([1.0, 2.0])
    calls = []

    @tj.function
    def f(x: tj.Tensor) -> tj.Tensor:
        calls.append(1)
        return tj.exp(w * x) * w

    x = tj.asarray([0.5, 0.25])
    with tj.GradientTape() as outer:
        outer.watch(x)
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = f(x).sum()
        gw, gx = tape.gradient(y, [w, x])
        total = (gw * gw).sum() + gx.sum()
    a, b = w.numpy().astype(float), x.numpy().astype(float)
    e = np.exp(a * b)
    np.testing.assert_allclose(gw.numpy(), e * (1 + a * b), rtol=1e-5)
    np.testing.assert_allclose(gx.numpy(), e * a * a, rtol=1e-5)
    hw, hx = outer.gradient(total, [w, x])
    by_w = 2 * e * (1 + a * b) * e * (b * (1 + a * b) + b) + e * (2 * a + a * a * b)
    by_x = 2 * e * (1 + a * b) * e * a * (2 + a * b) + e * a**3
    np.testing.assert_allclose(hw.numpy(), by_w, rtol=1e-5)
    np.testing.assert_allclose(hx.numpy(), by_x, rtol=1e-5)
    assert len(calls) == 1


def test_a_dropped_tape_frees_what_it_kept() -> None:
    x = tj.Variable(np.ones(10))
    with tj.GradientTape() as tape:
        y = x * 2
        z = y * y
    alive = weakref.ref(y._value)
    tape.gradient(z, x)
    del y, z, tape
    gc.collect()
    assert alive() is None


def test_threads_have_their_own_tapes() -> None:
    import threading

    x = tj.Variable(2.0)
    with tj.GradientTape(persistent=True) as tape:
        found: list[tj.Tensor] = []
        thread = threading.Thread(target=lambda: found.append(x * x))
        thread.start()
        thread.join()
    with pytest.warns(UserWarning, match="did not watch"):
        assert tape.gradient(found[0], x) is None


def test_watching_a_captured_tensor_inside_a_function() -> None:
    x = tj.asarray([1.0, 2.0])

    @tj.function
    def run() -> tuple[tj.Tensor, tj.Tensor]:
        with tj.GradientTape() as outer:
            outer.watch(x)
            with tj.GradientTape() as inner:
                inner.watch(x)
                y = (x**3).sum()
            g = inner.gradient(y, x)
        return g, outer.gradient(g, x)

    for scale in (1.0, 2.0):
        x *= scale
        g, h = run()
        np.testing.assert_allclose(g.numpy(), 3 * x.numpy() ** 2)
        np.testing.assert_allclose(h.numpy(), 6 * x.numpy())


@pytest.mark.parametrize("compiled_loss", [False, True])
@pytest.mark.parametrize("compiled_step", [False, True])
def test_a_training_loop(compiled_loss: bool, compiled_step: bool) -> None:
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    y = x @ np.array([[1.0], [2.0], [3.0]], "float32") + 0.5
    w, b = tj.Variable(tj.zeros((3, 1))), tj.Variable(0.0)

    def loss(x: tj.Tensor, y: tj.Tensor) -> tj.Tensor:
        return tj.mean((x @ w + b - y) ** 2)

    maybe_compiled = tj.function(loss) if compiled_loss else loss

    def step(x: tj.Tensor, y: tj.Tensor) -> tj.Tensor:
        with tj.GradientTape() as tape:
            value = maybe_compiled(x, y)
        for g, v in zip(tape.gradient(value, [w, b]), [w, b], strict=True):
            v.assign_sub(0.1 * g)
        return value

    run = tj.function(step) if compiled_step else step
    for _ in range(150):
        value = run(tj.asarray(x), tj.asarray(y))
    assert float(value) < 1e-6
    np.testing.assert_allclose(w.numpy().ravel(), [1, 2, 3], atol=1e-3)
    np.testing.assert_allclose(b.numpy(), 0.5, atol=1e-3)
