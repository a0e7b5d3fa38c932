"""Everything torch's wrappers call works on the trainmover backend, and agrees with Gloo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.ranks import Nursery, RanksJob

pytestmark = pytest.mark.job

SURFACE = str(Path(__file__).parents[1] / "jobs" / "surface.py")


def results(
    nursery: Nursery, folder: Path, *, slots: int = 4, ranks_per_slot: int = 1
) -> list[dict[str, Any]]:
    folder.mkdir()
    with RanksJob(
        nursery,
        [SURFACE, str(folder)],
        slots=slots,
        ranks_per_slot=ranks_per_slot,
        folder=folder,
    ) as job:
        for rank in job.ranks:
            assert rank.process.wait(timeout_s=60).exit_code == 0
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]


def test_links_agree_with_gloo(nursery: Nursery, tmp_path: Path) -> None:
    """The same program over links and with ``TRAINMOVER_COMMUNICATOR=gloo``."""
    native = Nursery(environment={"TRAINMOVER_COMMUNICATOR": "gloo"})
    try:
        by_gloo = results(native, tmp_path / "gloo")
    finally:
        native.close()
    by_links = results(nursery, tmp_path / "links")

    assert by_links == by_gloo
    assert len(by_links[3]["pipeline"]) == 4  # the microbatches of the last step
    assert by_links[0]["async all_reduce"] == [[1.5, 1.5], True]
    assert by_links[1]["batch_isend_irecv"] == [0.0] * 4
