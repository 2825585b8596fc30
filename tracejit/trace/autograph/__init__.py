"""AutoGraph: Python control flow on tensor values.

In: the user's functions. Out: the same functions with `if`, `while`, `for`, `and`, `assert`, `print`, ... going through
operators that look at the value when they run: a plain Python value keeps plain Python meaning; a traced tensor, whose
value is not known yet, becomes a branch or a loop of the graph.

`convert.py` decides which functions are rewritten (at their first call, once per code object), `source.py` finds their
syntax tree, `transform.py` rewrites it, `operators.py` is what the rewritten code calls, `staging.py` traces branches
and loops.
"""
