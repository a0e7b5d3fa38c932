"""Whether the simulator foretells what a real job does.

    python -m benchmarks.fidelity --json                  # three minutes
    python -m benchmarks.fidelity --json --minutes 10     # the full run

One job on this host, four machines and two standbys, is disturbed every few seconds: a machine is
killed, and another one started in its place, or a machine is moved by plan. Every other half
minute gives the model its parameters, in the way of ``trainmover simulate --from``. The faults of
the half minutes between go through the model (``simulated``) and through the planner's real core
(``planner``), and what they say is compared with what the job then did (``real``). They alternate,
because the load of a host that is shared drifts within minutes, and all times with it.

``ettr`` of the job is its steps at their median length over the time: whatever made steps longer is
in it, and the model knows pauses only. The simulator gets of what it foretells when faults came and
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster
from benchmarks.common import spread
from trainmover.detection.evaluation.recording import Recorder
from trainmover.events.envelope import Envelope
from trainmover_simulator.failures import DAY_S, Failure
from trainmover_simulator.jobs.measured import model
from trainmover_simulator.jobs.observed import Run, observe
from trainmover_simulator.planner_run import decide
from trainmover_simulator.replay import Job, replay
from trainmover_simulator.scenario import Scenario
from trainmover_simulator.systems import System

SLOTS = 4
STANDBYS = 2
PACE_S = 0.4
"""A step takes so long at least, so that two cores are enough for ranks and standbys."""
PROGRAM = [
    *("-m", "trainmover_executor.programs.gpt", "--steps", "1000000", "--pace", str(PACE_S)),
    *("--width", "144", "--layers", "4", "--batch", "4", "--context", "64"),
]
EVERY_S = (4.0, 10.0)
ROUND_S = 30.0
SETTLED = 5
"""Steps after the last fault, until all ranks have said how long they paused."""

KINDS = {"crash_s": False, "planned_s": True}
"""Pauses of either kind, and whether it is planned."""
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


@dataclass(frozen=True)
class Round:
    """A part of the run that begins and ends with all standbys warm; unix seconds."""

    begin_s: float
    end_s: float
    faults: tuple[Failure, ...]


async def play(*, minutes: float, seed: int) -> tuple[list[Envelope], list[Round]]:
    """The job: its facts, and an even number of rounds."""
    generator = random.Random(seed)
    nnodes = f"{SLOTS}:{SLOTS + STANDBYS}"
    # What the policy might do about a slow rank of a busy host is no part of the scenario.
    options = ("--automation", "paused")
    rounds = []
    async with Cluster(nnodes=nnodes, program=PROGRAM, options=options) as cluster:
        await cluster.all_warm(standbys=STANDBYS)
        for _ in range(2 * max(1, round(minutes * 30 / ROUND_S))):
            began_s = time.time()
            faults = await disturb(cluster, generator, until_s=began_s + ROUND_S)
            await cluster.steps(SETTLED)
            rounds.append(Round(began_s, time.time(), tuple(faults)))
        return cluster.told, rounds


def compare(run: Run, rounds: Sequence[Round]) -> dict[str, Any]:
    """What every second round was, and what the simulator makes of it with the others' times."""
    known, ahead = rounds[::2], rounds[1::2]
    found = model(_joined([run.between(one.begin_s, one.end_s) for one in known]))
    mover = found.systems["trainmover"]
    # A standstill of no length is none to the model, and a migration all the same.
    mover = replace(mover, planned_s=max(mover.planned_s, 1e-6))
    later = [run.between(one.begin_s, one.end_s) for one in ahead]
    real = _real(later, run.step_s or 0.0)
    simulated = _simulated(mover, found.scenario, ahead, later)
    return {
        "real": real,
        "simulated": simulated,
        "deviation": _deviation(real, simulated),
        "planner": _planner(mover, found.scenario, ahead, later),
        "model": found.scenario.about,
        "calibrated_on": sum(len(one.faults) for one in known),
        "seconds": round(sum(one.seconds for one in later), 1),
    }


def _joined(parts: Sequence[Run]) -> Run:
    """Several parts of a run as one; its steps are not in it."""
    return replace(
        parts[0],
        end_s=parts[0].begin_s + sum(one.seconds for one in parts),
        interruptions=tuple(each for one in parts for each in one.interruptions),
        steps=(),
        warm=tuple(each for one in parts for each in one.warm),
        refill=tuple(each for one in parts for each in one.refill),
    )


def _job(part: Run) -> Job:
    layout = part.layout
    return Job(
        layout.world_size, part.seconds / DAY_S, part.standbys, per_machine=layout.ranks_per_slot
    )


def _shifted(one: Round) -> list[Failure]:
    return [replace(fault, at_s=fault.at_s - one.begin_s) for fault in one.faults]


def _mean(parts: Sequence[Run], ettrs: Sequence[float]) -> float:
    """Weighted with their length."""
    weights = [part.seconds for part in parts]
    return round(statistics.fmean(ettrs, weights), 4)


def _real(parts: Sequence[Run], step_s: float) -> dict[str, Any]:
    every = [each for one in parts for each in one.interruptions]
    # One step for all rounds: else one that is slow throughout would look undisturbed.
    ettrs = [one.share(step_s) or 0.0 for one in parts]
    return {
        "migrations": len(every),
        **_pauses([(one.planned, one.pause_s) for one in every]),
        "ettr": _mean(parts, ettrs),
        "standbys_used": sum(len(one.slots) for one in every if one.warm),
    }


def _simulated(
    mover: System, scenario: Scenario, ahead: Sequence[Round], parts: Sequence[Run]
) -> dict[str, Any]:
    outcomes, pauses = [], []
    for one, part in zip(ahead, parts, strict=True):
        outcome = replay(mover, scenario, _job(part), _shifted(one))
        kinds = [fault.kind == "planned" for fault in one.faults]
        pauses += list(zip(kinds, outcome.pauses_s, strict=True))
        outcomes.append(outcome)
    return {
        "migrations": sum(one.interruptions for one in outcomes),
        **_pauses(pauses),
        "ettr": _mean(parts, [one.ettr for one in outcomes]),
        "standbys_used": sum(one.standbys_used for one in outcomes),
    }


def _planner(
    mover: System, scenario: Scenario, ahead: Sequence[Round], parts: Sequence[Run]
) -> dict[str, Any]:
    done = [
        decide(mover, scenario, _job(part), _shifted(one))
        for one, part in zip(ahead, parts, strict=True)
    ]
    ettrs = [1 - one.still_s / part.seconds for one, part in zip(done, parts, strict=True)]
    return {
        "migrations": sum(one.recoveries + one.moves for one in done),
        "ettr": _mean(parts, ettrs),
        "standbys_used": sum(one.standbys_used for one in done),
    }


def _pauses(pauses: Sequence[tuple[bool, float]]) -> dict[str, Any]:
    found = {
        name: [pause for planned, pause in pauses if planned == wanted]
        for name, wanted in KINDS.items()
    }
    return {name: spread(values) for name, values in found.items() if values}


def _deviation(real: dict[str, Any], simulated: dict[str, Any]) -> dict[str, Any]:
    migrations = simulated["migrations"] - real["migrations"]
    ettr = simulated["ettr"] - real["ettr"]
    pauses = {
        name: round(simulated[name]["median"] / real[name]["median"] - 1, 3)
        for name in KINDS
        if name in real and name in simulated and real[name]["median"]
    }
    return {
        "migrations": migrations,
        **pauses,
        "ettr": round(ettr, 4),
        "holds": migrations == 0
        and abs(ettr) <= ETTR
        and all(abs(one) <= PAUSES for one in pauses.values()),
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
    parser.add_argument("--minutes", type=float, default=3.0, help="of disturbance, all rounds")
    parser.add_argument("--seed", type=int, default=22)
    parser.add_argument("--keep", type=Path, help="write the job's facts here (.tmrec.gz)")
    parser.add_argument("--json", action="store_true", help="one line instead of a readable form")
    options = parser.parse_args()
    facts, rounds = asyncio.run(play(minutes=options.minutes, seed=options.seed))
    if options.keep is not None:
        keep(options.keep, facts)
    run = observe((fact.time.timestamp(), fact.payload) for fact in facts)
    result = compare(run, rounds)
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
