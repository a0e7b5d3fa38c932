"""Runtime files: how ``trainmover status`` in a second terminal finds a job of this host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, ValidationError

from trainmover.errors import ConfigError
from trainmover.job.topology import Frozen
from trainmover.runtime import procfs
from trainmover.security.secret import home, secret_of
from trainmover.subjects import validate_id

__all__ = ["JobRecord", "find", "jobs", "remove", "write"]


class JobRecord(Frozen):
    """One running local job.

    Attributes:
        job: Job name.
        nats: URL of its bus.
        pid: Process id of the supervisor.
        start_ticks: Start of the supervisor, to tell it from a later process with its pid.
        log_dir: Where services and machines log.
        processes: Process id of each service and machine agent by name.
        clients: Folder with a folder of credentials for each role, on a secured bus.
    """

    job: str
    nats: str
    pid: int
    start_ticks: int
    log_dir: str
    processes: Mapping[str, int] = Field(default_factory=dict)
    clients: str = ""

    @property
    def alive(self) -> bool:
        """Whether the supervisor that wrote the record still runs."""
        return procfs.same_process(self.pid, self.start_ticks)


def _file(job: str) -> Path:
    return home() / "jobs" / f"{validate_id(job, what='job')}.json"


def write(record: JobRecord) -> None:
    """Write or replace the record of a job, atomically.

    Raises:
        ConfigError: Another live supervisor already runs a job of this name.
    """
    target = _file(record.job)
    target.parent.mkdir(parents=True, exist_ok=True)
    other = _read(target)
    if other is not None and other.alive and other.pid != record.pid:
        raise ConfigError(
            f"a job named {record.job!r} already runs here (supervisor pid {other.pid}). "
            "Choose another name with --job, or end that one first."
        )
    draft = target.with_suffix(f".{os.getpid()}.tmp")
    draft.touch(mode=0o600)  # the URL of the bus may have a password
    draft.write_text(record.model_dump_json(indent=2), encoding="utf-8")
    draft.replace(target)


def remove(record: JobRecord) -> None:
    """Remove the record and the job's secret, unless they are another supervisor's by now."""
    target = _file(record.job)
    found = _read(target)
    if found is not None and found.pid == record.pid:
        target.unlink(missing_ok=True)
        secret_of(record.job).unlink(missing_ok=True)


def jobs() -> list[JobRecord]:
    """Records of all jobs that run here, by name; stale files are removed on the way."""
    live = []
    for file in sorted((home() / "jobs").glob("*.json")):
        record = _read(file)
        if record is not None and record.alive:
            live.append(record)
        else:
            file.unlink(missing_ok=True)
    return live


def find(job: str | None) -> JobRecord:
    """The record of ``job``, or of the only job that runs here.

    Raises:
        ConfigError: There is no such job, or there are several and none was named.
    """
    live = jobs()
    if job is not None:
        for record in live:
            if record.job == job:
                return record
        names = ", ".join(record.job for record in live) or "none"
        raise ConfigError(
            f"no job named {job!r} runs on this host (running: {names}). For a job elsewhere, "
            "pass --nats URL as well."
        )
    if not live:
        raise ConfigError(
            "no job runs on this host. Start one with 'trainmover run', or name a job elsewhere "
            "with --job NAME --nats URL."
        )
    if len(live) > 1:
        names = ", ".join(record.job for record in live)
        raise ConfigError(f"several jobs run on this host: {names}. Pick one with --job NAME.")
    return live[0]


def _read(file: Path) -> JobRecord | None:
    try:
        return JobRecord.model_validate_json(file.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
