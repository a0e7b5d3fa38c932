"""The server delivers stored messages wherever a consumer asks for: that must open no door.

The subject that a stored message is to be delivered on (the reply subject of a pull or of a direct
get) is not checked against the permissions of who asks for it.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import aclosing
from typing import Any

import pytest
from tests.security.conftest import JOB, Secured

from trainmover import subjects
from trainmover.bus.nats import NatsBus
from trainmover.commands import MigrateRequest, RequestAccepted, Stop
from trainmover.testing import collect


async def create_consumer(
    bus: NatsBus, stream: str, filter_: str, *, name: str | None = None, **config: Any
) -> dict[str, Any]:
    """What the server answers to a consumer of our own making."""
    name = name or uuid.uuid4().hex
    wanted = {"name": name, "deliver_policy": "all", "ack_policy": "none", **config}
    wanted.setdefault("filter_subject", filter_)
    body = {"stream_name": stream, "config": wanted, "action": "create"}
    subject = f"$JS.API.CONSUMER.CREATE.{stream}.{name}.{filter_}"
    reply = await bus.client.request(subject, json.dumps(body).encode(), timeout=2)
    answer: dict[str, Any] = json.loads(reply.data)
    return answer


async def until_dead(secured: Secured, wanted: str) -> None:
    """Wait for a dead letter like ``foreign tm.v1.gpt.cmd.worker-1``."""
    async with secured.bus("admin") as admin, asyncio.timeout(5):
        letters = await admin.client.jetstream().subscribe(
            subjects.DEAD_LETTER, ordered_consumer=True
        )
        while True:
            headers = (await letters.next_msg(timeout=5)).headers or {}
            if f"{headers['tm-kind']} {headers['tm-subject']}" == wanted:
                return


async def deliver(reader: NatsBus, bucket: str, key: str, *, to: str) -> None:
    """Have the server put what is stored under a key where the reader may not write."""
    subject = f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.{key}"
    await reader.client.publish(subject, b"", reply=to)


async def test_something_stored_that_is_delivered_as_a_request_moves_nobody(
    secured: Secured,
) -> None:
    asked: list[str] = []

    async def handler(verb: str, body: bytes) -> bytes:
        asked.append(MigrateRequest.model_validate_json(body).machine)
        return RequestAccepted(migration="m-1").model_dump_json().encode()

    async with (
        secured.bus("planner") as planner,
        secured.bus("ops") as ops,
        secured.bus("operator") as operator,
    ):
        await planner.serve(JOB, handler)
        stored = MigrateRequest(machine="worker-0").model_dump_json().encode()
        await planner.put("tm_jobs", f"{JOB}.looks-like-a-request", stored, revision=None)
        target = f"tm.v1.{JOB}.request.migrate"
        await deliver(ops, "tm_jobs", f"{JOB}.looks-like-a-request", to=target)
        await until_dead(secured, f"foreign {target}")
        await operator.request(JOB, "migrate", MigrateRequest(machine="worker-1"))
    assert asked == ["worker-1"]


async def test_an_answer_goes_to_inboxes_only(secured: Secured) -> None:
    """Else whoever may ask for the status could have the planner write where he may not."""
    asked: list[str] = []

    async def handler(verb: str, body: bytes) -> bytes:
        asked.append(verb)
        return b"{}"

    async with secured.bus("planner") as planner, secured.bus("ops") as ops:
        await planner.serve(JOB, handler)
        await ops.client.publish(
            f"tm.v1.{JOB}.request.status", b"{}", reply=f"tm.v1.{JOB}.cmd.worker-1"
        )
        await until_dead(secured, f"foreign tm.v1.{JOB}.request.status")
    assert asked == []


async def test_something_stored_that_is_delivered_as_a_command_is_not_obeyed(
    secured: Secured,
) -> None:
    async with (
        secured.bus("planner") as planner,
        secured.bus("ops") as ops,
        secured.bus("machine-worker-1") as agent,
        aclosing(agent.commands(JOB, "worker-1")) as queue,
    ):
        stored = Stop(reason="delivered").model_dump_json().encode()
        await planner.put("tm_jobs", f"{JOB}.looks-like-a-command", stored, revision=None)
        target = f"tm.v1.{JOB}.cmd.worker-1"
        await deliver(ops, "tm_jobs", f"{JOB}.looks-like-a-command", to=target)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(collect(queue, 1))
            await until_dead(secured, f"foreign {target}")
            await planner.send_command(JOB, "worker-1", Stop(reason="sent"), id="b")
        [command] = reading.result()
        await command.ack()
    assert command.payload.reason == "sent"


@pytest.mark.parametrize(
    "config",
    [
        {"filter_subject": "tm.v1.gpt.incident.*"},
        {"filter_subject": "", "filter_subjects": ["tm.v1.gpt.job.*", "tm.v1.gpt.incident.*"]},
        {"filter_subject": ""},
    ],
)
async def test_an_agent_cannot_read_more_than_its_permission_names(
    secured: Secured, config: dict[str, Any]
) -> None:
    async with secured.bus("machine-worker-0") as agent:
        answer = await create_consumer(agent, subjects.EVENT_STREAM, f"tm.v1.{JOB}.job.*", **config)
    assert "error" in answer, answer
