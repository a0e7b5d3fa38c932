"""Hugging Face Trainer: ``TrainMoverTrainer`` in place of ``Trainer``."""

from __future__ import annotations

try:
    import accelerate as _accelerate  # noqa: F401 - to say what is missing
    import transformers as _transformers  # noqa: F401 - as above
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "Hugging Face transformers is not installed with its Trainer beside this Python: "
        "pip install 'trainmover[transformers]'"
    ) from error

from trainmover_executor.frameworks.transformers.trainer import TrainMoverTrainer

__all__ = ["TrainMoverTrainer"]
