"""INV-SAME-BITS where NCCL carries the collectives, between ranks that share one GPU.

NCCL allows that from 2.30 on, with ``NCCL_MULTI_RANK_GPU_ENABLE=1``; where torch brings an older
one, ``LD_PRELOAD`` a newer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from tests.cuda.conftest import nccl_version, needs_a_gpu, nursery_with
from tests.programs.drive import Drive, Left, Rules, Spot
from tests.support.ranks import Nursery

pytestmark = [
    pytest.mark.job,
    pytest.mark.timeout(300),
    needs_a_gpu,
    pytest.mark.skipif(
        torch.cuda.is_available() and nccl_version() < (2, 30),
        reason="this NCCL allows one rank on a GPU",
    ),
]

PROGRAMS = {"cuda/everyday": "step.taken", "fsdp": "vote.passed", "gan": "optimizer.after"}
"""Where a machine is killed in each."""

NCCL = {
    "TRAINMOVER_COMMUNICATOR": "hierarchical-nccl",
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
}


@pytest.fixture(scope="session")
def nursery(rules: Rules) -> Iterator[Nursery]:
    yield from nursery_with(rules, **NCCL)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_planned_move_changes_no_bit(
    program: str, drive: Drive, undisturbed: Callable[..., Left]
) -> None:
    drive.moved(program, slot=1, at=12).same_as(undisturbed(program))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_crash_and_a_move_change_no_bit(
    program: str, drive: Drive, undisturbed: Callable[..., Left]
) -> None:
    spot = Spot(PROGRAMS[program], 14, 2, steps=12)
    left = drive.killed(program, spots=[spot], then_moves=(1, 33))
    left.same_as(undisturbed(program), killed=2)
