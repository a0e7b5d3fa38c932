"""``trainmover up``: the bus and the services of a job, for machines that come from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
)
from trainmover_launcher.spec import ClusterSpec

__all__ = ["up"]


def up(
    *,
    job: Annotated[str, typer.Option(envvar="TRAINMOVER_JOB", help="Job name.")],
    nats: NatsOption = None,
    automation: AutomationOption = None,
    policy: PolicyOption = None,
    shadow_policy: ShadowPolicyOption = None,
    rebalance: RebalanceOption = None,
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
            planner_options=planner_options(
                policy, shadow_policy, {"automation": automation, "rebalance": rebalance}
            ),
            log_dir=(log_dir or home() / "logs" / name).absolute(),
            nats=nats,
            security=security_folder(name, secure=False, security=security, nats=nats),
        )
        await supervise(spec, quiet=False)
        return ExitCode.OK

    raise typer.Exit(execute(main))
