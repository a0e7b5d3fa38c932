"""The server delivers stored messages wherever a consumer asks for: that must open no door.

The reply subject of a request is not checked against the permissions of who asks: the server's
answer goes there, and a stream that has the subject stores it.
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
from trainmover.events.migration import JobFinished
from trainmover.observe import new_event
from trainmover.testing import collect
from trainmover_planner.service import Planner


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


async def answer_to(reader: NatsBus, subject: str) -> None:
    """Have the server answer where the reader may not write."""
    body = json.dumps({"last_by_subj": f"$KV.tm_jobs.{JOB}.mine"}).encode()
    await reader.client.publish("$JS.API.STREAM.MSG.GET.KV_tm_jobs", body, reply=subject)


async def test_an_answer_that_comes_as_a_request_moves_nobody(
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
        await planner.put("tm_jobs", f"{JOB}.mine", stored, revision=None)
        target = f"tm.v1.{JOB}.request.migrate"
        await answer_to(ops, target)
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


async def test_an_answer_that_comes_as_a_command_or_a_fact_is_dead(
    secured: Secured,
) -> None:
    async with (
        secured.bus("planner") as planner,
        secured.bus("ops") as ops,
        secured.bus("machine-worker-1") as agent,
        aclosing(agent.commands(JOB, "worker-1")) as queue,
    ):
        target = f"tm.v1.{JOB}.cmd.worker-1"
        await answer_to(ops, target)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(collect(queue, 1))
            await until_dead(secured, f"foreign {target}")
            async with aclosing(planner.events(JOB, from_start=True)) as facts:
                hearing = group.create_task(collect(facts, 1))
                await answer_to(ops, f"tm.v1.{JOB}.job.failed")
                await until_dead(secured, f"malformed tm.v1.{JOB}.job.failed")
                over = new_event(job=JOB, source="/planner", payload=JobFinished(epoch=1, step=1))
                await planner.publish(over)
                [fact] = await hearing
            assert fact.payload.id == over.id
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


async def test_a_planner_that_finds_such_an_answer_in_its_bucket_goes_on(secured: Secured) -> None:
    """The count of planners is read from a bucket, where an answer may have been put as well."""
    async with secured.bus("planner") as bus, secured.bus("ops") as ops:
        await answer_to(ops, f"$KV.tm_jobs.{JOB}.incarnation")
        await ops.event_count(JOB)  # a round trip behind it
        planner = Planner(bus, job=JOB)
        first, second = await planner._incarnation(), await planner._incarnation()
    assert second == first + 1 > 1
