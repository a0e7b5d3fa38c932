"""What an operator may choose for moments when machines or programs fail, or are slow."""

from __future__ import annotations

from typing import Literal

__all__ = ["AutomationMode", "OnWorkerCrash", "WhenExhausted"]

AutomationMode = Literal["automatic", "approval", "paused"]
"""What the planner does about a straggler: move it, propose to move it, or nothing.

Machines that died are replaced in every mode: a job that waits for a person helps nobody.
"""

WhenExhausted = Literal["hold", "checkpoint", "fail"]
"""When no machine is left for a slot: wait for one without end, or end the job after a while, with
a checkpoint of the survivors or without."""

OnWorkerCrash = Literal["standby", "restart"]
"""Who takes the slot of a machine whose program crashed: a standby, or the machine started over."""
