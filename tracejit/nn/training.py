"""The loops of `fit`, `evaluate` and `predict`.

In: a model with a `Training` (what `compile` was given), and data. Out: trained Variables, numbers, predictions. A step
is the model's `train_step`, `test_step` or `predict_step`, compiled; around it is plain Python.

Read next: `batches.py`, `callbacks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tracejit.function import function
from tracejit.nn import losses, metrics, optimizers
from tracejit.nn.batches import Batches, arrays, split, tensors
from tracejit.nn.callbacks import CallbackList, History
from tracejit.nn.module import Layer, traceable
from tracejit.nn.options import number, whole
from tracejit.nn.progress import Silent, of_kind
from tracejit.ops.random import default_generator
from tracejit.trees import flatten, unflatten


class Training:
    """What a model is trained with."""

    def __init__(
        self, optimizer: Any, loss: Any, metrics_: Any, weighted_metrics: Any, run_eagerly: bool, loss_weights: Any
    ):
        self.optimizer = optimizers.get(optimizer)
        self.loss: Any = None
        if isinstance(loss, dict):
            self.loss = {k: losses.get(v) for k, v in loss.items()}
        elif isinstance(loss, (list, tuple)):
            self.loss = tuple(losses.get(v) for v in loss)
        elif loss is not None:
            self.loss = losses.get(loss)
        if self.loss in ({}, ()):
            raise ValueError(f"compile: loss must be a loss, or one for each output, got {loss!r}")
        self.loss_weights = None if loss_weights is None else _loss_weights(loss_weights, self.loss)
        self.mean_loss = metrics.Mean(name="loss")
        watched, weighted = _metrics(metrics_, self.loss), _metrics(weighted_metrics, self.loss)
        self.metrics = [m for m, _ in (*watched, *weighted)]
        self.of_output = [output for _, output in (*watched, *weighted)]  # what each looks at
        self.weighted = [False] * len(watched) + [True] * len(weighted)
        names = ["loss", *(m.name for m in self.metrics)]
        double = {n for n in names if names.count(n) > 1}
        if double:
            raise ValueError(f"compile: two metrics are called {', '.join(map(repr, double))}; give them names")
        self.run_eagerly = run_eagerly
        self.functions: dict[str, Callable[..., Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "functions": {}}  # copies compile their own


def _loss_weights(given: Any, loss: Any) -> dict[Any, float]:
    """For each loss a factor."""
    wanted = list(loss) if isinstance(loss, dict) else list(range(len(loss))) if isinstance(loss, tuple) else []
    found = given if isinstance(given, Mapping) else dict(enumerate(given)) if isinstance(given, (list, tuple)) else {}
    if not wanted or set(found) != set(wanted):
        raise ValueError(f"compile: loss_weights must be a number for each of several losses, got {given!r}")
    return {k: number("compile", f"loss_weights[{k!r}]", found[k]) for k in wanted}


def _metrics(given: Any, loss: Any) -> list[tuple[metrics.Metric, Any]]:
    """Metrics, each with the output it looks at: None for all there is, else its name or position."""
    if isinstance(loss, losses.Loss) or loss is None:
        by_output: dict[Any, Any] = {None: given}
    else:
        outputs = list(loss) if isinstance(loss, dict) else list(range(len(loss)))
        if isinstance(given, (list, tuple)) and len(given) == len(outputs) and not isinstance(loss, dict):
            given = dict(enumerate(given))
        if given not in ((), []) and not (isinstance(given, dict) and given.keys() <= set(outputs)):
            kind = f"a dict with names among {outputs}" if isinstance(loss, dict) else f"a list of {len(outputs)} lists"
            raise ValueError(f"compile: with several losses metrics must be {kind}, got {given!r}")
        by_output = given if isinstance(given, dict) else {}
    found: list[tuple[metrics.Metric, Any]] = []
    for output, some in by_output.items():
        if isinstance(some, Mapping):
            raise TypeError(f"compile: metrics must be a list of names, functions and metrics, got {some!r}")
        for m in some if isinstance(some, (list, tuple)) else [some]:
            made = metrics.get(m, loss if output is None else loss[output])
            if isinstance(m, str):
                made.name = m
            if output is not None:
                made.name = f"{output}_{made.name}"
            found.append((made, output))
    return found


def step_function(model: Any, kind: str) -> Callable[..., Any]:
    """The compiled step of a kind ("train", "test", "predict"); it takes the parts of a batch."""
    t = model._training
    functions = model.uncompiled if t is None else t.functions
    if kind not in functions:
        method = getattr(model, f"{kind}_step")

        def step(*data: Any) -> Any:
            return traceable(method)(data)

        step.__name__ = step.__qualname__ = f"{kind}_step"
        functions[kind] = step if t is not None and t.run_eagerly else function(step)
    return functions[kind]  # type: ignore[no-any-return]


def prepare(model: Any, data: tuple[Any, ...], trains: bool) -> None:
    """Make all Variables before the first step, so that it is traced once."""
    leaves, spec = flatten(data[0])
    sample = unflatten(spec, [leaf[:1] for leaf in leaves])
    layers = [m for m in (model, *model.submodules) if isinstance(m, Layer)]
    if any(not m.built for m in layers) or not model.variables:
        model(sample)
    if trains:
        model._training.optimizer.build(model.trainable_variables)
        if model.training_run is not None:
            model.training_run.sample = sample


def fit(
    model: Any,
    x: Any,
    y: Any,
    batch_size: int | None,
    epochs: int,
    verbose: int | str,
    callbacks: Any,
    validation_split: float,
    validation_data: Any,
    shuffle: bool,
    class_weight: Mapping[int, float] | None,
    sample_weight: Any,
    initial_epoch: int,
    steps_per_epoch: int | None,
    validation_steps: int | None,
    validation_batch_size: int | None,
    validation_freq: int,
) -> History:
    """See `Model.fit`."""
    whole("fit", "epochs", epochs, 0)
    whole("fit", "initial_epoch", initial_epoch, 0)
    whole("fit", "validation_freq", validation_freq)
    if number("fit", "validation_split", validation_split) and validation_data is None:
        (x, y, sample_weight), validation_data = split(x, y, sample_weight, validation_split, model.dtype)
    batches = Batches(x, y, sample_weight, batch_size, shuffle, _steps("fit", "steps_per_epoch", steps_per_epoch),
                      class_weight, dtype=model.dtype)  # fmt: skip
    check = None
    if validation_data is not None:
        parts = isinstance(validation_data, (tuple, list))
        given = tuple(validation_data) if parts else (validation_data,)
        if not 1 <= len(given) <= 3:
            raise ValueError(f"fit: validation_data must be (x, y), (x, y, weights) or a dataset, got {len(given)} "
                             f"parts")
        size = validation_batch_size or batch_size if parts else None
        vx, vy, vw = (*given, None, None)[:3]
        steps = _steps("fit", "validation_steps", validation_steps)
        check = Batches(vx, vy, vw, size, steps=steps, what="validation_data", dtype=model.dtype)
    history, bar_class = History(), of_kind(verbose)
    around = CallbackList(
        [*_several(callbacks), history], model, {"epochs": epochs, "steps": batches.steps, "verbose": verbose}
    )
    run = model.training_run = Run(initial_epoch)
    model.stop_training = False
    around.call("on_train_begin")
    for epoch in range(run.epoch, epochs):
        bar = bar_class(f"Epoch {epoch + 1}/{epochs}", batches.steps)
        logs = _train_epoch(model, batches, run, epoch, around, bar)
        if check is not None and (epoch + 1) % validation_freq == 0:
            found = _test(model, check, around, Silent("", None))
            logs.update({f"val_{k}": v for k, v in found.items()})
        bar.end(run.batch, logs)
        run.done(epoch)
        around.call("on_epoch_end", epoch, logs)
        if model.stop_training:
            break
    around.call("on_train_end")
    return history


class Run:
    """How far training has come: the epoch, batches done in it, and the iterator over its data. A callback that
    restores an earlier run puts that one's place into `epoch`, `batch` and `position` before the first epoch."""

    def __init__(self, epoch: int):
        self.epoch, self.batch = epoch, 0
        self.iterator: Any = None
        self.position: Any = None  # what the iterator shall load
        self.passes = 0  # over a dataset, by the earlier run
        self.sample: Any = None  # an input of one example

    def begin(self, epoch: int, batches: Batches) -> bool:
        """Open an epoch; whether it goes on inside it."""
        self.epoch = epoch
        drawn = default_generator.state()
        self.iterator = batches.epoch(self.passes)
        self.passes = 0
        if self.position is None:
            self.batch = 0
            return False
        self.iterator.load_state(self.position)
        default_generator.load_state(drawn)  # the order has been drawn by the earlier run
        self.position = None
        return True

    def done(self, epoch: int) -> None:
        """An epoch is over."""
        self.epoch, self.iterator = epoch + 1, None


def _train_epoch(
    model: Any, batches: Batches, run: Run, epoch: int, around: CallbackList, bar: Silent
) -> dict[str, float]:
    step = step_function(model, "train")
    if not run.begin(epoch, batches):
        model.reset_metrics()
    around.call("on_epoch_begin", epoch)
    before, after = around.has("on_train_batch_begin"), around.has("on_train_batch_end")
    logs: Mapping[str, Any] = {}
    for data in batches.of(run.iterator):
        if not logs:
            prepare(model, data, trains=True)
        if before:
            around.call("on_train_batch_begin", run.batch)
        logs = step(*data)
        run.batch += 1
        if after:
            around.call("on_train_batch_end", run.batch - 1, _numbers(logs))
        if bar.is_due():
            bar.show(run.batch, logs)
        if model.stop_training:
            break
    if not logs:
        raise ValueError(f"fit: there are no batches in epoch {epoch + 1}"
                         f"{'; the iterator is at its end' if epoch else ''}")  # fmt: skip
    return _numbers(logs)


def _test(model: Any, batches: Batches, around: CallbackList, bar: Silent) -> dict[str, float]:
    step = step_function(model, "test")
    model.reset_metrics()
    around.call("on_test_begin")
    before, after = around.has("on_test_batch_begin"), around.has("on_test_batch_end")
    logs: Mapping[str, Any] = {}
    done = 0
    for data in batches.of(batches.epoch()):
        if done == 0:
            prepare(model, data, trains=False)
        if before:
            around.call("on_test_batch_begin", done)
        logs = step(*data)
        done += 1
        if after:
            around.call("on_test_batch_end", done - 1, _numbers(logs))
        if bar.is_due():
            bar.show(done, logs)
    if not logs:
        raise ValueError(f"{batches.what}: there are no batches")
    found = _numbers(logs)
    around.call("on_test_end", found)
    bar.end(done, found)
    return found


def evaluate(
    model: Any,
    x: Any,
    y: Any,
    batch_size: int | None,
    verbose: int | str,
    sample_weight: Any,
    steps: int | None,
    callbacks: Any,
    return_dict: bool,
) -> Any:
    """See `Model.evaluate`."""
    steps = _steps("evaluate", "steps", steps)
    batches = Batches(x, y, sample_weight, batch_size, steps=steps, what="evaluate", dtype=model.dtype)
    around = CallbackList(_several(callbacks), model, {"steps": batches.steps, "verbose": verbose})
    found = _test(model, batches, around, of_kind(verbose)("Evaluation", batches.steps))
    return listed(found, return_dict)


def predict(
    model: Any,
    x: Any,
    batch_size: int | None,
    verbose: int | str,
    steps: int | None,
    callbacks: Any,
) -> Any:
    """See `Model.predict`."""
    steps = _steps("predict", "steps", steps)
    batches = Batches(x, None, None, batch_size, steps=steps, what="predict", dtype=model.dtype)
    around = CallbackList(_several(callbacks), model, {"steps": batches.steps, "verbose": verbose})
    bar = of_kind(verbose)("Prediction", batches.steps)
    step = step_function(model, "predict")
    around.call("on_predict_begin")
    columns: list[list[np.ndarray]] = []
    spec: Any = None
    done = 0
    for data in batches.of(batches.epoch()):
        if done == 0:
            prepare(model, data, trains=False)
        around.call("on_predict_batch_begin", done)
        leaves, spec = flatten(step(data[0]))
        columns = columns or [[] for _ in leaves]
        for column, leaf in zip(columns, leaves, strict=True):
            column.append(np.asarray(leaf))
        done += 1
        around.call("on_predict_batch_end", done - 1, {"outputs": leaves})
        if bar.is_due():
            bar.show(done, {})
    if not done:
        raise ValueError("predict: there are no batches")
    bar.end(done, {})
    around.call("on_predict_end")
    return unflatten(spec, [np.concatenate(c) for c in columns])


def batch_of(parts: tuple[Any, ...], dtype: np.dtype) -> tuple[Any, ...]:
    """One batch of arrays, as tensors."""
    return tuple(tensors(arrays(p, dtype)) for p in parts if p is not None)


def as_arrays(x: Any) -> Any:
    """Tensors as NumPy arrays."""
    leaves, spec = flatten(x)
    return unflatten(spec, [np.asarray(leaf) for leaf in leaves])


def _steps(owner: str, name: str, steps: Any) -> Any:
    return None if steps is None else whole(owner, name, steps)


def _several(callbacks: Any) -> list[Any]:
    """None, one callback or several, as a list."""
    return [] if callbacks is None else list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]


def _numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Logs as Python numbers."""
    return {k: float(v) for k, v in logs.items()}


def listed(numbers: Mapping[str, float], return_dict: bool) -> Any:
    """What `train_on_batch` and `evaluate` give."""
    values: Sequence[float] = list(numbers.values())
    return dict(numbers) if return_dict else values if len(values) > 1 else values[0]
