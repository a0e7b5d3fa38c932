"""A standby's part of the training loop: shadow iterations, and the way to where the job stands."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

import structlog
import torch

from trainmover_executor.decisions.effects import Warm
from trainmover_executor.messages.worker import Warmed
from trainmover_executor.moves.course_packing import result_of
from trainmover_executor.moves.handover import Handover
from trainmover_executor.moves.joining.front import parameters_of
from trainmover_executor.position.course import EndCall, OneMoreStep, Stay, TakeOver, Way
from trainmover_executor.position.ended import EndedCall
from trainmover_executor.position.moment import Moment
from trainmover_executor.position.position import Position
from trainmover_executor.program.values.lasting import EXTRA
from trainmover_executor.state.handing_over.written import WrittenElsewhere
from trainmover_executor.state.redo import StepStart
from trainmover_executor.state.rng import capture_rng, restore_rng
from trainmover_executor.state.training import TrainingState
from trainmover_executor.training.body.borrowed import BorrowedBatches
from trainmover_executor.training.body.step import Step
from trainmover_executor.training.calls import Call, StepIterator
from trainmover_executor.training.standby_data import StandbyData
from trainmover_executor.worker.runtime import Runtime

if TYPE_CHECKING:
    from trainmover_executor.training.loop import TrainingLoop

__all__ = ["Shadow"]

log = structlog.get_logger(__name__)


class Shadow:
    """What the loop does while this process is a standby.

    At each place from which the program asks for steps for the first time, its body runs a few
    times in the sandbox. Then the program waits there until a plan needs this rank.

    Attributes:
        completed: Steps that the program is told the job has completed.
        votes_at_end: Whether the running body votes at its end, as that of the dead rank did.

    Args:
        runtime: This rank's.
        state: All mutable training state.
        handover: The joiner's part of it.
        loop: Gives the steps to the program.
        iterations: How often a body runs.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: TrainingState,
        *,
        handover: Handover,
        loop: TrainingLoop,
        iterations: int,
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._handover = handover
        self._joiner = handover.joiner
        self._loop = loop
        self._iterations = iterations
        self._sites: dict[Any, int] = {}
        self._site: Any = None
        self._began_s: float | None = None
        self._is_warm = False
        self._is_announced = False
        self._beginning: Position | None = None
        self._load: dict[str, Any] | None = None
        self._voted: Position | None = None
        self._before_site: dict[str, Any] | None = None
        self._asked: frozenset[str] = frozenset()
        self._leaving: tuple[Call, int] | None = None
        self._one_more = False
        self._settings: dict[str, Any] = {}
        self._given_values: dict[str, Any] = {}
        self._batches = BorrowedBatches(lambda: loop.batches)
        self._in_front: WrittenElsewhere | None = None
        self._start = StepStart(state)
        self._begun: Step | None = None
        self._started: Any = None
        self._data = StandbyData(runtime, loop, stand=self._stand)
        self.completed = 0
        self.votes_at_end = False

    # -- steps -------------------------------------------------------------------------------------

    def next(
        self, call: Call, iterator: StepIterator, frame: FrameType, *, site: Any
    ) -> Step | None:
        """A step in the sandbox; None to end the call, or once this process has taken over."""
        assert call.level is not None and call.feed is not None  # noqa: S101, PT018 - begun
        self._batches.put_back()  # it may be a view of what the loader is brought to its place in
        self._site = site
        if call.level.drawn == 0:
            self._begin(call, frame)
        if self._leaving == (call, call.level.drawn):
            self._leaving = None  # the job's program left this call here; this one did not
            self._end(call, variables=None, frame=frame)
            return None
        if self._sites.get(site, 0) < self._iterations and not self._joiner.replaces_the_dead:
            step = self._step(call, iterator, drawn=call.level.drawn + 1, index=call.start_step)
            if step is not None:
                return step
            if call.level.drawn == 0:
                self._end(call, variables=None, frame=frame)
                return None
        elif self._before_site is not None:
            self._loop.variables.put(self._before_site, frame)
            self._before_site = None
        self._warm_up_is_over()
        return self._go(call, iterator, frame)

    def _go(self, call: Call, iterator: StepIterator, frame: FrameType) -> Step | None:
        """Where the job is, or nearer to it."""
        self._data.asks = frame
        try:
            way, moment = self._way(between=False)
        finally:
            self._data.asks = None  # which would keep all that it holds
        match way:
            case EndCall(ended=ended):
                return self._leave(call, iterator, ended, frame)
            case OneMoreStep(drawn=drawn):
                self._voted = voted = self._joiner.voted
                if voted is None:
                    self._load = self._joiner.variables_now
                else:
                    self._load, self.votes_at_end = voted.variables, voted.at_end
                self._one_more = True
                self._asked = self._loop.variables.roots(frame)
                *outer, (ordinal, _) = self._loop.calls.course.open
                given = self._joiner.variables_when_given([*outer, [ordinal, drawn]])
                self._set_variables(given, frame)
                committed = self._joiner.committed
                return self._step(call, iterator, drawn=drawn, index=committed - 1)
            case TakeOver():
                assert moment is not None  # noqa: S101 - it comes with it
                self._take_over(moment, frame, iterator)
                return None
            case _:
                raise AssertionError(way)

    def _begin(self, call: Call, frame: FrameType) -> None:
        """A call begins: what shadow iterations do to its data and to variables does not count."""
        assert call.feed is not None  # noqa: S101 - begun
        call.beginning = call.feed.position()
        self._loop.variables.keep(frame, whole=True)
        self._before_site = self._loop.variables.kept
        if self._began_s is None:
            self._began_s = time.monotonic()
        if not self._is_warm and self._beginning is None:
            self._beginning = self._loop.standing.here(frame)

    def _step(self, call: Call, iterator: StepIterator, *, drawn: int, index: int) -> Step | None:
        """A step of the sandbox, as the ``drawn``-th of its call; None where there is no data."""
        assert call.level is not None and call.feed is not None  # noqa: S101, PT018 - begun
        if self._one_more:
            self._joiner.keep_writes()
        batch = self._batches.last_of(self._site) if self._one_more else None
        batch = batch or self._batches.draw(call.feed, site=self._site)
        if batch is None:
            return None
        by = drawn - 1 - call.level.drawn
        iterator.bring_wrappers_along(by=by, around=self._loop.calls.around)
        self._loop.calls.course.draw(call.level)
        call.level.drawn = drawn
        step = Step(index=index, epoch=call.feed.epoch, batch=batch, attempts=self._loop, loop=None)
        self._loop.calls.gave(call, step)
        self._batches.gave(step)
        self._in_front = parameters_of(self._state)
        self._in_front.note()
        return step

    def _leave(
        self, call: Call, iterator: StepIterator, ended: EndedCall, frame: FrameType
    ) -> Step | None:
        """End ``call`` as the job's ended."""
        assert call.level is not None and call.feed is not None  # noqa: S101, PT018 - begun
        if ended.left and ended.drawn > call.level.drawn:
            # It left the loop behind the body of its last step: run that code.
            self._leaving, self._load = (call, ended.drawn), ended.variables
            self.votes_at_end = ended.at_end
            self._one_more = True
            self._set_variables(ended.variables_when_given, frame)
            step = self._step(call, iterator, drawn=ended.drawn, index=ended.committed - 1)
            if step is not None:
                return step
        if ended.left or self._joiner.ran_the_rest:
            if not (ended.left or call.is_enough(ended.committed)):
                call.feed.finish()
            self._end(call, variables=None, frame=frame)
            return None
        self._end(call, variables=ended.variables, frame=frame)
        if ended.rng:
            restore_rng(ended.rng)  # the program may make the next loader of random numbers
        return None

    def _set_variables(self, values: dict[str, Any], frame: FrameType) -> None:
        """For the code in front of the body of one more step; the vote's come at its vote."""
        self._load_variables(copy.deepcopy(values), frame, large=self._joiner.large)
        self._given_values = values

    def _load_variables(
        self, values: Mapping[str, Any], frame: FrameType, *, large: Mapping[str, torch.Tensor]
    ) -> list[str]:
        variables = self._loop.variables
        return variables.load(values, frame, contents=large, borrowed=self._batches.memory)

    def _end(self, call: Call, *, variables: dict[str, Any] | None, frame: FrameType) -> None:
        if variables is not None:
            self._load_variables(variables, frame, large=self._joiner.large)
        self._loop.variables.bind_deleted(frame)
        self._loop.close_shadow(call)

    def _way(self, *, between: bool) -> tuple[Way, Moment | None]:
        course = self._loop.calls.course
        return self._joiner.way(course, between=between, data=self._data, ready=self._announce)

    def _warm_up_is_over(self) -> None:
        if self._is_warm:
            return
        self._is_warm = True
        self._runtime.decisions.take(Warm())
        self._runtime.open_endpoint()

    def _announce(self) -> None:
        """Say once that this standby is ready."""
        if self._is_announced:
            return
        self._is_announced = True
        runtime = self._runtime
        took_s = time.monotonic() - (self._began_s or time.monotonic())
        runtime.report(Warmed(rank=runtime.rank, shadow_iterations=self._iterations, warm_s=took_s))

    # -- attempts ----------------------------------------------------------------------------------

    def begin(self, step: Step, frame: FrameType) -> None:
        """The body of a step begins in the sandbox.

        Where it has run before, it begins with what it began with: it may take another way
        otherwise, through other collectives than those of the job's first step. What the code
        behind the body of one more step needs comes with the vote.
        """
        if step is self._begun:
            self._start.restore()
            self._loop.variables.put_back(frame)
            step.put_batch_back()
        elif not self._one_more:
            self._begun, self._started = step, self._site
            self._start.capture(self.completed)
            self._loop.variables.keep(frame)
        else:
            if self._batches.is_another:
                self._set_variables(self._given_values, frame)
            step.put_batch_back()  # variables of the job's were put into its containers
            if self._started == self._site and self._start.fits:  # else the model has grown since
                self._start.restore()
                given = self._given_values
                extras = {path: given[path] for path in given if path.startswith(EXTRA)}
                self._load_variables(extras, frame, large=self._joiner.large)
        if self._in_front is not None and self._in_front.names():
            self._joiner.writes_in_front()
        self._in_front = None
        self._runtime.begin_step()
        self._state.forget_passes()

    def is_broken(self) -> bool:
        """Whether a body that raised runs again: that of one more step, with another batch."""
        return self._one_more and self._batches.draw_another(self._loop.calls.feeds[-1])

    def vote(self, step: Step, frame: FrameType) -> bool:
        """Every step is committed here; on its way, the program gets the job's variables."""
        del step
        if not self._one_more:  # for which the job may be waiting
            self._loop.variables.note_generators(frame)
        if self._load is not None or self._voted is not None:
            self._batches.put_back()
        if self._load is not None:
            self._load_variables(self._load, frame, large=self._joiner.large)
            self._load = None
        if self._voted is not None:
            self._seek(self._voted, frame)  # may draw random numbers, as loading does
            restore_rng(self._voted.rng)
            self._state.load_buffers(self._voted.buffers)  # statistics of its own batches
            self._state.load_settings(self._voted.settings)
            # A generator that gives steps on cannot be seen from their bodies.
            seen = self._loop.variables.roots(frame)
            self._joiner.runs_the_rest(hidden=self._asked - seen)
            self._voted = None
        if self._one_more:
            self._settings = self._state.settings()
        return True

    def after_optimizer(self) -> None:
        """An optimizer took a step, in the body of one more step with a gradient of its own.

        The code behind it may make variables of parameters: they are what the job's are.
        """
        if self._one_more and not self.votes_at_end:
            self._joiner.put_parameters_back(settings=self._settings)

    def end(self, step: Step) -> bool:
        """Whether the body has to run again."""
        if self._batches.replace(step):
            return True
        self.completed = step.index + 1
        self.votes_at_end = False
        if self._one_more:
            self._one_more = self._batches.is_another = False
            settings = self._state.settings()  # the code behind the vote is about to move them on
            self._joiner.put_state_back()
            self._state.load_settings(settings)
            return False
        self._sites[self._site] = self._sites.get(self._site, 0) + 1
        return self._sites[self._site] < self._iterations

    # -- work between steps ------------------------------------------------------------------------

    def between(self, work: Callable[[], Any], frame: FrameType, *, is_collective: bool) -> Any:
        """Work between steps in the sandbox, or what it returned in the job."""
        self._batches.put_back()
        course = self._loop.calls.course
        if not self._is_warm:
            rng = capture_rng()
            try:
                with self._runtime.latch.protecting():
                    return work()  # its collectives are no work of their own, as in the job
            finally:
                restore_rng(rng)  # as in the job
                course.results.append(0)
        way, moment = self._way(between=True)
        if isinstance(way, TakeOver):
            assert moment is not None  # noqa: S101 - it comes with it
            if is_collective:
                self._joiner.check_inputs()
            self._take_over(moment, frame, None)
            return None
        returned = way.returned if isinstance(way, Stay) else None
        position = self._joiner.position_behind(returned)
        if position is not None:
            self._set_variables(position.variables, frame)
            restore_rng(position.rng)
            self._state.load_buffers(position.buffers)
            self._set(position)
        course.results.append(0 if returned is None else returned.ordinal)
        return None if returned is None else result_of(returned)

    # -- the end of being a standby ----------------------------------------------------------------

    def _take_over(self, moment: Moment, frame: FrameType, iterator: StepIterator | None) -> None:
        """Stand where the job stands, with the position of the rank that is replaced."""
        loop, place, position = self._loop, moment.place, moment.position
        if iterator is not None and place.open:
            mine = loop.calls.course.levels[-1].drawn
            by = place.open[-1][1] - mine
            iterator.bring_wrappers_along(by=by, around=loop.calls.around)
        if not position.feeds and place.open and self._beginning is not None:
            position = self._beginning
        missing = self._load_variables(position.variables, frame, large=moment.large)
        if missing:
            log.warning("variables of the rank that is replaced have no place here", paths=missing)
        loop.calls.course.adopt(place)
        self._state.forget_passes()
        self._seek(position, frame)
        restore_rng(position.rng)
        self._state.load_buffers(position.buffers)
        self._set(position)
        self._batches.clear()
        self._start, self._begun = StepStart(self._state), None  # lets go of what they hold
        self._handover.is_joiner = True
        loop.joined(moment, sites=self._sites)

    def _set(self, position: Position) -> None:
        """Have optimizers set as at ``position``: the code from there on moves them on.

        Who gives the state may be in the body of the next step already, behind code that decays a
        learning rate.
        """
        if self._state.has_groups_of(position.settings):
            self._state.load_settings(position.settings)

    def _stand(self, position: Position, frame: FrameType) -> list[str]:
        """Have variables and data be those of ``position``, but what is large of the former."""
        missing = self._load_variables(position.variables, frame, large={})
        self._seek(position, frame)
        return missing

    def _seek(self, position: Position, frame: FrameType) -> None:
        """Have the data of all open calls stand as in ``position``.

        A sampler that counts its passes has begun another one then. Its attributes are among the
        program's variables, which have come by themselves.
        """
        calls, variables = self._loop.calls, self._loop.variables
        variables.keep(frame)
        present = variables.kept
        for feed, beginning, there in zip(
            calls.feeds, calls.beginnings, position.feeds, strict=True
        ):
            feed.seek(beginning if there is None else there)
        variables.put(present, frame)
