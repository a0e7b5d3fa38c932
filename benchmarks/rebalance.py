"""What rebalancing costs a real job: machines get slow in turn, and policy exchanges each.

    python -m benchmarks.rebalance --json                            # a move every 20 s, 3 minutes
    python -m benchmarks.rebalance --json --every 600 --minutes 21   # the paper's, two moves

One job on this host, four machines and two standbys. Whichever machine holds the next slot in turn
is made a tenth slower, which the straggler detector may miss; policy ignores what it finds. At the
end of the interval the slowest machine is named, the planner exchanges it, and the next one gets
slow. Machines that left are let back in as if they had been repaired: else all standbys were known
to be as slow after a few moves, and nobody was exchanged any more.

``efficiency`` is the time that is left beside the pauses that ranks report, as the paper counts it
(ETTR); the longest of any rank counts, beyond a median step. ``throughput`` is another
measurement: steps at their median length over the time, whatever made the others longer. One
machine is slow at any time, so the median step holds that in both. An interval shorter than the
paper's ten minutes makes pauses weigh more, by ``600 / every``; ``at_ten_minutes`` is what is left
with the longest of these pauses in each ten minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster
from benchmarks.common import spread
from trainmover.events.incident import IncidentOpened
from trainmover.policy.model import REBALANCE
from trainmover_console.view import JobView, MigrationView
from trainmover_simulator.jobs.observed import observe

SLOTS = 4
STANDBYS = 2
STEP_S = 0.25
"""What a step sleeps in place of computing, so that two cores are enough for all ranks."""
SLOWER = 1.1
WIDTH = 1024
"""2.1 M parameters, and twice as many numbers of the optimizer, in each rank."""
TEN_MINUTES_S = 600.0
WANTED = 0.99
PROGRAM = Path(__file__).parents[1] / "tests" / "jobs" / "uneven.py"

POLICY = """\
rebalance: {{every: {every}s, at_most: 1, least: 3%}}
cooldown: 0
rules:
# What else policy might do about a slow rank of a busy host is no part of the scenario.
- {{name: rebalance alone, kind: [straggler, degraded, link_slow], then: ignore}}
"""


def exchanges(view: JobView) -> list[MigrationView]:
    """The moves that rebalanced and are committed, oldest first."""
    every = [one for one in view.migrations.values() if one.cause.startswith(REBALANCE)]
    return [one for one in every if one.state == "committed"]


async def play(*, every_s: float, minutes: float) -> dict[str, Any]:
    """One job; what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        slow = Path(folder) / "slow"
        slow.mkdir()
        policy = Path(folder) / "policy.yaml"
        policy.write_text(POLICY.format(every=f"{every_s:g}"))
        program = [str(PROGRAM), "--steps", "1000000", "--step-s", str(STEP_S)]
        program += ["--slow", str(slow), "--width", str(WIDTH)]
        nnodes = f"{SLOTS}:{SLOTS + STANDBYS}"
        async with Cluster(
            nnodes=nnodes, program=program, options=("--policy", str(policy))
        ) as cluster:
            await cluster.all_warm(standbys=STANDBYS)
            began_s = time.time()
            seconds = 60 * minutes
            rebalancing = asyncio.ensure_future(keep_slow(cluster, slow, limit_s=3 * every_s + 60))
            await asyncio.wait([rebalancing], timeout=seconds)
            rebalancing.cancel()
            ended_s = time.time()
            if rebalancing.done() and not rebalancing.cancelled():
                rebalancing.result()  # it only ends by an error
            return figures(cluster, began_s=began_s, ended_s=ended_s, every_s=every_s)


async def keep_slow(cluster: Cluster, slow: Path, *, limit_s: float) -> None:
    """Let one machine after the other be slow, until policy exchanged it, for ``limit_s`` each."""
    slot = 0
    while True:
        machine, done = cluster.holder(slot), len(exchanges(cluster.view))
        (slow / machine).write_text(str(SLOWER))
        found = await cluster.until(lambda view, done=done: exchanges(view)[done:], limit_s=limit_s)
        (slow / machine).unlink()
        for one in found:
            print(one.id, one.leaver, one.joiner, one.cause, file=sys.stderr)
            # Else the planner would not take it again, and all standbys were known to be slow.
            await cluster.repaired(one.leaver)
        slot = (slot + 1) % SLOTS


def figures(cluster: Cluster, *, began_s: float, ended_s: float, every_s: float) -> dict[str, Any]:
    """What is printed."""
    took_s = ended_s - began_s
    moves = [
        one
        for one in exchanges(cluster.view)
        if began_s <= one.times["committed"].timestamp() <= ended_s
    ]
    pauses = [max(one.pauses_s.values()) for one in moves if one.pauses_s]
    if not pauses:
        raise SystemExit("nobody was exchanged: look at what the job said, above")
    run = observe((fact.time.timestamp(), fact.payload) for fact in cluster.told)
    usual_s = run.step_s or 0.0
    named = {
        fact.payload.id: fact.payload
        for fact in cluster.told
        if isinstance(fact.payload, IncidentOpened)
    }
    found = [named[one.incident] for one in moves if one.incident in named]
    others = [one for one in named.values() if one.kind == "straggler"]
    efficiency = 1 - sum(pauses) / took_s
    return {
        "efficiency": round(efficiency, 5),
        "moves": len(moves),
        "minutes": round(took_s / 60, 2),
        "every_s": every_s,
        "pause_s": spread(pauses),
        "throughput": round(run.between(began_s, ended_s).share(usual_s) or 0.0, 4),
        "at_ten_minutes": round(1 - max(pauses) / TEN_MINUTES_S, 5),
        "step_s": round(usual_s, 4),
        "parameters": 2 * WIDTH * (WIDTH + 1),
        "lateness": spread([one.evidence["lateness"] for one in found]),
        "stragglers": len(others),
        "holds": efficiency >= WANTED,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two moves")
    parser.add_argument("--minutes", type=float, default=3.0, help="of rebalancing")
    parser.add_argument("--json", action="store_true", help="one line instead of a readable form")
    options = parser.parse_args()
    result = asyncio.run(play(every_s=options.every, minutes=options.minutes))
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
