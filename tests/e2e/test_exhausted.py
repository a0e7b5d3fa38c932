"""No machine is left: the job ends with a checkpoint and an exit code, and goes on from it."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tests.jobs
from tests.docs.pages import ROOT, fences
from tests.support.cluster import ClusterJob

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]

PROGRAM = str(Path(tests.jobs.__path__[0]) / "resumable.py")
PAGE = ROOT / "docs/howto/checkpoint.md"


def digest(job: ClusterJob) -> tuple[int, str]:
    (found,) = re.findall(r"resumed at (\d+) final ([0-9a-f]{64})", job.output)
    return int(found[0]), found[1]


def test_a_job_without_machines_saves_and_goes_on_later(
    cluster: Callable[..., ClusterJob],
    undisturbed: Callable[..., ClusterJob],
    tmp_path: Path,
) -> None:
    gate, folder = tmp_path / "gate", tmp_path / "checkpoint"
    folder.mkdir()
    program = (PROGRAM, "--steps", "30", "--folder", str(folder))
    policy = ("--when-exhausted", "checkpoint", "--exhausted-after", "0.5")
    job = cluster("--nnodes", "2", *policy, *program, "--hold-at", "10", "--gate", str(gate))
    job.until(r"holds at 10")
    job.kill("node-1")
    gate.touch()
    assert job.finish() == 75, job.output
    saved = re.search(rf"{folder}/rank0.pt \(step (\d+)\)", job.output)
    assert saved is not None, job.output

    resumed = undisturbed(2, *program, "--resume")
    expected = undisturbed(2, *program)
    assert digest(resumed) == (int(saved[1]), digest(expected)[1])


GATED = """
    while step.index == 50 and not Path("{gate}").exists():
        pass
"""


@pytest.mark.soak  # the normal run saves and resumes sharded state in tests/programs
def test_a_sharded_job_without_machines_goes_on_from_what_it_saved(
    cluster: Callable[..., ClusterJob],
    undisturbed: Callable[..., ClusterJob],
    tmp_path: Path,
) -> None:
    """The program of docs/howto/checkpoint.md, with FSDP2 and asynchronous saves."""
    gate, folder = tmp_path / "gate", tmp_path / "checkpoints"
    (text,) = (text for language, text in fences(PAGE) if language == "python")
    text = text.replace("STEPS, EVERY = 200, 20", "STEPS, EVERY = 80, 20")
    program = tmp_path / "train.py"
    program.write_text(text.replace('"checkpoints"', repr(str(folder))) + GATED.format(gate=gate))
    policy = ("--when-exhausted", "fail", "--exhausted-after", "0.5")
    job = cluster("--nnodes", "2", *policy, str(program))
    deadline = time.monotonic() + 120
    while not (folder / "40/.metadata").exists():
        assert time.monotonic() < deadline, job.output
        time.sleep(0.05)
    job.kill("node-1")
    gate.touch()
    assert job.finish() == 75, job.output

    resumed = undisturbed(2, str(program))
    assert min(resumed.losses()[0]) == 40
    shutil.rmtree(folder)
    expected = undisturbed(2, str(program))
    assert resumed.finals() == expected.finals()
    for mine, all_steps in zip(resumed.losses(), expected.losses(), strict=True):
        assert mine == {step: loss for step, loss in all_steps.items() if step >= 40}
