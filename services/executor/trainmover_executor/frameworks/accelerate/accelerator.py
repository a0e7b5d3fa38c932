"""An ``Accelerator`` whose training loop survives the replacement of a machine."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderShard
from accelerate.utils import DataLoaderConfiguration, DistributedType, GradientAccumulationPlugin
from torch import nn

from trainmover.errors import ConfigError
from trainmover_executor.frameworks.accelerate.counters import Counters
from trainmover_executor.frameworks.accelerate.reading import Reading, place_batches
from trainmover_executor.training.calls import StepIterator
from trainmover_executor.training.session import Session
from trainmover_executor.worker.runtime import current_runtime

__all__ = ["TrainMoverAccelerator"]

_KINDS: Final = (DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)
_Result = TypeVar("_Result")


class TrainMoverAccelerator(Accelerator):  # type: ignore[misc] # Accelerate has no type hints
    """``Accelerator`` for a job whose machines are replaced.

    The session is made at the first ``steps`` or ``session``, of everything that was prepared or
    registered for checkpointing until then.

    Example:
        >>> accelerator = TrainMoverAccelerator(gradient_accumulation_steps=2)
        >>> model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        >>> for step in accelerator.steps(loader):
        ...     with step as batch, accelerator.accumulate(model):
        ...         loss = model(**batch).loss
        ...         accelerator.backward(loss)
        ...         optimizer.step()
        ...         optimizer.zero_grad()

    Three defaults differ. Gradients are synchronized in each batch of an accumulation
    (``sync_each_batch``), because those that only one rank has are lost with it. Shuffling is
    seeded (``use_seedable_sampler``), and no rank hands batches to the others
    (``dispatch_batches``). In a shadow no process is the main one.

    Args:
        gradient_accumulation_steps: As for ``Accelerator``.
        options: Those of ``Accelerator``.

    Raises:
        ConfigError: The program was not started by TrainMover, or asks for what is not carried:
            FSDP, DeepSpeed or Megatron-LM of Accelerate, ``dispatch_batches``, names of
            checkpoints by number.
    """

    def __init__(self, *, gradient_accumulation_steps: int = 1, **options: Any) -> None:
        self._runtime = current_runtime()
        self._session: Session | None = None
        self._reading = Reading()
        self._wrapped: list[nn.Module] = []
        if not torch.distributed.is_initialized():
            Session.init()
        if options.get("gradient_accumulation_plugin") is None:
            steps = os.environ.get(
                "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", gradient_accumulation_steps
            )
            options["gradient_accumulation_plugin"] = GradientAccumulationPlugin(
                num_steps=int(steps), sync_each_batch=True
            )
        elif gradient_accumulation_steps != 1:
            raise ConfigError(
                "pass gradient_accumulation_steps or gradient_accumulation_plugin, not both"
            )
        options["dataloader_config"] = _movable(options.get("dataloader_config"))
        options.setdefault("cpu", not torch.accelerator.is_available())
        # Evaluations begin in between_steps, and no pass has to agree on random numbers there.
        options.setdefault("rng_types", [])
        super().__init__(**options)
        self._refuse()

    def _refuse(self) -> None:
        if self.distributed_type not in _KINDS:
            raise ConfigError(
                f"TrainMoverAccelerator carries models in DistributedDataParallel, and this job is "
                f"of type {self.distributed_type.value}: leave out FSDP, DeepSpeed and Megatron-LM "
                "plugins. To shard a model use fully_shard and trainmover.Session."
            )
        if self.project_configuration.automatic_checkpoint_naming:
            raise ConfigError(
                "automatic_checkpoint_naming takes a new folder for each attempt, and a checkpoint "
                "during which a machine dies is written again. Name it: "
                "accelerator.save_state(f'checkpoint-{step.index}')."
            )

    # -- the session -----------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """The session, made of what was prepared until now.

        Raises:
            ConfigError: Nothing was prepared.
        """
        if self._session is None:
            if not self._wrapped or not self._optimizers:
                raise ConfigError(
                    "call accelerator.prepare(model, optimizer, loader) before accelerator.steps() "
                    "and accelerator.session"
                )
            schedulers = {f"scheduler{i}": one.scheduler for i, one in enumerate(self._schedulers)}
            registered = {f"registered{i}": one for i, one in enumerate(self._custom_objects)}
            self._session = Session(
                model=self._wrapped,
                optimizer=[each.optimizer for each in self._optimizers],
                scaler=self.scaler,
                accelerator=Counters(self, self._reading),
                **schedulers,
                **registered,
            )
        return self._session

    def steps(self, loader: Any, *, max_steps: int | None = None) -> StepIterator:
        """One pass over a prepared loader, in steps: each is one batch.

        Args:
            loader: What ``prepare`` returned.
            max_steps: Stop when the job has completed so many steps.

        Raises:
            ConfigError: The loader was not prepared.
        """
        if type(loader) is not DataLoaderShard:
            raise ConfigError(
                f"accelerator.steps() takes a loader that accelerator.prepare() returned, not a "
                f"{type(loader).__name__}"
            )
        session = self.session
        loader.set_epoch(loader.iteration)
        loader.iteration += 1
        steps = session.steps(loader.base_dataloader, max_steps=max_steps)
        self._reading.begin(steps, loader=loader)
        self.gradient_state.dataloader_references = [None, self._reading]
        return steps

    def between_steps(self, work: Callable[[], _Result]) -> _Result | None:
        """See ``Session.between_steps``: an evaluation over a prepared loader, say."""
        return self.session.between_steps(work)

    # -- what a shadow must not do, and what is done between steps ---------------------------------

    @property
    def is_shadow(self) -> bool:
        """See ``Session.is_shadow``."""
        return self._runtime.sandboxed

    @property
    def is_main_process(self) -> bool:
        """Whether this is the first process, and no shadow of it."""
        return bool(super().is_main_process) and not self.is_shadow

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first process of its machine, and no shadow of it."""
        return bool(super().is_local_main_process) and not self.is_shadow

    @property
    def is_last_process(self) -> bool:
        """Whether this is the last process, and no shadow of it."""
        return bool(super().is_last_process) and not self.is_shadow

    def prepare_model(
        self, model: nn.Module, *args: Any, evaluation_mode: bool = False, **options: Any
    ) -> nn.Module:
        """See ``Accelerator.prepare_model``; Accelerate itself remembers the model unwrapped."""
        prepared: nn.Module = super().prepare_model(
            model, *args, evaluation_mode=evaluation_mode, **options
        )
        if not evaluation_mode and not any(prepared is each for each in self._wrapped):
            self._wrapped.append(prepared)
        return prepared

    def prepare_data_loader(self, data_loader: Any, *args: Any, **options: Any) -> Any:
        """See ``Accelerator.prepare_data_loader``."""
        prepared = super().prepare_data_loader(data_loader, *args, **options)
        known = prepared is data_loader
        if not known and prepared.device is not None and prepared.device.type != "cpu":
            place_batches(prepared.base_dataloader, prepared.device, non_blocking=self.non_blocking)
        return prepared

    def save_state(self, output_dir: str | None = None, **options: Any) -> Any:
        """See ``Accelerator.save_state``; between steps, by all ranks.

        Where a machine dies meanwhile it is written again, to the same folder.

        Raises:
            ConfigError: There is no folder.
        """
        if output_dir is None:
            raise ConfigError("accelerator.save_state() has no folder: pass output_dir")
        saved = self.between_steps(partial(self._save_state, output_dir, options))
        return None if saved is None else Path(saved)

    def _save_state(self, folder: str, options: dict[str, Any]) -> str | None:
        """The folder, as a string: a standby's program is told that."""
        return None if self.is_shadow else str(super().save_state(folder, **options))

    def init_trackers(self, project_name: str, *args: Any, **options: Any) -> None:
        """Refused where there is a tracker: a joiner would begin a second run of it.

        Raises:
            ConfigError: There is a tracker.
        """
        if self.log_with:
            raise ConfigError(
                "trackers of Accelerate (log_with=...) are not carried: whoever takes the place of "
                "the main process would begin a second run. Leave out log_with, and log with "
                "accelerator.session.log(...) and trainmover run --metrics FOLDER."
            )
        super().init_trackers(project_name, *args, **options)


def _movable(config: DataLoaderConfiguration | None) -> DataLoaderConfiguration:
    config = config or DataLoaderConfiguration()
    if config.dispatch_batches:
        raise ConfigError(
            "dispatch_batches=True has one rank read for all, between their steps. Leave it out: "
            "each rank reads its share."
        )
    return dataclasses.replace(config, dispatch_batches=False, use_seedable_sampler=True)
