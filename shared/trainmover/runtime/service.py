"""The runner of a service process: options, bus, signals, health, exit code.

A service's ``__main__`` is ten lines::

    parser = argparse.ArgumentParser(prog="trainmover-planner")
    add_common_options(parser)
    arguments = parser.parse_args()
    run_service(ServiceOptions.from_args("planner", arguments), main)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NoReturn, Self

import trainmover
from trainmover import subjects
from trainmover.bus.credentials import CA, CERT, CREDS, NKEY, BusAddress, Credentials
from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.protocol import Bus
from trainmover.errors import (
    BusUnavailableError,
    InvalidIdError,
    LeaseLostError,
    PermissionDeniedError,
    TrainMoverError,
)
from trainmover.runtime import health
from trainmover.tracing import observe

__all__ = ["URL_VARIABLE", "ServiceOptions", "add_common_options", "run_service"]

DEFAULT_URL: Final = "nats://127.0.0.1:4222"
URL_VARIABLE: Final = "TRAINMOVER_NATS_URL"
_LEVELS: Final = ("debug", "info", "warning", "error")
_FORMATS: Final = ("auto", "json", "console")
_RETRY_S: Final = 0.25
REPLACED: Final = 75  # EX_TEMPFAIL: start it again, as a replica
_CONNECT_S: Final = 2.0

Main = Callable[[Bus, "ServiceOptions"], Awaitable[int | None]]
Periodic = Callable[[Bus], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """What every service process is told.

    Attributes:
        name: Name of the service ("planner"), for logs, traces and health.
        job: Job name.
        nats: Address of the bus.
        log_level: Least severe level that is shown.
        log_format: ``json``, ``console`` or ``auto``.
        bus_wait_s: How long to wait for the bus at the start, in seconds.
        health_file: Touched while the bus answers; see ``trainmover.runtime.health``.
        credentials: Who we are to the bus.
    """

    name: str
    job: str
    nats: str = DEFAULT_URL
    log_level: str = "info"
    log_format: observe.LogFormat = "auto"
    bus_wait_s: float = 30.0
    health_file: Path | None = None
    credentials: Credentials = field(default_factory=Credentials)

    @classmethod
    def from_args(cls, name: str, arguments: argparse.Namespace) -> Self:
        """Options from what a parser with ``add_common_options`` parsed (and checked)."""
        return cls(
            name=name,
            job=arguments.job,
            nats=arguments.nats,
            log_level=arguments.log_level,
            log_format=arguments.log_format,
            bus_wait_s=arguments.bus_wait,
            health_file=arguments.health_file,
            credentials=Credentials(
                nkey=arguments.nats_nkey,
                creds=arguments.nats_creds,
                ca=arguments.nats_ca,
                cert=arguments.nats_cert,
            ),
        )


def add_common_options(
    parser: argparse.ArgumentParser, *, what: Literal["job", "pool"] = "job"
) -> None:
    """Add the job, the bus, who we are to it, health, logs, and the environment of all of them.

    Args:
        parser: Where to.
        what: What the service is of. A pool has a name as a job has one.
    """
    environment = os.environ
    group = parser.add_argument_group("service options")
    variable = f"TRAINMOVER_{what.upper()}"
    group.add_argument(
        f"--{what}",
        dest="job",
        metavar=what.upper(),
        type=_job,
        default=environment.get(variable),
        required=variable not in environment,
        help=f"{what} name ({variable})",
    )
    group.add_argument(
        "--nats",
        metavar="URL",
        default=environment.get(URL_VARIABLE, DEFAULT_URL),
        help="address of the bus (TRAINMOVER_NATS_URL; default %(default)s)",
    )
    given = Credentials.from_environment()
    files = {
        "nkey": (given.nkey, f"file with our seed, from 'trainmover bus setup' ({NKEY})"),
        "creds": (given.creds, f"file with our JWT and seed, for operator mode ({CREDS})"),
        "ca": (given.ca, f"certificate of the bus's authority: connect with TLS ({CA})"),
        "cert": (given.cert, f"our certificate and its key, where the server asks for it ({CERT})"),
    }
    for name, (default, text) in files.items():
        group.add_argument(f"--nats-{name}", type=Path, metavar="FILE", default=default, help=text)
    group.add_argument(
        "--log-level",
        type=_one_of(_LEVELS),
        metavar="{" + ",".join(_LEVELS) + "}",
        default=environment.get("TRAINMOVER_LOG_LEVEL", "info"),
        help="least severe level that is shown (TRAINMOVER_LOG_LEVEL)",
    )
    group.add_argument(
        "--log-format",
        type=_one_of(_FORMATS),
        metavar="{" + ",".join(_FORMATS) + "}",
        default=environment.get("TRAINMOVER_LOG_FORMAT", "auto"),
        help="json, console, or auto: console on a terminal (TRAINMOVER_LOG_FORMAT)",
    )
    group.add_argument(
        "--bus-wait",
        type=float,
        metavar="SECONDS",
        default=30.0,
        help="how long to wait for the bus at the start (default %(default)g)",
    )
    group.add_argument(
        "--health-file",
        type=Path,
        metavar="FILE",
        default=environment.get(health.FILE_VARIABLE),
        help=f"file that is touched every 2 s while the bus answers ({health.FILE_VARIABLE})",
    )


def _job(text: str) -> str:
    try:
        return subjects.validate_id(text, what="job")
    except InvalidIdError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _one_of(known: tuple[str, ...]) -> Callable[[str], str]:
    """Like ``choices``, which argparse does not apply to a default from the environment."""

    def check(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(known)}")
        return text

    return check


def run_service(
    options: ServiceOptions,
    main: Main,
    *,
    periodic: Periodic | None = None,
    period_s: float = 1.0,
) -> NoReturn:
    """Run ``main`` with a connected, set-up bus until it ends or a signal comes.

    SIGTERM and SIGINT cancel ``main``, which cleans up and lets the cancellation through; a
    second signal ends the process at once.

    Args:
        options: The service's options.
        main: ``async def main(bus, options) -> int | None``; what it returns is the exit code.
        periodic: Called every ``period_s`` seconds beside ``main``, for leases and the like.
        period_s: Seconds between two calls of ``periodic``.

    Raises:
        SystemExit: Always: 0 after a clean end or SIGTERM, 130 after SIGINT, 1 after an error
            (a ``TrainMoverError`` is shown as one line, anything else with its traceback), 75
            when another replica leads.
    """
    code = 1
    try:
        observe.configure(service=options.name, level=options.log_level, format=options.log_format)
        code = asyncio.run(_supervise(options, main, periodic, period_s))
    except TrainMoverError as error:
        _say(options, error)
    except Exception as error:  # noqa: BLE001 - the last stop: everything ends up in the log
        causes = list(_leaves(error))
        if all(isinstance(cause, TrainMoverError) for cause in causes):
            for cause in causes:
                _say(options, cause)
            if any(isinstance(cause, LeaseLostError) for cause in causes):
                code = REPLACED
        else:
            observe.get_logger(__name__).exception("service.broke")
    sys.exit(code)


async def _supervise(
    options: ServiceOptions, main: Main, periodic: Periodic | None, period_s: float
) -> int:
    """Run everything; the exit code."""
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []
    body = asyncio.current_task()
    assert body is not None  # noqa: S101 - inside a coroutine there is one

    def stop(number: signal.Signals) -> None:
        if received:
            os._exit(128 + number)  # asked twice: leave now
        received.append(number)
        observe.get_logger(__name__).info("service.stopping", signal=number.name)
        body.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        async with contextlib.AsyncExitStack() as stack:
            bus = await _connect(options, stack)
            code = await _run(bus, options, main, periodic, period_s)
    except asyncio.CancelledError:
        if not received:
            raise
        code = 0
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return 130 if signal.SIGINT in received else code


async def _connect(options: ServiceOptions, stack: contextlib.AsyncExitStack) -> NatsBus:
    """A connected, set-up bus; retries until the bus is there or the wait is over."""
    log = observe.get_logger(__name__)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + options.bus_wait_s
    told = False
    while True:
        try:
            return await _enter(options, stack)
        except BusUnavailableError as error:
            if not told:
                bus = str(BusAddress.parse(options.nats))
                log.warning("service.waits_for_bus", bus=bus, wait_s=options.bus_wait_s)
                told = True
            if loop.time() >= deadline:
                raise BusUnavailableError(
                    f"gave up after {options.bus_wait_s:g} s: {error} "
                    "Start the server or pass its address with --nats."
                ) from error
            await asyncio.sleep(_RETRY_S)


async def _enter(options: ServiceOptions, stack: contextlib.AsyncExitStack) -> NatsBus:
    log = observe.get_logger(__name__)
    async with contextlib.AsyncExitStack() as trial:
        bus = NatsBus(
            options.nats,
            name=f"trainmover-{options.name}",
            connect_timeout=min(_CONNECT_S, max(options.bus_wait_s, _RETRY_S)),
            credentials=options.credentials,
        )
        await trial.enter_async_context(bus)
        # Keys come from `trainmover bus setup`, and so do the streams then: who has one need not
        # ask for what the server would refuse and complain of.
        if options.credentials.nkey is None:
            await _where_permitted(bus.setup())
        await _where_permitted(
            bus.announce(f"trainmover-{options.name}", version=trainmover.__version__)
        )
        stack.push_async_exit(trial.pop_all())
    log.info("service.ready", bus=bus.url, job=options.job)
    return bus


async def _where_permitted(call: Awaitable[None]) -> None:
    try:
        await call
    except PermissionDeniedError as error:
        observe.get_logger(__name__).debug("service.step_skipped", reason=str(error))


async def _run(
    bus: NatsBus, options: ServiceOptions, main: Main, periodic: Periodic | None, period_s: float
) -> int:
    beside: list[Coroutine[None, None, None]] = []
    if periodic is not None:
        beside.append(_repeat(bus, periodic, period_s))
    if options.health_file is not None:
        beside.append(health.keep_fresh(options.health_file, bus.ping))
    if not beside:
        return await main(bus, options) or 0
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in beside]
        code = await main(bus, options) or 0
        for task in tasks:
            task.cancel()
    return code


async def _repeat(bus: Bus, periodic: Periodic, period_s: float) -> None:
    while True:
        try:
            await periodic(bus)
        except BusUnavailableError as error:
            observe.get_logger(__name__).debug("service.periodic_skipped", reason=str(error))
        await asyncio.sleep(period_s)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _say(options: ServiceOptions, error: BaseException) -> None:
    """One line for people; the log line goes where the other log lines go."""
    observe.get_logger(__name__).debug("service.failed", error=str(error))
    sys.stderr.write(f"trainmover {options.name}: {error}\n")
