"""``python -m trainmover_pool``: the leader of a pool as a process."""

from __future__ import annotations

import argparse
from pathlib import Path

from trainmover.bus.protocol import Bus
from trainmover.errors import TrainMoverError
from trainmover.protocol.requests import POOL_LEASE
from trainmover.runtime.lease import Lease
from trainmover.runtime.service import ServiceOptions, add_common_options, run_service
from trainmover_pool.service import Pool
from trainmover_pool.sharing_file import SharingFile


def main() -> None:
    """Parse the command line and lead until told to stop."""
    parser = argparse.ArgumentParser(
        prog="trainmover pool serve",
        description="Decide which job each machine of a pool serves.",
        epilog="example: trainmover pool serve --pool spares --jobs pool.yaml",
    )
    add_common_options(parser, what="pool")
    parser.add_argument(
        "--jobs",
        type=Path,
        metavar="FILE",
        required=True,
        help="YAML with the jobs that share the pool, read again when it changes "
        "(see docs/concepts/pool.md)",
    )
    parser.add_argument(
        "--lease",
        type=float,
        default=3.0,
        metavar="SECONDS",
        help="a replica takes over when this one was silent for so long (default %(default)g)",
    )
    arguments = parser.parse_args()
    options = ServiceOptions.from_args("pool", arguments)
    file = SharingFile(arguments.jobs)
    try:
        file.load()
    except TrainMoverError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")

    async def lead(bus: Bus, _: ServiceOptions) -> int | None:
        lease = Lease(bus, job=options.job, service=POOL_LEASE, ttl_s=arguments.lease)
        await Pool(bus, pool=options.job, sharing=file, lease=lease).run()
        return None

    run_service(options, lead)


if __name__ == "__main__":
    main()
