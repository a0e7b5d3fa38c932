"""The loop inside ``session.steps``: steps, attempts, and what happens between them.

The standby's part, until it takes over, is in ``shadow``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from trainmover.errors import ConfigError
from trainmover.telemetry.records import Phase
from trainmover_executor.checks.determinism import DeterminismCheck
from trainmover_executor.checks.lookout import Lookout
from trainmover_executor.checks.rank_own import RankOwn
from trainmover_executor.checks.swaps import Swaps
from trainmover_executor.decisions.effects import FirstVote, Starts
from trainmover_executor.feed.batches.kept import Batches
from trainmover_executor.moves.course_packing import result_of
from trainmover_executor.moves.handover import Handover
from trainmover_executor.position.moment import Moment
from trainmover_executor.position.placement import Placement
from trainmover_executor.position.position import Position
from trainmover_executor.program.frames import signature_of
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.redundancy.service import FollowerService
from trainmover_executor.report.costs import Costs
from trainmover_executor.report.journal import Journal
from trainmover_executor.report.metrics import StepLog
from trainmover_executor.report.step_timing import StepTiming
from trainmover_executor.state.redo import StepStart
from trainmover_executor.state.rng import capture_rng
from trainmover_executor.state.training import TrainingState
from trainmover_executor.training.between import BetweenSteps
from trainmover_executor.training.body.attempt import Attempt, StepLostError
from trainmover_executor.training.body.step import Step
from trainmover_executor.training.body.vote import Voting
from trainmover_executor.training.calls import Call, OpenCalls, StepIterator
from trainmover_executor.training.standing import Standing
from trainmover_executor.worker.runtime import Runtime

if TYPE_CHECKING:
    from trainmover_executor.training.shadow import Shadow

__all__ = ["SHADOW_ITERATIONS", "TrainingLoop"]

log = structlog.get_logger(__name__)

SHADOW_ITERATIONS: Final = 3
"""Allocators settle after the first iteration, compilers trace again in the second."""

_Result = TypeVar("_Result")


class TrainingLoop:
    """Draws batches and gives steps to the program, each until it is committed.

    Args:
        runtime: This rank's.
        state: All mutable training state.
        start: What an aborted step is taken back to.
        handover: Changes of the membership, at step boundaries.
        following: How the state survives this machine.
        voting: The vote.
        journal: What is noted once a step is complete.
        log: Metrics.
        timing: Timing of the parts of a step.
        variables: The program's own.
        at_end: Whether the program asked for votes at the end of bodies.

    Attributes:
        calls: The calls of ``session.steps`` that have begun and not ended.
        attempt: Where in its body the running step is.
        standing: Where in the program this rank is.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: TrainingState,
        *,
        start: StepStart,
        handover: Handover,
        following: FollowerService,
        voting: Voting,
        journal: Journal,
        log: StepLog,
        timing: StepTiming,
        variables: LoopVariables,
        at_end: bool = False,
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._start = start
        self._handover = handover
        self._following = following
        self._voting = voting
        self._journal = journal
        self._log = log
        self._timing = timing
        self.variables = variables
        self._determinism = DeterminismCheck(runtime, state)
        self._lookout = Lookout(state, variables)
        self._rank_own = RankOwn(handover.private_state, variables)
        self._swaps = Swaps(state)
        self.costs = Costs(runtime)
        self.calls = OpenCalls()
        self._sites: dict[Any, int] = {}
        self._site: Any = None
        self._batches: dict[Any, Batches] = {}
        self.attempt = Attempt(runtime, state, placement=Placement(settled=at_end))
        self.standing = Standing(
            runtime,
            state,
            start=start,
            handover=handover,
            following=following,
            variables=variables,
            calls=self.calls,
            attempt=self.attempt,
        )
        # Several optimizers are taken to alternate, until some steps were seen.
        runtime.decisions.take(FirstVote(at_end or len(state.optimizers) > 1))
        self._shadow: Shadow
        self._between = BetweenSteps(runtime, state, handover=handover, variables=variables)
        self._started = False

    def shadowed_by(self, shadow: Shadow) -> None:
        """The standby's part."""
        self._shadow = shadow

    # -- calls of session.steps ------------------------------------------------------------------

    def next(self, call: Call, iterator: StepIterator, frame: FrameType) -> Step | None:
        """The next step of ``call``; None when it is over.

        Args:
            call: Which call.
            iterator: What the program asks.
            frame: The program's frame that asks.

        Raises:
            ConfigError: The body did not use ``with step``, or a wrapper cannot be carried.
        """
        self._runtime.raise_fatal()
        if call.over:
            return None
        if (again := self._unfinished(call, iterator)) is not None:
            return again
        if call.level is None:
            self._begin(call)
        self._site = signature_of(frame)
        if self._runtime.sandboxed:
            step = self._shadow.next(call, iterator, frame, site=self._site)
            if self._runtime.sandboxed:
                return step
        return self._draw(call, frame)

    def _unfinished(self, call: Call, iterator: StepIterator) -> Step | None:
        """The step given last, where it has to be done again and no jump led back to it."""
        step = self.calls.unfinished(call)
        if step is None or self._runtime.sandboxed:
            return None
        log.warning("the code behind the body of an aborted step ran", step=step.index)
        try:
            iterator.bring_wrappers_along(by=-1, around=self.calls.around)
        except ConfigError as error:
            log.warning("a count is off by one", step=step.index, error=str(error))
        return step

    def _begin(self, call: Call) -> None:
        if call.start_step:
            self._start_from(call.start_step)
        self.calls.begin(call)

    def _start_from(self, step: int) -> None:
        """The program has loaded a checkpoint of ``step`` steps."""
        if self.calls.course.levels[0].ended or len(self.calls.course.levels) > 1:
            raise ConfigError(
                f"session.steps(start_step={step}) comes after an earlier call of session.steps(): "
                "start_step belongs to the first"
            )
        self._runtime.decisions.take(Starts(step))

    def _draw(self, call: Call, frame: FrameType) -> Step | None:
        assert call.feed is not None and call.level is not None  # noqa: S101, PT018 - begun
        if not self._started:
            self.start()
        self._runtime.reach("step.next")
        self.standing.look(frame, between=False)
        self._lookout.look(frame, committed=self._handover.committed)
        self._rank_own.look(self._handover.committed, step_s=self._journal.step_s)
        self._swaps.asks()
        self._settle()
        if call.is_enough(self._handover.committed):
            self._end(call, frame)
            return None
        self._handover.leaver.look_after(self.standing.moment)
        more, batch = self._timing.draw(call.feed.draw)
        if not more:
            self._settle()
            self._end(call, frame)
            return None
        self.calls.course.draw(call.level)
        self.standing.gives(batch)
        step = Step(
            index=self._handover.committed,
            epoch=call.feed.epoch,
            batch=self.batches.keep(batch),
            attempts=self,
            loop=frame,
        )
        self.calls.gave(call, step)
        self.variables.lasting.passing.batch = step.kept.batch
        return step

    def _end(self, call: Call, frame: FrameType) -> None:
        """The data of ``call`` is used up."""
        self._close(call, variables=self.variables.changed(frame), rng=capture_rng())
        self._write_final()

    def leave(self, call: Call) -> None:
        """The program let go of the iterator of ``call``: by ``break``, ``return`` or an error."""
        if call.level is None or call.over:
            return
        if self._runtime.sandboxed:
            self._close(call, left_at=Position([], {}, [], {}))
            return
        step, aborted = self.calls.step, self.calls.aborted(call)
        if aborted is not None and sys.exc_info()[0] is None and not aborted.running:
            self._runtime.fatal = (
                f"step {aborted.index} has to be done again because communication broke, but the "
                "program left the loop inside of its body. Put 'break' and 'return' behind "
                "'with step'."
            )
        self._close(call, left_at=self.standing.voted)
        if step is not None and step.committed:
            self._write_final()

    def _close(
        self,
        call: Call,
        *,
        variables: Mapping[str, Any] = MappingProxyType({}),
        rng: dict[str, Any] | None = None,
        left_at: Position | None = None,
    ) -> None:
        self.calls.close(
            call,
            committed=self._handover.committed,
            variables=variables,
            rng=rng,
            left_at=left_at,
        )
        self._handover.leaver.pause()

    def close_shadow(self, call: Call) -> None:
        """At a standby: ``call`` is over."""
        self._close(call)

    def _write_final(self) -> None:
        if self._log.wanted:
            self._log.final(steps=self._handover.committed, digest=self._state.digest())

    # -- between two steps -----------------------------------------------------------------------

    def start(self) -> None:
        """This rank takes part in training from now on."""
        self._started = True
        self.variables.settle()
        self._state.forget_passes()
        self._following.protect()
        self._journal.begin()

    @property
    def batches(self) -> Batches:
        """Of the place from which the program asks for steps."""
        return self._batches.setdefault(self._site, Batches())

    def _settle(self, *, held: bool = False) -> None:
        """At a step boundary: finish whatever changes the membership.

        Args:
            held: See ``Moment.held``.
        """
        self._state.forget_passes()
        while self._runtime.latch.is_set or self._handover.pending:
            self._timing.enter(Phase.MOVING)
            self._handover.settle(replace(self.standing.moment, held=held))

    # -- attempts, called by the step ------------------------------------------------------------

    def begin(self, step: Step, frame: FrameType) -> None:
        """See ``Attempts.begin``."""
        self.calls.enter(frame)
        if self._runtime.sandboxed:
            self._shadow.begin(step, frame)
            return
        self._state.forget_passes()  # there may have been an evaluation since the step was given
        self._runtime.drawers.in_body = True
        self.standing.passed.clear()
        redone = self.attempt.is_redone(step)
        self._voting.begin_step(redone=redone)
        self._determinism.begin(redone=redone)
        if redone:
            self._take_back(step, frame)
        else:
            self._handover.joiner.body_begins()
            self._start.capture(
                self._handover.committed,
                whole=self.attempt.keeps_all or self._determinism.rehearses,
                accumulates=self.attempt.accumulates,
            )
            if self._determinism.rehearses:
                self._start.restore()  # the second attempt begins with what this leaves
                self._following.restored()
            self.variables.keep(frame)
            self._runtime.drawers.forget()
            self._runtime.clock.step = self._handover.committed
            self._runtime.begin_step()
        done = self._sites.get(self._site, 0)
        catches_up = self._handover.unconfirmed and done < SHADOW_ITERATIONS
        self.attempt.begin(step, catches_up=catches_up)
        self._runtime.reach("step.begin")
        self._timing.attempt()

    def _take_back(self, step: Step, frame: FrameType) -> None:
        self._start.restore()
        self._following.restored()
        self._runtime.drawers.put_back()
        self.variables.put_back(frame)
        step.put_batch_back()
        if self.attempt.was_in_sandbox:
            return
        self._following.abort()
        if self._determinism.rehearsed:
            return
        self._settle(held=True)
        self._handover.steps_redone += 1

    def is_broken(self) -> bool:
        """See ``Attempts.is_broken``."""
        if self._runtime.sandboxed and self._shadow.is_broken():
            return True
        return self._runtime.latch.is_set or self.attempt.was_in_sandbox

    def before_optimizer(self) -> None:
        """In front of an optimizer's step: vote if this is the place; leave an aborted body."""
        step = self.calls.step
        if step is None or not step.running:
            return
        step.check_body()
        if not self._runtime.sandboxed:
            self.attempt.before_optimizer(step)
        elif not self._shadow.votes_at_end:
            step.cast_vote()

    def after_optimizer(self) -> None:
        """Behind an optimizer's step."""
        if self._runtime.sandboxed:
            self._shadow.after_optimizer()

    def vote(self, step: Step) -> bool:
        """See ``Attempts.vote``."""
        if self._runtime.sandboxed:
            return self._shadow.vote(step, sys._getframe(1))  # noqa: SLF001
        if self.attempt.in_sandbox:
            return False
        if self._determinism.rehearses:
            self._determinism.keep()
            return False
        self._determinism.compare()
        limit = self.calls.max_steps
        last = limit is not None and self._handover.committed + 1 >= limit
        warm = self._sites.get(self._site, 0) + 1 >= SHADOW_ITERATIONS
        frame = sys._getframe(1)  # noqa: SLF001 - the documented way
        return self._voting.vote(
            may_switch=warm and not last and not self._runtime.saves.under_way,
            at_end=self.attempt.voting() or bool(self._following.wants_the_end),
            here=partial(self.standing.at_vote, frame),
            step_s=lambda: self._journal.step_s,
        )

    def end(self, step: Step) -> bool:
        """See ``Attempts.end``."""
        self._runtime.drawers.in_body = False
        self.batches.look(step.kept)
        if self._runtime.sandboxed:
            return self._shadow.end(step)
        self._sites[self._site] = self._sites.get(self._site, 0) + 1
        self.attempt.end(step, kept=self._start.keeps_all)
        if not step.committed:
            return True
        self._journal.committed(epoch=step.epoch)
        self._swaps.body_ended()
        attempt, feeds = self.attempt, self.calls.feeds
        because = self._following.wants_the_end or attempt.because
        self.costs.committed(self._start, feeds, at_end=attempt.keeps_all, because=because)
        self._timing.left()
        return False

    def joined(self, moment: Moment, *, sites: dict[Any, int]) -> None:
        """A standby took over: it is as warm as the others, and votes where they do."""
        self._sites = dict(sites)
        self.standing.adopt(moment)
        self._lookout.joined()
        self._rank_own.joined()
        self.attempt.adopt(moment)
        self.start()

    # -- work between steps ----------------------------------------------------------------------

    def _stand_between(self, frame: FrameType, *, is_collective: bool) -> None:
        """Look where the program stands, and settle; in a collective only once it broke.

        Raises:
            StepLostError: It broke while other weights than the trained ones were in the model.
        """
        if is_collective:
            if not self._runtime.latch.uses_stand_ins:
                return
            if place := self._swaps.others_are_in:
                raise StepLostError(
                    f"communication broke ({self._runtime.latch.reason}) while other weights than "
                    f"the trained ones were in the model, at {place}: nobody holds the trained "
                    "ones. Start the job again; put the evaluation into "
                    "session.between_steps(...)."
                )
        self.standing.look(frame, between=True)
        self._settle()

    def between(
        self, work: Callable[[], _Result], frame: FrameType, *, is_collective: bool = False
    ) -> _Result | None:
        """See ``Session.between_steps``.

        Args:
            work: What the program asks for.
            frame: The program's frame that asks.
            is_collective: It changes nothing but its result, and takes that back by itself. Where
                the program stands is looked at once it broke only: it stands there still. Nobody
                moves in it: a joiner's program would have called it with variables of its own.

        Raises:
            StepLostError: See ``_stand_between``.
        """
        self._runtime.raise_fatal()
        if self.calls.in_body:
            raise ConfigError("session.between_steps() was called inside 'with step'")
        if self._runtime.sandboxed:
            result = self._shadow.between(work, frame, is_collective=is_collective)
            if self._runtime.sandboxed:
                return result  # type: ignore[no-any-return]
        if self.standing.passed:
            done = self.standing.passed.pop(0)
            self._between.pass_over(done, frame)
            self.standing.worked(done)
            return result_of(done.returned)  # type: ignore[no-any-return]
        here = partial(self.standing.here_between, frame)
        accumulates = self.attempt.accumulates
        if is_collective:
            self._swaps.communicates(frame)
        while True:
            self._stand_between(frame, is_collective=is_collective)
            if is_collective:
                complete, result = self._between.collective(work, here=here)
            else:
                complete, result = self._between.attempt(work, frame, here, accumulates=accumulates)
            if complete is not None:
                self._following.worked()
                self._runtime.drawers.forget()
                self.standing.worked(complete)
                return result  # type: ignore[no-any-return]
