"""No machine is left for a slot: the job is held, and then what policy says.

A held job loses nothing: the survivors wait with their state in memory, and the first machine that
becomes ready continues it. ``checkpoint`` and ``fail`` end it after a while, with an exit code that
tells a scheduler to start it again later (``exhausted``).
"""

from __future__ import annotations

from collections.abc import Sequence

from trainmover.commands import SaveCheckpoint
from trainmover.events.executor import CheckpointSaved
from trainmover.events.migration import JobHeld
from trainmover.job.topology import Membership
from trainmover_planner.state.state import State
from trainmover_planner.state.transition import Transition

__all__ = ["hold", "is_given_up", "wakes_s"]

NEXT_STEP = "Start the job again when machines are there."


def hold(transition: Transition, slots: Sequence[int], cause: str) -> None:
    """Say that the job waits; again changes nothing."""
    state = transition.state
    if state.held == tuple(slots):
        return
    limit = ""
    if state.policy.when_exhausted != "hold":
        limit = f" It ends in {state.policy.exhausted_after_s:g} s otherwise."
    reason = f"{cause}. No standby can take slots {list(slots)}; the ranks wait. Add a machine."
    transition.set(
        phase="held",
        reason=reason + limit,
        held=tuple(slots),
        held_s=transition.now_s if state.held_s is None else state.held_s,
    )
    transition.publish(
        JobHeld(slots=tuple(slots), reason=reason + limit),
        id=f"job.held.{state.issued}.{'-'.join(map(str, slots))}",
    )


def wakes_s(state: State) -> list[float]:
    """When policy has to look at a held job again, in seconds."""
    if state.held_s is None or state.policy.when_exhausted == "hold":
        return []
    at_s = state.held_s + state.policy.exhausted_after_s
    return [at_s, at_s + state.policy.checkpoint_deadline_s]


def is_given_up(transition: Transition, base: Membership) -> str:
    """Why a held job ends now; empty while it waits. Asks the survivors to save first, if so told.

    Args:
        transition: The step under construction.
        base: The membership whose machines hold the state of the job.
    """
    state = transition.state
    policy = state.policy
    if state.held_s is None or policy.when_exhausted == "hold":
        return ""
    at_s = state.held_s + policy.exhausted_after_s
    if transition.now_s < at_s:
        return ""
    what = f"{state.reason.partition(' No standby')[0]} No machine came in " + (
        f"{policy.exhausted_after_s:g} s"
    )
    if policy.when_exhausted == "fail":
        return f"{what}."
    dead = frozenset(state.dead_slots(base))
    alive = {
        (member.machine, rank)
        for slot, member in enumerate(base.members)
        if slot not in dead
        for rank in base.layout.ranks_of(slot)
    }
    answers = [
        answer for who, answer in state.saved.items() if who in alive and answer.epoch == base.epoch
    ]
    missing = sorted({rank for _, rank in alive} - {answer.rank for answer in answers})
    if not missing:
        return f"{what}; {_what_was_saved(answers)}."
    if transition.now_s >= at_s + policy.checkpoint_deadline_s:
        return (
            f"{what}; ranks {missing} did not say within {policy.checkpoint_deadline_s:g} s that "
            "they saved a checkpoint."
        )
    _ask_to_save(transition, base)
    return ""


def _what_was_saved(answers: Sequence[CheckpointSaved]) -> str:
    """For people: where the state is, after how many steps, and what is missing."""
    saved = sorted((answer for answer in answers if answer.path), key=lambda answer: answer.rank)
    parts = []
    if saved:
        where = ", ".join(f"{answer.path} (step {answer.step})" for answer in saved)
        parts.append(f"the survivors saved a checkpoint: {where}")
    parts += sorted(
        f"rank {answer.rank} saved none: {answer.obstacle}" for answer in answers if not answer.path
    )
    return "; ".join(parts)


def _ask_to_save(transition: Transition, base: Membership) -> None:
    state = transition.state
    if base.epoch in state.told_save:
        return
    transition.set(told_save=state.told_save | {base.epoch})
    dead, order = state.dead_slots(base), SaveCheckpoint(epoch=base.epoch, reason=state.reason)
    for slot, member in enumerate(base.members):
        if slot not in dead:
            id = f"{state.job}:{member.machine}:{base.epoch}:save"
            transition.send(member.machine, order, id=id, urgent=True)
