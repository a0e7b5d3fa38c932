"""The first bytes on every link: who calls whom, for which group, at which epoch.

The caller sends a link request with a challenge, the callee challenges, the caller proves that it
knows the job's secret, the callee answers with its own proof. A link is refused when the proof is
wrong, the job differs, the callee is another rank, or the epoch is stale (INV-ONE-OWNER). All
messages have fixed sizes, so a reader never needs to trust a length.
"""

from __future__ import annotations

import enum
import struct
import zlib
from dataclasses import dataclass
from typing import Final

from trainmover.errors import ProtocolError
from trainmover_executor.links.dialling.secret import PROOF_SIZE

__all__ = [
    "ANY_EPOCH",
    "CHALLENGE_SIZE",
    "PLACE_GROUP",
    "PLAIN_GROUPS",
    "RECORD_GROUP",
    "REPLY_SIZE",
    "REQUEST_SIZE",
    "WATCH_GROUP",
    "Answer",
    "LinkRequest",
    "Reply",
]

WATCH_GROUP: Final = "_watch"
"""Links by which neighbours notice each other's death."""

RECORD_GROUP: Final = "_record"
"""Links by which a standby gets the recording of a job's first step."""


PLACE_GROUP: Final = "_place"
"""Links by which a standby hears where the active rank is."""

PLAIN_GROUPS: Final = frozenset({WATCH_GROUP, RECORD_GROUP, PLACE_GROUP})
"""Links that stay plain sockets on one host, too: they carry no collectives."""

ANY_EPOCH: Final = 2**64 - 1
"""Of links that carry nothing of an epoch: never stale."""

CHALLENGE_SIZE: Final = 16

_MAGIC: Final = b"TMv2"
_REQUEST: Final = struct.Struct(f"<4sIQII100s{CHALLENGE_SIZE}s")
_REPLY: Final = struct.Struct(f"<4sI{CHALLENGE_SIZE}s{PROOF_SIZE}s")

REQUEST_SIZE: Final = _REQUEST.size
REPLY_SIZE: Final = _REPLY.size
_GROUP_BYTES: Final = 100


class Reply(enum.IntEnum):
    """The callee's answer."""

    OK = 0
    STALE_EPOCH = 1
    WRONG_JOB = 2
    WRONG_RANK = 3
    SAME_HOST = 4
    """Come again to my unix socket, whose name follows, and bring shared memory."""
    CHALLENGE = 5
    """Prove that you know the secret; the challenge follows."""
    WRONG_SECRET = 6


@dataclass(frozen=True, slots=True)
class LinkRequest:
    """Whom the caller wants a link with, and for what.

    Attributes:
        job: Job name.
        epoch: Epoch at which the link will carry traffic.
        group: Name of the process group, at most 100 bytes of UTF-8.
        source: Caller's global rank.
        target: Callee's global rank.
    """

    job: str
    epoch: int
    group: str
    source: int
    target: int

    def pack(self, challenge: bytes = bytes(CHALLENGE_SIZE)) -> bytes:
        """The request's bytes.

        Args:
            challenge: ``CHALLENGE_SIZE`` random bytes, which the callee's proof must cover.

        Raises:
            ProtocolError: A number in it is none that an epoch or a rank can be.
        """
        group = self.group.encode(errors="backslashreplace")
        if len(group) > _GROUP_BYTES:
            group = f"{zlib.crc32(group):08x}".encode() + group[-(_GROUP_BYTES - 8) :]
        job = zlib.crc32(self.job.encode())
        try:
            return _REQUEST.pack(
                _MAGIC, job, self.epoch, self.source, self.target, group, challenge
            )
        except struct.error as error:
            raise ProtocolError(f"{self} does not fit on the wire: {error}") from error

    @staticmethod
    def parse(data: bytes, *, job: str) -> tuple[LinkRequest, bool]:
        """Parse a request; the flag tells whether it is for ``job``.

        Raises:
            ProtocolError: These bytes are not a TrainMover link request.
        """
        if len(data) != REQUEST_SIZE:
            raise ProtocolError(f"a link request has {REQUEST_SIZE} bytes, not {len(data)}")
        magic, job_hash, epoch, source, target, group, _ = _REQUEST.unpack(data)
        if magic != _MAGIC:
            raise ProtocolError("a stranger connected to the link endpoint")
        link_request = LinkRequest(
            job=job,
            epoch=epoch,
            group=group.rstrip(b"\0").decode(errors="replace"),
            source=source,
            target=target,
        )
        return link_request, job_hash == zlib.crc32(job.encode())


@dataclass(frozen=True, slots=True)
class Answer:
    """What the callee says.

    Attributes:
        reply: The answer.
        detail: With ``SAME_HOST`` the name of the callee's unix socket, with ``CHALLENGE`` the
            challenge; 16 bytes.
        proof: With ``OK``, that the callee knows the secret.
    """

    reply: Reply
    detail: bytes = b""
    proof: bytes = b""

    def pack(self) -> bytes:
        """The reply's bytes."""
        return _REPLY.pack(_MAGIC, self.reply, self.detail, self.proof)

    @staticmethod
    def parse(data: bytes) -> Answer:
        """Parse a reply.

        Raises:
            ProtocolError: The callee is not a TrainMover rank of this version.
        """
        if len(data) != REPLY_SIZE:
            raise ProtocolError(f"an answer to it has {REPLY_SIZE} bytes, not {len(data)}")
        magic, code, detail, shown = _REPLY.unpack(data)
        if magic != _MAGIC or code not in {*Reply}:
            raise ProtocolError(
                "the other side of the link is not a TrainMover rank of the same version"
            )
        return Answer(Reply(code), detail, shown)
