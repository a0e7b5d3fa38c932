"""Facts about what operators steered, and about what their launcher did for them.

What was steered is published by the planner, which took the request up.
"""

from __future__ import annotations

from typing import Literal

from trainmover.job.topology import Frozen

__all__ = ["AutomationChanged", "AutomationMode", "MachineUnquarantined", "ServiceRestarted"]

AutomationMode = Literal["automatic", "approval", "paused"]
"""What the planner does about a straggler: move it, propose to move it, or nothing.

Machines that died are replaced in every mode: a job that waits for a person helps nobody.
"""


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
