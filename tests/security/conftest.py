"""A secured server, and clients of every role."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from trainmover.bus.credentials import Credentials
from trainmover.bus.embedded import EmbeddedServer
from trainmover.bus.nats.bus import NatsBus
from trainmover.security.folder import Setup, client_folder, write
from trainmover.security.roles import Role, User
from trainmover.testing import running_server

MACHINES = ("node-0", "node-1")
SUBSCRIBERS = ("pager", "board", "archive")
POOLS = {"spares": ("spare-0", "spare-1")}
JOB = "gpt"


@dataclass(frozen=True)
class Secured:
    """A server and everybody's credentials."""

    folder: Path
    server: EmbeddedServer

    def credentials(self, who: str) -> Credentials:
        """Those of "planner", of "machine-node-0", or of "pool-spares", which leads that pool."""
        role, _, machine = who.partition("-")
        return Credentials.of_folder(client_folder(self.folder, User(Role(role), machine)))

    def bus(self, who: str) -> NatsBus:
        return NatsBus(self.server.url, name=who, credentials=self.credentials(who))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("security")
    write(
        folder,
        Setup(
            jobs=(JOB, "bert"),
            machines=MACHINES,
            subscribers=SUBSCRIBERS,
            pools=POOLS,
            tls=False,
        ),
    )
    with running_server(extra_config=(folder / "server" / "auth.conf").read_text()) as server:
        found = Secured(folder, server)
        asyncio.run(_streams(found))
        yield found


async def _streams(secured: Secured) -> None:
    async with secured.bus("admin") as bus:
        await bus.setup()
