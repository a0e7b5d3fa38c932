"""Files in which people declare something, read again while a service runs.

Such a file is looked at once a second instead of watched: a mounted configuration is replaced by a
link of another name, and a file may be on a disk of the network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trainmover.policy import PolicyError, Problem
from trainmover.policy.reading import MOST_BYTES

__all__ = ["LOOK_S", "MOST_PROBLEMS", "look_at", "text_of"]

LOOK_S: Final = 1.0
"""Seconds between two looks."""

MOST_PROBLEMS: Final = 20
"""Of a file, that are told."""


def look_at(path: Path) -> bytes | str:
    """The bytes of a file, or why it cannot be read."""
    try:
        if path.exists() and not path.is_file():
            return "it is no file. A pipe can be read once only: write it to a file."
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}. Is the path right?"


def text_of(path: Path, content: bytes | str) -> str:
    """What ``look_at`` found, as text.

    Raises:
        PolicyError: It could not be read, or is no text.
    """
    if isinstance(content, str):
        raise PolicyError([Problem(str(path), content)])
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise PolicyError([Problem(str(path), "it is no text in UTF-8.")]) from None
