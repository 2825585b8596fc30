"""`tj.datasets`: readers of well-known files of data. Nothing is downloaded: the files must be there.

In: IDX files, the format of MNIST (Yann LeCun's description: a magic number that tells dtype and rank, the sizes as
32-bit numbers, the data, all with the highest byte first), plain or compressed with gzip. Out: NumPy arrays.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np

__all__ = ["mnist", "read_idx"]

_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """The array in an IDX file, in this machine's byte order. A file whose contents are compressed with gzip is
    unpacked, whatever its name.

    FileNotFoundError, or ValueError that says what is wrong with the file.
    """
    path = Path(path)
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is damaged: it cannot be unpacked ({error})") from error
    if len(data) < 4:
        raise ValueError(f"{path} is too short: {len(data)} bytes, an IDX file has at least 4")
    zero, code, rank = struct.unpack(">HBB", data[:4])
    if zero != 0 or code not in _DTYPES:
        raise ValueError(f"{path} is not an IDX file: its magic number is 0x{data[:4].hex()}")
    start = 4 + 4 * rank
    if len(data) < start:
        raise ValueError(f"{path} is too short: {len(data)} bytes, its {rank} sizes alone need {start}")
    shape = struct.unpack(f">{rank}I", data[4:start])
    dtype = np.dtype(_DTYPES[code])
    wanted = start + math.prod(shape) * dtype.itemsize
    if len(data) != wanted:
        raise ValueError(f"{path} is {'too short' if len(data) < wanted else 'too long'}: {len(data)} bytes, "
                         f"but {wanted} for shape {shape} and dtype {dtype.newbyteorder('=')}")
    return np.frombuffer(data, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


# MD5 sums of the standard files, compressed as they are distributed and of what is in them.
_MNIST = {
    "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
    "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
    "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
    "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
}
Pair = tuple[np.ndarray, np.ndarray]


class _Mnist:
    """Handwritten digits: 28 × 28 grey values from 0 to 255, and the digit."""

    @staticmethod
    def load_data(path: str | os.PathLike[str], checksums: str = "warn") -> tuple[Pair, Pair]:
        """`(x_train, y_train), (x_test, y_test)` from the four standard files in the folder `path`: uint8 images of
        shape (n, 28, 28) and uint8 labels.

        Files may be plain or end in .gz, and have a dot in place of the last hyphen. checksums: what to do about files
        that are not, byte for byte, the standard ones: "warn", "raise" (ValueError) or "ignore" (for other data in
        the same form). ValueError for a damaged file or one of another form.
        """
        if checksums not in ("warn", "raise", "ignore"):
            raise ValueError(f'load_data: checksums must be "warn", "raise" or "ignore", got {checksums!r}')
        folder = Path(path)
        arrays: dict[str, np.ndarray] = {}
        for name, sums in _MNIST.items():
            file = _found(folder, name)
            arrays[name] = read_idx(file)
            if checksums != "ignore" and hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest() not in sums:
                text = (f"{file} is not the standard file of this name (its MD5 sum differs); checksums=\"ignore\" "
                        f"takes it without a word")
                if checksums == "raise":
                    raise ValueError(text)
                warnings.warn(text, RuntimeWarning, stacklevel=2)
        pairs: list[Pair] = []
        names = list(_MNIST)
        for images, labels in (names[:2], names[2:]):
            x, y = arrays[images], arrays[labels]
            if x.dtype != np.uint8 or x.ndim != 3 or x.shape[1:] != (28, 28):
                raise ValueError(f"{_found(folder, images)} holds shape {x.shape}, dtype {x.dtype}, not uint8 images "
                                 f"of 28 × 28")
            if y.dtype != np.uint8 or y.ndim != 1:
                raise ValueError(f"{_found(folder, labels)} holds shape {y.shape}, dtype {y.dtype}, not uint8 labels")
            if len(x) != len(y):
                raise ValueError(f"{folder} has {len(x)} images in {images}, but {len(y)} labels in {labels}")
            pairs.append((x, y))
        return pairs[0], pairs[1]


mnist = _Mnist()


def _found(folder: Path, name: str) -> Path:
    """The file of that name, in one of the forms in which it is around."""
    stem, _, ending = name.rpartition("-idx")
    for form in (name, f"{stem}.idx{ending}"):
        for suffix in ("", ".gz"):
            if (file := folder / (form + suffix)).is_file():
                return file
    there = f"; it has {', '.join(sorted(f.name for f in folder.iterdir())[:8])}" if folder.is_dir() else ""
    raise FileNotFoundError(f"{folder} has no file {name} or {name}.gz{there}")
