"""TrainMover: a machine of a running PyTorch job is replaced, and the job does not restart.

This package is the contract (job, events, commands, protocol, the detector SDK), and what every
service runs on. It knows nothing of torch and of no service; ``Session`` is loaded from the
executor when somebody asks for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

__all__ = ["Session", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Session":
        return import_module("trainmover_executor.training.session").Session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
