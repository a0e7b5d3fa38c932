"""The functions of the user's program that are running: their frames, from the script inwards."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import sysconfig
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, Final

import trainmover_executor

__all__ = [
    "calls_collective",
    "file_of",
    "is_called_by_program",
    "is_called_by_script",
    "is_program",
    "local_setter",
    "modules_of_program",
    "place_in",
    "program_frames",
    "signature_of",
    "write_locals",
]

_STANDARD: Final = tuple(
    str(Path(sysconfig.get_path(kind))) + "/" for kind in ("stdlib", "platstdlib")
)
_SITE: Final = tuple(str(Path(sysconfig.get_path(kind))) + "/" for kind in ("purelib", "platlib"))
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")
"""Packages of another environment: an image's below a virtual one, a user's, of PYTHONPATH."""
_OWN: Final = str(Path(trainmover_executor.__file__).parent) + "/"
_LIBRARIES: Final = frozenset({"torch", "numpy", "tqdm", "rich", "lightning", "trainmover"})
"""Installed packages that a loop may run through, and whose variables are their own."""
_OF_COLLECTIVES: Final = (
    *("torch.distributed.distributed_c10d", "torch.distributed.c10d_logger", "torch._dynamo."),
    *("trainmover_executor.collectives.", "trainmover_executor.training."),
    "trainmover_executor.worker.adapters.",
)
"""Modules between a program and its process group."""


@lru_cache(maxsize=4096)
def is_program(module: str, file: str) -> bool:
    """Whether a module belongs to the user's program, not to Python, torch or this package."""
    if module == "__main__":
        return True
    if file.startswith(("<frozen", _OWN)):
        return False
    if _is_installed(file):
        return module.partition(".")[0] not in _LIBRARIES
    return not file.startswith(_STANDARD)


def is_called_by_program(frame: FrameType | None) -> bool:
    """Whether ``frame`` is the program's, or of a library of functions that the program called."""
    caller = _caller(frame)
    return caller is not None and _is_of_program(caller)


def is_called_by_script(frame: FrameType | None) -> bool:
    """Whether that is the script or a module that it brought along, and none that is installed."""
    caller = _caller(frame)
    installed = caller is not None and _is_installed(caller.f_code.co_filename)
    return caller is not None and _is_of_program(caller) and not installed


def calls_collective(frame: FrameType | None) -> FrameType | None:
    """The frame of the script that called a collective of torch's; None where a library did.

    Args:
        frame: Carries the collective out.
    """
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_OF_COLLECTIVES):
        frame = frame.f_back
    return frame if is_called_by_script(frame) else None


def _is_of_program(frame: FrameType) -> bool:
    return is_program(frame.f_globals.get("__name__", ""), frame.f_code.co_filename)


def _caller(frame: FrameType | None) -> FrameType | None:
    """Who called the standard library, or numpy, which keeps no files of its own."""
    while frame is not None and (
        _is_standard(frame.f_code.co_filename)
        or frame.f_globals.get("__name__", "").partition(".")[0] == "numpy"
    ):
        frame = frame.f_back
    return frame


def _is_standard(file: str) -> bool:
    return file.startswith(("<frozen", *_STANDARD)) and not _is_installed(file)


@lru_cache(maxsize=4096)
def _is_installed(file: str) -> bool:
    if file.startswith(_SITE) or any(folder in file for folder in _INSTALLED):
        return True
    folders = (entry.rstrip("/") + "/" for entry in sys.path if entry)
    return any(
        file.startswith(folder)
        and file[len(folder) :].partition("/")[0].partition(".")[0] in _installed_in(folder)
        for folder in folders
    )


@lru_cache(maxsize=4096)
def _installed_in(folder: str) -> frozenset[str]:
    """Packages and modules that an installer put into a folder of the import path.

    ``pip install --target`` does, for images and shared file systems: by their records (PEP 376,
    PEP 627) they are told from what a program has beside them.
    """
    names = set()
    for record in Path(folder).glob("*.dist-info/RECORD"):
        # Not ``importlib.metadata``: since Python 3.12 it looks whether each of the files is there.
        with contextlib.suppress(OSError):
            for line in record.read_text(errors="replace").splitlines():
                top = line.lstrip('"').partition("/")[0].partition(",")[0]
                names.add(top.partition(".")[0])
    return frozenset(names - {""})


def modules_of_program() -> list[dict[str, Any]]:
    """The variables of the modules that the script brought along: files of its own."""
    return [
        vars(sys.modules[name])
        for name in _names_of_modules(len(sys.modules))
        if name in sys.modules
    ]


@lru_cache(maxsize=1)
def _names_of_modules(count: int) -> list[str]:
    """Which of ``count`` modules those are: asked anew where some were imported."""
    del count
    return [
        name
        for name in sys.modules.copy()  # threads of the program import modules meanwhile
        if name != "__main__" and is_of_script(name)
    ]


@lru_cache(maxsize=4096)
def is_of_script(module: str) -> bool:
    """Whether a module is the script or one that it brought along, and not installed."""
    package = module.partition(".")[0]
    if package in _LIBRARIES or package.startswith("trainmover_"):
        return False
    file = file_of(module)
    return is_program(module, file) and (module == "__main__" or not _is_installed(file))


def file_of(module: str) -> str:
    """Where a module that is imported comes from; ``<frozen`` where it is of no file.

    Attributes of a module may be made when they are asked for (PEP 562), or import another one.
    """
    held: dict[str, Any] = getattr(sys.modules.get(module), "__dict__", {})
    return held.get("__file__") or "<frozen"


def program_frames(frame: FrameType | None) -> list[FrameType]:
    """The program's frames that lead to ``frame``, the script's own first."""
    found = []
    while frame is not None:
        if _is_of_program(frame):
            found.append(frame)
        if frame.f_globals.get("__name__") == "__main__" and frame.f_code.co_name == "<module>":
            break
        frame = frame.f_back
    return found[::-1]


def place_in(frame: FrameType) -> str:
    """``file:line`` of the innermost function of the program that leads to ``frame``."""
    found = program_frames(frame) or [frame]
    return f"{found[-1].f_code.co_filename}:{found[-1].f_lineno}"


def signature_of(frame: FrameType) -> tuple[tuple[str, int], ...]:
    """Where the program stands: equal for two calls from the same place on the same way."""
    return tuple((each.f_code.co_qualname, each.f_lasti) for each in program_frames(frame))


def write_locals(frame: FrameType, values: Mapping[str, Any]) -> None:
    """Set local variables of a running function, as debuggers do.

    Since Python 3.13 ``f_locals`` writes through (PEP 667). Before, it is a snapshot that has to be
    copied back; the module's own frame keeps its variables in a dictionary at any time.
    """
    names = frame.f_locals
    for name, value in values.items():
        names[name] = value
    if sys.version_info < (3, 13) and frame.f_code.co_name != "<module>":
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def local_setter(frame: FrameType) -> Callable[[str, Any], None]:
    """Sets a local variable of a running function, by name."""

    def put(name: str, value: Any) -> None:
        write_locals(frame, {name: value})

    return put
