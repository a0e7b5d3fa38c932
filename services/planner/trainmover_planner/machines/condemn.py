"""Which findings of detectors end a machine: evidence of death does, anything else within limits.

A machine that is treated as dead is fenced, in every mode of automation, and a standby is used up.
That a process ended or a machine is silent is evidence; that something is wrong with it is an
opinion, and a detector that is wrong about one machine may be wrong about all of them.
"""

from __future__ import annotations

from typing import Final

from trainmover.events.incident import IncidentOpened
from trainmover_planner.rules.ruling import HOUR_S, judge
from trainmover_planner.state.state import State

__all__ = ["BUDGET", "TOO_FEW", "is_death", "recommends_end", "refusal"]

TOO_FEW: Final = "too_few_detectors"
"""Code of a refusal because too few detectors agree."""

BUDGET: Final = "fence_budget"
"""Code of a refusal because so many machines were ended on opinions within an hour."""


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
    if is_death(incident):
        return "", ""
    return _declared(state, incident, now_s) or _unproven(state, incident, now_s) or ("", "")


def _declared(state: State, incident: IncidentOpened, now_s: float) -> tuple[str, str] | None:
    """What a rule has against it."""
    said = judge(state, incident, now_s)
    name = said.rule.name
    if said.decision == "ignore":
        return "ignored", f"{name} says so"
    if said.decision == "wait":
        return "left_to_operator", f"{name} leaves it to a person"
    if now_s < said.ripe_s:
        return "too_soon", f"{name} waits for {said.rule.dwell_s:g} s"
    if not said.ripe:
        return TOO_FEW, f"{len(said.voters)} detectors say so; {name} asks for {said.rule.votes}"
    return None


def _unproven(state: State, incident: IncidentOpened, now_s: float) -> tuple[str, str] | None:
    """How the finding itself falls short."""
    policy = state.policy
    if incident.confidence < policy.fence_confidence:
        return "unsure", (
            f"the finding is {incident.confidence:.0%} sure; {policy.fence_confidence:.0%} is asked"
        )
    voters = {
        one.detector
        for one in state.incidents.values()
        if one.machine == incident.machine and one.epoch == incident.epoch and recommends_end(one)
    }
    if len(voters) < policy.fence_votes:
        return TOO_FEW, f"{len(voters)} detectors say so; {policy.fence_votes} are asked"
    lately = sum(at_s > now_s - HOUR_S for at_s in state.fenced)
    if lately >= policy.fence_budget:
        return BUDGET, f"{lately} machines were ended on such findings within an hour"
    return None
