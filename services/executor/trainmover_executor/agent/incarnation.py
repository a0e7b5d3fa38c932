"""What every incarnation of an agent has for itself: name, generation, a folder for sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import Final

from trainmover.bus.protocol import Bus
from trainmover.bus.streams import MACHINES_BUCKET
from trainmover.errors import BusError, BusUnavailableError, ConfigError, ConflictError
from trainmover.job.numbers import decimal
from trainmover.tracing.observe import get_logger

__all__ = [
    "newest_generation",
    "private_folder",
    "refuse_namesake",
    "take_generation",
    "wait_until_alone",
]

_log = get_logger(__name__)

_LONGEST_SOCKET_PATH: Final = 107
_ATTEMPTS: Final = 20
_RETRY_S: Final = 0.25
_INCARNATIONS: Final = 10_000
"""An agent has fewer incarnations between two of its starts: each is a slot that it gave back."""

_DIGITS: Final = 15
_BIRTHDAY_S: Final = 1_767_225_600  # 2026-01-01: keeps the numbers short

_SILENT_S: Final = 32.0
"""After so long the bus has forgotten an agent that ended without saying so, with its host say."""

_ASKED_AGAIN_S: Final = 0.5
_LOOKED_AFTER_S: Final = (1.0, 3.0, 10.0)
"""Agents that begin together do not see each other before."""


async def wait_until_alone(bus: Bus, *, job: str, machine: str) -> None:
    """Return once no agent of this name reads its commands: two would share them out.

    Hosts that are copies of one image have one name.

    Raises:
        ConfigError: One does, and goes on doing so.
    """
    loop = asyncio.get_running_loop()
    end, told = loop.time() + _SILENT_S, False
    while await _readers(bus, job, machine):
        if loop.time() >= end:
            raise _taken(machine, job)
        if not told:
            told = True
            _log.warning(
                "agent.name_is_taken",
                machine=machine,
                cure="give each machine a name of its own with --machine, or end the other agent",
                ends_in_s=_SILENT_S,
            )
        await asyncio.sleep(_ASKED_AGAIN_S)


async def refuse_namesake(bus: Bus, *, job: str, machine: str, generation: int) -> None:
    """Look a few times whether an agent of this name has begun after this one, which then ends.

    What an agent says counts from the newest of its name, so this one would not be heard.

    Raises:
        ConfigError: One has.
    """
    began = asyncio.get_running_loop().time()
    for after_s in _LOOKED_AFTER_S:
        await asyncio.sleep(began + after_s - asyncio.get_running_loop().time())
        with contextlib.suppress(BusError):
            known = await bus.get(MACHINES_BUCKET, _key(job, machine))
            newest = 0 if known is None else decimal(known.value, digits=_DIGITS) or 0
            if newest > generation and await bus.command_readers(job, machine) > 1:
                raise _taken(machine, job)


async def _readers(bus: Bus, job: str, machine: str) -> int:
    for _ in range(_ATTEMPTS):
        try:
            return await bus.command_readers(job, machine)
        except BusUnavailableError:
            await asyncio.sleep(_RETRY_S)
        except BusError as error:  # what it may not read it is told when it reads
            _log.debug("agent.name_is_not_checked", reason=str(error))
            return 0
    return 0


def _taken(machine: str, job: str) -> ConfigError:
    return ConfigError(
        f"another agent is machine {machine!r} of job {job!r}, and works. Give each machine a name "
        "of its own (--machine, TRAINMOVER_MACHINE), or end the other agent first."
    )


def _key(job: str, machine: str) -> str:
    return f"{job}.{machine}.generation"


def newest_generation() -> int:
    """What no earlier agent of this machine has reached, by the clock: tenths of a second.

    Were a machine that starts over to repeat a generation, its registration and its telemetry
    would pass for the incarnation before, and the job would wait for ever for ranks that are gone.
    """
    return int(10 * (time.time() - _BIRTHDAY_S))


async def take_generation(bus: Bus, *, job: str, machine: str) -> int:
    """A number above that of every earlier agent of this machine, wherever the clock is now.

    The latest one is kept on the bus. A machine whose clock was set back would else register with
    a number that is over, and be taken for an incarnation that ended.
    """
    key = _key(job, machine)
    for _ in range(_ATTEMPTS):
        try:
            known = await bus.get(MACHINES_BUCKET, key)
            # Anything but a number is no word of an agent's.
            before = (decimal(known.value, digits=_DIGITS) or 0) if known is not None else 0
            mine = max(newest_generation(), before + _INCARNATIONS)
            revision = None if known is None else known.revision
            await bus.put(MACHINES_BUCKET, key, str(mine).encode(), revision=revision)
        except ConflictError:
            continue
        except BusUnavailableError:
            await asyncio.sleep(_RETRY_S)
        except BusError as error:
            _log.warning("agent.generation_is_of_the_clock", reason=str(error))
            break
        else:
            return mine
    return newest_generation()


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
