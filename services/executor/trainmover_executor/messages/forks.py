"""What the agent and its fork server say to each other over one socketpair.

Frames are laid out as in ``control.py``. Agent to fork server: ``Spawn`` (a listening socket
and the memory of a clock travel with it as ``SCM_RIGHTS``) and ``Signal``. Fork server to agent:
``Ready`` once, then ``Spawned`` and ``Exited`` per process.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter

from trainmover.job.topology import Frozen
from trainmover_executor.messages.worker import WorkerSpec, read_header

__all__ = [
    "DEFAULT_ENTRY",
    "Exited",
    "FromForks",
    "Ready",
    "Signal",
    "Spawn",
    "Spawned",
    "ToForks",
    "parse_from_forks",
    "parse_to_forks",
]

DEFAULT_ENTRY: Final = "trainmover_executor.worker.main:main"
"""Where a forked worker begins; only tests use another."""


class Spawn(Frozen):
    """Fork one worker.

    Attributes:
        key: Names the process in every later frame; never used twice.
        spec: What the worker is told; its ``listen_fd`` and ``clock_fd`` are set to the received
            descriptors.
        entry: ``package.module:function`` that gets the spec.
        background: Give way to other processes of the host (``SCHED_BATCH``).
        output: File that takes standard output and error, or None to inherit the agent's.
        words: File that always holds the last 2000 characters that the program wrote to
            ``sys.stderr``; what goes to ``sys.__stderr__`` is not among them.
    """

    kind: Literal["spawn"] = "spawn"
    key: str
    spec: WorkerSpec
    entry: str = DEFAULT_ENTRY
    background: bool = False
    output: str | None = None
    words: str | None = None


class Signal(Frozen):
    """Send a signal to a worker and to all it started; does nothing when it is gone."""

    kind: Literal["signal"] = "signal"
    key: str
    signum: int


class Ready(Frozen):
    """The imports are done: from now on a fork takes milliseconds."""

    kind: Literal["ready"] = "ready"
    import_s: float


class Spawned(Frozen):
    """The worker exists."""

    kind: Literal["spawned"] = "spawned"
    key: str
    pid: int


class Exited(Frozen):
    """``waitpid`` returned.

    Attributes:
        exit_code: Exit status, None after a signal or when there never was a process.
        signal: Signal that ended it, else None.
        reason: Why no process could be made, else empty.
    """

    kind: Literal["exited"] = "exited"
    key: str
    pid: int
    exit_code: int | None
    signal: int | None
    reason: str = ""


ToForks = Annotated[Spawn | Signal, Field(discriminator="kind")]
FromForks = Annotated[Ready | Spawned | Exited, Field(discriminator="kind")]
_TO_FORKS: TypeAdapter[ToForks] = TypeAdapter(ToForks)
_FROM_FORKS: TypeAdapter[FromForks] = TypeAdapter(FromForks)


def parse_to_forks(header: dict[str, Any]) -> ToForks:
    """The message an agent sent.

    Raises:
        ProtocolError: It is none of an agent's.
    """
    return read_header(_TO_FORKS, header)


def parse_from_forks(header: dict[str, Any]) -> FromForks:
    """The message a fork server sent.

    Raises:
        ProtocolError: It is none of a fork server's.
    """
    return read_header(_FROM_FORKS, header)
