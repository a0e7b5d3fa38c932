"""What moves in a job, as it happens, or from a position that survives us.

python subscribe.py nats://127.0.0.1:4222 JOB [POSITION]
"""

import asyncio
import sys

from trainmover.bus.nats.bus import NatsBus


async def main(url: str, job: str, position: str | None = None) -> None:
    async with NatsBus(url) as bus:  # on a secured bus: TRAINMOVER_NATS_NKEY, TRAINMOVER_NATS_CA
        at = {"durable": position} if position else {"from_start": False}
        async for fact in bus.events(job, entity="migration", **at):
            print(fact.payload.time, fact.payload.type, fact.payload.payload, flush=True)
            await fact.ack()  # without a position, nothing waits for it


asyncio.run(main(*sys.argv[1:]))
