"""``trainmover relay``: facts to a webhook."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from trainmover.bus.credentials import Credentials
from trainmover.bus.protocol import Bus
from trainmover.errors import ConfigError, TrainMoverError
from trainmover.runtime.service import ServiceOptions, run_service
from trainmover.subjects import validate_id
from trainmover_console.cli.connect import JobOption, NatsOption, Target, explain
from trainmover_gateway.relay import Relay, Secret, Selection

__all__ = ["relay"]


def relay(
    *,
    to: Annotated[str, typer.Option(help="URL that facts are posted to.", metavar="URL")],
    type: Annotated[  # noqa: A002
        list[str] | None,
        typer.Option(help="Facts wanted, e.g. 'migration.*'; repeatable; all when omitted."),
    ] = None,
    position: Annotated[
        str, typer.Option(help="Name of the place in the stream; one for each receiver.")
    ] = "relay",
    secret_file: Annotated[
        Path | None, typer.Option(help="File with the secret that signs the requests.")
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option(envvar="TRAINMOVER_RELAY_SECRET", hidden=True, show_envvar=False),
    ] = None,
    job: JobOption = None,
    nats: NatsOption = None,
    log_level: Annotated[str, typer.Option(envvar="TRAINMOVER_LOG_LEVEL")] = "info",
) -> None:
    """Post the facts of a job to a URL, in order and each at least once, until stopped.

    Begins with the job's first fact, and after a restart where it left off. The secret is read
    from --secret-file or TRAINMOVER_RELAY_SECRET; without one requests are not signed.

    Exit codes: 0 stopped by SIGTERM, 1 failed or refused by the bus, 2 usage, 130 interrupted.
    """
    try:
        target = Target.find(job, nats)
        selection = Selection.of(type or [])
        shared = _secret(secret, secret_file)
        validate_id(position, what="position")
        _check_url(to)
    except TrainMoverError as error:
        raise typer.Exit(explain(error)) from None

    async def main(bus: Bus, options: ServiceOptions) -> None:
        await Relay(
            bus,
            job=options.job,
            to=to,
            selection=selection,
            secret=shared,
            position=position,
        ).run()

    run_service(
        ServiceOptions(
            name="relay",
            job=target.job,
            nats=target.url,
            log_level=log_level,
            credentials=target.credentials or Credentials.from_environment(),
        ),
        main,
    )


def _secret(text: str | None, file: Path | None) -> Secret | None:
    if file is not None:
        try:
            text = file.read_text()
        except OSError as error:
            raise ConfigError(f"cannot read --secret-file {file}: {error.strerror}") from error
    return None if text is None else Secret.parse(text)


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"--to {url!r} is no URL to post to: write http://host/path or https://.")
