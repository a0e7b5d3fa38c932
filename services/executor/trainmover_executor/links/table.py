"""The table of links of one process: which are active, which are parked for the next epoch.

An active link carries the traffic of (group, peer) now. A parked link was accepted or dialled for
a later epoch in phase 1 and holds no buffer until the switch adopts it (INV-BYTES). The training
and communication threads read the table; the control thread parks and dials.
"""

from __future__ import annotations

import concurrent.futures
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from trainmover.errors import ProtocolError, StaleEpochError
from trainmover.job.topology import Membership
from trainmover.telemetry.records import LINK
from trainmover_executor.links.dialling.handshake import LinkRequest
from trainmover_executor.links.link import Link, LinkBrokenError

__all__ = ["Dial", "LinkTable"]

Dial = Callable[[str, LinkRequest], "concurrent.futures.Future[socket.socket]"]
"""Starts dialling ``host:port`` and sends the request; the future holds the accepted socket."""

_PARKED_LIMIT: Final = 4096


class LinkTable:
    """All data links of one rank.

    Args:
        job: Job name, said in every handshake.
        rank: This process's global rank.
        membership: The membership at the start.
        dial: How to reach a peer.
    """

    def __init__(self, *, job: str, rank: int, membership: Membership, dial: Dial) -> None:
        self.job = job
        self.rank = rank
        self._membership = membership
        self._dial = dial
        self._changed = threading.Condition()
        self._active: dict[tuple[str, int], Link] = {}
        self._parked: dict[tuple[int, str, int], socket.socket] = {}
        self._retired: list[Link] = []
        self._held_since: dict[int, int] = {}
        self._dialling: set[concurrent.futures.Future[socket.socket]] = set()
        self._ahead: dict[tuple[int, str, int], concurrent.futures.Future[socket.socket]] = {}
        self._broken: str | None = None
        self._begun = membership.epoch
        self._on_break: list[Callable[[], None]] = []

    @property
    def epoch(self) -> int:
        """Epoch that new frames carry."""
        return self._membership.epoch

    @property
    def membership(self) -> Membership:
        """The membership whose traffic the active links carry."""
        return self._membership

    @property
    def broken(self) -> str | None:
        """Why the links were broken off, or None while they are whole."""
        return self._broken

    def held_since(self, rank: int) -> int:
        """The epoch at which the process that holds ``rank`` now took it; 0 for the first one."""
        return self._held_since.get(rank, 0)

    def unbroken_since(self, ranks: Iterable[int]) -> int:
        """The epoch since which neither a member of ``ranks`` changed nor a failure dropped links.

        All of ``ranks`` say the same.
        """
        return max(self._begun, *map(self.held_since, ranks))

    def on_break(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called whenever links are broken off, on the thread that does it."""
        self._on_break.append(listener)

    def _enter(self, membership: Membership) -> frozenset[int]:
        changed = self._membership.changed_ranks(membership)
        self._held_since.update(dict.fromkeys(changed, membership.epoch))
        self._membership = membership
        return changed

    def link(self, group: str, peer: int, *, timeout_s: float) -> Link:
        """The active link of ``group`` to ``peer``, made now if there is none yet.

        The lower rank dials, the higher one waits for the call: both sides come here for the same
        collective, so one of them always calls.

        Raises:
            LinkBrokenError: Links were broken off, or the peer cannot be reached in time.
        """
        if self._broken is not None:
            raise LinkBrokenError(self._broken)
        link = self._active.get((group, peer))
        return link if link is not None else self._make(group, peer, timeout_s=timeout_s)

    def links(self, group: str, peers: Sequence[int], *, timeout_s: float) -> list[Link]:
        """The active links of ``group`` to ``peers``; missing ones are made at the same time.

        Raises:
            LinkBrokenError: Links were broken off, or a peer cannot be reached in time.
        """
        missing = [peer for peer in peers if (group, peer) not in self._active]
        calls = {peer: self._begin(group, peer) for peer in missing}
        for peer, calling in calls.items():
            self._finish(group, peer, calling, timeout_s=timeout_s)
        return [self.link(group, peer, timeout_s=timeout_s) for peer in peers]

    def call_ahead(self, group: str, peer: int) -> None:
        """``link`` will be asked for: if it is this rank that calls, it does so meanwhile."""
        with self._changed:
            key = (self.epoch, group, peer)
            known = key in self._parked or key in self._ahead or key[1:] in self._active
            if self.rank < peer and not known and self._broken is None:
                self._ahead[key] = self._call(group, peer)

    def _make(self, group: str, peer: int, *, timeout_s: float) -> Link:
        return self._finish(group, peer, self._begin(group, peer), timeout_s=timeout_s)

    def _begin(self, group: str, peer: int) -> concurrent.futures.Future[socket.socket] | None:
        """Call ``peer`` if it is this rank that has to."""
        with self._changed:
            key = (self.epoch, group, peer)
            if key in self._parked or self._broken is not None:
                return None
            if (calling := self._ahead.pop(key, None)) is not None:
                return calling
            return self._call(group, peer) if self.rank < peer else None

    def _finish(
        self,
        group: str,
        peer: int,
        calling: concurrent.futures.Future[socket.socket] | None,
        *,
        timeout_s: float,
    ) -> Link:
        key = (self.epoch, group, peer)
        if calling is not None:
            return self._answered(calling, key, timeout_s=timeout_s)
        with self._changed:
            arrived = self._changed.wait_for(
                lambda: key in self._parked or self._broken is not None, timeout=timeout_s
            )
            if self._broken is not None:
                raise LinkBrokenError(self._broken)
            if not arrived:
                raise LinkBrokenError(
                    f"rank {peer} did not open its link for group {group!r} in {timeout_s:.0f} s"
                )
            return self._adopt(key)

    def _call(self, group: str, peer: int) -> concurrent.futures.Future[socket.socket]:
        link_request = LinkRequest(
            job=self.job, epoch=self.epoch, group=group, source=self.rank, target=peer
        )
        calling = self._dial(self._membership.endpoint_of(peer), link_request)
        self._dialling.add(calling)
        return calling

    def _answered(
        self,
        calling: concurrent.futures.Future[socket.socket],
        key: tuple[int, str, int],
        *,
        timeout_s: float,
    ) -> Link:
        _, group, peer = key
        try:
            sock = calling.result(timeout=timeout_s)
        except (
            OSError,
            StaleEpochError,
            ProtocolError,
            concurrent.futures.CancelledError,
        ) as error:
            # A timeout is an OSError; by ProtocolError somebody else listens there by now.
            calling.cancel()
            raise LinkBrokenError(
                self._broken or f"cannot reach rank {peer} for group {group!r}: {error}"
            ) from None
        finally:
            self._dialling.discard(calling)
        with self._changed:
            if self._broken is not None or key[0] != self.epoch:
                sock.close()
                raise LinkBrokenError(self._broken or "the epoch changed while dialling")
            self._parked[key] = sock
            return self._adopt(key)

    def _adopt(self, key: tuple[int, str, int]) -> Link:
        _, group, peer = key
        link = Link(self._parked.pop(key), peer=peer, group=group)
        self._active[group, peer] = link
        return link

    def park(self, *, epoch: int, group: str, peer: int, sock: socket.socket) -> None:
        """Keep a connected socket until its epoch comes or its first use.

        Raises:
            StaleEpochError: That epoch is over; the socket is closed.
        """
        with self._changed:
            if epoch < self.epoch or len(self._parked) >= _PARKED_LIMIT:
                sock.close()
                raise StaleEpochError(
                    f"link of epoch {epoch} from rank {peer} refused in epoch {self.epoch}"
                )
            previous = self._parked.pop((epoch, group, peer), None)
            if previous is not None:
                previous.close()
            self._parked[epoch, group, peer] = sock
            self._changed.notify_all()

    def reaches(self, group: str, peer: int) -> bool:
        """Whether the link of ``group`` to ``peer`` is there, or called for, at this epoch."""
        with self._changed:
            return (group, peer) in self._active or (self.epoch, group, peer) in self._parked

    def take_parked(self, *, epoch: int, group: str, peer: int) -> socket.socket | None:
        """Take a parked socket out of the table, for use outside data groups."""
        with self._changed:
            return self._parked.pop((epoch, group, peer), None)

    def parked_link(self, *, epoch: int, group: str, peer: int) -> Link:
        """Take a parked socket out of the table as a link of its own.

        Raises:
            LinkBrokenError: Phase 1 parked none.
        """
        sock = self.take_parked(epoch=epoch, group=group, peer=peer)
        if sock is None:
            raise LinkBrokenError(f"no link to rank {peer} is parked for epoch {epoch}")
        return Link(sock, peer=peer, group=group)

    def edges_to(self, ranks: Iterable[int]) -> list[tuple[str, int]]:
        """(group, peer) of every active link to one of ``ranks``: what a move must replace."""
        wanted = frozenset(ranks)
        with self._changed:
            return sorted(key for key in self._active if key[1] in wanted)

    def read_links(self, groups: Mapping[str, int]) -> npt.NDArray[np.void]:
        """Counters of the active links of ``groups`` (name to id), dtype ``LINK``."""
        rows = []
        for (group, peer), link in list(self._active.items()):
            # Links with a suffix ("/p2p", "/p2p7") are links of the group, too.
            if (id := groups.get(group.partition("/p2p")[0])) is not None:
                round_trip_us, retransmits = link.kernel_view()
                counters = link.counters
                rows.append((self.rank, peer, id, round_trip_us, *counters, retransmits))
        return np.array(rows, LINK)

    def break_off(self, reason: str, *, epoch: int | None = None) -> None:
        """End all active links and pending calls; every operation on them fails at once.

        Args:
            reason: Why, for those who use them.
            epoch: Whose links; nothing happens when they are gone. None: those of now.
        """
        with self._changed:
            if self._broken is not None or epoch not in {None, self.epoch}:
                return
            self._broken = reason
            for link in self._active.values():
                link.shutdown()
            calls = list(self._dialling)
            self._changed.notify_all()
        for calling in calls:
            calling.cancel()
        for listener in self._on_break:
            listener()

    def switch(self, membership: Membership) -> int:
        """Phase 2: go to the next epoch, replacing only the links to ranks that changed process.

        The old links stay open until ``retire`` so that the way back is open.

        Returns:
            Number of links that were replaced by parked ones.
        """
        with self._changed:
            changed = self._enter(membership)
            replaced = 0
            for group, peer in [key for key in self._active if key[1] in changed]:
                old = self._active.pop((group, peer))
                old.release_memory()  # before the new link takes its own (INV-BYTES)
                self._retired.append(old)
                if (membership.epoch, group, peer) in self._parked:
                    self._adopt((membership.epoch, group, peer))
                    replaced += 1
            self._changed.notify_all()
            return replaced

    def retire(self) -> None:
        """Close what the last switch replaced: its first vote has passed."""
        with self._changed:
            retired, self._retired = self._retired, []
        for link in retired:
            link.close()

    def reset(self, membership: Membership) -> None:
        """After a failure: drop every link of earlier epochs and start over at ``membership``.

        No thread may be using a link any more.
        """
        with self._changed:
            self._enter(membership)
            self._begun = membership.epoch
            dropped = [*self._active.values(), *self._retired]
            self._active.clear()
            self._retired = []
            for key in [key for key in self._parked if key[0] < membership.epoch]:
                self._parked.pop(key).close()
            unused = list(self._ahead.values())
            self._ahead.clear()
            self._dialling.difference_update(unused)
            self._broken = None
            self._changed.notify_all()
        for link in dropped:
            link.close()
        for calling in unused:
            calling.cancel()
            calling.add_done_callback(_hang_up)

    def sockets(self) -> list[socket.socket]:
        """Every socket in the table, without waiting for a lock: for a child just after a fork."""
        links = [*self._active.values(), *self._retired]
        return [*(link.socket for link in links), *self._parked.values()]

    def drop_parked(self, epoch: int) -> None:
        """Close what phase 1 parked for ``epoch``: the migration was aborted."""
        with self._changed:
            for key in [key for key in self._parked if key[0] == epoch]:
                self._parked.pop(key).close()


def _hang_up(calling: concurrent.futures.Future[socket.socket]) -> None:
    if not calling.cancelled() and calling.exception() is None:
        calling.result().close()
