"""One transition of a pool's leader while it is being made."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

from trainmover_pool.state import Command, State

__all__ = ["Transition"]


class Transition:
    """The state so far and the commands so far."""

    def __init__(self, state: State, now_s: float) -> None:
        self.state = state
        self.now_s = now_s
        self.commands: list[Command] = []

    def set(self, **changes: Any) -> None:
        """Change fields of the state."""
        self.state = replace(self.state, **changes)

    def put(self, name: str, key: str, value: object) -> None:
        """Set one entry of a mapping of the state."""
        self.set(**{name: MappingProxyType({**getattr(self.state, name), key: value})})

    def drop(self, name: str, *keys: str) -> None:
        """Remove entries of a mapping of the state."""
        known = getattr(self.state, name)
        if any(key in known for key in keys):
            left = {key: value for key, value in known.items() if key not in keys}
            self.set(**{name: MappingProxyType(left)})

    def do(self, command: Command) -> None:
        """Add a command."""
        self.commands.append(command)
