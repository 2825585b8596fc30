"""A few words on top of llvmlite for hand-written support code: functions over 64-bit words and memory addresses.

In: Python functions that call `Code` methods. Out: LLVM functions in an `ir.Module`, for `build.native_module`; and
`builtin`, which makes Python functions of some of them.

Everything is an `int64` or a truth value; an address is an `int64` too, and memory is read and written by words. That
is all that `threads.py`, `pool_code.py` and `executor.py` need, and it reads nearly as the C it stands for.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Union

from llvmlite import ir

I64 = ir.IntType(64)
I32 = ir.IntType(32)
_WORDS = I64.as_pointer()
Number = Union["Word", int]


class Word:
    """A 64-bit value (or a truth value) with Python's operators; comparisons are signed."""

    __slots__ = ("code", "value")

    def __init__(self, code: Code, value: ir.Value) -> None:
        self.code = code
        self.value = value

    def __add__(self, o: Number) -> Word:
        return Word(self.code, self.code.builder.add(self.value, self.code.word(o)))

    __radd__ = __add__

    def __sub__(self, o: Number) -> Word:
        return Word(self.code, self.code.builder.sub(self.value, self.code.word(o)))

    def __mul__(self, o: Number) -> Word:
        return Word(self.code, self.code.builder.mul(self.value, self.code.word(o)))

    __rmul__ = __mul__

    def __floordiv__(self, o: Number) -> Word:
        """Unsigned quotient."""
        return Word(self.code, self.code.builder.udiv(self.value, self.code.word(o)))

    def __mod__(self, o: Number) -> Word:
        """Unsigned remainder."""
        return Word(self.code, self.code.builder.urem(self.value, self.code.word(o)))

    def __and__(self, o: Number) -> Word:
        return Word(self.code, self.code.builder.and_(self.value, self.code.word(o)))

    def __or__(self, o: Number) -> Word:
        return Word(self.code, self.code.builder.or_(self.value, self.code.word(o)))

    def __rshift__(self, o: int) -> Word:
        return Word(self.code, self.code.builder.lshr(self.value, self.code.word(o)))

    def __lshift__(self, o: int) -> Word:
        return Word(self.code, self.code.builder.shl(self.value, self.code.word(o)))

    def _compare(self, sign: str, o: Number) -> Word:
        return Word(self.code, self.code.builder.icmp_signed(sign, self.value, self.code.word(o)))

    def __lt__(self, o: Number) -> Word:
        return self._compare("<", o)

    def __le__(self, o: Number) -> Word:
        return self._compare("<=", o)

    def __gt__(self, o: Number) -> Word:
        return self._compare(">", o)

    def __ge__(self, o: Number) -> Word:
        return self._compare(">=", o)

    def __eq__(self, o: Number) -> Word:  # type: ignore[override]
        return self._compare("==", o)

    def __ne__(self, o: Number) -> Word:  # type: ignore[override]
        return self._compare("!=", o)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise TypeError("a native value has no truth value while code is written; use Code.when")


class Variable:
    """A local variable: `v.set(v.get() + 1)`."""

    __slots__ = ("code", "slot")

    def __init__(self, code: Code, start: Number) -> None:
        self.code = code
        with code.builder.goto_entry_block():
            self.slot = code.builder.alloca(I64)
        self.set(start)

    def get(self) -> Word:
        return Word(self.code, self.code.builder.load(self.slot))

    def set(self, value: Number) -> None:
        self.code.builder.store(self.code.word(value), self.slot)


class Loop:
    """The inside of `Code.forever`."""

    def __init__(self, code: Code, start: ir.Block, end: ir.Block) -> None:
        self.code = code
        self.start = start
        self.end = end

    def leave(self) -> None:
        self.code.builder.branch(self.end)

    def again(self) -> None:
        self.code.builder.branch(self.start)


class Code:
    """One native function being written. It takes and (if `returns`) gives 64-bit words."""

    def __init__(self, module: ir.Module, name: str, args: int, returns: bool = False, local: bool = True) -> None:
        kind = ir.FunctionType(I64 if returns else ir.VoidType(), [I64] * args)
        self.function = ir.Function(module, kind, name)
        if local:
            self.function.linkage = "internal"
        self.module = module
        self.builder = ir.IRBuilder(self.function.append_basic_block())
        self.args = tuple(Word(self, a) for a in self.function.args)

    def word(self, value: Number) -> ir.Value:
        return value.value if isinstance(value, Word) else ir.Constant(I64, value)

    # ---- memory

    def _at(self, address: Number, index: Number) -> ir.Value:
        where = address + index * 8 if isinstance(address, Word) else Word(self, self.word(address)) + index * 8
        return self.builder.inttoptr(where.value, _WORDS)

    def load(self, address: Number, index: Number = 0) -> Word:
        """Word number `index` after `address`."""
        return Word(self, self.builder.load(self._at(address, index)))

    def load_byte(self, address: Word) -> Word:
        """One byte, unsigned."""
        byte = self.builder.load(self.builder.inttoptr(address.value, ir.IntType(8).as_pointer()))
        return Word(self, self.builder.zext(byte, I64))

    def store(self, address: Number, index: Number, value: Number) -> None:
        self.builder.store(self.word(value), self._at(address, index))

    def load_shared(self, address: Number, index: int) -> Word:
        """A load that other threads may write meanwhile; nothing moves across it."""
        return Word(self, self.builder.load_atomic(self._at(address, index), "seq_cst", 8))

    def store_shared(self, address: Number, index: int, value: Number, order: str = "seq_cst") -> None:
        """A store that other threads may read meanwhile. order: as LLVM names them; "monotonic" may move."""
        self.builder.store_atomic(self.word(value), self._at(address, index), order, 8)

    def add_shared(self, address: Number, index: int, value: Number) -> Word:
        """Add and give the new value, as one step for all threads."""
        old = self.builder.atomic_rmw("add", self._at(address, index), self.word(value), "seq_cst")
        return Word(self, old) + value

    def exchange_if(self, address: Number, index: int, expected: Number, value: Number) -> Word:
        """Store `value` if the word is `expected`, as one step for all threads; whether it was."""
        where = self._at(address, index)
        both = self.builder.cmpxchg(where, self.word(expected), self.word(value), "seq_cst", "seq_cst")
        return Word(self, self.builder.extract_value(both, 1))

    # ---- control

    @contextmanager
    def when(self, condition: Word) -> Iterator[None]:
        with self.builder.if_then(condition.value):
            yield

    @contextmanager
    def forever(self) -> Iterator[Loop]:
        """A loop that ends by `leave` or `ret`."""
        start = self.builder.append_basic_block()
        end = self.builder.append_basic_block()
        self.builder.branch(start)
        self.builder.position_at_end(start)
        yield Loop(self, start, end)
        if not self.builder.block.is_terminated:
            self.builder.branch(start)
        self.builder.position_at_end(end)

    @contextmanager
    def count(self, begin: Number, end: Number) -> Iterator[Word]:
        """A loop over begin, begin + 1, ... below `end`."""
        i = Variable(self, begin)
        with self.forever() as loop:
            now = i.get()
            with self.when(now >= end):
                loop.leave()
            yield now
            i.set(now + 1)

    def select(self, condition: Word, yes: Number, no: Number) -> Word:
        return Word(self, self.builder.select(condition.value, self.word(yes), self.word(no)))

    def smaller(self, a: Number, b: Number) -> Word:
        a = Word(self, self.word(a))
        return self.select(a < b, a, b)

    def ret(self, value: Number | None = None) -> None:
        if value is None:
            self.builder.ret_void()
        else:
            self.builder.ret(self.word(value))

    # ---- calls

    def call(self, other: Code, *args: Number) -> Word:
        return Word(self, self.builder.call(other.function, [self.word(a) for a in args]))

    def call_address(self, address: Word, *args: Number) -> Word:
        """Call a function of words by its address; if it has no result, that must not be used."""
        kind = ir.FunctionType(I64, [I64] * len(args))
        where = self.builder.inttoptr(address.value, kind.as_pointer())
        return Word(self, self.builder.call(where, [self.word(a) for a in args]))

    def address_of(self, other: Code) -> Word:
        return Word(self, self.builder.ptrtoint(other.function, I64))

    def call_symbol(self, name: str, *args: Number) -> Word:
        """Call a C function whose parameters and result are words; a smaller result must not be used."""
        function = self._declared(name, ir.FunctionType(I64, [I64] * len(args)))
        return Word(self, self.builder.call(function, [self.word(a) for a in args]))

    def stack(self, words: int) -> Word:
        """Address of `words` words that live as long as the call."""
        with self.builder.goto_entry_block():
            space = self.builder.alloca(ir.ArrayType(I64, words))
        return Word(self, self.builder.ptrtoint(space, I64))

    def pause(self) -> None:
        """Tell the processor that this is a waiting loop."""
        machine = platform.machine()
        if machine in ("x86_64", "AMD64"):
            self.builder.call(self._declared("llvm.x86.sse2.pause", ir.FunctionType(ir.VoidType(), [])), [])
        elif machine in ("aarch64", "arm64"):
            self.builder.call(self._declared("llvm.aarch64.hint", ir.FunctionType(ir.VoidType(), [I32])), [I32(1)])

    def _declared(self, name: str, kind: ir.FunctionType) -> ir.Function:
        return self.module.globals.get(name) or ir.Function(self.module, kind, name)


class _MethodDef(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
                ("doc", ctypes.c_char_p)]


_METH_FASTCALL = 0x80
_new_function = ctypes.pythonapi["PyCFunction_NewEx"]
_new_function.restype, _new_function.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
_definitions: list[_MethodDef] = []  # which functions refer to


def builtin(name: str, address: int, doc: str) -> Callable[[int], Callable[..., Any]]:
    """Makes builtin functions, as an extension module has them, given their `__self__`. `address` is that of a native
    `PyObject* f(PyObject* self, PyObject* const* arguments, Py_ssize_t count)`."""
    definition = _MethodDef(name.encode(), address, _METH_FASTCALL, doc.encode())
    _definitions.append(definition)
    return lambda own: _new_function(ctypes.addressof(definition), own, None)
