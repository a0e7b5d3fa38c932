"""Whether detectors find the same wherever the stages of analysis run, on recordings of jobs."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from benchmarks.detection_simulated import detectors
from trainmover.detection.evaluation.recording import Entry, read
from trainmover.detection.evaluation.replay import play
from trainmover.detection.evaluation.scoring import TimedFinding
from trainmover.telemetry.records import Batch, decode_batch, encode_batch
from trainmover.telemetry.stages import STAGES, MachineStages
from trainmover.testing.simulated_jobs import CLASSES, healthy_job, record_job, troubled_job
from trainmover.testing.simulated_jobs.job import SimulatedJob

HEALTHY_STEPS = 200
SMALL = {
    "compute_10": 3,
    "compute_20": 3,
    "compute_2x": 2,
    "host_2x": 2,
    "loader_stalls": 4,
    "slow_link": 3,
    "slow_sender": 5,
    "slow_receiver": 1,
    "hang_process": 4,
    "hang_frozen": 4,
    "hang_link": 3,
    "crash": 5,
    "crash_by_links": 3,
    "silent_host": 5,
    "all_slow": 5,
    "slow_network": 0,
    "mismatch": 4,
    "nan": 5,
    "corruption": 0,
    "notice": 2,
    "two_at_once": 3,
    "compute_20_short_steps": 4,
}
"""The seed of each class, of the first six, whose recording is the smallest."""

Places = Callable[[str, int], tuple[str, ...]]
"""The stages that a machine runs for its batch of that number."""


def central(machine: str, number: int) -> tuple[str, ...]:
    """Agents run nothing."""
    del machine, number
    return ()


def at_agents(machine: str, number: int) -> tuple[str, ...]:
    """Agents run all stages."""
    del machine, number
    return STAGES


def alternating(machine: str, number: int) -> tuple[str, ...]:
    """The split changes again and again, at each machine at another time."""
    return STAGES if (number + len(machine) + ord(machine[-1])) // 7 % 2 else ()


def recorded(job: SimulatedJob, *, steps: int) -> list[Entry]:
    """A recording of a simulated job."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.tmrec.gz"
        record_job(job, path, steps=steps)
        return list(read(path))


def placed(entries: Iterable[Entry], places: Places) -> Iterator[Entry]:
    """The recording as it would be if agents had run those stages."""
    machines: dict[str, tuple[MachineStages, int]] = {}
    for entry in entries:
        if not isinstance(entry.what, Batch):
            yield entry
            continue
        stages, number = machines.get(entry.what.machine, (MachineStages(), 0))
        machines[entry.what.machine] = stages, number + 1
        stages.place(places(entry.what.machine, number))
        sent = encode_batch(stages.apply(entry.what))
        yield dataclasses.replace(entry, what=decode_batch(sent))


def findings(entries: Iterable[Entry], places: Places) -> list[TimedFinding]:
    """What the built-in detectors find in it, when, and with which numbers."""
    player, _ = play(placed(entries, places), detectors())
    if player.errors:
        raise RuntimeError(f"a detector raised: {player.errors}")
    return player.findings


def recordings(*, seeds: int) -> Iterator[list[Entry]]:
    """Small recordings of each class of trouble, those of the first seeds, and healthy jobs."""
    for name in CLASSES:
        for seed in sorted({SMALL[name], *range(seeds)}):
            job, steps = troubled_job(name, seed)
            yield recorded(job, steps=steps)
    for seed in range(max(1, seeds)):
        yield recorded(healthy_job(seed), steps=HEALTHY_STEPS)


def compare(*, seeds: int) -> dict[str, int | bool]:
    """Findings under each split of each recording."""
    count = found = differing = 0
    for entries in recordings(seeds=seeds):
        expected = findings(entries, central)
        count, found = count + 1, found + len(expected)
        differing += any(
            findings(entries, places) != expected for places in (at_agents, alternating)
        )
    return {"recordings": count, "findings": found, "differing": differing}
