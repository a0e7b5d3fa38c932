"""Watch links: each rank learns within a round trip that the one before or after it is gone.

A watch link carries nothing but notices. Its end without a goodbye is the death of the process at
the other side; a latched error is passed on over all of them, so that no rank waits for a timeout.

Such an end evicts a machine, so the link must be the neighbour's: it is taken from the rank before
this one and nobody else, and from the address that its machine announced.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from trainmover.errors import StaleEpochError, TrainMoverError
from trainmover.events.machine import LinkLost
from trainmover.job.endpoints import split_endpoint
from trainmover.job.topology import Frozen
from trainmover.tracing.seldom import Seldom
from trainmover_executor.clock.writer import CollectiveClock
from trainmover_executor.collectives.latch import Latch
from trainmover_executor.links.dialling.endpoint import dial
from trainmover_executor.links.dialling.handshake import WATCH_GROUP, LinkRequest
from trainmover_executor.links.dialling.secret import LinkSecret
from trainmover_executor.links.table import LinkTable
from trainmover_executor.links.watch import Notice, NoticeKind, WatchLink
from trainmover_executor.messages.worker import WorkerSpec

__all__ = ["Neighbours"]

warn = Seldom(structlog.get_logger(__name__).warning)

_EARLY: Final = 4
"""Calls of later epochs that are kept until this rank gets there."""


class Neighbours:
    """The watch links of one rank; used on the control thread only.

    Args:
        spec: What this process was started as.
        table: Knows the membership of now.
        latch: Tripped when a neighbour is lost or aborts.
        clock: Knows the running step, for reports.
        secret: Proves links.
        post: Sends a fact to the agent.

    Attributes:
        leaving: Set when this rank said goodbye: what ends now is no evidence.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        table: LinkTable,
        latch: Latch,
        clock: CollectiveClock,
        secret: LinkSecret,
        post: Callable[[Frozen], None],
    ) -> None:
        self._spec = spec
        self._table = table
        self._latch = latch
        self._clock = clock
        self._secret = secret
        self._post = post
        self._here = _own_address(spec.endpoint)
        self._watches: dict[tuple[int, bool], WatchLink] = {}
        self._early: deque[tuple[socket.socket, LinkRequest, str]] = deque()
        self._abort_origin = spec.rank
        self._tasks: asyncio.TaskGroup
        self.leaving = False

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """The loop runs; ``tasks`` lives as long as it does."""
        self._tasks = tasks

    def forget(self) -> None:
        """In a forked child: let go of the sockets without ending our parent's links."""
        for watch in self._watches.values():
            with contextlib.suppress(OSError):
                os.close(watch.socket.detach())
        for sock, *_ in self._early:
            with contextlib.suppress(OSError):
                os.close(sock.detach())

    # -- who is watched --------------------------------------------------------------------------

    def watch_anew(self, changed: frozenset[int]) -> None:
        """The processes of ranks ``changed`` changed: watch the neighbours of now."""
        membership = self._table.membership
        world = membership.layout.world_size
        self.part(changed, membership.epoch)  # a joiner may have called before we got here
        early, self._early = self._early, deque()
        for call in early:
            self._consider(*call)
        following = (self._spec.rank + 1) % world
        if world > 1 and (following, True) not in self._watches:
            self._tasks.create_task(self._dial(following, membership.endpoint_of(following)))

    def part(self, ranks: frozenset[int], before_epoch: int) -> None:
        """Say goodbye to those of ``ranks`` that were watched before an epoch."""
        for key, watch in list(self._watches.items()):
            if key[0] in ranks and watch.epoch < before_epoch:
                del self._watches[key]
                self._part(watch)

    def accept(self, sock: socket.socket, link_request: LinkRequest) -> None:
        """Somebody called who knows the job's secret, and says that it is a neighbour."""
        try:
            caller = _plain(sock.getpeername()[0])
        except (OSError, ValueError):
            self._refuse(sock, link_request, "it has gone already")
        else:
            self._consider(sock, link_request, caller)

    def _consider(self, sock: socket.socket, link_request: LinkRequest, caller: str) -> None:
        membership = self._table.membership
        world = membership.layout.world_size
        if world == 1 or link_request.source != (self._spec.rank - 1) % world:
            self._refuse(sock, link_request, "it is not the rank before this one")
        elif link_request.epoch > membership.epoch:
            # Which address is right is known once we are there, too; what it says waits in it.
            self._early.append((sock, link_request, caller))
            if len(self._early) > _EARLY:
                sock, link_request, _ = self._early.popleft()
                self._refuse(sock, link_request, "too many calls of later epochs")
        else:
            endpoint = membership.endpoint_of(link_request.source)
            self._tasks.create_task(self._admit(sock, link_request, caller, endpoint))

    async def _admit(
        self, sock: socket.socket, link_request: LinkRequest, caller: str, endpoint: str
    ) -> None:
        if caller in await _addresses_of(endpoint):
            self._add(sock, peer=link_request.source, epoch=link_request.epoch, outbound=False)
        else:
            self._refuse(sock, link_request, f"its machine announced {endpoint}")

    def _refuse(self, sock: socket.socket, link_request: LinkRequest, why: str) -> None:
        warn("watch link refused", source=link_request.source, epoch=link_request.epoch, reason=why)
        # Whoever it is, we are not dead to it.
        with contextlib.suppress(OSError):
            sock.send(Notice(NoticeKind.GOODBYE, self._table.epoch, self._spec.rank).pack())
        sock.close()

    async def _dial(self, peer: int, endpoint: str) -> None:
        epoch = self._table.epoch
        link_request = LinkRequest(
            job=self._spec.job, epoch=epoch, group=WATCH_GROUP, source=self._spec.rank, target=peer
        )
        try:
            sock = await dial(endpoint, link_request, secret=self._secret, here=self._here)
        except StaleEpochError:
            return  # the peer is ahead; we dial again when we get there
        except (OSError, TrainMoverError) as error:
            if epoch == self._table.epoch and not self.leaving:
                self._blame(peer, "refused")
                reason = f"rank {peer} cannot be reached at {endpoint}: {error}"
                self._latch.trip(reason, epoch=epoch)
            return
        if epoch == self._table.epoch:
            self._add(sock, peer=peer, epoch=epoch, outbound=True)
        else:  # the peer watches us by it already: without a goodbye we would be dead to it
            self._part(self._watch(sock, peer=peer, epoch=epoch))

    def _watch(self, sock: socket.socket, *, peer: int, epoch: int) -> WatchLink:
        return WatchLink(sock, peer=peer, epoch=epoch, heard=self._heard, lost=self._lost)

    def _add(self, sock: socket.socket, *, peer: int, epoch: int, outbound: bool) -> None:
        previous = self._watches.pop((peer, outbound), None)
        if previous is not None:
            self._part(previous)
        watch = self._watch(sock, peer=peer, epoch=epoch)
        self._watches[peer, outbound] = watch
        self._tasks.create_task(self._listen(watch, (peer, outbound)))

    async def _listen(self, watch: WatchLink, key: tuple[int, bool]) -> None:
        await watch.listen()
        if self._watches.get(key) is watch:
            del self._watches[key]

    def _part(self, watch: WatchLink) -> None:
        watch.tell(Notice(NoticeKind.GOODBYE, self._table.epoch, self._spec.rank))
        watch.close()

    # -- what is heard and said ------------------------------------------------------------------

    def say_goodbye(self) -> None:
        """This rank ends: that is no failure."""
        self.leaving = True
        self._tell(Notice(NoticeKind.GOODBYE, self._table.epoch, self._spec.rank))

    def pass_on(self, epoch: int, reason: str) -> None:
        """The latch was tripped at ``epoch``: the neighbours are to know."""
        origin, self._abort_origin = self._abort_origin, self._spec.rank
        self._tell(Notice(NoticeKind.ABORT, epoch, origin, reason))

    def _tell(self, notice: Notice) -> None:
        for watch in self._watches.values():
            watch.tell(notice)

    def _heard(self, notice: Notice) -> None:
        if notice.epoch == self._table.epoch:
            self._abort_origin = notice.origin
            self._latch.trip(notice.reason, epoch=notice.epoch)

    def _lost(self, watch: WatchLink) -> None:
        # Should that epoch end meanwhile, whoever watches the peer in the next one calls in vain.
        epoch = self._table.epoch
        if self.leaving or watch.epoch < self._table.held_since(watch.peer):
            return  # the process that ended has been replaced already
        self._blame(watch.peer, "reset")
        reason = f"rank {watch.peer} is gone: its watch link ended without a goodbye"
        self._latch.trip(reason, epoch=epoch)

    def _blame(self, peer: int, kind: str) -> None:
        self._post(
            LinkLost.model_validate(
                {
                    "machine": self._spec.machine,
                    "rank": self._spec.rank,
                    "peer_rank": peer,
                    "peer_machine": self._table.membership.machine_of(peer),
                    "epoch": self._table.epoch,
                    "step": self._clock.step,
                    "kind": kind,
                }
            )
        )


def _own_address(endpoint: str) -> str | None:
    """The address that we announced: the one that our neighbour expects us to call from."""
    with contextlib.suppress(ValueError):
        host, _ = split_endpoint(endpoint)
        return str(ipaddress.ip_address(host))
    return None


async def _addresses_of(endpoint: str) -> set[str]:
    """The addresses of the host that an endpoint names; none when nobody knows it."""
    try:
        host, port = split_endpoint(endpoint)
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return {_plain(str(address[4][0])) for address in found}
    except (OSError, ValueError):
        return set()


def _plain(address: str) -> str:
    """The same host by the same name, whichever family of sockets it came by."""
    known = ipaddress.ip_address(address.partition("%")[0])
    mapped = known.ipv4_mapped if isinstance(known, ipaddress.IPv6Address) else None
    return str(mapped or known)
