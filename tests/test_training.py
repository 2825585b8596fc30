"""Training: the loop as users write it, eager and compiled alike; `fit`, `evaluate`, `predict` and their callbacks."""

from __future__ import annotations

import copy
import csv
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.nn import progress

L, callbacks = tj.layers, tj.callbacks


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Real handwritten digits, 8 x 8."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return images.reshape(-1, 8, 8).astype("uint8"), labels.astype("int64")


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    return digits()


# -- the loop of a user's own ------------------------------------------------------------------------------------------
def losses_of(compiled: bool, steps: int) -> tuple[list[float], int]:
    """The program that TensorFlow's guide to eager execution made known."""
    images, labels = digits()
    tj.random.seed(7)
    dataset = tj.data.Dataset.from_tensor_slices(
        (tj.cast(images[..., tj.newaxis] / 16, tj.float32), tj.cast(labels, tj.int64))
    )
    dataset = dataset.take(32 * 50).shuffle(1000).batch(32)
    model = tj.Sequential(
        [
            L.Conv2D(16, [3, 3], activation="relu", input_shape=(None, None, 1)),
            L.Conv2D(16, [3, 3], activation="relu"),
            L.GlobalAveragePooling2D(),
            L.Dense(10),
        ]
    )
    for x, _ in dataset.take(1):
        assert model(x[0:1]).numpy().shape == (1, 10)
    optimizer = tj.optimizers.Adam()
    loss_object = tj.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss_history: list[float] = []

    def train_step(x: tj.Tensor, y: tj.Tensor) -> tj.Tensor:
        with tj.GradientTape() as tape:
            logits = model(x, training=True)
            tj.debugging.assert_equal(logits.shape, (32, 10))
            loss_value = loss_object(y, logits)
        if not compiled:
            loss_history.append(loss_value.numpy().mean())
        grads = tape.gradient(loss_value, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss_value

    step = tj.function(train_step) if compiled else train_step
    while len(loss_history) < steps:
        for x, y in dataset.take(steps - len(loss_history)):
            found = step(x, y)
            if compiled:
                loss_history.append(found.numpy().mean())
    return loss_history, step.trace_count if compiled else 0  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_program_of_the_guide_eager_and_compiled() -> None:
    compiled, traces = losses_of(True, 100)
    eager, _ = losses_of(False, 100)
    assert traces == 1
    np.testing.assert_allclose(compiled, eager, rtol=2e-4)
    assert compiled[0] == pytest.approx(np.log(10), rel=0.1) and np.mean(compiled[-20:]) < np.mean(compiled[:20]) - 0.02


def test_one_loop_for_own_modules() -> None:
    class Line(tj.Module):
        def __init__(self) -> None:
            self.w, self.b = tj.Variable(0.0), tj.Variable(0.0)

        def __call__(self, x: Any) -> Any:
            return self.w * x + self.b

    model, optimizer = Line(), tj.optimizers.SGD(0.1)
    x = np.linspace(-1, 1, 32, dtype="f4")

    @tj.function
    def step(x: Any, y: Any) -> Any:
        with tj.GradientTape() as tape:
            loss = ((model(x) - y) ** 2).mean()
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    for _ in range(300):
        step(x, 3 * x + 1)
    np.testing.assert_allclose([model.w.numpy(), model.b.numpy()], [3, 1], rtol=1e-3)


# -- fit ---------------------------------------------------------------------------------------------------------------
def classifier(**options: Any) -> tj.Sequential:
    tj.random.seed(0)
    model = tj.Sequential([L.Flatten(), L.Dense(32, activation="relu"), L.Dropout(0.1), L.Dense(10)])
    loss = tj.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tj.optimizers.Adam(0.005), loss, ["accuracy"], **options)
    return model


def scaled(images: np.ndarray) -> np.ndarray:
    return images / 16.0


def test_fit_learns_and_tells(data: Any) -> None:
    images, labels = data
    model = classifier()
    history = model.fit(scaled(images[:1500]), labels[:1500], epochs=8, verbose=0, validation_split=0.2)
    assert history.epoch == list(range(8))
    assert list(history.history) == ["loss", "accuracy", "val_loss", "val_accuracy"]
    assert history.history["accuracy"][-1] > 0.95 and history.history["val_accuracy"][-1] > 0.88
    loss, accuracy = model.evaluate(scaled(images[1500:]), labels[1500:], verbose=0)
    probabilities = model.predict(scaled(images[1500:]), verbose=0)
    assert probabilities.shape == (297, 10) and probabilities.dtype == np.float32
    assert accuracy == pytest.approx((probabilities.argmax(1) == labels[1500:]).mean(), abs=1e-6) and accuracy > 0.85
    shifted = probabilities.astype("f8") - probabilities.max(1, keepdims=True)
    expected = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(297), labels[1500:]]
    assert loss == pytest.approx(expected.mean(), rel=1e-5)
    assert "loss" in repr(history)


def test_fit_is_what_the_steps_are(data: Any) -> None:
    """Batches of 32 in order, the last one shorter, against a loop with torch's formulas in NumPy: gradient descent."""
    images, labels = data
    x, y = scaled(images[:70]).reshape(70, 64), labels[:70]
    model = tj.Sequential([L.Dense(10, kernel_initializer="zeros")])
    model.compile(tj.optimizers.SGD(0.5), tj.losses.SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    history = model.fit(x, y, epochs=2, shuffle=False, verbose=0)
    w, b = np.zeros((64, 10)), np.zeros(10)
    for epoch in range(2):
        total, right = 0.0, 0
        for k in (0, 32, 64):
            xs, ys = x[k : k + 32], y[k : k + 32]
            logits = xs @ w + b
            p = np.exp(logits - logits.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            total -= np.log(p[np.arange(len(ys)), ys]).sum()
            right += (logits.argmax(1) == ys).sum()
            p[np.arange(len(ys)), ys] -= 1
            w, b = w - 0.5 * xs.T @ p / len(ys), b - 0.5 * p.mean(0)
        assert history.history["loss"][epoch] == pytest.approx(total / 70, rel=1e-5)
        assert history.history["accuracy"][epoch] == pytest.approx(right / 70, abs=1e-6)
    np.testing.assert_allclose(model.layers[0].kernel.numpy(), w, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: [L.Flatten(), L.Dense(16, activation="relu"), L.Dropout(0.1)],
        lambda: [L.Reshape((8, 8, 1)), L.Conv2D(4, 3, activation="relu"), L.MaxPool2D(), L.Flatten()],
        lambda: [L.GRU(8)],
    ],
    ids=["dense", "convolution", "recurrent"],
)
def test_short_last_batches_compile_and_trace_nothing_more(make: Any, data: Any) -> None:
    images, labels = data
    model = tj.Sequential([*make(), L.Dense(10)])
    model.compile("adam", tj.losses.SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    for n in (100, 109):  # 32, 32, 32, 4 and 32, 32, 32, 13
        model.fit(scaled(images[:n]), labels[:n], batch_size=32, verbose=0)
    step = model._training.functions["train"]  # type: ignore[union-attr]
    compiles, traces = tj.stats().compiles, step.trace_count  # type: ignore[attr-defined]
    assert traces <= 3
    for n in (90, 77, 120, 87):
        model.fit(scaled(images[:n]), labels[:n], batch_size=32, verbose=0)
    assert tj.stats().compiles <= compiles + 1 and step.trace_count <= traces + 1  # type: ignore[attr-defined]


def test_eager_steps_give_the_same(data: Any) -> None:
    images, labels = data
    found = []
    for run_eagerly in (False, True):
        model = classifier(run_eagerly=run_eagerly)
        tj.random.seed(3)
        found.append(model.fit(scaled(images[:96]), labels[:96], epochs=2, verbose=0).history["loss"])
    np.testing.assert_allclose(*found, rtol=1e-4)


def test_data_of_every_kind(data: Any) -> None:
    images, labels = scaled(data[0][:96]).astype("f4"), data[1][:96]
    dataset = tj.data.Dataset.from_tensor_slices((images, labels)).batch(32)

    def generator() -> Iterator[Any]:
        for k in range(0, 96, 32):
            yield images[k : k + 32], labels[k : k + 32]

    found = []
    for given in ((images, labels), (dataset,), (generator,), (list(generator())[0:0] or _Again(generator),)):
        model = classifier()
        tj.random.seed(3)
        found.append(model.fit(*given, epochs=2, shuffle=False, verbose=0).history["loss"])
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-6)
    model = classifier()
    endless = dataset.repeat()
    history = model.fit(endless, steps_per_epoch=5, epochs=2, verbose=0, validation_data=dataset, validation_steps=2)
    assert len(history.history["val_loss"]) == 2 and int(model.optimizer.iterations) == 10
    once = iter(generator())
    model.fit(once, steps_per_epoch=1, epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == 12
    of_dataset, of_arrays = model.predict(dataset, verbose=0), model.predict(images, verbose=0)
    np.testing.assert_allclose(of_dataset, of_arrays, rtol=1e-5, atol=1e-6)
    assert model.evaluate(dataset, verbose=0, return_dict=True).keys() == {"loss", "accuracy"}


class _Again:
    """An iterable that is no iterator."""

    def __init__(self, make: Any):
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return self.make()  # type: ignore[no-any-return]


def test_weights_of_samples_and_classes(data: Any) -> None:
    images, labels = scaled(data[0][:64]), data[1][:64]
    results = []
    weights = np.where(labels == 3, 5.0, 1.0)
    for options in ({"sample_weight": weights}, {"class_weight": {3: 5.0}}):
        model = classifier()
        tj.random.seed(3)
        results.append(model.fit(images, labels, epochs=2, verbose=0, **options).history["loss"])
    np.testing.assert_allclose(*results, rtol=1e-5)
    plain, weighted = (model.evaluate(images, labels, sample_weight=w, verbose=0) for w in (None, weights))
    assert plain[0] != weighted[0] and plain[1] == weighted[1]
    model.compile("sgd", model._training.loss, ["accuracy"], weighted_metrics=["acc"])
    found = model.evaluate(images, labels, sample_weight=weights, verbose=0, return_dict=True)
    right = model.predict(images, verbose=0).argmax(axis=-1) == labels
    assert found["accuracy"] == pytest.approx(right.mean())
    assert found["acc"] == pytest.approx(np.average(right, weights=weights)) and found["acc"] != found["accuracy"]


def test_several_inputs_and_outputs() -> None:
    class Two(tj.Model):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = L.Dense(1), L.Dense(2)

        def call(self, inputs: Any) -> Any:
            x, z = inputs["x"], inputs["z"]
            return {"a": self.a(x), "b": self.b(z)}

    x, z = np.random.default_rng(0).normal(size=(64, 3)), np.random.default_rng(1).normal(size=(64, 2))
    model = Two()
    model.compile(tj.optimizers.Adam(0.05), {"a": "mse", "b": "mae"})
    targets = {"a": x[:, :1] * 2, "b": z + 1}
    history = model.fit({"x": x, "z": z}, targets, epochs=60, verbose=0)
    assert history.history["loss"][-1] < 0.05 * history.history["loss"][0]
    predicted = model.predict({"x": x, "z": z}, verbose=0)
    assert predicted["a"].shape == (64, 1) and predicted["b"].shape == (64, 2)


def test_a_step_of_ones_own(data: Any) -> None:
    class Doubling(tj.Sequential):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tj.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = 2 * self.compute_loss(x, y, y_pred)
                if loss > 1e9:  # a branch on a value, compiled
                    loss = loss * 0
            self.optimizer.apply_gradients(
                zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            )
            return {"twice": loss}

    model = Doubling([L.Flatten(), L.Dense(10)])
    model.compile("sgd", tj.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(scaled(data[0][:64]), data[1][:64], epochs=2, verbose=0)
    assert list(history.history) == ["twice"] and history.history["twice"][0] > 2


def test_a_model_may_have_an_optimizer_of_its_own(data: Any) -> None:
    class Own(tj.Model):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.optimizer, self.run = L.Dense(10), tj.optimizers.Adam(), "mine"

        def call(self, x: Any) -> Any:
            return self.head(x.reshape(x.shape[0], 64))

        @tj.function
        def learn(self, x: Any, y: Any) -> Any:
            with tj.GradientTape() as tape:
                loss = tj.losses.SparseCategoricalCrossentropy(from_logits=True)(y, self(x, training=True))
            self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
            return loss

    model = Own()
    x, y = scaled(data[0][:64]).astype("f4"), data[1][:64]
    losses = [model.learn(x, y).item() for _ in range(20)]
    assert losses[-1] < losses[0] and len(model.variables) == 2
    model.compile("sgd", tj.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, verbose=0)
    assert isinstance(model.optimizer, tj.optimizers.SGD) and model.run == "mine"


def test_a_model_predicts_without_compile_and_is_traced_once(data: Any) -> None:
    images = scaled(data[0][:64])
    model = tj.Sequential([L.Flatten(), L.Dense(10)])
    expected = model.predict(images, verbose=0)
    before = tj.stats().traces
    np.testing.assert_array_equal(model.predict(images, verbose=0), expected)
    assert tj.stats().traces == before
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other.predict(images, verbose=0), expected)


def test_single_batches(data: Any) -> None:
    images, labels = scaled(data[0][:32]), data[1][:32]
    model = classifier()
    first = model.train_on_batch(images, labels, return_dict=True)
    assert first["loss"] == pytest.approx(np.log(10), rel=0.5)
    model.reset_metrics()
    assert len(model.test_on_batch(images, labels)) == 2
    assert model.predict_on_batch(images).shape == (32, 10)
    assert model.metrics_names == ["loss", "accuracy"]


def test_wrong_data_and_order_are_named(data: Any) -> None:
    images, labels = scaled(data[0][:8]), data[1][:8]
    model = tj.Sequential([L.Flatten(), L.Dense(10)])
    with pytest.raises(RuntimeError, match=r"fit: say first what the model is trained with: model.compile"):
        model.fit(images, labels)
    model = classifier()
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((images, labels[:5]), {}, r"equally many rows, got shapes \[\(8, 8, 8\), \(5,\)\]"),
        ((images[:0], labels[:0]), {}, "the arrays have no rows"),
        ((None, None), {}, "there is no data"),
        ((images, labels), {"batch_size": 0}, "batch_size must be at least 1"),
        ((images, labels), {"validation_split": 1.5}, "validation_split must be between 0 and 1"),
        ((images, labels), {"verbose": 7}, "verbose must be 0"),
        ((iter([]),), {}, "there are no batches in epoch 1"),
        ((iter([(images,) * 4]),), {}, r"a batch is x, \(x, y\) or \(x, y, weights\), got a tuple of 4"),
        ((tj.data.Dataset.from_tensor_slices((images, labels)),), {},
         r"x and y of a batch need a first dim .* got shapes \[\(8, 8\), \(\)\]; .* needs .batch\(n\)"),
        ((tj.data.Dataset.range(3), labels), {}, "y cannot be given with a Dataset"),
        ((tj.data.Dataset.range(3).repeat(),), {}, "the dataset has no end"),
    ]
    for args, options, message in wrong:
        with pytest.raises(ValueError, match=message):
            model.fit(*args, **{"verbose": 0, **options})
    model.compile("adam")
    with pytest.raises(ValueError, match="compile was given no loss"):
        model.fit(images, labels, verbose=0)
    with pytest.raises(ValueError, match="two metrics are called 'accuracy'"):
        model.compile("adam", "mse", ["accuracy", "accuracy"])
    with pytest.raises(TypeError, match=r"a callback is a tj.callbacks.Callback, got <function"):
        classifier().fit(images, labels, verbose=0, callbacks=[lambda: None])


# -- what is shown -----------------------------------------------------------------------------------------------------
def test_progress(data: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = scaled(data[0][:64]), data[1][:64]
    model = classifier()
    model.fit(images, labels, epochs=2, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[1].startswith("Epoch 2/2 - ") and "loss: " in lines[1] and "accuracy: " in lines[1]
    model.fit(images, labels, verbose=1)
    shown = capsys.readouterr().err
    assert "Epoch 1/1" in shown and "2/2" in shown and "loss" in shown
    monkeypatch.setitem(sys.modules, "tqdm", None)  # type: ignore[arg-type]
    model.evaluate(images, labels)
    assert "Evaluation: 2/2 - loss: " in capsys.readouterr().err
    assert progress.described({"a": 1.23456, "b": 2}) == "a: 1.235 - b: 2"


# -- callbacks ---------------------------------------------------------------------------------------------------------
def test_events_come_in_order(data: Any) -> None:
    images, labels = scaled(data[0][:64]), data[1][:64]
    seen: list[str] = []
    names = callbacks.EVENTS
    spy = callbacks.LambdaCallback(**{n: lambda *args, n=n: seen.append(n.removeprefix("on_")) for n in names})
    model = classifier()
    model.fit(images, labels, verbose=0, validation_data=(images[:32], labels[:32]), callbacks=[spy])
    step, check = ["train_batch_begin", "train_batch_end"], ["test_batch_begin", "test_batch_end"]
    assert seen == [
        "train_begin", "epoch_begin", *step, *step, "test_begin", *check, "test_end", "epoch_end", "train_end",
    ]  # fmt: skip
    seen.clear()
    model.predict(images[:32], verbose=0, callbacks=[spy])
    assert seen == ["predict_begin", "predict_batch_begin", "predict_batch_end", "predict_end"]
    with pytest.raises(ValueError, match="nothing is called 'on_epoch'"):
        callbacks.LambdaCallback(on_epoch=print)


class Told(callbacks.Callback):
    """Puts numbers of a list into the logs, as if they had been measured."""

    def __init__(self, values: list[float], name: str = "val_loss"):
        self.values, self.name = values, name

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs[self.name] = self.values[epoch]


def tiny() -> tj.Sequential:
    model = tj.Sequential([L.Dense(1, kernel_initializer="ones", input_shape=(1,))])
    model.compile(tj.optimizers.SGD(0.1), "mse")
    return model


def run(*around: Any, epochs: int = 10, model: Any = None, **options: Any) -> Any:
    x = np.ones((4, 1))
    return (model or tiny()).fit(x, 0 * x, epochs=epochs, verbose=0, callbacks=list(around), **options)


def test_early_stopping(capsys: pytest.CaptureFixture[str]) -> None:
    values = [5.0, 4.0, 4.5, 3.0, 3.2, 3.1, 3.3, 1.0, 1.0, 1.0]
    stop = callbacks.EarlyStopping(patience=3, verbose=1)
    assert run(Told(values), stop).epoch == list(range(7)) and stop.stopped_epoch == 6
    assert "Epoch 7: val_loss did not improve any more" in capsys.readouterr().out
    assert len(run(Told(values), callbacks.EarlyStopping(min_delta=1.5, patience=2)).epoch) == 3
    assert len(run(Told([-v for v in values], "val_accuracy"),
                   callbacks.EarlyStopping("val_accuracy", patience=1)).epoch) == 3  # fmt: skip
    assert len(run(Told(values), callbacks.EarlyStopping(baseline=2.0, patience=4)).epoch) == 5
    model = tiny()
    kept: list[np.ndarray] = []
    note = callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: kept.append(model.get_weights()[0]))
    run(Told(values), note, callbacks.EarlyStopping(patience=2, restore_best_weights=True), model=model)
    assert len(kept) == 6
    np.testing.assert_array_equal(model.get_weights()[0], kept[3])
    with pytest.raises(ValueError, match="EarlyStopping watches 'val_loss', but the logs have loss"):
        run(callbacks.EarlyStopping())
    with pytest.raises(ValueError, match="mode must be"):
        callbacks.EarlyStopping(mode="up")


def test_learning_rates_change_without_a_new_trace() -> None:
    model, rates = tiny(), []
    note = callbacks.LambdaCallback(on_epoch_end=lambda e, logs: rates.append(float(model.optimizer.learning_rate)))
    run(callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch else rate), note, epochs=3, model=model)
    np.testing.assert_allclose(rates, [0.1, 0.05, 0.025])
    run(callbacks.LearningRateScheduler(lambda epoch: 0.3), note, epochs=1, model=model)
    assert rates[-1] == pytest.approx(0.3)
    rates.clear()
    flat = [1.0] * 10
    plateau = callbacks.ReduceLROnPlateau(factor=0.1, patience=2, cooldown=1, min_lr=0.002)
    run(Told(flat), plateau, note, epochs=9, model=model)
    np.testing.assert_allclose(rates, [0.3, 0.3, 0.03, 0.03, 0.003, 0.003, 0.002, 0.002, 0.002], rtol=1e-6)
    assert model._training is not None and model._training.functions["train"].trace_count == 1  # type: ignore[attr-defined]


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model, x = tiny(), np.ones((4, 1))
    board = callbacks.TensorBoard(tmp_path, histogram_freq=1, update_freq=1)
    history = run(board, epochs=3, model=model, validation_data=(x, x)).history
    read = {name: EventAccumulator(str(tmp_path / name)).Reload() for name in ("train", "validation")}
    tags = {name: r.Tags() for name, r in read.items()}
    assert set(tags["train"]["tensors"]) == {
        "epoch_loss", "epoch_learning_rate", "batch_loss", "layers/0/kernel", "layers/0/bias",
    }  # fmt: skip
    assert tags["train"]["graph"] and tags["validation"]["tensors"] == ["epoch_loss"]
    for name, key in (("train", "loss"), ("validation", "val_loss")):
        events = read[name].Tensors("epoch_loss")
        assert [e.step for e in events] == [0, 1, 2]
        values = [np.frombuffer(e.tensor_proto.tensor_content or np.float32(e.tensor_proto.float_val[0]), "f4")[0]
                  for e in events]  # fmt: skip
        np.testing.assert_allclose(values, history[key], rtol=1e-6)
    with pytest.raises(ValueError, match="update_freq must be"):
        callbacks.TensorBoard(tmp_path, update_freq="step")


def test_csv_logger(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    model = tiny()
    history = run(callbacks.CSVLogger(path), epochs=2, model=model)
    more = run(callbacks.CSVLogger(path, append=True), epochs=1, model=model)
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [r["epoch"] for r in rows] == ["0", "1", "0"]
    assert [float(r["loss"]) for r in rows] == [*history.history["loss"], *more.history["loss"]]


def test_terminate_on_nan(capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny()
    x, y = np.ones((16, 1)), np.full((16, 1), np.nan)
    history = model.fit(x, y, epochs=5, batch_size=2, verbose=0, callbacks=[callbacks.TerminateOnNaN()])
    assert len(history.epoch) == 1 and int(model.optimizer.iterations) == 1
    assert "Batch 0: the loss is nan" in capsys.readouterr().out


def test_model_checkpoint(tmp_path: Path) -> None:
    values = [3.0, 2.0, 2.5, 1.0]
    best = callbacks.ModelCheckpoint(tmp_path / "w-{epoch}-{val_loss:.1f}.safetensors", save_best_only=True)
    model = tiny()
    run(Told(values), best, epochs=4, model=model)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"w-{e}-{v}.safetensors" for e, v in
                                                          ((1, 3.0), (2, 2.0), (4, 1.0))]  # fmt: skip
    other = tiny()
    other.load_weights(tmp_path / "w-4-1.0.safetensors")
    np.testing.assert_array_equal(other.get_weights()[0], model.get_weights()[0])
    run(callbacks.ModelCheckpoint(tmp_path / "run", save_freq=3, keep=2), epochs=10, model=model)
    saved = tj.Checkpoint(tmp_path / "run", model=model, optimizer=model.optimizer)
    assert saved.steps == [10, 13]
    weights = model.get_weights()
    run(epochs=2, model=model)
    assert not np.array_equal(model.get_weights()[0], weights[0])
    assert saved.restore() == 13
    with pytest.raises(ValueError, match="asks for 'val_acc', but the logs have loss"):
        run(callbacks.ModelCheckpoint(tmp_path / "{val_acc}.safetensors"), epochs=1)
    with pytest.raises(ValueError, match="save_freq must be"):
        callbacks.ModelCheckpoint(tmp_path, save_freq=0)


# -- files -------------------------------------------------------------------------------------------------------------
def test_weights_in_files(tmp_path: Path, data: Any) -> None:
    images = scaled(data[0][:8])
    a, b = classifier(), classifier()
    a(images)
    path = tmp_path / "below" / "model.safetensors"
    a.save_weights(path)
    b.load_weights(path)  # before it is built
    np.testing.assert_array_equal(a(images).numpy(), b(images).numpy())
    assert [p.name for p in path.parent.iterdir()] == ["model.safetensors"]
    other = tj.Sequential([L.Dense(3, input_shape=(4,))])
    with pytest.raises(ValueError, match="this state does not fit: no value for layers/0/kernel"):
        other.load_weights(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="is no complete file of weights"):
        b.load_weights(path)
    with pytest.raises(ValueError, match=r"weights are kept in \.safetensors files"):
        a.save_weights(tmp_path / "model.h5")
    with pytest.raises(ValueError, match="there are no Variables yet"):
        classifier().save_weights(path)


SCRIPT = """
    import sys
    import numpy as np
    import tracejit as tj

    class Die(tj.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == int(sys.argv[2]):
                import os, signal
                os.kill(os.getpid(), signal.SIGKILL)

    tj.random.seed(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 4))
    y = x @ rng.normal(size=(4, 2))
    model = tj.Sequential([tj.layers.Dense(8, activation="relu"), tj.layers.Dropout(0.3, seed=4), tj.layers.Dense(2)])
    model.compile("adam", "mse", ["mae"])
    backup = tj.callbacks.BackupAndRestore(sys.argv[1], save_freq=2)
    history = model.fit(x, y, epochs=4, verbose=0, batch_size=16, callbacks=[backup, Die()])
    print(history.history["loss"][-1].hex(), history.history["mae"][-1].hex(),
          b"".join(w.tobytes() for w in model.get_weights()).hex())
"""


def test_a_backup_inside_an_epoch_needs_data_that_tell_their_place(tmp_path: Path) -> None:
    x = np.ones((4, 1))
    with pytest.raises(TypeError, match="use save_freq='epoch'"):
        tiny().fit(_Again(lambda: iter([(x, x)])), verbose=0, callbacks=[callbacks.BackupAndRestore(tmp_path, 1)])
    tiny().fit(_Again(lambda: iter([(x, x)])), verbose=0, callbacks=[callbacks.BackupAndRestore(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def test_a_killed_run_goes_on_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(SCRIPT))

    def train(folder: str, die_at: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(program), str(tmp_path / folder), str(die_at)]
        environment = {**os.environ, "PYTHONPATH": str(Path(tj.__file__).parent.parent)}
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    whole = train("a", 0)
    assert whole.returncode == 0, whole.stderr
    assert train("b", 7).returncode == -signal.SIGKILL
    resumed = train("b", 0)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == whole.stdout
    assert list((tmp_path / "b").iterdir()) == []


def test_training_many_models_draws_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    for _ in range(18):
        run(epochs=1)
    assert [str(w.message) for w in recwarn] == []


# -- masks -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("eager", [True, False], ids=["eager", "compiled"])
def test_masks_reach_losses_and_metrics(eager: bool) -> None:
    """Steps that are not there count nowhere, not in the number that a mean divides by either."""
    rng = np.random.default_rng(2)
    ids = rng.integers(1, 6, (8, 5))
    ids[:, 3:], ids[0, 1:] = 0, 0
    real = ids != 0
    y = np.where(real, 2.0 * ids, 1e6)[..., None]
    layer, w = tj.layers, rng.uniform(size=8)
    model = tj.Sequential(
        [layer.Embedding(6, 4, mask_zero=True), layer.LSTM(3, return_sequences=True), layer.Dense(1)]
    )
    model.compile("sgd", "mse", weighted_metrics=["mae"], run_eagerly=eager)
    first = model.fit(ids, y, verbose=0).history["loss"][0]
    assert first < 100
    error = (model.predict(ids, verbose=0) - y)[..., 0]
    expected = [(error**2)[real].mean(), np.abs(error)[real].mean()]
    np.testing.assert_allclose(model.evaluate(ids, y, verbose=0), expected, rtol=1e-5)
    weights = np.broadcast_to(w[:, None], ids.shape)[real]
    expected = [((error**2)[real] * weights).sum() / real.sum(), np.average(np.abs(error)[real], weights=weights)]
    np.testing.assert_allclose(model.evaluate(ids, y, sample_weight=w, verbose=0), expected, rtol=1e-5)


def test_masks_of_values_and_of_ones_own() -> None:
    x = np.random.default_rng(3).normal(size=(4, 5, 3))
    x[:, 4] = -1.0
    y = np.ones((4, 5, 1))
    y[:, 4] = 1e6
    parts = [tj.layers.Rescaling(2.0), tj.layers.Masking(-2.0), tj.layers.GRU(2, return_sequences=True)]
    model = tj.Sequential([*parts, tj.layers.Dense(1)])
    model.compile("sgd", "mse")
    model(x)
    expected = ((model.predict(x, verbose=0) - y)[:, :4] ** 2).mean()
    assert model.evaluate(x, y, verbose=0) == pytest.approx(expected, rel=1e-5)

    class Own(tj.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = tj.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def compute_mask(self, x: Any, mask: Any = None) -> Any:
            return x[..., 0] != -1.0

    own = Own()
    own.compile("sgd", tj.losses.MeanAbsoluteError(reduction="sum"))
    assert own.evaluate(x, y, verbose=0) == pytest.approx(np.abs(own.predict(x, verbose=0) - y)[:, :4].sum(), rel=1e-5)
    with pytest.raises(ValueError, match=r"mask of shape \(3,\) does not fit values of shape \(4, 5\)"):
        tj.losses.MeanSquaredError()(y, y, mask=[True, False, True])


def test_branches_on_values_in_what_users_write() -> None:
    """In losses, metrics, optimizers and schedules, given to a compiled `fit`."""

    def loss(y: Any, p: Any) -> Any:
        e = y - p
        if tj.abs(e).max() > 10:
            return tj.abs(e).mean(axis=-1)
        return (e * e).mean(axis=-1)

    class Loss(tj.losses.Loss):
        def call(self, y: Any, p: Any) -> Any:
            return loss(y, p)

    class Worst(tj.metrics.Metric):
        def __init__(self) -> None:
            super().__init__("worst")
            self.found = self.add_variable()

        def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
            worst = tj.cast(tj.abs(y - p).max(), "float64")
            if worst > self.found:
                self.found.assign(worst)

        def result(self) -> Any:
            if self.found > 1e3:
                return tj.constant(1e3)
            return tj.cast(self.found, "float32")

    class Late(tj.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            if step < 2:
                return 0.0
            return 0.1

    class Plain(tj.optimizers.Optimizer):
        def update(self, variable: Any, gradient: Any, rate: Any) -> None:
            if tj.abs(gradient).max() > 0.5:
                gradient = gradient * 0
            variable.assign_sub(rate * gradient)

    x, y = np.ones((4, 1)), np.array([[0.25], [0.25], [0.25], [20.0]])
    for given in (loss, Loss()):
        model = tj.Sequential([tj.layers.Dense(1, kernel_initializer="zeros")])
        model.compile(Plain(Late()), given, [Worst(), lambda y, p: y if y.sum() > 1e9 else p])
        losses = [float(model.train_on_batch(x[:3], y[:3])[0]) for _ in range(4)]
        moved = 0.25 - 2 * 0.1 * 0.25 * 2  # kernel and bias, in the third step
        np.testing.assert_allclose(losses, [0.0625] * 3 + [(3 * 0.0625 + moved**2) / 4], rtol=1e-4)  # means so far
        assert model.evaluate(x, y, verbose=0)[0] > 4 and model.evaluate(x, y, verbose=0)[1] > 19


# -- as users of Keras write it ----------------------------------------------------------------------------------------
class TwoHeads(tj.Model):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = L.Dense(2), L.Dense(1)

    def call(self, x: Any) -> Any:
        return self.a(x), self.b(x)


def test_metrics_and_weights_of_several_losses() -> None:
    x = np.random.default_rng(0).normal(size=(10, 3)).astype("f4")
    y = (x[:, :2], x[:, 2:])
    model = TwoHeads()
    model.compile("sgd", ["mse", "mae"], [["mae"], [tj.metrics.MeanSquaredError()]], loss_weights=[2.0, 0.5])
    found = model.evaluate(x, y, verbose=0, return_dict=True)
    a, b = (np.asarray(p) - t for p, t in zip(model.predict(x, verbose=0), y))
    expected = {"loss": 2 * (a**2).mean() + 0.5 * abs(b).mean(), "0_mae": abs(a).mean(),
                "1_mean_squared_error": (b**2).mean()}  # fmt: skip
    assert list(found) == list(expected)
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-5)
    for wrong in ([1.0], {"a": 1.0}, 3.0):
        with pytest.raises(ValueError, match="loss_weights must be a number for each of several losses"):
            model.compile("sgd", ["mse", "mae"], loss_weights=wrong)


def test_float64_models_lose_nothing_on_the_way_in() -> None:
    x = np.random.default_rng(0).normal(size=(8, 3))
    model = tj.Sequential([L.Dense(1, dtype="float64", kernel_initializer="ones")])
    model.compile("sgd", "mse")
    assert model.dtype == np.float64 and model.evaluate(x, x.sum(axis=1, keepdims=True), verbose=0) < 1e-30
    assert model.predict(x, verbose=0).dtype == np.float64
    assert tj.Sequential([L.Dense(1, dtype="float64")], dtype="float32").dtype == np.float32


def test_layers_by_name_and_place() -> None:
    model = tj.Sequential([L.Dense(4, name="enc"), tj.Sequential([L.Dense(2, name="head")], name="top")])
    assert model.get_layer("enc") is model.layers[0] is model.get_layer(index=0) is model.get_layer(index=-2)
    assert model.get_layer("head") is model.layers[1].layers[0]
    with pytest.raises(ValueError, match="no layer is called 'body'; there are enc, top"):
        model.get_layer("body")
    with pytest.raises(ValueError, match="no layer has place 2"):
        model.get_layer(index=2)


def test_older_names_of_events_and_variables_of_metrics() -> None:
    seen: list[int] = []

    class Batches(callbacks.Callback):
        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(batch)

    class Count(tj.metrics.Metric):
        def __init__(self) -> None:
            super().__init__("count")
            self.found = self.add_weight(name="found", initializer="ones")

        def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
            self.found.assign_add(y.shape[0])

        def result(self) -> Any:
            return self.found.read_value()

    model = tj.Sequential([L.Dense(1)])
    model.compile("sgd", "mse", [Count()])
    history = model.fit(np.ones((6, 2)), np.ones((6, 1)), batch_size=2, epochs=2, verbose=0, callbacks=[Batches()])
    assert seen == [0, 1, 2] * 2 and history.history["count"] == [7.0, 7.0]
