"""Facts about what operators steered, and about what their launcher did for them.

What was steered is published by the planner, which took the request up.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainmover.job.policies import AutomationMode
from trainmover.job.topology import Frozen
from trainmover.policy.model import Decision, Policy

__all__ = [
    "AutomationChanged",
    "AutomationMode",
    "DrainChanged",
    "DrainEnded",
    "DrainStarted",
    "MachineUnquarantined",
    "PolicyChanged",
    "PolicyCompared",
    "PolicyRefused",
    "ServiceRestarted",
]


class AutomationChanged(Frozen):
    """An operator paused or resumed automatic moves, or wants to be asked before each."""

    mode: AutomationMode
    reason: str
    requested_by: str


class MachineUnquarantined(Frozen):
    """An operator let a machine out of quarantine: it may be used again.

    Attributes:
        ready_slots: Slots it can take at once; empty when its agent was stopped and has to be
            started again.
    """

    machine: str
    reason: str
    requested_by: str
    ready_slots: tuple[int, ...] = ()


class DrainStarted(Frozen):
    """An operator wants machines out of their slots, wave after wave, and kept out.

    Attributes:
        deadline_at_s: By when, in seconds since 1970; None: whenever.
        forecast: What was to be expected then, in words for people; a deadline that cannot be held
            is said.
    """

    drain: str
    machines: tuple[str, ...] = Field(min_length=1)
    deadline_at_s: float | None = None
    forecast: str = ""
    reason: str
    requested_by: str


class DrainChanged(Frozen):
    """An operator paused a drain, or let it go on; a wave under way goes on in either case."""

    drain: str
    paused: bool
    reason: str
    requested_by: str


class DrainEnded(Frozen):
    """A drain is over.

    Attributes:
        left: Machines that still hold a slot; none unless it was aborted.
    """

    drain: str
    outcome: Literal["finished", "aborted"]
    left: tuple[str, ...] = ()
    reason: str = ""
    requested_by: str


class PolicyChanged(Frozen):
    """A policy is in force from here on: a planner started with it, or its file was changed.

    Attributes:
        policy: The whole policy, what the command line says included.
        source: Where it is from: a file, or ``command line``.
        shadow: The policy that only says what it would do; None where there is none.
        shadow_source: Its file.
    """

    policy: Policy
    source: str
    shadow: Policy | None = None
    shadow_source: str = ""


class PolicyRefused(Frozen):
    """A policy file cannot be used; what was in force stays in force.

    Attributes:
        source: The file.
        problems: All that is wrong, with line and cure.
    """

    source: str
    problems: tuple[str, ...] = Field(min_length=1)


class PolicyCompared(Frozen):
    """What the shadow policy would do about an incident; it moves nobody.

    Attributes:
        incident: The incident's id.
        machine: The machine that it is about.
        decision: What the policy in force decides.
        would: What the shadow policy would decide.
        rule: The shadow policy's rule; empty where none matches.
        why: In one sentence, with numbers.
    """

    incident: str
    machine: str
    decision: Decision
    would: Decision
    rule: str
    why: str


class ServiceRestarted(Frozen):
    """A launcher started the bus or a service again, because it had ended.

    Attributes:
        service: ``bus``, ``planner`` or ``detector``.
        reason: How it had ended.
        starts: How often it has been started by now.
    """

    service: str
    reason: str
    starts: int
