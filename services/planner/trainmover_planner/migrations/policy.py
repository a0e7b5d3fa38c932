"""What becomes of incidents: planned moves are carried out, proposed or refused by policy."""

from __future__ import annotations

from trainmover.errors import RequestRefusedError
from trainmover.events.incident import IncidentOpened
from trainmover.job.plan import Forecast, Move
from trainmover.policy.model import SLOWEST, Decision
from trainmover.protocol import migration as protocol
from trainmover.protocol.migration import Migration
from trainmover_planner.machines import condemn
from trainmover_planner.machines.assignment import standbys
from trainmover_planner.migrations.migrations import advance, propose, start
from trainmover_planner.migrations.moves import Proposal, check_moves, planned, refusal
from trainmover_planner.rules import rebalance
from trainmover_planner.rules.budget import exceeded
from trainmover_planner.rules.ruling import bounded, judge
from trainmover_planner.rules.worth import foresee
from trainmover_planner.state.inventory import incarnation_of
from trainmover_planner.state.state import State
from trainmover_planner.state.transition import Transition

__all__ = [
    "OPERATOR_REJECTED",
    "advises_move",
    "automate",
    "stale",
    "waits",
]

OPERATOR_REJECTED = "rejected_by_operator"
"""Code of a rejection that holds for as long as the incident does."""

_QUIET = frozenset({"migration_in_flight", "already_migrating", "recovering", "cooldown"})
"""Refusals of an automatic move that pass by themselves: it is simply tried again."""


_NOT_NOW = frozenset({"ignored", "too_soon"})
"""Refusals to end a machine that nobody has to hear of: it was declared so."""


def advises_move(incident: IncidentOpened) -> bool:
    """Whether a detector asks that the incident's machine leave by plan."""
    return incident.advice == "move" and incident.mode == "active" and bool(incident.machine)


def automate(transition: Transition) -> None:
    """Carry out, or propose, planned moves that incidents advise: one at a time, in budget."""
    _withdraw(transition)
    _spare(transition)
    if transition.state.control.mode == "paused" or transition.state.phase != "running":
        return
    for incident in list(transition.state.incidents.values()):
        if not advises_move(incident) or stale(transition.state, incident):
            continue
        if transition.state.flight is not None:
            continue
        if (incident.id, OPERATOR_REJECTED) in transition.state.said:
            continue
        if incident.kind == SLOWEST and rebalance.obstacle(
            transition.state, incident, transition.now_s
        ):
            continue
        said = judge(transition.state, incident, transition.now_s)
        decision = bounded(said.decision, transition.state.control.mode)
        if decision != "ignore" and said.ripe:
            _move(transition, incident, decision)


def _move(transition: Transition, incident: IncidentOpened, decision: Decision) -> None:
    """Move the machine that an incident is about, or propose to, if that is possible now."""
    state = transition.state
    waiting = next((one for one in state.waiting if one.incident == incident.id), None)
    if incident.machine is None or (waiting is not None and decision == "wait"):
        return
    forecast = foresee(state, () if incident.slot is None else [incident.slot], incident)
    try:
        bar = rebalance.better_than(state, incident)
        proposal = check_moves(state, [incident.machine], now_s=transition.now_s, better_than=bar)
        forecast = foresee(state, proposal.joiners, incident, kept=proposal.kept)
        _is_worth_it(incident.machine, forecast)
        _within_limits(transition, proposal)
        if decision == "act":
            _within_budget(transition, proposal)
    except RequestRefusedError as refused:
        if waiting is None:
            _say_once(transition, incident, refused, forecast)
        return
    one = waiting or propose(
        transition,
        kind="planned",
        moves=proposal.moves,
        cause=rebalance.cause_of(incident),
        incident=incident.id,
        forecast=forecast,
    )
    if decision == "act":
        plan = planned(transition.state, proposal, id=one.id, incident=incident)
        start(transition, one.id, plan, proposal.membership)


def waits(state: State, one: Migration, now_s: float) -> bool:
    """Whether a proposal is one that an operator is to decide about."""
    mode = state.control.mode
    incident = state.incidents.get(one.incident or "")
    if one.incident is None:
        return False  # whoever asked for it agreed to it
    if incident is None:
        return mode != "automatic"
    return bounded(judge(state, incident, now_s).decision, mode) != "act"


def _spare(transition: Transition) -> None:
    """Say once of each machine that is not ended although a detector advises it, and why."""
    state = transition.state
    for incident in state.incidents.values():
        if not condemn.recommends_end(incident) or stale(state, incident):
            continue
        if state.membership is None or state.dead_slots(state.membership):
            continue
        code, why = condemn.refusal(state, incident, transition.now_s)
        if code and code not in _NOT_NOW:
            reason = f"{incident.machine} is not treated as dead: {why}"
            step = f"Look at it, and move it with `trainmover migrate {incident.machine}`."
            _say_once(transition, incident, refusal(reason, code, step))


def _withdraw(transition: Transition) -> None:
    """Proposals whose reason went away while they waited are given up."""
    for one in transition.state.waiting:
        incident = transition.state.incidents.get(one.incident or "")
        if incident is None or stale(transition.state, incident):
            why = "the incident is over" if incident is None else "the machine left its slot"
            advance(transition, one.id, protocol.Abort(f"{why} before anybody approved the move"))
            continue
        said = judge(transition.state, incident, transition.now_s)
        if said.decision == "ignore":
            why = f"{said.rule.name} says to ignore the incident"
            advance(transition, one.id, protocol.Abort(why))


def _is_worth_it(machine: str, forecast: Forecast) -> None:
    if not forecast.pays:
        raise refusal(
            f"Moving {machine} costs more than it saves: {forecast.cost_words}; "
            f"{forecast.gain_words}.",
            "does_not_pay",
            f"Move it yourself with `trainmover migrate {machine}`, or declare a longer horizon.",
        )


def _within_limits(transition: Transition, proposal: Proposal) -> None:
    state = transition.state
    slot, until_s = max(
        ((slot, state.cooldown.get(slot, 0.0)) for slot in proposal.joiners), key=lambda one: one[1]
    )
    if transition.now_s < until_s:
        raise refusal(
            f"Slot {slot} was moved a moment ago.",
            "cooldown",
            f"It can move again in {until_s - transition.now_s:.0f} s.",
        )
    ready = [host for host in standbys(state) if host.ready]
    if len(ready) - len(proposal.joiners) < state.policy.keep_reserve:
        raise refusal(
            f"{len(ready)} standbys are ready and {state.policy.keep_reserve} are kept for "
            "crashes.",
            "reserve",
            "Add a machine, or move it yourself with `trainmover migrate`.",
        )


def _within_budget(transition: Transition, proposal: Proposal) -> None:
    leavers = [move.leaver for move in proposal.moves]
    over = exceeded(transition.state, leavers, transition.now_s)
    if over is None:
        return
    where = f" of {over.what}" if over.what else ""
    again = "" if over.free_s is None else f" It may in {over.free_s - transition.now_s:.0f} s."
    raise refusal(
        f"Policy moved {over.moves} machines{where} within an hour and may move {over.most}.",
        "budget",
        f"Move it yourself with `trainmover migrate`.{again}",
    )


def _say_once(
    transition: Transition,
    incident: IncidentOpened,
    refused: RequestRefusedError,
    forecast: Forecast | None = None,
) -> None:
    said = (incident.id, refused.code)
    if refused.code in _QUIET or said in transition.state.said:
        return
    transition.put("said", said, None)
    slot = incident.slot
    if slot is None or incident.machine is None:
        return
    one = propose(
        transition,
        kind="planned",
        moves=[Move(slot=slot, leaver=incident.machine, joiner="")],
        cause=rebalance.cause_of(incident),
        incident=incident.id,
        forecast=forecast,
    )
    advance(transition, one.id, protocol.Reject(code=refused.code, reason=str(refused)))


def stale(state: State, incident: IncidentOpened) -> bool:
    """Whether the machine left its slot since: the finding was about its ranks there."""
    membership = state.memberships.get(incident.epoch)
    if membership is None or state.membership is None:
        return True
    then = membership.slot_of_machine(incident.machine or "")
    now = state.membership.slot_of_machine(incident.machine or "")
    if then is None or now is None:
        return True
    return incarnation_of(membership.members[then]) != incarnation_of(state.membership.members[now])
