"""Programs that look at what collectives return get warm, and are moved like others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.conftest import outcome
from tests.support.ranks import Nursery, RanksJob

from trainmover.events.executor import PlanCommitted, StepProgress
from trainmover_executor.messages.worker import Warmed

pytestmark = pytest.mark.job

PROGRAM = str(Path(__file__).parents[1] / "programs" / "checks_results.py")


def test_a_program_that_checks_results_is_moved_without_changing_a_bit(
    nursery: Nursery, tmp_path: Path
) -> None:
    later = tmp_path / "later"
    command = [PROGRAM, "--later", str(later)]
    with RanksJob(nursery, command, slots=4, folder=tmp_path / "moved") as job:
        early, joiner = job.standby("early", 1)
        early.expect(Warmed)  # it heard the first step as it was taken
        saved = later.with_suffix(".pt")
        while job.ranks[2].expect(StepProgress).step < 1:
            pass
        saved.unlink()
        late, _ = job.standby("late", 2)
        late.expect(Warmed)  # long after
        assert not saved.exists(), "a shadow saved"
        later.touch()
        plan = job.move(1, early, joiner)
        for rank in (0, 2, 3):
            job.ranks[rank].expect(PlanCommitted)
        job.ranks[1].process.kill()
        job.took(plan, early)
        moved = outcome(job)
    with RanksJob(nursery, command, slots=4, folder=tmp_path / "straight") as job:
        assert outcome(job) == moved
