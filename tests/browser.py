"""A headless Chromium for tests, spoken to in its own protocol over a pair of pipes: no socket and no package needed.

In: pages, scripts and files to choose. Out: what scripts answer, pictures. The browser reads orders from its descriptor
3 and answers on 4, each a line of JSON that ends with a zero byte.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
# The test suite of a checkout may be run where there is no browser; continuous integration has one.
needs_browser = pytest.mark.skipif(PROGRAM is None and not os.environ.get("CI"), reason="no Chromium here")
PATIENCE = 90.0  # seconds, on a busy machine


class Browser:
    """One browser with one page at a time; use it as a context manager."""

    def __init__(self, folder: Path, width: int = 1200, height: int = 800) -> None:
        assert PROGRAM is not None, "continuous integration needs Chromium"
        orders, self._orders = _above_standard(os.pipe())
        self._answers, answers = _above_standard(os.pipe())
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-3d-apis", "--remote-debugging-pipe",
                   f"--user-data-dir={folder}", f"--window-size={width},{height}", "about:blank")
        self._process = os.posix_spawn(PROGRAM, [PROGRAM, *options], os.environ, file_actions=[
            (os.POSIX_SPAWN_DUP2, orders, 3), (os.POSIX_SPAWN_DUP2, answers, 4),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)])
        os.close(orders)
        os.close(answers)
        self._rest, self._count, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._session = ""
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            self.order("Browser.close")
        os.waitpid(self._process, 0)
        os.close(self._orders)
        os.close(self._answers)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._answers], [], [], PATIENCE)[0]:
                raise TimeoutError("the browser does not answer")
            if not (part := os.read(self._answers, 1 << 16)):
                raise EOFError("the browser ended")
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def order(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol; what else the browser tells meanwhile is kept in `events`."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        text = json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0"
        while text:
            text = text[os.write(self._orders, text):]
        while (answer := self._next()).get("id") != self._count:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def open(self, address: str) -> None:
        """A new page."""
        self._session = ""
        page = self.order("Target.createTarget", url=address)["targetId"]
        self._session = self.order("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        self.order("Page.enable")
        self.wait("document.readyState == 'complete' && location.href != 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of a script, or of its promise."""
        how = {"awaitPromise": True, "returnByValue": True, "userGesture": True}
        found = self.order("Runtime.evaluate", expression=script, **how)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", "the script failed"))
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until a script says true."""
        end = time.monotonic() + PATIENCE
        while not self.run(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"still not true: {condition}")
            time.sleep(0.05)

    def choose_file(self, click: str, path: Path) -> None:
        """Run a script that makes the page ask for a file, and answer with this one."""
        self.order("Page.setInterceptFileChooserDialog", enabled=True)
        self.events.clear()
        self.run(click)
        while not (asked := [e for e in self.events if e.get("method") == "Page.fileChooserOpened"]):
            self.events.append(self._next())
        self.order("DOM.setFileInputFiles", files=[str(path)], backendNodeId=asked[0]["params"]["backendNodeId"])

    def picture(self, path: Path) -> Path:
        """The window, as PNG."""
        path.write_bytes(base64.b64decode(self.order("Page.captureScreenshot")["data"]))
        return path


def _above_standard(pipe: tuple[int, int]) -> tuple[int, int]:
    """The same pipe at numbers that its copies to 3 and 4 cannot meet."""
    found = fcntl.fcntl(pipe[0], fcntl.F_DUPFD_CLOEXEC, 10), fcntl.fcntl(pipe[1], fcntl.F_DUPFD_CLOEXEC, 10)
    for end in pipe:
        os.close(end)
    return found
