"""Which findings of detectors end a machine: evidence of death does, anything else within limits.

A machine that is treated as dead is fenced, in every mode of automation, and a standby is used up.
That a process ended or a machine is silent is evidence; that something is wrong with it is an
opinion, and a detector that is wrong about one machine may be wrong about all of them.
"""

from __future__ import annotations

from trainmover.events.incident import IncidentOpened
from trainmover_planner.state.state import State

__all__ = ["HOUR_S", "is_death", "recommends_end", "refusal"]

HOUR_S = 3_600.0


def is_death(incident: IncidentOpened) -> bool:
    """Whether it is evidence that a machine is dead."""
    return incident.kind == "machine_failed"


def recommends_end(incident: IncidentOpened) -> bool:
    """Whether a detector that may act asks that its machine be treated as dead."""
    wanted = is_death(incident) or incident.advice == "recover"
    return wanted and incident.mode == "active" and bool(incident.machine)


def refusal(state: State, incident: IncidentOpened, now_s: float) -> tuple[str, str]:
    """Why a finding that a machine should end is not enough: a code, and words; empty when it is.

    Args:
        state: The planner's state; the incident is one of the open ones.
        incident: The finding.
        now_s: The time in seconds.
    """
    settings = state.settings
    if is_death(incident):
        return "", ""
    if incident.confidence < settings.fence_confidence:
        return "unsure", (
            f"the finding is {incident.confidence:.0%} sure; "
            f"{settings.fence_confidence:.0%} is asked"
        )
    voters = {
        one.detector
        for one in state.incidents.values()
        if one.machine == incident.machine and one.epoch == incident.epoch and recommends_end(one)
    }
    if len(voters) < settings.fence_votes:
        return "too_few_detectors", (
            f"{len(voters)} detectors say so; {settings.fence_votes} are asked"
        )
    lately = sum(at_s > now_s - HOUR_S for at_s in state.fenced)
    if lately >= settings.fence_budget:
        return "fence_budget", f"{lately} machines were ended on such findings within an hour"
    return "", ""
