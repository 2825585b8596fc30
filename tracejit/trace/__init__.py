"""From Python to a graph, and from graph to graph.

In: a Python function and its arguments. Out: a verified, optimised `Graph`. Read `tracer.py` first (the recorder), then
`specialization.py` (one trace and when it may be used again), `captures.py` (values from outside), `passes/` and
`runner.py`, and `autodiff.py` for derivatives.
"""
