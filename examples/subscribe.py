"""What moves in a job, as it happens: python subscribe.py nats://127.0.0.1:4222 JOB."""

import asyncio
import sys

from trainmover.bus.nats.bus import NatsBus


async def main(url: str, job: str) -> None:
    async with NatsBus(url) as bus:  # on a secured bus: TRAINMOVER_NATS_NKEY, TRAINMOVER_NATS_CA
        async for fact in bus.events(job, entity="migration", from_start=False):
            print(fact.payload.time, fact.payload.type, fact.payload.payload, flush=True)


asyncio.run(main(*sys.argv[1:]))
