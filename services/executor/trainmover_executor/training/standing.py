"""Where this rank stands between two steps, for whoever joins there."""

from __future__ import annotations

from dataclasses import replace
from types import FrameType
from typing import Any

from trainmover_executor.checks.same_batches import GivenPrints
from trainmover_executor.feed.batches.prints import print_of_batch
from trainmover_executor.moves.handover import Handover
from trainmover_executor.position.moment import Moment
from trainmover_executor.position.position import Position, WorkDone
from trainmover_executor.program.values.compare import differing
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.redundancy.service import FollowerService
from trainmover_executor.state.redo import StepStart
from trainmover_executor.state.rng import capture_rng
from trainmover_executor.state.training import TrainingState
from trainmover_executor.training.body.attempt import Attempt
from trainmover_executor.training.calls import OpenCalls
from trainmover_executor.worker.runtime import Runtime

__all__ = ["Standing"]


class Standing:
    """The place in the program, and what this rank alone knows there.

    Args:
        runtime: Shows it to the standby that follows this rank's machine.
        state: All mutable training state.
        start: What an aborted step is taken back to.
        handover: Knows how many steps are complete.
        following: Knows what the program writes to by itself.
        variables: The program's own.
        calls: The program's calls of ``session.steps``.
        attempt: The running step's.

    Attributes:
        passed: Work between steps that a joiner's program has to pass over, in front of the step
            that is done again.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: TrainingState,
        *,
        start: StepStart,
        handover: Handover,
        following: FollowerService,
        variables: LoopVariables,
        calls: OpenCalls,
        attempt: Attempt,
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._start = start
        self._handover = handover
        self._following = following
        self._variables = variables
        self._calls = calls
        self._attempt = attempt
        self._voted = Position([], {}, [], {})
        self._given: dict[str, Any] = {}
        self._moment: Moment | None = None
        self._prints = GivenPrints()
        self.passed: list[WorkDone] = []

    @property
    def moment(self) -> Moment:
        """Where it stood when it was looked last."""
        assert self._moment is not None  # noqa: S101 - somebody looked
        return self._moment

    @property
    def voted(self) -> Position:
        """Where it was at its last vote."""
        return self._voted

    def look(self, frame: FrameType, *, between: bool) -> None:
        """Note where the job stands, before anything is drawn.

        Args:
            frame: The program's frame.
            between: It asks for work between steps; else for a step.
        """
        if between and self._calls.holds_a_step:
            return  # a joiner begins in front of that step, too
        self._moment = Moment(
            position=self.here(frame, asks=not between),
            place=self._calls.course.place(committed=self._handover.committed, between=between),
            placement=self._attempt.placement,
            votes_at_end=self._attempt.keeps_all,
            accumulates=self._attempt.accumulates,
            voted=self._voted,
            large=self._variables.contents,
            written=self._following.written_between(),
        )
        self._show()

    def _show(self) -> None:
        places = self._runtime.places
        if places.listeners:
            places.show({**self.moment.to_tree(), "prints": self._prints.to_tree()})

    def here(self, frame: FrameType, *, asks: bool = False, votes: bool = False) -> Position:
        """Where this rank is in its data, random numbers and variables.

        Args:
            frame: The program's frame.
            asks: The program asks for a step.
            votes: It is in a body, in front of the vote.
        """
        return Position(
            feeds=[feed.position() for feed in self._calls.feeds],
            rng=capture_rng(),
            buffers=self._start.private_buffers(),
            variables=self._variables.changed(frame, asks=asks, votes=votes),
            gradients=self._state.gradient_print() if self._attempt.accumulating else None,
            settings=self._state.settings(),
        )

    def here_between(self, frame: FrameType) -> Position:
        """The same in work between steps."""
        return replace(self.here(frame), open=self._calls.course.open)

    def gives(self, batch: object) -> None:
        """The program is given a step of ``batch``, where this rank was looked at last."""
        self._given = self.moment.position.variables
        if self._runtime.places.listeners:
            self._prints.add(self.moment.place.open, print_of_batch(batch))

    def at_vote(self, frame: FrameType) -> Position:
        """The same in front of the vote, which is the last that others may know of this rank."""
        here = self.here(frame, votes=True)
        self._voted = replace(
            here,
            given=differing(self._given, here.variables),
            at_end=self._attempt.votes_at_end,
            open=self._calls.course.open,
        )
        return self._voted

    def worked(self, done: WorkDone) -> None:
        """Work between steps is complete."""
        self._calls.course.work(done.returned)
        if self._calls.holds_a_step and self._moment is not None:
            self._moment = replace(self._moment, passed=[*self._moment.passed, done])
            self._show()

    def adopt(self, moment: Moment) -> None:
        """A joiner stands where the rank stood that it replaces."""
        self._voted = moment.voted
        self.passed = list(moment.passed)
