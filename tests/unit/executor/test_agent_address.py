"""The address that an agent announces."""

from __future__ import annotations

import socket

import pytest

from trainmover.errors import ConfigError
from trainmover.job.endpoints import split_endpoint
from trainmover_executor.agent import address
from trainmover_executor.agent.address import own_address
from trainmover_executor.agent.processes.listeners import Listeners


@pytest.mark.parametrize(
    ("host", "towards", "expected"),
    [
        ("10.1.2.3", "nats://elsewhere:4222", "10.1.2.3"),
        ("auto", "nats://127.0.0.1:4222", "127.0.0.1"),
        ("auto", "127.0.0.1", "127.0.0.1"),
        ("auto", "nats://user:p%40ss@[::1]:4222", "::1"),
        ("auto", "tls://localhost:4222, nats://unknown.invalid:1", "127.0.0.1"),
    ],
)
def test_the_address_is_the_one_that_leads_to_the_bus(
    host: str, towards: str, expected: str
) -> None:
    assert own_address(host, towards=towards) == expected


@pytest.mark.parametrize("towards", ["nats://unknown.invalid:4222", "nats://h:port", ""])
def test_no_way_to_the_bus_is_said_with_the_cure(towards: str) -> None:
    with pytest.raises(ConfigError, match="--host"):
        own_address("auto", towards=towards)


@pytest.mark.parametrize("here", ["127.0.0.1", "::1"])
def test_listeners_announce_where_they_listen(here: str) -> None:
    bus = f"[{here}]" if ":" in here else here
    listeners = Listeners(host="auto", ranks=2, towards=f"nats://{bus}:4222")
    try:
        [*endpoints] = listeners.bind([None])[None]
        for endpoint in endpoints:
            host, port = split_endpoint(endpoint)
            assert endpoint == f"{bus}:{port}"
            assert host == here
            socket.create_connection((host, port), timeout=1).close()
    finally:
        listeners.close()


@pytest.fixture
def debian(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose own name is an address of its loopback; the bus is on another one."""
    real = socket.getaddrinfo
    known = {"gpu-1": "127.0.1.1", "gpu-2": "10.0.0.2", "bus": "10.0.0.9"}

    def getaddrinfo(host, *arguments, **options):
        return real(known.get(host, host), *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(address, "address_towards", towards)


def towards(host: str, port: int) -> str:
    return "127.0.0.1" if host == "127.0.0.1" else "10.0.0.1"


@pytest.mark.usefixtures("debian")
def test_a_name_that_no_other_machine_reaches_is_refused() -> None:
    """Each link to such a machine was refused, and nobody said why."""
    with pytest.raises(ConfigError, match=r"127\.0\.1\.1 on this machine.*is 10\.0\.0\.1 towards"):
        own_address("gpu-1", towards="nats://bus:4222")


@pytest.mark.usefixtures("debian")
@pytest.mark.parametrize(
    ("host", "bus"),
    [
        ("gpu-2", "bus"),
        ("gpu-1", "127.0.0.1"),
        ("127.0.0.1", "bus"),
        ("localhost", "bus"),
        ("unknown.invalid", "bus"),
    ],
)
def test_other_names_are_taken_as_they_are(host: str, bus: str) -> None:
    assert own_address(host, towards=f"nats://{bus}:4222") == host
