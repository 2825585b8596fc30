"""Modules own Variables through attributes; layers are built at their first call, eager or traced."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.nn.module import Layer, Module


class Scale(Layer):
    """x * by + shift, with Variables of the last dim's size."""

    def build(self, input_shape: Any) -> None:
        self.by = self.add_weight((input_shape[-1],), "random_normal")
        self.shift = self.add_weight((input_shape[-1],), "zeros", trainable=False)

    def call(self, x: Any) -> Any:
        return self.by * x + self.shift


class Noise(Layer):
    def call(self, x: Any, training: bool = False) -> Any:
        return x + tj.random.normal(x.shape) if training else x


class Chain(Layer):
    def __init__(self, *parts: Any, **kwargs: Any):
        super().__init__(**kwargs)
        self.parts = list(parts)

    def call(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x


def chain() -> Chain:
    tj.random.seed(3)
    return Chain(Scale(), Noise(), Chain(Scale()))


def test_variables_are_found_in_attributes_and_containers_once_and_in_order() -> None:
    m = Module()
    shared = tj.Variable(1.0)
    m.z, m.a = tj.Variable([1.0, 2.0]), shared  # type: ignore[attr-defined]
    m.many = [tj.Variable(2.0, trainable=False), {"k": (shared, tj.Variable(3.0)), 7: Module()}]  # type: ignore[attr-defined]
    m.many[1][7].w = tj.Variable(4.0)  # type: ignore[attr-defined]
    m.itself, m.plain, m.array = m, "text", np.ones(3)  # type: ignore[attr-defined]
    assert list(m.named_variables()) == ["z", "a", "many/0", "many/1/k/1", "many/1/7/w"]
    assert [float(v.numpy().sum()) for v in m.variables] == [3, 1, 2, 3, 4]
    assert [float(v) for v in m.non_trainable_variables] == [2]
    assert len(m.trainable_variables) == 4 and m.submodules == [m.many[1][7]]  # type: ignore[attr-defined]
    assert m.count_params() == 6
    m.many.append(tj.Variable(5.0))  # type: ignore[attr-defined]
    assert list(m.named_variables())[-1] == "many/2"


def test_a_container_that_holds_itself_is_no_trouble() -> None:
    m = Module()
    m.loop = [tj.Variable(1.0)]  # type: ignore[attr-defined]
    m.loop.append(m.loop)  # type: ignore[attr-defined]
    assert list(m.named_variables()) == ["loop/0"] and repr(m) == "Module()"


def test_frozen_modules_are_not_trained() -> None:
    m = chain()
    m(tj.ones((2, 3)))
    assert len(m.trainable_variables) == 2 and len(m.non_trainable_variables) == 2
    m.parts[2].trainable = False
    assert list(map(id, m.trainable_variables)) == [id(m.parts[0].by)]
    assert m.trainable and not m.parts[2].parts[0].trainable
    m.trainable = False
    assert m.trainable_variables == [] and len(m.variables) == 4
    assert not Scale(trainable=False).trainable


def test_building_inside_a_traced_function_draws_the_same_values() -> None:
    a, b, x = chain(), None, tj.ones((2, 3))
    eager = [a(x, training=True).numpy() for _ in range(3)]
    b = chain()
    f = tj.function(lambda x: b(x, training=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = [f(x).numpy() for _ in range(3)]
    np.testing.assert_allclose(compiled, eager, rtol=1e-6)
    assert f.trace_count == 2  # one that made the Variables, one without
    for p, q in zip(a.variables, b.variables):
        np.testing.assert_array_equal(p.numpy(), q.numpy())


def test_training_reaches_inner_layers_and_ends_with_the_call() -> None:
    m, x = chain(), tj.ones((2, 3))
    first = m(x).numpy()
    assert not np.array_equal(m(x, training=True).numpy(), first)
    np.testing.assert_array_equal(m(x).numpy(), first)
    quiet = Chain(Noise())
    quiet.call = lambda x: quiet.parts[0](x, training=False)  # type: ignore[method-assign]
    np.testing.assert_array_equal(quiet(x, training=True).numpy(), x.numpy())


def test_changing_an_attribute_traces_again() -> None:
    class Power(Layer):
        power = 2.0

        def call(self, x: Any) -> Any:
            return x**self.power

    p = Power()
    f = tj.function(lambda x: p(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert f(tj.constant(3.0)).item() == 9 and f(tj.constant(3.0)).item() == 9
    p.power = 3.0
    assert f(tj.constant(3.0)).item() == 27 and f.trace_count == 2


def test_branches_on_values_in_a_call_are_compiled() -> None:
    class Clip(Layer):
        def call(self, x: Any) -> Any:
            if x.sum() > 0:
                return x
            return -x

    layer = Clip()
    f = tj.function(lambda x: layer(x))
    assert f(tj.constant([-3.0])).tolist() == [3.0] and f(tj.constant([2.0])).tolist() == [2.0]


def test_state_goes_out_and_in() -> None:
    a, b, x = chain(), chain(), tj.ones((2, 3))
    a(x)
    state = a.state()
    assert list(state) == ["parts/0/by", "parts/0/shift", "parts/2/parts/0/by", "parts/2/parts/0/shift"]
    before = {k: v.copy() for k, v in state.items()}
    a.parts[0].by.assign_add([1.0, 1.0, 1.0])
    for k, v in state.items():
        np.testing.assert_array_equal(v, before[k])
    b.load_state(state)  # not built yet: the values wait
    assert b.variables == []
    drawn = tj.random.default_generator.state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tj.function(lambda x: b(x))(x)
    assert tj.random.default_generator.state() == drawn  # and no first values are drawn
    for k, v in b.state().items():
        np.testing.assert_array_equal(v, before[k])
    a.set_weights(b.get_weights())
    np.testing.assert_array_equal(a(x).numpy(), b(x).numpy())


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    m = chain()
    m(tj.ones((2, 3)))
    before = m.state()
    wrong = {**before, "parts/0/by": np.ones(4), "else": np.ones(1)}
    del wrong["parts/0/shift"]
    with pytest.raises(ValueError, match=r"parts/0/by has shape \(3,\), and the value \(4,\).*nothing is called else"):
        m.load_state(wrong)
    with pytest.raises(ValueError, match="no value for parts/0/shift"):
        m.load_state(wrong)
    with pytest.raises(ValueError, match="0 Variables, but 1 values; not built yet: scale"):
        Chain(Scale()).set_weights([np.ones(1)])
    for k, v in m.state().items():
        np.testing.assert_array_equal(v, before[k])


def test_errors_name_the_layer() -> None:
    m = chain()
    m(tj.ones((2, 3)))
    with pytest.raises(ValueError) as caught:
        m(tj.ones((2, 4)))
    assert caught.value.__notes__ == ["in layer scale (Scale, called with shape (2, 4))"]
    with pytest.raises(NotImplementedError, match="Plain has no method `call`"):
        type("Plain", (Layer,), {})()(tj.ones(1))
    with pytest.raises(ValueError, match="unknown initializer 'glorot'; there are zeros"):
        m.add_weight((2,), "glorot")
    with pytest.raises(ValueError, match=r"shape \(None, 2\) needs sizes"):
        m.add_weight((None, 2))  # type: ignore[arg-type]


def test_inputs_take_the_layers_precision() -> None:
    layer = Scale()
    assert layer(np.ones((2, 3))).dtype == tj.float32
    double = Scale(dtype="float64")
    assert double(tj.ones((2, 3))).dtype == tj.float64 and double.by.dtype == tj.float64

    class Both(Layer):
        def call(self, inputs: Any) -> Any:
            x, ids = inputs
            return x * 2, ids

    x, ids = Both()([np.ones(2), np.arange(2)])
    assert x.dtype == tj.float32 and ids.dtype == tj.int64


def test_copies_are_independent_and_modules_pickle() -> None:
    m, x = chain(), tj.ones((2, 3))
    m(x)
    for other in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        np.testing.assert_array_equal(other(x).numpy(), m(x).numpy())
        other.parts[0].by.assign_add([1.0, 1.0, 1.0])
        assert not np.array_equal(other(x).numpy(), m(x).numpy())


def test_repr_shows_the_tree() -> None:
    assert repr(Chain(Scale(), Chain(Noise()))) == (
        "Chain(\n  (parts/0): Scale()\n  (parts/1): Chain(\n    (parts/0): Noise()\n  )\n)"
    )
    assert (Scale().name, Chain(name="mine").name) == ("scale", "mine")


@pytest.mark.parametrize("name", sorted(tj.initializers.NAMES))
def test_initializers_have_their_moments_and_repeat(name: str) -> None:
    shape = (64, 64) if name == "identity" else (3, 3, 32, 64)
    fan_in, fan_out = 9 * 32, 9 * 64
    tj.random.seed(0)
    drawn = tj.initializers.get(name)(shape, np.dtype("float32")).numpy()
    tj.random.seed(0)
    np.testing.assert_array_equal(tj.initializers.get(name)(shape, np.dtype("float32")).numpy(), drawn)
    variance = {
        "random_uniform": 0.1**2 / 12, "uniform": 0.1**2 / 12, "random_normal": 0.05**2, "normal": 0.05**2,
        "truncated_normal": (0.05 * 0.8796) ** 2, "variance_scaling": 1 / fan_in,
        "glorot_uniform": 2 / (fan_in + fan_out), "glorot_normal": 2 / (fan_in + fan_out), "he_uniform": 2 / fan_in,
        "he_normal": 2 / fan_in, "lecun_uniform": 1 / fan_in, "lecun_normal": 1 / fan_in, "orthogonal": 1 / 288,
    }.get(name, 0.0)  # fmt: skip
    if name in ("zeros", "ones", "constant", "identity"):
        expected = np.eye(64) if name == "identity" else np.full(shape, float(name == "ones"))
        np.testing.assert_array_equal(drawn, expected)
        return
    assert drawn.shape == shape and drawn.dtype == np.float32
    assert drawn.var() == pytest.approx(variance, rel=0.05) and abs(drawn.mean()) < 3 * np.sqrt(variance / drawn.size)


def test_an_initializer_with_a_seed_draws_from_its_own_stream() -> None:
    first = tj.initializers.GlorotUniform(seed=1)
    a, b = first((2, 3)).numpy(), first((2, 3)).numpy()
    again = tj.initializers.GlorotUniform(seed=1)
    np.testing.assert_array_equal(again((2, 3)).numpy(), a)
    np.testing.assert_array_equal(again((2, 3)).numpy(), b)
    assert not np.array_equal(a, b) and repr(again) == "GlorotUniform(seed=1)"


def test_orthogonal_wide_and_tall() -> None:
    for shape in ((3, 7), (7, 3), (5, 5)):
        q = tj.initializers.Orthogonal(2.0, seed=1)(shape, "float64").numpy()
        product = q @ q.T if shape[0] < shape[1] else q.T @ q
        np.testing.assert_allclose(product, 4 * np.eye(min(shape)), atol=1e-12)


def test_freezing_a_layer_is_noticed_by_compiled_code() -> None:
    m = chain()
    m(tj.ones((2, 3)))

    @tj.function
    def gradients(x: tj.Tensor) -> list[tj.Tensor]:
        with tj.GradientTape() as tape:
            loss = m(x).sum()
        return tape.gradient(loss, m.trainable_variables)  # type: ignore[no-any-return]

    assert len(gradients(tj.ones((2, 3)))) == 2
    m.parts[2].trainable = False
    assert len(gradients(tj.ones((2, 3)))) == 1


def test_a_replaced_activation_is_noticed_by_compiled_code() -> None:
    layer = tj.layers.Dense(2, activation="relu", kernel_initializer="ones")
    f = tj.function(lambda x: layer(x))
    assert f(tj.constant([[1.0]])).tolist() == [[1.0, 1.0]] and f(tj.constant([[1.0]])).tolist() == [[1.0, 1.0]]
    layer.activation = tj.exp
    np.testing.assert_allclose(f(tj.constant([[1.0]])).numpy(), np.exp([[1.0, 1.0]]), rtol=1e-6)


def test_calling_a_large_model_costs_few_checks() -> None:
    model = tj.Sequential([tj.layers.Dense(4, activation="relu", input_shape=(4,)) for _ in range(10)])
    f = tj.function(lambda x: model(x))
    x = tj.ones((2, 4))
    f(x)
    (specialization,) = f._traces.by_key[next(iter(f._traces.by_key))]
    assert len(specialization.watch._checks) < 60


def test_a_generator_of_its_own_is_state() -> None:
    x, a, b = tj.ones((40,)), tj.layers.Dropout(0.5, seed=1), tj.layers.Dropout(0.5, seed=2)
    a(x, training=True)
    state = a.state()
    assert list(state) == ["generator"] and a.variables == [] == a.get_weights()
    expected = a(x, training=True).numpy()
    b.load_state(state)
    np.testing.assert_array_equal(b(x, training=True).numpy(), expected)


def test_a_first_call_inside_a_loop_or_branch_of_a_compiled_function() -> None:
    x, (a, b, c) = tj.ones((2, 3)), (tj.layers.Dense(3) for _ in range(3))

    def loop(layer: Any) -> Any:
        return lambda x: tj.scan(lambda h, _: (layer(h), h), x, length=3)[0]

    def branch(x: Any) -> Any:
        if x.sum() > 0:
            return c(x)
        return x

    looped, branched = tj.function(loop(b)), tj.function(branch)
    for first in (a, looped, branched):
        tj.random.seed(2)
        first(x)
    for _ in range(2):
        np.testing.assert_allclose(looped(x).numpy(), loop(a)(x).numpy(), rtol=1e-6)
        np.testing.assert_allclose(branched(x).numpy(), a(x).numpy(), rtol=1e-6)
    np.testing.assert_array_equal(branched(-x).numpy(), -x.numpy())


def test_models_as_arguments_and_decorated_models() -> None:
    a, b = (tj.Sequential([tj.layers.Dense(2, input_shape=(3,))]) for _ in range(2))
    x = tj.ones((4, 3))
    f, g = tj.function(lambda model, x: model(x)), tj.function(a)
    for model in (a, b, a, b):
        np.testing.assert_allclose(f(model, x).numpy(), model(x).numpy(), rtol=1e-6)
    np.testing.assert_allclose(g(x).numpy(), a(x).numpy(), rtol=1e-6)
    assert f.trace_count == 2 and g.trace_count == 1


def test_names_that_users_like_are_free(tmp_path: Any) -> None:
    class Cell(Module):
        def __init__(self) -> None:
            self.weights = [tj.Variable([1.0, 2.0])]
            self.state = tj.Variable(0.0)

    cell = Cell()
    assert list(cell.named_variables()) == ["weights/0", "state"] and len(cell.get_weights()) == 2
    checkpoint = tj.Checkpoint(tmp_path, cell=cell)
    checkpoint.save(1)
    cell.state.assign(5.0)
    checkpoint.restore()
    assert cell.state.item() == 0.0
