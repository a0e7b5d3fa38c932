"""Named contexts: buses and jobs that commands are about, kept for one user of this host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from pydantic import Field, ValidationError

from trainmover.bus.credentials import Credentials
from trainmover.errors import ConfigError
from trainmover.job.topology import Frozen
from trainmover.security.secret import home

__all__ = ["VARIABLE", "Context", "Contexts"]

VARIABLE: Final = "TRAINMOVER_CONTEXT"
"""Names the context of one command, or of a shell."""


class Context(Frozen):
    """What commands are about, and who they are.

    Attributes:
        nats: URL of the bus.
        job: A job on it; each command names one where it is empty.
        nkey: File with the seed of the user's key; empty: none.
        creds: File with the user's JWT and seed; empty: none.
        ca: Certificate of the bus's authority; empty: none.
        cert: File with the user's certificate and its key; empty: none.
    """

    nats: str
    job: str = ""
    nkey: str = ""
    creds: str = ""
    ca: str = ""
    cert: str = ""

    def credentials(self) -> Credentials:
        """Its files; where it names none, what the environment names."""
        if not (self.nkey or self.creds or self.ca or self.cert):
            return Credentials.from_environment()
        return Credentials(
            nkey=Path(self.nkey) if self.nkey else None,
            creds=Path(self.creds) if self.creds else None,
            ca=Path(self.ca) if self.ca else None,
            cert=Path(self.cert) if self.cert else None,
        )


class Contexts(Frozen):
    """All contexts of a user.

    Attributes:
        current: The one that commands take where none is named; empty: none.
        known: By name.
    """

    current: str = ""
    known: Mapping[str, Context] = Field(default_factory=dict)

    @classmethod
    def load(cls) -> Self:
        """From ``TRAINMOVER_HOME``.

        Raises:
            ConfigError: The file is damaged.
        """
        file = _file()
        try:
            return cls.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return cls()
        except (OSError, ValidationError) as error:
            raise ConfigError(
                f"the contexts in {file} cannot be read: {error}. Mend or remove it."
            ) from error

    def save(self) -> None:
        """Write them, atomically and readable by this user alone."""
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(f".{os.getpid()}.tmp")
        draft.touch(mode=0o600)
        draft.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
        draft.replace(file)

    def get(self, name: str) -> Context:
        """One by name.

        Raises:
            ConfigError: There is none.
        """
        if name not in self.known:
            names = ", ".join(sorted(self.known)) or "none"
            raise ConfigError(
                f"there is no context {name!r} (there are: {names}). Make it with "
                f"'trainmover context set {name} --nats URL'."
            )
        return self.known[name]

    def named(self) -> Context | None:
        """The one that this command names, by ``--context`` or the environment."""
        name = os.environ.get(VARIABLE)
        return self.get(name) if name else None

    def in_use(self) -> Context | None:
        """The one that is used where nothing is named."""
        return self.get(self.current) if self.current else None


def _file() -> Path:
    return home() / "contexts.json"
