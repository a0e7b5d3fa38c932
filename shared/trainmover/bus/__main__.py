"""``python -m trainmover.bus``: create the streams and buckets of the bus, once for all jobs."""

from __future__ import annotations

import argparse

from trainmover.bus.protocol import Bus
from trainmover.service import ServiceOptions, add_common_options, run_service


def main() -> None:
    """Wait for the bus, make what is missing there, and leave."""
    parser = argparse.ArgumentParser(prog="trainmover-setup", description=__doc__)
    add_common_options(parser)
    options = ServiceOptions.from_args("setup", parser.parse_args())

    async def made(_bus: Bus, _options: ServiceOptions) -> int | None:
        return None  # a service sets its bus up before it begins: nothing is left to do

    run_service(options, made)


if __name__ == "__main__":
    main()
