"""What every bus promises; run against a real nats-server and against the in-process bus."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest

from trainmover.bus.protocol import Bus
from trainmover.commands import MigrateRequest, Refusal, RequestAccepted, Start, Stop
from trainmover.errors import (
    BusUnavailableError,
    ConflictError,
    InvalidIdError,
    MalformedEventError,
    RequestRefusedError,
)
from trainmover.events import Envelope, encode
from trainmover.events.machine import MachineLost, MachineQuarantined
from trainmover.events.migration import JobFinished
from trainmover.job.topology import Layout, Member, Membership
from trainmover.testing import BusBench, collect
from trainmover.tracing.observe import new_event

SOON = timedelta(milliseconds=150)
ACK_WAIT_S = 0.4  # of the bench


def lost(machine: str, *, job: str = "demo", id: str | None = None) -> Envelope:
    payload = MachineLost(machine=machine, reason="test")
    return new_event(job=job, source="/planner", payload=payload, id=id)


async def quiet(source) -> None:
    """Nothing more comes."""
    with pytest.raises(TimeoutError):
        await collect(source, 1, within=SOON)


class TestFacts:
    async def test_a_reader_gets_stored_facts_in_order_and_then_live_ones(self, bench: BusBench):
        async with bench.connect() as writer, bench.connect() as reader:
            for n in range(50):
                await writer.publish(lost(f"m{n}"))
            async with aclosing(reader.events("demo")) as facts:
                stored = await collect(facts, 50)
                for n in range(50, 60):
                    await writer.publish(lost(f"m{n}"))
                live = await collect(facts, 10)
        names = [each.payload.payload.machine for each in stored + live]
        assert names == [f"m{n}" for n in range(60)]
        assert {each.attempt for each in stored + live} == {1}

    async def test_the_envelope_arrives_as_it_was_sent(self, bench: BusBench):
        event = Envelope(
            id='an id with "quotes", 100 % and ümlauts',
            source="/machine/w-1",
            job="demo",
            time=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
            payload=MachineLost(machine="w-1", reason="line\r\nbreak — ☃ \x00"),
        )
        async with bench.connect() as bus:
            await bus.publish(event)
            async with aclosing(bus.events("demo")) as facts:
                [delivery] = await collect(facts, 1)
        got = delivery.payload
        assert (got.id, got.source, got.job, got.time) == (
            event.id,
            event.source,
            event.job,
            event.time,
        )
        assert got.payload == event.payload

    async def test_a_fact_published_twice_is_stored_once(self, bench: BusBench):
        async with bench.connect() as bus:
            await bus.publish(lost("m0", id="same"))
            await bus.publish(lost("m0", id="same"))
            assert await bus.event_count("demo") == 1

    async def test_ids_are_unique_per_source_only(self, bench: BusBench):
        payload = MachineLost(machine="m", reason="r")
        async with bench.connect() as bus:
            for source in ("/machine/a", "/machine/b"):
                await bus.publish(new_event(job="demo", source=source, payload=payload, id="1"))
            assert await bus.event_count("demo") == 2

    async def test_readers_see_their_job_entity_and_fact_only(self, bench: BusBench):
        async with bench.connect() as bus:
            await bus.publish(lost("a", job="other"))
            await bus.publish(lost("b"))
            quarantined = MachineQuarantined(machine="c", reason="r")
            await bus.publish(new_event(job="demo", source="/planner", payload=quarantined))
            finished = JobFinished(epoch=1, step=2)
            await bus.publish(new_event(job="demo", source="/planner", payload=finished))
            expected = {
                ("*", "*", "*"): 4,
                ("demo", "*", "*"): 3,
                ("demo", "machine", "*"): 2,
                ("demo", "machine", "quarantined"): 1,
                ("demo", "*", "finished"): 1,
            }
            for (job, entity, fact), count in expected.items():
                async with aclosing(bus.events(job, entity=entity, fact=fact)) as facts:
                    await collect(facts, count)
                    await quiet(facts)

    async def test_event_count_says_how_far_a_reader_from_the_start_must_go(self, bench: BusBench):
        async with bench.connect() as bus:
            assert await bus.event_count("demo") == 0
            for n in range(7):
                await bus.publish(lost(f"m{n}"))
            await bus.publish(lost("x", job="other"))
            await bus.send_command("demo", "m1", Stop(reason="not a fact"), id="1")
            assert await bus.event_count("demo") == 7
            assert await bus.event_count("*") == 8

    async def test_from_start_false_skips_what_is_stored(self, bench: BusBench):
        async with bench.connect() as bus:
            await bus.publish(lost("before"))
            async with aclosing(bus.events("demo", from_start=False)) as facts:
                waiting = asyncio.ensure_future(anext(facts))
                while not waiting.done():  # the position is fixed some time after the first step
                    await bus.publish(lost("after"))
                    await asyncio.wait([waiting], timeout=0.02)
                assert waiting.result().payload.payload.machine == "after"

    async def test_facts_are_numbered_alike_for_every_reader(self, bench: BusBench):
        async with bench.connect() as bus:
            for n in range(3):
                await bus.publish(lost(f"m{n}"))
            for durable in (None, "d"):
                async with aclosing(bus.events("demo", durable=durable)) as facts:
                    found = await collect(facts, 3)
                    for each in found:
                        await each.ack()
                assert [each.stream_sequence for each in found] == [1, 2, 3]

    async def test_a_durable_position_survives_its_reader(self, bench: BusBench):
        async with bench.connect() as writer:
            for n in range(4):
                await writer.publish(lost(f"m{n}"))
        async with bench.connect() as first, aclosing(first.events("demo", durable="d")) as facts:
            for delivery in await collect(facts, 2):
                await delivery.ack()
        async with bench.connect() as second, aclosing(second.events("demo", durable="d")) as facts:
            rest = await collect(facts, 2)
            for delivery in rest:
                await delivery.ack()
            await quiet(facts)
        assert [each.payload.payload.machine for each in rest] == ["m2", "m3"]

    async def test_an_unacknowledged_fact_comes_again_to_a_durable_reader(self, bench: BusBench):
        async with bench.connect() as bus, aclosing(bus.events("demo", durable="d")) as facts:
            await bus.publish(lost("m0"))
            [first] = await collect(facts, 1)
            [second] = await collect(facts, 1)
            assert (first.attempt, second.attempt) == (1, 2)
            assert first.payload.id == second.payload.id
            await second.ack()
            await quiet(facts)

    async def test_one_by_one_keeps_the_order_over_the_death_of_a_reader(self, bench: BusBench):
        async with bench.connect() as bus:
            for n in range(3):
                await bus.publish(lost(f"m{n}"))

        def reading(bus: Bus):
            return aclosing(bus.events("demo", durable="d", one_by_one=True))

        async with bench.connect() as first, reading(first) as facts:
            [_unacknowledged] = await collect(facts, 1)
        names = []
        async with bench.connect() as second, reading(second) as facts:
            for _ in range(3):
                [delivery] = await collect(facts, 1)
                names.append(delivery.payload.payload.machine)
                await delivery.ack()
        assert names == ["m0", "m1", "m2"]

    async def test_a_fact_that_is_worked_on_does_not_come_again(self, bench: BusBench):
        async with bench.connect() as bus, aclosing(bus.events("demo", durable="d")) as facts:
            await bus.publish(lost("m0"))
            [delivery] = await collect(facts, 1)
            for _ in range(8):
                await asyncio.sleep(ACK_WAIT_S / 4)
                await delivery.extend()
            await delivery.ack()
            await quiet(facts)

    async def test_a_rejected_fact_is_a_dead_letter_and_never_comes_again(self, bench: BusBench):
        async with bench.connect() as bus, aclosing(bus.events("demo", durable="d")) as facts:
            for n in range(2):
                await bus.publish(lost(f"m{n}"))
            [first] = await collect(facts, 1)
            await first.reject("nobody wants it")
            [second] = await collect(facts, 1)
            assert second.payload.payload.machine == "m1"
            await second.ack()
            await quiet(facts)
        assert bench.dead_letters() == [("tm.v1.demo.machine.lost", "nobody wants it")]
        assert bench.dead_kinds() == ["refused"]

    async def test_positions_of_different_jobs_are_different(self, bench: BusBench):
        async with bench.connect() as bus:
            await bus.publish(lost("a", job="one"))
            await bus.publish(lost("b", job="two"))
            for job, expected in {"one": "a", "two": "b"}.items():
                async with aclosing(bus.events(job, durable="relay")) as facts:
                    [fact] = await collect(facts, 1)
                    await fact.ack()
                    assert fact.payload.payload.machine == expected
            async with aclosing(bus.events("*", durable="relay")) as facts:
                for fact in await collect(facts, 2):
                    await fact.ack()

    @pytest.mark.parametrize("name", ["", "a.b", "a b", "a:b", "*"])
    async def test_bad_names_of_positions_are_refused(self, bench: BusBench, name: str):
        async with bench.connect() as bus:
            with pytest.raises(InvalidIdError, match="position"):
                await anext(bus.events("demo", durable=name))

    async def test_two_readers_of_one_position_share_the_facts(self, bench: BusBench):
        seen: list[str] = []
        done = asyncio.Event()

        async def read(bus) -> None:
            async for delivery in bus.events("demo", durable="shared"):
                seen.append(delivery.payload.payload.machine)
                await delivery.ack()
                if len(seen) == 20:
                    done.set()

        async with (
            bench.connect() as one,
            bench.connect() as two,
            bench.connect() as writer,
            asyncio.TaskGroup() as group,
        ):
            readers = [group.create_task(read(bus)) for bus in (one, two)]
            for n in range(20):
                await writer.publish(lost(f"m{n}"))
            await asyncio.wait_for(done.wait(), 10)
            for reader in readers:
                reader.cancel()
        assert sorted(seen) == sorted(f"m{n}" for n in range(20))

    async def test_a_malformed_fact_goes_to_the_dead_letters_and_stops_nobody(
        self, bench: BusBench
    ):
        headers, body = encode(lost("x"))
        bad = {
            "garbage": ({}, b"\xff\x00 not an event"),
            "no id": ({k: v for k, v in headers.items() if k != "ce-id"}, body),
            "wrong payload": (headers, b'{"machine": 7}'),
            "wrong subject": (headers | {"ce-type": "dev.trainmover.machine.ready.v1"}, body),
        }
        async with bench.connect() as bus:
            for bad_headers, bad_body in bad.values():
                await bench.inject("tm.v1.demo.machine.lost", bad_headers, bad_body)
            await bus.publish(lost("good"))
            for durable in (None, "d"):
                async with aclosing(bus.events("demo", durable=durable)) as facts:
                    [delivery] = await collect(facts, 1)
                    assert delivery.payload.payload.machine == "good"
                    await delivery.ack()
                    await quiet(facts)
        letters = bench.dead_letters()
        assert len(letters) == 2 * len(bad)
        assert {subject for subject, _ in letters} == {"tm.v1.demo.machine.lost"}
        assert "belongs on 'tm.v1.{job}.machine.ready.{machine}'" in " ".join(
            reason for _, reason in letters
        )

    async def test_what_could_not_be_read_back_is_refused_at_the_writer(self, bench: BusBench):
        event = lost("m")
        naive = Envelope(
            id="1",
            source="/x",
            job="demo",
            time=datetime(2026, 1, 1),
            payload=event.payload,
        )
        async with bench.connect() as bus:
            with pytest.raises(MalformedEventError, match="zone"):
                await bus.publish(naive)
            with pytest.raises(InvalidIdError):
                await bus.publish(lost("m", job="not a.job"))
            assert await bus.event_count("*") == 0


class TestCommands:
    async def test_commands_reach_their_machine_in_order(self, bench: BusBench):
        async with bench.connect() as planner, bench.connect() as agent:
            for n in range(10):
                await planner.send_command("demo", "w-1", Stop(reason=str(n)), id=str(n))
                await planner.send_command("demo", "w-2", Stop(reason="other"), id=str(n))
            async with aclosing(agent.commands("demo", "w-1")) as queue:
                got = await collect(queue, 10)
                assert [each.payload.reason for each in got] == [str(n) for n in range(10)]
                for each in got:
                    await each.ack()
                await quiet(queue)

    async def test_those_who_wait_for_commands_are_counted(self, bench: BusBench):
        async def read(bus: Bus, machine: str) -> None:
            async for _ in bus.commands("demo", machine):
                pass

        async def until(wanted: int) -> None:
            async with asyncio.timeout(10):
                while await planner.command_readers("demo", "w") != wanted:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        async with bench.connect() as planner, bench.connect() as agent, bench.connect() as other:
            await until(0)
            tasks = [asyncio.create_task(read(each, "w")) for each in (agent, other)]
            tasks.append(asyncio.create_task(read(agent, "another")))
            await until(2)
            for task in tasks:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                if task is tasks[0]:
                    await until(1)
            await until(0)

    async def test_a_command_with_the_membership_of_a_large_job_arrives_whole(
        self, bench: BusBench
    ):
        names = [f"node-{number}" for number in range(500)]
        members = tuple(Member(machine=n, generation=1, endpoints=(f"{n}:9000",)) for n in names)
        membership = Membership(epoch=1, layout=Layout(slots=500), members=members)
        command = Start(generation=1, slot=0, membership=membership)
        async with bench.connect() as bus:
            await bus.send_command("demo", "w-1", command, id="start")
            async with aclosing(bus.commands("demo", "w-1")) as queue:
                [got] = await collect(queue, 1)
                assert got.payload == command
                await got.ack()

    async def test_a_repeated_id_is_queued_once_per_machine(self, bench: BusBench):
        async with bench.connect() as bus:
            for machine in ("w-1", "w-2"):
                for _ in range(3):
                    await bus.send_command("demo", machine, Stop(reason="r"), id="plan-1")
            for machine in ("w-1", "w-2"):
                async with aclosing(bus.commands("demo", machine)) as queue:
                    [only] = await collect(queue, 1)
                    await only.ack()
                    await quiet(queue)

    async def test_names_with_dashes_do_not_run_together(self, bench: BusBench):
        async with bench.connect() as bus:
            for job, machine in (("a-b", "c"), ("a", "b-c")):
                await bus.send_command(job, machine, Stop(reason=job), id="1")
            for job, machine in (("a-b", "c"), ("a", "b-c")):
                async with aclosing(bus.commands(job, machine)) as queue:
                    [command] = await collect(queue, 1)
                    assert command.payload.reason == job
                    await command.ack()

    async def test_a_command_comes_again_until_acknowledged(self, bench: BusBench):
        async with bench.connect() as bus, aclosing(bus.commands("demo", "w")) as queue:
            await bus.send_command("demo", "w", Stop(reason="r"), id="1")
            [first] = await collect(queue, 1)
            await first.nak()
            [second] = await collect(queue, 1)
            [third] = await collect(queue, 1)  # after the acknowledgement's time ran out
            assert [first.attempt, second.attempt, third.attempt] == [1, 2, 3]
            await third.ack()
            await quiet(queue)

    async def test_nak_with_a_delay_waits_that_long(self, bench: BusBench):
        loop = asyncio.get_running_loop()
        async with bench.connect() as bus, aclosing(bus.commands("demo", "w")) as queue:
            await bus.send_command("demo", "w", Stop(reason="r"), id="1")
            [first] = await collect(queue, 1)
            began = loop.time()
            await first.nak(delay_s=0.2)
            [again] = await collect(queue, 1)
            assert 0.15 < loop.time() - began < 2
            await again.ack()

    async def test_an_agent_that_comes_back_gets_what_it_did_not_acknowledge(self, bench: BusBench):
        async with bench.connect() as planner:
            for n in range(3):
                await planner.send_command("demo", "w", Stop(reason=str(n)), id=str(n))
        async with bench.connect() as agent, aclosing(agent.commands("demo", "w")) as queue:
            [first, _second] = await collect(queue, 2)
            await first.ack()
        async with bench.connect() as agent, aclosing(agent.commands("demo", "w")) as queue:
            rest = await collect(queue, 2)
            assert sorted(each.payload.reason for each in rest) == ["1", "2"]

    async def test_later_commands_do_not_wait_for_an_unacknowledged_one(self, bench: BusBench):
        async with bench.connect() as bus, aclosing(bus.commands("demo", "w")) as queue:
            await bus.send_command("demo", "w", Stop(reason="slow"), id="1")
            await bus.send_command("demo", "w", Stop(reason="urgent"), id="2")
            got = await collect(queue, 2, within=SOON)
            assert [each.payload.reason for each in got] == ["slow", "urgent"]

    async def test_a_malformed_command_is_buried(self, bench: BusBench):
        async with bench.connect() as bus, aclosing(bus.commands("demo", "w")) as queue:
            await bench.inject("tm.v1.demo.cmd.w", {"tm-to": "demo/w"}, b'{"verb": "dance"}')
            await bus.send_command("demo", "w", Stop(reason="r"), id="1")
            [good] = await collect(queue, 1)
            await good.ack()
            await quiet(queue)
        assert [subject for subject, _ in bench.dead_letters()] == ["tm.v1.demo.cmd.w"]

    async def test_names_that_cannot_be_subjects_are_refused(self, bench: BusBench):
        async with bench.connect() as bus:
            with pytest.raises(InvalidIdError, match=r"machine name 'a\.b'"):
                await bus.send_command("demo", "a.b", Stop(reason="r"), id="1")


class TestTelemetry:
    async def test_batches_carry_their_machine(self, bench: BusBench):
        async with bench.connect() as agent, bench.connect() as detector:
            waiting = asyncio.ensure_future(anext(detector.telemetry("demo")))
            while not waiting.done():  # lossy: what is sent before the reader came is gone
                await agent.send_telemetry("demo", "w-1", b"\x00\xff")
                await agent.send_telemetry("other", "w-9", b"no")
                await asyncio.wait([waiting], timeout=0.02)
            assert waiting.result() == ("w-1", b"\x00\xff")

    async def test_nobody_need_listen(self, bench: BusBench):
        async with bench.connect() as agent:
            await agent.send_telemetry("demo", "w-1", b"x")
            assert await agent.event_count("*") == 0


class TestRequests:
    async def test_a_request_is_answered(self, bench: BusBench):
        async def handler(verb: str, body: bytes) -> bytes:
            request = MigrateRequest.model_validate_json(body)
            return RequestAccepted(migration=f"{verb}-{request.machine}").model_dump_json().encode()

        async with bench.connect() as planner, bench.connect() as operator:
            await planner.serve("demo", handler)
            reply = await operator.request("demo", "migrate", MigrateRequest(machine="w-3"))
        assert RequestAccepted.model_validate_json(reply).migration == "migrate-w-3"

    async def test_refusals_and_bugs_reach_the_asker(self, bench: BusBench):
        async def handler(verb: str, body: bytes) -> bytes:
            if verb == "migrate":
                raise RequestRefusedError("no standby.", code="no_standby", next_step="Add one.")
            raise KeyError("oops")

        async with bench.connect() as planner, bench.connect() as operator:
            await planner.serve("demo", handler)
            body = MigrateRequest(machine="w")
            refused = Refusal.model_validate_json(await operator.request("demo", "migrate", body))
            broken = Refusal.model_validate_json(await operator.request("demo", "other", body))
            again = Refusal.model_validate_json(await operator.request("demo", "migrate", body))
        assert (refused.code, refused.next_step) == ("no_standby", "Add one.")
        assert refused == again
        assert (broken.code, "oops" in broken.reason) == ("internal", True)

    async def test_nobody_serves(self, bench: BusBench):
        async with bench.connect() as operator:
            with pytest.raises(BusUnavailableError, match="planner"):
                await operator.request("demo", "migrate", MigrateRequest(machine="w"))

    async def test_a_silent_service_costs_the_time_limit_only(self, bench: BusBench):
        async def handler(verb: str, body: bytes) -> bytes:
            await asyncio.Event().wait()
            raise AssertionError

        async with bench.connect() as planner, bench.connect() as operator:
            await planner.serve("demo", handler)
            with pytest.raises(BusUnavailableError):
                await operator.request("demo", "x", MigrateRequest(machine="w"), timeout_s=0.2)

    async def test_requests_end_with_the_bus_that_served_them(self, bench: BusBench):
        async def handler(verb: str, body: bytes) -> bytes:
            return b""

        async with bench.connect() as operator:
            async with bench.connect() as planner:
                await planner.serve("demo", handler)
            with pytest.raises(BusUnavailableError):
                await operator.request("demo", "x", MigrateRequest(machine="w"))


class TestBuckets:
    async def test_compare_and_set(self, bench: BusBench):
        async with bench.connect() as one, bench.connect() as two:
            assert await one.get("tm_jobs", "demo") is None
            first = await one.put("tm_jobs", "demo", b"1", revision=None)
            assert await two.get("tm_jobs", "demo") == first
            second = await two.put("tm_jobs", "demo", b"", revision=first.revision)
            assert second.revision > first.revision
            assert await one.get("tm_jobs", "demo") == second
            for stale in (None, first.revision):
                with pytest.raises(ConflictError, match="another writer was first"):
                    await one.put("tm_jobs", "demo", b"3", revision=stale)
            assert await one.get("tm_jobs", "demo") == second

    async def test_a_revision_of_an_absent_key_conflicts(self, bench: BusBench):
        async with bench.connect() as bus:
            with pytest.raises(ConflictError):
                await bus.put("tm_machines", "w", b"", revision=5)

    async def test_one_of_many_writers_wins(self, bench: BusBench):
        async with bench.connect() as one, bench.connect() as two:
            outcomes = await asyncio.gather(
                *(
                    bus.put("tm_migrations", "m.1", str(n).encode(), revision=None)
                    for n, bus in enumerate([one, two] * 5)
                ),
                return_exceptions=True,
            )
        assert sum(isinstance(each, ConflictError) for each in outcomes) == 9

    async def test_keys_are_sorted_and_of_their_bucket(self, bench: BusBench):
        async with bench.connect() as bus:
            assert await bus.keys("tm_machines") == []
            for key in ("b", "a", "job.w-1"):
                await bus.put("tm_machines", key, b"x", revision=None)
            await bus.put("tm_jobs", "z", b"x", revision=None)
            assert await bus.keys("tm_machines") == ["a", "b", "job.w-1"]

    @pytest.mark.parametrize("key", ["", "a b", "a*", ">", ".a", "a."])
    async def test_bad_keys_are_refused(self, bench: BusBench, key: str):
        async with bench.connect() as bus:
            with pytest.raises(InvalidIdError):
                await bus.put("tm_jobs", key, b"", revision=None)
            with pytest.raises(InvalidIdError):
                await bus.get("tm_jobs", key)


class TestLife:
    async def test_setup_may_run_again_and_again(self, bench: BusBench):
        async with bench.connect() as one, bench.connect() as two:
            await asyncio.gather(one.setup(), two.setup(), one.setup())
            await one.publish(lost("m"))
            await two.setup()
            assert await two.event_count("demo") == 1

    async def test_connected_says_so(self, bench: BusBench):
        bus = bench.connect()
        assert not bus.connected
        async with bus:
            assert bus.connected
        assert not bus.connected

    async def test_a_closed_bus_refuses(self, bench: BusBench):
        async with bench.connect() as bus:
            pass
        with pytest.raises(BusUnavailableError):
            await bus.publish(lost("m"))

    async def test_closing_ends_the_iterators(self, bench: BusBench):
        async with asyncio.timeout(2), asyncio.TaskGroup() as group:

            async def read(source) -> None:
                async for _ in source:
                    pass

            async with bench.connect() as bus:
                tasks = [
                    group.create_task(read(source))
                    for source in (
                        bus.events("demo"),
                        bus.events("demo", durable="d"),
                        bus.commands("demo", "w"),
                        bus.telemetry("demo"),
                    )
                ]
                await bus.publish(lost("m"))
                async with aclosing(bus.events("demo")) as facts:
                    await collect(facts, 1)
        assert all(task.exception() is None for task in tasks)

    async def test_cancelling_a_reader_is_quick(self, bench: BusBench):
        async with bench.connect() as bus:
            for make in (
                lambda: bus.events("demo"),
                lambda: bus.events("demo", durable="d"),
                lambda: bus.commands("demo", "w"),
                lambda: bus.telemetry("demo"),
            ):
                await quiet(make())
            async with asyncio.timeout(1):
                await bus.publish(lost("m"))


class TestLatency:
    async def test_facts_and_commands_arrive_without_a_polling_interval(self, bench: BusBench):
        loop = asyncio.get_running_loop()
        async with bench.connect() as planner, bench.connect() as agent:
            facts = agent.events("demo")
            queue = agent.commands("demo", "w")
            took: list[float] = []
            async with aclosing(facts), aclosing(queue):
                for n in range(30):
                    began = loop.time()
                    await planner.publish(lost("m", id=f"e{n}"))
                    await collect(facts, 1)
                    await planner.send_command("demo", "w", Stop(reason="r"), id=f"c{n}")
                    [command] = await collect(queue, 1)
                    await command.ack()
                    took.append(loop.time() - began)
        assert sorted(took)[15] < 0.05  # far under any polling interval, even on a busy machine
