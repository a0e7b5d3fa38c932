"""State that arrives damaged costs the joiner a second try, and nobody else anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.conftest import JOBS, Gate, Run, outcome
from tests.support.ranks import Nursery, RanksJob

from trainmover.commands import Recover
from trainmover.events.executor import PlanCommitted, PlanFailed, StepBroken
from trainmover.events.machine import LinkLost
from trainmover_executor.messages.worker import Warmed

pytestmark = pytest.mark.job

PROGRAM = ("ddp", "--steps", "15")


def test_a_damaged_transfer_kills_nobody(
    nursery: Nursery, undisturbed: Callable[..., Run], tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate", 5)
    script = [str(JOBS / "damaged.py"), *PROGRAM, *gate.options]
    with RanksJob(nursery, script, slots=2, folder=tmp_path / "metrics") as job:
        standby, joiner = job.standby("spare", 1)
        standby.expect(Warmed)
        gate.wait_for(1)
        job.ranks[1].process.kill()
        assert job.ranks[0].expect(LinkLost).peer_rank == 1
        gate.open()
        job.ranks[0].expect(StepBroken)

        first = job.recover(1, standby, joiner, source=0)
        failed = standby.expect(PlanFailed)
        assert (failed.migration, failed.links_broke) == (first.id, False)
        assert "damaged" in failed.reason

        again = job.plan("failure", 1, joiner, source=0, epoch=first.epoch + 1)
        for rank in (job.ranks[0], standby):
            rank.tell(Recover(plan=again))
        assert job.ranks[0].expect(PlanCommitted).migration == again.id
        job.took(again, standby)
        assert outcome(job) == undisturbed(*PROGRAM, world=2)
