"""``python -m trainmover_executor.agent``: one machine's agent as a process."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import structlog

from trainmover.bus.protocol import Bus
from trainmover.errors import TrainMoverError
from trainmover.runtime.service import ServiceOptions, run_service
from trainmover.security.secret import SECRET_VARIABLE, secret_of
from trainmover_executor.agent.incarnation import take_generation, wait_until_alone
from trainmover_executor.agent.options import parse
from trainmover_executor.agent.service import Agent
from trainmover_executor.links.dialling.secret import LinkSecret

log = structlog.get_logger(__name__)


def _find_secret(job: str) -> None:
    """Check the link secret now, not when the first link is dialled.

    Raises:
        ConfigError: It is unreadable, short, or open to others.
    """
    local = secret_of(job)
    if SECRET_VARIABLE not in os.environ and local.exists():
        os.environ[SECRET_VARIABLE] = str(local.absolute())  # a machine more for a job of this host
    secret = LinkSecret.from_environment()
    if not secret:
        log.warning("links to other machines are not authenticated", cure=f"set {SECRET_VARIABLE}")


def main() -> NoReturn:
    """Run the agent; see ``Agent.run`` for its exit codes, 2 is a command line it refuses."""
    try:
        service, options = parse()
        _find_secret(options.job)
    except TrainMoverError as error:
        sys.stderr.write(f"trainmover agent: {error}\n")
        sys.exit(2)

    async def run(bus: Bus, _: ServiceOptions) -> int:
        await wait_until_alone(bus, job=options.job, machine=options.machine)
        generation = await take_generation(bus, job=options.job, machine=options.machine)
        return await Agent(bus, options, generation=generation).run()

    run_service(service, run)


if __name__ == "__main__":
    main()
