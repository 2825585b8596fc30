"""Progress on the screen: a bar that moves with batches, or a line for each epoch.

In: numbers of batches, and logs. Out: text, through tqdm where it is installed.

Read next: `training.py`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

INTERVAL = 0.1  # seconds between two looks at the numbers


def described(logs: Mapping[str, Any]) -> str:
    """Logs as text: `loss: 0.1234 - accuracy: 0.98`."""
    return " - ".join(f"{name}: {float(value):.4g}" for name, value in logs.items())


class Silent:
    """Shows nothing, and is the base of what does."""

    def __init__(self, title: str, total: int | None):
        self.title, self.done, self.total = title, 0, total

    def is_due(self) -> bool:
        """Whether it is time to `show` numbers."""
        return False

    def show(self, done: int, logs: Mapping[str, Any]) -> None:
        """So many batches are done."""

    def end(self, done: int, logs: Mapping[str, Any]) -> None:
        """The last numbers."""


class Line(Silent):
    """One line at the end."""

    def __init__(self, title: str, total: int | None):
        super().__init__(title, total)
        self._start = time.perf_counter()

    def end(self, done: int, logs: Mapping[str, Any]) -> None:
        print(f"{self.title} - {time.perf_counter() - self._start:.1f} s - {described(logs)}", flush=True)


class Bar(Silent):
    """A bar; without tqdm, text that changes on one line."""

    def __init__(self, title: str, total: int | None):
        super().__init__(title, total)
        self._due = 0.0
        self._bar: Any = None
        try:
            from tqdm import tqdm
        except ImportError:
            return
        self._bar = tqdm(total=total, desc=title, unit="batch", dynamic_ncols=True)

    def is_due(self) -> bool:
        return time.perf_counter() >= self._due

    def show(self, done: int, logs: Mapping[str, Any]) -> None:
        self._due = time.perf_counter() + INTERVAL
        more, self.done = done - self.done, done
        if self._bar is None:
            of = f"/{self.total}" if self.total else ""
            print(f"\r{self.title}: {done}{of} - {described(logs)}", end="", file=sys.stderr, flush=True)
        else:
            self._bar.set_postfix_str(described(logs), refresh=False)
            self._bar.update(more)

    def end(self, done: int, logs: Mapping[str, Any]) -> None:
        self.show(done, logs)
        if self._bar is None:
            print(file=sys.stderr)
        else:
            self._bar.refresh()
            self._bar.close()


def of_kind(verbose: int | str) -> type[Silent]:
    """0: nothing, 1 or "auto": bars, 2: lines; ValueError for anything else."""
    kinds: dict[int | str, type[Silent]] = {0: Silent, 1: Bar, 2: Line, "auto": Bar}
    if verbose not in kinds:
        raise ValueError(f"verbose must be 0 (nothing), 1 or 'auto' (bars) or 2 (lines), got {verbose!r}")
    return kinds[verbose]
