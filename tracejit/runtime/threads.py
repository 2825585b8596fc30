"""The thread pool: Python threads parked inside a native loop, with the GIL released.

In: `launch(cell, kernel, slots, items, chunk)`, called by native code through `LAUNCH`. Out: all items are done.

A launch cuts its items into chunks (by size only, so results do not depend on the thread count) and publishes one
64-bit ticket: the launch's number above, the count of chunks nobody has taken yet below. Whoever lowers the count by
one has a chunk. Which one is settled by ranges of chunks, one for each thread that can have work, the caller's first: a
thread takes those of its own range in order, then what is left in others. So each finds in its caches what it read and
wrote at the launch before (processors may share none), and a slow thread delays nobody. The launch is over when all
chunks are *finished*, so a worker that wakes late delays nobody. Workers look for tickets for `SPIN` nanoseconds after
their last chunk (longer while a launch is not over), then sleep on a semaphore, where they cost nothing. They keep off
their caller's processor, above all when they go to sleep: a worker that is woken there runs only when its caller's turn
is over. To wake one takes as long as a little work: a launch of two chunks does that only if it follows closely on
another, and else is its caller's alone. One launch runs on the pool at a time; a caller that finds it busy does its
items alone. A forked child has no pool and runs serially, until it asks for another number of threads.

Read next: `executor.py` (who launches).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading

from llvmlite import ir

from tracejit import config
from tracejit.runtime.build import native_module
from tracejit.runtime.native import Code, Number, Variable, Word

SPIN = 50_000  # nanoseconds a worker looks for the next launch before it sleeps
_LONG_SPIN = 2_000_000  # the same while a launch is not over
SOON = 10_000  # nanoseconds between two launches that follow closely
_CALLER_SPIN = 200_000  # nanoseconds a caller looks for the last chunks to finish before it sleeps

# Words of a pool's memory. What one thread writes while others look at something else lies on another cache line; what
# a worker needs to begin lies on one: to fetch a line from another core takes as long as a thousand sums.
_TICKET, _KERNEL, _SLOTS, _ITEMS, _CHUNK, _CHUNKS, _RANGES = range(7)
_DONE, _WAITING = 16, 17
_SLEEPERS, _STOP = 32, 33
_BUSY, _PROCESSOR, _LAST, THREADS = 48, 49, 50, 51
_WORK, _FINISHED = 80, 128  # semaphores: a count, a mutex, a condition
_MUTEX, _CONDITION, _SEMAPHORE_WORDS = 8, 24, 48
_FIRST_RANGE, _RANGE_WORDS = 192, 16  # each: the next chunk, the end
_SET = 16  # words of a set of processors
_LEFT = (1 << 32) - 1


def _emit(module: ir.Module) -> None:
    """The pool in native code."""
    clock = _emit_clock(module)
    wait, post = _emit_wait(module), _emit_post(module)
    wake = _emit_wake(module, post)
    take = _emit_take(module, post)
    elsewhere = _emit_elsewhere(module)
    _emit_worker(module, clock, wake, take, _emit_move(module, elsewhere), _emit_rest(module, wait, elsewhere))
    _emit_launch(module, clock, wait, wake, take)

    f = Code(module, "initialize", 2, local=False)
    pool, count = f.args
    f.store(pool, THREADS, count)
    for semaphore in (_WORK, _FINISHED):
        f.call_symbol("pthread_mutex_init", pool + 8 * (semaphore + _MUTEX), 0)
        f.call_symbol("pthread_cond_init", pool + 8 * (semaphore + _CONDITION), 0)
    f.ret()

    f = Code(module, "stop", 1, local=False)
    (pool,) = f.args
    f.store_shared(pool, _STOP, 1)
    f.call(wake, pool, _LEFT)
    f.ret()


def _emit_clock(module: ir.Module) -> Code:
    """Nanoseconds of a clock that only goes forward."""
    f = Code(module, "clock", 0, returns=True)
    time = f.stack(2)
    f.call_symbol("clock_gettime", 6 if sys.platform == "darwin" else 1, time)
    f.ret(f.load(time, 0) * 1_000_000_000 + f.load(time, 1))
    return f


def _emit_wait(module: ir.Module) -> Code:
    f = Code(module, "wait", 1)
    (semaphore,) = f.args
    mutex, condition = semaphore + 8 * _MUTEX, semaphore + 8 * _CONDITION
    f.call_symbol("pthread_mutex_lock", mutex)
    with f.forever() as loop:
        with f.when(f.load(semaphore) != 0):
            loop.leave()
        f.call_symbol("pthread_cond_wait", condition, mutex)
    f.store(semaphore, 0, f.load(semaphore) - 1)
    f.call_symbol("pthread_mutex_unlock", mutex)
    f.ret()
    return f


def _emit_post(module: ir.Module) -> Code:
    f = Code(module, "post", 1)
    (semaphore,) = f.args
    mutex, condition = semaphore + 8 * _MUTEX, semaphore + 8 * _CONDITION
    f.call_symbol("pthread_mutex_lock", mutex)
    f.store(semaphore, 0, f.load(semaphore) + 1)
    f.call_symbol("pthread_mutex_unlock", mutex)
    f.call_symbol("pthread_cond_signal", condition)
    f.ret()
    return f


def _emit_wake(module: ir.Module, post: Code) -> Code:
    """Wake up to `most` sleepers. Who wakes them strikes them off, so that nobody is woken twice."""
    f = Code(module, "wake", 2)
    pool, most = f.args
    with f.forever():
        sleepers = f.load_shared(pool, _SLEEPERS)
        count = f.smaller(sleepers, most)
        with f.when(count <= 0):
            f.ret()
        with f.when(f.exchange_if(pool, _SLEEPERS, sleepers, sleepers - count)):
            with f.count(0, count):
                f.call(post, pool + 8 * _WORK)
            f.ret()
    f.builder.unreachable()
    return f


def _emit_take(module: ir.Module, post: Code) -> Code:
    """Do chunks of the current launch while some are left, as thread number `me`."""
    f = Code(module, "take", 2)
    pool, me = f.args
    with f.forever() as loop:
        ticket = f.load_shared(pool, _TICKET)
        with f.when((ticket & _LEFT) == 0):
            f.ret()
        with f.when(f.exchange_if(pool, _TICKET, ticket, ticket - 1)):
            # A chunk is ours, so some range has it, and the launch is not over before we are: its words stay.
            kernel, slots, items, chunk, chunks = (f.load(pool, w) for w in (_KERNEL, _SLOTS, _ITEMS, _CHUNK, _CHUNKS))
            ranges, mine = f.load(pool, _RANGES), Variable(f, 1)
            with f.when(ranges != 0):
                number = Variable(f, me % ranges)
                with f.forever() as search:
                    place = pool + 8 * (_FIRST_RANGE + _RANGE_WORDS * number.get())
                    mine.set(f.add_shared(place, 0, 1) - 1)
                    with f.when(mine.get() < f.load(place, 1)):
                        search.leave()
                    number.set((number.get() + 1) % ranges)
            begin = mine.get() * chunk
            f.call_address(kernel, slots, begin, f.smaller(begin + chunk, items))
            with f.when(f.add_shared(pool, _DONE, 1) == chunks):
                with f.when(f.load_shared(pool, _WAITING) != 0):
                    f.call(post, pool + 8 * _FINISHED)
        loop.again()
    f.builder.unreachable()
    return f


def _emit_elsewhere(module: ir.Module) -> Code:
    """Keep this thread off the processor of the pool's caller, if it may run on another. Returns whether it does; then
    `allowed` is where it might run before, and `others` where it may now."""
    f = Code(module, "elsewhere", 3, returns=True)
    pool, allowed, others = f.args
    if sys.platform == "linux":
        with f.when((f.call_symbol("sched_getaffinity", 0, 8 * _SET, allowed) & _LEFT) != 0):
            f.ret(0)
        caller, left = f.load_shared(pool, _PROCESSOR), Variable(f, 0)
        with f.count(0, _SET) as k:
            mine = Word(f, f.builder.shl(f.word(1), (caller % 64).value))
            bits = f.load(allowed, k)
            bits = f.select(k == caller // 64, bits - (bits & mine), bits)
            f.store(others, k, bits)
            left.set(left.get() | bits)
        with f.when(left.get() != 0):
            with f.when((f.call_symbol("sched_setaffinity", 0, 8 * _SET, others) & _LEFT) == 0):
                f.ret(1)
    f.ret(0)
    return f


def _emit_move(module: ir.Module, elsewhere: Code) -> Code:
    """Have a worker leave the processor of its caller, where it would only run when the caller does not."""
    f = Code(module, "move", 1)
    (pool,) = f.args
    if sys.platform == "linux":
        with f.when((f.call_symbol("sched_getcpu") & _LEFT) == f.load_shared(pool, _PROCESSOR)):
            allowed = f.stack(_SET)
            with f.when(f.call(elsewhere, pool, allowed, f.stack(_SET)) != 0):
                f.call_symbol("sched_setaffinity", 0, 8 * _SET, allowed)
    f.ret()
    return f


def _emit_rest(module: ir.Module, wait: Code, elsewhere: Code) -> Code:
    """Sleep until somebody wakes this worker. Systems wake a thread on the processor of who wakes it where they take
    the others for busy (virtual machines seem so when they rest), and it waits there for its caller's turn to end: so
    it goes to sleep elsewhere. Where it may run is as before when it wakes, or as somebody has said meanwhile."""
    f = Code(module, "rest", 1)
    (pool,) = f.args
    allowed, others, now = f.stack(_SET), f.stack(_SET), f.stack(_SET)
    moved = f.call(elsewhere, pool, allowed, others)
    f.call(wait, pool + 8 * _WORK)
    if sys.platform == "linux":
        with f.when(moved != 0):
            with f.when((f.call_symbol("sched_getaffinity", 0, 8 * _SET, now) & _LEFT) == 0):
                with f.when((f.call_symbol("memcmp", now, others, 8 * _SET) & _LEFT) == 0):
                    f.call_symbol("sched_setaffinity", 0, 8 * _SET, allowed)
    f.ret()
    return f


def _emit_worker(module: ir.Module, clock: Code, wake: Code, take: Code, move: Code, rest: Code) -> None:
    """The life of a worker: returns when the pool is stopped."""
    f = Code(module, "worker", 2, local=False)
    pool, me = f.args

    def chunks_left() -> Word:
        return f.load_shared(pool, _TICKET) & _LEFT

    def stopped() -> Word:
        return f.load_shared(pool, _STOP) != 0

    with f.forever() as life:
        last = Variable(f, f.call(clock))
        with f.forever() as spin:
            with f.when(stopped()):
                f.ret()
            with f.when(chunks_left() != 0):
                f.call(move, pool)
                f.call(take, pool, me)
                last.set(f.call(clock))
            f.pause()
            idle = f.call(clock) - last.get()
            with f.when(idle > SPIN):
                # Others still have chunks of a launch, and the next one may follow at once.
                with f.when((f.load_shared(pool, _BUSY) == 0) | (idle > _LONG_SPIN)):
                    spin.leave()
        f.add_shared(pool, _SLEEPERS, 1)
        # A launch or stop that came before this line did not see a sleeper: look once more.
        with f.when((chunks_left() != 0) | stopped()):
            sleepers = f.load_shared(pool, _SLEEPERS)
            with f.when(sleepers > 0):
                with f.when(f.exchange_if(pool, _SLEEPERS, sleepers, sleepers - 1)):
                    life.again()
        f.call(rest, pool)
        f.call(wake, pool, f.smaller(chunks_left() - 1, 2))  # one wakes two, two wake four, ...
    f.builder.unreachable()


def _emit_launch(module: ir.Module, clock: Code, wait: Code, wake: Code, take: Code) -> None:
    f = Code(module, "launch", 5, local=False)
    cell, kernel, slots, items, chunk = f.args
    pool = f.load_shared(cell, 0)

    def run_alone() -> None:
        f.call_address(kernel, slots, 0, items)
        f.ret()

    with f.when(pool == 0):
        run_alone()
    with f.when(f.load_shared(pool, _BUSY) != 0):
        run_alone()
    chunks = (items + chunk - 1) // chunk
    with f.when(chunks == 2):
        with f.when(f.call(clock) > f.load_shared(pool, _LAST) + SOON):
            f.call_address(kernel, slots, 0, items)
            f.store_shared(pool, _LAST, f.call(clock))
            f.ret()
    got = f.exchange_if(pool, _BUSY, 0, 1)
    with f.when(Word(f, f.builder.not_(got.value))):
        run_alone()
    # Nobody has a chunk, so nobody reads these until the ticket is out.
    values: dict[int, Number] = {_KERNEL: kernel, _SLOTS: slots, _ITEMS: items, _CHUNK: chunk, _CHUNKS: chunks,
                                 _RANGES: 0, _WAITING: 0, _DONE: 1}  # the caller's own chunk counts from the start
    if sys.platform == "linux":
        values[_PROCESSOR] = f.call_symbol("sched_getcpu") & _LEFT
    for index, value in values.items():
        f.store_shared(pool, index, value, "monotonic")
    with f.when(chunks > 2):  # of two, one is the caller's
        ranges, start = f.smaller(f.load(pool, THREADS), chunks), Variable(f, 0)
        f.store_shared(pool, _RANGES, ranges, "monotonic")
        with f.count(0, ranges) as k:
            place, end = pool + 8 * (_FIRST_RANGE + _RANGE_WORDS * k), (k + 1) * chunks // ranges
            f.store(place, 0, start.get())
            f.store(place, 1, end)
            start.set(end)
        f.store(pool, _FIRST_RANGE, 1)  # the first chunk is done below
    f.store_shared(pool, _TICKET, ((f.load_shared(pool, _TICKET) >> 32) + 1 << 32) | (chunks - 1))
    f.call(wake, pool, f.smaller(chunks - 1, 2))
    f.call_address(kernel, slots, 0, f.smaller(chunk, items))
    f.call(take, pool, 0)

    with f.when(f.load_shared(pool, _DONE) != chunks):
        _emit_await(f, pool, chunks, clock, wait)
    f.store_shared(pool, _LAST, f.call(clock), "monotonic")
    f.store_shared(pool, _BUSY, 0, "release")
    f.ret()


def _emit_await(f: Code, pool: Word, chunks: Word, clock: Code, wait: Code) -> None:
    """Wait until all chunks are done."""
    deadline = f.call(clock) + _CALLER_SPIN
    with f.forever() as spin:
        with f.when(f.load_shared(pool, _DONE) == chunks):
            spin.leave()
        with f.when(f.call(clock) > deadline):
            f.store_shared(pool, _WAITING, 1)
            with f.forever() as sleep:
                with f.when(f.load_shared(pool, _DONE) == chunks):
                    sleep.leave()
                f.call(wait, pool + 8 * _FINISHED)  # a post may be left over from an earlier launch: look again
            spin.leave()
        f.pause()


_functions = native_module("threads", _emit, ("initialize", "worker", "launch", "stop"))
LAUNCH = _functions["launch"]  # void launch(cell, kernel, slots, items, chunk)
_initialize = ctypes.CFUNCTYPE(None, ctypes.c_ssize_t, ctypes.c_ssize_t)(_functions["initialize"])
_worker = ctypes.CFUNCTYPE(None, ctypes.c_ssize_t, ctypes.c_ssize_t)(_functions["worker"])
_stop = ctypes.CFUNCTYPE(None, ctypes.c_ssize_t)(_functions["stop"])

_cell = ctypes.c_int64(0)  # address of the pool's memory; 0: run serially
CELL = ctypes.addressof(_cell)
_lock = threading.Lock()
_workers: list[threading.Thread] = []
_memories: list[ctypes.Array] = []  # never freed: a launch may still be reading a pool that has been replaced
ASKED = ctypes.c_int64(1)  # the number of threads last asked for, the caller's included


def size() -> int:
    """How many threads a launch may use now, the caller's included."""
    return 1 + len(_workers)


def prepare() -> None:
    """Have the workers that `config.num_threads()` asks for. Cheap when nothing has changed. Where another thread is at
    it, or this one, which the garbage collector has called away from it, a launch does with what there is."""
    if config.num_threads() != ASKED.value and _lock.acquire(blocking=False):
        try:
            if config.num_threads() != ASKED.value:
                _retire()
                _start(config.num_threads())
        finally:
            _lock.release()


def _start(count: int) -> None:
    ASKED.value = count
    if count == 1:
        return
    memory = (ctypes.c_int64 * (_FIRST_RANGE + _RANGE_WORDS * count + 16))()
    _memories.append(memory)
    address = -(-ctypes.addressof(memory) // 128) * 128
    _initialize(address, count)
    try:
        for k in range(1, count):
            thread = threading.Thread(target=_worker, args=(address, k), name=f"tracejit-{k}", daemon=True)
            thread.start()
            _workers.append(thread)
    except RuntimeError:  # the interpreter is going down, or the system gives no more threads: do with what there is
        pass
    if _workers:
        _cell.value = address


def _retire() -> None:
    """End the workers. Launches under way finish by themselves."""
    address, _cell.value = _cell.value, 0
    if address:
        _stop(address)
    for thread in _workers:
        thread.join()
    _workers.clear()


def _at_exit() -> None:
    with _lock:
        _retire()


def _in_child() -> None:
    """After a fork the workers are gone, and what they held is as they left it."""
    global _lock
    _lock = threading.Lock()
    _workers.clear()
    _cell.value = 0


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
