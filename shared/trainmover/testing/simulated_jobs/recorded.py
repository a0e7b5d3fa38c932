"""A simulated job as a recording: what ``trainmover record`` would have written, with labels."""

from __future__ import annotations

from pathlib import Path

from trainmover.detection.recording import Recorder
from trainmover.events.migration import JobFormed
from trainmover.telemetry import Batch
from trainmover.testing.simulated_jobs.cases import label_of
from trainmover.testing.simulated_jobs.injections import Truth
from trainmover.testing.simulated_jobs.job import SimulatedJob

__all__ = ["record_job"]


def record_job(
    job: SimulatedJob, path: Path, *, steps: int, name: str = "simulated"
) -> list[Truth]:
    """Play ``steps`` steps of ``job`` into a recording at ``path``.

    Returns:
        What is wrong in it, as its labels say.

    Raises:
        OSError: The file cannot be written.
    """
    with Recorder(path) as recorder:
        for frame in job.frames(steps=steps):
            if frame.membership is not None:
                recorder.fact(frame.now_s, JobFormed(membership=frame.membership))
            for fact in frame.facts:
                recorder.fact(frame.now_s, fact)
            for one in frame.windows:
                batch = Batch(name, one.machine, 0, one.epoch, one.records, 0, one.more, one.groups)
                recorder.batch(frame.now_s, batch)
        for truth in job.truths:
            recorder.label(label_of(truth))
    return job.truths
