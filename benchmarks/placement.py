"""What it costs to run stages of detection in the agents or in the detector, by size and traffic.

    python -m benchmarks.placement --json

The detector's part: batches of a synthetic job are read off a real server, decoded and judged.
The agent's part: a relay reads the memory of eight ranks that work, packs and encodes it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.detection_load import JOB, RANKS_PER_MACHINE, Fleet, read, send
from benchmarks.detection_simulated import detectors
from benchmarks.placement_verdicts import compare
from trainmover.bus.embedded import EmbeddedServer
from trainmover.detection.guard import Guarded
from trainmover.events.incident import AnalysisPlaced
from trainmover.events.migration import JobFormed
from trainmover.telemetry.records import Batch, Flag, Phase, decode_batch, encode_batch
from trainmover.telemetry.stages import STAGES, MachineStages
from trainmover_detector.core import DetectorCore
from trainmover_executor.agent.telemetry import TelemetryRelay
from trainmover_executor.clock.memory import ClockMemory
from trainmover_executor.clock.writer import CollectiveClock

RANKS = (1_024, 8_192, 65_536)
OPERATIONS = (6, 60, 300)
"""Of a rank in a second. A DDP job has a few large buckets in a step; tensor and pipeline parallel
ranks communicate several times in each layer of each microbatch."""
BUS_MACHINES = 512
BUS_OPERATIONS_S = 120_000
"""Of all machines on the bus together: a reader on a busy host must not fall behind."""
SECONDS = 4
READ_SECONDS = 3
AGENT_SECONDS = 20
LOOKS = 4
BUDGET_S = 60.0
"""A split that is too slow for the service is to be measured, not dropped."""
CHUNK = 256
SPLITS = tuple(STAGES[:count] for count in range(len(STAGES) + 1))
TENFOLD_RANKS = 8_192
TENFOLD = (12, 120)
PARTS = ("rows", "verdicts", "tenfold")


def bus_machines(operations: int) -> int:
    """Machines that send over a real bus."""
    return max(16, min(BUS_MACHINES, BUS_OPERATIONS_S // (operations * RANKS_PER_MACHINE)))


def sent(batches: Iterable[Batch], split: tuple[str, ...]) -> Iterator[bytes]:
    """What agents send of what they measured."""
    stages = MachineStages()
    stages.place(split)
    return (encode_batch(stages.apply(batch)) for batch in batches)


def send_split(url: str, operations: int, split: tuple[str, ...], seconds: int) -> None:
    """In a process of its own: what agents send under a split."""
    fleet = Fleet(bus_machines(operations) * RANKS_PER_MACHINE, operations=operations)
    asyncio.run(send(url, list(sent(fleet.batches(1), split)), seconds, 8))


def read_once(operations: int, split: tuple[str, ...], number: int) -> float:
    """See ``read``; with a server of its own."""
    del number
    with EmbeddedServer() as server:
        arguments = (operations, split, READ_SECONDS)
        batches, limit_s = bus_machines(operations) * READ_SECONDS, 60.0 + READ_SECONDS
        return asyncio.run(
            read(server.url, send_split, *arguments, batches=batches, limit_s=limit_s)
        )


class Judge:
    """The detector's core for a job whose agents run some stages."""

    def __init__(self, fleet: Fleet, split: tuple[str, ...]) -> None:
        guarded = [Guarded(name, one, budget_s=BUDGET_S) for name, one in detectors().items()]
        self._core = DetectorCore(guarded, places=False)
        self._core.on_fact(JobFormed(membership=fleet.membership), 0.0)
        self._machines = len(fleet.membership.members)
        self._fleet, self._split = fleet, split
        self.nbytes = 0

    def second(self, step: int) -> float:
        """Processor seconds to decode and judge what machines send in a second."""
        spent, self.nbytes = 0.0, 0
        batches = enumerate(sent(self._fleet.batches(step), self._split))
        while chunk := list(itertools.islice(batches, CHUNK)):
            self.nbytes += sum(len(data) for _, data in chunk)
            began = time.process_time()
            for index, data in chunk:
                now_s = step + index / self._machines
                self._core.on_batch(decode_batch(data), now_s)
                if index % max(1, self._machines // 5) == 0:
                    self._core.tick(now_s)
            spent += time.process_time() - began
        return spent


def agent_once(operations: int, split: tuple[str, ...], number: int) -> float:
    """Processor seconds of an agent's telemetry for each second of a machine of eight ranks."""
    del number

    async def nowhere(data: bytes) -> None:
        del data

    relay = TelemetryRelay(job=JOB, machine="w-0", now=lambda: (0, 1), send=nowhere)
    relay.place(split)
    ranks = []
    for rank in range(RANKS_PER_MACHINE):
        memory = ClockMemory.private()
        relay.watch(str(rank), rank, memory)
        clock = CollectiveClock(rank=rank, memory=memory)
        clock.enter_epoch(1)
        ranks.append((clock, clock.group("dp", range(RANKS_PER_MACHINE))))
    took = []
    for step in range(AGENT_SECONDS):
        spent = 0.0
        for look in range(LOOKS):
            for clock, group in ranks:
                clock.step = step
                share = operations * (look + 1) // LOOKS - operations * look // LOOKS
                for _ in range(share):
                    group.leave(group.enter("allreduce", size=1 << 20))
                if look == LOOKS - 1:
                    _commit(clock, step)
                clock.enter_phase(Phase.BODY)
                clock.beat()
            began = time.process_time()
            relay.look()
            spent += time.process_time() - began
        began = time.process_time()
        for batch in relay.take():
            encode_batch(batch)
        took.append(spent + time.process_time() - began)
    return float(np.median(took[1:]))


def _commit(clock: CollectiveClock, step: int) -> None:
    clock.committed(
        step=step,
        flags=Flag.LOSS,
        duration_ns=10**9,
        loader_ns=10**6,
        outside_ns=10**6,
        cpu_ns=10**8,
        loss=2.0,
        checksum=0,
    )


def answered_s(ranks: int, before: int, after: int) -> float:
    """Seconds of simulated time from a change of traffic to the choice that answers it."""
    slow, fast = (Fleet(ranks, operations=count) for count in (before, after))
    guarded = [Guarded(name, one, budget_s=BUDGET_S) for name, one in detectors().items()]
    core, stages = DetectorCore(guarded), MachineStages()
    core.on_fact(JobFormed(membership=slow.membership), 0.0)
    settled, changed, machines = None, 20, len(slow.membership.members)
    for second in range(changed + 60):
        fleet = slow if second < changed else fast
        for index, batch in enumerate(fleet.batches(second)):
            now_s = second + index / machines
            core.on_batch(decode_batch(encode_batch(stages.apply(batch))), now_s)
            if index % max(1, machines // 5) == 0:
                for fact in core.tick(now_s):
                    if isinstance(fact, AnalysisPlaced):
                        stages.place(fact.at_agents)
                        settled = now_s
        if settled is not None and settled >= changed:
            return settled - changed
    raise RuntimeError("the split did not follow the traffic")


def alternately(seconds: int, measures: list[Callable[[int], float]]) -> list[float]:
    """The least of each: they take turns, so that a busy host troubles all of them."""
    took = [[measure(number) for measure in measures] for number in range(seconds)]
    return np.min(took[1:], axis=0).tolist()


def rows(ranks: Iterable[int], operations: Iterable[int], *, seconds: int) -> list[dict[str, Any]]:
    """A row for each size, traffic and split."""
    found = []
    for count in operations:
        reading = alternately(3, [partial(read_once, count, split) for split in SPLITS])
        agent = alternately(3, [partial(agent_once, count, split) for split in SPLITS])
        for world in ranks:
            judges = [Judge(Fleet(world, operations=count), split) for split in SPLITS]
            judging = alternately(seconds, [judge.second for judge in judges])
            machines = world // RANKS_PER_MACHINE
            for at, split in enumerate(SPLITS):
                row = {
                    "ranks": world,
                    "operations_s": count,
                    "split": "+".join(split) or "central",
                    "detector_cpu_s": round(judging[at] + reading[at] * machines, 4),
                    "reading_s": round(reading[at] * machines, 4),
                    "agent_cpu_ratio": round(agent[at] / RANKS_PER_MACHINE, 6),
                    "bytes_s": judges[at].nbytes,
                }
                print(row, file=sys.stderr, flush=True)
                found.append(row)
    return found


def measured(part: str, options: argparse.Namespace) -> dict[str, Any]:
    """One part of the document that is printed."""
    match part:
        case "rows":
            ranks, operations = options.ranks or RANKS, options.operations or OPERATIONS
            return {"rows": rows(ranks, operations, seconds=options.seconds)}
        case "verdicts":
            verdicts = compare(seeds=options.seeds)
            return {"verdicts_equal": not verdicts["differing"], "verdicts": verdicts}
        case _:
            changes = (TENFOLD, TENFOLD[::-1])
            answered = [round(answered_s(TENFOLD_RANKS, *change), 2) for change in changes]
            return {"tenfold_answered_s": answered}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one line for programs")
    parser.add_argument("--ranks", type=int, action="append")
    parser.add_argument("--operations", type=int, action="append", help="of a rank in a second")
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--seeds", type=int, default=0, help="further recordings of each class")
    parser.add_argument("--only", action="append", choices=PARTS, help="these parts of it")
    options = parser.parse_args()
    document: dict[str, Any] = {}
    for part in options.only or PARTS:
        document |= measured(part, options)
    if options.json:
        print(json.dumps(document))
        return
    for row in document.pop("rows", ()):
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    print(document)


if __name__ == "__main__":
    main()
