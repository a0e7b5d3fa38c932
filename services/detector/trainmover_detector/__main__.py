"""``python -m trainmover_detector``: the detector as a process."""

from __future__ import annotations

import argparse

from trainmover.bus.protocol import Bus
from trainmover.detection.guard import Alarm
from trainmover.detection.registry import load
from trainmover.errors import TrainMoverError
from trainmover.lease import Lease
from trainmover.service import ServiceOptions, add_common_options, run_service
from trainmover_detector.service import DetectorService


def main() -> None:
    """Parse the command line and watch until told to stop."""
    parser = argparse.ArgumentParser(prog="trainmover-detector", description=__doc__)
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
        default=[],
        metavar="NAME",
        help="publish this detector's claims, but let them lead to no action",
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
        detectors = load(names=arguments.only, shadow=arguments.shadow)
        lease = Lease(bus, job=options.job, service="detector", ttl_s=arguments.lease)
        await DetectorService(
            bus, job=options.job, detectors=detectors, alarm=Alarm(), lease=lease
        ).run()
        return None

    try:
        options = ServiceOptions.from_args("detector", arguments)
    except TrainMoverError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    run_service(options, watch)


if __name__ == "__main__":
    main()
