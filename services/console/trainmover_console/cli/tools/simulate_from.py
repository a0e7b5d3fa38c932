"""Where ``trainmover simulate`` gets a job from: a recording, or the bus."""

from __future__ import annotations

from pathlib import Path

from trainmover.bus.facts import history
from trainmover.detection.evaluation.recording import read
from trainmover.errors import ConfigError
from trainmover.job.topology import Frozen
from trainmover_console.cli.connect import Target, connect
from trainmover_simulator.jobs.observed import Run, observe

__all__ = ["observed"]


async def observed(*, recording: Path | None, job: str | None, nats: str | None) -> Run | None:
    """The job that was named; None where none was.

    Args:
        recording: What ``trainmover job record`` wrote.
        job: A job's name.
        nats: Where its bus is; found by its name when None.

    Raises:
        ConfigError: Both were named, or the job did not form.
        BusError: Its bus cannot be read.
    """
    if recording is not None and job is not None:
        raise ConfigError("--from and --from-job name two jobs: leave one of them out.")
    if recording is not None:
        entries = read(recording)
        return observe((one.said_s, one.what) for one in entries if isinstance(one.what, Frozen))
    if job is None:
        return None
    target = Target.find(job, nats)
    async with connect(target) as bus:
        facts = await history(bus, target.job)
    return observe((event.time.timestamp(), event.payload) for event in facts)
