"""Running on this machine: kernel text to machine code, memory, threads, and the executor of plans.

In: plans and kernels of `lower/`. Out: `Program`s. Read `program.py` first, then `executor.py` (its native side),
`threads.py`, `pool.py` and `build.py`.
"""
