"""The session: a training loop whose steps survive the replacement of a machine."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

from trainmover.errors import ConfigError
from trainmover_executor.checks.portable import check_state, register
from trainmover_executor.checks.strangers import refuse_strange_steps
from trainmover_executor.collectives.process_group import BACKEND
from trainmover_executor.feed import Feed
from trainmover_executor.feed.beside.cycle import Cycle
from trainmover_executor.moves.checkpoint import CheckpointHook, CheckpointKeeper
from trainmover_executor.moves.handover import Handover
from trainmover_executor.moves.private_state import PrivateStateKeeper
from trainmover_executor.program.tracked import Tracked, TrackedValues
from trainmover_executor.program.values.lasting import LastingValues
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.program.wrappers import is_bar
from trainmover_executor.redundancy.service import FollowerService
from trainmover_executor.report.journal import Journal
from trainmover_executor.report.metrics import StepLog
from trainmover_executor.report.step_timing import StepTiming
from trainmover_executor.state.buckets import settle_buckets
from trainmover_executor.state.optimizers.wrapped import HasStep, optimizers_in
from trainmover_executor.state.redo import StepStart
from trainmover_executor.state.rng import capture_rng, restore_rng
from trainmover_executor.state.training import Stateful, TrainingState
from trainmover_executor.training.between import Collectives
from trainmover_executor.training.body.beside import stand_beside
from trainmover_executor.training.body.vote import Voting
from trainmover_executor.training.calls import Call, StepIterator
from trainmover_executor.training.loop import SHADOW_ITERATIONS, TrainingLoop
from trainmover_executor.training.shadow import Shadow
from trainmover_executor.worker.runtime import current_runtime

__all__ = ["Session"]

_TRACKED: Final = "tracked"
_Result = TypeVar("_Result")


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
        optimizer: Their optimizer or optimizers; an object that wraps some stands for them. None
            where the program changes parameters by hand.
        scheduler: Learning-rate scheduler, stepped inside the body.
        scaler: Gradient scaler.
        loader: Default for ``steps``.
        checkpoint: Saves this rank's state after the given number of steps and returns where it
            is. Called when the job has to end because no machine is left for a slot (``trainmover
            run --when-exhausted checkpoint``); ranks are missing then, so it must not communicate.
        vote: ``auto`` votes in front of the optimizer where nothing else is changed, and at the
            end of bodies that were seen to need it; ``end`` keeps parameters and optimizers until
            the end of each body from the first step on.
        extras: Anything else with ``state_dict`` and ``load_state_dict``, by name. Its state may
            differ from rank to rank as long as it is small (1 MiB, or 2 MiB for each second of a
            step).

    Raises:
        ConfigError: The program was not started by TrainMover, or has a session already; something
            has no state_dict, or one that does not come back as it was; an optimizer shards its
            state over the ranks (``ZeroRedundancyOptimizer``). What cannot be known before the
            first steps is said after them: state that they added, and what they change and the
            session does not know.
    """

    def __init__(
        self,
        *,
        model: nn.Module | Sequence[nn.Module],
        optimizer: HasStep | Sequence[HasStep] = (),
        scheduler: Stateful | None = None,
        scaler: Stateful | None = None,
        loader: Iterable[Any] | None = None,
        checkpoint: CheckpointHook | None = None,
        vote: Literal["auto", "end"] = "auto",
        **extras: Stateful,
    ) -> None:
        if vote not in {"auto", "end"}:
            raise ConfigError(f"Session(vote={vote!r}): it is 'auto' or 'end'")
        self._runtime = current_runtime()
        self._vote = vote
        models = [model] if isinstance(model, nn.Module) else list(model)
        others = {"scheduler": scheduler, "scaler": scaler, **extras}
        self._state = TrainingState(
            models=models,
            optimizers=optimizers_in(optimizer),
            others={name: other for name, other in others.items() if other is not None},
        )
        check_state(self._state)
        register(self._runtime)
        self._loader = loader
        self._log = StepLog(
            self._runtime.spec.metrics_dir,
            rank=self._runtime.rank,
            machine=self._runtime.spec.machine,
        )
        self._tracked = TrackedValues()
        self._variables = LoopVariables(
            [self, *self._state.others.values()],
            extras={**self._state.extras, **self._state.modules_besides, _TRACKED: self._tracked},
            models=self._state.models,
            optimizers=self._state.optimizers,
            lasting=LastingValues(self._state),
        )
        self._handover, self._loop = self._assemble(checkpoint)
        self._shadow = Shadow(
            self._runtime,
            self._state,
            handover=self._handover,
            loop=self._loop,
            iterations=SHADOW_ITERATIONS,
        )
        self._loop.shadowed_by(self._shadow)
        settle_buckets(models)
        refuse_strange_steps(self._state)

    def _assemble(self, checkpoint: CheckpointHook | None) -> tuple[Handover, TrainingLoop]:
        """Everything that takes part in a step."""
        runtime, state = self._runtime, self._state
        start = StepStart(state)
        timing = StepTiming(runtime.clock, state.models)
        layout = runtime.membership.layout
        private_state = PrivateStateKeeper(runtime.control, rank=runtime.rank, layout=layout)
        following = FollowerService(runtime, state, last=lambda: timing.last)
        handover = Handover(
            runtime,
            state,
            private_state=private_state,
            following=following,
            checkpoint=CheckpointKeeper(checkpoint, runtime=runtime, start=start),
        )
        voting = Voting(
            runtime, handover, private_state=private_state, following=following, timing=timing
        )
        loop = TrainingLoop(
            runtime,
            state,
            start=start,
            handover=handover,
            following=following,
            voting=voting,
            journal=Journal(runtime, handover, following=following, log=self._log, timing=timing),
            log=self._log,
            timing=timing,
            variables=self._variables,
            at_end=self._vote == "end",
        )
        collectives = Collectives(
            state,
            world_size=layout.world_size,
            calls=loop.calls,
            between=partial(loop.between, is_collective=True),
            is_shadow=lambda: runtime.sandboxed,
        )
        runtime.latch.between = collectives.do
        for index, each in enumerate(state.optimizers):
            stand_beside(
                each,
                before=partial(voting.before_optimizer, index, loop.before_optimizer),
                after=partial(voting.after_optimizer, loop.after_optimizer),
            )
        return handover, loop

    @staticmethod
    def init() -> None:
        """Begin the process group, as ``init_process_group`` does that names no backend."""
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
        if self._runtime.sandboxed:
            return self._shadow.completed
        return self._handover.committed

    def log(self, **values: float | torch.Tensor) -> None:
        """Note numbers of the running step (``loss=...``); written once it is complete.

        Nothing is kept of shadow iterations and aborted steps.
        """
        if not self._runtime.sandboxed:
            self._log.note(values)

    def track(self, **values: Any) -> Tracked:
        """Make values part of the state: put back when a step is aborted, handed to joiners.

        For what the session does not find among the program's variables: tensors and containers of
        any size. Those that are large (above 16 KB a tensor) are, like a scheduler's, the same on
        all ranks that hold the same model.

        Example:
            >>> counters = session.track(global_step=0, best=float("inf"))
            >>> counters.global_step += 1

        Args:
            values: Numbers, strings, tensors, arrays, and containers of them, by name.

        Returns:
            An object with these attributes.

        Raises:
            ConfigError: A name is tracked already, a value is of another type, or ``steps`` was
                called before.
        """
        tracked = self._tracked.add(values)
        if self._state.others.setdefault(_TRACKED, self._tracked) is not self._tracked:
            raise ConfigError(f"Session({_TRACKED}=...) takes the name of session.track()")
        return tracked

    def between_steps(self, work: Callable[[], _Result]) -> _Result | None:
        """Collective work after a step: an evaluation, a sharded checkpoint.

        Random generators are as before afterwards, so training does not depend on it. When
        communication breaks meanwhile, it is done again by all ranks, the joiner included, with
        buffers, modes and the program's variables as they were when it began. A standby that is
        on its way to where the job stands gets what it returned there, and does not call it.

        Example:
            >>> if step.index % 100 == 99:
            ...     accuracy = session.between_steps(lambda: evaluate(model, validation))

        Args:
            work: Called by all ranks at the same place, outside of ``with step``.

        Raises:
            ConfigError: A step is under way, or ``work`` is no function.
        """
        if not callable(work):
            raise ConfigError(
                f"session.between_steps() was given a {type(work).__name__}: give it the function "
                "that it is to call, 'session.between_steps(lambda: evaluate(model))'"
            )
        return self._loop.between(work, sys._getframe(1))  # noqa: SLF001 - documented

    def digest(self) -> str:
        """SHA-256 of parameters, buffers, optimizer and other state of this rank."""
        return self._state.digest()

    def cycle(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Batches of one more loader, without end, to draw from with ``next``.

        For programs that read several loaders in a step. Its place in the data is part of the
        state: an aborted step draws the same batches again, and a joiner goes on where the rank
        that it replaces was. Each pass is begun with ``set_epoch``, where the loader's sampler has
        it. ``iter(loader)`` of a torch DataLoader is carried likewise, and ends with the data.

        Example:
            >>> unlabelled = session.cycle(unlabelled_loader)
            >>> for step in session.steps(loader):
            ...     with step as (x, y):
            ...         z = next(unlabelled)

        Args:
            loader: As for ``steps``.

        Returns:
            An iterator that the program keeps in a variable or an attribute of its own.
        """
        self._variables.ignore(loader)
        cycle = Cycle(loader, replay=SHADOW_ITERATIONS if self._runtime.sandboxed else 0)
        self._runtime.drawers.add(cycle)
        return cycle

    # -- the loop --------------------------------------------------------------------------------

    def steps(
        self,
        loader: Iterable[Any] | None = None,
        *,
        epochs: int | None = None,
        max_steps: int | None = None,
        start_step: int = 0,
        batches_per_step: int | None = None,
    ) -> StepIterator:
        """Steps over the data.

        ``len`` of what it returns is that of the loader, in steps: with ``epochs`` of all passes,
        at most ``max_steps``, those before ``start_step`` included.

        Args:
            loader: Batches; the session's loader when omitted. With ``state_dict`` a joiner
                resumes it by its own state; a map-style ``DataLoader`` by advancing the sampler;
                anything else by drawing what was used, ahead of time.
            epochs: Passes over the data; one when omitted.
            max_steps: Stop when the job has completed so many steps, those before ``start_step``
                included.
            start_step: The job's first step: those before it are in the checkpoint that the program
                has loaded. The data begins that many batches in; a loader with ``state_dict`` is
                left where the program has brought it, and so are the process-wide random
                generators. For the first call of ``steps``.
            batches_per_step: Give each step a list of so many batches, to accumulate gradients in
                one body; the last list of a pass may be shorter.

        Raises:
            ConfigError: There is no loader, or a progress bar around it, the body did not use
                ``with step``, ``start_step`` comes after the job's first step, or
                ``batches_per_step`` is not positive.
        """
        source = loader if loader is not None else self._loader
        if source is None:
            raise ConfigError("session.steps() has no data: pass a loader, or Session(loader=...)")
        if is_bar(source):
            raise ConfigError(
                f"session.steps() was given a progress bar, a {type(source).__name__}, which "
                "cannot be begun anew. Put it around the steps: tqdm(session.steps(loader))"
            )
        if batches_per_step is not None and batches_per_step < 1:
            raise ConfigError(f"session.steps(batches_per_step={batches_per_step}): pass 1 or more")
        self._tracked.sealed = True
        self._variables.ignore(source)
        replay = SHADOW_ITERATIONS if self._runtime.sandboxed else 0

        def open_feed() -> Feed:
            feed = Feed(source, epochs=epochs, replay=replay, together=batches_per_step)
            if start_step:
                set_by_program = capture_rng()
                feed.skip(start_step)
                restore_rng(set_by_program)
            return feed

        def length() -> int:
            a_pass = math.ceil(len(source) / (batches_per_step or 1))  # type: ignore[arg-type]
            steps = a_pass * (1 if epochs is None else epochs)
            return steps if max_steps is None else min(steps, max_steps)

        call = Call(open_feed, length=length, max_steps=max_steps, start_step=start_step)
        return StepIterator(self._loop, call)
