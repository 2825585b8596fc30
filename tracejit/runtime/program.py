"""The executor of a plan: arrays in, arrays out.

In: a `Plan` and the address of each launch's kernel. Out: a `Program`: `program(arrays)` gives the results.

What can be known before a call is worked out once: places of buffers, cuts of launches, the table of steps, and a
template of the memory that one call needs (a frame, see `executor.py`). A call takes a frame, allocates the results,
and calls native code once with all arrays, or once more after each step that runs in Python. Frames are kept and never
shared by two calls.

Read next: `lower/buffers.py` (places), `grid.py` (cuts), `executor.py` (native side).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from ctypes import c_char
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from time import perf_counter
from typing import Any

import numpy as np

from tracejit import config
from tracejit.errors import InternalError, locate
from tracejit.ir import Type
from tracejit.lower import buffers
from tracejit.lower.epilogue import elements_per_item, is_copy, items_per_row
from tracejit.lower.kernel import Launch
from tracejit.lower.plan import Attention, Branch, Call, Gemm, Loop, Part, Plan, calls_python
from tracejit.lower.plan import Step as PlanStep
from tracejit.runtime import executor, gemm, pairs, pool, threads
from tracejit.runtime.attention import attention_calls
from tracejit.runtime.entry import Frames, Source, entry
from tracejit.runtime.executor import RELOCATION_WORDS, Control, Frame, Header, NativeCall, bind
from tracejit.runtime.gemm_code import Word
from tracejit.runtime.grid import Grid, along_rows, grid
from tracejit.runtime.nested import Base, Draft, Rows, Scope, lay_out_branch, lay_out_loop
from tracejit.runtime.slices import Slices, sliced

_KEPT_ARENA = 1 << 18  # bytes of arena that a frame keeps between calls; larger ones come from the pool at each call
_QUICK = 5_000.0  # nanoseconds of work during which other Python threads may wait
_NO_TARGETS: dict[int, np.ndarray] = {}


class _Frame(int):
    """Memory of one call; as a number, its address. `arena` belongs to the frame or, if large, to the call."""

    words: np.ndarray
    arena: np.ndarray | None
    views: dict[int, np.ndarray]  # temps as arrays, for steps in Python

    def __new__(cls, layout: _Layout) -> _Frame:
        words = layout.template.copy()
        frame = super().__new__(cls, words.ctypes.data)
        frame.words = words
        words[layout.error_slots] = frame + 8 * Frame.ERROR
        frame.set_arena(layout, pool.aligned(layout.arena_bytes) if layout.arena_kept else None)
        return frame

    def set_arena(self, layout: _Layout, arena: np.ndarray | None) -> None:
        self.arena, self.views = arena, {}
        self.words[layout.arena_word] = id(arena)


def _new_runner(layout: _Layout) -> Callable[..., int]:
    """A frame as a function, which keeps it alive as its `__self__`."""
    return bind(_Frame(layout))


@dataclass(slots=True)
class _Layout:
    """What frames are made from: words, where the error record's address goes, and the arena (scratch included)."""

    template: np.ndarray
    error_slots: list[int]
    arena_word: int
    arena_bytes: int

    @property
    def arena_kept(self) -> bool:
        return self.arena_bytes <= _KEPT_ARENA


@dataclass(frozen=True, slots=True)
class _Run:
    """A native function over items: word of its slots, first item, items, how many in a row for one thread."""

    function: int
    at: int
    begin: int
    items: int
    chunk: int
    work: float


class Program:
    """A plan made runnable. Safe to call from several threads at once, and after a fork."""

    def __init__(self, plan: Plan, kernels: Sequence[int], storage: buffers.Storage | None = None) -> None:
        """`kernels` holds the address of the code of each of `plan.launches`."""
        if len(kernels) != len(plan.launches):
            raise InternalError(f"{len(plan.launches)} launches but {len(kernels)} kernels")
        self.plan = plan
        self.storage = storage if storage is not None else buffers.assign(plan)
        if config.debug.check:
            buffers.verify(plan, self.storage)
        self.grids: dict[int, Grid] = {}  # how each launch that does anything is cut up, by step of the plan
        self._numbered: list[tuple[Scope, PlanStep]] = []  # every step, those of parts after the plan's own
        self._error_slots: list[int] = []
        self._runners: list[Callable[..., int]] = []
        self._constants: list[Any] = []  # what native code holds addresses of
        self._tables: dict[tuple[tuple[int, ...], bool], np.ndarray] = {}
        self._steps: list[np.ndarray] = []
        arrays = self.storage.arrays
        self._object_count = len(plan.inputs) + len(arrays) + 1  # the arena comes last
        self._layout = self._build(kernels)
        self._makers = [pool.maker(plan.buffers[b].shape, plan.buffers[b].dtype) for b in arrays]
        self._results = [self._source(b) for b in plan.outputs]
        self._copies = {p: step for p in self.storage.reusable if (step := self._copy_of(p)) is not None}
        self._stops = calls_python(plan)
        scopes = {id(scope): scope for scope, _ in self._numbered}.values()
        self._parallel = any(r.chunk < r.items for scope in scopes
                             for runs in (*scope.runs.values(), scope.ahead) for r in runs)
        self._checked = config.debug.check >= 2
        self.name = "program"  # for people
        self.profile: list[tuple[int, float]] | None = None
        self._header = self._table((), False)
        self._layout.template[Frame.PROGRAM] = self._header.ctypes.data
        self._short: Callable[[Sequence[np.ndarray]], list[np.ndarray]] | None = None
        if self._layout.arena_kept and not (self._stops or self._checked):
            make = _short_call(len(plan.inputs), len(arrays), tuple(self._results), self._parallel)
            self._short = make(self._runners, partial(_new_runner, self._layout), self._makers, plan.buffers,
                               threads.prepare, partial(_resume, self._numbered))

    # ---- calling

    def __call__(self, arrays: Sequence[np.ndarray], into: Mapping[int, np.ndarray] | None = None) -> list[np.ndarray]:
        """The results, in the plan's order. `into` gives arrays to write outputs into, by output position; one may be
        an input where `storage.reusable` says so."""
        return self._general_call(arrays, into) if into else self.call(arrays)

    @property
    def call(self) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
        """What to call when there is no `into`: the fastest way."""
        quick = self.profile is None and config.debug.watch is None
        return self._short if quick and self._short is not None else self._general_call

    def _general_call(self, arrays: Sequence[np.ndarray],
                      into: Mapping[int, np.ndarray] = _NO_TARGETS) -> list[np.ndarray]:
        if len(arrays) != len(self.plan.inputs):
            raise InternalError(f"{len(arrays)} arrays for {len(self.plan.inputs)} inputs")
        if self._checked:
            self._check_inputs(arrays)
        if self._parallel:
            threads.prepare()
        given = {self._results[position]: a for position, a in into.items()}
        for position, a in into.items():
            self._check_target(arrays, position, a)
        made = [given[("array", k)] if ("array", k) in given else make() for k, make in enumerate(self._makers)]
        try:
            run = self._runners.pop()
        except IndexError:
            run = _new_runner(self._layout)
        frame: _Frame = run.__self__  # type: ignore[attr-defined]
        if not self._layout.arena_kept:
            frame.set_arena(self._layout, pool.aligned(self._layout.arena_bytes))
        in_place = tuple(p for p in self._copies if p in into and into[p] is arrays[self.storage.reusable[p]])
        profile, watch = self.profile, config.debug.watch
        header = self._table(in_place, profile is not None or watch is not None)
        frame.words[Frame.PROGRAM] = header.ctypes.data
        begin = start = perf_counter()
        code = run(*arrays, *made)
        while code:
            if code == executor.PAUSE:
                code = run()
                continue
            if code < 0:
                _raise_failure(self._numbered, frame, code)
            scope, step = self._numbered[code - 1]
            if isinstance(step, Call):
                self._run_in_python(step, scope, frame, arrays, made)
            if (profile is not None or watch is not None) and scope is self._scope:
                now = perf_counter()
                if profile is not None:
                    calls, seconds = profile[code - 1]
                    profile[code - 1] = calls + 1, seconds + now - start
                if watch is not None:
                    watch.step(self, code - 1, start, now)
                start = perf_counter()
            code = run()
        if watch is not None:
            watch.program(self, begin, perf_counter())
        if not self._layout.arena_kept:
            frame.set_arena(self._layout, None)
        frame.words[Frame.PROGRAM] = self._header.ctypes.data
        self._runners.append(run)
        return [made[k] if kind == "array" else arrays[k] if kind == "input" else self._constant(k)
                for kind, k in self._results]

    def over(self, places: Mapping[int, int], wanted: Sequence[int]) -> Callable[[Sequence[Any]], list[Any]] | None:
        """A function like `call` that writes outputs (`places`: by position) over inputs, whose memory the caller lends
        for it, and gives only the `wanted` outputs. None where calls are watched or stop for Python."""
        if self._stops or self._checked or self.profile is not None or config.debug.watch is not None:
            return None
        sources = {self._results[p][1]: i for p, i in places.items()}
        lent = tuple(sources.get(k, 0) for k in range(len(self._makers)))
        fresh = [(k, make) for k, make in enumerate(self._makers) if k not in sources]
        header = self._table(tuple(p for p in self._copies if p in places), False)
        layout, parallel, runners, numbered = self._layout, self._parallel, list[Callable[..., int]](), self._numbered
        found = [self._results[p] for p in wanted]

        def call(arrays: Sequence[Any]) -> list[Any]:
            made = [arrays[i] for i in lent]
            for k, make in fresh:
                made[k] = make()
            if parallel:
                threads.prepare()
            try:
                run = runners.pop()
            except IndexError:
                run = _new_runner(layout)
                run.__self__.words[Frame.PROGRAM] = header.ctypes.data  # type: ignore[attr-defined]
            if not layout.arena_kept:
                run.__self__.set_arena(layout, pool.aligned(layout.arena_bytes))  # type: ignore[attr-defined]
            if code := run(*arrays, *made):
                _resume(numbered, run, code)
            if not layout.arena_kept:
                run.__self__.set_arena(layout, None)  # type: ignore[attr-defined]
            runners.append(run)
            return [made[k] if kind == "array" else arrays[k] if kind == "input" else self._constant(k)
                    for kind, k in found]

        return call

    def entry(self, arguments: int, sources: Sequence[tuple[Any, ...]], read: Callable[[Any], Any] | None,
              outputs: Sequence[int], many: bool, sample: Any, miss: object) -> Callable[..., Any] | None:
        """The native way in, for calls with so many arguments that give these outputs, by position; `sources`: see
        `Source` in `entry.py`. None where there is more to do, or where calls are watched."""
        found = [self._results[p] for p in outputs]
        if self._short is None or self.call is not self._short or any(kind != "array" for kind, _ in found):
            return None
        frames = Frames(partial(_new_runner, self._layout), partial(_resume, self._numbered))
        return entry(arguments, [Source(*s) for s in sources], read, [k for _, k in found], many, sample, miss,
                     len(self.plan.inputs), self._makers, self._parallel, frames)

    def profiling(self, on: bool) -> None:
        """Count calls and seconds of each step in `profile` (by step of the plan), until switched off."""
        self.profile = [(0, 0.0)] * len(self.plan.steps) if on else None

    # ---- building

    def _build(self, kernels: Sequence[int]) -> _Layout:
        """Lay out the frame: header, objects, then the slots of each native step."""
        draft = Draft([0] * (Frame.OBJECTS + self._object_count))
        draft.words[Frame.PATIENCE] = executor.PATIENCE
        objects = [Base("object", Frame.OBJECTS + k, 0) for k in range(self._object_count)]
        inputs, arrays = objects[: len(self.plan.inputs)], objects[len(self.plan.inputs): -1]
        outputs = dict(zip(self.storage.arrays, arrays, strict=True))
        addresses = iter(kernels)
        self._scope = self._enter(draft, addresses, Part(self.plan, self.storage), inputs, outputs, objects[-1])
        scratch_at = self.storage.arena_bytes
        kept_at = scratch_at + -(-draft.scratch // 64) * 64
        draft.relocations += [(word, self._arena_word, scratch_at + ahead) for word, ahead in draft.scratch_words]
        draft.relocations += [(word, self._arena_word, kept_at + at) for word, at in draft.kept_words]
        self._relocation_table = np.array(draft.relocations, np.int64).reshape(-1, RELOCATION_WORDS)
        return _Layout(np.array(draft.words, np.int64), self._error_slots, self._arena_word, kept_at + draft.kept)

    def _enter(self, draft: Draft, addresses: Iterator[int], part: Part, inputs: Sequence[Base],
               outputs: dict[int, Base], arena: Base, steady: frozenset[int] = frozenset(),
               along: Slices | None = None) -> Scope:
        """Lay out the steps of the plan, or of a part of it, whose buffers are at these places."""
        scope = Scope(part.plan, part.storage, len(self._numbered), inputs, outputs, arena, steady=steady, slices=along)
        self._numbered += [(scope, step) for step in part.plan.steps]
        enter = partial(self._enter, draft, addresses)
        for s, step in enumerate(part.plan.steps):
            if isinstance(step, Launch):
                function, g = next(addresses), grid(step)
                if along is not None:
                    g = sliced(step, g, along)
                elif s and (rows := self._block(scope, s)):
                    self._add_pair(draft, scope, s, function, pairs.in_blocks(step, g, rows), rows)
                    continue
                if g.items and not (is_copy(step) and _stays(scope, step)):
                    scope.runs[s] = self._add_launch(draft, scope, s, step, function, g)
            elif isinstance(step, Gemm):
                scope.runs[s] = self._add_product(draft, scope, s, step, next(addresses) if step.then else 0)
            elif isinstance(step, Attention):
                scope.runs[s] = self._add_attention(draft, scope, step)
            elif isinstance(step, Loop):
                scope.inner[s] = lay_out_loop(draft, scope, step, enter)
            elif isinstance(step, Branch):
                scope.inner[s] = lay_out_branch(draft, scope, step, enter)
            elif scope.first:  # what Python is to see of a part is found by address
                scope.cells |= {b: draft.cell(scope.base(b)) for b in (*step.inputs, *step.outputs)}
        scope.work = sum(r.work for runs in scope.runs.values() for r in runs)
        scope.work += sum(code.work for code in scope.inner.values())
        return scope

    def _add_launch(self, draft: Draft, scope: Scope, s: int, launch: Launch, function: int, g: Grid) -> list[_Run]:
        self.grids[scope.first + s] = g
        at = len(draft.words)
        draft.words += [0] * launch.kernel.slots.count
        self._fill_slots(draft, scope, at, launch, g)
        if g.scratch:
            draft.scratch_words.append((at + launch.kernel.slots.scratch, 0))
            draft.scratch = max(draft.scratch, g.scratch)
        runs = [_Run(function, at, 0, g.items, g.chunk, g.work)]
        return [*runs, _Run(function, at, ~0, launch.points, launch.points, 0.0)] if g.splits > 1 else runs

    @staticmethod
    def _block(scope: Scope, s: int) -> int:
        """Rows of a block, if a kernel and that of the step before go together by blocks of rows."""
        first, second = scope.plan.steps[s - 1], scope.plan.steps[s]
        if not isinstance(first, Launch) or not isinstance(second, Launch) or len(scope.runs.get(s - 1, ())) != 1:
            return 0
        whole = scope.runs[s - 1][0].items == first.extents[0]
        return pairs.block(scope.plan, scope.storage, first, second) if whole else 0

    def _add_pair(self, draft: Draft, scope: Scope, s: int, function: int, g: Grid, rows: int) -> None:
        """A kernel together with that of the step before, which it takes over."""
        (first,), step = scope.runs.pop(s - 1), scope.plan.steps[s]
        assert isinstance(step, Launch)
        second, *rest = self._add_launch(draft, scope, s, step, function, g)
        at, work, count = len(draft.words), first.work + second.work, -(-first.items // rows)
        for run, part in ((first, rows), (second, second.chunk)):
            draft.words += [run.function, 8 * (run.at - at), part, run.items]
        scope.runs[s] = [_Run(executor.PAIR, at, 0, count, pairs.chunk(count, work), work), *rest]

    def _add_product(self, draft: Draft, scope: Scope, s: int, step: Gemm, function: int) -> list[_Run]:
        """A product; then its kernel, on each panel of rows where the product goes by whole rows."""
        after = grid(step.then) if step.then is not None else None
        on_panels = scope.storage.places[step.c.buffer].home == "panels"
        steady = step.b.buffer in scope.steady
        product = gemm.product(step, after.work if after is not None else 0.0, on_panels, scope.first > 0, steady,
                               scope.slices.each if scope.slices is not None else 0)
        runs = [self._add_call(draft, scope, step, call) for call in product.calls]
        if product.ahead is not None:
            scope.ahead.append(self._add_call(draft, scope, step, product.ahead))
            users = [(runs[-1], product.calls[-1]), (scope.ahead[-1], product.ahead)]
            draft.keep([run.at + word for run, call in users for word in call.scratch_slots], product.ahead.scratch)
        elif product.calls:
            draft.scratch_words += [(run.at + word, ahead) for run, call in zip(runs, product.calls, strict=True)
                                    for word, ahead in call.scratch_slots.items()]
            draft.scratch = max(draft.scratch, *(call.scratch for call in product.calls))
        if step.then is None or after is None or not after.items:
            return runs
        if not product.panel:
            return runs + self._add_launch(draft, scope, s, step.then, function, after)
        after = along_rows(step.then, after, elements_per_item(step, step.then))
        (launch,) = self._add_launch(draft, scope, s, step.then, function, after)
        first, at = runs.pop(), len(draft.words)
        draft.words += [first.function, 8 * (first.at - at), launch.function, 8 * (launch.at - at), step.m,
                        product.panel, -(-step.m // product.panel), items_per_row(step, step.then)]
        if on_panels:
            slots = step.then.kernel.slots
            (operand,) = [slots.reads[r][0] for r, v in enumerate(step.then.reads) if v.buffer == step.c.buffer]
            draft.words += [len(product.calls[-1].words), Word.C, slots.count, operand, step.n * step.dtype.itemsize]
        chain = executor.CHAIN_ON_PANELS if on_panels else executor.CHAIN
        return [*runs, _Run(chain, at, 0, first.items, first.chunk, first.work)]

    def _add_attention(self, draft: Draft, scope: Scope, step: Attention) -> list[_Run]:
        calls = attention_calls(step)
        runs = [self._add_call(draft, scope, step, call) for call in calls]
        draft.scratch_words += [(run.at + word, ahead) for run, call in zip(runs, calls, strict=True)
                                for word, ahead in call.scratch_slots.items()]
        draft.scratch = max(draft.scratch, *(call.scratch for call in calls), 0)
        return runs

    def _add_call(self, draft: Draft, scope: Scope, step: Gemm | Attention, call: NativeCall) -> _Run:
        at = len(draft.words)
        for word, view in call.views.items():
            base = scope.base(view.buffer).after(view.offset * step.dtype.itemsize)
            call.words[word] = draft.relocate(at + word, base)
        draft.words += call.words
        self._constants.append(call.constants)
        return _Run(call.function, at, 0, call.items, call.chunk, call.work)

    def _fill_slots(self, draft: Draft, scope: Scope, at: int, launch: Launch, g: Grid) -> None:
        k, words = launch.kernel, draft.words
        slots = k.slots
        for slot, extent in zip(slots.extents, launch.extents, strict=True):
            words[at + slot] = extent
        words[at + slots.block], words[at + slots.splits], words[at + slots.split] = g.block, g.splits, g.split
        words[at + slots.stream] = g.stream
        self._error_slots.append(at + slots.errors)
        for slot, value in zip(slots.params, launch.params, strict=True):
            words[at + slot] = value
        views, accesses = launch.reads + launch.writes, k.reads + k.writes
        for (slot, stride_slots), view, access in zip(slots.reads + slots.writes, views, accesses, strict=True):
            base = scope.base(view.buffer).after(view.offset * access.dtype.itemsize)
            words[at + slot] = draft.relocate(at + slot, base)
            for d, (stride_slot, stride) in enumerate(zip(stride_slots, view.strides, strict=True)):
                if stride_slot is not None:
                    words[at + stride_slot] = stride
                elif config.debug.check and launch.extents[d] > 1 and stride != int(access.strides[d]):
                    raise InternalError(f"a view of buffer {view.buffer} has stride {stride} along dim {d}, but its "
                                        f"kernel was made for {access.strides[d]}\n{k.text}")

    @property
    def _arena_word(self) -> int:
        return Frame.OBJECTS + self._object_count - 1

    def _constant(self, b: int) -> np.ndarray:
        value = self.plan.buffers[b].value
        if value is None or not value.flags.c_contiguous:
            raise InternalError(f"constant buffer {b} has no contiguous value")
        return value

    def _source(self, b: int) -> tuple[str, int]:
        """Where a result comes from: an array made at the call, an input, a constant."""
        match self.plan.buffers[b].role:
            case "output":
                return "array", self.storage.arrays.index(b)
            case "input":
                return "input", self.plan.inputs.index(b)
            case "constant":
                return "constant", b
        raise InternalError(f"buffer {b} is a temp, and cannot be a result")

    def _copy_of(self, position: int) -> int | None:
        """The step that copies the reusable input to an output, if the output starts so; in place it is left out."""
        b, i = self.plan.outputs[position], self.plan.inputs[self.storage.reusable[position]]
        for s, step in enumerate(self.plan.steps):
            if isinstance(step, Launch) and any(v.buffer == b for v in step.writes):
                return s if is_copy(step) and step.reads[0].buffer == i else None
        return None

    def _table(self, in_place: tuple[int, ...], profiled: bool) -> np.ndarray:
        """A header and its steps. `in_place`: outputs written over an input; `profiled`: return after each step."""
        key = in_place, profiled
        if key in self._tables:
            return self._tables[key]
        left_out = {self._copies[p] for p in in_place}
        rows = Rows(self._steps)
        self._emit(self._scope, rows, left_out, profiled)
        rows.control(Control.RETURN)
        table = np.array(rows.rows, np.int64)
        header = np.zeros(Header.WORDS, np.int64)
        header[Header.STEPS] = table.ctypes.data
        header[Header.RELOCATIONS] = self._relocation_table.ctypes.data
        header[Header.RELOCATION_COUNT] = len(self._relocation_table)
        header[Header.LAUNCH], header[Header.CELL] = threads.LAUNCH, threads.CELL
        header[Header.RELEASE] = self._scope.work > _QUICK
        self._steps.append(table)
        self._tables[key] = header
        return header

    def _emit(self, scope: Scope, rows: Rows, left_out: Collection[int] = (), profiled: bool = False) -> None:
        """The rows of a plan's steps."""
        for s, step in enumerate(scope.plan.steps):
            number = scope.first + s
            if isinstance(step, Call):
                rows.control(Control.RETURN, result=number + 1, next=rows.here + 1)
                continue
            if s in scope.inner:
                scope.inner[s].emit(rows, self._emit)
            elif s in scope.runs and s not in left_out:
                checks = int(isinstance(step, Launch) and bool(step.sites))
                rows.runs(scope.runs[s], checks, number)
            else:
                continue
            if profiled:
                rows.control(Control.RETURN, result=number + 1, next=rows.here + 1)

    # ---- steps in Python, and what can go wrong

    def _run_in_python(self, step: Call, scope: Scope, frame: _Frame, arrays: Sequence[np.ndarray],
                       made: list[np.ndarray]) -> None:
        def array(b: int) -> np.ndarray:
            return self._in_part(scope, b, frame) if scope.first else self._as_array(b, frame, arrays, made)

        inputs = [array(b) for b in step.inputs]
        try:
            results = step.op.eager(*inputs, **dict(step.attrs))
        except Exception as error:
            given = ", ".join(repr(Type(a.shape, a.dtype)) for a in inputs)
            locate(error, step.where, f"{step.op.name}({given})")
            raise
        if not isinstance(results, tuple | list):
            results = (results,)
        if len(results) != len(step.outputs):
            raise InternalError(f"{step.op.name} gave {len(results)} results for {len(step.outputs)} buffers")
        for b, result in zip(step.outputs, results, strict=True):
            target, result = array(b), np.asarray(result)
            if result.shape != target.shape or result.dtype != target.dtype:
                raise InternalError(f"{step.op.name} gave {result.dtype}{list(result.shape)} where "
                                    f"{target.dtype}{list(target.shape)} was inferred")
            target[...] = result

    @staticmethod
    def _in_part(scope: Scope, b: int, frame: _Frame) -> np.ndarray:
        buffer = scope.plan.buffers[b]
        memory = (c_char * max(buffer.nbytes, 1)).from_address(int(frame.words[scope.cells[b]]))
        return np.ndarray(buffer.shape, buffer.dtype, memory)  # type: ignore[arg-type]

    def _as_array(self, b: int, frame: _Frame, arrays: Sequence[np.ndarray], made: list[np.ndarray]) -> np.ndarray:
        place, buffer = self.storage.places[b], self.plan.buffers[b]
        match place.home:
            case "input":
                return arrays[place.number]
            case "constant":
                return self._constant(b)
            case "output":
                array = made[self.storage.arrays.index(place.number)]
                return array.reshape(-1).view(buffer.dtype).reshape(buffer.shape)
        if b not in frame.views:
            frame.views[b] = np.ndarray(buffer.shape, buffer.dtype, frame.arena, place.number)
        return frame.views[b]

    def _check_inputs(self, arrays: Sequence[np.ndarray]) -> None:
        for k, (a, b) in enumerate(zip(arrays, self.plan.inputs, strict=True)):
            buffer = self.plan.buffers[b]
            want = buffer.strides if buffer.strides is not None else _contiguous_strides(buffer.shape)
            have = tuple(s // a.itemsize for s in a.strides)
            same = all(h == w for h, w, e in zip(have, want, a.shape, strict=True) if e > 1) or not a.size
            if a.shape != buffer.shape or a.dtype != buffer.dtype or not same or not a.flags.aligned:
                raise InternalError(f"input {k} is {a.dtype}{list(a.shape)} with strides {have}, not "
                                    f"{buffer.dtype}{list(buffer.shape)} with strides {want}")

    def _check_target(self, arrays: Sequence[np.ndarray], position: int, a: np.ndarray) -> None:
        kind, number = self._results[position]
        if kind != "array":
            raise InternalError(f"output {position} is an {kind}; there is nothing to write")
        buffer = self.plan.buffers[self.storage.arrays[number]]
        if a.shape != buffer.shape or a.dtype != buffer.dtype or not a.flags.c_contiguous or not a.flags.writeable:
            raise InternalError(f"output {position} cannot be written into {a.dtype}{list(a.shape)}")
        reusable = self.storage.reusable.get(position)
        if any(a is other and k != reusable for k, other in enumerate(arrays)):
            raise InternalError(f"output {position} must not be written over an input")


def _resume(numbered: Sequence[tuple[Scope, PlanStep]], run: Callable[..., int], code: int) -> None:
    """Go on after pauses, to the end or to a failed check."""
    while code == executor.PAUSE:
        code = run()
    if code:
        _raise_failure(numbered, run.__self__, code)  # type: ignore[attr-defined]


def _raise_failure(numbered: Sequence[tuple[Scope, PlanStep]], frame: _Frame, code: int) -> None:
    """Raise for the failed check of step -code - 1; the frame is not used again."""
    site, value = frame.words[Frame.ERROR: Frame.ERROR + 2].tolist()
    step = numbered[-code - 1][1]
    assert isinstance(step, Launch)
    check = step.sites[site - 1]
    error = IndexError(check.message.format(value=value, extent=check.extent))
    locate(error, check.where)
    raise error


def _stays(scope: Scope, launch: Launch) -> bool:
    """Whether a launch's first read and write are the same place."""
    return scope.base(launch.reads[0].buffer) == scope.base(launch.writes[0].buffer)


@lru_cache(256)
def _short_call(inputs: int, outputs: int, results: tuple[tuple[str, int], ...], parallel: bool) -> Callable[..., Any]:
    """Makes the call of a program with so many arrays, if all it does is allocate, run natively once, give results.
    Written out for the numbers, it takes half the time of loops over lists."""
    ins = "".join(f"a{k}, " for k in range(inputs))
    outs = "".join(f"o{k}, " for k in range(outputs))
    makers = "".join(f"make{k}, " for k in range(outputs))
    source = {"array": "o{}", "input": "a{}", "constant": "buffers[{}].value"}
    text = f"""
def make(runners, new_runner, makers, buffers, prepare, resume):
    [{makers}] = makers
    take, keep = runners.pop, runners.append
    def call(arrays):
        [{ins}] = arrays
        {"prepare()" if parallel else ""}
        try:
            run = take()
        except IndexError:
            run = new_runner()
        {"".join(f"o{k} = make{k}(); " for k in range(outputs))}
        if code := run({ins}{outs}):
            resume(run, code)
        keep(run)
        return [{", ".join(source[kind].format(k) for kind, k in results)}]
    return call
"""
    names: dict[str, Any] = {}
    exec(compile(text, "<tracejit call>", "exec"), names)
    return names["make"]


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[d + 1:]) for d in range(len(shape)))
