"""The dashboard over real HTTP, on a real bus, with a scripted planner behind it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.unit import factories as make

from trainmover.bus.nats.bus import NatsBus
from trainmover.commands import Refusal, RequestAccepted
from trainmover.events.migration import JobFormed
from trainmover.job.topology import Frozen
from trainmover.security.folder import Setup, write
from trainmover.testing import running_server
from trainmover.tracing.observe import new_event
from trainmover_console.cli.exits import ExitCode

TOKEN = "correct horse battery staple"
FACTS = (
    *(make.registered(f"node-{number}") for number in range(3)),
    JobFormed(membership=make.membership_of("node-0", "node-1"), standbys=("node-2",)),
    make.straggler("node-1", 1),
    make.MOVE.proposed(),
)


async def tell(bus: NatsBus, *facts: Frozen) -> None:
    for fact in facts:
        await bus.publish(new_event(job="j", source=make.source_of(fact), payload=fact))


@contextmanager
def dashboard(
    url: str, home: Path, *argv: str, env: dict[str, str] | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Runs ``trainmover dashboard``; its address and process."""
    command = [sys.executable, "-m", "trainmover_console.cli", "dashboard", "--port", "0"]
    with subprocess.Popen(
        [*command, "--job", "j", "--nats", url, *argv],
        env={**os.environ, "TRAINMOVER_HOME": str(home), "NO_COLOR": "1", **(env or {})},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.search(r"http://\S+/", line)
            assert found, line + process.stderr.read()
            yield found[0], process
        finally:
            process.terminate()
            process.communicate(timeout=20)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return path


@asynccontextmanager
async def open_page(
    url: str, home: Path, *argv: str, env: dict[str, str] | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    with dashboard(url, home, *argv, env=env) as (address, _):
        async with httpx.AsyncClient(base_url=address, timeout=10) as client:
            yield client


async def pictures(client: httpx.AsyncClient) -> AsyncIterator[dict[str, Any]]:
    """What the stream of events says, picture by picture."""
    async with client.stream("GET", "/api/stream") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


async def test_the_stream_shows_facts_as_they_come(nats_url: str, tmp_path: Path) -> None:
    async with NatsBus(nats_url) as bus:
        await bus.setup()
        await tell(bus, *FACTS)
        async with open_page(nats_url, tmp_path) as client, asyncio.timeout(30):
            told = False
            async for picture in pictures(client):
                states = {one["id"]: one["state"] for one in picture["migrations"]}
                if states == {"m-0001": "proposed"} and not told:
                    told = True
                    assert picture["incidents"][0]["machine"] == "node-1"
                    assert [one["machine"] for one in picture["ranks"]] == ["node-0", "node-1"]
                    await tell(bus, make.MOVE.preparing(), make.MOVE.committed())
                if states == {"m-0001": "committed"}:
                    break
            job = (await client.get("/api/job")).json()
            assert job["epoch"] == 2
            report = (await client.get("/api/migrations/m-0001")).json()
            assert report["finding"]["summary"] == "node-1 is twice as slow as its peers"
            page = await client.get("/migrations/m-0001")
            assert "twice as slow" in page.text
            assert (await client.get("/migrations/none")).status_code == 404
            assert (await client.get("/healthz")).text == "the bus answers\n"


async def test_acting_needs_the_token_and_says_who_and_why(
    nats_url: str, tmp_path: Path, token_file: Path
) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    async def planner(verb: str, body: bytes) -> bytes:
        if verb == "status":
            return b"{}"
        asked.append((verb, json.loads(body)))
        if verb == "abort":
            refusal = Refusal(code="too_late", reason="It switches.", next_step="Wait.")
            return refusal.model_dump_json().encode()
        return RequestAccepted(migration="m-0001").model_dump_json().encode()

    async with NatsBus(nats_url) as bus:
        await bus.setup()
        await tell(bus, *FACTS)
        await bus.serve("j", planner)
        argv = ("--token-file", str(token_file))
        async with open_page(nats_url, tmp_path, *argv) as client:
            path = "/api/migrations/m-0001"
            for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
                refused = await client.post(f"{path}/approve", headers=header)
                assert (refused.status_code, refused.json()["code"]) == (401, "no_token")
            assert asked == []
            may = {"Authorization": f"Bearer {TOKEN}"}
            body = {"reason": "fans are out", "by": "ada"}
            done = await client.post(f"{path}/approve", headers=may, json=body)
            assert (done.status_code, done.json()["migration"]) == (200, "m-0001")
            late = await client.post(f"{path}/abort", headers=may)
            assert (late.status_code, late.json()["next_step"]) == (409, "Wait.")
            assert (await client.post(f"{path}/explode", headers=may)).status_code == 404
            bad = await client.post(f"{path}/reject", headers=may, json={"by": "x" * 101})
            assert bad.status_code == 400
            huge = await client.post(f"{path}/reject", headers=may, content=b"x" * 9000)
            assert huge.status_code == 413
            assert (await client.get(f"{path}/approve", headers=may)).status_code == 405
    verbs = [(verb, body["requested_by"], body["reason"]) for verb, body in asked]
    assert verbs == [
        ("approve", "ada", "fans are out"),
        ("abort", "dashboard", "by the dashboard"),
    ]


async def test_without_a_token_it_is_to_look_at_only(nats_url: str, tmp_path: Path) -> None:
    async with NatsBus(nats_url) as bus:
        await bus.setup()
    async with open_page(nats_url, tmp_path) as client:
        may = {"Authorization": f"Bearer {TOKEN}"}
        refused = await client.post("/api/migrations/m-1/approve", headers=may)
        assert (refused.status_code, refused.json()["code"]) == (403, "read_only")
        assert 'data-acts="no"' in (await client.get("/")).text


async def test_it_looks_with_a_user_who_can_change_nothing(
    tmp_path: Path, token_file: Path
) -> None:
    """On a secured bus: ops looks, the operator's key acts, and ops' key alone is refused."""
    folder = tmp_path / "security"
    write(folder, Setup(jobs=("j",), machines=(), tls=False))
    config = (folder / "server" / "auth.conf").read_text()
    keys = {role: str(folder / "clients" / role / "nkey") for role in ("ops", "operator")}

    async def planner(verb: str, body: bytes) -> bytes:
        return RequestAccepted(migration="m-0001").model_dump_json().encode()

    with running_server(extra_config=config) as server:
        env = {"TRAINMOVER_NATS_NKEY": str(folder / "clients" / "admin" / "nkey")}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRAINMOVER_NATS_NKEY", env["TRAINMOVER_NATS_NKEY"])
            async with NatsBus(server.url) as bus:
                await bus.setup()
                await tell(bus, *FACTS)
                await bus.serve("j", planner)
                may = {"Authorization": f"Bearer {TOKEN}"}
                looks = {"TRAINMOVER_NATS_NKEY": keys["ops"]}
                argv = ("--token-file", str(token_file))
                path = "/api/migrations/m-0001/approve"
                async with open_page(server.url, tmp_path, *argv, env=looks) as client:
                    async for picture in pictures(client):
                        if picture["migrations"]:
                            break
                    refused = await client.post(path, headers=may)
                    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
                argv = (*argv, "--operator-nkey", keys["operator"])
                async with open_page(server.url, tmp_path, *argv, env=looks) as client:
                    assert (await client.post(path, headers=may)).status_code == 200


class Fetched(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.urls += [value or "" for name, value in attrs if name in ("src", "href")]


async def test_the_page_is_whole_and_locked_down(nats_url: str, tmp_path: Path) -> None:
    async with NatsBus(nats_url) as bus:
        await bus.setup()
    async with open_page(nats_url, tmp_path) as client:
        first, second = await client.get("/"), await client.get("/")
    fetched = Fetched()
    fetched.feed(first.text)
    assert fetched.urls == [], "nothing comes from anywhere else"
    assert not re.search(r"%[A-Z]+%", first.text)
    policy = first.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert policy != second.headers["content-security-policy"], "a nonce is used once"
    assert "innerHTML" not in first.text


async def test_signals_end_it_although_somebody_listens(nats_url: str, tmp_path: Path) -> None:
    async with NatsBus(nats_url) as bus:
        await bus.setup()
    with dashboard(nats_url, tmp_path) as (address, process):
        async with httpx.AsyncClient(base_url=address) as client:
            stream = pictures(client)
            await anext(stream)
            process.send_signal(signal.SIGINT)
            code = await asyncio.to_thread(process.wait, 15)
            await stream.aclose()
    assert code == ExitCode.INTERRUPTED


@pytest.mark.parametrize("text", ["", "short"])
def test_a_weak_token_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    argv = ["--job", "j", "--nats", "nats://127.0.0.1:1", "--token-file", str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "trainmover_console.cli", "dashboard", *argv],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "TRAINMOVER_HOME": str(tmp_path)},
    )
    assert done.returncode == ExitCode.USAGE
    assert "16 are the least" in done.stderr
