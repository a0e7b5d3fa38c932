"""A shadow leaves the job's files alone: its program opens them as if, and writes to nowhere.

A standby runs the program from its beginning, ``open("log.csv", "w")`` included, beside the rank
that has written to that file for days. So files that the program opens for writing lead to the null
device while its process is a shadow. When it takes its slot they are the real ones, and what the
program writes from then on is appended to what the rank that it replaces has written.

A file that does not exist yet is made where it is not a log that grows: programs write down what
they read again (a vocabulary, a cache) on their way to the first step. From there on it is left
alone as well.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import io
import os
import stat
import sys
import sysconfig
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

from trainmover_executor.program.frames import is_program

__all__ = ["WithheldWrites", "flush_files"]

_STANDARD: Final = str(Path(sysconfig.get_path("stdlib"))) + "/"
_OPENERS: Final[tuple[Any, ...]] = (builtins, io)  # pathlib asks the second one


class WithheldWrites:
    """Files that the program of a shadow opened for writing.

    It begins when it is made. A program that keeps our ``open`` gets the real one behind it
    afterwards.
    """

    def __init__(self) -> None:
        self._open = builtins.open
        self._real: list[tuple[weakref.ref[IO[Any]], str]] = []
        self._nowhere: list[tuple[weakref.ref[IO[Any]], str]] = []
        self._active = True
        self._said = False
        for module in _OPENERS:
            module.open = self._instead()

    def begin_iterations(self) -> None:
        """The program has come to its steps: what it writes now the job has written, too."""
        opened, self._real = self._real, []
        for reference, path in opened:
            file = reference()
            if file is not None and not file.closed and _lead(file, os.devnull, os.O_WRONLY):
                self._nowhere.append((reference, path))

    def end(self) -> None:
        """This process takes its slot: files that are open are the real ones from now on."""
        self._active = False
        for module in _OPENERS:
            module.open = self._open
        for reference, path in self._nowhere:
            file = reference()
            if file is not None and not file.closed:
                _lead(file, path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._nowhere.clear()
        self._real.clear()

    def _instead(self) -> Callable[..., IO[Any]]:
        @functools.wraps(self._open)
        def open_in_shadow(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
            ours = self._active and _writes(mode) and _is_path(file) and "opener" not in kwargs
            if not (ours and _by_program()):
                return self._open(file, mode, *args, **kwargs)
            path = str(Path(os.fsdecode(file)).absolute())
            if not (_is_regular(path) or ("a" in mode and _could_be_made(path))):
                made = self._open(file, mode, *args, **kwargs)
                if _is_regular(path):
                    self._real.append((weakref.ref(made), path))
                return made
            self._say(path)
            opened = self._open(os.devnull, mode, *args, **kwargs)
            self._nowhere.append((weakref.ref(opened), path))
            return opened

        return open_in_shadow

    def _say(self, path: str) -> None:
        if not self._said:
            self._said = True
            print(  # noqa: T201 - into the shadow log
                f"what is written to {path} goes nowhere, and to other files that exist: this "
                "process is a shadow, a standby that warms up, until it takes a slot.",
                flush=True,
            )


def flush_files() -> None:
    """Write out what open files hold back: this process ends without the interpreter's help.

    Takes some milliseconds: all objects are looked at.
    """
    for file in gc.get_objects():
        # A proxy's class may be asked for what its type is, and answer with anything.
        if issubclass(type(file), io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom):
            with contextlib.suppress(OSError, ValueError):
                file.flush()


def _writes(mode: object) -> bool:
    """Whether all of a file is written anew or at its end; ``r+`` needs what is in it."""
    return isinstance(mode, str) and ("w" in mode or "a" in mode)


def _is_path(file: object) -> bool:
    return isinstance(file, str | os.PathLike)


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(Path(path).stat().st_mode)
    except (OSError, ValueError):
        return False


def _could_be_made(path: str) -> bool:
    return not Path(path).exists() and Path(path).parent.is_dir()


def _by_program() -> bool:
    """Whether the program opens the file, by itself or through the standard library."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - who called our open
    while frame is not None and frame.f_code.co_filename.startswith((_STANDARD, "<frozen")):
        if "/site-packages/" in frame.f_code.co_filename:
            break
        frame = frame.f_back
    if frame is None:
        return False
    return is_program(frame.f_globals.get("__name__", ""), frame.f_code.co_filename)


def _lead(file: IO[Any], path: str, flags: int) -> bool:
    """Have what is written to ``file`` go to ``path`` from now on; whether that could be done."""
    try:
        file.flush()
        target = os.open(path, flags | os.O_CLOEXEC, 0o666)
    except (OSError, ValueError):
        return False
    try:
        os.dup2(target, file.fileno(), inheritable=False)
    except (OSError, ValueError):
        return False
    finally:
        os.close(target)
    return True
