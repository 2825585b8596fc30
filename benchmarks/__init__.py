"""Benchmarks of tracejit against NumPy, plain Numba, JAX, PyTorch, numexpr and Dr.Jit, whichever are installed.

    python -m benchmarks [--markdown] [--write [FILE]] [--only NAME ...] [--peers NAME ...] [--rounds N] [--threads N]

Every library has a process of its own for each number of threads, so that nobody's idle threads disturb another. Rounds
are interleaved: in each round every library runs the workload for a moment, one after the other. The speed of tracejit
is the median over the rounds of the ratio to the best other library, and every result is compared with NumPy in float64
before it is timed. One more process does what no library can avoid, the same bytes and operations and nothing else.

Read `workloads.py` and its kin (what runs), `peers.py` (how each library is called), `numba_kernels.py` (Numba by
hand), `cold.py` and `memory.py` (what is measured in fresh processes), `harness.py` (timing and tables), `roofline.py`
(the limits of the machine). Accuracy is `ulp.py`'s.
"""
