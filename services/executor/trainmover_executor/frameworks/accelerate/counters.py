"""What an accelerator counts beside models, optimizers and schedulers, as part of the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmover_executor.frameworks.accelerate.reading import Reading

if TYPE_CHECKING:
    from trainmover_executor.frameworks.accelerate.accelerator import TrainMoverAccelerator

__all__ = ["Counters"]


class Counters:
    """Where an accelerator is in its accumulation of gradients and in passes over its loaders.

    Args:
        accelerator: Whose.
        reading: The loader that steps are made of.
    """

    def __init__(self, accelerator: TrainMoverAccelerator, reading: Reading) -> None:
        self._accelerator = accelerator
        self._reading = reading

    def state_dict(self) -> dict[str, Any]:
        """Numbers and lists of them."""
        accelerator = self._accelerator
        optimizers = accelerator._optimizers  # noqa: SLF001 - Accelerate has no public name
        loaders = accelerator._dataloaders  # noqa: SLF001 - as above
        return {
            "step": accelerator.step,
            "sync_gradients": accelerator.gradient_state.sync_gradients,
            "saves": accelerator.project_configuration.iteration,
            "skipped": [bool(each.step_was_skipped) for each in optimizers],
            "passes": [each.iteration for each in loaders],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back, and forget what an aborted body or evaluation left under way."""
        accelerator = self._accelerator
        gradients = accelerator.gradient_state
        accelerator.step = state["step"]
        gradients.sync_gradients = state["sync_gradients"]
        accelerator.project_configuration.iteration = state["saves"]
        optimizers = accelerator._optimizers  # noqa: SLF001 - as above
        for optimizer, skipped in zip(optimizers, state["skipped"], strict=True):
            optimizer._is_overflow = skipped  # noqa: SLF001 - as above
            if optimizer.scaler is not None:
                # An aborted step left these as they are in the middle of a scaler's step.
                optimizer._accelerate_step_called = False  # noqa: SLF001 - as above
                optimizer.optimizer.step = optimizer._optimizer_original_step_method  # noqa: SLF001
        loaders = accelerator._dataloaders  # noqa: SLF001 - as above
        for loader, passes in zip(loaders, state["passes"], strict=True):
            loader.iteration = passes
        # An evaluation that broke has not taken its loader off this list.
        gradients.dataloader_references = [None, self._reading]
