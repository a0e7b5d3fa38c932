"""Says a hundred things to its agent, and fails at once."""

from __future__ import annotations

from trainmover.events.executor import StepProgress
from trainmover_executor.worker.runtime import current_runtime

runtime = current_runtime()
for step in range(100):
    runtime.report(
        StepProgress(machine=runtime.spec.machine, rank=runtime.rank, epoch=1, step=step, step_s=0)
    )
raise SystemExit(3)
