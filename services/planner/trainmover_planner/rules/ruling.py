"""What the rules of a policy say about an incident: act, wait or ignore, and since when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from trainmover.events.incident import IncidentOpened
from trainmover.events.operator import AutomationMode
from trainmover.policy.hours import window
from trainmover.policy.model import DEATH, Decision, Policy, Rule
from trainmover_planner.state.state import State
from trainmover_planner.state.transition import Transition

__all__ = [
    "HOUR_S",
    "Ruling",
    "bounded",
    "judge",
    "labels_of",
    "note_closed",
    "note_opened",
    "obstacle",
    "rule_of",
    "turns_s",
]

HOUR_S: Final = 3_600.0

_LATELY: Final = 512
"""Incidents that closed are known until so many others did."""

_DEFAULT: Final = Rule(name="", then="act")
"""What holds where no rule matches."""

_MOST: Final[Mapping[AutomationMode, Decision]] = {
    "automatic": "act",
    "approval": "wait",
    "paused": "ignore",
}
_STRICTER: Final[tuple[Decision, ...]] = ("act", "wait", "ignore")


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a policy says about an incident now.

    Attributes:
        decision: What is to be done once the incident is ripe.
        rule: The rule that says so; its name is empty where none matched.
        voters: Detectors that find something wrong with the machine, and count for the rule.
        since_s: Since when the incident counts as open, in seconds.
        ripe_s: When it will have been open for as long as the rule asks.
        ripe: Whether it has been, and enough detectors agree.
    """

    decision: Decision
    rule: Rule
    voters: tuple[str, ...]
    since_s: float
    ripe_s: float
    ripe: bool


def judge(
    state: State, incident: IncidentOpened, now_s: float, *, policy: Policy | None = None
) -> Ruling:
    """What the policy in force, or ``policy``, says about an open incident at ``now_s``."""
    rule = rule_of(policy or state.policy, incident, labels_of(state, incident.machine), now_s)
    since_s = state.lately.opened.get(incident.id, now_s)
    ripe_s = since_s + rule.dwell_s
    voters = _voters(state, incident, rule)
    ripe = len(voters) >= rule.votes and now_s >= ripe_s
    return Ruling(rule.then, rule, voters, since_s, ripe_s, ripe)


def bounded(decision: Decision, mode: AutomationMode) -> Decision:
    """What a rule decides, or what the mode of automation allows at most."""
    return _STRICTER[max(_STRICTER.index(decision), _STRICTER.index(_MOST[mode]))]


def rule_of(
    policy: Policy, incident: IncidentOpened, labels: Mapping[str, str], at_s: float
) -> Rule:
    """The first rule that matches; one that acts where none does, and where a machine is dead."""
    if incident.kind == DEATH:
        return _DEFAULT
    matching = (rule for rule in policy.rules if not obstacle(rule, incident, labels, at_s))
    return next(matching, _DEFAULT)


def obstacle(rule: Rule, incident: IncidentOpened, labels: Mapping[str, str], at_s: float) -> str:
    """Why a rule does not match, in words; empty where it does."""
    if rule.kind and incident.kind not in rule.kind:
        return f"the kind is {incident.kind}"
    if rule.detector and incident.detector not in rule.detector:
        return f"the detector is {incident.detector}"
    for name, values in rule.labels.items():
        if labels.get(name) not in values:
            return f"the machine's {name} is {labels.get(name, 'not known')}"
    if rule.hours and not any(window(text).holds(at_s) for text in rule.hours):
        return "it is another time of the week"
    return ""


def labels_of(state: State, machine: str | None) -> Mapping[str, str]:
    """The labels of a machine; none where it is not known."""
    host = None if machine is None else state.inventory.get(machine)
    return {} if host is None else host.machine.labels


def turns_s(state: State, now_s: float) -> list[float]:
    """When what policy says about an open incident may change although nothing happens."""
    rules = [*state.policy.rules]
    if state.declared.shadow is not None:
        rules += state.declared.shadow.rules
    times = [window(text).changes_s(now_s) for rule in rules for text in rule.hours]
    dwells = {rule.dwell_s for rule in rules if rule.dwell_s}
    times += [since_s + dwell for since_s in state.lately.opened.values() for dwell in dwells]
    if state.policy.moves_per_hour is not None or state.policy.moves_per_hour_by:
        times += [moved.at_s + HOUR_S for moved in state.lately.moved]
    if state.policy.rebalance is not None:
        every_s = state.policy.rebalance.every_s
        times += [one.at_s + every_s for one in state.lately.exchanged]
    return times


def note_opened(transition: Transition, incident: IncidentOpened) -> None:
    """Since when an incident counts as open: now, or as long as one that closed a moment ago."""
    state, now_s = transition.state, transition.now_s
    if incident.id in state.lately.opened or incident.machine is None:
        return
    rule = rule_of(state.policy, incident, labels_of(state, incident.machine), now_s)
    before = state.lately.closed.get((incident.machine, incident.kind))
    goes_on = before is not None and now_s < before[1] + rule.settle_s
    opened = state.lately.opened.put(incident.id, before[0] if goes_on else now_s)
    transition.note(lately=replace(state.lately, opened=opened))


def note_closed(transition: Transition, id: str) -> None:
    """Remember an incident that closed, where a rule wants to know."""
    state, now_s = transition.state, transition.now_s
    incident, since_s = state.incidents.get(id), state.lately.opened.get(id)
    if incident is None or since_s is None:
        return
    closed = state.lately.closed
    rule = rule_of(state.policy, incident, labels_of(state, incident.machine), now_s)
    if rule.settle_s:
        key = (incident.machine, incident.kind)
        closed = closed.drop(key).put(key, (since_s, now_s))
        if len(closed) > _LATELY:
            closed = closed.drop(next(iter(closed)))
    opened, late = state.lately.opened.drop(id), state.lately.late.drop(id)
    transition.note(lately=replace(state.lately, opened=opened, closed=closed, late=late))


def _voters(state: State, incident: IncidentOpened, rule: Rule) -> tuple[str, ...]:
    if rule.votes == 1:
        return (incident.detector,)
    found = {
        one.detector
        for one in state.incidents.values()
        if one.machine == incident.machine
        and one.epoch == incident.epoch
        and one.mode == "active"
        and one.advice != "none"
        and (not rule.detector or one.detector in rule.detector)
    }
    return tuple(sorted(found | {incident.detector}))
