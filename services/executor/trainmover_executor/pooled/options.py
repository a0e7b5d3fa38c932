"""What a machine of a pool is told on its command line."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainmover import subjects
from trainmover.errors import ConfigError
from trainmover.runtime.service import ServiceOptions, add_common_options
from trainmover_executor.agent.address import AUTO
from trainmover_executor.agent.options import label

__all__ = ["PooledOptions", "parse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledOptions:
    """One machine of a pool.

    Attributes:
        jobs: The file that says what is run for which job.
        host: As for an agent.
        nats: Address of the bus.
        labels: Placement labels.
        log_dir: Folder for the output of ranks, with a folder for each job in it.
        warm_limit: Most slots that this machine keeps processes for, whichever job it serves; None:
            as the job's options say, or all.
    """

    pool: str
    machine: str
    jobs: Path
    host: str = AUTO
    nats: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    log_dir: Path | None = None
    warm_limit: int | None = None


def parse(argv: Sequence[str] | None = None) -> tuple[ServiceOptions, PooledOptions]:
    """Options from a command line.

    Raises:
        ConfigError: A label or a number makes no sense.
        InvalidIdError: The machine's name cannot be part of a subject.
    """
    parser = argparse.ArgumentParser(
        prog="trainmover agent --pool",
        description="Wait in a pool, and run the agent of whichever job this machine is assigned "
        "to.",
        epilog="example: trainmover agent --pool spares --jobs pool.yaml",
    )
    add_common_options(parser, what="pool")
    parser.add_argument(
        "--jobs",
        type=Path,
        metavar="FILE",
        required=True,
        help="YAML with the jobs that share the pool; what is run for a job is read from it and "
        "never from the bus",
    )
    parser.add_argument(
        "--machine",
        default=os.environ.get("TRAINMOVER_MACHINE") or socket.gethostname().partition(".")[0],
        help="name of this machine, unique in the pool and in its jobs (TRAINMOVER_MACHINE; "
        "default: host name)",
    )
    parser.add_argument(
        "--host",
        default=AUTO,
        help="address the other machines reach this one at (default %(default)s)",
    )
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--log-dir",
        type=Path,
        metavar="FOLDER",
        help="one folder per job, and one file per rank in it; default: our own output",
    )
    parser.add_argument(
        "--warm-limit",
        type=int,
        metavar="N",
        help="as a standby, keep processes for no more slots than that, whichever job is served; "
        "where the job's options in FILE say another number, that one counts (default: all)",
    )
    arguments = parser.parse_args(argv)
    if arguments.warm_limit is not None and arguments.warm_limit < 1:
        raise ConfigError(f"--warm-limit {arguments.warm_limit} must be at least 1")
    service = ServiceOptions.from_args("agent", arguments)
    return service, PooledOptions(
        pool=service.job,
        machine=subjects.validate_id(arguments.machine, what="machine"),
        jobs=arguments.jobs,
        host=arguments.host,
        nats=service.nats,
        labels=dict(label(text) for text in arguments.label),
        log_dir=arguments.log_dir,
        warm_limit=arguments.warm_limit,
    )
