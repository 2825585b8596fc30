"""Checkpoints: what comes back, what is refused and how it is said, damage, and runs killed at any moment."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.checkpoints import Checkpoint, CheckpointError

ROOT = Path(__file__).resolve().parent.parent


def files(directory: Path) -> list[str]:
    return sorted(f.name for f in directory.iterdir())


class Model:
    """Has Variables under names."""

    def __init__(self, n: int = 2) -> None:
        self.w, self.b = tj.Variable(tj.ones((n, 3))), tj.Variable(tj.zeros(3))

    def named_variables(self) -> dict[str, tj.Variable]:
        return {"w": self.w, "deep/b": self.b}


# -- what comes back ---------------------------------------------------------------------------------------------------
def test_everything_comes_back(tmp_path: Path) -> None:
    def objects(fill: float) -> dict[str, Any]:
        model = Model()
        model.w.assign(tj.full((2, 3), fill))
        return {
            "model": model, "step": tj.Variable(int(fill), dtype="int64"), "generator": tj.random.Generator(int(fill)),
            "numpy": np.random.default_rng(int(fill)),
            "data": iter(tj.data.Dataset.range(9).shuffle(4, seed=1).batch(2)),
            "counters": {"epoch": fill, "history": [fill, {"a": (1, fill)}], "name": f"run {fill}", "best": None,
                         "mean": np.full(2, fill), "inner": {"v": tj.Variable(fill), "n": int(fill)}},
            "list": [tj.Variable(fill), fill, "x"],
        }

    first = objects(5.0)
    next(first["data"])
    tj.random.normal()
    Checkpoint(tmp_path, **first).save(3)
    expected = [first["generator"].uniform().item(), first["numpy"].random(), tj.random.uniform().item(),
                [x.tolist() for x in first["data"]]]

    second = objects(6.0)
    second["counters"]["history"], kept = [], second["counters"]["inner"]["v"]
    tj.random.seed(99)
    assert Checkpoint(tmp_path, **second).restore() == 3
    assert np.all(second["model"].w.numpy() == 5) and second["step"].item() == 5
    counters = second["counters"]
    assert {k: v for k, v in counters.items() if k not in ("mean", "inner")} == {
        "epoch": 5.0, "history": [5.0, {"a": (1, 5.0)}], "name": "run 5.0", "best": None}
    assert counters["mean"].tolist() == [5, 5] and counters["inner"]["v"] is kept and kept.item() == 5.0
    assert counters["inner"]["n"] == 5 and type(counters["inner"]["n"]) is int
    assert second["list"][0].item() == 5.0 and second["list"][1:] == [5.0, "x"]
    assert expected == [second["generator"].uniform().item(), second["numpy"].random(), tj.random.uniform().item(),
                        [x.tolist() for x in second["data"]]]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
                                   "float16", "float32", "float64", "complex64", "complex128"])
def test_every_dtype_and_shape_keeps_its_bits(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    arrays = [np.frombuffer(rng.bytes(np.dtype(dtype).itemsize * n), dtype).reshape(shape) if dtype != "bool" else
              rng.random(n).reshape(shape) > 0.5 for n, shape in ((1, ()), (0, (3, 0)), (24, (2, 3, 4)))]
    variables = [tj.Variable(a) for a in arrays]
    variables.append(tj.Variable(arrays[2].transpose(2, 0, 1)))
    Checkpoint(tmp_path, v=variables).save(0)
    others = [tj.Variable(tj.zeros(v.shape, dtype=dtype)) for v in variables]
    Checkpoint(tmp_path, v=others).restore()
    for v, o in zip(variables, others):
        assert o.numpy().dtype == np.dtype(dtype) and o.numpy().tobytes() == v.numpy().tobytes()


def test_files_are_what_they_say(tmp_path: Path) -> None:
    """Another reader of the format finds the arrays; the rest is plain JSON."""
    from safetensors.numpy import load_file

    path = Checkpoint(tmp_path / "a" / "b", model=Model(), z=tj.Variable(1j)).save(12)
    manifest = json.loads(path.read_text())
    assert manifest["step"] == 12 and manifest["arrays"]["model/deep/b"] == {"shape": [3], "dtype": "float32"}
    stored = load_file(path.parent / manifest["file"])
    assert sorted(stored) == ["model/deep/b", "model/w", "z"] and stored["model/w"].tolist() == [[1, 1, 1]] * 2
    assert stored["z"].tolist() == [0, 1]
    assert path.stem == Path(manifest["file"]).stem == "checkpoint-000001-step-12"
    assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700
    assert {stat.S_IMODE(f.stat().st_mode) for f in path.parent.iterdir()} == {0o600}


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    v = tj.Variable(0.0)
    c = Checkpoint(tmp_path, keep=2, v=v)
    assert c.latest is None and c.steps == [] and c.restore_or_initialize() == 0
    for k in range(1, 5):
        v.assign(float(k))
        c.save(k * 10)
    assert c.steps == [30, 40] and len(files(tmp_path)) == 4
    assert c.restore(30) == 30 and v.item() == 3.0
    c.save(35)  # the run went back: the last save counts, not the largest step
    assert c.latest == 35 and c.steps == [40, 35] and c.restore() == 35
    v.assign(9.0)
    c.save(35)  # again the same step
    assert c.steps == [35, 35] and c.restore() == 35 and v.item() == 9.0
    everything = Checkpoint(tmp_path / "all", keep=None, v=v)
    for k in range(5):
        everything.save(k)
    assert everything.steps == [0, 1, 2, 3, 4]
    with pytest.raises(FileNotFoundError, match=r"no checkpoint of step 7 in .*of steps \[0, 1, 2, 3, 4\]"):
        everything.restore(7)
    with pytest.raises(FileNotFoundError, match="there is no checkpoint in"):
        Checkpoint(tmp_path / "none", v=v).restore()


def test_models_and_optimizers_go_on_exactly(tmp_path: Path) -> None:
    """Layers with dropout and Adam, whose slots do not exist yet when they are restored."""
    x, y = tj.random.normal((64, 4)), tj.cast(tj.random.uniform((64,)) * 3, tj.int64)

    def made() -> tuple[Any, Any, Any]:
        model = tj.Sequential([tj.layers.Dropout(0.3), tj.layers.Dense(3)])
        optimizer = tj.optimizers.Adam(0.01)
        loss_of = tj.losses.SparseCategoricalCrossentropy(from_logits=True)

        @tj.function
        def step(x: tj.Tensor, y: tj.Tensor) -> tj.Tensor:
            with tj.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
            grads = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(grads, model.trainable_variables))
            return loss

        return model, optimizer, step

    model, optimizer, step = made()
    c = Checkpoint(tmp_path, model=model, optimizer=optimizer)
    for _ in range(3):
        step(x, y)
    c.save(3)
    expected = [step(x, y).item() for _ in range(3)]
    weights = [v.numpy().tobytes() for v in model.variables]

    model, optimizer, step = made()
    tj.random.seed(5)
    assert Checkpoint(tmp_path, model=model, optimizer=optimizer).restore() == 3
    assert [step(x, y).item() for _ in range(3)] == expected
    assert [v.numpy().tobytes() for v in model.variables] == weights


# -- what is refused ---------------------------------------------------------------------------------------------------
def test_what_does_not_fit_is_named_and_changes_nothing(tmp_path: Path) -> None:
    Checkpoint(tmp_path, model=Model(), old=tj.Variable(1.0), n=tj.Variable(1), d={"a": 1}).save(1)
    model, n = Model(4), tj.Variable(5.0)
    model.b.assign(tj.ones(3))
    with pytest.raises(ValueError) as info:
        Checkpoint(tmp_path, model=model, new=tj.Variable(0.0), n=n, d={"a": 2, "b": 3}).restore()
    text = str(info.value)
    for part in ("checkpoint of step 1", "nothing is saved for new", "old is saved, but was not given",
                 "model/w has shape (4, 3) and dtype float32, the saved one (2, 3)",
                 "n has shape () and dtype float32, the saved one () and int32", "nothing is saved for d/b"):
        assert part in text, text
    assert model.b.numpy().tolist() == [1, 1, 1] and n.item() == 5.0

    class Larger(Model):
        def named_variables(self) -> dict[str, tj.Variable]:
            return {"w": self.w, "extra": self.b}

    with pytest.raises(ValueError, match="nothing is saved for model/extra; model/deep/b is saved, but is not there"):
        Checkpoint(tmp_path, model=Larger(), old=tj.Variable(1.0), n=tj.Variable(1), d={}).restore()
    it = iter(tj.data.Dataset.range(3))
    Checkpoint(tmp_path / "data", it=it).save(1)
    with pytest.raises(ValueError, match=r"does not fit: it: load_state: the position is one in 'range\(3\)'"):
        Checkpoint(tmp_path / "data", it=iter(tj.data.Dataset.range(4))).restore()


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="epoch is a int, which cannot be restored in place"):
        Checkpoint(tmp_path, epoch=3)
    with pytest.raises(TypeError, match="of a dataset an iterator"):
        Checkpoint(tmp_path, d=tj.data.Dataset.range(3))
    with pytest.raises(TypeError, match="c/f is a function, which cannot be saved"):
        Checkpoint(tmp_path, c={"f": lambda: None}).save(1)
    with pytest.raises(TypeError, match="the key 1; only text"):
        Checkpoint(tmp_path, c={1: 2}).save(1)
    with pytest.raises(ValueError, match="must not be negative"):
        Checkpoint(tmp_path).save(-1)
    with pytest.raises(ValueError, match="keep must be at least 1"):
        Checkpoint(tmp_path, keep=0)
    c = Checkpoint(tmp_path, v=tj.Variable(1.0))
    with pytest.raises(tj.TracerError, match="inside a compiled function"):
        tj.function(lambda: c.save(1))()
    assert files(tmp_path) == []


# -- damage ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", ["json", "safetensors"])
@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "gone", "garbage"])
def test_damaged_saves_are_passed_over(tmp_path: Path, suffix: str, damage: str) -> None:
    v, counters = tj.Variable(tj.arange(100.0)), {"n": 1}
    c = Checkpoint(tmp_path, v=v, counters=counters)
    c.save(1)
    v.assign(v * 2)
    counters["n"] = 2
    path = c.save(2).with_suffix(f".{suffix}")
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        middle = len(data) // 2
        path.write_bytes({"cut": data[:middle], "empty": b"", "garbage": b"\x80\x04N." * 9,
                          "bit": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1:]}[damage])
    if (suffix, damage) == ("json", "gone"):  # as if it had never been finished
        assert c.restore() == 1
    else:
        with pytest.warns(RuntimeWarning, match=rf"{re.escape(str(path))} is damaged .*; the save before it is used"):
            assert c.restore() == 1
        with pytest.raises(CheckpointError, match="no checkpoint can be read"):
            c.restore(2)
    assert v.numpy().tolist() == list(range(100)) and counters == {"n": 1}
    counters["n"] = 3
    c.save(3)  # goes on after it
    assert c.restore() == 3 and c.latest == 3


def test_nothing_starts_anew_silently_if_all_is_damaged(tmp_path: Path) -> None:
    c = Checkpoint(tmp_path, v=tj.Variable(1.0))
    path = c.save(1)
    path.write_text("{")
    with pytest.warns(RuntimeWarning), pytest.raises(CheckpointError, match="no checkpoint can be read"):
        c.restore_or_initialize()


@pytest.mark.parametrize("point", range(12))
def test_a_failure_at_any_call_to_the_system_leaves_a_whole_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                 point: int) -> None:
    """Each system call of `save` in turn fails; what is there afterwards is the save before or the new one."""
    v = tj.Variable(1.0)
    c = Checkpoint(tmp_path, keep=1, v=v)
    c.save(1)
    v.assign(2.0)
    calls = 0

    def failing(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == point + 1:
                raise OSError("no space left")
            return real(*args, **kwargs)
        return call

    with monkeypatch.context() as m:
        for name in ("open", "fsync", "replace", "chmod"):
            m.setattr(os, name, failing(getattr(os, name)))
        try:
            c.save(2)
            finished = True
        except OSError:
            finished = False
    assert calls > point or finished
    found = c.restore()
    assert v.item() == float(found) and (found == 2 if finished else found in (1, 2))
    v.assign(3.0)
    c.save(3)
    assert c.restore() == 3 and len(files(tmp_path)) == 2  # nothing is left lying around


def test_threads_may_save_at_the_same_time(tmp_path: Path) -> None:
    """Through one object and another, into one directory: each save is whole, the last ones stay."""
    v = tj.Variable(np.arange(1000.0))
    both, errors = [Checkpoint(tmp_path, v=v), Checkpoint(tmp_path, v=v)], []

    def save(k: int) -> None:
        try:
            both[k % 2].save(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and len(both[0].steps) == 3 and len(files(tmp_path)) == 6
    assert both[0].restore() == both[0].steps[-1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_full_disk_is_an_error_of_the_system_and_keeps_what_was_there(tmp_path: Path) -> None:
    program = """if True:
        import resource, signal, sys
        import numpy as np
        import tracejit as tj
        v = tj.Variable(np.zeros(100_000))
        c = tj.Checkpoint(sys.argv[1], v=v)
        c.save(1)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            c.save(2)
        except OSError as error:
            print(error)
        print(c.restore())
    """
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    said, restored = done.stdout.splitlines()
    assert said.startswith(f"Checkpoint.save: cannot write to {tmp_path}: ") and restored == "1", done.stderr
    assert len(files(tmp_path)) == 2


def test_a_run_killed_at_random_moments_ends_with_the_same_bits() -> None:
    """A few kills here; tests/killed_run.py does fifty."""
    command = [sys.executable, str(ROOT / "tests" / "killed_run.py"), "--kills", "3"]
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "TRACEJIT_CHECK": "0"}
    if os.path.isdir("/dev/shm"):  # files in memory: a killed process needs no more
        settings["TMPDIR"] = "/dev/shm"
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=settings)
    assert done.returncode == 0 and "the same bits" in done.stdout, done.stdout + done.stderr
