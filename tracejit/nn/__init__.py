"""Models and their training: modules and layers, losses, metrics, optimizers and the loop around them.

In: tensors, data sets. Out: trained models. Everything here is made from the public parts of the package.

Read next: `module.py`.
"""

# ruff: noqa: F403
from tracejit.nn.functional import *
