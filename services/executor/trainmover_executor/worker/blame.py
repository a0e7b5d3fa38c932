"""Names the error that ended a program, and the line of the program that it came from."""

from __future__ import annotations

import runpy
import sysconfig
import traceback
from pathlib import Path
from typing import Final

import torch

import trainmover
import trainmover_executor

__all__ = ["error_line", "place_of"]

_LONGEST: Final = 300
_OURS: Final = (
    str(Path(torch.__file__).parent),
    str(Path(trainmover.__file__).parent),
    str(Path(trainmover_executor.__file__).parent),
    runpy.__file__,
    "<",  # <frozen runpy>, <string>
)
_LIBRARIES: Final = tuple(
    sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def error_line(error: BaseException) -> str:
    """``AssertionError: the ranks are out of step``: type and first line of an error."""
    lines = str(error).strip().splitlines()
    name = type(error).__name__
    return f"{name}: {lines[0]}"[:_LONGEST] if lines else name


def place_of(error: BaseException) -> str:
    """``/home/me/train.py:19``: the innermost call in the user's program; empty if there is none.

    A program that is installed as a library is found, too, where no other code of the user's runs.
    """
    frames = traceback.extract_tb(error.__traceback__)
    for foreign in ((*_OURS, *_LIBRARIES), _OURS):
        for frame in reversed(frames):
            if not frame.filename.startswith(foreign):
                return f"{frame.filename}:{frame.lineno}"
    return ""
