"""``trainmover doctor`` against real servers, well and ill."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import command
from tests.unit import factories as make

from trainmover import __version__
from trainmover.bus.nats.bus import NatsBus
from trainmover.events.machine import MachineWarming
from trainmover.tracing.observe import new_event
from trainmover_console.cli.exits import ExitCode
from trainmover_console.doctor import machines


def doctor(home: Path, *argv: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    done = command("doctor", "-o", "json", *argv, env={"TRAINMOVER_HOME": str(home)})
    found = json.loads(done.stdout)["findings"]
    return done.returncode, {
        check: [one for one in found if one["check"] == check]
        for check in {one["check"] for one in found}
    }


def levels(findings: list[dict[str, Any]]) -> set[str]:
    return {one["level"] for one in findings}


def test_without_a_job_it_looks_at_this_host(tmp_path: Path) -> None:
    code, found = doctor(tmp_path)
    assert code == ExitCode.OK
    assert "bus" not in found
    assert found["open files"][0]["level"] == "ok"


def test_nobody_answers(tmp_path: Path) -> None:
    code, found = doctor(tmp_path, "--nats", "nats://127.0.0.1:1")
    assert code == ExitCode.FAILED
    assert "Connection refused" in found["bus"][0]["text"]


def test_somebody_else_has_the_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            caller, _ = server.accept()
            with caller:
                caller.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        code, found = doctor(tmp_path, "--nats", f"nats://127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert code == ExitCode.FAILED
    assert "is no NATS server" in found["bus"][0]["text"]


async def test_a_job_without_services_on_a_bus_without_streams(
    tmp_path: Path, nats_url: str
) -> None:
    code, found = await asyncio.to_thread(doctor, tmp_path, "--nats", nats_url, "--job", "j")
    assert code == ExitCode.FAILED
    assert levels(found["jetstream"]) == {"ok", "problem"}
    assert levels(found["services"]) == {"problem"}
    assert found["job"][0]["level"] == "problem"


async def test_a_job_that_works(tmp_path: Path, nats_url: str) -> None:
    async def answer(verb: str, body: bytes) -> bytes:
        return b"{}"

    async with NatsBus(nats_url) as planner, NatsBus(nats_url) as detector:
        await planner.setup()
        await planner.serve("j", answer)
        await detector.announce("trainmover-detector", version=__version__)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            warming = MachineWarming(
                machine="node-0", generation=0, endpoints={0: (f"127.0.0.1:{port}",)}
            )
            for fact in (make.registered("node-0"), warming):
                await planner.publish(new_event(job="j", source="/machine/node-0", payload=fact))
            argv = ("--nats", nats_url, "--job", "j")
            code, found = await asyncio.to_thread(doctor, tmp_path, *argv)
        assert code == ExitCode.OK, found
        assert levels(found["services"]) == {"ok"}
        assert levels(found["clock"]) == {"ok"}
        assert found["machines"][0]["level"] == "ok"
        code, found = await asyncio.to_thread(doctor, tmp_path, *argv)
        assert (code, found["machines"][0]["level"]) == (ExitCode.OK, "warning"), "it is closed now"
        assert "Connection refused" in found["machines"][0]["text"]


async def test_dialling_says_why_not() -> None:
    there = [machines.Announced("a", "h", ("127.0.0.1:1", "nonsense"))]
    reached = await machines.dial(there)
    assert "refused" in reached["127.0.0.1:1"]
    assert reached["nonsense"]


@pytest.mark.parametrize("argv", [("--job", "no.dots", "--nats", "nats://127.0.0.1:1")])
def test_usage(tmp_path: Path, argv: tuple[str, ...]) -> None:
    done = command("doctor", *argv, env={"TRAINMOVER_HOME": str(tmp_path)})
    assert done.returncode == ExitCode.USAGE
