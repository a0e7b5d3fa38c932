"""Replays and reordering: writers number their facts, readers notice what must not count again.

A *run* is an unbroken series of facts over one connection, within which the transport keeps order.
Whenever the outcome of a publish is unknown a new run begins, so that a fact which is merely late
is never mistaken for a replayed one. Pure: no clock, no I/O beyond making up names of runs.
"""

from __future__ import annotations

import contextlib
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from trainmover.errors import MalformedEventError
from trainmover.events.catalog import type_of
from trainmover.events.envelope import Envelope

__all__ = ["Numbering", "Screen"]

K = TypeVar("K")
V = TypeVar("V")

_RUNS: Final = 65_536  # each machine has one or a few
_IDS: Final = 16_384
_DIGITS: Final = 12


class Numbering:
    """What a writer puts into ``Envelope.sequence``; one per connection.

    Publishing concurrently is fine: each publish that is under way has a run to itself.
    """

    def __init__(self) -> None:
        self._idle: list[tuple[str, int]] = []

    @contextlib.contextmanager
    def next(self) -> Iterator[str]:
        """The next sequence; the run goes on only if the block ends without an error."""
        run, number = self._idle.pop() if self._idle else (uuid.uuid4().hex[:16], 0)
        yield f"{run}.{number + 1:0{_DIGITS}d}"
        self._idle.append((run, number + 1))


class Screen:
    """What one reader remembers of what it has read, to tell new facts from old ones.

    Args:
        runs: How many runs are remembered, the latest ones.
        ids: How many ids are remembered, the latest ones.
    """

    def __init__(self, *, runs: int = _RUNS, ids: int = _IDS) -> None:
        self._runs: _Latest[tuple[str, str, str], str] = _Latest(runs)
        self._ids: _Latest[tuple[str, str, str], None] = _Latest(ids)

    def check(self, event: Envelope) -> None:
        """Take in the next fact of the stream.

        Raises:
            MalformedEventError: It was read before, or comes after a later one of its run.
        """
        kind = type_of(event.payload)
        # Who said it as far as the server vouches for it: nobody can spoil another's runs.
        speaker = f"{kind.by}/{kind.machine_of(event.payload) or ''}"
        identity = (event.job, speaker, f"{event.source}#{event.id}")
        if identity in self._ids:
            raise MalformedEventError(
                f"replayed: {kind.type} with id {event.id!r} from {event.source!r} was read before",
                kind="replayed",
            )
        run, _, number = event.sequence.partition(".")
        if number:
            latest = self._runs.get((event.job, speaker, run), "")
            if number <= latest:
                raise MalformedEventError(
                    f"out of order: {kind.type} is number {number} of run {run!r} from "
                    f"{event.source!r} and comes after number {latest}",
                    kind="reordered",
                )
            self._runs.put((event.job, speaker, run), number)
        self._ids.put(identity, None)


class _Latest(Generic[K, V]):
    """A dictionary that forgets what was not put for longest."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: OrderedDict[K, V] = OrderedDict()

    def __contains__(self, key: K) -> bool:
        return key in self._items

    def get(self, key: K, default: V) -> V:
        return self._items.get(key, default)

    def put(self, key: K, value: V) -> None:
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._limit:
            self._items.popitem(last=False)
