"""Answers operators. A refusal changes nothing and says what to do; see also ``operating``."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

from pydantic import ValidationError

from trainmover.commands import MigrateRequest, Refusal, RequestAccepted
from trainmover.errors import RequestRefusedError
from trainmover.job.topology import Frozen
from trainmover.protocol import migration as protocol
from trainmover.protocol.migration import Migration
from trainmover.protocol.requests import (
    AbortRequest,
    AutomationStatus,
    JobStatus,
    MachineStatus,
    MigrationStatus,
    StandbyRole,
    StandbysRequest,
    StandbysStatus,
)
from trainmover.protocol.table import Signal, allows
from trainmover_planner.machines.assignment import standbys
from trainmover_planner.machines.survival import describe, unprotected
from trainmover_planner.migrations import drain, explaining, operating
from trainmover_planner.migrations.migrations import advance, propose, start
from trainmover_planner.migrations.moves import check_moves, planned
from trainmover_planner.state.effects import Request
from trainmover_planner.state.inventory import Host, incarnation_of
from trainmover_planner.state.state import State
from trainmover_planner.state.transition import Transition

__all__ = ["answer", "migration_status", "snapshot"]

_LATEST: Final = 32
"""How many migrations a status tells of besides the open ones."""


def answer(transition: Transition, request: Request) -> None:
    """Carry a request out, or refuse it; either way reply."""
    handler = _HANDLERS.get(request.verb, _unknown)
    try:
        body = handler(transition, request)
    except RequestRefusedError as refusal:
        reason = str(refusal).removesuffix(refusal.next_step).strip()
        body = Refusal(code=refusal.code, reason=reason, next_step=refusal.next_step)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        body = Refusal(
            code="malformed",
            reason=f"The request does not parse: {where}: {first['msg']}",
            next_step="Is the caller of the same version as the planner?",
        )
    transition.reply(request.id, body)


def snapshot(state: State) -> JobStatus:
    """How the job stands."""
    membership = state.membership
    return JobStatus(
        job=state.job,
        phase=state.phase,
        reason=state.reason,
        epoch=None if membership is None else membership.epoch,
        step=state.step,
        membership=membership,
        machines=tuple(_machine_status(state, host) for host in state.inventory.sorted()),
        standbys=()
        if membership is None
        else tuple(host.machine.name for host in standbys(state) if host.warming),
        migrations=tuple(migration_status(one) for one in _told(state)),
        incidents=tuple(state.incidents),
        redundancy=describe(state, membership),
        unprotected=unprotected(state, membership),
        automation=AutomationStatus(
            mode=state.control.mode,
            reason=state.control.reason,
            requested_by=state.control.requested_by,
        ),
        drain=drain.status(state),
    )


def _told(state: State) -> list[Migration]:
    """The open migrations and the latest others: a status must fit into one message for ever."""
    every = list(state.migrations.values())
    return [one for one in every[:-_LATEST] if one.open] + every[-_LATEST:]


def migration_status(one: Migration) -> MigrationStatus:
    """A migration for readers."""
    return MigrationStatus(
        migration=one.id,
        kind=one.kind,
        phase=one.phase.value,
        slot=one.slot,
        leaver=one.leaver,
        joiner=one.joiner,
        moves=one.moves,
        epoch=None if one.plan is None else one.plan.epoch,
        cause=one.cause,
        incident=one.incident,
        reason=one.reason,
        history=tuple((phase.value, at_s) for phase, at_s in one.history),
    )


def _migrate(transition: Transition, request: Request) -> Frozen:
    wish = MigrateRequest.model_validate_json(request.body)
    state = transition.state
    proposal = check_moves(state, wish.machines, now_s=transition.now_s, to=wish.to)
    if wish.dry_run:
        return RequestAccepted(migration=None, plan=planned(state, proposal, id="dry-run"))
    one = propose(
        transition,
        kind="planned",
        moves=proposal.moves,
        cause=wish.reason,
        requested_by=wish.requested_by,
        trace=request.trace,
    )
    plan = planned(transition.state, proposal, id=one.id)
    start(transition, one.id, plan, proposal.membership, by=wish.requested_by)
    return RequestAccepted(migration=one.id, plan=plan)


def _abort(transition: Transition, request: Request) -> Frozen:
    wish = AbortRequest.model_validate_json(request.body)
    one = transition.state.migrations.get(wish.migration)
    if one is None:
        raise RequestRefusedError(
            f"There is no migration {wish.migration!r}.",
            code="unknown_migration",
            next_step="List them with `trainmover migration ls`.",
        )
    if not allows(kind=one.kind, phase=one.phase, signal=Signal.ABORT):
        raise RequestRefusedError(
            f"{one.kind.capitalize()} migration {one.id} is {one.phase}; "
            "only a planned one that has not begun to switch can be given up.",
            code="too_late",
            next_step="Nothing is left to do."
            if not one.open
            else "Wait for it to end, then move the machine back if need be.",
        )
    if not wish.dry_run:
        advance(transition, one.id, protocol.Abort(wish.reason, wish.requested_by))
    return RequestAccepted(migration=one.id)


def _status(transition: Transition, request: Request) -> Frozen:
    del request
    return snapshot(transition.state)


def _standbys(transition: Transition, request: Request) -> Frozen:
    """Short, however large the job is: a pool asks every other second."""
    wish, state = StandbysRequest.model_validate_json(request.body), transition.state
    if state.membership is None:
        return StandbysStatus(phase=state.phase)
    free = standbys(state)
    roles = ((name, _standby_role(state, name)) for name in wish.machines)
    return StandbysStatus(
        phase=state.phase,
        missing=len(state.held) if state.phase == "held" else 0,
        standbys=len(free),
        ready=sum(bool(host.ready) for host in free),
        machines={name: role for name, role in roles if role is not None},
    )


def _standby_role(state: State, name: str) -> StandbyRole | None:
    host = state.inventory.get(name)
    if host is None:
        return None
    role, _ = _role(state, host)
    if role == "member":
        return "slot"
    if role == "joining":
        return "promised"
    if role == "quarantined":
        return "quarantined"
    if role == "lost" or host.incarnation in state.spent:
        return "gone"
    return "ready" if host.ready else "warming"


def _unknown(transition: Transition, request: Request) -> Frozen:
    del transition
    raise RequestRefusedError(
        f"The planner does not know the request {request.verb!r}.",
        code="unknown_request",
        next_step=f"It knows {', '.join(_HANDLERS)}.",
    )


_HANDLERS: MappingProxyType[str, Callable[[Transition, Request], Frozen]] = MappingProxyType(
    {
        "migrate": _migrate,
        "abort": _abort,
        "approve": operating.approve,
        "reject": operating.reject,
        "automation": operating.automation,
        "quarantine": operating.quarantine,
        "release": operating.release,
        "unquarantine": operating.unquarantine,
        "standbys": _standbys,
        "status": _status,
        "policy": explaining.policy,
        "drain": drain.drain,
    }
)


def _machine_status(state: State, host: Host) -> MachineStatus:
    role, slot = _role(state, host)
    return MachineStatus(
        machine=host.machine.name,
        generation=host.machine.generation,
        role=role,
        slot=slot,
        warming=tuple(sorted(slot for slot in host.warming if slot not in host.ready)),
        ready=tuple(sorted(host.ready)),
        labels=host.machine.labels,
    )


def _role(state: State, host: Host) -> tuple[str, int | None]:
    name = host.machine.name
    membership, flight = state.membership, state.flight
    slot = None if membership is None else membership.slot_of_machine(name)
    after = None if flight is None or flight.plan is None else flight.plan.membership
    target = None if after is None else after.slot_of_machine(name)
    if name in state.inventory.quarantined:
        role = "quarantined"
    elif host.incarnation in state.deaths or host.incarnation in state.inventory.refused:
        role, slot = "lost", None
    elif membership is not None and slot is not None:
        role = (
            "member"
            if incarnation_of(membership.members[slot]) == host.incarnation
            else "registered"
        )
    elif target is not None:
        role, slot = "joining", target
    elif host.warming:
        role = "standby"
    else:
        role = "registered"
    return role, slot
