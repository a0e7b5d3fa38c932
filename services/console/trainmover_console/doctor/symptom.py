"""What the doctor says."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

__all__ = ["Level", "Symptom", "good", "problem", "reason", "warning", "worst"]

Level = Literal["ok", "warning", "problem"]
_ORDER: Final[tuple[Level, ...]] = ("ok", "warning", "problem")


@dataclass(frozen=True, slots=True)
class Symptom:
    """One thing that was looked at.

    Attributes:
        check: What was looked at, one word or two.
        level: ``ok``; ``warning``: it works, but not well; ``problem``: it does not work.
        text: What was found.
        cure: What to do about it; empty when it is well.
    """

    check: str
    level: Level
    text: str
    cure: str = ""

    def as_data(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def good(check: str, text: str) -> Symptom:
    """All is well."""
    return Symptom(check, "ok", text)


def warning(check: str, text: str, cure: str) -> Symptom:
    """It works, but not well."""
    return Symptom(check, "warning", text, cure)


def problem(check: str, text: str, cure: str) -> Symptom:
    """It does not work."""
    return Symptom(check, "problem", text, cure)


def worst(findings: Iterable[Symptom]) -> Level:
    """The most serious level among them."""
    return max((one.level for one in findings), key=_ORDER.index, default="ok")


def reason(error: Exception) -> str:
    """``Connection refused``: asyncio wraps the system's words in its own."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number is not None and number > 0 else str(error)
