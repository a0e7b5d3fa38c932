"""The secret that the links of a job on this host share: where it is, and how it is made."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from trainmover.subjects import validate_id

__all__ = ["LEAST_BYTES", "SECRET_VARIABLE", "home", "make_secret", "secret_of"]

SECRET_VARIABLE: Final = "TRAINMOVER_LINK_SECRET_FILE"  # noqa: S105 - a name
"""Names the file with the secret, the same on every machine of a job."""

LEAST_BYTES: Final = 32


def home() -> Path:
    """``$TRAINMOVER_HOME``, or ``~/.trainmover``."""
    return Path(os.environ.get("TRAINMOVER_HOME") or Path.home() / ".trainmover")


def secret_of(job: str) -> Path:
    """Where the link secret of a local job is, or would be."""
    return home() / "jobs" / f"{validate_id(job, what='job')}.secret"


def make_secret(path: Path) -> Path:
    """Write a fresh secret to ``path``, readable by this user alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(LEAST_BYTES) + "\n")
    return path
