"""How long training pauses when a machine is replaced, by size of the model and number of ranks.

    python -m benchmarks.pause --json                  # 10 minutes; what comes first matters most
    python -m benchmarks.pause --json --kinds crash --millions 10 --ranks 2 --limit-s 120

``planned``: state is followed while training runs. ``planned_direct``: it is copied at the switch.
``crash``: every process of a machine is killed, at moments spread over a step: right behind a
vote the joiner has to do one more step than in its middle. ``planned_cold`` and ``crash_cold``: the
same for a slot that the standby does not keep warm (``--warm-limit 1``). ``torchrun_restart``: the
same job with plain DDP on Gloo under torchrun, one worker killed, until it is past the step it had
reached (a checkpoint every 5 steps). A pause is what the step around it took beyond the median.

``phases_s`` says where it went. ``notice``: from the kill to the planner's proposal. ``plan``:
until the plan is on its way. ``stop_and_agree``: the broken step runs through, links are made anew,
the ranks agree on the last committed step. ``state``: what the giver took to hand it over.
``redo``: from then to the commit; only what it takes beyond a step is pause. Of more than two
ranks, those that hand nothing over begin the redo at once: it has the state in it then.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster
from benchmarks.common import spread
from trainmover_console.view import MigrationView

SHAPES = {  # millions of parameters: width, layers, batch, context
    1: (144, 4, 4, 64),
    10: (456, 4, 2, 64),
    100: (1024, 8, 1, 32),
}


_STEPS = 12
"""Between two measurements."""
_ENDING_S = 15.0
"""A job is asked to end before it is killed."""

KINDS = ("crash", "planned", "torchrun_restart", "planned_direct", "planned_cold", "crash_cold")


def options_of(shape: tuple[int, int, int, int]) -> list[str]:
    names = ("--width", "--layers", "--batch", "--context")
    return [text for name, value in zip(names, shape, strict=True) for text in (name, str(value))]


@dataclass(frozen=True)
class Case:
    """What is measured together, under one launcher."""

    kind: str
    millions: int
    ranks: int

    @property
    def is_crash(self) -> bool:
        return self.kind.startswith("crash")


def cases(kinds: Sequence[str], millions: Sequence[int], ranks: Sequence[int]) -> list[Case]:
    """What is wanted most comes first: crashes by size, then by ranks, then the other kinds."""
    kinds = sorted(kinds, key=KINDS.index)
    first = [kind for kind in kinds if kind in {"crash", "planned"}]
    two = [Case(kind, size, 2) for kind in first for size in sorted(millions)]
    more = [Case("crash", min(millions), n) for n in sorted(ranks) if n > 2]
    rest = [kind for kind in kinds if kind not in first]
    return [
        *(one for one in two if 2 in ranks and one.is_crash),
        *(more if "crash" in kinds else []),
        *(one for one in two if 2 in ranks and not one.is_crash),
        *(Case(kind, size, 2) for kind in rest for size in sorted(millions) if 2 in ranks),
    ]


async def moves(case: Case, *, count: int, found: list[dict[str, Any]]) -> None:
    """Measure ``case`` so often; each result is added to ``found`` as it comes."""
    machines = case.ranks + (count if case.is_crash else 1)
    cold = case.kind.endswith("_cold")
    # Of many or large ranks a standby keeps the one warm that is needed: all take minutes here.
    large = case.ranks > 2 or case.millions >= 100
    frugal = ("--warm-limit", "1") if cold or large else ()
    shape = options_of(SHAPES[case.millions])
    program = ["-m", "trainmover_executor.programs.gpt", "--steps", "1000000", *shape]
    environment = {"TRAINMOVER_FOLLOW": "off"} if case.kind == "planned_direct" else {}
    async with Cluster(
        nnodes=f"{case.ranks}:{machines}", program=program, environment=environment, options=frugal
    ) as cluster:
        for index in range(count):
            warm = await cluster.all_warm(standbys=count - index if case.is_crash else 1)
            if cold:
                slot = next(slot for slot in range(case.ranks) if slot not in warm)
            else:
                slot = warm[index % len(warm)]
            started = time.monotonic()
            await cluster.steps(_STEPS)
            if case.is_crash:
                step_s = (time.monotonic() - started) / _STEPS
                await asyncio.sleep(step_s * (index + 0.5) / count)
            act = cluster.crash if case.is_crash else cluster.migrate
            began = time.time()
            move = await act(slot)
            found.append(
                {
                    "pause_s": move.pause_s or 0.0,
                    "steps_redone": max(move.steps_redone.values(), default=0),
                    "preparing_s": move.spans_s().get("preparing", 0.0),
                    "phases_s": phases_of(move, began=began) if case.is_crash else move.phases_s,
                }
            )
            print(case.kind, case.millions, case.ranks, found[-1], file=sys.stderr)


def phases_of(move: MigrationView, *, began: float) -> dict[str, float]:
    """Where the time of a recovery went, from the kill at ``began``; seconds."""
    spans = move.spans_s()
    state = move.phases_s.get("state", 0.0)
    return {
        "notice": move.times["proposed"].timestamp() - began,
        "plan": spans["proposed"] + spans["approved"],
        "stop_and_agree": max(0.0, spans["preparing"] - state),
        "state": state,
        "redo": spans["switching"],
    }


def restart(shape: tuple[int, int, int, int], *, limit_s: float) -> tuple[float, int]:
    """(seconds lost beyond a step, steps redone) by one restart under torchrun."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "2", "--max-restarts", "3"]
        command += ["-m", "benchmarks.programs.restart", "--steps", "1000000"]
        process = subprocess.Popen(
            [*command, "--folder", name, *options_of(shape)],
            # Else workers of torch 2.13 that are started again may find the addresses of those
            # before them, and time out: the store is kept, and github.com/pytorch/pytorch/issues/
            # 135712 has removed what told attempts apart.
            env={**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        too_long = threading.Timer(limit_s, process.kill)
        too_long.start()
        try:
            steps = steps_of(process)
            before = list(itertools.islice(steps, 13))
            os.kill(int((folder / "pid-1").read_text()), signal.SIGKILL)
            killed, redone = time.time(), 0
            for step, at in steps:
                if at <= killed + 0.5:  # of the life that ends
                    before.append((step, at))
                elif step <= before[-1][0]:
                    redone += 1
                else:
                    gaps = [b[1] - a[1] for a, b in itertools.pairwise(before)]
                    return at - before[-1][1] - statistics.median(gaps), redone
            raise RuntimeError("torchrun did not bring the job back")
        finally:
            too_long.cancel()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def steps_of(process: subprocess.Popen[str]) -> Iterator[tuple[int, float]]:
    """(step, time) of each step, as the job under torchrun makes it."""
    assert process.stdout is not None
    for line in process.stdout:
        match line.split():
            case ["step", step, at]:
                yield int(step), float(at)


def measure(case: Case, *, count: int, limit_s: float) -> dict[str, Any] | None:
    """What was found of ``case`` within ``limit_s``; None when that was nothing."""
    found: list[dict[str, Any]] = []
    complete = True
    if case.kind == "torchrun_restart":
        try:
            pause, redone = restart(SHAPES[case.millions], limit_s=limit_s)
            found.append({"pause_s": pause, "steps_redone": redone})
        except (RuntimeError, StopIteration) as error:
            print(case, error, file=sys.stderr)
            complete = False
    else:
        # Each crash costs a machine, and each machine that waits warms up on the same cores.
        most = 1 if case.kind == "crash_cold" else 2 if case.is_crash else count
        try:
            asyncio.run(within(limit_s, moves(case, count=min(count, most), found=found)))
        except TimeoutError:
            complete = False
    if not found:
        return None
    phases = [one["phases_s"] for one in found if "phases_s" in one]
    names = dict.fromkeys(name for one in phases for name in one)
    return {
        "params": case.millions * 1_000_000,
        "ranks": case.ranks,
        "kind": case.kind,
        "pause_s": spread([one["pause_s"] for one in found]),
        "steps_redone": max(one["steps_redone"] for one in found),
        "phases_s": {name: spread([one.get(name, 0.0) for one in phases]) for name in names},
        "count": len(found),
        "complete": complete,
    }


async def within(limit_s: float, measuring: Any) -> None:
    async with asyncio.timeout(limit_s):
        await measuring


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=int, nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--kinds", nargs="+", default=KINDS[:4], choices=KINDS)
    parser.add_argument("--count", type=int, default=2, help="measurements of each, at most")
    parser.add_argument(
        "--limit-s", type=float, default=600, help="end after so many seconds with what is there"
    )
    parser.add_argument("--json", action="store_true", help="one line instead of a readable form")
    options = parser.parse_args()
    end = time.monotonic() + options.limit_s
    runs, left_out = [], []
    for case in cases(options.kinds, options.millions, options.ranks):
        left_s = end - time.monotonic() - _ENDING_S
        run = measure(case, count=options.count, limit_s=left_s) if left_s > 0 else None
        if run is None:
            left_out.append(f"{case.kind} {case.millions} M, {case.ranks} ranks")
        else:
            runs.append(run)
            print(run, file=sys.stderr)
    result = {"runs": runs, "left_out": left_out}
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
