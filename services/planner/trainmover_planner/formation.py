"""How a job forms, and what becomes of machines that come later."""

from __future__ import annotations

from types import MappingProxyType

from trainmover.commands import Start, Stop, Warm
from trainmover.events.machine import MachineLost
from trainmover.events.migration import JobFormed
from trainmover.topology import Layout, Member, Membership
from trainmover_planner.inventory import Host, Life, life_of
from trainmover_planner.state import State, Turn

__all__ = ["adopt", "form", "forms_at_s", "refuse_misfits", "start_members", "warm_standbys"]


def _registered(state: State) -> list[Host]:
    usable = state.inventory.usable
    return [h for h in state.inventory.sorted() if usable(h, dead=state.deaths)]


def refuse_misfits(turn: Turn) -> None:
    """Turn away machines that were told another shape of the job than the first one."""
    state = turn.state
    hosts = _registered(state)
    if not hosts:
        return
    if state.membership is None:
        first = min(hosts, key=lambda host: host.registered_s)
        nnodes, ranks, by = first.nnodes, len(first.machine.endpoints), first.machine.name
    else:
        members = [state.inventory.get(m.machine) for m in state.membership.members]
        nnodes = next((h.nnodes for h in members if h is not None), hosts[0].nnodes)
        ranks, by = state.membership.layout.ranks_per_slot, "the job"
    for host in hosts:
        mine = len(host.machine.endpoints)
        if host.nnodes == nnodes and mine == ranks:
            continue
        name, generation = host.life
        reason = (
            f"machine {name} does not fit: it says --nnodes {host.nnodes[0]}:{host.nnodes[1]} "
            f"with {mine} ranks, {by} says {nnodes[0]}:{nnodes[1]} with {ranks}. "
            "Start it with the same flags as the others."
        )
        turn.set(inventory=turn.state.inventory.refuse(host.life))
        turn.publish(MachineLost(machine=name, reason=reason), id=f"{name}.{generation}.refused")
        turn.send(name, Stop(reason=reason), id=f"{state.job}:{name}:{generation}:refused")


def forms_at_s(state: State) -> float | None:
    """When the job forms if nobody else registers, in seconds; None while machines are missing."""
    hosts = _registered(state)
    if state.phase != "forming" or not hosts:
        return None
    fewest, most = hosts[0].nnodes
    if len(hosts) < fewest:
        return None
    latest = max(host.registered_s for host in hosts)
    return latest if len(hosts) >= most else latest + state.settings.form_quiet_s


def form(turn: Turn) -> None:
    """Form the job when enough machines are there."""
    state = turn.state
    at_s = forms_at_s(state)
    if at_s is None or turn.now_s < at_s:
        return
    hosts = _registered(state)
    slots = hosts[0].nnodes[0]
    chosen, spare = hosts[:slots], hosts[slots:]
    membership = Membership(
        epoch=state.issued + 1,
        layout=Layout(slots=slots, ranks_per_slot=len(hosts[0].machine.endpoints)),
        members=tuple(
            Member(
                machine=host.machine.name,
                generation=host.machine.generation,
                endpoints=host.machine.endpoints,
            )
            for host in chosen
        ),
    )
    adopt(turn, membership)
    names = tuple(host.machine.name for host in spare)
    turn.publish(JobFormed(membership=membership, standbys=names), id="job.formed")
    start_members(turn)


def adopt(turn: Turn, membership: Membership) -> None:
    """The first membership exists."""
    turn.set(
        phase="running",
        membership=membership,
        memberships=MappingProxyType({membership.epoch: membership}),
        issued=max(turn.state.issued, membership.epoch),
    )


def start_members(turn: Turn) -> None:
    """Tell the first members to start; a repeated start changes nothing at the machine."""
    membership = turn.state.membership
    if membership is None:
        return
    for slot, member in enumerate(membership.members):
        start = Start(generation=member.generation, slot=slot, membership=membership)
        id = f"{turn.state.job}:{member.machine}:{member.generation}:start"
        turn.send(member.machine, start, id=id)


def warm_standbys(turn: Turn) -> None:
    """Make a standby of every machine that has no slot, and tell it who fills the slots.

    A process that a standby starts later learns from the rank that fills the slot then.
    """
    state = turn.state
    membership, flight = state.membership, state.flight
    if membership is None or state.over:
        return
    seated = {life_of(member) for member in membership.members}
    if flight is not None and flight.plan is not None:
        seated |= {life_of(member) for member in flight.plan.membership.members}
    if not seated <= state.warmed:
        turn.set(warmed=state.warmed | seated)  # whoever leaves a slot starts a new life first
    hosts, told = _registered(state), turn.state.warmed
    if membership.epoch > state.warm_epoch:
        turn.set(warm_epoch=membership.epoch)
        for host in hosts:
            if host.life in told - seated and host.warming:
                _warm(turn, host.life, membership, slots=tuple(range(membership.layout.slots)))
    covered = sum(host.warm_limit or 0 for host in hosts if host.life in told - seated)
    for host in hosts:
        if host.life in told:
            continue
        turn.set(warmed=turn.state.warmed | {host.life})
        slots = _in_turn(membership.layout.slots, after=covered if host.warm_limit else 0)
        covered += host.warm_limit or 0
        _warm(turn, host.life, membership, slots=slots)


def _warm(turn: Turn, life: Life, membership: Membership, *, slots: tuple[int, ...]) -> None:
    name, generation = life
    warm = Warm(generation=generation, slots=slots, membership=membership)
    turn.send(name, warm, id=f"{turn.state.job}:{name}:{generation}:warm:{membership.epoch}")


def _in_turn(slots: int, *, after: int) -> tuple[int, ...]:
    """The order to warm up in: a standby that keeps few slots begins where the others ended."""
    first = after % slots
    return (*range(first, slots), *range(first))
