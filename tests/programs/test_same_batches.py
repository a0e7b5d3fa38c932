"""A standby that would be given other data than its rank says so, before anything happens."""

from __future__ import annotations

import pytest
from tests.programs.drive import Drive

from trainmover.events.machine import MachineDataDiffers
from trainmover_executor.messages.worker import Warmed

pytestmark = pytest.mark.job


def test_a_data_set_that_reads_on_in_a_file_is_noticed(drive: Drive) -> None:
    with drive.job("reads_on", "reads", "0") as job:
        standby, _ = job.standby("spare", 1)
        standby.expect(Warmed)
        said = standby.expect(MachineDataDiffers)
        assert said.rank == 1
        assert said.slot == 1
        assert said.loader == "DataLoader over Records"
        assert "reads_on.py:" in said.where
        assert "another one than that of the rank" in said.what
        (job.folder / "enough").touch()
        for rank in job.ranks:
            rank.process.wait(timeout_s=120)
    said_again = [each for each in standby.seen if isinstance(each, MachineDataDiffers)]
    assert said_again == [said]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_one_that_goes_to_the_item_is_the_same(drive: Drive, workers: str) -> None:
    with drive.job("reads_on", "seeks", workers) as job:
        standby, _ = job.standby("spare", 1)
        standby.expect(Warmed)
        drive.left(job)  # looks for that
