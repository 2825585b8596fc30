"""The namespace `tj.callbacks`: what happens around training, at the beginning and end of runs, epochs and batches.

In: a model in training, and `logs`, the losses and metrics so far as Python numbers. Out: text, files, other learning
rates, an early end. Names and defaults are those of Keras 3.

Read next: `training.py`.
"""

from __future__ import annotations

import csv
import inspect
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from tracejit import summary
from tracejit.checkpoints import Checkpoint
from tracejit.nn.options import a_function, number, whole

Logs = Mapping[str, Any]

__all__ = [
    "BackupAndRestore", "CSVLogger", "Callback", "CallbackList", "EarlyStopping", "History", "LambdaCallback",
    "LearningRateScheduler", "ModelCheckpoint", "ReduceLROnPlateau", "TensorBoard", "TerminateOnNaN",
]  # fmt: skip

EVENTS = tuple(
    f"on_{what}_{when}"
    for what in ("train", "epoch", "train_batch", "test", "test_batch", "predict", "predict_batch")
    for when in ("begin", "end")
)


class Callback:
    """Base class: methods are called at their time, as far as a subclass has them.

    on_train_begin, on_train_end, on_test_begin, on_test_end, on_predict_begin, on_predict_end (logs=None), and
    on_epoch_begin, on_epoch_end, on_train_batch_begin, on_train_batch_end, on_test_batch_begin, on_test_batch_end,
    on_predict_batch_begin, on_predict_batch_end (number, logs=None). `self.model` is the model, `self.params` a dict of
    epochs, steps and verbose. `self.model.stop_training = True` ends training after the epoch.
    """

    model: Any = None
    params: Mapping[str, Any] = {}

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Before training."""

    def on_train_end(self, logs: Logs | None = None) -> None:
        """After training."""

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Before an epoch; the first one is 0."""

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """After an epoch and its validation."""

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Before a step of training."""

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """After a step of training; logs are means over the epoch so far."""

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """Before evaluation or validation."""

    def on_test_end(self, logs: Logs | None = None) -> None:
        """After it."""

    def on_test_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Before a batch of it."""

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """After a batch of it."""

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        """Before prediction."""

    def on_predict_end(self, logs: Logs | None = None) -> None:
        """After it."""

    def on_predict_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Before a batch of it."""

    def on_predict_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """After a batch of it."""


class CallbackList:
    """Several callbacks as one. What no callback has costs nothing: `has("on_train_batch_end")`."""

    def __init__(self, callbacks: Iterable[Any], model: Any, params: Mapping[str, Any]):
        self.callbacks = list(callbacks)
        for c in self.callbacks:
            if not isinstance(c, Callback):
                hint = f"; make one: {c.__name__}(...)" if isinstance(c, type) else ""
                raise TypeError(f"a callback is a tj.callbacks.Callback, got {c!r}{hint}")
            c.model, c.params = model, params
        self._who = {e: [f for c in self.callbacks for f in _methods(c, e)] for e in EVENTS}

    def has(self, event: str) -> bool:
        """Whether any callback does something then."""
        return bool(self._who[event])

    def call(self, event: str, *args: Any) -> None:
        """Tell those who want to know."""
        for method in self._who[event]:
            method(*args)


def _methods(callback: Callback, event: str) -> list[Callable[..., Any]]:
    """What a callback does at an event; `on_batch_end` is another name of `on_train_batch_end`."""
    names = [event, event.replace("train_", "")] if "train_batch" in event else [event]
    return [getattr(callback, n) for n in names if n in vars(callback) or getattr(type(callback), n, None) is not
            getattr(Callback, n, None)]  # fmt: skip


class History(Callback):
    """What `fit` gives: `history`, for each loss and metric its values after each epoch, and `epoch`, their numbers."""

    def __init__(self) -> None:
        self.history: dict[str, list[float]] = {}
        self.epoch: list[int] = []

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)

    def __repr__(self) -> str:
        last = ", ".join(f"{k}: {v[-1]:.4g}" for k, v in self.history.items())
        return f"<tj.callbacks.History of {len(self.epoch)} epochs{f'; {last}' if last else ''}>"


class LambdaCallback(Callback):
    """Functions as a callback: `LambdaCallback(on_epoch_end=lambda epoch, logs: print(logs["loss"]))`."""

    def __init__(self, **functions: Callable[..., Any]):
        for event, f in functions.items():
            if event not in EVENTS:
                raise ValueError(f"LambdaCallback: nothing is called {event!r}; there are {', '.join(EVENTS)}")
            setattr(self, event, a_function(self, event, f))


# -- watching a number -------------------------------------------------------------------------------------------------
class _Watching(Callback):
    """Follows one number of the logs and knows when it is better than before."""

    def __init__(self, monitor: str, mode: str, min_delta: float = 0.0):
        if mode not in ("auto", "min", "max"):
            raise ValueError(f"{type(self).__name__}: mode must be 'auto', 'min' or 'max', got {mode!r}")
        if not isinstance(monitor, str):
            raise TypeError(f"{type(self).__name__}: monitor must be the name of a loss or metric, got {monitor!r}")
        self.monitor, self.min_delta = monitor, abs(number(self, "min_delta", min_delta))
        rises = ("acc", "auc", "precision", "recall", "f1", "fbeta", "iou", "r2")
        self.rising = mode == "max" or (mode == "auto" and any(word in monitor.lower() for word in rises))
        self.best = -math.inf if self.rising else math.inf

    def watched(self, logs: Logs | None) -> float:
        """The number now; ValueError if the logs have none of that name."""
        if not logs or self.monitor not in logs:
            known = ", ".join(logs or ()) or "nothing"
            raise ValueError(f"{type(self).__name__} watches {self.monitor!r}, but the logs have {known}")
        return float(logs[self.monitor])

    def is_better(self, now: float, than: float) -> bool:
        """Whether it has improved by more than `min_delta`."""
        return now - self.min_delta > than if self.rising else now + self.min_delta < than


class EarlyStopping(_Watching):
    """Ends training when `monitor` has not improved for `patience` epochs.

    baseline: what it must be better than. start_from_epoch: epochs that are not looked at. restore_best_weights: the
    model then gets the weights of its best epoch. After training, `stopped_epoch` is the last one, 0 if not stopped.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0.0,
        patience: int = 0,
        verbose: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
        start_from_epoch: int = 0,
    ):
        super().__init__(monitor, mode, min_delta)
        self.patience, self.verbose = whole(self, "patience", patience, 0), verbose
        self.baseline = None if baseline is None else number(self, "baseline", baseline)
        self.restore_best_weights = restore_best_weights
        self.start_from_epoch = whole(self, "start_from_epoch", start_from_epoch, 0)

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self.wait, self.stopped_epoch, self.best_epoch = 0, 0, 0
        self.best = -math.inf if self.rising else math.inf
        self._weights: list[np.ndarray] | None = None

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        now = self.watched(logs)
        if epoch < self.start_from_epoch:
            return
        if self.restore_best_weights and self._weights is None:
            self._weights = self.model.get_weights()
        self.wait += 1
        if self.is_better(now, self.best):
            self.best, self.best_epoch = now, epoch
            if self.restore_best_weights:
                self._weights = self.model.get_weights()
            if self.baseline is None or self.is_better(now, self.baseline):
                self.wait = 0
            return
        if self.wait >= self.patience and epoch > 0:
            self.stopped_epoch = epoch
            self.model.stop_training = True

    def on_train_end(self, logs: Logs | None = None) -> None:
        if self.stopped_epoch and self.verbose:
            print(f"Epoch {self.stopped_epoch + 1}: {self.monitor} did not improve any more")
        if self.restore_best_weights and self._weights is not None:
            if self.verbose:
                print(f"The weights are those of epoch {self.best_epoch + 1}")
            self.model.set_weights(self._weights)


class ReduceLROnPlateau(_Watching):
    """Multiplies the learning rate by `factor` when `monitor` has not improved for `patience` epochs, down to `min_lr`;
    then waits `cooldown` epochs."""

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        verbose: int = 0,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ):
        super().__init__(monitor, mode, min_delta)
        self.factor = number(self, "factor", factor, "[0, 1)")
        self.patience, self.verbose = whole(self, "patience", patience, 0), verbose
        self.cooldown, self.min_lr = whole(self, "cooldown", cooldown, 0), number(self, "min_lr", min_lr, "[0, inf)")

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self.wait, self.resting = 0, 0
        self.best = -math.inf if self.rising else math.inf

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        now = self.watched(logs)
        if self.resting > 0:
            self.resting -= 1
            self.wait = 0
        if self.is_better(now, self.best):
            self.best, self.wait = now, 0
            return
        if self.resting > 0:
            return
        self.wait += 1
        old = float(self.model.optimizer.learning_rate)
        if self.wait >= self.patience and old > self.min_lr:
            new = max(old * self.factor, self.min_lr)
            self.model.optimizer.learning_rate = new
            self.wait, self.resting = 0, self.cooldown
            if self.verbose:
                print(f"Epoch {epoch + 1}: the learning rate goes to {new:.4g}")


class LearningRateScheduler(Callback):
    """Sets the learning rate before each epoch: schedule(epoch, learning rate) or schedule(epoch) gives the new one."""

    def __init__(self, schedule: Callable[..., float], verbose: int = 0):
        self.schedule, self.verbose = a_function(self, "schedule", schedule), verbose
        self._takes_rate = _takes(schedule, 2)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        old = float(self.model.optimizer.learning_rate)
        given = self.schedule(epoch, old) if self._takes_rate else self.schedule(epoch)
        new = float(number(self, "what schedule gives", given, "[0, inf)"))
        self.model.optimizer.learning_rate = new
        if self.verbose:
            print(f"Epoch {epoch + 1}: the learning rate is {new:.4g}")


def _takes(f: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with so many arguments."""
    try:
        inspect.signature(f).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


class TerminateOnNaN(Callback):
    """Ends training when the loss is not finite."""

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        loss = (logs or {}).get("loss")
        if loss is not None and not math.isfinite(loss):
            print(f"Batch {batch}: the loss is {loss}; training ends")
            self.model.stop_training = True


# -- files -------------------------------------------------------------------------------------------------------------
class ModelCheckpoint(_Watching):
    """Saves the model after epochs, or after each `save_freq` batches.

    filepath: a folder, for `tj.Checkpoint` (model and optimizer; the last `keep` saves stay), or a file that ends in
    .safetensors, for the weights alone, in which the number of the epoch and logs may appear:
    "weights-{epoch:02d}-{val_loss:.2f}.safetensors". save_best_only: only when `monitor` has improved.
    """

    def __init__(
        self,
        filepath: Any,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        keep: int | None = 3,
    ):
        super().__init__(monitor, mode)
        if save_freq != "epoch" and (not isinstance(save_freq, int) or save_freq < 1):
            raise ValueError(f"ModelCheckpoint: save_freq must be 'epoch' or a number of batches, got {save_freq!r}")
        self.filepath, self.verbose, self.save_best_only = os.fspath(filepath), verbose, save_best_only
        if self.filepath.endswith((".h5", ".hdf5", ".keras")):
            raise ValueError(f"ModelCheckpoint: filepath must be a folder or a .safetensors file, got {filepath!r}")
        self.save_freq, self.keep = save_freq, None if keep is None else whole(self, "keep", keep)
        self.checkpoint: Checkpoint | None = None
        self._epoch, self._batches = 0, 0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        if not self.filepath.endswith(".safetensors"):
            objects = {"model": self.model, "optimizer": self.model.optimizer}
            self.checkpoint = Checkpoint(self.filepath, self.keep, **objects)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self._batches += 1
        if self.save_freq != "epoch" and self._batches % int(self.save_freq) == 0:
            self._save(logs)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if self.save_freq == "epoch":
            self._save(logs)

    def _save(self, logs: Logs | None) -> None:
        if self.save_best_only:
            now = self.watched(logs)
            if not self.is_better(now, self.best):
                return
            self.best = now
        if self.checkpoint is not None:
            path: Any = self.checkpoint.save(int(self.model.optimizer.iterations))
        else:
            try:
                path = self.filepath.format(epoch=self._epoch + 1, batch=self._batches, **(logs or {}))
            except KeyError as error:
                raise ValueError(f"ModelCheckpoint: {self.filepath!r} asks for {error}, but the logs have "
                                 f"{', '.join(logs or ())}") from None  # fmt: skip
            self.model.save_weights(path)
        if self.verbose:
            print(f"Epoch {self._epoch + 1}: saved {path}")


class BackupAndRestore(Callback):
    """Saves model, optimizer, metrics, random state and the place in the data after each epoch, or after each
    `save_freq` batches; when training starts anew, in the same or another process, it goes on from there, and ends with
    the same bits as a run that was not interrupted. The files are deleted at the end.
    """

    def __init__(self, backup_dir: Any, save_freq: str | int = "epoch", delete_checkpoint: bool = True):
        if save_freq != "epoch" and (not isinstance(save_freq, int) or save_freq < 1):
            raise ValueError(f"BackupAndRestore: save_freq must be 'epoch' or a number of batches, got {save_freq!r}")
        self.backup_dir, self.save_freq, self.delete_checkpoint = Path(backup_dir), save_freq, delete_checkpoint

    def on_train_begin(self, logs: Logs | None = None) -> None:
        model = self.model
        self._place: dict[str, Any] = {"epoch": 0, "batch": 0, "position": ""}
        self.checkpoint = Checkpoint(
            self.backup_dir, 2, model=model, optimizer=model.optimizer, metrics=list(model.metrics), place=self._place
        )
        if self.checkpoint.latest is not None:
            self.checkpoint.restore()
            run = model.training_run
            run.epoch = run.passes = self._place["epoch"]
            run.batch = self._place["batch"]
            run.position = json.loads(self._place["position"]) if self._place["position"] else None

    def _save(self, epoch: int, batch: int, position: str) -> None:
        self._place.update(epoch=epoch, batch=batch, position=position)
        self.checkpoint.save(int(self.model.optimizer.iterations))

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        run = self.model.training_run
        if self.save_freq != "epoch" and run.batch % int(self.save_freq) == 0:
            if not hasattr(run.iterator, "state"):
                raise TypeError("BackupAndRestore: only arrays and tj.data.Dataset tell where in the data training is; "
                                "use save_freq='epoch'")  # fmt: skip
            self._save(run.epoch, run.batch, json.dumps(run.iterator.state()))

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self._save(epoch + 1, 0, "")

    def on_train_end(self, logs: Logs | None = None) -> None:
        if self.delete_checkpoint:
            for file in self.backup_dir.glob("checkpoint-*"):
                file.unlink()


class TensorBoard(Callback):
    """Writes losses, metrics and the learning rate to files for TensorBoard, under `log_dir`/train and
    `log_dir`/validation, as "epoch_loss" and so on.

    histogram_freq: after every so many epochs, histograms of all Variables. write_graph: the model's graph, once.
    update_freq: "epoch"; "batch" or a number of batches writes "batch_loss" and so on in between, too.
    """

    def __init__(
        self,
        log_dir: Any = "logs",
        histogram_freq: int = 0,
        write_graph: bool = True,
        update_freq: str | int = "epoch",
    ):
        if update_freq not in ("epoch", "batch") and (not isinstance(update_freq, int) or update_freq < 1):
            raise ValueError(f"TensorBoard: update_freq must be 'epoch', 'batch' or a number, got {update_freq!r}")
        self.log_dir, self.write_graph = Path(log_dir), write_graph
        self.histogram_freq = whole(self, "histogram_freq", histogram_freq, 0)
        self.every = 0 if update_freq == "epoch" else 1 if update_freq == "batch" else int(update_freq)
        self._writers: dict[str, summary.SummaryWriter] = {}
        self._batches = 0

    def _scalars(self, writer: str, values: Mapping[str, float], prefix: str, step: int) -> None:
        if writer not in self._writers:
            self._writers[writer] = summary.create_file_writer(self.log_dir / writer)
        with self._writers[writer].as_default(step):
            for name, value in values.items():
                summary.scalar(f"{prefix}_{name}", value)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self._batches += 1
        if self.every and self._batches % self.every == 0:
            self._scalars("train", logs or {}, "batch", self._batches)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        logs, model = logs or {}, self.model
        own = {k: v for k, v in logs.items() if not k.startswith("val_")}
        checked = {k.removeprefix("val_"): v for k, v in logs.items() if k.startswith("val_")}
        self._scalars("train", {**own, "learning_rate": float(model.optimizer.learning_rate)}, "epoch", epoch)
        if checked:
            self._scalars("validation", checked, "epoch", epoch)
        with self._writers["train"].as_default(epoch):
            if self.histogram_freq and epoch % self.histogram_freq == 0:
                for name, v in model.named_variables().items():
                    summary.histogram(name, v.numpy())
            if self.write_graph and model.training_run.sample is not None:
                summary.graph(model, model.training_run.sample)
                self.write_graph = False

    def on_train_end(self, logs: Logs | None = None) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}


class CSVLogger(Callback):
    """Writes the logs of each epoch as a row of a CSV file."""

    def __init__(self, filename: Any, separator: str = ",", append: bool = False):
        if not isinstance(separator, str) or len(separator) != 1:
            raise ValueError(f"CSVLogger: separator must be one character, got {separator!r}")
        self.filename, self.separator, self.append = Path(filename), separator, append
        self._file: IO[str] | None = None
        self._columns: list[str] = []

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._columns = []
        self.filename.parent.mkdir(parents=True, exist_ok=True)
        if self.append and self.filename.exists() and self.filename.stat().st_size:
            with open(self.filename, newline="") as file:
                self._columns = next(csv.reader(file, delimiter=self.separator))
        self._file = open(self.filename, "a" if self.append else "w", newline="")

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        assert self._file is not None
        row = {"epoch": epoch, **(logs or {})}
        fresh = not self._columns
        self._columns = self._columns or list(row)
        writer = csv.DictWriter(
            self._file, self._columns, restval="NA", extrasaction="ignore", delimiter=self.separator
        )
        if fresh:
            writer.writeheader()
        writer.writerow(row)
        self._file.flush()

    def on_train_end(self, logs: Logs | None = None) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
