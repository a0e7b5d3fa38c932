"""Key-value state over JetStream: compare and set, with no permission that could be misused."""

from __future__ import annotations

from typing import Final

import nats.js.errors
from nats.js.api import Header, RawStreamMsg

from trainmover import subjects
from trainmover.bus.nats.connection import Connection
from trainmover.bus.protocol import Entry
from trainmover.errors import ConflictError

__all__ = ["Buckets"]

_WRONG_LAST_SEQUENCE: Final = frozenset({10071, 10164})
_REMOVED: Final = frozenset({"DEL", "PURGE"})


class Buckets:
    """The buckets of one server or cluster.

    Args:
        connection: The connection.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(self, bucket: str, key: str) -> Entry | None:
        """Current value of a key, or None."""
        message = await self._stored(bucket, key)
        if message is None or (message.headers or {}).get("KV-Operation") in _REMOVED:
            return None
        return Entry(key=key, value=message.data or b"", revision=message.seq or 0)

    async def keys(self, bucket: str) -> list[str]:
        """All keys of a bucket, sorted."""
        prefix = f"$KV.{bucket}."
        async with self._connection.calling(f"list bucket {bucket}"):
            info = await self._connection.jetstream().stream_info(
                f"KV_{bucket}", subjects_filter=f"{prefix}>"
            )
        names = sorted(subject.removeprefix(prefix) for subject in info.state.subjects or {})
        return [name for name in names if await self.get(bucket, name) is not None]

    async def put(self, bucket: str, key: str, value: bytes, *, revision: int | None) -> Entry:
        """Compare and set; see ``Bus.put``."""
        expected = revision or 0
        if revision is None:
            stored = await self._stored(bucket, key)
            if stored is not None and (stored.headers or {}).get("KV-Operation") in _REMOVED:
                expected = stored.seq or 0
        headers = {Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(expected)}
        async with self._connection.calling(f"write {key} to bucket {bucket}"):
            try:
                ack = await self._connection.jetstream().publish(
                    _subject(bucket, key), value, headers=headers
                )
            except nats.js.errors.BadRequestError as error:
                if error.err_code not in _WRONG_LAST_SEQUENCE:
                    raise
                raise ConflictError(f"{bucket}/{key}", revision=revision) from error
        return Entry(key=key, value=value, revision=ack.seq)

    async def _stored(self, bucket: str, key: str) -> RawStreamMsg | None:
        async with self._connection.calling(f"read {key} of bucket {bucket}"):
            try:
                # Not a direct get, which nobody should need the permission for: its answer is the
                # bare message, and whoever asks may have the server put that anywhere.
                return await self._connection.jetstream().get_last_msg(
                    f"KV_{bucket}", _subject(bucket, key)
                )
            except nats.js.errors.NotFoundError:
                return None


def _subject(bucket: str, key: str) -> str:
    return f"$KV.{bucket}.{subjects.validate_key(key)}"
