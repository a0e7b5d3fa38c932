"""How many ranks one detector process holds: batches of a synthetic job, decoded and judged."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.detection_simulated import detectors
from trainmover.detection.guard import Guarded
from trainmover.events.migration import JobFormed
from trainmover.telemetry import (
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
from trainmover.topology import Layout, Member, Membership
from trainmover_detector.core import DetectorCore

RANKS_PER_MACHINE = 8
OPS_PER_STEP = 6
STEP_S = 1.0
PERIOD_S = 1.0


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
    """Encoded batches of every machine for one second after another."""

    def __init__(self, ranks: int) -> None:
        self.seats = membership(ranks)
        self._rng = np.random.default_rng(1)
        self._ranks = ranks

    def second(self, step: int) -> list[bytes]:
        local, count = RANKS_PER_MACHINE, self._ranks
        wait = self._rng.uniform(0.1, 0.14, count)
        records = np.zeros((count, OPS_PER_STEP), RECORD)
        records["rank"] = np.arange(count)[:, None]
        records["step"], records["peer"] = step, -1
        records["sequence"] = step * OPS_PER_STEP + np.arange(OPS_PER_STEP)
        records["duration_ns"] = 20_000_000
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
        batches = []
        for slot, member in enumerate(self.seats.members):
            mine = slice(slot * local, (slot + 1) * local)
            more = Sections(
                steps=steps[mine], pulses=pulses[mine], links=links[mine].reshape(-1),
                heads=np.zeros(0, HEAD),
            )  # fmt: skip
            batch = Batch("load", member.machine, 0, 1, records[mine].reshape(-1), more=more)
            batches.append(encode_batch(batch))
        return batches


def measure(ranks: int, *, seconds: int) -> dict[str, float]:
    """Processor seconds for each second of such a job; the process holds it below 1."""
    fleet = Fleet(ranks)
    guarded = [Guarded(name, detector) for name, detector in detectors().items()]
    core = DetectorCore(guarded)
    core.on_fact(JobFormed(membership=fleet.seats), 0.0)
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
    sizes = len(batches[0])
    return {
        "ranks": ranks,
        "machines": len(batches),
        "bytes_per_batch": sizes,
        "cpu_per_second": round(float(np.median(took[1:])), 3),
        "cpu_per_second_max": round(max(took[1:]), 3),
    }


if __name__ == "__main__":
    import sys

    print(measure(int(sys.argv[1]), seconds=int(sys.argv[2])))
