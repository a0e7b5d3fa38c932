"""Makes the secret that the links of a job on this host share."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

__all__ = ["LEAST_BYTES", "SECRET_VARIABLE", "make_secret"]

SECRET_VARIABLE: Final = "TRAINMOVER_LINK_SECRET_FILE"  # noqa: S105 - a name
"""Names the file with the secret, the same on every machine of a job."""

LEAST_BYTES: Final = 32


def make_secret(path: Path) -> Path:
    """Write a fresh secret to ``path``, readable by this user alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(LEAST_BYTES) + "\n")
    return path
