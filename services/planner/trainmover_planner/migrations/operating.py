"""What operators ask for besides moves: automation, approvals, quarantine, and what a pool recalls.

Each request that is accepted becomes a fact with who and why, so a planner that starts over, and
everybody who reads the stream, knows it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trainmover.commands import Release, RequestAccepted
from trainmover.errors import RequestRefusedError
from trainmover.events.machine import MachineQuarantined, MachineReleased
from trainmover.events.operator import AutomationChanged, MachineUnquarantined
from trainmover.protocol import migration as protocol
from trainmover.protocol.migration import Migration
from trainmover.protocol.requests import (
    ApproveRequest,
    AutomationRequest,
    QuarantineRequest,
    RejectRequest,
    ReleaseRequest,
    UnquarantineRequest,
)
from trainmover.protocol.table import Phase
from trainmover_planner.migrations.migrations import advance, start
from trainmover_planner.migrations.moves import check_moves, planned
from trainmover_planner.migrations.policy import OPERATOR_REJECTED
from trainmover_planner.rules import rebalance
from trainmover_planner.state.effects import Request
from trainmover_planner.state.inventory import Host
from trainmover_planner.state.state import State
from trainmover_planner.state.transition import Transition

__all__ = [
    "apply",
    "approve",
    "automation",
    "quarantine",
    "reject",
    "release",
    "say",
    "unquarantine",
]

Steered = AutomationChanged | MachineQuarantined | MachineReleased | MachineUnquarantined

_WORDS = {
    "automatic": "stragglers are moved without asking",
    "approval": "moves of stragglers wait for `trainmover migration approve`",
    "paused": "stragglers are left where they are",
}


def apply(transition: Transition, fact: Steered) -> None:
    """Make a fact true, whether it was just decided or is read again."""
    state = transition.state
    control = replace(state.control, acts=state.control.acts + 1)
    match fact:
        case AutomationChanged(mode=mode, reason=reason, requested_by=who):
            control = replace(control, mode=mode, reason=reason, requested_by=who)
        case MachineQuarantined(machine=name, reason=reason):
            transition.set(inventory=state.inventory.quarantine(name, reason))
        case MachineReleased(machine=name, generation=generation):
            transition.set(inventory=state.inventory.refuse((name, generation)))
        case MachineUnquarantined(machine=name):
            transition.set(inventory=state.inventory.release(name))
            rebalance.forget(transition, name)
            host = state.inventory.get(name)
            if host is not None:
                control = replace(control, pardoned=control.pardoned | {host.incarnation})
    transition.set(control=control)


def automation(transition: Transition, request: Request) -> RequestAccepted:
    """Verb ``automation``."""
    wish = AutomationRequest.model_validate_json(request.body)
    now = transition.state.control
    if now.mode == wish.mode:
        who = f" (by {now.requested_by}: {now.reason})" if now.requested_by else ""
        raise RequestRefusedError(
            f"Automation is {wish.mode} already{who}.",
            code="no_change",
            next_step="Nothing is left to do.",
        )
    fact = AutomationChanged(mode=wish.mode, reason=wish.reason, requested_by=wish.requested_by)
    if not wish.dry_run:
        say(transition, fact, f"automation.{wish.mode}", request.trace)
    return RequestAccepted(migration=None, words=f"automation {wish.mode}: {_WORDS[wish.mode]}")


def approve(transition: Transition, request: Request) -> RequestAccepted:
    """Verb ``approve``."""
    wish = ApproveRequest.model_validate_json(request.body)
    one = _waiting(transition.state, wish.migration)
    leavers = [move.leaver for move in one.moves]
    incident = transition.state.incidents.get(one.incident or "")
    # Whoever names a standby knows better.
    bar = None if wish.to else rebalance.better_than(transition.state, incident)
    proposal = check_moves(
        transition.state, leavers, now_s=transition.now_s, to=wish.to, better_than=bar
    )
    plan = planned(transition.state, proposal, id=one.id, incident=incident)
    words = ", ".join(map(str, plan.moves))
    if not wish.dry_run:
        start(transition, one.id, plan, proposal.membership, by=wish.requested_by, why=wish.reason)
    return RequestAccepted(migration=None if wish.dry_run else one.id, plan=plan, words=words)


def reject(transition: Transition, request: Request) -> RequestAccepted:
    """Verb ``reject``."""
    wish = RejectRequest.model_validate_json(request.body)
    one = _waiting(transition.state, wish.migration)
    words = f"{', '.join(move.leaver for move in one.moves)} stays for this incident"
    if not wish.dry_run:
        if one.incident is not None:
            transition.put("said", (one.incident, OPERATOR_REJECTED), None)
        advance(
            transition, one.id, protocol.Reject(OPERATOR_REJECTED, wish.reason, wish.requested_by)
        )
    return RequestAccepted(migration=one.id, words=words)


def quarantine(transition: Transition, request: Request) -> RequestAccepted:
    """Verb ``quarantine``."""
    wish = QuarantineRequest.model_validate_json(request.body)
    host = _host(transition.state, wish.machine)
    _check_free(transition.state, wish.machine)
    if wish.machine in transition.state.inventory.quarantined:
        why = transition.state.inventory.quarantined[wish.machine]
        raise RequestRefusedError(
            f"Machine {wish.machine} is in quarantine already: {why}.",
            code="no_change",
            next_step=f"Let it out with `trainmover machine unquarantine {wish.machine}`.",
        )
    if not wish.dry_run:
        fact = MachineQuarantined(
            machine=wish.machine, reason=wish.reason, requested_by=wish.requested_by
        )
        name = f"{wish.machine}.{host.machine.generation}.quarantined"
        say(transition, fact, name, request.trace)
    return RequestAccepted(migration=None, words=f"{wish.machine} is given no slot any more")


def unquarantine(transition: Transition, request: Request) -> RequestAccepted:
    """Verb ``unquarantine``."""
    wish = UnquarantineRequest.model_validate_json(request.body)
    host = _host(transition.state, wish.machine)
    held = transition.state.inventory.quarantined
    if wish.machine not in held:
        raise RequestRefusedError(
            f"Machine {wish.machine} is not in quarantine.",
            code="not_quarantined",
            next_step=f"In quarantine: {', '.join(sorted(held)) or 'none'}.",
        )
    alive = (
        host.incarnation not in transition.state.deaths
        and host.incarnation not in transition.state.spent
    )
    fact = MachineUnquarantined(
        machine=wish.machine,
        reason=wish.reason,
        requested_by=wish.requested_by,
        ready_slots=tuple(sorted(host.ready)) if alive else (),
    )
    if not wish.dry_run:
        name = f"{wish.machine}.{host.machine.generation}.unquarantined"
        say(transition, fact, name, request.trace)
    what = "may be used again" if alive else "may be used again once its agent is started anew"
    return RequestAccepted(migration=None, words=f"{wish.machine} {what}")


def release(transition: Transition, request: Request) -> RequestAccepted:
    """Verb ``release``: a standby that no plan counts on goes, and its agent ends.

    Asked for a second time, the agent is told again: whoever asked may not have heard the answer,
    and an earlier planner may have died over it.
    """
    wish = ReleaseRequest.model_validate_json(request.body)
    state = transition.state
    host = _host(state, wish.machine)
    if not host.lent:
        raise RequestRefusedError(
            f"{wish.machine} is the job's own.",
            code="not_lent",
            next_step="A pool has back what it lent. End the machine's agent, or quarantine it.",
        )
    _check_free(state, wish.machine)
    if state.membership is None or state.over:
        raise RequestRefusedError(
            f"The job is {state.phase}.",
            code="not_running",
            next_step="Nothing is left to do." if state.over else "Wait until it has formed.",
        )
    if not wish.dry_run:
        name, generation = host.incarnation
        if host.incarnation not in state.inventory.refused:
            fact = MachineReleased(
                machine=name,
                generation=generation,
                reason=wish.reason,
                requested_by=wish.requested_by,
            )
            say(transition, fact, f"{name}.{generation}.released", request.trace)
        # Fenced twice: who took a slot meanwhile knows a later epoch, or registered anew.
        order = Release(generation=generation, epoch=state.membership.epoch, then="stop")
        transition.send(name, order, id=f"{state.job}:{name}:{generation}:released")
    return RequestAccepted(migration=None, words=f"{wish.machine} is a standby no more")


def say(
    transition: Transition,
    fact: Steered,
    name: str,
    trace: Mapping[str, str] | None = None,
) -> None:
    """Make a fact true and publish it."""
    apply(transition, fact)
    # Numbered: the same may be asked for again later, and is another fact then.
    transition.publish(fact, id=f"{name}.{transition.state.control.acts}", trace=trace)


def _waiting(state: State, id: str) -> Migration:
    one = state.migrations.get(id)
    if one is None:
        raise RequestRefusedError(
            f"There is no migration {id!r}.",
            code="unknown_migration",
            next_step="List them with `trainmover migration ls`.",
        )
    if one.phase is not Phase.PROPOSED:
        waiting = ", ".join(each.id for each in state.waiting) or "none"
        stop = f"Give it up with `trainmover migration abort {id}`. " if one.open else ""
        raise RequestRefusedError(
            f"Migration {id} is {one.phase} and waits for nobody.",
            code="not_waiting",
            next_step=f"{stop}Waiting for approval: {waiting}.",
        )
    return one


def _host(state: State, machine: str) -> Host:
    host = state.inventory.get(machine)
    if host is None:
        raise RequestRefusedError(
            f"No machine {machine!r} has registered.",
            code="unknown_machine",
            next_step="List the machines with `trainmover machine ls`.",
        )
    return host


def _check_free(state: State, machine: str) -> None:
    flight = state.flight
    after = None if flight is None or flight.plan is None else flight.plan.membership
    if state.membership is not None and state.membership.slot_of_machine(machine) is not None:
        slot = state.membership.slot_of_machine(machine)
        raise RequestRefusedError(
            f"Machine {machine} fills slot {slot}.",
            code="in_slot",
            next_step=f"Move it away first: `trainmover migrate {machine}`.",
        )
    if flight is not None and after is not None and after.slot_of_machine(machine) is not None:
        raise RequestRefusedError(
            f"Machine {machine} is about to take a slot by migration {flight.id}.",
            code="joining",
            next_step=f"Wait for it, or give it up with `trainmover migration abort {flight.id}`.",
        )
