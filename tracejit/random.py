"""Random numbers under `tj.random`: seeded generators, stateless keys, distributions.

In: shapes and parameters. Out: tensors. Everything here is made in `tracejit.ops.random`.
"""

from __future__ import annotations

from tracejit.ops.random import (
    Generator,
    bernoulli,
    categorical,
    choice,
    default_generator,
    exponential,
    fold_in,
    gumbel,
    key,
    normal,
    permutation,
    randint,
    seed,
    shuffle,
    split,
    truncated_normal,
    uniform,
)

__all__ = [
    "Generator", "bernoulli", "categorical", "choice", "default_generator", "exponential", "fold_in", "gumbel", "key",
    "normal", "permutation", "randint", "seed", "shuffle", "split", "truncated_normal", "uniform",
]
