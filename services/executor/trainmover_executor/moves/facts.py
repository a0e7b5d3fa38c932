"""What the training thread of a rank says about a membership change, as facts for the planner."""

from __future__ import annotations

from typing import NoReturn

from trainmover.errors import ProtocolError
from trainmover.events.executor import PlanSwitched
from trainmover.job.plan import Plan
from trainmover_executor.decisions.transition import failure_of
from trainmover_executor.worker.runtime import Runtime

__all__ = ["Reports"]


class Reports:
    """Fills in who says it; never waits.

    Args:
        runtime: This rank.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def switched(
        self,
        plan: Plan,
        phases_s: dict[str, float],
        *,
        step: int,
        nbytes: int,
        copied: str = "",
    ) -> None:
        """Phase 2 of ``plan`` is complete here, after ``step`` steps.

        Args:
            plan: The plan.
            phases_s: Seconds of each part.
            step: Steps completed by the job.
            nbytes: Bytes of state sent or received.
            copied: Why state was copied at the switch, where it was.
        """
        self._runtime.report(
            PlanSwitched(
                migration=plan.id,
                machine=self._runtime.spec.machine,
                rank=self._runtime.rank,
                epoch=plan.epoch,
                step=step,
                phases_s=phases_s,
                state_bytes=nbytes,
                copied_because=copied,
            )
        )

    def refuse(self, plan: Plan, reason: str) -> NoReturn:
        """Say that ``plan`` cannot be carried out, and end this rank.

        Raises:
            ProtocolError: Always.
        """
        self._runtime.report(failure_of(self._runtime.decisions.state, plan, reason))
        raise ProtocolError(f"migration {plan.id} cannot be carried out here: {reason}")
