"""How long a pass over a dataset takes: shuffled batches of images, next to NumPy's indexing and PyTorch's DataLoader.

    python -m benchmarks.data

60,000 images of 28 × 28 float32 and their labels, in batches of 32, made anew for each pass. Times are microseconds
for a batch, the best of several passes in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import tracejit as tj

COUNT, BATCH, PASSES = 60_000, 32, 7


def ways() -> dict[str, Callable[[], None]]:
    rng = np.random.default_rng(0)
    x, y = rng.random((COUNT, 28, 28), np.float32), rng.integers(0, 10, COUNT)
    rows = tj.data.Dataset.from_tensor_slices((tj.asarray(x), tj.asarray(y)))

    def numpy_indexing() -> None:
        order = rng.permutation(COUNT)
        for k in range(0, COUNT, BATCH):
            x[order[k: k + BATCH]], y[order[k: k + BATCH]]

    def reading(dataset: tj.data.Dataset) -> Callable[[], None]:
        def read() -> None:
            for _ in dataset:
                pass
        return read

    found = {
        "NumPy, x[order[k:k + 32]]": numpy_indexing,
        "batch(32), in order": reading(rows.batch(BATCH)),
        "shuffle(1000).batch(32)": reading(rows.shuffle(1000).batch(BATCH)),
        "shuffle(60000).batch(32)": reading(rows.shuffle(COUNT).batch(BATCH)),
        "shuffle(60000).batch(32).prefetch(2)": reading(rows.shuffle(COUNT).batch(BATCH).prefetch(2)),
        "cache().shuffle(60000).batch(32), of mapped elements": reading(
            rows.map(lambda x, y: (x, y)).cache().shuffle(COUNT).batch(BATCH)),
        "shuffle(1000).batch(32) of mapped elements": reading(
            rows.map(lambda x, y: (x, y)).shuffle(1000).batch(BATCH)),
    }
    try:
        import torch
        from torch.utils.data import DataLoader, TensorDataset
    except ImportError:
        return found
    loader = DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), BATCH, shuffle=True)

    def torch_loader() -> None:
        for _ in loader:
            pass

    found["torch DataLoader(shuffle=True)"] = torch_loader
    return found


def main() -> None:
    found = ways()
    best = dict.fromkeys(found, float("inf"))
    for _ in range(PASSES):
        for name, f in found.items():
            start = time.perf_counter()
            f()
            best[name] = min(best[name], time.perf_counter() - start)
    for name, seconds in best.items():
        print(f"{seconds / (COUNT / BATCH) * 1e6:8.1f}  {name}")


if __name__ == "__main__":
    main()
