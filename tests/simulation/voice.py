"""What a simulated rank says, as facts for its agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainmover.events import executor
from trainmover.events.machine import LinkLost
from trainmover.job.plan import Plan
from trainmover.job.topology import Frozen
from trainmover_executor.decisions.state import WorkerState

__all__ = ["Voice"]


class Voice:
    """Fills in who says it.

    Args:
        report: Takes facts for the agent.
        role: What the rank knows now.
    """

    def __init__(self, report: Callable[[Frozen], None], role: Callable[[], WorkerState]) -> None:
        self._report = report
        self._role = role
        self._said_step = -1

    def _me(self) -> dict[str, Any]:
        role = self._role()
        return {"machine": role.machine, "rank": role.rank, "epoch": role.epoch}

    def _about(self, plan: Plan) -> dict[str, Any]:
        return {**self._me(), "migration": plan.id, "epoch": plan.epoch}

    def layout(self, *, world: int) -> None:
        """Every rank has what every other has."""
        role = self._role()
        replicas = tuple(range(world))
        self._report(
            executor.JobLayoutKnown(machine=role.machine, rank=role.rank, replicas=replicas)
        )

    def progress(self, *, step_s: float) -> None:
        """How far it is, when that is new."""
        role = self._role()
        if role.committed != self._said_step and not role.standby:
            self._said_step = role.committed
            self._report(executor.StepProgress(**self._me(), step=role.committed, step_s=step_s))

    def confirmed(self, plan: Plan) -> None:
        """The first step of an epoch is committed."""
        about = {**self._about(plan), "step": self._role().committed}
        self._report(executor.PlanCommitted(**about))
        self._report(executor.StepResumed(**about, pause_s=0.1, step_s=0.1, steps_redone=1))

    def switched(self, plan: Plan) -> None:
        """Phase 2 is complete."""
        self._report(
            executor.PlanSwitched(**self._about(plan), step=self._role().committed, phases_s={})
        )

    def blamed(self, peer: int, *, machine: str, kind: str) -> None:
        """A link to a neighbour ended, or was refused."""
        self._report(
            LinkLost.model_validate(
                {
                    **self._me(),
                    "peer_rank": peer,
                    "peer_machine": machine,
                    "step": self._role().committed,
                    "kind": kind,
                }
            )
        )
