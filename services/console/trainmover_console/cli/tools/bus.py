"""``trainmover bus setup``: keys, permissions and certificates, then streams and buckets."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from trainmover.bus.credentials import BusAddress, Credentials
from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.streams import REPLICAS_VARIABLE
from trainmover.errors import BusUnavailableError, ConfigError
from trainmover.security import folder as keys
from trainmover.security.folder import Setup, client_folder
from trainmover.security.roles import Role, User
from trainmover_console.cli import output
from trainmover_console.cli.connect import OutputOption, execute
from trainmover_console.cli.exits import ExitCode

__all__ = ["bus_app"]

bus_app = typer.Typer(help="The bus that jobs speak over.", no_args_is_help=True)

_RETRY_S: Final = 0.25


@bus_app.command("setup")
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
        int, typer.Option(help="Keys for node-0 to node-(N-1).", min=0, metavar="N")
    ] = 0,
    standbys: Annotated[
        int, typer.Option(help="Keys for standby-1 to standby-N.", min=0, metavar="N")
    ] = 0,
    pool: Annotated[
        list[str] | None,
        typer.Option(
            help="A pool whose leader gets a key, and machines of it that get one; repeatable.",
            metavar="NAME[=MACHINE,...]",
        ),
    ] = None,
    subscriber: Annotated[
        list[str] | None,
        typer.Option(
            help="A tool that gets a key to read facts, and a position of its own; repeatable.",
            metavar="NAME",
        ),
    ] = None,
    revoke: Annotated[
        list[str] | None,
        typer.Option(
            help="A machine or subscriber whose key is taken back, or a role or pool whose leader "
            "gets a new one; repeatable.",
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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say which keys would be made, write nothing.")
    ] = False,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Make keys and the server's files with --out, streams and buckets with --nats, or both.

    Does nothing twice: what exists stays, and what is new is added. Before the server starts:
    trainmover bus setup --out DIR --job gpt --machines 6 --host nats.
    When it runs: trainmover bus setup --out DIR --nats nats://nats:4222.

    Exit codes: 0 done, 2 usage, 3 the bus refuses these credentials, 4 the bus is unreachable.
    """

    async def main() -> ExitCode:
        if out is None and nats is None:
            raise ConfigError("say what to set up: --out FOLDER for keys, --nats URL for streams.")
        if out is not None:
            with _folder(out, dry_run=dry_run) as folder:
                known = keys.load(folder)
                if revoke:
                    known = _revoked(folder, known, revoke)
                counted = [*_numbered("node", 0, machines), *_numbered("standby", 1, standbys)]
                wanted = _wanted(known, job, machine or [], counted, host)
                if rotate:
                    keys.rotate(folder, wanted, rotate)
                seen_as = server_dir or wanted.server_folder
                if dry_run and not seen_as:
                    seen_as = str((out / "server").absolute())
                wanted = wanted.model_copy(
                    update={
                        "pools": _pools(wanted, pool or []),
                        "subscribers": _union(wanted.subscribers, subscriber or []),
                        "routes": _union(wanted.routes, route or []),
                        "server_folder": seen_as,
                        **({} if tls is None else {"tls": tls}),
                    }
                )
                written = keys.write(folder, wanted, listen=listen, store=store)
            _tell(out, wanted, written, format, dry_run=dry_run)
        if nats is not None and dry_run:
            output.note(
                f"would make streams and buckets where they are missing: {BusAddress.parse(nats)}"
            )
        elif nats is not None:
            admin = None if out is None else client_folder(out, User(Role.ADMIN))
            credentials = None if admin is None else Credentials.of_folder(admin)
            await _streams(nats, credentials, replicas=replicas, wait_s=wait)
            output.note(f"streams and buckets are there: {BusAddress.parse(nats)}")
        return ExitCode.OK

    raise typer.Exit(execute(main))


@contextlib.contextmanager
def _folder(out: Path, *, dry_run: bool) -> Iterator[Path]:
    """The folder to work on: of a dry run a copy that is thrown away."""
    if not dry_run:
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="trainmover-setup-") as scratch:
        copy = Path(scratch) / "out"
        try:
            if out.exists():
                shutil.copytree(out, copy)
        except (OSError, shutil.Error) as error:
            raise ConfigError(f"cannot read {out}: {error}") from error
        yield copy


def _revoked(folder: Path, known: Setup | None, names: list[str]) -> Setup:
    if known is None:
        raise ConfigError(f"{folder} holds no keys yet: there is nothing to take back.")
    left = keys.revoke(folder, known, names)
    if set(names) & set(known.every_machine):
        output.note(
            "who had a machine's key knows the secrets of links: --rotate JOB, and once more "
            "when every machine has the new one"
        )
    return left


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


def _pools(known: Setup, said: list[str]) -> dict[str, tuple[str, ...]]:
    """What was known and what is new: ``spares``, or ``spares=spare-1,spare-2``."""
    pools = dict(known.pools)
    for one in said:
        name, _, machines = one.partition("=")
        more = [machine.strip() for machine in machines.split(",") if machine.strip()]
        pools[name] = _union(pools.get(name, ()), more)
    return pools


def _union(known: tuple[str, ...], more: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*known, *more]))


def _tell(
    out: Path,
    wanted: Setup,
    written: keys.Written,
    format: output.Format,  # noqa: A002
    *,
    dry_run: bool,
) -> None:
    made = "would be made" if dry_run else "made"
    rows = [
        (user.name, str(client_folder(out, user)), made if user in written.created else "kept")
        for user in sorted((*written.created, *written.known), key=lambda user: user.name)
    ]
    data: dict[str, Any] = {
        "dry_run": dry_run,
        "jobs": list(wanted.jobs),
        "tls": wanted.tls,
        "server_config": str(out / "server" / "nats.conf"),
        "config_changed": written.config_changed,
        "clients": {name: folder for name, folder, _ in rows},
    }
    output.emit(
        data, format=format, render=lambda: output.table(("bus user", "its files", "key"), rows)
    )
    if written.config_changed and written.known and not dry_run:
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
