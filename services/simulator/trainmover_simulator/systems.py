"""What an interruption costs with each system, as published; and what we assume besides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["SYSTEMS", "System"]


@dataclass(frozen=True, slots=True)
class System:
    """A way to go on after machines left; durations in seconds, all ranks stand still meanwhile.

    Attributes:
        name: How the command line calls it.
        title: How tables call it.
        source: Where its times were published.
        assumes: What they do not say, and we assume.
        crash_s: From the decision to the next step, with a machine at hand.
        planned_s: The same for an announced departure.
        standby_s: The same for a crash, when a warm standby is there; None: it knows no standbys.
        grow_s: Another standstill when the machine's successor is there.
        waits: Whether training waits until the scheduler has a machine.
        restarts: Whether it rolls back to a checkpoint, and waits for a machine also when
            a departure was announced.
        group: GPUs that stand still, while all others train, until a machine's successor
            takes part; 0: those of the machine alone.
        group_s: How long the group then needs to take part.
        restart_s: A restart from a checkpoint, for when neighbouring slots are lost that keep each
            other's private state; 0: it does not matter which are lost.
    """

    name: str
    title: str
    source: str
    assumes: tuple[str, ...]
    crash_s: float
    planned_s: float
    standby_s: float | None = None
    grow_s: float = 0.0
    waits: bool = True
    restarts: bool = False
    group: int = 0
    group_s: float = 0.0
    restart_s: float = 0.0


_RESTART_S: Final = (0.52 + 4.45) * 60
_NEIGHBOURS: Final = (
    "five or more neighbouring slots that are lost at once end the job, as our planner decides "
    "(ADR 2): it starts again from a checkpoint"
)
_CONSTANT: Final = "its times are constant at all sizes (as in TrainMover 8.2)"

SYSTEMS: Final = {
    one.name: one
    for one in (
        System(
            name="restart",
            title="restart from checkpoint",
            source="TrainMover Table 1, 8,192 GPUs: clean-up 0.52 min, framework 4.45 min",
            assumes=(
                _CONSTANT,
                "an announced departure saves first: nothing is lost",
                "writing checkpoints costs nothing",
            ),
            crash_s=_RESTART_S,
            planned_s=_RESTART_S,
            restarts=True,
        ),
        System(
            name="torchft",
            title="torchft",
            source="torchft's README: survivors barely stall, a replica comes back from a peer; "
            "TrainMover Fig. 8: 300 s to start 1,024 GPUs",
            assumes=(
                "a replica group is 1,024 GPUs and stands still until it is back",
                "survivors stall for one step of 10 s, and train on with a smaller batch: "
                "the run is another one, which no number here counts",
                "all groups' gradient exchange is as fast as without it (Clockwork measured "
                "930 min for torchft, 818 for restart, 405 for its own, on 64 GPUs)",
            ),
            crash_s=10.0,
            planned_s=10.0,
            waits=False,
            group=1_024,
            group_s=300.0,
        ),
        System(
            name="oobleck",
            title="Oobleck",
            source="TrainMover Fig. 1, 32 GPUs: 57 s to lose a machine, over 100 s to gain one",
            assumes=(
                _CONSTANT,
                "it fits the model, and is as fast as the layout chosen by hand",
                "100 s where over 100 s is published",
            ),
            crash_s=57.0,
            planned_s=57.0,
            grow_s=100.0,
            waits=False,
        ),
        System(
            name="parcae",
            title="Parcae",
            source="TrainMover Fig. 1, 32 GPUs: 21 s to lose a machine, over 200 s to gain one",
            assumes=(
                _CONSTANT,
                "it fits the model, and is as fast as the layout chosen by hand",
                "200 s where over 200 s is published",
            ),
            crash_s=21.0,
            planned_s=21.0,
            grow_s=200.0,
            waits=False,
        ),
        System(
            name="trainmover-cold",
            title="TrainMover without standbys",
            source="TrainMover Fig. 8, 1,024 GPUs: 16.6 s planned; Fig. 8 and 11, 32 GPUs: "
            "80 s of Megatron, 1.6 times as long as TrainMover without a standby",
            assumes=(
                _CONSTANT,
                "the state has a copy on another machine",
                _NEIGHBOURS,
                "a planned move has its machine ahead of time",
            ),
            crash_s=80.0 / 1.6,
            planned_s=16.6,
            restart_s=_RESTART_S,
        ),
        System(
            name="trainmover",
            title="TrainMover with standbys",
            source="TrainMover Fig. 8, 1,024 GPUs: 21.1 s after a crash, 16.6 s planned",
            assumes=(
                _CONSTANT,
                "the state has a copy on another machine",
                _NEIGHBOURS,
                "each standby is warm for every slot",
                "a planned move takes a standby, as our planner does; without one it gets "
                "a machine ahead of time",
                "when fewer standbys are warm than machines failed, it is as without them",
            ),
            crash_s=80.0 / 1.6,
            planned_s=16.6,
            restart_s=_RESTART_S,
            standby_s=21.1,
        ),
    )
}
