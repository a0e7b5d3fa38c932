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


def test_the_example_is_moved_and_broken_and_no_bit_changes(
    cluster: Callable[..., ClusterJob],
    undisturbed: Callable[..., ClusterJob],
    tmp_path: Path,
) -> None:
    program = (EXAMPLE, "--epochs", "4", "--output")
    job = cluster("--slots", "2", "--standbys", "2", *program, str(tmp_path / "moved"))
    job.until(r"'eval_loss'")
    job.wait_until_ready(2)
    moved = job.cli("migrate", "node-0", "--yes")
    assert moved.returncode == 0, moved.stderr
    job.kill("node-1")
    job.until(r"migration\.committed .*node-1 -> ")
    assert job.finish() == 0, job.output
    expected = undisturbed(2, *program, str(tmp_path / "undisturbed"))
    assert len(expected.losses()) == 2
    for disturbed, calm in zip(job.losses(), expected.losses(), strict=True):
        missing = calm.keys() - disturbed.keys()
        assert len(missing) <= 1  # committed by its peer, killed before it could write the line
        assert disturbed == {step: loss for step, loss in calm.items() if step not in missing}
    assert job.finals() == expected.finals()
