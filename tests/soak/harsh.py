"""What a harsh soak adds: a bus that stops, on a disk that fills; clocks that step."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.small_disk import SmallDisk, small_disk

from trainmover.bus.embedded import EmbeddedServer

_CLOCK = str(Path(__file__).parents[1] / "support" / "odd_clock")
_MEGABYTES = 256


class HarshBus:
    """A server that the soak may stop, and whose disk it may fill.

    Args:
        disk: Where it keeps its streams.
        server: It, running.
        seed: Decides how long each trouble lasts.
    """

    FAULTS = ("stop_bus", "fill_disk")

    def __init__(self, disk: SmallDisk, server: EmbeddedServer, *, seed: int) -> None:
        self.server = server
        self._disk = disk
        self._random = random.Random(seed)

    def disturb(self, kind: str) -> None:
        """Do it, and undo it after some seconds."""
        if kind == "stop_bus":
            pid = self.server.pid
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(self._random.uniform(1.0, 8.0))
            finally:
                os.kill(pid, signal.SIGCONT)
            return
        self._disk.fill()
        time.sleep(self._random.uniform(1.0, 8.0))
        self._disk.free()
        self.server.kill()  # once it could not write it goes on failing: people start it anew
        self.server.start()


@contextlib.contextmanager
def harsh_bus(folder: Path, *, seed: int) -> Iterator[HarshBus]:
    """A bus on a disk of its own."""
    with small_disk(folder, megabytes=_MEGABYTES) as disk, disk.server() as server:
        yield HarshBus(disk, server, seed=seed)


@contextlib.contextmanager
def odd_clocks() -> Iterator[None]:
    """Processes that are started meanwhile have clocks that step by hours."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_CLOCK, before)))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
