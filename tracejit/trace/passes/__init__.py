"""Passes: functions `Graph -> Graph`, one per file, that know nothing of each other. `PASSES` in `function.py` orders
them."""
