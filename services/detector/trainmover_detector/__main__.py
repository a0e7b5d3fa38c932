"""``python -m trainmover_detector``: the detector as a process."""

from __future__ import annotations

import argparse
import os
import tomllib
from pathlib import Path
from typing import Any, Final

from trainmover.bus.protocol import Bus
from trainmover.detection.guard import Alarm
from trainmover.detection.registry import load
from trainmover.errors import ConfigError, TrainMoverError
from trainmover.runtime.lease import Lease
from trainmover.runtime.service import ServiceOptions, add_common_options, run_service
from trainmover_detector.service import DetectorService

SHADOW_VARIABLE: Final = "TRAINMOVER_DETECTORS_SHADOW"
"""Names of detectors in shadow mode, with commas between them."""
SETTINGS_VARIABLE: Final = "TRAINMOVER_DETECTORS_SETTINGS"
"""A TOML file with a table for each detector that has settings."""


def settings_from(path: Path) -> dict[str, dict[str, Any]]:
    """Settings of detectors, by name.

    Raises:
        ConfigError: The file cannot be read, or is not made of tables.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"settings of detectors in {path} cannot be read: {error}.") from error
    if wrong := [name for name, table in tables.items() if not isinstance(table, dict)]:
        raise ConfigError(f"{path}: {wrong[0]} stands alone; write it below [DETECTOR].")
    return tables


def main() -> None:
    """Parse the command line and watch until told to stop."""
    parser = argparse.ArgumentParser(prog="trainmover detector run", description=__doc__)
    add_common_options(parser)
    group = parser.add_argument_group("detectors")
    group.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help="run this detector, and others named so; all installed ones when omitted",
    )
    group.add_argument(
        "--shadow",
        action="append",
        default=[name for name in os.environ.get(SHADOW_VARIABLE, "").split(",") if name],
        metavar="NAME",
        help="publish this detector's findings, but let them lead to no action "
        f"(more by commas in {SHADOW_VARIABLE})",
    )
    group.add_argument(
        "--settings",
        type=Path,
        default=os.environ.get(SETTINGS_VARIABLE),
        metavar="FILE",
        help=f"TOML with a table of settings for each detector (default ${SETTINGS_VARIABLE})",
    )
    parser.add_argument(
        "--analysis",
        choices=("auto", "central"),
        default="auto",
        help="auto: agents count operations where that spares this process work; central: they "
        "send each one, as who records or shows them may want (default %(default)s)",
    )
    parser.add_argument(
        "--lease",
        type=float,
        default=3.0,
        metavar="SECONDS",
        help="a replica takes over when this one was silent for so long (default %(default)g)",
    )
    arguments = parser.parse_args()

    async def watch(bus: Bus, options: ServiceOptions) -> int | None:
        lease = Lease(bus, job=options.job, service="detector", ttl_s=arguments.lease)
        await DetectorService(
            bus,
            job=options.job,
            detectors=detectors,
            alarm=Alarm(),
            lease=lease,
            places=arguments.analysis == "auto",
        ).run()
        return None

    try:
        settings = settings_from(arguments.settings) if arguments.settings else {}
        detectors = load(names=arguments.only, shadow=arguments.shadow, settings=settings)
        options = ServiceOptions.from_args("detector", arguments)
    except TrainMoverError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    run_service(options, watch)


if __name__ == "__main__":
    main()
