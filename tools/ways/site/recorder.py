"""Which files of ours ran, by thread, since somebody asked last."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = str(Path(__file__).resolve().parents[3]) + "/"
_seen: set[tuple[int, str]] = set()


def install() -> None:
    """Look at every call of a function, in all threads that begin from now on."""
    threading.setprofile(_called)
    sys.setprofile(_called)


def _called(frame: FrameType, event: str, _: Any) -> None:
    if event == "call":
        _seen.add((threading.get_ident(), frame.f_code.co_filename))


def take(*, without: str = "") -> list[str]:
    """Files that ran since the last call, but for those of threads named ``without``."""
    left_out = {each.ident for each in threading.enumerate() if without and each.name == without}
    found = {file for thread, file in _seen.copy() if thread not in left_out}
    _seen.clear()
    return sorted(file.removeprefix(ROOT) for file in found if _is_ours(file))


def _is_ours(file: str) -> bool:
    return file.startswith((ROOT + "services/", ROOT + "shared/")) and "__init__" not in file
