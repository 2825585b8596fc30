"""The native executor: runs a program's steps from one pointer, without Python in between.

In: arrays. Out: 0 when the program is done, n + 1 when step n of the plan wants Python, -(n + 1) when a check failed in
native step n, `PAUSE` now and then in a long loop, so that Python can see to its signals.

A frame is the memory of one call, in 64-bit words (`Frame`): where to go on, which program, the error record, then the
arrays' objects, then the slots of every launch. `bind` makes a frame's address a builtin function, as an extension
module has them; called with arrays, it notes them in the frame. The executor reads each array's data pointer where
NumPy keeps it, puts addresses into slots (a relocation: slot, object, bytes to add), and runs the steps (`Step`).
Called without arrays, it goes on where it returned.

BLAS is called through two functions with the ABI of kernels whose items are the matrices of a batch.

Read next: `program.py` (who fills frames).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

import numpy as np
from llvmlite import ir

from tracejit.lower.epilogue import PANEL_BYTES, PANEL_SLOTS
from tracejit.lower.kernel import View
from tracejit.runtime.build import native_module
from tracejit.runtime.native import I64, Code, Loop, Variable, Word, builtin
from tracejit.runtime.threads import THREADS


class Frame(IntEnum):
    """Words at the start of a frame."""

    STEP = 0  # the next step to run; 0: start
    PROGRAM = 1
    ERROR = 2  # site + 1 of a failed check, then the value
    PATIENCE = 4  # work that may still be done before a pause, in nanoseconds, roughly
    ZERO = 5  # always 0
    NEXT = 6  # of the idle frames of an entry
    RUNNER = 7  # of a frame of an entry: the function that runs it
    OBJECTS = 8


class Header(IntEnum):
    """Words of a program."""

    STEPS = 0
    RELOCATIONS = 1
    RELOCATION_COUNT = 2
    LAUNCH = 3  # of threads.py
    CELL = 4
    RELEASE = 5  # 1: other Python threads may run meanwhile
    WORDS = 6


class Control(IntEnum):
    """What stands in place of a step's function where control moves, or addresses do. WORD is a word of the frame;
    TABLE is the address of ENTRIES entries."""

    RETURN = 0  # to Python with RESULT, to go on at NEXT
    JUMP = 1  # to NEXT
    UNLESS = 2  # the byte that WORD points to: jump to NEXT
    COUNT = 3  # WORD down by one; jump to NEXT unless it is 0 now
    SWITCH = 4  # jump to the entry numbered by the int64 that WORD points to, or the nearest
    MOVE = 5  # entries (word, source, n): word = source + n
    COPY = 6  # entries (word, source, n): n bytes between the places that two words point to
    SLICES = 7  # turns of a loop, shared out as TABLE (a `Share`) says; then go to RESULT, or by NEXT if some are left
    LIMIT = 16  # functions lie above


PAUSE = 1 << 40
PATIENCE = 20_000_000  # nanoseconds between pauses
ENTRY_WORDS = 3


class Step(IntEnum):
    """Words of a step; the second group is that of steps whose FUNCTION is a `Control`."""

    FUNCTION = 0
    SLOTS = 1  # bytes from the frame's start
    BEGIN = 2
    ITEMS = 3
    CHUNK = 4
    CHECKS = 5  # 1: look at the error record afterwards
    NUMBER = 6  # the plan's step
    WORDS = 7
    RESULT = 1
    NEXT = 2
    WORD = 3
    TABLE = 4
    ENTRIES = 5
    COST = 6  # of an iteration


class Share(IntEnum):
    """Words that tell how a loop is shared out by slices of rows. A thread does all turns of its slices on words of its
    own, copies of the loop's in the frame; a slice is one chunk of a step, and some rows of what is copied."""

    FIRST = 0  # word of the loop; copies follow
    WORDS = 1
    SLICES = 2
    EACH = 3  # rows of a slice
    ROWS = 4
    COUNTER = 5  # the word that counts turns
    TURNS = 6  # before a pause, at most
    TOP = 7  # the steps of a turn
    END = 8


RELOCATION_WORDS = 3


class Chain(IntEnum):
    """Words of a product's slots that is followed by a kernel on each panel. Slots are named by their bytes."""

    PRODUCT = 0
    PRODUCT_SLOTS = 1
    LAUNCH = 2
    LAUNCH_SLOTS = 3
    ROWS = 4  # of a matrix
    PANEL = 5  # rows of an item
    PANELS = 6  # items of a matrix
    EACH = 7  # items of the kernel for one row
    # Where panels are kept by the thread that makes them:
    PRODUCT_WORDS = 8  # of its slots
    RESULT = 9  # the slot of the address of the result
    LAUNCH_WORDS = 10
    OPERAND = 11  # the slot of the address that the kernel reads it at
    ROW_BYTES = 12


class Pair(IntEnum):
    """Words of the slots of two kernels that go together, block by block of rows. Slots are named by their bytes."""

    FIRST = 0
    FIRST_SLOTS = 1
    BLOCK = 2  # items of the first kernel in a block
    ITEMS = 3  # all of them
    SECOND = 4  # the same words


class Blas(IntEnum):
    """Words of a BLAS call's slots: the function, its arguments (all addresses), then the batch: number of dims, and
    for each its extent and the byte strides of the operands."""

    FUNCTION = 0
    ARGUMENTS = 1
    BATCH = 14
    DIMS = 15


@dataclass(slots=True)
class NativeCall:
    """One native function with its slots. views: what the address in a slot is to show. scratch_slots: those that are
    to hold addresses in `scratch` bytes, and how far from the start. constants: memory that slots point to. items,
    chunk: as of a launch."""

    function: int
    words: list[int]
    views: dict[int, View]
    items: int
    chunk: int
    work: float
    scratch_slots: dict[int, int] = field(default_factory=dict)
    scratch: int = 0
    constants: object = None


GEMM_OPERANDS = (13, (6, 8, 11))  # how many arguments; which are a, b, c
GEMV_OPERANDS = (11, (4, 6, 9))


def _find_data_offset() -> int:
    """Bytes from an array object's start to its data pointer."""
    probes: list[np.ndarray] = [np.zeros(3, np.int8), np.zeros(1000), np.zeros((2, 3))[1:], np.zeros(())]
    data = [p.__array_interface__["data"][0] for p in probes]
    for offset in range(16, 64, 8):
        if [ctypes.c_ssize_t.from_address(id(p) + offset).value for p in probes] == data:
            return offset
    raise ImportError(f"tracejit does not know how NumPy {np.__version__} lays out its arrays on this Python")


DATA_OFFSET = _find_data_offset()


def _emit(module: ir.Module) -> None:
    _emit_call(module, _emit_unlocked(module, _emit_run(module, _emit_slices(module))))
    _emit_chain(module, "chain", False)
    _emit_chain(module, "chain_on_panels", True)
    _emit_pair(module)
    _emit_blas(module, "gemm", *GEMM_OPERANDS)
    _emit_blas(module, "gemv", *GEMV_OPERANDS)


def _emit_call(module: ir.Module, run: Code) -> None:
    """`PyObject* call(PyObject* frame address, PyObject* const* arrays, Py_ssize_t count)`."""
    f = Code(module, "call", 3, returns=True, local=False)
    me, arrays, count = f.args
    frame = f.call_symbol("PyLong_AsVoidPtr", me)
    with f.count(0, count) as k:
        f.store(frame, k + Frame.OBJECTS, f.load(arrays, k))
    f.ret(f.call_symbol("PyLong_FromSsize_t", f.call(run, frame)))


def _emit_unlocked(module: ir.Module, run: Code) -> Code:
    """Run a frame, without the GIL if that takes long."""
    f = Code(module, "run_unlocked", 1, returns=True, local=False)
    (frame,) = f.args
    result = Variable(f, 0)
    release = f.load(f.load(frame, Frame.PROGRAM), Header.RELEASE)
    with f.when(release != 0):
        state = f.call_symbol("PyEval_SaveThread")
        result.set(f.call(run, frame))
        f.call_symbol("PyEval_RestoreThread", state)
    with f.when(release == 0):
        result.set(f.call(run, frame))
    f.ret(result.get())
    return f


def _emit_slices(module: ir.Module) -> Code:
    """All turns of a loop for neighbouring slices. In: addresses of the frame, the `Share` and the steps."""
    f = Code(module, "slices", 3)
    given, begin, end = f.args
    whole, share, steps = (f.load(given, k) for k in range(3))
    words, each, rows, counter, top, bottom = (
        f.load(share, w) for w in (Share.WORDS, Share.EACH, Share.ROWS, Share.COUNTER, Share.TOP, Share.END))
    end = f.smaller(end, f.load(share, Share.SLICES))
    with f.when(begin >= end):
        f.ret()
    frame = whole + begin * words * 8  # there the words of these slices have the numbers that the loop's have
    left = f.load(frame, counter)
    turns = f.smaller(left, f.load(share, Share.TURNS))
    f.store(frame, counter, left - turns)
    first = begin * each
    mine = f.smaller(end * each, rows) - first
    with f.count(0, turns):
        with f.count(top, bottom) as step:
            at = steps + step * (8 * Step.WORDS)
            function = f.load(at, Step.FUNCTION)
            with f.when(function == Control.MOVE):
                _emit_moves(f, frame, at)
            with f.when(function == Control.COPY):
                with _entries(f, at) as (target, source, size):
                    to, of, row = f.load(frame, target), f.load(frame, source), size // rows
                    f.call_symbol("memmove", to + first * row, of + first * row, mine * row)
            with f.when(function >= Control.LIMIT):
                chunk = f.load(at, Step.CHUNK)
                f.call_address(function, frame + f.load(at, Step.SLOTS), begin * chunk,
                               f.smaller(end * chunk, f.load(at, Step.ITEMS)))
    f.ret()
    return f


@contextmanager
def _entries(f: Code, at: Word) -> Iterator[tuple[Word, Word, Word]]:
    """Over the entries of a control step."""
    table = f.load(at, Step.TABLE)
    with f.count(0, f.load(at, Step.ENTRIES)) as k:
        where = table + k * (8 * ENTRY_WORDS)
        yield f.load(where, 0), f.load(where, 1), f.load(where, 2)


def _emit_moves(f: Code, frame: Word, at: Word) -> None:
    with _entries(f, at) as (target, source, add):
        f.store(frame, target, f.load(frame, source) + add)


def _emit_run(module: ir.Module, slices: Code) -> Code:
    f = Code(module, "run", 1, returns=True)
    (frame,) = f.args
    program = f.load(frame, Frame.PROGRAM)
    step = Variable(f, f.load(frame, Frame.STEP))
    with f.when(step.get() == 0):
        relocations = f.load(program, Header.RELOCATIONS)
        with f.count(0, f.load(program, Header.RELOCATION_COUNT)) as k:
            at = relocations + k * (8 * RELOCATION_WORDS)
            data = f.load(f.load(frame, f.load(at, 1)) + DATA_OFFSET)
            f.store(frame, f.load(at, 0), data + f.load(at, 2))
    steps, launch, cell = (f.load(program, w) for w in (Header.STEPS, Header.LAUNCH, Header.CELL))
    with f.forever() as loop:
        at = steps + step.get() * (8 * Step.WORDS)
        function = f.load(at, Step.FUNCTION)
        with f.when(function < Control.LIMIT):
            _emit_control(f, loop, frame, at, function, step)
            with f.when(function == Control.SLICES):
                _emit_share(f, loop, frame, at, step, slices, steps, launch, cell)
            f.store(frame, Frame.STEP, f.load(at, Step.NEXT))
            f.ret(f.load(at, Step.RESULT))
        slots = frame + f.load(at, Step.SLOTS)
        items, chunk = f.load(at, Step.ITEMS), f.load(at, Step.CHUNK)
        with f.when(chunk < items):
            f.call_address(launch, cell, function, slots, items, chunk)
        with f.when(chunk >= items):
            f.call_address(function, slots, f.load(at, Step.BEGIN), items)
        with f.when(f.load(at, Step.CHECKS) != 0):
            with f.when(f.load(frame, Frame.ERROR) != 0):
                f.ret(f.load(at, Step.NUMBER) * -1 - 1)
        step.set(step.get() + 1)
    f.builder.unreachable()
    return f


def _emit_chain(module: ir.Module, name: str, on_panels: bool) -> None:
    """A product's panels, and right after each the kernel on its rows. on_panels: the rows are in this thread's memory
    only, and so are the slots that tell where."""
    f = Code(module, name, 3, local=False)
    slots, begin, end = f.args
    product, launch, rows, panel, panels, each = (
        f.load(slots, w) for w in (Chain.PRODUCT, Chain.LAUNCH, Chain.ROWS, Chain.PANEL, Chain.PANELS, Chain.EACH))
    product_slots, launch_slots = slots + f.load(slots, Chain.PRODUCT_SLOTS), slots + f.load(slots, Chain.LAUNCH_SLOTS)
    if on_panels:
        memory = (f.stack(PANEL_BYTES // 8 + 8) + 63) & -64
        own = []
        for theirs, words in ((product_slots, Chain.PRODUCT_WORDS), (launch_slots, Chain.LAUNCH_WORDS)):
            own.append(f.stack(PANEL_SLOTS))
            with f.count(0, f.load(slots, words)) as k:
                f.store(own[-1], k, f.load(theirs, k))
        product_slots, launch_slots = own
    with f.count(begin, end) as item:
        first = item % panels * panel
        start = item // panels * rows
        if on_panels:
            whole = memory - (start + first) * f.load(slots, Chain.ROW_BYTES)  # where a whole result would start
            f.store(product_slots, f.load(slots, Chain.RESULT), whole)
            f.store(launch_slots, f.load(slots, Chain.OPERAND), whole)
        f.call_address(product, product_slots, item, item + 1)
        f.call_address(launch, launch_slots, (start + first) * each, (start + f.smaller(first + panel, rows)) * each)
    f.ret()


def _emit_control(f: Code, loop: Loop, frame: Word, at: Word, kind: Word, step: Variable) -> None:
    following, word = f.load(at, Step.NEXT), f.load(at, Step.WORD)

    def again() -> None:
        _emit_again(f, loop, frame, at, step)

    with f.when(kind == Control.MOVE):
        _emit_moves(f, frame, at)
        step.set(step.get() + 1)
        loop.again()
    with f.when(kind == Control.UNLESS):
        step.set(f.select(f.load_byte(f.load(frame, word)) == 0, following, step.get() + 1))
        loop.again()
    with f.when(kind == Control.COUNT):
        left = f.load(frame, word) - 1
        f.store(frame, word, left)
        with f.when(left > 0):
            again()
        step.set(step.get() + 1)
        loop.again()
    with f.when(kind == Control.JUMP):
        again()
    with f.when(kind == Control.COPY):
        with _entries(f, at) as (target, source, size):
            to, of = f.load(frame, target), f.load(frame, source)
            with f.when(to != of):
                f.call_symbol("memmove", to, of, size)
        step.set(step.get() + 1)
        loop.again()
    with f.when(kind == Control.SWITCH):
        chosen, last = f.load(f.load(frame, word)), f.load(at, Step.ENTRIES) - 1
        chosen = f.smaller(f.select(chosen < 0, 0, chosen), last)
        step.set(f.load(f.load(at, Step.TABLE), chosen))
        loop.again()


def _emit_again(f: Code, loop: Loop, frame: Word, at: Word, step: Variable, turns: Word | int = 1) -> None:
    """Go back to the start of a loop, by way of Python now and then."""
    following = f.load(at, Step.NEXT)
    patience = f.load(frame, Frame.PATIENCE) - f.load(at, Step.COST) * turns
    f.store(frame, Frame.PATIENCE, patience)
    with f.when(patience < 0):
        f.store(frame, Frame.PATIENCE, PATIENCE)
        f.store(frame, Frame.STEP, following)
        f.ret(PAUSE)
    step.set(following)
    loop.again()


def _emit_share(f: Code, loop: Loop, frame: Word, at: Word, step: Variable, slices: Code, steps: Word, launch: Word,
                cell: Word) -> None:
    """Turns of a loop in slices, as many together as there are threads for. A launch of two chunks would not wake a
    worker: it has a third, which is nothing."""
    share = f.load(at, Step.TABLE)
    first, words, count = (f.load(share, w) for w in (Share.FIRST, Share.WORDS, Share.SLICES))
    own = frame + first * 8
    with f.count(1, count) as number:
        with f.count(0, words) as k:
            f.store(own + number * words * 8, k, f.load(own, k))
    given = f.stack(3)
    for word, value in enumerate((frame, share, steps)):
        f.store(given, word, value)
    pool, together = f.load_shared(cell, 0), Variable(f, count)
    with f.when(pool != 0):
        threads = f.load(pool, THREADS)
        together.set((count + threads - 1) // threads)
    chunk = together.get()
    entry = Word(f, f.builder.ptrtoint(slices.function, I64))
    f.call_address(launch, cell, entry, given, f.select(chunk * 2 < count, count, chunk * 2 + 1), chunk)
    with f.when(f.load(frame, f.load(share, Share.COUNTER)) > 0):
        _emit_again(f, loop, frame, at, step, f.load(share, Share.TURNS))
    step.set(f.load(at, Step.RESULT))
    loop.again()


def _emit_pair(module: ir.Module) -> None:
    f = Code(module, "pair", 3, local=False)
    slots, begin, end = f.args
    parts = [slots, slots + 8 * Pair.SECOND]
    words = [[f.load(at, w) for w in (Pair.FIRST, Pair.FIRST_SLOTS, Pair.BLOCK, Pair.ITEMS)] for at in parts]
    with f.count(begin, end) as number:
        for function, at, block, items in words:
            start = number * block
            f.call_address(function, slots + at, start, f.smaller(start + block, items))
    f.ret()


def _emit_blas(module: ir.Module, name: str, count: int, operands: tuple[int, ...]) -> None:
    f = Code(module, name, 3, local=False)
    slots, begin, end = f.args
    function, dims = f.load(slots, Blas.FUNCTION), f.load(slots, Blas.BATCH)
    with f.count(begin, end) as matrix:
        rest = Variable(f, matrix)
        moves = [Variable(f, 0) for _ in operands]
        with f.count(0, dims) as d:
            at = slots + (dims - 1 - d) * 32 + 8 * Blas.DIMS
            extent = f.load(at, 0)
            here = rest.get() % extent
            rest.set(rest.get() // extent)
            for k, move in enumerate(moves):
                move.set(move.get() + here * f.load(at, 1 + k))
        arguments = [f.load(slots, Blas.ARGUMENTS + k) for k in range(count)]
        for k, move in zip(operands, moves, strict=True):
            arguments[k] = arguments[k] + move.get()
        f.call_address(function, *arguments)
    f.ret()


_functions = native_module(f"executor {DATA_OFFSET} {PANEL_BYTES} {PANEL_SLOTS}", _emit,
                           ("call", "run_unlocked", "chain", "chain_on_panels", "pair", "gemm", "gemv"))
RUN = _functions["run_unlocked"]
CHAIN, CHAIN_ON_PANELS, PAIR = (_functions[name] for name in ("chain", "chain_on_panels", "pair"))
GEMM, GEMV = _functions["gemm"], _functions["gemv"]
# The builtin function that runs the frame at an address, its `__self__`.
bind: Callable[[int], Callable[..., int]] = builtin("run", _functions["call"], "Run a frame with these arrays.")


@cache
def _cython_blas() -> Any:
    """SciPy's module of BLAS pointers, alone: with the rest of `scipy.linalg` an import takes ten times as long."""
    import scipy  # lazy: only programs with a matrix product need it

    name = "scipy.linalg.cython_blas"
    spec = PathFinder.find_spec(name, [os.path.join(path, "linalg") for path in scipy.__path__])
    if name in sys.modules or spec is None or spec.loader is None:
        return import_module(name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules.pop(name, None)  # so that a real import later puts it where it belongs
    return module


@cache
def blas(name: str) -> int:
    """Address of a BLAS routine."""
    capsule = _cython_blas().__pyx_capi__[name]
    get_name, get_pointer = ctypes.pythonapi["PyCapsule_GetName"], ctypes.pythonapi["PyCapsule_GetPointer"]
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get_pointer(capsule, get_name(capsule)))
