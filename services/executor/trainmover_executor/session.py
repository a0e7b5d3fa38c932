"""The session: a training loop whose steps survive the replacement of a machine."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import structlog
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

from trainmover.errors import ConfigError, StaleEpochError
from trainmover.events.executor import (
    JobLayoutKnown,
    PlanCommitted,
    StepProgress,
    StepResumed,
)
from trainmover.telemetry import Phase
from trainmover_executor.capsule import CapsuleKeeper
from trainmover_executor.checkpoint import CheckpointHook, CheckpointKeeper
from trainmover_executor.control import Warmed
from trainmover_executor.handover import Handover
from trainmover_executor.links.link import LinkBrokenError
from trainmover_executor.loader import Feed
from trainmover_executor.metrics import StepLog
from trainmover_executor.position import Position
from trainmover_executor.process_group import BACKEND
from trainmover_executor.redo import StepStart
from trainmover_executor.redundancy.followed import Followed
from trainmover_executor.redundancy.layout import redundancy_of, replicas_of
from trainmover_executor.redundancy.service import FollowerService
from trainmover_executor.runtime import current_runtime
from trainmover_executor.state.rng import capture_rng, restore_rng
from trainmover_executor.state.training import Stateful, TrainingState
from trainmover_executor.step import Step
from trainmover_executor.vitals import StepVitals

__all__ = ["SHADOW_ITERATIONS", "Session"]

log = structlog.get_logger(__name__)

_Result = TypeVar("_Result")

SHADOW_ITERATIONS: Final = 3
"""DDP rebuilds its buckets after the first iteration, compilers trace again in the second."""


class Session:
    """Makes a training loop movable.

    Example:
        >>> session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
        >>> for step in session.steps(loader):
        ...     with step as (x, y):
        ...         loss = loss_fn(model(x), y)
        ...         optimizer.zero_grad(); loss.backward(); optimizer.step()

    A step whose communication broke is redone: the body runs again with the same batch, the same
    random numbers and the same buffers. Its optimizer step is taken once.

    Args:
        model: The module or modules that are trained, as wrapped (DDP, ``fully_shard``, ...).
        optimizer: Their optimizer or optimizers.
        scheduler: Learning-rate scheduler, stepped inside the body.
        scaler: Gradient scaler.
        loader: Default for ``steps``.
        checkpoint: Saves this rank's state after the given number of steps and returns where it
            is. Called when the job has to end because no machine is left for a slot (``trainmover
            run --when-exhausted checkpoint``); ranks are missing then, so it must not communicate.
        extras: Anything else with ``state_dict`` and ``load_state_dict``, by name.

    Raises:
        ConfigError: The program was not started by TrainMover, or something has no state_dict.
    """

    def __init__(
        self,
        *,
        model: nn.Module | Sequence[nn.Module],
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        scheduler: Stateful | None = None,
        scaler: Stateful | None = None,
        loader: Iterable[Any] | None = None,
        checkpoint: CheckpointHook | None = None,
        **extras: Stateful,
    ) -> None:
        self._runtime = current_runtime()
        models = [model] if isinstance(model, nn.Module) else list(model)
        optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else optimizer
        others = {"scheduler": scheduler, "scaler": scaler, **extras}
        self._state = TrainingState(
            models=models,
            optimizers=list(optimizers),
            others={name: other for name, other in others.items() if other is not None},
        )
        self._loader = loader
        self._log = StepLog(
            self._runtime.spec.metrics_dir,
            rank=self._runtime.rank,
            machine=self._runtime.spec.machine,
        )
        self._start = StepStart(self._state)
        self._vitals = StepVitals(self._runtime.clock, models)
        self._capsules = CapsuleKeeper(
            self._runtime.control,
            rank=self._runtime.rank,
            layout=self._runtime.membership.layout,
        )
        self._following = FollowerService(self._runtime, self._state)
        self._handover = Handover(
            self._runtime,
            self._state,
            capsules=self._capsules,
            following=self._following,
            checkpoint=CheckpointKeeper(checkpoint, runtime=self._runtime, start=self._start),
        )
        self._feed: Feed | None = None
        self._step: Step | None = None
        self._calls = 0
        self._max_steps: int | None = None
        self._target: Position | None = None
        self._attempts = 0
        self._stepping = False
        self._last_commit_s = time.monotonic()
        self._durations: deque[float] = deque(maxlen=32)
        for index, each in enumerate(self._state.optimizers):
            each.register_step_pre_hook(partial(self._before_optimizer, index))
            each.register_step_post_hook(self._after_optimizer)

    @staticmethod
    def init() -> None:
        """``init_process_group("trainmover")`` with everything a machine agent already knows."""
        runtime = current_runtime()
        dist.init_process_group(
            BACKEND,
            store=HashStore(),
            rank=runtime.rank,
            world_size=runtime.membership.layout.world_size,
        )

    @property
    def is_shadow(self) -> bool:
        """True in the shadow iterations of a standby: keep side effects out."""
        return self._runtime.sandboxed

    @property
    def completed_steps(self) -> int:
        """Steps completed by the job."""
        return self._handover.committed

    def log(self, **values: float | torch.Tensor) -> None:
        """Note numbers of the running step (``loss=...``); written once it is complete.

        Nothing is kept of shadow iterations and void steps.
        """
        if not self._runtime.sandboxed:
            self._log.note(values)

    def between_steps(self, work: Callable[[], _Result]) -> _Result | None:
        """Collective work after a step: an evaluation, a sharded checkpoint.

        Random generators are as before afterwards, so training does not depend on it. Every rank
        gets its result, or every rank gets None: communication broke meanwhile, and the machine
        that comes in for a lost one goes on with the next step.

        Example:
            >>> if step.index % 100 == 99:
            ...     accuracy = session.between_steps(lambda: evaluate(model, validation))

        Args:
            work: Called by all ranks at the same place, outside of ``with step``.

        Raises:
            ConfigError: A step is under way.
        """
        if self._step is not None and self._step.running:
            raise ConfigError("session.between_steps() was called inside 'with step'")
        runtime = self._runtime
        if runtime.sandboxed:
            return work()
        if runtime.latch.is_set:
            return None
        rng = capture_rng()
        try:
            result = work()
        except Exception:
            if not runtime.latch.is_set:
                raise
            return None  # a consequence of the broken communication, not a bug
        finally:
            restore_rng(rng)
        return result if self._whole() else None

    def _whole(self) -> bool:
        """Whether no rank's communication broke since the step; all ranks come to the same."""
        runtime, handover = self._runtime, self._handover
        runtime.drain()
        if runtime.latch.is_set:
            return False
        try:
            runtime.agree([1], op=dist.ReduceOp.MIN)
        except (LinkBrokenError, StaleEpochError) as error:
            runtime.latch.trip(str(error))
            return handover.resolve_between()
        handover.between += 1
        return True

    def digest(self) -> str:
        """SHA-256 of parameters, buffers, optimizer and other state of this rank."""
        return self._state.digest()

    # -- the loop --------------------------------------------------------------------------------

    def steps(
        self,
        loader: Iterable[Any] | None = None,
        *,
        epochs: int | None = None,
        max_steps: int | None = None,
    ) -> Iterator[Step]:
        """Steps over the data.

        Args:
            loader: Batches; the session's loader when omitted. With ``state_dict`` it resumes by
                its own state, else by position.
            epochs: Passes over the data; one when omitted.
            max_steps: Stop when the job has completed so many steps.

        Raises:
            ConfigError: There is no loader, or the body did not use ``with step``.
        """
        source = loader if loader is not None else self._loader
        if source is None:
            raise ConfigError("session.steps() has no data: pass a loader, or Session(loader=...)")
        self._calls += 1
        if self._target is not None and self._target.call > self._calls:
            return  # a joiner on its way to the call of steps() that the job is in
        self._feed = Feed(source, epochs=epochs)
        self._max_steps = max_steps
        self._runtime.latch.protected = True
        try:
            yield from self._run(self._feed)
        finally:
            self._runtime.latch.protected = False
            self._step = None
            self._vitals.enter(Phase.OUTSIDE)
            self._handover.leaver.end()

    def _run(self, feed: Feed) -> Iterator[Step]:
        if self._calls == 1:
            yield from self._begin(feed)
            if self._target is not None and self._target.call > self._calls:
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
        runtime = self._runtime
        if runtime.sandboxed:
            beginning = self._here()
            yield from self._shadow(feed)
            self._attempts = SHADOW_ITERATIONS
            self._target = self._handover.take_over(beginning)
        self._protect()
        self._last_commit_s = time.monotonic()

    def _protect(self) -> None:
        """See to it that this rank's state survives its machine, and say how."""
        runtime = self._runtime
        replicas = replicas_of(self._state.models, rank=runtime.rank)
        kind, obstacle = redundancy_of(
            runtime.spec.redundancy,
            rank=runtime.rank,
            replicas=replicas,
            layout=runtime.membership.layout,
            obstacle=Followed.obstacle(self._state),
        )
        if kind == "follower":
            self._following.begin()
        runtime.report(
            JobLayoutKnown(
                machine=runtime.spec.machine,
                rank=runtime.rank,
                replicas=replicas,
                redundancy=kind,
                obstacle=obstacle,
            )
        )

    def _shadow(self, feed: Feed) -> Iterator[Step]:
        """Shadow iterations: everything lazy happens now, nothing of it is kept."""
        started = time.monotonic()
        for index in range(SHADOW_ITERATIONS):
            more, batch = feed.draw()
            if not more:
                feed.rewind()
                more, batch = feed.draw()
            if not more:
                raise ConfigError("the loader is empty: a standby cannot warm up")
            self._step = Step(
                index=index,
                epoch=feed.epoch,
                batch=batch,
                vote=lambda: True,
                is_broken=lambda: False,
            )
            yield self._step
            self._runtime.recording.wait_no_more()
        runtime = self._runtime
        runtime.report(
            Warmed(
                rank=runtime.rank,
                shadow_iterations=SHADOW_ITERATIONS,
                warm_s=time.monotonic() - started,
            )
        )
        runtime.open_endpoint()

    def _attempt(self, feed: Feed, batch: Any) -> Iterator[Step]:
        """One step, attempted until it is committed."""
        self._start.capture(self._handover.committed)
        self._runtime.clock.step = self._handover.committed
        self._stepping = False
        while True:
            while self._handover.unconfirmed and self._attempts < SHADOW_ITERATIONS:
                yield from self._catch_up(feed, batch)
            step = self._step = Step(
                index=self._handover.committed,
                epoch=feed.epoch,
                batch=batch,
                vote=self._vote,
                is_broken=lambda: self._runtime.latch.is_set,
                left=self._vitals.left,
                done=partial(self._committed, feed),
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
            self._attempts += 1
            if step.committed:
                return
            self._start.restore()
            self._following.void()
            self._stepping = False
            step.check_batch()
            self._settle()
            self._handover.steps_redone += 1

    def _catch_up(self, feed: Feed, batch: Any) -> Iterator[Step]:
        """One void attempt in the sandbox, so that lazy wrappers are as far as the joiner's."""
        with self._runtime.in_sandbox():
            self._step = Step(
                index=self._handover.committed,
                epoch=feed.epoch,
                batch=batch,
                vote=lambda: False,
                is_broken=lambda: True,
            )
            yield self._step
        self._attempts += 1
        self._start.restore()

    def _settle(self) -> None:
        """At a step boundary: finish whatever changes the membership."""
        while self._runtime.latch.is_set or self._handover.pending:
            self._vitals.enter(Phase.MOVING)
            self._handover.settle(self._here())

    # -- the vote --------------------------------------------------------------------------------

    def _before_optimizer(self, index: int, *_: Any) -> None:
        if self._stepping:
            self._following.strayed()
        self._stepping = True
        if self._step is not None:
            self._step.before_optimizer()
        self._handover.leaver.before_optimizer(index)

    def _after_optimizer(self, *_: Any) -> None:
        self._handover.leaver.after_optimizer()

    def _vote(self) -> bool:
        """Commit the step everywhere or nowhere; decides a planned switch by the way."""
        runtime, handover = self._runtime, self._handover
        runtime.drain()
        if runtime.latch.is_set:
            return False
        self._vitals.enter(Phase.VOTE)
        handover.check_proof()
        runtime.reach("vote.begin")
        plan = runtime.mailbox.freeze() if self._may_switch() else None
        prepared = plan.epoch if plan is not None else runtime.epoch
        cast = False
        try:
            self._exchange_state(step=handover.committed + 1)
            cast = True
            runtime.reach("vote.cast")
            lowest, highest = runtime.agree([prepared, -prepared], op=dist.ReduceOp.MIN)
        except (LinkBrokenError, StaleEpochError) as error:
            runtime.latch.trip(str(error))
            runtime.mailbox.thaw(switching=False)
            return cast and handover.resolve_undecided()
        switching = plan is not None and lowest == -highest == plan.epoch
        dropped = runtime.mailbox.thaw(switching=switching)
        if dropped is not None:
            runtime.book.drop_parked(dropped.epoch)
        handover.vote_passed(plan if switching else None)
        self._vitals.enter(Phase.BODY)
        runtime.reach("vote.decided" if switching else "vote.passed")
        return True

    def _may_switch(self) -> bool:
        """Whether a switch may follow this step: wrappers are warm, and it is not the last one."""
        last = self._max_steps is not None and self._handover.committed + 1 >= self._max_steps
        return self._attempts + 1 >= SHADOW_ITERATIONS and not last

    def _exchange_state(self, *, step: int) -> None:
        """Hand the neighbours what a crash of this machine would lose, and keep theirs."""
        here, following = self._here().to_tree(), self._following
        coming = self._capsules.exchange(here, step=step, followed=following.active)
        following.exchange(
            step=step, stepping=self._stepping, receiving=coming, step_s=self._step_s()
        )

    def _step_s(self) -> float:
        return statistics.median(self._durations) if self._durations else 0.0

    def _here(self) -> Position:
        assert self._feed is not None  # noqa: S101 - set before the first step
        return Position(
            call=self._calls,
            feed=self._feed.position(),
            rng=capture_rng(),
            buffers=self._start.private_buffers(),
        )

    # -- after a step ----------------------------------------------------------------------------

    def _committed(self, feed: Feed) -> None:
        runtime, handover = self._runtime, self._handover
        runtime.reach("step.taken")
        runtime.end_recording()
        self._following.committed()
        self._log.commit(step=handover.committed - 1, epoch=feed.epoch)
        moved = handover.unconfirmed or handover.is_joiner or handover.steps_redone > 0
        self._vitals.committed(step=handover.committed - 1, loss=self._log.loss, moved=moved)
        if handover.unconfirmed:
            return  # its vote broke, but it counts: the pause goes on until the next one
        now = time.monotonic()
        duration = now - self._last_commit_s
        median = statistics.median(self._durations) if self._durations else duration
        self._last_commit_s = now
        if (plan := handover.confirm()) is not None:
            runtime.reach("commit.begin")
            runtime.commit()
            about = {"migration": plan.id, "machine": runtime.spec.machine, "rank": runtime.rank}
            place = {"epoch": runtime.epoch, "step": handover.committed}
            runtime.report(PlanCommitted.model_validate({**about, **place}))
            if not handover.is_joiner:
                resumed = {
                    "pause_s": max(0.0, duration - median),
                    "step_s": median,
                    "steps_redone": handover.steps_redone,
                }
                runtime.report(StepResumed.model_validate({**about, **place, **resumed}))
            handover.steps_redone = 0
            handover.is_joiner = False
        else:
            self._durations.append(duration)
        runtime.progress = StepProgress(
            machine=runtime.spec.machine,
            rank=runtime.rank,
            epoch=runtime.epoch,
            step=handover.committed,
            step_s=median,
            loss=self._log.loss,
        )
