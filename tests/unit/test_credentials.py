"""The URL of a bus: its servers, and the user that it may name."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterator

import pytest

from trainmover.bus.credentials import BusAddress
from trainmover.bus.embedded import EmbeddedServer
from trainmover.bus.nats.bus import NatsBus
from trainmover.errors import BusError, ConfigError, PermissionDeniedError
from trainmover.runtime.network import address_towards

AWKWARD = "s3cret:/@%x"
WRITTEN = "s3cret%3A%2F%40%25x"


@pytest.mark.parametrize(
    ("url", "servers", "identity"),
    [
        ("nats://h:1", ("nats://h:1",), {}),
        ("h", ("nats://h",), {}),
        (" tls://a:1 , b:2,", ("tls://a:1", "nats://b:2"), {}),
        ("nats://t0ken@h:1", ("nats://h:1",), {"token": "t0ken"}),
        (f"nats://o%40ps:{WRITTEN}@h", ("nats://h",), {"user": "o@ps", "password": AWKWARD}),
        ("nats://u:@h", ("nats://h",), {"user": "u", "password": ""}),
        (
            "nats://u:p@[fd00::1]:4222,nats://h",
            ("nats://[fd00::1]:4222", "nats://h"),
            {"user": "u", "password": "p"},
        ),
    ],
)
def test_servers_and_user_are_told_apart(url, servers, identity):
    address = BusAddress.parse(url)
    assert address.servers == servers
    assert address.identity == identity
    assert str(address) == ",".join(servers)
    assert "password" not in repr(address)


@pytest.mark.parametrize(
    ("url", "expected"),
    [("h", ("h", 4222)), ("nats://u:p@[fd00::1]:1,h", ("fd00::1", 1)), ("tls://h:5", ("h", 5))],
)
def test_the_first_server_counts(url, expected):
    assert BusAddress.parse(url).host_and_port == expected


@pytest.mark.parametrize("url", ["", "nats://:4222", "nats://h:port"])
def test_an_address_without_a_host_is_said(url):
    with pytest.raises(ValueError, match=r"host|port"):
        _ = BusAddress.parse(url).host_and_port


def test_what_is_no_url_is_said():
    with pytest.raises(ConfigError, match="no URL"):
        BusAddress.parse("nats://u:p@[fd00::1:4222")


@pytest.fixture
def guarded() -> Iterator[str]:
    """A server with a user whose password has characters that mean something in a URL."""
    users = f'authorization {{ user: ops, password: "{AWKWARD}" }}'
    with EmbeddedServer(extra_config=users) as server:
        yield server.url.removeprefix("nats://")


async def test_a_user_with_an_awkward_password_comes_in(guarded):
    async with NatsBus(f"nats://ops:{WRITTEN}@{guarded}") as bus:
        await bus.setup()
        assert bus.url == f"nats://{guarded}"
        assert await bus.keys("tm_jobs") == []


@pytest.mark.parametrize(
    ("user", "cure"),
    [
        (f"ops:wrong{WRITTEN}@", "tried user 'ops' of its URL"),
        ("t0ken@", "tried a token of its URL"),
        ("", "nats://USER:PASSWORD@HOST:4222"),
    ],
)
async def test_who_is_not_known_is_told_and_no_password_is(guarded, user, cure):
    with pytest.raises(PermissionDeniedError) as refused:
        await NatsBus(f"nats://{user}{guarded}").__aenter__()
    assert cure in str(refused.value)
    assert "wrong" not in str(refused.value)
    assert "t0ken" not in str(refused.value)


@pytest.mark.parametrize("reachable", [True, False])
async def test_a_service_says_where_it_is_connected_and_no_password(guarded, reachable):
    """Its log had the URL as it was given."""
    host = guarded if reachable else "127.0.0.1:1"
    service = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "trainmover_detector", "--job", "j"),
        env={**os.environ, "TRAINMOVER_NATS_URL": f"nats://ops:{WRITTEN}@{host}"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert service.stdout is not None
    said = []
    try:
        async with asyncio.timeout(30):
            async for line in service.stdout:
                said.append(line.decode())
                if "service.ready" in said[-1] or "service.waits_for_bus" in said[-1]:
                    break
    finally:
        service.kill()
        await service.wait()
    assert f'"bus": "nats://{host}"' in said[-1]
    assert "s3cret" not in "".join(said)


@pytest.mark.parametrize(
    ("limits", "cure"),
    [
        ("max_file: 64M", r"Streams reserve \d\.\d GiB in all: raise max_file"),
        ("max_file: 8G, max_streams: 2", "account's max_streams is too low"),
        ("max_file: 8G, max_consumers: 10", "account's max_consumers is below"),
    ],
)
async def test_an_account_that_is_too_small_is_told_what_it_takes(limits, cure):
    account = f"""accounts {{
      ML: {{ users: [{{user: ml, password: ml}}], jetstream: {{ max_mem: 0, {limits} }} }}
    }}"""
    with EmbeddedServer(extra_config=account) as server:
        async with NatsBus(server.url.replace("//", "//ml:ml@")) as bus:
            with pytest.raises(BusError, match=cure):
                await bus.setup()


def test_the_way_to_another_host_is_found_in_either_family():
    assert address_towards("127.0.0.1", 4222) == "127.0.0.1"
    if socket.has_ipv6:
        assert address_towards("::1", 4222) == "::1"


def test_a_host_without_one_family_is_reached_by_the_other(monkeypatch):
    """A name with addresses of both, on a host that has no way to the first."""
    both = [
        (socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("::1", 1, 0, 0)),
        (socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("256.0.0.1", 1)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [*both])
    assert address_towards("bus", 4222) == "::1"
