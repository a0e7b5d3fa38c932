"""A bus of three servers loses its leader in mid-migration, and the migration is committed.

Two leaders matter: that of the stream of facts, and that of JetStream itself ("meta"), which
places consumers. Servers are real processes, killed as a crash would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import WORKLOADS, StartJob
from tests.support.ports import free_port
from tests.support.scripted import replicas, staged

from trainmover.bus.embedded import EmbeddedServer
from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.streams import BUCKETS, DEAD_STREAM, REPLICAS_VARIABLE
from trainmover.errors import BusError
from trainmover.events.migration import MigrationCommitted
from trainmover.subjects import COMMAND_STREAM, EVENT_STREAM

STREAMS = (EVENT_STREAM, COMMAND_STREAM, DEAD_STREAM, *(f"KV_{bucket}" for bucket in BUCKETS))
NODES = 3
PORTS = 2  # of each: routes, monitoring


@dataclass(frozen=True)
class Cluster:
    """Three servers that keep everything three times."""

    servers: dict[str, EmbeddedServer]
    monitors: dict[str, int]

    @property
    def url(self) -> str:
        """For clients: any of them will do."""
        return ",".join(server.url for server in self.servers.values())

    def meta_leader(self) -> str:
        """Who leads JetStream, as the first server that knows tells; empty when nobody does."""
        for port in self.monitors.values():
            with contextlib.suppress(OSError):
                page = urllib.request.urlopen(f"http://127.0.0.1:{port}/jsz", timeout=2)
                told: dict[str, Any] = json.loads(page.read())
                if leader := told.get("meta_cluster", {}).get("leader"):
                    return str(leader)
        return ""

    async def stream_leader(self) -> str:
        """Who leads the stream of facts."""
        async with NatsBus(self.url) as bus:
            info = await bus.client.jetstream().stream_info(EVENT_STREAM)
        assert info.cluster is not None
        assert info.cluster.leader is not None
        return info.cluster.leader

    async def usable(self) -> None:
        """Wait until there is a leader and streams are kept three times."""
        async with asyncio.timeout(30), NatsBus(self.url) as bus:
            while True:
                with contextlib.suppress(BusError):
                    await bus.setup(replicas=NODES)
                    return

    def kill(self, name: str) -> None:
        self.servers[name].kill()


@pytest.fixture
def three() -> Iterator[Cluster]:
    names = [f"n{index}" for index in range(NODES)]
    routes = {name: free_port() for name in names}
    monitors = {name: free_port() for name in names}
    known = json.dumps([f"nats://127.0.0.1:{port}" for port in routes.values()])
    with contextlib.ExitStack() as stack:
        yield Cluster(
            {
                name: stack.enter_context(
                    EmbeddedServer(
                        sync_always=True,
                        extra_config=(
                            f"server_name: {name}\n"
                            f"http: 127.0.0.1:{monitors[name]}\n"
                            f"cluster {{ name: tm, listen: 127.0.0.1:{routes[name]}, "
                            f"routes: {known} }}\n"
                        ),
                    )
                )
                for name in names
            },
            monitors,
        )


@pytest.fixture
async def bus_of_three(three: Cluster) -> Cluster:
    await three.usable()
    return three


async def test_streams_and_buckets_are_kept_three_times(bus_of_three: Cluster) -> None:
    async with NatsBus(bus_of_three.url) as bus:
        for name in STREAMS:
            info = await bus.client.jetstream().stream_info(name)
            assert info.config.num_replicas == NODES, name
        await bus.setup()  # a service that knows nothing of replicas takes none away
        info = await bus.client.jetstream().stream_info(EVENT_STREAM)
        assert info.config.num_replicas == NODES


async def test_what_was_kept_once_is_kept_three_times_when_asked_for(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(30), NatsBus(three.url) as bus:
        while True:
            with contextlib.suppress(BusError):
                await bus.setup()
                break
        assert (await bus.client.jetstream().stream_info("KV_tm_jobs")).config.num_replicas == 1
        monkeypatch.setenv(REPLICAS_VARIABLE, str(NODES))
        await bus.setup()
        for name in STREAMS:
            info = await bus.client.jetstream().stream_info(name)
            assert info.config.num_replicas == NODES, name


@pytest.mark.parametrize("victim", ["stream", "meta"])
@pytest.mark.timeout(120)
async def test_a_migration_outlives_the_leader(bus_of_three: Cluster, victim: str) -> None:
    url = bus_of_three.url
    async with staged(url) as stage, replicas() as start:
        await start("detector", url, lease_s=3)
        await start("planner", url, lease_s=3)
        await stage.formed()
        plan = await stage.migrate("w-1")
        leader = (
            bus_of_three.meta_leader() if victim == "meta" else await bus_of_three.stream_leader()
        )
        bus_of_three.kill(leader)
        killed_s = time.monotonic()
        await stage.carry_out(plan)
        committed = await stage.until(MigrationCommitted, within_s=40)
        assert isinstance(committed, MigrationCommitted)
        assert committed.membership == plan.membership
        print(f"committed {time.monotonic() - killed_s:.1f} s after the {victim} leader died")
        # The bus of two is a whole bus: the next one is planned, carried out and committed.
        following = await stage.migrate("w-0")
        assert following.epoch > plan.epoch
        await stage.carry_out(following)
        await stage.until(MigrationCommitted, count=2, within_s=40)
        assert len({fact.id for fact in stage.facts}) == len(stage.facts)


@pytest.mark.job
@pytest.mark.soak  # the normal run has migrations without ranks, above
@pytest.mark.timeout(400)
async def test_a_real_job_is_moved_while_the_leader_dies(
    bus_of_three: Cluster, cluster: StartJob, undisturbed: StartJob, tmp_path: Path
) -> None:
    """Training does not notice, and the bits are those of a run that nobody disturbed."""
    gate, second_gate = tmp_path / "gate", tmp_path / "second"
    program = (WORKLOADS, "ddp", "--steps", "200")
    hold = ("--hold-at", "20", "--gate", str(gate))
    then = ("--then-hold-at", "170", "--then-gate", str(second_gate))
    job = cluster("--nats", bus_of_three.url, "--nnodes", "2:3", *program, *hold, *then)
    await asyncio.to_thread(job.until, r"job\.formed")
    await asyncio.to_thread(job.wait_until_ready, 2)
    moved = await asyncio.to_thread(job.cli, "migrate", "node-1", "--yes", "--no-wait")
    assert moved.returncode == 0, moved.stderr
    bus_of_three.kill(await bus_of_three.stream_leader())
    gate.touch()
    await asyncio.to_thread(job.until, r"migration\.(ready|switching)")
    second_gate.touch()  # else it may be at its end before there is a leader
    await asyncio.to_thread(job.until, r"migration\.committed .*node-1 -> node-2")
    assert await asyncio.to_thread(job.finish) == 0, job.output

    expected = await asyncio.to_thread(undisturbed, 2, *program)
    assert job.finals() == expected.finals()
    assert job.losses() == expected.losses()
