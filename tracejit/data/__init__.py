"""`tj.data`: input for training, read in order or shuffled, in batches, ahead of time, and exactly resumable.

In reading order: `elements.py` (what an element is), `sources.py` (files), `streams.py` and `workers.py` (reading),
`dataset.py` (the recipe).
"""

from tracejit.data.dataset import AUTOTUNE, Dataset, DatasetIterator

__all__ = ["AUTOTUNE", "Dataset", "DatasetIterator"]
