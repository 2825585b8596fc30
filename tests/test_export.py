"""Programs written to files and loaded without their source."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tests.test_dims import CASES, agree, values
from tracejit.export import Loaded

F32 = "float32"


def there_and_back(f: Any, specs: Any, path: Path) -> Loaded:
    tj.export(f, specs, path)
    return tj.load(path)


def test_a_free_dim_survives(tmp_path: Path) -> None:
    f = tj.function(lambda a: (a * 2).sum(axis=1))
    g = there_and_back(f, {"a": tj.spec((None, 4), F32)}, tmp_path / "m.tj")
    for n in (0, 1, 7, 40_000):
        assert g(tj.ones((n, 4))).shape[0] == n
        agree(g(values(n, 4)), f(values(n, 4)))
        agree(g(a=values(n, 4)), f(values(n, 4)))


@pytest.mark.parametrize("name", [
    "affine", "two", "independent", "mean", "by size", "softmax both", "layer norm", "inner product", "concat", "shift",
    "reverse", "sort", "cumsum", "reshape", "gather", "gradient of rows", "pad", "roll", "argmax", "size as result",
    "while", "update", "attention",
])  # fmt: skip
def test_loaded_programs_give_the_same(name: str, tmp_path: Path) -> None:
    python, arguments, least = CASES[name]
    example = arguments(64)
    other = arguments(31)
    specs = tuple(tj.spec([n if n == m else None for n, m in zip(a.shape, b.shape)], a.dtype)
                  for a, b in zip(example, other))
    g = there_and_back(python, specs, tmp_path / "m.tj")
    for n in (0, 1, 2, 5, 9, 64, 1500):
        if n >= least:
            agree(g(*arguments(n)), tj.function(python)(*arguments(n)))


def test_without_the_source_in_another_process(tmp_path: Path) -> None:
    w = tj.Variable(values(4, 3), name="w")
    steps = tj.Variable(0)

    def model(x: Any, options: Any = None, *, scale: Any = 1.0) -> Any:
        steps.assign_add(1)
        return {"y": tj.tanh(x @ w) * scale, "rows": x.shape[0], "names": ["a", None]}

    path = tmp_path / "m.tj"
    tj.save(model, path, tj.spec((None, 4), F32))
    x = values(5, 4)
    np.save(tmp_path / "x.npy", np.asarray(x))
    code = f"""
import numpy as np, tracejit as tj
g = tj.load({str(path)!r})
x = np.load({str(tmp_path / "x.npy")!r})
found = g(x)
assert found["rows"] == 5 and found["names"] == ["a", None]
np.save({str(tmp_path / "y.npy")!r}, found["y"])
g(x[:2], scale=2.0)
assert sorted(int(v) if v.ndim == 0 else 0 for v in g.variables)[-1] == 2
assert any(v.name == "w:0" and v.trainable for v in g.variables)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(tj.__file__).parent.parent)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.asarray(tj.function(model)(x)["y"]))
    assert int(steps) == 1, "saving runs nothing"


def test_the_most_specific_signature_wins(tmp_path: Path) -> None:
    def f(a: Any) -> Any:
        return a * (10.0 if a.ndim == 2 and a.shape[-1] == 3 else 1.0), a.shape[0]

    general, special = tj.spec((None, None), F32), tj.spec((None, 3), F32)
    for order in ([general, special], [special, general]):
        g = there_and_back(f, [*order, tj.spec((None,), "float64")], tmp_path / "m.tj")
        agree(g(values(2, 3)), f(values(2, 3)))
        agree(g(values(2, 4)), f(values(2, 4)))
        agree(g(np.ones(3)), (np.ones(3), 3))
        assert "float32[None, 3]" in " ".join(g.signatures)


def test_several_signatures_through_save(tmp_path: Path) -> None:
    f = tj.function(lambda a, b: a + b)
    tj.save(f, tmp_path / "m.tj", (tj.spec((None,), F32), 1.0), {"a": tj.spec((2,), "int32"), "b": 3})
    g = tj.load(tmp_path / "m.tj")
    agree(g(values(7), 2.5), f(values(7), 2.5))
    agree(g(tj.asarray([1, 2]), 5), f(tj.asarray([1, 2]), 5))
    with pytest.raises(TypeError, match=r"was saved for .*float32\[None\].* cannot take \(f32\[2, 2\]"):
        g(values(2, 2), 1.0)
    with pytest.raises(TypeError, match="missing a required argument"):
        g(values(2))


def test_gradients_and_use_inside_functions(tmp_path: Path) -> None:
    @tj.custom_gradient
    def clipped(x: Any) -> Any:
        return x * x, lambda g: g * 5.0

    def f(a: Any) -> Any:
        return clipped(tj.sin(a)).sum()

    g = there_and_back(f, tj.spec((None,), F32), tmp_path / "m.tj")
    for n in (3, 8):
        a = values(n)
        np.testing.assert_allclose(np.asarray(tj.grad(g)(a)), np.asarray(tj.grad(f)(a)), rtol=1e-6)
        outer, wanted = tj.function(lambda x: g(x * 2) + g(x)), f(a * 2) + f(a)
        np.testing.assert_allclose(float(outer(a)), float(wanted), rtol=1e-5)
        inside = tj.function(tj.grad(lambda x: g(x) * 2.0))(a)
        np.testing.assert_allclose(np.asarray(inside), np.asarray(tj.grad(f)(a)) * 2, rtol=1e-5)
    stream = tj.function(lambda x: g(x) + 1)
    for n in (4, 5, 6, 7):
        stream(values(n))
    assert stream.trace_count == 2, "free sizes pass through"


def test_methods_statics_and_writes(tmp_path: Path) -> None:
    class Model:
        def __init__(self) -> None:
            self.total = tj.Variable(np.zeros(2, F32))

        @tj.function(static_argnames=("mode",))
        def step(self, x: Any, mode: str = "sum") -> Any:
            self.total.assign_add(x.sum(axis=0) if mode == "sum" else x.max(axis=0))
            x[0] = 0.0
            return self.total

    model = Model()
    path = tmp_path / "m.tj"
    tj.export(model.step, [{"x": tj.spec((None, 2), F32)}, {"x": tj.spec((None, 2), F32), "mode": "max"}], path)
    g = tj.load(path)
    x = np.ones((3, 2), F32)
    result = g(x)
    assert result is g.variables[0] and result.numpy().tolist() == [3, 3] and x[0].tolist() == [0, 0]
    assert g(x, mode="max").numpy().tolist() == [4, 4] and model.total.numpy().tolist() == [0, 0]
    with pytest.raises(TypeError, match="was saved for"):
        g(x, mode="min")


def test_structures_control_flow_and_random_numbers(tmp_path: Path) -> None:
    def f(batch: Any) -> Any:
        x = batch["x"]
        y = tj.cond(x.sum() > 0, lambda: x * 2, lambda: -x)
        total, _ = tj.scan(lambda c, row: (c + row, None), tj.zeros(3), x)
        return [y, (total, batch["k"] * 2)]

    g = there_and_back(f, {"batch": {"x": tj.spec((None, 3), F32), "k": 1.5}}, tmp_path / "m.tj")
    for n in (2, 5):
        for sign in (1, -1):
            batch = {"x": values(n, 3) * sign, "k": 2.5}
            found, wanted = g(batch), tj.function(f)(batch)
            agree(found[0], wanted[0])
            agree(found[1][0], wanted[1][0])
            assert float(found[1][1]) == 5.0 and type(found) is list


def test_what_a_file_cannot_hold_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.tj"
    with pytest.raises(tj.TracerError, match=r"dim 0 of 'a' cannot be left open"):
        tj.export(lambda a: a * sum(range(a.shape[0])), tj.spec((None,), F32), path)
    with pytest.raises(tj.TracerError, match="calls back into Python"):
        tj.export(lambda a: tj.py_function(np.sin, [a], tj.spec((3,), F32)), tj.spec((3,), F32), path)
    with pytest.raises(TypeError, match="a result is a object"):
        tj.export(lambda a: (a, object()), tj.spec((3,), F32), path)
    assert not path.exists()


def test_the_file_is_data_only(tmp_path: Path) -> None:
    path = tmp_path / "m.tj"
    tj.save(lambda a: a @ np.ones((4, 2), F32), path, tj.spec((None, 4), F32))
    with zipfile.ZipFile(path) as file:
        names = file.namelist()
        program = json.loads(file.read("program.json"))
        arrays = {n: file.read(n) for n in names if n.endswith(".npy")}
    assert set(names) == {"program.json", *arrays} and all(a[:6] == b"\x93NUMPY" for a in arrays.values())
    assert str(Path(__file__).parent) not in json.dumps(program), "no paths of this machine"

    def rewritten(change: Any) -> Path:
        data = json.loads(json.dumps(program))
        change(data)
        bad = tmp_path / "bad.tj"
        with zipfile.ZipFile(bad, "w") as file:
            file.writestr("program.json", json.dumps(data))
            for n, a in arrays.items():
                file.writestr(n, a)
        return bad

    def other_op(data: Any) -> None:
        data["signatures"][0]["graph"]["nodes"][0][0] = "py_function"

    def other_step(data: Any) -> None:
        data["signatures"][0]["steps"].append(["__import__('os')", {"dim": 0}])

    def code_as_number(data: Any) -> None:
        data["signatures"][0]["steps"].append(["{} + {}", {"dim": 0}, "__import__('os').getpid()"])

    def wrong_type(data: Any) -> None:
        node = data["signatures"][0]["graph"]["nodes"][-1]
        node[3] = {"type": [{"tuple": [3]}, F32]}

    for change in (other_op, other_step, code_as_number, wrong_type, lambda d: d.update(format=99)):
        with pytest.raises((ValueError, KeyError, TypeError, tj.InternalError)):
            tj.load(rewritten(change))
