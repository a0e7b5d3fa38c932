"""Values of the program that it asked to have carried: ``session.track``."""

from __future__ import annotations

from typing import Any

from trainmover.errors import ConfigError
from trainmover_executor.program.values.plain import PLAIN
from trainmover_executor.program.values.restored import overwrite
from trainmover_executor.state.packing.codec import StateNotPortableError
from trainmover_executor.state.packing.portable import pack_tree

__all__ = ["Tracked", "TrackedValues"]


class TrackedValues:
    """All values of one session, by name: one more of the things with ``state_dict``."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self.sealed = False

    def add(self, values: dict[str, Any]) -> Tracked:
        """Track ``values``; what the program reads and sets them by.

        Raises:
            ConfigError: A name is taken, a value cannot be carried, or training has begun.
        """
        if self.sealed:
            raise ConfigError(
                "session.track() was called after session.steps(): a standby waits in its first "
                "steps and would not know the names. Call it in front of the first session.steps()."
            )
        for name, value in values.items():
            if name in self._values:
                raise ConfigError(f"session.track({name}=...): this name is tracked already")
            _check(name, value)
        self._values.update(values)
        return Tracked(self._values, frozenset(values))

    def state_dict(self) -> dict[str, Any]:
        """The values by name."""
        return dict(self._values)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back; tensors, lists and dictionaries in place."""
        for name, value in state.items():
            if not overwrite(self._values.get(name), value):
                self._values[name] = value


class Tracked:
    """Tracked values as attributes: read, set and added to like any other.

    Raises:
        AttributeError: No such value is tracked here.
        ConfigError: What an attribute is set to cannot be carried.
    """

    __slots__ = ("_names", "_values")

    def __init__(self, values: dict[str, Any], names: frozenset[str]) -> None:
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_names", names)

    def __getattr__(self, name: str) -> Any:
        self._require(name)
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._require(name)
        _check(name, value)
        self._values[name] = value

    def __dir__(self) -> list[str]:
        return sorted(self._names)

    def __repr__(self) -> str:
        return f"Tracked({', '.join(f'{name}={getattr(self, name)!r}' for name in dir(self))})"

    def _require(self, name: str) -> None:
        if name not in self._names:
            raise AttributeError(
                f"{name!r} is not tracked here; begin with session.track({name}=...)"
            )


def _check(name: str, value: Any) -> None:
    if type(value) in PLAIN - {complex}:
        return
    try:
        pack_tree({name: value})
    except (StateNotPortableError, TypeError) as error:
        raise ConfigError(f"session.track({name}=...) cannot be carried: {error}") from error
