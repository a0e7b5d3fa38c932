"""``trainmover run``: train on this host, each machine a process."""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Annotated, Final

import typer

from trainmover.errors import ConfigError
from trainmover.job.policies import OnWorkerCrash, WhenExhausted
from trainmover.job.redundancy import RedundancyChoice
from trainmover.job.topology import job_size
from trainmover.security.secret import home
from trainmover.subjects import validate_id
from trainmover_console.cli.connect import NatsOption, execute
from trainmover_console.cli.exits import ExitCode
from trainmover_console.cli.services.supervise import (
    AutomationOption,
    PolicyOption,
    RebalanceOption,
    SecurityOption,
    ShadowPolicyOption,
    planner_options,
    security_folder,
    supervise,
    thread_environment,
)
from trainmover_launcher.spec import ClusterSpec

__all__ = ["run"]

_DETERMINISM: Final = "TRAINMOVER_CHECK_DETERMINISM"
"""What tells training processes to check; see the executor's ``determinism``."""


def run(
    context: typer.Context,
    *,
    slots: Annotated[
        int | None, typer.Option(help="Machines that train; 1 when omitted.", min=1, metavar="N")
    ] = None,
    standbys: Annotated[
        int | None, typer.Option(help="Machines beside them, kept warm.", min=0, metavar="N")
    ] = None,
    nnodes: Annotated[
        str | None,
        typer.Option(help="Both as torchrun says it: 4:6 is 4 slots, 2 standbys.", metavar="N[:M]"),
    ] = None,
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
        WhenExhausted | None,
        typer.Option(
            help="When no machine is left for a slot: hold the job, or end it; hold when omitted."
        ),
    ] = None,
    exhausted_after: Annotated[
        float | None,
        typer.Option(help="Seconds for which it is held before it ends; 60 when omitted.", min=0),
    ] = None,
    on_worker_crash: Annotated[
        OnWorkerCrash | None,
        typer.Option(
            help="Who takes the slot of a machine whose program crashed; a standby when omitted."
        ),
    ] = None,
    automation: AutomationOption = None,
    policy: PolicyOption = None,
    shadow_policy: ShadowPolicyOption = None,
    rebalance: RebalanceOption = None,
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
    trainmover run --slots 4 --standbys 2 train.py --lr 3e-4

    Prints what rank 0 prints; every rank's output is in the log folder.

    Exit codes: 0 the job finished, 1 it failed, 2 usage, 4 the bus cannot be reached or started,
    75 no machine was left for it (with --when-exhausted checkpoint or fail), 130 interrupted.
    """

    async def main() -> ExitCode:
        if not context.args:
            raise ConfigError(
                "no program was named: trainmover run --slots 4 --standbys 2 train.py"
            )
        program = _program(tuple(context.args), module=module)
        least, most = job_size(slots=slots, standbys=standbys, nnodes=nnodes)
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
            planner_options=planner_options(
                policy,
                shadow_policy,
                {
                    "when-exhausted": when_exhausted,
                    "exhausted-after": exhausted_after,
                    "on-worker-crash": on_worker_crash,
                    "automation": automation,
                    "rebalance": rebalance,
                },
            ),
            metrics_dir=None if metrics is None else metrics.absolute(),
            log_dir=(log_dir or home() / "logs" / name).absolute(),
            nats=nats,
            security=security_folder(name, secure=secure, security=security, nats=nats),
            environment={
                **thread_environment(least * nproc_per_node),
                **({_DETERMINISM: "1"} if check_determinism else {}),
            },
        )
        return await supervise(spec, quiet=quiet)

    raise typer.Exit(execute(main))


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
