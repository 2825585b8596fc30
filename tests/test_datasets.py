"""IDX files: what is in them comes out, and what is wrong with them is said."""

from __future__ import annotations

import gzip
import hashlib
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit import datasets

CODES = {"uint8": 8, "int8": 9, "int16": 11, "int32": 12, "float32": 13, "float64": 14}


def idx(x: np.ndarray) -> bytes:
    """An IDX file of an array, written as its description says."""
    head = bytes([0, 0, CODES[x.dtype.name], x.ndim]) + b"".join(struct.pack(">I", n) for n in x.shape)
    return head + x.astype(x.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("compressed", [False, True])
def test_every_dtype_is_read(tmp_path: Path, dtype: str, compressed: bool) -> None:
    for shape in ((), (3,), (2, 3, 4), (0, 5)):
        x = np.arange(-5, np.prod(shape, dtype=int) * 7 - 5, 7).reshape(shape).astype(dtype)
        data = idx(x)
        (tmp_path / "a").write_bytes(gzip.compress(data) if compressed else data)
        found = datasets.read_idx(tmp_path / "a")
        assert found.dtype == dtype and found.dtype.isnative and found.shape == shape and np.array_equal(found, x)
        found[...] = 0  # the caller's own


@pytest.mark.parametrize("change, message", [
    (lambda d: d[:-1], r"is too short: 27 bytes, but 28 for shape \(2, 8\) and dtype uint8"),
    (lambda d: d + b"x", "is too long: 29 bytes"),
    (lambda d: d[:9], "its 2 sizes alone need 12"),
    (lambda d: b"", "is too short: 0 bytes"),
    (lambda d: b"\x00\x00\x07\x02" + d[4:], "not an IDX file: its magic number is 0x00000702"),
    (lambda d: b"GIF8" + d[4:], "not an IDX file: its magic number is 0x47494638"),
    (lambda d: gzip.compress(d)[:-9], "is damaged: it cannot be unpacked"),
    (lambda d: gzip.compress(d)[:14] + b"\xff\xff" + gzip.compress(d)[16:], "is damaged: it cannot be unpacked"),
    (lambda d: gzip.compress(d[:-1]), "is too short"),
])
def test_what_is_wrong_is_said(tmp_path: Path, change: Any, message: str) -> None:
    (tmp_path / "a").write_bytes(change(idx(np.arange(16, dtype=np.uint8).reshape(2, 8))))
    with pytest.raises(ValueError, match=message) as info:
        datasets.read_idx(tmp_path / "a")
    assert str(tmp_path / "a") in str(info.value)


def test_missing_files() -> None:
    with pytest.raises(FileNotFoundError):
        datasets.read_idx("nowhere")


def digits(folder: Path, sizes: tuple[int, int, int, int] = (7, 7, 3, 3)) -> list[np.ndarray]:
    """Files in the form of the standard ones, in each of the forms in which they are around."""
    rng = np.random.default_rng(0)
    found = []
    names = ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte", "t10k-images.idx3-ubyte",
             "t10k-labels.idx1-ubyte.gz"]
    for name, n in zip(names, sizes):
        x = rng.integers(0, 256 if "images" in name else 10, (n, 28, 28) if "images" in name else n, np.uint8)
        (folder / name).write_bytes(gzip.compress(idx(x)) if name.endswith("gz") else idx(x))
        found.append(x)
    return found


def test_mnist_is_read_and_trains(tmp_path: Path) -> None:
    expected = digits(tmp_path)
    (x, y), (xt, yt) = tj.datasets.mnist.load_data(tmp_path, checksums="ignore")
    for found, wanted in zip((x, y, xt, yt), expected):
        assert found.dtype == np.uint8 and np.array_equal(found, wanted)
    d = tj.data.Dataset.from_tensor_slices((tj.cast(x[..., None] / 255, tj.float32), tj.cast(y, tj.int64))).batch(4)
    images, labels = next(iter(d))
    assert images.shape == (4, 28, 28, 1) and labels.dtype == np.int64 and float(images.max()) <= 1


def test_mnist_files_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits(tmp_path)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        datasets.mnist.load_data(tmp_path)
    assert [w.category for w in seen] == [RuntimeWarning] * 4 and seen[0].filename == __file__
    assert "train-images-idx3-ubyte.gz is not the standard file" in str(seen[0].message)
    with pytest.raises(ValueError, match="is not the standard file of this name"):
        datasets.mnist.load_data(tmp_path, checksums="raise")
    sums = {name: (hashlib.md5(datasets._found(tmp_path, name).read_bytes()).hexdigest(),) for name in datasets._MNIST}
    monkeypatch.setattr(datasets, "_MNIST", sums)
    datasets.mnist.load_data(tmp_path, checksums="raise")
    with pytest.raises(ValueError, match='must be "warn", "raise" or "ignore"'):
        datasets.mnist.load_data(tmp_path, checksums="maybe")


def test_mnist_files_of_another_form(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file train-images-idx3-ubyte or train-images-idx3-ubyte\.gz"):
        datasets.mnist.load_data(tmp_path / "nowhere")
    digits(tmp_path, (7, 6, 3, 3))
    with pytest.raises(ValueError, match="has 7 images in train-images-idx3-ubyte, but 6 labels"):
        datasets.mnist.load_data(tmp_path, "ignore")
    (tmp_path / "t10k-images.idx3-ubyte").rename(tmp_path / "t10k-images-idx3")
    with pytest.raises(FileNotFoundError, match=r"no file t10k-images-idx3-ubyte.*it has t10k-images-idx3"):
        datasets.mnist.load_data(tmp_path, "ignore")
    (tmp_path / "t10k-images.idx3-ubyte").write_bytes(idx(np.zeros((3, 20, 20), np.uint8)))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(7, np.uint8)))
    with pytest.raises(ValueError, match=r"t10k-images.idx3-ubyte holds shape \(3, 20, 20\), dtype uint8"):
        datasets.mnist.load_data(tmp_path, "ignore")
