"""Work between two steps: an evaluation, a sharded checkpoint. All ranks do it, or all again.

A collective that the program calls there by itself, to average a metric or as a barrier, is such
work, too: of a crash between a step's vote and that collective the others learn in it.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, Final

import structlog
import torch
from torch.distributed.checkpoint.api import CheckpointException

from trainmover.errors import StaleEpochError
from trainmover_executor.decisions.effects import BetweenBroke, BetweenPassed
from trainmover_executor.links.link import LinkBrokenError
from trainmover_executor.moves.course_packing import portable_part, told_of
from trainmover_executor.moves.handover import Handover
from trainmover_executor.position.position import Position, WorkDone
from trainmover_executor.position.results import Returned
from trainmover_executor.program.frames import calls_collective, place_in, signature_of
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.shards import local_of
from trainmover_executor.state.redo import AsBefore, StepStart
from trainmover_executor.state.rng import restore_rng
from trainmover_executor.state.training import TrainingState
from trainmover_executor.training.body.attempt import StepLostError
from trainmover_executor.training.calls import OpenCalls
from trainmover_executor.worker.runtime import Runtime

__all__ = ["BetweenSteps", "Collectives"]

log = structlog.get_logger(__name__)

_MOST_BYTES: Final = 1024 * 1024
"""Of a collective's result that is told: what is larger is no metric."""
_LOOKS: Final = 64
"""Collectives of a first work between steps in front of which one looks at parameters."""
_EVERY: Final = 64
"""Collectives after which it is looked again where parameters are: there may be thousands."""


class Collectives:
    """Which collectives of the program are work between steps.

    Args:
        state: All mutable training state: what is written to it by itself is no such work.
        world_size: Ranks of the job; all of them have to take part.
        calls: The program's calls of ``session.steps``.
        between: See ``TrainingLoop.between``.
        is_shadow: Whether this process is a standby.
    """

    def __init__(
        self,
        state: TrainingState,
        *,
        world_size: int,
        calls: OpenCalls,
        between: Callable[[Callable[[], list[torch.Tensor]], FrameType], Any],
        is_shadow: Callable[[], bool],
    ) -> None:
        self._state = state
        self._world_size = world_size
        self._calls = calls
        self._between = between
        self._is_shadow = is_shadow
        self._thread = threading.get_ident()
        self._memory: set[int] = set()
        self._done = 0
        self._inside = False

    def do(
        self, ranks: Sequence[int], result: list[torch.Tensor], again: Callable[[], object]
    ) -> bool:
        """Do a collective as work between steps; False where it is none.

        Args:
            ranks: Global ranks of its group.
            result: What it writes to.
            again: Does it; may be called more than once.
        """
        calls = self._calls
        if self._inside or calls.in_body or not (calls.began and self._is_apart(ranks, result)):
            return False
        frame = calls_collective(sys._getframe(1))  # noqa: SLF001 - the documented way
        if frame is None:
            return False
        given = [tensor.detach().clone() for tensor in result]
        was_shadow, done = self._is_shadow(), False

        def work() -> list[torch.Tensor]:
            nonlocal done, was_shadow
            if was_shadow and not self._is_shadow():
                self._take_over(result, given)
                was_shadow = False
            _write(result, given)
            again()
            done = True
            return [tensor.detach().cpu().clone() for tensor in result]

        self._inside = True
        try:
            told = self._between(work, frame)
            if told is None and not done:
                again()  # a standby that cannot know yet what the job's returned
        finally:
            self._inside = False
        if told is not None:
            _write(result, told)
        return True

    def _take_over(self, result: list[torch.Tensor], given: list[torch.Tensor]) -> None:
        """It was given buffers of a standby, which hold those of the job by now."""
        buffers = {each.untyped_storage().data_ptr() for each in self._state.buffers()}
        for at, tensor in enumerate(result):
            if tensor.untyped_storage().data_ptr() in buffers:
                given[at] = tensor.detach().clone()

    def _is_apart(self, ranks: Sequence[int], result: list[torch.Tensor]) -> bool:
        if len(ranks) != self._world_size or threading.get_ident() != self._thread:
            return False
        if any(tensor.layout is not torch.strided for tensor in result):
            return False
        if sum(tensor.nbytes for tensor in result) > _MOST_BYTES:
            return False
        self._done += 1
        addresses = {tensor.untyped_storage().data_ptr() for tensor in result}
        if self._done % _EVERY == 1 or not addresses.isdisjoint(self._memory):
            # Memory of a parameter that is gone may be that of a metric by now, at one rank alone.
            parameters = map(local_of, self._state.parameters())
            self._memory = {each.untyped_storage().data_ptr() for each in parameters}
        return addresses.isdisjoint(self._memory)


def _write(result: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    inference = any(tensor.is_inference() for tensor in result)
    with torch.inference_mode() if inference else contextlib.nullcontext():
        for tensor, value in zip(result, values, strict=True):
            tensor.detach().copy_(value)


class BetweenSteps:
    """Attempts at work between steps.

    Args:
        runtime: This rank's.
        state: All mutable training state.
        handover: Resolves an attempt that broke at its end.
        variables: The program's own.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: TrainingState,
        *,
        handover: Handover,
        variables: LoopVariables,
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._handover = handover
        self._variables = variables
        self._left_out: set[str] = set()
        self._writes: dict[Any, bool] = {}

    def attempt(
        self,
        work: Callable[[], Any],
        frame: FrameType,
        here: Callable[[], Position],
        *,
        accumulates: bool,
    ) -> tuple[WorkDone | None, Any]:
        """Do it once; where it broke, all is as it was when it began.

        Args:
            work: What the program passed.
            frame: The program's frame that asks.
            here: Where this rank is, once the work is done.
            accumulates: Gradients are part of the state: earlier bodies accumulated them.

        Returns:
            What others are told of it, and what ``work`` returned; the former is None where some
            rank's communication broke.

        Raises:
            StepLostError: It broke behind a change that was not kept.
        """
        site = signature_of(frame)
        before = AsBefore(self._state)
        # Until it was seen to write to no parameter, all of them are kept.
        start = self._start(whole=self._writes.get(site, True), accumulates=accumulates)
        modes = self._state.modes()
        self._variables.keep(frame)
        try:
            with self._runtime.saves.allowing(), self._looking(before, site):
                result = self._do(work)
        finally:
            restore_rng(start.rng)
        if (done := self._agreed(result, here)) is not None:
            self._variables.note_changes()
            self._writes[site] = self._writes.get(site, False) or not before.is_so()
            return done, result
        if not (start.keeps_all or before.is_so()):
            raise StepLostError(
                f"session.between_steps() at {place_in(frame)} broke ({self._runtime.latch.reason})"
                " after it had written to parameters, for the first time, so that nothing was kept "
                "to take that back. Start the job again; write to them behind the body of a step."
            )
        # A consequence of the broken communication: all is as it was when the work began.
        start.restore()
        self._state.load_modes(modes)
        self._variables.put_back(frame)
        return None, None

    @contextlib.contextmanager
    def _looking(self, before: AsBefore, site: Any) -> Iterator[None]:
        """Look at parameters in front of each collective, too, while nobody knows of writes.

        Work may put averaged weights in, and take them out again before it ends.
        """
        latch, looks = self._runtime.latch, itertools.count()

        def look() -> None:
            if next(looks) < _LOOKS and not before.is_so():
                self._writes[site] = True

        latch.on_issue = look if site not in self._writes else None
        try:
            yield
        finally:
            latch.on_issue = None

    def _start(self, *, whole: bool, accumulates: bool) -> StepStart:
        start, committed = StepStart(self._state), self._handover.committed
        try:
            start.capture(committed, whole=whole, accumulates=accumulates)
        except torch.OutOfMemoryError:
            start = StepStart(self._state)  # few evaluations write to parameters
            start.capture(committed, accumulates=accumulates)
            log.warning(
                "no memory is left to keep parameters in while session.between_steps works: if it "
                "writes to them, and a machine dies in it, the job ends"
            )
        return start

    def collective(
        self, work: Callable[[], Any], *, here: Callable[[], Position]
    ) -> tuple[WorkDone | None, Any]:
        """The same for work that changes nothing but its result, and takes that back by itself."""
        result = self._do(work)
        done = self._agreed(result, here)
        return done, None if done is None else result

    def _do(self, work: Callable[[], Any]) -> Any:
        latch = self._runtime.latch
        try:
            with latch.protecting():
                self._runtime.reach("between.begin")
                return work()
        except (Exception, CheckpointException):  # torch derives the latter from BaseException
            if not latch.is_set:
                raise
        return None

    def pass_over(self, done: WorkDone, frame: FrameType) -> None:
        """Be where the rank that this one replaces was behind work between steps.

        Args:
            done: The work.
            frame: The program's frame that asks for it.
        """
        values, large = copy.deepcopy(done.position.variables), self._variables.contents
        self._variables.load(values, frame, contents=large)
        self._state.load_buffers(done.position.buffers)

    def _say_left_out(self, types: list[str]) -> None:
        if new := sorted({*types} - self._left_out):
            self._left_out.update(new)
            log.warning(
                "session.between_steps returned what cannot be carried to a standby, whose program "
                "gets None in its place: return numbers, strings, tensors and containers of them",
                types=new,
            )

    def _agreed(self, result: Any, here: Callable[[], Position]) -> WorkDone | None:
        """The work, where no rank's communication broke since the step; so it is at all ranks."""
        runtime, handover = self._runtime, self._handover
        runtime.drain()
        if runtime.latch.is_set:
            return None
        value = told_of(result)
        if value is None and result is not None:
            part, left_out = portable_part(result)
            self._say_left_out(left_out)
            value = told_of(part)
        there = here()
        there = replace(there, buffers=[[index, each.clone()] for index, each in there.buffers])
        done = WorkDone(Returned(runtime.decisions.state.between + 1, value), there)
        try:
            handover.private_state.exchange_work(done, step=handover.committed)
            runtime.reach("between.cast")
            runtime.agree([1], best=min)
        except (LinkBrokenError, StaleEpochError) as error:
            runtime.decisions.take(BetweenBroke(str(error)))
            return done if handover.resolve_undecided() else None
        runtime.decisions.take(BetweenPassed())
        return done
