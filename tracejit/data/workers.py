"""Streams with threads: `Prefetch` reads ahead, `ParallelMap` calls a function in several threads, in order.

In: a stream that only these threads read. Out: what it gives, in the same order, the same errors at the same places.
The threads end when the stream is closed or no longer referred to, and at the latest when Python exits. In a forked
child, which has none of the threads, a stream starts again from where it was.

Read next: `dataset.py`.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections import deque
from typing import Any

from tracejit.data.streams import Calls, Open, Pass, Stream
from tracejit.ops.random import turns

_END = StopIteration()  # stands for the end of the stream in a channel


class _Channel:
    """What a reading thread and the stream share. The thread does not refer to the stream, so that can be dropped."""

    def __init__(self, size: int):
        self.size, self.pid = size, os.getpid()
        self.ready: deque[tuple[Any, BaseException | None, Any]] = deque()  # item, or error; state after it
        self.changed = threading.Condition()
        self.stopped = False
        self.thread: threading.Thread  # the one that reads

    def stop(self) -> None:
        if self.pid == os.getpid():
            with self.changed:
                self.stopped = True
                self.ready.clear()
                self.changed.notify_all()


_channels: weakref.WeakSet[_Channel] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for channel in list(_channels):
        channel.stop()


def _read_ahead(stream: Stream, channel: _Channel) -> None:
    turns.decided = False
    try:
        while True:
            with channel.changed:
                while len(channel.ready) >= channel.size and not channel.stopped:
                    channel.changed.wait()
                if channel.stopped:
                    return
            item = after = None
            error: BaseException | None = None
            try:
                item = stream.one()
            except StopIteration:
                error = _END
            except BaseException as e:
                error = e
            try:
                after = stream.state()
            except BaseException as e:  # then nothing can go on from here
                error, item = error or e, None
            with channel.changed:
                if channel.stopped:
                    return
                channel.ready.append((item, error, after))
                channel.changed.notify_all()
            if error is _END or (error is not None and not isinstance(error, Exception)):
                return
            item = error = None  # theirs now
    finally:
        stream.close()


class Prefetch(Stream):
    """Reads up to `size` items ahead."""

    def __init__(self, opened: Open, size: int):
        self.opened, self.size = opened, size
        self.input: Stream | None = opened()
        self.position = self.input.state()  # after the last item given
        self.channel: _Channel | None = None
        self.ended = False

    def one(self) -> Any:
        if self.ended:
            raise StopIteration
        channel = self.channel
        if channel is None or channel.pid != os.getpid():
            channel = self._start()
        with channel.changed:
            while not channel.ready:
                if not channel.changed.wait(1.0) and not channel.thread.is_alive() and not channel.ready:
                    raise RuntimeError("the thread that reads ahead has ended unexpectedly")
            item, error, self.position = channel.ready.popleft()
            channel.changed.notify_all()
        if error is None:
            return item
        if error is _END:
            self.ended = True
            raise StopIteration
        self.ended = not isinstance(error, Exception)
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def _start(self) -> _Channel:
        if self.input is None:  # a forked child
            self.input = self.opened()
            self.input.load(self.position)
        channel = self.channel = _Channel(self.size)
        _channels.add(channel)
        weakref.finalize(self, channel.stop)
        thread = threading.Thread(target=_read_ahead, args=(self.input, channel), name="tracejit-prefetch", daemon=True)
        channel.thread, self.input = thread, None  # the input is the thread's now
        thread.start()
        return channel

    def state(self) -> Any:
        return self.position

    def load(self, state: Any) -> None:
        assert self.input is not None
        self.input.load(state)
        self.position = state

    def close(self) -> None:
        self.ended = True
        if self.channel is not None:
            self.channel.stop()
        elif self.input is not None:
            self.input.close()


class _Task:
    """One call of a mapped function."""

    __slots__ = ("element", "at", "k", "result", "error", "done")

    def __init__(self, element: Any, at: Pass, k: int):
        self.element, self.at, self.k = element, at, k
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()


def _work(tasks: queue.SimpleQueue[_Task | None], calls: Calls) -> None:
    turns.decided = False
    while (task := tasks.get()) is not None:
        try:
            task.result = calls(task.element, task.at, task.k)
        except BaseException as error:
            task.error = error
        task.element = None
        task.done.release()
        del task


def _dismiss(tasks: queue.SimpleQueue[_Task | None], threads: int, pid: int) -> None:
    if pid == os.getpid():
        for _ in range(threads):
            tasks.put(None)


class ParallelMap(Stream):
    """A function on each item, in `threads` threads."""

    def __init__(self, opened: Open, calls: Calls, at: Pass, threads: int):
        self.opened, self.calls, self.at, self.threads = opened, calls, at, threads
        self.input, self.given = opened(), 0
        self.position = self.input.state()
        self.pending: deque[tuple[_Task, Any]] = deque()  # with the input's state after it
        self.tasks: queue.SimpleQueue[_Task | None] | None = None
        self.pid = os.getpid()
        self.failed: BaseException | None = None  # the input's error, due after what is pending
        self.ended = False

    def one(self) -> Any:
        if self.tasks is None or self.pid != os.getpid():
            self._start()
        assert self.tasks is not None
        while len(self.pending) < 2 * self.threads and self.failed is None and not self.ended:
            try:
                task = _Task(self.input.one(), self.at, self.given + len(self.pending))
            except StopIteration:
                self.ended = True
                break
            except Exception as error:
                self.failed = error
                break
            self.pending.append((task, self.input.state()))
            self.tasks.put(task)
        if not self.pending:
            if self.failed is not None:
                failed, self.failed = self.failed, None
                raise failed
            raise StopIteration
        task, self.position = self.pending.popleft()
        task.done.acquire()
        self.given += 1
        if task.error is not None:
            raise task.error
        return task.result

    def _start(self) -> None:
        if self.pid != os.getpid():  # a forked child
            self.pending.clear()
            self.input = self.opened()
            self.input.load(self.position)
            self.ended, self.failed, self.pid = False, None, os.getpid()
        self.tasks = queue.SimpleQueue()
        weakref.finalize(self, _dismiss, self.tasks, self.threads, self.pid)
        for _ in range(self.threads):
            threading.Thread(target=_work, args=(self.tasks, self.calls), name="tracejit-map", daemon=True).start()

    def state(self) -> Any:
        return {"given": self.given, "input": self.position}

    def load(self, state: Any) -> None:
        self.given = state["given"]
        self.input.load(state["input"])
        self.position = state["input"]

    def close(self) -> None:
        self.ended = True
        self.pending.clear()
        if self.tasks is not None:
            _dismiss(self.tasks, self.threads, self.pid)
            self.tasks = None
        self.input.close()
