"""What a supervisor is to run, and the command lines that follow from it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainmover.bus.credentials import Credentials
from trainmover.job.redundancy import RedundancyChoice
from trainmover.security.folder import client_folder
from trainmover.security.roles import Role, User

__all__ = ["ClusterSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """What to run.

    Attributes:
        job: Job name.
        nnodes_min: Slots of the job; 0 starts the services without machines.
        nnodes_max: Slots plus standbys.
        program: Script or module, and its arguments.
        as_module: Whether ``program`` names a module.
        redundancy: Where state is to survive a machine.
        warm_limit: Most slots that a standby keeps processes for; None: all.
        metrics_dir: Where ranks write their metrics, or None.
        log_dir: Where services, machines and ranks log.
        nats: URL of an existing bus; an embedded one is started when None.
        planner_options: Further options of the planner's command line.
        security: Folder of ``trainmover bus setup`` with everybody's credentials; made for an
            embedded bus. Without it the bus trusts everybody who can reach it.
        environment: Variables to add for the machines.
    """

    job: str
    nnodes_min: int
    nnodes_max: int
    program: tuple[str, ...]
    log_dir: Path
    nproc_per_node: int = 1
    as_module: bool = False
    redundancy: RedundancyChoice = "auto"
    warm_limit: int | None = None
    metrics_dir: Path | None = None
    nats: str | None = None
    planner_options: tuple[str, ...] = ()
    security: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def machines(self) -> tuple[str, ...]:
        """Names of the machines."""
        return tuple(f"node-{number}" for number in range(self.nnodes_max))

    def credentials(self, role: Role, machine: str = "") -> Credentials | None:
        """Those of one role, or one machine; None where the environment decides."""
        if self.security is None:
            return None
        return Credentials.of_folder(client_folder(self.security, User(role, machine)))

    def service_argv(self, name: str) -> list[str]:
        """Command line of a service."""
        argv = [sys.executable, "-m", f"trainmover_{name}", "--job", self.job]
        return [*argv, *self.planner_options] if name == "planner" else argv

    def agent_argv(self, machine: str) -> list[str]:
        """Command line of one machine's agent."""
        argv = [sys.executable, "-m", "trainmover_executor.agent"]
        argv += ["--job", self.job, "--machine", machine]
        argv += ["--slots", str(self.nnodes_min)]
        argv += ["--standbys", str(self.nnodes_max - self.nnodes_min)]
        argv += ["--nproc-per-node", str(self.nproc_per_node), "--host", "127.0.0.1"]
        if self.metrics_dir is not None:
            argv += ["--metrics-dir", str(self.metrics_dir)]
        argv += ["--log-dir", str(self.log_dir), "--redundancy", self.redundancy]
        if self.warm_limit is not None:
            argv += ["--warm-limit", str(self.warm_limit)]
        if self.as_module:
            argv.append("-m")
        return [*argv, "--", *self.program]
