"""The errors users meet; every message names the thing, the cause and the next step."""

from __future__ import annotations

__all__ = [
    "BusError",
    "BusUnavailableError",
    "ConfigError",
    "ConflictError",
    "InvalidIdError",
    "LeaseLostError",
    "MalformedEventError",
    "PermissionDeniedError",
    "ProtocolError",
    "RequestRefusedError",
    "StaleEpochError",
    "TrainMoverError",
]


class TrainMoverError(Exception):
    """Root of every error that TrainMover raises on purpose."""


class ConfigError(TrainMoverError):
    """A setting, flag or environment variable is missing or contradicts another."""


class InvalidIdError(TrainMoverError):
    """A job, machine or detector name cannot be part of a subject."""


class BusError(TrainMoverError):
    """The bus refused or failed an operation."""


class BusUnavailableError(BusError):
    """The bus cannot be reached; the outcome of the operation is unknown."""


class PermissionDeniedError(BusError):
    """The bus user may not publish or subscribe here."""


class ConflictError(BusError):
    """A compare-and-set lost against another writer.

    Args:
        key: The key, with its bucket in front.
        revision: What it was expected to be at; None for absent.
    """

    def __init__(self, key: str, *, revision: int | None) -> None:
        wanted = "absent" if revision is None else f"at revision {revision}"
        super().__init__(
            f"{key} is no longer {wanted}: another writer was first. Read it again and decide anew."
        )


class LeaseLostError(TrainMoverError):
    """Another replica of this service leads now."""


class MalformedEventError(TrainMoverError):
    """A message does not parse as the event it claims to be, or must not count as one.

    Attributes:
        kind: Why, for tools: ``malformed``, ``foreign`` (an unknown type, or a subject that is not
            this sender's), ``oversized``, ``replayed``, ``reordered``, or ``refused`` by whom it
            was meant for.
    """

    def __init__(self, message: str, *, kind: str = "malformed") -> None:
        super().__init__(message)
        self.kind = kind


class ProtocolError(TrainMoverError):
    """A migration was asked to make a transition its state does not allow."""


class StaleEpochError(ProtocolError):
    """A message or link carries an epoch that is not the current one."""


class RequestRefusedError(TrainMoverError):
    """An operator's request was refused; nothing changed.

    Attributes:
        code: Stable machine-readable reason, for example ``no_standby``.
        next_step: What the operator can do about it.
    """

    def __init__(self, message: str, *, code: str, next_step: str) -> None:
        super().__init__(f"{message} {next_step}".strip())
        self.code = code
        self.next_step = next_step
