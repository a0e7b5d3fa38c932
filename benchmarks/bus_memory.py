"""How much memory nats-server takes, fed with facts and status as fast as it stores them.

    python -m benchmarks.bus_memory --json

It keeps the block that it writes to in memory for each stream, so it grows until the first blocks
are full, and no further. That is what a soak has to know to tell growth from a leak.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from benchmarks.cluster import memory
from benchmarks.common import spread
from trainmover.bus.embedded import EmbeddedServer
from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.streams import JOBS_BUCKET
from trainmover.events.executor import StepProgress
from trainmover.tracing.observe import new_event

MACHINES = 5
STATUS_EVERY = 8
STATUS = b"x" * 8192


async def measure(*, facts: int, samples: int) -> list[int]:
    """Resident memory in kB at the end of each of ``samples`` equal parts."""
    found = []
    with EmbeddedServer() as server:
        async with NatsBus(server.url, name="bus-memory") as bus:
            await bus.setup()
            status = None
            for number in range(1, facts + 1):
                machine = f"node-{number % MACHINES}"
                said = StepProgress(machine=machine, rank=0, epoch=1, step=number, step_s=0.1)
                await bus.publish(new_event(job="job", source=f"/machine/{machine}", payload=said))
                if number % STATUS_EVERY == 0:
                    revision = None if status is None else status.revision
                    status = await bus.put(JOBS_BUCKET, "job", STATUS, revision=revision)
                if number % (facts // samples) == 0:
                    found.append(memory(server.pid)["VmRSS"])
                    print(number, "facts:", found[-1], "kB", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--facts", type=int, default=40_000)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="one line instead of a readable form")
    options = parser.parse_args()
    found = asyncio.run(measure(facts=options.facts, samples=options.samples))
    result = {
        "facts": options.facts,
        "first_kb": found[0],
        "second_half_kb": spread(found[len(found) // 2 :]),
    }
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
