"""Files that a job made while it trained are not there for a standby that comes later.

Every script for torchrun begins with "resume if there is a snapshot". A standby that starts once
the job has written its first one would load it, and count its epochs from there, where the job's
program began without. So a rank notes what it finds of files before its first step, in the same
recording as the results of its collectives; a standby does not see what was not there then, and was
written since the job's first step began. Nor does a standby make a folder before its rank does.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

import structlog
import torch

from trainmover_executor.collectives.sandbox.recording import BEGAN, OF_FILES, Entry, Recording
from trainmover_executor.program.frames import is_called_by_program

__all__ = ["FilesAsked"]

log = structlog.get_logger(__name__)

_PATIENCE_S: Final = 30.0
_SOON_S: Final = 2.0
"""What was noted later than something that has come follows at once."""
_MOST: Final = 4096
"""Paths that are noted, and as many of what is listed: a data set may have millions."""
_MOST_TIMES: Final = 16
"""How often a path is noted: programs wait for a file by asking again."""
_MOST_LISTED: Final = 256
"""Members of a folder whose list is noted."""

_Function = Callable[..., Any]


class FilesAsked:
    """What the program asks about files before its first step; begins when it is made.

    Args:
        recording: Of this rank; at a standby that of the active one.
        is_shadow: Whether this process is a standby.
        own: Paths of what this process made.
    """

    def __init__(
        self, recording: Recording, *, is_shadow: Callable[[], bool], own: Container[Any] = ()
    ) -> None:
        self._recording = recording
        self._is_shadow = is_shadow
        self._own = own
        self._looks = False
        self._count: defaultdict[str, int] = defaultdict(int)
        self._in_set_up = True
        self._warned = False
        self._listed = 0
        self._replaced: list[tuple[Any, str, _Function, _Function]] = []
        for module, names, instead in (
            (os.path, ("exists", "lexists", "isfile", "isdir"), self._asking),
            (Path, ("exists", "is_file", "is_dir"), self._asking),
            (os, ("listdir",), self._listing),
            (os, ("scandir",), self._scanning),
            (os, ("mkdir",) * (not is_shadow()), self._making),
        ):
            for name in names:
                original = getattr(module, name)
                ours = functools.wraps(original)(instead(original))
                self._replaced.append((module, name, original, ours))
                setattr(module, name, ours)

    def end(self) -> None:
        """The program has come to its steps."""
        self._in_set_up = False
        for module, name, original, ours in self._replaced:
            if getattr(module, name) is ours:
                setattr(module, name, original)

    def _is_noted(self, caller: FrameType, path: Any) -> bool:
        is_path = isinstance(path, str | bytes | os.PathLike)
        if self._looks or not (is_path and self._in_set_up) or len(self._count) > _MOST:
            return False
        self._looks = True  # who called is found by looking at files, too
        try:
            return is_called_by_program(caller)
        finally:
            self._looks = False

    # -- what is done instead ----------------------------------------------------------------------

    def _asking(self, original: _Function) -> _Function:
        def ask(path: Any, *args: Any, **options: Any) -> bool:
            found: bool = original(path, *args, **options)
            if not self._is_noted(sys._getframe(1), path):  # noqa: SLF001
                return found
            key = f"{OF_FILES}{_full(path)}"
            index = self._next(key)
            if index >= _MOST_TIMES:
                return found
            if not self._is_shadow():
                self._note(key, found=found)
                return found
            return found and (path in self._own or self._was_there(path, key, index))

        return ask

    def _listing(self, original: _Function) -> _Function:
        def list_folder(path: Any = ".", *args: Any, **options: Any) -> list[Any]:
            names: list[Any] = original(path, *args, **options)
            if not self._is_noted(sys._getframe(1), path):  # noqa: SLF001
                return names
            shown = self._shown(path, names)
            return [name for name in names if name in shown]

        return list_folder

    def _scanning(self, original: _Function) -> _Function:
        def scan_folder(path: Any = ".", *args: Any, **options: Any) -> Any:
            found = original(path, *args, **options)
            if not self._is_noted(sys._getframe(1), path):  # noqa: SLF001
                return found
            with found:
                entries = list(found)
            shown = self._shown(path, [each.name for each in entries])
            return _Scanned([each for each in entries if each.name in shown])

        return scan_folder

    def _making(self, original: _Function) -> _Function:
        def make_folder(path: Any, *args: Any, **options: Any) -> None:
            is_noted = self._is_noted(sys._getframe(1), path)  # noqa: SLF001
            try:
                original(path, *args, **options)
            finally:
                if is_noted and self._next(_made(path)) == 0:
                    self._note(_made(path), found=True)

        return make_folder

    def await_folder(self, path: Any) -> None:
        """At a standby: its program is about to make a folder, which it leaves to its rank first.

        The rank's program may fail where it finds a folder that it is about to make.
        """
        if self._in_set_up and not os.path.lexists(path):
            self._recording.find(0, _made(path), 0, patience_s=_PATIENCE_S)

    def _shown(self, folder: Any, names: list[Any]) -> set[Any]:
        """The members of a folder that the program sees."""
        self._listed += len(names)
        if len(names) > _MOST_LISTED or self._listed > _MOST:
            return set(names)
        paths = {each: os.path.join(os.fsdecode(folder), os.fsdecode(each)) for each in names}  # noqa: PTH118 - as given
        keys = {each: f"{OF_FILES}{_full(path)} listed" for each, path in paths.items()}
        all_told = f"{OF_FILES}{_full(folder)} is listed"
        index = self._next(all_told)
        if index >= _MOST_TIMES:
            return set(names)
        if not self._is_shadow():
            for key in keys.values():
                self._note(key, found=True)
            self._note(all_told, found=True)
            return set(names)
        if self._recording.find(0, all_told, index, patience_s=_PATIENCE_S) is None:
            return set(names)
        return {each for each in names if self._was_listed(paths[each], keys[each])}

    # -- notes -------------------------------------------------------------------------------------

    def _next(self, key: str) -> int:
        index = self._count[key]
        self._count[key] += 1
        return index

    def _note(self, key: str, *, found: bool) -> None:
        self._recording.add(Entry(key, (torch.tensor([found]),)))

    def _was_there(self, path: Any, key: str, index: int) -> bool:
        """Whether the job's program found ``path``, too, or would have."""
        answer = self._recording.find(0, key, index, patience_s=_PATIENCE_S)
        if answer is None:
            return True
        if bool(answer[0]):
            if not os.path.isdir(path) and self._is_newer(path, patience_s=0.0):  # noqa: PTH112
                self._warn(path)  # of a folder, what is in it is asked for apart
            return True
        return not self._is_newer(path, patience_s=_SOON_S)

    def _was_listed(self, path: str, key: str) -> bool:
        if path in self._own or self._recording.find(0, key, 0, patience_s=0.0) is not None:
            return True
        return not self._is_newer(path, patience_s=_SOON_S)

    def _is_newer(self, path: Any, *, patience_s: float) -> bool:
        """Whether something was written there since the job's first step began."""
        began = self._recording.find(0, BEGAN, 0, patience_s=patience_s)
        try:
            return began is not None and os.stat(path).st_mtime_ns > int(began[0])  # noqa: PTH116 - bytes, too
        except OSError:
            return False

    def _warn(self, path: Any) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "the job has written to a file since it began that its program looks for in front "
                "of its first step: a standby that loads it may begin elsewhere. Broadcast what "
                "rank 0 finds, and write each checkpoint under a name of its own",
                file=str(path),
            )


class _Scanned(Iterator[Any]):
    """What ``os.scandir`` returns, of some entries."""

    def __init__(self, entries: list[Any]) -> None:
        self._left = iter(entries)

    def __next__(self) -> Any:
        return next(self._left)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give nothing more."""
        self._left = iter(())


def _made(path: Any) -> str:
    return f"{OF_FILES}{_full(path)} made"


def _full(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - and without ".."
