"""Watch links at the edge of an epoch."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace

import pytest
from tests.support.fabric import membership, socket_pair
from tests.unit.executor.decisions import active

from trainmover_executor.clock.writer import CollectiveClock
from trainmover_executor.collectives.latch import Latch
from trainmover_executor.decisions.shell import RankDecisions
from trainmover_executor.links.dialling.handshake import LinkRequest
from trainmover_executor.links.dialling.secret import LinkSecret
from trainmover_executor.links.watch import Notice, NoticeKind
from trainmover_executor.messages.worker import WorkerSpec
from trainmover_executor.worker import watch_ring as neighbours


async def test_a_call_that_is_answered_in_the_next_epoch_ends_with_a_goodbye(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peer watches by it already: an end without a word would be taken for a death."""
    mine, theirs = socket_pair()
    table = SimpleNamespace(epoch=1, membership=membership(3), held_since=lambda rank: 0)

    async def dial(
        endpoint: str, link_request: LinkRequest, *, secret: bytes, here: str | None
    ) -> socket.socket:
        assert (endpoint, link_request.epoch) == ("m1:1", 1)
        table.epoch = 2
        return mine

    monkeypatch.setattr(neighbours, "dial", dial)
    spec = WorkerSpec(
        job="test",
        machine="m0",
        generation=0,
        rank=0,
        local_rank=0,
        role="active",
        membership=table.membership,
        control="",
        listen_fd=-1,
        clock_fd=-1,
        endpoint="m0:1",
        program=("x",),
    )
    said: list[object] = []
    one = neighbours.Neighbours(
        spec,
        table=table,  # type: ignore[arg-type]
        latch=Latch(RankDecisions(active())),
        clock=CollectiveClock(rank=0),
        secret=LinkSecret(),
        post=said.append,
    )
    async with asyncio.TaskGroup() as tasks:
        one.begin(tasks)
        one.watch_anew(frozenset())
    with theirs:
        theirs.settimeout(5)
        assert Notice.parse(theirs.recv(4096)).kind is NoticeKind.GOODBYE
        assert theirs.recv(1) == b""
    assert said == []
