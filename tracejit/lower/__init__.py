"""From graphs to code: index maps, kernels, scalar functions, and the text of each target. Read `scalar.py` first."""
