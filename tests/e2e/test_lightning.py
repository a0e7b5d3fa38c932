"""The example for Lightning, as docs/howto/frameworks.md starts and moves it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tests.docs.pages import ROOT
from tests.support.cluster import ClusterJob

pytestmark = [
    pytest.mark.job,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        find_spec("lightning") is None,
        reason="Lightning is not installed: pip install 'trainmover[lightning]'",
    ),
]

PROGRAM = (str(ROOT / "examples/train_lightning.py"), "--epochs", "8", "--folder")


def test_the_example_is_moved_and_no_bit_changes(
    cluster: Callable[..., ClusterJob],
    undisturbed: Callable[..., ClusterJob],
    tmp_path: Path,
) -> None:
    job = cluster("--slots", "2", "--standbys", "1", *PROGRAM, str(tmp_path / "moved"))
    job.until("Trainable params")
    job.wait_until_ready(2)
    moved = job.cli("migrate", "node-1", "--yes")
    assert moved.returncode == 0, moved.stderr
    assert job.finish() == 0, job.output
    expected = undisturbed(2, *PROGRAM, str(tmp_path / "undisturbed"))
    assert len(expected.losses()) == 2
    assert job.losses() == expected.losses()
    logs = [tmp_path / name / "lightning_logs/version_0" for name in ("moved", "undisturbed")]
    mine, theirs = (folder / "metrics.csv" for folder in logs)
    assert mine.read_text() == theirs.read_text()
    (saved,), (best,) = ([*(folder / "checkpoints").iterdir()] for folder in logs)
    assert saved.name == best.name
    weights, expected_weights = (
        torch.load(each, weights_only=False)["state_dict"] for each in (saved, best)
    )
    assert weights.keys() == expected_weights.keys()
    assert all(torch.equal(weights[name], expected_weights[name]) for name in weights)
