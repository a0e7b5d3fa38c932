"""What an agent is told on its command line."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainmover import subjects
from trainmover.errors import ConfigError
from trainmover.job.redundancy import CHOICES, RedundancyChoice
from trainmover.job.topology import job_size
from trainmover.runtime.service import ServiceOptions, add_common_options
from trainmover_executor.agent.address import AUTO
from trainmover_executor.messages.forks import DEFAULT_ENTRY

__all__ = ["AgentOptions", "label", "parse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """One machine's part in a job.

    Attributes:
        nnodes_min: Slots of the job.
        nnodes_max: Slots plus standbys.
        ranks: Ranks on this machine.
        program: The user's script or module, and its arguments.
        redundancy: Where state is to survive a machine; the same on all machines of a job.
        warm_limit: Most slots that a standby keeps processes for; None: all.
        host: Address that workers listen on and announce; ``auto`` is the one that reaches the bus.
        nats: Address of the bus.
        labels: Placement labels.
        metrics_dir: Folder for ``Session.log`` lines, or None.
        log_dir: Folder for the output of each rank, or None to inherit the agent's.
        worker_entry: Where a worker begins; for tests.
        pool: The pool that the machine is from; empty where it is the job's own.
    """

    job: str
    machine: str
    nnodes_min: int
    nnodes_max: int
    program: tuple[str, ...]
    ranks: int = 1
    as_module: bool = False
    redundancy: RedundancyChoice = "auto"
    warm_limit: int | None = None
    host: str = "127.0.0.1"
    nats: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    metrics_dir: Path | None = None
    log_dir: Path | None = None
    worker_entry: str = DEFAULT_ENTRY
    pool: str = ""


def parse(argv: Sequence[str] | None = None) -> tuple[ServiceOptions, AgentOptions]:
    """Options from a command line.

    Raises:
        ConfigError: A value makes no sense.
        InvalidIdError: The job or machine name cannot be part of a subject.
    """
    parser = argparse.ArgumentParser(
        prog="trainmover agent",
        description="Run one machine's part in a training job.",
        epilog="example: trainmover agent --job gpt --slots 4 --standbys 2 -- train.py --lr 3e-4",
    )
    add_common_options(parser)
    parser.add_argument(
        "--machine",
        default=os.environ.get("TRAINMOVER_MACHINE") or socket.gethostname().partition(".")[0],
        help="name of this machine, unique in the job (TRAINMOVER_MACHINE; default: host name)",
    )
    parser.add_argument(
        "--slots", type=int, metavar="N", help="machines that train, the same on each (default 1)"
    )
    parser.add_argument(
        "--standbys", type=int, metavar="N", help="machines beside them, the same on each"
    )
    parser.add_argument(
        "--nnodes", metavar="N[:M]", help="both as torchrun says it: 4:6 is 4 slots and 2 standbys"
    )
    parser.add_argument("--nproc-per-node", type=int, default=1, metavar="N", help="ranks here")
    parser.add_argument(
        "--host",
        default=AUTO,
        help="address the other machines reach this one at (default %(default)s: the address "
        "from which this machine reaches the bus)",
    )
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--metrics-dir", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--log-dir", type=Path, metavar="FOLDER", help="one file per rank; default: our own output"
    )
    parser.add_argument("-m", dest="as_module", action="store_true", help="program is a module")
    parser.add_argument(
        "--redundancy",
        choices=CHOICES,
        default="auto",
        help="where state survives a machine; the same on every machine (default: auto)",
    )
    parser.add_argument(
        "--warm-limit",
        type=int,
        metavar="N",
        help="as a standby, keep processes for no more slots than that; the others are started "
        "when they are needed (default: all)",
    )
    parser.add_argument("--worker-entry", default=DEFAULT_ENTRY, help=argparse.SUPPRESS)
    parser.add_argument("--lent-by", default="", help=argparse.SUPPRESS)  # said by the pool's
    parser.add_argument("program", nargs="+", help="script (or module) and its arguments, after --")
    arguments = parser.parse_args(argv)
    service = ServiceOptions.from_args("agent", arguments)
    least, most = job_size(
        slots=arguments.slots, standbys=arguments.standbys, nnodes=arguments.nnodes
    )
    if not 1 <= least <= most:
        raise ConfigError(f"--slots {least} --standbys {most - least} make no job")
    if arguments.nproc_per_node < 1:
        raise ConfigError(f"--nproc-per-node {arguments.nproc_per_node} must be at least 1")
    if arguments.warm_limit is not None and arguments.warm_limit < 1:
        raise ConfigError(f"--warm-limit {arguments.warm_limit} must be at least 1")
    return service, AgentOptions(
        job=service.job,
        machine=subjects.validate_id(arguments.machine, what="machine"),
        nnodes_min=least,
        nnodes_max=most,
        program=tuple(arguments.program),
        ranks=arguments.nproc_per_node,
        as_module=arguments.as_module,
        redundancy=arguments.redundancy,
        warm_limit=arguments.warm_limit,
        host=arguments.host,
        nats=service.nats,
        labels=dict(label(text) for text in arguments.label),
        metrics_dir=arguments.metrics_dir,
        log_dir=arguments.log_dir,
        worker_entry=arguments.worker_entry,
        pool=arguments.lent_by,
    )


def label(text: str) -> tuple[str, str]:
    """``KEY=VALUE`` of a command line.

    Raises:
        ConfigError: It is none.
    """
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise ConfigError(f"--label {text!r} is not KEY=VALUE, for example --label rack=r7")
    return key, value
