"""Whether the simulator foretells what a real job does.

    python -m benchmarks.fidelity --json                  # three minutes
    python -m benchmarks.fidelity --json --minutes 10     # what docs/concepts/projection.md tells

One job on this host, four machines and two standbys, is disturbed every few seconds: a machine is
killed, and another one started in its place, or a machine is moved by plan. The first half gives
the model its parameters, in the way of ``trainmover simulate --from``. The faults of the second
half go through the model (``simulated``) and through the planner's real core (``planner``), and
what they say is compared with what the job then did (``real``).

``ettr`` of the job is its steps at their median length over the time: whatever made steps longer is
in it, and the model knows pauses only. The simulator gets of the second half when faults came and
whom they hit, and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster
from benchmarks.common import spread
from trainmover.detection.evaluation.recording import Recorder
from trainmover.events.envelope import Envelope
from trainmover_simulator.failures import DAY_S, Failure
from trainmover_simulator.measured import Model, model
from trainmover_simulator.observed import Run, observe
from trainmover_simulator.planner_run import decide
from trainmover_simulator.replay import Job, replay

SLOTS = 4
STANDBYS = 2
PACE_S = 0.25
"""A step takes so long at least, so that two cores are enough for ranks and standbys."""
PROGRAM = [
    *("-m", "trainmover_executor.programs.gpt", "--steps", "1000000", "--pace", str(PACE_S)),
    *("--width", "64", "--layers", "2", "--batch", "2", "--context", "32"),
]
EVERY_S = (4.0, 10.0)
SETTLED = 5
"""Steps after the last fault, until all ranks have said how long they paused."""

PAUSES, ETTR = 0.2, 0.02
"""How far the simulator may be off: in medians of pauses, and in ETTR."""


async def disturb(cluster: Cluster, generator: random.Random, *, until_s: float) -> list[Failure]:
    """Hurt the job until ``until_s`` (unix seconds), each time when a standby could take the slot.

    Then wait until all standbys are warm. Returns what was done, at unix seconds.
    """
    done: list[Failure] = []
    while True:
        await asyncio.sleep(generator.uniform(*EVERY_S))
        planned, slot = generator.random() < 0.4, generator.randrange(SLOTS)
        await cluster.warm(slot=slot)
        if done and time.time() >= until_s:
            break
        done.append(Failure(time.time(), (slot,), "planned" if planned else "machine"))
        move = await (cluster.migrate if planned else cluster.crash)(slot)
        print(done[-1].kind, slot, f"{move.pause_s or 0.0:.3f} s", file=sys.stderr)
        if not planned:
            await cluster.add()
    await cluster.all_warm(standbys=STANDBYS)
    return done


async def play(*, minutes: float, seed: int) -> tuple[list[Envelope], list[float], list[Failure]]:
    """The job. Its facts; when the first half began, the second, and that ended; its faults."""
    generator = random.Random(seed)
    nnodes = f"{SLOTS}:{SLOTS + STANDBYS}"
    # What the policy might do about a slow rank of a busy host is no part of the scenario.
    options = ("--automation", "paused")
    async with Cluster(nnodes=nnodes, program=PROGRAM, options=options) as cluster:
        await cluster.all_warm(standbys=STANDBYS)
        times = [time.time()]
        await disturb(cluster, generator, until_s=times[0] + minutes * 30)
        times.append(time.time())
        faults = await disturb(cluster, generator, until_s=times[1] + minutes * 30)
        await cluster.steps(SETTLED)
        times.append(time.time())
        return await cluster.history(), times, faults


def compare(run: Run, times: Sequence[float], faults: Sequence[Failure]) -> dict[str, Any]:
    """What the second half was, and what the simulator makes of it with the first half's times."""
    begin_s, middle_s, end_s = times
    found = model(run.between(begin_s, middle_s))
    later = run.between(middle_s, end_s)
    ahead = [replace(one, at_s=one.at_s - middle_s) for one in faults]
    real = {
        "migrations": len(later.interruptions),
        **_pauses([(one.planned, one.pause_s) for one in later.interruptions]),
        "ettr": round(later.ettr or 0.0, 4),
        "standbys_used": sum(len(one.slots) for one in later.interruptions if one.warm),
    }
    simulated = _simulated(found, ahead, later)
    return {
        "real": real,
        "simulated": simulated,
        "deviation": _deviation(real, simulated),
        "planner": _planner(found, ahead, later),
        "model": found.scenario.about,
        "calibrated_on": len(run.between(begin_s, middle_s).interruptions),
        "seconds": round(later.seconds, 1),
    }


def _job(later: Run) -> Job:
    layout = later.layout
    return Job(
        layout.world_size, later.seconds / DAY_S, later.standbys, per_machine=layout.ranks_per_slot
    )


def _simulated(found: Model, ahead: Sequence[Failure], later: Run) -> dict[str, Any]:
    outcome = replay(found.systems["trainmover"], found.scenario, _job(later), ahead)
    kinds = [one.kind == "planned" for one in ahead]
    return {
        "migrations": outcome.interruptions,
        **_pauses(list(zip(kinds, outcome.pauses_s, strict=True))),
        "ettr": round(outcome.ettr, 4),
        "standbys_used": outcome.standbys_used,
    }


def _planner(found: Model, ahead: Sequence[Failure], later: Run) -> dict[str, Any]:
    decisions = decide(found.systems["trainmover"], found.scenario, _job(later), ahead)
    return {
        "migrations": decisions.recoveries + decisions.moves,
        "ettr": round(1 - decisions.still_s / later.seconds, 4),
        "standbys_used": decisions.standbys_used,
    }


def _pauses(pauses: Sequence[tuple[bool, float]]) -> dict[str, Any]:
    kinds = {"crash_s": False, "planned_s": True}
    found = {
        name: [pause for planned, pause in pauses if planned == wanted]
        for name, wanted in kinds.items()
    }
    return {
        "pause_s": round(statistics.median([pause for _, pause in pauses]), 4),
        **{name: spread(values) for name, values in found.items() if values},
    }


def _deviation(real: dict[str, Any], simulated: dict[str, Any]) -> dict[str, Any]:
    migrations = simulated["migrations"] - real["migrations"]
    pause = simulated["pause_s"] / real["pause_s"] - 1
    ettr = simulated["ettr"] - real["ettr"]
    kinds = {
        name: round(simulated[name]["median"] / real[name]["median"] - 1, 3)
        for name in ("crash_s", "planned_s")
        if name in real and name in simulated
    }
    return {
        "migrations": migrations,
        "pause_s": round(pause, 3),
        **kinds,
        "ettr": round(ettr, 4),
        "holds": migrations == 0 and abs(pause) <= PAUSES and abs(ettr) <= ETTR,
    }


def keep(path: Path, facts: Sequence[Envelope]) -> None:
    """Write a recording for ``trainmover simulate --from``."""
    began_s = facts[0].time.timestamp()
    with Recorder(path) as recorder:
        for fact in facts:
            at_s = fact.time.timestamp() - began_s
            recorder.fact(at_s, fact.payload, said_s=at_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=3.0, help="of disturbance, both halves")
    parser.add_argument("--seed", type=int, default=22)
    parser.add_argument("--keep", type=Path, help="write the job's facts here (.tmrec.gz)")
    parser.add_argument("--json", action="store_true", help="one line instead of a readable form")
    options = parser.parse_args()
    facts, times, faults = asyncio.run(play(minutes=options.minutes, seed=options.seed))
    if options.keep is not None:
        keep(options.keep, facts)
    run = observe((fact.time.timestamp(), fact.payload) for fact in facts)
    result = compare(run, times, faults)
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
