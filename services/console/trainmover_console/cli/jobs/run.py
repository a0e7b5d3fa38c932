"""``trainmover run`` and ``trainmover up``: a cluster of processes on this host."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from trainmover.errors import ConfigError
from trainmover.events.envelope import Envelope
from trainmover.events.machine import MachineWarmingFailed
from trainmover.events.migration import JobFormed, MigrationCommitted
from trainmover.events.operator import AutomationMode
from trainmover.job.policies import OnWorkerCrash, WhenExhausted
from trainmover.job.redundancy import RedundancyChoice
from trainmover.job.topology import parse_nnodes
from trainmover.security.secret import home
from trainmover.subjects import validate_id
from trainmover_console.cli import output
from trainmover_console.cli.connect import NatsOption, execute
from trainmover_console.cli.exits import ExitCode
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

__all__ = ["agent", "become_agent", "finish", "run", "thread_environment", "up"]


_DETERMINISM: Final = "TRAINMOVER_CHECK_DETERMINISM"
"""What tells training processes to check; see the executor's ``determinism``."""

AutomationOption = Annotated[
    AutomationMode,
    typer.Option(help="What policy does about a straggler: move it, ask first, or nothing."),
]

SecurityOption = Annotated[
    Path | None,
    typer.Option(help="Folder of 'trainmover setup' with the credentials of every client."),
]


def run(
    context: typer.Context,
    *,
    nnodes: Annotated[
        str, typer.Option(help="SLOTS, or SLOTS:MACHINES for standbys, e.g. 4:6.")
    ] = "1",
    nproc_per_node: Annotated[int, typer.Option(help="Ranks on each machine.", min=1)] = 1,
    redundancy: Annotated[
        RedundancyChoice, typer.Option(help="Where the state of a rank survives its machine.")
    ] = "auto",
    warm_limit: Annotated[
        int | None,
        typer.Option(
            help="Most slots that a standby keeps processes for; all when omitted.", min=1
        ),
    ] = None,
    when_exhausted: Annotated[
        WhenExhausted,
        typer.Option(help="When no machine is left for a slot: hold the job, or end it."),
    ] = "hold",
    exhausted_after: Annotated[
        float, typer.Option(help="Seconds for which it is held before it ends.", min=0)
    ] = 60.0,
    on_worker_crash: Annotated[
        OnWorkerCrash,
        typer.Option(help="Who takes the slot of a machine whose program crashed."),
    ] = "standby",
    automation: AutomationOption = "automatic",
    check_determinism: Annotated[
        bool,
        typer.Option(
            "--check-determinism",
            help="Do the second to fourth step twice; end the job where the bits differ.",
        ),
    ] = False,
    module: Annotated[bool, typer.Option("--module", "-m", help="It is a module's name.")] = False,
    job: Annotated[
        str | None, typer.Option(envvar="TRAINMOVER_JOB", help="Job name; made up when omitted.")
    ] = None,
    nats: NatsOption = None,
    metrics: Annotated[
        Path | None, typer.Option(help="Folder for one JSON line per rank and step.")
    ] = None,
    log_dir: Annotated[
        Path | None, typer.Option(help="Folder for logs; in TRAINMOVER_HOME when omitted.")
    ] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="Keys, permissions and TLS on the bus of this run.")
    ] = False,
    security: SecurityOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Warnings only.")] = False,
) -> None:
    """Train on this host: one process group per machine, standbys included.

    Everything after the program belongs to the program:
    trainmover run --nnodes 4:6 train.py --lr 3e-4

    Prints what rank 0 prints; every rank's output is in the log folder.

    Exit codes: 0 the job finished, 1 it failed, 2 usage, 4 the bus cannot be reached or started,
    75 no machine was left for it (with --when-exhausted checkpoint or fail), 130 interrupted.
    """

    async def main() -> ExitCode:
        if not context.args:
            raise ConfigError("no program was named: trainmover run --nnodes 4:6 train.py")
        program = _program(tuple(context.args), module=module)
        least, most = parse_nnodes(nnodes)
        name = _job_name(job, program[0])
        spec = ClusterSpec(
            job=name,
            nnodes_min=least,
            nnodes_max=most,
            nproc_per_node=nproc_per_node,
            program=program,
            as_module=module,
            redundancy=redundancy,
            warm_limit=warm_limit,
            planner_options=(
                f"--when-exhausted={when_exhausted}",
                f"--exhausted-after={exhausted_after}",
                f"--on-worker-crash={on_worker_crash}",
                f"--automation={automation}",
            ),
            metrics_dir=None if metrics is None else metrics.absolute(),
            log_dir=(log_dir or home() / "logs" / name).absolute(),
            nats=nats,
            security=_security(name, secure=secure, security=security, nats=nats),
            environment={
                **thread_environment(least * nproc_per_node),
                **({_DETERMINISM: "1"} if check_determinism else {}),
            },
        )
        return await _supervise(spec, quiet=quiet)

    raise typer.Exit(execute(main))


def up(
    *,
    job: Annotated[str, typer.Option(envvar="TRAINMOVER_JOB", help="Job name.")],
    nats: NatsOption = None,
    automation: AutomationOption = "automatic",
    log_dir: Annotated[
        Path | None, typer.Option(help="Folder for logs; in TRAINMOVER_HOME when omitted.")
    ] = None,
    security: SecurityOption = None,
) -> None:
    """Start the bus and the services of one job, without machines, until Ctrl-C."""

    async def main() -> ExitCode:
        name = validate_id(job, what="job")
        spec = ClusterSpec(
            job=name,
            nnodes_min=0,
            nnodes_max=0,
            program=(),
            planner_options=(f"--automation={automation}",),
            log_dir=(log_dir or home() / "logs" / name).absolute(),
            nats=nats,
            security=_security(name, secure=False, security=security, nats=nats),
        )
        await _supervise(spec, quiet=False)
        return ExitCode.OK

    raise typer.Exit(execute(main))


def agent() -> None:
    """Run the agent of this machine; all options go to it (see trainmover agent --help)."""
    become_agent(sys.argv[2:])


def become_agent(argv: Sequence[str]) -> NoReturn:
    """Replace this process by the machine's agent."""
    command = [sys.executable, "-m", "trainmover_executor.agent", *argv]
    os.execv(sys.executable, command)  # noqa: S606 - becoming the agent is the purpose


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


def _security(job: str, *, secure: bool, security: Path | None, nats: str | None) -> Path | None:
    """The folder with everybody's credentials, where the bus is secured."""
    if security is not None and nats is None:
        raise ConfigError("--security names the keys of a bus: name the bus too, with --nats URL.")
    if secure and nats is not None:
        raise ConfigError(
            "--secure makes keys for a bus of this run's own. For the bus at --nats, pass the "
            "folder of 'trainmover setup' with --security."
        )
    if security is not None:
        return security.absolute()
    return home().absolute() / "security" / job if secure else None


async def _supervise(spec: ClusterSpec, *, quiet: bool) -> ExitCode:
    follower = OutputFollower(spec.log_dir, write=_write)
    known: set[tuple[str, str]] = set()

    def observe(event: Envelope) -> None:
        if isinstance(event.payload, JobFormed | MigrationCommitted):
            follower.seated(event.payload.membership)
        if isinstance(event.payload, MachineWarmingFailed):
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
    failed: MachineWarmingFailed, spec: ClusterSpec, known: set[tuple[str, str]]
) -> None:
    """Say that a standby is not ready: once for each error, although it is tried again."""
    if (failed.error, failed.where) in known:
        return
    known.add((failed.error, failed.where))
    log = spec.log_dir / f"rank{failed.rank}-{failed.machine}-*.log"
    output.warn(
        f"{failed.machine} is not ready for slot {failed.slot}: "
        f"{problem_words(failed.error, failed.where)}, in its shadow iterations. It is tried "
        f"again; 'trainmover status --job {spec.job}' shows it, the traceback is in {log}"
    )


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _program(program: tuple[str, ...], *, module: bool) -> tuple[str, ...]:
    if module:
        return program
    script = Path(program[0])
    if not script.is_file():
        raise ConfigError(f"{script} is not a file. Name a script, or a module with -m.")
    return (str(script.absolute()), *program[1:])


def _job_name(job: str | None, program: str) -> str:
    if job is not None:
        return validate_id(job, what="job")
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(program).stem)[:50].strip("-") or "job"
    return f"{stem}-{secrets.token_hex(2)}"
