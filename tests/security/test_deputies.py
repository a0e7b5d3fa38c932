"""The server answers, and delivers stored messages, wherever it is asked to: that opens no door.

The reply subject of a request, and the subject that a consumer delivers to, are not checked against
the permissions of who asks. What keeps an answer from being stored is that each stream has an
account of its own, from which answers come back to the clients' account and no further.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from typing import Any

import pytest
from nats.js.errors import NotFoundError
from tests.security.conftest import JOB, Secured
from tests.unit import factories as make

from trainmover import subjects
from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.streams import DEAD_STREAM
from trainmover.commands import MigrateRequest, RequestAccepted
from trainmover.events.machine import MachineLost
from trainmover.runtime.lease import Lease
from trainmover.tracing.observe import new_event
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
    """Wait for a dead letter like ``foreign tm.v1.gpt.cmd.node-1``."""
    async with secured.bus("admin") as admin, asyncio.timeout(5):
        letters = await admin.client.jetstream().subscribe(
            subjects.DEAD_LETTER, stream=DEAD_STREAM, ordered_consumer=True
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
        stored = MigrateRequest(machine="node-0").model_dump_json().encode()
        await planner.put("tm_jobs", f"{JOB}.mine", stored, revision=None)
        target = f"tm.v1.{JOB}.request.migrate"
        await answer_to(ops, target)
        await until_dead(secured, f"foreign {target}")
        await operator.request(JOB, "migrate", MigrateRequest(machine="node-1"))
    assert asked == ["node-1"]


async def test_an_answer_goes_to_inboxes_only(secured: Secured) -> None:
    """Else whoever may ask for the status could have the planner write where he may not."""
    asked: list[str] = []

    async def handler(verb: str, body: bytes) -> bytes:
        asked.append(verb)
        return b"{}"

    async with secured.bus("planner") as planner, secured.bus("ops") as ops:
        await planner.serve(JOB, handler)
        await ops.client.publish(
            f"tm.v1.{JOB}.request.status", b"{}", reply=f"tm.v1.{JOB}.cmd.node-1"
        )
        await until_dead(secured, f"foreign tm.v1.{JOB}.request.status")
    assert asked == []


STORED = (
    f"$KV.tm_jobs.{JOB}.planner-lease",
    f"$KV.tm_jobs.{JOB}.incarnation",
    f"$KV.tm_machines.{JOB}.node-1.starts",
    f"tm.v1.{JOB}.cmd.node-1",
    f"tm.v1.{JOB}.job.failed",
    f"tm.v1.{JOB}.machine.ready.node-1",
)
"""Dead letters are not among them: whoever reads one knows that anybody may have written it."""
STREAMS = (subjects.EVENT_STREAM, subjects.COMMAND_STREAM, DEAD_STREAM, "KV_tm_jobs")


async def sizes(admin: NatsBus) -> list[int]:
    context = admin.client.jetstream()
    return [(await context.stream_info(name)).state.last_seq for name in STREAMS]


@pytest.mark.parametrize("target", STORED)
async def test_an_answer_is_stored_nowhere(secured: Secured, target: str) -> None:
    async with secured.bus("ops") as ops, secured.bus("admin") as admin:
        before = await sizes(admin)
        await answer_to(ops, target)
        await ops.event_count(JOB)  # a round trip behind it
        assert await sizes(admin) == before


@pytest.mark.parametrize("target", STORED)
@pytest.mark.parametrize("stream", [subjects.EVENT_STREAM, DEAD_STREAM])
async def test_what_a_consumer_delivers_is_stored_nowhere(
    secured: Secured, target: str, stream: str
) -> None:
    """A machine's own words, in a fact, would else come as another's command or lease."""
    said = new_event(job=JOB, source="/machine/node-0", payload=make.registered("node-0"))
    async with secured.bus("ops") as ops, secured.bus("admin") as admin:
        async with secured.bus("machine-node-0") as agent:
            await agent.publish(said)
            await agent.client.publish(subjects.DEAD_LETTER, b"{}")
            await agent.ping()
        before = await sizes(admin)
        await create_consumer(ops, stream, ">", deliver_subject=target)
        await ops.event_count(JOB)
        heard = await ops.client.subscribe(f"_INBOX.ops.{stream}")
        await create_consumer(ops, stream, ">", deliver_subject=f"_INBOX.ops.{stream}")
        await heard.next_msg(timeout=5)  # consumers do deliver, and this one began later
        assert await sizes(admin) == before


@pytest.mark.parametrize("target", STORED)
async def test_what_comes_at_a_subscribers_position_is_stored_nowhere(
    secured: Secured, target: str
) -> None:
    said = new_event(job=JOB, source="/machine/node-0", payload=make.registered("node-0"))
    inbox = "_INBOX.subscriber-pager.facts"
    own = {"name": f"facts:{JOB}:pager", "durable_name": f"facts:{JOB}:pager"}
    async with secured.bus("subscriber-pager") as pager, secured.bus("admin") as admin:
        async with secured.bus("machine-node-0") as agent:
            await agent.publish(said)
        before = await sizes(admin)
        await create_consumer(pager, subjects.EVENT_STREAM, ">", **own, deliver_subject=target)
        heard = await pager.client.subscribe(inbox)
        with contextlib.suppress(NotFoundError):  # the server makes none that feeds its own stream
            await admin.client.jetstream().delete_consumer(subjects.EVENT_STREAM, own["name"])
        await create_consumer(pager, subjects.EVENT_STREAM, ">", **own, deliver_subject=inbox)
        await heard.next_msg(timeout=5)  # consumers do deliver, and this one began later
        await admin.client.jetstream().delete_consumer(subjects.EVENT_STREAM, own["name"])
        assert await sizes(admin) == before


async def test_nobody_deposes_a_planner_by_having_an_answer_put_over_its_lease(
    secured: Secured,
) -> None:
    async with secured.bus("planner") as bus, secured.bus("ops") as ops:
        lease = Lease(bus, job=JOB, service="planner", ttl_s=1.2)
        await lease.acquire()
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(lease.keep())
            for _ in range(20):
                await answer_to(ops, f"$KV.tm_jobs.{JOB}.planner-lease")
                await asyncio.sleep(0.1)
            assert not keeping.done()
            assert lease.held
            keeping.cancel()
        await lease.give_back()


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
    async with secured.bus("machine-node-0") as agent:
        answer = await create_consumer(agent, subjects.EVENT_STREAM, f"tm.v1.{JOB}.job.*", **config)
    assert "error" in answer, answer


async def test_a_planner_that_finds_anything_in_its_bucket_goes_on(secured: Secured) -> None:
    """The count of planners is read from a bucket, in which an administrator may have put it."""
    async with secured.bus("planner") as bus, secured.bus("admin") as admin:
        planner = Planner(bus, job=JOB)
        numbers = []
        for odd in (b"junk", b"9" * 5000, b"-1", b""):
            await admin.client.jetstream().publish(f"$KV.tm_jobs.{JOB}.incarnation", odd)
            numbers += [await planner._incarnation(), await planner._incarnation()]
    assert all(
        later == earlier + 1 > 1 for earlier, later in zip(*[iter(numbers)] * 2, strict=True)
    )


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("verb", ["PURGE", "DELETE", "CREATE", "UPDATE", "MSG.DELETE"])
async def test_an_answer_is_no_order_to_the_server(
    secured: Secured, stream: str, verb: str
) -> None:
    async with secured.bus("ops") as ops, secured.bus("admin") as admin:
        letter = new_event(job=JOB, source="/planner", payload=MachineLost(machine="w", reason=""))
        await admin.publish(letter)
        before = await states(admin)
        await answer_to(ops, f"$JS.API.STREAM.{verb}.{stream}")
        await ops.client.publish(
            f"$JS.API.STREAM.INFO.{subjects.EVENT_STREAM}",
            b"",
            reply=f"$JS.API.STREAM.{verb}.{stream}",
        )
        await ops.event_count(JOB)
        assert await states(admin) == before


async def states(admin: NatsBus) -> list[tuple[int, int, object]]:
    context = admin.client.jetstream()
    found = [await context.stream_info(name) for name in STREAMS]
    return [(one.state.first_seq, one.state.messages, one.config) for one in found]
