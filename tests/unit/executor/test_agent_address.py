"""The address that an agent announces."""

from __future__ import annotations

import socket

import pytest

from trainmover.errors import ConfigError
from trainmover.job.endpoints import split_endpoint
from trainmover_executor.agent.address import own_address
from trainmover_executor.agent.processes.listeners import Listeners


@pytest.mark.parametrize(
    ("host", "towards", "address"),
    [
        ("10.1.2.3", "nats://elsewhere:4222", "10.1.2.3"),
        ("auto", "nats://127.0.0.1:4222", "127.0.0.1"),
        ("auto", "127.0.0.1", "127.0.0.1"),
        ("auto", "nats://user:p%40ss@[::1]:4222", "::1"),
        ("auto", "tls://localhost:4222, nats://unknown.invalid:1", "127.0.0.1"),
    ],
)
def test_the_address_is_the_one_that_leads_to_the_bus(
    host: str, towards: str, address: str
) -> None:
    assert own_address(host, towards=towards) == address


@pytest.mark.parametrize("towards", ["nats://unknown.invalid:4222", "nats://h:port", ""])
def test_no_way_to_the_bus_is_said_with_the_cure(towards: str) -> None:
    with pytest.raises(ConfigError, match="--host"):
        own_address("auto", towards=towards)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_listeners_announce_where_they_listen(address: str) -> None:
    bus = f"[{address}]" if ":" in address else address
    listeners = Listeners(host="auto", ranks=2, towards=f"nats://{bus}:4222")
    try:
        [*endpoints] = listeners.bind([None])[None]
        for endpoint in endpoints:
            host, port = split_endpoint(endpoint)
            assert endpoint == f"{bus}:{port}"
            assert host == address
            socket.create_connection((host, port), timeout=1).close()
    finally:
        listeners.close()
