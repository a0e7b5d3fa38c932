"""The HTTP endpoint for announcements: in order, never after a refusal, and not open by mistake."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.error
import urllib.request

import pytest
from typer.testing import CliRunner

from trainmover.events.machine import MachineNoticed
from trainmover_console.cli.app import app
from trainmover_console.cli.exits import ExitCode
from trainmover_gateway.notices import http
from trainmover_gateway.notices.http import serving

PATH = "/v1/machines/w-1/notices"


def post(port: int, body: bytes, *, headers: dict[str, str] | None = None) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{PATH}", body, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def notice(reason: str) -> bytes:
    return json.dumps({"kind": "maintenance", "reason": reason}).encode()


async def test_what_was_refused_is_not_published_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_STORE_S", 0.3)
    stored: list[str] = []
    bus_is_back = asyncio.Event()

    async def accept(one: MachineNoticed) -> None:
        await bus_is_back.wait()
        stored.append(one.reason)

    loop = asyncio.get_running_loop()
    with serving(accept, loop=loop, host="127.0.0.1", port=0) as port:
        assert await asyncio.to_thread(post, port, notice("first")) == 503
        bus_is_back.set()
        assert await asyncio.to_thread(post, port, notice("second")) == 202
    assert stored == ["second"]


async def test_what_comes_later_does_not_overtake() -> None:
    stored: list[str] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def accept(one: MachineNoticed) -> None:
        begun.set()
        await go_on.wait()
        stored.append(one.reason)

    loop = asyncio.get_running_loop()
    with serving(accept, loop=loop, host="127.0.0.1", port=0) as port:
        first = asyncio.create_task(asyncio.to_thread(post, port, notice("first")))
        await begun.wait()
        second = asyncio.create_task(asyncio.to_thread(post, port, notice("second")))
        await asyncio.sleep(0.2)
        go_on.set()
        assert [await first, await second] == [202, 202]
    assert stored == ["first", "second"]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"kind": "maintenance", "leaves_in_s": NaN}', {}),
        (b'{"kind": "health", "metrics": {"x": Infinity}}', {}),
        (b"[" * 10_000, {}),
        (b"{}", {}),
        (b"\xff", {}),
        (b'{"kind": "maintenance", "machine": "w-2", "reason": 7}', {}),
        (b"{}", {"Content-Length": "-1"}),
        (b"{}", {"Content-Length": "9" * 5000}),
        (b"{}", {"Content-Length": "x"}),
    ],
)
async def test_whatever_is_posted(body: bytes, headers: dict[str, str]) -> None:
    stored: list[MachineNoticed] = []

    async def accept(one: MachineNoticed) -> None:
        stored.append(one)

    loop = asyncio.get_running_loop()
    with serving(accept, loop=loop, host="127.0.0.1", port=0) as port:
        with_headers = asyncio.to_thread(post, port, body, headers=headers)
        try:
            assert await with_headers in (400, 413)
        except OSError:
            assert headers  # hung up on: there is no telling what else it would say
        assert await asyncio.to_thread(post, port, notice("good")) == 202
    assert [one.reason for one in stored] == ["good"]


async def test_callers_that_say_nothing_take_a_bounded_number_of_threads() -> None:
    async def accept(one: MachineNoticed) -> None:
        return

    import threading

    loop = asyncio.get_running_loop()
    before = threading.active_count()
    with serving(accept, loop=loop, host="127.0.0.1", port=0) as port:
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(150)]
        await asyncio.sleep(0.5)
        assert threading.active_count() - before <= 64 + 2
        for one in silent:
            one.close()
        await asyncio.sleep(0.3)
        assert await asyncio.to_thread(post, port, notice("good")) == 202


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "notices"])
def test_other_hosts_need_a_token(host: str) -> None:
    arguments = ["notice", "serve", "--host", host, "--job", "j", "--nats", "nats://127.0.0.1:1"]
    result = CliRunner().invoke(app, arguments, env={"TRAINMOVER_NOTICES_TOKEN": ""})
    assert result.exit_code == ExitCode.USAGE
