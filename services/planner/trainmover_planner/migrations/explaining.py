"""What policy and its shadow make of an open incident, with the numbers; it changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from trainmover.errors import RequestRefusedError
from trainmover.events.incident import IncidentOpened
from trainmover.events.operator import PolicyCompared
from trainmover.policy.model import SLOWEST, Decision, Policy
from trainmover.protocol.requests import (
    Check,
    Considered,
    Explanation,
    PolicyRequest,
    PolicyStatus,
)
from trainmover_planner.machines import condemn
from trainmover_planner.machines.assignment import standbys
from trainmover_planner.migrations.policy import OPERATOR_REJECTED, advises_move, stale
from trainmover_planner.rules import rebalance
from trainmover_planner.rules.budget import spent
from trainmover_planner.rules.declaring import COMMAND_LINE
from trainmover_planner.rules.ruling import Ruling, bounded, judge, labels_of, obstacle
from trainmover_planner.rules.worth import foresee
from trainmover_planner.state.effects import Request
from trainmover_planner.state.state import State
from trainmover_planner.state.transition import Transition

__all__ = ["compare", "policy", "remember"]


def policy(transition: Transition, request: Request) -> PolicyStatus:
    """Verb ``policy``."""
    wish = PolicyRequest.model_validate_json(request.body)
    state = transition.state
    explanation = None
    if wish.incident is not None:
        incident = state.incidents.get(wish.incident)
        if incident is None:
            raise RequestRefusedError(
                f"There is no open incident {wish.incident!r}.",
                code="unknown_incident",
                next_step=f"Open are: {', '.join(state.incidents) or 'none'}.",
            )
        explanation = _explain(state, incident, transition.now_s)
    return PolicyStatus(
        policy=state.policy,
        source=state.declared.source or COMMAND_LINE,
        shadow=state.declared.shadow,
        shadow_source=state.declared.shadow_source,
        problems=state.declared.problems,
        explanation=explanation,
    )


def compare(transition: Transition) -> None:
    """Say once of each incident what the shadow policy would do about it."""
    state, shadow = transition.state, transition.state.declared.shadow
    if shadow is None or state.phase != "running":
        return
    for incident in state.incidents.values():
        if not _matters(incident) or stale(state, incident):
            continue
        said = judge(state, incident, transition.now_s, policy=shadow)
        would = _decision(incident, said, shadow)
        if not said.ripe or (incident.id, _said(would)) in transition.state.said:
            continue
        transition.put("said", (incident.id, _said(would)), None)
        fact = PolicyCompared(
            incident=incident.id,
            machine=incident.machine or "",
            decision=_now(state, incident, judge(state, incident, transition.now_s)),
            would=would,
            rule=said.rule.name,
            why="; ".join(check.words for check in _ripeness(said, transition.now_s)),
        )
        transition.publish(fact, id=f"policy.compared.{incident.id}.{would}")


def remember(transition: Transition, fact: PolicyCompared) -> None:
    """An earlier planner said it."""
    transition.put("said", (fact.incident, _said(fact.would)), None)


def _said(would: Decision) -> str:
    return f"shadow_{would}"


def _explain(state: State, incident: IncidentOpened, now_s: float) -> Explanation:
    said = judge(state, incident, now_s)
    shadow = state.declared.shadow
    would = None if shadow is None else judge(state, incident, now_s, policy=shadow)
    return Explanation(
        incident=incident.id,
        machine=incident.machine or "",
        summary=incident.summary,
        decision=_now(state, incident, said),
        rule=said.rule.name,
        mode=state.control.mode,
        rules=tuple(_considered(state, incident, now_s)),
        checks=tuple(_checks(state, incident, said, now_s)),
        would=None if shadow is None or would is None else _decision(incident, would, shadow),
        would_rule="" if would is None else would.rule.name,
    )


def _matters(incident: IncidentOpened) -> bool:
    """Whether a rule can say anything about it."""
    ends = condemn.recommends_end(incident) and not condemn.is_death(incident)
    return advises_move(incident) or ends


def _now(state: State, incident: IncidentOpened, said: Ruling) -> Decision:
    if condemn.is_death(incident):
        return "act"
    if not _matters(incident) or _is_not_asked(incident, state.policy):
        return "ignore"
    # How stragglers are automated says nothing about machines that a detector wants to end.
    return bounded(said.decision, state.control.mode) if advises_move(incident) else said.decision


def _is_not_asked(incident: IncidentOpened, policy: Policy) -> bool:
    """Whether nobody declared that anything is done about the slowest machine."""
    return incident.kind == SLOWEST and policy.rebalance is None


def _decision(incident: IncidentOpened, said: Ruling, shadow: Policy) -> Decision:
    if _is_not_asked(incident, shadow):
        return "ignore"
    return bounded(said.decision, shadow.automation) if advises_move(incident) else said.decision


def _considered(state: State, incident: IncidentOpened, now_s: float) -> Iterator[Considered]:
    if condemn.is_death(incident):
        return
    labels = labels_of(state, incident.machine)
    for rule in state.policy.rules:
        why = obstacle(rule, incident, labels, now_s)
        words = why or f"it matches, and says {rule.then}"
        yield Considered(rule=rule.name, decides=not why, why=words)
        if not why:
            return
    yield Considered(rule="", decides=True, why="no rule matches: it is acted on")


def _checks(state: State, incident: IncidentOpened, said: Ruling, now_s: float) -> Iterator[Check]:
    if condemn.is_death(incident):
        yield Check(what="evidence", holds=True, words="it is dead: no rule is asked")
        return
    if not _matters(incident):
        words = f"the detector advises {incident.advice} and is {incident.mode}"
        yield Check(what="advice", holds=False, words=words)
        return
    if stale(state, incident):
        yield Check(what="slot", holds=False, words="the machine left its slot since")
        return
    yield from _ripeness(said, now_s)
    if not advises_move(incident):
        code, why = condemn.refusal(state, incident, now_s)
        yield Check(what="fence", holds=not code, words=why or "it may be ended")
        return
    yield from _limits(state, incident, now_s)


def _ripeness(said: Ruling, now_s: float) -> Iterator[Check]:
    open_s, rule = now_s - said.since_s, said.rule
    yield Check(
        what="dwell",
        holds=now_s >= said.ripe_s,
        words=f"open for {open_s:.0f} s; {rule.dwell_s:g} s are asked",
    )
    yield Check(
        what="votes",
        holds=len(said.voters) >= rule.votes,
        words=f"{len(said.voters)} of {rule.votes} detectors: {', '.join(said.voters)}",
    )


def _limits(state: State, incident: IncidentOpened, now_s: float) -> Iterator[Check]:
    if incident.kind == SLOWEST:
        why = rebalance.obstacle(state, incident, now_s)
        yield Check(what="rebalance", holds=not why, words=why or "it may be exchanged")
    forecast = foresee(state, () if incident.slot is None else [incident.slot], incident)
    words = f"cost: {forecast.cost_words}; gain: {forecast.gain_words}"
    yield Check(what="gain", holds=forecast.pays, words=words)
    kept = state.policy.keep_reserve
    ready = sum(bool(host.ready) for host in standbys(state))
    words = f"{ready} standbys are ready; {kept} of them are kept for crashes"
    yield Check(what="reserve", holds=ready > kept, words=words)
    for one in spent(state, labels_of(state, incident.machine), now_s):
        of = f" of {one.what}" if one.what else ""
        words = f"{one.moves} machines{of} moved within an hour; {one.most} may be"
        yield Check(what="budget", holds=one.moves < one.most, words=words)
    left_s = max(state.cooldown.get(incident.slot or 0, 0.0) - now_s, 0.0)
    words = f"slot {incident.slot} may move again in {left_s:.0f} s" if left_s else "none"
    yield Check(what="cooldown", holds=not left_s, words=words)
    flight = state.flight
    words = "none is under way" if flight is None else f"{flight.id} is {flight.phase}"
    yield Check(what="other moves", holds=flight is None, words=words)
    if (incident.id, OPERATOR_REJECTED) in state.said:
        yield Check(what="operator", holds=False, words="an operator rejected the move")
