"""``trainmover setup``: keys, permissions and certificates, then streams and buckets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from trainmover import security
from trainmover.bus.credentials import Credentials
from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.streams import REPLICAS_VARIABLE
from trainmover.errors import BusUnavailableError, ConfigError
from trainmover.security import Role, Setup, User, client_folder
from trainmover_console.cli import output
from trainmover_console.cli.connect import OutputOption, execute
from trainmover_console.cli.exits import ExitCode

__all__ = ["setup"]

_RETRY_S: Final = 0.25


def setup(
    *,
    out: Annotated[
        Path | None, typer.Option(help="Folder for keys and the server's files; kept and added to.")
    ] = None,
    job: Annotated[
        list[str] | None,
        typer.Option(envvar="TRAINMOVER_JOB", help="A job that may use the bus; repeatable."),
    ] = None,
    machine: Annotated[
        list[str] | None, typer.Option(help="A machine that gets a key; repeatable.")
    ] = None,
    machines: Annotated[
        int, typer.Option(help="Keys for worker-0 to worker-(N-1).", min=0, metavar="N")
    ] = 0,
    standbys: Annotated[
        int, typer.Option(help="Keys for standby-1 to standby-N.", min=0, metavar="N")
    ] = 0,
    revoke: Annotated[
        list[str] | None,
        typer.Option(
            help="A machine whose key is taken back, or a role that gets a new one; repeatable.",
            metavar="NAME",
        ),
    ] = None,
    rotate: Annotated[
        list[str] | None,
        typer.Option(
            help="A job whose links get a new secret; the one before is taken until the next "
            "time; repeatable.",
            metavar="JOB",
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address that clients reach the server by; repeatable."),
    ] = None,
    route: Annotated[
        list[str] | None,
        typer.Option(
            envvar="TRAINMOVER_NATS_ROUTES",
            help="Of several servers, where each is reached by the others: makes cluster.conf; "
            "repeatable.",
            metavar="HOST:PORT",
        ),
    ] = None,
    tls: Annotated[
        bool | None, typer.Option("--tls/--no-tls", help="Encrypt connections; on at first.")
    ] = None,
    server_dir: Annotated[
        str | None,
        typer.Option(help="Where the server sees OUT/server, if not there.", metavar="PATH"),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="Address of the server, for a new nats.conf.", metavar="HOST:PORT")
    ] = "0.0.0.0:4222",
    store: Annotated[
        str, typer.Option(help="Folder for its streams as it sees it, for a new nats.conf.")
    ] = "/data/jetstream",
    nats: Annotated[
        str | None,
        typer.Option(help="URL of the running bus: make streams and buckets.", metavar="URL"),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            envvar=REPLICAS_VARIABLE,
            help="Servers of a cluster that keep each stream and bucket; as they are if omitted.",
            min=1,
            max=5,
        ),
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the bus.", min=0)] = 30.0,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Make keys and the server's files with --out, streams and buckets with --nats, or both.

    Does nothing twice: what exists stays, and what is new is added. Before the server starts:
    trainmover setup --out DIR --job gpt --machines 6 --host nats.
    When it runs: trainmover setup --out DIR --nats nats://nats:4222.

    Exit codes: 0 done, 2 usage, 3 the bus refuses these credentials, 4 the bus is unreachable.
    """

    async def main() -> ExitCode:
        if out is None and nats is None:
            raise ConfigError("say what to set up: --out FOLDER for keys, --nats URL for streams.")
        if out is not None:
            known = security.load(out)
            if revoke:
                if known is None:
                    raise ConfigError(f"{out} holds no keys yet: there is nothing to take back.")
                known = security.revoke(out, known, revoke)
                output.note(
                    "who had those keys knows the secrets of links: --rotate JOB, and once more "
                    "when every machine has the new one"
                )
            counted = [*_numbered("worker", 0, machines), *_numbered("standby", 1, standbys)]
            wanted = _wanted(known, job, machine or [], counted, host)
            if rotate:
                security.rotate(out, wanted, rotate)
            wanted = wanted.model_copy(
                update={
                    "routes": _union(wanted.routes, route or []),
                    **({} if tls is None else {"tls": tls}),
                    **({} if server_dir is None else {"server_folder": server_dir}),
                }
            )
            written = security.write(out, wanted, listen=listen, store=store)
            _tell(out, wanted, written, format)
        if nats is not None:
            admin = None if out is None else client_folder(out, User(Role.ADMIN))
            credentials = None if admin is None else Credentials.of_folder(admin)
            await _streams(nats, credentials, replicas=replicas, wait_s=wait)
            output.note(f"streams and buckets are there: {nats}")
        return ExitCode.OK

    raise typer.Exit(execute(main))


def _numbered(name: str, first: int, count: int) -> list[str]:
    return [f"{name}-{number}" for number in range(first, first + count)]


def _wanted(
    known: Setup | None,
    jobs: list[str] | None,
    named: list[str],
    counted: list[str],
    hosts: list[str] | None,
) -> Setup:
    """What was known and what is new, each once, in order.

    A count is said again each time a deployment starts: it does not bring back a machine whose key
    was taken back, as its name does.
    """
    if known is None:
        if not jobs:
            raise ConfigError("name the job that will use the bus: --job NAME.")
        known = Setup(jobs=tuple(jobs))
    revoked = tuple(name for name in known.revoked if name not in named)
    machines = [*named, *(name for name in counted if name not in revoked)]
    return known.model_copy(
        update={
            "jobs": _union(known.jobs, jobs or []),
            "machines": _union(known.machines, machines),
            "revoked": revoked,
            "hosts": _union(known.hosts, hosts or []),
        }
    )


def _union(known: tuple[str, ...], more: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*known, *more]))


def _tell(out: Path, wanted: Setup, written: security.Written, format: output.Format) -> None:  # noqa: A002
    rows = [
        (user.name, str(client_folder(out, user)), "made" if user in written.created else "kept")
        for user in sorted((*written.created, *written.known), key=lambda user: user.name)
    ]
    data: dict[str, Any] = {
        "jobs": list(wanted.jobs),
        "tls": wanted.tls,
        "server_config": str(out / "server" / "nats.conf"),
        "config_changed": written.config_changed,
        "clients": {name: folder for name, folder, _ in rows},
    }
    output.emit(
        data, format=format, render=lambda: output.table(("bus user", "its files", "key"), rows)
    )
    if written.config_changed and written.known:
        output.note("the server's files changed: have a running server read them (SIGHUP)")


async def _streams(
    url: str, credentials: Credentials | None, *, replicas: int | None, wait_s: float
) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    while True:
        try:
            async with NatsBus(url, name="trainmover-setup", credentials=credentials) as bus:
                await bus.setup(replicas=replicas)
        except BusUnavailableError:
            if loop.time() >= deadline:
                raise
            await asyncio.sleep(_RETRY_S)
        else:
            return
