"""The lowered program as data: steps over numbered buffers.

In: `fuse.py` makes a `Plan` from a graph. Out: `buffers.py` assigns storage to it, `runtime/program.py` runs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tracejit.lower.kernel import Launch, View

if TYPE_CHECKING:
    from tracejit.ir import Op
    from tracejit.lower.buffers import Storage


@dataclass(frozen=True, slots=True)
class Buffer:
    """A C-contiguous block for `shape` elements of `dtype`. Inputs alone may have other strides (in elements).

    input: given at each call, in order of `Plan.inputs`. constant: `value`, fixed. output: fresh at each call, handed
    to the caller. temp: lives inside one call.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    role: Literal["input", "constant", "output", "temp"]
    strides: tuple[int, ...] | None = None
    value: np.ndarray | None = field(default=None, compare=False)
    why: str = field(default="", compare=False)  # for people: why the value is not kept in registers

    @property
    def size(self) -> int:
        n = 1
        for e in self.shape:
            n *= e
        return n

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Gemm:
    """c[batch, m, n] = a[batch, m, k] @ b[batch, k, n]; dtypes that are real and at least 4 bytes, or complex.

    View strides cover (*batch, rows, columns), in elements of `dtype`; for a and b one of the last two is 1 (or that
    extent is 1), a batch stride may be 0. c is contiguous. then: a kernel that works on rows of c, run on each panel of
    them at once. apart: each column by itself, as if it were a batch of its own: a is [batch, m, k, n], its columns
    next to each other.

    Windows of a picture are a matrix whose rows and columns go over several dims: `rows` are the extents that make up m
    in a, `inner` those that make up k in a and in b (if either is given, or columns are apart, both are). Then a may
    have any strides, and b has columns next to each other, or rows that are evenly spaced.
    """

    dtype: np.dtype
    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    a: View
    b: View
    c: View
    where: str = ""
    then: Launch | None = None
    rows: tuple[int, ...] = ()
    inner: tuple[int, ...] = ()
    apart: bool = False


DEEPEST = 512  # elements of a query or value that native code for attention takes: as lines, they lie on a stack


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention by a batch of matrices, or its gradients; float32/64 only. reads: queries, keys, values (for gradients
    lse, delta and g too), then the mask, if any, then the key and number of a draw, if weights are dropped where its
    bits are not below `threshold`. writes: results and lse; or dq, dk and dv; or the mask's gradient; all contiguous.

    View strides cover (*batch, rows, columns), in elements; along columns they are 1 (or the extent is 1), a batch
    stride may be 0, and each of a mask's.
    """

    name: Literal["attention", "attention_grad", "attention_mask_grad"]
    dtype: np.dtype
    batch: tuple[int, ...]
    rows: int
    columns: int
    depth: int
    width: int
    reads: tuple[View, ...]
    writes: tuple[View, ...]
    masked: Literal["", "bool", "number"]
    causal: bool
    scale: float
    threshold: int
    where: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A library step run from Python: `op.eager(*inputs, **attrs)`; each result is copied into its output buffer.

    Inputs are whole buffers, seen as NumPy arrays of the buffer's shape.
    """

    op: Op
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: tuple[tuple[str, Any], ...]
    where: str = ""


@dataclass(frozen=True)
class Part:
    """A plan that runs inside a step of another one, which says what buffers of its own stand for the part's inputs and
    outputs. The part's temps live in the step's `work` buffer."""

    plan: Plan
    storage: Storage


@dataclass(frozen=True)
class Branch:
    """Run one part. `choice` holds a bool (false, true) or an int64 (beyond the parts: the nearest). All parts take
    `inputs` and write `outputs`."""

    choice: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parts: tuple[Part, ...]
    work: int
    where: str = ""


@dataclass(frozen=True)
class Loop:
    """Run `body` again and again: `length` times, or while `test` gives true in `verdict`.

    The carries start as copies of `inits`; the body takes (carries, one row of each of `rows`, operands) and gives the
    next carries and one row of each of `stacks`; the test takes (carries, operands). nexts: where the body writes a
    carry before it takes the old one's place (None: it writes over the old one).
    """

    inits: tuple[int, ...]
    carries: tuple[int, ...]
    nexts: tuple[int | None, ...]
    rows: tuple[int, ...]
    stacks: tuple[int, ...]
    operands: tuple[int, ...]
    body: Part
    test: Part | None
    verdict: int  # -1 without a test
    length: int  # -1 with a test
    reverse: bool
    work: int
    where: str = ""


Step = Launch | Gemm | Attention | Call | Branch | Loop


@dataclass(frozen=True)
class Plan:
    """Steps in order over buffers. `outputs` name, for each result of the graph, the buffer that holds it (it may be an
    input or a constant, and may repeat)."""

    buffers: tuple[Buffer, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[Step, ...]

    @property
    def launches(self) -> tuple[Launch, ...]:
        """All kernels, those inside steps included, in the order that `inner_parts` gives."""
        found: list[Launch] = []
        for s in self.steps:
            if (launch := launch_of(s)) is not None:
                found.append(launch)
            for part in inner_parts(s):
                found += part.plan.launches
        return tuple(found)


def inner_parts(step: Step) -> tuple[Part, ...]:
    """The plans inside a step."""
    if isinstance(step, Branch):
        return step.parts
    if isinstance(step, Loop):
        return (step.body,) if step.test is None else (step.test, step.body)
    return ()


def calls_python(plan: Plan) -> bool:
    """Whether some step runs in Python."""
    return any(isinstance(s, Call) or any(calls_python(p.plan) for p in inner_parts(s)) for s in plan.steps)


def launch_of(step: Step) -> Launch | None:
    """The kernel that a step runs, alone or after a product."""
    return step if isinstance(step, Launch) else step.then if isinstance(step, Gemm) else None


def reads_of(step: Step) -> tuple[int, ...]:
    """Buffers a step reads. What it also writes (a scatter, a product that its kernel reads) does not count here."""
    if isinstance(step, Launch | Attention):
        return tuple(v.buffer for v in step.reads)
    if isinstance(step, Gemm):
        more = step.then.reads if step.then is not None else ()
        return (*operands_of(step), *(v.buffer for v in more if v.buffer != step.c.buffer))
    if isinstance(step, Loop):
        return (*step.inits, *step.rows, *step.operands)
    return (step.choice, *step.inputs) if isinstance(step, Branch) else step.inputs


def operands_of(step: Step) -> tuple[int, ...]:
    """Buffers that a product may read until its last panel is done."""
    return (step.a.buffer, step.b.buffer) if isinstance(step, Gemm) else ()


def writes_of(step: Step) -> tuple[int, ...]:
    """Buffers a step writes."""
    if isinstance(step, Launch | Attention):
        return tuple(v.buffer for v in step.writes)
    if isinstance(step, Gemm):
        return (step.c.buffer, *(v.buffer for v in (step.then.writes if step.then is not None else ())))
    if isinstance(step, Loop):
        own = (*(b for b in step.nexts if b is not None), step.work, *((step.verdict,) if step.test else ()))
        return (*step.carries, *step.stacks, *own)
    return (*step.outputs, step.work) if isinstance(step, Branch) else step.outputs
