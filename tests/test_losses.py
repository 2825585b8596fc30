"""Losses against their formulas in NumPy, in float64; reductions and weights; extreme values; gradients to second
order; the same eager and compiled.

The references are written from Keras 3's documentation, independently of the package.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj

L = tj.losses
EPS = 1e-7
Formula = Callable[[np.ndarray, np.ndarray], np.ndarray]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def binary(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    p = np.clip(p, EPS, 1 - EPS)
    return -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean(-1)


def categorical(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    return -(y * np.log(np.clip(p / p.sum(-1, keepdims=True), EPS, 1 - EPS))).sum(-1)


def sparse(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    return categorical(np.eye(p.shape[-1])[y.astype(int)], p)


def huber(y: np.ndarray, p: np.ndarray, d: float) -> np.ndarray:
    e = np.abs(y - p)
    return np.where(e <= d, e * e / 2, d * e - d * d / 2).mean(-1)


def random() -> np.random.Generator:
    return np.random.default_rng(11)


def real() -> tuple[np.ndarray, np.ndarray]:
    r = random()
    return r.normal(size=(5, 4)) * 2, r.normal(size=(5, 4)) * 2


def positive() -> tuple[np.ndarray, np.ndarray]:
    r = random()
    return r.uniform(0.1, 3, (5, 4)), r.uniform(0.1, 3, (5, 4))


def signs() -> tuple[np.ndarray, np.ndarray]:
    r = random()
    return r.choice([-1.0, 1.0], (5, 4)), r.normal(size=(5, 4))


def bits() -> tuple[np.ndarray, np.ndarray]:
    r = random()
    return r.choice([0.0, 1.0], (5, 4)), r.uniform(0.05, 0.95, (5, 4))


def one_hot() -> tuple[np.ndarray, np.ndarray]:
    r = random()
    return np.eye(4)[r.integers(0, 4, 5)], r.uniform(0.05, 0.95, (5, 4))


def distributions() -> tuple[np.ndarray, np.ndarray]:
    return tuple(softmax(x) for x in real())


def classes() -> tuple[np.ndarray, np.ndarray]:
    r = random()
    return r.integers(0, 4, 5), r.uniform(0.05, 0.95, (5, 4))


def logits_of(kind: Callable[[], tuple[np.ndarray, np.ndarray]]) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    return lambda: (kind()[0], random().normal(size=(5, 4)) * 3)


# name: the loss, inputs, the formula of each sample
CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[np.ndarray, np.ndarray]], Formula]] = {
    "mse": (L.MeanSquaredError, real, lambda y, p: ((y - p) ** 2).mean(-1)),
    "mae": (L.MeanAbsoluteError, real, lambda y, p: np.abs(y - p).mean(-1)),
    "mape": (L.MeanAbsolutePercentageError, real, lambda y, p: 100 * (np.abs(y - p) / np.abs(y)).mean(-1)),
    "msle": (L.MeanSquaredLogarithmicError, positive, lambda y, p: ((np.log1p(y) - np.log1p(p)) ** 2).mean(-1)),
    "huber": (L.Huber, real, lambda y, p: huber(y, p, 1.0)),
    "huber 2": (lambda **k: L.Huber(2.0, **k), real, lambda y, p: huber(y, p, 2.0)),
    "log_cosh": (L.LogCosh, real, lambda y, p: np.log(np.cosh(p - y)).mean(-1)),
    "hinge": (L.Hinge, signs, lambda y, p: np.maximum(1 - y * p, 0).mean(-1)),
    "hinge of bits": (L.Hinge, bits, lambda y, p: np.maximum(1 - (2 * y - 1) * p, 0).mean(-1)),
    "squared_hinge": (L.SquaredHinge, signs, lambda y, p: (np.maximum(1 - y * p, 0) ** 2).mean(-1)),
    "categorical_hinge": (L.CategoricalHinge, one_hot,
                          lambda y, p: np.maximum(((1 - y) * p).max(-1) - (y * p).sum(-1) + 1, 0)),
    "kl": (L.KLDivergence, distributions, lambda y, p: (y * np.log(y / p)).sum(-1)),
    "poisson": (L.Poisson, positive, lambda y, p: (p - y * np.log(p + EPS)).mean(-1)),
    "cosine": (L.CosineSimilarity, real, lambda y, p: -(unit(y) * unit(p)).sum(-1)),
    "binary": (L.BinaryCrossentropy, bits, binary),
    "binary smoothed": (lambda **k: L.BinaryCrossentropy(label_smoothing=0.2, **k), bits,
                        lambda y, p: binary(y * 0.8 + 0.1, p)),
    "binary logits": (lambda **k: L.BinaryCrossentropy(from_logits=True, **k), logits_of(bits),
                      lambda y, x: binary(y, 1 / (1 + np.exp(-x)))),
    "categorical": (L.CategoricalCrossentropy, one_hot, categorical),
    "categorical smoothed": (lambda **k: L.CategoricalCrossentropy(label_smoothing=0.2, **k), one_hot,
                             lambda y, p: categorical(y * 0.8 + 0.05, p)),
    "categorical logits": (lambda **k: L.CategoricalCrossentropy(from_logits=True, **k), logits_of(one_hot),
                           lambda y, x: categorical(y, softmax(x))),
    "sparse": (L.SparseCategoricalCrossentropy, classes, sparse),
    "sparse logits": (lambda **k: L.SparseCategoricalCrossentropy(from_logits=True, **k), logits_of(classes),
                      lambda y, x: sparse(y, softmax(x))),
}  # fmt: skip

WEIGHTS = np.array([0.5, 2.0, 0.0, 1.0, 3.0])


@pytest.mark.parametrize("name", CASES)
def test_formula(name: str) -> None:
    make, inputs, formula = CASES[name]
    y, p = inputs()
    want = formula(y, p)
    for reduction, value in {
        "none": want, None: want, "sum": want.sum(), "mean": want.mean(), "sum_over_batch_size": want.mean(),
        "mean_with_sample_weight": want.mean(),
    }.items():  # fmt: skip
        np.testing.assert_allclose(make(reduction=reduction)(y, p).numpy(), value, rtol=1e-10, atol=1e-13)
    for reduction, value in {
        "none": want * WEIGHTS, "sum": (want * WEIGHTS).sum(), "sum_over_batch_size": (want * WEIGHTS).mean(),
        "mean_with_sample_weight": (want * WEIGHTS).sum() / WEIGHTS.sum(),
    }.items():  # fmt: skip
        loss = make(reduction=reduction)
        np.testing.assert_allclose(loss(y, p, WEIGHTS).numpy(), value, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(loss(y, p, sample_weight=WEIGHTS[:, None]).numpy(), value, rtol=1e-10, atol=1e-13)
    loss = make()
    compiled = tj.function(loss)
    np.testing.assert_allclose(compiled(y, p, WEIGHTS).numpy(), (want * WEIGHTS).mean(), rtol=1e-10)
    single = loss(y, p.astype("float32"))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single.numpy(), want.mean(), rtol=2e-5)


def gradient_cases() -> dict[str, tuple[Any, Any, Any]]:
    """Losses with targets and predictions: those of the table above and CTC."""
    labels = np.array([[1, 2], [1, 1], [2, 0]])
    cases = {name: (make(), *inputs()) for name, (make, inputs, _) in CASES.items()}
    return cases | {"ctc": (L.CTC(), labels, random().normal(size=(3, 4, 3)))}


GRADIENT_CASES = gradient_cases()


def test_every_loss_has_gradient_cases() -> None:
    """Every class by name; every function as that of a class, which is what it calls."""
    classes = [getattr(L, name) for name in L.__all__ if inspect.isclass(getattr(L, name))]
    assert {type(loss) for loss, _, _ in GRADIENT_CASES.values()} == set(classes) - {L.Loss}
    functions = {getattr(L, name) for name in L.__all__ if inspect.isfunction(getattr(L, name))}
    assert functions - {L.get, L.ctc_loss} == {c.function for c in classes if c is not L.Loss}


@pytest.mark.parametrize("name", GRADIENT_CASES)
def test_gradients(name: str) -> None:
    """To second order in both modes, against finite differences; away from kinks."""
    loss, y, p = GRADIENT_CASES[name]
    tj.check_grads(lambda p: tj.exp(loss(y, p) / 9), (tj.asarray(p),), order=2, atol=1e-6, rtol=1e-6)


def test_integer_targets_and_default_floats() -> None:
    assert L.MeanSquaredError()([1, 2], [1, 4]).dtype == np.float32
    assert L.MeanSquaredError()(np.array([1, 2]), np.array([1.0, 4.0])).item() == 2.0


def test_shapes_that_differ_by_a_last_dim_of_one() -> None:
    y, p = np.array([0.0, 1.0, 1.0]), np.array([[0.25], [0.5], [0.75]])
    assert L.mean_squared_error(y, p).shape == (3,)
    np.testing.assert_allclose(L.mean_squared_error(y, p).numpy(), [0.0625, 0.25, 0.0625])
    np.testing.assert_allclose(L.mean_squared_error(p, y).numpy(), [0.0625, 0.25, 0.0625])
    assert L.mean_squared_error(np.zeros((3, 2, 1)), np.zeros((3, 2))).shape == (3,)
    labels = np.array([[0], [1], [0]])
    logits = np.zeros((3, 2))
    np.testing.assert_allclose(L.sparse_categorical_crossentropy(labels, logits, True).numpy(), np.log(2) * np.ones(3))
    with pytest.raises(ValueError, match=r"targets of shape \(2,\) do not fit predictions of shape \(3, 2\)"):
        L.sparse_categorical_crossentropy([0, 1], logits, True)
    with pytest.raises(ValueError, match="mean_squared_error"):
        L.mean_squared_error(np.zeros((3, 2)), np.zeros((3, 4)))


@pytest.mark.parametrize("labels", [np.array([0, 2, 1]), np.array([[0], [2], [1]])])
def test_numbers_of_classes_are_no_one_hot_targets(labels: np.ndarray) -> None:
    """With as many samples as classes, or a last dim of one, they would broadcast to a number that means nothing."""
    for call in (L.categorical_crossentropy, tj.function(L.categorical_crossentropy)):
        with pytest.raises(ValueError, match=r"do not fit predictions of shape \(3, 3\).*take sparse_categorical"):
            call(labels, np.eye(3))
    with pytest.raises(ValueError, match=r"binary_crossentropy: targets of shape .* do not fit predictions"):
        L.binary_crossentropy(labels, np.eye(3))


def test_weights_of_samples_with_several_losses() -> None:
    """Losses of shape (2, 3): one weight for each sample, for each loss, or for each row of three."""
    y, p = np.zeros((2, 3, 4)), random().normal(size=(2, 3, 4))
    each = (p**2).mean(-1)
    loss = L.MeanSquaredError(reduction="sum")
    w = np.array([1.0, 3.0])
    np.testing.assert_allclose(loss(y, p, w).item(), (each * w[:, None]).sum())
    np.testing.assert_allclose(loss(y, p, each).item(), (each * each).sum())
    np.testing.assert_allclose(loss(y, p, each[..., None]).item(), (each * each).sum())
    np.testing.assert_allclose(loss(y, p, np.array([1.0, 0.0, 2.0])).item(), (each * [1, 0, 2]).sum())
    np.testing.assert_allclose(loss(y, p, 2.0).item(), 2 * each.sum())
    with pytest.raises(ValueError, match=r"sample_weight of shape \(4,\) does not fit values of shape \(2, 3\)"):
        loss(y, p, np.ones(4))


def test_ignored_classes() -> None:
    x, y = random().normal(size=(4, 3)), np.array([0, -1, 2, -1])
    logp = np.log(softmax(x))
    want = np.array([-logp[0, 0], 0, -logp[2, 2], 0])
    for loss, value in ((L.SparseCategoricalCrossentropy(True, -1, reduction="none"), want),
                        (L.SparseCategoricalCrossentropy(True, -1), want.sum() / 2),
                        (L.SparseCategoricalCrossentropy(True, -1, "sum"), want.sum())):
        np.testing.assert_allclose(loss(y, x).numpy(), value, rtol=1e-12)
    assert L.SparseCategoricalCrossentropy(True, -1)([-1, -1], x[:2]).item() == 0
    g = tj.grad(lambda x: L.SparseCategoricalCrossentropy(True, -1)(y, x))(tj.asarray(x)).numpy()
    assert not g[[1, 3]].any() and g[[0, 2]].all()


def test_classes_along_another_axis() -> None:
    x, y = random().normal(size=(2, 3, 5)), random().integers(0, 3, (2, 5))
    want = -np.log(softmax(np.moveaxis(x, 1, -1)))
    want = np.take_along_axis(want, y[..., None], -1)[..., 0]
    np.testing.assert_allclose(L.sparse_categorical_crossentropy(y, x, True, axis=1).numpy(), want)
    hot = np.moveaxis(np.eye(3)[y], -1, 1)
    np.testing.assert_allclose(L.categorical_crossentropy(hot, x, True, axis=1).numpy(), want)


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_extreme_logits(how: str) -> None:
    """No overflow, no cancellation: a confident right answer keeps its tiny loss, also in float32."""

    def run(loss: Any, y: Any, x: Any) -> tuple[np.ndarray, np.ndarray]:
        f = tj.value_and_grad(lambda x: loss(y, x))
        value, g = (tj.function(f) if how == "compiled" else f)(tj.asarray(np.float32(x)))
        return value.numpy(), g.numpy()

    loss = L.BinaryCrossentropy(from_logits=True, reduction="sum")
    for x, y in ((100.0, 0.0), (-100.0, 1.0), (20.0, 1.0), (-20.0, 0.0), (0.0, 1.0), (0.0, 0.0), (3e38, 1.0)):
        value, g = run(loss, np.float32([y]), [x])
        z = x if y == 0 else -x
        np.testing.assert_allclose(value, max(z, 0) + np.log1p(np.exp(-abs(z))), rtol=2e-6)
        slope = (1 if y == 0 else -1) / (1 + np.exp(-z)) if z > -700 else 0
        np.testing.assert_allclose(g, [slope], rtol=2e-6, atol=6e-8)
    loss = L.SparseCategoricalCrossentropy(from_logits=True)
    value, g = run(loss, np.array([0]), [[1e4, 0.0, -1e4]])
    assert value == 0 and not g.any()
    value, g = run(loss, np.array([1]), [[1e4, 0.0, -np.inf]])
    assert value == 1e4
    np.testing.assert_array_equal(g, [[1, -1, 0]])
    value, g = run(L.CategoricalCrossentropy(from_logits=True), np.float32([[0, 1, 0]]), [[0.0, 0.0, -np.inf]])
    np.testing.assert_allclose(value, np.log(2), rtol=1e-6)
    np.testing.assert_allclose(g, [[0.5, -0.5, 0]], rtol=1e-6)


def test_probabilities_of_zero_and_one() -> None:
    assert L.binary_crossentropy([1.0], [0.0]).item() == pytest.approx(-np.log(EPS), rel=1e-6)
    assert L.categorical_crossentropy([[1.0, 0.0]], [[0.0, 1.0]]).item() == pytest.approx(-np.log(EPS), rel=1e-6)
    assert np.isfinite(L.kl_divergence([[0.0, 1.0]], [[1.0, 0.0]]).item())
    assert L.cosine_similarity([[0.0, 0.0]], [[1.0, 0.0]]).item() == 0


def test_targets_that_are_no_class_give_nan() -> None:
    x = np.zeros((3, 2))
    for f in (L.sparse_categorical_crossentropy, tj.function(L.sparse_categorical_crossentropy)):
        assert np.isnan(f(np.array([0, 2, -1]), x, True).numpy()).tolist() == [False, True, True]


def by_all_alignments(labels: list[int], p: np.ndarray) -> float:
    """The probability of a label sequence: the sum over all paths of classes that read as it."""
    total = 0.0
    for path in itertools.product(range(p.shape[1]), repeat=len(p)):
        read = [c for c, _ in itertools.groupby(path) if c != 0]
        if read == labels:
            total += float(np.prod([row[c] for row, c in zip(p, path)]))
    return total


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_ctc(how: str) -> None:
    """Against the sum over all alignments; repeated labels need a blank between; padding and lengths."""
    x = random().normal(size=(4, 5, 3))
    labels = np.array([[1, 2, 1], [1, 1, 0], [2, 0, 0], [0, 0, 0]])
    want = [-np.log(by_all_alignments([c for c in row if c], p)) for row, p in zip(labels.tolist(), softmax(x))]
    ctc = tj.function(L.ctc_loss) if how == "compiled" else L.ctc_loss
    np.testing.assert_allclose(ctc(labels, x).numpy(), want, rtol=1e-10)
    assert L.CTC()(labels, x).item() == pytest.approx(np.mean(want))
    short = [-np.log(by_all_alignments([c for c in row if c], p[:3])) for row, p in zip(labels.tolist(), softmax(x))]
    np.testing.assert_allclose(ctc(labels, x, None, np.full(4, 3)).numpy(), short, rtol=1e-10)
    one = [-np.log(by_all_alignments([row[0]] if row[0] else [], p)) for row, p in zip(labels.tolist(), softmax(x))]
    np.testing.assert_allclose(ctc(labels, x, np.array([1, 1, 1, 0])).numpy(), one, rtol=1e-10)
    assert ctc(np.array([[1, 1]]), x[:1, :2]).item() == np.inf
    if how == "eager":
        tj.check_grads(lambda x: L.ctc(labels, x).sum(), (tj.asarray(x),), order=2, atol=1e-6, rtol=1e-6)
        with pytest.raises(ValueError, match="labels must be"):
            L.ctc([1, 2], x)


def test_empty_batches() -> None:
    assert L.MeanSquaredError()(np.zeros((0, 3)), np.zeros((0, 3))).item() == 0
    assert L.MeanSquaredError(reduction=None)(np.zeros((0, 3)), np.zeros((0, 3))).shape == (0,)


def test_names() -> None:
    for name, kind in {"mse": L.MeanSquaredError, "MeanSquaredError": L.MeanSquaredError, "mae": L.MeanAbsoluteError,
                       "sparse_categorical_crossentropy": L.SparseCategoricalCrossentropy,
                       "kl_divergence": L.KLDivergence}.items():  # fmt: skip
        assert type(L.get(name)) is kind
    own = L.get(lambda y, p: (y - p) ** 4)
    assert own([1.0], [3.0], sample_weight=0.5).item() == 8.0
    loss = L.Huber()
    assert L.get(loss) is loss
    with pytest.raises(ValueError, match="no loss is called 'mses'; known: "):
        L.get("mses")
    with pytest.raises(TypeError, match="not int"):
        L.get(1)
    with pytest.raises(ValueError, match="reduction is one of"):
        L.MeanSquaredError(reduction="average")
    with pytest.raises(ValueError, match="label_smoothing must be within"):
        L.BinaryCrossentropy(label_smoothing=2.0)


def test_one_kernel_for_the_loss_of_a_row() -> None:
    """Logits are read once for value and gradient together: no array of probabilities or one-hot rows in between."""
    loss = L.SparseCategoricalCrossentropy(from_logits=True)
    f = tj.function(tj.value_and_grad(lambda x, y: loss(y, x)))
    x, y = tj.zeros((32, 10)), tj.asarray(np.arange(32) % 10)
    f(x, y)
    assert len(f.kernels()) <= 2, [k.ops for k in f.kernels()]
