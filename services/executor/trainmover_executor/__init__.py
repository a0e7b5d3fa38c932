"""The executor: the machine agent, and the part of it that lives inside the training process.

Importing the package is light; torch is loaded with the first name that needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmover_executor.session import Session

__all__ = ["Session"]


def __getattr__(name: str) -> Any:
    if name == "Session":
        return import_module("trainmover_executor.session").Session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
