"""A ``Trainer`` whose training survives the replacement of a machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from accelerate.utils import DistributedType

from trainmover.errors import ConfigError
from trainmover_executor.frameworks.transformers.events import Events
from trainmover_executor.frameworks.transformers.history import LogHistory
from trainmover_executor.frameworks.transformers.loop import SteppedTrainer
from trainmover_executor.frameworks.transformers.refusals import refuse, refuse_other_loops
from trainmover_executor.frameworks.transformers.watched import watch
from trainmover_executor.moves.course_packing import told_of
from trainmover_executor.training.session import Session
from trainmover_executor.worker.runtime import current_runtime

__all__ = ["TrainMoverTrainer"]

_KINDS: Final = (DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)
_Result = TypeVar("_Result")


class TrainMoverTrainer(SteppedTrainer):
    """``Trainer`` for a job whose machines are replaced.

    One optimizer step with all its batches is one step of the session. Evaluations, checkpoints
    and what is gathered for a log are work between steps. Callbacks, the trainer's state and
    attributes of classes that are derived from this one are carried.

    Example:
        >>> arguments = TrainingArguments("out", eval_strategy="steps", eval_steps=100)
        >>> trainer = TrainMoverTrainer(model, arguments, train_dataset=train, eval_dataset=test)
        >>> trainer.train()

    With a class derived from Trainer: ``class Mine(TrainMoverTrainer, Seq2SeqTrainer)``.
    In a shadow no process is the first one, and nothing is saved.

    Args:
        arguments: Those of ``Trainer``.
        options: As above.

    Raises:
        ConfigError: The program was not started by TrainMover, or asks for what is not carried:
            FSDP and DeepSpeed of Accelerate, ``dispatch_batches``, ``auto_find_batch_size``,
            ``push_to_hub``, reports to others than TensorBoard.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._runtime = current_runtime()
        self._session: Session | None = None
        self._in_work = False
        self._grad_norm = None
        self._learning_rate = None
        refuse_other_loops()
        if not dist.is_initialized():
            Session.init()
        super().__init__(*arguments, **options)
        folder = Path(self.args.output_dir) / "runs" / self._runtime.spec.job
        self.callback_handler = Events(self.callback_handler, self, folder=str(folder))

    def create_accelerator_and_postprocess(self) -> None:
        """See ``Trainer``; options that are not carried are refused in front of it.

        Raises:
            ConfigError: One is, or the job is not a distributed one.
        """
        refuse(self.args, self.model)
        config = self.args.accelerator_config
        config.dispatch_batches, config.use_seedable_sampler = False, True
        if not torch.accelerator.is_available() and not self.args.use_cpu:
            # Accelerate takes a job without accelerators for a single process otherwise.
            self.args.use_cpu = True
            self.args.__dict__.pop("_setup_devices", None)
            _ = self.args.device  # has it set up anew
        super().create_accelerator_and_postprocess()
        kind = self.accelerator.distributed_type
        if kind not in _KINDS:
            raise ConfigError(
                f"TrainMoverTrainer carries models in DistributedDataParallel, and this job is of "
                f"type {kind.value}: call trainmover.Session.init() in front of TrainingArguments("
                "...), and leave out plugins of Accelerate that shard models"
            )

    def _build_accelerator_args(self, **options: Any) -> dict[str, Any]:
        # Evaluations begin in between_steps, and no pass has to agree on random numbers there.
        arguments: dict[str, Any] = super()._build_accelerator_args(**options)
        return {**arguments, "rng_types": []}

    # -- the session -----------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """The session, from the beginning of ``train()`` on.

        Raises:
            ConfigError: Training has not begun.
        """
        if self._session is None:
            raise ConfigError("trainer.session is made by trainer.train(): call it first")
        return self._session

    @property
    def is_shadow(self) -> bool:
        """See ``Session.is_shadow``."""
        return self._runtime.sandboxed

    def train(self, *arguments: Any, **options: Any) -> Any:
        """See ``Trainer.train``; once in a program.

        Raises:
            ConfigError: It was called before, or for a search of hyperparameters.
        """
        if self._session is not None:
            raise ConfigError(
                "trainer.train() was called before: a program has one session. Train for longer "
                "(num_train_epochs, max_steps), or in a second job from a checkpoint"
            )
        if options.get("trial") is not None or any(arguments[1:2]):
            raise ConfigError(
                "a search of hyperparameters trains several models in a program, which has one "
                "session: start a job for each trial"
            )
        return super().train(*arguments, **options)

    def _prepare_for_training(self, *arguments: Any) -> tuple[Any, Any]:
        model, loader = super()._prepare_for_training(*arguments)
        self._session = Session(
            model=model,
            optimizer=self.optimizer.optimizer,
            scheduler=self.lr_scheduler,
            scaler=self.accelerator.scaler,
            log_history=LogHistory(self.state.log_history),
        )
        watch(self, loader, self._session._variables)  # noqa: SLF001 - the adapter's part of it
        return model, loader

    # -- what a shadow must not do ---------------------------------------------------------------

    def is_world_process_zero(self) -> bool:
        """Whether this is the first process, and no shadow of it."""
        return bool(super().is_world_process_zero()) and not self.is_shadow

    def is_local_process_zero(self) -> bool:
        """Whether this is the first process of its machine, and no shadow of it."""
        return bool(super().is_local_process_zero()) and not self.is_shadow

    def _save(self, *arguments: Any, **options: Any) -> None:
        if not self.is_shadow:
            super()._save(*arguments, **options)

    def _finalize_training(self, *arguments: Any) -> Any:
        limit = self.args.save_total_limit
        if self.is_shadow:
            self.args.save_total_limit = None  # it would remove the job's checkpoints
        try:
            return super()._finalize_training(*arguments)
        finally:
            self.args.save_total_limit = limit

    # -- work that all ranks do, or do again -------------------------------------------------------

    def _together(self, work: Callable[[], _Result]) -> _Result | None:
        if self._session is None or self._in_work:
            return work()
        return self._session.between_steps(partial(self._work, work))

    def _work(self, work: Callable[[], _Result]) -> _Result:
        gradients = self.accelerator.gradient_state
        loaders = list(gradients.dataloader_references)
        self._in_work = True
        try:
            return work()
        finally:
            self._in_work = False
            # An evaluation that broke has not taken its loader off this list.
            gradients.dataloader_references = loaders

    def _told(self, work: Callable[[], Any]) -> Any:
        """``_together``, with what callbacks are to be told once."""
        if self._session is None or self._in_work:
            return work()

        def attempt() -> list[Any]:
            with self.callback_handler.holding() as held:
                return [work(), [list(each) for each in held]]

        told = self._together(attempt)
        if told is None:  # in a shadow that knows no better
            return None
        result, held = told
        self.callback_handler.say([(event, options) for event, options in held])
        return result

    def evaluate(self, *arguments: Any, **options: Any) -> Any:
        """See ``Trainer.evaluate``; done again where a machine dies meanwhile.

        Raises:
            ConfigError: Metrics are not made of numbers and strings.
        """
        return self._told(partial(self._measure, super().evaluate, *arguments, **options))

    def _evaluate(self, *arguments: Any, **options: Any) -> Any:
        return self._told(partial(super()._evaluate, *arguments, **options))

    def _measure(self, evaluate: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        metrics = evaluate(*arguments, **options)
        if metrics and told_of(metrics) is None:
            odd = {name: type(value).__name__ for name, value in metrics.items()}
            raise ConfigError(
                f"compute_metrics returned what a joiner cannot be told: {odd}. Return numbers, "
                "strings and tensors, and lists and dictionaries of them."
            )
        return metrics

    def predict(self, *arguments: Any, **options: Any) -> Any:
        """See ``Trainer.predict``; done again where a machine dies meanwhile."""
        return self._told(partial(super().predict, *arguments, **options))

    def _save_checkpoint(self, *arguments: Any) -> None:
        told = self._together(partial(self._save_whole, super()._save_checkpoint, *arguments))
        if told is not None:
            self.state.best_model_checkpoint, self.state.total_flos = told
            self.current_flos = 0

    def _save_whole(self, save: Callable[..., None], *arguments: Any) -> list[Any]:
        if not self.is_shadow:
            save(*arguments)
        return [self.state.best_model_checkpoint, self.state.total_flos]

    def store_flos(self) -> None:
        """See ``Trainer.store_flos``."""
        total = self._together(partial(self._sum_up, super().store_flos))
        if total is not None:
            self.state.total_flos, self.current_flos = total, 0

    def _sum_up(self, store: Callable[[], None]) -> float:
        store()
        return float(self.state.total_flos)
