"""Lightning: ``TrainMoverTrainer`` in place of ``Trainer``."""

from __future__ import annotations

try:
    import lightning.pytorch as _lightning  # noqa: F401 - to say what is missing
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "Lightning is not installed beside this Python: pip install 'trainmover[lightning]'"
    ) from error

from trainmover_executor.frameworks.lightning.trainer import TrainMoverTrainer

__all__ = ["TrainMoverTrainer"]
