"""What comes into the planner's core, and what it wants done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from trainmover.commands import Command as MachineCommand
from trainmover.events.operator import PolicyChanged, PolicyRefused
from trainmover.job.topology import Frozen
from trainmover.protocol.migration import Migration

__all__ = [
    "Command",
    "Event",
    "Fact",
    "PublishFact",
    "Reply",
    "Request",
    "SaveJob",
    "SaveMigration",
    "SendCommand",
    "Tick",
]


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact from the bus."""

    payload: Frozen
    source: str
    id: str = ""
    trace: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """An operator asks something; it gets exactly one ``Reply``."""

    id: str
    verb: str
    body: bytes
    trace: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = Fact | Request | Tick | PolicyChanged | PolicyRefused


@dataclass(frozen=True, slots=True)
class PublishFact:
    """Publish a fact; ``id`` is the same whenever the same fact is said again."""

    payload: Frozen
    id: str
    trace: Mapping[str, str] = field(default_factory=dict)


class SendCommand(NamedTuple):
    """Queue a command for a machine. A tuple: a recovery makes one for each machine of the job.

    Attributes:
        urgent: Do not wait until the facts before it are stored: ranks stand still.
    """

    machine: str
    command: MachineCommand
    id: str
    urgent: bool = False
    trace: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a request."""

    request: str
    body: Frozen


@dataclass(frozen=True, slots=True)
class SaveMigration:
    """Mirror a migration for readers of the key-value store."""

    migration: Migration


@dataclass(frozen=True, slots=True)
class SaveJob:
    """Mirror the job, as it is when there is time for it, for readers of the key-value store."""


Command = PublishFact | SendCommand | Reply | SaveMigration | SaveJob
