"""The Trainer's pass over its data, in steps that can be done again: each is one optimizer step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar, cast

import torch
from accelerate import skip_first_batches
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import IterableDataset
from transformers import Trainer
from transformers.optimization import GreedyLR
from transformers.trainer_pt_utils import nested_gather
from transformers.utils import logging

from trainmover.errors import ConfigError
from trainmover_executor.training.session import Session

__all__ = ["SteppedTrainer"]

logger = logging.get_logger("transformers.trainer")

_STEPPED_BY_METRIC: Final = (ReduceLROnPlateau, GreedyLR)
_Result = TypeVar("_Result")


class SteppedTrainer(Trainer):  # type: ignore[misc] # transformers is not looked into
    """A Trainer whose passes over the data are made of a session's steps."""

    callback_handler: Any
    control: Any
    _globalstep_last_logged: int
    _grad_norm: torch.Tensor | float | None
    _learning_rate: float | None

    @property
    def session(self) -> Session:
        """Of the program."""
        raise NotImplementedError

    def _together(self, work: Callable[[], _Result]) -> _Result | None:
        """Work that all ranks do, or do again; see ``Session.between_steps``."""
        raise NotImplementedError

    def _run_epoch(  # noqa: PLR0917 - as the Trainer calls it
        self,
        model: nn.Module,
        epoch: int,
        train_dataloader: Any,
        steps_in_epoch: int,
        num_update_steps_per_epoch: int,
        trial: Any,
        ignore_keys_for_eval: list[str] | None,
        start_time: float,
        resume_from_checkpoint: str | None,
        epochs_trained: int,
        steps_trained_in_current_epoch: int,
    ) -> None:
        """See ``Trainer._run_epoch``; what is behind ``with step`` runs once for each step."""
        del num_update_steps_per_epoch  # the data ends by itself
        resumes = epoch == epochs_trained and resume_from_checkpoint is not None
        skipped = steps_trained_in_current_epoch if resumes else 0
        if skipped:
            train_dataloader = _without_first(train_dataloader, skipped)
        elif resumes:
            self._load_rng_state(resume_from_checkpoint)
        _set_epoch(train_dataloader, epoch)
        most = self.args.gradient_accumulation_steps
        steps = self.session.steps(train_dataloader.base_dataloader, batches_per_step=most)
        evaluate = partial(
            self._maybe_log_save_evaluate,
            model=model,
            trial=trial,
            epoch=epoch,
            ignore_keys_for_eval=ignore_keys_for_eval,
            start_time=start_time,
        )
        for step in steps:
            first_of_job = skipped and self.state.global_step == self._initial_global_step
            with step as batches:
                updated = self._update(
                    model, batches, rng_of=resume_from_checkpoint if first_of_job else None
                )
            if updated:
                self.state.global_step += 1
                seen = skipped + (steps.drawn - 1) * most + len(batches)
                self.state.epoch = epoch + seen / steps_in_epoch
                self.control = self.callback_handler.on_step_end(
                    self.args, self.state, self.control
                )
                evaluate(self._tr_loss, self._grad_norm, learning_rate=self._learning_rate)
            if self.control.should_epoch_stop or self.control.should_training_stop:
                break
        # A joiner on its way ends the calls that the job has ended, whatever it drew of them.
        if not (steps.drawn or skipped or self.session.is_shadow):
            logger.warning(
                "There is no sample in the data loader: training stops at step %d.",
                self.state.global_step,
            )
            self.control.should_training_stop = True
        del steps  # a loop that was left has ended for the session, too
        self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
        evaluate(self._tr_loss, self._grad_norm, learning_rate=self._learning_rate)

    def _update(self, model: nn.Module, batches: list[Any], *, rng_of: str | None) -> bool:
        """The body of a step: all batches of one optimizer step.

        Args:
            model: As wrapped.
            batches: Its batches.
            rng_of: A checkpoint whose random generators it begins with.

        Returns:
            Whether the optimizer took its step; not, where a callback ended training before.
        """
        self._forget_attempt()
        batches, num_items = self.get_batch_samples(iter(batches), len(batches), self.args.device)
        self.current_gradient_accumulation_steps = len(batches)
        if rng_of is not None:
            self._load_rng_state(rng_of)
        loss = torch.zeros((), device=self.args.device)
        for at, inputs in enumerate(batches):
            last = at == len(batches) - 1
            self.accelerator.gradient_state._set_sync_gradients(last)  # noqa: SLF001 - as the Trainer
            if at == 0:
                self.control = self.callback_handler.on_step_begin(
                    self.args, self.state, self.control
                )
            with self._synchronizing(model, last=last):
                loss += self._note_loss(self.training_step(model, inputs, num_items))
            self.current_flos += float(self.floating_point_ops(inputs))
            self._track_num_input_tokens(inputs)
            if not last:
                self.control = self.callback_handler.on_substep_end(
                    self.args, self.state, self.control
                )
                if self.control.should_epoch_stop or self.control.should_training_stop:
                    return False
        self.session.log(loss=loss)
        self._take_step(model)
        return True

    def _synchronizing(
        self, model: nn.Module, *, last: bool
    ) -> contextlib.AbstractContextManager[Any]:
        kwargs = self.accelerator.gradient_state.plugin_kwargs
        if last or kwargs.get("sync_each_batch", False):
            return contextlib.nullcontext()
        return cast("contextlib.AbstractContextManager[Any]", self.accelerator.no_sync(model=model))

    def _note_loss(self, loss: torch.Tensor) -> torch.Tensor:
        filtered = self.args.logging_nan_inf_filter and not bool(torch.isfinite(loss).all())
        if filtered:  # the average of those since the last log stands for it
            steps = 1 + self.state.global_step - self._globalstep_last_logged
            self._tr_loss += self._tr_loss / steps
        else:
            self._tr_loss += loss
        return loss

    def _take_step(self, model: nn.Module) -> None:
        grad_norm = self._clip_grad_norm(model) if self.args.max_grad_norm > 0 else None
        self._grad_norm = self._get_grad_norm(model, grad_norm=grad_norm)
        handler = self.callback_handler
        self.control = handler.on_pre_optimizer_step(self.args, self.state, self.control)
        self.optimizer.step()
        self.control = handler.on_optimizer_step(self.args, self.state, self.control)
        self._learning_rate = self._get_learning_rate()
        by_metric = isinstance(self.lr_scheduler, _STEPPED_BY_METRIC)
        if not (by_metric or self.accelerator.optimizer_step_was_skipped):
            self.lr_scheduler.step()
        model.zero_grad()

    def _forget_attempt(self) -> None:
        """An attempt that was aborted may have left the optimizer in the middle of its step."""
        optimizer = self.optimizer
        optimizer._is_overflow = False  # noqa: SLF001 - Accelerate has no public name
        if optimizer.scaler is not None:
            optimizer._accelerate_step_called = False  # noqa: SLF001 - as above
            optimizer.optimizer.step = optimizer._optimizer_original_step_method  # noqa: SLF001

    def _maybe_log_save_evaluate(  # noqa: PLR0917 - as above
        self,
        tr_loss: torch.Tensor,
        grad_norm: torch.Tensor | float | None,
        model: nn.Module,
        trial: Any,
        epoch: float,
        ignore_keys_for_eval: list[str] | None,
        start_time: float,
        learning_rate: float | None = None,
    ) -> None:
        """See ``Trainer._maybe_log_save_evaluate``; what it communicates is work between steps."""
        last = self._globalstep_last_logged
        if self.control.should_log and self.state.global_step > last:
            self._log_losses(tr_loss, grad_norm, start_time, learning_rate)
        super()._maybe_log_save_evaluate(
            tr_loss,
            grad_norm,
            model,
            trial,
            epoch,
            ignore_keys_for_eval,
            start_time,
            learning_rate=learning_rate,
        )

    def _log_losses(
        self,
        tr_loss: torch.Tensor,
        grad_norm: torch.Tensor | float | None,
        start_time: float,
        learning_rate: float | None,
    ) -> None:
        mean = self._together(
            lambda: float(nested_gather(tr_loss, self.args.parallel_mode).mean().item())
        )
        mean = 0.0 if mean is None else mean  # in a shadow that knows no better
        tr_loss -= tr_loss  # a loss that is no number stays, as in the Trainer
        logs = {"loss": mean / (self.state.global_step - self._globalstep_last_logged)}
        if grad_norm is not None:
            logs["grad_norm"] = float(grad_norm)
        logs["learning_rate"] = (
            self._get_learning_rate() if learning_rate is None else learning_rate
        )
        self._total_loss_scalar += mean
        self._globalstep_last_logged = self.state.global_step
        self.store_flos()
        self.log(logs, start_time)


def _without_first(loader: Any, batches: int) -> Any:
    if isinstance(loader.dataset, IterableDataset):
        raise ConfigError(
            "resume_from_checkpoint with an iterable data set would have to read what is before "
            "the checkpoint: set TrainingArguments(ignore_data_skip=True), or pass a map-style one"
        )
    return skip_first_batches(loader, batches)


def _set_epoch(loader: Any, epoch: int) -> None:
    """As the Trainer does: Accelerate does not reach every batch sampler that it wraps."""
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
    inner: Any = getattr(getattr(loader, "batch_sampler", None), "batch_sampler", None)
    if hasattr(inner, "set_epoch"):
        inner.set_epoch(epoch)
