"""What the planner forgets, so that a job may go on for ever: facts tell of all."""

from __future__ import annotations

from typing import Final

from trainmover.job.topology import Membership
from trainmover_planner.state.inventory import Incarnation
from trainmover_planner.state.state import State, slot_of
from trainmover_planner.state.transition import Transition

__all__ = ["bury", "forget_machines"]

_GONE: Final = 256
"""So many machines are known that are gone and did not come back under their name."""


def bury(transition: Transition) -> None:
    """Forget incarnations that can no longer come up: their machines live again."""
    state = transition.state
    every = _referring(state)

    def matters(incarnation: Incarnation) -> bool:
        host = state.inventory.get(incarnation[0])
        latest = host is not None and host.incarnation == incarnation
        return latest or any(slot_of(membership, incarnation) is not None for membership in every)

    deaths, spent, said = state.deaths, state.spent, state.said
    for incarnation in (*deaths, *spent):
        if not matters(incarnation) and incarnation not in state.unsaid:
            deaths, spent = deaths.drop(incarnation), spent.drop(incarnation)
            said = said.drop((f"{incarnation[0]}.{incarnation[1]}", "lost"))
    transition.set(deaths=deaths, spent=spent, said=said)
    forget_machines(transition)


def forget_machines(transition: Transition) -> None:
    """Forget the machines that are gone for longest, when there are twice as many as are kept.

    What is quarantined stays known: it may come back, and must not be used then.
    """
    state = transition.state
    inventory = state.inventory
    if len(state.deaths) + len(inventory.refused) <= 2 * _GONE:
        return
    every = _referring(state)
    incarnations = dict.fromkeys((*state.deaths, *inventory.refused))
    hosts = [host for name, _ in incarnations if (host := inventory.get(name)) is not None]
    gone = [
        host
        for host in hosts
        if host.incarnation in incarnations
        and host.incarnation not in state.unsaid
        and host.machine.name not in inventory.quarantined
        and all(slot_of(membership, host.incarnation) is None for membership in every)
    ]
    gone.sort(key=lambda host: host.registered_s)
    for host in gone[:-_GONE]:
        _forget(transition, host.incarnation)


def _forget(transition: Transition, incarnation: Incarnation) -> None:
    state, name = transition.state, incarnation[0]
    death = state.deaths.get(incarnation)
    transition.note(
        inventory=state.inventory.forget(incarnation),
        deaths=state.deaths.drop(incarnation),
        spent=state.spent.drop(incarnation),
        said=state.said.drop((f"{name}.{incarnation[1]}", "lost")),
        spare=state.spare.drop(name),
        cold=state.cold.drop(name),
        troubles=state.troubles.drop(name),
        newcomers=state.newcomers.drop(name),
    )
    if death is not None and death.incident is not None and death.incident not in state.incidents:
        transition.note(traces=state.traces.drop(death.incident))


def _referring(state: State) -> list[Membership]:
    """Memberships that are, or may come."""
    epoch = 0 if state.membership is None else state.membership.epoch
    plans = [one.plan for one in state.migrations.values() if one.plan is not None]
    return [*state.current_memberships, *(plan.membership for plan in plans if plan.epoch > epoch)]
