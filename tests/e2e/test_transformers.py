"""The example for the Trainer of Hugging Face, as docs/howto/frameworks.md starts and moves it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.docs.pages import ROOT
from tests.support.cluster import ClusterJob

pytestmark = [
    pytest.mark.job,
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        find_spec("transformers") is None or find_spec("accelerate") is None,
        reason="Hugging Face transformers is not installed: pip install 'trainmover[transformers]'",
    ),
]

EXAMPLE = str(ROOT / "examples/train_transformers.py")


def test_the_example_is_moved_and_no_bit_changes(
    cluster: Callable[..., ClusterJob],
    undisturbed: Callable[..., ClusterJob],
    tmp_path: Path,
) -> None:
    program = (EXAMPLE, "--epochs", "10", "--output")
    job = cluster("--slots", "2", "--standbys", "2", *program, str(tmp_path / "moved"))
    job.until(r"'eval_loss'")
    job.wait_until_ready(2)
    moved = job.cli("migrate", "node-0", "--yes")
    assert moved.returncode == 0, moved.stderr
    assert job.finish() == 0, job.output
    expected = undisturbed(2, *program, str(tmp_path / "undisturbed"))
    assert len(expected.losses()) == 2
    assert job.losses() == expected.losses()
    assert job.finals() == expected.finals()
