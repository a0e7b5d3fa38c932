"""Who serves which job: assignments of idle machines, and recalls of standbys. Pure.

The order is that of docs/concepts/pool.md: who waits for a machine comes first, by priority; then
who has fewer standbys than it wants. Nobody with a slot, or that a plan counts on, is touched: a
recall is a question, and the planner of that job answers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from trainmover.commands import ASSIGN_WITHIN_S
from trainmover_pool.state import (
    AGAIN_S,
    ARRIVE_S,
    FRESH_S,
    HOLD_S,
    Assigning,
    Leading,
    Machine,
    Promise,
    Recall,
    Recalling,
    State,
)
from trainmover_pool.tally import Tally, tallies
from trainmover_pool.transition import Transition

__all__ = ["decide", "failures", "idle"]

_STANDBY: Final = ("warming", "ready")
"""What a machine may be recalled from, the least loss first."""

_FAILED: Final = 2
"""Where so many machines could not serve a job, it is the job's fault: no other is taken for it."""


def decide(transition: Transition) -> None:
    """Everything that the state calls for."""
    _lead(transition)
    if transition.state.sharing is None:
        return
    book = tallies(transition.state, transition.now_s)
    _note_many(transition, book.values())
    _lay_ghosts(transition)  # first: who is assigned meanwhile could be let go as a standby there
    _assign(transition, book)
    _let_silent_go(transition)
    _preempt(transition, book)
    _take_back(transition, book)


def idle(state: State, now_s: float) -> list[Machine]:
    """Machines that would take an assignment now, those that wait for longest first."""
    unfit = {
        name
        for view in state.views.values()
        for name, role in view.status.machines.items()
        if role == "quarantined"
    }
    found = [
        one
        for one in state.machines.values()
        if one.seen.phase == "idle"
        and one.seen.term == state.term
        and now_s - one.at_s <= FRESH_S
        and one.name not in state.promises
        and not ((recall := state.recalls.get(one.name)) is not None and recall.ghost)
        and one.name not in unfit
    ]
    return sorted(found, key=lambda one: (one.since_s, one.name))


def _lead(transition: Transition) -> None:
    """A machine that heard an earlier leader may still obey it: tell it who leads."""
    state = transition.state
    for one in state.machines.values():
        who = (one.name, one.seen.run)
        if one.seen.term < state.term and who not in transition.state.told:
            transition.set(told=transition.state.told | {who})
            transition.do(Leading(one.name))


def _note_many(transition: Transition, book: Iterable[Tally]) -> None:
    known, now_s = transition.state.many_s, transition.now_s
    for tally in book:
        if tally.many and tally.job not in known:
            transition.put("many_s", tally.job, now_s)
        elif not tally.many:
            transition.drop("many_s", tally.job)


# -- assignments -------------------------------------------------------------------------------


def _assign(transition: Transition, book: dict[str, Tally]) -> None:
    free = idle(transition.state, transition.now_s)
    needs: tuple[Callable[[Tally], int], ...] = (lambda one: one.waits, lambda one: one.wants)
    for need in needs:
        stuck: set[str] = set()  # jobs that none of the machines takes
        while free:
            open_ = [one for one in book.values() if need(one) and one.room >= 1]
            tally = min((one for one in open_ if one.job not in stuck), key=_rank, default=None)
            if tally is None:
                break
            machine = next((one for one in free if tally.job not in one.seen.declines), None)
            if machine is None:
                stuck.add(tally.job)
                continue
            free.remove(machine)
            _promise(transition, machine, tally)
            tally.take()


def _rank(tally: Tally) -> tuple[int, float, str]:
    return tally.rank


def _promise(transition: Transition, machine: Machine, tally: Tally) -> None:
    promise = Promise(
        job=tally.job,
        run=machine.seen.run,
        offer=machine.seen.offer,
        # It may take the order until then by its own clock, and be heard to have taken it.
        until_s=machine.at_s + ASSIGN_WITHIN_S + HOLD_S,
    )
    transition.put("promises", machine.name, promise)
    transition.do(
        Assigning(machine.name, tally.job, promise.run, promise.offer, reason=_why(tally))
    )


def _why(tally: Tally) -> str:
    if tally.waits:
        return f"{tally.job} waits for machines in {tally.missing} slots"
    has = max(0, tally.have - tally.missing)
    return f"{tally.job} has {has} of {tally.share.wanted} standbys"


# -- recalls -----------------------------------------------------------------------------------


def _let_silent_go(transition: Transition) -> None:
    """A planner must not count on a machine that nobody hears, nor keep one that never came."""
    state, now_s = transition.state, transition.now_s
    assert state.sharing is not None  # noqa: S101 - checked by the caller
    for one in state.machines.values():
        silent_s = state.heard_s - one.at_s
        role = state.role_of(one)
        if one.name in state.recalls or one.seen.job is None:
            continue
        if one.seen.phase == "leaving" and role in _STANDBY:
            _recall(transition, one, None, "it is about to end")
        elif silent_s > state.sharing.silent_s and role in _STANDBY:
            _recall(transition, one, None, f"it said nothing for {silent_s:.0f} s")
        elif role == "gone" and not one.arrived and now_s - one.since_s > ARRIVE_S:
            _recall(transition, one, None, f"it is of no use there for {ARRIVE_S:.0f} s")


def _lay_ghosts(transition: Transition) -> None:
    """No planner shall count on a machine that serves another job, or none."""
    state = transition.state
    for job in state.views:
        for one in state.machines.values():
            busy = one.name in transition.state.recalls or one.name in state.promises
            if not busy and state.is_ghost(one, job):
                until_s = transition.now_s + AGAIN_S
                transition.put("recalls", one.name, Recall(job, until_s=until_s, ghost=True))
                transition.do(Recalling(one.name, job, None, "its process started over"))


def _preempt(transition: Transition, book: dict[str, Tally]) -> None:
    """For each job that waits and that no machine comes to: a standby of one that matters less."""
    coming = _coming(transition.state, transition.now_s)
    for tally in sorted((one for one in book.values() if one.waits), key=_rank):
        if failures(transition.state, tally.job) >= _FAILED:
            continue
        need = int(min(tally.waits, max(0, tally.room)))
        covered = min(need, coming)
        coming -= covered
        for _ in range(need - covered):
            victim = min(_victims(transition.state, book, tally), default=None)
            if victim is None:
                break
            _, machine, theirs = victim
            why = f"{tally.job} (priority {tally.share.priority}) waits for a machine"
            _recall(transition, transition.state.machines[machine], tally.job, why)
            book[theirs].have -= 1


def failures(state: State, job: str) -> int:
    """Machines that tried to serve a job a moment ago and could not."""
    return sum(job in one.seen.declines for one in state.machines.values())


def _coming(state: State, now_s: float) -> int:
    """Machines that are idle in a moment: they are let go, or have to hear who leads."""
    lately = [one for one in state.machines.values() if now_s - one.at_s <= FRESH_S]
    recalls = (state.recalls.get(one.name) for one in lately)
    recalled = sum(
        recall is not None and not recall.refused and not recall.ghost for recall in recalls
    )
    return recalled + sum(one.seen.phase == "idle" and one.seen.term < state.term for one in lately)


_Victim = tuple[tuple[bool, int, float, int, float], str, str]
"""How little it hurts, the machine, and the job it is taken from; the least comes first."""


def _victims(state: State, book: dict[str, Tally], for_: Tally) -> Iterator[_Victim]:
    for machine, theirs in _standbys(state, book):
        less = theirs.share.priority < for_.share.priority
        if theirs.job == for_.job or theirs.missing or not (less or theirs.many):
            continue
        role = state.role_of(machine)
        hurt = (
            not theirs.many,
            theirs.share.priority,
            -theirs.load,
            _STANDBY.index(role) if role in _STANDBY else 0,
            -machine.since_s,
        )
        yield hurt, machine.name, theirs.job


def _standbys(state: State, book: dict[str, Tally]) -> Iterator[tuple[Machine, Tally]]:
    """Machines that are standbys, by a recent answer, and not asked for already."""
    for one in state.machines.values():
        tally = book.get(one.seen.job or "")
        known = tally is not None and tally.status is not None
        if known and one.name not in state.recalls and state.role_of(one) in _STANDBY:
            assert tally is not None  # noqa: S101 - it is known
            yield one, tally


def _take_back(transition: Transition, book: dict[str, Tally]) -> None:
    """What a job had too many of for a while goes to one that lacks some, or back to the pool."""
    state, now_s = transition.state, transition.now_s
    assert state.sharing is not None  # noqa: S101 - checked by the caller
    free = len(idle(state, now_s)) + _coming(state, now_s)
    lacking = sum(min(one.wants, max(0, one.room)) for one in book.values()) - free
    for tally in sorted(book.values(), key=_rank, reverse=True):
        since_s = state.many_s.get(tally.job)
        if since_s is None or now_s - since_s < state.sharing.settle_s:
            continue
        over = 0 if tally.share.quota is None else tally.used - tally.share.quota
        most = min(tally.many, int(max(over, lacking)))
        mine = [one for one, theirs in _standbys(transition.state, book) if theirs is tally]
        for machine in sorted(mine, key=lambda one: (-one.since_s, one.name))[: max(0, most)]:
            why = f"{tally.job} has {tally.many} more than its share"
            _recall(transition, machine, None, why)
            lacking -= 1


def _recall(transition: Transition, machine: Machine, needed_by: str | None, reason: str) -> None:
    job = machine.seen.job
    assert job is not None  # noqa: S101 - it serves one
    recall = Recall(job, until_s=transition.now_s + AGAIN_S, needed_by=needed_by)
    transition.put("recalls", machine.name, recall)
    transition.do(Recalling(machine.name, job, needed_by, reason))
