"""Hugging Face Accelerate: ``TrainMoverAccelerator`` in place of ``Accelerator``."""

from __future__ import annotations

from trainmover_executor.frameworks.accelerate.accelerator import TrainMoverAccelerator

__all__ = ["TrainMoverAccelerator"]
