"""``python -m trainmover_executor.agent``: one machine's agent as a process."""

from __future__ import annotations

import sys
from typing import NoReturn

from trainmover.bus.protocol import Bus
from trainmover.errors import TrainMoverError
from trainmover.service import ServiceOptions, run_service
from trainmover_executor.agent.options import parse
from trainmover_executor.agent.service import Agent


def main() -> NoReturn:
    """Run the agent; see ``Agent.run`` for its exit codes, 2 is a command line it refuses."""
    try:
        service, options = parse()
    except TrainMoverError as error:
        sys.stderr.write(f"trainmover agent: {error}\n")
        sys.exit(2)

    async def run(bus: Bus, _: ServiceOptions) -> int:
        return await Agent(bus, options).run()

    run_service(service, run)


if __name__ == "__main__":
    main()
