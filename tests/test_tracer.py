"""The recorder: nodes, captures, constants, what leaves the trace, nested traces."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.ir import INPUT, Op, Type, count, verify
from tracejit.tensor import apply, evaluate, recording, state
from tracejit.trace.tracer import Trace, rewrite, trace_function

F3 = Type((3,), np.dtype("f4"))


def test_nodes_are_strict_and_carry_the_line() -> None:
    graph = trace_function(lambda a, b: a * 2 + b, F3, Type((2, 3), np.dtype("f8")), names=["p", "q"])
    verify(graph)
    assert [n.op.name for n in graph.nodes] == ["full", "multiply", "cast", "broadcast_to", "add"]
    assert [n.name for n in graph.inputs] == ["p", "q"] and graph.outputs[0].type == Type((2, 3), np.dtype("f8"))
    assert all("test_tracer.py:" in n.where for n in graph.nodes)


def test_the_line_of_code_called_through_numpy_is_the_users() -> None:
    graph = trace_function(lambda a: np.sum(np.sin(a)), F3)
    assert all("test_tracer.py:" in n.where for n in graph.nodes)


def test_state_is_restored_and_apart_in_threads() -> None:
    trace = Trace()
    with recording(trace):
        assert state.trace is trace
        seen: list[Any] = []
        thread = threading.Thread(target=lambda: seen.append((state.trace, (tj.ones(2) + 1).numpy().tolist())))
        thread.start()
        thread.join()
    assert seen == [(None, [2.0, 2.0])] and state.trace is None
    with pytest.raises(KeyError):
        with recording(Trace()):
            raise KeyError
    assert state.trace is None and not state.active


def test_captured_tensors_are_inputs_by_handle() -> None:
    w, v = tj.ones(3), tj.ones(3)
    graph = trace_function(lambda a: a * w + w - v, F3)
    assert len(graph.inputs) == 3 and [h is t for h, t in zip(graph.notes["captured"], (w, v), strict=True)] == [
        True,
        True,
    ]
    out = evaluate(graph, [tj.ones(3), w, v])[0]
    np.testing.assert_array_equal(out.numpy(), 1)


def test_numbers_become_literals_and_lists_constants() -> None:
    graph = trace_function(lambda a: a * 2.5 + tj.asarray(3) + tj.asarray([1.0, 2.0, 3.0]), F3)
    assert count(graph, "full") == 2 and count(graph, "constant") == 1


def test_a_local_numpy_array_is_a_constant_and_is_not_aliased() -> None:
    def f(a):
        t = np.arange(3, dtype="f4")
        b = a * t
        c = a * t
        t[:] = 0
        return b + c

    graph = trace_function(f, F3)
    assert count(graph, "constant") == 1
    np.testing.assert_array_equal(evaluate(graph, [tj.ones(3)])[0].numpy(), [0, 2, 4])


def test_tuple_results_are_taken_apart() -> None:
    both = Op("both", "control", infer=lambda x: (x, Type((), x.dtype)), eager=lambda x: (x + 1, x.sum()))
    graph = trace_function(lambda a: (lambda p: p[0] * p[1])(apply(both, (a,), {})), F3)
    verify(graph)
    assert [n.op.name for n in graph.nodes] == ["both", "getitem", "getitem", "broadcast_to", "multiply"]
    np.testing.assert_array_equal(evaluate(graph, [tj.ones(3)])[0].numpy(), [6, 6, 6])
    again = rewrite(graph, lambda node, args: None)
    verify(again)
    np.testing.assert_array_equal(evaluate(again, [tj.ones(3)])[0].numpy(), [6, 6, 6])


def test_an_inner_trace_captures_outer_values() -> None:
    outer = Trace("outer")
    with recording(outer):
        x = outer.input(F3)
        y = x * 2
        inner = Trace("inner")
        with recording(inner):
            a = inner.input(F3)
            b = a + y
            assert inner.node_of(y).op is INPUT
            with pytest.raises(tj.TracerError):
                bool(y[0])
        graph = inner.finish([b])
        assert len(graph.inputs) == 2 and [c.handle is y for c in inner.captured.values()] == [True]
        with pytest.raises(tj.LeakedTracerError):
            _ = b + 1
        outer.finish([y])


def test_writes_to_outside_handles_are_undone_and_reported() -> None:
    t, v = tj.zeros(3), tj.Variable([1.0])
    values = t._value, v._value
    trace = Trace()
    with recording(trace):
        t += 1
        v.assign(v * 2)
        local = tj.ones(3)
        local += 1
        written = trace.close()
    assert [h for h, _ in written] == [t, v] or {id(h) for h, _ in written} == {id(t), id(v)}
    assert (t._value, v._value) == values or (t._value is values[0] and v._value is values[1])
    graph = trace.finish([new for _, new in written])
    assert len(graph.inputs) == 2 and len(graph.outputs) == 2


def test_concrete_follows_python_numbers_only() -> None:
    trace = Trace()
    with recording(trace):
        n, m, a = trace.number(3), trace.number(2.5), trace.input(F3, "argument 'a'")
        assert int(n * 2 + 1) == 7 and not trace.needed.keys() ^ {n._value}
        assert range(n)[-1] == 2 and bool(m > 2) and float(m * n) == 7.5
        assert trace.needed == {n._value: 3, m._value: 2.5}
        assert (n + 1).dtype == tj.int64 and (n * m).dtype == tj.float64 and (a * n * m).dtype == tj.float32
        with pytest.raises(tj.TracerError, match="argument 'a'"):
            int(a[0] * n)


def test_concrete_is_linear_in_the_graph() -> None:
    trace = Trace()
    with recording(trace):
        n = trace.number(0)
        for _ in range(2000):
            n = n + 1
            int(n)  # each looks at the whole chain behind it, once
        assert int(n) == 2000


def test_writes_from_outside_are_refused_by_trace_function() -> None:
    t = tj.zeros(3)

    def f(a):
        t[0] = a[0]
        return t

    with pytest.raises(tj.TracerError, match="writes a tensor from outside"):
        trace_function(f, F3)
    np.testing.assert_array_equal(t.numpy(), 0)


def test_rewrite_keeps_names_notes_and_lines() -> None:
    graph = trace_function(lambda a: a * 2, F3, names=["p"])
    graph.notes["strides"] = {0: (2,)}
    again = rewrite(graph, lambda node, args: None)
    assert (
        again is not graph and again.notes == graph.notes and again.inputs[0].name == "p" and again.name == graph.name
    )
    assert [n.where for n in again.nodes] == [n.where for n in graph.nodes] and str(again) == str(graph)
