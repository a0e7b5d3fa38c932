"""``trainmover dashboard``: a job in the browser."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from trainmover.bus.credentials import Credentials
from trainmover.bus.facts import history
from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.protocol import Bus
from trainmover.errors import ConfigError
from trainmover.events.envelope import Envelope
from trainmover.security.roles import Role
from trainmover_console.cli import output
from trainmover_console.cli.connect import JobOption, NatsOption, Target, execute
from trainmover_console.cli.exits import ExitCode
from trainmover_console.view.live import Watched, follow
from trainmover_launcher import registry

__all__ = ["dashboard"]


def dashboard(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8787,
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="TRAINMOVER_DASHBOARD_TOKEN_FILE",
            help="File with the token that approve, reject and abort need; without one the page "
            "can only be looked at.",
        ),
    ] = None,
    operator_nkey: Annotated[
        Path | None,
        typer.Option(help="The operator's key, for acting; looking is done with our own."),
    ] = None,
    job: JobOption = None,
    nats: NatsOption = None,
) -> None:
    """Serve a page about a job: slots, lateness, what moves, history; until Ctrl-C.

    It reads with a user of the bus that can change nothing, where the bus has users.

    Exit codes: 0 stopped by SIGTERM, 2 usage, 3 the bus refuses us, 4 unreachable,
    130 interrupted.
    """

    async def main() -> ExitCode:
        # A machine that trains needs none of this.
        try:
            from trainmover_console.dashboard.acts import Token  # noqa: PLC0415
            from trainmover_console.dashboard.app import create  # noqa: PLC0415
            from trainmover_console.dashboard.feed import Feed  # noqa: PLC0415
            from trainmover_console.dashboard.serve import listen, serve  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"the dashboard needs {error.name}: pip install 'trainmover[console]'."
            ) from error

        target = Target.find(job, nats)
        looking, acting = _users(target, operator_nkey)
        token = None if token_file is None else Token.of_file(token_file)
        with contextlib.closing(listen(host, port)) as listener:
            async with _buses(target.url, looking, acting, acts=token is not None) as both:
                bus, actor = both
                feed = Feed(Watched(target.job))

                async def facts() -> Sequence[Envelope]:
                    return await history(bus, target.job)

                app = create(feed, history=facts, acting=actor, token=token)
                address = listener.getsockname()
                output.note(f"dashboard of job {target.job}: http://{address[0]}:{address[1]}/")
                if token is None:
                    output.note("to look at only: --token-file lets callers approve and abort")
                async with asyncio.TaskGroup() as tasks:
                    following = tasks.create_task(follow(bus, feed.watched, changed=feed.changed))
                    received = await serve(app, listener, closing=feed.close)
                    following.cancel()
        return ExitCode.INTERRUPTED if received is signal.SIGINT else ExitCode.OK

    raise typer.Exit(execute(main))


def _users(target: Target, nkey: Path | None) -> tuple[Credentials | None, Credentials | None]:
    """Who looks, and who asks the planner."""
    own = target.credentials
    record = next((one for one in registry.jobs() if one.job == target.job), None)
    looking = own
    if record is not None and record.clients and Credentials.from_environment() == Credentials():
        looking = Credentials.of_folder(Path(record.clients) / Role.OPS)
    if nkey is None:
        return looking, own
    ca = (own or Credentials.from_environment()).ca
    return looking, Credentials(nkey=nkey, ca=ca)


@contextlib.asynccontextmanager
async def _buses(
    url: str, looking: Credentials | None, acting: Credentials | None, *, acts: bool
) -> AsyncIterator[tuple[Bus, Bus | None]]:
    async with contextlib.AsyncExitStack() as stack:
        bus = NatsBus(url, name="trainmover-dashboard", credentials=looking)
        await stack.enter_async_context(bus)
        if not acts:
            yield bus, None
            return
        actor = NatsBus(url, name="trainmover-dashboard-acts", credentials=acting)
        await stack.enter_async_context(actor)
        yield bus, actor
