"""What a process prints, as it comes."""

from __future__ import annotations

import re
import threading
import time
from typing import IO


class Lines:
    """Reads a stream in a thread of its own, so that no process waits for its reader.

    Args:
        stream: A pipe from a process; closed when it has ended.
        what: Names the process when a test fails.
    """

    def __init__(self, stream: IO[str] | None, *, what: str = "it") -> None:
        assert stream is not None, f"the output of {what} is not piped"
        self._stream = stream
        self._what = what
        self._lines: list[str] = []
        self._looked_at = 0
        self._ended = False
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self._stream:
            for line in self._stream:
                with self._news:
                    self._lines.append(line.rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    @property
    def text(self) -> str:
        """All that came so far."""
        return "\n".join(self._lines)

    def until(self, pattern: str, *, timeout_s: float = 120) -> str:
        """Wait for a line that matches, among those that were not looked at.

        Raises:
            AssertionError: It ended, or the time is over, without such a line.
        """
        deadline = time.monotonic() + timeout_s
        with self._news:
            while True:
                while self._looked_at < len(self._lines):
                    line = self._lines[self._looked_at]
                    self._looked_at += 1
                    if re.search(pattern, line):
                        return line
                assert not self._ended, f"{self._what} ended before {pattern!r}:\n{self.text}"
                left_s = deadline - time.monotonic()
                assert left_s > 0, (
                    f"{self._what} said no {pattern!r} in {timeout_s:g} s:\n{self.text}"
                )
                self._news.wait(left_s)

    def end(self, *, timeout_s: float = 10) -> str:
        """All of it, once the process has ended; whatever came within ``timeout_s`` otherwise."""
        self._reader.join(timeout_s)
        return self.text
