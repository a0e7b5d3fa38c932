"""Lightning's fit, made of the session's steps."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.loops import _EvaluationLoop, _FitLoop, _TrainingEpochLoop
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import RunningStage, TrainerFn

from trainmover.errors import ConfigError
from trainmover_executor.feed.feed import ENDLESS
from trainmover_executor.frameworks.lightning.data import movable_loader

if TYPE_CHECKING:
    from trainmover_executor.frameworks.lightning.trainer import TrainMoverTrainer

__all__ = ["MovableEpochLoop", "MovableFitLoop"]


class MovableFitLoop(_FitLoop):  # type: ignore[misc] # Lightning's types are not followed
    """All epochs in one call of ``session.steps``.

    A body is one batch: transfer, hooks, training step, optimizer, schedulers. What Lightning does
    behind it is done once, after the step was committed.
    """

    trainer: TrainMoverTrainer
    epoch_loop: MovableEpochLoop
    _data_fetcher: Any

    def run(self) -> None:
        """Train until Lightning says that it is done."""
        self.setup_data()
        if self.skip:
            return
        self._data_fetcher.teardown()  # the session reads the loader
        self._data_fetcher = None
        self.reset()
        self.on_run_start()
        self._train()
        self._restarting = False
        self.on_run_end()

    def _train(self) -> None:
        together, session = self.trainer.together, self.trainer.session
        loader = movable_loader(self._combined_loader, batches=self.max_batches)
        self._begin_epoch()
        for step in session.steps(loader, epochs=ENDLESS):
            together.look()
            with step as batch:
                together.begin_body()
                taken = self.epoch_loop.train_on(batch)
            together.end_body()
            self.epoch_loop.behind(taken)
            if self.epoch_loop.done:
                self._end_epoch()
            # A standby ends when the job has, whatever its shadow iterations have come to.
            if self.done and not session.is_shadow:
                break

    def _begin_epoch(self) -> None:
        self.on_advance_start()
        self.epoch_loop.reset()

    def _end_epoch(self) -> None:
        self.on_advance_end()
        self.on_iteration_done()
        if not self.done:
            self._begin_epoch()


class MovableEpochLoop(_TrainingEpochLoop):  # type: ignore[misc] # as above
    """One batch, in the body and behind it."""

    trainer: TrainMoverTrainer

    def __init__(self, trainer: TrainMoverTrainer, **limits: Any) -> None:
        super().__init__(trainer, **limits)
        self.val_loop = MovableValidation(
            trainer,
            TrainerFn.FITTING,
            RunningStage.VALIDATING,
            verbose=False,
            inference_mode=False,
        )

    def train_on(self, batch: Any) -> Any:
        """The body of a step.

        Returns:
            The batch as hooks get it.

        Raises:
            ConfigError: ``on_train_batch_start`` asks for the rest of the epoch to be left out.
        """
        trainer, module = self.trainer, self.trainer.lightning_module
        module._current_fx_name = None  # noqa: SLF001 - an aborted body left it
        index = self.batch_idx + 1
        self.batch_progress.is_last_batch = index + 1 >= trainer.num_training_batches
        batch = trainer.precision_plugin.convert_input(batch)
        batch = module._on_before_batch_transfer(batch, dataloader_idx=0)  # noqa: SLF001 - Lightning's way
        batch = call._call_strategy_hook(trainer, "batch_to_device", batch, dataloader_idx=0)  # noqa: SLF001 - as above
        self.batch_progress.increment_ready()
        trainer._logger_connector.on_batch_start(batch)  # noqa: SLF001 - as above
        call._call_callback_hooks(trainer, "on_train_batch_start", batch, index)  # noqa: SLF001 - as above
        if -1 == call._call_lightning_module_hook(trainer, "on_train_batch_start", batch, index):  # noqa: SLF001, SIM300 - as above
            raise ConfigError(
                "on_train_batch_start() returned -1, which leaves the rest of an epoch out and is "
                "not carried: set trainer.should_stop = True, or Trainer(limit_train_batches=...)"
            )
        call._call_strategy_hook(trainer, "on_train_batch_start", batch, index)  # noqa: SLF001 - as above
        self.batch_progress.increment_started()
        arguments = self._build_kwargs(OrderedDict(), batch, index)
        with trainer.profiler.profile("run_training_batch"):
            if module.automatic_optimization:
                self.automatic_optimization.run(trainer.optimizers[0], index, arguments)
            else:
                self.manual_optimization.run(arguments)
        self.batch_progress.increment_processed()
        self.update_lr_schedulers("step", update_plateau_schedulers=False)
        if self._num_ready_batches_reached():
            self.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        trainer.log_loss()
        return batch

    def behind(self, batch: Any) -> None:
        """What Lightning does behind a batch whose step is committed."""
        trainer, index = self.trainer, self.batch_idx
        output = trainer.fit_state.output
        call._call_callback_hooks(trainer, "on_train_batch_end", output, batch, index)  # noqa: SLF001 - as above
        call._call_lightning_module_hook(trainer, "on_train_batch_end", output, batch, index)  # noqa: SLF001 - as above
        trainer._logger_connector.on_batch_end()  # noqa: SLF001 - as above
        self.batch_progress.increment_completed()
        trainer._logger_connector.update_train_step_metrics()  # noqa: SLF001 - as above
        self.on_advance_end(None)
        self.on_iteration_done()


class MovableValidation(_EvaluationLoop):  # type: ignore[misc] # as above
    """A validation inside of a fit, which is done again where a machine dies in it.

    The hooks at its end, which save checkpoints and decide on early stopping, run behind it.
    """

    trainer: TrainMoverTrainer

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._evaluated_here = False

    def run(self) -> list[Any]:
        """Validate."""
        self.setup_data()
        if self.skip:
            return []
        self._evaluated_here = False
        modes = self.trainer.together.do(self._evaluate)
        with torch.no_grad():
            if not self._evaluated_here:  # as it is at the ranks that did
                self._take_modes(modes)
            super()._on_evaluation_end()
            super()._on_evaluation_model_train()
        return []

    def _evaluate(self) -> str:
        """Evaluate; which modules were in training mode before, for who is told of it."""
        self.trainer.lightning_module._current_fx_name = None  # noqa: SLF001 - as above
        super().run()
        self._evaluated_here = True
        return "".join(str(int(each)) for each in self._module_mode.mode.values())

    def _take_modes(self, modes: str | None) -> None:
        module = self.trainer.lightning_module
        self._on_evaluation_model_eval()
        if modes is not None:
            names = [name for name, _ in module.named_modules()]
            self._module_mode.mode = {
                name: each == "1" for name, each in zip(names, modes, strict=True)
            }

    def _on_evaluation_end(self, *args: Any, **kwargs: Any) -> None:
        """Behind the evaluation."""

    def _on_evaluation_model_train(self) -> None:
        """Behind the evaluation."""
