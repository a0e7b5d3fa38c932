"""What is noted and said once a step is complete."""

from __future__ import annotations

import statistics
import time
from collections import deque

from trainmover.events.executor import StepResumed
from trainmover.job.plan import Plan
from trainmover_executor.moves.handover import Handover
from trainmover_executor.redundancy.service import FollowerService
from trainmover_executor.report.metrics import StepLog
from trainmover_executor.report.step_timing import StepTiming
from trainmover_executor.worker.runtime import Progress, Runtime

__all__ = ["Journal"]

_REMEMBERED = 32


class Journal:
    """Durations, metrics and reports of committed steps.

    Args:
        runtime: Where reports go.
        handover: Knows how many steps are complete, and whether one confirms a plan.
        following: Told of each step.
        log: Numbers that the program noted.
        timing: Timing of the parts of a step.
    """

    def __init__(
        self,
        runtime: Runtime,
        handover: Handover,
        *,
        following: FollowerService,
        log: StepLog,
        timing: StepTiming,
    ) -> None:
        self._runtime = runtime
        self._handover = handover
        self._following = following
        self._log = log
        self._timing = timing
        self._durations: deque[float] = deque(maxlen=_REMEMBERED)
        self._last_commit_s = time.monotonic()

    @property
    def step_s(self) -> float:
        """How long an undisturbed step takes, in seconds; 0 before the first one."""
        return statistics.median(self._durations) if self._durations else 0.0

    def begin(self) -> None:
        """The first step of this rank comes now."""
        self._last_commit_s = time.monotonic()

    def committed(self, *, epoch: int) -> None:
        """A step is complete; ``epoch`` is the pass over the data that it belongs to."""
        runtime, handover = self._runtime, self._handover
        runtime.reach("step.taken")
        runtime.commit_step()
        self._following.committed()
        step = handover.committed - 1
        self._log.commit(step=step, epoch=epoch)
        moved = handover.unconfirmed or handover.is_joiner or handover.steps_redone > 0
        self._timing.committed(step=step, loss=self._log.loss, moved=moved)
        if handover.unconfirmed:
            return  # its vote broke, but it counts: the pause goes on until the next one
        now = time.monotonic()
        duration = now - self._last_commit_s
        self._last_commit_s = now
        usual = self.step_s or duration
        plan = handover.confirm()
        if plan is None:
            self._durations.append(duration)
        else:
            self._confirm(plan, pause_s=max(0.0, duration - usual), usual_s=usual)
        runtime.progress = Progress(
            epoch=runtime.epoch, step=handover.committed, step_s=usual, loss=self._log.loss
        )

    def _confirm(self, plan: Plan, *, pause_s: float, usual_s: float) -> None:
        """The first step of an epoch is complete: the plan that led to it is, too."""
        runtime, handover = self._runtime, self._handover
        runtime.reach("commit.begin")
        runtime.commit()
        runtime.report_commit(plan)
        if not handover.is_joiner:
            runtime.report(
                StepResumed(
                    migration=plan.id,
                    machine=runtime.spec.machine,
                    rank=runtime.rank,
                    epoch=runtime.epoch,
                    step=handover.committed,
                    pause_s=pause_s,
                    step_s=usual_s,
                    steps_redone=handover.steps_redone,
                )
            )
        handover.steps_redone = 0
        handover.is_joiner = False
