"""A bus that is stopped in the middle of a failover: late, and no bit different."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from tests.chaos.run import Expected, HeldJob, undisturbed


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    return undisturbed(tmp_path_factory.mktemp("undisturbed") / "home")


@pytest.mark.chaos
@pytest.mark.job
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("moment", "pause_s"),
    [
        (r"migration\.approved", 4.0),
        pytest.param(r"incident\.opened", 4.0, marks=pytest.mark.soak),
        pytest.param(r"migration\.preparing", 15.0, marks=pytest.mark.soak),
        pytest.param(r"migration\.switching", 15.0, marks=pytest.mark.soak),
    ],
)
def test_a_bus_that_stops_in_the_middle_of_a_failover_changes_no_bit(
    moment: str, pause_s: float, tmp_path: Path, expected: Expected
) -> None:
    with HeldJob(tmp_path / "home") as job:
        job.warm_up()
        bus = job.runtime()["processes"]["bus"]
        job.go_on()
        job.kill("node-1")
        job.until(moment)
        os.kill(bus, signal.SIGSTOP)
        try:
            threading.Event().wait(pause_s)
        finally:
            os.kill(bus, signal.SIGCONT)
        assert job.finish(timeout_s=200) == 0, job.output
        assert "migration.committed" in job.output
        finals, losses = expected
        assert job.finals() == finals
        for disturbed, straight in zip(job.losses(), losses, strict=True):
            missing = straight.keys() - disturbed.keys()
            assert len(missing) <= 2, missing  # committed by its peers, killed before it wrote
            assert disturbed == {step: straight[step] for step in straight if step not in missing}
