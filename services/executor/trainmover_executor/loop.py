"""The loop inside ``session.steps``: shadow iterations, attempts, and what happens between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from trainmover.errors import ConfigError
from trainmover.telemetry import Phase
from trainmover_executor.ballot import Ballot
from trainmover_executor.control import Warmed
from trainmover_executor.handover import Handover
from trainmover_executor.journal import Journal
from trainmover_executor.loader import Feed
from trainmover_executor.metrics import StepLog
from trainmover_executor.position import Position
from trainmover_executor.redo import StepStart
from trainmover_executor.redundancy.service import FollowerService
from trainmover_executor.role.effects import Warm
from trainmover_executor.runtime import Runtime
from trainmover_executor.state.rng import capture_rng, restore_rng
from trainmover_executor.state.training import TrainingState
from trainmover_executor.step import Step
from trainmover_executor.vitals import StepVitals

__all__ = ["SHADOW_ITERATIONS", "TrainingLoop"]

SHADOW_ITERATIONS: Final = 3
"""DDP rebuilds its buckets after the first iteration, compilers trace again in the second."""


class TrainingLoop:
    """Draws batches and yields steps, each until it is committed.

    Args:
        runtime: This rank's.
        state: All mutable training state.
        start: What a void step is taken back to.
        handover: Changes of the membership, at step boundaries.
        following: How the state survives this machine.
        ballot: The vote.
        journal: What is noted once a step is complete.
        log: Metrics.
        vitals: Timing of the parts of a step.

    Attributes:
        step: The step that was yielded last, while the loop runs.
        attempts: Bodies that ran in this process; lazy wrappers are warm after a few.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: TrainingState,
        *,
        start: StepStart,
        handover: Handover,
        following: FollowerService,
        ballot: Ballot,
        journal: Journal,
        log: StepLog,
        vitals: StepVitals,
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._start = start
        self._handover = handover
        self._following = following
        self._ballot = ballot
        self._journal = journal
        self._log = log
        self._vitals = vitals
        self._feed: Feed | None = None
        self._calls = 0
        self._max_steps: int | None = None
        self._target: Position | None = None
        self.step: Step | None = None
        self.attempts = 0

    def run(self, open_feed: Callable[[], Feed], *, max_steps: int | None) -> Iterator[Step]:
        """Steps over the data of one call of ``session.steps``."""
        self._calls += 1
        if self._is_ahead():
            return
        feed = self._feed = open_feed()
        self._max_steps = max_steps
        self._runtime.latch.protected = True
        try:
            yield from self._steps(feed)
        finally:
            self._runtime.latch.protected = False
            self.step = None
            self._handover.leaver.end()

    def before_optimizer(self) -> None:
        """Vote, unless no step runs; leaves the body when the step is void."""
        if self.step is not None:
            self.step.before_optimizer()

    def here(self) -> Position:
        """Where this rank is in its data and random numbers."""
        assert self._feed is not None  # noqa: S101 - set before the first step
        return Position(
            call=self._calls,
            feed=self._feed.position(),
            rng=capture_rng(),
            buffers=self._start.private_buffers(),
        )

    def _is_ahead(self) -> bool:
        """Whether a joiner is on its way to a later call of ``session.steps``."""
        return self._target is not None and self._target.call > self._calls

    def _steps(self, feed: Feed) -> Iterator[Step]:
        if self._calls == 1:
            yield from self._begin(feed)
            if self._is_ahead():
                return
        if self._target is not None:
            feed.seek(self._target.feed)
            restore_rng(self._target.rng)
            self._state.load_buffers(self._target.buffers)
            self._target = None
        while self._max_steps is None or self._handover.committed < self._max_steps:
            self._settle()
            self._handover.leaver.look_after()
            more, batch = self._vitals.draw(feed.draw)
            if not more:
                break
            yield from self._attempt(feed, batch)
        self._settle()
        self._write_final()

    def _write_final(self) -> None:
        if self._log.wanted:
            self._log.final(steps=self._handover.committed, digest=self._state.digest())

    def _begin(self, feed: Feed) -> Iterator[Step]:
        if self._runtime.sandboxed:
            beginning = self.here()
            yield from self._shadow(feed)
            self.attempts = SHADOW_ITERATIONS
            self._state.forget_passes()
            self._target = self._handover.take_over(beginning)
        self._state.forget_passes()
        self._following.protect()
        self._journal.begin()

    def _shadow(self, feed: Feed) -> Iterator[Step]:
        """Shadow iterations: everything lazy happens now, nothing of it is kept."""
        started = time.monotonic()
        self._runtime.await_compiled()
        for index in range(SHADOW_ITERATIONS):
            more, batch = feed.draw()
            if not more:
                feed.rewind()
                more, batch = feed.draw()
            if not more:
                raise ConfigError("the loader is empty: a standby cannot warm up")
            self._runtime.begin_step()
            self.step = Step(
                index=index,
                epoch=feed.epoch,
                batch=batch,
                vote=lambda: True,
                is_broken=lambda: False,
            )
            yield self.step
        runtime = self._runtime
        took_s = time.monotonic() - started
        runtime.report(
            Warmed(rank=runtime.rank, shadow_iterations=SHADOW_ITERATIONS, warm_s=took_s)
        )
        runtime.role.take(Warm())
        runtime.open_endpoint()

    def _attempt(self, feed: Feed, batch: Any) -> Iterator[Step]:
        """One step, attempted until it is committed."""
        self._start.capture(self._handover.committed)
        self._runtime.clock.step = self._handover.committed
        self._runtime.begin_step()
        while True:
            self._ballot.begin_step()
            while self._handover.unconfirmed and self.attempts < SHADOW_ITERATIONS:
                yield from self._catch_up(feed, batch)
            step = self.step = Step(
                index=self._handover.committed,
                epoch=feed.epoch,
                batch=batch,
                vote=self._vote,
                is_broken=lambda: self._runtime.latch.is_set,
                left=self._vitals.left,
                done=partial(self._journal.committed, epoch=feed.epoch),
            )
            self._vitals.attempt()
            try:
                yield step
            except GeneratorExit:
                if step.committed:  # the loop was left by break
                    self._write_final()
                raise
            if not step.entered:
                raise ConfigError(
                    "the body of the loop did not enter the step: use 'with step as batch:'"
                )
            self.attempts += 1
            if step.committed:
                return
            self._start.restore()
            self._following.void()
            step.check_batch()
            self._settle()
            self._handover.steps_redone += 1

    def _catch_up(self, feed: Feed, batch: Any) -> Iterator[Step]:
        """One void attempt in the sandbox, so that lazy wrappers are as far as the joiner's."""
        with self._runtime.in_sandbox():
            self.step = Step(
                index=self._handover.committed,
                epoch=feed.epoch,
                batch=batch,
                vote=lambda: False,
                is_broken=lambda: True,
            )
            yield self.step
        self.attempts += 1
        self._start.restore()
        self._ballot.begin_step()

    def _settle(self) -> None:
        """At a step boundary: finish whatever changes the membership."""
        self._state.forget_passes()
        while self._runtime.latch.is_set or self._handover.pending:
            self._vitals.enter(Phase.MOVING)
            self._handover.settle(self.here())

    def _vote(self) -> bool:
        last = self._max_steps is not None and self._handover.committed + 1 >= self._max_steps
        warm = self.attempts + 1 >= SHADOW_ITERATIONS
        return self._ballot.vote(
            may_switch=warm and not last, here=self.here, step_s=lambda: self._journal.step_s
        )
