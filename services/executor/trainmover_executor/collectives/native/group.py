"""A group of a native library, as long as nobody in it changes.

A native group cannot replace one member: it is built again from nothing, by all its members, at
their first operation after one of them changed. So small ones are better: a move rebuilds those
that the leaver was in, and no others.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from trainmover_executor.collectives.linked.store import Rendezvous, hosting, visiting
from trainmover_executor.collectives.native.library import Flats, Library
from trainmover_executor.links.link import LinkBrokenError
from trainmover_executor.links.table import LinkTable

__all__ = ["NativeGroup", "flats_of"]


class NativeGroup:
    """Some members of a group, joined by a native library.

    May be used by any thread; the first one that does builds it.

    Args:
        rendezvous: How its members find each other.
        library: Which library.
        members: Ranks within the rendezvous's group, in the native group's order. The first one
            keeps the store in which they meet.
    """

    def __init__(self, rendezvous: Rendezvous, *, library: Library, members: Sequence[int]) -> None:
        self.library = library
        self._meeting = rendezvous
        self._members = tuple(members)
        self._globals = [rendezvous.ranks[member] for member in members]
        self.rank = self._members.index(rendezvous.rank)
        self.size = len(self._members)
        self._building = threading.Lock()
        self._built: Any = None
        self._store: Any = None
        self._built_at = -1
        rendezvous.table.on_break(self.break_off)

    @contextlib.contextmanager
    def flats(
        self, outs: Sequence[torch.Tensor], ins: Sequence[torch.Tensor] = ()
    ) -> Iterator[Flats]:
        """See ``flats_of``."""
        with flats_of(self.library, self._meeting.table, outs, ins) as flats:
            yield flats

    def connect(self) -> None:
        """Build it where it is not there.

        Raises:
            LinkBrokenError: A member is gone, or the group was broken off.
        """
        self._group()

    def run(self, name: str, *arguments: Any) -> None:
        """Perform one operation of torch's ``Backend``, and wait for it.

        Raises:
            LinkBrokenError: A member is gone, or the group was broken off.
        """
        self.start(name, *arguments).wait()

    def start(self, name: str, *arguments: Any) -> _Started:
        """Begin one operation of torch's ``Backend``.

        Raises:
            LinkBrokenError: A member is gone, or the group was broken off.
        """
        group = self._group()
        return _Started(f"{self.library.name} {name}", getattr(group, name), arguments)

    def break_off(self) -> None:
        """End what runs on it; the next operation builds it anew."""
        built, self._built = self._built, None
        if built is not None:
            self.library.abort(built)

    def _group(self) -> Any:
        table = self._meeting.table
        with self._building:
            since = table.unbroken_since(self._globals)
            if self._built is None or self._built_at != since:
                self._built = None  # the one before goes first
                self._built, self._built_at = self._build(), since
            built = self._built
        if table.broken is not None:  # ``break_off`` may have come while it was built
            self._built = None
            raise LinkBrokenError(table.broken)
        return built

    def _build(self) -> Any:
        first, *others = self._members
        if self.rank == 0:
            opened = hosting(self._meeting, others)
        else:
            opened = visiting(self._meeting, first)
        try:
            with opened as store:
                self._store = store  # libraries ask it later, too, and it must be there then
                return self.library.build(
                    store, rank=self.rank, size=self.size, timeout_s=self._meeting.timeout_s
                )
        except RuntimeError as error:
            raise LinkBrokenError(
                f"no {self.library.name} group of ranks {self._globals}: {error}"
            ) from None


@contextlib.contextmanager
def flats_of(
    library: Library,
    table: LinkTable,
    outs: Sequence[torch.Tensor],
    ins: Sequence[torch.Tensor] = (),
) -> Iterator[Flats]:
    """``Library.flats`` for operations that end well only while no link is broken off.

    Raises:
        LinkBrokenError: Links were broken off meanwhile: NCCL ends what runs then without a word,
            and what is in ``outs`` is no result.
    """
    with library.flats(outs, ins) as flats:
        yield flats
    if table.broken is not None:
        raise LinkBrokenError(table.broken)


class _Started:
    """An operation on its way, whose errors are those of communication.

    It keeps its group: to forget the last reference waits for what runs on it, and those who break
    a group off must not wait.
    """

    def __init__(self, name: str, begin: Any, arguments: Any) -> None:
        self._name = name
        self._begin = begin
        try:
            self._work = begin(*arguments)
        except RuntimeError as error:
            raise self._broken(error) from None

    def wait(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._broken(error) from None
        finally:
            self._begin = None

    def _broken(self, error: RuntimeError) -> LinkBrokenError:
        return LinkBrokenError(f"{self._name} failed: {error}")
