"""One transition while it is being made: the state so far and the actions so far."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trainmover.events.executor import PlanFailed, PlanPrepared
from trainmover.job.plan import Plan
from trainmover_executor.decisions.chart import RANK
from trainmover_executor.decisions.effects import Action, Break, Publish
from trainmover_executor.decisions.state import WorkerState

__all__ = ["Transition", "failure_of"]


class Transition:
    """Collects what one event changes.

    Attributes:
        state: The state so far.
        actions: What the shell is to do, in order.
    """

    def __init__(self, state: WorkerState) -> None:
        self.state = state
        self.actions: list[Action] = []

    def set(self, **changes: Any) -> None:
        """Replace fields of the state."""
        RANK.check(self.state.phase, changes.get("phase", self.state.phase))
        self.state = replace(self.state, **changes)

    def do(self, action: Action) -> None:
        """Add an action."""
        self.actions.append(action)

    def breaks(self, reason: str, epoch: int | None = None) -> None:
        """Communication of an epoch is broken; only the first reason counts."""
        state = self.state
        at = state.epoch if epoch is None else epoch
        if at < state.epoch or (state.broken is not None and at <= state.broken_at):
            return
        self.set(broken=reason, broken_at=at)
        self.do(Break(at, reason))

    def prepared(self, plan: Plan, *, took_s: float) -> None:
        """Say that phase 1 of ``plan`` is complete here."""
        state = self.state
        self.do(
            Publish(
                PlanPrepared(
                    migration=plan.id,
                    machine=state.machine,
                    rank=state.rank,
                    epoch=plan.epoch,
                    prepare_s=took_s,
                )
            )
        )

    def failed(self, plan: Plan, reason: str, *, links_broke: bool = False) -> None:
        """Say that ``plan`` cannot be carried out here; this rank is as it was."""
        self.do(Publish(failure_of(self.state, plan, reason, links_broke=links_broke)))


def failure_of(
    state: WorkerState, plan: Plan, reason: str, *, links_broke: bool = False
) -> PlanFailed:
    """The fact that a rank cannot carry out ``plan``."""
    return PlanFailed(
        migration=plan.id,
        machine=state.machine,
        rank=state.rank,
        epoch=plan.epoch,
        reason=reason,
        step_safe=True,
        links_broke=links_broke,
    )
