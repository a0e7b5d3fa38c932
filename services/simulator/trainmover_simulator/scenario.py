"""What surrounds a job: how soon a failure is known, how soon a machine is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["MEASURED", "PAPER", "SCENARIOS", "TWO_MINUTES", "Scenario"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """The surroundings; durations in seconds.

    Attributes:
        name: How the command line calls it.
        about: What it assumes, each with its source.
        detect_s: From a failure to the decision.
        infra_s: Until the cluster's scheduler has another machine for the job.
        infra_for_all: Whether each interruption waits for ``infra_s``, standby or not.
        refill_s: Until another machine is in the place of a standby that was used.
        warm_s: Until a standby is warm.
        checkpoint_s: Between two checkpoints; 0: nothing is lost at a restart.
        step_s: The step that is done again by systems that need no checkpoint.
        one_after_another: Whether a failure during a recovery waits for its end and then costs
            all of its own downtime. Otherwise the recovery starts again, for both.
        grows_at_once: Whether Oobleck and Parcae pay one growing reconfiguration for a failure.
            Otherwise they shrink, and grow when a machine is there.
        racks: Share of the failures that takes a whole rack.
        switches: Share of the failures that takes all machines of a switch.
    """

    name: str
    about: tuple[str, ...]
    detect_s: float = 0.0
    infra_s: float = 0.0
    infra_for_all: bool = False
    refill_s: float = 0.0
    warm_s: float = 0.0
    checkpoint_s: float = 0.0
    step_s: float = 0.0
    one_after_another: bool = False
    grows_at_once: bool = False
    racks: float = 0.0
    switches: float = 0.0


_PAPER: Final = (
    "detection takes no time, no work is lost, one machine fails at a time (TrainMover 8.2)",
    "a used standby is replaced by a warm one at once (TrainMover 8.2: one standby)",
    "each failure costs its whole downtime, also during another one (Fig. 2: 1 - 4.45 min / MTTF)",
    "Oobleck and Parcae grow once for each interruption (our reading of Fig. 1 and Fig. 9)",
)

PAPER: Final = Scenario(
    name="paper",
    about=(*_PAPER, "no infrastructure time (with it the percentages of Fig. 9 do not come)"),
    one_after_another=True,
    grows_at_once=True,
)

TWO_MINUTES: Final = Scenario(
    name="paper-two-minutes",
    about=(*_PAPER, "two minutes of infrastructure time for every system (TrainMover 8.2)"),
    infra_s=120.0,
    infra_for_all=True,
    one_after_another=True,
    grows_at_once=True,
)

MEASURED: Final = Scenario(
    name="measured",
    about=(
        "detection 20 s (Mycroft, SOSP 2025: cause within 20 s in 60 % of cases; C4: tens of "
        "seconds; here: 0.04 s for a killed process to 6.1 s for a hang, benchmarks.detection)",
        "two minutes until the scheduler has a machine (TrainMover 8.2), for who needs one",
        "an hour until a used standby is replaced, five minutes until it is warm (assumptions; "
        "TrainMover Fig. 8: 300 s for an initialisation at 1,024 GPUs)",
        "a checkpoint every 10 steps for who rolls back, which costs nothing (DLRover's Flash "
        "Checkpoint: 0.2 s at 1,536 H800), steps of 10 s (an assumption)",
        "2 % of failures take a rack of 8 machines, 0.2 % a switch of 32 (assumptions: no source "
        "of ours has a rate)",
        "a failure during a recovery starts it again",
    ),
    detect_s=20.0,
    infra_s=120.0,
    refill_s=3_600.0,
    warm_s=300.0,
    checkpoint_s=100.0,
    step_s=10.0,
    racks=0.02,
    switches=0.002,
)

SCENARIOS: Final = {one.name: one for one in (MEASURED, PAPER, TWO_MINUTES)}
