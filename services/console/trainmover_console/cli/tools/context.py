"""``trainmover context``: names for buses and jobs, as kubectl and nats have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from trainmover.bus.credentials import BusAddress
from trainmover.subjects import validate_id
from trainmover_console.cli import output
from trainmover_console.cli.connect import OutputOption, execute
from trainmover_console.cli.contexts import Context, Contexts
from trainmover_console.cli.exits import ExitCode

__all__ = ["context_app"]

context_app = typer.Typer(
    help="Names for the buses and jobs that commands are about.", no_args_is_help=True
)

NameArgument = Annotated[str, typer.Argument(help="Name of the context.")]


@context_app.command("ls")
def context_ls(*, format: OutputOption = output.Format.TABLE) -> None:  # noqa: A002
    """List the contexts; a star marks the one in use."""

    def ls() -> None:
        contexts = Contexts.load()
        data = [
            {
                "name": name,
                "current": name == contexts.current,
                **one.model_dump(),
                "nats": str(BusAddress.parse(one.nats)),
            }
            for name, one in sorted(contexts.known.items())
        ]
        rows = [
            ("*" if row["current"] else "", row["name"], row["nats"], row["job"] or None)
            for row in data
        ]
        output.emit(
            data, format=format, render=lambda: output.table(("", "context", "bus", "job"), rows)
        )

    _run(ls)


@context_app.command("set")
def context_set(
    name: NameArgument,
    *,
    nats: Annotated[str, typer.Option(help="URL of the bus.", metavar="URL")],
    job: Annotated[
        str, typer.Option(help="The job on it; each command names one if omitted.")
    ] = "",
    nkey: Annotated[Path | None, typer.Option(help="File with the seed of our key.")] = None,
    creds: Annotated[Path | None, typer.Option(help="File with our JWT and seed.")] = None,
    ca: Annotated[Path | None, typer.Option(help="Certificate of the bus's authority.")] = None,
    cert: Annotated[
        Path | None, typer.Option(help="File with our certificate and its key.")
    ] = None,
) -> None:
    """Make a context, or replace one; the first is in use at once.

    trainmover context set prod --nats tls://bus:4222 --job gpt --nkey keys/operator/nkey
    --ca keys/operator/ca.pem
    """

    def put() -> None:
        contexts = Contexts.load()
        one = Context(
            nats=nats,
            job=validate_id(job, what="job") if job else "",
            nkey=_absolute(nkey),
            creds=_absolute(creds),
            ca=_absolute(ca),
            cert=_absolute(cert),
        )
        one.credentials().options()  # says now which file cannot be read
        known = {**contexts.known, validate_id(name, what="context"): one}
        Contexts(current=contexts.current or name, known=known).save()
        _tell_current()

    _run(put)


@context_app.command("use")
def context_use(
    name: Annotated[
        str | None, typer.Argument(help="Name of the context; none is in use when omitted.")
    ] = None,
) -> None:
    """Have commands take a context where they name no bus and no job of this host."""

    def use() -> None:
        contexts = Contexts.load()
        if name is not None:
            contexts.get(name)
        contexts.model_copy(update={"current": name or ""}).save()
        _tell_current()

    _run(use)


@context_app.command("rm")
def context_rm(name: NameArgument) -> None:
    """Forget a context; the files that it names stay."""

    def rm() -> None:
        contexts = Contexts.load()
        contexts.get(name)
        known = {key: one for key, one in contexts.known.items() if key != name}
        current = "" if contexts.current == name else contexts.current
        Contexts(current=current, known=known).save()
        _tell_current()

    _run(rm)


def _tell_current() -> None:
    current = Contexts.load().current
    output.note(f"context in use: {current}" if current else "no context is in use")


def _absolute(path: Path | None) -> str:
    return "" if path is None else str(path.absolute())


def _run(change: Callable[[], None]) -> None:
    async def main() -> ExitCode:
        change()
        return ExitCode.OK

    raise typer.Exit(execute(main))
