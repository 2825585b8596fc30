"""Optimizers against their formulas in NumPy, step by step in float64; the same eager and compiled; state, clipping,
accumulation, schedules, loss scaling.

The references are written from the papers and Keras 3's documentation, one variable at a time.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.nn import schedules

STEPS = 7
SHAPES = ((3, 4), (4,), ())
Reference = Callable[[np.ndarray, list[np.ndarray]], np.ndarray]


def gradients(dtype: str = "float64") -> list[list[np.ndarray]]:
    """For each step, one gradient for each shape."""
    random = np.random.default_rng(3)
    return [[random.normal(size=s).astype(dtype) for s in SHAPES] for _ in range(STEPS)]


def starts(dtype: str = "float64") -> list[np.ndarray]:
    random = np.random.default_rng(4)
    return [random.normal(size=s).astype(dtype) for s in SHAPES]


# -- the formulas ------------------------------------------------------------------------------------------------------
def sgd(w: np.ndarray, gs: list[np.ndarray], rate: float = 0.01, momentum: float = 0.0, nesterov: bool = False):
    v = np.zeros_like(w)
    for g in gs:
        v = momentum * v - rate * g
        w = w + (momentum * v - rate * g if nesterov else v)
    return w


def torch_momentum(w, gs, rate=0.01, momentum=0.9, nesterov=False):
    a = np.zeros_like(w)
    for g in gs:
        a = momentum * a + g
        w = w - rate * (g + momentum * a if nesterov else a)
    return w


def adam(w, gs, rate=0.001, b1=0.9, b2=0.999, epsilon=1e-7, amsgrad=False, decay=0.0):
    m, v, top = np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gs, 1):
        w = w - decay * rate * w
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        top = np.maximum(top, v)
        size = np.sqrt(1 - b2**t) / (1 - b1**t)
        w = w - rate * size * m / (np.sqrt(top if amsgrad else v) + epsilon)
    return w


def adamax(w, gs, rate=0.001, b1=0.9, b2=0.999, epsilon=1e-7):
    m, u = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gs, 1):
        m, u = b1 * m + (1 - b1) * g, np.maximum(b2 * u, np.abs(g))
        w = w - rate * m / ((1 - b1**t) * (u + epsilon))
    return w


def nadam(w, gs, rate=0.001, b1=0.9, b2=0.999, epsilon=1e-7):
    m, v, product = np.zeros_like(w), np.zeros_like(w), 1.0
    for t, g in enumerate(gs, 1):
        now, after = b1 * (1 - 0.5 * 0.96**t), b1 * (1 - 0.5 * 0.96 ** (t + 1))
        product *= now
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        m_hat = after * m / (1 - product * after) + (1 - now) * g / (1 - product)
        w = w - rate * m_hat / (np.sqrt(v / (1 - b2**t)) + epsilon)
    return w


def rmsprop(w, gs, rate=0.001, rho=0.9, momentum=0.0, epsilon=1e-7, centered=False):
    v, mean, moved = np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
    for g in gs:
        v, mean = rho * v + (1 - rho) * g * g, rho * mean + (1 - rho) * g
        step = rate * g / np.sqrt(v - (mean * mean if centered else 0) + epsilon)
        moved = momentum * moved + step
        w = w - moved
    return w


def adagrad(w, gs, rate=0.001, start=0.1, epsilon=1e-7):
    a = np.full_like(w, start)
    for g in gs:
        a = a + g * g
        w = w - rate * g / np.sqrt(a + epsilon)
    return w


def adadelta(w, gs, rate=0.001, rho=0.95, epsilon=1e-7):
    a, d = np.zeros_like(w), np.zeros_like(w)
    for g in gs:
        a = rho * a + (1 - rho) * g * g
        step = np.sqrt(d + epsilon) / np.sqrt(a + epsilon) * g
        d = rho * d + (1 - rho) * step * step
        w = w - rate * step
    return w


def lion(w, gs, rate=0.001, b1=0.9, b2=0.99):
    m = np.zeros_like(w)
    for g in gs:
        w = w - rate * np.sign(b1 * m + (1 - b1) * g)
        m = b2 * m + (1 - b2) * g
    return w


CASES: dict[str, tuple[Callable[[], Any], Callable[..., np.ndarray]]] = {
    "sgd": (lambda: tj.optimizers.SGD(), sgd),
    "sgd momentum": (lambda: tj.optimizers.SGD(0.1, momentum=0.8), lambda w, g: sgd(w, g, 0.1, 0.8)),
    "sgd nesterov": (lambda: tj.optimizers.SGD(0.1, 0.8, nesterov=True), lambda w, g: sgd(w, g, 0.1, 0.8, True)),
    "momentum": (lambda: tj.optimizers.Momentum(0.1), lambda w, g: torch_momentum(w, g, 0.1)),
    "momentum nesterov": (lambda: tj.optimizers.Momentum(0.1, 0.7, nesterov=True),
                          lambda w, g: torch_momentum(w, g, 0.1, 0.7, True)),
    "adam": (lambda: tj.optimizers.Adam(), adam),
    "adam options": (lambda: tj.optimizers.Adam(0.01, 0.8, 0.95, 1e-3), lambda w, g: adam(w, g, 0.01, 0.8, 0.95, 1e-3)),
    "amsgrad": (lambda: tj.optimizers.Adam(0.1, beta_2=0.5, amsgrad=True),
                lambda w, g: adam(w, g, 0.1, b2=0.5, amsgrad=True)),
    "adamw": (lambda: tj.optimizers.AdamW(0.1), lambda w, g: adam(w, g, 0.1, decay=0.004)),
    "adam with decay": (lambda: tj.optimizers.Adam(0.1, weight_decay=0.2), lambda w, g: adam(w, g, 0.1, decay=0.2)),
    "adamax": (lambda: tj.optimizers.Adamax(0.01), lambda w, g: adamax(w, g, 0.01)),
    "nadam": (lambda: tj.optimizers.Nadam(0.01), lambda w, g: nadam(w, g, 0.01)),
    "rmsprop": (lambda: tj.optimizers.RMSprop(0.01), lambda w, g: rmsprop(w, g, 0.01)),
    "rmsprop momentum": (lambda: tj.optimizers.RMSprop(0.01, 0.8, momentum=0.5),
                         lambda w, g: rmsprop(w, g, 0.01, 0.8, 0.5)),
    "rmsprop centered": (lambda: tj.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
                         lambda w, g: rmsprop(w, g, 0.01, momentum=0.5, centered=True)),
    "adagrad": (lambda: tj.optimizers.Adagrad(0.1), lambda w, g: adagrad(w, g, 0.1)),
    "adagrad start": (lambda: tj.optimizers.Adagrad(0.1, 0.5), lambda w, g: adagrad(w, g, 0.1, 0.5)),
    "adadelta": (lambda: tj.optimizers.Adadelta(1.0), lambda w, g: adadelta(w, g, 1.0)),
    "lion": (lambda: tj.optimizers.Lion(0.01), lambda w, g: lion(w, g, 0.01)),
}  # fmt: skip


def variables(dtype: str = "float64") -> list[tj.Variable]:
    return [tj.Variable(w, name=f"w{k}") for k, w in enumerate(starts(dtype))]


def stepper(optimizer: Any, trained: list[tj.Variable], how: str) -> Callable[..., None]:
    def step(gs: list[Any]) -> None:
        optimizer.apply_gradients(zip(gs, trained))

    return tj.function(step) if how == "compiled" else step


@pytest.mark.parametrize("how", ["called", "compiled"])
@pytest.mark.parametrize("name", CASES)
def test_formula(name: str, how: str) -> None:
    make, reference = CASES[name]
    optimizer, trained = make(), variables()
    step = stepper(optimizer, trained, how)
    for gs in gradients():
        step([tj.asarray(g) for g in gs])
    for k, (v, w) in enumerate(zip(trained, starts())):
        want = reference(w, [gs[k] for gs in gradients()])
        np.testing.assert_allclose(v.numpy(), want, rtol=1e-12, atol=1e-13)
    assert int(optimizer.iterations) == STEPS


def test_float32_is_the_rounded_formula() -> None:
    optimizer, trained = tj.optimizers.Adam(0.01), variables("float32")
    for gs in gradients("float32"):
        optimizer.apply_gradients(zip(map(tj.asarray, gs), trained))
    for k, (v, w) in enumerate(zip(trained, starts("float32"))):
        assert v.dtype == np.float32
        want = adam(w.astype("float64"), [gs[k].astype("float64") for gs in gradients("float32")], 0.01)
        np.testing.assert_allclose(v.numpy(), want, rtol=2e-6, atol=2e-7)


def test_plain_python_works_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer, trained = tj.optimizers.Adam(0.01), variables()
    with tj.eager():
        for gs in gradients():
            optimizer.apply_gradients(zip(map(tj.asarray, gs), trained))
    want = adam(starts()[0], [gs[0] for gs in gradients()], 0.01)
    np.testing.assert_allclose(trained[0].numpy(), want, rtol=1e-12)


# -- traces ------------------------------------------------------------------------------------------------------------
def quadratic(w: tj.Variable) -> tj.Tensor:
    return (w * w).sum()


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*has been decorated")  # the helpers above do that
        yield


def test_slots_are_made_once_inside_a_compiled_step() -> None:
    w, optimizer = tj.Variable([1.0, 2.0]), tj.optimizers.Adam(0.1)

    @tj.function
    def step() -> tj.Tensor:
        return optimizer.minimize(lambda: quadratic(w), [w])

    losses = [float(step()) for _ in range(5)]
    assert losses == sorted(losses, reverse=True) and step.trace_count == 1
    assert [v.name for v in optimizer.variables] == ["iterations:0", "learning_rate:0", "Variable_momentum:0",
                                                     "Variable_velocity:0"]


@pytest.mark.parametrize("rate", [0.5, schedules.ExponentialDecay(0.5, 2, 0.5)], ids=["number", "schedule"])
def test_a_new_learning_rate_never_retraces(rate: Any) -> None:
    w, optimizer = tj.Variable([1.0]), tj.optimizers.SGD(rate)
    optimizer.build([w])
    step = tj.function(lambda g: optimizer.apply_gradients([(g, w)]))
    one = tj.constant([1.0])
    seen = []
    for k in range(4):
        before = w.numpy().copy()
        step(one)
        seen.append(float(before[0] - w.numpy()[0]))
        if not callable(rate):
            optimizer.learning_rate = 0.5 * 2.0 ** -((k + 1) / 2)
    np.testing.assert_allclose(seen, [0.5 * 2.0 ** -(k / 2) for k in range(4)], rtol=1e-6)
    assert step.trace_count == 1


def test_learning_rate_is_a_variable_or_the_schedule_now() -> None:
    optimizer = tj.optimizers.SGD(0.1)
    assert float(optimizer.learning_rate) == 0.1
    optimizer.learning_rate.assign(0.2)
    assert float(optimizer.learning_rate) == 0.2
    optimizer.learning_rate = schedules.InverseTimeDecay(1.0, 1, 1.0)
    assert float(optimizer.learning_rate) == 1.0
    optimizer.apply_gradients([(tj.constant(1.0), w := tj.Variable(0.0))])
    assert float(optimizer.learning_rate) == 0.5 and float(w) == -1.0
    optimizer.learning_rate = 0.25
    assert float(optimizer.learning_rate) == 0.25
    counted = tj.optimizers.SGD(lambda: 0.125)
    assert float(counted.learning_rate) == 0.125


def test_one_optimizer_for_several_groups() -> None:
    a, b, optimizer = tj.Variable([1.0]), tj.Variable([2.0, 2.0]), tj.optimizers.Adam(0.1)
    for _ in range(2):
        optimizer.apply_gradients([(tj.constant([1.0]), a)])
        optimizer.apply_gradients([(tj.constant([1.0, 1.0]), b)])
    assert int(optimizer.iterations) == 4 and len(optimizer.variables) == 6
    assert (a.numpy() < 1).all() and (b.numpy() < 2).all()


@pytest.mark.parametrize("how", ["called", "compiled"])
def test_a_tape_around_a_step_goes_on_with_the_new_value(how: str) -> None:
    w, optimizer = tj.Variable(3.0), tj.optimizers.SGD(0.1)
    optimizer.build([w])

    def step() -> tuple[tj.Tensor, tj.Tensor]:
        with tj.GradientTape() as outer:
            with tj.GradientTape() as inner:
                loss = w * w
            optimizer.apply_gradients([(inner.gradient(loss, w), w)])
            after = w * w * 5.0
        return after, outer.gradient(after, w)

    after, gradient = (tj.function(step) if how == "compiled" else step)()
    assert after.item() == pytest.approx(5 * 2.4**2) and gradient.item() == pytest.approx(10 * 2.4)


def test_updates_run_on_the_products_of_their_gradients() -> None:
    """No gradient of a weight is stored: its update is the epilogue of the product, or of the sum for a bias; large
    weights and their slots are written over; the rate is worked out once, before all of them."""
    model = tj.Sequential([tj.layers.Dense(512, "relu", input_shape=(640,)), tj.layers.Dense(10)])
    optimizer, loss = tj.optimizers.Adam(), tj.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)

    @tj.function
    def step(x: tj.Tensor, y: tj.Tensor) -> None:
        optimizer.minimize(lambda: loss(y, model(x)), model.trainable_variables)

    x, y = tj.ones((32, 640)), tj.zeros(32, "int64")
    low = step.lower(x, y)
    updates = [k for k in low.kernels if "sqrt" in k.ops and "pow" not in k.ops]
    assert len(updates) == 4 and all(k.name.startswith(("matmul_", "sum_", "add_greater_")) for k in updates)
    assert "pow" in low.kernels[0].ops and sum("pow" in k.ops for k in low.kernels) == 1
    temporaries = [b for b in low.plan.buffers if b.role == "temp"]
    for v in model.trainable_variables[::2]:
        held = [b for b in temporaries if b.shape == v.shape]
        assert all(low.built.program.storage.places[low.plan.buffers.index(b)].home == "panels" for b in held)
    large = model.layers[0].kernel
    before = large.numpy().ctypes.data
    for _ in range(3):  # the first one moves it to memory of its own
        step(x, y)
        before, now = large.numpy().ctypes.data, before
    step(x, y)
    assert large.numpy().ctypes.data == before == now


OPTIONS: list[dict[str, Any]] = [{}, {"gradient_accumulation_steps": 2}, {"global_clipnorm": 1.0}, {"scaled": True}]


@pytest.mark.parametrize("options", OPTIONS)
def test_large_weights_are_written_over(options: dict[str, Any]) -> None:
    """Also where rows of a table are looked up (which can fail, before anything is written), and where a step may leave
    weights as they are."""
    table = tj.layers.Embedding(600, 512)
    model = tj.Sequential([table, tj.layers.GlobalAveragePooling1D(), tj.layers.Dense(600)])
    x, y = tj.asarray(np.arange(12).reshape(3, 4)), tj.asarray([1, 2, 3])
    model(x)
    scaled = options.get("scaled", False)
    optimizer: Any = tj.optimizers.SGD(0.1, momentum=0.5, **({} if scaled else options))
    optimizer = tj.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer
    optimizer.build(model.trainable_variables)
    loss = tj.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = tj.function(lambda x, y: optimizer.minimize(lambda: loss(y, model(x)), model.trainable_variables))
    for _ in range(3):
        step(x, y)
    places = [v.numpy().ctypes.data for v in (table.variables[0], model.layers[2].kernel)]
    losses = [step(x, y).item() for _ in range(4)]
    assert places == [v.numpy().ctypes.data for v in (table.variables[0], model.layers[2].kernel)]
    assert losses[-1] < losses[0]
    before = [v.numpy().copy() for v in model.variables]
    with pytest.raises(IndexError):
        step(tj.asarray(np.full((3, 4), 600)), y)
    for v, b in zip(model.variables, before):
        np.testing.assert_array_equal(v.numpy(), b)


# -- clipping, decay, accumulation, averages -----------------------------------------------------------------------
def moved(optimizer: Any, *gs: Any) -> list[np.ndarray]:
    """How far one step of gradient descent with rate 1 takes Variables: the gradients it used."""
    trained = [tj.Variable(np.zeros(np.shape(g))) for g in gs]
    optimizer.apply_gradients([(tj.asarray(np.asarray(g, "float64")), v) for g, v in zip(gs, trained)])
    return [-v.numpy() for v in trained]


def test_clipping() -> None:
    gs = [3.0, -4.0], [0.5]
    np.testing.assert_allclose(moved(tj.optimizers.SGD(1.0, clipvalue=1.0), *gs)[0], [1, -1])
    one, two = moved(tj.optimizers.SGD(1.0, clipnorm=1.0), *gs)
    np.testing.assert_allclose(one, [0.6, -0.8])
    np.testing.assert_allclose(two, [0.5])
    one, two = moved(tj.optimizers.SGD(1.0, global_clipnorm=1.0), *gs)
    norm = np.sqrt(25.25)
    np.testing.assert_allclose(one, np.array([3, -4]) / norm)
    np.testing.assert_allclose(two, [0.5 / norm])
    np.testing.assert_allclose(moved(tj.optimizers.SGD(1.0, global_clipnorm=10.0), *gs)[0], [3, -4])
    assert np.isnan(moved(tj.optimizers.SGD(1.0, global_clipnorm=1.0), [np.nan, 1.0])[0]).all()
    clipped, norm = tj.optimizers.clip_by_global_norm([tj.asarray([6.0]), None, tj.asarray([[8.0]])], 5.0)
    assert norm.item() == 10.0 and clipped[1] is None
    assert clipped[0].tolist() == [3.0] and clipped[2].tolist() == [[4.0]]
    unclipped, _ = tj.optimizers.clip_by_global_norm([tj.asarray([6.0])], 7.0)
    assert unclipped[0].tolist() == [6.0]
    with pytest.raises(ValueError, match="no tensors"):
        tj.optimizers.clip_by_global_norm([None], 1.0)
    with pytest.raises(ValueError, match="only one of clipnorm"):
        tj.optimizers.SGD(clipnorm=1.0, clipvalue=1.0)
    with pytest.raises(ValueError, match="over 0"):
        tj.optimizers.SGD(clipnorm=-1.0)


def test_weight_decay_can_leave_variables_out() -> None:
    optimizer = tj.optimizers.SGD(0.5, weight_decay=0.1)
    trained = [tj.Variable([1.0], name=n) for n in ("kernel", "bias", "scale")]
    optimizer.exclude_from_weight_decay(var_list=[trained[2]], var_names=["bias"])
    optimizer.apply_gradients([(tj.constant([0.0]), v) for v in trained])
    np.testing.assert_allclose([v.numpy()[0] for v in trained], [0.95, 1.0, 1.0])


@pytest.mark.parametrize("how", ["called", "compiled"])
def test_accumulated_gradients_make_one_update(how: str) -> None:
    optimizer, trained = tj.optimizers.Adam(0.1, gradient_accumulation_steps=3), variables()
    step = stepper(optimizer, trained, how)
    found = gradients()[:6]
    for k, gs in enumerate(found):
        before = trained[0].numpy().copy()
        step([tj.asarray(g) for g in gs])
        assert (trained[0].numpy() == before).all() == (k % 3 != 2)
    assert int(optimizer.iterations) == 2
    for k, (v, w) in enumerate(zip(trained, starts())):
        means = [np.mean([gs[k] for gs in found[i : i + 3]], axis=0) for i in (0, 3)]
        np.testing.assert_allclose(v.numpy(), adam(w, means, 0.1), rtol=1e-12, atol=1e-13)


def test_moving_average() -> None:
    w = tj.Variable([0.0])
    optimizer = tj.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5)
    values = []
    for g in (-1.0, -2.0, -4.0):
        optimizer.apply_gradients([(tj.constant([g]), w)])
        values.append(w.numpy()[0])
    assert values == [1, 3, 7]
    optimizer.finalize_variable_values([w])
    assert w.numpy()[0] == ((1 + 3) / 2 + 7) / 2
    overwriting = tj.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)
    v = tj.Variable([0.0])
    for g in (-1.0, -2.0):
        overwriting.apply_gradients([(tj.constant([g]), v)])
    assert v.numpy()[0] == 2.0
    with pytest.raises(ValueError, match="use_ema=True"):
        tj.optimizers.SGD().finalize_variable_values([w])


# -- what can go wrong -------------------------------------------------------------------------------------------------
def test_gradients_that_are_none() -> None:
    a, b, optimizer = tj.Variable(1.0, name="a"), tj.Variable(1.0, name="b"), tj.optimizers.SGD(0.5)
    with pytest.warns(UserWarning, match="no gradient for b:0"):
        optimizer.apply_gradients([(tj.constant(1.0), a), (None, b)])
    assert float(a) == 0.5 and float(b) == 1.0
    with pytest.raises(ValueError, match="no gradients for any Variable of: a:0, b:0"):
        optimizer.apply_gradients([(None, a), (None, b)])
    with pytest.raises(ValueError, match="an empty list"):
        optimizer.apply_gradients([])


def test_pairs_that_do_not_fit() -> None:
    w, optimizer = tj.Variable([1.0, 2.0], name="w"), tj.optimizers.SGD()
    with pytest.raises(ValueError, match=r"'w:0' has shape \(3,\), and the Variable \(2,\)"):
        optimizer.apply_gradients([(tj.zeros(3), w)])
    with pytest.raises(ValueError, match="given twice"):
        optimizer.apply_gradients([(tj.zeros(2), w), (tj.zeros(2), w)])
    with pytest.raises(TypeError, match=r"pairs are \(gradient, Variable\), got"):
        optimizer.apply_gradients([(tj.zeros(2), tj.zeros(2))])
    with pytest.raises(ValueError, match="2 gradients for 1"):
        optimizer.apply([tj.zeros(2), tj.zeros(2)], [w])


def test_minimize() -> None:
    w, optimizer = tj.Variable(1.0), tj.optimizers.SGD(0.25)
    assert float(optimizer.minimize(lambda: w * w)) == 1.0 and float(w) == 0.5
    with tj.GradientTape() as tape:
        loss = w * w
    optimizer.minimize(loss, [w], tape=tape)
    assert float(w) == 0.25
    with pytest.raises(ValueError, match="tape="):
        optimizer.minimize(loss, [w])


def test_get() -> None:
    assert type(tj.optimizers.get("adamw")) is tj.optimizers.AdamW
    given = tj.optimizers.SGD(0.3)
    assert tj.optimizers.get(given) is given
    with pytest.raises(ValueError, match="no optimizer is called 'sgdd'; known: adadelta"):
        tj.optimizers.get("sgdd")
    with pytest.raises(TypeError, match="not int"):
        tj.optimizers.get(3)


def test_a_subclass_needs_two_things() -> None:
    class Signed(tj.optimizers.Optimizer):
        slots = {"count": 0.0}  # noqa: RUF012

        def update(self, variable, gradient, rate, *, count):
            count.assign_add(tj.ones_like(count))
            variable.assign_sub(rate * tj.sign(gradient))

    w, optimizer = tj.Variable([1.0, 1.0]), Signed(0.5)
    step = tj.function(lambda g: optimizer.apply_gradients([(g, w)]))
    step(tj.constant([3.0, -2.0]))
    step(tj.constant([3.0, -2.0]))
    assert w.tolist() == [0.0, 2.0] and optimizer.named_variables()["slots/0/count"].tolist() == [2.0, 2.0]


# -- state -------------------------------------------------------------------------------------------------------------
def test_state_goes_into_an_optimizer_that_has_not_begun() -> None:
    steps = gradients()
    first, trained = tj.optimizers.AdamW(0.1), variables()
    for gs in steps[:3]:
        first.apply_gradients(zip(map(tj.asarray, gs), trained))
    saved, values = first.state(), [v.numpy().copy() for v in trained]
    for gs in steps[3:]:
        first.apply_gradients(zip(map(tj.asarray, gs), trained))

    second, others = tj.optimizers.AdamW(0.3), [tj.Variable(v) for v in values]
    second.load_state(saved)
    assert float(second.learning_rate) == 0.1 and int(second.iterations) == 3
    step = stepper(second, others, "compiled")
    for gs in steps[3:]:
        step([tj.asarray(g) for g in gs])
    for v, o in zip(trained, others):
        np.testing.assert_array_equal(v.numpy(), o.numpy())
    second.load_state(saved)  # now they are there
    assert int(second.iterations) == 3
    np.testing.assert_array_equal(second.state()["slots/0/velocity"], saved["slots/0/velocity"])


def test_state_that_does_not_fit() -> None:
    optimizer, w = tj.optimizers.Adam(), tj.Variable([1.0, 2.0])
    optimizer.apply_gradients([(tj.ones(2), w)])
    good = optimizer.state()
    with pytest.raises(ValueError, match="no value for learning_rate"):
        optimizer.load_state({"iterations": np.int64(0)})
    with pytest.raises(ValueError, match="nothing is called slots/0/wrong"):
        optimizer.load_state({**good, "slots/0/wrong": 1.0})
    with pytest.raises(ValueError, match=r"slots/0/momentum has shape \(2,\), and the value \(3,\)"):
        optimizer.load_state({**good, "slots/0/momentum": np.zeros(3)})
    assert int(optimizer.iterations) == 1
    fresh = tj.optimizers.Adam()
    fresh.load_state(good)
    with pytest.raises(ValueError, match="has shape"):
        fresh.apply_gradients([(tj.ones(3), tj.Variable(np.zeros(3, "float32")))])
    optimizer.load_state({"iterations": np.int64(0), "learning_rate": 0.5})  # a state from before the first step
    assert not optimizer.state()["slots/0/momentum"].any()


def test_copies_are_apart() -> None:
    w, optimizer = tj.Variable([1.0]), tj.optimizers.Adam(0.1)
    optimizer.apply_gradients([(tj.ones(1), w)])
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert other.state().keys() == optimizer.state().keys() and int(other.iterations) == 1
        other.apply_gradients([(tj.ones(1), tj.Variable([5.0]))])
        assert int(other.iterations) == 2 and int(optimizer.iterations) == 1


# -- schedules ---------------------------------------------------------------------------------------------------------
def cosine(rate, steps, alpha, target, warm):
    def at(t):
        if target is not None and t < warm:
            return rate + (target - rate) * t / warm
        top = rate if target is None else target
        done = min(t - (warm if target is not None else 0), steps) / steps
        return top * ((1 - alpha) * 0.5 * (1 + np.cos(np.pi * done)) + alpha)

    return at


def restarts(rate, first, t_mul, m_mul, alpha):
    def at(t):
        length, height = first, 1.0
        while t >= length:
            t, length, height = t - length, length * t_mul, height * m_mul
        return rate * ((1 - alpha) * 0.5 * height * (1 + np.cos(np.pi * t / length)) + alpha)

    return at


SCHEDULES = {
    "exponential": (schedules.ExponentialDecay(0.1, 10, 0.5), lambda t: 0.1 * 0.5 ** (t / 10)),
    "staircase": (schedules.ExponentialDecay(0.1, 10, 0.5, staircase=True), lambda t: 0.1 * 0.5 ** (t // 10)),
    "inverse time": (schedules.InverseTimeDecay(0.1, 4, 0.5), lambda t: 0.1 / (1 + 0.5 * t / 4)),
    "inverse time staircase": (schedules.InverseTimeDecay(0.1, 4, 0.5, True), lambda t: 0.1 / (1 + 0.5 * (t // 4))),
    "piecewise": (schedules.PiecewiseConstantDecay([3, 7], [1.0, 0.5, 0.25]),
                  lambda t: 1.0 if t <= 3 else 0.5 if t <= 7 else 0.25),
    "polynomial": (schedules.PolynomialDecay(0.1, 10, 0.01, power=2.0),
                   lambda t: 0.09 * (1 - min(t, 10) / 10) ** 2 + 0.01),
    "polynomial cycle": (schedules.PolynomialDecay(0.1, 10, 0.01, cycle=True),
                         lambda t: 0.09 * (1 - t / (10 * max(1, -(-t // 10)))) + 0.01),
    "cosine": (schedules.CosineDecay(0.1, 10, alpha=0.1), cosine(0.1, 10, 0.1, None, 0)),
    "cosine warmup": (schedules.CosineDecay(0.0, 10, 0.0, warmup_target=0.2, warmup_steps=5),
                      cosine(0.0, 10, 0.0, 0.2, 5)),
    "restarts": (schedules.CosineDecayRestarts(0.1, 4, 2.0, 0.5, 0.1), restarts(0.1, 4, 2.0, 0.5, 0.1)),
    "restarts of one length": (schedules.CosineDecayRestarts(0.1, 4, 1.0), restarts(0.1, 4, 1.0, 1.0, 0.0)),
    "restarts that grow slowly": (schedules.CosineDecayRestarts(0.1, 4, 1.5), restarts(0.1, 4, 1.5, 1.0, 0.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name: str) -> None:
    schedule, formula = SCHEDULES[name]
    compiled = tj.function(schedule)
    for t in (0, 1, 3, 4, 5, 7, 8, 10, 12, 19, 28, 40):
        assert schedule(t).item() == pytest.approx(formula(t), rel=1e-9, abs=1e-12), t
        assert compiled(tj.constant(t)).item() == pytest.approx(formula(t), rel=1e-9, abs=1e-12), t
    assert compiled.trace_count == 1


def test_schedules_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="decay_steps must be over 0"):
        schedules.ExponentialDecay(0.1, 0, 0.5)
    with pytest.raises(ValueError, match="2 boundaries need 3 values"):
        schedules.PiecewiseConstantDecay([1, 2], [1.0, 2.0])
    with pytest.raises(ValueError, match="must increase"):
        schedules.PiecewiseConstantDecay([2, 1], [1.0, 2.0, 3.0])


# -- loss scaling ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["called", "compiled"])
def test_loss_scaling(how: str) -> None:
    w = tj.Variable([1.0, 2.0])
    optimizer = tj.optimizers.LossScaleOptimizer(tj.optimizers.Adam(0.1), initial_scale=8.0, dynamic_growth_steps=2)

    def step(factor: Any) -> Any:
        return optimizer.minimize(lambda: (w * w).sum() * factor, [w])

    step = tj.function(step) if how == "compiled" else step
    plain, other = tj.optimizers.Adam(0.1), tj.Variable([1.0, 2.0])
    scales = []
    for factor in (1.0, 1.0, np.inf, 1.0, np.nan, 1.0, 1.0):
        loss = step(tj.constant(np.float32(factor)))
        scales.append(float(optimizer.scale))
        if np.isfinite(factor):
            plain.minimize(lambda: (other * other).sum(), [other])
            assert np.isfinite(loss.item())
    assert scales == [8, 16, 8, 8, 4, 4, 8]
    np.testing.assert_allclose(w.numpy(), other.numpy(), rtol=1e-6)
    assert int(optimizer.iterations) == 5

    again = tj.optimizers.LossScaleOptimizer(tj.optimizers.Adam(0.1))
    again.load_state(optimizer.state())
    assert float(again.scale) == 8 and int(again.iterations) == 5
    with pytest.raises(ValueError, match="no value for"):
        again.load_state({})
