"""The leader of a pool as a pure function: ``step(state, event, now_s) -> (state, commands)``.

It keeps nothing that anybody else would have to know: machines say where they are, planners say
how their jobs stand, and whoever leads next is told both again.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from trainmover.commands import ASSIGN_WITHIN_S
from trainmover_pool.decide import decide
from trainmover_pool.state import (
    AGAIN_S,
    FORGET_S,
    HOLD_S,
    Ask,
    Command,
    Declared,
    Event,
    JobSeen,
    JobUnknown,
    Machine,
    MachineSeen,
    Released,
    Reply,
    State,
    Tick,
    View,
)
from trainmover_pool.status import snapshot
from trainmover_pool.transition import Transition

__all__ = ["fold", "jobs", "next_wake_s", "step"]

_KNOWN: Final = frozenset({"slot", "promised", "ready", "warming", "quarantined"})


def step(state: State, event: Event, now_s: float) -> tuple[State, tuple[Command, ...]]:
    """Take in one event and decide.

    Args:
        state: What is known.
        event: What happened.
        now_s: The time in seconds; must not go back.
    """
    if isinstance(event, Ask):
        return state, (Reply(event.id, snapshot(state, now_s)),)
    transition = Transition(fold(state, event, now_s), now_s)
    _forget(transition)
    decide(transition)
    return transition.state, tuple(transition.commands)


def fold(state: State, event: Event, now_s: float) -> State:
    """Take in one event and decide nothing: a leader that begins does not know enough yet."""
    transition = Transition(state, now_s)
    match event:
        case MachineSeen():
            _seen(transition, event)
        case JobSeen(job=job, status=status, age_s=age_s):
            _job_seen(transition, job, View(status, now_s - age_s))
        case JobUnknown(job=job):
            transition.drop("views", job)
        case Declared():
            _declared(transition, event)
        case Released():
            _released(transition, event)
        case Ask() | Tick():
            pass
    return transition.state


def jobs(state: State) -> frozenset[str]:
    """The jobs whose planners are to be asked."""
    served = {one.seen.job for one in state.machines.values() if one.seen.job is not None}
    return frozenset(served | set(() if state.sharing is None else state.sharing.jobs))


def next_wake_s(state: State) -> float | None:
    """When to call ``step`` with a tick at the latest, in seconds; None: nothing is due."""
    settle_s = 0.0 if state.sharing is None else state.sharing.settle_s
    times = [promise.until_s for promise in state.promises.values()]
    times += [recall.until_s for recall in state.recalls.values()]
    times += [at_s + settle_s for at_s in state.many_s.values()]
    # A machine that a leader before us may still command: its word counts for no longer than that.
    times += [
        one.at_s + ASSIGN_WITHIN_S + HOLD_S
        for one in state.machines.values()
        if one.seen.term < state.term
    ]
    return min(times, default=None)


def _seen(transition: Transition, event: MachineSeen) -> None:
    fact, state = event.fact, transition.state
    at_s = transition.now_s - event.age_s
    known = state.machines.get(fact.machine)
    if known is not None and known.seen.run == fact.run and known.seen.offer >= fact.offer:
        return
    same = (
        known is not None
        and (known.seen.run, known.seen.phase, known.seen.job) == (fact.run, fact.phase, fact.job)
        # It may have been somewhere else in between.
        and at_s - fact.for_s <= known.at_s + HOLD_S
    )
    machine = Machine(fact, at_s, at_s - fact.for_s)
    if same and known is not None:
        machine = replace(machine, since_s=known.since_s, arrived=known.arrived)
    transition.put("machines", fact.machine, machine)
    transition.set(heard_s=max(state.heard_s, at_s))
    promise = state.promises.get(fact.machine)
    if promise is not None and (
        promise.run != fact.run
        or fact.phase != "idle"
        # A job is declined for longer than an order is good for.
        or (fact.offer > promise.offer and promise.job in fact.declines)
    ):
        transition.drop("promises", fact.machine)
    recall = state.recalls.get(fact.machine)
    if recall is not None and recall.job != fact.job and not recall.ghost:
        transition.drop("recalls", fact.machine)


def _job_seen(transition: Transition, job: str, view: View) -> None:
    before = transition.state.views.get(job)
    if before is not None and before.at_s > view.at_s:
        return
    transition.put("views", job, view)
    for one in transition.state.machines.values():
        there = view.status.machines.get(one.name) in _KNOWN and view.at_s >= one.since_s
        if one.seen.job == job and there and not one.arrived:
            transition.put("machines", one.name, replace(one, arrived=True))
        recall = transition.state.recalls.get(one.name)
        laid = recall is not None and recall.ghost and recall.job == job
        if laid and not transition.state.is_ghost(one, job):
            transition.drop("recalls", one.name)


def _declared(transition: Transition, event: Declared) -> None:
    transition.set(problems=event.problems)
    if event.sharing is not None:
        transition.set(sharing=event.sharing)


def _released(transition: Transition, event: Released) -> None:
    recall = transition.state.recalls.get(event.machine)
    if recall is None or recall.job != event.job:
        return
    until_s = transition.now_s + AGAIN_S
    transition.put(
        "recalls", event.machine, replace(recall, until_s=until_s, refused=event.refusal)
    )


def _forget(transition: Transition) -> None:
    """What only counts for a while."""
    state, now_s = transition.state, transition.now_s
    for name in ("promises", "recalls"):
        known = getattr(state, name)
        transition.drop(name, *(key for key, one in known.items() if one.until_s <= now_s))
    long_gone = [
        one.name
        for one in state.machines.values()
        if state.heard_s - one.at_s > FORGET_S and state.role_of(one) in (None, "gone")
    ]
    transition.drop("machines", *long_gone)
    if long_gone:
        left = {who for who in state.told if who[0] not in long_gone}
        transition.set(told=frozenset(left))
    wanted = jobs(transition.state)
    gone = {job: view for job, view in state.views.items() if job in wanted}
    if len(gone) < len(state.views):
        transition.set(views=MappingProxyType(gone))
