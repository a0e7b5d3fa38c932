"""Handshakes, the table of links and watch links: who is let in, and what is kept when."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
from tests.support.fabric import Fabric, everywhere, membership, socket_pair

from trainmover.errors import ConfigError, ProtocolError, StaleEpochError
from trainmover.security.secret import LEAST_BYTES, SECRET_VARIABLE, make_secret
from trainmover_executor.links.dialling.endpoint import Endpoint, dial
from trainmover_executor.links.dialling.handshake import (
    REPLY_SIZE,
    REQUEST_SIZE,
    Answer,
    LinkRequest,
    Reply,
)
from trainmover_executor.links.dialling.secret import LinkSecret, proof
from trainmover_executor.links.exchange import exchange
from trainmover_executor.links.link import COUNTERS, Link, LinkBrokenError
from trainmover_executor.links.table import LinkTable
from trainmover_executor.links.watch import Notice, NoticeKind, WatchLink


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    fabric = Fabric(3)
    yield fabric
    fabric.close()


class TestHandshake:
    def test_a_link_request_survives_the_wire(self):
        link_request = LinkRequest(job="j", epoch=2**40, group="mesh_dp", source=7, target=9)
        assert LinkRequest.parse(link_request.pack(), job="j") == (link_request, True)
        assert len(link_request.pack()) == REQUEST_SIZE

    def test_another_job_is_told_apart(self):
        link_request = LinkRequest(job="other", epoch=1, group="g", source=0, target=1)
        assert LinkRequest.parse(link_request.pack(), job="j")[1] is False

    def test_group_names_of_any_length_fit_and_stay_apart(self):
        names = ["x" * 300, "y" * 10 + "x" * 290]
        packed = {LinkRequest(job="j", epoch=1, group=n, source=0, target=1).pack() for n in names}
        assert len(packed) == 2
        assert {len(data) for data in packed} == {REQUEST_SIZE}

    @pytest.mark.parametrize(
        "data", [b"\0" * REQUEST_SIZE, b"GET / HTTP/1.1\r\n".ljust(REQUEST_SIZE)]
    )
    def test_strangers_are_refused(self, data):
        with pytest.raises(ProtocolError, match="stranger"):
            LinkRequest.parse(data, job="j")
        with pytest.raises(ProtocolError, match="not a TrainMover rank"):
            Answer.parse(data[:REPLY_SIZE].ljust(REPLY_SIZE))
        assert Answer.parse(Answer(Reply.STALE_EPOCH).pack()).reply is Reply.STALE_EPOCH


class TestEndpoint:
    async def run(
        self,
        link_request: LinkRequest,
        *,
        opened: bool = True,
        epoch: int = 5,
        secrets=(b"s" * 32, b"s" * 32),
    ):
        """Call an endpoint of job j, rank 1, at ``epoch``; what it accepted, what the call gave."""
        theirs, ours = secrets
        listener = socket.create_server(("127.0.0.1", 0))
        accepted: list[LinkRequest] = []
        endpoint = Endpoint(
            listener,
            job="j",
            rank=1,
            secret=LinkSecret(theirs),
            is_stale=lambda e: e < epoch,
            accept=lambda link_request, sock: (accepted.append(link_request), sock.close()),
        )
        if opened:
            endpoint.open()
        serving = asyncio.ensure_future(endpoint.serve())
        try:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            call = asyncio.ensure_future(dial(address, link_request, secret=LinkSecret(ours)))
            if not opened:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(call), 0.05)
                endpoint.open()
            (await call).close()
        finally:
            serving.cancel()
            await asyncio.wait([serving])
            listener.close()
        return accepted

    async def test_its_own_peers_are_accepted(self):
        link_request = LinkRequest(job="j", epoch=5, group="g", source=0, target=1)
        assert await self.run(link_request) == [link_request]

    async def test_a_standby_answers_when_it_is_warm(self):
        link_request = LinkRequest(job="j", epoch=6, group="g", source=0, target=1)
        assert await self.run(link_request, opened=False) == [link_request]

    async def test_a_stale_epoch_is_refused(self):
        """INV-ONE-OWNER: a machine believed dead cannot come back under its old epoch."""
        with pytest.raises(StaleEpochError, match="refused epoch 4"):
            await self.run(LinkRequest(job="j", epoch=4, group="g", source=0, target=1))

    @pytest.mark.parametrize(
        ("job", "target", "why"), [("x", 1, "another job"), ("j", 2, "another rank")]
    )
    async def test_others_are_refused(self, job, target, why):
        with pytest.raises(ProtocolError, match=why):
            await self.run(LinkRequest(job=job, epoch=5, group="g", source=0, target=target))

    async def test_nobody_there_is_an_error(self):
        link_request = LinkRequest(job="j", epoch=1, group="g", source=0, target=1)
        with pytest.raises(OSError, match=r"127\.0\.0\.1"):
            await dial("127.0.0.1:9", link_request, secret=LinkSecret())

    @pytest.mark.parametrize("ours", [b"", b"other" * 8])
    async def test_who_does_not_know_the_secret_is_not_talked_to(self, ours):
        with pytest.raises(ProtocolError, match="different link secrets"):
            await self.run(
                LinkRequest(job="j", epoch=5, group="g", source=0, target=1),
                secrets=(b"s" * 32, ours),
            )

    async def test_who_only_pretends_to_answer_is_found_out(self):
        """A callee that says OK without a challenge, or with a proof it made up."""
        link_request = LinkRequest(job="j", epoch=5, group="g", source=0, target=1)
        for answers in (
            [Answer(Reply.OK)],
            [Answer(Reply.CHALLENGE, b"c" * 16), Answer(Reply.OK, proof=b"p" * 32)],
        ):
            ended = asyncio.Event()

            async def impostor(reader, writer, answers=answers, ended=ended):
                await reader.readexactly(REQUEST_SIZE)
                for answer in answers:
                    writer.write(answer.pack())
                await reader.read()
                writer.close()
                await writer.wait_closed()
                ended.set()

            server = await asyncio.start_server(impostor, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ProtocolError, match="different link secrets"):
                await dial(f"127.0.0.1:{port}", link_request, secret=LinkSecret(b"s" * 32))
            await ended.wait()
            server.close()
            await server.wait_closed()

    async def test_a_recorded_handshake_is_worth_nothing(self):
        """The callee's challenge differs each time: saying the same again proves nothing."""
        said = LinkRequest(job="j", epoch=5, group="g", source=0, target=1).pack(b"c" * 16)
        listener = socket.create_server(("127.0.0.1", 0))
        accepted: list[LinkRequest] = []
        endpoint = Endpoint(
            listener,
            job="j",
            rank=1,
            secret=LinkSecret(b"s" * 32),
            is_stale=lambda _: False,
            accept=lambda link_request, sock: (accepted.append(link_request), sock.close()),
        )
        endpoint.open()
        serving = asyncio.ensure_future(endpoint.serve())
        proofs = []
        try:
            for _ in range(2):
                address = listener.getsockname()
                reader, writer = await asyncio.open_connection(*address)
                writer.write(said)
                challenge = Answer.parse(await reader.readexactly(REPLY_SIZE)).detail
                proofs.append(proof(b"s" * 32, side="caller", said=said + challenge))
                writer.write(proofs[0])
                answer = Answer.parse(await reader.readexactly(REPLY_SIZE))
                writer.close()
                await writer.wait_closed()
        finally:
            serving.cancel()
            await asyncio.wait([serving])
            listener.close()
        assert proofs[0] != proofs[1]
        assert answer.reply is Reply.WRONG_SECRET

    async def test_callers_that_say_nothing_keep_nobody_out(self, monkeypatch):
        """Slow loris: the oldest silent ones make room."""
        monkeypatch.setattr(
            "trainmover_executor.links.dialling.endpoint.room_for_strangers", lambda: 8
        )
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        accepted = asyncio.Event()
        endpoint = Endpoint(
            listener,
            job="j",
            rank=1,
            secret=LinkSecret(),
            is_stale=lambda _: False,
            accept=lambda link_request, sock: (accepted.set(), sock.close()),
        )
        endpoint.open()
        serving = asyncio.ensure_future(endpoint.serve())
        silent = [await asyncio.open_connection(*listener.getsockname()) for _ in range(32)]
        link_request = LinkRequest(job="j", epoch=5, group="g", source=0, target=1)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        (await dial(address, link_request, secret=LinkSecret())).close()
        await asyncio.wait_for(accepted.wait(), 5)
        assert [await reader.read() for reader, _ in silent[:20]] == [b""] * 20
        for _, writer in silent:
            writer.close()
        serving.cancel()
        await asyncio.wait([serving])
        listener.close()


class TestSecret:
    def test_none_is_none(self, monkeypatch):
        monkeypatch.delenv(SECRET_VARIABLE, raising=False)
        assert LinkSecret.from_environment().accepted() == (b"",)
        assert not LinkSecret.from_environment()

    def test_a_made_one_is_found(self, monkeypatch, tmp_path):
        path = make_secret(tmp_path / "deep" / "secret")
        monkeypatch.setenv(SECRET_VARIABLE, str(path))
        secret = LinkSecret.from_environment()
        (first,) = secret.accepted()
        assert len(first) == 2 * LEAST_BYTES
        make_secret(path)
        assert secret.accepted() != (first,)

    @pytest.mark.parametrize(
        ("content", "mode", "why"),
        [(b"short", 0o600, "needs 32"), (b"x" * 64, 0o604, "everybody"), (None, 0, "No such")],
    )
    def test_a_bad_one_is_refused(self, content, mode, why, monkeypatch, tmp_path):
        path = tmp_path / "secret"
        if content is not None:
            path.write_bytes(content)
            path.chmod(mode)
        monkeypatch.setenv(SECRET_VARIABLE, str(path))
        with pytest.raises(ConfigError, match=why):
            LinkSecret.from_environment()


class TestBook:
    def link_all(self, fabric: Fabric) -> None:
        everywhere(
            [0, 1, 2],
            lambda rank, _: [
                fabric.table(rank).link("g", peer, timeout_s=5) for peer in range(3) if peer != rank
            ],
        )

    def test_a_switch_replaces_links_to_the_leaver_only(self, fabric):
        self.link_all(fabric)
        table = fabric.table(0)
        kept, old = (table.link("g", peer, timeout_s=1) for peer in (1, 2))
        assert table.edges_to([2]) == [("g", 2)]
        later = membership(3, epoch=2, names=["m0", "m1", "spare"])
        mine, theirs = socket_pair()
        table.park(epoch=2, group="g", peer=2, sock=mine)

        assert table.switch(later) == 1

        assert table.link("g", 1, timeout_s=1) is kept
        new = table.link("g", 2, timeout_s=1)
        assert new is not old
        assert old.socket.fileno() != -1  # the way back is open until the first vote
        table.retire()
        assert old.socket.fileno() == -1
        theirs.close()

    def test_an_aborted_epoch_leaves_nothing(self, fabric):
        mine, theirs = socket_pair()
        fabric.table(0).park(epoch=2, group="g", peer=1, sock=mine)
        fabric.table(0).drop_parked(2)
        assert theirs.recv(1) == b""
        theirs.close()

    def test_parking_for_a_past_epoch_is_refused(self, fabric):
        fabric.table(0).reset(membership(3, epoch=3))
        mine, theirs = socket_pair()
        with pytest.raises(StaleEpochError, match="link of epoch 2 from rank 1"):
            fabric.table(0).park(epoch=2, group="g", peer=1, sock=mine)
        assert theirs.recv(1) == b""
        theirs.close()

    def test_an_epoch_that_is_over_breaks_off_nothing(self, fabric):
        self.link_all(fabric)
        table = fabric.table(0)
        table.reset(membership(3, epoch=4))
        table.break_off("a rank of epoch 1 is gone", epoch=1)
        assert table.broken is None

    def test_a_call_ahead_is_the_link_that_is_asked_for_later(self, fabric):
        calls = []
        dial = fabric.dial
        caller, callee = fabric.table(0), fabric.table(2)
        caller._dial = lambda endpoint, link_request: (
            calls.append(link_request) or dial(endpoint, link_request)
        )
        for _ in range(2):
            caller.call_ahead("state", 2)
            callee.call_ahead("state", 0)  # the lower rank calls
        link, other = caller.link("state", 2, timeout_s=5), callee.link("state", 0, timeout_s=5)
        assert len(calls) == 1
        assert link.send_some(memoryview(b"x")) == 1
        assert other.socket.getpeername() == link.socket.getsockname()

    def test_a_call_ahead_that_nobody_needed_is_hung_up(self, fabric):
        caller, callee = fabric.table(0), fabric.table(2)
        caller.call_ahead("state", 2)
        there = callee.take_parked(epoch=1, group="state", peer=0)
        caller.reset(fabric.start.replace({}, epoch=2))
        assert there is not None
        there.settimeout(5)
        assert there.recv(1) == b""
        there.close()

    def test_a_reset_closes_the_past_and_keeps_the_future(self, fabric):
        self.link_all(fabric)
        table = fabric.table(0)
        old = table.link("g", 1, timeout_s=1)
        mine, theirs = socket_pair()
        table.park(epoch=4, group="g", peer=1, sock=mine)
        table.break_off("test")
        with pytest.raises(LinkBrokenError, match="test"):
            table.link("g", 1, timeout_s=1)
        table.reset(membership(3, epoch=4))
        assert old.socket.fileno() == -1
        assert table.link("g", 1, timeout_s=1).socket is mine
        theirs.close()

    @pytest.mark.parametrize(
        "answer", [Answer(Reply.WRONG_JOB), Answer(Reply.WRONG_RANK), Answer(Reply.WRONG_SECRET)]
    )
    async def test_somebody_else_behind_a_reused_port_is_an_unreachable_peer(self, answer):
        async def stranger(reader, writer):
            await reader.readexactly(REQUEST_SIZE)
            writer.write(answer.pack())
            await writer.drain()
            writer.close()

        await self.call(stranger, match="cannot reach rank 1 for group 'g': .* refused the link")

    async def test_another_program_behind_a_reused_port_is_an_unreachable_peer(self):
        async def stranger(reader, writer):
            writer.write(b"HTTP/1.1 400 Bad Request\r\n".ljust(REPLY_SIZE))
            await writer.drain()
            writer.close()

        await self.call(stranger, match="cannot reach rank 1 .*not a TrainMover rank")

    @staticmethod
    async def call(stranger, *, match: str) -> None:
        """Rank 0 calls rank 1, whose port ``stranger`` has by now."""
        server = await asyncio.start_server(stranger, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        table = LinkTable(
            job="test",
            rank=0,
            membership=membership(2),
            dial=lambda _, link_request: asyncio.run_coroutine_threadsafe(
                dial(f"127.0.0.1:{port}", link_request, secret=LinkSecret(b"s" * 32)), loop
            ),
        )
        async with server:
            with pytest.raises(LinkBrokenError, match=match):
                await asyncio.to_thread(table.link, "g", 1, timeout_s=20)


class TestFrames:
    def test_a_message_of_another_epoch_is_never_taken_for_ours(self):
        one, other = socket_pair()
        links = [Link(one, peer=1, group="g"), Link(other, peer=0, group="g")]
        exchange(frame=(1, 0, 1), out=(links[0], memoryview(b"old")), stall_timeout_s=1)
        with pytest.raises(StaleEpochError, match="message of epoch 1 in epoch 2"):
            exchange(
                frame=(2, 0, 1),
                into=(links[1], 3, memoryview(bytearray(3))),
                stall_timeout_s=1,
            )
        for link in links:
            link.close()

    def test_a_link_that_stalls_is_given_up(self):
        one, other = socket_pair()
        link = Link(one, peer=1, group="g")
        with pytest.raises(LinkBrokenError, match=r"nothing moved on the links to ranks \[1\]"):
            exchange(
                frame=(1, 0, 1), into=(link, 3, memoryview(bytearray(3))), stall_timeout_s=0.05
            )
        assert link.counters[COUNTERS.index("wait_ns")] > 0
        link.close()
        other.close()


class TestWatch:
    async def watch(self, *, goodbye: bool) -> tuple[list[Notice], list[int]]:
        one, other = socket_pair()
        one.setblocking(False)
        heard: list[Notice] = []
        lost: list[int] = []
        watch = WatchLink(
            one, peer=3, epoch=7, heard=heard.append, lost=lambda watch: lost.append(watch.peer)
        )
        listening = asyncio.ensure_future(watch.listen())
        abort = Notice(NoticeKind.ABORT, 7, 2, "links ended")
        other.sendall(abort.pack())
        if goodbye:
            other.sendall(Notice(NoticeKind.GOODBYE, 7, 3).pack())
        other.close()
        await listening
        assert heard == [abort]
        return heard, lost

    async def test_a_link_that_we_closed_is_not_listened_to_any_more(self):
        one, other = socket_pair()
        one.setblocking(False)
        lost: list[WatchLink] = []
        watch = WatchLink(one, peer=3, epoch=7, heard=lambda _: None, lost=lost.append)
        listening = asyncio.ensure_future(watch.listen())
        await asyncio.sleep(0)  # it waits for the first notice now
        watch.close()
        await asyncio.wait_for(listening, 20)
        assert one.fileno() == -1
        assert not lost
        assert other.recv(1) == b""
        other.close()

    async def test_an_end_without_goodbye_is_a_death(self):
        assert (await self.watch(goodbye=False))[1] == [3]

    async def test_an_end_after_goodbye_is_none(self):
        assert (await self.watch(goodbye=True))[1] == []
