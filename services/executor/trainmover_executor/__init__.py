"""The executor: the machine agent, and the part of it that lives inside the training process.

``Session`` is what programs import, from here or from ``trainmover``. It is loaded, and torch with
it, when somebody asks for it: the agent needs neither.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["Session"]


def __getattr__(name: str) -> Any:
    if name == "Session":
        return import_module("trainmover_executor.training.session").Session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
