"""Shows what rank 0 prints, whichever machine computes it now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from trainmover.job.topology import Membership

__all__ = ["OutputFollower"]

_POLL_S: Final = 0.2


@dataclass(slots=True)
class OutputFollower:
    """Copies the output of rank 0 as it grows.

    A standby runs the program too, in shadow iterations: what a joiner printed before it took the
    slot is skipped, and so is what an earlier job left in the folder.

    Attributes:
        log_dir: Where each rank's output is logged.
        write: Takes the bytes.
    """

    log_dir: Path
    write: Callable[[bytes], None]
    _machine: str | None = None
    _read: dict[Path, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Note what was there before the job."""
        self._read = {file: file.stat().st_size for file in self.log_dir.glob("rank0-*.log")}

    def follow_members(self, membership: Membership) -> None:
        """A first or new membership: rank 0 may be computed elsewhere from now on."""
        machine = membership.machine_of(0)
        if machine == self._machine:
            return
        self.copy()
        first = self._machine is None
        self._machine = machine
        if not first:
            self._read = {file: file.stat().st_size for file in self._files()}

    def copy(self) -> None:
        """Copy what is new."""
        for file in self._files():
            done = self._read.get(file, 0)
            with file.open("rb") as stream:
                stream.seek(done)
                data = stream.read()
            if data:
                self.write(data)
                self._read[file] = done + len(data)

    async def run(self) -> None:
        """Copy until cancelled, and once more then."""
        try:
            while True:
                self.copy()
                await asyncio.sleep(_POLL_S)
        finally:
            self.copy()

    def _files(self) -> list[Path]:
        if self._machine is None:
            return []
        return sorted(self.log_dir.glob(f"rank0-{self._machine}-*.log"))
