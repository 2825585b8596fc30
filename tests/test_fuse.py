"""Fusion: how many kernels named programs take, and random programs lowered = evaluated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import random_program

import tracejit as tj
from tracejit.config import Options
from tracejit.function import PASSES
from tracejit.ir import Type
from tracejit.lower import kernel as kernels
from tracejit.lower.fuse import fuse
from tracejit.lower.plan import Call, Gemm, Plan
from tracejit.runtime.build import build
from tracejit.runtime.program import Program
from tracejit.tensor import evaluate, wrap
from tracejit.trace.runner import run
from tracejit.trace.tracer import trace_function

F32 = np.dtype("float32")


def lower(f, *shapes, dtype="float32") -> Plan:
    graph = trace_function(f, *(Type(s, np.dtype(dtype)) for s in shapes))
    plan = fuse(run(PASSES, graph), Options())
    for launch in plan.launches:
        kernels.verify(launch.kernel)
    return plan


def count(plan: Plan, kind: type) -> int:
    return sum(isinstance(s, kind) for s in plan.steps)


def test_a_long_chain_with_broadcasting_is_one_kernel():
    def chain(x, row, column):
        for k in range(10):
            x = x * row + column
            x = tj.where(x > k, x, tj.sin(x))
        return x

    assert len(lower(chain, (50, 40), (40,), (50, 1)).steps) == 1


def test_centred_sum_of_squares_is_at_most_two_kernels():
    assert len(lower(lambda x: ((x - x.mean()) ** 2).sum(), (1000, 1000)).steps) == 2
    assert len(lower(lambda x: ((x - x.mean()) ** 2).sum(), (100,)).steps) == 1


def test_softmax_is_one_kernel_of_three_stages():
    def softmax(x):
        e = tj.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    plan = lower(softmax, (512, 1000))
    assert len(plan.steps) == 1
    assert [s.inner for s in plan.launches[0].kernel.stages] == [True, True, True]
    assert len(plan.launches[0].kernel.reads) == 1


def test_layer_norm_is_one_kernel():
    def layer_norm(x, scale, shift):
        mean = x.mean(axis=-1, keepdims=True)
        centred = x - mean
        variance = (centred * centred).mean(axis=-1, keepdims=True)
        return centred / tj.sqrt(variance + 1e-5) * scale + shift

    assert len(lower(layer_norm, (512, 1000), (1000,), (1000,)).steps) == 1


def test_sobel_is_one_kernel_per_output():
    def sobel(gray):
        p = tj.pad(gray, 1)
        gx = (p[:-2, 2:] + 2 * p[1:-1, 2:] + p[2:, 2:]) - (p[:-2, :-2] + 2 * p[1:-1, :-2] + p[2:, :-2])
        gy = (p[2:, :-2] + 2 * p[2:, 1:-1] + p[2:, 2:]) - (p[:-2, :-2] + 2 * p[:-2, 1:-1] + p[:-2, 2:])
        return tj.sqrt(gx * gx + gy * gy)

    assert len(lower(sobel, (100, 120)).steps) == 1


def test_backward_pass_of_a_dense_layer_is_its_matmuls_and_two_kernels():
    def loss(x, w, b):
        return tj.tanh(x @ w + b).sum()

    def gradients(x, w, b):
        return tj.grad(loss, argnums=(0, 1, 2))(x, w, b)

    plan = lower(gradients, (64, 100), (100, 50), (50,))
    assert count(plan, Gemm) == 3
    assert len(plan.steps) <= 3 + 2


def test_results_over_one_space_share_a_kernel():
    plan = lower(lambda x: (x.sum(axis=0), x.max(axis=0), (x * x).sum(axis=0)), (300, 200))
    assert len(plan.steps) == 1
    plan = lower(lambda x: (x + 1, x * 2, tj.exp(x)), (300, 200))
    assert len(plan.steps) == 1


def test_transposes_and_slices_fold_into_gemm():
    plan = lower(lambda a, b: a.T @ b[:, 10:40].T, (30, 40), (50, 60))
    assert [type(s) for s in plan.steps] == [Gemm]


def test_library_calls_are_steps_of_their_own():
    plan = lower(lambda x: tj.sort(x * 2) + 1, (100,))
    assert [type(s).__name__ for s in plan.steps] == ["Launch", "Call", "Launch"]
    assert count(plan, Call) == 1


def test_kernel_text_does_not_depend_on_sizes():
    def f(x, y):
        return tj.exp(x[1:, ::2] - y.mean(axis=0)).sum(axis=1)

    sizes = [(10, 20), (33, 21), (500, 999)]
    texts = {tuple(s.kernel.text for s in lower(f, (n, 2 * m), (n, m)).launches) for n, m in sizes}
    assert len(texts) == 1


def test_a_long_chain_splits_into_kernels_of_bounded_size():
    kinds = np.random.default_rng(0).integers(0, 3, 1000)  # no repetition that could become a loop

    def f(x):
        for k, kind in enumerate(kinds):
            x = x * 1.01 + 0.5 * k if kind == 0 else abs(x) - k if kind == 1 else tj.sqrt(x) * k
        return x

    plan = lower(f, (100,))
    assert 4 <= len(plan.steps) <= 10


def test_deeply_nested_movement_is_cut():
    def f(x):
        for _ in range(300):
            x = tj.pad(x, 1)[1:]
        return x

    plan = lower(f, (10,))
    assert len(plan.steps) <= 20


def run_and_compare(seed: int) -> None:
    graph, arrays = random_program(np.random.default_rng(seed))
    plan = fuse(graph, Options())
    for launch in plan.launches:
        kernels.verify(launch.kernel)
    program = Program(plan, build([s.kernel for s in plan.launches], Options()))
    for got, want in zip(program(arrays), evaluate(graph, [wrap(a) for a in arrays]), strict=True):
        told = f"seed {seed}\n{graph}"
        np.testing.assert_allclose(got.reshape(want.shape), want._value, rtol=1e-9, atol=1e-9, err_msg=told)


@pytest.mark.parametrize("seed", range(16))
def test_random_programs(seed):
    run_and_compare(seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("block", range(20))
def test_many_random_programs(block):
    for seed in range(1000 + 100 * block, 1100 + 100 * block):
        run_and_compare(seed)


def only(plan: Plan) -> kernels.Launch:
    (launch,) = plan.steps
    assert isinstance(launch, kernels.Launch)
    return launch


def test_exponentials_of_a_row_are_kept_not_computed_twice():
    launch = only(lower(tj.softmax, (512, 1000)))
    assert [len(s.keeps) for s in launch.kernel.stages] == [0, 1, 0]
    launch = only(lower(tj.softmax, (64, 20000)))  # a row that would not stay in the innermost cache
    assert not any(s.keeps for s in launch.kernel.stages)


def test_a_transpose_next_to_a_plain_read_goes_by_tiles():
    assert only(lower(lambda x, y: x.T + y, (100, 200), (200, 100))).kernel.tiled
    assert not only(lower(lambda x, y: x.T + y, (3, 200), (200, 3))).kernel.tiled


def test_reshapes_need_no_division():
    def blocks(x):
        return x.reshape(8, 4, 16, 8).transpose(0, 2, 1, 3).reshape(128, 32) * 2

    launch = only(lower(blocks, (32, 128)))
    assert launch.extents == (8, 16, 4, 8)
    assert not {s.op for s in launch.kernel.stmts} & {"quot", "rem"}
    uneven = only(lower(lambda x: x.T.reshape(9, 4), (6, 6)))  # here they must stay
    assert "rem" in {s.op for s in uneven.kernel.stmts}


def test_vectors_run_along_long_dims():
    launch = only(lower(lambda x, w: x * w, (1000, 3), (3,)))
    assert launch.extents == (1000,) and {a.strides for a in launch.kernel.writes} == {("3",)}
    launch = only(lower(lambda x: (x * x).sum(axis=1), (1000, 3)))
    assert launch.extents == (1000,) and not launch.kernel.inner
    launch = only(lower(lambda x: x * 2, (1000, 3)))  # walked as one
    assert launch.extents == (3000,)
    launch = only(lower(lambda x, w: ((x * w).sum(axis=1), (x * x).sum(axis=1), x.max(axis=1)), (500, 400), (400,)))
    assert launch.kernel.vector == "inner"  # although more writes run along the rows than reads along the columns


def test_pairs_are_reduced_on_the_fly():
    def forces(p, m):
        d = p[None] - p[:, None]
        r = (d * d).sum(axis=-1) + 0.01
        return (d * (m / (r * tj.sqrt(r)))[:, :, None]).sum(axis=1)

    launch = only(lower(forces, (300, 3), (300,)))
    assert launch.extents == (300, 300) and len(launch.kernel.accumulators) == 3
    assert sum(s.op == "sqrt" for s in launch.kernel.stmts) == 1


@pytest.mark.parametrize("cut", [np.s_[:, ::2], np.s_[::-1, :4], np.s_[1:, 3:7]])
def test_products_of_arrays_laid_out_in_any_way(cut: Any) -> None:
    a, b = np.random.default_rng(0).standard_normal((6, 8))[cut], np.random.default_rng(1).standard_normal((4, 3))
    np.testing.assert_allclose(tj.function(lambda a, b: a @ b)(a, b).numpy(), a @ b, rtol=1e-12)
    np.testing.assert_allclose(tj.function(lambda a, b: b.T @ a.T)(a, b).numpy(), b.T @ a.T, rtol=1e-12)


def test_products_read_through_reshapes() -> None:
    plan = lower(lambda a, b: a.reshape(-1, 4) @ b, (3, 5, 4), (4, 6))
    assert [type(s) for s in plan.steps] == [Gemm]
    a = np.random.default_rng(0).standard_normal((3, 8, 4))[:, ::2]  # its rows do not follow each other
    b = np.ones((4, 6))
    np.testing.assert_allclose(tj.function(lambda a, b: a.reshape(-1, 4) @ b)(a, b).numpy(), a.reshape(-1, 4) @ b)


def test_costly_parts_of_a_concat_share_a_kernel_over_their_own_space() -> None:
    def f(x: Any) -> Any:
        s = tj.sigmoid(x)
        return tj.concat([s * tj.tanh(x), s * (1 - s), tj.exp(-x) * s], axis=1) @ tj.ones((48, 2), dtype=x.dtype)

    plan = lower(f, (5, 16))
    (made,) = [launch for launch in plan.launches if "concat" in launch.ops]
    assert len(made.kernel.writes) == 3 and made.points == 5 * 16
    x = np.random.default_rng(0).standard_normal((5, 16))
    np.testing.assert_allclose(tj.function(f)(x).numpy(), f(tj.asarray(x)).numpy(), rtol=1e-12)


@pytest.mark.parametrize("dtype, shape, parts", [("complex64", (1000,), 2), ("float32", (1000, 3), 3),
                                                 ("uint8", (1000, 4), 4)])
def test_parts_are_written_in_turn(dtype: str, shape: tuple[int, ...], parts: int) -> None:
    (launch,) = lower(lambda x, w: x * w, shape, shape[1:], dtype=dtype).launches
    assert [a.follows for a in launch.kernel.writes] == [False] + [True] * (parts - 1)
    (launch,) = lower(lambda x: x[:, ::2] * 3, (1000, 4)).launches
    assert not any(a.follows for a in launch.kernel.writes[:1])
