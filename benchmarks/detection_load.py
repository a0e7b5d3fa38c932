"""How many ranks one detector process holds: batches of a synthetic job, read, decoded and judged.

    python -m benchmarks.detection_load 65536 --seconds 8

Reading is measured on a real server, by itself: it costs the same whatever is in a batch.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.detection_simulated import detectors
from trainmover.bus.embedded import EmbeddedServer
from trainmover.bus.nats.bus import NatsBus
from trainmover.detection.guard import Guarded
from trainmover.events.migration import JobFormed
from trainmover.job.topology import Layout, Member, Membership
from trainmover.telemetry.records import (
    HEAD,
    LINK,
    PULSE,
    RECORD,
    STEP,
    Batch,
    Flag,
    Sections,
    decode_batch,
    encode_batch,
)
from trainmover_detector.core import DetectorCore

RANKS_PER_MACHINE = 8
OPS_PER_STEP = 6
STEP_S = 1.0
JOB = "load"
LAST = "the-last"
BUS_MACHINES = 2048


def membership(ranks: int) -> Membership:
    slots = ranks // RANKS_PER_MACHINE
    return Membership(
        epoch=1,
        layout=Layout(slots=slots, ranks_per_slot=RANKS_PER_MACHINE),
        members=tuple(
            Member(machine=f"w-{slot}", generation=0, endpoints=("h:1",) * RANKS_PER_MACHINE)
            for slot in range(slots)
        ),
    )


class Fleet:
    """Encoded batches of every machine for one second after another.

    Args:
        ranks: Of the job.
        operations: Of each rank in a step of a second.
    """

    def __init__(self, ranks: int, *, operations: int = OPS_PER_STEP) -> None:
        self.membership = membership(ranks)
        self._operations = operations
        self._rng = np.random.default_rng(1)
        self._ranks = ranks

    def second(self, step: int) -> list[bytes]:
        """What machines send in a second, encoded."""
        return [encode_batch(batch) for batch in self.batches(step)]

    def batches(self, step: int) -> Iterator[Batch]:
        """What machines measure in a second."""
        local, count = RANKS_PER_MACHINE, self._ranks
        wait = self._rng.uniform(0.1, 0.14, count)
        steps = np.zeros(count, STEP)
        steps["rank"], steps["step"], steps["duration_ns"] = (
            np.arange(count),
            step,
            int(STEP_S * 1e9),
        )
        steps["wait_ns"] = (wait * 1e9).astype(np.int64)
        steps["flags"], steps["loss"], steps["checksum"] = Flag.LOSS | Flag.CHECKSUM, 2.0, 7
        pulses = np.zeros(count, PULSE)
        pulses["rank"], pulses["step"], pulses["phase"] = np.arange(count), step + 1, 2
        links = np.zeros((count, 2), LINK)
        links["rank"] = np.arange(count)[:, None]
        links["peer"] = np.stack([np.arange(count) - 1, np.arange(count) + 1], 1) % count
        links["rtt_us"] = 100
        links["body_ns"], links["body_bytes"] = (step + 1) * 10**8, (step + 1) * 10**8
        for slot, member in enumerate(self.membership.members):
            mine = slice(slot * local, (slot + 1) * local)
            more = Sections(
                steps=steps[mine], pulses=pulses[mine], links=links[mine].reshape(-1),
                heads=np.zeros(0, HEAD),
            )  # fmt: skip
            records = self._records(step, slot * local)
            yield Batch(JOB, member.machine, 0, 1, records, more=more)

    def _records(self, step: int, first: int) -> npt.NDArray[np.void]:
        """Operations of one machine in one step."""
        records = np.zeros((RANKS_PER_MACHINE, self._operations), RECORD)
        records["rank"] = np.arange(first, first + RANKS_PER_MACHINE)[:, None]
        records["step"], records["peer"] = step, -1
        records["sequence"] = step * self._operations + np.arange(self._operations)
        records["duration_ns"] = 20_000_000
        return records.reshape(-1)


async def send(url: str, batches: Sequence[bytes], seconds: int, together: int) -> None:
    """Send batches of machines, so many at a time, spread over each second as machines do."""
    async with NatsBus(url, name="load-sender") as bus:
        began = time.monotonic()
        for second, (slot, data) in itertools.product(range(seconds), enumerate(batches)):
            due = began + second + slot / len(batches)
            if slot % together == 0 and (left := due - time.monotonic()) > 0:
                await asyncio.sleep(left)
            await bus.send_telemetry(JOB, f"w-{slot}", data)
        await bus.send_telemetry(JOB, LAST, b"")


def send_second(url: str, seconds: int) -> None:
    """In a process of its own: the batches of the benchmark."""
    batches = Fleet(BUS_MACHINES * RANKS_PER_MACHINE).second(1)
    asyncio.run(send(url, batches, seconds, 64))


async def read(
    url: str, sending: Callable[..., None], *arguments: Any, batches: int, limit_s: float
) -> float:
    """Processor seconds of this process for each batch that it reads off the bus.

    Args:
        url: Of the bus.
        sending: Sends ``batches``, in a process of its own; called with ``url`` and the rest.
        arguments: The rest.
        batches: How many are to come.
        limit_s: Seconds that it may take.
    """
    spawn = multiprocessing.get_context("spawn")
    sender = spawn.Process(target=sending, args=(url, *arguments))
    async with NatsBus(url, name="load-reader") as bus, asyncio.timeout(limit_s):
        sender.start()  # it needs longer to make its batches than we to subscribe
        try:
            began, count = 0.0, 0
            async for machine, _ in bus.telemetry(JOB):
                if machine == LAST:
                    break
                began = began or time.process_time()
                count += 1
            took = time.process_time() - began
        finally:
            sender.terminate()
            sender.join()
    if (lost := batches - count) > 0:
        raise RuntimeError(f"{lost} batches were lost on the way, or before anybody listened")
    return took / count


def reading_s(*, seconds: int) -> float:
    """See ``read``; with a server of its own."""
    with EmbeddedServer() as server:
        batches, limit_s = BUS_MACHINES * seconds, 60.0 + seconds
        return asyncio.run(read(server.url, send_second, seconds, batches=batches, limit_s=limit_s))


def measure(ranks: int, *, seconds: int, reading_s: float) -> dict[str, float]:
    """Processor seconds for each second of such a job; the process holds it below 1.

    Args:
        ranks: Ranks of the job.
        seconds: Seconds of it that are played.
        reading_s: Processor seconds to read one batch.
    """
    fleet = Fleet(ranks)
    guarded = [Guarded(name, detector) for name, detector in detectors().items()]
    core = DetectorCore(guarded)
    core.on_fact(JobFormed(membership=fleet.membership), 0.0)
    took = []
    for step in range(seconds):
        batches = fleet.second(step)
        began = time.process_time()
        for index, data in enumerate(batches):
            now_s = step + index / len(batches)
            core.on_batch(decode_batch(data), now_s)
            if index % max(1, len(batches) // 5) == 0:
                core.tick(now_s)
        took.append(time.process_time() - began)
    quarantined = {each.name: each.quarantined for each in guarded if each.quarantined}
    if quarantined:
        raise RuntimeError(f"under load: {quarantined}")
    judging_s = float(np.median(took[1:]))
    return {
        "ranks": ranks,
        "machines": len(batches),
        "bytes_per_batch": len(batches[0]),
        "reading": round(reading_s * len(batches), 3),
        "judging": round(judging_s, 3),
        "judging_max": round(max(took[1:]), 3),
        "cpu_per_second": round(judging_s + reading_s * len(batches), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ranks", type=int)
    parser.add_argument("--seconds", type=int, default=8)
    options = parser.parse_args()
    reading = reading_s(seconds=options.seconds)
    print(json.dumps(measure(options.ranks, seconds=options.seconds, reading_s=reading)))


if __name__ == "__main__":
    main()
