"""`Checkpoint`: the state of a training run in files, kept up to date, so that a run that ends anywhere can go on.

In: models, optimizers, Variables, iterators over datasets, counters. Out: for each save a safetensors file of all
arrays and a JSON file of everything else, whose appearance, in one step, makes the save count. Reading them runs no
code.

Objects are taken by what they can do: `state()` and `load_state(...)` (models, optimizers, random generators, iterators
over datasets), or `named_variables()`; Variables, NumPy's generators, and dicts and lists of all these and of plain
values. The state of `tj.random` is always part of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tracejit.errors import TraceJitError, TracerError
from tracejit.locks import fork_safe
from tracejit.ops.random import default_generator
from tracejit.tensor import Tensor, state
from tracejit.variable import Variable

FORMAT = 1
RANDOM = "tj.random"
_NAME = re.compile(r"checkpoint-(\d{6,})-step-(\d+)\.(json|safetensors)")
_TEMPORARY = ".unfinished-"
_saving = fork_safe(threading.Lock())  # one save at a time: each tidies up what others have left in its directory


class CheckpointError(TraceJitError):
    """A checkpoint that cannot be read."""


def safetensors_for(what: str) -> Any:
    """The library that reads and writes files of arrays; `what` needs it."""
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(f"{what} needs safetensors: pip install 'tracejit[train]'") from error
    return safetensors


class _Save(NamedTuple):
    """One save, by the name of its files."""

    number: int  # of the save
    step: int
    stem: str


class Checkpoint:
    """Saves and restores objects, in files in `directory`.

    keep: how many of the last saves stay (None: all). One process at a time may save to a directory.

    >>> import tempfile
    >>> w, counters = Variable([1.0, 2.0]), {"epoch": 3}
    >>> c = Checkpoint(tempfile.mkdtemp(), weights=w, counters=counters)
    >>> c.restore_or_initialize()
    0
    >>> _ = c.save(10)
    >>> _, counters["epoch"] = w.assign([0.0, 0.0]), 4
    >>> c.restore(), w.numpy().tolist(), counters
    (10, [1.0, 2.0], {'epoch': 3})
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int | None = 3, **objects: Any):
        if keep is not None and keep < 1:
            raise ValueError(f"Checkpoint: keep must be at least 1, or None for all, got {keep}")
        for name, x in objects.items():
            if not _holds_state(x):
                raise TypeError(f"Checkpoint: {name} is a {type(x).__name__}, which cannot be restored in place: give "
                                f"a Variable, an object with state() and load_state() (of a dataset an iterator), or "
                                f"put plain values in a dict")
        self.directory, self.keep = Path(directory), keep
        self.objects = {**objects, RANDOM: default_generator}

    # -- what is there -------------------------------------------------------------------------------------------------
    @property
    def steps(self) -> list[int]:
        """The steps that have been saved and are kept, the last save last."""
        return [s.step for s in self._saves()]

    @property
    def latest(self) -> int | None:
        """The step of the last save, None if there is none."""
        return self.steps[-1] if self.steps else None

    def _saves(self, kind: str = "json") -> list[_Save]:
        if not self.directory.is_dir():
            return []
        found = [(m, f.stem) for f in self.directory.iterdir() if (m := _NAME.fullmatch(f.name)) and m[3] == kind]
        return sorted(_Save(int(m[1]), int(m[2]), stem) for m, stem in found)

    # -- saving --------------------------------------------------------------------------------------------------------
    def save(self, step: Any) -> Path:
        """Write the objects as they are now, as those after `step` steps; the path of the JSON file.

        When this returns, the save is on the disk. A process killed before leaves the saves it had.
        """
        if state.trace is not None:
            raise TracerError("Checkpoint.save inside a compiled function would save once, while tracing; call it "
                              "outside")
        library = safetensors_for("Checkpoint")
        try:
            step = int(step)
        except (TypeError, ValueError):
            raise TypeError(f"Checkpoint.save: step must be an int, got {step!r}") from None
        if step < 0:
            raise ValueError(f"Checkpoint.save: step must not be negative, got {step}")
        with _saving:
            return self._save(step, library)

    def _save(self, step: int, library: Any) -> Path:
        def save_arrays(path: str) -> None:
            try:
                library.numpy.save_file(arrays.stored, path)
            except library.SafetensorError as error:
                raise OSError(f"Checkpoint.save: cannot write to {self.directory}: {error}") from error

        arrays = _Arrays()
        objects = {name: _written(x, name, arrays) for name, x in self.objects.items()}

        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        there = [*self._saves(), *self._saves("safetensors")]
        stem = f"checkpoint-{max((s.number for s in there), default=0) + 1:06d}-step-{step}"
        size, digest = self._put(f"{stem}.safetensors", save_arrays)
        manifest = {
            "format": FORMAT, "step": step, "file": f"{stem}.safetensors", "bytes": size, "sha256": digest,
            "arrays": {n: {"shape": list(x.shape), "dtype": x.dtype.name} for n, x in arrays.found.items()},
            "objects": objects,
        }
        text = json.dumps({**manifest, "check": _check_of(manifest)}, indent=1)
        self._put(f"{stem}.json", lambda path: Path(path).write_text(text, encoding="utf-8"))
        self._sync()
        self._tidy()
        return self.directory / f"{stem}.json"

    def _put(self, name: str, write: Callable[[str], Any]) -> tuple[int, str]:
        """A private file that is there as a whole or not at all; its size and checksum."""
        temporary = self.directory / f"{_TEMPORARY}{os.urandom(8).hex()}"
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            write(str(temporary))
            os.chmod(temporary, 0o600)
            with open(temporary, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                size = file.tell()
                os.fsync(file.fileno())
            os.replace(temporary, self.directory / name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return size, digest

    def _sync(self) -> None:
        """The names of files, too, are on the disk."""
        if os.name == "posix":
            folder = os.open(self.directory, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _tidy(self) -> None:
        """Remove saves that are no longer kept, and what killed processes have left."""
        saves = self._saves()
        kept = saves if self.keep is None else saves[-self.keep:]
        for s in saves[: len(saves) - len(kept)]:
            (self.directory / f"{s.stem}.json").unlink(missing_ok=True)
        stems = {s.stem for s in kept}
        for s in self._saves("safetensors"):
            if s.stem not in stems:
                (self.directory / f"{s.stem}.safetensors").unlink(missing_ok=True)
        for file in self.directory.glob(f"{_TEMPORARY}*"):
            file.unlink(missing_ok=True)

    # -- restoring -----------------------------------------------------------------------------------------------------
    def restore(self, step: int | None = None) -> int:
        """Bring the objects back to the last save that can be read, or to that of `step`; the step it is of.

        A damaged save is passed over with a warning, unless it was asked for. FileNotFoundError: there is none.
        CheckpointError: none can be read. ValueError: it does not fit the objects; it names what is missing, unknown or
        of another shape or dtype.
        """
        saves = [s for s in self._saves() if step is None or s.step == step]
        if not saves:
            have = f"; there are those of steps {self.steps}" if self.steps else ""
            raise FileNotFoundError(f"there is no checkpoint{'' if step is None else f' of step {step}'} in "
                                    f"{self.directory}{have}")
        problems = []
        for s in reversed(saves):
            try:
                manifest, arrays = self._read(s)
            except CheckpointError as error:
                problems.append(str(error))
                if step is None:
                    warnings.warn(f"{error}; the save before it is used", RuntimeWarning, stacklevel=2)
                continue
            self._take(manifest, arrays, f"checkpoint of step {s.step} in {self.directory}")
            return s.step
        raise CheckpointError("no checkpoint can be read: " + "; ".join(problems))

    def restore_or_initialize(self) -> int:
        """As `restore`, but if there is no save, nothing happens and the step is 0."""
        return self.restore() if self._saves() else 0

    def _read(self, s: _Save) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        load_file = safetensors_for("Checkpoint").numpy.load_file
        path = self.directory / f"{s.stem}.json"
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            check = manifest.pop("check")
            if manifest["format"] != FORMAT:
                raise ValueError(f"its format is {manifest['format']!r}, this version reads {FORMAT}")
            if check != _check_of(manifest):
                raise ValueError("its contents do not fit its checksum")
            path = self.directory / str(manifest["file"])
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                size = file.tell()
            if size != manifest["bytes"]:
                raise ValueError(f"it has {size} bytes instead of {manifest['bytes']}")
            if digest != manifest["sha256"]:
                raise ValueError("its contents do not fit its checksum")
            stored = load_file(path)
            return manifest, {name: _loaded(stored[name], a) for name, a in manifest["arrays"].items()}
        except Exception as error:  # whatever is wrong with the files
            raise CheckpointError(f"{path} is damaged ({type(error).__name__}: {error})") from error

    def _take(self, manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray], what: str) -> None:
        plan = _Plan(arrays)
        saved = manifest["objects"]
        plan.problems += [f"nothing is saved for {n}" for n in self.objects if n not in saved]
        plan.problems += [f"{n} is saved, but was not given" for n in saved if n not in self.objects]
        for name, x in self.objects.items():
            if name in saved:
                plan.restore(x, saved[name], name)
        if plan.problems:
            rest = len(plan.problems) - 12
            raise ValueError(f"{what} does not fit: " + "; ".join(plan.problems[:12])
                             + (f"; and {rest} more" if rest > 0 else ""))
        for name, action in plan.actions:
            try:
                action()
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{what} does not fit: {name}: {error}") from error

    def __repr__(self) -> str:
        return f"<tj.Checkpoint in {self.directory}, steps {self.steps}>"


def _check_of(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


# -- objects -----------------------------------------------------------------------------------------------------------
def _is_stateful(x: Any) -> bool:
    if isinstance(x, (Variable, np.random.Generator)):
        return True
    able = [callable(getattr(x, name, None)) for name in ("state", "load_state", "named_variables")]
    return not isinstance(x, type) and ((able[0] and able[1]) or able[2])


def _holds_state(x: Any) -> bool:
    return isinstance(x, (dict, list)) or _is_stateful(x)


class _Arrays:
    """Arrays on their way into a file, by name."""

    def __init__(self) -> None:
        self.found: dict[str, np.ndarray] = {}
        self.stored: dict[str, np.ndarray] = {}

    def add(self, name: str, x: np.ndarray) -> dict[str, str]:
        while name in self.found:
            name += "'"
        self.found[name] = x
        plain = np.asarray(x, order="C")
        if x.dtype.kind == "c":  # safetensors has no such dtypes: the parts, along a last axis
            plain = plain.reshape(-1).view(x.real.dtype).reshape(*x.shape, 2)
        self.stored[name] = plain
        return {"array": name}


def _loaded(stored: np.ndarray, facts: Mapping[str, Any]) -> np.ndarray:
    dtype, shape = np.dtype(facts["dtype"]), tuple(facts["shape"])
    x = stored.view(dtype).reshape(shape) if dtype.kind == "c" else stored
    if x.dtype != dtype or x.shape != shape:
        raise ValueError(f"an array has shape {x.shape} and dtype {x.dtype} instead of {shape} and {dtype}")
    return x


def _state_of(x: Any) -> Any:
    """What an object with a state says it is."""
    if isinstance(x, np.random.Generator):
        return x.bit_generator.state
    return x.state() if callable(getattr(x, "state", None)) else dict(x.named_variables())


def _written(x: Any, path: str, arrays: _Arrays) -> Any:
    """A value as JSON, its arrays apart. Dicts are {"items": ...}, tuples {"tuple": ...}."""
    if isinstance(x, Tensor):
        return arrays.add(path, x.numpy())
    if isinstance(x, np.ndarray):
        return arrays.add(path, x)
    if isinstance(x, np.generic):
        x = x.item()
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    if isinstance(x, dict):
        for k in x:
            if not isinstance(k, str):
                raise TypeError(f"Checkpoint: {path} has the key {k!r}; only text can be a key")
        return {"items": {k: _written(v, f"{path}/{k}", arrays) for k, v in x.items()}}
    if isinstance(x, (list, tuple)):
        items = [_written(v, f"{path}/{k}", arrays) for k, v in enumerate(x)]
        return items if isinstance(x, list) else {"tuple": items}
    if _is_stateful(x):
        return _written(_state_of(x), path, arrays)
    raise TypeError(f"Checkpoint: {path} is a {type(x).__name__}, which cannot be saved: only arrays, numbers, text, "
                    f"dicts, lists and tuples of them, and objects with state() and load_state() can")


class _Plan:
    """What restoring would do; it happens only if there are no problems."""

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self.arrays = arrays
        self.problems: list[str] = []
        self.actions: list[tuple[str, Callable[[], Any]]] = []

    def value(self, saved: Any) -> Any:
        if isinstance(saved, list):
            return [self.value(v) for v in saved]
        if not isinstance(saved, dict):
            return saved
        if "array" in saved:
            return self.arrays[saved["array"]]
        if "tuple" in saved:
            return tuple(self.value(v) for v in saved["tuple"])
        return {k: self.value(v) for k, v in saved["items"].items()}

    def do(self, name: str, action: Callable[[], Any]) -> None:
        self.actions.append((name, action))

    def restore(self, x: Any, saved: Any, name: str) -> None:
        if isinstance(x, Variable):
            self.variable(x, self.value(saved), name)
        elif isinstance(x, np.random.Generator):
            self.do(name, lambda: setattr(x.bit_generator, "state", self.value(saved)))
        elif not _is_stateful(x):
            self.container(x, saved, name)
        elif callable(getattr(x, "load_state", None)):
            self.do(name, lambda: x.load_state(self.value(saved)))
        else:
            self.variables(x.named_variables(), self.value(saved), name)

    def variable(self, v: Variable, value: Any, name: str) -> None:
        if not isinstance(value, np.ndarray):
            self.problems.append(f"{name} is saved as a {type(value).__name__}, but is a Variable")
        elif value.shape != v.shape or value.dtype != v.dtype:
            self.problems.append(f"{name} has shape {v.shape} and dtype {v.dtype}, the saved one {value.shape} and "
                                 f"{value.dtype}")
        else:
            self.do(name, lambda: v.assign(value))

    def variables(self, named: Mapping[str, Variable], saved: Any, name: str) -> None:
        saved = saved if isinstance(saved, dict) else {}
        self.problems += [f"nothing is saved for {name}/{k}" for k in named if k not in saved]
        self.problems += [f"{name}/{k} is saved, but is not there" for k in saved if k not in named]
        for k in named:
            if k in saved:
                self.variable(named[k], saved[k], f"{name}/{k}")

    def container(self, x: Any, saved: Any, name: str) -> None:
        """A dict or list: objects in it are restored, plain values replaced."""
        items: dict[Any, Any] = x if isinstance(x, dict) else dict(enumerate(x))
        if isinstance(x, dict) != (isinstance(saved, dict) and "items" in saved) or isinstance(x, list) != isinstance(
                saved, list):
            self.problems.append(f"{name} is a {type(x).__name__}, but was something else when it was saved")
            return
        there: dict[Any, Any] = saved["items"] if isinstance(saved, dict) else dict(enumerate(saved))
        inner = {k for k, v in items.items() if _is_stateful(v) or (isinstance(v, (dict, list)) and _deep(v))}
        self.problems += [f"nothing is saved for {name}/{k}" for k in items
                          if k not in there and (k in inner or isinstance(x, dict))]
        for k in inner & there.keys():
            self.restore(items[k], there[k], f"{name}/{k}")
        if isinstance(x, dict):
            self.do(name, lambda: x.update({k: self.value(v) for k, v in there.items() if k not in inner}))
        else:
            self.do(name, lambda: x.__setitem__(
                slice(None), [items[k] if k in inner else self.value(v) for k, v in there.items()]))


def _deep(x: Any) -> bool:
    """Whether a dict or list holds objects with a state somewhere."""
    parts = x.values() if isinstance(x, dict) else x
    return any(_is_stateful(v) or (isinstance(v, (dict, list)) and _deep(v)) for v in parts)


__all__ = ["Checkpoint", "CheckpointError"]
