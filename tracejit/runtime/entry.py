"""The native way into a program: from the arguments of a Python call to its result, without Python in between.

In: a program's frames and molds, and a `Source` for each argument or handle that is checked. Out: a function
`enter(args, instance)` that gives the result, or `miss` if an argument is not as the program wants it. It does what
`trace/shortcut.py` writes in Python for calls with more to them.

A call that comes through takes an idle frame, or has Python make one; makes the arrays of the outputs; runs the frame,
and goes on in Python if that pauses or fails; and wraps the outputs. The GIL is held but for the run itself.

Read next: `executor.py` (what a frame is), `pool_code.py` (molds), `program.py` (who makes entries).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from tracejit import config, dtypes
from tracejit.runtime import pool_code, threads
from tracejit.runtime.build import native_module
from tracejit.runtime.executor import DATA_OFFSET, RUN, Frame
from tracejit.runtime.native import Code, Variable, Word, builtin


class _Entry(IntEnum):
    """Words of an entry. Objects by their address; 0 where there is none."""

    IDLE = 0  # a frame; further ones are found by its NEXT
    CALLS = 1
    ARGUMENTS = 2  # how many
    SOURCES = 3  # how many, and the address of their rows
    SOURCE_ROWS = 4
    READ = 5  # function that gives the handles, or None
    MISS = 6
    DEFAULT = 7  # dtype of Python floats
    NEW_FRAME = 8  # function that gives a frame's address
    RESUME = 9  # function of a frame's runner and the code that it gave
    PREPARE = 10  # function to call when the number of threads is another one
    INPUTS = 11
    OUTPUTS = 12  # how many, and the address of their molds
    MOLDS = 13
    RESULTS = 14  # how many, and the address of their words in the frame
    RESULT_WORDS = 15
    MANY = 16  # 1: a tuple of results
    HANDLE = 17  # class of results, and where it has its value
    VALUE = 18
    DEFAULT_CELL = 19  # addresses of what may change
    WANTED_CELL = 20
    THREADS_CELL = 21
    RUN = 22  # native functions
    MAKE = 23
    NDARRAY = 24
    NONE = 25
    WORDS = 26


class _Source(IntEnum):
    """Words of what is checked, and given to the program."""

    KIND = 0
    NUMBER = 1  # of the argument or handle; or the handle itself
    CLASS = 2
    VALUE = 3  # bytes to the address of its array; 0: it is an array
    DTYPE = 4
    NDIM = 5
    FLAGS = 6  # that NumPy must have set
    EXTENTS = 7  # address
    STRIDES = 8  # address; 0: any
    INPUT = 9  # word of the frame; 0: only checked
    WORDS = 10


_ARGUMENT, _HANDLE, _FIXED = range(3)
_CONTIGUOUS, _ALIGNED = 0x1, 0x100  # NumPy's flags
_INT = (1 << 32) - 1


class Source(NamedTuple):
    """An argument, by its position, or (`hidden`) one of the handles that `read` gives, or (`fixed`) the handle `like`.
    It is to be of the same class as `like`, and its array like that of `like`. input: which of the program's inputs it
    is; -1: none."""

    position: int
    like: Any
    input: int
    hidden: bool = False
    fixed: bool = False


class _Array(IntEnum):
    """Bytes from an array object's start to what is compared. NumPy's headers promise the order."""

    NDIM = DATA_OFFSET + 8
    EXTENTS = DATA_OFFSET + 16
    STRIDES = DATA_OFFSET + 24
    DTYPE = DATA_OFFSET + 40
    FLAGS = DATA_OFFSET + 48


def _offset_of(word: int, instance: Any, size: int) -> int:
    """Where an object has a word."""
    for offset in range(8, size, 8):
        if ctypes.c_ssize_t.from_address(id(instance) + offset).value == word:
            return offset
    raise ImportError(f"tracejit does not know how this Python lays out {type(instance).__name__}")


_TYPE_OFFSET = _offset_of(id(object), object(), object.__basicsize__ + 8)


def _emit(module: ir.Module) -> None:
    fits = _emit_fits(module)
    gather = _emit_gather(module, fits)
    drop = _emit_drop(module)
    wrap = _emit_wrap(module)
    give_back = _emit_give_back(module)
    _emit_enter(module, gather, _emit_run(module, drop, wrap, give_back), give_back)


def _emit_fits(module: ir.Module) -> Code:
    """The array of an object, if both are as the source says; else 0."""
    f = Code(module, "fits", 3, returns=True)
    entry, source, given = f.args

    def unless(condition: Word) -> None:
        with f.when(condition):
            f.ret(0)

    unless(f.load(given + _TYPE_OFFSET) != f.load(source, _Source.CLASS))
    value, array = f.load(source, _Source.VALUE), Variable(f, given)
    with f.when(value != 0):
        found = f.load(given + value)
        unless(found == 0)
        unless(f.load(found + _TYPE_OFFSET) != f.load(entry, _Entry.NDARRAY))
        array.set(found)
    a, ndim, flags = array.get(), f.load(source, _Source.NDIM), f.load(source, _Source.FLAGS)
    unless(f.load(a + _Array.DTYPE) != f.load(source, _Source.DTYPE))
    unless((f.load(a + _Array.NDIM) & _INT) != ndim)
    unless((f.load(a + _Array.FLAGS) & flags) != flags)
    for field, wanted in ((_Array.EXTENTS, _Source.EXTENTS), (_Array.STRIDES, _Source.STRIDES)):
        have, want = f.load(a + field), f.load(source, wanted)
        with f.when(want != 0):
            with f.count(0, ndim) as d:
                unless(f.load(have, d) != f.load(want, d))
    f.ret(a)
    return f


def _emit_gather(module: ir.Module, fits: Code) -> Code:
    """Put the arrays into a frame; whether all are there."""
    f = Code(module, "gather", 4, returns=True)
    entry, frame, args, handles = f.args
    with f.count(0, f.load(entry, _Entry.SOURCES)) as k:
        source = f.load(entry, _Entry.SOURCE_ROWS) + k * (8 * _Source.WORDS)
        kind, number = f.load(source, _Source.KIND), f.load(source, _Source.NUMBER)
        given = Variable(f, number)
        with f.when(kind == _ARGUMENT):
            given.set(f.call_symbol("PyTuple_GetItem", args, number))
        with f.when(kind == _HANDLE):
            given.set(f.call_symbol("PySequence_GetItem", handles, number))
            with f.when(given.get() == 0):
                f.call_symbol("PyErr_Clear")
                f.ret(0)
            f.call_symbol("Py_DecRef", given.get())  # `handles` holds it
        array, word = f.call(fits, entry, source, given.get()), f.load(source, _Source.INPUT)
        with f.when(array == 0):
            f.ret(0)
        with f.when(word != 0):
            f.store(frame, word, array)
    f.ret(1)
    return f


def _emit_drop(module: ir.Module) -> Code:
    """Let go of the first objects of a frame."""
    f = Code(module, "drop", 2)
    frame, count = f.args
    with f.count(Frame.OBJECTS, count + Frame.OBJECTS) as k:
        f.call_symbol("Py_DecRef", f.load(frame, k))
    f.ret()
    return f


def _emit_wrap(module: ir.Module) -> Code:
    """A new handle on an array."""
    f = Code(module, "wrap", 2, returns=True)
    entry, array = f.args
    made = f.call_symbol("PyType_GenericAlloc", f.load(entry, _Entry.HANDLE), 0)
    with f.when(made != 0):
        f.call_symbol("Py_IncRef", array)
        f.store(made + f.load(entry, _Entry.VALUE), 0, array)
    f.ret(made)
    return f


def _emit_give_back(module: ir.Module) -> Code:
    """Another call may take this frame."""
    f = Code(module, "give_back", 2)
    entry, frame = f.args
    f.store(frame, Frame.NEXT, f.load(entry, _Entry.IDLE))
    f.store(entry, _Entry.IDLE, frame)
    f.ret()
    return f


def _emit_run(module: ir.Module, drop: Code, wrap: Code, give_back: Code) -> Code:
    """The result of a frame whose inputs are in place, as references of its own; 0: an exception is set. It lets go of
    all objects, and gives the frame back, but for one that has stopped on its way."""
    f = Code(module, "run", 2, returns=True)
    entry, frame = f.args
    inputs, outputs = f.load(entry, _Entry.INPUTS), f.load(entry, _Entry.OUTPUTS)

    def fail(objects: Word) -> None:
        f.call(drop, frame, objects)
        f.call(give_back, entry, frame)
        f.ret(0)

    with f.when(f.load(entry, _Entry.PREPARE) != 0):
        with f.when(f.load(f.load(entry, _Entry.WANTED_CELL)) != f.load(f.load(entry, _Entry.THREADS_CELL))):
            found = f.call_symbol("PyObject_Vectorcall", f.load(entry, _Entry.PREPARE), 0, 0, 0)
            with f.when(found == 0):
                fail(inputs)
            f.call_symbol("Py_DecRef", found)
    with f.count(0, outputs) as k:
        array = f.call_address(f.load(entry, _Entry.MAKE), f.load(f.load(entry, _Entry.MOLDS), k))
        with f.when(array == 0):
            fail(inputs + k)
        f.store(frame, inputs + k + Frame.OBJECTS, array)
    code = f.call_address(f.load(entry, _Entry.RUN), frame)
    with f.when(code != 0):
        args, runner = f.stack(2), f.load(frame, Frame.RUNNER)
        f.call_symbol("Py_IncRef", runner)  # which lives as long as its frame is read
        f.store(args, 0, runner)
        f.store(args, 1, f.call_symbol("PyLong_FromSsize_t", code))
        found = f.call_symbol("PyObject_Vectorcall", f.load(entry, _Entry.RESUME), args, 2, 0)
        f.call_symbol("Py_DecRef", f.load(args, 1))
        with f.when(found == 0):
            f.call(drop, frame, inputs + outputs)
            f.call_symbol("Py_DecRef", runner)
            f.ret(0)
        f.call_symbol("Py_DecRef", found)
        f.call_symbol("Py_DecRef", runner)

    words, result = f.load(entry, _Entry.RESULT_WORDS), Variable(f, 0)
    with f.when(f.load(entry, _Entry.MANY) == 0):
        result.set(f.call(wrap, entry, f.load(frame, f.load(words))))
    with f.when(f.load(entry, _Entry.MANY) != 0):
        several = f.load(entry, _Entry.RESULTS)
        result.set(f.call_symbol("PyTuple_New", several))
        with f.when(result.get() != 0):
            with f.count(0, several) as k:
                one = f.call(wrap, entry, f.load(frame, f.load(words, k)))
                with f.when(one == 0):
                    f.call_symbol("Py_DecRef", result.get())
                    fail(inputs + outputs)
                f.call_symbol("PyTuple_SetItem", result.get(), k, one)
    f.call(drop, frame, inputs + outputs)
    f.call(give_back, entry, frame)
    f.ret(result.get())
    return f


def _emit_enter(module: ir.Module, gather: Code, run: Code, give_back: Code) -> None:
    f = Code(module, "enter", 3, returns=True, local=False)
    entry = f.call_symbol("PyLong_AsVoidPtr", f.args[0])
    args, instance = f.args[1], f.args[1] + 8
    given = f.load(args)

    def miss() -> None:
        f.call_symbol("Py_IncRef", f.load(entry, _Entry.MISS))
        f.ret(f.load(entry, _Entry.MISS))

    with f.when(f.call_symbol("PyTuple_Size", given) != f.load(entry, _Entry.ARGUMENTS)):
        miss()
    with f.when(f.load(f.load(entry, _Entry.DEFAULT_CELL)) != f.load(entry, _Entry.DEFAULT)):
        miss()
    handles = Variable(f, 0)
    with f.when(f.load(entry, _Entry.READ) != 0):
        handles.set(f.call_symbol("PyObject_Vectorcall", f.load(entry, _Entry.READ), instance, 1, 0))
        with f.when(handles.get() == 0):
            f.ret(0)
        with f.when(handles.get() == f.load(entry, _Entry.NONE)):
            f.call_symbol("Py_DecRef", handles.get())
            miss()

    def forget_handles() -> None:
        with f.when(handles.get() != 0):
            f.call_symbol("Py_DecRef", handles.get())

    frame = Variable(f, f.load(entry, _Entry.IDLE))
    with f.when(frame.get() != 0):
        f.store(entry, _Entry.IDLE, f.load(frame.get(), Frame.NEXT))
    with f.when(frame.get() == 0):
        number = f.call_symbol("PyObject_Vectorcall", f.load(entry, _Entry.NEW_FRAME), 0, 0, 0)
        with f.when(number == 0):
            forget_handles()
            f.ret(0)
        frame.set(f.call_symbol("PyLong_AsVoidPtr", number))
        f.call_symbol("Py_DecRef", number)

    with f.when(f.call(gather, entry, frame.get(), given, handles.get()) == 0):
        f.call(give_back, entry, frame.get())
        forget_handles()
        miss()
    with f.count(Frame.OBJECTS, f.load(entry, _Entry.INPUTS) + Frame.OBJECTS) as k:
        f.call_symbol("Py_IncRef", f.load(frame.get(), k))  # another thread may give the handles other arrays
    forget_handles()
    f.store(entry, _Entry.CALLS, f.load(entry, _Entry.CALLS) + 1)
    f.ret(f.call(run, entry, frame.get()))


_functions = native_module(f"entry {DATA_OFFSET} {_TYPE_OFFSET}", _emit, ("enter",))
_enter = builtin("enter", _functions["enter"], "The result of a call, or what stands for a miss.")


class Frames:
    """The frames of an entry, each as the function that runs it. `make`: makes one; `go_on`: what to do when one has
    stopped."""

    def __init__(self, make: Callable[[], Any], go_on: Callable[[Any, int], None]) -> None:
        self.kept: set[Any] = set()
        self.make, self.go_on = make, go_on

    def new(self) -> int:
        """The address of another frame."""
        run = self.make()
        run.__self__.words[Frame.RUNNER] = id(run)
        self.kept.add(run)
        return run.__self__  # type: ignore[no-any-return]

    def resume(self, run: Any, code: int) -> None:
        """Run a frame that has paused to its end. One that fails is not used again."""
        try:
            self.go_on(run, code)
        except BaseException:
            self.kept.discard(run)
            raise


class Entry(int):
    """The address of an entry's words, and what they refer to."""

    words: Any
    kept: tuple[Any, ...]

    @property
    def calls(self) -> int:
        """How many calls came through."""
        return self.words[_Entry.CALLS]  # type: ignore[no-any-return]


def entry(arguments: int, sources: Sequence[Source], read: Callable[[Any], Any] | None, outputs: Sequence[int],
          many: bool, sample: Any, miss: object, inputs: int, makers: Sequence[Callable[[], np.ndarray]],
          parallel: bool, frames: Frames) -> Callable[..., Any]:
    """`enter(args, instance)`; its `__self__` is the `Entry`. outputs: which of the arrays that `makers` make are the
    results; each gets a handle like `sample`. many: give a tuple of them."""
    rows: list[int] = []
    new, resume, prepare = frames.new, frames.resume, threads.prepare
    kept: list[Any] = [read, miss, makers, new, resume, prepare]
    value = _offset_of(id(sample._value), sample, type(sample).__basicsize__)

    def table(numbers: Sequence[int]) -> int:
        kept.append((ctypes.c_int64 * max(1, len(numbers)))(*numbers))
        return ctypes.addressof(kept[-1])

    for s in sources:
        plain = isinstance(s.like, np.ndarray)
        a = s.like if plain else s.like._value
        contiguous = a.flags.c_contiguous
        kept += [a.dtype, type(s.like), s.like if s.fixed else None]
        row = {
            _Source.KIND: _FIXED if s.fixed else _HANDLE if s.hidden else _ARGUMENT,
            _Source.NUMBER: id(s.like) if s.fixed else s.position,
            _Source.CLASS: id(type(s.like)), _Source.VALUE: 0 if plain else value,
            _Source.DTYPE: id(a.dtype), _Source.NDIM: a.ndim, _Source.FLAGS: _ALIGNED | _CONTIGUOUS * contiguous,
            _Source.EXTENTS: table(a.shape), _Source.STRIDES: 0 if contiguous else table(a.strides),
            _Source.INPUT: Frame.OBJECTS + s.input if s.input >= 0 else 0,
        }
        rows += [row[word] for word in sorted(row)]
    words = (ctypes.c_int64 * _Entry.WORDS)()
    for word, number in {
        _Entry.ARGUMENTS: arguments, _Entry.SOURCES: len(sources), _Entry.SOURCE_ROWS: table(rows),
        _Entry.READ: 0 if read is None else id(read), _Entry.MISS: id(miss),
        _Entry.DEFAULT: id(dtypes.default_float()),
        _Entry.NEW_FRAME: id(new), _Entry.RESUME: id(resume), _Entry.PREPARE: id(prepare) if parallel else 0,
        _Entry.INPUTS: inputs, _Entry.OUTPUTS: len(makers),
        _Entry.MOLDS: table([m.__self__ for m in makers]),  # type: ignore[attr-defined]
        _Entry.RESULTS: len(outputs),
        _Entry.RESULT_WORDS: table([Frame.OBJECTS + inputs + k for k in outputs]),
        _Entry.MANY: many, _Entry.HANDLE: id(type(sample)), _Entry.VALUE: value,
        _Entry.DEFAULT_CELL: ctypes.addressof(dtypes.DEFAULT_ID), _Entry.WANTED_CELL: ctypes.addressof(config.THREADS),
        _Entry.THREADS_CELL: ctypes.addressof(threads.ASKED), _Entry.RUN: RUN, _Entry.MAKE: pool_code.MAKE,
        _Entry.NDARRAY: id(np.ndarray), _Entry.NONE: id(None),
    }.items():
        words[word] = number
    made = Entry(ctypes.addressof(words))
    made.words, made.kept = words, tuple(kept)
    return _enter(made)
