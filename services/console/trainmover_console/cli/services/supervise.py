"""What ``trainmover run``, ``up`` and ``demo`` share: a cluster of processes on this host."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Annotated

import typer

from trainmover.errors import ConfigError
from trainmover.events.envelope import Envelope
from trainmover.events.machine import MachineDataDiffers, MachineWarmingFailed
from trainmover.events.migration import JobFormed, MigrationCommitted
from trainmover.events.operator import AutomationMode
from trainmover.policy import read
from trainmover.security.secret import home
from trainmover_console.cli import output
from trainmover_console.cli.exits import ExitCode
from trainmover_console.cli.jobs.policy import read_policy
from trainmover_console.view.standbys import problem_words
from trainmover_console.view.summary import summarise, worth_showing
from trainmover_launcher.cluster import (
    LocalCluster,
    Notice,
    stop_on_signals,
)
from trainmover_launcher.follow import OutputFollower
from trainmover_launcher.ledger import Ending
from trainmover_launcher.spec import ClusterSpec

__all__ = [
    "AutomationOption",
    "PolicyOption",
    "RebalanceOption",
    "SecurityOption",
    "ShadowPolicyOption",
    "finish",
    "planner_options",
    "security_folder",
    "supervise",
    "thread_environment",
]

AutomationOption = Annotated[
    AutomationMode | None,
    typer.Option(
        help="What policy does about a straggler: move it, ask first, or nothing; "
        "automatic when omitted."
    ),
]
PolicyOption = Annotated[
    Path | None,
    typer.Option("--policy", help="YAML with all that can be declared; read again on a change."),
]
RebalanceOption = Annotated[
    str | None,
    typer.Option(
        help="Exchange the slowest machine for a better standby so often (10m), where that pays; "
        "never when omitted.",
        metavar="EVERY",
    ),
]
ShadowPolicyOption = Annotated[
    Path | None,
    typer.Option("--shadow-policy", help="A policy that only says what it would do."),
]

SecurityOption = Annotated[
    Path | None,
    typer.Option(help="Folder of 'trainmover bus setup' with the credentials of every client."),
]


def planner_options(
    policy: Path | None, shadow: Path | None, options: Mapping[str, object | None]
) -> tuple[str, ...]:
    """The planner's command line: the files, and above them what was said on ours.

    Raises:
        PolicyError: A file, or how often to rebalance, is wrong: nobody wants to learn that from
            a planner's log.
    """
    if options.get("rebalance") is not None:
        read("", name="command line", options={"rebalance": options["rebalance"]})
    files = {"policy": policy, "shadow-policy": shadow}
    for path in files.values():
        if path is not None:
            read_policy(path)
    paths = {name: path and path.absolute() for name, path in files.items()}
    every = {**paths, **options}
    return tuple(f"--{name}={value}" for name, value in every.items() if value is not None)


async def supervise(spec: ClusterSpec, *, quiet: bool) -> ExitCode:
    """Run a cluster to its end, telling what happens, and say how it ended."""
    follower = OutputFollower(spec.log_dir, write=_write)
    known: set[tuple[str, str]] = set()

    def observe(event: Envelope) -> None:
        if isinstance(event.payload, JobFormed | MigrationCommitted):
            follower.follow_members(event.payload.membership)
        if isinstance(event.payload, MachineWarmingFailed | MachineDataDiffers):
            _warn_once(event.payload, spec, known)
        elif not quiet and worth_showing(event):
            output.note(summarise(event))

    def notify(notice: Notice) -> None:
        if notice.level == "warning":
            output.warn(notice.text)
        elif not quiet:
            output.note(notice.text)

    def started(url: str) -> None:
        if not quiet:
            output.note(f"job {spec.job} on {url}, logs in {spec.log_dir}")
            output.note(f"look at it with: trainmover status --job {spec.job}")

    cluster = LocalCluster(spec, notify=notify, observe=observe, started=started)
    with stop_on_signals(cluster):
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(follower.run())
            try:
                ending = await cluster.run()
            finally:
                following.cancel()
    return finish(ending, interrupted=cluster.interrupted)


def _warn_once(
    fact: MachineWarmingFailed | MachineDataDiffers, spec: ClusterSpec, known: set[tuple[str, str]]
) -> None:
    """Say that a standby cannot do what it is for: once for each reason, whoever says it."""
    match fact:
        case MachineWarmingFailed():
            about, words = fact.error, _not_ready(fact, spec)
        case MachineDataDiffers():
            about, words = fact.loader, _data_differs(fact)
    if (about, fact.where) not in known:
        known.add((about, fact.where))
        output.warn(words)


def _not_ready(failed: MachineWarmingFailed, spec: ClusterSpec) -> str:
    log = spec.log_dir / f"rank{failed.rank}-{failed.machine}-*.log"
    return (
        f"{failed.machine} is not ready for slot {failed.slot}: "
        f"{problem_words(failed.error, failed.where)}, in its shadow iterations. It is tried "
        f"again; 'trainmover status --job {spec.job}' shows it, the traceback is in {log}"
    )


def _data_differs(fact: MachineDataDiffers) -> str:
    return (
        f"{fact.machine} would be given other data than rank {fact.rank}: batch {fact.batch} of "
        f"{fact.loader}, at {PurePath(fact.where).name}: {fact.what}. Once a machine is replaced, "
        "this job's results are others than those of an undisturbed run. What batches are made of "
        "has to be in the data set, in random generators or in the program's variables: see "
        "docs/howto/troubleshooting.md"
    )


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def finish(ending: Ending, *, interrupted: bool) -> ExitCode:
    """Say how a job ended and choose the exit code."""
    if ending.ok:
        output.note(f"job {ending.reason}")
        return ExitCode.OK
    if interrupted:
        output.note(ending.reason)
        return ExitCode.INTERRUPTED
    output.fail(ending.reason, next_step=ending.next_step)
    return ExitCode.EXHAUSTED if ending.exhausted else ExitCode.FAILED


def thread_environment(ranks: int) -> dict[str, str]:
    """One host stands for many machines: share its cores between the ranks, as torchrun does."""
    if "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // ranks))}


def security_folder(
    job: str, *, secure: bool, security: Path | None, nats: str | None
) -> Path | None:
    """The folder with everybody's credentials, where the bus is secured."""
    if security is not None and nats is None:
        raise ConfigError("--security names the keys of a bus: name the bus too, with --nats URL.")
    if secure and nats is not None:
        raise ConfigError(
            "--secure makes keys for a bus of this run's own. For the bus at --nats, pass the "
            "folder of 'trainmover bus setup' with --security."
        )
    if security is not None:
        return security.absolute()
    return home().absolute() / "security" / job if secure else None
