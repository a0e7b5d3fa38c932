"""Puppets: real worker processes whose every move a test decides."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from trainmover.job.topology import Frozen
from trainmover_executor.messages.worker import pack
from trainmover_executor.program import frames

HERE = Path(__file__).parent
ENTRY = "puppet_worker:main"


@dataclass
class Puppet:
    """One worker process.

    Attributes:
        about: What it said of itself when it started.
        gone: Set when its process ended.
    """

    about: dict[str, Any]
    writer: asyncio.StreamWriter
    heard: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pid(self) -> int:
        return int(self.about.get("pid") or self.about["grandchild"])

    def do(self, verb: str, **options: Any) -> None:
        self.writer.write(json.dumps({"do": verb, **options}).encode() + b"\n")

    def say(self, message: Frozen, body: bytes = b"") -> None:
        self.do("frame", data=pack(message, body).hex())


class Director:
    """Where puppets report."""

    def __init__(self) -> None:
        self.puppets: asyncio.Queue[Puppet] = asyncio.Queue()

    async def next(self) -> Puppet:
        async with asyncio.timeout(20):
            return await self.puppets.get()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        puppet: Puppet | None = None
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if puppet is None:
                    puppet = Puppet(message, writer)
                    self.puppets.put_nowait(puppet)
                else:
                    puppet.heard.put_nowait(message["heard"])
        except ConnectionError:
            pass
        finally:
            if puppet is not None:
                puppet.gone.set()
            writer.close()


@pytest.fixture(autouse=True)
def _one_program(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of other tests are none of the program that a test looks at: there are hundreds."""
    names_of_modules = frames._names_of_modules.__wrapped__
    others = {*names_of_modules(0)} - {request.module.__name__}

    @lru_cache(maxsize=1)
    def names(count: int) -> list[str]:
        return [name for name in names_of_modules(count) if name not in others]

    monkeypatch.setattr(frames, "_names_of_modules", names)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder whose name is short enough for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="tmt-") as name:
        yield Path(name)


@pytest.fixture
async def director(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Director]:
    """A director that puppets started from now on report to."""
    director = Director()
    path = short_dir / "director"
    server = await asyncio.start_unix_server(director.serve, path)
    monkeypatch.setenv("TM_DIRECTOR", str(path))
    search = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(search))
    yield director
    server.close()
    await server.wait_closed()


async def gone(pid: int, *, within_s: float) -> None:
    """Return when a process has ended; fail when it takes longer."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        async with asyncio.timeout(within_s):
            await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


@pytest.fixture
def until_gone() -> Any:
    """``await until_gone(pid, within_s=1)``."""
    return gone


@pytest.fixture
def puppet_entry() -> str:
    """Where puppets begin."""
    return ENTRY
