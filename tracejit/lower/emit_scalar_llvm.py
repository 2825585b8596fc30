"""Scalar statements as LLVM instructions, on single values or on vectors of a fixed number of lanes.

In: `Stmt` records with LLVM values as operands (an operand is a vector if it differs between lanes, else a scalar).
Out: LLVM values; memory accesses of vectors; what each accumulator does per vector, across lanes and between partial
results.

float16 values are kept rounded to half; arithmetic on them is done in float. bool values are i1, bools in memory are
bytes. Lanes that a mask switches off compute arbitrary results, and do nothing undefined.

Read next: `emit_llvm.py` (the loops around the statements).
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from tracejit.errors import InternalError
from tracejit.lower.kernel import Accumulator
from tracejit.lower.scalar import BOOL, F16, F32, F64, I32, I64, Stmt

I1, I8, INT32, INT64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
PTR, VOID = ir.PointerType(), ir.VoidType()
_FLOATS = {2: ir.HalfType(), 4: ir.FloatType(), 8: ir.DoubleType()}
_INTS = {1: I8, 2: ir.IntType(16), 4: INT32, 8: INT64}
FAST = ("nnan", "ninf", "nsz", "arcp", "afn", "reassoc", "contract")

State = list[ir.Value]  # the state of one accumulator: see `Emitter.identity`


class Literal(ir.Constant):
    """A constant already written as text (much quicker to print than a list of numbers)."""

    def __init__(self, typ: ir.Type, text: str):
        super().__init__(typ, 0)
        self._text = text

    def get_reference(self) -> str:
        return self._text


class _VectorAddress(ir.Instruction):
    """`base + index` elements for a vector of indices."""

    def __init__(self, block: Any, element: ir.Type, base: ir.Value, index: ir.Value):
        super().__init__(block, ir.VectorType(PTR, index.type.count), "getelementptr", [base, index])
        self._element = element

    def descr(self, buf: list[str]) -> None:
        base, index = self.operands
        buf.append(f"getelementptr {self._element}, ptr {base.get_reference()}, {index.type} {index.get_reference()}\n")


class _Freeze(ir.Instruction):
    """An arbitrary but fixed value where the operand is poison."""

    def __init__(self, block: Any, value: ir.Value):
        super().__init__(block, value.type, "freeze", [value])

    def descr(self, buf: list[str]) -> None:
        buf.append(f"freeze {self.type} {self.operands[0].get_reference()}\n")


def scalar_type(dtype: np.dtype) -> ir.Type:
    if dtype.kind == "b":
        return I1
    return (_FLOATS if dtype.kind == "f" else _INTS)[dtype.itemsize]


def memory_type(dtype: np.dtype) -> ir.Type:
    return I8 if dtype.kind == "b" else scalar_type(dtype)


def _literal_text(value: bool | int | float, typ: ir.Type) -> str:
    if isinstance(typ, ir.IntType):
        return ("false", "true")[bool(value)] if typ.width == 1 else str(int(value))
    if isinstance(typ, ir.HalfType):
        return "0xH" + struct.pack(">e", value).hex().upper()
    return "0x" + struct.pack(">d", float(value)).hex().upper()


def literal(value: bool | int | float, typ: ir.Type) -> Literal:
    """`value` of a scalar type, or in every lane of a vector type. Floats must be exact in the type."""
    if isinstance(typ, ir.VectorType):
        return Literal(typ, f"splat ({typ.element} {_literal_text(value, typ.element)})")
    return Literal(typ, _literal_text(value, typ))


def is_vector(value: ir.Value) -> bool:
    return isinstance(value.type, ir.VectorType)


class Emitter:
    """Emits statements at the builder's position, `lanes` elements at a time (1: plain scalars)."""

    def __init__(self, builder: ir.IRBuilder, lanes: int, fastmath: bool = False, x86: int = 0, parts: int = 1):
        """x86: bytes of the registers, if they are of that kind. parts: what loops cut vectors into."""
        self.b = builder
        self.lanes = lanes
        self.parts = parts
        self.fastmath = fastmath
        self.x86 = x86
        self._dummies: dict[str, ir.Value] = {}

    # ---- small tools

    def vector(self, typ: ir.Type) -> ir.Type:
        return typ if self.lanes == 1 else ir.VectorType(typ, self.lanes)

    def splat(self, value: ir.Value) -> ir.Value:
        """`value` in every lane."""
        if self.lanes == 1 or is_vector(value):
            return value
        vec = self.vector(value.type)
        if isinstance(value, Literal):
            return Literal(vec, f"splat ({value.type} {value.get_reference()})")
        nothing = Literal(vec, "poison")
        one = self.b.insert_element(nothing, value, literal(0, INT32))
        return self.b.shuffle_vector(one, nothing, Literal(ir.VectorType(INT32, self.lanes), "zeroinitializer"))

    def iota(self, typ: ir.IntType) -> ir.Value:
        """0, 1, 2, ... along the lanes."""
        if self.lanes == 1:
            return literal(0, typ)
        return Literal(self.vector(typ), "<" + ", ".join(f"{typ} {i}" for i in range(self.lanes)) + ">")

    def call(self, name: str, ret: ir.Type, args: Sequence[ir.Value], flags: Sequence[str] = ()) -> ir.Value:
        module = self.b.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(ret, [a.type for a in args]), name)
        return self.b.call(function, args, fastmath=flags)

    def intrinsic(self, name: str, args: Sequence[ir.Value], flags: Sequence[str] = ()) -> ir.Value:
        """Call `llvm.<name>` overloaded on the type of its first operand, which is that of its result."""
        return self.call(f"llvm.{name}.{_suffix(args[0].type)}", args[0].type, args, flags)

    def tail_mask(self, remaining: ir.Value) -> ir.Value:
        """Lanes below `remaining` (an i64 of at least 1)."""
        small = INT32 if self.lanes <= 16 else I8
        many = self.b.icmp_signed(">=", remaining, literal(self.lanes, INT64))
        count = self.b.trunc(self.b.select(many, literal(self.lanes, INT64), remaining), small)
        return self.b.icmp_unsigned("<", self.iota(small), self.splat(count))

    def any_lane(self, bits: ir.Value) -> ir.Value:
        if not is_vector(bits):
            return bits
        word = ir.IntType(self.lanes)
        return self.b.icmp_unsigned("!=", self.b.bitcast(bits, word), ir.Constant(word, 0))

    def and_mask(self, x: ir.Value | None, y: ir.Value | None) -> ir.Value | None:
        if x is None or y is None:
            return y if x is None else x
        if is_vector(x) or is_vector(y):
            x, y = self.splat(x), self.splat(y)
        return self.b.and_(x, y)

    def stack(self, typ: ir.Type) -> ir.Value:
        """Room in the function's frame."""
        with self.b.goto_entry_block():
            return self.room(typ)

    def room(self, typ: ir.Type, count: ir.Value | None = None) -> ir.Value:
        """Room in the function's frame, from here on (not in a loop)."""
        room = self.b.alloca(typ, count)
        room.align = 64
        pointer = ir.CastInstr(self.b.block, "bitcast", room, PTR)
        self.b._insert(pointer)
        return pointer

    def _dummy(self, typ: ir.Type) -> ir.Value:
        """A stack cell that switched-off scalar accesses go to."""
        cell = self._dummies.get(str(typ))
        if cell is None:
            cell = self._dummies[str(typ)] = self.stack(typ)
            with self.b.goto_entry_block():
                self.b.store(literal(0, typ), cell)
        return cell

    def zeros(self) -> ir.Value:
        """A vector of zero bytes in memory, for loads that are switched off."""
        typ = ir.VectorType(INT64, self.lanes)
        cell = self._dummies.get("zeros")
        if cell is None:
            cell = self._dummies["zeros"] = self.stack(typ)
            with self.b.goto_entry_block():
                self.b.store(literal(0, typ), cell, align=8)
        return cell

    # ---- statements

    def statement(self, s: Stmt, args: list[ir.Value], source: np.dtype, mask: ir.Value | None = None) -> ir.Value:
        """The result of a pure statement; `source` is the dtype of its operands (of the first, where they differ).

        Lanes outside `mask` may hold anything and must not trap.
        """
        if any(map(is_vector, args)):
            args = [self.splat(a) for a in args]
        flags: tuple[str, ...] = ()
        if self.fastmath and (s.op not in ("add", "sub", "mul") or "contract" in s.attrs):
            flags = FAST  # exact sections (no contract on sums and products) stay exact
        elif "contract" in s.attrs:
            flags = ("contract",)
        if s.op == "cast":
            return self.cast(args[0], s.dtype, source)
        if source == F16 and s.op not in ("const", "select", "bitcast", "neg", "abs"):
            if s.op == "fma":  # the product is exact in double, the sum nearly: as the reference does
                x, y, z = (self.cast(a, F64, F16) for a in args)
                return self.cast(self.b.fadd(self.b.fmul(x, y), z), F16, F64)
            found = self._pure(s, [self.cast(a, F32, F16) for a in args], mask, flags, "f")
            return self.cast(found, F16, F32) if s.dtype == F16 else found
        return self._pure(s, args, mask, flags, s.dtype.kind if s.op == "select" else source.kind)

    def _pure(self, s: Stmt, a: list[ir.Value], mask: ir.Value | None, flags: Sequence[str], kind: str) -> ir.Value:
        b = self.b
        is_float, is_bool = kind == "f", kind == "b"
        match s.op:
            case "const":
                return literal(s.attrs[0], scalar_type(s.dtype))
            case "add":
                return b.fadd(*a, flags=flags) if is_float else b.or_(*a) if is_bool else b.add(*a)
            case "sub":
                return b.fsub(*a, flags=flags) if is_float else b.sub(*a)
            case "mul":
                return b.fmul(*a, flags=flags) if is_float else b.and_(*a) if is_bool else b.mul(*a)
            case "div":
                return b.fdiv(*a, flags=flags)
            case "quot" | "rem":
                if is_float:
                    return b.frem(*a)
                if is_vector(a[0]) and s.dtype.itemsize <= 4:
                    return self._divide(s, a[0], a[1])
                divisor = a[1]
                if mask is not None:  # lanes that hold no element must not divide by zero
                    divisor = b.select(self._like(mask, divisor), divisor, literal(1, divisor.type))
                name = ("s" if kind == "i" else "u") + ("div" if s.op == "quot" else "rem")
                return getattr(b, name)(a[0], divisor)
            case "fma":
                return self.intrinsic("fmuladd" if "contract" in s.attrs else "fma", a, flags=flags)
            case "neg":
                return b.fneg(a[0], flags=flags) if is_float else b.sub(literal(0, a[0].type), a[0])
            case "abs":
                if is_float:
                    return self.intrinsic("fabs", a)
                return a[0] if kind in "ub" else self.intrinsic("abs", [a[0], literal(0, I1)])
            case "sqrt" | "floor" | "ceil" | "trunc" | "rint":
                return self.intrinsic(s.op, a, flags=flags)
            case "min" | "max":
                return self.extreme(s.op, kind, a[0], a[1])
            case "lt" | "le" | "eq" | "ne":
                return self.compare({"lt": "<", "le": "<=", "eq": "==", "ne": "!="}[s.op], kind, a[0], a[1], flags)
            case "and":
                return b.and_(*a)
            case "or":
                return b.or_(*a)
            case "xor":
                return b.xor(*a)
            case "not":
                return b.xor(a[0], literal(True if is_bool else -1, a[0].type))
            case "shl":
                return b.shl(*a)
            case "lshr":
                return b.lshr(*a)
            case "ashr":
                return b.ashr(*a)
            case "ctlz":
                return self.intrinsic("ctlz", [a[0], literal(0, I1)])
            case "popcount":
                return self.intrinsic("ctpop", a)
            case "scale":
                return self._scale(s.dtype, *a)
            case "lookup":
                return self._lookup(s, a[0])
            case "select":
                return b.select(*a)
            case "bitcast":
                typ = scalar_type(s.dtype)
                return b.bitcast(a[0], ir.VectorType(typ, self.lanes) if is_vector(a[0]) else typ)
        raise InternalError(f"no LLVM code for statement {s.op!r}")

    def _divide(self, s: Stmt, x: ir.Value, y: ir.Value) -> ir.Value:
        """Integers of up to 32 bits, through floats of twice the precision: exact, and CPUs have no vector division."""
        wide = F32 if s.dtype.itemsize <= 2 else F64
        floats = self.b.fdiv(self.cast(x, wide, s.dtype), self.cast(y, wide, s.dtype))
        quotient = self.cast(floats, s.dtype, wide)
        return quotient if s.op == "quot" else self.b.sub(x, self.b.mul(quotient, y))

    def _scale(self, dtype: np.dtype, x: ir.Value, n: ir.Value) -> ir.Value:
        """x * 2**n. Elsewhere than in AVX-512, by two powers, as 2**n itself may be no normal number."""
        if self.x86 == 64 and is_vector(x) and dtype != F16:
            suffix, lanes = ("ps", 16) if dtype == F32 else ("pd", 8)

            def scaled(x: ir.Value, n: ir.Value) -> ir.Value:
                everywhere = ir.Constant(ir.IntType(lanes), -1)
                return self.call(f"llvm.x86.avx512.mask.scalef.{suffix}.512", x.type,
                                 [x, n, x, everywhere, literal(4, INT32)])

            return self._by_registers(scaled, lanes, x, n)
        b, mantissa = self.b, 23 if dtype == F32 else 52
        whole, bias = INT32 if dtype == F32 else INT64, 127 if dtype == F32 else 1023
        whole = self.vector(whole) if is_vector(x) else whole
        bits = b.bitcast(b.fadd(n, literal(1.5 * 2.0**mantissa, n.type)), whole)
        half = b.lshr(bits, literal(1, whole))
        for part in (half, b.sub(bits, half)):
            power = b.shl(b.add(part, literal(bias, whole)), literal(mantissa, whole))
            x = b.fmul(x, b.bitcast(power, x.type))
        return x

    def _lookup(self, s: Stmt, number: ir.Value) -> ir.Value:
        """One of 16 numbers, picked from registers where that can be done."""
        b, typ, table = self.b, scalar_type(s.dtype), s.attrs
        if is_vector(number) and (self.x86 == 64 or (self.x86 == 32 and s.dtype == F32)):
            lanes = self.x86 // s.dtype.itemsize
            parts = [Literal(ir.VectorType(typ, lanes), "<" + ", ".join(
                f"{typ} {_literal_text(v, typ)}" for v in table[k: k + lanes]) + ">") for k in range(0, 16, lanes)]

            def picked(number: ir.Value) -> ir.Value:
                if self.x86 == 32:
                    low, high = (self.call("llvm.x86.avx2.permps", p.type, [p, number]) for p in parts)
                    upper = b.and_(number, literal(8, number.type))
                    return b.select(b.icmp_signed("!=", upper, literal(0, number.type)), high, low)
                if lanes == 16:
                    return self.call("llvm.x86.avx512.permvar.sf.512", parts[0].type, [parts[0], number])
                return self.call("llvm.x86.avx512.vpermi2var.pd.512", parts[0].type, [parts[0], number, parts[1]])

            return self._by_registers(picked, lanes, number)
        entries = ir.ArrayType(typ, 16)
        name = "table_" + hashlib.sha1(repr((s.dtype.name, table)).encode()).hexdigest()[:16]
        place = self.b.module.globals.get(name)
        if place is None:
            place = ir.GlobalVariable(self.b.module, entries, name)
            place.linkage, place.global_constant = "internal", True
            place.initializer = ir.Constant(entries, [literal(v, typ) for v in table])
        index = b.and_(number, literal(15, number.type))
        if index.type != INT64 and not (is_vector(index) and index.type.element == INT64):
            index = b.zext(index, self.vector(INT64) if is_vector(index) else INT64)
        if is_vector(index):
            return self.gather(place, index, s.dtype, None)
        return b.load(self.at(place, index, s.dtype), typ=typ, align=s.dtype.itemsize)

    def _by_registers(self, f: Callable[..., ir.Value], lanes: int, *args: ir.Value) -> ir.Value:
        """A function of whole registers of so many lanes, on vectors of any length."""
        n = self.lanes
        if n == lanes:
            return f(*args)
        found: list[ir.Value] = []
        for start in range(0, n, lanes):
            picks = self.picks([min(start + j, n - 1) for j in range(lanes)])
            found.append(f(*(self.b.shuffle_vector(a, Literal(a.type, "poison"), picks) for a in args)))
        while len(found) > 1:
            both = self.picks(range(2 * found[0].type.count))
            found = [self.b.shuffle_vector(x, y, both) for x, y in zip(found[::2], found[1::2], strict=True)]
        whole = found[0]
        return whole if whole.type.count == n else self.b.shuffle_vector(
            whole, Literal(whole.type, "poison"), self.picks(range(n)))

    def _like(self, mask: ir.Value, value: ir.Value) -> ir.Value:
        """A mask fit for a select of `value`s: for a scalar, whether any lane is on."""
        return mask if is_vector(mask) == is_vector(value) else self.any_lane(mask)

    def compare(self, op: str, kind: str, x: ir.Value, y: ir.Value, flags: Sequence[str] = ()) -> ir.Value:
        if kind == "f":
            return (self.b.fcmp_unordered if op == "!=" else self.b.fcmp_ordered)(op, x, y, flags=flags)
        return (self.b.icmp_signed if kind == "i" else self.b.icmp_unsigned)(op, x, y)

    def is_nan(self, x: ir.Value) -> ir.Value:
        return self.b.fcmp_unordered("uno", x, x)

    def extreme(self, op: str, kind: str, x: ir.Value, y: ir.Value) -> ir.Value:
        """min or max; for floats, nan if either is."""
        b = self.b
        if kind == "b":
            return b.and_(x, y) if op == "min" else b.or_(x, y)
        if kind == "f":  # without the order of -0 and +0 this is three instructions
            return self.intrinsic(op + "imum", [x, y], flags=FAST if self.fastmath else ("nsz",))
        return b.select(self.compare("<" if op == "min" else ">", kind, x, y), x, y)

    def cast(self, x: ir.Value, to: np.dtype, source: np.dtype) -> ir.Value:
        """Convert between dtypes as C does; floats out of an integer's range give some fixed integer."""
        b = self.b
        if to == source:
            return x

        def typ(dtype: np.dtype) -> ir.Type:
            return ir.VectorType(scalar_type(dtype), self.lanes) if is_vector(x) else scalar_type(dtype)

        if to.kind == "b":
            if source == F16:
                x, source = b.fpext(x, typ(F32)), F32
            return self.compare("!=", source.kind, x, literal(0, x.type))
        if source.kind == "f" and to.kind == "f":
            if source == F16:
                x = b.fpext(x, typ(F32))
                return x if to == F32 else b.fpext(x, typ(F64))
            if to == F16:
                return b.fptrunc(x if source == F32 else self._round_to_odd(x), typ(F16))
            return b.fpext(x, typ(to)) if to == F64 else b.fptrunc(x, typ(to))
        if to.kind == "f":
            wide = F32 if to == F16 else to
            x = (b.sitofp if source.kind == "i" else b.uitofp)(x, typ(wide))
            return x if to == wide else b.fptrunc(x, typ(to))
        if source.kind == "f":
            if source == F16:
                x = b.fpext(x, typ(F32))
            if to.kind == "u" and to.itemsize == 8:  # negative values wrap
                signed = _Freeze(b.block, b.fptosi(x, typ(I64)))
                b._insert(signed)
                big = _Freeze(b.block, b.fptoui(x, typ(to)))
                b._insert(big)
                return b.select(self.compare("<", "f", x, literal(0.0, x.type)), signed, big)
            wide = I32 if to.itemsize < 4 or to == I32 else I64
            whole = _Freeze(b.block, b.fptosi(x, typ(wide)))
            b._insert(whole)
            return whole if to.itemsize == wide.itemsize else b.trunc(whole, typ(to))
        if to.itemsize == source.itemsize and source.kind != "b":
            return x
        if to.itemsize < source.itemsize:
            return b.trunc(x, typ(to))
        return (b.sext if source.kind == "i" else b.zext)(x, typ(to))

    def _round_to_odd(self, x: ir.Value) -> ir.Value:
        """double to float such that rounding the result again (to half) is rounding once."""
        b, vec = self.b, is_vector(x)

        def typ(t: ir.Type) -> ir.Type:
            return ir.VectorType(t, self.lanes) if vec else t

        near = b.fptrunc(x, typ(_FLOATS[4]))
        back = b.fpext(near, x.type)
        bits = b.bitcast(near, typ(INT32))
        even = b.icmp_signed("==", b.and_(bits, literal(1, bits.type)), literal(0, bits.type))
        inexact = b.fcmp_ordered("!=", back, x)
        below = b.fcmp_ordered("<", self.intrinsic("fabs", [back]), self.intrinsic("fabs", [x]))
        step = b.select(below, literal(1, bits.type), literal(-1, bits.type))
        odd = b.select(b.and_(even, inexact), b.add(bits, step), bits)
        return b.bitcast(odd, near.type)

    @staticmethod
    def limit(dtype: np.dtype, high: bool) -> Any:
        if dtype.kind == "f":
            return float("inf") if high else float("-inf")
        if dtype.kind == "b":
            return high
        return int(np.iinfo(dtype).max if high else np.iinfo(dtype).min)

    # ---- memory

    def at(self, pointer: ir.Value, index: ir.Value, dtype: np.dtype) -> ir.Value:
        return self.b.gep(pointer, [index], source_etype=memory_type(dtype))

    def _in(self, x: ir.Value, dtype: np.dtype) -> ir.Value:
        return self.b.icmp_unsigned("!=", x, literal(0, x.type)) if dtype.kind == "b" else x

    def _out(self, x: ir.Value, dtype: np.dtype) -> ir.Value:
        if dtype.kind != "b":
            return x
        return self.b.zext(x, ir.VectorType(I8, self.lanes) if is_vector(x) else I8)

    def load_scalar(self, pointer: ir.Value, dtype: np.dtype, mask: ir.Value | None = None) -> ir.Value:
        typ = memory_type(dtype)
        if mask is not None:
            pointer = self.b.select(mask, pointer, self._dummy(typ))
        value = self.b.load(pointer, typ=typ, align=dtype.itemsize)
        if mask is not None:
            value = self.b.select(mask, value, literal(0, typ))
        return self._in(value, dtype)

    def store_scalar(self, value: ir.Value, pointer: ir.Value, dtype: np.dtype, mask: ir.Value | None = None) -> None:
        if mask is not None:
            pointer = self.b.select(mask, pointer, self._dummy(memory_type(dtype)))
        self.b.store(self._out(value, dtype), pointer, align=dtype.itemsize)

    def load(self, pointer: ir.Value, dtype: np.dtype, mask: ir.Value | None) -> ir.Value:
        """A vector of adjacent elements."""
        typ = self.vector(memory_type(dtype))
        if mask is None:
            return self._in(self.b.load(pointer, typ=typ, align=dtype.itemsize), dtype)
        name = f"llvm.masked.load.{_suffix(typ)}.p0"
        value = self.call(name, typ, [pointer, literal(dtype.itemsize, INT32), mask, literal(0, typ)])
        return self._in(value, dtype)

    def picks(self, lanes: Sequence[int]) -> Literal:
        """The mask of a shuffle."""
        return Literal(ir.VectorType(INT32, len(lanes)), "<" + ", ".join(f"i32 {p}" for p in lanes) + ">")

    def reversed(self, vector: ir.Value) -> ir.Value:
        """The lanes in the other order."""
        return self.b.shuffle_vector(vector, Literal(vector.type, "poison"), self.picks(range(self.lanes)[::-1]))

    def load_spread(self, pointer: ir.Value, dtype: np.dtype, stride: int) -> ir.Value:
        """Every second (third, fourth) element, without touching what lies behind the last one."""
        n, typ = self.lanes, self.vector(memory_type(dtype))
        starts = [*range(0, n * (stride - 1), n), (n - 1) * stride + 1 - n]
        found: ir.Value | None = None
        for part, start in enumerate(starts):
            more = self.b.load(self.at(pointer, literal(start, INT64), dtype), typ=typ, align=dtype.itemsize)
            mine = [min(j * stride // n, stride - 1) == part for j in range(n)]
            picks = [n + j * stride - start if mine[j] else j for j in range(n)]
            found = more if found is None else found
            found = self.b.shuffle_vector(found, more, self.picks(picks))
        return self._in(found, dtype)

    def _addresses(self, pointer: ir.Value, index: ir.Value, dtype: np.dtype) -> ir.Value:
        instruction = _VectorAddress(self.b.block, memory_type(dtype), pointer, index)
        self.b._insert(instruction)
        return instruction

    def gather(self, pointer: ir.Value, index: ir.Value, dtype: np.dtype, mask: ir.Value | None) -> ir.Value:
        """Elements at a vector of i64 indices; 0 where the mask is off."""
        typ = self.vector(memory_type(dtype))
        mask = literal(True, self.vector(I1)) if mask is None else self.splat(mask)
        args = [self._addresses(pointer, index, dtype), literal(dtype.itemsize, INT32), mask, literal(0, typ)]
        return self._in(self.call(f"llvm.masked.gather.{_suffix(typ)}.v{self.lanes}p0", typ, args), dtype)

    def transpose(self, rows: list[ir.Value]) -> list[ir.Value]:
        """The columns of a square of vectors: halves of pairs are exchanged, of ever closer ones."""
        n = step = self.lanes
        while step > 1:
            step //= 2
            low = [j if not j & step else n + j - step for j in range(n)]
            high = [j + step if not j & step else n + j for j in range(n)]
            found = list(rows)
            for i in (i for i in range(n) if not i & step):
                for at, picks in ((i, low), (i + step, high)):
                    found[at] = self.b.shuffle_vector(rows[i], rows[i + step], self.picks(picks))
            rows = found
        return rows

    def prefetch(self, pointer: ir.Value, level: int) -> None:
        """Ask for what will be read soon, into the cache of that level."""
        hint = [literal(v, INT32) for v in (0, 4 - level, 1)]
        self.call("llvm.prefetch.p0", VOID, [pointer, *hint])

    def store(self, value: ir.Value, pointer: ir.Value, dtype: np.dtype, mask: ir.Value | None) -> None:
        """A vector into adjacent elements."""
        value = self._out(self.splat(value), dtype)
        if mask is None:
            self.b.store(value, pointer, align=dtype.itemsize)
        else:
            name = f"llvm.masked.store.{_suffix(value.type)}.p0"
            self.call(name, VOID, [value, pointer, literal(dtype.itemsize, INT32), self.splat(mask)])

    def store_streaming(self, value: ir.Value, pointer: ir.Value, dtype: np.dtype, align: int) -> None:
        """A vector into adjacent aligned elements, past the cache."""
        store = self.b.store(self._out(self.splat(value), dtype), pointer, align=align)
        store.set_metadata("nontemporal", self.b.module.add_metadata([ir.Constant(INT32, 1)]))

    def store_in_turn(self, values: Sequence[ir.Value], pointer: ir.Value, dtype: np.dtype) -> None:
        """The first lane of each vector, then the second of each, and so on, into adjacent elements."""
        n, turns = self.lanes, len(values)
        values = [self._out(self.splat(v), dtype) for v in values]
        for start in range(0, n * turns, n):
            lane, turn = [(start + j) // turns for j in range(n)], [(start + j) % turns for j in range(n)]
            found, kept = values[0], lane
            for k, more in enumerate(values[1:], 1):
                picks = self.picks([n + lane[j] if turn[j] == k else kept[j] for j in range(n)])
                found, kept = self.b.shuffle_vector(found, more, picks), list(range(n))
            self.b.store(found, self.at(pointer, literal(start, INT64), dtype), align=dtype.itemsize)

    def store_spread(self, value: ir.Value, pointer: ir.Value, dtype: np.dtype, stride: int) -> None:
        """A vector into every second (third, fourth) element, leaving the others as they are."""
        n = self.lanes
        value = self._out(self.splat(value), dtype)
        for start in range(0, n * stride, n):
            on = [(start + j) % stride == 0 for j in range(n)]
            keep = Literal(self.vector(I1), "<" + ", ".join(f"i1 {str(k).lower()}" for k in on) + ">")
            picks = self.picks([(start + j) // stride for j in range(n)])
            part = self.b.shuffle_vector(value, Literal(value.type, "poison"), picks)
            where = self.at(pointer, literal(start, INT64), dtype)
            self.call(f"llvm.masked.store.{_suffix(value.type)}.p0", VOID,
                      [part, where, literal(dtype.itemsize, INT32), keep])

    def scatter(self, value: ir.Value, pointer: ir.Value, index: ir.Value, dtype: np.dtype,
                mask: ir.Value | None) -> None:
        value = self._out(self.splat(value), dtype)
        mask = literal(True, self.vector(I1)) if mask is None else self.splat(mask)
        self.call(f"llvm.masked.scatter.{_suffix(value.type)}.v{self.lanes}p0", VOID,
                  [value, self._addresses(pointer, index, dtype), literal(dtype.itemsize, INT32), mask])

    # ---- accumulators

    def compensated(self, a: Accumulator) -> bool:
        """Whether rounding errors are collected in a second sum: free next to memory, and more exact than pairwise
        summation at any length."""
        return a.op == "add" and a.dtype in (F32, F64) and not self.fastmath

    def state_dtypes(self, a: Accumulator) -> list[np.dtype]:
        """Element dtypes of an accumulator's state: value; and rounding error, or position."""
        if a.op in ("argmin", "argmax"):
            return [a.dtype, I64]
        return [a.dtype, a.dtype] if self.compensated(a) else [a.dtype]

    def identity(self, a: Accumulator, vector: bool) -> State:
        """The state of an accumulator that has seen nothing."""
        if a.op in ("add", "mul"):
            value: bool | int | float = a.op == "mul"
        elif a.op in ("and", "or"):
            value = 0 if a.op == "or" else True if a.dtype == BOOL else -1
        elif a.dtype.kind == "b":
            value = a.op.endswith("min")
        elif a.dtype.kind == "f":
            value = np.inf if a.op.endswith("min") else -np.inf
        else:
            limits = np.iinfo(a.dtype)
            value = int(limits.max if a.op.endswith("min") else limits.min)
        values = [value, 0] if self.compensated(a) else [value]
        if a.op.startswith("arg"):
            values.append(np.iinfo(np.int64).max)  # behind every position
        types = [self.vector(scalar_type(d)) if vector else scalar_type(d) for d in self.state_dtypes(a)]
        return [literal(v, t) for v, t in zip(values, types, strict=True)]

    def combine(self, a: Accumulator, x: ir.Value, y: ir.Value) -> ir.Value:
        """One step of a plain accumulator, y being the older value."""
        return self.statement(Stmt(a.op, a.dtype), [x, y], a.dtype)

    def accumulate(self, a: Accumulator, state: State, news: list[State], mask: ir.Value | None) -> State:
        """Take in some vectors (for argmin and argmax each with its positions), those lanes that are on.

        A sum's state of one value is a plain sum.
        """
        if mask is not None:
            keep = self.identity(a, is_vector(news[0][0]))
            news = [[self.b.select(self._like(mask, v), v, k) for v, k in zip(new, keep, strict=False)] for new in news]
        if self._is_extreme(a):
            return [self._extreme_of(a, state[0], [v for v, in news])]
        while len(news) > 1:  # a tree: exact enough, and independent steps
            pairs = [self._pair(a, news[i], news[i + 1]) for i in range(0, len(news) - 1, 2)]
            news = pairs + news[len(pairs) * 2:]
        exact = self.compensated(a) and len(state) == 2
        return self._add(state, news[0][0]) if exact else self._pair(a, state, news[0])

    def _pair(self, a: Accumulator, older: State, newer: State) -> State:
        """One step of an accumulator that keeps no rounding error; positions grow from the older to the newer."""
        if a.op.startswith("arg"):
            return self._later(a, older, newer)
        return [self.combine(a, newer[0], older[0])]

    def _is_extreme(self, a: Accumulator) -> bool:
        return a.op in ("min", "max") and a.dtype in (F32, F64) and not self.fastmath

    def _farther(self, a: Accumulator, x: ir.Value, y: ir.Value) -> ir.Value:
        """The extreme of two floats; y where one is nan. One instruction, where `extreme` takes three."""
        return self.b.select(self.b.fcmp_ordered("<" if a.op == "min" else ">", x, y), x, y)

    def _extreme_of(self, a: Accumulator, older: ir.Value, news: list[ir.Value]) -> ir.Value:
        """The extreme of some floats, nan if there is one: nan is looked for in two at a time."""
        b = self.b
        nan: ir.Value | None = None
        for x, y in itertools.zip_longest(news[::2], news[1::2]):
            found = b.fcmp_unordered("uno", x, x if y is None else y)
            nan = found if nan is None else b.or_(nan, found)
        while len(news) > 1:
            news = [self._farther(a, x, y) for x, y in zip(news[::2], news[1::2])] + news[len(news) // 2 * 2:]
        return b.select(nan, literal(np.nan, older.type), self._farther(a, news[0], older))

    def _add(self, state: State, x: ir.Value) -> State:
        """Add with the rounding error kept (Knuth's exact sum of two numbers)."""
        b = self.b
        total, error = state
        new = b.fadd(total, x)
        part = b.fsub(new, total)
        lost = b.fadd(b.fsub(total, b.fsub(new, part)), b.fsub(x, part))
        return [new, b.fadd(error, lost)]

    def _later(self, a: Accumulator, older: State, newer: State) -> State:
        """The newer (value, position) where its value is more extreme, else the older; the first nan stays."""
        b, kind = self.b, a.dtype.kind
        x, y = newer[0], older[0]
        op = "<" if a.op == "argmin" else ">"
        if kind == "f":
            if a.dtype == F16:
                x, y = self.cast(x, F32, F16), self.cast(y, F32, F16)
            take = b.and_(b.fcmp_unordered(op, x, y), b.fcmp_ordered("ord", y, y))
        else:
            take = self.compare(op, kind, x, y)
        return [b.select(take, n, o) for n, o in zip(newer, older, strict=True)]

    def unless_found(self, state: State, first: ir.Value) -> State:
        """After a loop over something: where nothing beat the identity, all equals it and the first position wins."""
        value, position = state
        if is_vector(position):
            first = self.splat(first)
        nothing = self.b.icmp_signed("==", position, literal(np.iinfo(np.int64).max, position.type))
        return [value, self.b.select(nothing, first, position)]

    def _better(self, a: Accumulator, x: State, y: State) -> State:
        """Of two (value, position) pairs the extreme one, nan before all, the first of equals."""
        b, kind = self.b, a.dtype.kind
        op = "<" if a.op == "argmin" else ">"
        (v, i), (w, j) = x, y
        if kind == "f":
            if a.dtype == F16:
                v, w = self.cast(v, F32, F16), self.cast(w, F32, F16)
            nan_v, nan_w = self.is_nan(v), self.is_nan(w)
            wins = b.or_(self.compare(op, kind, v, w), b.and_(nan_v, b.not_(nan_w)))
            ties = b.or_(self.compare("==", kind, v, w), b.and_(nan_v, nan_w))
        else:
            wins, ties = self.compare(op, kind, v, w), self.compare("==", kind, v, w)
        take = b.or_(wins, b.and_(ties, b.icmp_signed("<", i, j)))
        return [b.select(take, x[0], y[0]), b.select(take, i, j)]

    def merge(self, a: Accumulator, state: State, result: State) -> State:
        """Take in a finished partial result."""
        if a.op.startswith("arg"):
            return self._better(a, result, state)
        return self.accumulate(a, state, [result], None)

    def across(self, a: Accumulator, state: State) -> State:
        """The lanes of a state combined, halves first, into a scalar result."""
        state = self.result(a, state)
        n = self.lanes
        nan = self.any_lane(self.is_nan(state[0])) if self._is_extreme(a) else None
        while n > 1:
            n //= 2
            wide = ir.VectorType(INT32, n)

            def part(v: ir.Value, start: int, n: int = n, wide: ir.Type = wide) -> ir.Value:
                picks = Literal(wide, "<" + ", ".join(f"i32 {start + j}" for j in range(n)) + ">")
                return self.b.shuffle_vector(v, Literal(v.type, "poison"), picks)

            low, high = [part(v, 0) for v in state], [part(v, n) for v in state]
            narrow = Emitter(self.b, n, self.fastmath)
            step = narrow.combine if nan is None else narrow._farther
            state = narrow._better(a, low, high) if a.op.startswith("arg") else [step(a, high[0], low[0])]
        if nan is not None:
            state = [self.b.select(nan, literal(np.nan, state[0].type), state[0])]
        return [self.b.extract_element(v, literal(0, INT32)) if is_vector(v) else v for v in state]

    def result(self, a: Accumulator, state: State) -> State:
        """A state without its rounding error (which is nan once the sum has overflowed)."""
        if not self.compensated(a):
            return state
        total, error = state
        return [self.b.select(self.is_nan(error), total, self.b.fadd(total, error))]

    def carry(self, a: Accumulator, result: State) -> ir.Value:
        """What a `carry` statement sees of a finished result."""
        if not a.op.startswith("arg"):
            return result[0]
        nothing = literal(np.iinfo(np.int64).max, result[1].type)
        return self.b.select(self.b.icmp_signed("==", result[1], nothing), literal(-1, result[1].type), result[1])


def _suffix(typ: ir.Type) -> str:
    """How a type is spelled in the name of an intrinsic."""
    if isinstance(typ, ir.VectorType):
        return f"v{typ.count}{_suffix(typ.element)}"
    return f"i{typ.width}" if isinstance(typ, ir.IntType) else typ.intrinsic_name
