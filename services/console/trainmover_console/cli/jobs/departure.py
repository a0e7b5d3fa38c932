"""``trainmover machine depart``: a machine asks to be replaced, and waits until it is."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Annotated, Final

import typer

from trainmover.commands import Refusal, RequestAccepted
from trainmover.errors import BusUnavailableError, RequestRefusedError
from trainmover.job.plan import Move
from trainmover.protocol.replies import parse
from trainmover.subjects import validate_id
from trainmover_console.cli import output, requests
from trainmover_console.cli.connect import JobOption, NatsOption, Target, connect, execute
from trainmover_console.cli.exits import ExitCode

__all__ = ["depart"]

_ASK_S: Final = 1.0
_PASSES: Final = frozenset({"already_migrating", "migration_in_flight", "recovering", "cooldown"})
_GONE: Final = frozenset({"not_in_slot", "unknown_machine"})


def depart(
    *,
    machine: Annotated[
        str | None,
        typer.Option(envvar="TRAINMOVER_MACHINE", help="Its name; that of the host when omitted."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, up to 200 characters.")] = "it is about to end",
    timeout: Annotated[float, typer.Option(help="Seconds to wait.", min=1)] = 80.0,
    dry_run: requests.DryRunOption = False,
    job: JobOption = None,
    nats: NatsOption = None,
) -> None:
    """Have this machine replaced by a standby before it ends, with the machine's own key.

    A machine may ask this for itself and for no other. Ends once it holds no slot.

    Exit codes: 0 it holds no slot, 1 it still does when the time is over, 2 usage, 3 refused by the
    planner, 4 planner or bus unreachable, 130 interrupted.
    """

    async def main() -> ExitCode:
        name = validate_id(machine or socket.gethostname(), what="machine")
        target = Target.find(job, nats)
        deadline_s = time.monotonic() + timeout
        asked = False
        async with connect(target) as bus:
            while True:
                try:
                    asking = bus.depart(target.job, name, reason=reason[:200], dry_run=dry_run)
                    reply = parse(await asking)
                except BusUnavailableError:
                    if not asked:
                        raise
                else:
                    # Facts are not a machine's to read: it asks again, until it holds no slot.
                    if isinstance(reply, Refusal) and reply.code in _GONE:
                        output.note(f"{name} holds no slot")
                        return ExitCode.OK
                    if isinstance(reply, Refusal) and reply.code not in _PASSES:
                        raise RequestRefusedError(
                            f"refused ({reply.code}): {reply.reason}",
                            code=reply.code,
                            next_step=reply.next_step,
                        )
                    if dry_run and not isinstance(reply, Refusal):
                        output.note(f"would be replaced: {', '.join(map(str, _moves(reply)))}")
                        return ExitCode.OK
                    asked = True
                if time.monotonic() >= deadline_s:
                    output.fail(f"{name} still holds its slot after {timeout:g} s")
                    return ExitCode.FAILED
                await asyncio.sleep(_ASK_S)

    raise typer.Exit(execute(main))


def _moves(reply: RequestAccepted) -> tuple[Move, ...]:
    return () if reply.plan is None else reply.plan.moves
