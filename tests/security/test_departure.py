"""A machine asks for its own departure, and for nothing else, with its own key."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
import yaml
from tests.security.conftest import JOB, Secured

from trainmover.bus.memory.bus import MemoryBus
from trainmover.commands import MigrateRequest, Refusal, RequestAccepted
from trainmover.errors import PermissionDeniedError
from trainmover.job.topology import Frozen

K8S = Path(__file__).parents[2] / "deploy" / "k8s"


class Asked:
    """What a planner was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, MigrateRequest]] = []

    async def __call__(self, verb: str, body: bytes) -> bytes:
        self.requests.append((verb, MigrateRequest.model_validate_json(body)))
        return RequestAccepted(migration="m-1").model_dump_json().encode()


async def test_its_own(secured: Secured) -> None:
    asked = Asked()
    async with secured.bus("planner") as planner, secured.bus("machine-node-0") as agent:
        await planner.serve(JOB, asked)
        reply = await agent.depart(JOB, "node-0", reason="maintenance")
    assert json.loads(reply)["migration"] == "m-1"
    [(verb, request)] = asked.requests
    assert verb == "migrate"
    assert request.machines == ("node-0",)
    assert (request.reason, request.requested_by) == ("maintenance", "machine node-0")


@pytest.mark.parametrize("body", [b"", b"{", b'{"machine": "node-1"}', b'{"others": ["x"]}'])
async def test_whatever_stands_in_it(secured: Secured, body: bytes) -> None:
    asked = Asked()
    async with secured.bus("planner") as planner, secured.bus("machine-node-0") as agent:
        await planner.serve(JOB, asked)
        subject = f"tm.v1.{JOB}.departure.node-0"
        await agent.client.request(subject, body, timeout=2)
    assert {request.machines for _, request in asked.requests} <= {("node-0",)}


async def test_no_others_and_nothing_else(secured: Secured) -> None:
    asked = Asked()
    async with secured.bus("planner") as planner, secured.bus("machine-node-0") as agent:
        await planner.serve(JOB, asked)
        with pytest.raises(PermissionDeniedError):
            await agent.depart(JOB, "node-1", reason="")
        with pytest.raises(PermissionDeniedError):
            await agent.request(JOB, "migrate", MigrateRequest(machine="node-0"))
    assert asked.requests == []


async def test_the_bus_in_memory_does_the_same() -> None:
    asked = Asked()
    async with MemoryBus() as bus:
        await bus.serve(JOB, asked)
        await bus.depart(JOB, "node-0", reason="x")
    assert [request.machines for _, request in asked.requests] == [("node-0",)]


def refused(code: str) -> Refusal:
    return Refusal(code=code, reason="why", next_step="Do something.")


@pytest.mark.parametrize(
    ("replies", "exit_code"),
    [
        (
            [
                RequestAccepted(migration="m-1"),
                refused("already_migrating"),
                refused("not_in_slot"),
            ],
            0,
        ),
        ([refused("not_in_slot")], 0),
        ([refused("no_standby")], 3),
    ],
)
async def test_the_command_waits_until_it_holds_no_slot(
    secured: Secured, replies: list[Frozen], exit_code: int
) -> None:
    left = list(replies)

    async def handler(verb: str, body: bytes) -> bytes:
        return left.pop(0).model_dump_json().encode()

    credentials = secured.credentials("machine-node-0").environment()
    async with secured.bus("planner") as planner:
        await planner.serve(JOB, handler)
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "trainmover_console.cli",
                "machine",
                "depart",
                "--machine",
                "node-0",
            ),
            *("--job", JOB, "--nats", secured.server.url),
            env={**os.environ, **credentials},
        )
        async with asyncio.timeout(60):
            assert await process.wait() == exit_code
    assert left == []


def test_no_pod_that_trains_holds_an_operators_key() -> None:
    for document in yaml.safe_load_all((K8S / "machines.yaml").read_text()):
        text = json.dumps(document)
        assert "operator" not in text
        if document["kind"] == "Job":
            [container] = document["spec"]["template"]["spec"]["containers"]
            command = container["lifecycle"]["preStop"]["exec"]["command"][-1]
            assert command.startswith("trainmover machine depart --machine")
