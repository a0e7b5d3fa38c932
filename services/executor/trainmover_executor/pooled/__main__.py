"""``python -m trainmover_executor.pooled``: one machine of a pool as a process."""

from __future__ import annotations

import sys
from typing import NoReturn

from trainmover.bus.protocol import Bus
from trainmover.errors import TrainMoverError
from trainmover.runtime.service import ServiceOptions, run_service
from trainmover_executor.pooled.options import parse
from trainmover_executor.pooled.service import PooledMachine


def main() -> NoReturn:
    """Run it; 2 is a command line that it refuses."""
    try:
        service, options = parse()
    except TrainMoverError as error:
        sys.stderr.write(f"trainmover agent: {error}\n")
        sys.exit(2)

    async def run(bus: Bus, _: ServiceOptions) -> int:
        return await PooledMachine(bus, options, credentials=service.credentials).run()

    run_service(service, run)


if __name__ == "__main__":
    main()
