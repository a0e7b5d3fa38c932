"""What every life of an agent has for itself: a generation, and a folder for its sockets."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Final

from trainmover.errors import ConfigError

__all__ = ["newest_generation", "private_folder"]

_LONGEST_SOCKET_PATH: Final = 107
_BIRTHDAY_S: Final = 1_767_225_600  # 2026-01-01: keeps the numbers short


def newest_generation() -> int:
    """A number that no earlier agent of this machine can have reached: tenths of a second.

    Were a machine that starts over to repeat a generation, its registration and its telemetry
    would pass for the life before, and the job would wait for ever for ranks that are gone.
    """
    return int(10 * (time.time() - _BIRTHDAY_S))


def private_folder() -> Path:
    """A folder of our own for sockets; the path of a socket has 107 bytes at most (unix(7)).

    Raises:
        ConfigError: There is no place whose path is short enough.
    """
    for parent in (tempfile.gettempdir(), "/tmp", "/dev/shm"):  # noqa: S108 - mkdtemp is private
        room = _LONGEST_SOCKET_PATH - len(os.fsencode(parent)) - len("/tm-12345678/123456.sock")
        if room >= 0 and os.access(parent, os.W_OK | os.X_OK):
            return Path(tempfile.mkdtemp(prefix="tm-", dir=parent))
    raise ConfigError(
        f"TMPDIR ({tempfile.gettempdir()}) is too long a path for a unix socket, and neither /tmp "
        "nor /dev/shm can be written to. Set TMPDIR to a folder with a short path."
    )
