"""Which policy is in force: what a file or a command line declared, as an event to the core."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainmover.events.operator import PolicyChanged, PolicyRefused
from trainmover_planner.state.state import Control, Declared
from trainmover_planner.state.transition import Transition

__all__ = ["COMMAND_LINE", "apply", "declare"]

COMMAND_LINE: Final = "command line"


def declare(transition: Transition, event: PolicyChanged | PolicyRefused) -> None:
    """Take in what a planner was told, and say it where it is news."""
    state = transition.state
    if isinstance(event, PolicyRefused):
        news = event.problems != state.declared.problems
    else:
        before = PolicyChanged(
            policy=state.policy,
            source=state.declared.source or COMMAND_LINE,
            shadow=state.declared.shadow,
            shadow_source=state.declared.shadow_source,
        )
        # Of the defaults alone nobody has to be told.
        news = event != before or bool(state.declared.problems)
    if news:
        apply(transition, event)
        what = "refused" if isinstance(event, PolicyRefused) else "changed"
        # Numbered: the same may be declared again later, and is another fact then.
        transition.publish(event, id=f"policy.{what}.{transition.state.declared.facts}")


def apply(transition: Transition, event: PolicyChanged | PolicyRefused) -> None:
    """Make it true, whether it was just declared or is read again."""
    state = transition.state
    facts = state.declared.facts + 1
    if isinstance(event, PolicyRefused):
        transition.set(declared=replace(state.declared, problems=event.problems, facts=facts))
        return
    declared = Declared(event.source, event.shadow, event.shadow_source, facts=facts)
    transition.set(policy=event.policy, declared=declared, control=_control(transition, event))


def _control(transition: Transition, event: PolicyChanged) -> Control:
    """Who spoke last is heard: an operator's word stands until something else is declared."""
    state, mode = transition.state, event.policy.automation
    if mode == state.policy.automation:
        return state.control
    return replace(state.control, mode=mode, reason=f"declared in {event.source}", requested_by="")
