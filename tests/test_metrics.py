"""Metrics over batches against NumPy over all samples at once; inside compiled steps; weights, resets, state.

The references are written from the definitions, in float64, independently of the package.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracejit as tj

M = tj.metrics


def random() -> np.random.Generator:
    return np.random.default_rng(5)


def batches(*arrays: Any, size: int = 7) -> list[tuple[Any, ...]]:
    return [tuple(a[k : k + size] for a in arrays) for k in range(0, len(arrays[0]), size)]


def total(metric: Any, *arrays: Any, how: str = "eager") -> np.ndarray:
    """The result over batches of seven."""
    update = tj.function(metric.update_state) if how == "compiled" else metric.update_state
    for batch in batches(*arrays):
        update(*batch)
    return metric.result().numpy()


def top(p: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-p, axis=-1)[..., :k]


N = 40
P = random().uniform(0, 1, (N, 6))
LABELS = random().integers(0, 6, N)
HOT = np.eye(6)[LABELS]
BITS = (random().uniform(0, 1, N) < 0.4).astype(float)
SCORES = np.clip(BITS * 0.3 + random().uniform(0, 0.8, N), 0, 1)
REAL, GUESS = random().normal(size=(N, 3)), random().normal(size=(N, 3)) + 0.5
W = random().uniform(0, 2, N)


def rates(y: np.ndarray, p: np.ndarray, w: np.ndarray, threshold: float = 0.5) -> tuple[float, float, float, float]:
    """Weights of true positives, false positives, true negatives, false negatives."""
    yes = p > threshold
    y = y > 0
    return tuple((w * x).sum() for x in (yes & y, yes & ~y, ~yes & ~y, ~yes & y))  # type: ignore[return-value]


def precision(y: np.ndarray, p: np.ndarray, w: np.ndarray) -> float:
    tp, fp, _, _ = rates(y, p, w)
    return tp / (tp + fp)


def recall(y: np.ndarray, p: np.ndarray, w: np.ndarray) -> float:
    tp, _, _, fn = rates(y, p, w)
    return tp / (tp + fn)


def average(x: np.ndarray, w: np.ndarray) -> float:
    return float((x * w).sum() / w.sum())


CASES = {
    "accuracy": (M.Accuracy, LABELS, P.argmax(-1), lambda y, p, w: average(y == p, w)),
    "binary": (M.BinaryAccuracy, BITS, SCORES, lambda y, p, w: average(y == (p > 0.5), w)),
    "binary 0.3": (lambda: M.BinaryAccuracy(threshold=0.3), BITS, SCORES, lambda y, p, w: average(y == (p > 0.3), w)),
    "categorical": (M.CategoricalAccuracy, HOT, P, lambda y, p, w: average(y.argmax(-1) == p.argmax(-1), w)),
    "sparse": (M.SparseCategoricalAccuracy, LABELS, P, lambda y, p, w: average(y == p.argmax(-1), w)),
    "sparse column": (M.SparseCategoricalAccuracy, LABELS[:, None], P,
                      lambda y, p, w: average(y[:, 0] == p.argmax(-1), w)),
    "top 2": (lambda: M.TopKCategoricalAccuracy(2), HOT, P,
              lambda y, p, w: average((top(p, 2) == y.argmax(-1)[:, None]).any(-1), w)),
    "sparse top 5": (M.SparseTopKCategoricalAccuracy, LABELS, P,
                     lambda y, p, w: average((top(p, 5) == y[:, None]).any(-1), w)),
    "mse": (M.MeanSquaredError, REAL, GUESS, lambda y, p, w: average(((y - p) ** 2).mean(-1), w)),
    "rmse": (M.RootMeanSquaredError, REAL, GUESS, lambda y, p, w: np.sqrt(average(((y - p) ** 2).mean(-1), w))),
    "mae": (M.MeanAbsoluteError, REAL, GUESS, lambda y, p, w: average(np.abs(y - p).mean(-1), w)),
    "crossentropy": (M.SparseCategoricalCrossentropy, LABELS, P,
                     lambda y, p, w: average(-np.log((p / p.sum(-1, keepdims=True))[np.arange(N), y]), w)),
    "precision": (M.Precision, BITS, SCORES, precision),
    "recall": (M.Recall, BITS, SCORES, recall),
    "true positives": (M.TruePositives, BITS, SCORES, lambda y, p, w: rates(y, p, w)[0]),
    "false positives": (M.FalsePositives, BITS, SCORES, lambda y, p, w: rates(y, p, w)[1]),
    "true negatives": (M.TrueNegatives, BITS, SCORES, lambda y, p, w: rates(y, p, w)[2]),
    "false negatives": (M.FalseNegatives, BITS, SCORES, lambda y, p, w: rates(y, p, w)[3]),
}  # fmt: skip


@pytest.mark.parametrize("how", ["eager", "compiled"])
@pytest.mark.parametrize("name", CASES)
def test_formula(name: str, how: str) -> None:
    make, y, p, formula = CASES[name]
    np.testing.assert_allclose(total(make(), y, p, how=how), formula(y, p, np.ones(N)), rtol=1e-6)
    metric = make()
    np.testing.assert_allclose(total(metric, y, p, W, how=how), formula(y, p, W), rtol=1e-6)
    assert metric.result().dtype == np.float32
    metric.reset_state()
    np.testing.assert_allclose(metric(y, p).numpy(), formula(y, p, np.ones(N)), rtol=1e-6)


def test_mean_and_sum() -> None:
    mean, add = M.Mean(), M.Sum()
    assert mean.result().item() == 0
    for m in (mean, add):
        m.update_state([[1.0, 2.0], [3.0, 4.0]])
        m.update_state(10, sample_weight=2.0)
    assert mean.result().item() == 30 / 6 and add.result().item() == 30
    mean.reset_state()
    mean.update_state(np.array([[1.0, 3.0], [5.0, 7.0]]), sample_weight=[1.0, 0.0])  # one weight for each row
    assert mean.result().item() == 2.0
    mean.update_state([1.0, 1.0], sample_weight=[0.0, 0.0])
    assert mean.result().item() == 2.0
    with pytest.raises(ValueError, match="sample_weight of shape"):
        mean.update_state([1.0, 2.0], sample_weight=[1.0, 2.0, 3.0])


@pytest.mark.parametrize("metric", [M.categorical_accuracy, M.top_k_categorical_accuracy])
@pytest.mark.parametrize("labels", [[0, 2, 1], [[0], [2], [1]]])
def test_numbers_of_classes_are_no_one_hot_targets(metric: Any, labels: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{metric.__name__}: .*shape \(3, 3\).* take sparse_{metric.__name__}"):
        metric(np.array(labels), np.eye(3))


def test_sums_are_kept_in_double_precision() -> None:
    metric = M.Mean()
    metric.update_state(np.float32([1.0] * 3), sample_weight=1e8)
    metric.update_state(np.float32(2.0))
    assert metric.total.numpy() == 3e8 + 2 and metric.count.numpy() == 3e8 + 1


def test_thresholds_top_k_and_class() -> None:
    many = M.Precision(thresholds=[0.25, 0.75])
    got = total(many, BITS, SCORES)
    want = []
    for t in (0.25, 0.75):
        tp, fp, _, _ = rates(BITS, SCORES, np.ones(N), t)
        want.append(tp / (tp + fp))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    two = np.zeros_like(P)
    np.put_along_axis(two, top(P, 2), 1.0, -1)
    np.testing.assert_allclose(total(M.Precision(top_k=2), HOT, P), (two * HOT).sum() / two.sum(), rtol=1e-6)
    np.testing.assert_allclose(total(M.Recall(class_id=3), HOT, P),
                               ((P[:, 3] > 0.5) & (LABELS == 3)).sum() / (LABELS == 3).sum(), rtol=1e-6)
    assert M.Precision()([0.0, 1.0], [0.0, 0.0]).item() == 0
    with pytest.raises(ValueError, match="must be within"):
        M.Recall(thresholds=1.5)


def area(x: np.ndarray, y: np.ndarray) -> float:
    order = np.lexsort((y, x))
    return float(np.trapezoid(y[order], x[order]))


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_area_under_the_curve(how: str) -> None:
    for w in (np.ones(N), W):
        thresholds = [-1e-7, *np.linspace(0, 1, 200)[1:-1], 1 + 1e-7]
        points = np.array([rates(BITS, SCORES, w, t) for t in thresholds])
        tp, fp, tn, fn = points.T
        got = total(M.AUC(), BITS, SCORES, w, how=how)
        np.testing.assert_allclose(got, area(fp / (fp + tn), tp / (tp + fn)), rtol=1e-5)
        low = total(M.AUC(summation_method="minoring"), BITS, SCORES, w)
        high = total(M.AUC(summation_method="majoring"), BITS, SCORES, w)
        assert low <= got <= high
        # all pairs of a positive and a negative: how often the positive has the higher score
        yes, no = BITS > 0, BITS == 0
        pairs = (SCORES[yes][:, None] > SCORES[no]) + 0.5 * (SCORES[yes][:, None] == SCORES[no])
        exact = (pairs * w[yes][:, None] * w[no]).sum() / (w[yes].sum() * w[no].sum())
        np.testing.assert_allclose(got, exact, atol=0.01)
    given = total(M.AUC(thresholds=[0.2, 0.5, 0.8]), BITS, SCORES)
    points = np.array([rates(BITS, SCORES, np.ones(N), t) for t in (-1e-7, 0.2, 0.5, 0.8, 1 + 1e-7)])
    tp, fp, tn, fn = points.T
    np.testing.assert_allclose(given, area(fp / (fp + tn), tp / (tp + fn)), rtol=1e-6)


def test_area_under_precision_and_recall() -> None:
    """Two steps by hand: from 1 of 1 chosen to 2 of 4, precision goes along (2/3 + c/3) / c; and a fine curve against
    its sum of rectangles."""
    metric = M.AUC(num_thresholds=3, curve="PR")
    want = 0.5 + (1 / 3) * (1 + 2 / 3 * np.log(4)) / 2
    np.testing.assert_allclose(metric([0, 0, 1, 1], [0, 0.5, 0.3, 0.9]).item(), want, rtol=1e-6)
    got = total(M.AUC(num_thresholds=2000, curve="PR"), BITS, SCORES)
    order = np.argsort(-SCORES)
    hits = np.cumsum(BITS[order])
    steps = (BITS[order] * hits / np.arange(1, N + 1)).sum() / BITS.sum()
    np.testing.assert_allclose(got, steps, atol=0.03)
    logit = np.log((SCORES + 1e-6) / (1 - SCORES + 1e-6))
    np.testing.assert_allclose(total(M.AUC(from_logits=True), BITS, logit), total(M.AUC(), BITS, SCORES), rtol=1e-3)
    with pytest.raises(ValueError, match="curve is 'ROC' or 'PR'"):
        M.AUC(curve="pr")


@pytest.mark.parametrize("average", [None, "micro", "macro", "weighted"])
@pytest.mark.parametrize("threshold", [None, 0.5])
def test_f_score(average: Any, threshold: Any) -> None:
    chosen = (P == P.max(-1, keepdims=True)) if threshold is None else P > threshold
    axis = None if average == "micro" else 0
    tp, fp, fn = ((x).sum(axis) for x in (chosen * HOT, chosen * (1 - HOT), (1 - chosen) * HOT))
    for beta, metric in ((1.0, M.F1Score(average, threshold)), (2.0, M.FBetaScore(average, 2.0, threshold))):
        each = (1 + beta**2) * tp / ((1 + beta**2) * tp + beta**2 * fn + fp)
        want = {None: each, "micro": each, "macro": np.mean(each), "weighted": (each * HOT.sum(0)).sum() / N}[average]
        np.testing.assert_allclose(total(metric, HOT, P), want, rtol=1e-6)
    metric.reset_state()
    assert not metric.result().numpy().any()


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_confusion_matrix(how: str) -> None:
    want = np.zeros((6, 6))
    np.add.at(want, (LABELS, P.argmax(-1)), 1)
    np.testing.assert_array_equal(total(M.ConfusionMatrix(6), LABELS, P, how=how), want)
    np.testing.assert_array_equal(total(M.ConfusionMatrix(6), LABELS, P.argmax(-1), how=how), want)
    weighted = np.zeros((6, 6))
    np.add.at(weighted, (LABELS, P.argmax(-1)), W)
    np.testing.assert_allclose(total(M.ConfusionMatrix(6), LABELS, P, W), weighted, rtol=1e-6)
    with pytest.raises(IndexError):
        M.ConfusionMatrix(3).update_state([0, 3], [0, 0])
    with pytest.raises(IndexError):
        M.ConfusionMatrix(3).update_state([0, -1], [0, 0])


def test_inside_a_training_step() -> None:
    """State is updated by compiled code without a new trace, and saved and loaded with names."""
    seen, right = M.Mean(name="loss"), M.SparseCategoricalAccuracy()

    @tj.function
    def step(y: tj.Tensor, p: tj.Tensor) -> tj.Tensor:
        seen.update_state(tj.losses.sparse_categorical_crossentropy(y, p))
        right.update_state(y, p)
        return right.result()

    for k in range(0, N, 8):
        running = step(tj.asarray(LABELS[k : k + 8]), tj.asarray(P[k : k + 8]))
    assert step.trace_count == 1
    assert running.item() == pytest.approx((LABELS == P.argmax(-1)).mean(), rel=1e-6)
    assert list(seen.named_variables()) == ["total", "count"] and int(seen.count) == N
    again = M.Mean()
    again.load_state(seen.state())
    assert again.result().item() == seen.result().item()
    right.reset_state()
    assert right.result().item() == 0 and step(tj.asarray(LABELS[:8]), tj.asarray(P[:8])).item() <= 1
    assert step.trace_count == 1


def test_names() -> None:
    assert type(M.get("auc")) is M.AUC and type(M.get("sparse_categorical_accuracy")) is M.SparseCategoricalAccuracy
    assert type(M.get("accuracy", tj.losses.BinaryCrossentropy())) is M.BinaryAccuracy
    assert type(M.get("accuracy", tj.losses.CategoricalCrossentropy())) is M.CategoricalAccuracy
    logits = M.get("acc", tj.losses.BinaryCrossentropy(from_logits=True))
    assert logits([1.0, 0.0], [0.2, -0.2]).item() == 1.0 and logits.name == "acc"
    own = M.get(lambda y, p: abs(y - p))
    assert own([1.0], [3.0]).item() == 2.0
    with pytest.raises(ValueError, match="no metric is called 'acuracy'; known: "):
        M.get("acuracy")
    assert repr(M.AUC()) == "<tj.metrics.AUC auc>"
