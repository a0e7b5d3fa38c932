"""Commands as they travel: the membership of a large job, told to each of its machines.

What is stored for all machines together grows with the square of their number, and the stream of
commands has a limit beyond which the oldest are gone. So long commands travel compressed, and one
that goes to all machines is made once.
"""

from __future__ import annotations

import zlib
from typing import Final

from trainmover.commands import Command
from trainmover.errors import MalformedEventError

__all__ = ["ENCODING", "ZLIB", "Packer", "unpack"]

ENCODING: Final = "tm-encoding"
"""The header that says how the body is compressed; none where it is not."""
ZLIB: Final = "zlib"

_LONG: Final = 4096
_LEVEL: Final = 1  # more would take longer than it saves
_LARGEST: Final = 64 * 1024**2
"""A short message must not fill our memory: the membership of two million ranks fits."""


class Packer:
    """Makes the headers and body of commands; the latest one is kept."""

    def __init__(self) -> None:
        self._command: Command | None = None
        self._headers: dict[str, str] = {}
        self._body = b""

    def pack(self, command: Command) -> tuple[dict[str, str], bytes]:
        """Headers and body of ``command``."""
        if command is not self._command:
            self._headers, self._body = {}, command.model_dump_json().encode()
            if len(self._body) > _LONG:
                self._headers = {ENCODING: ZLIB}
                self._body = zlib.compress(self._body, _LEVEL)
            self._command = command
        return self._headers, self._body


def unpack(encoding: str | None, data: bytes) -> bytes:
    """The command in JSON.

    Args:
        encoding: What the header says, None without one.
        data: The body.

    Raises:
        MalformedEventError: It cannot be decompressed, or is too large.
    """
    if encoding is None:
        return data
    if encoding != ZLIB:
        raise MalformedEventError(f"command is encoded as {encoding[:20]!r}: only zlib is known")
    one = zlib.decompressobj()
    try:
        body = one.decompress(data, _LARGEST)
    except zlib.error as error:
        raise MalformedEventError(f"command cannot be decompressed: {error}") from error
    if not one.eof:
        what = "ends too early" if not one.unconsumed_tail else f"is over {_LARGEST} bytes"
        raise MalformedEventError(f"compressed command {what}")
    return body
