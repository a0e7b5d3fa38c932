"""Ranks as threads of one process, joined by real TCP links with real handshakes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from trainmover.job.topology import Layout, Member, Membership
from trainmover_executor.collectives.communicator.choice import (
    COMMUNICATOR_VARIABLE,
    Choice,
    choice_of,
)
from trainmover_executor.collectives.communicator.reduction import reduction_of
from trainmover_executor.collectives.linked.communicator import LinkCommunicator
from trainmover_executor.links.dialling.endpoint import Endpoint, dial
from trainmover_executor.links.dialling.handshake import LinkRequest
from trainmover_executor.links.dialling.secret import LinkSecret
from trainmover_executor.links.table import LinkTable

GROUP = "g"
_JOB = "bench"
_TIMEOUT_S = 60.0


class RankProcess:
    """One process's part: a listening endpoint, a table of links, a communicator."""

    def __init__(self, fabric: Fabric, rank: int) -> None:
        self.rank = rank
        # A host of its own for each rank, as far as the others can see: machines move.
        host = f"127.0.0.{rank + 2}"
        self.listener = socket.create_server((host, 0), backlog=256)
        self.address = f"{host}:{self.listener.getsockname()[1]}"
        self._fabric = fabric
        self._serving: concurrent.futures.Future[None] | None = None

    def join(self, membership: Membership) -> None:
        """Take the rank at ``membership`` and answer calls."""
        self.table = LinkTable(
            job=_JOB, rank=self.rank, membership=membership, dial=self._fabric.dial
        )
        links = LinkCommunicator(
            self.table, group=GROUP, ranks=range(membership.layout.slots), timeout_s=_TIMEOUT_S
        )
        self.communicator, self._counting = self._fabric.choice(links)
        self._serving = self._fabric.run(self._serve())

    async def _serve(self) -> None:
        endpoint = Endpoint(
            self.listener,
            job=_JOB,
            rank=self.rank,
            secret=LinkSecret(),
            is_stale=lambda epoch: epoch < self.table.epoch,
            accept=self._accept,
        )
        endpoint.open()
        await endpoint.serve()

    def _accept(self, link_request: LinkRequest, sock: socket.socket) -> None:
        self.table.park(
            epoch=link_request.epoch, group=link_request.group, peer=link_request.source, sock=sock
        )

    def agree(self) -> None:
        """The first small collective of an epoch: what the vote is."""
        values = torch.ones(2, dtype=torch.int64)
        self.communicator.allreduce(values, reduction_of(dist.ReduceOp.MIN))

    def rewind(self) -> None:
        """A new epoch begins."""
        for communicator in self._counting:
            communicator.rewind()

    def leave(self) -> None:
        """End every link and the endpoint."""
        self.table.break_off("the process ends")
        self.table.reset(self.table.membership.replace({}, epoch=1 << 40))
        if self._serving is not None:
            self._serving.cancel()
            concurrent.futures.wait([self._serving])
        self.listener.close()


class Fabric:
    """``world`` ranks at epoch 1, with the links that training has used.

    Args:
        world: Number of ranks, each a machine.
        communicator: What ``TRAINMOVER_COMMUNICATOR`` would say.
    """

    def __init__(self, world: int, *, communicator: str = "link") -> None:
        self.choice: Choice = choice_of({COMMUNICATOR_VARIABLE: communicator})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.processes = [RankProcess(self, rank) for rank in range(world)]
        members = tuple(self.member(f"m{process.rank}", process) for process in self.processes)
        self.membership = Membership(epoch=1, layout=Layout(slots=world), members=members)
        for process in self.processes:
            process.join(self.membership)
        self._pool = concurrent.futures.ThreadPoolExecutor(world)
        self.everywhere(self.use)

    def run(self, coroutine: Any) -> concurrent.futures.Future[Any]:
        """Run a coroutine on the loop that stands for all control threads."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def dial(
        self, endpoint: str, link_request: LinkRequest
    ) -> concurrent.futures.Future[socket.socket]:
        """Call a rank, as its control thread would."""
        return self.run(dial(endpoint, link_request, secret=LinkSecret()))

    @staticmethod
    def member(machine: str, process: RankProcess) -> Member:
        """``process`` as a machine of one rank."""
        return Member(machine=machine, generation=0, endpoints=(process.address,))

    @staticmethod
    def use(process: RankProcess) -> None:
        """Open what a step uses: the ring, the doubling of small messages, the barrier."""
        ring = torch.ones(65536)
        process.communicator.allreduce(ring, reduction_of(dist.ReduceOp.SUM))
        process.agree()
        process.communicator.barrier()

    def everywhere(self, action: Callable[[RankProcess], None]) -> tuple[float, dict[int, float]]:
        """Run ``action`` at every rank at once.

        Returns:
            Seconds until the last rank was done, and each rank's own.
        """
        gate = threading.Barrier(len(self.processes) + 1)

        def one(process: RankProcess) -> float:
            gate.wait()
            began = time.perf_counter()
            action(process)
            return time.perf_counter() - began

        futures = [self._pool.submit(one, process) for process in self.processes]
        gate.wait()
        began = time.perf_counter()
        times = {
            process.rank: f.result() for process, f in zip(self.processes, futures, strict=True)
        }
        return time.perf_counter() - began, times

    def prepare(self, rank: int) -> tuple[RankProcess, Mapping[int, int]]:
        """Phase 1: a joiner for ``rank``; its neighbours dial it and park the links.

        Returns:
            The process that leaves, and the number of links parked at each stayer.
        """
        joiner, leaver = RankProcess(self, rank), self.processes[rank]
        epoch = self.membership.epoch + 1
        member = self.member(f"m{rank}-{epoch}", joiner)
        self.membership = self.membership.replace({rank: member}, epoch=epoch)
        joiner.join(self.membership)
        parked = {}
        for process in self.processes:
            edges = process.table.edges_to([rank]) if process is not leaver else []
            parked[process.rank] = len(edges)
            for group, peer in edges:
                link_request = LinkRequest(
                    job=_JOB, epoch=epoch, group=group, source=process.rank, target=peer
                )
                sock = self.dial(joiner.address, link_request).result(_TIMEOUT_S)
                process.table.park(epoch=epoch, group=group, peer=peer, sock=sock)
        self.processes[rank] = joiner
        return leaver, parked

    def close(self) -> None:
        """End everything."""
        for process in self.processes:
            process.leave()
        self._pool.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
