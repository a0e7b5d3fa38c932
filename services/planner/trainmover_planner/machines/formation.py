"""How a job forms, and what becomes of machines that come later."""

from __future__ import annotations

from types import MappingProxyType

from trainmover.commands import Start, Stop, Warm
from trainmover.events.machine import MachineLost
from trainmover.events.migration import JobFormed
from trainmover.job.tables import Table
from trainmover.job.topology import Layout, Member, Membership
from trainmover_planner.machines.choice import Judge
from trainmover_planner.machines.forgetting import forget_machines
from trainmover_planner.state.inventory import Host, Incarnation
from trainmover_planner.state.rings import named_ring
from trainmover_planner.state.state import Shape, State, slot_of
from trainmover_planner.state.transition import Transition

__all__ = [
    "adopt",
    "form",
    "forms_at_s",
    "refuse",
    "refuse_misfits",
    "start_members",
    "warm_standbys",
]


def refuse_misfits(transition: Transition) -> None:
    """Refuse machines that were told another shape of the job than the first one."""
    state = transition.state
    if not state.newcomers:
        return
    shape = _shape(state)
    if shape is None:
        transition.set(newcomers=Table())
        return
    # A shape that was not known before is one that nobody was held against yet.
    names = state.newcomers if state.shape == shape or state.membership else state.inventory.hosts
    transition.set(shape=shape, newcomers=Table())
    for host in transition.state.inventory.sorted(names):
        if not state.inventory.usable(host, dead=state.deaths):
            continue
        mine = len(host.machine.endpoints)
        if host.nnodes == shape.nnodes and mine == shape.ranks:
            transition.set(arrived_s=max(transition.state.arrived_s, host.registered_s))
            continue
        by = "the job" if state.membership is not None else shape.incarnation[0]
        refuse(
            transition,
            host,
            f"machine {host.machine.name} does not fit: it says {_words(host.nnodes)} "
            f"with {mine} ranks each, {by} says {_words(shape.nnodes)} with {shape.ranks}. "
            "Start it with the same flags as the others.",
        )
    forget_machines(transition)


def _words(nnodes: tuple[int, int]) -> str:
    return f"{nnodes[0]} slots and {nnodes[1] - nnodes[0]} standbys"


def refuse(transition: Transition, host: Host, reason: str) -> None:
    """Never use this incarnation of a machine; it is told so."""
    name, generation = host.incarnation
    transition.set(inventory=transition.state.inventory.refuse(host.incarnation))
    lost = MachineLost(machine=name, reason=reason, generation=generation)
    transition.publish(lost, id=f"{name}.{generation}.refused")
    stop = Stop(reason=reason)
    transition.send(name, stop, id=f"{transition.state.job}:{name}:{generation}:refused")


def _shape(state: State) -> Shape | None:
    """What machines must have been told; None while there are none."""
    if state.membership is not None:
        members = (state.inventory.get(m.machine) for m in state.membership.members)
        known = next((host for host in members if host is not None), None)
        if known is None:
            return None
        return Shape(known.incarnation, known.nnodes, state.membership.layout.ranks_per_slot)
    if state.shape is not None:
        host = state.inventory.get(state.shape.incarnation[0])
        same = host is not None and host.incarnation == state.shape.incarnation
        if host is not None and same and state.inventory.usable(host, dead=state.deaths):
            return state.shape
    hosts = _registered(state)
    if not hosts:
        return None
    first = min(hosts, key=lambda host: host.registered_s)
    return Shape(first.incarnation, first.nnodes, len(first.machine.endpoints))


def _registered(state: State) -> list[Host]:
    usable = state.inventory.usable
    return [h for h in state.inventory.sorted() if usable(h, dead=state.deaths)]


def forms_at_s(state: State) -> float | None:
    """When the job forms if nobody else registers, in seconds; None while machines are missing."""
    if state.phase != "forming" or state.shape is None:
        return None
    fewest, most = state.shape.nnodes
    if len(state.inventory.hosts) < fewest:
        return None
    count = state.inventory.count(dead=state.deaths)
    if count < fewest:
        return None
    return state.arrived_s if count >= most else state.arrived_s + state.policy.form_quiet_s


def form(transition: Transition) -> None:
    """Form the job when enough machines are there."""
    state = transition.state
    at_s = forms_at_s(state)
    if at_s is None or transition.now_s < at_s:
        return
    hosts = _registered(state)
    slots = hosts[0].nnodes[0]
    chosen, spare = hosts[:slots], hosts[slots:]
    machines = [host.machine.name for host in chosen]
    ring, crossings = named_ring(state.inventory, machines, levels=state.policy.topology)
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
        ring=ring,
    )
    adopt(transition, membership)
    names = tuple(host.machine.name for host in spare)
    formed = JobFormed(membership=membership, standbys=names, crossings=crossings)
    transition.publish(formed, id="job.formed")
    start_members(transition)


def adopt(transition: Transition, membership: Membership) -> None:
    """The first membership exists, or the first one that is known."""
    state = transition.state
    hosts = (state.inventory.get(member.machine) for member in membership.members)
    placed = {h.machine.name for h in hosts if h and slot_of(membership, h.incarnation) is not None}
    transition.set(
        phase="running",
        membership=membership,
        memberships=MappingProxyType({membership.epoch: membership}),
        issued=max(state.issued, membership.epoch),
        spare=Table.of(name for name in state.spare if name not in placed),
        cold=Table.of(name for name in state.cold if name not in placed),
    )


def start_members(transition: Transition) -> None:
    """Tell the first members to start; a repeated start changes nothing at the machine."""
    membership = transition.state.membership
    if membership is None:
        return
    for slot, member in enumerate(membership.members):
        start = Start(generation=member.generation, slot=slot, membership=membership)
        id = f"{transition.state.job}:{member.machine}:{member.generation}:start"
        transition.send(member.machine, start, id=id)


def warm_standbys(transition: Transition) -> None:
    """Make a standby of every machine that has no slot, and tell it who fills the slots.

    It warms up for those slots first that are likeliest to need it by what is known now.
    A process that a standby starts later learns from the rank that fills the slot then.
    """
    state = transition.state
    membership = state.membership
    if membership is None or state.over:
        return
    if membership.epoch > state.warm_epoch:
        transition.set(warm_epoch=membership.epoch)
        _tell_standbys(transition, membership)
    if not state.cold:
        return
    memberships = state.current_memberships
    left: dict[str, None] = {}
    covered: int | None = None
    likeliest: tuple[int, ...] = ()
    for host in state.inventory.sorted(state.cold):
        name = host.incarnation[0]
        if any(slot_of(one, host.incarnation) is not None for one in memberships):
            continue  # whoever leaves a slot starts a new incarnation first
        if not state.inventory.usable(host, dead=state.deaths):
            # Only what an operator may let out again is worth another look.
            if name in state.inventory.quarantined and host.incarnation not in state.deaths:
                left[name] = None
            continue
        if covered is None:
            covered = _covered(state)
            likeliest = Judge(state, membership, now_s=transition.now_s).likeliest()
        slots = _in_order(likeliest, after=covered if host.warm_limit else 0)
        covered += host.warm_limit or 0
        _warm(transition, host.incarnation, membership, slots=slots)
    transition.set(cold=Table(left))


def _tell_standbys(transition: Transition, membership: Membership) -> None:
    """Who fills the slots now, for the processes that warm standbys start later."""
    state = transition.state
    for name in state.spare:
        host = state.inventory.get(name)
        if name not in state.cold and host is not None and host.warming:
            _warm(
                transition,
                host.incarnation,
                membership,
                slots=tuple(range(membership.layout.slots)),
            )


def _warm(
    transition: Transition,
    incarnation: Incarnation,
    membership: Membership,
    *,
    slots: tuple[int, ...],
) -> None:
    name, generation = incarnation
    warm = Warm(generation=generation, slots=slots, membership=membership)
    transition.send(
        name, warm, id=f"{transition.state.job}:{name}:{generation}:warm:{membership.epoch}"
    )


def _covered(state: State) -> int:
    """Slots that the standbys which were told so keep processes for."""
    hosts = (state.inventory.get(name) for name in state.spare if name not in state.cold)
    usable = state.inventory.usable
    return sum(host.warm_limit or 0 for host in hosts if host and usable(host, dead=state.deaths))


def _in_order(slots: tuple[int, ...], *, after: int) -> tuple[int, ...]:
    """The order to warm up in: a standby that keeps few slots begins where the others ended."""
    first = after % len(slots)
    return (*slots[first:], *slots[:first])
