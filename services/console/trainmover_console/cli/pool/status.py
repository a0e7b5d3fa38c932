"""``trainmover pool status``: the machines of a pool, where they serve, and what jobs wait for."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Group

from trainmover.commands import Refusal
from trainmover.errors import RequestRefusedError
from trainmover.protocol.replies import parse_as
from trainmover.protocol.requests import PoolMachineStatus, PoolStatus, PoolStatusRequest
from trainmover.subjects import validate_id
from trainmover_console.cli import output
from trainmover_console.cli.connect import NatsOption, OutputOption, Target, connect, execute
from trainmover_console.cli.exits import ExitCode

__all__ = ["status"]

PoolOption = Annotated[str, typer.Option(envvar="TRAINMOVER_POOL", help="Name of the pool.")]


def status(
    *,
    pool: PoolOption,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Show the machines of a pool, which job each serves, and what jobs wait for and why.

    Exit codes: 0 done, 2 usage, 4 nobody leads the pool, or the bus is unreachable.
    """

    async def main() -> ExitCode:
        target = _target(pool, nats)
        async with connect(target) as bus:
            reply = parse_as(PoolStatus, await bus.request(pool, "status", PoolStatusRequest()))
        if isinstance(reply, Refusal):
            raise RequestRefusedError(
                f"refused ({reply.code}): {reply.reason}",
                code=reply.code,
                next_step=reply.next_step,
            )
        for problem in reply.problems:
            output.warn(f"not in force: {problem}")
        output.emit(reply.model_dump(mode="json"), format=format, render=lambda: _shown(reply))
        return ExitCode.OK

    raise typer.Exit(execute(main))


def _target(pool: str, nats: str | None) -> Target:
    name = validate_id(pool, what="pool")
    if nats is not None:
        return Target(job=name, url=nats)
    # The context, or a job that runs here, says where the bus is.
    return replace(Target.find(None, None), job=name)


def _shown(status: PoolStatus) -> Group:
    machines = [
        (one.machine, one.phase, one.job, _role(one), _for(one.for_s), one.words)
        for one in status.machines
    ]
    jobs = [
        (
            one.job,
            one.phase,
            one.priority,
            one.machines if one.quota is None else f"{one.machines} of {one.quota}",
            f"{one.standbys} of {one.wanted}",
            one.missing,
            one.words,
        )
        for one in status.jobs
    ]
    return Group(
        output.table(("machine", "is", "job", "there", "for", "under way"), machines),
        "",
        output.table(
            ("job", "is", "priority", "machines", "standbys", "missing", "waits for"), jobs
        ),
    )


def _role(one: PoolMachineStatus) -> str | None:
    if one.job is None:
        return None
    return one.role or "not registered yet"


def _for(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
