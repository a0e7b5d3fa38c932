"""Hugging Face Accelerate: ``TrainMoverAccelerator`` in place of ``Accelerator``."""

from __future__ import annotations

try:
    import accelerate as _accelerate  # noqa: F401 - to say what is missing
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "Hugging Face Accelerate is not installed beside this Python: "
        "pip install 'trainmover[accelerate]'"
    ) from error

from trainmover_executor.frameworks.accelerate.accelerator import TrainMoverAccelerator

__all__ = ["TrainMoverAccelerator"]
