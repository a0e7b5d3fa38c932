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

import structlog

from trainmover.errors import ConfigError
from trainmover.security.secret import LEAST_BYTES, SECRET_VARIABLE
from trainmover.tracing.seldom import Seldom

__all__ = ["PROOF_SIZE", "LinkSecret", "proof", "proves"]

warn = Seldom(structlog.get_logger(__name__).warning)

PROOF_SIZE: Final = hashlib.sha256().digest_size


class LinkSecret:
    """What shows that a rank belongs to the job, as its file says at the moment.

    The file has a line for each secret: the first is the current one, and those after it are still
    taken, so that machines may learn of a new one at different times while the job runs.

    Args:
        known: The secrets; none for links that are not authenticated.
        file: Where they are read again once it has changed.
    """

    def __init__(self, *known: bytes, file: Path | None = None) -> None:
        self._known = known or (b"",)
        self._file = file
        self._seen = self._stamp()

    @classmethod
    def from_environment(cls) -> LinkSecret:
        """The secret that this process was given; none when links are not authenticated.

        Raises:
            ConfigError: The file that the environment names is unreadable, short, or open to
                others.
        """
        name = os.environ.get(SECRET_VARIABLE)
        if not name:
            return cls()
        made = cls(file=Path(name))
        made._known = _read(Path(name))
        return made

    def __bool__(self) -> bool:
        return bool(self._known[0])

    def accepted(self) -> tuple[bytes, ...]:
        """All that are taken, the current one first."""
        if self._file is not None and (stamp := self._stamp()) != self._seen:
            self._seen = stamp
            try:
                self._known = _read(self._file)
            except ConfigError as error:  # it is being written, or was by mistake
                warn("the link secret stays as it was", error=str(error))
        return self._known

    def _stamp(self) -> tuple[int, int, int] | None:
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: Path) -> tuple[bytes, ...]:
    try:
        mode = path.stat().st_mode
        known = tuple(path.read_bytes().split())
    except OSError as error:
        raise ConfigError(f"{SECRET_VARIABLE}={path} cannot be read: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o007:
        raise ConfigError(f"{path} can be read by everybody on this host: chmod o= {path}")
    shortest = min(map(len, known), default=0)
    if shortest < LEAST_BYTES:
        raise ConfigError(
            f"{path} holds {shortest} bytes, a link secret needs {LEAST_BYTES}: "
            f"openssl rand -hex {LEAST_BYTES} > {path}"
        )
    return known


def proof(secret: bytes, *, side: Literal["caller", "callee"], said: bytes) -> bytes:
    """What shows that ``side`` knows the secret; ``said`` holds the challenges of both."""
    return hmac.digest(secret, side.encode() + b"\0" + said, "sha256")


def proves(shown: bytes, secret: bytes, *, side: Literal["caller", "callee"], said: bytes) -> bool:
    """Whether ``shown`` is the right proof; takes the same time for every wrong one."""
    return hmac.compare_digest(shown, proof(secret, side=side, said=said))
