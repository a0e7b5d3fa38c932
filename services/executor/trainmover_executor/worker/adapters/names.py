"""A shadow renames and removes none of the job's files, and passes where one is missing.

Programs write a checkpoint under a temporary name and rename it, keep the newest three, copy the
best one and lead a link to the latest. What a shadow saves is not written (see ``withhold``), so
there is nothing to rename; and what it would remove is the job's.

What this process made itself (``OwnPaths``) it may rename and remove.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from trainmover_executor.program.frames import is_called_by_program
from trainmover_executor.worker.adapters.shadow_log import SaidOnce

__all__ = ["OwnPaths", "WithheldNames"]

_PRIVATE: Final = 0o700
"""The mode in which ``tempfile`` makes folders."""
_MAKES: Final = os.O_CREAT | os.O_EXCL
_IN_PARTS: Final = frozenset({os.__file__, shutil.__file__})
"""A file of the library whose functions call each other: what the outermost does was decided."""

_Function = Callable[..., Any]


class OwnPaths:
    """Paths of what this process made: files that did not exist, folders for temporary ones."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def add(self, path: Any) -> None:
        """A file was made."""
        if (full := _full(path)) is not None:
            self._files.add(full)

    def add_folder(self, path: Any) -> None:
        """A folder was made that nobody else uses."""
        if (full := _full(path)) is not None:
            self._folders.add(full)

    def move(self, source: Any, target: Any) -> None:
        """A file has another name from now on."""
        self._files.discard(_full(source) or "")
        self.add(target)

    def forget_files(self) -> None:
        """Other processes that run this program have made the same ones by now."""
        self._files.clear()

    def __contains__(self, path: Any) -> bool:
        full = _full(path)
        if full is None:
            return False
        return full in self._files or any(
            str(each) in self._folders for each in (Path(full), *Path(full).parents)
        )


class WithheldNames:
    """What the program of a shadow does to names of files, where they are the job's.

    It begins when it is made. A program that keeps one of our functions gets the real one behind it
    afterwards.

    Args:
        own: What this process made.
        await_folder: Called with the path of a folder that the program is about to make.
    """

    def __init__(self, own: OwnPaths, *, await_folder: Callable[[Any], None]) -> None:
        self._own = own
        self._await_folder = await_folder
        self._active = True
        self._in_iterations = False
        self._say = SaidOnce("is left out, nor are other files of the job renamed or removed")
        self._originals: list[tuple[Any, str, _Function]] = []
        for module, names, instead in (
            (os, ("remove", "unlink", "rmdir", "removedirs", "truncate"), self._removing),
            (shutil, ("rmtree",), self._removing),
            (os, ("rename", "renames", "replace"), self._renaming),
            (shutil, ("move",), self._renaming),
            (os, ("symlink", "link"), self._linking),
            (shutil, ("copyfile", "copy", "copy2", "copytree"), self._copying),
            (os, ("mkdir",), self._making_folders),
            (os, ("open",), self._making_files),
        ):
            for name in names:
                original = getattr(module, name)
                self._originals.append((module, name, original))
                setattr(module, name, functools.wraps(original)(instead(original)))

    def begin_iterations(self) -> None:
        """The program has come to its steps: what it does now the job has done, too."""
        self._in_iterations = True
        self._own.forget_files()

    def end(self) -> None:
        """This process takes its slot."""
        self._active = False
        for module, name, original in self._originals:
            setattr(module, name, original)

    def _is_asked(self, caller: FrameType, *paths: Any) -> bool:
        """Whether the program itself names these paths."""
        if not self._active or caller.f_code.co_filename in _IN_PARTS:
            return False
        return None not in map(_full, paths) and is_called_by_program(caller)

    # -- what is done instead ----------------------------------------------------------------------

    def _removing(self, original: _Function) -> _Function:
        def remove_own(path: Any, *args: Any, **options: Any) -> Any:
            if not self._is_asked(sys._getframe(1), path) or path in self._own:  # noqa: SLF001
                return original(path, *args, **options)
            self._say(f"{original.__name__} of {path}")
            return None

        return remove_own

    def _renaming(self, original: _Function) -> _Function:
        def rename_own(src: Any, dst: Any, *args: Any, **options: Any) -> Any:
            if not self._is_asked(sys._getframe(1), src, dst):  # noqa: SLF001
                return original(src, dst, *args, **options)
            is_own = src in self._own
            if is_own and (dst in self._own or not os.path.lexists(dst)):
                result = original(src, dst, *args, **options)
                self._own.move(src, result or dst)
                return result
            if is_own and Path(src).is_file():  # else it would be left over
                Path(src).unlink()
            self._say(f"{original.__name__} of {src} to {dst}")
            return dst if original.__name__ == "move" else None

        return rename_own

    def _linking(self, original: _Function) -> _Function:
        def link_once(src: Any, dst: Any, *args: Any, **options: Any) -> Any:
            if self._is_asked(sys._getframe(1), dst) and not self._makes(dst):  # noqa: SLF001
                self._say(f"{original.__name__} of {src} to {dst}")
                return None
            return original(src, dst, *args, **options)

        return link_once

    def _copying(self, original: _Function) -> _Function:
        def copy_once(src: Any, dst: Any, *args: Any, **options: Any) -> Any:
            if not self._is_asked(sys._getframe(1), src, dst):  # noqa: SLF001
                return original(src, dst, *args, **options)
            target = Path(dst) / Path(src).name if Path(dst).is_dir() else Path(dst)
            if not (self._makes(target) and Path(src).exists()):
                self._say(f"{original.__name__} of {src} to {dst}")
                return dst
            self._own.add(target)
            return original(src, dst, *args, **options)

        return copy_once

    def _makes(self, path: Any) -> bool:
        """Whether ``path`` is this process's to make: the job may not have come to it, either."""
        return path in self._own or not (self._in_iterations or os.path.lexists(path))

    def _making_folders(self, original: _Function) -> _Function:
        def make_folder(path: Any, mode: int = 0o777, **options: Any) -> None:
            caller = sys._getframe(1)  # noqa: SLF001
            if self._active and mode != _PRIVATE and is_called_by_program(caller):
                self._await_folder(path)
            try:
                original(path, mode, **options)
            except FileExistsError:
                if not (self._active and Path(path).is_dir() and is_called_by_program(caller)):
                    raise
            else:
                if self._active and mode == _PRIVATE:
                    self._own.add_folder(path)

        return make_folder

    def _making_files(self, original: _Function) -> _Function:
        def open_descriptor(path: Any, flags: int, *args: Any, **options: Any) -> int:
            descriptor: int = original(path, flags, *args, **options)
            if self._active and flags & _MAKES == _MAKES:
                self._own.add(path)
            return descriptor

        return open_descriptor


def _full(path: Any) -> str | None:
    """The absolute path of what a program named; None for a descriptor and the like."""
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - and without ".."
