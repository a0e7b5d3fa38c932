"""Every subject, stream and bucket name on the bus, built and validated in one place."""

from __future__ import annotations

import re
from typing import Final

from trainmover.errors import InvalidIdError

__all__ = [
    "COMMAND_STREAM",
    "DEAD_LETTER",
    "EVENT_STREAM",
    "command",
    "commands",
    "departure",
    "departures",
    "event",
    "events",
    "everything",
    "request",
    "requests",
    "telemetry",
    "telemetry_all",
    "validate_id",
    "validate_key",
]

EVENT_STREAM: Final = "TM_EVENTS"
COMMAND_STREAM: Final = "TM_COMMANDS"
DEAD_LETTER: Final = "tm.v1.dead"

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEY = re.compile(r"[A-Za-z0-9_=-]+([./][A-Za-z0-9_=-]+)*")


def validate_id(value: str, *, what: str) -> str:
    """Return ``value`` unchanged when it can be one token of a subject.

    Args:
        value: The name to check.
        what: What the name is for, used in the error ("job", "machine", ...).

    Raises:
        InvalidIdError: ``value`` is empty, too long, or holds anything but letters, digits,
            ``-`` and ``_``.
    """
    if not _ID.fullmatch(value):
        raise InvalidIdError(
            f"{what} name {value!r} cannot be used: 1 to 64 letters, digits, '-' or '_' only. "
            f"Rename the {what}."
        )
    return value


def validate_key(value: str) -> str:
    """Return ``value`` unchanged when it can be a key of a bucket.

    Raises:
        InvalidIdError: ``value`` is empty or holds anything but letters, digits, ``- _ =`` and
            single ``.`` or ``/`` in between.
    """
    if not _KEY.fullmatch(value):
        raise InvalidIdError(
            f"key {value!r} cannot be used: letters, digits, '-', '_', '=', with '.' or '/' "
            "between them. Rename it."
        )
    return value


def event(job: str, *, entity: str, fact: str, machine: str | None = None) -> str:
    """Subject of a fact.

    Args:
        job: Job name.
        entity: What the fact is about.
        fact: What happened.
        machine: The machine that says it, for facts of machines: its name is the last token, so
            that the server can hold each machine to its own.

    Returns:
        For example ``tm.v1.demo.migration.committed`` or ``tm.v1.demo.machine.ready.node-4``.
    """
    subject = f"tm.v1.{validate_id(job, what='job')}.{entity}.{fact}"
    return subject if machine is None else f"{subject}.{validate_id(machine, what='machine')}"


def events(job: str, *, entity: str = "*", fact: str = "*") -> str:
    """Pattern over facts of a job that are not said by a machine."""
    return f"tm.v1.{_job_or_all(job)}.{entity}.{fact}"


def everything(job: str) -> str:
    """Pattern over all subjects of a job."""
    return f"tm.v1.{_job_or_all(job)}.>"


def _job_or_all(job: str) -> str:
    return job if job == "*" else validate_id(job, what="job")


def command(job: str, machine: str) -> str:
    """Subject of the work queue of one machine's agent."""
    return f"tm.v1.{validate_id(job, what='job')}.cmd.{validate_id(machine, what='machine')}"


def commands(job: str) -> str:
    """Pattern over all command queues of a job."""
    return f"tm.v1.{validate_id(job, what='job')}.cmd.*"


def telemetry(job: str, machine: str) -> str:
    """Subject of one machine's telemetry (core NATS, never stored)."""
    return f"tm.v1.{validate_id(job, what='job')}.telemetry.{validate_id(machine, what='machine')}"


def telemetry_all(job: str) -> str:
    """Pattern over the telemetry of a job."""
    return f"tm.v1.{validate_id(job, what='job')}.telemetry.*"


def request(job: str, verb: str) -> str:
    """Subject on which the planner answers one kind of operator request."""
    return f"tm.v1.{validate_id(job, what='job')}.request.{validate_id(verb, what='request')}"


def departure(job: str, machine: str) -> str:
    """Subject on which one machine asks to be replaced, and which nobody else may use."""
    return f"tm.v1.{validate_id(job, what='job')}.departure.{validate_id(machine, what='machine')}"


def departures(job: str) -> str:
    """Pattern over all machines' requests to be replaced."""
    return f"tm.v1.{validate_id(job, what='job')}.departure.*"


def requests(job: str) -> str:
    """Pattern over all operator requests of a job."""
    return f"tm.v1.{validate_id(job, what='job')}.request.*"
