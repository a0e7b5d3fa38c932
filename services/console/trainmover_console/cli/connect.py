"""How an operator's command finds its job, connects, and turns errors into exit codes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from trainmover.bus.credentials import BusAddress, Credentials
from trainmover.bus.facts import history
from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.protocol import Bus
from trainmover.errors import (
    BusError,
    ConfigError,
    InvalidIdError,
    PermissionDeniedError,
    RequestRefusedError,
    TrainMoverError,
)
from trainmover.security.roles import Role
from trainmover.subjects import validate_id
from trainmover.tracing import observe
from trainmover_console.cli import output
from trainmover_console.cli.contexts import Contexts
from trainmover_console.cli.exits import ExitCode
from trainmover_console.view import JobView
from trainmover_launcher import registry

__all__ = [
    "JobOption",
    "NatsOption",
    "OutputOption",
    "Target",
    "connect",
    "execute",
    "fold",
]

JobOption = Annotated[
    str | None,
    typer.Option("--job", envvar="TRAINMOVER_JOB", help="Job name, where several run here."),
]
NatsOption = Annotated[
    str | None,
    typer.Option("--nats", envvar="TRAINMOVER_NATS_URL", help="URL of the job's bus."),
]
OutputOption = Annotated[
    output.Format, typer.Option("--output", "-o", help="How data is written to stdout.")
]


@dataclass(frozen=True, slots=True)
class Target:
    """The job a command is about.

    Attributes:
        credentials: Who we are to its bus; from the environment when None.
    """

    job: str
    url: str
    credentials: Credentials | None = None

    @property
    def bus(self) -> str:
        """The bus, as it may be printed."""
        return str(BusAddress.parse(self.url))

    @classmethod
    def find(cls, job: str | None, nats: str | None) -> Target:
        """From the options, the context, or the runtime files of this host.

        A job that is named and runs on this host comes before the context in use.

        Raises:
            ConfigError: No job, or several, match.
        """
        if nats is not None:
            if job is None:
                raise ConfigError("--nats names a bus but not a job on it: add --job NAME.")
            return cls(job=validate_id(job, what="job"), url=nats)
        contexts = Contexts.load()
        context = contexts.named()
        if context is None and not any(one.job == job for one in registry.jobs()):
            context = contexts.in_use()
        if context is not None:
            name = job or context.job
            if not name:
                raise ConfigError("the context names a bus but not a job on it: add --job NAME.")
            return cls(
                job=validate_id(name, what="job"),
                url=context.nats,
                credentials=context.credentials(),
            )
        record = registry.find(job)
        own = Credentials.from_environment()
        if record.clients and own == Credentials():
            own = Credentials.of_folder(Path(record.clients) / Role.OPERATOR)
        return cls(job=record.job, url=record.nats, credentials=own)


@contextlib.asynccontextmanager
async def connect(target: Target) -> AsyncIterator[Bus]:
    """The job's bus.

    Raises:
        BusUnavailableError: Nobody answers there.
        PermissionDeniedError: The bus does not know us.
    """
    async with NatsBus(target.url, name="trainmover-cli", credentials=target.credentials) as bus:
        yield bus


async def fold(bus: Bus, job: str) -> JobView:
    """The view of everything stored about ``job`` until now.

    Raises:
        BusUnavailableError: Not everything could be read.
    """
    view = JobView(job)
    for event in await history(bus, job):
        view.apply(event)
    return view


def execute(main: Callable[[], Coroutine[Any, Any, ExitCode]], *, logs: str = "error") -> ExitCode:
    """Run a command's coroutine and turn what it raises into a message and an exit code."""
    observe.configure(service="cli", level=logs)
    try:
        return asyncio.run(main())
    except KeyboardInterrupt:
        output.note("interrupted")
        return ExitCode.INTERRUPTED
    except TrainMoverError as error:
        return explain(error)
    except BaseExceptionGroup as group:
        ours, others = group.split(TrainMoverError)
        if ours is None or others is not None:
            raise
        return explain(_first(ours))


def explain(error: TrainMoverError) -> ExitCode:
    """Print an error and choose its exit code."""
    if isinstance(error, RequestRefusedError):
        output.fail(str(error).removesuffix(error.next_step).strip(), next_step=error.next_step)
        return ExitCode.REFUSED
    output.fail(str(error))
    if isinstance(error, PermissionDeniedError):
        return ExitCode.REFUSED
    if isinstance(error, BusError):
        return ExitCode.UNREACHABLE
    if isinstance(error, ConfigError | InvalidIdError):
        return ExitCode.USAGE
    return ExitCode.FAILED


def _first(group: BaseExceptionGroup[TrainMoverError]) -> TrainMoverError:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    if not isinstance(found, TrainMoverError):
        raise found
    return found
