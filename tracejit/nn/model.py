"""`Model`: a layer made of layers, which can be summarised, written to a file, and trained.

In: a subclass with a `call`, or a `Sequential`. Out: text, files, and what `training.py` makes of it.

Read next: `training.py`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tracejit.checkpoints import safetensors_for
from tracejit.dtypes import default_float, float64
from tracejit.nn import losses, training
from tracejit.nn.callbacks import History
from tracejit.nn.module import Layer, Module, children, traceable
from tracejit.nn.weighting import aligned
from tracejit.ops.core import cast, full
from tracejit.tape import GradientTape
from tracejit.tensor import Tensor
from tracejit.trees import flatten


class Model(Layer):
    """A layer made of layers.

    >>> from tracejit.nn.core import Dense
    >>> class Twice(Model):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.first, self.second = Dense(4, activation="relu"), Dense(1)
    ...     def call(self, x):
    ...         return self.second(self.first(x))
    >>> model = Twice()
    >>> model([[1.0, 2.0]]).shape, model.count_params()
    ((1, 1), 17)
    """

    _not_owned = Layer._not_owned | {"_training", "_functions", "_optimizer", "training_run"}
    _training: training.Training | None = None
    _optimizer: Any = None
    training_run: training.Run | None = None  # how far training has come
    stop_training = False

    # -- training ------------------------------------------------------------------------------------------------------
    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        metrics: Any = (),
        run_eagerly: bool = False,
        loss_weights: Any = None,
        weighted_metrics: Any = (),
    ) -> None:
        """Say what the model is trained with: an optimizer, a loss (for several outputs a tuple or dict of them, which
        are added, each times its number in `loss_weights`) and metrics (for several outputs a list of lists, or a
        dict), each by name or as an object; the weights of samples and classes count in `weighted_metrics` only. Logs
        have the names that metrics were given by, after that of the output. run_eagerly: steps stay plain Python, for
        `pdb` and `print`."""
        watched = metrics or (), weighted_metrics or ()
        self._training = training.Training(optimizer, loss, *watched, run_eagerly, loss_weights)
        self._optimizer = None

    def _compiled(self, what: str) -> training.Training:
        if self._training is None:
            raise RuntimeError(f"{what}: say first what the model is trained with: model.compile(optimizer, loss)")
        return self._training

    @property
    def uncompiled(self) -> dict[str, Callable[..., Any]]:
        """Steps of a model that has not been given what to train it with: it predicts."""
        return self.__dict__.setdefault("_functions", {})  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "_functions"}  # copies compile their own

    @property
    def optimizer(self) -> Any:
        """The optimizer that `compile` was given, or one that a subclass has set."""
        return self._compiled("optimizer").optimizer if self._optimizer is None else self._optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    @property
    def metrics(self) -> list[Any]:
        """The mean of the loss, and the metrics that `compile` was given."""
        t = self._training
        return [] if t is None else [t.mean_loss, *t.metrics]

    @property
    def metrics_names(self) -> list[str]:
        """Their names, in the order in which `evaluate` gives them."""
        return [m.name for m in self.metrics]

    def reset_metrics(self) -> None:
        """Forget the batches so far."""
        for m in self.metrics:
            m.reset_state()

    def train_step(self, data: tuple[Any, ...]) -> Mapping[str, Any]:
        """One step of training on a batch (x,), (x, y) or (x, y, weights); gives losses and metrics so far. Subclasses
        may have their own; it is compiled."""
        x, y, sample_weight = (*data, None, None)[:3]
        optimizer = self.optimizer
        with GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = traceable(self.compute_loss)(x, y, y_pred, sample_weight)
            goal = optimizer.scale_loss(loss) if hasattr(optimizer, "scale_loss") else loss
        variables = self.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(goal, variables), variables))
        return traceable(self.compute_metrics)(x, y, y_pred, sample_weight, loss)  # type: ignore[no-any-return]

    def test_step(self, data: tuple[Any, ...]) -> Mapping[str, Any]:
        """As `train_step`, for `evaluate`: nothing is trained."""
        x, y, sample_weight = (*data, None, None)[:3]
        y_pred = self(x, training=False)
        loss = traceable(self.compute_loss)(x, y, y_pred, sample_weight)
        return traceable(self.compute_metrics)(x, y, y_pred, sample_weight, loss)  # type: ignore[no-any-return]

    def predict_step(self, data: tuple[Any, ...]) -> Any:
        """What `predict` gives for a batch (x,)."""
        return self(data[0], training=False)

    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Tensor:
        """The loss of a batch, without what `compute_mask` says is not there, and what regularizers add. Subclasses may
        have their own."""
        total = self._loss_of_outputs(y, y_pred, sample_weight, self.compute_mask(x))
        for penalty in self.losses:
            total = total + penalty
        return total

    def _loss_of_outputs(self, y: Any, y_pred: Any, sample_weight: Any, mask: Any) -> Any:
        loss = self._compiled("compute_loss").loss
        if loss is None:
            raise ValueError(f"{self.name}: compile was given no loss; give one, or define compute_loss or train_step")
        if y is None:
            raise ValueError(f"{self.name}: the loss compares predictions with targets, but no targets (y) were given")
        if isinstance(loss, losses.Loss):
            return loss(y, y_pred, sample_weight) if mask is None else loss(y, y_pred, sample_weight, mask)
        _check_outputs(loss, y, "targets (y)")
        _check_outputs(loss, y_pred, "the model's outputs")
        names: Any = loss if isinstance(loss, dict) else range(len(loss))
        weights = self._compiled("compute_loss").loss_weights
        total: Any = None
        for name in names:
            weight, kept = _of_output(sample_weight, name), _of_output(mask, name)
            part = loss[name](y[name], y_pred[name], weight, *(() if kept is None else (kept,)))
            part = part * weights[name] if weights else part
            total = part if total is None else total + part
        return total

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any, loss: Any) -> dict[str, Any]:
        """Take a batch into the metrics; gives all of them."""
        t = self._compiled("compute_metrics")
        t.mean_loss.update_state(loss, sample_weight=_rows(x))
        mask = self.compute_mask(x) if t.metrics else None
        for m, output, weighted in zip(t.metrics, t.of_output, t.weighted):
            given = sample_weight if weighted else None
            true, pred, weight, kept = (_of_output(part, output) for part in (y, y_pred, given, mask))
            if kept is not None:
                real = cast(kept, default_float())
                weight = real if weight is None else real * aligned(real, weight)
            traceable(m.update_state)(true, pred, sample_weight=weight)
        return {m.name: traceable(m.result)() for m in self.metrics}

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int = 1,
    ) -> History:
        """Train for so many epochs; gives a `History` of losses and metrics.

        x, y, sample_weight: arrays (or lists, tuples, dicts of arrays) with one row for each example, in batches of
        `batch_size` (32), shuffled anew in each epoch as `tj.random.seed` says; or x a `tj.data.Dataset` or another
        iterable of batches (x, y) or (x, y, weights). validation_data: (x, y), (x, y, weights) or a dataset;
        validation_split: the share of the last rows that is kept for it. class_weight: how much the examples of a class
        count. verbose: 1 a bar, 2 a line for each epoch, 0 nothing.

        RuntimeError before `compile`; ValueError for data that do not fit together.

        >>> from tracejit.nn import optimizers
        >>> from tracejit.nn.core import Dense
        >>> from tracejit.nn.sequential import Sequential
        >>> model = Sequential([Dense(1, kernel_initializer="zeros")])
        >>> model.compile(optimizers.SGD(0.1), "mse")
        >>> x = np.linspace(-1, 1, 64).reshape(64, 1)
        >>> history = model.fit(x, 3 * x + 1, epochs=60, verbose=0)
        >>> history.history["loss"][-1] < 1e-3, model.predict([[2.0]], verbose=0).round().tolist()
        (True, [[7.0]])
        """
        self._compiled("fit")
        return training.fit(
            self, x, y, batch_size, epochs, verbose, callbacks, validation_split, validation_data, shuffle,
            class_weight, sample_weight, initial_epoch, steps_per_epoch, validation_steps, validation_batch_size,
            validation_freq,
        )  # fmt: skip

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """The loss, and with metrics a list of it and them (or a dict), over all batches; data as for `fit`."""
        self._compiled("evaluate")
        return training.evaluate(self, x, y, batch_size, verbose, sample_weight, steps, callbacks, return_dict)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """The model's results for all rows, as NumPy arrays; data as for `fit`, without y."""
        return training.predict(self, x, batch_size, verbose, steps, callbacks)

    def train_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        """One step of training on one batch; the loss, and metrics since they were reset."""
        self._compiled("train_on_batch")
        return self._on_batch("train", (x, y, sample_weight), return_dict)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        """One batch of evaluation; the loss, and metrics since they were reset."""
        self._compiled("test_on_batch")
        return self._on_batch("test", (x, y, sample_weight), return_dict)

    def _on_batch(self, kind: str, parts: tuple[Any, ...], return_dict: bool) -> Any:
        data = training.batch_of(parts, self.dtype)
        training.prepare(self, data, trains=kind == "train")
        logs = training.step_function(self, kind)(*data)
        return training.listed({k: float(v) for k, v in logs.items()}, return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """The model's results for one batch, as NumPy arrays."""
        data = training.batch_of((x,), self.dtype)
        training.prepare(self, data, trains=False)
        return training.as_arrays(training.step_function(self, "predict")(*data))

    # -- files ---------------------------------------------------------------------------------------------------------
    def save_weights(self, filepath: Any) -> None:
        """Write the values of all Variables to a .safetensors file, by path; an older file of that name stays until the
        new one is complete."""
        save = safetensors_for("save_weights").numpy.save
        path = _weights_path(filepath)
        state = {name: np.ascontiguousarray(value) for name, value in Module.state(self).items()}
        if not state:
            raise ValueError(f"{self.name}: there are no Variables yet; call the model once, or give input_shape=")
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with open(unfinished, "wb") as file:
                file.write(save(state))
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)

    def load_weights(self, filepath: Any) -> None:
        """Assign what `save_weights` has written; a model that is not built yet takes it over when it is.

        ValueError, before anything is assigned, if names or shapes do not fit."""
        safetensors = safetensors_for("load_weights")
        path = _weights_path(filepath)
        try:
            state = safetensors.numpy.load_file(path)
        except safetensors.SafetensorError as error:
            raise ValueError(f"{path} is no complete file of weights: {error}") from None
        self.load_state(state)

    # -- text ----------------------------------------------------------------------------------------------------------
    def layer_shapes(self) -> dict[int, Any]:
        """The shapes of the results of layers below, by the layer's id, as far as they are known without a call."""
        return {}

    def get_layer(self, name: str | None = None, index: int | None = None) -> Any:
        """The layer below of that name, or the one at that place; ValueError if there is none."""
        layers = [m for _, m in children(self) if isinstance(m, Layer)]
        if index is not None and name is None and -len(layers) <= index < len(layers):
            return layers[index]
        for m in self.submodules if index is None else ():
            if m.name == name:
                return m
        known = ", ".join(m.name for m in layers)
        wanted = f"is called {name!r}" if index is None else f"has place {index}"
        raise ValueError(f"{self.name}: no layer {wanted}; there are {known}")

    def summary(self, print_fn: Callable[[str], Any] = print) -> None:
        """Print a table of the layers, the shapes of their results and the numbers of their parameters.

        >>> from tracejit.nn.core import Dense
        >>> from tracejit.nn.sequential import Sequential
        >>> Sequential([Dense(3, input_shape=(4,)), Dense(2)]).summary()
        Sequential
        layer             result     parameters
        ---------------------------------------
        layers/0 (Dense)  (None, 3)          15
        layers/1 (Dense)  (None, 2)           8
        ---------------------------------------
        23 parameters (92 bytes), all trained
        """
        print_fn(_table(self))


def _of_output(x: Any, output: Any) -> Any:
    """What belongs to one of several outputs; None: all there is."""
    return x[output] if output is not None and isinstance(x, (dict, tuple, list)) else x


def _check_outputs(loss: Any, given: Any, what: str) -> None:
    """ValueError unless there is one for each loss."""
    if isinstance(loss, dict):
        if not isinstance(given, dict) or not loss.keys() <= given.keys():
            got = f"a dict of {', '.join(map(repr, given))}" if isinstance(given, dict) else "one"
            names = ", ".join(map(repr, loss))
            raise ValueError(f"there are losses for {names}; {what} must be a dict of these, got {got}")
    elif not isinstance(given, (list, tuple)) or len(given) != len(loss):
        got = f"{len(given)}" if isinstance(given, (list, tuple)) else "one"
        raise ValueError(f"there are {len(loss)} losses; {what} must be a tuple of as many, got {got}")


def _rows(x: Any) -> Any:
    """How many examples a batch has."""
    return full(flatten(x)[0][0].shape[0], (), float64)


def _weights_path(filepath: Any) -> Path:
    path = Path(filepath)
    if path.suffix != ".safetensors":
        raise ValueError(f"weights are kept in .safetensors files, got {str(filepath)!r}")
    return path


def _table(model: Model) -> str:
    rows: list[tuple[str, str, str]] = []
    shapes = model.layer_shapes()

    def visit(module: Module, prefix: str, depth: int) -> None:
        for name, child in children(module):
            if isinstance(child, Model):
                shapes.update(child.layer_shapes())
            shape = shapes.get(id(child))
            built = not isinstance(child, Layer) or child.built
            count = f"{child.count_params():,}" if built else "not built"
            path = f"{'  ' * depth}{prefix}{name} ({type(child).__name__})"
            rows.append((path, "" if shape is None else str(shape), count))
            if children(child):
                visit(child, "", depth + 1)

    visit(model, "", 0)
    rows.insert(0, ("layer", "result", "parameters"))
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]
    line = "-" * len(lines[0])
    return "\n".join([type(model).__name__, lines[0], line, *lines[1:], line, _totals(model)])


def _totals(model: Model) -> str:
    total = model.count_params()
    size = sum(v.size * v.dtype.itemsize for v in model.variables)
    trained = sum(v.size for v in model.trainable_variables)
    share = "all trained" if trained == total else f"{trained:,} of them trained"
    return f"{total:,} parameters ({_bytes(size)}), {share}"


def _bytes(n: int) -> str:
    amount: float = n
    for unit in ("bytes", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
