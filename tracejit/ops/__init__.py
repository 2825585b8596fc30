"""The ops: every primitive in one declaration, and the functions made of them.

Read in this order: `core.py` (constructors; promotion and broadcasting at the door), the primitives in
`elementwise.py`, `comparison.py`, `special.py`, `reduction.py`, `movement.py`, `indexing.py`, `linalg.py`, `sorting.py`
and `cumulative.py`, windows in `windows.py`, `convolution.py` and `pooling.py`, then what is made of them:
`creation.py`, `shaping.py`, `selection.py`, `subscript.py` (`t[...]`), `einsum.py`,
`statistics.py`, `counting.py`, `numeric.py`, `protocols.py`.
"""
