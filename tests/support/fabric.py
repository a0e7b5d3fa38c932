"""Ranks as threads of the test, joined by real sockets: for what needs no process of its own."""

from __future__ import annotations

import concurrent.futures
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from trainmover.errors import StaleEpochError
from trainmover.job.topology import Layout, Member, Membership
from trainmover_executor.collectives.linked.control import ControlCommunicator
from trainmover_executor.links.dialling.handshake import LinkRequest
from trainmover_executor.links.shared_memory.slots import SharedMemory, SharedSocket
from trainmover_executor.links.table import LinkTable

T = TypeVar("T")


def membership(
    world: int,
    *,
    epoch: int = 1,
    names: Sequence[str] | None = None,
    ranks_per_slot: int = 1,
    hosts: Sequence[object] = (),
    ring: Sequence[int] = (),
) -> Membership:
    """Machines of their own names, unless the host of each rank is given."""
    layout = Layout(slots=world // ranks_per_slot, ranks_per_slot=ranks_per_slot)
    machines = names or [f"m{i}" for i in range(layout.slots)]
    endpoints = [
        f"{machine}:{place + 1}" for machine in machines for place in range(ranks_per_slot)
    ]
    if hosts:
        endpoints = [f"{host}:{rank + 1}" for rank, host in enumerate(hosts)]
    parts = [endpoints[at : at + ranks_per_slot] for at in range(0, world, ranks_per_slot)]
    return Membership(
        epoch=epoch,
        layout=layout,
        members=tuple(
            Member(machine=name, generation=0, endpoints=tuple(part))
            for name, part in zip(machines, parts, strict=True)
        ),
        ring=tuple(ring),
    )


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    return one, other


def shared_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a link within a host."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    mine = SharedMemory.create()
    theirs = SharedMemory([os.dup(fd) for fd in mine.fds], caller=False)
    return SharedSocket(one, mine), SharedSocket(other, theirs)


class Fabric:
    """``world`` link tables whose calls reach each other by endpoint name.

    Args:
        world: Number of ranks.
        shared: Whether all ranks are on one host, so that links share memory.
        hosts: The host of each rank, where some links share memory and others do not.
        ranks_per_slot: Ranks of each machine.
        ring: The slots in the order of the ring, where it is not that of their numbers.

    Attributes:
        shares: Whether the link of two ranks shares memory; by default those of one host do.
    """

    def __init__(
        self,
        world: int,
        *,
        shared: bool = False,
        hosts: Sequence[object] = (),
        ranks_per_slot: int = 1,
        ring: Sequence[int] = (),
    ) -> None:
        self.world = world
        named = hosts or (["host"] * world if shared else [])
        hosts = named or range(world)
        self.shares: Callable[[int, int], bool] = lambda one, other: hosts[one] == hosts[other]
        self.start = membership(world, ranks_per_slot=ranks_per_slot, hosts=named, ring=ring)
        self.tables: dict[str, LinkTable] = {}
        for rank in range(world):
            self._add(self.start.endpoint_of(rank), rank)

    def add(self, machine: str, rank: int) -> LinkTable:
        place = rank % self.start.layout.ranks_per_slot + 1
        return self._add(f"{machine}:{place}", rank)

    def _add(self, endpoint: str, rank: int) -> LinkTable:
        table = LinkTable(job="test", rank=rank, membership=self.start, dial=self.dial)
        self.tables[endpoint] = table
        return table

    def table(self, rank: int) -> LinkTable:
        return self.tables[self.start.endpoint_of(rank)]

    def dial(
        self, endpoint: str, link_request: LinkRequest
    ) -> concurrent.futures.Future[socket.socket]:
        future: concurrent.futures.Future[socket.socket] = concurrent.futures.Future()
        shared = self.shares(link_request.source, link_request.target)
        mine, theirs = shared_pair() if shared else socket_pair()
        try:
            self.tables[endpoint].park(
                epoch=link_request.epoch,
                group=link_request.group,
                peer=link_request.source,
                sock=theirs,
            )
        except StaleEpochError as error:
            mine.close()
            future.set_exception(error)
        else:
            future.set_result(mine)
        return future

    def communicators(
        self, *, group: str = "g", timeout_s: float = 20.0
    ) -> list[ControlCommunicator]:
        ranks = range(self.world)
        return [
            ControlCommunicator(self.table(rank), group=group, ranks=ranks, timeout_s=timeout_s)
            for rank in ranks
        ]

    def close(self) -> None:
        for table in self.tables.values():
            table.break_off("the test is over")
            table.reset(self.start.replace({}, epoch=1_000_000))


def everywhere(actors: Sequence[T], action: Callable[[int, T], Any]) -> list[Any]:
    """Run ``action(rank, actor)`` at every rank at once; raises the first error."""
    with concurrent.futures.ThreadPoolExecutor(len(actors)) as pool:
        barrier = threading.Barrier(len(actors))

        def one(rank: int, actor: T) -> Any:
            barrier.wait()
            return action(rank, actor)

        futures = [pool.submit(one, rank, actor) for rank, actor in enumerate(actors)]
        return [future.result() for future in futures]
