"""What comes to a rank's open port, and what machines announce as theirs."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.unit.executor.decisions import active

from trainmover.errors import MalformedEventError, ProtocolError, TrainMoverError
from trainmover.events import decode, encode
from trainmover.events.machine import MachineWarming
from trainmover.job.endpoints import split_endpoint
from trainmover.job.topology import Frozen, Layout, Machine, Member, Membership
from trainmover.security.secret import SECRET_VARIABLE
from trainmover.tracing.observe import new_event
from trainmover_executor.clock.writer import CollectiveClock
from trainmover_executor.collectives.latch import Latch
from trainmover_executor.decisions.shell import RankDecisions
from trainmover_executor.links.dialling.descriptors import raise_limit, room_for_strangers
from trainmover_executor.links.dialling.endpoint import Endpoint, dial
from trainmover_executor.links.dialling.handshake import (
    ANY_EPOCH,
    REQUEST_SIZE,
    WATCH_GROUP,
    Answer,
    LinkRequest,
    Reply,
)
from trainmover_executor.links.dialling.secret import LinkSecret
from trainmover_executor.links.shared_memory import local
from trainmover_executor.links.watch import Notice, NoticeKind
from trainmover_executor.messages.worker import WorkerSpec
from trainmover_executor.worker import watch_ring as neighbours

NO_ENDPOINTS = [
    *("x", "", ":", "x:", ":1", "x:y", "x:-1", "x:65536", "x:1 ", "x: 1", "a b:1", "x:٣"),
    *("a" * 64 + ":1", ".x:1", "x..y:1", "-x:1", ("a." * 130) + "b:1", "x\0:1", "x\n:1"),
    "x:" + "1" * 5000,
]
LINK_REQUEST = LinkRequest(job="j", epoch=5, group="g", source=0, target=1)


@pytest.mark.parametrize("text", ["h:1", "10.0.0.1:65535", "[::1]:80", "::1:80", "a-b.c_d.e.:0"])
def test_endpoints(text: str) -> None:
    host, port = split_endpoint(text)
    assert f"{host}:{port}" == text.replace("[", "").replace("]", "")


@pytest.mark.parametrize("text", NO_ENDPOINTS)
def test_what_is_no_endpoint_gets_into_no_fact_and_no_membership(text: str) -> None:
    with pytest.raises(ValidationError, match="no endpoint"):
        Member(machine="m", generation=0, endpoints=(text,))
    with pytest.raises(ValidationError, match="no endpoint"):
        Machine(name="m", generation=0, endpoints=(text,))
    with pytest.raises(ValidationError, match="no endpoint"):
        MachineWarming(machine="m", generation=0, endpoints={0: (text,)})
    good = MachineWarming(machine="m", generation=0, endpoints={0: ("placeholder:1",)})
    headers, body = encode(new_event(job="j", source="/machine/m", payload=good))
    if text.isprintable() and text.isascii():
        bad = body.replace(b"placeholder:1", text.encode())
        with pytest.raises(MalformedEventError, match="no endpoint"):
            decode("tm.v1.j.machine.warming.m", headers, bad)


@pytest.mark.parametrize("text", NO_ENDPOINTS)
async def test_calling_it_raises_what_callers_know(text: str) -> None:
    """Every rank that dialled the joiner ended with exit code 70."""
    with pytest.raises((OSError, TrainMoverError)):
        await dial(text, LINK_REQUEST, secret=LinkSecret())


@pytest.mark.parametrize(
    "link_request",
    [
        LinkRequest(job="j", epoch=2**64, group="g", source=0, target=1),
        LinkRequest(job="j", epoch=-1, group="g", source=0, target=1),
        LinkRequest(job="j", epoch=1, group="g", source=2**32, target=1),
        LinkRequest(job="j", epoch=1, group="g", source=0, target=-1),
    ],
)
async def test_a_link_request_that_does_not_fit_is_a_protocol_error(
    link_request: LinkRequest,
) -> None:
    with pytest.raises(ProtocolError, match="does not fit"):
        await dial("127.0.0.1:1", link_request, secret=LinkSecret())


@given(data=st.binary(max_size=300))
def test_a_handshake_is_read_or_is_a_protocol_error(data: bytes) -> None:
    for parse in (Answer.parse, lambda each: LinkRequest.parse(each, job="j")):
        with contextlib.suppress(ProtocolError):
            parse(data)


# -- callers that nobody knows --------------------------------------------------------------------


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[str]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    endpoint = Endpoint(
        listener,
        job="j",
        rank=1,
        secret=LinkSecret(b"s" * 32),
        is_stale=lambda _: False,
        accept=lambda link_request, sock: sock.close(),
    )
    endpoint.open()
    task = asyncio.ensure_future(endpoint.serve())
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])
        listener.close()


@pytest.fixture
def few_files() -> Iterator[int]:
    """So few that callers use them up."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len(list(Path("/proc/self/fd").iterdir())) + 60
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_rank_survives_that_no_descriptor_is_left(few_files: int) -> None:
    """No key is needed to connect and say nothing; ``accept`` then raised, and the rank ended."""
    async with serving() as address:
        host, port = split_endpoint(address)
        held = []
        with contextlib.suppress(OSError):
            while True:  # both ends are ours: what is left here is left there
                held.append(sock := socket.socket())
                sock.setblocking(False)
                await asyncio.get_running_loop().sock_connect(sock, (host, port))
        assert len(held) > 10
        await asyncio.sleep(0.3)  # it may try to accept as often as it likes
        for sock in held:
            sock.close()
        async with asyncio.timeout(10):
            (await dial(address, LINK_REQUEST, secret=LinkSecret(b"s" * 32))).close()


async def test_strangers_that_talk_in_every_way_keep_nobody_out() -> None:
    async with serving() as address:
        host, port = split_endpoint(address)
        strangers = []
        for number in range(200):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write((b"", b"G", LINK_REQUEST.pack(), b"\xff" * 4096)[number % 4])
            strangers.append((reader, writer))
        async with asyncio.timeout(10):
            (await dial(address, LINK_REQUEST, secret=LinkSecret(b"s" * 32))).close()
        for _, writer in strangers:
            writer.close()


def test_the_limit_of_files_is_raised_and_strangers_get_a_share(few_files: int) -> None:
    assert room_for_strangers() <= few_files // 4
    raise_limit()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == min(hard, 65_536)
    assert room_for_strangers() == 1024


async def test_memory_is_shared_with_whoever_knows_the_secret_and_nobody_else() -> None:
    """An impostor that names a socket of its own got the descriptors with the first bytes."""
    impostor = local.LocalListener()
    impostor.socket.setblocking(True)
    impostor.socket.settimeout(10)
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"

    def deceive() -> list[int]:
        with listener, listener.accept()[0] as caller:
            caller.recv(REQUEST_SIZE, socket.MSG_WAITALL)
            caller.sendall(Answer(Reply.SAME_HOST, impostor.name).pack())
        with impostor.socket, impostor.socket.accept()[0] as caller:
            caller.settimeout(10)
            _, fds, _, _ = socket.recv_fds(caller, REQUEST_SIZE, 8)
            caller.sendall(Answer(Reply.OK, proof=bytes(32)).pack())
            _, more, _, _ = socket.recv_fds(caller, 64, 8)
            return [*fds, *more]

    deceived = asyncio.create_task(asyncio.to_thread(deceive))
    with pytest.raises((ProtocolError, OSError)):
        await dial(address, LINK_REQUEST, secret=LinkSecret(b"s" * 32))
    assert await deceived == []


# -- watch links ----------------------------------------------------------------------------------


class Rank:
    """The watch links of rank 1 of three, at 127.0.0.1; rank 0 announced 127.0.0.2."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.said: list[Frozen] = []
        self.table = SimpleNamespace(
            epoch=1, membership=membership(1, "127.0.0.2:9"), held_since=lambda rank: 0
        )
        spec = WorkerSpec(
            job="j",
            machine="m1",
            generation=0,
            rank=1,
            local_rank=0,
            role="active",
            membership=self.table.membership,
            control="",
            listen_fd=-1,
            clock_fd=-1,
            endpoint="127.0.0.1:1",
            program=("x",),
        )
        self.neighbours = neighbours.Neighbours(
            spec,
            table=self.table,  # type: ignore[arg-type]
            latch=Latch(RankDecisions(active())),
            clock=CollectiveClock(rank=1),
            secret=LinkSecret(),
            post=self.said.append,
        )
        self.neighbours.begin(tasks)

    async def call(
        self, *, epoch: int = 1, source: int = 0, host: str = "127.0.0.2"
    ) -> socket.socket:
        """Somebody who knows the secret calls from an address, as a rank."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            theirs = socket.create_connection(listener.getsockname(), source_address=(host, 0))
            mine, _ = listener.accept()
        mine.setblocking(False)
        link_request = LinkRequest(job="j", epoch=epoch, group=WATCH_GROUP, source=source, target=1)
        self.neighbours.accept(mine, link_request)
        theirs.setblocking(False)
        return theirs

    def move_to(self, epoch: int, endpoint: str) -> None:
        """Rank 0 is at another machine from now on."""
        self.table.epoch, self.table.membership = epoch, membership(epoch, endpoint)
        self.neighbours._watches[2, True] = SimpleNamespace(  # type: ignore[assignment]
            epoch=1, peer=2, socket=None, tell=lambda _: None, close=lambda: None
        )
        self.neighbours.watch_anew(frozenset({0}))


def membership(epoch: int, endpoint: str) -> Membership:
    members = tuple(
        Member(machine=f"m{slot}", generation=0, endpoints=(at,))
        for slot, at in enumerate((endpoint, "127.0.0.1:1", "127.0.0.1:2"))
    )
    return Membership(epoch=epoch, layout=Layout(slots=3), members=members)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - tasks have no event for it
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def rank() -> AsyncIterator[Rank]:
    async with asyncio.TaskGroup() as tasks:
        one = Rank(tasks)
        yield one
        for task in tasks._tasks:
            task.cancel()


async def test_the_end_of_the_neighbours_link_is_its_death() -> None:
    async with rank() as one:
        (await one.call()).close()
        await until(lambda: bool(one.said))
    assert [(fact.peer_rank, fact.peer_machine) for fact in one.said] == [(0, "m0")]


@pytest.mark.parametrize(
    ("source", "host"), [(0, "127.0.0.3"), (2, "127.0.0.1"), (1, "127.0.0.1"), (9999, "127.0.0.2")]
)
async def test_whoever_calls_in_anothers_name_is_told_goodbye_and_evicts_nobody(
    source: int, host: str
) -> None:
    async with rank() as one:
        theirs = await one.call(source=source, host=host)
        async with asyncio.timeout(5):
            said = await asyncio.get_running_loop().sock_recv(theirs, 4096)
        assert Notice.parse(said).kind is NoticeKind.GOODBYE
        theirs.close()
        await asyncio.sleep(0.05)
    assert one.said == []


async def test_nobody_displaces_the_neighbour() -> None:
    async with rank() as one:
        honest = await one.call()
        await until(lambda: bool(one.neighbours._watches))
        (await one.call(host="127.0.0.3")).close()
        await asyncio.sleep(0.05)
        assert one.said == []
        honest.close()
        await until(lambda: bool(one.said))


@pytest.mark.parametrize("host", ["127.0.0.2", "127.0.0.3", "127.0.0.4"])
async def test_a_call_of_a_later_epoch_counts_once_its_address_is_known(host: str) -> None:
    """A joiner may be there before us: its machine is in the membership that we come to."""
    async with rank() as one:
        (await one.call(epoch=2, host=host)).close()
        await asyncio.sleep(0.05)
        assert one.said == []
        one.move_to(2, "127.0.0.3:9")
        if host == "127.0.0.3":
            await until(lambda: bool(one.said))
        else:
            await asyncio.sleep(0.05)
            assert one.said == []


async def test_calls_of_later_epochs_are_few() -> None:
    async with rank() as one:
        calls = [await one.call(epoch=ANY_EPOCH - n) for n in range(50)]
        assert len(one.neighbours._early) <= 4
        for call in calls:
            call.close()
        for sock, *_ in one.neighbours._early:
            sock.close()
    assert one.said == []


NEW, OLD = b"n" * 32, b"o" * 32


class TestRotation:
    """The secret changes while the job runs: no two machines read the new file at one moment."""

    @pytest.mark.parametrize(
        ("callers", "callees", "may"),
        [
            ((OLD,), (NEW, OLD), True),
            ((NEW, OLD), (OLD,), True),
            ((NEW, OLD), (NEW, OLD), True),
            ((NEW, OLD), (NEW,), True),
            ((OLD,), (NEW,), False),
            ((NEW,), (OLD,), False),
        ],
    )
    async def test_both_are_taken_until_the_old_one_is_gone(
        self, callers: tuple[bytes, ...], callees: tuple[bytes, ...], may: bool
    ) -> None:
        async with listening(LinkSecret(*callees)) as address:
            if may:
                (await dial(address, LINK_REQUEST, secret=LinkSecret(*callers))).close()
            else:
                with pytest.raises(ProtocolError, match="different link secrets"):
                    await dial(address, LINK_REQUEST, secret=LinkSecret(*callers))

    async def test_a_rank_that_runs_takes_what_its_file_says_now(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A machine that was taken out knew the secret for as long as the job ran."""
        file = tmp_path / "link-j"

        def write(*secrets: bytes) -> None:
            draft = tmp_path / "draft"
            draft.write_bytes(b"\n".join(secrets))
            draft.chmod(0o600)
            draft.replace(file)

        write(OLD)
        monkeypatch.setenv(SECRET_VARIABLE, str(file))
        old = LinkSecret(OLD)
        async with listening(LinkSecret.from_environment()) as address:
            (await dial(address, LINK_REQUEST, secret=old)).close()
            write(NEW, OLD)
            (await dial(address, LINK_REQUEST, secret=old)).close()
            write(b"n" * 64, NEW)
            with pytest.raises(ProtocolError, match="different link secrets"):
                await dial(address, LINK_REQUEST, secret=old)
            file.write_bytes(b"half")  # whoever copies it to the machine is not done
            (await dial(address, LINK_REQUEST, secret=LinkSecret(NEW))).close()


@contextlib.asynccontextmanager
async def listening(secret: LinkSecret) -> AsyncIterator[str]:
    """Rank 1, which takes links of whoever proves the secret; its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    endpoint = Endpoint(
        listener,
        job="j",
        rank=1,
        secret=secret,
        is_stale=lambda _: False,
        accept=lambda _, sock: sock.close(),
    )
    endpoint.open()
    serving = asyncio.ensure_future(endpoint.serve())
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        serving.cancel()
        await asyncio.wait([serving])
        listener.close()
