"""The first bytes on every link: who calls whom, for which group, at which epoch.

A link is refused when the job differs, the callee is another rank, or the epoch is stale
(INV-ONE-OWNER). Both messages have fixed sizes, so a reader never needs to trust a length.
"""

from __future__ import annotations

import enum
import struct
import zlib
from dataclasses import dataclass
from typing import Final

from trainmover.errors import ProtocolError

__all__ = [
    "RECORD_GROUP",
    "REPLY_SIZE",
    "REQUEST_SIZE",
    "WATCH_GROUP",
    "Hail",
    "Reply",
    "pack_reply",
    "parse_reply",
]

WATCH_GROUP: Final = "_watch"
"""Links by which neighbours notice each other's death."""

RECORD_GROUP: Final = "_record"
"""Links by which a standby gets the recording of a job's first step."""

_MAGIC: Final = b"TMv1"
_REQUEST: Final = struct.Struct("<4sIQII100s")
_REPLY: Final = struct.Struct("<4sI16s")

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


@dataclass(frozen=True, slots=True)
class Hail:
    """What the caller says.

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

    def pack(self) -> bytes:
        """The request's bytes."""
        group = self.group.encode()
        if len(group) > _GROUP_BYTES:
            group = f"{zlib.crc32(group):08x}".encode() + group[-(_GROUP_BYTES - 8) :]
        return _REQUEST.pack(
            _MAGIC, zlib.crc32(self.job.encode()), self.epoch, self.source, self.target, group
        )

    @staticmethod
    def parse(data: bytes, *, job: str) -> tuple[Hail, bool]:
        """Parse a request; the flag tells whether it is for ``job``.

        Raises:
            ProtocolError: These bytes are not a TrainMover link request.
        """
        magic, job_hash, epoch, source, target, group = _REQUEST.unpack(data)
        if magic != _MAGIC:
            raise ProtocolError("a stranger connected to the link endpoint")
        hail = Hail(
            job=job,
            epoch=epoch,
            group=group.rstrip(b"\0").decode(errors="replace"),
            source=source,
            target=target,
        )
        return hail, job_hash == zlib.crc32(job.encode())


def pack_reply(reply: Reply, *, name: bytes = b"") -> bytes:
    """The reply's bytes.

    Args:
        reply: The answer.
        name: With ``SAME_HOST``, the name of the callee's unix socket, at most 16 bytes.
    """
    return _REPLY.pack(_MAGIC, reply, name)


def parse_reply(data: bytes) -> tuple[Reply, bytes]:
    """Parse a reply into the answer and the name that came with it.

    Raises:
        ProtocolError: The callee is not a TrainMover rank.
    """
    magic, code, name = _REPLY.unpack(data)
    if magic != _MAGIC:
        raise ProtocolError("the other side of the link is not a TrainMover rank")
    return Reply(code), name
