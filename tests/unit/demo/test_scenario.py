"""The demo's script: what happens when, and what counts as going wrong."""

from __future__ import annotations

from tests.unit import factories as make

from trainmover.events.migration import JobFormed
from trainmover.job.topology import Frozen
from trainmover_console.demo.scenario import Act, Scenario, Stage
from trainmover_console.view import JobView

MACHINES = ("node-0", "node-1", "node-2", "node-3")
PLANNED = make.Move(
    "m-1",
    slot=2,
    leaver="node-2",
    joiner="node-4",
    after=make.membership_of("node-0", "node-1", "node-4", "node-3", epoch=2),
    step=40,
)
FAILURE = make.Move(
    "m-2",
    slot=0,
    leaver="node-0",
    joiner="node-5",
    after=make.membership_of("node-5", "node-1", "node-4", "node-3", epoch=3),
    kind="failure",
    step=70,
)


class Stageplay:
    def __init__(self) -> None:
        self.view = JobView("j")
        self.scenario = Scenario()
        self.acts: list[Act] = []
        self.say(JobFormed(membership=make.membership_of(*MACHINES), standbys=("node-4", "node-5")))

    def say(self, *facts: Frozen) -> None:
        for fact in facts:
            self.view.apply(make.said(fact))
            act = self.scenario.advance(self.view)
            if act is not None:
                self.acts.append(act)

    def warm_up(self, step: int = 30) -> None:
        for standby in ("node-4", "node-5"):
            self.say(*(make.ready(standby, slot) for slot in range(4)))
        self.say(make.progress("node-1", 1, step))

    @property
    def problems(self) -> list[str]:
        return self.scenario.problems(self.view)


def test_the_whole_story() -> None:
    play = Stageplay()
    play.warm_up()
    assert play.acts == [Act("slow", "node-2")]
    play.say(make.straggler("node-2", 2), PLANNED.proposed(), PLANNED.preparing())
    assert len(play.acts) == 1
    play.say(PLANNED.committed())
    assert play.acts[1:] == [Act("ease", "node-2")]
    play.say(make.progress("node-1", 1, 59))
    assert len(play.acts) == 2
    play.say(make.progress("node-1", 1, 60))
    assert play.acts[2:] == [Act("kill", "node-0")]
    play.say(FAILURE.proposed(), FAILURE.committed())
    assert play.scenario.stage is Stage.RECOVERED
    assert play.problems == []


def test_nobody_is_hurt_before_step_25_or_before_every_standby_is_ready() -> None:
    play = Stageplay()
    play.warm_up(step=24)
    assert play.acts == []
    cold = Stageplay()
    cold.say(make.progress("node-1", 1, 90), *(make.ready("node-4", slot) for slot in range(4)))
    assert cold.acts == []


def test_a_job_that_ends_early_is_a_problem() -> None:
    play = Stageplay()
    play.warm_up()
    assert "--steps" in play.problems[0]


def test_moving_a_machine_that_no_detector_named_is_a_problem() -> None:
    play = Stageplay()
    play.warm_up()
    play.say(PLANNED.committed(), make.progress("node-1", 1, 60), FAILURE.committed())
    assert [text for text in play.problems if "no detector named node-2" in text]


def test_moving_a_third_machine_is_a_problem() -> None:
    play = Stageplay()
    play.warm_up()
    play.say(make.straggler("node-2", 2), PLANNED.committed())
    play.say(make.progress("node-1", 1, 60), FAILURE.committed())
    other = make.Move(
        "m-3",
        slot=1,
        leaver="node-1",
        joiner="node-6",
        after=make.membership_of("node-5", "node-6", "node-4", "node-3", epoch=4),
    )
    play.say(other.committed())
    assert play.problems == ["node-1 was moved without need: node-1 is bad"]
