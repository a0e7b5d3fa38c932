"""The example for Hugging Face Accelerate, as docs/howto/frameworks.md starts and moves it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest
from tests.docs.pages import ROOT
from tests.support.cluster import ClusterJob

pytestmark = [
    pytest.mark.job,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        find_spec("accelerate") is None,
        reason="Hugging Face Accelerate is not installed: pip install 'trainmover[accelerate]'",
    ),
]

PROGRAM = (str(ROOT / "examples/train_accelerate.py"), "--epochs", "20")


def test_the_example_is_moved_and_no_bit_changes(
    cluster: Callable[..., ClusterJob], undisturbed: Callable[..., ClusterJob]
) -> None:
    job = cluster("--slots", "2", "--standbys", "1", *PROGRAM)
    job.until(r"epoch 0  accuracy")
    job.wait_until_ready(2)
    moved = job.cli("migrate", "node-1", "--yes")
    assert moved.returncode == 0, moved.stderr
    assert job.finish() == 0, job.output
    expected = undisturbed(2, *PROGRAM)
    assert len(expected.losses()) == 2
    assert job.losses() == expected.losses()
    assert job.finals() == expected.finals()
