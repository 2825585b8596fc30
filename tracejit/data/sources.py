"""Files as data: tables of text (through pandas) and folders of images (through Pillow).

In: paths. Out: arrays, and a function that reads an image. Both libraries are optional: the extra `train` has them.

Read next: `dataset.py`, `Dataset.from_csv` and `Dataset.from_image_folder`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tracejit import dtypes

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def read_csv(path: str | os.PathLike[str], columns: Sequence[str] | None, label: str | None, stack: bool, dtype: Any,
             options: Mapping[str, Any]) -> Any:
    """The columns of a table (`Dataset.from_csv` tells the rest)."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("from_csv needs pandas: pip install 'tracejit[train]'") from error
    table = pandas.read_csv(path, **options)
    table.columns = [str(c) for c in table.columns]
    wanted = [c for c in table.columns if c != label] if columns is None else [str(c) for c in columns]
    missing = [c for c in [*wanted, *([] if label is None else [str(label)])] if c not in table.columns]
    if missing:
        raise ValueError(f"from_csv: {os.fspath(path)} has no column {', '.join(map(repr, missing))}; it has "
                         f"{', '.join(map(repr, table.columns))}")
    if not len(table) or not wanted:
        raise ValueError(f"from_csv: {os.fspath(path)} has no {'rows' if wanted else 'columns'}")

    def column(name: str) -> np.ndarray:
        given = dtype.get(name) if isinstance(dtype, Mapping) else dtype
        return _column(table[name].to_numpy(), given, f"from_csv: {os.fspath(path)}: column {name!r}")

    data: Any = {name: column(name) for name in wanted}
    if stack:
        text = [name for name, x in data.items() if x.dtype.kind == "U"]
        if text:
            raise TypeError(f"from_csv: columns of text cannot be stacked: {', '.join(map(repr, text))}")
        data = np.stack(list(data.values()), axis=1)
    return data if label is None else (data, column(str(label)))


def _column(x: np.ndarray, dtype: Any, what: str) -> np.ndarray:
    if x.dtype.kind not in "biufc":
        text = np.array(["" if v is None or v != v else v for v in x.tolist()])
        if text.dtype.kind == "U" and dtype is None:
            return text
        x = np.asarray(x)
    if dtype is None:
        dtype = x.dtype
        if x.dtype.kind == "f":
            dtype = dtypes.default_float()
        elif x.dtype.kind in "iu":
            small = np.iinfo(dtypes.default_int())
            fits = not x.size or (x.min() >= small.min and x.max() <= small.max)
            dtype = dtypes.default_int() if fits else np.dtype(np.int64)
    try:
        return x.astype(dtypes.as_dtype(dtype))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: {error}") from error


def image_folder(path: str | os.PathLike[str], size: tuple[int, int] | None, channels: int
                 ) -> tuple[list[str], np.ndarray, list[str], Callable[..., Any]]:
    """Paths, labels, names of the classes, and what reads an image (`Dataset.from_image_folder` tells the rest)."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("from_image_folder needs Pillow: pip install 'tracejit[train]'") from error
    if channels not in _MODES:
        raise ValueError(f"from_image_folder: channels must be 1, 3 or 4, got {channels}")
    root = Path(path)
    if not root.is_dir():
        raise FileNotFoundError(f"from_image_folder: there is no folder {os.fspath(path)}")
    names = sorted(p.name for p in root.iterdir() if p.is_dir())
    files = [(str(f), k) for k, name in enumerate(names) for f in sorted((root / name).rglob("*"))
             if f.suffix.lower() in IMAGES]
    if not files:
        raise ValueError(f"from_image_folder: {os.fspath(path)} has no folders with images in them")

    def decode(file: str, label: Any) -> tuple[np.ndarray, Any]:
        with Image.open(file) as opened:
            image = opened.convert(_MODES[channels])
            if size is not None and image.size != (size[1], size[0]):
                image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            return np.asarray(image).reshape(image.size[1], image.size[0], channels), label

    paths, labels = [f for f, _ in files], np.array([k for _, k in files], np.int64)
    decode.__name__ = f"decode, {size}, {channels}"
    return paths, labels, names, decode
