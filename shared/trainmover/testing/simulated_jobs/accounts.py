"""What a simulated job says of its steps, and of a machine that dies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from trainmover.events.executor import StepBroken
from trainmover.events.machine import LinkLost, WorkerExited
from trainmover.job.topology import Frozen, Membership
from trainmover.telemetry.records import STEP, Flag
from trainmover.testing.simulated_jobs.injections import Injection
from trainmover.testing.simulated_jobs.physics import Floats, Load, Timeline
from trainmover.testing.simulated_jobs.shape import Shape

__all__ = ["facts_of_crash", "step_rows"]

_SAMPLES: Final = 4 * 32
"""What a rank looks at before it reduces: 32 elements of each of four buckets."""
_IN_BACKWARD: Final = 2.0
"""Factor of a NaN that is born in the backward pass: that step's loss is still a number."""


def step_rows(
    shape: Shape,
    line: Timeline,
    load: Load,
    injections: Sequence[Injection],
    *,
    step: int,
    took_s: float,
    seed: int,
    loss_noise: Floats,
) -> npt.NDArray[np.void]:
    """One row for each rank about a complete step, dtype ``STEP``."""
    world = shape.world
    rows = np.zeros(world, STEP)
    rows["rank"], rows["step"] = np.arange(world), step
    rows["duration_ns"] = int(took_s * 1e9)
    rows["wait_ns"] = (line.wait_s * 1e9).astype(np.int64)
    rows["loader_ns"] = (load.loader_s * 1e9).astype(np.int64)
    rows["outside_ns"] = (load.outside_s * 1e9).astype(np.int64)
    worked = load.compute_s.copy()
    flags = Flag.LOSS | Flag.CHECKSUM
    if shape.pp > 1:
        flags |= Flag.MESSAGES
    rows["flags"] = flags
    rows["ops"] = np.bincount(line.rank, minlength=world)
    rows["signature"] = [1 + shape.stage_of(rank) for rank in range(world)]
    rows["loss"] = 4.0 / (1 + 0.01 * step) + loss_noise
    rows["checksum"] = hash((seed, step)) & 0xFFFF_FFFF
    for one in injections:
        if not one.strikes(step):
            continue
        ranks = list(one.ranks)
        if one.kind == "host":
            worked[ranks] /= one.factor  # time passed, work did not
        elif one.kind == "nan":
            wrong = np.isin(rows["rank"], ranks) | (step > one.step)
            rows["nonfinite"] = np.where(wrong, _SAMPLES, 0)
            if step > one.step or one.factor < _IN_BACKWARD:
                rows["loss"] = np.where(wrong, np.nan, rows["loss"])
        elif one.kind == "corruption" and (step - one.step) % 4 == 0:
            rows["checksum"][ranks] += np.uint64(1)
    rows["cpu_ns"] = (worked * 1.02 * 1e9).astype(np.int64)
    return rows


def facts_of_crash(one: Injection, membership: Membership, *, step: int) -> list[Frozen]:
    """What the machine of the first rank, and its neighbours, say when it dies in ``step``."""
    rank, world, epoch = one.ranks[0], membership.layout.world_size, membership.epoch
    machine = membership.machine_of(rank)
    exited = WorkerExited(
        machine=machine, generation=0, rank=rank, epoch=epoch, exit_code=None, signal=9
    )
    facts: list[Frozen] = [exited] if one.factor < 3 else []
    for near in {(rank - 1) % world, (rank + 1) % world}:
        reporter = membership.machine_of(near)
        if reporter != machine:
            about = {"machine": reporter, "rank": near, "epoch": epoch}
            facts.append(
                LinkLost.model_validate(
                    {
                        **about,
                        "peer_rank": rank,
                        "peer_machine": machine,
                        "step": step,
                        "kind": "reset",
                    }
                )
            )
            facts.append(
                StepBroken.model_validate(
                    {**about, "committed_step": step, "reason": "a peer is gone"}
                )
            )
    return facts
