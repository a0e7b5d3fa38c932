"""A Lightning trainer whose fit survives the replacement of a machine."""

from __future__ import annotations

from functools import partial
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.trainer.states import TrainerFn
from torchmetrics import Metric

from trainmover.errors import ConfigError
from trainmover_executor.frameworks.lightning.carried.rows import Rows
from trainmover_executor.frameworks.lightning.carried.scalars import Scalars
from trainmover_executor.frameworks.lightning.carried.state import FitState
from trainmover_executor.frameworks.lightning.loops import MovableEpochLoop, MovableFitLoop
from trainmover_executor.frameworks.lightning.refusals import (
    options_of_job,
    refuse_callbacks,
    refuse_loggers,
    refuse_module,
    refuse_optimizers,
)
from trainmover_executor.frameworks.lightning.strategy import MovableStrategy
from trainmover_executor.frameworks.lightning.together import Together
from trainmover_executor.training.session import Session
from trainmover_executor.worker.runtime import current_runtime

__all__ = ["TrainMoverTrainer"]


class TrainMoverTrainer(Trainer):  # type: ignore[misc] # Lightning's types are not followed
    """``Trainer`` for a job whose machines are replaced.

    Example:
        >>> trainer = TrainMoverTrainer(max_epochs=3)
        >>> trainer.fit(model, train_loader, val_loader)

    A step of the session is one batch. Gradients are synchronized in each batch of an accumulation,
    because those that only one rank has are lost with it. In a shadow no process is the main one.

    Args:
        ddp: Options of ``DistributedDataParallel``, by name.
        options: Those of ``Trainer``.

    Attributes:
        together: Work of all ranks outside of a step's body.

    Raises:
        ConfigError: The program was not started by TrainMover, or asks for what is not carried.
    """

    fit_loop: Any

    def __init__(self, *, ddp: dict[str, Any] | None = None, **options: Any) -> None:
        self._runtime = current_runtime()
        self.together = Together(self._runtime, on_promotion=self._promoted)
        options = options_of_job(options, self._runtime.membership.layout)
        options["strategy"] = MovableStrategy(self._runtime, self.together, **(ddp or {}))
        super().__init__(**options)
        refuse_callbacks(self.callbacks)
        refuse_loggers(self.loggers)
        # The session does what Lightning has a signal do: a machine that leaves ends in order.
        self._signal_connector.register_signal_handlers = lambda: None
        before = self.fit_loop
        self.fit_loop = MovableFitLoop(
            self, min_epochs=before.min_epochs, max_epochs=before.max_epochs
        )
        self.fit_loop.epoch_loop = MovableEpochLoop(
            self, min_steps=before.min_steps, max_steps=before.max_steps
        )

    @property
    def session(self) -> Session:
        """The session, made when a fit begins.

        Raises:
            ConfigError: It has not begun.
        """
        if self.together.session is None:
            raise ConfigError("trainer.session is there from trainer.fit(...) on")
        return self.together.session

    @property
    def fit_state(self) -> FitState:
        """What is carried of the fit that is under way."""
        assert self.together.state is not None  # noqa: S101 - it has begun
        return self.together.state

    # -- a fit -----------------------------------------------------------------------------------

    def fit(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: Any = None,
        **options: Any,
    ) -> None:
        """See ``Trainer.fit``; once in a program.

        Raises:
            ConfigError: It is the second one, or begins in a checkpoint.
        """
        if self.together.session is not None:
            raise ConfigError(
                "this program calls trainer.fit() a second time, and its session is of the first: "
                "train in one fit, with more epochs"
            )
        if ckpt_path is not None:
            raise ConfigError(
                "trainer.fit(ckpt_path=...) is not carried: load the weights, "
                f"{type(model).__name__}.load_from_checkpoint(path), and begin a new fit"
            )
        refuse_module(model)
        super().fit(model, train_dataloaders, val_dataloaders, datamodule, **options)

    def _run_stage(self) -> Any:
        if self.state.fn != TrainerFn.FITTING:
            return self.together.do(super()._run_stage)
        refuse_callbacks(self.callbacks)  # the module may bring some
        refuse_optimizers(self.optimizers)
        self._begin_session()
        return super()._run_stage()

    def _begin_session(self) -> None:
        rows = [self._carried(each) for each in self.loggers if not isinstance(each, DummyLogger)]
        for each in self.lightning_module.modules():
            if isinstance(each, Metric) and each.dist_sync_fn is None:
                each.dist_sync_fn = self.strategy.gather_metric
        state = FitState(self, rows)
        configs = enumerate(self.lr_scheduler_configs)
        session = Session(
            model=self.strategy.model,
            optimizer=self.optimizers,
            scaler=getattr(self.precision_plugin, "scaler", None),
            lightning=state,
            **{f"scheduler{at}": each.scheduler for at, each in configs},
        )
        self.together.state, self.together.session = state, session

    def _carried(self, logger: Any) -> Rows | Scalars:
        """What sees to it that each value of ``logger`` is written once."""
        version = self.strategy.broadcast(logger.version)
        if isinstance(logger, CSVLogger):
            return Rows(logger, runtime=self._runtime, version=version)
        return Scalars(
            logger,
            runtime=self._runtime,
            version=version,
            may_be_redone=lambda: self.together.inside,
        )

    def _run_sanity_check(self) -> None:
        self.together.do(super()._run_sanity_check)

    def log_loss(self) -> None:
        """Note the loss of the running body for ``trainmover run --metrics``."""
        loss = self.fit_state.output.get("loss")
        if loss is not None:
            self.session.log(loss=loss)

    # -- what a shadow must not do, and what is done between steps ---------------------------------

    def save_checkpoint(self, filepath: Any, *args: Any, **options: Any) -> None:
        """See ``Trainer.save_checkpoint``; where a machine dies meanwhile it is written again."""
        self.together.do(partial(super().save_checkpoint, filepath, *args, **options))

    def print(self, *args: Any, **options: Any) -> None:
        """See ``Trainer.print``; nothing in a shadow."""
        if not self._runtime.sandboxed:
            super().print(*args, **options)

    def _promoted(self) -> None:
        """A standby took over: where it is the main process now, it writes and shows from here."""
        state, bar = self.together.state, self.progress_bar_callback
        if self._runtime.rank != 0 or state is None:
            return
        state.promoted()
        if bar is not None:
            bar.enable()
            bar.on_train_start(self, self.lightning_module)
            bar.on_train_epoch_start(self, self.lightning_module)
