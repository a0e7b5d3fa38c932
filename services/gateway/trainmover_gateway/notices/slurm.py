"""Announcements from Slurm: nodes that are drained, failing, in maintenance or rebooted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from trainmover.errors import TrainMoverError
from trainmover.events.machine import MachineNoticed

__all__ = ["SlurmSource", "notices_of"]

COMMAND: Final = ("sinfo", "--noheader", "--Node", "--format=%N|%T|%E")
"""Name, full state and reason of each node, one line for each partition it is in."""

_KINDS: Final[Mapping[str, str]] = {
    "drain": "maintenance",
    "drained": "maintenance",
    "draining": "maintenance",
    "maint": "maintenance",
    "reboot": "maintenance",
    "reboot_issued": "maintenance",
    "reboot_requested": "maintenance",
    "powering_down": "preemption",
    "power_down": "preemption",
    "fail": "health",
    "failing": "health",
    "down": "health",
}
_FLAGS: Final = "*~#!%$@^-+"
"""What sinfo appends to a state: not responding, powered down, rebooting, in maintenance, ..."""

_TIMEOUT_S: Final = 10.0


def notices_of(lines: Iterable[str]) -> dict[str, MachineNoticed]:
    """What the lines of ``COMMAND`` say about machines (by node name)."""
    found = {}
    for line in lines:
        name, _, rest = line.strip().partition("|")
        state, _, reason = rest.partition("|")
        base = state.lower().rstrip(_FLAGS)
        kind = "maintenance" if "$" in state else _KINDS.get(base)
        if not name or kind is None:
            continue
        words = "" if reason in {"", "none"} else f": {reason}"
        said = f"Slurm says {base}{words}"
        found[name] = MachineNoticed.model_validate(
            {"machine": name, "kind": kind, "reason": said, "source": "slurm"}
        )
    return found


class SlurmSource:
    """Asks ``sinfo``.

    Args:
        command: What to run instead.
    """

    def __init__(self, command: tuple[str, ...] = COMMAND) -> None:
        self._command = command

    async def __call__(self) -> dict[str, MachineNoticed]:
        """Ask once; see ``watch.Source``."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise TrainMoverError(f"{self._command[0]} cannot be run: {error}.") from error
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                out, words = await process.communicate()
        except TimeoutError as error:
            process.kill()
            await process.wait()
            raise TrainMoverError(
                f"{self._command[0]} did not answer in {_TIMEOUT_S:g} s; is slurmctld up?"
            ) from error
        if process.returncode:
            raise TrainMoverError(f"{self._command[0]} failed: {words.decode().strip()}.")
        return notices_of(out.decode().splitlines())
