"""The secret of a job's links: whoever does not know it is not talked to.

Both sides prove that they know it, without sending it: each answers the other's random challenge
with an HMAC (RFC 2104, SHA-256) over everything that was said so far. The secret comes to every
machine with the deployment and never travels over the bus (docs/adr/0010-links-prove-a-secret.md).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from pathlib import Path
from typing import Final, Literal

from trainmover.errors import ConfigError
from trainmover.local.secret import LEAST_BYTES, SECRET_VARIABLE

__all__ = ["PROOF_SIZE", "link_secret", "proof", "proves"]

PROOF_SIZE: Final = hashlib.sha256().digest_size


def link_secret() -> bytes:
    """The secret that this process was given; empty when links are not authenticated.

    Raises:
        ConfigError: The file that the environment names is unreadable, short, or open to others.
    """
    name = os.environ.get(SECRET_VARIABLE)
    if not name:
        return b""
    path = Path(name)
    try:
        mode = path.stat().st_mode
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{SECRET_VARIABLE}={name} cannot be read: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o007:
        raise ConfigError(f"{name} can be read by everybody on this host: chmod o= {name}")
    if len(secret) < LEAST_BYTES:
        raise ConfigError(
            f"{name} holds {len(secret)} bytes, a link secret needs {LEAST_BYTES}: "
            f"openssl rand -hex {LEAST_BYTES} > {name}"
        )
    return secret


def proof(secret: bytes, *, side: Literal["caller", "callee"], said: bytes) -> bytes:
    """What shows that ``side`` knows the secret; ``said`` holds the challenges of both."""
    return hmac.digest(secret, side.encode() + b"\0" + said, "sha256")


def proves(shown: bytes, secret: bytes, *, side: Literal["caller", "callee"], said: bytes) -> bool:
    """Whether ``shown`` is the right proof; takes the same time for every wrong one."""
    return hmac.compare_digest(shown, proof(secret, side=side, said=said))
