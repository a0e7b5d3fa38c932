"""The store in which the members of a native group meet, on links that have proved a secret.

One member keeps it for the others while the group is built, and no longer. Torch's own store
would listen on a port of its own for anybody, look names up for seconds where a name server is
slow, and wait for its timeout where a machine died: here all that ends with the links.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from enum import IntEnum
from typing import Final

import torch
from torch._C import _distributed_c10d as c10d

from trainmover.errors import ProtocolError
from trainmover_executor.collectives.linked.communicator import LinkCommunicator
from trainmover_executor.links.link import LinkBrokenError

__all__ = ["Rendezvous", "hosting", "visiting"]

_SUFFIX: Final = "/native"
_LIMIT: Final = 1 << 20
"""Bytes of a key or a value; addresses and ids are far smaller."""


class _Verb(IntEnum):
    BYE = 0
    SET = 1
    GET = 2


class Rendezvous(LinkCommunicator):
    """Links on which the members of a native group tell each other their addresses.

    Args:
        links: The group's own links; these are others, so that nothing waits for its messages.
    """

    def __init__(self, links: LinkCommunicator) -> None:
        super().__init__(
            links.table, group=links.group + _SUFFIX, ranks=links.ranks, timeout_s=links.timeout_s
        )

    def say(self, verb: _Verb, *, to: int, key: str = "", value: bytes = b"") -> None:
        """Send a message of the store."""
        name = key.encode()
        self.send(torch.tensor([verb, len(name), len(value)]), to=to, tag=0)
        body = bytearray(name + value)
        if body:
            self.send(torch.frombuffer(body, dtype=torch.uint8), to=to, tag=0)

    def hear(self, source: int) -> tuple[_Verb, str, bytes]:
        """Receive a message of the store: its verb, key and value.

        Raises:
            LinkBrokenError: The link broke, or what came is no such message.
        """
        header = torch.zeros(3, dtype=torch.int64)
        self.recv(header, source=source, tag=0)
        verb, name, value = header.tolist()
        if not (0 <= verb < len(_Verb) and 0 <= name <= _LIMIT and 0 <= value <= _LIMIT):
            raise LinkBrokenError(
                f"rank {self.ranks[source]} said {[verb, name, value]}, which no store says"
            )
        body = torch.empty(name + value, dtype=torch.uint8)
        if name + value:
            self.recv(body, source=source, tag=0)
        content = body.numpy().tobytes()
        return _Verb(verb), content[:name].decode(errors="replace"), content[name:]


class _Store(c10d.Store):
    """What native libraries ask of a store while they connect."""

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:  # noqa: ARG002 - links have one
        """Return when all ``keys`` are there."""
        for key in keys:
            self.get(key)

    def check(self, keys: Sequence[str]) -> bool:  # noqa: ARG002
        """False: nobody sets anything for others to find later."""
        return False


class _Host(_Store):
    """The store at the member that keeps it."""

    def __init__(self, *, timeout_s: float) -> None:
        super().__init__()
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}
        self._failed: ProtocolError | None = None

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]
        """Keep a value."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        """The value of ``key``, once somebody set it.

        Raises:
            ProtocolError: Somebody who was to come is gone, or did not in time.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: key in self._values or self._failed is not None, self._timeout_s
            )
            if key not in self._values:
                raise self._failed or LinkBrokenError(f"nobody set {key!r} in {self._timeout_s} s")
            return self._values[key]

    def fail(self, error: ProtocolError) -> None:
        """End whoever waits."""
        with self._changed:
            self._failed = self._failed or error
            self._changed.notify_all()

    def serve(self, rendezvous: Rendezvous, guest: int) -> None:
        """Do what ``guest`` asks until it is done."""
        try:
            while True:
                verb, key, value = rendezvous.hear(guest)
                if verb is _Verb.BYE:
                    return
                if verb is _Verb.SET:
                    self.set(key, value)
                else:
                    rendezvous.say(_Verb.SET, to=guest, key=key, value=self.get(key))
        except ProtocolError as error:
            self.fail(error)


class _Guest(_Store):
    """The store at a member that asks the one that keeps it."""

    def __init__(self, rendezvous: Rendezvous, *, host: int) -> None:
        super().__init__()
        self._meeting = rendezvous
        self._host = host

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]
        """Keep a value."""
        self._meeting.say(_Verb.SET, to=self._host, key=key, value=value)

    def get(self, key: str) -> bytes:
        """The value of ``key``, once somebody set it.

        Raises:
            LinkBrokenError: The member that keeps the store is gone.
        """
        self._meeting.say(_Verb.GET, to=self._host, key=key)
        return self._meeting.hear(self._host)[2]


@contextlib.contextmanager
def hosting(rendezvous: Rendezvous, guests: Sequence[int]) -> Iterator[c10d.Store]:
    """A store for this member and ``guests``; at the end returns when they are done, too."""
    store = _Host(timeout_s=rendezvous.timeout_s)
    serving = [
        threading.Thread(target=store.serve, args=(rendezvous, guest), daemon=True)
        for guest in guests
    ]
    for thread in serving:
        thread.start()
    try:
        yield store
    except BaseException:
        # Those who serve end with their links, which are broken off because of this.
        store.fail(LinkBrokenError("the group could not be built"))
        raise
    for thread in serving:
        thread.join()


@contextlib.contextmanager
def visiting(rendezvous: Rendezvous, host: int) -> Iterator[c10d.Store]:
    """The store that ``host`` keeps."""
    yield _Guest(rendezvous, host=host)
    rendezvous.say(_Verb.BYE, to=host)
