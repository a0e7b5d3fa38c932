"""A whole agent with real worker processes, over the bus in memory."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from trainmover.bus.memory.broker import MemoryBroker
from trainmover.bus.memory.bus import MemoryBus
from trainmover.commands import BreakStep, Command, Prepare, Recover, Release, Start, Stop, Warm
from trainmover.events.envelope import Envelope
from trainmover.events.executor import PlanCommitted, PlanPrepared, StepProgress, WorkerFinished
from trainmover.events.incident import AnalysisPlaced
from trainmover.events.machine import (
    MachineReady,
    MachineRegistered,
    MachineWarming,
    WorkerExited,
)
from trainmover.events.migration import JobFinished
from trainmover.job.plan import Move, Plan
from trainmover.job.topology import Frozen, Layout, Member, Membership
from trainmover.telemetry.records import decode_batch
from trainmover.telemetry.stages import STAGES
from trainmover.tracing.observe import new_event
from trainmover_executor.agent import service
from trainmover_executor.agent.options import AgentOptions
from trainmover_executor.agent.processes import forks
from trainmover_executor.agent.service import Agent
from trainmover_executor.messages.worker import Done, Fact, Hello, Warmed

JOB, ME = "demo", "node-0"
F = TypeVar("F", bound=Frozen)


class Planner:
    """The other side of the bus."""

    def __init__(self, bus: MemoryBus) -> None:
        self.bus = bus
        self.facts: asyncio.Queue[Envelope] = asyncio.Queue()
        self.sent = 0

    async def listen(self) -> None:
        async for delivery in self.bus.events(JOB):
            self.facts.put_nowait(delivery.payload)

    async def fact(self, kind: type[F]) -> F:
        """The next fact of this kind; others are skipped."""
        async with asyncio.timeout(20):
            while not isinstance(payload := (await self.facts.get()).payload, kind):
                pass
        return payload

    async def command(self, command: Command) -> None:
        self.sent += 1
        await self.bus.send_command(JOB, ME, command, id=f"c{self.sent}")


class Rig:
    """An agent that runs, and everything around it."""

    def __init__(self, broker: MemoryBroker, planner: Planner, running: asyncio.Task[int]) -> None:
        self.broker = broker
        self.planner = planner
        self.running = running

    async def code(self) -> int:
        async with asyncio.timeout(20):
            return await asyncio.shield(self.running)


@asynccontextmanager
async def rig(
    entry: str, *, broker: MemoryBroker | None = None, generation: int | None = 0, **options: Any
) -> AsyncIterator[Rig]:
    broker = broker or MemoryBroker()
    settings = {"nnodes_min": 1, "nnodes_max": 2, "program": ("train.py",), **options}
    agent_options = AgentOptions(job=JOB, machine=ME, worker_entry=entry, **settings)
    async with MemoryBus(broker) as mine, MemoryBus(broker) as theirs, asyncio.TaskGroup() as group:
        await mine.setup()
        planner = Planner(theirs)
        listening = group.create_task(planner.listen())
        running = group.create_task(Agent(mine, agent_options, generation=generation).run())
        yield Rig(broker, planner, running)
        running.cancel()
        listening.cancel()


def membership(*members: Member, epoch: int = 1, ranks: int = 1) -> Membership:
    layout = Layout(slots=len(members), ranks_per_slot=ranks)
    return Membership(epoch=epoch, layout=layout, members=members)


def as_member(registered: MachineRegistered) -> Member:
    machine = registered.machine
    return Member(machine=machine.name, generation=machine.generation, endpoints=machine.endpoints)


ELSEWHERE = Member(machine="node-9", generation=0, endpoints=("127.0.0.1:9",))


async def start(one: Rig, *, ranks: int = 1) -> Membership:
    registered = await one.planner.fact(MachineRegistered)
    job = membership(as_member(registered), ranks=ranks)
    await one.planner.command(
        Start(generation=registered.machine.generation, slot=0, membership=job)
    )
    return job


async def hello(puppet: Any) -> Any:
    puppet.say(Hello(rank=puppet.about["rank"], pid=puppet.pid))
    return puppet


def refuses(endpoint: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(endpoint.rpartition(":")[2]))) != 0


async def test_an_agent_that_is_started_again_begins_a_later_incarnation(puppet_entry: str) -> None:
    """Or the job would take it for the machine that it gave up."""
    broker = MemoryBroker()
    for incarnation in range(2):
        async with rig(puppet_entry, broker=broker, generation=None) as one:
            await one.planner.fact(MachineRegistered)
            one.planner.sent = 10 * incarnation  # the id of a command is used once
            await one.planner.command(Stop(reason="enough"))
            assert await one.code() == 0
    async with MemoryBus(broker) as bus:
        registered = []
        async for delivery in bus.events(JOB, entity="machine", fact="registered"):
            registered.append(delivery.payload.payload.machine.generation)
            if len(registered) == 2:
                break
    assert registered[0] < registered[1]


async def test_a_job_from_start_to_finish(director: Any, puppet_entry: str) -> None:
    async with rig(puppet_entry, ranks=2) as one:
        job = await start(one, ranks=2)
        puppets = [await director.next(), await director.next()]
        puppets.sort(key=lambda puppet: puppet.about["rank"])  # the lowest speaks for its machine
        assert [p.about["rank"] for p in puppets] == [0, 1]
        assert sorted(f"127.0.0.1:{p.about['listens']}" for p in puppets) == sorted(
            job.members[0].endpoints
        )
        for puppet in puppets:
            rank = puppet.about["rank"]
            await hello(puppet)
            fact = StepProgress(machine=ME, rank=rank, epoch=1, step=7, step_s=0.1)
            puppet.say(Fact.of(fact))
            assert await one.planner.fact(StepProgress) == fact
            puppet.say(Done(rank=rank, step=9))
            puppet.do("exit", code=0)
            assert (await one.planner.fact(WorkerFinished)).rank == rank
        assert await one.code() == 0


async def test_frames_wait_for_the_hello(director: Any, puppet_entry: str) -> None:
    async with rig(puppet_entry) as one:
        await start(one)
        puppet = await director.next()
        command = BreakStep(epoch=1, reason="test")
        await one.planner.command(command)
        await one.planner.command(
            Release(generation=5, epoch=1, then="stop")
        )  # not for this incarnation
        assert puppet.heard.empty()
        await hello(puppet)
        async with asyncio.timeout(5):
            assert await puppet.heard.get() == command.model_dump(mode="json")


async def test_a_standby_warms_one_slot_after_the_other_and_joins(
    director: Any, puppet_entry: str, until_gone: Any
) -> None:
    async with rig(puppet_entry) as one:
        registered = await one.planner.fact(MachineRegistered)
        other = Member(machine="node-8", generation=0, endpoints=("127.0.0.1:8",))
        job = membership(other, ELSEWHERE)
        await one.planner.command(Warm(generation=0, slots=(0, 1), membership=job))
        warming = await one.planner.fact(MachineWarming)
        puppets = []
        for slot in (0, 1):
            puppet = await hello(await director.next())
            assert (puppet.about["role"], puppet.about["rank"]) == ("standby", slot)
            puppet.say(Warmed(rank=slot, shadow_iterations=3, warm_s=0.5))
            assert (await one.planner.fact(MachineReady)).slot == slot
            puppets.append(puppet)
        assert not refuses(registered.machine.endpoints[0])
        joiner = Member(machine=ME, generation=0, endpoints=warming.endpoints[1])
        plan = Plan(
            id="m1",
            job=JOB,
            kind="planned",
            from_epoch=1,
            membership=membership(other, joiner, epoch=2),
            moves=(Move(slot=1, leaver="node-9", joiner=ME),),
            sources={1: 1},
        )
        assert os.sched_getscheduler(puppets[1].pid) == os.SCHED_BATCH
        await one.planner.command(Prepare(plan=plan))
        async with asyncio.timeout(5):
            assert (await puppets[1].heard.get())["plan"]["id"] == "m1"
        assert os.sched_getscheduler(puppets[1].pid) == os.SCHED_OTHER
        assert os.sched_getscheduler(puppets[0].pid) == os.SCHED_BATCH
        prepared = PlanPrepared(migration="m1", machine=ME, rank=1, epoch=2, prepare_s=0.1)
        puppets[1].say(Fact.of(prepared))
        assert await one.planner.fact(PlanPrepared) == prepared
        puppets[1].say(Fact.of(PlanCommitted(migration="m1", machine=ME, rank=1, epoch=2, step=3)))
        await until_gone(puppets[0].pid, within_s=5)
        assert refuses(registered.machine.endpoints[0])
        puppets[1].say(Done(rank=1, step=9))
        puppets[1].do("exit", code=0)
        assert (await one.planner.fact(WorkerFinished)).epoch == 2
        assert await one.code() == 0


async def test_a_crash_is_reported_with_its_last_words_and_the_machine_comes_back(
    director: Any, puppet_entry: str, until_gone: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    async with rig(puppet_entry, ranks=2) as one:
        job = await start(one, ranks=2)
        puppets = [await hello(await director.next()) for _ in range(2)]
        puppets[0].do("raise", text="boom")
        exited = await one.planner.fact(WorkerExited)
        assert (exited.rank, exited.exit_code) == (puppets[0].about["rank"], 1)
        assert exited.last_words.rstrip().endswith("RuntimeError: boom")
        await until_gone(puppets[1].pid, within_s=2)
        assert all(refuses(endpoint) for endpoint in job.members[0].endpoints)
        again = await one.planner.fact(MachineRegistered)
        assert again.machine.generation == 1
        await one.planner.command(
            Start(generation=1, slot=0, membership=membership(as_member(again), ranks=2))
        )
        assert (await director.next()).about["generation"] == 1
    assert "boom" in capfd.readouterr().err


async def test_what_a_worker_said_last_is_published_before_its_exit(
    director: Any, puppet_entry: str
) -> None:
    async with rig(puppet_entry) as one:
        await start(one)
        puppet = await hello(await director.next())
        facts = [
            StepProgress(machine=ME, rank=0, epoch=1, step=step, step_s=0.1) for step in range(200)
        ]
        for fact in facts:
            puppet.say(Fact.of(fact))
        puppet.do("exit", code=5)
        assert [await one.planner.fact(StepProgress) for _ in facts] == facts


async def test_a_zombie_kills_its_ranks_and_registers_anew(
    director: Any, puppet_entry: str, until_gone: Any
) -> None:
    async with rig(puppet_entry) as one:
        await start(one)
        puppet = await hello(await director.next())
        plan = Plan(
            id="m1",
            job=JOB,
            kind="failure",
            from_epoch=1,
            membership=membership(ELSEWHERE, epoch=2),
            moves=(Move(slot=0, leaver=ME, joiner="node-9"),),
            sources={0: 0},
        )
        await one.planner.command(Recover(plan=plan))
        await until_gone(puppet.pid, within_s=2)
        assert (await one.planner.fact(MachineRegistered)).machine.generation == 1


async def test_release_and_stop(director: Any, puppet_entry: str, until_gone: Any) -> None:
    async with rig(puppet_entry) as one:
        await start(one)
        puppet = await hello(await director.next())
        release = Release(generation=0, epoch=2, then="standby")
        await one.planner.command(release)
        await one.planner.command(release)
        await until_gone(puppet.pid, within_s=2)
        assert (await one.planner.fact(MachineRegistered)).machine.generation == 1
        await one.planner.command(Stop(reason="over"))
        assert await one.code() == 0


async def test_a_worker_that_ignores_sigterm_is_killed(director: Any, puppet_entry: str) -> None:
    async with rig(puppet_entry) as one:
        await start(one)
        puppet = await director.next()
        puppet.do("deaf")
        await one.planner.command(BreakStep(epoch=1, reason="is it deaf yet?"))
        async with asyncio.timeout(5):
            await puppet.heard.get()
        await one.planner.command(Stop(reason="over"))
        assert await one.code() == 0
        await puppet.gone.wait()


async def test_a_standby_leaves_when_the_job_is_finished(
    director: Any, puppet_entry: str, until_gone: Any
) -> None:
    async with rig(puppet_entry) as one:
        await one.planner.fact(MachineRegistered)
        job = membership(ELSEWHERE)
        await one.planner.command(Warm(generation=0, slots=(0,), membership=job))
        puppet = await director.next()
        finished = new_event(job=JOB, source="/planner", payload=JobFinished(epoch=1, step=5))
        await one.planner.bus.publish(finished)
        assert await one.code() == 0
        await until_gone(puppet.pid, within_s=1)


async def test_cancelled_it_ends_its_processes_first(
    director: Any, puppet_entry: str, until_gone: Any
) -> None:
    async with rig(puppet_entry) as one:
        await start(one)
        puppet = await hello(await director.next())
        one.running.cancel()
        assert await one.code() == 143
        await until_gone(puppet.pid, within_s=1)
        await until_gone(puppet.about["server"], within_s=1)


async def test_a_frozen_fork_server_cannot_keep_the_agent(
    director: Any, puppet_entry: str, until_gone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_END_S", 0.2)
    monkeypatch.setattr(forks, "_END_S", 0.2)
    async with rig(puppet_entry) as one:
        await start(one)
        puppet = await hello(await director.next())
        os.kill(puppet.about["server"], signal.SIGSTOP)
        one.running.cancel()
        assert await one.code() == 143
        await until_gone(puppet.pid, within_s=1)


async def test_training_outlives_the_bus(
    director: Any, puppet_entry: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async with rig(puppet_entry) as one:
        await start(one)
        puppet = await hello(await director.next())
        one.broker.reachable = False
        for step in range(3):
            progress = StepProgress(machine=ME, rank=0, epoch=1, step=step, step_s=0.1)
            puppet.say(Fact.of(progress))
        puppet.say(Done(rank=0, step=3))
        puppet.do("exit", code=0)
        assert await one.code() == 0
    said = "".join(capfd.readouterr())
    assert said.count("the bus is unreachable; training continues without it") == 1
    assert "facts.undelivered" in said


async def test_facts_of_an_outage_arrive_after_it(director: Any, puppet_entry: str) -> None:
    async with rig(puppet_entry) as one:
        await start(one)
        puppet = await hello(await director.next())
        one.broker.reachable = False
        puppet.do("exit", code=4)
        await puppet.gone.wait()
        one.broker.reachable = True
        assert (await one.planner.fact(WorkerExited)).exit_code == 4


async def test_telemetry_is_relayed_and_is_a_sign_of_life(director: Any, puppet_entry: str) -> None:
    async with rig(puppet_entry) as one:
        batches = one.planner.bus.telemetry(JOB)
        async with asyncio.timeout(10):
            _, data = await anext(batches)
            assert len(decode_batch(data).records) == 0
            await start(one)
            puppet = await hello(await director.next())
            puppet.do("clock", steps=5)
            async for machine, data in batches:
                batch = decode_batch(data)
                assert (machine, batch.machine, batch.generation) == (ME, ME, 0)
                if len(batch.records):
                    break
        assert (batch.epoch, batch.dropped) == (1, 0)
        assert batch.records["step"].tolist() == [0, 1, 2, 3, 4]


async def test_the_detector_says_which_stages_of_analysis_run_here(
    director: Any, puppet_entry: str
) -> None:
    placed = AnalysisPlaced(
        at_agents=STAGES, machines=1, operations_s=1, detector_cpu=0, detector_cpu_central=1
    )
    async with rig(puppet_entry) as one:
        batches = one.planner.bus.telemetry(JOB)
        async with asyncio.timeout(10):
            await anext(batches)
            await one.planner.bus.publish(new_event(job=JOB, source="/detector", payload=placed))
            await start(one)
            puppet = await hello(await director.next())
            puppet.do("clock", steps=5, commit=True)
            counted: list[tuple[int, int]] = []
            records = 0
            async for _, data in batches:
                batch = decode_batch(data)
                counted += batch.more.activity.tolist()
                records += len(batch.records)
                if sum(count for _, count in counted) + records == 5:
                    break
        assert {rank for rank, _ in counted} == {0}


async def test_what_a_killed_worker_did_last_is_relayed(director: Any, puppet_entry: str) -> None:
    async with rig(puppet_entry) as one:
        batches = one.planner.bus.telemetry(JOB)
        async with asyncio.timeout(10):
            await anext(batches)
            await start(one)
            puppet = await hello(await director.next())
            puppet.do("clock", steps=9)
            puppet.do("raise", text="and dies at once")
            await one.planner.fact(WorkerExited)
            async for _, data in batches:
                if len(records := decode_batch(data).records):
                    break
        assert records["step"].tolist() == [*range(9)]


async def test_a_garbled_worker_is_a_dead_worker(director: Any, puppet_entry: str) -> None:
    async with rig(puppet_entry) as one:
        await start(one)
        puppet = await hello(await director.next())
        puppet.do("frame", data="ffffffffffffffff")
        assert (await one.planner.fact(WorkerExited)).exit_code == 75


async def test_output_goes_to_a_file_per_rank(
    director: Any, puppet_entry: str, tmp_path: Path
) -> None:
    async with rig(puppet_entry, log_dir=tmp_path / "logs") as one:
        await start(one)
        puppet = await hello(await director.next())
        puppet.do("print", on="stdout", text="hello from rank 0")
        puppet.do("raise", text="boom")
        exited = await one.planner.fact(WorkerExited)
        (log,) = (tmp_path / "logs").iterdir()
        assert log.name.startswith("rank0-node-0-")
        assert "hello from rank 0\n" in log.read_text()
        assert exited.last_words.rstrip().endswith("RuntimeError: boom")


@pytest.mark.parametrize("logs", [True, False], ids=["log folder", "inherited"])
async def test_what_is_logged_after_the_last_words_is_not_why_a_program_ended(
    director: Any, puppet_entry: str, tmp_path: Path, logs: bool
) -> None:
    """Links break when programs end, and a line about that is the last one in the output."""
    async with rig(puppet_entry, log_dir=tmp_path / "logs" if logs else None) as one:
        await start(one)
        puppet = await hello(await director.next())
        puppet.do("print", on="stderr", text="no such data set")
        puppet.do("print", on="__stderr__", text='{"event": "link handshake failed"}')
        puppet.do("exit", code=1)
        exited = await one.planner.fact(WorkerExited)
        assert exited.last_words == "no such data set\n"
        if logs:
            (log,) = (tmp_path / "logs").iterdir()
            assert log.read_text().endswith('{"event": "link handshake failed"}\n')


async def test_the_last_words_of_native_code_are_in_the_output(
    director: Any, puppet_entry: str, tmp_path: Path
) -> None:
    async with rig(puppet_entry, log_dir=tmp_path / "logs") as one:
        await start(one)
        puppet = await hello(await director.next())
        puppet.do("print", on="stderr", text="a warning of long ago")
        puppet.do("print", on="__stderr__", text="terminate called: bad_alloc")
        puppet.do("signal", number=signal.SIGABRT)
        exited = await one.planner.fact(WorkerExited)
        assert exited.signal == signal.SIGABRT
        assert "terminate called: bad_alloc\n" in exited.last_words


def remembered(folder: Path) -> list[Path]:
    """Where agents with a folder in ``folder`` keep the last words of workers."""
    return [*folder.glob("tm-*/*.words")]


async def test_the_fork_server_may_die(
    director: Any,
    puppet_entry: str,
    until_gone: Any,
    short_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_dir))
    async with rig(puppet_entry) as one:
        await start(one)
        puppet = await hello(await director.next())
        os.kill(puppet.about["server"], signal.SIGKILL)
        exited = await one.planner.fact(WorkerExited)
        assert exited.signal == signal.SIGKILL
        await until_gone(puppet.pid, within_s=1)
        again = await one.planner.fact(MachineRegistered)
        await one.planner.command(
            Start(generation=1, slot=0, membership=membership(as_member(again)))
        )
        assert (await director.next()).about["generation"] == 1
        assert len(remembered(short_dir)) == 1  # what the first one said is not kept


async def test_facts_about_a_plan_carry_its_trace(director: Any, puppet_entry: str) -> None:
    from trainmover.tracing import observe

    observe.configure(service="test", level="info")
    async with rig(puppet_entry) as one:
        job = await start(one)
        puppet = await hello(await director.next())
        plan = Plan(
            id="m1",
            job=JOB,
            kind="failure",
            from_epoch=1,
            membership=Membership(epoch=2, layout=job.layout, members=job.members),
            moves=(),
            sources={},
        )
        with observe.span("incident"):
            mine: Mapping[str, str] = observe.current_trace()
            await one.planner.command(Recover(plan=plan))
        await puppet.heard.get()
        puppet.say(Fact.of(PlanPrepared(migration="m1", machine=ME, rank=0, epoch=2, prepare_s=0)))
        while not isinstance((event := await one.planner.facts.get()).payload, PlanPrepared):
            pass
        assert event.trace["traceparent"].split("-")[1] == mine["traceparent"].split("-")[1]
