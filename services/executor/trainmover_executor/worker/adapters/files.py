"""A shadow leaves the job's files alone: what its program writes goes into files that nobody sees.

A standby runs the program from its beginning, ``open("log.csv", "w")`` included, beside the rank
that has written to that file for days. So what the program opens for writing while its process is a
shadow is a file without a name. When it takes its slot they are the real ones, and what the program
writes from then on is appended to what the rank that it replaces has written.

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
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

from trainmover_executor.program.frames import is_called_by_program, is_called_by_script
from trainmover_executor.worker.adapters.names import OwnPaths
from trainmover_executor.worker.adapters.shadow_log import SaidOnce

__all__ = ["WithheldWrites", "flush_files"]

_BEFORE_OPENER: Final = 4
"""Parameters of ``open`` between its mode and ``closefd``, ``opener``."""
_APPENDS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class WithheldWrites:
    """Files that the program of a shadow opened for writing.

    It begins when it is made. A program that keeps our ``open`` gets the real one behind it
    afterwards.

    Args:
        own: Told what this process makes.
    """

    def __init__(self, own: OwnPaths) -> None:
        self._own = own
        self._open: Callable[..., IO[Any]] = builtins.open
        self._real: list[tuple[weakref.ref[IO[Any]], str]] = []
        self._unseen: list[tuple[weakref.ref[IO[Any]], str]] = []
        self._active = True
        self._say = SaidOnce("is not written to, nor are other files that exist")
        instead = self._instead()
        for holder, name in _holders(self._open):
            holder[name] = instead

    def begin_iterations(self) -> None:
        """The program has come to its steps: what it writes now the job has written, too."""
        opened, self._real = self._real, []
        for reference, path in opened:
            file = reference()
            if file is not None and not file.closed and _lead(file, _nameless):
                self._unseen.append((reference, path))

    def end(self) -> None:
        """This process takes its slot: files that are open are the real ones from now on."""
        self._active = False
        for holder, name in _holders(builtins.open):
            holder[name] = self._open
        for reference, path in self._unseen:
            file = reference()
            if file is not None and not file.closed:
                _lead(file, functools.partial(os.open, path, _APPENDS, 0o666))
        self._unseen.clear()
        self._real.clear()

    def _instead(self) -> Callable[..., IO[Any]]:
        @functools.wraps(self._open)
        def open_in_shadow(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
            opener = "opener" in kwargs or len(args) > _BEFORE_OPENER
            if not (self._active and _writes(mode) and _is_path(file)) or opener:
                return self._open(file, mode, *args, **kwargs)
            caller = sys._getframe(1)  # noqa: SLF001
            path = str(Path(os.fsdecode(file)).absolute())
            is_there, ours = _is_regular(path), is_called_by_program(caller)
            waits = "w" not in mode and _could_be_made(path) and is_called_by_script(caller)
            if path in self._own or not ours or not (is_there or waits):
                made = self._open(file, mode, *args, **kwargs)
                if not is_there and _is_regular(path):
                    self._own.add(path)
                    if ours:
                        self._real.append((weakref.ref(made), path))
                return made
            self._say(path)
            mode = mode.replace("x", "w")
            opened = self._open(file, mode, *args, **kwargs, opener=lambda *_: _nameless())
            self._unseen.append((weakref.ref(opened), path))
            return opened

        return open_in_shadow


def _holders(opener: Callable[..., IO[Any]]) -> list[tuple[dict[Any, Any], Any]]:
    """Where ``opener`` stands: what the standard library and numpy open files with.

    ``pathlib`` asks the second one. Two keep it for themselves once they are imported.
    """
    openers = getattr(sys.modules.get("numpy.lib._datasource"), "_file_openers", None)
    places: list[tuple[dict[Any, Any], Any]] = [
        (vars(builtins), "open"),
        (vars(io), "open"),
        (vars(sys.modules.get("tarfile", io)), "bltn_open"),
        (getattr(openers, "_file_openers", {}), None),
    ]
    return [(holder, name) for holder, name in places if holder.get(name) is opener]


def flush_files() -> None:
    """Write out what open files hold back: this process ends without the interpreter's help.

    All objects are looked at, which takes some 0.1 s for a million of them.
    """
    for file in gc.get_objects():
        # A proxy's class may be asked for what its type is, and answer with anything.
        if issubclass(type(file), io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom):
            with contextlib.suppress(OSError, ValueError):
                file.flush()


def _writes(mode: object) -> bool:
    """Whether all of a file is written anew or at its end; ``r+`` needs what is in it."""
    return isinstance(mode, str) and not set(mode).isdisjoint("wax")


def _is_path(file: object) -> bool:
    return isinstance(file, str | os.PathLike)


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(Path(path).stat().st_mode)
    except (OSError, ValueError):
        return False


def _could_be_made(path: str) -> bool:
    return not Path(path).exists() and Path(path).parent.is_dir()


def _nameless() -> int:
    """A descriptor of a new file that has no name, and can be read and sought in like others."""
    descriptor, name = tempfile.mkstemp(prefix="trainmover-shadow-")
    Path(name).unlink()
    return descriptor


def _lead(file: IO[Any], to: Callable[[], int]) -> bool:
    """Have what is written to ``file`` go to another descriptor; whether that was possible."""
    try:
        file.flush()
        target = to()
    except (OSError, ValueError):
        return False
    try:
        os.dup2(target, file.fileno(), inheritable=False)
    except (OSError, ValueError):
        return False
    finally:
        os.close(target)
    return True
