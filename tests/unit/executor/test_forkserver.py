"""The fork server with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from trainmover.errors import TrainMoverError
from trainmover.job.topology import Layout, Member, Membership
from trainmover_executor.agent.processes.control_link import ControlLink
from trainmover_executor.agent.processes.forks import ForkServerClient
from trainmover_executor.agent.processes.priority import come_forward
from trainmover_executor.clock.memory import ClockMemory
from trainmover_executor.messages.forks import Exited, Spawn, Spawned
from trainmover_executor.messages.worker import FromWorker, WorkerSpec

News = asyncio.Queue[Spawned | Exited]


class Rig:
    """A fork server client with what it needs around it."""

    def __init__(self, scratch: Path, entry: str) -> None:
        self.scratch = scratch
        self.entry = entry
        self.news: News = asyncio.Queue()
        self.said: asyncio.Queue[FromWorker] = asyncio.Queue()
        self.links: list[ControlLink] = []
        self.client = ForkServerClient(entry=entry, scratch=scratch, heard=self.news.put_nowait)

    def spawn(self, key: str, *, rank: int = 0, background: bool = False) -> int:
        """Order a fork; the port it will listen on."""
        listener = socket.create_server(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        path = self.scratch / f"{key}.sock"
        self.links.append(
            ControlLink(key, path, heard=lambda _, message, __: self.said.put_nowait(message))
        )
        member = Member(machine="m", generation=0, endpoints=(f"127.0.0.1:{port}",))
        membership = Membership(epoch=1, layout=Layout(slots=1), members=(member,))
        spec = WorkerSpec(
            job="demo",
            machine="m",
            generation=0,
            rank=rank,
            local_rank=0,
            role="active",
            membership=membership,
            control=str(path),
            listen_fd=-1,
            clock_fd=-1,
            endpoint=member.endpoints[0],
            program=("none",),
        )
        words = str(self.scratch / f"{key}.words")
        _, clock = ClockMemory.shared()
        self.client.spawn(
            Spawn(key=key, spec=spec, entry=self.entry, background=background, words=words),
            listener=listener,
            clock=clock,
        )
        return port

    async def exited(self) -> Exited:
        async with asyncio.timeout(20):
            while not isinstance(news := await self.news.get(), Exited):
                pass
        return news


@asynccontextmanager
async def rig(short_dir: Path, entry: str) -> AsyncIterator[Rig]:
    scratch = short_dir / "scratch"
    scratch.mkdir()
    one = Rig(scratch, entry)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(one.client.run())
        try:
            yield one
        finally:
            running.cancel()
            for link in one.links:
                link.close()


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


async def test_a_worker_is_a_process_of_its_own_on_its_own_socket(
    short_dir: Path, director: Any, puppet_entry: str
) -> None:
    async with rig(short_dir, puppet_entry) as one:
        port = one.spawn("a")
        about = (await director.next()).about
        assert about["listens"] == port
        assert about["group"] == about["pid"]
        assert about["threads"] == 1
        assert about["policy"] == os.SCHED_OTHER
        # Its listening socket, the two it opened itself, and nothing of the fork server's.
        assert about["fds"].count("socket") == 3
        assert not [kind for kind in about["fds"] if kind not in ("socket", "pipe")]


async def test_a_process_in_the_background_gives_way_until_it_is_wanted(
    short_dir: Path, director: Any, puppet_entry: str
) -> None:
    async with rig(short_dir, puppet_entry) as one:
        one.spawn("a", background=True)
        puppet = await director.next()
        assert puppet.about["policy"] == os.SCHED_BATCH
        come_forward(puppet.pid)
        assert os.sched_getscheduler(puppet.pid) == os.SCHED_OTHER
        puppet.do("exit", code=0)
        await one.exited()
        come_forward(puppet.pid)  # it is gone: nothing happens


async def test_exits_are_reported_and_the_port_refuses(
    short_dir: Path, director: Any, puppet_entry: str
) -> None:
    async with rig(short_dir, puppet_entry) as one:
        port = one.spawn("a")
        puppet = await director.next()
        assert not refuses(port)
        puppet.do("exit", code=3)
        exited = await one.exited()
        assert (exited.key, exited.exit_code, exited.signal) == ("a", 3, None)
        assert exited.pid == puppet.pid
        assert refuses(port)


async def test_a_signal_death_is_told_from_an_exit(
    short_dir: Path, director: Any, puppet_entry: str
) -> None:
    async with rig(short_dir, puppet_entry) as one:
        one.spawn("a")
        await director.next()
        one.client.signal("a", signal.SIGKILL)
        exited = await one.exited()
        assert (exited.exit_code, exited.signal) == (None, signal.SIGKILL)
        one.client.signal("a", signal.SIGKILL)  # it is gone: nothing happens
        one.client.signal("never", signal.SIGKILL)


async def test_an_uncaught_error_ends_with_1_and_leaves_its_last_words(
    short_dir: Path, director: Any, puppet_entry: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async with rig(short_dir, puppet_entry) as one:
        one.spawn("a")
        puppet = await director.next()
        puppet.do("raise", text="x" * 3000 + " the end")
        assert (await one.exited()).exit_code == 1
        words = (one.scratch / "a.words").read_text()
        assert words.endswith("x the end\n")
        assert len(words) == 2000
    assert "Traceback" in capfd.readouterr().err


async def test_what_a_worker_started_ends_with_it(
    short_dir: Path, director: Any, puppet_entry: str, until_gone: Any
) -> None:
    async with rig(short_dir, puppet_entry) as one:
        one.spawn("a")
        puppet = await director.next()
        puppet.do("fork")
        child = await director.next()
        puppet.do("exit", code=0)
        await one.exited()
        await until_gone(child.pid, within_s=1)


async def test_many_forks_and_exits_at_once_lose_nothing(
    short_dir: Path, director: Any, puppet_entry: str
) -> None:
    async with rig(short_dir, puppet_entry) as one:
        ports = {}
        for number in range(40):
            ports[f"w{number}"] = one.spawn(f"w{number}", rank=number)
        for _ in range(40):
            puppet = await director.next()
            assert puppet.about["listens"] == ports[f"w{puppet.about['rank']}"]
            puppet.do("exit", code=puppet.about["rank"] % 7)
        exits = [await one.exited() for _ in range(40)]
        assert {e.key: e.exit_code for e in exits} == {f"w{n}": n % 7 for n in range(40)}
        assert len({e.pid for e in exits}) == 40


async def test_the_end_of_the_client_is_the_end_of_every_process(
    short_dir: Path, director: Any, puppet_entry: str, until_gone: Any
) -> None:
    async with rig(short_dir, puppet_entry) as one:
        one.spawn("a")
        one.spawn("b")
        puppets = [await director.next(), await director.next()]
    server = puppets[0].about["server"]
    for pid in (puppets[0].pid, puppets[1].pid, server):
        await until_gone(pid, within_s=1)
    assert not one.scratch.exists()


async def test_a_killed_fork_server_takes_its_workers_along_and_is_replaced(
    short_dir: Path, director: Any, puppet_entry: str, until_gone: Any
) -> None:
    async with rig(short_dir, puppet_entry) as one:
        one.spawn("a")
        first = await director.next()
        os.kill(first.about["server"], signal.SIGKILL)
        exited = await one.exited()
        assert (exited.key, exited.signal) == ("a", signal.SIGKILL)
        await until_gone(first.pid, within_s=1)
        one.spawn("b")
        second = await director.next()
        assert second.about["server"] != first.about["server"]


async def test_a_fork_server_that_cannot_import_the_worker_is_an_error(
    short_dir: Path, director: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        async with rig(short_dir, "no_such_module:main") as one:
            one.spawn("a")
            assert (await one.exited()).reason.startswith("the fork server ended")
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await run()
    assert isinstance(caught.value.exceptions[0], TrainMoverError)
    assert "no_such_module" in capfd.readouterr().err


def test_the_agent_does_not_load_torch() -> None:
    code = (
        "import sys, trainmover_executor.agent.__main__, trainmover_executor.forkserver.server;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_real_imports_start_no_thread() -> None:
    code = (
        "import os, importlib, trainmover_executor.forkserver.server as f;"
        "[os.environ.setdefault(n, '1') for n in f._ONE_THREAD];"
        "[importlib.import_module(m) for m in f._PRELOAD];"
        "print(len(os.listdir('/proc/self/task')))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "1"
