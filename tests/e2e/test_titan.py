"""The trainer of torchtitan's shape, as docs/howto/frameworks.md starts and moves it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.docs.pages import ROOT
from tests.support.cluster import ClusterJob

pytestmark = [pytest.mark.job, pytest.mark.soak, pytest.mark.timeout(600)]

EXAMPLE = str(ROOT / "examples/train_titan.py")


def _lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _whole(folder: Path) -> set[str]:
    return {found.parent.name for found in folder.glob("step-*/.metadata")}


@pytest.mark.parametrize(("slots", "tp", "steps"), [(2, 1, 400), (4, 2, 120)], ids=["dp", "dp-tp"])
def test_the_example_is_moved_and_broken_and_no_bit_changes(  # noqa: PLR0917 - parameters
    slots: int,
    tp: int,
    steps: int,
    cluster: Callable[..., ClusterJob],
    undisturbed: Callable[..., ClusterJob],
    tmp_path: Path,
) -> None:
    moved, calm = tmp_path / "moved", tmp_path / "calm"
    often = ("--steps", str(steps), "--interval", str(steps // 4))
    program = (EXAMPLE, *often, "--tp", str(tp), "--dump-folder")
    job = cluster("--slots", str(slots), "--standbys", "2", *program, str(moved))
    job.until(r"step:   10")
    job.wait_until_ready(slots)
    took = job.cli("migrate", "node-0", "--yes")
    assert took.returncode == 0, took.stderr
    job.wait_until_followed(1, epoch=2)  # by the joiner
    job.kill("node-1")
    job.until(r"migration\.committed .*node-1 -> ")
    assert job.finish(timeout_s=300) == 0, job.output
    expected = undisturbed(slots, *program, str(calm))
    assert job.finals() == expected.finals()
    assert _lines(moved) == _lines(calm)
    assert len(_lines(calm)) == steps
    assert _whole(moved) == _whole(calm) == {f"step-{n * steps // 4}" for n in (1, 2, 3, 4)}
