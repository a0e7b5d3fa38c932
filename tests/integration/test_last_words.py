"""What a rank noted last is heard, however it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.ranks import Nursery, RanksJob

from trainmover.events.executor import StepProgress

pytestmark = pytest.mark.job

PROGRAM = str(Path(__file__).parents[1] / "jobs" / "last_words.py")


def test_a_program_that_fails_is_heard_to_the_end(nursery: Nursery, tmp_path: Path) -> None:
    with RanksJob(nursery, [PROGRAM], slots=2, folder=tmp_path) as job:
        for rank in job.ranks:
            for step in range(100):
                assert rank.expect(StepProgress, timeout_s=20).step == step
            assert rank.process.wait(timeout_s=10).exit_code == 3
