"""An ops tool in ten lines: what moves in a job, as it happens.

python examples/subscribe.py nats://127.0.0.1:4222 my-job
"""

import asyncio
import sys

from trainmover.bus.nats import NatsBus


async def main(url: str, job: str) -> None:
    async with NatsBus(url) as bus:
        async for delivery in bus.events(job, entity="migration"):
            event = delivery.payload
            print(event.time, event.type, event.payload.model_dump_json())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
