"""What the planner forgets, so that a job may go on for ever: facts tell of all."""

from __future__ import annotations

from typing import Final

from trainmover.job.topology import Membership
from trainmover_planner.state.inventory import Life
from trainmover_planner.state.state import State, seat_of
from trainmover_planner.state.turn import Turn

__all__ = ["bury", "forget_machines"]

_GONE: Final = 256
"""So many machines are known that are gone and did not come back under their name."""


def bury(turn: Turn) -> None:
    """Forget lives that can no longer come up: their machines live again."""
    state = turn.state
    every = _seated(state)

    def matters(life: Life) -> bool:
        host = state.inventory.get(life[0])
        latest = host is not None and host.life == life
        return latest or any(seat_of(seats, life) is not None for seats in every)

    deaths, spent, said = state.deaths, state.spent, state.said
    for life in (*deaths, *spent):
        if not matters(life) and life not in state.unsaid:
            deaths, spent = deaths.drop(life), spent.drop(life)
            said = said.drop((f"{life[0]}.{life[1]}", "lost"))
    turn.set(deaths=deaths, spent=spent, said=said)
    forget_machines(turn)


def forget_machines(turn: Turn) -> None:
    """Forget the machines that are gone for longest, when there are twice as many as are kept.

    What is quarantined stays known: it may come back, and must not be used then.
    """
    state = turn.state
    inventory = state.inventory
    if len(state.deaths) + len(inventory.refused) <= 2 * _GONE:
        return
    every = _seated(state)
    lives = dict.fromkeys((*state.deaths, *inventory.refused))
    hosts = [host for name, _ in lives if (host := inventory.get(name)) is not None]
    gone = [
        host
        for host in hosts
        if host.life in lives
        and host.life not in state.unsaid
        and host.machine.name not in inventory.quarantined
        and all(seat_of(seats, host.life) is None for seats in every)
    ]
    gone.sort(key=lambda host: host.registered_s)
    for host in gone[:-_GONE]:
        _forget(turn, host.life)


def _forget(turn: Turn, life: Life) -> None:
    state, name = turn.state, life[0]
    death = state.deaths.get(life)
    turn.note(
        inventory=state.inventory.forget(life),
        deaths=state.deaths.drop(life),
        spent=state.spent.drop(life),
        said=state.said.drop((f"{name}.{life[1]}", "lost")),
        spare=state.spare.drop(name),
        cold=state.cold.drop(name),
        newcomers=state.newcomers.drop(name),
    )
    if death is not None and death.incident is not None and death.incident not in state.incidents:
        turn.note(traces=state.traces.drop(death.incident))


def _seated(state: State) -> list[Membership]:
    """Memberships that are, or may come."""
    epoch = 0 if state.membership is None else state.membership.epoch
    plans = [one.plan for one in state.migrations.values() if one.plan is not None]
    return [*state.seats, *(plan.membership for plan in plans if plan.epoch > epoch)]
